#include "programs/generate.h"

#include "programs/drive.h"

/* Per-position acceptance: how deep the passes with drafting got. */
static void count_depth(Generated *out, rt_session *session, int32_t n_block)
{
    int64_t before = out->stats.drafted;
    rt_stats_get(session, &out->stats, sizeof out->stats);
    if (out->stats.drafted == before) return;
    out->drafting++;
    for (int32_t d = 0; d + 1 < n_block && d < 64; d++) out->reached[d]++;
}

bool generate(Generated *out, Program *p, rt_step *step, rt_session *session, const int32_t *prompt, int32_t n_prompt,
              const rt_sampling *sampling, bool ignore_eos)
{
    *out = (Generated) { .token = out->token };
    rt_status status = program_prompt(p, session, prompt, n_prompt);
    if (status == RT_OK) status = rt_sampling_set(session, sampling);
    bool good = status == RT_OK || complain_prompt(p, session, status) == 0;
    Drive d = { .engine = p->engine, .ignore_eos = ignore_eos, .token = &out->token, .n = &out->n };
    for (DriveEnd end = DRIVE_ON; good && end == DRIVE_ON;) {
        rt_block b;
        double t0 = seconds_now();
        const int64_t steps = out->stats.steps;
        end = drive_step(&d, p, step, session, &b);
        const double took = seconds_now() - t0;
        count_depth(out, session, b.n);
        if (b.n > 0 || out->stats.steps > steps) out->seconds += took;
        out->ended = end == DRIVE_ENDED;
        good = end <= DRIVE_FULL;
        if (end == DRIVE_FAILED) complain(p->o, "%s", drive_error(step, session));
    }
    rt_stats_get(session, &out->stats, sizeof out->stats);
    return good && interrupts == 0;
}
