/* The library as its users see it: clients of ratoon.h that arrive late, cancel, shorten their blocks and come back for
 * a second turn, together in one step. Each of them reads what it would read alone, without a drafter. */
#include "model_helper.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLIENTS = 3 };

static const rt_sampling samplings[CLIENTS] = {
    RT_SAMPLING_INIT,
    RT_SAMPLING(.temperature = 1, .top_p = 0.9f, .repetition = 1.2f, .frequency = 0.3f, .rep_window = 30, .seed = 3),
    RT_SAMPLING(.temperature = 0.7f, .top_k = 20, .seed = 9)
};

static bool keep_going(void *ud, const char *what, int64_t done, int64_t total)
{
    (void) what, (void) done, (void) total;
    Dice *d = ud;
    return d->key == 0 || roll(d, 40) != 0;
}

static void prompt_of(int32_t client, int32_t turn, int32_t *token)
{
    Dice d = { tiny_key(5, "client"), (uint64_t) (client * 10 + turn) * 100 };
    random_tokens(&d, PROMPT, 96, token);
}

/* One client alone, plain: two turns of TEXT tokens; the second prompt is the whole first text and PROMPT
 * tokens more. */
static void alone(rt_engine *g, int32_t client, int32_t text[2][TEXT])
{
    rt_step *st;
    rt_session *s;
    rt_block b;
    int32_t all[2 * (PROMPT + TEXT)], n = 0;
    public_start(&st, &s, g, &RT_STEP_OPTIONS(.budget = -1), &RT_SESSION_OPTIONS(.ctx = 200));
    assert_int_equal(rt_sampling_set(s, &samplings[client]), RT_OK);
    for (int32_t turn = 0; turn < 2; turn++) {
        prompt_of(client, turn, all + n);
        n += PROMPT;
        assert_int_equal(rt_prompt(s, all, (size_t) n), RT_OK);
        for (int32_t i = 0; i < TEXT; i++) {
            assert_int_equal(rt_next(st, s, &b), RT_OK);
            assert_int_equal(b.n, 1);
            all[n + i] = text[turn][i] = b.token[0];
        }
        n += TEXT;
    }
    rt_session_free(s);
    rt_step_free(st);
}

typedef struct {
    rt_session *s;
    int32_t all[2 * (PROMPT + TEXT) + 64], n, made, turn;
    int64_t cancelled;
    bool plain;
} Client;

static void ask(Client *c, int32_t who)
{
    prompt_of(who, c->turn, c->all + c->n);
    c->n += PROMPT;
    c->made = 0;
    assert_int_equal(rt_prompt(c->s, c->all, (size_t) c->n), RT_OK);
}

/* fake: a drafter that knows the texts and is often right replaces the random DFlash. */
static void together(const RigOptions *o, int32_t budget, bool fake)
{
    PublicRig p;
    Dice stop = { 0 };
    public_open(&p, o, NULL);
    rt_hooks hooks = { .ud = &stop, .progress = keep_going };
    int32_t want[CLIENTS][2][TEXT];
    for (int32_t i = 0; i < CLIENTS; i++) alone(p.g, i, want[i]);
    rt_step *st;
    rt_error e;
    Client c[CLIENTS] = { 0 };
    assert_int_equal(rt_step_new(&st, p.g, &RT_STEP_OPTIONS(.sessions = CLIENTS, .chunk = 8, .budget = budget,
                                                            .hooks = hooks), &e), RT_OK);
    for (int32_t i = 0; i < CLIENTS; i++) {
        assert_int_equal(rt_session_new(&c[i].s, p.g, &RT_SESSION_OPTIONS(.ctx = 200), &e), RT_OK);
        assert_int_equal(rt_sampling_set(c[i].s, &samplings[i]), RT_OK);
        ask(&c[i], i);
    }
    FakeDrafter knows;
    int32_t truth[CLIENTS][2 * (PROMPT + TEXT)];
    fake_drafter(&knows, FAKE_MIXED, 4, NULL, 0);
    for (int32_t i = 0; i < CLIENTS; i++) {
        for (int32_t turn = 0; turn < 2; turn++) {
            prompt_of(i, turn, truth[i] + turn * (PROMPT + TEXT));
            memcpy(truth[i] + turn * (PROMPT + TEXT) + PROMPT, want[i][turn], sizeof want[i][turn]);
        }
        knows.of[i].s = &c[i].s->s;
        knows.of[i].truth = truth[i];
        knows.of[i].n = 2 * (PROMPT + TEXT);
    }
    if (fake) st->spec.drafter = &knows.drafter;
    Dice d = { tiny_key(6, "clients"), 0 };
    stop.key = tiny_key(7, "stop");
    int64_t cancelled = 0, taken = 0;
    for (int32_t step = 0, going = CLIENTS; going > 0; step++) {
        rt_session *s[CLIENTS];
        rt_block b[CLIENTS];
        int32_t who[CLIENTS];
        size_t n = 0;
        assert_true(step < 2000);
        for (int32_t i = 0; i < CLIENTS; i++)
            if (step >= 4 * i && c[i].turn < 2) who[n] = i, s[n++] = c[i].s;
        rt_status code = rt_step_run(st, s, b, n);
        if (code == RT_ECANCEL) {
            cancelled++;
            continue;
        }
        if (code != RT_OK) fail_msg("step: %s", rt_step_error(st));
        for (size_t j = 0; j < n; j++) {
            Client *x = &c[who[j]];
            int32_t more = b[j].n;
            assert_int_equal(b[j].status, RT_OK);
            if (x->plain) assert_true(more <= 1);  /* a client may turn speculation off for a while */
            x->plain = roll(&d, 4) == 0;
            assert_int_equal(rt_speculate(x->s, !x->plain), RT_OK);
            if (more > 2 && roll(&d, 2)) more = 2, taken++;
            if (more > TEXT - x->made) more = TEXT - x->made;
            assert_int_equal(rt_take(x->s, more), RT_OK);
            memcpy(x->all + x->n, b[j].token, sizeof *x->all * (size_t) more);
            x->n += more;
            x->made += more;
            if (x->made < TEXT) continue;
            assert_same(x->all + x->n - TEXT, want[who[j]][x->turn], sizeof(int32_t) * TEXT, "client %d, turn %d",
                        who[j], x->turn);
            rt_stats stats;
            rt_stats_get(x->s, &stats, sizeof stats);
            assert_int_equal(stats.generated, TEXT);
            assert_int_equal(stats.prompt_tokens, x->n - TEXT);
            if (++x->turn < 2) ask(x, who[j]);
            else going--;
        }
    }
    assert_true(cancelled > 3 || o->device);       /* a recorded pass asks once, not after each layer */
    assert_true(taken > 0 || !fake);
    for (int32_t i = 0; i < CLIENTS; i++) rt_session_free(c[i].s);
    rt_step_free(st);
    public_close(&p);
}

static void clients_together(void **state)
{
    (void) state;
    for (int32_t device = 0; device < 2; device++)
        for (int32_t kind = 0; kind < RIG_KINDS; kind++) {
            RigOptions o = rig_with_draft(rig_kind(kind, device), kind % 2);
            together(&o, kind == 3 ? 0 : 25, kind % 3 != 0);
        }
}

/* ---- looking inside ---- */

typedef struct { float *y; int32_t vocab, n, taps; } Seen;
static void see(void *ud, int32_t i, const float *logits, const float *taps)
{
    Seen *w = ud;
    assert_int_equal(i, w->n);
    memcpy(w->y + i * w->vocab, logits, sizeof *logits * (size_t) w->vocab);
    w->taps += taps != NULL;
    w->n++;
}

/* rt_rows: a tree's row equals the last row of a chain over its path, a prefix equals the rows before it, and the
 * session is left unchanged. */
static void rows_of_trees_and_chains(void **state)
{
    (void) state;
    for (int32_t device = 0; device < 2; device++)
        for (int32_t kind = 0; kind < RIG_KINDS; kind += 2) {
            PublicRig p;
            RigOptions o = rig_with_draft(rig_kind(kind, device), false);
            public_open(&p, &o, NULL);
            rt_step *st;
            rt_session *s;
            public_start(&st, &s, p.g, &RT_STEP_OPTIONS(.chunk = 11), &RT_SESSION_OPTIONS(.ctx = 100));
            Dice d = { tiny_key(8, "rows"), 0 };
            int32_t prefix[30], token[12], parent[12], rows[12], chain[42];
            random_tokens(&d, 30, 96, prefix);
            random_tree(&d, 12, 96, token, parent);
            Seen tree = { malloc(sizeof(float) * 96 * 12), 96, 0, 0 },
                 line = { malloc(sizeof(float) * 96 * 42), 96, 0, 0 };
            for (int32_t n_prefix = 0; n_prefix <= 30; n_prefix += 15)
                for (int32_t row = 11; row >= 0; row -= 4) {
                    int32_t n = h_path(rows, parent, row);
                    memcpy(chain, prefix, sizeof *chain * (size_t) n_prefix);
                    for (int32_t t = 0; t < n; t++) chain[n_prefix + t] = token[rows[t]];
                    tree.n = line.n = tree.taps = 0;
                    const int both = RT_ROWS_LOGITS | RT_ROWS_TAPS;
                    if (rt_rows(st, s, prefix, (size_t) n_prefix, token, parent, 12, both, see, &tree))
                        fail_msg("%s", rt_step_error(st));
                    if (rt_rows(st, s, NULL, 0, chain, NULL, n_prefix + n, RT_ROWS_LOGITS, see, &line))
                        fail_msg("%s", rt_step_error(st));
                    assert_int_equal(tree.taps, 12);
                    assert_same(tree.y + row * 96, line.y + (n_prefix + n - 1) * 96, sizeof(float) * 96,
                                "kind %d, prefix %d, row %d", kind, n_prefix, row);
                }
            assert_int_equal(rt_rows(st, s, prefix, 30, token, (int32_t[]) { -1, 1 }, 2, RT_ROWS_LOGITS, see, &tree),
                             RT_EARG);
            assert_int_equal(rt_rows(st, s, prefix, 30, (int32_t[]) { 96 }, NULL, 1, RT_ROWS_LOGITS, see, &tree),
                             RT_EARG);
            free(tree.y);
            free(line.y);
            rt_session_free(s);
            rt_step_free(st);
            public_close(&p);
        }
}

/* A chain in pieces, each continuing the ones before, equals the whole chain: whatever another session does meanwhile,
 * also where the session itself was used for something else, and where the prefix differs from that of the last
 * piece. */
static void rows_in_pieces(void **state)
{
    enum { N = 42, V = 96 };
    static const int32_t ends[] = { 13, 29, N };
    (void) state;
    for (int32_t device = 0; device < 2; device++)
        for (int32_t kind = 0; kind < RIG_KINDS; kind++) {
            PublicRig p;
            RigOptions o = rig_with_draft(rig_kind(kind, device), kind % 2);
            public_open(&p, &o, NULL);
            rt_step *st;
            rt_session *s, *other;
            rt_error e;
            rt_block b;
            public_start(&st, &s, p.g, &RT_STEP_OPTIONS(.chunk = 11), &RT_SESSION_OPTIONS(.ctx = 100));
            assert_int_equal(rt_session_new(&other, p.g, &RT_SESSION_OPTIONS(.ctx = 100), &e), RT_OK);
            Dice d = { tiny_key(9, "pieces"), kind };
            int32_t chain[N], odd[N];
            random_tokens(&d, N, V, chain);
            memcpy(odd, chain, sizeof odd);
            odd[3] = (odd[3] + 1) % V;
            Seen whole = { malloc(sizeof(float) * V * N), V, 0, 0 },
                 strange = { malloc(sizeof(float) * V * N), V, 0, 0 },
                 piece = { malloc(sizeof(float) * V * N), V, 0, 0 };
            assert_int_equal(rt_rows(st, other, NULL, 0, odd, NULL, N, RT_ROWS_LOGITS, see, &strange), RT_OK);
            assert_int_equal(rt_rows(st, other, NULL, 0, chain, NULL, N, RT_ROWS_LOGITS, see, &whole), RT_OK);
            for (int32_t way = 0; way < 4; way++)
                for (int32_t i = 0, at = 0; i < 3; at = ends[i++]) {
                    const Seen *want = way == 3 && i == 2 ? &strange : &whole;
                    piece.n = 0;
                    if (rt_rows(st, s, want == &strange ? odd : chain, (size_t) at, chain + at, NULL, ends[i] - at,
                                RT_ROWS_LOGITS, see, &piece))
                        fail_msg("%s", rt_step_error(st));
                    assert_same(piece.y, want->y + at * V, sizeof(float) * V * (size_t) (ends[i] - at),
                                "kind %d, way %d, piece %d", kind, way, i);
                    const int32_t *held;
                    assert_int_equal(rt_session_text(s, &held), 0);
                    assert_int_equal(rt_save_place(s, ends[i]), 0);
                    assert_int_equal(rt_save_bytes(s, ends[i]), 0);
                    rt_session *use = way == 2 ? s : other;
                    if (way == 0) continue;
                    assert_int_equal(rt_prompt(use, chain + i, 20), RT_OK);
                    do assert_int_equal(rt_next(st, use, &b), RT_OK);
                    while (b.n == 0);
                }
            free(whole.y);
            free(strange.y);
            free(piece.y);
            rt_session_free(s);
            rt_session_free(other);
            rt_step_free(st);
            public_close(&p);
        }
}

static bool count_down(void *ud, const char *what, int64_t done, int64_t total)
{
    (void) what, (void) done, (void) total;
    int32_t *left = ud;
    return *left < 0 || (*left)-- > 0;
}

static void see_nothing(void *ud, int32_t i, const float *logits, const float *taps)
{
    (void) ud, (void) i, (void) logits, (void) taps;
}

/* Rows that are cancelled anywhere leave a session without a text, of which nothing can be saved, and the next text is
 * that of a fresh session. */
static void rows_that_are_cancelled(void **state)
{
    enum { PREFIX = 10, N = 40 };
    (void) state;
    for (int32_t kind = 0; kind < RIG_KINDS; kind++) {
        PublicRig p;
        RigOptions o = rig_with_draft(rig_kind(kind, false), kind % 2);
        public_open(&p, &o, NULL);
        int32_t left = -1, rows[PREFIX + N], prompt[PROMPT], want = -1;
        rt_step *st;
        rt_session *s;
        rt_block b;
        const rt_hooks hooks = { .ud = &left, .progress = count_down };
        public_start(&st, &s, p.g, &RT_STEP_OPTIONS(.chunk = 11, .hooks = hooks), &RT_SESSION_OPTIONS(.ctx = 100));
        Dice d = { tiny_key(10, "cancelled"), (uint64_t) kind };
        random_tokens(&d, PREFIX + N, 96, rows);
        prompt_of(kind, 0, prompt);
        for (int32_t draft = 0; draft < 2; draft++)
            for (int32_t layers = 0, code = RT_ECANCEL; code == RT_ECANCEL; layers++) {
                assert_int_equal(rt_prompt(s, prompt, PROMPT), RT_OK);
                assert_int_equal(rt_next(st, s, &b), RT_OK);
                if (want < 0) want = b.token[0];
                assert_int_equal(b.token[0], want);
                left = layers;
                code = draft ? rt_draft_rows(st, s, rows, PREFIX, rows[PREFIX], see_nothing, NULL)
                             : rt_rows(st, s, rows, PREFIX, rows + PREFIX, NULL, N, RT_ROWS_LOGITS, see_nothing, NULL);
                left = -1;
                const int32_t *held;
                if (code != RT_ECANCEL && code != RT_OK) fail_msg("%s", rt_step_error(st));
                assert_int_equal(rt_session_text(s, &held), 0);
                assert_int_equal(rt_save_place(s, 100), 0);
                if (code == RT_ECANCEL) assert_int_equal(s->s.line.target.P, 0);
            }
        rt_session_free(s);
        rt_step_free(st);
        public_close(&p);
    }
}

/* Timing passes of a session, at its place and farther on, does not change its text; nor where layers wrap, and the
 * pass writes over what the text still sees. */
static void times_leave_no_trace(void **state)
{
    (void) state;
    for (int32_t turn = 0; turn < 2 * RIG_KINDS; turn++) {
        const int32_t kind = turn / 2, ctx = turn % 2 ? 900 : 200, far = turn % 2 ? 640 + PROMPT : 150;
        PublicRig p;
        RigOptions o = rig_with_draft(rig_kind(kind, kind % 3 == 0), kind % 2);
        public_open(&p, &o, NULL);
        int32_t text[2][TEXT], prompt[PROMPT];
        prompt_of(kind, 0, prompt);
        for (int32_t timed = 0; timed < 2; timed++) {
            rt_step *st;
            rt_session *s;
            rt_block b = { 0 };
            double ms[2];
            public_start(&st, &s, p.g, &RT_STEP_OPTIONS(.budget = 9), &RT_SESSION_OPTIONS(.ctx = ctx));
            assert_int_equal(rt_prompt(s, prompt, PROMPT), RT_OK);
            for (int32_t n = 0; n < TEXT; n += b.n) {
                assert_int_equal(rt_next(st, s, &b), RT_OK);
                for (int32_t i = 0; i < b.n && n + i < TEXT; i++) text[timed][n + i] = b.token[i];
                if (timed && rt_time_pass(st, s, n % 2 ? -1 : far + n % 7, 1 + n % 20, 2, ms) != RT_OK)
                    fail_msg("%s", rt_step_error(st));
                if (timed) assert_true(ms[0] > 0 && ms[1] > 0);
            }
            assert_int_equal(rt_time_pass(st, s, 0, 1, 1, ms), RT_EARG);
            assert_int_equal(rt_time_pass(st, s, ctx - 10, 11, 1, ms), RT_EFULL);
            assert_int_equal(rt_time_pass(st, s, INT32_MAX, 1, 1, ms), RT_EFULL);
            assert_int_equal(rt_time_pass(st, s, -2, 1, 1, ms), RT_EARG);
            assert_int_equal(rt_time_pass(st, s, -1, 1, 0, ms), RT_EARG);
            assert_int_equal(rt_time_pass(st, s, -1, 1, -1, ms), RT_EARG);
            assert_string_equal(rt_step_error(st), "passes: -1 repeats, expected 1 or more");
            rt_session_free(s);
            rt_step_free(st);
        }
        assert_same(text[1], text[0], sizeof text[0], "kind %d", kind);
        public_close(&p);
    }
}

static void every_status_has_a_text(void **state)
{
    (void) state;
    for (int32_t a = RT_ELOST; a <= RT_END; a++) {
        const char *text = rt_status_text((rt_status) a);
        assert_true(strlen(text) > 3 && strcmp(text, "unknown status") != 0);
        for (int32_t b = RT_ELOST; b < a; b++) assert_string_not_equal(text, rt_status_text((rt_status) b));
    }
    assert_string_equal(rt_status_text(RT_ENOMEM), "out of memory");
    assert_string_equal(rt_status_text((rt_status) (RT_ELOST - 1)), "unknown status");
    assert_string_equal(rt_status_text((rt_status) (RT_END + 1)), "unknown status");
}

static bool allow_none(void *ud, const int32_t *path, size_t n, uint32_t *bits)
{
    (void) path, (void) n;
    memset(bits, 0, *(const size_t *) ud);
    return true;
}

/* A session of which no token was allowed goes on once something else is, with the text that it would have had. */
static void no_token_is_allowed(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < RIG_KINDS; kind++) {
        PublicRig p;
        RigOptions o = rig_with_draft(rig_kind(kind, false), kind % 2);
        public_open(&p, &o, NULL);
        size_t bytes = ((size_t) p.g->model->vocab + 31) / 32 * sizeof(uint32_t);
        int32_t text[2][TEXT], prompt[PROMPT];
        prompt_of(kind, 0, prompt);
        for (int32_t stuck = 0; stuck < 2; stuck++) {
            rt_step *st;
            rt_session *s;
            rt_block b = { 0 };
            public_start(&st, &s, p.g, &RT_STEP_OPTIONS(.budget = 9), &RT_SESSION_OPTIONS(.ctx = 200));
            assert_int_equal(rt_prompt(s, prompt, PROMPT), RT_OK);
            for (int32_t n = 0; n < TEXT; n += b.n) {
                assert_int_equal(rt_next(st, s, &b), RT_OK);
                for (int32_t i = 0; i < b.n && n + i < TEXT; i++) text[stuck][n + i] = b.token[i];
                if (!stuck) continue;
                rt_block none;
                assert_int_equal(rt_allow(s, allow_none, &bytes), RT_OK);
                assert_int_equal(rt_next(st, s, &none), RT_ENOTOKEN);
                assert_int_equal(rt_next(st, s, &none), RT_ENOTOKEN);
                assert_int_equal(rt_sampling_set(s, NULL), RT_OK);
                assert_int_equal(rt_next(st, s, &none), RT_ENOTOKEN);
                assert_int_equal(rt_allow(s, NULL, NULL), RT_OK);
            }
            rt_session_free(s);
            rt_step_free(st);
        }
        assert_same(text[1], text[0], sizeof text[0], "kind %d", kind);
        public_close(&p);
    }
}

/* Values out of range are refused by name and change nothing; a session ended by a limit goes on when the limit is
 * raised. */
static void samplings_are_checked(void **state)
{
    (void) state;
    RigOptions o = rig_kind(1, false);
    PublicRig p;
    rt_session *s;
    rt_step *st;
    rt_block b;
    const int32_t prompt[3] = { 1, 2, 3 }, *text;
    public_open(&p, &o, NULL);
    const int32_t vocab = p.g->model->vocab;
    public_start(&st, &s, p.g, &RT_STEP_OPTIONS(.budget = -1), &RT_SESSION_OPTIONS(.ctx = 40));
    static rt_bias many[301];
    const rt_bias ids[] = { { -1, 1 }, { vocab, 1 }, { vocab - 1, 1 }, { 0, 1 }, { -1, 1 }, { 0, 1 },
                            { 7, NAN } };
    const struct { rt_sampling sampling; const char *says; } bad[] = {
        { RT_SAMPLING(.temperature = -0.1f), "temperature is -0.1, expected 0 to 10000" },
        { RT_SAMPLING(.temperature = NAN), "temperature is nan, expected 0 to 10000" },
        { RT_SAMPLING(.top_p = 1.01f), "top_p is 1.01, expected 1e-06 to 1" },
        { RT_SAMPLING(.top_p = -1), "top_p is -1, expected 1e-06 to 1" },
        { RT_SAMPLING(.min_p = 1.01f), "min_p is 1.01, expected 0 to 1" }, { RT_SAMPLING(.min_p = -0.1f), "min_p" },
        { RT_SAMPLING(.repetition = -1), "repetition is -1, expected 0.01 to 100" },
        { RT_SAMPLING(.frequency = 2.1f), "frequency is 2.1, expected -2 to 2" },
        { RT_SAMPLING(.frequency = -2.1f), "frequency is -2.1" },
        { RT_SAMPLING(.presence = 2.1f), "presence is 2.1, expected -2 to 2" },
        { RT_SAMPLING(.top_k = -1), "top_k is -1, expected 1 or more" },
        { RT_SAMPLING(.rep_window = -1), "rep_window is -1, expected 1 to 256" },
        { RT_SAMPLING(.rep_window = 257), "rep_window is 257" }, { RT_SAMPLING(.max_tokens = -1), "max_tokens is -1" },
        { RT_SAMPLING(.n_bias = -1, .bias = many), "n_bias is -1, expected 0 to 300" },
        { RT_SAMPLING(.n_bias = 301, .bias = many), "n_bias is 301" },
        { RT_SAMPLING(.n_bias = 2, .bias = &ids[3]), "bias[1] is of token -1, expected 0 to" },
        { RT_SAMPLING(.n_bias = 1, .bias = &ids[1]), "bias[0] is of token" },
        { RT_SAMPLING(.n_bias = 2, .bias = &ids[5]), "bias[1] adds nan to token 7" },
    };
    assert_int_equal(rt_sampling_set(s, &RT_SAMPLING(.max_tokens = 4, .n_bias = 2, .bias = &ids[2])), RT_OK);
    assert_int_equal(rt_sampling_set(s, &RT_SAMPLING(.max_tokens = 4, .n_bias = 300, .bias = many)), RT_OK);
    assert_int_equal(rt_sampling_set(s, &RT_SAMPLING(.max_tokens = 4)), RT_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(rt_sampling_set(s, &bad[i].sampling), RT_EARG);
        if (!strstr(rt_session_error(s), bad[i].says)) fail_msg("%s, expected %s", rt_session_error(s), bad[i].says);
    }
    assert_int_equal(rt_sampling_set(s, &RT_SAMPLING(.max_tokens = 4)), RT_OK);
    assert_string_equal(rt_session_error(s), "");
    assert_int_equal(rt_prompt(s, prompt, 3), RT_OK);
    assert_int_equal(rt_take(s, 1), RT_EARG);
    assert_string_not_equal(rt_session_error(s), "");
    assert_int_equal(rt_next(st, s, &b), RT_OK);
    assert_string_equal(rt_session_error(s), "");
    assert_int_equal(rt_prompt(s, prompt, 3), RT_OK);
    for (int32_t limit = 4; limit < 10; limit += 3) {
        assert_int_equal(rt_sampling_set(s, &RT_SAMPLING(.max_tokens = limit)), RT_OK);
        while (rt_next(st, s, &b) == RT_OK);
        assert_int_equal(b.status, RT_END);
        assert_int_equal(rt_session_text(s, &text), 3 + limit);
        assert_int_equal(rt_next(st, s, &b), RT_END);
    }
    assert_int_equal(rt_logprobs_set(s, 20), RT_OK);
    assert_int_equal(rt_logprobs_set(s, 21), RT_EARG);
    assert_string_not_equal(rt_session_error(s), "");
    assert_int_equal(rt_logprobs_set(s, -1), RT_OK);
    assert_string_equal(rt_session_error(s), "");
    assert_int_equal(rt_logprobs_set(s, 21), RT_EARG);
    assert_int_equal(rt_speculate(s, false), RT_OK);
    assert_string_equal(rt_session_error(s), "");
    assert_int_equal(rt_logprobs_set(s, 21), RT_EARG);
    assert_int_equal(rt_allow(s, NULL, NULL), RT_OK);
    assert_string_equal(rt_session_error(s), "");
    rt_session_free(s);
    rt_step_free(st);
    public_close(&p);
}

/* A pass with more tensors than the table can hold is noticed, and nothing is written past the table. */
static void too_many_tensors(void **state)
{
    (void) state;
    RigOptions o = rig_kind(1, false);
    PublicRig p;
    rt_error e;
    rt_step *st;
    public_open(&p, &o, NULL);
    assert_int_equal(rt_step_new(&st, p.g, &RT_STEP_OPTIONS(.budget = -1), &e), RT_OK);
    Step *step = &st->spec.step;
    pass_start(step);
    for (int32_t i = 0; i < STEP_TENSORS; i++) step_new_tensor(step, T_F32, 1, 1);
    assert_false(step->overflow);
    assert_int_equal(step->n_tensors, STEP_TENSORS);
    assert_ptr_equal(step_new_tensor(step, T_F32, 1, 1), &step->tensor[0]);
    assert_true(step->overflow);
    rt_step_free(st);
    public_close(&p);
}

/* The text of a step that is told these costs, NULL: none; what it has learned by then goes to line. */
static void text_with(rt_engine *g, int32_t budget, const char *costs, int32_t *text, char line[RT_COSTS])
{
    enum { PROMPT_N = 12 };
    int32_t prompt[PROMPT_N], n = 0;
    rt_step *st;
    rt_session *s;
    rt_block b;
    Dice d = { tiny_key(3, "costs"), 1 };
    random_tokens(&d, PROMPT_N, 96, prompt);
    public_start(&st, &s, g, &RT_STEP_OPTIONS(.budget = budget), &RT_SESSION_OPTIONS(.ctx = 200));
    assert_int_equal(rt_step_costs(st, line, RT_COSTS), 0);
    if (costs) assert_int_equal(rt_step_costs_set(st, costs), RT_OK);
    assert_int_equal(rt_prompt(s, prompt, PROMPT_N), RT_OK);
    while (n < 2 * TEXT) {
        assert_int_equal(rt_next(st, s, &b), RT_OK);
        for (int32_t i = 0; i < b.n && n < 2 * TEXT; i++) text[n++] = b.token[i];
    }
    line[0] = 0;
    size_t n_line = rt_step_costs(st, line, RT_COSTS);       /* 0 where a loud machine gave times that cannot be */
    assert_true(n_line == 0 || (n_line >= 20 && n_line < RT_COSTS));
    rt_session_free(s);
    rt_step_free(st);
}

/* What a step is told of costs decides how much it drafts, and no token: rows or proposals for nothing, rows and
 * proposals that cost what nothing is worth, and what an earlier step learned. */
static void costs_change_no_token(void **state)
{
    (void) state;
    static const char *const told[] = {
        "1 4000 9 20000 9 20000 9 1 1000000 9 64 1000000 9",
        "1 1000000 9 800000000 9 800000000 9 1 1000000 9 2 3900000 9",
        "1 4000 0 101 9 0 0 1 1000000 9 8 600000 9 64 600000 9", "1 200000 9 200000 9 200000 9 1 1000000000 9",
    };
    for (int32_t device = 0; device < 2; device++) {
        PublicRig p;
        RigOptions o = rig_with_draft(rig_kind(1, device), false);
        int32_t truth[2 * TEXT], text[2 * TEXT];
        char line[RT_COSTS], other[RT_COSTS];
        public_open(&p, &o, NULL);
        text_with(p.g, -1, NULL, truth, line);
        text_with(p.g, 0, NULL, text, line);
        assert_same(text, truth, sizeof text, "nothing told");
        for (size_t i = 0; i <= sizeof told / sizeof *told; i++) {
            const char *costs = i < sizeof told / sizeof *told ? told[i] : line;
            text_with(p.g, 0, *costs ? costs : NULL, text, other);
            assert_same(text, truth, sizeof text, "told %s", costs);
        }
        rt_step *st;
        rt_error e;
        assert_int_equal(rt_step_new(&st, p.g, NULL, &e), RT_OK);
        assert_int_equal(rt_step_costs_set(st, "1 2 3"), RT_EFORMAT);
        assert_non_null(strstr(rt_step_error(st), "costs: "));
        assert_int_equal(rt_step_costs_set(st, told[0]), RT_OK);
        assert_string_equal(rt_step_error(st), "");
        rt_step_free(st);
        public_close(&p);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_text), cmocka_unit_test(clients_together),
        cmocka_unit_test(rows_of_trees_and_chains), cmocka_unit_test(rows_in_pieces),
        cmocka_unit_test(rows_that_are_cancelled),
        cmocka_unit_test(times_leave_no_trace), cmocka_unit_test(samplings_are_checked),
        cmocka_unit_test(no_token_is_allowed),
        cmocka_unit_test(too_many_tensors), cmocka_unit_test(costs_change_no_token),
    };
    return cmocka_run_group_tests_name("public", tests, NULL, NULL);
}
