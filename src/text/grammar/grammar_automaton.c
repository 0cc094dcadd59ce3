#include "text/grammar/grammar_automaton.h"

#include <stdlib.h>
#include <string.h>

typedef struct { uint32_t node, part, ctx; } Place;
typedef struct { uint32_t ret, ctx; } Edge;
typedef struct { uint32_t at, n, depth; } Context;
typedef struct {
    uint32_t at, n;                                /* places, ascending */
    uint32_t row, tag;                             /* row: next states by byte; ROW_NONE: not computed yet */
    uint32_t run_place;                            /* the place with the longest run, or PLACE_NONE */
    bool     accepts;
    uint64_t bytes[4];
} State;

/* What the steps of a row have cost, and which of them have been counted in round `round`, as bits. */
typedef struct { uint32_t round, counted[8]; uint16_t work[256]; } RowCost;

#define ROW_NONE   UINT32_MAX
#define PLACE_NONE UINT32_MAX
enum { CTX_END = 0 };                              /* after the end of the root rule */

/* Scratch memory of one step. A called rule's context is complete only when all its callers are known, so called rules
 * wait in a heap by order number: a caller's number is lower than its callee's. */
typedef struct {
    Place   *todo;   uint32_t n_todo;              /* nodes to visit; part is not used */
    Place   *seen;   uint32_t *stamp, now, n_seen; /* [SEEN_SLOTS] open addressing */
    Place   *out;    uint32_t n_out;
    Edge    *edge;   uint32_t *edge_next, n_edges; /* edges of the contexts being built: a list per rule */
    uint32_t *first;                               /* [rules] head of its list, or EDGE_NONE */
    uint32_t *heap, n_heap;
    Edge    *sorted;
    uint32_t work;                                 /* nodes, places and edges visited */
    bool     accepts, overflow;
} Work;
enum { SEEN_SLOTS = 4 * AUTOMATON_PLACES_MAX, SEEN_MAX = 2 * AUTOMATON_PLACES_MAX, WORK_MAX = 1 << 16 };
#define EDGE_NONE UINT32_MAX

struct Automaton {
    const Grammar *g;
    State   *state;  uint32_t n_states, cap_states;
    Place   *place;  uint32_t n_places, cap_places;
    Context *ctx;    uint32_t n_ctx, cap_ctx;
    Edge    *edge;   uint32_t n_edges, cap_edges;
    uint32_t *row;   uint32_t n_rows, cap_rows;    /* [cap_rows][256] */
    uint32_t *row_of;                              /* [cap_rows] its state */
    RowCost *cost;                                 /* [cap_rows] */
    uint32_t round;                                /* of counting, never 0 */
    bool     lost;                                 /* rows, in this round */
    uint32_t *state_slot, n_state_slots, *ctx_slot, n_ctx_slots;
    uint32_t *moved_to;                            /* [max of caps] used while states are forgotten */
    StateHolder *holders, start;
    uint32_t start_id;
    void   (*moved)(void *ud, uint32_t tag, uint32_t state);
    void    *moved_ud;
    const char *trouble;
    uint64_t spent;
    Work     w;
};

static uint32_t hash_words(const void *p, size_t bytes)
{
    const uint32_t *w = p;
    uint64_t h = bytes * 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < bytes / 4; i++) {
        h = (h ^ w[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 29;
    }
    return (uint32_t) (h ^ h >> 32);
}

/* ---- interning ---- */

static uint32_t ctx_hash(const Edge *e, uint32_t n) { return hash_words(e, n * sizeof *e); }
static uint32_t state_hash(const Place *p, uint32_t n, bool accepts) { return hash_words(p, n * sizeof *p) + accepts; }

static void ctx_enter(Automaton *a, uint32_t id)
{
    uint32_t h = ctx_hash(a->edge + a->ctx[id].at, a->ctx[id].n);
    while (a->ctx_slot[h & (a->n_ctx_slots - 1)]) h++;
    a->ctx_slot[h & (a->n_ctx_slots - 1)] = id;
}

/* The caller has made room: see make_room. */
static uint32_t ctx_intern(Automaton *a, const Edge *e, uint32_t n)
{
    if (n == 1 && e->ret == NODE_DONE && e->ctx == CTX_END) return CTX_END;
    for (uint32_t h = ctx_hash(e, n), id; (id = a->ctx_slot[h & (a->n_ctx_slots - 1)]); h++)
        if (a->ctx[id].n == n && memcmp(a->edge + a->ctx[id].at, e, n * sizeof *e) == 0) return id;
    uint32_t id = a->n_ctx++, depth = 0;
    for (uint32_t i = 0; i < n; i++)
        if (a->ctx[e[i].ctx].depth >= depth) depth = a->ctx[e[i].ctx].depth + 1;
    a->ctx[id] = (Context) { a->n_edges, n, depth };
    memcpy(a->edge + a->n_edges, e, n * sizeof *e);
    a->n_edges += n;
    ctx_enter(a, id);
    return id;
}

static void state_enter(Automaton *a, uint32_t id)
{
    const State *s = &a->state[id];
    uint32_t h = state_hash(a->place + s->at, s->n, s->accepts);
    while (a->state_slot[h & (a->n_state_slots - 1)]) h++;
    a->state_slot[h & (a->n_state_slots - 1)] = id;
}

/* Precomputes what is often asked of a state. */
static void describe(Automaton *a, State *s)
{
    uint32_t best = 0;
    s->run_place = PLACE_NONE;
    for (uint32_t i = 0; i < s->n; i++) {
        const Place *p = &a->place[s->at + i];
        const Node *v = &a->g->node[p->node];
        if (p->part) {
            s->bytes[2] = UINT64_MAX;              /* 0x80 to 0xbf */
            continue;
        }
        for (int k = 0; k < 4; k++) s->bytes[k] |= a->g->cls[v->arg].first[k];
        if (v->run > best) {
            best = v->run;
            s->run_place = s->at + i;
        }
    }
    if (best < 2) s->run_place = PLACE_NONE;
}

static uint32_t state_intern(Automaton *a, const Place *p, uint32_t n, bool accepts)
{
    if (n == 0 && !accepts) return STATE_DEAD;
    for (uint32_t h = state_hash(p, n, accepts), id; (id = a->state_slot[h & (a->n_state_slots - 1)]); h++) {
        const State *s = &a->state[id];
        if (s->n == n && s->accepts == accepts && memcmp(a->place + s->at, p, n * sizeof *p) == 0) return id;
    }
    uint32_t id = a->n_states++;
    a->state[id] = (State) { .at = a->n_places, .n = n, .row = ROW_NONE, .accepts = accepts };
    memcpy(a->place + a->n_places, p, n * sizeof *p);
    a->n_places += n;
    describe(a, &a->state[id]);
    state_enter(a, id);
    return id;
}

/* ---- one step ---- */

static bool first_visit(Work *w, uint32_t node, uint32_t ctx)
{
    uint32_t h = (uint32_t) (((uint64_t) node * 0x9e3779b97f4a7c15u + (uint64_t) ctx * 0xc2b2ae3d27d4eb4fu) >> 40);
    for (;; h++) {
        h &= SEEN_SLOTS - 1;
        if (w->stamp[h] != w->now) break;
        if (w->seen[h].node == node && w->seen[h].ctx == ctx) return false;
    }
    if (w->n_seen == SEEN_MAX) {
        w->overflow = true;
        return false;
    }
    w->n_seen++;
    w->stamp[h] = w->now;
    w->seen[h] = (Place) { node, 0, ctx };
    return true;
}

/* Returns false if the step has become too long. */
static bool worked(Work *w)
{
    if (++w->work > WORK_MAX) w->overflow = true;
    return !w->overflow;
}

static void visit(Automaton *a, uint32_t node, uint32_t ctx)
{
    if (!worked(&a->w) || !a->g->node[node].live || !first_visit(&a->w, node, ctx)) return;
    a->w.todo[a->w.n_todo++] = (Place) { node, 0, ctx };
}

static void put(Work *w, uint32_t node, uint32_t part, uint32_t ctx)
{
    if (!worked(w)) return;
    if (w->n_out == AUTOMATON_PLACES_MAX) w->overflow = true;
    else w->out[w->n_out++] = (Place) { node, part, ctx };
}

static void heap_add(Work *w, uint32_t order)
{
    uint32_t i = w->n_heap++;
    for (; i > 0 && w->heap[(i - 1) / 2] > order; i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = order;
}

static uint32_t heap_take(Work *w)
{
    uint32_t least = w->heap[0], last = w->heap[--w->n_heap], i = 0;
    for (uint32_t c; (c = 2 * i + 1) < w->n_heap; i = c) {
        if (c + 1 < w->n_heap && w->heap[c + 1] < w->heap[c]) c++;
        if (w->heap[c] >= last) break;
        w->heap[i] = w->heap[c];
    }
    if (w->n_heap) w->heap[i] = last;
    return least;
}

static void add_edge(Automaton *a, uint32_t rule, uint32_t ret, uint32_t ctx)
{
    Work *w = &a->w;
    if (!worked(w)) return;
    if (w->n_edges == AUTOMATON_PLACES_MAX) {
        w->overflow = true;
        return;
    }
    if (w->first[rule] == EDGE_NONE) heap_add(w, a->g->rule[rule].order);
    w->edge[w->n_edges] = (Edge) { ret, ctx };
    w->edge_next[w->n_edges] = w->first[rule];
    w->first[rule] = w->n_edges++;
}

/* A call at the end of its caller returns directly to where the caller returns, so lists written as `item list` do not
 * nest. */
static void call(Automaton *a, uint32_t rule, uint32_t ret, uint32_t ctx)
{
    const Context *c = &a->ctx[ctx];
    if (ret != NODE_DONE) add_edge(a, rule, ret, ctx);
    else if (ctx == CTX_END) add_edge(a, rule, NODE_DONE, CTX_END);
    else for (uint32_t i = 0; i < c->n; i++) add_edge(a, rule, a->edge[c->at + i].ret, a->edge[c->at + i].ctx);
}

static void follow(Automaton *a)
{
    Work *w = &a->w;
    while (w->n_todo > 0 && !w->overflow) {
        Place p = w->todo[--w->n_todo];
        const Node *v = &a->g->node[p.node];
        const Context *c = &a->ctx[p.ctx];
        switch ((NodeType) v->type) {
        case NODE_CHAR:
            put(w, p.node, 0, p.ctx);
            break;
        case NODE_SPLIT:
            visit(a, v->next, p.ctx);
            visit(a, v->arg, p.ctx);
            break;
        case NODE_CALL:
            call(a, v->arg, v->next, p.ctx);
            if (a->g->rule[v->arg].nullable) visit(a, v->next, p.ctx);
            break;
        case NODE_END:
            if (p.ctx == CTX_END) w->accepts = true;
            for (uint32_t i = 0; p.ctx != CTX_END && i < c->n; i++)
                visit(a, a->edge[c->at + i].ret, a->edge[c->at + i].ctx);
            break;
        }
    }
}

/* Sorts n rows of w words, first word first, and drops repeats; returns how many remain. In place: the C library's
 * qsort allocates. */
static uint32_t sort_rows(uint32_t *rows, uint32_t n, uint32_t w)
{
    uint32_t m = 0, one[3];
#define COMPARE(x, y, out)                                                                           \
    do {                                                                                             \
        out = 0;                                                                                     \
        for (uint32_t c_ = 0; c_ < w && !out; c_++) out = ((x)[c_] > (y)[c_]) - ((x)[c_] < (y)[c_]); \
    } while (0)
    static const uint32_t gaps[] = { 3548, 1577, 701, 301, 132, 57, 23, 10, 4, 1 };
    int c;
    for (size_t k = 0; k < sizeof gaps / sizeof *gaps; k++) {
        uint32_t gap = gaps[k];
        for (uint32_t i = gap; i < n; i++) {
            uint32_t at = i;
            memcpy(one, rows + (size_t) i * w, w * sizeof *one);
            for (; at >= gap; at -= gap) {
                COMPARE(rows + (size_t) (at - gap) * w, one, c);
                if (c <= 0) break;
                memcpy(rows + (size_t) at * w, rows + (size_t) (at - gap) * w, w * sizeof *one);
            }
            memcpy(rows + (size_t) at * w, one, w * sizeof *one);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (m > 0) {
            COMPARE(rows + (size_t) i * w, rows + (size_t) (m - 1) * w, c);
            if (c == 0) continue;
        }
        if (m != i) memcpy(rows + (size_t) m * w, rows + (size_t) i * w, w * sizeof *one);
        m++;
    }
#undef COMPARE
    return m;
}

/* Builds the contexts of the called rules, callers first, and enters what the rules begin with. */
static void enter_rules(Automaton *a)
{
    Work *w = &a->w;
    const Grammar *g = a->g;
    while (w->n_heap > 0) {
        uint32_t r = g->by_order[heap_take(w)], n = 0;
        for (uint32_t e = w->first[r]; e != EDGE_NONE; e = w->edge_next[e]) w->sorted[n++] = w->edge[e];
        w->first[r] = EDGE_NONE;
        if (w->overflow) continue;                 /* only empty the lists */
        uint32_t ctx = ctx_intern(a, w->sorted, sort_rows(&w->sorted[0].ret, n, 2));
        if (a->ctx[ctx].depth > AUTOMATON_DEPTH_MAX) {
            a->trouble = "rules are nested deeper than 512 in this text";
            continue;
        }
        const Rule *rule = &g->rule[r];
        for (uint32_t i = 0; i < rule->n_chars; i++) put(w, g->entry_char[rule->chars + i], 0, ctx);
        for (uint32_t i = 0; i < rule->n_calls; i++)
            call(a, g->entry_call[rule->calls + i].rule, g->entry_call[rule->calls + i].ret, ctx);
    }
}

static void begin(Work *w)
{
    w->n_todo = w->n_out = w->n_edges = w->n_heap = w->n_seen = w->work = 0;
    w->accepts = w->overflow = false;
    if (++w->now == 0) {
        memset(w->stamp, 0, SEEN_SLOTS * sizeof *w->stamp);
        w->now = 1;
    }
}

static uint32_t finish(Automaton *a)
{
    Work *w = &a->w;
    follow(a);
    enter_rules(a);
    if (w->overflow) {
        a->trouble = "the grammar has more readings of this text than can be followed";
        return STATE_DEAD;
    }
    return state_intern(a, w->out, sort_rows(&w->out[0].node, w->n_out, 3), w->accepts);
}

/* ---- forgetting ---- */

static void drop_rows(Automaton *a)
{
    for (uint32_t i = 0; i < a->n_rows; i++) a->state[a->row_of[i]].row = ROW_NONE;
    a->n_rows = 0;
    a->lost = true;
}

/* Sets moved_to[id] to 1 for the states that stay. */
static void mark_states(Automaton *a, bool tagged)
{
    memset(a->moved_to, 0, a->n_states * sizeof *a->moved_to);
    a->moved_to[STATE_DEAD] = a->moved_to[STATE_ENDED] = 1;
    for (const StateHolder *h = a->holders; h; h = h->next)
        for (size_t i = h->kept_from; i < h->n; i++)
            if (h->id[i] != STATE_UNKNOWN) a->moved_to[h->id[i]] = 1;
    for (uint32_t i = 0; tagged && i < a->n_states; i++)
        if (a->state[i].tag) a->moved_to[i] = 1;
}

/* Moves what stays to the front: what is held and, if `tagged`, what has a tag. Order is kept, so sorted lists remain
 * sorted by their new numbers. */
static void forget(Automaton *a, bool tagged)
{
    uint32_t n = 0;
    drop_rows(a);
    mark_states(a, tagged);

    uint32_t *ctx_to = a->moved_to + a->cap_states;
    memset(ctx_to, 0, a->n_ctx * sizeof *ctx_to);
    for (uint32_t i = 0; i < a->n_states; i++)
        for (uint32_t k = 0; a->moved_to[i] && k < a->state[i].n; k++) ctx_to[a->place[a->state[i].at + k].ctx] = 1;
    for (uint32_t i = a->n_ctx; i-- > 1;)          /* a context's edges lead to contexts with lower numbers */
        for (uint32_t k = 0; ctx_to[i] && k < a->ctx[i].n; k++) ctx_to[a->edge[a->ctx[i].at + k].ctx] = 1;

    uint32_t n_ctx = 1, n_edges = 0, n_places = 0;
    ctx_to[CTX_END] = CTX_END;
    memset(a->ctx_slot, 0, a->n_ctx_slots * sizeof *a->ctx_slot);
    for (uint32_t i = 1; i < a->n_ctx; i++) {
        if (!ctx_to[i]) continue;
        Context c = a->ctx[i];
        for (uint32_t k = 0; k < c.n; k++)
            a->edge[n_edges + k] = (Edge) { a->edge[c.at + k].ret, ctx_to[a->edge[c.at + k].ctx] };
        c.at = n_edges;
        n_edges += c.n;
        a->ctx[n_ctx] = c;
        ctx_to[i] = n_ctx;
        ctx_enter(a, n_ctx++);
    }
    a->n_ctx = n_ctx;
    a->n_edges = n_edges;

    memset(a->state_slot, 0, a->n_state_slots * sizeof *a->state_slot);
    for (uint32_t i = 0; i < a->n_states; i++) {
        if (!a->moved_to[i]) {
            if (a->state[i].tag && a->moved) a->moved(a->moved_ud, a->state[i].tag, STATE_DEAD);
            a->moved_to[i] = STATE_UNKNOWN;
            continue;
        }
        State s = a->state[i];
        for (uint32_t k = 0; k < s.n; k++) {
            Place p = a->place[s.at + k];
            p.ctx = ctx_to[p.ctx];
            a->place[n_places + k] = p;
        }
        if (s.run_place != PLACE_NONE) s.run_place = s.run_place - s.at + n_places;
        s.at = n_places;
        n_places += s.n;
        a->state[n] = s;
        a->moved_to[i] = n;
        if (s.tag && a->moved) a->moved(a->moved_ud, s.tag, n);
        if (n > STATE_ENDED) state_enter(a, n);
        n++;
    }
    a->n_states = n;
    a->n_places = n_places;
    for (StateHolder *h = a->holders; h; h = h->next)
        for (size_t i = 0; i < h->n; i++)
            if (h->id[i] != STATE_UNKNOWN) h->id[i] = a->moved_to[h->id[i]];
}

/* Whether there is room for whatever one step may add. If not, even after forgetting, held states fill the memory. */
static bool room(const Automaton *a)
{
    uint32_t rules = a->g->n_rules < AUTOMATON_PLACES_MAX ? a->g->n_rules : AUTOMATON_PLACES_MAX;
    return a->n_states < a->cap_states && a->cap_places - a->n_places >= AUTOMATON_PLACES_MAX &&
           a->cap_ctx - a->n_ctx > rules && a->cap_edges - a->n_edges >= AUTOMATON_PLACES_MAX;
}

/* Forgetting costs as much as what is kept, so it must free a good part. */
static bool half_full(const Automaton *a)
{
    return a->n_states > a->cap_states / 2 || a->n_places > a->cap_places / 2 || a->n_ctx > a->cap_ctx / 2 ||
           a->n_edges > a->cap_edges / 2;
}

static bool make_room(Automaton *a)
{
    if (room(a)) return true;
    forget(a, true);
    if (half_full(a)) forget(a, false);
    if (room(a)) return true;
    a->trouble = "the grammar's states do not fit into the memory for them";
    return false;
}

/* ---- the interface ---- */

static void take_step(Automaton *a, uint32_t *to, uint32_t from, uint8_t byte)
{
    Work *w = &a->w;
    begin(w);
    const State *s = &a->state[from];
    w->work = s->n;
    for (uint32_t i = 0; i < s->n; i++) {
        Place p = a->place[s->at + i];
        switch (class_step(a->g, a->g->node[p.node].arg, &p.part, byte)) {
        case CHAR_NO: break;
        case CHAR_MORE: put(w, p.node, p.part, p.ctx); break;
        case CHAR_DONE: visit(a, a->g->node[p.node].next, p.ctx); break;
        }
    }
    *to = finish(a);
}

static void count(Automaton *a, uint32_t row, uint8_t byte)
{
    RowCost *c = &a->cost[row];
    if (c->round != a->round) {
        memset(c->counted, 0, sizeof c->counted);
        c->round = a->round;
    }
    if (c->counted[byte / 32] >> byte % 32 & 1) return;
    c->counted[byte / 32] |= 1u << byte % 32;
    a->spent += c->work[byte];
}

void automaton_count(Automaton *a)
{
    if (++a->round == 0) {
        for (uint32_t i = 0; i < a->n_rows; i++) a->cost[i].round = 0;
        a->round = 1;
    }
    a->spent = 0;
    a->lost = false;
}

void automaton_step(Automaton *a, uint32_t *to, const uint32_t *from, uint8_t byte)
{
    if (!(a->state[*from].bytes[byte / 64] >> byte % 64 & 1)) {
        *to = STATE_DEAD;
        return;
    }
    uint32_t row = a->state[*from].row;
    if (row != ROW_NONE && a->row[(size_t) row * 256 + byte] != STATE_UNKNOWN) {
        *to = a->row[(size_t) row * 256 + byte];
        count(a, row, byte);
        return;
    }
    if (!make_room(a)) {
        *to = STATE_DEAD;
        return;
    }
    uint32_t at = *from, next;
    if (a->state[at].row == ROW_NONE) {
        if (a->n_rows == a->cap_rows) drop_rows(a);
        a->state[at].row = a->n_rows;
        a->row_of[a->n_rows] = at;
        a->cost[a->n_rows].round = 0;              /* none of it is counted */
        memset(a->row + (size_t) a->n_rows++ * 256, 0xff, 256 * sizeof *a->row);
    }
    take_step(a, &next, at, byte);
    row = a->state[at].row;
    a->row[(size_t) row * 256 + byte] = next;
    a->cost[row].work[byte] = (uint16_t) (a->w.work < UINT16_MAX ? a->w.work : UINT16_MAX);
    count(a, row, byte);
    *to = next;
}

bool automaton_accepts(const Automaton *a, uint32_t state) { return a->state[state].accepts; }
bool automaton_goes_on(const Automaton *a, uint32_t state) { return a->state[state].n > 0; }
const uint64_t *automaton_bytes(const Automaton *a, uint32_t state) { return a->state[state].bytes; }
uint32_t automaton_tag(const Automaton *a, uint32_t state) { return a->state[state].tag; }
void automaton_set_tag(Automaton *a, uint32_t state, uint32_t tag) { a->state[state].tag = tag; }
const char *automaton_trouble(const Automaton *a) { return a->trouble; }
size_t automaton_states(const Automaton *a) { return a->n_states; }
uint64_t automaton_spent(const Automaton *a) { return a->spent; }
bool automaton_lost(const Automaton *a) { return a->lost; }

void automaton_forget(Automaton *a, bool states)
{
    if (states) forget(a, false);
    else drop_rows(a);
}


void automaton_on_moved(Automaton *a, void (*moved)(void *ud, uint32_t tag, uint32_t state), void *ud)
{
    a->moved = moved;
    a->moved_ud = ud;
}

const CharClass *automaton_run(const Automaton *a, uint32_t state, uint32_t *n)
{
    uint32_t p = a->state[state].run_place;
    if (p == PLACE_NONE) return NULL;
    const Node *v = &a->g->node[a->place[p].node];
    *n = v->run;
    return &a->g->cls[v->arg];
}

void automaton_hold(Automaton *a, StateHolder *h)
{
    h->next = a->holders;
    a->holders = h;
}

void automaton_let_go(Automaton *a, StateHolder *h)
{
    StateHolder **p = &a->holders;
    while (*p != h) p = &(*p)->next;
    *p = h->next;
}

uint32_t automaton_start(Automaton *a)
{
    return a->start_id;
}

static uint32_t power_of_two(size_t n)
{
    uint32_t p = 64;
    while (p < n && p < 1u << 30) p *= 2;
    return p;
}

/* Divides the memory: half for rows of next states, the rest for sets. */
static void share_out(Automaton *a, size_t bytes)
{
    size_t max = 1u << 30;
    if (bytes > max) bytes = max;
    a->cap_rows = (uint32_t) (bytes / 2 / (257 * sizeof *a->row + sizeof *a->cost));
    a->cap_states = (uint32_t) (bytes / 8 / (sizeof *a->state + 3 * sizeof(uint32_t)));
    a->cap_places = (uint32_t) (bytes * 3 / 16 / sizeof *a->place) + AUTOMATON_PLACES_MAX;
    a->cap_ctx = (uint32_t) (bytes / 16 / (sizeof *a->ctx + 3 * sizeof(uint32_t))) +
                 (a->g->n_rules < AUTOMATON_PLACES_MAX ? a->g->n_rules : AUTOMATON_PLACES_MAX) + 1;
    a->cap_edges = (uint32_t) (bytes / 8 / sizeof *a->edge) + AUTOMATON_PLACES_MAX;
    a->n_state_slots = power_of_two(2 * (size_t) a->cap_states);
    a->n_ctx_slots = power_of_two(2 * (size_t) a->cap_ctx);
}

Status automaton_open(Automaton **out, const Grammar *g, size_t bytes, Error *err)
{
    *out = NULL;
    if (bytes < AUTOMATON_BYTES_MIN)
        return fail(err, ST_ARG, "grammar: %zu bytes for states, expected at least %d", bytes, AUTOMATON_BYTES_MIN);
    Automaton *a = calloc(1, sizeof *a);
    if (!a) return fail(err, ST_MEMORY, "grammar: out of memory");
    a->g = g;
    a->round = 1;
    share_out(a, bytes);
    Work *w = &a->w;
    a->state = malloc(a->cap_states * sizeof *a->state);
    a->place = malloc(a->cap_places * sizeof *a->place);
    a->ctx = malloc(a->cap_ctx * sizeof *a->ctx);
    a->edge = malloc(a->cap_edges * sizeof *a->edge);
    a->row = malloc((size_t) a->cap_rows * 256 * sizeof *a->row);
    a->row_of = malloc(a->cap_rows * sizeof *a->row_of);
    a->cost = malloc(a->cap_rows * sizeof *a->cost);
    a->state_slot = calloc(a->n_state_slots, sizeof *a->state_slot);
    a->ctx_slot = calloc(a->n_ctx_slots, sizeof *a->ctx_slot);
    a->moved_to = malloc(((size_t) a->cap_states + a->cap_ctx) * sizeof *a->moved_to);
    w->todo = malloc(SEEN_MAX * sizeof *w->todo);
    w->seen = malloc(SEEN_SLOTS * sizeof *w->seen);
    w->stamp = calloc(SEEN_SLOTS, sizeof *w->stamp);
    w->out = malloc(AUTOMATON_PLACES_MAX * sizeof *w->out);
    w->edge = malloc(AUTOMATON_PLACES_MAX * sizeof *w->edge);
    w->edge_next = malloc(AUTOMATON_PLACES_MAX * sizeof *w->edge_next);
    w->sorted = malloc(AUTOMATON_PLACES_MAX * sizeof *w->sorted);
    w->first = malloc(g->n_rules * sizeof *w->first);
    w->heap = malloc(g->n_rules * sizeof *w->heap);
    if (!a->state || !a->place || !a->ctx || !a->edge || !a->row || !a->row_of || !a->cost || !a->state_slot ||
        !a->ctx_slot || !a->moved_to || !w->todo || !w->seen || !w->stamp || !w->out || !w->edge || !w->edge_next ||
        !w->sorted || !w->first || !w->heap) {
        automaton_close(a);
        return fail(err, ST_MEMORY, "grammar: no memory for %zu bytes of states", bytes);
    }
    memset(w->first, 0xff, g->n_rules * sizeof *w->first);
    a->state[STATE_DEAD] = (State) { .row = ROW_NONE, .run_place = PLACE_NONE };
    a->state[STATE_ENDED] = (State) { .row = ROW_NONE, .run_place = PLACE_NONE, .accepts = true };
    a->n_states = 2;
    a->ctx[CTX_END] = (Context) { 0 };
    a->n_ctx = 1;
    begin(w);
    add_edge(a, 0, NODE_DONE, CTX_END);
    if (g->rule[0].nullable) w->accepts = true;
    a->start_id = finish(a);
    a->start = (StateHolder) { .id = &a->start_id, .n = 1 };
    automaton_hold(a, &a->start);
    *out = a;
    return ST_OK;
}

void automaton_close(Automaton *a)
{
    if (!a) return;
    free(a->state);
    free(a->place);
    free(a->ctx);
    free(a->edge);
    free(a->row);
    free(a->row_of);
    free(a->cost);
    free(a->state_slot);
    free(a->ctx_slot);
    free(a->moved_to);
    free(a->w.todo);
    free(a->w.seen);
    free(a->w.stamp);
    free(a->w.out);
    free(a->w.edge);
    free(a->w.edge_next);
    free(a->w.sorted);
    free(a->w.first);
    free(a->w.heap);
    free(a);
}
