/* constraint.h - constrained generation: --grammar and --json-schema of `run` and `chat`. The grammar is compiled
 * before anything is loaded, so that a mistake is found early. */
#ifndef RATOON_PROGRAMS_CONSTRAINT_H
#define RATOON_PROGRAMS_CONSTRAINT_H

#include "programs/program.h"
#include "ratoon_chat.h"

/* From the options; *out NULL: any text. Returns false after reporting an error. */
bool constraint_read(rt_grammar **out, const Options *o);

#endif
