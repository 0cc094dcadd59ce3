#include "programs/talk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/json.h"
#include "base/save.h"

static bool no_memory(const Talk *t) { return complain(t->p->o, "out of memory for the conversation") == 0; }

bool talk_open(Talk *t, Program *p)
{
    const Options *o = p->o;
    TemplateError err;
    unsigned char bytes[12] = { 0 };
    *t = (Talk) { .p = p, .think = o->think };
    if (!rt_has_tokenizer(p->engine)) return complain(o, "%s: it carries no tokenizer, so nobody can talk with it", p->files.model) == 0;
    if (chat_open(&t->template, p, &err) != ST_OK) return template_complain(o, &err);
    if (o->think && !chat_prompt_caps(t->template)->thinking) note(o, "--think: the model's chat template has no such choice");
    t->style = chat_style(p->engine);
    t->style.calls = CALLS_NONE;                   /* no tools are declared: what looks like a call is text */
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) return complain(o, "no random bytes: %s", strerror(errno)) == 0;
    for (size_t i = 0; i < sizeof bytes; i++) sprintf(t->secret + 2 * i, "%02x", bytes[i]);
    return !o->system || talk_system(t, o->system);
}

static void turn_free(Turn *x)
{
    free(x->user);
    free(x->text);
    free(x->reasoning);
    free(x->token);
}

void talk_clear(Talk *t)
{
    for (int32_t i = 0; i < t->n; i++) turn_free(&t->turn[i]);
    t->n = 0;
}

void talk_close(Talk *t)
{
    talk_clear(t);
    free(t->turn);
    free(t->system);
    chat_prompt_close(t->template);
    *t = (Talk) { 0 };
}

void talk_undo(Talk *t)
{
    if (t->n > 0) turn_free(&t->turn[--t->n]);
}

void talk_forget(Talk *t)
{
    for (int32_t i = 0; i < t->n; i++) t->turn[i].n = 0;
}

bool talk_system(Talk *t, const char *text)
{
    char *copy = *text ? strdup(text) : NULL;
    if (*text && !copy) return no_memory(t);
    free(t->system);
    t->system = copy;
    talk_forget(t);
    return true;
}

int32_t talk_tokens(const Talk *t)
{
    int32_t n = 0;
    for (int32_t i = 0; i < t->n; i++) n += t->turn[i].n;
    return n;
}

/* ---- the prompt ---- */

static void mark_of(char out[64], const Talk *t, const char *what, int32_t turn) { snprintf(out, 64, "@@%s.%s%d@@", t->secret, what, turn); }

/* marks: in place of all answers, and of the last turn's reasoning unless that was cut short; else the texts. user NULL: no further question. */
static json_t *messages_of(const Talk *t, const char *user, bool marks)
{
    json_t *list = json_array();
    if (t->system) json_array_append_new(list, json_pack("{s:s s:o}", "role", "system", "content", json_text(t->system, strlen(t->system))));
    for (int32_t i = 0; i < t->n; i++) {
        const Turn *x = &t->turn[i];
        char text[64], reasoning[64];
        mark_of(text, t, "", i);
        mark_of(reasoning, t, "r", i);
        json_array_append_new(list, json_pack("{s:s s:o}", "role", "user", "content", json_text(x->user, strlen(x->user))));
        json_t *answer = json_pack("{s:s s:o}", "role", "assistant", "content", marks ? json_string(text) : json_text(x->text, strlen(x->text)));
        if (*x->reasoning && (!marks || (i == t->n - 1 && !x->unclosed)))
            json_object_set_new(answer, "reasoning_content", marks ? json_string(reasoning) : json_text(x->reasoning, strlen(x->reasoning)));
        json_array_append_new(list, answer);
    }
    if (user) json_array_append_new(list, json_pack("{s:s s:o}", "role", "user", "content", json_text(user, strlen(user))));
    return list;
}

static Status render(TemplateText *out, const Talk *t, const char *user, bool marks, bool generation, TemplateError *err)
{
    struct tm now = clock_now(t->p->o);
    json_t *messages = messages_of(t, user, marks), *kwargs = json_pack("{s:b}", "enable_thinking", t->think);
    ChatRequest q = { .messages = messages, .kwargs = kwargs, .generation = generation, .now = &now };
    Status st = chat_prompt_render(out, t->template, &q, err);
    json_decref(messages);
    json_decref(kwargs);
    return st;
}

/* The place of a mark that the text has once; SIZE_MAX: it does not. */
static size_t find_mark(const TemplateText *text, const char *mark)
{
    const char *at = memmem(text->text, text->n, mark, strlen(mark));
    size_t rest = at ? text->n - (size_t) (at + 1 - text->text) : 0;
    return at && !memmem(at + 1, rest, mark, strlen(mark)) ? (size_t) (at - text->text) : SIZE_MAX;
}

/* The last turn without its reasoning, as the template shows it. False: it cannot be cut out. */
static bool leave_out_reasoning(Talk *t, const TemplateText *text, size_t mark)
{
    Turn *x = &t->turn[t->n - 1];
    size_t from = 0;
    int32_t *token = NULL, n = 0;
    if (x->spoken < 0) return false;
    if (t->n > 1) {
        char before[64];
        mark_of(before, t, "", t->n - 2);
        from = find_mark(text, before);
        if (t->turn[t->n - 2].n == 0 || from == SIZE_MAX || from > mark) return false;
        from += strlen(before);
    }
    int32_t answer = x->n - x->asked - x->spoken;
    bool good = chat_append(t->p->engine, &token, &n, text, from, mark, "");
    int32_t *all = good ? realloc(token, sizeof *all * (size_t) (n + answer + 1)) : NULL;
    if (!all) {
        free(token);
        return false;
    }
    memcpy(all + n, x->token + x->asked + x->spoken, sizeof *all * (size_t) answer);
    free(x->token);
    x->token = all;
    x->n = n + answer;
    x->asked = n;
    x->spoken = 0;
    return true;
}

/* The tokens of all turns and those of the text behind the last answer. False: the rendering does not come apart. */
static bool go_on(Question *q, Talk *t, const char *user, TemplateText *text)
{
    TemplateError ignored;
    char mark[64], thought[64];
    Turn *last = &t->turn[t->n - 1];
    if (last->n == 0 || render(text, t, user, true, true, &ignored) != ST_OK) return false;
    mark_of(mark, t, "", t->n - 1);
    mark_of(thought, t, "r", t->n - 1);
    size_t at = find_mark(text, mark);
    if (at == SIZE_MAX) return false;
    bool shown = find_mark(text, thought) != SIZE_MAX;
    if (last->spoken != 0 && !shown && !leave_out_reasoning(t, text, at)) return false;
    q->token = malloc(sizeof *q->token * (size_t) (talk_tokens(t) + 1));
    if (!q->token) return false;
    for (int32_t i = 0; i < t->n; i++) {
        if (t->turn[i].n > 0) memcpy(q->token + q->n, t->turn[i].token, sizeof *q->token * (size_t) t->turn[i].n);
        q->n += t->turn[i].n;
    }
    q->held = q->n;
    return chat_append(t->p->engine, &q->token, &q->n, text, at + strlen(mark), text->n, "");
}

/* The tokens of the prompt that do not yet belong to the answer: what a rendering without its beginning has in common with it. */
static int32_t before_answer(const Talk *t, const Question *q, const char *user)
{
    TemplateText text = { 0 };
    TemplateError ignored;
    char mark[64];
    bool marks = q->held > 0;
    int32_t first = marks, n = first, *ids = calloc(1, sizeof *ids), same = 0;     /* not the first tokens of a text, where others are before them */
    size_t from = 0;
    bool good = ids && render(&text, t, user, marks, false, &ignored) == ST_OK;
    if (good && marks) {
        mark_of(mark, t, "", t->n - 1);
        from = find_mark(&text, mark);
        good = from != SIZE_MAX;
        from += strlen(mark);
    }
    if (good && chat_append(t->p->engine, &ids, &n, &text, from, text.n, ""))
        while (first + same < n && q->held + same < q->n && ids[first + same] == q->token[q->held + same]) same++;
    free(ids);
    template_text_free(&text);
    return same > 0 && q->held + same < q->n - 1 ? q->held + same : 0;
}

bool talk_ask(Question *q, Talk *t, const char *user)
{
    TemplateText text = { 0 };
    TemplateError err;
    *q = (Question) { 0 };
    bool good = t->n > 0 && go_on(q, t, user, &text);
    if (!good) {
        template_text_free(&text);
        question_free(q);
        talk_forget(t);
        good = render(&text, t, user, false, true, &err) == ST_OK || template_complain(t->p->o, &err);
        if (good && !chat_append(t->p->engine, &q->token, &q->n, &text, 0, text.n, ""))
            good = complain(t->p->o, "the prompt of %zu bytes could not be tokenized", text.n) == 0;
    }
    if (good && q->n == 0) good = complain(t->p->o, "the chat template makes an empty prompt of this") == 0;
    if (good) {
        q->n_opening = text.n < sizeof q->opening ? text.n : sizeof q->opening;
        memcpy(q->opening, text.text + text.n - q->n_opening, q->n_opening);
        if (t->style.think != THINK_NONE && (t->think || !chat_prompt_caps(t->template)->thinking)) q->mark = before_answer(t, q, user);
    }
    template_text_free(&text);
    if (!good) question_free(q);
    return good;
}

void question_free(Question *q)
{
    free(q->token);
    *q = (Question) { 0 };
}

/* Takes the texts. */
static bool add_turn(Talk *t, Turn x)
{
    Turn *more = x.user && x.text && x.reasoning ? realloc(t->turn, sizeof *more * (size_t) (t->n + 1)) : NULL;
    if (!more) {
        turn_free(&x);
        return no_memory(t);
    }
    t->turn = more;
    t->turn[t->n++] = x;
    return true;
}

bool talk_answered(Talk *t, const Question *q, const char *user, const TalkAnswer *a)
{
    Turn x = { .user = strdup(user), .text = strdup(a->text), .reasoning = strdup(a->reasoning), .unclosed = a->unclosed, .asked = q->n - q->held,
               .spoken = a->spoken };
    x.n = x.asked + a->n;
    x.token = malloc(sizeof *x.token * (size_t) x.n);
    if (!x.token) {
        turn_free(&x);
        return no_memory(t);
    }
    memcpy(x.token, q->token + q->held, sizeof *x.token * (size_t) x.asked);
    if (a->n > 0) memcpy(x.token + x.asked, a->token, sizeof *x.token * (size_t) a->n);
    return add_turn(t, x);
}

/* ---- files ---- */

static bool write_json(void *ud, FILE *f) { return json_dumpf(ud, f, JSON_INDENT(2) | JSON_PRESERVE_ORDER) == 0 && fputc('\n', f) != EOF; }

bool talk_save(const Talk *t, const char *path)
{
    Error err = { 0 };
    json_t *all = json_pack("{s:o}", "messages", messages_of(t, NULL, false));
    if (!all) return no_memory(t);
    Status st = save_file(path, write_json, all, &err);
    json_decref(all);
    return st == ST_OK || complain(t->p->o, "%s", err.text) == 0;
}

static bool is_role(const json_t *message, const char *role)
{
    const char *s = json_string_value(json_object_get(message, "role"));
    return s && strcmp(s, role) == 0;
}

static char *copy_of(const json_t *message, const char *key)
{
    const char *s = json_string_value(json_object_get(message, key));
    return strdup(s ? s : "");
}

/* The place of the first message that is not in order, -1: there is none. */
static int64_t out_of_order(const json_t *list)
{
    size_t i, first = is_role(json_array_get(list, 0), "system");
    json_t *m;
    json_array_foreach(list, i, m) {
        const char *expected = i < first ? "system" : (i - first) % 2 ? "assistant" : "user";
        json_t *reasoning = json_object_get(m, "reasoning_content");
        if (!is_role(m, expected) || !json_is_string(json_object_get(m, "content")) || (reasoning && !json_is_string(reasoning))) return (int64_t) i;
    }
    return -1;
}

static bool take_messages(Talk *t, char **open, const json_t *list)
{
    size_t n = json_array_size(list), i = is_role(json_array_get(list, 0), "system");
    talk_clear(t);
    if (!talk_system(t, i ? json_string_value(json_object_get(json_array_get(list, 0), "content")) : "")) return false;
    for (; i + 1 < n; i += 2) {
        const json_t *user = json_array_get(list, i), *answer = json_array_get(list, i + 1);
        if (!add_turn(t, (Turn) { .user = copy_of(user, "content"), .text = copy_of(answer, "content"), .reasoning = copy_of(answer, "reasoning_content") }))
            return false;
    }
    *open = i < n ? copy_of(json_array_get(list, i), "content") : NULL;
    return true;
}

bool talk_load(Talk *t, char **open, const char *path)
{
    const Options *o = t->p->o;
    json_t *j;
    *open = NULL;
    if (!json_file(o, &j, path)) return false;
    const json_t *list = json_is_array(j) ? j : json_object_get(j, "messages");
    int64_t wrong = out_of_order(list);
    bool good = false;
    if (!json_is_array(list)) complain(o, "%s: it has no list of messages", path);
    else if (wrong >= 0)
        complain(o, "%s: messages[%lld] is out of order; expected texts of user and assistant by turns, a system message before them", path, (long long) wrong);
    else good = take_messages(t, open, list);
    json_decref(j);
    return good;
}
