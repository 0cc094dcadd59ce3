/* Exactness of passes: a row's logits and the state it leaves depend on its token, its path and the weights, not on the
 * other rows of the pass, the kind of slice or the history before. Every test covers all families, on the CPU and on
 * the device-like backend, and compares bits. */
#include "model_helper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *logits_of(const Bench *b, int32_t rows)
{
    float *y = malloc(sizeof *y * (size_t) rows * (size_t) b->vocab);
    assert_non_null(y);
    return y;
}

#define FOR_RIGS(kind, device) \
    for (int32_t device = 0; device < 2; device++) for (int32_t kind = 0; kind < RIG_KINDS; kind++)

/* n single TREE rows = one TREE chain = one CHAIN, after texts whose lengths are around the edges of tiles and
 * splits. */
static void chain_is_single_rows(void **state)
{
    (void) state;
    static const int32_t bases[] = { 0, 1, 5, 250, 256, 259 };
    FOR_RIGS(kind, device) {
        Rig r;
        Bench b;
        RigOptions o = rig_kind(kind, device);
        rig_open(&r, &o);
        bench_open(&b, &r);
        Dice d = { tiny_key(1, "chain"), (uint64_t) kind * 1000 };
        for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
            enum { N = 9 };
            int32_t base = bases[i], text[300];
            random_tokens(&d, base + N, b.vocab, text);
            State *s[3];
            float *y[3];
            uint8_t *image[3];
            size_t bytes[3];
            static const int32_t path[N] = { 0, 1, 2, 3, 4, 5, 6, 7, 8 };
            for (int32_t w = 0; w < 3; w++) {
                s[w] = bench_state(&b, 0);
                y[w] = logits_of(&b, N);
                if (base) assert_ok(bench_chain(&b, s[w], base, text, NULL, true), &b.err);
            }
            for (int32_t j = 0; j < N; j++) {
                assert_ok(bench_tree(&b, s[0], 1, text + base + j, NULL, y[0] + j * b.vocab), &b.err);
                state_keep(s[0], path, 1);
            }
            assert_ok(bench_tree(&b, s[1], N, text + base, NULL, y[1]), &b.err);
            state_keep(s[1], path, N);
            assert_ok(bench_chain(&b, s[2], N, text + base, y[2], true), &b.err);
            for (int32_t w = 0; w < 3; w++) image[w] = bench_image(&b, s[w], &bytes[w]);
            for (int32_t w = 1; w < 3; w++) {
                assert_same(y[0], y[w], sizeof(float) * N * (size_t) b.vocab, "logits, kind %d, base %d, way %d", kind,
                            base, w);
                assert_int_equal(bytes[0], bytes[w]);
                assert_same(image[0], image[w], bytes[0], "state, kind %d, base %d, way %d", kind, base, w);
            }
            for (int32_t w = 0; w < 3; w++) bench_free(s[w]), free(y[w]), free(image[w]);
        }
        bench_close(&b);
        rig_close(&r);
    }
}

/* Every third node of random trees of up to 64 rows, against the chain of its path. */
static void tree_rows_are_chains(void **state)
{
    (void) state;
    static const int32_t sizes[] = { 2, 17, 40, 64 };
    FOR_RIGS(kind, device) {
        Rig r;
        Bench b;
        RigOptions o = rig_kind(kind, device);
        rig_open(&r, &o);
        bench_open(&b, &r);
        Dice d = { tiny_key(2, "trees"), (uint64_t) kind * 1000 };
        State *s = bench_state(&b, 0);
        float *y = logits_of(&b, 64), *z = logits_of(&b, 64);
        int32_t token[64], parent[64], rows[64], chain[64], text[300];
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            int32_t grow = i == 2 ? 250 - s->P : 3;
            random_tokens(&d, grow, b.vocab, text);
            assert_ok(bench_chain(&b, s, grow, text, NULL, true), &b.err);
            random_tree(&d, sizes[i], b.vocab, token, parent);
            assert_ok(bench_tree(&b, s, sizes[i], token, parent, y), &b.err);
            for (int32_t row = sizes[i] - 1; row >= 0; row -= 3) {
                int32_t n = h_path(rows, parent, row);
                for (int32_t t = 0; t < n; t++) chain[t] = token[rows[t]];
                assert_ok(bench_chain(&b, s, n, chain, z, false), &b.err);
                assert_same(y + row * b.vocab, z + (n - 1) * b.vocab, sizeof(float) * (size_t) b.vocab,
                            "kind %d, row %d of %d", kind, row, sizes[i]);
            }
        }
        free(y);
        free(z);
        bench_free(s);
        bench_close(&b);
        rig_close(&r);
    }
}

/* Rounds of a tree and a random path, sometimes take, sometimes a chunk: the folded state equals that of a fresh
 * prompt. */
static void keep_is_fresh_prompt(void **state)
{
    (void) state;
    FOR_RIGS(kind, device) {
        Rig r;
        Bench b;
        RigOptions o = rig_kind(kind, device);
        rig_open(&r, &o);
        bench_open(&b, &r);
        Dice d = { tiny_key(3, "keep"), (uint64_t) kind * 1000 };
        for (int32_t start = 4; start < 300; start += 240) {
            State *s = bench_state(&b, 0), *fresh = bench_state(&b, 0);
            int32_t text[BENCH_CTX], token[64], parent[64], rows[64];
            random_tokens(&d, start, b.vocab, text);
            assert_ok(bench_chain(&b, s, start, text, NULL, true), &b.err);
            for (int32_t round = 0; round < 7; round++) {
                int32_t n = 1 + roll(&d, 64);
                random_tree(&d, n, b.vocab, token, parent);
                assert_ok(bench_tree(&b, s, n, token, parent, NULL), &b.err);
                int32_t m = h_path(rows, parent, roll(&d, n)), P = s->P;
                state_keep(s, rows, m);
                if (round % 3 == 1) {
                    m = roll(&d, m + 1);
                    assert_ok(state_take(s, m), &b.err);
                }
                for (int32_t t = 0; t < m; t++) text[P + t] = token[rows[t]];
                assert_int_equal(s->P, P + m);
                if (round % 3 == 2) {
                    int32_t more = 1 + roll(&d, 5);
                    random_tokens(&d, more, b.vocab, text + s->P);
                    assert_ok(bench_chain(&b, s, more, text + s->P, NULL, true), &b.err);
                }
            }
            assert_ok(bench_chain(&b, fresh, s->P < 300 ? s->P : 300, text, NULL, true), &b.err);
            if (fresh->P < s->P)
                assert_ok(bench_chain(&b, fresh, s->P - fresh->P, text + fresh->P, NULL, true), &b.err);
            size_t n_a, n_b;
            uint8_t *x = bench_image(&b, s, &n_a), *z = bench_image(&b, fresh, &n_b);
            assert_int_equal(n_a, n_b);
            assert_same(x, z, n_a, "kind %d, start %d", kind, start);
            free(x);
            free(z);
            bench_free(s);
            bench_free(fresh);
        }
        bench_close(&b);
        rig_close(&r);
    }
}

/* Weights with factors of their own ("X.scale") of powers of two, which change no bit of a product. */
static void factors_of_weights(void **state)
{
    (void) state;
    enum { N = 6 };
    FOR_RIGS(kind, device) {
        float *y[2];
        size_t bytes = 0;
        for (int32_t w = 0; w < 2; w++) {
            Rig r;
            Bench b;
            RigOptions o = rig_kind(kind, device);
            o.tm.factors = w == 1;
            o.tm.fused_experts = kind % 2 == 1;
            rig_open(&r, &o);
            bench_open(&b, &r);
            Dice d = { tiny_key(4, "factors"), (uint64_t) kind * 1000 };
            int32_t text[N];
            random_tokens(&d, N, b.vocab, text);
            State *s = bench_state(&b, 0);
            y[w] = logits_of(&b, N);
            bytes = sizeof(float) * N * (size_t) b.vocab;
            assert_int_equal(r.m->n_factors > 0, w == 1);
            assert_ok(bench_chain(&b, s, N, text, y[w], true), &b.err);
            bench_free(s);
            bench_close(&b);
            rig_close(&r);
        }
        assert_same(y[0], y[1], bytes, "logits, kind %d, device %d", kind, device);
        free(y[0]), free(y[1]);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chain_is_single_rows), cmocka_unit_test(tree_rows_are_chains),
        cmocka_unit_test(keep_is_fresh_prompt), cmocka_unit_test(factors_of_weights),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
