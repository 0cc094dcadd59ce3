/* ops_canvas.c - the end of a denoising step: for each group of tiles of the vocabulary the head's products, what the
 * rows make of them, and the mixed embeddings. */
#include "backend/cpu/matmul_layout.h"
#include "backend/cuda/cuda.h"

_Static_assert(sizeof(float) * CANVAS_MAX * (CANVAS_GROUP + CANVAS_TILES) <= WORK_DRAW,
               "a group's products of all rows");
_Static_assert(CANVAS_GROUP % WEIGHT_GROUP == 0, "groups of tiles begin with a group of rows");

/* The rows [id0, ..) of a weight, as many as a launch works on, as one of its own. */
static Tensor rows_of(const Tensor *w, int32_t id0)
{
    const int32_t left = w->rows - id0;
    const size_t at = matmul_group_bytes(w->type, w->cols) * (size_t) (id0 / WEIGHT_GROUP);
    return (Tensor) { .type = w->type, .rows = left < CANVAS_GROUP ? left : CANVAS_GROUP, .cols = w->cols,
                      .data = (uint8_t *) w->data + at };
}

static void canvas(Backend *b, CanvasRow *found, Tensor *soft, const Tensor *x, const CanvasEnd *e, const Rows *r)
{
    enum { MIX_COLS = 64, MIX_ROWS = 64 };         /* of a block */
    Cuda *c = cuda_of(b);
    Tensor z = { .type = T_F32, .rows = x->rows, .cols = CANVAS_GROUP, .data = c->draw }, *y = &z;
    CanvasArgs a = { .found = found, .soft = soft->data, .z = z.data, .again = (float *) z.data +
                     (size_t) x->rows * CANVAS_GROUP, .slice = r->slice, .pos = r->pos, .slices = r->slices,
                     .table = cuda_table(e->table), .n = x->rows, .vocab = e->head->rows, .scale = e->scale,
                     .softcap = e->softcap, .table_scale = e->table_scale };
    if (cuda_failed(c)) return;
    if (x->rows > CANVAS_MAX) {
        fail(&c->error, ST_UNSUPPORTED, "canvas: %d rows, expected at most %d", x->rows, CANVAS_MAX);
        return;
    }
    for (; a.id0 < a.vocab; a.id0 += CANVAS_GROUP) {
        const Tensor head = rows_of(e->head, a.id0), *w = &head;
        b->matmul(b, 1, &y, &w, x);
        const CudaInput quantised = c->quantised;
        cuda_launch(c, GPU_canvas_rows, x->rows, 1, &a, sizeof a);
        cuda_launch(c, GPU_canvas_mix, (soft->cols + MIX_COLS - 1) / MIX_COLS, (x->rows + MIX_ROWS - 1) / MIX_ROWS, &a,
                    sizeof a);
        c->quantised = quantised;                  /* for the next group: neither writes x */
    }
}

void cuda_canvas_ops(Backend *b) { b->canvas = canvas; }
