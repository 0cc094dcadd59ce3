/* ops_attend.c - attention: scores, which become weights, then values; in parts that fit the workspace. */
#include "backend/cuda/cuda.h"
#include "backend/cpu/kv_panels.h"

enum { ITEM_TICKETS = 1 << 18, TICKET_BYTES = ITEM_TICKETS * 4, ITEMS_MAX = 1 << 20 };

static int32_t at_most(int64_t n, int64_t limit) { return (int32_t) (n < limit ? n : limit); }

/* Tiles that an item can have: its queries see at most what is there, or their window; rows of a tree are up to
 * ROWS_DECODE apart, of a canvas up to CANVAS_MAX. */
static int32_t most_tiles(const Rows *r, const LayerSpec *s)
{
    const int64_t all = ((int64_t) r->span + r->n + TILE - 1) / TILE;
    const int32_t apart = s->canvas ? CANVAS_MAX : 2 * ROWS_DECODE;
    const int64_t seen = s->window ? ((int64_t) s->window + apart) / TILE + 2 : INT32_MAX / TILE;
    return at_most(all, seen);
}

static void attend(Backend *b, Tensor *y, const Tensor *q, const Rows *r, int32_t il, const LayerSpec *s)
{
    Cuda *c = cuda_of(b);
    const bool whole = !s->window && !s->ring, turned = s->v_type == T_TQ3_0;
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
                  each = (int64_t) tiles * (TILE + 1) + 2 * a.splits + parts,
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
        a.partial = a.change + queries * (size_t) tiles;
        cuda_launch(c, codes_are_integers(s->k_type) ? GPU_attend_scores_codes : GPU_attend_scores, a.items, tiles, &a,
                    sizeof a);
        const bool codes = codes_are_integers(s->v_type);
        const int64_t few = (int64_t) a.items * (a.v_pad / ATTEND_COLS_FEW),
                      many = (int64_t) a.items * ((a.v_pad + ATTEND_COLS_MANY - 1) / ATTEND_COLS_MANY);
        if (codes) cuda_launch(c, GPU_attend_values_codes, few * ATTEND_COLS_FEW / ATTEND_COLS, a.splits, &a, sizeof a);
        else if (many * a.splits <= 2 * (int64_t) c->card->processors)
            cuda_launch(c, GPU_attend_values, few, a.splits, &a, sizeof a);
        else cuda_launch(c, GPU_attend_values_many, many, a.splits, &a, sizeof a);
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
