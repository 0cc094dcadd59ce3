/* drive.h - from blocks of tokens to an answer. After a step, each token of a session's block goes through the same
 * questions in the same order: does it end the text? is it allowed here (accept)? what does the decoder make of it
 * (tell)? has the decoder stopped? must something happen after it (cut)? If the answer ends, or something must happen,
 * in the middle of a block, the rest of the block is given back to the session (rt_take): the outcome depends on the
 * tokens alone, never on how they were split into blocks.
 *
 * The caller decides which sessions to step: a command has one session (drive_step), the server many. */
#ifndef RATOON_PROGRAMS_DRIVE_H
#define RATOON_PROGRAMS_DRIVE_H

#include "programs/program.h"
#include "text/reply/reply.h"

typedef enum {
    DRIVE_ON,                                      /* more is to come */
    DRIVE_ENDED,                                   /* ended by an end token, which the session keeps as its last */
    DRIVE_STOPPED,                                 /* stopped by the decoder, see reply_stop */
    DRIVE_CUT,                                     /* cut after a token because `cut` asked for it */
    DRIVE_FULL,                                    /* the token limit or the end of the context is reached */
    DRIVE_CANCELLED,
    DRIVE_REFUSED,                                 /* accept returned false; the token is not kept */
    DRIVE_NO_MEMORY,
    DRIVE_FAILED                                   /* the step or the session failed: see drive_error */
} DriveEnd;

typedef struct {
    const rt_engine *engine;
    bool      ignore_eos, special;                 /* special: the decoder also gets the text of control tokens */
    Reply    *reply;                               /* the decoder; NULL: only tokens are wanted */
    int32_t **token, *n;                           /* what is kept of the answer: everything but an end token */
    size_t   *cap;                                 /* NULL: the array is large enough */
    bool    (*accept)(void *ud, int32_t id);       /* NULL: every token is allowed everywhere */
    /* Called once the decoder has the token. at: its index in the block, -1 if it was forced. Returns false if out of
     * memory. */
    bool    (*tell)(void *ud, int32_t id, int32_t at);
    bool    (*cut)(void *ud);
    void     *ud;
} Drive;

/* After a step of the session: processes its block. */
DriveEnd drive_block(const Drive *d, rt_session *s, const rt_block *b);
/* Tokens that the caller appends to the text are processed the same way, up to where the decoder stops. */
DriveEnd drive_force(const Drive *d, const int32_t *t, int32_t n);
/* Runs one step of a command's only session and processes its block. */
DriveEnd drive_step(const Drive *d, Program *p, rt_step *step, rt_session *s, rt_block *b);
const char *drive_error(const rt_step *step, const rt_session *s);

#endif
