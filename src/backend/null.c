/* null: the backend that only counts. It stands for a real one: sizes are asked of that, addresses are numbers that nobody reads, and
 * operations do nothing. A plan is what it has counted after the largest step was run on it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"

enum { PARTS = 32 };
typedef struct { char name[48]; size_t bytes; } Part;
typedef struct { Backend be; Backend *like; Part part[PARTS]; int32_t n_parts; uintptr_t next; } Null;

static size_t weight_bytes(Backend *b, Type t, int32_t rows, int32_t cols) { Backend *l = ((Null *) b)->like; return l->weight_bytes(l, t, rows, cols); }
static size_t kv_row_bytes(Backend *b, Type t, int32_t cols) { Backend *l = ((Null *) b)->like; return l->kv_row_bytes(l, t, cols); }
static int32_t kv_slots(Backend *b, Type t, bool values) { Backend *l = ((Null *) b)->like; return l->kv_slots(l, t, values); }
static void nothing_blank(Backend *b, void *h, const LayerSpec *s, bool v, int32_t from, int32_t n) { (void) b, (void) h, (void) s, (void) v, (void) from, (void) n; }
static size_t own_bytes(Backend *b) { Backend *l = ((Null *) b)->like; return l->own_bytes(l); }

static void *take(Backend *b, size_t bytes, const char *name)
{
    Null *z = (Null *) b;
    int32_t i = 0;
    while (i < z->n_parts && strcmp(z->part[i].name, name) != 0) i++;
    if (i == PARTS) i--;                           /* the table is longer than the program has names; the last part would take the rest */
    if (i == z->n_parts) snprintf(z->part[z->n_parts++].name, sizeof z->part[0].name, "%s", name);
    z->part[i].bytes += bytes;
    void *p = (void *) z->next;
    z->next += (bytes + 63) / 64 * 64 + 64;
    return p;
}

static void nothing_release(Backend *b, void *p, size_t n) { (void) b, (void) p, (void) n; }
static void nothing_upload(Backend *b, Tensor *w, const void *src, int32_t row0, int32_t rows) { (void) b, (void) w, (void) src, (void) row0, (void) rows; }
static void nothing_copy_in(Backend *b, void *d, const void *s, size_t n) { (void) b, (void) d, (void) s, (void) n; }
static void zero_copy_out(Backend *b, void *d, const void *s, size_t n) { (void) b, (void) s; memset(d, 0, n); }
static const void *zero_view(Backend *b, void *buf, const void *s, size_t n) { (void) b, (void) s; memset(buf, 0, n); return buf; }
static void nothing_fill(Backend *b, void *d, int v, size_t n) { (void) b, (void) d, (void) v, (void) n; }
static bool never_replayed(Backend *b, const void *k, size_t n) { (void) b, (void) k, (void) n; return false; }
static void nothing_pass_end(Backend *b, bool c) { (void) b, (void) c; }
static Status always_ok(Backend *b, Error *e) { (void) b, (void) e; return ST_OK; }
static void null_close(Backend *b) { free(b); }

static void op_x2(Backend *b, Tensor *y, const Tensor *x) { (void) b, (void) y, (void) x; }
static void op_embed(Backend *b, Tensor *x, const Tensor *t, const Tensor *i) { (void) b, (void) x, (void) t, (void) i; }
static void op_matmul(Backend *b, int32_t n, Tensor *const *y, const Tensor *const *w, const Tensor *x) { (void) b, (void) n, (void) y, (void) w, (void) x; }
static void op_norm(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, float e) { (void) b, (void) y, (void) x, (void) w, (void) e; }
static void op_head_norm(Backend *b, Tensor *x, const Tensor *w, int32_t d, float e) { (void) b, (void) x, (void) w, (void) d, (void) e; }
static void op_gated_norm(Backend *b, Tensor *x, const Tensor *w, const Tensor *z, int32_t d, float e) { (void) b, (void) x, (void) w, (void) z, (void) d, (void) e; }
static void op_split(Backend *b, Tensor *y, Tensor *z, const Tensor *x, int32_t w) { (void) b, (void) y, (void) z, (void) x, (void) w; }
static void op_join(Backend *b, Tensor *y, const Tensor *x, const Tensor *z) { (void) b, (void) y, (void) x, (void) z; }
static void op_scale(Backend *b, Tensor *x, float a, float c) { (void) b, (void) x, (void) a, (void) c; }
static void op_rows(Backend *b, Tensor *y, const Tensor *x, const Rows *r) { (void) b, (void) y, (void) x, (void) r; }
static void op_tap(Backend *b, const Tensor *x, const Rows *r, int32_t j, int32_t n) { (void) b, (void) x, (void) r, (void) j, (void) n; }
static void op_tap_get(Backend *b, Tensor *f, const Rows *r) { (void) b, (void) f, (void) r; }
static void op_rope(Backend *b, Tensor *x, const Rows *r, int32_t d, const Rope *p) { (void) b, (void) x, (void) r, (void) d, (void) p; }
static void op_kv_put(Backend *b, const Tensor *k, const Tensor *v, const Rows *r, int32_t il, const LayerSpec *s) { (void) b, (void) k, (void) v, (void) r, (void) il, (void) s; }
static void op_attend(Backend *b, Tensor *y, const Tensor *q, const Rows *r, int32_t il, const LayerSpec *s) { (void) b, (void) y, (void) q, (void) r, (void) il, (void) s; }
static void op_conv(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, const Rows *r, int32_t il, const LayerSpec *s) { (void) b, (void) y, (void) x, (void) w, (void) r, (void) il, (void) s; }
static void op_delta(Backend *b, Tensor *y, const Tensor *q, const Tensor *be, const Tensor *al, const Tensor *a, const Tensor *dt, const Rows *r, int32_t il, const LayerSpec *s) { (void) b, (void) y, (void) q, (void) be, (void) al, (void) a, (void) dt, (void) r, (void) il, (void) s; }
static void op_fold(Backend *b, const Rows *r, int32_t il, const LayerSpec *s) { (void) b, (void) r, (void) il, (void) s; }
static void op_block_conv(Backend *b, Tensor *y, const Tensor *x, const Tensor *ba, const Tensor *de, int32_t s, int32_t t, int32_t g, const Rows *r) { (void) b, (void) y, (void) x, (void) ba, (void) de, (void) s, (void) t, (void) g, (void) r; }
static void op_pair_scores(Backend *b, Tensor *e, const Tensor *p, const Tensor *s, const Tensor *i, const Tensor *c, const Tensor *g, const Rows *r) { (void) b, (void) e, (void) p, (void) s, (void) i, (void) c, (void) g, (void) r; }
static void op_glu(Backend *b, Tensor *y, const Tensor *g, const Tensor *u) { (void) b, (void) y, (void) g, (void) u; }
static void op_top_k(Backend *b, Tensor *i, Tensor *s, const Tensor *l, const Rows *r, int32_t k) { (void) b, (void) i, (void) s, (void) l, (void) r, (void) k; }
static void op_copy(Backend *b, void *d, const void *s, size_t n) { (void) b, (void) d, (void) s, (void) n; }
static void op_add_norm(Backend *b, Tensor *y, Tensor *x, const Tensor *dx, const Tensor *w, float e) { (void) b, (void) y, (void) x, (void) dx, (void) w, (void) e; }
static void op_pick(Backend *b, Tensor *i, const Tensor *l, const Rows *r) { (void) b, (void) i, (void) l, (void) r; }

Status backend_null_open(Backend **out, Backend *like, Error *err)
{
    Null *z = calloc(1, sizeof *z);
    *out = NULL;
    if (!z) return fail(err, ST_MEMORY, "plan: out of memory");
    z->like = like;
    z->next = 4096;
    z->be = (Backend) {
        .name = like->name, .counts = true, .in_place = like->in_place, .weight_bytes = weight_bytes, .kv_row_bytes = kv_row_bytes, .kv_slots = kv_slots, .kv_blank = nothing_blank, .own_bytes = own_bytes,
        .alloc = take, .release = nothing_release, .upload = nothing_upload, .copy_in = nothing_copy_in, .copy_out = zero_copy_out,
        .view = zero_view, .fill = nothing_fill, .copy = op_copy, .pass_begin = never_replayed, .pass_end = nothing_pass_end,
        .sync = always_ok, .close = null_close,
        .embed = op_embed, .matmul = op_matmul, .norm = op_norm, .head_norm = op_head_norm, .add = op_x2, .bias = op_x2, .glu = op_glu,
        .gate = op_x2, .gated_norm = op_gated_norm, .split = op_split, .join = op_join, .scale = op_scale, .logit_rows = op_rows, .tap = op_tap, .tap_get = op_tap_get,
        .rope = op_rope, .kv_put = op_kv_put, .attend = op_attend, .conv = op_conv, .delta = op_delta, .fold = op_fold,
        .block_conv = op_block_conv, .pair_scores = op_pair_scores, .top_k = op_top_k,
        .add_norm = like->add_norm ? op_add_norm : NULL, .pick = like->pick ? op_pick : NULL,
    };
    *out = &z->be;
    return ST_OK;
}

void backend_null_parts(Backend *null, void (*part)(void *ud, const char *name, size_t bytes), void *ud)
{
    Null *z = (Null *) null;
    for (int32_t i = 0; i < z->n_parts; i++) part(ud, z->part[i].name, z->part[i].bytes);
}
