#include "text/reply/reply_watch.h"

#include <stdlib.h>
#include <string.h>

#include "text/grammar/grammar_mask.h"
#include "text/reply/reply_impl.h"

/* Where free text is. KEY to STRING_NEXT: in an answer that has been a JSON object so far and may be a call; ARGS_COLON
 * belongs to a form, whose tool name has been read. Strings of other members are skipped. LOST: in a string that is not
 * an expected one; when it ends, this is not a call. */
typedef enum { IN_TEXT, IN_AFTER, IN_REASON, IN_PYTHON, IN_KEY, IN_NAME_COLON, IN_NAME, IN_ARGS_COMMA, IN_ARGS_KEY,
               IN_ARGS_COLON, IN_OTHER_COLON, IN_OTHER, IN_STRING, IN_NEXT, IN_LOST, IN_LOST_ESCAPE } Where;

/* Same meaning as the fields of the same name in the decoder's Reply. bare: after a call that was a bare object. wait,
 * n_wait: the first candidate of which n_wait bytes have come; n_wait 0: none. */
typedef struct {
    uint8_t  where;
    bool     line_start, fence, empty, bare;
    uint8_t  ticks;
    uint32_t form, wait, n_wait;
} Free;

enum { CALL_NOT = -2, CALL_MARKED = -1 };          /* other values: the form of a bare call */
typedef struct { uint32_t to; int64_t call; } Edge;

/* Candidates: marks by their symbol, then the words of a bare call, then the tools' names. */
enum { WORD_NAME = S_STOP, WORD_TYPE, WORD_ID, WORD_ARGUMENTS, WORD_PARAMETERS, N_WORDS };
static const char *const WORDS[] = { "\"name\"", "\"type\"", "\"id\"", "\"arguments\"", "\"parameters\"" };
static const uint32_t MARKS[] = { S_THINK, S_THINK_END, S_CALL, S_CALL_END, S_PYTHON };
/* all bytes above ASCII are treated alike */
enum { ASCII = 128, HIGH = ASCII, FIRST_MARK, N_SYMBOLS = FIRST_MARK + sizeof MARKS / sizeof *MARKS };
enum { TICKS_MAX = 4, STATES_MAX = 30000 };

typedef struct { char *quoted; uint32_t form; } Named;

typedef struct {
    const char *mark[N_MARKS];
    Named   *tool; size_t n_tools;                 /* sorted by name */
    Free    *state; uint32_t n, cap;
    uint32_t *slot, n_slots;
    Bytes    text;
    bool     full;
} Watch;

/* ---- candidates ---- */

static const char *candidate(const Watch *w, uint32_t i)
{
    if (i < S_STOP) return i >= S_QUOTE ? w->mark[i - S_QUOTE] : NULL;
    return i < N_WORDS ? WORDS[i - WORD_NAME] : w->tool[i - N_WORDS].quoted;
}

static bool expected(const Watch *w, const Free *s, uint32_t i)
{
    if (!candidate(w, i)) return false;
    switch ((Where) s->where) {
    case IN_TEXT:
        return s->line_start && !s->fence && (i == S_THINK || i == S_THINK_END || i == S_CALL || i == S_PYTHON);
    case IN_AFTER:    return i == S_THINK || i == S_THINK_END || i == S_CALL || i == S_CALL_END || i == S_PYTHON;
    case IN_REASON:   return i == S_THINK_END;
    case IN_KEY:      return i == WORD_NAME || i == WORD_TYPE || i == WORD_ID;
    case IN_ARGS_KEY: return i == WORD_ARGUMENTS || i == WORD_PARAMETERS;
    default:          return false;
    }
}

/* A mark that is a token counts wherever the mark has a meaning. */
static bool means_something(const Free *s, uint32_t mark)
{
    if (s->where == IN_TEXT) return mark != S_CALL_END;
    return s->where == IN_AFTER || (s->where == IN_REASON && mark == S_THINK_END);
}

/* ---- effect of a mark or a byte ---- */

static void after_name(Free *s, Where where)
{
    s->where = (uint8_t) where;
    s->line_start = false;
}

static void take(const Watch *w, Free *s, uint32_t i, int64_t *call)
{
    switch (i) {
    case S_THINK:
        *s = (Free) { .where = IN_REASON, .empty = s->where == IN_TEXT && s->empty };
        return;
    case S_THINK_END:
        if (s->where == IN_REASON) s->where = IN_TEXT;
        s->line_start = true;
        s->fence = false;
        s->ticks = 0;
        return;
    case S_CALL:
        s->where = IN_AFTER;
        s->empty = s->bare = false;
        *call = CALL_MARKED;
        return;
    case S_CALL_END:      return;
    case S_PYTHON:
        after_name(s, IN_PYTHON);
        s->fence = false;
        return;
    case WORD_NAME:       after_name(s, IN_NAME_COLON); return;
    case WORD_TYPE:
    case WORD_ID:         after_name(s, IN_OTHER_COLON); return;
    case WORD_ARGUMENTS:
    case WORD_PARAMETERS: after_name(s, IN_ARGS_COLON); return;
    default:
        after_name(s, IN_ARGS_COMMA);
        s->form = w->tool[i - N_WORDS].form;
    }
}

static void follow_lines(Free *s, int c)
{
    bool tick = c == '`' && (s->line_start || s->ticks > 0);
    s->ticks = (uint8_t) (!tick ? 0 : s->ticks < TICKS_MAX ? s->ticks + 1 : TICKS_MAX);
    if (s->ticks == 3) s->fence = !s->fence;
    if (c == '\n') s->line_start = true;
    else if (!is_space(c)) s->line_start = false;
}

static void begin_object(Free *s)
{
    s->where = IN_KEY;
    s->line_start = s->bare = s->empty = false;
    s->ticks = 0;
}

/* This is not a call: what has been read of it is text, and c is processed as such. */
static Step no_call(Free *s)
{
    s->where = IN_TEXT;
    s->empty = s->bare = false;
    s->form = 0;
    return AGAIN;
}

/* White space is allowed between all parts of an object. */
static Step object_step(Free *s, int c, char wanted, Where then)
{
    if (is_space(c)) {
        s->line_start |= c == '\n';
        return TAKEN;
    }
    if (c != wanted) return no_call(s);
    after_name(s, then);
    return TAKEN;
}

static Step plain(const Watch *w, Free *s, int c, int64_t *call)
{
    Step step;
    switch ((Where) s->where) {
    case IN_REASON: return TAKEN;
    case IN_TEXT:
        if (c == '{' && s->empty && w->n_tools > 0) {
            begin_object(s);
            return TAKEN;
        }
        follow_lines(s, c);
        s->empty &= is_space(c);
        return TAKEN;
    case IN_AFTER:
        if (is_space(c) || (s->bare && (c == ';' || c == ','))) return TAKEN;
        if (!s->bare || c != '{') return no_call(s);
        begin_object(s);
        return TAKEN;
    case IN_PYTHON:
        if (is_space(c)) return TAKEN;
        if (c != '{') return no_call(s);
        begin_object(s);
        return TAKEN;
    case IN_NAME_COLON:  return object_step(s, c, ':', IN_NAME);
    case IN_ARGS_COMMA:  return object_step(s, c, ',', IN_ARGS_KEY);
    case IN_OTHER_COLON: return object_step(s, c, ':', IN_OTHER);
    case IN_OTHER:       return object_step(s, c, '"', IN_STRING);
    case IN_NEXT:        return object_step(s, c, ',', IN_KEY);
    case IN_STRING:
        if (c == '"' || c == '\\') s->where = c == '"' ? IN_NEXT : IN_LOST_ESCAPE;
        return TAKEN;
    case IN_LOST:
        if (c == '\\') s->where = IN_LOST_ESCAPE;
        if (c == '"') no_call(s);
        return TAKEN;
    case IN_LOST_ESCAPE:
        s->where = IN_LOST;
        return TAKEN;
    case IN_ARGS_COLON:
        step = object_step(s, c, ':', IN_AFTER);
        if (s->where != IN_AFTER) return step;
        *call = s->form;
        s->bare = true;
        s->form = 0;
        return step;
    default:             return object_step(s, c, '"', IN_LOST);        /* a name that is not an expected one */
    }
}

/* ---- states ---- */

static uint32_t state_of(Watch *w, const Free *s)
{
    uint32_t h = (s->where * 131u + s->ticks * 31u + s->form * 40503u + s->wait * 2654435761u + s->n_wait * 97u) ^
                 ((uint32_t) s->line_start << 9 | (uint32_t) s->fence << 10 | (uint32_t) s->empty << 11 |
                  (uint32_t) s->bare << 12);
    for (h ^= h >> 15; w->slot[h & (w->n_slots - 1)]; h++) {
        const Free *o = &w->state[w->slot[h & (w->n_slots - 1)] - 1];
        if (o->where == s->where && o->line_start == s->line_start && o->fence == s->fence && o->empty == s->empty &&
            o->bare == s->bare && o->ticks == s->ticks && o->form == s->form && o->wait == s->wait &&
            o->n_wait == s->n_wait)
            return w->slot[h & (w->n_slots - 1)] - 1;
    }
    if (w->n == w->cap) {
        w->full = true;
        return 0;
    }
    w->state[w->n++] = *s;
    w->slot[h & (w->n_slots - 1)] = w->n;
    return w->n - 1;
}

/* Maximum length of a queue: a candidate's bytes, and a mark's text in place of its token. */
enum { QUOTED_MAX = 6 * 256 + 2, QUEUE_MAX = QUOTED_MAX + 64 };

/* Candidates at the head of q: YES: found, *i and its length; MORE: one may be there. */
typedef enum { NO, MORE, YES } Found;

/* There may be many names, so the first one that matches is found by binary search. */
static Found name_at_head(const Watch *w, const int *q, size_t n, uint32_t *i, size_t *len)
{
    size_t lo = 0, hi = w->n_tools;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2, m = 0;
        const char *text = w->tool[mid].quoted;
        while (m < n && text[m] && q[m] == (uint8_t) text[m]) m++;
        if (m < n && (uint8_t) text[m] < q[m]) lo = mid + 1;
        else hi = mid;
    }
    if (lo == w->n_tools) return NO;
    const char *text = w->tool[lo].quoted;
    for (size_t m = 0; m < n; m++)
        if (q[m] != (uint8_t) text[m]) return NO;
    *i = N_WORDS + (uint32_t) lo;
    *len = n;
    return text[n] ? MORE : YES;
}

static Found at_head(const Watch *w, const Free *s, const int *q, size_t n, uint32_t *i, size_t *len)
{
    if (s->where == IN_NAME) return name_at_head(w, q, n, i, len);
    /* names that belong to no tool: most of the repeated reading */
    if (s->where == IN_STRING || s->where >= IN_LOST) return NO;
    for (uint32_t k = S_QUOTE; k < N_WORDS; k++) {
        if (!expected(w, s, k)) continue;
        const char *text = candidate(w, k);
        size_t m = 0;
        while (m < n && text[m] && q[m] == (uint8_t) text[m]) m++;
        if (m < n && text[m]) continue;
        *i = k;
        *len = m;
        return text[m] ? MORE : YES;
    }
    return NO;
}

/* The state after one more symbol, processed as the decoder would: at the head of the queue. */
static Edge step(Watch *w, uint32_t from, int symbol)
{
    int q[QUEUE_MAX];
    size_t n = 0, head = 0, len;
    Free s = w->state[from];
    Edge e = { .call = CALL_NOT };
    const char *waits = s.n_wait ? candidate(w, s.wait) : "";
    while (n < s.n_wait) {
        q[n] = (uint8_t) waits[n];
        n++;
    }
    q[n++] = symbol;
    s.wait = s.n_wait = 0;
    while (head < n) {
        uint32_t i;
        Found f = at_head(w, &s, q + head, n - head, &i, &len);
        int c = q[head];
        if (f == MORE) {
            s.wait = i;
            s.n_wait = (uint32_t) len;
            if (s.where >= IN_KEY) s.line_start = false;       /* a quote, whatever it turns out to be */
            break;
        }
        if (f == YES) {
            take(w, &s, i, &e.call);
            head += len;
        } else if (c < FIRST_MARK) {
            head += plain(w, &s, c, &e.call) == TAKEN;
        } else if (means_something(&s, MARKS[c - FIRST_MARK])) {
            take(w, &s, MARKS[c - FIRST_MARK], &e.call);
            head++;
        } else if (s.where == IN_STRING || s.where >= IN_LOST) {
            head++;
        } else if (s.where >= IN_PYTHON) {
            no_call(&s);
        } else {                                   /* replace the token by the mark's text */
            const char *text = w->mark[MARKS[c - FIRST_MARK] - S_QUOTE];
            size_t m = strlen(text);
            memmove(q, q + head + 1, (n - head - 1) * sizeof *q);
            n -= head + 1;
            memmove(q + m, q, n * sizeof *q);
            for (size_t k = 0; k < m; k++) q[k] = (uint8_t) text[k];
            n += m;
            head = 0;
        }
    }
    e.to = state_of(w, &s);
    return e;
}

/* ---- as rules ---- */

static void put(Watch *w, const char *s) { bytes_text(&w->text, s); }

static void put_number(Watch *w, const char *before, int64_t n)
{
    char digits[24];
    size_t at = sizeof digits;
    digits[--at] = 0;
    do digits[--at] = (char) ('0' + n % 10);
    while ((n /= 10) > 0);
    put(w, before);
    put(w, digits + at);
    put(w, " ");
}

static void put_code(Watch *w, int c)
{
    char text[] = { '\\', 'x', "0123456789abcdef"[c >> 4 & 15], "0123456789abcdef"[c & 15], 0 };
    put(w, text);
}

/* The symbols with the same next state, as one alternative: ASCII as a class, then the rest by their rules. */
static void put_symbols(Watch *w, const Edge *edge, Edge which)
{
    bool open = false, any = false;
    put(w, "(");
    for (int c = 0; c < ASCII; c++) {
        if (edge[c].to != which.to || edge[c].call != which.call) continue;
        int last = c;
        while (last + 1 < ASCII && edge[last + 1].to == which.to && edge[last + 1].call == which.call) last++;
        if (!open) put(w, "[");
        open = any = true;
        put_code(w, c);
        if (last > c) {
            put(w, "-");
            put_code(w, last);
        }
        c = last;
    }
    if (open) put(w, "]");
    GrammarSchema mark[WATCH_MARKS];
    watch_marks(mark);
    for (int c = HIGH; c < N_SYMBOLS; c++) {
        if (c >= FIRST_MARK && !w->mark[MARKS[c - FIRST_MARK] - S_QUOTE]) continue;
        if (edge[c].to != which.to || edge[c].call != which.call) continue;
        if (any) put(w, " | ");
        any = true;
        put(w, mark[c - HIGH].rule);
    }
    put(w, ")");
}

static void put_rule(Watch *w, uint32_t s)
{
    Edge edge[N_SYMBOLS] = { { 0 } };
    bool done[N_SYMBOLS] = { false };
    for (int c = 0; c < N_SYMBOLS; c++) {
        bool there = c < FIRST_MARK || w->mark[MARKS[c - FIRST_MARK] - S_QUOTE];
        if (there) edge[c] = step(w, s, c);
        else done[c] = true;
    }
    put_number(w, "free-", s);
    put(w, "::= ");
    /* symbols that change nothing form a loop, so that whole branches of the vocabulary need no visit */
    for (int c = 0; c < N_SYMBOLS; c++) {
        if (done[c] || edge[c].to != s || edge[c].call != CALL_NOT) continue;
        put_symbols(w, edge, edge[c]);
        put(w, "* ");
        break;
    }
    put(w, "(");
    for (int c = 0; c < N_SYMBOLS; c++) {
        if (done[c] || (edge[c].to == s && edge[c].call == CALL_NOT)) continue;
        for (int k = c; k < N_SYMBOLS; k++) done[k] |= edge[k].to == edge[c].to && edge[k].call == edge[c].call;
        put_symbols(w, edge, edge[c]);
        if (edge[c].call == CALL_MARKED) put(w, " call");
        if (edge[c].call >= 0) put_number(w, " bare-", edge[c].call);
        put_number(w, " free-", edge[c].to);
        put(w, "| ");
    }
    put(w, ")\n");
}

void watch_marks(GrammarSchema out[WATCH_MARKS])
{
    static const char *const RULE[WATCH_MARKS] = { "high", "mark-think", "mark-think-end", "mark-call", "mark-call-end",
                                                   "mark-python" };
    out[0] = (GrammarSchema) { .rule = RULE[0], .lo = 0x80, .hi = PRIVATE - 1 };
    for (int i = 1; i < WATCH_MARKS; i++) {
        uint8_t byte = (uint8_t) (PRIVATE + MARKS[i - 1] - S_QUOTE);
        out[i] = (GrammarSchema) { .rule = RULE[i], .lo = byte, .hi = byte };
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const Named *) a)->quoted, ((const Named *) b)->quoted);
}

static bool quote_names(Watch *w, const Watched *tool)
{
    for (size_t i = 0; i < w->n_tools; i++) {
        size_t n = strlen(tool[i].name);
        char *s = n + 2 <= QUOTED_MAX ? malloc(n + 3) : NULL;
        if (!s) return false;
        s[0] = '"';
        memcpy(s + 1, tool[i].name, n);
        memcpy(s + 1 + n, "\"", 2);
        w->tool[i] = (Named) { s, (uint32_t) tool[i].form };
    }
    if (w->n_tools > 1) qsort(w->tool, w->n_tools, sizeof *w->tool, by_name);
    return true;
}

Status watch_rules(char **out, ReplyStyle style, const Watched *tool, size_t n, bool behind, Error *err)
{
    Watch w = { .n_tools = n, .cap = STATES_MAX, .n_slots = 1 << 18 };
    style_marks(style, w.mark);
    w.state = malloc(w.cap * sizeof *w.state);
    w.slot = calloc(w.n_slots, sizeof *w.slot);
    w.tool = calloc(n + 1, sizeof *w.tool);
    bool good = w.state && w.slot && w.tool && quote_names(&w, tool);
    Free first = { .where = IN_TEXT, .line_start = true, .empty = n > 0 };
    if (behind) first = (Free) { .where = IN_AFTER, .line_start = true, .bare = n > 0 };
    if (good) state_of(&w, &first);
    for (uint32_t s = 0; good && s < w.n && !w.full; s++) {
        put_rule(&w, s);
        w.full |= w.text.n > GRAMMAR_TEXT_MAX / 4 * 3;
    }
    bytes_char(&w.text, 0);
    good &= !w.text.failed;
    for (size_t i = 0; w.tool && i < n; i++) free(w.tool[i].quoted);
    free(w.tool);
    free(w.state);
    free(w.slot);
    *out = good && !w.full ? w.text.at : NULL;
    if (*out) return ST_OK;
    bytes_free(&w.text);
    if (!good) return fail(err, ST_MEMORY, "out of memory");
    size_t letters = 0;
    for (size_t i = 0; i < n; i++) letters += strlen(tool[i].name);
    return fail(err, ST_UNSUPPORTED, "strict: the names of %zu tools are too long to be watched for: %zu bytes in all, "
                "expected some 9,000 at most", n, letters);
}
