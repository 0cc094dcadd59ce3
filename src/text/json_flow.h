/* json_flow.h - converts JSON as models write it to JSON as parsers read it, symbol by symbol.
 * One value goes in; the output is always the beginning of a valid JSON text, and flow_close completes it. Valid
 * spelling is kept; raw line breaks in strings, unknown escapes and halves of surrogate pairs are corrected. Whatever
 * may still have to change is held back: separators, words and numbers, unfinished escapes. Nesting is one bit per
 * level, so there is no recursion.
 *
 *     in:   {'a': [1, True,], "b": "line
 *           two", "c": 12                                (the text ends)
 *     out:  {"a": [1, true], "b": "line\ntwo", "c": 12}
 */
#ifndef RATOON_TEXT_JSON_FLOW_H
#define RATOON_TEXT_JSON_FLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

/* Appends s as the inside of a JSON string, escaping what must be escaped. */
void bytes_escaped(Bytes *b, const char *s, size_t n);

/* LOOSE: accepts strings in ' or `, True False None, unquoted names, a comma before a closing bracket. BARE: any
 * other word is a string too, up to a comma or bracket, and a name goes up to its colon. CALL: the arguments of a call,
 * name=value up to the closing parenthesis, become an object; the opening parenthesis has been read. */
enum { FLOW_LOOSE = 1, FLOW_BARE = 2, FLOW_CALL = 4 };
/* QUOTE: a symbol besides the bytes; a string between two of them is raw */
enum { FLOW_DEPTH_MAX = 100, FLOW_QUOTE = 256 };

typedef struct {
    unsigned allow;
    uint8_t  state, digits;                        /* digits: hex digits of an escape still to come */
    bool     key;                                  /* the string or word is a member name */
    int      quote;                                /* the symbol that ends the string */
    int32_t  depth;
    uint64_t object[2];                            /* bit depth - 1: 1 for an object, 0 for an array */
    uint32_t code, high;                           /* code point of an escape; high: first half of a surrogate pair,
                                                    * 0: none */
    Bytes    held, *out;
} JsonFlow;

/* out: appended to, not owned. May be called again on the same flow. */
void flow_start(JsonFlow *f, unsigned allow, Bytes *out);
/* DONE: the value ended with this symbol. PAST: it had already ended, the symbol is not part of it. BAD: the symbol
 * is not allowed here. */
typedef enum { FLOW_MORE, FLOW_DONE, FLOW_PAST, FLOW_BAD } FlowStep;
FlowStep flow_put(JsonFlow *f, int symbol);
/* Completes the value, also after BAD: closes open strings and brackets, gives null to a member without a value.
 * Returns true if nothing was missing but the end of a number or word. */
bool flow_close(JsonFlow *f);
/* Whether a string is open, so that brackets and separators would be part of it. */
bool flow_in_string(const JsonFlow *f);
void flow_free(JsonFlow *f);

/* Reads the whole text as one value; *first: its first byte in out. Returns false, with out unchanged, if it is not
 * a value. */
bool flow_text(Bytes *out, const char *s, size_t n, unsigned allow, char *first);
/* "-"? digits ("." digits)? ([eE] [+-]? digits)? */
bool json_is_number_text(const char *s, size_t n);

#endif
