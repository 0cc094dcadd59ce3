/* hello.c - continues a text with the library alone:  cc hello.c $(pkg-config --cflags --libs ratoon) && ./a.out model.gguf [draft.gguf] */
#include <ratoon.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    rt_options files = { .model = argc > 1 ? argv[1] : "model.gguf", .draft = argc > 2 ? argv[2] : NULL };
    rt_engine *engine = NULL;
    rt_session *session = NULL;
    rt_step *step = NULL;
    rt_error e;
    if (rt_open(&engine, &files, &e) || rt_session_new(&session, engine, NULL, &e) || rt_step_new(&step, engine, NULL, &e)) return fprintf(stderr, "%s\n", e.text), 1;
    int32_t prompt[64];
    size_t n = rt_tokenize(engine, "def hello(name):\n", 17, true, prompt, 64), len;
    rt_prompt(session, prompt, n);
    rt_sampling_set(session, &(rt_sampling) { .max_tokens = 64 });
    for (rt_block b; rt_next(step, session, &b) == RT_OK;)        /* a block: what one pass brought */
        for (int32_t i = 0; i < b.n; i++) {
            const char *s = rt_token_bytes(engine, b.token[i], &len);
            fwrite(s, 1, len, stdout);
        }
    rt_step_free(step), rt_session_free(session), rt_close(engine);
}
