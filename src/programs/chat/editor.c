#include "programs/chat/editor.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include "base/save.h"
#include "programs/program.h"

enum { HISTORY_MAX = 1000, AHEAD = 16, ESCAPE_MS = 25, CTRL_V = 22, ESCAPE = 27, CELLS_MAX = 1 << 22,
       TEXT_CELLS = 1 << 20 };

struct Editor {
    const Options *o;
    EditLine   *el;                                /* NULL: not needed yet */
    bool        plain;                             /* the terminal edits the current line, not libedit */
    bool        tall;                              /* libedit has rows for all of it */
    History    *history;
    char        path[4096];                        /* of the history file; "": not written */
    EditorWords words;
    FILE       *out;
    const char *prompt;
    wchar_t     ahead[AHEAD]; int32_t n_ahead;      /* read but not consumed yet */
    bool        pasting;
    int32_t     left;                              /* a byte that is read again, and 1; 0: none */
    char       *line;                              /* the last line that was read without libedit */
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

/* libedit keeps two copies of the whole screen, and asks for its size again and again. A terminal may report an
 * impossibly large size. */
static bool screen_fits(void)
{
    struct winsize w;
    return ioctl(STDIN_FILENO, TIOCGWINSZ, &w) != 0 || (int64_t) w.ws_row * w.ws_col <= CELLS_MAX;
}

/* libedit writes beyond its copies of the screen where a text has more rows than that. So it is told of more rows than
 * any text has, once it has asked the terminal, which it does for each line. */
static void make_tall(Editor *e)
{
    struct winsize w;
    char rows[16];
    const bool known = ioctl(STDIN_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 1;
    snprintf(rows, sizeof rows, "%d", TEXT_CELLS / (known ? w.ws_col : 80));
    el_set(e->el, EL_SETTC, "li", rows, NULL);
    e->tall = true;
}

static bool is_dumb(void)
{
    const char *term = getenv("TERM");
    return !term || strcmp(term, "dumb") == 0;
}

/* Shown anew from where the cursor is: what the terminal has made of the rows is not known. */
static void fit_screen(Editor *e)
{
    el_resize(e->el);
    make_tall(e);
    fputs(is_dumb() ? "\r" : "\r\033[J", e->out);
    el_set(e->el, EL_REFRESH);                     /* its cursor may lie outside of its new copies */
}

/* ---- keys ---- */

static Editor *self(EditLine *el)
{
    void *e = NULL;
    el_get(el, EL_CLIENTDATA, &e);
    return e;
}

/* Reads a byte from the terminal. Returns 1; 0: nothing for `wait` milliseconds (-1: no limit); -1: end of input, or
 * Ctrl-C. A signal may be delivered to one of the engine's threads, so this polls for it now and then. */
static int read_byte(Editor *e, unsigned char *c, int wait)
{
    if (e->left) {
        *c = (unsigned char) (e->left - 1);
        e->left = 0;
        return 1;
    }
    for (;;) {
        if (interrupts) return -1;
        if (resized && !e->plain && screen_fits()) fit_screen(e);
        if (continued && !e->plain) {              /* the shell has used the terminal since */
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

/* Reads a character; invalid UTF-8 becomes U+FFFD, and what ended it is read next. */
static int read_char(Editor *e, wchar_t *out, int wait)
{
    mbstate_t state = { 0 };
    for (int32_t i = 0; i < 4; i++) {
        unsigned char c;
        int got = read_byte(e, &c, i ? 1000 : wait);
        if (got <= 0) return i ? (*out = 0xfffd, 1) : got;
        size_t n = mbrtowc(out, (const char *) &c, 1, &state);
        if (n == (size_t) -1) {
            if (i > 0) e->left = c + 1;
            break;
        }
        if (n != (size_t) -2) return 1;
    }
    *out = 0xfffd;
    return 1;
}

static void put_ahead(Editor *e, const wchar_t *s, int32_t n)
{
    for (int32_t i = 0; i < n && e->n_ahead < AHEAD; i++) e->ahead[e->n_ahead++] = s[i];
}

/* Control characters of a paste are text. */
static void put_char(Editor *e, wchar_t c)
{
    const bool control = e->pasting && (c < 32 || c == 127);
    put_ahead(e, control ? (wchar_t[]) { CTRL_V, c == '\r' ? '\n' : c } : &c, 1 + control);
}

/* An escape and what followed it, which is no mark: in a paste only its text counts. */
static void put_unmarked(Editor *e, const wchar_t *c, int32_t n)
{
    wchar_t escape = ESCAPE;
    if (!e->pasting) put_ahead(e, &escape, 1);
    for (int32_t i = 0; i < n; i++) put_char(e, c[i]);
}

/* Handles what follows an escape: the marks around a paste, and Alt-Enter, which is a line end in the text. Anything
 * else goes to `ahead`. */
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
        if (c[n] == ESCAPE) {                      /* what came before it was no mark; this may begin one */
            put_unmarked(e, c, n);
            e->left = ESCAPE + 1;
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
    put_unmarked(e, c, n);
}

/* Reads characters for libedit. After Ctrl-V a control character is text. */
static int next_char(EditLine *el, wchar_t *out)
{
    Editor *e = self(el);
    if (!e->tall) make_tall(e);
    while (e->n_ahead == 0) {
        wchar_t c;
        int got = read_char(e, &c, -1);
        if (got <= 0) return got;
        if (c == ESCAPE) {
            after_escape(e);
        } else {
            put_char(e, c);
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
    if (f->list) {
        char shown[PATH_MAX];
        snprintf(shown, sizeof shown, "%s", text);
        line_clean(shown);
        fprintf(f->list, "%s  ", shown);
    }
    if (f->n++ == 0) snprintf(f->common, sizeof f->common, "%s", text);
    size_t same = 0;
    while (f->common[same] && f->common[same] == text[same]) same++;
    while (same > 0 && ((unsigned char) f->common[same] & 0xc0) == 0x80) same--;       /* whole characters only */
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

/* A file that is not a history file is left alone. */
static void read_history(Editor *e, const char *path)
{
    HistEvent ev;
    struct stat st;
    bool there = stat(path, &st) == 0 && st.st_size > 0;
    if (there && history(e->history, &ev, H_LOAD, path) < 0)
        note(e->o, "%s: it cannot be read as a history and is left as it is", path);
    else if (!there && !save_folders(path, 0700))
        note(e->o, "%s: %s; no history is kept", path, strerror(errno));
    else
        snprintf(e->path, sizeof e->path, "%s", path);
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

/* The folder is locked, since the file is replaced. If the file system has no locks, none is taken; after waiting a
 * second this gives up. */
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

/* Keeps what other chats have written since: reads the file again and adds the message to that. */
static Status add_to_file(const char *path, const char *message, Error *err)
{
    HistEvent ev;
    struct stat st;
    int lock;
    History *h = new_history();
    Status status = !h ? fail(err, ST_MEMORY, "%s: out of memory", path)
                       : lock_folder(&lock, path) ? ST_OK : fail(err, ST_IO, "%s: %m", path);
    if (status == ST_OK && stat(path, &st) == 0 && st.st_size > 0 && history(h, &ev, H_LOAD, path) < 0)
        status = fail(err, ST_FORMAT, "%s: it is no history", path);
    if (status == ST_OK && history(h, &ev, H_ENTER, message) < 0)
        status = fail(err, ST_MEMORY, "%s: out of memory", path);
    if (status == ST_OK) status = save_file(path, SAVE_PRIVATE, write_history, h, err);
    if (h) history_end(h);
    if (h && lock >= 0) close(lock);
    return status;
}

/* Called after every message, so that nothing is lost however the program ends. */
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

/* libedit needs to know the character encoding; if the locale does not say, it is UTF-8. */
static void set_locale(void)
{
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

static bool start(Editor *e)
{
    e->el = el_init("ratoon", stdin, e->out, stderr);
    if (!e->el) return complain(e->o, "the line editor could not be started") == 0;
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_PROMPT, prompt_of);
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_HIST, history, e->history);
    el_set(e->el, EL_GETCFN, next_char);
    el_set(e->el, EL_ADDFN, "ratoon-complete", "Completes commands and files", complete);
    el_set(e->el, EL_BIND, "^I", "ratoon-complete", NULL);
    el_set(e->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(e->el, NULL);                        /* ~/.editrc, if there is one */
    return true;
}

bool editor_open(Editor **out, const Options *o, const char *path, EditorWords words)
{
    Editor *e = calloc(1, sizeof *e);
    *out = e;
    if (!e) return complain(o, "out of memory for the line editor") == 0;
    *e = (Editor) { .o = o, .words = words, .prompt = "", .history = new_history() };
    e->out = isatty(STDOUT_FILENO) == 1 ? stdout : stderr;
    set_locale();
    if (!e->history) return complain(o, "out of memory for the line editor") == 0;
    if (path) read_history(e, path);
    if (screen_fits() && !start(e)) return false;
    sigaction(SIGWINCH, &(struct sigaction) { .sa_handler = on_resize }, NULL);
    sigaction(SIGCONT, &(struct sigaction) { .sa_handler = on_continue }, NULL);
    return true;
}

void editor_close(Editor *e)
{
    if (!e) return;
    if (e->el) el_end(e->el);
    if (e->history) history_end(e->history);
    free(e->line);
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

/* If a block of n bytes is complete, that is, ends with """: *text is the length of its text. */
static bool block_ends(const char *s, size_t n, size_t *text)
{
    *text = n - 3;
    return n >= 6 && memcmp(s + n - 3, "\"\"\"", 3) == 0;
}

static void bracket_pastes(const Editor *e, bool on)
{
    if (is_dumb()) return;
    fputs(on ? "\033[?2004h" : "\033[?2004l", e->out);
    fflush(e->out);
}

/* Reads a line with its line end, edited by the terminal itself; invalid UTF-8 becomes U+FFFD. NULL: no more lines. */
static const char *plain_line(Editor *e)
{
    size_t n = 0;
    fputs(e->prompt, e->out);
    fflush(e->out);
    for (wchar_t c = 0; c != '\n';) {
        char bytes[MB_LEN_MAX];
        mbstate_t state = { 0 };
        if (read_char(e, &c, -1) <= 0) return NULL;
        size_t len = c ? wcrtomb(bytes, c, &state) : 0;
        if (len != (size_t) -1 && !add(&e->line, &n, bytes, len)) return NULL;
    }
    return e->line;
}

static const char *next_line(Editor *e, bool first)
{
    int count = 0;
    bool was = e->plain;
    e->plain = !screen_fits() || (!e->el && !start(e));
    if (e->plain && !was) note(e->o, "the terminal claims to be larger than any screen: lines are read plainly");
    if (e->plain) return plain_line(e);
    /* Done before the prompt is shown: el_gets would do it afterwards, and a Ctrl-D in between would be lost. */
    el_set(e->el, EL_PREP_TERM, 1);
    continued = 0;                                 /* in an answer: there is no prompt yet to be shown again */
    if (first) bracket_pastes(e, true);
    e->tall = false;
    const char *line = el_gets(e->el, &count);
    return count > 0 ? line : NULL;
}

/* Appends lines to *out until they form a message. */
static Edited read_lines(Editor *e, char **out, size_t *n)
{
    for (bool block = false, first = true;; first = false) {
        const char *line = next_line(e, first);
        if (interrupts) return EDIT_INTERRUPTED;
        if (!line) return EDIT_END;
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
    e->n_ahead = e->left = 0;
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
