/* sized.h - structs that begin with their size, from programs built with another version of ratoon.h. Fields that an
 * older program does not know are 0, the default of every field; fields that only a newer program knows must be 0.
 *
 * To add a field, append it to its struct and record the struct's previous size in sized.c as offsetof the new field. A
 * struct must have no padding at the end, which a program would leave undefined: fill it with a field. */
#ifndef RATOON_ENGINE_SIZED_H
#define RATOON_ENGINE_SIZED_H

#include "base/error.h"
#include "ratoon_chat.h"

/* sizes: the struct's size in each version, ascending, the last being this library's, then 0. */
typedef struct { const char *name, *init; const size_t *sizes; } SizedType;

extern const SizedType sized_options, sized_session_options, sized_step_options, sized_sampling, sized_diffusion,
                       sized_chat_request, sized_reply_options;

/* Converts `in` to this library's version; in NULL: all defaults. ST_ARG names the struct, its size and what was
 * expected. */
Status sized_read(void *out, const SizedType *t, const void *in, Error *err);
/* Writes room bytes to out: the beginning of `in`, zeros after its end. */
void   sized_write(void *out, size_t room, const void *in, size_t size);

#endif
