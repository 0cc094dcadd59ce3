/* test_ops.c - the operations of the CPU backend, except the product itself.
 * Two kinds of checks: against plain double loops written here, within a tolerance; and laws that hold bit for bit - every level and
 * thread count, a tree's row and the chain of its path, kept paths and a fresh text, an operation and its repetition. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/kv_units.h"
#include "backend/cpu/level.h"
#include "backend/cpu/matmul.h"
#include "base/mathd.h"
#include "part.h"
#include "rows_helper.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

enum { N_BACKENDS = 6 };
static Backend *backend[N_BACKENDS];               /* 0: portable, one thread; then the fast levels of this machine, the best in what is left, the last with weights in place */

static int setup(void **state)
{
    (void) state;
    int l = 0;
    for (int i = 0; i < N_BACKENDS; i++, l++) {
        while (l < LEVEL_COUNT && !level_here((CpuLevel) l)) l++;
        CpuOptions o = { .threads = 1 + 2 * i % 3, .level = l < LEVEL_COUNT ? level_name((CpuLevel) l) : NULL, .in_place = i == N_BACKENDS - 1 };
        Error err = { 0 };
        if (backend_cpu_open(&backend[i], &o, &err) != ST_OK) {
            fprintf(stderr, "%s\n", err.text);
            return -1;
        }
    }
    for (; l < LEVEL_COUNT; l++) {
        if (!level_here((CpuLevel) l)) continue;
        fprintf(stderr, "level %s has no backend here: N_BACKENDS is too small\n", level_name((CpuLevel) l));
        return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void) state;
    for (int i = 0; i < N_BACKENDS; i++) backend[i]->close(backend[i]);
    return 0;
}

static void same(const char *what, const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0) fail_msg("%s: value %lld is %a, expected %a", what, (long long) i, (double) got[i], (double) want[i]);
}

static void close_to(const char *what, const float *got, const double *want, int64_t n, double tolerance)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * (1 + fabs(want[i]))))
            fail_msg("%s: value %lld is %.9g, expected %.9g", what, (long long) i, (double) got[i], want[i]);
}

static void synced(Backend *b)
{
    Error err = { 0 };
    if (b->sync(b, &err) != ST_OK) fail_msg("%s", err.text);
}

/* ---- rows in, rows out ---- */

typedef struct { const char *name; float out[3][64 * 1030]; double want[64 * 1030]; int32_t n; } RowCase;

/* Runs operation `op` on rows x cols of seeded values; out[0] (and out[1]) receive results, want the double reference of out[0]. */
static bool row_op(Backend *b, int op, int32_t rows, int32_t cols, uint64_t seed, RowCase *c, bool reference)
{
    int64_t n = (int64_t) rows * cols;
    float *x = h_floats(n, seed, 4), *z = h_floats(n, seed + 1, 6), *w = h_floats(cols, seed + 2, 2), *y = c->out[0];
    Tensor tx = h_tensor(T_F32, rows, cols, x), tz = h_tensor(T_F32, rows, cols, z), tw = h_tensor(T_F32, 1, cols, w), ty = h_tensor(T_F32, rows, cols, y),
           t1 = h_tensor(T_F32, rows, cols, c->out[1]);
    double *want = c->want;
    c->n = (int32_t) n;
    memset(c->out[1], 0, sizeof c->out[1]);
    bool known = true;
    switch (op) {
    case 0:
        c->name = "norm";
        b->norm(b, &ty, &tx, &tw, 1e-5f);
        break;
    case 1:
        c->name = "add_norm";
        memcpy(c->out[1], x, sizeof(float) * (size_t) n);
        b->add_norm(b, &ty, &t1, &tz, &tw, 1e-5f);
        break;
    case 2:
        c->name = "head_norm";
        memcpy(y, x, sizeof(float) * (size_t) n);
        b->head_norm(b, &ty, &tw, cols, 1e-6f);
        break;
    case 3:
        c->name = "gated_norm";
        memcpy(y, x, sizeof(float) * (size_t) n);
        b->gated_norm(b, &ty, &tw, &tz, cols, 1e-6f);
        break;
    case 4:
        c->name = "add";
        memcpy(y, x, sizeof(float) * (size_t) n);
        b->add(b, &ty, &tz);
        break;
    case 5:
        c->name = "bias";
        memcpy(y, x, sizeof(float) * (size_t) n);
        b->bias(b, &ty, &tw);
        break;
    case 6:
        c->name = "glu";
        b->glu(b, &ty, &tx, &tz);
        break;
    case 7:
        c->name = "gate";
        memcpy(y, x, sizeof(float) * (size_t) n);
        b->gate(b, &ty, &tz);
        break;
    case 8:
        c->name = "scale";
        memcpy(y, x, sizeof(float) * (size_t) n);
        b->scale(b, &ty, 1.7f, 0);
        break;
    case 9:
        c->name = "softcap";
        memcpy(y, x, sizeof(float) * (size_t) n);
        b->scale(b, &ty, 0.9f, 3);
        break;
    default:
        known = false;
    }
    for (int32_t i = 0; reference && known && i < rows; i++) {
        double squares = 0, eps = op < 2 ? 1e-5 : 1e-6;
        for (int32_t j = 0; j < cols; j++) {
            double v = x[i * cols + j];
            if (op == 1) v = (double) (float) (v + z[i * cols + j]);
            squares += v * v;
        }
        double r = 1 / sqrt(squares / cols + (double) (float) eps);
        for (int32_t j = 0; j < cols; j++) {
            double a = x[i * cols + j], g = z[i * cols + j], sigmoid_a = 1 / (1 + exp(-a)), sigmoid_g = 1 / (1 + exp(-g)), v = 0;
            switch (op) {
            case 0: case 2: v = a * r * w[j]; break;
            case 1: v = (double) (float) (a + g) * r * w[j]; break;
            case 3: v = a * r * w[j] * g * sigmoid_g; break;
            case 4: v = a + g; break;
            case 5: v = a + w[j]; break;
            case 6: v = a * sigmoid_a * g; break;
            case 7: v = a * sigmoid_g; break;
            case 8: v = a * 1.7f; break;
            case 9: v = 3 * tanh(a * 0.9f / 3); break;
            }
            want[i * cols + j] = v;
        }
    }
    free(x), free(z), free(w);
    return known;
}

static void rows_are_right(void **state)
{
    (void) state;
    static const int32_t shape[][2] = { { 1, 1 }, { 3, 7 }, { 2, 16 }, { 5, 33 }, { 1, 1024 }, { 7, 130 }, { 64, 257 }, { 33, 1024 } };
    RowCase *want = malloc(sizeof *want), *got = malloc(sizeof *got);
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
        for (int op = 0; row_op(backend[0], op, shape[k][0], shape[k][1], 100 + k, want, true); op++) {
            close_to(want->name, want->out[0], want->want, want->n, 2e-6);
            for (int i = 1; i < N_BACKENDS; i++) {
                row_op(backend[i], op, shape[k][0], shape[k][1], 100 + k, got, false);
                same(want->name, got->out[0], want->out[0], want->n);
                same(want->name, got->out[1], want->out[1], want->n);
            }
        }
    }
    free(want), free(got);
}

/* Norm and its fused forms agree, whatever rows are around: add_norm = add + norm; head_norm = norm of the heads as rows. */
static void norms_are_one(void **state)
{
    (void) state;
    enum { ROWS = 5, HEADS = 3, DIM = 40, N = ROWS * HEADS * DIM };
    float *x = h_floats(N, 1, 1), *dx = h_floats(N, 2, 1), *w = h_floats(HEADS * DIM, 3, 1), y[N], y2[N], x2[N], x3[N];
    memcpy(x2, x, sizeof x2);
    memcpy(x3, x, sizeof x3);
    Tensor tx = h_tensor(T_F32, ROWS, HEADS * DIM, x), td = h_tensor(T_F32, ROWS, HEADS * DIM, dx), tw = h_tensor(T_F32, 1, HEADS * DIM, w),
           ty = h_tensor(T_F32, ROWS, HEADS * DIM, y), ty2 = h_tensor(T_F32, ROWS, HEADS * DIM, y2), tx2 = h_tensor(T_F32, ROWS, HEADS * DIM, x2);
    Backend *b = backend[3];
    b->add_norm(b, &ty, &tx, &td, &tw, 1e-6f);
    b->add(b, &tx2, &td);
    b->norm(b, &ty2, &tx2, &tw, 1e-6f);
    same("add_norm", y, y2, N);
    same("add_norm x", x, x2, N);
    Tensor wide = h_tensor(T_F32, ROWS, HEADS * DIM, x3), heads = h_tensor(T_F32, ROWS * HEADS, DIM, x2), out = h_tensor(T_F32, ROWS * HEADS, DIM, y), tw1 = h_tensor(T_F32, 1, DIM, w);
    memcpy(x2, x3, sizeof x2);
    b->norm(b, &out, &heads, &tw1, 1e-6f);
    b->head_norm(b, &wide, &tw1, DIM, 1e-6f);
    same("head_norm", x3, y, N);
    free(x), free(dx), free(w);
}

static void rows_move(void **state)
{
    (void) state;
    float x[6 * 8], y0[6 * 4], y1[6 * 4], y[3 * 8], taps[4][5 * 16], f[6 * 16];
    for (int i = 0; i < 48; i++) x[i] = (float) i;
    Pass *p = malloc(sizeof *p);
    LayerSpec spec = { .kind = LAYER_ATTENTION, .kv_heads = 1, .head_dim = 1 };
    Sess *a = sess_open(&spec, 8, 0), *c = sess_open(&spec, 8, 0);
    int32_t token[3] = { 1, 2, 3 };
    pass_open(p);
    pass_add(p, a, SLICE_TREE, 3, token, NULL)->taps = taps[0];
    pass_add(p, c, SLICE_CHAIN, 3, token, NULL)->taps = taps[2];
    p->r.n_logits = 3;
    p->logit_row[0] = 4, p->logit_row[1] = 0, p->logit_row[2] = 5;
    static const int32_t slot[6] = { 4, -1, 0, 1, 2, -1 };
    memcpy(p->tap_slot, slot, sizeof slot);
    for (int k = 0; k < N_BACKENDS; k++) {
        Backend *b = backend[k];
        memset(taps, 0, sizeof taps);
        Tensor tx = h_tensor(T_F32, 6, 8, x), t0 = h_tensor(T_F32, 6, 4, y0), t1 = h_tensor(T_F32, 6, 4, y1), ty = h_tensor(T_F32, 3, 8, y), tf = h_tensor(T_F32, 6, 16, f);
        b->split(b, &t0, &t1, &tx, 2);
        assert_true(y0[0] == 0 && y0[1] == 1 && y0[2] == 4 && y0[3] == 5 && y1[0] == 2 && y1[3] == 7 && y0[20] == 40 && y1[23] == 47);
        b->logit_rows(b, &ty, &tx, &p->r);
        assert_true(y[0] == 32 && y[8] == 0 && y[23] == 47);
        b->tap(b, &tx, &p->r, 1, 2);
        assert_true(taps[0][4 * 16 + 8] == 0 && taps[0][4 * 16 + 15] == 7 && taps[0][8] == 16 && taps[2][1 * 16 + 8] == 24 && taps[2][2 * 16 + 8] == 32);
        assert_true(taps[0][1 * 16 + 8] == 0 && taps[0][0] == 0);
        p->tap_slot[1] = p->tap_slot[5] = 3;
        b->tap_get(b, &tf, &p->r);
        assert_true(f[8] == 0 && f[15] == 7 && f[2 * 16 + 8] == 16 && f[3 * 16 + 8] == 24 && f[4 * 16 + 15] == 39);
        p->tap_slot[1] = p->tap_slot[5] = -1;
        synced(b);
    }
    sess_close(a), sess_close(c);
    free(p);
}

static void rope_turns(void **state)
{
    (void) state;
    enum { HEADS = 3, DIM = 24, ROT = 20, N = 40 };
    Pass *p = malloc(sizeof *p);
    LayerSpec spec = { .kind = LAYER_ATTENTION, .kv_heads = 1, .head_dim = 1 };
    Sess *s = sess_open(&spec, 8, 0);
    int32_t token[N] = { 0 };
    s->P = 200000;
    pass_open(p);
    pass_add(p, s, SLICE_CHAIN, N, token, NULL);
    for (int i = 0; i < N; i++) p->lane[i * POS_LANES + 2] = 7 * i;
    double freq[ROT / 2], want[N * HEADS * DIM];
    int32_t lane_of[ROT / 2];
    for (int i = 0; i < ROT / 2; i++) {
        freq[i] = pow(10000, -2.0 * i / ROT);
        lane_of[i] = i % 3 == 2 ? 2 : 0;
    }
    for (int how = 0; how < 4; how++) {
        float *x = h_floats(N * HEADS * DIM, 9, 1), *first = NULL;
        Rope rope = { ROT, how & 1, how & 2 ? 1.25f : 1, freq, how & 2 ? lane_of : NULL };
        for (int i = 0; i < N; i++) {
            for (int h = 0; h < HEADS; h++) {
                int at = (i * HEADS + h) * DIM;
                for (int j = 0; j < DIM; j++) want[at + j] = x[at + j];
                for (int j = 0; j < ROT / 2; j++) {
                    int a = at + (rope.neox ? j : 2 * j), b = at + (rope.neox ? j + ROT / 2 : 2 * j + 1);
                    double angle = p->lane[i * POS_LANES + (rope.lane_of ? lane_of[j] : 0)] * freq[j], c = cos(angle) * rope.mscale, sn = sin(angle) * rope.mscale;
                    want[a] = x[a] * c - x[b] * sn;
                    want[b] = x[a] * sn + x[b] * c;
                }
            }
        }
        for (int k = 0; k < N_BACKENDS; k++) {
            float *y = h_floats(N * HEADS * DIM, 9, 1);
            Tensor ty = h_tensor(T_F32, N, HEADS * DIM, y);
            backend[k]->rope(backend[k], &ty, &p->r, DIM, &rope);
            close_to("rope", y, want, N * HEADS * DIM, 3e-7);
            if (k == 0) {
                first = y;
                memcpy(x, y, sizeof(float) * N * HEADS * DIM);
                ty.data = x;                       /* the table is reused: turning again is turning by twice the angle */
                backend[k]->rope(backend[k], &ty, &p->r, DIM, &rope);
                free(x);
                x = NULL;
            } else {
                same("rope", y, first, N * HEADS * DIM);
                free(y);
            }
            synced(backend[k]);
        }
        free(first);
    }
    sess_close(s);
    free(p);
}

static void products_share_their_input(void **state)
{
    (void) state;
    enum { ROWS = 37, COLS = 512, OUT = 70 };
    static const Type type[4] = { T_Q4_K, T_Q8_0, T_F32, T_Q6_K };
    float *x = h_floats(ROWS * COLS, 21, 1), *first[4] = { 0 };
    for (int k = 0; k < N_BACKENDS; k++) {
        Backend *b = backend[k];
        Tensor w[4], y[4], *py[4], tx = h_tensor(T_F32, ROWS, COLS, x);
        const Tensor *pw[4];
        for (int j = 0; j < 4; j++) {
            float *f = h_floats(OUT * COLS, (uint64_t) (30 + j), 1);
            uint8_t *file = malloc(type_row_bytes(type[j], COLS) * OUT);
            for (int i = 0; i < OUT; i++) assert_true(quant_encode(file + type_row_bytes(type[j], COLS) * (size_t) i, type[j], f + i * COLS, COLS));
            size_t bytes = b->weight_bytes(b, type[j], OUT, COLS);
            w[j] = h_tensor(type[j], OUT, COLS, b->alloc(b, bytes, "weights"));
            b->upload(b, &w[j], file, 0, UPLOAD_ROWS);           /* in two pieces */
            b->upload(b, &w[j], file + type_row_bytes(type[j], COLS) * UPLOAD_ROWS, UPLOAD_ROWS, OUT - UPLOAD_ROWS);
            y[j] = h_tensor(T_F32, ROWS, OUT, malloc(sizeof(float) * ROWS * OUT));
            pw[j] = &w[j], py[j] = &y[j];
            /* embed reads the same rows from the packed table */
            float e[2 * COLS], row[COLS];
            int32_t id[2] = { 69, 3 };
            Tensor te = h_tensor(T_F32, 2, COLS, e), ti = h_tensor(T_I32, 1, 2, id);
            b->embed(b, &te, &w[j], &ti);
            for (int i = 0; i < 2; i++) {
                quant_decode(row, type[j], file + type_row_bytes(type[j], COLS) * (size_t) id[i], COLS);
                same("embed", e + i * COLS, row, COLS);
            }
            free(f), free(file);
        }
        b->matmul(b, 4, py, pw, &tx);
        for (int j = 0; j < 4; j++) {
            float *alone = malloc(sizeof(float) * OUT);          /* one row and one product at a time */
            for (int i = 0; i < ROWS; i += 9) {
                Tensor xi = h_tensor(T_F32, 1, COLS, x + i * COLS), yi = h_tensor(T_F32, 1, OUT, alone), *pyi = &yi;
                b->matmul(b, 1, &pyi, &pw[j], &xi);
                same("product alone", alone, (float *) y[j].data + i * OUT, OUT);
            }
            free(alone);
            if (k) same("product", y[j].data, first[j], ROWS * OUT);
            else first[j] = y[j].data;
            if (k) free(y[j].data);
            b->release(b, w[j].data, b->weight_bytes(b, type[j], OUT, COLS));
        }
        synced(b);
    }
    for (int j = 0; j < 4; j++) free(first[j]);
    free(x);
}

/* ---- attention ---- */

static const LayerSpec attention[] = {
    { .kind = LAYER_ATTENTION, .heads = 4, .kv_heads = 2, .head_dim = 64, .scale = 0.125f, .k_type = T_F16, .v_type = T_F16 },
    { .kind = LAYER_ATTENTION, .heads = 6, .kv_heads = 1, .head_dim = 40, .scale = 0.2f, .softcap = 5, .k_type = T_F32, .v_type = T_BF16 },
    { .kind = LAYER_ATTENTION, .heads = 3, .kv_heads = 3, .head_dim = 16, .scale = 0.5f, .window = 50, .k_type = T_BF16, .v_type = T_F32 },
    { .kind = LAYER_ATTENTION, .heads = 40, .kv_heads = 1, .head_dim = 8, .scale = 0.3f, .window = 5, .k_type = T_F32, .v_type = T_F32 },
    { .kind = LAYER_ATTENTION, .heads = 6, .kv_heads = 2, .head_dim = 128, .scale = 0.1f, .k_type = T_TQ3_0, .v_type = T_TQ3_0 },
    { .kind = LAYER_ATTENTION, .heads = 4, .kv_heads = 2, .head_dim = 96, .scale = 0.1f, .window = 60, .k_type = T_Q8_0, .v_type = T_Q4_1 },
};
enum { N_ATTENTION = sizeof attention / sizeof *attention };

static const LayerSpec deltas[] = {
    { .kind = LAYER_DELTA, .k_heads = 2, .v_heads = 4, .k_dim = 32, .v_dim = 48, .conv_width = 4, .eps = 1e-6f },
    { .kind = LAYER_DELTA, .k_heads = 1, .v_heads = 1, .k_dim = 20, .v_dim = 13, .conv_width = 3, .eps = 1e-6f },
    { .kind = LAYER_DELTA, .k_heads = 2, .v_heads = 2, .k_dim = 16, .v_dim = 80, .conv_width = 2, .eps = 1e-6f },
};
enum { N_DELTAS = sizeof deltas / sizeof *deltas };

static void random_tokens(int32_t *token, int32_t n, uint64_t *seed)
{
    for (int32_t i = 0; i < n; i++) token[i] = h_pick(seed, 50);
}

/* Commits n random tokens in chunks of at most `chunk`. */
static void grow(Backend *b, Sess *s, int32_t n, int32_t chunk, uint64_t *seed)
{
    int32_t token[H_ROWS];
    Pass *p = malloc(sizeof *p);
    while (n > 0) {
        int32_t take = n < chunk ? n : chunk;
        random_tokens(token, take, seed);
        pass_open(p);
        pass_add(p, s, SLICE_CHAIN, take, token, NULL);
        if (s->spec.kind == LAYER_ATTENTION) pass_put(b, p, &s->spec);
        else free(pass_delta(b, p, &s->spec));
        sess_advance(s);
        n -= take;
    }
    free(p);
}

/* x as attention is to see it: what the type keeps of it. */
static void as_stored(float *x, Type t, int32_t n)
{
    uint8_t row[4096];
    assert_true(type_row_bytes(t, n) <= sizeof row);
    quant_encode(row, t, x, n);
    quant_decode(x, t, row, n);
}

/* How far attention may be from the exact one. Where values have integer codes, each weight of 128 positions is off by up to 1 / 65278 of the
 * largest, in either direction; values are at most 1 here. Rounding the values themselves moved them by a hundred times as much. */
static double allowed(const LayerSpec *s, double otherwise) { return codes_are_integers(s->v_type) ? 1e-4 : otherwise; }

/* q as keys of type t meet it: rounded to 16 bits, block by block, where their codes are integers. */
static void as_asked(double *y, const float *q, Type t, int32_t n)
{
    bool ints = codes_are_integers(t);
    for (int32_t i = 0; i < n; i++) {
        float amax = 0;
        for (int32_t k = i / 32 * 32; ints && k < i / 32 * 32 + 32; k++) amax = fmaxf(amax, fabsf(q[k]));
        y[i] = amax > 0 ? (double) (amax / 32639) * (double) rintf(q[i] * (32639 / amax)) : (double) q[i];
        assert_true(fabs(y[i] - (double) q[i]) <= (double) amax / 64000);    /* half a unit, and floats rounded on the way */
    }
}

/* Attention of the row whose path from position 0 is text[n], in double. */
static void attend_plainly(double *y, const LayerSpec *s, const int32_t *text, int32_t n)
{
    int32_t qc = s->heads * s->head_dim, kc = s->kv_heads * s->head_dim;
    float *q = malloc(sizeof(float) * (size_t) qc), *k = malloc(sizeof(float) * (size_t) (kc * n)), *v = malloc(sizeof(float) * (size_t) (kc * n));
    double *p = malloc(sizeof(double) * (size_t) n), *asked = malloc(sizeof(double) * (size_t) qc);
    for (int32_t i = 0; i < n; i++) {
        uint64_t key = (uint64_t) text[i] << 40 ^ (uint64_t) i << 8;
        h_fill(k + i * kc, kc, key ^ IN_K, 1);
        h_fill(v + i * kc, kc, key ^ IN_V, 1);
        as_stored(k + i * kc, s->k_type, kc);
        as_stored(v + i * kc, s->v_type, kc);
        if (i == n - 1) h_fill(q, qc, key ^ IN_Q, 3);
    }
    as_asked(asked, q, s->k_type, qc);
    for (int32_t h = 0; h < s->heads; h++) {
        int32_t at = h / (s->heads / s->kv_heads) * s->head_dim, first = s->window && n > s->window ? n - s->window : 0;
        double top = -INFINITY, sum = 0;
        for (int32_t i = first; i < n; i++) {
            p[i] = 0;
            for (int32_t c = 0; c < s->head_dim; c++) p[i] += asked[h * s->head_dim + c] * (double) k[i * kc + at + c];
            p[i] *= s->scale;
            if (s->softcap > 0) p[i] = s->softcap * tanh(p[i] / s->softcap);
            top = fmax(top, p[i]);
        }
        for (int32_t i = first; i < n; i++) sum += p[i] = exp(p[i] - top);
        for (int32_t c = 0; c < s->head_dim; c++) {
            double o = 0;
            for (int32_t i = first; i < n; i++) o += p[i] * (double) v[i * kc + at + c];
            y[h * s->head_dim + c] = o / sum;
        }
    }
    free(q), free(k), free(v), free(p), free(asked);
}

static void attention_is_right(void **state)
{
    (void) state;
    static const int32_t length[] = { 8200, 4090, 300, 256, 255, 15, 1 };
    uint64_t seed = 11;
    for (size_t j = 0; j < sizeof length / sizeof *length; j++) {
        for (int k = 0; k < N_ATTENTION; k++) {
            const LayerSpec *spec = &attention[k];
            double want[1024];
            if ((length[j] > 300 && k > 1) || !part_runs()) continue;
            Sess *s = sess_open(spec, H_TEXT, 0);
            grow(backend[3], s, length[j] - 1, 500, &seed);
            int32_t token[12], all[H_TEXT + 12];
            random_tokens(token, 12, &seed);
            memcpy(all, s->text, sizeof(int32_t) * (size_t) s->P);
            memcpy(all + s->P, token, sizeof token);
            float *y = sess_run(backend[0], s, SLICE_CHAIN, 12, token, NULL);
            for (int32_t i = 0; i < 12; i += 11) {
                attend_plainly(want, spec, all, s->P + i + 1);
                close_to("attention", y + i * spec->heads * spec->head_dim, want, spec->heads * spec->head_dim, allowed(spec, 2e-6));
            }
            free(y);
            synced(backend[0]);
            sess_close(s);
        }
    }
}

static const Type kv_types[] = { T_F16, T_BF16, T_Q8_0, T_Q5_1, T_Q5_0, T_Q4_1, T_Q4_0, T_TQ3_0 };
enum { N_KV = sizeof kv_types / sizeof *kv_types };

/* One slice on every backend, bit by bit; the first result stays. */
static float *same_everywhere(Sess *s, SliceKind kind, int32_t n, const int32_t *token, const int32_t *parent, const char *what)
{
    float *first = NULL;
    for (int b = 0; b < N_BACKENDS; b++) {
        float *y = sess_run(backend[b], s, kind, n, token, parent);
        synced(backend[b]);
        if (b == 0) {
            first = y;
            continue;
        }
        same(what, y, first, n * pass_cols(&s->spec));
        free(y);
    }
    return first;
}

/* All 64 pairs, over the border of a tile: a tree on a path that is still to be moved, its rows against the chains of their paths, and
 * against attention in double over what the types keep. Widths and groups of heads take turns, so that all ways of sharing are met. */
static void pairs_are_right(void **state)
{
    (void) state;
    static const struct { int32_t heads, kv_heads; } shapes[] = { { 4, 2 }, { 3, 1 }, { 7, 1 }, { 2, 2 }, { 12, 1 }, { 6, 1 }, { 1, 1 } };
    uint64_t seed = 21;
    for (int kt = 0; kt < N_KV; kt++)
        for (int vt = 0; vt < N_KV; vt++) {
            if (!part_runs()) continue;
            int turn = kt * 3 + vt;
            bool wide = kv_types[kt] == T_TQ3_0 || kv_types[vt] == T_TQ3_0;
            LayerSpec spec = { .kind = LAYER_ATTENTION, .heads = shapes[turn % 7].heads, .kv_heads = shapes[turn % 7].kv_heads, .scale = 0.1f,
                               .head_dim = wide ? 128 + 128 * (turn & 1) : turn % 6 == 5 ? 256 : 32 * (1 + turn % 6), .k_type = kv_types[kt], .v_type = kv_types[vt],
                               .window = turn % 4 == 3 ? 40 : 0, .softcap = turn % 5 == 4 ? 8 : 0 };
            int32_t n = 24, cols = pass_cols(&spec), token[64], parent[64], path[64], all[400], m;
            char what[64];
            double want[12 * 256];
            snprintf(what, sizeof what, "%s/%s", type_info(spec.k_type)->name, type_info(spec.v_type)->name);
            Sess *s = sess_open(&spec, 400, 0);
            grow(backend[turn % N_BACKENDS], s, (turn & 1 ? 97 : 225) + h_pick(&seed, 20), 50, &seed);
            random_tokens(token, 20, &seed);
            h_tree(parent, 20, &seed);
            free(same_everywhere(s, SLICE_TREE, 20, token, parent, what));
            sess_keep(s, path, h_path(path, parent, 10 + h_pick(&seed, 10)));
            random_tokens(token, n, &seed);
            h_tree(parent, n, &seed);
            float *tree = same_everywhere(s, SLICE_TREE, n, token, parent, what);
            for (int32_t row = n - 1; row >= 0; row -= 11) {
                m = h_path(path, parent, row);
                memcpy(all, s->text, sizeof(int32_t) * (size_t) s->P);
                for (int32_t t = 0; t < m; t++) all[s->P + t] = token[path[t]];
                float *y = same_everywhere(s, SLICE_CHAIN, m, all + s->P, NULL, what);
                same(what, tree + row * cols, y + (m - 1) * cols, cols);
                attend_plainly(want, &spec, all, s->P + m);
                close_to(what, tree + row * cols, want, cols, allowed(&spec, 1e-5));
                free(y);
            }
            free(tree);
            sess_close(s);
        }
}

/* Texts of several splits: one row alone, which is cut by splits, and the same row among others, which is not. */
static void splits_are_right(void **state)
{
    (void) state;
    static const int32_t length[] = { 4095, 4096, 8191, 11900 };
    uint64_t seed = 31;
    for (size_t i = 0; i < sizeof length / sizeof *length; i++)
        for (int way = 0; way < 4; way++) {
            if (!part_runs() || (PART > 1 && length[i] > 5000)) continue;
            Type kt = kv_types[(2 * i + (size_t) way) % N_KV], vt = kv_types[(i + 3 * (size_t) way) % N_KV];
            LayerSpec spec = { .kind = LAYER_ATTENTION, .heads = 4, .kv_heads = way == 1 ? 4 : 2, .head_dim = 128, .scale = 0.1f, .k_type = kt, .v_type = vt,
                               .window = way == 3 ? 5000 : 0 };
            int32_t cols = pass_cols(&spec), token[12], zero = 0, root = -1;
            Sess *s = sess_open(&spec, H_TEXT, 0);
            grow(backend[1], s, length[i], 500, &seed);
            random_tokens(token, 12, &seed);
            float *chain = same_everywhere(s, SLICE_CHAIN, 12, token, NULL, "chain over splits");
            float *tree = same_everywhere(s, SLICE_TREE, 12, token, NULL, "tree over splits");
            same("tree over splits", tree, chain, 12 * cols);
            for (int32_t row = 0; row < 6; row++) {
                float *one = same_everywhere(s, SLICE_TREE, 1, token + row, &root, "row over splits");
                same("row over splits", one, chain + row * cols, cols);
                free(one);
                sess_keep(s, &zero, 1);
            }
            double want[512];
            s->text[s->P] = token[6];
            attend_plainly(want, &spec, s->text, s->P + 1);
            close_to("row over splits", chain + 6 * cols, want, cols, allowed(&spec, 1e-5));
            free(chain), free(tree);
            sess_close(s);
        }
}

/* A drafter's ring: contexts of any length in pieces of any size, holes, blocks that see each other or only back. */
static void rings_are_right(void **state)
{
    (void) state;
    uint64_t seed = 5;
    for (int round = 0; round < 24; round++) {
        LayerSpec spec = { .kind = LAYER_ATTENTION, .heads = 4, .kv_heads = 2, .head_dim = 24, .scale = 0.2f, .k_type = T_F16, .v_type = T_F32,
                           .window = round % 3 == 0 ? 0 : round % 3 == 1 ? 40 : 13, .causal = round & 1 };
        int32_t ring = 32 + 16 * (round % 4), n = 9, qc = spec.heads * spec.head_dim, kc = spec.kv_heads * spec.head_dim, token[H_ROWS];
        Sess *s = sess_open(&spec, 0, ring);
        for (int32_t left = h_pick(&seed, 200); left > 0;) {
            int32_t take = 1 + h_pick(&seed, 90);
            Pass *p = malloc(sizeof *p);
            random_tokens(token, take, &seed);
            pass_open(p);
            pass_add(p, s, SLICE_CHAIN, take, token, NULL);
            pass_put(backend[round % N_BACKENDS], p, &spec);
            free(p);
            sess_advance(s);
            left -= take;
        }
        int32_t hole = s->P > 3 ? s->P - 3 : -1;
        if (hole >= 0) s->l[0].slot_pos[hole % ring] = -1;
        random_tokens(token, n, &seed);
        float *first = NULL;
        for (int b = 0; b < N_BACKENDS; b++) {
            float *y = sess_run(backend[b], s, SLICE_BLOCK, n, token, NULL);
            if (b == 0) first = y;
            else {
                same("block on a ring", y, first, n * qc);
                free(y);
            }
        }
        /* In double, from the text. */
        float q[96], k[48], v[48];
        for (int32_t row = 0; row < n; row++) {
            int32_t pos = s->P + row;
            h_fill(q, qc, (uint64_t) token[row] << 40 ^ (uint64_t) pos << 8 ^ IN_Q, 3);
            for (int32_t h = 0; h < spec.heads; h++) {
                double sum = 0, o[24] = { 0 }, want[24];
                for (int32_t at = s->P > ring ? s->P - ring : 0; at < s->P + n; at++) {
                    if (at == hole || (spec.window && pos - at >= spec.window) || (spec.causal && at > pos)) continue;
                    int32_t t = at < s->P ? s->text[at] : token[at - s->P];
                    h_fill(k, kc, (uint64_t) t << 40 ^ (uint64_t) at << 8 ^ IN_K, 1);
                    h_fill(v, kc, (uint64_t) t << 40 ^ (uint64_t) at << 8 ^ IN_V, 1);
                    as_stored(k, T_F16, kc);
                    double dot = 0;
                    for (int c = 0; c < 24; c++) dot += (double) q[h * 24 + c] * (double) k[h / 2 * 24 + c];
                    double p = exp(dot * spec.scale);
                    sum += p;
                    for (int c = 0; c < 24; c++) o[c] += p * v[h / 2 * 24 + c];
                }
                for (int c = 0; c < 24; c++) want[c] = o[c] / sum;
                close_to("block on a ring", first + row * qc + h * 24, want, 24, 2e-6);
            }
        }
        free(first);
        sess_close(s);
    }
}

/* Values whose scale or minimum is zero or no number: who sees one of these has NaN in that block, and nobody else notices. */
static void odd_scales_stay_where_they_are(void **state)
{
    (void) state;
    static const uint16_t odd[] = { 0x7e00, 0x7c00, 0xfc00, 0xfe01 };      /* NaN, both infinities, another NaN */
    uint64_t seed = 77;
    for (int kind = 0; kind < 10; kind++) {
        LayerSpec spec = { .kind = LAYER_ATTENTION, .heads = 4, .kv_heads = 1, .head_dim = 64, .scale = 0.1f, .k_type = T_F16, .v_type = kv_types[2 + kind % 5] };
        const int32_t cols = pass_cols(&spec), at = 150, bad_row = 4;      /* of the chain: position 154 */
        const size_t row_bytes = backend[0]->kv_row_bytes(backend[0], spec.v_type, 64);
        int32_t token[12];
        Sess *s = sess_open(&spec, 400, 0);
        grow(backend[kind % N_BACKENDS], s, at, 50, &seed);
        random_tokens(token, 12, &seed);
        uint8_t *stored = s->l[0].v;
        const UnitHead unit = unit_head(spec.v_type, VALUE_UNIT, 2);
        memset(stored + 2 * 20, 0, 2);             /* a scale of 0 in the text */
        float *first = NULL;
        for (int b = 0; b < N_BACKENDS; b++) {
            Pass *p = malloc(sizeof *p);
            float *y = malloc(sizeof(float) * 12 * (size_t) cols), *q = malloc(sizeof(float) * 12 * (size_t) cols);
            pass_open(p);
            pass_add(p, s, SLICE_CHAIN, 12, token, NULL);
            pass_put(backend[b], p, &spec);
            bool minimum = kind >= 5 && (spec.v_type == T_Q5_1 || spec.v_type == T_Q4_1);
            const int32_t slot = at + bad_row;
            memcpy(stored + unit_offset(row_bytes, 1, VALUE_UNIT, slot, 0) + (minimum ? unit.minima : 0) + 2 * (slot % VALUE_UNIT), &odd[(kind + b) % 4], 2);
            h_fill(q, 12 * cols, 99, 3);
            Tensor ty = h_tensor(T_F32, 12, cols, y), tq = h_tensor(T_F32, 12, cols, q);
            backend[b]->attend(backend[b], &ty, &tq, &p->r, 0, &spec);
            synced(backend[b]);
            for (int32_t i = 0; i < 12; i++)
                for (int32_t c = 0; c < cols; c++) {
                    bool hit = i >= bad_row && c % 64 < 32;
                    if (hit != (bool) isnan(y[i * cols + c])) fail_msg("%s: value %d of row %d is %g", type_info(spec.v_type)->name, (int) c, (int) i, (double) y[i * cols + c]);
                    if (b && !hit && memcmp(&y[i * cols + c], &first[i * cols + c], sizeof *y) != 0) fail_msg("%s: rows differ", type_info(spec.v_type)->name);
                }
            if (b == 0) first = y;
            else free(y);
            free(q), free(p);
        }
        free(first);
        sess_close(s);
    }
}

/* A BLOCK on a linear state lies behind the committed text and sees itself; it moves a noted path out of its way first. */
static void blocks_on_text(void **state)
{
    (void) state;
    uint64_t seed = 8;
    LayerSpec spec = attention[0], causal = attention[0];
    causal.causal = true;
    Sess *s = sess_open(&spec, 400, 0);
    grow(backend[3], s, 250, 100, &seed);
    int32_t token[20], parent[20], path[20];
    random_tokens(token, 20, &seed);
    h_tree(parent, 20, &seed);
    free(sess_run(backend[0], s, SLICE_TREE, 20, token, parent));
    sess_keep(s, path, h_path(path, parent, 19));
    random_tokens(token, 20, &seed);
    int32_t n = pass_cols(&spec);
    float *chain = sess_run(backend[0], s, SLICE_CHAIN, 20, token, NULL);
    s->spec = causal;
    float *back = sess_run(backend[2], s, SLICE_BLOCK, 20, token, NULL);
    s->spec = spec;
    float *both = sess_run(backend[1], s, SLICE_BLOCK, 20, token, NULL);
    same("causal block", back, chain, 20 * n);
    same("last row of a block", both + 19 * n, chain + 19 * n, n);
    assert_true(memcmp(both, chain, sizeof(float) * (size_t) n) != 0);
    free(chain), free(back), free(both);
    sess_close(s);
}

/* ---- laws of state: attention and delta net alike ---- */

static Sess *session_of(const LayerSpec *spec) { return sess_open(spec, 700, 0); }

static void for_each_layer(void (*law)(const LayerSpec *spec, uint64_t seed))
{
    for (int i = 0; i < N_ATTENTION; i++) law(&attention[i], (uint64_t) (100 + i));
    for (int i = 0; i < N_DELTAS; i++) law(&deltas[i], (uint64_t) (200 + i));
}

/* The first n slots of keys or values. */
static void same_slots(const uint8_t *a, const uint8_t *b, Type t, int32_t unit, const LayerSpec *s, int32_t n)
{
    const int32_t blocks = s->head_dim / CODE_COLS;
    const size_t row = type_row_bytes(t, s->kv_heads * s->head_dim);
    if (!codes_are_integers(t)) {
        assert_memory_equal(a, b, row * (size_t) n);
        return;
    }
    const UnitHead h = unit_head(t, unit, blocks);
    for (int32_t slot = 0; slot < n; slot++)
        for (int32_t i = 0; i < s->kv_heads * blocks; i++) {
            const size_t head = unit_offset(row, s->kv_heads, unit, slot, i / blocks);
            uint8_t x[CODE_BLOCK] = { 0 }, y[CODE_BLOCK] = { 0 };
            unit_get(x, a + head, &h, t, unit, slot % unit, i % blocks);
            unit_get(y, b + head, &h, t, unit, slot % unit, i % blocks);
            assert_memory_equal(x, y, sizeof x);
        }
}

/* Committed state of two sessions with the same text; fold first. */
static void same_state(const char *what, const Sess *a, const Sess *b)
{
    assert_int_equal(a->P, b->P);
    if (a->spec.kind == LAYER_ATTENTION) {
        same_slots(a->l[0].k, b->l[0].k, a->spec.k_type, KEY_UNIT, &a->spec, a->P);
        same_slots(a->l[0].v, b->l[0].v, a->spec.v_type, VALUE_UNIT, &a->spec, a->P);
        return;
    }
    size_t m = sess_matrix(&a->spec), w = sess_window(&a->spec);
    same(what, a->l[0].matrix + (size_t) a->set * m, b->l[0].matrix + (size_t) b->set * m, (int64_t) m);
    same(what, a->l[0].window + (size_t) a->set * w, b->l[0].window + (size_t) b->set * w, (int64_t) w);
}

static void tree_law(const LayerSpec *spec, uint64_t seed)
{
    int32_t cols = pass_cols(spec), token[64], parent[64], path[64], chain[64];
    for (int round = 0; round < 6; round++) {
        if (!part_runs()) continue;
        Sess *s = session_of(spec);
        grow(backend[3], s, round < 3 ? h_pick(&seed, 30) : 240 + h_pick(&seed, 20), 64, &seed);
        if (round & 1) {                           /* on a path that is still to be applied */
            random_tokens(token, 20, &seed);
            h_tree(parent, 20, &seed);
            free(sess_run(backend[2], s, SLICE_TREE, 20, token, parent));
            sess_keep(s, path, h_path(path, parent, 12 + h_pick(&seed, 8)));
        }
        int32_t n = round == 5 ? 64 : 1 + h_pick(&seed, 40);
        random_tokens(token, n, &seed);
        h_tree(parent, n, &seed);
        float *tree = sess_run(backend[round % N_BACKENDS], s, SLICE_TREE, n, token, parent);
        for (int32_t row = 0; row < n; row += 1 + n / 12) {
            int32_t m = h_path(path, parent, row);
            for (int32_t t = 0; t < m; t++) chain[t] = token[path[t]];
            float *y = sess_run(backend[0], s, SLICE_CHAIN, m, chain, NULL);
            same("row of a tree", tree + row * cols, y + (m - 1) * cols, cols);
            free(y);
        }
        free(tree);
        sess_close(s);
    }
}

static void tree_rows_are_chains(void **state)
{
    (void) state;
    for_each_layer(tree_law);
}

/* One chain of n rows; n trees of one row; a tree that is a chain; chunks. Outputs and folded state. */
static void single_law(const LayerSpec *spec, uint64_t seed)
{
    enum { N = 150 };
    int32_t cols = pass_cols(spec), token[N], zero = 0, root = -1, path[64];
    Sess *s[4];
    for (int i = 0; i < 4; i++) s[i] = session_of(spec);
    random_tokens(token, N, &seed);
    float *y = sess_run(backend[0], s[0], SLICE_CHAIN, N, token, NULL);
    sess_advance(s[0]);
    for (int32_t i = 0; i < N; i++) {
        float *one = sess_run(backend[3], s[1], SLICE_TREE, 1, token + i, &root);
        same("single row", one, y + i * cols, cols);
        free(one);
        sess_keep(s[1], &zero, 1);
    }
    for (int32_t i = 0; i < 64; i++) path[i] = i;
    for (int32_t at = 0, n; at < N; at += n) {
        n = N - at < 37 ? N - at : 37;
        float *part = sess_run(backend[1], s[2], SLICE_TREE, n, token + at, NULL);
        same("tree that is a chain", part, y + at * cols, n * cols);
        free(part);
        sess_keep(s[2], path, n);
    }
    for (int32_t at = 0, n; at < N; at += n) {
        n = N - at < 70 ? N - at : 70;
        float *part = sess_run(backend[2], s[3], SLICE_CHAIN, n, token + at, NULL);
        same("chunk", part, y + at * cols, n * cols);
        free(part);
        sess_advance(s[3]);
    }
    for (int i = 1; i < 3; i++) sess_fold(backend[0], s[i], s[i]->set);
    for (int i = 1; i < 4; i++) same_state("state", s[i], s[0]);
    free(y);
    for (int i = 0; i < 4; i++) sess_close(s[i]);
}

static void chain_is_single_rows(void **state)
{
    (void) state;
    for_each_layer(single_law);
}

/* Rounds of trees, random paths, sometimes taken back by some rows, sometimes a chunk between; every pass may run twice, as after a
 * cancelled one, and be preceded by a chain that is abandoned. The folded state is that of the text in one chain. */
static void keep_law(const LayerSpec *spec, uint64_t seed)
{
    for (int round = 0; round < 4; round++) {
        if (!part_runs()) continue;
        Sess *s = session_of(spec), *fresh = session_of(spec);
        int32_t cols = pass_cols(spec), token[64], parent[64], path[64];
        for (int step = 0; step < 9; step++) {
            Backend *b = backend[h_pick(&seed, N_BACKENDS)];
            if (h_pick(&seed, 4) == 0) {           /* abandoned */
                random_tokens(token, 30, &seed);
                free(sess_run(b, s, SLICE_CHAIN, 30, token, NULL));
            }
            if (h_pick(&seed, 5) == 0) {           /* a checkpoint: the current set and its noted path stay as they are */
                sess_fold(b, s, 2);
            }
            int32_t n = 1 + h_pick(&seed, 30);
            random_tokens(token, n, &seed);
            if (h_pick(&seed, 4) == 0) {
                free(sess_run(b, s, SLICE_CHAIN, n, token, NULL));
                sess_advance(s);
                continue;
            }
            h_tree(parent, n, &seed);
            float *y = sess_run(b, s, SLICE_TREE, n, token, parent);
            if (h_pick(&seed, 2)) {
                float *again = sess_run(b, s, SLICE_TREE, n, token, parent);
                same("pass run again", again, y, n * cols);
                free(again);
            }
            free(y);
            int32_t kept = h_path(path, parent, h_pick(&seed, n));
            if (h_pick(&seed, 3) == 0) kept = 1 + h_pick(&seed, kept);
            sess_keep(s, path, kept);
        }
        int32_t set = round & 1 ? 2 : s->set;
        sess_fold(backend[0], s, set);
        s->set = set;
        free(sess_run(backend[0], fresh, SLICE_CHAIN, s->P, s->text, NULL));
        fresh->n = s->P;
        sess_advance(fresh);
        same_state("kept state", s, fresh);
        if (!(round & 1)) {                        /* folded in place: folding again changes nothing */
            sess_fold(backend[0], s, set);
            same_state("folded twice", s, fresh);
        }
        sess_close(s), sess_close(fresh);
    }
}

static void keep_is_fresh(void **state)
{
    (void) state;
    for_each_layer(keep_law);
}

/* Each operation runs alone again after its mark is written, as when a pass is cancelled between convolution and delta rule. */
static void marks_are_separate(void **state)
{
    (void) state;
    uint64_t seed = 77;
    const LayerSpec *spec = &deltas[0];
    Sess *s = session_of(spec), *plain = session_of(spec);
    int32_t token[10], parent[10], path[10], n = 0;
    random_tokens(token, 10, &seed);
    h_tree(parent, 10, &seed);
    Sess *both[2] = { s, plain };
    for (int i = 0; i < 2; i++) {
        free(sess_run(backend[0], both[i], SLICE_TREE, 10, token, parent));
        n = h_path(path, parent, 9);
        sess_keep(both[i], path, n);
    }
    random_tokens(token, 10, &seed);
    float *want = sess_run(backend[0], plain, SLICE_TREE, 10, token, parent);
    /* convolution only, with other tokens: its window is folded, the matrix is not */
    Pass *p = malloc(sizeof *p);
    int32_t other[10], ch = sess_channels(spec);
    random_tokens(other, 10, &seed);
    pass_open(p);
    pass_add(p, s, SLICE_TREE, 10, other, NULL);
    float *x = pass_input(p, IN_X, ch, 1), *y = h_floats(10 * ch, 1, 1), *w = delta_w(spec);
    Tensor tx = h_tensor(T_F32, 10, ch, x), ty = h_tensor(T_F32, 10, ch, y), tw = h_tensor(T_F32, ch, spec->conv_width, w);
    backend[1]->conv(backend[1], &ty, &tx, &tw, &p->r, 0, spec);
    assert_true(s->mark[1] == s->gen && s->mark[2] != s->gen);
    float *got = sess_run(backend[0], s, SLICE_TREE, 10, token, parent);
    same("after a cancelled pass", got, want, 10 * pass_cols(spec));
    free(want), free(got), free(x), free(y), free(w), free(p);
    sess_close(s), sess_close(plain);
}

/* Several sessions of different lengths, trees and a chunk in one pass = each alone. */
static void neighbours_law(const LayerSpec *spec, uint64_t seed)
{
    enum { N = 4 };
    Sess *together[N], *alone[N];
    int32_t cols = pass_cols(spec), token[N][64], parent[N][64], n[N], path[64];
    for (int i = 0; i < N; i++) {
        uint64_t one = seed + (uint64_t) i, two = one;
        together[i] = session_of(spec);
        alone[i] = session_of(spec);
        grow(backend[0], together[i], 20 * i * i, 64, &one);
        grow(backend[3], alone[i], 20 * i * i, 33, &two);
    }
    for (int round = 0; round < (PART > 1 ? 1 : 3); round++) {
        for (int k = 0; k < N_BACKENDS; k++) {
            if (k && !part_runs()) continue;
            Pass *p = malloc(sizeof *p);
            pass_open(p);
            for (int i = 0; i < N; i++) {
                if (k == 0) {
                    n[i] = i == N - 1 ? 50 : 1 + h_pick(&seed, 14);
                    random_tokens(token[i], n[i], &seed);
                    h_tree(parent[i], n[i], &seed);
                }
                pass_add(p, together[i], i == N - 1 ? SLICE_CHAIN : SLICE_TREE, n[i], token[i], parent[i]);
            }
            float *y = pass_run(backend[k], p, spec);
            for (int i = 0; i < N; i++) {
                float *mine = sess_run(backend[(k + 1) % N_BACKENDS], alone[i], i == N - 1 ? SLICE_CHAIN : SLICE_TREE, n[i], token[i], parent[i]);
                same("row next to others", y + p->slices[i].row0 * cols, mine, n[i] * cols);
                free(mine);
            }
            free(y), free(p);
        }
        for (int i = 0; i < N; i++) {
            if (i == N - 1) {
                sess_advance(together[i]), sess_advance(alone[i]);
                continue;
            }
            int32_t m = h_path(path, parent[i], n[i] - 1);
            sess_keep(together[i], path, m), sess_keep(alone[i], path, m);
        }
    }
    for (int i = 0; i < N; i++) sess_close(together[i]), sess_close(alone[i]);
}

static void neighbours_do_not_matter(void **state)
{
    (void) state;
    for_each_layer(neighbours_law);
}

/* The delta net over a text, in double. */
static void delta_is_right(void **state)
{
    (void) state;
    for (int k = 0; k < N_DELTAS; k++) {
        const LayerSpec *s = &deltas[k];
        enum { N = 90 };
        uint64_t seed = (uint64_t) (300 + k);
        int32_t token[N], ch = sess_channels(s), keys = s->k_heads * s->k_dim, vals = s->v_heads * s->v_dim;
        random_tokens(token, N, &seed);
        Sess *sess = session_of(s);
        Pass *p = malloc(sizeof *p);
        pass_open(p);
        pass_add(p, sess, SLICE_CHAIN, N, token, NULL);
        float *y = pass_run(backend[0], p, s), *x = pass_input(p, IN_X, ch, 1), *beta = pass_input(p, IN_BETA, s->v_heads, 2), *alpha = pass_input(p, IN_ALPHA, s->v_heads, 2);
        float *w = delta_w(s), *a = delta_a(s), *dt = h_floats(s->v_heads, 79, 1);
        double *S = calloc(sess_matrix(s), sizeof *S), *u = malloc(sizeof *u * (size_t) ch), *want = malloc(sizeof *want * (size_t) vals);
        for (int32_t i = 0; i < N; i++) {
            for (int32_t c = 0; c < ch; c++) {
                u[c] = 0;
                for (int32_t t = 0; t < s->conv_width; t++) {
                    int32_t at = i - (s->conv_width - 1) + t;
                    if (at >= 0) u[c] += (double) w[c * s->conv_width + t] * x[at * ch + c];
                }
                u[c] /= 1 + exp(-u[c]);
            }
            for (int32_t m = 0; m < s->v_heads; m++) {
                double *q = u + m % s->k_heads * s->k_dim, *key = q + keys, *v = u + 2 * keys + m * s->v_dim, qq = 0, kk = 0;
                for (int32_t d = 0; d < s->k_dim; d++) qq += q[d] * q[d], kk += key[d] * key[d];
                double qn = 1 / sqrt(qq + s->eps) / sqrt(s->k_dim), kn = 1 / sqrt(kk + s->eps);
                double decay = exp(a[m] * log1p(exp((double) alpha[i * s->v_heads + m] + dt[m]))), b = 1 / (1 + exp(-(double) beta[i * s->v_heads + m]));
                double *M = S + (size_t) m * (size_t) (s->k_dim * s->v_dim);
                for (int32_t j = 0; j < s->v_dim; j++) {
                    double kv = 0, o = 0;
                    for (int32_t d = 0; d < s->k_dim; d++) kv += key[d] * kn * (M[d * s->v_dim + j] *= decay);
                    for (int32_t d = 0; d < s->k_dim; d++) o += q[d] * qn * (M[d * s->v_dim + j] += key[d] * kn * b * (v[j] - kv));
                    want[m * s->v_dim + j] = o;
                }
            }
            close_to("delta net", y + i * vals, want, vals, 2e-6);
        }
        free(y), free(x), free(beta), free(alpha), free(w), free(a), free(dt), free(S), free(u), free(want), free(p);
        sess_close(sess);
    }
}

/* ---- drafters' extras ---- */

static void block_conv_is_right(void **state)
{
    (void) state;
    enum { DIM = 48, GROUP_OF = 16, TAPS = 2, N = 13 };
    LayerSpec spec = { .kind = LAYER_ATTENTION, .kv_heads = 1, .head_dim = 1 };
    Sess *s[2] = { sess_open(&spec, 8, 0), sess_open(&spec, 8, 0) };
    int32_t token[N] = { 0 };
    Pass *p = malloc(sizeof *p);
    pass_open(p);
    pass_add(p, s[0], SLICE_BLOCK, 5, token, NULL);
    pass_add(p, s[1], SLICE_BLOCK, 8, token, NULL);
    int32_t dc = 2 * TAPS * DIM / GROUP_OF;
    float *x = h_floats(N * DIM, 1, 1), *base = h_floats(2 * TAPS * DIM, 2, 1), *delta = h_floats(N * dc, 3, 1), y[N * DIM], first[2][N * DIM];
    double want[N * DIM];
    for (int side = 0; side < 2; side++) {
        for (int32_t i = 0; i < N; i++) {
            for (int32_t c = 0; c < DIM; c++) {
                double sum = 0;
                for (int32_t t = 0; t < TAPS && t <= (i < 5 ? i : i - 5); t++)
                    sum += ((double) base[(side * TAPS + t) * DIM + c] + delta[i * dc + (side * TAPS + t) * (DIM / GROUP_OF) + c / GROUP_OF]) * x[(i - t) * DIM + c];
                want[i * DIM + c] = sum;
            }
        }
        for (int k = 0; k < N_BACKENDS; k++) {
            Tensor tx = h_tensor(T_F32, N, DIM, x), tb = h_tensor(T_F32, 2 * TAPS, DIM, base), td = h_tensor(T_F32, N, dc, delta), ty = h_tensor(T_F32, N, DIM, y);
            backend[k]->block_conv(backend[k], &ty, &tx, &tb, &td, side, TAPS, GROUP_OF, &p->r);
            close_to("block_conv", y, want, N * DIM, 1e-6);
            if (k == 0) memcpy(first[side], y, sizeof y);
            else same("block_conv", y, first[side], N * DIM);
        }
    }
    free(x), free(base), free(delta), free(p);
    sess_close(s[0]), sess_close(s[1]);
}

static void pair_scores_are_right(void **state)
{
    (void) state;
    enum { VOCAB = 50, RANK = 40, K = 4, N = 7, LOGITS = 5 };
    LayerSpec spec = { .kind = LAYER_ATTENTION, .kv_heads = 1, .head_dim = 1 };
    Sess *s[2] = { sess_open(&spec, 8, 0), sess_open(&spec, 8, 0) };
    int32_t token[N] = { 7, 1, 2, 9, 4, 5, 6 }, id[LOGITS * K];
    uint64_t seed = 4;
    Pass *p = malloc(sizeof *p);
    pass_open(p);
    pass_add(p, s[0], SLICE_BLOCK, 3, token, NULL);
    pass_add(p, s[1], SLICE_BLOCK, 4, token + 3, NULL)->draw.p.temperature = 0.5f;
    static const int32_t logit_row[LOGITS] = { 1, 2, 4, 5, 6 };
    p->r.n_logits = LOGITS;
    memcpy(p->logit_row, logit_row, sizeof logit_row);
    float *pred = h_floats(VOCAB * RANK, 1, 1), *succ = h_floats(VOCAB * RANK, 2, 1), *score = h_floats(LOGITS * K, 3, 5), *g = h_floats(LOGITS * RANK, 4, 1),
          edge[LOGITS * K * K], first[LOGITS * K * K];
    for (int i = 0; i < LOGITS * K; i++) id[i] = h_pick(&seed, VOCAB);
    id[K + 2] = -1;                                /* a place without a candidate */
    score[K + 2] = -INFINITY;
    for (int k = 0; k < N_BACKENDS; k++) {
        Backend *b = backend[k];
        size_t bytes = b->weight_bytes(b, T_F32, VOCAB, RANK);
        Tensor tp = h_tensor(T_F32, VOCAB, RANK, b->alloc(b, bytes, "codebooks")), ts = h_tensor(T_F32, VOCAB, RANK, b->alloc(b, bytes, "codebooks"));
        b->upload(b, &tp, pred, 0, tp.rows);
        b->upload(b, &ts, succ, 0, ts.rows);
        Tensor te = h_tensor(T_F32, LOGITS, K * K, edge), ti = h_tensor(T_I32, LOGITS, K, id), tc = h_tensor(T_F32, LOGITS, K, score), tg = h_tensor(T_F32, LOGITS, RANK, g);
        b->pair_scores(b, &te, &tp, &ts, &ti, &tc, &tg, &p->r);
        if (k == 0) memcpy(first, edge, sizeof edge);
        for (int i = 0; i < LOGITS * K * K; i++) {
            int j = i / K / K, kp = i / K % K, kk = i % K, prev = j == 0 ? 7 : j == 2 ? 9 : id[(j - 1) * K + kp], next = id[j * K + kk];
            if (prev < 0 || next < 0) {
                assert_true(edge[i] == -INFINITY);
                continue;
            }
            double want = 0;
            for (int r = 0; r < RANK; r++) want += (double) pred[prev * RANK + r] * g[j * RANK + r] * succ[next * RANK + r];
            want = score[j * K + kk] + want / (j < 2 ? 1 : 0.5);
            close_to("pair_scores", &edge[i], &want, 1, 2e-6);
            same("pair_scores", &edge[i], &first[i], 1);
        }
        b->release(b, tp.data, bytes), b->release(b, ts.data, bytes);
        synced(b);
    }
    free(pred), free(succ), free(score), free(g), free(p);
    sess_close(s[0]), sess_close(s[1]);
}

static void top_k_is_draw(void **state)
{
    (void) state;
    enum { VOCAB = 1000, N = 6, K = 5 };
    LayerSpec spec = { .kind = LAYER_ATTENTION, .kv_heads = 1, .head_dim = 1 };
    Sess *s = sess_open(&spec, 8, 0);
    int32_t token[N] = { 0 }, id[N * K], want_id[K];
    Pass *p = malloc(sizeof *p);
    s->P = 123;
    pass_open(p);
    Slice *sl = pass_add(p, s, SLICE_BLOCK, N, token, NULL);
    sl->draw.p.temperature = 0.8f;
    sl->draw.p.seed = 99;
    pass_want_all(p);
    float *logits = h_floats(N * VOCAB, 5, 8), score[N * K], want[K];
    void *scratch = aligned_alloc(64, (draw_scratch(VOCAB) + 63) / 64 * 64);
    for (int k = 0; k < N_BACKENDS; k++) {
        Tensor ti = h_tensor(T_I32, N, K, id), ts = h_tensor(T_F32, N, K, score), tl = h_tensor(T_F32, N, VOCAB, logits);
        backend[k]->top_k(backend[k], &ti, &ts, &tl, &p->r, K);
        for (int i = 0; i < N; i++) {
            draw_top_k(want_id, want, K, &sl->draw, logits + i * VOCAB, VOCAB, 123 + i, scratch);
            assert_memory_equal(want_id, id + i * K, sizeof want_id);
            same("top_k", score + i * K, want, K);
        }
        synced(backend[k]);
    }
    free(scratch), free(logits), free(p);
    sess_close(s);
}

/* ---- memory and failures ---- */

static void failures_stick(void **state)
{
    (void) state;
    Backend *b = backend[0];
    float table[4 * 32] = { 1 }, x[2 * 32] = { 5, 6 }, dx[2 * 32] = { 1 };
    int32_t id[2] = { 1, 4 };
    size_t bytes = b->weight_bytes(b, T_F32, 4, 32);
    Tensor tt = h_tensor(T_F32, 4, 32, b->alloc(b, bytes, "table")), tx = h_tensor(T_F32, 2, 32, x), td = h_tensor(T_F32, 2, 32, dx), ti = h_tensor(T_I32, 1, 2, id);
    b->upload(b, &tt, table, 0, tt.rows);
    b->embed(b, &tx, &tt, &ti);
    b->add(b, &tx, &td);
    b->copy_in(b, x, dx, sizeof x);
    assert_true(x[0] == 5 && x[1] == 6);           /* nothing was done after the failure */
    Error err = { 0 };
    assert_int_equal(b->sync(b, &err), ST_ARG);
    assert_string_equal(err.text, "embedding: token 4, expected 0 to 3");
    assert_int_equal(b->sync(b, &err), ST_OK);
    b->add(b, &tx, &td);
    assert_true(x[0] == 6);
    Tensor bad = h_tensor(T_I32, 4, 32, tt.data);
    b->upload(b, &bad, table, 0, bad.rows);
    assert_int_equal(b->sync(b, &err), ST_UNSUPPORTED);
    assert_null(b->alloc(b, (size_t) 1 << 62, "keys/values"));
    assert_int_equal(b->sync(b, &err), ST_MEMORY);
    b->release(b, tt.data, bytes);
    assert_int_equal(b->weight_bytes(b, T_I32, 4, 32), 0);
    assert_int_equal(b->kv_row_bytes(b, T_Q8_0, 48), 0);
    assert_int_equal(b->kv_row_bytes(b, T_Q8_0, 64), 68);
    assert_int_equal(b->kv_row_bytes(b, T_Q4_K, 256), 0);
    assert_int_equal(b->kv_row_bytes(b, T_TQ3_0, 256), 112);
    assert_int_equal(b->kv_row_bytes(b, T_F16, 64), 128);
    assert_int_equal(b->kv_slots(b, T_F16, true), 1);
    assert_int_equal(b->kv_slots(b, T_Q4_0, false), KEY_UNIT);
    assert_int_equal(b->kv_slots(b, T_Q4_0, true), VALUE_UNIT);
    Backend *none;
    assert_int_equal(backend_cpu_open(&none, &(CpuOptions) { .threads = 1, .level = "mmx" }, &err), ST_ARG);
    assert_null(none);
    assert_int_equal(backend_cpu_open(&none, &(CpuOptions) { .threads = -1 }, &err), ST_ARG);
    assert_null(none);
}

/* Units of slots and rings do not go together: the operation says so and names both types. */
static void rings_take_no_units(void **state)
{
    (void) state;
    for (int i = 0; i < 4; i++) {
        const bool keys = i & 1, values = i & 2;
        LayerSpec spec = { .kind = LAYER_ATTENTION, .heads = 2, .kv_heads = 1, .head_dim = 32, .scale = 0.1f, .k_type = keys ? T_Q8_0 : T_F16, .v_type = values ? T_Q4_0 : T_BF16 };
        Sess *s = sess_open(&spec, 0, 64);
        float q[64] = { 0 }, y[64];
        int32_t token = 1;
        Pass *p = malloc(sizeof *p);
        Error err = { 0 };
        pass_open(p);
        pass_add(p, s, SLICE_BLOCK, 1, &token, NULL);
        Tensor ty = h_tensor(T_F32, 1, 64, y), tq = h_tensor(T_F32, 1, 64, q);
        backend[0]->attend(backend[0], &ty, &tq, &p->r, 0, &spec);
        const Status st = backend[0]->sync(backend[0], &err);
        if (keys || values) {
            assert_int_equal(st, ST_UNSUPPORTED);
            assert_non_null(strstr(err.text, type_info(spec.k_type)->name));
            assert_non_null(strstr(err.text, type_info(spec.v_type)->name));
        } else {
            assert_int_equal(st, ST_OK);
        }
        free(p);
        sess_close(s);
    }
}

static void memory_is_zero(void **state)
{
    (void) state;
    Backend *b = backend[0];
    static const size_t size[] = { 0, 1, 100, (size_t) 3 << 20 };
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        for (int again = 0; again < 2; again++) {
            uint8_t *p = b->alloc(b, size[i], "test"), sum = 0, host[64] = { 9, 8, 7 };
            assert_non_null(p);
            assert_int_equal((uintptr_t) p % 64, 0);
            for (size_t j = 0; j < size[i]; j++) sum |= p[j];
            assert_int_equal(sum, 0);
            if (size[i] >= 100) {
                b->copy_in(b, p, host, 64);
                b->copy(b, p + 1, p, 64);
                b->fill(b, p + 70, 0xff, 2);
                uint8_t back[8];
                b->copy_out(b, back, p, 8);
                assert_true(back[0] == 9 && back[1] == 9 && back[3] == 7 && p[70] == 0xff && p[72] == 0);
                assert_ptr_equal(b->view(b, back, p, 8), p);
            }
            b->release(b, p, size[i]);
        }
    }
    assert_true(b->own_bytes(b) > (size_t) 1 << 20);
    assert_false(b->pass_begin(b, "key", 3));
    b->pass_end(b, true);
    synced(b);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_right), cmocka_unit_test(norms_are_one), cmocka_unit_test(rows_move), cmocka_unit_test(rope_turns),
        cmocka_unit_test(products_share_their_input), cmocka_unit_test(attention_is_right), cmocka_unit_test(pairs_are_right),
        cmocka_unit_test(splits_are_right), cmocka_unit_test(rings_are_right), cmocka_unit_test(odd_scales_stay_where_they_are),
        cmocka_unit_test(blocks_on_text), cmocka_unit_test(tree_rows_are_chains), cmocka_unit_test(chain_is_single_rows),
        cmocka_unit_test(keep_is_fresh), cmocka_unit_test(marks_are_separate), cmocka_unit_test(neighbours_do_not_matter),
        cmocka_unit_test(delta_is_right), cmocka_unit_test(block_conv_is_right), cmocka_unit_test(pair_scores_are_right),
        cmocka_unit_test(top_k_is_draw), cmocka_unit_test(failures_stick), cmocka_unit_test(rings_take_no_units), cmocka_unit_test(memory_is_zero),
    };
    return cmocka_run_group_tests_name("ops", tests, setup, teardown);
}
