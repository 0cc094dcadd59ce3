#include "programs/sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/ranges.h"
#include "ratoon_chat.h"

static void fill(double *value, float otherwise)
{
    if (isnan(*value)) *value = (double) otherwise;
}

/* Short enough to be typed again. */
static uint64_t random_seed(void)
{
    uint32_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed) seed = (uint32_t) (1e9 * seconds_now());
    return seed;
}

void sampling_for_answers(Options *o, const rt_engine *g)
{
    rt_sampling r = RT_SAMPLING(.rep_window = o->rep_window);
    rt_sampling_recommended(g, &r);
    fill(&o->temp, r.temperature);
    fill(&o->top_p, r.top_p);
    fill(&o->min_p, r.min_p);
    fill(&o->rep_penalty, r.repetition);
    fill(&o->freq_penalty, 0);
    fill(&o->presence_penalty, 0);
    if (o->top_k < 0) o->top_k = r.top_k;
    o->rep_window = r.rep_window;
    if (!o->seed.given) o->seed.value = random_seed();
}

static float given(double value) { return isnan(value) ? 0 : (float) value; }

rt_sampling sampling_of(const Options *o, int32_t max_tokens)
{
    return RT_SAMPLING(
        .temperature = given(o->temp), .top_p = given(o->top_p), .min_p = given(o->min_p),
        .repetition = given(o->rep_penalty), .frequency = given(o->freq_penalty),
        .presence = given(o->presence_penalty), .top_k = o->top_k > 0 ? o->top_k : 0, .rep_window = o->rep_window,
        .max_tokens = max_tokens, .seed = o->seed.value
    );
}

const char *sampling_text(char out[static 256], const rt_sampling *s, bool seed)
{
    const struct { const char *name; double value; bool on; } part[] = {
        { "temp", s->temperature, true }, { "top-k", s->top_k, s->top_k > 0 },
        { "top-p", s->top_p, s->top_p > 0 && s->top_p < 1 }, { "min-p", s->min_p, s->min_p > 0 },
        { "rep-penalty", s->repetition, s->repetition > 0 && s->repetition != 1 },
        { "freq-penalty", s->frequency, s->frequency != 0 }, { "presence-penalty", s->presence, s->presence != 0 },
    };
    const bool greedy = s->temperature < 1e-5f;
    size_t n = 0;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (!part[i].on || (greedy && i > 0 && i < 4)) continue;
        n += (size_t) snprintf(out + n, 256 - n, "%s%s %g", n ? ", " : "", part[i].name, part[i].value);
    }
    if (greedy) snprintf(out + n, 256 - n, " (greedy)");
    else if (seed) snprintf(out + n, 256 - n, ", seed %llu", (unsigned long long) s->seed);
    return out;
}

/* As it was written: 0.7, not the float next to it. */
static double short_real(float value)
{
    char text[32];
    snprintf(text, sizeof text, "%g", (double) value);
    return strtod(text, NULL);
}

json_t *sampling_json(const rt_sampling *s)
{
    return json_pack("{s:f s:f s:i s:f s:f s:f s:f s:i}", "temperature", short_real(s->temperature), "top_p",
                     s->top_p > 0 ? short_real(s->top_p) : 1.0, "top_k", s->top_k, "min_p", short_real(s->min_p),
                     "repetition_penalty", s->repetition > 0 ? short_real(s->repetition) : 1.0, "frequency_penalty",
                     short_real(s->frequency), "presence_penalty", short_real(s->presence), "rep_window",
                     s->rep_window ? s->rep_window : REP_WINDOW_MAX);
}
