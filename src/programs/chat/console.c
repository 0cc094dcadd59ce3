#include "programs/chat/console.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void console_open(Console *v, const Options *o)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    bool terminal = isatty(STDOUT_FILENO) == 1;
    *v = (Console) { .terminal = terminal, .color = terminal && !(no && *no) && term && strcmp(term, "dumb") != 0,
                     .quiet = o->quiet, .o = o };
}

static FILE *thoughts(const Console *v) { return v->terminal ? stdout : v->quiet ? NULL : stderr; }

static void begin_thinking(Console *v)
{
    FILE *f = thoughts(v);
    v->thinking = true;
    v->since = seconds_now();
    if (f) fprintf(f, "%sthinking...%s\n", v->color ? "\033[2;1m" : "", v->color ? "\033[0;2m" : "");
}

static void end_thinking(Console *v, int32_t tokens)
{
    FILE *f = thoughts(v);
    v->thinking = false;
    if (f) fprintf(f, "\n(%d tokens, %.1f s)%s\n\n", tokens, seconds_now() - v->since, v->color ? "\033[0m" : "");
    if (f) fflush(f);
}

void console_say(Console *v, const ReplyEvent *e, int32_t reason_tokens)
{
    if (e->kind == REPLY_REASON) {
        FILE *f = thoughts(v);
        if (!v->thinking) begin_thinking(v);
        if (f) text_show(f, e->bytes, e->n);
        if (f) fflush(f);
        return;
    }
    if (v->thinking) end_thinking(v, reason_tokens);
    text_show(stdout, e->bytes, e->n);
    v->last = e->bytes[e->n - 1];
    if ((fflush(stdout) == 0 && !ferror(stdout)) || v->broken) return;
    v->broken = true;
    output_failed(v->o);
}

void console_end(Console *v, int32_t reason_tokens)
{
    if (v->thinking) end_thinking(v, reason_tokens);
    if (v->last && v->last != '\n') putchar('\n');
    v->last = 0;
    fflush(stdout);
}
