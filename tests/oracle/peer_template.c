/* peer_template.c - renders many templates in one process, for tests/oracle/templates.py: reads a line {"template":
 * TEXT, "now": SECONDS, "case": {messages, tools, ...}}, writes a line {"text": TEXT} or {"error": TEXT}. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat_prompt.h"

static json_t *render_line(const json_t *line)
{
    const json_t *source = json_object_get(line, "template"), *c = json_object_get(line, "case");
    time_t now = (time_t) json_integer_value(json_object_get(line, "now"));
    struct tm day;
    TemplateError err;
    TemplateText text = { 0 };
    Template *t = NULL;
    gmtime_r(&now, &day);
    ChatRequest q = { .messages = json_object_get(c, "messages"), .tools = json_object_get(c, "tools"),
                      .documents = json_object_get(c, "documents"), .kwargs = json_object_get(c, "kwargs"),
                      .generation = json_is_true(json_object_get(c, "add_generation_prompt")), .now = &day };
    Status st = template_open(&t, json_string_value(source), json_string_length(source), "template", &err);
    if (st == ST_OK) st = chat_prompt_exact(&text, t, &q, json_object_get(c, "special_tokens"), false, &err);
    json_t *out = st == ST_OK ? json_pack("{s:o}", "text", json_stringn(text.text, text.n))
                              : json_pack("{s:s}", "error", err.error.text);
    template_text_free(&text);
    template_close(t);
    return out;
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        json_error_t e;
        json_t *j = json_loadb(line, (size_t) n, 0, &e),
               *out = j ? render_line(j) : json_pack("{s:s}", "error", e.text);
        if (json_dumpf(out, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF || fflush(stdout) != 0) return 1;
        json_decref(out);
        json_decref(j);
    }
    free(line);
    return 0;
}
