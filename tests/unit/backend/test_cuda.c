/* The host's side of the CUDA backend over the emulated driver, which RATOON_CUDA_DRIVER names: what is said of drivers
 * and cards that cannot be used, what happens if any call of the driver fails, recorded passes, decoding.
 *     test_cuda [CASE]              test_cuda --device [CASE]    what can be shown on a card, by whatever driver */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu_driver.h"
#include "model_helper.h"
#include "part.h"

static FakeCuda *fake;
static bool on_device;                             /* fake is nobody's, and what it counts is not known */

static FakeCuda *emulated(void)
{
    FakeCuda *f = gpu_emulated();
    if (!f) fail_msg("RATOON_CUDA_DRIVER: expected build/libfake_cuda.so (make run-test_cuda)");
    return f;
}

static Status open_named(Backend **out, const char *name, Error *err)
{
    return backend_open(out, name, &(BackendOptions) { .threads = 1 }, err);
}

/* ---- drivers that cannot be used: a process loads one driver, so each is given to another process ---- */

typedef struct { const char *driver; int32_t version; int64_t fail_in; } Given;

static Error opened_by_another(const Given *g)
{
    int ends[2], status;
    Error err = { 0 };
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        Backend *b;
        if (g->version) emulated()->version = g->version;
        if (g->fail_in) emulated()->fail_in = g->fail_in, emulated()->fail_with = 999;
        if (g->driver) cuda_driver_name(g->driver);
        const Status st = open_named(&b, "cuda", &err);
        _exit(st != ST_OK && st == err.code && write(ends[1], &err, sizeof err) == sizeof err ? 0 : 1);
    }
    assert_int_equal(read(ends[0], &err, sizeof err), sizeof err);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(ends[0]);
    close(ends[1]);
    return err;
}

static void expect_error(const Error *err, Status code, const char *const *words)
{
    assert_int_equal(err->code, code);
    assert_null(strchr(err->text, '\n'));
    for (; *words; words++)
        if (!strstr(err->text, *words)) fail_msg("'%s', expected '%s' in it", err->text, *words);
}
#define WORDS(...) (const char *const[]) { __VA_ARGS__, NULL }

static void drivers(void **state)
{
    (void) state;
    assert_null(fake);                             /* this process has loaded none yet */
    Error err = opened_by_another(&(Given) { .driver = "/nonexistent/libcuda.so" });
    expect_error(&err, ST_UNSUPPORTED, WORDS("no NVIDIA driver", "/nonexistent/libcuda.so", "--gpus all"));
    err = opened_by_another(&(Given) { .driver = "libm.so.6" });
    expect_error(&err, ST_BACKEND, WORDS("libm.so.6", "lacks cuInit", "NVIDIA's driver 5", " or newer"));
    err = opened_by_another(&(Given) { .version = 11080 });
    expect_error(&err, ST_BACKEND, WORDS("CUDA 11.8", "NVIDIA's driver 5", " or newer"));
    for (int32_t call = 1; call <= 2; call++) {
        err = opened_by_another(&(Given) { .fail_in = call });
        expect_error(&err, ST_BACKEND, WORDS("starting the driver", "unknown error", "999"));
    }
}

/* ---- cards ---- */

static int load(void **state)
{
    (void) state;
    static FakeCuda nobodys = { .devices = 1 };
    fake = on_device ? &nobodys : emulated();
    if (on_device) gpu_driver();
    return 0;
}

static void refused(const char *name, Status code, const char *const *words)
{
    Backend *b;
    Error err = { 0 };
    assert_int_equal(open_named(&b, name, &err), code);
    assert_null(b);
    expect_error(&err, code, words);
    assert_int_equal(fake->live, 0);
}

static void cards(void **state)
{
    (void) state;
    static const char *const none[] = { "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda:99999999999999999999" };
    Backend *b;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) refused(none[i], ST_ARG, WORDS("cuda device", none[i] + 5));
    refused("cuda:9", ST_UNSUPPORTED, WORDS("device 9", "expected 0 to 0", "CUDA_VISIBLE_DEVICES"));
    fake->devices = 0;
    refused("cuda", ST_UNSUPPORTED, WORDS("no device", "CUDA_VISIBLE_DEVICES"));
    fake->devices = 2;
    refused("cuda:2", ST_UNSUPPORTED, WORDS("device 2", "expected 0 to 1"));
    fake->no_kernels = true;
    refused("cuda:1", ST_UNSUPPORTED, WORDS("no kernels for emulated GPU (sm_90)", "make cuda CUDA_ARCHS=90"));
    fake->cc = 61;
    refused("cuda", ST_UNSUPPORTED, WORDS("sm_61", "sm_75 or newer"));
    fake->no_kernels = false;
    fake->cc = 90;
    assert_int_equal(open_named(&b, "cuda:1", NULL), ST_OK);
    assert_string_equal(b->name, "cuda:1");
    b->close(b);
    fake->devices = 1;
    assert_int_equal(fake->live, 0);
}

/* What `ratoon doctor` prints, and what is known without opening a card. */
static void cards_described(void **state)
{
    (void) state;
    BackendCard card;
    Error err = { 0 };
    fake->devices = 2;
    for (int32_t k = 0; k < 4; k++) {
        const int32_t i = k % 2;
        const bool open = k / 2;
        fake->no_kernels = i;
        assert_ok(backend_card(&card, "cuda", i, open, &err), &err);
        assert_string_equal(card.backend, i ? "cuda:1" : "cuda:0");
        assert_string_equal(card.name, "emulated GPU");
        assert_string_equal(card.level, "sm_90");
        assert_string_equal(card.driver, "CUDA 13.0");
        assert_true(card.memory > (uint64_t) 1 << 30);
        assert_int_equal(card.why[0] != 0, open && i);
        assert_int_equal(fake->live, 0);
    }
    assert_int_equal(backend_card(&card, "cuda", 2, true, &err), ST_END);
    fake->no_kernels = false;
    fake->cc = 61;
    assert_ok(backend_card(&card, "cuda", 0, false, &err), &err);
    assert_non_null(strstr(card.why, "sm_75 or newer"));
    fake->cc = 90;
    fake->memory = (int64_t) 3 << 30;
    fake->card_memory[1] = (int64_t) 2 << 30, fake->card_cc[1] = 86;
    for (int32_t i = 0; i < 2; i++) {
        assert_ok(backend_card(&card, "cuda", i, true, &err), &err);
        assert_string_equal(card.level, i ? "sm_86" : "sm_90");
        assert_int_equal(card.memory, (uint64_t) (i ? 2 : 3) << 30);
        assert_int_equal(card.free, card.memory);
    }
    fake->memory = fake->card_memory[1] = fake->card_cc[1] = 0;
    fake->devices = 0;
    assert_int_equal(backend_card(&card, "cuda", 0, true, &err), ST_UNSUPPORTED);
    expect_error(&err, ST_UNSUPPORTED, WORDS("no device", "CUDA_VISIBLE_DEVICES"));
    fake->devices = 1;
    assert_int_equal(backend_card(&card, "cpu", 0, true, &err), ST_UNSUPPORTED);
    assert_int_equal(fake->live, 0);
}

/* ---- one turn of work: upload, passes, a wait ---- */

enum { ROWS = 5, COLS = 64, TABLE = 9, PASSES = 3 };
typedef struct { float y[PASSES][ROWS * COLS]; } Result;
typedef struct { void *table, *ids, *x, *y; } Memory;

static Memory take(Backend *b)
{
    const size_t rows = sizeof(float) * ROWS * COLS;
    return (Memory) { b->alloc(b, b->weight_bytes(b, T_F32, TABLE, COLS), "table"),
                      b->alloc(b, sizeof(int32_t) * ROWS, "ids"), b->alloc(b, rows, "x"), b->alloc(b, rows, "y") };
}

static void drop(Backend *b, const Memory *m)
{
    b->release(b, m->table, b->weight_bytes(b, T_F32, TABLE, COLS));
    b->release(b, m->ids, sizeof(int32_t) * ROWS);
    b->release(b, m->x, sizeof(float) * ROWS * COLS);
    b->release(b, m->y, sizeof(float) * ROWS * COLS);
}

/* y = norm(embedded rows + y) */
static void calls(Backend *b, const Memory *m)
{
    const Tensor table = { .type = T_F32, .rows = TABLE, .cols = COLS, .data = m->table },
                 ids = { .type = T_I32, .rows = 1, .cols = ROWS, .data = m->ids };
    Tensor x = { .type = T_F32, .rows = ROWS, .cols = COLS, .data = m->x }, y = x;
    y.data = m->y;
    b->embed(b, &x, &table, &ids);
    b->add(b, &x, &y);
    b->norm(b, &y, &x, NULL, 1e-5f);
}

static void pass(Backend *b, const Memory *m)
{
    if (b->pass_begin(b, m, sizeof *m)) return;
    calls(b, m);
    b->pass_end(b, true);
}

static void record(Backend *b, const Memory *m)
{
    b->prepare(b, true);
    pass(b, m);
    b->prepare(b, false);
}

/* A pass of one key after another, recorded or not, whose results are copied out each time. */
static Status turn(Backend *b, bool recorded, Result *out, Error *err)
{
    static const int32_t id[ROWS] = { 3, 1, 4, 1, 5 };
    float value[TABLE * COLS];
    for (int32_t i = 0; i < TABLE * COLS; i++) value[i] = (float) (i * 37 % 101) / 16 - 3;
    const Memory m = take(b);
    Tensor table = { .type = T_F32, .rows = TABLE, .cols = COLS, .data = m.table };
    memset(out, 0, sizeof *out);
    b->upload(b, &table, 0, value, 0, TABLE);
    b->copy_in(b, m.ids, id, sizeof id);
    b->fill(b, m.y, 0, sizeof out->y[0]);
    if (recorded) record(b, &m);
    for (int32_t i = 0; i < PASSES; i++) {
        pass(b, &m);
        b->copy(b, m.x, m.y, sizeof out->y[0]);
        b->copy_out(b, out->y[i], m.x, sizeof out->y[i]);
    }
    const Status st = b->sync(b, err);
    const int64_t fail_in = fake->fail_in;
    fake->fail_in = 0;                             /* see releases_fail */
    drop(b, &m);
    fake->fail_in = fail_in;
    return st;
}

typedef struct { Backend *opened, *fork; } Pair;

static Status open_pair(Pair *p, Error *err)
{
    *p = (Pair) { 0 };
    TRY(open_named(&p->opened, "cuda", err));
    return p->opened->fork(p->opened, 0, &p->fork, err);
}

static void close_pair(Pair *p)
{
    if (p->fork) p->fork->close(p->fork);
    if (p->opened) p->opened->close(p->opened);
}

/* Of passes that are not recorded. */
static Result right(void)
{
    Pair p;
    Result r;
    Error err = { 0 };
    if (open_pair(&p, &err) != ST_OK || turn(p.fork, false, &r, &err) != ST_OK) fail_msg("%s", err.text);
    close_pair(&p);
    assert_int_equal(fake->live, 0);
    assert_memory_not_equal(r.y[0], r.y[1], sizeof r.y[0]);
    return r;
}

/* The n-th call of the driver fails, for each n until all work is done without: that is reported, the next turn of the
 * same fork is as if nothing had happened, and nothing stays behind. Where it was the recording that failed, passes run
 * all the same. */
static void fail_each(int32_t code, Status as, const char *says)
{
    const Result want = right();
    int32_t n = 1, unrecorded = 0;
    for (bool failed = true; failed; n++) {
        Pair p;
        Result got;
        Error err = { 0 };
        fake->fail_in = n;
        fake->fail_with = code;
        Status st = open_pair(&p, &err);
        if (st == ST_OK) st = turn(p.fork, true, &got, &err);
        failed = fake->fail_in == 0;
        fake->fail_in = 0;
        const bool ran = failed && st == ST_OK;
        unrecorded += ran;
        if (st != ST_OK && (!failed || (as != ST_OK && st != as) || !strstr(err.text, says)))
            fail_msg("call %d failed: status %d, '%s'", (int) n, (int) st, err.text);
        if (ran) assert_memory_equal(&got, &want, sizeof want);
        if (failed && p.fork && turn(p.fork, true, &got, &err) != ST_OK)
            fail_msg("a turn after call %d had failed: %s", (int) n, err.text);
        if (p.fork) assert_memory_equal(&got, &want, sizeof want);
        close_pair(&p);
        assert_int_equal(fake->live, 0);
    }
    assert_true(n > 60 && unrecorded > 5 && unrecorded < 20);
}

static void calls_fail(void **state)
{
    (void) state;
    fail_each(719, ST_OK, "cuda");
}

static void memory_fails(void **state)
{
    (void) state;
    fail_each(2, ST_MEMORY, "memory");
}

/* The same while everything is released and closed: nobody is told, and nothing stays behind. */
static void releases_fail(void **state)
{
    (void) state;
    bool failed = true;
    for (int32_t n = 1; failed; n++) {
        Pair p;
        Result r;
        assert_int_equal(open_pair(&p, NULL), ST_OK);
        assert_int_equal(turn(p.fork, true, &r, NULL), ST_OK);
        const Memory m = take(p.fork);
        fake->fail_in = n;
        fake->fail_with = 719;
        drop(p.fork, &m);
        close_pair(&p);
        failed = fake->fail_in == 0;
        fake->fail_in = 0;
        assert_int_equal(fake->live, 0);
    }
}

/* After the first failure nothing runs until sync has reported it; what came before has run. */
static void failures_stick(void **state)
{
    (void) state;
    Pair p;
    Error err = { 0 };
    uint8_t got[3] = { 0 };
    assert_int_equal(open_pair(&p, &err), ST_OK);
    Backend *b = p.fork;
    uint8_t *m = b->alloc(b, 64, "x");
    b->fill(b, m, 1, 64);
    fake->fail_in = 2;                             /* after the context is made current */
    fake->fail_with = 719;
    b->fill(b, m + 1, 2, 1);
    b->fill(b, m + 2, 3, 1);
    assert_null(b->alloc(b, 64, "y"));
    b->copy_out(b, got, m, sizeof got);
    assert_int_equal(b->sync(b, &err), ST_BACKEND);
    expect_error(&err, ST_BACKEND, WORDS("filling memory", "719"));
    assert_memory_equal(got, "\0\0\0", 3);
    b->copy_out(b, got, m, sizeof got);
    assert_int_equal(b->sync(b, &err), ST_OK);
    assert_memory_equal(got, "\1\1\1", 3);
    b->release(b, m, 64);
    close_pair(&p);
    assert_int_equal(fake->live, 0);
}

/* What fails and goes on failing is another error than what has failed once, on forks and on the backend itself. */
static void lost(void **state)
{
    (void) state;
    Pair p;
    Error err = { 0 };
    uint8_t got = 0;
    assert_int_equal(open_pair(&p, &err), ST_OK);
    Backend *const of[] = { p.fork, p.opened };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        Backend *b = of[i];
        uint8_t *m = b->alloc(b, 64, "x");
        fake->lost = true;
        for (int32_t again = 0; again < 2; again++) {
            b->copy_out(b, &got, m, 1);
            assert_int_equal(b->sync(b, &err), ST_LOST);
            expect_error(&err, ST_LOST, WORDS("cuda: ", "700", "the card's context is lost: start the program again"));
        }
        assert_null(b->alloc(b, 64, "y"));
        assert_int_equal(b->sync(b, &err), ST_LOST);
        fake->lost = false;
        b->release(b, m, 64);
    }
    close_pair(&p);
    assert_int_equal(fake->live, 0);
}

/* What a kernel has found wrong is of the pass that the host has given up, and not of the next. */
static void both_fail(void **state)
{
    (void) state;
    static const int32_t id[2][ROWS] = { { 3, 1, TABLE, 1, 5 }, { 3, 1, 4, 1, 5 } };
    Pair p;
    Error err = { 0 };
    assert_int_equal(open_pair(&p, &err), ST_OK);
    Backend *b = p.fork;
    const Memory m = take(b);
    for (int32_t good = 0; good < 2; good++) {
        b->copy_in(b, m.ids, id[good], sizeof id[good]);
        calls(b, &m);
        if (!good) assert_null(b->alloc(b, (size_t) 1 << 62, "x"));
        assert_int_equal(b->sync(b, &err), good ? ST_OK : ST_MEMORY);
    }
    drop(b, &m);
    close_pair(&p);
}

/* Pairs with every kind of DFlash drafter and, last, the target's own layer. */
enum { PAIRS = RIG_KINDS + 1 };
static RigOptions pair(int32_t kind, const char *backend)
{
    static const DraftKind drafts[RIG_KINDS] = { [1] = DRAFT_DFLASH2, [3] = DRAFT_LIBRARY, [5] = DRAFT_DSPARK,
                                                 [7] = DRAFT_LAGUNA };
    RigOptions o = kind == RIG_KINDS ? rig_with_mtp(rig_kind(2, false))
                                     : rig_with_draft_kind(rig_kind(kind, false), drafts[kind]);
    o.backend = backend;
    return o;
}

/* A session for which there is no memory: the next one is not refused because of it. */
static void sessions_fail(void **state)
{
    (void) state;
    Rig gpu;
    RigOptions o = pair(1, "cuda");
    rig_open(&gpu, &o);
    const int64_t live = fake->live;
    bool failed = true;
    int32_t n = 1;
    for (; failed; n++) {
        Session s;
        Error err = { 0 };
        fake->fail_in = n;
        fake->fail_with = 2;
        const Status st = session_open(&s, gpu.m, gpu.dm, 200, 0, 1, false, &err);
        failed = fake->fail_in == 0;
        fake->fail_in = 0;
        assert_int_equal(st, failed ? ST_MEMORY : ST_OK);
        if (failed) assert_ok(session_open(&s, gpu.m, gpu.dm, 200, 0, 1, false, &err), &err);
        session_close(&s);
        assert_int_equal(fake->live, live);
    }
    assert_true(n > 20);
    rig_close(&gpu);
}

/* ---- recorded passes ---- */

/* There is room for so many records; passes of other keys run as well. A recording that is cancelled leaves none. */
static void many_records(void **state)
{
    (void) state;
    enum { KEYS = 400 };
    Pair p;
    Error err = { 0 };
    float got[16];
    assert_int_equal(open_pair(&p, &err), ST_OK);
    Backend *b = p.fork;
    void *m = b->alloc(b, sizeof got, "x");
    Tensor x = { .type = T_F32, .rows = 1, .cols = 16, .data = m };
    const int64_t before = fake->live;
    int64_t live = before;
    int32_t room = 0;
    for (int32_t twice = 0; twice < 2; twice++)
        for (int32_t i = 0; i < KEYS; i++) {
            b->prepare(b, true);
            const bool full = b->pass_begin(b, &i, sizeof i);
            if (!full) {
                b->scale(b, &x, 2, 0);
                b->pass_end(b, twice);
            }
            b->prepare(b, false);
            if (!twice) assert_false(full);
            if (twice && !full) room = i + 1, live += !on_device;
            assert_int_equal(fake->live, live);
        }
    assert_in_range(room, 100, KEYS - 1);
    for (int32_t i = 0; i < KEYS; i++) {
        const int64_t replays = fake->replays;
        for (int32_t k = 0; k < 16; k++) got[k] = (float) (i + k);
        b->copy_in(b, m, got, sizeof got);
        const bool replayed = b->pass_begin(b, &i, sizeof i);
        if (!replayed) {
            b->scale(b, &x, 2, 0);
            b->pass_end(b, true);
        }
        b->copy_out(b, got, m, sizeof got);
        assert_int_equal(b->sync(b, &err), ST_OK);
        assert_int_equal(replayed, i < room);
        assert_int_equal(fake->replays - replays, replayed && !on_device);
        for (int32_t k = 0; k < 16; k++) assert_true(got[k] == 2 * (float) (i + k));
    }
    assert_int_equal(fake->live, live);
    b->release(b, m, sizeof got);
    close_pair(&p);
    assert_int_equal(fake->live, 0);
}

/* As many passes are recorded as the memory is enough for that was planned, whatever one takes; and all run where the
 * driver does not record. */
static void few_records(void **state)
{
    (void) state;
    enum { EACH = 3 << 20, KEYS = 100 };
    for (int32_t none = 0; none < 2; none++) {
        Pair p;
        Error err = { 0 };
        float got[16] = { 0 };
        fake->memory = (int64_t) 1 << 30;
        fake->graph_bytes = EACH;
        fake->unrecorded = none;
        assert_ok(open_pair(&p, &err), &err);
        Backend *b = p.fork;
        void *m = b->alloc(b, sizeof got, "x");
        Tensor x = { .type = T_F32, .rows = 1, .cols = 16, .data = m };
        const int64_t before = fake->device_bytes, live = fake->live, replays = fake->replays;
        const int32_t room = none ? 0 : (int32_t) ((64 << 20) / EACH);
        b->prepare(b, true);
        for (int32_t i = 0; i < KEYS; i++)
            if (!b->pass_begin(b, &i, sizeof i)) {
                b->scale(b, &x, 2, 0);
                b->pass_end(b, true);
            }
        b->prepare(b, false);
        assert_ok(b->sync(b, &err), &err);
        assert_int_equal(fake->device_bytes, before + (int64_t) room * EACH);
        assert_int_equal(fake->live, live + room);
        for (int32_t k = 0; k < 16; k++) got[k] = 1;
        b->copy_in(b, m, got, sizeof got);
        for (int32_t i = 0; i < KEYS; i++)
            if (!b->pass_begin(b, &i, sizeof i)) {
                b->scale(b, &x, -1, 0);
                b->pass_end(b, true);
            }
        b->copy_out(b, got, m, sizeof got);
        assert_ok(b->sync(b, &err), &err);
        assert_int_equal(fake->replays, replays + room);
        for (int32_t k = 0; k < 16; k++) assert_true(got[k] == ldexpf((KEYS - room) % 2 ? -1 : 1, room));
        b->release(b, m, sizeof got);
        close_pair(&p);
        assert_int_equal(fake->live, 0);
    }
    fake->memory = fake->graph_bytes = 0;
    fake->unrecorded = false;
}

/* A replay for which there is no memory: the pass is launched, then and from then on. */
static void replay_without_memory(void **state)
{
    (void) state;
    const int32_t key = 7;
    Pair p;
    Error err = { 0 };
    float got[16];
    assert_ok(open_pair(&p, &err), &err);
    Backend *b = p.fork;
    void *m = b->alloc(b, sizeof got, "x");
    Tensor x = { .type = T_F32, .rows = 1, .cols = 16, .data = m };
    b->prepare(b, true);
    assert_false(b->pass_begin(b, &key, sizeof key));
    b->scale(b, &x, 2, 0);
    b->pass_end(b, true);
    b->prepare(b, false);
    const int64_t live = fake->live;
    for (int32_t i = 0; i < 3; i++) {
        for (int32_t k = 0; k < 16; k++) got[k] = (float) (i + k);
        b->copy_in(b, m, got, sizeof got);
        /* the context is made current, then the record is replayed */
        if (i == 1) fake->fail_in = 2, fake->fail_with = 2;
        assert_int_equal(b->pass_begin(b, &key, sizeof key), i == 0);
        assert_int_equal(fake->fail_in, 0);
        if (i > 0) b->scale(b, &x, 2, 0);
        if (i > 0) b->pass_end(b, true);
        b->copy_out(b, got, m, sizeof got);
        assert_ok(b->sync(b, &err), &err);
        for (int32_t k = 0; k < 16; k++) assert_true(got[k] == 2 * (float) (i + k));
    }
    assert_int_equal(fake->live, live - 1);
    b->release(b, m, sizeof got);
    close_pair(&p);
    assert_int_equal(fake->live, 0);
}

/* ---- decoding ---- */

/* After the first step, which reads the prompt, nothing is taken, recorded or loaded, every pass is a replay (only the
 * drawing of tokens is launched), and a step waits at most twice, with the target's own layer once for each depth; the
 * text is the CPU's. */
static void decode(int32_t kind, int32_t sessions, int32_t budget)
{
    enum { DRAWING = 5 };
    Rig cpu, gpu;
    Loop l;
    int32_t truth[PROMPT + TEXT + AHEAD], going = sessions;
    int64_t drafts = 0;
    RigOptions o = pair(kind, NULL), on = pair(kind, "cuda");
    rig_open(&cpu, &o);
    make_truth(&cpu, 1, 7, truth);
    rig_close(&cpu);
    rig_open(&gpu, &on);
    loop_open(&l, &gpu, NULL, &(LoopOptions) { .budget = budget, .sessions = sessions, .chunk = PROMPT,
                                               .ngram = budget == BUDGET_AUTO });
    Session *s[2];
    for (int32_t i = 0; i < sessions; i++) {
        s[i] = loop_session(&l);
        assert_ok(session_prompt(s[i], truth, PROMPT, &l.err), &l.err);
        s[i]->line.sampling = sampling_mode(1);
        s[i]->line.max_tokens = TEXT;
    }
    for (int32_t i = 0; i < sessions; i++) assert_ok(spec_step(&l.sp, s, sessions, &l.err), &l.err);
    assert_int_equal(s[sessions - 1]->line.n_made, 0);
    fake->sealed = true;
    fake->refused = 0;
    while (going > 0) {
        const FakeCuda before = *fake;
        int64_t had = 0, asked = 0;
        for (int32_t i = 0; i < sessions; i++) had += s[i]->stats.drafts;
        assert_ok(spec_step(&l.sp, s, sessions, &l.err), &l.err);
        for (int32_t i = going = 0; i < sessions; i++) {
            if (s[i]->line.status != ST_OK && s[i]->line.status != ST_END) fail_msg("%s", s[i]->line.error.text);
            going += s[i]->line.status == ST_OK;
            asked += s[i]->stats.drafts;
        }
        drafts += asked -= had;
        if (on_device || (going == 0 && fake->waits == before.waits)) continue;      /* nothing was left to do */
        const int64_t depths = asked == 0 ? 0 : gpu.dm->hold ? gpu.dm->block - 1 : 1;
        assert_in_range(fake->waits - before.waits, 1 + (depths > 0), 1 + depths);
        assert_true(fake->replays - before.replays >= fake->waits - before.waits);
        assert_int_equal(fake->launches - before.launches, DRAWING);
    }
    fake->sealed = false;
    assert_int_equal(fake->refused, 0);
    assert_true(budget == BUDGET_AUTO || (drafts > 0) == (budget > 0));
    for (int32_t i = 0; i < sessions; i++) {
        assert_same(s[i]->line.text, truth, sizeof *truth * (PROMPT + TEXT), "kind %d, session %d, budget %d", kind, i,
                    budget);
        loop_free(s[i]);
    }
    loop_close(&l);
    rig_close(&gpu);
    assert_int_equal(fake->live, 0);
}

static void decoding(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < PAIRS; kind++) {
        if (part_runs()) decode(kind, 1, 12);
        if (kind == 2 && part_runs()) decode(kind, 1, BUDGET_PLAIN);
        if (kind % 2 && part_runs()) decode(kind, 2, BUDGET_AUTO);
    }
}

/* More shapes than there is room for, since the context is long and sessions are many: those of short texts are
 * recorded for every number of sessions, and so is what each session's step needs besides. */
static void many_sessions(void **state)
{
    (void) state;
    enum { SESSIONS = 12, STEPS = 4, DRAWING = 5 };
    Rig gpu;
    Loop l;
    Session *s[SESSIONS];
    Dice d = { tiny_key(5, "sessions"), 0 };
    RigOptions on = pair(1, "cuda");
    rig_open(&gpu, &on);
    loop_open(&l, &gpu, NULL, &(LoopOptions) { .budget = 4, .ctx = 65536, .sessions = SESSIONS, .chunk = PROMPT });
    for (int32_t i = 0; i < SESSIONS; i++) {
        int32_t prompt[PROMPT];
        random_tokens(&d, PROMPT, on.tm.vocab, prompt);
        s[i] = loop_session(&l);
        assert_ok(session_prompt(s[i], prompt, PROMPT, &l.err), &l.err);
        s[i]->line.max_tokens = TEXT;
    }
    for (int32_t i = 0; i < SESSIONS; i++) assert_ok(spec_step(&l.sp, s, SESSIONS, &l.err), &l.err);
    fake->sealed = true;
    fake->refused = 0;
    for (int32_t i = 0; i < STEPS; i++) {
        const FakeCuda before = *fake;
        for (int32_t k = 0; k < SESSIONS; k++) assert_int_equal(s[k]->line.status, ST_OK);
        assert_ok(spec_step(&l.sp, s, SESSIONS, &l.err), &l.err);
        if (on_device) continue;
        assert_true(fake->replays - before.replays >= 2);
        assert_int_equal(fake->launches - before.launches, DRAWING);
    }
    fake->sealed = false;
    assert_int_equal(fake->refused, 0);
    for (int32_t i = 0; i < SESSIONS; i++) loop_free(s[i]);
    loop_close(&l);
    rig_close(&gpu);
}

static rt_session *prompted(rt_engine *g, const int32_t *text, size_t n, int32_t more)
{
    rt_error e;
    rt_session *s;
    if (rt_session_new(&s, g, &RT_SESSION_OPTIONS(.ctx = 200), &e) != RT_OK) fail_msg("%s", e.text);
    assert_int_equal(rt_sampling_set(s, &RT_SAMPLING(.temperature = 0.8f, .seed = 3, .max_tokens = more)), RT_OK);
    if (n) assert_int_equal(rt_prompt(s, text, n), RT_OK);
    return s;
}

static void to_the_end(rt_step *st, rt_session *s)
{
    rt_block b = { .status = RT_OK };
    while (b.status == RT_OK)
        if (rt_step_run(st, &s, &b, 1) != RT_OK) fail_msg("%s", rt_step_error(st));
    assert_int_equal(b.status, RT_END);
}

/* A session saved on the CPU has the bytes of one saved on the card, and each continues on the other. */
static void images_of(const RigOptions *o, const char *kv_k, const char *kv_v)
{
    enum { CPU, CARD, ENGINES };
    PublicRig p;
    rt_error e;
    rt_engine *g[ENGINES];
    rt_step *st[ENGINES];
    uint8_t *image[ENGINES];
    int32_t prompt[PROMPT], text[2][200];
    size_t n[ENGINES], n_text[2] = { 0 };
    Dice d = { tiny_key(3, "images"), 0 };
    public_files(&p, o);
    random_tokens(&d, PROMPT, o->tm.vocab, prompt);
    for (int32_t i = 0; i < ENGINES; i++) {
        const int32_t *held;
        const rt_options ro = RT_OPTIONS(.model = p.model, .draft = p.draft, .threads = 1, .kv_k = kv_k, .kv_v = kv_v,
                                         .backend = i == CARD ? "cuda" : "cpu");
        if (rt_open(&g[i], &ro, &e) != RT_OK) fail_msg("%s", e.text);
        assert_int_equal(rt_step_new(&st[i], g[i], &RT_STEP_OPTIONS(.budget = 9), &e), RT_OK);
        rt_session *s = prompted(g[i], prompt, PROMPT, TEXT);
        to_the_end(st[i], s);
        n_text[i] = rt_session_text(s, &held);
        memcpy(text[i], held, sizeof *held * n_text[i]);
        const int32_t at = rt_save_place(s, (int32_t) n_text[i]);
        assert_true(at > PROMPT);
        n[i] = rt_save_bytes(s, at);
        image[i] = calloc(1, n[i]);
        assert_non_null(image[i]);
        assert_int_equal(rt_save(st[i], s, at, image[i], n[i]), RT_OK);
        rt_session_free(s);
    }
    assert_int_equal(n_text[CPU], n_text[CARD]);
    assert_same(text[CARD], text[CPU], sizeof *text[0] * n_text[0], "the text");
    assert_int_equal(n[CPU], n[CARD]);
    assert_same(image[CARD], image[CPU], n[CPU], "the image");
    for (int32_t i = 0; i < ENGINES; i++) {
        const int32_t *held;
        rt_stats stats;
        rt_session *s = prompted(g[i], NULL, 0, TEXT);
        if (rt_load(s, image[!i], n[!i]) != RT_OK) fail_msg("%s", rt_session_error(s));
        assert_int_equal(rt_prompt(s, text[i], n_text[i]), RT_OK);
        to_the_end(st[i], s);
        rt_stats_get(s, &stats, sizeof stats);
        assert_true(stats.resumed > PROMPT);
        n_text[i] = rt_session_text(s, &held);
        memcpy(text[i], held, sizeof *held * n_text[i]);
        rt_session_free(s);
    }
    assert_int_equal(n_text[CPU], n_text[CARD]);
    assert_same(text[CARD], text[CPU], sizeof *text[0] * n_text[0], "the text that continues the other's");
    for (int32_t i = 0; i < ENGINES; i++) {
        rt_step_free(st[i]);
        rt_close(g[i]);
        free(image[i]);
    }
    public_close(&p);
    assert_int_equal(fake->live, 0);
}

static void images(void **state)
{
    (void) state;
    const RigOptions attention = pair(1, NULL), delta = pair(4, NULL);
    images_of(&attention, "q8_0", "q4_0");
    images_of(&delta, NULL, NULL);
}

/* Steps in which any call of the driver fails, from the first on, are reported and run again: the text is the CPU's,
 * and so is what the session holds. */
static void failing_steps(int32_t kind, uint64_t seed)
{
    Rig cpu, gpu;
    Loop l;
    int32_t truth[PROMPT + TEXT + AHEAD], failed = 0;
    float said[2][PROMPT + TEXT + AHEAD] = { { 0 } };          /* log probabilities, with faults and without */
    RigOptions o = pair(kind, NULL), on = pair(kind, "cuda");
    rig_open(&cpu, &o);
    make_truth(&cpu, 1, 8, truth);
    rig_close(&cpu);
    rig_open(&gpu, &on);
    loop_open(&l, &gpu, NULL, &(LoopOptions) { .budget = 9, .chunk = 7 });
    Session *s = loop_session(&l);
    Dice d = { tiny_key(seed, "faults"), 0 };
    assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
    s->line.sampling = sampling_mode(1);
    s->line.top = 2;
    fake->fail_with = 719;
    while (s->line.n_text < PROMPT + TEXT) {
        const int32_t n_text = s->line.n_text;
        fake->fail_in = roll(&d, 2) ? 1 + roll(&d, l.sp.prepared ? 40 : 2000) : 0;
        const bool armed = fake->fail_in > 0;
        const Status st = spec_step(&l.sp, &s, 1, &l.err);
        const bool hit = armed && fake->fail_in == 0;
        fake->fail_in = 0;
        failed += hit;
        assert_true(hit || st == ST_OK);
        if (st != ST_OK) assert_int_equal(s->line.n_text, n_text);
        if (st != ST_OK) expect_error(&l.err, ST_BACKEND, WORDS("cuda", "719"));
        for (int32_t i = 0; s->line.status == ST_OK && i < s->line.n_out; i++)
            said[0][n_text + i] = s->line.prob[i].logprob;
        if (s->line.status == ST_BACKEND) {        /* after the pass: the session ends */
            int32_t text[200];
            const int32_t n = s->line.n_text;
            memcpy(text, s->line.text, sizeof *text * (size_t) n);
            assert_ok(session_prompt(s, text, n, &l.err), &l.err);
        }
    }
    assert_true(failed > 3);
    assert_same(s->line.text, truth, sizeof *truth * (PROMPT + TEXT), "kind %d, faults %d", kind, (int) seed);
    assert_fresh(&l, s, "faults %d", (int) seed);
    assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
    while (s->line.n_text < PROMPT + TEXT) {
        const int32_t n_text = s->line.n_text;
        assert_ok(spec_step(&l.sp, &s, 1, &l.err), &l.err);
        for (int32_t i = 0; i < s->line.n_out; i++) said[1][n_text + i] = s->line.prob[i].logprob;
    }
    for (int32_t i = PROMPT; i < PROMPT + TEXT; i++)
        if (said[0][i] != 0) assert_memory_equal(&said[0][i], &said[1][i], sizeof said[0][i]);
    loop_free(s);
    loop_close(&l);
    rig_close(&gpu);
    assert_int_equal(fake->live, 0);
}

/* A full card is not one of which nothing is known. */
static void free_memory(void **state)
{
    (void) state;
    enum { ALL = 1 << 30 };
    Backend *b;
    uint64_t there, total;
    fake->memory = ALL;
    assert_int_equal(open_named(&b, "cuda", NULL), ST_OK);
    for (int64_t left = 2; left >= -1; left--) {
        fake->taken = ALL - left;
        b->memory(b, &there, &total);
        assert_int_equal(there, left == 2 ? 2 : 1);
        assert_int_equal(total, ALL);
    }
    for (int32_t call = 1; call <= 2; call++) {
        fake->fail_in = call, fake->fail_with = 719;
        b->memory(b, &there, &total);
        assert_int_equal(there, 0);
        assert_int_equal(total, ALL);
    }
    fake->memory = fake->taken = 0;
    b->close(b);
}

static void decoding_with_faults(void **state)
{
    (void) state;
    for (uint64_t seed = 0; seed < 4; seed++)
        if (part_runs()) failing_steps(seed % 2 ? 1 : 4, seed);
}

/* ---- threads ---- */

static void *turn_elsewhere(void *arg)
{
    Pair *p = arg;
    static Result r;
    Error err = { 0 };
    return turn(p->fork, true, &r, &err) == ST_OK ? &r : NULL;
}

/* A thread that has not seen the card before can work with a fork of another. */
static void any_thread(void **state)
{
    (void) state;
    Pair p;
    Error err = { 0 };
    pthread_t thread;
    void *got = NULL;
    const Result want = right();
    assert_int_equal(open_pair(&p, &err), ST_OK);
    assert_int_equal(pthread_create(&thread, NULL, turn_elsewhere, &p), 0);
    pthread_join(thread, &got);
    assert_non_null(got);
    assert_memory_equal(got, &want, sizeof want);
    close_pair(&p);
}

typedef struct { Backend *b; const float *x; float got[ROWS * COLS]; Status st; } Fetch;
static void *fetch_elsewhere(void *arg)
{
    Fetch *f = arg;
    f->b->copy_out(f->b, f->got, f->x, sizeof f->got);
    f->st = f->b->sync(f->b, NULL);
    return NULL;
}

/* Nor does it matter which thread comes first after a call that waits for the next one. */
static void another_goes_on(void **state)
{
    (void) state;
    Pair p;
    Error err = { 0 };
    pthread_t thread;
    float value[ROWS * COLS];
    for (int32_t i = 0; i < ROWS * COLS; i++) value[i] = (float) i;
    assert_ok(open_pair(&p, &err), &err);
    const Memory m = take(p.fork);
    Tensor x = { .type = T_F32, .rows = ROWS, .cols = COLS, .data = m.x }, y = x;
    y.data = m.y;
    p.fork->copy_in(p.fork, m.x, value, sizeof value);
    p.fork->copy_in(p.fork, m.y, value, sizeof value);
    p.fork->add(p.fork, &x, &y);
    Fetch f = { .b = p.fork, .x = m.x };
    assert_int_equal(pthread_create(&thread, NULL, fetch_elsewhere, &f), 0);
    pthread_join(thread, NULL);
    assert_int_equal(f.st, ST_OK);
    for (int32_t i = 0; i < ROWS * COLS; i++) assert_true(f.got[i] == 2 * value[i]);
    drop(p.fork, &m);
    close_pair(&p);
}

/* ---- two cards ---- */

enum { CARDS = 2 };
/* b: on the card; other: on the other one, which has a say while this one works. Work in turns k = 0, 1 makes
 * y = w (x + (k + 1) d) + d, in integers, so that every order of sums is right. */
typedef struct {
    Backend *b, *other;
    int32_t  seed;
    bool     ok;
    Tensor   w, x, d, y;
    float    got[2][ROWS * COLS];
} Product;

static float number(int32_t seed, int32_t what, int32_t i) { return (float) ((i * 7 + seed * 5 + what * 3) % 11 - 5); }

static Tensor rows_in(Backend *b, const char *part)
{
    void *p = b->alloc(b, sizeof(float) * ROWS * COLS, part);
    return (Tensor) { .type = T_F32, .rows = ROWS, .cols = COLS, .data = p };
}

static void product_take(Product *p)
{
    p->w = (Tensor) { .type = T_F32, .rows = COLS, .cols = COLS };
    p->w.data = p->b->alloc(p->b, p->b->weight_bytes(p->b, T_F32, COLS, COLS), "w");
    p->x = rows_in(p->b, "x");
    p->d = rows_in(p->b, "d");
    p->y = rows_in(p->b, "y");
}

static void product_put(Product *p)
{
    float w[COLS * COLS], x[ROWS * COLS], d[ROWS * COLS];
    for (int32_t i = 0; i < COLS * COLS; i++) w[i] = number(p->seed, 0, i);
    for (int32_t i = 0; i < ROWS * COLS; i++) x[i] = number(p->seed, 1, i), d[i] = number(p->seed, 2, i);
    p->b->upload(p->b, &p->w, 0, w, 0, COLS);
    p->b->copy_in(p->b, p->x.data, x, sizeof x);
    p->b->copy_in(p->b, p->d.data, d, sizeof d);
}

/* Each of its launches waits for the call behind it, the last one for that of another phase. */
static void product_calls(Product *p)
{
    const Tensor *w = &p->w;
    Tensor *y = &p->y;
    p->b->add(p->b, &p->x, &p->d);
    p->b->matmul(p->b, 1, &y, &w, &p->x);
    p->b->add(p->b, y, &p->d);
}

static void product_record(Product *p)
{
    uint64_t there, all;
    p->b->prepare(p->b, true);
    p->ok &= !p->b->pass_begin(p->b, &p->x.data, sizeof p->x.data);
    product_calls(p);
    p->b->scale(p->b, &p->y, 1, 0);                /* so that nothing waits for the end */
    p->other->memory(p->other, &there, &all);
    p->b->pass_end(p->b, true);
    p->b->prepare(p->b, false);
}

static void product_replay(Product *p)
{
    p->ok &= p->b->pass_begin(p->b, &p->x.data, sizeof p->x.data);
}

static void product_fetch(Product *p) { p->b->copy_out(p->b, p->got[0], p->y.data, sizeof p->got[0]); }
static void product_fetch_more(Product *p) { p->b->copy_out(p->b, p->got[1], p->y.data, sizeof p->got[1]); }

static void product_sync(Product *p)
{
    Error err = { 0 };
    if (p->b->sync(p->b, &err) == ST_OK) return;
    fprintf(stderr, "%s\n", err.text);
    p->ok = false;
}

static void product_compare(Product *p)
{
    for (int32_t k = 0; k < 2; k++)
        for (int32_t i = 0; i < ROWS * COLS; i++) {
            float sum = number(p->seed, 2, i);
            for (int32_t j = 0; j < COLS; j++) {
                const int32_t at = i / COLS * COLS + j;
                sum += number(p->seed, 0, i % COLS * COLS + j) *
                       (number(p->seed, 1, at) + (float) (k + 1) * number(p->seed, 2, at));
            }
            p->ok &= p->got[k][i] == sum;
        }
}

static void product_drop(Product *p)
{
    p->b->release(p->b, p->w.data, p->b->weight_bytes(p->b, T_F32, COLS, COLS));
    for (int32_t i = 0; i < 3; i++)
        p->b->release(p->b, (i == 0 ? &p->x : i == 1 ? &p->d : &p->y)->data, sizeof(float) * ROWS * COLS);
}

/* Call by call, a card in turn with the other one. */
static bool products_in_turn(Product p[CARDS], int32_t first)
{
    static void (*const phase[])(Product *p) = {
        product_put, product_calls, product_fetch, product_sync, product_record, product_replay, product_fetch_more,
        product_sync, product_compare
    };
    for (size_t k = 0; k < sizeof phase / sizeof *phase; k++)
        for (int32_t i = 0; i < CARDS; i++) phase[k](&p[(i + first) % CARDS]);
    return p[0].ok && p[1].ok;
}

/* A fork on either card. */
static Status open_products(Product p[CARDS], Backend *const opened[CARDS], int32_t seed, Error *err)
{
    for (int32_t i = 0; i < CARDS; i++) {
        p[i] = (Product) { .seed = seed + i, .ok = true, .other = opened[1 - i] };
        TRY(opened[i]->fork(opened[i], 0, &p[i].b, err));
    }
    return ST_OK;
}

typedef struct { Backend *const *opened; int32_t number; bool ok; } Thread;

static void *products_in_thread(void *arg)
{
    enum { TURNS = 8 };
    Thread *t = arg;
    Product p[CARDS];
    Error err = { 0 };
    t->ok = true;
    for (int32_t turn = 0; turn < TURNS && t->ok; turn++) {
        if (open_products(p, t->opened, 2 * t->number, &err) != ST_OK) {
            t->ok = false;
            break;
        }
        for (int32_t i = 0; i < CARDS; i++) product_take(&p[i]);
        t->ok = products_in_turn(p, t->number);
        for (int32_t i = 0; i < CARDS; i++) product_drop(&p[i]);
        for (int32_t i = CARDS - 1; i >= 0; i--) p[i].b->close(p[i].b);
    }
    return NULL;
}

static void open_cards(Backend *opened[CARDS])
{
    Error err = { 0 };
    fake->devices = CARDS;
    assert_ok(open_named(&opened[0], "cuda:0", &err), &err);
    assert_ok(open_named(&opened[1], "cuda:1", &err), &err);
}

static void close_cards(Backend *const opened[CARDS])
{
    for (int32_t i = 0; i < CARDS; i++) opened[i]->close(opened[i]);
    fake->devices = 1;
    for (int32_t i = 0; i < CARDS; i++) assert_int_equal(fake->card_bytes[i], 0);
    assert_int_equal(fake->device_bytes, 0);
    assert_int_equal(fake->host_bytes, 0);
    assert_int_equal(fake->live, 0);
}

/* One thread works on two cards, and either has what belongs to it. */
static void cards_in_turn(void **state)
{
    (void) state;
    Backend *opened[CARDS];
    Product p[CARDS];
    Error err = { 0 };
    open_cards(opened);
    assert_ok(open_products(p, opened, 0, &err), &err);
    const int64_t launches[] = { fake->card_launches[0], fake->card_launches[1], fake->launches },
                  replays[] = { fake->card_replays[0], fake->card_replays[1], fake->replays };
    for (int32_t i = 0; i < CARDS; i++) {
        const int64_t before = fake->card_bytes[i], others = fake->card_bytes[1 - i];
        product_take(&p[i]);
        assert_int_equal(fake->card_bytes[i] - before, p[i].b->weight_bytes(p[i].b, T_F32, COLS, COLS) +
                                                       3 * sizeof(float) * ROWS * COLS);
        assert_int_equal(fake->card_bytes[1 - i], others);
    }
    assert_int_equal(fake->card_bytes[0] + fake->card_bytes[1], fake->device_bytes);
    assert_true(products_in_turn(p, 0));
    for (int32_t i = 0; i < CARDS; i++) {
        assert_int_equal(2 * (fake->card_launches[i] - launches[i]), fake->launches - launches[2]);
        assert_true(fake->card_launches[i] > launches[i]);
        assert_int_equal(fake->card_replays[i] - replays[i], 1);
    }
    assert_int_equal(fake->replays - replays[2], 2);
    for (int32_t i = 0; i < CARDS; i++) product_drop(&p[i]);
    for (int32_t i = 0; i < CARDS; i++) p[i].b->close(p[i].b);
    close_cards(opened);
}

/* So do two threads on both. */
static void cards_in_threads(void **state)
{
    (void) state;
    enum { THREADS = 2 };
    Backend *opened[CARDS];
    pthread_t thread[THREADS];
    Thread t[THREADS];
    open_cards(opened);
    for (int32_t i = 0; i < THREADS; i++) {
        t[i] = (Thread) { .opened = opened, .number = i };
        assert_int_equal(pthread_create(&thread[i], NULL, products_in_thread, &t[i]), 0);
    }
    for (int32_t i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    assert_true(t[0].ok && t[1].ok);
    close_cards(opened);
}

/* What a card has, by the driver's functions alone. */
typedef struct { void *context, *memory, *host, *stream, *event, *module, *function, *graph, *exec; } Things;
enum { SMALL = 256, THREAD_LOCAL = 1 };

static void take_things(Things *t, const CudaDriver *cu, int32_t device)
{
    assert_int_equal(cu->cuDevicePrimaryCtxRetain(&t->context, device), 0);
    assert_int_equal(cu->cuCtxSetCurrent(t->context), 0);
    assert_int_equal(cu->cuMemAlloc_v2(&t->memory, SMALL), 0);
    assert_int_equal(cu->cuMemAllocHost_v2(&t->host, SMALL), 0);
    assert_int_equal(cu->cuStreamCreate(&t->stream, 1), 0);
    assert_int_equal(cu->cuEventCreate(&t->event, 2), 0);
    assert_int_equal(cu->cuModuleLoadData(&t->module, ""), 0);
    assert_int_equal(cu->cuModuleGetFunction(&t->function, t->module, "rows_scale"), 0);
    assert_int_equal(cu->cuStreamBeginCapture_v2(t->stream, THREAD_LOCAL), 0);
    assert_int_equal(cu->cuMemsetD8Async(t->memory, 1, SMALL, t->stream), 0);
    assert_int_equal(cu->cuStreamEndCapture(t->stream, &t->graph), 0);
    assert_int_equal(cu->cuGraphInstantiateWithFlags(&t->exec, t->graph, 0), 0);
    assert_int_equal(cu->cuMemsetD8Async(t->memory, 0, SMALL, t->stream), 0);
    assert_int_equal(cu->cuEventRecord(t->event, t->stream), 0);
    assert_int_equal(cu->cuStreamSynchronize(t->stream), 0);
}

/* Expects that each fails with this code, but for 0. */
static void release_things(const Things *t, const CudaDriver *cu, int32_t code, int32_t code_memory)
{
    assert_int_equal(cu->cuGraphExecDestroy(t->exec), code);
    assert_int_equal(cu->cuGraphDestroy(t->graph), code);
    assert_int_equal(cu->cuModuleUnload(t->module), code);
    assert_int_equal(cu->cuEventDestroy_v2(t->event), code);
    assert_int_equal(cu->cuStreamDestroy_v2(t->stream), code);
    assert_int_equal(cu->cuMemFreeHost(t->host), code_memory);
    assert_int_equal(cu->cuMemFree_v2(t->memory), code_memory);
}

static void host_work(void *arg) { (void) arg; }

/* Every function of the driver refuses what is another card's than the current one. */
static void cards_apart(void **state)
{
    (void) state;
    enum { NO_VALUE = 1, NO_CONTEXT = 201, NO_HANDLE = 400, GONE = 709 };
    const CudaDriver *cu;
    Things of[CARDS];
    Error err = { 0 };
    void *p, *graph, *exec;
    int32_t other = 0;
    uint8_t bytes[SMALL] = { 0 };
    float arg[64] = { 0 };
    fake->devices = CARDS;
    assert_ok(cuda_driver(&cu, &err), &err);
    for (int32_t i = 0; i < CARDS; i++) take_things(&of[i], cu, i);
    assert_ptr_not_equal(of[0].context, of[1].context);
    assert_int_equal(fake->card_bytes[0], SMALL);
    assert_int_equal(fake->card_bytes[1], SMALL);
    assert_int_equal(cu->cuDevicePrimaryCtxRetain(&p, 0), 0);
    assert_ptr_equal(p, of[0].context);
    assert_int_equal(cu->cuDevicePrimaryCtxRelease_v2(0), 0);
    const int64_t live = fake->live, launches = fake->launches;
    for (int32_t i = 0; i < CARDS; i++) {
        const Things *a = &of[i], *b = &of[1 - i];         /* a's context is current */
        CuLaunch l = { .grid_x = 1, .grid_y = 1, .grid_z = 1, .block_x = 256, .block_y = 1, .block_z = 1,
                       .stream = b->stream };
        assert_int_equal(cu->cuCtxSetCurrent(a->context), 0);
        assert_int_equal(cu->cuMemcpyHtoDAsync_v2(a->memory, bytes, SMALL, b->stream), NO_HANDLE);
        assert_int_equal(cu->cuMemcpyHtoDAsync_v2(b->memory, bytes, SMALL, a->stream), NO_VALUE);
        assert_int_equal(cu->cuMemcpyHtoDAsync_v2(a->memory, b->host, SMALL, a->stream), NO_VALUE);
        assert_int_equal(cu->cuMemcpyDtoHAsync_v2(bytes, a->memory, SMALL, b->stream), NO_HANDLE);
        assert_int_equal(cu->cuMemcpyDtoHAsync_v2(bytes, b->memory, SMALL, a->stream), NO_VALUE);
        assert_int_equal(cu->cuMemcpyDtoHAsync_v2(b->host, a->memory, SMALL, a->stream), NO_VALUE);
        assert_int_equal(cu->cuMemcpyDtoDAsync_v2(a->memory, b->memory, SMALL, a->stream), NO_VALUE);
        assert_int_equal(cu->cuMemcpyDtoDAsync_v2(b->memory, a->memory, SMALL, a->stream), NO_VALUE);
        assert_int_equal(cu->cuMemcpyDtoDAsync_v2(a->memory, a->memory, SMALL, b->stream), NO_HANDLE);
        assert_int_equal(cu->cuMemsetD8Async(b->memory, 0, SMALL, a->stream), NO_VALUE);
        assert_int_equal(cu->cuMemsetD8Async(a->memory, 0, SMALL, b->stream), NO_HANDLE);
        assert_int_equal(cu->cuLaunchKernelEx(&l, a->function, (void *[]) { arg }, NULL), NO_HANDLE);
        assert_int_equal(cu->cuLaunchKernelEx(&l, b->function, (void *[]) { arg }, NULL), NO_HANDLE);
        l.stream = a->stream;
        assert_int_equal(cu->cuLaunchKernelEx(&l, b->function, (void *[]) { arg }, NULL), NO_HANDLE);
        assert_int_equal(cu->cuFuncSetAttribute(b->function, 8, 0), NO_HANDLE);
        assert_int_equal(cu->cuModuleGetFunction(&p, b->module, "rows_scale"), NO_HANDLE);
        assert_int_equal(cu->cuLaunchHostFunc(b->stream, host_work, NULL), NO_HANDLE);
        assert_int_equal(cu->cuStreamSynchronize(b->stream), NO_HANDLE);
        assert_int_equal(cu->cuEventRecord(b->event, a->stream), NO_HANDLE);
        assert_int_equal(cu->cuEventRecord(a->event, b->stream), NO_HANDLE);
        assert_int_equal(cu->cuEventQuery(b->event), NO_HANDLE);
        assert_int_equal(cu->cuStreamWaitEvent(a->stream, b->event, 0), NO_HANDLE);
        assert_int_equal(cu->cuStreamWaitEvent(b->stream, a->event, 0), NO_HANDLE);
        assert_int_equal(cu->cuStreamBeginCapture_v2(b->stream, THREAD_LOCAL), NO_HANDLE);
        assert_int_equal(cu->cuStreamEndCapture(b->stream, &graph), NO_HANDLE);
        assert_int_equal(cu->cuGraphInstantiateWithFlags(&exec, b->graph, 0), NO_HANDLE);
        assert_int_equal(cu->cuGraphUpload(a->exec, b->stream), NO_HANDLE);
        assert_int_equal(cu->cuGraphUpload(b->exec, a->stream), NO_HANDLE);
        assert_int_equal(cu->cuGraphLaunch(a->exec, b->stream), NO_HANDLE);
        assert_int_equal(cu->cuGraphLaunch(b->exec, a->stream), NO_HANDLE);
        release_things(b, cu, NO_HANDLE, NO_VALUE);
        assert_int_equal(cu->cuStreamSynchronize(a->stream), 0);
    }
    assert_int_equal(cu->cuCtxSetCurrent(&other), NO_CONTEXT);
    assert_int_equal(cu->cuStreamSynchronize(of[1].stream), 0);        /* the one before is still current */
    assert_int_equal(cu->cuCtxSetCurrent(NULL), 0);
    assert_int_equal(cu->cuMemAlloc_v2(&p, SMALL), NO_CONTEXT);
    release_things(&of[0], cu, NO_CONTEXT, NO_CONTEXT);
    assert_int_equal(fake->live, live);
    assert_int_equal(fake->launches, launches);
    for (int32_t i = 0; i < CARDS; i++) {
        assert_int_equal(cu->cuCtxSetCurrent(of[i].context), 0);
        release_things(&of[i], cu, 0, 0);
        assert_int_equal(fake->card_bytes[i], 0);
        assert_int_equal(cu->cuDevicePrimaryCtxRelease_v2(i), 0);
        assert_int_equal(cu->cuMemAlloc_v2(&p, SMALL), GONE);
        assert_int_equal(cu->cuCtxSetCurrent(of[i].context), NO_CONTEXT);
    }
    fake->devices = 1;
    assert_int_equal(cu->cuDevicePrimaryCtxRetain(&p, 1), 101);
    assert_int_equal(fake->live, 0);
}

/* One card is full, the other is not. */
static void cards_fill(void **state)
{
    (void) state;
    enum { MB = 1 << 20, ALL = 512 * MB };
    Backend *opened[CARDS];
    uint64_t there, all;
    fake->memory = ALL;
    fake->card_memory[1] = ALL / 2;
    open_cards(opened);
    void *most[CARDS];
    for (int32_t i = CARDS - 1; i >= 0; i--) {
        opened[i]->memory(opened[i], &there, &all);
        assert_int_equal(all, i ? ALL / 2 : ALL);
        assert_int_equal(there, all);
        assert_non_null(most[i] = opened[i]->alloc(opened[i], all, "x"));
        opened[i]->memory(opened[i], &there, &all);
        assert_int_equal(there, 1);
        assert_null(opened[i]->alloc(opened[i], MB, "x"));
        assert_int_equal(opened[i]->sync(opened[i], NULL), ST_MEMORY);
    }
    for (int32_t i = 0; i < CARDS; i++) opened[i]->release(opened[i], most[i], 0);
    fake->memory = fake->card_memory[1] = 0;
    close_cards(opened);
}

/* With and without records: on a card nothing else says that they are right. */
static void recorded_is_direct(void **state)
{
    (void) state;
    Pair p;
    Result got;
    Error err = { 0 };
    const Result want = right();
    assert_ok(open_pair(&p, &err), &err);
    assert_ok(turn(p.fork, true, &got, &err), &err);
    assert_memory_equal(&got, &want, sizeof want);
    close_pair(&p);
}

int main(int argc, char **argv)
{
    on_device = argc > 1 && strcmp(argv[1], "--device") == 0;
    if (argc > 1 + on_device) cmocka_set_test_filter(argv[1 + on_device]);
    const struct CMUnitTest before[] = { cmocka_unit_test(drivers) };
    const struct CMUnitTest of_driver[] = {
        cmocka_unit_test(cards), cmocka_unit_test(cards_described), cmocka_unit_test(calls_fail),
        cmocka_unit_test(memory_fails), cmocka_unit_test(releases_fail), cmocka_unit_test(failures_stick),
        cmocka_unit_test(lost), cmocka_unit_test(few_records), cmocka_unit_test(replay_without_memory),
        cmocka_unit_test(free_memory), cmocka_unit_test(sessions_fail), cmocka_unit_test(decoding_with_faults),
        cmocka_unit_test(cards_in_turn), cmocka_unit_test(cards_in_threads), cmocka_unit_test(cards_apart),
        cmocka_unit_test(cards_fill)
    };
    const struct CMUnitTest anywhere[] = {
        cmocka_unit_test(recorded_is_direct), cmocka_unit_test(many_records), cmocka_unit_test(any_thread),
        cmocka_unit_test(another_goes_on), cmocka_unit_test(both_fail),
        cmocka_unit_test(decoding), cmocka_unit_test(many_sessions), cmocka_unit_test(images)
    };
    int failed = on_device ? 0 : cmocka_run_group_tests_name("cuda drivers", before, NULL, NULL);
    failed += cmocka_run_group_tests_name("cuda", anywhere, load, NULL);
    return on_device ? failed : failed + cmocka_run_group_tests_name("cuda calls", of_driver, load, NULL);
}
