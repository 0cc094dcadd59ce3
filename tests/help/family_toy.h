/* family_toy.h - a family for tests only. A program includes it by
 *     const Family *const families_linked[] = { &family_toy, NULL }; */
#ifndef RATOON_TESTS_HELP_FAMILY_TOY_H
#define RATOON_TESTS_HELP_FAMILY_TOY_H

#include "model/model.h"
#include "tiny.h"

enum { TOY_LAYERS = 4, TOY_EXPERTS = 3 };
extern const Family family_toy;

/* The fields of a file that a TinyModel lacks; of the TinyModel, hidden, ff, vocab, n_layer, context, eps, seed and
 * type are used. */
typedef struct {
    int32_t heads[TOY_LAYERS], kv_heads[TOY_LAYERS], full_dim, value_dim, near_dim, n_rot, window, dense, experts,
            used, expert_ffn;
    float   routed_scale, yarn_factor, beta_fast, beta_slow;
    int32_t original;
    float   base, near_base;
    int32_t more_experts, fewer_heads;             /* damage: in the stacks of gates, in the list of head counts */
} ToyShape;
ToyShape toy_shape(void);
Status   toy_write_as(const ToyShape *t, const TinyModel *m, const char *path, Error *err);
Status   toy_write(const TinyModel *m, const char *path, Error *err);      /* toy_shape() */

#endif
