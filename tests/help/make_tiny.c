/* make_tiny.c - writes the models of tests/help/tiny.h into a folder.
 *   make_tiny NAME[:TYPE]|all OUTDIR      NAME.gguf; a drafter becomes NAME-luce.gguf, NAME-llama.gguf and the
 *                                         folder NAME-hf. TYPE: of weights, or a recipe of a target ("Q4_K_M")
 *   make_tiny list                        all names */
#include "tiny.h"

#include <stdio.h>
#include <string.h>

static int failed(const Error *err)
{
    fprintf(stderr, "make_tiny: %s\n", err->text);
    return 1;
}

static int unknown_type(const char *name)
{
    fprintf(stderr, "make_tiny: %s: unknown weight type\n", name);
    return 2;
}

static int make_model(TinyModel m, const char *label, const char *folder)
{
    char  path[4096];
    Error err;
    snprintf(path, sizeof path, "%s/%s.gguf", folder, label);
    return tiny_model_write(&m, path, &err) == ST_OK ? 0 : failed(&err);
}

static int make_draft(TinyDraft d, const char *label, const char *folder)
{
    static const struct { TinyLayout layout; const char *suffix; } layouts[] = {
        {TINY_HF, "-hf"}, {TINY_LUCE, "-luce.gguf"}, {TINY_LLAMA_CPP, "-llama.gguf"}};
    char  path[4096];
    Error err;
    for (size_t i = 0; i < 3; i++) {
        if (layouts[i].layout == TINY_HF && d.type != T_F32 && d.type != T_BF16) continue;
        snprintf(path, sizeof path, "%s/%s%s", folder, label, layouts[i].suffix);
        if (tiny_draft_write(&d, layouts[i].layout, path, &err) != ST_OK) return failed(&err);
    }
    return 0;
}

static int make(const char *what, const char *folder)
{
    char  name[64], label[128];
    const char *colon = strchr(what, ':'), *target;
    TinyModel m;
    TinyDraft d;
    snprintf(name, sizeof name, "%.*s", colon ? (int) (colon - what) : 60, what);
    snprintf(label, sizeof label, "%s%s%.32s", name, colon ? "-" : "", colon ? colon + 1 : "");
    if (tiny_model_named(&m, name)) {
        if (colon && !tiny_model_types(&m, colon + 1)) return unknown_type(colon + 1);
        return make_model(m, label, folder);
    }
    if (tiny_draft_named(&d, &target, name)) {
        if (colon && (!type_from_name(&d.type, colon + 1) || !type_info(d.type)->weight))
            return unknown_type(colon + 1);
        return make_draft(d, label, folder);
    }
    fprintf(stderr, "make_tiny: %s: unknown model, see make_tiny list\n", name);
    return 2;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        TinyDraft d;
        const char *target;
        for (int32_t i = 0; tiny_names[i]; i++) printf("model %s\n", tiny_names[i]);
        for (int32_t i = 0; tiny_draft_names[i]; i++)
            if (tiny_draft_named(&d, &target, tiny_draft_names[i]))
                printf("draft %s %s\n", tiny_draft_names[i], target);
        return 0;
    }
    if (argc != 3) {
        fprintf(stderr, "usage: make_tiny NAME[:TYPE]|all OUTDIR\n       make_tiny list\n");
        return 2;
    }
    if (strcmp(argv[1], "all") != 0) return make(argv[1], argv[2]);
    int status = 0;
    for (int32_t i = 0; tiny_names[i] && !status; i++) status = make(tiny_names[i], argv[2]);
    for (int32_t i = 0; tiny_draft_names[i] && !status; i++) status = make(tiny_draft_names[i], argv[2]);
    return status;
}
