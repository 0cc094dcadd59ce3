/* Earlier answers in prompts, without running a model: the text around a placeholder decides whether the answer's own
 * tokens may replace it. The tokenizer is the demo model's. */
#include "programs/serve/run/replay_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "programs/chat/chat.h"

enum { KEPT = 3, TOKEN = 321 };
#define OPENING "<|im_start|>assistant\n<think>\n"

typedef struct { Server s; Request q; json_t *messages; ReplayPlan *plan; } SpliceWorld;

/* A conversation whose second message is an answer that was remembered under its handle. */
static void begin(SpliceWorld *w)
{
    rt_error e;
    *w = (SpliceWorld) { .q = { .dialect = DIALECT_RESPONSES } };
    rt_options o = RT_OPTIONS(.model = "models/demo/ratoon-demo-q8_0.gguf", .threads = 1);
    assert_int_equal(rt_open(&w->s.p.engine, &o, &e), RT_OK);
    static const char source[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                                 "{% endfor %}";
    const ChatOptions chat = { .source = source, .n = sizeof source - 1, .name = "test", .arch = "" };
    TemplateError te;
    assert_int_equal(chat_prompt_open(&w->s.chat, &chat, &te), ST_OK);
    Replay *r = w->s.replay = replay_new();
    StoredAnswer *t = calloc(1, sizeof *t);
    assert_true(r && t);
    *t = (StoredAnswer) { .users = 1, .handle = "v1.kept", .said = strdup("Yes."), .n_said = 4,
                          .opening = strdup(OPENING), .token = malloc(sizeof(int32_t) * KEPT), .n_token = KEPT };
    for (int32_t i = 0; i < KEPT; i++) t->token[i] = TOKEN + i;
    r->stored[r->n_stored++] = t;
    w->messages = json_pack("[{s:s s:s} {s:s s:s}]", "role", "user", "content", "Well?", "role", "assistant", "content",
        "Yes.");
    w->q.handles = json_pack("[n s]", "v1.kept");
    w->plan = replay_plan(&w->s, &w->q, w->messages);
    assert_non_null(w->plan);
}

static void end(SpliceWorld *w)
{
    replay_plan_free(w->plan);
    json_decref(w->messages);
    json_decref(w->q.handles);
    replay_free(w->s.replay);
    chat_prompt_close(w->s.chat);
    rt_close(w->s.p.engine);
}

/* Returns whether the answer's tokens are put in, and how many, if the rendering is before, client's, between,
 * placeholder, after. */
static bool spliced(SpliceWorld *w, const char *before, const char *clients, const char *between, int32_t *n)
{
    char text[1024];
    int32_t *t = NULL;
    const char *mark = json_string_value(json_object_get(json_array_get(replay_messages(w->plan), 1), "content"));
    TextSpan span = { strlen(before), strlen(clients) };
    size_t len = (size_t) snprintf(text, sizeof text, "%s%s%s%s<|im_end|>\n", before, clients, between, mark);
    TemplateText rendered = { .text = text, .n = len, .client = &span, .n_client = *clients != 0 };
    bool good = replay_tokens(&t, n, &w->s, w->plan, &rendered, false);
    int32_t found = 0;
    for (int32_t i = 0; good && i + KEPT <= *n; i++)
        found += t[i] == TOKEN && t[i + 1] == TOKEN + 1 && t[i + 2] == TOKEN + 2;
    if (good) assert_int_equal(found, 1);
    free(t);
    return good;
}

#define SPLICE_USER "<|im_start|>user\n"
#define TURN "<|im_end|>\n<|im_start|>assistant\n"

/* Between the opening of a turn and its content only the template may write: a client's text there would be lost. */
static void nothing_of_a_client_between(void **state)
{
    (void) state;
    SpliceWorld w;
    int32_t n, longer;
    begin(&w);
    assert_true(spliced(&w, SPLICE_USER, "Well?", TURN, &n));
    /* written by the template: it counts as part of the opening */
    assert_true(spliced(&w, SPLICE_USER, "Well?", TURN "<think>\n\n</think>\n", &longer));
    assert_int_equal(longer, n);
    assert_false(spliced(&w, SPLICE_USER "Well?" TURN, "I am ", "", &n));
    assert_false(spliced(&w, SPLICE_USER "Well?" TURN, "I", " am ", &n));
    /* the opening itself is the client's */
    assert_false(spliced(&w, SPLICE_USER "Well?", TURN, "", &n));
    /* and where only its end is the client's */
    assert_false(spliced(&w, SPLICE_USER "Well?<|im_end|>\n<|im_start|>assist", "ant\n", "", &n));
    end(&w);
}

/* No opening close enough before it. */
static void an_opening_is_needed(void **state)
{
    (void) state;
    SpliceWorld w;
    int32_t n;
    char far[300];
    begin(&w);
    assert_false(spliced(&w, SPLICE_USER, "Well?", "<|im_end|>\n<|im_start|>tool\n", &n));
    memset(far, ' ', sizeof far - 1);
    far[sizeof far - 1] = 0;
    char between[512];
    snprintf(between, sizeof between, TURN "%.200s", far);
    assert_true(spliced(&w, SPLICE_USER, "Well?", between, &n));
    snprintf(between, sizeof between, TURN "%s", far);
    assert_false(spliced(&w, SPLICE_USER, "Well?", between, &n));
    end(&w);
}

/* ---- as many as there is room for ---- */

/* An answer to prompt i, of tokens that tokenizing its text would not give. */
static void answer_prompt(SpliceWorld *w, uint64_t i)
{
    int32_t token[2] = { rt_token_find(w->s.p.engine, "t", 1), rt_token_find(w->s.p.engine, "he", 2) };
    JobPrompt p = { .text = "<|im_start|>assistant\n", .n_text = 22, .key = { i, ~i } };
    RunChoice c = { .prompt = &p, .token = token, .fed = 2, .end.reason = FINISH_STOP, .summary.tokens = 2 };
    Request q = { .dialect = DIALECT_CHAT, .cached = true };
    Job j = { .server = &w->s, .q = &q, .choice = &c, .n_choice = 1 };
    replay_job(&w->s, &j);
}

static bool knows(Replay *r, uint64_t i)
{
    Part part = { { i, ~i }, "the", 3, NULL };
    stored_told(r, &part, 1);
    if (!part.stored) return false;
    stored_drop(part.stored);
    return true;
}

/* The least recently requested answer is dropped. */
static void answers_beyond_the_most(void **state)
{
    (void) state;
    SpliceWorld w;
    begin(&w);
    Replay *r = w.s.replay;
    SpliceSecret secret = r->secret;
    r->bytes += r->stored[0]->bytes = 100;                         /* what begin() put in by hand */
    for (uint64_t i = 1; i < STORED_MAX; i++) answer_prompt(&w, i);
    assert_int_equal(r->n_stored, STORED_MAX);
    assert_true(knows(r, 1));
    size_t full = r->bytes, each = (full - 100) / (STORED_MAX - 1);
    for (uint64_t i = 0; i < 3; i++) {
        answer_prompt(&w, STORED_MAX + i);
        assert_int_equal(r->n_stored, STORED_MAX);
        assert_int_equal(r->bytes, STORED_MAX * each);
    }
    assert_true(knows(r, 1) && knows(r, 5) && knows(r, STORED_MAX - 1) && knows(r, STORED_MAX + 2));
    assert_false(knows(r, 2) || knows(r, 3) || knows(r, STORED_MAX + 3));
    assert_string_equal(r->secret.text, secret.text);
    end(&w);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_of_a_client_between), cmocka_unit_test(an_opening_is_needed),
        cmocka_unit_test(answers_beyond_the_most),
    };
    return cmocka_run_group_tests_name("splice", tests, NULL, NULL);
}
