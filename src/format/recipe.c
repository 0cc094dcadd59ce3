#include "format/recipe.h"

#include <string.h>
#include <strings.h>

static const Recipe recipes[] = {
    {"F32",    T_F32,  T_F32,  0},
    {"F16",    T_F16,  T_F16,  1},
    {"BF16",   T_BF16, T_BF16, 32},
    {"Q8_0",   T_Q8_0, T_Q8_0, 7},
    {"Q6_K",   T_Q6_K, T_Q6_K, 18},
    {"Q5_K_M", T_Q5_K, T_Q6_K, 17},
    {"Q4_K_M", T_Q4_K, T_Q6_K, 15},
    {"Q4_0",   T_Q4_0, T_Q4_0, 2},
};
enum { N_RECIPES = sizeof recipes / sizeof *recipes };

const Recipe *recipe_find(const char *name)
{
    for (int32_t i = 0; i < N_RECIPES; i++) {
        if (strcasecmp(recipes[i].name, name) == 0) return &recipes[i];
    }
    return NULL;
}

const Recipe *recipe_at(int32_t i) { return i >= 0 && i < N_RECIPES ? &recipes[i] : NULL; }

int32_t recipe_layer(const char *name)
{
    if (strncmp(name, "blk.", 4) != 0) return -1;
    int32_t layer = 0, digits = 0;
    for (name += 4; *name >= '0' && *name <= '9' && digits < 6; name++, digits++) layer = 10 * layer + (*name - '0');
    return digits > 0 && *name == '.' ? layer : -1;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && memcmp(s + n - m, end, m) == 0;
}

static bool stays_f32(const char *name, int32_t n_dims)
{
    return n_dims < 2 || !ends_with(name, "weight") || strstr(name, "_norm.weight") || strstr(name, "ffn_gate_inp.weight") ||
           strstr(name, "ssm_conv1d");
}

/* The first and the last eighth of the layers, and every third in between. */
static bool more_bits(int32_t layer, int32_t n_layer)
{
    return layer < n_layer / 8 || layer >= 7 * n_layer / 8 || (layer - n_layer / 8) % 3 == 2;
}

/* Rows that are no whole number of blocks take a type of smaller blocks with at least the precision, or none at all. */
static Type fit_rows(Type t, int64_t cols)
{
    if (cols % type_info(t)->block == 0) return t;
    if (t == T_Q4_K) t = T_Q5_0;
    else if (t == T_Q5_K) t = T_Q5_1;
    else if (t == T_Q6_K) t = T_Q8_0;
    return cols % type_info(t)->block == 0 ? t : T_F16;
}

Type recipe_type(const Recipe *r, const char *name, int32_t n_dims, const int64_t *ne, int32_t n_layer, bool tied)
{
    if (stays_f32(name, n_dims)) return T_F32;
    Type t = r->base;
    if (type_info(t)->block == 1) return t;
    bool head = strcmp(name, "output.weight") == 0 || (tied && strcmp(name, "token_embd.weight") == 0);
    bool eager = strstr(name, "attn_v.weight") || strstr(name, "attn_qkv.weight") || strstr(name, "ffn_down");
    if (head) t = ne[0] % type_info(t)->block != 0 || t == T_Q8_0 ? T_Q8_0 : T_Q6_K;
    else if (eager && more_bits(recipe_layer(name), n_layer)) t = r->more;
    return fit_rows(t, ne[0]);
}
