#include "backend/expert_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An expert is promoted if its score exceeds the weakest pinned one's by this factor, so that two of about the same
 * score do not change places again and again. */
static const double MARGIN = 1.05;
/* Scores grow instead of the old ones shrinking; above this all are scaled down. */
static const double UNIT_MOST = 1e100;
enum { NONE = -1 };

/* layer NONE: empty. next, prev: the ring's list, oldest first; a pinned slot is in none. */
typedef struct { int32_t layer, expert, users, next, prev; bool pinned; } Slot;
typedef struct { double score; int32_t slot; } Weak;
/* weak: the pinned slots as a heap, the weakest first, by the scores that they had when they were last looked at. As
 * scores only grow, these bound them from below. */
typedef struct { int32_t first, n, empty, to_pin, oldest, newest, pinned; Weak *weak; } Kind;

struct ExpertCache {
    int32_t  layers, experts, kinds, mixtures;     /* mixtures: layers that have experts */
    double   unit, per_row;                        /* what a row counts now; its growth per row and layer, as a
                                                    * logarithm of 2 */
    double  *score;                                /* [layers, experts] */
    int32_t *slot_of;                              /* [layers, experts] */
    int32_t *kind_of;                              /* [layers] */
    Kind    *kind;
    Slot    *slot;
    Weak    *weak;                                 /* [slots], of which each kind has its part */
    int64_t  evicted, promoted;
};

static size_t index_of(const ExpertCache *c, int32_t layer, int32_t expert)
{
    return (size_t) layer * (size_t) c->experts + (size_t) expert;
}

static Kind *kind_of(const ExpertCache *c, int32_t slot) { return &c->kind[c->kind_of[c->slot[slot].layer]]; }

static double slot_score(const ExpertCache *c, int32_t slot)
{
    const Slot *s = &c->slot[slot];
    return c->score[index_of(c, s->layer, s->expert)];
}

/* ---- the ring ---- */

static void unlink_slot(ExpertCache *c, Kind *k, int32_t slot)
{
    Slot *s = &c->slot[slot];
    *(s->prev == NONE ? &k->oldest : &c->slot[s->prev].next) = s->next;
    *(s->next == NONE ? &k->newest : &c->slot[s->next].prev) = s->prev;
}

static void link_newest(ExpertCache *c, Kind *k, int32_t slot)
{
    Slot *s = &c->slot[slot];
    s->prev = k->newest;
    s->next = NONE;
    *(k->newest == NONE ? &k->oldest : &c->slot[k->newest].next) = slot;
    k->newest = slot;
}

/* Empty slots stay in front, so that they are filled before an expert gives way. */
static void link_oldest(ExpertCache *c, Kind *k, int32_t slot)
{
    Slot *s = &c->slot[slot];
    s->next = k->oldest;
    while (s->next != NONE && c->slot[s->next].layer == NONE) s->next = c->slot[s->next].next;
    s->prev = s->next == NONE ? k->newest : c->slot[s->next].prev;
    *(s->prev == NONE ? &k->oldest : &c->slot[s->prev].next) = slot;
    *(s->next == NONE ? &k->newest : &c->slot[s->next].prev) = slot;
}

/* ---- opening ---- */

static Status check_shape(const CacheShape *s, size_t *slots, Error *err)
{
    *slots = 0;
    for (int32_t k = 0; k < s->kinds; k++) {
        if (s->ring[k] < 1 || s->ring[k] > s->slots[k])
            return fail(err, ST_ARG, "expert cache: a ring of %d of %d slots, expected 1 to all", s->ring[k],
                        s->slots[k]);
        *slots += (size_t) s->slots[k];
    }
    return *slots <= INT32_MAX / 2 ? ST_OK : fail(err, ST_ARG, "expert cache: %zu slots are too many", *slots);
}

static void place_kinds(ExpertCache *c, const CacheShape *s)
{
    int32_t at = 0;
    for (int32_t k = 0; k < c->kinds; k++) {
        c->kind[k] = (Kind) { .first = at, .n = s->slots[k], .empty = at, .to_pin = s->slots[k] - s->ring[k],
                              .oldest = NONE, .newest = NONE, .weak = c->weak + at };
        at += s->slots[k];
    }
    for (int32_t i = 0; i < at; i++) c->slot[i] = (Slot) { .layer = NONE, .next = NONE, .prev = NONE };
    for (size_t i = 0; i < (size_t) c->layers * (size_t) c->experts; i++) c->slot_of[i] = NONE;
    for (int32_t il = 0; il < c->layers; il++) c->mixtures += (c->kind_of[il] = s->kind[il]) != NONE;
    c->unit = 1;
    c->per_row = 1 / (s->half_life * (c->mixtures ? c->mixtures : 1));
}

Status expert_cache_open(ExpertCache **out, const CacheShape *s, Error *err)
{
    size_t slots;
    *out = NULL;
    TRY(check_shape(s, &slots, err));
    const size_t all = (size_t) s->layers * (size_t) s->experts;
    ExpertCache *c = calloc(1, sizeof *c);
    if (c) {
        c->layers = s->layers;
        c->experts = s->experts;
        c->kinds = s->kinds;
        c->score = calloc(all, sizeof *c->score);
        c->slot_of = malloc(all * sizeof *c->slot_of);
        c->kind_of = malloc((size_t) s->layers * sizeof *c->kind_of);
        c->kind = malloc((size_t) s->kinds * sizeof *c->kind);
        c->slot = malloc(slots * sizeof *c->slot);
        c->weak = malloc(slots * sizeof *c->weak);
    }
    if (!c || !c->score || !c->slot_of || !c->kind_of || !c->kind || !c->slot || !c->weak) {
        expert_cache_close(c);
        return fail(err, ST_MEMORY, "expert cache: out of memory");
    }
    place_kinds(c, s);
    *out = c;
    return ST_OK;
}

void expert_cache_close(ExpertCache *c)
{
    if (!c) return;
    free(c->score);
    free(c->slot_of);
    free(c->kind_of);
    free(c->kind);
    free(c->slot);
    free(c->weak);
    free(c);
}

/* ---- scores ---- */

void expert_cache_seed(ExpertCache *c, const uint64_t *count, int32_t used)
{
    const double steady = 1 / (c->per_row * c->mixtures * log(2));     /* the score of an expert that every row chose */
    for (int32_t il = 0; il < c->layers; il++) {
        double rows = 0;
        for (int32_t e = 0; e < c->experts; e++) rows += (double) count[index_of(c, il, e)] / used;
        for (int32_t e = 0; rows > 0 && e < c->experts; e++)
            c->score[index_of(c, il, e)] = (double) count[index_of(c, il, e)] / rows * steady * c->unit;
    }
}

static void scale_down(ExpertCache *c)
{
    const double by = 1 / c->unit;
    for (size_t i = 0; i < (size_t) c->layers * (size_t) c->experts; i++) c->score[i] *= by;
    for (int32_t k = 0; k < c->kinds; k++)
        for (int32_t i = 0; i < c->kind[k].pinned; i++) c->kind[k].weak[i].score *= by;
    c->unit = 1;
}

void expert_cache_count(ExpertCache *c, int32_t layer, const int32_t *expert, const int32_t *times, int32_t n,
                        int32_t n_rows)
{
    const int32_t rows = n_rows < CACHE_ROWS ? n_rows : CACHE_ROWS;
    for (int32_t i = 0; i < n; i++)
        c->score[index_of(c, layer, expert[i])] += c->unit * times[i] * rows / n_rows;
    c->unit *= exp2(rows * c->per_row);
    if (c->unit > UNIT_MOST) scale_down(c);
}

double expert_cache_score(const ExpertCache *c, int32_t layer, int32_t expert)
{
    return c->score[index_of(c, layer, expert)] / c->unit;
}

/* ---- who is pinned ---- */

/* Restores the order of the heap where what is at i may be too strong for its place. */
static void sink(Kind *k, int32_t i)
{
    const Weak w = k->weak[i];
    for (int32_t child; (child = 2 * i + 1) < k->pinned; i = child) {
        if (child + 1 < k->pinned && k->weak[child + 1].score < k->weak[child].score) child++;
        if (w.score <= k->weak[child].score) break;
        k->weak[i] = k->weak[child];
    }
    k->weak[i] = w;
}

static void pin(ExpertCache *c, Kind *k, int32_t slot)
{
    const Weak w = { slot_score(c, slot), slot };
    int32_t i = k->pinned++;
    c->slot[slot].pinned = true;
    for (; i > 0 && k->weak[(i - 1) / 2].score > w.score; i = (i - 1) / 2) k->weak[i] = k->weak[(i - 1) / 2];
    k->weak[i] = w;
}

static void unpin(ExpertCache *c, Kind *k, int32_t slot)
{
    int32_t i = 0;
    c->slot[slot].pinned = false;
    while (k->weak[i].slot != slot) i++;
    k->weak[i] = k->weak[--k->pinned];
    for (i = k->pinned / 2; i-- > 0; ) sink(k, i);
}

/* The weakest pinned slot, if it is weaker than `than`; NONE. One whose score has grown since then sinks. */
static int32_t weaker_than(ExpertCache *c, Kind *k, double than)
{
    for (; k->pinned > 0; sink(k, 0)) {
        Weak *w = &k->weak[0];
        if (w->score * MARGIN >= than) return NONE;
        const double now = slot_score(c, w->slot);
        if (now <= w->score) return w->slot;
        w->score = now;
    }
    return NONE;
}

static void promote(ExpertCache *c, int32_t slot)
{
    Kind *k = kind_of(c, slot);
    const double score = slot_score(c, slot);
    const int32_t weak = weaker_than(c, k, score);
    if (weak == NONE) return;
    unlink_slot(c, k, slot);
    c->slot[slot].pinned = true;
    c->slot[weak].pinned = false;
    k->weak[0] = (Weak) { score, slot };
    sink(k, 0);
    link_newest(c, k, weak);
    c->promoted++;
}

/* ---- slots ---- */

int32_t expert_cache_find(const ExpertCache *c, int32_t layer, int32_t expert)
{
    return c->slot_of[index_of(c, layer, expert)];
}

bool expert_cache_pinned(const ExpertCache *c, int32_t slot) { return c->slot[slot].pinned; }

/* The ring's slot whose expert is the next to give way. */
static int32_t next_to_go(const ExpertCache *c, const Kind *k)
{
    int32_t s = k->oldest;
    while (s != NONE && c->slot[s].users > 0) s = c->slot[s].next;
    return s;
}

bool expert_cache_worth(const ExpertCache *c, int32_t layer, int32_t expert)
{
    const Kind *k = &c->kind[c->kind_of[layer]];
    const int32_t s = next_to_go(c, k);
    if (k->empty < k->first + k->n) return true;
    return s != NONE && (c->slot[s].layer == NONE || slot_score(c, s) < c->score[index_of(c, layer, expert)]);
}

/* The slot whose expert gives way; its place in the ring is the newest from now on. */
static int32_t evict(ExpertCache *c, Kind *k)
{
    const int32_t s = next_to_go(c, k);
    if (s == NONE) return NONE;
    if (c->slot[s].layer != NONE) {
        c->slot_of[index_of(c, c->slot[s].layer, c->slot[s].expert)] = NONE;
        c->evicted++;
    }
    unlink_slot(c, k, s);
    return s;
}

int32_t expert_cache_take(ExpertCache *c, int32_t layer, int32_t expert)
{
    Kind *k = &c->kind[c->kind_of[layer]];
    const int32_t s = k->empty < k->first + k->n ? k->empty++ : evict(c, k);
    if (s == NONE) return NONE;
    Slot *slot = &c->slot[s];
    slot->layer = layer;
    slot->expert = expert;
    slot->users = 1;
    slot->pinned = false;
    c->slot_of[index_of(c, layer, expert)] = s;
    if (k->to_pin > 0) {
        k->to_pin--;
        pin(c, k, s);
        return s;
    }
    link_newest(c, k, s);
    promote(c, s);
    return s;
}

void expert_cache_use(ExpertCache *c, int32_t slot)
{
    Kind *k = kind_of(c, slot);
    c->slot[slot].users++;
    if (c->slot[slot].pinned) return;
    unlink_slot(c, k, slot);
    link_newest(c, k, slot);
    promote(c, slot);
}

void expert_cache_done(ExpertCache *c, int32_t slot, bool first)
{
    Kind *k = kind_of(c, slot);
    c->slot[slot].users--;
    if (!first || c->slot[slot].pinned) return;
    unlink_slot(c, k, slot);
    link_oldest(c, k, slot);
}

/* An empty slot belongs to the ring, as the first to be filled. Where it was pinned, the ring's newest expert is from
 * now on, or, if the ring holds none, the next that comes. */
void expert_cache_drop(ExpertCache *c, int32_t slot)
{
    Slot *s = &c->slot[slot];
    Kind *k = kind_of(c, slot);
    if (!s->pinned) {
        unlink_slot(c, k, slot);
    } else {
        const int32_t up = k->newest;
        unpin(c, k, slot);
        if (up == NONE || c->slot[up].layer == NONE) {
            k->to_pin++;
        } else {
            unlink_slot(c, k, up);
            pin(c, k, up);
        }
    }
    c->slot_of[index_of(c, s->layer, s->expert)] = NONE;
    *s = (Slot) { .layer = NONE };
    link_oldest(c, k, slot);
}

int64_t expert_cache_evicted(const ExpertCache *c) { return c->evicted; }
int64_t expert_cache_promoted(const ExpertCache *c) { return c->promoted; }
