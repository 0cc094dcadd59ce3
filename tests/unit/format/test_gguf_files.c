/* test_gguf_files.c - GGUF files: split files, files that are something else, change or are huge (G13, G18, G19), every
 * truncation and bit flip, every failing allocation, and the writer. */
#include "gguf_image.h"

#include <dirent.h>
#include <fcntl.h>

/* ---- split files ---- */

typedef struct { uint32_t no, count, total; const char *arch, *tensor; } PartSpec;

static const char *save_part(const char *name, PartSpec s)
{
    head(1, s.arch ? 4 : 3);
    if (s.arch) key_str("general.architecture", s.arch);
    key("split.no", GV_U16), raw(&(uint16_t) { (uint16_t) s.no }, 2);
    key("split.count", GV_U16), raw(&(uint16_t) { (uint16_t) s.count }, 2);
    key("split.tensors.count", GV_I32), u32(s.total);
    tensor_1d(s.tensor, 4, 0, 0);
    data(16);
    image.at[image.n - 16] = (uint8_t) s.no;
    return save(name);
}

static void save_parts(void)
{
    save_part("m-00001-of-00003.gguf", (PartSpec) { 0, 3, 3, "llama", "a" });
    save_part("m-00002-of-00003.gguf", (PartSpec) { 1, 3, 3, NULL, "b" });
    save_part("m-00003-of-00003.gguf", (PartSpec) { 2, 3, 3, NULL, "c" });
}

static void G13_split(void **state)
{
    (void) state;
    static const char *const names[] = { "m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf" };
    save_parts();
    for (int i = 0; i < 3; i++) {                  /* the name of any part opens the whole */
        Gguf *g;
        Status status = gguf_open(&g, in_folder(names[i]), &err);
        if (status != ST_OK) print_error("%s\n", err.text);
        assert_int_equal(status, ST_OK);
        assert_int_equal(gguf_n_tensors(g), 3);
        assert_string_equal(gguf_path(g), in_folder(names[0]));
        for (int32_t j = 0; j < 3; j++) {
            const GgufTensor *t = gguf_tensor_at(g, j);
            assert_int_equal(t->name[0], 'a' + j);
            assert_int_equal(t->data[0], j);
            assert_string_equal(t->file, in_folder(names[j]));
            assert_ptr_equal(gguf_tensor(g, t->name), t);
            gguf_drop(g, t->file, t->data, (size_t) t->bytes);
            assert_int_equal(t->data[0], j);
        }
        assert_true(gguf_has(g, "general.architecture"));
        assert_int_equal(gguf_check_files(g, &err), ST_OK);
        gguf_close(g);
    }
#define BROKEN(part, spec, open, text)       \
    save_parts();                            \
    save_part(names[part], (PartSpec) spec); \
    refuse_open(in_folder(names[open]), ST_FORMAT, names[part], text)
#define SPEC(...) { __VA_ARGS__ }
    BROKEN(1, SPEC(2, 3, 3, NULL, "b"), 0, "split.no is 2, expected 1");
    BROKEN(1, SPEC(1, 4, 3, NULL, "b"), 0, "split.count is 4, expected 3");
    BROKEN(2, SPEC(2, 3, 9, NULL, "c"), 0, "split.tensors.count is 9, expected 3");
    BROKEN(2, SPEC(2, 3, 3, NULL, "a"), 0, "tensor 'a' occurs twice");
    BROKEN(2, SPEC(2, 3, 3, "qwen3", "c"), 0, "general.architecture differs");
    BROKEN(0, SPEC(0, 2, 3, "llama", "a"), 2, "split.count is 2, expected 3");
    BROKEN(0, SPEC(1, 3, 3, "llama", "a"), 0, "split.no is 1, expected 0");
    save_parts();
    save_part(names[0], (PartSpec) { 0, 3, 4, "llama", "a" });
    refuse_open(in_folder(names[0]), ST_FORMAT, names[1], "split.tensors.count is 3, expected 4");
    save_parts();
    save_part(names[0], (PartSpec) { 0, 3, 4, "llama", "a" });
    save_part(names[1], (PartSpec) { 1, 3, 4, NULL, "b" });
    save_part(names[2], (PartSpec) { 2, 3, 4, NULL, "c" });
    refuse_open(in_folder(names[0]), ST_FORMAT, names[0], "split.tensors.count is 4, but the 3 parts have 3 tensors");
    save_parts();
    unlink(in_folder(names[1]));
    refuse_open(in_folder(names[2]), ST_IO, names[1], "cannot be opened");
    assert_int_equal(symlink(in_folder(names[0]), in_folder(names[1])), 0);     /* a loop: part 2 is part 1 */
    refuse_open(in_folder(names[0]), ST_FORMAT, names[1], "split.no is 0, expected 1");
    unlink(in_folder(names[1]));
    save_parts();
    refuse_open(save_part("renamed.gguf", (PartSpec) { 0, 3, 3, "llama", "a" }), ST_FORMAT, "renamed.gguf",
                "split.count is 3, but by its name");
    refuse_open(save_part("z-00001-of-00001.gguf", (PartSpec) { 0, 0, 1, "llama", "a" }), ST_FORMAT, "z-00001",
                "split.count is 0");
    head(0, 1);
    arch();
    refuse_file(save("n-00001-of-00002.gguf"), ST_FORMAT, "split.count is missing, expected 2");
    static const char *const odd[] = { "o-00000-of-00002.gguf", "o-00003-of-00002.gguf", "o-00001-of-00000.gguf",
                                       "o-00001-of-99999.gguf" };
    for (int i = 0; i < 4; i++) refuse_file(save(odd[i]), ST_FORMAT, "by its name");
    Gguf *g;                                       /* names that only look like parts; whole files that claim to be */
    assert_int_equal(gguf_open(&g, save("n-0000x-of-00002.gguf"), &err), ST_OK);
    gguf_close(g);
    assert_int_equal(gguf_open(&g, save("n-00001-of-00001.gguf"), &err), ST_OK);
    gguf_close(g);
    assert_int_equal(gguf_open(&g, save_part("whole.gguf", (PartSpec) { 0, 1, 1, "llama", "a" }), &err), ST_OK);
    gguf_close(g);
}

/* ---- files that are none, change or are huge ---- */

static void G18_not_a_file(void **state)
{
    (void) state;
    refuse_file(in_folder("missing.gguf"), ST_IO, "cannot be opened: No such file");
    refuse_file("", ST_IO, "cannot be opened");
    Gguf *g;
    assert_int_equal(gguf_open(&g, "/no\tsuch\x1b\x7f file", &err), ST_IO);
    /* no characters that control a terminal */
    assert_non_null(strstr(err.text, "/no?such?? file: cannot be opened"));
    refuse_file(folder, ST_IO, "is a folder, expected a regular file");
    refuse_file("/dev/zero", ST_IO, "is a device");
    refuse_file("/dev/null", ST_IO, "is a device");
    const char *fifo = in_folder("fifo.gguf");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    refuse_file(fifo, ST_IO, "is a FIFO");
    const char *loop = in_folder("loop.gguf");
    assert_int_equal(symlink("loop.gguf", loop), 0);
    refuse_file(loop, ST_IO, "cannot be opened: Too many levels");
    head(0, 1);
    arch();
    const char *secret = save("secret.gguf");
    assert_int_equal(chmod(secret, 0), 0);
    bool root = geteuid() == 0;
    if (root && seteuid(65534) != 0) return;       /* a system that knows nobody else */
    refuse_file(secret, ST_IO, "cannot be opened: Permission denied");
    if (root) assert_int_equal(seteuid(0), 0);
}

static void G18_changed_file(void **state)
{
    (void) state;
    one_tensor("w", 1, NE(16), 0, 0);
    const char *path = save("changed.gguf");
    Gguf *g;
    uint32_t v;
    assert_int_equal(gguf_open(&g, path, &err), ST_OK);
    assert_int_equal(gguf_check_files(g, &err), ST_OK);
    struct timespec times[2] = { { .tv_sec = 1000000000 }, { .tv_sec = 1000000000 } };
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    check_message(gguf_check_files(g, &err), ST_IO, path, "was written to");
    assert_int_equal(truncate(path, 40), 0);
    check_message(gguf_check_files(g, &err), ST_IO, path, "has 40 bytes, expected ");
    assert_true(gguf_has(g, "general.architecture"));          /* keys and names are copies */
    assert_non_null(gguf_tensor(g, "w"));
    assert_int_equal(gguf_get_u32(g, "general.architecture", &v, &err), ST_FORMAT);
    gguf_close(g);
    one_tensor("w", 1, NE(16), 0, 0);              /* replaced by rename: the old file stays valid */
    assert_int_equal(gguf_open(&g, save("changed.gguf"), &err), ST_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(gguf_check_files(g, &err), ST_OK);
    assert_int_equal(gguf_tensor(g, "w")->data[63], 64);
    gguf_close(g);
}

static long resident_kib(void)
{
    long  size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &size, &pages), 2);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void G18_sparse_terabyte(void **state)
{
    (void) state;
    Gguf *g;
    long  before = resident_kib();
    head(1, 1);
    arch();
    tensor("w", 2, NE(1 << 20, 1 << 10), 0, 0);    /* 4 GiB of zeros */
    const char *path = save("sparse.gguf");
    if (truncate(path, 1ll << 40) != 0) skip();    /* the file system does not support it */
    double start = now();
    assert_int_equal(gguf_open(&g, path, &err), ST_OK);
    assert_int_equal(gguf_tensor(g, "w")->bytes, 1ull << 32);
    assert_int_equal(gguf_tensor(g, "w")->data[(1ull << 32) - 1], 0);
    gguf_close(g);
    /* Headers that seem endless: all zeros, and as many strings as the size of the file would allow. */
    head(0, 2);
    key("k", GV_STRING), u64(64 << 20);
    save("sparse.gguf");
    assert_int_equal(truncate(path, 1ll << 40), 0);
    refuse_file(path, ST_FORMAT, "key number 1: its name is empty");
    head(0, 1);
    array("k", GV_STRING, 1ull << 36);
    save("sparse.gguf");
    assert_int_equal(truncate(path, 1ll << 40), 0);
    refuse_file(path, ST_FORMAT, "key 'k': the header is longer than 134217728 bytes");
    head(0, 1);
    array("k", GV_F64, 1ull << 32);
    save("sparse.gguf");
    assert_int_equal(truncate(path, 1ll << 40), 0);
    refuse_file(path, ST_FORMAT, "key 'k': the header is longer than 134217728 bytes");
    head(1ull << 34, 1);
    arch();
    save("sparse.gguf");
    assert_int_equal(truncate(path, 1ll << 40), 0);
    refuse_file(path, ST_FORMAT, "n_tensors is 17179869184");
    if (!ALLOC_SANITIZED) {
        assert_true(now() - start < 2.0);
        assert_true(resident_kib() - before < 64 * 1024);
    }
    unlink(path);
}

static void G19_long_template(void **state)
{
    (void) state;
    head(0, 1);
    key("tokenizer.chat_template", GV_STRING), u64(100 << 20);
    const char *path = save("template.gguf");
    assert_int_equal(truncate(path, 200 << 20), 0);
    refuse_file(path, ST_FORMAT,
                "key 'tokenizer.chat_template': a string has 104857600 bytes, expected at most 67108864");
    unlink(path);
}

/* ---- all of it ---- */

/* A valid file of about 2 KB: every value type, tensors of several types, two strings tables. */
static void rich_image(void)
{
    head(6, 9);
    arch();
    key_u32("llama.block_count", 2);
    key_f32("llama.rope.freq_base", 1e6f);
    key("flag", GV_BOOL), u8(1);
    key("wide", GV_U64), u64(1ull << 40);
    array("tokenizer.ggml.tokens", GV_STRING, 60);
    for (int i = 0; i < 60; i++) str(i % 3 ? "tok" : "\xc4\xa0the");
    array("tokenizer.ggml.token_type", GV_I32, 60);
    for (int i = 0; i < 60; i++) u32(1);
    array("mask", GV_BOOL, 5), raw("\1\0\1\0\1", 5);
    array("merges", GV_STRING, 4), str("a b"), str("c d"), str("e f"), str("g h");
    tensor("token_embd.weight", 2, NE(32, 2), 8, 0);           /* 68 bytes */
    tensor("blk.0.attn_q.weight", 2, NE(256, 1), 12, 96);      /* 144 */
    tensor("blk.0.ffn.weight", 3, NE(32, 2, 1), 2, 256);       /* 36 */
    tensor_1d("blk.0.norm.weight", 8, 0, 320);                 /* 32 */
    tensor_1d("extra", 64, 42, 352);                           /* 18 */
    tensor("last", 2, NE(2, 2), 1, 384);                       /* 8 */
    data(392);
}

static void truncations(void **state)
{
    (void) state;
    rich_image();
    size_t whole = image.n;
    assert_true(whole > 1800 && whole < 3000);
    for (image.n = 0; image.n < whole; image.n++) {
        Gguf    *g;
        uint8_t *exact = malloc(image.n ? image.n : 1);        /* so that a sanitizer sees its end */
        memcpy(exact, image.at, image.n);
        err = (Error) { 0 };
        assert_int_equal(gguf_parse(&g, exact, image.n, "x.gguf", &err), ST_FORMAT);
        assert_null(g);
        assert_memory_equal(err.text, "x.gguf: ", 8);
        free(exact);
    }
    gguf_close(parse_ok());
}

/* Reads everything that a flipped file offers. */
static void look(const Gguf *g)
{
    char     text[256];
    uint32_t u;
    float    f;
    const char *s;
    size_t   n;
    for (int32_t i = 0; i < gguf_n_keys(g); i++) {
        const char *name = gguf_key(g, i);
        GgufType elem;
        uint64_t count;
        gguf_key_text(g, i, text, sizeof text);
        gguf_get_u32(g, name, &u, &err);
        gguf_get_f32(g, name, &f, &err);
        gguf_get_str(g, name, &s, &n, &err);
        if (gguf_array(g, name, &elem, &count, &err) != ST_OK) continue;
        for (uint64_t j = 0; j < count && elem == GV_STRING; j++)
            assert_int_equal(gguf_array_str(g, name, j, &s, &n, &err), ST_OK);
    }
    for (int32_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor_at(g, i);
        assert_ptr_equal(gguf_tensor(g, t->name), t);
        assert_true(t->data >= image.at && t->data + t->bytes <= image.at + image.n);
    }
}

static void bit_flips(void **state)
{
    (void) state;
    rich_image();
    double start = now();
    long   opened = 0;
    size_t end = image.n - 392;
    for (size_t bit = 0; bit < 8 * end; bit++) {
        Gguf *g;
        image.at[bit / 8] ^= (uint8_t) (1 << bit % 8);
        err = (Error) { 0 };
        Status status = gguf_parse(&g, image.at, image.n, "x.gguf", &err);
        if (status == ST_OK) {
            look(g);
            opened++;
        } else {
            assert_true(status == ST_FORMAT || status == ST_UNSUPPORTED);
            assert_int_equal(err.code, status);
            assert_memory_equal(err.text, "x.gguf: ", 8);
        }
        gguf_close(g);
        image.at[bit / 8] ^= (uint8_t) (1 << bit % 8);
    }
    assert_true(opened > 1000);                    /* flips in names and values do no harm */
    assert_true(now() - start < 30);
    gguf_close(parse_ok());
}

/* 250,000 tokens are read, and any of them is found at once: in some 10 ms, where a search would take half a minute. */
static void many_strings(void **state)
{
    (void) state;
    enum { N = 250000 };
    const char *path = in_folder("vocab.gguf"), **s = malloc(N * sizeof *s);
    size_t     *n = malloc(N * sizeof *n);
    char      (*text)[8] = malloc(N * sizeof *text);
    for (size_t i = 0; i < N; i++) {
        n[i] = (size_t) snprintf(text[i], sizeof text[i], "t%zu", i);
        s[i] = text[i];
    }
    GgufWriter *w;
    assert_int_equal(gguf_write_open(&w, path, &err), ST_OK);
    gguf_write_strs(w, "tokens", s, n, N);
    assert_int_equal(gguf_write_close(w, true, &err), ST_OK);
    double best = 1e9;
    Gguf  *g;
    for (int trial = 0; trial < 5; trial++) {
        double start = now();
        assert_int_equal(gguf_open(&g, path, &err), ST_OK);
        for (uint64_t i = 0; i < N; i++) {
            const char *at;
            size_t      m;
            uint64_t    j = i * 7919 % N;
            if (gguf_array_str(g, "tokens", j, &at, &m, &err) != ST_OK || m != n[j] || memcmp(at, s[j], m) != 0) fail();
        }
        if (now() - start < best) best = now() - start;
        if (trial < 4) gguf_close(g);
    }
    assert_true(best < 3);
    gguf_close(g);
    free(s), free(n), free(text);
    unlink(path);
}

static void allocation_failures(void **state)
{
    (void) state;
    rich_image();
    save_parts();
    char path[256];
    snprintf(path, sizeof path, "%s", in_folder("m-00002-of-00003.gguf"));
    rich_image();
    for (int split = 0; split < 2; split++) {
        long k = 0, live = alloc_state.live;
        for (Status status = ST_MEMORY; status != ST_OK; ) {
            Gguf *g;
            err = (Error) { 0 };
            alloc_state.fail_in = ++k;
            status = split ? gguf_open(&g, path, &err) : gguf_parse(&g, image.at, image.n, "x.gguf", &err);
            bool hit = alloc_state.fail_in == 0;
            alloc_state.fail_in = 0;
            if (hit && status != ST_OK) {
                assert_int_equal(status, ST_MEMORY);
                assert_null(g);
                assert_non_null(strstr(err.text, ".gguf: "));
            } else assert_int_equal(status, ST_OK);
            if (hit && status == ST_OK) status = ST_MEMORY;    /* the C library managed without (sorting) */
            gguf_close(g);
            if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.live, live);
        }
        assert_true(k > (split ? 15 : 8));
    }
}

/* ---- writing ---- */

static void write_some(GgufWriter *w)
{
    gguf_write_str(w, "general.architecture", "llama", 5);
    gguf_write_u32(w, "u", 7);
    gguf_write_f32(w, "f", -0.5f);
    gguf_write_bool(w, "b", true);
    gguf_write_i32s(w, "i32s", (const int32_t[]) { 1, -1, 2 }, 3);
    gguf_write_f32s(w, "f32s", (const float[]) { 0.5f, 2 }, 2);
    gguf_write_bools(w, "bools", (const bool[]) { true, false }, 2);
    gguf_write_strs(w, "strs", (const char *const[]) { "a\0b", "" }, (const size_t[]) { 3, 0 }, 2);
    gguf_write_tensor(w, "x", T_F32, 2, NE(3, 2));
    gguf_write_tensor(w, "y", T_Q8_0, 1, NE(64));
    gguf_write_tensor(w, "z", T_I32, 1, NE(1));
    uint8_t bytes[24 + 68 + 4];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t) i;
    gguf_write_data(w, bytes, 10);                 /* pieces of any size, across tensors too */
    gguf_write_data(w, bytes + 10, 0);
    gguf_write_data(w, bytes + 10, 50);
    gguf_write_data(w, bytes + 60, sizeof bytes - 60);
}

/* Number of files in the folder with this prefix: the file itself, and temporary files that would become it. */
static int32_t files_named(const char *name)
{
    int32_t n = 0;
    DIR *d = opendir(in_folder("."));
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)); ) n += strncmp(e->d_name, name, strlen(name)) == 0;
    closedir(d);
    return n;
}

static bool opened_as(int fd, const char *path)
{
    char link[64], at[512] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, at, sizeof at - 1) > 0 && strncmp(at, path, strlen(path)) == 0;
}

static void write_and_read(void **state)
{
    (void) state;
    GgufWriter *w;
    Gguf       *g, *copy;
    uint32_t    u;
    float       f;
    int64_t     i;
    bool        b;
    const char *s;
    size_t      n;
    char        path[256], second[256];
    snprintf(path, sizeof path, "%s", in_folder("written.gguf"));
    snprintf(second, sizeof second, "%s", in_folder("copy.gguf"));
    assert_int_equal(gguf_write_open(&w, path, &err), ST_OK);
    write_some(w);
    assert_int_equal(access(path, F_OK), -1);      /* not before it is complete */
    assert_int_equal(gguf_write_close(w, true, &err), ST_OK);
    assert_int_equal(files_named("written.gguf"), 1);
    assert_int_equal(gguf_open(&g, path, &err), ST_OK);
    assert_int_equal(gguf_version(g), 3);
    assert_int_equal(gguf_file_bytes(g) % 32, 0);
    assert_int_equal(gguf_n_keys(g), 8);
    assert_int_equal(gguf_get_u32(g, "u", &u, &err), ST_OK); assert_int_equal(u, 7);
    assert_int_equal(gguf_get_f32(g, "f", &f, &err), ST_OK); assert_true(f == -0.5f);
    assert_int_equal(gguf_get_bool(g, "b", &b, &err), ST_OK); assert_true(b);
    assert_int_equal(gguf_array_i64(g, "i32s", 1, &i, &err), ST_OK); assert_int_equal(i, -1);
    assert_int_equal(gguf_array_f32(g, "f32s", 1, &f, &err), ST_OK); assert_true(f == 2);
    assert_int_equal(gguf_array_bool(g, "bools", 0, &b, &err), ST_OK); assert_true(b);
    assert_int_equal(gguf_array_str(g, "strs", 0, &s, &n, &err), ST_OK);
    assert_int_equal(n, 3);
    assert_memory_equal(s, "a\0b", 3);
    static const size_t starts[] = { 0, 24, 92, 96 };
    for (int32_t k = 0; k < 3; k++) {
        const GgufTensor *t = gguf_tensor_at(g, k);
        assert_int_equal(t->bytes, starts[k + 1] - starts[k]);
        for (size_t j = 0; j < t->bytes; j++) assert_int_equal(t->data[j], starts[k] + j);
    }
    assert_int_equal(gguf_write_open(&w, second, &err), ST_OK);
    for (int32_t k = 0; k < gguf_n_keys(g); k++) gguf_write_key_of(w, g, k);
    for (int32_t k = 0; k < 3; k++) {
        const GgufTensor *t = gguf_tensor_at(g, k);
        gguf_write_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    for (int32_t k = 0; k < 3; k++) gguf_write_data(w, gguf_tensor_at(g, k)->data, gguf_tensor_at(g, k)->bytes);
    assert_int_equal(gguf_write_close(w, true, &err), ST_OK);
    assert_int_equal(gguf_open(&copy, second, &err), ST_OK);
    assert_int_equal(gguf_file_bytes(copy), gguf_file_bytes(g));
    uint8_t *a = malloc(gguf_file_bytes(g)), *c = malloc(gguf_file_bytes(g));
    FILE *fa = fopen(path, "rb"), *fc = fopen(second, "rb");
    assert_int_equal(fread(a, 1, gguf_file_bytes(g), fa), gguf_file_bytes(g));
    assert_int_equal(fread(c, 1, gguf_file_bytes(g), fc), gguf_file_bytes(g));
    assert_memory_equal(a, c, gguf_file_bytes(g));
    fclose(fa), fclose(fc), free(a), free(c);
    gguf_close(g);
    gguf_close(copy);
    head(0, 4);                                    /* keys that describe the old file are not copied */
    key_u32("general.alignment", 64);
    key_u32("split.count", 1);
    key_u32("split.no", 0);
    arch();
    g = parse_ok();
    assert_int_equal(gguf_write_open(&w, second, &err), ST_OK);
    for (int32_t k = 0; k < 4; k++) gguf_write_key_of(w, g, k);
    assert_int_equal(gguf_write_close(w, true, &err), ST_OK);
    gguf_close(g);
    assert_int_equal(gguf_open(&g, second, &err), ST_OK);
    assert_int_equal(gguf_n_keys(g), 1);
    gguf_close(g);
}

enum { W_TWICE, W_TENSOR_TWICE, W_LATE_KEY, W_LATE_TENSOR, W_NAME, W_KEY_NAME, W_DIMS, W_ZERO, W_BLOCK, W_HUGE,
       W_LITTLE, W_MUCH, W_EMPTY, W_ALIGNMENT, W_CASES };

static void write_wrongly(GgufWriter *w, int what)
{
    static const uint8_t zeros[64];
    if (what != W_EMPTY) gguf_write_u32(w, "k", 1);
    if (what == W_TWICE) gguf_write_u32(w, "k", 1);
    if (what == W_KEY_NAME) gguf_write_u32(w, "a\nb", 1);
    if (what == W_ALIGNMENT) gguf_write_u32(w, "general.alignment", 64);
    gguf_write_tensor(w, "x", T_F32, 1, NE(16));
    if (what == W_TENSOR_TWICE) gguf_write_tensor(w, "x", T_F32, 1, NE(16));
    if (what == W_NAME) gguf_write_tensor(w, "", T_F32, 1, NE(16));
    if (what == W_DIMS) gguf_write_tensor(w, "y", T_F32, 5, NE(1, 1, 1, 1, 1));
    if (what == W_ZERO) gguf_write_tensor(w, "y", T_F32, 2, NE(1, 0));
    if (what == W_BLOCK) gguf_write_tensor(w, "y", T_Q8_0, 1, NE(33));
    if (what == W_HUGE) gguf_write_tensor(w, "y", T_F32, 2, NE(1ll << 40, 1ll << 40));
    gguf_write_data(w, zeros, what == W_LITTLE ? 63 : 64);
    if (what == W_LATE_KEY) gguf_write_u32(w, "late", 1);
    if (what == W_LATE_TENSOR) gguf_write_tensor(w, "late", T_F32, 1, NE(1));
    if (what == W_MUCH) gguf_write_data(w, zeros, 1);
    if (what != W_LITTLE) gguf_write_f32(w, "after", 1);       /* calls after a failure do nothing */
}

static void write_failures(void **state)
{
    (void) state;
    static const char *const texts[W_CASES] = {
        "key 'k' was written twice", "tensor 'x' was written twice", "key 'late' comes after",
        "tensor 'late' comes after", "tensor number 1: its name",
        "key number 1 is empty", "tensor 'y' has 5 dimensions", "tensor 'y' of type F32 has shape [1, 0, 1, 1]",
        "rows of a multiple of 32",
        "tensor 'y' of type F32 has shape", "tensor 'x' has 63 of 64 bytes", "1 bytes of data too much", "no keys",
        "general.alignment",
    };
    GgufWriter *w;
    char path[256];
    snprintf(path, sizeof path, "%s", in_folder("bad.gguf"));
    for (int what = 0; what < W_CASES; what++) {
        assert_int_equal(gguf_write_open(&w, path, &err), ST_OK);
        write_wrongly(w, what);
        check_message(gguf_write_close(w, true, &err), ST_ARG, path, texts[what]);
        assert_int_equal(files_named("bad.gguf"), 0);
    }
    assert_int_equal(gguf_write_open(&w, path, &err), ST_OK);  /* discarded */
    write_some(w);
    assert_int_equal(gguf_write_close(w, false, &err), ST_OK);
    assert_int_equal(files_named("bad.gguf"), 0);
    assert_int_equal(gguf_write_close(NULL, true, &err), ST_OK);
    Status status = gguf_write_open(&w, in_folder("no/such/folder.gguf"), &err);
    check_message(status, ST_IO, "folder.gguf", "cannot be created");
    assert_null(w);
    for (long k = 1, hit = 1; hit; k++) {          /* every allocation */
        long live = alloc_state.live;
        alloc_state.fail_in = k;
        status = gguf_write_open(&w, path, &err);
        if (status == ST_OK) {
            write_some(w);
            status = gguf_write_close(w, true, &err);
        }
        hit = alloc_state.fail_in == 0;
        alloc_state.fail_in = 0;
        if (status != ST_OK) assert_int_equal(files_named("bad.gguf"), 0);
        if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.live, live);
        if (!hit) assert_int_equal(status, ST_OK);
        unlink(path);
    }
    if (access("/dev/full", W_OK) == 0) {          /* a full disk */
        assert_int_equal(gguf_write_open(&w, path, &err), ST_OK);
        write_some(w);
        int full = open("/dev/full", O_WRONLY);
        for (int other = 3; other < full; other++)             /* the writer's: open on a file beside */
            if (opened_as(other, path)) dup2(full, other);
        close(full);
        check_message(gguf_write_close(w, true, &err), ST_IO, path, "cannot be written");
        assert_int_equal(files_named("bad.gguf"), 0);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(G13_split), cmocka_unit_test(G18_not_a_file), cmocka_unit_test(G18_changed_file),
        cmocka_unit_test(G18_sparse_terabyte), cmocka_unit_test(G19_long_template), cmocka_unit_test(truncations),
        cmocka_unit_test(bit_flips), cmocka_unit_test(many_strings), cmocka_unit_test(allocation_failures),
        cmocka_unit_test(write_and_read), cmocka_unit_test(write_failures),
    };
    return cmocka_run_group_tests_name("gguf_files", tests, make_folder, remove_folder);
}
