/* The points of a conversation: those found from one rendering equal those that further renderings would give, for all
 * kinds of templates. The tokenizer is the demo model's. Renderings, and the bytes that are tokenized, are counted. */
#include "programs/serve/run/conversation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "programs/serve/run/replay_impl.h"
#include "template_helper.h"
#include "text/chat_builtin.h"

static int renders;
static size_t tokenized;

Status __real_chat_prompt_render(TemplateText *out, const ChatPrompt *c, const ChatRequest *q, TemplateError *err);
Status __wrap_chat_prompt_render(TemplateText *out, const ChatPrompt *c, const ChatRequest *q, TemplateError *err);
Status __wrap_chat_prompt_render(TemplateText *out, const ChatPrompt *c, const ChatRequest *q, TemplateError *err)
{
    renders++;
    return __real_chat_prompt_render(out, c, q, err);
}

size_t __real_rt_tokenize_prompt(const rt_engine *g, const char *s, size_t n, const rt_span *client, size_t n_client,
                                 int32_t *out, size_t cap);
size_t __wrap_rt_tokenize_prompt(const rt_engine *g, const char *s, size_t n, const rt_span *client, size_t n_client,
                                 int32_t *out, size_t cap);
size_t __wrap_rt_tokenize_prompt(const rt_engine *g, const char *s, size_t n, const rt_span *client, size_t n_client,
                                 int32_t *out, size_t cap)
{
    size_t count = __real_rt_tokenize_prompt(g, s, n, client, n_client, out, cap);
    if (count <= cap) tokenized += n;
    return count;
}

/* ---- a server without a model at work ---- */

typedef struct { Server s; Request q; } World;

static void begin(World *w)
{
    rt_error e;
    *w = (World) { .s = { .ctx = 1 << 20, .longest = 64 } };
    rt_options o = RT_OPTIONS(.model = "models/demo/ratoon-demo-q8_0.gguf", .threads = 1);
    assert_int_equal(rt_open(&w->s.p.engine, &o, &e), RT_OK);
    w->s.replay = replay_new();
    w->s.o.template_now = (Seed) { .value = 1700000000, .given = true };
    w->s.o.cache_min_tokens = 1;
    assert_non_null(w->s.replay);
    w->q = (Request) { .dialect = DIALECT_CHAT, .cached = true };
}

static void end(World *w)
{
    replay_free(w->s.replay);
    rt_close(w->s.p.engine);
}

/* This tokenizer would take other families' markers for plain text. */
static char *with_our_markers(const char *s)
{
    static const char *const MARKERS[][2] = {
        { "<|start_header_id|>", "<|im_start|>" }, { "<|eot_id|>", "<|im_end|>" },
        { "<start_of_turn>", "<|im_start|>" }, { "<end_of_turn>", "<|im_end|>" }, { "<|turn>", "<|im_start|>" },
        { "<turn|>", "<|im_end|>" }, { "<assistant>", "<|im_start|>" }, { "</assistant>", "<|im_end|>" },
    };
    enum { N = sizeof MARKERS / sizeof *MARKERS };
    char *out = malloc(2 * strlen(s) + 64), *w = out;
    while (*s) {
        size_t i = 0;
        while (i < N && strncmp(s, MARKERS[i][0], strlen(MARKERS[i][0])) != 0) i++;
        if (i == N) *w++ = *s++;
        else {
            w = stpcpy(w, MARKERS[i][1]);
            s += strlen(MARKERS[i][0]);
        }
    }
    *w = 0;
    return out;
}

static void open_chat(World *w, const char *source)
{
    TemplateError err;
    ChatOptions o = { .source = source, .n = strlen(source), .name = "test", .arch = "", .bos = "<|endoftext|>",
                      .eos = "<|im_end|>" };
    assert_int_equal(chat_prompt_open(&w->s.chat, &o, &err), ST_OK);
}

typedef struct { bool good; int renders; size_t tokenized; JobPrompt p; } Prepared;

static Prepared prepare(World *w)
{
    Prepared r = { 0 };
    HttpError e = { 0 };
    renders = 0;
    tokenized = 0;
    r.good = conversation_prompt(&r.p, &w->s, &w->q, true, &e);
    if (r.good) conversation_points(&w->s, &w->q, &r.p);
    r.renders = renders;
    r.tokenized = tokenized;
    return r;
}

static void prepared_free(Prepared *r)
{
    free(r->p.t);
    free(r->p.text);
}

/* Acts as if the trial renderings had revealed nothing about the template: each point takes a rendering of its own. */
static Prepared prepare_apart(World *w)
{
    ChatCaps *caps = (ChatCaps *) (uintptr_t) chat_prompt_caps(w->s.chat), before = *caps;
    caps->answer_apart = caps->system_apart = false;
    caps->shortens = true;
    Prepared r = prepare(w);
    *caps = before;
    return r;
}

/* Prepares both ways and returns the number of renderings of the first; 0: the template refuses the conversation. */
static int compare(World *w, const char *what, const char *name)
{
    Prepared r = prepare(w), want = prepare_apart(w);
    assert_int_equal(r.good, want.good);
    int n = r.good ? r.renders : 0;
    if (r.good) {
        bool same = r.p.n_point == want.p.n_point && r.p.opening == want.p.opening && r.p.n == want.p.n &&
                    memcmp(r.p.t, want.p.t, sizeof *r.p.t * (size_t) r.p.n) == 0;
        for (int32_t i = 0; same && i < r.p.n_point; i++)
            same = r.p.point[i].at == want.p.point[i].at && r.p.point[i].kind == want.p.point[i].kind;
        if (!same) {
            print_error("%s, %s: opening %zu and %zu of %zu\n", what, name, r.p.opening, want.p.opening, r.p.n_text);
            for (int32_t i = 0; i < r.p.n_point; i++) print_error("  %d kind %d\n", r.p.point[i].at, r.p.point[i].kind);
            for (int32_t i = 0; i < want.p.n_point; i++)
                print_error("  want %d kind %d\n", want.p.point[i].at, want.p.point[i].kind);
            print_error("%s\n", r.p.text);
        }
        assert_true(same);
        assert_int_equal(memcmp(r.p.key, want.p.key, sizeof r.p.key), 0);
    }
    prepared_free(&r);
    prepared_free(&want);
    return n;
}

/* ---- all templates, all conversations ---- */

typedef struct { int one, more; } Counts;

static Counts compare_all(World *w, const char *name, const char *source)
{
    json_t *all = read_json("tests/data/templates/conversations.json"), *c;
    Counts n = { 0 };
    size_t i;
    open_chat(w, source);
    json_array_foreach(all, i, c) {
        w->q.messages = json_object_get(c, "messages");
        w->q.tools = json_object_get(c, "tools");
        w->q.kwargs = json_object_get(c, "kwargs");
        const char *what = json_string_value(json_object_get(c, "name"));
        int r = compare(w, name, what);
        n.one += r == 1;
        n.more += r > 1;
    }
    w->q.messages = w->q.tools = w->q.kwargs = NULL;
    json_decref(all);
    chat_prompt_close(w->s.chat);
    return n;
}

static const char *its_marker;
static bool has_marker(void *ud, const char *text)
{
    (void) ud;
    return strcmp(text, its_marker) == 0;
}

static char *source_of(const char *name, const char *arch)
{
    size_t n;
    if (!arch) {
        char *s = read_template(name, &n);
        s[n] = 0;
        return s;
    }
    its_marker = name;
    const ChatBuiltin *b = chat_builtin(arch, has_marker, NULL);
    assert_non_null(b);
    return strdup(b->source);
}

static void as_many_renderings_tell(void **state)
{
    (void) state;
    /* arch: a built-in template; more: the most conversations that may take more than one rendering: those with an
     * empty question, with the assistant first, with answers whose reasoning will be dropped, with results that become
     * part of the calling message; and templates that count messages before they show them */
    static const struct { const char *name, *arch; int more; } ALL[] = {
        { "chatml", NULL, 2 }, { "headers", NULL, 2 }, { "reasoning", NULL, 4 }, { "macros", NULL, 2 },
        { "recursive", NULL, 14 }, { "marked", NULL, 2 }, { "whitespace", NULL, 14 }, { "<|im_start|>", "llama", 2 },
        { "<|start_header_id|>", "llama", 2 }, { "<start_of_turn>", "llama", 99 }, { "</assistant>", "laguna", 99 },
        { "turns", NULL, 4 }, { "responses", NULL, 5 }, { "<|turn>", "gemma4", 2 },
    };
    World w;
    begin(&w);
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        char *source = source_of(ALL[i].name, ALL[i].arch), *ours = with_our_markers(source);
        compare_all(&w, ALL[i].name, source);
        Counts n = compare_all(&w, ALL[i].name, ours);
        print_message("== %s: %d once, %d more\n", ALL[i].name, n.one, n.more);
        assert_true(n.one + n.more > 0 && n.more <= ALL[i].more);
        free(source);
        free(ours);
    }
    end(&w);
}

/* ---- what people write ---- */

static json_t *said(const char *role, const char *content)
{
    return json_pack("{s:s s:s}", "role", role, "content", content);
}

/* A token begins where the answer begins, but without the answer the blanks before it are a single token. */
static const char merges[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}  {% endfor %}"
                             "{% if add_generation_prompt %}1:{% endif %}";

/* Texts that change the tokens around them, or whose bytes are not the tokens' bytes. */
static void whatever_is_said(void **state)
{
    (void) state;
    static const char *const SAID[] = {
        "Hello", "\n\n  Hello", " ", "\xc2\xa7", "\xc2\xa7 5 says", "<|im_end|>\n<|im_start|>user\nHello",
        "<|im_start|>",
        "e\xcc\x81te\xcc\x81", "1234567890", "\n", "<|endoftext|>", "\xe4\xbd\xa0\xe5\xa5\xbd", "Hello\n\n\n", "user\n",
    };
    enum { N = sizeof SAID / sizeof *SAID };
    static const char *const NAMES[] = { "chatml", "headers", "reasoning", "macros", "marked", "" };
    World w;
    begin(&w);
    for (size_t k = 0; k < sizeof NAMES / sizeof *NAMES; k++) {
        char *plain = *NAMES[k] ? source_of(NAMES[k], NULL) : strdup(merges), *source = with_our_markers(plain);
        open_chat(&w, source);
        for (size_t i = 0; i < N * N; i++) {
            json_t *list = json_array();
            if (i % 3) json_array_append_new(list, said("system", SAID[i / N]));
            if (i % 5 == 1) json_array_append_new(list, said("developer", SAID[i / N]));
            json_array_append_new(list, said("user", SAID[i % N]));
            if (i % 2) {
                json_array_append_new(list, said("assistant", SAID[(i + 1) % N]));
                json_array_append_new(list, said("user", SAID[(i + 2) % N]));
            }
            if (i % 7 == 1) json_array_append_new(list, said("system", SAID[i % N]));
            w.q.messages = list;
            compare(&w, NAMES[k], SAID[i % N]);
            json_decref(list);
        }
        chat_prompt_close(w.s.chat);
        free(source);
        free(plain);
    }
    w.q.messages = NULL;
    end(&w);
}

/* ---- a tool's results, behind calls that are known by their ids ---- */

static json_t *a_call(const char *id)
{
    return json_pack("{s:s s:s s:[{s:s s:s s:{s:s s:s}}]}", "role", "assistant", "content", "", "tool_calls", "id", id,
                     "type", "function", "function", "name", "look", "arguments", "{}");
}

static void remember(Replay *r, const char *id)
{
    StoredAnswer *t = calloc(1, sizeof *t);
    assert_non_null(t);
    *t = (StoredAnswer) { .users = 1, .n_calls = 1, .said = strdup(""),
                          .opening = strdup("<|im_start|>assistant\n<think>\n"), .token = calloc(4, sizeof(int32_t)),
                          .n_token = 4 };
    t->id[0] = strdup(id);
    t->name[0] = strdup("look");
    for (int32_t i = 0; i < 4; i++) t->token[i] = 300 + i;
    r->stored[r->n_stored++] = t;
}

/* known: renderings where all calls are known; else: where some are not. */
static void tell_results(const char *source, bool tools, int known, int other)
{
    World w;
    begin(&w);
    open_chat(&w, source);
    w.q.tools = tools ? json_pack("[{s:s s:{s:s s:{s:s}}}]", "type", "function", "function", "name", "look",
                                  "parameters", "type", "object") : NULL;
    for (int ids = 0; ids < 8; ids++) {
        json_t *list = json_pack("[o o o o]", said("system", "Use tools."), said("user", "What for?"),
                                 said("assistant", "To look."), said("user", "Look!"));
        for (int i = 0; i < 3; i++) {
            char id[16];
            snprintf(id, sizeof id, "call_%d_%d", ids, i);
            json_array_append_new(list, a_call(id));
            json_array_append_new(list, json_pack("{s:s s:s s:s}", "role", "tool", "tool_call_id", id, "content", "A"));
            if (ids >> i & 1) remember(w.s.replay, id);
        }
        w.q.messages = list;
        assert_int_equal(compare(&w, "results", tools ? "with tools" : "without"), ids == 7 ? known : other);
        json_decref(list);
    }
    json_decref(w.q.tools);
    w.q.messages = w.q.tools = NULL;
    chat_prompt_close(w.s.chat);
    end(&w);
}

/* Tools before the last question, wherever that is. */
static const char moves_tools[] =
    "{%- set asked = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'user' and tools and m == asked[-1] %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{%- for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/* An answer whose reasoning the template shows would lose it with the user's next message; a known answer keeps it. */
static void results_of_known_calls(void **state)
{
    (void) state;
    size_t n;
    char *source = read_template("reasoning", &n);
    source[n] = 0;
    tell_results(source, false, 1, 2);
    tell_results(source, true, 1, 2);
    tell_results(moves_tools, true, 3, 3);
    tell_results(moves_tools, false, 3, 3);
    free(source);
    source = read_template("turns", &n);           /* shows no results of calls that it does not show */
    source[n] = 0;
    char *ours = with_our_markers(source);
    tell_results(ours, true, 2, 2);
    World w;
    begin(&w);
    open_chat(&w, ours);
    remember(w.s.replay, "call_1");
    w.q.messages = json_pack("[o o {s:s s:s s:s}]", said("user", "Look!"), a_call("call_1"), "role", "tool",
                             "tool_call_id", "call_1", "content", "What was seen");
    Prepared p = prepare(&w);
    assert_true(p.good);
    assert_non_null(strstr(p.p.text, "call:look{}"));
    assert_non_null(strstr(p.p.text, "What was seen"));
    prepared_free(&p);
    json_decref(w.q.messages);
    chat_prompt_close(w.s.chat);
    end(&w);
    free(ours);
    free(source);
}

/* ---- how much work a long conversation is ---- */

static json_t *long_conversation(int turns)
{
    json_t *list = json_array();
    char text[640];
    for (int i = -1; i < turns; i++) {
        size_t n = 0;
        while (n + 16 < sizeof text) n += (size_t) snprintf(text + n, sizeof text - n, "word%d is ", i + (int) n);
        json_array_append_new(list, said(i < 0 ? "system" : i % 2 ? "assistant" : "user", text));
    }
    return list;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static void one_rendering_and_one_tokenizing(void **state)
{
    (void) state;
    World w;
    size_t n;
    begin(&w);
    char *source = read_template("reasoning", &n);
    source[n] = 0;
    open_chat(&w, source);
    w.q.messages = long_conversation(199);
    double t0 = seconds();
    Prepared r = prepare(&w);
    double t1 = seconds();
    Prepared apart = prepare_apart(&w);
    double t2 = seconds();
    assert_true(r.good && apart.good);
    print_message("199 messages, %d tokens: %.1f ms from one rendering, %.1f ms from %d\n", r.p.n, (t1 - t0) * 1e3,
                  (t2 - t1) * 1e3, apart.renders);
    assert_int_equal(r.renders, 1);
    assert_true(r.tokenized <= r.p.n_text + 64);
    assert_true(apart.renders > 1 && apart.tokenized > r.p.n_text + 64);
    prepared_free(&r);
    prepared_free(&apart);
    json_decref(w.q.messages);
    w.q.messages = NULL;
    chat_prompt_close(w.s.chat);
    free(source);
    end(&w);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_many_renderings_tell), cmocka_unit_test(whatever_is_said),
        cmocka_unit_test(results_of_known_calls), cmocka_unit_test(one_rendering_and_one_tokenizing),
    };
    return cmocka_run_group_tests_name("conversation", tests, NULL, NULL);
}
