/* Files that are well-formed and wrong: a tiny model or drafter is copied with one change to a key, a tensor or a line
 * of its config, and opening it must fail at once with the right code and one line that names the file and what is
 * wrong in it. Odd but valid files open. */
#include "base/mathd.h"
#include "model_helper.h"
#include "remove_tree.h"

#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef enum { AS_IS, KEY_DROP, KEY_U32, KEY_F32, KEY_STR, KEY_BOOL, KEY_I32S, KEY_BOOLS, KEY_STRS, TENSOR_DROP,
               TENSOR_ADD, TENSOR_TURN, TENSOR_SHORT, TENSOR_I32, TENSOR_NAN, TENSOR_ZERO, CONFIG, HEADER } What;
typedef enum { LLAMA, QWEN3, QWEN35, LAGUNA, QWEN3MOE, QWEN35MOE, GEMMA4, GEMMA4MOE, DIFFUSION, DRAFT_C,
               DRAFT_B, DRAFT_HF, DRAFT2_C, DRAFT2_HF, LAGUNA_B, LAGUNA_HF, DSPARK_B, DSPARK_C, DSPARK_HF,
               LIBRARY_C, LIBRARY_HF } Base;

/* One change, of key or tensor `name`; number and text hold the new value, list the values of an array. In a config, or
 * in the header of a folder's tensors, the text `name` becomes `text`. */
typedef struct { What what; const char *name; double number; const char *text; const int32_t *list; size_t n; } Edit;
typedef struct { Base base; Edit edit; rt_status code; const char *named[2]; } Case;
typedef struct { char dir[64], model[96], draft[96], changed[96], folder_file[128]; TinyModel tm; } Files;

#define IDS(...) \
    .list = (const int32_t[]) { __VA_ARGS__ }, .n = sizeof((const int32_t[]) { __VA_ARGS__ }) / sizeof(int32_t)

/* ---- files ---- */

static void write_key(GgufWriter *w, const Edit *e)
{
    static const char *const words[3] = { "a", "b", "c" };
    if (e->what == KEY_U32) gguf_write_u32(w, e->name, (uint32_t) e->number);
    if (e->what == KEY_F32) gguf_write_f32(w, e->name, (float) e->number);
    if (e->what == KEY_STR) gguf_write_str(w, e->name, e->text, strlen(e->text));
    if (e->what == KEY_BOOL) gguf_write_bool(w, e->name, e->number != 0);
    if (e->what == KEY_I32S) gguf_write_i32s(w, e->name, e->list, e->n);
    bool bools[8];
    for (size_t i = 0; e->what == KEY_BOOLS && i < e->n; i++) bools[i] = e->list[i] != 0;
    if (e->what == KEY_BOOLS) gguf_write_bools(w, e->name, bools, e->n);
    if (e->what == KEY_STRS) gguf_write_strs(w, e->name, words, (size_t[]) { 1, 1, 1 }, 3);
}

/* The type and shape of tensor t in the copy; returns false if it is left out. */
static bool tensor_shape(const Edit *e, const GgufTensor *t, Type *type, int64_t ne[4])
{
    memcpy(ne, t->ne, sizeof t->ne);
    *type = t->type;
    if (strcmp(t->name, e->name) != 0) return true;
    if (e->what == TENSOR_TURN) ne[0] = t->ne[1], ne[1] = t->ne[0];
    if (e->what == TENSOR_SHORT) ne[t->n_dims - 1]--;
    if (e->what == TENSOR_I32) *type = T_I32;
    return e->what != TENSOR_DROP;
}

static void copy_gguf(const char *from, const char *to, const Edit *e)
{
    Error err;
    Gguf *g;
    GgufWriter *w;
    Type type;
    int64_t ne[4];
    /* adding a key is allowed */
    bool met = e->what == AS_IS || e->what == TENSOR_ADD || (e->what >= KEY_U32 && e->what <= KEY_STRS);
    assert_ok(gguf_open(&g, from, &err), &err);
    assert_ok(gguf_write_open(&w, to, &err), &err);
    for (int32_t i = 0; i < gguf_n_keys(g); i++) {
        bool changed = e->what >= KEY_DROP && e->what <= KEY_STRS && strcmp(gguf_key(g, i), e->name) == 0;
        met |= changed;
        if (!changed) gguf_write_key_of(w, g, i);
    }
    write_key(w, e);
    for (int32_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor_at(g, i);
        met |= strcmp(t->name, e->name) == 0;
        if (tensor_shape(e, t, &type, ne)) gguf_write_tensor(w, t->name, type, t->n_dims, ne);
    }
    if (e->what == TENSOR_ADD) gguf_write_tensor(w, e->name, T_F32, 1, (int64_t[]) { 64, 1, 1, 1 });
    for (int32_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor_at(g, i);
        if (!tensor_shape(e, t, &type, ne)) continue;
        size_t bytes = type_row_bytes(type, ne[0]) * (size_t) (ne[1] * ne[2] * ne[3]);
        bool poisoned = e->what == TENSOR_NAN && strcmp(t->name, e->name) == 0;
        static const uint32_t nan_bits = 0x7fc00000;
        for (size_t at = 0; poisoned && at < bytes; at += sizeof nan_bits)
            gguf_write_data(w, &nan_bits, sizeof nan_bits);
        bool zero = e->what == TENSOR_ZERO && strcmp(t->name, e->name) == 0;
        for (size_t at = 0; zero && at < bytes; at++) gguf_write_data(w, &(uint8_t) { 0 }, 1);
        if (!poisoned && !zero) gguf_write_data(w, t->data, bytes);
    }
    static const float ones[64] = { 1 };
    if (e->what == TENSOR_ADD) gguf_write_data(w, ones, sizeof ones);
    assert_ok(gguf_write_close(w, true, &err), &err);
    gguf_close(g);
    if (!met) fail_msg("%s has no %s", from, e->name);
}

/* The folder's config.json with one piece of its text replaced. */
static void edit_config(const char *folder, const Edit *e)
{
    char path[128], text[4096];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    char *at = strstr(text, e->name);
    if (!at) fail_msg("%s has no %s", path, e->name);
    f = fopen(path, "wb");
    assert_non_null(f);
    fprintf(f, "%.*s%s%s", (int) (at - text), text, e->text, at + strlen(e->name));
    fclose(f);
}

/* One piece of the header of the folder's tensors overwritten by another one of its length. */
static void edit_header(const char *folder, const Edit *e)
{
    char path[128], text[4096];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    const size_t head = 8, n = fread(text, 1, sizeof text - 1, f);
    assert_true(n > head && strlen(e->name) == strlen(e->text));
    text[n] = 0;
    char *at = strstr(text + head, e->name);
    if (!at) fail_msg("%s has no %s", path, e->name);
    fseek(f, at - text, SEEK_SET);
    fputs(e->text, f);
    fclose(f);
}

static void files_make(Files *f, Base base, const Edit *e, const TinyModel *tm)
{
    Error err;
    memset(f, 0, sizeof *f);
    snprintf(f->dir, sizeof f->dir, "/tmp/ratoon-load-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->model, sizeof f->model, "%s/m.gguf", f->dir);
    snprintf(f->changed, sizeof f->changed, "%s/changed.gguf", f->dir);
    static const TinyFamily families[] = { TINY_LLAMA, TINY_QWEN3, TINY_QWEN35, TINY_LAGUNA,
                                           TINY_QWEN3MOE, TINY_QWEN35MOE, TINY_GEMMA4, TINY_GEMMA4MOE,
                                           TINY_DIFFUSION };
    const bool for_laguna = base == LAGUNA_B || base == LAGUNA_HF;
    f->tm = tm ? *tm : tiny_model(base < DRAFT_C ? families[base] : for_laguna ? TINY_LAGUNA : TINY_QWEN3);
    assert_ok(tiny_model_write(&f->tm, f->model, &err), &err);
    if (base < DRAFT_C) {
        copy_gguf(f->model, f->changed, e);
        return;
    }
    TinyDraft td = tiny_draft(&f->tm);
    td.dflash2 = base == DRAFT2_C || base == DRAFT2_HF;
    td.laguna = for_laguna;
    if (for_laguna) td.mask_id = 12;
    td.markov = base >= DSPARK_B && base <= DSPARK_HF;
    td.library = base == LIBRARY_HF;
    if (base == LIBRARY_C || td.library) td.own_rows = 32;
    bool folder = base == DRAFT_HF || base == DRAFT2_HF || base == LAGUNA_HF || base == DSPARK_HF || td.library,
         luce = base == DRAFT_B || base == LAGUNA_B || base == DSPARK_B;
    snprintf(f->draft, sizeof f->draft, "%s/%s", f->dir, folder ? "d" : "d.gguf");
    assert_ok(tiny_draft_write(&td, folder ? TINY_HF : luce ? TINY_LUCE : TINY_LLAMA_CPP, f->draft,
                               &err), &err);
    if (!folder) {
        copy_gguf(f->draft, f->changed, e);
        return;
    }
    snprintf(f->changed, sizeof f->changed, "%s", f->draft);
    if (e->what == CONFIG) edit_config(f->draft, e);
    if (e->what == HEADER) edit_header(f->draft, e);
}

static void files_remove(Files *f)
{
    static const char *const names[] = { "m.gguf", "d.gguf", "changed.gguf", "d/config.json",
                                         "d/model.safetensors", "d" };
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir, names[i]);
        remove(path);
    }
    assert_int_equal(rmdir(f->dir), 0);
}

/* ---- opening ---- */

static rt_options options_of(const Files *f, Base base)
{
    bool draft = base >= DRAFT_C;
    return RT_OPTIONS(.model = draft ? f->model : f->changed, .draft = draft ? f->changed : NULL, .threads = 1);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static void check_case(const Case *c)
{
    Files f;
    rt_engine *g = NULL;
    rt_error e = { 0 };
    files_make(&f, c->base, &c->edit, NULL);
    rt_options o = options_of(&f, c->base);
    double t0 = seconds();
    rt_status code = rt_open(&g, &o, &e);
    double spent = seconds() - t0;
    const char *what = c->edit.name;
    if (code != c->code) fail_msg("%s (base %d): code %d, expected %d: %s", what, c->base, code, c->code, e.text);
    if (code == RT_OK) {
        rt_close(g);
    } else {
        assert_null(g);
        if (!strstr(e.text, f.changed)) fail_msg("%s: the message does not name the file: %s", what, e.text);
        for (int i = 0; i < 2 && c->named[i]; i++)
            if (!strstr(e.text, c->named[i]))
                fail_msg("%s: the message does not say '%s': %s", what, c->named[i], e.text);
        if (strchr(e.text, '\n')) fail_msg("%s: more than one line", what);
    }
    if (spent > 2) fail_msg("%s: %.1f seconds", what, spent);
    files_remove(&f);
}

#define CHECK_ALL(cases) for (size_t i_ = 0; i_ < sizeof cases / sizeof *cases; i_++) check_case(&cases[i_])
#define KEY(kind, key, value) { .what = kind, .name = key, .number = value }

/* ---- targets: hyper-parameters (G14) ---- */

static void sizes(void **state)
{
    (void) state;
    const Case cases[] = {
        { LLAMA, { KEY_DROP, .name = "llama.block_count" }, .code = RT_EFORMAT,
          .named = { "llama.block_count", "missing" } },
        { LLAMA, KEY(KEY_U32, "llama.block_count", 0), .code = RT_EFORMAT, .named = { "llama.block_count", "is 0" } },
        { LLAMA, KEY(KEY_U32, "llama.block_count", 33), .code = RT_EFORMAT,
          .named = { "blk.3.attn_norm.weight", "missing" } },
        { LLAMA, KEY(KEY_U32, "llama.block_count", 1), .code = RT_EUNSUPPORTED, .named = { "blk.1.", "unknown" } },
        { LLAMA, KEY(KEY_U32, "llama.block_count", 4096), .code = RT_EFORMAT, .named = { "blk.3.", "missing" } },
        { LLAMA, KEY(KEY_U32, "llama.block_count", 2147483648.0), .code = RT_EFORMAT,
          .named = { "llama.block_count", "2147483648" } },
        { LLAMA, KEY(KEY_STR, "llama.block_count", 0), .code = RT_EFORMAT, .named = { "llama.block_count" } },
        { LLAMA, KEY(KEY_U32, "llama.embedding_length", 0), .code = RT_EFORMAT, .named = { "llama.embedding_length" } },
        { LLAMA, KEY(KEY_U32, "llama.embedding_length", 32), .code = RT_EFORMAT,
          .named = { "token_embd.weight", "expected [32, 96]" } },
        { LLAMA, KEY(KEY_U32, "llama.embedding_length", 4294967295.0), .code = RT_EFORMAT,
          .named = { "llama.embedding_length" } },
        { LLAMA, KEY(KEY_U32, "llama.feed_forward_length", 0), .code = RT_EFORMAT,
          .named = { "llama.feed_forward_length" } },
        { LLAMA, KEY(KEY_U32, "llama.feed_forward_length", 1 << 20), .code = RT_EFORMAT,
          .named = { "ffn_gate.weight" } },
        { LLAMA, KEY(KEY_U32, "llama.attention.head_count", 0), .code = RT_EFORMAT,
          .named = { "llama.attention.head_count" } },
        { LLAMA, KEY(KEY_U32, "llama.attention.head_count", 1025), .code = RT_EFORMAT,
          .named = { "llama.attention.head_count" } },
        { LLAMA, KEY(KEY_U32, "llama.attention.head_count", 3), .code = RT_EFORMAT,
          .named = { "llama.attention.head_count", "head_count_kv" } },
        { LLAMA, KEY(KEY_U32, "llama.attention.head_count_kv", 0), .code = RT_EFORMAT,
          .named = { "llama.attention.head_count_kv" } },
        { LLAMA, KEY(KEY_U32, "llama.attention.head_count_kv", 3), .code = RT_EFORMAT, .named = { "head_count_kv 3" } },
        { LLAMA, KEY(KEY_U32, "llama.attention.head_count_kv", 1024), .code = RT_EFORMAT,
          .named = { "head_count_kv 1024" } },
        { LLAMA, KEY(KEY_U32, "llama.attention.key_length", 0), .code = RT_EFORMAT,
          .named = { "llama.attention.key_length" } },
        { LLAMA, KEY(KEY_U32, "llama.attention.key_length", 17), .code = RT_EUNSUPPORTED, .named = { "value_length" } },
        { LLAMA, KEY(KEY_U32, "llama.attention.value_length", 17), .code = RT_EUNSUPPORTED,
          .named = { "value_length" } },
        { LLAMA, KEY(KEY_U32, "llama.attention.key_length", 1025), .code = RT_EFORMAT,
          .named = { "llama.attention.key_length" } },
        { LLAMA, { KEY_DROP, .name = "llama.attention.key_length" }, .code = RT_OK, .named = { NULL } },
        { LLAMA, KEY(KEY_U32, "llama.context_length", 0), .code = RT_EFORMAT, .named = { "llama.context_length" } },
        { LLAMA, KEY(KEY_U32, "llama.context_length", 4294967295.0), .code = RT_EFORMAT,
          .named = { "llama.context_length" } },
        { LLAMA, KEY(KEY_U32, "llama.vocab_size", 95), .code = RT_EFORMAT, .named = { "llama.vocab_size", "96 rows" } },
        { LLAMA, KEY(KEY_STRS, "tokenizer.ggml.tokens", 0), .code = RT_EFORMAT,
          .named = { "tokenizer.ggml.tokens", "3" } },
        { LLAMA, KEY(KEY_U32, "llama.expert_count", 8), .code = RT_EUNSUPPORTED, .named = { "llama.expert_count" } },
        { QWEN35, KEY(KEY_U32, "qwen35.nextn_predict_layers", 4), .code = RT_EFORMAT,
          .named = { "nextn_predict_layers" } },
        { QWEN3, KEY(KEY_STR, "general.architecture", 0), .code = RT_EFORMAT, .named = { "general.architecture" } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Case c = cases[i];
        if (c.edit.what == KEY_STR) c.edit.text = "many";
        if (strcmp(c.edit.name, "general.architecture") == 0) c.code = RT_EUNSUPPORTED;
        check_case(&c);
    }
}

static void numbers(void **state)
{
    (void) state;
    const Case cases[] = {
        { LLAMA, { KEY_DROP, .name = "llama.attention.layer_norm_rms_epsilon" }, .code = RT_EFORMAT,
          .named = { "layer_norm_rms_epsilon", "missing" } },
        { LLAMA, KEY(KEY_F32, "llama.attention.layer_norm_rms_epsilon", 0), .code = RT_EFORMAT,
          .named = { "layer_norm_rms_epsilon" } },
        { LLAMA, KEY(KEY_F32, "llama.attention.layer_norm_rms_epsilon", -1e-5), .code = RT_EFORMAT,
          .named = { "layer_norm_rms_epsilon" } },
        { LLAMA, KEY(KEY_F32, "llama.attention.layer_norm_rms_epsilon", NAN), .code = RT_EFORMAT,
          .named = { "layer_norm_rms_epsilon" } },
        { LLAMA, KEY(KEY_F32, "llama.attention.layer_norm_rms_epsilon", INFINITY), .code = RT_EFORMAT,
          .named = { "layer_norm_rms_epsilon" } },
        { LLAMA, { KEY_STR, .name = "llama.attention.layer_norm_rms_epsilon", .text = "1e-5" }, .code = RT_EFORMAT,
          .named = { "layer_norm_rms_epsilon" } },
        { LLAMA, KEY(KEY_F32, "llama.rope.freq_base", 0), .code = RT_EFORMAT, .named = { "rope.freq_base" } },
        { LLAMA, KEY(KEY_F32, "llama.rope.freq_base", NAN), .code = RT_EFORMAT, .named = { "rope.freq_base" } },
        { LLAMA, KEY(KEY_F32, "llama.rope.freq_base", -10000), .code = RT_EFORMAT, .named = { "rope.freq_base" } },
        { LLAMA, KEY(KEY_F32, "llama.attention.scale", 0), .code = RT_OK, .named = { NULL } }, /* 0 means absent */
        { LLAMA, KEY(KEY_F32, "llama.attention.scale", 0.25), .code = RT_OK, .named = { NULL } },
        { LLAMA, KEY(KEY_F32, "llama.attention.scale", -1), .code = RT_EFORMAT, .named = { "attention.scale" } },
        { LLAMA, KEY(KEY_F32, "llama.attention.scale", NAN), .code = RT_EFORMAT, .named = { "attention.scale" } },
        { LLAMA, KEY(KEY_F32, "llama.rope.scaling.factor", NAN), .code = RT_EFORMAT,
          .named = { "rope.scaling.factor" } },
        { LLAMA, KEY(KEY_U32, "llama.rope.dimension_count", 0), .code = RT_EFORMAT,
          .named = { "rope.dimension_count" } },
        { LLAMA, KEY(KEY_U32, "llama.rope.dimension_count", 7), .code = RT_EFORMAT,
          .named = { "rope.dimension_count", "even" } },
        { LLAMA, KEY(KEY_U32, "llama.rope.dimension_count", 1024), .code = RT_EFORMAT,
          .named = { "rope.dimension_count" } },
        { LLAMA, { KEY_STR, .name = "llama.rope.scaling.type", .text = "longrope" }, .code = RT_EUNSUPPORTED,
          .named = { "rope.scaling.type", "longrope" } },
        { LLAMA, { KEY_STR, .name = "llama.rope.scaling.type", .text = "yarn" }, .code = RT_EFORMAT,
          .named = { "original_context_length" } },
        { LLAMA, { TENSOR_ADD, .name = "rope_freqs.weight" }, .code = RT_EFORMAT, .named = { "rope_freqs.weight" } },
    };
    CHECK_ALL(cases);
}

static void delta_sizes(void **state)
{
    (void) state;
    const Case cases[] = {
        { QWEN35, KEY(KEY_U32, "qwen35.full_attention_interval", 0), .code = RT_EFORMAT,
          .named = { "full_attention_interval" } },
        { QWEN35, KEY(KEY_U32, "qwen35.full_attention_interval", 1), .code = RT_EFORMAT,
          .named = { "blk.0.attn_qkv.weight", "expected [" } },
        { QWEN35, KEY(KEY_U32, "qwen35.full_attention_interval", 3), .code = RT_EFORMAT,
          .named = { "blk.2.attn_qkv.weight", "expected [" } },
        { QWEN35, KEY(KEY_U32, "qwen35.ssm.conv_kernel", 0), .code = RT_EFORMAT, .named = { "ssm.conv_kernel" } },
        { QWEN35, KEY(KEY_U32, "qwen35.ssm.conv_kernel", 1), .code = RT_EFORMAT, .named = { "ssm.conv_kernel" } },
        { QWEN35, KEY(KEY_U32, "qwen35.ssm.conv_kernel", 3), .code = RT_EFORMAT, .named = { "ssm_conv1d.weight" } },
        { QWEN35, KEY(KEY_U32, "qwen35.ssm.state_size", 0), .code = RT_EFORMAT, .named = { "ssm.state_size" } },
        { QWEN35, KEY(KEY_U32, "qwen35.ssm.state_size", 8), .code = RT_EUNSUPPORTED, .named = { "ssm.state_size" } },
        { QWEN35, KEY(KEY_U32, "qwen35.ssm.state_size", 2147483648.0), .code = RT_EFORMAT,
          .named = { "ssm.state_size" } },
        { QWEN35, KEY(KEY_U32, "qwen35.ssm.state_size", 1024), .code = RT_EFORMAT, .named = { "ssm.state_size" } },
        { QWEN35, KEY(KEY_U32, "qwen35.ssm.group_count", 0), .code = RT_EFORMAT, .named = { "ssm.group_count" } },
        { QWEN35, KEY(KEY_U32, "qwen35.ssm.group_count", 1024), .code = RT_EFORMAT, .named = { "group_count 1024" } },
        { QWEN35, KEY(KEY_U32, "qwen35.ssm.time_step_rank", 0), .code = RT_EFORMAT, .named = { "ssm.time_step_rank" } },
        { QWEN35, KEY(KEY_U32, "qwen35.ssm.time_step_rank", 5), .code = RT_EFORMAT,
          .named = { "ssm.inner_size", "time_step_rank" } },
        { QWEN35, KEY(KEY_U32, "qwen35.ssm.inner_size", 0), .code = RT_EFORMAT, .named = { "ssm.inner_size" } },
        { QWEN35, KEY(KEY_U32, "qwen35.ssm.inner_size", 1 << 20), .code = RT_EFORMAT, .named = { "ssm.inner_size" } },
        { QWEN35, KEY(KEY_BOOL, "qwen35.ssm.v_head_reordered", 0), .code = RT_EUNSUPPORTED,
          .named = { "v_head_reordered" } },
        { QWEN35, { KEY_I32S, .name = "qwen35.rope.dimension_sections", IDS(1, 1, 1, 0) }, .code = RT_EFORMAT,
          .named = { "dimension_sections", "sums to 3" } },
        { QWEN35, { KEY_I32S, .name = "qwen35.rope.dimension_sections", IDS(-1, 3, 3, 3) }, .code = RT_EFORMAT,
          .named = { "dimension_sections", "-1" } },
        { QWEN35, { KEY_I32S, .name = "qwen35.rope.dimension_sections", IDS(4, 4) }, .code = RT_EFORMAT,
          .named = { "dimension_sections", "2 values" } },
        { QWEN35, { KEY_I32S, .name = "qwen35.attention.recurrent_layers", IDS(1, 1) }, .code = RT_EFORMAT,
          .named = { "recurrent_layers" } },
    };
    CHECK_ALL(cases);
}

static void laguna_keys(void **state)
{
    (void) state;
    const Case cases[] = {
        { LAGUNA, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { LAGUNA, { KEY_DROP, .name = "laguna.attention.head_count" }, .code = RT_EFORMAT,
          .named = { "attention.head_count", "missing" } },
        { LAGUNA, { KEY_I32S, .name = "laguna.attention.head_count", IDS(4, 6, 6, 6) }, .code = RT_EFORMAT,
          .named = { "attention.head_count", "4 values, expected 5" } },
        { LAGUNA, { KEY_I32S, .name = "laguna.attention.head_count", IDS(4, 6, 6, 0, 4) }, .code = RT_EFORMAT,
          .named = { "attention.head_count value 3 is 0" } },
        { LAGUNA, { KEY_I32S, .name = "laguna.attention.head_count", IDS(4, 6, 4, 6, 4) }, .code = RT_EFORMAT,
          .named = { "blk.2.attn_gate.weight has 6 rows", "expected 4 (a gate per head) or 128" } },
        { LAGUNA, KEY(KEY_U32, "laguna.attention.head_count_kv", 3), .code = RT_EFORMAT,
          .named = { "4 query heads, expected a multiple of its 3 key heads" } },
        { LAGUNA, { KEY_DROP, .name = "laguna.attention.key_length" }, .code = RT_EFORMAT,
          .named = { "attention.key_length", "missing" } },
        { LAGUNA, KEY(KEY_U32, "laguna.attention.value_length", 16), .code = RT_EUNSUPPORTED,
          .named = { "value_length is 16" } },
        { LAGUNA, KEY(KEY_U32, "laguna.attention.sliding_window", 0), .code = RT_OK, .named = { NULL } },
        { LAGUNA, KEY(KEY_U32, "laguna.attention.sliding_window", 1 << 25), .code = RT_EFORMAT,
          .named = { "sliding_window" } },
        { LAGUNA, KEY(KEY_U32, "laguna.attention.sliding_window_pattern", 0), .code = RT_EFORMAT,
          .named = { "sliding_window_pattern is 0" } },
        { LAGUNA, KEY(KEY_U32, "laguna.attention.sliding_window_pattern", 4), .code = RT_OK, .named = { NULL } },
        { LAGUNA, { KEY_BOOLS, .name = "laguna.attention.sliding_window_pattern", IDS(0, 1) }, .code = RT_EFORMAT,
          .named = { "sliding_window_pattern has 2 values, expected 5" } },
        { LAGUNA, { KEY_I32S, .name = "laguna.attention.sliding_window_pattern", IDS(0, 1, 1, 1, 0) },
          .code = RT_EFORMAT, .named = { "sliding_window_pattern", "array of bool" } },
        { LAGUNA, { KEY_DROP, .name = "laguna.rope.freq_base_swa" }, .code = RT_EFORMAT,
          .named = { "rope.freq_base_swa", "missing" } },
        { LAGUNA, { KEY_DROP, .name = "laguna.rope.dimension_count_swa" }, .code = RT_EFORMAT,
          .named = { "rope.dimension_count_swa", "missing" } },
        { LAGUNA, KEY(KEY_U32, "laguna.rope.dimension_count", 15), .code = RT_EFORMAT,
          .named = { "rope.dimension_count is 15, expected an even number" } },
        { LAGUNA, KEY(KEY_U32, "laguna.rope.dimension_count", 34), .code = RT_EFORMAT,
          .named = { "rope.dimension_count is 34" } },
        { LAGUNA, { KEY_DROP, .name = "laguna.rope.scaling.original_context_length" }, .code = RT_EFORMAT,
          .named = { "original_context_length", "missing" } },
        { LAGUNA, KEY(KEY_U32, "laguna.leading_dense_block_count", 6), .code = RT_EFORMAT,
          .named = { "leading_dense_block_count is 6" } },
        { LAGUNA, KEY(KEY_U32, "laguna.leading_dense_block_count", 2), .code = RT_EFORMAT,
          .named = { "blk.1.ffn_gate.weight", "missing" } },
        { LAGUNA, KEY(KEY_U32, "laguna.expert_count", 0), .code = RT_EFORMAT, .named = { "expert_count is 0" } },
        { LAGUNA, KEY(KEY_U32, "laguna.expert_count", 7), .code = RT_EFORMAT, .named = { "expected [64, 7]" } },
        { LAGUNA, KEY(KEY_U32, "laguna.expert_used_count", 9), .code = RT_EFORMAT,
          .named = { "expert_used_count is 9", "expert_count 8" } },
        { LAGUNA, KEY(KEY_U32, "laguna.expert_shared_count", 2), .code = RT_EFORMAT,
          .named = { "expert_shared_count is 2" } },
        { LAGUNA, KEY(KEY_U32, "laguna.expert_group_count", 4), .code = RT_EFORMAT,
          .named = { "expert_group_count is 4" } },
        { LAGUNA, KEY(KEY_U32, "laguna.expert_feed_forward_length", 64), .code = RT_EFORMAT,
          .named = { "ffn_gate_exps.weight", "expected [64, 64, 8]" } },
        { LAGUNA, { KEY_DROP, .name = "laguna.expert_shared_feed_forward_length" }, .code = RT_EFORMAT,
          .named = { "expert_shared_feed_forward_length", "missing" } },
        { LAGUNA, KEY(KEY_F32, "laguna.expert_weights_scale", NAN), .code = RT_EFORMAT,
          .named = { "expert_weights_scale" } },
        { LAGUNA, KEY(KEY_BOOL, "laguna.expert_weights_norm", 0), .code = RT_EUNSUPPORTED,
          .named = { "expert_weights_norm is false" } },
        { LAGUNA, KEY(KEY_U32, "laguna.expert_gating_func", 1), .code = RT_EUNSUPPORTED,
          .named = { "expert_gating_func is 1 (softmax)" } },
        { LAGUNA, KEY(KEY_U32, "laguna.expert_gating_func", 3), .code = RT_EFORMAT,
          .named = { "expert_gating_func is 3" } },
        { LAGUNA, KEY(KEY_F32, "laguna.router_logit_softcapping", 30), .code = RT_EUNSUPPORTED,
          .named = { "router_logit_softcapping is 30" } },
        { LAGUNA, KEY(KEY_F32, "laguna.moe_router_logit_softcapping", 30), .code = RT_EUNSUPPORTED,
          .named = { "moe_router_logit_softcapping is 30" } },
        { LAGUNA, KEY(KEY_F32, "laguna.moe_router_logit_softcapping", 0), .code = RT_OK, .named = { NULL } },
        { LAGUNA, KEY(KEY_F32, "laguna.final_logit_softcapping", 30), .code = RT_EUNSUPPORTED,
          .named = { "final_logit_softcapping is 30" } },
        { LAGUNA, { TENSOR_DROP, .name = "blk.0.attn_gate.weight" }, .code = RT_EFORMAT,
          .named = { "blk.0.attn_gate.weight is missing (shape [64, 4])" } },
        { LAGUNA, { TENSOR_SHORT, .name = "blk.1.attn_gate.weight" }, .code = RT_EFORMAT,
          .named = { "blk.1.attn_gate.weight has 5 rows", "expected 6" } },
        { LAGUNA, { TENSOR_DROP, .name = "blk.1.exp_probs_b.bias" }, .code = RT_EFORMAT,
          .named = { "blk.1.exp_probs_b.bias", "missing" } },
        { LAGUNA, { TENSOR_DROP, .name = "blk.4.ffn_up_shexp.weight" }, .code = RT_EFORMAT,
          .named = { "blk.4.ffn_up_shexp.weight", "missing" } },
        { LAGUNA, { TENSOR_SHORT, .name = "blk.2.ffn_down_exps.weight" }, .code = RT_EFORMAT,
          .named = { "blk.2.ffn_down_exps.weight", "expected [32, 64, 8]" } },
        { LAGUNA, { TENSOR_ADD, .name = "blk.1.ffn_gate_inp_shexp.weight" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.1.ffn_gate_inp_shexp.weight", "unknown" } },
    };
    CHECK_ALL(cases);
}

#define GEMMA4_PATTERN "gemma4.attention.sliding_window_pattern"
#define GEMMA4_KV "gemma4.attention.head_count_kv"

static void gemma4_keys(void **state)
{
    (void) state;
    const Case cases[] = {
        { GEMMA4, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { GEMMA4MOE, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { GEMMA4, KEY(KEY_U32, "gemma4.embedding_length_per_layer_input", 256), .code = RT_EUNSUPPORTED,
          .named = { "gemma4.embedding_length_per_layer_input is 256", "inputs per layer (E2B, E4B)" } },
        { GEMMA4, KEY(KEY_U32, "gemma4.attention.shared_kv_layers", 18), .code = RT_EUNSUPPORTED,
          .named = { "gemma4.attention.shared_kv_layers is 18", "share keys and values (E2B, E4B)" } },
        { GEMMA4, { KEY_DROP, .name = "gemma4.embedding_length_per_layer_input" }, .code = RT_OK, .named = { NULL } },
        { GEMMA4, { KEY_DROP, .name = GEMMA4_PATTERN }, .code = RT_EFORMAT, .named = { GEMMA4_PATTERN, "missing" } },
        { GEMMA4, KEY(KEY_U32, GEMMA4_PATTERN, 6), .code = RT_EFORMAT, .named = { GEMMA4_PATTERN, "array" } },
        { GEMMA4, { KEY_BOOLS, .name = GEMMA4_PATTERN, IDS(1, 0, 1) }, .code = RT_EFORMAT,
          .named = { "sliding_window_pattern has 3 values, expected 4" } },
        { GEMMA4, { KEY_I32S, .name = GEMMA4_PATTERN, IDS(1, 0, 1, 0) }, .code = RT_EFORMAT,
          .named = { "sliding_window_pattern", "array of bool" } },
        { GEMMA4, { KEY_BOOLS, .name = GEMMA4_PATTERN, IDS(1, 0, 1, 1) }, .code = RT_EFORMAT,
          .named = { "blk.3.attn_q.weight", "expected [64, 128]" } },
        { GEMMA4, { KEY_DROP, .name = "gemma4.attention.sliding_window" }, .code = RT_EFORMAT,
          .named = { "attention.sliding_window", "missing" } },
        { GEMMA4, KEY(KEY_U32, "gemma4.attention.sliding_window", 0), .code = RT_EFORMAT,
          .named = { "sliding_window is 0" } },
        { GEMMA4, KEY(KEY_U32, "gemma4.attention.head_count", 0), .code = RT_EFORMAT,
          .named = { "attention.head_count is 0" } },
        { GEMMA4, { KEY_I32S, .name = GEMMA4_KV, IDS(2, 1, 2) }, .code = RT_EFORMAT,
          .named = { "head_count_kv has 3 values, expected 4" } },
        { GEMMA4, { KEY_I32S, .name = GEMMA4_KV, IDS(2, 1, 0, 1) }, .code = RT_EFORMAT,
          .named = { "head_count_kv value 2 is 0" } },
        { GEMMA4, { KEY_I32S, .name = GEMMA4_KV, IDS(3, 1, 2, 1) }, .code = RT_EFORMAT,
          .named = { "layer 0 has 4 query heads, expected a multiple of its 3 key heads" } },
        { GEMMA4, { KEY_I32S, .name = GEMMA4_KV, IDS(2, 2, 2, 1) }, .code = RT_EFORMAT,
          .named = { "blk.1.attn_k.weight", "expected [64, 256]" } },
        { GEMMA4, { KEY_DROP, .name = "gemma4.attention.key_length" }, .code = RT_EFORMAT,
          .named = { "attention.key_length", "missing" } },
        { GEMMA4, { KEY_DROP, .name = "gemma4.attention.key_length_swa" }, .code = RT_EFORMAT,
          .named = { "attention.key_length_swa", "missing" } },
        { GEMMA4, KEY(KEY_U32, "gemma4.attention.value_length", 32), .code = RT_EUNSUPPORTED,
          .named = { "attention.value_length is 32, expected the key length 128" } },
        { GEMMA4, KEY(KEY_U32, "gemma4.attention.value_length_swa", 64), .code = RT_EUNSUPPORTED,
          .named = { "attention.value_length_swa is 64, expected the key length 32" } },
        { GEMMA4, { KEY_DROP, .name = "gemma4.rope.freq_base" }, .code = RT_EFORMAT,
          .named = { "rope.freq_base", "missing" } },
        { GEMMA4, { KEY_DROP, .name = "gemma4.rope.freq_base_swa" }, .code = RT_EFORMAT,
          .named = { "rope.freq_base_swa", "missing" } },
        { GEMMA4, KEY(KEY_U32, "gemma4.rope.dimension_count_swa", 15), .code = RT_EFORMAT,
          .named = { "rope.dimension_count_swa is 15, expected an even number" } },
        { GEMMA4, KEY(KEY_U32, "gemma4.rope.dimension_count", 130), .code = RT_EFORMAT,
          .named = { "rope.dimension_count is 130" } },
        { GEMMA4, KEY(KEY_U32, "gemma4.rope.dimension_count", 16), .code = RT_EFORMAT,
          .named = { "rope_freqs.weight has 64 values, expected 8" } },
        { GEMMA4, KEY(KEY_F32, "gemma4.final_logit_softcapping", -1), .code = RT_EFORMAT,
          .named = { "final_logit_softcapping is -1" } },
        { GEMMA4, { KEY_DROP, .name = "gemma4.final_logit_softcapping" }, .code = RT_OK, .named = { NULL } },
        { GEMMA4, KEY(KEY_U32, "gemma4.expert_count", 0), .code = RT_OK, .named = { NULL } },
        { GEMMA4, KEY(KEY_U32, "gemma4.expert_count", 8), .code = RT_EFORMAT, .named = { "expert_used_count" } },
        { GEMMA4MOE, { KEY_DROP, .name = "gemma4.expert_count" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.0.ffn_gate_inp", "unknown" } },
        { GEMMA4MOE, { KEY_DROP, .name = "gemma4.feed_forward_length" }, .code = RT_EFORMAT,
          .named = { "blk.0.ffn_gate.weight", "expected [64, 1]" } },
        { GEMMA4, { TENSOR_DROP, .name = "rope_freqs.weight" }, .code = RT_EFORMAT,
          .named = { "rope_freqs.weight is missing (shape [64])" } },
        { GEMMA4, { TENSOR_ZERO, .name = "rope_freqs.weight" }, .code = RT_EFORMAT,
          .named = { "rope_freqs.weight value 0 is 0" } },
        { GEMMA4, { TENSOR_DROP, .name = "blk.0.attn_v.weight" }, .code = RT_EFORMAT,
          .named = { "blk.0.attn_v.weight is missing (shape [64, 64])" } },
        { GEMMA4, { TENSOR_ADD, .name = "blk.1.attn_v.weight" }, .code = RT_EFORMAT,
          .named = { "blk.1.attn_v.weight", "expected [64, 128]" } },
        { GEMMA4, { TENSOR_DROP, .name = "blk.1.post_attention_norm.weight" }, .code = RT_EFORMAT,
          .named = { "blk.1.post_attention_norm.weight", "missing" } },
        { GEMMA4, { TENSOR_DROP, .name = "blk.1.post_ffw_norm.weight" }, .code = RT_EFORMAT,
          .named = { "blk.1.post_ffw_norm.weight", "missing" } },
        { GEMMA4, { TENSOR_SHORT, .name = "blk.1.attn_k_norm.weight" }, .code = RT_EFORMAT,
          .named = { "blk.1.attn_k_norm.weight", "expected [128, 1]" } },
        { GEMMA4, { TENSOR_DROP, .name = "blk.2.layer_output_scale.weight" }, .code = RT_OK, .named = { NULL } },
        { GEMMA4, { TENSOR_ADD, .name = "blk.0.inp_gate.weight" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.0.inp_gate.weight", "unknown" } },
        { GEMMA4, { TENSOR_ADD, .name = "blk.0.ffn_gate_inp.scale" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.0.ffn_gate_inp.scale", "unknown" } },
        { GEMMA4MOE, { TENSOR_DROP, .name = "blk.1.ffn_gate_inp.scale" }, .code = RT_EFORMAT,
          .named = { "blk.1.ffn_gate_inp.scale", "missing" } },
        { GEMMA4MOE, { TENSOR_DROP, .name = "blk.1.ffn_down_exps.scale" }, .code = RT_EFORMAT,
          .named = { "blk.1.ffn_down_exps.scale is missing (shape [8, 1])" } },
        { GEMMA4MOE, { TENSOR_SHORT, .name = "blk.1.ffn_down_exps.scale" }, .code = RT_EFORMAT,
          .named = { "blk.1.ffn_down_exps.scale", "expected [8, 1]" } },
        { GEMMA4MOE, { TENSOR_DROP, .name = "blk.3.pre_ffw_norm_2.weight" }, .code = RT_EFORMAT,
          .named = { "blk.3.pre_ffw_norm_2.weight", "missing" } },
        { GEMMA4MOE, { TENSOR_DROP, .name = "blk.3.post_ffw_norm_1.weight" }, .code = RT_EFORMAT,
          .named = { "blk.3.post_ffw_norm_1.weight", "missing" } },
        { GEMMA4MOE, { TENSOR_DROP, .name = "blk.3.post_ffw_norm_2.weight" }, .code = RT_EFORMAT,
          .named = { "blk.3.post_ffw_norm_2.weight", "missing" } },
        { GEMMA4MOE, { TENSOR_DROP, .name = "blk.0.ffn_up.weight" }, .code = RT_EFORMAT,
          .named = { "blk.0.ffn_up.weight", "missing" } },
        { GEMMA4MOE, { TENSOR_ADD, .name = "blk.0.enc_layer_output_scale.weight" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.0.enc_layer_output_scale.weight", "unknown" } },
        { DIFFUSION, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { DIFFUSION, { KEY_DROP, .name = "diffusion.canvas_length" }, .code = RT_EFORMAT,
          .named = { "key diffusion.canvas_length is missing" } },
        { DIFFUSION, KEY(KEY_U32, "diffusion.canvas_length", 0), .code = RT_EFORMAT,
          .named = { "diffusion.canvas_length is 0" } },
        { DIFFUSION, KEY(KEY_U32, "diffusion.canvas_length", 96), .code = RT_EUNSUPPORTED,
          .named = { "diffusion.canvas_length is 96, expected 32, 64, 128 or 256" } },
        { DIFFUSION, KEY(KEY_U32, "diffusion.canvas_length", 512), .code = RT_EUNSUPPORTED,
          .named = { "diffusion.canvas_length is 512" } },
        { DIFFUSION, KEY(KEY_U32, "diffusion.canvas_length", 256), .code = RT_OK, .named = { NULL } },
        { DIFFUSION, { KEY_DROP, .name = "diffusion.eb_max_steps" }, .code = RT_OK, .named = { NULL } },
        { DIFFUSION, KEY(KEY_U32, "diffusion.eb_max_steps", 0), .code = RT_EFORMAT,
          .named = { "diffusion.eb_max_steps is 0" } },
        { DIFFUSION, KEY(KEY_F32, "diffusion.eb_t_max", 0.3f), .code = RT_EFORMAT,
          .named = { "diffusion.eb_t_min is 0.4, expected at most diffusion.eb_t_max 0.3" } },
        { DIFFUSION, KEY(KEY_F32, "diffusion.eb_entropy_bound", NAN), .code = RT_EFORMAT,
          .named = { "diffusion.eb_entropy_bound" } },
        { DIFFUSION, KEY(KEY_U32, "diffusion-gemma.attention.shared_kv_layers", 2), .code = RT_EUNSUPPORTED,
          .named = { "diffusion-gemma.attention.shared_kv_layers is 2" } },
        { DIFFUSION, { TENSOR_DROP, .name = "self_cond_pre_norm.weight" }, .code = RT_EFORMAT,
          .named = { "self_cond_pre_norm.weight is missing" } },
        { DIFFUSION, { TENSOR_DROP, .name = "self_cond_down.weight" }, .code = RT_EFORMAT,
          .named = { "self_cond_down.weight is missing" } },
        { DIFFUSION, { TENSOR_SHORT, .name = "self_cond_up.weight" }, .code = RT_EFORMAT,
          .named = { "self_cond_up.weight", "expected [64, 96]" } },
        { DIFFUSION, { TENSOR_DROP, .name = "blk.2.layer_output_scale.weight" }, .code = RT_EFORMAT,
          .named = { "blk.2.layer_output_scale.weight is missing" } },
        { DIFFUSION, { TENSOR_DROP, .name = "blk.1.enc_layer_output_scale.weight" }, .code = RT_EFORMAT,
          .named = { "blk.1.enc_layer_output_scale.weight is missing" } },
        { DIFFUSION, KEY(KEY_U32, "diffusion-gemma.vocab_size", 95), .code = RT_EFORMAT,
          .named = { "diffusion-gemma.vocab_size is 95" } },
    };
    CHECK_ALL(cases);
}

static void mixtures(void **state)
{
    (void) state;
    const Case cases[] = {
        { QWEN3MOE, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { QWEN35MOE, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { QWEN3MOE, { KEY_DROP, .name = "qwen3moe.expert_count" }, .code = RT_EFORMAT,
          .named = { "qwen3moe.expert_count is missing" } },
        { QWEN3MOE, KEY(KEY_U32, "qwen3moe.expert_count", 1 << 20), .code = RT_EFORMAT,
          .named = { "expert_count is 1048576", "1 to 4096" } },
        { QWEN3MOE, KEY(KEY_U32, "qwen3moe.expert_count", 9), .code = RT_EFORMAT,
          .named = { "blk.0.ffn_gate_inp.weight", "expected [64, 9]" } },
        { QWEN3MOE, { KEY_DROP, .name = "qwen3moe.expert_used_count" }, .code = RT_EFORMAT,
          .named = { "expert_used_count is missing" } },
        { QWEN3MOE, KEY(KEY_U32, "qwen3moe.expert_used_count", 9), .code = RT_EFORMAT,
          .named = { "expert_used_count is 9", "at most expert_count 8" } },
        { QWEN3MOE, KEY(KEY_U32, "qwen3moe.expert_used_count", 0), .code = RT_EFORMAT,
          .named = { "expert_used_count is 0" } },
        { QWEN3MOE, KEY(KEY_U32, "qwen3moe.expert_feed_forward_length", 96), .code = RT_EFORMAT,
          .named = { "blk.0.ffn_gate_exps.weight", "expected [64, 96, 8]" } },
        { QWEN3MOE, KEY(KEY_F32, "qwen3moe.expert_weights_scale", 0), .code = RT_OK, .named = { NULL } },
        { QWEN3MOE, KEY(KEY_F32, "qwen3moe.expert_weights_scale", -1), .code = RT_EFORMAT,
          .named = { "expert_weights_scale is -1", "positive" } },
        { QWEN3MOE, { TENSOR_SHORT, .name = "blk.1.ffn_gate_inp.weight" }, .code = RT_EFORMAT,
          .named = { "blk.1.ffn_gate_inp.weight has shape [64, 7", "expected [64, 8]" } },
        { QWEN3MOE, { TENSOR_SHORT, .name = "blk.2.ffn_down_exps.weight" }, .code = RT_EFORMAT,
          .named = { "blk.2.ffn_down_exps.weight", "expected [32, 64, 8]" } },
        { QWEN3MOE, { TENSOR_DROP, .name = "blk.0.ffn_up_exps.weight" }, .code = RT_EFORMAT,
          .named = { "blk.0.ffn_up_exps.weight is missing", "8])" } },
        { QWEN3MOE, { TENSOR_I32, .name = "blk.0.ffn_up_exps.weight" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.0.ffn_up_exps.weight has type I32" } },
        { QWEN3MOE, { TENSOR_ADD, .name = "blk.0.ffn_gate.weight" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.0.ffn_gate.weight is unknown" } },
        { QWEN35MOE, { TENSOR_DROP, .name = "blk.1.ffn_gate_inp_shexp.weight" }, .code = RT_EFORMAT,
          .named = { "blk.1.ffn_gate_inp_shexp.weight is missing" } },
        { QWEN35MOE, KEY(KEY_U32, "qwen35moe.expert_shared_feed_forward_length", 96), .code = RT_EFORMAT,
          .named = { "blk.0.ffn_gate_shexp.weight", "expected [64, 96]" } },
        { QWEN35MOE, KEY(KEY_U32, "qwen35moe.ssm.state_size", 24), .code = RT_EUNSUPPORTED,
          .named = { "qwen35moe.ssm.state_size is 24" } },
    };
    CHECK_ALL(cases);
}

/* ---- targets: tensors (G15) ---- */

static void tensors(void **state)
{
    (void) state;
    const Case cases[] = {
        { LLAMA, { TENSOR_DROP, .name = "blk.1.ffn_up.weight" }, .code = RT_EFORMAT,
          .named = { "blk.1.ffn_up.weight", "missing" } },
        { LLAMA, { TENSOR_DROP, .name = "token_embd.weight" }, .code = RT_EFORMAT,
          .named = { "token_embd.weight", "missing" } },
        { LLAMA, { TENSOR_DROP, .name = "output_norm.weight" }, .code = RT_EFORMAT,
          .named = { "output_norm.weight", "missing" } },
        { LLAMA, { TENSOR_TURN, .name = "blk.0.ffn_down.weight" }, .code = RT_EFORMAT,
          .named = { "blk.0.ffn_down.weight", "expected [" } },
        { LLAMA, { TENSOR_TURN, .name = "token_embd.weight" }, .code = RT_EFORMAT, .named = { "token_embd.weight" } },
        { LLAMA, { TENSOR_SHORT, .name = "blk.2.attn_k.weight" }, .code = RT_EFORMAT,
          .named = { "blk.2.attn_k.weight", "expected [" } },
        { LLAMA, { TENSOR_SHORT, .name = "blk.2.attn_norm.weight" }, .code = RT_EFORMAT,
          .named = { "blk.2.attn_norm.weight", "expected [" } },
        { LLAMA, { TENSOR_I32, .name = "blk.0.attn_q.weight" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.0.attn_q.weight", "type" } },
        { LLAMA, { TENSOR_I32, .name = "blk.0.attn_norm.weight" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.0.attn_norm.weight", "type" } },
        { LLAMA, { TENSOR_ADD, .name = "blk.0.attn_sinks.weight" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.0.attn_sinks.weight", "unknown" } },
        { LLAMA, { TENSOR_ADD, .name = "blk.2.ffn_gate.bias" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.2.ffn_gate.bias", "unknown" } },
        { LLAMA, { TENSOR_ADD, .name = "blk.2.ffn_up.bias" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.2.ffn_up.bias" } },
        { LLAMA, { TENSOR_ADD, .name = "blk.2.ffn_down.bias" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.2.ffn_down.bias" } },
        { LLAMA, { TENSOR_ADD, .name = "output.bias" }, .code = RT_EUNSUPPORTED, .named = { "output.bias" } },
        { LLAMA, { TENSOR_ADD, .name = "blk.0.attn_q.scale" }, .code = RT_EFORMAT,
          .named = { "blk.0.attn_q.scale has shape [64, 1], expected [1]" } },
        { QWEN3MOE, { TENSOR_ADD, .name = "blk.0.ffn_up_exps.scale" }, .code = RT_EFORMAT,
          .named = { "blk.0.ffn_up_exps.scale has shape [64, 1], expected [8]" } },
        { LLAMA, { TENSOR_ADD, .name = "blk.0.attn_norm.scale" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.0.attn_norm.scale", "unknown" } },
        { LLAMA, { TENSOR_ADD, .name = "output.scale" }, .code = RT_EUNSUPPORTED,
          .named = { "output.scale", "unknown" } },
        { LLAMA, { TENSOR_ADD, .name = "blk.0.attn_q.input_scale" }, .code = RT_OK, .named = { NULL } },
        /* vision towers and tables do not belong to the model */
        { LLAMA, { TENSOR_ADD, .name = "v.blk.0.attn_norm.weight" }, .code = RT_OK, .named = { NULL } },
        { LLAMA, { TENSOR_ADD, .name = "blk.7.attn_norm.weight" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.7.attn_norm.weight", "unknown" } },
        { QWEN3, { TENSOR_DROP, .name = "blk.0.attn_q_norm.weight" }, .code = RT_EFORMAT,
          .named = { "blk.0.attn_q_norm.weight", "missing" } },
        { QWEN35, { TENSOR_DROP, .name = "blk.0.ssm_conv1d.weight" }, .code = RT_EFORMAT,
          .named = { "blk.0.ssm_conv1d.weight", "missing" } },
        { QWEN35, { TENSOR_TURN, .name = "blk.0.ssm_conv1d.weight" }, .code = RT_EFORMAT,
          .named = { "blk.0.ssm_conv1d.weight" } },
        { QWEN35, { TENSOR_SHORT, .name = "blk.1.ssm_a" }, .code = RT_EFORMAT, .named = { "blk.1.ssm_a" } },
        { QWEN35, { TENSOR_SHORT, .name = "blk.3.attn_q.weight" }, .code = RT_EFORMAT,
          .named = { "blk.3.attn_q.weight" } },
    };
    CHECK_ALL(cases);
}

/* ---- drafters ---- */

static void drafter_keys(void **state)
{
    (void) state;
    const Case cases[] = {
        { DRAFT_C, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { DRAFT_B, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { DRAFT_C, KEY(KEY_U32, "dflash.block_size", 0), .code = RT_EFORMAT, .named = { "block_size" } },
        { DRAFT_C, KEY(KEY_U32, "dflash.block_size", 1), .code = RT_EFORMAT, .named = { "block_size" } },
        { DRAFT_C, KEY(KEY_U32, "dflash.block_size", 1000000), .code = RT_EFORMAT,
          .named = { "block_size", "1000000" } },
        { DRAFT_C, { KEY_DROP, .name = "dflash.block_size" }, .code = RT_EFORMAT,
          .named = { "block_size", "missing" } },
        { DRAFT_C, KEY(KEY_U32, "tokenizer.ggml.mask_token_id", 96), .code = RT_EFORMAT,
          .named = { "mask token id is 96" } },
        { DRAFT_C, KEY(KEY_U32, "tokenizer.ggml.mask_token_id", 4294967295.0), .code = RT_EFORMAT,
          .named = { "mask_token_id" } },
        { DRAFT_C, { KEY_DROP, .name = "tokenizer.ggml.mask_token_id" }, .code = RT_EFORMAT,
          .named = { "mask_token_id", "missing" } },
        { DRAFT_C, { KEY_DROP, .name = "dflash.target_layers" }, .code = RT_EFORMAT,
          .named = { "target_layers", "missing" } },
        { DRAFT_C, { KEY_I32S, .name = "dflash.target_layers", IDS(1, 2, 99) }, .code = RT_EFORMAT,
          .named = { "target layer id 98", "3 layers" } },
        { DRAFT_C, { KEY_I32S, .name = "dflash.target_layers", IDS(0, 1, 2) }, .code = RT_EFORMAT,
          .named = { "target_layers", "no layer" } },
        { DRAFT_C, { KEY_I32S, .name = "dflash.target_layers", IDS(-2147483647, 1, 2) }, .code = RT_EFORMAT,
          .named = { "target_layers", "no layer" } },
        { DRAFT_C, { KEY_I32S, .name = "dflash.target_layers", IDS(2, 1) }, .code = RT_EFORMAT,
          .named = { "ascending" } },
        { DRAFT_C, { KEY_I32S, .name = "dflash.target_layers", IDS(2, 2) }, .code = RT_EFORMAT,
          .named = { "ascending" } },
        { DRAFT_C, { KEY_I32S, .name = "dflash.target_layers", IDS(1) }, .code = RT_EFORMAT, .named = { "fc.weight" } },
        { DRAFT_C, { KEY_I32S, .name = "dflash.target_layers", IDS(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1) },
          .code = RT_EFORMAT, .named = { "target_layers", "17" } },
        { DRAFT_B, { KEY_I32S, .name = "qwen35-dflash-draft.dflash.target_layer_ids", IDS(0, 1, 7) },
          .code = RT_EFORMAT, .named = { "target layer id 7" } },
        { DRAFT_C, KEY(KEY_U32, "dflash.embedding_length", 32), .code = RT_EFORMAT,
          .named = { "hidden size is 32", "has 64" } },
        { DRAFT_C, KEY(KEY_U32, "dflash.block_count", 0), .code = RT_EFORMAT, .named = { "block_count" } },
        { DRAFT_C, KEY(KEY_U32, "dflash.block_count", 65), .code = RT_EFORMAT, .named = { "block_count" } },
        { DRAFT_C, KEY(KEY_U32, "dflash.block_count", 4), .code = RT_EFORMAT, .named = { "blk.3.", "missing" } },
        { DRAFT_C, KEY(KEY_U32, "dflash.block_count", 2), .code = RT_EUNSUPPORTED, .named = { "blk.2.", "unknown" } },
        { DRAFT_C, KEY(KEY_U32, "dflash.vocab_size", 95), .code = RT_EFORMAT, .named = { "vocabulary size is 95" } },
        { DRAFT_C, KEY(KEY_U32, "dflash.attention.head_count", 0), .code = RT_EFORMAT, .named = { "head_count" } },
        { DRAFT_C, KEY(KEY_U32, "dflash.attention.head_count_kv", 3), .code = RT_EFORMAT,
          .named = { "multiple of 3" } },
        { DRAFT_C, KEY(KEY_F32, "dflash.attention.layer_norm_rms_epsilon", NAN), .code = RT_EFORMAT,
          .named = { "epsilon" } },
        { DRAFT_C, KEY(KEY_F32, "dflash.rope.freq_base", 0), .code = RT_EFORMAT, .named = { "freq_base" } },
        { DRAFT_C, KEY(KEY_F32, "dflash.logit_scale", -1), .code = RT_EFORMAT, .named = { "logit_scale" } },
        { DRAFT_C, KEY(KEY_BOOL, "dflash.sample_from_anchor", 1), .code = RT_EUNSUPPORTED,
          .named = { "sample_from_anchor" } },
        { DRAFT_C, KEY(KEY_U32, "dflash.hyper_connection_count", 4), .code = RT_EFORMAT,
          .named = { "hyper_connection_count" } },
        { DRAFT_C, { KEY_I32S, .name = "dflash.attention.sliding_window_pattern", IDS(1, 1) }, .code = RT_EFORMAT,
          .named = { "sliding_window_pattern" } },
        { DRAFT_C, { KEY_STR, .name = "general.architecture", .text = "eagle3" }, .code = RT_EUNSUPPORTED,
          .named = { "eagle3" } },
        { DRAFT_C, { KEY_STR, .name = "general.architecture", .text = "qwen3" }, .code = RT_EUNSUPPORTED,
          .named = { "qwen3", "DFlash" } },
    };
    CHECK_ALL(cases);
}

static void drafter_tensors(void **state)
{
    (void) state;
    const Case cases[] = {
        { DRAFT_C, { TENSOR_DROP, .name = "blk.2.attn_k_norm.weight" }, .code = RT_EFORMAT,
          .named = { "blk.2.attn_k_norm.weight", "missing" } },
        { DRAFT_C, { TENSOR_ADD, .name = "blk.2.attn_sinks.weight" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.2.attn_sinks.weight", "unknown" } },
        { DRAFT_C, { TENSOR_ADD, .name = "anything.weight" }, .code = RT_EUNSUPPORTED,
          .named = { "anything.weight", "unknown" } },
        { DRAFT_C, { TENSOR_TURN, .name = "fc.weight" }, .code = RT_EFORMAT, .named = { "fc.weight", "expected [" } },
        { DRAFT_C, { TENSOR_I32, .name = "fc.weight" }, .code = RT_EUNSUPPORTED, .named = { "fc.weight", "type" } },
        { DRAFT_C, KEY(KEY_U32, "dflash.conv_kernel_size", 2), .code = RT_EFORMAT, .named = { "conv_group_size" } },
        { DRAFT_C, KEY(KEY_U32, "dflash.selector_rank", 8), .code = RT_EFORMAT, .named = { "selector_", "missing" } },
        { DRAFT2_C, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { DRAFT2_C, { KEY_DROP, .name = "dflash.selector_rank" }, .code = RT_EUNSUPPORTED,
          .named = { "selector", "unknown" } },
        { DRAFT2_C, { KEY_DROP, .name = "dflash.conv_kernel_size" }, .code = RT_EUNSUPPORTED,
          .named = { "conv", "unknown" } },
        { DRAFT2_C, KEY(KEY_U32, "dflash.conv_group_size", 0), .code = RT_EFORMAT, .named = { "conv_group_size" } },
        { DRAFT2_C, KEY(KEY_U32, "dflash.conv_group_size", 7), .code = RT_EFORMAT,
          .named = { "conv_group_size is 7" } },
        { DRAFT2_C, KEY(KEY_U32, "dflash.conv_kernel_size", 9), .code = RT_EFORMAT, .named = { "conv_kernel_size" } },
        { DRAFT2_C, KEY(KEY_U32, "dflash.conv_kernel_size", 4), .code = RT_EFORMAT, .named = { "conv" } },
        { DRAFT2_C, KEY(KEY_U32, "dflash.selector_rank", 65536), .code = RT_EFORMAT, .named = { "selector" } },
    };
    CHECK_ALL(cases);
}

#define CONFIG_LINE(from, to) { .what = CONFIG, .name = from, .text = to }
static void drafters_for_laguna(void **state)
{
    (void) state;
    const Case cases[] = {
        { LAGUNA_B, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },      /* no mask token: 12 */
        { LAGUNA_HF, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { LAGUNA_B, { KEY_DROP, .name = "dflash-draft.dflash.context_kv_layer_norm" }, .code = RT_OK,
          .named = { NULL } },
        { LAGUNA_B, { KEY_DROP, .name = "dflash-draft.dflash.target_layer_ids" }, .code = RT_EFORMAT,
          .named = { "target_layer_ids", "missing" } },
        { LAGUNA_B, { TENSOR_DROP, .name = "dflash.aux_hidden_norm.1.weight" }, .code = RT_EFORMAT,
          .named = { "dflash.aux_hidden_norm.1.weight", "missing" } },
        { LAGUNA_B, { TENSOR_DROP, .name = "dflash.aux_hidden_norm.0.weight" }, .code = RT_EUNSUPPORTED,
          .named = { "dflash.aux_hidden_norm.1.weight", "unknown" } },
        { LAGUNA_B, { TENSOR_ADD, .name = "dflash.aux_hidden_norm.2.weight" }, .code = RT_EUNSUPPORTED,
          .named = { "dflash.aux_hidden_norm.2.weight", "unknown" } },
        { LAGUNA_B, { TENSOR_SHORT, .name = "dflash.aux_hidden_norm.0.weight" }, .code = RT_EFORMAT,
          .named = { "dflash.aux_hidden_norm.0.weight", "expected [64" } },
        { LAGUNA_B, { TENSOR_DROP, .name = "blk.2.attn_gate.weight" }, .code = RT_EFORMAT,
          .named = { "blk.2.attn_gate.weight", "missing" } },
        { LAGUNA_B, { TENSOR_DROP, .name = "blk.0.attn_gate.weight" }, .code = RT_EUNSUPPORTED,
          .named = { "blk.1.attn_gate.weight", "unknown" } },
        { LAGUNA_B, { TENSOR_SHORT, .name = "blk.0.attn_gate.weight" }, .code = RT_EFORMAT,
          .named = { "blk.0.attn_gate.weight has 3 rows", "expected 4 (a gate per head) or 128" } },
        { LAGUNA_HF, CONFIG_LINE("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 1"), .code = RT_EFORMAT,
          .named = { "qkv_proj.weight has 256 rows, expected 192" } },
        { LAGUNA_HF, CONFIG_LINE("\"causal\": true, \"num_target_layers\": 5", "\"num_target_layers\": 6"),
          .code = RT_EFORMAT, .named = { "num_target_layers is 6" } },
        { LAGUNA_HF, CONFIG_LINE("\"rope_theta\"", "\"rope_parameters\": {\"rope_type\": \"yarn\"}, \"rope_theta\""),
          .code = RT_EUNSUPPORTED, .named = { "rope_parameters.rope_type is 'yarn', expected default" } },
        { LAGUNA_HF, CONFIG_LINE("\"rope_theta\"", "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}, "
                                 "\"rope_theta\""), .code = RT_EUNSUPPORTED,
          .named = { "partial_rotary_factor is 0.5" } },
    };
    CHECK_ALL(cases);
}

static void heads_of_drafters(void **state)
{
    (void) state;
    const Case cases[] = {
        { DSPARK_B, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { DSPARK_C, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { DSPARK_HF, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { DSPARK_B, { TENSOR_DROP, .name = "dflash.dspark.markov.w2" }, .code = RT_EFORMAT, .named = { "missing" } },
        { DSPARK_B, { TENSOR_DROP, .name = "dflash.dspark.markov.w1" }, .code = RT_EUNSUPPORTED,
          .named = { "dflash.dspark.markov.w2", "unknown" } },
        { DSPARK_B, { TENSOR_SHORT, .name = "dflash.dspark.markov.w1" }, .code = RT_EFORMAT,
          .named = { "dflash.dspark.markov.w1", "expected [32, 96]" } },
        { DSPARK_B, { TENSOR_DROP, .name = "dflash.dspark.confidence.weight" }, .code = RT_OK, .named = { NULL } },
        { DSPARK_B, KEY(KEY_U32, "qwen35-dflash-draft.dflash.dflash2.selector_rank", 8), .code = RT_EUNSUPPORTED,
          .named = { "markov.w1 beside a selector" } },
        { DSPARK_C, { KEY_DROP, .name = "dflash.sample_from_anchor" }, .code = RT_EUNSUPPORTED,
          .named = { "sample_from_anchor is true if it is missing beside a Markov head" } },
        { DSPARK_C, KEY(KEY_BOOL, "dflash.sample_from_anchor", 1), .code = RT_EUNSUPPORTED,
          .named = { "sample_from_anchor is true" } },
        { DSPARK_HF, CONFIG_LINE("\"sample_from_anchor\": false", "\"sample_from_anchor\": true"),
          .code = RT_EUNSUPPORTED, .named = { "sample_from_anchor is true" } },
        { DSPARK_HF, CONFIG_LINE("\"sample_from_anchor\": false", "\"sample_from_anchor\": 0"), .code = RT_EUNSUPPORTED,
          .named = { "sample_from_anchor is neither true nor false" } },
        { DSPARK_HF, CONFIG_LINE("\"sample_from_anchor\"", "\"other\""), .code = RT_EUNSUPPORTED,
          .named = { "sample_from_anchor is missing beside a Markov head" } },
        { LIBRARY_C, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { LIBRARY_HF, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { LIBRARY_C, { TENSOR_DROP, .name = "output.weight" }, .code = RT_EFORMAT,
          .named = { "output.weight is missing (shape [64, 32])" } },
        { LIBRARY_C, { TENSOR_DROP, .name = "d2t" }, .code = RT_EFORMAT,
          .named = { "output.weight", "expected [64, 96]" } },
        { LIBRARY_C, { TENSOR_SHORT, .name = "d2t" }, .code = RT_EFORMAT,
          .named = { "output.weight", "expected [64, 31]" } },
        { LIBRARY_C, { TENSOR_NAN, .name = "d2t" }, .code = RT_EFORMAT,
          .named = { "d2t value 0 is 2143289344, expected 0 to 95" } },
        { LIBRARY_C, { TENSOR_ZERO, .name = "d2t" }, .code = RT_EFORMAT, .named = { "d2t has token 0 twice" } },
        { LIBRARY_HF, { HEADER, .name = "\"norm.weight\":{\"dtype\":\"F32\",\"shape\":[64]",
                        .text = "\"norm.weight\":{\"dtype\":\"I64\",\"shape\":[32]" }, .code = RT_EUNSUPPORTED,
          .named = { "norm.weight has type I64, which is not supported" } },
        { LIBRARY_HF, CONFIG_LINE("\"sample_from_anchor\": false", "\"sample_from_anchor\": null"), .code = RT_OK,
          .named = { NULL } },
        { LIBRARY_HF, CONFIG_LINE("[1, 2]", "[0, 2]"), .code = RT_EFORMAT,
          .named = { "aux_hidden_state_layer_ids value 0 is no layer id" } },
        { LIBRARY_HF, CONFIG_LINE("[1, 2]", "[1, 5]"), .code = RT_EFORMAT, .named = { "target layer id 4" } },
        { LIBRARY_HF, CONFIG_LINE("\"aux_hidden_state_layer_ids\"", "\"others\""), .code = RT_EFORMAT,
          .named = { "aux_hidden_state_layer_ids must be a list" } },
        { LIBRARY_HF, CONFIG_LINE("\"model_type\": \"qwen3\"", "\"model_type\": \"gemma3\""), .code = RT_EUNSUPPORTED,
          .named = { "model_type is 'gemma3'" } },
        { LIBRARY_HF, CONFIG_LINE("\"hidden_size\": 64, ", ""), .code = RT_EFORMAT,
          .named = { "hidden size is 4096" } },
        { LIBRARY_HF, CONFIG_LINE("\"rope_type\": \"default\"", "\"rope_type\": \"yarn\""), .code = RT_EUNSUPPORTED,
          .named = { "rope_type is 'yarn'" } },
        { LIBRARY_HF, CONFIG_LINE("\"block_size\": 8", "\"target_hidden_size\": 32, \"block_size\": 8"),
          .code = RT_EFORMAT, .named = { "target_hidden_size must be a whole number from 64 to 64" } },
    };
    CHECK_ALL(cases);
}

static void drafter_folder(void **state)
{
    (void) state;
    const Case cases[] = {
        { DRAFT_HF, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { DRAFT2_HF, { AS_IS, .name = "" }, .code = RT_OK, .named = { NULL } },
        { DRAFT_HF, CONFIG_LINE("{\"architectures\"", "[{\"architectures\""), .code = RT_EFORMAT,
          .named = { "config.json" } },
        { DRAFT_HF, CONFIG_LINE("{\"architectures\"", "{\"hidden_size\": 1, \"architectures\""), .code = RT_EFORMAT,
          .named = { "config.json" } },
        { DRAFT_HF, CONFIG_LINE("\"hidden_size\": 64", "\"hidden_size\": 32"), .code = RT_EFORMAT,
          .named = { "hidden size is 32" } },
        { DRAFT_HF, CONFIG_LINE("\"hidden_size\": 64", "\"hidden_size\": 64.5"), .code = RT_EFORMAT,
          .named = { "hidden_size" } },
        { DRAFT_HF, CONFIG_LINE("\"hidden_size\": 64", "\"hidden_size\": -64"), .code = RT_EFORMAT,
          .named = { "hidden_size" } },
        { DRAFT_HF, CONFIG_LINE("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1000000"), .code = RT_EFORMAT,
          .named = { "num_hidden_layers" } },
        { DRAFT_HF, CONFIG_LINE("\"num_hidden_layers\": 3", "\"num_hidden_layers\": null"), .code = RT_EFORMAT,
          .named = { "num_hidden_layers", "missing" } },
        { DRAFT_HF, CONFIG_LINE("\"num_attention_heads\"", "\"heads\""), .code = RT_EFORMAT,
          .named = { "num_attention_heads", "missing" } },
        { DRAFT_HF, CONFIG_LINE("\"vocab_size\": 96", "\"vocab_size\": 97"), .code = RT_EFORMAT,
          .named = { "vocabulary size is 97" } },
        { DRAFT_HF, CONFIG_LINE("\"rms_norm_eps\": ", "\"rms_norm_eps\": -"), .code = RT_EFORMAT,
          .named = { "rms_norm_eps" } },
        { DRAFT_HF, CONFIG_LINE("\"rope_theta\": ", "\"rope_theta\": -"), .code = RT_EFORMAT,
          .named = { "rope_theta" } },
        { DRAFT_HF, CONFIG_LINE("\"block_size\": 8", "\"block_size\": 1"), .code = RT_EFORMAT,
          .named = { "block_size" } },
        { DRAFT_HF, CONFIG_LINE("\"block_size\": 8", "\"block_size\": 1000000"), .code = RT_EFORMAT,
          .named = { "block_size" } },
        { DRAFT_HF, CONFIG_LINE("\"mask_token_id\": ", "\"mask_token_id\": 9"), .code = RT_EFORMAT,
          .named = { "mask token id is 9" } },
        { DRAFT_HF, CONFIG_LINE("\"mask_token_id\": ", "\"mask_token_id\": -"), .code = RT_EFORMAT,
          .named = { "mask_token_id" } },
        { DRAFT_HF, CONFIG_LINE("\"target_layer_ids\": [", "\"target_layer_ids\": [5000000000, "), .code = RT_EFORMAT,
          .named = { "target_layer_ids" } },
        { DRAFT_HF, CONFIG_LINE("\"target_layer_ids\": [", "\"target_layer_ids\": [2, "), .code = RT_EFORMAT,
          .named = { "ascending" } },
        { DRAFT_HF, CONFIG_LINE("\"target_layer_ids\": [", "\"target_layer_ids\": [-1, "), .code = RT_EFORMAT,
          .named = { "target_layer_ids" } },
        { DRAFT_HF, CONFIG_LINE("\"dflash_config\": {", "\"dflash_config\": 3, \"other\": {"), .code = RT_EFORMAT,
          .named = { "dflash_config" } },
        { DRAFT_HF, CONFIG_LINE("[\"full_attention\", ", "[\"sliding_attention\", "), .code = RT_EFORMAT,
          .named = { "sliding_window" } },
        { DRAFT_HF, CONFIG_LINE("[\"full_attention\", ", "[\"linear_attention\", "), .code = RT_EUNSUPPORTED,
          .named = { "linear_attention" } },
        { DRAFT_HF, CONFIG_LINE("[\"full_attention\", ", "[7, "), .code = RT_EUNSUPPORTED, .named = { "layer_types" } },
        { DRAFT_HF, CONFIG_LINE("[\"full_attention\", ", "["), .code = RT_EFORMAT, .named = { "layer_types" } },
        { DRAFT_HF, CONFIG_LINE("\"hidden_act\"", "\"rope_scaling\": {\"type\": \"yarn\"}, \"hidden_act\""),
          .code = RT_EUNSUPPORTED, .named = { "rope_scaling" } },
        { DRAFT2_HF, CONFIG_LINE("\"conv_kernel_size\": 2", "\"conv_kernel_size\": 0"), .code = RT_EUNSUPPORTED,
          .named = { "conv", "unknown" } },
        { DRAFT2_HF, CONFIG_LINE("\"conv_group_size\"", "\"group\""), .code = RT_EFORMAT,
          .named = { "conv_group_size" } },
    };
    CHECK_ALL(cases);
}

/* Files passed in each other's place. */
static void wrong_place(void **state)
{
    (void) state;
    Files f;
    rt_engine *g;
    rt_error e;
    files_make(&f, DRAFT_C, &(Edit) { AS_IS, .name = "" }, NULL);
    struct { const char *model, *draft; rt_status code; const char *named; } tries[] = {
        { f.draft, NULL, RT_EUNSUPPORTED, "general.architecture is 'dflash'" },
        { f.model, f.model, RT_EUNSUPPORTED, "DFlash drafter" },
        { f.draft, f.model, RT_EUNSUPPORTED, "general.architecture is 'dflash'" },
        { f.dir, NULL, RT_EIO, f.dir },
        { f.model, f.dir, RT_EIO, f.dir },
        { "/nowhere/at/all.gguf", NULL, RT_EIO, "/nowhere/at/all.gguf" },
        { f.model, "/nowhere/at/all", RT_EIO, "/nowhere/at/all" },
        { NULL, NULL, RT_EARG, "model" },
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        rt_options o = RT_OPTIONS(.model = tries[i].model, .draft = tries[i].draft, .threads = 1);
        rt_status code = rt_open(&g, &o, &e);
        if (code != tries[i].code || !strstr(e.text, tries[i].named)) fail_msg("try %zu: code %d: %s", i, code, e.text);
        assert_null(g);
    }
    files_remove(&f);
}

/* ---- odd and right ---- */

static void first_tokens(const char *model, const char *draft, int32_t budget, int32_t *text, int32_t n)
{
    rt_engine *g;
    rt_step *st;
    rt_session *s;
    rt_error e;
    rt_block b;
    rt_options o = RT_OPTIONS(.model = model, .draft = draft, .threads = 1);
    if (rt_open(&g, &o, &e) != RT_OK) fail_msg("%s", e.text);
    assert_int_equal(rt_step_new(&st, g, &RT_STEP_OPTIONS(.budget = budget), &e), RT_OK);
    assert_int_equal(rt_session_new(&s, g, &RT_SESSION_OPTIONS(.ctx = 100), &e), RT_OK);
    assert_int_equal(rt_prompt(s, (const int32_t[]) { 3, 1, 4, 1, 5, 9, 2, 6 }, 8), RT_OK);
    for (int32_t made = 0; made < n; made += b.n) {
        assert_int_equal(rt_next(st, s, &b), RT_OK);
        for (int32_t i = 0; i < b.n && made + i < n; i++) text[made + i] = b.token[i];
    }
    rt_session_free(s);
    rt_step_free(st);
    rt_close(g);
}

/* The same model, written by several programs, gives the same results. */
static void other_writers(void **state)
{
    (void) state;
    enum { N = 24 };
    const Edit edits[] = {
        { KEY_BOOLS, .name = "qwen35.attention.recurrent_layers", IDS(1, 1, 1, 0) },
        { KEY_DROP, .name = "qwen35.full_attention_interval" },
        { KEY_DROP, .name = "qwen35.attention.value_length" },
        { KEY_DROP, .name = "qwen35.vocab_size" },
    };
    int32_t want[N], got[N];
    Files f;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        files_make(&f, QWEN35, &edits[i], NULL);
        first_tokens(f.model, NULL, -1, want, N);
        first_tokens(f.changed, NULL, -1, got, N);
        assert_same(want, got, sizeof want, "%s", edits[i].name);
        files_remove(&f);
    }
    TinyModel ollama = tiny_model(TINY_QWEN35), mtp = ollama;
    ollama.style = TINY_OLLAMA;
    mtp.n_mtp = 1;
    const TinyModel *const odd[] = { &ollama, &mtp };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        files_make(&f, QWEN35, &(Edit) { AS_IS, .name = "" }, odd[i]);
        first_tokens(f.changed, NULL, -1, got, N);
        assert_same(want, got, sizeof want, "writer %zu", i);
        files_remove(&f);
    }
}

/* Layers with a window: every writer's way to name them, and another choice, which changes the text. */
static void laguna_writers(void **state)
{
    (void) state;
    enum { N = 40 };
    const Edit edits[] = {
        { KEY_U32, .name = "laguna.attention.sliding_window_pattern", .number = 4 },
        { KEY_BOOLS, .name = "laguna.attention.sliding_window_pattern", IDS(0, 1, 1, 1, 0) },
        { KEY_STR, .name = "laguna.rope.scaling.type", .text = "yarn" },
        { KEY_F32, .name = "laguna.rope.scaling.yarn_attn_factor", .number = 1.1386294 },
        { KEY_DROP, .name = "laguna.leading_dense_block_count" },
        { KEY_DROP, .name = "laguna.expert_weights_norm" },
        { KEY_BOOLS, .name = "laguna.attention.sliding_window_pattern", IDS(1, 1, 0, 1, 0) },
        { KEY_F32, .name = "laguna.rope.scaling.attn_factor", .number = 1.5 },
        { KEY_F32, .name = "laguna.expert_weights_scale", .number = 1 },
    };
    const size_t same = 6;
    int32_t want[N], got[N];
    Files f;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        files_make(&f, LAGUNA, &edits[i], NULL);
        first_tokens(f.model, NULL, -1, want, N);
        first_tokens(f.changed, NULL, -1, got, N);
        if (i < same) assert_same(want, got, sizeof want, "%s", edits[i].name);
        else assert_memory_not_equal(want, got, sizeof want);
        files_remove(&f);
    }
}

/* A scale of zero counts as absent; any other value takes effect. */
static void zero_scale(void **state)
{
    (void) state;
    enum { N = 24 };
    int32_t want[N], got[N];
    Files f;
    for (int32_t i = 0; i < 2; i++) {
        files_make(&f, LLAMA, &(Edit) { KEY_F32, .name = "llama.attention.scale", .number = i ? 4.0 : 0.0 }, NULL);
        first_tokens(f.model, NULL, -1, want, N);
        first_tokens(f.changed, NULL, -1, got, N);
        assert_int_equal(memcmp(want, got, sizeof want) == 0, i == 0);
        files_remove(&f);
    }
}

/* ---- what does not fit, and what changes ---- */

static void little(Backend *b, uint64_t *free, uint64_t *total)
{
    (void) b;
    *free = *total = 1 << 30;
}

/* Memory that is granted but does not exist would end the process on first use, so it is checked in advance. */
static void more_than_memory(void **state)
{
    (void) state;
    Files f;
    rt_engine *g;
    rt_session *s;
    rt_error e;
    files_make(&f, QWEN3, &(Edit) { AS_IS, .name = "" }, NULL);
    assert_int_equal(rt_open(&g, &RT_OPTIONS(.model = f.changed, .threads = 1), &e), RT_OK);
    g->have.at[0].be->memory = little;
    assert_int_equal(rt_session_new(&s, g, &RT_SESSION_OPTIONS(.ctx = RT_CTX_MAX), &e), RT_ENOMEM);
    if (!strstr(e.text, "a session of 1048576 tokens takes") || !strstr(e.text, "but 1.07 GB")) fail_msg("%s", e.text);
    assert_null(s);
    rt_close(g);
    files_remove(&f);
}

/* A position has a rotation up to RT_CTX_MAX, and the rows of a block that is denoised lie behind the context. */
static void longest_contexts(void **state)
{
    (void) state;
    double sine, cosine;
    mathd_sincos(RT_CTX_MAX, &sine, &cosine);
    assert_true(isfinite(sine) && isfinite(cosine));
    for (int32_t canvas = 0; canvas < 2; canvas++) {
        Files f;
        rt_error e;
        rt_session_options so = RT_SESSION_OPTIONS_INIT;
        files_make(&f, canvas ? DIFFUSION : QWEN3, &(Edit) { AS_IS, .name = "" }, NULL);
        const rt_options o = RT_OPTIONS(.model = f.changed, .threads = 1);
        const int32_t most = RT_CTX_MAX - f.tm.canvas;
        char want[96];
        snprintf(want, sizeof want, "ctx: %d, expected 1 to %d tokens (0: default)", most + 1, most);
        assert_int_equal(f.tm.canvas > 0, canvas);
        so.ctx = most;
        assert_int_equal(rt_plan(&o, &so, NULL, NULL, NULL, NULL, 0, &e), RT_OK);
        so.ctx = most + 1;
        assert_int_equal(rt_plan(&o, &so, NULL, NULL, NULL, NULL, 0, &e), RT_EARG);
        assert_string_equal(e.text, want);
        so = RT_SESSION_OPTIONS(.draft_ctx = RT_CTX_MAX + 1);
        assert_int_equal(rt_plan(&o, &so, NULL, NULL, NULL, NULL, 0, &e), RT_EARG);
        assert_string_equal(e.text, "draft_ctx: 1048577, expected 1 to 1048576 tokens (0: default)");
        files_remove(&f);
    }
}

/* A drafter's file may claim any window: a session takes no more than its text can use. */
static void endless_window(void **state)
{
    (void) state;
    enum { N = 24 };
    int32_t want[N], got[N];
    Files f;
    files_make(&f, DRAFT_C, &(Edit) { KEY_U32, .name = "dflash.attention.sliding_window", .number = 1 << 30 }, NULL);
    double t0 = seconds();
    first_tokens(f.model, NULL, -1, want, N);
    first_tokens(f.model, f.changed, 8, got, N);
    assert_same(want, got, sizeof want, "window");
    assert_true(seconds() - t0 < 20);
    files_remove(&f);
}

/* to: the time that the file is given during loading. */
typedef struct { const Files *f; struct timespec to; } Touch;

static bool touch(void *ud, const char *what, int64_t done, int64_t total)
{
    (void) what;
    const Touch *t = ud;
    return done < total / 2 || utimensat(AT_FDCWD, t->f->changed, (struct timespec[2]) { t->to, t->to }, 0) == 0;
}

static void written_while_loading(void **state)
{
    (void) state;
    Files f;
    rt_engine *g;
    rt_error e;
    files_make(&f, LLAMA, &(Edit) { AS_IS, .name = "" }, NULL);
    static const struct timespec is = { 1000, 5000 }, to[3] = { { 1, 0 }, { 1001, 5000 }, { 1000, 5001 } };
    for (size_t i = 0; i < 3; i++) {               /* another second, and a moment later in the same second */
        Touch t = { &f, to[i] };
        assert_int_equal(utimensat(AT_FDCWD, f.changed, (struct timespec[2]) { is, is }, 0), 0);
        rt_options o = RT_OPTIONS(.model = f.changed, .threads = 1, .hooks = { .ud = &t, .progress = touch });
        assert_int_equal(rt_open(&g, &o, &e), RT_EIO);
        assert_non_null(strstr(e.text, f.changed));
        assert_non_null(strstr(e.text, "written to"));
        assert_null(g);
    }
    files_remove(&f);
}

/* Loading stops when its hook says so, however late. */
static bool until(void *ud, const char *what, int64_t done, int64_t total)
{
    (void) what;
    return done * 10 < total * *(const int64_t *) ud;
}

static void cancelled_while_loading(void **state)
{
    (void) state;
    Files f;
    rt_engine *g;
    rt_error e;
    files_make(&f, LLAMA, &(Edit) { AS_IS, .name = "" }, NULL);
    for (int64_t tenths = 0; tenths <= 11; tenths++) {
        rt_options o = RT_OPTIONS(.model = f.changed, .threads = 1, .hooks = { .ud = &tenths, .progress = until });
        assert_int_equal(rt_open(&g, &o, &e), tenths > 10 ? RT_OK : RT_ECANCEL);
        if (tenths > 10) rt_close(g);
        else assert_null(g);
    }
    files_remove(&f);
}

/* Taps ascend, each layer once. */
static void wrong_taps(void **state)
{
    (void) state;
    static const struct { int32_t tap[3]; bool good; } rows[] = {
        { { 0, 1, 2 }, true }, { { 1, 1, 2 }, false }, { { 0, 2, 1 }, false }, { { -1, 0, 1 }, false },
        { { 0, 1, 1000 }, false },
    };
    Files f;
    rt_engine *g;
    rt_error e;
    files_make(&f, LLAMA, &(Edit) { AS_IS, .name = "" }, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rt_options o = RT_OPTIONS(.model = f.changed, .threads = 1, .taps = rows[i].tap, .n_taps = 3);
        assert_int_equal(rt_open(&g, &o, &e), rows[i].good ? RT_OK : RT_EARG);
        if (rows[i].good) rt_close(g);
        else assert_non_null(strstr(e.text, "expected ascending ids"));
    }
    files_remove(&f);
}

static void ignore_row(void *ud, int32_t i, const float *logits, const float *taps)
{
    (void) ud, (void) i, (void) logits, (void) taps;
}

/* A session cannot be twice in a step, nor in a step of another engine, whatever the call. */
static void wrong_sessions(void **state)
{
    (void) state;
    Files f;
    rt_engine *g[2];
    rt_step *st;
    rt_session *s[2];
    rt_error e;
    rt_block b[2];
    files_make(&f, LLAMA, &(Edit) { AS_IS, .name = "" }, NULL);
    for (int32_t i = 0; i < 2; i++) {
        assert_int_equal(rt_open(&g[i], &RT_OPTIONS(.model = f.model, .threads = 1), &e), RT_OK);
        assert_int_equal(rt_session_new(&s[i], g[i], &RT_SESSION_OPTIONS(.ctx = 20), &e), RT_OK);
        assert_int_equal(rt_prompt(s[i], (const int32_t[]) { 1, 2 }, 2), RT_OK);
    }
    assert_int_equal(rt_step_new(&st, g[0], &RT_STEP_OPTIONS(.sessions = 2), &e), RT_OK);
    assert_int_equal(rt_step_run(st, (rt_session *const[]) { s[0], s[0] }, b, 2), RT_EARG);
    assert_int_equal(rt_step_run(st, (rt_session *const[]) { s[0], s[1] }, b, 2), RT_EARG);
    assert_int_equal(rt_step_run(st, (rt_session *const[]) { s[0] }, b, 1), RT_OK);
    double ms;
    const int32_t token = 1;
    assert_int_equal(rt_rows(st, s[1], NULL, 0, &token, NULL, 1, RT_ROWS_LOGITS, ignore_row, NULL), RT_EARG);
    assert_int_equal(rt_time_pass(st, s[1], -1, 1, 1, &ms), RT_EARG);
    assert_non_null(strstr(rt_step_error(st), "another engine's"));
    assert_int_equal(rt_draft_rows(st, s[1], NULL, 0, 1, ignore_row, NULL), RT_EARG);
    assert_int_equal(rt_canvas_rows(st, s[1], NULL, 0, &token, 1, NULL, 0, ignore_row, NULL), RT_EARG);
    assert_int_equal(rt_rows(st, s[0], NULL, 0, &token, NULL, 1, RT_ROWS_LOGITS, ignore_row, NULL), RT_OK);
    rt_step_free(st);
    for (int32_t i = 0; i < 2; i++) {
        rt_session_free(s[i]);
        rt_close(g[i]);
    }
    files_remove(&f);
}

/* ---- what the file recommends for drawing tokens ---- */

static void keep_warning(void *ud, int level, const char *line)
{
    if (level <= 1) snprintf(ud, 600, "%s", line);
}

/* warned NULL: the value is the property; otherwise the property is unknown and a warning holds this text. */
static void recommended(void **state)
{
    (void) state;
    static const struct { Edit edit; const char *value, *warned; } cases[] = {
        { { KEY_F32, .name = "general.sampling.temp", .number = 0.6 }, "0.6", NULL },
        { { KEY_F32, .name = "general.sampling.temp", .number = 0 }, "0", NULL },
        { { KEY_U32, .name = "general.sampling.temp", .number = 1 }, "1", NULL },
        { { KEY_U32, .name = "general.sampling.top_k", .number = 20 }, "20", NULL },
        { { KEY_F32, .name = "general.sampling.top_p", .number = 0.95 }, "0.95", NULL },
        { { KEY_U32, .name = "general.sampling.penalty_last_n", .number = 64 }, "64", NULL },
        { { KEY_F32, .name = "general.sampling.temp", .number = -1 }, NULL, "general.sampling.temp' is -1, expected" },
        { { KEY_F32, .name = "general.sampling.temp", .number = NAN }, NULL, "general.sampling.temp' is nan, expe" },
        { { KEY_F32, .name = "general.sampling.top_k", .number = 2.5 }, NULL, "2.5, expected a whole number" },
        { { KEY_F32, .name = "general.sampling.top_p", .number = 1.5 }, NULL, "general.sampling.top_p' is 1.5" },
        { { KEY_U32, .name = "general.sampling.penalty_last_n", .number = 4096 }, NULL, "is 4096" },
        { { KEY_STR, .name = "general.sampling.min_p", .text = "0.1" }, NULL, "general.sampling.min_p' has type str" },
        { { KEY_F32, .name = "general.sampling.penalty_repeat", .number = INFINITY }, NULL, "penalty_repeat' is inf" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Files f;
        rt_engine *g;
        rt_error e;
        char warned[600] = "", value[32] = "";
        files_make(&f, QWEN3, &cases[i].edit, NULL);
        rt_hooks hooks = { .ud = warned, .log = keep_warning };
        assert_int_equal(rt_open(&g, &RT_OPTIONS(.model = f.changed, .threads = 1, .hooks = hooks), &e), RT_OK);
        const char *property = cases[i].edit.name + strlen("general.");
        size_t n = rt_property(g, property, value, sizeof value);
        assert_int_equal(n, cases[i].value ? strlen(cases[i].value) : 0);
        assert_string_equal(value, cases[i].value ? cases[i].value : "");
        if (!cases[i].warned) assert_string_equal(warned, "");
        else if (!strstr(warned, cases[i].warned) || !strstr(warned, "ignored")) fail_msg("%s", warned);
        assert_int_equal(rt_property(g, "sampling.nosuch", value, sizeof value), 0);
        rt_close(g);
        files_remove(&f);
    }
}

/* Numbers have a point in a locale with a comma; where none can be made, there is nothing to see. */
static void with_a_comma(void **state)
{
    (void) state;
    char dir[] = "/tmp/ratoon-locale-XXXXXX", command[200], value[32];
    Files f;
    rt_engine *g;
    rt_error e;
    assert_non_null(mkdtemp(dir));
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", dir);
    const bool made = system(command) == 0;
    files_make(&f, QWEN3, &(Edit) { KEY_F32, .name = "general.sampling.temp", .number = 0.6 }, NULL);
    assert_int_equal(rt_open(&g, &RT_OPTIONS(.model = f.changed, .threads = 1), &e), RT_OK);
    setenv("LOCPATH", dir, 1);
    if (made) assert_non_null(setlocale(LC_NUMERIC, "de_DE.UTF-8"));
    rt_property(g, "sampling.temp", value, sizeof value);
    setlocale(LC_NUMERIC, "C");
    unsetenv("LOCPATH");
    assert_string_equal(value, "0.6");
    rt_close(g);
    files_remove(&f);
    remove_tree(dir);
}

/* ---- what an image of a session is valid under ---- */

static void identity_of(char out[600], const rt_options *o)
{
    rt_engine *g;
    rt_error e;
    if (rt_open(&g, o, &e) != RT_OK) fail_msg("%s", e.text);
    assert_true(rt_property(g, "identity", out, 600) < 600);
    rt_close(g);
}

/* The identity contains all that changes a bit of the state, and nothing else. */
static void identity(void **state)
{
    (void) state;
    Files f, other;
    char plain[600], again[600];
    TinyModel tm = tiny_model(TINY_QWEN3);
    tm.seed++;
    files_make(&f, DRAFT_C, &(Edit) { AS_IS, .name = "" }, NULL);
    files_make(&other, QWEN3, &(Edit) { AS_IS, .name = "" }, &tm);
    identity_of(plain, &RT_OPTIONS(.model = f.model, .threads = 1));
    const rt_options same[] = {
        RT_OPTIONS(.model = f.model, .threads = 2),
        RT_OPTIONS(.model = f.model, .threads = 1, .no_repack = true),
        RT_OPTIONS(.model = f.model, .threads = 1, .backend = "cpu:portable"),
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        identity_of(again, &same[i]);
        assert_string_equal(again, plain);
    }
    const rt_options differ[] = {
        RT_OPTIONS(.model = f.model, .threads = 1, .fa_window = 64),
        RT_OPTIONS(.model = f.model, .threads = 1, .fa_window = 65),
        RT_OPTIONS(.model = f.model, .threads = 1, .kv_k = "q8_0"),
        RT_OPTIONS(.model = f.model, .threads = 1, .kv_v = "q8_0"),
        RT_OPTIONS(.model = f.model, .threads = 1, .draft = f.draft),
        RT_OPTIONS(.model = other.model, .threads = 1),
    };
    enum { N = sizeof differ / sizeof *differ };
    char is[N][600];
    for (size_t i = 0; i < N; i++) {
        identity_of(is[i], &differ[i]);
        assert_string_not_equal(is[i], plain);
        for (size_t j = 0; j < i; j++) assert_string_not_equal(is[i], is[j]);
    }
    files_remove(&f);
    files_remove(&other);
}

/* ---- values that are no numbers (G16) ---- */

static void nan_in_target(void **state)
{
    (void) state;
    static const struct { Base base; const char *tensor; } where[] = {
        { LLAMA, "blk.1.attn_norm.weight" }, { LLAMA, "output_norm.weight" }, { LLAMA, "blk.0.ffn_down.weight" },
        { QWEN3, "blk.2.attn_q_norm.weight" },
        { QWEN35, "blk.0.ssm_norm.weight" }, { QWEN35, "blk.1.ssm_a" }, { QWEN35, "blk.2.ssm_conv1d.weight" },
    };
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        Files f;
        rt_engine *g;
        rt_step *st;
        rt_session *s;
        rt_error e;
        rt_block b;
        files_make(&f, where[i].base, &(Edit) { TENSOR_NAN, .name = where[i].tensor }, NULL);
        rt_options o = RT_OPTIONS(.model = f.changed, .threads = 1);
        assert_int_equal(rt_open(&g, &o, &e), RT_OK);
        assert_int_equal(rt_step_new(&st, g, NULL, &e), RT_OK);
        assert_int_equal(rt_session_new(&s, g, &RT_SESSION_OPTIONS(.ctx = 100), &e), RT_OK);
        for (int32_t round = 0; round < 2; round++) {              /* a new prompt starts afresh */
            assert_int_equal(rt_prompt(s, (const int32_t[]) { 3, 1, 4 }, 3), RT_OK);
            assert_int_equal(rt_next(st, s, &b), RT_EBACKEND);
            assert_int_equal(b.n, 0);
            if (!strstr(rt_session_error(s), "not finite")) fail_msg("%s: %s", where[i].tensor, rt_session_error(s));
            assert_int_equal(rt_next(st, s, &b), RT_EBACKEND);
        }
        rt_session_free(s);
        rt_step_free(st);
        rt_close(g);
        files_remove(&f);
    }
}

/* A drafter whose output is nonsense costs time, never text. */
static void nan_in_drafter(void **state)
{
    (void) state;
    enum { N = 40 };
    static const struct { Base base; const char *tensor; } where[] = {
        { DRAFT_C, "fc.weight" }, { DRAFT_C, "output_norm.weight" }, { DRAFT_C, "blk.1.attn_k_norm.weight" },
        { DRAFT_B, "blk.0.ffn_down.weight" }, { DRAFT2_C, "fc.weight" },
    };
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        Files f;
        int32_t want[N], got[N];
        files_make(&f, where[i].base, &(Edit) { TENSOR_NAN, .name = where[i].tensor }, NULL);
        first_tokens(f.model, NULL, -1, want, N);
        first_tokens(f.model, f.changed, 16, got, N);
        assert_same(want, got, sizeof want, "%s", where[i].tensor);
        files_remove(&f);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes), cmocka_unit_test(numbers), cmocka_unit_test(delta_sizes),
        cmocka_unit_test(laguna_keys), cmocka_unit_test(gemma4_keys), cmocka_unit_test(mixtures),
        cmocka_unit_test(tensors),
        cmocka_unit_test(drafter_keys), cmocka_unit_test(drafter_tensors), cmocka_unit_test(drafter_folder),
        cmocka_unit_test(drafters_for_laguna), cmocka_unit_test(heads_of_drafters), cmocka_unit_test(wrong_place),
        cmocka_unit_test(other_writers), cmocka_unit_test(laguna_writers),
        cmocka_unit_test(zero_scale),
        cmocka_unit_test(more_than_memory), cmocka_unit_test(longest_contexts), cmocka_unit_test(endless_window),
        cmocka_unit_test(written_while_loading),
        cmocka_unit_test(wrong_sessions), cmocka_unit_test(cancelled_while_loading), cmocka_unit_test(wrong_taps),
        cmocka_unit_test(recommended), cmocka_unit_test(with_a_comma), cmocka_unit_test(identity),
        cmocka_unit_test(nan_in_target), cmocka_unit_test(nan_in_drafter),
    };
    return cmocka_run_group_tests_name("load", tests, NULL, NULL);
}
