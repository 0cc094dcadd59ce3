/* grammar_mask.h - which tokens may come next, by a grammar.
 * TokenTrie: the vocabulary's byte strings as one tree, built once per engine. GrammarMasks: a grammar's automaton and the masks of its
 * states, found lazily in memory of a fixed size; used by one thread at a time, shared by all texts that follow this grammar.
 * GrammarText: one text, its state after every token; what a mask asks for is a function of the text and a path after it, so trees,
 * shortened blocks and going back need nothing special. */
#ifndef RATOON_TEXT_GRAMMAR_MASK_H
#define RATOON_TEXT_GRAMMAR_MASK_H

#include "text/grammar.h"

/* bytes: of one token, none for tokens that stand for no text (control tokens); the memory lives as long as the trie is being made.
 * ends: end-of-generation tokens, which may come exactly where the grammar may end.
 * mark: NULL, or the bytes by which a grammar knows a token all the same, NULL for tokens that it does not know so. Bytes from MARK_BYTE on are
 * those of marks alone: no character has them, and where other tokens do, they are replaced by one that no grammar allows either. */
enum { MARK_BYTE = 0xf5 };
typedef struct {
    void *ud;
    const char *(*bytes)(void *ud, int32_t id, size_t *n);
    bool (*ends)(void *ud, int32_t id);
    const char *(*mark)(void *ud, int32_t id, size_t *n);
} TokenSource;

typedef struct TokenTrie TokenTrie;
Status token_trie_open(TokenTrie **out, int32_t n_vocab, const TokenSource *from, Error *err);
void   token_trie_close(TokenTrie *t);
size_t token_trie_bytes(const TokenTrie *t);

/* Both must outlive the result. bytes: for states and masks together, 0: 24 MiB; what does not fit is found again when it is needed. */
typedef struct GrammarMasks GrammarMasks;
Status grammar_masks_open(GrammarMasks **out, const Grammar *g, const TokenTrie *t, size_t bytes, Error *err);
/* Before the first text: the texts are not ended by tokens. Wherever one may end, tokens that stand for nothing (control tokens, ends) may
 * come and change nothing. */
void   grammar_masks_endless(GrammarMasks *m);
void   grammar_masks_close(GrammarMasks *m);       /* after its texts */
typedef struct { uint64_t asked, made; size_t states; } GrammarMasksStats;
void   grammar_masks_stats(const GrammarMasks *m, GrammarMasksStats *out);

/* n_max: tokens that the text may have. */
typedef struct GrammarText GrammarText;
Status grammar_text_open(GrammarText **out, GrammarMasks *m, int32_t n_max, Error *err);
void   grammar_text_close(GrammarText *x);

/* One bit per id for the token after the text and path: allowed or not, as rt_allow wants it. False: any token may come, or the text has
 * ended (by an end token, or because no token can follow a whole text), and what comes after it does not count. No bit is set where the
 * grammar demands what no token can bring. */
bool   grammar_text_mask(GrammarText *x, const int32_t *path, size_t n, uint32_t *bits);
/* The token belongs to the text. False, and nothing has changed: the grammar does not allow it, or the text is full. */
bool   grammar_text_append(GrammarText *x, int32_t token);
void   grammar_text_keep(GrammarText *x, int32_t n);           /* only the first n tokens do */
int32_t grammar_text_length(const GrammarText *x);
/* The text may end here; it must, since nothing can follow. */
bool   grammar_text_may_end(const GrammarText *x);
bool   grammar_text_done(const GrammarText *x);
const char *grammar_text_trouble(const GrammarText *x);        /* NULL; or why no token is allowed although the grammar goes on */

#endif
