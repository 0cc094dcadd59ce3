/* recommended.c - the sampling values that a model file recommends: llama.cpp's keys general.sampling.*. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/ranges.h"
#include "engine/engine.h"

enum { TOP_K_MAX = 1 << 24 };                      /* every whole number up to here is a float */

typedef struct { const char *name; double min, max; bool whole; } Field;

static const Field fields[] = {
    { "temp", 0, TEMPERATURE_MAX, false },
    { "top_p", TOP_P_MIN, 1, false },
    { "min_p", 0, MIN_P_MAX, false },
    { "top_k", 0, TOP_K_MAX, true },
    { "penalty_repeat", REPETITION_MIN, REPETITION_MAX, false },
    { "penalty_last_n", 0, REP_WINDOW_MAX, true },
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

/* ST_END: the file does not say; ST_FORMAT: the value cannot be used. */
static Status read_field(float *out, const rt_engine *g, const Field *f, Error *err)
{
    char key[48];
    snprintf(key, sizeof key, "general.sampling.%s", f->name);
    if (!g->model_file) return ST_END;
    TRY(gguf_get_f32(g->model_file, key, out, err));
    if (*out >= f->min && *out <= f->max && (!f->whole || *out == floorf(*out))) return ST_OK;
    return fail(err, ST_FORMAT, "%s: key '%s' is %g, expected a %snumber from %g to %g", gguf_path(g->model_file), key,
                (double) *out, f->whole ? "whole " : "", f->min, f->max);
}

bool engine_recommended(float *out, const rt_engine *g, const char *name)
{
    Error ignored = { 0 };
    for (size_t i = 0; i < N_FIELDS; i++)
        if (strcmp(fields[i].name, name) == 0) return read_field(out, g, &fields[i], &ignored) == ST_OK;
    return false;
}

void engine_recommended_check(const rt_engine *g)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        char line[ERROR_TEXT + 32];
        float value;
        Error err = { 0 };
        if (read_field(&value, g, &fields[i], &err) != ST_FORMAT) continue;
        snprintf(line, sizeof line, "%s; it is ignored", err.text);
        if (g->hooks.log) g->hooks.log(g->hooks.ud, 1, line);
    }
}
