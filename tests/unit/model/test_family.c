/* test_family.c - a family that only this program has: layers with head counts, head widths and rotations of their own,
 * windows, values wider than keys, stacks of experts. Its rows equal the formulas in double precision; everything that
 * holds for the built-in families also holds for it: trees equal chains, packed weights those in place, two stages one,
 * and drafters change nothing. */
#include "backend/cpu/level.h"
#include "family_toy.h"
#include "model_helper.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const Family *const families_linked[] = { &family_toy, NULL };

static RigOptions toy_options(bool device, Type type)
{
    RigOptions o = { .tm = tiny_model(TINY_LLAMA), .write = toy_write, .device = device, .kv = T_F32 };
    o.tm.n_layer = TOY_LAYERS;
    o.tm.context = 2048;
    o.tm.type = type;
    return o;
}

/* ---- the formulas, one row after the other ---- */

enum { N = 70, DIM = 64, VOCAB = 96, WIDEST = 6 * 48 };

static double weight(const Rig *r, const char *name, int32_t il, int64_t i)
{
    char full[64];
    WeightView v;
    snprintf(full, sizeof full, il < 0 ? "%s" : "blk.%2$d.%1$s", name, il);
    assert_true(weights_find(&(Weights) { .gguf = r->file }, full, &v));
    float x;
    memcpy(&x, v.data + sizeof x * (size_t) i, sizeof x);
    return (double) x;
}

/* y [rows] = matrix e of the tensor times x. */
static void product(const Rig *r, const char *name, int32_t il, int32_t e, int32_t rows, int32_t cols, const double *x,
                    double *y)
{
    char full[64];
    WeightView v;
    snprintf(full, sizeof full, il < 0 ? "%s" : "blk.%2$d.%1$s", name, il);
    assert_true(weights_find(&(Weights) { .gguf = r->file }, full, &v));
    assert_int_equal(v.ne[0], cols);
    assert_int_equal(v.ne[1], rows);
    const float *w = (const float *) (const void *) v.data + (size_t) e * (size_t) rows * (size_t) cols;
    for (int32_t i = 0; i < rows; i++) {
        y[i] = 0;
        for (int32_t c = 0; c < cols; c++) y[i] += (double) w[i * cols + c] * x[c];
    }
}

static void normed(const Rig *r, const char *name, int32_t il, const double *x, double *y)
{
    double sum = 0;
    for (int32_t i = 0; i < DIM; i++) sum += x[i] * x[i];
    for (int32_t i = 0; i < DIM; i++)
        y[i] = x[i] / sqrt(sum / DIM + (double) r->m->eps) * weight(r, name, il, i);
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* x += by * swiglu; suffix: "" or "_exps". */
static void add_unit(const Rig *r, const char *suffix, int32_t il, int32_t e, int32_t width, double by, const double *h,
                     double *x)
{
    char name[3][32];
    static const char *const part[] = { "gate", "up", "down" };
    for (int32_t i = 0; i < 3; i++) snprintf(name[i], sizeof name[i], "ffn_%s%s.weight", part[i], suffix);
    double g[WIDEST], u[WIDEST], y[DIM];
    product(r, name[0], il, e, width, DIM, h, g);
    product(r, name[1], il, e, width, DIM, h, u);
    for (int32_t i = 0; i < width; i++) g[i] = g[i] * sigmoid(g[i]) * u[i];
    product(r, name[2], il, e, DIM, width, g, y);
    for (int32_t i = 0; i < DIM; i++) x[i] += by * y[i];
}

/* The experts with the largest sigmoids, by these divided by their sum. */
static void add_mixture(const Rig *r, const ToyShape *t, int32_t il, const double *h, double *x)
{
    double p[TOY_EXPERTS], sum = 0;
    bool chosen[TOY_EXPERTS] = { false };
    product(r, "ffn_gate_inp.weight", il, 0, t->experts, DIM, h, p);
    for (int32_t k = 0; k < t->used; k++) {
        int32_t best = -1;
        for (int32_t e = 0; e < t->experts; e++)
            if (!chosen[e] && (best < 0 || p[e] > p[best])) best = e;
        chosen[best] = true;
        sum += sigmoid(p[best]);
    }
    for (int32_t e = 0; e < t->experts; e++)
        if (chosen[e])
            add_unit(r, "_exps", il, e, t->expert_ffn, (double) t->routed_scale * sigmoid(p[e]) / sum, h, x);
}

/* The angle of pair i at position 1: yarn interpolates between the dimensions that turn beta_fast and beta_slow
 * times. */
static double frequency(const ToyShape *t, bool near, int32_t i, int32_t n_rot)
{
    double base = (double) (near ? t->near_base : t->base), f = pow(base, -2.0 * i / n_rot);
    if (near) return f;
    double turns[2] = { (double) t->beta_fast, (double) t->beta_slow }, at[2];
    for (int32_t k = 0; k < 2; k++) at[k] = n_rot * log(t->original / (2 * M_PI * turns[k])) / (2 * log(base));
    double low = fmax(0, floor(at[0])), high = fmin(n_rot - 1, ceil(at[1]));
    double keep = 1 - fmin(1, fmax(0, (i - low) / (high - low)));
    return f * (keep + (1 - keep) / (double) t->yarn_factor);
}

/* near: adjacent pairs of the whole head; full: halves of its first n_rot columns. */
static void rotate(const ToyShape *t, bool near, double *x, int32_t pos)
{
    int32_t n_rot = near ? t->near_dim : t->n_rot;
    double m = near ? 1 : 1 + 0.1 * log((double) t->yarn_factor);
    for (int32_t i = 0; i < n_rot / 2; i++) {
        double angle = pos * frequency(t, near, i, n_rot), c = m * cos(angle), s = m * sin(angle);
        double *a = &x[near ? 2 * i : i], *b = &x[near ? 2 * i + 1 : i + n_rot / 2], first = *a;
        *a = first * c - *b * s;
        *b = first * s + *b * c;
    }
}

typedef struct { double k[TOY_LAYERS][N][WIDEST], v[TOY_LAYERS][N][WIDEST]; } Past;

static void attention(const Rig *r, const ToyShape *t, int32_t il, Past *past, int32_t pos, const double *h, double *x)
{
    bool near = il % 2 == 0;
    int32_t width = near ? t->near_dim : t->full_dim, values = near ? t->near_dim : t->value_dim,
            heads = t->heads[il], kv_heads = t->kv_heads[il],
            first = near && pos >= t->window ? pos - t->window + 1 : 0;
    double q[WIDEST], y[WIDEST] = { 0 }, out[DIM];
    product(r, "attn_q.weight", il, 0, heads * width, DIM, h, q);
    product(r, "attn_k.weight", il, 0, kv_heads * width, DIM, h, past->k[il][pos]);
    product(r, "attn_v.weight", il, 0, kv_heads * values, DIM, h, past->v[il][pos]);
    for (int32_t i = 0; i < heads; i++) rotate(t, near, q + i * width, pos);
    for (int32_t i = 0; i < kv_heads; i++) rotate(t, near, past->k[il][pos] + i * width, pos);
    for (int32_t i = 0; i < heads; i++) {
        int32_t kv = i / (heads / kv_heads);
        double sum = 0;
        for (int32_t p = first; p <= pos; p++) {
            double score = 0;
            for (int32_t c = 0; c < width; c++) score += q[i * width + c] * past->k[il][p][kv * width + c];
            sum += score = exp(score / width);
            for (int32_t c = 0; c < values; c++) y[i * values + c] += score * past->v[il][p][kv * values + c];
        }
        for (int32_t c = 0; c < values; c++) y[i * values + c] /= sum;
    }
    product(r, "attn_output.weight", il, 0, DIM, heads * values, y, out);
    for (int32_t i = 0; i < DIM; i++) x[i] += out[i];
}

static void plain_row(const Rig *r, const ToyShape *t, Past *past, int32_t pos, int32_t token, double *logits)
{
    double x[DIM], h[DIM];
    for (int32_t i = 0; i < DIM; i++) x[i] = weight(r, "token_embd.weight", -1, (int64_t) token * DIM + i);
    for (int32_t il = 0; il < TOY_LAYERS; il++) {
        normed(r, "attn_norm.weight", il, x, h);
        attention(r, t, il, past, pos, h, x);
        normed(r, "ffn_norm.weight", il, x, h);
        if (il < t->dense) add_unit(r, "", il, 0, r->m->ffn, 1, h, x);
        else add_mixture(r, t, il, h, x);
    }
    normed(r, "output_norm.weight", -1, x, h);
    product(r, "output.weight", -1, 0, VOCAB, DIM, h, logits);
}

static void rows_are_the_formulas(void **state)
{
    (void) state;
    const ToyShape t = toy_shape();
    for (int32_t device = 0; device < 2; device++) {
        Rig r;
        Bench b;
        RigOptions o = toy_options(device, T_F32);
        rig_open(&r, &o);
        bench_open(&b, &r);
        State *s = bench_state(&b, 0);
        Dice d = { tiny_key(7, "toy"), 0 };
        int32_t text[N];
        float y[N * VOCAB];
        double want[VOCAB], most = 0;
        Past *past = calloc(1, sizeof *past);
        assert_non_null(past);
        random_tokens(&d, N, VOCAB, text);
        assert_ok(bench_chain(&b, s, N, text, y, true), &b.err);
        for (int32_t pos = 0; pos < N; pos++) {
            plain_row(&r, &t, past, pos, text[pos], want);
            for (int32_t i = 0; i < VOCAB; i++) most = fmax(most, fabs(want[i] - (double) y[pos * VOCAB + i]));
        }
        print_message("  within %.2g\n", most);
        assert_true(most < 5e-5);
        free(past);
        bench_free(s);
        bench_close(&b);
        rig_close(&r);
    }
}

/* ---- what holds for every family ---- */

static void trees_are_chains(void **state)
{
    (void) state;
    for (int32_t way = 0; way < 4; way++) {
        Rig r;
        Bench b;
        RigOptions o = toy_options(way & 1, way & 2 ? T_Q8_0 : T_F32);
        o.kv = way & 2 ? T_F16 : T_F32;
        rig_open(&r, &o);
        bench_open(&b, &r);
        State *s = bench_state(&b, 0);
        Dice d = { tiny_key((uint64_t) way, "toy trees"), 0 };
        int32_t token[40], parent[40], rows[40], chain[40], text[40];
        float y[40 * VOCAB], z[40 * VOCAB];
        random_tokens(&d, 40, VOCAB, text);
        assert_ok(bench_chain(&b, s, 40, text, NULL, true), &b.err);
        for (int32_t round = 0; round < 3; round++) {
            random_tree(&d, 40, VOCAB, token, parent);
            assert_ok(bench_tree(&b, s, 40, token, parent, y), &b.err);
            int32_t n = 0;
            for (int32_t row = 0; row < 40; row += 3) {
                n = h_path(rows, parent, row);
                for (int32_t t = 0; t < n; t++) chain[t] = token[rows[t]];
                assert_ok(bench_chain(&b, s, n, chain, z, false), &b.err);
                assert_same(y + row * VOCAB, z + (n - 1) * VOCAB, sizeof(float) * VOCAB, "way %d, row %d", way, row);
            }
            assert_ok(bench_chain(&b, s, n, chain, NULL, true), &b.err);
        }
        bench_free(s);
        bench_close(&b);
        rig_close(&r);
    }
}

static void chain_logits(Rig *r, float *y)
{
    Bench b;
    Dice d = { tiny_key(9, "toy"), 0 };
    int32_t text[N];
    bench_open(&b, r);
    State *s = bench_state(&b, 0);
    random_tokens(&d, N, VOCAB, text);
    assert_ok(bench_chain(&b, s, N, text, y, true), &b.err);
    bench_free(s);
    bench_close(&b);
}

/* A stack's matrices stay where the file is mapped, or are packed one by one. */
static void stacks_in_place_are_packed_ones(void **state)
{
    (void) state;
    static const Type types[] = { T_F32, T_F16, T_Q8_0, T_Q4_0 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        float y[3][N * VOCAB];
        for (int32_t way = 0; way < 3; way++) {
            Rig r;
            RigOptions o = toy_options(way == 2, types[i]);
            o.in_place = way == 1;
            rig_open(&r, &o);
            chain_logits(&r, y[way]);
            rig_close(&r);
        }
        for (int32_t way = 1; way < 3; way++)
            assert_same(y[0], y[way], sizeof y[0], "%s, way %d", type_info(types[i])->name, way);
    }
}

/* Values twice as wide as keys, both whole blocks of any type. */
static Status write_blocks(const TinyModel *m, const char *path, Error *err)
{
    ToyShape t = toy_shape();
    t.near_dim = 32;
    t.value_dim = 64;
    return toy_write_as(&t, m, path, err);
}

static void levels_agree(void **state)
{
    (void) state;
    static const Type kv[][2] = { { T_F32, T_F32 }, { T_F16, T_BF16 }, { T_Q8_0, T_Q8_0 }, { T_Q5_1, T_F16 },
                                  { T_F16, T_Q4_1 } };
    for (size_t i = 0; i < sizeof kv / sizeof *kv; i++) {
        float y[N * VOCAB], first[N * VOCAB];
        for (int32_t level = 0; level < LEVEL_COUNT; level++) {
            if (!level_here((CpuLevel) level)) continue;
            Rig r;
            RigOptions o = toy_options(false, T_Q8_0);
            o.write = write_blocks;
            o.kv = kv[i][0], o.kv_v = kv[i][1];
            o.level = level_name((CpuLevel) level);
            rig_open(&r, &o);
            chain_logits(&r, level ? y : first);
            if (level) assert_same(first, y, sizeof y, "keys and values %zu, %s", i, o.level);
            rig_close(&r);
        }
    }
}

static void two_stages_are_one(void **state)
{
    (void) state;
    for (int32_t device = 0; device < 2; device++) {
        float y[2][N * VOCAB];
        for (int32_t cut = 0; cut < 2; cut++) {
            Rig r;
            RigOptions o = toy_options(device, T_Q8_0);
            o.cut = 2 * cut;
            rig_open(&r, &o);
            chain_logits(&r, y[cut]);
            rig_close(&r);
        }
        assert_same(y[0], y[1], sizeof y[0], "two stages, device %d", device);
    }
}

static void add_weights(void *ud, const char *owner, const char *name, size_t bytes)
{
    (void) owner;
    if (strcmp(name, "weights") == 0) *(size_t *) ud += bytes;
}

/* The plan counts what loading takes. */
static void stacks_are_counted(void **state)
{
    (void) state;
    Error err = { 0 };
    Rig r;
    RigOptions o = toy_options(false, T_Q8_0);
    ModelOptions mo = { .k_type = T_F32, .v_type = T_F32 };
    Backend *null;
    Model *m;
    size_t bytes = 0;
    rig_open(&r, &o);
    assert_ok(backend_null_open(&null, r.be, &err), &err);
    const Stages stages = stages_one(null);
    assert_ok(model_open(&m, &stages, &(Weights) { .gguf = r.file }, NULL, &mo, &err), &err);
    backend_null_parts(null, add_weights, &bytes);
    assert_int_equal(bytes, r.m->weight_bytes);
    const ToyShape t = toy_shape();
    int64_t values = 2 * VOCAB * DIM + 3 * DIM * r.m->ffn * t.dense;
    for (int32_t il = 0; il < TOY_LAYERS; il++) {
        int32_t widths = il % 2 ? t.full_dim + t.value_dim : 2 * t.near_dim;     /* of q and o, of k and v */
        values += DIM * (t.heads[il] + t.kv_heads[il]) * widths;
        if (il >= t.dense) values += t.experts * (DIM + 3 * DIM * t.expert_ffn);
    }
    assert_int_equal(r.m->n_weights, values);
    model_close(m);
    null->close(null);
    rig_close(&r);
}

/* Counts what the loader allocates as weights; a test's backend has no other place for that. */
static struct {
    void   *(*alloc)(Backend *be, size_t bytes, const char *part);
    uint8_t *at;
    size_t   bytes;
    int32_t  n;
} seen;

static void *seen_alloc(Backend *be, size_t bytes, const char *part)
{
    void *p = seen.alloc(be, bytes, part);
    if (strcmp(part, "weights") != 0) return p;
    seen.at = p;
    seen.bytes = bytes;
    seen.n++;
    return p;
}

static void inside(const Tensor *t)
{
    const uint8_t *at = t->data;
    assert_true(at >= seen.at && at < seen.at + seen.bytes);
    assert_int_equal((uintptr_t) at % 64, 0);
}

/* All matrices lie in one allocation, one after the other, where a huge page may begin. */
static void matrices_share_memory(void **state)
{
    (void) state;
    Error err = { 0 };
    Rig r;
    RigOptions o = toy_options(false, T_Q8_0);
    ModelOptions mo = { .k_type = T_F32, .v_type = T_F32 };
    Backend *be;
    Model *m;
    rig_open(&r, &o);
    assert_ok(backend_open(&be, "cpu", &(BackendOptions) { .threads = 1 }, &err), &err);
    memset(&seen, 0, sizeof seen);
    seen.alloc = be->alloc;
    be->alloc = seen_alloc;
    const Stages stages = stages_one(be);
    assert_ok(model_open(&m, &stages, &(Weights) { .gguf = r.file }, NULL, &mo, &err), &err);
    assert_int_equal(seen.n, 1);
    assert_int_equal(seen.bytes, m->weight_bytes);
    inside(&m->embed);
    inside(&m->head);
    assert_ptr_not_equal(m->embed.data, m->head.data);
    model_close(m);
    const size_t large = ((size_t) 5 << 20) + 4097, huge = (size_t) 2 << 20;
    uint8_t *p = be->alloc(be, large, "large");
    assert_non_null(p);
    assert_int_equal((uintptr_t) p % huge, 0);
    for (size_t i = 0; i < large; i++) assert_int_equal(p[i], 0);
    be->release(be, p, large);
    assert_null(be->alloc(be, SIZE_MAX - 5, "more than there is"));
    assert_int_equal(be->sync(be, &err), ST_MEMORY);
    be->close(be);
    rig_close(&r);
}

/* With a drafter whose taps are this family's: texts do not change. */
static void drafters_change_nothing(void **state)
{
    (void) state;
    for (int32_t device = 0; device < 2; device++) {
        Rig r;
        RigOptions o = rig_with_draft(toy_options(device, T_F32), device);
        rig_open(&r, &o);
        for (int32_t mode = 0; mode < MODES; mode++) {
            int32_t truth[PROMPT + TEXT + AHEAD], text[TEXT];
            make_truth(&r, mode, (uint64_t) mode, truth);
            for (int32_t f = 0; f < 2; f++) {
                FakeDrafter fake;
                fake_drafter(&fake, FAKE_MIXED, (uint64_t) mode, truth, PROMPT + TEXT + AHEAD);
                Loop l;
                loop_open(&l, &r, f ? &fake.drafter : NULL, &(LoopOptions) { .budget = 22 });
                Session *s = loop_session(&l);
                assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
                s->line.sampling = sampling_mode(mode);
                assert_int_equal(loop_run(&l, s, TEXT, text), TEXT);
                assert_same(text, truth + PROMPT, sizeof text, "device %d, mode %d, drafter %d", device, mode, f);
                assert_fresh(&l, s, "toy");
                loop_free(s);
                loop_close(&l);
            }
        }
        rig_close(&r);
    }
}

/* ---- through the handles, and what is refused ---- */

static void opens_as_any_other(void **state)
{
    (void) state;
    PublicRig p;
    RigOptions o = toy_options(false, T_Q8_0);
    char arch[16];
    public_open(&p, &o, NULL);
    rt_property(p.g, "model.arch", arch, sizeof arch);
    assert_string_equal(arch, "toy");
    public_close(&p);
}

/* A file that does not open, and what its error must name. */
static void refused(const char *path, const char *const *named)
{
    Error err = { 0 };
    Gguf *g;
    Backend *be;
    Model *m = NULL;
    ModelOptions mo = { .k_type = T_F32, .v_type = T_F32 };
    assert_ok(gguf_open(&g, path, &err), &err);
    assert_ok(backend_open(&be, "cpu", &(BackendOptions) { .threads = 1 }, &err), &err);
    const Stages stages = stages_one(be);
    assert_int_not_equal(model_open(&m, &stages, &(Weights) { .gguf = g }, NULL, &mo, &err), ST_OK);
    for (; *named; named++)
        if (!strstr(err.text, *named)) fail_msg("'%s' does not name '%s'", err.text, *named);
    be->close(be);
    gguf_close(g);
    unlink(path);
}

static void errors_name_the_shape(void **state)
{
    (void) state;
    Error err = { 0 };
    char path[] = "/tmp/ratoon-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const RigOptions o = toy_options(false, T_F32);
    ToyShape t = toy_shape();
    t.more_experts = 1;
    assert_ok(toy_write_as(&t, &o.tm, path, &err), &err);
    refused(path, (const char *const[]) { "blk.1.ffn_gate_exps.weight", "[64, 64, 4], expected [64, 64, 3]", NULL });
    t = toy_shape();
    t.used = 4;
    assert_ok(toy_write_as(&t, &o.tm, path, &err), &err);
    refused(path, (const char *const[]) { "toy.expert_used_count is 4", "at most expert_count 3", NULL });
    t = toy_shape();
    t.kv_heads[2] = 4;
    assert_ok(toy_write_as(&t, &o.tm, path, &err), &err);
    refused(path, (const char *const[]) { "layer 2", "2 query heads", "4 key heads", NULL });
    t = toy_shape();
    t.heads[3] = 100;
    assert_ok(toy_write_as(&t, &o.tm, path, &err), &err);
    refused(path, (const char *const[]) { "toy.attention.head_count value 3 is 100, expected 1 to 64", NULL });
    t = toy_shape();
    t.fewer_heads = 1;
    assert_ok(toy_write_as(&t, &o.tm, path, &err), &err);
    refused(path, (const char *const[]) { "toy.attention.head_count has 3 values, expected 4", NULL });
    t = toy_shape();
    t.full_dim = 24;
    assert_ok(toy_write_as(&t, &o.tm, path, &err), &err);
    refused(path, (const char *const[]) { "layer 1", "24 wide", "multiples of 16", NULL });
    GgufWriter *w;
    assert_ok(gguf_write_open(&w, path, &err), &err);
    gguf_write_str(w, "general.architecture", "ploy", 4);
    assert_ok(gguf_write_close(w, true, &err), &err);
    refused(path, (const char *const[]) { "'ploy'", "not supported (supported: llama, qwen3, qwen3moe, ", NULL });
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_formulas), cmocka_unit_test(trees_are_chains),
        cmocka_unit_test(stacks_in_place_are_packed_ones), cmocka_unit_test(levels_agree),
        cmocka_unit_test(two_stages_are_one),
        cmocka_unit_test(stacks_are_counted), cmocka_unit_test(matrices_share_memory),
        cmocka_unit_test(drafters_change_nothing),
        cmocka_unit_test(opens_as_any_other), cmocka_unit_test(errors_name_the_shape),
    };
    return cmocka_run_group_tests_name("family", tests, NULL, NULL);
}
