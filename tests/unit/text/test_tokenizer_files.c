/* Files with a bad tokenizer (spec/reliability.md, G17 and G19): each is refused by one line that names the file and
 * the key. */
#include "vocab_check.h"

#include <time.h>

/* The image must be refused by a message that names the file and contains text; quickly, without a leak. */
static void refuse(VocabImage *v, Status expected, const char *text)
{
    Tokenizer *t;
    Error err = { 0 };
    clock_t start = clock();
    Status st = image_open(&t, v, &err);
    if (st != expected || !strstr(err.text, "v.gguf: ") || !strstr(err.text, text))
        print_error("status %d (expected %d), '%s' (expected '%s')\n", st, expected, err.text, text);
    assert_int_equal(st, expected);
    assert_int_equal(err.code, expected);
    assert_null(t);
    assert_non_null(strstr(err.text, "v.gguf: "));
    assert_non_null(strstr(err.text, text));
    assert_null(strchr(err.text, '\n'));
    assert_true(clock() - start < CLOCKS_PER_SEC);
}

static void no_tokenizer(void **state)
{
    (void) state;
    Error err = { 0 };
    Tokenizer *t;
    for (int with = 0; with < 2; with++) {
        VocabImage v = { .type_elem = GV_I32 };
        if (with) image_str(&v, "tokenizer.ggml.model", "no_vocab");
        assert_int_equal(image_open(&t, &v, &err), ST_END);
        assert_string_equal(err.text, "");
        assert_null(t);
    }
}

static void G17_model(void **state)
{
    (void) state;
    VocabImage v = { .type_elem = GV_I32 };
    image_str(&v, "tokenizer.ggml.model", "llama");
    refuse(&v, ST_UNSUPPORTED, "tokenizer.ggml.model \"llama\" is not supported, expected gpt2 or gemma4");
    v = (VocabImage) { .type_elem = GV_I32 };
    image_u32(&v, "tokenizer.ggml.model", 7);
    refuse(&v, ST_FORMAT, "tokenizer.ggml.model");
}

static void G17_pre(void **state)
{
    (void) state;
    VocabImage v = image_begin(NULL);
    refuse(&v, ST_FORMAT, "tokenizer.ggml.pre is missing");
    v = image_begin("tekken");
    refuse(&v, ST_UNSUPPORTED, "tokenizer.ggml.pre \"tekken\" is not supported, expected qwen2");
    v = image_begin(NULL);
    image_u32(&v, "tokenizer.ggml.pre", 2);
    refuse(&v, ST_FORMAT, "tokenizer.ggml.pre");
}

static void G17_arrays_missing(void **state)
{
    (void) state;
    static const char *const KEYS[] = { "tokenizer.ggml.tokens", "tokenizer.ggml.merges" };
    for (int i = 0; i < 2; i++) {                  /* rename the key in the image */
        VocabImage v = low_image("qwen2");
        Bytes b = image_end(&v);
        uint8_t *at = memmem(b.at, b.n, KEYS[i], strlen(KEYS[i]));
        assert_non_null(at);
        at[0] = 'x';
        Gguf *g;
        Tokenizer *t = NULL;
        Error err = { 0 };
        char want[64];
        snprintf(want, sizeof want, "v.gguf: %s is missing", KEYS[i]);
        assert_int_equal(gguf_parse(&g, b.at, b.n, "v.gguf", &err), ST_OK);
        assert_int_equal(tokenizer_open(&t, g, &err), ST_FORMAT);
        assert_string_equal(err.text, want);
        gguf_close(g);
        free(b.at);
    }
}

static void G17_token_types(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    v.n_types--;
    v.type.n -= 4;
    refuse(&v, ST_FORMAT, "tokenizer.ggml.token_type has 259 entries, expected 260 as tokenizer.ggml.tokens");
    v = low_image("qwen2");
    bytes_u32(&v.type, 1);
    v.n_types++;
    refuse(&v, ST_FORMAT, "tokenizer.ggml.token_type has 261 entries, expected 260");
    static const int32_t BAD[] = { 0, 7, -1, INT32_MIN };
    for (int i = 0; i < 4; i++) {
        char want[64];
        v = low_image("qwen2");
        image_text(&v, "x", BAD[i]);
        snprintf(want, sizeof want, "tokenizer.ggml.token_type[260] is %d, expected 1 to 6", BAD[i]);
        refuse(&v, ST_FORMAT, want);
    }
    v = low_image("qwen2");
    v.type_elem = GV_F32;                          /* as many bytes, another type */
    refuse(&v, ST_FORMAT, "tokenizer.ggml.token_type");
}

static void G17_token_types_of_strings(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    v.type_elem = GV_STRING;
    v.type.n = 0;
    for (uint32_t i = 0; i < v.n_types; i++) bytes_str(&v.type, "1", 1);
    refuse(&v, ST_FORMAT, "tokenizer.ggml.token_type is an array of");
}

static void G17_scores(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    array_put(&v.keys, "tokenizer.ggml.scores", GV_F32, 2, &(Bytes) { (uint8_t[8]) { 0 }, 8, 8 });
    v.n_keys++;
    refuse(&v, ST_FORMAT, "tokenizer.ggml.scores has 2 entries, expected 260");
    v = low_image("qwen2");
    image_u32(&v, "tokenizer.ggml.scores", 1);
    refuse(&v, ST_FORMAT, "tokenizer.ggml.scores");
    v = low_image("qwen2");
    Bytes names = { 0 };
    bytes_str(&names, "x", 1);
    array_put(&v.keys, "tokenizer.ggml.scores", GV_STRING, 1, &names);
    v.n_keys++;
    refuse(&v, ST_FORMAT, "tokenizer.ggml.scores is an array of");
    free(names.at);
}

static void G17_no_tokens(void **state)
{
    (void) state;
    VocabImage v = { .type_elem = GV_I32 };
    image_str(&v, "tokenizer.ggml.model", "gpt2");
    image_str(&v, "tokenizer.ggml.pre", "qwen2");
    refuse(&v, ST_FORMAT, "tokenizer.ggml.tokens is empty");
}

static void G17_empty_token(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    image_text(&v, "", TOKEN_NORMAL);
    refuse(&v, ST_FORMAT, "tokenizer.ggml.tokens[260] has 0 bytes, expected 1 to 65536");
}

static void G17_giant_token(void **state)
{
    (void) state;
    enum { GIANT = 10 << 20 };
    char *s = malloc(GIANT);
    memset(s, 'x', GIANT);
    VocabImage v = low_image("qwen2");
    image_token(&v, s, GIANT, TOKEN_USER);
    refuse(&v, ST_FORMAT, "tokenizer.ggml.tokens[260] has 10485760 bytes, expected 1 to 65536");
    v = low_image("qwen2");
    image_token(&v, s, 65536, TOKEN_USER);         /* the longest allowed */
    Tokenizer *t = open_ok(&v);
    int32_t ids[4];
    assert_int_equal(encode(t, ids, 4, s, 65536, PLAIN), 1);
    assert_int_equal(ids[0], 260);
    tokenizer_close(t);
    free(s);
}

static void G17_byte_tokens(void **state)
{
    (void) state;
    static const char *const BAD[] = { "<0x-1>", "<0xZZ>", "<0x1>", "<0x123>", "<0x12", "0x12", "<0X12>", "<0x+1>",
                                       "<0x 1>" };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char want[80];
        VocabImage v = low_image("qwen2");
        image_text(&v, BAD[i], TOKEN_BYTE);
        snprintf(want, sizeof want, "tokenizer.ggml.tokens[260] \"%s\" is of type byte, expected \"<0xHH>\"", BAD[i]);
        refuse(&v, ST_FORMAT, want);
    }
    VocabImage v = low_image("qwen2");
    image_text(&v, "<0xZZ>", TOKEN_NORMAL);        /* plain text */
    tokenizer_close(open_ok(&v));
}

static void G17_token_not_utf8(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    image_text(&v, "a\xff", TOKEN_NORMAL);
    refuse(&v, ST_FORMAT, "tokenizer.ggml.tokens[260] is not UTF-8");
}

/* Of Gemma's kind: a literal space is a character that no text has by then. */
static void G17_gemma(void **state)
{
    (void) state;
    VocabImage v = gemma_image();
    image_text(&v, "a\xff", TOKEN_NORMAL);
    refuse(&v, ST_FORMAT, "tokenizer.ggml.tokens[269] is not UTF-8, expected whole characters");
    v = gemma_image();
    image_merge_only(&v, "l  low");
    refuse(&v, ST_FORMAT, "tokenizer.ggml.merges[5] \"l  low\": the right is no token");
    v = gemma_image();
    image_merge_only(&v, "\xc4\xa0 low");
    refuse(&v, ST_FORMAT, "the left is no token");
    v = gemma_image();
    image_bool(&v, "tokenizer.ggml.add_bos_token", true);
    refuse(&v, ST_FORMAT, "tokenizer.ggml.add_bos_token is true, expected tokenizer.ggml.bos_token_id");
    v = gemma_image();
    image_text(&v, " low", TOKEN_NORMAL);          /* 269: another spelling than 264, and nothing makes it */
    Tokenizer *t = open_ok(&v);
    check_ids(t, " low", PLAIN, ID_LIST(264));
    assert_int_equal(tokenizer_type(t, 269), TOKEN_NORMAL);
    tokenizer_close(t);
}

static void G17_merges(void **state)
{
    (void) state;
    static const struct { const char *merge, *why; } BAD[] = {
        { "lo wer", "the right is no token" }, { "xx y", "the left is no token" }, { "l r", "the whole is no token" },
        { "low", "no space" },
        { "l ", "no space" }, { "", "no space" }, { " ", "no space" }, { "l  o", "the right is no token" },
        { "l o w", "the right is no token" },
        { "l \xff", "the right is no token" }, { "\xe2\x84\xa2 l", "the left is no token" },
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char want[128];
        VocabImage v = low_image("qwen2");
        image_merge_only(&v, BAD[i].merge);
        snprintf(want, sizeof want, "tokenizer.ggml.merges[4] \"%s\": %s, expected two tokens that make a third",
                 BAD[i].merge, BAD[i].why);
        line_clean(want);                          /* errors show no broken characters */
        refuse(&v, ST_FORMAT, want);
    }
    VocabImage v = low_image("qwen2");
    image_merge_only(&v, "l o");                   /* listed twice: the first counts */
    Tokenizer *t = open_ok(&v);
    check_ids(t, "low", PLAIN, ID_LIST(257));
    tokenizer_close(t);
}

static void G17_special_ids(void **state)
{
    (void) state;
    static const char *const NAMES[] = { "bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask",
                                         "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep" };
    static const uint32_t BAD[] = { 260, UINT32_MAX, 1u << 31 };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        for (int k = 0; k < 3; k++) {
            char key[64], want[128];
            snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", NAMES[i]);
            snprintf(want, sizeof want, "%s is %u, expected less than 260", key, BAD[k]);
            VocabImage v = low_image("qwen2");
            image_u32(&v, key, BAD[k]);
            refuse(&v, ST_FORMAT, want);
        }
    VocabImage v = low_image("qwen2");
    image_str(&v, "tokenizer.ggml.eos_token_id", "2");
    refuse(&v, ST_FORMAT, "tokenizer.ggml.eos_token_id");
    v = low_image("qwen2");
    image_bool(&v, "tokenizer.ggml.add_bos_token", true);
    refuse(&v, ST_FORMAT, "tokenizer.ggml.add_bos_token is true, expected tokenizer.ggml.bos_token_id");
    v = low_image("qwen2");
    image_u32(&v, "tokenizer.ggml.add_bos_token", 2);
    refuse(&v, ST_FORMAT, "tokenizer.ggml.add_bos_token");
}

static void G17_duplicates(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    image_text(&v, "low", TOKEN_NORMAL);           /* 260, the same as 257 */
    image_text(&v, "a", TOKEN_NORMAL);             /* 261, the same as byte 'a' */
    image_text(&v, "<b>", TOKEN_USER);             /* 262 */
    image_text(&v, "<b>", TOKEN_USER);             /* 263 */
    Tokenizer *t = open_ok(&v);
    check_ids(t, "lowa<b>", PLAIN, ID_LIST(260, 261, 263));
    assert_int_equal(tokenizer_find(t, "<b>", 3), 263);
    size_t n;
    assert_memory_equal(tokenizer_bytes(t, 257, false, &n), "low", 3);
    tokenizer_close(t);
}

static void G17_overlapping(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    image_text(&v, "<ab>", TOKEN_USER);            /* 260 */
    image_text(&v, "ab>c", TOKEN_USER);            /* 261 */
    image_text(&v, "<ab><ab>", TOKEN_USER);        /* 262 */
    image_text(&v, "c", TOKEN_USER);               /* 263 */
    Tokenizer *t = open_ok(&v);
    check_ids(t, "<ab>c", PLAIN, ID_LIST(260, 263));
    check_ids(t, "<ab><ab><ab>", PLAIN, ID_LIST(262, 260));
    check_ids(t, "xab>cc", PLAIN, ID_LIST('x', 261, 263));
    tokenizer_close(t);
}

static void G19_chat_template(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    char *s = malloc((1 << 20) + 2);
    memset(s, 'x', (1 << 20) + 1);
    s[(1 << 20) + 1] = 0;
    image_str(&v, "tokenizer.chat_template", s);
    refuse(&v, ST_FORMAT, "tokenizer.chat_template has 1048577 bytes, expected at most 1048576");
    v = low_image("qwen2");
    image_u32(&v, "tokenizer.chat_template", 3);
    refuse(&v, ST_FORMAT, "tokenizer.chat_template");
    free(s);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_tokenizer), cmocka_unit_test(G17_model), cmocka_unit_test(G17_pre),
        cmocka_unit_test(G17_arrays_missing), cmocka_unit_test(G17_token_types),
        cmocka_unit_test(G17_token_types_of_strings), cmocka_unit_test(G17_scores), cmocka_unit_test(G17_no_tokens),
        cmocka_unit_test(G17_empty_token),
        cmocka_unit_test(G17_giant_token), cmocka_unit_test(G17_byte_tokens), cmocka_unit_test(G17_token_not_utf8),
        cmocka_unit_test(G17_gemma), cmocka_unit_test(G17_merges), cmocka_unit_test(G17_special_ids),
        cmocka_unit_test(G17_duplicates), cmocka_unit_test(G17_overlapping), cmocka_unit_test(G19_chat_template),
    };
    return cmocka_run_group_tests_name("tokenizer_files", tests, NULL, NULL);
}
