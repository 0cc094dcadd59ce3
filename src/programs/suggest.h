/* suggest.h - "did you mean": the candidate that differs least from what was typed.
 *
 *     Suggestion s = { .typed = "promt" };
 *     suggest_try(&s, "prompt"); ...
 *     fprintf(stderr, "unknown option%s", suggest_words(&s, text));       "; did you mean prompt?"
 */
#ifndef RATOON_PROGRAMS_SUGGEST_H
#define RATOON_PROGRAMS_SUGGEST_H

#include <stdint.h>

/* best NULL: nothing is near enough. The candidates must live as long. */
typedef struct { const char *typed, *best; int32_t length, distance; } Suggestion;

/* Leading dashes count for nothing, case neither. The first of equally near candidates stays. */
void suggest_try(Suggestion *s, const char *candidate);
void suggest_list(Suggestion *s, const char *list, char between);        /* each of "a|b|c"; list NULL: none */
/* "; did you mean X?", or "" if there is none. */
const char *suggest_words(const Suggestion *s, char text[128]);

#endif
