/* test_cost.c - the cost table: what it predicts from a plain pass and a chunk, how fast it learns, and what it takes
 * over from another run. */
#include "decode/cost.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay.h"

/* A plain pass and a chunk predict all widths of every machine that was measured, whichever comes first, and whether
 * the passes are of one session or of four. */
static void shape_of_a_pass(void **state)
{
    (void) state;
    for (int32_t k = 0; k < MACHINES; k++)
        for (int32_t way = 0; way < 3; way++) {
            const Machine *m = &machines[k];
            const int32_t narrow = way == 2 ? 4 : 1;
            Cost c;
            cost_reset(&c);
            if (way != 1) cost_chunk(&c, 64, 1e-3 * machine_pass(m, 64));
            assert_int_equal(cost_known(&c, 64), 2);
            for (int32_t i = 0; i < 3; i++) cost_pass(&c, narrow, 1e-3 * machine_pass(m, narrow));
            if (way == 1) cost_chunk(&c, 64, 1e-3 * machine_pass(m, 64));
            assert_int_equal(cost_known(&c, 64), 16 * narrow);
            assert_true(cost_ready(&c));
            for (int32_t rows = 1; rows <= ROWS_DECODE; rows++) {
                double off = (double) c.pass_ms[rows] / machine_pass(m, rows);
                if (off < 0.85 || off > 1.25)
                    fail_msg("%s, %d rows: predicted %.3f of the real time", m->name, rows, off);
            }
        }
}

/* Without a chunk the prediction is a guess, and passes are believed up to twice their width. */
static void without_a_chunk(void **state)
{
    (void) state;
    Cost c;
    cost_reset(&c);
    cost_guess_draft(&c, 0.25);
    assert_true(cost_draft_ms(&c, 1) == 0 && !cost_ready(&c));
    cost_chunk(&c, 7, 0.5);                                   /* too short to say anything */
    cost_pass(&c, 1, 0.010);
    assert_false(cost_ready(&c));
    cost_pass(&c, 1, 0.010);
    assert_true(cost_ready(&c));
    assert_true(fabsf(cost_draft_ms(&c, 1) - 2.5f) < 1e-4f);
    assert_true(c.pass_ms[8] > 12 && c.pass_ms[8] < 25 && c.pass_ms[64] > c.pass_ms[8]);
    assert_int_equal(cost_known(&c, 64), 2);
    cost_pass(&c, 8, 0.013);
    assert_int_equal(cost_known(&c, 64), 16);
    for (int32_t i = 0; i < 3; i++) cost_chunk(&c, 64, NAN);
    assert_int_equal(cost_known(&c, 64), 16);
}

/* The first passes touch memory for the first time: the fastest of three sets the scale, of proposals too. */
static void first_passes(void **state)
{
    (void) state;
    Cost c;
    cost_reset(&c);
    cost_pass(&c, 1, 0.030);
    cost_pass(&c, 1, 0.010);
    assert_true(fabsf(c.pass_ms[1] - 10) < 1e-3f && c.pass_ms[8] < 25);
    cost_pass(&c, 1, 0.011);
    assert_true(c.pass_ms[1] > 10 && c.pass_ms[1] < 11);
    cost_pass(&c, 1, 0.001);                                  /* from now on a single time changes little */
    assert_true(c.pass_ms[1] > 6);
    cost_draft(&c, 1, 0.030);
    cost_draft(&c, 1, 0.010);
    assert_true(fabsf(c.draft_ms - 10) < 1e-3f);
}

static void learned(Cost *c, const Machine *m, double speed)
{
    static const int32_t used[] = { 1, 4, 8, 16, 22 };
    cost_reset(c);
    cost_chunk(c, 64, 1e-3 * speed * machine_pass(m, 64));
    for (int32_t i = 0; i < 40; i++) {
        for (size_t k = 0; k < sizeof used / sizeof *used; k++)
            cost_pass(c, used[k], 1e-3 * speed * machine_pass(m, used[k]));
        cost_draft(c, 1, 1e-3 * speed * m->draft);
        cost_draft(c, 3, 1e-3 * speed * 2.5 * m->draft);
    }
}

/* What one run learned serves the next: on a machine that is three times as slow today, the first pass sets the scale
 * of everything. */
static void another_run(void **state)
{
    (void) state;
    Error err;
    char line[COST_TEXT];
    for (int32_t k = 0; k < MACHINES; k++) {
        const Machine *m = &machines[k];
        Cost first, c;
        learned(&first, m, 1);
        size_t n = cost_write(&first, line, sizeof line);
        assert_in_range(n, 20, sizeof line - 1);
        assert_int_equal(strlen(line), n);
        assert_int_equal(cost_write(&first, NULL, 0), n);
        cost_reset(&c);
        assert_int_equal(cost_read(&c, line, &err), ST_OK);
        assert_true(cost_ready(&c) && cost_known(&c, 64) == 64);
        cost_pass(&c, 8, 3e-3 * machine_pass(m, 8));
        assert_true(cost_ready(&c));
        for (int32_t rows = 1; rows <= ROWS_DECODE; rows++) {
            double by = (double) c.pass_ms[rows] / (double) first.pass_ms[rows];
            if (by < 2.9 || by > 3.1) fail_msg("%s, %d rows: %.3f times the earlier time", m->name, rows, by);
        }
        assert_true(fabsf(cost_draft_ms(&c, 3) / cost_draft_ms(&first, 3) - 3) < 0.1f);
        /* what it writes is what it knows */
        size_t again = cost_write(&c, line, sizeof line);
        assert_true(again > 0 && again < sizeof line);
        assert_int_equal(cost_read(&c, line, &err), ST_OK);
    }
    /* all widths and the longest numbers fit */
    Cost full;
    cost_reset(&full);
    for (int32_t rows = 1; rows <= ROWS_DECODE; rows++) cost_set_pass(&full, rows, 900);
    cost_set_draft(&full, 900);
    assert_in_range(cost_write(&full, line, sizeof line), 1000, sizeof line - 1);
    assert_int_equal(cost_read(&full, line, &err), ST_OK);
}

/* Whatever times a loud machine gives, a line that is written is one that is read; a table that no machine has is not
 * worth a line. */
static void loud_machines(void **state)
{
    (void) state;
    static const int32_t used[] = { 1, 2, 4, 8, 16, 22, 64 };
    const Machine *m = &machines[FOUR];
    int32_t written = 0, refused = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        uint64_t x = seed;
        Error err;
        char line[COST_TEXT];
        Cost c, other;
        cost_reset(&c);
        for (int32_t i = 0; i < 2 + (int32_t) seed % 40; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            int32_t rows = used[(x >> 33) % (sizeof used / sizeof *used)];
            double loud = exp2((double) (x >> 40) / (1 << 24) * 12 - 6);              /* 1/64 to 64 times */
            cost_pass(&c, rows, 1e-3 * loud * machine_pass(m, rows));
            if (i % 3 == 0) cost_draft(&c, 1, 1e-3 * loud * m->draft);
        }
        if (cost_write(&c, line, sizeof line) == 0) { refused++; continue; }
        written++;
        cost_reset(&other);
        if (cost_read(&other, line, &err) != ST_OK) fail_msg("seed %d: %s: %s", (int) seed, line, err.text);
    }
    assert_true(written > 0 && refused > 0);
}

/* Plain passes under load, beside a chunk that was read without: passes at full speed correct both the scale and the
 * time of a row. */
static void load_at_the_start(void **state)
{
    (void) state;
    for (int32_t k = 0; k < MACHINES; k++) {
        const Machine *m = &machines[k];
        Cost c;
        cost_reset(&c);
        cost_chunk(&c, 64, 1e-3 * machine_pass(m, 64));
        for (int32_t i = 0; i < 2; i++) cost_pass(&c, 1, 3e-3 * machine_pass(m, 1));
        double before = (double) (c.pass_ms[64] / c.pass_ms[1]), right = machine_pass(m, 64) / machine_pass(m, 1);
        assert_true(before < 0.4 * right);
        for (int32_t i = 0; i < 4; i++) cost_pass(&c, 8, 1e-3 * machine_pass(m, 8));
        double after = (double) (c.pass_ms[64] / c.pass_ms[1]);
        if (after < 1.2 * before || after > 1.3 * right)
            fail_msg("%s: 64 rows take %.2f plain passes, not %.2f", m->name, after, right);
    }
}

/* The first chunk of a run touches all memory for the first time: alone it does not make rows as dear as passes. */
static void cold_chunk(void **state)
{
    (void) state;
    Cost c;
    cost_reset(&c);
    cost_chunk(&c, 93, 0.020);
    for (int32_t i = 0; i < 2; i++) cost_pass(&c, 1, 0.0003);
    assert_true(c.pass_ms[8] < 0.75f);
    for (int32_t i = 0; i < 2; i++) cost_chunk(&c, 93, 0.019);
    assert_true(c.pass_ms[8] > 1.0f);
}

/* What a stall made of a proposal in one run does not stop the next one from proposing. */
static void told_a_stall(void **state)
{
    (void) state;
    Error err;
    Cost c;
    cost_reset(&c);
    cost_guess_draft(&c, 0.3);
    assert_int_equal(cost_read(&c, "1 200000 1 9000000 9 0 0 1 1000000 9", &err), ST_OK);
    assert_true(fabsf(cost_draft_ms(&c, 1) - 1.2f) < 1e-3f);
}

/* A width or a proposal that is far from what the line says is believed at once. */
static void refuted_lines(void **state)
{
    (void) state;
    const Machine *m = &machines[FOUR];
    Error err;
    char line[COST_TEXT];
    Cost c;
    learned(&c, m, 1);
    for (int32_t rows = 2; rows <= ROWS_DECODE; rows++) cost_set_pass(&c, rows, 0.051);    /* nearly free rows */
    cost_set_draft(&c, 0.00005);
    assert_true(cost_write(&c, line, sizeof line) > 0);
    assert_int_equal(cost_read(&c, line, &err), ST_OK);
    for (int32_t i = 0; i < 2; i++) cost_pass(&c, 1, 1e-3 * machine_pass(m, 1));
    cost_pass(&c, 64, 1e-3 * machine_pass(m, 64));
    cost_draft(&c, 1, 1e-3 * m->draft);
    assert_true((double) c.pass_ms[64] / (double) c.pass_ms[1] > 0.9 * machine_pass(m, 64) / machine_pass(m, 1));
    assert_true((double) c.draft_ms > 0.9 * m->draft);
}

static void same_table(const Cost *a, const Cost *b)
{
    assert_memory_equal(a->pass_ms, b->pass_ms, sizeof a->pass_ms);
    assert_memory_equal(a->seen, b->seen, sizeof a->seen);
    assert_true(a->draft_ms == b->draft_ms && a->row == b->row && a->real == b->real);
}

/* A damaged or absurd line leaves the table as it was; whatever is accepted can be used. */
static void bad_lines(void **state)
{
    (void) state;
    static const char *const bad[] = {
        "", " ", "1", "2 200000 0 1000 1 0 0 1 1000 9", "hello", "1 200000 0 1000 1 0 0", "-1 200000 0",
        "1 200000 0 1000 1 0 0 1 1000 0",                            /* no plain pass was seen */
        "1 200000 0 1000 1 0 0 1 1000 9 1 1000 9", "1 200000 0 1000 1 0 0 8 1000 9", "1 200000 0 1000 1 0 0 65 1000 9",
        "1 200000 0 1000 1 0 0 1 1000 9 ", "1 200000 0 1000 1 0 0 1 1000 9 2", "1 200000 0 1000 1 0 0 1 1000 9x",
        "1 200000 0 1000 1 0 0 1 99999999999999999999999999 9", "1 200000 0 1000 1 0 0 1 0 9",
        "1 0 0 1000 1 0 0 1 1000 9", "1 200000 0 1000 0 0 0 1 1000 9", "1 200000 0 1000 1 0 0 1 1000 101",
        "1 200000 0 1000 1 0 0 1 1000000 9 2 100000 9",              /* two rows in a tenth of the time of one */
        "1 200000 0 1000 1 0 0 1 1000 9 2 9000 9",                   /* two rows as long as nine passes */
        "1 200000 0 100 1 0 0 1 100000000 9",                        /* a proposal for nothing */
        "1 200000 0 900000000000 1 0 0 1 1000 9",
    };
    Error err;
    Cost c, before;
    learned(&c, &machines[DEMO], 1);
    before = c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (cost_read(&c, bad[i], &err) != ST_FORMAT) fail_msg("accepted: %s", bad[i]);
        assert_true(strncmp(err.text, "costs: ", 7) == 0);
        same_table(&c, &before);
    }
    assert_int_equal(cost_read(&c, "1 200000 0 1000 1 0 0 1 1000 9", &err), ST_OK);
    char line[COST_TEXT], spoiled[COST_TEXT];
    size_t n = cost_write(&before, line, sizeof line);
    uint64_t rng = 5;
    int32_t taken = 0;
    for (int32_t i = 0; i < 20000; i++) {
        memcpy(spoiled, line, n + 1);
        for (int32_t k = 0; k < 1 + i % 3; k++)
            spoiled[(size_t) (play_random(&rng) * (double) n)] = "0123456789 x"[(int) (play_random(&rng) * 12)];
        if (i % 5 == 0) spoiled[(size_t) (play_random(&rng) * (double) n)] = 0;
        cost_reset(&c);
        if (cost_read(&c, spoiled, &err) != ST_OK) continue;
        taken++;
        for (int32_t rows = 1; rows <= ROWS_DECODE; rows++)
            assert_true(c.pass_ms[rows] > 0 && isfinite((double) c.pass_ms[rows]));
        assert_true(cost_draft_ms(&c, 4) > 0 && isfinite((double) cost_draft_ms(&c, 4)));
    }
    assert_in_range(taken, 100, 19000);
}

/* Mixtures: rows read experts that others have not read, the fewer the more alike their texts are. From a plain pass, a
 * chunk and the routes of a few passes follows what every width takes, within a tenth. */
static void mixtures(void **state)
{
    (void) state;
    enum { USED = 8, OF = 256, CHUNK = 256 };
    static const double alike[] = { (double) USED / OF, 0.12, 0.5 };
    for (size_t k = 0; k < sizeof alike / sizeof *alike; k++) {
        double ms[CHUNK + 1], read[CHUNK + 1];
        for (int32_t n = 1; n <= CHUNK; n++) {     /* of 10 ms, 6 read experts; a row computes for 0.5 ms */
            read[n] = (1 - pow(1 - alike[k], n)) / alike[k];
            ms[n] = 0.5 * (fmax(4 + 6 * read[n], 0.5 * n) + 4 + 6 * read[n] + 0.5 * n);
        }
        Cost c;
        cost_reset(&c);
        cost_experts(&c, 0.6, USED, OF);
        for (int32_t i = 0; i < 3; i++) cost_chunk(&c, CHUNK, 1e-3 * ms[CHUNK]);
        for (int32_t i = 0; i < 3; i++) cost_pass(&c, 1, 1e-3 * ms[1]);
        if (k == 0) assert_true(c.pass_ms[8] > 3 * c.pass_ms[1]);     /* no mixture of these sizes is cheap to widen */
        for (int32_t i = 0; i < 40; i++) {
            const int32_t n = 2 + i % 7;
            cost_routes(&c, n, 40 * USED * n, (int64_t) (40 * USED * read[n]));
        }
        for (int32_t n = 1; n <= ROWS_DECODE; n++) {
            const double off = (double) c.pass_ms[n] / ms[n];
            if (off < 0.9 || off > 1.1)
                fail_msg("alike %.2f, %d rows: predicted %.3f of the real time", alike[k], n, off);
        }
    }
}

/* Experts from a file: rows share few of those that they miss, so that wide passes wait for nearly as many times longer
 * as they have rows. From plain passes and a few narrow ones, a pass of any width. */
static void misses(void **state)
{
    (void) state;
    enum { USED = 8, OF = 256, MISSED = 60 };
    static const double alike[] = { 0.04, 0.3 };
    for (size_t k = 0; k < sizeof alike / sizeof *alike; k++) {
        double ms[ROWS_DECODE + 1], more[ROWS_DECODE + 1];
        for (int32_t n = 1; n <= ROWS_DECODE; n++) {   /* 10 ms of work, 0.5 ms a row; 30 ms of waiting */
            const double read = (1 - pow(1 - 0.12, n)) / 0.12;
            more[n] = (1 - pow(1 - alike[k], n)) / alike[k];
            ms[n] = 0.5 * (fmax(4 + 6 * read, 0.5 * n) + 4 + 6 * read + 0.5 * n) + 30 * more[n];
        }
        Cost c;
        cost_reset(&c);
        cost_experts(&c, 0.6, USED, OF);
        cost_chunk(&c, 256, 1e-3 * 0.5 * (128 + 54 + 128));
        for (int32_t i = 0; i < 3; i++) {
            cost_misses(&c, 1, MISSED, 30 / ms[1]);
            cost_pass(&c, 1, 1e-3 * ms[1]);
        }
        for (int32_t i = 0; i < 60; i++) {
            const int32_t n = 2 + i % 7;
            cost_routes(&c, n, 40 * USED * n, (int64_t) (40 * USED * (1 - pow(1 - 0.12, n)) / 0.12));
            cost_misses(&c, n, (int64_t) (MISSED * more[n]), 30 * more[n] / ms[n]);
        }
        assert_true(c.waits > 0.6 && c.waits < 0.8);
        for (int32_t n = 1; n <= ROWS_DECODE; n++) {
            const double off = (double) c.pass_ms[n] / ms[n];
            if (off < 0.9 || off > 1.1)
                fail_msg("alike %.2f, %d rows: predicted %.3f of the real time", alike[k], n, off);
        }
        for (int32_t i = 0; i < 200; i++) cost_misses(&c, 1, 0, 0);    /* all that is needed is in memory by now */
        assert_true(c.waits < 0.01);
    }
}

/* Passes whose rows share no expert count as well as those whose rows share all, else rows would seem more alike than
 * they are; and neither end makes times that are none. */
static void routes_at_the_ends(void **state)
{
    (void) state;
    enum { ROWS = 4, USED = 8, OF = 256 };
    Cost c;
    cost_reset(&c);
    cost_experts(&c, 0.6, USED, OF);
    cost_pass(&c, 1, 0.01);
    for (int32_t shared = 0; shared < 2; shared++) {
        for (int32_t i = 0; i < 200; i++) cost_routes(&c, ROWS, ROWS * USED, shared ? USED : ROWS * USED);
        const double read = (double) c.pass_ms[ROWS] / (double) c.pass_ms[1], least = 0.4 + 0.6 * (shared ? 1 : ROWS);
        if (!(read > 0.9 * least && read < 2 * least))
            fail_msg("rows that share %s: %d take %.2f plain passes", shared ? "all" : "nothing", ROWS, read);
        assert_true(shared ? c.alike > 0.99 && c.alike <= 1 : c.alike > 0 && c.alike < 0.001);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shape_of_a_pass), cmocka_unit_test(without_a_chunk), cmocka_unit_test(first_passes),
        cmocka_unit_test(another_run), cmocka_unit_test(loud_machines), cmocka_unit_test(load_at_the_start),
        cmocka_unit_test(told_a_stall), cmocka_unit_test(cold_chunk), cmocka_unit_test(refuted_lines),
        cmocka_unit_test(bad_lines), cmocka_unit_test(mixtures), cmocka_unit_test(misses),
        cmocka_unit_test(routes_at_the_ends),
    };
    return cmocka_run_group_tests_name("cost", tests, NULL, NULL);
}
