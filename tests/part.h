/* part.h - how much of a long test runs. Under sanitizers and in emulation a case takes ten to fifty times as long, and what such a run is
 * for (an access out of bounds; the same bits on another processor) needs examples of every kind, not every combination: there one case
 * in PART runs. make PART=7 sets it; 7 shares no factor with the lengths of the loops that are thinned, so that all their values come. */
#ifndef RATOON_TESTS_PART_H
#define RATOON_TESTS_PART_H

#include <stdbool.h>

#ifndef PART
#define PART 1
#endif

/* Whether the next case runs. */
static inline bool part_runs(void)
{
    static unsigned n;
    return n++ % PART == 0;
}

#endif
