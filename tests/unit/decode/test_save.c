/* A session saved anywhere and loaded into any other continues bit by bit as if it had been computed there: state,
 * text, drafts. Images that are damaged or belong to something else are refused and change nothing. Also: places where
 * a session can go on, and log-probabilities of its tokens. */
#include "decode/image.h"
#include "model_helper.h"
#include "part.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum { CTX = 160, SAID = PROMPT + TEXT + AHEAD };

/* An engine, a step that drafts, a step that does not, and a random prompt with its continuation by plain decoding. */
typedef struct {
    PublicRig   p;
    rt_step    *st, *plain;
    FakeDrafter knows;
    rt_sampling sampling;
    int32_t     truth[SAID];
    bool        draft;
} Desk;

static rt_session *new_session(Desk *k, int32_t draft_ctx)
{
    rt_session *s;
    rt_error e;
    if (rt_session_new(&s, k->p.g, &RT_SESSION_OPTIONS(.ctx = CTX, .draft_ctx = draft_ctx), &e) != RT_OK)
        fail_msg("%s", e.text);
    assert_int_equal(rt_sampling_set(s, &k->sampling), RT_OK);
    return s;
}

static void prompt(rt_session *s, const int32_t *t, int32_t n)
{
    if (rt_prompt(s, t, (size_t) n) != RT_OK) fail_msg("%s", rt_session_error(s));
}

/* Runs until the session holds n tokens. */
static void run_to(rt_step *st, rt_session *s, int32_t n)
{
    const int32_t *text;
    rt_block b;
    while ((int32_t) rt_session_text(s, &text) < n) {
        rt_status code = rt_next(st, s, &b);
        if (code != RT_OK)
            fail_msg("%d tokens of %d: %s%s", (int) rt_session_text(s, &text), n, rt_step_error(st),
                     rt_session_error(s));
    }
    int32_t over = (int32_t) rt_session_text(s, &text) - n;
    if (over > 0) assert_int_equal(rt_take(s, b.n - over), RT_OK);
}

/* A session that is only prefilled. */
static void commit_to(rt_step *st, rt_session *s, int32_t P)
{
    rt_block b;
    while (s->s.line.target.P < P) assert_int_equal(rt_step_run(st, &s, &b, 1), RT_OK);
}

static void desk_open(Desk *k, const RigOptions *o, int32_t mode, int32_t budget, bool fake, uint64_t seed)
{
    *k = (Desk) { 0 };
    public_open(&k->p, o, NULL);
    rt_error e;
    Sampling m = sampling_mode(mode);
    k->draft = o->draft || o->mtp;
    k->sampling = RT_SAMPLING(.temperature = m.temperature, .top_p = m.top_p, .min_p = m.min_p, .repetition = m.rep,
                              .frequency = m.freq, .presence = m.presence, .top_k = m.top_k,
                              .rep_window = m.rep_window, .seed = m.seed);
    assert_int_equal(rt_step_new(&k->st, k->p.g, &RT_STEP_OPTIONS(.chunk = 11, .budget = budget), &e), RT_OK);
    assert_int_equal(rt_step_new(&k->plain, k->p.g, &RT_STEP_OPTIONS(.chunk = 32, .budget = -1), &e), RT_OK);
    Dice d = { tiny_key(seed, "prompt"), 0 };
    random_tokens(&d, PROMPT, o->tm.vocab, k->truth);
    rt_session *s = new_session(k, 0);
    prompt(s, k->truth, PROMPT);
    run_to(k->plain, s, SAID);
    const int32_t *text;
    rt_session_text(s, &text);
    memcpy(k->truth, text, sizeof k->truth);
    rt_session_free(s);
    fake_drafter(&k->knows, FAKE_MIXED, seed, k->truth, SAID);
    if (fake) k->st->spec.drafter = &k->knows.drafter;
}

static void desk_close(Desk *k)
{
    rt_step_free(k->plain);
    rt_step_free(k->st);
    public_close(&k->p);
}

static uint8_t *save(rt_step *st, rt_session *s, int32_t at, size_t *n)
{
    *n = rt_save_bytes(s, at);
    assert_true(*n > 0);
    uint8_t *image = malloc(*n + 64);
    assert_non_null(image);
    memset(image, 0xa5, *n + 64);
    if (rt_save(st, s, at, image, *n) != RT_OK) fail_msg("save at %d: %s", at, rt_step_error(st));
    for (int32_t i = 0; i < 64; i++) assert_int_equal(image[*n + (size_t) i], 0xa5);
    return image;
}

static void load(rt_session *s, const uint8_t *image, size_t n)
{
    if (rt_load(s, image, n) != RT_OK) fail_msg("load: %s", rt_session_error(s));
}

/* The target's state after P tokens. */
static uint8_t *state_of(rt_step *st, rt_session *s, size_t *n)
{
    Error err = { 0 };
    assert_ok(step_fold(&st->spec.step, &s->s.line.target, &err), &err);
    *n = state_image_bytes(&s->s.line.target, s->s.line.target.P);
    uint8_t *x = malloc(*n + 1);
    assert_non_null(x);
    assert_ok(state_image(&s->s.line.target, &st->spec.step.on, s->s.line.target.P, x, &err), &err);
    return x;
}

static void assert_recomputed(Desk *k, rt_session *s, const char *what)
{
    const int32_t *text;
    size_t n_a, n_b;
    rt_session *fresh = new_session(k, 0);
    int32_t copy[CTX + 1], P = s->s.line.target.P;
    rt_session_text(s, &text);
    memcpy(copy, text, sizeof *copy * (size_t) P);
    copy[P] = 0;
    prompt(fresh, copy, P + 1);
    commit_to(k->plain, fresh, P);
    uint8_t *a = state_of(k->plain, s, &n_a), *b = state_of(k->plain, fresh, &n_b);
    assert_int_equal(n_a, n_b);
    assert_same(a, b, n_a, "state of %s, %d tokens", what, P);
    free(a);
    free(b);
    rt_session_free(fresh);
}

/* The text after P tokens equals the truth, with drafting and without. */
static void assert_goes_on(Desk *k, rt_step *st, rt_session *s, int32_t P, int32_t to, const char *what)
{
    const int32_t *text;
    assert_int_equal(rt_resumable(s, k->truth, (size_t) P + 1), P);
    prompt(s, k->truth, P < PROMPT ? PROMPT : P + 1);
    rt_stats stats;
    rt_stats_get(s, &stats, sizeof stats);
    assert_int_equal(stats.resumed, P);
    run_to(st, s, to);
    rt_session_text(s, &text);
    assert_same(text, k->truth, sizeof *text * (size_t) to, "text of %s, resumed at %d", what, P);
}

/* ---- saving anywhere ---- */

/* A session with a history: a prompt, marks, perhaps an earlier text, any number of generated tokens, perhaps
 * shortened, perhaps with only a part of the prompt computed. Returns the place to save. */
static int32_t wander(Desk *k, rt_session *s, Dice *d)
{
    int32_t mark[3] = { 3 + roll(d, 4), 8 + roll(d, 4), 13 + roll(d, 5) };
    if (roll(d, 3) == 0) {                         /* another text first, which shares some tokens */
        int32_t other[PROMPT], share = roll(d, PROMPT);
        random_tokens(d, PROMPT, k->p.g->model->vocab, other);
        memcpy(other, k->truth, sizeof *other * (size_t) share);
        prompt(s, other, PROMPT);
        run_to(k->st, s, PROMPT + 1 + roll(d, 12));
    }
    prompt(s, k->truth, PROMPT);
    if (roll(d, 2)) assert_int_equal(rt_mark(s, mark, (size_t) roll(d, 4)), RT_OK);
    if (roll(d, 8) == 0) commit_to(k->st, s, 1 + roll(d, PROMPT - 2));
    else run_to(roll(d, 5) ? k->st : k->plain, s, PROMPT + 1 + roll(d, TEXT - 1));
    int32_t at = rt_save_place(s, roll(d, 2) ? INT32_MAX : 1 + roll(d, PROMPT + TEXT));
    if (at == 0) at = rt_save_place(s, INT32_MAX);
    assert_int_equal(rt_save_place(s, at), at);
    return at;
}

static void one_cut(Desk *k, rt_session *s, rt_session *t, Dice *d, bool follow)
{
    size_t n, n_again;
    int32_t at = wander(k, s, d);
    uint8_t *image = save(k->st, s, at, &n);
    assert_int_equal(rt_save_place(s, at), at);    /* saving moved nothing */
    load(t, image, n);
    assert_int_equal(rt_save_place(t, INT32_MAX), at);
    assert_recomputed(k, t, "a loaded session");
    uint8_t *again = save(k->st, t, at, &n_again);
    assert_int_equal(n, n_again);
    assert_same(again, image, n, "an image of a loaded session at %d", at);
    if (follow) {
        rt_step *st = roll(d, 3) ? k->st : k->plain;
        int32_t to = (at < PROMPT ? PROMPT : at) + 2 + roll(d, AHEAD - 2);
        assert_goes_on(k, st, t, at, to, "a loaded session");
        assert_recomputed(k, t, "a loaded session that went on");
        if (roll(d, 2)) {                          /* and so does the saved one */
            assert_int_equal(rt_resumable(s, k->truth, (size_t) at + 1), at);
            prompt(s, k->truth, at < PROMPT ? PROMPT : at + 1);
            run_to(st, s, to);
            const int32_t *text;
            rt_session_text(s, &text);
            assert_same(text, k->truth, sizeof *text * (size_t) to, "text of the session that was saved at %d", at);
            assert_recomputed(k, s, "the session that was saved");
        }
    }
    free(image);
    free(again);
}

/* Every model, drafter, type of keys and values and sampling mode; 1,000 places in all. */
static void any_place(void **state)
{
    (void) state;
    static const Type kinds[] = { T_F32, T_F16, T_BF16, T_Q8_0, T_Q5_1, T_Q5_0, T_Q4_1, T_Q4_0, T_TQ3_0 };
    enum { N = sizeof kinds / sizeof *kinds, MODELS = 40 };
    for (int32_t i = 0; i < MODELS; i++) {
        if (!part_runs()) continue;
        int32_t kind = i % RIG_KINDS, how = i / RIG_KINDS % 4;
        RigOptions o = rig_kind(kind, i % 13 == 6);
        if (how == 3 && rig_has_mtp(kind)) o = rig_with_mtp(o);
        else if (how > 0) o = rig_with_draft(o, how == 2);
        o.kv = kinds[i % N];
        o.kv_v = kinds[(i * 5 + 2) % N];
        if (o.kv == T_TQ3_0 || o.kv_v == T_TQ3_0) o.tm.head_dim = 128;
        else o.tm.head_dim = 32;
        if (o.draft) o.td = tiny_draft(&o.tm), o.td.dflash2 = how == 2;
        o.tm.seed += (uint64_t) i;
        Desk k;
        Dice d = { tiny_key(200, "cuts"), (uint64_t) i << 32 };
        desk_open(&k, &o, i % MODES, i % 20 == 12 ? 0 : 12, how == 0 || i % 5 == 1, (uint64_t) i);
        rt_session *s = new_session(&k, i % 2 ? 32 : 0), *t = new_session(&k, i % 2 ? 32 : 0);
        for (int32_t cut = 0; cut < 25; cut++) one_cut(&k, s, t, &d, cut % 3 == 0);
        rt_session_free(s);
        rt_session_free(t);
        desk_close(&k);
    }
}

/* The drafter's next proposal is the same in the saved session and in the loaded one, for saves at the end; with a ring
 * that wrapped and one that did not. A wrapped ring of another size is left out, and the text is the same. */
static void drafts_go_on(void **state)
{
    (void) state;
    static Lattice a, b;
    for (int32_t device = 0; device < 2; device++)
        for (int32_t how = 0; how < 6; how++) {
            int32_t ring = how % 2 ? 24 : 0;
            RigOptions o = rig_kind(how % 2 ? 3 : 4, device);
            o = how / 2 == 2 ? rig_with_mtp(o) : rig_with_draft(o, how / 2 == 1);
            Desk k;
            Error err = { 0 };
            size_t n;
            desk_open(&k, &o, 0, 12, false, 7);
            rt_session *s = new_session(&k, ring), *t = new_session(&k, ring), *other = new_session(&k, 28);
            prompt(s, k.truth, PROMPT);
            run_to(k.st, s, PROMPT + 25);
            int32_t at = rt_save_place(s, INT32_MAX);
            uint8_t *image = save(k.st, s, at, &n);
            load(t, image, n);
            prompt(t, k.truth, at + 1);
            t->s.calib = s->s.calib;
            Session *pair[2] = { &s->s, &t->s };
            assert_int_equal(pair[0]->draft.P, pair[1]->draft.P);
            assert_int_equal(pair[0]->n_wait, pair[1]->n_wait);
            Drafter *drafter = k.st->spec.drafter;
            memset(&a, 0, sizeof a), memset(&b, 0, sizeof b);
            assert_ok(drafter->propose(drafter, &k.st->spec, &pair[0], 1, &a, &err), &err);
            assert_ok(drafter->propose(drafter, &k.st->spec, &pair[1], 1, &b, &err), &err);
            assert_true(a.n_depth > 0);
            assert_same(&a, &b, sizeof a, "lattice %d", how);
            load(other, image, n);
            if (how < 4) assert_int_equal(other->s.n_wait, 0);
            assert_goes_on(&k, k.st, other, at, at + 20, "a session with another ring");
            free(image);
            rt_session_free(s);
            rt_session_free(t);
            rt_session_free(other);
            desk_close(&k);
        }
}

/* A step that keeps no taps leaves a hole, behind which the drafter goes on: taps from before no longer wait, and
 * pending ones fill nothing in the hole. */
static void taps_of_a_hole(void **state)
{
    (void) state;
    enum { FLUSHED, PENDING, WAITING, WAYS };
    for (int32_t way = 0; way < WAYS; way++)
        for (int32_t plain = 1; plain < 4; plain++) {
            RigOptions o = rig_with_draft(rig_kind(1, false), false);
            Desk k;
            Error err = { 0 };
            desk_open(&k, &o, 0, 12, false, 7);
            rt_session *s = new_session(&k, 0);
            prompt(s, k.truth, PROMPT);
            run_to(k.st, s, PROMPT + 9);
            if (way == FLUSHED) assert_ok(spec_flush_taps(&k.st->spec, &s->s, &err), &err);
            rt_speculate(s, way != WAITING);       /* without drafting they wait */
            if (way == WAITING) run_to(k.st, s, PROMPT + 14);
            rt_speculate(s, true);
            assert_true(way != PENDING || s->s.n_pend > 0);
            assert_true((way == WAITING) == (s->s.n_wait > 0));
            const State *draft = &s->s.draft;
            int32_t from = draft->P;
            for (int32_t i = 0; i < plain; i++) {
                rt_block b;
                assert_int_equal(rt_next(k.plain, s, &b), RT_OK);
            }
            assert_ok(spec_flush_taps(&k.st->spec, &s->s, &err), &err);
            assert_int_equal(s->s.n_wait, 0);
            assert_int_equal(s->s.n_pend, 0);
            assert_int_equal(draft->P - s->s.dm->lead, s->s.line.target.P);
            for (int32_t il = 0; il < draft->n_layers; il++)
                for (int32_t at = from; at < draft->P; at++)
                    assert_int_not_equal(draft->host[il].slot_pos[at % draft->ring], at);
            run_to(k.st, s, PROMPT + 24);
            const int32_t *text;
            rt_session_text(s, &text);
            assert_same(text, k.truth, sizeof *text * (PROMPT + 24), "text behind a hole");
            rt_session_free(s);
            desk_close(&k);
        }
}

/* ---- images that are not right ---- */

/* The session refuses, says why, and is unchanged. */
static void refused(Desk *k, rt_session *s, const uint8_t *bytes, size_t n, rt_status code, const char *why)
{
    uint8_t *exact = malloc(n ? n : 1);            /* so that a sanitizer sees its end */
    assert_non_null(exact);
    memcpy(exact, bytes, n);
    rt_status got = rt_load(s, exact, n);
    free(exact);
    if (got == RT_OK) fail_msg("%s was taken", why);
    if (code != RT_OK) assert_int_equal(got, code);
    if (!strstr(rt_session_error(s), "image") || strchr(rt_session_error(s), '\n'))
        fail_msg("%s: '%s'", why, rt_session_error(s));
    assert_int_equal(rt_resumable(s, k->truth, PROMPT), PROMPT - 1);
}

static void reseal(uint8_t *image, size_t n)
{
    uint64_t sum = XXH3_64bits(image + 16, n - 16);
    memcpy(image + 8, &sum, sizeof sum);
}

/* The parts of an image with a foreign identity: it is refused for that, however well the rest fits. */
static void refuse_identity(Desk *k, rt_session *t, const uint8_t *image, size_t n, const char *identity)
{
    enum { HEAD = 128 };
    uint32_t n_old, n_new = (uint32_t) strlen(identity);
    memcpy(&n_old, image + 20, sizeof n_old);
    size_t from = (HEAD + (size_t) n_old + 63) / 64 * 64, to = (HEAD + (size_t) n_new + 63) / 64 * 64;
    uint64_t size = n - from + to;
    uint8_t *bad = calloc(1, size);
    assert_non_null(bad);
    memcpy(bad, image, HEAD);
    memcpy(bad + HEAD, identity, n_new);
    memcpy(bad + to, image + from, n - from);
    memcpy(bad + 20, &n_new, sizeof n_new);
    memcpy(bad + 24, &size, sizeof size);
    reseal(bad, size);
    if (n_new == n_old && memcmp(bad, image, n) == 0) load(t, bad, n);         /* the rest is right */
    else refused(k, t, bad, size, RT_EUNSUPPORTED, n_new ? identity : "an empty identity");
    free(bad);
}

/* Every identity but the engine's own, and every version but the present one. */
static void other_images(void **state)
{
    (void) state;
    RigOptions o = rig_with_draft(rig_kind(1, false), false);
    Desk k;
    size_t n;
    char own[600], bad[601];
    desk_open(&k, &o, 0, 12, false, 3);
    rt_session *s = new_session(&k, 32), *t = new_session(&k, 32);
    prompt(s, k.truth, PROMPT);
    run_to(k.st, s, PROMPT + 9);
    prompt(t, k.truth, PROMPT);
    run_to(k.st, t, PROMPT + 2);
    uint8_t *image = save(k.st, s, rt_save_place(s, INT32_MAX), &n);
    assert_true(rt_property(k.p.g, "identity", own, sizeof own) < sizeof own);
    size_t n_own = strlen(own);
    for (size_t length = 0; length < n_own; length++) {
        snprintf(bad, sizeof bad, "%.*s", (int) length, own);
        refuse_identity(&k, t, image, n, bad);
        snprintf(bad, sizeof bad, "%s", own);
        bad[length] ^= 1;
        refuse_identity(&k, t, image, n, bad);
    }
    snprintf(bad, sizeof bad, "%s ", own);
    refuse_identity(&k, t, image, n, bad);
    for (uint32_t version = 0; version < IMAGE_VERSION + 3; version++) {
        uint32_t is = version == IMAGE_VERSION ? IMAGE_VERSION << 24 : version;
        uint8_t *old = malloc(n);
        memcpy(old, image, n);
        memcpy(old + 16, &is, sizeof is);
        reseal(old, n);
        refused(&k, t, old, n, RT_EUNSUPPORTED, "an image of another version");
        free(old);
    }
    refuse_identity(&k, t, image, n, own);
    free(image);
    rt_session_free(s);
    rt_session_free(t);
    desk_close(&k);
}

static void damaged_images(void **state)
{
    (void) state;
    for (int32_t kind = 1; kind < RIG_KINDS; kind += 3) {
        RigOptions o = rig_kind(kind, false);
        o = rig_has_mtp(kind) ? rig_with_mtp(o) : rig_with_draft(o, false);
        Desk k, other;
        size_t n;
        Dice d = { tiny_key(210, "damage"), 0 };
        desk_open(&k, &o, 0, 12, false, 3);
        rt_session *s = new_session(&k, 32), *t = new_session(&k, 32);
        prompt(s, k.truth, PROMPT);
        run_to(k.st, s, PROMPT + 9);
        prompt(t, k.truth, PROMPT);
        run_to(k.st, t, PROMPT + 2);
        int32_t at = rt_save_place(s, INT32_MAX);
        uint8_t *image = save(k.st, s, at, &n), *bad = malloc(n + 1);
        char line[64];
        memcpy(bad, image, n);
        for (int32_t i = 0; i < 1200; i++) {       /* one bit: all of the head, then anywhere */
            size_t byte = i < 400 ? (size_t) i : (size_t) roll(&d, (int32_t) n);
            bad[byte] ^= (uint8_t) (1 << roll(&d, 8));
            snprintf(line, sizeof line, "a bit of byte %zu", byte);
            refused(&k, t, bad, n, RT_OK, line);
            bad[byte] = image[byte];
        }
        for (int32_t i = 0; i < 300; i++) {
            size_t length = i < 150 ? (size_t) i : i == 299 ? n - 1 : (size_t) roll(&d, (int32_t) n);
            snprintf(line, sizeof line, "%zu bytes of %zu", length, n);
            refused(&k, t, bad, length, RT_EFORMAT, line);
        }
        bad[n] = 0;
        refused(&k, t, bad, n + 1, RT_EFORMAT, "a byte more");
        for (int32_t i = 0; i < 600; i++) {        /* a false head under a correct checksum */
            static const uint32_t odd[] = { 0, 1, 2, 31, 32, 33, 255, 0x7fffffff, 0x80000000, 0xffffffff, 1u << 24 };
            size_t word = 16 + 4 * (size_t) roll(&d, 14);
            uint32_t v = roll(&d, 2) ? odd[roll(&d, sizeof odd / sizeof *odd)]
                                     : (uint32_t) image[word] + (uint32_t) roll(&d, 9) - 4;
            memcpy(bad, image, n);
            memcpy(bad + word, &v, sizeof v);
            reseal(bad, n);
            /* the drafter's part may hold less than the session */
            bool drafter = (word >= 36 && word < 48) || word == 56;
            if (memcmp(bad, image, n) == 0 || (drafter && rt_load(t, bad, n) == RT_OK)) {
                prompt(t, k.truth, PROMPT);
                run_to(k.st, t, PROMPT + 2);
            } else {
                refused(&k, t, bad, n, RT_OK, "a lie in the head");
            }
        }
        memcpy(bad, image, n);
        uint32_t n_identity;
        memcpy(&n_identity, image + 20, sizeof n_identity);
        memset(bad + (128 + n_identity + 63) / 64 * 64, 0xff, 4);      /* the first token */
        reseal(bad, n);
        if (rt_load(t, bad, n) == RT_OK) fail_msg("a token that does not exist was taken");
        rt_error e;
        rt_session *little;
        assert_int_equal(rt_session_new(&little, k.p.g, &RT_SESSION_OPTIONS(.ctx = at - 1), &e), RT_OK);
        assert_int_equal(rt_load(little, image, n), RT_EFULL);
        rt_session_free(little);
        assert_int_equal(rt_session_new(&little, k.p.g, &RT_SESSION_OPTIONS(.ctx = at), &e), RT_OK);
        assert_int_equal(rt_load(little, image, n), RT_OK);
        rt_session_free(little);
        o.kv_v = T_F16;                            /* the same model with other types */
        desk_open(&other, &o, 0, 12, false, 3);
        rt_session *u = new_session(&other, 32);
        prompt(u, other.truth, PROMPT);
        run_to(other.st, u, PROMPT + 2);
        refused(&other, u, image, n, RT_EUNSUPPORTED, "an image of another identity");
        if (!strstr(rt_session_error(u), "keys/values F32/F32")) fail_msg("%s", rt_session_error(u));
        rt_session_free(u);
        desk_close(&other);
        load(t, image, n);
        assert_goes_on(&k, k.st, t, at, at + 12, "the session that refused so much");
        /* Other invalid calls. */
        assert_int_equal(rt_save(k.st, s, at, bad, n - 1), RT_EARG);
        assert_int_equal(rt_save(k.st, s, s->s.line.n_text, bad, n), RT_EARG);
        assert_int_equal(rt_save_bytes(s, 0), 0);
        assert_int_equal(rt_save_bytes(s, CTX), 0);
        rt_block b;
        load(t, image, n);
        assert_int_equal(rt_step_run(k.st, &t, &b, 1), RT_EARG);       /* it has no root yet */
        assert_int_equal(rt_sampling_set(t, &k.sampling), RT_OK);
        assert_int_equal(rt_step_run(k.st, &t, &b, 1), RT_EARG);
        free(image);
        free(bad);
        rt_session_free(s);
        rt_session_free(t);
        desk_close(&k);
    }
}

/* The device fails at every command of saving and of loading: the saved session goes on, the loaded one is empty or
 * whole. */
static void failing_device(void **state)
{
    (void) state;
    for (int32_t kind = 1; kind < RIG_KINDS; kind += 3) {
        RigOptions o = rig_with_draft(rig_kind(kind, true), false);
        Desk k;
        size_t n;
        desk_open(&k, &o, 0, 12, false, 4);
        DeviceLog *log = device_log(k.p.be);
        rt_session *s = new_session(&k, 0), *t = new_session(&k, 0);
        int64_t failed_save = 0, failed_load = 0;
        bool done = false;
        for (int64_t at_call = 1; !done; at_call += PART) {
            prompt(s, k.truth, PROMPT);
            run_to(k.st, s, PROMPT + 7);
            int32_t at = rt_save_place(s, INT32_MAX);
            n = rt_save_bytes(s, at);
            uint8_t *image = malloc(n);
            log->fail_in = at_call;
            rt_status code = rt_save(k.st, s, at, image, n);
            log->fail_in = 0;
            if (code != RT_OK) {
                assert_int_equal(code, RT_EBACKEND);
                failed_save++;
                assert_int_equal(rt_save(k.st, s, at, image, n), RT_OK);
            }
            log->fail_in = at_call;
            rt_status code_load = rt_load(t, image, n);
            log->fail_in = 0;
            if (code_load != RT_OK) {
                const int32_t *text;
                assert_int_equal(code_load, RT_EBACKEND);
                assert_int_equal(rt_session_text(t, &text), 0);
                failed_load++;
                prompt(t, k.truth, PROMPT);
                run_to(k.st, t, PROMPT + 3);
                assert_recomputed(&k, t, "a session that could not be loaded");
                load(t, image, n);
            }
            assert_recomputed(&k, t, "a session loaded under failures");
            assert_goes_on(&k, k.st, t, at, at + 6, "a session loaded under failures");
            run_to(k.st, s, PROMPT + 14);
            const int32_t *text;
            rt_session_text(s, &text);
            assert_same(text, k.truth, sizeof *text * (PROMPT + 14), "text of the session that could not be saved");
            done = code == RT_OK && code_load == RT_OK;
            free(image);
        }
        assert_true(failed_save > 2 && failed_load > 2);
        rt_session_free(s);
        rt_session_free(t);
        desk_close(&k);
    }
}

/* ---- places ---- */

/* A second turn whose prompt departs from the first one's text anywhere goes back at most to a mark: it never reads its
 * history again, even if the first answer returns without its reasoning. Marks change no text. */
static void marks_are_places(void **state)
{
    (void) state;
    for (int32_t kind = 1; kind < RIG_KINDS; kind += 3) {
        const bool recurrent = rig_has_mtp(kind);
        RigOptions o = rig_with_draft(rig_kind(kind, false), false);
        Desk k;
        desk_open(&k, &o, 0, 12, false, 5);
        rt_session *s = new_session(&k, 0);
        static const int32_t mark[2] = { 6, 15 };
        const int32_t *text;
        for (int32_t leaves = 0; leaves <= PROMPT + 10; leaves++) {
            int32_t next[PROMPT + 30], n = leaves + 1 < 9 ? 9 : leaves + 1;
            session_forget(&s->s);
            prompt(s, k.truth, PROMPT);
            assert_int_equal(rt_mark(s, mark, 2), RT_OK);
            run_to(k.st, s, PROMPT + 10);
            rt_session_text(s, &text);
            assert_same(text, k.truth, sizeof *text * (PROMPT + 10), "text with marks");
            memcpy(next, k.truth, sizeof *next * (size_t) n);
            for (int32_t i = leaves; i < n; i++) next[i] = (k.truth[i] + 1) % 96;
            int32_t want = !recurrent ? leaves : leaves >= PROMPT + 9 ? PROMPT + 9 : leaves >= PROMPT - 1
                           ? PROMPT - 1 : leaves >= 15 ? 15 : leaves >= 6 ? 6 : 0;
            if (want > PROMPT + 9) want = PROMPT + 9;
            int32_t holds = rt_resumable(s, next, (size_t) n);
            /* the last block's tokens are places too */
            assert_true(!recurrent || leaves < PROMPT - 1 ? holds == want : holds >= want && holds <= leaves);
            assert_true(rt_save_place(s, leaves ? leaves : 1) <= (leaves ? leaves : 1));
            prompt(s, next, n);
            rt_stats stats;
            rt_stats_get(s, &stats, sizeof stats);
            assert_int_equal(stats.resumed, holds);
            if (leaves % 6 == 0) {
                run_to(k.st, s, n + 3);
                assert_recomputed(&k, s, "a second turn");
            }
        }
        static const int32_t bad[4][2] = { { 0, 5 }, { 5, 5 }, { 7, 5 }, { 5, PROMPT } };
        prompt(s, k.truth, PROMPT);
        for (int32_t i = 0; i < 4; i++) assert_int_equal(rt_mark(s, bad[i], 2), RT_EARG);
        assert_int_equal(rt_mark(s, bad[0], RT_MARKS + 1), RT_EARG);
        assert_non_null(strstr(rt_session_error(s), "marks: "));
        assert_int_equal(rt_resumable(s, k.truth, 0), 0);
        rt_session_free(s);
        desk_close(&k);
    }
}

/* n answers to one prompt: saved at its end, loaded into the others, each with its own seed. */
static void one_prompt_several_answers(void **state)
{
    (void) state;
    RigOptions o = rig_with_mtp(rig_kind(4, false));
    Desk k;
    size_t n;
    desk_open(&k, &o, 1, 12, false, 6);
    rt_session *s = new_session(&k, 0), *t = new_session(&k, 0);
    prompt(s, k.truth, PROMPT);
    commit_to(k.st, s, PROMPT - 1);
    uint8_t *image = save(k.st, s, PROMPT - 1, &n);
    for (uint64_t seed = 1; seed < 5; seed++) {
        const int32_t *a, *b;
        k.sampling.seed = seed;
        assert_int_equal(rt_sampling_set(s, &k.sampling), RT_OK);
        assert_int_equal(rt_sampling_set(t, &k.sampling), RT_OK);
        load(t, image, n);
        prompt(s, k.truth, PROMPT);
        prompt(t, k.truth, PROMPT);
        run_to(k.plain, s, PROMPT + 20);
        run_to(k.st, t, PROMPT + 20);
        rt_session_text(s, &a);
        rt_session_text(t, &b);
        assert_same(b, a, sizeof *a * (PROMPT + 20), "answer %d", (int) seed);
    }
    free(image);
    rt_session_free(s);
    rt_session_free(t);
    desk_close(&k);
}

/* ---- log-probabilities ---- */

typedef struct { float *logits; int32_t vocab; } AllRows;
static void keep_row(void *ud, int32_t i, const float *logits, const float *taps)
{
    (void) taps;
    AllRows *r = ud;
    memcpy(r->logits + (size_t) i * (size_t) r->vocab, logits, sizeof *logits * (size_t) r->vocab);
}

/* Independent of logprob_row: long double, and a selection by counting larger ones. */
static void assert_logprob(const rt_logprob *p, const float *logits, int32_t vocab, int32_t token, int32_t top)
{
    long double sum = 0;
    for (int32_t i = 0; i < vocab; i++) sum += expl((long double) logits[i]);
    long double base = logl(sum);
    assert_true(fabsl((long double) logits[token] - base - (long double) p->logprob) < 1e-5L);
    assert_int_equal(p->n, top < vocab ? top : vocab);
    for (int32_t i = 0; i < p->n; i++) {
        int32_t above = 0, id = p->top[i].id;
        for (int32_t j = 0; j < vocab; j++) above += logits[j] > logits[id] || (logits[j] == logits[id] && j < id);
        assert_int_equal(above, i);
        assert_true(fabsl((long double) logits[id] - base - (long double) p->top[i].logprob) < 1e-5L);
    }
}

static bool some(void *ud, const int32_t *path, size_t n, uint32_t *bits)
{
    (void) ud, (void) path, (void) n;
    for (int32_t i = 0; i < 3; i++) bits[i] = 0xfffffff3u;
    return true;
}

/* Plain decoding, speculation with long paths, masked drawing and a backend that draws by itself all give the same
 * log-probabilities, those of the rows themselves. */
static void logprobs(void **state)
{
    (void) state;
    for (int32_t device = 0; device < 2; device++)
        for (int32_t mode = 0; mode < MODES; mode++) {
            RigOptions o = rig_kind(mode + 1, device);
            Desk k;
            desk_open(&k, &o, mode, 20, true, 9 + (uint64_t) mode);
            rt_session *s = new_session(&k, 0);
            AllRows rows = { malloc(sizeof(float) * SAID * 96), 96 };
            assert_null(rt_logprobs(s));
            if (rt_rows(k.plain, s, NULL, 0, k.truth, NULL, SAID, RT_ROWS_LOGITS, keep_row, &rows))
                fail_msg("%s", rt_step_error(k.plain));
            static const int32_t tops[3] = { 5, 0, 20 };
            int32_t longest = 0;
            for (int32_t i = 0; i < 3; i++) {
                assert_int_equal(rt_logprobs_set(s, tops[i]), RT_OK);
                if (mode == 2) rt_allow(s, i == 1 ? some : NULL, NULL);
                prompt(s, k.truth, PROMPT);
                bool same = true;
                for (int32_t at = PROMPT; at < SAID - 1 && same;) {
                    rt_block b;
                    assert_int_equal(rt_next(i == 2 ? k.plain : k.st, s, &b), RT_OK);
                    if (b.n > longest) longest = b.n;
                    for (int32_t j = 0; j < b.n && at < SAID && same; j++, at++) {
                        assert_logprob(rt_logprobs(s) + j, rows.logits + (at - 1) * 96, 96, b.token[j], tops[i]);
                        same = b.token[j] == k.truth[at];      /* a mask may lead elsewhere */
                    }
                }
            }
            assert_true(longest > 2);
            assert_int_equal(rt_logprobs_set(s, 21), RT_EARG);
            assert_int_equal(rt_logprobs_set(s, -2), RT_EARG);
            assert_int_equal(rt_logprobs_set(s, -1), RT_OK);
            assert_null(rt_logprobs(s));
            rt_block b;
            prompt(s, k.truth, PROMPT);
            assert_int_equal(rt_next(k.st, s, &b), RT_OK);
            assert_int_equal(rt_logprobs_set(s, 3), RT_OK);
            assert_null(rt_logprobs(s));                       /* they were off when the block was made */
            assert_int_equal(rt_next(k.st, s, &b), RT_OK);
            assert_non_null(rt_logprobs(s));
            rt_logprob p;
            rt_logprob_row(&p, rows.logits, 96, 5, 3);
            assert_logprob(&p, rows.logits, 96, 5, 3);
            static const float ties[5] = { 1, 3, 3, -INFINITY, 3 };
            rt_logprob_row(&p, ties, 5, 3, 20);
            assert_int_equal(p.n, 5);
            assert_int_equal(p.top[0].id, 1);
            assert_int_equal(p.top[1].id, 2);
            assert_int_equal(p.top[2].id, 4);
            assert_true(p.logprob == -INFINITY);
            free(rows.logits);
            rt_session_free(s);
            desk_close(&k);
        }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_place), cmocka_unit_test(drafts_go_on), cmocka_unit_test(taps_of_a_hole),
        cmocka_unit_test(damaged_images), cmocka_unit_test(other_images), cmocka_unit_test(failing_device),
        cmocka_unit_test(marks_are_places), cmocka_unit_test(one_prompt_several_answers), cmocka_unit_test(logprobs),
    };
    return cmocka_run_group_tests_name("save", tests, NULL, NULL);
}
