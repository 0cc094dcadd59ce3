/* reply.h - what a model's tokens mean: reasoning, text and tool calls, as they come.
 * One decoder per answer. Tokens go in one by one, in order; events come out, independent of any API dialect.
 * Markers are recognised by token id if they are one token of the vocabulary, and by their bytes otherwise. Only what
 * may still become a marker or a stop string is held back. Nothing is lost: a call that cannot be parsed comes out
 * as text.
 *
 *     tokens ──▶ bytes, whole characters ──▶ markers, tags, stop strings ──▶ reasoning │ text │ call ──▶ events
 *                                            (those of the current mode)         ▲                │
 *                                                        └───────────────────────┴────────────────┘
 *
 * The events depend on the tokens alone: not on how the tokens were grouped into blocks and, where markers are spelled
 * as bytes, not on how the bytes are split into tokens (to compare, join adjacent fragments of the same kind).
 *
 * A turn, as the server runs it:
 *
 *     reply_open(&r, &options, &err);                     options.prompt: the rendered prompt, whose end tells whether
 *                                                         reasoning is open
 *     for each token of each block:
 *         end-of-generation token?  reply_end(r, REPLY_ENDED); rt_take up to it; done
 *         reply_token(r, id, bytes, n);                   also for tokens that were forced
 *         while (reply_next(r, &event)) ...               at any time
 *         if (reply_stop(r) != REPLY_GO)                  rt_take what reply_kept says counts; done: reply_end
 *                                                         is not needed
 *         text = reply_force(r, false, &n)                rt_take up to here, rt_prompt with the tokens of `text`
 *                                                         appended, feed those too
 *     reply_end(r, REPLY_CUT) at the token limit
 *
 * Formats and the handling of malformed calls: doc/tools.md. Forced calls and their grammar: reply_tools.h. */
#ifndef RATOON_TEXT_REPLY_REPLY_H
#define RATOON_TEXT_REPLY_REPLY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* ---- how a model writes ---- */

/* Call formats: none; JSON in <tool_call> (Qwen2.5, Qwen3, Hermes); <function=...><parameter=...> (Qwen3.5, Qwen3.6,
 * Qwen3-Coder); <arg_key> (Laguna); call:NAME{...} (Gemma 4); a JSON object that is the whole message (Llama 3);
 * JSON: the same, but without any family's markers. */
typedef enum { CALLS_NONE, CALLS_QWEN3, CALLS_QWEN35, CALLS_LAGUNA, CALLS_GEMMA4, CALLS_LLAMA3, CALLS_JSON } CallFormat;
/* Formats of reasoning: none; <think> ... </think>; <|channel>thought ... <channel|>. */
typedef enum { THINK_NONE, THINK_TAGS, THINK_CHANNEL } ThinkFormat;
typedef struct { CallFormat calls; ThinkFormat think; } ReplyStyle;

/* The id of the token that has exactly this text, special tokens included; -1 if there is none. */
typedef int32_t (*TokenOf)(void *ud, const char *text);

/* Detects the style from the template's text (NULL: none), then the architecture ("": unknown), then the vocabulary
 * (NULL: not asked). */
ReplyStyle reply_style(const char *source, size_t n, const char *arch, TokenOf token, void *ud);
/* Accepts "qwen3" "hermes" "qwen35" "laguna" "gemma4" "llama3" "json" "none" (as --tool-format does); returns false
 * for any other name and leaves *out unchanged. */
bool        call_format_named(CallFormat *out, const char *name);
const char *call_format_name(CallFormat f);
/* call_mark: the marker that opens a call; NULL if the format has none. think_mark: what opens reasoning, up to its
 * first word; NULL if there is none. */
const char *reply_call_mark(ReplyStyle s);
const char *reply_think_open(ReplyStyle s);

/* ---- one answer ---- */

/* What happens to a call that cannot be parsed. RECOVER: repaired as doc/tools.md says, else text. TEXT: only
 * well-formed calls are calls, all else is text. DROP: left out (but still counted in ReplySummary.failures). */
typedef enum { CALL_ERRORS_RECOVER, CALL_ERRORS_TEXT, CALL_ERRORS_DROP } CallErrors;

typedef struct {
    ReplyStyle  style;
    const json_t *tools;                           /* a list; NULL or empty: none. Each {"type": "function",
                                                    * "function": {"name", "parameters"}}, or the inner object
                                                    * itself; "input_schema" is accepted for "parameters". A
                                                    * reference is kept; never changed */
    bool        calls_off;                         /* tool_choice none: calls are text */
    bool        one_call;                    /* parallel_tool_calls false: REPLY_STOP_CALL after the first whole call */
    bool        bare_off;         /* an answer that is JSON is an answer and not a call: a response format was
                                   * requested */
    bool        promote;                      /* a complete call at the end of reasoning that was never closed counts
                                               * as a call */
    CallErrors  errors;
    /* the rendered prompt, or at least its last 64 bytes; NULL: no reasoning is open */
    const char *prompt; size_t n_prompt;
    bool        think_inline;                /* reasoning_format none: reasoning and its markers are part of the text */
    int32_t     think_max;               /* maximum tokens of reasoning, < 0: no limit, 0: no reasoning; see
                                          * reply_force */
    const char *think_message;    /* written before the closing marker when the end of the reasoning is forced; NULL:
                                   * nothing */
    const char *const *stop; size_t n_stop;        /* copied; empty strings are ignored. Calls are not searched */
    bool        stop_in_reasoning;                 /* search the reasoning too */
    TokenOf     token; void *ud;           /* used by reply_open only; NULL: markers are recognised by their bytes
                                            * alone */
} ReplyOptions;

typedef struct Reply Reply;                        /* used by one thread at a time */

/* ST_ARG: the tools are malformed (the message names the place: "tools[2].function.name ..."); ST_MEMORY. */
Status reply_open(Reply **out, const ReplyOptions *o, Error *err);
void   reply_close(Reply *r);                      /* NULL is fine */

/* Feeds one more token with the bytes it stands for; none for control tokens (rt_token_bytes). Do not feed
 * end-of-generation tokens. Returns false when out of memory; the answer cannot continue then. Tokens after a stop
 * are ignored. */
bool   reply_token(Reply *r, int32_t id, const char *bytes, size_t n);

/* Ends the answer. ENDED: the model ended its turn; CUT: a limit or a cancel. Whatever still waits is emitted, and
 * every CALL_BEGIN gets its CALL_END. A call whose arguments are not whole stays open (ReplySummary.call_cut): half a
 * command must not look complete, since clients run whatever they can parse. They are whole after ENDED if only closing
 * marks are missing, after CUT only if nothing can follow them. Returns false when out of memory. */
typedef enum { REPLY_ENDED, REPLY_CUT } ReplyCause;
bool   reply_end(Reply *r, ReplyCause cause);

/* ---- events ---- */

/* REASON, TEXT: whole characters, never empty. CALL_BEGIN: bytes is the complete name, sent once; `call` counts from
 * 0. CALL_ARGS: a fragment of the arguments; the fragments of one call concatenate to one JSON object ("{}" if it
 * has no arguments), or, if the answer ended within it, to the beginning of one, never a complete one. Calls
 * do not overlap. */
typedef enum { REPLY_REASON, REPLY_TEXT, REPLY_CALL_BEGIN, REPLY_CALL_ARGS, REPLY_CALL_END } ReplyKind;
typedef struct {
    ReplyKind   kind;
    int32_t     call;                              /* -1 for REASON and TEXT */
    const char *bytes; size_t n;                   /* valid until the next call with this Reply other than reply_next */
    int32_t     from, tokens;                      /* number of tokens that lie wholly before the event's first byte,
                                                    * and before its end: those of [from, tokens) end within it
                                                    * (their log-probabilities belong to this text) */
} ReplyEvent;

/* The next event, in order; returns false if there is none at the moment. */
bool   reply_next(Reply *r, ReplyEvent *out);

/* ---- state of the answer ---- */

/* Why generation must stop. STRING: ReplySummary.stop says which stop string. CALL: the first call is complete and
 * one_call is set. TURN: a token that begins another speaker's turn (Gemma's <|tool_response>). */
typedef enum { REPLY_GO, REPLY_STOP_STRING, REPLY_STOP_CALL, REPLY_STOP_TURN } ReplyStop;
ReplyStop reply_stop(const Reply *r);
/* Number of tokens that count, from the first one fed: all of them, or after a stop those that lie wholly before it.
 * These are the answer's raw block, reasoning included, as kept for exact replay. The stop may lie in an earlier
 * block, which rt_take cannot shorten. */
int32_t reply_kept(const Reply *r);

typedef enum { REPLY_IN_REASON, REPLY_IN_TEXT, REPLY_IN_CALL } ReplyMode;
ReplyMode reply_mode(const Reply *r); /* IN_TEXT also before the first token, unless the prompt left reasoning open */

/* The text to force now because the reasoning has reached think_max (or `now` is true: the caller's own limit):
 * message, closing marker, the family's white space. NULL if not in reasoning, if the limit is not reached, or in
 * the middle of a character or a marker: ask again after the next token. Append its tokens (with special tokens
 * recognised) to the text and feed them here like any others. Valid as long as r. */
const char *reply_force(const Reply *r, bool now, size_t *n);

typedef struct {
    int32_t tokens, reason_tokens, text_tokens, call_tokens;   /* fed and counted (see reply_kept); once the answer
                                                                * has ended, the other three add up to the first. A
                                                                * marker counts with what it delimits; before the
                                                                * end, waiting bytes count with the current mode */
    int32_t calls;                      /* calls begun; all have ended once the answer has */
    int32_t failures;                   /* calls that could not be parsed as written: made text, dropped, or closed
                                         * early */
    int32_t unknown;                    /* calls of undeclared tools, which are emitted all the same */
    int32_t repeated;                   /* parameters given twice in one call: both are emitted, readers take the
                                         * last */
    bool    reason_unclosed;            /* the answer ended within its reasoning */
    bool    call_cut;                   /* the answer ended within the last call: its arguments are incomplete */
    int32_t stop;                       /* index into ReplyOptions.stop; -1: none */
} ReplySummary;
void   reply_summary(const Reply *r, ReplySummary *out);

#endif
