/* test_gpu_store.c - experts of which the emulated GPU's memory holds only some: what a mixture makes of rows is, to
 * the bit, what it makes of them with all experts in device memory, whatever moves meanwhile; what is counted; two
 * forks; and any call of the driver failing. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu_driver.h"
#include "part.h"
#include "rows_helper.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

/* Layer 2 has no experts; those of layer 1 are of another size. */
enum { LAYERS = 6, EXPERTS = 12, USED = 3, DIM = 256, FFN = 256, ROWS = 40, FORKS = 2 };
static const Type types[LAYERS][STACKS] = { { T_Q4_K, T_Q4_K, T_Q6_K }, { T_Q8_0, T_F16, T_Q8_0 }, { 0 },
                                            { T_Q4_K, T_Q4_K, T_Q6_K }, { T_Q4_K, T_Q4_K, T_Q6_K },
                                            { T_Q4_K, T_Q4_K, T_Q6_K } };
static bool mixture(int32_t il) { return il != 2; }

static FakeCuda *fake;
static uint8_t *file[LAYERS][STACKS];              /* as in a model's file */
static char path[64] = "/tmp/test_gpu_store.XXXXXX";           /* which is this one */
static uint64_t offset[LAYERS][STACKS];
static uint64_t ram;                               /* main memory of worlds that are opened; 0: whatever they need */
static StoreIo io;
static const char *card = "cuda";                  /* of worlds that are opened */
static Backend *elsewhere;                         /* has a say before each call of experts; NULL: nobody has */

static void must(Status st, const Error *err) { if (st != ST_OK) fail_msg("%s", err->text); }

static size_t stack_bytes(int32_t il, int32_t p)
{
    const int32_t rows = EXPERTS * (p == STACK_DOWN ? DIM : FFN);
    return type_row_bytes(types[il][p], p == STACK_DOWN ? FFN : DIM) * (size_t) rows;
}

/* Into the file that there is, if there is one; some bytes lie between its parts. */
static void write_file(void)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    for (int32_t il = 0; il < LAYERS; il++)
        for (int32_t p = 0; mixture(il) && p < STACKS; p++) {
            assert_int_equal(fseek(f, 100 + 32 * p, SEEK_CUR), 0);
            offset[il][p] = (uint64_t) ftell(f);
            assert_int_equal(fwrite(file[il][p], 1, stack_bytes(il, p), f), stack_bytes(il, p));
        }
    assert_int_equal(fclose(f), 0);
}

/* ---- a backend with the weights ---- */

typedef struct { Tensor x, ids, weight, y, h, wide, each; } Buffers;
typedef struct {
    Backend *be, *fork[FORKS];
    Tensor   w[LAYERS][STACKS];
    Stacked  stacked[LAYERS];
    StoreNeeds needs;
    void    *memory[LAYERS * STACKS + 1];          /* taken for weights */
    size_t   bytes[LAYERS * STACKS + 1];
    int32_t  n_memory;
    Buffers    rows[FORKS];
} World;

static void *take(World *w, size_t bytes)
{
    void *p = w->be->alloc(w->be, bytes, "test");
    if (p) w->bytes[w->n_memory] = bytes, w->memory[w->n_memory++] = p;
    return p;
}

static StoreOptions options(uint64_t vram, int32_t ring, const uint64_t *count)
{
    return (StoreOptions) { .device_ram = vram, .ram = ram, .io = io, .layers = LAYERS, .used = USED, .ring = ring,
                            .count = count };
}

/* Describes the weights. */
static int32_t describe(World *w)
{
    int32_t n = 0;
    for (int32_t il = 0; il < LAYERS; il++) {
        if (!mixture(il)) continue;
        w->stacked[n].layer = il;
        for (int32_t p = 0; p < STACKS; p++) {
            w->w[il][p] = (Tensor) { .type = types[il][p], .rows = p == STACK_DOWN ? DIM : FFN,
                                     .cols = p == STACK_DOWN ? FFN : DIM, .n = EXPERTS };
            w->stacked[n].w[p] = &w->w[il][p];
            const Tensor *t = &w->w[il][p];
            w->stacked[n].source[p] = (Source) { .map = file[il][p], .file = path, .offset = offset[il][p],
                                                 .stride = type_row_bytes(t->type, t->cols) * (size_t) t->rows };
        }
        n++;
    }
    return n;
}

static Status place_weights(World *w, const StoreOptions *o, Error *err)
{
    const int32_t n = describe(w);
    if (o->device_ram) TRY(w->be->store_needs(w->be, &w->needs, w->stacked, n, o, err));
    if (w->needs.bytes) {
        void *memory = take(w, w->needs.bytes);
        if (!memory) return w->be->sync(w->be, err);
        return w->be->store(w->be, w->stacked, n, memory, o, err);
    }
    for (int32_t il = 0; il < LAYERS; il++)
        for (int32_t p = 0; mixture(il) && p < STACKS; p++) {
            Tensor *t = &w->w[il][p];
            t->data = take(w, w->be->weight_bytes(w->be, t->type, t->rows, t->cols) * EXPERTS);
            if (!t->data) return w->be->sync(w->be, err);
        }
    return ST_OK;
}

static Status upload_all(World *w, Error *err)
{
    Backend *up;
    Status st = ST_OK;
    TRY(w->be->fork(w->be, 0, &up, err));
    for (int32_t il = 0; il < LAYERS; il++)
        for (int32_t p = 0; mixture(il) && p < STACKS; p++)
            for (int32_t e = 0; st == ST_OK && e < EXPERTS; e++) {
                Tensor *t = &w->w[il][p];
                const size_t each = type_row_bytes(t->type, t->cols) * (size_t) t->rows;
                const uint8_t *from = file[il][p] + each * (size_t) e;
                up->upload(up, t, e, from, 0, 64);     /* in two pieces */
                up->upload(up, t, e, from + each / (size_t) t->rows * 64, 64, t->rows - 64);
                st = up->sync(up, err);
            }
    up->close(up);
    return st;
}

static Status load_world(World *w, const StoreOptions *o, Error *err)
{
    *w = (World) { 0 };
    TRY(backend_open(&w->be, card, &(BackendOptions) { .threads = 1 }, err));
    TRY(place_weights(w, o, err));
    return w->needs.bytes && !w->needs.uploads ? ST_OK : upload_all(w, err);
}

static void open_forks(World *w)
{
    Error err = { 0 };
    for (int32_t i = 0; i < FORKS; i++) {
        must(w->be->fork(w->be, 0, &w->fork[i], &err), &err);
        Backend *b = w->fork[i];
        Buffers *r = &w->rows[i];
        const int32_t pairs = ROWS * USED;
        r->x = h_tensor(T_F32, ROWS, DIM, b->alloc(b, sizeof(float) * ROWS * DIM, "x"));
        r->ids = h_tensor(T_I32, ROWS, USED, b->alloc(b, sizeof(float) * ROWS * USED, "ids"));
        r->weight = h_tensor(T_F32, ROWS, USED, b->alloc(b, sizeof(float) * ROWS * USED, "weight"));
        r->y = h_tensor(T_F32, ROWS, DIM, b->alloc(b, sizeof(float) * ROWS * DIM, "y"));
        r->h = h_tensor(T_F32, pairs, FFN, b->alloc(b, sizeof(float) * (size_t) pairs * FFN, "h"));
        r->wide = h_tensor(T_F32, pairs, FFN, b->alloc(b, sizeof(float) * (size_t) pairs * FFN, "wide"));
        r->each = h_tensor(T_F32, pairs, DIM, b->alloc(b, sizeof(float) * (size_t) pairs * DIM, "each"));
    }
}

static void open_world(World *w, uint64_t vram, int32_t ring, const uint64_t *count)
{
    Error err = { 0 };
    const StoreOptions o = options(vram, ring, count);
    must(load_world(w, &o, &err), &err);
    assert_int_equal(w->needs.bytes > 0, vram > 0 && vram != UINT64_MAX);
    open_forks(w);
}

static void close_fork(World *w, int32_t i)
{
    Tensor *of[] = { &w->rows[i].x, &w->rows[i].ids, &w->rows[i].weight, &w->rows[i].y, &w->rows[i].h,
                     &w->rows[i].wide, &w->rows[i].each };
    if (!w->fork[i]) return;
    w->fork[i]->close(w->fork[i]);
    w->fork[i] = NULL;
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) w->be->release(w->be, of[k]->data, 0);
}

static void shut(World *w)
{
    for (int32_t i = 0; i < FORKS; i++) close_fork(w, i);
    while (w->n_memory > 0) {
        w->n_memory--;
        w->be->release(w->be, w->memory[w->n_memory], w->bytes[w->n_memory]);
    }
    if (w->be) w->be->close(w->be);
}

static void close_world(World *w)
{
    shut(w);
    assert_int_equal(fake->live, 0);
}

/* ---- passes ---- */

/* What rows choose in a pass: its number decides; skew: most choose the first experts of a rotated order. */
typedef struct { int32_t number, n, skew; } Pass;
typedef struct { float y[LAYERS][ROWS * DIM]; } Result;

static void choose(int32_t *ids, const Pass *p, int32_t il)
{
    uint64_t seed = h_mix((uint64_t) (p->number * LAYERS + il + 1));
    for (int32_t i = 0; i < p->n; i++) {
        const int32_t first = p->skew ? (h_pick(&seed, 4) ? p->skew + il : h_pick(&seed, EXPERTS))
                                      : h_pick(&seed, EXPERTS);
        for (int32_t j = 0; j < USED; j++) ids[i * USED + j] = (first + j) % EXPERTS;
    }
}

static Tensor first_rows(const Tensor *t, int32_t rows) { return h_tensor(t->type, rows, t->cols, t->data); }

/* Queues the calls of a pass, without what copies rows in or out. */
static void queue(World *w, int32_t f, int32_t il, int32_t n)
{
    Buffers *r = &w->rows[f];
    Tensor y = first_rows(&r->y, n), h = first_rows(&r->h, n * USED), wide = first_rows(&r->wide, n * USED),
           each = first_rows(&r->each, n * USED);
    const Tensor x = first_rows(&r->x, n), ids = first_rows(&r->ids, n), weight = first_rows(&r->weight, n);
    const Experts e = { &w->w[il][STACK_GATE], &w->w[il][STACK_UP], &w->w[il][STACK_DOWN], ACT_SILU, &h, &wide, &each };
    uint64_t there, all;
    if (elsewhere) elsewhere->memory(elsewhere, &there, &all);
    w->fork[f]->experts(w->fork[f], &y, &x, &ids, &weight, &e);
}

static void begin(World *w, int32_t f, const Pass *p, Result *out)
{
    Backend *b = w->fork[f];
    Buffers *r = &w->rows[f];
    int32_t ids[ROWS * USED];
    float x[ROWS * DIM], weight[ROWS * USED];
    for (int32_t il = 0; il < LAYERS; il++) {
        if (!mixture(il)) continue;
        choose(ids, p, il);
        h_fill(x, (int64_t) p->n * DIM, (uint64_t) (p->number * 8 + il), 2);
        h_fill(weight, (int64_t) p->n * USED, (uint64_t) (p->number * 8 + il + 4), 1);
        b->copy_in(b, r->x.data, x, sizeof *x * (size_t) p->n * DIM);
        b->copy_in(b, r->ids.data, ids, sizeof *ids * (size_t) p->n * USED);
        b->copy_in(b, r->weight.data, weight, sizeof *weight * (size_t) p->n * USED);
        queue(w, f, il, p->n);
        b->copy_out(b, out->y[il], r->y.data, sizeof *x * (size_t) p->n * DIM);
    }
}

static void run(World *w, int32_t f, const Pass *p, Result *out)
{
    Error err = { 0 };
    memset(out, 0, sizeof *out);
    begin(w, f, p, out);
    must(w->fork[f]->sync(w->fork[f], &err), &err);
}

enum { PASSES = 16 };
static Pass pass_of(int32_t i)
{
    static const int32_t n[] = { 1, 3, 1, 8, 2, 40, 1, 2 };
    return (Pass) { i, n[i % 8], 1 + i / 8 * 4 };
}

static Result right[PASSES];                       /* with all experts in device memory */

static void make_right(void)
{
    World w;
    open_world(&w, 0, 0, NULL);
    for (int32_t i = 0; i < PASSES; i++) {
        const Pass p = pass_of(i);
        run(&w, 0, &p, &right[i]);
    }
    close_world(&w);
}

static void same(const Result *got, int32_t i, const char *what)
{
    if (memcmp(got, &right[i], sizeof *got) != 0) fail_msg("%s: pass %d has other bits", what, i);
}

static void add_counts(uint64_t counts[LAYERS * EXPERTS], const Pass *p, int64_t *read)
{
    int32_t ids[ROWS * USED];
    for (int32_t il = 0; il < LAYERS; il++) {
        bool seen[EXPERTS] = { false };
        if (!mixture(il)) continue;
        choose(ids, p, il);
        for (int32_t k = 0; k < p->n * USED; k++) {
            counts[il * EXPERTS + ids[k]]++;
            *read += !seen[ids[k]];
            seen[ids[k]] = true;
        }
    }
}

/* Bytes of slots for so many experts of each kind: of layers 0 and 3, and of layer 1. */
static uint64_t room_for(int32_t most, int32_t other)
{
    StoreNeeds one, two;
    World w = { 0 };
    Error err = { 0 };
    must(backend_open(&w.be, "cuda", &(BackendOptions) { .threads = 1 }, &err), &err);
    const int32_t n = describe(&w);
    const StoreOptions o = options(1, 0, NULL);
    assert_int_equal(w.be->store_needs(w.be, &one, w.stacked, n, &o, &err), ST_ARG);
    const char *least = strstr(err.text, "at least ");
    assert_non_null(least);
    const uint64_t table = 4096, each = strtoull(strstr(err.text, "take ") + 5, NULL, 10),
                   rest = strtoull(least + 9, NULL, 10) - table - each;
    const StoreOptions with = options(table + each * (uint64_t) most + rest * (uint64_t) other, 0, NULL);
    must(w.be->store_needs(w.be, &two, w.stacked, n, &with, &err), &err);
    w.be->close(w.be);
    return with.device_ram;
}

/* ---- the same bits ---- */

static void check_stats(World *w, const uint64_t *counts, int64_t read)
{
    StoreStats s;
    uint64_t got[LAYERS * EXPERTS], chosen = 0;
    for (int32_t i = 0; i < LAYERS * EXPERTS; i++) chosen += counts[i];
    w->be->store_stats(w->be, &s);
    w->be->store_counts(w->be, got);
    assert_memory_equal(got, counts, sizeof got);
    assert_int_equal(s.chosen, chosen);
    assert_int_equal(s.pinned_hits + s.ring_hits + s.bus_hits + s.misses, read);
    assert_true(s.bus_bytes >= s.bus_hits && s.bus_hits > 0 && s.slots > s.pinned);
    if (ram) {
        assert_true(s.misses > 0 && s.missed_bytes >= s.misses && strcmp(s.io, "bus") != 0);
        assert_int_equal(s.bytes, w->needs.bytes + w->needs.host_bytes);
    } else {
        assert_true(s.misses == 0 && s.missed_bytes == 0 && s.bytes == (int64_t) w->needs.bytes);
        assert_string_equal(s.io, "bus");
    }
}

static void check_world(uint64_t vram, int32_t ring, const uint64_t *count, const char *what)
{
    World w;
    Routes routes;
    StoreStats s;
    uint64_t counts[LAYERS * EXPERTS] = { 0 };
    int64_t read = 0, missed = 0;
    Result *got = malloc(sizeof *got);
    assert_non_null(got);
    open_world(&w, vram, ring, count);
    for (int32_t i = 0; i < PASSES; i++) {
        const Pass p = pass_of(i);
        run(&w, i / 3 % FORKS, &p, got);
        same(got, i, what);
        add_counts(counts, &p, &read);
        w.fork[i / 3 % FORKS]->routes(w.fork[i / 3 % FORKS], &routes);
        missed += routes.missed;
        assert_int_equal(routes.missed > 0, routes.missed_bytes > 0);
    }
    check_stats(&w, counts, read);
    w.be->store_stats(w.be, &s);
    assert_int_equal(ram ? s.misses : s.bus_hits, missed);
    assert_true(s.pinned_hits + s.ring_hits > 0 && s.evicted > 0);
    close_world(&w);
    free(got);
}

static void some_counts(uint64_t count[LAYERS * EXPERTS])
{
    for (int32_t i = 0; i < LAYERS * EXPERTS; i++) count[i] = (uint64_t) (i * 7 % 13);
}

/* Slots for all but a few experts, for half of them, one of each size; copies as late and as early as can be. */
static void same_bits(void **state)
{
    (void) state;
    uint64_t count[LAYERS * EXPERTS];
    some_counts(count);
    for (int32_t eager = 0; eager < 2; eager++) {
        fake->eager = eager;
        if (part_runs()) check_world(room_for(22, 10), 0, NULL, "all but a few");
        if (part_runs()) check_world(room_for(12, 6), 3 * eager, eager ? NULL : count, "half");
        if (part_runs()) check_world(room_for(1, 1), 0, NULL, "one slot of each size");
    }
    fake->eager = false;
}

/* The least main memory that a device's store can do with, and room for so many more experts of each kind. */
static uint64_t main_for(int32_t most, int32_t other)
{
    StoreNeeds needs;
    World w = { 0 };
    Error err = { 0 };
    const uint64_t vram = room_for(most, other);
    must(backend_open(&w.be, "cuda", &(BackendOptions) { .threads = 1 }, &err), &err);
    const int32_t n = describe(&w);
    StoreOptions o = options(vram, 0, NULL);
    o.ram = 1;
    assert_int_equal(w.be->store_needs(w.be, &needs, w.stacked, n, &o, &err), ST_ARG);
    assert_non_null(strstr(err.text, "expert_ram: 1 bytes, expected at least "));
    o.ram = strtoull(strstr(err.text, "at least ") + 9, NULL, 10);
    must(w.be->store_needs(w.be, &needs, w.stacked, n, &o, &err), &err);
    assert_true(needs.host_bytes > 0 && !needs.uploads && needs.chunk >= w.be->chunk);
    w.be->close(w.be);
    return o.ram + vram;
}

/* Main memory has only some of the experts, too, and a file has all. */
static void same_bits_from_file(void **state)
{
    (void) state;
    static const StoreIo ways[] = { STORE_AUTO, STORE_PREAD, STORE_MMAP, STORE_URING };
    uint64_t count[LAYERS * EXPERTS];
    some_counts(count);
    for (int32_t k = 0; k < 4; k++) {
        fake->eager = k % 2;
        io = ways[k];
        ram = main_for(1 + k, 1);
        if (part_runs()) check_world(room_for(12, 6), k, k % 2 ? NULL : count, "half, from a file");
        if (part_runs()) check_world(room_for(1, 1), 0, k / 2 ? NULL : count, "one slot of each size, from a file");
    }
    fake->eager = false;
    ram = 0, io = STORE_AUTO;
}

/* A store on either of two cards, whose passes are in flight together, in one thread. */
static void two_cards(void **state)
{
    (void) state;
    enum { CARDS = 2 };
    World w[CARDS];
    Result *got = malloc(CARDS * sizeof *got);
    Error err = { 0 };
    for (int32_t from_file = 0; from_file < 2; from_file++) {
        const uint64_t vram = room_for(12, 6);
        ram = from_file ? main_for(2, 1) : 0;
        fake->devices = CARDS;
        for (int32_t i = 0; i < CARDS; i++) {
            card = i ? "cuda:1" : "cuda:0";
            open_world(&w[i], vram, 0, NULL);
        }
        for (int32_t i = 0; i < PASSES; i++) {
            const Pass p = pass_of(i);
            memset(got, 0, CARDS * sizeof *got);
            for (int32_t k = 0; k < CARDS; k++) {
                elsewhere = w[1 - k].be;
                begin(&w[k], 0, &p, &got[k]);
            }
            for (int32_t k = 0; k < CARDS; k++) {
                must(w[k].fork[0]->sync(w[k].fork[0], &err), &err);
                same(&got[k], i, "two cards");
            }
        }
        card = "cuda";
        elsewhere = NULL;
        shut(&w[0]);
        close_world(&w[1]);
        fake->devices = 1;
    }
    ram = 0;
    free(got);
}

/* ---- what moves ---- */

static int64_t from_elsewhere(const StoreStats *s) { return s->bus_hits + s->misses; }

/* Rows that choose the same experts again and again have them on the device in the end. */
static void move_in(uint64_t main)
{
    World w;
    ram = main;
    StoreStats s;
    int64_t last = 0;
    Result *got = malloc(sizeof *got);
    open_world(&w, room_for(16, 4), 0, NULL);
    for (int32_t i = 0; i < 40; i++) {
        run(&w, 0, &(Pass) { 3, 1, 9 }, got);      /* 3 experts of each layer, of which some have no slot at first */
        w.be->store_stats(w.be, &s);
        if (i == 20) last = from_elsewhere(&s);
    }
    assert_true(last > 0 && from_elsewhere(&s) == last);
    close_world(&w);
    free(got);
    ram = 0;
}

static void used_experts_move_in(void **state)
{
    (void) state;
    move_in(0);
    move_in(main_for(2, 1));
}

/* While a fork has a pass in flight, nothing is moved for another: what its pass reads stays where it is. */
static void passes_in_flight(void **state)
{
    (void) state;
    World w;
    StoreStats before, after;
    Error err = { 0 };
    Result *got = malloc(2 * sizeof *got);
    fake->eager = true;                            /* what is copied too soon is found */
    open_world(&w, room_for(4, 2), 0, NULL);
    for (int32_t i = 0; i + 4 < PASSES; i += 4) {
        const Pass first = pass_of(i);
        memset(got, 0, sizeof *got);
        begin(&w, 0, &first, got);
        w.be->store_stats(w.be, &before);
        for (int32_t k = 1; k < 4; k++) {
            const Pass p = pass_of(i + k);
            run(&w, 1, &p, got + 1);
            same(got + 1, i + k, "beside a pass in flight");
        }
        w.be->store_stats(w.be, &after);
        must(w.fork[0]->sync(w.fork[0], &err), &err);
        same(got, i, "in flight");
        assert_int_equal(after.evicted, before.evicted);
    }
    for (int32_t i = 0; i < 8; i++) {
        const Pass p = pass_of(i);
        run(&w, 1, &p, got);
        same(got, i, "afterwards");
    }
    w.be->store_stats(w.be, &after);
    assert_true(after.evicted > before.evicted);
    fake->eager = false;
    close_world(&w);
    free(got);
}

typedef struct { World *w; int32_t f; bool wrong; } Runner;
static void *run_many(void *arg)
{
    Runner *r = arg;
    Result *got = malloc(sizeof *got);
    for (int32_t k = 0; got && k < (PART > 1 ? PASSES / 2 : PASSES) && !r->wrong; k++) {
        const int32_t i = (k * 5 + r->f) % PASSES;
        const Pass p = pass_of(i);
        memset(got, 0, sizeof *got);
        begin(r->w, r->f, &p, got);
        r->wrong = r->w->fork[r->f]->sync(r->w->fork[r->f], NULL) != ST_OK || memcmp(got, &right[i], sizeof *got) != 0;
    }
    free(got);
    return NULL;
}

static void two_threads(void **state)
{
    (void) state;
    for (int32_t way = 0; way < 3; way++) {
        World w;
        pthread_t thread[FORKS];
        Runner runner[FORKS];
        fake->eager = way == 1;
        ram = way == 2 ? main_for(2, 2) : 0;
        open_world(&w, room_for(5, 3), 0, NULL);
        for (int32_t f = 0; f < FORKS; f++) {
            runner[f] = (Runner) { &w, f, false };
            assert_int_equal(pthread_create(&thread[f], NULL, run_many, &runner[f]), 0);
        }
        for (int32_t f = 0; f < FORKS; f++) pthread_join(thread[f], NULL);
        for (int32_t f = 0; f < FORKS; f++) assert_false(runner[f].wrong);
        close_world(&w);
    }
    ram = 0;
}

/* Recorded passes go by the table as well. They have the launches that they have without one, and nothing is taken. */
static void check_records(uint64_t main)
{
    enum { N = 2 };
    World w[2];
    Error err = { 0 };
    int64_t launches[2];
    float y[2][N * DIM];
    fake->refused = 0;
    for (int32_t k = 0; k < 2; k++) {
        ram = k ? main : 0;
        open_world(&w[k], k ? room_for(3, 2) : 0, 0, NULL);
        Backend *b = w[k].fork[0];
        launches[k] = fake->launches;
        b->prepare(b, true);
        assert_false(b->pass_begin(b, "key", 3));
        for (int32_t il = 0; il < LAYERS; il++) if (mixture(il)) queue(&w[k], 0, il, N);
        b->pass_end(b, true);
        b->prepare(b, false);
        launches[k] = fake->launches - launches[k];
    }
    assert_int_equal(launches[0], launches[1]);
    fake->sealed = true;
    for (int32_t i = 0; i < 30; i++) {
        int32_t ids[N * USED];
        float x[N * DIM], weight[N * USED];
        choose(ids, &(Pass) { i, N, 1 + i / 10 * 4 }, 0);
        h_fill(x, N * DIM, (uint64_t) i, 2);
        h_fill(weight, N * USED, (uint64_t) i + 99, 1);
        for (int32_t k = 0; k < 2; k++) {
            Backend *b = w[k].fork[0];
            b->copy_in(b, w[k].rows[0].x.data, x, sizeof x);
            b->copy_in(b, w[k].rows[0].ids.data, ids, sizeof ids);
            b->copy_in(b, w[k].rows[0].weight.data, weight, sizeof weight);
            assert_true(b->pass_begin(b, "key", 3));
            b->copy_out(b, y[k], w[k].rows[0].y.data, sizeof y[k]);
            must(b->sync(b, &err), &err);
        }
        assert_memory_equal(y[1], y[0], sizeof y[0]);
    }
    fake->sealed = false;
    assert_int_equal(fake->refused, 0);
    StoreStats s;
    w[1].be->store_stats(w[1].be, &s);
    assert_true(s.evicted > 0 && s.bus_hits > 0 && (s.misses > 0) == (main > 0));
    shut(&w[0]);
    close_world(&w[1]);
    ram = 0;
}

static void records(void **state)
{
    (void) state;
    check_records(0);
    check_records(main_for(2, 2));
}

/* ---- calls that fail ---- */

/* While the store is opened and filled: the next attempt is as if nothing had happened. least: calls. */
static void check_loading(const uint64_t *count, int32_t least)
{
    const StoreOptions o = options(room_for(3, 2), 0, count);
    bool failed = true;
    int32_t n = 1;
    for (; failed; n += n < 60 ? 1 : 7) {
        World w = { 0 };
        Error err = { 0 };
        must(backend_open(&w.be, "cuda", &(BackendOptions) { .threads = 1 }, &err), &err);
        fake->fail_in = n;
        fake->fail_with = n % 2 ? 719 : 2;
        Status st = place_weights(&w, &o, &err);
        if (st == ST_OK && w.needs.uploads) st = upload_all(&w, &err);
        failed = fake->fail_in == 0;
        fake->fail_in = 0;
        if (failed && n < 400) assert_int_not_equal(st, ST_OK);
        if (!failed) assert_int_equal(st, ST_OK);
        if (st != ST_OK) assert_true(err.code == st && err.text[0]);
        close_world(&w);
    }
    assert_true(n > least);
}

static void loading_fails(void **state)
{
    (void) state;
    uint64_t count[LAYERS * EXPERTS];
    some_counts(count);
    check_loading(NULL, 100);
    ram = main_for(2, 2);
    check_loading(count, 12);
    ram = 0;
}

/* While passes run: that is reported, and the next pass is right. */
static void check_passes(uint64_t main)
{
    World w;
    ram = main;
    Result *got = malloc(sizeof *got);
    const Part part = part_asked();
    enum { STEP = 3 };                             /* calls, of which a pass makes some fifty */
    int32_t n = 1 + STEP * (int32_t) part.from, hits = 0;
    open_world(&w, room_for(4, 2), 0, NULL);
    for (bool failed = true; failed; n += STEP * (int32_t) part.of) {
        fake->fail_with = 719;
        fake->fail_in = n;
        for (int32_t k = 0; k < 5; k++) {
            static const int32_t in_turn[] = { 0, 8, 0, 9, 2 };       /* two sets of experts, of which one has room */
            const int32_t i = in_turn[(k + n) % 5];
            const Pass p = pass_of(i);
            Error err = { 0 };
            const bool armed = fake->fail_in > 0;
            memset(got, 0, sizeof *got);
            begin(&w, 0, &p, got);
            const Status st = w.fork[0]->sync(w.fork[0], &err);
            if (armed && fake->fail_in == 0) assert_true(st == ST_BACKEND && strstr(err.text, "719")), hits++;
            else assert_int_equal(st, ST_OK);
            if (st == ST_OK) same(got, i, "after a failure");
        }
        failed = fake->fail_in == 0;
        fake->fail_in = 0;
    }
    assert_true(hits > 100 / STEP / (int32_t) part.of);
    close_world(&w);
    free(got);
    ram = 0;
}

static void passes_fail(void **state)
{
    (void) state;
    check_passes(0);
    check_passes(main_for(2, 1));
}

/* A file that is cut short meanwhile: passes that read it fail and say so, also where they are recorded, and when it is
 * whole again they are right. */
static void file_fails(void **state)
{
    (void) state;
    World w;
    Error err = { 0 };
    struct stat whole;
    int32_t failed = 0;
    Result *got = malloc(sizeof *got);
    ram = main_for(1, 1);
    open_world(&w, room_for(1, 1), 0, NULL);
    assert_int_equal(stat(path, &whole), 0);
    for (int32_t i = 0; i < PASSES; i++) {
        const Pass p = pass_of(i);
        if (i == 4) assert_int_equal(truncate(path, whole.st_size / 3), 0);
        if (i == 10) write_file();
        memset(got, 0, sizeof *got);
        begin(&w, 0, &p, got);
        const Status st = w.fork[0]->sync(w.fork[0], &err);
        if (st == ST_OK) same(got, i, "around a file that is cut short");
        else assert_true(i >= 4 && i < 10 && strstr(err.text, path));
        failed += st != ST_OK;
    }
    assert_true(failed > 1);
    close_world(&w);
    free(got);
    ram = 0;
}

static int64_t hits_of(World *w)
{
    StoreStats s;
    w->be->store_stats(w->be, &s);
    return s.pinned_hits + s.ring_hits;
}

/* The n-th call that passes make while they end, where counts are read, the table is turned and experts are moved.
 * Slots that could not be filled are not read, nor are those that are filled next, and experts move in afterwards.
 * Returns false if there were fewer calls. */
static bool ending_fails(int32_t n)
{
    World w;
    Result *got = malloc(sizeof *got);
    const int32_t passes = fake->eager ? 3 : 5, all = passes + (fake->eager ? 3 : 5);
    int32_t failed = 0;                            /* passes since then */
    int64_t before = 0;
    open_world(&w, room_for(6, 3), 1, NULL);
    fake->fail_with = 719;
    for (int32_t k = 0; k < all; k++) {
        const bool armed = !failed && k < passes;
        const int32_t i = failed == 2 ? 1 : 0;     /* 1: those who were to give way */
        const Pass p = pass_of(i);
        Error err = { 0 };
        memset(got, 0, sizeof *got);
        begin(&w, 0, &p, got);
        fake->fail_in = armed ? n : 0;
        const Status st = w.fork[0]->sync(w.fork[0], &err);
        failed += failed || (armed && fake->fail_in == 0);
        if (armed && failed) assert_true(st == ST_BACKEND && strstr(err.text, "719"));
        else assert_int_equal(st, ST_OK);
        if (st == ST_OK) same(got, i, "after a failure of what moves");
        if (armed) n = (int32_t) fake->fail_in;
        fake->fail_in = 0;
        if (k == all - 2) before = hits_of(&w);
    }
    assert_true(hits_of(&w) >= before + 3);        /* of nine experts */
    close_world(&w);
    free(got);
    return failed > 0;
}

static void moves_fail(void **state)
{
    (void) state;
    const int32_t step = part_asked().of > 1 ? 3 : 1;
    for (int32_t eager = 0; eager < 2; eager++) {
        int32_t n = 1 + eager;
        fake->eager = eager;
        while (ending_fails(n)) n += step;
        assert_true(n > 20);
    }
    fake->eager = false;
}

/* Once an expert is to give way, what its slot holds is rubbish: no later pass of any fork reads it, not even where the
 * pass that was to wait for the table's change was lost. */
static void given_up(int32_t f, bool lost, const Pass *q, const Result *expected)
{
    enum { TABLE = 4096 };
    World w;
    StoreStats s;
    Error err = { 0 };
    const Pass p = pass_of(0);
    Result *got = malloc(sizeof *got);
    open_world(&w, room_for(1, 1), 0, NULL);       /* expert 0 of layers 0 and 1 */
    run(&w, 0, &p, got);
    same(got, 0, "before");
    w.be->store_stats(w.be, &s);
    assert_int_equal(s.evicted, s.slots);
    Backend *b = w.fork[f];
    if (lost) {
        begin(&w, f, q, got);
        fake->fail_with = 719;
        fake->fail_in = 6;                         /* the wait, behind two copies out and what enters the context */
        assert_int_equal(b->sync(b, &err), ST_BACKEND);
        assert_non_null(strstr(err.text, "waiting for the device"));
    }
    b->fill(b, (uint8_t *) w.memory[0] + TABLE, 0xff, w.needs.bytes - TABLE);
    run(&w, f, q, got);
    if (memcmp(got, expected, sizeof *got) != 0) fail_msg("fork %d reads a slot that was given up (%d)", f, lost);
    close_world(&w);
    free(got);
}

static void slots_given_up(void **state)
{
    (void) state;
    World w;
    int32_t ids[ROWS * USED];
    const Pass q = { PASSES, 4, 11 };
    Result *expected = malloc(sizeof *expected);
    for (int32_t il = 0; il < 2; il++) {
        bool has = false;
        choose(ids, &q, il);
        for (int32_t k = 0; k < q.n * USED; k++) has = has || ids[k] == 0;
        assert_true(has);
    }
    open_world(&w, 0, 0, NULL);
    run(&w, 0, &q, expected);
    close_world(&w);
    for (int32_t f = 0; f < FORKS; f++)
        for (int32_t lost = 0; lost < 2; lost++) given_up(f, lost, &q, expected);
    free(expected);
}

/* A fork may end while its pass is in flight, or experts are on their way: they move for the others all the same. */
static void check_closed_early(uint64_t main)
{
    ram = main;
    Result *got = malloc(sizeof *got);
    for (int32_t passes = 1; passes < 5; passes++) {
        World w;
        StoreStats before, after;
        Error err = { 0 };
        open_world(&w, room_for(2, 1), 0, NULL);
        for (int32_t i = 0; i < passes; i++) {
            const Pass p = pass_of(i);
            begin(&w, 0, &p, got);
            if (i + 1 < passes || passes % 2) must(w.fork[0]->sync(w.fork[0], &err), &err);
        }
        w.be->store_stats(w.be, &before);
        close_fork(&w, 0);
        for (int32_t k = 0; k < 8; k++) {
            const Pass p = pass_of(8);
            run(&w, 1, &p, got);
            same(got, 8, "after a fork was closed");
        }
        w.be->store_stats(w.be, &after);
        assert_true(after.evicted > before.evicted);
        close_world(&w);
    }
    free(got);
    ram = 0;
}

/* Another one that waits for its turn goes on. */
static void check_waiting(void)
{
    World w;
    pthread_t thread;
    Runner runner = { &w, 1, false };
    const Pass p = pass_of(0);
    Result *got = malloc(sizeof *got);
    ram = main_for(1, 1);
    open_world(&w, room_for(2, 1), 0, NULL);
    begin(&w, 0, &p, got);
    assert_int_equal(pthread_create(&thread, NULL, run_many, &runner), 0);
    usleep(20000);
    close_fork(&w, 0);
    pthread_join(thread, NULL);
    assert_false(runner.wrong);
    close_world(&w);
    free(got);
    ram = 0;
}

static void closed_early(void **state)
{
    (void) state;
    check_closed_early(0);
    check_closed_early(main_for(1, 1));
    check_waiting();
}

/* ---- what is refused ---- */

static bool never(void *ud, const char *what, int64_t done, int64_t total)
{
    (void) ud, (void) what, (void) done, (void) total;
    return false;
}

static void refused(void **state)
{
    (void) state;
    World w = { 0 };
    Error err = { 0 };
    must(backend_open(&w.be, "cuda", &(BackendOptions) { .threads = 1 }, &err), &err);
    const int32_t n = describe(&w);
    StoreOptions o = options(4096, 0, NULL);
    assert_int_equal(w.be->store_needs(w.be, &w.needs, w.stacked, n, &o, &err), ST_ARG);
    assert_non_null(strstr(err.text, "expert_vram: 4096 bytes, expected at least "));
    o = options(room_for(12, 6), 13, NULL);
    assert_int_equal(w.be->store_needs(w.be, &w.needs, w.stacked, n, &o, &err), ST_ARG);
    assert_non_null(strstr(err.text, "expert_slots: 13 per layer"));
    o = options(UINT64_MAX, 0, NULL);
    must(w.be->store_needs(w.be, &w.needs, w.stacked, n, &o, &err), &err);
    assert_true(w.needs.bytes == 0 && w.needs.host_bytes == 0);
    o = options(room_for(12, 6), 0, NULL);
    o.progress = never;
    assert_int_equal(place_weights(&w, &o, &err), ST_CANCEL);
    close_world(&w);
}

static int load(void **state)
{
    (void) state;
    fake = gpu_emulated();
    if (!fake) fail_msg("RATOON_CUDA_DRIVER: expected build/libfake_cuda.so (make run-test_gpu_store)");
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (int32_t il = 0; il < LAYERS; il++)
        for (int32_t p = 0; mixture(il) && p < STACKS; p++) {
            const int32_t rows = EXPERTS * (p == STACK_DOWN ? DIM : FFN), cols = p == STACK_DOWN ? FFN : DIM;
            const size_t row_bytes = type_row_bytes(types[il][p], cols);
            float row[DIM > FFN ? DIM : FFN];
            file[il][p] = malloc(row_bytes * (size_t) rows);
            for (int32_t r = 0; r < rows; r++) {
                h_fill(row, cols, (uint64_t) ((il * STACKS + p) * 100000 + r), 1);
                quant_encode(file[il][p] + row_bytes * (size_t) r, types[il][p], row, cols);
            }
        }
    write_file();
    make_right();
    return 0;
}

static int unload(void **state)
{
    (void) state;
    for (int32_t i = 0; i < LAYERS * STACKS; i++) free(file[i / STACKS][i % STACKS]);
    unlink(path);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits), cmocka_unit_test(same_bits_from_file), cmocka_unit_test(two_cards),
        cmocka_unit_test(used_experts_move_in), cmocka_unit_test(passes_in_flight), cmocka_unit_test(two_threads),
        cmocka_unit_test(records), cmocka_unit_test(loading_fails), cmocka_unit_test(passes_fail),
        cmocka_unit_test(file_fails), cmocka_unit_test(moves_fail), cmocka_unit_test(slots_given_up),
        cmocka_unit_test(closed_early), cmocka_unit_test(refused)
    };
    return cmocka_run_group_tests_name("gpu_store", tests, load, unload);
}
