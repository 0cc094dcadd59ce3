#include "text/tokenizer/special.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

static bool is_candidate(uint8_t type) { return type == TOKEN_USER || type == TOKEN_CONTROL || type == TOKEN_UNKNOWN; }

static int compare_text(const void *a, const void *b, void *vocab)
{
    const Vocab *v = vocab;
    int32_t x = *(const int32_t *) a, y = *(const int32_t *) b;
    size_t n, m;
    const char *s = vocab_bytes(v, x, &n), *t = vocab_bytes(v, y, &m);
    int c = memcmp(s, t, n < m ? n : m);
    if (c) return c;
    if (n != m) return n < m ? -1 : 1;
    return x < y ? -1 : x > y;
}

Status special_init(SpecialSet *set, const Vocab *v)
{
    *set = (SpecialSet) { .vocab = v };
    size_t n = 0;
    for (int32_t i = 0; i < v->n; i++) n += is_candidate(v->type[i]);
    set->id = malloc((n ? n : 1) * sizeof *set->id);
    if (!set->id) return ST_MEMORY;
    for (int32_t i = 0; i < v->n; i++) {           /* of equal texts the last id, as in the map */
        size_t len;
        const char *s = vocab_bytes(v, i, &len);
        if (is_candidate(v->type[i]) && vocab_find(v, &v->special, s, len) == i) set->id[set->n++] = i;
    }
    qsort_r(set->id, (size_t) set->n, sizeof *set->id, compare_text, (void *) (uintptr_t) v);
    int32_t k = 0;
    for (int32_t b = 0; b < 256; b++) {
        set->first[b] = k;
        while (k < set->n && (uint8_t) v->bytes[v->at[set->id[k]]] == b) k++;
    }
    set->first[256] = set->n;
    return ST_OK;
}

void special_free(SpecialSet *set)
{
    free(set->id);
    set->id = NULL;
}

/* A search in the sorted list: [lo, hi) are the tokens that begin with the first `depth` bytes of the text. */
typedef struct { int32_t lo, hi; size_t depth; } Walk;

static Walk walk_begin(const SpecialSet *set, char first)
{
    uint8_t b = (uint8_t) first;
    return (Walk) { set->first[b], set->first[b + 1], 1 };
}

/* The first of [lo, hi) whose byte at position depth is at least `byte`; all of them are longer than depth. */
static int32_t walk_bound(const SpecialSet *set, int32_t lo, int32_t hi, size_t depth, int32_t byte)
{
    const Vocab *v = set->vocab;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if ((uint8_t) v->bytes[v->at[set->id[mid]] + depth] < byte) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Index in set->id of the next longer token at s, which has n bytes left; -1: no more. */
static int32_t walk_next(const SpecialSet *set, Walk *w, const char *s, size_t n)
{
    const Vocab *v = set->vocab;
    while (w->lo < w->hi) {
        size_t len;
        const char *text = vocab_bytes(v, set->id[w->lo], &len);
        if (w->hi - w->lo == 1) {                  /* usually one is left: no need to go byte by byte */
            bool same = len <= n && memcmp(text + w->depth, s + w->depth, len - w->depth) == 0;
            w->depth = len;
            w->hi = w->lo;
            return same ? w->lo : -1;
        }
        if (len == w->depth) return w->lo++;
        if (w->depth == n) return -1;
        int32_t byte = (uint8_t) s[w->depth];
        w->lo = walk_bound(set, w->lo, w->hi, w->depth, byte);
        w->hi = walk_bound(set, w->lo, w->hi, w->depth, byte + 1);
        w->depth++;
    }
    return -1;
}

typedef struct {
    const SpecialSet *set;
    const char       *s;
    size_t            n;
    bool              control;
    const TextSpan   *client;
    size_t            n_client;
    uint8_t          *seen;                        /* [set->n] token is in `local`; allocated at the first overlap */
    int32_t          *local;                       /* [set->n] tokens in the stretch */
    SpecialHits       old, new;                    /* the stretch divided into found tokens and raw parts (id -1) */
} Scan;

static bool touches_client(const Scan *c, size_t at, size_t n)
{
    size_t lo = 0, hi = c->n_client;               /* finds the first span that ends after `at` */
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (c->client[mid].at + c->client[mid].n <= at) lo = mid + 1;
        else hi = mid;
    }
    while (lo < c->n_client && c->client[lo].n == 0) lo++;
    return lo < c->n_client && c->client[lo].at < at + n;
}

static bool is_taken(const Scan *c, int32_t id, size_t at, size_t n)
{
    return (c->control || c->set->vocab->type[id] == TOKEN_USER) && !touches_client(c, at, n);
}

static Status hit_put(SpecialHits *h, size_t at, size_t n, int32_t id)
{
    if (!grow_to(&h->hit, &h->cap, h->n + 1, 64, sizeof *h->hit)) return ST_MEMORY;
    h->hit[h->n++] = (SpecialHit) { at, n, id };
    return ST_OK;
}

static int compare_longest(const void *a, const void *b, void *scan)
{
    const Scan *c = scan;
    const size_t *at = c->set->vocab->at;
    int32_t x = c->set->id[*(const int32_t *) a], y = c->set->id[*(const int32_t *) b];
    size_t n = at[x + 1] - at[x], m = at[y + 1] - at[y];
    if (n != m) return n > m ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Cuts every occurrence of one token out of the raw parts of c->old, giving c->new. */
static Status cut_one(Scan *c, int32_t id)
{
    size_t len;
    const char *text = vocab_bytes(c->set->vocab, id, &len);
    c->new.n = 0;
    for (size_t i = 0; i < c->old.n; i++) {
        SpecialHit part = c->old.hit[i];
        size_t raw = part.at, from = part.at, end = part.at + part.n;
        while (part.id < 0 && end - from >= len) {
            const char *p = memmem(c->s + from, end - from, text, len);
            if (!p) break;
            size_t at = (size_t) (p - c->s);
            from = at + 1;
            if (!is_taken(c, id, at, len)) continue;
            if (at > raw) TRY(hit_put(&c->new, raw, at - raw, -1));
            TRY(hit_put(&c->new, at, len, id));
            raw = from = at + len;
        }
        if (part.id >= 0) TRY(hit_put(&c->new, part.at, part.n, part.id));
        else if (end > raw) TRY(hit_put(&c->new, raw, end - raw, -1));
    }
    SpecialHits swap = c->old;
    c->old = c->new;
    c->new = swap;
    return ST_OK;
}

/* Resolves a stretch [at, end) in which tokens overlap: cuts out each token that occurs there, longest first. */
static Status cut_stretch(Scan *c, SpecialHits *out, size_t at, size_t end)
{
    const SpecialSet *set = c->set;
    if (!c->seen) {
        c->seen = calloc((size_t) set->n, 1);
        c->local = malloc((size_t) set->n * sizeof *c->local);
        if (!c->seen || !c->local) return ST_MEMORY;
    }
    int32_t n_local = 0;
    for (size_t q = at; q < end; q++) {
        Walk w = walk_begin(set, c->s[q]);
        for (int32_t k; (k = walk_next(set, &w, c->s + q, end - q)) >= 0;) {
            if (c->seen[k]) continue;
            c->seen[k] = 1;
            c->local[n_local++] = k;
        }
    }
    qsort_r(c->local, (size_t) n_local, sizeof *c->local, compare_longest, c);
    c->old.n = 0;
    TRY(hit_put(&c->old, at, end - at, -1));
    for (int32_t i = 0; i < n_local; i++) TRY(cut_one(c, set->id[c->local[i]]));
    for (int32_t i = 0; i < n_local; i++) c->seen[c->local[i]] = 0;
    for (size_t i = 0; i < c->old.n; i++)
        if (c->old.hit[i].id >= 0) TRY(hit_put(out, c->old.hit[i].at, c->old.hit[i].n, c->old.hit[i].id));
    return ST_OK;
}

static Status scan_text(Scan *c, SpecialHits *out)
{
    for (size_t at = 0; at < c->n;) {
        size_t end = at, hits = 0;                 /* end of the stretch from here, and its number of tokens */
        int32_t id = -1;
        for (size_t q = at; q == at || q < end; q++) {
            Walk w = walk_begin(c->set, c->s[q]);
            for (int32_t k; (k = walk_next(c->set, &w, c->s + q, c->n - q)) >= 0;) {
                if (!is_taken(c, c->set->id[k], q, w.depth)) continue;
                if (q + w.depth > end) end = q + w.depth;
                id = c->set->id[k];
                hits++;
            }
        }
        if (hits == 1) TRY(hit_put(out, at, end - at, id));
        if (hits > 1) TRY(cut_stretch(c, out, at, end));
        at = hits ? end : at + 1;
    }
    return ST_OK;
}

Status special_scan(const SpecialSet *set, SpecialHits *out, const char *s, size_t n, bool control,
                    const TextSpan *client, size_t n_client)
{
    if (set->n == 0) return ST_OK;
    Scan c = { .set = set, .s = s, .n = n, .control = control, .client = client, .n_client = n_client };
    Status st = scan_text(&c, out);
    free(c.seen);
    free(c.local);
    free(c.old.hit);
    free(c.new.hit);
    return st;
}
