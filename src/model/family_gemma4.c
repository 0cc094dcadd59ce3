/* gemma4: Google's Gemma 4, the mixture 26B-A4B and the dense 31B and 12B (spec diffusion-gemma.md sections 2 and 3).
 * Layers with a window and full ones have heads of different widths and counts, and a rotation each. A full layer may
 * lack a value projection: then what the key projection gives is the value too. What attention and the feed-forward
 * part give is normed before it is added, and a layer ends with a factor on all of its output. In a mixture a dense
 * path and the experts run side by side on the same input. The small models, with inputs per layer and layers that
 * share keys and values, are refused. */
#include "model/model.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "base/ranges.h"

typedef struct {
    Tensor attn_norm, q, k, v, o, q_norm, k_norm, post_attn_norm;
    Tensor ffn_norm, gate, up, down, post_ffn_norm, factor, text_factor;
    Tensor router, router_scale, expert_norm, gates, ups, downs, down_factors, post_dense_norm, post_expert_norm;
} Gemma4Layer;

typedef struct {
    StageRope full, near;
    int32_t   heads[LAYERS_MAX], kv_heads[LAYERS_MAX], full_dim, near_dim;  /* dim: of a head */
    bool      slides[LAYERS_MAX];
    int32_t   window;
    float     factor[LAYERS_MAX];                  /* of a layer's output; 1 if the file has none */
    float     text_factor[LAYERS_MAX];             /* the same, for rows that are not of a canvas */
    Tensor    soft_norm, soft_gate, soft_up, soft_down;                /* diffusion: what the last step says */
} Gemma4Params;

static int32_t head_dim(const Gemma4Params *p, int32_t il) { return p->slides[il] ? p->near_dim : p->full_dim; }

/* A windowed layer must have values of its own; a full one may have. MIX: of what mixtures have besides. CANVAS,
 * PLAIN: of what models with a canvas, and only the others, have. */
enum { SIZE_NEAR_V = SIZE_OWN, SIZE_FULL_V, SIZE_MIX_DIM, SIZE_CANVAS, SIZE_PLAIN };
static int32_t size(const Model *m, int32_t il, int32_t which)
{
    const Gemma4Params *p = m->params;
    if (which == SIZE_CANVAS) return m->diffusion.canvas > 0;
    if (which == SIZE_PLAIN) return m->diffusion.canvas == 0;
    if (il < 0) return model_size(m, which);
    const int32_t kv = p->kv_heads[il] * head_dim(p, il);
    switch (which) {
    case SIZE_Q: return p->heads[il] * head_dim(p, il);
    case SIZE_KV: return kv;
    case SIZE_NEAR_V: return p->slides[il] ? kv : 0;
    case SIZE_FULL_V: return p->slides[il] ? 0 : kv;
    case SIZE_HEAD: return head_dim(p, il);
    case SIZE_MIX_DIM: return m->experts ? m->dim : 0;
    default: return model_size(m, which);
    }
}

#define GEMMA4(field) offsetof(Gemma4Layer, field)
static const Bind layer_bind[] = {
    { "attn_norm.weight", GEMMA4(attn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "attn_q.weight", GEMMA4(q), SIZE_Q, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_k.weight", GEMMA4(k), SIZE_KV, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_v.weight", GEMMA4(v), SIZE_NEAR_V, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, "attn_qkv.weight" },
    { "attn_v.weight", GEMMA4(v), SIZE_FULL_V, SIZE_DIM, BIND_MATRIX, true, LAYER_NONE, "attn_qkv.weight" },
    { "attn_output.weight", GEMMA4(o), SIZE_DIM, SIZE_Q, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_q_norm.weight", GEMMA4(q_norm), SIZE_ONE, SIZE_HEAD, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "attn_k_norm.weight", GEMMA4(k_norm), SIZE_ONE, SIZE_HEAD, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "post_attention_norm.weight", GEMMA4(post_attn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_norm.weight", GEMMA4(ffn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_gate.weight", GEMMA4(gate), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_up.weight", GEMMA4(up), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_down.weight", GEMMA4(down), SIZE_DIM, SIZE_FFN, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "post_ffw_norm.weight", GEMMA4(post_ffn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "layer_output_scale.weight", GEMMA4(factor), SIZE_ONE, SIZE_PLAIN, BIND_VECTOR, true, LAYER_NONE, NULL },
    { "layer_output_scale.weight", GEMMA4(factor), SIZE_ONE, SIZE_CANVAS, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "enc_layer_output_scale.weight", GEMMA4(text_factor), SIZE_ONE, SIZE_CANVAS, BIND_VECTOR, false, LAYER_NONE,
      NULL },
    { "ffn_gate_inp.weight", GEMMA4(router), SIZE_EXPERTS, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_gate_inp.scale", GEMMA4(router_scale), SIZE_ONE, SIZE_MIX_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "pre_ffw_norm_2.weight", GEMMA4(expert_norm), SIZE_ONE, SIZE_MIX_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_gate_exps.weight", GEMMA4(gates), SIZE_EXPERT_FFN, SIZE_DIM, BIND_EXPERTS, false, LAYER_NONE,
      "ffn_gate_up_exps.weight" },
    { "ffn_up_exps.weight", GEMMA4(ups), SIZE_EXPERT_FFN, SIZE_DIM, BIND_EXPERTS, false, LAYER_NONE,
      "ffn_gate_up_exps.weight" },
    { "ffn_down_exps.weight", GEMMA4(downs), SIZE_DIM, SIZE_EXPERT_FFN, BIND_EXPERTS, false, LAYER_NONE, NULL },
    { "ffn_down_exps.scale", GEMMA4(down_factors), SIZE_ONE, SIZE_EXPERTS, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "post_ffw_norm_1.weight", GEMMA4(post_dense_norm), SIZE_ONE, SIZE_MIX_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "post_ffw_norm_2.weight", GEMMA4(post_expert_norm), SIZE_ONE, SIZE_MIX_DIM, BIND_VECTOR, false, LAYER_NONE,
      NULL },
};

/* What only the small models have. */
static Status refuse_small(const Model *m, const Gguf *g, Error *err)
{
    static const struct { const char *name, *what; } keys[] = {
        { "embedding_length_per_layer_input", "inputs per layer" },
        { "attention.shared_kv_layers", "layers that share keys and values" } };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int32_t v;
        TRY(weights_u32(g, m->family->arch, keys[i].name, 0, INT32_MAX, 0, &v, err));
        if (v != 0)
            return fail(err, ST_UNSUPPORTED, "%s: %s.%s is %d, expected 0: models with %s (E2B, E4B) do not run",
                        m->file, m->family->arch, keys[i].name, v, keys[i].what);
    }
    return ST_OK;
}

static Status read_windows(Model *m, const Gguf *g, Error *err)
{
    Gemma4Params *p = m->params;
    const char *arch = m->family->arch;
    char key[80];
    GgufType elem;
    uint64_t n;
    bool any = false;
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", arch);
    Status st = gguf_array(g, key, &elem, &n, err);
    if (st == ST_END) return fail(err, ST_FORMAT, "%s: key %s is missing", m->file, key);
    TRY(st);
    if (n != (uint64_t) m->n_layers)
        return fail(err, ST_FORMAT, "%s: %s has %llu values, expected %d", m->file, key, (unsigned long long) n,
                    m->n_layers);
    for (int32_t i = 0; i < m->n_layers; i++) {
        TRY(gguf_array_bool(g, key, (uint64_t) i, &p->slides[i], err));
        any |= p->slides[i];
    }
    return any ? weights_u32(g, arch, "attention.sliding_window", 1, 1 << 24, 0, &p->window, err) : ST_OK;
}

/* suffix: "" for full layers, "_swa" for those with a window. factors: the tensor of divisors, NULL: none. */
static Status read_heads(Model *m, const Weights *w, const char *suffix, const char *factors, int32_t *dim,
                         StageRope *out, Error *err)
{
    const char *arch = m->family->arch;
    const Gguf *g = w->gguf;
    char key[4][40];
    int32_t values;
    RopeSpec r = { .neox = true, .factors = factors };
    snprintf(key[0], sizeof key[0], "attention.key_length%s", suffix);
    snprintf(key[1], sizeof key[1], "attention.value_length%s", suffix);
    snprintf(key[2], sizeof key[2], "rope.freq_base%s", suffix);
    snprintf(key[3], sizeof key[3], "rope.dimension_count%s", suffix);
    TRY(weights_u32(g, arch, key[0], 1, 1024, 0, dim, err));
    TRY(weights_u32(g, arch, key[1], 1, 1024, *dim, &values, err));
    if (values != *dim)
        return fail(err, ST_UNSUPPORTED, "%s: %s.%s is %d, expected the key length %d", m->file, arch, key[1], values,
                    *dim);
    TRY(weights_f32(g, arch, key[2], 0, &r.base, err));
    TRY(weights_u32(g, arch, key[3], 2, *dim, *dim, &r.n_rot, err));
    if (r.n_rot % 2)
        return fail(err, ST_FORMAT, "%s: %s.%s is %d, expected an even number", m->file, arch, key[3], r.n_rot);
    WeightView v;
    if (factors && !weights_find(w, factors, &v))
        return fail(err, ST_FORMAT, "%s: tensor %s is missing (shape [%d])", m->file, factors, r.n_rot / 2);
    return model_rope(m, w, arch, &r, out, err);
}

static Status read_attention(Model *m, const Weights *w, Error *err)
{
    Gemma4Params *p = m->params;
    const char *arch = m->family->arch;
    const int32_t n = m->n_layers;
    int32_t near = 0;
    TRY(read_windows(m, w->gguf, err));
    TRY(weights_each_u32(w->gguf, arch, "attention.head_count", n, 1, 1024, 0, p->heads, err));
    TRY(weights_each_u32(w->gguf, arch, "attention.head_count_kv", n, 1, 1024, 0, p->kv_heads, err));
    for (int32_t i = 0; i < n; i++) near += p->slides[i];
    if (near > 0) TRY(read_heads(m, w, "_swa", NULL, &p->near_dim, &p->near, err));
    if (near < n) TRY(read_heads(m, w, "", "rope_freqs.weight", &p->full_dim, &p->full, err));
    m->attention_scale = 1;                        /* the norms of queries and keys take its place */
    return ST_OK;
}

static Status read(Model *m, const Weights *w, Error *err)
{
    const char *arch = m->family->arch;
    char key[80];
    int32_t experts;
    TRY(refuse_small(m, w->gguf, err));
    TRY(model_read_sizes(m, w, arch, err));
    TRY(read_attention(m, w, err));
    TRY(weights_u32(w->gguf, arch, "expert_count", 0, EXPERTS_MAX, 0, &experts, err));
    if (experts > 0) TRY(model_read_mixture(m, w, arch, err));
    m->embed_scale = sqrtf((float) m->dim);
    snprintf(key, sizeof key, "%s.final_logit_softcapping", arch);
    if (gguf_has(w->gguf, key)) TRY(weights_f32(w->gguf, arch, "final_logit_softcapping", 0, &m->softcap, err));
    return ST_OK;
}

static void spec(const Model *m, int32_t il, LayerSpec *out)
{
    const Gemma4Params *p = m->params;
    model_attention_spec(m, il, out);
    out->heads = p->heads[il];
    out->kv_heads = p->kv_heads[il];
    out->head_dim = head_dim(p, il);
    out->window = p->slides[il] ? p->window : 0;
    out->canvas = m->diffusion.canvas > 0;
    out->causal = !out->canvas;
}

/* Factors of layers' outputs are numbers of the calls, which the host makes. */
static Status bound(Model *m, Error *err)
{
    Gemma4Params *p = m->params;
    for (int32_t il = 0; il < m->n_layers; il++) {
        const Gemma4Layer *w = model_layer(m, il);
        const Tensor *text = w->text_factor.data ? &w->text_factor : &w->factor;
        Backend *be = stages_be(&m->stages, il);
        p->factor[il] = p->text_factor[il] = 1;
        if (w->factor.data) be->copy_out(be, &p->factor[il], w->factor.data, sizeof p->factor[il]);
        if (text->data) be->copy_out(be, &p->text_factor[il], text->data, sizeof p->text_factor[il]);
    }
    return stages_sync(&m->stages, err);
}

static Tensor *attention(const Model *m, Step *s, int32_t il, const Gemma4Layer *w, const Tensor *h)
{
    const Gemma4Params *p = m->params;
    const LayerSpec *sp = &m->spec[il];
    const int32_t n = w->v.data ? 3 : 2;
    Tensor *y[3];                                  /* query, key, value */
    step_linear(s, n, y, (const Tensor *[]) { &w->q, &w->k, &w->v }, h);
    Tensor *v = step_unit_heads(s, y[n - 1], sp->head_dim, m->eps);
    Tensor *o = step_attend_normed(s, il, sp, y[0], y[1], v, &w->q_norm, &w->k_norm, m->eps,
                                   p->slides[il] ? &p->near : &p->full);
    return step_linear1(s, o, &w->o);
}

/* The router reads what the layer has made of x so far, normed without weights, times scale / sqrt(dim). */
static Tensor *mixture(const Model *m, Step *s, int32_t il, const Gemma4Layer *w, const Tensor *x)
{
    Tensor *logits = step_linear1(s, step_norm(s, x, &w->router_scale, m->eps), &w->router);
    step_scale(s, logits, 1 / sqrtf((float) m->dim));
    Tensor *y = step_moe(s, il, step_norm(s, x, &w->expert_norm, m->eps), logits, NULL, &w->down_factors, &m->router,
                         &w->gates, &w->ups, &w->downs, ACT_GELU_TANH);
    return step_norm(s, y, &w->post_expert_norm, m->eps);
}

/* All of a layer but the factor at its end. */
static void add_layer(const Model *m, Step *s, int32_t il, Tensor *x)
{
    const Gemma4Layer *w = model_layer(m, il);
    Tensor *a = attention(m, s, il, w, step_norm(s, x, &w->attn_norm, m->eps));
    const Tensor *h = step_add_norm(s, x, step_norm(s, a, &w->post_attn_norm, m->eps), &w->ffn_norm, m->eps);
    Tensor *y = step_ffn(s, h, &w->gate, &w->up, &w->down, ACT_GELU_TANH);
    if (m->experts) {
        y = step_norm(s, y, &w->post_dense_norm, m->eps);
        step_add(s, y, mixture(m, s, il, w, x));
    }
    step_add(s, x, step_norm(s, y, &w->post_ffn_norm, m->eps));
}

static void layer(const Model *m, Step *s, int32_t il, Tensor *x)
{
    const Gemma4Params *p = m->params;
    const float factor = step_is_canvas(s) ? p->factor[il] : p->text_factor[il];
    add_layer(m, s, il, x);
    if (factor != 1) step_scale(s, x, factor);
}

const Family family_gemma4 = {
    .arch = "gemma4", .global = model_ends, .n_global = MODEL_ENDS,
    .layer_bind = layer_bind, .n_layer_bind = sizeof layer_bind / sizeof *layer_bind,
    .layer_bytes = sizeof(Gemma4Layer), .params_bytes = sizeof(Gemma4Params), .read = read, .size = size, .spec = spec,
    .layer = layer, .bound = bound,
};

/* ---- diffusion-gemma ---- */

static Status check_backend(const Model *m, Error *err)
{
    const Backend *last = stages_last(&m->stages);
    if (last->canvas) return ST_OK;
    return fail(err, ST_UNSUPPORTED, "%s: the backend '%s' does not run models of the family '%s'", m->file, last->name,
                m->family->arch);
}

/* Keys without the family's name, of which only the first is needed. */
static Status read_diffusion(Model *m, const Weights *w, Error *err)
{
    static const char prefix[] = "diffusion";
    const Gguf *g = w->gguf;
    Diffusion *d = &m->diffusion;
    TRY(weights_u32(g, prefix, "canvas_length", 1, INT32_MAX, 0, &d->canvas, err));
    if (d->canvas != 32 && d->canvas != 64 && d->canvas != 128 && d->canvas != CANVAS_MAX)
        return fail(err, ST_UNSUPPORTED, "%s: diffusion.canvas_length is %d, expected 32, 64, 128 or %d", m->file,
                    d->canvas, CANVAS_MAX);
    TRY(weights_u32(g, prefix, "eb_max_steps", 1, STEPS_MAX, 48, &d->steps, err));
    TRY(weights_u32(g, prefix, "eb_stability_threshold", 0, STEPS_MAX, 1, &d->stability, err));
    TRY(weights_f32(g, prefix, "eb_t_min", 0.4f, &d->t_min, err));
    TRY(weights_f32(g, prefix, "eb_t_max", 0.8f, &d->t_max, err));
    TRY(weights_f32(g, prefix, "eb_entropy_bound", 0.1f, &d->entropy_bound, err));
    TRY(weights_f32(g, prefix, "eb_confidence_threshold", 0.005f, &d->confidence, err));
    if (d->t_min > d->t_max)
        return fail(err, ST_FORMAT, "%s: diffusion.eb_t_min is %g, expected at most diffusion.eb_t_max %g", m->file,
                    (double) d->t_min, (double) d->t_max);
    return ST_OK;
}

static Status read_canvas(Model *m, const Weights *w, Error *err)
{
    TRY(check_backend(m, err));
    TRY(read_diffusion(m, w, err));
    return read(m, w, err);
}

/* The rows of a canvas begin as embeddings and what its last step said about their positions; nothing is said before
 * the first. */
static void embedded(const Model *m, Step *s, Tensor *x)
{
    const Gemma4Params *p = m->params;
    if (!step_is_canvas(s)) return;
    for (int32_t i = 0; i < s->n_canvas; i++) {
        if (!s->canvas[i].conditioned) continue;
        const StepMark mark = step_mark(s);
        const Tensor soft = step_canvas_soft(s, x, i);
        Tensor rows = step_canvas_rows(s, x, i);
        const Tensor *h = step_norm(s, &soft, &p->soft_norm, m->eps);
        step_add(s, &rows, step_ffn(s, h, &p->soft_gate, &p->soft_up, &p->soft_down, ACT_GELU_TANH));
        step_reset(s, mark);
    }
    step_head_norm(s, x, NULL, x->cols, m->eps);
}

#define SOFT(field) offsetof(Gemma4Params, field)
static const Bind soft_bind[] = {
    { "self_cond_pre_norm.weight|self_cond_norm.weight", SOFT(soft_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false,
      LAYER_NONE, NULL },
    { "self_cond_gate.weight", SOFT(soft_gate), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "self_cond_up.weight", SOFT(soft_up), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "self_cond_down.weight", SOFT(soft_down), SIZE_DIM, SIZE_FFN, BIND_MATRIX, false, LAYER_NONE, NULL },
};

const Family family_diffusion_gemma = {
    .arch = "diffusion-gemma", .global = model_ends, .n_global = MODEL_ENDS,
    .own = soft_bind, .n_own = sizeof soft_bind / sizeof *soft_bind,
    .layer_bind = layer_bind, .n_layer_bind = sizeof layer_bind / sizeof *layer_bind,
    .layer_bytes = sizeof(Gemma4Layer), .params_bytes = sizeof(Gemma4Params), .read = read_canvas, .size = size,
    .spec = spec, .embedded = embedded, .layer = layer, .bound = bound,
};
