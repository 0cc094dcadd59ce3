/* answer_impl.h - what the encoders share. An answer is a list of choices, a choice a list of items in the order in which the model wrote
 * them: reasoning, text, calls. answer.c keeps the items and says when one begins, grows and ends; an encoder writes what its dialect has
 * for that. Without streaming only `body` is called, at the end. */
#ifndef RATOON_PROGRAMS_SERVE_ANSWER_IMPL_H
#define RATOON_PROGRAMS_SERVE_ANSWER_IMPL_H

#include "programs/serve/answer.h"
#include "programs/serve/out.h"

enum { ID_MAX = 48 };
typedef enum { ITEM_REASON, ITEM_TEXT, ITEM_CALL } ItemKind;
typedef struct { size_t from, to; } Range;

typedef struct {
    ItemKind kind;
    Out      text;                                 /* all of it; of a call the arguments */
    size_t   sent;                                 /* bytes of it that were handed to `delta` */
    bool     begun, ended, cut;                    /* begun: `begin` was called; cut: it is not whole */
    char     id[ID_MAX], call_id[ID_MAX];          /* "" until needed; call_id of calls */
    Out      name;                                 /* of a call, as the model said it */
    const RequestTool *tool;                       /* NULL: not declared */
    int32_t  number;                               /* of its kind in the choice: calls are counted from 0 */
    int32_t  index;                                /* output_index or block index once begun */
    size_t   logs_from, logs_to;                   /* which of Choice.log are its own */
    Range   *drafted; size_t n_drafted, cap_drafted;               /* bytes of the text, ascending; see write_drafted */
} Item;

/* A generated token; texts lie in Choice.bytes. */
typedef struct { size_t at, n; double logprob; } Alternative;
typedef struct { int32_t id; bool drafted; Alternative is; size_t top, n_top; } Token;

typedef struct {
    Item   *item; size_t n_item, cap_item;
    int32_t calls;
    Token  *token; size_t n_token, cap_token, tokens_sent;
    Alternative *top; size_t n_top, cap_top;
    Out     bytes;
    size_t *log; size_t n_log, cap_log, logs_sent; /* tokens of the text, in order */
    size_t  echoed;                                /* tokens that belong to an echoed prompt */
    size_t  characters;                            /* of the logs written so far, for text_offset */
    bool    ended, finished;
    AnswerEnd end;
    char   *stop;                                  /* copy of end.stop */
} Choice;

typedef struct {
    const char *prefix, *call_prefix;
    void (*open)(Answer *a);
    void (*begin)(Answer *a, Choice *c, Item *i);
    void (*delta)(Answer *a, Choice *c, Item *i, const char *s, size_t n);
    void (*end)(Answer *a, Choice *c, Item *i);
    void (*finish)(Answer *a, Choice *c);          /* of a choice; of the last one at answer_close */
    void (*close)(Answer *a);
    void (*alive)(Answer *a, int64_t processed, int64_t total, double ms, bool event);
    void (*fail)(Answer *a, const HttpError *e);
    void (*body)(Answer *a);
} Encoder;
extern const Encoder ENCODE_CHAT, ENCODE_COMPLETIONS, ENCODE_RESPONSES, ENCODE_MESSAGES;

struct Answer {
    const Encoder *encoder;
    const Request *q;
    AnswerOptions o;
    char   *handle, *request_id;
    char    id[ID_MAX], fingerprint[64];
    AnswerUsage usage;
    Choice *choice; size_t n_choice, n_ended;
    Out     out, shown;                            /* to be taken; what answer_take gave last */
    Out     response;                              /* Responses: the whole object at the end */
    int64_t now, sequence, next_index;
    bool    commented, opened, done, failed;
};

int32_t choice_number(const Answer *a, const Choice *c);
void    new_id(Answer *a, char id[ID_MAX], const char *prefix);
/* The reason as clients shall see it: a turn that ended with calls ended for them. */
FinishReason finish_reason(const Choice *c);
/* Whether the item is to be shown in a body: a call that was cut is not. */
bool    item_whole(const Item *i);
/* The client's name of a call. */
void    write_name(Out *o, const Item *i);
/* The text of a custom tool's call, out of its arguments; what cannot be read is given as it is. */
void    write_input(Out *o, const Item *i);
void    write_text(Out *o, const Choice *c, ItemKind kind);    /* all items of a kind as one string */
bool    has_text(const Choice *c, ItemKind kind);
/* Log-probabilities of tokens [from, to) of Choice.log, in Chat's form: a list. */
void    write_logs(Out *o, const Choice *c, size_t from, size_t to);
/* For return_drafted: the drafted bytes among [from, to) of an item's text, as [from, to] counted from `base`. They follow what is in the list
 * already (*first false). */
void    write_drafted(Out *o, const Item *i, size_t from, size_t to, size_t base, bool *first);
void    write_usage(Out *o, const Answer *a);      /* Chat's and Completions' object */
void    write_timings(Out *o, const Answer *a);    /* the object */
void    write_ignored(Out *o, const Answer *a);    /* ,"ignored":[...] or nothing */
void    write_error(Out *o, const HttpError *e);   /* {"message":...} */
/* The last chunk's and the body's extras. */
void    write_details(Out *o, const Answer *a, const Choice *c);
const char *error_type_messages(int status);

/* ---- answer_chunks.c: what Chat and Completions share. object: what the dialect calls its chunk, or its body ---- */

void    write_head(Answer *a, const char *object);             /* the beginning of a chunk or body, up to its model and fingerprint */
/* ,"tokens":[...] of those that were not yet written, where they are asked for. */
void    write_tokens(Answer *a, Choice *c);
bool    is_last_choice(const Answer *a, const Choice *c);      /* all others are finished */
/* The rest of a chunk behind its list of choices; last: of the one that ends the last choice. */
void    write_chunk_end(Answer *a, bool last);
void    write_stream_end(Answer *a, const char *object);       /* the chunk with the usage, where it is asked for, and [DONE] */
/* A comment, or a chunk with prompt_progress where it is asked for; empty: a choice that says nothing. */
void    write_alive(Answer *a, const char *object, const char *empty, int64_t processed, int64_t total, double ms);
void    write_stream_error(Answer *a, const HttpError *e);
void    write_body_end(Answer *a);                             /* of a body behind its list of choices */

Item   *answer_empty_item(Answer *a, Choice *c);   /* one more text item without a text; NULL: no memory */

#endif
