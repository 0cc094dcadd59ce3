/* special.h - finds special tokens in text, before anything else looks at it.
 * Longer tokens go first, each from left to right, wherever they do not overlap a token already found
 * (spec/tokenizer.md section 3). One scan over the text finds all places; only where tokens overlap is that order
 * applied, to that stretch alone. */
#ifndef RATOON_TEXT_TOKENIZER_SPECIAL_H
#define RATOON_TEXT_TOKENIZER_SPECIAL_H

#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocab.h"

typedef struct {
    const Vocab *vocab;
    int32_t  n;
    int32_t *id;                                   /* [n] sorted by their bytes; no two texts are equal */
    int32_t  first[257];                           /* id[first[b], first[b + 1]) begin with byte b */
} SpecialSet;

typedef struct { size_t at, n; int32_t id; } SpecialHit;

typedef struct { SpecialHit *hit; size_t n, cap; } SpecialHits;

Status special_init(SpecialSet *set, const Vocab *v);
void   special_free(SpecialSet *set);

/* Appends the special tokens of the text in ascending order; the text between them is raw. control false:
 * user-defined tokens only. */
Status special_scan(const SpecialSet *set, SpecialHits *out, const char *s, size_t n, bool control,
                    const TextSpan *client, size_t n_client);

#endif
