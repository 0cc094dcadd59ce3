/* part.h - how much of a long test runs. Under sanitizers and in emulation a case takes ten to fifty times as long, and
 * such a run (it looks for an access out of bounds, or for other bits on another processor) needs examples of every
 * kind, not every combination: there, one case in PART runs. make PART=7 sets it; 7 shares no factor with the lengths
 * of the thinned loops, so every value of each loop still occurs. */
#ifndef RATOON_TESTS_HELP_PART_H
#define RATOON_TESTS_HELP_PART_H

#include <stdbool.h>

#ifndef PART
#define PART 1
#endif

/* Returns true if the next case runs. */
static inline bool part_runs(void)
{
    static unsigned n;
    return n++ % PART == 0;
}

#endif
