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

void card_unused(const Options *o, const char *name, const char *ends, const char *why)
{
    note(o, "%s is not used (--backend %s ends this note): %s", name, ends, why);
}

static int32_t number_of(const rt_card *c) { return (int32_t) strtol(strchr(c->backend, ':') + 1, NULL, 10); }

static uint32_t bit_of(const rt_card *c) { return number_of(c) < 32 ? 1u << number_of(c) : 0; }

/* Whether a card may be used; where not, a note says why. RT_ECANCEL: that is not known, the check was interrupted. as:
 * for --backend, takes the card without a check; ends: leaves it alone. */
static rt_status check(bool *good, Program *p, const rt_card *c, const char *as, const char *ends, rt_error *e)
{
    char key[KEPT_KEY], text[KEPT_TEXT], name[192];
    snprintf(name, sizeof name, number_of(c) ? "%s (%s)" : "%s", c->name, c->backend);
    key_of(key, p, c);
    *good = kept_get(text, &file, key);
    if (!*good) {
        note(p->o, "checking once whether %s computes what the CPU computes (--backend %s leaves it out)", name, as);
        rt_options ro = program_options(p, NULL, 0);
        ro.backend = c->backend;
        const rt_status st = rt_card_check(&ro, e);
        program_end_bar(p);
        if (st == RT_ECANCEL) {
            snprintf(e->text, sizeof e->text, "interrupted while checking %s", name);
            return st;
        }
        *good = st == RT_OK;
        snprintf(text, sizeof text, "%s, driver %s: %.500s", c->name, c->driver, base_name(p->files.model));
        if (*good) kept_put(&file, key, text);
        else if (st == RT_EBACKEND) card_unused(p->o, name, ends, e->text);
        else note(p->o, "%s could not be checked and is not used (--backend %s uses it all the same): %s", name, as,
                  e->text);
        if (st == RT_EBACKEND) p->failed |= bit_of(c);
    }
    if (*good) p->passed |= bit_of(c);
    return RT_OK;
}

/* The first card behind the i-th that can be used. */
static bool next_card(rt_card *c, int32_t i)
{
    rt_error none;
    rt_status st;
    do st = rt_card_at(c, "cuda", ++i, true, &none);
    while (st == RT_OK && c->why[0]);
    return st == RT_OK;
}

bool card_check(Program *p)
{
    bool good = true;
    rt_error e;
    rt_card next = p->card;
    if (!p->card.name[0]) return true;
    do {
        p->card = next;
        const char *as = number_of(&next) ? next.backend : "cuda";
        if (check(&good, p, &p->card, as, "cpu", &e) != RT_OK) return complain(p->o, "%s", e.text) == 0;
    } while (!good && next_card(&next, number_of(&next)));
    p->no_card = !good;
    return true;
}

rt_status cards_list(Program *p, rt_error *e)
{
    enum { MOST = sizeof p->place.backend - 16 };              /* eight cards of up to 1,023 */
    char *list = p->place.backend, with[sizeof p->place.backend];
    rt_card c = p->card;
    snprintf(list, sizeof p->place.backend, "%s", c.backend);
    for (int32_t n = 1; n < RT_CARDS_MAX && next_card(&c, number_of(&c)); ) {
        bool good = true;
        snprintf(with, sizeof with, "%.*s+%d", (int) MOST, list, number_of(&c));
        if (!p->plans && check(&good, p, &c, with, list, e) != RT_OK) return RT_ECANCEL;
        if (!good) continue;
        memcpy(list, with, sizeof with);
        n++;
    }
    return RT_OK;
}
