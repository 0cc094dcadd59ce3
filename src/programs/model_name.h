/* model_name.h - compares names of models as people write them: "Qwen3.6-27B-Q4_K_M.gguf", "Qwen3.6 27B" and
 * "qwen3.6-27b" begin with the same words. A name becomes words of lower case, each followed by a blank: letters and
 * digits are split ("qwen 3.6 27b q 4 k m "), so that "Qwen3-4B" is not the beginning of "Qwen3-40B". */
#ifndef RATOON_PROGRAMS_MODEL_NAME_H
#define RATOON_PROGRAMS_MODEL_NAME_H

#include <stdbool.h>
#include <stddef.h>

enum { NAME_WORDS = 256 };                         /* bytes of a name in words; what is longer is cut */
typedef struct { char at[NAME_WORDS]; } NameWords;

/* The words of a name without ".gguf" and the number of a split file's part. */
NameWords name_words(const char *name);
/* The words that name the model: up to the quantisation and the mark of a drafter ("dflash", "draft"), marks at the
 * beginning left out. "dflash-draft-3.6-q8_0.gguf" gives "3.6 ". */
NameWords name_model(const char *name);
/* Whether words begin with these, perhaps after one word for the organisation ("Meta-Llama", "Qwen_Qwen3"). Nothing
 * begins with no words. */
bool      name_begins(const NameWords *words, const NameWords *with);
bool      name_has(const NameWords *words, const char *word);
/* The first word that is a number of parameters ("27b", "800m"); returns false if there is none. */
bool      name_size(char out[16], const NameWords *words);
/* A name with "dflash" or "draft" in it, in any case: worth opening in search of a drafter. */
bool      name_says_drafter(const char *name);

#endif
