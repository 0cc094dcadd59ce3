/* planted.h - errors planted in a small kernel (planted.cu), each of which the emulator must find
 * (test_gpu_planted.c). */
#ifndef RATOON_TESTS_GPU_PLANTED_H
#define RATOON_TESTS_GPU_PLANTED_H

#include <stdint.h>

/* out [blocks, 128] = for each block, the sum over `steps` of A [16, 32] B [32, 8], both in the order of fragments,
 * times the block's weight. found: what the emulator says of it; NULL: other bits in some order. */
#define PLANTED(X) \
    X(sound, NULL) \
    X(no_first_sync, NULL) X(no_second_sync, NULL) X(no_copy_wait, "nobody waited for") X(stage_too_few, NULL) \
    X(restaged_too_soon, NULL) \
    X(no_sync_warp, NULL) X(mma_under_divergence, "lanes of a warp") X(swapped_columns, NULL) \
    X(read_before_wait, "before pass_wait") X(write_before_wait, "writes before pass_wait") \
    X(prefetch_of_written, "which a kernel has written") X(table_of_written, "which a kernel has written") \
    X(early_of_written, "which a launch of this pass has written") \
    X(no_pass_wait, "ends without pass_wait") \
    X(wait_twice, "twice") X(out_of_bounds, "not in allocated memory") X(misaligned, "not aligned") \
    X(host_address, "no address of device memory") X(raw_access, "by other means than ld") \
    X(behind_shared, "written within") X(early_end, "others wait for them at a barrier") \
    X(race_of_blocks, NULL) X(rubbish_counts, NULL)

/* Found by emu_race.cpp alone (test_races.py): the bits are right, since the emulation is kind. */
#define UNORDERED "nothing orders"

/* The same for lists and tickets: row i's two pairs 2 i and 2 i + 1 chose the expert, which is a block, ids[pair]; who
 * comes last to a row sums it up: sum [rows, 64] = 3 * each[2 i] - each[2 i + 1], columns reversed, of each[pair][c] =
 * weight[expert] * (100 * pair + c). */
enum { PLANT_ROWS = 8, PLANT_COLS = 64 };
#define PLANTED_LISTS(X) \
    X(sound_lists, NULL) \
    X(list_before_wait, "before pass_wait") X(list_not_cleared, NULL) X(list_too_soon, NULL) \
    X(list_off_by_one, NULL) X(ticket_too_soon, NULL) X(ticket_off_by_one, NULL) X(ticket_of_pair, NULL) \
    X(no_first_fence, UNORDERED) X(no_second_fence, UNORDERED)

typedef struct {
    const uint8_t *a, *b;                          /* [blocks, steps, 512], [steps, 256] */
    const int32_t *weight, *written;               /* [blocks], [4]: from the host, from the launch before */
    int32_t *out, steps;
    const int32_t *ids;                            /* [rows, 2] */
    int32_t *each, *ticket, *sum;                  /* ticket [2 * rows]: 0 */
} PlantArgs;

#endif
