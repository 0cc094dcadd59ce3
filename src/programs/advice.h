/* advice.h - what to do next about a file that cannot be used as a model. The library's errors are one line of facts;
 * this looks at the file again and adds what a newcomer can do: the name that was meant, the command that fetches the
 * file, the option it belongs to. A format tool (see tests/deps.py). */
#ifndef RATOON_PROGRAMS_ADVICE_H
#define RATOON_PROGRAMS_ADVICE_H

#include <stdbool.h>

#include "programs/program.h"

/* What the file was given for: -m, -d, a GGUF file of any contents, or a text. */
typedef enum { AS_MODEL, AS_DRAFTER, AS_GGUF, AS_TEXT } AdviceRole;

/* "; did you mean model.gguf?", or "" where the error says it all. */
enum { ADVICE_TEXT = 1024 };
const char *advice(char out[ADVICE_TEXT], const char *path, AdviceRole role);

/* complain() with the advice about the file that the error names. */
int complain_file(const Options *o, const char *error, const char *path, AdviceRole role);
/* ... about the model or the drafter of a command. */
int complain_files(const Options *o, const char *error, const Files *f);

#endif
