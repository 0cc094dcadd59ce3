#include "programs/acceptance.h"

/* A drafter of this model has its first guess right more often than not, and `ratoon doctor` calls one suspicious below
 * 30 %. At those 30 % the limit below is met by chance in 1.4 % of all cases when 12 proposals were made (none right),
 * in 2.6 % when 16 were (one right); at 50 % in 0.03 %. The controller asks a bad drafter nine times in a thousand
 * tokens, so that many more could not be waited for. */
enum { PROPOSALS_MIN = 12, ROWS_MIN = 24, PROPOSALS_PER_HIT = 16 };

bool acceptance_poor(Acceptance *g, const rt_stats *s)
{
    g->proposals += s->drafted_by[RT_BLOCK] ? s->drafts : 0;
    g->rows += s->drafted_by[RT_BLOCK];
    g->accepted += s->accepted_by[RT_BLOCK];
    if (g->said || g->proposals < PROPOSALS_MIN || g->rows < ROWS_MIN) return false;
    g->said = PROPOSALS_PER_HIT * g->accepted <= g->proposals;
    return g->said;
}
