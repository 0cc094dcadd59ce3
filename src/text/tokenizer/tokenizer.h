/* tokenizer.h - text to token ids and back, for the BPE vocabularies of GGUF files: byte-level ones
 * (tokenizer.ggml.model "gpt2"), and those of Gemma 4 ("gemma4"), which merge characters and have tokens for the bytes
 * of the others.
 * The pre-tokenizer is one of a fixed set of patterns chosen by tokenizer.ggml.pre; a pattern is never taken from a
 * file. A token is a byte string; merges rank pairs of ids. Bytes that are not UTF-8 are kept: to the patterns they
 * are "other" characters. In a vocabulary of Gemma's kind U+2581 in a text is a space. */
#ifndef RATOON_TEXT_TOKENIZER_TOKENIZER_H
#define RATOON_TEXT_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "format/gguf.h"

typedef struct Tokenizer Tokenizer;

enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER, TOKEN_UNUSED, TOKEN_BYTE };

/* Reads the tokenizer.ggml.* keys. ST_END without a message: the file has no tokenizer (or "no_vocab"). The result
 * never changes and may be used by several threads; every call has its own scratch memory. */
Status tokenizer_open(Tokenizer **out, const Gguf *g, Error *err);
void   tokenizer_close(Tokenizer *t);

int32_t tokenizer_size(const Tokenizer *t);                    /* entries of the token list */
int32_t tokenizer_bos(const Tokenizer *t);                     /* -1: none */
int32_t tokenizer_eos(const Tokenizer *t);
int32_t tokenizer_mask(const Tokenizer *t);                    /* tokenizer.ggml.mask_token_id, -1: none */
int32_t tokenizer_unk(const Tokenizer *t);
int32_t tokenizer_pad(const Tokenizer *t);
/* Tokens to fill in text with: before the part in front of the gap, before the part behind it, before what is to be
 * filled in; before a project's name, before a file's name. -1: none. */
typedef enum { FIM_PRE, FIM_SUF, FIM_MID, FIM_REP, FIM_SEP, FIM_MARKS } FimMark;
int32_t tokenizer_fim(const Tokenizer *t, FimMark mark);
bool    tokenizer_add_bos(const Tokenizer *t);
bool    tokenizer_is_end(const Tokenizer *t, int32_t id); /* ends generation (spec tokenizer.md section 8) */
int32_t tokenizer_find(const Tokenizer *t, const char *s, size_t n);   /* id of exactly this text, special or not; -1 */
int32_t tokenizer_type(const Tokenizer *t, int32_t id);   /* TOKEN_*; 0 if id is out of range */
uint64_t tokenizer_hash(const Tokenizer *t);              /* over tokens, types, merges and pre */
const char *tokenizer_chat_template(const Tokenizer *t, size_t *n);    /* NULL: none */

typedef struct { size_t at, n; } TextSpan;         /* n bytes of a text from byte `at` */

typedef struct {
    bool add_special;                              /* put BOS in front if the file asks for it */
    bool one_bos;                                  /* but not if the text begins with it */
    bool parse_special;                   /* control tokens in the text become their ids; user-defined ones always do */
    bool nfc;                                      /* normalise to NFC first (utf8proc) */
    const TextSpan *client;                        /* [n_client] ascending, not overlapping: bytes that came from
                                                    * a client; a special token of any type that touches one is
                                                    * plain text */
    size_t n_client;
} TokenizeOptions;

/* Returns the number of tokens of the text and writes at most cap of them to out (like snprintf). *status: ST_MEMORY
 * or ST_ARG (text over 1 GiB); may be NULL. */
size_t tokenizer_encode(const Tokenizer *t, int32_t *out, size_t cap, const char *s, size_t n, TokenizeOptions o,
                        Status *status);

/* Bytes of one token: for normal tokens what their spelling stands for, for user-defined tokens their text, for control
 * and unknown tokens their text if `special`, else nothing. Valid as long as t. Ids out of range give nothing. */
const char *tokenizer_bytes(const Tokenizer *t, int32_t id, bool special, size_t *n);

/* The text of n ids, made valid UTF-8 (bad bytes become U+FFFD); returns its length and writes at most cap bytes. */
size_t tokenizer_decode(const Tokenizer *t, char *out, size_t cap, const int32_t *ids, size_t n, bool special);

/* Streaming: bytes go in, whole characters come out; an incomplete tail of at most 3 bytes waits. */
typedef struct { uint8_t tail[4]; int32_t n; } Utf8Stream;
/* Writes the complete characters to out (bad bytes as U+FFFD) and returns their length; out needs room for 3 * (n +
 * 4) bytes. */
size_t utf8_stream(Utf8Stream *u, char *out, const char *bytes, size_t n);
size_t utf8_stream_end(Utf8Stream *u, char *out);              /* flushes the tail as U+FFFD */

#endif
