/* sampling.h - how tokens are drawn where nobody says: for answers (`chat`, `run --chat`, `serve`) as the model file
 * recommends, else as its generation_config.json does if --generation-config asks for that, else at temperature 0.7
 * with top-p 0.9 and a seed that is drawn; everywhere else greedily. An option that was given always wins, each for
 * itself. */
#ifndef RATOON_PROGRAMS_SAMPLING_H
#define RATOON_PROGRAMS_SAMPLING_H

#include "programs/program.h"

/* Options of p that were not given get the values for answers; o: the same, to be changed. Returns false after
 * reporting that the generation configuration cannot be read. */
bool sampling_for_answers(Options *o, const Program *p);
/* For a text of a model that denoises, a temperature that was not given is 1: what its file says. */
void sampling_for_texts(Options *o, const Program *p);
/* Options that were not given have the library's defaults: greedy, no penalties, seed 0. */
rt_sampling sampling_of(const Options *o, int32_t max_tokens);
/* "temp 0.7, top-p 0.9, seed 5": what has an effect, named as the options are. */
const char *sampling_text(char out[static 256], const rt_sampling *s, bool seed);
/* All but the seed as JSON, named as the server's fields are. */
json_t *sampling_json(const rt_sampling *s);

#endif
