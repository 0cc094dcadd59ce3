/* bpe.h - byte-pair merging of one pre-token.
 * Initially each byte, or each character (VocabSpelling), is one piece; repeatedly the adjacent pair that is earliest
 * in the merge list becomes one piece, the leftmost if it occurs twice. Pieces are token ids, so a merge is looked up
 * by two integers. A pre-token of n bytes takes O(n log n): the pieces form a linked list and a heap holds (rank,
 * place); its outdated entries are skipped when they come up. */
#ifndef RATOON_TEXT_TOKENIZER_BPE_H
#define RATOON_TEXT_TOKENIZER_BPE_H

#include "text/tokenizer/vocab.h"

typedef struct {
    uint64_t pair;                                 /* left id << 32 | right id */
    uint32_t rank;                                 /* BPE_NO_RANK: free slot */
    int32_t  id;                                   /* the merged token */
} BpeMerge;

#define BPE_NO_RANK UINT32_MAX

typedef struct {
    const Vocab *vocab;
    int32_t   byte_id[256];                        /* token of each single byte; -1: none in the vocabulary */
    int32_t   unknown;                             /* stands for bytes without a token; -1: they are dropped, as in
                                                    * the reference */
    bool      whole_first;                         /* a pre-token that is a token is not split ("ignore_merges") */
    BpeMerge *merge;                               /* [mask + 1] */
    size_t    mask;
} Bpe;

/* Scratch memory of one thread; zero-initialise; grows as needed. */
typedef struct { struct BpeNode *node; size_t node_cap; uint64_t *heap; size_t heap_n, heap_cap; } BpeScratch;

/* Receives the ids; as with snprintf, n counts all of them and out takes the first cap. */
typedef struct { int32_t *out; size_t cap, n; } TokenSink;

static inline void sink_put(TokenSink *k, int32_t id)
{
    if (k->n < k->cap) k->out[k->n] = id;
    k->n++;
}

Status bpe_init(Bpe *b, const Vocab *v, size_t n_merges, bool whole_first, int32_t unknown);
void   bpe_free(Bpe *b);

/* Adds the merge of rank `rank`: tokens left and right become token id. Of equal pairs the first one counts. */
void bpe_add(Bpe *b, uint32_t rank, int32_t left, int32_t right, int32_t id);

/* Writes the ids of the n < 2^31 bytes of one pre-token. ST_MEMORY. */
Status bpe_encode(const Bpe *b, BpeScratch *s, TokenSink *sink, const char *bytes, size_t n);
void   bpe_scratch_free(BpeScratch *s);

#endif
