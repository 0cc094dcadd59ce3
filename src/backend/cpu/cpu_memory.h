/* cpu_memory.h - memory that this process could still get. */
#ifndef RATOON_BACKEND_CPU_CPU_MEMORY_H
#define RATOON_BACKEND_CPU_CPU_MEMORY_H

#include <sys/resource.h>

#include "backend/backend.h"

typedef struct { uint64_t free, total; } MemoryInfo;   /* bytes; 0: unknown */

/* Reads proc and sys below root ("": the real ones). A source that cannot be read imposes no limit. */
MemoryInfo memory_info(const char *root, const struct rlimit *limit);
void cpu_memory(Backend *b, uint64_t *there, uint64_t *total);

#endif
