/* vocab.h - the token list of a file: the bytes of every id, and the id of given bytes.
 * A normal token is stored as the raw bytes it stands for, which the file spells in one of two ways
 * (spec/tokenizer.md sections 2 and 6), any other token as its text in the file. Two maps lead from bytes to ids, since
 * a normal token " " and a special token " " may both exist. */
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

/* How a file spells normal tokens. BYTES: every byte as a printable character, so that all texts have tokens and
 * merging begins with bytes. SPACES: as they are, but for the space, which is U+2581; merging begins with characters,
 * and a character without a token is written with tokens of type byte. */
typedef enum { SPELL_BYTES, SPELL_SPACES } VocabSpelling;

typedef struct {
    int32_t *id;                                   /* [mask + 1] -1: free slot */
    uint32_t *tag;                                 /* [mask + 1] upper half of the hash */
    size_t   mask;
} VocabMap;

typedef struct {
    int32_t  n;
    VocabSpelling spelling;
    char    *bytes;                         /* all tokens back to back */
    size_t  *at;                            /* [n + 1] token i is bytes[at[i], at[i + 1]) */
    uint8_t *type;                          /* [n] TOKEN_* or VOCAB_TEXT */
    VocabMap merged;                        /* tokens that merges may name: normal ones, and others of printable
                                             * ASCII */
    VocabMap special;                       /* all tokens but the normal ones, by their text */
} Vocab;

/* Writes the raw bytes of a text so spelled and returns their number, at most n; SIZE_MAX if it has a character that
 * this spelling does not use. */
size_t  vocab_unmap(char *out, VocabSpelling spelling, const char *s, size_t n);
/* The same for a text of a user's, where both spellings of a space are one: replaces each U+2581 in place and returns
 * the new length. */
size_t  vocab_plain_spaces(char *s, size_t n);

/* Allocates room for n tokens with `bytes` bytes in all; fill at, bytes and type, then build the maps. Of equal
 * texts the last id is found. */
Status vocab_alloc(Vocab *v, VocabSpelling spelling, int32_t n, size_t bytes);
Status vocab_index(Vocab *v);
void   vocab_free(Vocab *v);

static inline const char *vocab_bytes(const Vocab *v, int32_t id, size_t *n)
{
    *n = v->at[id + 1] - v->at[id];
    return v->bytes + v->at[id];
}

int32_t vocab_find(const Vocab *v, const VocabMap *m, const char *s, size_t n);    /* -1: none */

#endif
