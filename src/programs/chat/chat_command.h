/* chat_command.h - the state of `ratoon chat`, asking a question, and the commands, which begin with a slash. */
#ifndef RATOON_PROGRAMS_CHAT_CHAT_COMMAND_H
#define RATOON_PROGRAMS_CHAT_CHAT_COMMAND_H

#include "programs/chat/turn.h"

typedef struct {
    Program  p;
    Options  o;
    Talk     talk;
    Console  console;
    char    *again;                                /* the last question if it has no answer yet, or NULL */
    char    *attached;                             /* files to put before the next message, or NULL */
    char    *saved;                                /* where this conversation was saved last, or NULL */
    bool     stats, leaving;
    double   pressed;                              /* when Ctrl-C was pressed last, 0: not yet */
} Chat;

/* Asks, shows the answer and keeps both. Returns false after reporting an error. */
bool chat_ask(Chat *c, const char *user);
/* line begins with a slash. Messages of commands go to standard error. */
void chat_command(Chat *c, const char *line);
/* For the line editor's completion. */
void chat_words(const char *before, const char *word, void (*found)(void *list, const char *text), void *list);

#endif
