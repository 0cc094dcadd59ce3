/* ratoon verify: speculation must not change the output, and neither must another backend. Every prompt is decoded
 * plainly once per sampling mode, on the first backend; then with every tree, thread count and budget on every backend,
 * each time in a session that has already been used by the others. The tokens must be the same. */
#include <stdlib.h>
#include <string.h>

#include "programs/generate.h"

typedef struct { const char *name; rt_sampling sampling; } Mode;
static const Mode all_modes[] = {
    { "greedy", RT_SAMPLING_INIT },
    { "t0.7", RT_SAMPLING(.temperature = 0.7f) },
    { "t1", RT_SAMPLING(.temperature = 1, .top_p = 0.95f, .repetition = 1.1f, .frequency = 0.2f, .presence = 0.1f) },
};
/* DENOISED: the first ones, which models that denoise have, too; such a model has no penalties and no top-p. */
enum { MODES = 3, DENOISED = 2, WAYS_MAX = 16, THREADS_MAX = 8, BACKENDS_MAX = 4 };

typedef struct { char name[40]; int32_t budget; bool chain; } Way;

typedef struct {
    Options  o;
    Program  p;
    Prompts  prompts;
    int32_t **prompt, *n_prompt;                   /* [prompts] token ids */
    Mode     mode[MODES]; int32_t n_modes;
    Way      way[WAYS_MAX]; int32_t n_ways;
    int32_t  threads[THREADS_MAX], n_threads, n;
    char     backend[BACKENDS_MAX][32]; int32_t n_backends;
    Generated *plain;                              /* [modes, prompts] */
    Generated got;
    Progress bar;
    int64_t  done, compared, differing, generated, passes;
    char     first[256];
    json_t  *rows;
} Verify;

/* ---- options ---- */

static bool add_way(Verify *v, const char *name, int32_t budget, bool chain)
{
    if (v->n_ways == WAYS_MAX) return complain(&v->o, "--budget: more than %d ways", WAYS_MAX) == 0;
    Way *w = &v->way[v->n_ways++];
    *w = (Way) { .budget = budget, .chain = chain };
    snprintf(w->name, sizeof w->name, "%s", name);
    return true;
}

/* Takes one word of a list from the command line; returns false when there are no more. */
static bool next_word(const char **list, char word[32])
{
    if (!**list) return false;
    size_t n = strcspn(*list, ",");
    snprintf(word, 32, "%.*s", (int) (n < 31 ? n : 31), *list);
    *list += n + ((*list)[n] == ',');
    return true;
}

static bool read_budgets(Verify *v)
{
    const char *list = v->o.budgets ? v->o.budgets : v->o.chain ? "" : "8,22,60,auto";
    char word[32], name[40];
    if (!v->o.budgets && !add_way(v, "chain", 63, true)) return false;
    while (next_word(&list, word)) {
        char *end;
        long n = strtol(word, &end, 10);
        bool is_auto = strcmp(word, "auto") == 0;
        if (!is_auto && (end == word || *end || n < 1 || n > 63))
            return complain(&v->o, "--budget: '%s', expected auto or 1 to 63", word) == 0;
        snprintf(name, sizeof name, "%s %s", v->o.chain ? "chain" : "tree", word);
        if (!add_way(v, name, is_auto ? BUDGET_OPTION_AUTO : (int32_t) n, v->o.chain)) return false;
    }
    return v->n_ways > 0 || complain(&v->o, "--budget: nothing to try") == 0;
}

static bool read_modes(Verify *v)
{
    const char *list = v->o.modes ? v->o.modes : "greedy,t0.7,t1";
    char word[32];
    while (next_word(&list, word)) {
        int32_t i = 0;
        while (i < MODES && strcmp(all_modes[i].name, word) != 0) i++;
        if (i == MODES || v->n_modes == MODES)
            return complain(&v->o, "--modes: '%s', expected greedy, t0.7 or t1, each once", word) == 0;
        v->mode[v->n_modes++] = all_modes[i];
    }
    return v->n_modes > 0 || complain(&v->o, "--modes: nothing to try") == 0;
}

static bool read_threads(Verify *v)
{
    int32_t *ids, n;
    if (!ids_read(&v->o, &ids, &n, v->o.thread_list ? v->o.thread_list : "1,2", "--threads", 1, 256)) return false;
    v->n_threads = n < THREADS_MAX ? n : THREADS_MAX;
    memcpy(v->threads, ids, sizeof *ids * (size_t) v->n_threads);
    free(ids);
    return n >= 1 && n <= THREADS_MAX ? true
                                      : complain(&v->o, "--threads: %d numbers, expected 1 to %d", n, THREADS_MAX) == 0;
}

static bool read_backends(Verify *v)
{
    const char *list = v->o.backend ? v->o.backend : "auto";
    while (v->n_backends < BACKENDS_MAX && next_word(&list, v->backend[v->n_backends])) v->n_backends++;
    if (*list) return complain(&v->o, "--backend: more than %d backends", BACKENDS_MAX) == 0;
    return v->n_backends > 0 || complain(&v->o, "--backend: nothing to try") == 0;
}

/* ---- runs ---- */

static rt_sampling sampling_of(const Verify *v, int32_t mode, int32_t prompt)
{
    rt_sampling s = v->mode[mode].sampling;
    s.max_tokens = v->n;
    s.seed = v->o.seed.value + (uint64_t) prompt;
    return s;
}

static bool tokenize_prompts(Verify *v)
{
    v->prompt = calloc((size_t) v->prompts.n, sizeof *v->prompt);
    v->n_prompt = calloc((size_t) v->prompts.n, sizeof *v->n_prompt);
    v->plain = calloc((size_t) (v->prompts.n * v->n_modes), sizeof *v->plain);
    v->got.token = malloc(sizeof *v->got.token * (size_t) v->n);
    if (!v->prompt || !v->n_prompt || !v->plain || !v->got.token) return complain(&v->o, "out of memory") == 0;
    for (int32_t i = 0; i < v->prompts.n; i++)
        if (!text_tokens(&v->p, &v->prompt[i], &v->n_prompt[i], v->prompts.at[i].text, v->prompts.at[i].len,
                         v->p.o->special))
            return false;
    return true;
}

static void advance(Verify *v)
{
    progress_to(&v->bar, (uint64_t) ++v->done);
}

static bool decode_plain(Verify *v)
{
    rt_error e = { 0 };
    rt_step *step = NULL;
    rt_session *session = NULL;
    bool good = rt_step_new(&step, v->p.engine, &RT_STEP_OPTIONS(.budget = BUDGET_OPTION_PLAIN, .chunk = v->o.chunk,
                                                                 .hooks = program_hooks(&v->p)), &e) == RT_OK &&
                rt_session_new(&session, v->p.engine, &RT_SESSION_OPTIONS(.ctx = v->o.ctx, .ngram = -1),
                               &e) == RT_OK;
    if (!good) complain(&v->o, "%s", e.text);
    for (int32_t i = 0; good && i < v->n_modes * v->prompts.n; i++) {
        int32_t mode = i / v->prompts.n, at = i % v->prompts.n;
        rt_sampling s = sampling_of(v, mode, at);
        v->plain[i].token = malloc(sizeof(int32_t) * (size_t) v->n);
        good = v->plain[i].token &&
               generate(&v->plain[i], &v->p, step, session, v->prompt[at], v->n_prompt[at], &s, false);
        advance(v);
    }
    rt_session_free(session);
    rt_step_free(step);
    return good;
}

static void compare(Verify *v, const Way *w, int32_t threads, int32_t mode, int32_t at, int64_t *differ)
{
    const Generated *a = &v->plain[mode * v->prompts.n + at], *b = &v->got;
    int32_t n = a->n < b->n ? a->n : b->n, most = a->n < b->n ? b->n : a->n, same = 0;
    while (same < n && a->token[same] == b->token[same]) same++;
    v->compared += most + (a->ended || b->ended);
    if (same == most && a->ended == b->ended) return;
    int64_t wrong = a->ended != b->ended && most == n;
    for (int32_t i = same; i < most; i++) wrong += i >= n || a->token[i] != b->token[i];
    *differ += wrong;
    if (v->first[0]) return;
    char want[16] = "the end", have[16] = "the end";
    if (same < a->n) snprintf(want, sizeof want, "%d", a->token[same]);
    if (same < b->n) snprintf(have, sizeof have, "%d", b->token[same]);
    snprintf(v->first, sizeof v->first, "prompt %d, mode %s, %s, %s, %d threads: token %d is %s, plain decoding has %s",
             at + 1, v->mode[mode].name, v->o.backend ? v->o.backend : "auto", w->name, threads, same + 1, have, want);
}

static bool decode_way(Verify *v, rt_session *session, const Way *w)
{
    const int32_t threads = v->o.threads;
    rt_error e = { 0 };
    rt_step *step = NULL;
    int64_t compared = v->compared, differ = 0, generated = 0, passes = 0;
    bool good = rt_step_new(&step, v->p.engine, &RT_STEP_OPTIONS(
                                .budget = w->budget, .chain = w->chain, .chunk = v->o.chunk,
                                .draft_block = v->o.draft_block, .hooks = program_hooks(&v->p)), &e) == RT_OK;
    if (!good) complain(&v->o, "%s", e.text);
    for (int32_t i = 0; good && i < v->n_modes * v->prompts.n; i++) {
        int32_t mode = i / v->prompts.n, at = i % v->prompts.n;
        rt_sampling s = sampling_of(v, mode, at);
        good = generate(&v->got, &v->p, step, session, v->prompt[at], v->n_prompt[at], &s, false);
        if (good) compare(v, w, threads, mode, at, &differ);
        generated += v->got.stats.generated;
        passes += v->got.stats.passes;
        advance(v);
    }
    rt_step_free(step);
    if (!good) return false;
    v->differing += differ;
    v->generated += generated;
    v->passes += passes;
    double length = passes ? (double) generated / (double) passes : 0;
    json_array_append_new(v->rows, json_pack("{s:s s:s s:i s:I s:I s:f}", "backend",
                                             v->o.backend ? v->o.backend : "auto", "way", w->name, "threads", threads,
                                             "compared", (json_int_t) (v->compared - compared), "differing",
                                             (json_int_t) differ,
                                             "accept_length", length));
    progress_end(&v->bar);
    if (!v->o.json) {
        if (v->n_backends > 1) printf("%-12s ", v->o.backend);
        printf("%-10s %d thread%s  %8lld tokens compared, %lld differ, accept length %.2f\n", w->name, threads,
               threads == 1 ? " " : "s", (long long) (v->compared - compared), (long long) differ, length);
        return output_done(&v->o) == EXIT_FINE;
    }
    return true;
}

/* Of a model that denoises, what was not asked for: the modes that it lacks, and trees. */
static void leave_out(Verify *v)
{
    if (property(v->p.engine, "model.canvas") == 0) return;
    if (!v->o.modes) v->n_modes = DENOISED;
    if (v->o.budgets || v->o.chain) return;
    v->n_ways = 0;
    add_way(v, "denoised", BUDGET_OPTION_PLAIN, false);
}

/* With the backend and threads in v->o. On another backend than the one that decoded plainly, so does this one. */
static bool decode_with(Verify *v, bool first, bool same_backend)
{
    static const Way plain = { "plain", BUDGET_OPTION_PLAIN, false };
    rt_error e = { 0 };
    rt_session *session = NULL;
    bool good = program_open(&v->p, &v->o, WITH_DRAFTER, NULL, 0);
    if (good && !v->p.files.draft[0] && v->o.ngram < 0)
        good = complain(&v->o, "there is no drafter to verify; give one with -d, or --ngram on") == 0;
    if (good && first) {
        leave_out(v);
        int32_t runs = 1 + v->n_threads * (v->n_ways * v->n_backends + v->n_backends - 1);
        progress_start_long(&v->bar, "verify", (uint64_t) (v->prompts.n * v->n_modes * runs), v->o.quiet);
        good = tokenize_prompts(v) && decode_plain(v);
    }
    /* Plain decoding leaves nothing for the drafter in a session, so it has one of its own. */
    for (int32_t w = same_backend ? 0 : -1; good && w < v->n_ways; w++) {
        if (!session && rt_session_new(&session, v->p.engine,
                                       &RT_SESSION_OPTIONS(.ctx = v->o.ctx, .ngram = v->o.ngram), &e) != RT_OK)
            good = complain(&v->o, "%s", e.text) == 0;
        if (good) good = decode_way(v, session, w < 0 ? &plain : &v->way[w]);
        if (w >= 0) continue;
        rt_session_free(session);
        session = NULL;
    }
    rt_session_free(session);
    progress_end(&v->bar);
    program_close(&v->p);
    v->o.quiet = true;                             /* another engine would only repeat the notes */
    return good;
}

static bool decode_all(Verify *v)
{
    for (int32_t b = 0; b < v->n_backends; b++)
        for (int32_t t = 0; t < v->n_threads; t++) {
            v->o.backend = v->backend[b];
            v->o.threads = v->threads[t];
            if (!decode_with(v, b == 0 && t == 0, b == 0)) return false;
        }
    return true;
}

static int report(Verify *v)
{
    double length = v->passes ? (double) v->generated / (double) v->passes : 0;
    if (v->o.json) {
        json_t *j = json_pack("{s:I s:I s:o s:f s:i s:O}", "compared", (json_int_t) v->compared, "differing",
                              (json_int_t) v->differing, "first_difference",
                              v->first[0] ? json_string(v->first) : json_null(), "accept_length", length, "prompts",
                              v->prompts.n, "ways", v->rows);
        if (!json_print(&v->o, j)) return EXIT_FAILED;
    } else {
        printf("%lld tokens compared over %d prompts x %d modes x %d ways x %d thread counts", (long long) v->compared,
               v->prompts.n, v->n_modes, v->n_ways, v->n_threads);
        if (v->n_backends > 1) printf(" x %d backends", v->n_backends);
        printf(", %lld differ\n", (long long) v->differing);
        if (v->first[0]) printf("first difference: %s\n", v->first);
        if (output_done(&v->o)) return EXIT_FAILED;
    }
    return v->differing ? EXIT_FAILED : EXIT_FINE;
}

int cmd_verify(int argc, char **argv)
{
    Verify v = { 0 };
    int status;
    if (!options_read(&v.o, argc, argv, &status)) return status;
    if (!v.o.prompts) {
        complain(&v.o, "--prompts FILE is needed (see ratoon verify --help)");
        return EXIT_USAGE;
    }
    v.n = v.o.n ? v.o.n : 64;
    v.rows = json_array();
    status = EXIT_USAGE;
    if (read_budgets(&v) && read_modes(&v) && read_threads(&v) && read_backends(&v)) {
        status = EXIT_FAILED;
        if (prompts_read(&v.o, &v.prompts, v.o.prompts)) {
            if (decode_all(&v)) status = report(&v);
            else if (interrupts) status = EXIT_INTERRUPTED;
        }
    }
    for (int32_t i = 0; v.prompt && i < v.prompts.n; i++) free(v.prompt[i]);
    for (int32_t i = 0; v.plain && i < v.prompts.n * v.n_modes; i++) free(v.plain[i].token);
    free(v.prompt);
    free(v.n_prompt);
    free(v.plain);
    free(v.got.token);
    json_decref(v.rows);
    prompts_free(&v.prompts);
    return status;
}
