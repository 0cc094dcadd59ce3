#include "programs/estimate.h"

#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/disk.h"
#include "programs/cards.h"
#include "programs/expert_profile.h"

/* ---- memory ---- */

static const double MIB = 1 << 20;

static rt_status plan_at(rt_needs *out, Program *p, int32_t ctx, int32_t sessions, rt_error *e)
{
    rt_session_options so = program_session_options(p->o);
    rt_step_options st = program_step_options(p);
    so.ctx = ctx;
    st.sessions = sessions;
    return program_plan(p, &so, &st, NULL, NULL, out, e);
}

/* The line through two plans, at contexts whose plans these are. A longer context never costs more per token (rings and
 * windows stop growing), so outside these two the line may overstate what is needed, but never understates it. shared,
 * at, less: bytes that all sessions share, and what moves with the context. */
static MemoryLine through(double shared, double at, int32_t ctx, double less, int32_t lesser)
{
    const double token = fmax(0, (at - less) / (ctx - lesser));
    return (MemoryLine) { shared + at - token * ctx, token };
}

/* Tables are measured as the process grows, so they count from the first plan only. */
static rt_status lines(Memory *m, Program *p, rt_error *e)
{
    rt_needs half;
    const int32_t ctx = m->needs.ctx, less = ctx > 1 ? ctx / 2 : 2;
    rt_status code = plan_at(&half, p, less, m->sessions, e);
    if (code != RT_OK) return code;
    const rt_needs *n = &m->needs, *h = &half;
    const double each = m->sessions;
    m->main = through((double) (n->model + n->drafter + n->process), (double) n->session * each + (double) n->step, ctx,
                      (double) h->session * each + (double) h->step, less);
    for (int32_t i = 0; i < n->cards; i++) {
        const rt_card_needs *c = &n->card[i], *l = &h->card[i];
        m->gpu[i] = through((double) (c->model + c->drafter), (double) c->session * each + (double) c->step, ctx,
                            (double) l->session * each + (double) l->step, less);
    }
    m->ctx = ctx;
    return RT_OK;
}

/* The needs of sessions of ctx tokens, 0: as many as the library chooses, and the lines through them. */
static rt_status plan_lines(Memory *m, Program *p, int32_t ctx, rt_error *e)
{
    const rt_needs before = m->needs;              /* tables: see lines() */
    rt_status code = plan_at(&m->needs, p, ctx, m->sessions, e);
    if (code != RT_OK) return code;
    if (m->needs.process < before.process) m->needs.process = before.process;
    if (m->needs.cards == 0) {                     /* planned for the CPU alone: there is no room for a layer */
        m->needs.device_free = before.device_free;
        m->needs.device_total = before.device_total;
        m->needs.cards = before.cards;
        memcpy(m->needs.card, before.card, sizeof before.card);
    }
    return lines(m, p, e);
}

rt_status memory_choose(Memory *m, Program *p, double share, int32_t least, int32_t most, rt_error *e)
{
    enum { TRIES = 8 };
    for (int32_t i = 0; i < TRIES; i++) {
        const int32_t fits = memory_ctx(m, share), ctx = fits >= most ? most : fits < least ? least : fits;
        m->ctx = ctx;
        if (ctx == 0 || m->needs.gpu_layers == 0) return RT_OK;
        const rt_status code = plan_lines(m, p, ctx, e);
        if (code != RT_OK || memory_fits(m) || ctx == least) return code;
    }
    m->ctx = least;
    return RT_OK;
}

/* Further cards are taken for a longer context, too. */
static rt_status longer_on_cards(Memory *m, Program *p, int32_t most, rt_error *e)
{
    const Placement before = p->place;
    Memory more = { .sessions = m->sessions };
    rt_error none;
    if (!program_may_spread(p, &m->needs)) return RT_OK;
    rt_status code = program_spread(p, m->sessions, &more.needs, e);
    if (code == RT_ECANCEL) return code;
    if (code != RT_OK) return RT_OK;
    code = plan_lines(&more, p, SERVE_CTX_MOST, &none);
    if (code == RT_OK) code = memory_choose(&more, p, 0.8, SERVE_CTX_LEAST, most, &none);
    if (code == RT_OK && more.ctx > m->ctx) *m = more;
    else p->place = before;
    return RT_OK;
}

rt_status memory_plan(Memory *out, Program *p, int32_t sessions, bool server, rt_error *e)
{
    const int32_t given = p->o->ctx;
    *out = (Memory) { .sessions = sessions };
    rt_status code = p->placed ? RT_OK : program_place(p, sessions, &out->needs, e);
    if (code == RT_OK) code = plan_lines(out, p, given ? given : server ? SERVE_CTX_MOST : 0, e);
    if (code != RT_OK || given || !server) return code;
    const int32_t trained = out->needs.ctx_train, most = trained < SERVE_CTX_MOST ? trained : SERVE_CTX_MOST;
    code = memory_choose(out, p, 0.8, SERVE_CTX_LEAST, most, e);
    return code == RT_OK && out->ctx < most ? longer_on_cards(out, p, most, e) : code;
}

static double at(const MemoryLine *l, int32_t ctx) { return l->fixed + l->token * ctx; }

double memory_bytes(const Memory *m, int32_t ctx) { return at(&m->main, ctx); }
double memory_bytes_card(const Memory *m, int32_t card) { return at(&m->gpu[card], m->ctx); }

double memory_bytes_gpu(const Memory *m, int32_t ctx)
{
    double sum = 0;
    for (int32_t i = 0; i < m->needs.cards; i++) sum += at(&m->gpu[i], ctx);
    return sum;
}

bool memory_fits_gpu(const Memory *m, int32_t *full)
{
    const rt_card_needs *c = m->needs.card;
    int32_t i = 0;
    while (i < m->needs.cards && (c[i].free == 0 || memory_bytes_card(m, i) <= (double) c[i].free)) i++;
    if (full) *full = i;
    return i == m->needs.cards;
}

bool memory_fits(const Memory *m)
{
    return (m->needs.free == 0 || memory_bytes(m, m->ctx) <= (double) m->needs.free) &&
           memory_fits_gpu(m, NULL);
}

bool memory_cut(const rt_needs *n)
{
    return n->gpu_layers > 0 && (n->gpu_layers < n->layers || n->expert_vram > 0);
}

/* there 0: unknown, no limit. */
static int32_t longest(const MemoryLine *l, uint64_t there, double share)
{
    enum { STEP = 256, MOST = RT_CTX_MAX };
    const double left = ((double) there - l->fixed) * share;
    if (there == 0) return MOST;
    if (left <= 0) return 0;
    return l->token * MOST <= left ? MOST : (int32_t) (left / l->token) / STEP * STEP;
}

int32_t memory_ctx(const Memory *m, double share)
{
    int32_t ctx = longest(&m->main, m->needs.free, share);
    for (int32_t i = 0; i < m->needs.cards; i++) {
        const int32_t most = longest(&m->gpu[i], m->needs.card[i].free, share);
        if (most < ctx) ctx = most;
    }
    return ctx;
}

/* --cache-ram and --store-ram, or what they are by default: most, but no more than this share of what the model and all
 * sessions leave. */
static double kept(const Memory *m, int32_t given, double most, double share)
{
    const double left = fmax(0, (double) m->needs.free - memory_bytes(m, m->ctx));
    if (given >= 0) return given * MIB;
    return m->needs.free > 0 ? fmin(most * MIB, share * left) : most * MIB;
}

double memory_prefix_cache(const Memory *m, const Options *o) { return kept(m, o->cache_ram, 8192, 0.75); }
double memory_store(const Memory *m, const Options *o) { return kept(m, o->store_ram, 256, 0.125); }

/* ---- time ---- */

int32_t machine_name(char *out, size_t cap, const Options *o)
{
    char line[256];
    cpu_set_t cores;
    struct utsname u;
    FILE *f = fopen("/proc/cpuinfo", "r");
    out[0] = 0;
    while (f && !out[0] && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon && colon[1])
            snprintf(out, cap, "%.*s", (int) strcspn(colon + 2, "\n"), colon + 2);
    }
    if (f) fclose(f);
    if (!out[0] && uname(&u) == 0) snprintf(out, cap, "%.100s", u.machine);
    return o->threads ? o->threads : sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

rt_peaks peaks_median(const rt_peaks *round, int32_t n)
{
    double bytes[PEAK_ROUNDS], int8[PEAK_ROUNDS], f32[PEAK_ROUNDS];
    if (n < 1) return (rt_peaks) { 0 };
    for (int32_t i = 0; i < n; i++) {
        bytes[i] = round[i].bytes_per_s;
        int8[i] = round[i].int8_ops_per_s;
        f32[i] = round[i].f32_ops_per_s;
    }
    return (rt_peaks) { median(bytes, n), median(int8, n), median(f32, n) };
}

/* A GPU without a layer of the model computes nothing. */
static const char *runs_on(const Program *p, const rt_needs *n)
{
    return n->gpu_layers == 0 && card_backend(p->o->backend) ? "cpu" : program_backend(p);
}

rt_status machine_peaks(rt_peaks *out, const Program *p, const rt_needs *n, rt_error *e)
{
    enum { ROUNDS_LEAST = 3, THREADS_ALL = 256 };
    static const double SECONDS = 0.6, TAKES = 1.1e9;              /* the memory that is read, at most 1 GiB */
    rt_peaks round[PEAK_ROUNDS] = { 0 };
    rt_roofline *r;
    int32_t i = 0;
    *out = (rt_peaks) { 0 };
    /* the system would kill the process; a GPU's rates take no memory */
    if (n->gpu_layers == 0 && n->free > 0 && (double) n->free < TAKES && !p->o->overcommit) {
        snprintf(e->text, sizeof e->text, "measuring takes up to %.1f GB, but %.1f GB of memory are free", TAKES / 1e9,
                 (double) n->free / 1e9);
        return e->code = RT_ENOMEM;
    }
    rt_status code = rt_roofline_new(&r, runs_on(p, n), p->o->threads, e);
    if (code != RT_OK) return code;
    const double begun = seconds_now();
    for (; i < PEAK_ROUNDS && (i < ROUNDS_LEAST || seconds_now() - begun < SECONDS) && interrupts == 0; i++)
        rt_roofline_round(r, THREADS_ALL, n->pass_bytes, &round[i]);
    rt_roofline_free(r);
    *out = peaks_median(round, i);
    return RT_OK;
}

/* The shares of the int8 peak that products with quantised weights reach, by level: of one row, which is mostly
 * unpacking weights and scaling sums, and of every row where there are many. The peak multiplies registers that are
 * there already. From passes of 1 to 64 rows of Q4_K_M, Q6_K and Q8_0 files of 0.1 to 27 thousand million weights
 * (`ratoon bench --passes`; doc/speed.md); at levels not named none has been measured. */
typedef struct { const char *level; double one, many; } Shares;
static Shares int8_shares(const char *level)
{
    static const Shares known[] = { { "avx2", 0.6, 0.75 }, { "avxvnni", 0.3, 0.45 }, { "avx512", 0.135, 0.43 },
                                    { "amx", 0.017, 0.11 } };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].level, level) == 0) return known[i];
    return (Shares) { level, 0.2, 0.5 };
}

/* A layer's norms and waiting for threads; the same passes. */
static const double LAYER_MS = 0.025;

/* A pass reads all of it once, while it unpacks: that the two hide each other only in part is seen where they take
 * about as long. With many rows products take longest. */
static double pass_ms(const rt_needs *n, const rt_peaks *p, double bytes, double weights, int32_t rows, int32_t layers)
{
    const Shares s = int8_shares(n->level);
    const double work = 2 * weights / p->int8_ops_per_s, read = hypot(bytes / p->bytes_per_s, work / s.one);
    return 1e3 * fmax(read, work * rows / s.many) + layers * LAYER_MS;
}

double experts_more(double bytes, int32_t experts, int32_t used, int32_t rows)
{
    if (experts == 0) return 0;
    const double one = (double) used / experts;
    return bytes * (1 - pow(1 - one, rows) - one);
}

/* ---- experts that are read from the file ---- */

enum { READS = 16 };                               /* at once: about as many as a layer of one row misses */

/* Reads pieces from all over the file, always READS of them at once. room: for READS pieces. */
static double disk_rate(Disk *d, const DiskFile *f, uint8_t *room, size_t piece)
{
    static const double SECONDS = 0.25;
    const uint64_t places = disk_file_bytes(f) / piece;
    const double began = seconds_now();
    double bytes = 0, ended = began;
    uint64_t x = 1;
    DiskDone done = { 0 };
    for (int32_t begun = 0; places > 0 && (begun < READS || disk_done(d, &done, true)); ) {
        if (begun == READS && done.code != ST_OK) return 0;
        if (begun == READS) bytes += (double) piece, ended = seconds_now();
        if (begun < READS) done.tag = (uint64_t) begun++;
        else if (ended - began >= SECONDS || interrupts) continue;
        x = x * 6364136223846793005u + 1442695040888963407u;
        disk_read(d, f, (x >> 32) % places * piece, piece, piece, room + done.tag * piece, done.tag);
    }
    return ended > began ? bytes / (ended - began) : 0;
}

/* Where the file system has no way past the page cache, what it holds of the file would be read from memory. */
static void drop_cached(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

/* Pieces are as large as one of the three matrices of an expert. */
static double disk_bytes_per_s(const char *path, const rt_needs *n)
{
    const double matrix = (double) n->expert_bytes / n->experts / n->layers / 3;
    const size_t piece = (size_t) fmin(fmax(ceil(matrix / DISK_ALIGN), 1), 1024) * DISK_ALIGN;
    DiskFile *f = NULL;
    Disk *d = NULL;
    double rate = 0;
    uint8_t *room = aligned_alloc(DISK_ALIGN, READS * piece);
    if (room && disk_file_open(&f, path, NULL) == ST_OK && disk_open(&d, DISK_AUTO, READS, NULL) == ST_OK) {
        if (!disk_file_direct(f)) drop_cached(path);
        rate = disk_rate(d, f, room, piece);
    }
    disk_close(d);
    disk_file_close(f);
    free(room);
    return rate;
}

ExpertTier experts_measure(const Program *p, const rt_needs *n)
{
    const double share = fmin(1, (double) n->expert_ram / (double) n->expert_bytes);
    ExpertTier t = { .share = share, .disk_bytes_per_s = disk_bytes_per_s(p->files.model, n) };
    expert_profile_hits(p, &t.hits, &share, 1);
    return t;
}

void costs_experts(Costs *c, const rt_needs *n, const ExpertTier *t)
{
    const double row = (double) n->expert_bytes * n->experts_used / n->experts;
    for (int32_t rows = 1; rows <= ROWS_MOST; rows++) {
        const double more = experts_more((double) n->expert_bytes, n->experts, n->experts_used, rows);
        c->pass_ms[rows] += 1e3 * (1 - t->hits) * (row + more) / t->disk_bytes_per_s;
    }
}

/* ---- passes ---- */

void costs_estimate(Costs *out, const rt_needs *n, const rt_peaks *p, int32_t after)
{
    *out = (Costs) { .block = n->draft_block };
    /* a matrix is read and written when the last path is folded into it, and twice by the rows after it */
    const double bytes = (double) n->pass_bytes + (double) n->kv_bytes * after + 4 * (double) n->state_bytes;
    for (int32_t rows = 1; rows <= ROWS_MOST; rows++) {
        const double more = experts_more((double) n->expert_bytes, n->experts, n->experts_used, rows);
        out->pass_ms[rows] = pass_ms(n, p, bytes + more, (double) n->pass_parameters, rows, n->layers);
    }
    if (n->draft_passes == 0) return;
    const int32_t rows = n->draft_passes > 1 ? 1 : n->draft_block;
    out->draft_ms = n->draft_passes * pass_ms(n, p, (double) n->draft_bytes, (double) n->draft_parameters, rows,
                                              n->draft_layers);
}

void costs_measured(Costs *c, const int32_t *rows, const double *ms, int32_t n)
{
    c->pass_ms[rows[0]] = ms[0];
    for (int32_t i = 0; i + 1 < n; i++)
        for (int32_t r = rows[i]; r <= rows[i + 1]; r++)
            c->pass_ms[r] = ms[i] + (ms[i + 1] - ms[i]) * (r - rows[i]) / (rows[i + 1] - rows[i]);
    for (int32_t r = rows[n - 1] + 1; r <= ROWS_MOST; r++) c->pass_ms[r] = ms[n - 1] * r / rows[n - 1];
}

Reach reach_each(double right)
{
    Reach g;
    double all = 1;
    for (int32_t d = 0; d < ROWS_MOST; d++) g.held[d] = all *= right;
    return g;
}

double reach_length(const Reach *g, int32_t rows)
{
    double length = 1;
    for (int32_t d = 0; d + 1 < rows; d++) length += g->held[d];
    return length;
}

double costs_plain(const Costs *c) { return 1e3 / c->pass_ms[1]; }

double costs_drafted(const Costs *c, const Reach *g, int32_t *rows)
{
    double best = costs_plain(c);
    int32_t at = 1;
    for (int32_t n = 2; c->draft_ms > 0 && n <= c->block && n <= ROWS_MOST; n++) {
        double rate = 1e3 * reach_length(g, n) / (c->pass_ms[n] + c->draft_ms);
        if (rate > best) best = rate, at = n;
    }
    if (rows) *rows = at;
    return best;
}

/* Each pair: how often a guess holds if the ones before it did, so that the accept lengths are the published ones.
 *   DFlash, talk: 3.07 with blocks of 8 rows, Qwen3-4B on MT-Bench at temperature 1 (DSpark paper, table of baselines).
 *   DFlash, code: 5.94 with blocks of 16, Qwen3.6-27B UD-Q4_K_XL on HumanEval (lucebox, RTX 3090); the older
 *   Qwen3.5-27B reaches 8.31 there.
 *   MTP, three guesses: 1.9 times plain decoding on prose and 2.6 on code (NInfer issue 53, Qwen3.6-35B-A3B), which
 *   takes accept lengths of 2.2 and 3.0. */
Published reach_published(const rt_needs *n)
{
    const bool mtp = n->draft_passes > 1;
    return (Published) { reach_each(mtp ? 0.62 : 0.69), reach_each(mtp ? 0.82 : 0.84) };
}

/* ---- words ---- */

const char *rate_text(char out[24], double rate)
{
    snprintf(out, 24, rate < 9.95 ? "%.1f" : "%.0f", rate);
    return out;
}

const char *memory_text(char out[24], double bytes)
{
    if (bytes >= 1e9) snprintf(out, 24, "%.1f GB", bytes / 1e9);
    else if (bytes >= 1e6) snprintf(out, 24, bytes >= 1e7 ? "%.0f MB" : "%.1f MB", bytes / 1e6);
    else snprintf(out, 24, "%.0f kB", bytes / 1e3);
    return out;
}

void memory_pair(char a[24], char b[24], double need, double there)
{
    static const struct { double bytes; const char *name; } finer[] = { { 1e6, "MB" }, { 1e3, "kB" }, { 1, "bytes" } };
    memory_text(a, need);
    memory_text(b, there);
    for (size_t i = 0; i < sizeof finer / sizeof *finer && need != there && strcmp(a, b) == 0; i++) {
        snprintf(a, 24, "%.0f %s", need / finer[i].bytes, finer[i].name);
        snprintf(b, 24, "%.0f %s", there / finer[i].bytes, finer[i].name);
    }
}

const char *memory_gpu_text(char out[MEMORY_GPU_TEXT], const Memory *m)
{
    char a[24], b[24], whose[32] = "the GPU's";
    const rt_needs *n = &m->needs;
    int32_t on = 0;
    double room = 0;
    for (int32_t i = 0; i < n->cards; i++) {
        const rt_card_needs *c = &n->card[i];
        if (n->gpu_layers && c->layers == 0) continue;
        room += (double) c->free;
        snprintf(whose, sizeof whose, "%s's", n->cards > 1 ? c->backend : "the GPU");
        on++;
    }
    if (on > 1) snprintf(whose, sizeof whose, "%d GPUs'", on);
    memory_pair(a, b, memory_bytes_gpu(m, m->ctx), room);
    if (room == 0) snprintf(b, sizeof b, "an unknown amount");
    out[0] = 0;
    if (n->gpu_layers && n->device_total == 0)
        snprintf(out, MEMORY_GPU_TEXT, ", shared with the GPU (%d of %d layers)", n->gpu_layers, n->layers);
    else if (n->gpu_layers)
        snprintf(out, MEMORY_GPU_TEXT, ", and %s of %s memory (%d of %d layers), %s free", a, whose, n->gpu_layers,
                 n->layers, b);
    else if (n->device_total)
        snprintf(out, MEMORY_GPU_TEXT, ", on the CPU (no layer fits in %s memory, %s free)", whose, b);
    return out;
}

const char *tokens_text(char out[24], int32_t tokens)
{
    if (tokens >= 1024 && tokens % 1024 == 0) snprintf(out, 24, "%dK", tokens / 1024);
    else snprintf(out, 24, "%d", tokens);
    return out;
}
