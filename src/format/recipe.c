#include "format/recipe.h"

#include <string.h>

#include "base/path.h"

/* For which layers a rule changes the type. SOME: the first and the last eighth, and every third in between. GROUPED:
 * all, if query heads share their keys and values. */
typedef enum { NONE, ALL, FIRST_2, FIRST_4, FIRST_EIGHTH, FIRST_SIXTEENTH, SOME, GROUPED } Layers;

typedef struct { Layers layers; Type in, out; } Rule;      /* the type in these layers, and in all others */

struct Recipe {
    const char *name;
    uint32_t    file_type;
    Type        base;                                      /* most matrices */
    Rule        value, down, output;                       /* attn_v and attn_qkv, ffn_down, attn_output */
};

static const Recipe recipes[] = {
    {"F32",    0,  T_F32,    {0}, {0}, {0}},
    {"F16",    1,  T_F16,    {0}, {0}, {0}},
    {"BF16",   32, T_BF16,   {0}, {0}, {0}},
    {"Q8_0",   7,  T_Q8_0,   {0}, {0}, {0}},
    {"Q6_K",   18, T_Q6_K,   {0}, {0}, {0}},
    {"Q5_1",   9,  T_Q5_1,   {0}, {0}, {0}},
    {"Q5_K_M", 17, T_Q5_K,   {SOME, T_Q6_K, T_Q5_K}, {SOME, T_Q6_K, T_Q5_K}, {0}},
    {"Q5_K_S", 16, T_Q5_K,   {0}, {0}, {0}},
    {"Q5_0",   8,  T_Q5_0,   {0}, {0}, {0}},
    {"Q4_1",   3,  T_Q4_1,   {0}, {0}, {0}},
    {"Q4_K_M", 15, T_Q4_K,   {SOME, T_Q6_K, T_Q4_K}, {SOME, T_Q6_K, T_Q4_K}, {0}},
    {"Q4_K_S", 14, T_Q4_K,   {FIRST_4, T_Q5_K, T_Q4_K}, {FIRST_EIGHTH, T_Q5_K, T_Q4_K}, {0}},
    {"Q4_0",   2,  T_Q4_0,   {0}, {0}, {0}},
    {"NVFP4_MOE", 39, T_NVFP4, {0}, {0}, {0}},
    {"MXFP4_MOE", 38, T_MXFP4, {0}, {0}, {0}},
    {"IQ4_NL", 25, T_IQ4_NL, {GROUPED, T_Q5_K, T_IQ4_NL}, {FIRST_EIGHTH, T_Q5_K, T_IQ4_NL}, {0}},
    {"IQ4_XS", 30, T_IQ4_XS, {GROUPED, T_Q5_K, T_IQ4_XS}, {FIRST_EIGHTH, T_Q5_K, T_IQ4_XS}, {0}},
    {"Q3_K_L", 13, T_Q3_K,   {ALL, T_Q5_K, 0}, {ALL, T_Q5_K, 0}, {ALL, T_Q5_K, 0}},
    {"Q3_K_M", 12, T_Q3_K,   {FIRST_2, T_Q5_K, T_Q4_K}, {FIRST_SIXTEENTH, T_Q5_K, T_Q4_K}, {ALL, T_Q4_K, 0}},
    {"Q3_K_S", 11, T_Q3_K,   {0}, {0}, {0}},
    {"Q2_K",   10, T_Q2_K,   {GROUPED, T_Q4_K, T_Q3_K}, {ALL, T_Q3_K, 0}, {ALL, T_Q3_K, 0}},
};
enum { N_RECIPES = sizeof recipes / sizeof *recipes };

const Recipe *recipe_find(const char *name)
{
    size_t n = strlen(name);
    for (int32_t i = 0; i < N_RECIPES; i++) {
        const char *known = recipes[i].name;
        if (strncasecmp(known, name, n) == 0 && (!known[n] || strcmp(known + n, "_M") == 0)) return &recipes[i];
    }
    return NULL;
}

const Recipe *recipe_at(int32_t i) { return i >= 0 && i < N_RECIPES ? &recipes[i] : NULL; }

const char *recipe_name(const Recipe *r) { return r->name; }

uint32_t recipe_file_type(const Recipe *r) { return r->file_type; }

const Recipe *recipe_of_type(uint32_t file_type)
{
    for (int32_t i = 0; i < N_RECIPES; i++)
        if (recipes[i].file_type == file_type) return &recipes[i];
    return NULL;
}

int32_t recipe_layer(const char *name)
{
    if (strncmp(name, "blk.", 4) != 0) return -1;
    int32_t layer = 0, digits = 0;
    for (name += 4; *name >= '0' && *name <= '9' && digits < 6; name++, digits++) layer = 10 * layer + (*name - '0');
    return digits > 0 && *name == '.' ? layer : -1;
}

static bool stays_f32(const char *name, int32_t n_dims)
{
    return n_dims < 2 || !ends_with(name, "weight") || strstr(name, "_norm.weight") ||
           strstr(name, "ffn_gate_inp.weight") || strstr(name, "ssm_conv1d");
}

static bool is_among(Layers which, int32_t layer, const RecipeModel *m)
{
    int32_t n = m->n_layer;
    switch (which) {
    case ALL:             return true;
    case FIRST_2:         return layer < 2;
    case FIRST_4:         return layer < 4;
    case FIRST_EIGHTH:    return layer < n / 8;
    case FIRST_SIXTEENTH: return layer < n / 16;
    case SOME:            return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
    case GROUPED:         return m->grouped;
    default:              return false;
    }
}

static const Rule *rule_of(const Recipe *r, const char *name)
{
    if (strstr(name, "attn_v.weight") || strstr(name, "attn_qkv.weight")) return &r->value;
    if (strstr(name, "ffn_down")) return &r->down;
    return strstr(name, "attn_output.weight") ? &r->output : NULL;
}

/* Rows that are not a whole number of blocks get a type of smaller blocks with at least the same precision, or F16. */
static Type fit_rows(Type t, int64_t cols)
{
    static const Type smaller[T_COUNT] = {
        [T_Q2_K] = T_Q4_0, [T_Q3_K] = T_Q4_0, [T_Q4_K] = T_Q5_0, [T_Q5_K] = T_Q5_1, [T_Q6_K] = T_Q8_0,
        [T_IQ4_XS] = T_IQ4_NL, [T_NVFP4] = T_IQ4_NL,
    };
    if (cols % type_info(t)->block != 0 && smaller[t]) t = smaller[t];
    return cols % type_info(t)->block == 0 ? t : T_F16;
}

Type recipe_type(const Recipe *r, const RecipeModel *m, const char *name, int32_t n_dims, const int64_t *ne)
{
    if (stays_f32(name, n_dims)) return T_F32;
    Type t = r->base;
    if (type_info(t)->block == 1) return t;
    /* for the stacked matrices of experts alone */
    const bool stack = n_dims > 2 && ne[2] > 1 && (n_dims == 3 || ne[3] == 1);
    if (t == T_MXFP4 || t == T_NVFP4) return fit_rows(stack ? t : T_Q8_0, ne[0]);
    const Rule *rule = rule_of(r, name);
    bool head = strcmp(name, "output.weight") == 0 || (m->tied && strcmp(name, "token_embd.weight") == 0);
    if (head) t = ne[0] % type_info(t)->block != 0 || t == T_Q8_0 ? T_Q8_0 : T_Q6_K;
    else if (rule && rule->layers != NONE) t = is_among(rule->layers, recipe_layer(name), m) ? rule->in : rule->out;
    return fit_rows(t, ne[0]);
}
