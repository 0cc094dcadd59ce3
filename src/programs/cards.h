/* cards.h - the card that a backend's name means, and whether it computes what the CPU computes. */
#ifndef RATOON_PROGRAMS_CARDS_H
#define RATOON_PROGRAMS_CARDS_H

#include "programs/program.h"
#include "ratoon_lab.h"

/* Whether a backend's name, as in the options, is a GPU's. "auto" that options_read has left is the CPU. */
bool card_backend(const char *backend);
/* "cuda" and "cuda:1"; of "cuda:1+2" the first. Returns false if the name is not a card's, or there is no such card. */
bool card_named(rt_card *out, const char *backend);

/* Checks the card that was chosen without being asked for (Program.card) with the model that was found, once for each
 * card, driver, program and model: the file "cards" in the user's cache folder says which have passed. Where the check
 * does not pass, a note says why, and the next card is chosen; where there is none, the CPU runs all layers. Returns
 * false after reporting that it was interrupted. */
bool card_check(Program *p);
/* Lists in p->place.backend all cards that can be used, beginning with the one that was chosen; those that are to run
 * something are checked. RT_ECANCEL, with *e set: that was interrupted. */
rt_status cards_list(Program *p, rt_error *e);
/* Notes why a card that nobody asked for is not used. ends: the backend that ends the note. */
void card_unused(const Options *o, const char *name, const char *ends, const char *why);

#endif
