/* Names of models; the table of published drafters: what it answers, and that a damaged one is refused with one line
 * that names the entry; and when a drafter's guesses are called poor. */
#include "programs/acceptance.h"
#include "programs/drafters.h"
#include "programs/model_name.h"

#include "file_check.h"

static void check_words(const char *name, const char *words, const char *model)
{
    NameWords w = name_words(name), m = name_model(name);
    assert_string_equal(w.at, words);
    assert_string_equal(m.at, model);
}

static void names_become_words(void **state)
{
    (void) state;
    check_words("Qwen3.6-27B-Q4_K_M.gguf", "qwen 3.6 27b q 4 k m ", "qwen 3.6 27b ");
    check_words("Qwen3.6 27B", "qwen 3.6 27b ", "qwen 3.6 27b ");
    check_words("Qwen3.6-27B-DFlash.Q8_0.GGUF", "qwen 3.6 27b dflash q 8 0 ", "qwen 3.6 27b ");
    check_words("dflash-draft-3.6-q8_0.gguf", "dflash draft 3.6 q 8 0 ", "3.6 ");
    check_words("DFlash2-Qwen3.8-27B-BF16", "dflash 2 qwen 3.8 27b bf 16 ", "qwen 3.8 27b ");
    check_words("Qwen3-8B-UD-Q4_K_XL-00001-of-00002.gguf", "qwen 3 8b ud q 4 k xl ", "qwen 3 8b ");
    check_words("LLaMA3.1-8B-Instruct-DFlash-UltraChat", "llama 3.1 8b instruct dflash ultra"
                "chat ", "llama 3.1 8b instruct ");
    check_words("Laguna-XS.2", "laguna xs 2 ", "laguna xs 2 ");
    check_words("", "", "");
    check_words("-.-", "", "");
    check_words("dflash", "dflash ", "");
}

static bool begins(const char *name, const char *with)
{
    NameWords a = name_words(name), b = name_words(with);
    return name_begins(&a, &b);
}

static void beginnings_end_at_words(void **state)
{
    (void) state;
    assert_true(begins("Qwen3-4B-Instruct-Q8_0.gguf", "Qwen3-4B"));
    assert_true(begins("Qwen_Qwen3.6-27B-Q4_K_M.gguf", "qwen3.6-27b"));
    assert_true(begins("Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instruct"));
    assert_false(begins("Qwen3-40B", "Qwen3-4B"));
    assert_false(begins("Qwen3.5-4B", "Qwen3-4B"));
    assert_false(begins("Qwen3-4B", "Qwen3.5-4B"));
    assert_false(begins("Laguna-XS-2.1", "Laguna-XS.2"));
    assert_false(begins("DeepSeek-R1-0528-Qwen3-8B", "Qwen3-8B"));
    assert_false(begins("Qwen3-4B", ""));
    assert_false(begins("", "Qwen3-4B"));
}

static void names_of_any_length(void **state)
{
    (void) state;
    char name[1200];
    for (size_t n = 0; n < sizeof name - 1; n++) {
        name[n] = "a1.-"[n % 4];
        name[n + 1] = 0;
        NameWords w = name_words(name), m = name_model(name);
        assert_true(strlen(w.at) < sizeof w.at && strlen(m.at) <= strlen(w.at));
        assert_true(!w.at[0] || w.at[strlen(w.at) - 1] == ' ');
    }
}

static void sizes_and_marks(void **state)
{
    (void) state;
    char size[16];
    NameWords w = name_words("Qwen3.6-35B-A3B-Q4_K_M.gguf"), none = name_words("model-b-q8_0.gguf");
    assert_true(name_size(size, &w));
    assert_string_equal(size, "35b");
    assert_false(name_size(size, &none));
    assert_true(name_says_drafter("x-DFLASH-y.gguf") && name_says_drafter("Draft") && !name_says_drafter("model"));
}

/* ---- the table ---- */

static size_t ask(const Drafters *d, PublishedDrafter *out, const char *arch, int32_t layers, int32_t width,
                  const char *file, const char *name)
{
    return drafters_for_target(d, out, 8, &(DraftTarget) { arch, layers, width, { file, NULL, name } });
}

static void our_table(void **state)
{
    (void) state;
    Drafters *d;
    PublishedDrafter p[8];
    char name[200];
    assert_int_equal(drafters_read(&d, "share/drafters.json", &err), ST_OK);
    assert_true(ask(d, p, "qwen35", 64, 5120, "Qwen3.6-27B-UD-Q4_K_XL.gguf", NULL) >= 3);
    assert_string_equal(p[0].model, "Qwen3.6-27B");
    assert_true(p[0].bytes > 1000000000 && p[0].quant && p[0].verified && !p[0].gated && *p[0].source);
    drafter_name(name, sizeof name, &p[0]);
    assert_non_null(strstr(name, "/Qwen3.6-27B-DFlash-GGUF:Q8_0"));
    /* by general.name alone, by name alone before a download, and never by the shape alone */
    assert_true(ask(d, p, "qwen35", 64, 5120, "model.gguf", "Qwen3.6 27B") > 0);
    assert_true(ask(d, p, NULL, 0, 0, "Qwen3.6-27B-GGUF", NULL) > 0);
    assert_int_equal(ask(d, p, "qwen35", 64, 5120, "model.gguf", NULL), 0);
    /* the shape of 3.5, the name of 3.6, and other shapes under that name */
    assert_true(ask(d, p, "qwen35", 64, 5120, "Qwen3.5-27B-Q4_K_M.gguf", NULL) > 0);
    assert_string_equal(p[0].model, "Qwen3.5-27B");
    assert_int_equal(ask(d, p, "qwen35", 64, 4096, "Qwen3.6-27B-Q4_K_M.gguf", NULL), 0);
    assert_int_equal(ask(d, p, "qwen3", 64, 5120, "Qwen3.6-27B-Q4_K_M.gguf", NULL), 0);
    assert_true(ask(d, p, "qwen3", 36, 2560, "Qwen3-4B-Q4_K_M.gguf", NULL) > 0);
    assert_int_equal(ask(d, p, "qwen3", 36, 2560, "Qwen3-4B-Instruct-2507-Q4_K_M.gguf", "Qwen3 4B"), 0);
    /* one model's name begins another's */
    assert_int_equal(ask(d, p, "laguna", 40, 2048, "Laguna-XS-2.1-Q4_K_M.gguf", NULL), 2);
    assert_string_equal(p[0].model, "Laguna-XS-2.1");
    drafter_name(name, sizeof name, &p[1]);
    assert_string_equal(name, "Lucebox/Laguna-XS-2.1-DFlash-GGUF:laguna-xs21-dflash-q4.gguf");
    assert_int_equal(ask(d, p, "laguna", 40, 2048, "Laguna-XS.2-Q4_K_M.gguf", NULL), 1);
    assert_string_equal(p[0].model, "Laguna-XS.2");
    assert_int_equal(ask(d, p, "laguna", 48, 3072, "Laguna-S-2.1-Q4_K_M.gguf", NULL), 1);
    /* a folder of safetensors behind a gate */
    assert_int_equal(ask(d, p, "llama", 32, 4096, "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", NULL), 1);
    assert_true(p[0].gated && !p[0].quant);
    drafter_name(name, sizeof name, &p[0]);
    assert_null(strchr(name, ':'));
    assert_true(drafters_for_target(d, NULL, 0, &(DraftTarget) { "qwen35", 64, 5120, { "Qwen3.6-27B" } }) > 0);
    assert_int_equal(ask(NULL, p, "qwen35", 64, 5120, "Qwen3.6-27B", NULL), 0);
    drafters_close(d);
    drafters_close(NULL);
}

#define PAIR(head, drafter)                                                                                       \
    "{\"pairs\": [{\"model\": \"M-1B\", \"architecture\": \"llama\", \"names\": [\"M-1B\"], \"source\": \"s\", " \
    head "\"drafters\": [" drafter "]}]}"
#define DRAFTER(fields) \
    "{\"repo\": \"o/n\", \"quant\": \"Q8_0\", \"format\": \"gguf\", \"bytes\": 5, \"kind\": \"dflash\", " \
    "\"gated\": false, \"state\": \"verified\", \"source\": \"s\"" fields "}"

static const struct { const char *text, *at, *says; } bad[] = {
    { "", "", "" }, { "{", "", "" }, { "[]", "pairs", "a list" }, { "{\"pairs\": {}}", "pairs", "a list" },
    { "{\"pairs\": [5]}", "pairs[0]", "objects" },
    { "{\"pairs\": [{\"model\": 5}]}", "pairs[0]", "model" },
    { "{\"pairs\": [{\"model\": \"M\"}]}", "pairs[0] (M)", "architecture" },
    { "{\"pairs\": [{\"model\": \"M\", \"architecture\": \"a\", \"names\": []}]}", "pairs[0] (M)", "names" },
    { "{\"pairs\": [{\"model\": \"M\", \"architecture\": \"a\", \"names\": [7]}]}", "pairs[0] (M)", "names" },
    { PAIR("\"layers\": 0, ", DRAFTER("")), "pairs[0] (M-1B)", "layers" },
    { PAIR("\"width\": \"wide\", ", DRAFTER("")), "pairs[0] (M-1B)", "width" },
    { PAIR("\"except\": \"x\", ", DRAFTER("")), "pairs[0] (M-1B)", "except" },
    { PAIR("", ""), "pairs[0] (M-1B)", "drafters" }, { PAIR("", "3"), "pairs[0] (M-1B)", "drafters" },
    { PAIR("", "{\"repo\": \"noslash\"}"), "pairs[0] (M-1B)", "OWNER/NAME" },
    { PAIR("", "{\"repo\": \"o/../n\"}"), "pairs[0] (M-1B)", "OWNER/NAME" },
    { PAIR("", "{\"repo\": \"-o/n\"}"), "pairs[0] (M-1B)", "OWNER/NAME" },
    { PAIR("", "{\"repo\": \"o/n; rm x\"}"), "pairs[0] (M-1B)", "OWNER/NAME" },
    { PAIR("", "{\"repo\": \"o/n\", \"format\": \"zip\"}"), "pairs[0] (M-1B)", "format" },
    { PAIR("", "{\"repo\": \"o/n\", \"format\": \"gguf\"}"), "pairs[0] (M-1B)", "quant" },
    { PAIR("", "{\"repo\": \"o/n\", \"format\": \"safetensors\", \"quant\": \"Q8_0\"}"), "pairs[0] (M-1B)", "quant" },
    { PAIR("", "{\"repo\": \"o/n\", \"format\": \"gguf\", \"quant\": \"Q8_0\", \"bytes\": 1.5}"), "pairs[0]", "bytes" },
    { PAIR("", "{\"repo\": \"o/n\", \"format\": \"gguf\", \"quant\": \"Q8_0\", \"bytes\": 5, \"kind\": \"x\"}"),
      "pairs[0] (M-1B)", "kind" },
    { PAIR("", "{\"repo\": \"o/n\", \"format\": \"gguf\", \"quant\": \"Q8_0\", \"bytes\": 5, \"kind\": \"dflash\", "
           "\"gated\": 1}"), "pairs[0] (M-1B)", "gated" },
    { PAIR("", DRAFTER(", \"note\": 5")), "pairs[0] (M-1B)", "note" },
    { PAIR("", DRAFTER("") ", " DRAFTER(", \"bytes\": 6")), "", "bytes" },
};

static void damaged_tables(void **state)
{
    (void) state;
    char path[] = "/tmp/ratoon-drafters-XXXXXX";
    Drafters *d;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FILE *f = fopen(path, "w");
        fputs(bad[i].text, f);
        fclose(f);
        Status st = drafters_read(&d, path, &err);
        check_message(st, ST_FORMAT, path, bad[i].says);
        assert_non_null(strstr(err.text, bad[i].at));
        assert_null(d);
    }
    FILE *f = fopen(path, "w");
    fputs(PAIR("", DRAFTER("")), f);
    fclose(f);
    assert_int_equal(drafters_read(&d, path, &err), ST_OK);
    drafters_close(d);
    assert_int_equal(truncate(path, 2 << 20), 0);
    check_message(drafters_read(&d, path, &err), ST_FORMAT, path, "larger");
    unlink(path);
    check_message(drafters_read(&d, path, &err), ST_IO, path, "opened");
}

/* ---- acceptance ---- */

static bool poor_after(Acceptance *a, int64_t proposals, int64_t rows, int64_t accepted, int source)
{
    rt_stats s = { .drafts = proposals };
    s.drafted_by[source] = rows;
    s.accepted_by[source] = accepted;
    return acceptance_poor(a, &s);
}

static void poor_acceptance_is_said_once(void **state)
{
    (void) state;
    Acceptance a = { 0 };
    assert_false(poor_after(&a, 11, 40, 0, RT_BLOCK));             /* too few proposals, over several texts */
    assert_true(poor_after(&a, 1, 2, 0, RT_BLOCK));
    assert_false(poor_after(&a, 50, 300, 0, RT_BLOCK));            /* said */
    a = (Acceptance) { 0 };
    assert_false(poor_after(&a, 14, 20, 0, RT_BLOCK));             /* too few rows were checked */
    a = (Acceptance) { 0 };
    assert_false(poor_after(&a, 31, 200, 2, RT_BLOCK));
    assert_true(poor_after(&a, 1, 1, 0, RT_BLOCK));                /* 2 of 32 proposals */
    a = (Acceptance) { 0 };
    assert_false(poor_after(&a, 100, 800, 90, RT_BLOCK));
    a = (Acceptance) { 0 };
    assert_false(poor_after(&a, 1000, 8000, 0, RT_NGRAM));
    assert_false(poor_after(&a, 1000, 8000, 0, RT_MTP));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_become_words), cmocka_unit_test(beginnings_end_at_words),
        cmocka_unit_test(names_of_any_length), cmocka_unit_test(sizes_and_marks), cmocka_unit_test(our_table),
        cmocka_unit_test(damaged_tables), cmocka_unit_test(poor_acceptance_is_said_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
