/* reply_watch.h - free text as rules of a grammar: everything may come, and where a call is opened in the family's own form, the rule of that
 * call follows, and then free text again. Which bytes open a call depends on little of what came before (reasoning, lines, fences, whether
 * the answer is still empty), so free text is a finite automaton: the decoder's rules for marks, drawn out.
 *
 *     free-0  ── any but < { \n ──▶ free-3 ⟲     "<tool_call>" at the beginning of a line, or the marker's token ──▶ call ──▶ free-7
 *        └─ "<" ──▶ free-1 ── "t" ──▶ ...        in an answer that begins as a JSON object: {"name": "weather", "parameters": ──▶ bare-0 ──▶ ...
 *
 * Each rule may end anywhere, and marks that are tokens are one byte each, which no text has (MARK_BYTE in grammar_mask.h). */
#ifndef RATOON_TEXT_REPLY_WATCH_H
#define RATOON_TEXT_REPLY_WATCH_H

#include "text/grammar.h"
#include "text/reply.h"

/* A declared tool, by its name as it is written inside a JSON string; form: of its arguments. */
typedef struct { const char *name; size_t form; } Watched;

/* The rules free-0 ... as text, malloc'd, zero at the end; an answer begins with free-0 (behind: what follows a call does). They use `call` (what
 * follows the opening mark, the closing one included; only in formats that have marks), bare-F for each form F (what follows the colon after
 * "parameters", the object's end included), and the marks' rules. tool: [n] those that a bare object may call; n 0: bare objects are text.
 * ST_UNSUPPORTED: the names are too long to be watched for; ST_MEMORY. */
Status watch_rules(char **out, ReplyStyle style, const Watched *tool, size_t n, bool behind, Error *err);

/* Rules of one byte for the marks: mark-call-end among them, for the end of `call`. */
enum { WATCH_MARKS = 6 };
void watch_marks(GrammarSchema out[WATCH_MARKS]);

#endif
