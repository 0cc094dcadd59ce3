/* needle.h - a one-layer model, built by hand, whose attention looks something up: the distance that it can look back
 * is the length of context that works. Tokens are fillers, notes (a key and a value each), questions (a key) and
 * answers (a value). The query of a question matches the key of the one note with its key and nothing else; the head
 * reads the note's value as the answer. Fillers have keys and values of noise. */
#ifndef RATOON_TESTS_HELP_NEEDLE_H
#define RATOON_TESTS_HELP_NEEDLE_H

#include <stdint.h>

#include "format/quant.h"

/* A text of n tokens with four notes: near the start, on both sides of a border between splits, near the end. Each is
 * asked for after the same text, with keys and values of these types; fails the test unless every answer is the note's.
 * threads 0: all. */
void needles_are_found(int32_t n, int32_t head_dim, Type k, Type v, int32_t threads);

#endif
