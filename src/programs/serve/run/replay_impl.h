/* replay_impl.h - what replay.c (storing and recognising answers) shares with replay_splice.c (assembling prompts). */
#ifndef RATOON_PROGRAMS_SERVE_RUN_REPLAY_IMPL_H
#define RATOON_PROGRAMS_SERVE_RUN_REPLAY_IMPL_H

#include <pthread.h>
#include <string.h>

#include "programs/chat/splice.h"
#include "programs/serve/run/replay.h"

enum { STORED_MAX = 4096, CALLS_MAX = 32, BYTES_MAX = 64 << 20 };

/* A stored answer: found by its calls or its handle, or (by_text) by the prompt that it answered. opening: the text
 * with which its prompt began the turn, such as "<|im_start|>assistant\n<think>\n". */
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
} StoredAnswer;

struct Replay {
    pthread_mutex_t lock;
    StoredAnswer *stored[STORED_MAX]; int32_t n_stored;
    size_t  bytes;
    uint64_t clock;
    SpliceSecret secret;
};

/* An assistant message from the client: the key and text that identify its answer. stored: that answer, or NULL. */
typedef struct { uint64_t key[2]; const char *said; size_t n; StoredAnswer *stored; } Part;

/* Call these with the lock held. A turn that is found gains one user. */
void  stored_drop(StoredAnswer *t);
StoredAnswer *stored_named(Replay *r, const char *handle, const json_t *message);
void  stored_told(Replay *r, Part *part, size_t n);                    /* part: ascending by key[0] */

#endif
