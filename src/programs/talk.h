/* talk.h - a conversation that does not read itself again. An answer stands in the history as the very tokens that the model wrote, not as
 * its text tokenized anew; so the next prompt begins with all that the session holds, and a session goes on from there.
 *
 *     rendering      text before @@mark-1@@ text between @@mark-2@@ text behind      the marks stand for the last two answers
 *     next prompt    [tokens of turn 1] [tokens of turn 2] [tokens of the text behind]
 *     of one turn    [tokens of its question, up to the beginning of the answer] [the answer]
 *
 * Only what lies behind the last mark is taken from a rendering. Where the model's template leaves out the reasoning of earlier turns, the
 * turn is put together once more, without it; the session has a checkpoint (rt_mark) before that, so that the answer alone is read again. A
 * conversation whose tokens are not known (loaded, or with another system message) is rendered as text. */
#ifndef RATOON_PROGRAMS_TALK_H
#define RATOON_PROGRAMS_TALK_H

#include "programs/chat.h"

/* What the model wrote for one question. */
typedef struct {
    int32_t *token, n;                             /* without an end token */
    int32_t  spoken;                               /* the visible answer is token[spoken, n); -1: it is not a whole number of tokens */
    char    *text, *reasoning;                     /* valid UTF-8; reasoning "": none */
    bool     unclosed;                             /* it ended within its reasoning */
} TalkAnswer;

typedef struct {
    char    *user, *text, *reasoning;
    bool     unclosed;
    int32_t *token, n;                             /* from the end of the turn before; n 0: not known */
    int32_t  asked;                                /* of these the question's */
    int32_t  spoken;
} Turn;

typedef struct {
    Program    *p;
    ChatPrompt *template;
    ReplyStyle  style;
    char       *system;                            /* NULL: none */
    bool        think;
    Turn       *turn; int32_t n;
    char        secret[32];                        /* of the marks: nobody can have written it */
} Talk;

/* With the options' system message. False: said. talk_close afterwards in any case. */
bool talk_open(Talk *t, Program *p);
void talk_close(Talk *t);

/* A question as the model is to read it. */
typedef struct {
    int32_t *token, n;                             /* the whole prompt */
    int32_t  held;                                 /* of these the tokens of earlier turns */
    int32_t  mark;                                 /* a place before the answer's beginning: the next prompt leaves the reasoning out; 0: none */
    char     opening[128];                         /* the rendering's end, which tells whether reasoning is open */
    size_t   n_opening;
} Question;
/* The prompt of the conversation with one more message of the user; the conversation stays as it is. False: said. */
bool talk_ask(Question *q, Talk *t, const char *user);
void question_free(Question *q);
/* The question was answered: one more turn, which copies the answer. False: out of memory, said. */
bool talk_answered(Talk *t, const Question *q, const char *user, const TalkAnswer *a);
int32_t talk_tokens(const Talk *t);                /* of the turns whose tokens are known */

void talk_undo(Talk *t);                           /* the last turn */
void talk_clear(Talk *t);                          /* all turns; the system message stays */
void talk_forget(Talk *t);                         /* the tokens, not the texts: the next prompt is rendered whole */
bool talk_system(Talk *t, const char *text);       /* "": none. False: out of memory, said */

/* {"messages": [...]}, as `ratoon render --input` takes it, written whole or not at all. False: said. */
bool talk_save(const Talk *t, const char *path);
/* The same, or the list alone: a system message, then user and assistant by turns. A question at the end without an answer goes to *open,
 * malloc'd (NULL: there is none). False: said, and the conversation is as it was. */
bool talk_load(Talk *t, char **open, const char *path);

#endif
