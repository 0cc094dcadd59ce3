#include "programs/voice.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void voice_open(Voice *v, const Options *o)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    bool terminal = isatty(STDOUT_FILENO) == 1;
    *v = (Voice) { .terminal = terminal, .color = terminal && !(no && *no) && term && strcmp(term, "dumb") != 0, .quiet = o->quiet, .o = o };
}

/* Length of the control character at s, 0: it is none. Line feed and tab are text; U+0080 to U+009F are as able as the old ones. */
static size_t control(const unsigned char *s, size_t n)
{
    if (*s == 0xc2 && n > 1 && s[1] >= 0x80 && s[1] <= 0x9f) return 2;
    return (*s < 32 && *s != '\n' && *s != '\t') || *s == 127;
}

static void put(const char *s, size_t n, FILE *f, bool clean)
{
    size_t from = 0;
    for (size_t i = 0; clean && i < n;) {
        size_t bad = control((const unsigned char *) s + i, n - i);
        if (bad) {
            fwrite(s + from, 1, i - from, f);
            fputc('?', f);
            from = i + bad;
        }
        i += bad ? bad : 1;
    }
    fwrite(s + from, 1, n - from, f);
}

static FILE *thoughts(const Voice *v) { return v->terminal ? stdout : v->quiet ? NULL : stderr; }

static void begin_thinking(Voice *v)
{
    FILE *f = thoughts(v);
    v->thinking = true;
    v->since = seconds_now();
    if (f) fprintf(f, "%sthinking...%s\n", v->color ? "\033[2;1m" : "", v->color ? "\033[0;2m" : "");
}

static void end_thinking(Voice *v, int32_t tokens)
{
    FILE *f = thoughts(v);
    v->thinking = false;
    if (f) fprintf(f, "\n(%d tokens, %.1f s)%s\n\n", tokens, seconds_now() - v->since, v->color ? "\033[0m" : "");
    if (f) fflush(f);
}

void voice_say(Voice *v, const ReplyEvent *e, int32_t reason_tokens)
{
    if (e->kind == REPLY_REASON) {
        FILE *f = thoughts(v);
        if (!v->thinking) begin_thinking(v);
        if (f) put(e->bytes, e->n, f, isatty(fileno(f)) == 1);
        if (f) fflush(f);
        return;
    }
    if (v->thinking) end_thinking(v, reason_tokens);
    put(e->bytes, e->n, stdout, v->terminal);
    v->last = e->bytes[e->n - 1];
    if ((fflush(stdout) == 0 && !ferror(stdout)) || v->broken) return;
    v->broken = true;
    complain(v->o, "standard output: %s", strerror(errno));
}

void voice_end(Voice *v, int32_t reason_tokens)
{
    if (v->thinking) end_thinking(v, reason_tokens);
    if (v->terminal && v->last && v->last != '\n') putchar('\n');
    v->last = 0;
    fflush(stdout);
}
