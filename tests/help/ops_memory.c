/* ops_memory.c - memory, order and failures; keys and values saved and loaded. */
#include <stdio.h>
#include <string.h>

#include "backend/cpu/kv_store.h"
#include "ops_cases.h"
#include "ops_pass.h"

/* ---- keys and values as images ---- */

enum { KV_TEXT = 160 };

/* Writes what kv_put was given for one slot, encoded by the type, into an image (doc/cache.md): a slot's row, or its
 * place in a panel. */
static void put_encoded(Run *r, uint8_t *image, const LayerSpec *s, bool values, int32_t slot, int32_t token)
{
    const Type t = values ? s->v_type : s->k_type;
    const int32_t panel = kv_panel(t, !values), dim = values ? value_dim(s) : s->head_dim, cols = s->kv_heads * dim,
                  blocks = dim / CODE_COLS;
    const size_t mark = r->n_held, row = type_row_bytes(t, cols);
    float *x = run_host(r, sizeof *x * (size_t) cols);
    pass_fill(x, token, slot, values ? IN_V : IN_K, cols, 1);
    for (int32_t h = 0; h < s->kv_heads; h++) {
        uint8_t *head = image + panel_offset(row, s->kv_heads, panel, slot, h), block[CODE_BLOCK];
        if (!codes_are_integers(t)) {
            quant_encode(head, t, x + h * dim, dim);
            continue;
        }
        const PanelHead at = panel_head(t, panel, blocks);
        for (int32_t c = 0; c < blocks; c++) {
            quant_encode(block, t, x + h * dim + c * CODE_COLS, CODE_COLS);
            panel_put(head, &at, t, panel, slot % panel, c, block);
        }
    }
    run_drop(r, mark);
}

/* Every kept slot is as encoded, and the image has nothing else. */
static void expect_image(Run *r, const uint8_t *got, const Sess *s, bool values, int32_t n, const uint8_t *keep)
{
    const size_t bytes = r->b->kv_bytes(r->b, &s->spec, values, n);
    uint8_t *want = run_host(r, bytes);
    for (int32_t slot = 0; slot < n; slot++)
        if (!keep || keep[slot]) put_encoded(r, want, &s->spec, values, slot, s->text[slot]);
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != want[i])
            run_fail(r, "%s of %d slots%s: byte %zu is %d, expected %d", values ? "values" : "keys", (int) n,
                     keep ? ", some left out" : "", i, got[i], want[i]);
    run_give_bytes(r, "image", got, bytes);
}

/* Saves over bytes that are not zero. */
static uint8_t *saved(Run *r, const Sess *s, bool values, int32_t n, const uint8_t *keep)
{
    const size_t bytes = r->b->kv_bytes(r->b, &s->spec, values, n);
    uint8_t *image = run_host(r, bytes);
    memset(image, 0xaa, bytes);
    r->b->kv_save(r->b, &s->spec, values, values ? s->l.v : s->l.k, n, keep, image);
    run_settle(r);
    return image;
}

static int32_t kv_length(const Turn *t)
{
    static const int32_t length[] = { 1, 16, 37, 128, 150 };
    return length[t->round];
}

/* The first slots of a longer text: all of them, or with some left out. */
void ops_kv_save(Run *r, const Turn *t)
{
    const int32_t n = kv_length(t);
    uint64_t seed = 41 + (uint64_t) t->turn;
    uint8_t keep[KV_TEXT];
    for (int32_t i = 0; i < n; i++) keep[i] = h_pick(&seed, 3) > 0;
    Sess *s = sess_open(r, &t->layer, KV_TEXT, 0);
    sess_grow(r, s, KV_TEXT, 70, &seed);
    for (int values = 0; values < 2; values++) {
        expect_image(r, saved(r, s, values, n, NULL), s, values, n, NULL);
        expect_image(r, saved(r, s, values, n, keep), s, values, n, keep);
    }
}

/* Loaded into another session and saved again, with slots left out and without: the same bytes; and rows that read the
 * loaded slots have the values they had. */
void ops_kv_load(Run *r, const Turn *t)
{
    enum { N = 5 };
    const int32_t n = kv_length(t);
    uint64_t seed = 51 + (uint64_t) t->turn;
    int32_t token[N];
    uint8_t keep[KV_TEXT];
    for (int32_t i = 0; i < n; i++) keep[i] = h_pick(&seed, 3) > 0;
    Sess *s = sess_open(r, &t->layer, KV_TEXT, 0), *back = sess_open(r, &t->layer, KV_TEXT, 0);
    sess_grow(r, s, n, 70, &seed);
    for (int holes = 1; holes >= 0; holes--)
        for (int values = 0; values < 2; values++) {
            const size_t bytes = r->b->kv_bytes(r->b, &s->spec, values, n);
            const uint8_t *image = saved(r, s, values, n, holes ? keep : NULL);
            r->b->kv_load(r->b, &s->spec, values, values ? back->l.v : back->l.k, n, image);
            run_must(r, memcmp(saved(r, back, values, n, NULL), image, bytes) == 0, "an image loaded and saved again");
            run_give_bytes(r, "image", image, bytes);
        }
    back->P = s->P;
    random_tokens(token, N, &seed);
    const float *want = sess_run(r, s, SLICE_CHAIN, N, token, NULL);
    run_same(r, "rows over what was loaded", sess_run(r, back, SLICE_CHAIN, N, token, NULL), want,
             N * pass_cols(&t->layer));
}

/* An image is as long as kv_bytes says, on every backend; 0: no type for keys and values, or heads that are not whole
 * blocks. */
void ops_kv_bytes(Run *r, const Turn *t)
{
    (void) t;
    static const struct { Type t; int32_t dim, slots; bool values; size_t bytes; } kv[] = {
        { T_Q8_0, 48, 1, false, 0 }, { T_Q4_K, 256, 1, false, 0 }, { T_TQ3_0, 256, 3, true, 3 * 112 },
        { T_F16, 64, 5, true, 5 * 128 },
        { T_Q8_0, 64, 1, false, KEY_PANEL * 68 }, { T_Q4_0, 64, KEY_PANEL + 1, false, 2 * KEY_PANEL * 36 },
        { T_Q4_0, 64, VALUE_PANEL, true, VALUE_PANEL * 36 },
        { T_Q4_0, 64, VALUE_PANEL + 1, true, 2 * VALUE_PANEL * 36 }, { T_Q4_0, 64, 0, true, 0 },
    };
    for (size_t i = 0; i < sizeof kv / sizeof *kv; i++) {
        const LayerSpec spec = { .kind = LAYER_ATTENTION, .kv_heads = 1, .head_dim = kv[i].dim, .k_type = kv[i].t,
                                 .v_type = kv[i].t };
        const size_t got = r->b->kv_bytes(r->b, &spec, kv[i].values, kv[i].slots);
        if (got != kv[i].bytes) run_fail(r, "case %zu takes %zu bytes, expected %zu", i, got, kv[i].bytes);
    }
}

/* ---- memory ---- */

static void expect_zero(Run *r, const void *p, size_t bytes)
{
    const size_t mark = r->n_held;
    uint8_t *host = run_host(r, bytes), sum = 0;
    run_fetch(r, host, p, bytes);
    for (size_t i = 0; i < bytes; i++) sum |= host[i];
    run_must(r, sum == 0, "new memory of zeros");
    run_drop(r, mark);
}

/* Aligned; zero even if used before; copies, fills and views. */
void ops_memory(Run *r, const Turn *t)
{
    (void) t;
    static const size_t size[] = { 0, 1, 100, (size_t) 3 << 20 };
    for (size_t i = 0; i < 2 * sizeof size / sizeof *size; i++) {
        const size_t mark = r->n_held, bytes = size[i / 2];
        uint8_t host[64] = { 9, 8, 7 }, back[73], *p = run_memory(r, bytes, NULL);
        run_must(r, (uintptr_t) p % 64 == 0, "memory aligned to 64 bytes");
        expect_zero(r, p, bytes);
        if (bytes >= 100) {
            r->b->copy_in(r->b, p, host, sizeof host);
            memset(host, 1, sizeof host);          /* captured before copy_in returned */
            r->b->copy(r->b, p + 1, p, 64);
            r->b->fill(r->b, p + 70, 0xff, 2);
            run_fetch(r, back, p, sizeof back);
            run_must(r, back[0] == 9 && back[1] == 9 && back[2] == 8 && back[3] == 7 && back[64] == 0, "copies");
            run_must(r, back[69] == 0 && back[70] == 0xff && back[71] == 0xff && back[72] == 0, "a fill of two bytes");
            run_must(r, memcmp(r->b->view(r->b, host, p, 8), back, 8) == 0, "a view of what is there");
        }
        run_drop(r, mark);
    }
    if (run_is_cpu(r)) {
        uint8_t buf[8], *p = run_memory(r, 100, NULL);
        run_must(r, r->b->view(r->b, buf, p, 8) == p, "a view without a copy");
        run_must(r, r->b->fork_bytes(r->b, 0) > (size_t) 1 << 20, "threads' workspace counted");
    }
}

/* A pass of one key again and again: recorded or made anew, it reads the memory's content at the time it runs.
 * Recording it runs nothing. */
void ops_replay(Run *r, const Turn *t)
{
    enum { N = 5 };
    Mat x = mat_make(r, t->rows, t->cols, 1, 1), dx = mat_make(r, t->rows, t->cols, 2, 1);
    const int32_t n = t->rows * t->cols;
    char key[32] = { 0 };
    snprintf(key, sizeof key, "%s %d", t->name, (int) t->turn);
    if (r->b->prepare) {
        r->b->prepare(r->b, true);
        run_must(r, !r->b->pass_begin(r->b, key, sizeof key), "a pass to be recorded");
        r->b->add(r->b, &x.t, &dx.t);
        r->b->pass_end(r->b, true);
        run_must(r, r->b->pass_begin(r->b, key, sizeof key), "a pass recorded once");
        r->b->prepare(r->b, false);
        run_same(r, t->name, mat_get(r, &x.t), x.h, n);
    }
    for (int i = 0; i < N; i++) {
        x.h[0] = (float) i;
        r->b->copy_in(r->b, x.t.data, x.h, sizeof(float) * (size_t) n);
        if (!r->b->pass_begin(r->b, key, sizeof key)) {
            r->b->add(r->b, &x.t, &dx.t);
            r->b->pass_end(r->b, true);
        }
        const float *got = mat_get(r, &x.t);
        for (int32_t k = 0; k < n; k++) {
            const float want = x.h[k] + dx.h[k];
            run_same(r, t->name, &got[k], &want, 1);
        }
    }
    run_must(r, !r->b->pass_begin(r->b, NULL, 0), "a pass without a key, which is not recorded");
    r->b->add(r->b, &x.t, &dx.t);
    r->b->pass_end(r->b, false);
    run_settle(r);
}

/* ---- failures ---- */

/* After the first failure nothing runs until sync has reported it. A GPU finds it while it works on what was queued
 * behind, so x, which is set again, need not be what it was. */
static void expect_stuck(Run *r, const Tensor *x, const float *want, Status cpu, const char *text)
{
    Error err = { 0 };
    const Status st = r->b->sync(r->b, &err);
    const bool ours = run_is_cpu(r) || run_is_gpu(r);
    if (st == ST_OK || (ours && st != cpu)) run_fail(r, "status %d, expected %d", (int) st, (int) cpu);
    if (ours && strcmp(err.text, text) != 0) run_fail(r, "'%s', expected '%s'", err.text, text);
    run_must(r, err.text[0] != 0, "a failure that says what it is");
    run_settle(r);
    if (run_is_gpu(r)) r->b->copy_in(r->b, x->data, want, sizeof *want * (size_t) x->rows * (size_t) x->cols);
    run_same(r, "x after a failure", mat_get(r, x), want, x->rows * x->cols);
}

/* A token beyond the table. */
void ops_failures(Run *r, const Turn *t)
{
    enum { ROWS = 4, COLS = 32 };
    (void) t;
    const int32_t id[2] = { 1, ROWS };
    float *table = h_floats(ROWS * COLS, 1, 1), *sum = run_host(r, sizeof *sum * 2 * COLS);
    Tensor w = h_tensor(T_F32, ROWS, COLS, run_memory(r, r->b->weight_bytes(r->b, T_F32, ROWS, COLS), NULL)),
           ids = mat_ids(r, 1, 2, id);
    Mat x = mat_make(r, 2, COLS, 5, 1), dx = mat_make(r, 2, COLS, 6, 1);
    r->b->upload(r->b, &w, 0, table, 0, w.rows);
    free(table);
    run_settle(r);
    Tensor y = mat_of(r, 2, COLS, x.h).t;
    r->b->embed(r->b, &y, &w, &ids);
    r->b->add(r->b, &x.t, &dx.t);
    r->b->copy_in(r->b, x.t.data, dx.h, sizeof *sum * 2 * COLS);
    expect_stuck(r, &x.t, x.h, ST_ARG, "embedding: token 4, expected 0 to 3");
    for (int32_t i = 0; i < 2 * COLS; i++) sum[i] = x.h[i] + dx.h[i];
    r->b->add(r->b, &x.t, &dx.t);
    run_same(r, "x after all", mat_get(r, &x.t), sum, 2 * COLS);
    run_must(r, r->b->weight_bytes(r->b, T_I32, ROWS, COLS) == 0, "no weights of I32");
    run_must(r, !r->b->alloc(r->b, (size_t) 1 << 62, "keys/values"), "no memory of 2^62 bytes");
    run_must(r, r->b->sync(r->b, &(Error) { 0 }) == ST_MEMORY, "the status of no memory");
}

/* Messages and statuses of the CPU backend, and unknown names. */
void ops_cpu_refusals(Run *r, const Turn *t)
{
    (void) t;
    static const char *const unknown[] = { "", "gpu", "cp", "cpux", "auto:x", ":avx2" };
    Error err = { 0 };
    Backend *no;
    float row[32] = { 0 };
    Tensor bad = h_tensor(T_I32, 1, 32, run_memory(r, sizeof row, NULL));
    r->b->upload(r->b, &bad, 0, row, 0, bad.rows);
    run_must(r, r->b->sync(r->b, &err) == ST_UNSUPPORTED, "a type that is no weight refused");
    Status st = backend_open(&no, "cpu:mmx", &(BackendOptions) { .threads = 1 }, &err);
    run_must(r, st == ST_ARG && !no, "no level mmx");
    st = backend_open(&no, "cpu", &(BackendOptions) { .threads = -1 }, &err);
    run_must(r, st == ST_ARG && !no, "no -1 threads");
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        st = backend_open(&no, unknown[i], &(BackendOptions) { .threads = 1 }, &err);
        if (st != ST_UNSUPPORTED || no || !strstr(err.text, "auto, cpu"))
            run_fail(r, "backend '%s': '%s', expected the names there are", unknown[i], err.text);
    }
}

/* Panels of slots and rings exclude each other: the operation says so and names both types. Rounds: keys, values. */
void ops_rings_without_panels(Run *r, const Turn *t)
{
    const bool keys = t->round & 1, values = t->round & 2;
    const LayerSpec spec = { .kind = LAYER_ATTENTION, .heads = 2, .kv_heads = 1, .head_dim = 32, .scale = 0.1f,
                             .k_type = keys ? T_Q8_0 : T_F16, .v_type = values ? T_Q4_0 : T_BF16 };
    const int32_t token = 1;
    Error err = { 0 };
    Sess *s = sess_open(r, &spec, 0, 64);
    Pass *p = pass_open(r);
    pass_add(p, s, SLICE_BLOCK, 1, &token, NULL);
    Mat q = mat_make(r, 1, 64, 1, 0);
    Tensor y = mat_blank(r, 1, 64);
    r->b->attend(r->b, &y, &q.t, pass_rows(r, p), 0, &spec);
    const Status st = r->b->sync(r->b, &err);
    if (!keys && !values) {
        run_must(r, st == ST_OK, "plain slots in a ring");
        return;
    }
    run_must(r, st == ST_UNSUPPORTED, "panels in a ring refused");
    run_must(r, strstr(err.text, type_info(spec.k_type)->name) && strstr(err.text, type_info(spec.v_type)->name),
             "both types named");
}
