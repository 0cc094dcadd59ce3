/* bench_rates.c - tokens per second of reading a prompt and of plain decoding from an empty context: what llama-bench
 * calls pp and tg. The tokens are random; a model's speed does not depend on them. Of models that denoise, a step
 * behind the last of these prompts takes the place of decoding; its rate is that of the canvas's rows. */
#include <stdlib.h>
#include <string.h>

#include "programs/bench/bench.h"
#include "programs/generate.h"
#include "programs/sampling.h"

enum { LENGTHS_MAX = 15 };

/* n prompt lengths, and decoding after them. canvas: 0, or rows of a step. */
typedef struct {
    int32_t n, tokens[LENGTHS_MAX + 1], *prompt, canvas;
    double tok_s[LENGTHS_MAX + 1];
    uint64_t random;
    Generated got;
    Progress bar;
} Rates;

static bool is_decoding(const Rates *x, int32_t i) { return i == x->n; }

static int32_t random_token(Rates *x, int64_t vocab)
{
    x->random ^= x->random << 13;
    x->random ^= x->random >> 7;
    x->random ^= x->random << 17;
    return (int32_t) (x->random % (uint64_t) vocab);
}

/* Reads a prompt of n + 1 tokens, of which the last is the first root: passes over n. Each prompt begins with a
 * different token, so that nothing the session holds of earlier prompts is reused. */
static bool read_prompt(Bench *b, Rates *x, int32_t n, double *seconds)
{
    int64_t vocab = property(b->p.engine, "model.vocab");
    int32_t before = x->prompt[0];
    for (int32_t i = 0; i <= n; i++) x->prompt[i] = random_token(x, vocab);
    if (x->prompt[0] == before) x->prompt[0] = (int32_t) ((before + 1) % vocab);
    if (program_prompt(&b->p, b->p.session, x->prompt, n + 1) != RT_OK)
        return complain(&b->o, "%s", rt_session_error(b->p.session)) == 0;
    double t0 = seconds_now();
    while (b->p.reading > 0) {
        rt_block out = { 0 };
        rt_status st = program_step(&b->p, b->p.step, b->p.session, &out);
        if (st != RT_OK && st != RT_ECANCEL) return complain(&b->o, "%s", rt_step_error(b->p.step)) == 0;
        if (st != RT_OK) return false;
        if (out.status < 0) return complain(&b->o, "%s", rt_session_error(b->p.session)) == 0;
    }
    *seconds = seconds_now() - t0;
    return true;
}

/* The fastest of a block's steps but the first, which has no self-conditioning. */
static bool one_step(Bench *b, Rates *x, double *seconds)
{
    rt_diffusion how = b->p.denoising;
    double prompt;
    const rt_sampling drawn = sampling_of(&b->o, 0);
    if (how.steps < 2) how.steps = 4;
    how.confidence = -1;
    if (!read_prompt(b, x, x->tokens[x->n - 1], &prompt)) return false;
    if (rt_diffusion_set(b->p.session, &how) != RT_OK || rt_sampling_set(b->p.session, &drawn) != RT_OK)
        return complain(&b->o, "%s", rt_session_error(b->p.session)) == 0;
    for (int32_t k = 0; k < how.steps; k++) {
        rt_block out = { 0 };
        const double t0 = seconds_now();
        const rt_status st = program_step(&b->p, b->p.step, b->p.session, &out);
        const double took = seconds_now() - t0;
        if (st == RT_ECANCEL) return false;
        if (st != RT_OK || out.status < 0)
            return complain(&b->o, "%s%s", rt_step_error(b->p.step), rt_session_error(b->p.session)) == 0;
        if (k == 1 || (k > 1 && took < *seconds)) *seconds = took;
    }
    return true;
}

static bool one(Bench *b, Rates *x, int32_t i, int32_t n, double *tok_s)
{
    double seconds = 0;
    if (!is_decoding(x, i)) {
        if (!read_prompt(b, x, n, &seconds)) return false;
    } else if (x->canvas) {
        n = x->tokens[i] = x->canvas;
        if (!one_step(b, x, &seconds)) return false;
    } else {
        x->prompt[0] = random_token(x, property(b->p.engine, "model.vocab"));
        if (!generate(&x->got, &b->p, b->p.step, b->p.session, x->prompt, 1, &RT_SAMPLING(.max_tokens = n), true))
            return false;
        seconds = x->got.seconds;
        n = x->got.n;
    }
    *tok_s = seconds > 0 ? n / seconds : 0;
    return true;
}

static bool measure(Bench *b, void *ud)
{
    Rates *x = ud;
    const int32_t repeats = b->o.repeats ? b->o.repeats : 3;
    const int32_t warm = b->o.chunk ? b->o.chunk : (int32_t) property(b->p.engine, "backend.chunk");
    double t;
    x->canvas = (int32_t) property(b->p.engine, "model.canvas");
    sampling_for_texts(&b->o, &b->p);
    if (!one(b, x, 0, x->tokens[0] < warm ? x->tokens[0] : warm, &t) || !one(b, x, x->n, 1, &t)) return false;
    progress_start_long(&x->bar, "prompts", (uint64_t) (repeats * (x->n + 1)), b->o.quiet);
    bool good = true;
    for (int32_t r = 0; good && r < repeats; r++) {
        bench_peaks(b);
        for (int32_t i = 0; good && i <= x->n; i++) {
            good = one(b, x, i, x->tokens[i], &t);
            if (good && t > x->tok_s[i]) x->tok_s[i] = t;
            progress_to(&x->bar, (uint64_t) (r * (x->n + 1) + i + 1));
        }
    }
    progress_end(&x->bar);
    return good;
}

/* ---- reporting ---- */

/* All tokens of a prompt need the layers, only the last needs the head. They share passes: arithmetic is the limit. */
static double share(const Bench *b, const Rates *x, int32_t i)
{
    if (is_decoding(x, i) && x->canvas)
        return bench_limit_ms(b, x->canvas, x->tokens[x->n - 1]) * x->tok_s[i] / x->canvas / 1e3;
    if (is_decoding(x, i)) return bench_limit_ms(b, 1, 0) * x->tok_s[i] / 1e3;
    return b->peaks.int8_ops_per_s > 0 ? 2 * (b->values - b->head) * x->tok_s[i] / b->peaks.int8_ops_per_s : 0;
}

static double other(const Bench *b, const Rates *x, int32_t i)
{
    double same = is_decoding(x, i) ? compare_fastest(&b->compared, RATE_DECODE, x->tokens[i])
                                    : compare_fastest(&b->compared, RATE_PROMPT, x->tokens[i]);
    return same > 0 || !is_decoding(x, i) ? same : compare_fastest(&b->compared, RATE_DECODE, 0);
}

static const char *kind(const Rates *x, int32_t i)
{
    return !is_decoding(x, i) ? "prompt" : x->canvas ? "step" : "decode";
}

static void print(Bench *b, void *ud)
{
    const Rates *x = ud;
    char limit[40];
    bench_print_machine(b);
    if (b->o.compare) printf("in turn, %d rounds: %s\n", b->rounds, b->o.compare);
    for (int32_t i = 0; i <= x->n; i++) {
        printf("%s %5d %10.2f tokens/s%s", kind(x, i), x->tokens[i], x->tok_s[i],
               bench_share(limit, b, share(b, x, i), is_decoding(x, i) ? "limit" : "int8 peak"));
        if (other(b, x, i) > 0)
            printf("   %s: %10.2f, ours is %.2f times that", b->compared_name, other(b, x, i),
                   x->tok_s[i] / other(b, x, i));
        if (is_decoding(x, i) && x->canvas) printf("   %.3f ms a step", 1e3 * x->canvas / x->tok_s[i]);
        putchar('\n');
    }
}

static json_t *as_json(Bench *b, void *ud)
{
    const Rates *x = ud;
    json_t *list = json_array(), *j = bench_json(b);
    for (int32_t i = 0; i <= x->n; i++) {
        json_t *r = json_pack("{s:s s:i s:f s:f}", "kind", kind(x, i), "tokens", x->tokens[i], "tok_s", x->tok_s[i],
                              "share_of_limit", share(b, x, i));
        if (other(b, x, i) > 0)
            json_object_update_new(r, json_pack("{s:f s:f}", "compare_tok_s", other(b, x, i), "ratio",
                                                x->tok_s[i] / other(b, x, i)));
        json_array_append_new(list, r);
    }
    json_object_set_new(j, "rates", list);
    return j;
}

static void write_csv(Bench *b, void *ud, FILE *f)
{
    const Rates *x = ud;
    fprintf(f, "kind,tokens,tok_s,share_of_limit,compare_tok_s,ratio\n");
    for (int32_t i = 0; i <= x->n; i++) {
        fprintf(f, "%s,%d,%.4f,%.4f,", kind(x, i), x->tokens[i], x->tok_s[i], share(b, x, i));
        if (other(b, x, i) > 0) fprintf(f, "%.4f,%.4f\n", other(b, x, i), x->tok_s[i] / other(b, x, i));
        else fputs(",\n", f);
    }
}

static void draw(Bench *b, void *ud, FILE *f)
{
    const Rates *x = ud;
    static PlotGroup group[LENGTHS_MAX + 1];
    PlotSeries s = { .name = { "ratoon", b->compared_name }, .colour = { 0, 1 }, .n = b->o.compare ? 2 : 1 };
    PlotText t;
    char subtitle[200];
    memset(group, 0, sizeof group);
    for (int32_t i = 0; i <= x->n; i++) {
        PlotGroup *g = &group[i];
        const char *name = !is_decoding(x, i) ? "prompt of %d" : x->canvas ? "a step, %d rows" : "decoding %d tokens";
        snprintf(g->name, sizeof g->name, name, x->tokens[i]);
        g->value[0] = x->tok_s[i];
        g->value[1] = other(b, x, i) > 0 ? other(b, x, i) : -1;
        if (g->value[1] > 0)
            snprintf(g->label[0], sizeof g->label[0], "%.4g (%.2fx)", x->tok_s[i], x->tok_s[i] / g->value[1]);
        else
            snprintf(g->label[0], sizeof g->label[0], "%.4g", x->tok_s[i]);
        snprintf(g->label[1], sizeof g->label[1], "%.4g", g->value[1]);
    }
    snprintf(subtitle, sizeof subtitle, "%.60s, fastest of interleaved runs%s", base_name(b->p.files.model),
             b->o.compare ? ", tokens per second; each group to its own scale" : "");
    bench_plot_text(b, &t, "Reading prompts and plain decoding", subtitle);
    plot_bars(f, &t, b->o.compare ? NULL : "tokens per second", &s, group, x->n + 1);
}

static const BenchReport REPORT = { write_csv, draw, as_json, print };

int bench_rates(Bench *b)
{
    Rates x = { .random = 88172645463325252u };
    int32_t *lengths = NULL, n = 0, longest = 0, status = EXIT_FAILED;
    if (!ids_read(&b->o, &lengths, &n, b->o.prompt_tokens, "--prompt-tokens", 1, RT_CTX_MAX - 2)) return EXIT_USAGE;
    if (n == 0 || n > LENGTHS_MAX) {
        free(lengths);
        complain(&b->o, "--prompt-tokens: %d numbers were given, expected 1 to %d", n, LENGTHS_MAX);
        return EXIT_USAGE;
    }
    memcpy(x.tokens, lengths, sizeof *lengths * (size_t) n);
    free(lengths);
    x.n = n;
    x.tokens[n] = b->o.n ? b->o.n : 32;
    for (int32_t i = 0; i <= n; i++) longest = x.tokens[i] > longest ? x.tokens[i] : longest;
    if (!b->o.ctx) b->o.ctx = longest + 2;
    x.prompt = calloc((size_t) longest + 2, sizeof *x.prompt);
    x.got.token = malloc(sizeof *x.got.token * ((size_t) x.tokens[n] + 1));
    if (!x.prompt || !x.got.token) complain(&b->o, "out of memory");
    else if (bench_rounds(b, WITH_SESSION, measure, &x) && bench_report(b, &REPORT, &x)) status = EXIT_FINE;
    free(x.prompt);
    free(x.got.token);
    return status;
}
