/* test_gguf.c - the GGUF reader over images in memory: G01..G12 of the catalogue in reliability.md, and the typed
 * values. Tests that need files, and the writer's, are in test_gguf_files.c. */
#include "gguf_image.h"

static void G01_empty_file(void **state)
{
    (void) state;
    head(0, 1);
    arch();
    for (size_t n = 0; n < 24; n++) {
        char text[64];
        image.n = n;
        snprintf(text, sizeof text, "has %zu bytes, expected a GGUF header of at least 24", n);
        refuse(ST_FORMAT, n > 0 ? text : "is empty");
    }
}

static void G02_magic(void **state)
{
    (void) state;
    static const struct { const char *magic, *text; Status status; } cases[] = {
        { "FUGG", "swapped", ST_UNSUPPORTED }, { "lmgg", "old GGML", ST_UNSUPPORTED },
        { "tjgg", "old GGML", ST_UNSUPPORTED }, { "fmgg", "old GGML", ST_UNSUPPORTED },
        { "ggml", "old GGML", ST_UNSUPPORTED }, { "ggjt", "old GGML", ST_UNSUPPORTED },
        { "PK\3\4", "zip", ST_UNSUPPORTED }, { "\x80\2}q", "PyTorch", ST_UNSUPPORTED },
        { "\0\1\2\3", "00 01 02 03", ST_FORMAT },
        { "GGUf", "47 47 55 66", ST_FORMAT },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        head_of(cases[i].magic, 3, 0, 1);
        arch();
        refuse(cases[i].status, cases[i].text);
    }
}

static void G03_version(void **state)
{
    (void) state;
    static const struct { uint32_t version; const char *text; } cases[] = {
        { 0, "version 0" }, { 1, "version 1," }, { 4, "version 4" }, { UINT32_MAX, "version 4294967295" },
        { 0x03000000, "big-endian GGUF version 3" }, { 0x02000000, "big-endian GGUF version 2" },
        { 0x00010000, "version 65536" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        head_of("GGUF", cases[i].version, 0, 1);
        arch();
        refuse(ST_UNSUPPORTED, cases[i].text);
    }
    for (uint32_t version = 2; version <= 3; version++) {
        head_of("GGUF", version, 0, 1);
        arch();
        Gguf *g = parse_ok();
        assert_int_equal(gguf_version(g), version);
        gguf_close(g);
    }
}

static void G04_counts(void **state)
{
    (void) state;
    static const uint64_t counts[] = { 5, 1ull << 31, 1ull << 32, 1ull << 63, UINT64_MAX };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        head(0, counts[i]);
        arch();
        refuse(ST_FORMAT, "n_kv is ");
        head(counts[i], 1);
        arch();
        refuse(ST_FORMAT, "n_tensors is ");
    }
    head(0, 0);
    refuse(ST_FORMAT, "n_kv is 0");
    /* The file is large enough for the records, but they are missing. */
    head(0, 2);
    arch();
    refuse(ST_FORMAT, "key number 1: needs 8 bytes, but only 0 are left");
    head(1, 1);
    arch();
    refuse(ST_FORMAT, "n_tensors is 1, but only 0 bytes are left");
    /* A file large enough for more tensors than are accepted. */
    head(70000, 1);
    arch();
    image.n = sizeof image.at;
    memset(image.at + 64, 0, sizeof image.at - 64);
    refuse(ST_FORMAT, "n_tensors is 70000");
    head(0, 1);                                    /* a vocabulary: no tensors, no data section */
    arch();
    Gguf *g = parse_ok();
    assert_int_equal(gguf_n_tensors(g), 0);
    gguf_close(g);
}

static void G05_key_names(void **state)
{
    (void) state;
    static const struct { const char *name; size_t n; } bad[] = {
        { "", 0 }, { "a\0b", 3 }, { "a\nb", 3 }, { "\x7f", 1 }, { "\xff", 1 }, { "\xc0\x80", 2 }, { "\xed\xa0\x80", 3 },
        { "\xe2\x82", 2 },
        { "\xf4\x90\x80\x80", 4 }, { "\xf8\x88\x80\x80\x80", 5 }, { "\xe0\x80\x80", 3 }, { "\xf0\x80\x80\x80", 4 },
        { "\x80", 1 },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        head(0, 2);
        arch();
        bytes_of(bad[i].name, bad[i].n);
        u32(GV_U8);
        u8(1);
        refuse(ST_FORMAT, "key number 1: its name is empty or not plain UTF-8");
    }
    static const uint64_t lengths[] = { 65536, 1ull << 32, 1ull << 63, UINT64_MAX };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        head(0, 1);
        u64(lengths[i]);
        raw("0123456789", 10);
        refuse(ST_FORMAT, "key number 0: its name has ");
    }
    head(0, 1);
    u64(65535);
    raw("0123456789", 10);
    refuse(ST_FORMAT, "key number 0: needs 65535 bytes, but only 10 are left");
    head(0, 3);
    key_u32("b", 1);
    key_u32("a", 1);
    key_u32("b", 2);
    refuse(ST_FORMAT, "key 'b' occurs twice");
    /* 64 bytes of a long name are shown, fewer where that would cut a character */
    for (int ascii = 0; ascii < 2; ascii++) {
        char name[90] = "x", shown[128];
        for (int i = 0; i < 40; i++) strcpy(name + ascii + 2 * i, "\xc3\xa9");
        head(0, 2);
        key_u32(name, 1);
        key_u32(name, 2);
        snprintf(shown, sizeof shown, "key '%.*s' occurs twice", 64 - ascii, name);
        refuse(ST_FORMAT, shown);
    }
    head(0, 1);
    key_u32("gr\xc3\xbc\xc3\x9f\xe2\x82\xac\xf0\x9f\x8c\xb1", 7);
    Gguf *g = parse_ok();
    assert_true(gguf_has(g, "gr\xc3\xbc\xc3\x9f\xe2\x82\xac\xf0\x9f\x8c\xb1"));
    gguf_close(g);
}

static void G06_value_types(void **state)
{
    (void) state;
    static const uint32_t types[] = { 13, 255, UINT32_MAX };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        head(0, 1);
        key("k", types[i]);
        u64(0);
        refuse(ST_FORMAT, "key 'k': value type ");
        head(0, 1);
        array("k", types[i], 1);
        u64(0);
        refuse(ST_FORMAT, "key 'k': array of value type ");
    }
    head(0, 1);
    array("k", GV_ARRAY, 1);
    u64(0);
    refuse(ST_FORMAT, "key 'k': an array of arrays");
    static const uint32_t elems[] = { GV_BOOL, GV_U8, GV_F64, GV_STRING };
    static const uint64_t counts[] = { 9, 1ull << 40, 1ull << 61, UINT64_MAX };
    for (size_t i = 0; i < 4; i++)
        for (size_t j = 0; j < 4; j++) {
            head(0, 1);
            array("k", elems[i], counts[j]);
            u64(0);
            refuse(ST_FORMAT, "but only 8 bytes are left");
        }
    static const uint64_t lengths[] = { 4, (64 << 20) + 1, 1ull << 40, UINT64_MAX };
    for (size_t i = 0; i < 4; i++) {
        head(0, 1);
        array("k", GV_STRING, 2);
        u64(lengths[i]);
        raw("\0\0\0\0\0\0\0\0", 8);
        refuse(ST_FORMAT, i == 0 ? "key 'k': needs 8 bytes, but only 4" : "key 'k': a string has ");
        head(0, 1);
        key("k", GV_STRING);
        u64(lengths[i]);
        raw("abc", 3);
        refuse(ST_FORMAT, i == 0 ? "key 'k': needs 4 bytes, but only 3" : "key 'k': a string has ");
    }
    head(0, 1);
    key("k", GV_BOOL);
    u8(2);
    refuse(ST_FORMAT, "key 'k': a bool is 2");
    head(0, 1);
    array("k", GV_BOOL, 3);
    raw("\0\1\xff", 3);
    refuse(ST_FORMAT, "key 'k': a bool is 255");
    for (uint32_t t = 0; t <= GV_F64; t++) {       /* each type cut by one byte */
        head(0, 2);
        arch();
        key("k", t);
        raw("\0\0\0\0\0\0\0\0", t == GV_U8 || t == GV_I8 || t == GV_BOOL ? 0 : t == GV_U16 ||
            t == GV_I16 ? 1 : t == GV_U32 || t == GV_I32 || t == GV_F32 ? 3 : 7);
        refuse(ST_FORMAT, "are left in the file");
    }
}

static void all_values(void)
{
    head(0, 21);
    key("u8", GV_U8), u8(200);
    key("i8", GV_I8), u8(0xff);
    key("u16", GV_U16), raw("\xff\xff", 2);
    key("i16", GV_I16), raw("\xfe\xff", 2);
    key("u32", GV_U32), u32(UINT32_MAX);
    key("i32", GV_I32), u32((uint32_t) -3);
    key("u64", GV_U64), u64(UINT64_MAX);
    key("i64", GV_I64), u64((uint64_t) INT64_MIN);
    key_f32("f32", 1e-6f);
    key("f64", GV_F64), raw(&(double) { 0.5 }, 8);
    key("f64 fine", GV_F64), raw(&(double) { 0.1 }, 8);
    key("f64 large", GV_F64), raw(&(double) { 1e300 }, 8);
    key("yes", GV_BOOL), u8(1);
    key_str("string", "a\nb");
    array("i32s", GV_I32, 3), u32(1), u32((uint32_t) -2), u32(3);
    array("per layer", GV_U32, 4), u32(0), u32(8), u32(0), u32(8);
    array("differ", GV_U32, 2), u32(4), u32(8);
    array("empty", GV_F32, 0);
    array("bools", GV_BOOL, 2), u8(1), u8(0);
    array("f32s", GV_F32, 2), raw(&(float) { 0.25f }, 4), raw(&(float) { -1 }, 4);
    array("strings", GV_STRING, 3), str("x"), str(""), str("yz");
}

static void values(void **state)
{
    (void) state;
    all_values();
    Gguf    *g = parse_ok();
    uint32_t u = 0;
    uint64_t w = 0, count = 0;
    int64_t  i = 0;
    float    f = 0;
    bool     b = false;
    const char *s = NULL;
    size_t   n = 0;
    GgufType elem;
    assert_int_equal(gguf_get_u32(g, "u8", &u, &err), ST_OK); assert_int_equal(u, 200);
    assert_int_equal(gguf_get_u32(g, "u16", &u, &err), ST_OK); assert_int_equal(u, 65535);
    assert_int_equal(gguf_get_u32(g, "u32", &u, &err), ST_OK); assert_true(u == UINT32_MAX);
    assert_int_equal(gguf_get_u64(g, "u64", &w, &err), ST_OK); assert_true(w == UINT64_MAX);
    assert_int_equal(gguf_get_u32(g, "per layer", &u, &err), ST_OK); assert_int_equal(u, 8);
    assert_int_equal(gguf_get_f32(g, "f32", &f, &err), ST_OK); assert_true(f == 1e-6f);
    assert_int_equal(gguf_get_f32(g, "f64", &f, &err), ST_OK); assert_true(f == 0.5f);
    assert_int_equal(gguf_get_f32(g, "i32", &f, &err), ST_OK); assert_true(f == -3);
    assert_int_equal(gguf_get_f32(g, "i64", &f, &err), ST_OK); assert_true(f == -9223372036854775808.0f);
    assert_int_equal(gguf_get_bool(g, "yes", &b, &err), ST_OK); assert_true(b);
    assert_int_equal(gguf_get_str(g, "string", &s, &n, &err), ST_OK);
    assert_int_equal(n, 3);
    assert_memory_equal(s, "a\nb", 3);
    assert_int_equal(gguf_array(g, "i32s", &elem, &count, &err), ST_OK);
    assert_int_equal(elem, GV_I32);
    assert_int_equal(count, 3);
    assert_int_equal(gguf_array_i64(g, "i32s", 1, &i, &err), ST_OK); assert_int_equal(i, -2);
    assert_int_equal(gguf_array_f32(g, "i32s", 2, &f, &err), ST_OK); assert_true(f == 3);
    assert_int_equal(gguf_array_f32(g, "f32s", 0, &f, &err), ST_OK); assert_true(f == 0.25f);
    assert_int_equal(gguf_array_bool(g, "bools", 0, &b, &err), ST_OK); assert_true(b);
    assert_int_equal(gguf_array_bool(g, "bools", 1, &b, &err), ST_OK); assert_false(b);
    assert_int_equal(gguf_array(g, "empty", &elem, &count, &err), ST_OK); assert_int_equal(count, 0);
    static const char *const strings[] = { "x", "", "yz" };
    for (uint64_t j = 0; j < 3; j++) {
        assert_int_equal(gguf_array_str(g, "strings", j, &s, &n, &err), ST_OK);
        assert_int_equal(n, strlen(strings[j]));
        assert_memory_equal(s, strings[j], n);
    }
    /* Missing: ST_END, nothing written, no message. */
    err.text[0] = 0;
    u = 77;
    assert_int_equal(gguf_get_u32(g, "none", &u, &err), ST_END);
    assert_int_equal(gguf_get_u64(g, "none", &w, &err), ST_END);
    assert_int_equal(gguf_get_f32(g, "none", &f, &err), ST_END);
    assert_int_equal(gguf_get_bool(g, "none", &b, &err), ST_END);
    assert_int_equal(gguf_get_str(g, "none", &s, &n, &err), ST_END);
    assert_int_equal(gguf_array(g, "none", &elem, &count, &err), ST_END);
    assert_int_equal(gguf_array_i64(g, "none", 0, &i, &err), ST_END);
    assert_int_equal(u, 77);
    assert_string_equal(err.text, "");
    assert_true(gguf_has(g, "u8") && !gguf_has(g, "u") && !gguf_has(g, "u88"));
    gguf_close(g);
}

static void G07_wrong_type(void **state)
{
    (void) state;
    all_values();
    Gguf    *g = parse_ok();
    uint32_t u;
    uint64_t w, count;
    int64_t  i;
    float    f;
    bool     b;
    const char *s;
    size_t   n;
    GgufType elem;
#define REFUSED(call, text) check_message(call, ST_FORMAT, "x.gguf: key '", text)
    REFUSED(gguf_get_u32(g, "string", &u, &err), "'string' has type string, expected an integer");
    REFUSED(gguf_get_u32(g, "f32", &u, &err), "'f32' has type f32, expected an integer");
    REFUSED(gguf_get_u32(g, "yes", &u, &err), "'yes' has type bool");
    REFUSED(gguf_get_u32(g, "i32", &u, &err), "'i32' is -3, expected 0 to 4294967295");
    REFUSED(gguf_get_u32(g, "i16", &u, &err), "'i16' is -2,");
    REFUSED(gguf_get_u32(g, "i8", &u, &err), "'i8' is -1,");
    REFUSED(gguf_get_u32(g, "u64", &u, &err), "'u64' is 18446744073709551615, expected 0 to 4294967295");
    REFUSED(gguf_get_u32(g, "differ", &u, &err), "different values (4 and 8)");
    REFUSED(gguf_get_u32(g, "empty", &u, &err), "empty array");
    REFUSED(gguf_get_u32(g, "strings", &u, &err), "type array of string, expected array of integers");
    REFUSED(gguf_get_u64(g, "i64", &w, &err), "'i64' is -9223372036854775808, expected 0 to 18446744073709551615");
    REFUSED(gguf_get_u64(g, "i32s", &w, &err), "array of i32, expected an integer");
    REFUSED(gguf_get_f32(g, "string", &f, &err), "type string, expected f32");
    REFUSED(gguf_get_f32(g, "f32s", &f, &err), "type array of f32, expected f32");
    REFUSED(gguf_get_f32(g, "u64", &f, &err),
            "18446744073709551615 of type u64, expected a value that f32 holds exactly");
    REFUSED(gguf_get_f32(g, "f64 fine", &f, &err), "0.1");
    REFUSED(gguf_get_f32(g, "f64 large", &f, &err), "1e+300");
    REFUSED(gguf_get_bool(g, "u8", &b, &err), "type u8, expected bool");
    REFUSED(gguf_get_str(g, "strings", &s, &n, &err), "type array of string, expected string");
    REFUSED(gguf_array(g, "u8", &elem, &count, &err), "type u8, expected array");
    REFUSED(gguf_array_i64(g, "f32s", 0, &i, &err), "type array of f32, expected array of integers");
    REFUSED(gguf_array_f32(g, "strings", 0, &f, &err), "type array of string, expected array of f32");
    REFUSED(gguf_array_bool(g, "i32s", 0, &b, &err), "type array of i32, expected array of bool");
    REFUSED(gguf_array_str(g, "i32s", 0, &s, &n, &err), "type array of i32, expected array of string");
    REFUSED(gguf_array_str(g, "string", 0, &s, &n, &err), "type string, expected array");
    check_message(gguf_array_i64(g, "i32s", 3, &i, &err), ST_ARG, "x.gguf: ", "has 3 elements, element 3");
    check_message(gguf_array_str(g, "strings", UINT64_MAX, &s, &n, &err), ST_ARG, "x.gguf: ", "has 3 elements");
#undef REFUSED
    gguf_close(g);
}

static void key_texts(void **state)
{
    (void) state;
    static const char *const texts[] = {
        "200", "-1", "65535", "-2", "4294967295", "-3", "18446744073709551615", "-9223372036854775808", "1e-06", "0.5",
        "0.1", "1e+300",
        "true", "\"a\\nb\"", "i32[3]: 1, -2, 3", "u32[4]: 0, 8, 0, 8", "u32[2]: 4, 8", "f32[0]", "bool[2]: true, false",
        "f32[2]: 0.25, -1",
        "string[3]: \"x\", \"\", \"yz\"",
    };
    char out[64];
    all_values();
    Gguf *g = parse_ok();
    assert_int_equal(gguf_n_keys(g), 21);
    for (int32_t i = 0; i < 21; i++) {
        assert_int_equal(gguf_key_text(g, i, out, sizeof out), strlen(texts[i]));
        assert_string_equal(out, texts[i]);
        assert_int_equal(gguf_key_text(g, i, NULL, 0), strlen(texts[i]));
        gguf_key_text(g, i, out, 3);
        assert_int_equal(strlen(out), strlen(texts[i]) < 2 ? strlen(texts[i]) : 2);
    }
    assert_string_equal(gguf_key(g, 0), "u8");
    assert_int_equal(gguf_key_type(g, 20), GV_ARRAY);
    assert_string_equal(gguf_type_name(GV_F64), "f64");
    gguf_close(g);
    head(0, 2);
    char sixty_one[62];
    memset(sixty_one, 'a', 58);
    memcpy(sixty_one + 58, "\xe2\x82\xac", 4);     /* 61 bytes: the last character crosses the limit */
    key_str("long", sixty_one);
    array("many", GV_U8, 9), raw("\1\2\3\4\5\6\7\x8\x9", 9);
    g = parse_ok();
    char wide[128];
    gguf_key_text(g, 0, wide, sizeof wide);
    sixty_one[58] = 0;
    char expected[128];
    snprintf(expected, sizeof expected, "\"%s\"... (61 bytes)", sixty_one);
    assert_string_equal(wide, expected);
    gguf_key_text(g, 1, wide, sizeof wide);
    assert_string_equal(wide, "u8[9]: 1, 2, 3, 4, 5, 6, 7, 8, ...");
    gguf_close(g);
}

static void G08_alignment(void **state)
{
    (void) state;
    static const uint32_t bad[] = { 0, 1, 3, 4, 24, 48, 131072, 1u << 31, UINT32_MAX };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        head(0, 1);
        key_u32("general.alignment", bad[i]);
        refuse(ST_FORMAT, "general.alignment is ");
    }
    head(0, 1);
    key_f32("general.alignment", 32);
    refuse(ST_FORMAT, "key 'general.alignment' has type f32, expected an integer");
    head(0, 1);
    key_str("general.alignment", "32");
    refuse(ST_FORMAT, "key 'general.alignment' has type string");
    head(0, 1);
    array("general.alignment", GV_U32, 1), u32(32);
    refuse(ST_FORMAT, "key 'general.alignment' has type array of u32");
    for (uint32_t good = 8; good <= 65536; good *= 2) {
        head(1, 1);
        key_u32("general.alignment", good);
        tensor_1d("w", 4, 0, 0);
        size_t header = image.n;
        while (image.n % good && image.n + 16 < sizeof image.at) u8(0);
        if (image.n % good) {                      /* 64 KiB do not fit into the image */
            refuse(ST_FORMAT, "tensor 'w' has 16 bytes at offset 0, but the data section has only 0");
            continue;
        }
        raw("0123456789abcdef", 16);
        Gguf *g = parse_ok();
        assert_ptr_equal(gguf_tensor(g, "w")->data, image.at + (header + good - 1) / good * good);
        gguf_close(g);
    }
}

static void G09_tensor_names(void **state)
{
    (void) state;
    char name[65];
    memset(name, 'n', 64);
    name[64] = 0;
    one_tensor(name, 1, NE(16), 0, 0);
    refuse(ST_FORMAT, "tensor number 0: its name has 64 bytes, expected at most 63");
    one_tensor("", 1, NE(16), 0, 0);
    refuse(ST_FORMAT, "tensor number 0: its name is empty");
    one_tensor("a\nb", 1, NE(16), 0, 0);
    refuse(ST_FORMAT, "tensor number 0: its name is empty or not plain UTF-8");
    one_tensor("a\x1b[31m", 1, NE(16), 0, 0);
    refuse(ST_FORMAT, "tensor number 0: its name is empty or not plain UTF-8");
    head(3, 1);
    arch();
    tensor_1d("b", 4, 0, 0);
    tensor_1d("a", 4, 0, 32);
    tensor_1d("b", 4, 0, 64);
    data(96);
    refuse(ST_FORMAT, "tensor 'b' occurs twice");
    name[63] = 0;
    one_tensor(name, 1, NE(16), 0, 0);
    Gguf *g = parse_ok();
    assert_non_null(gguf_tensor(g, name));
    assert_null(gguf_tensor(g, "n"));
    assert_null(gguf_tensor(g, ""));
    gguf_close(g);
}

static void G10_shapes(void **state)
{
    (void) state;
    one_tensor("w", 0, NE(1), 0, 0);
    refuse(ST_FORMAT, "tensor 'w': 0 dimensions, expected 1 to 4");
    one_tensor("w", 5, NE(1, 1, 1, 1, 1), 0, 0);
    refuse(ST_FORMAT, "tensor 'w': 5 dimensions");
    head(1, 1);
    arch();
    str("w");
    u32(UINT32_MAX);
    data(64);
    refuse(ST_FORMAT, "tensor 'w': 4294967295 dimensions");
    one_tensor("w", 2, NE(4, 0), 0, 0);
    refuse(ST_FORMAT, "tensor 'w': dimension 1 is 0");
    one_tensor("w", 2, NE(-4, -4), 0, 0);
    refuse(ST_FORMAT, "tensor 'w': dimension 0 is -4");
    one_tensor("w", 2, NE(INT64_MIN, 2), 0, 0);
    refuse(ST_FORMAT, "tensor 'w': dimension 0 is -9223372036854775808");
    one_tensor("w", 4, NE(1ll << 32, 1ll << 16, 1ll << 14, 2), 0, 0);
    refuse(ST_FORMAT, "tensor 'w': the product of its dimensions overflows at dimension 3");
    one_tensor("w", 2, NE(1ll << 61, 3), 0, 0);    /* the count of elements fits 63 bits, that of bytes not 64 */
    refuse(ST_FORMAT, "tensor 'w': shape [2305843009213693952, 3, 1, 1] of type F32 overflows");
    one_tensor("w", 1, NE(INT64_MAX), 0, 0);
    refuse(ST_FORMAT, "tensor 'w': shape [9223372036854775807, 1, 1, 1] of type F32 overflows");
    one_tensor("w", 1, NE(1ll << 60), 0, 0);
    refuse(ST_FORMAT, "tensor 'w' has 4611686018427387904 bytes at offset 0");
    one_tensor("w", 4, NE(4, 2, 1, 1), 0, 0);
    Gguf *g = parse_ok();
    const GgufTensor *t = gguf_tensor_at(g, 0);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->bytes, 32);
    assert_true(t->ne[0] == 4 && t->ne[1] == 2 && t->ne[2] == 1 && t->ne[3] == 1);
    assert_int_equal(t->data[0], 1);
    gguf_close(g);
    one_tensor("w", 3, NE(1, 1, 1), 0, 0);
    g = parse_ok();
    assert_int_equal(gguf_tensor_at(g, 0)->n_dims, 1);
    gguf_close(g);
}

/* Every type number of ggml: { block, bytes }, block 0 where it was removed. Independent of the reader's table. */
static const struct { int block, bytes; const char *name; bool known; } ggml[43] = {
    { 1, 4, "F32", 1 }, { 1, 2, "F16", 1 }, { 32, 18, "Q4_0", 1 }, { 32, 20, "Q4_1", 1 }, { 0 }, { 0 },
    { 32, 22, "Q5_0", 1 },
    { 32, 24, "Q5_1", 1 }, { 32, 34, "Q8_0", 1 }, { 32, 36, "Q8_1", 0 }, { 256, 84, "Q2_K", 1 },
    { 256, 110, "Q3_K", 1 },
    { 256, 144, "Q4_K", 1 }, { 256, 176, "Q5_K", 1 }, { 256, 210, "Q6_K", 1 }, { 256, 292, "Q8_K", 0 },
    { 256, 66, "IQ2_XXS", 1 },
    { 256, 74, "IQ2_XS", 1 }, { 256, 98, "IQ3_XXS", 1 }, { 256, 50, "IQ1_S", 0 }, { 32, 18, "IQ4_NL", 1 },
    { 256, 110, "IQ3_S", 1 },
    { 256, 82, "IQ2_S", 1 }, { 256, 136, "IQ4_XS", 1 }, { 1, 1, "I8", 0 }, { 1, 2, "I16", 0 }, { 1, 4, "I32", 1 },
    { 1, 8, "I64", 0 },
    { 1, 8, "F64", 0 }, { 256, 56, "IQ1_M", 0 }, { 1, 2, "BF16", 1 }, { 0 }, { 0 }, { 0 }, { 256, 54, "TQ1_0", 0 },
    { 256, 66, "TQ2_0", 0 },
    { 0 }, { 0 }, { 0 }, { 32, 17, "MXFP4", 1 }, { 64, 36, "NVFP4", 1 }, { 128, 18, "Q1_0", 0 }, { 64, 18, "Q2_0", 0 },
};

static void G10_types(void **state)
{
    (void) state;
    for (uint32_t type = 0; type < 43; type++) {
        int64_t block = ggml[type].block;
        head(1, 1);
        arch();
        tensor("w", 2, NE(block ? block : 32, 3), type, 0);
        data(3 * (size_t) ggml[type].bytes);
        if (block == 0) {
            refuse(ST_UNSUPPORTED, "was removed");
            continue;
        }
        Gguf *g = parse_ok();
        const GgufTensor *t = gguf_tensor(g, "w");
        assert_int_equal(t->bytes, 3 * ggml[type].bytes);
        assert_int_equal(t->known, ggml[type].known);
        assert_int_equal(t->ggml_type, type);
        assert_string_equal(gguf_tensor_type_name(t), ggml[type].name);
        gguf_close(g);
        image.n--;
        refuse(ST_FORMAT, "tensor 'w' has ");
        if (block > 1) {
            one_tensor("w", 1, NE(block / 2), type, 0);
            refuse(ST_FORMAT, "expected a multiple of ");
        }
    }
    static const uint32_t unknown[] = { 43, 107, 108, 255, 1u << 31, UINT32_MAX };
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        one_tensor("w", 1, NE(4), unknown[i], 0);
        refuse(ST_UNSUPPORTED, "tensor 'w': type number ");
    }
}

static void G11_offsets(void **state)
{
    (void) state;
    one_tensor("w", 1, NE(4), 0, 4);
    refuse(ST_FORMAT, "tensor 'w': offset 4, expected a multiple of 32");
    static const uint64_t far[] = { 64, 96, 1 << 20, 1ull << 40, 1ull << 63, UINT64_MAX - 31 };
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        one_tensor("w", 1, NE(4), 0, far[i]);
        refuse(ST_FORMAT, "tensor 'w' has 16 bytes at offset ");
    }
    /* offset + bytes wraps around to 0, 32 and 64: a plain sum would lie inside the file */
    for (int64_t ne = 8; ne <= 24; ne += 8) {
        one_tensor("w", 1, NE(ne), 0, UINT64_MAX - 31);
        refuse(ST_FORMAT, "bytes at offset 18446744073709551584");
    }
    one_tensor("w", 1, NE(16), 0, 32);             /* begins inside, ends outside */
    refuse(ST_FORMAT, "tensor 'w' has 64 bytes at offset 32");
    for (int order = 0; order < 2; order++) {      /* overlaps, in either order in the list */
        head(2, 1);
        arch();
        tensor_1d(order ? "b" : "a", order ? 4 : 16, 0, order ? 32 : 0);
        tensor_1d(order ? "a" : "b", order ? 16 : 4, 0, order ? 0 : 32);
        data(64);
        refuse(ST_FORMAT, "tensor 'b' at offset 32 overlaps tensor 'a'");
    }
    head(2, 1);
    arch();
    tensor_1d("a", 4, 0, 0);
    tensor_1d("b", 4, 0, 0);
    data(64);
    refuse(ST_FORMAT, "tensor 'b' at offset 0 overlaps tensor 'a'");
    head(2, 1);                                    /* another order than the list's, and a gap: allowed */
    arch();
    tensor_1d("a", 4, 0, 64);
    tensor_1d("b", 4, 0, 0);
    data(80);
    Gguf *g = parse_ok();
    assert_int_equal(gguf_tensor(g, "a")->data[0], 65);
    assert_int_equal(gguf_tensor(g, "b")->data[0], 1);
    assert_string_equal(gguf_tensor_at(g, 0)->name, "a");
    gguf_close(g);
    image.n--;
    refuse(ST_FORMAT, "tensor 'a' has 16 bytes at offset 64, but the data section has only 79: the file is cut off");
    image.n += 100;                                /* longer than needed */
    g = parse_ok();
    assert_int_equal(gguf_file_bytes(g), image.n);
    gguf_close(g);
}

static void G12_no_data(void **state)
{
    (void) state;
    head(1, 1);
    arch();
    tensor_1d("w", 4, 0, 0);
    refuse(ST_FORMAT, "tensor 'w' has 16 bytes at offset 0, but the data section has only 0");
    data(0);
    refuse(ST_FORMAT, "tensor 'w' has 16 bytes at offset 0, but the data section has only 0");
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(G01_empty_file), cmocka_unit_test(G02_magic), cmocka_unit_test(G03_version),
        cmocka_unit_test(G04_counts), cmocka_unit_test(G05_key_names), cmocka_unit_test(G06_value_types),
        cmocka_unit_test(values), cmocka_unit_test(G07_wrong_type), cmocka_unit_test(key_texts),
        cmocka_unit_test(G08_alignment), cmocka_unit_test(G09_tensor_names), cmocka_unit_test(G10_shapes),
        cmocka_unit_test(G10_types), cmocka_unit_test(G11_offsets), cmocka_unit_test(G12_no_data),
    };
    return cmocka_run_group_tests_name("gguf", tests, make_folder, remove_folder);
}
