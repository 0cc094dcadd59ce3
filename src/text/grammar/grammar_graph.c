#include "text/grammar/grammar_graph.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "text/tokenizer/utf8.h"

enum { CLASSES_MAX = 1 << 18, RANGES_MAX = 1 << 20, CHAR_MAX_CODE = 0x10ffff, SURROGATE_LO = 0xd800,
       SURROGATE_HI = 0xdfff };

/* ---- memory ---- */

void graph_fail(Graph *b, Status st, const char *why)
{
    if (b->st != ST_OK) return;
    b->st = st;
    b->why = why;
}

/* Makes room for `more` further entries of an array that may hold `max`. */
static bool reserve(Graph *b, void *array, uint32_t n, size_t *cap, uint32_t more, size_t size, uint32_t max,
                    const char *why)
{
    if (b->st != ST_OK) return false;
    if (more > max - n) {
        graph_fail(b, ST_FORMAT, why);
        return false;
    }
    if (!grow_to(array, cap, (size_t) n + more, 64, size)) graph_fail(b, ST_MEMORY, "out of memory");
    return b->st == ST_OK;
}

bool graph_step(Graph *b)
{
    if (b->st == ST_OK && ++b->steps > GRAMMAR_STEPS_MAX)
        graph_fail(b, ST_FORMAT, "it takes too many steps to compile; it must become smaller");
    return b->st == ST_OK;
}

static uint32_t add_node(Graph *b, NodeType type, uint32_t arg, uint32_t next)
{
    Grammar *g = b->g;
    if (next == GRAPH_NONE || !graph_step(b)) return GRAPH_NONE;
    if (!reserve(b, &g->node, g->n_nodes, &b->cap_nodes, 1, sizeof *g->node, GRAMMAR_NODES_MAX,
                 "it grows beyond 1048576 nodes; repetitions or lengths are too large")) return GRAPH_NONE;
    g->node[g->n_nodes] = (Node) { .type = (uint8_t) type, .arg = arg, .next = next };
    return g->n_nodes++;
}

Status graph_open(Graph *b, Error *err)
{
    *b = (Graph) { 0 };
    b->n_slots = 256;
    b->g = calloc(1, sizeof *b->g);
    b->slot = calloc(b->n_slots, sizeof *b->slot);
    if (b->g && b->slot && add_node(b, NODE_END, 0, 0) == NODE_DONE) return ST_OK;
    graph_drop(b);
    return fail(err, ST_MEMORY, "grammar: out of memory");
}

void graph_drop(Graph *b)
{
    grammar_free(b->g);
    free(b->slot);
    b->g = NULL;
    b->slot = NULL;
}

void grammar_free(Grammar *g)
{
    if (!g) return;
    free(g->node);
    free(g->rule);
    free(g->cls);
    free(g->range);
    free(g->entry_char);
    free(g->entry_call);
    free(g->by_order);
    free(g);
}

size_t grammar_bytes(const Grammar *g)
{
    return sizeof *g + g->n_nodes * sizeof *g->node + g->n_rules * (sizeof *g->rule + sizeof *g->by_order) +
           g->n_classes * sizeof *g->cls + g->n_ranges * sizeof *g->range + g->n_entry_chars * sizeof *g->entry_char +
           g->n_entry_calls * sizeof *g->entry_call;
}

/* ---- classes ---- */

static uint8_t first_byte(uint32_t cp)
{
    return (uint8_t) (cp < 0x80 ? cp : cp < 0x800 ? 0xc0 | cp >> 6 : cp < 0x10000 ? 0xe0 | cp >> 12 : 0xf0 | cp >> 18);
}

static void set_bits(uint64_t *bits, uint32_t lo, uint32_t hi)
{
    for (uint32_t i = lo; i <= hi; i++) bits[i / 64] |= 1ull << i % 64;
}

static int by_lo(const void *a, const void *b)
{
    uint32_t x = ((const CharRange *) a)->lo, y = ((const CharRange *) b)->lo;
    return (x > y) - (x < y);
}

/* Sorts and joins the ranges and removes surrogates; writes to out, which has room for n + 1. */
static uint32_t normalise(CharRange *out, CharRange *r, uint32_t n)
{
    uint32_t m = 0, kept = 0;
    if (n > 1) qsort(r, n, sizeof *r, by_lo);
    for (uint32_t i = 0; i < n; i++) {
        if (m > 0 && r[i].lo <= r[m - 1].hi + 1) {
            if (r[i].hi > r[m - 1].hi) r[m - 1].hi = r[i].hi;
        } else r[m++] = r[i];
    }
    for (uint32_t i = 0; i < m; i++) {
        if (r[i].hi < SURROGATE_LO || r[i].lo > SURROGATE_HI) {
            out[kept++] = r[i];
            continue;
        }
        if (r[i].lo < SURROGATE_LO) out[kept++] = (CharRange) { r[i].lo, SURROGATE_LO - 1 };
        if (r[i].hi > SURROGATE_HI) out[kept++] = (CharRange) { SURROGATE_HI + 1, r[i].hi };
    }
    return kept;
}

static uint32_t hash_words(const void *p, size_t n)
{
    const uint32_t *w = p;
    uint64_t h = 0x9e3779b97f4a7c15u ^ n;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ w[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return (uint32_t) h;
}

static void describe(CharClass *c, const CharRange *r)
{
    uint32_t above = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t lo = r[i].lo, hi = r[i].hi;
        if (lo >= RAW_CODE) {
            c->raw = true;
            set_bits(c->first, lo - RAW_CODE, hi - RAW_CODE);
            continue;
        }
        if (lo < 0x80) set_bits(c->first, lo, hi < 0x7f ? hi : 0x7f);
        if (hi < 0x80) continue;
        if (lo < 0x80) lo = 0x80;
        set_bits(c->first, first_byte(lo), first_byte(hi));
        above += hi - lo + 1;
    }
    c->wide = above == CHAR_MAX_CODE + 1 - 0x80 - (SURROGATE_HI - SURROGATE_LO + 1);
}

static bool grow_slots(Graph *b)
{
    uint32_t n = 2 * b->n_slots, *slot = calloc(n, sizeof *slot);
    if (!slot) {
        graph_fail(b, ST_MEMORY, "out of memory");
        return false;
    }
    for (uint32_t i = 0; i < b->g->n_classes; i++) {
        uint32_t h = hash_words(b->g->range + b->g->cls[i].at, 2 * b->g->cls[i].n);
        while (slot[h & (n - 1)]) h++;
        slot[h & (n - 1)] = i + 1;
    }
    free(b->slot);
    b->slot = slot;
    b->n_slots = n;
    return true;
}

uint32_t graph_class(Graph *b, CharRange *r, uint32_t n)
{
    Grammar *g = b->g;
    if (n > RANGES_MAX || !reserve(b, &g->range, g->n_ranges, &b->cap_ranges, n + 1, sizeof *g->range,
                                   RANGES_MAX, "its character classes are too large"))
        return GRAPH_NONE;
    CharRange *to = g->range + g->n_ranges;
    n = normalise(to, r, n);
    uint32_t h = hash_words(to, 2 * n);
    for (; b->slot[h & (b->n_slots - 1)]; h++) {
        uint32_t id = b->slot[h & (b->n_slots - 1)] - 1;
        if (g->cls[id].n == n && memcmp(g->range + g->cls[id].at, to, n * sizeof *to) == 0) return id;
    }
    if (!reserve(b, &g->cls, g->n_classes, &b->cap_classes, 1, sizeof *g->cls, CLASSES_MAX,
                 "it has too many character classes"))
        return GRAPH_NONE;
    CharClass *c = &g->cls[g->n_classes];
    *c = (CharClass) { .at = g->n_ranges, .n = n };
    describe(c, to);
    g->n_ranges += n;
    b->slot[h & (b->n_slots - 1)] = ++g->n_classes;
    if (2 * g->n_classes > b->n_slots && !grow_slots(b)) return GRAPH_NONE;
    return g->n_classes - 1;
}

/* Index of the range that contains cp, or else of the first range above it. */
static uint32_t range_at(const Grammar *g, const CharClass *c, uint32_t cp)
{
    uint32_t lo = 0, hi = c->n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (g->range[c->at + mid].hi < cp) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* part: 0 at a character's beginning; else the bytes still to come in the upper four bits, and below them the bits read
 * so far, or PART_ANY if every way to complete the character is in the class. So all prefixes that accept "any two more
 * bytes" are the same part. */
enum { PART_SHIFT = 28, PART_ANY = (1 << 28) - 1 };

CharStep class_step(const Grammar *g, uint32_t cls, uint32_t *part, uint8_t byte)
{
    const CharClass *c = &g->cls[cls];
    uint32_t left, value, least = 0;               /* least: a smaller value would be overlong */
    if (*part == 0) {
        if (!(c->first[byte / 64] >> byte % 64 & 1)) return CHAR_NO;
        if (byte < 0x80 || c->raw) return CHAR_DONE;
        left = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
        value = byte & (0x3fu >> left);
        if (left == 2) least = 0x800;
        if (left == 3) least = 0x10000;
    } else {
        if ((byte & 0xc0) != 0x80) return CHAR_NO;
        left = *part >> PART_SHIFT;
        value = *part & PART_ANY;
        if (value == PART_ANY) {
            if (left == 1) return CHAR_DONE;
            *part = (left - 1) << PART_SHIFT | PART_ANY;
            return CHAR_MORE;
        }
        if (left == 2 && value == 0) least = 0x800;
        if (left == 3) least = 0x10000;
        value = value << 6 | (byte & 0x3fu);
        left--;
    }
    uint32_t lo = value << 6 * left, hi = lo | ((1u << 6 * left) - 1);
    bool cut = lo < least;
    if (cut) lo = least;
    if (lo > hi) return CHAR_NO;
    uint32_t i = range_at(g, c, lo);
    if (i == c->n || g->range[c->at + i].lo > hi) return CHAR_NO;
    if (left == 0) return CHAR_DONE;
    bool whole = !cut && g->range[c->at + i].lo <= lo && g->range[c->at + i].hi >= hi;
    *part = left << PART_SHIFT | (whole ? (uint32_t) PART_ANY : value);
    return CHAR_MORE;
}

/* ---- drawing ---- */

uint32_t graph_rule(Graph *b)
{
    Grammar *g = b->g;
    if (!reserve(b, &g->rule, g->n_rules, &b->cap_rules, 1, sizeof *g->rule, GRAMMAR_RULES_MAX,
                 "it has more than 100000 rules"))
        return GRAPH_NONE;
    g->rule[g->n_rules] = (Rule) { .start = GRAPH_NONE };
    return g->n_rules++;
}

uint32_t graph_char(Graph *b, uint32_t cls, uint32_t next)
{
    return cls == GRAPH_NONE ? GRAPH_NONE : add_node(b, NODE_CHAR, cls, next);
}

uint32_t graph_range(Graph *b, uint32_t lo, uint32_t hi, uint32_t next)
{
    return next == GRAPH_NONE ? GRAPH_NONE : graph_char(b, graph_class(b, &(CharRange) { lo, hi }, 1), next);
}

uint32_t graph_byte(Graph *b, uint8_t lo, uint8_t hi, uint32_t next)
{
    return graph_range(b, RAW_CODE + (uint32_t) lo, RAW_CODE + (uint32_t) hi, next);
}

uint32_t graph_one(Graph *b, uint32_t cp, uint32_t next)
{
    if (next == GRAPH_NONE) return GRAPH_NONE;
    if (cp >= 128) return graph_range(b, cp, cp, next);
    if (b->ascii[cp] == 0) {
        uint32_t cls = graph_class(b, &(CharRange) { cp, cp }, 1);
        if (cls == GRAPH_NONE) return GRAPH_NONE;
        b->ascii[cp] = cls + 1;
    }
    return graph_char(b, b->ascii[cp] - 1, next);
}

uint32_t graph_call(Graph *b, uint32_t rule, uint32_t next)
{
    return rule == GRAPH_NONE ? GRAPH_NONE : add_node(b, NODE_CALL, rule, next);
}

uint32_t graph_split(Graph *b, uint32_t one, uint32_t other)
{
    if (b->st != ST_OK) return GRAPH_NONE;
    if (one == GRAPH_NONE || one == other) return other;
    if (other == GRAPH_NONE) return one;
    return add_node(b, NODE_SPLIT, other, one);
}

uint32_t graph_loop(Graph *b, uint32_t next)
{
    return add_node(b, NODE_SPLIT, next, next);
}

void graph_close(Graph *b, uint32_t loop, uint32_t body)
{
    if (loop != GRAPH_NONE && body != GRAPH_NONE) b->g->node[loop].next = body;
}

/* From back to front, since a node needs the one after it. */
uint32_t graph_text(Graph *b, const char *s, size_t n, uint32_t next)
{
    while (n > 0 && next != GRAPH_NONE) {
        size_t at = n - 1;
        uint32_t cp;
        while (at > 0 && ((uint8_t) s[at] & 0xc0) == 0x80) at--;
        if (utf8_next(s + at, n - at, &cp) != n - at) {
            graph_fail(b, ST_FORMAT, "a text is not well-formed UTF-8");
            return GRAPH_NONE;
        }
        next = graph_one(b, cp, next);
        n = at;
    }
    return next;
}

/* ---- characters of JSON strings ---- */

static uint32_t json_escape(Graph *b, uint32_t cp, uint32_t next)
{
    static const char name[] = "\"\"\\\\\bb\ff\nn\rr\tt", hex[] = "0123456789abcdef";
    for (size_t i = 0; i + 1 < sizeof name; i += 2)
        if ((uint32_t) name[i] == cp) return graph_one(b, '\\', graph_one(b, (uint32_t) name[i + 1], next));
    char s[7] = { '\\', 'u', '0', '0', hex[cp >> 4], hex[cp & 15] };
    return graph_text(b, s, 6, next);
}

uint32_t graph_json_char(Graph *b, uint32_t cls, uint32_t next)
{
    if (cls == GRAPH_NONE || next == GRAPH_NONE) return GRAPH_NONE;
    const CharClass *c = &b->g->cls[cls];
    bool plain = (uint32_t) c->first[0] == 0 && !(c->first['"' / 64] >> '"' % 64 & 1) &&
                 !(c->first['\\' / 64] >> '\\' % 64 & 1);
    if (plain) return graph_char(b, cls, next);
    static const CharRange raw[] = { { 0x20, 0x21 }, { 0x23, 0x5b }, { 0x5d, CHAR_MAX_CODE } };
    uint32_t m = 0, way = GRAPH_NONE;
    CharRange *r = malloc(sizeof *r * 3 * ((size_t) c->n + 1));
    if (!r) {
        graph_fail(b, ST_MEMORY, "out of memory");
        return GRAPH_NONE;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        CharRange x = b->g->range[c->at + i];
        for (int k = 0; k < 3; k++) {
            uint32_t lo = x.lo > raw[k].lo ? x.lo : raw[k].lo, hi = x.hi < raw[k].hi ? x.hi : raw[k].hi;
            if (lo <= hi) r[m++] = (CharRange) { lo, hi };
        }
    }
    uint32_t first = (uint32_t) c->first[0];
    bool quote = c->first[0] >> '"' & 1, slash = c->first[1] >> ('\\' - 64) & 1;
    if (m > 0) way = graph_char(b, graph_class(b, r, m), next);
    free(r);
    /* without U+0000: most readers refuse a string with it */
    for (uint32_t cp = 1; cp < 32; cp++)
        if (first >> cp & 1) way = graph_split(b, json_escape(b, cp, next), way);
    if (quote) way = graph_split(b, json_escape(b, '"', next), way);
    if (slash) way = graph_split(b, json_escape(b, '\\', next), way);
    return way;
}

uint32_t graph_json_text(Graph *b, const char *s, size_t n, uint32_t next)
{
    while (n > 0 && next != GRAPH_NONE) {
        size_t at = n - 1;
        uint32_t cp;
        while (at > 0 && ((uint8_t) s[at] & 0xc0) == 0x80) at--;
        if (utf8_next(s + at, n - at, &cp) != n - at) {
            graph_fail(b, ST_FORMAT, "a string is not well-formed UTF-8");
            return GRAPH_NONE;
        }
        next = cp < 32 || cp == '"' || cp == '\\' ? json_escape(b, cp, next) : graph_one(b, cp, next);
        n = at;
    }
    return next;
}

/* ---- expressions ---- */

uint32_t expr_new(Graph *b, Exprs *x, ExprType type, uint32_t arg)
{
    if (!graph_step(b)) return GRAPH_NONE;
    if (!reserve(b, &x->at, x->n, &x->cap, 1, sizeof *x->at, GRAMMAR_STEPS_MAX, "it is too long"))
        return GRAPH_NONE;
    x->at[x->n] = (Expr) { .type = (uint8_t) type, .arg = arg, .link = GRAPH_NONE };
    return x->n++;
}

void expr_append(Exprs *x, uint32_t list, uint32_t part)
{
    if (list == GRAPH_NONE || part == GRAPH_NONE) return;
    x->at[part].link = x->at[list].arg;
    x->at[list].arg = part;
}

static uint32_t draw_repeat(Graph *b, const Exprs *x, const Expr *e, bool json, uint32_t next)
{
    uint32_t node = next;
    if (e->max == GRAPH_NONE) {
        node = graph_loop(b, next);
        graph_close(b, node, expr_draw(b, x, e->arg, json, node));
    }
    for (uint32_t i = e->min; e->max != GRAPH_NONE && i < e->max && graph_step(b); i++)
        node = graph_split(b, expr_draw(b, x, e->arg, json, node), next);
    for (uint32_t i = 0; i < e->min && graph_step(b); i++) node = expr_draw(b, x, e->arg, json, node);
    return node;
}

/* Recursion as deep as groups nest, which the parsers bound. */
uint32_t expr_draw(Graph *b, const Exprs *x, uint32_t id, bool json, uint32_t next)
{
    if (id == GRAPH_NONE || next == GRAPH_NONE || !graph_step(b)) return GRAPH_NONE;
    const Expr *e = &x->at[id];
    uint32_t way = GRAPH_NONE;
    switch ((ExprType) e->type) {
    case EXPR_EMPTY: return next;
    case EXPR_CHAR:  return json ? graph_json_char(b, e->arg, next) : graph_char(b, e->arg, next);
    case EXPR_RULE:  return graph_call(b, e->arg, next);
    case EXPR_REPEAT: return draw_repeat(b, x, e, json, next);
    case EXPR_SEQ:
        for (uint32_t p = e->arg; p != GRAPH_NONE; p = x->at[p].link) next = expr_draw(b, x, p, json, next);
        return next;
    case EXPR_ALT:
        for (uint32_t p = e->arg; p != GRAPH_NONE; p = x->at[p].link)
            way = graph_split(b, expr_draw(b, x, p, json, next), way);
        return way;
    }
    return GRAPH_NONE;
}

static uint32_t times(uint32_t a, uint32_t n)
{
    if (a == 0 || n == 0) return 0;
    if (a == GRAPH_NONE || n == GRAPH_NONE) return GRAPH_NONE;
    uint64_t p = (uint64_t) a * n;
    return p < GRAPH_NONE ? (uint32_t) p : GRAPH_NONE;
}

static uint32_t plus(uint32_t a, uint32_t b)
{
    return a == GRAPH_NONE || b == GRAPH_NONE || (uint64_t) a + b >= GRAPH_NONE ? GRAPH_NONE : a + b;
}

void expr_length(const Exprs *x, uint32_t id, uint32_t *min, uint32_t *max)
{
    const Expr *e = &x->at[id];
    uint32_t lo, hi;
    *min = *max = e->type == EXPR_CHAR;
    if (e->type == EXPR_REPEAT) {
        expr_length(x, e->arg, &lo, &hi);
        *min = times(lo, e->min);
        *max = times(hi, e->max);
    } else if (e->type == EXPR_SEQ || e->type == EXPR_ALT) {
        bool first = true;
        for (uint32_t p = e->arg; p != GRAPH_NONE; p = x->at[p].link) {
            expr_length(x, p, &lo, &hi);
            if (e->type == EXPR_SEQ) {
                *min = plus(*min, lo);
                *max = plus(*max, hi);
            } else {
                *min = first || lo < *min ? lo : *min;
                *max = first || hi > *max ? hi : *max;
            }
            first = false;
        }
    }
}

/* ---- finishing ---- */

typedef struct {
    Grammar  *g;
    uint32_t *pred_at, *pred;                      /* predecessors of each node, a list per node */
    uint32_t *call_at, *call;                      /* nodes that call a rule */
    uint32_t *queue;
    bool     *node, *rule;                         /* the property being computed */
} Finish;

static void lists_of(Finish *f)
{
    Grammar *g = f->g;
    for (uint32_t pass = 0; pass < 2; pass++) {    /* count, then fill from the back */
        for (uint32_t i = 0; i < g->n_nodes; i++) {
            const Node *v = &g->node[i];
            if (v->type == NODE_END) continue;
            uint32_t to[2] = { v->next, v->type == NODE_SPLIT ? v->arg : v->next };
            for (uint32_t k = 0; k < 1u + (to[1] != to[0]); k++) {
                if (pass == 0) f->pred_at[to[k]]++;
                else f->pred[--f->pred_at[to[k]]] = i;
            }
            if (v->type != NODE_CALL) continue;
            if (pass == 0) f->call_at[v->arg]++;
            else f->call[--f->call_at[v->arg]] = i;
        }
        if (pass == 1) break;
        for (uint32_t i = 1; i <= g->n_nodes; i++) f->pred_at[i] += f->pred_at[i - 1];
        for (uint32_t i = 1; i <= g->n_rules; i++) f->call_at[i] += f->call_at[i - 1];
    }
}

static void mark(Finish *f, uint32_t node, uint32_t *n)
{
    if (f->node[node]) return;
    f->node[node] = true;
    f->queue[(*n)++] = node;
}

/* Finds the nodes from which the end can be reached: over characters, or (empty) without any. start_of: rules by their
 * first node. */
static void reach_end(Finish *f, bool empty, const uint32_t *next_start, const uint32_t *start_of)
{
    const Grammar *g = f->g;
    uint32_t n = 0;
    memset(f->node, 0, g->n_nodes * sizeof *f->node);
    memset(f->rule, 0, g->n_rules * sizeof *f->rule);
    mark(f, NODE_DONE, &n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t v = f->queue[i];
        for (uint32_t k = f->pred_at[v]; k < f->pred_at[v + 1]; k++) {
            const Node *u = &g->node[f->pred[k]];
            bool good = u->type == NODE_SPLIT || (u->type == NODE_CALL && f->rule[u->arg]) ||
                        (u->type == NODE_CHAR && !empty && g->cls[u->arg].n > 0);
            if (good) mark(f, f->pred[k], &n);
        }
        for (uint32_t r = start_of[v]; r != GRAPH_NONE; r = next_start[r]) {
            f->rule[r] = true;
            for (uint32_t k = f->call_at[r]; k < f->call_at[r + 1]; k++)
                if (f->node[g->node[f->call[k]].next]) mark(f, f->call[k], &n);
        }
    }
}

/* Finds what each rule can begin with: its nodes that are reached without a character, skipping calls of rules that may
 * be empty. Every live node belongs to one rule or is shared by pieces of one rule, so each node is visited once per
 * rule. */
static bool entries_of(Graph *b, Finish *f)
{
    Grammar *g = b->g;
    size_t cap_chars = 0, cap_calls = 0;
    uint32_t *seen = f->pred_at, n;
    memset(seen, 0xff, (g->n_nodes + 1) * sizeof *seen);
    for (uint32_t r = 0; r < g->n_rules; r++) {
        Rule *rule = &g->rule[r];
        rule->chars = g->n_entry_chars;
        rule->calls = g->n_entry_calls;
        if (!rule->live) continue;
        n = 0;
        f->queue[n++] = rule->start;
        seen[rule->start] = r;
        while (n > 0) {
            uint32_t at = f->queue[--n], to[2] = { GRAPH_NONE, GRAPH_NONE };
            const Node *v = &g->node[at];
            if (!graph_step(b)) return false;
            if (v->type == NODE_CHAR) {
                if (!reserve(b, &g->entry_char, g->n_entry_chars, &cap_chars, 1, sizeof *g->entry_char,
                             UINT32_MAX / 8, ""))
                    return false;
                g->entry_char[g->n_entry_chars++] = at;
            } else if (v->type == NODE_CALL) {
                if (!reserve(b, &g->entry_call, g->n_entry_calls, &cap_calls, 1, sizeof *g->entry_call,
                             UINT32_MAX / 8, ""))
                    return false;
                g->entry_call[g->n_entry_calls++] = (Call) { v->arg, v->next };
                if (g->rule[v->arg].nullable) to[0] = v->next;
            } else if (v->type == NODE_SPLIT) {
                to[0] = v->next;
                to[1] = v->arg;
            }
            for (int k = 0; k < 2; k++) {
                if (to[k] == GRAPH_NONE || !g->node[to[k]].live || seen[to[k]] == r) continue;
                seen[to[k]] = r;
                f->queue[n++] = to[k];
            }
        }
        rule->n_chars = g->n_entry_chars - rule->chars;
        rule->n_calls = g->n_entry_calls - rule->calls;
    }
    return true;
}

/* Orders callers before callees. A rule that can begin with itself, even indirectly, has no place in such an order. */
static bool order_rules(Graph *b, Finish *f, uint32_t *bad_rule)
{
    Grammar *g = b->g;
    uint32_t *open = f->queue, *waits = f->call_at, n_open = 0, done = 0, live = 0;
    memset(waits, 0, (g->n_rules + 1) * sizeof *waits);
    for (uint32_t i = 0; i < g->n_entry_calls; i++) waits[g->entry_call[i].rule]++;
    for (uint32_t r = 0; r < g->n_rules; r++) {
        live += g->rule[r].live;
        if (g->rule[r].live && waits[r] == 0) open[n_open++] = r;
    }
    while (done < n_open) {
        uint32_t r = open[done];
        g->by_order[done] = r;
        g->rule[r].order = done++;
        for (uint32_t i = 0; i < g->rule[r].n_calls; i++)
            if (--waits[g->entry_call[g->rule[r].calls + i].rule] == 0)
                open[n_open++] = g->entry_call[g->rule[r].calls + i].rule;
    }
    if (done == live) return true;
    /* Some of the remaining rules are only called from a cycle: following remaining callers backwards ends in the cycle
     * itself. */
    uint32_t r = 0;
    while (!(g->rule[r].live && waits[r] > 0)) r++;
    for (uint32_t back = 0; back < live; back++) {
        uint32_t caller = GRAPH_NONE;
        for (uint32_t i = 0; caller == GRAPH_NONE && i < g->n_rules; i++)
            for (uint32_t k = 0; g->rule[i].live && waits[i] > 0 && k < g->rule[i].n_calls; k++)
                if (g->entry_call[g->rule[i].calls + k].rule == r) caller = i;
        if (caller == GRAPH_NONE || back > 64) break;
        r = caller;
    }
    *bad_rule = r;
    graph_fail(b, ST_FORMAT,
               "it can begin with itself, so a text has endlessly many readings; repetition is written with * or +");
    return false;
}

/* The next character node of the same class after this one, if it is found nearby. */
static uint32_t follower(const Grammar *g, uint32_t node)
{
    enum { LOOK = 24 };
    uint32_t todo[LOOK], n = 0, seen = 0;
    todo[n++] = g->node[node].next;
    while (n > 0 && seen++ < LOOK) {
        const Node *v = &g->node[todo[--n]];
        if (v->type == NODE_CHAR && v->arg == g->node[node].arg) return (uint32_t) (v - g->node);
        if (v->type != NODE_SPLIT) continue;
        if (n < LOOK && g->node[v->arg].live) todo[n++] = v->arg;
        if (n < LOOK && g->node[v->next].live) todo[n++] = v->next;
    }
    return GRAPH_NONE;
}

/* Each node has at most one follower, so each chain is walked once: a chain that returns to itself is endless. */
static void measure_runs(Finish *f)
{
    Grammar *g = f->g;
    uint32_t *at = f->queue;
    enum { WALKING = RUN_ENDLESS - 1 };
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        uint32_t n = 0, v = i, run = 0;
        while (v != GRAPH_NONE && g->node[v].type == NODE_CHAR && g->node[v].live && g->node[v].run == 0) {
            g->node[v].run = (uint32_t) WALKING;
            at[n++] = v;
            v = follower(g, v);
        }
        if (n == 0) continue;
        if (v != GRAPH_NONE) run = g->node[v].run == (uint32_t) WALKING ? RUN_ENDLESS : g->node[v].run;
        while (n > 0) {
            if (run < (uint32_t) WALKING - 1) run++;
            g->node[at[--n]].run = run;
        }
    }
}

static bool analyse(Graph *b, Finish *f, uint32_t *bad_rule)
{
    Grammar *g = b->g;
    uint32_t *start_of = malloc(g->n_nodes * sizeof *start_of), *next_start = malloc(g->n_rules * sizeof *next_start);
    bool good = start_of && next_start;
    if (!good) graph_fail(b, ST_MEMORY, "out of memory");
    if (good) {
        memset(start_of, 0xff, g->n_nodes * sizeof *start_of);
        for (uint32_t r = 0; r < g->n_rules; r++) {
            next_start[r] = GRAPH_NONE;
            if (g->rule[r].start == GRAPH_NONE) continue;      /* an impossible rule, such as the schema false */
            next_start[r] = start_of[g->rule[r].start];
            start_of[g->rule[r].start] = r;
        }
        lists_of(f);
        reach_end(f, false, next_start, start_of);
        for (uint32_t i = 0; i < g->n_nodes; i++) g->node[i].live = f->node[i];
        for (uint32_t r = 0; r < g->n_rules; r++) g->rule[r].live = f->rule[r];
        reach_end(f, true, next_start, start_of);
        for (uint32_t r = 0; r < g->n_rules; r++) g->rule[r].nullable = f->rule[r];
        if (!g->rule[0].live) {
            *bad_rule = 0;
            graph_fail(b, ST_FORMAT, "no text satisfies it");
            good = false;
        }
    }
    free(start_of);
    free(next_start);
    if (!good || !entries_of(b, f) || !order_rules(b, f, bad_rule)) return false;
    measure_runs(f);
    return true;
}

Status graph_finish(Grammar **out, Graph *b, uint32_t *bad_rule, const char **why)
{
    Grammar *g = b->g;
    *out = NULL;
    *bad_rule = GRAPH_NONE;
    if (b->st == ST_OK) {
        Finish f = { .g = g };
        f.pred_at = calloc(g->n_nodes + 1, sizeof *f.pred_at);
        f.pred = malloc((2 * (size_t) g->n_nodes + 1) * sizeof *f.pred);
        f.call_at = calloc(g->n_rules + 1, sizeof *f.call_at);
        f.call = malloc((g->n_nodes + 1) * sizeof *f.call);
        f.queue = malloc((g->n_nodes + g->n_rules + 1) * sizeof *f.queue);
        f.node = malloc(g->n_nodes * sizeof *f.node);
        f.rule = malloc(g->n_rules * sizeof *f.rule);
        g->by_order = calloc(g->n_rules, sizeof *g->by_order);
        if (!f.pred_at || !f.pred || !f.call_at || !f.call || !f.queue || !f.node || !f.rule || !g->by_order)
            graph_fail(b, ST_MEMORY, "out of memory");
        else
            analyse(b, &f, bad_rule);
        free(f.pred_at);
        free(f.pred);
        free(f.call_at);
        free(f.call);
        free(f.queue);
        free(f.node);
        free(f.rule);
    }
    *why = b->why;
    if (b->st == ST_OK) {
        *out = g;
        b->g = NULL;
    }
    graph_drop(b);
    return b->st;
}
