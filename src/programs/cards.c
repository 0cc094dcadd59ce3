#include "programs/cards.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/path.h"
#include "programs/kept.h"

static const KeptFile file = { "cards", "ratoon cards 1" };

bool card_backend(const char *backend)
{
    return backend && strcmp(backend, "auto") != 0 && strncmp(backend, "cpu", 3) != 0;
}

bool card_named(rt_card *out, const char *backend)
{
    rt_error e;
    const char *which = backend ? strchr(backend, ':') : NULL;
    if (!backend || strncmp(backend, "cuda", 4) != 0) return false;
    return rt_card_at(out, "cuda", which ? (int32_t) strtol(which + 1, NULL, 10) : 0, false, &e) == RT_OK;
}

/* A file as it is now. */
static void add_file(char *out, size_t cap, const char *path)
{
    struct stat st;
    const size_t n = strlen(out);
    if (stat(path, &st) == 0)
        snprintf(out + n, cap - n, "|%.255s %lld %lld.%09ld", base_name(path), (long long) st.st_size,
                 (long long) st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
}

/* Everything that what the card computes depends on. */
static void key_of(char out[KEPT_KEY], const Program *p)
{
    const Options *o = p->o;
    const rt_card *c = &o->card;
    char all[1024];
    snprintf(all, sizeof all, "%s|%s %s|driver %s|%s %s %s|%d", rt_version(), c->name, c->level, c->driver,
             o->kv_k ? o->kv_k : "", o->kv_v ? o->kv_v : "", o->weight_type ? o->weight_type : "", o->fa_window);
    add_file(all, sizeof all, "/proc/self/exe");
    add_file(all, sizeof all, p->files.model);
    kept_key(out, all);
}

void card_unused(const Options *o, const char *name, const char *why)
{
    note(o, "%s is not used (--backend cpu ends this note): %s", name, why);
}

bool card_check(Program *p)
{
    const rt_card *c = &p->o->card;
    char key[KEPT_KEY], text[KEPT_TEXT];
    rt_error e;
    if (!c->name[0]) return true;
    key_of(key, p);
    if (kept_get(text, &file, key)) return true;
    note(p->o, "checking once whether %s computes what the CPU computes (--backend cuda leaves it out)", c->name);
    const rt_options ro = program_options(p, NULL, 0);
    const rt_status st = rt_card_check(&ro, &e);
    program_end_bar(p);
    if (st == RT_ECANCEL) return complain(p->o, "interrupted while checking %s", c->name) == 0;
    snprintf(text, sizeof text, "%s, driver %s: %.500s", c->name, c->driver, base_name(p->files.model));
    if (st == RT_OK) {
        kept_put(&file, key, text);
        return true;
    }
    if (st == RT_EBACKEND) card_unused(p->o, c->name, e.text);
    else note(p->o, "%s could not be checked and is not used (--backend cuda uses it all the same): %s", c->name,
              e.text);
    p->no_card = true;
    return true;
}
