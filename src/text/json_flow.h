/* json_flow.h - JSON as models write it, made JSON as parsers read it, symbol by symbol.
 * One value goes in; what comes out is at every moment the beginning of a valid JSON text, and flow_close makes it a whole one. Spelling is
 * kept where it is right; raw line breaks in strings, unknown escapes and halves of surrogate pairs are put right. What could still turn
 * out not to belong there waits: separators, words and numbers, unfinished escapes. Nesting is a bit per level, so there is no recursion.
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

/* A growing byte string. Running out of memory sticks in `failed`; then nothing is added. */
typedef struct { char *at; size_t n, cap; bool failed; } Bytes;
void bytes_put(Bytes *b, const char *s, size_t n);
void bytes_char(Bytes *b, int c);
void bytes_text(Bytes *b, const char *s);          /* up to its zero */
void bytes_free(Bytes *b);
/* A JSON string's inside: what must be escaped is. */
void bytes_escaped(Bytes *b, const char *s, size_t n);

/* LOOSE: strings in ' or `, True False None, names without quotes, a comma before a closing bracket. BARE: any other word is a string
 * too, up to a comma or bracket. CALL: the arguments of a call, name=value up to the closing parenthesis, become an object; the opening
 * one has been read. */
enum { FLOW_LOOSE = 1, FLOW_BARE = 2, FLOW_CALL = 4 };
enum { FLOW_DEPTH_MAX = 100, FLOW_QUOTE = 256 };   /* QUOTE: a symbol beside the bytes; between two of them a string is raw */

typedef struct {
    unsigned allow;
    uint8_t  state, digits;                        /* digits: of an escape, still to come */
    bool     key;                                  /* the string or word is a member's name */
    int      quote;                                /* what ends the string */
    int32_t  depth;
    uint64_t object[2];                            /* bit depth - 1: an object, else an array */
    uint32_t code, high;                           /* of an escape; high: first half of a pair, 0 none */
    Bytes    held, *out;
} JsonFlow;

/* out: appended to; not owned. May be called again on the same flow. */
void flow_start(JsonFlow *f, unsigned allow, Bytes *out);
/* DONE: the value ended with this symbol. PAST: it had ended before, the symbol is not its own. BAD: the symbol cannot stand here. */
typedef enum { FLOW_MORE, FLOW_DONE, FLOW_PAST, FLOW_BAD } FlowStep;
FlowStep flow_put(JsonFlow *f, int symbol);
/* Completes the value, also after BAD: open strings and brackets are closed, a member without a value gets null. True: nothing was
 * missing but the end of a number or word. */
bool flow_close(JsonFlow *f);
/* A string is open: brackets and separators would be its text. */
bool flow_in_string(const JsonFlow *f);
void flow_free(JsonFlow *f);

/* The whole text as one value; *first its first byte in out. False: it is none, and out is as it was. */
bool flow_text(Bytes *out, const char *s, size_t n, unsigned allow, char *first);
/* "-"? digits ("." digits)? ([eE] [+-]? digits)? */
bool json_is_number_text(const char *s, size_t n);

#endif
