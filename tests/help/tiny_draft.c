#include "tiny.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

TinyDraft tiny_draft(const TinyModel *m)
{
    TinyDraft d = {.seed = m->seed + 100, .n_layer = 3, .hidden = m->hidden, .ff = m->ff, .vocab = m->vocab,
                   .context = m->context, .n_head = m->n_head, .n_head_kv = m->n_head_kv,
                   .head_dim = m->head_dim < 128 ? m->head_dim : 128, .n_target_layer = m->n_layer, .n_tap = 2,
                   .block = 8, .mask_id = tiny_mask(m->vocab), .conv_group = 16, .rank = m->hidden < 256 ? 32 : 256,
                   .top_k = 16, .sections = m->family == TINY_QWEN35, .add_bos = m->add_bos, .rope_base = m->rope_base,
                   .eps = 1e-6f, .type = T_F32};
    d.tap[0] = 0;
    d.tap[1] = m->n_layer > 2 ? m->n_layer - 2 : 0;
    if (m->n_layer > 5) d.n_tap = 3, d.tap[0] = 1, d.tap[1] = m->n_layer / 2 - 1, d.tap[2] = m->n_layer - 3;
    return d;
}

static const struct { const char *name, *target; } pairs[] = {
    {"dflash-qwen3", "qwen3"}, {"dflash-swa", "qwen35-r3"}, {"dflash2", "qwen35-r3"}, {"dflash2-k8", "qwen3"},
    {"dflash-llama", "llama"},
    {"small-dflash", "small-qwen3"}, {"small-swa", "small-qwen35-r3"}, {"small-dflash2", "small-llama"},
    {"dflash-laguna", "laguna"}, {"small-dflash-laguna", "small-laguna"}, {"small-dspark", "small-laguna-each"},
    {"small-library", "small-qwen3"}, {"small-dflash-gemma4", "small-gemma4moe"}};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

const char *const tiny_draft_names[] = {"dflash-qwen3", "dflash-swa", "dflash2", "dflash2-k8", "dflash-llama",
    "small-dflash", "small-swa", "small-dflash2", "dflash-laguna", "small-dflash-laguna", "small-dspark",
    "small-library", "small-dflash-gemma4", NULL};

bool tiny_draft_named(TinyDraft *out, const char **target, const char *name)
{
    for (int32_t i = 0; i < N_PAIRS; i++) {
        TinyModel m;
        if (strcmp(name, pairs[i].name) != 0 || !tiny_model_named(&m, pairs[i].target)) continue;
        TinyDraft d = tiny_draft(&m);
        if (strcmp(name, "dflash-qwen3") == 0) d.block = 16;
        if (strstr(name, "swa")) d.n_layer = 5, d.sliding = 0xf, d.window = 16, d.block = 16;
        if (strcmp(name, "small-swa") == 0) d.n_layer = 3, d.sliding = 0x5, d.window = 12, d.tap[1] = m.n_layer;
        if (strstr(name, "dflash2"))
            d.dflash2 = true, d.sliding = 0x7, d.window = 16, d.causal = TINY_CAUSAL_NO, d.nested = true;
        if (strcmp(name, "dflash2-k8") == 0) d.top_k = 8;          /* llama.cpp wants hidden >= top_k * (top_k + 1) */
        /* The highest tap before the output norm: after the last layer. small-swa has one after the norm. */
        if (strcmp(name, "dflash-llama") == 0) d.n_tap = 3, d.tap[0] = 0, d.tap[1] = 2, d.tap[2] = 3;
        if (strstr(name, "dflash-laguna"))
            d.laguna = true, d.sliding = 0x7, d.window = 12, d.causal = TINY_CAUSAL_YES, d.mask_id = 12;
        if (strcmp(name, "small-dflash-laguna") == 0) d.gate_each = true;
        if (strcmp(name, "small-dspark") == 0) d.markov = true, d.sliding = 0x2, d.window = 12;
        if (strcmp(name, "small-library") == 0)
            d.library = true, d.own_rows = m.vocab / 3, d.sliding = 0x1, d.window = 12;
        if (strcmp(name, "small-dflash-gemma4") == 0) d.gemma = true, d.sliding = 0x3, d.window = 12;
        *out = d;
        *target = pairs[i].target;
        return true;
    }
    return false;
}

/* ---- one list of tensors, three naming schemes ---- */

typedef struct { TinyKind kind; double scale; const char *hf, *luce, *llama; int64_t ne0, ne1; } Row;

static TinyTensor *draft_add(TinyList *list, const TinyDraft *d, TinyLayout layout, int32_t layer, const Row *r)
{
    char hf[64], name[64];
    const char *format = layout == TINY_LUCE ? r->luce : r->llama;
    if (layer >= 0) snprintf(hf, sizeof hf, "layers.%d.%s", layer, r->hf);
    else snprintf(hf, sizeof hf, "%s", r->hf);
    if (layout == TINY_HF) snprintf(name, sizeof name, "%s", hf);
    else if (layer >= 0) snprintf(name, sizeof name, "blk.%d.%s", layer, format);
    else snprintf(name, sizeof name, "%s", format);
    TinyTensor *t = tiny_add(list, r->kind, d->type, d->seed, hf, name, r->ne0, r->ne1);
    t->scale = r->scale;
    if (r->kind != TINY_CONV_BASE) return t;
    t->n_dims = 3;                                 /* [side, tap, channel], channel contiguous */
    t->ne[1] = t->ne[2] = 2;
    return t;
}

/* Queries, keys and values, one after the other: a tensor in the HF layout, three in the others. */
static void add_qkv(TinyList *list, const TinyDraft *d, TinyLayout layout, int32_t layer, const Row *parts)
{
    const Row whole = {TINY_MATRIX, 1, "self_attn.qkv_proj.weight", NULL, NULL, d->hidden,
                       parts[0].ne1 + parts[1].ne1 + parts[2].ne1};
    if (layout == TINY_HF) {
        draft_add(list, d, layout, layer, &whole);
        return;
    }
    for (int64_t i = 0, row = 0; i < 3; row += parts[i++].ne1) {
        Row r = parts[i];
        r.hf = whole.hf;
        draft_add(list, d, layout, layer, &r)->row0 = row;
    }
}

static void add_laguna(TinyList *list, const TinyDraft *d, TinyLayout layout)
{
    const int64_t gates = (int64_t) d->n_head * (d->gate_each ? d->head_dim : 1);
    for (int32_t i = 0; i < d->n_tap; i++) {
        char hf[64], gguf[64];
        snprintf(hf, sizeof hf, "aux_hidden_norms.%d.weight", i);
        snprintf(gguf, sizeof gguf, "dflash.aux_hidden_norm.%d.weight", i);
        draft_add(list, d, layout, -1, &(Row) {TINY_NORM, 1, hf, gguf, gguf, d->hidden, 0});
    }
    for (int32_t l = 0; l < d->n_layer; l++)
        draft_add(list, d, layout, l, &(Row) {TINY_MATRIX, 1, "self_attn.g_proj.weight", "attn_gate.weight",
                                              "attn_gate.weight", d->hidden, gates});
}

static void draft_tensors(TinyList *list, const TinyDraft *d, TinyLayout layout)
{
    int64_t h = d->hidden, q = (int64_t) d->n_head * d->head_dim, kv = (int64_t) d->n_head_kv * d->head_dim, ff = d->ff;
    int64_t conv = 2 * 2 * (h / d->conv_group);
    const Row once[] = {
        {TINY_MATRIX, 1, "fc.weight", "dflash.fc.weight", "fc.weight", d->n_tap * h, h},
        {TINY_NORM, 1, "hidden_norm.weight", "dflash.hidden_norm.weight", "enc.output_norm.weight", h, 0},
        {TINY_NORM, 1, "norm.weight", "output_norm.weight", "output_norm.weight", h, 0},
    };
    const Row selector[] = {
        {TINY_MATRIX, 1.5 / sqrt((double) d->rank), "candidate_selector.hidden_projection.weight",
         "dflash.selector.hproj.weight", "selector_hidden.weight", h, d->rank},
        {TINY_MATRIX, sqrt((double) d->rank), "candidate_selector.predecessor_codebook", "dflash.selector.pred_cb",
         "selector_predecessor.weight", d->rank, d->vocab},
        {TINY_MATRIX, sqrt((double) d->rank), "candidate_selector.successor_codebook", "dflash.selector.succ_cb",
         "selector_successor.weight", d->rank, d->vocab},
    };
    const Row block[] = {
        {TINY_NORM, 1, "input_layernorm.weight", "attn_norm.weight", "attn_norm.weight", h, 0},
        {TINY_MATRIX, 1, "self_attn.q_proj.weight", "attn_q.weight", "attn_q.weight", h, q},
        {TINY_MATRIX, 1, "self_attn.k_proj.weight", "attn_k.weight", "attn_k.weight", h, kv},
        {TINY_MATRIX, 1, "self_attn.v_proj.weight", "attn_v.weight", "attn_v.weight", h, kv},
        {TINY_MATRIX, 1, "self_attn.o_proj.weight", "attn_output.weight", "attn_output.weight", q, h},
        {TINY_NORM, 1, "self_attn.q_norm.weight", "attn_q_norm.weight", "attn_q_norm.weight", d->head_dim, 0},
        {TINY_NORM, 1, "self_attn.k_norm.weight", "attn_k_norm.weight", "attn_k_norm.weight", d->head_dim, 0},
        {TINY_NORM, 1, "post_attention_layernorm.weight", "ffn_norm.weight", "ffn_norm.weight", h, 0},
        {TINY_MATRIX, 1, "mlp.gate_proj.weight", "ffn_gate.weight", "ffn_gate.weight", h, ff},
        {TINY_MATRIX, 1, "mlp.up_proj.weight", "ffn_up.weight", "ffn_up.weight", h, ff},
        {TINY_MATRIX, 1, "mlp.down_proj.weight", "ffn_down.weight", "ffn_down.weight", ff, h},
    };
    const Row convs[] = {
        {TINY_CONV_BASE, 1, "attention_conv.base_kernel", "attn_conv.base", "attn_conv_base", h, 2},
        {TINY_MATRIX, 0.3, "attention_conv.kernel_projection.weight", "attn_conv.proj.weight", "attn_conv_proj.weight",
         h, conv},
        {TINY_CONV_BASE, 1, "mlp_conv.base_kernel", "ffn_conv.base", "ffn_conv_base", h, 2},
        {TINY_MATRIX, 0.3, "mlp_conv.kernel_projection.weight", "ffn_conv.proj.weight", "ffn_conv_proj.weight",
         h, conv},
    };
    const Row markov[] = {
        {TINY_MATRIX, sqrt((double) d->rank), "markov_head.markov_w1.weight", "dflash.dspark.markov.w1",
         "markov_w1.weight", d->rank, d->vocab},
        {TINY_MATRIX, 1.5, "markov_head.markov_w2.weight", "dflash.dspark.markov.w2", "markov_w2.weight",
         d->rank, d->vocab},
        {TINY_NORM, 1, "confidence_head.proj.weight", "dflash.dspark.confidence.weight", "conf_proj.weight",
         h + d->rank, 1},
        {TINY_SMALL, 1, "confidence_head.proj.bias", "dflash.dspark.confidence.bias", "conf_proj.bias", 1, 0},
    };
    const Row ends[] = {
        {TINY_MATRIX, sqrt((double) h), "embed_tokens.weight", "token_embd.weight", "token_embd.weight", h, d->vocab},
        {TINY_MATRIX, 2, "lm_head.weight", "output.weight", "output.weight", h, d->own_rows},
        {TINY_IDS, 1, "d2t", "d2t", "d2t", d->own_rows, 0},
    };
    for (size_t i = 0; i < sizeof once / sizeof *once; i++) draft_add(list, d, layout, -1, &once[i]);
    for (size_t i = 0; d->markov && i < sizeof markov / sizeof *markov; i++)
        draft_add(list, d, layout, -1, &markov[i]);
    if (d->laguna) add_laguna(list, d, layout);
    for (size_t i = 0; d->dflash2 && i < sizeof selector / sizeof *selector; i++)
        draft_add(list, d, layout, -1, &selector[i]);
    for (int32_t l = 0; l < d->n_layer; l++) {
        for (size_t i = 0; i < sizeof block / sizeof *block; i++) {
            const bool qkv = d->laguna && i >= 1 && i <= 3;
            if (qkv && i == 1) add_qkv(list, d, layout, l, &block[i]);
            if (!qkv) draft_add(list, d, layout, l, &block[i]);
        }
        for (size_t i = 0; d->dflash2 && i < sizeof convs / sizeof *convs; i++)
            draft_add(list, d, layout, l, &convs[i]);
    }
    /* last, whatever their sizes: data must be aligned */
    for (size_t i = 0; d->own_rows && i < sizeof ends / sizeof *ends; i++) draft_add(list, d, layout, -1, &ends[i]);
    if (d->own_rows && layout == TINY_HF)
        draft_add(list, d, layout, -1, &(Row) {TINY_IDS, 1, "t2d", NULL, NULL, d->vocab, 0});
}

/* ---- layouts B and C: GGUF ---- */

typedef struct { GgufWriter *w; const char *arch; char text[96]; } Keys;

static const char *key(Keys *k, const char *name)
{
    snprintf(k->text, sizeof k->text, "%s.%s", k->arch, name);
    return k->text;
}

static void put_u32(Keys *k, const char *name, int32_t v) { gguf_write_u32(k->w, key(k, name), (uint32_t) v); }

static void draft_keys(GgufWriter *w, const TinyDraft *d, TinyLayout layout)
{
    bool luce = layout == TINY_LUCE;
    Keys k = {.w = w, .arch = !luce ? "dflash" : d->laguna ? "dflash-draft" : d->gemma ? "gemma4-dflash-draft"
                                                                                  : "qwen35-dflash-draft"};
    gguf_write_str(w, "general.architecture", k.arch, strlen(k.arch));
    gguf_write_str(w, "general.name", "tiny-draft", 10);
    put_u32(&k, "context_length", d->context);
    put_u32(&k, "embedding_length", d->hidden);
    put_u32(&k, "block_count", d->n_layer);
    put_u32(&k, "feed_forward_length", d->ff);
    put_u32(&k, "attention.head_count", d->n_head);
    put_u32(&k, "attention.head_count_kv", d->n_head_kv);
    put_u32(&k, "attention.key_length", d->head_dim);
    put_u32(&k, "attention.value_length", d->head_dim);
    put_u32(&k, "vocab_size", d->vocab);
    gguf_write_f32(w, key(&k, "attention.layer_norm_rms_epsilon"), d->eps);
    gguf_write_f32(w, key(&k, "rope.freq_base"), d->rope_base);
    if (d->window) {
        bool slides[64];
        for (int32_t i = 0; i < d->n_layer; i++) slides[i] = d->sliding >> i & 1;
        put_u32(&k, "attention.sliding_window", d->window);
        if (!d->gemma || !luce)
            gguf_write_bools(w, key(&k, "attention.sliding_window_pattern"), slides, (size_t) d->n_layer);
    }
    if (d->gemma) gguf_write_f32(w, key(&k, "final_logit_softcapping"), 6);
    if (d->causal != TINY_CAUSAL_ABSENT && !(d->laguna && luce))
        gguf_write_bool(w, key(&k, "attention.causal"), d->causal == TINY_CAUSAL_YES);
    if (d->laguna && luce) gguf_write_bool(w, key(&k, "dflash.context_kv_layer_norm"), true);
    if (d->markov && !luce) gguf_write_bool(w, key(&k, "sample_from_anchor"), false);
    if (d->markov && luce) {
        put_u32(&k, "dflash.dspark.enabled", 1);
        put_u32(&k, "dflash.dspark.markov_rank", d->rank);
    }
    put_u32(&k, luce ? "dflash.block_size" : "block_size", d->block);
    int32_t ids[TINY_TAPS_MAX];
    for (int32_t i = 0; i < d->n_tap; i++) ids[i] = d->tap[i] + !luce; /* llama.cpp: the layer reading it */
    gguf_write_i32s(w, key(&k, luce ? "dflash.target_layer_ids" : "target_layers"), ids, (size_t) d->n_tap);
    if (luce) {
        if (!d->laguna) put_u32(&k, "dflash.mask_token_id", d->mask_id);
        put_u32(&k, "dflash.n_target_layers", d->gemma ? d->n_target_layer : d->n_tap);
    } else if (d->sections)
        gguf_write_i32s(w, key(&k, "rope.dimension_sections"), (int32_t[]) {d->head_dim / 2, 0, 0, 0}, 4);
    if (d->dflash2) {
        put_u32(&k, luce ? "dflash.dflash2.conv_kernel_size" : "conv_kernel_size", 2);
        put_u32(&k, luce ? "dflash.dflash2.conv_group_size" : "conv_group_size", d->conv_group);
        put_u32(&k, luce ? "dflash.dflash2.selector_rank" : "selector_rank", d->rank);
        put_u32(&k, luce ? "dflash.dflash2.selector_top_k" : "selector_top_k", d->top_k);
    }
    if (!luce && d->laguna) put_u32(&k, "mask_token_id", d->mask_id);
    if (!luce)
        tiny_write_tokenizer(w, d->laguna ? "laguna" : d->sections ? "qwen35" : d->add_bos ? "llama-bpe" : "qwen2",
                             d->vocab,
                             d->add_bos, true);
}

static Status write_gguf(const TinyDraft *d, TinyLayout layout, const TinyList *list, const char *path, Error *err)
{
    GgufWriter *w;
    TRY(gguf_write_open(&w, path, err));
    draft_keys(w, d, layout);
    Status status = tiny_write_tensors(w, list, err);
    Status closed = gguf_write_close(w, status == ST_OK, status == ST_OK ? err : NULL);
    return status != ST_OK ? status : closed;
}

/* ---- layout A: a folder with config.json and model.safetensors ---- */

static void write_types(FILE *f, const TinyDraft *d)
{
    fprintf(f, "\"layer_types\": [");
    for (int32_t i = 0; i < d->n_layer; i++)
        fprintf(f, "%s\"%s\"", i ? ", " : "", d->sliding >> i & 1 ? "sliding_attention" : "full_attention");
    fprintf(f, "]");
}

/* As the library writes it: without what is the standard of Qwen3Config, and with the rotations of a target whose
 * layers have two. */
static void write_library(FILE *f, const TinyDraft *d)
{
    fprintf(f, "{\"architectures\": [\"DFlashDraftModel\"], \"speculators_model_type\": \"dflash\", "
            "\"block_size\": %d,\n", d->block);
    fprintf(f, " \"mask_token_id\": %d, \"draft_vocab_size\": %d, \"sample_from_anchor\": false,\n", d->mask_id,
            d->own_rows);
    fprintf(f, " \"aux_hidden_state_layer_ids\": [");
    for (int32_t i = 0; i < d->n_tap; i++) fprintf(f, "%s%d", i ? ", " : "", d->tap[i] + 1);
    fprintf(f, "],\n \"transformer_layer_config\": {\"model_type\": \"qwen3\", \"hidden_size\": %d, "
            "\"num_hidden_layers\": %d, \"vocab_size\": %d,\n", d->hidden, d->n_layer, d->vocab);
    fprintf(f, "  \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, "
            "\"intermediate_size\": %d,\n  ", d->n_head, d->n_head_kv, d->head_dim, d->ff);
    write_types(f, d);
    fprintf(f, ", \"sliding_window\": %d,\n", d->window);
    fprintf(f, "  \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\", \"rope_theta\": 3, "
            "\"factor\": 4},\n   \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": %.9g}}}}\n",
            (double) d->rope_base);
}

static void write_published(FILE *f, const TinyDraft *d)
{
    const char *class = d->laguna ? "DFlashLagunaForCausalLM" : d->dflash2 ? "DFlash2DraftModel" : "DFlashDraftModel";
    fprintf(f, "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"hidden_size\": %d, \"num_hidden_layers\": "
            "%d,\n", class, d->laguna ? "laguna" : "qwen3", d->hidden, d->n_layer);
    fprintf(f, " \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, \"intermediate_size\": "
            "%d,\n", d->n_head, d->n_head_kv, d->head_dim, d->ff);
    fprintf(f, " \"rms_norm_eps\": %.9g, \"vocab_size\": %d, \"max_position_embeddings\": %d, \"attention_bias\": "
            "false,\n", (double) d->eps, d->vocab, d->context);
    fprintf(f, " \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"num_target_layers\": %d,\n",
            d->n_target_layer);
    if (d->nested)
        fprintf(f, " \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": %.9g},\n",
                (double) d->rope_base);
    else
        fprintf(f, " \"rope_theta\": %.9g, \"block_size\": %d,\n", (double) d->rope_base, d->block);
    if (d->markov) fprintf(f, " \"sample_from_anchor\": false,\n");
    if (d->gemma) fprintf(f, " \"final_logit_softcapping\": 6.0,\n");
    if (d->causal != TINY_CAUSAL_ABSENT && !d->laguna)
        fprintf(f, " \"is_causal\": %s,\n", d->causal == TINY_CAUSAL_YES ? "true" : "false");
    if (d->window) fprintf(f, " \"use_sliding_window\": true, \"sliding_window\": %d,\n", d->window);
    else fprintf(f, " \"use_sliding_window\": false, \"sliding_window\": null,\n");
    write_types(f, d);
    fprintf(f, ",\n \"dflash_config\": {\"target_layer_ids\": [");
    for (int32_t i = 0; i < d->n_tap; i++) fprintf(f, "%s%d", i ? ", " : "", d->tap[i]);
    fprintf(f, "], \"mask_token_id\": %d", d->mask_id);
    if (d->nested) fprintf(f, ", \"block_size\": %d", d->block);
    if (d->laguna) fprintf(f, ", \"causal\": true, \"num_target_layers\": %d", d->n_target_layer);
    if (d->dflash2)
        fprintf(f, ", \"conv_kernel_size\": 2, \"conv_group_size\": %d, \"selector_rank\": %d, \"selector_top_k\": %d",
                d->conv_group, d->rank, d->top_k);
    fprintf(f, "}}\n");
}

static Status write_config(const TinyDraft *d, const char *folder, Error *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "wb");
    if (!f) return fail(err, ST_IO, "%s: %s", path, strerror(errno));
    (d->library ? write_library : write_published)(f, d);
    bool failed = ferror(f);
    failed |= fclose(f) != 0;
    return failed ? fail(err, ST_IO, "%s: cannot be written", path) : ST_OK;
}

typedef struct { const char *name; size_t bytes; } Dtype;

/* d2t: how far a row's token is from the row; t2d: which tokens have one. */
static Dtype dtype_of(const TinyDraft *d, const TinyTensor *t)
{
    if (t->kind == TINY_IDS) return strcmp(t->name, "t2d") == 0 ? (Dtype) {"BOOL", 1} : (Dtype) {"I64", 8};
    return d->type == T_BF16 ? (Dtype) {"BF16", 2} : (Dtype) {"F32", 4};
}

static void write_ids(FILE *f, const TinyDraft *d, const TinyTensor *t)
{
    if (strcmp(t->name, "t2d") == 0) {
        bool has[4096] = {false};
        for (int32_t i = 0; i < d->own_rows; i++) has[tiny_own_token(i)] = true;
        fwrite(has, 1, (size_t) d->vocab, f);
        return;
    }
    for (int32_t i = 0; i < d->own_rows; i++) {
        int64_t far = tiny_own_token(i) - i;
        fwrite(&far, sizeof far, 1, f);
    }
}

static Status write_safetensors(const TinyDraft *d, const TinyList *list, const char *folder, Error *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    bool    bf16 = d->type == T_BF16;
    size_t  offset = 0, header_cap = (size_t) list->n * 256 + 64, at = 8;
    int64_t cols = 1;
    char   *header = malloc(header_cap);
    if (!header) return fail(err, ST_MEMORY, "%s: no memory", path);
    at += (size_t) snprintf(header + at, header_cap - at, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int32_t i = 0; i < list->n; i++) {
        const TinyTensor *t = &list->at[i];
        const Dtype type = dtype_of(d, t);
        size_t bytes = (size_t) (t->ne[0] * t->ne[1] * t->ne[2]) * type.bytes;
        at += (size_t) snprintf(header + at, header_cap - at, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name,
                                type.name);
        for (int32_t n = t->n_dims - 1; n >= 0; n--)
            at += (size_t) snprintf(header + at, header_cap - at, "%lld%s", (long long) t->ne[n], n ? "," : "");
        at += (size_t) snprintf(header + at, header_cap - at, "],\"data_offsets\":[%zu,%zu]}", offset, offset + bytes);
        offset += bytes;
        if (t->ne[0] > cols) cols = t->ne[0];
    }
    header[at++] = '}';
    while (at % 8) header[at++] = ' ';
    for (int32_t i = 0; i < 8; i++) header[i] = (char) (((uint64_t) at - 8) >> 8 * i);
    float    *row = malloc((size_t) cols * sizeof *row);
    uint16_t *half = malloc((size_t) cols * sizeof *half);
    FILE     *f = fopen(path, "wb");
    Status status = !row || !half ? fail(err, ST_MEMORY, "%s: no memory", path)
                                  : f ? ST_OK : fail(err, ST_IO, "%s: %s", path, strerror(errno));
    if (status == ST_OK) fwrite(header, 1, at, f);
    for (int32_t i = 0; i < list->n && status == ST_OK; i++) {
        const TinyTensor *t = &list->at[i];
        if (t->kind == TINY_IDS) write_ids(f, d, t);
        for (int64_t r = 0; t->kind != TINY_IDS && r < t->ne[1] * t->ne[2]; r++) {
            tiny_row(row, t, r);
            for (int64_t c = 0; bf16 && c < t->ne[0]; c++) half[c] = bf16_from_float(row[c]);
            fwrite(bf16 ? (void *) half : (void *) row, bf16 ? 2 : 4, (size_t) t->ne[0], f);
        }
    }
    if (f) {
        bool failed = ferror(f);
        failed |= fclose(f) != 0;
        if (failed && status == ST_OK) status = fail(err, ST_IO, "%s: cannot be written", path);
    }
    free(header);
    free(row);
    free(half);
    return status;
}

Status tiny_draft_write(const TinyDraft *d, TinyLayout layout, const char *path, Error *err)
{
    if (d->n_layer < 1 || d->n_layer > 60)
        return fail(err, ST_ARG, "tiny: %d drafter layers, expected 1 to 60", d->n_layer);
    if (layout == TINY_HF && d->type != T_F32 && d->type != T_BF16)
        return fail(err, ST_ARG, "tiny: %s in safetensors, expected F32 or BF16", type_info(d->type)->name);
    TinyList list = {.at = calloc(TINY_TENSORS_MAX, sizeof *list.at)};
    if (!list.at) return fail(err, ST_MEMORY, "tiny: no memory for the tensor list");
    draft_tensors(&list, d, layout);
    Status status;
    if (layout != TINY_HF) status = write_gguf(d, layout, &list, path, err);
    else if (mkdir(path, 0777) != 0 && errno != EEXIST) status = fail(err, ST_IO, "%s: %s", path, strerror(errno));
    else {
        status = write_config(d, path, err);
        if (status == ST_OK) status = write_safetensors(d, &list, path, err);
    }
    free(list.at);
    return status;
}
