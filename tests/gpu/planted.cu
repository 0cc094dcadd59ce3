/* planted.cu - one kernel that has a bit of everything, right and with one error each (planted.h). Two warps share a
 * block's steps; copies are two stages ahead; fragments are read by other lanes than those that copied them. */
#include "backend/gpu/gpu.h"
#include "planted.h"

enum Plant {
#define X(name, found) P_##name,
    PLANTED(X) PLANTED_LISTS(X)
#undef X
};

struct PlantShared { uint4 a[2][2][32], b[2][2][16]; int32_t part[2][128], sum[128]; };

template <Plant P> DEV void fetch(const PlantArgs &a, PlantShared &s, int step)
{
    const int warp = TID / 32, lane = TID % 32, stage = step / 2 % 2;
    if (step < a.steps) {
        const uint8_t *from = a.a + ((int64_t) BID * a.steps + step) * 512;
        copy16_async(&s.a[warp][stage][lane], from + 16 * lane + (P == P_misaligned ? 8 : 0));
        if (lane < 16) copy16_async(&s.b[warp][stage][lane], a.b + (int64_t) step * 256 + 16 * lane);
    }
    copy_commit();
}

template <Plant P> DEV void steps_of(const PlantArgs &a, PlantShared &s, int c[4])
{
    const int warp = TID / 32, lane = TID % 32;
    for (int i = warp; i < a.steps; i += 2) {
        const int stage = i / 2 % 2;
        if (P != P_restaged_too_soon) fetch<P>(a, s, i + 2);
        if (P == P_stage_too_few) copy_wait<2>();
        else if (P != P_no_copy_wait) copy_wait<1>();
        if (P != P_no_sync_warp) sync_warp();
        /* as a card's loads of fragments: lane 4 g + t reads words that other lanes have copied */
        const uint32_t *wa = (const uint32_t *) s.a[warp][stage], *wb = (const uint32_t *) s.b[warp][stage];
        const uint32_t x[4] = { wa[lane], wa[lane + 32], wa[lane + 64], wa[lane + 96] };
        if (P == P_restaged_too_soon) fetch<P>(a, s, i + 4);
        const uint32_t y[2] = { wb[P == P_swapped_columns ? lane + 32 : lane],
                                wb[P == P_swapped_columns ? lane : lane + 32] };
        if (P != P_mma_under_divergence || lane < 24 || i > 2) mma_16x8x32(c, x, y);
        if (P != P_no_sync_warp) sync_warp();
    }
}

template <Plant P> DEV void planted(const PlantArgs &a)
{
    SHARED(PlantShared, s);
    const int warp = TID / 32, lane = TID % 32;
    int c[4] = { 0, 0, 0, 0 }, weight = 0;
    pass_next();
    if (P == P_read_before_wait) weight = ld(a.weight + BID);
    if (P == P_write_before_wait) st(a.out, 0);
    if (P == P_prefetch_of_written) weight = ld_weight(a.written);
    if (P == P_table_of_written) weight = ld_table(a.written);
    if (P == P_early_of_written) copy16_early(&s.a[warp][0][lane], a.written);
    fetch<P>(a, s, warp);
    if (P == P_restaged_too_soon) fetch<P>(a, s, warp + 2);
    if (P != P_no_pass_wait) pass_wait();
    if (P == P_wait_twice) pass_wait();
    if (P == P_host_address) weight = ld(&a.steps);
    if (P != P_no_pass_wait) weight = ld(a.weight + BID + (P == P_out_of_bounds && BID == BLOCKS - 1 ? 1 : 0));
    if (P == P_raw_access) weight = a.weight[BID];
    steps_of<P>(a, s, c);
    if (P == P_stage_too_few) copy_wait<0>();
    for (int i = 0; i < 4; i++) s.part[warp][4 * lane + i] = c[i];
    if (P == P_early_end && warp == 1) return;
    if (P != P_no_first_sync) sync_block();
    for (int i = TID; i < 128; i += 64) {
        const uint32_t parts = (uint32_t) s.part[0][127 - i] + (uint32_t) s.part[1][127 - i];
        s.sum[i] = (P == P_rubbish_counts ? s.sum[i] & 1 : 0) ^ (int32_t) (parts * (uint32_t) weight);
    }
    if (P == P_behind_shared && TID == 5) (&s.sum[0])[128 + weight % 7] = 1;
    if (P != P_no_second_sync) sync_block();
    if (P == P_no_pass_wait) return;
    for (int i = TID; i < 128; i += 64) {
        int v = s.sum[127 - i];
        if (P == P_race_of_blocks && BID > 0) v ^= ld(a.out + (BID - 1) * 128 + i) & 1;
        st(a.out + BID * 128 + i, v);
    }
}

#define X(name, found) KERNEL(64, plant_##name, PlantArgs) { planted<P_##name>(a); }
PLANTED(X)
#undef X

struct ListShared { int32_t n, pair[2 * PLANT_ROWS], last[2 * PLANT_ROWS]; };

/* A block is an expert. */
template <Plant P> DEV void planted_lists(const PlantArgs &a)
{
    SHARED(ListShared, s);
    int32_t id = -1;
    pass_next();
    if (P == P_list_before_wait && TID < 2 * PLANT_ROWS) id = ld(a.ids + TID);
    pass_wait();
    if (TID < 2 * PLANT_ROWS) id = ld(a.ids + TID);
    if (TID == 0 && P != P_list_not_cleared) s.n = 0;
    sync_block();
    if (id == BID) s.pair[atomic_add(&s.n, 1)] = TID;
    if (P != P_list_too_soon) sync_block();
    const int32_t n = s.n - (P == P_list_off_by_one && BID == 1);
    for (int i = 0; i < n; i++)
        st(a.each + s.pair[i] * PLANT_COLS + TID, ld(a.weight + BID) * (100 * s.pair[i] + TID));
    if (P != P_no_first_fence) fence();
    sync_block();
    if (TID < n) {
        const int at = P == P_ticket_of_pair ? s.pair[TID] : s.pair[TID] / 2;
        s.last[TID] = atomic_add(a.ticket + at, 1) == (P == P_ticket_off_by_one ? 0 : 1);
    }
    if (P != P_ticket_too_soon) sync_block();
    if (P != P_no_second_fence) fence();
    for (int i = 0; i < n; i++) {
        if (s.last[i] != 1) continue;
        const int row = s.pair[i] / 2, from = 2 * row * PLANT_COLS + PLANT_COLS - 1 - TID;
        st(a.sum + row * PLANT_COLS + TID, 3 * ld(a.each + from) - ld(a.each + from + PLANT_COLS));
    }
}

#define X(name, found) KERNEL(PLANT_COLS, plant_##name, PlantArgs) { planted_lists<P_##name>(a); }
PLANTED_LISTS(X)
#undef X

KERNEL(32, plant_before, PlantArgs)
{
    pass_wait();
    if (TID == 0) st((int32_t *) a.written, 3);
}
