#include "programs/chat/talk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/json.h"
#include "base/save.h"
#include "ratoon_chat.h"
#include "text/chat_prompt.h"

static bool no_memory(const Talk *t) { return complain(t->p->o, "out of memory for the conversation") == 0; }

bool talk_open(Talk *t, Program *p)
{
    const Options *o = p->o;
    TemplateError err;
    unsigned char bytes[12] = { 0 };
    *t = (Talk) { .p = p, .think = o->think };
    if (!rt_has_tokenizer(p->engine))
        return complain(o, "%s: it carries no tokenizer, so nobody can talk with it", p->files.model) == 0;
    if (chat_open(&t->template, p, &err) != ST_OK) return template_complain(o, &err);
    if (o->think && !chat_prompt_caps(t->template)->thinking)
        note(o, "--think: the model's chat template has no such choice");
    t->style = chat_style(p->engine);
    t->style.calls = CALLS_NONE;                   /* no tools are declared: what looks like a call is text */
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return complain(o, "no random bytes: %s", strerror(errno)) == 0;
    t->secret = splice_secret(bytes);
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

static SpliceMark mark_of(const Talk *t, const char *what, int32_t turn)
{
    return splice_mark(&t->secret, what, (size_t) turn);
}

/* marks: replace all answers, and the last turn's reasoning unless it was cut short, by marks; otherwise their texts.
 * user NULL: no further question. */
static json_t *messages_of(const Talk *t, const char *user, bool marks)
{
    json_t *list = json_array();
    if (t->system)
        json_array_append_new(list, json_pack("{s:s s:o}", "role", "system", "content",
                                              json_text(t->system, strlen(t->system))));
    for (int32_t i = 0; i < t->n; i++) {
        const Turn *x = &t->turn[i];
        SpliceMark text = mark_of(t, "", i), reasoning = mark_of(t, "r", i);
        json_array_append_new(list,
                              json_pack("{s:s s:o}", "role", "user", "content", json_text(x->user, strlen(x->user))));
        json_t *answer = json_pack("{s:s s:o}", "role", "assistant", "content",
                                   marks ? json_string(text.text) : json_text(x->text, strlen(x->text)));
        if (*x->reasoning && (!marks || (i == t->n - 1 && !x->unclosed)))
            json_object_set_new(answer, "reasoning_content",
                                marks ? json_string(reasoning.text) : json_text(x->reasoning, strlen(x->reasoning)));
        json_array_append_new(list, answer);
    }
    if (user)
        json_array_append_new(list, json_pack("{s:s s:o}", "role", "user", "content", json_text(user, strlen(user))));
    return list;
}

static Status render(TemplateText *out, const Talk *t, const char *user, bool marks, bool generation,
                     TemplateError *err)
{
    struct tm now = clock_now(t->p->o);
    json_t *messages = messages_of(t, user, marks), *kwargs = json_pack("{s:b}", "enable_thinking", t->think);
    ChatRequest q = { .messages = messages, .kwargs = kwargs, .generation = generation, .now = &now };
    Status st = chat_prompt_render(out, t->template, &q, err);
    json_decref(messages);
    json_decref(kwargs);
    return st;
}

/* Rebuilds the last turn without its reasoning, as the template shows it. Returns false if it cannot be cut out. */
static bool leave_out_reasoning(Talk *t, const TemplateText *text, size_t mark)
{
    Turn *x = &t->turn[t->n - 1];
    size_t at, from = 0;
    int32_t *token = NULL, n = 0;
    if (x->spoken < 0) return false;
    if (t->n > 1) {
        SpliceMark before = mark_of(t, "", t->n - 2);
        if (t->turn[t->n - 2].n == 0 || !splice_find(&at, &from, text, 0, &before) || at > mark) return false;
    }
    int32_t skipped = x->asked + x->spoken;
    bool good = chat_append(t->p->engine, &token, &n, text, from, mark, "");
    int32_t asked = n;
    if (!good || !splice_tokens(&token, &n, x->token + skipped, x->n - skipped)) {
        free(token);
        return false;
    }
    free(x->token);
    x->token = token;
    x->n = n;
    x->asked = asked;
    x->spoken = 0;
    return true;
}

/* The tokens of all turns, then of the text after the last answer. Returns false if the rendering cannot be split at
 * its marks. */
static bool go_on(Question *q, Talk *t, const char *user, TemplateText *text)
{
    TemplateError ignored;
    SpliceMark mark = mark_of(t, "", t->n - 1), thought = mark_of(t, "r", t->n - 1);
    Turn *last = &t->turn[t->n - 1];
    size_t at, end, thought_at, thought_end;
    if (last->n == 0 || render(text, t, user, true, true, &ignored) != ST_OK) return false;
    if (!splice_find(&at, &end, text, 0, &mark)) return false;
    bool shown = splice_find(&thought_at, &thought_end, text, 0, &thought);
    if (last->spoken != 0 && !shown && !leave_out_reasoning(t, text, at)) return false;
    for (int32_t i = 0; i < t->n; i++)
        if (!splice_tokens(&q->token, &q->n, t->turn[i].token, t->turn[i].n)) return false;
    q->held = q->n;
    return chat_append(t->p->engine, &q->token, &q->n, text, end, text->n, "");
}

/* Number of tokens that the prompt shares with a rendering without the beginning of the answer. */
static int32_t common_with_bare(const Talk *t, const Question *q, const char *user)
{
    TemplateText text = { 0 };
    TemplateError ignored;
    bool marks = q->held > 0;
    /* if other tokens precede it, leave out those that begin a text */
    int32_t first = marks, n = first, *ids = calloc(1, sizeof *ids), same = 0;
    size_t at, end = 0;
    bool good = ids && render(&text, t, user, marks, false, &ignored) == ST_OK;
    if (good && marks) {
        SpliceMark mark = mark_of(t, "", t->n - 1);
        good = splice_find(&at, &end, &text, 0, &mark);
    }
    if (good && chat_append(t->p->engine, &ids, &n, &text, end, text.n, ""))
        while (first + same < n && q->held + same < q->n && ids[first + same] == q->token[q->held + same]) same++;
    free(ids);
    template_text_free(&text);
    return q->held + same;
}

/* Number of the prompt's tokens before the answer; 0: unknown. */
static int32_t before_answer(const Talk *t, const Question *q, const char *user, const TemplateText *text)
{
    int32_t n = rt_tokens_before(t->p->engine, q->token, (size_t) q->n, text->text, text->n, text->asked);
    if (n < 0) n = common_with_bare(t, q, user);
    return n > q->held && n < q->n - 1 ? n : 0;
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
        if (t->style.think != THINK_NONE && (t->think || !chat_prompt_caps(t->template)->thinking))
            q->mark = before_answer(t, q, user, &text);
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

/* Takes ownership of the texts. */
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
    Turn x = { .user = strdup(user), .text = strdup(a->text), .reasoning = strdup(a->reasoning),
               .unclosed = a->unclosed, .asked = q->n - q->held, .spoken = a->spoken };
    if (splice_tokens(&x.token, &x.n, q->token + q->held, x.asked) && splice_tokens(&x.token, &x.n, a->token, a->n))
        return add_turn(t, x);
    turn_free(&x);
    return no_memory(t);
}

/* ---- files ---- */

static bool write_json(void *ud, FILE *f)
{
    return json_dumpf(ud, f, JSON_INDENT(2) | JSON_PRESERVE_ORDER) == 0 && fputc('\n', f) != EOF;
}

bool talk_save(const Talk *t, const char *path)
{
    Error err = { 0 };
    if (!output_apart(t->p->o, &t->p->files, path)) return false;
    json_t *all = json_pack("{s:o}", "messages", messages_of(t, NULL, false));
    if (!all) return no_memory(t);
    Status st = save_file(path, SAVE_PRIVATE, write_json, all, &err);
    json_decref(all);
    return st == ST_OK || complain(t->p->o, "%s", err.text) == 0;
}

static char *copy_of(const json_t *message, const char *key)
{
    const char *s = json_string_value(json_object_get(message, key));
    return strdup(s ? s : "");
}

/* Index of the first message out of order; -1: none. */
static int64_t out_of_order(const json_t *list)
{
    size_t i, first = role_is(json_array_get(list, 0), "system");
    json_t *m;
    json_array_foreach(list, i, m) {
        const char *expected = i < first ? "system" : (i - first) % 2 ? "assistant" : "user";
        json_t *reasoning = json_object_get(m, "reasoning_content");
        if (!role_is(m, expected) || !json_is_string(json_object_get(m, "content")) ||
            (reasoning && !json_is_string(reasoning)))
            return (int64_t) i;
    }
    return -1;
}

static bool take_messages(Talk *t, char **open, const json_t *list)
{
    size_t n = json_array_size(list), i = role_is(json_array_get(list, 0), "system");
    talk_clear(t);
    if (!talk_system(t, i ? json_string_value(json_object_get(json_array_get(list, 0), "content")) : "")) return false;
    for (; i + 1 < n; i += 2) {
        const json_t *user = json_array_get(list, i), *answer = json_array_get(list, i + 1);
        if (!add_turn(t, (Turn) { .user = copy_of(user, "content"), .text = copy_of(answer, "content"),
                                  .reasoning = copy_of(answer, "reasoning_content") }))
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
        complain(o, "%s: messages[%lld] is out of order; expected texts of user and assistant by turns, a system "
                 "message before them", path, (long long) wrong);
    else good = take_messages(t, open, list);
    json_decref(j);
    return good;
}
