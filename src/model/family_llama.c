/* llama: Llama 3, SmolLM2, TinyLlama and models of the same structure (spec targets.md section 4). Rotation uses
 * adjacent pairs, because the converter has permuted the rows of q and k accordingly. */
#include "model/model.h"

#include <stddef.h>

typedef struct {
    Tensor attn_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias, ffn_norm, gate, up, down;
} LlamaLayer;
typedef struct { StageRope rope; } LlamaParams;

#define LLAMA(field) offsetof(LlamaLayer, field)
static const Bind layer_bind[] = {
    { "attn_norm.weight", LLAMA(attn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "attn_q.weight", LLAMA(q), SIZE_Q, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_k.weight", LLAMA(k), SIZE_KV, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_v.weight", LLAMA(v), SIZE_KV, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_output.weight", LLAMA(o), SIZE_DIM, SIZE_Q, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_q.bias", LLAMA(q_bias), SIZE_ONE, SIZE_Q, BIND_VECTOR, true, LAYER_NONE, NULL },
    { "attn_k.bias", LLAMA(k_bias), SIZE_ONE, SIZE_KV, BIND_VECTOR, true, LAYER_NONE, NULL },
    { "attn_v.bias", LLAMA(v_bias), SIZE_ONE, SIZE_KV, BIND_VECTOR, true, LAYER_NONE, NULL },
    { "attn_output.bias", LLAMA(o_bias), SIZE_ONE, SIZE_DIM, BIND_VECTOR, true, LAYER_NONE, NULL },
    { "ffn_norm.weight", LLAMA(ffn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_gate.weight", LLAMA(gate), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_up.weight", LLAMA(up), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_down.weight", LLAMA(down), SIZE_DIM, SIZE_FFN, BIND_MATRIX, false, LAYER_NONE, NULL },
};

static Status read(Model *m, const Weights *w, Error *err)
{
    LlamaParams *p = m->params;
    TRY(model_read_attention(m, w, "llama", err));
    if (gguf_has(w->gguf, "llama.expert_count"))
        return fail(err, ST_UNSUPPORTED, "%s: llama.expert_count is set, mixtures of this family do not run", m->file);
    float base;
    int32_t n_rot;
    TRY(weights_f32(w->gguf, "llama", "rope.freq_base", 10000, &base, err));
    TRY(weights_u32(w->gguf, "llama", "rope.dimension_count", 2, m->head_dim, m->head_dim, &n_rot, err));
    if (n_rot % 2)
        return fail(err, ST_FORMAT, "%s: llama.rope.dimension_count is %d, expected an even number", m->file, n_rot);
    const RopeSpec rope = { n_rot, false, base, "rope.scaling", "rope_freqs.weight", NULL };
    return model_rope(m, w, "llama", &rope, &p->rope, err);
}

static void layer(const Model *m, Step *s, int32_t il, Tensor *x)
{
    const LlamaParams *p = m->params;
    const LlamaLayer *w = model_layer(m, il);
    Tensor *h = step_norm(s, x, &w->attn_norm, m->eps), *qkv[3];
    step_linear(s, 3, qkv, (const Tensor *[]) { &w->q, &w->k, &w->v }, h);
    step_add_bias(s, qkv[0], &w->q_bias);
    step_add_bias(s, qkv[1], &w->k_bias);
    step_add_bias(s, qkv[2], &w->v_bias);
    Tensor *a = step_linear1(s, step_attend(s, il, &m->spec[il], qkv[0], qkv[1], qkv[2], &p->rope), &w->o);
    step_add_bias(s, a, &w->o_bias);
    h = step_add_norm(s, x, a, &w->ffn_norm, m->eps);
    step_add(s, x, step_swiglu(s, h, &w->gate, &w->up, &w->down));
}

const Family family_llama = {
    .arch = "llama", .global = model_ends, .n_global = MODEL_ENDS,
    .layer_bind = layer_bind, .n_layer_bind = sizeof layer_bind / sizeof *layer_bind, .layer_bytes = sizeof(LlamaLayer),
    .params_bytes = sizeof(LlamaParams), .read = read, .spec = model_attention_spec, .layer = layer,
};
