/* llama: Llama 3, SmolLM2, TinyLlama and what is built like them (spec targets.md section 4). Rotation turns adjacent pairs, because the
 * converter has permuted the rows of q and k for it. */
#include "model/model.h"

#include <stddef.h>

typedef struct {
    Tensor attn_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias, ffn_norm, gate, up, down;
} Layer;

#define AT(field) offsetof(Layer, field)
#define N(field) offsetof(Model, field)
static const Bind layer_bind[] = {
    { "attn_norm.weight", AT(attn_norm), 0, N(dim), BIND_VECTOR, false, LAYER_NONE, NULL },
    { "attn_q.weight", AT(q), N(q_dim), N(dim), BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_k.weight", AT(k), N(kv_dim), N(dim), BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_v.weight", AT(v), N(kv_dim), N(dim), BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_output.weight", AT(o), N(dim), N(q_dim), BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_q.bias", AT(q_bias), 0, N(q_dim), BIND_VECTOR, true, LAYER_NONE, NULL },
    { "attn_k.bias", AT(k_bias), 0, N(kv_dim), BIND_VECTOR, true, LAYER_NONE, NULL },
    { "attn_v.bias", AT(v_bias), 0, N(kv_dim), BIND_VECTOR, true, LAYER_NONE, NULL },
    { "attn_output.bias", AT(o_bias), 0, N(dim), BIND_VECTOR, true, LAYER_NONE, NULL },
    { "ffn_norm.weight", AT(ffn_norm), 0, N(dim), BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_gate.weight", AT(gate), N(ffn), N(dim), BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_up.weight", AT(up), N(ffn), N(dim), BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_down.weight", AT(down), N(dim), N(ffn), BIND_MATRIX, false, LAYER_NONE, NULL },
};

static Status read(Model *m, const Weights *w, Error *err)
{
    TRY(model_read_attention(m, w, "llama", err));
    if (gguf_has(w->gguf, "llama.expert_count"))
        return fail(err, ST_UNSUPPORTED, "%s: llama.expert_count is set, mixtures of this family do not run", m->file);
    float base;
    int32_t n_rot;
    TRY(weights_f32(w->gguf, "llama", "rope.freq_base", 10000, &base, err));
    TRY(weights_u32(w->gguf, "llama", "rope.dimension_count", 2, m->head_dim, m->head_dim, &n_rot, err));
    if (n_rot % 2) return fail(err, ST_FORMAT, "%s: llama.rope.dimension_count is %d, expected an even number", m->file, n_rot);
    return model_rope(m, w, "llama", n_rot, false, base, NULL, err);
}

static void layer(const Model *m, Step *s, int32_t il, Tensor *x)
{
    const Layer *w = model_layer(m, il);
    Tensor *h = norm(s, x, &w->attn_norm, m->eps), *qkv[3];
    linear(s, 3, qkv, (const Tensor *[]) { &w->q, &w->k, &w->v }, h);
    add_bias(s, qkv[0], &w->q_bias);
    add_bias(s, qkv[1], &w->k_bias);
    add_bias(s, qkv[2], &w->v_bias);
    Tensor *a = linear1(s, attend(s, il, &m->spec[il], qkv[0], qkv[1], qkv[2], &m->rope), &w->o);
    add_bias(s, a, &w->o_bias);
    h = add_norm(s, x, a, &w->ffn_norm, m->eps);
    s->be->add(s->be, x, swiglu(s, h, &w->gate, &w->up, &w->down));
}

const Family family_llama = {
    .arch = "llama", .global = model_ends, .n_global = MODEL_ENDS,
    .layer_bind = layer_bind, .n_layer_bind = sizeof layer_bind / sizeof *layer_bind, .layer_bytes = sizeof(Layer),
    .read = read, .spec = model_attention_spec, .layer = layer,
};
