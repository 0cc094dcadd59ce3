#include "programs/editor.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include "base/save.h"
#include "programs/program.h"

enum { HISTORY_MAX = 1000, AHEAD = 16, ESCAPE_MS = 25, CTRL_V = 22, ESCAPE = 27 };

struct Editor {
    const Options *o;
    EditLine   *el;
    History    *history;
    char        path[4096];                        /* of the history file, "": it is not written */
    EditorWords words;
    FILE       *out;
    const char *prompt;
    wchar_t     ahead[AHEAD]; int32_t n_ahead;      /* read and not handed on yet */
    bool        pasting;
};

static volatile sig_atomic_t resized, continued;

static void on_resize(int sig)
{
    (void) sig;
    resized = 1;
}

static void on_continue(int sig)
{
    (void) sig;
    continued = 1;
}

/* ---- keys ---- */

static Editor *self(EditLine *el)
{
    void *e = NULL;
    el_get(el, EL_CLIENTDATA, &e);
    return e;
}

/* A byte of the terminal: 1; 0: nothing for `wait` milliseconds (-1: as long as it takes); -1: its end, or Ctrl-C. The engine's threads may
 * be the ones that hear a signal, so that it is looked for now and then. */
static int read_byte(Editor *e, unsigned char *c, int wait)
{
    for (;;) {
        if (interrupts) return -1;
        if (resized) el_resize(e->el);
        if (continued) {                           /* the shell had the terminal meanwhile */
            el_set(e->el, EL_PREP_TERM, 1);
            el_set(e->el, EL_REFRESH);
        }
        resized = continued = 0;
        struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };
        int ready = poll(&p, 1, wait < 0 ? 250 : wait);
        if (ready > 0) {
            ssize_t n = read(STDIN_FILENO, c, 1);
            if (n == 1) return 1;
            if (n == 0 || errno != EINTR) return -1;
        } else if (ready == 0 && wait >= 0) {
            return 0;
        } else if (ready < 0 && errno != EINTR) {
            return -1;
        }
    }
}

/* A character; what is none becomes U+FFFD. */
static int read_char(Editor *e, wchar_t *out, int wait)
{
    mbstate_t state = { 0 };
    for (int32_t i = 0; i < 4; i++) {
        unsigned char c;
        int got = read_byte(e, &c, i ? 1000 : wait);
        if (got <= 0) return i ? (*out = 0xfffd, 1) : got;
        size_t n = mbrtowc(out, (const char *) &c, 1, &state);
        if (n == (size_t) -1) break;
        if (n != (size_t) -2) return 1;
    }
    *out = 0xfffd;
    return 1;
}

static void put_ahead(Editor *e, const wchar_t *s, int32_t n)
{
    for (int32_t i = 0; i < n && e->n_ahead < AHEAD; i++) e->ahead[e->n_ahead++] = s[i];
}

/* Behind an escape: the marks around a paste, and Alt-Enter, which is a line end in the text. Anything else waits in `ahead`. */
static void after_escape(Editor *e)
{
    static const wchar_t paste[] = L"[200~", pasted[] = L"[201~";
    const wchar_t *mark = e->pasting ? pasted : paste;
    wchar_t c[8];
    int32_t n = 0;
    while (n < 5 && read_char(e, &c[n], ESCAPE_MS) == 1) {
        if (n == 0 && (c[0] == '\r' || c[0] == '\n')) {
            put_ahead(e, (wchar_t[]) { CTRL_V, '\n' }, 2);
            return;
        }
        if (c[n] != mark[n]) {
            n++;
            break;
        }
        n++;
    }
    if (n == 5 && c[4] == mark[4]) {
        e->pasting = !e->pasting;
        return;
    }
    wchar_t escape = ESCAPE;
    if (!e->pasting) put_ahead(e, &escape, 1);
    put_ahead(e, c, n);
}

/* libedit's reader of characters. Quoted (Ctrl-V), a control character is text. */
static int next_char(EditLine *el, wchar_t *out)
{
    Editor *e = self(el);
    while (e->n_ahead == 0) {
        wchar_t c;
        int got = read_char(e, &c, -1);
        if (got <= 0) return got;
        if (c == ESCAPE) {
            after_escape(e);
        } else if (e->pasting && (c < 32 || c == 127)) {
            put_ahead(e, (wchar_t[]) { CTRL_V, c == '\r' ? '\n' : c }, 2);
        } else {
            put_ahead(e, &c, 1);
        }
    }
    *out = e->ahead[0];
    memmove(e->ahead, e->ahead + 1, sizeof *e->ahead * (size_t) --e->n_ahead);
    return 1;
}

/* ---- completion ---- */

typedef struct { char common[512]; int32_t n; FILE *list; } Found;

static void found(void *list, const char *text)
{
    Found *f = list;
    if (f->list) fprintf(f->list, "%s  ", text);
    if (f->n++ == 0) snprintf(f->common, sizeof f->common, "%s", text);
    size_t same = 0;
    while (f->common[same] && f->common[same] == text[same]) same++;
    while (same > 0 && ((unsigned char) f->common[same] & 0xc0) == 0x80) same--;       /* whole characters */
    f->common[same] = 0;
}

static unsigned char complete(EditLine *el, int key)
{
    (void) key;
    Editor *e = self(el);
    const LineInfo *line = el_line(el);
    size_t n = (size_t) (line->cursor - line->buffer), blank = 0;
    while (blank < n && line->buffer[blank] != ' ') blank++;
    size_t at = blank < n ? blank + 1 : 0;
    char *before = strndup(line->buffer, at), *word = strndup(line->buffer + at, n - at);
    Found f = { 0 };
    unsigned char result = CC_ERROR;
    if (before && word) {
        e->words(before, word, found, &f);
        if (f.n > 0 && strlen(f.common) > n - at) {
            result = el_insertstr(el, f.common + (n - at)) == 0 ? CC_REFRESH : CC_ERROR;
        } else if (f.n > 1) {
            fputc('\n', e->out);
            e->words(before, word, found, &(Found) { .list = e->out });
            fputc('\n', e->out);
            result = CC_REDISPLAY;
        }
    }
    free(before);
    free(word);
    return result;
}

/* ---- history ---- */

bool editor_history_path(char *out, size_t cap)
{
    return user_path(out, cap, "XDG_STATE_HOME", ".local/state", "history");
}

static bool make_folders(const char *path)
{
    char part[4096];
    snprintf(part, sizeof part, "%s", path);
    for (char *p = part + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        if (mkdir(part, 0700) != 0 && errno != EEXIST) return false;
        *p = '/';
    }
    return true;
}

/* A file that is no history is left alone. */
static void read_history(Editor *e, const char *path)
{
    HistEvent ev;
    struct stat st;
    bool there = stat(path, &st) == 0 && st.st_size > 0;
    if (there && history(e->history, &ev, H_LOAD, path) < 0) note(e->o, "%s: it cannot be read as a history and is left as it is", path);
    else if (!there && !make_folders(path)) note(e->o, "%s: %s; no history is kept", path, strerror(errno));
    else snprintf(e->path, sizeof e->path, "%s", path);
}

static History *new_history(void)
{
    HistEvent ev;
    History *h = history_init();
    if (!h) return NULL;
    history(h, &ev, H_SETSIZE, HISTORY_MAX);
    history(h, &ev, H_SETUNIQUE, 1);
    return h;
}

/* The folder is what is locked, since the file is replaced. A file system without locks has none; who waits longer than a second gives up. */
static bool lock_folder(int *out, const char *path)
{
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = 0;
    *out = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*out < 0) return false;
    for (int tries = 0; flock(*out, LOCK_EX | LOCK_NB) != 0; tries++) {
        if (errno != EWOULDBLOCK && errno != EINTR) return true;
        if (tries == 100) return false;
        nanosleep(&(struct timespec) { .tv_nsec = 10000000 }, NULL);
    }
    return true;
}

static bool write_history(void *ud, FILE *f)
{
    HistEvent ev;
    return history(ud, &ev, H_SAVE_FP, f) >= 0;
}

/* What other chats have written meanwhile stays: the file is read anew, and the message added to that. */
static Status add_to_file(const char *path, const char *message, Error *err)
{
    HistEvent ev;
    struct stat st;
    int lock;
    History *h = new_history();
    Status status = !h ? fail(err, ST_MEMORY, "%s: out of memory", path) : lock_folder(&lock, path) ? ST_OK : fail(err, ST_IO, "%s: %m", path);
    if (status == ST_OK && stat(path, &st) == 0 && st.st_size > 0 && history(h, &ev, H_LOAD, path) < 0)
        status = fail(err, ST_FORMAT, "%s: it is no history", path);
    if (status == ST_OK && history(h, &ev, H_ENTER, message) < 0) status = fail(err, ST_MEMORY, "%s: out of memory", path);
    if (status == ST_OK) status = save_file(path, write_history, h, err);
    if (h) history_end(h);
    if (h && lock >= 0) close(lock);
    return status;
}

/* After every message: what ends the program takes nothing away. */
static void remember(Editor *e, const char *message)
{
    HistEvent ev;
    Error err = { 0 };
    if (!e->history) return;
    history(e->history, &ev, H_ENTER, message);
    if (!e->path[0] || add_to_file(e->path, message, &err) == ST_OK) return;
    note(e->o, "%s; the history is not written any more", err.text);
    e->path[0] = 0;
}

/* ---- messages ---- */

static char *prompt_of(EditLine *el)
{
    return (char *) self(el)->prompt;
}

/* libedit needs to know characters; where the locale says nothing of them, they are UTF-8. */
static void set_locale(void)
{
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

bool editor_open(Editor **out, const Options *o, const char *path, EditorWords words)
{
    Editor *e = calloc(1, sizeof *e);
    *out = e;
    if (!e) return complain(o, "out of memory for the line editor") == 0;
    *e = (Editor) { .o = o, .words = words, .prompt = "", .out = isatty(STDOUT_FILENO) == 1 ? stdout : stderr };
    set_locale();
    e->el = el_init("ratoon", stdin, e->out, stderr);
    e->history = e->el ? new_history() : NULL;
    if (!e->el || !e->history) return complain(o, "the line editor could not be started") == 0;
    if (path) read_history(e, path);
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_PROMPT, prompt_of);
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_HIST, history, e->history);
    el_set(e->el, EL_GETCFN, next_char);
    el_set(e->el, EL_ADDFN, "ratoon-complete", "Completes commands and files", complete);
    el_set(e->el, EL_BIND, "^I", "ratoon-complete", NULL);
    el_set(e->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(e->el, NULL);                        /* ~/.editrc, if there is one */
    sigaction(SIGWINCH, &(struct sigaction) { .sa_handler = on_resize }, NULL);
    sigaction(SIGCONT, &(struct sigaction) { .sa_handler = on_continue }, NULL);
    return true;
}

void editor_close(Editor *e)
{
    if (!e) return;
    if (e->el) el_end(e->el);
    if (e->history) history_end(e->history);
    free(e);
}

static bool add(char **text, size_t *n, const char *s, size_t len)
{
    char *more = realloc(*text, *n + len + 1);
    if (!more) return false;
    memcpy(more + *n, s, len);
    more[*n += len] = 0;
    *text = more;
    return true;
}

/* How much of a block of n bytes is its text, if it is whole: it ends with """. */
static bool block_ends(const char *s, size_t n, size_t *text)
{
    *text = n - 3;
    return n >= 6 && memcmp(s + n - 3, "\"\"\"", 3) == 0;
}

static void bracket_pastes(const Editor *e, bool on)
{
    const char *term = getenv("TERM");
    if (!term || strcmp(term, "dumb") == 0) return;
    fputs(on ? "\033[?2004h" : "\033[?2004l", e->out);
    fflush(e->out);
}

/* Lines are added to *out until they are a message. */
static Edited read_lines(Editor *e, char **out, size_t *n)
{
    for (bool block = false, first = true;; first = false) {
        int count = 0;
        el_set(e->el, EL_PREP_TERM, 1);            /* before the prompt: el_gets would do it after, and a Ctrl-D in between is lost */
        if (first) bracket_pastes(e, true);
        const char *line = el_gets(e->el, &count);
        if (interrupts) return EDIT_INTERRUPTED;
        if (!line || count <= 0) return EDIT_END;
        size_t len = strlen(line), text;
        while (len > 0 && line[len - 1] == '\n') len--;
        if (first) block = strncmp(line, "\"\"\"", 3) == 0;
        if (!add(out, n, line, len)) return EDIT_NO_MEMORY;
        e->prompt = ". ";
        if (block && block_ends(*out, *n, &text)) {
            size_t from = 3 + ((*out)[3] == '\n');
            if (text > from && (*out)[text - 1] == '\n') text--;
            memmove(*out, *out + from, text > from ? text - from : 0);
            (*out)[text > from ? text - from : 0] = 0;
            return EDITED;
        }
        if (!block && (len == 0 || (*out)[*n - 1] != '\\')) return EDITED;
        if (!block) (*out)[*n - 1] = '\n';
        else if (!add(out, n, "\n", 1)) return EDIT_NO_MEMORY;
    }
}

Edited editor_read(Editor *e, char **out, const char *prompt)
{
    size_t n = 0;
    *out = NULL;
    interrupts = 0;
    e->prompt = prompt;
    e->n_ahead = 0;
    e->pasting = false;
    Edited end = read_lines(e, out, &n);
    bracket_pastes(e, false);
    if (end != EDITED) {
        free(*out);
        *out = NULL;
        if (end == EDIT_INTERRUPTED || end == EDIT_END) fputc('\n', e->out);
        interrupts = 0;
        return end;
    }
    if ((*out)[strspn(*out, " \t\n")]) remember(e, *out);
    return EDITED;
}
