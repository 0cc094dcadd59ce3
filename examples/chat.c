/* chat.c - talks with a model: each line of standard input is a message, and the answers are streamed.
 *     cc chat.c $(pkg-config --cflags --libs ratoon) -o chat && echo "Why is the sky blue?" | ./chat model.gguf */
#include <ratoon_chat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 4096, ANSWER = 1 << 16, TALK = 1 << 20, LENGTH = 256 };

/* The conversation as JSON, and the answer under way. */
typedef struct { char talk[TALK], answer[ANSWER]; size_t n_talk, n_answer; } Chat;

static void put(Chat *c, char byte) { if (c->n_talk + 1 < TALK) c->talk[c->n_talk++] = byte; }
static void put_text(Chat *c, const char *s) { while (*s) put(c, *s++); }

/* Adds a message; the list is left open: see closed. */
static void add(Chat *c, const char *role, const char *text, size_t n)
{
    char code[8];
    put_text(c, c->n_talk ? ", {\"role\": \"" : "[{\"role\": \"");
    put_text(c, role);
    put_text(c, "\", \"content\": \"");
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char) text[i];
        snprintf(code, sizeof code, "\\u%04x", byte);
        if (byte < 32 || byte == '"' || byte == '\\') put_text(c, code);
        else put(c, text[i]);
    }
    put_text(c, "\"}");
}

static const char *closed(Chat *c)
{
    memcpy(c->talk + c->n_talk, "]", 2);
    return c->talk;
}

/* Shows the answer as it comes, reasoning in grey, and keeps its text for the next turn. */
static bool show(void *ud, const rt_event *e)
{
    Chat *c = ud;
    if (e->kind != RT_TEXT && e->kind != RT_REASONING) return true;
    if (e->kind == RT_TEXT && c->n_answer + e->n <= ANSWER) {
        memcpy(c->answer + c->n_answer, e->bytes, e->n);
        c->n_answer += e->n;
    }
    printf(e->kind == RT_REASONING ? "\033[90m%.*s\033[0m" : "%.*s", (int) e->n, e->bytes);
    return fflush(stdout) == 0;
}

static rt_status answer(Chat *c, rt_chat *chat, rt_step *step, rt_session *session, rt_error *e)
{
    rt_chat_text *asked = NULL;
    rt_chat_request request = RT_CHAT_REQUEST(.messages = closed(c));
    c->n_answer = 0;
    rt_status status = rt_chat_render(&asked, chat, &request, e);
    if (status == RT_OK)
        status = rt_generate(step, session, NULL, &RT_REPLY_OPTIONS(.conversation = asked), show, c, NULL, e);
    rt_chat_text_free(asked);
    add(c, "assistant", c->answer, c->n_answer);
    puts("");
    return status;
}

static rt_status talk(rt_engine *engine, rt_chat *chat, rt_error *e)
{
    char line[LINE];
    rt_session *session = NULL;
    rt_step *step = NULL;
    Chat *c = calloc(1, sizeof *c);
    rt_status status = c ? rt_session_new(&session, engine, NULL, e) : RT_ENOMEM;
    if (status == RT_OK) status = rt_step_new(&step, engine, NULL, e);
    rt_sampling sampling = RT_SAMPLING(.max_tokens = LENGTH, .seed = 1);
    rt_sampling_recommended(engine, &sampling);
    if (status == RT_OK) status = rt_sampling_set(session, &sampling);
    while (status == RT_OK && fgets(line, sizeof line, stdin) && c->n_talk < TALK / 2) {
        if (!strchr(line, '\n') && !feof(stdin)) {              /* its end would be another message */
            snprintf(e->text, sizeof e->text, "a line has more than %d bytes", LINE - 2);
            status = RT_EARG;
            break;
        }
        add(c, "user", line, strcspn(line, "\n"));
        status = answer(c, chat, step, session, e);
    }
    rt_step_free(step);
    rt_session_free(session);
    free(c);
    return status;
}

int main(int argc, char **argv)
{
    rt_options files = RT_OPTIONS(.model = argc > 1 ? argv[1] : "model.gguf",
                                  .draft = argc > 2 && *argv[2] ? argv[2] : NULL);
    rt_engine *engine = NULL;
    rt_chat *chat = NULL;
    rt_error e = { 0 };
    rt_status status = rt_open(&engine, &files, &e);
    if (status == RT_OK) status = rt_chat_new(&chat, engine, NULL, &e);
    if (status == RT_OK) status = talk(engine, chat, &e);
    if (status != RT_OK) fprintf(stderr, "chat: %s\n", *e.text ? e.text : rt_status_text(status));
    rt_chat_free(chat);
    rt_close(engine);
    return status != RT_OK;
}
