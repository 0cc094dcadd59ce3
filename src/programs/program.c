#include "programs/program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/json.h"
#include "programs/advice.h"
#include "programs/cards.h"
#include "programs/denoise.h"
#include "programs/estimate.h"
#include "programs/expert_profile.h"
#include "programs/expert_use.h"
#include "programs/model_facts.h"
#include "text/tokenizer/tokenizer.h"

/* ---- signals ---- */

volatile sig_atomic_t interrupts;

static void on_interrupt(int sig)
{
    (void) sig;
    interrupts = interrupts + 1;
    if (interrupts > 1) _exit(EXIT_INTERRUPTED);
}

void hear_interrupts(void)
{
    sigaction(SIGINT, &(struct sigaction) { .sa_handler = on_interrupt, .sa_flags = SA_RESTART }, NULL);
}

bool line_typed(char *line, int cap)
{
    struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
    while (!interrupts && poll(&in, 1, 250) <= 0) {}           /* another thread may get the signal */
    return !interrupts && fgets(line, cap, stdin);
}

/* ---- messages ---- */

/* Length of the control character at s, or 0. Line feed and tab count as text; U+0080 to U+009F are as harmful as the
 * ASCII control characters. */
static size_t control(const unsigned char *s, size_t n)
{
    if (*s == 0xc2 && n > 1 && s[1] >= 0x80 && s[1] <= 0x9f) return 2;
    return (*s < 32 && *s != '\n' && *s != '\t') || *s == 127;
}

bool text_show(FILE *f, const char *s, size_t n)
{
    bool clean = isatty(fileno(f)) == 1, good = true;
    size_t from = 0;
    for (size_t i = 0; clean && i < n;) {
        size_t bad = control((const unsigned char *) s + i, n - i);
        if (bad) {
            good &= fwrite(s + from, 1, i - from, f) == i - from && fputc('?', f) != EOF;
            from = i + bad;
        }
        i += bad ? bad : 1;
    }
    return fwrite(s + from, 1, n - from, f) == n - from && good;
}

/* o NULL: the line without a prefix. */
static void say(const Options *o, const char *format, va_list args)
{
    char line[2048];
    int n = o ? snprintf(line, sizeof line, "ratoon %s: ", o->command) : 0;
    vsnprintf(line + n, sizeof line - (size_t) n, format, args);
    line_clean(line);
    fprintf(stderr, "%s\n", line);
}

void log_line(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(NULL, format, args);
    va_end(args);
}

/* The first error; whether it is wanted as an object; whether an object has been printed. */
static char trouble[2048];
static bool as_json, printed;

int complain(const Options *o, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    say(o, format, args);
    if (!*trouble) vsnprintf(trouble, sizeof trouble, format, again);
    as_json |= o->json;
    va_end(again);
    va_end(args);
    return EXIT_FAILED;
}

void error_as_json(void) { as_json = true; }

void error_print(void)
{
    if (!as_json || !*trouble || printed) return;
    line_clean(trouble);
    json_t *j = json_pack("{s:o}", "error", json_text(trouble, strlen(trouble)));
    if (j) json_dumpf(j, stdout, JSON_COMPACT);
    if (j) putchar('\n');
    json_decref(j);
}

void note(const Options *o, const char *format, ...)
{
    if (o->quiet) return;
    va_list args;
    va_start(args, format);
    say(o, format, args);
    va_end(args);
}

void detail(const Options *o, const char *format, ...)
{
    if (!o->verbose || o->quiet) return;
    va_list args;
    va_start(args, format);
    say(o, format, args);
    va_end(args);
}

/* ---- engine ---- */

void program_end_bar(Program *p)
{
    if (p->barred) progress_end(&p->bar);
    p->barred = false;
}

static void on_log(void *ud, int level, const char *line)
{
    Program *p = ud;
    if (level > 2 || (p->o->quiet && level > 0) || (!p->o->verbose && level == 2)) return;
    program_end_bar(p);
    log_line("%s%s", level == 0 ? "error: " : level == 1 ? "warning: " : "", line);
}

static int64_t chunk_now(const Program *p)
{
    int64_t chunk = p->o->chunk ? p->o->chunk : property(p->engine, "backend.chunk");
    return p->reading - p->read < chunk ? p->reading - p->read : chunk;
}

static void show_reading(Program *p)
{
    int64_t part = p->layers > 0 ? chunk_now(p) * p->layers_done / p->layers : 0;
    if (p->barred && !p->o->quiet) progress_to(&p->bar, (uint64_t) (p->read + part));
}

static bool on_progress(void *ud, const char *what, int64_t done, int64_t total)
{
    Program *p = ud;
    if (total > 0 && !p->o->quiet) {
        if (!p->barred) progress_start(&p->bar, what, (uint64_t) total);
        p->barred = true;
        progress_to(&p->bar, (uint64_t) done);
        if (done >= total) program_end_bar(p);
    } else if (p->reading > p->read) {          /* a layer is done: on large models the next chunk may take long */
        p->layers_done += p->layers_done < p->layers;
        show_reading(p);
    }
    if (strcmp(what, "check") == 0) total = 0;     /* nothing of what is waited for is loaded */
    return interrupts == 0 && (!p->watch || p->watch(p->watch_ud, done, total));
}

const char *program_backend(const Program *p)
{
    return p->place.backend[0] ? p->place.backend : p->card.name[0] ? p->card.backend : p->o->backend;
}

rt_options program_options(Program *p, const int32_t *taps, int32_t n_taps)
{
    const Options *o = p->o;
    return RT_OPTIONS(
        .model = p->files.model, .draft = p->files.draft[0] ? p->files.draft : p->files.own ? "auto" : NULL,
        .backend = program_backend(p), .kv_k = o->kv_k, .kv_v = o->kv_v, .draft_type = o->draft_type,
        .weight_type = o->weight_type, .no_repack = o->no_repack, .overcommit = o->overcommit, .threads = o->threads,
        .taps = taps, .n_taps = n_taps, .fa_window = o->fa_window,
        .hooks = program_hooks(p),
        .gpu_layers = p->no_card ? RT_LAYERS_NONE : p->place.gpu_layers ? p->place.gpu_layers : o->gpu_layers,
        .expert_ram = o->expert_ram.given ? o->expert_ram.value : p->placed ? p->place.expert_ram : RT_EXPERTS_AUTO,
        .expert_vram = o->expert_vram.given ? o->expert_vram.value : p->placed ? p->place.expert_vram : RT_EXPERTS_AUTO,
        .expert_io = o->expert_io, .expert_slots = o->expert_slots,
        .expert_profile = p->profile.path, .card_layers = p->placed && p->place.cards > 1 ? p->place.card_layers : NULL
    );
}

rt_hooks program_hooks(Program *p) { return (rt_hooks) { .ud = p, .log = on_log, .progress = on_progress }; }

rt_step_options program_step_options(Program *p)
{
    const Options *o = p->o;
    return RT_STEP_OPTIONS(.chunk = o->chunk, .budget = o->budget, .chain = o->chain, .draft_block = o->draft_block,
                           .hooks = program_hooks(p));
}

/* As many as a session can have: requests go back to many places of a conversation. */
enum { SERVED_CHECKPOINTS = 8 };

rt_session_options program_session_options(const Options *o)
{
    return RT_SESSION_OPTIONS(.ctx = o->ctx, .draft_ctx = o->draft_ctx, .ngram = o->ngram,
                              .checkpoints = o->parallel > 0 ? SERVED_CHECKPOINTS : 0);
}

/* The drafter was not asked for: if it does not fit, the command goes on without it, or with the model's own layer. */
static void leave_drafter(Program *p)
{
    p->files.draft[0] = 0;
    p->files.found_draft = false;
    p->files.own = true;
}

/* why may begin with the drafter's path, which is not said twice. */
static void tell_ignored(Program *p, const char *draft, const char *why)
{
    size_t n = strlen(draft);
    if (strncmp(why, draft, n) == 0 && strncmp(why + n, ": ", 2) == 0) why += n + 2;
    snprintf(p->files.ignored, sizeof p->files.ignored, "%.500s", base_name(draft));
    snprintf(p->files.why, sizeof p->files.why, "%.500s", why);
    note(p->o, "ignoring drafter %s: %s", base_name(draft), why);
}

typedef rt_status Opening(void *ud, const rt_options *o, rt_error *e);

/* What opens the files, and once more without a drafter that was not asked for. Only what opens without it was the
 * drafter's fault: else *e is what is wrong with the target. */
static rt_status open_files(Program *p, const int32_t *taps, int32_t n_taps, Opening *opening, void *ud, rt_error *e)
{
    rt_options ro = program_options(p, taps, n_taps);
    rt_status st = opening(ud, &ro, e);
    program_end_bar(p);
    if (st == RT_OK || st == RT_ECANCEL || st == RT_ENOMEM || !p->files.found_draft) return st;
    const Files found = p->files;
    const rt_error why = *e;
    leave_drafter(p);
    ro = program_options(p, taps, n_taps);
    st = opening(ud, &ro, e);
    program_end_bar(p);
    if (st == RT_OK) tell_ignored(p, found.draft, why.text);
    return st;
}

static rt_status open_engine(void *ud, const rt_options *o, rt_error *e) { return rt_open(ud, o, e); }

/* Where memory is too short for as many of a mixture's experts as was asked: whether fewer would fit. */
static const char *fewer_experts(char out[160], Program *p)
{
    char held[24], all[24];
    rt_needs n;
    rt_options o = program_options(p, NULL, 0);
    out[0] = 0;
    if (o.expert_ram == RT_EXPERTS_AUTO) return out;
    o.expert_ram = RT_EXPERTS_AUTO;
    if (rt_plan(&o, NULL, NULL, NULL, NULL, &n, sizeof n, NULL) == RT_OK && n.expert_ram > 0 &&
        n.model + n.drafter + n.session + n.step + n.process <= n.free)
        snprintf(out, 160, "; --expert-ram auto fits: %s of %s of experts in memory, the others read from the file",
                 memory_text(held, (double) n.expert_ram), memory_text(all, (double) n.expert_bytes));
    return out;
}

const char *program_gpu_hint(char out[160], const Program *p, const char *why)
{
    out[0] = 0;
    if (strstr(why, "device memory"))
        snprintf(out, 160, "; give fewer layers (--gpu-layers below %d%s), or end what else uses the GPU",
                 p->place.gpu_layers, p->o->gpu_layers == RT_LAYERS_AUTO ? "" : ", or auto");
    return out;
}

/* Whether the cards that nobody asked for are what has failed: others may have taken their memory meanwhile. */
static bool leaves_card(Program *p, rt_status st, const char *why)
{
    if (!p->card.name[0] || p->no_card || p->place.gpu_layers <= 0 ||
        (st != RT_ENOMEM && st != RT_EBACKEND && st != RT_ELOST)) return false;
    card_unused(p->o, p->place.cards > 1 ? program_backend(p) : p->card.name, "cpu", why);
    p->no_card = true;
    p->placed = false;
    p->place = (Placement) { 0 };
    return true;
}

static bool engine_open(Program *p, const int32_t *taps, int32_t n_taps)
{
    rt_error e = { 0 };
    rt_status st = open_files(p, taps, n_taps, open_engine, &p->engine, &e);
    if (leaves_card(p, st, e.text)) st = open_files(p, taps, n_taps, open_engine, &p->engine, &e);
    char arch[16] = "";
    if (st == RT_OK && p->files.own && rt_property(p->engine, "draft.arch", arch, sizeof arch))
        strcpy(p->files.draft, "mtp");
    if (st == RT_OK) return true;
    char hint[160];
    if (st == RT_ECANCEL) complain(p->o, "interrupted while loading");
    else if (st == RT_ENOMEM && (*program_gpu_hint(hint, p, e.text) || *fewer_experts(hint, p)))
        complain(p->o, "%s%s", e.text, hint);
    else complain_files(p->o, e.text, &p->files);
    return false;
}

int complain_prompt(const Program *p, const rt_session *s, rt_status status)
{
    return complain(p->o, "%s%s", rt_session_error(s), status == RT_EFULL ? "; shorten it, or raise --ctx" : "");
}

rt_status program_prompt(Program *p, rt_session *s, const int32_t *prompt, int32_t n)
{
    rt_stats st;
    rt_status status = rt_prompt(s, prompt, (size_t) n);
    if (status != RT_OK) return status;
    rt_stats_get(s, &st, sizeof st);
    p->reading = n - 1 - st.resumed;               /* the last token is the first root */
    p->read = p->layers_done = 0;
    p->layers = property(p->engine, "model.layers");
    if (p->reading > 0) {
        program_end_bar(p);
        progress_start(&p->bar, "prompt", (uint64_t) p->reading);
        p->bar.unit = "tokens";
        p->barred = true;
    }
    return RT_OK;
}

rt_status program_step(Program *p, rt_step *step, rt_session *s, rt_block *out)
{
    p->layers_done = 0;
    rt_status status = rt_step_run(step, &s, out, 1);
    if (p->reading == 0) return status;
    if (status == RT_OK && out->n == 0 && out->status == RT_OK) {
        p->read += chunk_now(p);
        p->layers_done = 0;
        show_reading(p);
    }
    if (p->read >= p->reading || status != RT_OK || out->status != RT_OK) {
        program_end_bar(p);
        p->reading = p->read = 0;
    }
    return status;
}

void program_judge(Program *p, const rt_stats *s)
{
    if (!acceptance_poor(&p->acceptance, s)) return;
    note(p->o, "drafter %s guesses almost nothing of this model's text (%lld of %lld tokens accepted): it may belong "
         "to another model; `ratoon doctor` tells more", base_name(p->files.draft), (long long) p->acceptance.accepted,
         (long long) p->acceptance.rows);
}

void program_check_ctx(const Program *p)
{
    int64_t trained = property(p->engine, "model.ctx");
    if (p->o->ctx > trained)
        note(p->o, "warning: --ctx %d is beyond the %lld tokens that the model was trained for: what it writes after "
             "them gets worse; --ctx %lld or less avoids that", p->o->ctx, (long long) trained, (long long) trained);
}

/* Whether a GPU is to run layers. */
static bool names_gpu(const Program *p) { return card_backend(p->o->backend) && !p->no_card; }

bool program_session(Program *p)
{
    rt_error e = { 0 };
    const Options *o = p->o;
    rt_session_options so = program_session_options(o);
    rt_step_options st = program_step_options(p);
    program_check_ctx(p);
    rt_status status = rt_session_new(&p->session, p->engine, &so, &e);
    if (status == RT_OK && denoise_option(o) && rt_diffusion_set(p->session, &p->denoising) != RT_OK)
        return complain(o, "--%s", rt_session_error(p->session)) == 0;
    if (status == RT_OK) status = rt_step_new(&p->step, p->engine, &st, &e);
    if (status == RT_OK) return true;
    char hint[160] = "";
    if (status == RT_ENOMEM && !*program_gpu_hint(hint, p, e.text) && !names_gpu(p))
        snprintf(hint, sizeof hint, "; give a smaller --ctx, or -ctk q8_0 -ctv q8_0%s",
                 p->loaded.slots ? ", or a smaller --expert-ram" : "");
    return complain(o, "%s%s", e.text, hint) == 0;
}

bool program_find(Program *p, const Options *o, int with)
{
    *p = (Program) { .o = o, .watch = p->watch, .watch_ud = p->watch_ud, .card = o->card,
                     .plans = (with & ONLY_PLANS) != 0 };
    if (o->gpu_layers > 0 && !names_gpu(p))
        note(o, "--gpu-layers: the backend is the CPU, which runs all layers (--backend cuda: a GPU)");
    if (o->expert_vram.given && !names_gpu(p))
        note(o, "--expert-vram: the backend is the CPU, whose experts are in main memory (--backend cuda: a GPU)");
    if (!(with & OWN_SIGNALS)) hear_interrupts();
    return denoise_read(&p->denoising, o) && files_find(&p->files, o, (with & WITH_DRAFTER) != 0) &&
           expert_profile_find(p) && (p->plans || card_check(p));
}

void program_read_early(const Program *p)
{
    const off_t most = (off_t) 256 << 20;
    int fd = open(p->files.model, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return;                            /* opening the model will say why */
    posix_fadvise(fd, 0, most, POSIX_FADV_WILLNEED);
    close(fd);
}

/* ---- a GPU ---- */

uint64_t card_bytes(const rt_card_needs *c, int32_t sessions)
{
    return c->model + c->drafter + c->session * (uint64_t) sessions + c->step;
}

static bool is_mixture(const Program *p)
{
    ModelFacts f;
    return model_facts(&f, p->files.model, NULL) == ST_OK && model_facts_mixture(&f);
}

bool program_may_spread(const Program *p, const rt_needs *n)
{
    const Options *o = p->o;
    return names_gpu(p) && p->card.name[0] && !p->settled && !(o->expert_vram.given && o->expert_vram.value) &&
           (o->gpu_layers == RT_LAYERS_AUTO || o->gpu_layers >= n->layers);
}

/* The first card that is to hold more than it has room for; n->cards: none is. */
static int32_t full_card(const rt_needs *n, int32_t sessions)
{
    int32_t i = 0;
    while (i < n->cards && (n->card[i].free == 0 || card_bytes(&n->card[i], sessions) <= n->card[i].free)) i++;
    return i;
}

/* Of a mixture several cards hold all experts of their layers: it is better off with some on one card than with layers
 * on the CPU. */
static bool well_spread(const rt_needs *n) { return !n->experts || n->gpu_layers == n->layers; }

static rt_status plan_place(Program *p, int32_t sessions, rt_needs *n, rt_error *e)
{
    rt_session_options so = program_session_options(p->o);
    rt_step_options st = program_step_options(p);
    st.sessions = sessions;
    return program_plan(p, &so, &st, NULL, NULL, n, e);
}

static void take_place(Program *p, const rt_needs *n)
{
    Placement *at = &p->place;
    if (names_gpu(p)) at->gpu_layers = n->gpu_layers ? n->gpu_layers : RT_LAYERS_NONE;
    at->cards = n->cards;
    for (int32_t i = 0; i < n->cards; i++) at->card_layers[i] = n->card[i].layers;
    at->expert_ram = n->expert_ram;
    at->expert_vram = n->expert_vram;
    p->placed = true;
}

rt_status program_spread(Program *p, int32_t sessions, rt_needs *n, rt_error *e)
{
    const Placement before = p->place;
    const bool placed = p->placed;
    rt_needs all;
    p->place = (Placement) { 0 };
    p->placed = false;
    p->settled = true;
    rt_status code = cards_list(p, e);
    if (code == RT_OK && (!strchr(p->place.backend, '+') || plan_place(p, sessions, &all, e) != RT_OK ||
                          !well_spread(&all))) code = RT_END;
    if (code == RT_OK) {
        take_place(p, &all);
        *n = all;
        return RT_OK;
    }
    p->place = before;
    p->placed = placed;
    return code;
}

rt_status program_place(Program *p, int32_t sessions, rt_needs *n, rt_error *e)
{
    *n = (rt_needs) { 0 };
    if (!names_gpu(p) && !is_mixture(p)) return RT_OK;
    rt_status code = plan_place(p, sessions, n, e);
    if (code != RT_OK) return code;
    const bool room = n->gpu_layers == n->layers && n->expert_vram == 0 && full_card(n, sessions) == n->cards;
    if (!room && program_may_spread(p, n)) {
        rt_needs all;
        code = program_spread(p, sessions, &all, e);
        if (code == RT_ECANCEL) return code;
        if (code == RT_OK && (all.gpu_layers > n->gpu_layers || all.gpu_layers == all.layers)) {
            *n = all;
            return RT_OK;
        }
        p->place = (Placement) { 0 };
    }
    take_place(p, n);
    return RT_OK;
}

/* Refuses what the GPU has no room for, before anything large is loaded, with what would fit. */
static bool has_room(Program *p)
{
    rt_needs n, fit = { 0 };
    rt_error e = { 0 };
    char need[24], room[24], hint[64] = "no layer would: --backend cpu";
    if (p->placed || (!names_gpu(p) && p->o->ctx == 0)) return true;    /* whoever has asked has looked */
    if (program_place(p, 1, &n, &e) != RT_OK) return complain_files(p->o, e.text, &p->files) == 0;
    const int32_t i = full_card(&n, 1);
    if (i == n.cards || p->o->overcommit) return true;
    p->place.gpu_layers = RT_LAYERS_AUTO;
    if (program_place(p, 1, &fit, &e) == RT_OK && fit.gpu_layers)
        snprintf(hint, sizeof hint, "--gpu-layers %d would fit", fit.gpu_layers);
    memory_pair(need, room, (double) card_bytes(&n.card[i], 1), (double) n.card[i].free);
    return complain(p->o, "%d of %d layers and a context of %d take %s of %s's memory, but %s are free; %s",
                    n.card[i].layers, n.layers, n.ctx, need, n.cards > 1 ? n.card[i].backend : "the GPU", room,
                    hint) == 0;
}

bool program_load(Program *p, int with, const int32_t *taps, int32_t n_taps)
{
    if (!has_room(p)) return false;
    if (names_gpu(p) && p->place.gpu_layers == RT_LAYERS_NONE && p->o->gpu_layers != RT_LAYERS_NONE)
        note(p->o, "no layer fits into what is free of the GPU's memory: the CPU runs all (ratoon plan tells more)");
    if (!engine_open(p, taps, n_taps) || !expert_profile_learn(p)) return false;
    if (denoise_option(p->o) && property(p->engine, "model.canvas") == 0)
        return complain(p->o, "%s: %s does not denoise, it writes token by token", denoise_option(p->o),
                        base_name(p->files.model)) == 0;
    rt_expert_stats_get(p->engine, &p->loaded, sizeof p->loaded);
    return !(with & WITH_SESSION) || program_session(p);
}

/* A file's name without its folders and ".gguf". */
static int stem(const char *path) { return (int) gguf_stem(base_name(path)); }

bool kv_hint(char out[200], uint64_t row, uint64_t q8, double tokens)
{
    char now[24], then[24];
    const double saved = tokens * ((double) row - (double) q8);
    if (q8 == 0 || saved < 1e9) return false;
    snprintf(out, 200, "keys and values take %s, with -ctk q8_0 -ctv q8_0 %s (another text, with and without drafter)",
             memory_text(now, tokens * (double) row), memory_text(then, tokens * (double) q8));
    return true;
}

void program_kv_hint(const Program *p, int32_t sessions)
{
    char text[200];
    const double ctx = p->session ? rt_session_ctx(p->session) : p->o->ctx;
    if (kv_hint(text, (uint64_t) property(p->engine, "model.kv.bytes"), (uint64_t) property(p->engine, "model.kv.q8"),
                ctx * sessions)) note(p->o, "%s", text);
}

void program_expert_note(const Program *p)
{
    char text[EXPERT_USE_TEXT];
    if (p->loaded.slots > 0) note(p->o, "%s", expert_use_start(text, p, &p->loaded));
}

const char *program_gpu_text(char out[64], const Program *p)
{
    char on[32] = "the GPU";
    out[0] = 0;
    if (p->place.gpu_layers <= 0) return out;
    if (p->place.cards > 1) rt_property(p->engine, "backend", on, sizeof on);
    snprintf(out, 64, ", %d of %lld layers on %s", p->place.gpu_layers,
             (long long) property(p->engine, "model.layers"), on);
    return out;
}

/* One line about what runs: model, drafter, context. */
static void tell(const Program *p, bool drafts)
{
    const Files *f = &p->files;
    char draft[300] = "", ctx[40] = "", gpu[64];
    const long long canvas = (long long) property(p->engine, "model.canvas");
    if (canvas > 0) snprintf(draft, sizeof draft, ", canvas %lld", canvas);
    else if (drafts && strcmp(f->draft, "mtp") == 0) strcpy(draft, " + its own MTP layer");
    else if (drafts && !f->draft[0]) strcpy(draft, ", no drafter");
    else if (drafts) snprintf(draft, sizeof draft, " + drafter %.*s", stem(f->draft), base_name(f->draft));
    if (p->session) snprintf(ctx, sizeof ctx, ", context %d", rt_session_ctx(p->session));
    note(p->o, "%.*s%s%s%s%s", (int) gguf_stem(f->name), f->name, draft, ctx, program_gpu_text(gpu, p),
         f->demo ? " (demo; give -m for your model)" : "");
    program_expert_note(p);
    if (p->session) program_kv_hint(p, 1);
}

bool program_open(Program *p, const Options *o, int with, const int32_t *taps, int32_t n_taps)
{
    if (!program_find(p, o, with) || !program_load(p, with, taps, n_taps)) return false;
    tell(p, (with & WITH_DRAFTER) != 0);
    return true;
}

typedef struct { const rt_session_options *so; const rt_step_options *st; rt_needs *needs; } PlanOf;

static rt_status plan_once(void *ud, const rt_options *o, rt_error *e)
{
    const PlanOf *x = ud;
    return rt_plan(o, x->so, x->st, NULL, NULL, x->needs, sizeof *x->needs, e);
}

rt_status program_plan(Program *p, const rt_session_options *so, const rt_step_options *st, PlanPart part, void *ud,
                       rt_needs *needs, rt_error *e)
{
    PlanOf plan = { so, st, needs };
    rt_status code = open_files(p, NULL, 0, plan_once, &plan, e);
    const rt_options ro = program_options(p, NULL, 0);
    return code == RT_OK && part ? rt_plan(&ro, so, st, part, ud, needs, sizeof *needs, e) : code;
}

void program_close(Program *p)
{
    program_end_bar(p);
    expert_profile_keep(p, true);
    rt_step_free(p->step);
    rt_session_free(p->session);
    rt_close(p->engine);
    free(p->profile.path);
}

/* ---- reading ---- */

bool text_read(const Options *o, char **out, size_t *n, const char *path)
{
    const size_t piece = (size_t) 1 << 16, most = (size_t) 1 << 30;
    FILE *f = path ? fopen(path, "rb") : stdin;
    Bytes text = { 0 };
    int why = f ? 0 : errno;
    for (size_t got = piece; why == 0 && got == piece;) {
        if (text.n >= most) why = EFBIG;
        else if (!bytes_room(&text, piece + 1)) why = ENOMEM;
        else text.n += got = fread(text.at + text.n, 1, piece, f);
        if (why == 0 && ferror(f)) why = errno;
    }
    if (f && path) fclose(f);
    *out = why ? NULL : text.at;
    if (why) {
        bytes_free(&text);
        char hint[ADVICE_TEXT] = "";
        if (path) advice(hint, path, AS_TEXT);
        return complain(o, "%s: %s%s", path ? path : "standard input", strerror(why), hint) == 0;
    }
    text.at[*n = text.n] = 0;
    return true;
}

bool ids_read(const Options *o, int32_t **out, int32_t *n, const char *list, const char *what, int64_t min, int64_t max)
{
    char *text = NULL;
    size_t len = 0;
    *out = NULL;
    *n = 0;
    if (list[0] == '@') {
        if (!text_read(o, &text, &len, list + 1)) return false;
    } else {
        text = strdup(list);
        len = strlen(list);
    }
    int32_t *ids = malloc(sizeof *ids * (len / 2 + 2));
    if (!text || !ids) {
        complain(o, "%s: out of memory", what);
        free(text);
        free(ids);
        return false;
    }
    const char *p = text;
    bool good = true;
    while (good) {
        p += strspn(p, " \t\r\n");
        if (!*p) {                                 /* nothing, or blanks at the end */
            good = p == text + len;
            break;
        }
        char *end;
        errno = 0;
        long long v = strtoll(p, &end, 10);
        if (end == p || errno || v < min || v > max) {
            good = false;
            break;
        }
        ids[(*n)++] = (int32_t) v;
        p = end + strspn(end, " \t\r\n");
        if (*p == ',') {
            p++;
            good = p[strspn(p, " \t\r\n")] != 0;
        } else {
            good = p != end || !*p;
        }
    }
    if (!good) {
        complain(o, "%s: bad list at '%.20s', expected numbers from %lld to %lld between commas", what, p,
                 (long long) min, (long long) max);
        free(ids);
    } else {
        *out = ids;
    }
    free(text);
    return good;
}

bool user_path(char *out, size_t cap, const char *variable, const char *folder, const char *name)
{
    const char *named = getenv(variable), *home = getenv("HOME");
    int n = -1;
    if (named && *named == '/') n = snprintf(out, cap, "%s/ratoon/%s", named, name);
    else if (home && is_folder(home)) n = snprintf(out, cap, "%s/%s/ratoon/%s", home, folder, name);
    return n > 0 && (size_t) n < cap;
}

bool json_file(const Options *o, json_t **out, const char *path)
{
    char *s;
    size_t n;
    Error err = { 0 };
    *out = NULL;
    if (!text_read(o, &s, &n, path)) return false;
    Status st = json_read(out, s, n, path ? path : "standard input", &err);
    free(s);
    if (st != ST_OK) complain(o, "%s", err.text);
    return st == ST_OK;
}

bool text_tokens(const Program *p, int32_t **out, int32_t *n, const char *s, size_t len, bool special)
{
    const rt_engine *g = p->engine;
    *out = NULL;
    *n = 0;
    if (!rt_has_tokenizer(g)) {
        complain(p->o, "%s: it carries no tokenizer, so text cannot be read; give --tokens", p->files.model);
        return false;
    }
    size_t cap = len + 16;
    for (;;) {
        int32_t *ids = malloc(sizeof *ids * (cap + 1));
        if (!ids) {
            complain(p->o, "out of memory for %zu bytes of text", len);
            return false;
        }
        int32_t *first = ids + (!special && rt_adds_bos(g) && rt_token_bos(g) >= 0 ? 1 : 0);
        if (first != ids) ids[0] = rt_token_bos(g);
        size_t found = rt_tokenize(g, s, len, special, first, cap);
        if (found > cap) {                  /* no text has more tokens than bytes, but this is not promised */
            free(ids);
            cap = found;
            continue;
        }
        if (found == 0 && len > 0) {
            complain(p->o, "the text of %zu bytes could not be tokenized", len);
            free(ids);
            return false;
        }
        found += (size_t) (first - ids);
        if (found > INT32_MAX) {
            complain(p->o, "the text has too many tokens");
            free(ids);
            return false;
        }
        *out = ids;
        *n = (int32_t) found;
        return true;
    }
}

void prompts_free(Prompts *p)
{
    for (int32_t i = 0; i < p->n; i++) free(p->at[i].text);
    free(p->at);
    *p = (Prompts) { 0 };
}

static void name_group(Prompt *p, const json_t *line)
{
    const char *given = json_string_value(json_object_get(line, "class")),
               *id = json_string_value(json_object_get(line, "id"));
    if (given) snprintf(p->group, sizeof p->group, "%s", given);
    else if (id && strchr(id, '/'))
        snprintf(p->group, sizeof p->group, "%.*s", (int) (strchr(id, '/') - id < 31 ? strchr(id, '/') - id : 31), id);
}

static bool add_prompt(Prompts *p, const char *line, size_t n, const char *name, Error *err)
{
    json_t *j = NULL;
    if (json_read(&j, line, n, name, err) != ST_OK) return false;
    json_t *text = json_object_get(j, "prompt");
    Prompt new = { .len = json_string_length(text) };
    Prompt *more = NULL;
    if (new.len == 0) {
        fail(err, ST_FORMAT, "%s: it has no \"prompt\" with text", name);
    } else {
        new.text = malloc(new.len + 1);
        more = realloc(p->at, sizeof *more * (size_t) (p->n + 1));
        if (more) p->at = more;
        if (!new.text || !more) {
            fail(err, ST_MEMORY, "%s: out of memory", name);
            free(new.text);
            more = NULL;
        }
    }
    if (more) {
        memcpy(new.text, json_string_value(text), new.len + 1);
        name_group(&new, j);
        p->at[p->n++] = new;
    }
    json_decref(j);
    return more != NULL;
}

bool prompts_read(const Options *o, Prompts *out, const char *path)
{
    char *s, name[4200];
    size_t n;
    *out = (Prompts) { 0 };
    if (!text_read(o, &s, &n, path)) return false;
    Error err = { 0 };
    bool good = true;
    int line = 0;
    for (char *p = s, *end; good && p < s + n; p = end + 1) {
        end = memchr(p, '\n', (size_t) (s + n - p));
        if (!end) end = s + n;
        line++;
        if (strspn(p, " \t\r") >= (size_t) (end - p)) continue;
        snprintf(name, sizeof name, "%s line %d", path, line);
        good = add_prompt(out, p, (size_t) (end - p), name, &err);
    }
    free(s);
    if (!good) complain(o, "%s", err.text);
    else if (out->n == 0) complain(o, "%s: it has no prompts", path);
    if (good && out->n > 0) return true;
    prompts_free(out);
    return false;
}

/* ---- writing ---- */

json_t *json_text(const char *s, size_t n)
{
    Utf8Stream u = { 0 };
    char *out = malloc(3 * (n + 8));
    if (!out) return NULL;
    size_t len = utf8_stream(&u, out, s, n);
    len += utf8_stream_end(&u, out + len);
    json_t *j = json_stringn(out, len);
    free(out);
    return j;
}

int64_t property(const rt_engine *g, const char *key)
{
    char text[32] = "";
    return rt_property(g, key, text, sizeof text) ? strtoll(text, NULL, 10) : 0;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

double median(double *x, int32_t n)
{
    if (n < 1) return 0;
    qsort(x, (size_t) n, sizeof *x, by_size);
    return (x[(n - 1) / 2] + x[n / 2]) / 2;
}

int output_failed(const Options *o)
{
    int why = errno;
    struct pollfd out = { .fd = STDOUT_FILENO };
    if (why == EPIPE || (poll(&out, 1, 0) == 1 && out.revents & POLLERR)) {
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    return complain(o, "standard output: %s", why ? strerror(why) : "could not be written");
}

int output_done(const Options *o)
{
    return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_FINE : output_failed(o);
}

bool json_print(const Options *o, json_t *object)
{
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(10)) : NULL;
    json_decref(object);
    if (!text) return complain(o, "JSON: out of memory") == EXIT_FINE;
    text_show(stdout, text, strlen(text));
    putchar('\n');
    free(text);
    printed = true;
    return output_done(o) == EXIT_FINE;
}
