/* cpu_memory.h - memory that this process could still get. */
#ifndef RATOON_BACKEND_CPU_CPU_MEMORY_H
#define RATOON_BACKEND_CPU_CPU_MEMORY_H

#include <sys/resource.h>

#include "backend/backend.h"

typedef struct { uint64_t free, total; } MemoryInfo;   /* bytes; 0: unknown */

/* Reads proc and sys below root ("": the real ones). A source that cannot be read imposes no limit. */
MemoryInfo memory_info(const char *root, const struct rlimit *limit);

/* A bit for each of the first 64 memory nodes that have memory, read below root as above; 0: unknown. */
uint64_t memory_nodes(const char *root);
/* Has the system take the pages of [p, p + bytes), none of which was touched yet, from all these nodes in turn: the
 * threads take work as they come, so any thread may read any page, and this way the nodes deliver together. p lies at
 * the beginning of a page. Returns false if the system refuses; the pages are then where it likes. */
bool memory_spread(void *p, size_t bytes, uint64_t nodes);

void cpu_memory(Backend *b, uint64_t *there, uint64_t *total);

#endif
