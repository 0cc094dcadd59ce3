#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "programs/serve/run/job.h"

typedef struct Task Task;
struct Task { Task *next; void (*run)(Server *, Exchange *); Server *s; Exchange *x; };

struct Queue {
    pthread_mutex_t lock;
    pthread_cond_t  work, engine;
    Task   *task, **task_end, *side, **side_end;   /* side: one at a time, so that a worker stays free for requests */
    int32_t n_side;
    bool    side_runs;
    Job    *fresh, **fresh_end;                    /* read, not yet taken by the engine thread */
    Job    *all;                                   /* taken or not, until they are over */
    int32_t waiting, capacity;
    bool    closed, woken;
};

Queue *queue_new(int32_t capacity)
{
    Queue *q = calloc(1, sizeof *q);
    pthread_condattr_t a;
    if (!q) return NULL;
    q->capacity = capacity;
    q->task_end = &q->task;
    q->side_end = &q->side;
    q->fresh_end = &q->fresh;
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&q->work, NULL);
    pthread_cond_init(&q->engine, &a);
    pthread_condattr_destroy(&a);
    return q;
}

void queue_free(Queue *q)
{
    if (!q) return;
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->work);
    pthread_cond_destroy(&q->engine);
    free(q);
}

void queue_close(Queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->work);
    pthread_mutex_unlock(&q->lock);
}

/* ---- tasks ---- */

bool queue_task(Queue *q, void (*run)(Server *s, Exchange *x), Server *s, Exchange *x)
{
    Task *t = malloc(sizeof *t);
    if (!t) return false;
    *t = (Task) { .run = run, .s = s, .x = x };
    exchange_keep(x);
    pthread_mutex_lock(&q->lock);
    *q->task_end = t;
    q->task_end = &t->next;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
    return true;
}

SideTask queue_side(Queue *q, void (*run)(Server *s, Exchange *x), Server *s, Exchange *x)
{
    Task *t = malloc(sizeof *t);
    if (!t) return SIDE_NO_MEMORY;
    *t = (Task) { .run = run, .s = s, .x = x };
    pthread_mutex_lock(&q->lock);
    bool room = q->n_side < q->capacity;
    if (room) {
        exchange_keep(x);
        *q->side_end = t;
        q->side_end = &t->next;
        q->n_side++;
        pthread_cond_signal(&q->work);
    }
    pthread_mutex_unlock(&q->lock);
    if (!room) free(t);
    return room ? SIDE_TAKEN : SIDE_FULL;
}

/* With the lock held; NULL: none may run now. */
static Task *next_task(Queue *q, bool *side)
{
    Task *t = q->task;
    *side = !t && !q->side_runs && q->side;
    if (*side) {
        t = q->side;
        if (!(q->side = t->next)) q->side_end = &q->side;
        q->side_runs = true;
    } else if (t && !(q->task = t->next)) {
        q->task_end = &q->task;
    }
    return t;
}

bool queue_work(Queue *q)
{
    bool side;
    Task *t;
    pthread_mutex_lock(&q->lock);
    while (!(t = next_task(q, &side)) && !(q->closed && !q->side)) pthread_cond_wait(&q->work, &q->lock);
    pthread_mutex_unlock(&q->lock);
    if (!t) return false;
    t->run(t->s, t->x);
    exchange_release(t->x);
    free(t);
    if (!side) return true;
    pthread_mutex_lock(&q->lock);
    q->side_runs = false;
    q->n_side--;
    pthread_cond_broadcast(&q->work);
    pthread_mutex_unlock(&q->lock);
    return true;
}

/* ---- the queue of jobs ---- */

bool queue_enter(Queue *q)
{
    pthread_mutex_lock(&q->lock);
    bool room = q->waiting < q->capacity;
    q->waiting += room;
    pthread_mutex_unlock(&q->lock);
    return room;
}

void queue_leave(Queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->waiting--;
    pthread_mutex_unlock(&q->lock);
}

int32_t queue_waiting(Queue *q)
{
    pthread_mutex_lock(&q->lock);
    int32_t n = q->waiting;
    pthread_mutex_unlock(&q->lock);
    return n;
}

void queue_put(Queue *q, Job *j)
{
    pthread_mutex_lock(&q->lock);
    j->next = NULL;
    *q->fresh_end = j;
    q->fresh_end = &j->next;
    j->before = NULL;
    j->after = q->all;
    if (q->all) q->all->before = j;
    q->all = j;
    pthread_cond_signal(&q->engine);
    pthread_mutex_unlock(&q->lock);
}

Job *queue_get(Queue *q)
{
    pthread_mutex_lock(&q->lock);
    Job *j = q->fresh;
    if (j && !(q->fresh = j->next)) q->fresh_end = &q->fresh;
    pthread_mutex_unlock(&q->lock);
    if (j) j->next = NULL;
    return j;
}

void queue_remove(Queue *q, Job *j)
{
    pthread_mutex_lock(&q->lock);
    if (j->before) j->before->after = j->after;
    else q->all = j->after;
    if (j->after) j->after->before = j->before;
    pthread_mutex_unlock(&q->lock);
}

bool queue_cancel(Queue *q, int32_t owner, const char *id, CancelWhy why)
{
    bool found = false;
    pthread_mutex_lock(&q->lock);
    for (Job *j = q->all; j; j = j->after) {
        if (exchange_owner(j->x) != owner) continue;
        if (strcmp(answer_id(j->answer), id) != 0 && strcmp(exchange_id(j->x), id) != 0) continue;
        int none = CANCEL_NONE;
        atomic_compare_exchange_strong(&j->cancel, &none, (int) why);
        found = q->woken = true;
    }
    if (found) pthread_cond_signal(&q->engine);
    pthread_mutex_unlock(&q->lock);
    return found;
}

void queue_wake(Queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->woken = true;
    pthread_cond_signal(&q->engine);
    pthread_mutex_unlock(&q->lock);
}

void queue_wait(Queue *q, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long) ((seconds - (double) (long) seconds) * 1e9);
    until.tv_sec += (long) seconds + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&q->lock);
    while (!q->fresh && !q->woken)
        if (pthread_cond_timedwait(&q->engine, &q->lock, &until) != 0) break;
    q->woken = false;
    pthread_mutex_unlock(&q->lock);
}
