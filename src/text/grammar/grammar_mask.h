/* grammar_mask.h - which tokens a grammar allows next.
 * TokenTrie: the vocabulary's byte strings as a trie, built once per engine. GrammarMasks: a grammar's automaton and
 * the token masks of its states, computed lazily in memory of a fixed size; used by one thread at a time, shared by
 * all texts that follow this grammar. GrammarText: one text with its state after every token. A mask depends only on
 * the text and the path after it, so trees, shortened blocks and rollback need nothing special. */
#ifndef RATOON_TEXT_GRAMMAR_GRAMMAR_MASK_H
#define RATOON_TEXT_GRAMMAR_GRAMMAR_MASK_H

#include "text/grammar/grammar.h"

/* bytes: the bytes of one token; none for tokens that stand for no text (control tokens). They must stay valid until
 * the trie has been built. ends: true for end-of-generation tokens, which are allowed exactly where the grammar may
 * end.
 * mark: NULL, or returns the bytes by which a grammar recognises a token regardless of its text; NULL for tokens
 * that have none. Bytes from MARK_BYTE on are reserved for marks: no character contains them, and where other tokens
 * do, they are replaced by a byte that no grammar allows either. */
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

/* Upper limit on the work of finding the states for one mask (automaton_spent); it bounds how much one text can
 * delay the others in its batch. Schemas and grammars that people write need 46,000 at most with a vocabulary of
 * 152,000 tokens; this limit takes about 30 ms, up to four times that where states have to be forgotten on the way
 * (bench/lab_grammar). A mask that would exceed it allows nothing, whatever was asked before. */
enum { MASK_STEPS_MAX = 1 << 20 };

/* g and t must outlive the result. bytes: memory for states and masks together, 0: 24 MiB; what does not fit is
 * computed again when it is needed. */
typedef struct GrammarMasks GrammarMasks;
Status grammar_masks_open(GrammarMasks **out, const Grammar *g, const TokenTrie *t, size_t bytes, Error *err);
/* Call before the first text: tokens do not end the texts. Wherever a text may end, tokens without text (control
 * tokens, end tokens) are allowed and do not change the state. */
void   grammar_masks_endless(GrammarMasks *m);
void   grammar_masks_close(GrammarMasks *m);       /* after its texts have been closed */
typedef struct { uint64_t asked, made, most; size_t states; } GrammarMasksStats;     /* most: steps of one mask */
void   grammar_masks_stats(const GrammarMasks *m, GrammarMasksStats *out);

/* n_max: the most tokens the text may have. */
typedef struct GrammarText GrammarText;
Status grammar_text_open(GrammarText **out, GrammarMasks *m, int32_t n_max, Error *err);
void   grammar_text_close(GrammarText *x);

/* Sets one bit per allowed id for the token after the text and path, as rt_allow wants it. Returns false if any
 * token may come, or if the text has ended (by an end token, or because nothing can follow a complete text) and what
 * comes after it does not count. No bit is set where the grammar demands something that no token can produce. */
bool   grammar_text_mask(GrammarText *x, const int32_t *path, size_t n, uint32_t *bits);
/* Appends the token to the text. Returns false, without a change, if the grammar does not allow it or the text is
 * full. */
bool   grammar_text_append(GrammarText *x, int32_t token);
void   grammar_text_keep(GrammarText *x, int32_t n);           /* keeps only the first n tokens */
int32_t grammar_text_length(const GrammarText *x);
/* may_end: the text may end here. done: it must, since nothing can follow. */
bool   grammar_text_may_end(const GrammarText *x);
bool   grammar_text_done(const GrammarText *x);
const char *grammar_text_trouble(const GrammarText *x);     /* why no token is allowed although the grammar
                                                             * continues; NULL if there is no such problem */
bool   grammar_text_spent(const GrammarText *x);            /* the last mask was abandoned: it would have taken more
                                                             * than MASK_STEPS_MAX */

#endif
