/* ratoon bench: figures of this machine. Passes are timed in interleaved rounds, of which the fastest counts; decoding runs of each way
 * take turns, so that a machine that changes its speed meanwhile changes it for all of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "programs/bench.h"

/* ---- passes ---- */

static bool time_passes(Bench *b, const int32_t *rows, int32_t n, double *ms)
{
    int32_t repeats = b->o.repeats ? b->o.repeats : 12;
    progress_start(&b->p.bar, "passes", (uint64_t) (repeats * n));
    for (int32_t r = 0; r < repeats; r++)
        for (int32_t i = 0; i < n; i++) {
            double t;
            if (rt_time_pass(b->p.step, b->p.session, rows[i], 1, &t) != RT_OK) return complain(&b->o, "%s", rt_step_error(b->p.step)) == 0;
            if (r == 0 || t < ms[i]) ms[i] = t;
            progress_to(&b->p.bar, (uint64_t) (r * n + i + 1));
        }
    progress_end(&b->p.bar);
    return true;
}

/* The least time that a pass of n rows can take here: weights are read once, and every weight is multiplied for every row. */
static double limit_ms(const Bench *b, int32_t rows, double bytes_s, double ops_s)
{
    double read = (double) property(b->p.engine, "model.bytes") / bytes_s;
    double work = 2.0 * (double) property(b->p.engine, "model.parameters") * rows / ops_s;
    return 1e3 * (read > work ? read : work);
}

static int report_passes(Bench *b, const int32_t *rows, int32_t n, const double *ms)
{
    double bytes_s = 0, ops_s = 0;
    rt_error e = { 0 };
    json_t *list = json_array();
    if (rt_roofline(b->o.threads, &bytes_s, &ops_s, &e) != RT_OK) {
        json_decref(list);
        return complain(&b->o, "%s", e.text);
    }
    if (b->o.csv) printf("rows,ms,share_of_limit\n");
    if (!b->o.csv && !b->o.json) printf("memory %.1f GB/s, int8 %.2f Tops/s, weights %.3f GB\n", bytes_s / 1e9, ops_s / 1e12, (double) property(b->p.engine, "model.bytes") / 1e9);
    for (int32_t i = 0; i < n; i++) {
        double share = limit_ms(b, rows[i], bytes_s, ops_s) / ms[i];
        if (b->o.csv) printf("%d,%.4f,%.4f\n", rows[i], ms[i], share);
        else if (!b->o.json) printf("%3d rows %10.3f ms   %.2fx of %d   %.0f %% of the limit\n", rows[i], ms[i], ms[i] / ms[0], rows[0], 100 * share);
        json_array_append_new(list, json_pack("{s:i s:f s:f}", "rows", rows[i], "ms", ms[i], "share_of_limit", share));
    }
    if (!b->o.csv && !b->o.json && limit_ms(b, rows[0], bytes_s, ops_s) > ms[0]) printf("more than 100 %%: the weights of so small a model stay in the cache\n");
    if (b->o.json)
        return json_print(&b->o, json_pack("{s:o s:f s:f}", "passes", list, "bytes_per_s", bytes_s, "int8_ops_per_s", ops_s)) ? EXIT_FINE : EXIT_FAILED;
    json_decref(list);
    return output_done(&b->o);
}

static int bench_passes(Bench *b)
{
    int32_t *rows = NULL, n = 0;
    if (!ids_read(&b->o, &rows, &n, b->o.passes, "--passes", 1, 64)) return EXIT_USAGE;
    double *ms = calloc((size_t) n + 1, sizeof *ms);
    int status = EXIT_FAILED;
    if (n == 0) {
        complain(&b->o, "--passes: no number was given");
    } else if (ms && program_open(&b->p, &b->o, b->o.draft ? WITH_DRAFTER | WITH_SESSION : WITH_SESSION, NULL, 0)) {
        if (time_passes(b, rows, n, ms)) status = report_passes(b, rows, n, ms);
        else if (interrupts) status = EXIT_INTERRUPTED;
    }
    program_close(&b->p);
    free(rows);
    free(ms);
    return status;
}

/* ---- profiles ---- */

bool profile_read(const Options *o, rt_profile *out, char name[64], const char *path)
{
    char *s;
    size_t n;
    json_t *j = NULL;
    Error err = { 0 };
    *out = (rt_profile) { 0 };
    if (!text_read(o, &s, &n, path)) return false;
    Status st = json_read(&j, s, n, path, &err);
    free(s);
    if (st != ST_OK) return complain(o, "%s", err.text) == 0;
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
    return good || complain(o, "%s: \"edge\" is not a list of 1 to 16 depths with at most 16 probabilities each", path) == 0;
}

bool profile_write(const Options *o, const rt_profile *p, const char *name, const char *path)
{
    json_t *edge = json_array();
    for (int32_t d = 0; d < p->n_depth; d++) {
        json_t *ranks = json_array();
        for (int32_t r = 0; r < p->n_rank; r++) json_array_append_new(ranks, json_real(p->edge[d][r]));
        json_array_append_new(edge, ranks);
    }
    json_t *j = json_pack("{s:s s:o}", "name", name, "edge", edge);
    FILE *f = fopen(path, "wb");
    bool good = f && j && json_dumpf(j, f, JSON_REAL_PRECISION(6)) == 0 && fputc('\n', f) != EOF;
    if (f) good &= fclose(f) == 0;
    json_decref(j);
    return good || complain(o, "%s: could not be written: %s", path, strerror(errno)) == 0;
}

int cmd_bench(int argc, char **argv)
{
    Bench b = { 0 };
    int status;
    if (!options_read(&b.o, argc, argv, &status)) return status;
    if (!b.o.passes == !b.o.prompts) {
        complain(&b.o, "one of --passes and --prompts is needed (see ratoon bench --help)");
        return EXIT_USAGE;
    }
    return b.o.passes ? bench_passes(&b) : bench_prompts(&b);
}
