/* reply_value.h - converts parameters that a model writes as plain text to JSON values by the tool's schema (table:
 * doc/tools.md). */
#ifndef RATOON_TEXT_REPLY_REPLY_VALUE_H
#define RATOON_TEXT_REPLY_REPLY_VALUE_H

#include <jansson.h>

#include "text/json_flow.h"

/* Bits as in schema_ref.h. 0: nothing is known, which is treated as text. */
typedef uint32_t ValueTypes;

/* The types a schema admits: its type, a list of types, nullable; through local $ref, anyOf, oneOf, allOf; the types
 * of enum or const values if there is no type. root: where $ref is looked up. Schemas are never refused here:
 * whatever is not understood admits text. */
ValueTypes value_types(const json_t *root, const json_t *schema);
/* Whether a text of n bytes so far is a string whatever follows, so that it can be streamed before it is complete:
 * no other type is admitted, or none can be this long. */
bool value_is_text(ValueTypes t, size_t n);
/* Writes n bytes of valid UTF-8 as a JSON value of the first type that accepts them: integer, number, boolean, null,
 * object, array, string; as a string if none does. */
void value_write(Bytes *out, ValueTypes t, const char *s, size_t n);

/* The schema of a member of a tool's parameters; NULL if it is not declared. */
const json_t *value_parameter(const json_t *schema, const char *name);
/* Follows {"$ref": "#/..."} at most 32 times; NULL if it leads nowhere. */
const json_t *value_target(const json_t *root, const json_t *schema);
/* Whether an object could be the tool's arguments: it has the required members, declared ones have their type, and
 * there are no others if additionalProperties is false. */
bool value_satisfies(const json_t *schema, const json_t *object);

#endif
