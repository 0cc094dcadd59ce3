/* vocab.h - the token list of a file: the bytes of every id, and the id of given bytes.
 * A normal token is kept as the raw bytes it stands for (the file spells bytes as printable characters, spec/tokenizer.md section 2);
 * the others as the text in the file. Two maps lead back, since a normal token " " and a special token " " may both exist. */
#ifndef RATOON_TEXT_VOCAB_H
#define RATOON_TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { VOCAB_TOKENS_MAX = 1 << 24, VOCAB_TOKEN_BYTES_MAX = 1 << 16 };

/* The type kept for a normal token with a character outside the file's alphabet (Command R has 1403). No merge makes it; it stands
 * for its text. */
enum { VOCAB_TEXT = 7 };

typedef struct {
    int32_t *id;                                   /* [mask + 1] -1: free slot */
    uint32_t *tag;                                 /* [mask + 1] upper half of the hash */
    size_t   mask;
} VocabMap;

typedef struct {
    int32_t  n;
    char    *bytes;                                /* all tokens back to back */
    size_t  *at;                                   /* [n + 1] token i is bytes[at[i], at[i + 1]) */
    uint8_t *type;                                 /* [n] TOKEN_* or VOCAB_TEXT */
    VocabMap merged;                               /* what merging may name: normal tokens, and others of printable ASCII */
    VocabMap special;                              /* all but normal tokens, by their text */
} Vocab;

/* The file's alphabet: the byte that a character stands for, or -1. */
int32_t vocab_byte_of(uint32_t cp);
/* Raw bytes of a text in that alphabet: their number, at most n; or SIZE_MAX where a character is outside it. */
size_t  vocab_unmap(char *out, const char *s, size_t n);

/* Room for n tokens of together `bytes` bytes; fill at, bytes and type, then build the maps. Of equal texts the last id is found. */
Status vocab_alloc(Vocab *v, int32_t n, size_t bytes);
Status vocab_index(Vocab *v);
void   vocab_free(Vocab *v);

static inline const char *vocab_bytes(const Vocab *v, int32_t id, size_t *n)
{
    *n = v->at[id + 1] - v->at[id];
    return v->bytes + v->at[id];
}

int32_t vocab_find(const Vocab *v, const VocabMap *m, const char *s, size_t n);    /* -1: none */

#endif
