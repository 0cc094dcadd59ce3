/* draw_extras.cu - what DFlash2 adds: convolution over a block's rows, scores of pairs of candidates. */
#include "backend/gpu/gpu_unpack.h"

KERNEL(128, draw_block_conv, BlockConvArgs)
{
    pass_next();
    pass_wait();
    const int c = BID * 128 + TID, i = BID_Y, slice = ld(a.slice + i);
    if (c < a.cols && slice >= 0) {
        const int before = i - ld(&a.slices[slice].row0) + 1, taps = before < a.taps ? before : a.taps;
        const float *x = a.x + (int64_t) i * a.cols + c, *delta = a.delta + (int64_t) i * a.deltas + c / a.group;
        float acc = 0;
        for (int t = 0; t < taps; t++) {
            const float w = f32_add(ld_weight(a.base + (int64_t) t * a.cols + c), ld(delta + t * (a.cols / a.group)));
            acc = f32_fma(w, ld(x - (int64_t) t * a.cols), acc);
        }
        st(a.y + (int64_t) i * a.cols + c, acc);
    }
}

enum { PAIR_STEP = 1024 };
struct PairShared { float before[PAIR_STEP]; };

/* A block per logits row and candidate of the row before, 16 threads per candidate that follows: the sum over the rank
 * of (pred * g) * succ in 16 lanes, halves 8, 4, 2, 1 (design, Exactness 3). */
KERNEL(256, draw_pairs, PairArgs)
{
    SHARED(PairShared, s);
    pass_next();
    pass_wait();
    const int j = BID_Y;
    if (j < ld(a.count + 2)) {
        const int rank = a.pred.cols, lane = TID & 15, slice = ld(a.slice + ld(a.logit_row + j));
        const bool first = j == 0 || ld(a.slice + ld(a.logit_row + j - 1)) != slice;
        const Slice *sl = a.slices + slice;
        const int prev = first ? ld(a.token + ld(&sl->row0)) : ld(a.ids + (int64_t) (j - 1) * a.k + BID);
        const float set = ld(&sl->draw.p.temperature), temperature = set < 1e-5f ? 1.0f : set;
        for (int from = 0; from < a.k; from += 16) {
            const int i = from + TID / 16, id = i < a.k ? ld(a.ids + (int64_t) j * a.k + i) : -1;
            float acc = 0;
            for (int base = 0; prev >= 0 && base < rank; base += PAIR_STEP) {
                sync_block();
                for (int c = TID; c < PAIR_STEP && base + c < rank; c += 256)
                    s.before[c] = f32_mul(table_value(a.pred, prev, base + c), ld(a.g + (int64_t) j * rank + base + c));
                sync_block();
                const int end = id < 0 ? 0 : rank - base < PAIR_STEP ? rank - base : PAIR_STEP;
                for (int at = 0; at < end; at += 16) {
                    const int c = at + lane;
                    const bool there = c < end;
                    acc = f32_fma(there ? s.before[c] : 0.0f, there ? table_value(a.succ, id, base + c) : 0.0f, acc);
                }
            }
            acc = sum_of_16(acc);
            if (i < a.k && lane == 0) {
                const float alone = ld(a.score + (int64_t) j * a.k + i);
                const bool none = prev < 0 || id < 0 || alone == -f32_of_bits(0x7f800000u);
                st(a.edge + ((int64_t) j * a.k + BID) * a.k + i,
                   none ? -f32_of_bits(0x7f800000u) : f32_add(alone, f32_div(acc, temperature)));
            }
        }
    }
}
