/* test_memory.c - available memory as read from a made-up system; memory that is not available is not taken. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cpu/cpu_memory.h"
#include "model_helper.h"
#include "remove_tree.h"

static char root[64];

/* Makes a file below root, and the folders above it. */
static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(path, 0700);
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int make_root(void **state)
{
    (void) state;
    snprintf(root, sizeof root, "/tmp/ratoon-test-XXXXXX");
    if (!mkdtemp(root)) return -1;
    put("/proc/meminfo", "MemTotal:       8000000 kB\nMemFree:         100000 kB\nMemAvailable:   4000000 kB\n");
    put("/proc/self/statm", "100000 50000 1000 1 0 1 0\n");
    return 0;
}

static int remove_root(void **state)
{
    (void) state;
    return remove_tree(root);
}

static const struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };

static void of_the_system(void **state)
{
    (void) state;
    MemoryInfo m = memory_info(root, &unlimited);
    assert_true(m.free == 4000000ull << 10 && m.total == 8000000ull << 10);
}

/* The tightest limit of a group and its parents counts; page cache of read files does not. */
static void of_groups(void **state)
{
    (void) state;
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/memory.max", "3000000000\n");
    put("/sys/fs/cgroup/a/memory.current", "1500000000\n");
    put("/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 1000000000\n");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/memory.current", "5\n");
    MemoryInfo m = memory_info(root, &unlimited);
    assert_true(m.free == 2500000000ull && m.total == 3000000000ull);
    put("/sys/fs/cgroup/memory.max", "1000000\n");   /* the container's own */
    put("/sys/fs/cgroup/memory.current", "2000000\n");
    assert_true(memory_info(root, &unlimited).free == 0);
    put("/proc/self/cgroup", "5:memory:/x\n4:cpu:/y\n");
    put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2000000000\n");
    put("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "500000000\n");
    put("/sys/fs/cgroup/memory/x/memory.stat", "total_inactive_file 100000000\n");
    m = memory_info(root, &unlimited);
    assert_true(m.free == 1600000000ull && m.total == 2000000000ull);
}

static void of_the_process(void **state)
{
    (void) state;
    const uint64_t used = 100000 * (uint64_t) sysconf(_SC_PAGESIZE);
    put("/proc/self/cgroup", "");
    MemoryInfo m = memory_info(root, &(struct rlimit) { used + 12345, RLIM_INFINITY });
    assert_true(m.free == 12345 && m.total == used + 12345);
    assert_true(memory_info(root, &(struct rlimit) { used - 1, RLIM_INFINITY }).free == 0);
    m = memory_info("/nonexistent", &unlimited);
    assert_true(m.free == 0 && m.total == 0);
}

static void nodes(void **state)
{
    (void) state;
    static const struct { const char *list; uint64_t bits; } cases[] = {
        { "0\n", 1 }, { "0-1\n", 3 }, { "0,2\n", 5 }, { "0-1,4-6,9\n", 0x273 }, { "63\n", 1ull << 63 },
        { "64-70\n", 0 }, { "62-70\n", 3ull << 62 }, { "\n", 0 }, { "", 0 }, { "x", 0 }, { "3-1\n", 0 }, { "1,", 2 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put("/sys/devices/system/node/has_memory", cases[i].list);
        if (memory_nodes(root) != cases[i].bits)
            fail_msg("'%s': %#llx", cases[i].list, (unsigned long long) memory_nodes(root));
    }
    assert_true(memory_nodes("/nonexistent") == 0);
    /* Pages of all nodes of this machine can be used; of a node that is not there the system gives none. */
    const size_t bytes = 8 << 20;
    const uint64_t here = memory_nodes("");
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    if (here && memory_spread(p, bytes, here)) assert_false(memory_spread(p, bytes, ~here & -(~here)));
    memset(p, 1, bytes);
    munmap(p, bytes);
}

/* A backend with little memory left: a weight, a session or a step too many is refused, naming the sizes and what would
 * fit, and taken if the caller insists. */
static uint64_t left;
static void little(Backend *b, uint64_t *there, uint64_t *total) { (void) b, *there = left, *total = left; }

static void refused(void **state)
{
    (void) state;
    RigOptions o = rig_kind(1, false);
    PublicRig p;
    rt_error e;
    Error err = { 0 };
    rt_session *s;
    rt_step *st;
    rt_needs n;
    public_files(&p, &o);
    rt_options ro = RT_OPTIONS(.model = p.model, .threads = 1, .kv_k = "f32");
    const rt_session_options so = RT_SESSION_OPTIONS(.ctx = 1000);
    assert_int_equal(rt_plan(&ro, &so, NULL, NULL, NULL, &n, sizeof n, &e), RT_OK);
    assert_true(n.ctx == 1000 && n.ctx_train == 2048 && n.model > 0 && n.session > 0 && n.step > 0 && n.drafter == 0);
    for (int32_t over = 0; over < 2; over++) {
        ro.overcommit = over;
        p.be = named_backend(&ro);
        p.be->memory = little;
        left = n.model / 2;
        Status code = engine_open(&p.g, stages_one(p.be), ENGINE_RUNS, &ro, &err);
        assert_int_equal(code, over ? ST_OK : ST_MEMORY);
        if (!over) {
            assert_non_null(strstr(err.text, "weights take"));
            p.be = named_backend(&ro);
            p.be->memory = little;
            left = n.model;
            assert_ok(engine_open(&p.g, stages_one(p.be), ENGINE_RUNS, &ro, &err), &err);
        }
        left = n.session / 2;
        assert_int_equal(rt_session_new(&s, p.g, &so, &e), over ? RT_OK : RT_ENOMEM);
        if (!over && !strstr(e.text, "enough for about 500 tokens")) fail_msg("%s", e.text);
        if (over) rt_session_free(s);
        left = n.session;
        assert_int_equal(rt_session_new(&s, p.g, &so, &e), RT_OK);
        rt_session_free(s);
        left = n.step / 2;
        assert_int_equal(rt_step_new(&st, p.g, NULL, &e), over ? RT_OK : RT_ENOMEM);
        if (over) rt_step_free(st);
        left = n.step;
        assert_int_equal(rt_step_new(&st, p.g, NULL, &e), RT_OK);
        rt_step_free(st);
        rt_close(p.g);
        p.g = NULL;
    }
    public_close(&p);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = { cmocka_unit_test(of_the_system), cmocka_unit_test(of_groups),
                                        cmocka_unit_test(of_the_process), cmocka_unit_test(nodes),
                                        cmocka_unit_test(refused) };
    return cmocka_run_group_tests_name("memory", tests, make_root, remove_root);
}
