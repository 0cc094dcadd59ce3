/* reply.h - what a model's tokens mean: reasoning, text and tool calls, as they come.
 * One decoder per answer. Tokens go in one by one, in order; events come out that no API dialect is part of. Markers are known by their
 * token id where the vocabulary has them as one token, and by their bytes otherwise. What may still become a marker or a stop string
 * waits, nothing else does. Nothing is lost: a call that cannot be read comes out as text.
 *
 *     tokens ──▶ bytes, whole characters ──▶ markers, tags, stop strings ──▶ reasoning │ text │ call ──▶ events
 *                                            (those of the present mode)         ▲                │
 *                                                        └───────────────────────┴────────────────┘
 *
 * The events are a function of the tokens alone: not of the blocks that brought them and, where markers are spelled as bytes, not of how
 * the bytes are cut into tokens (fragments of the same kind in a row are to be joined before comparing).
 *
 * A turn, as the server runs it:
 *
 *     reply_open(&r, &options, &err);                     options.prompt: the rendered prompt, whose end tells whether reasoning is open
 *     for each token of each block:
 *         end-of-generation token?  reply_end(r, REPLY_ENDED); rt_take up to it; done
 *         reply_token(r, id, bytes, n);                   also for tokens that were forced
 *         while (reply_next(r, &event)) ...               at any time
 *         if (reply_stop(r) != REPLY_GO)                  rt_take what reply_kept says counts; done: reply_end is not needed
 *         text = reply_force(r, false, &n)                rt_take up to here, rt_prompt with the tokens of `text` appended, feed those too
 *     reply_end(r, REPLY_CUT) at the token limit
 *
 * Formats and what is done about broken ones: doc/tools.md. Forced calls and their grammar: reply_tools.h. */
#ifndef RATOON_TEXT_REPLY_H
#define RATOON_TEXT_REPLY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* ---- how a model writes ---- */

/* Calls: none; JSON in <tool_call> (Qwen2.5, Qwen3, Hermes); <function=...><parameter=...> (Qwen3.5, Qwen3.6, Qwen3-Coder); <arg_key>
 * (Laguna); call:NAME{...} (Gemma 4); a JSON object that is the whole message (Llama 3); the same without the markers of any family. */
typedef enum { CALLS_NONE, CALLS_QWEN3, CALLS_QWEN35, CALLS_LAGUNA, CALLS_GEMMA4, CALLS_LLAMA3, CALLS_JSON } CallFormat;
/* Reasoning: none; <think> ... </think>; <|channel>thought ... <channel|>. */
typedef enum { THINK_NONE, THINK_TAGS, THINK_CHANNEL } ThinkFormat;
typedef struct { CallFormat calls; ThinkFormat think; } ReplyStyle;

/* The id of the token that has exactly this text, special ones included; -1: none. */
typedef int32_t (*TokenOf)(void *ud, const char *text);

/* From the template's text (NULL: none), then the architecture ("" unknown), then the vocabulary (NULL: not asked). */
ReplyStyle reply_style(const char *source, size_t n, const char *arch, TokenOf token, void *ud);
/* "qwen3" "hermes" "qwen35" "laguna" "gemma4" "llama3" "json" "none" (as --tool-format takes them); false: another name, *out unchanged. */
bool        call_format_named(CallFormat *out, const char *name);
const char *call_format_name(CallFormat f);

/* ---- one answer ---- */

/* What becomes of a call that cannot be read. RECOVER: see doc/tools.md, else text. TEXT: only calls that are right, all else is text.
 * DROP: it is left out (counted in ReplySummary.failures all the same). */
typedef enum { CALL_ERRORS_RECOVER, CALL_ERRORS_TEXT, CALL_ERRORS_DROP } CallErrors;

typedef struct {
    ReplyStyle  style;
    const json_t *tools;                           /* a list, NULL or empty: none. Each {"type": "function", "function": {"name", "parameters"}},
                                                      or the inner object itself; "input_schema" means "parameters". Kept, not changed */
    bool        calls_off;                         /* tool_choice none: calls are text */
    bool        one_call;                          /* parallel_tool_calls false: REPLY_STOP_CALL after the first whole call */
    bool        bare_off;                          /* an answer that is JSON is an answer and no call: a response format was asked for */
    bool        promote;                           /* a whole call at the end of reasoning that was never closed is a call */
    CallErrors  errors;
    const char *prompt; size_t n_prompt;           /* the rendered prompt or at least its last 64 bytes; NULL: no reasoning is open */
    bool        think_inline;                      /* reasoning_format none: reasoning with its markers is part of the text */
    int32_t     think_max;                         /* tokens of reasoning, < 0: no limit; see reply_force. 0 is a limit of none */
    const char *think_message;                     /* what a forced end of the reasoning says before the closing marker; NULL: nothing */
    const char *const *stop; size_t n_stop;        /* copied; empty strings are skipped. Not searched inside calls */
    bool        stop_in_reasoning;                 /* searched there too */
    TokenOf     token; void *ud;                   /* called by reply_open only; NULL: markers are known by their bytes alone */
} ReplyOptions;

typedef struct Reply Reply;                        /* used by one thread at a time */

/* ST_ARG: the tools are not in order (the message names the place: "tools[2].function.name ..."); ST_MEMORY. */
Status reply_open(Reply **out, const ReplyOptions *o, Error *err);
void   reply_close(Reply *r);                      /* NULL is fine */

/* One more token: the bytes it stands for, none for control tokens (rt_token_bytes). End-of-generation tokens are not fed. False: out of
 * memory, and the answer cannot go on. After a stop nothing is taken. */
bool   reply_token(Reply *r, int32_t id, const char *bytes, size_t n);

/* No more tokens. ENDED: the model ended its turn; CUT: a limit, a cancel. What waits is told, and every CALL_BEGIN has its CALL_END. ENDED
 * closes what is open, so that the fragments between them are one JSON object. CUT does not: half a command must not look like one, and
 * clients run whatever can be parsed. False: out of memory. */
typedef enum { REPLY_ENDED, REPLY_CUT } ReplyCause;
bool   reply_end(Reply *r, ReplyCause cause);

/* ---- events ---- */

/* REASON, TEXT: whole characters, never empty. CALL_BEGIN: bytes is the whole name, told once; `call` counts from 0. CALL_ARGS: a fragment
 * of the arguments; all of a call's fragments together are one JSON object ("{}" without arguments), or the beginning of one, never a whole
 * one, if the answer was cut off in it. Calls do not overlap. */
typedef enum { REPLY_REASON, REPLY_TEXT, REPLY_CALL_BEGIN, REPLY_CALL_ARGS, REPLY_CALL_END } ReplyKind;
typedef struct {
    ReplyKind   kind;
    int32_t     call;                              /* -1 for REASON and TEXT */
    const char *bytes; size_t n;                   /* valid until the next call with this Reply but reply_next */
    int32_t     from, tokens;                      /* tokens that lay wholly before the event's first byte, and before its end: those of
                                                      [from, tokens) end in it (log-probabilities of a text are theirs) */
} ReplyEvent;

/* The next event, in order; false: none at the moment. */
bool   reply_next(Reply *r, ReplyEvent *out);

/* ---- where it stands ---- */

/* Why generation has to stop. STRING: ReplySummary.stop says which one. CALL: the first call is whole and one_call is set. TURN: a token
 * that begins somebody else's turn (Gemma's <|tool_response>). */
typedef enum { REPLY_GO, REPLY_STOP_STRING, REPLY_STOP_CALL, REPLY_STOP_TURN } ReplyStop;
ReplyStop reply_stop(const Reply *r);
/* Tokens that count, from the first one fed: all, or after a stop those that lie wholly before its place. These are the answer's raw
 * block, reasoning included, as it is kept for exact replay. The stop may lie in an earlier block, which rt_take cannot shorten. */
int32_t reply_kept(const Reply *r);

typedef enum { REPLY_IN_REASON, REPLY_IN_TEXT, REPLY_IN_CALL } ReplyMode;
ReplyMode reply_mode(const Reply *r);              /* IN_TEXT also before anything has come, unless the prompt left reasoning open */

/* The text to force now because the reasoning has reached think_max (or `now`: the caller's own limit): message, closing marker, the
 * family's whitespace. NULL: not in reasoning, not yet, or in the middle of a character or a marker: ask again after the next token. Its
 * tokens, special ones recognised, are appended to the text and fed here like any others. Lives as long as r. */
const char *reply_force(const Reply *r, bool now, size_t *n);

typedef struct {
    int32_t tokens, reason_tokens, text_tokens, call_tokens;   /* fed and counted (see reply_kept); the three add up to the first once the
                                                      answer has ended. Markers count with what they delimit; before the end, what
                                                      waits counts with the present mode */
    int32_t calls;                                 /* begun; all of them have ended when the answer has */
    int32_t failures;                              /* calls that could not be read as they stood: text, dropped, or closed early */
    int32_t unknown;                               /* calls of tools that were not declared: told all the same */
    int32_t repeated;                              /* parameters given twice in one call: told twice, readers take the last */
    bool    reason_unclosed;                       /* the answer ended in reasoning */
    bool    call_cut;                              /* the answer ended within the last call: its arguments are not all there */
    int32_t stop;                                  /* index into ReplyOptions.stop, -1 */
} ReplySummary;
void   reply_summary(const Reply *r, ReplySummary *out);

#endif
