/* reply_impl.h - inside of the output decoder.
 * Every byte that comes is either text or part of a mark. Tokens that are marks become one private byte each (bytes that no UTF-8 text
 * has), so that everything waits in one queue. At its head the marks of the present place are looked for (reply_lex.c); what is found goes
 * as one symbol to that place (reply.c: reasoning, text, between calls; reply_call.c, reply_json.c: inside a call). A place takes the symbol,
 * or goes somewhere else and has it looked at again. No place ever sees how the bytes were cut. */
#ifndef RATOON_TEXT_REPLY_IMPL_H
#define RATOON_TEXT_REPLY_IMPL_H

#include "text/json_flow.h"
#include "text/reply.h"
#include "text/reply_value.h"
#include "text/tokenizer.h"

/* Symbols beside the bytes. The first N_TOKEN_MARKS may be single tokens of the vocabulary. */
enum {
    S_QUOTE = FLOW_QUOTE, S_THINK, S_THINK_END, S_CALL, S_CALL_END, S_PYTHON, S_TURN, S_KEY, S_KEY_END, S_VALUE, S_VALUE_END,
    S_FUNCTION, S_FUNCTION_END, S_PARAM, S_PARAM_END, S_NAMED, S_CHANNEL, S_CODE, S_CODE_END, S_TAG, S_STOP
};
enum { N_MARKS = S_STOP - S_QUOTE, N_TOKEN_MARKS = S_FUNCTION - S_QUOTE, PRIVATE = 0xf5 };
#define BIT(symbol) (1u << ((symbol) - S_QUOTE))

/* Texts of a style's marks, NULL where it has none. S_TAG stands for "<" NAME ">" of a declared tool. */
void style_marks(ReplyStyle s, const char *mark[N_MARKS]);

typedef struct { uint8_t c; int32_t done; } Held;  /* done: tokens that end with this byte or before it */
typedef struct { uint8_t kind; int32_t call; size_t at, n; int32_t from, tokens; } Queued;
typedef struct { const char *name; const json_t *schema; } Tool;   /* schema of the parameters, NULL: none given */

typedef enum { AT_REASON, AT_TEXT, AT_CALL, AT_AFTER, AT_DROP } Place;
typedef enum { TAKEN, AGAIN } Step;

/* Where a call is. X: <function=...>; L: Laguna; G: Gemma; P: name(key=value); B: a JSON object with name and arguments. */
typedef enum {
    X_WRAP, X_NAME, X_ARGS_CALL, X_ARGS_CALL_END, X_TAG, X_BODY, X_KEY, X_VALUE, X_JSON, X_JSON_END, X_CLOSE,
    L_NAME, L_BODY, L_KEY, L_MID, L_VALUE,
    G_WRAP, G_NAME, G_ARGS, G_CLOSE,
    P_WRAP, P_NAME, P_ARGS,
    B_OPEN, B_KEY, B_KEY_FLOW, B_COLON, B_VALUE, B_NAME_FLOW, B_ARGS_FLOW, B_TEXT_FLOW, B_SKIP_FLOW, B_NEXT, B_TRAIL, B_WHOLE
} CallState;

typedef struct {
    CallState state;
    int      closer;                               /* the mark that closes what opened it; 0: it was not wrapped */
    bool     declared;                             /* only a declared tool can be meant */
    bool     begun;                                /* CALL_BEGIN has been told; before that the call may still turn out to be text */
    bool     ended;                                /* CALL_END has been told */
    bool     members;                              /* something of the arguments object has been written */
    bool     skip_newline, as_text, loose, doubting;
    bool     has_name, has_args, told;             /* told: something of the arguments has been written */
    int      level;                                /* B: 2 inside of "function" */
    int32_t  from, tokens;                         /* tokens before it, and those that count as its own although it has not begun */
    Bytes    raw;                                  /* what has been read, as long as it may turn out to be text */
    Bytes    name, key, value, out, args, doubt;   /* args: waits for the call to begin */
    const Tool *tool;                              /* the one named; NULL: not declared */
    ValueTypes types;
    json_t  *given;                                /* parameters so far: an object */
    JsonFlow flow;
} ReplyCall;

struct Reply {
    /* what is wanted; never changes */
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

    /* what has come and not been taken: in[head, n_in) */
    Utf8Stream utf8;
    Bytes    clean;
    Held    *in; size_t head, n_in, cap_in;
    int32_t  n_tokens, done, whole;                /* fed; taken; those of which no part waits to become a character */
    int32_t  from, now;                            /* of the event that is being told */

    Place    at;
    bool     reason_start, trim, line_start, fence, text_empty, empty_before, broken_close, last_bare;
    int      ticks, last;                          /* last: byte of the text, -1 none */
    Bytes    gap; int32_t gap_from;                /* space that belongs to the text only if text follows */
    Bytes    region; bool in_region, region_begins, region_closed;     /* what may be a call at the end of the reasoning */
    ReplyCall call;

    Queued  *queue; size_t n_queue, cap_queue, read;
    Bytes    text;
    ReplyStop stopped;
    bool     cut, ended, failed;                   /* cut: no more comes, because of a limit */
    ReplySummary sum;
};

static inline bool recovers(const Reply *r) { return r->errors != CALL_ERRORS_TEXT; }
static inline bool is_space(int c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* ---- reply_lex.c ---- */

bool in_reserve(Reply *r, size_t more);            /* room for so many bytes */
bool in_give_back(Reply *r, const Bytes *bytes);   /* to be read again, before all that waits */
/* The symbol at the head of what waits, *n bytes of it. which: of S_STOP. False: it cannot be known yet, or nothing waits. */
typedef struct { int symbol; size_t n; int32_t which; } Unit;
bool in_next(Reply *r, bool final, Unit *out);

/* ---- reply_open.c ---- */

const Tool *tool_find(const Reply *r, const char *s, size_t n);
Status tool_read(Tool *out, const json_t *tool, size_t i, Error *err);       /* names the place: tools[i]... */

/* ---- reply.c ---- */

void tell(Reply *r, ReplyKind kind, const char *s, size_t n);
void text_put(Reply *r, int c);
void text_bytes(Reply *r, const Bytes *bytes);     /* private bytes as the marks that they stand for */

/* ---- reply_call.c, reply_json.c ---- */

void call_open(Reply *r, CallState state, int closer, bool declared);
Step call_step(Reply *r, const Unit *u);
uint32_t call_marks(const Reply *r);               /* those that mean something where the call is */
bool call_in_value(const Reply *r);                /* where marks are likely to be part of a value: see value_end in reply_lex.c */
void call_forget_closing(Reply *r);                /* cut off in the mark that closes a whole call: its piece is nobody's text */
void call_end(Reply *r, ReplyCause cause);
void call_free(ReplyCall *c);

Step call_broken(Reply *r);
bool call_begin(Reply *r);                         /* the name is known. False: it cannot be a call */
void call_args(Reply *r, const char *s, size_t n);
void call_drain(Reply *r);                         /* tells what the flow has written */
Step call_ended(Reply *r, CallState then, Step result);        /* the arguments are whole; then: a state, or go on after the call */
void call_leave(Reply *r);

Step json_body_step(Reply *r, int c);
bool json_body_complete(const Reply *r);
bool json_body_finish(Reply *r);
/* The text seen so far is the arguments object of the only tool. */
bool json_body_whole(Reply *r);

#endif
