/* The thread pool: every task runs once, in runs of all sizes, back to back, with threads asleep and awake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/pool.h"                             /* before cmocka.h, whose macro fail() would hide ours */

#include <cmocka.h>

enum { N = 1000 };
typedef struct { atomic_int hits[N]; atomic_int bad_thread; int32_t threads; } Count;

static void count(void *arg, int32_t i, int32_t thread)
{
    Count *c = arg;
    atomic_fetch_add(&c->hits[i], 1);
    if (thread < 0 || thread >= c->threads) atomic_fetch_add(&c->bad_thread, 1);
}

static void every_task_runs_once(void **state)
{
    (void) state;
    static const int32_t threads[] = { 1, 2, 3, 8 };
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        Pool *p;
        Error err = { 0 };
        assert_int_equal(pool_open(&p, threads[t], &err), ST_OK);
        assert_int_equal(pool_threads(p), threads[t]);
        for (int32_t run = 0; run < 3000; run++) {
            static Count c;
            for (int32_t i = 0; i < N; i++) atomic_store(&c.hits[i], 0);
            atomic_store(&c.bad_thread, 0);
            c.threads = threads[t];
            int32_t n = run % 37;
            if (run % 1000 == 999) {
                usleep(20000);                     /* long enough for the workers to fall asleep */
                n = N;
            }
            pool_run(p, count, &c, n);
            for (int32_t i = 0; i < N; i++) assert_int_equal(atomic_load(&c.hits[i]), i < n);
            assert_int_equal(atomic_load(&c.bad_thread), 0);
        }
        pool_close(p);
    }
}

static void without_a_pool_the_caller_works(void **state)
{
    (void) state;
    static Count c;
    c.threads = 1;
    pool_run(NULL, count, &c, N);
    for (int32_t i = 0; i < N; i++) assert_int_equal(atomic_load(&c.hits[i]), 1);
    pool_close(NULL);
}

static void bad_thread_counts_are_refused(void **state)
{
    (void) state;
    Pool *p;
    Error err = { 0 };
    assert_int_equal(pool_open(&p, -1, &err), ST_ARG);
    assert_non_null(p ? NULL : err.text);
    assert_int_equal(pool_open(&p, 257, &err), ST_ARG);
    assert_int_equal(pool_open(&p, 100000, &err), ST_ARG);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(without_a_pool_the_caller_works),
        cmocka_unit_test(bad_thread_counts_are_refused),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
