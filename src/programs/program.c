#include "programs/program.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "text/tokenizer.h"

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

/* ---- saying ---- */

static void say(const Options *o, const char *format, va_list args)
{
    char line[2048];
    int n = snprintf(line, sizeof line, "ratoon %s: ", o->command);
    vsnprintf(line + n, sizeof line - (size_t) n, format, args);
    for (char *p = line; *p; p++)
        if ((unsigned char) *p < 32 || *p == 127) *p = '?';
    fprintf(stderr, "%s\n", line);
}

int complain(const Options *o, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(o, format, args);
    va_end(args);
    return EXIT_FAILED;
}

void note(const Options *o, const char *format, ...)
{
    if (o->quiet) return;
    va_list args;
    va_start(args, format);
    say(o, format, args);
    va_end(args);
}

const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

/* ---- engine ---- */

static void end_bar(Program *p)
{
    if (p->barred) progress_end(&p->bar);
    p->barred = false;
}

static void on_log(void *ud, int level, const char *line)
{
    Program *p = ud;
    if (level > 2 || (p->o->quiet && level > 0)) return;
    end_bar(p);
    fprintf(stderr, "%s%s\n", level == 0 ? "error: " : level == 1 ? "warning: " : "", line);
}

static int64_t chunk_now(const Program *p)
{
    int64_t chunk = p->o->chunk ? p->o->chunk : 256;
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
        if (!p->barred) progress_start(&p->bar, strcmp(what, "drafter") == 0 ? "drafter" : "model", (uint64_t) total);
        p->barred = true;
        progress_to(&p->bar, (uint64_t) done);
        if (done >= total) end_bar(p);
    } else if (p->reading > p->read) {             /* a layer of a pass is done: on large models the next chunk is far */
        p->layers_done += p->layers_done < p->layers;
        show_reading(p);
    }
    return interrupts == 0 && (!p->watch || p->watch(p->watch_ud, done, total));
}

rt_options program_options(Program *p, const int32_t *taps, int32_t n_taps)
{
    const Options *o = p->o;
    return (rt_options) {
        .model = p->files.model, .draft = p->files.draft[0] ? p->files.draft : p->files.own ? "auto" : NULL, .backend = o->backend, .kv_k = o->kv_k, .kv_v = o->kv_v,
        .draft_type = o->draft_type, .no_repack = o->no_repack, .threads = o->threads, .taps = taps, .n_taps = n_taps, .fa_window = o->fa_window,
        .hooks = { .ud = p, .log = on_log, .progress = on_progress },
    };
}

rt_step_options program_step_options(const Options *o)
{
    return (rt_step_options) { .chunk = o->chunk, .budget = o->budget, .chain = o->chain, .draft_block = o->draft_block };
}

rt_session_options program_session_options(const Options *o)
{
    return (rt_session_options) { .ctx = o->ctx, .draft_ctx = o->draft_ctx, .ngram = o->ngram };
}

rt_sampling program_sampling(const Options *o, int32_t max_tokens)
{
    return (rt_sampling) {
        .temperature = (float) o->temp, .top_p = (float) o->top_p, .min_p = (float) o->min_p, .repetition = (float) o->rep_penalty,
        .frequency = (float) o->freq_penalty, .presence = (float) o->presence_penalty, .top_k = o->top_k, .rep_window = o->rep_window,
        .max_tokens = max_tokens, .seed = o->seed,
    };
}

static bool engine_open(Program *p, const int32_t *taps, int32_t n_taps)
{
    rt_error e = { 0 };
    rt_options ro = program_options(p, taps, n_taps);
    rt_status st = rt_open(&p->engine, &ro, &e);
    end_bar(p);
    if (st != RT_OK && st != RT_ECANCEL && st != RT_ENOMEM && p->files.found_draft) {
        /* Nobody asked for this drafter: a file beside the target that does not fit it is no reason to give up. */
        rt_error second = { 0 };
        p->files.draft[0] = 0;
        p->files.found_draft = false;
        ro = program_options(p, taps, n_taps);
        if (rt_open(&p->engine, &ro, &second) == RT_OK) {
            note(p->o, "the drafter beside the model is left out: %s", e.text);
            st = RT_OK;
        } else {
            e = second;
        }
        end_bar(p);
    }
    char arch[16] = "";
    if (st == RT_OK && p->files.own && rt_property(p->engine, "draft.arch", arch, sizeof arch)) strcpy(p->files.draft, "mtp");
    if (st == RT_OK) return true;
    if (st == RT_ECANCEL) complain(p->o, "interrupted while loading");
    else complain(p->o, "%s", e.text);
    return false;
}

rt_status program_prompt(Program *p, rt_session *s, const int32_t *prompt, int32_t n)
{
    rt_stats st;
    rt_status status = rt_prompt(s, prompt, (size_t) n);
    if (status != RT_OK) return status;
    rt_stats_get(s, &st);
    p->reading = n - 1 - st.resumed;               /* the last token is the first root */
    p->read = p->layers_done = 0;
    p->layers = property(p->engine, "model.layers");
    if (p->reading > 0) {
        end_bar(p);
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
        end_bar(p);
        p->reading = p->read = 0;
    }
    return status;
}

bool program_session(Program *p)
{
    rt_error e = { 0 };
    const Options *o = p->o;
    rt_session_options so = program_session_options(o);
    rt_step_options st = program_step_options(o);
    if (rt_session_new(&p->session, p->engine, &so, &e) == RT_OK && rt_step_new(&p->step, p->engine, &st, &e) == RT_OK) return true;
    complain(o, "%s", e.text);
    return false;
}

bool program_open(Program *p, const Options *o, int with, const int32_t *taps, int32_t n_taps)
{
    *p = (Program) { .o = o, .watch = p->watch, .watch_ud = p->watch_ud };
    if (!(with & OWN_SIGNALS)) hear_interrupts();
    if (!files_find(&p->files, o, (with & WITH_DRAFTER) != 0)) return false;
    if (!engine_open(p, taps, n_taps)) return false;
    return !(with & WITH_SESSION) || program_session(p);
}

void program_close(Program *p)
{
    end_bar(p);
    rt_step_free(p->step);
    rt_session_free(p->session);
    rt_close(p->engine);
}

/* ---- reading ---- */

bool text_read(const Options *o, char **out, size_t *n, const char *path)
{
    FILE *f = path ? fopen(path, "rb") : stdin;
    size_t cap = 1 << 16, used = 0;
    char *s = NULL;
    *out = NULL;
    if (!f) {
        complain(o, "%s: %s", path, strerror(errno));
        return false;
    }
    bool good = false;
    for (;;) {
        char *more = realloc(s, cap + 1);
        if (!more) {
            errno = ENOMEM;
            break;
        }
        s = more;
        used += fread(s + used, 1, cap - used, f);
        if (used < cap) {
            good = !ferror(f);
            break;
        }
        if (cap >= (size_t) 1 << 30) {
            errno = EFBIG;
            break;
        }
        cap *= 2;
    }
    if (!good) complain(o, "%s: %s", path ? path : "standard input", strerror(errno));
    if (path) fclose(f);
    if (!good) {
        free(s);
        return false;
    }
    s[used] = 0;
    *out = s;
    *n = used;
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
        if (!*p) {                                 /* nothing at all, or blanks at the end */
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
        complain(o, "%s: bad list at '%.20s', expected numbers from %lld to %lld between commas", what, p, (long long) min, (long long) max);
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
    else if (home && *home) n = snprintf(out, cap, "%s/%s/ratoon/%s", home, folder, name);
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
        if (found > cap) {                         /* more tokens than bytes cannot be, but the count is what is promised */
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
    const char *given = json_string_value(json_object_get(line, "class")), *id = json_string_value(json_object_get(line, "id"));
    if (given) snprintf(p->group, sizeof p->group, "%s", given);
    else if (id && strchr(id, '/')) snprintf(p->group, sizeof p->group, "%.*s", (int) (strchr(id, '/') - id < 31 ? strchr(id, '/') - id : 31), id);
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

int output_done(const Options *o)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return EXIT_FINE;
    return complain(o, "standard output: %s", errno ? strerror(errno) : "could not be written");
}

bool json_print(const Options *o, json_t *object)
{
    bool good = object && json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(10)) == 0 && putchar('\n') != EOF;
    json_decref(object);
    if (!object) return complain(o, "JSON: out of memory") == EXIT_FINE;
    return good ? output_done(o) == EXIT_FINE : complain(o, "standard output: %s", strerror(errno)) == EXIT_FINE;
}
