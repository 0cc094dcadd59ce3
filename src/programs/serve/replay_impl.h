/* replay_impl.h - what replay.c, which remembers and recognises, shares with replay_splice.c, which puts prompts together. */
#ifndef RATOON_SERVE_REPLAY_IMPL_H
#define RATOON_SERVE_REPLAY_IMPL_H

#include <pthread.h>
#include <string.h>

#include "programs/serve/replay.h"

enum { TURNS_MAX = 4096, CALLS_MAX = 32, BYTES_MAX = 64 << 20 };

/* One answer: under its calls or its handle, or (by_text) under the prompt that it answered. opening: the text with which its prompt began
 * the turn, such as "<|im_start|>assistant\n<think>\n". */
typedef struct {
    int32_t  users;
    uint64_t used;
    bool     by_text;
    uint64_t key[2];
    char     handle[96];
    char    *id[CALLS_MAX], *name[CALLS_MAX]; int32_t n_calls;
    char    *said; size_t n_said;                  /* its visible text */
    char    *opening;
    int32_t *token, n_token;
    size_t   bytes;
} Turn;

struct Replay {
    pthread_mutex_t lock;
    Turn   *turn[TURNS_MAX]; int32_t n_turns;
    size_t  bytes;
    uint64_t clock;
    char    secret[32];                            /* of the placeholders: nobody can have written it */
};

/* A client's part of a conversation: what an answer to all before it would be known by, and its text. turn: whose it is, NULL: nobody's. */
typedef struct { uint64_t key[2]; const char *said; size_t n; Turn *turn; } Part;

/* All with the lock. A turn that is found has one user more. */
void  turn_drop(Turn *t);
Turn *turn_named(Replay *r, const char *handle, const json_t *message);
void  turns_told(Replay *r, Part *part, size_t n);                     /* part: ascending by key[0] */

#endif
