/* pool.h - a fixed set of threads that work through numbered tasks together.
 * The calling thread works too. Which thread takes a task never changes a result: tasks write disjoint outputs and nothing is summed
 * across them. Waiting threads spin briefly, since the next operation of a pass is usually some microseconds away, then sleep. */
#ifndef RATOON_BASE_POOL_H
#define RATOON_BASE_POOL_H

#include <stdint.h>

#include "base/error.h"

typedef struct Pool Pool;

/* threads >= 1, the caller included; 0: one per core that this process may use. Threads are created here and never later. */
Status pool_open(Pool **out, int32_t threads, Error *err);
void   pool_close(Pool *p);                        /* NULL is fine */
int32_t pool_threads(const Pool *p);

/* Calls task(arg, i, thread) once for every i in [0, n), thread in [0, pool_threads), and returns when all are done. Tasks are handed
 * out in ascending order. One run at a time; not from inside a task. Allocates nothing. p NULL: runs all on the caller as thread 0. */
typedef void (*PoolTask)(void *arg, int32_t i, int32_t thread);
void pool_run(Pool *p, PoolTask task, void *arg, int32_t n);

#endif
