/* cpu_memory.c - how much memory this process could still get: the minimum of what the system can give without
 * swapping, what its control groups have left, and what its own address space limit leaves. And where it lies, on
 * machines whose processors have memories of their own. */
#include "backend/cpu/cpu_memory.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PATH = 512 };

static void lower(uint64_t *least, uint64_t x)
{
    if (x < *least) *least = x;
}

/* Reads the first number after `key` in a file of lines "key number ..."; with key "" the file is just a number.
 * Returns false if there is no such line. */
static bool number_in(const char *path, const char *key, uint64_t *out)
{
    FILE *f = fopen(path, "re");
    char line[256];
    bool found = false;
    const size_t n = strlen(key);
    while (f && !found && fgets(line, sizeof line, f)) {
        unsigned long long x;
        found = strncmp(line, key, n) == 0 && sscanf(line + n, "%llu", &x) == 1;
        if (found) *out = x;
    }
    if (f) fclose(f);
    return found;
}

/* Lowers m to what one group may still take; the page cache it uses counts as free, since it can be dropped. A group
 * without a limit lowers nothing. */
static void of_group(const char *folder, const char *max, const char *used, const char *files, MemoryInfo *m)
{
    char path[PATH + 64];
    uint64_t limit, now, dropped = 0;
    snprintf(path, sizeof path, "%s/%s", folder, max);
    if (!number_in(path, "", &limit)) return;
    snprintf(path, sizeof path, "%s/%s", folder, used);
    if (!number_in(path, "", &now)) return;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    number_in(path, files, &dropped);
    now = now > dropped ? now - dropped : 0;
    lower(&m->free, limit > now ? limit - now : 0);
    lower(&m->total, limit);
}

/* The group and all its ancestors, up to the mount point. */
static void of_groups(const char *mount, const char *group, const char *max, const char *used, const char *files,
                      MemoryInfo *m)
{
    char folder[PATH];
    const size_t least = strlen(mount);
    if (snprintf(folder, sizeof folder, "%s%s", mount, group) >= (int) sizeof folder) return;
    for (size_t n = strlen(folder); n >= least; ) {
        while (n > least && folder[n - 1] == '/') folder[--n] = 0;
        of_group(folder, max, used, files, m);
        if (n == least) return;
        while (n > least && folder[n - 1] != '/') folder[--n] = 0;
    }
}

/* Lines are "0::/group" for the single tree of version 2, and "5:memory:/group" for version 1. */
static void of_control_groups(const char *root, MemoryInfo *m)
{
    char path[PATH], mount[PATH], line[PATH];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        char *kind = strchr(line, ':'), *group = kind ? strchr(kind + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        if (strcmp(kind + 1, "") == 0) {
            snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
            of_groups(mount, group, "memory.max", "memory.current", "inactive_file ", m);
        } else if (strcmp(kind + 1, "memory") == 0) {
            snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/memory", root);
            of_groups(mount, group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ", m);
        }
    }
    if (f) fclose(f);
}

static void of_system(const char *root, MemoryInfo *m)
{
    char path[PATH];
    uint64_t kib;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (number_in(path, "MemAvailable:", &kib)) lower(&m->free, kib << 10);
    if (number_in(path, "MemTotal:", &kib)) lower(&m->total, kib << 10);
}

static void of_process(const char *root, const struct rlimit *limit, MemoryInfo *m)
{
    char path[PATH];
    uint64_t pages;
    snprintf(path, sizeof path, "%s/proc/self/statm", root);
    if (limit->rlim_cur == RLIM_INFINITY || !number_in(path, "", &pages)) return;
    uint64_t used = pages * (uint64_t) sysconf(_SC_PAGESIZE);
    lower(&m->free, limit->rlim_cur > used ? (uint64_t) limit->rlim_cur - used : 0);
    lower(&m->total, (uint64_t) limit->rlim_cur);
}

MemoryInfo memory_info(const char *root, const struct rlimit *limit)
{
    MemoryInfo m = { UINT64_MAX, UINT64_MAX };
    of_system(root, &m);
    of_control_groups(root, &m);
    of_process(root, limit, &m);
    if (m.free == UINT64_MAX) m.free = 0;
    if (m.total == UINT64_MAX) m.total = 0;
    return m;
}

/* ---- nodes ---- */

/* A list such as "0-1,4". */
static uint64_t bits_of(const char *list)
{
    uint64_t bits = 0;
    for (unsigned a, b; sscanf(list, "%u", &a) == 1;) {
        const int pair = sscanf(list, "%u-%u", &a, &b);
        for (b = pair == 2 ? b : a; a <= b && a < 64; a++) bits |= UINT64_C(1) << a;
        list += strcspn(list, ",");
        if (*list++ == 0) break;
    }
    return bits;
}

uint64_t memory_nodes(const char *root)
{
    char path[PATH], list[256] = "";
    snprintf(path, sizeof path, "%s/sys/devices/system/node/has_memory", root);
    FILE *f = fopen(path, "re");
    if (f && !fgets(list, sizeof list, f)) list[0] = 0;
    if (f) fclose(f);
    return bits_of(list);
}

bool memory_spread(void *p, size_t bytes, uint64_t nodes)
{
    enum { INTERLEAVE = 3, BITS = 64 + 1 };        /* linux/mempolicy.h; the system counts one bit more than it reads */
    unsigned long mask[64 / (8 * sizeof(long)) + 1] = { 0 };
    memcpy(mask, &nodes, sizeof nodes);
    return syscall(SYS_mbind, p, bytes, INTERLEAVE, mask, (unsigned long) BITS, 0u) == 0;
}

void cpu_memory(Backend *b, uint64_t *there, uint64_t *total)
{
    (void) b;
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
    getrlimit(RLIMIT_AS, &limit);
    MemoryInfo m = memory_info("", &limit);
    *there = m.free;
    *total = m.total;
}
