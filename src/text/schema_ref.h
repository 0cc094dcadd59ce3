/* schema_ref.h - what all readers of JSON Schemas share: resolving a local `$ref`, and the names of types. A
 * reference is a URI fragment that holds a JSON pointer: #/$defs/a~1b%20c leads to the member "a/b c" of $defs. */
#ifndef RATOON_TEXT_SCHEMA_REF_H
#define RATOON_TEXT_SCHEMA_REF_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { TYPE_NULL = 1, TYPE_BOOLEAN = 2, TYPE_INTEGER = 4, TYPE_NUMBER = 8, TYPE_STRING = 16, TYPE_ARRAY = 32,
       TYPE_OBJECT = 64, TYPE_ALL = 127 };

/* Whether ref is "#" or "#/...": a place within the same schema. */
bool schema_ref_local(const char *ref);
/* The schema that ref leads to; NULL if there is none or ref is not local. */
const json_t *schema_ref(const json_t *root, const char *ref);
/* The bit of a type name; 0 if there is no such type (or name is NULL). */
uint32_t schema_type(const char *name);

#endif
