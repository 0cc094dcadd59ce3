/* Conversations whose answers are kept as tokens, without running a model: made-up answers, some with reasoning that
 * the template shows again or leaves out or that was cut short, and the next prompt that results. The tokenizer is the
 * demo model's. Also: what is written to a terminal. */
#include "programs/chat/console.h"
#include "programs/chat/talk.h"

#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define TURNS(assistant)                                                                                         \
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}" assistant "{% else %}{{ " \
    "m.content }}{% endif %}<|im_end|>\n{% endfor %}"                                                            \
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"

static const char leaves_out[] = TURNS("{{ m.content }}");
static const char keeps[] = TURNS("{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
                                  "{% endif %}{{ m.content }}");
static const char twice[] = TURNS("{{ m.content }}{{ m.content }}");

typedef struct { Program p; Options o; Talk t; } World;

/* The demo model's tokenizer with another template. */
static void begin(World *w, const char *template, bool think)
{
    rt_error e;
    TemplateError te;
    *w = (World) { .o = { .command = "chat", .quiet = true, .think = think, .system = "Be kind.",
                          .template_now = { .value = 1, .given = true } } };
    w->p.o = &w->o;
    assert_int_equal(rt_open(&w->p.engine, &RT_OPTIONS(.model = "models/demo/ratoon-demo-q8_0.gguf", .threads = 1),
                             &e), RT_OK);
    assert_true(talk_open(&w->t, &w->p));
    chat_prompt_close(w->t.template);
    ChatOptions co = { .source = template, .n = strlen(template), .name = "test", .arch = "" };
    assert_int_equal(chat_prompt_open(&w->t.template, &co, &te), ST_OK);
    w->t.style = (ReplyStyle) { CALLS_NONE, THINK_TAGS };
}

static void end(World *w)
{
    talk_close(&w->t);
    rt_close(w->p.engine);
}

static char *text_of(const World *w, const int32_t *token, int32_t n)
{
    size_t len = 0;
    char *s = calloc(1, 16384);
    for (int32_t i = 0; i < n; i++) {
        size_t k = 0;
        const char *bytes = rt_token_bytes(w->p.engine, token[i], &k);
        if (k == 0 && token[i] == chat_token(w->p.engine, "<|im_start|>")) bytes = "<|im_start|>", k = 12;
        if (k == 0 && token[i] == chat_token(w->p.engine, "<|im_end|>")) bytes = "<|im_end|>", k = 10;
        assert_true(len + k < 16000);
        memcpy(s + len, bytes, k);
        len += k;
    }
    return s;
}

/* An answer of one token per letter, unlike any tokenizer's: tokenizing it again would give other tokens. reasoning
 * NULL: none. */
static void answer(World *w, const Question *q, const char *user, const char *reasoning, const char *text,
                   bool unclosed)
{
    char all[512] = "";
    int32_t token[512], spoken;
    TalkAnswer a = { .token = token, .text = (char *) text, .reasoning = reasoning ? (char *) reasoning : "",
                     .unclosed = unclosed };
    if (reasoning) snprintf(all, sizeof all, unclosed ? "%s" : "%s\n</think>\n\n", reasoning);
    spoken = (int32_t) strlen(all);
    strcat(all, text);
    for (const char *p = all; *p; p++) {
        assert_int_equal(rt_tokenize(w->p.engine, p, 1, false, token + a.n, 1), 1);
        a.n++;
    }
    a.spoken = spoken;
    assert_true(talk_answered(&w->t, q, user, &a));
}

/* Even if the rendering did not show where the answer begins, the question must be the same. */
static void ask_bare(World *w, const Question *want, const char *user)
{
    ChatCaps *caps = (ChatCaps *) (uintptr_t) chat_prompt_caps(w->t.template);
    Question q;
    assert_true(caps->answer_apart);
    caps->answer_apart = false;
    assert_true(talk_ask(&q, &w->t, user));
    caps->answer_apart = true;
    assert_int_equal(q.mark, want->mark);
    assert_int_equal(q.held, want->held);
    assert_int_equal(q.n, want->n);
    assert_memory_equal(q.token, want->token, sizeof *q.token * (size_t) q.n);
    question_free(&q);
}

/* Asks, and checks the text of the prompt. */
static void ask(World *w, Question *q, const char *user, const char *expected)
{
    assert_true(talk_ask(q, &w->t, user));
    ask_bare(w, q, user);
    char *text = text_of(w, q->token, q->n);
    assert_string_equal(text, expected);
    free(text);
}

#define SYSTEM "<|im_start|>system\nBe kind.<|im_end|>\n"
#define USER_TURN(text) "<|im_start|>user\n" text "<|im_end|>\n"
#define ASSISTANT "<|im_start|>assistant\n"

static void answers_keep_their_tokens(void **state)
{
    (void) state;
    World w;
    Question q, next;
    begin(&w, leaves_out, false);
    ask(&w, &q, "one", SYSTEM USER_TURN("one") ASSISTANT);
    assert_int_equal(q.held, 0);
    for (int32_t turn = 0; turn < 4; turn++) {
        answer(&w, &q, "one", NULL, "An answer of some words", false);
        assert_true(talk_ask(&next, &w.t, "two"));
        assert_int_equal(next.held, q.n + 23);     /* 23 letters, a token each */
        assert_memory_equal(next.token, q.token, sizeof *q.token * (size_t) q.n);
        for (int32_t i = 0; i < 23; i++) {
            size_t n;
            rt_token_bytes(w.p.engine, next.token[q.n + i], &n);
            assert_int_equal(n, 1);
        }
        question_free(&q);
        q = next;
    }
    talk_undo(&w.t);                               /* the turns before are still known */
    assert_true(talk_ask(&next, &w.t, "three"));
    assert_true(next.held > 0 && next.held < q.held);
    assert_memory_equal(next.token, q.token, sizeof *q.token * (size_t) next.held);
    question_free(&next);
    talk_forget(&w.t);
    assert_true(talk_ask(&next, &w.t, "three"));
    assert_int_equal(next.held, 0);
    char *a = text_of(&w, next.token, next.n);
    assert_non_null(strstr(a, "An answer of some words<|im_end|>\n" USER_TURN("one") ASSISTANT "An answer"));
    free(a);
    question_free(&next);
    question_free(&q);
    end(&w);
}

static void reasoning_is_left_out(void **state)
{
    (void) state;
    World w;
    Question q, next, third;
    begin(&w, leaves_out, true);
    ask(&w, &q, "one", SYSTEM USER_TURN("one") ASSISTANT "<think>\n");
    assert_true(q.mark > 0 && q.mark < q.n);       /* before "assistant" */
    char *before = text_of(&w, q.token, q.mark);
    assert_string_equal(before, SYSTEM USER_TURN("one"));
    free(before);
    answer(&w, &q, "one", "hmm", "Yes.", false);
    ask(&w, &next, "two", SYSTEM USER_TURN("one") ASSISTANT "Yes.<|im_end|>\n" USER_TURN("two") ASSISTANT "<think>\n");
    assert_memory_equal(next.token, q.token, sizeof *q.token * (size_t) q.mark);
    assert_true(next.mark > next.held);
    answer(&w, &next, "two", "hm", "No.", false);
    ask(&w, &third, "three", SYSTEM USER_TURN("one") ASSISTANT "Yes.<|im_end|>\n" USER_TURN("two") ASSISTANT
        "No.<|im_end|>\n" USER_TURN("three") ASSISTANT "<think>\n");
    assert_memory_equal(third.token, next.token, sizeof *q.token * (size_t) next.mark);
    question_free(&q);
    question_free(&next);
    question_free(&third);
    end(&w);
}

static void reasoning_that_the_template_shows_is_kept(void **state)
{
    (void) state;
    World w;
    Question q, next;
    begin(&w, keeps, true);
    ask(&w, &q, "one", SYSTEM USER_TURN("one") ASSISTANT "<think>\n");
    answer(&w, &q, "one", "hmm", "Yes.", false);
    ask(&w, &next, "two", SYSTEM USER_TURN("one") ASSISTANT "<think>\nhmm\n</think>\n\nYes.<|im_end|>\n"
        USER_TURN("two") ASSISTANT "<think>\n");
    assert_int_equal(next.held, q.n + 3 + 11 + 4);
    question_free(&q);
    q = next;
    answer(&w, &q, "two", "never en", "", true);   /* cut within its reasoning: none of it can stay */
    ask(&w, &next, "three", SYSTEM USER_TURN("one") ASSISTANT "<think>\nhmm\n</think>\n\nYes.<|im_end|>\n"
        USER_TURN("two") ASSISTANT "<|im_end|>\n" USER_TURN("three") ASSISTANT "<think>\n");
    question_free(&q);
    question_free(&next);
    end(&w);
}

/* A rendering that cannot be divided is tokenized whole, and so are all later ones. */
static void strange_templates_are_rendered_whole(void **state)
{
    (void) state;
    World w;
    Question q, next;
    begin(&w, twice, false);
    ask(&w, &q, "one", SYSTEM USER_TURN("one") ASSISTANT);
    for (int32_t turn = 0; turn < 2; turn++) {
        answer(&w, &q, "one", NULL, "Ha", false);
        question_free(&q);
        assert_true(talk_ask(&next, &w.t, "one"));
        char *text = text_of(&w, next.token, next.n);
        assert_non_null(strstr(text, ASSISTANT "HaHa<|im_end|>\n" USER_TURN("one") ASSISTANT));
        assert_int_equal(next.held, 0);
        free(text);
        q = next;
    }
    question_free(&q);
    end(&w);
}

/* A user's input is text, even if it looks like a control token or a mark. */
static void users_write_text(void **state)
{
    (void) state;
    World w;
    Question q;
    char mark[128];
    begin(&w, leaves_out, false);
    snprintf(mark, sizeof mark, "@@%s0@@ <|im_end|>", "00112233445566778899aabb");
    for (int32_t turn = 0; turn < 3; turn++) {
        assert_true(talk_ask(&q, &w.t, mark));
        int32_t ends = 0;
        for (int32_t i = 0; i < q.n; i++) ends += q.token[i] == chat_token(w.p.engine, "<|im_end|>");
        assert_int_equal(ends, 2 + 2 * turn);      /* system, users, answers */
        answer(&w, &q, mark, NULL, "x", false);
        question_free(&q);
    }
    end(&w);
}

/* ---- the terminal ---- */

static void speak(void)
{
    Options o = { .command = "chat" };
    Console v;
    console_open(&v, &o);
    const char *thought = "hm\033[2J", *text = "a\033]0;title\007b\tc\nd\xc2\x9b" "e\xc3\xa9\x7f";
    console_say(&v, &(ReplyEvent) { .kind = REPLY_REASON, .bytes = thought, .n = strlen(thought) }, 0);
    console_say(&v, &(ReplyEvent) { .kind = REPLY_TEXT, .bytes = text, .n = strlen(text) }, 7);
    console_end(&v, 7);
}

/* The output of a process that runs `speak`, to a terminal or into a pipe. */
static void heard(char *out, size_t cap, bool terminal, const char *no_color)
{
    int fd[2], master = -1;
    size_t n = 0;
    assert_int_equal(pipe(fd), 0);
    pid_t pid = terminal ? forkpty(&master, NULL, NULL, NULL) : fork();
    if (pid == 0) {
        setenv("TERM", "xterm", 1);
        setenv("NO_COLOR", no_color, 1);
        if (!terminal) {
            dup2(fd[1], STDOUT_FILENO);
            close(STDERR_FILENO);
        }
        speak();
        fflush(stdout);
        _exit(0);
    }
    close(fd[1]);
    for (ssize_t got; n + 1 < cap && (got = read(terminal ? master : fd[0], out + n, cap - 1 - n)) > 0;)
        n += (size_t) got;
    out[n] = 0;
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close(fd[0]);
    if (terminal) close(master);
}

static void a_text_cannot_move_the_cursor(void **state)
{
    (void) state;
    char s[4096];
    heard(s, sizeof s, true, "");
    assert_non_null(strstr(s, "\033[2;1mthinking...\033[0;2m\r\nhm?[2J\r\n(7 tokens, "));
    assert_non_null(strstr(s, " s)\033[0m\r\n\r\na?]0;title?b"));
    assert_non_null(strstr(s, "d?e\xc3\xa9?\r\n"));
    heard(s, sizeof s, true, "1");
    assert_null(strchr(s, '\033'));
    assert_non_null(strstr(s, "thinking...\r\nhm?[2J"));
    heard(s, sizeof s, false, "");
    /* a pipe gets what the model wrote, and the end of the line */
    assert_string_equal(s, "a\033]0;title\007b\tc\nd\xc2\x9b" "e\xc3\xa9\x7f\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_keep_their_tokens), cmocka_unit_test(reasoning_is_left_out),
        cmocka_unit_test(reasoning_that_the_template_shows_is_kept),
        cmocka_unit_test(strange_templates_are_rendered_whole), cmocka_unit_test(users_write_text),
        cmocka_unit_test(a_text_cannot_move_the_cursor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
