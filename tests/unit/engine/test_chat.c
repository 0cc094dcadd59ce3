/* Conversations through the library: prompts of a chat, texts held to a form, answers read as events, and all of it in
 * one call, on the demo pair, with and without its drafter. */
#include "model_helper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "ratoon_chat.h"

#define DEMO "models/demo/ratoon-demo-q8_0.gguf"
#define ASKED "[{\"role\": \"user\", \"content\": \"What is 3 + 4?\"}]"
#define TOOLS "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": " \
              "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}}}}]"
/* A model that reasons before every answer, and calls in the way of Qwen3. */
static const char OPENED[] =
    "{% if tools %}{{ '<tool_call>' ~ tools | tojson ~ '\n' }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
enum { CTX = 400, LONG = 4000 };

typedef struct { rt_engine *g; rt_session *s; rt_step *st; rt_chat *c; } Rigged;

static char *file_text(const char *path)
{
    char *text = calloc(1, 1 << 14);
    FILE *f = fopen(path, "rb");
    assert_true(text && f && fread(text, 1, (1 << 14) - 1, f) > 0);
    fclose(f);
    return text;
}

/* budget -1: plain decoding. source: a template; NULL: the model's own. */
static void open_rig(Rigged *r, int32_t budget, const char *source)
{
    rt_error e;
    rt_options o = RT_OPTIONS(.model = DEMO, .threads = 1,
                              .draft = budget < 0 ? NULL : "models/demo/dflash-ratoon-demo-bf16.gguf");
    if (rt_open(&r->g, &o, &e) != RT_OK || rt_session_new(&r->s, r->g, &RT_SESSION_OPTIONS(.ctx = CTX), &e) != RT_OK ||
        rt_step_new(&r->st, r->g, &RT_STEP_OPTIONS(.budget = budget), &e) != RT_OK ||
        rt_chat_new(&r->c, r->g, source, &e) != RT_OK)
        fail_msg("%s", e.text);
    assert_string_equal(rt_chat_warning(r->c), "");
}

static void close_rig(Rigged *r)
{
    rt_chat_free(r->c);
    rt_step_free(r->st);
    rt_session_free(r->s);
    rt_close(r->g);
}

static rt_chat_text *rendered(const Rigged *r, rt_chat_request q)
{
    rt_chat_text *t;
    rt_error e;
    if (rt_chat_render(&t, r->c, &q, &e) != RT_OK) fail_msg("%s", e.text);
    return t;
}

/* ---- prompts ---- */

static void prompts(void **state)
{
    (void) state;
    Rigged r;
    open_rig(&r, -1, NULL);
    rt_chat_text *t = rendered(&r, RT_CHAT_REQUEST(.messages = "[{\"role\": \"system\", \"content\": \"Be brief.\"}, "
                                                   "{\"role\": \"user\", \"content\": \"<|im_end|> \\u00fc\"}]"));
    static const char want[] = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<|im_end|> \xc3\xbc"
                               "<|im_end|>\n<|im_start|>assistant\n";
    int32_t ids[200];
    assert_string_equal(t->text, want);
    assert_int_equal(t->n_text, strlen(want));
    size_t n = rt_tokenize_prompt(r.g, t->text, t->n_text, t->client, t->n_client, ids, 200), control = 0, len;
    assert_int_equal(n, t->n_token);
    assert_memory_equal(ids, t->token, n * sizeof *ids);
    for (size_t i = 0; i < n; i++) {
        rt_token_bytes(r.g, ids[i], &len);
        control += len == 0;
    }
    assert_int_equal(control, 5);                  /* the user's own is text */
    assert_int_equal(t->marked, rt_tokens_before(r.g, t->token, n, want, strlen(want), strlen(want) - 22));
    assert_true(t->marked > 0 && (size_t) t->marked < n);
    assert_int_equal(rt_tokens_before(r.g, t->token, n, want, strlen(want), strlen(want)), n);
    assert_int_equal(rt_tokens_before(r.g, t->token, n, want, strlen(want), 3), -1);
    assert_int_equal(rt_tokens_before(r.g, t->token, n, want, strlen(want), strlen(want) + 1), -1);
    assert_int_equal(rt_tokens_before(r.g, t->token, n, "else", 4, 0), -1);
    rt_chat_text_free(t);
    t = rendered(&r, RT_CHAT_REQUEST(.messages = ASKED, .complete = 1));
    assert_string_equal(t->text, "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n");
    assert_int_equal(t->marked, 0);
    rt_chat_text_free(t);
    assert_true(rt_chat_can(r.c, RT_CHAT_SYSTEM));
    assert_false(rt_chat_can(r.c, RT_CHAT_TOOLS) || rt_chat_can(r.c, RT_CHAT_THINKING));
    close_rig(&r);
}

static void thinking_and_tools(void **state)
{
    (void) state;
    Rigged r;
    char *source = file_text("tests/data/templates/reasoning.jinja");
    open_rig(&r, -1, source);
    free(source);
    assert_true(rt_chat_can(r.c, RT_CHAT_TOOLS) && rt_chat_can(r.c, RT_CHAT_TOOL_RESULTS) &&
                rt_chat_can(r.c, RT_CHAT_THINKING));
    rt_chat_text *t = rendered(&r, RT_CHAT_REQUEST(.messages = ASKED, .tools = TOOLS, .thinking = 1));
    assert_non_null(strstr(t->text, "\"name\": \"weather\""));
    rt_chat_text *off = rendered(&r, RT_CHAT_REQUEST(.messages = ASKED, .thinking = -1));
    rt_chat_text *said = rendered(&r, RT_CHAT_REQUEST(.messages = ASKED, .kwargs = "{\"enable_thinking\": false}"));
    assert_string_equal(off->text, said->text);
    assert_null(strstr(off->text, "weather"));
    assert_non_null(strstr(off->text, "</think>"));
    assert_null(strstr(t->text, "</think>"));
    rt_chat_text_free(t);
    rt_chat_text_free(off);
    rt_chat_text_free(said);
    close_rig(&r);
}

static void refused_requests(void **state)
{
    (void) state;
    static const struct { rt_chat_request q; const char *says; } bad[] = {
        { RT_CHAT_REQUEST_INIT, "messages: NULL" }, { { .size = 3, .messages = ASKED }, "rt_chat_request.size: 3" },
        { RT_CHAT_REQUEST(.messages = "[}"), "messages" },
        { RT_CHAT_REQUEST(.messages = "{}"), "messages: expected a list" },
        { RT_CHAT_REQUEST(.messages = "[]"), "at least one" }, { RT_CHAT_REQUEST(.messages = "[7]"), "messages[0]" },
        { RT_CHAT_REQUEST(.messages = ASKED, .tools = "{}"), "tools: expected a list" },
        { RT_CHAT_REQUEST(.messages = ASKED, .kwargs = "[]"), "kwargs: expected an object" },
        { RT_CHAT_REQUEST(.messages = ASKED, .kwargs = "{\"messages\": 1}"), "kwargs.messages cannot be set" },
        { RT_CHAT_REQUEST(.messages = ASKED, .thinking = 2), "thinking: 2, expected" },
    };
    Rigged r;
    rt_error e;
    rt_chat *c;
    rt_chat_text *t;
    open_rig(&r, -1, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(rt_chat_render(&t, r.c, &bad[i].q, &e), RT_EARG);
        assert_null(t);
        if (!strstr(e.text, bad[i].says)) fail_msg("%s, expected %s", e.text, bad[i].says);
    }
    assert_int_equal(rt_chat_new(&c, r.g, "{% if %}", &e), RT_EFORMAT);
    if (!strstr(e.text, "template: line 1, column 7")) fail_msg("%s", e.text);
    assert_null(c);
    close_rig(&r);
}

/* ---- texts of a given form ---- */

static rt_grammar *grammar(rt_grammar_kind kind, const char *text)
{
    rt_grammar *g;
    rt_error e;
    if (rt_grammar_new(&g, kind, text, strlen(text), "test", &e) != RT_OK) fail_msg("%s", e.text);
    return g;
}

static void put_prompt(const Rigged *r, const char *text)
{
    int32_t t[CTX];
    size_t n = rt_tokenize(r->g, text, strlen(text), true, t, CTX);
    assert_int_equal(rt_prompt(r->s, t, n), RT_OK);
}

/* Runs to the end, cancelling some passes, shortening some blocks and drawing them again; returns how many. */
static int32_t drawn(const Rigged *r, Dice *d, char out[LONG])
{
    int32_t n = 0, shortened = 0;
    size_t at = 0, len;
    rt_block b;
    rt_status st;
    const int32_t *all;
    while ((st = rt_next(r->st, r->s, &b)) == RT_OK || st == RT_ECANCEL) {
        if (st == RT_ECANCEL) continue;
        int32_t kept = b.n > 1 && d && roll(d, 3) == 0 ? 1 + roll(d, b.n - 1) : b.n;
        shortened += kept < b.n;
        n += kept;
        assert_int_equal(rt_take(r->s, kept), RT_OK);
        if (d && roll(d, 5) == 0) rt_step_cancel(r->st);
    }
    if (st != RT_END) fail_msg("%s", rt_session_error(r->s));
    size_t total = rt_session_text(r->s, &all);
    for (size_t i = total - (size_t) n; i < total; i++) {
        const char *s = rt_token_bytes(r->g, all[i], &len);
        assert_true(at + len < LONG);
        memcpy(out + at, s, len);
        at += len;
    }
    out[at] = 0;
    return shortened;
}

static void constraints(void **state)
{
    (void) state;
    static const char *const prompt = "class Stack:\n    def __init__(self";
    rt_grammar *gbnf = grammar(RT_GBNF, "root ::= \"{ \" word (\", \" word){5,9} \" }\" \"\xe2\x82\xac\"{3}\n"
                               "word ::= [a-z]{1,8}"),
               *schema = grammar(RT_JSON_SCHEMA, "{\"type\": \"object\", \"properties\": {\"names\": {\"type\": "
                                 "\"array\", \"items\": {\"type\": \"string\", \"maxLength\": 6}, \"minItems\": 2, "
                                 "\"maxItems\": 3}, \"age\": {\"type\": \"integer\"}}, \"required\": [\"names\", "
                                 "\"age\"]}");
    char text[3][2][2][LONG];
    int32_t shortened = 0;
    for (int32_t budget = -1; budget < 2; budget++) {
        Rigged r;
        Dice d = { tiny_key(3, "shorten"), 0 };
        open_rig(&r, budget > 0 ? 24 : budget, NULL);
        assert_int_equal(rt_sampling_set(r.s, &RT_SAMPLING(.temperature = 0.7f, .seed = 3, .max_tokens = 300)), RT_OK);
        for (int32_t kind = 0; kind < 2; kind++) {
            assert_int_equal(rt_constrain(r.s, kind ? schema : gbnf), RT_OK);
            for (int32_t turn = 0; turn < 2; turn++) {       /* the second begins the grammar anew */
                put_prompt(&r, prompt);
                assert_false(rt_constraint_met(r.s));
                shortened += drawn(&r, budget < 0 ? NULL : &d, text[budget + 1][kind][turn]);
                rt_block b;
                assert_true(rt_constraint_met(r.s) && rt_constraint_done(r.s));
                assert_int_equal(rt_next(r.st, r.s, &b), RT_END);
                assert_int_equal(rt_sampling_set(r.s, &RT_SAMPLING(.temperature = 0.7f, .seed = 3)), RT_OK);
                assert_int_equal(rt_next(r.st, r.s, &b), RT_END);    /* complete, whatever is set */
                assert_string_equal(text[budget + 1][kind][turn], text[0][kind][0]);
            }
        }
        const char *s = text[0][0][0], *ends = " }\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac";
        assert_true(strncmp(s, "{ ", 2) == 0 && strcmp(s + strlen(s) - strlen(ends), ends) == 0);
        json_t *j = NULL;
        assert_ok(json_read(&j, text[0][1][0], strlen(text[0][1][0]), "answer", NULL), &(Error) { 0 });
        assert_true(json_is_integer(json_object_get(j, "age")) && json_array_size(json_object_get(j, "names")) >= 2);
        json_decref(j);
        assert_int_equal(rt_allow(r.s, NULL, NULL), RT_OK);  /* replaces it */
        assert_false(rt_constraint_met(r.s));
        put_prompt(&r, prompt);
        rt_status first = rt_next(r.st, r.s, &(rt_block) { 0 });
        if (first == RT_ECANCEL) first = rt_next(r.st, r.s, &(rt_block) { 0 });  /* asked for behind the last block */
        assert_int_equal(first, RT_OK);
        rt_grammar *own = grammar(RT_GBNF, "root ::= [0-9]{6}");
        assert_int_equal(rt_constrain(r.s, own), RT_OK);
        rt_grammar_free(own);                                /* the session keeps it */
        char digits[LONG];
        put_prompt(&r, prompt);
        drawn(&r, NULL, digits);
        assert_int_equal(strspn(digits, "0123456789"), 6);
        rt_block b;
        assert_int_equal(rt_next(r.st, r.s, &b), RT_END);
        assert_int_equal(rt_constrain(r.s, schema), RT_OK);  /* the end was the last one's alone */
        assert_int_equal(rt_next(r.st, r.s, &b), RT_OK);
        assert_true(b.n > 0 && !rt_constraint_done(r.s));
        assert_int_equal(rt_constrain(r.s, gbnf), RT_OK);
        close_rig(&r);                                       /* a session may be freed with its constraint */
    }
    assert_true(shortened > 0);                              /* guesses were accepted, and blocks shortened */
    rt_grammar_free(gbnf);
    rt_grammar_free(schema);
}

static void samplings(void **state)
{
    (void) state;
    Rigged r;
    rt_sampling p = RT_SAMPLING(.seed = 4, .max_tokens = 9), q = RT_SAMPLING(.rep_window = 7);
    open_rig(&r, -1, NULL);
    rt_sampling_recommended(r.g, &p);              /* the demo recommends nothing */
    assert_true(p.temperature == 0.7f && p.top_p == 0.9f && p.min_p == 0 && p.top_k == 0 && p.repetition == 1);
    assert_true(p.seed == 4 && p.max_tokens == 9 && p.rep_window == 256);
    assert_int_equal(rt_sampling_set(r.s, &p), RT_OK);
    rt_sampling_recommended(r.g, &q);
    assert_int_equal(q.rep_window, 7);
    close_rig(&r);
}

static void refused_grammars(void **state)
{
    (void) state;
    rt_grammar *g;
    rt_error e;
    assert_int_equal(rt_grammar_new(&g, RT_GBNF, "root ::= x", 10, "my.gbnf", &e), RT_EFORMAT);
    assert_non_null(strstr(e.text, "my.gbnf:1:"));
    assert_null(g);
    assert_int_equal(rt_grammar_new(&g, RT_JSON_SCHEMA, "{\"not\": {}}", 11, "my.json", &e), RT_EUNSUPPORTED);
    assert_non_null(strstr(e.text, "my.json: #/not"));
    assert_int_equal(rt_grammar_new(&g, RT_JSON_SCHEMA, "{", 1, "my.json", &e), RT_EFORMAT);
    assert_int_equal(rt_grammar_new(&g, (rt_grammar_kind) 7, "", 0, "my", &e), RT_EARG);
    rt_grammar_free(NULL);
}

/* Sessions of one step, each with a grammar of its own or none: a text that is complete stays so while the others go
 * on, and each is what it would be alone. */
static void together(void **state)
{
    (void) state;
    enum { MANY = 3 };
    Rigged r;
    rt_error e;
    rt_session *s[MANY];
    rt_step *st;
    rt_block b[MANY];
    char alone[MANY][LONG], text[MANY][LONG] = { "" };
    rt_grammar *g[MANY] = { grammar(RT_GBNF, "root ::= [a-f]{3,9} \".\""),
                            grammar(RT_GBNF, "root ::= ([0-9] \",\"){20}"), NULL };
    open_rig(&r, 0, NULL);
    assert_int_equal(rt_step_new(&st, r.g, &RT_STEP_OPTIONS(.sessions = MANY), &e), RT_OK);
    for (int32_t i = 0; i < MANY; i++) {
        rt_sampling p = RT_SAMPLING(.temperature = 1, .seed = 7 + (uint64_t) i, .max_tokens = 60);
        rt_session *keep = r.s;
        assert_int_equal(rt_session_new(&s[i], r.g, &RT_SESSION_OPTIONS(.ctx = CTX), &e), RT_OK);
        assert_int_equal(rt_sampling_set(s[i], &p), RT_OK);
        assert_int_equal(rt_constrain(s[i], g[i]), RT_OK);
        rt_grammar_free(g[i]);
        r.s = s[i];
        put_prompt(&r, "class Stack:");
        drawn(&r, NULL, alone[i]);
        put_prompt(&r, "class Stack:");
        r.s = keep;
    }
    for (int32_t going = MANY; going > 0;) {
        assert_int_equal(rt_step_run(st, s, b, MANY), RT_OK);
        going = 0;
        for (int32_t i = 0; i < MANY; i++) {
            going += b[i].status == RT_OK;
            for (int32_t k = 0; k < b[i].n; k++) {
                size_t n;
                const char *bytes = rt_token_bytes(r.g, b[i].token[k], &n);
                strncat(text[i], bytes, n);
            }
        }
    }
    for (int32_t i = 0; i < MANY; i++) {
        assert_string_equal(text[i], alone[i]);
        assert_true(rt_constraint_done(s[i]) == (i < 2));
        rt_session_free(s[i]);
    }
    rt_step_free(st);
    close_rig(&r);
}

/* Nothing of this works for a model without tokenizer, and says so. */
static void no_tokenizer(void **state)
{
    (void) state;
    RigOptions o = rig_kind(1, false);
    PublicRig p;
    rt_error e;
    rt_session *s;
    rt_step *st;
    rt_chat *c;
    rt_reply *reply;
    rt_grammar *g = grammar(RT_GBNF, "root ::= \"a\"");
    public_open(&p, &o, NULL);
    assert_int_equal(rt_session_new(&s, p.g, &RT_SESSION_OPTIONS(.ctx = 40), &e), RT_OK);
    assert_int_equal(rt_step_new(&st, p.g, NULL, &e), RT_OK);
    assert_int_equal(rt_chat_new(&c, p.g, NULL, &e), RT_EUNSUPPORTED);
    assert_int_equal(rt_constrain(s, g), RT_EUNSUPPORTED);
    assert_non_null(strstr(rt_session_error(s), "tokenizer"));
    assert_int_equal(rt_reply_new(&reply, s, NULL, &e), RT_EUNSUPPORTED);
    assert_int_equal(rt_generate(st, s, "x", NULL, NULL, NULL, NULL, &e), RT_EUNSUPPORTED);
    rt_step_free(st);
    rt_session_free(s);
    rt_grammar_free(g);
    public_close(&p);
}

/* ---- answers ---- */

typedef struct {
    const Rigged *r;
    char text[LONG], reasoning[LONG], call[64], args[LONG];
    size_t n, n_reasoning, n_args;
    int32_t ended, events, until;                  /* until: events to hear; 0: all */
    bool cancels;
} Heard;

static bool whole(const char *s, size_t n)
{
    json_t *j = json_stringn(s, n);                /* checks that it is UTF-8 */
    json_decref(j);
    return j != NULL;
}

static bool hear(void *ud, const rt_event *e)
{
    Heard *h = ud;
    assert_true(whole(e->bytes, e->n));
    assert_true(h->n + e->n < LONG && h->n_reasoning + e->n < LONG && h->n_args + e->n < LONG);
    switch (e->kind) {
    case RT_TEXT:      memcpy(h->text + h->n, e->bytes, e->n), h->n += e->n; break;
    case RT_REASONING: memcpy(h->reasoning + h->n_reasoning, e->bytes, e->n), h->n_reasoning += e->n; break;
    case RT_CALL:      snprintf(h->call, sizeof h->call, "%d %.*s", e->call, (int) e->n, e->bytes); break;
    case RT_ARGUMENTS: memcpy(h->args + h->n_args, e->bytes, e->n), h->n_args += e->n; break;
    case RT_CALL_END:  h->ended++; break;
    }
    h->events++;
    if (h->cancels) rt_step_cancel(h->r->st);
    return h->until == 0 || h->events < h->until;
}

static Heard answer(const Rigged *r, const char *text, rt_reply_options o, rt_finish want)
{
    Heard h = { .r = r };
    rt_error e;
    rt_finish why;
    if (rt_generate(r->st, r->s, text, &o, hear, &h, &why, &e) != RT_OK) fail_msg("%s", e.text);
    assert_int_equal(why, want);
    return h;
}

/* Options that are refused leave the session its text. */
static void refused_options(void **state)
{
    (void) state;
    Rigged r;
    rt_error e;
    const int32_t *text;
    const char *const none[] = { NULL };
    open_rig(&r, -1, NULL);
    assert_int_equal(rt_sampling_set(r.s, &RT_SAMPLING(.max_tokens = 5)), RT_OK);
    answer(&r, "class Stack:\n    def __init__(self", RT_REPLY_OPTIONS(.n_stop = 0), RT_FINISH_LENGTH);
    const size_t held = rt_session_text(r.s, &text);
    const rt_reply_options bad[] = { RT_REPLY_OPTIONS(.n_stop = -1), RT_REPLY_OPTIONS(.n_stop = 1, .stop = none) };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(rt_generate(r.st, r.s, "else", &bad[i], NULL, NULL, NULL, &e), RT_EARG);
        assert_non_null(strstr(e.text, "stop"));
        assert_int_equal(rt_session_text(r.s, &text), held);
    }
    close_rig(&r);
}

/* Where a text may end but need not, a limit ends it. */
static void open_end(void **state)
{
    (void) state;
    Rigged r;
    char text[LONG];
    rt_grammar *g = grammar(RT_GBNF, "root ::= [a-z]+");
    open_rig(&r, -1, NULL);
    assert_int_equal(rt_sampling_set(r.s, &RT_SAMPLING(.max_tokens = 5)), RT_OK);
    assert_int_equal(rt_constrain(r.s, g), RT_OK);
    put_prompt(&r, "x");
    drawn(&r, NULL, text);
    assert_true(rt_constraint_met(r.s) && !rt_constraint_done(r.s));
    assert_int_equal(strspn(text, "abcdefghijklmnopqrstuvwxyz"), strlen(text));
    assert_int_equal(rt_constrain(r.s, NULL), RT_OK);
    assert_false(rt_constraint_met(r.s) || rt_constraint_done(r.s));
    answer(&r, "x", RT_REPLY_OPTIONS(.grammar = g), RT_FINISH_LENGTH);
    rt_grammar_free(g);
    close_rig(&r);
}

/* A reply that is freed late takes away its own grammar, not that of the next reply or of the caller. */
static void freed_late(void **state)
{
    (void) state;
    Rigged r;
    rt_reply *old, *reply;
    rt_error e;
    rt_block b;
    rt_event event;
    rt_grammar *g = grammar(RT_GBNF, "root ::= [0-9]+");
    open_rig(&r, -1, NULL);
    assert_int_equal(rt_sampling_set(r.s, &RT_SAMPLING(.max_tokens = 12)), RT_OK);
    put_prompt(&r, "def f(x):\n");
    assert_int_equal(rt_reply_new(&old, r.s, &RT_REPLY_OPTIONS(.grammar = g), &e), RT_OK);
    assert_int_equal(rt_reply_new(&reply, r.s, &RT_REPLY_OPTIONS(.grammar = g), &e), RT_OK);
    rt_reply_free(old);
    assert_non_null(r.s->form);
    while (rt_next(r.st, r.s, &b) == RT_OK && rt_reply_read(reply, &b) == RT_OK)
        while (rt_reply_next(reply, &event))
            for (size_t i = 0; i < event.n; i++) assert_in_range(event.bytes[i], '0', '9');
    assert_int_equal(rt_constrain(r.s, g), RT_OK);
    rt_reply_free(reply);
    assert_non_null(r.s->form);
    assert_int_equal(rt_reply_new(&reply, r.s, &RT_REPLY_OPTIONS(.grammar = g), &e), RT_OK);
    rt_reply_free(reply);
    assert_null(r.s->form);
    rt_grammar_free(g);
    close_rig(&r);
}

/* Stop strings of every length at every place: the answer is the text before the first of them. */
static void stop_strings(void **state)
{
    (void) state;
    static const char *const prompt = "class Stack:\n    def __init__(self";
    for (int32_t budget = -1; budget < 1; budget++) {
        Rigged r;
        open_rig(&r, budget, NULL);
        assert_int_equal(rt_sampling_set(r.s, &RT_SAMPLING(.max_tokens = 40)), RT_OK);
        Heard all = answer(&r, prompt, RT_REPLY_OPTIONS(.n_stop = 0), RT_FINISH_LENGTH);
        assert_true(all.n > 60);
        for (size_t at = 1; at < 60; at += 7)
            for (size_t n = 1; n < 14; n += 4) {
                char stop[16];
                snprintf(stop, sizeof stop, "%.*s", (int) n, all.text + at);
                size_t first = (size_t) (strstr(all.text, stop) - all.text);
                const char *stops[] = { "never said", stop };
                Heard h = answer(&r, prompt, RT_REPLY_OPTIONS(.stop = stops, .n_stop = 2), RT_FINISH_STRING);
                assert_int_equal(h.n, first);
                assert_memory_equal(h.text, all.text, first);
            }
        close_rig(&r);
    }
}

/* Whole characters, also of four bytes, whatever the tokens; and the end that the model or the grammar makes. */
static void whole_characters(void **state)
{
    (void) state;
    rt_grammar *g = grammar(RT_GBNF, "root ::= (\"\xc3\xa4\" | \"\xf0\x9f\x98\x80\" | \"\xe2\x82\xac\"){12}");
    Rigged r;
    open_rig(&r, 0, NULL);
    assert_int_equal(rt_sampling_set(r.s, &RT_SAMPLING(.temperature = 2, .seed = 5, .max_tokens = 100)), RT_OK);
    Heard h = answer(&r, "x", RT_REPLY_OPTIONS(.grammar = g), RT_FINISH_STOP);
    int32_t characters = 0;
    for (size_t i = 0; i < h.n; i++) characters += (h.text[i] & 0xc0) != 0x80;
    assert_int_equal(characters, 12);
    assert_true(h.events > 1);
    assert_false(rt_constraint_met(r.s));          /* the reply's constraint has gone with it */
    assert_int_equal(rt_sampling_set(r.s, &RT_SAMPLING(.temperature = 2, .seed = 5, .max_tokens = 5)), RT_OK);
    h = answer(&r, "x", RT_REPLY_OPTIONS(.grammar = g), RT_FINISH_LENGTH);
    assert_true(whole(h.text, h.n));
    rt_grammar_free(g);
    close_rig(&r);
}

/* The demo does not reason or call by itself: a constraint of the session makes it. */
static void reasoning_and_calls(void **state)
{
    (void) state;
    rt_grammar *script = grammar(RT_GBNF, "root ::= \"Sum it up.\\n</think>\\n\\nWell\\n<tool_call>\\n{\\\"name\\\": "
                                 "\\\"weather\\\", \\\"arguments\\\": {\\\"city\\\": \\\"Oslo\\\"}}\\n</tool_call>\""),
               *half = grammar(RT_GBNF, "root ::= \"</think>\\n\\n<tool_call>\\n{\\\"name\\\": \\\"weather\\\", "
                                        "\\\"arguments\\\": {\\\"city\\\": \\\"Os\""),
               *free_text = grammar(RT_GBNF, "root ::= \"Hm.\\n</think>abcabcabcabcabc\""),
               *digits = grammar(RT_GBNF, "root ::= [0-9]{9}");
    for (int32_t budget = -1; budget < 1; budget++) {
        Rigged r;
        open_rig(&r, budget, OPENED);
        rt_chat_text *t = rendered(&r, RT_CHAT_REQUEST(.messages = ASKED, .tools = TOOLS, .thinking = 1));
        assert_int_equal(rt_constrain(r.s, script), RT_OK);
        Heard h = answer(&r, NULL, RT_REPLY_OPTIONS(.conversation = t), RT_FINISH_CALLS);
        assert_string_equal(h.reasoning, "Sum it up.");
        assert_string_equal(h.text, "Well");
        assert_string_equal(h.call, "0 weather");
        assert_string_equal(h.args, "{\"city\": \"Oslo\"}");
        assert_int_equal(h.ended, 1);
        /* one that its own end cuts is no call to run */
        assert_int_equal(rt_constrain(r.s, half), RT_OK);
        h = answer(&r, NULL, RT_REPLY_OPTIONS(.conversation = t), RT_FINISH_STOP);
        assert_string_equal(h.call, "0 weather");
        assert_true(strncmp(h.args, "{\"city\": \"Os", 11) == 0 && !strchr(h.args, '}'));
        assert_int_equal(rt_constrain(r.s, script), RT_OK);
        /* without tools it is text; a reply without the conversation sees text alone */
        rt_chat_text *bare = rendered(&r, RT_CHAT_REQUEST(.messages = ASKED, .thinking = 1));
        h = answer(&r, NULL, RT_REPLY_OPTIONS(.conversation = bare), RT_FINISH_STOP);
        assert_non_null(strstr(h.text, "<tool_call>"));
        h = answer(&r, t->text, RT_REPLY_OPTIONS(.conversation = t), RT_FINISH_STOP);
        assert_non_null(strstr(h.text, "</think>"));
        rt_chat_text_free(bare);
        /* a grammar waits for the end of reasoning; here the block goes beyond it, guessed from the question */
        bare = rendered(&r, RT_CHAT_REQUEST(.messages = "[{\"role\": \"user\", \"content\": \"Hm.\\n</think>"
                                            "abcabcabcabcabc Hm.\\n</think>abcabcabcabcabc\"}]"));
        assert_int_equal(rt_constrain(r.s, free_text), RT_OK);
        h = answer(&r, NULL, RT_REPLY_OPTIONS(.conversation = bare, .grammar = digits), RT_FINISH_STOP);
        assert_string_equal(h.reasoning, "Hm.");
        assert_int_equal(h.n, 9);
        assert_int_equal(strspn(h.text, "0123456789"), 9);
        const int32_t *all;
        char text[LONG] = "", want[64];
        size_t total = rt_session_text(r.s, &all);
        rt_detokenize(r.g, all + bare->n_token, total - bare->n_token, text, sizeof text - 1);
        snprintf(want, sizeof want, "Hm.\n</think>%.9s", h.text);
        assert_string_equal(text, want);
        rt_chat_text_free(t);
        rt_chat_text_free(bare);
        close_rig(&r);
    }
    rt_grammar_free(script);
    rt_grammar_free(half);
    rt_grammar_free(free_text);
    rt_grammar_free(digits);
}

/* The steps of rt_generate by hand. The conversation is not needed once the reply exists. */
static void by_hand(void **state)
{
    (void) state;
    Rigged r;
    rt_error e;
    rt_reply *reply;
    rt_event x;
    rt_block b;
    rt_status st = RT_OK;
    char text[LONG];
    size_t n = 0;
    int32_t which;
    open_rig(&r, 0, NULL);
    rt_chat_text *t = rendered(&r, RT_CHAT_REQUEST(.messages = ASKED));
    assert_int_equal(rt_sampling_set(r.s, &RT_SAMPLING(.max_tokens = 60)), RT_OK);
    Heard h = answer(&r, NULL, RT_REPLY_OPTIONS(.conversation = t), RT_FINISH_STOP);
    assert_int_equal(rt_prompt(r.s, t->token, t->n_token), RT_OK);
    assert_int_equal(rt_reply_new(&reply, r.s, &RT_REPLY_OPTIONS(.conversation = t), &e), RT_OK);
    rt_chat_text_free(t);
    while (st == RT_OK) {
        rt_next(r.st, r.s, &b);
        st = rt_reply_read(reply, &b);
        while (rt_reply_next(reply, &x)) memcpy(text + n, x.bytes, x.n), n += x.n;
    }
    assert_int_equal(st, RT_END);
    assert_int_equal(rt_reply_read(reply, &b), RT_END);
    assert_int_equal(rt_reply_finish(reply, &which), RT_FINISH_STOP);
    assert_int_equal(which, -1);
    assert_int_equal(n, h.n);
    assert_memory_equal(text, h.text, n);
    const int32_t *all;
    size_t total = rt_session_text(r.s, &all);
    assert_true(rt_token_ends(r.g, all[total - 1]));
    rt_reply_free(reply);
    assert_int_equal(rt_reply_new(&reply, r.s, &RT_REPLY_OPTIONS(.n_stop = -1), &e), RT_EARG);
    const char *const half[] = { "a", NULL };
    assert_int_equal(rt_reply_new(&reply, r.s, &RT_REPLY_OPTIONS(.n_stop = 2, .stop = half), &e), RT_EARG);
    assert_string_equal(e.text, "stop[1]: NULL, expected a text");
    assert_int_equal(rt_reply_new(&reply, r.s, &RT_REPLY_OPTIONS(.n_stop = 1), &e), RT_EARG);
    assert_int_equal(rt_reply_new(&reply, r.s, &(rt_reply_options) { .size = 3 }, &e), RT_EARG);
    assert_null(reply);
    close_rig(&r);
}

/* A callback ends the answer, or cancels the step; what the session holds can be continued either way. */
static void cancelled(void **state)
{
    (void) state;
    Rigged r;
    rt_error e;
    rt_finish why;
    open_rig(&r, 0, NULL);
    Heard h = { .r = &r, .until = 3 };
    assert_int_equal(rt_generate(r.st, r.s, "def f(", NULL, hear, &h, &why, &e), RT_OK);
    assert_int_equal(why, RT_FINISH_CANCEL);
    assert_int_equal(h.events, 3);
    h = (Heard) { .r = &r, .cancels = true };
    assert_int_equal(rt_generate(r.st, r.s, "def f(", NULL, hear, &h, &why, &e), RT_OK);
    assert_int_equal(why, RT_FINISH_CANCEL);
    assert_true(h.events > 0);
    assert_int_equal(rt_sampling_set(r.s, &RT_SAMPLING(.max_tokens = 4)), RT_OK);
    assert_int_equal(rt_generate(r.st, r.s, "def f(", NULL, NULL, NULL, NULL, &e), RT_OK);
    assert_int_equal(rt_generate(r.st, r.s, NULL, NULL, NULL, NULL, &why, &e), RT_EARG);
    assert_non_null(strstr(e.text, "conversation: NULL"));
    assert_int_equal(why, RT_GOES_ON);
    assert_int_equal(rt_generate(r.st, r.s, "", NULL, NULL, NULL, &why, &e), RT_OK);     /* begins with BOS */
    assert_int_equal(why, RT_FINISH_LENGTH);
    char *long_text = calloc(1, 3 * CTX * 4 + 1);
    for (int32_t i = 0; i < 3 * CTX; i++) memcpy(long_text + 4 * i, "x y ", 4);
    assert_int_equal(rt_generate(r.st, r.s, long_text, NULL, NULL, NULL, &why, &e), RT_EFULL);
    assert_string_not_equal(e.text, "");
    free(long_text);
    close_rig(&r);
}

/* Threads share engine, chat and grammar, whichever needs the vocabulary first. */
typedef struct { const Rigged *r; rt_grammar *g; pthread_t thread; char text[64]; } Talker;

static bool keep(void *ud, const rt_event *e)
{
    Talker *t = ud;
    strncat(t->text, e->bytes, e->n);
    return true;
}

static void *talk(void *ud)
{
    Talker *t = ud;
    rt_error e;
    rt_session *s = NULL;
    rt_step *st = NULL;
    rt_chat_text *asked = NULL;
    rt_chat_request q = RT_CHAT_REQUEST(.messages = ASKED);
    if (rt_session_new(&s, t->r->g, &RT_SESSION_OPTIONS(.ctx = 100), &e) == RT_OK &&
        rt_step_new(&st, t->r->g, NULL, &e) == RT_OK && rt_chat_render(&asked, t->r->c, &q, &e) == RT_OK)
        rt_generate(st, s, NULL, &RT_REPLY_OPTIONS(.conversation = asked, .grammar = t->g), keep, t, NULL, &e);
    rt_chat_text_free(asked);
    rt_step_free(st);
    rt_session_free(s);
    return NULL;
}

static void threads(void **state)
{
    (void) state;
    enum { THREADS = 3 };
    Rigged r;
    Talker t[THREADS];
    open_rig(&r, -1, NULL);
    rt_grammar *g = grammar(RT_GBNF, "root ::= [0-9]{12}");
    for (int32_t i = 0; i < THREADS; i++) {
        t[i] = (Talker) { .r = &r, .g = g };
        assert_int_equal(pthread_create(&t[i].thread, NULL, talk, &t[i]), 0);
    }
    for (int32_t i = 0; i < THREADS; i++) {
        pthread_join(t[i].thread, NULL);
        assert_int_equal(strspn(t[i].text, "0123456789"), 12);
        assert_string_equal(t[i].text, t[0].text);
    }
    rt_grammar_free(g);
    close_rig(&r);
}

/* The next turn is computed from the mark on, at least. */
static void turns(void **state)
{
    (void) state;
    Rigged r;
    char messages[LONG];
    rt_stats y;
    open_rig(&r, 0, NULL);
    assert_int_equal(rt_sampling_set(r.s, &RT_SAMPLING(.max_tokens = 60)), RT_OK);
    rt_chat_text *t = rendered(&r, RT_CHAT_REQUEST(.messages = ASKED));
    Heard h = answer(&r, NULL, RT_REPLY_OPTIONS(.conversation = t), RT_FINISH_STOP);
    json_t *text = json_stringn(h.text, h.n);
    char *quoted = json_dumps(text, JSON_ENCODE_ANY);
    snprintf(messages, sizeof messages, "%.*s, {\"role\": \"assistant\", \"content\": %s}, {\"role\": \"user\", "
             "\"content\": \"And 2 + 2?\"}]", (int) strlen(ASKED) - 1, ASKED, quoted);
    free(quoted);
    json_decref(text);
    rt_chat_text *next = rendered(&r, RT_CHAT_REQUEST(.messages = messages));
    answer(&r, NULL, RT_REPLY_OPTIONS(.conversation = next), RT_FINISH_STOP);
    rt_stats_get(r.s, &y, sizeof y);
    assert_int_equal(y.prompt_tokens, next->n_token);
    assert_true(y.resumed >= t->marked && t->marked > 0);
    rt_chat_text_free(t);
    rt_chat_text_free(next);
    close_rig(&r);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts), cmocka_unit_test(thinking_and_tools), cmocka_unit_test(refused_requests),
        cmocka_unit_test(constraints), cmocka_unit_test(together), cmocka_unit_test(open_end),
        cmocka_unit_test(refused_options),
        cmocka_unit_test(freed_late), cmocka_unit_test(samplings), cmocka_unit_test(refused_grammars),
        cmocka_unit_test(no_tokenizer),
        cmocka_unit_test(stop_strings), cmocka_unit_test(whole_characters), cmocka_unit_test(reasoning_and_calls),
        cmocka_unit_test(by_hand), cmocka_unit_test(cancelled), cmocka_unit_test(turns), cmocka_unit_test(threads),
    };
    return cmocka_run_group_tests_name("chat", tests, NULL, NULL);
}
