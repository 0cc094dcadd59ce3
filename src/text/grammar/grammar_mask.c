#include "text/grammar/grammar_mask.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "text/grammar/grammar_automaton.h"

/* A node of the trie, in preorder with children ordered by byte: its subtree is [i, end), and the tokens that end in it
 * are token[first, node[end].first), the node's own first. */
typedef struct { uint32_t end, first, below; uint16_t depth; uint8_t byte; } TrieNode;

/* Summary of the tokens below a node (itself at the end of a character), kept for subtrees that are large enough: a
 * state that allows all of it need not visit the subtree. whole: every token is well formed and ends at the end of a
 * character. */
typedef struct { uint64_t ascii[2]; uint16_t chars; bool wide, whole; } TrieBelow;
enum { BELOW_NONE = UINT32_MAX, BELOW_WORTH = 6 };

struct TokenTrie {
    TrieNode  *node; uint32_t n;                   /* [n + 1]: node 0 is the root, node n only ends the lists */
    TrieBelow *below; uint32_t n_below;
    int32_t   *token;                              /* [n_tokens] sorted by their bytes */
    uint32_t   n_tokens;
    int32_t   *end; int32_t n_end;                 /* end-of-generation tokens */
    uint32_t   child[256];                         /* the root's children by byte; 0: none */
    char      *bytes; size_t *at;                  /* bytes: a copy of all byte strings; at: [n_vocab + 1] */
    int32_t    n_vocab, depth_max;
};

/* ---- the tree ---- */

static int by_bytes(const void *a, const void *b, void *ud)
{
    const TokenTrie *t = ud;
    int32_t x = *(const int32_t *) a, y = *(const int32_t *) b;
    size_t nx = t->at[x + 1] - t->at[x], ny = t->at[y + 1] - t->at[y];
    int c = memcmp(t->bytes + t->at[x], t->bytes + t->at[y], nx < ny ? nx : ny);
    if (c) return c;
    return nx != ny ? (nx > ny) - (nx < ny) : (x > y) - (x < y);
}

/* The token's bytes, or its mark's bytes (*mark true). */
static const char *token_bytes(const TokenSource *from, int32_t id, size_t *n, bool *mark)
{
    const char *s = from->mark ? from->mark(from->ud, id, n) : NULL;
    *mark = s != NULL;
    if (s) return s;
    *n = 0;
    return from->ends(from->ud, id) ? "" : from->bytes(from->ud, id, n);
}

enum { NO_CHARACTER = 0xc0 };                      /* a byte that is part of no character */

static Status copy_tokens(TokenTrie *t, const TokenSource *from, Error *err)
{
    size_t total = 0, n;
    bool mark;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        token_bytes(from, id, &n, &mark);
        if (n > UINT16_MAX || !check_add(&total, total, n) || total > UINT32_MAX / 2)
            return fail(err, ST_UNSUPPORTED, "grammar: token %d has %zu bytes, or all have more than 2 GiB; expected "
                        "at most 65535 each", id, n);
    }
    t->bytes = malloc(total + 1);
    t->at = malloc(((size_t) t->n_vocab + 1) * sizeof *t->at);
    t->token = malloc(((size_t) t->n_vocab + 1) * sizeof *t->token);
    t->end = malloc(((size_t) t->n_vocab + 1) * sizeof *t->end);
    t->node = malloc((total + 2) * sizeof *t->node);
    if (!t->bytes || !t->at || !t->token || !t->end || !t->node)
        return fail(err, ST_MEMORY, "grammar: no memory for the tree of %d tokens", t->n_vocab);
    total = 0;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const char *s = token_bytes(from, id, &n, &mark);
        t->at[id] = total;
        if (!mark && from->ends(from->ud, id)) t->end[t->n_end++] = id;
        if (n == 0) continue;
        memcpy(t->bytes + total, s, n);
        for (size_t i = total; !mark && i < total + n; i++)
            if ((uint8_t) t->bytes[i] >= MARK_BYTE) t->bytes[i] = (char) NO_CHARACTER;
        total += n;
        t->token[t->n_tokens++] = id;
    }
    t->at[t->n_vocab] = total;
    return ST_OK;
}

/* Adds the sorted tokens: each shares a prefix with the one before it; the rest becomes new nodes. */
static void grow_tree(TokenTrie *t, uint32_t *open)
{
    size_t depth = 0;
    t->node[0] = (TrieNode) { .below = BELOW_NONE };
    t->n = 1;
    open[0] = 0;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        const char *s = t->bytes + t->at[t->token[i]], *before = i ? t->bytes + t->at[t->token[i - 1]] : "";
        size_t n = t->at[t->token[i] + 1] - t->at[t->token[i]], same = 0;
        while (same < depth && same < n && s[same] == before[same]) same++;
        while (depth > same) t->node[open[depth--]].end = t->n;
        while (depth < n) {
            uint8_t byte = (uint8_t) s[depth++];
            if (depth == 1) t->child[byte] = t->n;
            open[depth] = t->n;
            t->node[t->n++] = (TrieNode) { .first = i, .below = BELOW_NONE, .depth = (uint16_t) depth, .byte = byte };
        }
        if ((int32_t) depth > t->depth_max) t->depth_max = (int32_t) depth;
    }
    while (depth > 0) t->node[open[depth--]].end = t->n;
    t->node[0].end = t->n;
    t->node[t->n] = (TrieNode) { .end = t->n, .first = t->n_tokens };
}

static bool owns_token(const TokenTrie *t, uint32_t i) { return i > 0 && t->node[i].first < t->node[i + 1].first; }

/* A node's position within its character: bytes still to come, or -1 if the path to it is not well formed. lead: the
 * character's first byte. */
typedef struct { int8_t left; uint8_t lead; } InChar;

static InChar in_char(InChar up, uint8_t byte)
{
    static const InChar bad = { -1, 0 };
    if (up.left < 0) return bad;
    if (up.left == 0) {
        if (byte < 0x80) return (InChar) { 0, 0 };
        if (byte < 0xc2 || byte > 0xf4) return bad;
        return (InChar) { (int8_t) (byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3), byte };
    }
    uint8_t lo = up.lead == 0xe0 ? 0xa0 : up.lead == 0xf0 ? 0x90 : 0x80,
            hi = up.lead == 0xed ? 0x9f : up.lead == 0xf4 ? 0x8f : 0xbf;
    if (byte < lo || byte > hi) return bad;
    return (InChar) { (int8_t) (up.left - 1), 0 };  /* only the second byte depends on the first */
}

/* Goes backwards, so that a node's children are known before it. all: scratch memory, one TrieBelow per node. */
static bool describe(TokenTrie *t, InChar *in, TrieBelow *all)
{
    in[0] = (InChar) { 0, 0 };
    for (uint32_t i = 0; i < t->n; i++)
        for (uint32_t c = i + 1; c < t->node[i].end; c = t->node[c].end) in[c] = in_char(in[i], t->node[c].byte);
    for (uint32_t i = t->n; i-- > 0;) {
        TrieBelow b = { .whole = true };
        for (uint32_t c = i + 1; c < t->node[i].end; c = t->node[c].end) {
            const TrieBelow *k = &all[c];
            uint8_t byte = t->node[c].byte;
            uint16_t chars = (uint16_t) (k->chars + (byte < 0x80 || byte >= 0xc0));
            if (byte < 0x80) b.ascii[byte / 64] |= 1ull << byte % 64;
            else b.wide = true;
            b.ascii[0] |= k->ascii[0];
            b.ascii[1] |= k->ascii[1];
            b.wide |= k->wide;
            b.whole &= k->whole && in[c].left >= 0 && !(in[c].left > 0 && owns_token(t, c));
            if (chars > b.chars) b.chars = chars;
        }
        all[i] = b;
        if (in[i].left == 0 && b.whole && t->node[i].end - i > BELOW_WORTH) t->n_below++;
    }
    t->below = malloc((t->n_below + 1) * sizeof *t->below);
    if (!t->below) return false;
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if (in[i].left == 0 && all[i].whole && t->node[i].end - i > BELOW_WORTH) {
            t->node[i].below = n;
            t->below[n++] = all[i];
        }
    return true;
}

Status token_trie_open(TokenTrie **out, int32_t n_vocab, const TokenSource *from, Error *err)
{
    *out = NULL;
    if (n_vocab < 1 || n_vocab > 1 << 24)
        return fail(err, ST_ARG, "grammar: a vocabulary of %d tokens, expected 1 to %d", n_vocab, 1 << 24);
    TokenTrie *t = calloc(1, sizeof *t);
    if (!t) return fail(err, ST_MEMORY, "grammar: out of memory");
    t->n_vocab = n_vocab;
    Status st = copy_tokens(t, from, err);
    uint32_t *open = malloc(((size_t) UINT16_MAX + 2) * sizeof *open);
    if (st == ST_OK && open) {
        qsort_r(t->token, t->n_tokens, sizeof *t->token, by_bytes, t);
        grow_tree(t, open);
        TrieNode *fit = realloc(t->node, ((size_t) t->n + 1) * sizeof *fit);
        if (fit) t->node = fit;
    }
    InChar *in = malloc(((size_t) t->n + 1) * sizeof *in);
    TrieBelow *all = malloc(((size_t) t->n + 1) * sizeof *all);
    if (st == ST_OK && (!open || !in || !all || !describe(t, in, all)))
        st = fail(err, ST_MEMORY, "grammar: no memory for the tree of %d tokens", n_vocab);
    free(open);
    free(in);
    free(all);
    if (st != ST_OK) token_trie_close(t);
    else *out = t;
    return st;
}

void token_trie_close(TokenTrie *t)
{
    if (!t) return;
    free(t->node);
    free(t->below);
    free(t->token);
    free(t->end);
    free(t->bytes);
    free(t->at);
    free(t);
}

size_t token_trie_bytes(const TokenTrie *t)
{
    return sizeof *t + ((size_t) t->n + 1) * sizeof *t->node + t->n_below * sizeof *t->below +
           (size_t) t->n_tokens * sizeof *t->token + t->at[t->n_vocab] + ((size_t) t->n_vocab + 1) * sizeof *t->at;
}

/* ---- masks ---- */

/* state STATE_DEAD: free slot; empty: no token allowed but end tokens; full: every token */
typedef struct { uint32_t state; uint64_t used; bool empty, full; } Slot;

struct GrammarMasks {
    Automaton *a;
    const TokenTrie *t;
    uint32_t  *walk; StateHolder walked;    /* [depth_max + 2] a walk's state at every depth; [0]: its start */
    uint32_t  *bits; size_t words;          /* [slots][words] */
    Slot      *slot; uint32_t n_slots;
    uint64_t   clock, asked, made, most;
    bool       endless;
};

static void on_moved(void *ud, uint32_t tag, uint32_t state)
{
    ((GrammarMasks *) ud)->slot[tag - 1].state = state;
}

static void allow(uint32_t *bits, const TokenTrie *t, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) bits[t->token[i] / 32] |= 1u << t->token[i] % 32;
}

/* All tokens below may follow if the state allows a long enough run of a class that contains all their characters. */
static bool all_below(const Automaton *a, uint32_t state, const TrieBelow *b)
{
    uint32_t n;
    const CharClass *c = automaton_run(a, state, &n);
    return c && b->chars <= n && !(b->ascii[0] & ~c->first[0]) && !(b->ascii[1] & ~c->first[1]) &&
           (!b->wide || c->wide);
}

/* Walks one subtree of the root, whose first byte is allowed. */
static void walk_from(GrammarMasks *m, uint32_t *bits, uint32_t i)
{
    const TokenTrie *t = m->t;
    for (uint32_t end = t->node[i].end; i < end && automaton_spent(m->a) <= MASK_STEPS_MAX;) {
        const TrieNode *v = &t->node[i];
        uint32_t *at = &m->walk[v->depth];
        m->walked.n = (size_t) v->depth + 1;
        *at = STATE_DEAD;
        automaton_step(m->a, at, at - 1, v->byte);
        if (*at == STATE_DEAD) {
            i = v->end;
            continue;
        }
        if (v->below != BELOW_NONE && all_below(m->a, *at, &t->below[v->below])) {
            allow(bits, t, v->first, t->node[v->end].first);
            i = v->end;
            continue;
        }
        allow(bits, t, v->first, t->node[++i].first);
    }
}

/* Walks the whole tree from walk[0]. Returns false if it takes more than MASK_STEPS_MAX. */
static bool walk_all(GrammarMasks *m, uint32_t *bits)
{
    const TokenTrie *t = m->t;
    memset(bits, 0, m->words * sizeof *bits);
    automaton_count(m->a);
    for (uint32_t b = 0; b < 256; b++)
        if (t->child[b] && automaton_bytes(m->a, m->walk[0])[b / 64] >> b % 64 & 1) walk_from(m, bits, t->child[b]);
    m->walked.n = 1;
    const uint64_t spent = automaton_spent(m->a);
    if (spent > m->most) m->most = spent;
    return spent <= MASK_STEPS_MAX;
}

/* Computes the mask of walk[0], in the least recently used slot. Returns NULL if it takes more than MASK_STEPS_MAX,
 * which must not depend on what was asked before. */
static const uint32_t *make_mask(GrammarMasks *m)
{
    const TokenTrie *t = m->t;
    uint32_t s = 0;
    for (uint32_t i = 1; i < m->n_slots && m->slot[s].state != STATE_DEAD; i++)
        if (m->slot[i].state == STATE_DEAD || m->slot[i].used < m->slot[s].used) s = i;
    if (m->slot[s].state != STATE_DEAD) automaton_set_tag(m->a, m->slot[s].state, 0);
    m->slot[s].state = STATE_DEAD;
    uint32_t *bits = m->bits + s * m->words;
    m->made++;
    bool good = walk_all(m, bits);
    for (int states = 0; states < 2 && automaton_lost(m->a); states++) {
        automaton_forget(m->a, states);            /* usually next states are all there was no room for */
        good = walk_all(m, bits);
    }
    if (!good) return NULL;
    bool any = false;
    for (size_t i = 0; i < m->words && !any; i++) any = bits[i] != 0;
    bool accepts = automaton_accepts(m->a, m->walk[0]), all = accepts && m->endless;
    for (int32_t i = 0; accepts && i < t->n_end; i++) bits[t->end[i] / 32] |= 1u << t->end[i] % 32;
    for (int32_t i = 0; accepts && m->endless && i < t->n_vocab; i++) {
        if (t->at[i] == t->at[i + 1]) bits[i / 32] |= 1u << i % 32;
        all &= bits[i / 32] >> i % 32 & 1;
    }
    m->slot[s] = (Slot) { m->walk[0], ++m->clock, !any, all };
    automaton_set_tag(m->a, m->walk[0], s + 1);
    return bits;
}

enum { MASKS_BYTES = 24 << 20 };

Status grammar_masks_open(GrammarMasks **out, const Grammar *g, const TokenTrie *t, size_t bytes, Error *err)
{
    *out = NULL;
    if (bytes == 0) bytes = MASKS_BYTES;
    size_t words = ((size_t) t->n_vocab + 31) / 32, states = bytes / 2;
    if (states < AUTOMATON_BYTES_MIN) states = AUTOMATON_BYTES_MIN;
    GrammarMasks *m = calloc(1, sizeof *m);
    if (!m) return fail(err, ST_MEMORY, "grammar: out of memory");
    m->t = t;
    m->words = words;
    m->n_slots = (uint32_t) (bytes / 2 / (words * sizeof *m->bits));
    if (m->n_slots < 4) m->n_slots = 4;
    if (m->n_slots > 4096) m->n_slots = 4096;
    m->walk = calloc((size_t) t->depth_max + 2, sizeof *m->walk);
    m->bits = malloc(m->n_slots * words * sizeof *m->bits);
    m->slot = calloc(m->n_slots, sizeof *m->slot);
    Status st = m->walk && m->bits && m->slot
                ? automaton_open(&m->a, g, states, err)
                : fail(err, ST_MEMORY, "grammar: no memory for %zu bytes of masks", bytes);
    if (st != ST_OK) {
        grammar_masks_close(m);
        return st;
    }
    m->walked = (StateHolder) { .id = m->walk, .n = 1 };
    automaton_hold(m->a, &m->walked);
    automaton_on_moved(m->a, on_moved, m);
    *out = m;
    return ST_OK;
}

void grammar_masks_endless(GrammarMasks *m) { m->endless = true; }

void grammar_masks_close(GrammarMasks *m)
{
    if (!m) return;
    automaton_close(m->a);
    free(m->walk);
    free(m->bits);
    free(m->slot);
    free(m);
}

void grammar_masks_stats(const GrammarMasks *m, GrammarMasksStats *out)
{
    *out = (GrammarMasksStats) { m->asked, m->made, m->most, automaton_states(m->a) };
}

/* ---- texts ---- */

/* state[i]: after i tokens. Only the last one is sure to be known; an earlier one may have to be recomputed from those
 * before it. */
struct GrammarText {
    GrammarMasks *m;
    int32_t    *token, n, n_max;
    bool        spent;                             /* its last mask took more than MASK_STEPS_MAX */
    uint32_t   *state;
    StateHolder held;
};

Status grammar_text_open(GrammarText **out, GrammarMasks *m, int32_t n_max, Error *err)
{
    *out = NULL;
    if (n_max < 0 || n_max > 1 << 26)
        return fail(err, ST_ARG, "grammar: a text of %d tokens, expected at most %d", n_max, 1 << 26);
    GrammarText *x = calloc(1, sizeof *x);
    if (x) {
        x->token = malloc(((size_t) n_max + 1) * sizeof *x->token);
        x->state = malloc(((size_t) n_max + 1) * sizeof *x->state);
    }
    if (!x || !x->token || !x->state) {
        if (x) free(x->token), free(x->state);
        free(x);
        return fail(err, ST_MEMORY, "grammar: no memory for a text of %d tokens", n_max);
    }
    x->m = m;
    x->n_max = n_max;
    x->state[0] = automaton_start(m->a);
    x->held = (StateHolder) { .id = x->state, .n = 1 };
    automaton_hold(m->a, &x->held);
    *out = x;
    return ST_OK;
}

void grammar_text_close(GrammarText *x)
{
    if (!x) return;
    automaton_let_go(x->m->a, &x->held);
    free(x->token);
    free(x->state);
    free(x);
}

static bool is_end(const TokenTrie *t, int32_t token)
{
    for (int32_t i = 0; i < t->n_end; i++)
        if (t->end[i] == token) return true;
    return false;
}

/* Advances walk[0] by one token. */
static void walk_token(GrammarMasks *m, int32_t token)
{
    const TokenTrie *t = m->t;
    uint32_t *s = &m->walk[0];
    if (*s == STATE_ENDED || *s == STATE_DEAD) return;
    if (token < 0 || token >= t->n_vocab) *s = STATE_DEAD;
    else if (m->endless && t->at[token] == t->at[token + 1]) *s = automaton_accepts(m->a, *s) ? *s : STATE_DEAD;
    else if (is_end(t, token)) *s = automaton_accepts(m->a, *s) ? STATE_ENDED : STATE_DEAD;
    else if (t->at[token] == t->at[token + 1]) *s = STATE_DEAD;
    else for (size_t i = t->at[token]; i < t->at[token + 1]; i++) automaton_step(m->a, s, s, (uint8_t) t->bytes[i]);
}

static void walk_path(GrammarText *x, const int32_t *path, size_t n)
{
    x->m->walk[0] = x->state[x->n];
    for (size_t i = 0; i < n; i++) walk_token(x->m, path[i]);
}

bool grammar_text_mask(GrammarText *x, const int32_t *path, size_t n, uint32_t *bits)
{
    GrammarMasks *m = x->m;
    walk_path(x, path, n);
    if (m->walk[0] == STATE_ENDED) return false;
    if (m->walk[0] == STATE_DEAD) {
        memset(bits, 0, m->words * sizeof *bits);
        return true;
    }
    m->asked++;
    x->spent = false;
    uint32_t tag = automaton_tag(m->a, m->walk[0]);
    const uint32_t *known = tag ? m->bits + (tag - 1) * m->words : make_mask(m);
    if (!known) {
        x->spent = true;
        memset(bits, 0, m->words * sizeof *bits);
        return true;
    }
    tag = automaton_tag(m->a, m->walk[0]);
    m->slot[tag - 1].used = ++m->clock;
    if (m->slot[tag - 1].full) return false;
    if (m->slot[tag - 1].empty && m->t->n_end == 0 && automaton_accepts(m->a, m->walk[0])) return false;
    memcpy(bits, known, m->words * sizeof *bits);
    return true;
}

bool grammar_text_append(GrammarText *x, int32_t token)
{
    if (x->n == x->n_max) return false;
    walk_path(x, &token, 1);
    if (x->m->walk[0] == STATE_DEAD || x->state[x->n] == STATE_ENDED) return false;
    x->token[x->n++] = token;
    x->state[x->n] = x->m->walk[0];
    x->held.n = (size_t) x->n + 1;
    x->held.kept_from = (size_t) x->n;
    return true;
}

void grammar_text_keep(GrammarText *x, int32_t n)
{
    if (n < 0 || n >= x->n) return;
    int32_t known = n;
    while (known > 0 && x->state[known] == STATE_UNKNOWN) known--;
    x->m->walk[0] = known > 0 ? x->state[known] : automaton_start(x->m->a);
    for (int32_t i = known; i < n; i++) walk_token(x->m, x->token[i]);
    x->n = n;
    x->state[n] = x->m->walk[0];
    x->held.n = (size_t) n + 1;
    x->held.kept_from = (size_t) n;
}

int32_t grammar_text_length(const GrammarText *x) { return x->n; }

bool grammar_text_may_end(const GrammarText *x)
{
    return automaton_accepts(x->m->a, x->state[x->n]);
}

bool grammar_text_done(const GrammarText *x)
{
    return grammar_text_may_end(x) && !automaton_goes_on(x->m->a, x->state[x->n]);
}

const char *grammar_text_trouble(const GrammarText *x)
{
    if (x->spent)
        return "the grammar has too many readings here: finding the tokens that may follow takes more than "
               "1048576 steps";
    return automaton_trouble(x->m->a);
}

bool grammar_text_spent(const GrammarText *x) { return x->spent; }
