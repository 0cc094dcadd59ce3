/* constraint.h - the form that a generated text must have: --grammar and --json-schema of `run`.
 * Compiled before anything is loaded, so that a mistake in it costs nothing; then it answers the engine's question which tokens may come
 * next, and hears of every token that was kept. */
#ifndef RATOON_PROGRAMS_CONSTRAINT_H
#define RATOON_PROGRAMS_CONSTRAINT_H

#include "programs/program.h"
#include "text/grammar_mask.h"

typedef struct {
    Grammar      *grammar;                         /* NULL: any text */
    TokenTrie    *trie;
    GrammarMasks *masks;
    GrammarText  *text;
} Constraint;

/* From the options. False: said. constraint_close afterwards in any case. */
bool constraint_read(Constraint *c, const Options *o);
/* The session's text, from the end of its prompt, follows the grammar. False: said. */
bool constraint_begin(Constraint *c, Program *p);
/* One more kept token. False: it is not allowed, which cannot be. */
bool constraint_token(Constraint *c, int32_t token);
/* The text is whole and nothing can follow. */
bool constraint_done(const Constraint *c);
const char *constraint_trouble(const Constraint *c);           /* NULL, or why no token was allowed */
void constraint_close(Constraint *c);

#endif
