#include "programs/model_facts.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <xxhash.h>

#include "base/path.h"
#include "format/gguf.h"
#include "format/recipe.h"
#include "format/safetensors.h"

/* ---- GGUF ---- */

static void text_of(char *out, size_t cap, const Gguf *g, const char *key)
{
    const char *s;
    size_t n;
    out[0] = 0;
    if (gguf_get_str(g, key, &s, &n, NULL) == ST_OK) snprintf(out, cap, "%.*s", (int) (n < cap ? n : cap - 1), s);
}

/* ARCH.NAME; 0: missing or no sensible number. */
static int32_t number_of(const Gguf *g, const char *arch, const char *name)
{
    char key[128];
    uint32_t v;
    snprintf(key, sizeof key, "%s.%s", arch, name);
    return gguf_get_u32(g, key, &v, NULL) == ST_OK && v <= 1 << 24 ? (int32_t) v : 0;
}

static int32_t rows_of(const Gguf *g, const char *tensor)
{
    const GgufTensor *t = gguf_tensor(g, tensor);
    return t && t->ne[1] <= 1 << 24 ? (int32_t) t->ne[1] : 0;
}

/* target_layers counts the layers' inputs, the other two their outputs (model/draft_dflash.c). */
static int32_t last_tap_of(const Gguf *g, const char *arch)
{
    static const struct { const char *name; int64_t shift; } form[] = {
        { "target_layers", 1 }, { "target_layer_ids", 0 }, { "dflash.target_layer_ids", 0 } };
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        char key[128];
        GgufType elem;
        uint64_t n = 0;
        int64_t v = 0;
        snprintf(key, sizeof key, "%s.%s", arch, form[i].name);
        if (gguf_array(g, key, &elem, &n, NULL) != ST_OK || n == 0) continue;
        if (gguf_array_i64(g, key, n - 1, &v, NULL) != ST_OK) return 0;
        return v > form[i].shift && v < 1 << 16 ? (int32_t) (v - form[i].shift) : 0;
    }
    return 0;
}

static uint64_t tokens_of(const Gguf *g)
{
    for (int32_t i = 0; i < gguf_n_keys(g); i++) {
        size_t n;
        if (strcmp(gguf_key(g, i), "tokenizer.ggml.tokens") != 0) continue;
        const uint8_t *raw = gguf_key_raw(g, i, &n);
        return XXH3_64bits(raw, n);
    }
    return 0;
}

/* A file of a type that cannot be read is no choice, however small it is. A table of token ids is read as it is. */
static void find_unread(ModelFacts *f, const Gguf *g)
{
    for (int32_t i = 0; !f->unread[0] && i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor_at(g, i);
        if (!t->known && strcmp(t->name, "d2t") != 0)
            snprintf(f->unread, sizeof f->unread, "%s", gguf_tensor_type_name(t));
    }
}

static void find_type(ModelFacts *f, const Gguf *g)
{
    uint32_t v;
    const Recipe *r = gguf_get_u32(g, "general.file_type", &v, NULL) == ST_OK ? recipe_of_type(v) : NULL;
    if (r) snprintf(f->type, sizeof f->type, "%s", recipe_name(r));
}

static bool is_drafter(const Gguf *g, const char *arch)
{
    return strstr(arch, "dflash") && (gguf_tensor(g, "fc.weight") || gguf_tensor(g, "dflash.fc.weight") ||
                                      gguf_tensor(g, "dflash_fc.weight"));
}

static void read_gguf(ModelFacts *f, const Gguf *g)
{
    char type[32];
    text_of(f->arch, sizeof f->arch, g, "general.architecture");
    text_of(f->name, sizeof f->name, g, "general.name");
    text_of(type, sizeof type, g, "general.type");
    f->kind = is_drafter(g, f->arch) ? MODEL_DRAFTER
              : strcmp(f->arch, "clip") == 0 || strcmp(type, "mmproj") == 0 ? MODEL_PROJECTOR : MODEL_TARGET;
    f->width = number_of(g, f->arch, "embedding_length");
    f->bytes = gguf_file_bytes(g);
    f->tokens = tokens_of(g);
    find_unread(f, g);
    find_type(f, g);
    if (f->kind == MODEL_DRAFTER) {
        f->vocab = number_of(g, f->arch, "vocab_size");
        f->last_tap = last_tap_of(g, f->arch);
    } else {
        int32_t mtp = number_of(g, f->arch, "nextn_predict_layers"), all = number_of(g, f->arch, "block_count");
        f->vocab = rows_of(g, "token_embd.weight");
        f->layers = all > mtp ? all - mtp : 0;
        f->experts = number_of(g, f->arch, "expert_count");
        f->experts_used = number_of(g, f->arch, "expert_used_count");
        f->own_layer = mtp > 0;
        f->canvas = gguf_has(g, "diffusion.canvas_length");
    }
}

/* ---- a Hugging Face folder ---- */

static int32_t field_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    json_int_t n = json_is_integer(v) ? json_integer_value(v) : 0;
    return n > 0 && n <= 1 << 24 ? (int32_t) n : 0;
}

static void read_folder(ModelFacts *f, const Safetensors *s)
{
    const json_t *c = safetensors_config(s), *d = json_object_get(c, "dflash_config"),
                 *g = json_object_get(c, "transformer_layer_config"), *ids = json_object_get(d, "target_layer_ids");
    const int32_t shift = json_is_object(g);       /* as speculators count them (model/draft_dflash.c) */
    if (shift) ids = json_object_get(c, "aux_hidden_state_layer_ids");
    const char *class = json_string_value(json_array_get(json_object_get(c, "architectures"), 0));
    snprintf(f->arch, sizeof f->arch, "%s", class ? class : "safetensors");
    bool drafts = json_is_object(d) || strcasestr(f->arch, "dflash");
    f->kind = drafts && json_is_object(c) ? MODEL_DRAFTER : MODEL_TARGET;
    f->width = field_of(shift ? g : c, "hidden_size");
    f->vocab = field_of(shift ? g : c, "vocab_size");
    f->layers = f->kind != MODEL_DRAFTER ? field_of(c, "num_hidden_layers")
                : field_of(json_object_get(d, "num_target_layers") ? d : c, "num_target_layers");
    if (json_array_size(ids) > 0) {
        const json_t *last = json_array_get(ids, json_array_size(ids) - 1);
        if (json_is_integer(last) && json_integer_value(last) > shift && json_integer_value(last) < 1 << 16)
            f->last_tap = (int32_t) json_integer_value(last) - shift;
    }
    for (int32_t i = 0; i < safetensors_n(s); i++) f->bytes += safetensors_at(s, i)->bytes;
}

Status model_facts(ModelFacts *out, const char *path, Error *err)
{
    *out = (ModelFacts) { 0 };
    if (is_folder(path)) {
        Safetensors *s = NULL;
        TRY(safetensors_open(&s, path, err));
        read_folder(out, s);
        safetensors_close(s);
    } else {
        Gguf *g = NULL;
        TRY(gguf_open(&g, path, err));
        read_gguf(out, g);
        gguf_close(g);
    }
    line_clean(out->arch);
    line_clean(out->name);
    return ST_OK;
}

/* ---- fitting ---- */

static bool differs(char why[160], const char *what, int32_t mine, int32_t models)
{
    if (mine == 0 || models == 0 || mine == models) return false;
    snprintf(why, 160, "its %s is %d, the model's %d", what, mine, models);
    return true;
}

bool model_facts_mixture(const ModelFacts *f)
{
    return f->layers > 0 && f->experts > 0 && f->experts_used > 0 && f->experts_used <= f->experts;
}

bool model_facts_fit(char why[160], const ModelFacts *d, const ModelFacts *t)
{
    why[0] = 0;
    if (d->kind != MODEL_DRAFTER) {
        snprintf(why, 160, "it is %s of architecture '%.40s', not a DFlash drafter",
                 d->kind == MODEL_PROJECTOR ? "a projector" : "a model", d->arch);
        return false;
    }
    if (d->unread[0]) {
        snprintf(why, 160, "it has tensors of type %s, which is not supported", d->unread);
        return false;
    }
    if (differs(why, "hidden size", d->width, t->width) || differs(why, "vocabulary size", d->vocab, t->vocab))
        return false;
    if (d->layers && t->layers && d->layers != t->layers) {
        snprintf(why, 160, "it was made for %d layers, the model has %d", d->layers, t->layers);
        return false;
    }
    if (d->last_tap && t->layers && d->last_tap > t->layers) {
        snprintf(why, 160, "it reads layer %d, the model has %d", d->last_tap, t->layers);
        return false;
    }
    if (d->tokens && t->tokens && d->tokens != t->tokens) {
        snprintf(why, 160, "its tokenizer differs from the model's");
        return false;
    }
    return true;
}
