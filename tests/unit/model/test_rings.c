/* test_rings.c - layers with a window whose keys and values are stored in a ring. Whatever is done to a session
 * (chunks, trees, paths kept and shortened, going back, checkpoints, images), its rows equal those of a session that
 * keeps all positions. */
#include <stdlib.h>
#include <string.h>

#include "model_helper.h"
#include "part.h"

enum { WINDOW = 40, RING = 256, CTX = BENCH_CTX, CHUNK = RING - WINDOW - ROWS_DECODE, STEPS = 60, CHECKPOINTS = 2 };

/* One model with two states; its windowed layers wrap in only one of them. */
typedef struct {
    Rig        r;
    Bench      b;
    LayerSpec *spec[2];
    State      s[2];
    int32_t    text[CTX], n;
    float     *y[2];
    Dice       d;
} World;

static LayerSpec *spec_with(const Model *m, int32_t ring)
{
    LayerSpec *spec = malloc(sizeof *spec * (size_t) m->n_layers);
    assert_non_null(spec);
    memcpy(spec, m->spec, sizeof *spec * (size_t) m->n_layers);
    for (int32_t il = 0; il < m->n_layers; il++)
        if (spec[il].window) spec[il].ring = ring;
    return spec;
}

static void world_open(World *w, int32_t kind, bool device, Type k, Type v)
{
    RigOptions o = rig_kind(kind, device);
    o.kv = k, o.kv_v = v, o.tm.head_dim = 32;
    memset(w, 0, sizeof *w);
    rig_open(&w->r, &o);
    int32_t windowed = 0;
    for (int32_t il = 0; il < w->r.m->n_layers; il++)              /* every other attention layer */
        if (w->r.m->spec[il].kind == LAYER_ATTENTION && windowed++ % 2 == 0) w->r.m->spec[il].window = WINDOW;
    bench_open(&w->b, &w->r);
    for (int32_t i = 0; i < 2; i++) {
        w->spec[i] = spec_with(w->r.m, i ? RING : 0);
        assert_ok(state_open(&w->s[i], &w->r.m->stages, w->spec[i], w->r.m->n_layers, CTX, 0, 0, CHECKPOINTS,
                             &w->b.err),
                  &w->b.err);
        w->y[i] = malloc(sizeof(float) * (size_t) BENCH_CHUNK * (size_t) w->b.vocab);
        assert_non_null(w->y[i]);
    }
    assert_false(w->s[0].wraps);
    assert_true(w->s[1].wraps);
    assert_int_equal(w->s[1].chunk_max, CHUNK);
    w->d = (Dice) { tiny_key((uint64_t) kind * 100 + (uint64_t) k * 10 + (uint64_t) v, "rings"), 0 };
}

static void world_close(World *w)
{
    for (int32_t i = 0; i < 2; i++) {
        state_close(&w->s[i]);
        free(w->spec[i]);
        free(w->y[i]);
    }
    bench_close(&w->b);
    rig_close(&w->r);
}

static void same_rows(World *w, int32_t n, const char *what, int32_t step)
{
    assert_same(w->y[1], w->y[0], sizeof(float) * (size_t) n * (size_t) w->b.vocab, "%s at %d, step %d", what,
                w->n, step);
}

static void chain(World *w, int32_t n, int32_t step)
{
    bool kept = roll(&w->d, 5) != 0;               /* else abandoned, as if cancelled */
    random_tokens(&w->d, n, w->b.vocab, w->text + w->n);
    for (int32_t i = 0; i < 2; i++)
        assert_ok(bench_chain(&w->b, &w->s[i], n, w->text + w->n, w->y[i], kept), &w->b.err);
    same_rows(w, n, "chain", step);
    if (kept) w->n += n;
}

static void tree(World *w, int32_t n, int32_t step)
{
    int32_t token[ROWS_DECODE], parent[ROWS_DECODE], path[ROWS_DECODE];
    random_tree(&w->d, n, w->b.vocab, token, parent);
    for (int32_t i = 0; i < 2; i++) assert_ok(bench_tree(&w->b, &w->s[i], n, token, parent, w->y[i]), &w->b.err);
    same_rows(w, n, "tree", step);
    int32_t deep = h_path(path, parent, roll(&w->d, n)), taken = roll(&w->d, deep + 1);
    for (int32_t i = 0; i < 2; i++) {
        state_keep(&w->s[i], path, deep);
        assert_int_equal(state_take(&w->s[i], taken), ST_OK);
    }
    for (int32_t t = 0; t < taken; t++) w->text[w->n++] = token[path[t]];
}

static void go_back(World *w)
{
    int32_t far = roll(&w->d, 2) ? ROWS_DECODE : w->n, place = w->n - roll(&w->d, far + 1);
    place = state_place(&w->s[1], place < 0 ? 0 : place, w->s[1].confirmed);
    assert_int_equal(state_place(&w->s[0], place, w->s[0].confirmed), place);
    for (int32_t i = 0; i < 2; i++) assert_int_equal(state_back(&w->s[i], place), place);
    w->n = place;
}

static void checkpoint(World *w)
{
    for (int32_t i = 0; i < 2; i++) assert_ok(step_checkpoint(&w->b.step, &w->s[i], &w->b.err), &w->b.err);
    for (int32_t i = 0; i < 2; i++) assert_ok(step_fold(&w->b.step, &w->s[i], &w->b.err), &w->b.err);
}

/* The ring's image equals that of a fresh session with the text, and a session restored from it can go on. */
static void through_image(World *w)
{
    if (w->n == 0) return;
    State fresh, loaded;
    size_t n[2];
    uint8_t *image = bench_image(&w->b, &w->s[1], &n[0]);
    assert_ok(step_fold(&w->b.step, &w->s[0], &w->b.err), &w->b.err);
    for (int32_t i = 0; i < 2; i++)
        assert_ok(state_open(i ? &loaded : &fresh, &w->r.m->stages, w->spec[1], w->r.m->n_layers, CTX, 0, 0,
                             CHECKPOINTS, &w->b.err), &w->b.err);
    for (int32_t at = 0, part; at < w->n; at += part) {
        part = w->n - at < CHUNK ? w->n - at : CHUNK;
        assert_ok(bench_chain(&w->b, &fresh, part, w->text + at, NULL, true), &w->b.err);
    }
    uint8_t *other = bench_image(&w->b, &fresh, &n[1]);
    assert_int_equal(n[0], n[1]);
    assert_same(image, other, n[0], "image at %d", w->n);
    assert_ok(state_restore(&loaded, &w->b.step.on, image, w->n, &w->b.err), &w->b.err);
    state_close(&fresh);
    state_close(&w->s[1]);
    w->s[1] = loaded;
    while (w->s[0].n_ckpt) w->s[0].n_ckpt--;       /* the replaced session's checkpoints are gone: drop these too */
    if (w->s[0].ckpt_max) assert_ok(step_checkpoint(&w->b.step, &w->s[0], &w->b.err), &w->b.err);
    free(image);
    free(other);
}

static void walk(int32_t kind, bool device, Type k, Type v)
{
    World *w = malloc(sizeof *w);
    assert_non_null(w);
    world_open(w, kind, device, k, v);
    for (int32_t step = 0; step < STEPS; step++) {
        if (w->n > CTX - CHUNK - ROWS_DECODE) go_back(w);
        if (w->n > CTX - CHUNK - ROWS_DECODE) {
            for (int32_t i = 0; i < 2; i++) state_back(&w->s[i], 0), w->s[i].n_ckpt = 0;
            w->n = w->s[0].P;
            assert_int_equal(w->n, w->s[1].P);
        }
        int32_t what = roll(&w->d, 10);
        if (what < 4) tree(w, 1 + roll(&w->d, ROWS_DECODE), step);
        else if (what < 7) chain(w, 1 + roll(&w->d, CHUNK), step);
        else if (what < 8) go_back(w);
        else if (what < 9) checkpoint(w);
        else through_image(w);
    }
    world_close(w);
    free(w);
}

static void rings_are_linear(void **state)
{
    (void) state;
    static const Type pairs[][2] = { { T_F32, T_F32 }, { T_F16, T_BF16 }, { T_Q8_0, T_Q4_0 }, { T_Q4_1, T_Q5_1 },
                                     { T_Q5_0, T_Q8_0 }, { T_F16, T_Q8_0 }, { T_Q4_0, T_F16 } };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int32_t kind = 0; kind < RIG_KINDS; kind++)
            for (int32_t device = 0; device < 2; device++)
                if (kind != 4 && (!device || kind % 2) && part_runs()) walk(kind, device, pairs[i][0], pairs[i][1]);
}

/* An image of a session that wraps, in one that has a slot for each position since its context is short, and the other
 * way around: it goes back as far as it says, and its rows are those of a session that has read the whole text. */
static void images_change_places(void **state)
{
    (void) state;
    enum { N = 120, MORE = 20, SHORT = RING - ROWS_DECODE };
    static const int32_t ctx[] = { CTX, SHORT }, back[] = { N, N - 1, N - 10, N - ROWS_DECODE - 10, WINDOW - 10, 0 };
    for (int32_t kind = 0; kind < RIG_KINDS; kind++)
        for (int32_t to = 0; to < 2; to++) {
            World w;
            world_open(&w, kind, false, T_F16, T_F16);
            random_tokens(&w.d, N + MORE, w.b.vocab, w.text);
            for (size_t k = 0; k < sizeof back / sizeof *back; k++) {
                State s[3];                        /* the image's, the one restored, one that reads everything */
                size_t n;
                for (int32_t i = 0; i < 3; i++)
                    assert_ok(state_open(&s[i], &w.r.m->stages, w.spec[1], w.r.m->n_layers, ctx[i ? to : !to], 0, 0,
                                         CHECKPOINTS, &w.b.err), &w.b.err);
                assert_ok(bench_chain(&w.b, &s[0], N, w.text, NULL, true), &w.b.err);
                uint8_t *image = bench_image(&w.b, &s[0], &n);
                assert_ok(state_restore(&s[1], &w.b.step.on, image, N, &w.b.err), &w.b.err);
                const int32_t place = state_back(&s[1], back[k]);
                assert_true(place <= back[k] && (place == N || back[k] < N));
                if (place > 0) assert_ok(bench_chain(&w.b, &s[2], place, w.text, NULL, true), &w.b.err);
                for (int32_t i = 1; i < 3; i++)
                    assert_ok(bench_chain(&w.b, &s[i], N + MORE - place, w.text + place, w.y[i - 1], true), &w.b.err);
                same_rows(&w, N + MORE - place, "behind an image", place);
                for (int32_t i = 0; i < 3; i++) state_close(&s[i]);
                free(image);
            }
            world_close(&w);
        }
}

/* Through the loop: a prompt in chunks cut to what a ring allows, and texts with speculation. */
static void texts_are_the_same(void **state)
{
    (void) state;
    for (int32_t kind = 1; kind < RIG_KINDS; kind += 2) {
        int32_t text[2][TEXT], prompt[CTX];
        Rig r;
        RigOptions o = rig_with_draft(rig_kind(kind, false), false);
        rig_open(&r, &o);
        for (int32_t il = 0; il < r.m->n_layers; il++)
            if (r.m->spec[il].kind == LAYER_ATTENTION) r.m->spec[il].window = WINDOW;
        Dice d = { tiny_key(8, "ring texts"), 0 };
        random_tokens(&d, 500, r.m->vocab, prompt);
        for (int32_t ring = 0; ring < 2; ring++) {
            for (int32_t il = 0; il < r.m->n_layers; il++) r.m->spec[il].ring = ring ? RING : 0;
            Loop l;
            loop_open(&l, &r, ring ? NULL : &no_drafter,
                      &(LoopOptions) { .ctx = CTX, .chunk = 300, .budget = ring ? 12 : BUDGET_PLAIN, .ngram = ring });
            Session *s = loop_session(&l);
            assert_ok(session_prompt(s, prompt, 500, &l.err), &l.err);
            assert_int_equal(loop_run(&l, s, TEXT, text[ring]), TEXT);
            if (ring) assert_fresh(&l, s, "a text in a ring");
            loop_free(s);
            loop_close(&l);
        }
        assert_same(text[1], text[0], sizeof text[0], "kind %d", kind);
        rig_close(&r);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = { cmocka_unit_test(rings_are_linear),
                                        cmocka_unit_test(images_change_places),
                                        cmocka_unit_test(texts_are_the_same) };
    return cmocka_run_group_tests_name("rings", tests, NULL, NULL);
}
