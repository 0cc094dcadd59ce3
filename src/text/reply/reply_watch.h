/* reply_watch.h - free text as rules of a grammar: anything is allowed, and where a call is opened in the family's own
 * form, the rule of that call follows, and then free text again. Which bytes open a call depends on little of what came
 * before (reasoning, lines, fences, whether the answer is still empty), so free text is a finite automaton: the
 * decoder's rules for marks, expanded into states.
 *
 *     free-0  ── any but < { \n ──▶ free-3 ⟲ "<tool_call>" at the beginning of a line, or the marker's token ──▶ call
 *             ──▶ free-7
 *        └─ "<" ──▶ free-1 ── "t" ──▶ ...        in an answer that begins as a JSON object: {"name": "weather",
 *                                                "parameters": ──▶ bare-0 ──▶ ...
 *
 * Each rule may end anywhere. Marks that are tokens are one byte each, which no text contains (MARK_BYTE in
 * grammar_mask.h). */
#ifndef RATOON_TEXT_REPLY_REPLY_WATCH_H
#define RATOON_TEXT_REPLY_REPLY_WATCH_H

#include "text/grammar/grammar.h"
#include "text/reply/reply.h"

/* A declared tool; name as written inside a JSON string, form of its arguments. */
typedef struct { const char *name; size_t form; } Watched;

/* The rules free-0 ... as text, malloc'd, NUL-terminated; an answer begins with free-0 (behind: with what may follow a
 * call). They use `call` (what follows the opening mark, including the closing one; only in formats that have marks),
 * bare-F for each form F (what follows the colon after "parameters", including the object's end), and the marks' rules.
 * tool: [n] the tools that a bare object may call; n 0: bare objects are text. ST_UNSUPPORTED: the names are too
 * long to watch for; ST_MEMORY. */
Status watch_rules(char **out, ReplyStyle style, const Watched *tool, size_t n, bool behind, Error *err);

/* Rules of one byte each for the marks, among them mark-call-end, the end of `call`. */
enum { WATCH_MARKS = 6 };
void watch_marks(GrammarSchema out[WATCH_MARKS]);

#endif
