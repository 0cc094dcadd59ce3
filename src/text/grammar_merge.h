/* grammar_merge.h - a JSON Schema with everything that applies to one value brought together: its own keywords, what $ref and allOf add.
 * What remains open are choices (anyOf, oneOf). Keywords that are not understood are refused here, by name and place. */
#ifndef RATOON_TEXT_GRAMMAR_MERGE_H
#define RATOON_TEXT_GRAMMAR_MERGE_H

#include <jansson.h>

#include "text/grammar_graph.h"

enum { TYPE_NULL = 1, TYPE_BOOLEAN = 2, TYPE_INTEGER = 4, TYPE_NUMBER = 8, TYPE_STRING = 16, TYPE_ARRAY = 32, TYPE_OBJECT = 64, TYPE_ALL = 127 };
enum { PATH_MAX_BYTES = 256 };

typedef struct {
    Graph      *b;
    const json_t *root;
    const char *name;                              /* for messages */
    json_t     *made;                              /* a list that keeps schemas alive which were made by merging */
    Error      *err;
    Status      st;
} Merger;

/* Owned: free with flat_free. Limits of -1: none. */
typedef struct {
    bool     never;                                /* no value is valid */
    bool     typed;                                /* `type` was given */
    uint32_t types, spoken;                        /* spoken: types that keywords without `type` speak about */
    json_t  *values;                               /* enum and const: a list, or NULL */
    json_t  *props, *required, *additional;        /* objects by name; additional NULL: not said */
    json_t  *prefix, *items;                       /* prefix: list or NULL */
    int64_t  min_items, max_items, min_length, max_length, min_props, max_props;
    json_t  *minimum, *maximum, *above, *below, *multiple, *pattern, *format;
    json_t  *choices;                              /* a list of [path, list of schemas], or NULL */
} Flat;

/* A shallow copy of a list or an object; NULL: out of memory. (json_copy leaves out what it has no memory for.) */
json_t *merge_copy(json_t *v);
void flat_init(Flat *f);
void flat_free(Flat *f);
bool flat_copy(Flat *out, const Flat *f);          /* false: out of memory; free it all the same */
/* Adds a schema to f. path: its JSON pointer. False: the reason is in m->err. */
bool flat_add(Merger *m, Flat *f, const json_t *schema, const char *path, int depth);
/* Where a schema that says nothing but $ref leads to, and its path; the schema itself otherwise. NULL: failed. */
const json_t *merge_target(Merger *m, const json_t *schema, char path[PATH_MAX_BYTES]);
bool merge_fail(Merger *m, Status st, const char *path, const char *format, ...) __attribute__((format(printf, 4, 5)));
void path_add(char out[PATH_MAX_BYTES], const char *path, const char *key);

#endif
