/* What names of models and of their files say, and where a header ends. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "programs/hub/hub_header.h"
#include "programs/hub/hub_name.h"

#include <cmocka.h>

static void names(void **state)
{
    (void) state;
    HubName n;
    Error err;
    assert_int_equal(hub_name_read(&n, "hf:org/name-GGUF@v1/x:Q4_K_M", &err), ST_OK);
    assert_string_equal(n.repo, "org/name-GGUF");
    assert_string_equal(n.revision, "v1/x");
    assert_string_equal(n.quant, "Q4_K_M");
    assert_int_equal(hub_name_read(&n, "org/name:sub/file-Q8_0.gguf", &err), ST_OK);
    assert_string_equal(n.quant, "sub/file-Q8_0.gguf");
    assert_string_equal(n.revision, "");
    static const char *const good[] = { "hf:org/name", "hf.co/org/name:Q4_K_M", "https://huggingface.co/org/name/",
        "http://hf.co/org/name", "HuggingFace.co/org/name" };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(hub_prefix(good[i]) > 0);
        assert_int_equal(hub_name_read(&n, good[i], &err), ST_OK);
        assert_string_equal(n.repo, "org/name");
    }
    assert_true(hub_prefix("org/name") == 0 && hub_prefix("https://example.org/a/b") == 0 && hub_prefix("hf.co") == 0);
    static const char *const bad[] = { "", "name", "hf.co/", "https://huggingface.co/org", "hf:org/name/", "a/b/c",
        "/b", "a/", "a/..", "../b", "a/b:", "a/b@", "a/b@x y", "a/b@../c", "a/b:../c", "a/b:/c", "a--b/c", "a/b--c",
        ".a/b", "a/b.", "a b/c", "a/b\n", "a/b:x\x1b[m", "a/b:c//d" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(hub_name_read(&n, bad[i], &err), ST_ARG);
        assert_null(strpbrk(err.text, "\n\x1b"));
    }
}

/* Addresses of the hub's pages. */
static void addresses(void **state)
{
    (void) state;
    static const struct { const char *rest, *revision, *quant; } good[] = {
        { "tree/main", "", "" }, { "tree/main/", "", "" }, { "tree/main?x=y", "", "" },
        { "tree/v1.0#files", "v1.0", "" }, { "tree/refs%2Fpr%2F1", "refs/pr/1", "" },
        { "tree/main:Q4_K_M", "", "Q4_K_M" },
        { "tree/main/UD-Q4_K_XL", "", "UD-Q4_K_XL" }, { "tree/main/BF16/", "", "BF16" },
        { "blob/main/x-Q8_0.gguf", "", "x-Q8_0.gguf" }, { "blob/main/a/x%20y.gguf", "", "a/x y.gguf" },
        { "resolve/main/x-Q8_0.gguf?download=true", "", "x-Q8_0.gguf" },
        { "resolve/0123abc/x-Q8_0.gguf", "0123abc", "x-Q8_0.gguf" },
        { "blob/main/x-00002-of-00003.gguf", "", "x-00001-of-00003.gguf" } };
    static const char *const hosts[] = { "https://huggingface.co/", "hf.co/", "http://www.huggingface.co/" },
                      *const bad[] = {
        "tree", "tree/", "tree//", "blob/main", "blob/main/", "blob/main/config.json", "blob/main/../x.gguf",
        "blob/main//x.gguf", "blob/main/x%2", "blob/main/x%zz.gguf", "blob/main/%00.gguf", "blob/main/x%0a.gguf",
        "blob/main/%2e%2e/x.gguf", "blob/../x.gguf", "blob/a b/x.gguf", "tree/main:", "tree/main:../x",
        "blob/main:x.gguf", "raw/main/x.gguf", "discussions/1", "tree/%2e%2e", "resolve/main/x.gguf:Q4_0" };
    HubName n;
    Error err;
    char text[256];
    for (size_t h = 0; h < 3; h++) {
        for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
            snprintf(text, sizeof text, "%sorg/name/%s", hosts[h], good[i].rest);
            if (hub_name_read(&n, text, &err) != ST_OK) fail_msg("%s", err.text);
            assert_string_equal(n.repo, "org/name");
            assert_string_equal(n.revision, good[i].revision);
            assert_string_equal(n.quant, good[i].quant);
        }
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            snprintf(text, sizeof text, "%sorg/name/%s", hosts[h], bad[i]);
            if (hub_name_read(&n, text, &err) != ST_ARG) fail_msg("%s", text);
            assert_non_null(strstr(err.text, "ORG/NAME/blob/REVISION/FILE.gguf"));
        }
    }
    assert_int_equal(hub_name_read(&n, "hf.co/org/name@refs/pr/1:sub/x.gguf", &err), ST_OK);
    assert_string_equal(n.revision, "refs/pr/1");
    assert_string_equal(n.quant, "sub/x.gguf");
    assert_int_equal(hub_name_read(&n, "hf.co/org/name:sub/x.gguf", &err), ST_OK);
    snprintf(text, sizeof text, "hf.co/datasets/org/name");
    assert_int_equal(hub_name_read(&n, text, &err), ST_ARG);
}

static void paths(void **state)
{
    (void) state;
    char out[64];
    assert_true(hub_path_good("a") && hub_path_good("a/b c/...") && hub_path_good("ü.gguf"));
    assert_false(hub_path_good("") || hub_path_good(".") || hub_path_good("a/..") || hub_path_good("/a") ||
                 hub_path_good("a/") || hub_path_good("a\\b") || hub_path_good("a\tb"));
    assert_true(hub_escape(out, sizeof out, "a b/ü%", false));
    assert_string_equal(out, "a%20b/%C3%BC%25");
    assert_true(hub_escape(out, sizeof out, "refs/pr/1", true));
    assert_string_equal(out, "refs%2Fpr%2F1");
    assert_false(hub_escape(out, 4, "abcd", false));
    assert_true(hub_etag_good("0123abcd-ef") && !hub_etag_good("../../../x") && !hub_etag_good("short"));
}

static void quants(void **state)
{
    (void) state;
    static const struct { const char *file, *quant; HubKind kind; } cases[] = {
        { "Qwen3-8B-Q4_K_M.gguf", "Q4_K_M", HUB_TARGET }, { "a/Qwen3.6-27B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", HUB_TARGET },
        { "llama-3.1-8b.q8_0.gguf", "Q8_0", HUB_TARGET }, { "x-IQ2_XXS.gguf", "IQ2_XXS", HUB_TARGET },
        { "x-BF16-00001-of-00004.gguf", "BF16", HUB_TARGET }, { "gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE", HUB_TARGET },
        { "x-26B-A4B-NVFP4.gguf", "NVFP4", HUB_TARGET }, { "x-26B-A4B-NVFP4_MOE.gguf", "NVFP4_MOE", HUB_TARGET },
        { "Qwen3-8B.gguf", "", HUB_TARGET }, { "x-Q8_0-imat.gguf", "Q8_0", HUB_TARGET },
        { "dflash-x-Q8_0.gguf", "Q8_0", HUB_DRAFTER }, { "Qwen3.6-27B-DFlash-Q8_0.gguf", "Q8_0", HUB_DRAFTER },
        { "X-DRAFT-F16.gguf", "F16", HUB_DRAFTER }, { "drafty-Q8_0.gguf", "Q8_0", HUB_TARGET },
        { "mmproj-F16.gguf", "F16", HUB_OTHER }, { "x.imatrix.gguf", "", HUB_OTHER }, { "README.md", "", HUB_OTHER },
        { "Q", "", HUB_OTHER }, { "-.gguf", "", HUB_TARGET }, { "TQ1_0.gguf", "TQ1_0", HUB_TARGET },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char quant[HUB_QUANT];
        hub_quant(quant, cases[i].file);
        assert_string_equal(quant, cases[i].quant);
        assert_int_equal(hub_kind(cases[i].file), cases[i].kind);
    }
}

static void splits(void **state)
{
    (void) state;
    int32_t part, parts;
    char name[64];
    assert_true(hub_split("a/x-00002-of-00003.gguf", &part, &parts));
    assert_int_equal(part, 2);
    assert_int_equal(parts, 3);
    assert_true(hub_split_name(name, sizeof name, "a/x-00002-of-00003.gguf", 3));
    assert_string_equal(name, "a/x-00003-of-00003.gguf");
    assert_false(hub_split_name(name, 20, "a/x-00002-of-00003.gguf", 3));
    assert_false(hub_split("x.gguf", &part, &parts) || hub_split("x-00004-of-00003.gguf", &part, &parts) ||
                 hub_split("x-00000-of-00003.gguf", &part, &parts) || hub_split("x-0001-of-0003.gguf", &part, &parts) ||
                 hub_split("x-00001-of-00003.bin", &part, &parts) || hub_split("-00001-of-00003", &part, &parts));
}

/* The order in which files answer a wish. */
static void ranks(void **state)
{
    (void) state;
    assert_int_equal(hub_rank("x-Q4_K_M.gguf", "", HUB_TARGET), 0);
    assert_true(hub_rank("x-Q4_K_M.gguf", "", HUB_TARGET) < hub_rank("x-Q4_0.gguf", "", HUB_TARGET));
    assert_true(hub_rank("x-Q4_0.gguf", "", HUB_TARGET) < hub_rank("x-Q2_K.gguf", "", HUB_TARGET));
    assert_true(hub_rank("x-Q4_K_M.gguf", "", HUB_TARGET) < hub_rank("x-UD-Q4_K_M.gguf", "", HUB_TARGET));
    assert_true(hub_rank("x-UD-Q4_K_M.gguf", "", HUB_TARGET) < hub_rank("x-Q4_0.gguf", "", HUB_TARGET));
    assert_true(hub_rank("x-Q2_K.gguf", "", HUB_TARGET) < hub_rank("dflash-x-Q4_K_M.gguf", "", HUB_TARGET));
    assert_true(hub_rank("dflash-x-Q2_K.gguf", "", HUB_DRAFTER) < hub_rank("x-Q8_0.gguf", "", HUB_DRAFTER));
    assert_true(hub_rank("x-Q4_K_M.gguf", "q4_k_m", HUB_TARGET) < hub_rank("x-UD-Q4_K_M.gguf", "q4_k_m", HUB_TARGET));
    assert_int_equal(hub_rank("x-Q4_K_M.gguf", "Q4_K", HUB_TARGET), -1);
    assert_int_equal(hub_rank("x-Q4_K_M-00002-of-00002.gguf", "", HUB_TARGET), -1);
    assert_int_equal(hub_rank("mmproj-Q4_K_M.gguf", "Q4_K_M", HUB_TARGET), -1);
    assert_int_equal(hub_rank("a/mmproj-Q4_K_M.gguf", "MMPROJ-q4_k_m.gguf", HUB_TARGET), 0);
}

/* Every shorter start of a header is too short, and nothing behind it counts. */
static void headers(void **state)
{
    (void) state;
    FILE *f = fopen("models/demo/ratoon-demo-q8_0.gguf", "rb");
    assert_non_null(f);
    enum { MOST = 1 << 20 };
    uint8_t *bytes = malloc(MOST);
    assert_non_null(bytes);
    size_t n = fread(bytes, 1, MOST, f);
    fclose(f);
    int64_t length = hub_header_length(bytes, n);
    assert_true(length > 1000 && length < (int64_t) n);
    for (int64_t i = 0; i < length; i += i < 3000 || i + 300 > length ? 1 : 997)
        assert_int_equal(hub_header_length(bytes, (size_t) i), 0);
    assert_int_equal(hub_header_length(bytes, (size_t) length), length);
    for (int i = 0; i < 64; i++) {                 /* a spoiled one is refused, or has some length */
        uint8_t kept = bytes[8 + i];
        bytes[8 + i] = 255;
        assert_true(hub_header_length(bytes, n) <= (int64_t) n);
        bytes[8 + i] = kept;
    }
    free(bytes);
    assert_int_equal(hub_header_length("\x0a\0\0\0\0\0\0\0{12345678}tensors", 25), 18);
    assert_int_equal(hub_header_length("\x0a\0\0\0\0\0\0\0{1234", 13), 0);
    assert_int_equal(hub_header_length("\x0a\0\0\0\0\0\0\0<html>", 14), -1);
    assert_int_equal(hub_header_length("version https://git-lfs", 23), -1);
    assert_int_equal(hub_header_length("GGUF\x09\0\0\0", 8), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names), cmocka_unit_test(addresses),
        cmocka_unit_test(paths), cmocka_unit_test(quants), cmocka_unit_test(splits),
        cmocka_unit_test(ranks), cmocka_unit_test(headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
