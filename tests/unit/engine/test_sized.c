/* Structs that begin with their size, from programs built with an older or a newer header: sized_read with a struct
 * that had three versions, and every function of ratoon.h that takes or fills such a struct. */
#include "engine/sized.h"
#include "model_helper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { size_t size; int32_t a, b; } First;
typedef struct { size_t size; int32_t a, b; double c; } Second;
typedef struct { size_t size; int32_t a, b; double c; const char *d; } Third;

static const SizedType third = { "rt_toy", "RT_TOY_INIT",
                                 (const size_t[]) { sizeof(First), sizeof(Second), sizeof(Third), 0 } };

static void older_structs(void **state)
{
    (void) state;
    Error err = { 0 };
    Third out;
    const Third all = { sizeof all, 1, 2, 3, "d" };
    for (int32_t i = 0; i < 3; i++) {
        uint8_t bytes[sizeof(Third) + 1];                          /* nothing behind it is read */
        memcpy(bytes, &all, sizeof all);
        memcpy(bytes, &third.sizes[i], sizeof third.sizes[i]);
        memset(&out, 0xff, sizeof out);
        assert_ok(sized_read(&out, &third, bytes, &err), &err);
        assert_int_equal(out.size, sizeof out);
        assert_true(out.a == 1 && out.b == 2 && out.c == (i > 0 ? 3 : 0));
        assert_ptr_equal(out.d, i > 1 ? all.d : NULL);
    }
    memset(&out, 0xff, sizeof out);
    assert_ok(sized_read(&out, &third, NULL, &err), &err);
    assert_true(out.size == sizeof out && out.a == 0 && out.b == 0 && out.c == 0 && out.d == NULL);
}

static void newer_structs(void **state)
{
    (void) state;
    Error err = { 0 };
    Third out;
    for (size_t more = sizeof(size_t); more <= 4096 - sizeof out; more *= 3) {
        uint8_t *bytes = calloc(1, sizeof out + more);
        memcpy(bytes, &(Third) { sizeof out + more, 1, 2, 3, "d" }, sizeof out);
        assert_ok(sized_read(&out, &third, bytes, &err), &err);
        assert_true(out.size == sizeof out && out.a == 1 && out.c == 3 && out.d);
        for (int32_t last = 0; last < 2; last++) {
            size_t at = last ? sizeof out + more - 1 : sizeof out;
            bytes[at] = 1;
            assert_int_equal(sized_read(&out, &third, bytes, &err), ST_ARG);
            assert_non_null(strstr(err.text, "rt_toy.size: "));
            assert_non_null(strstr(err.text, "newer library"));
            bytes[at] = 0;
        }
        free(bytes);
    }
}

/* Nothing behind the size is read from these. */
static void sizes_that_no_version_had(void **state)
{
    (void) state;
    static const size_t wrong[] = { 0, 1, 4, sizeof(First) - 8, sizeof(First) + 1, sizeof(Second) + 4,
                                    sizeof(Third) - 1, sizeof(Third) + 1, sizeof(Third) + 4, 4096 + 8, SIZE_MAX,
                                    SIZE_MAX - 7 };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        size_t *only = malloc(sizeof *only);
        Error err = { 0 };
        Third out;
        char want[80];
        *only = wrong[i];
        snprintf(want, sizeof want, "rt_toy.size: %zu, expected %zu (use RT_TOY_INIT)", wrong[i], sizeof out);
        assert_int_equal(sized_read(&out, &third, only, &err), ST_ARG);
        assert_string_equal(err.text, want);
        free(only);
    }
}

static void structs_that_are_filled(void **state)
{
    (void) state;
    const Third all = { 1, 2, 3, 4, "d" };
    for (size_t room = 0; room <= sizeof all + 16; room++) {
        uint8_t *out = malloc(room + 1);
        memset(out, 0xff, room + 1);
        sized_write(out, room, &all, sizeof all);
        for (size_t i = 0; i < room; i++)
            assert_int_equal(out[i], i < sizeof all ? ((const uint8_t *) &all)[i] : 0);
        assert_int_equal(out[room], 0xff);
        free(out);
    }
}

/* ---- the functions that take or fill one ---- */

enum { TAKERS = 8 };
typedef struct { size_t size; uint8_t rest[400]; } Bytes;
typedef struct { PublicRig p; rt_session *s; rt_step *st; rt_engine *g; } Desk;

static size_t size_of(int32_t who)
{
    static const size_t sizes[TAKERS] = { sizeof(rt_options), sizeof(rt_options), sizeof(rt_session_options),
                                          sizeof(rt_step_options), sizeof(rt_session_options), sizeof(rt_step_options),
                                          sizeof(rt_sampling), sizeof(rt_diffusion) };
    return sizes[who];
}

static const char *name_of(int32_t who)
{
    static const char *const names[TAKERS] = { "rt_options", "rt_options", "rt_session_options", "rt_step_options",
                                               "rt_session_options", "rt_step_options", "rt_sampling",
                                               "rt_diffusion" };
    return names[who];
}

static rt_status call(Desk *k, int32_t who, const Bytes *bytes, rt_error *e)
{
    const void *o = bytes;
    const rt_options ro = RT_OPTIONS(.model = k->p.model, .threads = 1);
    rt_session *s = NULL;
    rt_step *st = NULL;
    rt_status status = RT_OK;
    switch (who) {
    case 0: status = rt_open(&k->g, o, e); rt_close(k->g); break;
    case 1: status = rt_plan(o, NULL, NULL, NULL, NULL, NULL, 0, e); break;
    case 2: status = rt_plan(&ro, o, NULL, NULL, NULL, NULL, 0, e); break;
    case 3: status = rt_plan(&ro, NULL, o, NULL, NULL, NULL, 0, e); break;
    case 4: status = rt_session_new(&s, k->p.g, o, e); rt_session_free(s); break;
    case 5: status = rt_step_new(&st, k->p.g, o, e); rt_step_free(st); break;
    case 6: status = rt_sampling_set(k->s, o); break;
    case 7: status = rt_diffusion_set(k->s, o); break;
    }
    if (who > 5) snprintf(e->text, sizeof e->text, "%s", rt_session_error(k->s));
    return status;
}

static Bytes fresh(const Desk *k, int32_t who)
{
    Bytes b = { .size = size_of(who) };
    const rt_options o = RT_OPTIONS(.model = k->p.model, .threads = 1);
    if (who < 2) memcpy(&b, &o, sizeof o);
    return b;
}

static void every_function(void **state)
{
    (void) state;
    Desk k = { 0 };
    RigOptions o = rig_options(TINY_DIFFUSION, 0, false);
    rt_error e;
    public_open(&k.p, &o, NULL);
    assert_int_equal(rt_session_new(&k.s, k.p.g, NULL, &e), RT_OK);
    for (int32_t who = 0; who < TAKERS; who++) {
        Bytes b = fresh(&k, who);
        char want[100];
        if (call(&k, who, &b, &e) != RT_OK) fail_msg("%s as it is: %s", name_of(who), e.text);
        b.size += 16;
        if (call(&k, who, &b, &e) != RT_OK) fail_msg("%s of a newer program: %s", name_of(who), e.text);
        ((uint8_t *) &b)[size_of(who) + 15] = 1;
        assert_int_equal(call(&k, who, &b, &e), RT_EARG);
        snprintf(want, sizeof want, "%s.size: %zu, but this library knows %zu bytes", name_of(who), b.size,
                 size_of(who));
        assert_true(strncmp(e.text, want, strlen(want)) == 0);
        for (int32_t i = 0; i < 2; i++) {
            b = fresh(&k, who);
            b.size = i ? size_of(who) - 4 : 0;
            assert_int_equal(call(&k, who, &b, &e), RT_EARG);
            snprintf(want, sizeof want, "%s.size: %zu, expected %zu (use RT_", name_of(who), b.size, size_of(who));
            assert_true(strncmp(e.text, want, strlen(want)) == 0);
        }
    }
    rt_session_free(k.s);
    public_close(&k.p);
}

/* Fields that do not fit are not written, unknown ones are 0. */
static void results_of_other_sizes(void **state)
{
    (void) state;
    Desk k = { 0 };
    RigOptions o = rig_kind(0, false);
    rt_error e;
    rt_block b;
    rt_stats whole;
    rt_needs needs;
    uint8_t out[512];
    public_open(&k.p, &o, NULL);
    assert_int_equal(rt_session_new(&k.s, k.p.g, NULL, &e), RT_OK);
    assert_int_equal(rt_step_new(&k.st, k.p.g, NULL, &e), RT_OK);
    assert_int_equal(rt_prompt(k.s, (const int32_t[]) { 1, 2, 3 }, 3), RT_OK);
    assert_int_equal(rt_next(k.st, k.s, &b), RT_OK);
    rt_stats_get(k.s, &whole, sizeof whole);
    assert_int_equal(whole.prompt_tokens, 3);
    assert_int_equal(whole.generated, b.n);
    static const size_t rooms[] = { 0, 8, sizeof whole - 8, sizeof whole, sizeof whole + 40 };
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        memset(out, 0xff, sizeof out);
        rt_stats_get(k.s, (rt_stats *) (void *) out, rooms[i]);
        for (size_t j = 0; j < sizeof out; j++)
            assert_int_equal(out[j], j >= rooms[i] ? 0xff : j < sizeof whole ? ((uint8_t *) &whole)[j] : 0);
    }
    const rt_options ro = RT_OPTIONS(.model = k.p.model, .threads = 1);
    memset(&needs, 0xff, sizeof needs);
    assert_int_equal(rt_plan(&ro, NULL, NULL, NULL, NULL, &needs, offsetof(rt_needs, drafter), &e), RT_OK);
    assert_true(needs.model > 0 && needs.model < UINT64_MAX);
    assert_true(needs.drafter == UINT64_MAX && needs.ctx_train == -1);
    rt_step_free(k.st);
    rt_session_free(k.s);
    public_close(&k.p);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(older_structs), cmocka_unit_test(newer_structs), cmocka_unit_test(sizes_that_no_version_had),
        cmocka_unit_test(structs_that_are_filled), cmocka_unit_test(every_function),
        cmocka_unit_test(results_of_other_sizes),
    };
    return cmocka_run_group_tests_name("sized", tests, NULL, NULL);
}
