#include "programs/serve/runner.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "programs/serve/replay.h"
#include "programs/serve/run.h"
#include "programs/serve/store.h"

enum { SLOTS_MAX = RUNNER_SLOTS_MAX, UNREAD_MAX = 1 << 20 };
static const double QUEUED_QUIETLY = 10, EVENT_EVERY = 60, LOOK_EVERY = 0.02;

typedef struct { rt_session *s; Choice *choice; Histories history; uint64_t used, read; } Slot;       /* used, read: when, as counts */

struct Runner {
    Server  *server;
    Bench    bench;
    Slot     slot[SLOTS_MAX];
    int32_t  n_slots;
    Job     *line, **line_end;                     /* all jobs, in the order of their arrival */
    uint64_t clock;
    Slot    *in_pass[SLOTS_MAX]; int32_t n_in_pass;
    Slot    *reader;                               /* of the pass: whose prompt chunk it holds; NULL: none */
    double   looked;
    _Atomic int32_t running, used, jobs;
    pthread_mutex_t lock;
    RunnerSlot seen[SLOTS_MAX];                    /* with the lock, by whoever asks */
};

/* ---- ends ---- */

static void free_slot(Runner *e, Choice *c)
{
    if (c->slot < 0) return;
    Slot *slot = &e->slot[c->slot];
    rt_allow(slot->s, NULL, NULL);
    rt_logprobs_set(slot->s, -1);
    rt_speculate(slot->s, true);
    if (!c->job->q->cached) {     /* nobody's next turn: the first to be used again */
        run_forget(slot->s);
        slot->used = 0;
    }
    slot->choice = NULL;
    c->slot = -1;
}

static void log_job(const Job *j, const char *how)
{
    const Server *s = j->server;
    const AnswerUsage *u = &j->usage;
    if (s->o.quiet) return;
    double seconds = seconds_now() - j->arrived;
    fprintf(stderr, "%s %s: %s, prompt %lld (%lld cached), answer %lld, %lld of %lld drafted accepted, %.2f s\n", exchange_path(j->x), exchange_id(j->x), how,
            (long long) u->prompt, (long long) u->cached, (long long) u->completion, (long long) u->accepted, (long long) u->drafted, seconds);
}

/* The figures of all its choices, those that still run among them. */
static AnswerUsage usage_so_far(const Runner *e, const Job *j)
{
    AnswerUsage u = j->usage;
    for (int32_t i = 0; i < j->n_choice; i++)
        if (j->choice[i].state == CHOICE_RUNNING && j->choice[i].slot >= 0) run_usage(&j->choice[i], e->slot[j->choice[i].slot].s, &u);
    return u;
}

/* What the answer has ready goes out. */
static void send(Job *j)
{
    size_t n;
    if (!j->streaming) return;
    const char *bytes = answer_take(j->answer, &n);
    if (!bytes) {
        exchange_end(j->x, false);
        j->cancel = CANCEL_GONE;
    } else if (n > 0) {
        j->written = seconds_now();
        if (!exchange_write(j->x, bytes, n)) j->cancel = CANCEL_GONE;
    }
}

static void begin_stream(Job *j)
{
    if (j->streaming) return;
    j->streaming = true;
    exchange_stream(j->x, "text/event-stream; charset=utf-8");
}

static void whole_body(Job *j, int status)
{
    size_t n;
    const char *bytes = answer_take(j->answer, &n);
    char *body = bytes ? malloc(n + 1) : NULL;
    if (body) memcpy(body, bytes, n);
    exchange_reply(j->x, status, NULL, body, n);
}

/* Out of the line, and away. */
static void job_over(Runner *e, Job *j, const char *how)
{
    Server *s = e->server;
    for (Job **p = &e->line; *p; p = &(*p)->next) {
        if (*p != j) continue;
        *p = j->next;
        if (e->line_end == &j->next) e->line_end = p;
        break;
    }
    e->jobs--;
    if (j->n_started == 0) queue_leave(s->queue);
    else metrics_request_seconds(s->metrics, seconds_now() - j->began);
    log_job(j, how);
    queue_remove(s->queue, j);
    job_free(j);
}

static void job_done(Runner *e, Job *j)
{
    answer_usage(j->answer, &j->usage);
    answer_close(j->answer, (int64_t) time(NULL));
    replay_job(e->server, j);
    size_t n;
    const char *response = j->q->store ? answer_response(j->answer, &n) : NULL;
    if (response) store_add(e->server->store, answer_id(j->answer), response, n, j->q->items);
    if (j->streaming) {
        send(j);
        exchange_end(j->x, true);
    } else {
        whole_body(j, 200);
    }
    job_over(e, j, "done");
}

static void job_failed(Runner *e, Job *j, const HttpError *err)
{
    for (int32_t i = 0; i < j->n_choice; i++) free_slot(e, &j->choice[i]);
    if (j->streaming) {
        answer_fail(j->answer, err, (int64_t) time(NULL));
        send(j);
        exchange_end(j->x, true);
    } else {
        exchange_refuse(j->x, err);
    }
    char how[600];
    snprintf(how, sizeof how, "failed: %s", err->message);
    job_over(e, j, how);
}

static void job_gone(Runner *e, Job *j, const char *how)
{
    j->usage = usage_so_far(e, j);                 /* for the log */
    for (int32_t i = 0; i < j->n_choice; i++) free_slot(e, &j->choice[i]);
    exchange_drop(j->x);
    job_over(e, j, how);
}

static Phase phase_of(const Job *j)
{
    bool reads = false;
    for (int32_t i = 0; i < j->n_choice; i++) reads |= j->choice[i].state == CHOICE_RUNNING && j->choice[i].reads;
    return j->n_started == 0 ? PHASE_QUEUED : reads ? PHASE_PREFILL : PHASE_DECODE;
}

/* The client asked for the end, and gets what there is. */
static void job_asked(Runner *e, Job *j)
{
    HttpError err = { 0 };
    if (!j->opened) {
        http_fail(&err, 409, "cancelled", NULL, "the request was cancelled");
        job_failed(e, j, &err);
        return;
    }
    for (int32_t i = 0; i < j->n_choice; i++) {
        Choice *c = &j->choice[i];
        if (c->state == CHOICE_DONE) continue;
        run_end(c, c->slot >= 0 ? e->slot[c->slot].s : NULL, FINISH_CANCELLED);
        free_slot(e, c);
    }
    job_done(e, j);
}

static void job_cancelled(Runner *e, Job *j)
{
    HttpError err = { 0 };
    metrics_cancelled(e->server->metrics, phase_of(j));
    switch ((CancelWhy) j->cancel) {
    case CANCEL_ASKED:
        job_asked(e, j);
        return;
    case CANCEL_LATE:
        exchange_add(j->x, "X-Should-Retry", "false");
        http_fail(&err, 503, "timeout", NULL, "the request took longer than --request-timeout %d seconds", e->server->o.request_timeout);
        job_failed(e, j, &err);
        return;
    case CANCEL_SHUTDOWN:
        http_fail(&err, 503, NULL, NULL, "the server is shutting down");
        job_failed(e, j, &err);
        return;
    default:
        job_gone(e, j, "cancelled: the client has gone");
    }
}

/* ---- looking around: between passes, and after the layers of one ---- */

static void keep_alive(Runner *e, Job *j, double t)
{
    const Choice *c = &j->choice[0];
    if (!j->q->stream) return;
    if (!j->opened && t - j->arrived < QUEUED_QUIETLY) return;
    if (t - j->written < e->server->o.keepalive && !(t - j->counted >= EVENT_EVERY)) return;
    begin_stream(j);
    bool event = t - j->counted >= EVENT_EVERY;
    int64_t done = c->slot >= 0 && c->reads ? c->done : j->opened ? c->prompt->n : 0;
    answer_keepalive(j->answer, done, c->prompt->n, j->opened ? 1e3 * (t - j->began) : 0, event);
    if (event) j->counted = t;
    j->written = t;
    send(j);
}

static void look(Runner *e)
{
    double t = seconds_now();
    if (t - e->looked < LOOK_EVERY) return;
    e->looked = t;
    for (Job *j = e->line; j; j = j->next) {
        if (j->cancel != CANCEL_NONE) continue;
        if (e->server->stop) j->cancel = CANCEL_SHUTDOWN;
        else if (exchange_gone(j->x)) j->cancel = CANCEL_GONE;
        else if (j->deadline > 0 && t > j->deadline) j->cancel = CANCEL_LATE;
        else keep_alive(e, j, t);
    }
}

bool runner_progress(Runner *e)
{
    look(e);
    if (e->server->stop) return false;
    if (e->n_in_pass == 0) return true;
    if (e->reader && e->reader->choice->job->cancel) return false;
    for (int32_t i = 0; i < e->n_in_pass; i++)
        if (!e->in_pass[i]->choice->job->cancel) return true;
    return false;
}

/* ---- joining ---- */

/* The free session that can go on from most of the prompt; if none can from anything worth it, the one that was used longest ago. */
static Slot *pick_slot(Runner *e, const Choice *c)
{
    const JobPrompt *p = c->prompt;
    Slot *best = NULL, *oldest = NULL;
    int32_t most = 0;
    for (int32_t i = 0; i < e->n_slots; i++) {
        Slot *x = &e->slot[i];
        if (x->choice) continue;
        int32_t same = c->job->q->cached ? rt_resumable(x->s, p->t, (size_t) p->n) : 0;
        if (same > most) {
            best = x;
            most = same;
        }
        if (!oldest || x->used < oldest->used) oldest = x;
    }
    const Server *s = e->server;
    /* The cache has more: what this session holds may be somebody's next turn. */
    if (best && s->cache && cache_longest(s->cache, s->identity, p->t, (size_t) p->n - 1) >= most + CACHE_GAIN) best = NULL;
    return best ? best : oldest;
}

/* The prompt of several choices is read once: the others wait for the first and go on from its image. */
static bool may_start(const Job *j, const Choice *c)
{
    if (c->state != CHOICE_WAITING) return false;
    const Choice *first = c;
    while (first > j->choice && first[-1].prompt == c->prompt) first--;
    return first == c || first->state == CHOICE_DONE || (first->state == CHOICE_RUNNING && !first->reads);
}

static void open_answer(Job *j)
{
    if (j->opened) return;
    j->opened = true;
    answer_usage(j->answer, &j->usage);
    answer_open(j->answer);
    if (j->q->stream) begin_stream(j);
    send(j);
}

/* False: the job is over. */
static bool start_choice(Runner *e, Job *j, Choice *c, Slot *slot)
{
    HttpError err = { 0 };
    Server *s = e->server;
    if (j->n_started++ == 0) {
        queue_leave(s->queue);
        j->began = seconds_now();
        metrics_observe(s->metrics, HIST_WAIT, j->began - j->arrived);
    }
    slot->choice = c;
    slot->used = ++e->clock;
    c->slot = (int32_t) (slot - e->slot);
    run_ready(c, &e->bench, slot->s, &slot->history);
    if (c->index % j->q->n == 0) j->usage.cached += c->past.resumed;
    open_answer(j);
    e->in_pass[0] = e->reader = slot;              /* while an `echo` is scored it can be broken off */
    e->n_in_pass = 1;
    RunState st = run_start(c, &e->bench, slot->s, &err);
    e->n_in_pass = 0;
    if (st == RUN_FAILED) {
        job_failed(e, j, &err);
        return false;
    }
    if (st == RUN_CANCELLED) {                     /* look() has said why */
        free_slot(e, c);
        return true;
    }
    send(j);
    if (st == RUN_OVER) free_slot(e, c);
    if (j->n_done < j->n_choice) return true;
    job_done(e, j);
    return false;
}

static int32_t free_slots(const Runner *e)
{
    int32_t n = 0;
    for (int32_t i = 0; i < e->n_slots; i++) n += !e->slot[i].choice;
    return n;
}

static void admit(Runner *e)
{
    Job *next;
    for (Job *j; (j = queue_get(e->server->queue));) {
        *e->line_end = j;
        e->line_end = &j->next;
        e->jobs++;
    }
    for (Job *j = e->line; j; j = next) {
        next = j->next;
        if ((e->server->stop || (e->server->state == SERVER_DRAINING && j->n_started == 0)) && !j->cancel) j->cancel = CANCEL_SHUTDOWN;
        if (j->cancel) {
            job_cancelled(e, j);
            continue;
        }
        for (int32_t i = 0; i < j->n_choice && free_slots(e) > 0; i++)
            if (may_start(j, &j->choice[i]) && !start_choice(e, j, &j->choice[i], pick_slot(e, &j->choice[i]))) break;
    }
}

/* ---- a pass ---- */

static bool paused(const Choice *c) { return c->job->streaming && exchange_unread(c->job->x) > UNREAD_MAX; }

/* The texts that are being written, and the prompt whose turn it is: first, as the step reads a chunk of the first only. */
static int32_t gather(Runner *e)
{
    e->n_in_pass = 0;
    e->reader = NULL;
    for (int32_t i = 0; i < e->n_slots; i++) {
        Slot *x = &e->slot[i];
        if (x->choice && x->choice->reads && (!e->reader || x->read < e->reader->read)) e->reader = x;
    }
    if (e->reader) e->in_pass[e->n_in_pass++] = e->reader;
    for (int32_t i = 0; i < e->n_slots; i++) {
        Slot *x = &e->slot[i];
        if (x->choice && !x->choice->reads && !paused(x->choice)) e->in_pass[e->n_in_pass++] = x;
    }
    return e->n_in_pass;
}

/* After a chunk: is the prompt read, and is one of the places reached where it is to be remembered? */
static void read_on(Runner *e, Slot *x)
{
    Choice *c = x->choice;
    const Server *s = e->server;
    const JobPrompt *p = c->prompt;
    const int32_t *text;
    int32_t n = (int32_t) rt_session_text(x->s, &text), at = rt_save_place(x->s, n - 1);
    x->read = ++e->clock;
    c->done = at;
    c->reads = at < n - 1;
    if (c->job->q->return_progress && c->index == 0) {
        answer_keepalive(c->job->answer, at, n, 1e3 * (seconds_now() - c->job->began), false);
        send(c->job);
    }
    for (; c->next_place < p->n_place && p->place[c->next_place].at <= at; c->next_place++) {
        const Place *place = &p->place[c->next_place];
        if (s->cache && place->save && place->at == at) c->job->usage.cache_write += cache_save(s->cache, s->identity, e->bench.step, x->s, at, place->kind, NULL, 0) ? at - c->saved : 0;
        if (place->at == at) c->saved = at;
    }
    /* Others of this job read the same prompt. */
    if (!c->reads && s->cache && c->job->q->n > 1 && c->job->q->cached) cache_save(s->cache, s->identity, e->bench.step, x->s, at, CACHE_END, NULL, 0);
}

static bool choice_ended(Runner *e, Choice *c, RunState st, const HttpError *err)
{
    Job *j = c->job;
    if (st == RUN_FAILED) {
        job_failed(e, j, err);
        return true;
    }
    if (st == RUN_OVER) free_slot(e, c);
    if (j->q->timings_per_token) {
        AnswerUsage u = usage_so_far(e, j);
        answer_usage(j->answer, &u);
    }
    send(j);
    if (j->n_done < j->n_choice) return st == RUN_OVER;
    job_done(e, j);
    return true;
}

static void pass_failed(Runner *e, const Slot *const *in, int32_t n)
{
    HttpError err = { 0 };
    http_fail(&err, 500, NULL, NULL, "%s", rt_step_error(e->bench.step));
    for (int32_t i = 0; i < n; i++)
        if (in[i]->choice) job_failed(e, in[i]->choice->job, &err);
}

static void pass(Runner *e)
{
    rt_session *s[SLOTS_MAX];
    rt_block out[SLOTS_MAX];
    Slot *in[SLOTS_MAX], *reader = e->reader;
    int32_t n = e->n_in_pass;
    for (int32_t i = 0; i < n; i++) {
        in[i] = e->in_pass[i];
        s[i] = in[i]->s;
    }
    rt_status st = rt_step_run(e->bench.step, s, out, (size_t) n);
    e->n_in_pass = 0;
    e->reader = NULL;
    if (st == RT_ECANCEL) return;
    if (st != RT_OK) {
        pass_failed(e, (const Slot *const *) in, n);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        Choice *c = in[i]->choice;
        HttpError err = { 0 };
        if (!c) continue;                          /* its job has just failed in another session */
        in[i]->used = ++e->clock;
        if (in[i] == reader && out[i].status == RT_OK && out[i].n == 0) continue;
        choice_ended(e, c, run_block(c, &e->bench, in[i]->s, &out[i], &err), &err);
    }
    if (!reader || !reader->choice) return;
    read_on(e, reader);
    Choice *c = reader->choice;
    if (c->reads || c->limit > 0) return;
    run_end(c, reader->s, FINISH_LENGTH);          /* only the prompt was wanted */
    choice_ended(e, c, RUN_OVER, NULL);
}

static void see(RunnerSlot *out, const Slot *slot)
{
    const int32_t *text;
    const Choice *c = slot->choice;
    *out = (RunnerSlot) { .busy = c != NULL, .held = (int32_t) rt_session_text(slot->s, &text) };
    if (!c) return;
    rt_stats now = { 0 };
    if (c->noted) rt_stats_get(slot->s, &now);
    int64_t passes = c->past.passes + now.passes, generated = c->past.generated + now.generated;
    out->reads = c->reads;
    out->stream = c->job->q->stream;
    out->prompt = c->prompt->n;
    out->read = c->reads ? c->done : c->prompt->n;
    out->generated = c->fed;
    out->left = c->limit - c->fed;
    out->accept_length = passes > 0 ? (double) generated / (double) passes : 0;
    snprintf(out->id, sizeof out->id, "%s", answer_id(c->job->answer));
    snprintf(out->model, sizeof out->model, "%s", c->job->q->model ? c->job->q->model : "");
}

static void count(Runner *e)
{
    int32_t running = 0, used = 0;
    pthread_mutex_lock(&e->lock);
    for (int32_t i = 0; i < e->n_slots; i++) {
        see(&e->seen[i], &e->slot[i]);
        running += e->seen[i].busy;
        used += e->seen[i].held;
    }
    pthread_mutex_unlock(&e->lock);
    e->running = running;
    e->used = used;
}

int32_t runner_slots(Runner *e, RunnerSlot out[RUNNER_SLOTS_MAX])
{
    pthread_mutex_lock(&e->lock);
    memcpy(out, e->seen, sizeof *out * (size_t) e->n_slots);
    pthread_mutex_unlock(&e->lock);
    return e->n_slots;
}

void runner_run(Runner *e)
{
    Server *s = e->server;
    for (;;) {
        look(e);
        admit(e);
        count(e);
        if (s->stop && !e->line) break;
        if (gather(e) > 0) pass(e);
        else queue_wait(s->queue, e->line ? 0.02 : 1);
    }
    for (int32_t i = 0; s->o.cache_dir && i < e->n_slots; i++) run_leave(&e->bench, e->slot[i].s, &e->slot[i].history, NULL, 0);
}

void runner_now(const Runner *e, RunnerNow *out) { *out = (RunnerNow) { e->running, e->used, e->jobs }; }

/* ---- opening ---- */

/* A first text, of which nothing is kept: passes are timed before anything is guessed, which takes a second that no client should wait for.
 * If it fails the first request will say so. */
static void warm_up(Runner *e)
{
    rt_session *s = e->slot[0].s;
    rt_block block;
    if (rt_prompt(s, &(int32_t) { 0 }, 1) == RT_OK) rt_step_run(e->bench.step, &s, &block, 1);
    run_forget(s);
}

bool runner_open(Runner **out, Server *s)
{
    Runner *e = calloc(1, sizeof *e);
    rt_error err = { 0 };
    rt_session_options so = program_session_options(&s->o);
    rt_step_options st = program_step_options(&s->o);
    *out = e;
    if (!e) return complain(&s->o, "out of memory") == EXIT_FINE;
    pthread_mutex_init(&e->lock, NULL);
    e->server = s;
    e->line_end = &e->line;
    e->n_slots = s->o.parallel;
    st.sessions = e->n_slots;
    so.checkpoints = 8;
    bool good = rt_step_new(&e->bench.step, s->p.engine, &st, &err) == RT_OK;
    for (int32_t i = 0; good && i < e->n_slots; i++) good = rt_session_new(&e->slot[i].s, s->p.engine, &so, &err) == RT_OK;
    e->bench.server = s;
    if (good) warm_up(e);
    return good || complain(&s->o, "%s", err.text) == EXIT_FINE;
}

void runner_close(Runner *e)
{
    if (!e) return;
    for (int32_t i = 0; i < e->n_slots; i++) rt_session_free(e->slot[i].s);
    rt_step_free(e->bench.step);
    pthread_mutex_destroy(&e->lock);
    free(e);
}
