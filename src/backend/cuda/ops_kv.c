/* ops_kv.c - keys and values: storing, moving, saving, loading. They lie as the CPU's do, which is also the order of
 * images. */
#include "backend/cpu/kv_store.h"
#include "backend/cuda/cuda.h"

static size_t kv_bytes(Backend *b, const LayerSpec *s, bool values, int32_t n)
{
    (void) b;
    return kv_store_bytes(s, values, n);
}

static void kv_save(Backend *b, const LayerSpec *s, bool values, const void *slots, int32_t n, const uint8_t *keep,
                    uint8_t *host)
{
    Cuda *c = cuda_of(b);
    b->copy_out(b, host, slots, kv_store_bytes(s, values, n));
    cuda_settle(c);
    if (!cuda_failed(c)) kv_store_clear(s, values, host, n, keep);
}

static void kv_load(Backend *b, const LayerSpec *s, bool values, void *slots, int32_t n, const uint8_t *host)
{
    b->copy_in(b, slots, host, kv_store_bytes(s, values, n));
}

enum { GROUP = 16, GROUPED = 64 };                 /* positions of a group; rows up to which one block stores all */

bool cuda_has_tickets(Cuda *c, const Rows *r)
{
    if (r->n_slices > TICKETS && !cuda_failed(c))
        fail(&c->error, ST_UNSUPPORTED, "cuda: %d sessions in one pass, expected up to %d", r->n_slices, TICKETS);
    return !cuda_failed(c);
}

static bool can_keep(Cuda *c, const Rows *r, const LayerSpec *s)
{
    const int32_t width = s->head_dim > value_dim(s) ? s->head_dim : value_dim(s);
    if (cuda_has_tickets(c, r) && width > KV_WIDTH)
        fail(&c->error, ST_UNSUPPORTED, "attention: heads of %d values, expected at most %d", width, KV_WIDTH);
    return !cuda_failed(c);
}

static void put_or_move(Cuda *c, KvPutArgs *a)
{
    const bool turned = a->spec.k_type == T_TQ3_0 || a->spec.v_type == T_TQ3_0;
    const int64_t queries = a->q ? (int64_t) a->rows.n * ((a->spec.heads + KV_WARPS - 1) / KV_WARPS) : 0;
    a->tickets = c->tickets + MARK_KV * TICKETS;
    cuda_launch(c, turned ? GPU_kv_put_turned : GPU_kv_put,
                (int64_t) a->groups * a->rows.n_slices * 2 * a->spec.kv_heads + queries, 1, a, sizeof *a);
}

void cuda_kv_move(Cuda *c, const Rows *r, int32_t il, const LayerSpec *s)
{
    if (!can_keep(c, r, s)) return;
    put_or_move(c, &(KvPutArgs) { .rows = *r, .spec = *s, .il = il, .groups = 1, .move = 1 });
}

void cuda_kv_put(Cuda *c, KvPutArgs *a)
{
    const Rows *r = &a->rows;
    const bool grouped = r->n > GROUPED;
    if (!can_keep(c, r, &a->spec)) return;
    if (grouped) cuda_kv_move(c, r, a->il, &a->spec);      /* rows are stored where parts of the path still lie */
    a->groups = grouped ? r->n / GROUP + 2 : 1;
    a->move = !grouped;
    a->put = 1;
    put_or_move(c, a);
}

static void kv_put(Backend *b, const Tensor *k, const Tensor *v, const Rows *r, int32_t il, const LayerSpec *s)
{
    cuda_kv_put(cuda_of(b), &(KvPutArgs) { .k = k->data, .v = v->data, .rows = *r, .spec = *s, .il = il });
}

void cuda_kv_ops(Backend *b)
{
    b->kv_bytes = kv_bytes;
    b->kv_save = kv_save;
    b->kv_load = kv_load;
    b->kv_put = kv_put;
}
