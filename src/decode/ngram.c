/* ngram.c - the index and the look-up of ngram.h.
 * The chains work as in an LZ77 compressor's window, and going back is exact: removing the newest position from its
 * chain restores the previous head. The cost of a look-up does not depend on the length of the text: the number of
 * links followed and tokens compared is bounded. */
#include "decode/ngram.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mathd.h"

static const int32_t KEY[NGRAM_KEYS] = { 8, 4, 2 };                  /* the longest first */
enum { LINKS = 32, PLACES = 24, ENOUGH = 8, MATCH_MAX = 64, WEIGHED_MAX = 16 };
static const double FLOOR = 0.005;              /* minimum probability of a path: less likely ones are not worth a
                                                 * column */

static uint32_t heads(int32_t ctx)
{
    uint32_t n = 64;
    while (n < (uint32_t) ctx) n *= 2;
    return n;
}

size_t ngram_bytes(int32_t ctx) { return sizeof(int32_t) * NGRAM_KEYS * ((size_t) heads(ctx) + (size_t) ctx); }

Status ngram_open(Ngram *g, int32_t ctx, Error *err)
{
    *g = (Ngram) { .ctx = ctx, .mask = heads(ctx) - 1 };
    int32_t *at = calloc(1, ngram_bytes(ctx));
    if (!at) return fail(err, ST_MEMORY, "session: out of memory for the index of %d tokens", ctx);
    for (int32_t k = 0; k < NGRAM_KEYS; k++) g->head[k] = at + (size_t) k * heads(ctx);
    for (int32_t k = 0; k < NGRAM_KEYS; k++)
        g->prev[k] = at + (size_t) NGRAM_KEYS * heads(ctx) + (size_t) k * (size_t) ctx;
    return ST_OK;
}

void ngram_close(Ngram *g)
{
    free(g->head[0]);
    *g = (Ngram) { 0 };
}

/* Hash of the n-token key that ends at `end`; the text has that many tokens. */
static uint32_t hash(const Ngram *g, const int32_t *text, int32_t end, int32_t n)
{
    uint64_t h = (uint64_t) n;
    for (int32_t i = end - n + 1; i <= end; i++) h = (h ^ (uint32_t) text[i]) * 0x9e3779b97f4a7c15u;
    return (uint32_t) (h >> 32) & g->mask;
}

void ngram_cut(Ngram *g, const int32_t *text, int32_t n)
{
    int32_t to = n > 0 ? n - 1 : 0;                         /* the last remaining token is looked up before it is
                                                             * entered */
    if (!g->head[0] || g->n <= to) return;
    if (to == 0) memset(g->head[0], 0, sizeof(int32_t) * NGRAM_KEYS * ((size_t) g->mask + 1));
    for (int32_t i = g->n - 1; i >= to && to > 0; i--)
        for (int32_t k = 0; k < NGRAM_KEYS; k++)
            if (i + 1 >= KEY[k]) g->head[k][hash(g, text, i, KEY[k])] = g->prev[k][i];
    g->n = to;
}

static void enter(Ngram *g, const int32_t *text, int32_t end)
{
    for (int32_t i = g->n; i < end; i++)
        for (int32_t k = 0; k < NGRAM_KEYS; k++) {
            if (i + 1 < KEY[k]) continue;
            int32_t *head = &g->head[k][hash(g, text, i, KEY[k])];
            g->prev[k][i] = *head;
            *head = i + 1;
        }
    if (end > g->n) g->n = end;
}

/* An earlier occurrence of the text's end; sorted by the longest match, then the newest first. */
typedef struct { int32_t end, match; } Place;

static int32_t match_of(const int32_t *text, int32_t end, int32_t last)
{
    int32_t m = 0;
    while (m < MATCH_MAX && m <= end && text[end - m] == text[last - m]) m++;
    return m;
}

static int32_t find_places(Place *out, const Ngram *g, const int32_t *text, int32_t n)
{
    int32_t found = 0;
    for (int32_t k = 0; k < NGRAM_KEYS && found < ENOUGH; k++) {
        if (n < KEY[k]) continue;
        int32_t links = LINKS;
        for (int32_t at = g->head[k][hash(g, text, n - 1, KEY[k])]; at > 0 && links > 0 && found < PLACES;
             at = g->prev[k][at - 1], links--) {
            Place p = { at - 1, match_of(text, at - 1, n - 1) };
            bool known = p.match < KEY[k];                           /* another key with the same hash */
            for (int32_t i = 0; i < found && !known; i++) known = out[i].end == p.end;
            if (known) continue;
            int32_t i = found++;
            for (; i > 0 && out[i - 1].match < p.match; i--) out[i] = out[i - 1];
            out[i] = p;
        }
    }
    return found;
}

/* The token d positions after a place. Beyond the end of the text it repeats what lies between the place and the
 * end. */
static int32_t token_after(const int32_t *text, int32_t n, Place p, int32_t d)
{
    int32_t at = p.end + 1 + d;
    return at < n ? text[at] : text[p.end + 1 + (at - n) % (n - 1 - p.end)];
}

/* Prior probability that a place with this many tokens in common predicts the next one correctly. The shape is that of
 * source code; calibration corrects the values. */
static double trust(int32_t match) { return (double) match / (match + 2); }

/* The chain of place `from`: at each depth the weight is shared by the places that have continued the same way so
 * far. */
static void follow(Guess *out, const int32_t *text, int32_t n, const Place *place, int32_t n_places, int32_t from,
                   int32_t depth_max)
{
    int32_t *token = out->token[out->n], d = 0;
    float *raw = out->raw[out->n];
    uint32_t with = (1u << n_places) - 1;
    double path = 1;
    for (; d < depth_max; d++) {
        token[d] = token_after(text, n, place[from], d);
        double all = 0, same = 0;
        uint32_t next = 0;
        int32_t longest = 0;
        for (int32_t i = 0; i < n_places; i++) {
            if (!(with >> i & 1)) continue;
            double weight = (double) (1u << (place[i].match < WEIGHED_MAX ? place[i].match : WEIGHED_MAX));
            all += weight;
            if (token_after(text, n, place[i], d) != token[d]) continue;
            same += weight;
            next |= 1u << i;
            if (place[i].match > longest) longest = place[i].match;
        }
        with = next;
        double p = same / all * trust(longest + d);
        if ((path *= p) < FLOOR) break;
        raw[d] = (float) mathd_log(p);
    }
    out->length[out->n] = d;
}

/* Whether the new chain is a prefix of an earlier one. */
static bool known_chain(const Guess *g)
{
    for (int32_t c = 0; c < g->n; c++)
        if (g->length[c] >= g->length[g->n] &&
            memcmp(g->token[c], g->token[g->n], sizeof(int32_t) * (size_t) g->length[g->n]) == 0)
            return true;
    return false;
}

void ngram_find(Guess *out, Ngram *g, const int32_t *text, int32_t n, int32_t depth_max)
{
    out->n = out->match = 0;
    if (!g->head[0] || n < 2) return;
    enter(g, text, n - 1);
    if (depth_max > LAT_DEPTH) depth_max = LAT_DEPTH;
    Place place[PLACES];
    int32_t n_places = find_places(place, g, text, n);
    if (n_places > 0) out->match = place[0].match;
    for (int32_t i = 0; i < n_places && out->n < NGRAM_CHAINS; i++) {
        follow(out, text, n, place, n_places, i, depth_max);
        if (out->length[out->n] > 0 && !known_chain(out)) out->n++;
    }
}

void guess_join(Lattice *l, const Guess *g, const Calibration *calib)
{
    for (int32_t c = 0; c < g->n; c++) lattice_chain(l, g->token[c], g->raw[c], g->length[c], calib, SOURCE_NGRAM);
}
