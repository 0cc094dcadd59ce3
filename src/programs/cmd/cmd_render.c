/* ratoon render: the exact prompt that a chat template produces for a conversation. It loads no weights. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "format/gguf.h"
#include "programs/advice.h"
#include "programs/chat/chat.h"
#include "programs/program.h"

typedef struct {
    Options      o;
    Files        files;
    Gguf        *gguf;
    Tokenizer   *tokenizer;                        /* NULL with --template */
    Template    *t;
    json_t      *input, *special;
    TemplateText text;
} Rendering;

static json_t *token_text(const Tokenizer *t, int32_t id)
{
    size_t n;
    const char *s = tokenizer_bytes(t, id, true, &n);
    return n ? json_stringn(s, n) : NULL;
}

/* The template and its special tokens: from a file, or from the model. */
static bool open_template(Rendering *x)
{
    const Options *o = &x->o;
    TemplateError err;
    char *source = NULL;
    const char *model_source = NULL;
    size_t n = 0;
    if (o->template_file) {
        if (!text_read(o, &source, &n, o->template_file)) return false;
        Status st = template_open(&x->t, source, n, o->template_file, &err);
        free(source);
        return st == ST_OK || template_complain(o, &err);
    }
    Error e = { 0 };
    if (!files_find(&x->files, o, false)) return false;
    Status st = gguf_open(&x->gguf, x->files.model, &e);
    if (st == ST_OK) st = tokenizer_open(&x->tokenizer, x->gguf, &e);
    if (st == ST_OK) model_source = tokenizer_chat_template(x->tokenizer, &n);
    if (st != ST_OK && st != ST_END) return complain_file(o, e.text, x->files.model, AS_MODEL) == 0;
    if (!model_source)
        return complain(o, "%s: it carries no chat template; give one with --template", x->files.model) == 0;
    x->special = json_object();
    json_object_set_new(x->special, "bos_token", token_text(x->tokenizer, tokenizer_bos(x->tokenizer)));
    json_object_set_new(x->special, "eos_token", token_text(x->tokenizer, tokenizer_eos(x->tokenizer)));
    json_object_set_new(x->special, "pad_token", token_text(x->tokenizer, tokenizer_pad(x->tokenizer)));
    json_object_set_new(x->special, "unk_token", token_text(x->tokenizer, tokenizer_unk(x->tokenizer)));
    return template_open(&x->t, model_source, n, x->files.model, &err) == ST_OK || template_complain(o, &err);
}

/* A member of the input, which may be absent or null. Returns false if it has another type. */
static bool member(const Rendering *x, json_t **out, const char *key, bool list)
{
    json_t *j = json_object_get(x->input, key);
    *out = json_is_null(j) ? NULL : j;
    if (!*out || (list ? json_is_array(j) : json_is_object(j))) return true;
    return complain(&x->o, "%s: %s is not %s", x->o.input, key, list ? "a list" : "an object") == 0;
}

static bool render_case(Rendering *x)
{
    const Options *o = &x->o;
    json_t *messages, *tools, *documents, *kwargs, *special;
    if (!json_file(o, &x->input, o->input)) return false;
    if (!json_is_object(x->input)) return complain(o, "%s: it is not an object", o->input) == 0;
    if (!member(x, &messages, "messages", true) || !member(x, &tools, "tools", true) ||
        !member(x, &documents, "documents", true) || !member(x, &kwargs, "kwargs", false) ||
        !member(x, &special, "special_tokens", false))
        return false;
    if (!messages) return complain(o, "%s: it has no messages", o->input) == 0;
    struct tm now = clock_now(o);
    TemplateError err;
    ChatRequest q = { .messages = messages, .tools = tools, .documents = documents, .kwargs = kwargs, .now = &now,
                      .generation = json_is_true(json_object_get(x->input, "add_generation_prompt")) };
    if (chat_prompt_exact(&x->text, x->t, &q, special ? special : x->special, o->template_lax, &err) == ST_OK)
        return true;
    return template_complain(o, &err);
}

/* {"text", "client": [[at, bytes] ...], "tokens": [...] if a model is given} */
static json_t *as_object(const Rendering *x)
{
    const TemplateText *t = &x->text;
    json_t *spans = json_array(), *out = json_pack("{s:o s:O}", "text", json_stringn(t->text, t->n), "client", spans);
    for (size_t i = 0; i < t->n_client; i++)
        json_array_append_new(spans, json_pack("[I I]", (json_int_t) t->client[i].at, (json_int_t) t->client[i].n));
    json_decref(spans);
    if (!x->tokenizer) return out;
    TokenizeOptions to = { .add_special = true, .one_bos = true, .parse_special = true, .client = t->client,
                           .n_client = t->n_client };
    json_t *tokens = json_array();
    size_t n = tokenizer_encode(x->tokenizer, NULL, 0, t->text, t->n, to, NULL);
    int32_t *ids = malloc(sizeof *ids * (n + 1));
    if (ids) tokenizer_encode(x->tokenizer, ids, n, t->text, t->n, to, NULL);
    for (size_t i = 0; ids && i < n; i++) json_array_append_new(tokens, json_integer(ids[i]));
    free(ids);
    json_object_set_new(out, "tokens", tokens);
    return out;
}

static int print_text(const Rendering *x)
{
    if (x->o.json) return json_print(&x->o, as_object(x)) ? EXIT_FINE : EXIT_FAILED;
    text_show(stdout, x->text.text, x->text.n);
    return output_done(&x->o);
}

int cmd_render(int argc, char **argv)
{
    Rendering x = { 0 };
    int status;
    if (!options_read(&x.o, argc, argv, &status)) return status;
    if (!x.o.input) {
        complain(&x.o, "--input is missing: a JSON file with \"messages\"");
        return EXIT_USAGE;
    }
    status = open_template(&x) && render_case(&x) ? print_text(&x) : EXIT_FAILED;
    template_text_free(&x.text);
    template_close(x.t);
    tokenizer_close(x.tokenizer);
    gguf_close(x.gguf);
    json_decref(x.input);
    json_decref(x.special);
    return status;
}
