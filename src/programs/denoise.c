#include "programs/denoise.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "programs/program.h"

typedef struct { const char *name; size_t place; bool whole; } Key;
#define KEY(name, whole) { #name, offsetof(rt_diffusion, name), whole }
static const Key KEYS[] = {
    KEY(steps, true), KEY(stability, true), KEY(confidence, false), KEY(t_max, false), KEY(t_min, false),
    KEY(entropy_bound, false), KEY(trim, false), KEY(trim_from, true), KEY(mask, true),
};
enum { N_KEYS = sizeof KEYS / sizeof *KEYS };

static bool set(rt_diffusion *out, const Key *k, const char *text)
{
    char *end;
    const double v = strtod(text, &end);
    if (end == text || *end || !(v >= -1e6 && v <= 1e6) || (k->whole && v != (double) (int32_t) v)) return false;
    if (k->whole) memcpy((uint8_t *) out + k->place, &(int32_t) { (int32_t) v }, sizeof(int32_t));
    else memcpy((uint8_t *) out + k->place, &(float) { (float) v }, sizeof(float));
    return true;
}

const char *denoise_option(const Options *o)
{
    return o->diffusion ? "--diffusion" : o->sampler ? "--sampler" : NULL;
}

bool denoise_read(rt_diffusion *out, const Options *o)
{
    *out = RT_DIFFUSION(0);
    out->lock = o->sampler && strcmp(o->sampler, "lock") == 0;
    for (const char *at = o->diffusion; at && *at;) {
        char part[64];
        const size_t n = strcspn(at, ",");
        snprintf(part, sizeof part, "%.*s", (int) (n < sizeof part ? n : sizeof part - 1), at);
        char *value = strchr(part, '=');
        if (value) *value++ = 0;
        int32_t i = 0;
        while (i < N_KEYS && strcmp(KEYS[i].name, part) != 0) i++;
        if (i == N_KEYS)
            return complain(o, "--diffusion: unknown name '%s', expected steps, stability, confidence, t_max, t_min, "
                            "entropy_bound, trim, trim_from or mask", part) == 0;
        if (!value || !set(out, &KEYS[i], value))
            return complain(o, "--diffusion: %s is '%s', expected a %snumber, as in %s=%s", part, value ? value : "",
                            KEYS[i].whole ? "whole " : "", part, KEYS[i].whole ? "16" : "0.5") == 0;
        at += n + (at[n] == ',');
    }
    const char *mask = getenv("DG_MASK_ID");       /* as for the server that this comes from */
    if (out->lock && out->mask == 0 && mask && *mask && !set(out, &(Key) KEY(mask, true), mask))
        return complain(o, "DG_MASK_ID is '%s', expected a token's number", mask) == 0;
    return true;
}
