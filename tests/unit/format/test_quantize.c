/* ratoon quantize on a small file: types and keys of the result, values within the types' precision, and all its
 * refusals. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include "format/gguf.h"                       /* before cmocka, which makes a macro of fail */
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

int cmd_quantize(int argc, char **argv);

enum { COLS = 256, ROWS = 300 };                   /* several tasks of a batch */

static char directory[64];

static char *path_of(char out[128], const char *name)
{
    snprintf(out, 128, "%s/%s", directory, name);
    return out;
}

static float value_at(int32_t tensor, int64_t i)
{
    return (float) ((i * 7919 + tensor * 104729) % 2003 - 1001) * 2e-5f;
}

/* Two matrices, a norm and an index list. bad: a value that no block can hold, in row 299 of the second matrix. */
static void write_model(const char *name, float bad)
{
    static float x[ROWS * COLS];
    char path[128];
    Error err = {0};
    GgufWriter *w;
    assert_int_equal(gguf_write_open(&w, path_of(path, name), &err), ST_OK);
    gguf_write_str(w, "general.architecture", "llama", 5);
    gguf_write_u32(w, "general.file_type", 0);
    gguf_write_u32(w, "general.quantization_version", 2);
    gguf_write_u32(w, "llama.block_count", 1);
    gguf_write_strs(w, "tokenizer.ggml.tokens", (const char *const[]) {"a", "bc"}, (const size_t[]) {1, 2}, 2);
    const int64_t matrix[] = {COLS, ROWS}, vector[] = {COLS}, list[] = {4};
    gguf_write_tensor(w, "blk.0.attn_q.weight", T_F32, 2, matrix);
    gguf_write_tensor(w, "blk.0.ffn_down.weight", T_F32, 2, matrix);
    gguf_write_tensor(w, "blk.0.attn_norm.weight", T_F32, 1, vector);
    gguf_write_tensor(w, "ids", T_I32, 1, list);
    for (int32_t t = 0; t < 2; t++) {
        for (int64_t i = 0; i < ROWS * COLS; i++) x[i] = value_at(t, i);
        if (t == 1 && bad != 0) x[299 * COLS + 5] = bad;
        gguf_write_data(w, x, sizeof x);
    }
    gguf_write_data(w, x, COLS * sizeof *x);
    gguf_write_data(w, (const int32_t[]) {1, 2, 3, 4}, 16);
    assert_int_equal(gguf_write_close(w, true, &err), ST_OK);
}

static int quantize(const char *in, const char *out, const char *type)
{
    char a[128], b[128];
    return cmd_quantize(6, (char *[]) {"quantize", "--threads", "2", path_of(a, in), path_of(b, out),
                                       (char *) type, NULL});
}

static int replace(const char *in, const char *out, const char *type)
{
    char a[128], b[128];
    return cmd_quantize(5, (char *[]) {"quantize", "--force", path_of(a, in), path_of(b, out), (char *) type, NULL});
}

static bool exists(const char *name)
{
    char path[128];
    return access(path_of(path, name), F_OK) == 0;
}

/* The file itself, and temporary files that would become it. */
static int32_t files_named(const char *name)
{
    int32_t n = 0;
    DIR *d = opendir(directory);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)); ) n += strncmp(e->d_name, name, strlen(name)) == 0;
    closedir(d);
    return n;
}

static void expect_file(const char *name, Type q, Type down, uint32_t file_type, float tolerance)
{
    static float y[ROWS * COLS];
    char path[128];
    Error err = {0};
    Gguf *g;
    if (gguf_open(&g, path_of(path, name), &err) != ST_OK) fail_msg("%s", err.text);
    uint32_t v = 0;
    assert_int_equal(gguf_get_u32(g, "general.file_type", &v, &err), ST_OK);
    assert_int_equal(v, file_type);
    assert_int_equal(gguf_get_u32(g, "general.quantization_version", &v, &err), ST_OK);
    assert_int_equal(v, 2);
    const char *s;
    size_t n;
    assert_int_equal(gguf_array_str(g, "tokenizer.ggml.tokens", 1, &s, &n, &err), ST_OK);
    assert_true(n == 2 && memcmp(s, "bc", 2) == 0);
    assert_int_equal(gguf_n_tensors(g), 4);
    const Type expected[] = {q, down};
    for (int32_t t = 0; t < 2; t++) {
        const GgufTensor *x = gguf_tensor_at(g, t);
        assert_int_equal(x->type, expected[t]);
        quant_decode(y, x->type, x->data, ROWS * COLS);
        for (int64_t i = 0; i < ROWS * COLS; i++)
            if (!(fabsf(y[i] - value_at(t, i)) <= tolerance))
                fail_msg("%s value %lld: %g, expected %g", x->name, (long long) i, (double) y[i],
                         (double) value_at(t, i));
    }
    assert_int_equal(gguf_tensor_at(g, 2)->type, T_F32);
    assert_int_equal(gguf_tensor_at(g, 3)->type, T_I32);
    assert_memory_equal(gguf_tensor_at(g, 3)->data, ((const int32_t[]) {1, 2, 3, 4}), 16);
    gguf_close(g);
}

static void writes_every_recipe(void **state)
{
    (void) state;
    write_model("in.gguf", 0);
    assert_int_equal(quantize("in.gguf", "a.gguf", "Q4_K_M"), 0);
    expect_file("a.gguf", T_Q4_K, T_Q6_K, 15, 2e-3f);
    assert_int_equal(quantize("in.gguf", "a.gguf", "q8_0"), 1);        /* the old file stays */
    expect_file("a.gguf", T_Q4_K, T_Q6_K, 15, 2e-3f);
    assert_int_equal(replace("in.gguf", "a.gguf", "q8_0"), 0);
    expect_file("a.gguf", T_Q8_0, T_Q8_0, 7, 1e-4f);
    assert_int_equal(quantize("in.gguf", "b.gguf", "F16"), 0);
    expect_file("b.gguf", T_F16, T_F16, 1, 1e-5f);
    assert_int_equal(quantize("b.gguf", "c.gguf", "Q6_K"), 0);
    expect_file("c.gguf", T_Q6_K, T_Q6_K, 18, 1e-3f);
    assert_int_equal(quantize("c.gguf", "d.gguf", "Q4_0"), 0);         /* from blocks to blocks */
    expect_file("d.gguf", T_Q4_0, T_Q4_0, 2, 3.5e-3f);
    assert_int_equal(replace("c.gguf", "b.gguf", "F32"), 0);
    expect_file("b.gguf", T_F32, T_F32, 0, 1e-3f);
    static const struct { const char *name; Type base, down; uint32_t file_type; float tolerance; } more[] = {
        {"Q5_K_S", T_Q5_K, T_Q5_K, 16, 1e-3f}, {"Q5_1", T_Q5_1, T_Q5_1, 9, 1e-3f}, {"Q5_0", T_Q5_0, T_Q5_0, 8, 2e-3f},
        {"Q4_1", T_Q4_1, T_Q4_1, 3, 2e-3f}, {"Q4_K_S", T_Q4_K, T_Q4_K, 14, 2e-3f},
        {"IQ4_NL", T_IQ4_NL, T_IQ4_NL, 25, 3e-3f}, {"IQ4_XS", T_IQ4_XS, T_IQ4_XS, 30, 3e-3f},
        {"Q3_K_L", T_Q3_K, T_Q5_K, 13, 6e-3f}, {"Q3_K", T_Q3_K, T_Q4_K, 12, 6e-3f},
        {"Q3_K_S", T_Q3_K, T_Q3_K, 11, 6e-3f},
        {"Q2_K", T_Q2_K, T_Q3_K, 10, 9e-3f},
    };
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        assert_int_equal(replace("in.gguf", "a.gguf", more[i].name), 0);
        expect_file("a.gguf", more[i].base, more[i].down, more[i].file_type, more[i].tolerance);
    }
    assert_int_equal(files_named("a.gguf"), 1);
}

/* NVFP4: each expert is divided by a factor of its own, so that weights of any size keep their precision. A tensor of
 * factors that is there is multiplied, gate and up in one tensor have none, and an expert of zeros has the factor 1. */
static void factors_of_experts(void **state)
{
    (void) state;
    enum { N = 3, ROW = 64, PLANE = ROW * 20 };
    static const char *const name[] = {"blk.0.ffn_down_exps.scale", "blk.0.ffn_down_exps.weight",
                                       "blk.0.ffn_up_exps.weight", "blk.0.ffn_gate_up_exps.weight"};
    static const float size[N] = {1e-4f, 0, 30}, there[N] = {2, 3, 0.5f};
    static float x[N * PLANE], y[N * PLANE];
    const int64_t stack[] = {ROW, PLANE / ROW, N}, list[] = {N};
    char path[128];
    Error err = {0};
    GgufWriter *w;
    Gguf *g;
    for (int64_t i = 0; i < N * PLANE; i++) x[i] = value_at(5, i) * 50 * size[i / PLANE];
    assert_int_equal(gguf_write_open(&w, path_of(path, "experts.gguf"), &err), ST_OK);
    gguf_write_str(w, "general.architecture", "gemma4", 6);
    for (int32_t k = 0; k < 4; k++) gguf_write_tensor(w, name[k], T_F32, k ? 3 : 1, k ? stack : list);
    gguf_write_data(w, there, sizeof there);
    for (int32_t k = 1; k < 4; k++) gguf_write_data(w, x, sizeof x);
    assert_int_equal(gguf_write_close(w, true, &err), ST_OK);
    assert_int_equal(quantize("experts.gguf", "nvfp4.gguf", "NVFP4_MOE"), 0);
    assert_int_equal(gguf_open(&g, path_of(path, "nvfp4.gguf"), &err), ST_OK);
    assert_int_equal(gguf_n_tensors(g), 5);
    for (int32_t k = 1; k < 4; k++) {
        char scale[64];
        const GgufTensor *t = gguf_tensor(g, name[k]);
        snprintf(scale, sizeof scale, "%.*s.scale", (int) (strlen(name[k]) - strlen(".weight")), name[k]);
        const GgufTensor *f = gguf_tensor(g, scale);
        assert_int_equal(t->type, T_NVFP4);
        assert_int_equal(f != NULL, k < 3);
        for (int64_t r = 0; r < N * PLANE / ROW; r++)
            quant_decode(y + r * ROW, T_NVFP4, t->data + type_row_bytes(T_NVFP4, ROW) * (size_t) r, ROW);
        for (int32_t e = 0; e < N && f; e++) {
            double square = 0, wrong = 0;
            float factor;
            memcpy(&factor, f->data + (size_t) e * sizeof factor, sizeof factor);
            if (k == 1) factor /= there[e];
            if (size[e] == 0) assert_true(factor == 1);
            for (int64_t i = e * PLANE; i < (e + 1) * PLANE; i++) {
                square += (double) x[i] * (double) x[i];
                wrong += pow((double) (y[i] * factor) - (double) x[i], 2);
            }
            if (sqrt(wrong) > 0.115 * sqrt(square))
                fail_msg("%s expert %d: error %g", name[k], e, sqrt(wrong / square));
        }
    }
    gguf_close(g);
    /* factors that do not fit the experts */
    assert_int_equal(gguf_write_open(&w, path_of(path, "experts.gguf"), &err), ST_OK);
    gguf_write_str(w, "general.architecture", "gemma4", 6);
    gguf_write_tensor(w, name[0], T_F32, 1, (const int64_t[]) {N + 1});
    gguf_write_tensor(w, name[1], T_F32, 3, stack);
    gguf_write_data(w, x, sizeof(float) * (N + 1));
    gguf_write_data(w, x, sizeof x);
    assert_int_equal(gguf_write_close(w, true, &err), ST_OK);
    assert_int_equal(quantize("experts.gguf", "refused.gguf", "NVFP4_MOE"), 1);
    assert_int_equal(files_named("refused.gguf"), 0);
}

/* The same bytes for any number of threads. */
static void threads_do_not_matter(void **state)
{
    (void) state;
    char in[128], one[128], two[128], line[600];
    write_model("in.gguf", 0);
    path_of(in, "in.gguf");
    assert_int_equal(cmd_quantize(6, (char *[]) {"quantize", "--threads", "1", in, path_of(one, "one.gguf"), "Q4_K_M",
                                                 NULL}), 0);
    assert_int_equal(cmd_quantize(6, (char *[]) {"quantize", in, path_of(two, "two.gguf"), "Q4_K_M", "--threads", "3",
                                                 NULL}), 0);
    snprintf(line, sizeof line, "cmp -s %s %s", one, two);
    assert_int_equal(system(line), 0);
}

static void refuses_to_replace_its_input(void **state)
{
    (void) state;
    write_model("in.gguf", 0);
    char from[128], to[128];
    assert_int_equal(symlink(path_of(from, "in.gguf"), path_of(to, "same.gguf")), 0);
    assert_int_equal(quantize("in.gguf", "in.gguf", "Q8_0"), 1);
    assert_int_equal(quantize("in.gguf", "same.gguf", "Q8_0"), 1);
    expect_file("in.gguf", T_F32, T_F32, 0, 0);
}

static void refuses_values_and_files(void **state)
{
    (void) state;
    write_model("in.gguf", 0);
    write_model("nan.gguf", NAN);
    write_model("large.gguf", 70000);
    assert_int_equal(quantize("nan.gguf", "out.gguf", "Q4_K_M"), 1);
    assert_int_equal(quantize("nan.gguf", "out.gguf", "BF16"), 1);
    assert_int_equal(quantize("large.gguf", "out.gguf", "Q8_0"), 1);
    assert_int_equal(quantize("large.gguf", "out.gguf", "F16"), 1);
    assert_int_equal(files_named("out.gguf"), 0);
    assert_int_equal(quantize("large.gguf", "out.gguf", "BF16"), 0);
    assert_int_equal(quantize("missing.gguf", "no.gguf", "Q8_0"), 1);
    assert_int_equal(quantize("in.gguf", "no/such/out.gguf", "Q8_0"), 1);
    assert_int_equal(quantize("in.gguf", "no.gguf", "Q9_9"), 2);
    assert_int_equal(cmd_quantize(1, (char *[]) {"quantize", NULL}), 2);
    assert_int_equal(cmd_quantize(5, (char *[]) {"quantize", "a", "b", "Q8_0", "c", NULL}), 2);
    assert_int_equal(cmd_quantize(5, (char *[]) {"quantize", "--fast", "a", "b", "Q8_0", NULL}), 2);
    assert_int_equal(cmd_quantize(5, (char *[]) {"quantize", "a", "b", "Q8_0", "--threads", NULL}), 2);
    assert_false(exists("no.gguf"));
}

/* Links remain links, and anything but a regular file is never replaced by one. */
static void replaces_files_only(void **state)
{
    (void) state;
    static uint8_t got[1 << 19];
    char at[128];
    struct stat st;
    write_model("in.gguf", 0);
    assert_int_equal(mkdir(path_of(at, "disk"), 0700), 0);
    assert_int_equal(symlink("disk/real.gguf", path_of(at, "link.gguf")), 0);
    assert_int_equal(quantize("in.gguf", "link.gguf", "Q8_0"), 1);                 /* it is dangling */
    assert_int_equal(quantize("in.gguf", "disk/real.gguf", "F16"), 0);
    assert_int_equal(quantize("in.gguf", "link.gguf", "Q8_0"), 1);                 /* its file exists */
    assert_int_equal(replace("in.gguf", "link.gguf", "Q8_0"), 0);
    assert_true(lstat(path_of(at, "link.gguf"), &st) == 0 && S_ISLNK(st.st_mode));
    expect_file("disk/real.gguf", T_Q8_0, T_Q8_0, 7, 1e-4f);
    assert_int_equal(quantize("in.gguf", "disk", "Q8_0"), 1);
    assert_int_equal(mkfifo(path_of(at, "pipe"), 0600), 0);
    assert_int_equal(quantize("in.gguf", "pipe", "Q8_0"), 1);                      /* there is no reader */
    int in = open(at, O_RDONLY | O_NONBLOCK);
    if (fcntl(in, F_SETPIPE_SZ, sizeof got) < (int) sizeof got) {                  /* the pipe has room for all of it */
        close(in);
        skip();                                    /* a system that allows less */
    }
    assert_int_equal(quantize("in.gguf", "pipe", "Q8_0"), 0);
    assert_true(lstat(at, &st) == 0 && S_ISFIFO(st.st_mode));
    ssize_t n = 0, more;
    while ((more = read(in, got + n, sizeof got - (size_t) n)) > 0) n += more;
    close(in);
    FILE *f = fopen(path_of(at, "read.gguf"), "wb");
    assert_int_equal(fwrite(got, 1, (size_t) n, f), n);
    fclose(f);
    expect_file("read.gguf", T_Q8_0, T_Q8_0, 7, 1e-4f);
    if (mknod(path_of(at, "null"), S_IFCHR | 0666, makedev(1, 3)) != 0) return;    /* like /dev/null; needs root */
    int fd = open(at, O_WRONLY);
    if (fd < 0) return;
    close(fd);
    assert_int_equal(quantize("in.gguf", "null", "Q8_0"), 0);
    assert_true(lstat(at, &st) == 0 && S_ISCHR(st.st_mode));
    assert_int_equal(files_named("null"), 1);
}

static int setup(void **state)
{
    (void) state;
    snprintf(directory, sizeof directory, "/tmp/quantize.XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int teardown(void **state)
{
    (void) state;
    char line[128];
    snprintf(line, sizeof line, "rm -rf %s", directory);
    return system(line);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    clearenv();                                    /* options and the configuration of whoever runs this */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(writes_every_recipe, setup, teardown),
        cmocka_unit_test_setup_teardown(factors_of_experts, setup, teardown),
        cmocka_unit_test_setup_teardown(threads_do_not_matter, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_to_replace_its_input, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_values_and_files, setup, teardown),
        cmocka_unit_test_setup_teardown(replaces_files_only, setup, teardown),
    };
    return cmocka_run_group_tests_name("quantize", tests, NULL, NULL);
}
