/* args_draw.h - arguments of the kernels in draw.cu, and the workspace that they share. */
#ifndef RATOON_BACKEND_GPU_ARGS_DRAW_H
#define RATOON_BACKEND_GPU_ARGS_DRAW_H

/* A block looks at DRAW_TILE ids of a row; a vocabulary has at most DRAW_TILES of these. */
enum { DRAW_TILE = 2048, DRAW_TILES = 256, DRAW_BEST = 16, DRAW_LIST = 2048, DRAW_BINS = 256,
       DRAW_PATCHES = HISTORY + BIAS_MAX };

/* A candidate. key: what it is ranked by as an integer, larger is better, 0: none. Ties go to the lower id. */
typedef struct { uint64_t key; float logit; int32_t id; } DrawBest;

/* What is known of a tile: its largest adjusted logit, its two largest of the model's own, the sum of exp(logit -
 * the row's largest); odd: there is a NaN or +infinity. */
typedef struct { DrawBest best, raw[2]; double mass; int32_t odd, pad; } DrawTile;

/* What is known of a row; DrawTile [tiles] and DrawBest [tiles, k] follow in the workspace. way: a DrawWay. likely:
 * logits below the largest by more than this do not reach min_p. patch: logits that penalties and biases change, by
 * ascending id, and what they become. bin: how many logits lie how many 1/16 below the largest. list: the head of the
 * sorted order, unsorted, as key << 23 | id. */
typedef enum { DRAW_SKIP, DRAW_GREEDY, DRAW_NOISE, DRAW_HEAD } DrawWay;
typedef struct {
    int32_t  way, top_k, n_patches, n_list;
    float    temperature, top_p, min_p;
    int32_t  pad;
    uint64_t seed;
    int64_t  pos;
    double   likely;
    int32_t  bin[DRAW_BINS], patch_id[DRAW_PATCHES];
    float    patch[DRAW_PATCHES];
    uint64_t list[DRAW_LIST];
} DrawRow;

/* Rows [row0, row0 + ..) of logits, one for each `stride` bytes of work. picks: draw_next at pos + 1 after the row's
 * own path, and k is 1; else draw_top_k at pos. out: margins, or scores. */
typedef struct {
    uint8_t        *work;
    int64_t         stride;
    const int32_t  *count, *logit_row, *slice, *parent, *token, *pos;
    const Slice    *slices;
    const float    *logits;
    const uint32_t *mask;
    int32_t        *id;
    float          *out;
    int32_t         vocab, tiles, k, wanted, row0, picks;
} DrawArgs;

/* y[i][c] = sum over taps t of (base[t][c] + delta[i][t][c / group]) * x[i - t][c] within the slice. */
typedef struct {
    float         *y;
    const float   *x, *base, *delta;
    const int32_t *slice;
    const Slice   *slices;
    int32_t        cols, taps, group, deltas;
} BlockConvArgs;

/* edge[j][p][i] of logits row j: how well candidate i follows candidate p of the row before. */
typedef struct {
    float         *edge;
    const int32_t *ids, *count, *logit_row, *slice, *token;
    const float   *score, *g;
    const Slice   *slices;
    PackedTable    pred, succ;
    int32_t        k;
} PairArgs;

#endif
