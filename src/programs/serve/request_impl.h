/* request_impl.h - what the files of request*.c share. A Reader carries one request through them: it knows the defaults, notes a lack of
 * memory once and for all (the JSON library reports it call by call), and remembers the calls of the conversation so that results find
 * their names. The conversation's order is kept; a client's items become messages one after the other. */
#ifndef RATOON_PROGRAMS_SERVE_REQUEST_IMPL_H
#define RATOON_PROGRAMS_SERVE_REQUEST_IMPL_H

#include "programs/serve/fields.h"

/* Bounds on lists of a request, beside those of json_read on the whole body. */
enum { MESSAGES_MAX = 20000, TOOLS_MAX = 1024, CALLS_MAX = 1024, STOPS_MAX = 16, STOP_BYTES_MAX = 512, BIASES_MAX = 300, PROMPTS_MAX = 128, TOOL_NAME_MAX = 128 };

typedef struct {
    Request *q;
    const json_t *body;
    const RequestHeaders *headers;
    const RequestDefaults *d;
    HttpError *e;
    json_t *call_names;                            /* id of a call -> the model's name of its tool */
    bool no_memory;
} Reader;

/* A path such as messages[2].content[0], for errors. */
typedef struct { char s[96]; } Path;
Path path_of(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Keep what they are given, or note that there was no memory. */
void  keep_in(Reader *r, json_t *object, const char *key, json_t *value);      /* value is given up */
void  keep_add(Reader *r, json_t *list, json_t *value);                        /* value is given up */
json_t *keep(Reader *r, json_t *value);                                        /* the value itself */

bool  refuse(Reader *r, const char *path, const char *format, ...) __attribute__((format(printf, 3, 4)));       /* 400; false */
/* A field's text. False: it is there and no string. Absent and null: NULL. */
bool  text_field(Reader *r, const char **out, const json_t *object, const char *path, const char *key);
const char *type_field(const json_t *object);      /* of "type"; "" if it is none */
/* Names in `ignored` what an object has besides the keys (between bars). */
void  name_others(Reader *r, const json_t *object, const char *path, const char *keys);
bool  is_among(const char *bars, const char *s, size_t n);

/* ---- messages (request_message.c) ---- */

/* A new message of that role at the end of the conversation; content NULL: left out. */
json_t *add_message(Reader *r, const char *role, json_t *content);
bool    role_is(const json_t *message, const char *role);
/* One more text in a list of parts. */
void    add_part(Reader *r, json_t *parts, const char *text, size_t n);
/* Parts as a message's content: none "", one a string, more a list. Gives parts up. */
json_t *parts_content(Reader *r, json_t *parts);
/* A client's content: null, a string, or parts of text types; images and the like are refused. NULL: *r->e is set. */
json_t *read_content(Reader *r, const json_t *content, const char *path);
/* Text as one string, from a content of read_content. */
json_t *content_text(Reader *r, const json_t *content);
/* One more call in an assistant's message. arguments (a string or an object) is given up. */
bool    add_call(Reader *r, json_t *message, const char *id, const char *name, json_t *arguments, const char *path);
/* A tool's result; call_id may be NULL, name is looked up by it if NULL. content is given up. */
void    add_result(Reader *r, const char *call_id, const char *name, json_t *content);
void    set_handle(Reader *r, const json_t *message, const char *handle);       /* the message is the last one */
/* A system text without the line that changes with every request; NULL: nothing is left, or no memory. */
json_t *system_text(Reader *r, const char *text);

/* ---- tools (request_tools.c) ---- */

bool read_tools_chat(Reader *r);
bool read_tools_responses(Reader *r);
bool read_tools_messages(Reader *r);
bool read_choice(Reader *r);                       /* after the tools */
/* The model's name of a tool: namespace__name, or the name itself where namespace is NULL. */
json_t *joined_name(Reader *r, const char *namespace_, const char *name);

/* ---- one per dialect ---- */
bool read_prompts(Reader *r);                      /* request_completions.c */
bool read_chat(Reader *r);
bool read_responses(Reader *r);
bool read_messages(Reader *r);

/* request_thinking.c: on or off, budgets, what is shown, and the template's variables. */
bool read_thinking(Reader *r);

#endif
