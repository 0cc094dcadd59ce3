/* cpu_canvas.c - the end of a denoising step: head, statistics, sample and mixed embedding of each row, a tile of the
 * vocabulary at a time, so that no row's logits are ever there as a whole. For each tile there are the products, the
 * rows' statistics, decoding the embeddings of ids that any row has a term for, and the sums, in blocks of columns that
 * stay in a core's cache. The statistics are handed to the threads together with the next tile's products, behind them:
 * products are few and long, and a thread that has done its last one finds rows to go on with. Tiles follow one another
 * and no sum is divided, so threads cannot be seen in a result. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/mathd.h"

enum { PARTS = CANVAS_MAX / 16, BLOCK_COLS = 256, BLOCK_ROWS = 32, WORDS = CANVAS_IDS / 64 };
_Static_assert(CANVAS_IDS % 64 == 0, "a tile is whole words of bits");

/* The ids [id0, id0 + ids), which the head's rows `head` belong to; z [n, CANVAS_IDS]. */
typedef struct { int32_t id0, ids; Tensor head; float *z; } Tile;

typedef struct {
    Cpu             *c;
    CanvasRow       *found;                        /* [n] */
    Tensor          *soft;
    const Tensor    *x;
    const CanvasEnd *e;
    const Rows      *r;
    int32_t          n, parts, part_rows;          /* rows are multiplied in parts, each quantised for itself */
    const void      *act[PARTS];
    Tile             next, tile;                   /* whose products are made; whose products there are */
    int32_t          products;                     /* tasks of the next tile */
    uint64_t         has[CANVAS_MAX][WORDS];       /* bits of the tile's ids that a row has a term for */
    int32_t          used[CANVAS_IDS], n_used;     /* ids of the tile, from 0, that have a term in any row */
} CanvasJob;

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
static float *z_of(const Tile *t, int32_t row) { return t->z + (size_t) row * CANVAS_IDS; }
static float *row_at(const Tensor *t, int32_t i) { return (float *) t->data + (size_t) i * (size_t) t->cols; }

/* ---- the products ---- */

/* Quantises all rows, which every tile reads. Returns false if they do not fit. */
static bool place_rows(CanvasJob *j)
{
    const ActForm form = matmul_act_form(j->e->head->type);
    const size_t each = (matmul_act_bytes(form, j->part_rows, j->x->cols) + 63) & ~(size_t) 63;
    if (each * (size_t) j->parts > INPUT_BYTES) return false;
    for (int32_t p = 0; p < j->parts; p++) {
        const int32_t row0 = p * j->part_rows;
        const void *act[ACT_COUNT] = { NULL };
        j->act[p] = form == ACT_F32 ? (const void *) row_at(j->x, row0) : j->c->input + each * (size_t) p;
        act[form] = j->act[p];
        cpu_quantise(j->c, act, j->x, row0, least(j->part_rows, j->n - row0));
    }
    return true;
}

static void make_products(const CanvasJob *j, int32_t i, int32_t thread)
{
    const int32_t part = i % j->parts, group = i / j->parts, row0 = part * j->part_rows;
    cpu_product(j->c, z_of(&j->next, row0), CANVAS_IDS, &j->next.head, j->next.head.data, j->act[part],
                least(j->part_rows, j->n - row0), group, group + 1, cpu_scratch(j->c, thread));
}

/* id0 is a multiple of CANVAS_IDS; behind the vocabulary there is a tile without ids. Tiles use the halves of z in
 * turn. */
static Tile tile_at(const CanvasJob *j, int32_t id0)
{
    const Tensor *w = j->e->head;
    const size_t group = j->c->in_place ? type_row_bytes(w->type, w->cols) * WEIGHT_GROUP
                                        : matmul_group_bytes(w->type, w->cols);
    if (id0 >= w->rows) return (Tile) { 0 };
    Tile t = { .id0 = id0, .ids = least(CANVAS_IDS, w->rows - id0), .z = j->e->z->data };
    if (id0 / CANVAS_IDS % 2) t.z = z_of(&t, j->n);
    t.head = (Tensor) { .type = w->type, .rows = t.ids, .cols = w->cols,
                        .data = (uint8_t *) w->data + group * (size_t) (id0 / WEIGHT_GROUP) };
    return t;
}

/* ---- the rows ---- */

static int32_t find(const float *z, int32_t n, float what)
{
    int32_t i = 0;
    while (i < n && z[i] != what) i++;
    return i;
}

static bool has_mask(const Tile *t, const CanvasDraw *d)
{
    return d->mask > 0 && d->mask >= t->id0 && d->mask < t->id0 + t->ids;
}

/* Products to logits. */
static void cap(const CanvasJob *j, float *z, int32_t n)
{
    if (j->e->scale != 1 || j->e->softcap > 0) j->c->rows->scale(z, n, j->e->scale, j->e->softcap);
}

static const float CAP_ERROR = 0x1p-18f;           /* more than rounding can change of a capped logit / cap */

/* Whether any id of the tile could be the best so far, be drawn, or have a term; else the row stays as it is. Judged
 * from the largest product, since the cap and the division keep the order but for the cap's rounding. */
static bool matters(const CanvasJob *j, const CanvasRow *f, const CanvasDraw *d, const float *z)
{
    if (j->e->scale <= 0 || has_mask(&j->tile, d)) return true;
    float most = j->c->rows->peak(z, j->tile.ids);
    cap(j, &most, 1);
    most = (most + CAP_ERROR * j->e->softcap) / d->t;
    return !(most - f->top < TERM_LEAST) || (!d->greedy && draw_canvas_may(f, most));
}

static void look_at_row(CanvasJob *j, int32_t i)
{
    const RowKernels *k = j->c->rows;
    const Tile *tile = &j->tile;
    const CanvasDraw *d = &j->r->slices[j->r->slice[i]].canvas;
    CanvasRow *f = &j->found[i];
    const bool first = f->best < 0;
    const float before = f->top;
    float *z = z_of(tile, i), sum[2];
    memset(j->has[i], 0, sizeof j->has[i]);
    f->again = 1;
    if (!matters(j, f, d, z)) return;
    cap(j, z, tile->ids);
    if (has_mask(tile, d)) {
        f->mask = z[d->mask - tile->id0] / d->t;
        z[d->mask - tile->id0] = -INFINITY;
    }
    const float top = k->cool(z, tile->ids, d->t);
    if (top > before) {
        f->top = top + 0.0f;                       /* which of two zeros is found first does not matter */
        f->best = tile->id0 + find(z, tile->ids, top);
    }
    if (d->greedy) f->sample = f->best;
    else if (draw_canvas_may(f, top)) draw_canvas(f, d, j->r->pos[i], z, tile->ids, tile->id0);
    const int32_t whole = (tile->ids + 15) / 16 * 16;
    for (int32_t v = tile->ids; v < whole; v++) z[v] = -INFINITY;
    f->again = k->terms(z, whole, before, f->top, sum);
    f->lean = first ? sum[1] : fmaf(f->again, fmaf(before - f->top, f->sum, f->lean), sum[1]);
    f->sum = fmaf(f->sum, f->again, sum[0]);
    for (int32_t w = 0; w < WORDS && sum[0] != 0; w++) {
        uint64_t bits = 0;
        for (int32_t v = 64 * w; v < least(tile->ids, 64 * w + 64); v++) bits |= (uint64_t) (z[v] != 0) << v % 64;
        j->has[i][w] = bits;
    }
}

static void tile_task(void *arg, int32_t i, int32_t thread)
{
    CanvasJob *j = arg;
    if (i < j->products) make_products(j, i, thread);
    else look_at_row(j, i - j->products);
}

/* ---- mixed embeddings ---- */

/* Whether the tile changes any sum. */
static bool find_used(CanvasJob *j)
{
    bool changes = false;
    j->n_used = 0;
    for (int32_t i = 0; i < j->n && !changes; i++) changes = j->found[i].again != 1;
    for (int32_t w = 0; w < WORDS; w++) {
        uint64_t any = 0;
        for (int32_t i = 0; i < j->n; i++) any |= j->has[i][w];
        for (; any; any &= any - 1) j->used[j->n_used++] = 64 * w + __builtin_ctzll(any);
    }
    return changes || j->n_used > 0;
}

static void decode_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const CanvasJob *j = arg;
    const int32_t v = j->used[i];
    cpu_decode_row(j->c, row_at(j->e->wide, v), j->e->table, j->tile.id0 + v);
}

static int32_t blocks(int32_t n, int32_t each) { return (n + each - 1) / each; }

static void blend_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const CanvasJob *j = arg;
    const int32_t across = blocks(j->soft->cols, BLOCK_COLS), c0 = i % across * BLOCK_COLS,
                  cols = least(BLOCK_COLS, j->soft->cols - c0), end = least(j->n, (i / across + 1) * BLOCK_ROWS);
    const float *from[CANVAS_IDS];
    float w[CANVAS_IDS];
    for (int32_t row = i / across * BLOCK_ROWS; row < end; row++) {
        const float *z = z_of(&j->tile, row);
        int32_t count = 0;
        for (int32_t k = 0; k < WORDS; k++)
            for (uint64_t bits = j->has[row][k]; bits; bits &= bits - 1) {
                const int32_t v = 64 * k + __builtin_ctzll(bits);
                from[count] = row_at(j->e->wide, v) + c0;
                w[count++] = z[v];
            }
        if (count == 0 && j->found[row].again == 1) continue;
        j->c->rows->blend(row_at(j->soft, row) + c0, j->found[row].again, from, w, count, cols);
    }
}

static void end_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const CanvasJob *j = arg;
    CanvasRow *f = &j->found[i];
    f->entropy = (float) (mathd_log((double) f->sum) - (double) f->lean / (double) f->sum);
    j->c->rows->scale(row_at(j->soft, i), j->soft->cols, j->e->table_scale / f->sum, 0);
}

/* ---- the operation ---- */

/* The products of the tile from id0 on, and all else of the tile before it. */
static void one_tile(CanvasJob *j, int32_t id0)
{
    Cpu *c = j->c;
    j->tile = j->next;
    j->next = tile_at(j, id0);
    j->products = blocks(j->next.ids, WEIGHT_GROUP) * j->parts;
    const int32_t rows = j->tile.ids > 0 ? j->n : 0;
    cpu_run(c, tile_task, j, j->products + rows,
            (int64_t) j->n * j->next.ids * j->x->cols / 4 + (int64_t) rows * j->tile.ids * 60);
    if (rows == 0 || !find_used(j)) return;
    cpu_run(c, decode_task, j, j->n_used, (int64_t) j->n_used * j->soft->cols * 4);
    cpu_run(c, blend_task, j, blocks(j->soft->cols, BLOCK_COLS) * blocks(j->n, BLOCK_ROWS),
            (int64_t) j->n * j->soft->cols);
}

static void canvas(Backend *b, CanvasRow *found, Tensor *soft, const Tensor *x, const CanvasEnd *e, const Rows *r)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    CanvasJob j = { .c = c, .found = found, .soft = soft, .x = x, .e = e, .r = r, .n = x->rows };
    if (x->rows > CANVAS_MAX) {
        fail(&c->error, ST_UNSUPPORTED, "canvas: %d rows, expected at most %d", x->rows, CANVAS_MAX);
        return;
    }
    const int32_t most = matmul_part_rows(matmul_act_form(e->head->type), x->cols, c->part_bytes);
    j.parts = blocks(j.n, most);
    j.part_rows = blocks(j.n, j.parts);
    if (!place_rows(&j)) {
        fail(&c->error, ST_UNSUPPORTED, "canvas: rows of %d values are too long", x->cols);
        return;
    }
    for (int32_t i = 0; i < j.n; i++)
        found[i] = (CanvasRow) { .score = -INFINITY, .top = -INFINITY, .mask = -INFINITY, .best = -1, .sample = -1 };
    memset(soft->data, 0, sizeof(float) * (size_t) j.n * (size_t) soft->cols);
    for (int32_t id0 = 0; id0 < e->head->rows + CANVAS_IDS; id0 += CANVAS_IDS) one_tile(&j, id0);
    cpu_run(c, end_task, &j, j.n, (int64_t) j.n * soft->cols);
}

void cpu_canvas_ops(Backend *b) { b->canvas = canvas; }
