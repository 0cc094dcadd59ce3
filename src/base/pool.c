#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A run is published by one store of `slot`: its ticket in the high half, the number of tasks left in the low half. A
 * task is claimed by compare-and-swap on the whole, so a worker that was delayed since an earlier run cannot claim a
 * task with that run's arguments: a claim proves that its run is unfinished, and task, arg and n change only between
 * runs (the count goes down, not up, since an upper limit would itself be such an argument). The caller returns when
 * `done` has counted all tasks; it never waits for a worker that holds none, which matters where other programs take
 * the cores. */

enum { SPIN = 20000, THREADS_MAX = 256 };          /* SPIN: about 50 microseconds of pauses before sleeping */

typedef struct { Pool *pool; int32_t index; pthread_t id; } Worker;

struct Pool {
    int32_t          threads;
    _Atomic PoolTask task;
    void *_Atomic    arg;
    atomic_int       n;
    _Alignas(64) _Atomic uint64_t slot;
    _Alignas(64) atomic_int  done;
    _Alignas(64) atomic_int  asleep;
    atomic_bool      stop;
    pthread_mutex_t  lock;
    pthread_cond_t   wake;
    int32_t          n_workers;
    Worker          *worker;
};

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("" ::: "memory");
#endif
}

static inline uint32_t ticket_of(uint64_t slot) { return (uint32_t) (slot >> 32); }

static void take_tasks(Pool *p, uint32_t ticket, int32_t thread)
{
    PoolTask task = atomic_load_explicit(&p->task, memory_order_relaxed);
    void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
    int32_t n = atomic_load_explicit(&p->n, memory_order_relaxed);
    uint64_t slot = atomic_load_explicit(&p->slot, memory_order_acquire);
    while (ticket_of(slot) == ticket && (uint32_t) slot > 0) {
        if (!atomic_compare_exchange_weak_explicit(&p->slot, &slot, slot - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        task(arg, n - (int32_t) (uint32_t) slot, thread);
        atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
        slot = atomic_load_explicit(&p->slot, memory_order_acquire);
    }
}

static void *worker_main(void *arg)
{
    Worker *w = arg;
    Pool *p = w->pool;
    uint32_t seen = 0;
    for (;;) {
        uint32_t now;
        for (int32_t spin = 0; (now = ticket_of(atomic_load_explicit(&p->slot, memory_order_acquire))) == seen;
             spin++) {
            if (spin < SPIN) {
                pause_cpu();
                continue;
            }
            pthread_mutex_lock(&p->lock);
            atomic_fetch_add(&p->asleep, 1);
            while (ticket_of(atomic_load(&p->slot)) == seen) pthread_cond_wait(&p->wake, &p->lock);
            atomic_fetch_sub(&p->asleep, 1);
            pthread_mutex_unlock(&p->lock);
        }
        seen = now;
        if (atomic_load_explicit(&p->stop, memory_order_relaxed)) return NULL;
        take_tasks(p, seen, w->index);
    }
}

/* Sequentially consistent: pairs with the sleeper's count and check, so that no worker sleeps through a run. */
static uint32_t publish(Pool *p, int32_t n)
{
    uint32_t ticket = ticket_of(atomic_load_explicit(&p->slot, memory_order_relaxed)) + 1;
    atomic_store(&p->slot, (uint64_t) ticket << 32 | (uint32_t) n);
    if (atomic_load(&p->asleep) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
    return ticket;
}

void pool_run(Pool *p, PoolTask task, void *arg, int32_t n)
{
    if (!p || p->n_workers == 0 || n < 2) {
        for (int32_t i = 0; i < n; i++) task(arg, i, 0);
        return;
    }
    atomic_store_explicit(&p->task, task, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&p->n, n, memory_order_relaxed);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    take_tasks(p, publish(p, n), 0);
    for (int32_t spin = 0; atomic_load_explicit(&p->done, memory_order_acquire) < n; spin++) {
        if (spin < SPIN) pause_cpu();
        else sched_yield();
    }
}

static int32_t cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : n;
}

int32_t pool_size(int32_t threads) { return threads ? threads : cores(); }

Status pool_check(int32_t threads, Error *err)
{
    if (threads >= 0 && threads <= THREADS_MAX) return ST_OK;
    return fail(err, ST_ARG, "threads: %d, expected 1 to %d (0: default)", threads, THREADS_MAX);
}

Status pool_open(Pool **out, int32_t threads, Error *err)
{
    *out = NULL;
    TRY(pool_check(threads, err));
    Pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (!p) return fail(err, ST_MEMORY, "thread pool: out of memory");
    memset(p, 0, sizeof *p);
    p->threads = pool_size(threads);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->worker = calloc((size_t) p->threads, sizeof *p->worker);
    if (!p->worker) {
        pool_close(p);
        return fail(err, ST_MEMORY, "thread pool: out of memory");
    }
    for (int32_t i = 1; i < p->threads; i++) {
        Worker *w = &p->worker[i - 1];
        *w = (Worker) { .pool = p, .index = i };
        if (pthread_create(&w->id, NULL, worker_main, w) != 0) {
            Status st = fail(err, ST_MEMORY, "thread pool: thread %d of %d could not be started", i + 1, p->threads);
            pool_close(p);
            return st;
        }
        p->n_workers++;
    }
    *out = p;
    return ST_OK;
}

void pool_close(Pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    publish(p, 0);
    for (int32_t i = 0; i < p->n_workers; i++) pthread_join(p->worker[i].id, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    free(p->worker);
    free(p);
}

int32_t pool_threads(const Pool *p) { return p ? p->threads : 1; }
