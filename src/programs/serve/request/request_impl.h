/* request_impl.h - what the files of request*.c share. A Reader carries one request through them: it knows the
 * defaults, records an out-of-memory once (the JSON library reports it call by call), and remembers the conversation's
 * calls so that results can be matched to tool names. The order of the conversation is kept; a client's items become
 * messages one by one. */
#ifndef RATOON_PROGRAMS_SERVE_REQUEST_REQUEST_IMPL_H
#define RATOON_PROGRAMS_SERVE_REQUEST_REQUEST_IMPL_H

#include "programs/serve/request/fields.h"

/* Bounds on lists of a request, in addition to those of json_read on the whole body. */
enum { MESSAGES_MAX = 20000, TOOLS_MAX = 1024, CALLS_MAX = 1024, STOPS_MAX = 16, STOP_BYTES_MAX = 512, BIASES_MAX = 300,
       PROMPTS_MAX = 128, TOOL_NAME_MAX = 128 };

typedef struct {
    Request *q;
    const json_t *body;
    const RequestHeaders *headers;
    const RequestDefaults *d;
    HttpError *e;
    json_t *call_names;                            /* call id -> the model's name of its tool */
    bool no_memory;
} Reader;

/* A path such as messages[2].content[0], for errors. */
typedef struct { char s[96]; } Path;
Path path_of(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* These store what they are given, or record that memory ran out. The first two take value and return false if they
 * freed it, so that it must not be used any more. */
bool  keep_in(Reader *r, json_t *object, const char *key, json_t *value);
bool  keep_add(Reader *r, json_t *list, json_t *value);
json_t *keep(Reader *r, json_t *value);                                        /* returns the value itself */

/* Sets a 400 error; returns false. */
bool  refuse(Reader *r, const char *path, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same for what a model that denoises cannot do. */
bool  refuse_step_wise(Reader *r, const char *field);
/* A field's text; NULL if absent or null. Returns false if it is present and not a string. */
bool  text_field(Reader *r, const char **out, const json_t *object, const char *path, const char *key);
const char *type_field(const json_t *object);      /* the value of "type"; "" if it is not a string */
/* Adds to `ignored` the keys of an object that are not in keys (separated by bars). */
void  name_others(Reader *r, const json_t *object, const char *path, const char *keys);
bool  is_among(const char *bars, const char *s, size_t n);

/* ---- messages (request_message.c) ---- */

/* The body's list of messages, which has 1 to MESSAGES_MAX elements; NULL if the request was refused. */
const json_t *messages_field(Reader *r);
/* Appends a message of that role to the conversation; content NULL: left out. */
json_t *add_message(Reader *r, const char *role, json_t *content);
/* Appends a text to a list of parts. */
void    add_part(Reader *r, json_t *parts, const char *text, size_t n);
/* Parts as a message's content: "" for none, a string for one, a list for more. Takes parts. */
json_t *parts_content(Reader *r, json_t *parts);
/* A client's content: null, a string, or parts of text types; images and the like are refused. Returns NULL with *r->e
 * set on failure. */
json_t *read_content(Reader *r, const json_t *content, const char *path);
/* The text, as one string, of a content from read_content. */
json_t *content_text(Reader *r, const json_t *content);
/* Appends a call to an assistant message. Takes arguments (a string or an object). */
bool    add_call(Reader *r, json_t *message, const char *id, const char *name, json_t *arguments, const char *path);
/* Appends a tool's result. call_id may be NULL; if name is NULL it is looked up by call_id. Takes content. */
void    add_result(Reader *r, const char *call_id, const char *name, json_t *content);
void    set_handle(Reader *r, const json_t *message, const char *handle);       /* the message must be the last one */
/* A system text without the line that changes with every request; NULL: nothing is left, or out of memory. */
json_t *system_text(Reader *r, const char *text);

/* ---- tools (request_tools.c) ---- */

bool read_tools_chat(Reader *r);
bool read_tools_responses(Reader *r);
bool read_tools_messages(Reader *r);
bool read_choice(Reader *r);                       /* call after the tools were read */
/* The model's name of a tool: namespace__name, or name alone if namespace is NULL. */
json_t *joined_name(Reader *r, const char *namespace_, const char *name);

/* ---- one per dialect ---- */
bool read_prompts(Reader *r);                      /* request_completions.c: also those of llama.cpp */
/* The only prompt becomes this text (NULL: an empty one); NULL if memory ran out. */
RequestPrompt *one_prompt(Reader *r, const json_t *text);
bool read_completions(Reader *r);
bool read_llama(Reader *r);
bool read_infill(Reader *r);
/* A text to be filled in between prefix and suffix, of which `begun` is there already; strings or NULL. field: for an
 * error. request_llama.c. */
bool read_middle(Reader *r, const json_t *prefix, const json_t *suffix, const json_t *begun, const char *field);
bool read_ollama_chat(Reader *r);
bool read_ollama_generate(Reader *r);
bool read_chat(Reader *r);
bool read_responses(Reader *r);
bool read_messages(Reader *r);

/* request_thinking.c: on or off, budgets, what is shown, and the template's variables. */
bool read_thinking(Reader *r);

#endif
