/* chat_command.h - `ratoon chat` between its lines: what it holds, asking a question, and the commands, which begin with a slash. */
#ifndef RATOON_PROGRAMS_CHAT_COMMAND_H
#define RATOON_PROGRAMS_CHAT_COMMAND_H

#include "programs/turn.h"

typedef struct {
    Program  p;
    Options  o;
    Talk     talk;
    Voice    voice;
    char    *again;                                /* the last question if it has no answer, NULL */
    char    *attached;                             /* files that go in front of the next message, NULL */
    bool     stats, leaving;
} Chat;

/* Asks, shows the answer and keeps both. False: it failed, said. */
bool chat_ask(Chat *c, const char *user);
/* line begins with a slash. What a command says goes to standard error. */
void chat_command(Chat *c, const char *line);
/* For the line editor's completion. */
void chat_words(const char *before, const char *word, void (*found)(void *list, const char *text), void *list);

#endif
