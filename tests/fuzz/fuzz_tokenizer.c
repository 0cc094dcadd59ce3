/* fuzz_tokenizer.c - any bytes as text, or, where they begin with "GGUF", as a file with a tokenizer. As text: the
 * first byte chooses the pattern and options, the second a part that came from a client. What must hold: the tokens'
 * bytes give the text again (without normalisation; in Gemma's kind U+2581 is a space), counting gives the number that
 * is written, special tokens never come from a client's part, and decoded text is UTF-8. */
#include "vocab_image.h"

#include "text/tokenizer/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const char *const PRES[] = { "qwen2", "qwen35", "llama-bpe", "gpt-2", "smollm", "laguna", "gemma4" };
enum { N_PRES = sizeof PRES / sizeof *PRES };

static Tokenizer *open_small(const char *pre)
{
    static const char *const MERGES[] = { "l o", "lo w", "a a", "aa aa", "= =", "e r", "\xc4\xa0 l",
                                          "\xc3\x83 \xc2\xa9", "\xc4\x8a \xc4\x8a" },
                      *const CHARS[] = { "l", "o", "w", "a", "=", "\n", "\xe2\x96\x81", "\xc3\xa9", "\n\n\n" };
    bool gemma = strcmp(pre, "gemma4") == 0;
    VocabImage v = gemma ? image_begin_gemma() : image_begin(pre);
    for (size_t i = 0; gemma && i < sizeof CHARS / sizeof *CHARS; i++) image_text(&v, CHARS[i], TOKEN_NORMAL);
    for (size_t i = 0; i < sizeof MERGES / sizeof *MERGES; i++)
        if (!gemma || i < 5) image_merge(&v, MERGES[i]);
    if (gemma) image_merge(&v, "\xe2\x96\x81 low");
    int32_t bos = image_text(&v, "<|a|>", TOKEN_CONTROL);
    image_text(&v, "<b>", TOKEN_USER);
    image_text(&v, "b>lo", TOKEN_USER);
    image_text(&v, "  ", TOKEN_USER);
    image_text(&v, "   ", TOKEN_USER);
    image_text(&v, "<|a|><b>", TOKEN_CONTROL);
    image_u32(&v, "tokenizer.ggml.bos_token_id", (uint32_t) bos);
    Tokenizer *t;
    if (image_open(&t, &v, NULL) != ST_OK) abort();
    return t;
}

/* The number of bytes of the text that a token with these bytes stands for. */
static size_t covered(const char *s, size_t n, const char *bytes, size_t len, bool gemma)
{
    size_t at = 0;
    for (size_t i = 0; i < len; i++) {
        if (at < n && s[at] == bytes[i]) at++;
        else if (gemma && bytes[i] == ' ' && n - at >= 3 && memcmp(s + at, "\xe2\x96\x81", 3) == 0) at += 3;
        else abort();
    }
    return at;
}

static void check_text(const Tokenizer *t, const char *s, size_t n, TokenizeOptions o, bool gemma)
{
    int32_t *ids = malloc((n + 2) * sizeof *ids);
    char    *text = malloc(3 * n + 16);
    Status   st;
    if (!ids || !text) abort();
    size_t count = tokenizer_encode(t, ids, n + 2, s, n, o, &st), at = 0;
    if (st != ST_OK || tokenizer_encode(t, NULL, 0, s, n, o, NULL) != count) abort();
    if (!o.nfc && count > n + 1) abort();
    for (size_t i = o.add_special && tokenizer_add_bos(t); i < count && !o.nfc; i++) {
        size_t len;
        const char *bytes = tokenizer_bytes(t, ids[i], true, &len);
        len = covered(s + at, n - at, bytes, len, gemma);
        int32_t type = tokenizer_type(t, ids[i]);
        bool special = type != TOKEN_NORMAL && type != TOKEN_BYTE;
        for (size_t k = 0; special && k < o.n_client; k++)
            if (o.client[k].n > 0 && at < o.client[k].at + o.client[k].n && o.client[k].at < at + len) abort();
        if (type == TOKEN_CONTROL && !o.parse_special) abort();
        at += len;
    }
    if (!o.nfc && at != n) abort();
    if (!o.nfc) {
        size_t len = tokenizer_decode(t, text, 3 * n + 16, ids, count, false);
        if (len > 3 * n + 16 || utf8_valid(text, len) != len) abort();
    }
    free(ids);
    free(text);
}

static void check_file(const uint8_t *bytes, size_t n)
{
    static const char TEXT[] = "Hello <b>\xc3\xa9\xff 123\n\n  x";
    Gguf *g;
    Tokenizer *t = NULL;
    Error err = { 0 };
    if (gguf_parse(&g, bytes, n, "fuzz.gguf", &err) != ST_OK) return;
    err = (Error) { 0 };
    Status st = tokenizer_open(&t, g, &err);
    gguf_close(g);
    if (st == ST_OK) {
        int32_t ids[256];
        size_t len, count = tokenizer_encode(t, ids, 256, TEXT, strlen(TEXT),
                                             (TokenizeOptions) { .parse_special = true }, NULL);
        for (size_t i = 0; i < count; i++)
            if (tokenizer_type(t, ids[i]) == 0) abort();
        for (int32_t i = -1; i <= tokenizer_size(t); i++) tokenizer_bytes(t, i, i % 2, &len);
    } else if (st == ST_END) {
        if (err.text[0]) abort();
    } else if (st != err.code || strncmp(err.text, "fuzz.gguf: ", 11) != 0 || strchr(err.text, '\n')) {
        abort();
    }
    tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static Tokenizer *t[N_PRES];                   /* opened once: they never change */
    if (n >= 4 && memcmp(bytes, "GGUF", 4) == 0) {
        check_file(bytes, n);
        return 0;
    }
    if (n < 2) return 0;
    int pre = bytes[0] % 8 % N_PRES;
    Tokenizer **p = &t[pre];
    if (!*p) *p = open_small(PRES[pre]);
    TextSpan span = { bytes[1] % 16, bytes[1] / 16 };
    TokenizeOptions o = { .add_special = bytes[0] & 8, .parse_special = bytes[0] & 16, .nfc = bytes[0] & 32,
                          .client = &span, .n_client = bytes[0] >> 7 };
    check_text(*p, (const char *) bytes + 2, n - 2, o, strcmp(PRES[pre], "gemma4") == 0);
    return 0;
}
