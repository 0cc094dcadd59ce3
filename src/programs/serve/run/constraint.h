/* constraint.h - compiled constraints on texts: response schemas, grammars, forced calls and calls of strict tools,
 * with the token masks found for them so far. The latest few are kept, since clients send the same schema with every
 * request. Workers compile and open them; only the engine thread uses a constraint's masks. */
#ifndef RATOON_PROGRAMS_SERVE_RUN_CONSTRAINT_H
#define RATOON_PROGRAMS_SERVE_RUN_CONSTRAINT_H

#include "programs/serve/request/request.h"
#include "programs/serve/server.h"
#include "text/grammar/grammar_mask.h"
#include "text/reply/reply_tools.h"

typedef struct Constraint Constraint;

Constraints *constraints_new(const rt_engine *g, ReplyStyle style);
void   constraints_free(Constraints *f);           /* release all its constraints first */

/* The constraint that a request asks for; *out is NULL if it asks for none. Returns false and sets *e on failure. */
bool constraint_of(Constraint **out, Constraints *f, const Request *q, HttpError *e);
/* Likewise the constraint on calls in free text, needed if a tool is strict; it applies where that of constraint_of
 * does not. */
bool constraint_of_calls(Constraint **out, Constraints *f, const Request *q, HttpError *e);
void constraint_release(Constraint *x);

/* A new text under the constraint, of at most n_max tokens. NULL: out of memory. Engine thread only, as is all use of
 * the result. */
GrammarText *constraint_text(Constraint *x, int32_t n_max);
const char *constraint_prefix(const Constraint *x); /* texts forced before and after it; NULL: none */
const char *constraint_suffix(const Constraint *x);
bool        constraint_ends_turn(const Constraint *x); /* whether the answer ends when the constraint is complete */

#endif
