/* ratoon pull: brings a model of a hub to this machine, into the cache that other programs use too, and the drafter
 * that was published for it if that is wanted. */
#include <string.h>
#include <unistd.h>

#include "programs/drafters.h"
#include "programs/hub/hub.h"
#include "programs/hub/hub_fetch.h"
#include "programs/model_facts.h"
#include "programs/model_name.h"
#include "programs/program.h"

typedef struct {
    Options   o;
    HubName   name;
    Drafters *table;
    char      model[HUB_PATH], draft[HUB_PATH];    /* what was fetched; "": nothing */
    char      wanted[300];                         /* the drafter to fetch, as pull takes it; "": none */
    bool      known;                               /* the table has a drafter for the model */
} Pull;

/* ---- the offer ---- */

/* Asks at a terminal; elsewhere it says how to get the drafter. */
static bool agreed(const Options *o, const PublishedDrafter *d, const char *name)
{
    char size[32], line[16] = "", gate[300] = "";
    hub_size(size, d->bytes);
    if (d->gated) snprintf(gate, sizeof gate, "; accept its terms first: https://huggingface.co/%.200s", d->repo);
    if (o->yes) return true;
    if (o->quiet || isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1) {
        note(o, "the drafter published for it: ratoon pull %s (%s more%s)", name, size, gate);
        return false;
    }
    log_line("with its drafter %s, %s more%s? It makes answers faster and changes no word of them. [Y/n]", name, size,
             gate);
    return line_typed(line, sizeof line) && line[0] != 'n' && line[0] != 'N';
}

static void offer(Pull *p, const DraftTarget *t)
{
    PublishedDrafter d;
    char name[300], here[HUB_PATH];
    if (p->known || drafters_for_target(p->table, &d, 1, t) == 0) return;
    p->known = true;
    drafter_name(name, sizeof name, &d);
    if (!hub_find_local(here, name, HUB_DRAFTER) && agreed(&p->o, &d, name)) strcpy(p->wanted, name);
}

/* The repository's name may say enough, so that the question comes before the download. */
static void offer_by_name(void *ud)
{
    Pull *p = ud;
    offer(p, &(DraftTarget) { .names = { strchr(p->name.repo, '/') + 1, p->name.quant } });
}

static void offer_by_header(Pull *p)
{
    ModelFacts f;
    if (model_facts(&f, p->model, NULL) != ST_OK || f.kind != MODEL_TARGET) return;
    offer(p, &(DraftTarget) { f.arch, f.layers, f.width, { base_name(p->model), f.name } });
}

/* ---- fetching ---- */

static bool fetch_drafter(Pull *p)
{
    ModelFacts d, t;
    Error err;
    char why[160];
    if (!hub_pull(p->draft, &p->o, p->wanted, HUB_DRAFTER, NULL, NULL)) return false;
    if (model_facts(&d, p->draft, &err) != ST_OK) return complain(&p->o, "%s", err.text) == 0;
    if (model_facts(&t, p->model, NULL) == ST_OK && !model_facts_fit(why, &d, &t))
        return complain(&p->o, "%s does not fit this model: %s", p->wanted, why) == 0;
    return true;
}

static bool fetch(Pull *p)
{
    bool drafter = name_says_drafter(p->name.repo) || hub_kind(p->name.quant) == HUB_DRAFTER;
    Error err;
    Status st = drafter ? ST_END : drafters_open(&p->table, &err);
    if (st != ST_OK && st != ST_END) note(&p->o, "%s", err.text);
    if (!hub_pull(p->model, &p->o, p->o.word[0], drafter ? HUB_DRAFTER : HUB_TARGET, offer_by_name, p)) return false;
    offer_by_header(p);
    return interrupts == 0 && (!p->wanted[0] || fetch_drafter(p));
}

/* What was fetched, also if the drafter could not be. */
static bool print_paths(const Pull *p)
{
    if (p->o.json)
        return json_print(&p->o, json_pack("{s:o s:o*}", "path", json_text(p->model, strlen(p->model)), "draft",
                                           *p->draft ? json_text(p->draft, strlen(p->draft)) : NULL));
    puts(p->model);
    if (*p->draft) puts(p->draft);
    return output_done(&p->o) == EXIT_FINE;
}

int cmd_pull(int argc, char **argv)
{
    Pull p = { 0 };
    Error err;
    int status;
    if (!options_read(&p.o, argc, argv, &status)) return status;
    if (p.o.n_words != 1) {
        complain(&p.o, "expected ORG/NAME[:QUANT], as in ratoon pull unsloth/Qwen3-8B-GGUF:Q4_K_M");
        return EXIT_USAGE;
    }
    if (hub_name_read(&p.name, p.o.word[0], &err) != ST_OK) return complain(&p.o, "%s", err.text);
    hear_interrupts();
    bool good = fetch(&p);
    if (p.model[0] && (good || !p.o.json)) good &= print_paths(&p);
    drafters_close(p.table);
    return good ? EXIT_FINE : interrupts ? EXIT_INTERRUPTED : EXIT_FAILED;
}
