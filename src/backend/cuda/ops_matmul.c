/* ops_matmul.c - weights, and the operations that read them. Weights lie on the device as the CPU packs them, so the
 * host packs them, into the staging memory from which they are copied. */
#include <string.h>

#include "backend/cpu/matmul_layout.h"
#include "backend/cuda/cuda.h"
#include "base/check.h"

/* ---- weights ---- */

enum { PIECE = STAGING / 4 };                      /* packed at a time, while the device copies the one before */

static size_t weight_bytes(Backend *b, Type t, int32_t rows, int32_t cols)
{
    (void) b;
    const size_t bytes = matmul_packed_bytes(t, rows, cols);
    return bytes && matmul_group_bytes(t, cols) <= PIECE ? bytes : 0;
}

static bool attach(Backend *b, Tensor *w, const Source *s)
{
    (void) b, (void) w, (void) s;
    return false;
}

typedef struct { uint8_t *to; const uint8_t *src; const Tensor *w; int32_t rows, groups; } Packing;
enum { PACK_GROUPS = UPLOAD_ROWS / WEIGHT_GROUP };         /* of a task */

static void pack_task(void *arg, int32_t i, int32_t thread)
{
    const Packing *p = arg;
    const int32_t end = (i + 1) * PACK_GROUPS;
    (void) thread;
    matmul_pack(p->to, p->w->type, p->src, p->rows, p->w->cols, i * PACK_GROUPS, end < p->groups ? end : p->groups);
}

/* Packs `groups` groups of `rows` rows. Returns false after a failure. */
static bool pack_piece(Cuda *c, uint8_t *to, const uint8_t *src, const Tensor *w, int32_t rows, int32_t groups)
{
    Packing p = { to, src, w, rows, groups };
    if (!c->pool && pool_open(&c->pool, 0, &c->error) != ST_OK) return false;
    pool_run(c->pool, pack_task, &p, (groups + PACK_GROUPS - 1) / PACK_GROUPS);
    return true;
}

/* Into the host's memory for experts, and to the device if the expert has a slot. */
static void upload_expert(Cuda *c, const CudaStack *to, const Tensor *w, int32_t i, const void *src, int32_t row0,
                          int32_t rows)
{
    const size_t group_bytes = matmul_group_bytes(w->type, w->cols), at = (size_t) (row0 / WEIGHT_GROUP) * group_bytes;
    const int32_t groups = (int32_t) (((int64_t) rows + WEIGHT_GROUP - 1) / WEIGHT_GROUP);
    uint8_t *slot, *host = cuda_store_matrix(c->visitor.store, to, i, &slot) + at;
    if (!pack_piece(c, host, src, w, rows, groups) || !slot) return;
    cuda_ok(c, c->card->cu->cuMemcpyHtoDAsync_v2(slot + at, host, group_bytes * (size_t) groups, c->stream),
            "copying weights to the device");
}

static void upload(Backend *b, Tensor *w, int32_t i, const void *src, int32_t row0, int32_t rows)
{
    Cuda *c = cuda_of(b);
    if (cuda_failed(c)) return;
    const size_t whole = weight_bytes(b, w->type, w->rows, w->cols);
    if (!whole) {
        fail(&c->error, ST_UNSUPPORTED, "upload: %d x %d values of type %s cannot be a weight", w->rows, w->cols,
             type_info(w->type)->name);
        return;
    }
    cuda_enter(c);
    const CudaStack *stored = cuda_store_has(c->visitor.store, w);
    if (stored) {
        upload_expert(c, stored, w, i, src, row0, rows);
        return;
    }
    const size_t group_bytes = matmul_group_bytes(w->type, w->cols), row_bytes = type_row_bytes(w->type, w->cols);
    const int32_t most = (int32_t) (PIECE / group_bytes);
    uint8_t *to = (uint8_t *) w->data + whole * (size_t) i + (size_t) (row0 / WEIGHT_GROUP) * group_bytes;
    for (int32_t at = 0; at < rows && !cuda_failed(c);) {
        int32_t left = (int32_t) (((int64_t) rows - at + WEIGHT_GROUP - 1) / WEIGHT_GROUP);
        int32_t groups = left < most ? left : most;
        const size_t bytes = group_bytes * (size_t) groups;
        uint8_t *staged = cuda_staging(c, bytes);
        if (!pack_piece(c, staged, (const uint8_t *) src + row_bytes * (size_t) at, w, rows - at, groups)) return;
        cuda_ok(c, c->card->cu->cuMemcpyHtoDAsync_v2(to, staged, bytes, c->stream), "copying weights to the device");
        to += bytes;
        at = groups < left ? at + groups * WEIGHT_GROUP : rows;
    }
}

PackedTable cuda_table(const Tensor *w)
{
    const Layout *l = &matmul_layout[w->type];
    return (PackedTable) { .data = w->data, .group_bytes = (int64_t) matmul_group_bytes(w->type, w->cols),
                           .type = w->type, .rows = w->rows, .cols = w->cols, .block = l->block, .lines = l->lines,
                           .planes = l->planes, .offset = l->offset };
}

static void embed(Backend *b, Tensor *x, const Tensor *table, const Tensor *ids)
{
    LAUNCH(cuda_of(b), matmul_embed, x->rows, (x->cols + 255) / 256, EmbedArgs, .x = x->data, .ids = ids->data,
           .failed = &cuda_of(b)->report->wrong, .table = cuda_table(table));
}

/* ---- which kernel ---- */

/* How a launch divides its work: a block has some rows of x and some groups of weights. Few rows leave the columns to
 * be shared by warps, more make it worth that warps share what is read. All give the same bits. */
typedef enum { FEW1, DEEP1, DEEP2, WIDE2, WIDE4, MANY } Shape;
static const struct { int32_t rows, groups; } shape_of[] = { [FEW1] = { 8, 1 }, [DEEP1] = { 8, 1 }, [DEEP2] = { 16, 1 },
                                                             [WIDE2] = { 16, 4 }, [WIDE4] = { 32, 4 },
                                                             [MANY] = { 64, 4 } };

/* For n rows of x and so many groups of weights. Few groups would leave multiprocessors with little to do if a block
 * had several, or many rows: then it has one, or half of the rows. */
static Shape choose_shape(const CudaCard *card, int32_t n, int64_t groups)
{
    const bool few = groups <= 3 * (int64_t) card->processors;
    if (n <= 8) return few ? DEEP1 : FEW1;
    if (n <= 16) return few ? DEEP2 : WIDE2;
    return n <= 32 || (few && n <= 64) ? WIDE4 : MANY;
}

static GpuKernel choose(Type t, Shape s)
{
#define BY_SHAPE(pack) s == FEW1 ? GPU_matmul_##pack##_few1 : s == DEEP1 ? GPU_matmul_##pack##_deep1 \
                     : s == DEEP2 ? GPU_matmul_##pack##_deep2 : s == WIDE2 ? GPU_matmul_##pack##_wide2 \
                     : s == WIDE4 ? GPU_matmul_##pack##_wide4 : GPU_matmul_##pack##_many
    switch (t) {
    case T_F32: return GPU_matmul_f32;
    case T_F16: return GPU_matmul_f16;
    case T_BF16: return GPU_matmul_bf16;
    case T_Q8_0: return BY_SHAPE(8);
    case T_Q4_0: return BY_SHAPE(4);
    case T_Q4_1: return BY_SHAPE(4m);
    case T_IQ4_NL: return BY_SHAPE(4x);
    case T_MXFP4: return BY_SHAPE(4f);
    case T_NVFP4: return BY_SHAPE(4n);
    case T_Q5_0: return BY_SHAPE(5);
    case T_Q5_1: return BY_SHAPE(5m);
    case T_Q2_K: return BY_SHAPE(k2);
    case T_Q3_K: return BY_SHAPE(k3);
    case T_Q4_K: return BY_SHAPE(k4);
    case T_Q5_K: return BY_SHAPE(k5);
    case T_IQ4_XS: return BY_SHAPE(k4x);
    case T_IQ2_XXS:
    case T_IQ2_XS:
    case T_IQ2_S: return BY_SHAPE(k3x);
    case T_IQ3_XXS: return BY_SHAPE(iq3_xxs);
    case T_IQ3_S: return BY_SHAPE(iq3_s);
    default: return BY_SHAPE(k6);                  /* Q6_K */
    }
#undef BY_SHAPE
}

/* Types are packed alike if their kernels are the same. */
static bool same_pack(Type a, Type b) { return choose(a, FEW1) == choose(b, FEW1); }

/* The kernel for weights packed as those of a and, as its second, those of b; else none. */
static bool choose_two(GpuKernel *kernel, Type a, Type b, Shape s)
{
#define OF_TWO(packs) s == FEW1 ? GPU_matmul_##packs##_few1 : s == DEEP1 ? GPU_matmul_##packs##_deep1 \
                    : s == DEEP2 ? GPU_matmul_##packs##_deep2 : s == WIDE2 ? GPU_matmul_##packs##_wide2 \
                    : s == WIDE4 ? GPU_matmul_##packs##_wide4 : GPU_matmul_##packs##_many
    const bool k4 = same_pack(a, T_Q4_K), k5 = same_pack(a, T_Q5_K);
    if (!same_pack(b, T_Q6_K) || !(k4 || k5)) return false;
    *kernel = k4 ? OF_TWO(k4_k6) : OF_TWO(k5_k6);
    return true;
#undef OF_TWO
}

/* ---- products ---- */

/* Tiles of 8 rows are rounded up to what a block of the chosen kernels reads: so many of them lie together. */
static int32_t tiles_log2(int32_t n) { return n <= 8 ? 0 : n <= 16 ? 1 : n <= 32 ? 2 : 3; }

size_t cuda_place_rows(ActRows act[2], uint8_t *at, int32_t forms, int32_t n, int32_t cols)
{
    const uint8_t *start = at;
    for (int32_t f = 0; f < 2; f++) {
        const ActForm form = f ? ACT_Q256 : ACT_Q32;
        const int32_t block = f ? 256 : 32, log2 = tiles_log2(n), tiles = (n + (8 << log2) - 1) >> (3 + log2) << log2;
        act[f] = (ActRows) { .blocks = cols / block, .tiles_log2 = log2 };
        if (!(forms & 1 << form)) continue;
        const size_t rows = 8 * (size_t) tiles, blocks = (size_t) act[f].blocks;
        act[f].code = at;
        act[f].sums = at += rows * (size_t) cols;
        act[f].scale = (float *) (void *) (at += rows * blocks * (f ? 32 : 4));
        at += (rows * blocks * sizeof(float) + 255) / 256 * 256;
    }
    return (size_t) (at - start);
}

typedef struct {
    Cuda   *c;
    int32_t n_products, row0, n;                   /* rows of this part */
    Tensor *const *y;
    const Tensor *const *w;
    const Tensor *x;
    ActRows act[2];
} Product;

static int64_t groups_of(const Tensor *w) { return ((int64_t) w->rows + WEIGHT_GROUP - 1) / WEIGHT_GROUP; }

/* One launch for the products that one kernel can compute along with the first that is not done; done: a bit for
 * each. */
static void launch_products(const Product *p, uint32_t *done)
{
    int32_t j = 0;
    int64_t tiles = 0, groups = 0;
    while (*done >> j & 1) j++;
    for (int32_t i = j; i < p->n_products; i++) groups += *done >> i & 1 ? 0 : groups_of(p->w[i]);
    Type t = p->w[j]->type, second = t;
    const bool floats = matmul_act_form(t) == ACT_F32;
    const Shape shape = floats ? FEW1 : choose_shape(p->c->card, p->n, groups);
    GpuKernel kernel = choose(t, shape);
    for (int32_t i = j + 1; i < p->n_products && t == second; i++) {
        const Type u = p->w[i]->type;
        if (choose_two(&kernel, t, u, shape)) second = u;
        else if (choose_two(&kernel, u, t, shape)) second = t, t = u;
    }
    MatmulArgs a = { .act = p->act[matmul_act_form(t) == ACT_Q256], .n = p->n, .cols = p->x->cols,
                     .x = (const float *) p->x->data + (size_t) p->row0 * (size_t) p->x->cols };
    for (int32_t i = j; i < p->n_products; i++) {
        const Tensor *w = p->w[i];
        if (*done >> i & 1 || !(same_pack(t, w->type) || same_pack(second, w->type))) continue;
        a.product[a.n_products++] = (ProductArgs) {
            .w = w->data, .y = (float *) p->y[i]->data + (size_t) p->row0 * (size_t) p->y[i]->cols,
            .rows = w->rows, .stride = p->y[i]->cols, .tile0 = (int32_t) tiles, .second = !same_pack(t, w->type) };
        tiles += (groups_of(w) + shape_of[shape].groups - 1) / shape_of[shape].groups;
        *done |= 1u << i;
    }
    cuda_launch(p->c, kernel, (p->n + shape_of[shape].rows - 1) / shape_of[shape].rows, tiles, &a, sizeof a);
}

/* Who makes the rows of a router (its weights are F32) quantises them in every form: experts read them next. */
static int32_t forms_of_router(int32_t n, const Tensor *const *w)
{
    const int32_t cols = w[0]->cols;
    for (int32_t j = 0; j < n; j++)
        if (w[j]->type == T_F32) return (cols % 32 == 0) << ACT_Q32 | (cols % 256 == 0) << ACT_Q256;
    return 0;
}

static void matmul(Backend *b, int32_t n, Tensor *const *y, const Tensor *const *w, const Tensor *x)
{
    Cuda *c = cuda_of(b);
    if (cuda_failed(c) || x->rows == 0) return;
    Product p = { .c = c, .n_products = n, .n = x->rows, .y = y, .w = w, .x = x };
    int32_t forms = 0;
    for (int32_t j = 0; j < n; j++) forms |= 1 << matmul_act_form(w[j]->type);
    const CudaInput before = c->quantised;
    if (before.x == x->data && before.rows == x->rows && before.cols == x->cols && !(forms & ~before.forms)) {
        memcpy(p.act, before.act, sizeof p.act);
        for (uint32_t done = 0; done != (1u << n) - 1;) launch_products(&p, &done);
        c->quantised = before;
        return;
    }
    while (cuda_place_rows(p.act, c->input, forms, p.n, x->cols) > WORK_INPUT) {
        if (p.n == 1) {
            fail(&c->error, ST_UNSUPPORTED, "product: rows of %d values are too long", x->cols);
            return;
        }
        p.n = (p.n / 2 + 63) / 64 * 64 < p.n ? (p.n / 2 + 63) / 64 * 64 : p.n / 2;
    }
    for (const int32_t part = p.n; p.row0 < x->rows; p.row0 += part) {
        if (x->rows - p.row0 < part) p.n = x->rows - p.row0;
        const bool whole = p.n == x->rows;
        int32_t there = forms | forms_of_router(n, w);
        size_t bytes = cuda_place_rows(p.act, c->input, there, p.n, x->cols);
        if (!whole || bytes > WORK_INPUT || !(there & ~(1 << ACT_F32)) || !cuda_quantise_with(c, x, p.act)) {
            there = forms;
            bytes = cuda_place_rows(p.act, c->input, there, p.n, x->cols);
            if (there & ~(1 << ACT_F32))
                LAUNCH(c, matmul_quantise, (x->cols + 255) / 256, (p.n + 7) / 8, QuantiseArgs,
                       .act = { p.act[0], p.act[1] }, .n = p.n, .cols = x->cols,
                       .x = (const float *) x->data + (size_t) p.row0 * (size_t) x->cols);
        }
        for (uint32_t done = 0; done != (1u << n) - 1;) launch_products(&p, &done);
        if (whole) c->quantised = (CudaInput) { x->data, x->rows, x->cols, there, bytes, { p.act[0], p.act[1] } };
    }
}

void cuda_matmul_ops(Backend *b)
{
    b->weight_bytes = weight_bytes;
    b->attach = attach;
    b->upload = upload;
    b->embed = embed;
    b->matmul = matmul;
}
