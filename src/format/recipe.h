/* recipe.h - which type each tensor of a quantised file gets.
 * A recipe is a name that people know ("Q4_K_M") and a rule over the tensor's name, shape and layer. The rules are
 * llama.cpp's for files without an importance matrix, so our files hold the same types as theirs; a stack of experts
 * gets the type of the matrix that it replaces. (llama.cpp's own rules for mixtures of exactly eight experts are left
 * out.) Vectors, norms, convolutions and routers stay F32 in every recipe. */
#ifndef RATOON_FORMAT_RECIPE_H
#define RATOON_FORMAT_RECIPE_H

#include <stdbool.h>
#include <stdint.h>

#include "format/quant.h"

typedef struct Recipe Recipe;

/* What the rules ask about a model. */
typedef struct {
    int32_t n_layer;            /* layers of the file, including those after the trunk */
    bool    tied;               /* the file has no output.weight, so the embedding is also the output matrix */
    bool    grouped;            /* four or more query heads share a key/value head */
} RecipeModel;

const Recipe *recipe_find(const char *name);       /* case-insensitive, "Q4_K" is Q4_K_M; NULL: unknown */
const Recipe *recipe_at(int32_t i);                /* in order of size; NULL past the last */
const char   *recipe_name(const Recipe *r);
uint32_t      recipe_file_type(const Recipe *r);   /* general.file_type of the file */
const Recipe *recipe_of_type(uint32_t file_type);  /* NULL: none */

/* Returns N for a name "blk.N.", or -1 if the tensor belongs to no layer. */
int32_t recipe_layer(const char *name);

/* ne[0] is the length of a row; n_dims does not count trailing dimensions of 1. */
Type recipe_type(const Recipe *r, const RecipeModel *m, const char *name, int32_t n_dims, const int64_t *ne);

#endif
