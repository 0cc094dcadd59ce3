/* registry.c - the available backends. Each is a folder that ends in one BackendEntry, listed here. */
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"

extern const BackendEntry backend_cpu, backend_cuda;

/* In the order in which "auto" tries them. */
static const BackendEntry *const built_in[] = { &backend_cpu, &backend_cuda };
enum { BUILT_IN = sizeof built_in / sizeof *built_in };

/* The backends that a statically linked program adds, ended by NULL: the tests' device. */
extern const BackendEntry *const backends_linked[] __attribute__((weak));

/* NULL past the last. */
static const BackendEntry *entry(int32_t i)
{
    if (i < BUILT_IN) return built_in[i];
    return backends_linked ? backends_linked[i - BUILT_IN] : NULL;
}

static void list_names(char *out, size_t cap)
{
    *out = 0;
    for (int32_t i = 0; entry(i); i++) {
        size_t n = strlen(out);
        snprintf(out + n, cap - n, ", %s", entry(i)->name);
    }
}

Status backend_card(BackendCard *out, const char *backend, int32_t i, bool open, Error *err)
{
    for (int32_t k = 0; entry(k); k++)
        if (strcmp(entry(k)->name, backend) == 0 && entry(k)->card) return entry(k)->card(out, i, open, err);
    return fail(err, ST_UNSUPPORTED, "backend: '%s' has no cards", backend);
}

void backend_driver(const char *backend, const char *library)
{
    for (int32_t k = 0; entry(k); k++)
        if (strcmp(entry(k)->name, backend) == 0 && entry(k)->driver) entry(k)->driver(library);
}

Status backend_open(Backend **out, const char *text, const BackendOptions *o, Error *err)
{
    *out = NULL;
    const char *colon = strchr(text, ':');
    size_t n = colon ? (size_t) (colon - text) : strlen(text);
    bool any = n == 4 && memcmp(text, "auto", 4) == 0 && !colon;
    for (int32_t i = 0; entry(i); i++) {
        const BackendEntry *e = entry(i);
        bool named = strlen(e->name) == n && memcmp(e->name, text, n) == 0;
        if (named || (any && e->there())) return e->open(out, colon ? colon + 1 : NULL, o, err);
    }
    char names[256];
    list_names(names, sizeof names);
    return fail(err, ST_UNSUPPORTED, "backend: '%s', expected auto%s, or one of them with its own words behind a colon "
                "(cpu:LEVEL)", text, names);
}
