/* test_stages.c - a model cut in two, each part on a backend of its own: all results equal those of the uncut model,
 * bit by bit. The drafter's taps are taken in both parts, and the last part has head, drafter and logits. */
#include <stdlib.h>
#include <string.h>

#include "decode/image.h"
#include "model_helper.h"
#include "part.h"

static const char identity[] = "the same model";

enum { DRAFTS = 4, NO_DRAFT = 0, DFLASH, DFLASH2, MTP };

/* Returns false if the family has no such drafter. */
static bool options(RigOptions *o, int32_t kind, int32_t draft, bool device)
{
    *o = rig_kind(kind, device);
    if (draft == MTP && !rig_has_mtp(kind)) return false;
    if (draft == MTP) *o = rig_with_mtp(*o);
    else if (draft != NO_DRAFT) *o = rig_with_draft(*o, draft == DFLASH2);
    return true;
}

static uint8_t *image_of(Loop *l, Session *s, size_t *n)
{
    *n = session_image_bytes(s, identity, s->line.target.P);
    uint8_t *image = malloc(*n + 1);
    assert_non_null(image);
    assert_ok(session_image(&l->sp, s, identity, s->line.target.P, image, *n, &l->err), &l->err);
    return image;
}

typedef struct { int32_t text[3][TEXT]; uint8_t *image; size_t n; } Said;

/* A text, shortened and continued; another that goes back to a mark of the prompt; the image. */
static void speak(Rig *r, const int32_t *prompt, int32_t budget, Said *out)
{
    Loop l;
    loop_open(&l, r, NULL, &(LoopOptions) { .budget = budget, .chunk = 7 });
    Session *s = loop_session(&l);
    const int32_t mark = PROMPT / 2;
    for (int32_t turn = 0; turn < 2; turn++) {
        int32_t asked[PROMPT];
        memcpy(asked, prompt, sizeof asked);
        for (int32_t i = mark; turn && i < PROMPT; i++) asked[i] = prompt[PROMPT - 1 - i];
        assert_ok(session_prompt(s, asked, PROMPT, &l.err), &l.err);
        if (turn) assert_int_equal(s->stats.resumed, s->line.target.recurrent ? mark : s->line.target.P);
        assert_ok(line_mark(&s->line, &mark, 1, &l.err), &l.err);
        s->line.sampling = sampling_mode(1 + turn);
        assert_int_equal(loop_run(&l, s, TEXT, out->text[turn]), TEXT);
    }
    assert_ok(spec_step(&l.sp, &s, 1, &l.err), &l.err);
    assert_int_equal(session_take(s, 1), ST_OK);   /* one token of a block, which is then final */
    assert_int_equal(loop_run(&l, s, TEXT, out->text[2]), TEXT);
    out->image = image_of(&l, s, &out->n);
    loop_free(s);
    loop_close(&l);
}

/* The image of one is loaded into the other, which must continue as the first would. */
static void cross(Rig *r, const Said *from, int32_t *text)
{
    Loop l;
    loop_open(&l, r, NULL, &(LoopOptions) { .budget = 12 });
    Session *s = loop_session(&l);
    assert_ok(session_load(s, identity, from->image, from->n, &l.err), &l.err);
    int32_t n = s->line.n_text, *all = malloc(sizeof *all * (size_t) (n + 1));
    assert_non_null(all);
    memcpy(all, s->line.text, sizeof *all * (size_t) n);
    all[n] = 3;
    assert_ok(session_prompt(s, all, n + 1, &l.err), &l.err);
    assert_int_equal(s->stats.resumed, n);
    assert_int_equal(loop_run(&l, s, TEXT, text), TEXT);
    free(all);
    loop_free(s);
    loop_close(&l);
}

static void compare(int32_t kind, int32_t draft, bool device, int32_t budget)
{
    RigOptions o;
    if (!options(&o, kind, draft, device)) return;
    Rig r[2];
    Said said[2];
    int32_t prompt[PROMPT], text[2][TEXT];
    Dice d = { tiny_key((uint64_t) kind, "stages"), 0 };
    rig_open(&r[0], &o);
    random_tokens(&d, PROMPT, r[0].m->vocab, prompt);
    for (int32_t cut = 1; cut < r[0].m->n_layers; cut++) {
        if (cut > 1 && !part_runs()) continue;
        o.cut = cut;
        rig_open(&r[1], &o);
        assert_int_equal(r[1].m->stages.n, 2);
        for (int32_t i = 0; i < 2; i++) speak(&r[i], prompt, budget, &said[i]);
        assert_same(said[1].text, said[0].text, sizeof said[0].text, "texts of kind %d cut at %d", kind, cut);
        assert_int_equal(said[1].n, said[0].n);
        if (budget != BUDGET_AUTO)                 /* else the drafter's state depends on measured times */
            assert_same(said[1].image, said[0].image, said[0].n, "image of kind %d cut at %d", kind, cut);
        for (int32_t i = 0; i < 2; i++) cross(&r[i], &said[!i], text[i]);
        assert_same(text[1], text[0], sizeof text[0], "loaded text of kind %d cut at %d", kind, cut);
        for (int32_t i = 0; i < 2; i++) free(said[i].image);
        rig_close(&r[1]);
    }
    rig_close(&r[0]);
}

static void two_are_one(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < RIG_KINDS; kind++)
        for (int32_t draft = 0; draft < DRAFTS; draft++)
            for (int32_t device = 0; device < 2; device++)
                if (device == 0 || (kind + draft) % 3 == 0)
                    if (part_runs()) compare(kind, draft, device, draft == DFLASH && kind == 0 ? BUDGET_AUTO : 12);
}

/* The logits and taps of rows, as used for comparison with other programs. */
typedef struct { float *at; int32_t n, vocab, taps; } Rows2;

static void take_row(void *ud, int32_t i, const float *logits, const float *taps)
{
    Rows2 *r = ud;
    float *to = r->at + (size_t) i * (size_t) (r->vocab + r->taps);
    memcpy(to, logits, sizeof *to * (size_t) r->vocab);
    memcpy(to + r->vocab, taps, sizeof *to * (size_t) r->taps);
    r->n++;
}

static void rows_are_the_same(void **state)
{
    (void) state;
    enum { ROWS = 30 };
    for (int32_t kind = 0; kind < RIG_KINDS; kind++) {
        RigOptions o = rig_with_draft(rig_kind(kind, kind % 2), false);
        float *y[2];
        size_t bytes = 0;
        for (int32_t cut = 0; cut < 2; cut++) {
            Rig r;
            Loop l;
            o.cut = cut;
            rig_open(&r, &o);
            loop_open(&l, &r, NULL, &(LoopOptions) { .budget = 12 });
            Session *s = loop_session(&l);
            int32_t token[ROWS], parent[ROWS], prefix[PROMPT];
            Dice d = { tiny_key(2, "stage rows"), 0 };
            random_tokens(&d, PROMPT, r.m->vocab, prefix);
            random_tree(&d, ROWS, r.m->vocab, token, parent);
            bytes = sizeof(float) * ROWS * (size_t) (r.m->vocab + r.m->tap_width);
            y[cut] = malloc(2 * bytes);
            assert_non_null(y[cut]);
            Rows2 rows = { .at = y[cut], .vocab = r.m->vocab, .taps = r.m->tap_width };
            assert_true(r.m->tap[0] < 1 && r.m->n_taps > 1);          /* taken in both parts */
            assert_ok(inspect_rows(&l.sp, s, prefix, PROMPT, token, parent, ROWS, WANT_TAPS | WANT_LOGITS, take_row,
                                   &rows, &l.err), &l.err);
            rows.at = y[cut] + bytes / sizeof(float);
            assert_ok(inspect_rows(&l.sp, s, prefix, PROMPT, token, NULL, ROWS, WANT_TAPS | WANT_LOGITS, take_row,
                                   &rows, &l.err), &l.err);
            assert_int_equal(rows.n, 2 * ROWS);
            loop_free(s);
            loop_close(&l);
            rig_close(&r);
        }
        assert_same(y[1], y[0], 2 * bytes, "rows of kind %d", kind);
        free(y[0]);
        free(y[1]);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = { cmocka_unit_test(two_are_one), cmocka_unit_test(rows_are_the_same) };
    return cmocka_run_group_tests_name("stages", tests, NULL, NULL);
}
