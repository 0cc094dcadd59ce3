#include "model/step.h"

#include <stdlib.h>
#include <string.h>

enum { COUNTS = 4 };                               /* Rows.count, and one for alignment */

/* The tables are in one block, each at the offset that the largest pass needs, so their addresses never change:
 *   token slice parent pos | lane x4 | want tap_slot logit_row | slices */
static size_t place_tables(Rows *r, uint8_t *block, const StepLimits *lim, size_t *slices_at)
{
    size_t n = (size_t) lim->n_max, at = sizeof(int32_t) * COUNTS;
    r->count = (int32_t *) (void *) block;
    int32_t **column[] = { &r->token, &r->slice, &r->parent, &r->pos, &r->lane, &r->want, &r->tap_slot, &r->logit_row };
    for (size_t i = 0; i < sizeof column / sizeof *column; i++) {
        *column[i] = block ? (int32_t *) (void *) (block + at) : NULL;
        at += sizeof(int32_t) * n * (column[i] == &r->lane ? POS_LANES : 1);
    }
    at = (at + 63) / 64 * 64;
    *slices_at = at;
    r->slices = block ? (Slice *) (void *) (block + at) : NULL;
    return at + sizeof(Slice) * (size_t) lim->slices_max;
}

static size_t carry_bytes(const StepLimits *lim)
{
    return sizeof(float) * (size_t) lim->n_max * (size_t) (lim->dim + lim->tap_width);
}

static Status open_one(Step *s, Backend *model, const StepLimits *lim, bool last, Error *err)
{
    *s = (Step) { .lim = *lim };
    TRY(model->fork(model, lim->threads, &s->be, err));
    Backend *be = s->be;
    s->table_bytes = place_tables(&s->host, NULL, lim, &s->slices_at);
    s->table_host = calloc(1, s->table_bytes);
    s->state = calloc((size_t) lim->slices_max, sizeof *s->state);
    s->canvas = calloc((size_t) lim->slices_max, sizeof *s->canvas);
    if (!last) s->carry = malloc(carry_bytes(lim));
    if (!s->table_host || !s->state || !s->canvas || (!last && !s->carry))
        return fail(err, ST_MEMORY, "step: out of memory");
    s->table = be->alloc(be, s->table_bytes, "step tables");
    if (lim->scratch_bytes) s->scratch = be->alloc(be, lim->scratch_bytes, "step scratch");
    bool taps = last && lim->tap_width && lim->chunk;
    if (taps) s->chunk_taps = be->alloc(be, sizeof(float) * (size_t) lim->tap_width * (size_t) lim->chunk, "taps");
    if (!s->table || (lim->scratch_bytes && !s->scratch) || (taps && !s->chunk_taps)) return be->sync(be, err);
    place_tables(&s->host, s->table_host, lim, &s->slices_at);
    place_tables(&s->rows, s->table, lim, &s->slices_at);
    return ST_OK;
}

/* The forks from stage s on, for state.h. */
static void list_stages(Step *s, const Stages *model, int32_t first)
{
    for (int32_t k = first; k < model->n; k++, s = s->next) {
        int32_t n = 0;
        for (Step *t = s; t; t = t->next, n++) {
            s->on.at[n].be = t->be;
            s->on.at[n].end = model->at[k + n].end;
        }
        s->on.n = n;
    }
}

Status step_open(Step *s, const Stages *model, const StepLimits *lim, Error *err)
{
    Step *at = s;
    for (int32_t k = 0; k < model->n; k++) {
        if (k > 0 && !(at->next = calloc(1, sizeof *at))) {
            step_close(s);
            return fail(err, ST_MEMORY, "step: out of memory");
        }
        if (k > 0) at = at->next;
        Status st = open_one(at, model->at[k].be, lim, k == model->n - 1, err);
        if (st != ST_OK) {
            step_close(s);
            return st;
        }
    }
    list_stages(s, model, 0);
    return ST_OK;
}

static void close_one(Step *s)
{
    if (s->chunk_taps)
        s->be->release(s->be, s->chunk_taps, sizeof(float) * (size_t) s->lim.tap_width * (size_t) s->lim.chunk);
    if (s->scratch) s->be->release(s->be, s->scratch, s->lim.scratch_bytes);
    if (s->table) s->be->release(s->be, s->table, s->table_bytes);
    if (s->be) s->be->close(s->be);
    free(s->state);
    free(s->canvas);
    free(s->carry);
    free(s->table_host);
}

void step_close(Step *s)
{
    for (Step *t = s->next, *after; t; t = after) {
        after = t->next;
        close_one(t);
        free(t);
    }
    close_one(s);
    *s = (Step) { 0 };
}

void step_hooks(Step *s, const Hooks *hooks)
{
    for (; s; s = s->next) s->hooks = hooks;
}

size_t step_peak(const Step *s)
{
    size_t peak = 0;
    for (; s; s = s->next) peak = s->peak > peak ? s->peak : peak;
    return peak;
}

size_t step_between(const Step *s)
{
    size_t sum = 0;
    for (; s->next; s = s->next) sum += carry_bytes(&s->lim);
    return sum;
}

/* ---- rows ---- */

static void launch_shape(Rows *r, const Rows *from)
{
    r->n = from->n;
    r->n_decode = from->n_decode;
    r->n_slices = from->n_slices;
    r->n_logits = from->n_logits;
    r->span = from->span;
    r->shifted = from->shifted;
}

Status step_wait(Step *s, Error *err)
{
    TRY(s->be->sync(s->be, err));
    return s->overflow ? fail(err, ST_BACKEND, "step: a pass of %d rows needs more scratch than was planned", s->host.n)
                       : ST_OK;
}

void pass_start(Step *s)
{
    for (; s; s = s->next) {
        s->used = s->kept = 0;
        s->n_tensors = s->n_ropes = 0;
        s->overflow = false;
        s->n_canvas = 0;
        launch_shape(&s->host, &(Rows) { .span = SPAN_LEAST });
    }
}

Slice *pass_slice(Step *s, const State *st, SliceKind kind, int32_t n, const int32_t *token, const int32_t *parent)
{
    Rows *r = &s->host;
    Slice *sl = &r->slices[r->n_slices];
    state_slice(st, kind, sl);
    s->state[r->n_slices] = st;
    sl->row0 = r->n;
    sl->n = n;
    sl->taps = NULL;
    sl->draw.n_tail = 0;
    sl->draw.n_bias = 0;
    sl->draw.p = draw_default();
    int32_t depth[ROWS_DECODE];                    /* of TREE rows */
    for (int32_t i = 0; i < n; i++) {
        int32_t row = r->n + i, up = kind == SLICE_TREE && parent ? parent[i] : i - 1, at = i;
        if (kind == SLICE_TREE) at = depth[i] = up < 0 ? 0 : depth[up] + 1;
        r->token[row] = token[i];
        r->slice[row] = r->n_slices;
        r->parent[row] = up;
        r->pos[row] = st->P + at;
        for (int32_t l = 0; l < POS_LANES; l++) r->lane[row * POS_LANES + l] = r->pos[row];
        r->want[row] = 0;
        r->tap_slot[row] = -1;
    }
    r->n += n;
    if (kind != SLICE_CHAIN) r->n_decode += n;
    r->n_slices++;
    const int32_t before = st->ring && st->ring < st->P ? st->ring : st->P;
    while (r->span < before) r->span *= 2;
    r->shifted |= st->ring > 0;                    /* full or not, whatever its length: one recorded pass for all */
    return sl;
}

void pass_want(Step *s, const Slice *slice, int32_t row, int32_t want, int32_t tap_slot)
{
    int32_t at = slice->row0 + row;
    s->host.want[at] |= want;
    if (want & WANT_TAPS) s->host.tap_slot[at] = tap_slot;
    if (want & WANT_LOGITS) s->host.logit_row[s->host.n_logits++] = at;
}

void pass_canvas(Step *s, float *before, float *soft, bool conditioned)
{
    for (; s; s = s->next) s->canvas[s->n_canvas++] = (StepCanvas) { s->next ? before : soft, conditioned };
}

Tensor step_canvas_rows(const Step *s, const Tensor *x, int32_t i)
{
    const Slice *sl = &s->host.slices[i];
    return (Tensor) { .type = T_F32, .rows = sl->n, .cols = x->cols,
                      .data = (float *) x->data + (size_t) sl->row0 * (size_t) x->cols };
}

Tensor step_canvas_soft(const Step *s, const Tensor *x, int32_t i)
{
    return (Tensor) { .type = T_F32, .rows = s->host.slices[i].n, .cols = x->cols, .data = s->canvas[i].soft };
}

static void send_tables(Step *s)
{
    launch_shape(&s->rows, &s->host);
    s->be->copy_in(s->be, s->table, s->table_host, s->slices_at + sizeof(Slice) * (size_t) s->host.n_slices);
}

static int32_t launched(const Backend *be, int32_t n)
{
    for (int32_t i = 0; i < be->n_widths; i++)
        if (be->widths[i] >= n) return be->widths[i];
    return n;
}

/* Prompts come in too many shapes to record. */
static void round_up(Step *s, bool few)
{
    Rows *r = &s->host;
    s->n_real = r->n;
    s->n_logits_real = r->n_logits;
    memcpy(r->count, (int32_t[]) { r->n, r->n_decode, r->n_logits }, 3 * sizeof *r->count);
    const bool decodes = r->n == r->n_decode;
    if (r->n == 0 || !(decodes || few)) return;
    for (int32_t n = launched(s->be, r->n); r->n < n; r->n++) {
        r->token[r->n] = r->pos[r->n] = r->want[r->n] = 0;
        r->slice[r->n] = r->parent[r->n] = r->tap_slot[r->n] = -1;
        for (int32_t l = 0; l < POS_LANES; l++) r->lane[r->n * POS_LANES + l] = 0;
    }
    if (decodes) r->n_decode = r->n;
    for (int32_t n = r->n_logits ? launched(s->be, r->n_logits) : 0; r->n_logits < n; r->n_logits++)
        r->logit_row[r->n_logits] = 0;
}

/* Later stages have the same tables except for the layers' addresses. */
void pass_tables(Step *s, bool few)
{
    const Rows real = s->host;
    round_up(s, few);
    send_tables(s);
    int32_t k = 1;
    for (Step *t = s->next; t; t = t->next, k++) {
        memcpy(t->table_host, s->table_host, s->slices_at);
        launch_shape(&t->host, &real);
        for (int32_t i = 0; i < s->host.n_slices; i++) {
            t->host.slices[i] = s->host.slices[i];
            t->host.slices[i].layer = s->state[i]->layer[k];
        }
        round_up(t, few);
        send_tables(t);
    }
}

bool pass_commit(Step *s, const void *owner)
{
    /* Two steps of one engine have separate scratch and tables, so the addresses of these and of the results are part
     * of the key. */
    struct {
        const void *owner, *table, *scratch;
        size_t used;
        int32_t shape[6], n_max, no_fused;
    } key;
    memset(&key, 0, sizeof key);
    const Rows *r = &s->host;
    key.owner = owner;
    key.table = s->table;
    key.scratch = s->scratch;
    key.used = s->used;
    memcpy(key.shape, (int32_t[]) { r->n, r->n_decode, r->n_slices, r->n_logits, r->span, r->shifted },
           sizeof key.shape);
    key.n_max = s->lim.n_max;
    key.no_fused = s->no_fused;
    const bool called = step_is_canvas(s) || (s->hooks && s->hooks->trace);
    return s->be->pass_begin(s->be, called ? NULL : (const void *) &key, called ? 0 : sizeof key);
}

/* ---- passes without rows ---- */

static Status fold_into(Step *s, State *st, int32_t set_out, Error *err)
{
    pass_start(s);
    pass_slice(s, st, SLICE_TREE, 0, NULL, NULL)->set_out = set_out;
    pass_tables(s, false);
    int32_t il = 0, k = 0;
    for (Step *t = s; t; t = t->next, k++)
        for (; il < st->n_layers && il < s->on.at[k].end; il++)
            if (st->spec[il].kind != LAYER_NONE) t->be->fold(t->be, &t->rows, il, &st->spec[il]);
    return stages_sync(&s->on, err);
}

Status step_fold(Step *s, State *st, Error *err)
{
    st->confirmed = true;
    if (st->n_path == 0) return ST_OK;
    TRY(state_writable(st, &s->on, err));
    TRY(fold_into(s, st, st->set, err));
    st->n_path = 0;
    st->gen++;
    return ST_OK;
}

Status step_checkpoint(Step *s, State *st, Error *err)
{
    if (st->ckpt_max == 0) return ST_OK;
    if (st->n_ckpt > 0 && st->ckpt[st->n_ckpt - 1].pos == st->P) return ST_OK;
    if (st->n_ckpt == st->ckpt_max) {
        memmove(st->ckpt, st->ckpt + 1, sizeof *st->ckpt * (size_t) (st->n_ckpt - 1));
        st->n_ckpt--;
    }
    st->confirmed = true;
    TRY(state_ready(st, &s->on, err));
    int32_t set = state_free_set(st);
    TRY(fold_into(s, st, set, err));
    return state_add_checkpoint(st, &s->on, set, err);
}

/* ---- scratch ---- */

static size_t tensor_bytes(Type type, int32_t rows, int32_t cols)
{
    size_t one = type == T_F32 || type == T_I32 ? 4 : 2;
    return (one * (size_t) rows * (size_t) cols + 63) / 64 * 64;
}

Tensor *step_new_tensor(Step *s, Type type, int32_t rows, int32_t cols)
{
    size_t bytes = tensor_bytes(type, rows, cols);
    bool measuring = s->lim.scratch_bytes == 0;
    /* A tensor that does not fit was missing from the plan: reuse the first one; model_pass reports the overflow. */
    if (s->n_tensors == STEP_TENSORS || (!measuring && bytes > s->lim.scratch_bytes - s->kept - s->used)) {
        s->overflow = true;
        s->n_tensors = 0;
        s->used = 0;
        if (!measuring && bytes > s->lim.scratch_bytes - s->kept) rows = 0, bytes = 0;
    }
    Tensor *t = &s->tensor[s->n_tensors++];
    *t = (Tensor) { .type = type, .rows = rows, .cols = cols, .data = s->scratch + s->used };
    s->used += bytes;
    if (s->used + s->kept > s->peak) s->peak = s->used + s->kept;
    return t;
}

Tensor *step_new_rows(Step *s, int32_t cols) { return step_new_tensor(s, T_F32, s->host.n, cols); }

StepMark step_mark(const Step *s) { return (StepMark) { s->used, s->n_tensors }; }

void step_reset(Step *s, StepMark m)
{
    s->used = m.used;
    s->n_tensors = m.n_tensors;
}

/* ---- operations ---- */

static void products(Step *s, int32_t n, Tensor *const *y, const Tensor *const *w, const Tensor *x)
{
    s->be->matmul(s->be, n, y, w, x);
    for (int32_t j = 0; j < n; j++)
        if (w[j]->factor != 0) s->be->scale(s->be, y[j], w[j]->factor, 0);
}

void step_linear(Step *s, int32_t n, Tensor **y, const Tensor *const *w, const Tensor *x)
{
    for (int32_t j = 0; j < n; j++) y[j] = step_new_tensor(s, T_F32, x->rows, w[j]->rows);
    products(s, n, y, w, x);
}

Tensor *step_linear1(Step *s, const Tensor *x, const Tensor *w)
{
    Tensor *y;
    step_linear(s, 1, &y, &w, x);
    return y;
}

void step_linear_to(Step *s, Tensor *y, const Tensor *x, const Tensor *w) { products(s, 1, &y, &w, x); }

void step_embed(Step *s, Tensor *x, const Tensor *table)
{
    const Tensor ids = { .type = T_I32, .rows = 1, .cols = s->host.n, .data = s->rows.token };
    s->be->embed(s->be, x, table, &ids);
}

Tensor *step_norm(Step *s, const Tensor *x, const Tensor *w, float eps)
{
    Tensor *y = step_new_tensor(s, T_F32, x->rows, x->cols);
    s->be->norm(s->be, y, x, w, eps);
    return y;
}

Tensor *step_add_norm(Step *s, Tensor *x, const Tensor *dx, const Tensor *w, float eps)
{
    Tensor *y = step_new_tensor(s, T_F32, x->rows, x->cols);
    if (s->be->add_norm && !s->no_fused) {
        s->be->add_norm(s->be, y, x, dx, w, eps);
    } else {
        s->be->add(s->be, x, dx);
        s->be->norm(s->be, y, x, w, eps);
    }
    return y;
}

void step_head_norm(Step *s, Tensor *x, const Tensor *w, int32_t head_dim, float eps)
{
    s->be->head_norm(s->be, x, w, head_dim, eps);
}

Tensor *step_unit_heads(Step *s, const Tensor *x, int32_t head_dim, float eps)
{
    Tensor *y = step_new_tensor(s, T_F32, x->rows, x->cols), heads = *y, from = *x;
    heads.rows = from.rows = y->rows * (y->cols / head_dim);
    heads.cols = from.cols = head_dim;
    s->be->norm(s->be, &heads, &from, NULL, eps);
    return y;
}

void step_gated_norm(Step *s, Tensor *x, const Tensor *w, const Tensor *z, int32_t head_dim, float eps)
{
    s->be->gated_norm(s->be, x, w, z, head_dim, eps);
}

void step_add(Step *s, Tensor *x, const Tensor *dx) { s->be->add(s->be, x, dx); }

void step_scale(Step *s, Tensor *x, float by) { s->be->scale(s->be, x, by, 0); }

void step_add_bias(Step *s, Tensor *x, const Tensor *bias)
{
    if (bias->data) s->be->bias(s->be, x, bias);
}

void step_gate(Step *s, Tensor *x, const Tensor *logit, Act act, int32_t width)
{
    s->be->gate(s->be, x, logit, act, width);
}

Tensor *step_glu(Step *s, const Tensor *gate, const Tensor *up, Act act)
{
    Tensor *y = step_new_tensor(s, T_F32, gate->rows, gate->cols);
    s->be->glu(s->be, y, gate, up, act);
    return y;
}

void step_split(Step *s, Tensor **y, const Tensor *x, int32_t width)
{
    for (int32_t i = 0; i < 2; i++) y[i] = step_new_tensor(s, T_F32, x->rows, x->cols / 2);
    s->be->split(s->be, y[0], y[1], x, width);
}

Tensor *step_join(Step *s, const Tensor *x0, const Tensor *x1)
{
    Tensor *y = step_new_tensor(s, T_F32, x0->rows, x0->cols + x1->cols);
    s->be->join(s->be, y, x0, x1);
    return y;
}

Tensor *step_ffn(Step *s, const Tensor *x, const Tensor *gate, const Tensor *up, const Tensor *down, Act act)
{
    Tensor *y[2];
    step_linear(s, 2, y, (const Tensor *[]) { gate, up }, x);
    return step_linear1(s, step_glu(s, y[0], y[1], act), down);
}

Tensor *step_swiglu(Step *s, const Tensor *x, const Tensor *gate, const Tensor *up, const Tensor *down)
{
    return step_ffn(s, x, gate, up, down, ACT_SILU);
}

Tensor *step_moe(Step *s, int32_t il, const Tensor *x, const Tensor *logits, const Tensor *bias, const Tensor *factor,
                 const Router *r, const Tensor *gate, const Tensor *up, const Tensor *down, Act act)
{
    const int32_t places = x->rows * r->used;
    Tensor *y = step_new_tensor(s, T_F32, x->rows, down->rows);
    const StepMark mark = step_mark(s);
    Tensor *ids = step_new_tensor(s, T_I32, x->rows, r->used), *weight = step_new_tensor(s, T_F32, x->rows, r->used);
    const Experts e = { gate, up, down, act, step_new_tensor(s, T_F32, places, gate->rows),
                        step_new_tensor(s, T_F32, places, up->rows), step_new_tensor(s, T_F32, places, down->rows) };
    s->be->route(s->be, ids, weight, logits, bias, factor ? factor : down->factors, r, &s->rows);
    s->be->experts(s->be, y, x, ids, weight, &e);
    step_trace(s, "experts", il, ids);
    step_reset(s, mark);
    return y;
}

Routes step_routes(Step *s)
{
    Routes sum = { 0 }, one;
    for (; s; s = s->next) {
        if (!s->be->routes) continue;
        s->be->routes(s->be, &one);
        sum.chosen += one.chosen;
        sum.read += one.read;
        sum.missed += one.missed;
        sum.missed_bytes += one.missed_bytes;
        sum.waited += one.waited;
    }
    return sum;
}

/* The table of a rotation for this pass's rows, made at first use; NULL: no room, the pass fails. */
static const Tensor *turns(Step *s, const StageRope *rope)
{
    int32_t i = 0;
    while (i < s->n_ropes && s->rope[i].of != rope) i++;
    if (i < s->n_ropes) return &s->rope[i].table;
    const Rope *at = &rope->at[s->stage];
    size_t bytes = tensor_bytes(T_F32, s->host.n, at->n_rot), room = s->lim.scratch_bytes - s->kept - s->used;
    bool measuring = s->lim.scratch_bytes == 0;
    if (i == STEP_ROPES || (!measuring && bytes > room)) {
        s->overflow = true;
        return NULL;
    }
    s->kept += bytes;
    if (s->used + s->kept > s->peak) s->peak = s->used + s->kept;
    Tensor *t = &s->rope[s->n_ropes++].table;
    s->rope[i].of = rope;
    *t = (Tensor) { .type = T_F32, .rows = s->host.n, .cols = at->n_rot,
                    .data = s->scratch + (measuring ? 0 : s->lim.scratch_bytes - s->kept) };
    s->be->rope_table(s->be, t, &s->rows, at);
    return t;
}

static void rotate(Step *s, Tensor *x, int32_t head_dim, const StageRope *rope)
{
    const Tensor *t = turns(s, rope);
    if (t) s->be->rope(s->be, x, t, head_dim, &rope->at[s->stage]);
}

void step_store_kv(Step *s, int32_t il, const LayerSpec *sp, Tensor *k, Tensor *v, const StageRope *rope)
{
    rotate(s, k, sp->head_dim, rope);
    s->be->kv_put(s->be, k, v, &s->rows, il, sp);
}

static Tensor *attend_parts(Step *s, int32_t il, const LayerSpec *sp, Tensor *q, Tensor *k, Tensor *v,
                            const Tensor *q_norm, const Tensor *k_norm, float eps, const StageRope *rope)
{
    if (q_norm) step_head_norm(s, q, q_norm, sp->head_dim, eps);
    if (k_norm) step_head_norm(s, k, k_norm, sp->head_dim, eps);
    rotate(s, q, sp->head_dim, rope);
    step_store_kv(s, il, sp, k, v, rope);
    Tensor *y = step_new_rows(s, sp->heads * value_dim(sp));
    s->be->attend(s->be, y, q, &s->rows, il, sp);
    return y;
}

Tensor *step_attend_normed(Step *s, int32_t il, const LayerSpec *sp, Tensor *q, Tensor *k, Tensor *v,
                           const Tensor *q_norm, const Tensor *k_norm, float eps, const StageRope *rope)
{
    if (!s->be->attend_block || s->no_fused) return attend_parts(s, il, sp, q, k, v, q_norm, k_norm, eps, rope);
    const Heads h = { q_norm, k_norm, turns(s, rope), rope->at[s->stage], eps };
    Tensor *y = step_new_rows(s, sp->heads * value_dim(sp));
    if (h.turn) s->be->attend_block(s->be, y, q, k, v, &h, &s->rows, il, sp);
    return y;
}

Tensor *step_attend(Step *s, int32_t il, const LayerSpec *sp, Tensor *q, Tensor *k, Tensor *v, const StageRope *rope)
{
    return step_attend_normed(s, il, sp, q, k, v, NULL, NULL, 0, rope);
}

Tensor *step_short_conv(Step *s, int32_t il, const LayerSpec *sp, const Tensor *x, const Tensor *w)
{
    Tensor *y = step_new_rows(s, x->cols);
    s->be->conv(s->be, y, x, w, &s->rows, il, sp);
    return y;
}

Tensor *step_delta_rule(Step *s, int32_t il, const LayerSpec *sp, const Tensor *qkv, const Tensor *beta,
                        const Tensor *alpha, const Tensor *a, const Tensor *dt)
{
    Tensor *y = step_new_rows(s, sp->v_heads * sp->v_dim);
    s->be->delta(s->be, y, qkv, beta, alpha, a, dt, &s->rows, il, sp);
    return y;
}

Tensor *step_taps(Step *s, int32_t cols)
{
    Tensor *y = step_new_rows(s, cols);
    s->be->tap_get(s->be, y, &s->rows);
    return y;
}

Tensor *step_block_conv(Step *s, const Tensor *x, const Tensor *base, const Tensor *delta, int32_t side, int32_t taps,
                        int32_t group)
{
    Tensor *y = step_new_rows(s, x->cols);
    s->be->block_conv(s->be, y, x, base, delta, side, taps, group, &s->rows);
    return y;
}

void step_pair_scores(Step *s, Tensor *edge, const Tensor *pred, const Tensor *succ, const Tensor *ids,
                      const Tensor *score, const Tensor *g)
{
    s->be->pair_scores(s->be, edge, pred, succ, ids, score, g, &s->rows);
}

void step_trace(Step *s, const char *name, int32_t il, const Tensor *t)
{
    if (s->hooks && s->hooks->trace) s->hooks->trace(s->hooks->ud, s->be, name, il, t);
}
