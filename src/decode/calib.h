/* calib.h - how far a drafter's word can be trusted, learned while decoding.
 * Edges are sorted by source, depth and log-probability into cells; a cell compares how often the target took such
 * edges with how often the drafter predicted it would. The cells yield, per source and depth, a non-decreasing map from
 * log-probability to log-probability: initially the identity, never above 0, never reordering candidates. Cells need
 * hundreds of edges; until then, and when the text changes, one scale per source compares how often a visited row was
 * followed by a drafted one with how often it should have been. Plain data of a session; it changes speed, not text. */
#ifndef RATOON_DECODE_CALIB_H
#define RATOON_DECODE_CALIB_H

#include <stdbool.h>
#include <stdint.h>

/* LAT_K: candidates per depth from a drafting model; LAT_COLS: those plus the columns for chains from other sources. */
enum { LAT_DEPTH = 32, LAT_K = 16, LAT_COLS = 24, CALIB_BUCKETS = 8 };
enum { SOURCE_BLOCK, SOURCE_NGRAM, SOURCE_MTP, SOURCES };            /* who proposed an edge */

typedef struct {
    float offered[CALIB_BUCKETS], accepted[CALIB_BUCKETS];  /* decayed; only edges whose parent was reached */
    float expected[CALIB_BUCKETS];                          /* sum of the drafter's probabilities of the offered ones */
    float value[CALIB_BUCKETS];                             /* the map at the bucket's middle */
} CalibCell;
typedef struct {
    double    weight;                                   /* of the next edge: it grows, so older edges decay */
    CalibCell cell[SOURCES][LAT_DEPTH];
    double    hits[SOURCES], expected[SOURCES];         /* over visited rows with drafted children, decayed */
    float     scale[SOURCES];                           /* log((hits + prior) / (expected + prior)) */
} Calibration;

void  calib_reset(Calibration *c);
/* The calibrated log-probability of an edge that ends at lattice depth `depth`: monotone in logp, <= 0; -INFINITY stays
 * -INFINITY. */
float calib_edge(const Calibration *c, int32_t source, int32_t depth, float logp);
/* Counts one edge whose parent was reached; calib_fit then updates the map of that depth (accept_learn does all of
 * this). */
void  calib_count(Calibration *c, int32_t source, int32_t depth, float logp, bool accepted);
void  calib_fit(Calibration *c, int32_t source, int32_t depth);
/* calib_map: the map without the scale. calib_level: teaches the scale from a visited row whose drafted children had,
 * according to the map, the summed probability expected; hit: one of them was taken. calib_forget: nothing of the
 * source's proposal was verified; decays the scale towards 1 so that a once-bad source is retried: soon if drafting is
 * costly, rarely if it is free and proposes at every step. */
float calib_map(const Calibration *c, int32_t source, int32_t depth, float logp);
void  calib_level(Calibration *c, int32_t source, double expected, bool hit);
void  calib_forget(Calibration *c, int32_t source);
/* A new text begins: how well a drafter matches its target carries over, how much the text repeats itself does not. */
void  calib_next(Calibration *c);

#endif
