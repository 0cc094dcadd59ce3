/* test_expert_store.c - two readers of a store that want the same expert: one reads it, the other is told to wait and
 * then has it, and each of them counts it once, where it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/expert_store.h"              /* before cmocka.h, whose macro fail() would hide ours */

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXPERTS = 5, ROWS = 64, COLS = 64, VALUES = ROWS * COLS, EXPERT_BYTES = STACKS * VALUES * 4, SLOTS = 3 };

static float file[STACKS][EXPERTS][VALUES];

/* What is read for a reader is that expert's; releases nothing. */
static void take(ExpertReader *r, Pool *pool, int32_t expert)
{
    int32_t tag[EXPERT_LOADS];
    const uint8_t *at[EXPERT_LOADS], *none = NULL;
    Error err = { 0 };
    assert_int_equal(expert_reader_begin(r, 0, expert, 7, &none), EXPERT_BEGUN);
    assert_int_equal(expert_reader_arrived(r, pool, tag, at, &err), 1);
    assert_true(tag[0] == 7 && at[0] && err.code == ST_OK);
    for (int32_t p = 0; p < STACKS; p++)
        assert_memory_equal(at[0] + p * sizeof file[p][0], file[p][expert], sizeof file[p][0]);
}

static void choose(ExpertReader *r, int32_t expert)
{
    const uint8_t *at;
    expert_reader_choose(r, 0, &expert, (const int32_t[]) { 1 }, 1, 1, &at);
    assert_null(at);
}

static void counted(ExpertStore *s, int64_t pinned, int64_t ring, int64_t misses)
{
    StoreStats got;
    expert_store_stats(s, &got);
    assert_int_equal(got.pinned_hits, pinned);
    assert_int_equal(got.ring_hits, ring);
    assert_int_equal(got.misses, misses);
}

/* Of three slots two are pinned, which are filled first. */
static void read_by_another(void **state)
{
    (void) state;
    Tensor w[STACKS];
    Stacked stack = { .layer = 0 };
    StoreNeeds needs;
    ExpertStore *s;
    ExpertReader *a, *b;
    Pool *pool;
    Error err = { 0 };
    for (int32_t p = 0; p < STACKS; p++) {
        for (int32_t i = 0; i < EXPERTS * VALUES; i++) file[p][i / VALUES][i % VALUES] = (float) (i * STACKS + p);
        w[p] = (Tensor) { .type = T_F32, .rows = ROWS, .cols = COLS, .n = EXPERTS };
        stack.w[p] = &w[p];
        stack.source[p] = (Source) { .map = (const uint8_t *) file[p], .stride = sizeof file[p][0], .file = "test" };
    }
    const StoreOptions o = { .ram = SLOTS * EXPERT_BYTES + 4096, .io = STORE_MMAP, .ring = 1, .layers = 1, .used = 1 };
    assert_int_equal(expert_store_needs(&needs, &stack, 1, true, 16, 16, &o, &err), ST_OK);
    void *memory = malloc(needs.bytes);
    assert_non_null(memory);
    assert_int_equal(expert_store_open(&s, &stack, 1, true, memory, &o, &err), ST_OK);
    assert_int_equal(expert_reader_open(&a, s, &err), ST_OK);
    assert_int_equal(expert_reader_open(&b, s, &err), ST_OK);
    assert_int_equal(pool_open(&pool, 1, &err), ST_OK);
    for (int32_t e = 0; e < SLOTS; e++) {
        const uint8_t *at = NULL;
        choose(a, e);
        choose(b, e);
        take(a, pool, e);
        assert_int_equal(expert_reader_begin(b, 0, e, 0, &at), EXPERT_HELD);
        assert_memory_equal(at, file[0][e], sizeof file[0][e]);
        counted(s, e < 2 ? e + 1 : 2, e == 2, e + 1);
        expert_reader_release(a, 0, e, false);
        expert_reader_release(b, 0, e, false);
    }
    pool_close(pool);
    expert_reader_close(a);
    expert_reader_close(b);
    expert_store_close(s);
    free(memory);
}

static void write_file(const char *path, float first)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    file[0][0][0] = first;
    assert_int_equal(fwrite(file, sizeof file, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

/* A file that is not the mapped one any more is refused, and not read. */
static void replaced(void **state)
{
    (void) state;
    char path[] = "/tmp/ratoon-experts-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    Tensor w[STACKS];
    Stacked stack = { .layer = 0 };
    StoreNeeds needs;
    Error err = { 0 };
    for (int32_t p = 0; p < STACKS; p++) {
        w[p] = (Tensor) { .type = T_F32, .rows = ROWS, .cols = COLS, .n = EXPERTS };
        stack.w[p] = &w[p];
        stack.source[p] = (Source) { .map = (const uint8_t *) file[p], .stride = sizeof file[p][0], .file = path,
                                     .offset = (uint64_t) p * sizeof file[p] };
    }
    const StoreOptions o = { .ram = 4 * EXPERT_BYTES, .io = STORE_PREAD, .ring = 1, .layers = 1,
                             .used = 1 };
    assert_int_equal(expert_store_needs(&needs, &stack, 1, true, 16, 16, &o, &err), ST_OK);
    void *memory = malloc(needs.bytes);
    assert_non_null(memory);
    for (int32_t other = 0; other < 2; other++) {
        ExpertStore *s;
        write_file(path, 1);
        if (other) file[0][0][0] = 2;              /* what is mapped */
        const Status st = expert_store_open(&s, &stack, 1, true, memory, &o, &err);
        assert_int_equal(st, other ? ST_IO : ST_OK);
        if (other) assert_true(strncmp(err.text, path, strlen(path)) == 0 && strstr(err.text, ": was replaced"));
        else expert_store_close(s);
    }
    remove(path);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(read_by_another), cmocka_unit_test(replaced) };
    return cmocka_run_group_tests_name("expert_store", tests, NULL, NULL);
}
