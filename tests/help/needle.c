#include "needle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/gguf.h"
#include "ratoon.h"
#include "tiny.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

/* Tokens, and the lanes of the residual stream. */
enum { KINDS = 4, FILLERS = 64, NOTES = FILLERS, QUESTIONS = NOTES + KINDS * KINDS, ANSWERS = QUESTIONS + KINDS,
       VOCAB = ANSWERS + KINDS, NOISE = 32, KEY = NOISE, QUESTION = KEY + KINDS, VALUE = QUESTION + KINDS,
       READ = VALUE + KINDS, DIM = 64, FF = 32 };

static float noise(const char *name, int32_t row, int32_t col)
{
    return (float) tiny_normal(tiny_key(7, name), (uint64_t) (row * DIM + col));
}

/* Every row has the length that the norm would give it, so the norm changes nothing. */
static float embedding(int32_t token, int32_t c)
{
    const float one = 8, two = 5.656854f;          /* sqrt(64), sqrt(32) */
    if (token < FILLERS) return c < NOISE ? one / sqrtf(NOISE) * noise("filler", token, c) : 0;
    if (token < QUESTIONS) return c == KEY + (token - NOTES) / KINDS || c == VALUE + (token - NOTES) % KINDS ? two : 0;
    return token < ANSWERS && c == QUESTION + token - QUESTIONS ? one : 0;
}

/* Rotation turns values 0 and 1 of a head, which stay 0, so a key's position does not matter. Values 2 to 5 carry keys,
 * the rest noise. */
static float query(int32_t r, int32_t c, float sharp)
{
    if (r >= 2 && r < 2 + KINDS) return c == QUESTION + r - 2 ? sharp : 0;
    return r >= 8 && c >= QUESTION && c < QUESTION + KINDS ? 0.1f * noise("query", r, c) : 0;
}

static float key(int32_t r, int32_t c, float sharp)
{
    if (r >= 2 && r < 2 + KINDS) return c == KEY + r - 2 ? sharp : 0;
    return r >= 8 && c < NOISE ? 0.3f * noise("key", r, c) : 0;
}

static float value(int32_t r, int32_t c)
{
    if (r < KINDS) return c == VALUE + r ? 1 : 0;
    return c < NOISE ? 0.3f * noise("value", r, c) : 0;
}

typedef enum { EMBED, NORM, QUERY, KEYS, VALUES, OUT, ZERO, HEAD } Part;

static float weight(Part p, int32_t r, int32_t c, float sharp)
{
    switch (p) {
    case EMBED:  return embedding(r, c);
    case NORM:   return 1;
    case QUERY:  return query(r, c, sharp);
    case KEYS:   return key(r, c, sharp);
    case VALUES: return value(r, c);
    case OUT:    return r >= READ && r < READ + KINDS && c == r - READ ? 4 : 0;
    case HEAD:   return r >= ANSWERS ? (c == READ + r - ANSWERS ? 2 : 0) : 0.05f * noise("head", r, c);
    default:     return 0;
    }
}

static void write_model(const char *path, int32_t ctx, int32_t head_dim)
{
    const struct { const char *name; Part part; int64_t rows, cols; } tensors[] = {
        { "token_embd.weight", EMBED, VOCAB, DIM }, { "output_norm.weight", NORM, 0, DIM },
        { "output.weight", HEAD, VOCAB, DIM },
        { "blk.0.attn_norm.weight", NORM, 0, DIM }, { "blk.0.attn_q.weight", QUERY, head_dim, DIM },
        { "blk.0.attn_k.weight", KEYS, head_dim, DIM },
        { "blk.0.attn_v.weight", VALUES, head_dim, DIM }, { "blk.0.attn_output.weight", OUT, DIM, head_dim },
        { "blk.0.ffn_norm.weight", NORM, 0, DIM },
        { "blk.0.ffn_gate.weight", ZERO, FF, DIM }, { "blk.0.ffn_up.weight", ZERO, FF, DIM },
        { "blk.0.ffn_down.weight", ZERO, DIM, FF } };
    enum { N = sizeof tensors / sizeof *tensors };
    static const struct {
        const char *key;
        uint32_t v;
    } sizes[] = { { "block_count", 1 }, { "embedding_length", DIM }, { "feed_forward_length", FF },
                  { "vocab_size", VOCAB }, { "attention.head_count", 1 }, { "attention.head_count_kv", 1 },
                  { "rope.dimension_count", 2 } };
    GgufWriter *w;
    Error err;
    char name[64];
    assert_int_equal(gguf_write_open(&w, path, &err), ST_OK);
    gguf_write_str(w, "general.architecture", "llama", 5);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(name, sizeof name, "llama.%s", sizes[i].key);
        gguf_write_u32(w, name, sizes[i].v);
    }
    gguf_write_u32(w, "llama.context_length", (uint32_t) ctx);
    gguf_write_u32(w, "llama.attention.key_length", (uint32_t) head_dim);
    gguf_write_u32(w, "llama.attention.value_length", (uint32_t) head_dim);
    gguf_write_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-6f);
    gguf_write_str(w, "tokenizer.ggml.model", "no_vocab", 8);
    for (int i = 0; i < N; i++)
        gguf_write_tensor(w, tensors[i].name, T_F32, tensors[i].rows ? 2 : 1,
                          (const int64_t[]) { tensors[i].cols, tensors[i].rows });
    /* The score of a match is 33 whatever the head's width: scale * (sharp * 5.66) * (sharp * 8). It stands out against
     * a quarter of a million scores of noise, which weigh about e^13 together. */
    float sharp = sqrtf(33 * sqrtf((float) head_dim) / (8 * 5.656854f));
    for (int i = 0; i < N; i++)
        for (int32_t r = 0; r < (tensors[i].rows ? tensors[i].rows : 1); r++)
            for (int32_t c = 0; c < tensors[i].cols; c++) {
                float x = weight(tensors[i].part, r, c, sharp);
                gguf_write_data(w, &x, sizeof x);
            }
    assert_int_equal(gguf_write_close(w, true, &err), ST_OK);
}

void needles_are_found(int32_t n, int32_t head_dim, Type k, Type v, int32_t threads)
{
    char path[] = "/tmp/ratoon-needle-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    write_model(path, n + 8, head_dim);
    rt_error e = { 0 };
    rt_engine *g;
    rt_session *s;
    rt_step *st;
    rt_options o = RT_OPTIONS(.model = path, .kv_k = type_info(k)->name, .kv_v = type_info(v)->name,
                              .threads = threads);
    if (rt_open(&g, &o, &e) != RT_OK || rt_session_new(&s, g, &RT_SESSION_OPTIONS(.ctx = n + 8), &e) != RT_OK ||
        rt_step_new(&st, g, &RT_STEP_OPTIONS(.chunk = 1024, .budget = -1), &e) != RT_OK) fail_msg("%s", e.text);
    int32_t *text = malloc(sizeof *text * (size_t) n), border = n / 2 / 4096 * 4096;
    assert_non_null(text);
    const int32_t place[KINDS] = { 5, border - 1, border, n - 40 }, says[KINDS] = { 2, 0, 3, 1 };
    for (int32_t i = 0; i < n; i++) text[i] = (int32_t) (tiny_bits(tiny_key(3, "text"), (uint64_t) i) % FILLERS);
    for (int32_t i = 0; i < KINDS; i++) text[place[i]] = NOTES + i * KINDS + says[i];
    for (int32_t i = 0; i < KINDS; i++) {
        rt_block b;
        text[n - 1] = QUESTIONS + i;
        assert_int_equal(rt_prompt(s, text, (size_t) n), RT_OK);
        rt_sampling_set(s, &RT_SAMPLING(.max_tokens = 1));
        rt_status code = rt_next(st, s, &b);
        if (code != RT_OK && code != RT_END) fail_msg("%s%s", rt_step_error(st), rt_session_error(s));
        if (b.n != 1 || b.token[0] != ANSWERS + says[i])
            fail_msg("%s/%s, %d tokens: the note at %d is read as token %d, expected %d", o.kv_k, o.kv_v, n, place[i],
                     b.n ? b.token[0] : -1, ANSWERS + says[i]);
    }
    free(text);
    rt_step_free(st);
    rt_session_free(s);
    rt_close(g);
    unlink(path);
}
