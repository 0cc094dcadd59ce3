#include "programs/chat/chat_command.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "programs/option_table.h"
#include "programs/suggest.h"

/* What /set may change, effective from the next answer. */
static const char *const SETTINGS[] = { "temp", "top-p", "top-k", "min-p", "rep-penalty", "freq-penalty",
                                        "presence-penalty", "rep-window", "seed", "n-predict", NULL };
static const char *const SWITCH[] = { "on", "off", NULL };

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    va_list args;
    char *text;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0) return;
    text_show(stderr, text, (size_t) n);
    fputc('\n', stderr);
    free(text);
}

static void help(Chat *c, const char *rest);

static void leave(Chat *c, const char *rest)
{
    (void) rest;
    c->leaving = true;
}

static void forget_question(Chat *c)
{
    free(c->again);
    c->again = NULL;
}

static void clear(Chat *c, const char *rest)
{
    (void) rest;
    talk_clear(&c->talk);
    forget_question(c);
    free(c->attached);
    c->attached = NULL;
    say("a new conversation");
}

static void set_system(Chat *c, const char *rest)
{
    if (talk_system(&c->talk, rest)) say(*rest ? "the system message is set" : "system message removed");
}

/* 1 on, 0 off, -1: neither, reported. what: "thinking is". */
static int on_off(const char *rest, const char *what, bool now)
{
    if (strcmp(rest, "on") == 0) return 1;
    if (strcmp(rest, "off") == 0) return 0;
    if (*rest) say("'%s' is neither on nor off", rest);
    else say("%s %s", what, now ? "on" : "off");
    return -1;
}

static void think(Chat *c, const char *rest)
{
    int on = on_off(rest, "thinking is", c->talk.think);
    if (on < 0) return;
    if (on && !chat_prompt_caps(c->talk.template)->thinking) {
        say("the model's chat template has no such choice");
        return;
    }
    if (on && chat_constrained(&c->o)) {
        say("with --grammar or --json-schema there is no thinking");
        return;
    }
    if (c->talk.think != on) talk_forget(&c->talk);
    c->talk.think = on;
    say("thinking is %s", rest);
}

static void stats(Chat *c, const char *rest)
{
    int on = on_off(rest, "stats are", c->stats);
    if (on < 0) return;
    c->stats = on;
    say("stats are %s", rest);
}

static void say_settings(const char *typed)
{
    Suggestion near = { .typed = typed };
    char text[128];
    for (size_t i = 0; SETTINGS[i]; i++) suggest_try(&near, SETTINGS[i]);
    if (*typed) say("there is no setting '%s'%s", typed, suggest_words(&near, text));
    fprintf(stderr, "/set KEY VALUE, KEY one of:");
    for (size_t i = 0; SETTINGS[i]; i++) fprintf(stderr, " %s", SETTINGS[i]);
    fputc('\n', stderr);
}

/* The option that a key means, by any of its names; NULL: none that /set may change. */
static const OptionSpec *setting(const Chat *c, const char *key)
{
    const OptionSpec *s = option_named(command_bit(c->o.command), strcmp(key, "n") == 0 ? "n-predict" : key);
    for (size_t i = 0; s && SETTINGS[i]; i++)
        if (strcmp(SETTINGS[i], s->name + 2) == 0) return s;
    return NULL;
}

static void say_setting(const Chat *c, const OptionSpec *s)
{
    const char *name = s->name + 2, *place = (const char *) &c->o + s->place;
    if (s->kind == KIND_REAL) say("%s is %g", name, *(const double *) place);
    else if (s->kind == KIND_SEED) say("%s is %llu", name, (unsigned long long) ((const Seed *) place)->value);
    else if (s->unset && *(const int32_t *) place == 0) say("%s is the default", name);
    else say("%s is %d", name, *(const int32_t *) place);
}

static void set(Chat *c, const char *rest)
{
    char key[32];
    size_t n = strcspn(rest, " =");
    const char *value = rest + n + strspn(rest + n, " =");
    snprintf(key, sizeof key, "%.*s", (int) (n < sizeof key ? n : sizeof key - 1), rest);
    const OptionSpec *s = setting(c, key);
    if (!s) say_settings(key);
    else if (!*value || options_set(&c->o, s->name + 2, value)) say_setting(c, s);
}

static void show(Chat *c, const char *rest)
{
    (void) rest;
    const Options *o = &c->o;
    int32_t used = talk_tokens(&c->talk), ctx = rt_session_ctx(c->p.session);
    say("model        %s", c->p.files.model);
    say("drafter      %s", c->p.files.draft[0] ? c->p.files.draft : "none");
    bool known = c->talk.n == 0 || c->talk.turn[c->talk.n - 1].n > 0;
    say("turns        %d, %s%d of %d tokens of the context", c->talk.n, known ? "" : "not read yet, at least ",
        used, ctx);
    say("system       %s", c->talk.system ? c->talk.system : "none");
    say("thinking     %s", !chat_prompt_caps(c->talk.template)->thinking
        ? "as the model's template has it" : c->talk.think ? "on" : "off");
    say("sampling     temp %g, top-p %g, top-k %d, min-p %g, seed %llu", o->temp, o->top_p, o->top_k, o->min_p,
        (unsigned long long) o->seed.value);
    say("penalties    rep-penalty %g, freq-penalty %g, presence-penalty %g, rep-window %d", o->rep_penalty,
        o->freq_penalty, o->presence_penalty, o->rep_window);
    if (o->n) say("answers      n-predict %d: tokens at most", o->n);
    else say("answers      n-predict: up to the context's end");
    if (c->attached) say("attached     %zu bytes, for the next message", strlen(c->attached));
}

static void show_history(Chat *c, const char *rest)
{
    (void) rest;
    if (c->talk.n == 0) say("nothing was said yet");
    for (int32_t i = 0; i < c->talk.n; i++) say("> %s\n%s\n", c->talk.turn[i].user, c->talk.turn[i].text);
}

static void undo(Chat *c, const char *rest)
{
    (void) rest;
    if (c->again) {
        forget_question(c);
        say("the question without an answer is taken back");
    } else if (c->talk.n == 0) {
        say("there is nothing to take back");
    } else {
        talk_undo(&c->talk);
        say("the last turn is taken back; %d left", c->talk.n);
    }
}

/* The same seed gives the same answer, so a retry uses the next seed. */
static void retry(Chat *c, const char *rest)
{
    (void) rest;
    if (!c->again && c->talk.n == 0) {
        say("there is no question to ask again");
        return;
    }
    char *user = c->again ? c->again : strdup(c->talk.turn[c->talk.n - 1].user);
    if (!user) {
        say("out of memory");
        return;
    }
    if (c->again) {
        c->again = NULL;
    } else {
        talk_undo(&c->talk);
        if (c->o.temp < 1e-5) say("at temperature 0 the answer is the same; /set temp 0.8 draws others");
        else say("seed %llu", (unsigned long long) ++c->o.seed.value);
    }
    char *files = c->attached;                     /* the question already contains its own files */
    c->attached = NULL;
    chat_ask(c, user);
    c->attached = files;
    free(user);
}

static void save_over(Chat *c, const char *rest)
{
    if (!*rest) {
        say("/save FILE");
        return;
    }
    if (!talk_save(&c->talk, rest)) return;
    say("%s: %d turns", rest, c->talk.n);
    free(c->saved);
    c->saved = strdup(rest);
}

/* A file that this chat wrote may be replaced, another one not. */
static void save(Chat *c, const char *rest)
{
    struct stat st;
    bool ours = c->saved && strcmp(c->saved, rest) == 0;
    if (*rest && !ours && stat(rest, &st) == 0 && S_ISREG(st.st_mode))
        say("%s is there already; /save! %s replaces it", rest, rest);
    else
        save_over(c, rest);
}

static void load(Chat *c, const char *rest)
{
    char *open = NULL;
    if (!*rest) {
        say("/load FILE");
        return;
    }
    if (!talk_load(&c->talk, &open, rest)) return;
    forget_question(c);
    c->again = open;
    say("%s: %d turns%s", rest, c->talk.n, open ? " and a question without an answer (/retry asks it)" : "");
}

static void attach(Chat *c, const char *rest)
{
    char *text, *all = NULL;
    size_t n;
    if (!*rest) {
        say("/file FILE");
        return;
    }
    if (!text_read(&c->o, &text, &n, rest)) return;
    if (memchr(text, 0, n)) {
        say("%s: it holds a zero byte, so it is no text", rest);
    } else if (asprintf(&all, "%s[file %s]\n%s%s[end of %s]\n\n", c->attached ? c->attached : "", base_name(rest), text,
                        n > 0 && text[n - 1] != '\n' ? "\n" : "", base_name(rest)) < 0) {
        say("out of memory");
    } else {
        free(c->attached);
        c->attached = all;
        say("%s: %zu bytes go with the next message", rest, n);
    }
    free(text);
}

typedef struct {
    const char *name, *rest, *help;
    void (*run)(Chat *c, const char *rest);
    const char *const *words;                      /* completions of rest: NULL: none; FILES: file names */
} ChatCommand;

static const char *const FILES[] = { NULL };

static const ChatCommand COMMANDS[] = {
    { "/help", "", "this list", help, NULL },
    { "/exit", "", "leaves, as Ctrl-D does", leave, NULL },
    { "/quit", "", "the same", leave, NULL },
    { "/clear", "", "begins a new conversation; the system message stays", clear, NULL },
    { "/system", "TEXT", "sets the system message; without TEXT there is none", set_system, NULL },
    { "/think", "on|off", "whether the model reasons first, if its template offers it", think, SWITCH },
    { "/set", "KEY VALUE", "changes a sampling setting: /set temp 0.8; without VALUE says it", set, SETTINGS },
    { "/show", "", "model, context and settings", show, NULL },
    { "/stats", "on|off", "statistics after each answer", stats, SWITCH },
    { "/history", "", "what was said", show_history, NULL },
    { "/undo", "", "takes the last question and its answer back", undo, NULL },
    { "/retry", "", "asks the last question again, with the next seed", retry, NULL },
    { "/save", "FILE", "writes the conversation as JSON messages", save, FILES },
    { "/save!", "FILE", "the same, over a file that is there already", save_over, FILES },
    { "/load", "FILE", "continues such a conversation", load, FILES },
    { "/file", "FILE", "attaches a text file to the next message", attach, FILES },
};
enum { N_COMMANDS = sizeof COMMANDS / sizeof *COMMANDS };

static void help(Chat *c, const char *rest)
{
    (void) c, (void) rest;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", COMMANDS[i].name, COMMANDS[i].rest);
        say("  %-18s%s", left, COMMANDS[i].help);
    }
    say("A message of several lines: between \"\"\" and \"\"\", or \\ at a line's end, or\n"
        "Alt-Enter. Start a line with // to send a message that begins with /.\n"
        "Ctrl-C ends an answer, and what there is of it stays; twice within a second it\n"
        "ends the program. Ctrl-R searches what was typed.");
}

static void say_unknown(const char *line, size_t n)
{
    static const char *const elsewhere[][2] = { { "/bye", "/exit" }, { "/?", "/help" }, { "/regen", "/retry" },
                                                { "/reset", "/clear" }, { "/new", "/clear" } };
    char name[64], text[128];
    snprintf(name, sizeof name, "%.*s", (int) (n < sizeof name ? n : sizeof name - 1), line);
    Suggestion near = { .typed = name };
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (strcmp(elsewhere[i][0], name) == 0) near.typed = elsewhere[i][1];
    for (size_t i = 0; i < N_COMMANDS; i++) suggest_try(&near, COMMANDS[i].name);
    say("there is no command %s%s (/help lists them; start with // to send a message that begins with /)", name,
        suggest_words(&near, text));
}

void chat_command(Chat *c, const char *line)
{
    size_t n = strcspn(line, " \t\n");
    const char *rest = line + n + strspn(line + n, " \t\n");
    char *copy = strdup(rest);
    if (!copy) return;
    for (size_t end = strlen(copy); end > 0 && strchr(" \t\n", copy[end - 1]); end--) copy[end - 1] = 0;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        const ChatCommand *x = &COMMANDS[i];
        if (strlen(x->name) != n || memcmp(x->name, line, n) != 0) continue;
        if (!*x->rest && *copy) say("%s takes nothing behind it", x->name);
        else x->run(c, copy);
        free(copy);
        return;
    }
    free(copy);
    say_unknown(line, n);
}

/* ---- completion ---- */

static void complete_files(const char *word, void (*found)(void *list, const char *text), void *list)
{
    char folder[4096], path[8192];
    const char *name = base_name(word);
    int n = snprintf(folder, sizeof folder, "%.*s", (int) (name - word), word);
    DIR *d = n < (int) sizeof folder ? opendir(n > 0 ? folder : ".") : NULL;
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        if (strncmp(e->d_name, name, strlen(name)) != 0 || (e->d_name[0] == '.' && name[0] != '.')) continue;
        snprintf(path, sizeof path, "%s%s", folder, e->d_name);
        if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) strcat(path, "/");
        found(list, path);
    }
    closedir(d);
}

void chat_words(const char *before, const char *word, void (*found)(void *list, const char *text), void *list)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        const ChatCommand *x = &COMMANDS[i];
        size_t n = strlen(x->name);
        if (!*before && *word == '/' && strncmp(x->name, word, strlen(word)) == 0) found(list, x->name);
        if (strncmp(before, x->name, n) != 0 || strcmp(before + n, " ") != 0) continue;
        if (x->words == FILES) complete_files(word, found, list);
        for (size_t k = 0; x->words && x->words[k]; k++)
            if (strncmp(x->words[k], word, strlen(word)) == 0) found(list, x->words[k]);
    }
}
