#include "programs/generate.h"

/* Per-position acceptance: how deep the passes that drafted came. */
static void count_depth(Generated *out, rt_session *session, int32_t n_block)
{
    int64_t before = out->stats.drafted;
    rt_stats_get(session, &out->stats);
    if (out->stats.drafted == before) return;
    out->drafting++;
    for (int32_t d = 0; d + 1 < n_block && d < 64; d++) out->reached[d]++;
}

/* Takes the block's tokens up to an end token, which the session keeps as its last. */
static bool take_block(Generated *out, const Program *p, rt_session *session, const rt_block *b, bool ignore_eos)
{
    for (int32_t i = 0; i < b->n; i++) {
        if (!ignore_eos && rt_token_ends(p->engine, b->token[i])) {
            out->ended = true;
            return rt_take(session, i + 1) == RT_OK;
        }
        out->token[out->n++] = b->token[i];
    }
    return true;
}

bool generate(Generated *out, Program *p, rt_step *step, rt_session *session, const int32_t *prompt, int32_t n_prompt,
              const rt_sampling *sampling, bool ignore_eos)
{
    *out = (Generated) { .token = out->token };
    bool good = program_prompt(p, session, prompt, n_prompt) == RT_OK && rt_sampling_set(session, sampling) == RT_OK;
    if (!good) complain(p->o, "%s", rt_session_error(session));
    while (good && !out->ended) {
        rt_block b = { 0 };
        double t0 = seconds_now();
        rt_status st = program_step(p, step, session, &b);
        if (b.n > 0) out->seconds += seconds_now() - t0;
        if (st != RT_OK) {
            if (st != RT_ECANCEL) complain(p->o, "%s", rt_step_error(step));
            good = false;
        } else if (b.status < 0) {
            complain(p->o, "%s", rt_session_error(session));
            good = false;
        } else if (b.n == 0 && b.status == RT_END) {
            break;
        } else {
            count_depth(out, session, b.n);
            good = take_block(out, p, session, &b, ignore_eos);
        }
    }
    rt_stats_get(session, &out->stats);
    return good && interrupts == 0;
}
