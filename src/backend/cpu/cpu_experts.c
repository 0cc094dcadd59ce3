/* cpu_experts.c - mixtures of experts. The rows of a pass are put in order of their experts, so that each expert's
 * weights are read once, however many rows chose it. There is one hand-over to the threads for each stage of all
 * experts together: gate and up, activation, down, and the sums of the rows. Where memory holds only some experts,
 * those that are there go through the first three stages while the others are read, which follow as they arrive. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/expert_store.h"
#include "backend/cpu/matmul_layout.h"

static float *row_of(const Tensor *t, int32_t i) { return (float *) t->data + (size_t) i * (size_t) t->cols; }

/* ---- the router ---- */

typedef struct {
    Cpu *c;
    int32_t *ids, n;                               /* [rows, used]; n: rows that count */
    Tensor *weight;
    const Tensor *logits, *bias, *factor;
    const Router *r;
} Routing;

/* Whether a value ranks before another one that has the lower id. */
static bool ranks_before(float a, float b) { return a > b || (isnan(b) && !isnan(a)); }

static void best_of(int32_t *ids, const float *p, int32_t experts, int32_t used)
{
    for (int32_t e = 0, n = 0; e < experts; e++) {
        int32_t i = n;
        while (i > 0 && ranks_before(p[e], p[ids[i - 1]])) i--;
        if (i == used) continue;
        if (n < used) n++;
        memmove(ids + i + 1, ids + i, sizeof *ids * (size_t) (n - 1 - i));
        ids[i] = e;
    }
}

static void route_task(void *arg, int32_t i, int32_t thread)
{
    const Routing *a = arg;
    const int32_t used = a->r->used, experts = a->logits->cols;
    int32_t *ids = a->ids + (size_t) i * (size_t) used;
    if (i >= a->n) {
        for (int32_t j = 0; j < used; j++) ids[j] = -1;
        return;
    }
    const float *z = row_of(a->logits, i);
    float *w = row_of(a->weight, i), sum = 0;
    float *p = cpu_scratch(a->c, thread), *ranked = p + experts;
    if (a->r->gating == ROUTE_SIGMOID) {
        a->c->rows->math(p, z, experts, MATH_SIGMOID);
        z = p;
    }
    if (a->bias) {
        memcpy(ranked, z, sizeof *z * (size_t) experts);
        a->c->rows->add(ranked, a->bias->data, experts);
    }
    best_of(ids, a->bias ? ranked : z, experts, used);
    for (int32_t j = 0; j < used; j++) w[j] = a->r->gating == ROUTE_SIGMOID ? z[ids[j]] : z[ids[j]] - z[ids[0]];
    if (a->r->gating == ROUTE_SOFTMAX) a->c->rows->math(w, w, used, MATH_EXP);
    for (int32_t j = 0; j < used; j++) sum += w[j];
    if (a->r->gating == ROUTE_SIGMOID && sum < 0x1p-14f) sum = 0x1p-14f;
    for (int32_t j = 0; j < used; j++) w[j] = w[j] / sum * a->r->scale;
    for (int32_t j = 0; a->factor && j < used; j++) w[j] *= ((const float *) a->factor->data)[ids[j]];
}

static void route(Backend *b, Tensor *ids, Tensor *weight, const Tensor *logits, const Tensor *bias,
                  const Tensor *factor, const Router *r, const Rows *rows)
{
    Routing a = { cpu_of(b), ids->data, rows->count[0], weight, logits, bias, factor, r };
    if (!cpu_failed(a.c)) cpu_run(a.c, route_task, &a, logits->rows, (int64_t) logits->rows * logits->cols * 8);
}

/* ---- the experts ---- */

/* What one call works on; all lists are in the fork's input buffer. A place is a row of h, wide and each: places are in
 * order of experts, those with most rows first. */
typedef struct {
    Cpu           *c;
    Tensor        *y;
    const Tensor  *x, *ids, *weight;
    const Experts *e;
    int32_t        row0, n, used;                  /* rows [row0, row0 + n) of x */
    int32_t       *place, *row;                    /* [n * used] of each row's ranks, -1: none; the row of each place */
    int32_t       *expert, *start, n_experts;      /* the experts that rows chose; places [start[t], start[t + 1]) */
    int32_t       *todo;                           /* which of them are computed now */
    const uint8_t **slot;                          /* where they are; NULL: whole stacks are in memory */
    const void    *act[ACT_COUNT];                 /* the rows of x in each form that gate and up need */
    uint8_t       *act_h;                          /* the places of h, see act_of_h; NULL: as they are */
    int32_t        pieces;                         /* tasks of a matrix */
} Mixture;

/* Matrix t of a stack. */
static const uint8_t *matrix_of(const Mixture *m, const Tensor *w, int32_t t)
{
    if (!m->slot) return cpu_matrix(m->c, w, m->expert[t]);
    return m->slot[t] + ((const StoredStack *) w->data)->at;
}

static int32_t groups_of(const Tensor *w) { return (w->rows + WEIGHT_GROUP - 1) / WEIGHT_GROUP; }
static int32_t rows_of(const Mixture *m, int32_t t) { return m->start[t + 1] - m->start[t]; }
static size_t lines_up(size_t bytes) { return (bytes + 63) & ~(size_t) 63; }

/* Each expert's places begin a line, so they are quantised as a matrix of its own. */
static uint8_t *act_of_h(const Mixture *m, int32_t t)
{
    const Tensor *w = m->e->down;
    if (!m->act_h) return (uint8_t *) row_of(m->e->h, m->start[t]);
    return m->act_h + lines_up(matmul_act_bytes(matmul_act_form(w->type), m->start[t], w->cols)) + (size_t) t * 64;
}

/* Puts the rows in order of their experts. Two lists that only this needs: by_count [n + 1], times [experts]. */
static bool sort_rows(Mixture *m, int32_t *by_count, int32_t *times)
{
    const int32_t experts = m->e->gate->n;
    const int32_t *ids = (const int32_t *) m->ids->data + (size_t) m->row0 * (size_t) m->used;
    memset(times, 0, sizeof *times * (size_t) experts);
    memset(by_count, 0, sizeof *by_count * ((size_t) m->n + 1));
    for (int32_t i = 0; i < m->n * m->used; i++) {
        if (ids[i] < -1 || ids[i] >= experts) return false;
        if (ids[i] >= 0 && ++times[ids[i]] > m->n) return false;
    }
    for (int32_t e = 0; e < experts; e++) by_count[times[e]]++;
    m->n_experts = 0;
    for (int32_t k = m->n; k > 0; k--) {           /* from numbers of experts to where they begin */
        int32_t many = by_count[k];
        by_count[k] = m->n_experts;
        m->n_experts += many;
    }
    for (int32_t e = 0; e < experts; e++)
        if (times[e]) m->expert[by_count[times[e]]++] = e;
    m->start[0] = 0;
    for (int32_t t = 0; t < m->n_experts; t++) {
        m->start[t + 1] = m->start[t] + times[m->expert[t]];
        times[m->expert[t]] = m->start[t];         /* from here on: where its next row goes */
    }
    for (int32_t i = 0; i < m->n * m->used; i++) {
        m->place[i] = ids[i] < 0 ? -1 : times[ids[i]]++;
        if (ids[i] >= 0) m->row[m->place[i]] = i / m->used;
    }
    return true;
}

/* The quantised rows of n places as a matrix of their own, in scratch; those of all rows in order need no copy. */
static const void *gather(const Mixture *m, void *scratch, ActForm form, int32_t place0, int32_t n)
{
    const uint8_t *from = m->act[form];
    const int32_t *row = m->row + place0, cols = m->x->cols;
    if (n == m->n) return from;                    /* no expert twice in a row: these are all rows, ascending */
    const size_t blocks = form == ACT_F32 ? 1 : (size_t) cols / (form == ACT_Q32 ? 32 : 256);
    const size_t bytes = form == ACT_F32 ? sizeof(float) * (size_t) cols
                       : form == ACT_Q32 ? sizeof(ActBlock32) : sizeof(ActBlock256);
    for (size_t b = 0; b < blocks; b++)
        for (int32_t i = 0; i < n; i++)
            memcpy((uint8_t *) scratch + (b * (size_t) n + (size_t) i) * bytes,
                   from + (b * (size_t) m->n + (size_t) row[i]) * bytes, bytes);
    return scratch;
}

/* Bytes that gather needs for as many rows as are multiplied at once. */
static size_t gather_bytes(const Mixture *m, ActForm form)
{
    const int32_t rows = matmul_part_rows(form, m->x->cols, m->c->part_bytes);
    return lines_up(form == ACT_F32 ? sizeof(float) * (size_t) rows * (size_t) m->x->cols
                                    : matmul_act_bytes(form, rows, m->x->cols));
}

static void piece_of(const Mixture *m, const Tensor *w, int32_t piece, int32_t *g0, int32_t *g1)
{
    const int64_t groups = groups_of(w);
    *g0 = (int32_t) (groups * piece / m->pieces);
    *g1 = (int32_t) (groups * (piece + 1) / m->pieces);
}

/* Task i: a piece of the gate or of the up matrix of an expert, for all its rows. */
static void wide_task(void *arg, int32_t i, int32_t thread)
{
    const Mixture *m = arg;
    const int32_t t = m->todo[i / (2 * m->pieces)], of_expert = i % (2 * m->pieces);
    const Tensor *w = of_expert < m->pieces ? m->e->gate : m->e->up;
    const Tensor *to = of_expert < m->pieces ? m->e->h : m->e->wide;
    const ActForm form = matmul_act_form(w->type);
    const int32_t most = matmul_part_rows(form, m->x->cols, m->c->part_bytes);
    const int32_t parts = (rows_of(m, t) + most - 1) / most;
    uint8_t *scratch = cpu_scratch(m->c, thread);
    int32_t g0, g1;
    piece_of(m, w, of_expert % m->pieces, &g0, &g1);
    for (int32_t k = 0; k < parts; k++) {
        const int32_t at = m->start[t] + (int32_t) ((int64_t) rows_of(m, t) * k / parts);
        const int32_t n = m->start[t] + (int32_t) ((int64_t) rows_of(m, t) * (k + 1) / parts) - at;
        const void *act = gather(m, scratch, form, at, n);
        cpu_product(m->c, row_of(to, at), (size_t) to->cols, w, matrix_of(m, w, t), act, n, g0, g1,
                    scratch + gather_bytes(m, form));
    }
}

static void times_factor(const Mixture *m, float *y, int64_t n, const Tensor *w, int32_t t)
{
    if (w->factors) m->c->rows->scale(y, n, ((const float *) w->factors->data)[m->expert[t]], 0);
}

/* Task i: what an expert's gate lets through, quantised. */
static void act_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const Mixture *m = arg;
    const int32_t t = m->todo[i], n = rows_of(m, t), ffn = m->e->h->cols;
    float *h = row_of(m->e->h, m->start[t]), *wide = row_of(m->e->wide, m->start[t]);
    times_factor(m, h, (int64_t) n * ffn, m->e->gate, t);
    times_factor(m, wide, (int64_t) n * ffn, m->e->up, t);
    m->c->rows->glu(h, h, wide, (int64_t) n * ffn, m->e->act);
    if (m->act_h) m->c->mm->quantise(act_of_h(m, t), matmul_act_form(m->e->down->type), h, n, ffn, 0, n);
}

static void down_task(void *arg, int32_t i, int32_t thread)
{
    const Mixture *m = arg;
    const int32_t t = m->todo[i / m->pieces];
    const Tensor *w = m->e->down, *to = m->e->each;
    int32_t g0, g1;
    piece_of(m, w, i % m->pieces, &g0, &g1);
    cpu_product(m->c, row_of(to, m->start[t]), (size_t) to->cols, w, matrix_of(m, w, t), act_of_h(m, t), rows_of(m, t),
                g0, g1, cpu_scratch(m->c, thread));
}

static void sum_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const Mixture *m = arg;
    const int32_t *place = m->place + (size_t) i * (size_t) m->used;
    const float *each[EXPERTS_USED_MAX];
    if (place[0] < 0) return;
    for (int32_t j = 0; j < m->used; j++) each[j] = row_of(m->e->each, place[j]);
    m->c->rows->mix(row_of(m->y, m->row0 + i), each, row_of(m->weight, m->row0 + i), m->used, m->y->cols);
}

/* Pieces of a matrix: enough tasks for all threads, each of them worth handing out. */
static void cut(Mixture *m, const Tensor *w, int32_t matrices)
{
    const int64_t group_work = (int64_t) WEIGHT_GROUP * w->cols;
    const int64_t most = (int64_t) groups_of(w) * group_work / 65536;
    int64_t want = ((int64_t) m->c->threads * 16 + matrices - 1) / matrices;
    if (want > most) want = most;
    m->pieces = want < 1 ? 1 : (int32_t) want;
}

/* The first three stages of n experts, todo. */
static void run_experts(Mixture *m, int32_t n)
{
    Cpu *c = m->c;
    const Experts *e = m->e;
    const int64_t one = (int64_t) e->gate->rows * e->gate->cols;
    int64_t places = 0;
    if (n == 0) return;
    for (int32_t i = 0; i < n; i++) places += rows_of(m, m->todo[i]);
    cut(m, e->gate, 2 * n);
    cpu_run(c, wide_task, m, 2 * n * m->pieces, places * one / 2);
    cpu_run(c, act_task, m, n, places * e->h->cols * 16);
    cut(m, e->down, n);
    cpu_run(c, down_task, m, n * m->pieces, places * one / 4);
}

static int32_t layer_of(const Mixture *m) { return ((const StoredStack *) m->e->gate->data)->layer; }

/* Begins to read the first of n missing experts, those with most rows first, as far as there is room, and puts those
 * that another fork has read into todo. Returns how many it has dealt with. */
static int32_t begin_missing(Mixture *m, const int32_t *missing, int32_t n, int32_t *n_todo)
{
    int32_t i = 0;
    for (; i < n; i++) {
        const int32_t t = missing[i];
        const ExpertBegin b = expert_reader_begin(m->c->reader, layer_of(m), m->expert[t], t, &m->slot[t]);
        if (b == EXPERT_BUSY || b == EXPERT_FULL) break;
        if (b == EXPERT_HELD) m->todo[(*n_todo)++] = t;
    }
    return i;
}

/* Computes what is in todo and lets go of it. */
static void run_held(Mixture *m, int32_t n, bool passing)
{
    run_experts(m, n);
    for (int32_t i = 0; i < n; i++)
        expert_reader_release(m->c->reader, layer_of(m), m->expert[m->todo[i]], passing);
}

/* All experts of a layer of which memory holds only some. missing [n_experts]: scratch. After a failure what is being
 * read is still waited for. */
static void run_stored(Mixture *m, int32_t *missing)
{
    Cpu *c = m->c;
    const bool passing = m->n > ROWS_DECODE;
    int32_t n_missing = 0, begun = 0, n = 0, tag[EXPERT_LOADS];
    const uint8_t *at[EXPERT_LOADS];
    for (int32_t t = 0; t < m->n_experts; t++) missing[t] = rows_of(m, t);     /* for now: how often it was chosen */
    expert_reader_choose(c->reader, layer_of(m), m->expert, missing, m->n_experts, m->n, m->slot);
    for (int32_t t = 0; t < m->n_experts; t++) {
        if (m->slot[t]) m->todo[n++] = t;
        else missing[n_missing++] = t;
    }
    begun = begin_missing(m, missing, n_missing, &n);
    run_held(m, n, false);
    for (;;) {
        const uint64_t since = expert_reader_now(c->reader);
        n = 0;
        if (!cpu_failed(c)) begun += begin_missing(m, missing + begun, n_missing - begun, &n);
        const int32_t arrived = expert_reader_arrived(c->reader, c->pool, tag, at, &c->error);
        for (int32_t i = 0; i < arrived; i++) {
            m->slot[tag[i]] = at[i];
            if (at[i]) m->todo[n++] = tag[i];
        }
        run_held(m, n, passing);
        if (arrived == 0 && n == 0 && (cpu_failed(c) || begun == n_missing)) return;
        if (arrived == 0 && n == 0) expert_reader_wait(c->reader, since);
    }
}

/* times [experts]: scratch */
static void run_mixture(Mixture *m, int32_t *times)
{
    Cpu *c = m->c;
    const int64_t places = m->start[m->n_experts];
    cpu_quantise(c, m->act, m->x, m->row0, m->n);
    if (m->slot) {
        run_stored(m, times);
    } else {
        for (int32_t t = 0; t < m->n_experts; t++) m->todo[t] = t;
        run_experts(m, m->n_experts);
    }
    if (!cpu_failed(c)) cpu_run(c, sum_task, m, m->n, places * m->e->each->cols);
}

/* Places all that n rows need in the input buffer; returns false if it does not fit. */
static bool place_all(Mixture *m, int32_t n, int32_t **by_count, int32_t **times)
{
    const size_t experts = (size_t) m->e->gate->n, pairs = (size_t) n * (size_t) m->used;
    const size_t most = experts < pairs ? experts : pairs;
    const ActForm h = matmul_act_form(m->e->down->type);
    const bool stored = m->c->reader && expert_reader_has(m->c->reader, m->e->gate);
    size_t at = 0;
    int32_t **list[] = { &m->place, &m->row, &m->expert, &m->start, &m->todo, by_count, times };
    const size_t length[] = { pairs, pairs, most, most + 1, most, (size_t) n + 1, experts };
    for (int k = 0; k < 7; k++) {
        *list[k] = (int32_t *) (void *) (m->c->input + at);
        at += lines_up(sizeof(int32_t) * length[k]);
    }
    m->slot = stored ? (const uint8_t **) (void *) (m->c->input + at) : NULL;
    if (stored) at += lines_up(sizeof *m->slot * most);
    memset(m->act, 0, sizeof m->act);
    for (int k = 0; k < 2; k++) {
        const ActForm form = matmul_act_form((k ? m->e->up : m->e->gate)->type);
        if (m->act[form]) continue;
        m->act[form] = form == ACT_F32 ? (const void *) row_of(m->x, m->row0) : m->c->input + at;
        at += lines_up(matmul_act_bytes(form, n, m->x->cols));
    }
    m->act_h = h == ACT_F32 ? NULL : m->c->input + at;
    if (m->act_h) at += lines_up(matmul_act_bytes(h, (int32_t) pairs, m->e->down->cols)) + 64 * most;
    return at <= INPUT_BYTES;
}

/* What place_all uses at most. */
static size_t input_bytes(Tensor *const w[STACKS], int32_t n, int32_t used)
{
    const Tensor *down = w[STACK_DOWN];
    const size_t pairs = (size_t) n * (size_t) used, lists = 32 * pairs + 128 * (size_t) down->n;
    size_t bytes = lists + matmul_act_bytes(matmul_act_form(down->type), (int32_t) pairs, down->cols);
    for (int p = STACK_GATE; p <= STACK_UP; p++)
        bytes += matmul_act_bytes(matmul_act_form(w[p]->type), n, w[p]->cols);
    return bytes;
}

int32_t cpu_experts_rows(const Stacked *s, int32_t n, int32_t used)
{
    enum { ROWS_MOST = 4096 };
    int32_t rows = ROWS_MOST;
    for (int32_t i = 0; i < n; i++)
        while (rows > ROWS_DECODE && input_bytes(s[i].w, rows, used) > INPUT_BYTES) rows /= 2;
    return rows;
}

static bool room_to_gather(const Mixture *m)
{
    for (int k = 0; k < 2; k++) {
        const Tensor *w = k ? m->e->up : m->e->gate;
        size_t group = m->c->in_place ? matmul_group_bytes(w->type, w->cols) : 0;
        if (gather_bytes(m, matmul_act_form(w->type)) + group > SCRATCH_BYTES) return false;
    }
    return true;
}

static void experts(Backend *b, Tensor *y, const Tensor *x, const Tensor *ids, const Tensor *weight, const Experts *e)
{
    Mixture m = { .c = cpu_of(b), .y = y, .x = x, .ids = ids, .weight = weight, .e = e, .used = ids->cols };
    int32_t *by_count, *times, part = x->rows;
    if (cpu_failed(m.c) || x->rows == 0) return;
    while (part > 1 && !place_all(&m, part, &by_count, &times)) part = (part + 1) / 2;
    if (!place_all(&m, part, &by_count, &times) || !room_to_gather(&m)) {
        fail(&m.c->error, ST_UNSUPPORTED, "experts: %d for a row, of %d x %d values, are too large", m.used,
             e->gate->rows, x->cols);
        return;
    }
    for (; m.row0 < x->rows; m.row0 += part) {
        m.n = x->rows - m.row0 < part ? x->rows - m.row0 : part;
        place_all(&m, m.n, &by_count, &times);
        if (!sort_rows(&m, by_count, times)) {
            fail(&m.c->error, ST_ARG, "experts: rows %d to %d chose an expert twice, or one beyond %d", m.row0,
                 m.row0 + m.n - 1, e->gate->n);
            return;
        }
        m.c->routes.chosen += m.start[m.n_experts];
        m.c->routes.read += m.n_experts;
        run_mixture(&m, times);
    }
}

static void routes(Backend *b, Routes *out)
{
    Cpu *c = cpu_of(b);
    *out = c->routes;
    c->routes = (Routes) { 0 };
    if (c->reader) expert_reader_missed(c->reader, out);
}

void cpu_experts_ops(Backend *b)
{
    b->route = route;
    b->experts = experts;
    b->routes = routes;
}
