/* toy: a family with the shapes that the built-in ones lack, written as doc/adding-a-model.md says, and a writer of
 * random models of it. Each layer has its own number of query and key heads; every second layer sees a window only and
 * has narrower heads and a rotation of its own, the others have values wider than their keys; the first layer is dense,
 * the others are mixtures, whose router's sigmoids are normed and scaled:
 *
 *     x += o attention(norm(x))
 *     h = norm(x);  x += swiglu(h), or the sum over the chosen e of weight_e * swiglu_e(h) */
#include "family_toy.h"

#include <stddef.h>
#include <stdio.h>

typedef struct {
    Tensor attn_norm, q, k, v, o, ffn_norm, gate, up, down;
    Tensor router, gates, ups, downs;                                              /* stacks */
} ToyLayer;

typedef struct {
    StageRope full, near;
    int32_t   heads[TOY_LAYERS], kv_heads[TOY_LAYERS], full_dim, near_dim, value_dim, window;
    int32_t   dense;
} ToyParams;

static bool slides(int32_t il) { return il % 2 == 0; }
static int32_t v_dim(const ToyParams *p, int32_t il) { return slides(il) ? p->near_dim : p->value_dim; }
static int32_t head_dim(const ToyParams *p, int32_t il) { return slides(il) ? p->near_dim : p->full_dim; }

enum { SIZE_V = SIZE_OWN, SIZE_O };
static int32_t size(const Model *m, int32_t il, int32_t which)
{
    const ToyParams *p = m->params;
    switch (which) {
    case SIZE_Q: return p->heads[il] * head_dim(p, il);
    case SIZE_KV: return p->kv_heads[il] * head_dim(p, il);
    case SIZE_FFN: return il < p->dense ? m->ffn : 0;
    case SIZE_EXPERTS: return il < p->dense ? 0 : m->experts;
    case SIZE_V: return p->kv_heads[il] * v_dim(p, il);
    case SIZE_O: return p->heads[il] * v_dim(p, il);
    default: return model_size(m, which);
    }
}

#define TOY(field) offsetof(ToyLayer, field)
static const Bind layer_bind[] = {
    { "attn_norm.weight", TOY(attn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "attn_q.weight", TOY(q), SIZE_Q, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_k.weight", TOY(k), SIZE_KV, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_v.weight", TOY(v), SIZE_V, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_output.weight", TOY(o), SIZE_DIM, SIZE_O, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_norm.weight", TOY(ffn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_gate.weight", TOY(gate), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_up.weight", TOY(up), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_down.weight", TOY(down), SIZE_DIM, SIZE_FFN, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_gate_inp.weight", TOY(router), SIZE_EXPERTS, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_gate_exps.weight", TOY(gates), SIZE_EXPERT_FFN, SIZE_DIM, BIND_EXPERTS, false, LAYER_NONE, NULL },
    { "ffn_up_exps.weight", TOY(ups), SIZE_EXPERT_FFN, SIZE_DIM, BIND_EXPERTS, false, LAYER_NONE, NULL },
    { "ffn_down_exps.weight", TOY(downs), SIZE_DIM, SIZE_EXPERT_FFN, BIND_EXPERTS, false, LAYER_NONE, NULL },
};

static Status read_ropes(Model *m, const Weights *w, ToyParams *p, Error *err)
{
    float base, near_base;
    int32_t n_rot;
    TRY(weights_f32(w->gguf, "toy", "rope.freq_base", 0, &base, err));
    TRY(weights_f32(w->gguf, "toy", "rope.freq_base_swa", 0, &near_base, err));
    TRY(weights_u32(w->gguf, "toy", "rope.dimension_count", 2, p->full_dim, 0, &n_rot, err));
    const RopeSpec full = { n_rot, true, base, "rope.scaling", NULL, NULL },
                   near = { p->near_dim, false, near_base, NULL, NULL, NULL };
    TRY(model_rope(m, w, "toy", &full, &p->full, err));
    return model_rope(m, w, "toy", &near, &p->near, err);
}

static Status read(Model *m, const Weights *w, Error *err)
{
    ToyParams *p = m->params;
    const Gguf *g = w->gguf;
    TRY(model_read_sizes(m, w, "toy", err));
    if (m->n_layers > TOY_LAYERS)
        return fail(err, ST_UNSUPPORTED, "%s: toy.block_count is %d, expected at most %d", m->file, m->n_layers,
                    TOY_LAYERS);
    TRY(weights_each_u32(g, "toy", "attention.head_count", m->n_layers, 1, 64, 0, p->heads, err));
    TRY(weights_each_u32(g, "toy", "attention.head_count_kv", m->n_layers, 1, 64, 0, p->kv_heads, err));
    TRY(weights_u32(g, "toy", "attention.key_length", 1, 1024, 0, &p->full_dim, err));
    TRY(weights_u32(g, "toy", "attention.value_length", 1, 1024, 0, &p->value_dim, err));
    TRY(weights_u32(g, "toy", "attention.key_length_swa", 1, 1024, 0, &p->near_dim, err));
    TRY(weights_u32(g, "toy", "attention.sliding_window", 1, 1 << 20, 0, &p->window, err));
    TRY(weights_u32(g, "toy", "leading_dense_block_count", 0, LAYERS_MAX, 0, &p->dense, err));
    TRY(model_read_mixture(m, w, "toy", err));
    m->router.gating = ROUTE_SIGMOID;
    return read_ropes(m, w, p, err);
}

static void spec(const Model *m, int32_t il, LayerSpec *out)
{
    const ToyParams *p = m->params;
    model_attention_spec(m, il, out);
    out->heads = p->heads[il];
    out->kv_heads = p->kv_heads[il];
    out->head_dim = head_dim(p, il);
    out->value_dim = v_dim(p, il);
    out->scale = 1 / (float) out->head_dim;
    out->window = slides(il) ? p->window : 0;
}

static void layer(const Model *m, Step *s, int32_t il, Tensor *x)
{
    const ToyParams *p = m->params;
    const ToyLayer *w = model_layer(m, il);
    Tensor *h = step_norm(s, x, &w->attn_norm, m->eps), *qkv[3];
    step_linear(s, 3, qkv, (const Tensor *[]) { &w->q, &w->k, &w->v }, h);
    const StageRope *rope = slides(il) ? &p->near : &p->full;
    Tensor *a = step_linear1(s, step_attend(s, il, &m->spec[il], qkv[0], qkv[1], qkv[2], rope), &w->o);
    h = step_add_norm(s, x, a, &w->ffn_norm, m->eps);
    step_add(s, x, il < p->dense ? step_swiglu(s, h, &w->gate, &w->up, &w->down)
                                 : step_moe(s, il, h, step_linear1(s, h, &w->router), NULL, NULL, &m->router, &w->gates,
                                            &w->ups, &w->downs, ACT_SILU));
}

const Family family_toy = {
    .arch = "toy", .global = model_ends, .n_global = MODEL_ENDS,
    .layer_bind = layer_bind, .n_layer_bind = sizeof layer_bind / sizeof *layer_bind, .layer_bytes = sizeof(ToyLayer),
    .params_bytes = sizeof(ToyParams), .read = read, .size = size, .spec = spec, .layer = layer,
};

/* ---- files ---- */

ToyShape toy_shape(void)
{
    return (ToyShape) {
        .heads = { 4, 6, 2, 4 }, .kv_heads = { 2, 3, 1, 4 }, .full_dim = 32, .value_dim = 48, .near_dim = 16,
        .n_rot = 16, .window = 24, .dense = 1, .experts = TOY_EXPERTS, .used = 2, .routed_scale = 1.5f,
        .expert_ffn = 64,
        .yarn_factor = 8, .beta_fast = 4,
        .beta_slow = 2, .original = 64, .base = 100, .near_base = 1e4f };
}

static void u32(GgufWriter *w, const char *name, int32_t v)
{
    char key[96];
    snprintf(key, sizeof key, "toy.%s", name);
    gguf_write_u32(w, key, (uint32_t) v);
}

static void f32(GgufWriter *w, const char *name, float v)
{
    char key[96];
    snprintf(key, sizeof key, "toy.%s", name);
    gguf_write_f32(w, key, v);
}

static void write_keys(GgufWriter *w, const TinyModel *m, const ToyShape *t)
{
    gguf_write_str(w, "general.architecture", "toy", 3);
    u32(w, "block_count", m->n_layer);
    u32(w, "context_length", m->context);
    u32(w, "embedding_length", m->hidden);
    u32(w, "feed_forward_length", m->ff);
    gguf_write_i32s(w, "toy.attention.head_count", t->heads, (size_t) (m->n_layer - t->fewer_heads));
    gguf_write_i32s(w, "toy.attention.head_count_kv", t->kv_heads, (size_t) m->n_layer);
    u32(w, "attention.key_length", t->full_dim);
    u32(w, "attention.value_length", t->value_dim);
    u32(w, "attention.key_length_swa", t->near_dim);
    u32(w, "attention.sliding_window", t->window);
    f32(w, "attention.layer_norm_rms_epsilon", m->eps);
    u32(w, "leading_dense_block_count", t->dense);
    u32(w, "expert_count", t->experts);
    u32(w, "expert_used_count", t->used);
    f32(w, "expert_weights_scale", t->routed_scale);
    u32(w, "expert_feed_forward_length", t->expert_ffn);
    u32(w, "rope.dimension_count", t->n_rot);
    f32(w, "rope.freq_base", t->base);
    f32(w, "rope.freq_base_swa", t->near_base);
    gguf_write_str(w, "toy.rope.scaling.type", "yarn", 4);
    f32(w, "rope.scaling.factor", t->yarn_factor);
    f32(w, "rope.scaling.yarn_beta_fast", t->beta_fast);
    f32(w, "rope.scaling.yarn_beta_slow", t->beta_slow);
    u32(w, "rope.scaling.original_context_length", t->original);
    tiny_write_tokenizer(w, "llama-bpe", m->vocab, false, false);
}

/* ne2 0: a matrix, ne1 0: a vector. */
static void add(TinyList *list, const TinyModel *m, int32_t il, const char *suffix, int64_t ne0, int64_t ne1,
                int64_t ne2)
{
    char name[64];
    snprintf(name, sizeof name, il < 0 ? "%s" : "blk.%2$d.%1$s", suffix, il);
    TinyTensor *t = tiny_add(list, ne1 ? TINY_MATRIX : TINY_NORM, m->type, m->seed, name, name, ne0, ne1);
    if (!ne2) return;
    t->n_dims = 3;
    t->ne[2] = ne2;
}

static void add_layer(TinyList *list, const TinyModel *m, const ToyShape *t, int32_t il)
{
    int32_t d = m->hidden, width = slides(il) ? t->near_dim : t->full_dim,
            values = slides(il) ? t->near_dim : t->value_dim;
    add(list, m, il, "attn_norm.weight", d, 0, 0);
    add(list, m, il, "attn_q.weight", d, t->heads[il] * width, 0);
    add(list, m, il, "attn_k.weight", d, t->kv_heads[il] * width, 0);
    add(list, m, il, "attn_v.weight", d, t->kv_heads[il] * values, 0);
    add(list, m, il, "attn_output.weight", t->heads[il] * values, d, 0);
    add(list, m, il, "ffn_norm.weight", d, 0, 0);
    if (il < t->dense) {
        add(list, m, il, "ffn_gate.weight", d, m->ff, 0);
        add(list, m, il, "ffn_up.weight", d, m->ff, 0);
        add(list, m, il, "ffn_down.weight", m->ff, d, 0);
        return;
    }
    add(list, m, il, "ffn_gate_inp.weight", d, t->experts, 0);
    add(list, m, il, "ffn_gate_exps.weight", d, t->expert_ffn, t->experts + t->more_experts);
    add(list, m, il, "ffn_up_exps.weight", d, t->expert_ffn, t->experts);
    add(list, m, il, "ffn_down_exps.weight", t->expert_ffn, d, t->experts);
}

Status toy_write_as(const ToyShape *t, const TinyModel *m, const char *path, Error *err)
{
    TinyTensor at[16 * TOY_LAYERS];
    TinyList list = { .at = at };
    GgufWriter *w;
    TRY(gguf_write_open(&w, path, err));
    write_keys(w, m, t);
    add(&list, m, -1, "token_embd.weight", m->hidden, m->vocab, 0);
    list.at[0].scale = 8;
    add(&list, m, -1, "output_norm.weight", m->hidden, 0, 0);
    add(&list, m, -1, "output.weight", m->hidden, m->vocab, 0);
    for (int32_t il = 0; il < m->n_layer; il++) add_layer(&list, m, t, il);
    Status st = tiny_write_tensors(w, &list, err), closed = gguf_write_close(w, st == ST_OK, st == ST_OK ? err : NULL);
    return st == ST_OK ? closed : st;
}

Status toy_write(const TinyModel *m, const char *path, Error *err)
{
    const ToyShape t = toy_shape();
    return toy_write_as(&t, m, path, err);
}
