#include "programs/expert_profile.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/path.h"
#include "base/save.h"
#include "format/hotness.h"
#include "programs/drive.h"
#include "programs/model_facts.h"

/* PIECE: bytes of a piece of text; CTX: tokens of such a piece, at most one for each byte, and those around it */
enum { PIECE = 2000, PIECES_MOST = 150, CTX = 2048 };
static const double KEPT_EVERY = 60;

/* ---- which file ---- */

/* From the header alone. Returns false if it cannot be read. */
static bool read_facts(const Program *p, ModelFacts *f)
{
    Error err = { 0 };
    return model_facts(f, p->files.model, &err) == ST_OK;
}

static Status read_profile(const Program *p, const ModelFacts *f, Hotness *out, Error *err)
{
    const HotnessModel of = { f->layers, f->experts, f->experts_used, f->name, f->bytes };
    return hotness_read(out, p->profile.path, &of, err);
}

static bool forget(Program *p)
{
    free(p->profile.path);
    p->profile.path = NULL;
    return true;
}

/* What is there already: a file that the command names has to fit; one that was found is left alone if it does not. */
static bool fits(Program *p, const ModelFacts *f)
{
    Hotness h;
    Error err = { 0 };
    const Status st = read_profile(p, f, &h, &err);
    hotness_free(&h);
    p->profile.there = st == ST_OK;
    if (st == ST_OK || st == ST_END) return true;
    if (p->o->expert_profile) return complain(p->o, "%s", err.text) == 0;
    note(p->o, "the profile of the experts is left alone: %s", err.text);
    return forget(p);
}

bool expert_profile_find(Program *p)
{
    const Options *o = p->o;
    const bool keeps = o->spark || o->spark_calibrate, wanted = keeps || o->expert_profile;
    ModelFacts f;
    Error err = { 0 };
    if (o->spark_calibrate && access(o->spark_calibrate, R_OK) != 0)
        return complain(o, "%s: %s", o->spark_calibrate, strerror(errno)) == 0;
    char beside[4200];
    snprintf(beside, sizeof beside, "%s.spark.csv", p->files.model);
    p->profile.path = strdup(o->expert_profile ? o->expert_profile : beside);
    if (!p->profile.path) return complain(o, "out of memory") == 0;
    if (!wanted && access(p->profile.path, F_OK) != 0) return forget(p);
    if (!read_facts(p, &f)) return forget(p);      /* opening it will say why */
    if (!model_facts_mixture(&f)) {
        if (wanted) note(o, "%s has no experts: no profile of them is read or kept", base_name(p->files.model));
        return forget(p);
    }
    if (!fits(p, &f)) return false;
    if (!keeps || !p->profile.path) return true;
    p->profile.keeps = save_check(p->profile.path, &err) == ST_OK;
    if (!p->profile.keeps) note(o, "the profile of the experts is not kept: %s", err.text);
    return true;
}

void expert_profile_keep(Program *p, bool at_once)
{
    rt_error e;
    const double now = seconds_now();
    if (!p->profile.keeps || !p->engine) return;
    if (!at_once && p->profile.kept > 0 && now - p->profile.kept < KEPT_EVERY) return;
    p->profile.kept = now;
    if (rt_experts_save(p->engine, p->profile.path, &e) >= RT_OK) return;
    note(p->o, "the profile of the experts is not kept: %s", e.text);
    p->profile.keeps = false;
}

/* ---- what it says ---- */

static int most_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;
    return (x < y) - (x > y);
}

/* Sorts the counts of all layers together, as memory goes to the most used experts whatever their layer. Returns their
 * number; all: the sum. */
static size_t sort_counts(const Hotness *h, double *all)
{
    size_t n = 0;
    *all = 0;
    for (int32_t i = 0; i < h->layers; i++) {
        const uint64_t total = hotness_total(h, i);
        *all += (double) total;
        if (total == 0) continue;                  /* it has no experts */
        memmove(h->count + n, h->count + (size_t) i * (size_t) h->experts, (size_t) h->experts * sizeof *h->count);
        n += (size_t) h->experts;
    }
    qsort(h->count, n, sizeof *h->count, most_first);
    return n;
}

void expert_profile_hits(const Program *p, double *hits, const double *share, int32_t n)
{
    ModelFacts f;
    Hotness h = { 0 };
    Error err = { 0 };
    double all = 0;
    const bool known = p->profile.there && read_facts(p, &f) && read_profile(p, &f, &h, &err) == ST_OK;
    const size_t experts = known ? sort_counts(&h, &all) : 0;
    for (int32_t k = 0; k < n; k++) {
        double held = 0;
        for (size_t i = 0; i < (size_t) (share[k] * (double) experts); i++) held += (double) h.count[i];
        hits[k] = all > 0 ? held / all : share[k];
    }
    hotness_free(&h);
}

/* ---- texts to learn from ---- */

/* Adds the texts of `more`, whose memory they keep. */
static bool add_all(const Options *o, Prompts *to, Prompts *more)
{
    Prompt *at = realloc(to->at, sizeof *at * (size_t) (to->n + more->n));
    if (!at) {
        prompts_free(more);
        return complain(o, "out of memory for texts") == 0;
    }
    memcpy(at + to->n, more->at, sizeof *at * (size_t) more->n);
    to->at = at;
    to->n += more->n;
    free(more->at);
    return true;
}

static bool read_file(const Options *o, Prompts *to, const char *path)
{
    Prompts more = { 0 };
    if (ends_with(path, ".jsonl")) return prompts_read(o, &more, path) && add_all(o, to, &more);
    more.at = calloc(1, sizeof *more.at);
    if (!more.at) return complain(o, "%s: out of memory", path) == 0;
    more.n = 1;
    if (text_read(o, &more.at->text, &more.at->len, path)) return add_all(o, to, &more);
    prompts_free(&more);
    return false;
}

static int is_text(const struct dirent *e)
{
    return e->d_name[0] != '.' &&
           (ends_with(e->d_name, ".txt") || ends_with(e->d_name, ".md") || ends_with(e->d_name, ".jsonl"));
}

/* Its own files by name, not those of folders in it. */
static bool read_folder(const Options *o, Prompts *to, const char *path)
{
    char name[4400];
    struct dirent **list;
    const int n = scandir(path, &list, is_text, alphasort);
    if (n < 0) return complain(o, "%s: %s", path, strerror(errno)) == 0;
    bool good = true;
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%.4095s/%s", path, list[i]->d_name);
        good = good && read_file(o, to, name);
        free(list[i]);
    }
    free(list);
    return good && (n > 0 || complain(o, "%s: has no texts, expected files *.txt, *.md or *.jsonl", path) == 0);
}

static bool read_texts(const Options *o, Prompts *to)
{
    const char *path = o->spark_calibrate;
    return is_folder(path) ? read_folder(o, to, path) : read_file(o, to, path);
}

static int64_t pieces_of(const Prompt *t) { return ((int64_t) t->len + PIECE - 1) / PIECE; }

/* Moves a place in a text to the beginning of a character. */
static size_t whole(const Prompt *t, size_t at)
{
    if (at >= t->len) return t->len;
    while (at > 0 && ((unsigned char) t->text[at] & 0xc0) == 0x80) at--;
    return at;
}

/* The piece with this number, counted over all texts. */
static void piece_at(const Prompts *texts, int64_t index, const char **s, size_t *n)
{
    const Prompt *t = texts->at;
    for (; index >= pieces_of(t); t++) index -= pieces_of(t);
    const size_t from = whole(t, (size_t) index * PIECE), to = whole(t, (size_t) (index + 1) * PIECE);
    *s = t->text + from;
    *n = to - from;
}

/* ---- learning ---- */

typedef struct { Program *p; rt_step *step; rt_session *session; Prompts texts; Progress bar; } Learner;

static bool learn_piece(Learner *l, const char *s, size_t n)
{
    const Options *o = l->p->o;
    int32_t *token = NULL, n_token = 0;
    rt_block b;
    if (!text_tokens(l->p, &token, &n_token, s, n, false)) return false;
    if (n_token > CTX - 1) n_token = CTX - 1;
    rt_status st = n_token ? rt_prompt(l->session, token, (size_t) n_token) : RT_END;
    free(token);
    if (st == RT_OK) st = rt_sampling_set(l->session, &RT_SAMPLING(.max_tokens = 1));
    if (st < RT_OK) return complain(o, "%s", rt_session_error(l->session)) == 0;
    if (st == RT_OK) st = rt_next(l->step, l->session, &b);
    if (st >= RT_OK) return true;
    return complain(o, "--spark-calibrate: %s",
                    st == RT_ECANCEL ? "interrupted" : drive_error(l->step, l->session)) == 0;
}

static bool learn_texts(Learner *l)
{
    rt_error e = { 0 };
    const Options *o = l->p->o;
    int64_t all = 0;
    for (int32_t i = 0; i < l->texts.n; i++) all += pieces_of(&l->texts.at[i]);
    const int64_t n = all < PIECES_MOST ? all : PIECES_MOST;
    const rt_step_options so = RT_STEP_OPTIONS(.budget = BUDGET_OPTION_PLAIN, .chunk = o->chunk,
                                               .hooks = program_hooks(l->p));
    if (rt_step_new(&l->step, l->p->engine, &so, &e) != RT_OK ||
        rt_session_new(&l->session, l->p->engine, &RT_SESSION_OPTIONS(.ctx = CTX, .ngram = -1), &e) != RT_OK)
        return complain(o, "--spark-calibrate: %s", e.text) == 0;
    bool good = true;
    progress_start_long(&l->bar, "calibrating", (uint64_t) n, o->quiet);
    for (int64_t i = 0; good && i < n; i++) {
        const char *s;
        size_t bytes;
        piece_at(&l->texts, i * all / n, &s, &bytes);
        good = learn_piece(l, s, bytes);
        progress_to(&l->bar, (uint64_t) i + 1);
    }
    const double seconds = progress_end(&l->bar);
    if (good) note(o, "calibrated with %lld of %lld pieces of text in %.1f s", (long long) n, (long long) all, seconds);
    return good;
}

bool expert_profile_learn(Program *p)
{
    Learner l = { .p = p };
    rt_expert_stats now;
    if (!p->profile.keeps && !p->o->spark_calibrate) return true;
    rt_expert_stats_get(p->engine, &now, sizeof now);
    if (now.slots == 0) {                          /* only a store counts */
        if (p->o->spark_calibrate)
            note(p->o, "--spark-calibrate: memory holds the whole model, so there is nothing to learn");
        else
            note(p->o, "--spark: memory holds the whole model, so which experts are used is not counted "
                 "(ratoon experts --write-hotness FILE does it)");
        p->profile.keeps = false;
        return true;
    }
    if (!p->o->spark_calibrate) return true;
    bool good = read_texts(p->o, &l.texts) && learn_texts(&l);
    rt_session_free(l.session);
    rt_step_free(l.step);
    prompts_free(&l.texts);
    expert_profile_keep(p, true);
    return good;
}
