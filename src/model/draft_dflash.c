/* draft_dflash: the DFlash block-diffusion drafter and DFlash2 (spec speculation.md section 1). One pass over [root,
 * MASK, MASK, ...] guesses every position of the block at once; row r predicts the token at its own position. Committed
 * positions contribute keys/values computed from the target's taps: c = norm(fc taps), then the layer's own key and
 * value projections.
 *
 * Three layouts are read: the published Hugging Face folder (A), Luce's GGUF (B) and llama.cpp's GGUF (C). They differ
 * in names and in one number: the key `target_layers` counts layer inputs (id + 1), `target_layer_ids` layer outputs
 * (id). */
#include "model/model.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    Tensor attn_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm, ffn_norm, gate, up, down;
    Tensor attn_conv, attn_conv_proj, ffn_conv, ffn_conv_proj;                    /* DFlash2 */
} DflashLayer;

enum { LAYERS = 64 };
typedef struct {
    StageRope rope;
    int32_t   target_layers;
    int32_t   conv_taps, conv_group, selector_rank;                               /* DFlash2, else 0 */
    bool      context_norm;
    int32_t   window[LAYERS];                                                     /* 0: full */
    bool      causal[LAYERS];
    Tensor    fc, hidden_norm, selector_hidden, selector_pred, selector_succ;
} DflashParams;

enum { SIZE_TAPS = SIZE_OWN, SIZE_CONV_ROWS, SIZE_CONV_PROJ, SIZE_RANK, SIZE_CODES };
static int32_t size(const Model *m, int32_t il, int32_t which)
{
    const DflashParams *p = m->params;
    (void) il;
    switch (which) {
    case SIZE_TAPS: return m->tap_width;
    case SIZE_CONV_ROWS: return 2 * p->conv_taps;
    case SIZE_CONV_PROJ: return p->conv_taps ? 2 * p->conv_taps * (m->dim / p->conv_group) : 0;
    case SIZE_RANK: return p->selector_rank;
    case SIZE_CODES: return p->selector_rank ? m->vocab : 0;
    default: return model_size(m, which);
    }
}

#define DFLASH(field) offsetof(DflashLayer, field)
#define N(field) offsetof(Model, field)
#define OWN(field) offsetof(DflashParams, field)
static const Bind global[] = {
    { "norm.weight|output_norm.weight", N(out_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "token_embd.weight", N(embed), SIZE_VOCAB, SIZE_DIM, BIND_MATRIX, true, LAYER_NONE, NULL },
    { "output.weight", N(head), SIZE_VOCAB, SIZE_DIM, BIND_MATRIX, true, LAYER_NONE, NULL },
};
static const Bind own[] = {
    { "fc.weight|dflash.fc.weight|dflash_fc.weight", OWN(fc), SIZE_DIM, SIZE_TAPS, BIND_MATRIX, false,
      LAYER_NONE, NULL },
    { "hidden_norm.weight|dflash.hidden_norm.weight|dflash_hidden_norm.weight|enc.output_norm.weight", OWN(hidden_norm),
      SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "selector_hidden.weight|dflash.selector.hproj.weight|candidate_selector.hidden_projection.weight",
      OWN(selector_hidden), SIZE_RANK, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "selector_predecessor.weight|dflash.selector.pred_cb|candidate_selector.predecessor_codebook", OWN(selector_pred),
      SIZE_CODES, SIZE_RANK, BIND_TABLE, false, LAYER_NONE, NULL },
    { "selector_successor.weight|dflash.selector.succ_cb|candidate_selector.successor_codebook", OWN(selector_succ),
      SIZE_CODES, SIZE_RANK, BIND_TABLE, false, LAYER_NONE, NULL },
};
static const Bind layer_bind[] = {
    { "attn_norm.weight|input_layernorm.weight", DFLASH(attn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false,
      LAYER_NONE, NULL },
    { "attn_q.weight|self_attn.q_proj.weight", DFLASH(q), SIZE_Q, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_k.weight|self_attn.k_proj.weight", DFLASH(k), SIZE_KV, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_v.weight|self_attn.v_proj.weight", DFLASH(v), SIZE_KV, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_output.weight|self_attn.o_proj.weight", DFLASH(o), SIZE_DIM, SIZE_Q, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_q.bias|self_attn.q_proj.bias", DFLASH(q_bias), SIZE_ONE, SIZE_Q, BIND_VECTOR, true, LAYER_NONE, NULL },
    { "attn_k.bias|self_attn.k_proj.bias", DFLASH(k_bias), SIZE_ONE, SIZE_KV, BIND_VECTOR, true, LAYER_NONE, NULL },
    { "attn_v.bias|self_attn.v_proj.bias", DFLASH(v_bias), SIZE_ONE, SIZE_KV, BIND_VECTOR, true, LAYER_NONE, NULL },
    { "attn_output.bias|self_attn.o_proj.bias", DFLASH(o_bias), SIZE_ONE, SIZE_DIM, BIND_VECTOR, true,
      LAYER_NONE, NULL },
    { "attn_q_norm.weight|self_attn.q_norm.weight", DFLASH(q_norm), SIZE_ONE, SIZE_HEAD, BIND_VECTOR, false,
      LAYER_NONE, NULL },
    { "attn_k_norm.weight|self_attn.k_norm.weight", DFLASH(k_norm), SIZE_ONE, SIZE_HEAD, BIND_VECTOR, false,
      LAYER_NONE, NULL },
    { "ffn_norm.weight|post_attention_norm.weight|post_attention_layernorm.weight", DFLASH(ffn_norm), SIZE_ONE,
      SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "ffn_gate.weight|mlp.gate_proj.weight", DFLASH(gate), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_up.weight|mlp.up_proj.weight", DFLASH(up), SIZE_FFN, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_down.weight|mlp.down_proj.weight", DFLASH(down), SIZE_DIM, SIZE_FFN, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "attn_conv_base|attn_conv.base|attention_conv.base_kernel", DFLASH(attn_conv), SIZE_CONV_ROWS, SIZE_DIM,
      BIND_PLAIN, false, LAYER_NONE, NULL },
    { "attn_conv_proj.weight|attn_conv.proj.weight|attention_conv.kernel_projection.weight", DFLASH(attn_conv_proj),
      SIZE_CONV_PROJ, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "ffn_conv_base|ffn_conv.base|mlp_conv.base_kernel", DFLASH(ffn_conv), SIZE_CONV_ROWS, SIZE_DIM, BIND_PLAIN, false,
      LAYER_NONE, NULL },
    { "ffn_conv_proj.weight|ffn_conv.proj.weight|mlp_conv.kernel_projection.weight", DFLASH(ffn_conv_proj),
      SIZE_CONV_PROJ, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
};

/* ---- layout A: config.json ---- */

static Status json_field(const Model *m, const json_t *o, const char *key, int64_t min, int64_t max, int64_t standard,
                         int32_t *out, Error *err)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) {
        if (standard < min || standard > max)
            return fail(err, ST_FORMAT, "%s/config.json: %s is missing", m->file, key);
        *out = (int32_t) standard;
        return ST_OK;
    }
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max)
        return fail(err, ST_FORMAT, "%s/config.json: %s must be a whole number from %lld to %lld", m->file, key,
                    (long long) min, (long long) max);
    *out = (int32_t) json_integer_value(v);
    return ST_OK;
}

static Status json_positive(const Model *m, const json_t *o, const char *key, double standard, float *out, Error *err)
{
    const json_t *v = json_object_get(o, key);
    double x = v && !json_is_null(v) ? json_number_value(v) : standard;
    if ((v && !json_is_null(v) && !json_is_number(v)) || !(x > 0 && x <= 1e30))
        return fail(err, ST_FORMAT, "%s/config.json: %s must be a positive number", m->file, key);
    *out = (float) x;
    return ST_OK;
}

static Status json_taps(Model *m, const json_t *ids, Error *err)
{
    DflashParams *p = m->params;
    if (!ids) {                                    /* the training code's rule if there is no list (spec 1.2) */
        int32_t n = p->target_layers, k = m->n_layers;
        if (k > TAPS_MAX)
            return fail(err, ST_FORMAT, "%s/config.json: dflash_config.target_layer_ids is missing", m->file);
        m->n_taps = k;
        for (int32_t i = 0; i < k; i++)
            m->tap[i] = k == 1 ? n / 2 : (int32_t) rint(1 + i * (n - 3 - 1) / (double) (k - 1));
        return ST_OK;
    }
    if (!json_is_array(ids) || json_array_size(ids) < 1 || json_array_size(ids) > TAPS_MAX)
        return fail(err, ST_FORMAT, "%s/config.json: dflash_config.target_layer_ids must be a list of 1 to %d "
                    "layer ids", m->file, TAPS_MAX);
    m->n_taps = (int32_t) json_array_size(ids);
    for (int32_t i = 0; i < m->n_taps; i++) {
        const json_t *v = json_array_get(ids, (size_t) i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > LAYERS_MAX)
            return fail(err, ST_FORMAT, "%s/config.json: dflash_config.target_layer_ids value %d is no layer id",
                        m->file, i);
        m->tap[i] = (int32_t) json_integer_value(v);
    }
    return ST_OK;
}

/* A layer is causal inside the block if the config says so for all layers, otherwise if and only if it has a sliding
 * window (spec 1.4). */
static Status json_masks(Model *m, const json_t *c, const json_t *d, Error *err)
{
    DflashParams *p = m->params;
    const json_t *types = json_object_get(c, "layer_types"), *causal = json_object_get(c, "is_causal");
    int32_t window = 0, all = 0;
    TRY(json_field(m, c, "sliding_window", 0, 1 << 30, 0, &window, err));
    if (json_is_true(json_object_get(d, "use_swa"))) TRY(json_field(m, d, "swa_window_size", 1, 1 << 30, 0, &all, err));
    if (types && (!json_is_array(types) || json_array_size(types) != (size_t) m->n_layers))
        return fail(err, ST_FORMAT, "%s/config.json: layer_types must be a list of %d names", m->file, m->n_layers);
    for (int32_t i = 0; i < m->n_layers; i++) {
        const char *t = types ? json_string_value(json_array_get(types, (size_t) i)) : "full_attention";
        bool slides = t && strcmp(t, "sliding_attention") == 0;
        if (!t || (!slides && strcmp(t, "full_attention") != 0))
            return fail(err, ST_UNSUPPORTED, "%s/config.json: layer_types value %d is '%s', expected full_attention or "
                        "sliding_attention", m->file, i, t ? t : "no string");
        if (slides && window == 0)
            return fail(err, ST_FORMAT, "%s/config.json: layer_types has sliding layers, but sliding_window is missing",
                        m->file);
        p->window[i] = all ? all : slides ? window : 0;
        p->causal[i] = causal && !json_is_null(causal) ? json_is_true(causal) : slides && !all;
    }
    return ST_OK;
}

static Status read_folder(Model *m, const Weights *w, Error *err)
{
    DflashParams *p = m->params;
    const json_t *c = safetensors_config(w->st);
    if (!c) return fail(err, ST_FORMAT, "%s: config.json is missing beside the tensors", m->file);
    const json_t *d = json_object_get(c, "dflash_config"), *rope = json_object_get(c, "rope_parameters");
    if (d && !json_is_object(d))
        return fail(err, ST_FORMAT, "%s/config.json: dflash_config must be an object", m->file);
    float base;
    TRY(json_field(m, c, "num_hidden_layers", 1, LAYERS, 0, &m->n_layers, err));
    TRY(json_field(m, c, "hidden_size", 1, 1 << 17, 0, &m->dim, err));
    TRY(json_field(m, c, "intermediate_size", 1, 1 << 20, 0, &m->ffn, err));
    TRY(json_field(m, c, "num_attention_heads", 1, 1024, 0, &m->heads, err));
    TRY(json_field(m, c, "num_key_value_heads", 1, 1024, m->heads, &m->kv_heads, err));
    TRY(json_field(m, c, "head_dim", 1, 1024, m->dim / m->heads, &m->head_dim, err));
    TRY(json_field(m, c, "vocab_size", 1, 1 << 24, m->target->vocab, &m->vocab, err));
    TRY(json_field(m, c, "num_target_layers", 1, LAYERS_MAX, m->target->n_layers, &p->target_layers, err));
    TRY(json_positive(m, c, "rms_norm_eps", 0, &m->eps, err));
    TRY(json_positive(m, json_is_object(rope) && json_object_get(rope, "rope_theta") ? rope : c, "rope_theta", 0,
                      &base, err));
    const json_t *scaling = json_object_get(c, "rope_scaling");
    if (json_is_object(scaling))
        return fail(err, ST_UNSUPPORTED, "%s/config.json: rope_scaling is set, which drafters here do not have",
                    m->file);
    TRY(json_positive(m, c, "output_multiplier", 1, &m->logit_scale, err));
    TRY(json_positive(m, c, "input_embedding_scale", 1, &m->embed_scale, err));
    if (json_is_number(json_object_get(c, "final_logit_softcapping")))
        TRY(json_positive(m, c, "final_logit_softcapping", 0, &m->softcap, err));
    TRY(json_field(m, json_object_get(d, "block_size") ? d : c, "block_size", 2, ROWS_DECODE, 0, &m->block, err));
    TRY(json_field(m, d, "mask_token_id", 0, 1 << 24, -1, &m->mask_id, err));
    TRY(json_field(m, d, "conv_kernel_size", 0, 8, 0, &p->conv_taps, err));
    TRY(json_taps(m, json_object_get(d, "target_layer_ids"), err));
    TRY(json_masks(m, c, d, err));
    if (p->conv_taps) TRY(json_field(m, d, "conv_group_size", 1, 1 << 17, 0, &p->conv_group, err));
    if (json_object_get(d, "selector_rank")) {
        TRY(json_field(m, d, "selector_rank", 1, 4096, 0, &p->selector_rank, err));
    }
    const RopeSpec spec = { m->head_dim, true, base, "rope.scaling", "rope_freqs.weight", NULL };
    return model_rope(m, w, "", &spec, &p->rope, err);
}

/* ---- layouts B and C: GGUF ---- */

static Status gguf_taps(Model *m, const Gguf *g, const char *a, Error *err)
{
    char key[96];
    GgufType elem;
    uint64_t n = 0;
    int32_t shift = 0;
    static const struct {
        const char *name;
        int32_t shift;
    } form[] = { { "target_layers", 1 }, { "target_layer_ids", 0 }, { "dflash.target_layer_ids", 0 } };
    Status st = ST_END;
    for (size_t i = 0; st == ST_END && i < sizeof form / sizeof *form; i++) {
        snprintf(key, sizeof key, "%s.%s", a, form[i].name);
        st = gguf_array(g, key, &elem, &n, err);
        shift = form[i].shift;
    }
    if (st == ST_END)
        return fail(err, ST_FORMAT, "%s: key %s.target_layers (or dflash.target_layer_ids) is missing", m->file, a);
    TRY(st);
    if (n < 1 || n > TAPS_MAX)
        return fail(err, ST_FORMAT, "%s: %s has %llu values, expected 1 to %d", m->file, key, (unsigned long long) n,
                    TAPS_MAX);
    m->n_taps = (int32_t) n;
    for (uint64_t i = 0; i < n; i++) {
        int64_t v;
        TRY(gguf_array_i64(g, key, i, &v, err));
        if (v < shift || v > LAYERS_MAX)
            return fail(err, ST_FORMAT, "%s: %s value %d is %lld, which is no layer", m->file, key, (int) i,
                        (long long) v);
        m->tap[i] = (int32_t) v - shift;
    }
    return ST_OK;
}

static Status gguf_masks(Model *m, const Gguf *g, const char *a, Error *err)
{
    DflashParams *p = m->params;
    char key[96];
    int32_t window;
    GgufType elem;
    uint64_t n = 0;
    bool causal = false;
    TRY(weights_u32(g, a, "attention.sliding_window", 0, 1 << 30, 0, &window, err));
    snprintf(key, sizeof key, "%s.attention.causal", a);
    Status given = gguf_get_bool(g, key, &causal, err);
    if (given != ST_OK && given != ST_END) return given;
    const char *arch = NULL;
    size_t len = 0;
    snprintf(key, sizeof key, "%s.decoder_arch", a);
    if (given == ST_END && gguf_get_str(g, key, &arch, &len, NULL) == ST_OK && len == 6 &&
        memcmp(arch, "laguna", 6) == 0) {
        causal = true;
        given = ST_OK;
    }
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", a);
    Status st = gguf_array(g, key, &elem, &n, err);
    if (st != ST_OK && st != ST_END) return st;
    if (st == ST_OK && n != (uint64_t) m->n_layers)
        return fail(err, ST_FORMAT, "%s: %s has %llu values, expected %d", m->file, key, (unsigned long long) n,
                    m->n_layers);
    for (int32_t i = 0; i < m->n_layers; i++) {
        bool slides = window > 0;
        if (st == ST_OK) TRY(gguf_array_bool(g, key, (uint64_t) i, &slides, err));
        if (slides && window == 0)
            return fail(err, ST_FORMAT, "%s: %s has sliding layers, but %s.attention.sliding_window is missing",
                        m->file, key, a);
        p->window[i] = slides ? window : 0;
        p->causal[i] = given == ST_OK ? causal : slides && p->conv_taps == 0;
    }
    return ST_OK;
}

/* Reads a key from one of two places; missing in both: standard, or an error. */
static Status either_u32(const Gguf *g, const char *a, const char *first, const char *second, int32_t min, int32_t max,
                         int32_t standard, int32_t *out, Error *err)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", a, second);
    return weights_u32(g, a, gguf_has(g, key) ? second : first, min, max, standard, out, err);
}

static Status read_mask_id(Model *m, const Gguf *g, const char *a, Error *err)
{
    char form[3][96];
    snprintf(form[0], sizeof form[0], "%s.dflash.mask_token_id", a);
    snprintf(form[1], sizeof form[1], "%s.mask_token_id", a);
    snprintf(form[2], sizeof form[2], "tokenizer.ggml.mask_token_id");
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        const char *key = form[i];
        uint32_t v;
        Status st = gguf_get_u32(g, key, &v, err);
        if (st == ST_END) continue;
        TRY(st);
        if (v > 1 << 24) return fail(err, ST_FORMAT, "%s: %s is %u, which is no token", m->file, key, v);
        m->mask_id = (int32_t) v;
        return ST_OK;
    }
    return fail(err, ST_FORMAT, "%s: key tokenizer.ggml.mask_token_id (or %s.dflash.mask_token_id) is missing",
                m->file, a);
}

static Status read_gguf(Model *m, const Weights *w, Error *err)
{
    DflashParams *p = m->params;
    static const char *const archs[] = { "dflash", "qwen35-dflash-draft", "dflash-draft", "gemma4-dflash-draft" };
    const Gguf *g = w->gguf;
    const char *s = NULL, *a = NULL;
    size_t n = 0;
    Status st = gguf_get_str(g, "general.architecture", &s, &n, err);
    if (st == ST_END) return fail(err, ST_FORMAT, "%s: key general.architecture is missing", m->file);
    TRY(st);
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (n == strlen(archs[i]) && memcmp(s, archs[i], n) == 0) a = archs[i];
    if (!a)
        return fail(err, ST_UNSUPPORTED, "%s: general.architecture is '%.*s', expected a DFlash drafter (dflash, "
                    "qwen35-dflash-draft)", m->file, (int) (n < 60 ? n : 60), s);
    int32_t v_len, hyper;
    float base;
    TRY(weights_u32(g, a, "block_count", 1, LAYERS, 0, &m->n_layers, err));
    TRY(weights_u32(g, a, "embedding_length", 1, 1 << 17, 0, &m->dim, err));
    TRY(weights_u32(g, a, "feed_forward_length", 1, 1 << 20, 0, &m->ffn, err));
    TRY(weights_u32(g, a, "attention.head_count", 1, 1024, 0, &m->heads, err));
    TRY(weights_u32(g, a, "attention.head_count_kv", 1, 1024, m->heads, &m->kv_heads, err));
    TRY(weights_u32(g, a, "attention.key_length", 1, 1024, m->dim / m->heads, &m->head_dim, err));
    TRY(weights_u32(g, a, "attention.value_length", 1, 1024, m->head_dim, &v_len, err));
    if (v_len != m->head_dim)
        return fail(err, ST_UNSUPPORTED, "%s: %s.attention.value_length is %d, expected the key length %d", m->file, a,
                    v_len, m->head_dim);
    TRY(weights_u32(g, a, "vocab_size", 1, 1 << 24, m->target->vocab, &m->vocab, err));
    TRY(weights_f32(g, a, "attention.layer_norm_rms_epsilon", 0, &m->eps, err));
    TRY(weights_f32(g, a, "rope.freq_base", 0, &base, err));
    TRY(weights_f32(g, a, "logit_scale", 1, &m->logit_scale, err));
    TRY(weights_f32(g, a, "embedding_scale", 1, &m->embed_scale, err));
    char key[96];
    snprintf(key, sizeof key, "%s.final_logit_softcapping", a);
    if (gguf_has(g, key)) TRY(weights_f32(g, a, "final_logit_softcapping", 0, &m->softcap, err));
    TRY(weights_u32(g, a, "hyper_connection_count", 0, 0, 0, &hyper, err));
    TRY(either_u32(g, a, "block_size", "dflash.block_size", 2, ROWS_DECODE, 0, &m->block, err));
    TRY(read_mask_id(m, g, a, err));
    TRY(gguf_taps(m, g, a, err));
    TRY(either_u32(g, a, "conv_kernel_size", "dflash.dflash2.conv_kernel_size", 0, 8, 0, &p->conv_taps, err));
    TRY(either_u32(g, a, "conv_group_size", "dflash.dflash2.conv_group_size", 0, 1 << 17, 0, &p->conv_group, err));
    TRY(either_u32(g, a, "selector_rank", "dflash.dflash2.selector_rank", 0, 4096, 0, &p->selector_rank, err));
    TRY(gguf_masks(m, g, a, err));
    snprintf(key, sizeof key, "%s.dflash.context_kv_layer_norm", a);
    st = gguf_get_bool(g, key, &p->context_norm, err);
    if (st != ST_OK && st != ST_END) return st;
    bool anchored = false;
    snprintf(key, sizeof key, "%s.sample_from_anchor", a);
    st = gguf_get_bool(g, key, &anchored, err);
    if (st != ST_OK && st != ST_END) return st;
    if (anchored)
        return fail(err, ST_UNSUPPORTED,
                    "%s: %s is true (a DSpark drafter, whose row 0 guesses), expected false or absent", m->file, key);
    const RopeSpec rope = { m->head_dim, true, base, "rope.scaling", "rope_freqs.weight", NULL };
    return model_rope(m, w, a, &rope, &p->rope, err);
}

/* ---- fitting the target ---- */

static Status check_fit(Model *m, Error *err)
{
    DflashParams *p = m->params;
    const Model *t = m->target;
    if (m->dim != t->dim)
        return fail(err, ST_FORMAT, "%s: hidden size is %d, but the target %s has %d (embedding and head are shared)",
                    m->file, m->dim, t->file, t->dim);
    if (m->vocab != t->vocab)
        return fail(err, ST_FORMAT, "%s: vocabulary size is %d, but the target %s has %d", m->file, m->vocab, t->file,
                    t->vocab);
    if (m->mask_id >= t->vocab)
        return fail(err, ST_FORMAT, "%s: mask token id is %d, but the target %s has %d tokens", m->file, m->mask_id,
                    t->file, t->vocab);
    for (int32_t i = 0; i < m->n_taps; i++)
        if (m->tap[i] > t->n_layers || (i > 0 && m->tap[i] <= m->tap[i - 1]))
            return fail(err, ST_FORMAT, "%s: target layer id %d, expected ascending ids from 0 to %d (the target %s "
                        "has %d layers)", m->file, m->tap[i], t->n_layers, t->file, t->n_layers);
    if (p->target_layers != t->n_layers)
        return fail(err, ST_FORMAT, "%s: num_target_layers is %d, but the target %s has %d layers", m->file,
                    p->target_layers, t->file, t->n_layers);
    if (m->heads % m->kv_heads)
        return fail(err, ST_FORMAT, "%s: %d query heads, expected a multiple of %d key heads", m->file, m->heads,
                    m->kv_heads);
    if (m->head_dim % 16)
        return fail(err, ST_UNSUPPORTED, "%s: head width is %d, expected a multiple of 16", m->file, m->head_dim);
    if (p->conv_taps && (p->conv_group < 1 || m->dim % p->conv_group))
        return fail(err, ST_FORMAT, "%s: conv_group_size is %d, expected a divisor of %d", m->file, p->conv_group,
                    m->dim);
    return ST_OK;
}

static Status read(Model *m, const Weights *w, Error *err)
{
    DflashParams *p = m->params;
    m->embed_scale = 1;
    p->target_layers = m->target->n_layers;
    TRY(w->gguf ? read_gguf(m, w, err) : read_folder(m, w, err));
    TRY(check_fit(m, err));
    m->q_dim = m->heads * m->head_dim;
    m->kv_dim = m->kv_heads * m->head_dim;
    m->tap_width = m->n_taps * m->target->dim;
    m->attention_scale = 1 / sqrtf((float) m->head_dim);
    m->edges = p->selector_rank > 0;
    m->ring = 4096;
    for (int32_t i = 0; i < m->n_layers; i++)
        if (p->window[i] > m->ring) m->ring = p->window[i];
    snprintf(m->arch, sizeof m->arch, "%s", p->conv_taps ? "dflash2" : "dflash");
    return ST_OK;
}

static void spec(const Model *m, int32_t il, LayerSpec *out)
{
    const DflashParams *p = m->params;
    model_attention_spec(m, il, out);
    out->window = p->window[il];
    out->causal = p->causal[il];
}

/* ---- mathematics ---- */

static Tensor *context(const Model *m, Step *s, const Tensor *taps)
{
    const DflashParams *p = m->params;
    return step_norm(s, step_linear1(s, taps, &p->fc), &p->hidden_norm, m->eps);
}

static void context_layer(const Model *m, Step *s, int32_t il, const Tensor *c)
{
    const DflashParams *p = m->params;
    const DflashLayer *w = model_layer(m, il);
    Tensor *kv[2];
    if (p->context_norm) c = step_norm(s, c, &w->attn_norm, m->eps);
    step_linear(s, 2, kv, (const Tensor *[]) { &w->k, &w->v }, c);
    step_add_bias(s, kv[0], &w->k_bias);
    step_add_bias(s, kv[1], &w->v_bias);
    step_head_norm(s, kv[0], &w->k_norm, m->head_dim, m->eps);
    step_store_kv(s, il, &m->spec[il], kv[0], kv[1], &p->rope);
}

static Tensor *block_conv(const Model *m, Step *s, const Tensor *x, const Tensor *base, const Tensor *delta,
                          int32_t side)
{
    const DflashParams *p = m->params;
    return step_block_conv(s, x, base, delta, side, p->conv_taps, p->conv_group);
}

static Tensor *attention(const Model *m, Step *s, int32_t il, const DflashLayer *w, const Tensor *h)
{
    const DflashParams *p = m->params;
    Tensor *qkv[3];
    step_linear(s, 3, qkv, (const Tensor *[]) { &w->q, &w->k, &w->v }, h);
    step_add_bias(s, qkv[0], &w->q_bias);
    step_add_bias(s, qkv[1], &w->k_bias);
    step_add_bias(s, qkv[2], &w->v_bias);
    Tensor *a = step_linear1(s, step_attend_normed(s, il, &m->spec[il], qkv[0], qkv[1], qkv[2], &w->q_norm, &w->k_norm,
                                                   m->eps, &p->rope), &w->o);
    step_add_bias(s, a, &w->o_bias);
    return a;
}

static void layer(const Model *m, Step *s, int32_t il, Tensor *x)
{
    const DflashParams *p = m->params;
    const DflashLayer *w = model_layer(m, il);
    Tensor *h = step_norm(s, x, &w->attn_norm, m->eps), *delta = NULL, *y;
    if (p->conv_taps) {
        delta = step_linear1(s, h, &w->attn_conv_proj); /* both sides, from the normed input */
        h = block_conv(m, s, h, &w->attn_conv, delta, 0);
    }
    y = attention(m, s, il, w, h);
    if (p->conv_taps) y = block_conv(m, s, y, &w->attn_conv, delta, 1);
    h = step_add_norm(s, x, y, &w->ffn_norm, m->eps);
    if (p->conv_taps) {
        delta = step_linear1(s, h, &w->ffn_conv_proj);
        h = block_conv(m, s, h, &w->ffn_conv, delta, 0);
    }
    y = step_swiglu(s, h, &w->gate, &w->up, &w->down);
    if (p->conv_taps) y = block_conv(m, s, y, &w->ffn_conv, delta, 1);
    step_add(s, x, y);
}

/* Scores of a row's candidates after each candidate of the previous row, from the row's normed state. */
static void edges(const Model *m, Step *s, const PassOut *out)
{
    const DflashParams *p = m->params;
    Tensor *g = step_linear1(s, out->hidden, &p->selector_hidden);
    step_pair_scores(s, out->edge, &p->selector_pred, &p->selector_succ, out->id, out->score, g);
}

const Family draft_dflash = {
    .arch = "dflash", .global = global, .n_global = sizeof global / sizeof *global,
    .own = own, .n_own = sizeof own / sizeof *own,
    .layer_bind = layer_bind, .n_layer_bind = sizeof layer_bind / sizeof *layer_bind,
    .layer_bytes = sizeof(DflashLayer), .params_bytes = sizeof(DflashParams), .strict = true, .read = read,
    .size = size, .spec = spec, .layer = layer, .context = context, .context_layer = context_layer, .edges = edges,
};
