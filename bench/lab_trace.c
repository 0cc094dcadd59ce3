/* lab_trace.c - records what a drafter proposes at every position of a text and what the target chooses, for
 * tests/unit/decode/test_replay.c.
 *    bench/lab_trace MODEL DRAFT PROMPTS.jsonl FIRST COUNT TOKENS > tests/data/traces/NAME.txt
 * The text is the target's own, decoded greedily without drafting; the drafter proposes before each of its tokens.
 * Output lines:
 *    prompt N         a text begins; its N tokens follow on this line
 *    TOKEN MARGIN depth/depth/..   the target's next token, the margin between the two largest logits for it, and the
 *                                  candidates of each depth as TOKEN:-100*ln(p), best first, as long as a path through
 *                                  them has a probability of at least 1 in 100. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/engine.h"

typedef struct { Drafter drafter, *inner; Lattice seen; } Recorder;

/* Records what the drafter proposes, and hides it from the step. */
static Status propose(Drafter *d, Spec *sp, Session *const *s, int32_t n, Lattice *out, Error *err)
{
    Recorder *r = (Recorder *) (void *) d;
    TRY(r->inner->propose(r->inner, sp, s, n, out, err));
    r->seen = out[0];
    for (int32_t i = 0; i < n; i++) lattice_clear(&out[i]);
    return ST_OK;
}

static void print_lattice(const Lattice *l)
{
    const double least = log(1.0 / 100);
    double path = 0;
    for (int32_t d = 0; d < l->n_depth && path > least; d++) {
        double top = -INFINITY;
        for (int32_t k = 0, some = 0; k < l->k; k++) {
            double p = (double) l->raw[d][0][k];
            if (l->token[d][k] < 0 || path + p < least) continue;
            printf("%c%d:%.0f", some++ ? ' ' : d ? '/' : ' ', l->token[d][k], -100 * p);
            if (p > top) top = p;
        }
        path += top;
    }
    printf("\n");
}

static int no(const char *what)
{
    fprintf(stderr, "lab_trace: %s\n", what);
    return 1;
}

static int record(rt_engine *g, const char *prompt, size_t n, int32_t tokens)
{
    int32_t text[4096];
    rt_error e;
    rt_session_options so = RT_SESSION_OPTIONS(.ctx = 8192, .ngram = -1);
    rt_step_options sto = RT_STEP_OPTIONS(.budget = 1);
    rt_session *s;
    rt_step *st;
    size_t n_prompt = rt_tokenize(g, prompt, n, true, text + 1, 4095);
    if (n_prompt == 0 || n_prompt > 4095) return no("a prompt without tokens, or with too many");
    bool bos = rt_adds_bos(g) && text[1] != rt_token_bos(g);
    text[0] = rt_token_bos(g);
    if (bos) n_prompt++;
    if (rt_session_new(&s, g, &so, &e) != RT_OK || rt_step_new(&st, g, &sto, &e) != RT_OK) return no(e.text);
    Recorder r = { .inner = st->spec.drafter };
    r.drafter = *r.inner;
    r.drafter.propose = propose;
    st->spec.drafter = &r.drafter;
    rt_sampling greedy = RT_SAMPLING(.max_tokens = tokens);
    if (rt_prompt(s, text + !bos, n_prompt) != RT_OK || rt_sampling_set(s, &greedy) != RT_OK ||
        rt_logprobs_set(s, 2) != RT_OK)
        return no(rt_session_error(s));
    printf("prompt %zu", n_prompt);
    for (size_t i = 0; i < n_prompt; i++) printf(" %d", text[!bos + i]);
    printf("\n");
    for (int32_t made = 0; made < tokens;) {
        rt_block b;
        r.seen.n_depth = 0;
        if (rt_step_run(st, &s, &b, 1) != RT_OK || b.status < 0) return no(rt_step_error(st));
        if (b.n > 1) return no("more than a token in a step");
        if (b.n == 0) continue;
        const rt_logprob *p = rt_logprobs(s);
        printf("%d %.2f", b.token[0], (double) (p->top[0].logprob - p->top[1].logprob));
        print_lattice(&r.seen);
        made++;
        if (rt_token_ends(g, b.token[0])) break;
    }
    rt_step_free(st);
    rt_session_free(s);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 7) return no("MODEL DRAFT PROMPTS.jsonl FIRST COUNT TOKENS");
    FILE *f = fopen(argv[3], "r");
    if (!f) return no("no such file of prompts");
    rt_engine *g;
    rt_error e;
    rt_options o = RT_OPTIONS(.model = argv[1], .draft = argv[2], .backend = "cpu");
    if (rt_open(&g, &o, &e) != RT_OK) return no(e.text);
    static char line[1 << 20];
    int bad = 0;
    for (int at = 0; !bad && fgets(line, sizeof line, f); at++) {
        if (at < atoi(argv[4]) || at >= atoi(argv[4]) + atoi(argv[5])) continue;
        json_t *j;
        Error err;
        if (json_read(&j, line, strlen(line), argv[3], &err) != ST_OK) return no(err.text);
        const char *prompt = json_string_value(json_object_get(j, "prompt"));
        bad = prompt ? record(g, prompt, strlen(prompt), atoi(argv[6])) : no("a line without \"prompt\"");
        json_decref(j);
    }
    fclose(f);
    rt_close(g);
    return bad;
}
