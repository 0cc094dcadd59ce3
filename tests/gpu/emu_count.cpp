/* emu_count.cpp - how well a kernel's accesses to memory fit a card. Those to global memory come from ld, st and their
 * like, those to shared memory from the compiler (gcc's kernel-address sanitizer with calls, of which only the address
 * counts here). What the lanes of a warp do at the same place of the code, as often as they have been there, is one
 * access of the warp. It touches sectors of 32 bytes in global memory, or takes passes over the 32 banks of shared
 * memory; the least is what as many different bytes would take. Of each launch some blocks are counted.
 * RATOON_EMU_COUNTS=FILE: at the end a line for each kernel is appended:
 *     kernel blocks  weights: sectors least  loads: sectors least  stores: sectors least  shared: passes least
 * and for each place that takes more than the least one more, with its address in this library for addr2line:
 *     - kernel address kind taken least */
#include <algorithm>
#include <dlfcn.h>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>
#include "backend/gpu/gpu.h"
#include "emu_watch.h"

namespace {
enum Kind { WEIGHTS, LOADS, STORES, SHARED_MEMORY, KINDS };
const char *const kind_names[] = { "weights", "loads", "stores", "shared" };
struct Access { uintptr_t place, at; uint32_t lane; uint16_t bytes; uint8_t how; };
struct Sum { uint64_t taken = 0, least = 0; };
struct Site { Sum sum; Kind kind = LOADS; };
struct Kernel { uint64_t blocks = 0; Sum kind[KINDS]; std::map<uintptr_t, Site> site; };

const char *const file_name = getenv("RATOON_EMU_COUNTS");
bool counting;
std::vector<Access> accesses;                      /* of this block */
std::map<std::string, Kernel> kernels;

/* How many sectors, or passes over the banks: 4 bytes of a bank at a time, lanes by the 128 bytes that they ask for. */
Sum cost(const std::vector<const Access *> &lanes, bool shared)
{
    std::vector<uintptr_t> unit;
    Sum sum;
    if (!shared) {
        std::vector<std::pair<uintptr_t, uintptr_t>> part;
        for (auto *a : lanes) part.push_back({ a->at, a->at + a->bytes });
        std::sort(part.begin(), part.end());
        uintptr_t end = 0, bytes = 0, sector = 0;
        for (auto &p : part) {
            if (p.second <= end) continue;
            bytes += p.second - std::max(end, p.first), end = p.second;
            const uintptr_t first = std::max(sector, p.first / 32);
            sector = std::max(sector, (p.second - 1) / 32 + 1);
            sum.taken += sector - std::min(sector, first);
        }
        sum.least = (bytes + 31) / 32;
        return sum;
    }
    const size_t at_once = lanes[0]->bytes <= 4 ? 32 : 128 / lanes[0]->bytes;
    std::vector<uintptr_t> all;
    for (size_t first = 0; first < 32; first += at_once) {
        unit.clear();
        for (auto *a : lanes)
            if (a->lane >= first && a->lane < first + at_once)
                for (uintptr_t w = a->at / 4; w <= (a->at + a->bytes - 1) / 4; w++) unit.push_back(w);
        std::sort(unit.begin(), unit.end());
        unit.erase(std::unique(unit.begin(), unit.end()), unit.end());
        size_t bank[32] = {}, most = 0;
        for (auto w : unit) most = std::max(most, ++bank[w % 32]);
        sum.taken += most, sum.least += (unit.size() + 31) / 32;
    }
    return sum;
}

bool in_shared(uintptr_t p) { return p - (uintptr_t) emu.shared < emu.struct_bytes; }

void note(uintptr_t place, const void *p, size_t bytes, EmuAccess how)
{
    if (!counting) return;
    accesses.push_back(Access{place, (uintptr_t) p, (uint32_t) emu.tid, (uint16_t) bytes, how});
}

void add(Sum &to, const Sum &s) { to.taken += s.taken, to.least += s.least; }

void print_all()
{
    FILE *f = file_name ? fopen(file_name, "a") : nullptr;
    if (!f) return;
    for (auto &k : kernels) {
        fprintf(f, "%s %llu", k.first.c_str(), (unsigned long long) k.second.blocks);
        for (auto &s : k.second.kind)
            fprintf(f, "  %llu %llu", (unsigned long long) s.taken, (unsigned long long) s.least);
        fputc('\n', f);
        for (auto &s : k.second.site) {
            Dl_info in;
            if (s.second.sum.taken == s.second.sum.least || !dladdr((void *) s.first, &in)) continue;
            fprintf(f, "- %s %#zx %s %llu %llu\n", k.first.c_str(), (size_t) (s.first - (uintptr_t) in.dli_fbase),
                    kind_names[s.second.kind], (unsigned long long) s.second.sum.taken,
                    (unsigned long long) s.second.sum.least);
        }
    }
    fclose(f);
}
struct AtEnd { ~AtEnd() { print_all(); } } at_end;
}

void __attribute__((noinline)) emu_count(const void *there, size_t bytes, EmuAccess how)
{
    const uintptr_t place = (uintptr_t) __builtin_return_address(0);
    note(place, there, bytes, how);
    if (how == EMU_WEIGHT || in_shared((uintptr_t) there)) return;
    emu_race_touch(place, there, bytes, false, how == EMU_STORE);
}

void emu_count_begin(int64_t at, int64_t blocks) { counting = file_name && at % ((blocks + 7) / 8) == 0; }

void emu_count_end()
{
    if (!counting) return;
    counting = false;
    Kernel &k = kernels[emu.kernel->name];
    std::unordered_map<uintptr_t, uint32_t> times;
    struct Key { uint32_t warp; uintptr_t place; uint32_t time; };
    std::vector<std::pair<Key, const Access *>> sorted;
    for (auto &a : accesses)
        sorted.push_back({ Key{a.lane / EMU_WARP, a.place, times[a.place * EMU_THREADS + a.lane]++}, &a });
    std::stable_sort(sorted.begin(), sorted.end(), [](auto &x, auto &y) {
        const Key &a = x.first, &b = y.first;
        return a.warp != b.warp ? a.warp < b.warp : a.place != b.place ? a.place < b.place : a.time < b.time;
    });
    std::vector<Access> lanes(EMU_WARP);
    std::vector<const Access *> group;
    for (size_t i = 0; i < sorted.size();) {
        const Key key = sorted[i].first;
        group.clear();
        size_t n = 0;
        for (; i < sorted.size() && sorted[i].first.warp == key.warp && sorted[i].first.place == key.place &&
               sorted[i].first.time == key.time; i++) {
            lanes[n] = *sorted[i].second;
            lanes[n].lane %= EMU_WARP;
            group.push_back(&lanes[n++]);
        }
        const bool shared = in_shared(group[0]->at);
        const Kind kind = shared ? SHARED_MEMORY : group[0]->how == EMU_WEIGHT ? WEIGHTS
                        : group[0]->how == EMU_STORE ? STORES : LOADS;
        const Sum s = cost(group, shared);
        add(k.kind[kind], s);
        add(k.site[key.place].sum, s);
        k.site[key.place].kind = kind;
    }
    k.blocks++;
    accesses.clear();
}

/* What the compiler calls. */
static inline void report(uintptr_t place, void *p, size_t n, EmuAccess how)
{
    if (!in_shared((uintptr_t) p)) return;
    note(place, p, n, how);
    emu_race_touch(place, p, n, true, how == EMU_STORE);
}
#define PLACE ((uintptr_t) __builtin_return_address(0))
#define REPORT(n) \
    extern "C" void __asan_load##n##_noabort(void *p) { report(PLACE, p, n, EMU_LOAD); } \
    extern "C" void __asan_store##n##_noabort(void *p) { report(PLACE, p, n, EMU_STORE); }
REPORT(1) REPORT(2) REPORT(4) REPORT(8) REPORT(16)
extern "C" void __asan_loadN_noabort(void *p, size_t n) { report(PLACE, p, n, EMU_LOAD); }
extern "C" void __asan_storeN_noabort(void *p, size_t n) { report(PLACE, p, n, EMU_STORE); }
extern "C" void __asan_handle_no_return() {}
