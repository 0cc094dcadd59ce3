/* test_expert_cache.c - which experts are in memory, against a second book that is kept the plain way: lists that are
 * searched from end to end, and scores that are sums over all rows. Then traffic that changes, for how many of its
 * experts are there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/expert_cache.h"                  /* before cmocka.h, whose macro fail() would hide ours */

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random_below.h"

enum { LAYERS = 5, EXPERTS = 24, KINDS = 3, SLOTS_MAX = 128, NONE = -1 };
static const double MARGIN = 1.05;

/* ---- the second book ---- */

typedef struct { int32_t layer, expert, users; bool pinned; } Held;        /* layer NONE: empty */
/* ring: slots, oldest first. fresh: slots that were never filled; to_pin: how many that are filled next are pinned. */
typedef struct { int32_t slots, n_ring, first, fresh, to_pin, n_in_ring, ring[SLOTS_MAX]; } Pool;
typedef struct {
    ExpertCache *c;
    int32_t      layers, kind[LAYERS], kinds, mixtures;
    double       half_life, age, score[LAYERS][EXPERTS];           /* age: rows per layer so far */
    Pool         pool[KINDS];
    Held         held[SLOTS_MAX];
    int32_t      n_slots;
    int64_t      evicted, promoted;
} Book;

static void book_open(Book *b, int32_t layers, const int32_t *kind, int32_t kinds, const int32_t *slots,
                      const int32_t *ring, double half_life)
{
    Error err = { 0 };
    *b = (Book) { .layers = layers, .kinds = kinds, .half_life = half_life };
    for (int32_t k = 0; k < kinds; k++) {
        b->pool[k] = (Pool) { .slots = slots[k], .n_ring = ring[k], .first = b->n_slots, .fresh = slots[k],
                              .to_pin = slots[k] - ring[k] };
        b->n_slots += slots[k];
    }
    assert_true(b->n_slots <= SLOTS_MAX);
    for (int32_t s = 0; s < b->n_slots; s++) b->held[s].layer = NONE;
    for (int32_t il = 0; il < layers; il++) b->mixtures += (b->kind[il] = kind[il]) != NONE;
    if (expert_cache_open(&b->c, &(CacheShape) { layers, EXPERTS, kinds, kind, slots, ring, half_life }, &err) != ST_OK)
        fail_msg("%s", err.text);
}

static int32_t slot_of(const Book *b, int32_t layer, int32_t expert)
{
    for (int32_t s = 0; s < b->n_slots; s++)
        if (b->held[s].layer == layer && b->held[s].expert == expert) return s;
    return NONE;
}

static Pool *pool_of(Book *b, int32_t slot)
{
    Pool *p = b->pool;
    while (slot >= p->first + p->slots) p++;
    return p;
}

static void ring_remove(Pool *p, int32_t slot)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_in_ring; i++)
        if (p->ring[i] != slot) p->ring[n++] = p->ring[i];
    assert_int_equal(n, p->n_in_ring - 1);
    p->n_in_ring = n;
}

static void ring_insert(Pool *p, int32_t at, int32_t slot)
{
    memmove(p->ring + at + 1, p->ring + at, sizeof *p->ring * (size_t) (p->n_in_ring - at));
    p->ring[at] = slot;
    p->n_in_ring++;
}

/* Before all filled slots. */
static void ring_oldest(Book *b, Pool *p, int32_t slot)
{
    int32_t at = 0;
    while (at < p->n_in_ring && b->held[p->ring[at]].layer == NONE) at++;
    ring_insert(p, at, slot);
}

static double held_score(const Book *b, int32_t s) { return b->score[b->held[s].layer][b->held[s].expert]; }

/* The slot of the ring has been used: it takes the place of the weakest pinned one if that is weaker by the margin. Of
 * several that are equally weak the cache may take any. */
static void book_promote(Book *b, int32_t slot)
{
    Pool *p = pool_of(b, slot);
    int32_t weak = NONE;
    for (int32_t s = p->first; s < p->first + p->slots; s++)
        if (b->held[s].pinned && (weak == NONE || held_score(b, s) < held_score(b, weak))) weak = s;
    if (weak == NONE) return;
    const double least = held_score(b, weak), has = held_score(b, slot);
    if (fabs(least * MARGIN - has) <= 1e-9 * has) {                /* rounding decides */
        if (!expert_cache_pinned(b->c, slot)) return;
    } else if (least * MARGIN > has) {
        return;
    }
    for (int32_t s = p->first; s < p->first + p->slots; s++)
        if (b->held[s].pinned && held_score(b, s) <= least * (1 + 1e-9) && !expert_cache_pinned(b->c, s)) weak = s;
    ring_remove(p, slot);
    b->held[slot].pinned = true;
    b->held[weak].pinned = false;
    ring_insert(p, p->n_in_ring, weak);
    b->promoted++;
}

static int32_t book_take(Book *b, int32_t layer, int32_t expert)
{
    Pool *p = &b->pool[b->kind[layer]];
    int32_t s = NONE;
    if (p->fresh > 0) {
        s = p->first + p->slots - p->fresh--;
    } else {
        for (int32_t i = 0; s == NONE && i < p->n_in_ring; i++)
            if (b->held[p->ring[i]].users == 0) s = p->ring[i];
        if (s == NONE) return NONE;
        b->evicted += b->held[s].layer != NONE;
        ring_remove(p, s);
    }
    b->held[s] = (Held) { layer, expert, 1, p->to_pin > 0 };
    if (b->held[s].pinned) {
        p->to_pin--;
        return s;
    }
    ring_insert(p, p->n_in_ring, s);
    book_promote(b, s);
    return s;
}

static void book_use(Book *b, int32_t s)
{
    Pool *p = pool_of(b, s);
    b->held[s].users++;
    if (b->held[s].pinned) return;
    ring_remove(p, s);
    ring_insert(p, p->n_in_ring, s);
    book_promote(b, s);
}

static void book_done(Book *b, int32_t s, bool first)
{
    Pool *p = pool_of(b, s);
    b->held[s].users--;
    if (!first || b->held[s].pinned) return;
    ring_remove(p, s);
    ring_oldest(b, p, s);
}

static void book_drop(Book *b, int32_t s)
{
    Pool *p = pool_of(b, s);
    const bool pinned = b->held[s].pinned;
    b->held[s] = (Held) { .layer = NONE };
    if (!pinned) {
        ring_remove(p, s);
    } else {
        int32_t i = p->n_in_ring - 1;
        while (i >= 0 && b->held[p->ring[i]].layer == NONE) i--;
        if (i < 0) p->to_pin++;
        else {
            const int32_t up = p->ring[i];
            ring_remove(p, up);
            b->held[up].pinned = true;
        }
    }
    ring_oldest(b, p, s);
}

/* Rows count half after half_life rows of all layers. */
static void book_count(Book *b, int32_t layer, const int32_t *expert, const int32_t *times, int32_t n, int32_t rows)
{
    const int32_t counted = rows < CACHE_ROWS ? rows : CACHE_ROWS;
    const double fade = exp2(-counted / (b->half_life * b->mixtures));
    for (int32_t i = 0; i < n; i++) b->score[layer][expert[i]] += (double) times[i] * counted / rows;
    for (int32_t il = 0; il < b->layers; il++)
        for (int32_t e = 0; e < EXPERTS; e++) b->score[il][e] *= fade;
}

/* Both books agree about everything that can be asked. */
static void agree(const Book *b, const char *after)
{
    int32_t where[LAYERS][EXPERTS];
    memset(where, -1, sizeof where);
    for (int32_t s = 0; s < b->n_slots; s++) {
        const Held *h = &b->held[s];
        if (h->layer == NONE) continue;
        assert_int_equal(where[h->layer][h->expert], NONE);        /* in one slot at most */
        where[h->layer][h->expert] = s;
        if (expert_cache_pinned(b->c, s) != h->pinned)
            fail_msg("after %s: slot %d is %spinned", after, s, h->pinned ? "not " : "");
    }
    for (int32_t il = 0; il < b->layers; il++)
        for (int32_t e = 0; e < EXPERTS; e++) {
            const int32_t at = expert_cache_find(b->c, il, e);
            const double score = expert_cache_score(b->c, il, e);
            if (at != where[il][e])
                fail_msg("after %s: expert %d of layer %d is in slot %d, expected %d", after, e, il, at, where[il][e]);
            if (fabs(score - b->score[il][e]) > 1e-9 * b->score[il][e] + 1e-300)
                fail_msg("after %s: score %g, expected %g", after, score, b->score[il][e]);
        }
    for (int32_t k = 0; k < b->kinds; k++) {
        const Pool *p = &b->pool[k];
        int32_t pinned = 0;
        for (int32_t s = p->first; s < p->first + p->slots; s++) pinned += b->held[s].pinned;
        assert_int_equal(pinned + p->n_in_ring + p->fresh, p->slots);
        assert_int_equal(pinned + p->to_pin, p->slots - p->n_ring);
    }
    assert_int_equal(expert_cache_evicted(b->c), b->evicted);
    assert_int_equal(expert_cache_promoted(b->c), b->promoted);
}

/* ---- anything in any order ---- */

/* The slots in use, one as often as it has users. */
typedef struct { int32_t slot[256], n; } Uses;

static void let_go(Book *b, Uses *u, int32_t i, bool first)
{
    const int32_t s = u->slot[i];
    u->slot[i] = u->slot[--u->n];
    book_done(b, s, first);
    expert_cache_done(b->c, s, first);
}

static int32_t a_layer(const Book *b)
{
    for (;;) {
        const int32_t il = (int32_t) random_below((uint32_t) b->layers);
        if (b->kind[il] != NONE) return il;
    }
}

static void count_some(Book *b)
{
    int32_t expert[EXPERTS], times[EXPERTS], n = 0;
    const int32_t rows = random_below(4) ? 1 : 1 + (int32_t) random_below(200);
    for (int32_t e = 0; e < EXPERTS; e++) {
        if (random_below((uint32_t) (3 + e))) continue;            /* the first ones are chosen more often */
        expert[n] = e;
        times[n++] = 1 + (int32_t) random_below((uint32_t) rows);
    }
    const int32_t il = a_layer(b);
    book_count(b, il, expert, times, n, rows);
    expert_cache_count(b->c, il, expert, times, n, rows);
}

/* failing: some of what is taken is dropped. */
static void one_operation(Book *b, Uses *u, int32_t most_uses, bool failing, const char **what)
{
    const int32_t il = a_layer(b), e = (int32_t) random_below(random_below(2) ? 6 : EXPERTS), s = slot_of(b, il, e);
    const uint32_t which = random_below(8);
    *what = "done";
    if (u->n > 0 && (which < 3 || u->n >= most_uses)) {
        const int32_t i = (int32_t) random_below((uint32_t) u->n), of = u->slot[i];
        if (failing && b->held[of].users == 1 && random_below(6) == 0) {
            *what = "drop";
            u->slot[i] = u->slot[--u->n];
            expert_cache_drop(b->c, of);
            book_drop(b, of);
        } else {
            let_go(b, u, i, random_below(4) == 0);
        }
    } else if (which == 3) {
        *what = "count";
        count_some(b);
    } else if (s != NONE) {
        *what = "use";
        expert_cache_use(b->c, s);
        book_use(b, s);
        u->slot[u->n++] = s;
    } else {
        *what = "take";
        const int32_t got = expert_cache_take(b->c, il, e), want = book_take(b, il, e);
        if (got != want) fail_msg("slot %d was given, expected %d", got, want);
        if (got != NONE) u->slot[u->n++] = got;
    }
}

static void random_operations(bool failing)
{
    static const struct { int32_t kinds, kind[LAYERS], slots[KINDS], ring[KINDS]; double half_life; } shapes[] = {
        { 1, { 0, 0, 0, 0, 0 }, { 60 }, { 8 }, 256 }, { 1, { 0, 0, 0, 0, 0 }, { 5 }, { 1 }, 10 },
        { 1, { NONE, 0, NONE, 0, 0 }, { 12 }, { 12 }, 20 }, { 1, { 0, 0, 0, 0, 0 }, { 1 }, { 1 }, 3 },
        { 3, { 0, 1, NONE, 2, 1 }, { 10, 40, 3 }, { 2, 5, 1 }, 2 }, { 2, { 1, 0, 1, 0, 1 }, { 40, 60 }, { 1, 1 }, 40 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int32_t round = 0; round < 4; round++) {
            Book b;
            Uses u = { .n = 0 };
            const char *what = "opening";
            book_open(&b, LAYERS, shapes[i].kind, shapes[i].kinds, shapes[i].slots, shapes[i].ring,
                      shapes[i].half_life);
            agree(&b, what);
            for (int32_t k = 0; k < 2000; k++) {
                one_operation(&b, &u, round % 2 ? 3 : 40, failing, &what);
                agree(&b, what);
            }
            assert_true(b.evicted > 0);
            expert_cache_close(b.c);
        }
}

static void as_in_the_book(void **state)
{
    (void) state;
    reseed();
    random_operations(false);
    random_operations(true);
}

/* ---- the rules one by one ---- */

static void chosen(Book *b, int32_t layer, int32_t expert, int32_t times)
{
    for (int32_t i = 0; i < times; i++) {
        expert_cache_count(b->c, layer, &expert, (int32_t[]) { 1 }, 1, 1);
        book_count(b, layer, &expert, (int32_t[]) { 1 }, 1, 1);
    }
}

/* A layer's expert passes through a slot. */
static int32_t visit(Book *b, int32_t layer, int32_t expert, bool first)
{
    int32_t s = expert_cache_find(b->c, layer, expert);
    if (s == NONE) {
        s = expert_cache_take(b->c, layer, expert);
        assert_int_equal(book_take(b, layer, expert), s);
        if (s == NONE) return s;
    } else {
        expert_cache_use(b->c, s);
        book_use(b, s);
    }
    expert_cache_done(b->c, s, first);
    book_done(b, s, first);
    agree(b, "a visit");
    return s;
}

static void one_layer(Book *b, int32_t slots, int32_t ring)
{
    book_open(b, 1, (int32_t[]) { 0 }, 1, &slots, &ring, 1e6);
}

static void the_longest_unused_gives_way(void **state)
{
    (void) state;
    Book b;
    one_layer(&b, 4, 4);
    for (int32_t e = 0; e < 4; e++) visit(&b, 0, e, false);
    visit(&b, 0, 0, false);
    visit(&b, 0, 4, false);
    assert_int_equal(expert_cache_find(b.c, 0, 1), NONE);
    assert_true(expert_cache_find(b.c, 0, 0) >= 0);
    visit(&b, 0, 5, true);                         /* passes only */
    assert_int_equal(expert_cache_find(b.c, 0, 2), NONE);
    visit(&b, 0, 6, false);
    assert_int_equal(expert_cache_find(b.c, 0, 5), NONE);
    assert_true(expert_cache_find(b.c, 0, 3) >= 0);
    expert_cache_close(b.c);
}

static void who_is_in_use_stays(void **state)
{
    (void) state;
    Book b;
    one_layer(&b, 3, 3);
    for (int32_t e = 0; e < 3; e++) assert_int_equal(expert_cache_take(b.c, 0, e), e);
    assert_int_equal(expert_cache_take(b.c, 0, 3), NONE);
    expert_cache_use(b.c, 1);                      /* a second user */
    expert_cache_done(b.c, 1, false);
    assert_int_equal(expert_cache_take(b.c, 0, 3), NONE);
    expert_cache_done(b.c, 2, false);
    assert_int_equal(expert_cache_take(b.c, 0, 3), 2);
    expert_cache_done(b.c, 0, false);
    expert_cache_done(b.c, 1, true);
    assert_int_equal(expert_cache_take(b.c, 0, 4), 1);             /* it came first, as asked */
    assert_int_equal(expert_cache_take(b.c, 0, 5), 0);
    expert_cache_close(b.c);
}

static void the_best_are_pinned(void **state)
{
    (void) state;
    Book b;
    one_layer(&b, 3, 1);
    chosen(&b, 0, 0, 100);
    chosen(&b, 0, 1, 40);
    chosen(&b, 0, 2, 41);
    const int32_t a = visit(&b, 0, 0, false), weak = visit(&b, 0, 1, false), s = visit(&b, 0, 2, false);
    assert_true(expert_cache_pinned(b.c, a) && expert_cache_pinned(b.c, weak));
    assert_false(expert_cache_pinned(b.c, s));     /* better, but not by the margin */
    chosen(&b, 0, 2, 2);
    assert_false(expert_cache_pinned(b.c, s));     /* places change when it is used */
    visit(&b, 0, 2, false);
    assert_true(expert_cache_pinned(b.c, s) && !expert_cache_pinned(b.c, weak) && expert_cache_pinned(b.c, a));
    assert_int_equal(expert_cache_find(b.c, 0, 1), weak);          /* moved to the ring, and no byte with it */
    for (int32_t e = 3; e < EXPERTS; e++) visit(&b, 0, e, false);
    assert_int_equal(expert_cache_find(b.c, 0, 0), a);             /* pinned ones never give way */
    assert_int_equal(expert_cache_find(b.c, 0, 2), s);
    assert_int_equal(expert_cache_promoted(b.c), 1);
    assert_int_equal(expert_cache_evicted(b.c), EXPERTS - 3);
    expert_cache_close(b.c);
}

/* The weakest pinned expert is the one that came last, and then one whose score has grown since it was looked at. */
static void the_weakest_is_known(void **state)
{
    (void) state;
    Book b;
    one_layer(&b, 5, 2);
    for (int32_t e = 0; e < 3; e++) {
        chosen(&b, 0, e, e ? 100 : 10);
        visit(&b, 0, e, false);
    }
    chosen(&b, 0, 3, 20);
    visit(&b, 0, 3, false);                        /* in place of 0 */
    chosen(&b, 0, 4, 30);
    visit(&b, 0, 4, false);                        /* in place of 3 */
    assert_int_equal(expert_cache_promoted(b.c), 2);
    chosen(&b, 0, 4, 20);
    chosen(&b, 0, 3, 25);
    visit(&b, 0, 3, false);                        /* 45 are fewer than 50 */
    assert_int_equal(expert_cache_promoted(b.c), 2);
    chosen(&b, 0, 3, 10);
    visit(&b, 0, 3, false);
    assert_int_equal(expert_cache_promoted(b.c), 3);
    expert_cache_close(b.c);
}

static void rows_count_half_after_a_half_life(void **state)
{
    (void) state;
    Book b;
    const int32_t kind[] = { 0, NONE, 0, 0, NONE }, slots = 4, ring = 1, none = 0;
    book_open(&b, LAYERS, kind, 1, &slots, &ring, 32);
    expert_cache_count(b.c, 0, (int32_t[]) { 7 }, (int32_t[]) { 512 }, 1, 512);
    const double whole = expert_cache_score(b.c, 0, 7);
    assert_true(fabs(whole - CACHE_ROWS * exp2(-CACHE_ROWS / 96.0)) < 1e-9);       /* a chunk is as many rows */
    for (int32_t row = 0; row < 32; row++)
        for (int32_t il = 0; il < LAYERS; il++)
            if (kind[il] != NONE) expert_cache_count(b.c, il, &none, &none, 0, 1);
    assert_true(fabs(expert_cache_score(b.c, 0, 7) - whole / 2) < 1e-9);
    expert_cache_close(b.c);
}

/* Scores stay numbers, and the order stays, however many rows pass. */
static void scores_do_not_overflow(void **state)
{
    (void) state;
    Book b;
    const int32_t kind[] = { 0, 0, NONE, 1, 1 }, slots[] = { 6, 6 }, ring[] = { 2, 2 };
    reseed();
    book_open(&b, LAYERS, kind, 2, slots, ring, 1);
    for (int32_t row = 0; row < 20000; row++) {
        const int32_t il = a_layer(&b), e = (int32_t) (random_below(EXPERTS) * random_below(EXPERTS)) / EXPERTS;
        chosen(&b, il, e, 1);
        visit(&b, il, e, random_below(8) == 0);
    }
    assert_true(b.promoted > 100 && b.evicted > 100);
    expert_cache_close(b.c);
}

static void wrong_shapes_are_refused(void **state)
{
    (void) state;
    static const struct { int32_t slots[2], ring[2]; const char *says; } bad[] = {
        { { 4, 4 }, { 0, 1 }, "a ring of 0 of 4 slots, expected 1 to all" },
        { { 4, 4 }, { 1, 5 }, "a ring of 5 of 4 slots" }, { { 4, 4 }, { -1, 1 }, "a ring of -1 of 4" },
        { { 0, 4 }, { 0, 1 }, "a ring of 0 of 0" }, { { 4, -1 }, { 1, 1 }, "a ring of 1 of -1" },
        { { 1 << 30, 1 << 30 }, { 1, 1 }, "2147483648 slots are too many" },
    };
    const int32_t kind[] = { 0, 1 };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ExpertCache *c = (ExpertCache *) (uintptr_t) &bad;
        Error err = { 0 };
        const CacheShape s = { 2, EXPERTS, 2, kind, bad[i].slots, bad[i].ring, 256 };
        assert_int_equal(expert_cache_open(&c, &s, &err), ST_ARG);
        assert_null(c);
        if (!strstr(err.text, bad[i].says)) fail_msg("'%s', expected '%s'", err.text, bad[i].says);
    }
    expert_cache_close(NULL);
}

/* ---- traffic ---- */

enum { T_LAYERS = 6, T_EXPERTS = 96, T_USED = 6, T_HALF = 96 };
typedef struct {
    ExpertCache *c;
    int32_t      slots, order[T_LAYERS][T_EXPERTS];                /* order: by how often they are used */
    uint64_t     count[T_LAYERS * T_EXPERTS];
} Traffic;

/* Other experts become the ones that are used most. */
static void shuffle(Traffic *t)
{
    for (int32_t il = 0; il < T_LAYERS; il++) {
        for (int32_t i = 0; i < T_EXPERTS; i++) t->order[il][i] = i;
        for (int32_t i = T_EXPERTS - 1; i > 0; i--) {
            const int32_t j = (int32_t) random_below((uint32_t) i + 1), was = t->order[il][i];
            t->order[il][i] = t->order[il][j];
            t->order[il][j] = was;
        }
    }
}

static void traffic_open(Traffic *t, int32_t slots, int32_t ring)
{
    int32_t kind[T_LAYERS] = { 0 };
    *t = (Traffic) { .slots = slots };
    const CacheShape s = { T_LAYERS, T_EXPERTS, 1, kind, &slots, &ring, T_HALF };
    assert_int_equal(expert_cache_open(&t->c, &s, NULL), ST_OK);
}

/* Zipf's law: the i-th is drawn as often as 1 / (i + 1). */
static int32_t zipf(void)
{
    static double upto[T_EXPERTS];
    double sum = 0;
    for (int32_t i = 0; upto[T_EXPERTS - 1] == 0 && i < T_EXPERTS; i++) upto[i] = sum += 1.0 / (i + 1);
    const double at = random_below(1 << 20) / (double) (1 << 20) * upto[T_EXPERTS - 1];
    int32_t i = 0;
    while (i < T_EXPERTS - 1 && upto[i] <= at) i++;
    return i;
}

/* The share of experts that were there. */
static double rows(Traffic *t, int32_t n)
{
    int32_t hits = 0;
    for (int32_t row = 0; row < n; row++)
        for (int32_t il = 0; il < T_LAYERS; il++) {
            int32_t expert[T_USED], times[T_USED], k = 0;
            while (k < T_USED) {
                int32_t e = t->order[il][zipf()], j = 0;
                while (j < k && expert[j] != e) j++;
                if (j < k) continue;
                times[k] = 1;
                expert[k++] = e;
                t->count[il * T_EXPERTS + e]++;
            }
            expert_cache_count(t->c, il, expert, times, T_USED, 1);
            for (k = 0; k < T_USED; k++) {
                int32_t s = expert_cache_find(t->c, il, expert[k]);
                hits += s >= 0;
                if (s >= 0) expert_cache_use(t->c, s);
                else s = expert_cache_take(t->c, il, expert[k]);
                assert_true(s >= 0);
                expert_cache_done(t->c, s, false);
            }
        }
    return hits / (double) (n * T_LAYERS * T_USED);
}

typedef struct { uint64_t count; int32_t at; } Counted;
static int most_first(const void *x, const void *y)
{
    const Counted *a = x, *b = y;
    if (a->count != b->count) return a->count > b->count ? -1 : 1;
    return (a->at > b->at) - (a->at < b->at);
}

/* As a store begins that knows an earlier run's counts. */
static void begin_with(Traffic *t, const uint64_t *count)
{
    Counted all[T_LAYERS * T_EXPERTS];
    for (int32_t i = 0; i < T_LAYERS * T_EXPERTS; i++) all[i] = (Counted) { count[i], i };
    qsort(all, sizeof all / sizeof *all, sizeof *all, most_first);
    expert_cache_seed(t->c, count, T_USED);
    for (int32_t i = 0; i < t->slots; i++) {
        const int32_t s = expert_cache_take(t->c, all[i].at / T_EXPERTS, all[i].at % T_EXPERTS);
        assert_true(s >= 0);
        expert_cache_done(t->c, s, false);
    }
}

/* After other experts have come into use, the share is back within 200 rows; and memory that follows the traffic beats
 * a ring alone, which an expert that is seldom used passes through as well. */
static void it_follows_the_traffic(void **state)
{
    (void) state;
    enum { SLOTS = T_LAYERS * T_EXPERTS / 3 };
    Traffic t, ring;
    traffic_open(&t, SLOTS, SLOTS / 8);
    traffic_open(&ring, SLOTS, SLOTS);
    reseed();
    shuffle(&t);
    memcpy(ring.order, t.order, sizeof t.order);
    const double first = rows(&t, 20);
    rows(&t, 1000);
    const double level = rows(&t, 1000);
    rows(&ring, 1000);
    const double ring_level = rows(&ring, 1000);
    if (level < first + 0.1 || level < ring_level + 0.03)
        fail_msg("%.3f of the experts were there, at first %.3f, in a ring alone %.3f", level, first, ring_level);
    for (int32_t change = 0; change < 3; change++) {
        shuffle(&t);
        const double broken = rows(&t, 40);
        rows(&t, 160);
        const double again = rows(&t, 100);
        if (broken > level - 0.15 || again < level - 0.03)
            fail_msg("%.3f were there, after a change %.3f, and %.3f after 200 rows", level, broken, again);
    }
    expert_cache_close(t.c);
    expert_cache_close(ring.c);
}

static void a_seeded_start_begins_where_the_first_run_ended(void **state)
{
    (void) state;
    enum { SLOTS = T_LAYERS * T_EXPERTS / 3 };
    Traffic one, two, cold;
    traffic_open(&one, SLOTS, SLOTS / 8);
    traffic_open(&two, SLOTS, SLOTS / 8);
    traffic_open(&cold, SLOTS, SLOTS / 8);
    reseed();
    shuffle(&one);
    rows(&one, 2000);
    const double level = rows(&one, 1000);
    memcpy(two.order, one.order, sizeof one.order);
    memcpy(cold.order, one.order, sizeof one.order);
    begin_with(&two, one.count);
    assert_int_equal(expert_cache_promoted(two.c) + expert_cache_evicted(two.c), 0);
    const double seeded = rows(&two, 60), unknown = rows(&cold, 60);
    if (seeded < level - 0.03 || unknown > level - 0.05)
        fail_msg("%.3f were there in the long run, %.3f from a seeded start, %.3f from none", level, seeded, unknown);
    /* the scores are those that such rows leave: on average, and of the same size */
    double sum[2] = { 0 };
    for (int32_t il = 0; il < T_LAYERS; il++)
        for (int32_t e = 0; e < T_EXPERTS; e++) {
            sum[0] += expert_cache_score(one.c, il, e);
            sum[1] += expert_cache_score(two.c, il, e);
        }
    assert_true(fabs(sum[0] - sum[1]) < 0.01 * sum[0]);
    /* other traffic displaces what the seed has brought as it displaces what traffic has */
    shuffle(&two);
    rows(&two, 200);
    assert_true(rows(&two, 100) > level - 0.03);
    expert_cache_close(one.c);
    expert_cache_close(two.c);
    expert_cache_close(cold.c);
}

/* A layer of which nothing was counted has no scores, and the others' are not disturbed by it. */
static void seeds_of_some_layers(void **state)
{
    (void) state;
    Book b;
    const int32_t kind[] = { 0, 0, NONE, 0, 0 }, slots = 4, ring = 1;
    uint64_t count[LAYERS * EXPERTS] = { 0 };
    book_open(&b, LAYERS, kind, 1, &slots, &ring, 100);
    for (int32_t e = 0; e < 4; e++) count[3 * EXPERTS + e] = (uint64_t) (e + 1) << 40;
    expert_cache_seed(b.c, count, 2);
    for (int32_t e = 0; e < EXPERTS; e++) {
        const double want = e < 4 ? (e + 1) / 5.0 * 100 / log(2) : 0;              /* rows: 10 / 2 */
        assert_true(fabs(expert_cache_score(b.c, 3, e) - want) < 1e-6);
        assert_true(expert_cache_score(b.c, 0, e) == 0 && expert_cache_score(b.c, 2, e) == 0);
    }
    expert_cache_close(b.c);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_in_the_book), cmocka_unit_test(the_longest_unused_gives_way),
        cmocka_unit_test(who_is_in_use_stays), cmocka_unit_test(the_best_are_pinned),
        cmocka_unit_test(the_weakest_is_known), cmocka_unit_test(rows_count_half_after_a_half_life),
        cmocka_unit_test(scores_do_not_overflow), cmocka_unit_test(wrong_shapes_are_refused),
        cmocka_unit_test(it_follows_the_traffic), cmocka_unit_test(a_seeded_start_begins_where_the_first_run_ended),
        cmocka_unit_test(seeds_of_some_layers),
    };
    return cmocka_run_group_tests_name("expert cache", tests, NULL, NULL);
}
