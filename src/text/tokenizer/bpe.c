#include "text/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/grow.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/utf8.h"

/* A piece begins at the byte with its node's index and ends where the next piece begins. Other nodes are unused. */
typedef struct BpeNode {
    int32_t  prev, next;                           /* -1 before the first; number of bytes after the last */
    int32_t  id;
    uint32_t rank;                                 /* of the merge with the next piece */
} BpeNode;

Status bpe_init(Bpe *b, const Vocab *v, size_t n_merges, bool whole_first, int32_t unknown)
{
    b->vocab = v;
    b->whole_first = whole_first;
    b->unknown = unknown;
    for (int32_t i = 0; i < 256; i++) {
        char byte = (char) i;
        int32_t id = vocab_find(v, &v->merged, &byte, 1);
        b->byte_id[i] = id >= 0 && v->type[id] != TOKEN_CONTROL && v->type[id] != TOKEN_UNKNOWN ? id : -1;
    }
    for (int32_t i = 0; i < v->n; i++) {           /* "<0xHH>" tokens stand in for bytes without a normal token */
        if (v->type[i] != TOKEN_BYTE) continue;
        uint8_t byte = (uint8_t) v->bytes[v->at[i]];
        if (b->byte_id[byte] < 0) b->byte_id[byte] = i;
    }
    size_t slots = 16;
    while (slots < 2 * n_merges) slots *= 2;
    b->mask = slots - 1;
    b->merge = malloc(slots * sizeof *b->merge);
    if (!b->merge) return ST_MEMORY;
    for (size_t i = 0; i < slots; i++) b->merge[i].rank = BPE_NO_RANK;
    return ST_OK;
}

void bpe_free(Bpe *b)
{
    free(b->merge);
    b->merge = NULL;
}

static BpeMerge *merge_slot(const Bpe *b, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t) (uint32_t) left << 32 | (uint32_t) right;
    uint64_t h = pair * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
    size_t slot = h & b->mask;
    while (b->merge[slot].rank != BPE_NO_RANK && b->merge[slot].pair != pair) slot = (slot + 1) & b->mask;
    return &b->merge[slot];
}

void bpe_add(Bpe *b, uint32_t rank, int32_t left, int32_t right, int32_t id)
{
    BpeMerge *m = merge_slot(b, left, right);
    if (m->rank != BPE_NO_RANK) return;
    *m = (BpeMerge) { (uint64_t) (uint32_t) left << 32 | (uint32_t) right, rank, id };
}

static Status heap_push(BpeScratch *s, uint64_t key)
{
    if (!grow_to(&s->heap, &s->heap_cap, s->heap_n + 1, 256, sizeof *s->heap)) return ST_MEMORY;
    size_t i = s->heap_n++;
    while (i > 0 && s->heap[(i - 1) / 2] > key) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = key;
    return ST_OK;
}

static uint64_t heap_pop(BpeScratch *s)
{
    uint64_t top = s->heap[0], last = s->heap[--s->heap_n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->heap_n) break;
        if (child + 1 < s->heap_n && s->heap[child + 1] < s->heap[child]) child++;
        if (s->heap[child] >= last) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* Looks up the pair (at, its next) and queues it if it can merge. Sorted by rank, then by place: the order in which
 * merges apply. */
static Status pair_note(const Bpe *b, BpeScratch *s, int32_t at, int32_t end)
{
    BpeNode *x = &s->node[at];
    x->rank = BPE_NO_RANK;
    if (x->next == end || x->id < 0 || s->node[x->next].id < 0) return ST_OK;
    x->rank = merge_slot(b, x->id, s->node[x->next].id)->rank;
    return x->rank == BPE_NO_RANK ? ST_OK : heap_push(s, (uint64_t) x->rank << 32 | (uint32_t) at);
}

/* Writes one piece. Text never becomes a special token by merging (special tokens were cut out before, or were not
 * allowed there): such a piece, and a byte without a token, is written byte by byte. */
static void piece_put(const Bpe *b, TokenSink *sink, int32_t id, const char *bytes, size_t n)
{
    if (n > 1 && id >= 0 && b->vocab->type[id] == TOKEN_NORMAL) {
        sink_put(sink, id);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        int32_t byte = b->byte_id[(uint8_t) bytes[i]];
        if (byte < 0) byte = b->unknown;
        if (byte >= 0) sink_put(sink, byte);
    }
}

/* Whether a pre-token that is a token is taken whole: always in some vocabularies; a run of line breaks where merging
 * begins with characters. */
static bool goes_whole(const Bpe *b, const char *bytes, size_t n)
{
    if (n > VOCAB_TOKEN_BYTES_MAX) return false;
    return b->whole_first || (b->vocab->spelling == SPELL_SPACES && bytes[0] == '\n');
}

/* The pieces to begin with; of a character without a token the id is -1, and it merges with nothing. */
static void pieces_begin(const Bpe *b, BpeNode *node, const char *bytes, int32_t end)
{
    const Vocab *v = b->vocab;
    for (int32_t i = 0, before = -1, next; i < end; before = i, i = next) {
        uint32_t cp;
        size_t len = v->spelling == SPELL_SPACES ? utf8_next(bytes + i, (size_t) (end - i), &cp) : 1;
        int32_t id = len > 1 ? vocab_find(v, &v->merged, bytes + i, len) : b->byte_id[(uint8_t) bytes[i]];
        next = i + (int32_t) (len > 1 ? len : 1);  /* a bad byte stands alone */
        node[i] = (BpeNode) { before, next, id, BPE_NO_RANK };
    }
}

Status bpe_encode(const Bpe *b, BpeScratch *s, TokenSink *sink, const char *bytes, size_t n)
{
    if (n == 1) {
        piece_put(b, sink, -1, bytes, 1);
        return ST_OK;
    }
    if (goes_whole(b, bytes, n)) {
        int32_t id = vocab_find(b->vocab, &b->vocab->merged, bytes, n);
        if (id >= 0 && b->vocab->type[id] == TOKEN_NORMAL) {
            sink_put(sink, id);
            return ST_OK;
        }
    }
    if (s->node_cap < n) {
        size_t size;
        BpeNode *larger = check_mul(&size, n, sizeof *larger) ? realloc(s->node, size) : NULL;
        if (!larger) return ST_MEMORY;
        s->node = larger;
        s->node_cap = n;
    }
    BpeNode *node = s->node;
    int32_t end = (int32_t) n;
    s->heap_n = 0;
    pieces_begin(b, node, bytes, end);
    for (int32_t i = 0; i < end; i = node[i].next) TRY(pair_note(b, s, i, end));

    while (s->heap_n > 0) {
        uint64_t top = heap_pop(s);
        int32_t at = (int32_t) (top & UINT32_MAX);
        /* Outdated if the piece is gone (rank erased) or either side has grown (then the pair has another rank: a rank
         * belongs to one pair of ids, and the ids at a place never recur). */
        if (node[at].rank != (uint32_t) (top >> 32)) continue;
        int32_t gone = node[at].next;
        node[at].id = merge_slot(b, node[at].id, node[gone].id)->id;
        node[at].next = node[gone].next;
        node[gone].rank = BPE_NO_RANK;
        if (node[at].next != end) node[node[at].next].prev = at;
        TRY(pair_note(b, s, at, end));
        if (node[at].prev >= 0) TRY(pair_note(b, s, node[at].prev, end));
    }
    for (int32_t i = 0; i < end; i = node[i].next)
        piece_put(b, sink, node[i].id, bytes + i, (size_t) (node[i].next - i));
    return ST_OK;
}

void bpe_scratch_free(BpeScratch *s)
{
    free(s->node);
    free(s->heap);
    *s = (BpeScratch) { 0 };
}
