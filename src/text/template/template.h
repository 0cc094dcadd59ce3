/* template.h - chat templates: the subset of Jinja2 that they use, with the settings of transformers'
 * apply_chat_template (blocks trimmed, no escaping, tojson as Python's json.dumps).
 * A template is parsed once and never changes; a render is a pure function of template, variables and clock, with
 * its own memory and with limits on memory, steps, output and nesting (doc/templates.md). The rendered text records
 * which of its bytes came from outside, so that a user cannot write control tokens. */
#ifndef RATOON_TEXT_TEMPLATE_TEMPLATE_H
#define RATOON_TEXT_TEMPLATE_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/error.h"
#include "text/tokenizer/tokenizer.h"

typedef struct Template Template;

enum { TEMPLATE_SOURCE_MAX = 4 << 20, TEMPLATE_OUTPUT_MAX = 16 << 20, TEMPLATE_STEPS_MAX = 10000000,
       TEMPLATE_NESTING_MAX = 64, TEMPLATE_RANGE_MAX = 100000, TEMPLATE_MEMORY_MAX = 256 << 20 };

/* error.text is one line: name, line, column, what is wrong. Codes: ST_FORMAT the template is wrong in itself or for
 * these variables; ST_ARG it called raise_exception (text is then only its message); ST_FULL a limit; ST_MEMORY. */
typedef struct {
    Error   error;
    int32_t line, column;                          /* from 1; 0: no place in the source. Columns count characters */
    char    source[160];                           /* the line, or the part of it around the place */
    int32_t caret;                                 /* characters of source before the place */
} TemplateError;

/* name is for messages. The source is copied. */
Status template_open(Template **out, const char *source, size_t n, const char *name, TemplateError *err);
void   template_close(Template *t);
bool   template_mentions(const Template *t, const char *text);         /* text occurs anywhere in the source */

/* Where a variable's strings come from. MESSAGES: everything is the client's except the values of role, name and
 * type of a message and of its tool calls, from which templates make markers. */
typedef enum { ORIGIN_PROGRAM, ORIGIN_CLIENT, ORIGIN_MESSAGES } Origin;
typedef struct { const char *name; const json_t *value; Origin origin; } TemplateVariable; /* value NULL: undefined */

typedef struct {
    const TemplateVariable *variable;              /* [n_variables] of two with the same name the later one counts */
    size_t    n_variables;
    const struct tm *now;                          /* the time for strftime_now; NULL: strftime_now is undefined */
    bool      lax;                                 /* attributes of undefined values are undefined, not errors */
    int64_t   steps_max;                           /* 0: TEMPLATE_STEPS_MAX */
    const char *watched;                           /* a variable's name, see TemplateText.asked; NULL: none */
    size_t    part;                                /* index of a message, see TemplateText.parted */
} TemplateInput;

typedef struct {
    char     *text; size_t n;               /* UTF-8, NUL-terminated */
    TextSpan *client; size_t n_client;      /* ascending, disjoint: bytes that came from a client, for
                                             * TokenizeOptions */
    size_t    asked;            /* bytes written before the value of `watched` was first read, n if it was not:
                                 * another value gives the same ones */
    size_t    parted;           /* the first byte of message `part`, if everything from earlier messages stands
                                 * before it and everything from later ones after it; else SIZE_MAX */
} TemplateText;

/* The caller frees out (template_text_free); it is empty after a failure. Several threads may render the same
 * template. */
Status template_render(TemplateText *out, const Template *t, const TemplateInput *in, TemplateError *err);
void   template_text_free(TemplateText *text);

#endif
