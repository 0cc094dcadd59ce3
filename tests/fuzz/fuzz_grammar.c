/* fuzz_grammar.c - any bytes as a grammar text, then, after the first NUL, as a text to read by it. What must hold: an
 * error names the file; a compiled grammar may read any text safely, even with so little memory that states are
 * forgotten; reading again gives the same result. */
#include "text/grammar/grammar_automaton.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* How reading ends: 2 a whole text, 1 the beginning of one, 0 refused. */
static int read_text(Automaton *a, const uint8_t *s, size_t n)
{
    uint32_t at = automaton_start(a);
    StateHolder h = { .id = &at, .n = 1 };
    automaton_hold(a, &h);
    for (size_t i = 0; i < n && at != STATE_DEAD; i++) automaton_step(a, &at, &at, s[i]);
    automaton_let_go(a, &h);
    return at == STATE_DEAD ? 0 : 1 + automaton_accepts(a, at);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const uint8_t *nul = n ? memchr(bytes, 0, n) : NULL;
    size_t len = nul ? (size_t) (nul - bytes) : n;
    Grammar *g;
    Automaton *a;
    Error err = { 0 };
    Status st = grammar_parse(&g, (const char *) bytes, len, "fuzz", &err);
    if (st != ST_OK) {
        if (g || st != err.code || strncmp(err.text, "fuzz:", 5) != 0 || strchr(err.text, '\n')) abort();
        return 0;
    }
    if (automaton_open(&a, g, AUTOMATON_BYTES_MIN, &err) != ST_OK) abort();
    const uint8_t *text = nul ? nul + 1 : bytes;
    size_t n_text = nul ? n - len - 1 : n;
    if (n_text > 4096) n_text = 4096;
    if (read_text(a, text, n_text) != read_text(a, text, n_text)) abort();
    automaton_close(a);
    grammar_free(g);
    return 0;
}
