/* qwen35 and qwen35moe: Qwen3.5 / 3.6 hybrids, dense or mixtures of experts (spec targets.md sections 6 and 7). Three
 * layers in four are gated delta nets, the fourth is attention with an output gate. A mixture has a shared expert, too,
 * which a gate of its own scales; the tensors of the other kind have size 0. Value head m of a delta net reads key
 * head m % k_heads (the converter tiled them so). A layer for multi-token prediction (MTP) follows the trunk and is
 * not part of it: it is a drafter, at the end of this file. */
#include "model/model.h"

#include <stddef.h>
#include <stdio.h>

extern const Family family_qwen35, family_qwen35moe;

typedef struct {
    Tensor attn_norm, post_norm, gate, up, down;
    Tensor router, gates, ups, downs;                                      /* experts: stacks */
    Tensor shared, shared_gate, shared_up, shared_down;                    /* shared: the row that makes its gate */
    Tensor q, k, v, o, q_norm, k_norm;                                     /* attention; q: per head query, then gate */
    Tensor qkv, z, beta, alpha, conv, dt, a, delta_norm, out;              /* delta net */
    Tensor join, embed_norm, state_norm, head_norm, own_embed, own_head;   /* MTP */
} Qwen35Layer;

typedef struct {
    StageRope rope;
    bool      recurrent[LAYERS_MAX];                                               /* a delta net */
    int32_t   k_heads, v_heads, k_dim, v_dim, conv_width;                          /* of the delta nets; MTP: 0 */
} Qwen35Params;

static int32_t inner(const Qwen35Params *p) { return p->v_heads * p->v_dim; }

enum { SIZE_Q_GATE = SIZE_OWN, SIZE_CHANNELS, SIZE_INNER, SIZE_V_HEADS, SIZE_V_DIM, SIZE_CONV, SIZE_JOIN,
       SIZE_SHARED };
static int32_t size(const Model *m, int32_t il, int32_t which)
{
    const Qwen35Params *p = m->params;
    (void) il;
    switch (which) {
    case SIZE_Q_GATE: return 2 * m->q_dim;
    case SIZE_CHANNELS: return 2 * p->k_heads * p->k_dim + inner(p);
    case SIZE_INNER: return inner(p);
    case SIZE_V_HEADS: return p->v_heads;
    case SIZE_V_DIM: return p->v_dim;
    case SIZE_CONV: return p->conv_width;
    case SIZE_JOIN: return 2 * m->dim;
    case SIZE_SHARED: return m->shared_ffn ? 1 : 0;
    default: return model_size(m, which);
    }
}

#define QWEN35(field) offsetof(Qwen35Layer, field)
static const Bind layer_bind[] = {
    { "attn_norm.weight", QWEN35(attn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "post_attention_norm.weight", QWEN35(post_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_gate.weight", QWEN35(gate), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_up.weight", QWEN35(up), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_down.weight", QWEN35(down), SIZE_DIM, SIZE_FFN, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_gate_inp.weight", QWEN35(router), SIZE_EXPERTS, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_gate_exps.weight", QWEN35(gates), SIZE_EXPERT_FFN, SIZE_DIM, BIND_EXPERTS, false, LAYER_NONE,
      "ffn_gate_up_exps.weight" },
    { "ffn_up_exps.weight", QWEN35(ups), SIZE_EXPERT_FFN, SIZE_DIM, BIND_EXPERTS, false, LAYER_NONE,
      "ffn_gate_up_exps.weight" },
    { "ffn_down_exps.weight", QWEN35(downs), SIZE_DIM, SIZE_EXPERT_FFN, BIND_EXPERTS, false, LAYER_NONE, NULL },
    { "ffn_gate_inp_shexp.weight", QWEN35(shared), SIZE_SHARED, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_gate_shexp.weight", QWEN35(shared_gate), SIZE_SHARED_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_up_shexp.weight", QWEN35(shared_up), SIZE_SHARED_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_down_shexp.weight", QWEN35(shared_down), SIZE_DIM, SIZE_SHARED_FFN, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_q.weight", QWEN35(q), SIZE_Q_GATE, SIZE_DIM, BIND_MATRIX, false, LAYER_ATTENTION, "attn_qkv.weight" },
    { "attn_k.weight", QWEN35(k), SIZE_KV, SIZE_DIM, BIND_MATRIX, false, LAYER_ATTENTION, "attn_qkv.weight" },
    { "attn_v.weight", QWEN35(v), SIZE_KV, SIZE_DIM, BIND_MATRIX, false, LAYER_ATTENTION, "attn_qkv.weight" },
    { "attn_output.weight", QWEN35(o), SIZE_DIM, SIZE_Q, BIND_MATRIX, false, LAYER_ATTENTION, NULL },
    { "attn_q_norm.weight", QWEN35(q_norm), SIZE_ONE, SIZE_HEAD, BIND_VECTOR, false, LAYER_ATTENTION, NULL },
    { "attn_k_norm.weight", QWEN35(k_norm), SIZE_ONE, SIZE_HEAD, BIND_VECTOR, false, LAYER_ATTENTION, NULL },
    { "attn_qkv.weight", QWEN35(qkv), SIZE_CHANNELS, SIZE_DIM, BIND_MATRIX, false, LAYER_DELTA, NULL },
    { "attn_gate.weight", QWEN35(z), SIZE_INNER, SIZE_DIM, BIND_MATRIX, false, LAYER_DELTA, NULL },
    { "ssm_beta.weight", QWEN35(beta), SIZE_V_HEADS, SIZE_DIM, BIND_MATRIX, false, LAYER_DELTA, NULL },
    { "ssm_alpha.weight", QWEN35(alpha), SIZE_V_HEADS, SIZE_DIM, BIND_MATRIX, false, LAYER_DELTA, NULL },
    { "ssm_conv1d.weight", QWEN35(conv), SIZE_CHANNELS, SIZE_CONV, BIND_PLAIN, false, LAYER_DELTA, NULL },
    { "ssm_dt.bias|ssm_dt", QWEN35(dt), SIZE_ONE, SIZE_V_HEADS, BIND_VECTOR, false, LAYER_DELTA, NULL },
    { "ssm_a", QWEN35(a), SIZE_ONE, SIZE_V_HEADS, BIND_VECTOR, false, LAYER_DELTA, NULL },
    { "ssm_norm.weight", QWEN35(delta_norm), SIZE_ONE, SIZE_V_DIM, BIND_VECTOR, false, LAYER_DELTA, NULL },
    { "ssm_out.weight", QWEN35(out), SIZE_DIM, SIZE_INNER, BIND_MATRIX, false, LAYER_DELTA, NULL },
    /* from here: the MTP layer's */
    { "nextn.eh_proj.weight", QWEN35(join), SIZE_DIM, SIZE_JOIN, BIND_MATRIX, false, LAYER_ATTENTION, NULL },
    { "nextn.enorm.weight", QWEN35(embed_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_ATTENTION, NULL },
    { "nextn.hnorm.weight", QWEN35(state_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_ATTENTION, NULL },
    { "nextn.shared_head_norm.weight", QWEN35(head_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, true,
      LAYER_ATTENTION, NULL },
    { "nextn.embed_tokens.weight", QWEN35(own_embed), SIZE_VOCAB, SIZE_DIM, BIND_MATRIX, true, LAYER_ATTENTION, NULL },
    { "nextn.shared_head_head.weight", QWEN35(own_head), SIZE_VOCAB, SIZE_DIM, BIND_MATRIX, true,
      LAYER_ATTENTION, NULL },
};
enum { MTP_BINDS = 6, LAYER_BINDS = sizeof layer_bind / sizeof *layer_bind };

/* The key of this name in the model's own keys. */
typedef struct { char text[96]; } Key;
static Key key_of(const Model *m, const char *name)
{
    Key k;
    snprintf(k.text, sizeof k.text, "%s.%s", m->family->arch, name);
    return k;
}

/* Which layers are delta nets: newer converters list them, older files give the interval of the attention layers. */
static Status read_kinds(Model *m, const Gguf *g, Error *err)
{
    Qwen35Params *p = m->params;
    const Key key = key_of(m, "attention.recurrent_layers");
    GgufType elem;
    uint64_t n = 0;
    Status st = gguf_array(g, key.text, &elem, &n, err);
    if (st != ST_OK && st != ST_END) return st;
    if (st == ST_OK) {
        if (n < (uint64_t) m->n_layers)
            return fail(err, ST_FORMAT, "%s: %s has %llu values, expected %d", m->file, key.text,
                        (unsigned long long) n, m->n_layers);
        for (int32_t i = 0; i < m->n_layers; i++)
            TRY(gguf_array_bool(g, key.text, (uint64_t) i, &p->recurrent[i], err));
        return ST_OK;
    }
    int32_t interval;
    TRY(weights_u32(g, m->family->arch, "full_attention_interval", 1, LAYERS_MAX, 4, &interval, err));
    for (int32_t i = 0; i < m->n_layers; i++) p->recurrent[i] = (i + 1) % interval != 0;
    return ST_OK;
}

static Status read_delta(Model *m, const Gguf *g, Error *err)
{
    Qwen35Params *p = m->params;
    int32_t inner_size;
    TRY(weights_u32(g, m->family->arch, "ssm.conv_kernel", 2, 16, 0, &p->conv_width, err));
    TRY(weights_u32(g, m->family->arch, "ssm.state_size", 1, 256, 0, &p->k_dim, err));
    TRY(weights_u32(g, m->family->arch, "ssm.group_count", 1, 1024, 0, &p->k_heads, err));
    TRY(weights_u32(g, m->family->arch, "ssm.time_step_rank", 1, 1024, 0, &p->v_heads, err));
    TRY(weights_u32(g, m->family->arch, "ssm.inner_size", 1, 1 << 20, 0, &inner_size, err));
    p->v_dim = p->k_dim;
    if (p->k_dim % 16)
        return fail(err, ST_UNSUPPORTED, "%s: %s.ssm.state_size is %d, expected a multiple of 16", m->file,
                    m->family->arch, p->k_dim);
    if (inner_size != inner(p))
        return fail(err, ST_FORMAT, "%s: %s.ssm.inner_size is %d, expected time_step_rank * state_size = %d",
                    m->file, m->family->arch, inner_size, inner(p));
    if (p->v_heads % p->k_heads)
        return fail(err, ST_FORMAT, "%s: %s.ssm.time_step_rank is %d, expected a multiple of group_count %d",
                    m->file, m->family->arch, p->v_heads, p->k_heads);
    bool tiled = true;
    Status st = gguf_get_bool(g, key_of(m, "ssm.v_head_reordered").text, &tiled, err);
    if (st != ST_OK && st != ST_END) return st;
    if (!tiled)
        return fail(err, ST_UNSUPPORTED,
                    "%s: %s.ssm.v_head_reordered is false, expected tiled value heads (true or absent)", m->file,
                    m->family->arch);
    return ST_OK;
}

static Status read_sections(Model *m, const Gguf *g, int32_t pairs, int32_t out[4], Error *err)
{
    const Key sections = key_of(m, "rope.dimension_sections");
    const char *key = sections.text;
    GgufType elem;
    uint64_t n = 0;
    Status st = gguf_array(g, key, &elem, &n, err);
    if (st != ST_OK && st != ST_END) return st;
    out[0] = pairs;
    out[1] = out[2] = out[3] = 0;
    if (st == ST_END) return ST_OK;
    if (n < 3 || n > 4)
        return fail(err, ST_FORMAT, "%s: %s has %llu values, expected 3 or 4", m->file, key, (unsigned long long) n);
    int64_t sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        int64_t v;
        TRY(gguf_array_i64(g, key, i, &v, err));
        if (v < 0 || v > pairs)
            return fail(err, ST_FORMAT, "%s: %s value %d is %lld, expected 0 to %d", m->file, key, (int) i,
                        (long long) v, pairs);
        out[i] = (int32_t) v;
        sum += v;
    }
    if (sum != pairs)
        return fail(err, ST_FORMAT, "%s: %s sums to %lld, expected %d (half of rope.dimension_count)", m->file, key,
                    (long long) sum, pairs);
    return ST_OK;
}

static Status read(Model *m, const Weights *w, Error *err)
{
    Qwen35Params *p = m->params;
    const Gguf *g = w->gguf;
    TRY(model_read_attention(m, w, m->family->arch, err));
    if (m->family == &family_qwen35moe) {
        TRY(model_read_mixture(m, w, m->family->arch, err));
        TRY(weights_u32(g, m->family->arch, "expert_shared_feed_forward_length", 1, 1 << 20, m->expert_ffn,
                        &m->shared_ffn, err));
        m->ffn = 0;
    }
    int32_t mtp, n_rot, section[4];
    TRY(weights_u32(g, m->family->arch, "nextn_predict_layers", 0, LAYERS_MAX, 0, &mtp, err));
    if (mtp >= m->n_layers)
        return fail(err, ST_FORMAT, "%s: %s.nextn_predict_layers is %d of %d layers", m->file, m->family->arch, mtp,
                    m->n_layers);
    m->n_layers -= mtp;
    m->n_extra = mtp;
    TRY(read_kinds(m, g, err));
    TRY(read_delta(m, g, err));
    float base;
    TRY(weights_f32(g, m->family->arch, "rope.freq_base", 1e7f, &base, err));
    TRY(weights_u32(g, m->family->arch, "rope.dimension_count", 2, m->head_dim, m->head_dim / 4, &n_rot, err));
    if (n_rot % 2)
        return fail(err, ST_FORMAT, "%s: %s.rope.dimension_count is %d, expected an even number", m->file,
                    m->family->arch, n_rot);
    TRY(read_sections(m, g, n_rot / 2, section, err));
    const RopeSpec rope = { n_rot, true, base, "rope.scaling", "rope_freqs.weight", section };
    return model_rope(m, w, m->family->arch, &rope, &p->rope, err);
}

static void spec(const Model *m, int32_t il, LayerSpec *out)
{
    const Qwen35Params *p = m->params;
    if (!p->recurrent[il]) {
        model_attention_spec(m, il, out);
        return;
    }
    *out = (LayerSpec) { .kind = LAYER_DELTA, .k_heads = p->k_heads, .v_heads = p->v_heads, .k_dim = p->k_dim,
                         .v_dim = p->v_dim, .conv_width = p->conv_width, .eps = m->eps };
}

static Tensor *gated_attention(const Model *m, Step *s, int32_t il, const Qwen35Layer *w, const Tensor *h)
{
    const Qwen35Params *p = m->params;
    Tensor *y[3], *half[2];                        /* query and gate */
    step_linear(s, 3, y, (const Tensor *[]) { &w->q, &w->k, &w->v }, h);
    step_split(s, half, y[0], m->head_dim);
    Tensor *o = step_attend_normed(s, il, &m->spec[il], half[0], y[1], y[2], &w->q_norm, &w->k_norm, m->eps, &p->rope);
    step_gate(s, o, half[1], ACT_SIGMOID, 1);
    return step_linear1(s, o, &w->o);
}

static Tensor *delta_net(const Model *m, Step *s, int32_t il, const Qwen35Layer *w, const Tensor *h)
{
    const Qwen35Params *p = m->params;
    Tensor *y[4];                                  /* qkv, z, beta, alpha */
    step_linear(s, 4, y, (const Tensor *[]) { &w->qkv, &w->z, &w->beta, &w->alpha }, h);
    Tensor *qkv = step_short_conv(s, il, &m->spec[il], y[0], &w->conv);
    Tensor *o = step_delta_rule(s, il, &m->spec[il], qkv, y[2], y[3], &w->a, &w->dt);
    step_gated_norm(s, o, &w->delta_norm, y[1], p->v_dim, m->eps);
    return step_linear1(s, o, &w->out);
}

/* The router, the shared expert and its gate read the same rows. */
static Tensor *mixture(const Model *m, Step *s, int32_t il, const Qwen35Layer *w, const Tensor *h)
{
    Tensor *y[4];
    step_linear(s, 4, y, (const Tensor *[]) { &w->router, &w->shared_gate, &w->shared_up, &w->shared }, h);
    Tensor *sum = step_moe(s, il, h, y[0], NULL, NULL, &m->router, &w->gates, &w->ups, &w->downs, ACT_SILU);
    Tensor *shared = step_linear1(s, step_glu(s, y[1], y[2], ACT_SILU), &w->shared_down);
    step_gate(s, shared, y[3], ACT_SIGMOID, m->dim);
    step_add(s, sum, shared);
    return sum;
}

static void layer(const Model *m, Step *s, int32_t il, Tensor *x)
{
    const Qwen35Layer *w = model_layer(m, il);
    Tensor *h = step_norm(s, x, &w->attn_norm, m->eps);
    Tensor *a = m->spec[il].kind == LAYER_DELTA ? delta_net(m, s, il, w, h) : gated_attention(m, s, il, w, h);
    h = step_add_norm(s, x, a, &w->post_norm, m->eps);
    step_add(s, x, m->experts ? mixture(m, s, il, w, h) : step_swiglu(s, h, &w->gate, &w->up, &w->down));
}

#define QWEN35_FAMILY(name)                                                                                        \
    {                                                                                                              \
        .arch = name, .global = model_ends, .n_global = MODEL_ENDS, .layer_bind = layer_bind,                      \
        .n_layer_bind = LAYER_BINDS - MTP_BINDS, .layer_bytes = sizeof(Qwen35Layer),                               \
        .params_bytes = sizeof(Qwen35Params), .read = read, .size = size, .spec = spec, .layer = layer,            \
    }
const Family family_qwen35 = QWEN35_FAMILY("qwen35"), family_qwen35moe = QWEN35_FAMILY("qwen35moe");

/* ---- MTP: the layer after the trunk as a drafter (spec targets.md section 8) ----
 *
 * From the trunk's state after its output norm at position t and the token at t + 1 it predicts the token at t + 2:
 *     x = join [norm(embed(token)) | norm(state)], then an attention layer with keys and values of its own, norm, head.
 * The normed output replaces the state at the next position, so the layer drafts a chain, one pass per token
 * (drafter_mtp.c). A row must have the position of the token that it predicts (noise is keyed by position, and rotation
 * depends on differences only), so the row of tap t is at t + lead, lead = 2. Since the newest tap's token is the root,
 * that tap is held back: it begins the next draft. */

static Status mtp_read(Model *m, const Weights *w, Error *err)
{
    Qwen35Params *p = m->params;
    (void) w;
    const Model *t = m->target;
    if ((t->family != &family_qwen35 && t->family != &family_qwen35moe) || t->n_extra == 0)
        return fail(err, ST_UNSUPPORTED, "%s: it has no MTP layer to draft with (nextn_predict_layers is 0 or absent)",
                    m->file);
    m->n_layers = 1;                               /* if there are more, the first one drafts all depths */
    m->first_layer = t->n_layers;
    m->dim = t->dim, m->vocab = t->vocab, m->ffn = t->ffn, m->ctx_train = t->ctx_train;
    m->heads = t->heads, m->kv_heads = t->kv_heads, m->head_dim = t->head_dim;
    m->q_dim = t->q_dim, m->kv_dim = t->kv_dim;
    m->experts = t->experts, m->expert_ffn = t->expert_ffn, m->shared_ffn = t->shared_ffn, m->router = t->router;
    m->eps = t->eps, m->attention_scale = t->attention_scale;
    p->rope.at[0] = ((const Qwen35Params *) t->params)->rope.at[t->stages.n - 1];
    m->lead = 2;
    m->hold = 1;
    m->block = 4;                                  /* the root and three tokens ahead */
    m->ring = 4096;
    m->n_taps = 1;
    m->tap[0] = t->n_layers;
    m->tap_width = m->dim;
    snprintf(m->arch, sizeof m->arch, "mtp");
    return ST_OK;
}

static Status mtp_bound(Model *m, Error *err)
{
    (void) err;
    const Qwen35Layer *w = model_layer(m, 0);
    m->out_norm = w->head_norm.data ? w->head_norm : m->target->out_norm;
    m->embed = w->own_embed;
    m->head = w->own_head;
    return ST_OK;
}

static void mtp_spec(const Model *m, int32_t il, LayerSpec *out) { model_attention_spec(m, il, out); }

/* Turns x, on entry the tokens' embeddings, into the layer's input. */
static void mtp_enter(const Model *m, Step *s, Tensor *x, const Tensor *state)
{
    const Qwen35Layer *w = model_layer(m, 0);
    Tensor *e = step_norm(s, x, &w->embed_norm, m->eps), *h = step_norm(s, state, &w->state_norm, m->eps);
    step_linear_to(s, x, step_join(s, e, h), &w->join);
}

static Tensor *mtp_context(const Model *m, Step *s, Tensor *taps)
{
    Tensor *x = step_new_rows(s, m->dim);
    step_embed(s, x, &m->embed);
    mtp_enter(m, s, x, taps);
    return x;
}

static void mtp_context_layer(const Model *m, Step *s, int32_t il, const Tensor *c)
{
    const Qwen35Params *p = m->params;
    const Qwen35Layer *w = model_layer(m, il);
    Tensor *kv[2];
    step_linear(s, 2, kv, (const Tensor *[]) { &w->k, &w->v }, step_norm(s, c, &w->attn_norm, m->eps));
    step_head_norm(s, kv[0], &w->k_norm, m->head_dim, m->eps);
    step_store_kv(s, il, &m->spec[il], kv[0], kv[1], &p->rope);
}

static void mtp_layer(const Model *m, Step *s, int32_t il, Tensor *x)
{
    mtp_enter(m, s, x, step_taps(s, m->dim));
    layer(m, s, il, x);
}

const Family draft_mtp = {
    .arch = "mtp", .layer_bind = layer_bind, .n_layer_bind = LAYER_BINDS, .layer_bytes = sizeof(Qwen35Layer),
    .params_bytes = sizeof(Qwen35Params), .read = mtp_read, .size = size, .spec = mtp_spec, .layer = mtp_layer,
    .context = mtp_context, .context_layer = mtp_context_layer, .bound = mtp_bound,
};
