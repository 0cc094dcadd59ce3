/* fields.h - the one table of request fields: which dialects have them, which values they may hold, and what is done
 * with them. A body is checked against it before anything else looks at it, so that no number is used out of its range;
 * doc/api.md lists it, and a test walks it. */
#ifndef RATOON_PROGRAMS_SERVE_REQUEST_FIELDS_H
#define RATOON_PROGRAMS_SERVE_REQUEST_FIELDS_H

#include "programs/serve/request/request.h"

enum { IN_COMPLETIONS = 1 << DIALECT_COMPLETIONS, IN_CHAT = 1 << DIALECT_CHAT, IN_RESPONSES = 1 << DIALECT_RESPONSES,
       IN_MESSAGES = 1 << DIALECT_MESSAGES, IN_LLAMA = 1 << DIALECT_LLAMA, IN_INFILL = 1 << DIALECT_INFILL,
       IN_OLLAMA_CHAT = 1 << DIALECT_OLLAMA_CHAT, IN_OLLAMA_GENERATE = 1 << DIALECT_OLLAMA_GENERATE };
/* JSON types; some front-ends send numbers as text, which is accepted. */
enum { TYPE_BOOL = 1, TYPE_INT = 2, TYPE_NUMBER = 4, TYPE_TEXT = 8, TYPE_LIST = 16, TYPE_OBJECT = 32,
       TYPE_NUMBER_TEXT = 64, TYPE_ANY = 128 };
typedef enum { FIELD_HONOURED, FIELD_REFUSED, FIELD_IGNORED } FieldRole;

typedef struct {
    const char *path;   /* prefixed with the names of the enclosing objects: stream_options.include_usage */
    unsigned    dialects, types;
    FieldRole   role;
    double      lo, hi; /* range of a number; of a text's length in bytes or a list's length, if hi is not 0 */
    const char *values; /* JSON values, separated by bars. REFUSED: those that are let through; HONOURED: those a text
                         * may have */
    enum { PUT_NOWHERE, PUT_BOOL, PUT_INT32, PUT_INT64, PUT_FLOAT, PUT_TOP_P, PUT_TEXT } put;
    size_t      at;     /* offset in Request */
} Field;

/* The whole table, n entries, in the order of application: if two fields mean the same, the later one wins. */
const Field *fields_all(size_t *n);

/* Checks the body, stores the simple values in q, and names in q->ignored fields without effect. Returns false and sets
 * *e if a field is refused. */
bool fields_read(Request *q, const json_t *body, HttpError *e);
/* Names one more field without effect; the list is cut at IGNORED_MAX names. */
enum { IGNORED_MAX = 100 };
void fields_ignore(Request *q, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
