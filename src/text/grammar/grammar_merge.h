/* grammar_merge.h - merges everything in a JSON Schema that applies to one value: its own keywords and what $ref and
 * allOf add. Choices (anyOf, oneOf) remain open. Unknown keywords are refused here, by name and place. */
#ifndef RATOON_TEXT_GRAMMAR_GRAMMAR_MERGE_H
#define RATOON_TEXT_GRAMMAR_GRAMMAR_MERGE_H

#include <jansson.h>

#include "text/grammar/grammar_graph.h"
#include "text/schema_ref.h"

enum { PATH_MAX_BYTES = 256 };

typedef struct {
    Graph      *b;
    const json_t *root;
    const char *name;                              /* for messages */
    json_t     *made;                              /* a list that keeps alive the schemas made by merging */
    Error      *err;
    Status      st;
} Merger;

/* Owned: free with flat_free. A limit of -1 means none. */
typedef struct {
    bool     never;                                /* no value is valid */
    bool     typed;                                /* `type` was given */
    uint32_t types, spoken;                        /* spoken: types that the keywords without `type` apply to */
    json_t  *values;                               /* enum and const: a list, or NULL */
    json_t  *props, *required, *additional;        /* objects by name; additional NULL: not given */
    json_t  *prefix, *items;                       /* prefix: list or NULL */
    int64_t  min_items, max_items, min_length, max_length, min_props, max_props;
    json_t  *minimum, *maximum, *above, *below, *multiple, *pattern, *format;
    json_t  *choices;                              /* a list of [path, list of schemas], or NULL */
} Flat;

/* A shallow copy of a list or an object; NULL: out of memory. (json_copy silently drops members when memory runs
 * out.) */
json_t *merge_copy(json_t *v);
/* Below 0, 0, above 0 as a < b, a = b, a > b, exactly. Both are numbers. */
int  number_order(const json_t *a, const json_t *b);
void flat_init(Flat *f);
void flat_free(Flat *f);
bool flat_copy(Flat *out, const Flat *f);          /* false: out of memory; call flat_free even then */
/* Adds a schema to f. path: its JSON pointer. Returns false with the reason in m->err. */
bool flat_add(Merger *m, Flat *f, const json_t *schema, const char *path, int depth);
/* The schema that a bare $ref leads to, and its path; any other schema is returned as it is. NULL: failed. */
const json_t *merge_target(Merger *m, const json_t *schema, char path[PATH_MAX_BYTES]);
bool merge_fail(Merger *m, Status st, const char *path, const char *format, ...) __attribute__((format(printf, 4, 5)));
void path_add(char out[PATH_MAX_BYTES], const char *path, const char *key);

#endif
