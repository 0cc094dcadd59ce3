#include "programs/sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/ranges.h"
#include "programs/hub/hub_cache.h"
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

/* ---- generation_config.json ---- */

/* The file beside the model, or at the root of the snapshot of a hub's cache that the model lies in. */
static bool find_config(char out[4200], const char *model)
{
    char folder[4096];
    folder_of(folder, model);
    char *snapshot = strstr(folder, "/snapshots/");
    char *end = snapshot ? strchr(snapshot + strlen("/snapshots/"), '/') : NULL;
    snprintf(out, 4200, "%s/" GENERATION_CONFIG, folder);
    if (access(out, F_OK) == 0 || !end) return access(out, F_OK) == 0;
    *end = 0;
    snprintf(out, 4200, "%s/" GENERATION_CONFIG, folder);
    return access(out, F_OK) == 0;
}

/* key: in the file; name: of the option; own: what the model file calls it. */
typedef struct { const char *key, *name, *own; double min, max; bool whole; } Field;

/* The model file says it, or that there are no penalties. */
static bool model_says(const rt_engine *g, const Field *f)
{
    char text[32] = "";
    if (rt_property(g, f->own, NULL, 0) > 0) return true;
    return strcmp(f->own, "sampling.penalty_repeat") == 0 &&
           rt_property(g, "sampling.penalty_last_n", text, sizeof text) > 0 && strcmp(text, "0") == 0;
}

/* Appends what was taken to said. */
static void take_field(char said[256], double *value, const Program *p, const json_t *config, const Field *f,
                       const char *path)
{
    const json_t *v = json_object_get(config, f->key);
    const double x = json_number_value(v);
    const size_t n = strlen(said);
    if (!isnan(*value) || !v || json_is_null(v) || model_says(p->engine, f)) return;
    if (!(f->whole ? json_is_integer(v) : json_is_number(v)) || x < f->min || x > f->max) {
        note(p->o, "warning: %s: \"%s\" is not a %snumber from %g to %g; it is ignored", path, f->key,
             f->whole ? "whole " : "", f->min, f->max);
        return;
    }
    *value = x;
    snprintf(said + n, 256 - n, "%s%s %g", n ? ", " : "", f->name, x);
}

static void take_config(Options *o, const Program *p, json_t *config, const char *path)
{
    static const Field fields[] = {
        { "temperature", "temp", "sampling.temp", 0, TEMPERATURE_MAX, false },
        { "top_k", "top-k", "sampling.top_k", 0, 1 << 24, true },
        { "top_p", "top-p", "sampling.top_p", TOP_P_MIN, 1, false },
        { "min_p", "min-p", "sampling.min_p", 0, MIN_P_MAX, false },
        { "repetition_penalty", "rep-penalty", "sampling.penalty_repeat", REPETITION_MIN, REPETITION_MAX, false },
    };
    char said[256] = "";
    double top_k = o->top_k < 0 ? NAN : o->top_k, *const value[] = { &o->temp, &top_k, &o->top_p, &o->min_p,
                                                                     &o->rep_penalty };
    if (json_is_false(json_object_get(config, "do_sample")))           /* greedy, whatever the temperature */
        json_object_set_new(config, "temperature", json_integer(0));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        take_field(said, value[i], p, config, &fields[i], path);
    if (!isnan(top_k)) o->top_k = (int32_t) top_k;
    note(o, "%s: %s", path, *said ? said : "nothing that neither an option nor the model file says");
}

static bool read_config(Options *o, const Program *p)
{
    char beside[4200];
    const char *path = o->generation_config;
    json_t *config = NULL;
    if (!path) return true;
    if (strcmp(path, "auto") == 0) {
        path = find_config(beside, p->files.model) ? beside : NULL;
        if (!path) note(o, "there is no generation_config.json beside %s", p->files.model);
        if (!path) return true;
    }
    if (!json_file(o, &config, path)) return false;
    const bool good = json_is_object(config) || complain(o, "%s: is not a JSON object", path) == 0;
    if (good) take_config(o, p, config, path);
    json_decref(config);
    return good;
}

/* ---- the values ---- */

bool sampling_for_answers(Options *o, const Program *p)
{
    if (!read_config(o, p)) return false;
    rt_sampling r = RT_SAMPLING(.rep_window = o->rep_window);
    rt_sampling_recommended(p->engine, &r);
    fill(&o->temp, r.temperature);
    fill(&o->top_p, r.top_p > 0 ? r.top_p : 1);    /* 0 is off to the library, and one token as an option */
    fill(&o->min_p, r.min_p);
    fill(&o->rep_penalty, r.repetition);
    fill(&o->freq_penalty, 0);
    fill(&o->presence_penalty, 0);
    if (o->top_k < 0) o->top_k = r.top_k;
    o->rep_window = r.rep_window;
    if (!o->seed.given) o->seed.value = random_seed();
    return true;
}

void sampling_for_texts(Options *o, const Program *p)
{
    if (property(p->engine, "model.canvas") > 0) fill(&o->temp, 1);
}

static float given(double value) { return isnan(value) ? 0 : (float) value; }
static double least(double value, double min) { return value < min ? min : value; }     /* NAN stays */

rt_sampling sampling_of(const Options *o, int32_t max_tokens)
{
    return RT_SAMPLING(
        .temperature = given(o->temp), .top_p = given(least(o->top_p, TOP_P_MIN)), .min_p = given(o->min_p),
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
