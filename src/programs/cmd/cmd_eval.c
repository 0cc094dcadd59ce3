/* ratoon eval: perplexity of a text, in windows that each start with an empty context. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "programs/program.h"
#include "ratoon_lab.h"

typedef struct {
    Program  p;
    const int32_t *token; int32_t n;               /* of the current window */
    size_t   vocab;
    double   nll;
    int64_t  scored, before, total;
    bool     bad;
} Eval;

/* log(sum(exp)) in double around the largest logit. */
static void on_row(void *ud, int32_t i, const float *logits, const float *taps)
{
    Eval *e = ud;
    (void) taps;
    progress_to(&e->p.bar, (uint64_t) (e->before + i));
    if (i + 1 >= e->n) return;
    double top = -INFINITY, sum = 0;
    for (size_t k = 0; k < e->vocab; k++) top = logits[k] > top ? logits[k] : top;
    for (size_t k = 0; k < e->vocab; k++) sum += exp(logits[k] - top);
    double nll = log(sum) + top - logits[e->token[i + 1]];
    e->bad |= !isfinite(nll);
    e->nll += nll;
    e->scored++;
}

static int evaluate(Eval *e, const Options *o, const int32_t *token, int32_t n)
{
    int32_t window = o->window ? o->window : rt_session_ctx(e->p.session), windows = 0;
    if (window > rt_session_ctx(e->p.session))
        return complain(o, "--window is %d, but the context holds %d tokens", window, rt_session_ctx(e->p.session));
    if (window < 2) return complain(o, "windows of %d token score none, expected at least 2 (--ctx)", window);
    if (n < 2) return complain(o, "%s: it has %d tokens, expected at least 2", o->file, n);
    e->vocab = (size_t) property(e->p.engine, "model.vocab");
    double t0 = seconds_now();
    progress_start(&e->p.bar, "eval", (uint64_t) n);
    e->p.barred = true;
    for (int32_t at = 0; at + 1 < n; at += window, windows++) {
        e->token = token + at;
        e->n = n - at < window ? n - at : window;
        e->before = at;
        rt_status st = rt_rows(e->p.step, e->p.session, NULL, 0, e->token, NULL, e->n,
                               RT_ROWS_LOGITS, on_row, e);
        if (st == RT_ECANCEL) return EXIT_INTERRUPTED;
        if (st != RT_OK) return complain(o, "%s", rt_step_error(e->p.step));
        if (e->bad) return complain(o, "the logits of window %d are not finite", windows);
    }
    progress_end(&e->p.bar);
    e->p.barred = false;
    double seconds = seconds_now() - t0, mean = e->nll / (double) e->scored;
    if (o->json)
        return json_print(o, json_pack("{s:s s:s s:i s:I s:i s:i s:f s:f s:f}", "file", base_name(o->file), "model",
                                       base_name(e->p.files.model), "tokens", n, "scored", (json_int_t) e->scored,
                                       "window", window, "windows", windows, "nll", mean, "perplexity", exp(mean),
                                       "seconds", seconds)) ? EXIT_FINE : EXIT_FAILED;
    printf("perplexity %.4f (mean negative log-likelihood %.5f per token)\n%lld of %d tokens scored in %d windows of "
           "%d, %.1f s\n", exp(mean), mean, (long long) e->scored, n, windows, window, seconds);
    return output_done(o);
}

int cmd_eval(int argc, char **argv)
{
    Options o;
    int status;
    Eval e = { 0 };
    char *text = NULL;
    size_t len = 0;
    int32_t *token = NULL, n = 0;
    if (!options_read(&o, argc, argv, &status)) return status;
    if (!o.file) {
        complain(&o, "a text FILE is needed (see ratoon eval --help)");
        return EXIT_USAGE;
    }
    status = EXIT_FAILED;
    if (text_read(&o, &text, &len, o.file)) {
        if (program_open(&e.p, &o, WITH_SESSION, NULL, 0) && text_tokens(&e.p, &token, &n, text, len, false))
            status = evaluate(&e, &o, token, n);
        else if (interrupts)
            status = EXIT_INTERRUPTED;
        program_close(&e.p);
    }
    free(text);
    free(token);
    return status;
}
