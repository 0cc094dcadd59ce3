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

static bool can_keep(Cuda *c, const Rows *r)
{
    if (r->n_slices > TICKETS && !cuda_failed(c))
        fail(&c->error, ST_UNSUPPORTED, "cuda: %d sessions in one pass, expected up to %d", r->n_slices, TICKETS);
    return !cuda_failed(c);
}

static void put_or_move(Cuda *c, KvPutArgs *a)
{
    const bool turned = a->spec.k_type == T_TQ3_0 || a->spec.v_type == T_TQ3_0;
    a->tickets = c->tickets + MARK_KV * TICKETS;
    cuda_launch(c, turned ? GPU_kv_put_turned : GPU_kv_put, a->rows.n_slices * 2 * a->spec.kv_heads, a->groups, a,
                sizeof *a);
}

void cuda_kv_move(Cuda *c, const Rows *r, int32_t il, const LayerSpec *s)
{
    if (!can_keep(c, r)) return;
    put_or_move(c, &(KvPutArgs) { .rows = *r, .spec = *s, .il = il, .groups = 1, .move = 1 });
}

static void kv_put(Backend *b, const Tensor *k, const Tensor *v, const Rows *r, int32_t il, const LayerSpec *s)
{
    Cuda *c = cuda_of(b);
    const bool grouped = r->n > GROUPED;
    if (!can_keep(c, r)) return;
    if (grouped) cuda_kv_move(c, r, il, s);        /* rows are stored where parts of the path still lie */
    const int32_t groups = grouped ? r->n / GROUP + 2 : 1;
    put_or_move(c, &(KvPutArgs) { .k = k->data, .v = v->data, .rows = *r, .spec = *s, .il = il, .groups = groups,
                                  .move = !grouped, .put = 1 });
}

void cuda_kv_ops(Backend *b)
{
    b->kv_bytes = kv_bytes;
    b->kv_save = kv_save;
    b->kv_load = kv_load;
    b->kv_put = kv_put;
}
