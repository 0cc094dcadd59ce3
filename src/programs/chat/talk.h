/* talk.h - a conversation that is not re-read at every turn. The history keeps an answer as the tokens that the model
 * wrote, not as its text tokenized again, so the next prompt begins with everything in the session's KV cache.
 *
 *     rendering      text before @@mark-1@@ text between @@mark-2@@ text behind
 *                    the marks stand for the last two answers
 *     next prompt    [tokens of turn 1] [tokens of turn 2] [tokens of the text behind]
 *     of one turn    [tokens of its question, up to the beginning of the answer] [the answer]
 *
 * Only the text after the last mark is taken from a rendering. If the model's template leaves out the reasoning of
 * earlier turns, the turn is assembled again without it; the session has a checkpoint (rt_mark) before that point, so
 * that only the answer is read again. A conversation whose tokens are unknown (loaded, or with another system message)
 * is rendered as text. */
#ifndef RATOON_PROGRAMS_CHAT_TALK_H
#define RATOON_PROGRAMS_CHAT_TALK_H

#include "programs/chat/splice.h"

/* What the model wrote in answer to one question. */
typedef struct {
    int32_t *token, n;              /* without an end token */
    int32_t  spoken;                /* the visible answer is token[spoken, n); -1: it is not a whole number of tokens */
    char    *text, *reasoning;      /* valid UTF-8; reasoning "": none */
    bool     unclosed;              /* it ended inside its reasoning */
} TalkAnswer;

typedef struct {
    char    *user, *text, *reasoning;
    bool     unclosed;
    int32_t *token, n;                             /* since the end of the turn before; n 0: unknown */
    int32_t  asked;                                /* how many of these are the question's */
    int32_t  spoken;
} Turn;

typedef struct {
    Program    *p;
    ChatPrompt *template;
    ReplyStyle  style;
    char       *system;                            /* NULL: none */
    bool        think;
    Turn       *turn; int32_t n;
    SpliceSecret secret;
} Talk;

/* Uses the system message of the options. Returns false after reporting an error. Call talk_close afterwards in any
 * case. */
bool talk_open(Talk *t, Program *p);
void talk_close(Talk *t);

/* A question as the model will read it. */
typedef struct {
    int32_t *token, n;                          /* the whole prompt */
    int32_t  held;                              /* how many of these belong to earlier turns */
    int32_t  mark;                              /* a position before the beginning of the answer, since the next prompt
                                                 * leaves the reasoning out; 0: none */
    char     opening[128];                      /* end of the rendering, which tells whether reasoning is open */
    size_t   n_opening;
} Question;
/* The prompt of the conversation plus one more user message; the conversation is unchanged. Returns false after
 * reporting an error. */
bool talk_ask(Question *q, Talk *t, const char *user);
void question_free(Question *q);
/* Adds a turn for the answered question; copies the answer. Returns false after reporting that memory ran out. */
bool talk_answered(Talk *t, const Question *q, const char *user, const TalkAnswer *a);
int32_t talk_tokens(const Talk *t);                /* tokens of the turns whose tokens are known */

void talk_undo(Talk *t);                           /* removes the last turn */
void talk_clear(Talk *t);                          /* removes all turns; the system message stays */
void talk_forget(Talk *t);                         /* drops tokens, not texts: the next prompt is all rendered */
bool talk_system(Talk *t, const char *text);       /* text "": no system message. False: out of memory, reported */

/* Writes {"messages": [...]}, as `ratoon render --input` reads it, completely or not at all. Returns false after
 * reporting an error. */
bool talk_save(const Talk *t, const char *path);
/* Reads the same, or only the list: a system message, then user and assistant alternating. If the last question has no
 * answer it goes to *open, malloc'd (otherwise NULL). Returns false after reporting an error, leaving the conversation
 * unchanged. */
bool talk_load(Talk *t, char **open, const char *path);

#endif
