/* null: the backend that only counts, standing for a real one: sizes are asked of that one, addresses are numbers that
 * nobody dereferences, and operations do nothing. A plan is what it has counted after running the largest step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"

enum { PARTS = 48 };
typedef struct { const char *owner; char name[48]; size_t bytes; } Part;
typedef struct { Part part[PARTS]; int32_t n_parts; uintptr_t next; const char *owner; } Count;
typedef struct { Backend be; Backend *like; Count *count; bool forked; } Null;     /* count: shared by all forks */

static size_t weight_bytes(Backend *b, Type t, int32_t rows, int32_t cols)
{
    Backend *l = ((Null *) b)->like;
    return l->weight_bytes(l, t, rows, cols);
}
static size_t kv_bytes(Backend *b, const LayerSpec *s, bool values, int32_t n)
{
    Backend *l = ((Null *) b)->like;
    return l->kv_bytes(l, s, values, n);
}
static void memory(Backend *b, uint64_t *there, uint64_t *total)
{
    Backend *l = ((Null *) b)->like;
    l->memory(l, there, total);
}
static void nothing_measured(Backend *b, int32_t n, uint64_t bytes, Peaks *p)
{
    (void) b, (void) n, (void) bytes, (void) p;
}

static size_t fork_bytes(Backend *b, int32_t threads)
{
    Backend *l = ((Null *) b)->like;
    return l->fork_bytes(l, threads);
}

static void *take(Backend *b, size_t bytes, const char *name)
{
    Count *z = ((Null *) b)->count;
    int32_t i = 0;
    while (i < z->n_parts && (strcmp(z->part[i].name, name) != 0 || z->part[i].owner != z->owner)) i++;
    if (i == PARTS) i--;        /* PARTS exceeds the number of names; otherwise the last part takes the rest */
    if (i == z->n_parts) {
        z->part[i].owner = z->owner;
        snprintf(z->part[z->n_parts++].name, sizeof z->part[0].name, "%s", name);
    }
    z->part[i].bytes += backend_block(b, bytes);
    void *p = (void *) z->next;
    z->next += (bytes + 63) / 64 * 64 + 64;
    return p;
}

/* Reads nothing; counts a weight unless the real backend would read it in place. */
static bool attach(Backend *b, Tensor *w, const Source *s)
{
    Backend *l = ((Null *) b)->like;
    size_t n = w->n ? (size_t) w->n : 1;
    if (!l->attach(l, w, s)) w->data = take(b, n * l->weight_bytes(l, w->type, w->rows, w->cols), s->part);
    return true;
}

static Status store_needs(Backend *b, StoreNeeds *out, const Stacked *s, int32_t n, const StoreOptions *o, Error *err)
{
    Backend *l = ((Null *) b)->like;
    return l->store_needs(l, out, s, n, o, err);
}

static Status nothing_stored(Backend *b, const Stacked *s, int32_t n, void *memory, const StoreOptions *o, Error *err)
{
    (void) b, (void) s, (void) n, (void) memory, (void) o, (void) err;
    return ST_OK;
}

static void nothing_kv_save(Backend *b, const LayerSpec *s, bool values, const void *slots, int32_t n,
                            const uint8_t *keep, uint8_t *host)
{
    (void) slots, (void) keep;
    memset(host, 0, kv_bytes(b, s, values, n));
}

static void nothing_kv_load(Backend *b, const LayerSpec *s, bool values, void *slots, int32_t n, const uint8_t *host)
{
    (void) b, (void) s, (void) values, (void) slots, (void) n, (void) host;
}

static void nothing_release(Backend *b, void *p, size_t n) { (void) b, (void) p, (void) n; }
static void nothing_upload(Backend *b, Tensor *w, int32_t i, const void *src, int32_t row0, int32_t rows)
{
    (void) b, (void) w, (void) i, (void) src, (void) row0, (void) rows;
}
static void nothing_copy_in(Backend *b, void *d, const void *s, size_t n) { (void) b, (void) d, (void) s, (void) n; }
static void zero_copy_out(Backend *b, void *d, const void *s, size_t n) { (void) b, (void) s; memset(d, 0, n); }
static const void *zero_view(Backend *b, void *buf, const void *s, size_t n)
{
    (void) b, (void) s;
    memset(buf, 0, n);
    return buf;
}
static void nothing_fill(Backend *b, void *d, int v, size_t n) { (void) b, (void) d, (void) v, (void) n; }
static bool never_replayed(Backend *b, const void *k, size_t n) { (void) b, (void) k, (void) n; return false; }
static void nothing_pass_end(Backend *b, bool c) { (void) b, (void) c; }
static Status always_ok(Backend *b, Error *e) { (void) b, (void) e; return ST_OK; }

static void null_close(Backend *b)
{
    Null *z = (Null *) b;
    if (!z->forked) free(z->count);
    free(z);
}

static Status null_fork(Backend *b, int32_t threads, Backend **out, Error *err)
{
    Null *z = malloc(sizeof *z);
    *out = NULL;
    if (!z) return fail(err, ST_MEMORY, "plan: out of memory");
    *z = *(Null *) b;
    z->forked = true;
    take(&z->be, fork_bytes(b, threads), "backend workspace");
    *out = &z->be;
    return ST_OK;
}

static void op_x2(Backend *b, Tensor *y, const Tensor *x) { (void) b, (void) y, (void) x; }
static void op_embed(Backend *b, Tensor *x, const Tensor *t, const Tensor *i)
{
    (void) b, (void) x, (void) t, (void) i;
}
static void op_matmul(Backend *b, int32_t n, Tensor *const *y, const Tensor *const *w, const Tensor *x)
{
    (void) b, (void) n, (void) y, (void) w, (void) x;
}
static void op_norm(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, float e)
{
    (void) b, (void) y, (void) x, (void) w, (void) e;
}
static void op_head_norm(Backend *b, Tensor *x, const Tensor *w, int32_t d, float e)
{
    (void) b, (void) x, (void) w, (void) d, (void) e;
}
static void op_gated_norm(Backend *b, Tensor *x, const Tensor *w, const Tensor *z, int32_t d, float e)
{
    (void) b, (void) x, (void) w, (void) z, (void) d, (void) e;
}
static void op_split(Backend *b, Tensor *y, Tensor *z, const Tensor *x, int32_t w)
{
    (void) b, (void) y, (void) z, (void) x, (void) w;
}
static void op_join(Backend *b, Tensor *y, const Tensor *x, const Tensor *z) { (void) b, (void) y, (void) x, (void) z; }
static void op_scale(Backend *b, Tensor *x, float a, float c) { (void) b, (void) x, (void) a, (void) c; }
static void op_rows(Backend *b, Tensor *y, const Tensor *x, const Rows *r) { (void) b, (void) y, (void) x, (void) r; }
static void op_tap(Backend *b, const Tensor *x, const Rows *r, int32_t j, int32_t n)
{
    (void) b, (void) x, (void) r, (void) j, (void) n;
}
static void op_tap_get(Backend *b, Tensor *f, const Rows *r) { (void) b, (void) f, (void) r; }
static void op_rope_table(Backend *b, Tensor *t, const Rows *r, const Rope *p)
{
    (void) b, (void) t, (void) r, (void) p;
}
static void op_rope(Backend *b, Tensor *x, const Tensor *t, int32_t d, const Rope *p)
{
    (void) b, (void) x, (void) t, (void) d, (void) p;
}
static void op_kv_put(Backend *b, const Tensor *k, const Tensor *v, const Rows *r, int32_t il, const LayerSpec *s)
{
    (void) b, (void) k, (void) v, (void) r, (void) il, (void) s;
}
static void op_attend(Backend *b, Tensor *y, const Tensor *q, const Rows *r, int32_t il, const LayerSpec *s)
{
    (void) b, (void) y, (void) q, (void) r, (void) il, (void) s;
}
static void op_conv(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, const Rows *r, int32_t il,
                    const LayerSpec *s)
{
    (void) b, (void) y, (void) x, (void) w, (void) r, (void) il, (void) s;
}
static void op_delta(Backend *b, Tensor *y, const Tensor *q, const Tensor *be, const Tensor *al, const Tensor *a,
                     const Tensor *dt, const Rows *r, int32_t il, const LayerSpec *s)
{
    (void) b, (void) y, (void) q, (void) be, (void) al, (void) a, (void) dt, (void) r, (void) il, (void) s;
}
static void op_fold(Backend *b, const Rows *r, int32_t il, const LayerSpec *s)
{
    (void) b, (void) r, (void) il, (void) s;
}
static void op_block_conv(Backend *b, Tensor *y, const Tensor *x, const Tensor *ba, const Tensor *de, int32_t s,
                          int32_t t, int32_t g, const Rows *r)
{
    (void) b, (void) y, (void) x, (void) ba, (void) de, (void) s, (void) t, (void) g, (void) r;
}
static void op_pair_scores(Backend *b, Tensor *e, const Tensor *p, const Tensor *s, const Tensor *i, const Tensor *c,
                           const Tensor *g, const Rows *r)
{
    (void) b, (void) e, (void) p, (void) s, (void) i, (void) c, (void) g, (void) r;
}
static void op_glu(Backend *b, Tensor *y, const Tensor *g, const Tensor *u, Act a)
{
    (void) b, (void) y, (void) g, (void) u, (void) a;
}
static void op_gate(Backend *b, Tensor *x, const Tensor *l, Act a, int32_t w)
{
    (void) b, (void) x, (void) l, (void) a, (void) w;
}
static void op_top_k(Backend *b, Tensor *i, Tensor *s, const Tensor *l, const Rows *r, int32_t k)
{
    (void) b, (void) i, (void) s, (void) l, (void) r, (void) k;
}
static void op_copy(Backend *b, void *d, const void *s, size_t n) { (void) b, (void) d, (void) s, (void) n; }
static void op_add_norm(Backend *b, Tensor *y, Tensor *x, const Tensor *dx, const Tensor *w, float e)
{
    (void) b, (void) y, (void) x, (void) dx, (void) w, (void) e;
}
static void op_attend_block(Backend *b, Tensor *y, Tensor *q, Tensor *k, const Tensor *v, const Heads *h, const Rows *r,
                            int32_t il, const LayerSpec *s)
{
    (void) b, (void) y, (void) q, (void) k, (void) v, (void) h, (void) r, (void) il, (void) s;
}
static void op_route(Backend *b, Tensor *i, Tensor *w, const Tensor *l, const Tensor *bi, const Tensor *f,
                     const Router *r, const Rows *s)
{
    (void) b, (void) i, (void) w, (void) l, (void) bi, (void) f, (void) r, (void) s;
}
static void op_experts(Backend *b, Tensor *y, const Tensor *x, const Tensor *i, const Tensor *w, const Experts *e)
{
    (void) b, (void) y, (void) x, (void) i, (void) w, (void) e;
}
static void op_canvas(Backend *b, CanvasRow *f, Tensor *s, const Tensor *x, const CanvasEnd *e, const Rows *r)
{
    (void) b, (void) f, (void) s, (void) x, (void) e, (void) r;
}
static void op_pick(Backend *b, Tensor *i, Tensor *g, const Tensor *l, const Tensor *m, const Rows *r)
{
    (void) b, (void) i, (void) g, (void) l, (void) m, (void) r;
}

Status backend_null_open(Backend **out, Backend *like, Error *err)
{
    Null *z = calloc(1, sizeof *z);
    Count *count = calloc(1, sizeof *count);
    *out = NULL;
    if (!z || !count) {
        free(z);
        free(count);
        return fail(err, ST_MEMORY, "plan: out of memory");
    }
    z->like = like;
    z->count = count;
    count->next = 4096;
    count->owner = "";
    z->be = (Backend) {
        .name = like->name, .level = like->level, .widths = like->widths, .n_widths = like->n_widths,
        .chunk = like->chunk, .device = like->device, .shares = like->shares, .page = like->page,
        .staging = like->staging,
        .weight_bytes = weight_bytes, .kv_bytes = kv_bytes, .memory = memory, .measure = nothing_measured,
        .attach = attach, .store_needs = like->store_needs ? store_needs : NULL, .store = nothing_stored,
        .kv_save = nothing_kv_save, .kv_load = nothing_kv_load,
        .fork = null_fork, .fork_bytes = fork_bytes, .alloc = take, .release = nothing_release,
        .upload = nothing_upload, .copy_in = nothing_copy_in, .copy_out = zero_copy_out, .view = zero_view,
        .fill = nothing_fill, .copy = op_copy, .pass_begin = never_replayed, .pass_end = nothing_pass_end,
        .sync = always_ok, .close = null_close,
        .embed = op_embed, .matmul = op_matmul, .norm = op_norm, .head_norm = op_head_norm, .add = op_x2,
        .bias = op_x2, .glu = op_glu, .gate = op_gate, .gated_norm = op_gated_norm, .split = op_split, .join = op_join,
        .scale = op_scale, .logit_rows = op_rows, .tap = op_tap, .tap_get = op_tap_get,
        .rope_table = op_rope_table, .rope = op_rope,
        .kv_put = op_kv_put, .attend = op_attend, .conv = op_conv, .delta = op_delta, .fold = op_fold,
        .block_conv = op_block_conv, .pair_scores = op_pair_scores, .top_k = op_top_k,
        .add_norm = like->add_norm ? op_add_norm : NULL, .pick = like->pick ? op_pick : NULL,
        .attend_block = like->attend_block ? op_attend_block : NULL,
        .route = like->route ? op_route : NULL, .experts = like->experts ? op_experts : NULL,
        .canvas = like->canvas ? op_canvas : NULL,
    };
    *out = &z->be;
    return ST_OK;
}

void backend_null_owner(Backend *null, const char *owner) { ((Null *) null)->count->owner = owner; }

void backend_null_parts(Backend *null, void (*part)(void *ud, const char *owner, const char *name, size_t bytes),
                        void *ud)
{
    const Count *z = ((Null *) null)->count;
    for (int32_t i = 0; i < z->n_parts; i++) part(ud, z->part[i].owner, z->part[i].name, z->part[i].bytes);
}
