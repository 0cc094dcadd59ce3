/* cmd_bench.c - ratoon bench: measurements of this machine. Everything that is compared alternates, so that a drift in
 * the machine's speed affects all of it. The other program and our model are never in memory together, since large
 * models do not fit twice. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/save.h"
#include "programs/bench/bench.h"
#include "programs/cards.h"
#include "programs/estimate.h"
#include "programs/expert_use.h"

/* ---- what to state beside figures ---- */

/* Appends a word of a command line without its folders: "--out=/a/b" becomes "--out=b". */
static void add_word(char *out, size_t cap, const char *word)
{
    size_t at = strlen(out), option = word[0] == '-' && strchr(word, '=') ? (size_t) (strchr(word, '=') + 1 - word) : 0;
    snprintf(out + at, cap - at, "%s%.*s%s", at ? " " : "", (int) option, word, base_name(word + option));
}

static void describe_commands(Bench *b, int argc, char **argv)
{
    char *save, *copy = b->o.compare ? strdup(b->o.compare) : NULL;
    for (char *w = copy ? strtok_r(copy, " \t\n", &save) : NULL; w; w = strtok_r(NULL, " \t\n", &save)) {
        if (!b->compare[0]) snprintf(b->compared_name, sizeof b->compared_name, "%s", base_name(w));
        add_word(b->compare, sizeof b->compare, w);
    }
    free(copy);
    snprintf(b->command, sizeof b->command, "ratoon");
    for (int i = 0; i < argc; i++)
        if (b->o.compare != argv[i]) add_word(b->command, sizeof b->command, argv[i]);
        else snprintf(b->command + strlen(b->command), sizeof b->command - strlen(b->command), " '...'");
}

static void describe_machine(Bench *b)
{
    char name[160];
    b->threads = machine_name(name, sizeof name, &b->o);
    snprintf(b->machine, sizeof b->machine, "%s, %d thread%s", name, b->threads, b->threads == 1 ? "" : "s");
}

void bench_card(Bench *b, const char *backend)
{
    const size_t at = strlen(b->machine);
    rt_card card;
    if (b->by_clocks || !card_named(&card, backend)) return;      /* each round comes here */
    const char *more = strchr(backend, '+');
    snprintf(b->machine + at, sizeof b->machine - at, ", %.63s (%s)%s%.20s", card.name, card.level,
             more ? " and cuda:" : "", more ? more + 1 : "");
    b->by_clocks = true;
}

/* "2.7 G", "10.6 M" */
static const char *size_text(char out[24], double x)
{
    snprintf(out, 24, "%.3g %s", x >= 1e9 ? x / 1e9 : x / 1e6, x >= 1e9 ? "G" : "M");
    return out;
}

static void describe_model(Bench *b)
{
    char backend[64] = "", kv[32] = "", values[24], bytes[24];
    const Files *f = &b->p.files;
    rt_property(b->p.engine, "backend", backend, sizeof backend);
    rt_property(b->p.engine, "kv", kv, sizeof kv);
    b->bytes = (double) property(b->p.engine, "model.pass.bytes");
    b->experts = (int32_t) property(b->p.engine, "model.experts");
    b->experts_used = (int32_t) property(b->p.engine, "model.experts.used");
    b->expert_bytes = (double) property(b->p.engine, "model.experts.bytes");
    b->kv = (double) property(b->p.engine, "model.kv.bytes");
    b->values = (double) property(b->p.engine, "model.pass.parameters");
    b->head = (double) property(b->p.engine, "model.vocab") * (double) property(b->p.engine, "model.dim");
    snprintf(b->model, sizeof b->model, "%.120s%s%.120s; a pass reads %s weights, %sB; keys/values %s, backend %s",
             base_name(f->model), f->draft[0] ? " with " : "", base_name(f->draft), size_text(values, b->values),
             size_text(bytes, b->bytes), kv, backend);
}

/* ---- rounds ---- */

/* A card whose clocks are not known has no peaks, and then there are no limits. */
static bool open_roof(Bench *b, const char *backend)
{
    rt_error e = { 0 };
    const rt_status st = rt_roofline_new(&b->roof, backend, b->threads, &e);
    if (st == RT_EUNSUPPORTED) note(&b->o, "no limits: %s", e.text);
    return st == RT_OK || st == RT_EUNSUPPORTED || complain(&b->o, "%s", e.text) == 0;
}

void bench_peaks(Bench *b)
{
    if (b->roof) rt_roofline_round(b->roof, b->threads, 0, &b->peaks);
}

double bench_limit_ms(const Bench *b, int32_t rows, int32_t after)
{
    return bench_limit_of_ms(b, rows, after, experts_more(b->expert_bytes, b->experts, b->experts_used, rows));
}

double bench_limit_of_ms(const Bench *b, int32_t rows, int32_t after, double more)
{
    if (b->peaks.bytes_per_s == 0) return 0;
    double read = (b->bytes + more + b->kv * after) / b->peaks.bytes_per_s,
           work = 2 * b->values * rows / b->peaks.int8_ops_per_s;
    return 1e3 * (read > work ? read : work);
}

static bool our_turn(Bench *b, int with, bool (*measure)(Bench *b, void *ud), void *ud)
{
    bool good = program_open(&b->p, &b->o, with, NULL, 0);
    if (good) {
        const bool alone = b->p.place.gpu_layers == RT_LAYERS_NONE;    /* the CPU */
        describe_model(b);
        if (!alone) bench_card(b, program_backend(&b->p));
        good = open_roof(b, alone ? "cpu" : program_backend(&b->p));
    }
    const double began = seconds_now();
    good = good && measure(b, ud) && !interrupts;
    b->seconds = seconds_now() - began;
    if (good) b->store = expert_use_since(&b->p, &b->p.loaded);
    rt_roofline_free(b->roof);
    b->roof = NULL;
    program_close(&b->p);
    b->p = (Program) { .o = &b->o, .files = b->p.files };
    malloc_trim(0);
    return good;
}

bool bench_rounds(Bench *b, int with, bool (*measure)(Bench *b, void *ud), void *ud)
{
    b->rounds = !b->o.compare ? 1 : b->o.pairs ? b->o.pairs : 3;
    hear_interrupts();
    if (b->o.compare) {
        b->compared = (Compared) { .o = &b->o, .model = b->p.files.model, .threads = b->threads };
        note(&b->o, "warming up: %s", b->o.compare);
        if (!compare_run(&b->compared, false)) return false;
    }
    for (int32_t r = 0; r < b->rounds; r++) {
        if (!our_turn(b, with, measure, ud)) return false;
        if (b->o.compare && !compare_run(&b->compared, true)) return false;
    }
    return true;
}

/* ---- writing ---- */

const char *bench_by_clocks(const Bench *b) { return b->by_clocks ? " (by the card's clocks)" : ""; }

void bench_print_machine(const Bench *b)
{
    printf("%s\n%s", b->model, b->machine);
    if (b->peaks.bytes_per_s > 0)
        printf(": memory %.1f GB/s, int8 %.2f Tops/s, f32 %.2f Tflop/s%s", b->peaks.bytes_per_s / 1e9,
               b->peaks.int8_ops_per_s / 1e12, b->peaks.f32_ops_per_s / 1e12, bench_by_clocks(b));
    putchar('\n');
}

const char *bench_share(char out[40], const Bench *b, double share, const char *of)
{
    if (b->peaks.bytes_per_s > 0) snprintf(out, 40, "   %3.0f %% of the %s", 100 * share, of);
    else *out = 0;
    return out;
}

json_t *bench_json(const Bench *b)
{
    json_t *j = json_object();
    json_object_set_new(j, "command", json_text(b->command, strlen(b->command)));
    json_object_set_new(j, "version", json_string(rt_version()));
    json_object_set_new(j, "machine", json_text(b->machine, strlen(b->machine)));
    json_object_set_new(j, "threads", json_integer(b->threads));
    if (b->model[0])
        json_object_set_new(j, "model", json_text(base_name(b->p.files.model), strlen(base_name(b->p.files.model))));
    if (b->peaks.bytes_per_s > 0) {
        json_object_set_new(j, "by_clocks", json_boolean(b->by_clocks));
        json_object_set_new(j, "bytes_per_s", json_real(b->peaks.bytes_per_s));
        json_object_set_new(j, "int8_ops_per_s", json_real(b->peaks.int8_ops_per_s));
        json_object_set_new(j, "f32_ops_per_s", json_real(b->peaks.f32_ops_per_s));
    }
    if (b->store.slots > 0) json_object_set_new(j, "expert_store", expert_use_json(&b->store, b->seconds));
    if (b->o.compare)
        json_object_set_new(j, "compare",
                            json_pack("{s:o s:i}", "command", json_text(b->o.compare, strlen(b->o.compare)), "rounds",
                                      b->rounds));
    return j;
}

void bench_plot_text(Bench *b, PlotText *t, const char *title, const char *subtitle)
{
    *t = (PlotText) { .title = title, .subtitle = subtitle };
    snprintf(b->small[t->n_small++], sizeof b->small[0], "%s", b->command);
    if (b->o.compare) snprintf(b->small[t->n_small++], sizeof b->small[0], "beside it, in turn: %s", b->compare);
    if (b->model[0]) snprintf(b->small[t->n_small++], sizeof b->small[0], "%s", b->model);
    snprintf(b->small[t->n_small++], sizeof b->small[0], "%s; ratoon %s", b->machine, rt_version());
    for (int32_t i = 0; i < t->n_small; i++) t->small[i] = b->small[i];
}

/* Opens a requested output file; NULL: not requested, or failed and reported. */
static FILE *open_out(const Bench *b, Save *s, const char *path, bool *good)
{
    Error err = { 0 };
    *s = (Save) { 0 };
    if (path && *good && save_open(s, path, SAVE_SHARED, &err) != ST_OK) *good = complain(&b->o, "%s", err.text) == 0;
    return s->file;
}

static void close_out(const Bench *b, Save *s, const char *path, bool *good)
{
    Error err = { 0 };
    if (s->file && save_close(s, path, true, &err) != ST_OK) *good = complain(&b->o, "%s", err.text) == 0;
}

/* Writes a comment on one line, whatever the words of the command contain. */
static void comment(FILE *f, const char *what, const char *s)
{
    fprintf(f, "# %s: ", what);
    for (; *s; s++) fputc((unsigned char) *s < 32 || *s == 127 ? ' ' : *s, f);
    fputc('\n', f);
}

static FILE *open_csv(const Bench *b, Save *s, bool *good)
{
    FILE *f = open_out(b, s, b->o.csv, good);
    time_t now = time(NULL);
    struct tm tm;
    char day[64] = "";
    if (!f) return NULL;
    if (gmtime_r(&now, &tm)) strftime(day, sizeof day, "%Y-%m-%d", &tm);
    comment(f, "command", b->command);
    if (b->o.compare) comment(f, "in turn with", b->compare);
    if (b->model[0]) comment(f, "model", b->model);
    comment(f, "machine", b->machine);
    fprintf(f, "# ratoon %s, %s\n", rt_version(), day);
    if (b->peaks.bytes_per_s > 0)
        fprintf(f, "# peaks: %.2f GB/s, int8 %.1f Gops/s, f32 %.1f Gflop/s%s\n", b->peaks.bytes_per_s / 1e9,
                b->peaks.int8_ops_per_s / 1e9, b->peaks.f32_ops_per_s / 1e9, bench_by_clocks(b));
    return f;
}

bool bench_report(Bench *b, const BenchReport *how, void *result)
{
    bool good = true;
    Save s;
    FILE *f = open_csv(b, &s, &good);
    if (f) how->csv(b, result, f);
    close_out(b, &s, b->o.csv, &good);
    f = open_out(b, &s, b->o.svg, &good);
    if (f) how->svg(b, result, f);
    close_out(b, &s, b->o.svg, &good);
    if (b->o.json) return json_print(&b->o, how->json(b, result)) && good;
    how->text(b, result);
    expert_use_print(stdout, &b->store, b->seconds);
    return output_done(&b->o) == EXIT_FINE && good;
}

/* ---- profiles ---- */

bool profile_read(const Options *o, rt_profile *out, char name[64], const char *path)
{
    json_t *j;
    *out = (rt_profile) { 0 };
    if (!json_file(o, &j, path)) return false;
    const char *given = json_string_value(json_object_get(j, "name"));
    json_t *edge = json_object_get(j, "edge");
    bool good = json_is_array(edge) && json_array_size(edge) >= 1 && json_array_size(edge) <= 16;
    snprintf(name, 64, "%s", given ? given : base_name(path));
    for (size_t d = 0; good && d < json_array_size(edge); d++) {
        json_t *ranks = json_array_get(edge, d);
        good = json_is_array(ranks) && json_array_size(ranks) <= 16;
        for (size_t r = 0; good && r < json_array_size(ranks); r++) {
            good = json_is_number(json_array_get(ranks, r));
            out->edge[d][r] = json_number_value(json_array_get(ranks, r));
        }
        if (good && (int32_t) json_array_size(ranks) > out->n_rank) out->n_rank = (int32_t) json_array_size(ranks);
        out->n_depth++;
    }
    json_decref(j);
    return good ||
           complain(o, "%s: \"edge\" is not a list of 1 to 16 depths with at most 16 probabilities each", path) == 0;
}

static bool write_edges(void *ud, FILE *f)
{
    return json_dumpf(ud, f, JSON_REAL_PRECISION(6)) == 0 && fputc('\n', f) != EOF;
}

bool profile_write(const Options *o, const rt_profile *p, const char *name, const char *path)
{
    Error err = { 0 };
    json_t *edge = json_array();
    for (int32_t d = 0; d < p->n_depth; d++) {
        json_t *ranks = json_array();
        for (int32_t r = 0; r < p->n_rank; r++) json_array_append_new(ranks, json_real(p->edge[d][r]));
        json_array_append_new(edge, ranks);
    }
    json_t *j = json_pack("{s:s s:o}", "name", name, "edge", edge);
    Status st = j ? save_file(path, SAVE_SHARED, write_edges, j, &err)
                  : fail(&err, ST_MEMORY, "%s: no memory to write it", path);
    json_decref(j);
    return st == ST_OK || complain(o, "%s", err.text) == 0;
}

int cmd_bench(int argc, char **argv)
{
    static Bench b;                                /* too large for a small stack */
    int status;
    if (!options_read(&b.o, argc, argv, &status)) return status;
    if (!!b.o.passes + (b.o.prompts && !b.o.serve) + !!b.o.prompt_tokens + !!b.o.serve + b.o.roofline != 1) {
        complain(&b.o, "one of --roofline, --passes, --prompt-tokens, --prompts and --serve is needed (see ratoon "
                 "bench --help)");
        return EXIT_USAGE;
    }
    if ((b.o.roofline || b.o.serve) && b.o.compare) {
        complain(&b.o, "--compare goes with --passes, --prompt-tokens or --prompts alone");
        return EXIT_USAGE;
    }
    if (b.o.after && (!b.o.passes || b.o.compare)) {
        complain(&b.o, "--after goes with --passes alone");
        return EXIT_USAGE;
    }
    if (!compare_ready(&b.o)) return EXIT_USAGE;
    if (!outputs_good(&b.o, NULL)) return EXIT_FAILED;
    describe_commands(&b, argc, argv);
    describe_machine(&b);
    status = b.o.roofline ? bench_roofline(&b) : b.o.serve ? bench_serve(&b) : b.o.passes
             ? bench_passes(&b) : b.o.prompt_tokens ? bench_rates(&b) : bench_prompts(&b);
    compare_free(&b.compared);
    return interrupts ? EXIT_INTERRUPTED : status;
}
