/* cost.h - how long a pass of n rows and a proposal of the drafting model take on this machine.
 * Real passes give it its scale, the prompt's chunks the time of a row where rows are the limit and not the weights,
 * and the roofline of a pass its shape between the two; real passes then refine all of it. No pass is run for the sake
 * of its time. A program may keep what was learned and hand it to a later run as text. Decisions that follow from the
 * table change speed only. */
#ifndef RATOON_DECODE_COST_H
#define RATOON_DECODE_COST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/error.h"

/* pass_ms [rows]: observed where seen > 0. The other widths follow from the neighbours that were observed and the shape
 * of the roofline. [1] == 0: nothing is known yet. Cliffs stay as observed: both sides of a kernel's width are points
 * of their own. */
typedef struct {
    float   pass_ms[ROWS_DECODE + 1], draft_ms;
    int32_t seen[ROWS_DECODE + 1], draft_seen;
    float   more_ms; int32_t more_seen;            /* extra time of a proposal per additional session */
    float   row; int32_t row_seen;                 /* time that the operations of a row take, in plain passes: from the
                                                    * chunk, or from an earlier run */
    float   chunk; int32_t chunk_rows, chunk_seen; /* ms and rows of a prompt's chunk */
    double  noise;                                 /* mean square of the logarithms of how far passes are off */
    double  experts, alike;                        /* mixtures: the share of experts in what a plain pass reads; how
                                                    * likely a row is to choose what another one chose, see
                                                    * cost_routes */
    double  waits, missed, alike_missed;           /* experts from a file: the share of a plain pass that waits for
                                                    * them, how many it misses, and `alike` of those, see
                                                    * cost_misses */
    int32_t missed_seen;                           /* plain passes that said so */
    float   draft_guess;                           /* a proposal in plain passes, before one was seen */
    int32_t real;                                  /* passes seen in this run, as far as they set the scale */
    bool    told[ROWS_DECODE + 1], draft_told;     /* from an earlier run, and not yet seen in this one */
    const int32_t *stairs; int32_t n_stairs;       /* row counts that passes are rounded up to, ascending; 0: no
                                                    * rounding */
} Cost;

void  cost_reset(Cost *c);
/* What a proposal is taken to cost before one was seen, in plain passes. */
void  cost_guess_draft(Cost *c, double plain_passes);
/* For mixtures: experts take this share of the bytes that a plain pass reads, and a row uses `used` of `of`. A pass
 * of n rows reads more of them: as many as if each row chose an expert with a chance of `alike`, which is used / of
 * at first, and larger in real texts, whose rows resemble each other. */
void  cost_experts(Cost *c, double share, int32_t used, int32_t of);
/* A pass of so many rows chose experts `chosen` times in all, and read `read` different ones. */
void  cost_routes(Cost *c, int32_t rows, int64_t chosen, int64_t read);
/* Of these, a pass of so many rows missed some that had to be read from a file, and spent a share of its time waiting
 * for them. Rows share fewer of what they miss than of what they use, since what many use is in memory. */
void  cost_misses(Cost *c, int32_t rows, int64_t missed, double share);
/* All widths up to a stair cost as much as the stair itself, so decisions fill the stair. widths [n] must outlive the
 * table. */
void  cost_stairs(Cost *c, const int32_t *widths, int32_t n);
/* The stair that a pass of this many rows is rounded up to; rows itself if there are no stairs. */
int32_t cost_stair(const Cost *c, int32_t rows);
/* Times that are known well replace the present values: for tests, which set up a machine. */
void  cost_set_pass(Cost *c, int32_t rows, double seconds);
void  cost_set_draft(Cost *c, double seconds);
/* A time observed in a step. Whatever slows one pass slows them all, including widths not in use now, and comparing
 * times from a slow minute with times from a fast one would be meaningless. So an observation scales the whole table
 * by part of its deviation, and its own entry by a share that shrinks with the observations so far and with the noise:
 * on a quiet machine the first time of a width says more than the shape does, on a loud one ten say less. A single
 * time counts as at most 1.25 times the present value (1.5 times a guess), so that a stall is not mistaken for the
 * machine's speed. Other load only adds: a pass much faster than predicted scales all times but the chunk's, which was
 * measured by itself. The first passes of a run set the scale: they touch memory for the first time, so the fastest of
 * them counts. */
void  cost_pass(Cost *c, int32_t rows, double seconds);
void  cost_draft(Cost *c, int32_t sessions, double seconds);
/* A pass that read this many rows of a prompt; seconds: of as many rows with logits, without waiting for files. */
void  cost_chunk(Cost *c, int32_t rows, double seconds);
/* Whether the table says enough to decide: plain passes were seen, or an earlier run left it. */
bool  cost_ready(const Cost *c);
/* Milliseconds of one proposal for this many sessions; 0: nothing is known yet. */
float cost_draft_ms(const Cost *c, int32_t sessions);
/* rows, limited to widths that the table can predict: up to 16 times the widest pass that was seen, or twice if no
 * chunk was. */
int32_t cost_known(const Cost *c, int32_t rows);

/* What was learned, as a line of text like snprintf, shorter than COST_TEXT; 0: nothing worth keeping. */
enum { COST_TEXT = 2048 };
size_t cost_write(const Cost *c, char *out, size_t cap);
/* Takes over such a line. Its times count as those of a machine of unknown speed: the first pass of this run sets the
 * scale, and a width that turns out to be far from what the line says is learned anew. ST_FORMAT: the line is damaged
 * or says what no machine does; the table is as before. */
Status cost_read(Cost *c, const char *text, Error *err);

#endif
