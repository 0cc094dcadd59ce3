/* fuzz_schema.c - any bytes as a JSON Schema. What must hold: an error names the schema; any text that a compiled
 * schema accepts is JSON, except that names may repeat. Texts are made by following allowed bytes, which the input
 * itself chooses. */
#include "base/json.h"
#include "text/grammar/grammar_automaton.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void make_text(Automaton *a, const uint8_t *bytes, size_t n)
{
    enum { LENGTH = 300 };
    char text[LENGTH];
    size_t len = 0;
    uint32_t at[2] = { automaton_start(a), STATE_DEAD };
    StateHolder h = { .id = at, .n = 2 };
    automaton_hold(a, &h);
    for (size_t i = 0; len < LENGTH && automaton_goes_on(a, at[0]); i++) {
        uint8_t c = (uint8_t) (bytes[i % n] + 31 * i);
        for (int tries = 0; tries < 256; tries++, c++) {
            automaton_step(a, &at[1], &at[0], c);
            if (at[1] != STATE_DEAD) break;
        }
        if (at[1] == STATE_DEAD) abort();          /* a text that is not at its end has an allowed byte */
        text[len++] = (char) c;
        at[0] = at[1];
        if (!automaton_accepts(a, at[0])) continue;
        json_t *j;
        Error err = { 0 };
        if (json_read(&j, text, len, "text", &err) == ST_OK) json_decref(j);
        else if (!strstr(err.text, "duplicate")) abort();
    }
    automaton_let_go(a, &h);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    json_t *j;
    Grammar *g;
    Automaton *a;
    Error err = { 0 };
    if (n == 0 || json_read(&j, (const char *) bytes, n, "fuzz", &err) != ST_OK) return 0;
    Status st = grammar_schema(&g, j, "fuzz", &err);
    json_decref(j);
    if (st != ST_OK) {
        if (g || st != err.code || strncmp(err.text, "fuzz: #", 7) != 0) abort();
        return 0;
    }
    if (automaton_open(&a, g, AUTOMATON_BYTES_MIN, &err) != ST_OK) abort();
    make_text(a, bytes, n);
    automaton_close(a);
    grammar_free(g);
    return 0;
}
