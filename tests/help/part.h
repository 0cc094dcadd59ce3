/* part.h - how much of a long test runs. Under sanitizers and in emulation a case takes ten to fifty times as long, and
 * such a run (it looks for an access out of bounds, or for other bits on another processor) needs examples of every
 * kind, not every combination: there, one case in PART runs. make PART=7 sets it; 7 shares no factor with the lengths
 * of the thinned loops, so every value of each loop still occurs. RATOON_TEST_PART=I/N in the environment: one in N,
 * from the one with number I. */
#ifndef RATOON_TESTS_HELP_PART_H
#define RATOON_TESTS_HELP_PART_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef PART
#define PART 1
#endif

/* Returns true if the next case runs. */
static inline bool part_runs(void)
{
    static unsigned n, of, from;
    if (!of) {
        const char *part = getenv("RATOON_TEST_PART");
        of = PART;
        if (part && (sscanf(part, "%u/%u", &from, &of) != 2 || of == 0 || from >= of)) abort();
    }
    return n++ % of == from;
}

#endif
