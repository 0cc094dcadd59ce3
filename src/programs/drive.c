#include "programs/drive.h"

#include "base/grow.h"

static bool keep(const Drive *d, int32_t id)
{
    if (d->cap && !grow_to(d->token, d->cap, (size_t) *d->n + 1, 1024, sizeof **d->token)) return false;
    (*d->token)[(*d->n)++] = id;
    return true;
}

static bool decode(const Drive *d, int32_t id)
{
    size_t n;
    if (!d->reply) return true;
    const char *bytes = (d->special ? rt_token_text : rt_token_bytes)(d->engine, id, &n);
    return reply_token(d->reply, id, bytes, n);
}

static DriveEnd take(const Drive *d, int32_t id, int32_t at)
{
    if (d->accept && !d->accept(d->ud, id)) return DRIVE_REFUSED;
    if (!keep(d, id) || !decode(d, id) || (d->tell && !d->tell(d->ud, id, at))) return DRIVE_NO_MEMORY;
    return d->reply && reply_stop(d->reply) != REPLY_GO ? DRIVE_STOPPED : DRIVE_ON;
}

static DriveEnd give_back(rt_session *s, int32_t kept, DriveEnd why)
{
    rt_take(s, kept > 0 ? kept : 0);
    return why;
}

DriveEnd drive_block(const Drive *d, rt_session *s, const rt_block *b)
{
    int32_t before = *d->n;
    for (int32_t i = 0; i < b->n; i++) {
        int32_t id = b->token[i];
        if (!d->ignore_eos && rt_token_ends(d->engine, id)) return give_back(s, i + 1, DRIVE_ENDED);
        DriveEnd end = take(d, id, i);
        /* the stop string may have begun in an earlier block, which cannot be shortened any more */
        if (end == DRIVE_STOPPED) return give_back(s, reply_kept(d->reply) - before, end);
        if (end != DRIVE_ON) return end;
        if (d->cut && d->cut(d->ud)) return give_back(s, i + 1, DRIVE_CUT);
    }
    return b->status == RT_END ? DRIVE_FULL : b->status < 0 ? DRIVE_FAILED : DRIVE_ON;
}

DriveEnd drive_force(const Drive *d, const int32_t *t, int32_t n)
{
    DriveEnd end = DRIVE_ON;
    for (int32_t i = 0; end == DRIVE_ON && i < n; i++) end = take(d, t[i], -1);
    return end;
}

DriveEnd drive_step(const Drive *d, Program *p, rt_step *step, rt_session *s, rt_block *b)
{
    *b = (rt_block) { 0 };
    rt_status st = interrupts ? RT_ECANCEL : program_step(p, step, s, b);
    if (st == RT_ECANCEL || b->status == RT_ECANCEL) return DRIVE_CANCELLED;
    return st == RT_OK ? drive_block(d, s, b) : DRIVE_FAILED;
}

const char *drive_error(const rt_step *step, const rt_session *s)
{
    return *rt_step_error(step) ? rt_step_error(step) : rt_session_error(s);
}
