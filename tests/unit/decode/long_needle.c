/* test_needle.c at 262,144 tokens, for `make test-long`: some minutes. */
#include "needle.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

enum { LENGTH = 262144 };

static void halves(void **state) { (void) state; needles_are_found(LENGTH, 32, T_F16, T_F16, 0); }
static void eight_and_four_bits(void **state) { (void) state; needles_are_found(LENGTH, 32, T_Q8_0, T_Q4_0, 0); }
static void three_bits(void **state) { (void) state; needles_are_found(LENGTH, 128, T_TQ3_0, T_TQ3_0, 0); }

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = { cmocka_unit_test(halves), cmocka_unit_test(eight_and_four_bits),
                                        cmocka_unit_test(three_bits) };
    return cmocka_run_group_tests_name("long needle", tests, NULL, NULL);
}
