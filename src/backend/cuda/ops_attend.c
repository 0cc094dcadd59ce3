/* ops_attend.c - attention: scores, which become weights, then values; in parts that fit the workspace. */
#include "backend/cuda/cuda.h"
#include "backend/cpu/kv_panels.h"

enum { ITEM_TICKETS = 1 << 18, TICKET_BYTES = ITEM_TICKETS * 4, ITEMS_MAX = 1 << 20 };

static int32_t at_most(int64_t n, int64_t limit) { return (int32_t) (n < limit ? n : limit); }

/* Tiles that an item can have: its queries see at most what is there, or their window; rows of a tree are up to
 * ROWS_DECODE apart, of a canvas up to CANVAS_MAX. */
static int32_t most_tiles(const Rows *r, const LayerSpec *s)
{
    const int64_t all = ((int64_t) r->span + r->n + TILE - 1) / TILE + r->shifted;
    const int32_t apart = s->canvas ? CANVAS_MAX : 2 * ROWS_DECODE;
    const int64_t seen = s->window ? ((int64_t) s->window + apart) / TILE + 2 : INT32_MAX / TILE;
    return at_most(all, seen);
}

/* Values that are floats. The more queries and columns a thread has, the fewer instructions an output takes, and the
 * fewer warps there are: as long as a scheduler has fewer than two, each takes as long as if it were alone. */
static void launch_values(Cuda *c, const AttendArgs *a)
{
    /* work: instructions for a position */
    static const struct { GpuKernel kernel; int32_t cols, work; } shape[] = {
        { GPU_attend_values, ATTEND_COLS_FEW, 7 }, { GPU_attend_values_some, ATTEND_COLS_SOME, 16 },
        { GPU_attend_values_many, ATTEND_COLS_MANY, 27 } };
    const int64_t alone = 4 * (int64_t) c->card->processors;
    int64_t blocks = 0, least = INT64_MAX;
    size_t best = 0;
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
        const int64_t n = (int64_t) a->items * ((a->v_pad + shape[k].cols - 1) / shape[k].cols), all = n * a->splits,
                      time = shape[k].work * (all > alone ? all : alone);
        if (time >= least) continue;
        least = time, best = k, blocks = n;
    }
    cuda_launch(c, shape[best].kernel, blocks, a->splits, a, sizeof *a);
}

static void attend(Backend *b, Tensor *y, const Tensor *q, const Rows *r, int32_t il, const LayerSpec *s)
{
    Cuda *c = cuda_of(b);
    const bool whole = !s->window && !s->ring && !r->shifted, turned = s->v_type == T_TQ3_0;
    const int32_t v = value_dim(s), group = s->heads / s->kv_heads, tiles = most_tiles(r, s),
                  split_tiles = SPLIT / TILE;
    AttendArgs a = { .y = y->data, .q = q->data, .rows = *r, .spec = *s, .il = il, .tiles = tiles,
                     .splits = (tiles + split_tiles - 1) / split_tiles + !whole,
                     .v_pad = (v + ATTEND_COLS - 1) / ATTEND_COLS * ATTEND_COLS };
    if (cuda_failed(c)) return;
    if (s->head_dim > KV_WIDTH || v > KV_WIDTH) {
        fail(&c->error, ST_UNSUPPORTED, "attention: heads of %d values, expected at most %d",
             s->head_dim > v ? s->head_dim : v, KV_WIDTH);
        return;
    }
    const int64_t parts = a.splits > 1 ? (int64_t) a.splits * a.v_pad : 0,
                  each = (int64_t) tiles * (TILE + 1 + SCORE_PARTS) + 2 * a.splits + parts,
                  bytes = 4 * ATTEND_QUERIES * each, items = (int64_t) s->kv_heads *
                  (((int64_t) r->n * group + (ATTEND_QUERIES - 1) * (int64_t) r->n_slices) / ATTEND_QUERIES);
    int32_t fit = at_most((WORK_SPLITS - TICKET_BYTES) / bytes, ITEM_TICKETS / (a.splits + a.v_pad / ATTEND_COLS_FEW));
    if (fit > ITEMS_MAX) fit = ITEMS_MAX;
    if (fit < 1) {
        fail(&c->error, ST_UNSUPPORTED, "attention: %d positions and %d rows, whose scores do not fit %d MB", r->span,
             r->n, WORK_SPLITS >> 20);
        return;
    }
    a.tickets = (int32_t *) (void *) c->splits;
    a.weight = (float *) (void *) (c->splits + TICKET_BYTES);
    for (int64_t item = 0; item < items; item += fit) {
        a.item0 = (int32_t) item;
        a.items = at_most(items - item, fit);
        const size_t queries = (size_t) a.items * ATTEND_QUERIES;
        a.top = a.weight + queries * (size_t) tiles * TILE;
        a.change = a.top + queries * 2 * (size_t) a.splits;
        a.tops = a.change + queries * (size_t) tiles;
        a.partial = a.tops + queries * (size_t) tiles * SCORE_PARTS;
        /* Where there are blocks enough, each has all parts of a tile, and looks for its item once. */
        a.parts = (int64_t) a.items * tiles >= 4 * (int64_t) c->card->processors ? SCORE_PARTS : 1;
        cuda_launch(c, codes_are_integers(s->k_type) ? GPU_attend_scores_codes : GPU_attend_scores, a.items,
                    (int64_t) tiles * SCORE_PARTS / a.parts, &a, sizeof a);
        if (codes_are_integers(s->v_type))
            cuda_launch(c, GPU_attend_values_codes, (int64_t) a.items * (a.v_pad / ATTEND_COLS), a.splits, &a,
                        sizeof a);
        else launch_values(c, &a);
    }
    if (turned) {
        const int64_t groups = (int64_t) y->rows * y->cols / 128;
        LAUNCH(c, attend_turn_back, (groups + 7) / 8, 1, TurnArgs, .y = y->data, .groups = groups);
    }
}

/* Heads are normed and turned, and keys and values stored, by one launch, which also divides queries and gates. */
static void attend_block(Backend *b, Tensor *y, Tensor *q, Tensor *k, const Tensor *v, const Heads *h, const Rows *r,
                         int32_t il, const LayerSpec *s)
{
    Cuda *c = cuda_of(b);
    KvPutArgs a = { .k = k->data, .v = v->data, .q = q->data, .rows = *r, .spec = *s, .il = il,
                    .heads = { .turn = h->turn->data, .n_rot = h->rope.n_rot, .neox = h->rope.neox, .eps = h->eps } };
    if (h->q_norm) a.heads.q_norm = h->q_norm->data;
    if (h->k_norm) a.heads.k_norm = h->k_norm->data;
    if (!cuda_can_turn(c, &h->rope, s->head_dim)) return;
    const SplitArgs *split = cuda_waiting(c, GPU_rows_split, q);
    if (split && split->width == s->head_dim && split->cols == 2 * q->cols) {
        a.from = split->x;
        a.gate = split->y1;
        c->delayed.bytes = 0;
    }
    cuda_kv_put(c, &a);
    attend(b, y, q, r, il, s);
}

void cuda_attend_ops(Backend *b)
{
    b->attend = attend;
    b->attend_block = attend_block;
}
