/* chat.h - what the reader of answers (answer.c) needs of a rendered conversation (chat.c). */
#ifndef RATOON_ENGINE_CHAT_H
#define RATOON_ENGINE_CHAT_H

#include "engine/engine.h"
#include "ratoon_chat.h"
#include "text/chat_prompt.h"
#include "text/reply/reply.h"

struct rt_chat {
    const rt_engine *g;
    ChatPrompt *prompt;
    ReplyStyle  style;                             /* how the model writes reasoning and calls */
};

typedef struct {
    rt_chat_text seen;                             /* what the caller sees of it; first */
    const rt_chat *chat;
    TemplateText rendered;
    int32_t     *token;
    json_t      *tools;                            /* NULL: none */
} ChatText;

/* The tokens of a prompt, malloc'd; BOS is prepended if the file asks for it. */
Status prompt_tokens(int32_t **out, size_t *n, const rt_engine *g, const char *text, size_t n_text,
                     const TextSpan *client, size_t n_client, Error *err);
/* The decoder of an answer to t; NULL: all of it is text. */
Status chat_reply(Reply **out, const rt_engine *g, const ChatText *t, const rt_reply_options *o, Error *err);

#endif
