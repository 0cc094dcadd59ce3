/* ops_moves.c - operations that move rows, rotation, products. */
#include <math.h>
#include <string.h>

#include "ops_cases.h"
#include "ops_pass.h"

/* By a table of its own. */
static void call_rope(Run *r, Tensor *x, const Rows *rows, int32_t head_dim, const Rope *rope)
{
    Tensor turn = mat_blank(r, x->rows, rope->n_rot);
    r->b->rope_table(r->b, &turn, rows, rope);
    r->b->rope(r->b, x, &turn, head_dim, rope);
}

/* Value i is i. */
static Mat counted(Run *r, int32_t rows, int32_t cols)
{
    float *x = run_host(r, sizeof *x * (size_t) rows * (size_t) cols);
    for (int32_t i = 0; i < rows * cols; i++) x[i] = (float) i;
    return mat_of(r, rows, cols, x);
}

/* Groups of t->round + 1 columns; the last group, and with it y1, may be shorter. */
void ops_split(Run *r, const Turn *t)
{
    const int32_t width = t->round + 1;
    int32_t cols[2] = { 0, 0 };
    for (int32_t j = 0; j < t->cols; j++) cols[j / width % 2]++;
    Mat x = counted(r, t->rows, t->cols);
    Tensor y[2] = { mat_blank(r, t->rows, cols[0]), mat_blank(r, t->rows, cols[1]) };
    r->b->split(r->b, &y[0], &y[1], &x.t, width);
    const float *got[2] = { mat_get(r, &y[0]), mat_get(r, &y[1]) };
    for (int32_t i = 0; i < t->rows; i++) {
        int32_t at[2] = { 0, 0 };
        for (int32_t j = 0; j < t->cols; j++) {
            const int side = j / width % 2;
            run_must(r, got[side][i * cols[side] + at[side]++] == x.h[i * t->cols + j], "groups dealt out in turn");
        }
    }
}

void ops_join(Run *r, const Turn *t)
{
    const int32_t left = t->cols, right = t->cols / 2 + 1, cols = left + right;
    Mat x0 = counted(r, t->rows, left), x1 = mat_make(r, t->rows, right, 3, 1);
    Tensor y = mat_blank(r, t->rows, cols);
    r->b->join(r->b, &y, &x0.t, &x1.t);
    const float *got = mat_get(r, &y);
    for (int32_t i = 0; i < t->rows; i++) {
        run_same(r, "left", got + i * cols, x0.h + i * left, left);
        run_same(r, "right", got + i * cols + left, x1.h + i * right, right);
    }
}

/* Three rows of a tree, three of a chain; four of them have a slot among their session's taps. */
typedef struct { Pass *p; float *taps[2]; } Tapped;
enum { TAP_ROWS = 6, TAP_COLS = 8, N_TAPS = 2, TAP_SLOTS = 5, TAP_FLOATS = TAP_SLOTS * N_TAPS * TAP_COLS };

static Tapped tapped(Run *r)
{
    static const LayerSpec none = { .kind = LAYER_NONE };
    static const int32_t token[3] = { 1, 2, 3 }, slot[TAP_ROWS] = { 4, -1, 0, 1, 2, -1 };
    Tapped t = { pass_open(r), { run_memory(r, sizeof(float) * TAP_FLOATS, NULL),
                                 run_memory(r, sizeof(float) * TAP_FLOATS, NULL) } };
    for (int i = 0; i < 2; i++)
        pass_add(t.p, sess_open(r, &none, 8, 0), i ? SLICE_CHAIN : SLICE_TREE, 3, token, NULL)->taps = t.taps[i];
    memcpy(t.p->t->tap_slot, slot, sizeof slot);
    return t;
}

void ops_logit_rows(Run *r, const Turn *t)
{
    (void) t;
    static const int32_t row[3] = { 4, 0, 5 };
    Pass *p = tapped(r).p;
    p->r.n_logits = 3;
    memcpy(p->t->logit_row, row, sizeof row);
    Mat x = counted(r, TAP_ROWS, TAP_COLS);
    Tensor y = mat_blank(r, 3, TAP_COLS);
    r->b->logit_rows(r->b, &y, &x.t, pass_rows(r, p));
    const float *got = mat_get(r, &y);
    for (int i = 0; i < 3; i++) run_same(r, "logit row", got + i * TAP_COLS, x.h + row[i] * TAP_COLS, TAP_COLS);
}

/* Part 1 of 2 is written, part 0 stays zero; then every row receives the content of its slot. */
void ops_tap(Run *r, const Turn *t)
{
    (void) t;
    enum { WIDE = N_TAPS * TAP_COLS };
    Tapped s = tapped(r);
    int32_t *slot = s.p->t->tap_slot;
    Mat x = counted(r, TAP_ROWS, TAP_COLS);
    r->b->tap(r->b, &x.t, pass_rows(r, s.p), 1, N_TAPS);
    float taps[2][TAP_FLOATS], want[2][TAP_FLOATS] = { { 0 } };
    for (int32_t i = 0; i < TAP_ROWS; i++)
        if (slot[i] >= 0)
            memcpy(want[i / 3] + slot[i] * WIDE + TAP_COLS, x.h + i * TAP_COLS, sizeof(float) * TAP_COLS);
    for (int i = 0; i < 2; i++) {
        run_fetch(r, taps[i], s.taps[i], sizeof taps[i]);
        run_same(r, "taps", taps[i], want[i], TAP_FLOATS);
    }
    slot[1] = slot[5] = 3;
    Tensor f = mat_blank(r, TAP_ROWS, WIDE);
    r->b->tap_get(r->b, &f, pass_rows(r, s.p));
    const float *got = mat_get(r, &f);
    for (int32_t i = 0; i < TAP_ROWS; i++) run_same(r, "tap_get", got + i * WIDE, want[i / 3] + slot[i] * WIDE, WIDE);
}

/* ---- rotation ---- */

enum { ROPE_HEADS = 3, ROPE_DIM = 24, ROPE_ROT = 20, ROPE_ROWS = 40, ROPE_COLS = ROPE_HEADS * ROPE_DIM };

/* One head's row in double. */
static void turn_plainly(double *y, const float *x, const Rope *rope, const double *freq, const int32_t *lane_of,
                         const int32_t *lane)
{
    for (int32_t j = 0; j < ROPE_DIM; j++) y[j] = x[j];
    for (int32_t j = 0; j < ROPE_ROT / 2; j++) {
        int32_t a = rope->neox ? j : 2 * j, b = rope->neox ? j + ROPE_ROT / 2 : 2 * j + 1;
        double angle = lane[lane_of ? lane_of[j] : 0] * freq[j], c = cos(angle) * (double) rope->mscale,
               s = sin(angle) * (double) rope->mscale;
        y[a] = x[a] * c - x[b] * s;
        y[b] = x[a] * s + x[b] * c;
    }
}

/* Rounds: pairs side by side or half a head apart; without and with a factor and several lanes. */
void ops_rope(Run *r, const Turn *t)
{
    static const LayerSpec none = { .kind = LAYER_NONE };
    const int32_t token[ROPE_ROWS] = { 0 }, n = ROPE_ROWS * ROPE_COLS;
    const bool lanes = t->round & 2;
    double freq[ROPE_ROT / 2], *want = run_host(r, sizeof *want * (size_t) n);
    int32_t lane_of[ROPE_ROT / 2];
    for (int32_t i = 0; i < ROPE_ROT / 2; i++) {
        freq[i] = pow(10000, -2.0 * i / ROPE_ROT);
        lane_of[i] = i % 3 == 2 ? 2 : 0;
    }
    Rope rope = { ROPE_ROT, t->round & 1, lanes ? 1.25f : 1, run_memory(r, sizeof freq, freq),
                  lanes ? run_memory(r, sizeof lane_of, lane_of) : NULL };
    Sess *s = sess_open(r, &none, 8, 0);
    Pass *p = pass_open(r);
    s->P = 200000;
    pass_add(p, s, SLICE_CHAIN, ROPE_ROWS, token, NULL);
    for (int32_t i = 0; i < ROPE_ROWS; i++) p->t->lane[i * POS_LANES + 2] = 7 * i;
    Mat x = mat_make(r, ROPE_ROWS, ROPE_COLS, 9, 1);
    for (int32_t i = 0; i < ROPE_ROWS * ROPE_HEADS; i++)
        turn_plainly(want + i * ROPE_DIM, x.h + i * ROPE_DIM, &rope, freq, lanes ? lane_of : NULL,
                     p->t->lane + i / ROPE_HEADS * POS_LANES);
    call_rope(r, &x.t, pass_rows(r, p), ROPE_DIM, &rope);
    const float *once = mat_get(r, &x.t);
    run_expect(r, "rope", once, want, n, 3e-7);
    run_give(r, "rope", once, n);
    call_rope(r, &x.t, pass_rows(r, p), ROPE_DIM, &rope);      /* the second call rotates again: the angle is doubled */
    for (int32_t i = 0; i < ROPE_ROWS * ROPE_HEADS; i++)
        turn_plainly(want + i * ROPE_DIM, once + i * ROPE_DIM, &rope, freq, lanes ? lane_of : NULL,
                     p->t->lane + i / ROPE_HEADS * POS_LANES);
    const float *twice = mat_get(r, &x.t);
    run_expect(r, "rope again", twice, want, n, 3e-7);
    run_give(r, "rope again", twice, n);
}

/* ---- products ---- */

/* A weight in two pieces, and embed reading rows from it. */
static Tensor uploaded(Run *r, Type type, int32_t rows, int32_t cols, uint64_t key)
{
    const size_t row = type_row_bytes(type, cols);
    float *f = run_host(r, sizeof *f * (size_t) rows * (size_t) cols),
          *plain = run_host(r, sizeof *plain * (size_t) cols);
    uint8_t *file = run_host(r, row * (size_t) rows);
    h_fill(f, (int64_t) rows * cols, key, 1);
    for (int32_t i = 0; i < rows; i++)
        run_must(r, quant_encode(file + row * (size_t) i, type, f + i * cols, cols), "a type with an encoder");
    Tensor w = h_tensor(type, rows, cols, run_memory(r, r->b->weight_bytes(r->b, type, rows, cols), NULL));
    r->b->upload(r->b, &w, 0, file, 0, UPLOAD_ROWS);
    r->b->upload(r->b, &w, 0, file + row * UPLOAD_ROWS, UPLOAD_ROWS, rows - UPLOAD_ROWS);
    const int32_t id[2] = { rows - 1, 3 };
    Tensor e = mat_blank(r, 2, cols), ids = mat_ids(r, 1, 2, id);
    r->b->embed(r->b, &e, &w, &ids);
    const float *got = mat_get(r, &e);
    for (int i = 0; i < 2; i++) {
        quant_decode(plain, type, file + row * (size_t) id[i], cols);
        run_same(r, "embed", got + i * cols, plain, cols);
    }
    return w;
}

/* Four products of one input, and each row alone. */
void ops_matmul(Run *r, const Turn *t)
{
    enum { OUT = 70 };
    static const Type type[MATMUL_MAX] = { T_Q4_K, T_Q8_0, T_F32, T_Q6_K };
    Mat x = mat_make(r, t->rows, t->cols, 21, 1);
    Tensor w[MATMUL_MAX], y[MATMUL_MAX], *py[MATMUL_MAX];
    const Tensor *pw[MATMUL_MAX];
    for (int j = 0; j < MATMUL_MAX; j++) {
        w[j] = uploaded(r, type[j], OUT, t->cols, (uint64_t) (30 + j));
        y[j] = mat_blank(r, t->rows, OUT);
        pw[j] = &w[j], py[j] = &y[j];
    }
    r->b->matmul(r->b, MATMUL_MAX, py, pw, &x.t);
    for (int j = 0; j < MATMUL_MAX; j++) {
        const float *got = mat_get(r, &y[j]);
        run_give(r, "product", got, t->rows * OUT);
        for (int32_t i = 0; i < t->rows; i += 9) {
            Tensor xi = h_tensor(T_F32, 1, t->cols, (float *) x.t.data + i * t->cols), yi = mat_blank(r, 1, OUT),
                   *pyi = &yi;
            r->b->matmul(r->b, 1, &pyi, &pw[j], &xi);
            run_same(r, "product alone", mat_get(r, &yi), got + i * OUT, OUT);
        }
    }
}
