/* fields.h - the one table of a request's fields: which dialect has them, what they may hold, and what becomes of them. A body is checked
 * against it before anything else looks at it, so that no number is used out of its range; doc/api.md shows it, and a test walks it. */
#ifndef RATOON_PROGRAMS_SERVE_FIELDS_H
#define RATOON_PROGRAMS_SERVE_FIELDS_H

#include "programs/serve/request.h"

enum { IN_COMPLETIONS = 1 << DIALECT_COMPLETIONS, IN_CHAT = 1 << DIALECT_CHAT, IN_RESPONSES = 1 << DIALECT_RESPONSES, IN_MESSAGES = 1 << DIALECT_MESSAGES };
/* JSON types; a number as text is taken from front-ends that send one. ABOVE: the least value itself is out of range. */
enum { TYPE_BOOL = 1, TYPE_INT = 2, TYPE_NUMBER = 4, TYPE_TEXT = 8, TYPE_LIST = 16, TYPE_OBJECT = 32, TYPE_NUMBER_TEXT = 64, TYPE_ANY = 128, ABOVE = 256 };
typedef enum { FIELD_HONOURED, FIELD_REFUSED, FIELD_IGNORED } FieldRole;

typedef struct {
    const char *path;                              /* with the names of the objects that it lies in: stream_options.include_usage */
    unsigned    dialects, types;
    FieldRole   role;
    double      lo, hi;                            /* of a number; of a text its bytes, of a list its elements, if hi is not 0 */
    const char *values;                            /* REFUSED: the values (JSON, between bars) that are let through; HONOURED: those of a text */
    enum { PUT_NOWHERE, PUT_BOOL, PUT_INT32, PUT_INT64, PUT_FLOAT, PUT_TEXT } put;
    size_t      at;                                /* in Request */
} Field;

/* The whole table, n entries, in the order in which they are put: where two name the same thing, the later one wins. */
const Field *fields_all(size_t *n);

/* Checks the body, puts the simple values into q, and names in q->ignored what has no effect. False: *e. */
bool fields_read(Request *q, const json_t *body, HttpError *e);
/* Names one more field without effect; a list is cut at IGNORED_MAX names. */
enum { IGNORED_MAX = 100 };
void fields_ignore(Request *q, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
