/* part.h - how much of a long test runs. Under sanitizers and in emulation a case takes ten to fifty times as long, and
 * such a run (it looks for an access out of bounds, or for other bits on another processor) needs examples of every
 * kind, not every combination: there, one case in PART runs. make PART=7 sets it; 7 shares no factor with the lengths
 * of the thinned loops, so every value of each loop still occurs. RATOON_TEST_PART=I/N in the environment: one in N,
 * from the one with number I; N such runs together have every case once. */
#ifndef RATOON_TESTS_HELP_PART_H
#define RATOON_TESTS_HELP_PART_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef PART
#define PART 1
#endif

typedef struct { unsigned from, of; } Part;
static inline Part part_asked(void)
{
    static Part p;
    if (p.of) return p;
    const char *part = getenv("RATOON_TEST_PART");
    p.of = PART;
    if (part && (sscanf(part, "%u/%u", &p.from, &p.of) != 2 || p.of == 0 || p.from >= p.of)) abort();
    return p;
}

/* Returns true if the next case runs. */
static inline bool part_runs(void)
{
    static unsigned n;
    const Part p = part_asked();
    return n++ % p.of == p.from;
}

/* Returns true if case (i, j) of two nested loops runs. Each part has every i with some j and, if the loops are not
 * shorter than the number of parts, every j with some i. */
static inline bool part_runs_pair(int i, int j)
{
    const Part p = part_asked();
    return (unsigned) (i + j) % p.of == p.from;
}

#endif
