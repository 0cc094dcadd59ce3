/* emu_race.cpp - accesses to the same memory, one of them a write, that nothing orders, as compute-sanitizer's
 * racecheck finds them on a card, and between blocks, too. Threads of the emulation run one after the other, so that
 * mostly all goes well there; here what counts is only what the kernel has asked for:
 *   - within a block a barrier; within a warp sync_warp as well, but no shuffle and no matrix instruction, which do not
 *     order memory
 *   - a copy to shared memory may arrive from when it is sent to when its thread waits for it
 *   - between blocks of a launch: the thread that wrote has passed fence() before its block's atomic_add, and the block
 *     that reads has passed one after its own; what is only added to needs no fence
 * RATOON_EMU_RACES=FILE: lines are appended when something is first seen,
 *     kernel                             it has run
 *     kernel kind address address        two places of the code, in this library for addr2line */
#include <dlfcn.h>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>
#include "backend/gpu/gpu.h"
#include "emu_watch.h"

#define PLACE ((uintptr_t) __builtin_return_address(0))

namespace {
/* When: how many barriers the block, and meetings the thread's warp, had had. */
struct Access { uintptr_t place; int tid; uint32_t barriers, meetings; bool atomic; };
/* sent: a copy to here is under way. readers: since the last write. */
struct Shared {
    uint32_t block = 0;
    bool     written = false, sent = false;
    Access   write, copy;
    std::vector<Access> reader;
};
/* The last launch and block that wrote, and read; fences: those of the writing thread so far. */
struct Global {
    int64_t launch = -1, block = -1;
    Access  write;
    uint32_t fences = 0;
    int64_t read_launch = -1, read_block = -1;
    bool    read_by_more = false;                  /* blocks */
    Access  read;
    std::vector<Access> reader;
};

const char *const file_name = getenv("RATOON_EMU_RACES");
std::set<std::string> said;
std::vector<Shared> shared_bytes(EMU_SHARED);
std::unordered_map<uintptr_t, Global> global_bytes;
std::unordered_map<int64_t, std::vector<uint32_t>> published;      /* by a block's last atomic_add: threads' fences */
std::vector<uint32_t> fences(EMU_THREADS);
bool watching, has_added, has_fenced;              /* this block: to global memory; after that */
uint32_t block_number, barriers, meetings[EMU_THREADS / EMU_WARP];
int64_t launch, block;

void say(const std::string &line)
{
    if (!said.insert(line).second) return;
    FILE *f = fopen(file_name, "a");
    if (!f) return;
    fprintf(f, "%s\n", line.c_str());
    fclose(f);
}

std::string address(uintptr_t place)
{
    Dl_info in;
    char text[32] = "0";
    if (dladdr((void *) place, &in)) snprintf(text, sizeof text, "%#zx", (size_t) (place - (uintptr_t) in.dli_fbase));
    return text;
}

void race(const char *kind, const Access &a, const Access &b)
{
    say(std::string(emu.kernel->name) + " " + kind + " " + address(a.place) + " " + address(b.place));
}

Access access(uintptr_t place, bool atomic)
{
    return Access{ place, emu.tid, barriers, meetings[emu.tid / EMU_WARP], atomic };
}

bool ordered(const Access &a, const Access &b)
{
    if (a.tid == b.tid || a.barriers < b.barriers || (a.atomic && b.atomic)) return true;
    return a.tid / EMU_WARP == b.tid / EMU_WARP && a.meetings < b.meetings;
}

/* One entry a thread: its last one says all. */
void add_reader(std::vector<Access> &reader, const Access &now)
{
    for (auto &r : reader)
        if (r.tid == now.tid) { r = now; return; }
    reader.push_back(now);
}

Shared &shared_byte(uintptr_t p)
{
    Shared &b = shared_bytes[p - (uintptr_t) emu.shared];
    if (b.block != block_number) b.block = block_number, b.written = b.sent = false, b.reader.clear();
    return b;
}

void touch_shared(uintptr_t p, size_t n, bool write, const Access &now)
{
    for (size_t i = 0; i < n; i++) {
        Shared &b = shared_byte(p + i);
        if (b.sent) race("copy", b.copy, now);
        if (b.written && !ordered(b.write, now)) race(write ? "write-write" : "write-read", b.write, now);
        if (write) for (auto &r : b.reader) if (!ordered(r, now)) race("read-write", r, now);
        if (write) b.written = true, b.write = now, b.reader.clear();
        else add_reader(b.reader, now);
    }
}

/* Behind a write of another block of this launch. */
void cross(const Global &x, bool write, const Access &now)
{
    if (x.write.atomic && (now.atomic || has_added)) return;
    const auto f = published.find(x.block);
    if (!has_fenced) race(write ? "blocks-write-write" : "blocks-write-read", x.write, now);
    else if (f == published.end() || f->second[(size_t) x.write.tid] <= x.fences) race("blocks-no-fence", x.write, now);
}

void touch_global(uintptr_t p, size_t n, bool write, const Access &now)
{
    for (size_t i = 0; i < n; i++) {
        Global &x = global_bytes[p + i];
        if (x.launch == launch && x.block != block) cross(x, write, now);
        else if (x.launch == launch && !ordered(x.write, now)) race(write ? "write-write" : "write-read", x.write, now);
        const bool was_read = x.read_launch == launch, elsewhere = was_read && x.read_block != block;
        if (write) {
            if ((elsewhere || (was_read && x.read_by_more)) && !has_added && !now.atomic)
                race("blocks-read-write", x.read, now);
            if (was_read && !elsewhere) for (auto &r : x.reader) if (!ordered(r, now)) race("read-write", r, now);
            x.launch = launch, x.block = block, x.write = now, x.fences = fences[(size_t) emu.tid];
            x.read_launch = -1;
        } else {
            if (!was_read || elsewhere) x.reader.clear(), x.read_by_more = elsewhere;
            x.read_launch = launch, x.read_block = block, x.read = now;
            add_reader(x.reader, now);
        }
    }
}
}

void emu_race_begin(int64_t at)
{
    if (!file_name) return;
    if (at == 0) {
        launch++;
        global_bytes.clear(), published.clear();
        say(emu.kernel->name);
    }
    watching = true, has_added = has_fenced = false;
    block = at, block_number++, barriers = 1;
    for (auto &m : meetings) m = 1;
    for (auto &f : fences) f = 0;
}

void emu_race_end() { watching = false; }

void emu_race_touch(uintptr_t place, const void *p, size_t bytes, bool shared, bool write)
{
    if (!watching) return;
    if (shared) touch_shared((uintptr_t) p, bytes, write, access(place, false));
    else touch_global((uintptr_t) p, bytes, write, access(place, false));
}

void __attribute__((noinline)) emu_race_add(const void *p, bool shared)
{
    if (!watching) return;
    const Access now = access(PLACE, true);
    if (shared) {
        touch_shared((uintptr_t) p, 4, true, now);
        return;
    }
    touch_global((uintptr_t) p, 4, true, now);
    has_added = true;
    published[block] = fences;
}

void __attribute__((noinline)) emu_race_copy(const void *to, bool arrives)
{
    if (!watching) return;
    const Access now = access(PLACE, false);
    if (!arrives) touch_shared((uintptr_t) to, 16, true, now);
    for (uintptr_t p = (uintptr_t) to; p < (uintptr_t) to + 16; p++) {
        Shared &b = shared_byte(p);
        b.sent = !arrives;
        if (arrives) b.write = now;
        else b.copy = now;
    }
}

void emu_race_fence()
{
    fences[(size_t) emu.tid]++;
    has_fenced |= has_added;
}

void emu_race_met(int warp)
{
    if (warp >= 0) meetings[warp]++;
    if (warp >= 0) return;
    barriers++;
    for (auto &m : meetings) m++;
}
