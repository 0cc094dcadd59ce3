/* test_registry.c - a backend that only this program registers, selected by name through the public options. */
#include <string.h>

#include "model_helper.h"
#include "ratoon.h"

static bool there(void) { return false; }          /* "auto" does not choose it */

static Status open_device(Backend **out, const char *detail, const BackendOptions *o, Error *err)
{
    Backend *cpu;
    TRY(backend_open(&cpu, cpu_named(detail), o, err));
    return device_backend_open(out, cpu, err);
}

static const BackendEntry device = { .name = "device", .there = there, .open = open_device };
const BackendEntry *const backends_linked[] = { &device, NULL };

static void say(const rt_options *o, int32_t *text, char *backend)
{
    rt_error e;
    rt_engine *g;
    rt_session *s;
    rt_step *st;
    rt_block b;
    if (rt_open(&g, o, &e) != RT_OK) fail_msg("%s", e.text);
    rt_property(g, "backend", backend, 32);
    assert_int_equal(rt_session_new(&s, g, &RT_SESSION_OPTIONS(.ctx = 100), &e), RT_OK);
    assert_int_equal(rt_step_new(&st, g, &RT_STEP_OPTIONS(.budget = 12), &e), RT_OK);
    assert_int_equal(rt_prompt(s, (const int32_t[]) { 5, 1, 7 }, 3), RT_OK);
    for (int32_t n = 0; n < TEXT;) {
        assert_int_equal(rt_next(st, s, &b), RT_OK);
        for (int32_t i = 0; i < b.n && n < TEXT; i++) text[n++] = b.token[i];
    }
    rt_session_free(s);
    rt_step_free(st);
    rt_close(g);
}

static void by_its_name(void **state)
{
    (void) state;
    PublicRig p;
    int32_t text[2][TEXT];
    char backend[32];
    rt_error e;
    rt_engine *g;
    RigOptions o = rig_with_draft(rig_kind(3, false), true);
    public_files(&p, &o);
    rt_options ro = RT_OPTIONS(.model = p.model, .draft = p.draft, .threads = 1);
    say(&ro, text[0], backend);
    assert_string_equal(backend, "cpu");
    ro.backend = "device:portable";
    say(&ro, text[1], backend);
    assert_string_equal(backend, "device");
    assert_same(text[1], text[0], sizeof text[0], "the text of the other backend");
    ro.backend = "device:mmx";
    assert_int_equal(rt_open(&g, &ro, &e), RT_EARG);
    ro.backend = "gpu";
    assert_int_equal(rt_open(&g, &ro, &e), RT_EUNSUPPORTED);
    assert_non_null(strstr(e.text, "'gpu', expected auto, cpu, cuda, device"));
    public_close(&p);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = { cmocka_unit_test(by_its_name) };
    return cmocka_run_group_tests_name("registry", tests, NULL, NULL);
}
