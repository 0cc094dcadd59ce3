/* reply_impl.h - internals of the output decoder.
 * Every incoming byte is either text or part of a mark. Tokens that are marks become one private byte each (a byte
 * that UTF-8 never contains), so that everything waits in one queue. The decoder looks at the queue's head for the
 * marks of its present state (reply_lex.c); what it finds goes as one symbol to that state (reply.c: reasoning,
 * text, between calls; reply_call.c, reply_json.c: inside a call). A state consumes the symbol, or changes to
 * another state and has the symbol looked at again. No state ever sees how the bytes were split into tokens. */
#ifndef RATOON_TEXT_REPLY_REPLY_IMPL_H
#define RATOON_TEXT_REPLY_REPLY_IMPL_H

#include "text/json_flow.h"
#include "text/reply/reply.h"
#include "text/reply/reply_value.h"
#include "text/tokenizer/tokenizer.h"

/* Symbols besides the bytes. The first N_TOKEN_MARKS may be single tokens of the vocabulary. */
enum {
    S_QUOTE = FLOW_QUOTE, S_THINK, S_THINK_END, S_CALL, S_CALL_END, S_PYTHON, S_TURN, S_KEY, S_KEY_END, S_VALUE,
    S_VALUE_END, S_FUNCTION, S_FUNCTION_END, S_PARAM, S_PARAM_END, S_NAMED, S_CHANNEL, S_CODE, S_CODE_END, S_TAG, S_STOP
};
enum { N_MARKS = S_STOP - S_QUOTE, N_TOKEN_MARKS = S_FUNCTION - S_QUOTE, PRIVATE = 0xf5 };
#define BIT(symbol) (1u << ((symbol) - S_QUOTE))

/* The texts of a style's marks, NULL where it has none. S_TAG stands for "<" NAME ">" of a declared tool. */
void style_marks(ReplyStyle s, const char *mark[N_MARKS]);

typedef struct { uint8_t c; int32_t done; } Held;  /* done: number of tokens that end at or before this byte */
typedef struct { uint8_t kind; int32_t call; size_t at, n; int32_t from, tokens; } Queued;
typedef struct { const char *name; const json_t *schema; } Tool;   /* schema: of the parameters, or NULL */

typedef enum { AT_REASON, AT_TEXT, AT_CALL, AT_AFTER, AT_DROP } Place;
typedef enum { TAKEN, AGAIN } Step;

/* State within a call. X: <function=...>; L: Laguna; G: Gemma; P: name(key=value); B: a JSON object with name and
 * arguments. */
typedef enum {
    X_WRAP, X_NAME, X_ARGS_CALL, X_ARGS_CALL_END, X_TAG, X_BODY, X_KEY, X_VALUE, X_JSON, X_JSON_END, X_CLOSE,
    L_NAME, L_BODY, L_KEY, L_MID, L_VALUE,
    G_WRAP, G_NAME, G_ARGS, G_CLOSE,
    P_WRAP, P_NAME, P_ARGS,
    B_OPEN, B_KEY, B_KEY_FLOW, B_COLON, B_VALUE, B_NAME_FLOW, B_ARGS_FLOW, B_TEXT_FLOW, B_SKIP_FLOW, B_NEXT,
    B_TRAIL, B_WHOLE
} CallState;

typedef struct {
    CallState state;
    int      closer;                             /* the mark that closes the opening one; 0: the call has no wrapper */
    bool     declared;                           /* only a declared tool is accepted */
    bool     begun;                              /* CALL_BEGIN has been emitted; until then the call may still turn
                                                  * out to be text */
    bool     ended;                              /* CALL_END has been emitted */
    bool     members;                            /* part of the arguments object has been written */
    bool     skip_newline, as_text, loose, doubting;
    bool     has_name, has_args, told;           /* told: part of the arguments has been written */
    int      level;                              /* B: 2 inside "function" */
    int32_t  from, tokens;                       /* tokens before the call, and those counted as its own although it
                                                  * has not begun */
    Bytes    raw;                                /* what has been read, kept while the call may turn out to be text */
    Bytes    name, key, value, out, args, doubt; /* args: arguments that wait for the call to begin */
    const Tool *tool;                            /* the tool named; NULL: not declared */
    ValueTypes types;
    json_t  *given;                              /* parameters so far, as an object */
    JsonFlow flow;
} ReplyCall;

struct Reply {
    /* options; they never change */
    ReplyStyle style;
    CallErrors errors;
    bool     calls_on, one_call, bare_off, promote, think_inline, stop_in_reasoning;
    int32_t  think_max;
    char    *force; size_t n_force;
    json_t  *tools_kept;
    Tool    *tool; size_t n_tools;
    char   **stop; size_t *stop_len, n_stop; int32_t *stop_index;
    const char *mark[N_MARKS];
    int32_t  mark_id[N_TOKEN_MARKS];

    /* what has arrived and not been consumed: in[head, n_in) */
    Utf8Stream utf8;
    Bytes    clean;
    Held    *in; size_t head, n_in, cap_in;
    int32_t  n_tokens, done, whole;                /* tokens fed; consumed; whose bytes all form complete characters */
    int32_t  from, now;                            /* token range of the event being emitted */

    Place    at;
    bool     reason_start, trim, line_start, fence, text_empty, empty_before, broken_close, last_bare;
    int      ticks, last;                          /* last: last byte of the text, -1 if there is none */
    Bytes    gap; int32_t gap_from;                /* white space that belongs to the text only if text follows */
    Bytes    region; bool in_region, region_begins, region_closed;  /* a possible call at the end of the reasoning */
    ReplyCall call;

    Queued  *queue; size_t n_queue, cap_queue, read;
    Bytes    text;
    ReplyStop stopped;
    bool     cut, ended, failed;                   /* cut: ended by a limit, or within a call */
    ReplySummary sum;
};

static inline bool recovers(const Reply *r) { return r->errors != CALL_ERRORS_TEXT; }
static inline bool is_space(int c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* ---- reply_lex.c ---- */

bool in_reserve(Reply *r, size_t more);            /* makes room for `more` bytes */
bool in_give_back(Reply *r, const Bytes *bytes);   /* puts bytes back, to be read before everything that waits */
/* Finds the symbol at the queue's head, n bytes long. which: index of the stop string for S_STOP. Returns false if
 * the symbol cannot be known yet, or nothing waits. */
typedef struct { int symbol; size_t n; int32_t which; } Unit;
bool in_next(Reply *r, bool final, Unit *out);

/* ---- reply_open.c ---- */

const Tool *tool_find(const Reply *r, const char *s, size_t n);
Status tool_read(Tool *out, const json_t *tool, size_t i, Error *err);       /* errors name the place: tools[i]... */

/* ---- reply.c ---- */

void tell(Reply *r, ReplyKind kind, const char *s, size_t n);
void text_put(Reply *r, int c);
void text_bytes(Reply *r, const Bytes *bytes);     /* puts private bytes as the marks that they stand for */

/* ---- reply_call.c, reply_json.c ---- */

void call_open(Reply *r, CallState state, int closer, bool declared);
Step call_step(Reply *r, const Unit *u);
uint32_t call_marks(const Reply *r);    /* marks that have a meaning in the call's state */
bool call_in_value(const Reply *r);     /* in a state where marks are likely part of a value: see value_end in
                                         * reply_lex.c */
void call_forget_closing(Reply *r);     /* a complete call was cut off within its closing mark: drop the partial mark
                                         * instead of making it text */
void call_end(Reply *r, ReplyCause cause);
void call_free(ReplyCall *c);

Step call_broken(Reply *r);
bool call_begin(Reply *r);                         /* the name is known; returns false if this cannot be a call */
void call_args(Reply *r, const char *s, size_t n);
void call_drain(Reply *r);                         /* emits what the JSON flow has written */
/* the arguments are complete; then: the next state, or leave the call */
Step call_ended(Reply *r, CallState then, Step result);
void call_leave(Reply *r);

Step json_body_step(Reply *r, int c);
bool json_body_complete(const Reply *r);
bool json_body_finish(Reply *r);
/* Whether the text so far is the arguments object of the only tool. */
bool json_body_whole(Reply *r);

#endif
