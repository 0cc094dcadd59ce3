#include "programs/serve/cache/cache_points.h"

/* Inserts in ascending order, each point once, with its most valuable kind. */
static int32_t put(CachePoint *list, int32_t n, CachePoint p)
{
    int32_t i = n;
    while (i > 0 && list[i - 1].at > p.at) i--;
    if (i > 0 && list[i - 1].at == p.at) {
        if (p.kind < list[i - 1].kind) list[i - 1] = p;
        return n;
    }
    if (n == RT_MARKS) {                           /* drop the least valuable, the first of equals */
        int32_t least = 0;
        for (int32_t j = 1; j < n; j++)
            if (list[j].kind > list[least].kind) least = j;
        if (list[least].kind < p.kind) return n;
        for (int32_t j = least; j + 1 < n; j++) list[j] = list[j + 1];
        n--;
        i -= least < i;
    }
    for (int32_t j = n; j > i; j--) list[j] = list[j - 1];
    list[i] = p;
    return n + 1;
}

static bool near_another(const CachePoint *list, int32_t n, int32_t at, int32_t n_prompt, int32_t least)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i].kind != CACHE_INTERVAL && at - list[i].at < least && list[i].at - at < least) return true;
    return n_prompt - 1 - at < least;
}

int32_t cache_points_of(CachePoint out[RT_MARKS], const CachePointsIn *in)
{
    int32_t n = 0, from = in->held > in->least - 1 ? in->held + 1 : in->least, to = in->n_prompt - 1;
    if (from < 1) from = 1;
    if (in->shared >= from && in->shared <= to) n = put(out, n, (CachePoint) { in->shared, CACHE_SHARED, true });
    for (int32_t i = 0; i < in->n_fixed; i++)
        if (in->fixed[i] >= from && in->fixed[i] <= to)
            n = put(out, n, (CachePoint) { in->fixed[i], CACHE_FIXED, true });
    if (in->history >= from && in->history <= to) n = put(out, n, (CachePoint) { in->history, CACHE_HISTORY, false });
    if (in->kept >= from && in->kept < in->history) n = put(out, n, (CachePoint) { in->kept, CACHE_HISTORY, false });
    if (in->interval < 1) return n;
    for (int64_t at = ((int64_t) from + in->interval - 1) / in->interval * in->interval; at <= to; at += in->interval)
        if (!near_another(out, n, (int32_t) at, in->n_prompt, in->least))
            n = put(out, n, (CachePoint) { (int32_t) at, CACHE_INTERVAL, false });
    return n;
}

int32_t cache_points_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    size_t n = n_a < n_b ? n_a : n_b, same = 0;
    while (same < n && a[same] == b[same]) same++;
    return (int32_t) same;
}
