// llama_logits.c - the logits that llama.cpp gives for a list of token ids, all positions.
//   cc llama_logits.c -I LLAMA/include -I LLAMA/ggml/include -L BUILD/bin -lllama -lggml -lggml-base
//   -Wl,-rpath,BUILD/bin -o llama_logits
//   ./llama_logits model.gguf tokens.i32 out.f32 [chunk] [kv type: f32|f16|q8_0] [plain] [pairs] [trace]
// chunk: tokens per decode call (0: all; 1: one by one, as decoding does). The KV cache is float32 unless given
// otherwise and flash attention is off, so that only the models are compared.
// plain: weights as in the file, not repacked (where the system does not grant the tiles that a native build would
// use). pairs: the first token alone, then each other one in a text of its own behind the first: the rows of a tree in
// which all are children of the root. trace: the rows of each layer's output and of its router's logits (where a bias
// decides: of the biased probabilities) as well, in out.f32.l_out-0 and so on.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llama.h"

static void quiet(enum ggml_log_level l, const char *t, void *u) {
    (void) u;
    if (l >= GGML_LOG_LEVEL_WARN && l != GGML_LOG_LEVEL_CONT) fputs(t, stderr);
}

// Rows of pairs begin with the root's again; skip: not to be written.
typedef struct { const char *path; int skip; } Trace;

static bool on_tensor(struct ggml_tensor *t, bool ask, void *ud) {
    const Trace *tr = ud;
    if (strncmp(t->name, "l_out-", 6) && strncmp(t->name, "ffn_moe_logits-", 15) &&
        strncmp(t->name, "ffn_moe_probs_biased-", 21)) return false;
    if (strchr(t->name, ' ')) return false;          // a view of one of these
    if (ask) return true;
    char path[4096];
    snprintf(path, sizeof path, "%s.%s", tr->path, t->name);
    FILE *o = fopen(path, "ab");
    if (!o || !ggml_is_contiguous(t) || t->type != GGML_TYPE_F32) {
        fprintf(stderr, "%s: cannot be written\n", path);
        exit(1);
    }
    fwrite((float *) t->data + tr->skip * t->ne[0], sizeof(float), (t->ne[1] - tr->skip) * t->ne[0], o);
    fclose(o);
    return true;
}

int main(int argc, char **argv) {
    if (argc < 4)
        return fprintf(stderr, "usage: %s model.gguf tokens.i32 out.f32 [chunk] [kv type] [plain] [pairs] [trace]\n",
                       argv[0]), 2;
    static llama_token tok[1 << 16];
    FILE *f = fopen(argv[2], "rb");
    int n = f ? (int) fread(tok, sizeof *tok, 1 << 16, f) : 0;
    if (!n) return perror(argv[2]), 1;
    fclose(f);
    int chunk = argc > 4 ? atoi(argv[4]) : 0;
    const char *kv = argc > 5 ? argv[5] : "f32";
    if (chunk <= 0) chunk = n;
    int plain = 0, pairs = 0, traced = 0;
    for (int i = 6; i < argc; i++)
        plain |= !strcmp(argv[i], "plain"), pairs |= !strcmp(argv[i], "pairs"), traced |= !strcmp(argv[i], "trace");
    if (pairs) chunk = 1;
    llama_log_set(quiet, 0);
    llama_backend_init();
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    if (plain) mp.use_extra_bufts = false;
    struct llama_model *m = llama_model_load_from_file(argv[1], mp);
    if (!m) return 1;
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = n + 64 < 512 ? 512 : n + 64;
    cp.n_batch = cp.n_ubatch = n > 32 ? n : 32;
    cp.n_threads = cp.n_threads_batch = 1;
    cp.type_k = cp.type_v = strcmp(kv, "f16") == 0 ? GGML_TYPE_F16 : strcmp(kv, "q8_0") == 0
                            ? GGML_TYPE_Q8_0 : GGML_TYPE_F32;
    cp.flash_attn_type = strcmp(kv, "q8_0") == 0 ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    Trace trace = {argv[3], 0};
    if (traced) cp.cb_eval = on_tensor, cp.cb_eval_user_data = &trace;
    struct llama_context *c = llama_init_from_model(m, cp);
    if (!c) return 1;
    int nv = llama_vocab_n_tokens(llama_model_get_vocab(m));
    FILE *o = fopen(argv[3], "wb");
    struct llama_batch b = llama_batch_init(n + 1, 0, 1);
    for (int i = 0; i < n; i += chunk) {
        int k = n - i < chunk ? n - i : chunk;
        trace.skip = pairs && i > 0;
        if (trace.skip) llama_memory_clear(llama_get_memory(c), true);
        k += trace.skip;
        b.n_tokens = k;
        for (int j = 0; j < k; j++) {
            b.token[j] = trace.skip && j == 0 ? tok[0] : tok[i + j - trace.skip];
            b.pos[j] = pairs ? j : i + j;
            b.n_seq_id[j] = 1;
            b.seq_id[j][0] = 0;
            b.logits[j] = 1;
        }
        if (llama_decode(c, b)) return fprintf(stderr, "decode failed at %d\n", i), 1;
        for (int j = trace.skip; j < k; j++) fwrite(llama_get_logits_ith(c, j), sizeof(float), nv, o);
    }
    fclose(o);
    printf("%d tokens, vocabulary %d\n", n, nv);
    return 0;
}
