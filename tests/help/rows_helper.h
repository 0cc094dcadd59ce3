/* rows_helper.h - made-up numbers for tests: values, trees and paths as functions of a seed, the same on every machine
 * and in every run. */
#ifndef RATOON_TESTS_HELP_ROWS_HELPER_H
#define RATOON_TESTS_HELP_ROWS_HELPER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"

static inline uint64_t h_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Uniform in [0, n). */
static inline int32_t h_pick(uint64_t *seed, int32_t n)
{
    *seed = h_mix(*seed);
    return (int32_t) (*seed % (uint64_t) n);
}

/* n values in about [-1, 1] times `by`, a function of key. */
static inline void h_fill(float *y, int64_t n, uint64_t key, float by)
{
    uint64_t s = h_mix(key);
    for (int64_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        y[i] = (float) (int32_t) (s >> 32) * 0x1p-31f * by;
    }
}

static inline float *h_floats(int64_t n, uint64_t key, float by)
{
    float *y = malloc(sizeof(float) * (size_t) (n + 1));
    if (!y) abort();
    h_fill(y, n, key, by);
    return y;
}

static inline Tensor h_tensor(Type type, int32_t rows, int32_t cols, void *data)
{
    return (Tensor) { .type = type, .rows = rows, .cols = cols, .data = data };
}

/* A random tree of n rows in any order with parent[i] < i, few branches or many. */
static inline void h_tree(int32_t *parent, int32_t n, uint64_t *seed)
{
    int32_t style = h_pick(seed, 3);
    parent[0] = -1;
    for (int32_t i = 1; i < n; i++)
        parent[i] = style == 0 ? h_pick(seed, i) : h_pick(seed, 3) ? i - 1 : i - 1 - h_pick(seed, i < 6 ? i : 6);
}

/* Rows from the root to row; returns how many. */
static inline int32_t h_path(int32_t *path, const int32_t *parent, int32_t row)
{
    int32_t n = 0;
    for (int32_t i = row; i >= 0; i = parent[i]) n++;
    for (int32_t i = row, t = n; i >= 0; i = parent[i]) path[--t] = i;
    return n;
}

#endif
