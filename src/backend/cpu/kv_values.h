/* kv_values.h - softmax weights times stored values with integer codes, computed with integers.
 * A query's weights for a group of 128 positions, counted from 0, are rounded for each block of 32 columns, together
 * with the blocks' scales d:
 *
 *     u = w * d;   a = largest |u| of the group;   i = rint(u * (32639 / a));
 *     o = fma(a * (1 / 32639), (float) sum of i * code, o)
 *     then, for types with a minimum:   v = w * m;   b = largest |v|;   j = rint(v * (2^21 / b));
 *     o = o + b * 2^-21 * (float) sum of j
 *
 * Each sum is exact, so positions may come in any order: those of a group are lanes 0 to 127, and the slots of a tree's
 * pending rows are lanes 128 and on, wherever in its path a row has them. A lane that a query does not see has weight
 * 0.
 *
 *     lane    0 ............... 127 | 128 ......... 255      in steps of 64
 *             positions of a group  | pending rows           a group is a panel; pending rows lie in 1 or 2 others */
#ifndef RATOON_BACKEND_CPU_KV_VALUES_H
#define RATOON_BACKEND_CPU_KV_VALUES_H

#include <math.h>

#include "backend/cpu/kv_codes.h"

enum { VALUE_GROUP = VALUE_PANEL, STEP = 64, ALL_LANES = 2 * VALUE_GROUP, SUM_MOST = 1 << 21 };
/* of a panel's block, unpacked */
enum { BLOCK_LINES = CODE_COLS * FOUR / LINE, APART = PART_LINES * LINE, BLOCK_BYTES = BLOCK_LINES * APART };
enum { RUNS = 4 };                                 /* in progress at once: one is rounded, one multiplied, one added */

typedef struct {
    Type     t;
    int32_t  blocks, together;                     /* together: number of queries multiplied at once */
    int32_t  lanes;                                /* lanes in use: VALUE_GROUP, plus as many steps as the pending rows
                                                    * take */
    PanelHead head;
    const uint8_t *group;                          /* the head's part of the group's panel */
    const uint8_t *pending[PART_LINES];            /* the same for each four pending rows; without pending rows, any
                                                    * readable address */
    int32_t  four0;                                /* place of the first four pending rows in their panel */
    uint16_t bad[ALL_LANES / LANES];               /* bits: lanes whose scale or minimum is not finite; it counts as
                                                    * 0 */
    bool     any_bad;
    Prefetch *prefetch;
    size_t   next;                                 /* also prefetched: the same data at this distance; 0: nothing */
    Lines    lines[2];                             /* of a block, for the run that is multiplied and the one that is
                                                    * rounded */
    _Alignas(64) float d[ALL_LANES], m[ALL_LANES]; /* in the order of lane_place */
    _Alignas(64) uint8_t room[2][2][BLOCK_BYTES];                /* unpacked blocks: of the group, and of pending
                                                                  * rows */
    _Alignas(64) uint8_t weights[2][16 * ALL_LANES * 2];         /* rounded, of `together` queries:
                                                                  * [query][high bytes][low bytes], or words */
#if BY_TILES
    _Alignas(64) int32_t tiles[2][BLOCK_LINES][LANES * LANES];     /* [eight queries][line], as tiles store them */
#else
    _Alignas(64) float products[RUNS][4][CODE_COLS];
#endif
    float    scale[RUNS][16], least[RUNS][16];     /* a / 32639, and the part from the minima */
    int32_t  sum[RUNS][16];                        /* of i */
} IntValues;

static void values_open(IntValues *v, Type t, int32_t head_dim, int32_t n_queries)
{
    v->t = t;
    v->blocks = head_dim / CODE_COLS;
    v->together = together_of(n_queries);
    v->head = panel_head(t, VALUE_PANEL, v->blocks);
#if BY_TILES
    /* Tiles 0 and 1 are weights of eight queries each, 2 and 3 codes, 4 to 7 sums. */
    const uint8_t n = v->together == 4 ? 8 : 16;
    tiles_open((const uint8_t[8]) { n, n, 16, 16, n, n, n, n }, (const uint8_t[8]) { 64, 64, 64, 64, 64, 64, 64, 64 });
#endif
}

/* Where the weights and scales of a lane are stored. Four vectors of words are most cheaply narrowed to bytes of four
 * lanes if each vector has one lane of every four. */
static inline int32_t lane_place(int32_t lane)
{
#if defined(LEVEL_IS_avx512)
    return lane / STEP * STEP + lane % 4 * LANES + lane % STEP / 4;
#else
    return lane;
#endif
}

/* Brings the weights of a step into the order of lane_place. */
INLINE void order_step(V w[STEP / LANES])
{
#if defined(LEVEL_IS_avx512)
    const __m512i line = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29),
                  two = _mm512_set1_epi32(2);
    V y[4];
    UNROLLED for (int i = 0; i < 4; i++) y[i] =
        _mm512_permutex2var_ps(w[i & 2], _mm512_add_epi32(line, i & 1 ? two : _mm512_setzero_si512()), w[(i & 2) + 1]);
    for (int i = 0; i < 2; i++)
        w[2 * i] = _mm512_shuffle_f32x4(y[i], y[2 + i], 0x44),
            w[2 * i + 1] = _mm512_shuffle_f32x4(y[i], y[2 + i], 0xee);
#else
    (void) w;
#endif
}

/* The same for n lanes. */
static void order_lanes(float *w, int32_t n)
{
    for (int32_t l = 0; l < n; l += STEP) {
        V x[STEP / LANES];
        UNROLLED for (int i = 0; i < STEP / LANES; i++) x[i] = v_load(w + l + i * LANES);
        order_step(x);
        UNROLLED for (int i = 0; i < STEP / LANES; i++) v_store(w + l + i * LANES, x[i]);
    }
}

/* ---- blocks ---- */

/* n halves as floats in the order of lane_place; n: a multiple of STEP. */
INLINE void order_halves(float *y, const uint16_t *half, int32_t n)
{
#if defined(LEVEL_IS_avx512)
    const __m512i line = _mm512_setr_epi64(0x000c000800040000, 0x001c001800140010, 0x002c002800240020,
                                           0x003c003800340030, 0x000d000900050001, 0x001d001900150011,
                                           0x002d002900250021, 0x003d003900350031), two = _mm512_set1_epi16(2);
    for (int32_t l = 0; l < n; l += STEP) {
        const __m512i a = _mm512_loadu_si512((const void *) (half + l)),
                      b = _mm512_loadu_si512((const void *) (half + l + STEP / 2));
        UNROLLED for (int i = 0; i < 2; i++) {
            const __m512i x = _mm512_permutex2var_epi16(a, i ? _mm512_add_epi16(line, two) : line, b);
            _mm512_store_ps(y + l + 2 * i * LANES, _mm512_cvtph_ps(_mm512_castsi512_si256(x)));
            _mm512_store_ps(y + l + (2 * i + 1) * LANES, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)));
        }
    }
#else
    for (int32_t l = 0; l < n; l += LANES) v_store(y + l, v_load_half(half + l));
#endif
}

/* The place of the p-th four pending rows in their panel. */
static inline int32_t pending_four(const IntValues *v, int32_t p) { return (v->four0 + p) % PART_LINES; }

/* Scales or minima of all lanes of a block as floats, from offset `from` of the heads. */
INLINE void get_halves(float *y, const IntValues *v, size_t from)
{
    order_halves(y, (const uint16_t *) (const void *) (v->group + from), VALUE_GROUP);
    if (v->lanes == VALUE_GROUP) return;
    uint16_t half[VALUE_GROUP];
    for (int32_t p = 0; p < (v->lanes - VALUE_GROUP) / FOUR; p++)
        memcpy(half + FOUR * p, v->pending[p] + from + sizeof *half * FOUR * (size_t) pending_four(v, p),
               sizeof *half * FOUR);
    order_halves(y + VALUE_GROUP, half, v->lanes - VALUE_GROUP);
}

/* Unpacks the lines of a block's pending rows to room. */
static void get_pending(const IntValues *v, uint8_t *room, size_t codes, size_t fifth)
{
    for (int32_t p = 0; p < (v->lanes - VALUE_GROUP) / FOUR; p++) {
        const int32_t four = pending_four(v, p);
        const uint8_t *from = v->pending[p] + codes + four * LINE;
        if (v->t != T_Q8_0) unpack_as(room + p * LINE, from, v->pending[p] + fifth + 8 * four, v->t, 1, PART_LINES);
        else for (int h = 0; h < BLOCK_LINES; h++) memcpy(room + p * LINE + h * APART, from + h * APART, LINE);
    }
}

/* Prepares the lines, scales and minima of block c. */
static void get_block(IntValues *v, int32_t c, int k)
{
    const size_t codes = v->head.codes + v->head.block * (size_t) c,
                 fifth = v->head.fifth + 8 * BLOCK_LINES * PART_LINES * (size_t) c;
    prefetch_pieces(v->prefetch, 1);
    for (size_t at = 0; v->next && at < v->head.block; at += LINE)
        __builtin_prefetch((const void *) ((uintptr_t) v->group + v->next + codes + at));
    v->lines[k] = (Lines) { .part = { v->t == T_Q8_0 ? v->group + codes : v->room[k][0], v->room[k][1] },
                            .prefetch = v->prefetch };
    if (v->t != T_Q8_0) unpack_as(v->room[k][0], v->group + codes, v->group + fifth, v->t, PART_LINES, PART_LINES);
    get_pending(v, v->room[k][1], codes, fifth);
    const V none = v_set(0);
    const bool minimum = codes_have_minimum(v->t);
    V odd = none;
    get_halves(v->d, v, 2 * VALUE_PANEL * (size_t) c);
    if (minimum) get_halves(v->m, v, v->head.minima + 2 * VALUE_PANEL * (size_t) c);
    for (int32_t l = 0; l < v->lanes; l += LANES) {
        odd = v_fma(v_load(v->d + l), none, odd);
        if (minimum) odd = v_fma(v_load(v->m + l), none, odd);
    }
    v->any_bad = v_ne(odd, none) != 0;             /* infinity and NaN times 0 differ from 0 */
    if (!v->any_bad) return;
    for (int32_t l = 0; l < v->lanes; l += LANES) {
        const V d = v_load(v->d + l), m = minimum ? v_load(v->m + l) : none;
        const uint32_t bad = v_ne(v_sub(d, d), none) | v_ne(v_sub(m, m), none);
        v->bad[l / LANES] = (uint16_t) bad;
        v_store(v->d + l, v_pick(bad, none, d));
        if (minimum) v_store(v->m + l, v_pick(bad, none, m));
    }
}

/* ---- weights ---- */

/* Writes rint(w * d * up) of a query's lanes to `to`; returns their sum if the products need it. */
#if defined(LEVEL_IS_avx512)

/* What NaN becomes may wrap, which the sum of _mm512_reduce_add_epi32, one of ints, must not. */
INLINE int32_t sum_of_lanes(__m512i x)
{
    const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

INLINE int32_t put_weights(uint8_t *to, IntValues *v, const float *w, float up)
{
    const __m512i words = _mm512_set1_epi32(0xffff), bytes = _mm512_set1_epi32(0x00ff00ff),
                  half = _mm512_set1_epi8(-128);
    const __m512 by = _mm512_set1_ps(up), magic = _mm512_set1_ps(0x1.8p23f + 128);
    __m512i sum = _mm512_setzero_si512();
    for (int32_t g = 0; g < v->lanes; g += STEP) {
        static const int lane[4] = { 0, 2, 1, 3 };
        __m512i x[4];
        prefetch_ask(v->prefetch);
        UNROLLED for (int k = 0; k < 4; k++) {
            const int at = g + LANES * lane[k];
            x[k] = _mm512_castps_si512(_mm512_fmadd_ps(_mm512_mul_ps(_mm512_loadu_ps(w + at),
                                                                     _mm512_load_ps(v->d + at)), by, magic));
        }
        if (NEEDS_WHOLE)
            sum = _mm512_add_epi32(sum, _mm512_add_epi32(_mm512_add_epi32(x[0], x[1]), _mm512_add_epi32(x[2], x[3])));
        /* 0xca takes the low parts from the second operand and the high parts from the third. */
        __m512i a = _mm512_ternarylogic_epi32(words, x[0], _mm512_slli_epi32(x[1], 16), 0xca),
                b = _mm512_ternarylogic_epi32(words, x[2], _mm512_slli_epi32(x[3], 16), 0xca);
        __m512i high = _mm512_ternarylogic_epi32(bytes, _mm512_srli_epi16(a, 8), b, 0xca),
                low = _mm512_ternarylogic_epi32(bytes, a, _mm512_slli_epi16(b, 8), 0xca);
        _mm512_store_si512((void *) (to + g), high);
        _mm512_store_si512((void *) (to + ALL_LANES + g), _mm512_xor_si512(low, half));
    }
    return NEEDS_WHOLE ? sum_of_lanes(
        _mm512_sub_epi32(sum, _mm512_set1_epi32((int32_t) ((uint32_t) (v->lanes / LANES) * 0x4b400080u)))) : 0;
}

#else

INLINE int32_t put_weights(uint8_t *to, IntValues *v, const float *w, float up)
{
    const V by = v_set(up), magic = v_set(0x1.8p23f + (BYTE_NUMBERS ? 128 : 0));
    for (int32_t l = 0; l < v->lanes; l += LANES) {
        const V t = v_fma(v_mul(v_load(w + l), v_load(v->d + l)), by, magic);
#if defined(LEVEL_IS_avx2) || defined(LEVEL_IS_avxvnni)
        const __m256i a = _mm256_srai_epi32(_mm256_slli_epi32(_mm256_castps_si256(t.a), 16), 16),
                      b = _mm256_srai_epi32(_mm256_slli_epi32(_mm256_castps_si256(t.b), 16), 16);
        _mm256_storeu_si256((__m256i *) (void *) (to + 2 * l),
                            _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
#elif defined(LEVEL_IS_neon) || defined(LEVEL_IS_i8mm)
        const uint16x8_t a = vcombine_u16(vmovn_u32(vreinterpretq_u32_f32(t.a)), vmovn_u32(vreinterpretq_u32_f32(t.b)));
        const uint16x8_t b = vcombine_u16(vmovn_u32(vreinterpretq_u32_f32(t.c)), vmovn_u32(vreinterpretq_u32_f32(t.d)));
        vst1q_u8(to + l, vcombine_u8(vshrn_n_u16(a, 8), vshrn_n_u16(b, 8)));
        vst1q_u8(to + ALL_LANES + l, veorq_u8(vcombine_u8(vmovn_u16(a), vmovn_u16(b)), vdupq_n_u8(128)));
#else
        uint32_t x[LANES];
        uint16_t y[LANES];
        memcpy(x, &t, sizeof x);
        for (int k = 0; k < LANES; k++) y[k] = (uint16_t) x[k];
        memcpy(to + 2 * l, y, sizeof y);
#endif
    }
    return 0;
}

#endif

/* sum of rint(w * m * up) */
INLINE int32_t sum_minima(const IntValues *v, const float *w, float up)
{
    const V magic = v_set(0x1.8p23f), by = v_set(up);
    uint32_t sum = 0;
    for (int32_t l = 0; l < v->lanes; l += LANES) {
        uint32_t x[LANES];
        V t = v_fma(v_mul(v_load(w + l), v_load(v->m + l)), by, magic);
        memcpy(x, &t, sizeof x);
        for (int k = 0; k < LANES; k++) sum += x[k] - 0x4b400000u;
    }
    return (int32_t) sum;
}

/* The largest lane of each vector. */
INLINE void v_tops(float top[4], const V t[4])
{
#if defined(LEVEL_IS_avx512)
    const V a = _mm512_max_ps(_mm512_shuffle_f32x4(t[0], t[1], 0x44), _mm512_shuffle_f32x4(t[0], t[1], 0xee));
    const V b = _mm512_max_ps(_mm512_shuffle_f32x4(t[2], t[3], 0x44), _mm512_shuffle_f32x4(t[2], t[3], 0xee));
    V c = _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    c = _mm512_max_ps(c, _mm512_permute_ps(c, 0x4e));
    c = _mm512_max_ps(c, _mm512_permute_ps(c, 0xb1));
    _mm_storeu_ps(top, _mm512_castps512_ps128(_mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0,
                                                                                      0, 0, 0, 0, 0), c)));
#else
    for (int i = 0; i < 4; i++) top[i] = v_top(t[i]);
#endif
}

/* The largest product over the lanes, for four queries. */
INLINE void largest(float top[4], IntValues *v, const float *const w[4], const float *d)
{
    V t[4];
    UNROLLED for (int i = 0; i < 4; i++) t[i] = v_set(0);
    for (int32_t l = 0; l < v->lanes; l += LANES) {
        prefetch_ask(v->prefetch);
        V x = v_load(d + l), s = v_max(x, v_sub(v_set(0), x));
        UNROLLED for (int i = 0; i < 4; i++) t[i] = v_max(t[i], v_mul(v_load(w[i] + l), s));
    }
    v_tops(top, t);
}

/* True if a weight other than 0 is multiplied with a scale that is not finite. */
static bool meets_bad(const IntValues *v, const float *w)
{
    for (int32_t l = 0; l < v->lanes; l++)
        if (v->bad[l / LANES] >> l % LANES & 1 && w[l] != 0) return true;
    return false;
}

/* Rounds queries [i, i + 4) of run r, with the scales of the current block. */
static void round_weights(IntValues *v, int32_t r, int32_t i, const float *const w[4])
{
    const float tiny = 0x1p-100f;
    float a[4], b[4] = { 0 };
    const int32_t run = r % RUNS;
    largest(a, v, w, v->d);
    if (codes_have_minimum(v->t)) largest(b, v, w, v->m);
    for (int k = 0; k < 4; k++) {
        v->sum[run][i + k] = put_weights(v->weights[r % 2] + (i + k) * 2 * ALL_LANES, v, w[k],
                                         a[k] < tiny ? 0 : (float) KV_MOST / a[k]);
        v->scale[run][i + k] = a[k] < tiny ? 0 : a[k] < INFINITY && !(v->any_bad && meets_bad(v, w[k]))
                               ? a[k] * (1 / (float) KV_MOST) : NAN;
        v->least[run][i + k] =
            b[k] < tiny ? 0 : b[k] * (1 / (float) SUM_MOST) * (float) sum_minima(v, w[k], (float) SUM_MOST / b[k]);
    }
}

/* ---- products ---- */

/* multiply's results for run r can be added once bring_products has been called; k: which lines to use. */
#if BY_TILES

static void multiply(IntValues *v, int32_t r, int k)
{
    const Lines *l = &v->lines[k];
    MEMORY_IS();
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int32_t g = 0; g < v->lanes; g += STEP) {
        const uint8_t *from = l->part[g / VALUE_GROUP] + g % VALUE_GROUP / FOUR * LINE, *w = v->weights[r % 2] + g;
        _tile_loadd(0, w, ALL_LANES);
        _tile_loadd(2, from, LINE);
        _tile_dpbssd(4, 0, 2);
        for (int i = 0; i < 3; i++) prefetch_ask(v->prefetch);
        _tile_loadd(3, from + APART, LINE);
        _tile_dpbssd(5, 0, 3);
        for (int i = 0; i < 3; i++) prefetch_ask(v->prefetch);
        if (v->together == 16) {
            _tile_loadd(1, w + 16 * ALL_LANES, ALL_LANES);
            _tile_dpbssd(6, 1, 2);
            _tile_dpbssd(7, 1, 3);
        }
    }
}

static void bring_products(IntValues *v)
{
    MEMORY_IS();
    _tile_stored(4, v->tiles[0][0], 64);
    _tile_stored(5, v->tiles[0][1], 64);
    if (v->together == 16) {
        _tile_stored(6, v->tiles[1][0], 64);
        _tile_stored(7, v->tiles[1][1], 64);
    }
    MEMORY_IS();
}

INLINE V product(const IntValues *v, int32_t run, int32_t i, int h)
{
    (void) run;
    return tile_sums(v->tiles[i / 8][h], i % 8);
}

#else

static void multiply(IntValues *v, int32_t r, int k)
{
    const int32_t run = r % RUNS;
    V y[BLOCK_LINES][4];
    multiply_lines(y, BLOCK_LINES, APART, &v->lines[k], v->lanes / FOUR, v->weights[r % 2], 2 * ALL_LANES, ALL_LANES,
                   v->sum[run]);
    for (int n = 0; n < 4; n++)
        for (int h = 0; h < BLOCK_LINES; h++) v_store(v->products[run][n] + h * LANES, y[h][n]);
}

static void bring_products(IntValues *v) { (void) v; }

INLINE V product(const IntValues *v, int32_t run, int32_t i, int h) { return v_load(v->products[run][i] + h * LANES); }

#endif

/* Where the products of a run are added: o [n, stride], 32 columns, for the queries with `any` set. */
typedef struct { float *o; int32_t stride; const bool *any; int32_t n; } Products;

static void add_products(const IntValues *v, int32_t r, const Products *p)
{
    const bool least = codes_have_minimum(v->t);
    const int32_t run = r % RUNS;
    for (int32_t k = 0; k < p->n; k += 4)
        UNROLLED for (int32_t i = k; i < k + 4; i++) {
            prefetch_ask(v->prefetch), prefetch_ask(v->prefetch);
            if (i >= p->n || !p->any[i]) continue;
            UNROLLED for (int h = 0; h < BLOCK_LINES; h++) {
                float *o = p->o + i * p->stride + h * LANES;
                V x = v_fma(v_set(v->scale[run][i]), product(v, run, i, h), v_load(o));
                v_store(o, least ? v_add(x, v_set(v->least[run][i])) : x);
            }
        }
}

#endif
