/* hub_header.h - how long the header of a model file is, from its first bytes: all that a plan needs of it. */
#ifndef RATOON_PROGRAMS_HUB_HEADER_H
#define RATOON_PROGRAMS_HUB_HEADER_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the header of a GGUF or safetensors file; 0: n bytes are too few to tell; -1: it is neither. Checks no more
 * than that: the loader judges the contents. */
int64_t hub_header_length(const void *bytes, size_t n);

#endif
