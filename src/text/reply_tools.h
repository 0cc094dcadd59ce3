/* reply_tools.h - grammars of calls: of one that has to be made (tool_choice required, a named tool), and of those that a model makes when it
 * likes, among them of tools whose arguments are to be valid (`strict`).
 *
 * A forced call has three parts: text that is forced, text that the model writes under a grammar, text that is forced again. The forced parts are
 * tokenized with special tokens recognised. Marks that are tokens are known to the grammars by bytes of their own: see reply_mark_tokens.
 *
 *     <tool_call>\n{"name": "      weather", "arguments": {"city": "Oslo"}}\n      </tool_call>
 *     ───────── open ───────       ──────────────── grammar ────────────────       ── close ──
 *
 * How the server runs it: once reply_mode is REPLY_IN_TEXT (so after the reasoning, if the prompt left it open), rt_take what has come,
 * rt_prompt with the tokens of `open` appended, feed them to the Reply; rt_allow with the masks of `grammar`; append every token to the
 * GrammarText and feed it. When grammar_text_done says so - every text of the grammar ends where nothing can follow - drop the mask,
 * rt_take up to there, append and feed the tokens of `close`, if any. Then ends_turn: reply_end(r, REPLY_ENDED). Otherwise the model is free
 * again: with one_call the Reply says REPLY_STOP_CALL, without it more calls or an end may come.
 *
 * Calls that are held need no such steps: their grammar is one of the whole answer, in which free text is free and a call is followed from its
 * opening mark to its end, so every mask is a function of the text and the path. */
#ifndef RATOON_TEXT_REPLY_TOOLS_H
#define RATOON_TEXT_REPLY_TOOLS_H

#include "text/grammar.h"
#include "text/reply.h"

typedef struct {
    char    *open, *close;                         /* UTF-8, zero at the end; open is never empty */
    Grammar *grammar;
    bool     ends_turn;                            /* the call is the whole message */
} ForcedCall;

/* tools as in ReplyOptions, not empty. name: [n_names] the tools that may be called; n_names 0: any. What the grammar holds the call to,
 * beside its form: JSON formats (also CALLS_NONE, which are written as CALLS_JSON): the arguments are valid by the tool's schema. XML
 * formats: parameters in the schema's order, required ones present, strings raw text without the closing tag (those with an enum or a
 * const one of its values), others JSON valid by their schema. Gemma: members in the schema's order, required ones present, of their type.
 * ST_ARG: a name that no tool has, or tools that are not in order; ST_UNSUPPORTED, ST_FORMAT: a schema that cannot be honoured, with its
 * place ("tool weather: #/properties/a/not: ..."); ST_MEMORY. */
Status forced_call(ForcedCall *out, CallFormat format, const json_t *tools, const char *const *name, size_t n_names, Error *err);
void   forced_call_free(ForcedCall *c);

/* The grammar of an answer, from where its reasoning is over (behind: a forced call is), in which calls are held to their form: tools as in
 * ReplyOptions, not empty; strict [tools]: whose arguments are held to their schema as above; those of others are any. Only what opens a call in
 * the family's own form (or, where calls are JSON, a bare object up to the colon after "arguments") is followed by that; all else is free, and
 * reasoning is too. The masks are endless ones (grammar_mask.h), of a trie with mark tokens. Errors as above, and ST_UNSUPPORTED for too many
 * long names. */
Status held_calls(Grammar **out, ReplyStyle style, const json_t *tools, const bool *strict, bool behind, Error *err);

/* The tokens that the grammars of calls know by bytes of their own, for TokenSource.mark; n of them. */
enum { MARK_TOKENS_MAX = 16 };
typedef struct { int32_t id; const char *bytes; size_t n; } MarkToken;
size_t reply_mark_tokens(MarkToken out[MARK_TOKENS_MAX], ReplyStyle style, TokenOf token, void *ud);

#endif
