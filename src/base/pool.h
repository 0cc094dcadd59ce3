/* pool.h - a fixed set of threads that work through numbered tasks together.
 * The calling thread works too. Which thread takes a task never changes a result: tasks write disjoint outputs and
 * nothing is summed across them. Waiting threads spin briefly, since the next operation of a pass is usually a few
 * microseconds away, then sleep. */
#ifndef RATOON_BASE_POOL_H
#define RATOON_BASE_POOL_H

#include <stdint.h>

#include "base/error.h"

typedef struct Pool Pool;

/* threads >= 1, including the caller; 0: one per core that this process may use. All threads are created here. */
Status pool_open(Pool **out, int32_t threads, Error *err);
Status pool_check(int32_t threads, Error *err);    /* ST_ARG: pool_open refuses this number */
int32_t pool_size(int32_t threads);                /* how many threads pool_open(threads) makes, including the caller */
void   pool_close(Pool *p);                        /* NULL is fine */
int32_t pool_threads(const Pool *p);

/* Calls task(arg, i, thread) once for every i in [0, n), with thread in [0, pool_threads), and returns when all are
 * done. Tasks are handed out in ascending order. Only one run at a time, and none from inside a task. Allocates
 * nothing. p NULL: runs all tasks on the caller as thread 0. */
typedef void (*PoolTask)(void *arg, int32_t i, int32_t thread);
void pool_run(Pool *p, PoolTask task, void *arg, int32_t n);

#endif
