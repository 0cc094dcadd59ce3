/* ratoon plan: what a run will take, listed before it is taken. */
#include <string.h>
#include <unistd.h>

#include "programs/program.h"

typedef struct { json_t *parts; json_int_t total; } Plan;

static void add_part(void *ud, const char *name, size_t bytes)
{
    Plan *plan = ud;
    if (bytes == 0) return;
    plan->total += (json_int_t) bytes;
    json_array_append_new(plan->parts, json_pack("{s:s s:I}", "name", name, "bytes", (json_int_t) bytes));
}

/* Resident pages of this process before it does anything: its code, the libraries, the C library's own memory. */
static size_t resident(void)
{
    long long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (fscanf(f, "%lld %lld", &size, &pages) != 2) pages = 0;
    fclose(f);
    return (size_t) pages * (size_t) sysconf(_SC_PAGESIZE);
}

static void print_table(const Plan *plan)
{
    size_t i;
    json_t *part;
    json_array_foreach(plan->parts, i, part) {
        double bytes = (double) json_integer_value(json_object_get(part, "bytes"));
        printf("%-22s %12.2f MB  %5.1f %%\n", json_string_value(json_object_get(part, "name")), bytes / 1e6, 100 * bytes / (double) plan->total);
    }
    printf("%-22s %12.2f MB\n", "total", (double) plan->total / 1e6);
}

static int make_plan(Program *p, const Options *o, size_t program)
{
    rt_error e = { 0 };
    Plan plan = { .parts = json_array() };
    rt_options ro = program_options(p, NULL, 0);
    rt_session_options so = program_session_options(o);
    rt_step_options st = program_step_options(o);
    rt_status code = rt_plan(&ro, &so, &st, add_part, &plan, &e);
    if (code != RT_OK && p->files.found_draft) {
        note(o, "the drafter beside the model is left out: %s", e.text);
        ro.draft = NULL;
        json_array_clear(plan.parts);
        plan.total = 0;
        code = rt_plan(&ro, &so, &st, add_part, &plan, &e);
    }
    add_part(&plan, "program", program);
    int status = EXIT_FAILED;
    if (code != RT_OK) {
        complain(o, "%s", e.text);
    } else if (o->json) {
        if (json_print(o, json_pack("{s:I s:O}", "total_bytes", plan.total, "parts", plan.parts))) status = EXIT_FINE;
    } else {
        print_table(&plan);
        status = output_done(o);
    }
    json_decref(plan.parts);
    return status;
}

int cmd_plan(int argc, char **argv)
{
    Options o;
    int status;
    size_t program = resident();
    if (!options_read(&o, argc, argv, &status)) return status;
    Program p = { .o = &o };
    return files_find(&p.files, &o, true) ? make_plan(&p, &o, program) : EXIT_FAILED;
}
