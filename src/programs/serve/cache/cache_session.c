/* cache_session.c - saving sessions to the cache, and loading them. */
#include "programs/serve/cache/cache_points.h"

bool cache_save(Cache *c, const char *identity, rt_step *st, rt_session *s, int32_t at, CacheKind kind,
                const void *note, size_t n_note)
{
    const int32_t *text;
    size_t n = rt_save_bytes(s, at);
    if (n == 0 || rt_session_text(s, &text) < (size_t) at) return false;
    CacheEntry *e = cache_begin(c, identity, text, (size_t) at, n, kind, note, n_note);
    if (!e) return false;
    bool saved = rt_save(st, s, at, cache_image(e), n) == RT_OK;
    if (saved) cache_commit(c, e);
    else cache_abandon(c, e);
    return saved;
}

CacheResume cache_resume(Cache *c, const char *identity, rt_session *s, const int32_t *t, size_t n, bool disk,
                         void (*note)(void *ud, const void *bytes, size_t n), void *ud)
{
    CacheHit hit;
    const int32_t *text;
    size_t n_text = rt_session_text(s, &text);
    CacheResume r = { .tokens = rt_resumable(s, t, n), .differs = cache_points_common(text, n_text, t, n) };
    int32_t common = cache_common(c, identity, t, n);
    if (common > r.differs) r.differs = common;
    r.from = r.tokens > 0 ? CACHE_LIVE : CACHE_NONE;
    while (n > 1 && cache_find(c, &hit, identity, t, n - 1, r.tokens + CACHE_GAIN - 1, disk)) {
        rt_status code = rt_load(s, hit.image, hit.n);
        if (code == RT_OK) {
            if (note) note(ud, hit.note, hit.n_note);
            r.tokens = hit.tokens;
            r.from = hit.from;
            cache_release(c, &hit);
            return r;
        }
        if (code == RT_EFORMAT || code == RT_EUNSUPPORTED) {
            cache_reject(c, &hit, rt_session_error(s));
            continue;
        }
        cache_release(c, &hit);                    /* too long for this session's context, or the device failed */
        r.tokens = rt_resumable(s, t, n);
        r.from = r.tokens > 0 ? CACHE_LIVE : CACHE_NONE;
        return r;
    }
    return r;
}
