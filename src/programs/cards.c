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

bool card_listed(const char *list, const char *card)
{
    const size_t n = strcspn(card, ":");
    if (strncmp(list, card, n) != 0 || list[n] != ':' || card[n] != ':') return false;
    for (const char *at = list + n; *at; at += 1 + strcspn(at + 1, "+"))
        if (strcspn(at + 1, "+") == strlen(card + n + 1) && strncmp(at + 1, card + n + 1, strlen(card + n + 1)) == 0)
            return true;
    return false;
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
static void key_of(char out[KEPT_KEY], const Program *p, const rt_card *c)
{
    const Options *o = p->o;
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

/* Whether a card may be used; where not, a note says why. RT_ECANCEL: that is not known, the check was interrupted. */
static rt_status check(bool *good, Program *p, const rt_card *c, rt_error *e)
{
    char key[KEPT_KEY], text[KEPT_TEXT];
    key_of(key, p, c);
    if ((*good = kept_get(text, &file, key))) return RT_OK;
    note(p->o, "checking once whether %s computes what the CPU computes (--backend cuda leaves it out)", c->name);
    rt_options ro = program_options(p, NULL, 0);
    ro.backend = c->backend;
    const rt_status st = rt_card_check(&ro, e);
    program_end_bar(p);
    if (st == RT_ECANCEL) {
        snprintf(e->text, sizeof e->text, "interrupted while checking %s", c->name);
        return st;
    }
    *good = st == RT_OK;
    snprintf(text, sizeof text, "%s, driver %s: %.500s", c->name, c->driver, base_name(p->files.model));
    if (*good) kept_put(&file, key, text);
    else if (st == RT_EBACKEND) card_unused(p->o, c->name, e->text);
    else note(p->o, "%s could not be checked and is not used (--backend cuda uses it all the same): %s", c->name,
              e->text);
    return RT_OK;
}

bool card_check(Program *p)
{
    bool good;
    rt_error e;
    if (!p->o->card.name[0]) return true;
    if (check(&good, p, &p->o->card, &e) != RT_OK) return complain(p->o, "%s", e.text) == 0;
    p->no_card = !good;
    return true;
}

rt_status cards_list(Program *p, rt_error *e)
{
    rt_card c;
    rt_error none;
    int32_t listed = 1, i = (int32_t) strtol(strchr(p->o->card.backend, ':') + 1, NULL, 10);
    snprintf(p->backend, sizeof p->backend, "%s", p->o->card.backend);
    while (listed < RT_CARDS_MAX && rt_card_at(&c, "cuda", ++i, true, &none) == RT_OK) {
        bool good = !c.why[0];
        if (good && !p->plans && check(&good, p, &c, e) != RT_OK) return RT_ECANCEL;
        if (!good) continue;
        const size_t n = strlen(p->backend);
        snprintf(p->backend + n, sizeof p->backend - n, "+%d", i);
        listed++;
    }
    return RT_OK;
}
