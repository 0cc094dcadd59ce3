/* reply_tools.h - grammars of calls: of a forced call (tool_choice required, a named tool), and of the calls a model
 * makes on its own, some of which may be of tools whose arguments must be valid (`strict`).
 *
 * A forced call has three parts: forced text, text that the model writes under a grammar, forced text again. The forced
 * parts are tokenized with special tokens recognised. Grammars recognise marks that are tokens by private bytes: see
 * reply_mark_tokens.
 *
 *     <tool_call>\n{"name": "      weather", "arguments": {"city": "Oslo"}}\n      </tool_call>
 *     ───────── open ───────       ──────────────── grammar ────────────────       ── close ──
 *
 * How the server runs it: once reply_mode is REPLY_IN_TEXT (after the reasoning, if the prompt left it open), rt_take
 * the tokens so far, rt_prompt with the tokens of `open` appended, feed them to the Reply; rt_allow with the masks of
 * `grammar`; append every token to the GrammarText and feed it. When grammar_text_done is true (every text of the
 * grammar ends where nothing can follow), drop the mask, rt_take up to there, append and feed the tokens of `close`, if
 * any. If ends_turn, call reply_end(r, REPLY_ENDED). Otherwise the model is free again: with one_call the Reply returns
 * REPLY_STOP_CALL, without it more calls or an end may follow.
 *
 * Held calls need no such steps: their grammar covers the whole answer. It leaves other text free and follows a call
 * from its opening mark to its end, so every mask depends only on the text and the path. */
#ifndef RATOON_TEXT_REPLY_REPLY_TOOLS_H
#define RATOON_TEXT_REPLY_REPLY_TOOLS_H

#include "text/grammar/grammar.h"
#include "text/reply/reply.h"

typedef struct {
    char    *open, *close;                         /* UTF-8, NUL-terminated; open is never empty */
    Grammar *grammar;
    bool     ends_turn;                            /* the call is the whole message */
} ForcedCall;

/* tools as in ReplyOptions, not empty. name: [n_names] the tools that may be called; n_names 0: any. Besides the form
 * of a call, the grammar enforces:
 * JSON formats (and CALLS_NONE, which is written as CALLS_JSON): the arguments are valid by the tool's schema.
 * XML formats: parameters in the schema's order, required ones present; strings are raw text without the closing tag
 * (with an enum or a const: one of its values), other types JSON valid by their schema.
 * Gemma: members in the schema's order, required ones present, of their type.
 * ST_ARG: a name that no tool has, or malformed tools; ST_UNSUPPORTED, ST_FORMAT: a schema that cannot be enforced,
 * with the place ("tool weather: #/properties/a/not: ..."); ST_MEMORY. */
Status forced_call(ForcedCall *out, CallFormat format, const json_t *tools, const char *const *name, size_t n_names,
                   Error *err);
void   forced_call_free(ForcedCall *c);

/* The grammar of an answer with optional calls, starting after its reasoning (behind: after a forced call). tools as
 * in ReplyOptions, not empty; strict: [tools] whether a tool's arguments must be valid by its schema as above; the
 * arguments of the others are free. Only after an opening mark in the family's own form (or, where calls are JSON, a
 * bare object up to the colon after "arguments") must a call follow; all other text is free, and so is reasoning.
 * Use endless masks (grammar_mask.h) and a trie with mark tokens. Errors as above, and ST_UNSUPPORTED for too many
 * long names. */
Status held_calls(Grammar **out, ReplyStyle style, const json_t *tools, const bool *strict, bool behind, Error *err);

/* The tokens that the grammars of calls recognise by private bytes, for TokenSource.mark; returns their number. */
enum { MARK_TOKENS_MAX = 16 };
typedef struct { int32_t id; const char *bytes; size_t n; } MarkToken;
size_t reply_mark_tokens(MarkToken out[MARK_TOKENS_MAX], ReplyStyle style, TokenOf token, void *ud);

#endif
