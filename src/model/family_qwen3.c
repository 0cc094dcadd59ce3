/* qwen3 and qwen3moe: Qwen3, dense or a mixture of experts (spec targets.md section 5). Queries and keys are normed per
 * head before rotation, which pairs the halves of a head. The tensors of the other kind have size 0. */
#include "model/model.h"

#include <stddef.h>

extern const Family family_qwen3moe;

typedef struct {
    Tensor attn_norm, q, k, v, o, q_norm, k_norm, ffn_norm, gate, up, down;
    Tensor router, gates, ups, downs;              /* stacks */
} Qwen3Layer;
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
    { "ffn_gate_inp.weight", QWEN3(router), SIZE_EXPERTS, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_gate_exps.weight", QWEN3(gates), SIZE_EXPERT_FFN, SIZE_DIM, BIND_EXPERTS, false, LAYER_NONE,
      "ffn_gate_up_exps.weight" },
    { "ffn_up_exps.weight", QWEN3(ups), SIZE_EXPERT_FFN, SIZE_DIM, BIND_EXPERTS, false, LAYER_NONE,
      "ffn_gate_up_exps.weight" },
    { "ffn_down_exps.weight", QWEN3(downs), SIZE_DIM, SIZE_EXPERT_FFN, BIND_EXPERTS, false, LAYER_NONE, NULL },
};

static Status read(Model *m, const Weights *w, Error *err)
{
    Qwen3Params *p = m->params;
    const char *arch = m->family->arch;
    TRY(model_read_attention(m, w, arch, err));
    if (m->family == &family_qwen3moe) {
        TRY(model_read_mixture(m, w, arch, err));
        m->ffn = 0;
    }
    float base;
    TRY(weights_f32(w->gguf, arch, "rope.freq_base", 1e6f, &base, err));
    const RopeSpec rope = { m->head_dim, true, base, "rope.scaling", "rope_freqs.weight", NULL };
    return model_rope(m, w, arch, &rope, &p->rope, err);
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
    step_add(s, x, m->experts ? step_moe(s, il, h, step_linear1(s, h, &w->router), NULL, NULL, &m->router, &w->gates,
                                         &w->ups, &w->downs, ACT_SILU)
                              : step_swiglu(s, h, &w->gate, &w->up, &w->down));
}

#define QWEN3_FAMILY(name)                                                                                       \
    {                                                                                                            \
        .arch = name, .global = model_ends, .n_global = MODEL_ENDS, .layer_bind = layer_bind,                    \
        .n_layer_bind = sizeof layer_bind / sizeof *layer_bind, .layer_bytes = sizeof(Qwen3Layer),               \
        .params_bytes = sizeof(Qwen3Params), .read = read, .spec = model_attention_spec, .layer = layer,         \
    }
const Family family_qwen3 = QWEN3_FAMILY("qwen3"), family_qwen3moe = QWEN3_FAMILY("qwen3moe");
