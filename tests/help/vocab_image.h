/* vocab_image.h - small vocabularies for tests, as GGUF images in memory: 256 single bytes (token i is byte i; of type
 * byte in Gemma's kind), then one token for each merge, then tokens given one by one. Any key can be left out, replaced
 * or made to lie. */
#ifndef RATOON_TESTS_HELP_VOCAB_IMAGE_H
#define RATOON_TESTS_HELP_VOCAB_IMAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/gguf.h"
#include "text/tokenizer/tokenizer.h"

typedef struct { uint8_t *at; size_t n, cap; } Bytes;

static inline void bytes_put(Bytes *b, const void *p, size_t n)
{
    if (n == 0) return;
    if (b->cap - b->n < n) {
        b->cap = 2 * (b->n + n) + 256;
        b->at = realloc(b->at, b->cap);
        if (!b->at) abort();
    }
    memcpy(b->at + b->n, p, n);
    b->n += n;
}

static inline void bytes_u32(Bytes *b, uint32_t v) { bytes_put(b, &v, 4); }
static inline void bytes_u64(Bytes *b, uint64_t v) { bytes_put(b, &v, 8); }

static inline void bytes_str(Bytes *b, const char *s, size_t n)
{
    bytes_u64(b, n);
    bytes_put(b, s, n);
}

typedef struct {
    Bytes    keys, token, type, merge;             /* the elements of the arrays; all other keys */
    uint32_t n_keys, n_tokens, n_types, n_merges;
    uint32_t type_elem;                            /* GV_I32, unless a test writes a wrong type */
} VocabImage;

static inline void image_key(VocabImage *v, const char *name, uint32_t type)
{
    bytes_str(&v->keys, name, strlen(name));
    bytes_u32(&v->keys, type);
    v->n_keys++;
}

static inline void image_str(VocabImage *v, const char *name, const char *s)
{
    image_key(v, name, GV_STRING);
    bytes_str(&v->keys, s, strlen(s));
}

static inline void image_u32(VocabImage *v, const char *name, uint32_t x)
{
    image_key(v, name, GV_U32);
    bytes_u32(&v->keys, x);
}

static inline void image_bool(VocabImage *v, const char *name, bool x)
{
    image_key(v, name, GV_BOOL);
    bytes_put(&v->keys, &(uint8_t) { x }, 1);
}

/* Returns the token's id. */
static inline int32_t image_token(VocabImage *v, const char *s, size_t n, int32_t type)
{
    bytes_str(&v->token, s, n);
    bytes_put(&v->type, &type, 4);
    v->n_types++;
    return (int32_t) v->n_tokens++;
}

static inline int32_t image_text(VocabImage *v, const char *s, int32_t type)
{
    return image_token(v, s, strlen(s), type);
}
static inline void image_merge_only(VocabImage *v, const char *s) { bytes_str(&v->merge, s, strlen(s)); v->n_merges++; }

/* Adds the merge "left right" in the file's spelling, and the token that it makes. */
static inline int32_t image_merge(VocabImage *v, const char *s)
{
    char whole[256];
    const char *space = strchr(s + 1, ' ');
    snprintf(whole, sizeof whole, "%.*s%s", (int) (space - s), s, space + 1);
    image_merge_only(v, s);
    return image_text(v, whole, TOKEN_NORMAL);
}

/* How files spell a byte: printable bytes as themselves, the others as characters from U+0100 on. */
static inline size_t image_spell(char *out, uint8_t byte)
{
    uint32_t cp = 256;
    for (int b = 0; b <= byte; b++) {
        bool own = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte && own) cp = (uint32_t) b;
        else if (b < byte && !own) cp++;
    }
    if (cp < 0x80) {
        out[0] = (char) cp;
        return 1;
    }
    out[0] = (char) (0xc0 | cp >> 6);
    out[1] = (char) (0x80 | (cp & 0x3f));
    return 2;
}

static inline VocabImage image_begin(const char *pre)
{
    VocabImage v = { .type_elem = GV_I32 };
    image_str(&v, "tokenizer.ggml.model", "gpt2");
    if (pre) image_str(&v, "tokenizer.ggml.pre", pre);
    for (int b = 0; b < 256; b++) {
        char s[4];
        image_token(&v, s, image_spell(s, (uint8_t) b), TOKEN_NORMAL);
    }
    return v;
}

/* Of Gemma's kind; its characters are still to be given. */
static inline VocabImage image_begin_gemma(void)
{
    VocabImage v = { .type_elem = GV_I32 };
    image_str(&v, "tokenizer.ggml.model", "gemma4");
    for (int b = 0; b < 256; b++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", (unsigned) b);
        image_text(&v, s, TOKEN_BYTE);
    }
    return v;
}

static inline void array_put(Bytes *b, const char *name, uint32_t elem, uint64_t count, const Bytes *items)
{
    bytes_str(b, name, strlen(name));
    bytes_u32(b, GV_ARRAY);
    bytes_u32(b, elem);
    bytes_u64(b, count);
    bytes_put(b, items->at, items->n);
}

/* The whole file; frees v. */
static inline Bytes image_end(VocabImage *v)
{
    Bytes b = { 0 };
    bytes_put(&b, "GGUF", 4);
    bytes_u32(&b, 3);
    bytes_u64(&b, 0);
    bytes_u64(&b, v->n_keys + 3);
    bytes_put(&b, v->keys.at, v->keys.n);
    array_put(&b, "tokenizer.ggml.tokens", GV_STRING, v->n_tokens, &v->token);
    array_put(&b, "tokenizer.ggml.token_type", v->type_elem, v->n_types, &v->type);
    array_put(&b, "tokenizer.ggml.merges", GV_STRING, v->n_merges, &v->merge);
    free(v->keys.at);
    free(v->token.at);
    free(v->type.at);
    free(v->merge.at);
    memset(v, 0, sizeof *v);
    return b;
}

/* Opens the tokenizer of an image and frees the image: a tokenizer no longer needs its file. */
static inline Status image_open(Tokenizer **t, VocabImage *v, Error *err)
{
    Bytes b = image_end(v);
    Gguf *g = NULL;
    *t = NULL;
    Status st = gguf_parse(&g, b.at, b.n, "v.gguf", err);
    if (st == ST_OK) st = tokenizer_open(t, g, err);
    gguf_close(g);
    free(b.at);
    return st;
}

#endif
