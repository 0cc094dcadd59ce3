#include "decode/lock.h"

#include "backend/pass.h"

void lock_begin(LockRow *row, int32_t n)
{
    for (int32_t i = 0; i < n; i++) row[i] = (LockRow) { .token = -1 };
}

/* The same as a locked token beside it. */
static bool is_echo(const LockRow *row, int32_t n, int32_t i)
{
    return (i > 0 && row[i - 1].locked && row[i - 1].token == row[i].token) ||
           (i + 1 < n && row[i + 1].locked && row[i + 1].token == row[i].token);
}

/* Rows that propose a token, the likeliest tokens first, of equals the lower row; returns their number. */
static int32_t proposals(int32_t *order, const LockRow *row, const CanvasRow *found, int32_t n)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        if (row[i].locked || !(found[i].mask < found[i].top)) continue;
        int32_t at = count++;
        for (; at > 0 && found[order[at - 1]].sum > found[i].sum; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    return count;
}

/* The first of the proposals that is no echo; if all are, the first. */
static int32_t surest(const int32_t *order, int32_t count, const LockRow *row, int32_t n)
{
    for (int32_t k = 0; k < count; k++)
        if (!is_echo(row, n, order[k])) return order[k];
    return order[0];
}

int32_t lock_step(LockRow *row, const CanvasRow *found, int32_t n, int32_t stability, float entropy)
{
    int32_t order[CANVAS_MAX], locked = 0;
    bool now[CANVAS_MAX] = { false };
    for (int32_t i = 0; i < n; i++) {
        if (row[i].locked) continue;
        row[i].stable = row[i].token == found[i].best ? row[i].stable + 1 : 0;
        row[i].token = found[i].best;
    }
    const int32_t count = proposals(order, row, found, n);
    for (int32_t k = 0; k < count; k++) {
        const int32_t i = order[k];
        const int32_t wait = is_echo(row, n, i) ? stability + 1 : 0;
        const bool ready = row[i].stable >= stability + wait && found[i].entropy < entropy;
        if (!ready || (i > 0 && now[i - 1]) || (i + 1 < n && now[i + 1])) continue;
        row[i].locked = now[i] = true;
        locked++;
    }
    if (locked == 0 && count > 0) {
        row[surest(order, count, row, n)].locked = true;
        locked = 1;
    }
    return locked;
}

int32_t lock_first_open(const LockRow *row, int32_t n)
{
    int32_t i = 0;
    while (i < n && row[i].locked) i++;
    return i;
}

int32_t lock_block(int32_t *token, const LockRow *row, int32_t n, bool ended, int32_t end)
{
    const int32_t open = lock_first_open(row, n);
    for (int32_t i = 0; i < n; i++) token[i] = row[i].token;
    if (!ended || open == n || end < 0) return n;
    token[open] = end;
    return open + 1;
}
