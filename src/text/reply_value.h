/* reply_value.h - parameters that a model writes as plain text, made JSON values by the tool's schema (table: doc/tools.md). */
#ifndef RATOON_TEXT_REPLY_VALUE_H
#define RATOON_TEXT_REPLY_VALUE_H

#include <jansson.h>

#include "text/json_flow.h"

/* The bits are those of grammar_merge.h. 0: nothing is known, which means text. */
typedef uint32_t ValueTypes;

/* What a schema admits: its type, a list of types, nullable; through local $ref, anyOf, oneOf, allOf; the kinds of enum or const without a
 * type. root: where $ref begins. Schemas are only looked at, never refused: what is not understood admits text. */
ValueTypes value_types(const json_t *root, const json_t *schema);
/* A text of n bytes so far is a string whatever comes, so it need not be whole before it is told: nothing else is admitted, or nothing
 * else is as long. */
bool value_is_text(ValueTypes t, size_t n);
/* Writes n bytes of valid UTF-8 as a JSON value of the first type that takes them: integer, number, boolean, null, object, array, string;
 * as a string if none does. */
void value_write(Bytes *out, ValueTypes t, const char *s, size_t n);

/* A member of a tool's parameters: its schema, NULL unless declared. */
const json_t *value_parameter(const json_t *schema, const char *name);
/* {"$ref": "#/..."} followed, at most 32 times; NULL: leads nowhere. */
const json_t *value_target(const json_t *root, const json_t *schema);
/* An object that could be the tool's arguments: required members there, declared ones of their type, no others where
 * additionalProperties is false. */
bool value_satisfies(const json_t *schema, const json_t *object);

#endif
