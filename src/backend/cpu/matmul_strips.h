/* matmul_strips.h - the loops around the tiles, the same at every level: included at the end of a file that defines
 * TILE_ROWS and the tiles tile_k2, tile_k3, tile_k3x, tile_k4, tile_k4x, tile_iq3_xxs, tile_iq3_s, tile_k5, tile_k6,
 * tile_32 and tile_float. A strip is 256 columns of a group. Its first tile reads it from memory and prefetches later
 * strips, line by line while it computes (prefetched all at once, they fill the line buffers and stall the tile: a
 * fifth of the time at 16 rows); the other tiles find it in the first-level cache. The planes of scales follow a
 * group's codes but are needed from the first code on, so each strip also prefetches its share of the next group's
 * planes. Rows are divided evenly over the tiles: 22 become 11 and 11, since unpacking weights costs a tile as much
 * for 6 rows as for 16. */

/* Turns a number of rows into one that the compiler knows: TILE is the call, with R for the number. */
#if TILE_ROWS == 16
#define TILE_OF(rows, TILE)                    \
    switch (rows) {                            \
    case 1: { enum { R = 1 }; TILE; break; }   \
    case 2: { enum { R = 2 }; TILE; break; }   \
    case 3: { enum { R = 3 }; TILE; break; }   \
    case 4: { enum { R = 4 }; TILE; break; }   \
    case 5: { enum { R = 5 }; TILE; break; }   \
    case 6: { enum { R = 6 }; TILE; break; }   \
    case 7: { enum { R = 7 }; TILE; break; }   \
    case 8: { enum { R = 8 }; TILE; break; }   \
    case 9: { enum { R = 9 }; TILE; break; }   \
    case 10: { enum { R = 10 }; TILE; break; } \
    case 11: { enum { R = 11 }; TILE; break; } \
    case 12: { enum { R = 12 }; TILE; break; } \
    case 13: { enum { R = 13 }; TILE; break; } \
    case 14: { enum { R = 14 }; TILE; break; } \
    case 15: { enum { R = 15 }; TILE; break; } \
    default: { enum { R = 16 }; TILE; break; } \
    }
#else
#define TILE_OF(rows, TILE)                   \
    switch (rows) {                           \
    case 1: { enum { R = 1 }; TILE; break; }  \
    case 2: { enum { R = 2 }; TILE; break; }  \
    case 3: { enum { R = 3 }; TILE; break; }  \
    case 4: { enum { R = 4 }; TILE; break; }  \
    case 5: { enum { R = 5 }; TILE; break; }  \
    case 6: { enum { R = 6 }; TILE; break; }  \
    case 7: { enum { R = 7 }; TILE; break; }  \
    default: { enum { R = 8 }; TILE; break; } \
    }
#endif

/* acc [chunk, 16] += the group's product with rows row .. row + chunk of the n. end: the end of the weights that this
 * thread will read. */
typedef struct {
    float         *acc;
    const uint8_t *group, *end;
    const void    *act;
    int32_t        n, row, chunk, cols;
} StripWork;

/* Where the next strip starts, if the tile at row r of the chunk is to prefetch it. */
INLINE const uint8_t *ahead(const StripWork *w, int32_t r, const uint8_t *next)
{
    return r == 0 && next < w->end ? next : NULL;
}

/* The rows of the tile at row r: the rows left, divided by the tiles left. */
INLINE int32_t tile_rows(const StripWork *w, int32_t r)
{
    int32_t left = w->chunk - r, tiles = (left + TILE_ROWS - 1) / TILE_ROWS;
    return (left + tiles - 1) / tiles;
}

#define STRIPS_256(type, LINES)                                                                                    \
    static void strips_##type(const StripWork *w)                                                                  \
    {                                                                                                              \
        const ActBlock256 *act = (const ActBlock256 *) w->act + w->row;                                            \
        const uint8_t *b = w->group;                                                                               \
        for (int32_t i = 0; i < w->cols / 256; i++, act += w->n, b += (LINES) * LINE) {                            \
            for (int32_t r = 0, n; r < w->chunk; r += n) {                                                         \
                n = tile_rows(w, r);                                                                               \
                TILE_OF(n, tile_##type(w->acc + WEIGHT_GROUP * r, b, act + r, ahead(w, r, b + (LINES) * LINE), R)) \
            }                                                                                                      \
        }                                                                                                          \
    }
STRIPS_256(k2, 21)
STRIPS_256(k3, 29)
STRIPS_256(k3x, 29)
STRIPS_256(k4, 36)
STRIPS_256(k4x, 35)
STRIPS_256(iq3_xxs, 35)
STRIPS_256(iq3_s, 35)
STRIPS_256(k5, 44)
STRIPS_256(k6, 53)

#define STRIPS_32(type, LINES)                                                                                       \
    static void strips_##type(const StripWork *w)                                                                    \
    {                                                                                                                \
        int32_t blocks = w->cols / 32;                                                                               \
        const ActBlock32 *act = (const ActBlock32 *) w->act + w->row;                                                \
        const uint8_t *d = w->group + (size_t) blocks * (LINES) * LINE, *m = d + plane_bytes(blocks);                \
        const int32_t planes = matmul_layout[T_##type].planes;                                                       \
        const uint8_t *then = d + matmul_group_bytes(T_##type, w->cols);    /* the planes of the next group */ \
        for (int32_t b = 0; b < blocks; b += STRIP / 32) {                                                           \
            int32_t nb = blocks - b < STRIP / 32 ? blocks - b : STRIP / 32;                                          \
            const uint8_t *code = w->group + (size_t) b * (LINES) * LINE;                                            \
            const ActBlock32 *a = act + (size_t) b * (size_t) w->n;                                                  \
            for (int32_t r = 0, n; r < w->chunk; r += n) {                                                           \
                n = tile_rows(w, r);                                                                                 \
                const uint8_t *next = ahead(w, r, code + STRIP / 32 * (LINES) * LINE);                               \
                TILE_OF(n, tile_32(w->acc + WEIGHT_GROUP * r, code, d + 32 * b, m + 32 * b, a + r, w->n, nb, next,   \
                                   T_##type, R))                                                                     \
            }                                                                                                        \
            for (int32_t at = 32 * b * planes; at < 32 * (b + nb) * planes; at += LINE)                              \
                __builtin_prefetch(then + at, 0, 2);                                                                 \
        }                                                                                                            \
    }
STRIPS_32(Q8_0, 8)
STRIPS_32(Q4_0, 4)
STRIPS_32(Q4_1, 4)
STRIPS_32(IQ4_NL, 4)
STRIPS_32(MXFP4, 4)
STRIPS_32(NVFP4, 4)
STRIPS_32(Q5_0, 5)
STRIPS_32(Q5_1, 5)

#define STRIPS_FLOAT(type, SIZE)                                                                    \
    static void strips_##type(const StripWork *w)                                                   \
    {                                                                                               \
        const float *x = (const float *) w->act + (size_t) w->row * (size_t) w->cols;               \
        for (int32_t k = 0; k < w->cols; k += STRIP) {                                              \
            int32_t nk = w->cols - k < STRIP ? w->cols - k : STRIP;                                 \
            const uint8_t *b = w->group + (size_t) k * WEIGHT_GROUP * (SIZE);                       \
            for (int32_t r = 0, n; r < w->chunk; r += n) {                                          \
                const float *xr = x + (size_t) r * (size_t) w->cols + k;                            \
                n = tile_rows(w, r);                                                                \
                TILE_OF(n, tile_float(w->acc + WEIGHT_GROUP * r, b, xr, w->cols, nk,                \
                                      ahead(w, r, b + STRIP * WEIGHT_GROUP * (SIZE)), T_##type, R)) \
            }                                                                                       \
        }                                                                                           \
    }
STRIPS_FLOAT(F32, 4)
STRIPS_FLOAT(F16, 2)
STRIPS_FLOAT(BF16, 2)

bool LEVEL_NAME(product_fast)(float *y, size_t y_stride, Type t, const void *packed, const void *act, int32_t n,
                              int32_t rows, int32_t cols, int32_t group0, int32_t group1)
{
    static void (*const strips[T_COUNT])(const StripWork *) = {
        [T_F32] = strips_F32,   [T_F16] = strips_F16,   [T_BF16] = strips_BF16, [T_Q8_0] = strips_Q8_0,
        [T_Q4_0] = strips_Q4_0,
        [T_Q4_1] = strips_Q4_1, [T_Q5_0] = strips_Q5_0, [T_Q5_1] = strips_Q5_1, [T_IQ4_NL] = strips_IQ4_NL,
        [T_MXFP4] = strips_MXFP4, [T_NVFP4] = strips_NVFP4,
        [T_Q2_K] = strips_k2,   [T_IQ4_XS] = strips_k4x,
        [T_IQ3_XXS] = strips_iq3_xxs, [T_IQ3_S] = strips_iq3_s,
        [T_IQ2_XXS] = strips_k3x, [T_IQ2_XS] = strips_k3x, [T_IQ2_S] = strips_k3x,
        [T_Q3_K] = strips_k3,   [T_Q4_K] = strips_k4,   [T_Q5_K] = strips_k5,   [T_Q6_K] = strips_k6,
    };
    if (!strips[t]) return false;
    size_t group_bytes = matmul_group_bytes(t, cols);
    _Alignas(64) float acc[CHUNK_ROWS * WEIGHT_GROUP];
    StripWork w = {.acc = acc, .end = (const uint8_t *) packed + group_bytes * (size_t) group1, .act = act, .n = n,
                   .cols = cols};
    for (w.row = 0; w.row < n; w.row += w.chunk) {
        w.chunk = n - w.row < CHUNK_ROWS ? n - w.row : CHUNK_ROWS;
        for (int32_t g = group0; g < group1; g++) {
            w.group = (const uint8_t *) packed + (size_t) g * group_bytes;
            int lanes = rows - g * WEIGHT_GROUP < WEIGHT_GROUP ? rows - g * WEIGHT_GROUP : WEIGHT_GROUP;
            memset(acc, 0, (size_t) w.chunk * WEIGHT_GROUP * sizeof *acc);
            strips[t](&w);
            float *to = y + (size_t) w.row * y_stride + (size_t) g * WEIGHT_GROUP;
            for (int32_t r = 0; r < w.chunk; r++, to += y_stride) {
                if (lanes == WEIGHT_GROUP) memcpy(to, acc + WEIGHT_GROUP * r, WEIGHT_GROUP * sizeof *to);
                else memcpy(to, acc + WEIGHT_GROUP * r, (size_t) lanes * sizeof *to);
            }
        }
    }
    return true;
}
