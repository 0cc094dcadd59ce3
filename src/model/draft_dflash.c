/* draft_dflash: the DFlash block-diffusion drafter and DFlash2 (spec speculation.md section 1). One pass over [root,
 * MASK, MASK, ...] guesses every position of the block at once; row r predicts the token at its own position. Committed
 * positions contribute keys/values computed from the target's taps: c = norm(fc taps), then the layer's own key and
 * value projections. Those for Laguna norm each tap first, norm c once more in every layer, and multiply attention by a
 * gate as the target does (spec laguna.md section 5).
 *
 * Three layouts are read: the published Hugging Face folder (A), Luce's GGUF (B) and llama.cpp's GGUF (C); folders also
 * in the dialect of the speculators library. They differ in names and in one number: the keys `target_layers` and
 * `aux_hidden_state_layer_ids` count layer inputs (id + 1), `target_layer_ids` layer outputs (id).
 *
 * DSpark's Markov head adds w2[token] . w1[the token before] to each logit. That is DFlash2's selector with a state of
 * ones, so it scores the same pairs; the candidates of a row are the best without it. */
#include "model/model.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Tensor attn_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm, ffn_norm, gate, up, down;
    Tensor attn_gate;                                                             /* Laguna */
    Tensor attn_conv, attn_conv_proj, ffn_conv, ffn_conv_proj;                    /* DFlash2 */
} DflashLayer;

enum { LAYERS = 64 };
typedef struct {
    StageRope rope;
    int32_t   target_layers;
    int32_t   conv_taps, conv_group, selector_rank;                               /* DFlash2, else 0; rank: DSpark */
    bool      markov;                                                             /* DSpark */
    int32_t   gates;                                                              /* rows of attn_gate; 0: none */
    bool      context_norm, tap_norms;
    int32_t   window[LAYERS];                                                     /* 0: full */
    bool      causal[LAYERS];
    Tensor    fc, hidden_norm, selector_hidden, selector_pred, selector_succ;
    Tensor    tap_norm[TAPS_MAX], all_tap_norms, ones;                            /* ones: the state of a Markov head */
} DflashParams;

enum { SIZE_TAPS = SIZE_OWN, SIZE_CONV_ROWS, SIZE_CONV_PROJ, SIZE_RANK, SIZE_STATE, SIZE_CODES, SIZE_GATES, SIZE_TAP };
static int32_t size(const Model *m, int32_t il, int32_t which)
{
    const DflashParams *p = m->params;
    (void) il;
    switch (which) {
    case SIZE_TAPS: return m->tap_width;
    case SIZE_CONV_ROWS: return 2 * p->conv_taps;
    case SIZE_CONV_PROJ: return p->conv_taps ? 2 * p->conv_taps * (m->dim / p->conv_group) : 0;
    case SIZE_RANK: return p->selector_rank;
    case SIZE_STATE: return p->markov ? 0 : p->selector_rank;
    case SIZE_CODES: return p->selector_rank ? m->vocab : 0;
    case SIZE_GATES: return p->gates;
    default: break;
    }
    if (which >= SIZE_TAP) return p->tap_norms && which - SIZE_TAP < m->n_taps ? m->target->dim : 0;
    return model_size(m, which);
}

#define DFLASH(field) offsetof(DflashLayer, field)
#define N(field) offsetof(Model, field)
#define OWN(field) offsetof(DflashParams, field)
static const Bind global[] = {
    { "norm.weight|output_norm.weight", N(out_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "token_embd.weight|embed_tokens.weight", N(embed), SIZE_VOCAB, SIZE_DIM, BIND_MATRIX, true, LAYER_NONE, NULL },
    { "output.weight|lm_head.weight", N(head), SIZE_VOCAB, SIZE_DIM, BIND_MATRIX, true, LAYER_NONE, NULL },
};
#define MARKOV(n) "markov_w" n ".weight|dflash.dspark.markov.w" n "|markov_head.markov_w" n ".weight"
/* read_own_head reads d2t; t2d is its inverse. What a drafter says of its own chances is learned from what is accepted
 * instead, and norm and head of the target are the target's. */
static const char others[] = "d2t|t2d|verifier_norm.weight|verifier_lm_head.weight|conf_proj.weight|conf_proj.bias|"
                             "dflash.dspark.confidence.weight|dflash.dspark.confidence.bias|"
                             "confidence_head.proj.weight|confidence_head.proj.bias";
#define TAP_NORM(i) \
    { "dflash.aux_hidden_norm." #i ".weight|aux_hidden_norms." #i ".weight", OWN(tap_norm[i]), SIZE_ONE, SIZE_TAP + i, \
      BIND_VECTOR, false, LAYER_NONE, NULL }
static const Bind own[] = {
    TAP_NORM(0), TAP_NORM(1), TAP_NORM(2), TAP_NORM(3), TAP_NORM(4), TAP_NORM(5), TAP_NORM(6), TAP_NORM(7),
    TAP_NORM(8), TAP_NORM(9), TAP_NORM(10), TAP_NORM(11), TAP_NORM(12), TAP_NORM(13), TAP_NORM(14), TAP_NORM(15),
    { "fc.weight|dflash.fc.weight|dflash_fc.weight", OWN(fc), SIZE_DIM, SIZE_TAPS, BIND_MATRIX, false,
      LAYER_NONE, NULL },
    { "hidden_norm.weight|dflash.hidden_norm.weight|dflash_hidden_norm.weight|enc.output_norm.weight", OWN(hidden_norm),
      SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "selector_hidden.weight|dflash.selector.hproj.weight|candidate_selector.hidden_projection.weight",
      OWN(selector_hidden), SIZE_STATE, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "selector_predecessor.weight|dflash.selector.pred_cb|candidate_selector.predecessor_codebook|" MARKOV("1"),
      OWN(selector_pred), SIZE_CODES, SIZE_RANK, BIND_TABLE, false, LAYER_NONE, NULL },
    { "selector_successor.weight|dflash.selector.succ_cb|candidate_selector.successor_codebook|" MARKOV("2"),
      OWN(selector_succ), SIZE_CODES, SIZE_RANK, BIND_TABLE, false, LAYER_NONE, NULL },
};
static const Bind layer_bind[] = {
    { "attn_norm.weight|input_layernorm.weight", DFLASH(attn_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false,
      LAYER_NONE, NULL },
    { "attn_q.weight|self_attn.q_proj.weight", DFLASH(q), SIZE_Q, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE,
      "self_attn.qkv_proj.weight" },
    { "attn_k.weight|self_attn.k_proj.weight", DFLASH(k), SIZE_KV, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE,
      "self_attn.qkv_proj.weight" },
    { "attn_v.weight|self_attn.v_proj.weight", DFLASH(v), SIZE_KV, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE,
      "self_attn.qkv_proj.weight" },
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
    { "attn_gate.weight|self_attn.g_proj.weight", DFLASH(attn_gate), SIZE_GATES, SIZE_DIM, BIND_MATRIX, false,
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

/* ---- what a file may have, in any layout ---- */

static bool find_either(const Weights *w, const char *gguf, const char *folder, WeightView *out)
{
    return weights_find(w, w->gguf ? gguf : folder, out);
}

/* A matrix of our own in the drafter's memory. */
static Status place_floats(Model *m, Tensor *out, int32_t rows, int32_t cols, const float *x, Error *err)
{
    const size_t bytes = sizeof *x * (size_t) rows * (size_t) cols;
    Backend *be = m->stages.at[0].be;
    *out = (Tensor) { .type = T_F32, .rows = rows, .cols = cols };
    TRY(model_alloc(&out->data, m, 0, bytes, "norms", err));
    be->copy_in(be, out->data, x, bytes);
    return be->sync(be, err);
}

static float *filled(const Model *m, size_t n, float with, Error *err)
{
    float *x = malloc(sizeof *x * n);
    if (!x) fail(err, ST_MEMORY, "%s: out of memory", m->file);
    for (size_t i = 0; x && i < n; i++) x[i] = with;
    return x;
}

static Status read_gates(Model *m, const Weights *w, Error *err)
{
    DflashParams *p = m->params;
    WeightView v;
    p->tap_norms = find_either(w, "dflash.aux_hidden_norm.0.weight", "aux_hidden_norms.0.weight", &v);
    if (find_either(w, "blk.0.attn_gate.weight", "layers.0.self_attn.g_proj.weight", &v)) {
        const int32_t each = m->heads * m->head_dim;
        if (v.ne[1] != m->heads && v.ne[1] != each)
            return fail(err, ST_FORMAT, "%s: tensor %s has %lld rows, expected %d (a gate per head) or %d (per "
                        "element)", v.file, v.name, (long long) v.ne[1], m->heads, each);
        p->gates = (int32_t) v.ne[1];
    }
    p->context_norm |= p->tap_norms || p->gates;   /* files of that time may lack the flag */
    return ST_OK;
}

/* Its rows must predict their own positions, as those of a drafter without it do: rows that begin at the root predict
 * the next ones (read_anchor). */
static Status read_markov(Model *m, const Weights *w, Error *err)
{
    DflashParams *p = m->params;
    static const char *const names[] = { "markov_w1.weight", "dflash.dspark.markov.w1",
                                         "markov_head.markov_w1.weight" };
    WeightView v;
    bool there = false;
    for (size_t i = 0; !there && i < sizeof names / sizeof *names; i++) there = weights_find(w, names[i], &v);
    if (!there) return ST_OK;
    if (p->selector_rank)
        return fail(err, ST_UNSUPPORTED, "%s: tensor %s beside a selector, expected one of them", v.file, v.name);
    if (v.ne[0] < 1 || v.ne[0] > 4096)
        return fail(err, ST_FORMAT, "%s: tensor %s has rows of %lld values, expected 1 to 4096", v.file, v.name,
                    (long long) v.ne[0]);
    p->markov = true;
    p->selector_rank = (int32_t) v.ne[0];
    float *x = filled(m, (size_t) ROWS_DECODE * (size_t) p->selector_rank, 1, err);
    Status st = x ? place_floats(m, &p->ones, ROWS_DECODE, p->selector_rank, x, err) : ST_MEMORY;
    free(x);
    return st;
}

/* Which token row i of the head is: llama.cpp's table has ids, the others' the distance from i. */
static Status head_token(const Model *m, const WeightView *v, bool wide, bool ids, int32_t i, int32_t *out, Error *err)
{
    int64_t at;
    int32_t narrow;
    if (wide) {
        memcpy(&at, v->data + sizeof at * (size_t) i, sizeof at);
    } else {
        memcpy(&narrow, v->data + sizeof narrow * (size_t) i, sizeof narrow);
        at = narrow;
    }
    const int64_t least = ids ? 0 : -i;
    if (at < least || at >= m->vocab + least)
        return fail(err, ST_FORMAT, "%s: tensor d2t value %d is %lld, expected %lld to %lld", v->file, i,
                    (long long) at, (long long) least, (long long) (m->vocab + least - 1));
    *out = (int32_t) (at - least);
    return ST_OK;
}

/* A head for a part of the vocabulary: logits of the other tokens are -infinity. */
static Status read_own_head(Model *m, const Weights *w, Error *err)
{
    WeightView v;
    if (!weights_find(w, "d2t", &v)) return ST_OK;
    const char *type = w->gguf ? gguf_tensor_type_name(gguf_tensor(w->gguf, v.name))
                               : safetensors_get(w->st, v.name)->dtype;
    const bool wide = strcmp(type, "I64") == 0;
    if (!wide && strcmp(type, "I32") != 0)
        return fail(err, ST_UNSUPPORTED, "%s: tensor d2t has type %s, expected I64 or I32", v.file, type);
    if (v.n_dims != 1 || v.ne[0] < 1 || v.ne[0] > m->vocab)
        return fail(err, ST_FORMAT, "%s: tensor d2t has shape [%lld, %lld], expected at most %d values", v.file,
                    (long long) v.ne[0], (long long) v.ne[1], m->vocab);
    m->n_head_rows = (int32_t) v.ne[0];
    m->head_row = malloc(sizeof *m->head_row * (size_t) m->vocab);
    float *bias = filled(m, (size_t) m->vocab, -INFINITY, err);
    Status st = m->head_row && bias ? ST_OK : fail(err, ST_MEMORY, "%s: out of memory", m->file);
    for (int32_t i = 0; st == ST_OK && i < m->vocab; i++) m->head_row[i] = -1;
    for (int32_t i = 0, id = 0; st == ST_OK && i < m->n_head_rows; i++) {
        st = head_token(m, &v, wide, w->gguf != NULL, i, &id, err);
        if (st == ST_OK && m->head_row[id] >= 0)
            st = fail(err, ST_FORMAT, "%s: tensor d2t has token %d twice, in rows %d and %d", v.file, id,
                      m->head_row[id], i);
        if (st == ST_OK) m->head_row[id] = i, bias[id] = 0;
    }
    if (st == ST_OK) st = place_floats(m, &m->head_bias, 1, m->vocab, bias, err);
    free(bias);
    return st;
}

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

/* shift: what the list counts beyond the layers' outputs. */
static Status json_taps(Model *m, const json_t *ids, const char *key, int32_t shift, Error *err)
{
    DflashParams *p = m->params;
    if (!ids && shift == 0) {                      /* the training code's rule if there is no list (spec 1.2) */
        int32_t n = p->target_layers, k = m->n_layers;
        if (k > TAPS_MAX)
            return fail(err, ST_FORMAT, "%s/config.json: %s is missing", m->file, key);
        m->n_taps = k;
        for (int32_t i = 0; i < k; i++)
            m->tap[i] = k == 1 ? n / 2 : (int32_t) rint(1 + i * (n - 3 - 1) / (double) (k - 1));
        return ST_OK;
    }
    if (!json_is_array(ids) || json_array_size(ids) < 1 || json_array_size(ids) > TAPS_MAX)
        return fail(err, ST_FORMAT, "%s/config.json: %s must be a list of 1 to %d layer ids", m->file, key, TAPS_MAX);
    m->n_taps = (int32_t) json_array_size(ids);
    for (int32_t i = 0; i < m->n_taps; i++) {
        const json_t *v = json_array_get(ids, (size_t) i);
        if (!json_is_integer(v) || json_integer_value(v) < shift || json_integer_value(v) > LAYERS_MAX)
            return fail(err, ST_FORMAT, "%s/config.json: %s value %d is no layer id", m->file, key, i);
        m->tap[i] = (int32_t) json_integer_value(v) - shift;
    }
    return ST_OK;
}

/* A layer is causal inside the block if the config says so for all layers, otherwise if and only if it has a sliding
 * window (spec 1.4). */
static Status json_masks(Model *m, const json_t *c, const json_t *d, Error *err)
{
    DflashParams *p = m->params;
    const json_t *types = json_object_get(c, "layer_types"), *causal = json_object_get(c, "is_causal");
    if (!causal || json_is_null(causal)) causal = json_object_get(d, "causal");
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

/* Speculators leave out what is the standard of the transformers class that model_type names. */
typedef struct { const char *model_type; int32_t dim, ffn, layers, heads, kv_heads, head_dim, vocab; } Standard;

static const Standard *standard_of(const json_t *c)
{
    static const Standard all[] = { { "qwen3", 4096, 22016, 32, 32, 32, 128, 151936 },
                                    { "laguna", 2048, 8192, 40, 48, 8, 128, 100352 } };
    const char *type = json_string_value(json_object_get(c, "model_type"));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].model_type, type ? type : "qwen3") == 0) return &all[i];
    return NULL;
}

/* Rotation has one base, and all of a head takes part. Where layers have rotations by their types, a drafter's is that
 * of the sliding ones. */
static Status json_rope(const Model *m, const json_t *c, double standard, float *base, Error *err)
{
    static const char *const plain[] = { "rope_type", "type" };
    const json_t *o[2] = { json_object_get(c, "rope_parameters"), json_object_get(c, "rope_scaling") };
    if (json_is_object(json_object_get(o[0], "sliding_attention"))) o[0] = json_object_get(o[0], "sliding_attention");
    for (int32_t i = 0; i < 2; i++)
        for (int32_t k = 0; k < 2; k++) {
            const char *type = json_string_value(json_object_get(o[i], plain[k]));
            if (type && strcmp(type, "default") != 0)
                return fail(err, ST_UNSUPPORTED, "%s/config.json: %s.%s is '%.40s', expected default", m->file,
                            i ? "rope_scaling" : "rope_parameters", plain[k], type);
        }
    if (json_is_object(o[1]) && json_object_size(o[1]) > 0 && !json_object_get(o[1], "rope_type") &&
        !json_object_get(o[1], "type"))
        return fail(err, ST_UNSUPPORTED, "%s/config.json: rope_scaling is set, which drafters here do not have",
                    m->file);
    const json_t *part = json_object_get(o[0], "partial_rotary_factor");
    if (json_is_number(part) && json_number_value(part) != 1)
        return fail(err, ST_UNSUPPORTED, "%s/config.json: partial_rotary_factor is %g, expected 1", m->file,
                    json_number_value(part));
    return json_positive(m, json_object_get(o[0], "rope_theta") ? o[0] : c, "rope_theta", standard, base, err);
}

/* Whether row 0, the root's, guesses already. */
static Status read_anchor(const Model *m, const json_t *c, const json_t *d, Error *err)
{
    const DflashParams *p = m->params;
    const json_t *o = json_object_get(c, "sample_from_anchor");
    if (!o) o = json_object_get(d, "sample_from_anchor");
    if (json_is_false(o)) return ST_OK;
    const bool given = o && !json_is_null(o);
    if (!given && !p->markov) return ST_OK;
    return fail(err, ST_UNSUPPORTED, "%s/config.json: sample_from_anchor is %s, expected false (row 0 of a drafter "
                "here guesses nothing)", m->file, json_is_true(o) ? "true" : given ? "neither true nor false"
                                                                 : "missing beside a Markov head");
}

/* c: the file's object; g: the one with the layers' sizes; d: the one with block, mask and taps. */
static Status read_folder(Model *m, const Weights *w, Error *err)
{
    DflashParams *p = m->params;
    const json_t *c = safetensors_config(w->st), *g = json_object_get(c, "transformer_layer_config");
    if (!c) return fail(err, ST_FORMAT, "%s: config.json is missing beside the tensors", m->file);
    const bool library = json_is_object(g);
    const json_t *d = library ? c : json_object_get(c, "dflash_config");
    const Standard none = { "", 0, 0, 0, 0, 0, 0, 0 }, *s = library ? standard_of(g) : &none;
    if (!library) g = c;
    if (!s)
        return fail(err, ST_UNSUPPORTED, "%s/config.json: transformer_layer_config.model_type is '%.40s', expected "
                    "qwen3 or laguna", m->file, json_string_value(json_object_get(g, "model_type")));
    if (d && !json_is_object(d))
        return fail(err, ST_FORMAT, "%s/config.json: dflash_config must be an object", m->file);
    float base;
    int32_t taken;
    TRY(json_field(m, g, "num_hidden_layers", 1, LAYERS, s->layers, &m->n_layers, err));
    TRY(json_field(m, g, "hidden_size", 1, 1 << 17, s->dim, &m->dim, err));
    TRY(json_field(m, c, "target_hidden_size", m->dim, m->dim, m->dim, &taken, err));
    TRY(json_field(m, g, "intermediate_size", 1, 1 << 20, s->ffn, &m->ffn, err));
    TRY(json_field(m, g, "num_attention_heads", 1, 1024, s->heads, &m->heads, err));
    TRY(json_field(m, g, "num_key_value_heads", 1, 1024, library ? s->kv_heads : m->heads, &m->kv_heads, err));
    TRY(json_field(m, g, "head_dim", 1, 1024, library ? s->head_dim : m->dim / m->heads, &m->head_dim, err));
    TRY(json_field(m, g, "vocab_size", 1, 1 << 24, library ? s->vocab : m->target->vocab, &m->vocab, err));
    TRY(json_field(m, json_object_get(d, "num_target_layers") ? d : c, "num_target_layers", 1, LAYERS_MAX,
                   m->target->n_layers, &p->target_layers, err));
    TRY(json_positive(m, g, "rms_norm_eps", library ? 1e-6 : 0, &m->eps, err));
    TRY(json_rope(m, g, library ? 1e4 : 0, &base, err));
    TRY(json_positive(m, c, "output_multiplier", 1, &m->logit_scale, err));
    TRY(json_positive(m, c, "input_embedding_scale", (double) m->embed_scale, &m->embed_scale, err));
    if (json_is_number(json_object_get(c, "final_logit_softcapping")))
        TRY(json_positive(m, c, "final_logit_softcapping", 0, &m->softcap, err));
    TRY(json_field(m, json_object_get(d, "block_size") ? d : c, "block_size", 2, ROWS_DECODE, 0, &m->block, err));
    TRY(json_field(m, d, "mask_token_id", 0, 1 << 24, -1, &m->mask_id, err));
    TRY(json_field(m, d, "conv_kernel_size", 0, 8, 0, &p->conv_taps, err));
    TRY(library ? json_taps(m, json_object_get(c, "aux_hidden_state_layer_ids"), "aux_hidden_state_layer_ids", 1, err)
                : json_taps(m, json_object_get(d, "target_layer_ids"), "dflash_config.target_layer_ids", 0, err));
    TRY(json_masks(m, g, d, err));
    if (json_is_true(json_object_get(c, "sliding_window_non_causal")))
        for (int32_t i = 0; i < m->n_layers; i++) p->causal[i] = false;
    if (p->conv_taps) TRY(json_field(m, d, "conv_group_size", 1, 1 << 17, 0, &p->conv_group, err));
    if (json_object_get(d, "selector_rank"))
        TRY(json_field(m, d, "selector_rank", 1, 4096, 0, &p->selector_rank, err));
    TRY(read_markov(m, w, err));
    TRY(read_anchor(m, c, d, err));
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
    const bool last_full = strcmp(a, "gemma4-dflash-draft") == 0;  /* whose files have no pattern */
    for (int32_t i = 0; i < m->n_layers; i++) {
        bool slides = window > 0 && !(last_full && i == m->n_layers - 1);
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
    if (strcmp(m->target->arch, "laguna") == 0) {  /* whose first drafters were written without it */
        m->mask_id = 12;
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
    TRY(weights_f32(g, a, "embedding_scale", m->embed_scale, &m->embed_scale, err));
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
    TRY(read_markov(m, w, err));
    /* llama.cpp's files with a Markov head that do not say */
    bool anchored = p->markov && strcmp(a, "dflash") == 0;
    snprintf(key, sizeof key, "%s.sample_from_anchor", a);
    st = gguf_get_bool(g, key, &anchored, err);
    if (st != ST_OK && st != ST_END) return st;
    if (anchored)
        return fail(err, ST_UNSUPPORTED, "%s: %s is true%s (a DSpark drafter, whose row 0 guesses), expected false%s",
                    m->file, key, st == ST_END ? " if it is missing beside a Markov head" : "",
                    p->markov ? "" : " or absent");
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
    m->embed_scale = m->target->embed_scale;       /* rows as the target takes them, if the file has no scale */
    p->target_layers = m->target->n_layers;
    TRY(w->gguf ? read_gguf(m, w, err) : read_folder(m, w, err));
    TRY(check_fit(m, err));
    TRY(read_gates(m, w, err));
    TRY(read_own_head(m, w, err));
    m->q_dim = m->heads * m->head_dim;
    m->kv_dim = m->kv_heads * m->head_dim;
    m->tap_width = m->n_taps * m->target->dim;
    m->attention_scale = 1 / sqrtf((float) m->head_dim);
    m->edges = p->selector_rank > 0;
    m->ring = 4096;
    for (int32_t i = 0; i < m->n_layers; i++)
        if (p->window[i] > m->ring) m->ring = p->window[i];
    snprintf(m->arch, sizeof m->arch, "%s", p->conv_taps ? "dflash2" : p->markov ? "dspark" : "dflash");
    return ST_OK;
}

static void spec(const Model *m, int32_t il, LayerSpec *out)
{
    const DflashParams *p = m->params;
    model_attention_spec(m, il, out);
    out->window = p->window[il];
    out->causal = p->causal[il];
}

/* The norms of the taps, one after the other. */
static Status bound(Model *m, Error *err)
{
    DflashParams *p = m->params;
    if (!p->tap_norms) return ST_OK;
    Backend *be = m->stages.at[0].be;
    const size_t bytes = sizeof(float) * (size_t) m->target->dim;
    void *all;
    TRY(model_alloc(&all, m, 0, bytes * (size_t) m->n_taps, "norms", err));
    for (int32_t i = 0; i < m->n_taps; i++)
        be->copy(be, (uint8_t *) all + bytes * (size_t) i, p->tap_norm[i].data, bytes);
    p->all_tap_norms = (Tensor) { .type = T_F32, .rows = 1, .cols = m->tap_width, .data = all };
    return be->sync(be, err);
}

/* ---- mathematics ---- */

static Tensor *context(const Model *m, Step *s, Tensor *taps)
{
    const DflashParams *p = m->params;
    if (p->tap_norms) step_head_norm(s, taps, &p->all_tap_norms, m->target->dim, m->eps);
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
    Tensor *qkv[4];                                /* and the gate */
    step_linear(s, p->gates ? 4 : 3, qkv, (const Tensor *[]) { &w->q, &w->k, &w->v, &w->attn_gate }, h);
    step_add_bias(s, qkv[0], &w->q_bias);
    step_add_bias(s, qkv[1], &w->k_bias);
    step_add_bias(s, qkv[2], &w->v_bias);
    Tensor *o = step_attend_normed(s, il, &m->spec[il], qkv[0], qkv[1], qkv[2], &w->q_norm, &w->k_norm, m->eps,
                                   &p->rope);
    if (p->gates) step_gate(s, o, qkv[3], ACT_SOFTPLUS, o->cols / p->gates);
    Tensor *a = step_linear1(s, o, &w->o);
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
    const Tensor *g = p->markov ? &p->ones : step_linear1(s, out->hidden, &p->selector_hidden);
    step_pair_scores(s, out->edge, &p->selector_pred, &p->selector_succ, out->id, out->score, g);
}

const Family draft_dflash = {
    .arch = "dflash", .global = global, .n_global = sizeof global / sizeof *global,
    .own = own, .n_own = sizeof own / sizeof *own,
    .layer_bind = layer_bind, .n_layer_bind = sizeof layer_bind / sizeof *layer_bind,
    .layer_bytes = sizeof(DflashLayer), .params_bytes = sizeof(DflashParams), .strict = true, .others = others,
    .read = read, .bound = bound,
    .size = size, .spec = spec, .layer = layer, .context = context, .context_layer = context_layer, .edges = edges,
};
