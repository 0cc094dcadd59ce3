/* kv_scores.h - scores of stored keys with integer codes, computed with integers.
 * A query is rounded once, block by block, to 16-bit integers: s = amax / 32639, u = rint(x * (32639 / amax)). The
 * error, 2^-16 of the block's largest value, is far below that of any key. Sums of code * u over a block are exact, so
 * their order is free, and
 *
 *     score = fma(d * s, (float) sum of code * u, score)
 *     score = fma(m * s, (float) sum of u, score)              then, for types with a minimum
 *
 * with blocks ascending. A panel of keys, sixteen positions, is processed at once. */
#ifndef RATOON_BACKEND_CPU_KV_SCORES_H
#define RATOON_BACKEND_CPU_KV_SCORES_H

#include <math.h>

#include "backend/cpu/kv_codes.h"

enum { KEY_LINES = CODE_COLS * KEY_PANEL / LINE }; /* of a block */

/* Tiles multiply two blocks by four queries at once, laid out as [first block][high of a query, low of it, ...] and
 * then [second block], each padded with zeros: storing a tile takes the same time however few sums it has. */
enum { QUERY_ROOM = BY_TILES ? 128 : 64 };
static inline bool in_pairs(int32_t each, int32_t blocks) { return BY_TILES && each == 4 && blocks % 2 == 0; }

/* Queries of some key/value heads. Each head has `each` places for them, the last of which may be empty; a block's
 * queries are side by side. */
typedef struct {
    int32_t  each, blocks;
    float   *scale, *sum;                       /* [kv heads, blocks, each] */
    uint8_t *code;                              /* [kv heads, blocks, each, QUERY_ROOM], as this level multiplies them:
                                                 * high bytes and then low ones, or words */
} IntQueries;

/* A head's keys in a panel. lines [blocks][KEY_LINES][LINE]; minima NULL: none; next and prefetch: what to prefetch
 * while the keys are multiplied. */
typedef struct { const uint8_t *scales, *minima, *lines, *next; size_t next_bytes; Prefetch *prefetch; } IntKeys;

/* Prefetches part c of `of` of what comes next. */
INLINE void prefetch_next(const IntKeys *k, int32_t c, int32_t of)
{
    const size_t part = k->next_bytes / (size_t) of;
    for (size_t at = part * (size_t) c; at < part * (size_t) (c + 1); at += LINE) __builtin_prefetch(k->next + at);
}

/* ---- queries ---- */

/* Block c of a head's queries. */
INLINE uint8_t *queries_at(const IntQueries *q, int32_t kv, int32_t c)
{
    return q->code + ((size_t) kv * (size_t) q->blocks + (size_t) c) * (size_t) q->each * QUERY_ROOM;
}

/* Puts a query's block in its place. */
static inline void put_query(const IntQueries *q, int32_t kv, int32_t c, int32_t i, const int16_t u[CODE_COLS])
{
    const bool pairs = in_pairs(q->each, q->blocks);
    uint8_t *to = pairs ? queries_at(q, kv, c & ~1) + (c & 1) * (512 + CODE_COLS) + 128 * i
                        : queries_at(q, kv, c) + 64 * i;
#if BYTE_NUMBERS
    int8_t high[CODE_COLS], low[CODE_COLS];
    for (int k = 0; k < CODE_COLS; k++) high[k] = (int8_t) ((u[k] + 128) >> 8), low[k] = (int8_t) u[k];
    memcpy(to, high, sizeof high);
    memcpy(to + (pairs ? 64 : CODE_COLS), low, sizeof low);
#else
    memcpy(to, u, 2 * CODE_COLS);
#endif
}

/* The queries are zero where nothing has been put. */
static void put_queries(const IntQueries *q, int32_t kv, int32_t i, const float *x)
{
    for (int32_t c = 0; c < q->blocks; c++, x += CODE_COLS) {
        size_t at = ((size_t) kv * (size_t) q->blocks + (size_t) c) * (size_t) q->each + (size_t) i;
        uint32_t most = 0;
        float amax;
        for (int k = 0; k < CODE_COLS; k++) {
            uint32_t bits;
            memcpy(&bits, &x[k], sizeof bits);
            bits &= 0x7fffffffu;
            most = bits > most ? bits : most;
        }
        memcpy(&amax, &most, sizeof amax);
        if (most >= 0x7f800000u) q->scale[at] = NAN;
        if (most >= 0x7f800000u || amax < 0x1p-100f) continue;
        float up = (float) KV_MOST / amax;
        int16_t u[CODE_COLS];
        int32_t sum = 0;
        for (int k = 0; k < CODE_COLS; k++) {       /* round half to even: the sum has no bits below 1 */
            float t = x[k] * up + 0x1.8p23f;
            uint32_t bits;
            memcpy(&bits, &t, sizeof bits);
            u[k] = (int16_t) (bits & 0xffff);
            sum += u[k];
        }
        q->scale[at] = amax / (float) KV_MOST;
        q->sum[at] = (float) sum;
        put_query(q, kv, c, i, u);
    }
}

/* ---- keys ---- */

/* The keys of a head in a panel, which begin at `head` and are laid out as in h; room: 512 bytes for each block. */
static void get_keys(IntKeys *k, uint8_t *room, const uint8_t *head, const PanelHead *h, Type t, int32_t blocks)
{
    *k = (IntKeys) { .scales = head, .minima = codes_have_minimum(t) ? head + h->minima : NULL,
                     .lines = t == T_Q8_0 ? head + h->codes : room };
    if (t == T_Q8_0) return;
    for (int32_t c = 0; c < blocks; c++) {
        const uint8_t *codes = head + h->codes + h->block * (size_t) c,
                      *fifth = head + h->fifth + 8 * KEY_LINES * (size_t) c;
        unpack_as(room + c * KEY_LINES * LINE, codes, fifth, t, KEY_LINES / 2, KEY_LINES / 2);
    }
}

/* ---- scores ---- */

/* acc + scale times the sums of block c; s, whole: [n] scales and sums of the queries. */
INLINE void add_scores(V *acc, const V *sum, const IntKeys *k, int32_t c, const float *s, const float *whole,
                       const int n)
{
    const V d = v_load_half((const uint16_t *) (const void *) (k->scales + 2 * KEY_PANEL * c));
    UNROLLED for (int i = 0; i < n; i++) acc[i] = v_fma(v_mul(d, v_set(s[i])), sum[i], acc[i]);
    if (!k->minima) return;
    const V m = v_load_half((const uint16_t *) (const void *) (k->minima + 2 * KEY_PANEL * c));
    UNROLLED for (int i = 0; i < n; i++) acc[i] = v_fma(v_mul(m, v_set(s[i])), v_set(whole[i]), acc[i]);
}

#if BY_TILES

/* Tiles 0 and 1 are keys, 2 and 3 queries, 4 to 7 sums [queries][high or low][16 positions]. */
static void scores_open(const IntQueries *q)
{
    if (in_pairs(q->each, q->blocks))
        tiles_open((const uint8_t[8]) { 16, 16, 16, 16, 16, 16, 16, 16 },
                   (const uint8_t[8]) { 64, 64, 64, 64, 64, 64, 64, 64 });
    else
        tiles_open((const uint8_t[8]) { 8, 8, 16, 16, 16, 16, 16, 16 },
                   (const uint8_t[8]) { 64, 64, 32, 32, 64, 64, 64, 64 });
}

#define TILE_KEYS(K, n) _tile_loadd(K, k->lines + (n) * (KEY_LINES * LINE), LINE)
#define TILE_SCORES(K, Q, S, queries, step)                             \
    do {                                                                \
        _tile_loadd(Q, queries, step);                                  \
        _tile_zero(S);                                                  \
        _tile_dpbssd(S, Q, K);                                          \
    } while (0)

/* Adds block c of `each` queries; the first query's sums are at place `first` of the tile. */
INLINE void add_tile(V *acc, const int32_t *sums, int32_t first, const IntKeys *k, const IntQueries *q, size_t at,
                     int32_t c, const int each)
{
    V sum[8];
    at += (size_t) (c * q->each);
    UNROLLED for (int i = 0; i < each; i++) {
        sum[i] = tile_sums(sums, first + i);
        prefetch_ask(k->prefetch);
    }
    add_scores(acc, sum, k, c, q->scale + at, q->sum + at, each);
}

/* Four queries. Step n multiplies one pair of blocks, stores the sums of the pair before, and adds those of the pair
 * before that, so that tiles and vectors can run at once. */
static void four_scores(V acc[4], const IntKeys *k, const IntQueries *q, int32_t kv, size_t at, bool ask)
{
    _Alignas(64) int32_t sums[2][LANES * LANES];
    const int32_t pairs = q->blocks / 2;
    for (int32_t n = 0; n < pairs + 2; n++) {
        MEMORY_IS();
        if (n < pairs && n % 2 == 0) {
            TILE_KEYS(0, 2 * n);
            TILE_SCORES(0, 2, 4, queries_at(q, kv, 2 * n), 64);
        } else if (n < pairs) {
            TILE_KEYS(1, 2 * n);
            TILE_SCORES(1, 3, 5, queries_at(q, kv, 2 * n), 64);
        }
        if (n > 0 && n <= pairs && n % 2) _tile_stored(4, sums[0], 64);
        else if (n > 0 && n <= pairs) _tile_stored(5, sums[1], 64);
        MEMORY_IS();
        if (ask && n < pairs) {
            prefetch_next(k, n, pairs);
            if (n == 0) prefetch_pieces(k->prefetch, q->blocks);
            prefetch_ask(k->prefetch);
        }
        if (n < 2) continue;
        add_tile(acc, sums[n % 2], 0, k, q, at, 2 * n - 4, 4);
        add_tile(acc, sums[n % 2], 4, k, q, at, 2 * n - 3, 4);
    }
}

/* Up to eight, or sixteen, queries in the same way, block by block. */
INLINE void many_scores(V *acc, const IntKeys *k, const IntQueries *q, int32_t kv, int32_t g, size_t at, bool ask,
                        const int together)
{
    _Alignas(64) int32_t sums[2][2][LANES * LANES];
    for (int32_t n = 0; n < q->blocks + 2; n++) {
        MEMORY_IS();
        const uint8_t *query = queries_at(q, kv, n < q->blocks ? n : 0) + g * 64;
        if (n < q->blocks && n % 2 == 0) {
            TILE_KEYS(0, n);
            TILE_SCORES(0, 2, 4, query, CODE_COLS);
            if (together == 16) TILE_SCORES(0, 3, 5, query + 512, CODE_COLS);
        } else if (n < q->blocks) {
            TILE_KEYS(1, n);
            TILE_SCORES(1, 2, 6, query, CODE_COLS);
            if (together == 16) TILE_SCORES(1, 3, 7, query + 512, CODE_COLS);
        }
        if (n > 0 && n <= q->blocks && n % 2) {
            _tile_stored(4, sums[0][0], 64);
            if (together == 16) _tile_stored(5, sums[0][1], 64);
        } else if (n > 0 && n <= q->blocks) {
            _tile_stored(6, sums[1][0], 64);
            if (together == 16) _tile_stored(7, sums[1][1], 64);
        }
        MEMORY_IS();
        if (ask && n < q->blocks) prefetch_next(k, n, q->blocks), prefetch_pieces(k->prefetch, 1);
        if (n < 2) continue;
        for (int h = 0; h < together / 8; h++)
            add_tile(acc + 8 * h, sums[n % 2][h], 0, k, q, at + (size_t) (8 * h), n - 2, 8);
    }
}

static void some_scores(V acc[LANES], const IntKeys *k, const IntQueries *q, int32_t kv, int32_t g, bool ask,
                        int32_t together)
{
    const size_t at = (size_t) kv * (size_t) q->blocks * (size_t) q->each + (size_t) g;
    if (in_pairs(q->each, q->blocks)) four_scores(acc, k, q, kv, at, ask);
    else if (together < 16) many_scores(acc, k, q, kv, g, at, ask, 8);
    else many_scores(acc, k, q, kv, g, at, ask, 16);
}

#else

static void scores_open(const IntQueries *q) { (void) q; }

static void some_scores(V acc[LANES], const IntKeys *k, const IntQueries *q, int32_t kv, int32_t g, bool ask,
                        int32_t together)
{
    size_t at = (size_t) kv * (size_t) q->blocks * (size_t) q->each + (size_t) g;
    (void) together;
    for (int32_t c = 0; c < q->blocks; c++, at += (size_t) q->each) {
        const Lines lines = { .part = { k->lines + c * KEY_LINES * LINE }, .prefetch = k->prefetch };
        V sum[1][4];
        int32_t whole[4];
        for (int i = 0; i < 4; i++) whole[i] = (int32_t) q->sum[at + (size_t) i];
        if (ask) prefetch_next(k, c, q->blocks), prefetch_pieces(k->prefetch, 1);
        multiply_lines(sum, 1, 0, &lines, KEY_LINES, queries_at(q, kv, c) + g * 64, 64, 32, whole);
        add_scores(acc, sum[0], k, c, q->scale + at, q->sum + at, 4);
    }
}

#endif

/* s[i * stride + p], not yet scaled, of queries [i0, i1) of a key/value head. */
static void int_scores(float *s, size_t stride, const IntKeys *k, const IntQueries *q, int32_t kv, int32_t i0,
                       int32_t i1)
{
    const int32_t together = together_of(q->each);
    for (int32_t g = i0 / together * together; g < i1; g += together) {
        V acc[LANES];
        for (int i = 0; i < LANES; i++) acc[i] = v_set(0);
        some_scores(acc, k, q, kv, g, g <= i0, together);
        for (int32_t i = i0 > g ? i0 : g; i < i1 && i < g + together; i++) v_store(s + (size_t) i * stride, acc[i - g]);
    }
}

#endif
