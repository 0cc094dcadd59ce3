/* laguna: Poolside's Laguna XS.2, XS-2.1, S-2.1 and M.1 (spec laguna.md). Layers have head counts of their own. Those
 * with a window rotate the whole head, the others only its first columns, with yarn. Attention is multiplied by a gate,
 * softplus of a projection of the layer's normed input, for each head or for each element: the tensor's shape says
 * which. Behind the first, dense layers a sigmoid router chooses experts, and one shared expert is added as it is. */
#include "model/model.h"

#include <stddef.h>
#include <stdio.h>

typedef struct {
    Tensor attn_norm, q, k, v, o, q_norm, k_norm, attn_gate, ffn_norm;
    Tensor gate, up, down;                                                 /* dense layers */
    Tensor router, bias, gates, ups, downs, shared_gate, shared_up, shared_down;   /* the others */
} LagunaLayer;

typedef struct {
    StageRope full, near;
    int32_t   heads[LAYERS_MAX], gates[LAYERS_MAX];                        /* gates: rows of the gate's projection */
    bool      slides[LAYERS_MAX];
    int32_t   window, dense;                                               /* dense: layers, the first ones */
} LagunaParams;

enum { SIZE_GATES = SIZE_OWN };
static int32_t size(const Model *m, int32_t il, int32_t which)
{
    const LagunaParams *p = m->params;
    const bool dense = il < p->dense;
    switch (which) {
    case SIZE_Q: return p->heads[il] * m->head_dim;
    case SIZE_GATES: return p->gates[il];
    case SIZE_FFN: return dense ? m->ffn : 0;
    case SIZE_EXPERTS:
    case SIZE_EXPERT_FFN:
    case SIZE_SHARED_FFN: return dense ? 0 : model_size(m, which);
    default: return model_size(m, which);
    }
}

#define LAGUNA(field) offsetof(LagunaLayer, field)
static const Bind layer_bind[] = {
    { "attn_norm.weight", LAGUNA(attn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "attn_q.weight", LAGUNA(q), SIZE_Q, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_k.weight", LAGUNA(k), SIZE_KV, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_v.weight", LAGUNA(v), SIZE_KV, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_output.weight", LAGUNA(o), SIZE_DIM, SIZE_Q, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_q_norm.weight", LAGUNA(q_norm), SIZE_ONE, SIZE_HEAD, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "attn_k_norm.weight", LAGUNA(k_norm), SIZE_ONE, SIZE_HEAD, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "attn_gate.weight", LAGUNA(attn_gate), SIZE_GATES, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_norm.weight", LAGUNA(ffn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_gate.weight", LAGUNA(gate), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_up.weight", LAGUNA(up), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_down.weight", LAGUNA(down), SIZE_DIM, SIZE_FFN, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_gate_inp.weight", LAGUNA(router), SIZE_EXPERTS, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "exp_probs_b.bias|exp_probs_b", LAGUNA(bias), SIZE_ONE, SIZE_EXPERTS, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_gate_exps.weight", LAGUNA(gates), SIZE_EXPERT_FFN, SIZE_DIM, BIND_EXPERTS, false, LAYER_NONE,
      "ffn_gate_up_exps.weight" },
    { "ffn_up_exps.weight", LAGUNA(ups), SIZE_EXPERT_FFN, SIZE_DIM, BIND_EXPERTS, false, LAYER_NONE,
      "ffn_gate_up_exps.weight" },
    { "ffn_down_exps.weight", LAGUNA(downs), SIZE_DIM, SIZE_EXPERT_FFN, BIND_EXPERTS, false, LAYER_NONE, NULL },
    { "ffn_gate_shexp.weight", LAGUNA(shared_gate), SIZE_SHARED_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_up_shexp.weight", LAGUNA(shared_up), SIZE_SHARED_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_down_shexp.weight", LAGUNA(shared_down), SIZE_DIM, SIZE_SHARED_FFN, BIND_MATRIX, false, LAYER_NONE, NULL },
};

/* Which layers have a window: a list, or all but every n-th from layer 0 on. */
static Status read_windows(Model *m, const Gguf *g, Error *err)
{
    LagunaParams *p = m->params;
    const char *key = "laguna.attention.sliding_window_pattern";
    GgufType elem;
    uint64_t n;
    int32_t period;
    TRY(weights_u32(g, "laguna", "attention.sliding_window", 0, 1 << 24, 0, &p->window, err));
    if (gguf_array(g, key, &elem, &n, NULL) != ST_OK) {
        TRY(weights_u32(g, "laguna", "attention.sliding_window_pattern", 1, LAYERS_MAX, 4, &period, err));
        for (int32_t i = 0; i < m->n_layers; i++) p->slides[i] = p->window > 0 && i % period != 0;
        return ST_OK;
    }
    if (n != (uint64_t) m->n_layers)
        return fail(err, ST_FORMAT, "%s: %s has %llu values, expected %d", m->file, key, (unsigned long long) n,
                    m->n_layers);
    for (int32_t i = 0; i < m->n_layers; i++) {
        TRY(gguf_array_bool(g, key, (uint64_t) i, &p->slides[i], err));
        if (p->slides[i] && p->window == 0)
            return fail(err, ST_FORMAT, "%s: %s value %d is true, but laguna.attention.sliding_window is 0 or missing",
                        m->file, key, i);
    }
    return ST_OK;
}

static Status read_heads(Model *m, const Weights *w, Error *err)
{
    LagunaParams *p = m->params;
    TRY(weights_each_u32(w->gguf, "laguna", "attention.head_count", m->n_layers, 1, 1024, 0, p->heads, err));
    TRY(weights_u32(w->gguf, "laguna", "attention.head_count_kv", 1, 1024, 0, &m->kv_heads, err));
    TRY(model_read_widths(m, w, "laguna", 0, err));
    m->kv_dim = m->kv_heads * m->head_dim;
    for (int32_t i = 0; i < m->n_layers; i++) {
        WeightView v;
        char name[40];
        snprintf(name, sizeof name, "blk.%d.attn_gate.weight", i);
        const int32_t each = p->heads[i] * m->head_dim;
        p->gates[i] = p->heads[i];
        if (!weights_find(w, name, &v)) continue;  /* reported when it is bound */
        if (v.ne[1] != p->heads[i] && v.ne[1] != each)
            return fail(err, ST_FORMAT, "%s: tensor %s has %lld rows, expected %d (a gate per head) or %d (per "
                        "element)", v.file, name, (long long) v.ne[1], p->heads[i], each);
        p->gates[i] = (int32_t) v.ne[1];
    }
    return ST_OK;
}

/* suffix: "" for full layers, "_swa" for those with a window. */
static Status read_rope(Model *m, const Weights *w, const char *suffix, const char *scaling, StageRope *out, Error *err)
{
    char key[2][40];
    RopeSpec r = { .neox = true, .scaling = scaling };
    snprintf(key[0], sizeof key[0], "rope.freq_base%s", suffix);
    snprintf(key[1], sizeof key[1], "rope.dimension_count%s", suffix);
    TRY(weights_f32(w->gguf, "laguna", key[0], 0, &r.base, err));
    TRY(weights_u32(w->gguf, "laguna", key[1], 2, m->head_dim, 0, &r.n_rot, err));
    if (r.n_rot % 2)
        return fail(err, ST_FORMAT, "%s: laguna.%s is %d, expected an even number", m->file, key[1], r.n_rot);
    return model_rope(m, w, "laguna", &r, out, err);
}

static Status read_experts(Model *m, const Weights *w, Error *err)
{
    LagunaParams *p = m->params;
    const Gguf *g = w->gguf;
    int32_t gating, shared, groups;
    bool normed = true;
    TRY(model_read_mixture(m, w, "laguna", err));
    TRY(weights_u32(g, "laguna", "leading_dense_block_count", 0, m->n_layers, 1, &p->dense, err));
    if (p->dense > 0 && !gguf_has(g, "laguna.feed_forward_length"))
        return fail(err, ST_FORMAT, "%s: key laguna.feed_forward_length is missing", m->file);
    TRY(weights_u32(g, "laguna", "expert_shared_count", 1, 1, 1, &shared, err));
    TRY(weights_u32(g, "laguna", "expert_group_count", 0, 1, 0, &groups, err));
    TRY(weights_u32(g, "laguna", "expert_shared_feed_forward_length", 1, 1 << 20, 0, &m->shared_ffn, err));
    Status st = gguf_get_bool(g, "laguna.expert_weights_norm", &normed, err);
    if (st != ST_OK && st != ST_END) return st;
    if (!normed)
        return fail(err, ST_UNSUPPORTED, "%s: laguna.expert_weights_norm is false, expected true or absent", m->file);
    TRY(weights_u32(g, "laguna", "expert_gating_func", 0, 2, 0, &gating, err));
    if (gating == 1)
        return fail(err, ST_UNSUPPORTED, "%s: laguna.expert_gating_func is 1 (softmax), expected 2 (sigmoid), 0 or "
                    "absent", m->file);
    m->router.gating = ROUTE_SIGMOID;
    return ST_OK;
}

/* What a configuration of the family may ask for and no released model does. */
static Status refuse_others(const Model *m, const Gguf *g, Error *err)
{
    static const char *const off[] = { "router_logit_softcapping", "moe_router_logit_softcapping",
                                       "attn_logit_softcapping", "final_logit_softcapping" };
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        char key[64];
        float v = 0;
        snprintf(key, sizeof key, "laguna.%s", off[i]);
        Status st = gguf_get_f32(g, key, &v, err);
        if (st != ST_OK && st != ST_END) return st;
        if (v != 0)
            return fail(err, ST_UNSUPPORTED, "%s: %s is %g, expected 0 or absent", m->file, key, (double) v);
    }
    return ST_OK;
}

static Status read(Model *m, const Weights *w, Error *err)
{
    LagunaParams *p = m->params;
    TRY(model_read_sizes(m, w, "laguna", err));
    TRY(read_heads(m, w, err));
    TRY(read_windows(m, w->gguf, err));
    TRY(read_experts(m, w, err));
    TRY(refuse_others(m, w->gguf, err));
    bool windows = false;
    for (int32_t i = 0; i < m->n_layers; i++) windows |= p->slides[i];
    if (windows) TRY(read_rope(m, w, "_swa", NULL, &p->near, err));
    return read_rope(m, w, "", "rope.scaling", &p->full, err);
}

static void spec(const Model *m, int32_t il, LayerSpec *out)
{
    const LagunaParams *p = m->params;
    model_attention_spec(m, il, out);
    out->heads = p->heads[il];
    out->window = p->slides[il] ? p->window : 0;
}

static Tensor *attention(const Model *m, Step *s, int32_t il, const LagunaLayer *w, const Tensor *h)
{
    const LagunaParams *p = m->params;
    Tensor *y[4];                                  /* query, key, value, gate */
    step_linear(s, 4, y, (const Tensor *[]) { &w->q, &w->k, &w->v, &w->attn_gate }, h);
    const StageRope *rope = p->slides[il] ? &p->near : &p->full;
    Tensor *o = step_attend_normed(s, il, &m->spec[il], y[0], y[1], y[2], &w->q_norm, &w->k_norm, m->eps, rope);
    step_gate(s, o, y[3], ACT_SOFTPLUS, o->cols / y[3]->cols);
    return step_linear1(s, o, &w->o);
}

static Tensor *mixture(const Model *m, Step *s, int32_t il, const LagunaLayer *w, const Tensor *h)
{
    Tensor *y = step_moe(s, il, h, step_linear1(s, h, &w->router), &w->bias, NULL, &m->router, &w->gates, &w->ups,
                         &w->downs, ACT_SILU);
    step_add(s, y, step_swiglu(s, h, &w->shared_gate, &w->shared_up, &w->shared_down));
    return y;
}

static void layer(const Model *m, Step *s, int32_t il, Tensor *x)
{
    const LagunaParams *p = m->params;
    const LagunaLayer *w = model_layer(m, il);
    Tensor *a = attention(m, s, il, w, step_norm(s, x, &w->attn_norm, m->eps));
    const Tensor *h = step_add_norm(s, x, a, &w->ffn_norm, m->eps);
    step_add(s, x, il < p->dense ? step_swiglu(s, h, &w->gate, &w->up, &w->down) : mixture(m, s, il, w, h));
}

const Family family_laguna = {
    .arch = "laguna", .global = model_ends, .n_global = MODEL_ENDS,
    .layer_bind = layer_bind, .n_layer_bind = sizeof layer_bind / sizeof *layer_bind,
    .layer_bytes = sizeof(LagunaLayer), .params_bytes = sizeof(LagunaParams), .read = read, .size = size, .spec = spec,
    .layer = layer,
};
