#include "programs/hub/hub_choose.h"

#include <stdlib.h>
#include <string.h>

#include "base/path.h"
#include "programs/hub/hub_fetch.h"
#include "programs/program.h"

static const HubFile *find(const HubRepo *repo, const char *path)
{
    for (size_t i = 0; i < repo->n; i++)
        if (strcmp(repo->at[i].path, path) == 0) return &repo->at[i];
    return NULL;
}

static void add(HubChoice *c, const HubFile *f)
{
    c->at[c->n++] = f;
    c->bytes += f->bytes;
}

/* All parts of the file, or only itself. Returns false if a part is missing. */
static bool add_parts(HubChoice *c, const HubRepo *repo, const HubFile *f)
{
    int32_t part, parts;
    char name[600];
    if (!hub_split(f->path, &part, &parts)) {
        add(c, f);
        return true;
    }
    for (int32_t i = 1; i <= parts; i++) {
        const HubFile *p = hub_split_name(name, sizeof name, f->path, i) ? find(repo, name) : NULL;
        if (!p || c->n >= repo->n) return false;
        add(c, p);
    }
    return true;
}

/* A drafter's folder: what the loader reads of it, config.json first. */
static bool add_folder(HubChoice *c, const HubRepo *repo)
{
    const HubFile *config = find(repo, "config.json");
    bool weights = false;
    for (size_t i = 0; i < repo->n; i++) weights |= has_suffix(repo->at[i].path, ".safetensors");
    if (!config || !weights) return false;
    add(c, config);
    for (size_t i = 0; i < repo->n; i++) {
        const HubFile *f = &repo->at[i];
        if (strchr(f->path, '/')) continue;
        if (has_suffix(f->path, ".safetensors") || has_suffix(f->path, ".safetensors.index.json")) add(c, f);
    }
    c->first = config;
    c->folder = true;
    return true;
}

static int by_bytes(const void *a, const void *b)
{
    const HubVariant *x = a, *y = b;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static uint64_t bytes_of(const HubRepo *repo, const HubFile *f)
{
    int32_t part, parts;
    char name[600];
    uint64_t sum = 0;
    if (!hub_split(f->path, &part, &parts)) return f->bytes;
    for (size_t i = 0; i < (size_t) parts && i < repo->n; i++) {
        const HubFile *p = hub_split_name(name, sizeof name, f->path, (int32_t) i + 1) ? find(repo, name) : NULL;
        sum += p ? p->bytes : 0;
    }
    return sum;
}

bool hub_variants(HubVariants *out, const HubRepo *repo, HubKind kind)
{
    int32_t part, parts;
    *out = (HubVariants) { .at = calloc(repo->n + 1, sizeof *out->at) };
    for (size_t i = 0; out->at && i < repo->n; i++) {
        const HubFile *f = &repo->at[i];
        if (hub_kind(f->path) != kind || (hub_split(f->path, &part, &parts) && part != 1)) continue;
        HubVariant *v = &out->at[out->n++];
        hub_quant(v->quant, f->path);
        v->file = f->path;
        v->bytes = bytes_of(repo, f);
    }
    if (out->n > 0) qsort(out->at, out->n, sizeof *out->at, by_bytes);
    return out->at != NULL;
}

/* "Q4_K_M (4.97 GB), ..." of targets and drafters, as many as fit. */
static void list_variants(char *out, size_t cap, const HubRepo *repo)
{
    size_t n = 0;
    out[0] = 0;
    for (HubKind kind = HUB_TARGET; kind <= HUB_DRAFTER; kind++) {
        HubVariants v;
        if (!hub_variants(&v, repo, kind)) return;
        for (size_t i = 0; i < v.n && n + 120 < cap; i++) {
            char size[32];
            bool named = kind == HUB_DRAFTER || !v.at[i].quant[0];
            hub_size(size, v.at[i].bytes);
            n += (size_t) snprintf(out + n, cap - n, "%s%.80s (%s)", n ? ", " : "",
                                   named ? v.at[i].file : v.at[i].quant, size);
        }
        free(v.at);
    }
}

static bool nothing(const HubEnv *e, const HubRepo *repo)
{
    char list[1500];
    const char *name = repo->name.repo, *quant = repo->name.quant;
    list_variants(list, sizeof list, repo);
    if (!list[0])
        return complain(e->o, "%s: has no GGUF file, expected a repository of converted files (often called "
                        "%s-GGUF)", name, name) == 0;
    return complain(e->o, "%s: has no %s, expected one of: %s", name, *quant ? quant : "model", list) == 0;
}

bool hub_choose(HubChoice *out, const HubEnv *e, const HubRepo *repo, HubKind wish)
{
    int32_t best = -1;
    const HubFile *first = NULL;
    *out = (HubChoice) { .at = calloc(repo->n + 1, sizeof *out->at) };
    if (!out->at) return complain(e->o, "%s: out of memory", repo->name.repo) == 0;
    for (size_t i = 0; i < repo->n; i++) {
        int32_t rank = hub_rank(repo->at[i].path, repo->name.quant, wish);
        if (rank < 0 || (first && rank >= best)) continue;
        first = &repo->at[i];
        best = rank;
    }
    out->first = first;
    if (!first) {
        if (!repo->name.quant[0] && add_folder(out, repo)) return true;
        return nothing(e, repo);
    }
    if (add_parts(out, repo, first)) return true;
    return complain(e->o, "%s: %s is a part of a split file, and others are missing there", repo->name.repo,
                    first->path) == 0;
}
