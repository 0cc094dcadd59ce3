/* answer_impl.h - what the encoders share. An answer is a list of choices, a choice a list of items in the order in
 * which the model wrote them: reasoning, text, calls. answer.c keeps the items and calls the encoder when one
 * begins, grows and ends; the encoder writes its dialect's form of that. Without streaming only `body` is called,
 * at the end. */
#ifndef RATOON_PROGRAMS_SERVE_ANSWER_ANSWER_IMPL_H
#define RATOON_PROGRAMS_SERVE_ANSWER_ANSWER_IMPL_H

#include "programs/serve/answer/answer.h"
#include "programs/serve/answer/out.h"

enum { ID_MAX = 48 };
typedef enum { ITEM_REASON, ITEM_TEXT, ITEM_CALL } ItemKind;
typedef struct { size_t from, to; } Range;

typedef struct {
    ItemKind kind;
    Out      text;                                 /* the whole text; for a call its arguments */
    size_t   sent;                                 /* bytes of it already passed to `delta` */
    bool     begun, ended, cut;                    /* begun: `begin` was called; cut: it is incomplete */
    char     id[ID_MAX], call_id[ID_MAX];          /* "" until needed; call_id of calls */
    Out      name;                                 /* for a call: the name as the model wrote it */
    const RequestTool *tool;                       /* NULL: not declared */
    int32_t  number;                               /* among items of its kind in the choice, from 0 */
    int32_t  index;                                /* output_index or block index once begun */
    size_t   logs_from, logs_to;                   /* its range of AnswerChoice.log */
    Range   *drafted; size_t n_drafted, cap_drafted;               /* byte ranges, ascending; see write_drafted */
} Item;

/* A generated token; its bytes are in AnswerChoice.bytes. */
typedef struct { size_t at, n; double logprob; int32_t id; } Alternative;
typedef struct { int32_t id; bool drafted; Alternative is; size_t top, n_top; } Token;

typedef struct {
    Item   *item; size_t n_item, cap_item;
    int32_t calls;
    Token  *token; size_t n_token, cap_token, tokens_sent;
    Alternative *top; size_t n_top, cap_top;
    Out     bytes;
    size_t *log; size_t n_log, cap_log, logs_sent; /* tokens of the text, in order */
    size_t  echoed;                                /* tokens that belong to an echoed prompt */
    int32_t heard;                                 /* generated tokens that the events so far end with */
    size_t  characters;                            /* of the logs written so far, for text_offset */
    bool    ended, finished;
    AnswerEnd end;
    char   *stop;                                  /* copy of end.stop */
} AnswerChoice;

typedef struct {
    const char *prefix, *call_prefix, *type;       /* type: media type of the stream */
    void (*open)(Answer *a);
    void (*begin)(Answer *a, AnswerChoice *c, Item *i);
    void (*delta)(Answer *a, AnswerChoice *c, Item *i, const char *s, size_t n);
    void (*end)(Answer *a, AnswerChoice *c, Item *i);
    void (*finish)(Answer *a, AnswerChoice *c);    /* called for each choice; for the last one at answer_close */
    void (*close)(Answer *a);
    void (*alive)(Answer *a, int64_t processed, int64_t total, double ms, bool event);
    /* NULL: the dialect has no drafts */
    void (*draft)(Answer *a, int32_t choice, const char *s, size_t n, int32_t step);
    void (*fail)(Answer *a, const HttpError *e);
    void (*body)(Answer *a);
} Encoder;
extern const Encoder ENCODE_CHAT, ENCODE_COMPLETIONS, ENCODE_RESPONSES, ENCODE_MESSAGES, ENCODE_LLAMA, ENCODE_OLLAMA;
#define EVENTS "text/event-stream; charset=utf-8"

struct Answer {
    const Encoder *encoder;
    const Request *q;
    AnswerOptions o;
    char   *handle, *request_id;
    char    id[ID_MAX], fingerprint[64];
    AnswerUsage usage;
    AnswerChoice *choice; size_t n_choice, n_ended;
    Out     out, shown;                            /* out: bytes not yet taken; shown: what answer_take returned last */
    Out     response;                              /* Responses: the whole object at the end */
    int64_t now, sequence, next_index;
    bool    commented, opened, done, failed;
};

int32_t choice_number(const Answer *a, const AnswerChoice *c);
void    new_id(Answer *a, char id[ID_MAX], const char *prefix);
/* The reason reported to clients: a turn that ended with whole calls ended because of them. */
FinishReason finish_reason(const AnswerChoice *c);
/* Whether a body shows the item: a call that was cut off is not shown, except by Responses. */
bool    item_whole(const Item *i);
/* The client's name of a call. */
void    write_name(Out *o, const Item *i);
/* The text of a custom tool's call, taken from its arguments; if they cannot be parsed, the arguments unchanged. */
void    write_input(Out *o, const Item *i);
void    write_text(Out *o, const AnswerChoice *c, ItemKind kind); /* all items of one kind as one string */
bool    has_text(const AnswerChoice *c, ItemKind kind);
/* Log-probabilities of tokens [from, to) of AnswerChoice.log, as a list in Chat's form. */
void    write_logs(Out *o, const AnswerChoice *c, size_t from, size_t to);
/* For return_drafted: the drafted bytes among [from, to) of an item's text, as [from, to] relative to `base`. They are
 * appended to what the list has already (*first false). */
void    write_drafted(Out *o, const Item *i, size_t from, size_t to, size_t base, bool *first);
void    write_usage(Out *o, const Answer *a);      /* the object of Chat and Completions */
void    write_timings(Out *o, const Answer *a);    /* the object */
void    write_ignored(Out *o, const Answer *a);    /* ,"ignored":[...] or nothing */
void    write_error(Out *o, const HttpError *e);   /* {"message":...} */
/* whole bodies */
void    write_llama_error(Out *o, const HttpError *e);
void    write_ollama_error(Out *o, const HttpError *e);
/* A call's arguments as an object; reply.h promises one, but a body must stay JSON in any case. */
void    write_arguments(Out *o, const Item *i);
/* Extra members of the last chunk and of the body. */
void    write_details(Out *o, const Answer *a, const AnswerChoice *c);
const char *error_type_messages(int status);

/* ---- answer_chunks.c: what Chat and Completions share. object: the dialect's name for its chunk, or its body ---- */

/* the beginning of a chunk or body, up to its model and fingerprint */
void    write_head(Answer *a, const char *object);
/* ,"tokens":[...] of those not written yet, if requested */
void    write_tokens(Answer *a, AnswerChoice *c);
bool    is_last_choice(const Answer *a, const AnswerChoice *c); /* all others have finished */
/* The rest of a chunk after its list of choices; last: this chunk ends the last choice. */
void    write_chunk_end(Answer *a, bool last);
/* the chunk with the usage, if requested, and [DONE] */
void    write_stream_end(Answer *a, const char *object);
/* A comment, or a chunk with prompt_progress if requested; empty: a choice without content. */
void    write_alive(Answer *a, const char *object, const char *empty, int64_t processed, int64_t total, double ms);
/* A chunk without choices, in an event of the name draft. */
void    write_draft(Answer *a, const char *object, int32_t choice, const char *s, size_t n, int32_t step);
/* The member draft, behind others. */
void    write_draft_member(Out *o, int32_t choice, const char *s, size_t n, int32_t step);
void    write_stream_error(Answer *a, const HttpError *e);
void    write_body_end(Answer *a);                             /* a body's rest after its list of choices */

Item   *answer_empty_item(Answer *a, AnswerChoice *c); /* adds a text item without text; NULL: out of memory */

#endif
