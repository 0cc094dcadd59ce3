/* test_resident.c - the plan is what a process holds: loads models in a process of their own, fills the context, and
 * compares the peak of its resident memory with the plan. Pages of mapped files, the model's and the program's own,
 * belong to the system's page cache and are not counted. */
#include "model_helper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A number of /proc/self/status, in kilobytes. */
static double kilobytes(const char *key)
{
    char line[256];
    double found = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) found = strtod(line + strlen(key) + 1, NULL);
    if (f) fclose(f);
    assert_true(found > 0);
    return found;
}

static void fill_context(rt_engine *g, rt_session *s, rt_step *st, int32_t ctx)
{
    int32_t *text = malloc(sizeof *text * (size_t) ctx), n = ctx - 100;
    char vocab[32] = "";
    rt_property(g, "model.vocab", vocab, sizeof vocab);
    for (int32_t i = 0; i < n; i++) text[i] = (i * 7919 + 3) % atoi(vocab);
    assert_int_equal(rt_prompt(s, text, (size_t) n), RT_OK);
    for (rt_status code = RT_OK; code == RT_OK;) {
        rt_block b;
        code = rt_next(st, s, &b);
        if (code != RT_OK && code != RT_END) fail_msg("step: %s%s", rt_step_error(st), rt_session_error(s));
    }
    free(text);
}

/* out: how much this process's peak grew, in kilobytes. */
static void run(double *out, const rt_options *o, const rt_session_options *so, const rt_step_options *sto)
{
    const double before = kilobytes("VmRSS") - kilobytes("RssFile");
    rt_engine *g;
    rt_session *s;
    rt_step *st;
    rt_error e;
    if (rt_open(&g, o, &e) != RT_OK || rt_session_new(&s, g, so, &e) != RT_OK || rt_step_new(&st, g, sto, &e) != RT_OK)
        fail_msg("%s", e.text);
    fill_context(g, s, st, so->ctx);
    *out = kilobytes("VmHWM") - kilobytes("RssFile") - before;
    rt_step_free(st);
    rt_session_free(s);
    rt_close(g);
}

/* The growth of a child's peak, so that nothing of earlier runs is reused. */
static double in_a_child(const rt_options *o, const rt_session_options *so, const rt_step_options *sto)
{
    double *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), grown;
    int status;
    assert_true(shared != MAP_FAILED);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        run(shared, o, so, sto);
        _exit(0);
    }
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    grown = *shared;
    munmap(shared, 4096);
    return grown;
}

/* A system short of memory may drop file pages between the peak and its reading, which then count as memory, and some
 * kernels count pages for each core and add them up late: several attempts. */
static void check(const rt_options *o, int32_t ctx)
{
    rt_needs n;
    rt_error e;
    rt_session_options so = RT_SESSION_OPTIONS(.ctx = ctx);
    rt_step_options sto = RT_STEP_OPTIONS(.budget = 22);
    if (rt_plan(o, &so, &sto, NULL, NULL, &n, sizeof n, &e) != RT_OK) fail_msg("%s", e.text);
    const double planned = (double) (n.model + n.drafter + n.session + n.step + n.process) / 1024;
    double grown = 0;
    for (int32_t i = 0; i < 10; i++) {
        grown = in_a_child(o, &so, &sto);
        if (grown > 0.98 * planned && grown < 1.02 * planned) return;
    }
    fail_msg("%s: planned %.0f kB, resident %.0f kB", o->model, planned, grown);
}

static void demo_pair(void **state)
{
    (void) state;
    check(&RT_OPTIONS(.model = "models/demo/ratoon-demo-q8_0.gguf", .draft = "models/demo/dflash-ratoon-demo-bf16.gguf",
                      .threads = 2), 2048);
    check(&RT_OPTIONS(.model = "models/demo/ratoon-demo-q8_0.gguf", .threads = 1), 2048);
}

static void made_model(void **state)
{
    (void) state;
    PublicRig p;
    RigOptions o = rig_options(TINY_QWEN3, 1, false);
    o.tm.context = 3000;
    public_files(&p, &o);
    check(&RT_OPTIONS(.model = p.model, .threads = 1), 3000);
    p.g = NULL;
    public_close(&p);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
#ifdef __SANITIZE_ADDRESS__
    puts("skipped: a sanitizer's own memory would count");
    return 0;
#endif
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);         /* where huge pages are the rule, every stack begins with 2 MB */
    const struct CMUnitTest tests[] = { cmocka_unit_test(demo_pair), cmocka_unit_test(made_model) };
    return cmocka_run_group_tests_name("resident", tests, NULL, NULL);
}
