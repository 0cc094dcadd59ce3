/* A note is found again after 32,768 tokens, whatever the type of keys and values (262,144: long_needle.c). */
#include "needle.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

/* Sanitizers are slow, and what they look for does not depend on the length. */
#if defined(__SANITIZE_ADDRESS__)
enum { LENGTH = 9000 };
#else
enum { LENGTH = 32768 };
#endif

static void halves(void **state) { (void) state; needles_are_found(LENGTH, 32, T_F16, T_F16, 2); }
static void eight_and_four_bits(void **state) { (void) state; needles_are_found(LENGTH, 32, T_Q8_0, T_Q4_0, 2); }
static void three_bits(void **state) { (void) state; needles_are_found(LENGTH, 128, T_TQ3_0, T_TQ3_0, 2); }

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = { cmocka_unit_test(halves), cmocka_unit_test(eight_and_four_bits),
                                        cmocka_unit_test(three_bits) };
    return cmocka_run_group_tests_name("needle", tests, NULL, NULL);
}
