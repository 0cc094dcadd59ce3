/* gguf_image.h - for tests of the GGUF reader: builds images field by field, so that any field can lie, and
 * checks refusals. Every refusal must name the file and the culprit, be quick and take
 * little memory. */
#ifndef RATOON_TESTS_HELP_GGUF_IMAGE_H
#define RATOON_TESTS_HELP_GGUF_IMAGE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "format/gguf.h"                           /* before cmocka.h, which has a macro named fail */
#include "file_check.h"

#include "alloc_fault.h"

/* ---- images ---- */

static struct { uint8_t at[1 << 16]; size_t n; } image;

static inline void raw(const void *bytes, size_t n)
{
    assert_true(image.n + n <= sizeof image.at);
    memcpy(image.at + image.n, bytes, n);
    image.n += n;
}

static inline void u8(uint8_t v) { raw(&v, 1); }
static inline void u32(uint32_t v) { raw(&v, 4); }
static inline void u64(uint64_t v) { raw(&v, 8); }
static inline void bytes_of(const char *s, size_t n) { u64(n); raw(s, n); }
static inline void str(const char *s) { bytes_of(s, strlen(s)); }

static inline void head_of(const char *magic, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    image.n = 0;
    raw(magic, 4);
    u32(version);
    u64(n_tensors);
    u64(n_keys);
}

static inline void head(uint64_t n_tensors, uint64_t n_keys) { head_of("GGUF", 3, n_tensors, n_keys); }
static inline void key(const char *name, uint32_t type) { str(name); u32(type); }
static inline void array(const char *name, uint32_t elem, uint64_t count)
{
    key(name, GV_ARRAY);
    u32(elem);
    u64(count);
}
static inline void key_u32(const char *name, uint32_t v) { key(name, GV_U32); u32(v); }
static inline void key_f32(const char *name, float v) { key(name, GV_F32); raw(&v, 4); }
static inline void key_str(const char *name, const char *s) { key(name, GV_STRING); str(s); }
static inline void arch(void) { key_str("general.architecture", "llama"); }

static inline void tensor(const char *name, uint32_t n_dims, const int64_t *ne, uint32_t type, uint64_t offset)
{
    str(name);
    u32(n_dims);
    raw(ne, n_dims * sizeof *ne);
    u32(type);
    u64(offset);
}

static inline void tensor_1d(const char *name, int64_t ne0, uint32_t type, uint64_t offset)
{
    tensor(name, 1, &ne0, type, offset);
}

/* Padding, then n bytes 1, 2, 3 ... */
static inline void data(size_t n)
{
    while (image.n % 32) u8(0);
    for (size_t i = 0; i < n; i++) u8((uint8_t) (i + 1));
}

/* ---- checks ---- */

static inline Gguf *parse_ok(void)
{
    Gguf *g;
    Status status = gguf_parse(&g, image.at, image.n, "x.gguf", &err);
    if (status != ST_OK) print_error("%s\n", err.text);
    assert_int_equal(status, ST_OK);
    return g;
}

/* The image must be refused with this status, by a message that contains the file's name and text. */
static inline void refuse(Status expected, const char *text)
{
    Gguf  *g;
    double start = now();
    size_t before = alloc_state.bytes;
    alloc_state.peak = before;
    err = (Error) { 0 };
    Status status = gguf_parse(&g, image.at, image.n, "x.gguf", &err);
    assert_null(g);
    check_message(status, expected, "x.gguf: ", text);
    assert_true(now() - start < 1.0);
    assert_true(alloc_state.peak - before < (8 << 20));
    if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.bytes, before);
}

/* One tensor with these fields and 64 bytes of data. */
static inline void one_tensor(const char *name, uint32_t n_dims, const int64_t *ne, uint32_t type, uint64_t offset)
{
    head(1, 1);
    arch();
    tensor(name, n_dims, ne, type, offset);
    data(64);
}

#define NE(...) ((const int64_t[]) { __VA_ARGS__ })

/* ---- a folder for files ---- */

static inline const char *save(const char *name) { return save_bytes(name, image.at, image.n); }

static inline int make_folder(void **state)
{
    (void) state;
    return new_folder("gguf");
}

/* Opening path must be refused without blocking. */
static inline void refuse_open(const char *path, Status expected, const char *file, const char *text)
{
    Gguf  *g;
    double start = now();
    err = (Error) { 0 };
    Status status = gguf_open(&g, path, &err);
    assert_null(g);
    check_message(status, expected, file, text);
    assert_true(now() - start < 1.0);
}

static inline void refuse_file(const char *path, Status expected, const char *text)
{
    refuse_open(path, expected, path, text);
}

#endif
