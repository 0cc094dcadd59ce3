/* ratoon chat: a conversation at the terminal, or one message from a pipe. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "programs/chat/chat_command.h"
#include "programs/chat/editor.h"
#include "programs/constraint.h"
#include "programs/costs.h"
#include "programs/option_table.h"
#include "programs/sampling.h"

/* ---- asking ---- */

static void say_end(const Chat *c, TurnEnd end)
{
    if (end == TURN_CANCELLED) note(&c->o, "stopped; the answer so far stays");
    if (end == TURN_LENGTH) note(&c->o, "cut at %d tokens (-n)", c->o.n);
    if (end == TURN_FULL)
        note(&c->o, "cut: the context of %d tokens is full; /undo takes turns back, /clear begins anew",
             rt_session_ctx(c->p.session));
}

static void warn_of_the_end(const Chat *c)
{
    int64_t used = talk_tokens(&c->talk), ctx = rt_session_ctx(c->p.session);
    if (used < ctx && 100 * used >= 80 * ctx)
        note(&c->o, "%lld %% of the context is full (%lld of %lld tokens); /undo takes turns back, /clear begins anew",
             (long long) (100 * used / ctx), (long long) used, (long long) ctx);
}

static bool remember_question(Chat *c, const char *user)
{
    char *copy = strdup(user);
    free(c->again);
    c->again = copy;
    return copy != NULL;
}

/* If nothing was answered, the question stays open. */
static bool answer(Chat *c, const Question *q, const char *user)
{
    TalkAnswer a;
    rt_stats stats;
    rt_sampling s = sampling_of(&c->o, c->o.n);
    TurnEnd end = turn_run(&a, &c->talk, q, &s, &c->console);
    if (end == TURN_CANCELLED) c->pressed = seconds_now();
    interrupts = 0;
    bool said = a.n > 0 || end == TURN_ENDED, good = end != TURN_FAILED;
    if (good && said) {
        good = talk_answered(&c->talk, q, user, &a);
        say_end(c, end);
        if (c->stats) turn_stats(&c->p);
        rt_stats_get(c->p.session, &stats, sizeof stats);
        program_judge(&c->p, &stats);
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
        complain(&c->o, "the message does not fit: with it the prompt has %d tokens, the context %d; %s", q.n, ctx,
                 c->talk.n > 0 ? "/undo takes turns back, /clear begins anew, --ctx makes room"
                               : "send less, or start with a larger --ctx");
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

/* Asks the only message. */
static int ask_once(Chat *c, const char *message)
{
    if (!chat_ask(c, message)) return EXIT_FAILED;
    int status = output_done(&c->o);
    return c->pressed > 0 ? EXIT_INTERRUPTED : status;
}

static int from_option(Chat *c) { return ask_once(c, c->o.prompt); }

static int from_pipe(Chat *c)
{
    char *text;
    size_t n;
    if (!text_read(&c->o, &text, &n, NULL)) return EXIT_FAILED;
    int status = EXIT_FAILED;
    while (n > 0 && text[n - 1] == '\n') text[--n] = 0;
    if (n == 0) complain(&c->o, "standard input holds no message");
    else if (memchr(text, 0, n)) complain(&c->o, "the message holds a zero byte");
    else status = ask_once(c, text);
    free(text);
    return status;
}

/* An empty line is ignored; "//" sends a slash. */
static void take_message(Chat *c, const char *message)
{
    if (!message[strspn(message, " \t\n")]) return;
    if (option_among("exit quit bye help", message, strlen(message)))
        note(&c->o, "this goes to the model; /exit leaves, /help lists the commands");
    if (message[0] == '/' && message[1] != '/') chat_command(c, message);
    else chat_ask(c, message + (message[0] == '/'));
}

/* After Ctrl-C at the prompt: whether it followed another one, there or during an answer, within a second. */
static bool pressed_twice(Chat *c)
{
    double now = seconds_now(), before = c->pressed;
    c->pressed = now;
    if (before > 0 && now - before < 1) return true;
    note(&c->o, "Ctrl-C again, Ctrl-D or /exit leaves");
    return false;
}

static int from_keyboard(Chat *c)
{
    Editor *e = NULL;
    char path[4096];
    bool kept = !c->o.no_history && editor_history_path(path, sizeof path);
    if (!editor_open(&e, &c->o, kept ? path : NULL, chat_words)) {
        editor_close(e);
        return EXIT_FAILED;
    }
    note(&c->o, "/help lists the commands, Ctrl-D leaves");
    Edited got = EDITED;
    bool twice = false;
    while (!c->leaving && !twice && !c->console.broken && got != EDIT_END && got != EDIT_NO_MEMORY) {
        char *message;
        got = editor_read(e, &message, "> ");
        if (got == EDIT_INTERRUPTED) twice = pressed_twice(c);
        if (got == EDITED) take_message(c, message);
        free(message);
    }
    editor_close(e);
    if (twice) return EXIT_INTERRUPTED;
    if (got == EDIT_NO_MEMORY) return complain(&c->o, "out of memory for the message");
    return c->console.broken ? EXIT_FAILED : output_done(&c->o);
}

static bool say_sampling(Chat *c)
{
    char text[256];
    if (!sampling_for_answers(&c->o, &c->p)) return false;
    rt_sampling s = sampling_of(&c->o, 0);
    note(&c->o, "sampling: %s", sampling_text(text, &s, true));
    return true;
}

static bool options_agree(const Options *o)
{
    if (o->think && o->no_think) return complain(o, "there can be only one of --think and --no-think") == 0;
    if (o->grammar && o->json_schema) return complain(o, "there can be only one of --grammar and --json-schema") == 0;
    if (o->think && chat_constrained(o))
        return complain(o, "--think does not go with --grammar or --json-schema, which hold the whole answer") == 0;
    return true;
}

int cmd_chat(int argc, char **argv)
{
    Chat c = { 0 };
    rt_grammar *form = NULL;
    int status;
    if (!options_read(&c.o, argc, argv, &status)) return status;
    if (!options_agree(&c.o)) return EXIT_USAGE;
    status = EXIT_FAILED;
    c.stats = c.o.stats;
    console_open(&c.console, &c.o);
    if (constraint_read(&form, &c.o) && program_open(&c.p, &c.o, WITH_DRAFTER | WITH_SESSION, NULL, 0)) {
        const bool ready = say_sampling(&c);
        costs_load(&c.p, c.p.step);
        if (!ready) status = EXIT_FAILED;
        else if (rt_constrain(c.p.session, form) != RT_OK) complain(&c.o, "%s", rt_session_error(c.p.session));
        else if (talk_open(&c.talk, &c.p))
            status = c.o.prompt ? from_option(&c) : isatty(STDIN_FILENO) == 1 ? from_keyboard(&c) : from_pipe(&c);
        costs_save(&c.p, c.p.step);
        talk_close(&c.talk);
    } else if (interrupts) {
        status = EXIT_INTERRUPTED;
    }
    program_close(&c.p);
    rt_grammar_free(form);
    free(c.again);
    free(c.attached);
    free(c.saved);
    return status;
}
