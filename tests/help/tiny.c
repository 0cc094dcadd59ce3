#include "tiny.h"

#include "blocks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- random numbers ---- */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t tiny_key(uint64_t seed, const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (unsigned char) *name) * 0x100000001b3u;
    return mix(h ^ mix(seed + 0x9e3779b97f4a7c15u));
}

uint64_t tiny_bits(uint64_t key, uint64_t i) { return mix(key + (i + 1) * 0x9e3779b97f4a7c15u); }

double tiny_uniform(uint64_t key, uint64_t i) { return (double) (tiny_bits(key, i) >> 32) * 0x1p-32; }

/* Twelve uniforms of variance 1/12 each sum to variance 1. The sum is an integer: no rounding, no library function. */
double tiny_normal(uint64_t key, uint64_t i)
{
    int64_t sum = 0;
    for (uint64_t j = 0; j < 3; j++) {
        uint64_t b = tiny_bits(key, 3 * i + j);
        sum += (int64_t) ((b & 0xffff) + (b >> 16 & 0xffff) + (b >> 32 & 0xffff) + (b >> 48));
    }
    return (double) (2 * sum - 12 * 65535) * 0x1p-17;
}

/* ---- tensors ---- */

TinyTensor *tiny_add(TinyList *list, TinyKind kind, Type type, uint64_t seed, const char *key_name, const char *name,
                     int64_t ne0, int64_t ne1)
{
    TinyTensor *t = &list->at[list->n++];
    *t = (TinyTensor) {.key = tiny_key(seed, key_name), .kind = kind, .scale = 1, .type = T_F32, .n_dims = ne1 ? 2 : 1,
                       .ne = {ne0, ne1 ? ne1 : 1, 1, 1}};
    snprintf(t->name, sizeof t->name, "%s", name);
    if (kind == TINY_IDS) t->type = T_I32;
    if (kind == TINY_MATRIX) t->type = ne0 % type_info(type)->block == 0 ? type : T_Q8_0;
    return t;
}

/* The effect of llama3 scaling on pair i (targets.md section 3), for a training length of 64, factor 8, low 1 and high
 * 4: short enough that a test's prompt reaches every branch. */
static double llama3_factor(double base, int64_t i, int64_t n_rot)
{
    double wavelength = 2 * 3.14159265358979323846 * pow(base, 2.0 * (double) i / (double) n_rot);
    if (wavelength < 64 / 4.0) return 1;
    if (wavelength > 64 / 1.0) return 8;
    double t = (64 / wavelength - 1) / (4 - 1);
    return 1 / ((1 - t) / 8 + t);
}

/* The random numbers of a row: those of two stacks if they are fused, so that both forms of a model are the same. */
static uint64_t key_of_row(const TinyTensor *t, int64_t *row)
{
    if (!t->second) return t->key;
    int64_t half = t->ne[1] / 2, plane = *row / t->ne[1], at = *row % t->ne[1];
    *row = plane * half + at % half;
    return at < half ? t->key : t->second;
}

/* Ascending, in another distance from the row each time. */
int32_t tiny_own_token(int32_t row) { return 2 * row + row % 2; }

static double factor_of(int64_t plane) { return ldexp(1, -1 - (int) (plane % 4)); }

void tiny_row(float *out, const TinyTensor *t, int64_t row)
{
    double scale = t->scale / sqrt((double) t->ne[0]) / (t->divided ? factor_of(row / t->ne[1]) : 1);
    uint64_t key = key_of_row(t, &row);
    row += t->row0;
    for (int64_t c = 0; c < t->ne[0]; c++) {
        uint64_t i = (uint64_t) (row * t->ne[0] + c);
        double   v = 0;
        switch (t->kind) {
        case TINY_MATRIX:    v = scale * tiny_normal(key, i); break;
        case TINY_NORM:      v = t->scale * (1 + 0.2 * tiny_normal(t->key, i)); break;
        case TINY_SMALL:     v = 0.1 * tiny_normal(t->key, i); break;
        case TINY_DT:        v = 0.5 * tiny_normal(t->key, i) - 2; break;
        case TINY_DECAY:     v = tiny_uniform(t->key, i), v = -(0.37 + 6.7 * v * v); break;
        case TINY_CONV:      v = 0.4 * tiny_normal(t->key, i); break;
        case TINY_CONV_BASE: v = 0.25 * tiny_normal(t->key, i) + (row % 2 == 0); break; /* rows: side, tap; tap 0 is the
                                                                                         * row itself */
        case TINY_IDS:       v = tiny_own_token((int32_t) c); break;
        case TINY_FACTORS:   v = factor_of(c); break;
        case TINY_QUARTER:   v = c < t->ne[0] / 4 ? 1 : 1e30; break;
        case TINY_FREQS:     v = llama3_factor(t->rope_base, c, 2 * t->ne[0]); break;
        }
        out[c] = (float) v;
    }
}

static bool from_grid(Type t) { return t >= T_IQ2_XXS && t <= T_IQ3_S; }

/* Random bits, with scales that make the values about as large as `row`'s. */
static void random_row(uint8_t *bytes, float *row, const TinyTensor *t, int64_t r)
{
    const TypeInfo *info = type_info(t->type);
    uint64_t key = key_of_row(t, &r);
    int at[2];
    block_halves(t->type, &at[0], &at[1]);
    for (int64_t b = 0; b < t->ne[0] / info->block; b++, bytes += info->bytes, row += info->block) {
        double want = 0, have = 0;
        uint16_t half = half_from_float(1);
        for (int32_t i = 0; i < info->bytes; i++)
            bytes[i] = (uint8_t) tiny_bits(key, (uint64_t) ((r * t->ne[0] / info->block + b) * info->bytes + i));
        for (int32_t i = 0; i < 2 && at[i] >= 0; i++) memcpy(bytes + at[i], &half, sizeof half);
        for (int32_t i = 0; i < info->block; i++) want += (double) row[i] * row[i];
        quant_decode(row, t->type, bytes, info->block);
        for (int32_t i = 0; i < info->block; i++) have += (double) row[i] * row[i];
        half = half_from_float((float) sqrt(want / have));
        for (int32_t i = 0; i < 2 && at[i] >= 0; i++) memcpy(bytes + at[i], &half, sizeof half);
    }
}

Status tiny_write_tensors(GgufWriter *w, const TinyList *list, Error *err)
{
    int64_t cols = 1;
    for (int32_t i = 0; i < list->n; i++) {
        const TinyTensor *t = &list->at[i];
        gguf_write_tensor(w, t->name, t->type, t->n_dims, t->ne);
        if (t->ne[0] > cols) cols = t->ne[0];
    }
    float *row = malloc((size_t) cols * sizeof *row);
    void  *bytes = malloc((size_t) cols * sizeof *row);
    Status status = row && bytes ? ST_OK : fail(err, ST_MEMORY, "tiny: no memory for a row of %lld", (long long) cols);
    for (int32_t i = 0; i < list->n && status == ST_OK; i++) {
        const TinyTensor *t = &list->at[i];
        for (int64_t r = 0; r < t->ne[1] * t->ne[2] && status == ST_OK; r++) {
            tiny_row(row, t, r);
            if (t->type == T_F32) gguf_write_data(w, row, (size_t) t->ne[0] * sizeof *row);
            else if (t->type == T_I32) {
                for (int64_t c = 0; c < t->ne[0]; c++) ((int32_t *) bytes)[c] = (int32_t) row[c];
                gguf_write_data(w, bytes, (size_t) t->ne[0] * sizeof(int32_t));
            }
            else {
                if (from_grid(t->type)) random_row(bytes, row, t, r);
                else quant_encode(bytes, t->type, row, t->ne[0]);
                gguf_write_data(w, bytes, type_row_bytes(t->type, t->ne[0]));
            }
        }
    }
    free(row);
    free(bytes);
    return status;
}

/* ---- tokenizer: 256 bytes, merges that spell words and then pairs and triples of letters, six specials at the end  */

static const char *const specials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "<think>",
                                       "</think>"};
enum { N_SPECIAL = 6, TOKEN_BYTES = 32, MERGE_BYTES = 40 };

int32_t tiny_eos(int32_t vocab)  { return vocab - N_SPECIAL + 2; }
int32_t tiny_mask(int32_t vocab) { return vocab - N_SPECIAL + 3; }

/* The printable stand-in of a byte in byte-level vocabularies, as UTF-8. */
static int32_t byte_text(char *out, int32_t byte)
{
    int32_t c = byte, spare = 0;
    for (int32_t b = 0; b <= byte; b++)
        if (b < 33 || (b > 126 && b < 161) || b == 173) {
            if (b == byte) c = 256 + spare;
            spare++;
        }
    if (c < 128) { out[0] = (char) c; out[1] = 0; return 1; }
    out[0] = (char) (0xc0 | c >> 6);
    out[1] = (char) (0x80 | (c & 63));
    out[2] = 0;
    return 2;
}

typedef struct {
    int32_t n, cap;
    char  (*token)[TOKEN_BYTES];
    int32_t n_merge;
    char  (*merge)[MERGE_BYTES];
} Vocab;

static bool vocab_has(const Vocab *v, const char *s)
{
    for (int32_t i = 0; i < v->n; i++)
        if (strcmp(v->token[i], s) == 0) return true;
    return false;
}

/* Adds tokens for all prefixes of text, each one character longer. */
static void vocab_spell(Vocab *v, const char *text)
{
    char so_far[TOKEN_BYTES], more[TOKEN_BYTES], next[4];
    byte_text(so_far, (unsigned char) text[0]);
    for (const char *c = text + 1; *c && v->n < v->cap; c++) {
        byte_text(next, (unsigned char) *c);
        snprintf(more, sizeof more, "%.27s%.3s", so_far, next);
        if (!vocab_has(v, more)) {
            snprintf(v->merge[v->n_merge++], sizeof *v->merge, "%s %s", so_far, next);
            snprintf(v->token[v->n++], sizeof *v->token, "%s", more);
        }
        memcpy(so_far, more, sizeof so_far);
    }
}

static void vocab_fill(Vocab *v)
{
    static const char *const words[] = {" the", " of", " and", " to", " in", " is", " a", " that", " it", " for", "ing",
                                        "ion", " def", " return", " self", "    ", "\n\n", "er", "ed", "es", "re", "on",
                                        "an", " if", " not", " print", "()", "):", "==", "\"\"", "user", "assistant",
                                        "system"};
    for (int32_t b = 0; b < 256; b++) byte_text(v->token[v->n++], b);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) vocab_spell(v, words[i]);
    char text[4] = {0};
    for (int32_t i = 0; i < 26 * 26 && v->n < v->cap; i++) {
        text[0] = (char) ('a' + i / 26), text[1] = (char) ('a' + i % 26);
        vocab_spell(v, text);
    }
    for (int32_t i = 0; i < 26 * 26 * 26 && v->n < v->cap; i++) {
        text[0] = (char) ('a' + i / 676), text[1] = (char) ('a' + i / 26 % 26), text[2] = (char) ('a' + i % 26);
        vocab_spell(v, text);
    }
    for (int32_t i = 0; v->n < v->cap; i++)        /* no merge leads here: vocabularies have unused entries */
        snprintf(v->token[v->n++], sizeof *v->token, "[unused%d]", i);
}

void tiny_write_tokenizer(GgufWriter *w, const char *pre, int32_t vocab, bool add_bos, bool mask)
{
    static const char chat[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                               "{% endfor %}"
                               "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    size_t   n = (size_t) vocab;
    Vocab    v = {.cap = vocab - N_SPECIAL, .token = calloc(n, TOKEN_BYTES), .merge = calloc(n, MERGE_BYTES)};
    const char **text = malloc(n * sizeof *text);
    size_t  *length = malloc(n * sizeof *length);
    int32_t *type = malloc(n * sizeof *type);
    if (vocab < TINY_TOKENIZER_VOCAB || !v.token || !v.merge || !text || !length || !type) {
        gguf_write_str(w, "tokenizer.ggml.model", "no_vocab", 8);
        if (mask) gguf_write_u32(w, "tokenizer.ggml.mask_token_id", (uint32_t) tiny_mask(vocab));
        goto out;
    }
    vocab_fill(&v);
    for (int32_t i = 0; i < vocab; i++) {
        bool special = i >= v.n;
        text[i] = special ? specials[i - v.n] : v.token[i];
        length[i] = strlen(text[i]);
        type[i] = !special ? (text[i][0] == '[' && text[i][1] ? 5 : 1) : specials[i - v.n][1] == '|' ? 3 : 4;
    }
    gguf_write_str(w, "tokenizer.ggml.model", "gpt2", 4);
    gguf_write_str(w, "tokenizer.ggml.pre", pre, strlen(pre));
    gguf_write_strs(w, "tokenizer.ggml.tokens", text, length, n);
    gguf_write_i32s(w, "tokenizer.ggml.token_type", type, n);
    for (int32_t i = 0; i < v.n_merge; i++) text[i] = v.merge[i], length[i] = strlen(v.merge[i]);
    gguf_write_strs(w, "tokenizer.ggml.merges", text, length, (size_t) v.n_merge);
    gguf_write_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t) tiny_eos(vocab));
    gguf_write_u32(w, "tokenizer.ggml.padding_token_id", (uint32_t) (vocab - N_SPECIAL));
    if (add_bos) gguf_write_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t) (vocab - N_SPECIAL));
    gguf_write_bool(w, "tokenizer.ggml.add_bos_token", add_bos);
    if (mask) gguf_write_u32(w, "tokenizer.ggml.mask_token_id", (uint32_t) tiny_mask(vocab));
    gguf_write_str(w, "tokenizer.chat_template", chat, sizeof chat - 1);
out:
    free(v.token);
    free(v.merge);
    free(text);
    free(length);
    free(type);
}

/* ---- targets ---- */

static bool is_hybrid(TinyFamily f) { return f == TINY_QWEN35 || f == TINY_QWEN35MOE; }
static bool is_gemma(TinyFamily f) { return f == TINY_GEMMA4 || f == TINY_GEMMA4MOE || f == TINY_DIFFUSION; }

TinyModel tiny_model(TinyFamily family)
{
    TinyModel m = {.family = family, .seed = 1, .n_layer = is_hybrid(family) ? 4 : 3, .hidden = 64, .ff = 96,
                   .vocab = 96, .context = 4096, .n_head = 4, .n_head_kv = 2, .head_dim = 32, .n_rot = 32,
                   .rope_base = 1e4f, .eps = 1e-6f, .type = T_F32, .type_embd = T_F32, .type_head = T_F32};
    if (family == TINY_LLAMA) m.head_dim = m.n_rot = 16, m.eps = 1e-5f;
    if (is_hybrid(family)) m.n_rot = 8, m.k_heads = 2, m.v_heads = 4, m.state = 32, m.interval = 4;
    if (family >= TINY_QWEN3MOE) m.n_expert = 8, m.n_used = 2, m.ff_expert = 32;
    if (family == TINY_QWEN35MOE || family == TINY_LAGUNA) m.ff_shared = 64;
    if (family == TINY_LAGUNA) m.n_layer = 5, m.n_rot = 16, m.n_dense = 1, m.window = 24;
    if (is_gemma(family)) m.n_layer = 4, m.interval = 2, m.full_dim = 128, m.window = 24, m.tied = true;
    if (family == TINY_DIFFUSION) m.canvas = 32;
    return m;
}

static TinyModel model_256(TinyFamily family)
{
    TinyModel m = tiny_model(family);
    m.hidden = 256, m.ff = 512, m.vocab = 512, m.n_layer = 4;
    if (family == TINY_LLAMA) m.head_dim = m.n_rot = 64, m.rope_base = 5e5f, m.add_bos = true;
    if (family == TINY_QWEN3 || family == TINY_QWEN3MOE) m.head_dim = m.n_rot = 128, m.rope_base = 1e6f;
    if (is_hybrid(family)) m.head_dim = 256, m.n_rot = 64, m.rope_base = 1e7f, m.state = 128;
    if (m.n_expert) m.ff_expert = 256;
    if (m.ff_shared) m.ff_shared = 256;
    if (family == TINY_LAGUNA)
        m.n_layer = 6, m.head_dim = 128, m.n_rot = 64, m.rope_base = 5e5f, m.window = 20, m.n_expert = 24, m.n_used = 4,
            m.ff_expert = 64;
    if (is_gemma(family)) m.n_layer = 6, m.interval = 3, m.head_dim = m.n_rot = 256, m.full_dim = 512, m.window = 20;
    if (family == TINY_GEMMA4MOE || family == TINY_DIFFUSION) m.n_expert = 24, m.n_used = 4, m.ff_expert = 96;
    return m;
}

/* For types with blocks of 256, and small beyond that: tests make one per type. */
static TinyModel model_blocks(TinyModel m, bool all)
{
    m.vocab = 96, m.n_layer = m.family == TINY_LAGUNA ? 3 : 2, m.interval = 2, m.ff = m.ff_expert = 256;
    m.head_dim = 128;
    if (is_hybrid(m.family)) m.n_rot = 32;
    m.n_expert = all ? 3 : 8, m.n_used = all ? 3 : 2;
    return m;
}

const char *const tiny_names[] = {"llama", "llama-tied", "qwen3", "qwen3-tied", "qwen35", "qwen35-r1", "qwen35-r3",
                                  "qwen35-mtp", "qwen35-ollama", "qwen35-grouped", "small-llama", "small-qwen3",
                                  "small-qwen35", "small-qwen35-r3", "qwen3moe", "qwen3moe-16", "qwen35moe",
                                  "qwen35moe-fused", "qwen35moe-mtp", "small-qwen3moe", "small-qwen35moe",
                                  "small-qwen35moe-fused", "laguna", "laguna-each", "small-laguna",
                                  "small-laguna-each", "gemma4", "gemma4-values", "gemma4moe", "gemma4moe-fused",
                                  "small-gemma4", "small-gemma4moe", "small-gemma4moe-fused", "qwen3moe-all",
                                  "qwen35moe-all", "laguna-all", "qwen3moe-two", "qwen35moe-two", "laguna-two",
                                  "diffusion", "diffusion-fused", "small-diffusion", "small-diffusion-256", NULL};

bool tiny_model_named(TinyModel *out, const char *name)
{
    bool    is35 = strstr(name, "qwen35") != NULL, moe = strstr(name, "moe") != NULL;
    TinyFamily f = is35 ? TINY_QWEN35 : strstr(name, "qwen3") ? TINY_QWEN3 : TINY_LLAMA;
    if (moe) f = is35 ? TINY_QWEN35MOE : TINY_QWEN3MOE;
    if (strstr(name, "laguna")) f = TINY_LAGUNA;
    if (strstr(name, "gemma4")) f = moe ? TINY_GEMMA4MOE : TINY_GEMMA4;
    if (strstr(name, "diffusion")) f = TINY_DIFFUSION;
    bool   known = false;
    for (int32_t i = 0; tiny_names[i]; i++) known |= strcmp(name, tiny_names[i]) == 0;
    if (!known) return false;
    TinyModel m = strncmp(name, "small-", 6) == 0 ? tiny_model(f) : model_256(f);
    if (strcmp(name, "llama") == 0) m.rope_freqs = true;
    if (strcmp(name, "llama-tied") == 0) m.tied = m.bias = true;
    if (strcmp(name, "qwen3") == 0) m.vocab = 2048;
    if (strcmp(name, "qwen3-tied") == 0) m.tied = true;
    if (strcmp(name, "qwen35") == 0) m.tied = true, m.n_layer = 8;
    if (strcmp(name, "qwen35-r1") == 0) m.v_heads = 2;
    if (strcmp(name, "small-qwen3moe") == 0) m.seed = 3;      /* seed 1 has rows whose second and third expert tie */
    if (strstr(name, "small-gemma4moe")) m.seed = 2;          /* so with seed 1 */
    if (strcmp(name, "qwen3moe-16") == 0) m.n_expert = 16, m.n_used = 4, m.ff_expert = 96;
    if (f == TINY_QWEN35 &&
        (strstr(name, "-r3") || strstr(name, "-mtp") || strstr(name, "-ollama") || strstr(name, "-grouped")))
        m.v_heads = 6;
    /* All use the same trunk: r3, mtp and ollama share their expectations. */
    if (m.hidden == 256 && m.v_heads == 6 && !strstr(name, "-grouped")) m.n_layer = 8, m.vocab = 2048;
    if (f == TINY_QWEN35MOE && m.hidden == 256) m.v_heads = 6;
    m.fused_experts = m.n_expert && strstr(name, "-fused");
    if (strstr(name, "-256")) m.canvas = 256;
    if (strstr(name, "-values")) m.own_values = true, m.tied = false;
    if (strstr(name, "-mtp")) m.n_mtp = 1;
    if (strstr(name, "-ollama")) m.style = TINY_OLLAMA;
    if (strstr(name, "-grouped")) m.style = TINY_GROUPED;
    if (strstr(name, "-each")) m.gate_each = true, m.window = 0, m.n_rot = m.head_dim, m.n_dense = 2;
    if (strstr(name, "-all") || strstr(name, "-two")) m = model_blocks(m, strstr(name, "-all") != NULL);
    *out = m;
    return true;
}

bool tiny_model_types(TinyModel *m, const char *name)
{
    Type t;
    if (!type_from_name(&t, name)) return (m->recipe = recipe_find(name)) != NULL;
    m->type = m->type_embd = m->type_head = t;
    return type_info(t)->weight;
}

typedef struct { const TinyModel *m; TinyList *list; int32_t layer; } TinyBlock;

static TinyTensor *block_add(const TinyBlock *b, TinyKind kind, const char *suffix, int64_t ne0, int64_t ne1)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", b->layer, suffix);
    return tiny_add(b->list, kind, b->m->type, b->m->seed, name, name, ne0, ne1);
}

static int32_t heads_of(const TinyModel *m, int32_t layer)
{
    return m->n_head + (m->family == TINY_LAGUNA && m->window && layer % 4 ? m->n_head_kv : 0);
}

/* gemma4 */
static bool is_full(const TinyModel *m, int32_t layer) { return is_gemma(m->family) && (layer + 1) % m->interval == 0; }

static int32_t kv_heads_of(const TinyModel *m, int32_t layer)
{
    return is_full(m, layer) && !m->own_values ? 1 : m->n_head_kv;
}

/* gate: 2 where the query projection carries a gate per head (qwen35), else 1. */
static void add_attention(const TinyBlock *b, int32_t gate)
{
    const TinyModel *m = b->m;
    int32_t heads = heads_of(m, b->layer);
    int64_t width = is_full(m, b->layer) ? m->full_dim : m->head_dim;
    int64_t d = m->hidden, q = heads * width, kv = kv_heads_of(m, b->layer) * width;
    block_add(b, TINY_MATRIX, "attn_q.weight", d, gate * q);
    block_add(b, TINY_MATRIX, "attn_k.weight", d, kv);
    if (!is_full(m, b->layer) || m->own_values) block_add(b, TINY_MATRIX, "attn_v.weight", d, kv);
    block_add(b, TINY_MATRIX, "attn_output.weight", q, d);
    if (m->family != TINY_LLAMA) {
        /* gemma4 has no other scale of scores */
        const double scale = is_gemma(m->family) ? 1.2 / sqrt(sqrt((double) width)) : 1;
        block_add(b, TINY_NORM, "attn_q_norm.weight", width, 0)->scale = scale;
        block_add(b, TINY_NORM, "attn_k_norm.weight", width, 0)->scale = scale;
    }
    if (is_gemma(m->family)) block_add(b, TINY_NORM, "post_attention_norm.weight", d, 0);
    /* wide enough that some gates are above 20, where softplus is another branch */
    if (m->family == TINY_LAGUNA)
        block_add(b, TINY_MATRIX, "attn_gate.weight", d, m->gate_each ? q : heads)->scale = 6;
    if (!m->bias) return;
    block_add(b, TINY_SMALL, "attn_q.bias", q, 0);
    block_add(b, TINY_SMALL, "attn_k.bias", kv, 0);
    block_add(b, TINY_SMALL, "attn_v.bias", kv, 0);
    block_add(b, TINY_SMALL, "attn_output.bias", d, 0);
}

static void add_delta(const TinyBlock *b)
{
    const TinyModel *m = b->m;
    int64_t d = m->hidden, k = (int64_t) m->k_heads * m->state, v = (int64_t) m->v_heads * m->state,
            channels = 2 * k + v;
    block_add(b, TINY_MATRIX, "attn_qkv.weight", d, channels);
    block_add(b, TINY_MATRIX, "attn_gate.weight", d, v);
    block_add(b, TINY_MATRIX, "ssm_beta.weight", d, m->v_heads);
    block_add(b, TINY_MATRIX, "ssm_alpha.weight", d, m->v_heads);
    block_add(b, TINY_CONV, "ssm_conv1d.weight", 4, channels);
    TinyTensor *dt = block_add(b, TINY_DT, "ssm_dt.bias", m->v_heads, 0);
    if (m->style == TINY_OLLAMA) *strrchr(dt->name, '.') = 0;      /* the numbers stay those of ssm_dt.bias */
    block_add(b, TINY_DECAY, "ssm_a", m->v_heads, 0);
    block_add(b, TINY_NORM, "ssm_norm.weight", m->state, 0);
    block_add(b, TINY_MATRIX, "ssm_out.weight", v, d);
}

static TinyTensor *add_stack(const TinyBlock *b, const char *suffix, int64_t ne0, int64_t ne1)
{
    TinyTensor *t = block_add(b, TINY_MATRIX, suffix, ne0, ne1);
    t->n_dims = 3;
    t->ne[2] = b->m->n_expert;
    return t;
}

/* The router's logits have a deviation of 2, so that the weights of a row differ. */
static void add_experts(const TinyBlock *b)
{
    const TinyModel *m = b->m;
    int64_t d = m->hidden, f = m->ff_expert;
    TinyTensor *router = block_add(b, TINY_MATRIX, "ffn_gate_inp.weight", d, m->n_expert);
    router->scale = is_gemma(m->family) ? 2 * sqrt((double) d) : 2;    /* gemma4 divides by that root */
    router->type = T_F32;
    if (m->family == TINY_LAGUNA) block_add(b, TINY_SMALL, "exp_probs_b.bias", m->n_expert, 0);
    if (m->fused_experts) {
        char gate[64], up[64];
        snprintf(gate, sizeof gate, "blk.%d.ffn_gate_exps.weight", b->layer);
        snprintf(up, sizeof up, "blk.%d.ffn_up_exps.weight", b->layer);
        TinyTensor *both = add_stack(b, "ffn_gate_up_exps.weight", d, 2 * f);
        both->key = tiny_key(m->seed, gate);
        both->second = tiny_key(m->seed, up);
    } else {
        add_stack(b, "ffn_gate_exps.weight", d, f);
        add_stack(b, "ffn_up_exps.weight", d, f);
    }
    TinyTensor *down = add_stack(b, "ffn_down_exps.weight", f, d);
    if (m->type_down != T_F32 && b->layer % 2) down->type = m->type_down;
    if (!m->ff_shared) return;
    if (m->family != TINY_LAGUNA) block_add(b, TINY_MATRIX, "ffn_gate_inp_shexp.weight", d, 0)->type = T_F32;
    block_add(b, TINY_MATRIX, "ffn_gate_shexp.weight", d, m->ff_shared);
    block_add(b, TINY_MATRIX, "ffn_up_shexp.weight", d, m->ff_shared);
    block_add(b, TINY_MATRIX, "ffn_down_shexp.weight", m->ff_shared, d);
}

/* What gemma4 has besides the matrices. */
static void add_gemma_ffn(const TinyBlock *b)
{
    const TinyModel *m = b->m;
    const int64_t d = m->hidden;
    block_add(b, TINY_NORM, "post_ffw_norm.weight", d, 0);
    if (!m->own_values) block_add(b, TINY_NORM, "layer_output_scale.weight", 1, 0);
    if (m->canvas) block_add(b, TINY_NORM, "enc_layer_output_scale.weight", 1, 0);
    if (!m->n_expert) return;
    block_add(b, TINY_NORM, "ffn_gate_inp.scale", d, 0);
    block_add(b, TINY_NORM, "pre_ffw_norm_2.weight", d, 0);
    block_add(b, TINY_NORM, "post_ffw_norm_1.weight", d, 0);
    block_add(b, TINY_NORM, "post_ffw_norm_2.weight", d, 0);
    block_add(b, TINY_NORM, "ffn_down_exps.scale", m->n_expert, 0);
}

static void add_ffn(const TinyBlock *b)
{
    const TinyModel *m = b->m;
    block_add(b, TINY_NORM, is_hybrid(m->family) ? "post_attention_norm.weight" : "ffn_norm.weight", m->hidden, 0);
    if (m->n_expert && b->layer >= m->n_dense) add_experts(b);
    if (is_gemma(m->family)) add_gemma_ffn(b);
    else if (m->n_expert && b->layer >= m->n_dense) return;
    block_add(b, TINY_MATRIX, "ffn_gate.weight", m->hidden, m->ff);
    block_add(b, TINY_MATRIX, "ffn_up.weight", m->hidden, m->ff);
    block_add(b, TINY_MATRIX, "ffn_down.weight", m->ff, m->hidden);
    if (!m->ffn_bias) return;
    block_add(b, TINY_SMALL, "ffn_gate.bias", m->ff, 0);
    block_add(b, TINY_SMALL, "ffn_up.bias", m->ff, 0);
    block_add(b, TINY_SMALL, "ffn_down.bias", m->hidden, 0);
}

static bool is_attention(const TinyModel *m, int32_t layer)
{
    return !is_hybrid(m->family) || layer >= m->n_layer || (layer + 1) % m->interval == 0;
}

static void add_conditioning(TinyList *list, const TinyModel *m)
{
    static const char *const names[] = {"self_cond_gate.weight", "self_cond_up.weight", "self_cond_down.weight"};
    tiny_add(list, TINY_NORM, T_F32, m->seed, "self_cond_pre_norm.weight", "self_cond_pre_norm.weight", m->hidden, 0);
    for (int32_t i = 0; i < 3; i++)
        tiny_add(list, TINY_MATRIX, m->type, m->seed, names[i], names[i], i < 2 ? m->hidden : m->ff,
                 i < 2 ? m->ff : m->hidden)->scale = 1;
}

static void model_tensors(TinyList *list, const TinyModel *m)
{
    TinyTensor *embd = tiny_add(list, TINY_MATRIX, m->type_embd, m->seed, "token_embd.weight", "token_embd.weight",
                                m->hidden, m->vocab);
    /* surer than others: what entropies decide shall not hang on the last digits */
    embd->scale = m->canvas ? 5 : m->tied || is_gemma(m->family) ? 2 : sqrt((double) m->hidden);
    tiny_add(list, TINY_NORM, T_F32, m->seed, "output_norm.weight", "output_norm.weight", m->hidden, 0);
    if (!m->tied)
        tiny_add(list, TINY_MATRIX, m->type_head, m->seed, "output.weight", "output.weight", m->hidden,
                 m->vocab)->scale = 2;
    if (m->rope_freqs)
        tiny_add(list, TINY_FREQS, T_F32, m->seed, "rope_freqs.weight", "rope_freqs.weight", m->n_rot / 2,
                 0)->rope_base = m->rope_base;
    if (is_gemma(m->family))
        tiny_add(list, TINY_QUARTER, T_F32, m->seed, "rope_freqs.weight", "rope_freqs.weight", m->full_dim / 2, 0);
    if (m->canvas) add_conditioning(list, m);
    for (int32_t i = 0; i < m->n_layer + m->n_mtp; i++) {
        TinyBlock b = {m, list, i};
        block_add(&b, TINY_NORM, "attn_norm.weight", m->hidden, 0);
        if (is_attention(m, i)) add_attention(&b, is_hybrid(m->family) ? 2 : 1);
        else add_delta(&b);
        add_ffn(&b);
        if (i < m->n_layer) continue;
        block_add(&b, TINY_MATRIX, "nextn.eh_proj.weight", 2 * (int64_t) m->hidden, m->hidden);
        block_add(&b, TINY_NORM, "nextn.enorm.weight", m->hidden, 0);
        block_add(&b, TINY_NORM, "nextn.hnorm.weight", m->hidden, 0);
        block_add(&b, TINY_NORM, "nextn.shared_head_norm.weight", m->hidden, 0);
    }
    if (m->style == TINY_OLLAMA) {                 /* an image encoder's tensors, which a text model ignores */
        tiny_add(list, TINY_MATRIX, T_F32, m->seed, "v.patch", "v.patch_embed.weight", 48, 32);
        tiny_add(list, TINY_SMALL, T_F32, m->seed, "mm.bias", "mm.0.bias", 32, 0);
    }
    const RecipeModel of = {.n_layer = m->n_layer, .tied = m->tied, .grouped = m->n_head >= 4 * m->n_head_kv};
    for (int32_t i = 0; m->recipe && i < list->n; i++) {
        TinyTensor *t = &list->at[i];
        t->type = recipe_type(m->recipe, &of, t->name, t->n_dims, t->ne);
    }
}

static const char *key(char out[96], const char *arch, const char *name)
{
    snprintf(out, 96, "%s.%s", arch, name);
    return out;
}

/* Full layers: yarn, factor 4 from 64 positions. Those with a window: all of the head, base 1e4. */
static void laguna_keys(GgufWriter *w, const TinyModel *m)
{
    gguf_write_u32(w, "laguna.leading_dense_block_count", (uint32_t) m->n_dense);
    gguf_write_bool(w, "laguna.expert_weights_norm", true);
    gguf_write_f32(w, "laguna.expert_weights_scale", m->gate_each ? 1.0f : 2.5f);
    gguf_write_u32(w, "laguna.rope.dimension_count", (uint32_t) m->n_rot);
    gguf_write_str(w, "laguna.rope.scaling.type", "yarn", 4);
    gguf_write_f32(w, "laguna.rope.scaling.factor", 4);
    gguf_write_u32(w, "laguna.rope.scaling.original_context_length", 64);
    if (m->window) {
        gguf_write_u32(w, "laguna.attention.sliding_window", (uint32_t) m->window);
        gguf_write_u32(w, "laguna.rope.dimension_count_swa", (uint32_t) m->head_dim);
        gguf_write_f32(w, "laguna.rope.freq_base_swa", 1e4f);
    }
    if (!m->gate_each) return;
    gguf_write_u32(w, "laguna.expert_gating_func", 2);
    gguf_write_u32(w, "laguna.expert_shared_count", 1);
    gguf_write_f32(w, "laguna.rope.scaling.yarn_beta_fast", 16);
    gguf_write_f32(w, "laguna.rope.scaling.yarn_beta_slow", 2);
    gguf_write_f32(w, "laguna.rope.scaling.yarn_attn_factor", 1.1386294f);
}

static void gemma_keys(GgufWriter *w, const TinyModel *m, const char *a)
{
    char k[96];
    int32_t heads[256] = {0};
    bool near[256] = {false};
    for (int32_t i = 0; i < m->n_layer && i < 256; i++) heads[i] = kv_heads_of(m, i), near[i] = !is_full(m, i);
    gguf_write_i32s(w, key(k, a, "attention.head_count_kv"), heads, (size_t) m->n_layer);
    gguf_write_bools(w, key(k, a, "attention.sliding_window_pattern"), near, (size_t) m->n_layer);
    gguf_write_u32(w, key(k, a, "attention.sliding_window"), (uint32_t) m->window);
    gguf_write_u32(w, key(k, a, "attention.key_length"), (uint32_t) m->full_dim);
    gguf_write_u32(w, key(k, a, "attention.value_length"), (uint32_t) m->full_dim);
    gguf_write_u32(w, key(k, a, "attention.key_length_swa"), (uint32_t) m->head_dim);
    gguf_write_f32(w, key(k, a, "rope.freq_base_swa"), 1e4f);
    if (m->own_values) return;
    gguf_write_u32(w, key(k, a, "attention.value_length_swa"), (uint32_t) m->head_dim);
    gguf_write_u32(w, key(k, a, "rope.dimension_count"), (uint32_t) m->full_dim);
    gguf_write_u32(w, key(k, a, "rope.dimension_count_swa"), (uint32_t) m->head_dim);
    gguf_write_u32(w, key(k, a, "attention.shared_kv_layers"), 0);
    gguf_write_u32(w, key(k, a, "embedding_length_per_layer_input"), 0);
    gguf_write_f32(w, key(k, a, "final_logit_softcapping"), m->canvas ? 30 : 8);
    if (!m->canvas) return;
    gguf_write_u32(w, "diffusion.canvas_length", (uint32_t) m->canvas);
    gguf_write_u32(w, "diffusion.eb_max_steps", 12);
    gguf_write_f32(w, "diffusion.eb_entropy_bound", 2);
    gguf_write_f32(w, "diffusion.eb_confidence_threshold", 0.4f);
}

static void model_keys(GgufWriter *w, const TinyModel *m)
{
    static const char *const archs[] = {"llama", "qwen3", "qwen35", "gemma4", "qwen3moe", "qwen35moe", "laguna",
                                        "gemma4", "diffusion-gemma"};
    static const char *const pres[] = {"llama-bpe", "qwen2", "qwen35", "qwen2", "qwen2", "qwen35", "laguna", "qwen2",
                                        "qwen2"};
    const char *a = archs[m->family];
    char k[96];
    gguf_write_str(w, "general.architecture", a, strlen(a));
    gguf_write_str(w, "general.name", "tiny", 4);
    gguf_write_u32(w, key(k, a, "block_count"), (uint32_t) (m->n_layer + m->n_mtp));
    gguf_write_u32(w, key(k, a, "context_length"), (uint32_t) m->context);
    gguf_write_u32(w, key(k, a, "embedding_length"), (uint32_t) m->hidden);
    if (m->family != TINY_QWEN35MOE) gguf_write_u32(w, key(k, a, "feed_forward_length"), (uint32_t) m->ff);
    gguf_write_u32(w, key(k, a, "vocab_size"), (uint32_t) m->vocab);
    if (m->family == TINY_LAGUNA && m->window) {
        int32_t heads[256] = {0};
        for (int32_t i = 0; i < m->n_layer && i < 256; i++) heads[i] = heads_of(m, i);
        gguf_write_i32s(w, key(k, a, "attention.head_count"), heads, (size_t) m->n_layer);
    } else gguf_write_u32(w, key(k, a, "attention.head_count"), (uint32_t) m->n_head);
    if (is_gemma(m->family)) gemma_keys(w, m, a);
    else if (m->style == TINY_OLLAMA) {
        int32_t heads[256] = {0};
        for (int32_t i = 0; i < m->n_layer + m->n_mtp && i < 256; i++) heads[i] = is_attention(m, i) ? m->n_head_kv : 0;
        gguf_write_i32s(w, key(k, a, "attention.head_count_kv"), heads, (size_t) (m->n_layer + m->n_mtp));
    } else gguf_write_u32(w, key(k, a, "attention.head_count_kv"), (uint32_t) m->n_head_kv);
    if (!is_gemma(m->family)) {
        gguf_write_u32(w, key(k, a, "attention.key_length"), (uint32_t) m->head_dim);
        gguf_write_u32(w, key(k, a, "attention.value_length"), (uint32_t) m->head_dim);
    }
    gguf_write_f32(w, key(k, a, "attention.layer_norm_rms_epsilon"), m->eps);
    gguf_write_f32(w, key(k, a, "rope.freq_base"), m->rope_base);
    if (m->family == TINY_LLAMA || is_hybrid(m->family))
        gguf_write_u32(w, key(k, a, "rope.dimension_count"), (uint32_t) m->n_rot);
    if (m->n_expert) {
        gguf_write_u32(w, key(k, a, "expert_count"), (uint32_t) m->n_expert);
        gguf_write_u32(w, key(k, a, "expert_used_count"), (uint32_t) m->n_used);
        gguf_write_u32(w, key(k, a, "expert_feed_forward_length"), (uint32_t) m->ff_expert);
    }
    if (m->ff_shared) gguf_write_u32(w, key(k, a, "expert_shared_feed_forward_length"), (uint32_t) m->ff_shared);
    if (is_hybrid(m->family)) {
        int32_t pairs = m->n_rot / 2, sections[4] = {(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0};
        gguf_write_i32s(w, key(k, a, "rope.dimension_sections"), sections, m->style == TINY_OLLAMA ? 3 : 4);
        gguf_write_u32(w, key(k, a, "ssm.conv_kernel"), 4);
        gguf_write_u32(w, key(k, a, "ssm.state_size"), (uint32_t) m->state);
        gguf_write_u32(w, key(k, a, "ssm.group_count"), (uint32_t) m->k_heads);
        gguf_write_u32(w, key(k, a, "ssm.time_step_rank"), (uint32_t) m->v_heads);
        gguf_write_u32(w, key(k, a, "ssm.inner_size"), (uint32_t) (m->v_heads * m->state));
        gguf_write_u32(w, key(k, a, "full_attention_interval"), (uint32_t) m->interval);
        if (m->n_mtp) gguf_write_u32(w, key(k, a, "nextn_predict_layers"), (uint32_t) m->n_mtp);
        if (m->style != TINY_PLAIN) gguf_write_bool(w, key(k, a, "ssm.v_head_reordered"), m->style != TINY_GROUPED);
        if (m->style == TINY_OLLAMA) gguf_write_bool(w, key(k, a, "rope.mrope_interleaved"), true);
    }
    if (m->family == TINY_LAGUNA) laguna_keys(w, m);
    tiny_write_tokenizer(w, pres[m->family], m->vocab, m->add_bos, false);
}

/* Those of Gemma have scales of their own meaning beside the router and the stack of down. */
static void add_factors(TinyList *list, const TinyModel *m)
{
    for (int32_t i = 0, n = list->n; i < n; i++) {
        TinyTensor *t = &list->at[i];
        const char *end = strstr(t->name, ".weight");
        char name[80];
        const bool own = is_gemma(m->family) && (strstr(t->name, "ffn_gate_inp") || strstr(t->name, "ffn_down_exps"));
        if (t->kind != TINY_MATRIX || !end || own || (strncmp(t->name, "blk.", 4) && strncmp(t->name, "self_cond", 9)))
            continue;
        t->divided = true;
        snprintf(name, sizeof name, i % 2 ? "%.*s.scale" : "%.*s.weight.scale", (int) (end - t->name), t->name);
        tiny_add(list, TINY_FACTORS, T_F32, m->seed, name, name, t->ne[2], 0);
    }
}

Status tiny_model_write(const TinyModel *m, const char *path, Error *err)
{
    enum { OF_LAYER = 40 };
    if (m->n_layer < 1 || (m->n_layer + m->n_mtp) * OF_LAYER + 8 > TINY_TENSORS_MAX)
        return fail(err, ST_ARG, "tiny: %d layers, expected 1 to %d", m->n_layer, TINY_TENSORS_MAX / OF_LAYER - 1);
    TinyList list = {.at = calloc(TINY_TENSORS_MAX, sizeof *list.at)};
    if (!list.at) return fail(err, ST_MEMORY, "tiny: no memory for the tensor list");
    GgufWriter *w;
    Status status = gguf_write_open(&w, path, err);
    if (status == ST_OK) {
        model_keys(w, m);
        model_tensors(&list, m);
        if (m->factors) add_factors(&list, m);
        status = tiny_write_tensors(w, &list, err);
        Status closed = gguf_write_close(w, status == ST_OK, status == ST_OK ? err : NULL);
        if (status == ST_OK) status = closed;
    }
    free(list.at);
    return status;
}
