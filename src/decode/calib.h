/* calib.h - how far a drafter's word can be trusted, learned while decoding.
 * Edges are sorted by source, depth and log-probability into cells; a cell compares how often the target took such edges with how often
 * the drafter said it would. From the cells a falling-free map log-probability -> log-probability is made per source and depth: the
 * identity at first, never above 0, never turning the order of candidates around. Cells need hundreds of edges; until then, and when the
 * text changes, one quick factor per source says how often a visited row was followed by a drafted one, against how often it should
 * have been. Plain data of a session; it changes speed, not text. */
#ifndef RATOON_DECODE_CALIB_H
#define RATOON_DECODE_CALIB_H

#include <stdbool.h>
#include <stdint.h>

/* LAT_K: candidates that a drafting model names per depth; LAT_COLS: those and the columns of chains from other sources. */
enum { LAT_DEPTH = 32, LAT_K = 16, LAT_COLS = 24, CALIB_BUCKETS = 8 };
enum { SOURCE_BLOCK, SOURCE_NGRAM, SOURCE_MTP, SOURCES };            /* who proposed an edge */

typedef struct {
    float offered[CALIB_BUCKETS], accepted[CALIB_BUCKETS];           /* decayed; only edges whose parent was reached */
    float expected[CALIB_BUCKETS];                                   /* sum of the drafter's probabilities of the offered ones */
    float value[CALIB_BUCKETS];                                      /* the map at the bucket's middle */
} CalibCell;
typedef struct {
    double    weight;                                                /* of the next edge: grows, which is how the old ones decay */
    CalibCell cell[SOURCES][LAT_DEPTH];
    double    hits[SOURCES], hoped[SOURCES];                         /* of visited rows with drafted children, decayed */
    float     quick[SOURCES];                                        /* log((hits + prior) / (hoped + prior)) */
} Calibration;

void  calib_reset(Calibration *c);
/* The calibrated log-probability of an edge whose end lies at lattice depth `depth`: monotone in logp, <= 0, -INFINITY stays. */
float calib_edge(const Calibration *c, int32_t source, int32_t depth, float logp);
/* Notes one edge whose parent was reached; the map follows when calib_fit is called for that depth (accept_learn does all of this). */
void  calib_count(Calibration *c, int32_t source, int32_t depth, float logp, bool accepted);
void  calib_fit(Calibration *c, int32_t source, int32_t depth);
/* The map without the quick factor, and the factor's lesson: a visited row whose drafted children had, by the map, the probability
 * hoped in all; hit: one of them was taken. calib_forget: a proposal of which nothing was verified; the factor moves towards 1, so that a
 * source which once was bad is tried again: soon where drafting costs, rarely where it is free and proposes at every step. */
float calib_map(const Calibration *c, int32_t source, int32_t depth, float logp);
void  calib_level(Calibration *c, int32_t source, double hoped, bool hit);
void  calib_forget(Calibration *c, int32_t source);
/* A text begins that does not continue the last: how a drafter fares with its target holds on, how far the text repeats itself does not. */
void  calib_next(Calibration *c);

#endif
