/* ratoon models: lists the models on this machine, wherever they came from, and removes those of the Hugging Face
 * cache. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "programs/draft_find.h"
#include "programs/hub/hub_cache.h"
#include "programs/hub/hub_fetch.h"
#include "programs/hub/hub_remove.h"
#include "programs/program.h"

/* What a model is, by its header where that can be read, else by its name; drafter "": it has none. */
typedef struct { char name[1200], size[32], drafter[512]; const char *kind; } Line;

static void describe(Line *out, const HubLocal *x)
{
    static const char *const by_header[] = { "model", "drafter", "projector" },
                      *const by_name[] = { "model", "drafter", "other" };
    ModelFacts facts;
    DraftFound found;
    hub_local_name(out->name, sizeof out->name, x);
    hub_size(out->size, x->bytes);
    out->drafter[0] = 0;
    if (model_facts(&facts, x->path, NULL) != ST_OK) {
        out->kind = by_name[x->source == HUB_OLLAMA ? HUB_TARGET : x->folder ? HUB_DRAFTER : hub_kind(x->name)];
        return;
    }
    out->kind = by_header[facts.kind];
    if (facts.kind != MODEL_TARGET) return;
    draft_find(&found, x->path, &facts);
    if (found.path[0]) snprintf(out->drafter, sizeof out->drafter, "%s", found.name);
}

/* The same file in an older snapshot, which is shown once. */
static bool again(const HubLocals *l, size_t i)
{
    const HubLocal *x = &l->at[i], *before = x - 1;
    return i > 0 && x->source == before->source && strcasecmp(x->repo, before->repo) == 0 &&
           strcmp(x->name, before->name) == 0;
}

static json_t *line_json(const HubLocal *x)
{
    Line line;
    describe(&line, x);
    return json_pack("{s:o s:s s:I s:s s:o s:o*}", "name", json_text(line.name, strlen(line.name)), "kind", line.kind,
                     "bytes", (json_int_t) x->bytes, "where", hub_source_name(x->source), "path",
                     json_text(x->path, strlen(x->path)), "drafter",
                     line.drafter[0] ? json_text(line.drafter, strlen(line.drafter)) : NULL);
}

static int list_json(const Options *o, const HubLocals *l)
{
    json_t *list = json_array();
    for (size_t i = 0; i < l->n; i++)
        if (!again(l, i)) json_array_append_new(list, line_json(&l->at[i]));
    return json_print(o, json_pack("{s:o}", "models", list)) ? EXIT_FINE : EXIT_FAILED;
}

static int list_lines(const Options *o, const HubLocals *l)
{
    Line line;
    int width = 20;
    for (size_t i = 0; i < l->n; i++) {
        hub_local_name(line.name, sizeof line.name, &l->at[i]);
        int n = (int) strlen(line.name);
        if (n > width) width = n < 60 ? n : 60;
    }
    for (size_t i = 0; i < l->n; i++) {
        if (again(l, i)) continue;
        describe(&line, &l->at[i]);
        line_clean(line.name);
        line_clean(line.drafter);
        printf("%-*s  %9s  %-9s  %s%s%s\n", width, line.name, line.size, line.kind,
               hub_source_name(l->at[i].source), line.drafter[0] ? "; drafter " : "", line.drafter);
    }
    if (l->n == 0) note(o, "there are no models yet; ratoon pull ORG/NAME fetches one");
    return output_done(o);
}

static int list(const Options *o)
{
    HubLocals l;
    int status = hub_locals(&l) ? EXIT_FINE : complain(o, "out of memory");
    if (status == EXIT_FINE) status = o->json ? list_json(o, &l) : list_lines(o, &l);
    hub_locals_free(&l);
    return status;
}

/* Asks at a terminal; elsewhere only --yes will do. */
static bool agreed(const Options *o, const HubRemoval *r, const char *size)
{
    char line[16] = "";
    if (o->yes) return true;
    if (isatty(STDIN_FILENO) != 1)
        return complain(o, "%s: give --yes to remove it without being asked", r->name) == 0;
    log_line("%s: remove it from the Hugging Face cache? %s become free. [y/N]", r->name, size);
    return fgets(line, sizeof line, stdin) && (line[0] == 'y' || line[0] == 'Y');
}

static int take_out(const Options *o, const char *name)
{
    HubRemoval r;
    char size[32];
    int status = EXIT_FAILED;
    if (hub_removal(&r, o, name)) {
        hub_size(size, r.bytes);
        if (agreed(o, &r, size) && hub_removal_do(&r, o)) {
            note(o, "%s: removed, %s are free again", r.name, size);
            status = EXIT_FINE;
        }
    }
    hub_removal_free(&r);
    return status;
}

int cmd_models(int argc, char **argv)
{
    Options o;
    int status;
    if (!options_read(&o, argc, argv, &status)) return status;
    if (o.n_words == 0) return list(&o);
    if (o.n_words == 2 && (strcmp(o.word[0], "rm") == 0 || strcmp(o.word[0], "remove") == 0))
        return take_out(&o, o.word[1]);
    complain(&o, "expected nothing, or rm NAME");
    return EXIT_USAGE;
}
