/* make_synthetic - full-size model files with random weights, for timing and for tests without a download.
 *
 *   bench/make_synthetic SHAPE FILE [--type T] [--layers N] [--target-layers N] [--skew S] [--no-vocab]
 *
 * Keys and tensors are those of the real model, with the types of llama.cpp's recipe. Blocks are random bits with small
 * fixed scales: weights of standard deviation 0.02 around zero, so every logit is finite and the text is noise. Speed
 * does not depend on the values. The vocabulary has the real size, bytes first, the real special tokens at their ids
 * and invented words in between; without merges a text becomes one token per byte. A dflash-* shape is the drafter for
 * the target of that name: five or eight layers, blocks of 16. The same arguments give the same file.
 *
 * Random routers use all experts of a mixture alike. --skew makes favourites: column 0 of the residual is constant, so
 * the routers' weights of this column are a bias for each expert, S / rank^(1/4) above the others, with other ranks in
 * every layer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/gguf.h"
#include "format/recipe.h"
#include "programs/progress.h"

enum { NORMAL = 1, CONTROL = 3, USER = 4, UNUSED = 5 };        /* types of tokens */
typedef struct { int32_t id, type; const char *text; } Special;

/* Ids not among the special ones: bytes from `bytes` on, then words up to `end`; all others are unused. -1: none. */
typedef struct {
    int32_t n, bytes, end, bos, eos, eot, pad, mask;
    const char *pre, *chat;
    Special special[10];                           /* the last has no text */
} VocabShape;

static const char chat_qwen[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                                "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
static const char chat_laguna[] = "\u3008|EOS|\u3009{% for m in messages %}<{{ m.role }}>\n{{ m.content }}\n"
                                  "</{{ m.role }}>\n{% endfor %}{% if add_generation_prompt %}<assistant>\n</think>"
                                  "{% endif %}";
#define CHAT_TOKENS(id) \
    {id, CONTROL, "<|endoftext|>"}, {id + 1, CONTROL, "<|im_start|>"}, {id + 2, CONTROL, "<|im_end|>"}
static const VocabShape vocab_qwen35 = {248320, 0, 248044, -1, 248046, -1, 248044, 248070, "qwen35", chat_qwen,
    {CHAT_TOKENS(248044), {248068, USER, "<think>"}, {248069, USER, "</think>"}, {248070, CONTROL, "<|mask|>"}, {0}}};
static const VocabShape vocab_qwen3 = {151936, 0, 151643, -1, 151645, -1, 151643, 151669, "qwen2", chat_qwen,
    {CHAT_TOKENS(151643), {151667, USER, "<think>"}, {151668, USER, "</think>"}, {151669, CONTROL, "<|mask|>"}, {0}}};
static const VocabShape vocab_smollm = {49152, 0, 49140, -1, 49142, -1, 49140, 49143, "smollm", chat_qwen,
    {CHAT_TOKENS(49140), {49143, CONTROL, "<|mask|>"}, {0}}};
static const VocabShape vocab_laguna = {100352, 32, 100352, 2, 2, 24, 9, -1, "laguna", chat_laguna,
    {{2, CONTROL, "\u3008|EOS|\u3009"}, {9, CONTROL, "\u3008|PAD|\u3009"}, {18, USER, "<think>"},
     {19, USER, "</think>"}, {23, USER, "<assistant>"}, {24, CONTROL, "</assistant>"}, {25, USER, "<tool_call>"},
     {26, USER, "</tool_call>"}, {0}}};

/* Of a mixture of experts. dense: layers in front without experts; shared: width of the expert of all rows. */
typedef struct { int32_t experts, used, ffn, shared, dense; } Mixture;

static const Mixture mixture_35b = {256, 8, 512, 512, 0}, mixture_30b = {128, 8, 768, 0, 0},
                     mixture_laguna = {256, 8, 512, 512, 1}, mixture_small = {64, 4, 256, 256, 0};

typedef struct {
    const char *name, *arch;
    int32_t layers, dim, ffn, heads, kv_heads, head_dim;
    const VocabShape *vocab;
    bool    tied;
    int32_t k_heads, v_heads;                      /* delta net; 0: none */
    int32_t context;
    float   rope_base, eps;
    int32_t target_layers;                         /* of a drafter's target; 0: no drafter */
    const Mixture *mixture;                        /* NULL: dense */
} Shape;

static const Shape shapes[] = {
    {"qwen35-0.8b", "qwen35", 24, 1024, 3584, 8, 2, 256, &vocab_qwen35, true, 16, 16, 262144, 1e7f, 1e-6f, 0, NULL},
    {"qwen35-4b", "qwen35", 32, 2560, 9216, 16, 4, 256, &vocab_qwen35, true, 16, 32, 262144, 1e7f, 1e-6f, 0, NULL},
    {"qwen35-9b", "qwen35", 32, 4096, 12288, 16, 4, 256, &vocab_qwen35, false, 16, 32, 262144, 1e7f, 1e-6f, 0, NULL},
    {"qwen35-27b", "qwen35", 64, 5120, 17408, 24, 4, 256, &vocab_qwen35, false, 16, 48, 262144, 1e7f, 1e-6f, 0, NULL},
    {"qwen3-0.6b", "qwen3", 28, 1024, 3072, 16, 8, 128, &vocab_qwen3, true, 0, 0, 40960, 1e6f, 1e-6f, 0, NULL},
    {"qwen3-4b", "qwen3", 36, 2560, 9728, 32, 8, 128, &vocab_qwen3, true, 0, 0, 40960, 1e6f, 1e-6f, 0, NULL},
    {"qwen3-8b", "qwen3", 36, 4096, 12288, 32, 8, 128, &vocab_qwen3, false, 0, 0, 40960, 1e6f, 1e-6f, 0, NULL},
    {"qwen35moe-35b-a3b", "qwen35moe", 40, 2048, 0, 16, 2, 256, &vocab_qwen35, false, 16, 32, 262144, 1e7f, 1e-6f, 0,
     &mixture_35b},
    {"qwen35moe-small", "qwen35moe", 4, 256, 0, 4, 2, 128, &vocab_smollm, false, 2, 4, 8192, 1e7f, 1e-6f, 0,
     &mixture_small},                              /* no published size: for tests */
    {"qwen3moe-30b-a3b", "qwen3moe", 48, 2048, 6144, 32, 4, 128, &vocab_qwen3, false, 0, 0, 40960, 1e6f, 1e-6f, 0,
     &mixture_30b},
    {"laguna-xs.2", "laguna", 40, 2048, 8192, 48, 8, 128, &vocab_laguna, false, 0, 0, 262144, 5e5f, 1e-6f, 0,
     &mixture_laguna},
    {"smollm2-135m", "llama", 30, 576, 1536, 9, 3, 64, &vocab_smollm, true, 0, 0, 8192, 1e5f, 1e-5f, 0, NULL},
    {"smollm2-360m", "llama", 32, 960, 2560, 15, 5, 64, &vocab_smollm, true, 0, 0, 8192, 1e5f, 1e-5f, 0, NULL},
    {"dflash-qwen35-0.8b", "dflash", 5, 1024, 3584, 16, 8, 128, &vocab_qwen35, false, 0, 0, 262144, 1e7f, 1e-6f, 24,
     NULL},
    {"dflash-qwen35-4b", "dflash", 5, 2560, 9728, 32, 8, 128, &vocab_qwen35, false, 0, 0, 262144, 1e7f, 1e-6f, 32,
     NULL},
    {"dflash-qwen35-9b", "dflash", 5, 4096, 12288, 32, 8, 128, &vocab_qwen35, false, 0, 0, 262144, 1e7f, 1e-6f, 32,
     NULL},
    {"dflash-qwen35-27b", "dflash", 5, 5120, 17408, 32, 8, 128, &vocab_qwen35, false, 0, 0, 262144, 1e7f, 1e-6f, 64,
     NULL},
    {"dflash-qwen3-0.6b", "dflash", 5, 1024, 3072, 16, 8, 128, &vocab_qwen3, false, 0, 0, 40960, 1e6f, 1e-6f, 28, NULL},
    {"dflash-qwen3-4b", "dflash", 5, 2560, 9728, 32, 8, 128, &vocab_qwen3, false, 0, 0, 40960, 1e6f, 1e-6f, 36, NULL},
    {"dflash-qwen3-8b", "dflash", 5, 4096, 12288, 32, 8, 128, &vocab_qwen3, false, 0, 0, 40960, 1e6f, 1e-6f, 36, NULL},
    {"dflash-qwen35moe-35b-a3b", "dflash", 8, 2048, 6144, 32, 4, 128, &vocab_qwen35, false, 0, 0, 262144, 1e7f, 1e-6f,
     40, NULL},
    {"dflash-qwen3moe-30b-a3b", "dflash", 8, 2048, 6144, 32, 4, 128, &vocab_qwen3, false, 0, 0, 40960, 1e6f, 1e-6f, 48,
     NULL},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, TAPS_MAX = 8, BLOCK = 16, DELTA_DIM = 128, CONV = 4, INTERVAL = 4,
       LAYERS_MAX = 256, BUFFER = 1 << 20, WINDOW = 512, WINDOW_HEADS = 64 };

static bool is_laguna(const Shape *s) { return strcmp(s->arch, "laguna") == 0; }

/* Laguna's layers with a window, three in four, have heads of their own number. */
static int32_t heads_of(const Shape *s, int32_t layer)
{
    return is_laguna(s) && layer % INTERVAL != 0 ? WINDOW_HEADS : s->heads;
}

static int32_t taps_of(const Shape *s) { return s->layers; }       /* of drafters */

/* ---- the plan: names, shapes, types ---- */

typedef struct { char name[64]; int32_t n_dims; int64_t ne[3]; Type type; } Planned;

typedef struct {
    const Recipe *recipe;
    RecipeModel   model;
    int32_t       n, cap;
    Planned      *tensor;
} Plan;

/* rows 0: a vector; planes 0: a matrix */
static bool plan_stack(Plan *p, int32_t layer, const char *name, int64_t cols, int64_t rows, int64_t planes)
{
    if (p->n == p->cap) {
        int32_t cap = 2 * p->cap + 64;
        Planned *grown = realloc(p->tensor, (size_t) cap * sizeof *grown);
        if (!grown) return false;
        p->tensor = grown;
        p->cap = cap;
    }
    Planned *t = &p->tensor[p->n++];
    *t = (Planned) {.n_dims = planes > 0 ? 3 : rows > 0 ? 2 : 1,
                    .ne = {cols, rows > 0 ? rows : 1, planes > 0 ? planes : 1}};
    if (layer < 0) snprintf(t->name, sizeof t->name, "%s", name);
    else snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, name);
    t->type = recipe_type(p->recipe, &p->model, t->name, t->n_dims, t->ne);
    return true;
}

static bool plan_add(Plan *p, int32_t layer, const char *name, int64_t cols, int64_t rows)
{
    return plan_stack(p, layer, name, cols, rows, 0);
}

static bool plan_attention(Plan *p, const Shape *s, int32_t i)
{
    int64_t q = (int64_t) heads_of(s, i) * s->head_dim, kv = (int64_t) s->kv_heads * s->head_dim;
    bool ok = plan_add(p, i, "attn_q.weight", s->dim, s->k_heads ? 2 * q : q) &&
              plan_add(p, i, "attn_k.weight", s->dim, kv) && plan_add(p, i, "attn_v.weight", s->dim, kv) &&
              plan_add(p, i, "attn_output.weight", q, s->dim);
    if (ok && strcmp(s->arch, "llama") != 0)
        ok = plan_add(p, i, "attn_q_norm.weight", s->head_dim, 0) &&
             plan_add(p, i, "attn_k_norm.weight", s->head_dim, 0);
    if (ok && is_laguna(s)) ok = plan_add(p, i, "attn_gate.weight", s->dim, heads_of(s, i));
    return ok;
}

static bool plan_delta(Plan *p, const Shape *s, int32_t i)
{
    int64_t inner = (int64_t) s->v_heads * DELTA_DIM, channels = 2 * (int64_t) s->k_heads * DELTA_DIM + inner;
    return plan_add(p, i, "attn_qkv.weight", s->dim, channels) && plan_add(p, i, "attn_gate.weight", s->dim, inner) &&
           plan_add(p, i, "ssm_conv1d.weight", CONV, channels) && plan_add(p, i, "ssm_dt.bias", s->v_heads, 0) &&
           plan_add(p, i, "ssm_a", s->v_heads, 0) && plan_add(p, i, "ssm_beta.weight", s->dim, s->v_heads) &&
           plan_add(p, i, "ssm_alpha.weight", s->dim, s->v_heads) && plan_add(p, i, "ssm_norm.weight", DELTA_DIM, 0) &&
           plan_add(p, i, "ssm_out.weight", inner, s->dim);
}

static bool plan_dense(Plan *p, const Shape *s, int32_t i)
{
    return plan_add(p, i, "ffn_gate.weight", s->dim, s->ffn) && plan_add(p, i, "ffn_up.weight", s->dim, s->ffn) &&
           plan_add(p, i, "ffn_down.weight", s->ffn, s->dim);
}

static bool plan_experts(Plan *p, const Shape *s, int32_t i)
{
    const Mixture *x = s->mixture;
    bool ok = plan_add(p, i, "ffn_gate_inp.weight", s->dim, x->experts) &&
              plan_stack(p, i, "ffn_gate_exps.weight", s->dim, x->ffn, x->experts) &&
              plan_stack(p, i, "ffn_up_exps.weight", s->dim, x->ffn, x->experts) &&
              plan_stack(p, i, "ffn_down_exps.weight", x->ffn, s->dim, x->experts);
    if (ok && is_laguna(s)) ok = plan_add(p, i, "exp_probs_b.bias", x->experts, 0);
    if (!ok || !x->shared) return ok;
    if (!is_laguna(s)) ok = plan_add(p, i, "ffn_gate_inp_shexp.weight", s->dim, 0);
    return ok && plan_add(p, i, "ffn_gate_shexp.weight", s->dim, x->shared) &&
           plan_add(p, i, "ffn_up_shexp.weight", s->dim, x->shared) &&
           plan_add(p, i, "ffn_down_shexp.weight", x->shared, s->dim);
}

static bool plan_model(Plan *p, const Shape *s)
{
    bool ok;
    if (s->target_layers)
        ok = plan_add(p, -1, "fc.weight", (int64_t) taps_of(s) * s->dim, s->dim) &&
             plan_add(p, -1, "enc.output_norm.weight", s->dim, 0);
    else
        ok = plan_add(p, -1, "token_embd.weight", s->dim, s->vocab->n);
    for (int32_t i = 0; i < p->model.n_layer && ok; i++) {
        ok = plan_add(p, i, "attn_norm.weight", s->dim, 0) &&
             plan_add(p, i, s->k_heads ? "post_attention_norm.weight" : "ffn_norm.weight", s->dim, 0);
        if (ok) ok = s->k_heads && (i + 1) % INTERVAL != 0 ? plan_delta(p, s, i) : plan_attention(p, s, i);
        if (ok) ok = s->mixture && i >= s->mixture->dense ? plan_experts(p, s, i) : plan_dense(p, s, i);
    }
    if (ok) ok = plan_add(p, -1, "output_norm.weight", s->dim, 0);
    if (ok && !s->tied && !s->target_layers) ok = plan_add(p, -1, "output.weight", s->dim, s->vocab->n);
    return ok;
}

/* ---- keys ---- */

typedef struct { GgufWriter *w; const char *arch; } Keys;

static const char *key_of(char out[96], const Keys *k, const char *name)
{
    snprintf(out, 96, "%s.%s", k->arch, name);
    return out;
}

static void key_u32(const Keys *k, const char *name, int32_t v)
{
    char key[96];
    gguf_write_u32(k->w, key_of(key, k, name), (uint32_t) v);
}

static void key_f32(const Keys *k, const char *name, float v)
{
    char key[96];
    gguf_write_f32(k->w, key_of(key, k, name), v);
}

static void key_i32s(const Keys *k, const char *name, const int32_t *v, size_t n)
{
    char key[96];
    gguf_write_i32s(k->w, key_of(key, k, name), v, n);
}

static void key_text(const Keys *k, const char *name, const char *v)
{
    char key[96];
    gguf_write_str(k->w, key_of(key, k, name), v, strlen(v));
}

static void write_text(GgufWriter *w, const char *key, const char *s) { gguf_write_str(w, key, s, strlen(s)); }

static void write_mixture_keys(const Keys *k, const Mixture *x)
{
    key_u32(k, "expert_count", x->experts);
    key_u32(k, "expert_used_count", x->used);
    key_u32(k, "expert_feed_forward_length", x->ffn);
    if (x->shared) key_u32(k, "expert_shared_feed_forward_length", x->shared);
}

static void write_laguna_keys(const Keys *k, const Shape *s)
{
    char key[96];
    key_u32(k, "attention.sliding_window", WINDOW);
    key_u32(k, "rope.dimension_count", s->head_dim / 2);
    key_u32(k, "rope.dimension_count_swa", s->head_dim);
    key_f32(k, "rope.freq_base_swa", 1e4f);
    key_text(k, "rope.scaling.type", "yarn");
    key_f32(k, "rope.scaling.factor", 64);
    key_u32(k, "rope.scaling.original_context_length", 4096);
    key_f32(k, "rope.scaling.yarn_attn_factor", 1.4158883f);
    key_f32(k, "rope.scaling.yarn_beta_fast", 64);
    key_f32(k, "rope.scaling.yarn_beta_slow", 1);
    key_u32(k, "leading_dense_block_count", s->mixture->dense);
    gguf_write_bool(k->w, key_of(key, k, "expert_weights_norm"), true);
    key_f32(k, "expert_weights_scale", 2.5f);
    key_u32(k, "expert_gating_func", 2);                           /* sigmoid */
}

static void write_keys(GgufWriter *w, const Shape *s, const Recipe *r, int32_t layers, int32_t target_layers)
{
    Keys k = {w, s->arch};
    char name[96];
    snprintf(name, sizeof name, "%s-synthetic", s->name);
    write_text(w, "general.architecture", s->arch);
    write_text(w, "general.name", name);
    gguf_write_u32(w, "general.file_type", recipe_file_type(r));
    gguf_write_u32(w, "general.quantization_version", 2);
    key_u32(&k, "block_count", layers);
    key_u32(&k, "context_length", s->context);
    key_u32(&k, "embedding_length", s->dim);
    if (s->ffn) key_u32(&k, "feed_forward_length", s->ffn);
    if (is_laguna(s)) {
        int32_t heads[LAYERS_MAX];
        for (int32_t i = 0; i < layers; i++) heads[i] = heads_of(s, i);
        key_i32s(&k, "attention.head_count", heads, (size_t) layers);
    } else key_u32(&k, "attention.head_count", s->heads);
    key_u32(&k, "attention.head_count_kv", s->kv_heads);
    key_u32(&k, "attention.key_length", s->head_dim);
    key_u32(&k, "attention.value_length", s->head_dim);
    key_f32(&k, "attention.layer_norm_rms_epsilon", s->eps);
    key_f32(&k, "rope.freq_base", s->rope_base);
    key_u32(&k, "vocab_size", s->vocab->n);
    if (strcmp(s->arch, "llama") == 0) key_u32(&k, "rope.dimension_count", s->head_dim);
    if (s->k_heads) {
        key_u32(&k, "rope.dimension_count", s->head_dim / 4);
        const int32_t pairs = s->head_dim / 8, sections[] = {(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0};
        key_i32s(&k, "rope.dimension_sections", sections, 4);
        key_u32(&k, "ssm.conv_kernel", CONV);
        key_u32(&k, "ssm.state_size", DELTA_DIM);
        key_u32(&k, "ssm.group_count", s->k_heads);
        key_u32(&k, "ssm.time_step_rank", s->v_heads);
        key_u32(&k, "ssm.inner_size", s->v_heads * DELTA_DIM);
        key_u32(&k, "full_attention_interval", INTERVAL);
    }
    if (s->mixture) write_mixture_keys(&k, s->mixture);
    if (is_laguna(s)) write_laguna_keys(&k, s);
    if (s->target_layers) {
        /* Evenly spread from layer 1 to the third last, rounded half to even; the file counts layer inputs, so one
         * more. */
        int32_t tap[TAPS_MAX], n = taps_of(s);
        for (int32_t i = 0; i < n; i++)
            tap[i] = 1 + (int32_t) nearbyint(1 + i * (target_layers - 4) / (double) (n - 1));
        key_u32(&k, "block_size", BLOCK);
        key_i32s(&k, "target_layers", tap, (size_t) n);
        key_u32(&k, "mask_token_id", s->vocab->mask);
    }
}

/* ---- vocabulary ---- */

enum { WORD_BYTES = 16 };

/* The character that represents a byte, as UTF-8: the byte itself if printable, else the next free one from U+0100. */
static void byte_text(char *out, int byte)
{
    int cp = 0x100, printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    if (printable) cp = byte;
    else cp += byte <= 0x20 ? byte : byte <= 0xa0 ? byte - 0x7f + 33 : 67;
    if (cp < 0x80) snprintf(out, WORD_BYTES, "%c", cp);
    else snprintf(out, WORD_BYTES, "%c%c", (char) (0xc0 | cp >> 6), (char) (0x80 | (cp & 63)));
}

/* Syllables that spell half the number in base 70, lowest first, at least two; every second word with a space in front.
 * The last of three or more is never the zero "ba", so all words differ. */
static void word_text(char *out, int32_t number)
{
    static const char consonant[] = "bdfgklmnprstvz", vowel[] = "aeiou";
    const int32_t syllables = 14 * 5;
    int32_t rest = number / 2, n = 0;
    if (number % 2 == 0) n = snprintf(out, WORD_BYTES, "\xc4\xa0");
    for (int32_t i = 0; i < 2 || rest > 0; i++, rest /= syllables) {
        out[n++] = consonant[rest % syllables / 5];
        out[n++] = vowel[rest % 5];
    }
    out[n] = '\0';
}

static const Special *special_of(const VocabShape *v, int32_t id)
{
    for (const Special *x = v->special; x->text; x++)
        if (x->id == id) return x;
    return NULL;
}

static bool write_vocab(GgufWriter *w, const VocabShape *v)
{
    size_t n = (size_t) v->n;
    char (*text)[WORD_BYTES] = calloc(n, sizeof *text);
    const char **at = calloc(n, sizeof *at);
    size_t *length = calloc(n, sizeof *length);
    int32_t *type = calloc(n, sizeof *type);
    bool ok = text && at && length && type;
    for (int32_t id = 0; ok && id < v->n; id++) {
        const Special *special = special_of(v, id);
        int32_t rank = id - v->bytes;
        type[id] = special ? special->type : rank >= 0 && id < v->end ? NORMAL : UNUSED;
        if (type[id] == UNUSED) snprintf(text[id], WORD_BYTES, "[PAD%d]", id);
        else if (rank >= 256) word_text(text[id], rank - 256);
        else if (rank >= 0) byte_text(text[id], rank);
        at[id] = special ? special->text : text[id];
        length[id] = strlen(at[id]);
    }
    if (ok) {
        write_text(w, "tokenizer.ggml.model", "gpt2");
        write_text(w, "tokenizer.ggml.pre", v->pre);
        gguf_write_strs(w, "tokenizer.ggml.tokens", at, length, n);
        gguf_write_i32s(w, "tokenizer.ggml.token_type", type, n);
        gguf_write_strs(w, "tokenizer.ggml.merges", NULL, NULL, 0);
        gguf_write_bool(w, "tokenizer.ggml.add_bos_token", false);
        if (v->bos >= 0) gguf_write_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t) v->bos);
        gguf_write_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t) v->eos);
        if (v->eot >= 0) gguf_write_u32(w, "tokenizer.ggml.eot_token_id", (uint32_t) v->eot);
        gguf_write_u32(w, "tokenizer.ggml.padding_token_id", (uint32_t) v->pad);
        if (v->mask >= 0) gguf_write_u32(w, "tokenizer.ggml.mask_token_id", (uint32_t) v->mask);
        write_text(w, "tokenizer.chat_template", v->chat);
    }
    free(text);
    free(at);
    free(length);
    free(type);
    return ok;
}

/* ---- weights ---- */

/* splitmix64: eight random bytes in about a nanosecond. */
static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static float random_between(uint64_t *state, float lo, float hi)
{
    return lo + (hi - lo) * (float) (random_bits(state) >> 40) * 0x1p-24f;
}

/* Offsets and values of a block's half-precision fields for weights of standard deviation 0.02 around 0 (offset -1: no
 * such field). */
static const struct { int32_t at; float value; int32_t at2; float value2; } scale_of[T_COUNT] = {
    [T_Q8_0] = {0, 2.7e-4f, -1, 0},
    [T_Q4_0] = {0, 4.3e-3f, -1, 0},
    [T_Q5_0] = {0, 2.2e-3f, -1, 0},
    [T_Q5_1] = {0, 2.2e-3f, 2, -0.034f},
    [T_Q4_K] = {0, 8e-5f, 2, 6e-4f},
    [T_Q5_K] = {0, 4e-5f, 2, 6.2e-4f},
    [T_Q6_K] = {208, 1.4e-5f, -1, 0},
    [T_Q4_1] = {0, 4.3e-3f, 2, -0.0325f},
    [T_Q2_K] = {80, 1.44e-3f, 82, 2.16e-3f},
    [T_Q3_K] = {108, 4.6e-4f, -1, 0},
    [T_IQ4_NL] = {0, 3e-4f, -1, 0},
    [T_IQ4_XS] = {0, 1.6e-5f, -1, 0},
};
enum { MXFP4_SCALE = 120, NVFP4_SCALE = 4 };       /* no halves, but both 2^-8; of experts, which have no gain */

static void put_half(uint8_t *p, float v)
{
    uint16_t h = half_from_float(v);
    memcpy(p, &h, sizeof h);
}

/* Fills whole blocks with random bytes. */
static void random_blocks(uint8_t *out, size_t bytes, Type t, float gain, uint64_t *state)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t bits = random_bits(state);
        memcpy(out + i, &bits, bytes - i < 8 ? bytes - i : 8);
    }
    size_t block = (size_t) type_info(t)->bytes;
    for (uint8_t *b = out; b < out + bytes; b += block) {
        if (t == T_MXFP4 || t == T_NVFP4) {
            if (t == T_MXFP4) b[0] = MXFP4_SCALE;
            else memset(b, NVFP4_SCALE, 4);
            continue;
        }
        put_half(b + scale_of[t].at, gain * scale_of[t].value);
        if (scale_of[t].at2 >= 0) put_half(b + scale_of[t].at2, gain * scale_of[t].value2);
        if (t == T_Q8_0) {
            for (int i = 2; i < 34; i++) b[i] = b[i] == 0x80 ? 0x81 : b[i];        /* encoders use -127..127 */
        }
    }
}

/* Range of an unquantised tensor's values; with `decay` the value is -exp of the random number. */
typedef struct { float lo, hi; bool decay; } Spread;

static Spread spread_of(const char *name)
{
    if (strstr(name, "exp_probs_b")) return (Spread) {-0.002f, 0.002f, false};
    if (strstr(name, "norm")) return (Spread) {0.9f, 1.1f, false};
    if (strstr(name, "ssm_alpha")) return (Spread) {-0.0346f, 0.0346f, false};
    if (strstr(name, "ssm_a")) return (Spread) {-3, 1, true};
    if (strstr(name, "ssm_dt")) return (Spread) {-1, 1, false};
    if (strstr(name, "conv1d")) return (Spread) {-0.5f, 0.5f, false};
    return (Spread) {-0.0346f, 0.0346f, false};
}

static void random_values(uint8_t *out, size_t bytes, Type t, Spread spread, uint64_t *state)
{
    enum { PIECE = 1024 };
    float v[PIECE];
    size_t unit = (size_t) type_info(t)->bytes;
    for (size_t at = 0, n; at < bytes; at += n * unit) {
        n = (bytes - at) / unit < PIECE ? (bytes - at) / unit : PIECE;
        for (size_t i = 0; i < n; i++)
            v[i] = spread.decay ? -expf(random_between(state, spread.lo, spread.hi))
                                : random_between(state, spread.lo, spread.hi);
        quant_encode(out + at, t, v, (int64_t) n);
    }
}

/* ---- skewed routes ----
 *
 * Residual column 0 is COLUMN for every token: embeddings have it, and no layer writes it, because row 0 of all
 * matrices that do is zero. The embeddings' other columns are much larger than what layers add, so that the norm
 * before a router divides by nearly the same number for every token and layer. */

static const float COLUMN = 80, EMBED = 20, DEVIATION = 0.02f;     /* EMBED: deviation of the embeddings; of weights */

typedef struct { float amount; int32_t dim, experts, used; } Skew;

static double bias_of_rank(const Skew *k, int32_t rank) { return k->amount / sqrt(sqrt(rank + 1.0)); }

/* rank[e]: which place expert e has in this layer, from 0 */
static void shuffle_ranks(int32_t *rank, int32_t n, int32_t layer)
{
    uint64_t state = 1000 + (uint64_t) layer;
    for (int32_t i = 0; i < n; i++) {
        int32_t j = (int32_t) (random_bits(&state) % (uint64_t) (i + 1));
        rank[i] = rank[j];
        rank[j] = i;
    }
}

/* Replaces the first value of a row; the others of its block are drawn anew. */
static void set_first(uint8_t *row, Type t, float first, float spread, uint64_t *state)
{
    enum { BLOCK_MAX = 256 };
    float v[BLOCK_MAX];
    int32_t n = type_info(t)->block;
    v[0] = first;
    for (int32_t i = 1; i < n; i++) v[i] = random_between(state, -spread, spread);
    quant_encode(row, t, v, n);
}

static bool writes_residual(const char *name)
{
    return strstr(name, "attn_output.weight") || strstr(name, "ssm_out.weight") || strstr(name, "ffn_down");
}

/* rows: n rows of tensor t, the first of which is row `at` of its stack */
static void skew_rows(uint8_t *rows, const Planned *t, int64_t at, int64_t n, const Skew *k, uint64_t *state)
{
    size_t bytes = type_row_bytes(t->type, t->ne[0]);
    int32_t layer = recipe_layer(t->name), rank[1024];
    bool embedding = strcmp(t->name, "token_embd.weight") == 0, router = strstr(t->name, "ffn_gate_inp.weight");
    if (strstr(t->name, "ffn_norm") || strstr(t->name, "post_attention_norm"))
        memcpy(rows, &(float) {1}, sizeof(float));
    if (writes_residual(t->name))
        for (int64_t r = 0; r < n; r++)
            if ((at + r) % t->ne[1] == 0) memset(rows + (size_t) r * bytes, 0, bytes);
    for (int64_t r = 0; r < n && embedding; r++)
        set_first(rows + (size_t) r * bytes, t->type, COLUMN, 1.73f * EMBED, state);
    if (!router) return;
    double square = (double) (EMBED * EMBED) + (double) (COLUMN * COLUMN) / k->dim;
    shuffle_ranks(rank, k->experts, layer);
    for (int64_t r = 0; r < n; r++) {
        float bias = (float) (bias_of_rank(k, rank[at + r]) * sqrt(square) / (double) COLUMN);
        memcpy(rows + (size_t) r * bytes, &bias, sizeof bias);
    }
}

/* Says what share of the calls the favourites take, by drawing routers' logits: the bias plus noise of the deviation
 * that weights of 0.02 give. */
static void report_skew(const Skew *k, const char *path)
{
    enum { ROWS = 4000 };
    double  noise = (double) DEVIATION * sqrt(k->dim), logit[1024], share[3] = {0};
    int32_t calls[1024] = {0};
    static const double part[3] = {0.03, 0.125, 0.25};
    uint64_t state = 1;
    for (int32_t row = 0; row < ROWS; row++) {
        for (int32_t e = 0; e < k->experts; e++) {
            double sum = 0;                                        /* of twelve uniforms: nearly normal */
            for (int32_t i = 0; i < 12; i++) sum += (double) random_between(&state, -0.5f, 0.5f);
            logit[e] = bias_of_rank(k, e) + noise * sum;
        }
        for (int32_t i = 0; i < k->used; i++) {
            int32_t best = 0;
            for (int32_t e = 1; e < k->experts; e++)
                if (logit[e] > logit[best]) best = e;
            logit[best] = -INFINITY;
            calls[best]++;
        }
    }
    for (int32_t p = 0; p < 3; p++) {
        int32_t n = (int32_t) lround(part[p] * k->experts);
        for (int32_t e = 0; e < n; e++) share[p] += 100.0 * calls[e] / ((double) ROWS * k->used);
    }
    fprintf(stderr, "skew %g, simulated: 3 %% of the experts take %.0f %% of the calls, 12.5 %% take %.0f %%, "
            "25 %% take %.0f %%; `ratoon experts %s` measures it\n", (double) k->amount, share[0], share[1], share[2],
            path);
}

/* Rows are written in pieces of whole rows. skew: NULL for none. */
static void write_weights(GgufWriter *w, const Plan *p, uint8_t *buffer, const Skew *skew)
{
    uint64_t state = 1, total = 0, done = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const Planned *t = &p->tensor[i];
        total += type_row_bytes(t->type, t->ne[0]) * (size_t) (t->ne[1] * t->ne[2]);
    }
    Progress progress;
    progress_start(&progress, "make_synthetic", total);
    for (int32_t i = 0; i < p->n; i++) {
        const Planned *t = &p->tensor[i];
        size_t  row = type_row_bytes(t->type, t->ne[0]);
        int64_t rows = t->ne[1] * t->ne[2], piece = BUFFER / (int64_t) row, n;
        float   gain = skew && strcmp(t->name, "token_embd.weight") == 0 ? EMBED / DEVIATION : 1;
        for (int64_t at = 0; at < rows; at += n) {
            n = rows - at < piece ? rows - at : piece;
            size_t bytes = (size_t) n * row;
            Spread spread = spread_of(t->name);
            spread.lo *= gain;
            spread.hi *= gain;
            if (type_info(t->type)->block > 1) random_blocks(buffer, bytes, t->type, gain, &state);
            else random_values(buffer, bytes, t->type, spread, &state);
            if (skew) skew_rows(buffer, t, at, n, skew, &state);
            gguf_write_data(w, buffer, bytes);
            done += bytes;
            progress_to(&progress, done);
        }
    }
    double seconds = progress_end(&progress);
    fprintf(stderr, "%d tensors, %.3f GB, %.1f s\n", p->n, (double) total / 1e9, seconds);
}

/* ---- the program ---- */

static void usage(FILE *out)
{
    fputs("Usage: make_synthetic SHAPE FILE [--type q4_k_m|q8_0|q6_k|f16|...] [--layers N] [--target-layers N] "
          "[--skew S] [--no-vocab]\nShapes:", out);
    for (int i = 0; i < N_SHAPES; i++) fprintf(out, " %s", shapes[i].name);
    fputs("\n--layers writes fewer layers; --target-layers says how many a drafter's target has when it has fewer.\n"
          "--skew makes some experts of a mixture favourites; 3.9: 3 % of 256 take a third of the calls.\n", out);
}

static bool number_of(int32_t *out, const char *s, int32_t min)
{
    char *end;
    long v = s ? strtol(s, &end, 10) : 0;
    if (!s || !*s || *end || v < min || v > LAYERS_MAX) return false;
    *out = (int32_t) v;
    return true;
}

static bool amount_of(float *out, const char *s)
{
    char *end;
    *out = s ? strtof(s, &end) : 0;
    return s && *s && !*end && *out > 0 && *out <= 100;
}

int main(int argc, char **argv)
{
    const Shape *shape = NULL;
    const Recipe *recipe = recipe_find("Q4_K_M");
    const char *path = NULL, *shape_name = NULL;
    int32_t layers = 0, target_layers = 0;
    float skew = 0;
    bool vocab = true, good = true;
    for (int i = 1; i < argc && good; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--help") == 0) {
            usage(stdout);
            return 0;
        }
        if (strcmp(argv[i], "--no-vocab") == 0) vocab = false;
        else if (strcmp(argv[i], "--type") == 0) good = next && (recipe = recipe_find(argv[++i])) != NULL;
        else if (strcmp(argv[i], "--layers") == 0) good = number_of(&layers, next, 1), i++;
        else if (strcmp(argv[i], "--target-layers") == 0) good = number_of(&target_layers, next, 4), i++;
        else if (strcmp(argv[i], "--skew") == 0) good = amount_of(&skew, next), i++;
        else if (argv[i][0] == '-') good = false;
        else if (!shape_name) shape_name = argv[i];
        else if (!path) path = argv[i];
        else good = false;
    }
    for (int i = 0; i < N_SHAPES && shape_name; i++) {
        if (strcmp(shapes[i].name, shape_name) == 0) shape = &shapes[i];
    }
    if (!good || !shape || !path || (skew > 0 && !shape->mixture)) {
        usage(stderr);
        return 2;
    }
    if (!layers) layers = shape->layers;
    if (!target_layers) target_layers = shape->target_layers;

    Error err = {0};
    GgufWriter *w;
    RecipeModel model = {.n_layer = layers, .tied = shape->tied, .grouped = shape->heads / shape->kv_heads >= 4};
    Plan plan = {.recipe = recipe, .model = model};
    Skew favourites = {.amount = skew, .dim = shape->dim};
    if (skew > 0) favourites.experts = shape->mixture->experts, favourites.used = shape->mixture->used;
    uint8_t *buffer = malloc(BUFFER);
    Status st = buffer && plan_model(&plan, shape) ? ST_OK : fail(&err, ST_MEMORY, "%s: no memory to plan it", path);
    if (st == ST_OK) st = gguf_write_open(&w, path, &err);
    if (st == ST_OK) {
        write_keys(w, shape, recipe, layers, target_layers);
        if (!vocab) write_text(w, "tokenizer.ggml.model", "no_vocab");
        else if (!write_vocab(w, shape->vocab))
            st = fail(&err, ST_MEMORY, "%s: no memory for a vocabulary of %d", path, shape->vocab->n);
        for (int32_t i = 0; i < plan.n; i++)
            gguf_write_tensor(w, plan.tensor[i].name, plan.tensor[i].type, plan.tensor[i].n_dims, plan.tensor[i].ne);
        if (st == ST_OK) write_weights(w, &plan, buffer, skew > 0 ? &favourites : NULL);
        Status closed = gguf_write_close(w, st == ST_OK, &err);
        if (st == ST_OK) st = closed;
    }
    if (st != ST_OK) fprintf(stderr, "make_synthetic: %s\n", err.text);
    else if (skew > 0) report_skew(&favourites, path);
    free(plan.tensor);
    free(buffer);
    return st == ST_OK ? 0 : 1;
}
