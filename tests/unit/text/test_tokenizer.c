/* The tokenizer over small vocabularies: merging and special tokens against slow and obvious programs, both directions,
 * long texts, several threads, and memory that runs out. Bad files: test_tokenizer_files.c; vectors of real
 * vocabularies: peer_tokenizer.c. */
#include "vocab_check.h"

#include <pthread.h>
#include <time.h>

#include "alloc_fault.h"
#include "random_below.h"

/* ---- merging ---- */

static void merges_by_rank(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    Tokenizer *t = open_ok(&v);
    check_ids(t, "lower", PLAIN, ID_LIST(257, 258));
    check_ids(t, "low lower", PLAIN, ID_LIST(257, ' ', 257, 258)); /* "l o" stands before "\" \" l" */
    check_ids(t, " l", PLAIN, ID_LIST(259));
    check_ids(t, "lol", PLAIN, ID_LIST(256, 'l'));
    check_ids(t, "x", PLAIN, ID_LIST('x'));
    check_ids(t, "", PLAIN, ID_LIST(-1));
    check_ids(t, "lo'w", PLAIN, ID_LIST(256, '\'', 'w'));          /* merges do not cross pre-tokens */
    tokenizer_close(t);
}

static void ties_leftmost(void **state)
{
    (void) state;
    VocabImage v = image_begin("qwen2");
    image_merge(&v, "a a");                        /* 256 */
    image_merge(&v, "aa a");                       /* 257 */
    Tokenizer *t = open_ok(&v);
    check_ids(t, "aaa", PLAIN, ID_LIST(257));
    check_ids(t, "aaaa", PLAIN, ID_LIST(256, 256));
    check_ids(t, "aaaaa", PLAIN, ID_LIST(256, 257));
    tokenizer_close(t);
}

/* Only listed pairs merge; but in the llama3 group a pre-token that is itself a token is taken whole. */
static void whole_tokens(void **state)
{
    (void) state;
    static const char *const PRES[] = { "qwen2", "llama-bpe" };
    for (int i = 0; i < 2; i++) {
        VocabImage v = image_begin(PRES[i]);
        image_merge(&v, "a b");                    /* 256 */
        image_text(&v, "xyz", TOKEN_NORMAL);       /* 257, which no merge makes */
        image_text(&v, "pqr", TOKEN_CONTROL);      /* 258: never made from text */
        Tokenizer *t = open_ok(&v);
        if (i == 0) check_ids(t, "xyz", PLAIN, ID_LIST('x', 'y', 'z'));
        else check_ids(t, "xyz", PLAIN, ID_LIST(257));
        check_ids(t, "xyzab", PLAIN, ID_LIST('x', 'y', 'z', 256));
        check_ids(t, "pqr", PLAIN, ID_LIST('p', 'q', 'r'));
        tokenizer_close(t);
    }
}

/* Characters merge, and those without a token are bytes; U+2581 is a space; lines are apart, and a run of line breaks
 * that is a token is taken whole. */
static void merges_of_characters(void **state)
{
    (void) state;
    VocabImage v = gemma_image();
    Tokenizer *t = open_ok(&v);
    check_ids(t, "low low", PLAIN, ID_LIST(263, 264));
    check_ids(t, "low\xe2\x96\x81low\xe2\x96\x81", PLAIN, ID_LIST(263, 264, 256));
    check_ids(t, "  low", PLAIN, ID_LIST(256, 264));
    check_ids(t, "w\xc3\xa9\xc3\xa9", PLAIN, ID_LIST(265, 261));
    check_ids(t, "lo\xc3\xa8w", PLAIN, ID_LIST(262, 0xc3, 0xa8, 260));
    check_ids(t, "xlow", PLAIN, ID_LIST('x', 263));
    check_ids(t, "\xff\xc3low\xe2\x96", PLAIN, ID_LIST(0xff, 0xc3, 263, 0xe2, 0x96));
    check_ids(t, "lo\nw \n\nlow", PLAIN, ID_LIST(262, 257, 260, 256, 266, 263));
    check_ids(t, "\n\n\n", PLAIN, ID_LIST(267));
    check_ids(t, "\n\n\n\n\n", PLAIN, ID_LIST(266, 266, 257));
    check_ids(t, "<h>", PLAIN, ID_LIST('<', 'h', '>'));
    check_ids(t, "<0x41>", SPECIAL, ID_LIST('<', '0', 'x', '4', '1', '>'));
    check_ids(t, "w e\xcc\x81", (TokenizeOptions) { .nfc = true }, ID_LIST(260, 256, 261));
    assert_int_equal(tokenizer_type(t, 65), TOKEN_BYTE);
    char out[64];
    const int32_t ids[] = { 264, 0xc3, 0xa8, 265, 0xf0, 267, 256, 0xe2 };
    static const char TEXT[] = " low\xc3\xa8w\xc3\xa9\xef\xbf\xbd\n\n\n \xef\xbf\xbd";
    size_t n = tokenizer_decode(t, out, sizeof out, ids, 8, false);
    assert_int_equal(n, strlen(TEXT));
    assert_memory_equal(out, TEXT, n);
    tokenizer_close(t);
}

typedef struct { char left[80], right[80], whole[80]; int32_t id; } SlowMerge;
typedef struct { char s[64][80]; int n; } SlowPieces;
static const char *const LETTERS[2][5] = { { "a", "b", "c", "d", "e" },
                                           { "a", "\xc3\xa9", "\xf0\x9f\x99\x82", "\xe6\x97\xa5", " " } };

/* The rule, word for word: again and again apply the first merge of the list that occurs, at its first occurrence. A
 * letter without a token (letter_id -1) is its bytes. */
static size_t slow_merge(int32_t *out, const SlowMerge *m, int n_merges, const char *text, const char *const *letter,
                         const int32_t *letter_id)
{
    static SlowPieces p;
    p.n = 0;
    for (const char *c = text; *c; c += strlen(p.s[p.n++]))
        for (int k = 0; k < 5; k++)
            if (strncmp(c, letter[k], strlen(letter[k])) == 0) strcpy(p.s[p.n], letter[k]);
    for (bool again = true; again;) {
        again = false;
        for (int r = 0; r < n_merges && !again; r++)
            for (int i = 0; i + 1 < p.n && !again; i++) {
                if (strcmp(p.s[i], m[r].left) != 0 || strcmp(p.s[i + 1], m[r].right) != 0) continue;
                strcpy(p.s[i], m[r].whole);
                for (int k = i + 1; k + 1 < p.n; k++) strcpy(p.s[k], p.s[k + 1]);
                p.n--;
                again = true;
            }
    }
    size_t n = 0;
    for (int i = 0; i < p.n; i++) {
        int32_t id = -1;
        for (int k = 0; k < 5; k++)
            if (strcmp(letter[k], p.s[i]) == 0) id = letter_id[k];
        for (int r = 0; r < n_merges; r++)
            if (strcmp(m[r].whole, p.s[i]) == 0) id = m[r].id;
        if (id >= 0) out[n++] = id;
        for (const char *c = p.s[i]; id < 0 && *c; c++) out[n++] = (uint8_t) *c;
    }
    return n;
}

/* How a file of Gemma's kind spells it. */
static char *with_marks(char *out, const char *s)
{
    char *w = out;
    for (; *s; s++) w = *s == ' ' ? stpcpy(w, "\xe2\x96\x81") : (*w = *s, w + 1);
    *w = 0;
    return out;
}

/* Random merge lists, in which later merges may undo what trained ones would guarantee, and random words. */
static void like_slow_merging(void **state)
{
    (void) state;
    reseed();
    for (int round = 0; round < 200; round++) {
        SlowMerge m[24];
        int n_merges = 1 + (int) random_below(24), letters = 2 + (int) random_below(4), gemma = round % 2;
        const char *const *letter = LETTERS[gemma];
        int32_t letter_id[5] = { -1, -1, -1, -1, -1 };
        VocabImage v = gemma ? image_begin_gemma() : image_begin("qwen2");
        for (int k = 0; k < 5 && gemma; k++) {
            char s[16];
            if (k < letters) letter_id[k] = image_text(&v, with_marks(s, letter[k]), TOKEN_NORMAL);
        }
        for (int r = 0; r < n_merges; r++) {
            char left[80], right[80], line[2][96];
            do {                                   /* pieces: letters, or what earlier merges made */
                uint32_t a = random_below((uint32_t) (letters + r)), b = random_below((uint32_t) (letters + r));
                strcpy(left, a < (uint32_t) letters ? letter[a] : m[a - (uint32_t) letters].whole);
                strcpy(right, b < (uint32_t) letters ? letter[b] : m[b - (uint32_t) letters].whole);
            } while (strlen(left) + strlen(right) > 30);
            strcpy(m[r].left, left);
            strcpy(m[r].right, right);
            strcat(strcpy(m[r].whole, left), right);
            if (gemma) strcat(strcat(with_marks(line[0], left), " "), with_marks(line[1], right));
            else strcat(strcat(strcpy(line[0], left), " "), right);
            m[r].id = image_merge(&v, line[0]);    /* equal texts: the last id counts */
        }
        for (int r = 0; r < n_merges; r++)
            for (int k = r + 1; k < n_merges; k++)
                if (strcmp(m[r].whole, m[k].whole) == 0) m[r].id = m[k].id;
        Tokenizer *t = open_ok(&v);
        for (int word = 0; word < 100; word++) {
            char s[256] = "";
            int32_t want[256], got[256];
            for (uint32_t i = random_below(60), all = gemma ? 5 : (uint32_t) letters; i > 0; i--)
                strcat(s, letter[random_below(all)]);
            size_t n_want = slow_merge(want, m, n_merges, s, letter, letter_id),
                   count = encode(t, got, 256, s, strlen(s), PLAIN);
            assert_int_equal(count, n_want);
            if (count) assert_memory_equal(got, want, count * sizeof *got);
        }
        tokenizer_close(t);
    }
}

/* Short pre-tokens of long texts are cached: the ids stay those of each line alone. */
static void remembered_words(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    Tokenizer *t = open_ok(&v);
    static const char *const LINES[] = { "lower low lo\n", "slow er l\n", "lowlowlowlowlowlowlowlowlow\n",
                                         "a lower wolf, 12 lo's\n" };
    char text[8192];
    static int32_t got[8192], want[8192];
    size_t n = 0, n_want = 0;
    for (int i = 0; i < 200; i++) {
        const char *line = LINES[i % 4];
        memcpy(text + n, line, strlen(line));
        n += strlen(line);
        n_want += encode(t, want + n_want, 64, line, strlen(line), PLAIN);
    }
    assert_true(n > 1024);
    size_t count = encode(t, got, 8192, text, n, PLAIN);
    assert_int_equal(count, n_want);
    assert_memory_equal(got, want, count * sizeof *got);
    assert_int_equal(encode(t, NULL, 0, text, n, PLAIN), count);   /* counting needs no room */
    memset(got, 0, sizeof got);
    assert_int_equal(encode(t, got, 7, text, n, PLAIN), count);
    assert_memory_equal(got, want, 7 * sizeof *got);
    assert_int_equal(got[7], 0);
    tokenizer_close(t);
}

/* ---- special tokens ---- */

static void special_types(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    image_text(&v, "<|a|>", TOKEN_CONTROL);        /* 260 */
    image_text(&v, "<b>", TOKEN_USER);             /* 261 */
    image_text(&v, "<c>", TOKEN_UNKNOWN);          /* 262 */
    image_text(&v, "<d>", TOKEN_UNUSED);           /* 263 */
    Tokenizer *t = open_ok(&v);
    check_ids(t, "lo<|a|>lo<b>", SPECIAL, ID_LIST(256, 260, 256, 261));
    check_ids(t, "<|a|>", PLAIN, ID_LIST('<', '|', 'a', '|', '>'));
    check_ids(t, "<b>lo<b>", PLAIN, ID_LIST(261, 256, 261));       /* user-defined tokens always match */
    check_ids(t, "<c>", SPECIAL, ID_LIST(262));
    check_ids(t, "<c>", PLAIN, ID_LIST('<', 'c', '>'));
    check_ids(t, "<d>", SPECIAL, ID_LIST('<', 'd', '>'));
    check_ids(t, "l<b>o", SPECIAL, ID_LIST('l', 261, 'o'));
    check_ids(t, "x  <b> y", SPECIAL, ID_LIST('x', ' ', ' ', 261, ' ', 'y'));
    tokenizer_close(t);
}

/* Text from a client is plain text, even where it only contributes to spelling a token. */
static void special_from_client(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    image_text(&v, "<|a|>", TOKEN_CONTROL);        /* 260 */
    image_text(&v, "<b>", TOKEN_USER);             /* 261 */
    Tokenizer *t = open_ok(&v);
    TextSpan span[3] = { { 5, 8 }, { 14, 0 }, { 16, 1 } };
    TokenizeOptions o = { .parse_special = true, .client = span, .n_client = 3 };
    check_ids(t, "<|a|><|a|><b><b><b>", o, ID_LIST(260, '<', '|', 'a', '|', '>', '<', 'b', '>', 261, '<', 'b', '>'));
    o.n_client = 2;
    check_ids(t, "<|a|><|a|><b><b><b>", o, ID_LIST(260, '<', '|', 'a', '|', '>', '<', 'b', '>', 261, 261));
    span[0] = (TextSpan) { 1, 3 };                 /* "<" + client "|a|" + ">" */
    o.n_client = 1;
    check_ids(t, "<|a|>", o, ID_LIST('<', '|', 'a', '|', '>'));
    span[0] = (TextSpan) { 4, 1 };
    check_ids(t, "<|a|>", o, ID_LIST('<', '|', 'a', '|', '>'));
    span[0] = (TextSpan) { 5, 2 };
    check_ids(t, "<|a|>lo", o, ID_LIST(260, 256));
    tokenizer_close(t);
}

typedef struct { char text[8]; int32_t id; } SlowSpecial;

/* The rule, word for word: owner[i] is the hit that contains byte i, or -1. Longest first, equal lengths by id. */
static void slow_cut(int32_t *owner, int32_t *start, const SlowSpecial *sp, int n_sp, const char *s, int n)
{
    for (int i = 0; i < n; i++) owner[i] = -1, start[i] = 0;
    for (int len = 7; len > 0; len--)
        for (int k = 0; k < n_sp; k++) {
            if ((int) strlen(sp[k].text) != len) continue;
            for (int i = 0; i + len <= n; i++) {
                bool free_here = memcmp(s + i, sp[k].text, (size_t) len) == 0;
                for (int j = 0; j < len; j++) free_here = free_here && owner[i + j] < 0;
                if (!free_here) continue;
                for (int j = 0; j < len; j++) owner[i + j] = sp[k].id;
                start[i] = 1;
            }
        }
}

static void overlapping_like_slow_cutting(void **state)
{
    (void) state;
    reseed();
    for (int round = 0; round < 500; round++) {
        SlowSpecial sp[8];
        int n_sp = 1 + (int) random_below(8);
        VocabImage v = image_begin("qwen2");
        for (int k = 0; k < n_sp; k++) {
            size_t len = 1 + random_below(5);
            for (size_t i = 0; i < len; i++) sp[k].text[i] = "ab c"[random_below(4)];
            sp[k].text[len] = 0;
            sp[k].id = image_text(&v, sp[k].text, TOKEN_USER);
            for (int e = 0; e < k; e++)            /* of equal texts the last id counts */
                if (strcmp(sp[e].text, sp[k].text) == 0) sp[e].text[0] = 0;
        }
        Tokenizer *t = open_ok(&v);
        for (int i = 0; i < 40; i++) {
            char s[40];
            int32_t owner[40], start[40], got[64];
            int n = (int) random_below(40);
            for (int k = 0; k < n; k++) s[k] = "ab c"[random_below(4)];
            slow_cut(owner, start, sp, n_sp, s, n);
            size_t count = encode(t, got, 64, s, (size_t) n, PLAIN), at = 0;
            for (int k = 0; k < n; k++) {          /* no merges: between the tokens every byte is a token */
                if (owner[k] >= 0 && !start[k]) continue;
                assert_true(at < count);
                assert_int_equal(got[at], owner[k] < 0 ? s[k] : owner[k]);
                at++;
            }
            assert_int_equal(at, count);
        }
        tokenizer_close(t);
    }
}

/* ---- what the file says ---- */

/* Texts that end an answer are control tokens whatever type the file gives them, except "</s>", which is plain text in
 * some. */
static void types_of_end_texts(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    static const char *const text[] = { "</s>", "<|im_end|>", "[EOS]", "<|eot_id|>", "<s/>" };
    for (int32_t i = 0; i < 5; i++) image_text(&v, text[i], TOKEN_NORMAL);
    Tokenizer *t = open_ok(&v);
    for (int32_t i = 0; i < 5; i++) {
        bool plain = i == 0 || i == 4;
        assert_int_equal(tokenizer_type(t, 260 + i), plain ? TOKEN_NORMAL : TOKEN_CONTROL);
    }
    tokenizer_close(t);
}

static void ids_and_ends(void **state)
{
    (void) state;
    VocabImage v = low_image("llama-bpe");
    image_text(&v, "<s>", TOKEN_CONTROL);          /* 260 */
    image_text(&v, "<|im_end|>", TOKEN_NORMAL);    /* 261: a wrong type */
    image_text(&v, "<mask>", TOKEN_CONTROL);       /* 262 */
    image_text(&v, "<fim>", TOKEN_CONTROL);        /* 263 */
    image_u32(&v, "tokenizer.ggml.bos_token_id", 260);
    image_u32(&v, "tokenizer.ggml.eos_token_id", 257);
    image_u32(&v, "tokenizer.ggml.mask_token_id", 262);
    image_u32(&v, "tokenizer.ggml.fim_pad_token_id", 263);
    image_str(&v, "tokenizer.chat_template", "{{ messages }}");
    Tokenizer *t = open_ok(&v);
    assert_int_equal(tokenizer_size(t), 264);
    assert_int_equal(tokenizer_bos(t), 260);
    assert_int_equal(tokenizer_eos(t), 257);
    assert_int_equal(tokenizer_mask(t), 262);
    assert_true(tokenizer_add_bos(t));             /* the llama3 group's default */
    for (int32_t i = -1; i <= 264; i++) assert_int_equal(tokenizer_is_end(t, i), i == 257 || i == 261 || i == 263);
    assert_int_equal(tokenizer_type(t, 261), TOKEN_CONTROL);
    assert_int_equal(tokenizer_type(t, 5), TOKEN_NORMAL);
    assert_int_equal(tokenizer_type(t, 264), 0);
    assert_int_equal(tokenizer_type(t, -1), 0);
    assert_int_equal(tokenizer_find(t, "<|im_end|>", 10), 261);
    assert_int_equal(tokenizer_find(t, " l", 2), 259);
    assert_int_equal(tokenizer_find(t, "lowe", 4), -1);
    assert_int_equal(tokenizer_find(t, "", 0), -1);
    size_t n;
    const char *chat = tokenizer_chat_template(t, &n);
    assert_int_equal(n, 14);
    assert_string_equal(chat, "{{ messages }}");
    TokenizeOptions o = { .add_special = true };
    check_ids(t, "low", o, ID_LIST(260, 257));
    check_ids(t, "", o, ID_LIST(260));
    check_ids(t, "<|im_end|>", PLAIN, ID_LIST('<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>'));
    tokenizer_close(t);

    v = low_image("qwen2");
    image_bool(&v, "tokenizer.ggml.add_bos_token", false);
    t = open_ok(&v);
    assert_int_equal(tokenizer_bos(t), -1);
    assert_int_equal(tokenizer_eos(t), -1);
    assert_int_equal(tokenizer_mask(t), -1);
    assert_null(tokenizer_chat_template(t, &n));
    assert_int_equal(n, 0);
    check_ids(t, "low", o, ID_LIST(257));
    tokenizer_close(t);

    v = low_image("laguna");                       /* as older converters wrote it: no key names the turn's end */
    image_text(&v, "</assistant>", TOKEN_USER);
    t = open_ok(&v);
    assert_int_equal(tokenizer_type(t, 260), TOKEN_CONTROL);
    for (int32_t i = 0; i <= 260; i++) assert_int_equal(tokenizer_is_end(t, i), i == 260);
    tokenizer_close(t);
}

/* BOS whatever the file says; and the begin of a tool's answer ends the model's, which "</s>" then does not. */
static void bos_and_ends_of_gemma(void **state)
{
    (void) state;
    static const struct { const char *text; int32_t type; bool ends; } TOKENS[] = {
        { "<bos>", TOKEN_CONTROL, false }, { "<eos>", TOKEN_CONTROL, true }, { "<turn|>", TOKEN_CONTROL, true },
        { "<|tool_response>", TOKEN_USER, true }, { "<tool_response|>", TOKEN_USER, false },
        { "</s>", TOKEN_NORMAL, false }, { "<|\"|>", TOKEN_USER, false }, { "a\xe2\x96\x81 b", TOKEN_USER, false },
    };
    enum { N_TOKENS = sizeof TOKENS / sizeof *TOKENS, FIRST = 269 };
    for (int say = 0; say < 3; say++) {
        VocabImage v = gemma_image();
        for (int32_t i = 0; i < N_TOKENS; i++) image_text(&v, TOKENS[i].text, TOKENS[i].type);
        image_u32(&v, "tokenizer.ggml.bos_token_id", FIRST);
        if (say) image_bool(&v, "tokenizer.ggml.add_bos_token", say > 1);
        if (say) image_str(&v, "tokenizer.ggml.pre", "default");
        Tokenizer *t = open_ok(&v);
        assert_true(tokenizer_add_bos(t));
        check_ids(t, "low", (TokenizeOptions) { .add_special = true }, ID_LIST(FIRST, 263));
        check_ids(t, "low<|\"|>a\xe2\x96\x81 b<turn|>", SPECIAL, ID_LIST(263, FIRST + 6, FIRST + 7, FIRST + 2));
        check_ids(t, "</s>", SPECIAL, ID_LIST('<', '/', 's', '>'));
        check_ids(t, "<|tool_response>", SPECIAL, ID_LIST(FIRST + 3));
        for (int32_t i = 0; i < N_TOKENS; i++) {
            assert_int_equal(tokenizer_is_end(t, FIRST + i), TOKENS[i].ends);
            assert_int_equal(tokenizer_type(t, FIRST + i), TOKENS[i].ends ? TOKEN_CONTROL : TOKENS[i].type);
        }
        tokenizer_close(t);
    }
    VocabImage v = gemma_image();
    Tokenizer *t = open_ok(&v);
    assert_false(tokenizer_add_bos(t));            /* there is none */
    tokenizer_close(t);
}

/* By the file's keys, else by the usual names. */
static void fim_tokens(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    image_text(&v, "<|fim_prefix|>", TOKEN_CONTROL);       /* 260 */
    image_text(&v, "<|fim_suffix|>", TOKEN_USER);          /* 261 */
    image_text(&v, "<fim_middle>", TOKEN_CONTROL);         /* 262 */
    image_text(&v, "<|file_sep|>", TOKEN_CONTROL);         /* 263 */
    image_text(&v, "<mine>", TOKEN_CONTROL);               /* 264 */
    image_u32(&v, "tokenizer.ggml.fim_pre_token_id", 264);
    Tokenizer *t = open_ok(&v);
    static const int32_t want[FIM_MARKS] = { 264, 261, 262, -1, 263 };
    for (FimMark mark = 0; mark < FIM_MARKS; mark++) assert_int_equal(tokenizer_fim(t, mark), want[mark]);
    tokenizer_close(t);
    v = low_image("qwen2");
    t = open_ok(&v);
    for (FimMark mark = 0; mark < FIM_MARKS; mark++) assert_int_equal(tokenizer_fim(t, mark), -1);
    tokenizer_close(t);
}

static uint64_t hash_of(VocabImage v)
{
    Tokenizer *t = open_ok(&v);
    uint64_t h = tokenizer_hash(t);
    tokenizer_close(t);
    return h;
}

static void hash_tells_tokenizers_apart(void **state)
{
    (void) state;
    uint64_t h = hash_of(low_image("qwen2"));
    assert_true(h == hash_of(low_image("qwen2")));
    assert_true(h == hash_of(low_image("megrez")));                /* an alias */
    assert_true(h != hash_of(low_image("gpt-2")));
    VocabImage v = low_image("qwen2");
    image_str(&v, "tokenizer.chat_template", "another");           /* not a file for the tokenizer */
    assert_true(h == hash_of(v));
    v = low_image("qwen2");
    image_text(&v, "zz", TOKEN_NORMAL);
    uint64_t more = hash_of(v);
    v = low_image("qwen2");
    image_text(&v, "zz", TOKEN_USER);
    uint64_t user = hash_of(v);
    v = low_image("qwen2");
    image_merge_only(&v, "l ow");
    image_text(&v, "ow", TOKEN_NORMAL);
    uint64_t merge = hash_of(v);
    v = low_image("qwen2");
    image_text(&v, "ow", TOKEN_NORMAL);
    assert_true(h != more && h != user && more != user && h != merge && merge != hash_of(v));
    h = hash_of(gemma_image());
    assert_true(h == hash_of(gemma_image()));
    v = gemma_image();
    image_merge_only(&v, "o w");
    image_text(&v, "ow", TOKEN_NORMAL);
    merge = hash_of(v);
    v = gemma_image();
    image_text(&v, "ow", TOKEN_NORMAL);
    more = hash_of(v);
    assert_true(h != merge && merge != more && h != more);
}

static void bytes_of_tokens(void **state)
{
    (void) state;
    VocabImage v = low_image("qwen2");
    image_text(&v, "<|a|>", TOKEN_CONTROL);        /* 260 */
    image_text(&v, "<b> ", TOKEN_USER);            /* 261 */
    image_text(&v, "[PAD1]", TOKEN_UNUSED);        /* 262 */
    image_text(&v, "<0xe9>", TOKEN_BYTE);          /* 263 */
    image_text(&v, "\xe2\x84\xa2", TOKEN_NORMAL);  /* 264: a character that no byte is spelled by */
    image_text(&v, "\xc3\xa2\xc4\xa6", TOKEN_NORMAL);              /* 265: bytes E2 84 */
    Tokenizer *t = open_ok(&v);
    static const struct { int32_t id; const char *plain, *special; } WANT[] = {
        { 259, " l", " l" }, { 260, "", "<|a|>" }, { 261, "<b> ", "<b> " }, { 262, "", "[PAD1]" },
        { 263, "\xe9", "\xe9" },
        { 264, "\xe2\x84\xa2", "\xe2\x84\xa2" }, { 265, "\xe2\x84", "\xe2\x84" }, { -1, "", "" }, { 266, "", "" },
        { INT32_MAX, "", "" },
    };
    for (size_t i = 0; i < sizeof WANT / sizeof *WANT; i++)
        for (int special = 0; special < 2; special++) {
            size_t n;
            const char *want = special ? WANT[i].special : WANT[i].plain,
                       *s = tokenizer_bytes(t, WANT[i].id, special, &n);
            assert_int_equal(n, strlen(want));
            if (n) assert_memory_equal(s, want, n);
        }
    for (int32_t b = 0; b < 256; b++) {
        size_t n;
        const char *s = tokenizer_bytes(t, b, false, &n);
        assert_int_equal(n, 1);
        assert_int_equal((uint8_t) *s, b);
    }
    assert_int_equal(tokenizer_type(t, 264), TOKEN_NORMAL);
    check_ids(t, "\xe2\x84\xa2", PLAIN, ID_LIST(0xe2, 0x84, 0xa2)); /* never made from text */

    char out[64];
    const int32_t ids[] = { 260, 265, 0xa2, 265, 'x', 0xe9, -5, 261, 0xe2 };
    size_t n = tokenizer_decode(t, out, sizeof out, ids, 9, false);
    static const char TEXT[] = "\xe2\x84\xa2\xef\xbf\xbdx\xef\xbf\xbd<b> \xef\xbf\xbd";
    assert_int_equal(n, strlen(TEXT));
    assert_memory_equal(out, TEXT, n);
    assert_int_equal(tokenizer_decode(t, NULL, 0, ids, 9, true), n + 5);
    assert_int_equal(tokenizer_decode(t, out, 4, ids, 9, true), n + 5);
    assert_memory_equal(out, "<|a|\x84\xa2", 4);
    tokenizer_close(t);
}

/* Any bytes come back unchanged, in every pattern. */
static void round_trip(void **state)
{
    (void) state;
    static const char *const PRES[] = { "qwen2", "qwen35", "llama-bpe", "gpt-2", "smollm", "laguna", NULL };
    reseed();
    for (int p = 0; p < 7; p++) {
        VocabImage v = PRES[p] ? low_image(PRES[p]) : gemma_image();
        image_text(&v, "<b>", TOKEN_USER);
        Tokenizer *t = open_ok(&v);
        for (int round = 0; round < 3000; round++) {
            char s[64];
            int32_t ids[64];
            size_t n = random_below(64), at = 0;
            for (size_t i = 0; i < n; i++)
                s[i] = random_below(3) ? "lower <b>\n\xc3\xa9"[random_below(12)] : (char) random_below(256);
            size_t count = encode(t, ids, 64, s, n, SPECIAL);
            assert_true(count <= n);
            for (size_t i = 0; i < count; i++) {
                size_t len;
                const char *bytes = tokenizer_bytes(t, ids[i], true, &len);
                assert_true(len > 0 && len <= n - at);
                assert_memory_equal(bytes, s + at, len);
                at += len;
            }
            assert_int_equal(at, n);
        }
        tokenizer_close(t);
    }
}

static void nfc_on_request(void **state)
{
    (void) state;
    VocabImage v = image_begin("qwen2");
    image_merge(&v, "\xc3\x83 \xc2\xa9");          /* 256: bytes C3 A9, e with acute */
    image_text(&v, "<e\xcc\x81>", TOKEN_CONTROL);  /* 257: special tokens are found before normalising */
    Tokenizer *t = open_ok(&v);
    TokenizeOptions o = { .nfc = true, .parse_special = true };
    check_ids(t, "e\xcc\x81<e\xcc\x81>x", o, ID_LIST(256, 257, 'x'));
    check_ids(t, "e\xcc\x81", PLAIN, ID_LIST('e', 0xcc, 0x81));
    check_ids(t, "e\xcc\x81\xff", o, ID_LIST(256, 0xff));
    tokenizer_close(t);
}

/* Bytes without a token become the unknown token if there is one, else nothing. */
static void missing_bytes(void **state)
{
    (void) state;
    for (int with = 0; with < 2; with++) {
        VocabImage v = { .type_elem = GV_I32 };
        image_str(&v, "tokenizer.ggml.model", "gpt2");
        image_str(&v, "tokenizer.ggml.pre", "qwen2");
        image_text(&v, "a", TOKEN_NORMAL);
        image_text(&v, "<unk>", TOKEN_UNKNOWN);
        image_text(&v, "<0x7A>", TOKEN_BYTE);
        if (with) image_u32(&v, "tokenizer.ggml.unknown_token_id", 1);
        Tokenizer *t = open_ok(&v);
        if (with) check_ids(t, "abz", PLAIN, ID_LIST(0, 1, 2));
        else check_ids(t, "abz", PLAIN, ID_LIST(0, 2));
        tokenizer_close(t);
    }
}

/* ---- long texts ---- */

static void long_texts(void **state)
{
    (void) state;
    enum { N = 1000000 };
    VocabImage v = image_begin("qwen2");
    image_merge(&v, "a a");                        /* 256.. */
    image_merge(&v, "aa aa");
    image_merge(&v, "aaaa aaaa");
    image_merge(&v, "= =");
    for (int i = 2; i <= 8; i++) {                 /* user-defined runs of spaces: several match at every place */
        char s[16];
        image_text(&v, memset(s, 0, 16) ? memset(s, ' ', (size_t) i) : s, TOKEN_USER);
    }
    Tokenizer *t = open_ok(&v);
    static const struct {
        char c;
        size_t n, want;
    } LINES[] = { { 'a', N, N / 8 }, { '=', N, N / 2 }, { ' ', N, N / 8 }, { 'b', N, N } };
    char *s = malloc(N);
    for (int i = 0; i < 4; i++) {
        memset(s, LINES[i].c, N);
        clock_t start = clock();
        assert_int_equal(encode(t, NULL, 0, s, N, SPECIAL), LINES[i].want);
        double took = (double) (clock() - start) / CLOCKS_PER_SEC;
        if (took > 3) print_error("line %d: %.1f s\n", i, took);
        assert_true(took < 20);                    /* n log n: well below 1 s; n * n: hours */
    }
    VocabImage whole_lines = gemma_image();        /* one pre-token, however long the line is */
    Tokenizer *gemma = open_ok(&whole_lines);
    for (int32_t i = 0; i < N; i++) s[i] = " low"[i % 4];
    clock_t begun = clock();
    assert_int_equal(encode(gemma, NULL, 0, s, N, PLAIN), N / 4);
    assert_true(clock() - begun < 20 * CLOCKS_PER_SEC);
    tokenizer_close(gemma);
    Status st = ST_OK;
    assert_int_equal(tokenizer_encode(t, NULL, 0, s, ((size_t) 1 << 30) + 1, PLAIN, &st), 0);      /* refused unread */
    assert_int_equal(st, ST_ARG);
    assert_int_equal(tokenizer_encode(t, NULL, 0, s, SIZE_MAX, PLAIN, NULL), 0);
    free(s);
    tokenizer_close(t);
}

/* ---- threads, memory ---- */

static const char STORY[] = "lower <b>slow er\xff l low\xcc\x81 1234 'll <|a|>\r\n\r\n  wolf\n";

typedef struct { const Tokenizer *t; int32_t ids[256]; size_t n; } Job;

static void *encode_often(void *arg)
{
    Job *j = arg;
    for (int i = 0; i < 200; i++) j->n = tokenizer_encode(j->t, j->ids, 256, STORY, strlen(STORY), SPECIAL, NULL);
    return NULL;
}

static VocabImage story_image(void)
{
    VocabImage v = low_image("smollm");
    image_text(&v, "<|a|>", TOKEN_CONTROL);
    image_text(&v, "<b>", TOKEN_USER);
    image_text(&v, "b>s", TOKEN_USER);
    return v;
}

static void several_threads(void **state)
{
    (void) state;
    VocabImage v = story_image();
    Tokenizer *t = open_ok(&v);
    Job job[4];
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) {
        job[i].t = t;
        assert_int_equal(pthread_create(&thread[i], NULL, encode_often, &job[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(job[i].n, job[0].n);
        assert_memory_equal(job[i].ids, job[0].ids, job[0].n * sizeof *job[0].ids);
    }
    tokenizer_close(t);
}

/* Each allocation of opening fails once: a memory error or, where the memory is optional, a correct tokenizer. */
static void memory_runs_out_opening(void **state)
{
    (void) state;
    VocabImage v = story_image();
    image_str(&v, "tokenizer.chat_template", "x");
    Bytes b = image_end(&v);
    Gguf *g;
    Error err = { 0 };
    assert_int_equal(gguf_parse(&g, b.at, b.n, "v.gguf", &err), ST_OK);
    int failures = 0;
    for (long n = 1;; n++) {
        Tokenizer *t = NULL;
        err = (Error) { 0 };
        long live = alloc_state.live;
        alloc_state.fail_in = n;
        Status st = tokenizer_open(&t, g, &err);
        bool reached = alloc_state.fail_in == 0;
        alloc_state.fail_in = 0;
        if (st == ST_OK) {
            check_ids(t, "low<b>", PLAIN, ID_LIST(257, 261));
            tokenizer_close(t);
        } else {
            failures++;
            assert_int_equal(st, ST_MEMORY);
            assert_non_null(strstr(err.text, "memory"));
            assert_null(t);
        }
        if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.live, live);
        if (!reached) break;
    }
    assert_true(failures > 8);
    gguf_close(g);
    free(b.at);
}

static void memory_runs_out(VocabImage v, bool nfc)
{
    Tokenizer *t = open_ok(&v);
    char text[4096];
    static int32_t want[4096], got[4096];
    size_t n = 0;
    while (n + strlen(STORY) <= sizeof text) {
        memcpy(text + n, STORY, strlen(STORY));
        n += strlen(STORY);
    }
    TokenizeOptions o = { .parse_special = true, .nfc = nfc };
    size_t count = encode(t, want, 4096, text, n, o);
    int failures = 0;
    for (long k = 1;; k++) {
        Status st = ST_IO;
        long live = alloc_state.live;
        alloc_state.fail_in = k;
        size_t some = tokenizer_encode(t, got, 4096, text, n, o, &st);
        bool reached = alloc_state.fail_in == 0;
        alloc_state.fail_in = 0;
        if (st == ST_OK) {
            assert_int_equal(some, count);
            assert_memory_equal(got, want, count * sizeof *got);
        } else {
            failures++;
            assert_int_equal(st, ST_MEMORY);
            assert_int_equal(some, 0);
        }
        if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.live, live);
        if (!reached) break;
    }
    assert_true(failures > 5);
    tokenizer_close(t);
}

static void memory_runs_out_encoding(void **state)
{
    (void) state;
    memory_runs_out(story_image(), true);
    memory_runs_out(gemma_image(), false);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_by_rank), cmocka_unit_test(ties_leftmost), cmocka_unit_test(whole_tokens),
        cmocka_unit_test(merges_of_characters), cmocka_unit_test(bos_and_ends_of_gemma),
        cmocka_unit_test(like_slow_merging), cmocka_unit_test(remembered_words), cmocka_unit_test(special_types),
        cmocka_unit_test(special_from_client), cmocka_unit_test(overlapping_like_slow_cutting),
        cmocka_unit_test(types_of_end_texts), cmocka_unit_test(ids_and_ends), cmocka_unit_test(fim_tokens),
        cmocka_unit_test(hash_tells_tokenizers_apart), cmocka_unit_test(bytes_of_tokens), cmocka_unit_test(round_trip),
        cmocka_unit_test(nfc_on_request), cmocka_unit_test(missing_bytes), cmocka_unit_test(long_texts),
        cmocka_unit_test(several_threads), cmocka_unit_test(memory_runs_out_opening),
        cmocka_unit_test(memory_runs_out_encoding),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
