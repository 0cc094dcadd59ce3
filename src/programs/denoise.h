/* denoise.h - --diffusion and --sampler: how a model that denoises writes its blocks (rt_diffusion). */
#ifndef RATOON_PROGRAMS_DENOISE_H
#define RATOON_PROGRAMS_DENOISE_H

#include "programs/options.h"
#include "ratoon.h"

/* Reads "steps=24,trim=0.9": fields of rt_diffusion by name, 0 where the option does not set one. Returns false after
 * reporting an error. Whether values are in range, rt_diffusion_set says. */
bool denoise_read(rt_diffusion *out, const Options *o);
/* The option that asks for something, NULL: none does. */
const char *denoise_option(const Options *o);

#endif
