/* recipe.h - which type each tensor of a quantised file gets.
 * A recipe is a name that people ask for ("Q4_K_M") and a rule over the tensor's name, shape and layer; the rules are llama.cpp's, so
 * a file of ours holds the same types as one of theirs. Vectors, norms, convolutions and routers stay F32 in every recipe. */
#ifndef RATOON_FORMAT_RECIPE_H
#define RATOON_FORMAT_RECIPE_H

#include <stdbool.h>
#include <stdint.h>

#include "format/quant.h"

typedef struct {
    const char *name;
    Type        base;                              /* what most matrices become */
    Type        more;                              /* what values, and every layer's ffn_down, become in the layers that get more bits */
    uint32_t    file_type;                         /* general.file_type of the file */
} Recipe;

const Recipe *recipe_find(const char *name);       /* case-insensitive; NULL: unknown */
const Recipe *recipe_at(int32_t i);                /* NULL behind the last */

/* N of a name "blk.N.", -1: the tensor belongs to no layer. */
int32_t recipe_layer(const char *name);

/* ne[0] is the length of a row; trailing dimensions of 1 do not count as n_dims. tied: the file has no output.weight, so the embedding
 * is also the output matrix. n_layer: layers of the file, those behind the trunk included. */
Type recipe_type(const Recipe *r, const char *name, int32_t n_dims, const int64_t *ne, int32_t n_layer, bool tied);

#endif
