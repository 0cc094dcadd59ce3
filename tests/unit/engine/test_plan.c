/* The plan is true: its parts are the bytes that the same engine, session and step then allocate, on every backend, and
 * nothing is allocated later, however wide the passes become. */
#include "model_helper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { struct { char owner[16], name[48]; size_t bytes; } part[48]; int32_t n; } Parts;

static void note(void *ud, const char *owner, const char *name, size_t bytes)
{
    Parts *p = ud;
    assert_true(p->n < 48);
    for (int32_t i = 0; i < p->n; i++)
        assert_false(strcmp(p->part[i].name, name) == 0 && strcmp(p->part[i].owner, owner) == 0);
    snprintf(p->part[p->n].name, sizeof p->part[0].name, "%s", name);
    snprintf(p->part[p->n].owner, sizeof p->part[0].owner, "%s", owner);
    p->part[p->n++].bytes = bytes;
}

/* The sum over all owners. */
static size_t planned(const Parts *p, const char *name)
{
    size_t sum = 0;
    for (int32_t i = 0; i < p->n; i++)
        if (strcmp(p->part[i].name, name) == 0) sum += p->part[i].bytes;
    return sum;
}

static rt_options options_of(const PublicRig *p, const RigOptions *o)
{
    return RT_OPTIONS(.model = p->model, .draft = o->draft ? p->draft : NULL, .kv_k = type_info(o->kv)->name,
                      .kv_v = o->kv_v ? type_info(o->kv_v)->name : NULL, .threads = 1);
}

/* Decodes with as many rows as any budget allows, then plainly. */
static void decode_a_lot(rt_engine *g, const rt_session_options *so, rt_step *st, rt_session *s)
{
    int32_t text[100];
    rt_block b;
    Dice d = { tiny_key(1, "plan"), 0 };
    int32_t n = so->ctx > 64 ? 60 : 5;
    random_tokens(&d, n, g->model->vocab, text);
    for (int32_t turn = 0; turn < 2; turn++) {
        assert_int_equal(rt_prompt(s, text, (size_t) n), RT_OK);
        rt_sampling_set(s, &RT_SAMPLING(.temperature = (float) turn, .max_tokens = 50));
        for (rt_status code = RT_OK; code == RT_OK;) {
            code = rt_next(st, s, &b);
            if (code != RT_OK && code != RT_END) fail_msg("step: %s%s", rt_step_error(st), rt_session_error(s));
        }
    }
}

static void check_plan(const RigOptions *o, const rt_session_options *so, const rt_step_options *sto)
{
    PublicRig p;
    Parts plan = { 0 };
    rt_error e;
    Error err = { 0 };
    public_files(&p, o);
    rt_options ro = options_of(&p, o);
    if (rt_plan(&ro, so, sto, note, &plan, NULL, 0, &e) != RT_OK) fail_msg("plan: %s", e.text);

    Backend *cpu, *be;
    cpu = named_backend(&ro);
    assert_int_equal(planned(&plan, "backend workspace"), cpu->fork_bytes(cpu, 0));
    assert_ok(device_backend_open(&be, cpu, &err), &err);
    be->pick = NULL;                               /* the CPU has none, and results belong to scratch */
    DeviceLog *log = device_log(be);
    rt_session *s;
    rt_step *st;
    assert_ok(engine_open(&p.g, stages_one(be), ENGINE_RUNS, &ro, &err), &err);
    if (rt_session_new(&s, p.g, so, &e) != RT_OK || rt_step_new(&st, p.g, sto, &e) != RT_OK) fail_msg("%s", e.text);
    size_t sum = 0;
    for (int32_t i = 0; i < log->n_parts; i++) {
        if (log->part[i].bytes != planned(&plan, log->part[i].name))
            fail_msg("%s: allocated %zu bytes, planned %zu", log->part[i].name, log->part[i].bytes,
                     planned(&plan, log->part[i].name));
        sum += log->part[i].bytes;
    }
    size_t all = 0;
    for (int32_t i = 0; i < plan.n; i++) all += plan.part[i].bytes;
    assert_int_equal(planned(&plan, "n-gram index"), so->ngram < 0 ? 0 : ngram_bytes(so->ctx));
    assert_int_equal(all - planned(&plan, "backend workspace") - planned(&plan, "tables") -
                     planned(&plan, "n-gram index") - planned(&plan, "text") - planned(&plan, "trees"), sum);
    assert_int_equal(log->live, sum);
    assert_true(planned(&plan, "tables") < 64 << 20);  /* measured as the process's growth, which may be 0 here */
    int64_t allocs = log->allocs;
    decode_a_lot(p.g, so, st, s);
    assert_int_equal(log->allocs, allocs);
    assert_int_equal(log->live, sum);
    assert_true(st->spec.step.peak <= st->spec.step.lim.scratch_bytes);
    rt_session_free(s);
    rt_step_free(st);
    public_close(&p);
}

static void plan_is_what_is_allocated(void **state)
{
    (void) state;
    const rt_session_options sessions[] = { RT_SESSION_OPTIONS(.ctx = 200),
                                            RT_SESSION_OPTIONS(.ctx = 130, .draft_ctx = 40, .checkpoints = 8),
                                            RT_SESSION_OPTIONS(.ctx = 60, .checkpoints = -1) };
    const rt_step_options steps[] = { RT_STEP_OPTIONS(.budget = 63, .chunk = 300),
                                      RT_STEP_OPTIONS(.budget = 30, .chunk = 7, .sessions = 4),
                                      RT_STEP_OPTIONS(.budget = -1, .chunk = 64), RT_STEP_OPTIONS(.sessions = 20) };
    for (int32_t kind = 0; kind < RIG_KINDS; kind++)
        for (int32_t draft = 0; draft < 3; draft++) {
            RigOptions o = rig_kind(kind, false);
            if (draft) o = rig_with_draft(o, draft == 2);
            if (kind == 2) o.kv = T_F16, o.tm.type = o.tm.type_head = T_Q8_0;
            if (kind == 1 && draft)
                o.tm.head_dim = 128, o.kv = draft == 1 ? T_TQ3_0 : T_Q5_1, o.kv_v = draft == 1 ? T_Q4_0 : T_BF16;
            check_plan(&o, &sessions[(kind + draft) % 3], &steps[(kind * 3 + draft) % 4]);
        }
    for (int32_t i = 0; i < 4; i++) {
        RigOptions o = rig_options(TINY_DIFFUSION, 0, false);
        rt_session_options so = sessions[i % 3];
        if (i & 1) o.tm.canvas = CANVAS_MAX;
        so.ngram = -1;                             /* such a session has none */
        check_plan(&o, &so, &steps[i]);
    }
}

/* Weights that are read from the map are left out of the plan, and nothing else changes. */
static void plan_without_repacking(void **state)
{
    (void) state;
    RigOptions o = rig_kind(2, false);
    PublicRig p;
    public_files(&p, &o);
    rt_options ro = options_of(&p, &o);
    Parts packed = { 0 }, mapped = { 0 };
    rt_error e;
    rt_session_options so = RT_SESSION_OPTIONS(.ctx = 100);
    if (rt_plan(&ro, &so, NULL, note, &packed, NULL, 0, &e) != RT_OK) fail_msg("plan: %s", e.text);
    ro.no_repack = true;
    if (rt_plan(&ro, &so, NULL, note, &mapped, NULL, 0, &e) != RT_OK) fail_msg("plan: %s", e.text);
    assert_true(planned(&packed, "weights") > 0);
    assert_int_equal(planned(&mapped, "weights"), 0);
    for (int32_t i = 0; i < packed.n; i++)
        if (strcmp(packed.part[i].name, "weights") != 0 && strcmp(packed.part[i].name, "tables") != 0)
            assert_int_equal(planned(&mapped, packed.part[i].name), packed.part[i].bytes);
    p.g = NULL;
    public_close(&p);
}

/* What a step cannot be is refused by plan and step alike, before its memory is counted; so is a model without name. */
static void refused_steps(void **state)
{
    (void) state;
    const struct { rt_step_options o; const char *says; } bad[] = {
        { RT_STEP_OPTIONS(.threads = -1), "threads: -1, expected 1 to 256 (0: default)" },
        { RT_STEP_OPTIONS(.threads = 257), "threads: 257" }, { RT_STEP_OPTIONS(.threads = INT32_MAX), "threads: " },
        { RT_STEP_OPTIONS(.chunk = -1), "chunk: -1" }, { RT_STEP_OPTIONS(.budget = 64), "budget: 64" } };
    RigOptions o = rig_kind(1, false);
    PublicRig p;
    rt_step *st;
    rt_error e;
    public_open(&p, &o, NULL);
    rt_options ro = options_of(&p, &o);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(rt_step_new(&st, p.g, &bad[i].o, &e), RT_EARG);
        if (!strstr(e.text, bad[i].says)) fail_msg("%s, expected %s", e.text, bad[i].says);
        assert_int_equal(rt_plan(&ro, NULL, &bad[i].o, NULL, NULL, NULL, 0, &e), RT_EARG);
        if (!strstr(e.text, bad[i].says)) fail_msg("%s, expected %s", e.text, bad[i].says);
    }
    ro.model = "";
    assert_int_equal(rt_plan(&ro, NULL, NULL, NULL, NULL, NULL, 0, &e), RT_EARG);
    assert_string_equal(e.text, "model: no file was given");
    public_close(&p);
}

static size_t kv_part(const PublicRig *p, const char *k, const char *v, int32_t ctx)
{
    Parts plan = { 0 };
    rt_error e;
    rt_options ro = RT_OPTIONS(.model = p->model, .kv_k = k, .kv_v = v, .threads = 1);
    if (rt_plan(&ro, &RT_SESSION_OPTIONS(.ctx = ctx), NULL, note, &plan, NULL, 0, &e) != RT_OK)
        fail_msg("%s/%s: %s", k, v, e.text);
    return planned(&plan, "keys/values");
}

/* Bytes per position of every pair, and of 262,144 positions; types with integer codes take whole panels, 16 slots of
 * keys and 128 of values. Types that do not divide the heads are refused by name. */
static void keys_and_values_as_told(void **state)
{
    (void) state;
    static const struct { const char *name; int32_t per_128, keys, values; } kinds[] = {
        { "f16", 256, 1, 1 }, { "bf16", 256, 1, 1 }, { "q8_0", 136, 16, 128 }, { "q5_1", 96, 16, 128 },
        { "q5_0", 88, 16, 128 }, { "q4_1", 80, 16, 128 },
        { "q4_0", 72, 16, 128 }, { "tq3_0", 56, 1, 1 } };
    PublicRig p;
    RigOptions o = rig_options(TINY_QWEN3, 1, false);
    o.tm.head_dim = 128;
    o.tm.context = 262144;
    public_files(&p, &o);
    size_t heads = (size_t) (o.tm.n_layer * o.tm.n_head_kv);
    for (int32_t k = 0; k < 8; k++)
        for (int32_t v = 0; v < 8; v++)
            for (int32_t ctx = 200; ctx <= 262144; ctx += 262144 - 200) {
                const int32_t slots = ctx + ROWS_DECODE, ku = kinds[k].keys, vu = kinds[v].values;
                const size_t want = (size_t) (kinds[k].per_128 * ((slots + ku - 1) / ku * ku)) +
                                    (size_t) (kinds[v].per_128 * ((slots + vu - 1) / vu * vu));
                assert_int_equal(kv_part(&p, kinds[k].name, kinds[v].name, ctx), heads * want);
            }
    public_close(&p);
    static const struct { const char *k, *v; int32_t width; const char *says; } bad[] = {
        { "q4_0", "tq3_0", 64,
          "the heads of layer 0 are 64 wide, expected a multiple of 128 for values of type TQ3_0" },
        { "q4_0", "f16", 16, "the heads of layer 0 are 16 wide, expected a multiple of 32 for keys of type Q4_0" },
        { "q4_k", "f16", 64, "kv_k: 'q4_k', expected f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or tq3_0" },
        { "f16", "i32", 64, "kv_v: 'i32', expected f32" } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Parts plan = { 0 };
        rt_error e;
        o.tm.head_dim = bad[i].width;
        public_files(&p, &o);
        assert_int_equal(rt_plan(&RT_OPTIONS(.model = p.model, .kv_k = bad[i].k, .kv_v = bad[i].v, .threads = 1),
                                 NULL, NULL, note, &plan, NULL, 0, &e), RT_EUNSUPPORTED);
        if (!strstr(e.text, bad[i].says)) fail_msg("'%s', expected '%s'", e.text, bad[i].says);
        public_close(&p);
    }
}

/* The planned scratch suffices for the widest passes: all sessions with trees and a chunk beside them. */
static void planned_scratch_is_enough(void **state)
{
    (void) state;
    enum { N = 6 };
    for (int32_t kind = 0; kind < RIG_KINDS; kind += 2) {
        PublicRig p;
        RigOptions o = rig_with_draft(rig_kind(kind, true), kind == 2);
        public_open(&p, &o, NULL);
        rt_step *st;
        rt_session *s[N];
        rt_block b[N];
        rt_error e;
        assert_int_equal(rt_step_new(&st, p.g, &RT_STEP_OPTIONS(.sessions = N, .chunk = 70, .budget = 63),
                                     &e), RT_OK);
        Dice d = { tiny_key(2, "wide"), 0 };
        for (int32_t i = 0; i < N; i++) {
            int32_t text[150];
            random_tokens(&d, 150, 96, text);
            assert_int_equal(rt_session_new(&s[i], p.g, &RT_SESSION_OPTIONS(.ctx = 300), &e), RT_OK);
            assert_int_equal(rt_prompt(s[i], text, 150), RT_OK);
        }
        for (int32_t step = 0; step < 30; step++)
            if (rt_step_run(st, s, b, N) != RT_OK) fail_msg("%s", rt_step_error(st));
        assert_int_equal(st->spec.step.peak, st->spec.step.lim.scratch_bytes);     /* and no more than enough */
        for (int32_t i = 0; i < N; i++) rt_session_free(s[i]);
        rt_step_free(st);
        public_close(&p);
    }
}

/* Every allocation of a session and a step fails once: one line of error, no leak, and the next attempt works. */
static void failed_allocations(void **state)
{
    (void) state;
    for (int32_t kind = 1; kind < RIG_KINDS; kind += 3) {
        PublicRig p;
        RigOptions o = rig_with_draft(rig_kind(kind, true), false);
        public_open(&p, &o, NULL);
        DeviceLog *log = device_log(p.be);
        int64_t live = log->live, failed = 0;
        for (int64_t at = 1;; at++) {
            rt_session *s = NULL;
            rt_step *st = NULL;
            rt_error e;
            log->alloc_fail_in = at;
            rt_status code = rt_session_new(&s, p.g, &RT_SESSION_OPTIONS(.ctx = 100), &e);
            if (code == RT_OK) code = rt_step_new(&st, p.g, NULL, &e);
            bool done = log->alloc_fail_in > 0;
            log->alloc_fail_in = 0;
            rt_session_free(s);
            rt_step_free(st);
            assert_int_equal(log->live, live);
            p.be->sync(p.be, NULL);
            if (done) {
                assert_int_equal(code, RT_OK);
                break;
            }
            assert_int_equal(code, RT_ENOMEM);
            assert_non_null(strstr(e.text, ": no memory for "));
            failed++;
        }
        assert_true(failed > 10);
        public_close(&p);
    }
}

/* Every allocation of a model and its drafter fails once. */
static void failed_loads(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < RIG_KINDS; kind += 2) {
        PublicRig p;
        RigOptions o = rig_with_draft(rig_kind(kind, true), kind == 2);
        public_files(&p, &o);
        rt_options ro = options_of(&p, &o);
        Status code = ST_MEMORY;
        int64_t at = 1;
        for (; code != ST_OK; at++) {
            Backend *cpu, *be;
            Error err = { 0 };
            cpu = named_backend(&ro);
            assert_ok(device_backend_open(&be, cpu, &err), &err);
            device_log(be)->alloc_fail_in = at;
            code = engine_open(&p.g, stages_one(be), ENGINE_RUNS, &ro, &err);
            if (code == ST_OK) break;
            assert_null(p.g);
            assert_int_equal(code, ST_MEMORY);
            assert_non_null(strstr(err.text, ": no memory for "));
        }
        assert_true(at > 20);
        public_close(&p);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_is_what_is_allocated), cmocka_unit_test(plan_without_repacking),
        cmocka_unit_test(refused_steps),
        cmocka_unit_test(keys_and_values_as_told), cmocka_unit_test(planned_scratch_is_enough),
        cmocka_unit_test(failed_allocations),
        cmocka_unit_test(failed_loads),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
