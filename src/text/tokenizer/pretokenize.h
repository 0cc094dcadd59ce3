/* pretokenize.h - cuts text into the pieces ("pre-tokens") that byte-pair merging never crosses.
 * Each model has its own cuts: tokenizer.ggml.pre names one of a fixed set of patterns, compiled by PCRE2
 * when the tokenizer is opened. A name may have two patterns; the second then works inside each piece of the first and
 * sees nothing beyond it. Bytes that are not UTF-8 count as symbols, one each. */
#ifndef RATOON_TEXT_TOKENIZER_PRETOKENIZE_H
#define RATOON_TEXT_TOKENIZER_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct Pretokenizer Pretokenizer;           /* ST_UNSUPPORTED without a message: no pattern has this name. */
typedef struct PretokenCursor PretokenCursor;       /* one text being cut, by one thread */

/* ST_UNSUPPORTED without a message: no pattern has that name. */
Status pretokenize_open(Pretokenizer **out, const char *name, size_t n, Error *err);
void   pretokenize_close(Pretokenizer *p);          /* NULL is fine */

const char *pretokenize_name(const Pretokenizer *p);   /* the pattern's name, the same for all its aliases */
bool        pretokenize_llama3(const Pretokenizer *p); /* whether it is of the group that takes whole tokens without
                                                        * merging and adds BOS */
bool        pretokenize_gemma4(const Pretokenizer *p); /* whether it is of the group that spells spaces as U+2581 and
                                                        * always adds BOS */

Status pretokenize_cursor(PretokenCursor **out, const Pretokenizer *p);
void   pretokenize_cursor_free(PretokenCursor *c);  /* NULL is fine */

/* Starts on a text, which must not move or change until the last piece. */
Status pretokenize_begin(PretokenCursor *c, const char *s, size_t n);
/* Length of the next piece; pieces follow each other without gaps. ST_END after the last one. */
Status pretokenize_next(PretokenCursor *c, size_t *n);

#endif
