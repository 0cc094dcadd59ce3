/* ratoon chat: a conversation at the terminal, or one message from a pipe. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "programs/chat_command.h"
#include "programs/editor.h"

/* ---- asking ---- */

static void say_end(const Chat *c, TurnEnd end)
{
    if (end == TURN_CANCELLED) note(&c->o, "stopped; the answer so far stays");
    if (end == TURN_LENGTH) note(&c->o, "cut at %d tokens (-n)", c->o.n);
    if (end == TURN_FULL) note(&c->o, "cut: the context of %d tokens is full; /undo takes turns back, /clear begins anew", rt_session_ctx(c->p.session));
}

static void warn_of_the_end(const Chat *c)
{
    int64_t used = talk_tokens(&c->talk), ctx = rt_session_ctx(c->p.session);
    if (used < ctx && 100 * used >= 80 * ctx)
        note(&c->o, "%lld %% of the context is full (%lld of %lld tokens); /undo takes turns back, /clear begins anew", (long long) (100 * used / ctx), (long long) used,
             (long long) ctx);
}

static bool remember_question(Chat *c, const char *user)
{
    char *copy = strdup(user);
    free(c->again);
    c->again = copy;
    return copy != NULL;
}

/* An answer of which there is nothing leaves the question open. */
static bool answer(Chat *c, const Question *q, const char *user)
{
    TalkAnswer a;
    rt_sampling s = program_sampling(&c->o, c->o.n);
    TurnEnd end = turn_run(&a, &c->talk, q, &s, &c->voice);
    interrupts = 0;
    bool said = a.n > 0 || end == TURN_ENDED, good = end != TURN_FAILED;
    if (good && said) {
        good = talk_answered(&c->talk, q, user, &a);
        say_end(c, end);
        if (c->stats) turn_stats(&c->p);
        if (good) warn_of_the_end(c);
    } else {
        remember_question(c, user);
        if (end == TURN_CANCELLED) note(&c->o, "stopped before there was an answer; /retry asks again");
    }
    turn_answer_free(&a);
    return good;
}

bool chat_ask(Chat *c, const char *user)
{
    Question q;
    char *all = NULL;
    if (c->attached && asprintf(&all, "%s%s", c->attached, user) < 0) return complain(&c->o, "out of memory") == 0;
    free(c->attached);
    c->attached = NULL;
    if (all) user = all;
    free(c->again);
    c->again = NULL;
    int32_t ctx = rt_session_ctx(c->p.session);
    bool good = talk_ask(&q, &c->talk, user);
    if (good && q.n >= ctx) {
        complain(&c->o, "the message does not fit: with it the prompt has %d tokens, the context %d; /undo takes turns back, /clear begins anew, --ctx makes room", q.n, ctx);
        good = false;
        remember_question(c, user);
    } else if (good) {
        good = answer(c, &q, user);
    }
    question_free(&q);
    free(all);
    return good;
}

/* ---- where messages come from ---- */

static int from_pipe(Chat *c)
{
    char *text;
    size_t n;
    if (!text_read(&c->o, &text, &n, NULL)) return EXIT_FAILED;
    int status = EXIT_FAILED;
    while (n > 0 && text[n - 1] == '\n') text[--n] = 0;
    if (n == 0) complain(&c->o, "standard input holds no message");
    else if (memchr(text, 0, n)) complain(&c->o, "the message holds a zero byte");
    else if (chat_ask(c, text)) status = output_done(&c->o);
    free(text);
    return status;
}

/* An empty line asks nothing; "//" sends a slash. */
static void take_message(Chat *c, const char *message)
{
    if (!message[strspn(message, " \t\n")]) return;
    if (message[0] == '/' && message[1] != '/') chat_command(c, message);
    else chat_ask(c, message + (message[0] == '/'));
}

static int from_keyboard(Chat *c)
{
    Editor *e = NULL;
    char path[4096];
    bool kept = !c->o.no_history && editor_history_path(path, sizeof path);
    int32_t cleared = 0;
    if (!editor_open(&e, &c->o, kept ? path : NULL, chat_words)) {
        editor_close(e);
        return EXIT_FAILED;
    }
    note(&c->o, "/help lists the commands, Ctrl-D leaves");
    Edited got = EDITED;
    while (!c->leaving && !c->voice.broken && got != EDIT_END && got != EDIT_NO_MEMORY) {
        char *message;
        got = editor_read(e, &message, "> ");
        cleared = got == EDIT_INTERRUPTED ? cleared + 1 : 0;
        if (cleared == 2) note(&c->o, "Ctrl-D or /exit leaves");
        if (got == EDITED) take_message(c, message);
        free(message);
    }
    editor_close(e);
    if (got == EDIT_NO_MEMORY) return complain(&c->o, "out of memory for the message");
    return c->voice.broken ? EXIT_FAILED : output_done(&c->o);
}

int cmd_chat(int argc, char **argv)
{
    Chat c = { 0 };
    int status;
    if (!options_read(&c.o, argc, argv, &status)) return status;
    if (c.o.think && c.o.no_think) {
        complain(&c.o, "there can be only one of --think and --no-think");
        return EXIT_USAGE;
    }
    status = EXIT_FAILED;
    c.stats = c.o.stats;
    voice_open(&c.voice, &c.o);
    if (program_open(&c.p, &c.o, WITH_DRAFTER | WITH_SESSION, NULL, 0)) {
        if (talk_open(&c.talk, &c.p)) status = isatty(STDIN_FILENO) == 1 ? from_keyboard(&c) : from_pipe(&c);
        talk_close(&c.talk);
    } else if (interrupts) {
        status = EXIT_INTERRUPTED;
    }
    program_close(&c.p);
    free(c.again);
    free(c.attached);
    return status;
}
