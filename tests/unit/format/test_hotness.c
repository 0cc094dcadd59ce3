/* test_hotness.c - the counts of a mixture's experts, and their file: what is written is read back, what is published
 * is read, and everything else is refused with a reason. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "format/hotness.h"                        /* before cmocka.h, which has a macro named fail */
#include "file_check.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fault.h"

static const HotnessModel three = { 3, 4, 2, "Small Mix 1.0", 123456 };
static const char published[] = "# hotness table: n_layer=3 n_expert=4 n_expert_used=2\n"
                                "# format: one row per layer, columns are expert activation counts (expert 0..N-1)\n"
                                "0,0,0,0\n1,2,3,4\n9007199254740000,0,0,992\n";

static int make_folder(void **state)
{
    (void) state;
    return new_folder("hotness");
}

static Status parse(Hotness *out, const char *text, const HotnessModel *of)
{
    return hotness_parse(out, text, strlen(text), "x.csv", of, &err);
}

static void reads(const char *text, const HotnessModel *of, const uint64_t *count)
{
    Hotness h;
    Status st = parse(&h, text, of);
    if (st != ST_OK) print_error("%s\n", err.text);
    assert_int_equal(st, ST_OK);
    assert_true(h.layers == of->layers && h.experts == of->experts && h.used == of->used);
    assert_memory_equal(h.count, count, sizeof *count * (size_t) of->layers * (size_t) of->experts);
    hotness_free(&h);
    assert_true(!h.count && h.layers == 0);
}

static void refuses(const char *text, const HotnessModel *of, const char *why)
{
    Hotness h;
    const long live = alloc_state.live;
    Status st = parse(&h, text, of);
    check_message(st, ST_FORMAT, "x.csv: ", why);
    assert_true(!h.count && h.layers == 0);
    if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.live, live);
}

static void what_is_published(void **state)
{
    (void) state;
    const uint64_t count[] = { 0, 0, 0, 0, 1, 2, 3, 4, 9007199254740000, 0, 0, 992 };
    reads(published, &three, count);
    const char *rows = strstr(published, "0,0");
    reads(rows, &three, count);                    /* no header */
    reads("\n0, 0 ,\t0,0\r\n \t\r\n1,2,3,4\n# a word, and another\n  # n_layers\n9007199254740000,00,0,992", &three,
          count);
    reads("0,0,0,0\n1,2,3,4\n9007199254740000,0,0,992\n# n_layer=3\n", &three, count);
}

static void what_is_wrong(void **state)
{
    (void) state;
    static const struct { const char *text, *why; } bad[] = {
        { "", "ends after 0 rows, expected 3, one for each layer: was it cut?" },
        { "# n_layer=3 n_expert=4 n_expert_used=2\n", "ends after 0 rows" },
        { "0,0,0,0\n1,2,3,4\n", "ends after 2 rows" },
        { "0,0,0,0\n1,2,3,4\n1,1,1,1\n1,1,1,1\n", "line 4 is a row too many, expected 3" },
        { "0,0,0,0\n1,2,3\n", "line 2 has 3 values, expected 4, one for each expert" },
        { "0,0,0,0\n1,2,3,4,\n", "line 2 has 5 values" },
        { "0,0,0,0\n\n1,2,3,4,5,6\n", "line 3 has 6 values" },
        { "0,0,,0\n", "line 1, value 3 is '', expected a whole number up to 9007199254740992" },
        { "0,0,0,x\n", "line 1, value 4 is 'x'" },
        { "0,-1,0,0\n", "line 1, value 2 is '-1'" },
        { "0,+1,0,0\n", "line 1, value 2 is '+1'" },
        { "0,1.5,0,0\n", "line 1, value 2 is '1.5'" },
        { "0,1e3,0,0\n", "line 1, value 2 is '1e3'" },
        { "0,1 2,0,0\n", "line 1, value 2 is '1 2'" },
        { "0,0x1,0,0\n", "line 1, value 2 is '0x1'" },
        { "0,nan,0,0\n", "line 1, value 2 is 'nan'" },
        { "0,\x1b[2J,0,0\n", "line 1, value 2 is '?[2J'" },
        { "9007199254740993,0,0,0\n", "line 1, value 1 is '9007199254740993'" },
        { "18446744073709551616,0,0,0\n", "line 1, value 1 is '18446744073709551616'" },
        { "99999999999999999999999999999999999999999999999999,0,0,0\n",
          "line 1, value 1 is '9999999999999999999999999999999999999999', expected" },
        { "0,0,0,0\n9007199254740992,0,0,1\n",
          "line 2: its values add up to 9007199254740993, expected at most 9007199254740992" },
        { "# n_layer=4 n_expert=4 n_expert_used=2\n", "line 1: n_layer=4, expected the model's 3" },
        { "\n#n_layer=3 n_expert=8\n", "line 2: n_expert=8, expected the model's 4" },
        { "# n_layer=3 n_expert=4 n_expert_used=8\n", "line 1: n_expert_used=8, expected the model's 2" },
        { "# n_layer=\n", "line 1: n_layer=, expected" }, { "# n_layer=3x n_expert=4\n", "line 1: n_layer=3x, " },
        { "# n_layer=-3\n", "n_layer=-3" }, { "# n_layer=18446744073709551619\n", "n_layer=18446744073709551619, " },
        { "0,0,0,0\n1,2,3,4\n1,1,1,1\n# n_layer=4\n", "line 4: n_layer=4" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refuses(bad[i].text, &three, bad[i].why);
    Hotness h;                                     /* a NUL is no end */
    static const char zero[] = "0,0,0,0\n1,2\0,3,4\n1,1,1,1\n";
    check_message(hotness_parse(&h, zero, sizeof zero - 1, "x.csv", &three, &err), ST_FORMAT, "x.csv: ",
                  "line 2, value 2 is '2'");
}

static void another_model(void **state)
{
    (void) state;
    static const char rows[] = "0,0,0,0\n1,2,3,4\n5,6,7,8\n";
    static const uint64_t count[] = { 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8 };
    static const struct { const char *line, *why; } line[] = {
        { "# model: bytes=123456 name=Small Mix 1.0\n", NULL },
        { "  # model: bytes=123456 name=Small Mix 1.0 \r\n", NULL },
        { "# model of mine\n# models: bytes=1\n", NULL },
        { "# model: bytes=123456 name=Small Mix 1.1\n",
          "line 1: belongs to the model 'Small Mix 1.1' of 123456 bytes, expected 'Small Mix 1.0' of 123456" },
        { "# model: bytes=123457 name=Small Mix 1.0\n", "'Small Mix 1.0' of 123457 bytes" },
        { "# model: bytes=123456 name=Small Mix 1.\n", "'Small Mix 1.' of" },
        { "# model: bytes=123456 name=\n", "the model '' of 123456 bytes" },
        { "# model: bytes=123456\n", "line 1 is '# model: bytes=123456', expected '# model: bytes=BYTES name=NAME'" },
        { "# model: bytes=x name=Small Mix 1.0\n", "line 1 is '# model: bytes=x name=Small Mix 1.0', expected" },
        { "# model: bytes=123456 name=Small Mix 1.0\n# model: bytes=1 name=Other\n", "line 2: belongs" },
        /* by name, although the numbers are wrong as well */
        { "# n_layer=9\n1,2\n# model: bytes=1 name=Other\n", "line 3: belongs to the model 'Other' of 1 bytes" },
    };
    for (size_t i = 0; i < sizeof line / sizeof *line; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s%s", line[i].line, rows);
        if (line[i].why) refuses(text, &three, line[i].why);
        else reads(text, &three, count);
    }
}

/* ---- files ---- */

static char *contents(const char *path)
{
    static char text[4096];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    return text;
}

static void written_and_read(void **state)
{
    (void) state;
    const char *path = in_folder("mix.gguf.spark.csv");
    Hotness h, again;
    check_message(hotness_read(&h, path, &three, &err), ST_END, "mix.gguf.spark.csv: ", "there is no such file");
    assert_null(h.count);
    assert_int_equal(hotness_new(&h, &three, &err), ST_OK);
    assert_int_equal(hotness_total(&h, 2), 0);
    for (uint64_t i = 0; i < 8; i++) h.count[4 + i] = i * i * i * 1000003;
    h.count[8] = (uint64_t) 1 << 52;
    assert_int_equal(hotness_write(&h, path, &three, &err), ST_OK);
    assert_string_equal(contents(path), "# hotness table: n_layer=3 n_expert=4 n_expert_used=2\n"
                                        "# one line for each layer, one count for each expert\n"
                                        "# model: bytes=123456 name=Small Mix 1.0\n"
                                        "0,0,0,0\n0,1000003,8000024,27000081\n"
                                        "4503599627370496,125000375,216000648,343001029\n");
    assert_int_equal(hotness_read(&again, path, &three, &err), ST_OK);
    assert_memory_equal(again.count, h.count, sizeof *h.count * 12);
    hotness_free(&again);

    h.count[11] = (uint64_t) 1 << 53;              /* refused, and the old file stays */
    check_message(hotness_write(&h, path, &three, &err), ST_ARG, "mix.gguf.spark.csv: ",
                  "the counts of layer 2 add up to 13510799223112511");
    assert_int_equal(hotness_read(&again, path, &three, &err), ST_OK);
    hotness_free(&again);
    hotness_halve(&h, (uint64_t) 1 << 53);
    assert_int_equal(hotness_write(&h, path, &three, &err), ST_OK);
    assert_int_equal(hotness_read(&again, path, &three, &err), ST_OK);
    assert_int_equal(again.count[11], (uint64_t) 1 << 52);
    hotness_free(&again);
    check_message(hotness_write(&h, in_folder("none/x.csv"), &three, &err), ST_IO, "x.csv: ", "No such file");
    hotness_free(&h);
    check_message(hotness_read(&h, folder, &three, &err), ST_IO, folder, "is a folder, expected a regular file");
    assert_null(h.count);
}

/* Whatever a model is called, its file is its own, and the name is no field of the header. */
static void names(void **state)
{
    (void) state;
    char longest[300], same[300];
    memset(longest, 'x', sizeof longest);
    longest[299] = 0;
    memcpy(same, longest, sizeof same);
    same[200] = 'y';
    const char *name[] = { "", "  blanks\t", "n_layer=7 n_expert=1", "two\nlines\n1,2,3,4", "\xff\xc3", "K\xc3\xbchn",
                           "# model: bytes=1 name=x", longest, NULL };
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        HotnessModel of = { 1, 2, 1, name[i], UINT32_MAX }, other = of;
        Hotness h;
        const char *path = in_folder("named.csv");
        assert_int_equal(hotness_new(&h, &of, &err), ST_OK);
        h.count[1] = 7;
        assert_int_equal(hotness_write(&h, path, &of, &err), ST_OK);
        hotness_free(&h);
        char *text = contents(path), *last = strstr(text, "# model: ");
        assert_non_null(last);
        assert_null(strstr(last, "n_layer="));
        assert_non_null(strstr(last, "\n0,7\n"));
        Status st = hotness_read(&h, path, &of, &err);
        if (st != ST_OK) print_error("%s\n", err.text);
        assert_int_equal(st, ST_OK);
        assert_int_equal(h.count[1], 7);
        hotness_free(&h);
        other.name = name[i] == longest ? same : "some other";     /* only 127 bytes count */
        assert_int_equal(hotness_read(&h, path, &other, &err), name[i] == longest ? ST_OK : ST_FORMAT);
        hotness_free(&h);
    }
}

/* A file of ours that was cut is always noticed, one of another program unless a digit or the last line's end is all
 * that is missing. */
static void cut_anywhere(void **state)
{
    (void) state;
    Hotness h;
    const char *path = in_folder("whole.csv");
    assert_int_equal(parse(&h, published, &three), ST_OK);
    assert_int_equal(hotness_write(&h, path, &three, &err), ST_OK);
    hotness_free(&h);
    const char *text = contents(path);
    for (size_t n = 0, all = strlen(text); n <= all; n++) {
        char *part = malloc(n + 1);                /* of its own size, for a sanitizer */
        assert_non_null(part);
        memcpy(part, text, n);
        save_bytes("cut.csv", part, n);
        assert_int_equal(hotness_parse(&h, part, n, "x.csv", &three, &err), n == all ? ST_OK : ST_FORMAT);
        hotness_free(&h);
        assert_int_equal(hotness_read(&h, in_folder("cut.csv"), &three, &err), n == all ? ST_OK : ST_FORMAT);
        hotness_free(&h);
        free(part);
    }
    const size_t all = strlen(published);
    for (size_t n = 0; n <= all; n++) {
        Status st = hotness_parse(&h, published, n, "x.csv", &three, &err);
        assert_int_equal(st, n + 3 >= all ? ST_OK : ST_FORMAT);    /* "992\n": 9 and 99 are numbers too */
        hotness_free(&h);
    }
}

static void too_large(void **state)
{
    (void) state;
    Hotness h;
    const size_t before = alloc_state.bytes;
    const char *path = save_bytes("large.csv", published, strlen(published));
    assert_int_equal(truncate(path, (off_t) 1 << 32), 0);
    alloc_state.peak = before;
    check_message(hotness_read(&h, path, &three, &err), ST_FORMAT, "large.csv: ",
                  "has 4294967296 bytes, expected no more than counts of 3 layers with 4 experts take");
    assert_true(alloc_state.peak - before < 4096);
    const HotnessModel huge = { INT32_MAX, INT32_MAX, 8, "", 0 };
    assert_int_not_equal(hotness_read(&h, path, &huge, &err), ST_OK);
    assert_null(h.count);
}

static void out_of_memory(void **state)
{
    (void) state;
    Hotness h;
    const char *path = save_bytes("memory.csv", published, strlen(published));
    Status st = ST_MEMORY;
    int32_t tries = 0;
    for (const long live = alloc_state.live; st != ST_OK; tries++) {
        assert_true(tries < 100);
        alloc_state.fail_in = tries + 1;
        st = hotness_read(&h, path, &three, &err);
        alloc_state.fail_in = 0;
        assert_true(st == ST_OK || (st == ST_MEMORY && !h.count));
        hotness_free(&h);
        if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.live, live);
    }
    assert_true(tries > 2);
}

/* ---- counts ---- */

static void halves(void **state)
{
    (void) state;
    const HotnessModel two = { 2, 3, 1, "", 0 };
    Hotness h;
    assert_int_equal(hotness_new(&h, &two, &err), ST_OK);
    const uint64_t start[] = { 0, 1, 2, 100, 51, 8 }, half[] = { 0, 0, 1, 50, 25, 4 },
                   fourth[] = { 0, 0, 0, 25, 12, 2 };
    memcpy(h.count, start, sizeof start);
    assert_int_equal(hotness_total(&h, 0), 3);
    assert_int_equal(hotness_total(&h, 1), 159);
    hotness_halve(&h, 159);
    assert_memory_equal(h.count, start, sizeof start);
    hotness_halve(&h, 158);                        /* all layers, although one exceeds */
    assert_memory_equal(h.count, half, sizeof half);
    hotness_halve(&h, 40);
    assert_memory_equal(h.count, fourth, sizeof fourth);
    hotness_halve(&h, 0);
    assert_int_equal(hotness_total(&h, 1), 0);
    h.count[0] = h.count[1] = h.count[2] = UINT64_MAX;     /* their sum has no room in 64 bits */
    assert_int_equal(hotness_total(&h, 0), UINT64_MAX);
    h.count[3] = 1;
    hotness_halve(&h, HOTNESS_TOTAL);
    assert_true(hotness_total(&h, 0) <= HOTNESS_TOTAL && hotness_total(&h, 0) > HOTNESS_TOTAL / 2);
    assert_int_equal(h.count[3], 0);
    hotness_free(&h);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_published), cmocka_unit_test(what_is_wrong), cmocka_unit_test(another_model),
        cmocka_unit_test(written_and_read), cmocka_unit_test(names), cmocka_unit_test(cut_anywhere),
        cmocka_unit_test(too_large), cmocka_unit_test(out_of_memory), cmocka_unit_test(halves),
    };
    return cmocka_run_group_tests_name("hotness", tests, make_folder, remove_folder);
}
