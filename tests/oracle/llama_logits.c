// llama_logits.c - the logits that llama.cpp gives for a list of token ids, all positions.
//   cc llama_logits.c -I LLAMA/include -I LLAMA/ggml/include -L BUILD/bin -lllama -lggml -lggml-base
//   -Wl,-rpath,BUILD/bin -o llama_logits
//   ./llama_logits model.gguf tokens.i32 out.f32 [chunk] [kv type: f32|f16|q8_0] [plain]
// plain: weights as in the file, not repacked (where the system does not grant the tiles that a native build would
// use). chunk: tokens per decode call (0: all; 1: one by one, as decoding does). The KV cache is float32 unless given
// otherwise and flash attention is off, so that only the models are compared.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llama.h"

static void quiet(enum ggml_log_level l, const char *t, void *u) {
    (void) u;
    if (l >= GGML_LOG_LEVEL_WARN && l != GGML_LOG_LEVEL_CONT) fputs(t, stderr);
}

int main(int argc, char **argv) {
    if (argc < 4) return fprintf(stderr, "usage: %s model.gguf tokens.i32 out.f32 [chunk] [kv type]\n", argv[0]), 2;
    static llama_token tok[1 << 16];
    FILE *f = fopen(argv[2], "rb");
    int n = f ? (int) fread(tok, sizeof *tok, 1 << 16, f) : 0;
    if (!n) return perror(argv[2]), 1;
    fclose(f);
    int chunk = argc > 4 ? atoi(argv[4]) : 0;
    const char *kv = argc > 5 ? argv[5] : "f32";
    if (chunk <= 0) chunk = n;
    llama_log_set(quiet, 0);
    llama_backend_init();
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    if (argc > 6) mp.use_extra_bufts = false;
    struct llama_model *m = llama_model_load_from_file(argv[1], mp);
    if (!m) return 1;
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = n + 64 < 512 ? 512 : n + 64;
    cp.n_batch = cp.n_ubatch = n > 32 ? n : 32;
    cp.n_threads = cp.n_threads_batch = 1;
    cp.type_k = cp.type_v = strcmp(kv, "f16") == 0 ? GGML_TYPE_F16 : strcmp(kv, "q8_0") == 0
                            ? GGML_TYPE_Q8_0 : GGML_TYPE_F32;
    cp.flash_attn_type = strcmp(kv, "q8_0") == 0 ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *c = llama_init_from_model(m, cp);
    if (!c) return 1;
    int nv = llama_vocab_n_tokens(llama_model_get_vocab(m));
    FILE *o = fopen(argv[3], "wb");
    struct llama_batch b = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i += chunk) {
        int k = n - i < chunk ? n - i : chunk;
        b.n_tokens = k;
        for (int j = 0; j < k; j++) {
            b.token[j] = tok[i + j];
            b.pos[j] = i + j;
            b.n_seq_id[j] = 1;
            b.seq_id[j][0] = 0;
            b.logits[j] = 1;
        }
        if (llama_decode(c, b)) return fprintf(stderr, "decode failed at %d\n", i), 1;
        for (int j = 0; j < k; j++) fwrite(llama_get_logits_ith(c, j), sizeof(float), nv, o);
    }
    fclose(o);
    printf("%d tokens, vocabulary %d\n", n, nv);
    return 0;
}
