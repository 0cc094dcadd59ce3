/* forms.h - what texts have to look like, compiled: response schemas, grammars, forced calls and calls of strict tools, with the token masks
 * that were found for them. The last few are kept, since clients send the same schema with every request. Compiling and opening happens on the workers; the
 * masks of a form are used by the engine thread alone. */
#ifndef RATOON_SERVE_FORMS_H
#define RATOON_SERVE_FORMS_H

#include "programs/serve/request.h"
#include "programs/serve/server.h"
#include "text/grammar_mask.h"
#include "text/reply_tools.h"

typedef struct Form Form;

Forms *forms_new(const rt_engine *g, ReplyStyle style);
void   forms_free(Forms *f);                       /* after its forms have been released */

/* The form that a request asks for, *out NULL if it asks for none. False: *e. */
bool form_of(Form **out, Forms *f, const Request *q, HttpError *e);
/* Likewise that of free text in which calls are held to their form, because a tool is strict; it counts where form_of's does not. */
bool form_of_calls(Form **out, Forms *f, const Request *q, HttpError *e);
void form_release(Form *x);

/* A text that follows it, of at most n_max tokens. NULL: out of memory. Engine thread only, as everything with the result. */
GrammarText *form_text(Form *x, int32_t n_max);
const char *form_open(const Form *x);              /* text that is forced before it and after it; NULL: none */
const char *form_close(const Form *x);
bool        form_ends_turn(const Form *x);         /* when the form is whole, so is the answer */

#endif
