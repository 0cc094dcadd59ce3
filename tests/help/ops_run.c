#include "ops_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

bool run_is_cpu(const Run *r) { return strncmp(r->name, "cpu", 3) == 0; }
bool run_is_gpu(const Run *r) { return strncmp(r->name, "cuda", 4) == 0; }

void run_fail(const Run *r, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail_msg("%s: %s", r->name, text);
    abort();
}

void run_must(const Run *r, bool is, const char *what)
{
    if (!is) run_fail(r, "expected: %s", what);
}

/* ---- memory ---- */

static void hold(Run *r, void *p, size_t bytes, bool of_host)
{
    if (!p) run_fail(r, "no memory for %zu bytes", bytes);
    if (r->n_held == r->cap_held) {
        r->cap_held = r->cap_held ? 2 * r->cap_held : 64;
        r->held = realloc(r->held, sizeof *r->held * r->cap_held);
        if (!r->held) abort();
    }
    r->held[r->n_held++] = (Held) { p, bytes, of_host };
}

void *run_memory(Run *r, size_t bytes, const void *host)
{
    void *p = r->b->alloc(r->b, bytes, "test");
    hold(r, p, bytes, false);
    if (host) r->b->copy_in(r->b, p, host, bytes);
    return p;
}

void *run_host(Run *r, size_t bytes)
{
    void *p = calloc(bytes + 1, 1);
    hold(r, p, bytes, true);
    return p;
}

static void give_back(Run *r, size_t n_held)
{
    while (r->n_held > n_held) {
        const Held *h = &r->held[--r->n_held];
        if (h->of_host) free(h->p);
        else r->b->release(r->b, h->p, h->bytes);
    }
}

void run_drop(Run *r, size_t n_held)
{
    run_settle(r);
    give_back(r, n_held);
}

void run_end(Run *r)
{
    Error err = { 0 };
    for (int i = 0; i < 2; i++) r->fork[i]->sync(r->fork[i], &err);
    give_back(r, 0);
    r->b = r->fork[0];
}

/* ---- order ---- */

void run_settle(Run *r)
{
    Error err = { 0 };
    if (r->b->sync(r->b, &err) != ST_OK) run_fail(r, "%s", err.text);
}

void run_use(Run *r, int32_t fork)
{
    run_settle(r);
    r->b = r->fork[fork];
}

void run_fetch(Run *r, void *host, const void *at, size_t bytes)
{
    r->b->copy_out(r->b, host, at, bytes);
    run_settle(r);
}

/* ---- comparisons ---- */

static void note(Notes *n, const void *bytes, size_t more)
{
    while (n->n + more > n->cap) {
        n->cap = n->cap ? 2 * n->cap : 1 << 20;
        n->byte = realloc(n->byte, n->cap);
        if (!n->byte) abort();
    }
    memcpy(n->byte + n->n, bytes, more);
    n->n += more;
}

/* The reference's bytes at this place; NULL: this run is the reference. */
static const uint8_t *noted(Run *r, const char *what, const void *got, size_t bytes)
{
    if (r->reference) {
        note(r->notes, got, bytes);
        return NULL;
    }
    if (bytes > r->notes->n - r->read) run_fail(r, "%s: the reference gave less", what);
    r->read += bytes;
    return r->notes->byte + r->read - bytes;
}

void run_give(Run *r, const char *what, const float *got, int64_t n)
{
    const uint8_t *want = noted(r, what, got, sizeof *got * (size_t) n);
    for (int64_t i = 0; want && i < n; i++) {
        float w;
        memcpy(&w, want + sizeof w * (size_t) i, sizeof w);
        run_same(r, what, got + i, &w, 1);
    }
}

void run_give_bytes(Run *r, const char *what, const void *got, size_t bytes)
{
    const uint8_t *want = noted(r, what, got, bytes), *have = got;
    for (size_t i = 0; want && i < bytes; i++)
        if (have[i] != want[i]) run_fail(r, "%s: byte %zu is %d, the reference's is %d", what, i, have[i], want[i]);
}

void run_share(Run *r, void *host, size_t bytes)
{
    const uint8_t *shared = noted(r, "what is shared", host, bytes);
    if (shared) memcpy(host, shared, bytes);
}

void run_same(const Run *r, const char *what, const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0 && !(isnan(got[i]) && isnan(want[i])))
            run_fail(r, "%s: value %lld is %a, expected %a", what, (long long) i, (double) got[i], (double) want[i]);
}

void run_expect(const Run *r, const char *what, const float *got, const double *want, int64_t n, double tolerance)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * (1 + fabs(want[i]))))
            run_fail(r, "%s: value %lld is %.9g, expected %.9g", what, (long long) i, (double) got[i], want[i]);
}

/* ---- matrices ---- */

static size_t mat_bytes(int32_t rows, int32_t cols) { return sizeof(float) * (size_t) rows * (size_t) cols; }

Mat mat_of(Run *r, int32_t rows, int32_t cols, float *h)
{
    return (Mat) { h_tensor(T_F32, rows, cols, run_memory(r, mat_bytes(rows, cols), h)), h };
}

Mat mat_make(Run *r, int32_t rows, int32_t cols, uint64_t key, float by)
{
    float *h = run_host(r, mat_bytes(rows, cols));
    h_fill(h, (int64_t) rows * cols, key, by);
    return mat_of(r, rows, cols, h);
}

Tensor mat_ids(Run *r, int32_t rows, int32_t cols, const int32_t *id)
{
    return h_tensor(T_I32, rows, cols, run_memory(r, mat_bytes(rows, cols), id));
}

Tensor mat_blank(Run *r, int32_t rows, int32_t cols)
{
    Tensor t = h_tensor(T_F32, rows, cols, run_memory(r, mat_bytes(rows, cols), NULL));
    r->b->fill(r->b, t.data, 0xff, mat_bytes(rows, cols));
    return t;
}

float *mat_get(Run *r, const Tensor *t)
{
    float *h = run_host(r, mat_bytes(t->rows, t->cols));
    run_fetch(r, h, t->data, mat_bytes(t->rows, t->cols));
    return h;
}
