/* hotness.h - how often each expert of each layer of a mixture has been used, kept between runs in a file beside the
 * model, MODEL.gguf.spark.csv: which experts are worth having near follows from it, and no token does. The file is
 * text: a line for each layer of the trunk, with a count for each expert; layers without experts have zeros. Layers for
 * multi-token prediction and drafters are not part of it.
 *
 *     # hotness table: n_layer=40 n_expert=256 n_expert_used=8
 *     # one line for each layer, one count for each expert
 *     # model: bytes=20144338496 name=Laguna XS 2.1
 *     0,0,...
 *     812,4,...
 *
 * The lines that begin with # may be missing. Those with n_layer= are of a form that other programs write and read; the
 * one with the model is ours. What they say has to agree with the model. Empty lines, other lines that begin with #,
 * and blanks, tabs and carriage returns around values and lines mean nothing. A layer's counts add up to at most 2^53,
 * so that every program reads them exactly; more is refused. */
#ifndef RATOON_FORMAT_HOTNESS_H
#define RATOON_FORMAT_HOTNESS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct { int32_t layers, experts, used; uint64_t *count; } Hotness;    /* count [layers, experts], owned */

/* The model that a file belongs to: the layers of its trunk, the experts of a layer (1 or more of both) and of a row,
 * its general.name (NULL: none) and the bytes of all its parts. Of the name the first 127 bytes count, cleaned as
 * line_clean does it, with '?' for '='. */
typedef struct { int32_t layers, experts, used; const char *name; uint64_t bytes; } HotnessModel;

/* What callers give hotness_halve: beyond as many calls in a layer, half a million tokens with 8 experts each, old
 * traffic fades. */
#define HOTNESS_TOTAL ((uint64_t) 1 << 22)

Status hotness_new(Hotness *out, const HotnessModel *of, Error *err);          /* counts of 0; ST_MEMORY */
/* ST_END: there is no such file, which err says too. ST_FORMAT: the file does not fit the model or is damaged; the
 * error has the line, the value and what was expected. ST_IO, ST_MEMORY. On failure *out is zero. */
Status hotness_read(Hotness *out, const char *path, const HotnessModel *of, Error *err);
/* The same of a file's n bytes; name is for errors. */
Status hotness_parse(Hotness *out, const char *text, size_t n, const char *name, const HotnessModel *of, Error *err);
/* Writes the file completely or not at all (base/save.h). h has the model's shape. ST_ARG also if a layer's counts add
 * up to more than 2^53: hotness_halve first. */
Status hotness_write(const Hotness *h, const char *path, const HotnessModel *of, Error *err);
/* The calls of a layer, all together; at most UINT64_MAX. */
uint64_t hotness_total(const Hotness *h, int32_t layer);
/* Halves all counts of all layers, rounding down, until no layer has more than `most` calls. Layers keep their
 * proportions to each other, and experts that were used once are forgotten. */
void   hotness_halve(Hotness *h, uint64_t most);
void   hotness_free(Hotness *h);                   /* a zeroed one is fine, and that is how it is left */

#endif
