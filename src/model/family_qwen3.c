/* qwen3: Qwen3 dense (spec targets.md section 5). Queries and keys are normed per head before rotation, which pairs the
 * halves of a head. */
#include "model/model.h"

#include <stddef.h>

typedef struct { Tensor attn_norm, q, k, v, o, q_norm, k_norm, ffn_norm, gate, up, down; } Qwen3Layer;
typedef struct { StageRope rope; } Qwen3Params;

#define QWEN3(field) offsetof(Qwen3Layer, field)
static const Bind layer_bind[] = {
    { "attn_norm.weight", QWEN3(attn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "attn_q.weight", QWEN3(q), SIZE_Q, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_k.weight", QWEN3(k), SIZE_KV, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_v.weight", QWEN3(v), SIZE_KV, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_output.weight", QWEN3(o), SIZE_DIM, SIZE_Q, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_q_norm.weight", QWEN3(q_norm), SIZE_ONE, SIZE_HEAD, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "attn_k_norm.weight", QWEN3(k_norm), SIZE_ONE, SIZE_HEAD, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_norm.weight", QWEN3(ffn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_gate.weight", QWEN3(gate), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_up.weight", QWEN3(up), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_down.weight", QWEN3(down), SIZE_DIM, SIZE_FFN, BIND_MATRIX, false, LAYER_NONE, NULL },
};

static Status read(Model *m, const Weights *w, Error *err)
{
    Qwen3Params *p = m->params;
    TRY(model_read_attention(m, w, "qwen3", err));
    float base;
    TRY(weights_f32(w->gguf, "qwen3", "rope.freq_base", 1e6f, &base, err));
    const RopeSpec rope = { m->head_dim, true, base, "rope.scaling", "rope_freqs.weight", NULL };
    return model_rope(m, w, "qwen3", &rope, &p->rope, err);
}

static void layer(const Model *m, Step *s, int32_t il, Tensor *x)
{
    const Qwen3Params *p = m->params;
    const Qwen3Layer *w = model_layer(m, il);
    Tensor *h = step_norm(s, x, &w->attn_norm, m->eps), *qkv[3];
    step_linear(s, 3, qkv, (const Tensor *[]) { &w->q, &w->k, &w->v }, h);
    Tensor *a = step_linear1(s, step_attend_normed(s, il, &m->spec[il], qkv[0], qkv[1], qkv[2], &w->q_norm, &w->k_norm,
                                                   m->eps, &p->rope), &w->o);
    h = step_add_norm(s, x, a, &w->ffn_norm, m->eps);
    step_add(s, x, step_swiglu(s, h, &w->gate, &w->up, &w->down));
}

const Family family_qwen3 = {
    .arch = "qwen3", .global = model_ends, .n_global = MODEL_ENDS,
    .layer_bind = layer_bind, .n_layer_bind = sizeof layer_bind / sizeof *layer_bind, .layer_bytes = sizeof(Qwen3Layer),
    .params_bytes = sizeof(Qwen3Params), .read = read, .spec = model_attention_spec, .layer = layer,
};
