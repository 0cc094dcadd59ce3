#include "programs/serve/run/scheduler.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "programs/costs.h"
#include "programs/denoise.h"
#include "programs/expert_profile.h"
#include "programs/expert_use.h"
#include "programs/serve/run/choice.h"
#include "programs/serve/run/replay.h"
#include "programs/serve/run/store.h"

enum { SLOTS_MAX = SCHEDULER_SLOTS_MAX, UNREAD_MAX = 1 << 20 };
static const double QUEUED_QUIETLY = 10, EVENT_EVERY = 60, POLL_EVERY = 0.02, COSTS_EVERY = 600;

/* used, read: clock values */
typedef struct { rt_session *s; RunChoice *choice; Histories history; uint64_t used, read; } Slot;

struct Scheduler {
    Server  *server;
    RunContext context;
    Slot     slot[SLOTS_MAX];
    int32_t  n_slots, n_open;                      /* slots; those that have a session, the first ones */
    bool     short_of_memory;                      /* no further session can be opened */
    Job     *line, **line_end;                     /* all jobs, in order of arrival */
    uint64_t clock;
    Slot    *in_pass[SLOTS_MAX]; int32_t n_in_pass;
    Slot    *reader;                               /* whose prompt chunk the pass contains; NULL: none */
    double   polled, kept;                         /* times: clients were asked; costs were written to their file */
    _Atomic int32_t running, used, jobs;
    pthread_mutex_t lock;
    SchedulerSlot seen[SLOTS_MAX];                 /* guarded by the lock; read from other threads */
};

/* ---- endings ---- */

/* Nothing can be computed any more, but whoever has started the server may start it again. */
static void device_lost(Scheduler *e)
{
    if (!e->server->failed) complain(&e->server->o, "%s; the server ends", rt_step_error(e->context.step));
    e->server->failed = true;
}

static bool ends(const Server *s) { return s->stop || s->failed; }

static void free_slot(Scheduler *e, RunChoice *c)
{
    if (c->slot < 0) return;
    Slot *slot = &e->slot[c->slot];
    rt_allow(slot->s, NULL, NULL);
    if (e->server->defaults.denoises) rt_diffusion_set(slot->s, NULL);         /* no drafts for a choice that is over */
    rt_logprobs_set(slot->s, -1);
    rt_speculate(slot->s, true);
    if (!c->job->q->cached) {     /* no turn will continue it, so its session is reused first */
        choice_forget(slot->s);
        slot->used = 0;
    }
    slot->choice = NULL;
    c->slot = -1;
}

/* What experts have done since the job began, for all jobs that ran meanwhile; "" where there is nothing to say. */
static const char *experts_line(char out[EXPERT_USE_TEXT], const Job *j)
{
    out[0] = 0;
    if (j->server->p.loaded.slots == 0 || j->n_started == 0) return out;
    const rt_expert_stats now = expert_use_since(&j->server->p, &j->experts);
    return expert_use_line(out, &now);
}

/* why: what became of it, if it is not done. */
static void log_job(const Job *j, int status, const char *why)
{
    const AnswerUsage *u = &j->usage;
    char line[1100], experts[EXPERT_USE_TEXT];
    experts_line(experts, j);
    snprintf(line, sizeof line, "prompt %lld (%lld cached), answer %lld, %lld of %lld drafted accepted%s%s%s%s",
             (long long) u->prompt, (long long) u->cached, (long long) u->completion, (long long) u->accepted,
             (long long) u->drafted, *experts ? ", experts " : "", experts, *why ? ", " : "", why);
    server_log(j->server, j->x, status, seconds_now() - j->arrived, line);
}

/* Sums the figures of all its choices, including those still running. */
static AnswerUsage usage_so_far(const Scheduler *e, const Job *j)
{
    AnswerUsage u = j->usage;
    for (int32_t i = 0; i < j->n_choice; i++)
        if (j->choice[i].state == CHOICE_RUNNING && j->choice[i].slot >= 0)
            choice_usage(&j->choice[i], e->slot[j->choice[i].slot].s, &u);
    return u;
}

/* Sends what the answer has ready. */
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
    exchange_stream(j->x, answer_type(j->answer));
}

static void whole_body(Job *j, int status)
{
    size_t n;
    const char *bytes = answer_take(j->answer, &n);
    char *body = bytes ? malloc(n + 1) : NULL;
    if (body) memcpy(body, bytes, n);
    exchange_reply(j->x, status, NULL, body, n);
}

/* Removes the job from the queue and frees it. */
static void job_over(Scheduler *e, Job *j, int status, const char *why)
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
    log_job(j, status, why);
    queue_remove(s->queue, j);
    job_free(j);
    expert_profile_keep(&s->p, false);
}

static void job_done(Scheduler *e, Job *j)
{
    answer_usage(j->answer, &j->usage);
    answer_close(j->answer, (int64_t) time(NULL));
    replay_job(e->server, j);
    size_t n;
    const char *response = j->q->store ? answer_response(j->answer, &n) : NULL;
    if (response) store_add(e->server->store, exchange_owner(j->x), answer_id(j->answer), response, n, j->q->items);
    if (j->streaming) {
        send(j);
        exchange_end(j->x, true);
    } else {
        whole_body(j, 200);
    }
    job_over(e, j, 200, "");
}

/* Frees the slots of a job that ends before its answer does. Its tokens have been made, and count. */
static void drop_choices(Scheduler *e, Job *j)
{
    for (int32_t i = 0; i < j->n_choice; i++) {
        RunChoice *c = &j->choice[i];
        if (c->state == CHOICE_RUNNING && c->slot >= 0) choice_drop(c, e->slot[c->slot].s);
        free_slot(e, c);
    }
    answer_usage(j->answer, &j->usage);
}

static void job_failed(Scheduler *e, Job *j, const HttpError *err)
{
    drop_choices(e, j);
    if (j->streaming) {
        answer_fail(j->answer, err, (int64_t) time(NULL));
        send(j);
        exchange_end(j->x, true);
    } else {
        exchange_refuse(j->x, err);
    }
    char why[600];
    snprintf(why, sizeof why, "failed: %s", err->message);
    job_over(e, j, err->status, why);
}

/* Its status in the log is one that no answer has. */
static void job_gone(Scheduler *e, Job *j, const char *why)
{
    drop_choices(e, j);
    exchange_drop(j->x);
    job_over(e, j, 499, why);
}

static Phase phase_of(const Job *j)
{
    bool reads = false;
    for (int32_t i = 0; i < j->n_choice; i++) reads |= j->choice[i].state == CHOICE_RUNNING && j->choice[i].reads;
    return j->n_started == 0 ? PHASE_QUEUED : reads ? PHASE_PREFILL : PHASE_DECODE;
}

/* The client asked to stop, and gets what there is. */
static void job_asked(Scheduler *e, Job *j)
{
    HttpError err = { 0 };
    if (!j->opened) {
        http_fail(&err, 409, "cancelled", NULL, "the request was cancelled");
        job_failed(e, j, &err);
        return;
    }
    for (int32_t i = 0; i < j->n_choice; i++) {
        RunChoice *c = &j->choice[i];
        if (c->state == CHOICE_DONE) continue;
        choice_end(c, c->slot >= 0 ? e->slot[c->slot].s : NULL, FINISH_CANCELLED);
        free_slot(e, c);
    }
    job_done(e, j);
}

static void job_cancelled(Scheduler *e, Job *j)
{
    HttpError err = { 0 };
    metrics_cancelled(e->server->metrics, phase_of(j));
    switch ((CancelWhy) j->cancel) {
    case CANCEL_ASKED:
        job_asked(e, j);
        return;
    case CANCEL_LATE:
        exchange_add(j->x, "X-Should-Retry", "false");
        http_fail(&err, 503, "timeout", NULL, "the request took longer than --request-timeout %d seconds",
                  e->server->o.request_timeout);
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

/* ---- polling clients: between passes, and after layers ---- */

static void keep_alive(Scheduler *e, Job *j, double t)
{
    const RunChoice *c = &j->choice[0];
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

static void poll_clients(Scheduler *e)
{
    double t = seconds_now();
    if (t - e->polled < POLL_EVERY) return;
    e->polled = t;
    for (Job *j = e->line; j; j = j->next) {
        if (j->cancel != CANCEL_NONE) continue;
        if (ends(e->server)) j->cancel = CANCEL_SHUTDOWN;
        else if (exchange_gone(j->x)) j->cancel = CANCEL_GONE;
        else if (j->deadline > 0 && t > j->deadline) j->cancel = CANCEL_LATE;
        else keep_alive(e, j, t);
    }
}

bool scheduler_progress(Scheduler *e)
{
    poll_clients(e);
    if (e->server->stop) return false;
    if (e->n_in_pass == 0) return true;
    if (e->reader && e->reader->choice->job->cancel) return false;
    for (int32_t i = 0; i < e->n_in_pass; i++)
        if (!e->in_pass[i]->choice->job->cancel) return true;
    return false;
}

/* ---- joining ---- */

/* Sessions are opened one by one: the first before the server is ready, the others when there is nothing to do or
 * when they are needed, since the system needs seconds to clear the memory of long contexts. It was planned before the
 * model was loaded; if another program has taken it meanwhile, the server goes on with the sessions it has. */
static bool open_session(Scheduler *e, rt_error *err)
{
    rt_session_options so = program_session_options(&e->server->o);
    rt_session **s = &e->slot[e->n_open].s;
    if (rt_session_new(s, e->server->p.engine, &so, err) != RT_OK) return false;
    if (denoise_option(&e->server->o) && rt_diffusion_set(*s, &e->server->p.denoising) != RT_OK) {
        snprintf(err->text, sizeof err->text, "--%s", rt_session_error(*s));
        rt_session_free(*s);
        *s = NULL;
        return false;
    }
    e->n_open++;
    return true;
}

static bool may_open(const Scheduler *e)
{
    return e->n_open < e->n_slots && !e->short_of_memory && !e->server->failed;
}

static void open_another(Scheduler *e)
{
    rt_error err = { 0 };
    if (open_session(e, &err)) return;
    e->short_of_memory = true;
    log_line("warning: %d of %d sessions: %s", e->n_open, e->n_slots, err.text);
}

/* The free session that can resume most of the prompt; if none can resume a worthwhile part, the least recently
 * used. */
static Slot *pick_slot(Scheduler *e, const RunChoice *c)
{
    const JobPrompt *p = c->prompt;
    Slot *best = NULL, *oldest = NULL;
    int32_t most = 0;
    for (int32_t i = 0; i < e->n_open; i++) {
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
    /* The cache has more: leave alone what this session holds, which may be somebody's next turn. */
    if (best && s->cache && cache_longest(s->cache, s->identity, p->t, (size_t) p->n - 1) >= most + CACHE_GAIN)
        best = NULL;
    return best ? best : oldest;
}

/* The prompt of several choices is read once: the others wait for the first and resume from its image. */
static bool may_start(const Job *j, const RunChoice *c)
{
    if (c->state != CHOICE_WAITING) return false;
    const RunChoice *first = c;
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

/* Makes the choice's prompt the session's, or scores the next piece of it. Returns false when the job is over. */
static bool begin_choice(Scheduler *e, RunChoice *c, Slot *slot)
{
    HttpError err = { 0 };
    Job *j = c->job;
    ChoiceResult st = CHOICE_GOES_ON;
    if (c->scores) {
        e->in_pass[0] = e->reader = slot;          /* so that it can be aborted */
        e->n_in_pass = 1;
        st = choice_score(c, &e->context, slot->s, &err);
        e->n_in_pass = 0;
        e->reader = NULL;
        slot->read = ++e->clock;
    }
    if (st == CHOICE_GOES_ON && !c->scores) st = choice_start(c, slot->s, &err);
    if (st == CHOICE_LOST) device_lost(e);
    if (st == CHOICE_FAILED || st == CHOICE_LOST) {
        job_failed(e, j, &err);
        return false;
    }
    if (st == CHOICE_CANCELLED) {                  /* poll_clients() has set the reason */
        free_slot(e, c);
        return true;
    }
    if (c->scores) return true;
    send(j);
    if (st == CHOICE_OVER) free_slot(e, c);
    if (j->n_done < j->n_choice) return true;
    job_done(e, j);
    return false;
}

/* Returns false if the job is over. */
static bool start_choice(Scheduler *e, Job *j, RunChoice *c, Slot *slot)
{
    Server *s = e->server;
    if (j->n_started++ == 0) {
        queue_leave(s->queue);
        j->began = seconds_now();
        rt_expert_stats_get(s->p.engine, &j->experts, sizeof j->experts);
        metrics_observe(s->metrics, HIST_WAIT, j->began - j->arrived);
    }
    slot->choice = c;
    slot->used = ++e->clock;
    c->slot = (int32_t) (slot - e->slot);
    choice_ready(c, &e->context, slot->s, &slot->history);
    if (c->index % j->q->n == 0) j->usage.cached += c->past.resumed;
    open_answer(j);
    return c->scores || begin_choice(e, c, slot);  /* scoring happens in turns between passes */
}

/* Scores a piece of the prompt that has waited longest. Returns false if there is none. */
static bool score(Scheduler *e)
{
    Slot *next = NULL;
    for (int32_t i = 0; i < e->n_slots; i++) {
        Slot *x = &e->slot[i];
        if (x->choice && x->choice->scores && (!next || x->read < next->read)) next = x;
    }
    if (next) begin_choice(e, next->choice, next);
    return next != NULL;
}

static bool has_room(Scheduler *e)
{
    for (int32_t i = 0; i < e->n_open; i++)
        if (!e->slot[i].choice) return true;
    const int32_t before = e->n_open;
    if (may_open(e)) open_another(e);
    return e->n_open > before;
}

static void admit(Scheduler *e)
{
    Job *next;
    for (Job *j; (j = queue_get(e->server->queue));) {
        *e->line_end = j;
        e->line_end = &j->next;
        e->jobs++;
    }
    for (Job *j = e->line; j; j = next) {
        next = j->next;
        if ((ends(e->server) || (e->server->state == SERVER_DRAINING && j->n_started == 0)) && !j->cancel)
            j->cancel = CANCEL_SHUTDOWN;
        if (j->cancel) {
            job_cancelled(e, j);
            continue;
        }
        for (int32_t i = 0; i < j->n_choice; i++) {
            RunChoice *c = &j->choice[i];
            if (may_start(j, c) && (!has_room(e) || !start_choice(e, j, c, pick_slot(e, c)))) break;
        }
    }
}

/* ---- a pass ---- */

static bool paused(const RunChoice *c) { return c->job->streaming && exchange_unread(c->job->x) > UNREAD_MAX; }

/* The choices that are decoding, and the prompt whose turn it is: it goes first, since the step reads a chunk of the
 * first session only. */
static int32_t gather(Scheduler *e)
{
    e->n_in_pass = 0;
    e->reader = NULL;
    for (int32_t i = 0; i < e->n_slots; i++) {
        Slot *x = &e->slot[i];
        if (x->choice && x->choice->reads && !x->choice->scores && (!e->reader || x->read < e->reader->read))
            e->reader = x;
    }
    if (e->reader) e->in_pass[e->n_in_pass++] = e->reader;
    for (int32_t i = 0; i < e->n_slots; i++) {
        Slot *x = &e->slot[i];
        if (x->choice && !x->choice->reads && !paused(x->choice)) e->in_pass[e->n_in_pass++] = x;
    }
    return e->n_in_pass;
}

/* After a chunk: checks whether the prompt is read, and whether a cache point is reached. */
static void read_on(Scheduler *e, Slot *x)
{
    RunChoice *c = x->choice;
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
    for (; c->next_point < p->n_point && p->point[c->next_point].at <= at; c->next_point++) {
        const CachePoint *point = &p->point[c->next_point];
        if (s->cache && point->save && point->at == at)
            c->job->usage.cache_write += cache_save(s->cache, s->identity, e->context.step, x->s, at, point->kind, NULL,
                                                    0) ? at - c->saved : 0;
        if (point->at == at) c->saved = at;
    }
    /* other choices of this job have the same prompt */
    if (!c->reads && s->cache && c->job->q->n > 1 && c->job->q->cached)
        cache_save(s->cache, s->identity, e->context.step, x->s, at, CACHE_END, NULL, 0);
}

static bool choice_ended(Scheduler *e, RunChoice *c, ChoiceResult st, const HttpError *err)
{
    Job *j = c->job;
    if (st == CHOICE_FAILED) {
        job_failed(e, j, err);
        return true;
    }
    if (st == CHOICE_OVER) free_slot(e, c);
    if (j->q->timings_per_token) {
        AnswerUsage u = usage_so_far(e, j);
        answer_usage(j->answer, &u);
    }
    send(j);
    if (j->n_done < j->n_choice) return st == CHOICE_OVER;
    job_done(e, j);
    return true;
}

static void pass_failed(Scheduler *e, const Slot *const *in, int32_t n)
{
    HttpError err = { 0 };
    http_fail(&err, 500, NULL, NULL, "%s", rt_step_error(e->context.step));
    for (int32_t i = 0; i < n; i++)
        if (in[i]->choice) job_failed(e, in[i]->choice->job, &err);
}

static void pass(Scheduler *e)
{
    rt_session *s[SLOTS_MAX];
    rt_block out[SLOTS_MAX];
    Slot *in[SLOTS_MAX], *reader = e->reader;
    int32_t n = e->n_in_pass;
    for (int32_t i = 0; i < n; i++) {
        in[i] = e->in_pass[i];
        s[i] = in[i]->s;
    }
    rt_status st = rt_step_run(e->context.step, s, out, (size_t) n);
    e->n_in_pass = 0;
    e->reader = NULL;
    if (st == RT_ECANCEL) return;
    if (st == RT_ELOST) device_lost(e);
    if (st != RT_OK) {
        pass_failed(e, (const Slot *const *) in, n);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        RunChoice *c = in[i]->choice;
        HttpError err = { 0 };
        if (!c) continue;                          /* its job has just failed in another session */
        in[i]->used = ++e->clock;
        if (in[i] == reader && out[i].status == RT_OK && out[i].n == 0) continue;
        choice_ended(e, c, choice_block(c, in[i]->s, &out[i], &err), &err);
    }
    if (!reader || !reader->choice) return;
    read_on(e, reader);
    RunChoice *c = reader->choice;
    if (c->reads || c->limit > 0) return;
    choice_end(c, reader->s, FINISH_LENGTH);       /* only the prompt was requested */
    choice_ended(e, c, CHOICE_OVER, NULL);
}

static void see(SchedulerSlot *out, const Slot *slot)
{
    const int32_t *text;
    const RunChoice *c = slot->choice;
    *out = (SchedulerSlot) { .busy = c != NULL, .held = slot->s ? (int32_t) rt_session_text(slot->s, &text) : 0 };
    if (!c) return;
    rt_stats now = { 0 };
    if (c->noted) rt_stats_get(slot->s, &now, sizeof now);
    int64_t passes = c->past.passes + now.passes, generated = c->past.generated + now.generated;
    out->reads = c->reads;
    out->stream = c->job->q->stream;
    out->prompt = c->prompt->n;
    out->read = c->reads ? c->done : c->prompt->n;
    out->generated = c->fed;
    out->left = c->limit - c->fed;
    out->accept_length = passes > 0 ? (double) generated / (double) passes : 0;
    out->owner = exchange_owner(c->job->x);
    snprintf(out->id, sizeof out->id, "%s", answer_id(c->job->answer));
    snprintf(out->model, sizeof out->model, "%s", c->job->q->model ? c->job->q->model : "");
}

static void count(Scheduler *e)
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

int32_t scheduler_slots(Scheduler *e, SchedulerSlot out[SCHEDULER_SLOTS_MAX])
{
    pthread_mutex_lock(&e->lock);
    memcpy(out, e->seen, sizeof *out * (size_t) e->n_slots);
    pthread_mutex_unlock(&e->lock);
    return e->n_slots;
}

/* With nothing to do: what was learned is kept now and then, as a server may end without notice. */
static void wait(Scheduler *e)
{
    Server *s = e->server;
    if (!e->line && seconds_now() - e->kept > COSTS_EVERY) {
        costs_save(&s->p, e->context.step);
        e->kept = seconds_now();
    }
    queue_wait(s->queue, e->line ? 0.02 : 1);
}

void scheduler_run(Scheduler *e)
{
    Server *s = e->server;
    for (;;) {
        poll_clients(e);
        admit(e);
        count(e);
        if (s->stop && !e->line) break;
        bool scored = score(e);
        if (gather(e) > 0) pass(e);
        else if (!scored && !e->line && may_open(e)) open_another(e);
        else if (!scored) wait(e);
    }
    costs_save(&s->p, e->context.step);
    for (int32_t i = 0; s->o.cache_dir && !s->failed && i < e->n_open; i++)
        choice_leave(&e->context, e->slot[i].s, &e->slot[i].history, NULL, 0);
}

void scheduler_now(const Scheduler *e, SchedulerNow *out) { *out = (SchedulerNow) { e->running, e->used, e->jobs }; }

/* ---- opening ---- */

/* Runs a first text and drops it: a short chunk and two plain passes touch the memory and tell what passes cost, so
 * that the first client need not wait for it. If it fails the first request will report it. */
static void warm_up(Scheduler *e)
{
    enum { PROMPT = 17, PASSES = 3 };
    rt_session *s = e->slot[0].s;
    rt_block block;
    rt_status status = rt_prompt(s, (int32_t[PROMPT]) { 0 }, PROMPT);
    for (int32_t i = 0; status == RT_OK && i < PASSES; i++) status = rt_step_run(e->context.step, &s, &block, 1);
    choice_forget(s);
}

bool scheduler_open(Scheduler **out, Server *s)
{
    Scheduler *e = calloc(1, sizeof *e);
    rt_error err = { 0 };
    rt_step_options st = program_step_options(&s->p);
    *out = e;
    if (!e) return complain(&s->o, "out of memory") == EXIT_FINE;
    pthread_mutex_init(&e->lock, NULL);
    e->server = s;
    e->line_end = &e->line;
    e->n_slots = s->o.parallel;
    st.sessions = e->n_slots;
    bool good = rt_step_new(&e->context.step, s->p.engine, &st, &err) == RT_OK && open_session(e, &err);
    e->context.server = s;
    e->kept = seconds_now();
    if (good) costs_load(&s->p, e->context.step);
    if (good) warm_up(e);
    char hint[160];
    return good || complain(&s->o, "%s%s", err.text, program_gpu_hint(hint, &s->p, err.text)) == EXIT_FINE;
}

void scheduler_close(Scheduler *e)
{
    if (!e) return;
    for (int32_t i = 0; i < e->n_open; i++) rt_session_free(e->slot[i].s);
    rt_step_free(e->context.step);
    pthread_mutex_destroy(&e->lock);
    free(e);
}
