/* qwen35: Qwen3.5 / 3.6 dense hybrids (spec targets.md section 6). Three layers in four are gated delta nets, the fourth is attention
 * with an output gate. Value head m of a delta net reads key head m % k_heads (the converter tiled them so). A layer that predicts
 * several tokens ahead (MTP) lies behind the trunk and is not part of it: it is a drafter, at the end of this file. */
#include "model/model.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    Tensor attn_norm, post_norm, gate, up, down;
    Tensor q, k, v, o, q_norm, k_norm;                                            /* attention; q: per head query, then gate */
    Tensor qkv, z, beta, alpha, conv, dt, a, delta_norm, out;                     /* delta net */
    Tensor join, embed_norm, state_norm, head_norm, own_embed, own_head;          /* MTP */
} Layer;

#define AT(field) offsetof(Layer, field)
#define N(field) offsetof(Model, field)
static const Bind layer_bind[] = {
    { "attn_norm.weight", AT(attn_norm), 0, N(dim), BIND_VECTOR, false, LAYER_NONE, NULL },
    { "post_attention_norm.weight", AT(post_norm), 0, N(dim), BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_gate.weight", AT(gate), N(ffn), N(dim), BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_up.weight", AT(up), N(ffn), N(dim), BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_down.weight", AT(down), N(dim), N(ffn), BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_q.weight", AT(q), N(q_gate_dim), N(dim), BIND_MATRIX, false, LAYER_ATTENTION, "attn_qkv.weight" },
    { "attn_k.weight", AT(k), N(kv_dim), N(dim), BIND_MATRIX, false, LAYER_ATTENTION, "attn_qkv.weight" },
    { "attn_v.weight", AT(v), N(kv_dim), N(dim), BIND_MATRIX, false, LAYER_ATTENTION, "attn_qkv.weight" },
    { "attn_output.weight", AT(o), N(dim), N(q_dim), BIND_MATRIX, false, LAYER_ATTENTION, NULL },
    { "attn_q_norm.weight", AT(q_norm), 0, N(head_dim), BIND_VECTOR, false, LAYER_ATTENTION, NULL },
    { "attn_k_norm.weight", AT(k_norm), 0, N(head_dim), BIND_VECTOR, false, LAYER_ATTENTION, NULL },
    { "attn_qkv.weight", AT(qkv), N(conv_dim), N(dim), BIND_MATRIX, false, LAYER_DELTA, NULL },
    { "attn_gate.weight", AT(z), N(inner_dim), N(dim), BIND_MATRIX, false, LAYER_DELTA, NULL },
    { "ssm_beta.weight", AT(beta), N(v_heads), N(dim), BIND_MATRIX, false, LAYER_DELTA, NULL },
    { "ssm_alpha.weight", AT(alpha), N(v_heads), N(dim), BIND_MATRIX, false, LAYER_DELTA, NULL },
    { "ssm_conv1d.weight", AT(conv), N(conv_dim), N(conv_width), BIND_PLAIN, false, LAYER_DELTA, NULL },
    { "ssm_dt.bias|ssm_dt", AT(dt), 0, N(v_heads), BIND_VECTOR, false, LAYER_DELTA, NULL },
    { "ssm_a", AT(a), 0, N(v_heads), BIND_VECTOR, false, LAYER_DELTA, NULL },
    { "ssm_norm.weight", AT(delta_norm), 0, N(v_dim), BIND_VECTOR, false, LAYER_DELTA, NULL },
    { "ssm_out.weight", AT(out), N(dim), N(inner_dim), BIND_MATRIX, false, LAYER_DELTA, NULL },
    { "nextn.eh_proj.weight", AT(join), N(dim), N(join_dim), BIND_MATRIX, false, LAYER_ATTENTION, NULL },          /* the MTP layer's, from here */
    { "nextn.enorm.weight", AT(embed_norm), 0, N(dim), BIND_VECTOR, false, LAYER_ATTENTION, NULL },
    { "nextn.hnorm.weight", AT(state_norm), 0, N(dim), BIND_VECTOR, false, LAYER_ATTENTION, NULL },
    { "nextn.shared_head_norm.weight", AT(head_norm), 0, N(dim), BIND_VECTOR, true, LAYER_ATTENTION, NULL },
    { "nextn.embed_tokens.weight", AT(own_embed), N(vocab), N(dim), BIND_MATRIX, true, LAYER_ATTENTION, NULL },
    { "nextn.shared_head_head.weight", AT(own_head), N(vocab), N(dim), BIND_MATRIX, true, LAYER_ATTENTION, NULL },
};
enum { MTP_BINDS = 6, LAYER_BINDS = sizeof layer_bind / sizeof *layer_bind };

/* Which layers are delta nets: the newest writers list them, older files give the interval of the attention layers. */
static Status read_kinds(Model *m, const Gguf *g, Error *err)
{
    m->recurrent = calloc((size_t) m->n_layers, sizeof *m->recurrent);
    if (!m->recurrent) return fail(err, ST_MEMORY, "%s: out of memory", m->file);
    GgufType elem;
    uint64_t n = 0;
    Status st = gguf_array(g, "qwen35.attention.recurrent_layers", &elem, &n, err);
    if (st != ST_OK && st != ST_END) return st;
    if (st == ST_OK) {
        if (n < (uint64_t) m->n_layers)
            return fail(err, ST_FORMAT, "%s: qwen35.attention.recurrent_layers has %llu values, expected %d", m->file, (unsigned long long) n, m->n_layers);
        for (int32_t i = 0; i < m->n_layers; i++) TRY(gguf_array_bool(g, "qwen35.attention.recurrent_layers", (uint64_t) i, &m->recurrent[i], err));
        return ST_OK;
    }
    int32_t interval;
    TRY(weights_u32(g, "qwen35", "full_attention_interval", 1, LAYERS_MAX, 4, &interval, err));
    for (int32_t i = 0; i < m->n_layers; i++) m->recurrent[i] = (i + 1) % interval != 0;
    return ST_OK;
}

static Status read_delta(Model *m, const Gguf *g, Error *err)
{
    TRY(weights_u32(g, "qwen35", "ssm.conv_kernel", 2, 16, 0, &m->conv_width, err));
    TRY(weights_u32(g, "qwen35", "ssm.state_size", 1, 256, 0, &m->k_dim, err));
    TRY(weights_u32(g, "qwen35", "ssm.group_count", 1, 1024, 0, &m->k_heads, err));
    TRY(weights_u32(g, "qwen35", "ssm.time_step_rank", 1, 1024, 0, &m->v_heads, err));
    TRY(weights_u32(g, "qwen35", "ssm.inner_size", 1, 1 << 20, 0, &m->inner_dim, err));
    m->v_dim = m->k_dim;
    m->conv_dim = 2 * m->k_heads * m->k_dim + m->v_heads * m->v_dim;
    if (m->k_dim % 16) return fail(err, ST_UNSUPPORTED, "%s: qwen35.ssm.state_size is %d, expected a multiple of 16", m->file, m->k_dim);
    if (m->inner_dim != m->v_heads * m->v_dim)
        return fail(err, ST_FORMAT, "%s: qwen35.ssm.inner_size is %d, expected time_step_rank * state_size = %d", m->file, m->inner_dim, m->v_heads * m->v_dim);
    if (m->v_heads % m->k_heads)
        return fail(err, ST_FORMAT, "%s: qwen35.ssm.time_step_rank is %d, expected a multiple of group_count %d", m->file, m->v_heads, m->k_heads);
    bool tiled = true;
    Status st = gguf_get_bool(g, "qwen35.ssm.v_head_reordered", &tiled, err);
    if (st != ST_OK && st != ST_END) return st;
    if (!tiled) return fail(err, ST_UNSUPPORTED, "%s: qwen35.ssm.v_head_reordered is false, expected tiled value heads (true or absent)", m->file);
    return ST_OK;
}

static Status read_sections(Model *m, const Gguf *g, int32_t pairs, int32_t out[4], Error *err)
{
    const char *key = "qwen35.rope.dimension_sections";
    GgufType elem;
    uint64_t n = 0;
    Status st = gguf_array(g, key, &elem, &n, err);
    if (st != ST_OK && st != ST_END) return st;
    out[0] = pairs;
    out[1] = out[2] = out[3] = 0;
    if (st == ST_END) return ST_OK;
    if (n < 3 || n > 4) return fail(err, ST_FORMAT, "%s: %s has %llu values, expected 3 or 4", m->file, key, (unsigned long long) n);
    int64_t sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        int64_t v;
        TRY(gguf_array_i64(g, key, i, &v, err));
        if (v < 0 || v > pairs) return fail(err, ST_FORMAT, "%s: %s value %d is %lld, expected 0 to %d", m->file, key, (int) i, (long long) v, pairs);
        out[i] = (int32_t) v;
        sum += v;
    }
    if (sum != pairs) return fail(err, ST_FORMAT, "%s: %s sums to %lld, expected %d (half of rope.dimension_count)", m->file, key, (long long) sum, pairs);
    return ST_OK;
}

static Status read(Model *m, const Weights *w, Error *err)
{
    const Gguf *g = w->gguf;
    TRY(model_read_attention(m, w, "qwen35", err));
    int32_t mtp, n_rot, section[4];
    TRY(weights_u32(g, "qwen35", "nextn_predict_layers", 0, LAYERS_MAX, 0, &mtp, err));
    if (mtp >= m->n_layers) return fail(err, ST_FORMAT, "%s: qwen35.nextn_predict_layers is %d of %d layers", m->file, mtp, m->n_layers);
    m->n_layers -= mtp;
    m->n_extra = mtp;
    m->q_gate_dim = 2 * m->q_dim;
    TRY(read_kinds(m, g, err));
    TRY(read_delta(m, g, err));
    float base;
    TRY(weights_f32(g, "qwen35", "rope.freq_base", 1e7f, &base, err));
    TRY(weights_u32(g, "qwen35", "rope.dimension_count", 2, m->head_dim, m->head_dim / 4, &n_rot, err));
    if (n_rot % 2) return fail(err, ST_FORMAT, "%s: qwen35.rope.dimension_count is %d, expected an even number", m->file, n_rot);
    TRY(read_sections(m, g, n_rot / 2, section, err));
    return model_rope(m, w, "qwen35", n_rot, true, base, section, err);
}

static void spec(const Model *m, int32_t il, LayerSpec *out)
{
    if (!m->recurrent[il]) {
        model_attention_spec(m, il, out);
        return;
    }
    *out = (LayerSpec) { .kind = LAYER_DELTA, .k_heads = m->k_heads, .v_heads = m->v_heads, .k_dim = m->k_dim, .v_dim = m->v_dim,
                         .conv_width = m->conv_width, .eps = m->eps };
}

static Tensor *gated_attention(const Model *m, Step *s, int32_t il, const Layer *w, const Tensor *h)
{
    Tensor *y[3], *q = new_rows(s, m->q_dim), *g = new_rows(s, m->q_dim);
    linear(s, 3, y, (const Tensor *[]) { &w->q, &w->k, &w->v }, h);
    s->be->split(s->be, q, g, y[0], m->head_dim);
    s->be->head_norm(s->be, q, &w->q_norm, m->head_dim, m->eps);
    s->be->head_norm(s->be, y[1], &w->k_norm, m->head_dim, m->eps);
    Tensor *o = attend(s, il, &m->spec[il], q, y[1], y[2], &m->rope);
    s->be->gate(s->be, o, g);
    return linear1(s, o, &w->o);
}

static Tensor *delta_net(const Model *m, Step *s, int32_t il, const Layer *w, const Tensor *h)
{
    Tensor *y[4];                                  /* qkv, z, beta, alpha */
    linear(s, 4, y, (const Tensor *[]) { &w->qkv, &w->z, &w->beta, &w->alpha }, h);
    Tensor *qkv = short_conv(s, il, &m->spec[il], y[0], &w->conv);
    Tensor *o = delta_rule(s, il, &m->spec[il], qkv, y[2], y[3], &w->a, &w->dt);
    s->be->gated_norm(s->be, o, &w->delta_norm, y[1], m->v_dim, m->eps);
    return linear1(s, o, &w->out);
}

static void layer(const Model *m, Step *s, int32_t il, Tensor *x)
{
    const Layer *w = model_layer(m, il);
    Tensor *h = norm(s, x, &w->attn_norm, m->eps);
    Tensor *a = m->spec[il].kind == LAYER_DELTA ? delta_net(m, s, il, w, h) : gated_attention(m, s, il, w, h);
    h = add_norm(s, x, a, &w->post_norm, m->eps);
    s->be->add(s->be, x, swiglu(s, h, &w->gate, &w->up, &w->down));
}

const Family family_qwen35 = {
    .arch = "qwen35", .global = model_ends, .n_global = MODEL_ENDS,
    .layer_bind = layer_bind, .n_layer_bind = LAYER_BINDS - MTP_BINDS, .layer_bytes = sizeof(Layer),
    .read = read, .spec = spec, .layer = layer,
};

/* ---- MTP: the layer behind the trunk as a drafter (spec targets.md section 8) ----
 *
 * From the trunk's state after its output norm at position t and the token at t + 1 it makes the token at t + 2:
 *     x = join [norm(embed(token)) | norm(state)], then an attention layer with keys and values of its own, norm, head.
 * The normed output stands in for the state one place further on, so that it drafts a chain, a pass per token (drafter_mtp.c).
 * As a row has to stand where the token is that it predicts (noise is keyed by position, and rotation knows differences only), the row of
 * tap t stands at t + lead, lead = 2; and since the newest tap's token is the root, that tap is held back: it begins the next draft. */

static Status mtp_read(Model *m, const Weights *w, Error *err)
{
    (void) w;
    const Model *t = m->target;
    if (t->n_extra == 0) return fail(err, ST_UNSUPPORTED, "%s: it has no MTP layer to draft with (nextn_predict_layers is 0 or absent)", m->file);
    m->n_layers = 1;                               /* where there are more, the first one drafts all depths */
    m->first_layer = t->n_layers;
    m->dim = t->dim, m->vocab = t->vocab, m->ffn = t->ffn, m->ctx_train = t->ctx_train;
    m->heads = t->heads, m->kv_heads = t->kv_heads, m->head_dim = t->head_dim;
    m->q_dim = t->q_dim, m->kv_dim = t->kv_dim, m->q_gate_dim = t->q_gate_dim;
    m->eps = t->eps, m->attention_scale = t->attention_scale, m->rope = t->rope;
    m->join_dim = 2 * m->dim;
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

static void mtp_bound(Model *m)
{
    const Layer *w = model_layer(m, 0);
    m->out_norm = w->head_norm.data ? w->head_norm : m->target->out_norm;
    m->embed = w->own_embed;
    m->head = w->own_head;
}

static void mtp_spec(const Model *m, int32_t il, LayerSpec *out) { model_attention_spec(m, il, out); }

/* x, the tokens' embeddings on entry, becomes what the layer reads. */
static void mtp_enter(const Model *m, Step *s, Tensor *x, const Tensor *state)
{
    const Layer *w = model_layer(m, 0);
    const Tensor *join = &w->join;
    Tensor *e = norm(s, x, &w->embed_norm, m->eps), *h = norm(s, state, &w->state_norm, m->eps), *both = new_rows(s, m->join_dim);
    s->be->join(s->be, both, e, h);
    s->be->matmul(s->be, 1, &x, &join, both);
}

static Tensor *mtp_context(const Model *m, Step *s, const Tensor *taps)
{
    const Tensor ids = { T_I32, 1, s->host.n, s->rows.token };
    Tensor *x = new_rows(s, m->dim);
    s->be->embed(s->be, x, &m->embed, &ids);
    mtp_enter(m, s, x, taps);
    return x;
}

static void mtp_context_layer(const Model *m, Step *s, int32_t il, const Tensor *c)
{
    const Layer *w = model_layer(m, il);
    Tensor *kv[2];
    linear(s, 2, kv, (const Tensor *[]) { &w->k, &w->v }, norm(s, c, &w->attn_norm, m->eps));
    s->be->head_norm(s->be, kv[0], &w->k_norm, m->head_dim, m->eps);
    remember(s, il, &m->spec[il], kv[0], kv[1], &m->rope);
}

static void mtp_layer(const Model *m, Step *s, int32_t il, Tensor *x)
{
    Tensor *state = new_rows(s, m->dim);
    s->be->tap_get(s->be, state, &s->rows);
    mtp_enter(m, s, x, state);
    layer(m, s, il, x);
}

const Family draft_mtp = {
    .arch = "mtp", .layer_bind = layer_bind, .n_layer_bind = LAYER_BINDS, .layer_bytes = sizeof(Layer),
    .read = mtp_read, .spec = mtp_spec, .layer = mtp_layer, .context = mtp_context, .context_layer = mtp_context_layer, .bound = mtp_bound,
};
