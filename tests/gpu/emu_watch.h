/* emu_watch.h - what the emulation tells those that watch accesses to memory, where the library is built for it
 * (EMU_WATCHED): how well they fit a card (emu_count.cpp), and what orders them (emu_race.cpp). place: in the code. */
#ifndef RATOON_TESTS_GPU_EMU_WATCH_H
#define RATOON_TESTS_GPU_EMU_WATCH_H

#include <stddef.h>
#include <stdint.h>

/* Of a block, number `at` of `blocks` of a launch. */
enum EmuAccess : uint8_t { EMU_LOAD, EMU_STORE, EMU_WEIGHT };
/* Of the code that calls; there: in global memory, or where a copy to shared memory goes. */
void emu_count(const void *there, size_t bytes, EmuAccess how);
void emu_count_begin(int64_t at, int64_t blocks);
void emu_count_end();
void emu_race_begin(int64_t at);
void emu_race_end();
void emu_race_touch(uintptr_t place, const void *p, size_t bytes, bool shared, bool write);
/* Of the code that calls: atomic_add; a copy to shared memory is sent, or has been waited for. */
void emu_race_add(const void *p, bool shared);
void emu_race_copy(const void *to, bool arrives);
void emu_race_fence();
void emu_race_met(int warp);                       /* sync_warp of this warp; -1: sync_block */

#endif
