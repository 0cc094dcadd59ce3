/* vocab.h - the token list of a file: the bytes of every id, and the id of given bytes.
 * A normal token is stored as the raw bytes it stands for (the file spells bytes as printable characters,
 * spec/tokenizer.md section 2), any other token as its text in the file. Two maps lead from bytes to ids, since a
 * normal token " " and a special token " " may both exist. */
#ifndef RATOON_TEXT_TOKENIZER_VOCAB_H
#define RATOON_TEXT_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { VOCAB_TOKENS_MAX = 1 << 24, VOCAB_TOKEN_BYTES_MAX = 1 << 16 };

/* The type of a normal token that has a character outside the file's alphabet (Command R has 1403). No merge
 * produces it; its bytes are its text. */
enum { VOCAB_TEXT = 7 };

typedef struct {
    int32_t *id;                                   /* [mask + 1] -1: free slot */
    uint32_t *tag;                                 /* [mask + 1] upper half of the hash */
    size_t   mask;
} VocabMap;

typedef struct {
    int32_t  n;
    char    *bytes;                         /* all tokens back to back */
    size_t  *at;                            /* [n + 1] token i is bytes[at[i], at[i + 1]) */
    uint8_t *type;                          /* [n] TOKEN_* or VOCAB_TEXT */
    VocabMap merged;                        /* tokens that merges may name: normal ones, and others of printable
                                             * ASCII */
    VocabMap special;                       /* all tokens but the normal ones, by their text */
} Vocab;

/* The byte that a character of the file's alphabet stands for; -1 if it is not in the alphabet. */
int32_t vocab_byte_of(uint32_t cp);
/* Writes the raw bytes of a text in that alphabet and returns their number, at most n; SIZE_MAX if a character is
 * not in the alphabet. */
size_t  vocab_unmap(char *out, const char *s, size_t n);

/* Allocates room for n tokens with `bytes` bytes in all; fill at, bytes and type, then build the maps. Of equal
 * texts the last id is found. */
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
