/* test_step.c - a step's scratch: tables of rotations, one for each rotation of a pass, outlive the layers' tensors;
 * and operations that no family of the tests uses in that way, on the CPU and behind the device's queue. */
#include "model_helper.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, PAIRS_MAX = 64 };

typedef struct { StageRope rope; double freq[PAIRS_MAX]; } Turning;

static void make_rope(Turning *t, int32_t n_rot, bool neox, double base)
{
    for (int32_t i = 0; i < n_rot / 2; i++) t->freq[i] = pow(base, -2.0 * i / n_rot);
    t->rope = (StageRope) { .at[0] = { n_rot, neox, 1, t->freq, NULL } };
}

static void begin(Bench *b, State *s)
{
    static const int32_t token[ROWS] = { 1, 2, 3, 4, 5 };
    assert_ok(state_ready(s, &b->step.on, &b->err), &b->err);
    pass_start(&b->step);
    pass_slice(&b->step, s, SLICE_CHAIN, ROWS, token, NULL);
    pass_tables(&b->step, false);
}

static Tensor *numbered(Step *s, int32_t cols, float by)
{
    Tensor *t = step_new_rows(s, cols);
    for (int32_t i = 0; i < t->rows * cols; i++) ((float *) t->data)[i] = (float) i * by;
    return t;
}

/* k as layer 0 stored it under this rotation, against the backend's own operations. */
static void rotated_alike(Bench *b, const StageRope *rope)
{
    Step *s = &b->step;
    const LayerSpec *spec = &b->r->m->spec[0];
    int32_t cols = spec->kv_heads * spec->head_dim;
    StepMark mark = step_mark(s);
    Tensor *k = numbered(s, cols, 0.01f), *v = numbered(s, cols, 1), *want = numbered(s, cols, 0.01f),
           *table = step_new_rows(s, rope->at[0].n_rot);
    step_store_kv(s, 0, spec, k, v, rope);
    s->be->rope_table(s->be, table, &s->rows, &rope->at[0]);
    s->be->rope(s->be, want, table, spec->head_dim, &rope->at[0]);
    assert_ok(step_wait(s, &b->err), &b->err);
    assert_same(k->data, want->data, sizeof(float) * (size_t) (ROWS * cols), "keys");
    step_reset(s, mark);
    memset(s->scratch + s->used, 0xff, s->lim.scratch_bytes - s->kept - s->used);   /* as later layers do */
}

static void rotations_of_a_pass(void **state)
{
    (void) state;
    Rig r;
    Bench b;
    RigOptions o = rig_kind(1, false);
    rig_open(&r, &o);
    bench_open(&b, &r);
    State *s = bench_state(&b, 0);
    Turning one, two;
    int32_t dim = r.m->spec[0].head_dim;
    make_rope(&one, dim, true, 10000);
    make_rope(&two, dim / 2, false, 500);
    begin(&b, s);
    for (int32_t i = 0; i < 4; i++) {
        rotated_alike(&b, i % 2 ? &two.rope : &one.rope);
        assert_int_equal(b.step.n_ropes, i ? 2 : 1);
    }
    assert_true(b.step.peak >= b.step.kept && b.step.kept >= sizeof(float) * (size_t) (ROWS * (dim + dim / 2)));
    begin(&b, s);
    assert_true(b.step.n_ropes == 0 && b.step.kept == 0);
    rotated_alike(&b, &two.rope);
    bench_free(s);
    bench_close(&b);
    rig_close(&r);
}

/* A table that does not fit fails the pass, as a tensor does; so does a full list. */
static void no_room_for_a_table(void **state)
{
    (void) state;
    Rig r;
    Bench b;
    RigOptions o = rig_kind(1, false);
    rig_open(&r, &o);
    bench_open(&b, &r);
    State *s = bench_state(&b, 0);
    const LayerSpec *spec = &r.m->spec[0];
    Turning t[STEP_ROPES + 1];
    for (int32_t i = 0; i <= STEP_ROPES; i++) make_rope(&t[i], spec->head_dim, true, 1000 + i);
    begin(&b, s);
    Tensor *k = numbered(&b.step, spec->kv_heads * spec->head_dim, 1), *v = numbered(&b.step, k->cols, 1);
    step_new_tensor(&b.step, T_F32, 1, (int32_t) ((BENCH_SCRATCH - b.step.used) / sizeof(float)));
    assert_int_equal(b.step.used, BENCH_SCRATCH);
    assert_ok(step_wait(&b.step, &b.err), &b.err);
    step_store_kv(&b.step, 0, spec, k, v, &t[0].rope);
    assert_int_equal(step_wait(&b.step, &b.err), ST_BACKEND);
    assert_non_null(strstr(b.err.text, "needs more scratch than was planned"));
    begin(&b, s);
    k = numbered(&b.step, k->cols, 1), v = numbered(&b.step, k->cols, 1);
    for (int32_t i = 0; i <= STEP_ROPES; i++) {
        step_store_kv(&b.step, 0, spec, k, v, &t[i].rope);
        assert_int_equal(step_wait(&b.step, &b.err), i < STEP_ROPES ? ST_OK : ST_BACKEND);
    }
    bench_free(s);
    bench_close(&b);
    rig_close(&r);
}

enum { COLS = 48, HEAD = 16, RESULTS = 9 };

/* Norms without weights, activations, a gate for each head; out [RESULTS][ROWS * COLS]. */
static void run_operations(Bench *b, float *out)
{
    Step *s = &b->step;
    Backend *be = s->be;
    float x[ROWS * COLS], by[ROWS * COLS];
    for (int32_t i = 0; i < ROWS * COLS; i++) x[i] = (float) (i % 13 - 6) * 0.7f, by[i] = (float) (i % 7 - 3) * 0.9f;
    Tensor *t[RESULTS], *tb = step_new_rows(s, COLS), *heads = step_new_rows(s, COLS / HEAD);
    be->copy_in(be, tb->data, by, sizeof by);
    be->copy_in(be, heads->data, by, sizeof *by * ROWS * COLS / HEAD);
    for (int32_t i = 0; i < 5; i++) be->copy_in(be, (t[i] = step_new_rows(s, COLS))->data, x, sizeof x);
    t[5] = step_norm(s, t[0], NULL, 1e-6f);
    t[6] = step_add_norm(s, t[1], tb, NULL, 1e-6f);
    step_head_norm(s, t[2], NULL, HEAD, 1e-6f);
    step_gate(s, t[3], heads, ACT_SOFTPLUS, HEAD);
    step_gate(s, t[4], tb, ACT_GELU_TANH, 1);
    t[7] = step_glu(s, t[0], tb, ACT_GELU_TANH);
    t[8] = step_glu(s, t[0], tb, ACT_SIGMOID);
    for (int32_t i = 0; i < RESULTS; i++) be->copy_out(be, out + i * ROWS * COLS, t[i]->data, sizeof x);
    assert_ok(step_wait(s, &b->err), &b->err);
}

static void operations_are_queued_alike(void **state)
{
    (void) state;
    static float out[3][RESULTS * ROWS * COLS];    /* composed, fused, on the device */
    for (int32_t way = 0; way < 3; way++) {
        Rig r;
        Bench b;
        RigOptions o = rig_kind(1, way == 2);
        rig_open(&r, &o);
        bench_open(&b, &r);
        b.step.no_fused = way == 0;
        State *s = bench_state(&b, 0);
        begin(&b, s);
        run_operations(&b, out[way]);
        assert_same(out[way], out[0], sizeof out[0], "way %d", way);
        bench_free(s);
        bench_close(&b);
        rig_close(&r);
    }
    for (int32_t i = 0; i < ROWS * COLS; i++) {
        float x = (float) (i % 13 - 6) * 0.7f, by = (float) (i % 7 - 3) * 0.9f,
              head = (float) (i / HEAD % 7 - 3) * 0.9f;
        const float *got = out[0] + i;
        assert_true(fabsf(got[3 * ROWS * COLS] - x * log1pf(expf(head))) < 1e-5f);
        assert_true(fabsf(got[8 * ROWS * COLS] - by / (1 + expf(-x))) < 1e-5f);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotations_of_a_pass), cmocka_unit_test(no_room_for_a_table),
        cmocka_unit_test(operations_are_queued_alike),
    };
    return cmocka_run_group_tests_name("step", tests, NULL, NULL);
}
