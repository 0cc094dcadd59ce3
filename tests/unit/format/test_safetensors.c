/* test_safetensors.c - the safetensors reader and json_read; S01..S07 are the catalogue of reliability.md. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "format/safetensors.h"                    /* before cmocka.h, which has a macro named fail */
#include "file_check.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fault.h"

static struct { uint8_t at[1 << 14]; size_t n; } image;

/* A header as it is, and n bytes 1, 2, 3 ... of data. */
static void raw_image(const char *header, size_t length, size_t n)
{
    uint64_t declared = length;
    assert_true(8 + length + n <= sizeof image.at);
    memcpy(image.at, &declared, 8);
    memcpy(image.at + 8, header, length);
    for (size_t i = 0; i < n; i++) image.at[8 + length + i] = (uint8_t) (i + 1);
    image.n = 8 + length + n;
}

/* A header padded with spaces to a multiple of 8, as writers do. */
static void text_image(const char *header, size_t n)
{
    char   padded[8192];
    size_t length = strlen(header);
    memcpy(padded, header, length);
    while (length % 8) padded[length++] = ' ';
    raw_image(padded, length, n);
}

#define ENTRY(dtype, shape, begin, end) \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void refuse(const char *text)
{
    Safetensors *s;
    double start = now();
    size_t before = alloc_state.bytes;
    alloc_state.peak = before;
    Status status = safetensors_parse(&s, image.at, image.n, "x.safetensors", &err);
    assert_null(s);
    check_message(status, ST_FORMAT, "x.safetensors: ", text);
    assert_true(now() - start < 1.0);
    assert_true(alloc_state.peak - before < (4 << 20));
    if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.bytes, before);
}

static void refuse_text(const char *header, size_t n, const char *text)
{
    text_image(header, n);
    refuse(text);
}

static Safetensors *parse_ok(void)
{
    Safetensors *s;
    Status status = safetensors_parse(&s, image.at, image.n, "x.safetensors", &err);
    if (status != ST_OK) print_error("%s\n", err.text);
    assert_int_equal(status, ST_OK);
    return s;
}

/* ---- a folder for files ---- */

static const char *save_text(const char *name, const char *text) { return save_bytes(name, text, strlen(text)); }

static const char *save_image(const char *name, const char *header, size_t n)
{
    text_image(header, n);
    return save_bytes(name, image.at, image.n);
}

static int make_folder(void **state)
{
    (void) state;
    return new_folder("safetensors");
}

static void refuse_open(const char *path, Status expected, const char *file, const char *text)
{
    Safetensors *s;
    double start = now();
    Status status = safetensors_open(&s, path, &err);
    assert_null(s);
    check_message(status, expected, file, text);
    assert_true(now() - start < 1.0);
}

/* ---- good files ---- */

static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"},\"b\":" ENTRY("BF16", "[4]", 16, 24) ",\"a\":"
                           ENTRY("F32", "[2,2]", 0, 16) ",\"table\":" ENTRY("I64", "[]", 24, 32) ",\"ids\":"
                           ENTRY("I32", "[1,1]", 32, 36) ",\"h\":" ENTRY("F16", "[1,2,1,1,1]", 36, 40) ",\"mask\":"
                           ENTRY("BOOL", "[3]", 40, 43) "}";

static void check_good(const Safetensors *s)
{
    assert_int_equal(safetensors_n(s), 6);
    const SafeTensor *t = safetensors_get(s, "a");
    assert_true(t->type == T_F32 && t->n_dims == 2 && t->shape[0] == 2 && t->shape[1] == 2 && t->shape[2] == 1 &&
                t->bytes == 16);
    assert_int_equal(t->data[0], 1);
    t = safetensors_get(s, "b");
    assert_true(t->type == T_BF16 && t->n_dims == 1 && t->shape[0] == 4 && t->bytes == 8);
    assert_string_equal(t->dtype, "BF16");
    assert_int_equal(t->data[7], 24);
    t = safetensors_get(s, "table");
    assert_true(t->type == T_I32 && t->n_dims == 0 && t->bytes == 8);
    assert_string_equal(t->dtype, "I64");
    t = safetensors_get(s, "ids");
    assert_true(t->type == T_I32 && t->data[0] == 33);
    assert_string_equal(t->dtype, "I32");
    t = safetensors_get(s, "mask");
    assert_true(t->type == T_I32 && t->bytes == 3 && t->data[2] == 43);
    assert_string_equal(t->dtype, "BOOL");
    t = safetensors_get(s, "h");
    assert_true(t->type == T_F16 && t->n_dims == 5 && t->shape[1] == 2);
    assert_null(safetensors_get(s, "__metadata__"));
    assert_null(safetensors_get(s, "c"));
    assert_string_equal(safetensors_at(s, 0)->name, "b");      /* the header's order */
}

static void good_image(void **state)
{
    (void) state;
    text_image(good, 43);
    Safetensors *s = parse_ok();
    check_good(s);
    assert_string_equal(safetensors_path(s), "x.safetensors");
    assert_string_equal(safetensors_at(s, 4)->file, "x.safetensors");
    assert_null(safetensors_config(s));
    safetensors_close(s);
    safetensors_close(NULL);
    text_image("{}", 0);
    s = parse_ok();
    assert_int_equal(safetensors_n(s), 0);
    safetensors_close(s);
}

static void good_folders(void **state)
{
    (void) state;
    Safetensors *s;
    assert_int_equal(mkdir(in_folder("good"), 0700), 0);
    save_image("good/model.safetensors", good, 43);
    for (int config = 0; config < 2; config++) {
        static const char *const names[] = { "good", "good/", "good/model.safetensors" };
        if (config) save_text("good/config.json", "\xef\xbb\xbf{\"block_size\": 16}");
        for (int i = 0; i < 3; i++) {
            assert_int_equal(safetensors_open(&s, in_folder(names[i]), &err), ST_OK);
            check_good(s);
            assert_string_equal(safetensors_at(s, 0)->file, in_folder("good/model.safetensors"));
            if (config) assert_int_equal(json_integer_value(json_object_get(safetensors_config(s), "block_size")), 16);
            else assert_null(safetensors_config(s));
            assert_int_equal(safetensors_check_files(s, &err), ST_OK);
            safetensors_close(s);
        }
    }
    char here[4096];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(in_folder("good")), 0);             /* without a folder in the name */
    assert_int_equal(safetensors_open(&s, "model.safetensors", &err), ST_OK);
    assert_non_null(safetensors_config(s));
    safetensors_close(s);
    assert_int_equal(safetensors_open(&s, ".", &err), ST_OK);
    assert_non_null(safetensors_config(s));
    safetensors_close(s);
    assert_int_equal(chdir(here), 0);
    static const char *const bad[] = { "[]", "{", "", "3", "{\"a\":1,\"a\":1}" };
    for (int i = 0; i < 5; i++) {
        save_text("good/config.json", bad[i]);
        refuse_open(in_folder("good"), ST_FORMAT, "good/config.json",
                    i == 0 || i == 3 ? "is not a JSON object" : "JSON line 1");
    }
    unlink(in_folder("good/config.json"));
    assert_int_equal(mkfifo(in_folder("good/config.json"), 0600), 0);
    refuse_open(in_folder("good"), ST_IO, "good/config.json", "is a FIFO");
    unlink(in_folder("good/config.json"));
}

/* ---- the catalogue ---- */

static void S01_header_length(void **state)
{
    (void) state;
    static const uint64_t lengths[] = { 0, 1, 17, 1ull << 32, 1ull << 63, UINT64_MAX - 7, UINT64_MAX };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        text_image("{}", 8);
        memcpy(image.at, &lengths[i], 8);
        image.n = 8 + 16;
        refuse("the header length is ");
    }
    for (size_t n = 0; n < 10; n++) {
        image.n = n;
        refuse("expected a safetensors header of at least 10");
    }
    /* Odd: the data would not be aligned. */
    const char *odd = "{\"w\":" ENTRY("F16", "[1]", 0, 2) "}";
    char        padded[128];
    snprintf(padded, sizeof padded, "%s  ", odd);
    raw_image(padded, strlen(odd) | 1, 2);
    refuse("tensor 'w': begins at byte ");
}

static void S02_header_cap(void **state)
{
    (void) state;
    uint64_t length = 100 * 1000 * 1000 + 8;
    const char *path = save_bytes("huge.safetensors", &length, 8);
    assert_int_equal(truncate(path, 1ll << 30), 0);
    refuse_open(path, ST_FORMAT, path, "the header length is 100000008, expected 2 to 100000000");
    unlink(path);
}

static void S03_not_json(void **state)
{
    (void) state;
    refuse_text("[1]", 0, "does not begin with '{'");
    refuse_text(" {}", 0, "does not begin with '{'");
    refuse_text("hello", 0, "does not begin with '{'");
    refuse_text("{\"a\":", 0, "JSON line 1");
    refuse_text("{'a':1}", 0, "JSON line 1");
    refuse_text("{} {}", 0, "JSON line 1");
    refuse_text("{\"a\":1,\"a\":1}", 0, "duplicate");
    refuse_text("{\"w\":" ENTRY("F32", "[1]", 0, 4) ",\"w\":" ENTRY("F32", "[1]", 4, 8) "}", 8, "duplicate");
    refuse_text("{\"\xff\":1}", 0, "JSON line 1");
    refuse_text("{\"a\\u0000b\":1}", 0, "JSON line 1");
    raw_image("{}\0\0\0\0\0\0", 8, 0);
    refuse("JSON has a zero byte at byte 2");
    size_t n = 100000;
    char  *deep = malloc(n);
    memset(deep, '[', n);
    memcpy(deep, "{\"a\":", 5);
    raw_image(deep, 8000, 0);
    refuse("deeper than 128");
    json_t *json;
    Status  status = json_read(&json, deep, n, "deep.json", &err);
    check_message(status, ST_FORMAT, "deep.json: ", "JSON nesting at byte 132 is deeper than 128");
    assert_null(json);
    free(deep);
}

static void S04_dtypes(void **state)
{
    (void) state;
    refuse_text("{\"w\":" ENTRY("Q99", "[1]", 0, 4) "}", 4,
                "tensor 'w': dtype 'Q99', expected F32, F16, BF16, I32, I64 or BOOL");
    refuse_text("{\"w\":" ENTRY("F8_E4M3", "[4]", 0, 4) "}", 4, "tensor 'w': dtype 'F8_E4M3'");
    refuse_text("{\"w\":" ENTRY("f32", "[1]", 0, 4) "}", 4, "dtype 'f32'");
    refuse_text("{\"w\":" ENTRY("", "[1]", 0, 4) "}", 4, "dtype ''");
    refuse_text("{\"w\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor 'w': dtype is missing");
    refuse_text("{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor 'w': dtype is missing");
    refuse_text("{\"w\":[]}", 4, "tensor 'w': its entry is not an object");
    refuse_text("{\"\":" ENTRY("F32", "[1]", 0, 4) "}", 4, "tensor number 0 is empty");
    refuse_text("{\"a\\nb\":" ENTRY("F32", "[1]", 0, 4) "}", 4, "control characters");
}

static void S05_shapes_and_offsets(void **state)
{
    (void) state;
    static const struct { const char *entry; size_t data; const char *text; } cases[] = {
        { ENTRY("F32", "[0,2]", 0, 0), 0, "shape[0] is not an integer of at least 1" },
        { ENTRY("F32", "[2,-2]", 0, 16), 16, "shape[1] is not" },
        { ENTRY("F32", "[2.0,2]", 0, 16), 16, "shape[0] is not" },
        { ENTRY("F32", "[null]", 0, 16), 16, "shape[0] is not" },
        { ENTRY("F32", "[[4]]", 0, 16), 16, "shape[0] is not" },
        { ENTRY("F32", "[9223372036854775808]", 0, 16), 16, "JSON line 1" },
        { ENTRY("F32", "[9223372036854775807]", 0, 16), 16, "its size overflows at shape[0]" },
        { ENTRY("F32", "[4294967296,4294967296]", 0, 16), 16, "its size overflows at shape[1]" },
        { ENTRY("F32", "[4611686018427387904,2]", 0, 0), 0, "its size overflows at shape[0]" },
        { ENTRY("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4), 4, "9 dimensions, expected at most 8" },
        { ENTRY("F32", "4", 0, 16), 16, "shape is missing or not a list" },
        { ENTRY("F32", "{}", 0, 16), 16, "shape is missing" },
        { ENTRY("F32", "[2,2]", 16, 0), 16, "[16, 0] are reversed or outside" },
        { ENTRY("F32", "[2,2]", -16, 0), 16, "[-16, 0] are" },
        { ENTRY("F32", "[2,2]", 0, 17), 16, "[0, 17] are reversed or outside the 16 bytes" },
        { ENTRY("F32", "[2,2]", 16, 32), 16, "outside" },
        { ENTRY("F32", "[2,2]", 0, 16), 15, "outside the 15 bytes of data" },
        { ENTRY("F32", "[2,2]", 0, 9223372036854775807), 16, "outside" },
        { ENTRY("F32", "[2,1]", 0, 16), 16, "span 16 bytes, but dtype and shape need 8" },
        { ENTRY("F32", "[2,2]", 0.0, 16), 16, "data_offsets" },
        { ENTRY("F32", "[2,2]", 4, 20), 20, "begin at 4, expected 0: the tensors leave a hole" },
        { ENTRY("F32", "[2,2]", 2, 18), 18, "multiple of 4" },
        { ENTRY("F32", "[2,2]", 0, 16), 17, "17 bytes of data, but the tensors end at 16" },
        { "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}", 4,
          "data_offsets is missing or not a list of 2 integers" },
        { "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}", 4, "data_offsets is missing" },
        { "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":\"0,4\"}", 4, "data_offsets is missing" },
        { "{\"dtype\":\"F32\",\"shape\":[1]}", 4, "data_offsets is missing" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char header[512];
        snprintf(header, sizeof header, "{\"w\":%s}", cases[i].entry);
        refuse_text(header, cases[i].data, cases[i].text);
        if (!strstr(err.text, "JSON line") && !strstr(err.text, "tensors end"))
            assert_non_null(strstr(err.text, "tensor 'w': "));
    }
    refuse_text("{\"a\":" ENTRY("F32", "[4]", 0, 16) ",\"b\":" ENTRY("F32", "[4]", 0, 16) "}", 16,
                "tensor 'b': data_offsets begin at 0, expected 16: the tensors overlap");
    refuse_text("{\"a\":" ENTRY("F32", "[4]", 8, 24) ",\"b\":" ENTRY("F32", "[4]", 0, 16) "}", 24,
                "tensor 'a': data_offsets begin at 8, expected 16");
    refuse_text("{\"a\":" ENTRY("F32", "[4]", 0, 16) ",\"b\":" ENTRY("F32", "[4]", 20, 36) "}", 36,
                "tensor 'b': data_offsets begin at 20, expected 16: the tensors leave a hole");
    refuse_text("{}", 1, "1 bytes of data, but the tensors end at 0");
}

static void S06_metadata(void **state)
{
    (void) state;
    refuse_text("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ 'a' is not a string");
    refuse_text("{\"__metadata__\":{\"a\":null}}", 0, "__metadata__ 'a' is not a string");
    refuse_text("{\"__metadata__\":[]}", 0, "__metadata__ is not an object");
    refuse_text("{\"__metadata__\":\"x\"}", 0, "__metadata__ is not an object");
}

static void write_shards(void)
{
    mkdir(in_folder("shards"), 0700);              /* may be there already */
    save_image("shards/one.safetensors", "{\"a\":" ENTRY("F32", "[4]", 0, 16) "}", 16);
    save_image("shards/two.safetensors",
               "{\"b\":" ENTRY("F32", "[2]", 0, 8) ",\"c\":" ENTRY("F32", "[2]", 8, 16) "}", 16);
}

#define INDEX(map) "{\"metadata\":{\"total_size\":32},\"weight_map\":{" map "}}"

static void S07_index(void **state)
{
    (void) state;
    Safetensors *s;
    assert_int_equal(mkdir(in_folder("none"), 0700), 0);
    refuse_open(in_folder("none"), ST_IO, "none", "has neither model.safetensors nor model.safetensors.index.json");
    write_shards();
    save_text("shards/config.json", "{}");
    const char *index = "shards/model.safetensors.index.json";
    save_text(index, INDEX("\"c\":\"two.safetensors\",\"a\":\"one.safetensors\",\"b\":\"two.safetensors\""));
    const char *names[] = { "shards", index };
    for (int i = 0; i < 2; i++) {
        Status status = safetensors_open(&s, in_folder(names[i]), &err);
        if (status != ST_OK) print_error("%s\n", err.text);
        assert_int_equal(status, ST_OK);
        assert_int_equal(safetensors_n(s), 3);
        assert_string_equal(safetensors_get(s, "c")->file, in_folder("shards/two.safetensors"));
        assert_int_equal(safetensors_get(s, "c")->data[0], 9);
        assert_int_equal(safetensors_get(s, "a")->data[0], 1);
        assert_non_null(safetensors_config(s));
        safetensors_close(s);
    }
    static const char *const outside[] = {
        "../../etc/x", "/etc/passwd", "../one.safetensors", "./one.safetensors", "sub/one.safetensors", "..", ".", "",
        ".safetensors",
        "config.json", "one.safetensors\\n", "..safetensors",
    };
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        char text[256];
        snprintf(text, sizeof text, INDEX("\"a\":\"%s\""), outside[i]);
        save_text(index, text);
        refuse_open(in_folder("shards"), ST_FORMAT, index, "expected a .safetensors file in the same folder");
    }
    static const struct { const char *text, *message; Status status; } bad[] = {
        { INDEX("\"a\":3"), "weight_map 'a' names ''", ST_FORMAT }, { INDEX(""), "names 0 files", ST_FORMAT },
        { "{\"weight_map\":[]}", "weight_map is missing", ST_FORMAT }, { "{}", "weight_map is missing", ST_FORMAT },
        { "[]", "is not a JSON object", ST_FORMAT },
        { "", "JSON line", ST_FORMAT },
        { INDEX("\"a\":\"one.safetensors\",\"a\":\"two.safetensors\""), "duplicate", ST_FORMAT },
        { INDEX("\"z\":\"one.safetensors\""), "weight_map 'z': there is no such tensor in one.safetensors", ST_FORMAT },
        { INDEX("\"a\":\"two.safetensors\",\"b\":\"one.safetensors\""),
          "weight_map 'a': there is no such tensor in two.safetensors", ST_FORMAT },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        save_text(index, bad[i].text);
        refuse_open(in_folder("shards"), bad[i].status, index, bad[i].message);
    }
    save_text(index, INDEX("\"a\":\"one.safetensors\",\"b\":\"three.safetensors\""));
    refuse_open(in_folder("shards"), ST_IO, "three.safetensors", "cannot be opened");
    save_image("shards/three.safetensors", "{\"a\":" ENTRY("F32", "[4]", 0, 16) "}", 16);
    save_text(index, INDEX("\"a\":\"one.safetensors\",\"b\":\"three.safetensors\""));
    refuse_open(in_folder("shards"), ST_FORMAT, "three.safetensors", "tensor 'a' occurs twice");
    save_text(index, INDEX("\"a\":\"one.safetensors\",\"b\":\"two.safetensors\",\"c\":\"two.safetensors\""));
    assert_int_equal(truncate(in_folder("shards/two.safetensors"), 20), 0);
    refuse_open(in_folder("shards"), ST_FORMAT, "two.safetensors", "the header length is ");
}

static void not_files(void **state)
{
    (void) state;
    refuse_open(in_folder("missing"), ST_IO, "missing", "cannot be opened");
    refuse_open("", ST_IO, ": ", "cannot be opened");
    refuse_open("/dev/zero", ST_IO, "/dev/zero", "is a device");
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    refuse_open(in_folder("fifo"), ST_IO, "fifo", "is a FIFO");
    assert_int_equal(symlink("loop.safetensors", in_folder("loop.safetensors")), 0);
    refuse_open(in_folder("loop.safetensors"), ST_IO, "loop.safetensors", "Too many levels");
    Safetensors *s;
    const char  *path = save_image("changed.safetensors", good, 43);
    assert_int_equal(safetensors_open(&s, path, &err), ST_OK);
    assert_int_equal(truncate(path, 8), 0);
    check_message(safetensors_check_files(s, &err), ST_IO, path, "has 8 bytes, expected ");
    assert_non_null(safetensors_get(s, "a"));
    safetensors_close(s);
}

/* ---- JSON ---- */

static void json_ok(const char *text, json_type type)
{
    json_t *json;
    Status  status = json_read(&json, text, strlen(text), "j", &err);
    if (status != ST_OK) print_error("%s: %s\n", text, err.text);
    assert_int_equal(status, ST_OK);
    assert_int_equal(json_typeof(json), type);
    json_decref(json);
}

static void json_refused(const char *text, size_t n, const char *message)
{
    json_t *json;
    Status  status = json_read(&json, text, n, "j", &err);
    check_message(status, ST_FORMAT, "j: JSON ", message);
    assert_null(json);
}

static void json_limits(void **state)
{
    (void) state;
    json_ok("{}", JSON_OBJECT);
    json_ok(" [1, \"]]]][[[[\", \"\\\"[\"] ", JSON_ARRAY);
    json_ok("\xef\xbb\xbf{\"a\":1}", JSON_OBJECT);
    char text[400] = "[\"\\\"";                     /* brackets behind an escaped quote are still text */
    memset(text + 4, '[', 300);
    strcpy(text + 304, "\", \"\\\\\"]");
    json_ok(text, JSON_ARRAY);
    json_ok("3", JSON_INTEGER);
    json_ok("\"x\"", JSON_STRING);
    static const char *const bad[] = { "", " ", "[1,]", "{\"a\":1,}", "// x\n1", "NaN", "Infinity", "01", "1e999",
                                       "9223372036854775808", "\"\\ud800\"", "\"\\u0000\"", "\"\xc0\x80\"", "\"a\nb\"",
                                       "1 2", "]", "}", "\"", "\"\\", "\xff\xfe{\0}\0" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) json_refused(bad[i], strlen(bad[i]), "line ");
    json_refused("{\"a\":1,\"a\":2}", 13, "duplicate");
    json_refused("{\"a\":1\0}", 8, "zero byte at byte 6");
    json_refused("{\"a\":\"\0\"}", 9, "zero byte at byte 6");
    json_refused("1\0", 2, "zero byte at byte 1");
    char nested[512];
    for (int depth = 128; depth <= 129; depth++) {
        memset(nested, '[', (size_t) depth);
        memset(nested + depth, ']', (size_t) depth);
        nested[2 * depth] = 0;
        if (depth == 128) json_ok(nested, JSON_ARRAY);
        else json_refused(nested, 258, "nesting at byte 128 is deeper than 128");
    }
    /* A text that would expand to gigabytes is refused before the parser sees it. */
    size_t n = 32 << 20;
    char  *many = malloc(n);
    for (size_t i = 0; i < n; i += 2) memcpy(many + i, "0,", 2);
    many[0] = '[';
    double start = now();
    size_t before = alloc_state.peak = alloc_state.bytes;
    json_refused(many, n, "too many values");
    for (size_t i = 2; i + 4 < n; i += 4) memcpy(many + i, "{},", 3);
    json_refused(many, n, "too many values");
    assert_true(alloc_state.peak - before < (1 << 20));
    assert_true(now() - start < 2);
    free(many);
}

/* ---- all of it ---- */

static void truncations_and_flips(void **state)
{
    (void) state;
    Safetensors *s;
    text_image(good, 43);
    size_t whole = image.n;
    for (image.n = 0; image.n < whole; image.n++) {
        uint8_t *exact = malloc(image.n ? image.n : 1);
        memcpy(exact, image.at, image.n);
        assert_int_equal(safetensors_parse(&s, exact, image.n, "x", &err), ST_FORMAT);
        free(exact);
    }
    double start = now();
    long   opened = 0;
    for (size_t bit = 0; bit < 8 * (whole - 43); bit++) {
        image.at[bit / 8] ^= (uint8_t) (1 << bit % 8);
        Status status = safetensors_parse(&s, image.at, image.n, "x", &err);
        assert_true(status == ST_OK || status == ST_FORMAT);
        for (int32_t i = 0; status == ST_OK && i < safetensors_n(s); i++) {
            const SafeTensor *t = safetensors_at(s, i);
            assert_true(t->data >= image.at && t->data + t->bytes <= image.at + image.n);
        }
        opened += status == ST_OK;
        safetensors_close(s);
        image.at[bit / 8] ^= (uint8_t) (1 << bit % 8);
    }
    assert_true(opened > 20);
    assert_true(now() - start < 30);
    s = parse_ok();
    check_good(s);
    safetensors_close(s);
}

static void allocation_failures(void **state)
{
    (void) state;
    char path[256];
    snprintf(path, sizeof path, "%s", in_folder("shards"));
    write_shards();
    save_text("shards/config.json", "{\"hidden_size\":[1,2,{\"x\":\"y\"}]}");
    save_text("shards/model.safetensors.index.json",
              INDEX("\"a\":\"one.safetensors\",\"b\":\"two.safetensors\",\"c\":\"two.safetensors\""));
    long k = 0, live = alloc_state.live;
    for (bool hit = true; hit; ) {
        Safetensors *s;
        err = (Error) { 0 };
        alloc_state.fail_in = ++k;
        Status status = safetensors_open(&s, path, &err);
        hit = alloc_state.fail_in == 0;
        alloc_state.fail_in = 0;
        if (status != ST_OK) {
            if (status != ST_MEMORY) print_error("allocation %ld: %d %s\n", k, status, err.text);
            assert_int_equal(status, ST_MEMORY);
            assert_null(s);
            assert_non_null(strstr(err.text, path));
        } else assert_int_equal(safetensors_n(s), 3);
        if (!hit) assert_int_equal(status, ST_OK);
        safetensors_close(s);
        if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.live, live);
    }
    assert_true(k > 50);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_image), cmocka_unit_test(good_folders), cmocka_unit_test(S01_header_length),
        cmocka_unit_test(S02_header_cap), cmocka_unit_test(S03_not_json), cmocka_unit_test(S04_dtypes),
        cmocka_unit_test(S05_shapes_and_offsets), cmocka_unit_test(S06_metadata), cmocka_unit_test(S07_index),
        cmocka_unit_test(not_files), cmocka_unit_test(json_limits), cmocka_unit_test(truncations_and_flips),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests_name("safetensors", tests, make_folder, remove_folder);
}
