/* qwen3: Qwen3 dense (spec targets.md section 5). Queries and keys are normed per head before rotation, in halves. */
#include "model/model.h"

#include <stddef.h>

typedef struct { Tensor attn_norm, q, k, v, o, q_norm, k_norm, ffn_norm, gate, up, down; } Layer;

#define AT(field) offsetof(Layer, field)
#define N(field) offsetof(Model, field)
static const Bind layer_bind[] = {
    { "attn_norm.weight", AT(attn_norm), 0, N(dim), BIND_VECTOR, false, LAYER_NONE, NULL },
    { "attn_q.weight", AT(q), N(q_dim), N(dim), BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_k.weight", AT(k), N(kv_dim), N(dim), BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_v.weight", AT(v), N(kv_dim), N(dim), BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_output.weight", AT(o), N(dim), N(q_dim), BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_q_norm.weight", AT(q_norm), 0, N(head_dim), BIND_VECTOR, false, LAYER_NONE, NULL },
    { "attn_k_norm.weight", AT(k_norm), 0, N(head_dim), BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_norm.weight", AT(ffn_norm), 0, N(dim), BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_gate.weight", AT(gate), N(ffn), N(dim), BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_up.weight", AT(up), N(ffn), N(dim), BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_down.weight", AT(down), N(dim), N(ffn), BIND_MATRIX, false, LAYER_NONE, NULL },
};

static Status read(Model *m, const Weights *w, Error *err)
{
    TRY(model_read_attention(m, w, "qwen3", err));
    float base;
    TRY(weights_f32(w->gguf, "qwen3", "rope.freq_base", 1e6f, &base, err));
    return model_rope(m, w, "qwen3", m->head_dim, true, base, NULL, err);
}

static void layer(const Model *m, Step *s, int32_t il, Tensor *x)
{
    const Layer *w = model_layer(m, il);
    Tensor *h = norm(s, x, &w->attn_norm, m->eps), *qkv[3];
    linear(s, 3, qkv, (const Tensor *[]) { &w->q, &w->k, &w->v }, h);
    s->be->head_norm(s->be, qkv[0], &w->q_norm, m->head_dim, m->eps);
    s->be->head_norm(s->be, qkv[1], &w->k_norm, m->head_dim, m->eps);
    Tensor *a = linear1(s, attend(s, il, &m->spec[il], qkv[0], qkv[1], qkv[2], &m->rope), &w->o);
    h = add_norm(s, x, a, &w->ffn_norm, m->eps);
    s->be->add(s->be, x, swiglu(s, h, &w->gate, &w->up, &w->down));
}

const Family family_qwen3 = {
    .arch = "qwen3", .global = model_ends, .n_global = MODEL_ENDS,
    .layer_bind = layer_bind, .n_layer_bind = sizeof layer_bind / sizeof *layer_bind, .layer_bytes = sizeof(Layer),
    .read = read, .spec = model_attention_spec, .layer = layer,
};
