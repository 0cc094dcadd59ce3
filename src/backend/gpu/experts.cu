/* experts.cu - mixtures of experts: which experts a row gets, the lists of rows by expert, and experts whose weights
 * are floats. */
#include "backend/gpu/gpu_experts.h"

enum { ROUTE_THREADS = 256, ROUTE_WARPS = ROUTE_THREADS / 32 };

struct ListsShared { int start[EXPERTS_MAX], places[ROUTE_WARPS], items[ROUTE_WARPS]; };
struct ChoiceShared {
    alignas(16) uint32_t key[EXPERTS_MAX];
    float p[EXPERTS_MAX];
    int   id[EXPERTS_USED_MAX];
    float weight[EXPERTS_USED_MAX];
};

/* ---- lists ---- */

/* The sum over the lanes before this one; all: over all lanes. */
DEV int sum_before(int v, int *all)
{
    const int lane = TID & 31;
    int sum = v;
    for (int d = 1; d < 32; d <<= 1) {
        const int other = shfl(sum, lane - d);
        if (lane >= d) sum += other;
    }
    *all = shfl(sum, 31);
    return sum - v;
}

/* By one block. A thread has experts side by side. */
DEV void make_lists(const ExpertLists &a, ListsShared &s)
{
    const int each = (a.experts + ROUTE_THREADS - 1) / ROUTE_THREADS, first = TID * each, warp = TID >> 5;
    const int last = first + each < a.experts ? first + each : a.experts;
    for (int e = TID; e < a.experts; e += ROUTE_THREADS) s.start[e] = 0;
    for (int i = TID; i < a.n_clear; i += ROUTE_THREADS) st(a.clear + i, 0);
    sync_block();
    for (int i = TID; i < a.pairs; i += ROUTE_THREADS) {
        const int id = ld(a.ids + i);
        if (id >= 0 && id < a.experts) atomic_add(&s.start[id], 1);
    }
    sync_block();
    int places = 0, items = 0, different = 0, all_places, all_items;
    for (int e = first; e < last; e++) {
        places += s.start[e], items += (s.start[e] + EXPERT_ROWS - 1) / EXPERT_ROWS;
        different += s.start[e] > 0;
        if (a.counts && s.start[e] > 0) st(a.counts + e, ld(a.counts + e) + s.start[e]);
    }
    if (different) atomic_add(&a.report->read, different);
    places = sum_before(places, &all_places);
    items = sum_before(items, &all_items);
    if ((TID & 31) == 0) s.places[warp] = all_places, s.items[warp] = all_items;
    sync_block();
    for (int w = 0; w < warp; w++) places += s.places[w], items += s.items[w];
    for (int e = first; e < last; e++) {
        const int n = s.start[e];
        s.start[e] = places;
        for (int i = 0; i < n; i += EXPERT_ROWS, items++)
            st((int4 *) a.item + items, int4{e, places + i, n - i < EXPERT_ROWS ? n - i : EXPERT_ROWS, 0});
        places += n;
    }
    if (TID == ROUTE_THREADS - 1) {
        st(a.n_items, items);
        atomic_add(&a.report->chosen, places);
    }
    sync_block();
    for (int i = TID; i < a.pairs; i += ROUTE_THREADS) {
        const int id = ld(a.ids + i);
        if (id >= 0 && id < a.experts) st(a.pair + atomic_add(&s.start[id], 1), i);
    }
}

KERNEL(ROUTE_THREADS, experts_lists, ExpertLists)
{
    SHARED(ListsShared, s);
    pass_next();
    pass_wait();
    make_lists(a, s);
}

/* ---- the router ---- */

/* Larger for what ranks higher: NaN is the lowest, and zeros are equal. */
DEV uint32_t rank_key(float v)
{
    const uint32_t u = bits_of_f32(f32_add(v, 0.0f));
    return v != v ? 0 : u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* How many experts rank before e. */
DEV int rank_of(const ChoiceShared &s, int experts, int e)
{
    const uint32_t key = s.key[e];
    int before = 0;
    for (int o = 0; o < experts; o += 4) {         /* keys beyond the last are 0 and higher than none */
        const uint4 k = *(const uint4 *) (s.key + o);
        before += k.x > key || (k.x == key && o < e);
        before += k.y > key || (k.y == key && o + 1 < e);
        before += k.z > key || (k.z == key && o + 2 < e);
        before += k.w > key || (k.w == key && o + 3 < e);
    }
    return before;
}

DEV void choose(const RouteArgs &a, ChoiceShared &s)
{
    const float *z = a.logits + (size_t) BID * (size_t) a.experts;
    for (int e = TID; e < (a.experts + 3) / 4 * 4; e += ROUTE_THREADS) {
        const bool there = e < a.experts;
        float p = there ? ld(z + e) : 0;
        if (a.gating == ROUTE_SIGMOID) p = f32_sigmoid(p);
        if (there) s.p[e] = p;
        s.key[e] = !there ? 0 : rank_key(a.bias ? f32_add(p, ld_weight(a.bias + e)) : p);
    }
    sync_block();
    for (int e = TID; e < a.experts; e += ROUTE_THREADS) {
        const int rank = rank_of(s, a.experts, e);
        if (rank < a.used) s.id[rank] = e;
    }
    sync_block();
    if (TID < a.used) {
        const float p = s.p[s.id[TID]];
        s.weight[TID] = a.gating == ROUTE_SIGMOID ? p : f32_exp(f32_sub(p, s.p[s.id[0]]));
    }
    sync_block();
    if (TID >= a.used) return;
    float sum = 0;
    for (int j = 0; j < a.used; j++) sum = f32_add(sum, s.weight[j]);
    if (a.gating == ROUTE_SIGMOID && sum < 0x1p-14f) sum = 0x1p-14f;
    float weight = f32_mul(f32_div(s.weight[TID], sum), a.scale);
    if (a.factor) weight = f32_mul(weight, ld_weight(a.factor + s.id[TID]));
    st(a.ids + (size_t) BID * (size_t) a.used + TID, s.id[TID]);
    st(a.weight + (size_t) BID * (size_t) a.used + TID, weight);
}

KERNEL(ROUTE_THREADS, experts_route, RouteArgs)
{
    typedef union { ChoiceShared choice; ListsShared lists; int last; } Shared;
    SHARED(Shared, s);
    pass_next();
    pass_wait();
    if (BID < ld(a.count)) choose(a, s.choice);
    else if (TID < a.used) st(a.ids + (size_t) BID * (size_t) a.used + TID, -1);
    if (!a.lists.item) return;
    fence();
    sync_block();
    if (TID == 0) {
        s.last = atomic_add(a.ticket, 1) == BLOCKS - 1;
        if (s.last) st(a.ticket, 0);
    }
    sync_block();
    fence();
    const bool last = s.last != 0;
    sync_block();
    if (last) make_lists(a.lists, s.lists);
}

/* ---- weights that are floats ---- */

enum { OF_F32, OF_F16, OF_BF16 };

/* A thread has one of the tile's weight rows and every other of the item's rows, four at a time. */
template <int OF> DEV void expert_floats(const ExpertsArgs &a)
{
    enum { HALVES = EXPERT_THREADS / EXPERT_COLS, AT_ONCE = 4 };
    SHARED(ExpertEnd, s);
    pass_next();
    pass_wait();
    clear_tickets(a);
    if (BID >= ld(a.n_items)) return;
    int tile;
    const ExpertItem item = expert_item(a);
    const ExpertProduct p = expert_product(a, &tile);
    const int to = tile * EXPERT_COLS + TID % EXPERT_COLS;
    const size_t size = OF == OF_F32 ? 4 : 2, group_bytes = ((size_t) a.cols * 16 * size + 63) / 64 * 64;
    const uint8_t *w = expert_matrix(p, item.expert) + (size_t) (to / 16) * group_bytes;
    for (int i0 = TID / EXPERT_COLS; to < p.rows && i0 < item.n; i0 += HALVES * AT_ONCE) {
        const float *x[AT_ONCE];
        int pair[AT_ONCE];
        float acc[AT_ONCE];
        UNROLL
        for (int j = 0; j < AT_ONCE; j++) {        /* rows beyond the last stand for it */
            const int i = i0 + HALVES * j;
            pair[j] = ld(a.pair + item.first + (i < item.n ? i : item.n - 1));
            x[j] = a.x + (size_t) (pair[j] / a.divide) * (size_t) a.cols;
            acc[j] = 0;
        }
        for (int k = 0; k < a.cols; k++) {
            const int at = 16 * k + to % 16;
            float v;
            if (OF == OF_F32) v = ld_weight((const float *) w + at);
            else if (OF == OF_F16) v = f32_of_half(ld_weight((const uint16_t *) w + at));
            else v = f32_of_bits((uint32_t) ld_weight((const uint16_t *) w + at) << 16);
            UNROLL
            for (int j = 0; j < AT_ONCE; j++) acc[j] = f32_fma(v, ld(x[j] + k), acc[j]);
        }
        UNROLL
        for (int j = 0; j < AT_ONCE; j++)
            if (i0 + HALVES * j < item.n) st(p.y + (size_t) pair[j] * (size_t) p.rows + to, acc[j]);
    }
    end_tile(a, s, item, tile);
}

KERNEL(EXPERT_THREADS, experts_f32, ExpertsArgs) { expert_floats<OF_F32>(a); }
KERNEL(EXPERT_THREADS, experts_f16, ExpertsArgs) { expert_floats<OF_F16>(a); }
KERNEL(EXPERT_THREADS, experts_bf16, ExpertsArgs) { expert_floats<OF_BF16>(a); }
