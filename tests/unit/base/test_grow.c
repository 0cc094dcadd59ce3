/* test_grow.c - arrays and byte strings that grow: sizes that do not fit are refused, and the content survives. */
#include "base/bytes.h"
#include "base/grow.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

static void rooms(void **state)
{
    (void) state;
    assert_int_equal(grow_room(0, 1, 8), 8);
    assert_int_equal(grow_room(8, 8, 8), 8);
    assert_int_equal(grow_room(8, 9, 8), 16);
    assert_int_equal(grow_room(3, 100, 8), 192);
    assert_true(grow_room(0, SIZE_MAX, 8) == 0);
    assert_true(grow_room(0, SIZE_MAX / 2 + 1, 8) == SIZE_MAX / 2 + 1);
    assert_true(grow_room(0, SIZE_MAX / 2 + 2, 8) == 0);
}

static void arrays(void **state)
{
    (void) state;
    int32_t *a = NULL;
    size_t cap = 0;
    for (int32_t i = 0; i < 1000; i++) {
        assert_true(grow_to(&a, &cap, (size_t) i + 1, 4, sizeof *a));
        assert_true(cap > (size_t) i);
        a[i] = i * i;
    }
    assert_int_equal(cap, 1024);
    int32_t *was = a;
    assert_false(grow_to(&a, &cap, SIZE_MAX / 4, 4, sizeof *a));       /* the count fits, its bytes do not */
    assert_false(grow_to(&a, &cap, SIZE_MAX, 4, sizeof *a));           /* the count does not fit either */
    assert_ptr_equal(a, was);
    assert_int_equal(cap, 1024);
    for (int32_t i = 0; i < 1000; i++) assert_int_equal(a[i], i * i);
    free(a);
}

static void strings(void **state)
{
    (void) state;
    Bytes b = { 0 };
    bytes_put(&b, NULL, 0);
    assert_null(b.at);
    bytes_text(&b, "one");
    bytes_char(&b, ',');
    bytes_put(&b, " two\0", 5);
    assert_int_equal(b.n, 9);
    assert_memory_equal(b.at, "one, two", 9);
    assert_true(bytes_room(&b, 500));
    assert_true(b.cap >= 509 && b.n == 9);
    assert_false(bytes_room(&b, SIZE_MAX));
    assert_true(b.failed);
    bytes_text(&b, "three");                                           /* it is unchanged */
    assert_false(bytes_room(&b, 1));
    assert_int_equal(b.n, 9);
    assert_memory_equal(b.at, "one, two", 9);
    bytes_free(&b);
    assert_true(!b.at && !b.failed && b.n == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(rooms), cmocka_unit_test(arrays), cmocka_unit_test(strings) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
