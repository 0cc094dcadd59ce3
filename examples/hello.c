/* hello.c - continues a text with a model.
 *     cc hello.c $(pkg-config --cflags --libs ratoon) -o hello && ./hello model.gguf [draft.gguf [text]] */
#include <ratoon.h>
#include <stdio.h>
#include <string.h>

enum { ROOM = 1024, LENGTH = 128 };

static rt_status done(rt_status status, const char *why)
{
    if (status < 0) fprintf(stderr, "hello: %s\n", *why ? why : rt_status_text(status));
    return status;
}

/* Writes a block, the tokens of one pass: the accepted guesses and the model's own token. Returns false if the text
 * ends. */
static bool show(const rt_engine *engine, const rt_block *block)
{
    for (int32_t i = 0; i < block->n; i++) {
        if (rt_token_ends(engine, block->token[i])) return false;
        size_t n;
        const char *bytes = rt_token_bytes(engine, block->token[i], &n);
        fwrite(bytes, 1, n, stdout);
    }
    return fflush(stdout) == 0;
}

static rt_status go_on(rt_engine *engine, rt_session *session, rt_step *step, const char *text)
{
    int32_t prompt[ROOM];
    size_t n = rt_tokenize(engine, text, strlen(text), true, prompt, ROOM);
    if (n > ROOM)                                  /* as with snprintf, n is the full count, not how many fitted */
        return done(RT_EFULL, "the text has more tokens than there is room for");
    rt_status status = rt_prompt(session, prompt, n);
    if (status == RT_OK) status = rt_sampling_set(session, &RT_SAMPLING(.max_tokens = LENGTH));
    rt_block block;
    while (status == RT_OK && (status = rt_next(step, session, &block)) == RT_OK && show(engine, &block)) continue;
    return done(status, *rt_step_error(step) ? rt_step_error(step) : rt_session_error(session));
}

int main(int argc, char **argv)
{
    rt_options files = RT_OPTIONS(.model = argc > 1 ? argv[1] : "model.gguf",
                                  .draft = argc > 2 && *argv[2] ? argv[2] : NULL);
    rt_engine *engine = NULL;
    rt_session *session = NULL;
    rt_step *step = NULL;
    rt_error e = { 0 };
    rt_status status = rt_open(&engine, &files, &e);
    if (status == RT_OK) status = rt_session_new(&session, engine, NULL, &e);
    if (status == RT_OK) status = rt_step_new(&step, engine, NULL, &e);
    if (status == RT_OK) status = go_on(engine, session, step, argc > 3 ? argv[3] : "def hello(name):\n");
    else done(status, e.text);
    rt_step_free(step);
    rt_session_free(session);
    rt_close(engine);
    return status < 0;
}
