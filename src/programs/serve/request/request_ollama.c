/* Ollama's /api/chat and /api/generate. A chat's messages are nearly those of Chat (request_chat.c); a prompt is a
 * conversation of one message, unless it is raw or something is to be filled in. Sampling stands in `options`. */
#include "programs/serve/request/request_impl.h"

#include <string.h>

bool is_ollama(Dialect d) { return d == DIALECT_OLLAMA_CHAT || d == DIALECT_OLLAMA_GENERATE; }

/* A request without a message or prompt asks whether the model is loaded. */
bool read_ollama_chat(Reader *r)
{
    r->q->only_load = json_array_size(json_object_get(r->body, "messages")) == 0;
    return r->q->only_load || read_chat(r);
}

bool read_ollama_generate(Reader *r)
{
    const json_t *prompt = json_object_get(r->body, "prompt"), *suffix = json_object_get(r->body, "suffix");
    const char *system = json_string_value(json_object_get(r->body, "system"));
    bool raw = json_is_true(json_object_get(r->body, "raw")), middle = json_string_length(suffix) > 0;
    r->q->only_load = json_string_length(prompt) == 0 && !middle;
    if (r->q->only_load) return true;
    if (system && *system && (raw || middle)) fields_ignore(r->q, "system");
    if (middle) return read_middle(r, prompt, suffix, NULL, "suffix");
    if (raw) {
        one_prompt(r, prompt);
        return true;
    }
    if (system && *system) {
        json_t *text = system_text(r, system);
        if (text) add_message(r, "system", text);
    }
    add_message(r, "user", keep(r, json_string(json_string_value(prompt))));
    return true;
}
