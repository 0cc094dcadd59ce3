/* From a conversation to a prompt: what the trial renderings tell about a template, how messages are put into the form
 * that it wants, built-in templates, and that a conversation's prompt only grows at its end. The engine itself:
 * test_template.c. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "text/chat_builtin.h"
#include "text/chat_prompt.h"

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fault.h"
#include "template_helper.h"

static bool has_im_start(void *ud, const char *text) { return strcmp(text, ud ? ud : "<|im_start|>") == 0; }

static ChatPrompt *open_source(const char *source, size_t n)
{
    TemplateError err;
    ChatPrompt *c;
    ChatOptions o = { .source = source, .n = n, .name = "test.gguf", .arch = "qwen3", .bos = "<s>", .eos = "</s>",
                      .has_token = has_im_start };
    Status st = chat_prompt_open(&c, &o, &err);
    if (st != ST_OK) print_error("%s\n", err.error.text);
    assert_int_equal(st, ST_OK);
    return c;
}

static ChatPrompt *open_named(const char *name)
{
    size_t n;
    char *s = read_template(name, &n);
    ChatPrompt *c = open_source(s, n);
    free(s);
    return c;
}

static Status render(TemplateText *out, const ChatPrompt *c, const char *messages, const char *kwargs, bool generation,
                     TemplateError *err)
{
    json_t *m = json_loads(messages, JSON_DECODE_ANY, NULL), *k = kwargs ? json_loads(kwargs, 0, NULL) : NULL;
    assert_non_null(m);
    Status st = chat_prompt_render(out, c,
                                   &(ChatRequest) { .messages = m, .kwargs = k, .generation = generation }, err);
    json_decref(m);
    json_decref(k);
    return st;
}

/* The prompt of a conversation under a template given as text. */
static void check(const char *source, const char *messages, const char *want)
{
    TemplateError err;
    TemplateText text;
    ChatPrompt *c = open_source(source, strlen(source));
    Status st = render(&text, c, messages, NULL, false, &err);
    if (st != ST_OK) print_error("%s\n", err.error.text);
    assert_int_equal(st, ST_OK);
    assert_string_equal(text.text, want);
    template_text_free(&text);
    chat_prompt_close(c);
}

/* ---- what is learnt ---- */

static void caps(void **state)
{
    (void) state;
    static const struct { const char *name; ChatCaps caps; } ALL[] = {
        { "chatml",
          { .system = true, .system_later = true, .text_content = true, .typed_content = true, .tool_results = true,
            .answer_apart = true, .system_apart = true } },
        { "headers", { .system = true, .system_later = true, .text_content = true, .tools = true, .tool_calls = true,
                       .tool_results = true, .object_arguments = true, .answer_apart = true,
                       .system_apart = true } },
        { "reasoning", { .system = true, .system_later = true, .text_content = true, .tools = true, .tool_calls = true,
                         .parallel_calls = true, .tool_results = true, .text_arguments = true, .object_arguments = true,
                         .reasoning = true, .thinking = true, .shortens = true, .answer_apart = true,
                         .system_apart = true } },
        { "macros", { .system = true, .text_content = true, .typed_content = true, .tool_calls = true,
                      .parallel_calls = true, .tool_results = true, .object_arguments = true, .thinking = true,
                      .answer_apart = true, .system_apart = true } },
        { "recursive",
          { .system = true, .system_later = true, .text_content = true, .typed_content = true, .tools = true,
            .tool_calls = true, .parallel_calls = true, .tool_results = true, .object_arguments = true,
            .answer_apart = true } },
        { "marked", { .system = true, .system_later = true, .text_content = true, .tools = true, .tool_calls = true,
                      .parallel_calls = true, .tool_results = true, .object_arguments = true, .reasoning = true,
                      .thinking = true, .answer_apart = true, .system_apart = true } },
        { "turns", { .system = true, .system_later = true, .developer = true, .text_content = true,
                     .typed_content = true, .tools = true, .tool_calls = true, .parallel_calls = true,
                     .tool_results = true, .results_with_calls = true, .object_arguments = true, .thinking = true,
                     .shortens = true, .answer_apart = true, .system_apart = true } },
        { "responses", { .system = true, .system_later = true, .developer = true, .text_content = true,
                         .typed_content = true, .tools = true, .tool_calls = true, .parallel_calls = true,
                         .tool_results = true, .results_with_calls = true, .results_inside = true,
                         .object_arguments = true, .thinking = true, .answer_apart = true,
                         .system_apart = true } },
    };
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        ChatPrompt *c = open_named(ALL[i].name);
        const bool *got = (const bool *) chat_prompt_caps(c), *want = (const bool *) &ALL[i].caps;
        for (size_t k = 0; k < sizeof(ChatCaps) / sizeof(bool); k++)
            if (got[k] != want[k]) print_error("%s: capability %zu is %d\n", ALL[i].name, k, got[k]);
        assert_memory_equal(got, want, sizeof(ChatCaps));
        assert_string_equal(chat_prompt_warning(c), "");
        chat_prompt_close(c);
    }
}

/* ---- what a rendering tells of others ---- */

#define TURNS "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
#define ANSWER "{% if add_generation_prompt %}<assistant>{% endif %}"
#define ASKING "[{\"role\": \"user\", \"content\": \"u\"}]"
#define TALKING "[{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", \"content\": \"a\"}]"
#define SYSTEM "{\"role\": \"system\", \"content\": \"s\"}"
#define LATER "[" SYSTEM ", {\"role\": \"user\", \"content\": \"u\"}, " SYSTEM "]"

static void places(void **state)
{
    (void) state;
    static const struct { const char *source, *messages; size_t asked, parted; } ALL[] = {
        { TURNS ANSWER, ASKING, 10, 6 },
        { TURNS, ASKING, 10, 6 },
        { "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}" TURNS
          ANSWER, ASKING, 10, 6 },
        { "{% set asked = add_generation_prompt %}" TURNS "{% if asked %}<assistant>{% endif %}", ASKING, SIZE_MAX, 6 },
        { TURNS "{% if add_generation_prompt %}<assistant>{% else %}<end>{% endif %}", ASKING, SIZE_MAX, 6 },
        { TURNS "{% set last %}<{% if add_generation_prompt %}assistant>{% endif %}{% endset %}{{ last }}", ASKING,
          SIZE_MAX, 6 },
        { TURNS ANSWER, "[" SYSTEM ", {\"role\": \"user\", \"content\": \"u\"}]", 22, 18 },
        { TURNS ANSWER, "[{\"role\": \"assistant\", \"content\": \"a\"}]", 15, SIZE_MAX },
        { TURNS ANSWER, LATER, 34, SIZE_MAX },
        { "{{ messages | length }}" TURNS ANSWER, ASKING, 11, SIZE_MAX },
        { "{% for m in messages | reverse %}{{ m.content }};{% endfor %}" ANSWER, TALKING, 4, SIZE_MAX },
        { "{{ messages[-1].content }};" TURNS ANSWER, TALKING, 27, SIZE_MAX },
    };
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        TemplateError err;
        TemplateText text;
        ChatPrompt *c = open_source(ALL[i].source, strlen(ALL[i].source));
        assert_int_equal(render(&text, c, ALL[i].messages, NULL, true, &err), ST_OK);
        if (text.asked != ALL[i].asked || text.parted != ALL[i].parted)
            print_error("%zu: %s: asked %zu, parted %zu\n", i, text.text, text.asked, text.parted);
        assert_int_equal(text.asked, ALL[i].asked);
        assert_int_equal(text.parted, ALL[i].parted);
        template_text_free(&text);
        chat_prompt_close(c);
    }
}

/* ---- how messages are prepared ---- */

#define EACH "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"

static void roles(void **state)
{
    (void) state;
    check(EACH, "[{\"role\": \"developer\", \"content\": \"d\"}, {\"role\": \"user\", \"content\": \"u\"}]",
          "[system:d][user:u]");
    check(EACH "{# developer #}", "[{\"role\": \"developer\", \"content\": \"d\"}]", "[developer:d]");
    check("{% for m in messages if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endfor %}",
          "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"u\"}]", "[user:s\nu]");
    check("{% for m in messages if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endfor %}",
          "[{\"role\": \"system\", \"content\": \"s\"}]", "[user:s]");
    check(EACH, "[{\"role\": \"system\", \"content\": \"a\"}, {\"role\": \"developer\", \"content\": \"b\"}, "
          "{\"role\": \"system\", \"content\": \"c\"}, {\"role\": \"user\", \"content\": \"u\"}]",
          "[system:a\n\nb\n\nc][user:u]");
    check("{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif "
          "%}[{{ m.role }}:{{ m.content }}]{% endfor %}", "[{\"role\": \"user\", \"content\": \"u\"}, {\"role\": "
          "\"system\", \"content\": \"s\"}]", "[user:u][user:<system-reminder>\ns\n</system-reminder>]");
}

static void contents(void **state)
{
    (void) state;
    check("{% for m in messages %}[{{ m.content + '' }}]{% endfor %}",
          "[{\"role\": \"assistant\", \"content\": null}, {\"role\": \"user\"}]", "[][]");
    check("{% for m in messages %}[{{ m.content + '' }}]{% endfor %}", "[{\"role\": \"user\", \"content\": [{\"type\": "
          "\"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}]", "[ab]");
    check("{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}",
          "[{\"role\": \"user\", \"content\": \"a\"}]", "(a)");
    check("{% for m in messages %}{{ m.content if m.content is string else m.content[0].text + m.content[1].text "
          "}}{% endfor %}", "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": "
          "\"text\", \"text\": \"b\"}]}]", "ab");
    check("{% for m in messages %}{{ 'tool_calls' in m }}{{ 'name' in m }}{{ 'reasoning_content' in m }}{% endfor %}",
          "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [], \"name\": null, "
          "\"reasoning_content\": null}]", "FalseFalseFalse");
    check("{% for m in messages %}{{ m.content }}{{ m.reasoning_content }}{{ m.reasoning }}{{ m.thinking }}{% "
          "endfor %}", "[{\"role\": \"assistant\", \"content\": \"\", \"reasoning\": \"r\"}]", "rrr");
}

#define WITH_CALL(args)                                                                                       \
    "[{\"role\": \"user\", \"content\": \"\"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": " \
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": " args "}}]}]"
#define CALLS(show)                                                              \
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ " \
    "c.function.name }}" show "{% endfor %}{% endfor %}"
static void arguments(void **state)
{
    (void) state;
    static const char OBJECTS[] = CALLS("{% for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}"),
                      TEXTS[] = CALLS("{{ ' ' + c.function.arguments }}"),
                      DUMPS[] = CALLS("{{ c.function.arguments|tojson }}"), EITHER[] =
        CALLS("{{ c.function.arguments if c.function.arguments is string else c.function.arguments|tojson }}");
    check(OBJECTS, WITH_CALL("\"{\\\"a\\\": 1.0, \\\"b\\\": \\\"x\\\"}\""), "f a=1.0 b=x");
    check(OBJECTS, WITH_CALL("{\"a\": 1}"), "f a=1");
    check(OBJECTS, WITH_CALL("\"not JSON\""), "f raw=not JSON");
    check(OBJECTS, WITH_CALL("\"{\\\"a\\\":\\\"1\\\",\\\"a\\\":\\\"2\\\\u0000\\\"}\""), "f a=2\xef\xbf\xbd");
    check(OBJECTS, WITH_CALL("\"[1]\""), "f raw=[1]");
    check(OBJECTS, WITH_CALL("\"\""), "f");
    check(TEXTS, WITH_CALL("{\"a\": \"\xc3\xa9\"}"), "f {\"a\": \"\xc3\xa9\"}");
    check(TEXTS, WITH_CALL("\"{\\\"a\\\":1}\""), "f {\"a\":1}");
    check(DUMPS, WITH_CALL("\"{\\\"a\\\":1}\""), "f{\"a\": 1}");
    check(EITHER, WITH_CALL("\"{\\\"a\\\":1}\""), "f{\"a\":1}");
}

/* An assistant's message as JSON, with two calls. */
#define CALLING(text)                                                                                \
    "{\"role\": \"assistant\", \"content\": \"" text "\", \"tool_calls\": [{\"id\": \"1\", \"function\": " \
    "{\"name\": \"f\", \"arguments\": \"{\\\"b\\\": [1, true], \\\"a\\\": \\\"x\\\"}\"}}, {\"id\": \"2\", "      \
    "\"function\": {\"name\": \"g\", \"arguments\": {}}}]}"
#define RESULT(id, text) "{\"role\": \"tool\", \"tool_call_id\": \"" id "\", \"content\": \"" text "\"}"
#define SO "{\"role\": \"assistant\", \"content\": \"So.\"}"
#define CALLED "<|tool_call>call:f{a:<|\"|>x<|\"|>,b:[1,true]}<tool_call|><|tool_call>call:g{}<tool_call|>"
#define ANSWERED(name, text) "<|tool_response>response:" name "{value:<|\"|>" text "<|\"|>}<tool_response|>"

/* A tool's results in templates of Gemma 4: in the calling turn, whichever way the template wants them given, and an
 * answer that follows them belongs to that turn. */
static void results_in_turns(void **state)
{
    (void) state;
    static const char USER[] = "{\"role\": \"user\", \"content\": \"u\"}", ASKED[] = "<s><|turn>user\nu<turn|>\n";
    static const struct { const char *rest, *turns, *responses; } ALL[] = {
        { CALLING("") ", " RESULT("2", "two") ", " RESULT("1", "one"),
          "<|turn>model\n" CALLED ANSWERED("g", "two") ANSWERED("f", "one"), NULL },
        { CALLING("") ", " RESULT("", "one") ", " RESULT("", "two") ", " SO
          ", {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"v\"}]}",
          "<|turn>model\n" CALLED ANSWERED("unknown", "one") ANSWERED("unknown", "two") "So.<turn|>\n"
          "<|turn>user\nv<turn|>\n<|turn>model\n",
          "<|turn>model\n" CALLED ANSWERED("f", "one") ANSWERED("g", "two") "So.<turn|>\n"
          "<|turn>user\nv<turn|>\n<|turn>model\n" },
        { CALLING("I look.") ", " RESULT("1", "one"),
          "<|turn>model\n" CALLED ANSWERED("f", "one") "I look.<turn|>\n<|turn>model\n",
          "<|turn>model\nI look.<turn|>\n<|turn>model\n" CALLED ANSWERED("f", "one") },
        { CALLING("") ", " RESULT("1", "one") ", " CALLING("") ", " RESULT("1", "more"),
          "<|turn>model\n" CALLED ANSWERED("f", "one") CALLED ANSWERED("f", "more"), NULL },
        { CALLING("") ", " RESULT("1", "one") ", " SO,
          "<|turn>model\n" CALLED ANSWERED("f", "one") "So.<turn|>\n<|turn>model\n", NULL },
    };
    static const char *const NAMES[] = { "turns", "responses" };
    for (size_t i = 0; i < 2 * sizeof ALL / sizeof *ALL; i++) {
        const char *want = i % 2 && ALL[i / 2].responses ? ALL[i / 2].responses : ALL[i / 2].turns;
        char talk[1024];
        snprintf(talk, sizeof talk, "[%s, %s]", USER, ALL[i / 2].rest);
        ChatPrompt *c = open_named(NAMES[i % 2]);
        TemplateError err;
        TemplateText text;
        assert_int_equal(render(&text, c, talk, "{\"enable_thinking\": true}", true, &err), ST_OK);
        const char *user = strstr(text.text, "<|turn>user");
        assert_non_null(user);
        assert_string_equal(user + strlen("<|turn>user\nu<turn|>\n"), want);
        assert_int_equal(text.n, strlen(text.text));
        template_text_free(&text);
        assert_int_equal(render(&text, c, talk, "{\"enable_thinking\": false}", false, &err), ST_OK);
        assert_memory_equal(text.text, ASKED, strlen(ASKED));
        template_text_free(&text);
        chat_prompt_close(c);
    }
}

/* Without thinking an empty thought is pre-filled where, and only where, the model's template does so. */
static void empty_thought(void **state)
{
    (void) state;
    static const struct { const char *name, *kwargs, *want; } ALL[] = {
        { "turns", "{\"enable_thinking\": false}",
          "<s><|turn>user\nu<turn|>\n<|turn>model\n<|channel>thought\n<channel|>" },
        { "turns", "{\"enable_thinking\": true}",
          "<s><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nu<turn|>\n<|turn>model\n" },
        { "responses", "{\"enable_thinking\": false}", "<s><|turn>user\nu<turn|>\n<|turn>model\n" },
        { "responses", "{\"enable_thinking\": true}",
          "<s><|turn>system\n<|think|><turn|>\n<|turn>user\nu<turn|>\n<|turn>model\n" },
    };
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        ChatPrompt *c = open_named(ALL[i].name);
        TemplateError err;
        TemplateText text;
        assert_int_equal(render(&text, c, ASKING, ALL[i].kwargs, true, &err), ST_OK);
        assert_string_equal(text.text, ALL[i].want);
        template_text_free(&text);
        chat_prompt_close(c);
    }
}

static void nobody_asked(void **state)
{
    (void) state;
    TemplateError err;
    TemplateText text;
    ChatPrompt *c = open_named("macros");
    assert_int_equal(render(&text, c, "[{\"role\": \"assistant\", \"content\": \"a\"}]", NULL, true, &err), ST_OK);
    assert_non_null(strstr(text.text, "user\nContinue.<|im_end|>"));
    template_text_free(&text);
    assert_int_equal(render(&text, c, "[{\"role\": \"nobody\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": "
                            "\"a\"}]", NULL, true, &err), ST_ARG);
    assert_string_equal(err.error.text, "The role nobody is unknown.");
    chat_prompt_close(c);
}

static void refusals(void **state)
{
    (void) state;
    static const struct { const char *messages, *says; } ALL[] = {
        { "[]", "messages is empty" }, { "{}", "messages is empty" }, { "[1]", "messages[0] has no role" },
        { "[{\"role\": 1}]", "messages[0] has no role" },
        { "[{\"role\": \"user\", \"content\": 5}]", "messages[0].content is neither" },
        { "[{\"role\": \"user\", \"content\": \"\"}, {\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]",
          "messages[1].content[0] is of type \"image_url\"" },
        { "[{\"role\": \"user\", \"content\": [\"x\"]}]", "messages[0].content[0] is of type \"\"" },
        { "[{\"role\": \"user\", \"tool_calls\": 5}]", "messages[0].tool_calls is not a list" },
        { "[{\"role\": \"user\", \"tool_calls\": [5]}]", "messages[0].tool_calls[0] is not an object" },
    };
    ChatPrompt *c = open_named("chatml");
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        TemplateError err;
        TemplateText text;
        assert_int_equal(render(&text, c, ALL[i].messages, NULL, true, &err), ST_ARG);
        if (!strstr(err.error.text, ALL[i].says)) print_error("%s: %s\n", ALL[i].messages, err.error.text);
        assert_non_null(strstr(err.error.text, ALL[i].says));
    }
    chat_prompt_close(c);
}

/* ---- built-in templates ---- */

static void builtins(void **state)
{
    (void) state;
    static const struct { const char *arch, *token, *want; } ALL[] = {
        { "qwen3", "<|im_start|>", "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
          "<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call><|im_end|>\n"
          "<|im_start|>user\n<tool_response>\nR\n</tool_response><|im_end|>\n<|im_start|>assistant\n" },
        { "llama", "<|start_header_id|>", "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|"
          "start_header_id|>user<|end_header_id|>\n\nU<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
          "{\"name\": \"f\", \"parameters\": {\"a\":1}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"
          "R<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n" },
        { "laguna", "</assistant>", "\xe3\x80\x88|EOS|\xe3\x80\x89<system>\nS\n</system>\n<user>\nU\n</user>\n"
          "<assistant>\n</think>\n\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n"
          "</assistant>\n<tool_response>\nR\n</tool_response>\n<assistant>\n</think>" },
        { "gemma4", "<|turn>", "<s><|turn>system\nS<turn|>\n<|turn>user\nU<turn|>\n<|turn>model\n"
          "<|tool_call>call:f{a:1}<tool_call|><|tool_response>response:unknown{value:<|\"|>R<|\"|>}<tool_response|>" },
        { "gemma3", "<start_of_turn>", NULL },
    };
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        TemplateError err;
        TemplateText text;
        ChatPrompt *c;
        ChatOptions o = { .name = "bare.gguf", .arch = ALL[i].arch, .bos = "<s>", .has_token = has_im_start,
                          .ud = (void *) (uintptr_t) ALL[i].token };
        assert_int_equal(chat_prompt_open(&c, &o, &err), ST_OK);
        assert_non_null(strstr(chat_prompt_warning(c), "bare.gguf has no chat template"));
        const char *talk = ALL[i].want
                           ? "[{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"U\"}, "
                             "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": "
                             "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\":1}\"}}]}, {\"role\": \"tool\", "
                             "\"content\": \"R\"}]" : "[{\"role\": \"system\", \"content\": \"S\"}, {\"role\": "
                           "\"user\", \"content\": \"U\"}, {\"role\": \"assistant\", \"content\": \"A\"}]";
        const char *want = ALL[i].want ? ALL[i].want : "<s><start_of_turn>user\nS\nU<end_of_turn>\n"
                           "<start_of_turn>model\nA<end_of_turn>\n<start_of_turn>model\n";
        assert_int_equal(render(&text, c, talk, NULL, true, &err), ST_OK);
        assert_string_equal(text.text, want);
        template_text_free(&text);
        chat_prompt_close(c);
    }
    TemplateError err;
    TemplateText text;
    ChatPrompt *c;
    ChatOptions o = { .name = "bare.gguf", .arch = "laguna", .has_token = has_im_start,
                      .ud = (void *) (uintptr_t) "</assistant>" };
    static const struct { const char *talk, *tools, *want; } OPENS[] = {
        { "[{\"role\": \"user\", \"content\": \"U\"}]", NULL,
          "<system>\nYou are a helpful, conversationally-fluent assistant made by Poolside. You are here to be helpful "
          "to users through natural language conversations.\n</system>\n<user>\nU\n</user>\n<assistant>\n</think>" },
        { "[{\"role\": \"system\", \"content\": \" \"}, {\"role\": \"user\", \"content\": \"U\"}]", NULL,
          "<user>\nU\n</user>\n<assistant>\n</think>" },
        { "[{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"U\"}]",
          "[{\"name\": \"f\"}]",
          "<system>\nS\n\n### Tools\n\nCall a function by writing its name and arguments:\n<tool_call>NAME\n"
          "<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>\n\n<available_tools>\n{\"name\": \"f\"}\n"
          "</available_tools>\n</system>\n<user>\nU\n</user>\n<assistant>\n</think>" },
    };
    assert_int_equal(chat_prompt_open(&c, &o, &err), ST_OK);
    for (size_t i = 0; i < sizeof OPENS / sizeof *OPENS; i++) {
        json_t *talk = json_loads(OPENS[i].talk, 0, NULL), *tools = OPENS[i].tools ? json_loads(OPENS[i].tools, 0, NULL)
                                                                                     : NULL;
        ChatRequest r = { .messages = talk, .tools = tools, .generation = true };
        assert_int_equal(chat_prompt_render(&text, c, &r, &err), ST_OK);
        assert_memory_equal(text.text, "\xe3\x80\x88|EOS|\xe3\x80\x89", 11);
        assert_string_equal(text.text + 11, OPENS[i].want);
        template_text_free(&text);
        json_decref(talk);
        json_decref(tools);
    }
    chat_prompt_close(c);
    o = (ChatOptions) { .name = "bare.gguf", .arch = "llama", .has_token = has_im_start,
                        .ud = (void *) (uintptr_t) "nothing" };
    assert_int_equal(chat_prompt_open(&c, &o, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.error.text, "bare.gguf: there is no chat template"));
    o = (ChatOptions) { .source = "{% bad %}", .n = 9, .name = "bad.gguf", .arch = "", .has_token = has_im_start };
    assert_int_equal(chat_prompt_open(&c, &o, &err), ST_OK);
    assert_non_null(strstr(chat_prompt_warning(c), "line 1, column 4: there is no statement \"bad\""));
    chat_prompt_close(c);
    o.ud = (void *) (uintptr_t) "nothing";
    assert_int_equal(chat_prompt_open(&c, &o, &err), ST_FORMAT);
    assert_int_equal(err.line, 1);
}

/* ---- laws ---- */

/* A prefix cache relies on this: earlier text stays the same when the conversation goes on. */
static void grows_at_its_end(void **state)
{
    (void) state;
    static const char *const NAMES[] = { "chatml", "headers", "recursive", "marked", "macros", "reasoning", "turns",
                                         "responses" };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        ChatPrompt *c = open_named(NAMES[i]);
        json_t *talk = json_array();
        char *before = strdup("");
        json_array_append_new(talk, json_pack("{s:s s:s}", "role", "system", "content", "S"));
        for (int turn = 0; turn < 8; turn++) {
            char said[32];
            TemplateError err;
            TemplateText text;
            snprintf(said, sizeof said, "turn %d", turn);
            json_array_append_new(talk,
                                  json_pack("{s:s s:s}", "role", turn % 2 ? "assistant" : "user", "content", said));
            /* "reasoning" shows an empty thought in the last answer only, and "recursive" closes the text with a count
             * in front: the documented exceptions */
            bool exempt = strcmp(NAMES[i], "reasoning") == 0 && turn % 2;
            assert_int_equal(chat_prompt_render(&text, c, &(ChatRequest) { .messages = talk }, &err), ST_OK);
            assert_true(strlen(before) <= text.n && memcmp(text.text, before, strlen(before)) == 0);
            if (!exempt) {
                free(before);
                before = strdup(text.text);
            }
            template_text_free(&text);
        }
        free(before);
        json_decref(talk);
        chat_prompt_close(c);
    }
}

static void memory_runs_out_with(const char *name, const char *talk, long step)
{
    size_t n;
    char *source = read_template(name, &n);
    bool ended = false;
    for (long k = 1; k < 60000 && !ended; k += k < 300 ? 1 : step) {
        long live = alloc_state.live;
        TemplateError err;
        TemplateText text = { 0 };
        ChatPrompt *c = NULL;
        ChatOptions o = { .source = source, .n = n, .name = "test.gguf", .arch = "qwen3", .bos = "<s>",
                          .has_token = has_im_start };
        json_t *m = json_loads(talk, 0, NULL);
        alloc_state.fail_in = k;
        Status st = chat_prompt_open(&c, &o, &err);
        ChatRequest q = { .messages = m, .generation = true };
        if (st == ST_OK) st = chat_prompt_render(&text, c, &q, &err);
        ended = alloc_state.fail_in > 0;
        alloc_state.fail_in = 0;
        assert_true(st == ST_OK || err.error.text[0]);
        template_text_free(&text);
        chat_prompt_close(c);
        json_decref(m);
        if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.live, live);
    }
    assert_true(ended);
    free(source);
}

static void memory_runs_out(void **state)
{
    (void) state;
    memory_runs_out_with("macros", WITH_CALL("\"{\\\"a\\\": 1}\""), 17);
    memory_runs_out_with("responses", "[" CALLING("I look.") ", " RESULT("1", "one")
                         ", " SO "]", 131);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(caps), cmocka_unit_test(places),
        cmocka_unit_test(roles), cmocka_unit_test(contents), cmocka_unit_test(arguments),
        cmocka_unit_test(results_in_turns), cmocka_unit_test(empty_thought),
        cmocka_unit_test(nobody_asked), cmocka_unit_test(refusals), cmocka_unit_test(builtins),
        cmocka_unit_test(grows_at_its_end), cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests_name("chat_prompt", tests, NULL, NULL);
}
