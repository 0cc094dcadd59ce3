/* test_experts.c - an engine whose memory holds only some of its experts gives what the whole model gives, bit for bit:
 * however little memory there is, however experts are read, and whatever is cancelled or fails meanwhile. Reads and
 * allocations are wrapped (tests.mk), so that they fail when a test says so. */
#include "model_helper.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/cpu/expert_store.h"
#include "base/disk.h"
#include "part.h"
#include "remove_tree.h"

/* ---- what fails ---- */

enum { ALL = 1 << 30 };
/* Requests of reads from the number `from` up to `to`, and every `every`-th, have `result`: -errno, or so many bytes at
 * most. Before number cancel_at of them the step is cancelled. */
static struct { atomic_int calls; int32_t from, to, every, result, cancel_at; rt_step *step; } reads;
static _Thread_local bool spared;                  /* in this thread nothing happens to them */
static struct { int setup, direct; atomic_int alloc_in; } fault;   /* errno; which allocation fails, from 1 */

static void clear_faults(void)
{
    memset(&reads, 0, sizeof reads);
    memset(&fault, 0, sizeof fault);
    reads.cancel_at = -1;
}

static int32_t spoil(int32_t result)
{
    if (spared) return result;
    const int32_t k = atomic_fetch_add(&reads.calls, 1);
    if (k == reads.cancel_at) rt_step_cancel(reads.step);
    const bool spoilt = (k >= reads.from && k < reads.to) || (reads.every && k % reads.every == reads.every - 1);
    return spoilt && reads.result < result ? reads.result : result;
}

ssize_t __real_pread(int fd, void *buf, size_t n, off_t offset);
ssize_t __wrap_pread(int fd, void *buf, size_t n, off_t offset);
ssize_t __wrap_pread(int fd, void *buf, size_t n, off_t offset)
{
    const ssize_t got = __real_pread(fd, buf, n, offset);
    const int32_t result = spoil(got < 0 ? -errno : (int32_t) got);
    if (result >= 0) return result;
    errno = -result;
    return -1;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    if (flags & O_DIRECT && fault.direct) {
        errno = fault.direct;
        return -1;
    }
    if (!(flags & O_CREAT)) return __real_open(path, flags);
    va_list args;
    va_start(args, flags);
    const mode_t mode = va_arg(args, mode_t);
    va_end(args);
    return __real_open(path, flags, mode);
}

/* liburing's, which a build without it does not have. */
struct io_uring;
#define WEAK __attribute__((weak))
WEAK int __real_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
WEAK unsigned __real_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **out, unsigned n);
int      __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
unsigned __wrap_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **out, unsigned n);

int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
    return fault.setup ? -fault.setup : __real_io_uring_queue_init(entries, ring, flags);
}

unsigned __wrap_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **out, unsigned n)
{
    const unsigned got = __real_io_uring_peek_batch_cqe(ring, out, n);
    for (unsigned i = 0; i < got; i++)
        if (out[i]->user_data) out[i]->res = spoil(out[i]->res);   /* 0: the trial when a ring is opened */
    return got;
}

static bool no_memory(void)
{
    if (atomic_load(&fault.alloc_in) == 0 || atomic_fetch_sub(&fault.alloc_in, 1) != 1) return false;
    errno = ENOMEM;
    return true;
}

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n) { return no_memory() ? NULL : __real_malloc(n); }

void *__real_calloc(size_t n, size_t each);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_calloc(size_t n, size_t each) { return no_memory() ? NULL : __real_calloc(n, each); }

void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n) { return no_memory() ? NULL : __real_realloc(p, n); }

void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n) { return no_memory() ? NULL : __real_aligned_alloc(align, n); }

void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    return flags & MAP_ANONYMOUS && no_memory() ? MAP_FAILED : __real_mmap(at, n, prot, flags, fd, offset);
}

/* ---- a backend with as much memory as a test says, which notes what is taken ---- */

static uint64_t left;                              /* 0: unknown */
static struct { char name[48]; size_t bytes; } taken[64];
static int32_t n_taken;
static void *(*cpu_take)(Backend *b, size_t bytes, const char *part);

static void have_left(Backend *b, uint64_t *there, uint64_t *total) { (void) b, *there = *total = left; }

static void *take_noted(Backend *b, size_t bytes, const char *part)
{
    int32_t i = 0;
    while (i < n_taken && strcmp(taken[i].name, part) != 0) i++;
    assert_true(i < 64);
    if (i == n_taken) snprintf(taken[n_taken++].name, sizeof taken[0].name, "%s", part);
    taken[i].bytes += bytes;
    return cpu_take(b, bytes, part);
}

static bool there(void) { return false; }

static Status open_noted(Backend **out, const char *detail, const BackendOptions *o, Error *err)
{
    (void) detail;
    TRY(backend_open(out, "cpu", o, err));
    cpu_take = (*out)->alloc;
    (*out)->alloc = take_noted;
    (*out)->memory = have_left;
    memset(taken, 0, sizeof taken);
    n_taken = 0;
    return ST_OK;
}

static const BackendEntry noted = { .name = "noted", .there = there, .open = open_noted };
const BackendEntry *const backends_linked[] = { &noted, NULL };

/* ---- models ---- */

enum { MODELS = 5, VOCAB = 96 };
static const char *const model_name[MODELS] = { "qwen3moe", "qwen35moe with MTP", "fused", "laguna", "two sizes" };
static RigOptions  model_options[MODELS];
static PublicRig   files[MODELS];

/* The first and the last have so many experts that several are read at once. two sizes: every other layer's down stack
 * has a larger type. */
static RigOptions options_of(int32_t kind)
{
    RigOptions o = rig_kind(kind == 3 ? 7 : kind == 0 || kind == 4 ? 5 : 6, false);
    if (kind == 0 || kind == 4) o.tm.n_expert = kind ? 32 : 40;
    if (kind == 0 || kind == 3) o = rig_with_draft(o, false);
    if (kind == 1) o = rig_with_mtp(o);
    if (kind == 2) o.tm.fused_experts = true, o.tm.type = T_Q8_0;
    if (kind == 3) o.tm.type = T_F16;
    if (kind == 4) o.tm.hidden = 256, o.tm.type = T_Q4_K, o.tm.type_down = T_F16;
    return o;
}

static int make_models(void **state)
{
    (void) state;
    clear_faults();
    for (int32_t kind = 0; kind < MODELS; kind++) {
        model_options[kind] = options_of(kind);
        public_files(&files[kind], &model_options[kind]);
    }
    return 0;
}

static int remove_models(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < MODELS; kind++) remove_tree(files[kind].dir);
    return 0;
}

static int no_faults(void **state)
{
    (void) state;
    clear_faults();
    left = 0;
    return 0;
}

static rt_options opening_of(int32_t kind, const PublicRig *p)
{
    const RigOptions *o = &model_options[kind];
    return RT_OPTIONS(.model = p->model, .draft = o->draft ? p->draft : o->mtp ? "mtp" : NULL, .draft_type = "keep",
                      .threads = 1);
}

/* ---- what a model tells ---- */

enum { SESSIONS = 3, CTX = 160, CHUNK = 16, WIDE = 80, PREFIX = 20, CHAIN = 18, TREE = 10, LENGTH = 16,
       PROMPT_MOST = 90 };
typedef struct {
    float   chain[CHAIN][VOCAB], tree[TREE][VOCAB];
    int32_t text[SESSIONS][LENGTH];
} Told;

static const rt_sampling samplings[SESSIONS] = { { .size = sizeof(rt_sampling), .max_tokens = LENGTH },
    { .size = sizeof(rt_sampling), .max_tokens = LENGTH, .temperature = 0.8f, .top_k = 20, .seed = 4 },
    { .size = sizeof(rt_sampling), .max_tokens = LENGTH, .temperature = 1, .top_p = 0.9f, .repetition = 1.1f,
      .seed = 9 } };

static void prompt_of(int32_t i, int32_t *token, int32_t *n)
{
    static const int32_t length[SESSIONS] = { PROMPT_MOST, 17, 33 };
    Dice d = { tiny_key((uint64_t) i, "experts"), 0 };
    *n = length[i];
    random_tokens(&d, *n, VOCAB, token);
}

static void keep_row(void *ud, int32_t i, const float *logits, const float *taps)
{
    (void) taps;
    memcpy(((float (*)[VOCAB]) ud)[i], logits, sizeof(float[VOCAB]));
}

static void tell_rows(rt_step *st, rt_session *s, Told *out)
{
    int32_t prefix[PREFIX], token[CHAIN], node[TREE], parent[TREE];
    Dice d = { tiny_key(3, "rows"), 0 };
    random_tokens(&d, PREFIX, VOCAB, prefix);
    random_tokens(&d, CHAIN, VOCAB, token);
    random_tree(&d, TREE, VOCAB, node, parent);
    if (rt_rows(st, s, prefix, PREFIX, token, NULL, CHAIN, RT_ROWS_LOGITS, keep_row, out->chain) != RT_OK ||
        rt_rows(st, s, prefix, PREFIX, node, parent, TREE, RT_ROWS_LOGITS, keep_row, out->tree) != RT_OK)
        fail_msg("%s", rt_step_error(st));
}

static rt_engine *opened(const rt_options *o)
{
    rt_engine *g;
    rt_error e;
    if (rt_open(&g, o, &e) != RT_OK) fail_msg("%s", e.text);
    return g;
}

/* With the automatic budget prompts are read in passes that are wider than any that decodes. */
static rt_step *new_step(rt_engine *g, int32_t budget, int32_t threads)
{
    rt_step *st;
    rt_error e;
    const rt_step_options o = RT_STEP_OPTIONS(.sessions = SESSIONS, .chunk = budget ? CHUNK : WIDE,
                                              .budget = budget, .threads = threads);
    if (rt_step_new(&st, g, &o, &e) != RT_OK) fail_msg("%s", e.text);
    return st;
}

static rt_session *new_session(rt_engine *g)
{
    rt_session *s;
    rt_error e;
    if (rt_session_new(&s, g, &RT_SESSION_OPTIONS(.ctx = CTX), &e) != RT_OK) fail_msg("%s", e.text);
    return s;
}

/* Begins text i in the session. */
static void begin(rt_session *s, int32_t i)
{
    int32_t prompt[PROMPT_MOST], n;
    prompt_of(i, prompt, &n);
    assert_int_equal(rt_sampling_set(s, &samplings[i]), RT_OK);
    assert_int_equal(rt_prompt(s, prompt, (size_t) n), RT_OK);
}

/* All texts at once, in passes that they share. */
static void tell_texts(rt_engine *g, rt_step *st, Told *out)
{
    rt_session *s[SESSIONS];
    rt_block b[SESSIONS];
    int32_t made[SESSIONS] = { 0 }, ended = 0;
    for (int32_t i = 0; i < SESSIONS; i++) begin(s[i] = new_session(g), i);
    while (ended < SESSIONS) {
        if (rt_step_run(st, s, b, SESSIONS) != RT_OK) fail_msg("%s", rt_step_error(st));
        ended = 0;
        for (int32_t i = 0; i < SESSIONS; i++) {
            ended += b[i].status == RT_END;
            if (b[i].status < 0) fail_msg("%s", rt_session_error(s[i]));
            for (int32_t j = 0; j < b[i].n; j++) out->text[i][made[i]++] = b[i].token[j];
        }
    }
    for (int32_t i = 0; i < SESSIONS; i++) {
        assert_int_equal(made[i], LENGTH);
        rt_session_free(s[i]);
    }
}

static void tell(rt_engine *g, int32_t budget, int32_t threads, Told *out)
{
    rt_step *st = new_step(g, budget, threads);
    rt_session *s = new_session(g);
    tell_rows(st, s, out);
    rt_session_free(s);
    tell_texts(g, st, out);
    rt_step_free(st);
}

/* By the whole model, plainly. */
static const Told *truth(int32_t kind)
{
    static Told told[MODELS];
    static bool known[MODELS];
    if (!known[kind]) {
        const rt_options o = opening_of(kind, &files[kind]);
        rt_engine *g = opened(&o);
        rt_expert_stats none = { 0 }, all;
        tell(g, -1, 1, &told[kind]);
        rt_expert_stats_get(g, &all, sizeof all);
        assert_memory_equal(&all, &none, sizeof all);
        rt_close(g);
        known[kind] = true;
    }
    return &told[kind];
}

static void same(const Told *a, const Told *b, const char *what)
{
    assert_same(a->chain, b->chain, sizeof a->chain, "%s: logits of a chain", what);
    assert_same(a->tree, b->tree, sizeof a->tree, "%s: logits of a tree", what);
    assert_same(a->text, b->text, sizeof a->text, "%s: texts", what);
}

/* ---- how much memory ---- */

static rt_status planned(const rt_options *o, rt_needs *n, rt_error *e)
{
    return rt_plan(o, &RT_SESSION_OPTIONS(.ctx = CTX), &RT_STEP_OPTIONS(.chunk = CHUNK), NULL, NULL, n, sizeof *n, e);
}

/* The least memory that experts can have. */
static uint64_t least(const rt_options *of)
{
    rt_options o = *of;
    rt_needs n;
    rt_error e;
    o.expert_ram = 1;
    o.expert_slots = 0;
    assert_int_equal(planned(&o, &n, &e), RT_EARG);
    const char *says = strstr(e.text, "expert_ram: 1 bytes, expected at least ");
    if (!says || strchr(e.text, '\n')) fail_msg("%s", e.text);
    return strtoull(says + strlen("expert_ram: 1 bytes, expected at least "), NULL, 10);
}

static uint64_t half(const rt_options *o)
{
    rt_needs n;
    rt_error e;
    if (planned(o, &n, &e) != RT_OK) fail_msg("%s", e.text);
    assert_true(n.expert_bytes > 0 && n.expert_ram == 0);
    return n.expert_bytes / 2;
}

static const char *const ways[] = { "pread", "mmap", "io_uring" };
enum { WAYS = 3 };

static bool has_uring(void)
{
    Disk *d;
    const bool has = disk_open(&d, DISK_URING, 1, NULL) == ST_OK;
    disk_close(d);
    return has;
}

/* ---- statistics ---- */

static int64_t sum_of(const int64_t *n, int32_t count)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < count; i++) sum += n[i];
    return sum;
}

/* reads_of: reads of an expert, fewer where its matrices lie one behind the other; filled: it began with a profile */
static void add_up(rt_engine *g, const rt_options *o, int32_t kind, bool filled)
{
    rt_expert_stats s;
    rt_needs n;
    rt_error e;
    const RigOptions *r = &model_options[kind];
    const int32_t layers = r->tm.n_layer - r->tm.n_dense;
    const int32_t reads_of = strcmp(o->expert_io, "mmap") == 0 ? 0 : kind == 2 ? 2 : 3;
    rt_expert_stats_get(g, &s, sizeof s);
    assert_int_equal(planned(o, &n, &e), RT_OK);
    assert_true(s.bytes > 0 && s.bytes == (int64_t) n.expert_ram && (uint64_t) s.bytes <= o->expert_ram);
    assert_true(s.slots < (int64_t) layers * r->tm.n_expert && s.pinned >= 0 && s.pinned < s.slots);
    if (o->expert_slots) assert_int_equal(s.slots - s.pinned, layers * o->expert_slots);
    assert_true(s.misses > 0 && s.chosen >= s.pinned_hits + s.ring_hits + s.misses);
    assert_int_equal(sum_of(s.latency, RT_LATENCIES), s.misses * reads_of);
    assert_int_equal(s.evicted, filled ? s.misses : s.misses < s.slots ? 0 : s.misses - s.slots);
    assert_true(s.promoted <= s.misses + s.ring_hits);
    assert_true(s.wait_s >= 0 && s.pack_s > 0);
    const int64_t expert = 3 * r->tm.hidden * r->tm.ff_expert;
    if (kind == 0) assert_int_equal(s.missed_bytes, s.misses * expert * 4);
    if (kind == 2) assert_int_equal(s.missed_bytes, s.misses * expert / 32 * 34);
    if (kind == 3) assert_int_equal(s.missed_bytes, s.misses * expert * 2);
    if (kind == 4) assert_true(s.missed_bytes > s.misses * 17920 && s.missed_bytes < s.misses * 25600);
    if (strncmp(s.io, o->expert_io, strlen(o->expert_io)) != 0) fail_msg("%s, expected %s", s.io, o->expert_io);
}

/* ---- the same ---- */

static void path_of(char out[160], int32_t kind, const char *name)
{
    snprintf(out, 160, "%.63s/%s", files[kind].dir, name);
}

/* What the texts used, for the engines that begin with it. */
static void make_profile(int32_t kind)
{
    char path[160];
    rt_error e;
    Told told;
    rt_options o = opening_of(kind, &files[kind]);
    o.expert_ram = half(&o);
    o.expert_io = "pread";
    rt_engine *g = opened(&o);
    tell(g, -1, 1, &told);
    same(&told, truth(kind), "the first run");
    path_of(path, kind, "used.csv");
    if (rt_experts_save(g, path, &e) != RT_OK) fail_msg("%s", e.text);
    rt_close(g);
}

/* ram 0: half of the experts have room; 1: the least that works; 2: half, and rings of a slot per layer. variant 1:
 * with a profile; 2: experts stay as they are in the file */
static void one_setting(int32_t kind, int32_t ram, int32_t way, int32_t variant)
{
    static const int32_t budgets[] = { -1, 20, 0 };
    char path[160], what[200];
    Told told;
    rt_options o = opening_of(kind, &files[kind]);
    const int32_t budget = budgets[(ram + way + variant) % 3], threads = 1 + (ram + variant + kind) % 2;
    path_of(path, kind, "used.csv");
    o.expert_io = ways[way];
    o.no_repack = variant == 2;
    if (variant == 1) o.expert_profile = path;
    o.expert_ram = ram == 1 ? least(&o) : half(&o);
    if (ram == 2) o.expert_slots = 1;
    snprintf(what, sizeof what, "%s, %s, %llu bytes, %d slots, budget %d, %d threads, variant %d", model_name[kind],
             o.expert_io, (unsigned long long) o.expert_ram, o.expert_slots, budget, threads, variant);
    rt_engine *g = opened(&o);
    tell(g, budget, threads, &told);
    same(&told, truth(kind), what);
    if (ram == 1) {
        rt_expert_stats s;
        rt_expert_stats_get(g, &s, sizeof s);
        assert_int_equal(s.slots, kind == 4 ? 2 : 1);              /* of each size */
        assert_int_equal(s.pinned, 0);
    }
    if (ram != 1 || variant != 1) add_up(g, &o, kind, variant == 1);
    rt_close(g);
}

/* Every setting for one model, every pair of two for each of the others. */
static void the_same_text(void **state)
{
    (void) state;
    const int32_t n_ways = has_uring() ? WAYS : WAYS - 1;
    if (n_ways < WAYS) print_message("  without io_uring\n");
    for (int32_t kind = 0; kind < MODELS; kind++) {
        make_profile(kind);
        for (int32_t ram = 0; ram < 3; ram++)
            for (int32_t way = 0; way < n_ways; way++)
                for (int32_t variant = 0; variant < 3; variant++)
                    if ((kind == 0 || (kind + ram + way + variant) % 3 == 0) && part_runs())
                        one_setting(kind, ram, way, variant);
    }
}

/* ---- several steps at once ---- */

/* cmocka's assertions are of the main thread. */
typedef struct {
    rt_engine  *g;
    const Told *truth;
    int32_t     index, rounds, failed;             /* failed: passes, with the status that they may have */
    rt_status   may;
    bool        spared;
    char        wrong[300];
} Runner;

static void *run_texts(void *arg)
{
    Runner *r = arg;
    spared = r->spared;
    rt_step *st;
    rt_session *s;
    rt_block b;
    rt_error e;
    const rt_step_options o = RT_STEP_OPTIONS(.chunk = CHUNK, .budget = r->index ? 20 : -1,
                                              .threads = 1 + r->index % 2);
    if (rt_step_new(&st, r->g, &o, &e) != RT_OK ||
        rt_session_new(&s, r->g, &RT_SESSION_OPTIONS(.ctx = CTX), &e) != RT_OK) {
        snprintf(r->wrong, sizeof r->wrong, "%.280s", e.text);
        return NULL;
    }
    for (int32_t k = 0; k < r->rounds && !r->wrong[0]; k++) {
        const int32_t i = (k + r->index) % SESSIONS;
        int32_t prompt[PROMPT_MOST], n, made = 0;
        prompt_of(i, prompt, &n);
        rt_sampling_set(s, &samplings[i]);
        rt_prompt(s, prompt, (size_t) n);
        while (made < LENGTH && !r->wrong[0]) {
            const rt_status code = rt_next(st, s, &b);
            if (code != RT_OK && code == r->may && r->failed++ < 1000) continue;
            if (code != RT_OK) snprintf(r->wrong, sizeof r->wrong, "%.280s", rt_step_error(st));
            for (int32_t j = 0; j < b.n; j++, made++)
                if (b.token[j] != r->truth->text[i][made]) snprintf(r->wrong, sizeof r->wrong, "text %d differs", i);
        }
    }
    rt_session_free(s);
    rt_step_free(st);
    return NULL;
}

static void in_threads(int32_t kind, bool little, const char *way)
{
    enum { THREADS = 3 };
    Runner r[THREADS];
    pthread_t id[THREADS];
    rt_options o = opening_of(kind, &files[kind]);
    o.expert_io = way;
    o.expert_ram = little ? least(&o) : half(&o);
    rt_engine *g = opened(&o);
    for (int32_t i = 0; i < THREADS; i++) {
        r[i] = (Runner) { .g = g, .truth = truth(kind), .index = i, .rounds = 2 };
        assert_int_equal(pthread_create(&id[i], NULL, run_texts, &r[i]), 0);
    }
    for (int32_t i = 0; i < THREADS; i++) pthread_join(id[i], NULL);
    for (int32_t i = 0; i < THREADS; i++)
        if (r[i].wrong[0]) fail_msg("%s, %s, thread %d: %s", model_name[kind], way, i, r[i].wrong);
    rt_close(g);
}

static void several_steps_at_once(void **state)
{
    (void) state;
    static const char *const io[MODELS] = { "pread", "auto", "mmap", "auto", "pread" };
    for (int32_t kind = 0; kind < MODELS; kind++) in_threads(kind, kind % 2 == 0, io[kind]);
    in_threads(4, false, "auto");
}

/* ---- statistics of passes ---- */

static rt_expert_stats stats_of(const rt_engine *g)
{
    rt_expert_stats s;
    rt_expert_stats_get(g, &s, sizeof s);
    return s;
}

static rt_stats session_stats(const rt_session *s)
{
    rt_stats t;
    rt_stats_get(s, &t, sizeof t);
    return t;
}

/* The engine's figures are those of its only session, and of the experts that passes read each came from somewhere. */
static void figures_of_passes(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < MODELS; kind++) {
        rt_options o = opening_of(kind, &files[kind]);
        rt_block b;
        o.draft = NULL;
        o.expert_ram = half(&o);
        rt_engine *g = opened(&o);
        rt_step *st = new_step(g, 0, 1);
        rt_session *s = new_session(g);
        begin(s, 0);
        do assert_int_equal(rt_step_run(st, &s, &b, 1), RT_OK); while (b.n == 0);
        const rt_expert_stats first = stats_of(g);
        const rt_stats mine = session_stats(s);
        assert_true(first.misses > 0 && mine.experts_missed == first.misses);
        while (b.status != RT_END) assert_true(rt_next(st, s, &b) >= 0);
        const rt_expert_stats all = stats_of(g);
        const rt_stats now = session_stats(s);
        assert_int_equal(now.experts_missed, all.misses);
        assert_int_equal(now.experts_missed_bytes, all.missed_bytes);
        assert_int_equal(now.experts_chosen - mine.experts_chosen, all.chosen - first.chosen);
        assert_int_equal(now.experts_read - mine.experts_read, all.pinned_hits + all.ring_hits + all.misses -
                         first.pinned_hits - first.ring_hits - first.misses);
        assert_true(now.experts_wait_s >= 0 && now.experts_wait_s <= all.wait_s + 1e-9);
        rt_session_free(s);
        rt_step_free(st);
        rt_close(g);
    }
}

/* ---- what was used ---- */

static char *content_of(const char *path, size_t *n)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    *n = (size_t) st.st_size;
    char *text = malloc(*n + 1);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, *n, f), *n);
    fclose(f);
    text[*n] = 0;
    return text;
}

/* All counts of a file together. */
static int64_t counted(const char *path)
{
    size_t n;
    char *text = content_of(path, &n);
    int64_t sum = 0;
    for (char *line = text, *next; *line; line = next) {
        next = strchr(line, '\n') + 1;
        for (char *at = line; *line != '#' && at < next; at = strpbrk(at, ",\n") + 1) sum += strtoll(at, NULL, 10);
    }
    free(text);
    return sum;
}

static void what_was_used_is_kept(void **state)
{
    (void) state;
    char path[160];
    rt_error e;
    Told told;
    for (int32_t kind = 0; kind < MODELS; kind++) {
        rt_options o = opening_of(kind, &files[kind]);
        path_of(path, kind, "kept.csv");
        rt_engine *g = opened(&o);
        assert_int_equal(rt_experts_save(g, path, &e), RT_END);    /* all are in memory */
        assert_int_equal(access(path, F_OK), -1);
        rt_close(g);
        o.expert_ram = half(&o);
        o.expert_profile = path;                   /* there is none yet */
        g = opened(&o);
        tell(g, -1, 1, &told);
        const rt_expert_stats cold = stats_of(g);
        for (int32_t twice = 0; twice < 2; twice++) {
            if (rt_experts_save(g, path, &e) != RT_OK) fail_msg("%s", e.text);
            assert_int_equal(counted(path), cold.chosen);
        }
        tell(g, 20, 2, &told);
        assert_int_equal(rt_experts_save(g, path, &e), RT_OK);
        const int64_t both = stats_of(g).chosen;
        assert_true(both > cold.chosen && counted(path) == both);
        rt_close(g);
        g = opened(&o);
        assert_int_equal(stats_of(g).misses + stats_of(g).chosen + stats_of(g).missed_bytes, 0);
        tell(g, -1, 1, &told);
        same(&told, truth(kind), "after a seeded start");
        const rt_expert_stats warm = stats_of(g);
        assert_int_equal(warm.chosen, cold.chosen);
        if (warm.misses >= cold.misses)
            fail_msg("%s: %lld misses, %lld without a profile", model_name[kind], (long long) warm.misses,
                     (long long) cold.misses);
        assert_int_equal(rt_experts_save(g, path, &e), RT_OK);     /* adds to what is there */
        assert_int_equal(counted(path), both + warm.chosen);
        rt_close(g);
    }
}

static void expect_text(const char *text, const char *a, const char *b)
{
    if (!strstr(text, a) || !strstr(text, b) || strchr(text, '\n'))
        fail_msg("'%s', expected '%s' and '%s'", text, a, b);
}

/* Files of another model and damaged ones are refused by name, for reading and for adding to them, and left alone. */
static void wrong_profiles_are_left_alone(void **state)
{
    (void) state;
#define LINE "1,2,3,4,5,6,7,8\n"
    static const struct { const char *text, *says; } bad[] = {
        { "# hotness table: n_layer=9 n_expert=8 n_expert_used=2\n", "n_layer" },
        { "# hotness table: n_layer=4 n_expert=8 n_expert_used=2\n" LINE, "" },
        { "1,2,3,4,5,6,7,x\n" LINE LINE LINE, "x" }, { "\xff\xfe nothing", "" },
        { "# model: bytes=77 name=tiny\n" LINE LINE LINE LINE, "77" },
    };
    char path[160];
    rt_error e;
    Told told;
    rt_options o = opening_of(2, &files[2]);
    o.expert_ram = half(&o);
    path_of(path, 2, "bad.csv");
    rt_engine *g = opened(&o);
    tell(g, -1, 1, &told);
    o.expert_profile = path;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        fputs(bad[i].text, f);
        fclose(f);
        rt_engine *none;
        assert_int_equal(rt_experts_save(g, path, &e), RT_EFORMAT);
        expect_text(e.text, path, bad[i].says);
        assert_int_equal(rt_open(&none, &o, &e), RT_EFORMAT);
        assert_null(none);
        expect_text(e.text, path, bad[i].says);
        size_t n;
        char *now = content_of(path, &n);
        assert_string_equal(now, bad[i].text);
        free(now);
    }
    remove(path);
    assert_int_equal(rt_experts_save(g, path, &e), RT_OK);         /* nothing was taken for saved */
    assert_int_equal(counted(path), stats_of(g).chosen);
    assert_int_equal(rt_experts_save(g, "/no-such/x.csv", &e), RT_EIO);
    expect_text(e.text, "/no-such/x.csv", "");
    rt_close(g);
}

/* ---- cancelled and failed ---- */

/* Runs text i to its end. Passes may fail with that status, which is counted; each failure is one line with these
 * words. */
static int32_t run_through(rt_step *st, rt_session *s, const Told *of, int32_t i, rt_status may, const char *a,
                           const char *b)
{
    int32_t made = 0, failed = 0;
    begin(s, i);
    for (rt_block block = { .status = RT_OK }; block.status != RT_END; ) {
        const rt_status code = rt_step_run(st, &s, &block, 1);
        if (code != RT_OK) {
            if (code != may || failed > 1000) fail_msg("status %d: %s", (int) code, rt_step_error(st));
            expect_text(rt_step_error(st), a, b);
            if (failed++ > 2 && reads.to == ALL) reads.to = 0;     /* it does not last forever */
            continue;
        }
        for (int32_t j = 0; j < block.n; j++)
            if (made >= LENGTH || block.token[j] != of->text[i][made++]) fail_msg("text %d differs", i);
    }
    assert_int_equal(made, LENGTH);
    return failed;
}

typedef struct { rt_engine *g; rt_step *st; rt_session *s; const Told *truth; } Lone;

static void lone_open(Lone *l, int32_t kind, const PublicRig *p, bool little, const char *way)
{
    rt_options o = opening_of(kind, p);
    o.expert_ram = little ? least(&o) : half(&o);
    o.expert_io = way;
    l->truth = truth(kind);
    l->g = opened(&o);
    l->st = new_step(l->g, 20, 1 + kind % 2);
    l->s = new_session(l->g);
}

static void lone_close(Lone *l)
{
    rt_session_free(l->s);
    rt_step_free(l->st);
    rt_close(l->g);
}

/* Cancelled at a read, anywhere in the prompt or while text is made. */
static void cancelled_among_reads(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < MODELS; kind++) {
        Lone l;
        int32_t cancelled = 0;
        lone_open(&l, kind, &files[kind], kind / 2 % 2, kind % 2 ? "auto" : "pread");
        for (int32_t k = 0; k < 6; k++) {
            reads.step = l.st;
            reads.cancel_at = 3 * k * k;
            cancelled += run_through(l.st, l.s, l.truth, k % SESSIONS, RT_ECANCEL, "", "");
            clear_faults();
        }
        assert_true(cancelled > 2);
        lone_close(&l);
    }
}

static void failed_reads(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < MODELS; kind += 2) {
        Lone l;
        int32_t failed = 0;
        lone_open(&l, kind, &files[kind], kind / 2 % 2, kind % 2 ? "auto" : "pread");
        for (int32_t k = 0; k < 8; k++) {
            clear_faults();
            reads.from = k * k;
            reads.to = k % 4 == 3 ? ALL : reads.from + 1 + k % 3;
            reads.result = k % 2 ? -EIO : 0;
            const int32_t now = run_through(l.st, l.s, l.truth, k % SESSIONS, RT_EIO, files[kind].model,
                                            k % 2 ? "cannot be read: Input/output error" : "became shorter");
            if (atomic_load(&reads.calls) > reads.from && now == 0) fail_msg("a failed read was no failure");
            failed += now;
        }
        assert_true(failed > 3);
        /* a read that brings less than was asked for goes on */
        for (int32_t k = 0; k < 2; k++) {
            clear_faults();
            reads.to = ALL;
            reads.result = k % 2 ? 1000 : 4096;
            assert_int_equal(run_through(l.st, l.s, l.truth, k, RT_OK, "", ""), 0);
        }
        clear_faults();
        lone_close(&l);
    }
}

/* Two steps, of both of which now and then a read fails: neither waits for an expert that does not come. */
static void failures_of_several(void **state)
{
    (void) state;
    for (int32_t little = 0; little < 2; little++) {
        Lone l;
        pthread_t id;
        lone_open(&l, 4, &files[4], little, little ? "pread" : "auto");
        Runner r = { .g = l.g, .truth = l.truth, .index = 1, .rounds = 3, .may = RT_EIO };
        clear_faults();
        reads.every = 1009;
        reads.result = -EIO;
        assert_int_equal(pthread_create(&id, NULL, run_texts, &r), 0);
        int32_t failed = 0;
        for (int32_t k = 0; k < 3; k++)
            failed += run_through(l.st, l.s, l.truth, k, RT_EIO, files[4].model, "Input/output error");
        pthread_join(id, NULL);
        if (r.wrong[0]) fail_msg("%s", r.wrong);
        assert_true(failed + r.failed > 0);
        clear_faults();
        lone_close(&l);
    }
}

/* A pass whose reads fail says so to a step that waits for one of its experts or for its slot, and is not heard of
 * again. */
static void failures_wake_others(void **state)
{
    (void) state;
    for (int32_t k = 0; k < 8; k++) {
        Lone l;
        pthread_t id;
        rt_block b;
        struct timespec limit;
        lone_open(&l, 4, &files[4], true, "auto");  /* where reads are io_uring's, they end in the step's own thread */
        Runner r = { .g = l.g, .truth = l.truth, .index = 1, .rounds = 1, .spared = true };
        if (strncmp(stats_of(l.g).io, "io_uring", 8) != 0) r.may = RT_EIO;
        clear_faults();
        reads.to = ALL;
        reads.result = -EIO;
        begin(l.s, 0);
        assert_int_equal(pthread_create(&id, NULL, run_texts, &r), 0);
        for (int32_t ms = 0; stats_of(l.g).chosen == 0 && ms < 60000; ms++) usleep(1000);
        while (rt_step_run(l.st, &l.s, &b, 1) == RT_OK) {}
        if (r.may) clear_faults();
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += 60;
        if (pthread_timedjoin_np(id, NULL, &limit) != 0) fail_msg("the other step still waits");
        if (r.wrong[0]) fail_msg("%s", r.wrong);
        clear_faults();
        lone_close(&l);
    }
}

/* The file is cut short while it is open, and becomes whole again. */
static void a_file_that_is_cut(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < MODELS; kind += 2) {
        PublicRig copy;
        Lone l;
        size_t n;
        public_files(&copy, &model_options[kind]);
        char *content = content_of(copy.model, &n);
        lone_open(&l, kind, &copy, false, kind ? "pread" : "auto");
        for (int32_t round = 0; round < 2; round++) {
            rt_block b;
            assert_int_equal(truncate(copy.model, (off_t) (round ? 5000 : n / 4)), 0);
            begin(l.s, round);
            rt_status code = RT_OK;
            for (int32_t k = 0; k < 100 && code == RT_OK; k++) code = rt_step_run(l.st, &l.s, &b, 1);
            assert_int_equal(code, RT_EIO);
            expect_text(rt_step_error(l.st), copy.model, "the file became shorter while it was open");
            expect_text(rt_step_error(l.st), "at offset ", "");
            assert_int_equal(rt_step_run(l.st, &l.s, &b, 1), RT_EIO);
            FILE *f = fopen(copy.model, "r+b");
            assert_non_null(f);
            assert_int_equal(fwrite(content, 1, n, f), n);
            assert_int_equal(fclose(f), 0);
            assert_int_equal(run_through(l.st, l.s, l.truth, round, RT_OK, "", ""), 0);
        }
        lone_close(&l);
        free(content);
        remove_tree(copy.dir);
    }
}

/* ---- what the system refuses ---- */

static void refused_ways(void **state)
{
    (void) state;
    static const struct { int code; const char *says; } why[] = { { ENOSYS, "Function not implemented" },
                                                                  { EPERM, "Operation not permitted" } };
    rt_options o = opening_of(0, &files[0]);
    rt_engine *g;
    rt_error e;
    Told told;
    const bool uring = has_uring();
    o.expert_ram = half(&o);
    for (int32_t i = 0; i < 2; i++) {
        fault.setup = why[i].code;
        o.expert_io = "io_uring";
        assert_int_equal(rt_open(&g, &o, &e), RT_EUNSUPPORTED);
        assert_null(g);
        expect_text(e.text, "io_uring: ", uring ? why[i].says : "built without liburing");
        o.expert_io = i ? NULL : "auto";
        g = opened(&o);
        assert_int_equal(strncmp(stats_of(g).io, "pread", 5), 0);
        tell(g, 20, 1, &told);
        same(&told, truth(0), "without io_uring");
        rt_close(g);
    }
    fault.setup = 0;
    g = opened(&o);
    const bool direct = strstr(stats_of(g).io, ", direct");
    if (!direct) print_message("  this file system has no direct reads\n");
    rt_close(g);
    fault.direct = EINVAL;
    for (int32_t way = 0; way < 2; way++) {
        o.expert_io = way ? "pread" : "auto";
        g = opened(&o);
        assert_null(strstr(stats_of(g).io, "direct"));
        tell(g, 20, 1, &told);
        same(&told, truth(0), "through the page cache");
        rt_close(g);
    }
}

static void wrong_options_are_refused(void **state)
{
    (void) state;
    static const struct { int32_t slots; const char *io, *says; } bad[] = {
        { 1 << 20, NULL, "expert_slots: 1048576, expected 1 to " }, { -1, NULL, "expert_slots: -1, expected 1 to " },
        { 38, NULL, "expert_slots: 38 per layer take " }, { 0, "", "expert_io: '', expected auto" },
        { 0, "aio", "expert_io: 'aio', expected auto, io_uring, pread or mmap" },
    };
    rt_needs n;
    rt_error e;
    rt_engine *g;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rt_options o = opening_of(0, &files[0]);
        o.expert_ram = half(&o);
        o.expert_slots = bad[i].slots;
        o.expert_io = bad[i].io;
        assert_int_equal(rt_open(&g, &o, &e), RT_EARG);
        assert_null(g);
        expect_text(e.text, bad[i].says, "");
        assert_int_equal(planned(&o, &n, &e), RT_EARG);
        expect_text(e.text, bad[i].says, "");
    }
    for (int32_t kind = 0; kind < MODELS; kind++) {
        rt_options o = opening_of(kind, &files[kind]);
        const uint64_t enough = least(&o);
        o.expert_ram = enough - 1;
        assert_int_equal(rt_open(&g, &o, &e), RT_EARG);
        expect_text(e.text, "expert_ram: ", "expected at least ");
        o.expert_ram = UINT64_MAX - 1;             /* more than all take: none is read */
        g = opened(&o);
        assert_int_equal(stats_of(g).slots, 0);
        rt_close(g);
    }
}

/* Every allocation of opening and of the first pass fails once. */
static void no_memory_is_an_error(void **state)
{
    (void) state;
    char path[160];
    int32_t failed = 0;
    make_profile(4);
    path_of(path, 4, "used.csv");
    rt_options o = opening_of(4, &files[4]);
    o.expert_ram = half(&o);
    o.expert_profile = path;
    for (int32_t at = 1; ; at += PART) {
        rt_engine *g = NULL;
        rt_step *st = NULL;
        rt_session *s = NULL;
        rt_error e = { 0 };
        rt_block b;
        atomic_store(&fault.alloc_in, at);
        rt_status code = rt_open(&g, &o, &e);
        if (code == RT_OK) code = rt_step_new(&st, g, &RT_STEP_OPTIONS(.chunk = CHUNK), &e);
        if (code == RT_OK) code = rt_session_new(&s, g, &RT_SESSION_OPTIONS(.ctx = CTX), &e);
        if (code == RT_OK) {
            begin(s, 0);
            code = rt_step_run(st, &s, &b, 1);
            if (code != RT_OK) snprintf(e.text, sizeof e.text, "%s", rt_step_error(st));
        }
        const bool done = atomic_exchange(&fault.alloc_in, 0) > 0;
        if (code != RT_OK && (code != RT_ENOMEM || strlen(e.text) < 10))
            fail_msg("allocation %d: status %d: %s", at, (int) code, e.text);
        if (code != RT_OK && !s) assert_true(!g || rt_experts_save(g, path, &e) == RT_OK);
        failed += code != RT_OK;
        if (code == RT_OK && at % 16 == 1) run_through(st, s, truth(4), 0, RT_OK, "", "");
        rt_session_free(s);
        rt_step_free(st);
        rt_close(g);
        if (!done) continue;
        assert_int_equal(code, RT_OK);
        break;
    }
    assert_true(failed > 100 / PART);
}

/* ---- the plan ---- */

typedef struct { struct { char name[48]; size_t bytes; } part[64]; int32_t n; } Parts;

static void note(void *ud, const char *owner, const char *name, size_t bytes)
{
    Parts *p = ud;
    int32_t i = 0;
    (void) owner;
    while (i < p->n && strcmp(p->part[i].name, name) != 0) i++;
    assert_true(i < 64);
    if (i == p->n) snprintf(p->part[p->n++].name, sizeof p->part[0].name, "%s", name);
    p->part[i].bytes += bytes;
}

/* The plan's parts are what is allocated, and nothing is allocated later. */
static void the_plan_is_what_is_allocated(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < MODELS; kind++)
        for (int32_t ram = 0; ram < 3; ram++) {
            Parts plan = { .n = 0 };
            rt_error e;
            rt_step *st;
            rt_needs n;
            rt_options o = opening_of(kind, &files[kind]);
            o.backend = "noted";
            o.expert_ram = ram == 1 ? least(&o) : half(&o);
            o.no_repack = ram == 2;
            if (rt_plan(&o, &RT_SESSION_OPTIONS(.ctx = CTX), NULL, note, &plan, &n, sizeof n, &e) != RT_OK)
                fail_msg("%s", e.text);
            rt_engine *g = opened(&o);
            rt_session *s = new_session(g);
            if (rt_step_new(&st, g, NULL, &e) != RT_OK) fail_msg("%s", e.text);
            assert_int_equal(stats_of(g).bytes, n.expert_ram);
            int32_t found = 0;
            for (int32_t i = 0; i < plan.n; i++) {
                int32_t k = 0;
                while (k < n_taken && strcmp(taken[k].name, plan.part[i].name) != 0) k++;
                if (strcmp(plan.part[i].name, "experts") == 0) assert_int_equal(plan.part[i].bytes, n.expert_ram);
                if (k == n_taken) continue;
                found++;
                if (taken[k].bytes != plan.part[i].bytes)
                    fail_msg("%s, %s: %zu bytes, planned %zu", model_name[kind], taken[k].name, taken[k].bytes,
                             plan.part[i].bytes);
            }
            assert_int_equal(found, n_taken);
            assert_true(found > 4);
            size_t before = 0, after = 0;
            for (int32_t k = 0; k < n_taken; k++) before += taken[k].bytes;
            run_through(st, s, truth(kind), 0, RT_OK, "", "");
            for (int32_t k = 0; k < n_taken; k++) after += taken[k].bytes;
            assert_int_equal(before, after);
            rt_session_free(s);
            rt_step_free(st);
            rt_close(g);
        }
}

/* Memory for experts is used up to less than an expert, and prompts are read in larger chunks the more has to be read
 * for each. */
static void what_a_store_needs(void **state)
{
    (void) state;
    enum { LAYERS = 40, EXPERTS = 128 };
    static Tensor w[LAYERS][STACKS];
    static Stacked s[LAYERS];
    static const uint8_t mapped[1];
    StoreNeeds n;
    Error err = { 0 };
    for (int32_t il = 0; il < LAYERS; il++) {
        s[il].layer = il;
        for (int32_t p = 0; p < STACKS; p++) {
            const bool down = p == STACK_DOWN;
            w[il][p] = (Tensor) { .type = down && il % 3 == 0 ? T_Q6_K : T_Q4_K, .n = EXPERTS,
                                  .rows = down ? 2048 : 768, .cols = down ? 768 : 2048 };
            s[il].w[p] = &w[il][p];
            s[il].source[p] = (Source) { .map = mapped, .file = "x.gguf" };
        }
    }
    const uint64_t all = 14400ull << 20, most_slot = 3 << 20;      /* 5120 experts of 2.5 to 2.8 MiB */
    int32_t chunk_before = 1 << 20;
    for (int32_t in_place = 0; in_place < 2; in_place++)
        for (int32_t part = 1; part < 20; part++) {
            const StoreOptions o = { .ram = all * (uint64_t) part / 20, .layers = LAYERS, .used = 8 };
            assert_ok(expert_store_needs(&n, s, LAYERS, in_place, 256, 4096, &o, &err), &err);
            if (n.bytes == 0) continue;
            assert_true(n.bytes <= o.ram && n.bytes + 2 * most_slot > o.ram);
            if (part == 1) chunk_before = 1 << 20;
            assert_true(n.chunk <= chunk_before && n.chunk >= 256 && n.chunk <= 4096);
            if (part == 1) assert_int_equal(n.chunk, 4096);
            chunk_before = n.chunk;
        }
    assert_int_equal(chunk_before, 256);
    StoreOptions o = { .ram = all * 2, .layers = LAYERS, .used = 8 };
    assert_ok(expert_store_needs(&n, s, LAYERS, false, 256, 4096, &o, &err), &err);
    assert_int_equal(n.bytes, 0);
    o.ram = all / 3;
    s[5].source[1].map = NULL;                     /* converted while it is loaded */
    assert_int_equal(expert_store_needs(&n, s, LAYERS, false, 256, 4096, &o, &err), ST_UNSUPPORTED);
    expect_text(err.text, "the experts of layer 5 cannot be read from their file", "expert_ram: ");
    s[5].source[1].map = mapped;
    for (int32_t il = 0; il < LAYERS; il++) w[il][STACK_UP].rows += 64 * il;
    assert_int_equal(expert_store_needs(&n, s, LAYERS, false, 256, 4096, &o, &err), ST_UNSUPPORTED);
    expect_text(err.text, "experts of more than 16 different sizes", "expert_ram: ");
}

/* As many as there is room for beside the rest. */
static void as_many_as_fit(void **state)
{
    (void) state;
    PublicRig big;
    Parts plan;
    rt_needs whole, n;
    rt_error e;
    RigOptions r = rig_kind(5, false);
    r.tm.hidden = 256, r.tm.ff_expert = 128;       /* many experts, which take about half of what all takes */
    r.tm.n_layer = 2;
    r.tm.n_expert = 32;
    public_files(&big, &r);
    rt_options o = RT_OPTIONS(.model = big.model, .backend = "noted", .threads = 1, .expert_ram = RT_EXPERTS_AUTO);
    left = 1ull << 40;
    if (rt_plan(&o, NULL, NULL, note, memset(&plan, 0, sizeof plan), &whole, sizeof whole, &e) != RT_OK)
        fail_msg("%s", e.text);
    assert_int_equal(whole.expert_ram, 0);
    const uint64_t all = whole.model + whole.session + whole.step, rest = all - whole.expert_bytes;
    uint64_t before = 0;
    for (uint64_t part = 1; part < 8; part++) {
        left = (rest + whole.expert_bytes * part / 8) * 16 / 15;
        if (rt_plan(&o, NULL, NULL, note, memset(&plan, 0, sizeof plan), &n, sizeof n, &e) != RT_OK)
            fail_msg("%s", e.text);
        assert_true(n.expert_ram > before && n.expert_ram < whole.expert_bytes);
        assert_true(n.model + n.session + n.step <= left);
        if (part > 1) assert_true(n.expert_ram + (2 << 20) > whole.expert_bytes * part / 8);
        before = n.expert_ram;
        rt_engine *g = opened(&o);
        assert_int_equal(stats_of(g).bytes, n.expert_ram);
        rt_close(g);
    }
    left = all * 5 / 4;                            /* all fit */
    assert_int_equal(rt_plan(&o, NULL, NULL, NULL, NULL, &n, sizeof n, &e), RT_OK);
    assert_int_equal(n.expert_ram, 0);
    left = 0;                                      /* unknown */
    assert_int_equal(rt_plan(&o, NULL, NULL, NULL, NULL, &n, sizeof n, &e), RT_OK);
    assert_int_equal(n.expert_ram, 0);
    left = whole.expert_bytes / 32;                /* not even the rest */
    rt_engine *g;
    assert_int_equal(rt_open(&g, &o, &e), RT_ENOMEM);
    expect_text(e.text, big.model, "of memory are free");
    remove_tree(big.dir);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
#define CASE(name) cmocka_unit_test_setup_teardown(name, no_faults, no_faults)
    const struct CMUnitTest tests[] = {
        CASE(the_same_text), CASE(several_steps_at_once), CASE(figures_of_passes), CASE(what_was_used_is_kept),
        CASE(wrong_profiles_are_left_alone), CASE(cancelled_among_reads), CASE(failed_reads),
        CASE(failures_of_several), CASE(failures_wake_others), CASE(a_file_that_is_cut), CASE(refused_ways),
        CASE(wrong_options_are_refused),
        CASE(no_memory_is_an_error), CASE(the_plan_is_what_is_allocated), CASE(what_a_store_needs),
        CASE(as_many_as_fit),
    };
    return cmocka_run_group_tests_name("experts", tests, make_models, remove_models);
}
