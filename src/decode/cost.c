#include "decode/cost.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mathd.h"

/* Prior weight, in observations, of a time that is known well, was left by an earlier run, interpolated or guessed;
 * SEEN_MOST caps it. The draft time is a single value, observed at every draft, so its prior is small. */
enum { SEEN_SET = 60, SEEN_MOST = 100, SEEN_DRAFT = 8, SEEN_BETWEEN = 8, SEEN_GUESS = 2 };
/* Passes that set the scale; plain ones to see before deciding; rows that a chunk needs to say anything. */
enum { REAL_SCALE = 3, REAL_READY = 2, CHUNK_LEAST = 8 };
static const float  MORE_GUESS = 0.8f;      /* of a proposal, per additional session: its rows cost nearly as much */
static const float  DRAFT_GUESS = 0.5f, ROW_GUESS = 0.2f;            /* in plain passes */
static const double ROW_LEAST = 1.0 / 256, ROW_MOST = 1;
/* At most, from the first chunk alone: it touches all memory for the first time. */
static const float  ROW_FIRST = 0.25f;
/* A single time counts as at most so many times the present value, or part of it: of a guess, and of a width that was
 * seen. A pass that is faster than predicted by more than LOADED shows that other load slowed those before it. */
static const double STALL = 1.5, STEADY = 1.25, LOADED = 1.15;
/* The share of a deviation that the whole table follows on a quiet machine, and how much more on one whose noise is far
 * above LOUD; the share that the estimate of the noise follows; the observations that the prior of a width weighs
 * more for each unit of noise. */
static const double COMMON = 0.1, COMMON_MORE = 0.4, LOUD = 0.01, NOISE = 0.2, DOUBT = 400;
/* The share of a pass that what is known of routes follows. */
static const double ROUTES = 0.1;
/* The first proposals count as at most so many times the guess, so that a stall does not end drafting for good. */
static const double DRAFT_MOST = 4;
/* Widths believed, as multiples of the widest pass that was seen: with a chunk, and without. */
enum { BEYOND_CHUNK = 16, BEYOND = 2 };

void cost_reset(Cost *c)
{
    memset(c, 0, sizeof *c);
    c->draft_guess = DRAFT_GUESS;
    c->row = ROW_GUESS;
}

void cost_guess_draft(Cost *c, double plain_passes) { c->draft_guess = (float) plain_passes; }

void cost_experts(Cost *c, double share, int32_t used, int32_t of)
{
    c->experts = share;
    c->alike = c->alike_missed = (double) used / of;
}

void cost_stairs(Cost *c, const int32_t *widths, int32_t n)
{
    c->stairs = widths;
    c->n_stairs = n;
}

int32_t cost_stair(const Cost *c, int32_t rows)
{
    for (int32_t i = 0; i < c->n_stairs; i++)
        if (c->stairs[i] >= rows) return c->stairs[i];
    return rows;
}

static bool possible(double ms) { return ms > 0 && ms < 1e9; }       /* rejects a clock that stood still or went back */

static double off(float value, double ms, double most) { return fmin(fmax(ms / (double) value, 1 / most), most); }

/* doubt: observations that the prior counts for. */
static void learn(float *value, int32_t *seen, double doubt, double most, double ms)
{
    *value *= (float) (1 + (off(*value, ms, most) - 1) / (*seen + doubt));
    if (*seen < SEEN_MOST) ++*seen;
}

/* ---- the shape ---- */

/* Experts that n rows read, in those of one row. */
static double spread(double alike, int32_t n)
{
    return alike > 0.999 ? 1 : (1 - mathd_exp(n * mathd_log(1 - alike))) / alike;
}

/* What a pass of n rows reads, in plain passes. */
static double reads(const Cost *c, int32_t n)
{
    return c->experts > 0 ? 1 + c->experts * (spread(c->alike, n) - 1) : 1;
}

/* A pass of n rows in plain passes. Reading the weights takes one, or more in mixtures, the operations take row each;
 * the pass takes at least the longer of the two and at most their sum. Real passes lie about half-way: see the machines
 * of tests/help/replay.h. */
static double works(const Cost *c, double row, int32_t n)
{
    const double read = reads(c, n);
    return (fmax(read, n * row) + read + (n - 1) * row) / 2;
}

/* The same, with what it waits for files. */
static double shape(const Cost *c, double row, int32_t n)
{
    const double w = works(c, row, n);
    return c->waits > 0 ? (1 - c->waits) * w + c->waits * spread(c->alike_missed, n) : w;
}

/* The time of a row for which `wide` rows take `times` as long as `narrow` ones. */
static double row_for(const Cost *c, int32_t narrow, int32_t wide, double times)
{
    double least = ROW_LEAST, most = ROW_MOST;
    for (int i = 0; i < 20; i++) {
        double row = (least + most) / 2;
        if (works(c, row, wide) < times * works(c, row, narrow)) least = row;
        else most = row;
    }
    return least;
}

/* Between two observed widths the share of the shape goes over from one to the other, and no pass takes longer than
 * both of them; beyond them it stays. */
static void fill(Cost *c)
{
    const double row = (double) c->row;
    double share[ROWS_DECODE + 1];
    int32_t last = 0;
    for (int32_t n = 1; n <= ROWS_DECODE; n++) {
        if (!c->seen[n]) continue;
        share[n] = (double) c->pass_ms[n] / shape(c, row, n);
        for (int32_t i = last + 1; i < n; i++)
            share[i] = last ? fmin(share[last] + (share[n] - share[last]) * (i - last) / (n - last),
                                   (double) fmaxf(c->pass_ms[last], c->pass_ms[n]) / shape(c, row, i)) : share[n];
        last = n;
    }
    if (last == 0) return;
    for (int32_t i = last + 1; i <= ROWS_DECODE; i++) share[i] = share[last];
    for (int32_t i = 1; i <= ROWS_DECODE; i++)
        if (!c->seen[i]) c->pass_ms[i] = (float) (share[i] * shape(c, row, i));
    for (int32_t i = 1; c->n_stairs && i <= ROWS_DECODE; i++) c->pass_ms[i] = c->pass_ms[cost_stair(c, i)];
}

static int32_t widest(const Cost *c)
{
    int32_t n = ROWS_DECODE;
    while (n > 1 && !c->seen[n]) n--;
    return n;
}

/* ---- observations ---- */

void cost_set_pass(Cost *c, int32_t rows, double seconds)
{
    if (rows < 1 || rows > ROWS_DECODE || !possible(seconds * 1e3)) return;
    rows = cost_stair(c, rows);
    c->pass_ms[rows] = (float) (seconds * 1e3);
    c->seen[rows] = SEEN_SET;
    c->real = REAL_SCALE;
    fill(c);
}

void cost_set_draft(Cost *c, double seconds)
{
    if (!possible(seconds * 1e3)) return;
    c->draft_ms = (float) (seconds * 1e3);
    c->draft_seen = SEEN_DRAFT;
}

static void scale(Cost *c, double by)
{
    for (int32_t n = 1; n <= ROWS_DECODE; n++) c->pass_ms[n] *= (float) by;
    c->draft_ms *= (float) by;
    c->more_ms *= (float) by;
}

/* The time of a row, from the chunk beside the narrowest pass. */
static void fit_row(Cost *c)
{
    int32_t narrow = 1;
    while (!c->seen[narrow]) narrow++;
    if (c->chunk_rows < 2 * narrow) return;
    const double row = (double) c->row, part = (1 - c->waits) * works(c, row, narrow) / shape(c, row, narrow);
    c->row = (float) row_for(c, narrow, c->chunk_rows, (double) c->chunk / ((double) c->pass_ms[narrow] * part));
    if (c->chunk_seen == 1) c->row = fminf(c->row, ROW_FIRST);
    c->row_seen = 1;
}

/* An earlier run left the times, or load slowed the passes seen so far. The chunk was timed by itself and stays. */
static void rescale(Cost *c, double by)
{
    scale(c, by);
    fit_row(c);
    fill(c);
}

/* Far from what an earlier run left: that machine is another one than ours. */
static bool refuted(bool *told, float value, double ms)
{
    double by = *told ? ms / (double) value : 1;
    *told = false;
    return by > STALL || by < 1 / STALL;
}

static void learn_pass(Cost *c, int32_t rows, double ms)
{
    float *value = &c->pass_ms[rows];
    int32_t *seen = &c->seen[rows];
    double by = ms / (double) *value;
    if (c->real < REAL_SCALE && (c->real == 0 || (*seen && by < 1))) rescale(c, by);
    else if (refuted(&c->told[rows], *value, ms)) *value = (float) ms, *seen = 1;
    else if (by < 1 / LOADED) rescale(c, fmax(by * LOADED, 1 / STALL));
    const double most = *seen ? STEADY : STALL, r = mathd_log(off(*value, ms, most));
    if (*seen > SEEN_GUESS) c->noise += NOISE * (r * r - c->noise);
    const double all = mathd_exp((COMMON + COMMON_MORE * c->noise / (c->noise + LOUD)) * r);
    scale(c, all);
    c->chunk *= (float) all;
    if (!*seen && rows < widest(c)) *seen = SEEN_BETWEEN;
    learn(value, seen, SEEN_GUESS + DOUBT * c->noise, most, ms);
}

void cost_pass(Cost *c, int32_t rows, double seconds)
{
    double ms = seconds * 1e3;
    if (rows < 1 || rows > ROWS_DECODE || !possible(ms)) return;
    rows = cost_stair(c, rows);
    if (c->pass_ms[rows] > 0) {
        learn_pass(c, rows, ms);
    } else {
        c->pass_ms[rows] = (float) ms;
        c->seen[rows] = 1;
    }
    c->told[rows] = false;
    if (c->real < REAL_SCALE) c->real++;
    fit_row(c);
    fill(c);
}

/* The widest chunk stands for all; times of others are converted to its rows. */
void cost_chunk(Cost *c, int32_t rows, double seconds)
{
    const double row = (double) c->row;
    double ms = seconds * 1e3;
    if (rows < CHUNK_LEAST || !possible(ms)) return;
    if (rows > c->chunk_rows) {
        if (c->chunk_rows) c->chunk *= (float) (works(c, row, rows) / works(c, row, c->chunk_rows));
        c->chunk_rows = rows;
    }
    ms *= works(c, row, c->chunk_rows) / works(c, row, rows);
    if (!c->chunk_seen || (c->chunk_seen < REAL_SCALE && ms < (double) c->chunk)) {
        c->chunk = (float) ms;
        c->chunk_seen++;
    } else {
        learn(&c->chunk, &c->chunk_seen, SEEN_GUESS, STALL, ms);
    }
    if (c->real) rescale(c, 1);
}

static double draft_most(const Cost *c) { return DRAFT_MOST * (double) c->draft_guess * (double) c->pass_ms[1]; }

static void learn_draft(Cost *c, double ms)
{
    if (c->draft_seen < REAL_SCALE - 1 && c->pass_ms[1] > 0) ms = fmin(ms, draft_most(c));
    if (!c->draft_seen || refuted(&c->draft_told, c->draft_ms, ms) ||
        (c->draft_seen < REAL_SCALE && ms < (double) c->draft_ms)) {
        c->draft_ms = (float) ms;
        c->draft_seen++;
    } else learn(&c->draft_ms, &c->draft_seen, SEEN_GUESS, STALL, ms);
}

void cost_draft(Cost *c, int32_t sessions, double seconds)
{
    double ms = seconds * 1e3;
    if (!possible(ms)) return;
    if (sessions > 1 && c->draft_seen) {
        if (!c->more_seen) c->more_ms = MORE_GUESS * c->draft_ms;
        learn(&c->more_ms, &c->more_seen, SEEN_GUESS, STALL, (ms - (double) c->draft_ms) / (sessions - 1));
    } else {
        learn_draft(c, ms / sessions);
    }
}

/* The alikeness at which rows read as many experts as `ratio` rows would by themselves. */
static double alike_for(int32_t rows, double ratio)
{
    double least = 1e-6, most = 1;
    for (int i = 0; i < 20; i++) {
        const double alike = (least + most) / 2;
        if (spread(alike, rows) > ratio) least = alike;
        else most = alike;
    }
    return least;
}

void cost_routes(Cost *c, int32_t rows, int64_t chosen, int64_t read)
{
    if (rows < 2 || read < 1 || chosen < read || !(c->experts > 0)) return;
    c->alike += ROUTES * (alike_for(rows, (double) read * rows / (double) chosen) - c->alike);
    if (c->real) rescale(c, 1);
}

void cost_misses(Cost *c, int32_t rows, int64_t missed, double share)
{
    if (!(c->experts > 0) || (missed == 0 && c->missed < 0.01)) return;
    if (rows == 1) {
        const double part = fmax(ROUTES, 1.0 / ++c->missed_seen);
        c->missed += part * ((double) missed - c->missed);
        c->waits += part * (fmin(fmax(share, 0), 0.99) - c->waits);
    } else if (c->missed > 0) {
        c->alike_missed += ROUTES * (alike_for(rows, (double) missed / c->missed) - c->alike_missed);
    }
    if (c->real) rescale(c, 1);
}

/* ---- questions ---- */

bool cost_ready(const Cost *c)
{
    return c->pass_ms[1] > 0 && (c->real >= REAL_READY || c->seen[1] >= REAL_READY);
}

float cost_draft_ms(const Cost *c, int32_t sessions)
{
    float one = c->draft_seen ? c->draft_ms : c->draft_guess * c->pass_ms[1];
    return one + (float) (sessions - 1) * (c->more_seen ? c->more_ms : MORE_GUESS * one);
}

int32_t cost_known(const Cost *c, int32_t rows)
{
    int32_t most = (c->row_seen ? BEYOND_CHUNK : BEYOND) * widest(c);
    return rows < most ? rows : most;
}

/* ---- as text ---- */

/* "1 ROW SEEN DRAFT SEEN MORE SEEN (ROWS PASS SEEN)...": whole numbers, which no locale changes; times in nanoseconds,
 * ROW in millionths of a plain pass. */
enum { TEXT_VERSION = 1, SEEN_KEPT = 8 };
static const double UNIT = 1e-6;                                     /* in milliseconds; in plain passes */

static long long whole(float x) { return (long long) ((double) x / UNIT + 0.5); }

/* What no machine does: rows that make a pass much shorter, or that cost more than passes of their own. */
static bool believable_pass(const Cost *c, int32_t rows)
{
    double passes = (double) c->pass_ms[rows] / (double) c->pass_ms[1];
    return passes >= 0.5 && passes <= 2.0 * rows;
}

/* Nor do proposals cost next to nothing, or hundreds of passes. */
static bool believable_draft(const Cost *c)
{
    double draft = (double) c->draft_ms / (double) c->pass_ms[1];
    return draft > 1e-4 && draft < 1e3;
}

/* A width at which the machine was busy with something else is left out, so that every line can be read again. */
size_t cost_write(const Cost *c, char *out, size_t cap)
{
    size_t n = 0;
    if (!cost_ready(c) || !c->seen[1] || !c->draft_seen || !believable_draft(c)) return 0;
    n += (size_t) snprintf(out, cap, "%d %lld %d %lld %d %lld %d", TEXT_VERSION, whole(c->row), c->row_seen,
                           whole(c->draft_ms), c->draft_seen, whole(c->more_ms), c->more_seen);
    for (int32_t i = 1; i <= ROWS_DECODE; i++)
        if (c->seen[i] && believable_pass(c, i))
            n += (size_t) snprintf(n < cap ? out + n : NULL, n < cap ? cap - n : 0, " %d %lld %d", i,
                                   whole(c->pass_ms[i]), c->seen[i]);
    return n;
}

/* The next number, which is in [min, max]. */
static bool number(const char **p, int64_t min, int64_t max, int64_t *out)
{
    int64_t x = 0;
    const char *s = *p + (**p == ' ');
    if (*s < '0' || *s > '9') return false;
    for (; *s >= '0' && *s <= '9'; s++) {
        if (x > (INT64_MAX - 9) / 10) return false;
        x = 10 * x + (*s - '0');
    }
    *p = s;
    *out = x;
    return x >= min && x <= max;
}

/* A time and how often it was seen. */
static bool timed(const char **p, int64_t least, int64_t most, float *ms, int32_t *seen)
{
    int64_t ns, n;
    if (!number(p, least, most, &ns) || !number(p, 0, SEEN_MOST, &n)) return false;
    *ms = (float) ((double) ns * UNIT);
    *seen = n > SEEN_KEPT ? SEEN_KEPT : (int32_t) n;
    return true;
}

static bool read_text(Cost *c, const char *p)
{
    const int64_t least = 100, most = 1000000000000;                 /* 100 ns, 1000 s */
    int64_t version, rows;
    if (!number(&p, TEXT_VERSION, TEXT_VERSION, &version) || !timed(&p, 1, 1000000, &c->row, &c->row_seen))
        return false;
    c->row = (float) fmin(fmax((double) c->row, ROW_LEAST), ROW_MOST);
    if (!timed(&p, least, most, &c->draft_ms, &c->draft_seen) || !timed(&p, 0, most, &c->more_ms, &c->more_seen))
        return false;
    for (int32_t last = 0; *p; last = (int32_t) rows) {
        float ms;
        int32_t n;
        if (!number(&p, last + 1, ROWS_DECODE, &rows) || !timed(&p, least, most, &ms, &n) || n < 1) return false;
        if (cost_stair(c, (int32_t) rows) != rows) continue;
        c->pass_ms[rows] = ms;
        c->seen[rows] = n;
        c->told[rows] = true;
    }
    if (!c->draft_seen || !c->seen[1]) return false;
    if (c->seen[1] < REAL_READY) c->seen[1] = REAL_READY;   /* enough to begin with: a real pass corrects it at once */
    return true;
}

Status cost_read(Cost *c, const char *text, Error *err)
{
    Cost x;
    cost_reset(&x);
    cost_stairs(&x, c->stairs, c->n_stairs);
    x.draft_guess = c->draft_guess;
    x.experts = c->experts;
    x.alike = c->alike;
    x.alike_missed = c->alike_missed;
    if (!read_text(&x, text)) return fail(err, ST_FORMAT, "costs: the line is damaged or of another version");
    bool believable = believable_draft(&x);
    for (int32_t n = 2; n <= ROWS_DECODE; n++) believable &= !x.seen[n] || believable_pass(&x, n);
    if (!believable) return fail(err, ST_FORMAT, "costs: no machine has such times");
    x.draft_told = true;
    x.draft_ms = fminf(x.draft_ms, (float) draft_most(&x));
    fill(&x);
    *c = x;
    return ST_OK;
}
