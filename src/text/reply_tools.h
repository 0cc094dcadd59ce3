/* reply_tools.h - a call that has to be made: tool_choice required, a named tool, a list of allowed ones.
 * Such a call has three parts: text that is forced, text that the model writes under a grammar, text that is forced again. Markers that are
 * control tokens have no bytes and therefore no place in a grammar; they are in the forced parts, which are tokenized with special tokens
 * recognised. Two formats have one marker inside the grammar's text all the same: see reply_inner_marker.
 *
 *     <tool_call>\n{"name": "      weather", "arguments": {"city": "Oslo"}}\n      </tool_call>
 *     ───────── open ───────       ──────────────── grammar ────────────────       ── close ──
 *
 * How the server runs it: once reply_mode is REPLY_IN_TEXT (so after the reasoning, if the prompt left it open), rt_take what has come,
 * rt_prompt with the tokens of `open` appended, feed them to the Reply; rt_allow with the masks of `grammar`; append every token to the
 * GrammarText and feed it. When grammar_text_done says so - every text of the grammar ends where nothing can follow - drop the mask,
 * rt_take up to there, append and feed the tokens of `close`, if any. Then ends_turn: reply_end(r, REPLY_ENDED). Otherwise the model is free
 * again: with one_call the Reply says REPLY_STOP_CALL, without it more calls or an end may come. */
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

/* The marker that occurs inside the grammar's text of a format (Gemma's string quote, Laguna's closing mark), NULL: none. If the vocabulary has it as one token, the TokenSource of the
 * trie must say that this token stands for these bytes, though it is a control token; the trie is then one for such calls alone. */
const char *reply_inner_marker(CallFormat format);

#endif
