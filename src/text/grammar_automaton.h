/* grammar_automaton.h - a grammar read byte by byte, all its readings at once.
 * A state is a set of places (a character node and how much of the character has been read), each with its context: where its rule goes
 * on when it ends. A context is a set too - all callers of a rule at one point of the text share it - so that ambiguity costs places and
 * not stacks. Both are interned: equal sets have equal ids, states repeat, and what is known about one is kept (its next states, its
 * token mask). Everything lives in memory of a fixed size; when that is full, what nobody holds is forgotten and found again later.
 *
 *     text:  [[1,          state { digit·,  ']'·, ','· }      of `list ::= "[" (item ("," item)*)? "]"`, `item ::= [0-9]+ | list`
 *                                    │        └─ context B = { (after item in the inner list's rule, context A) } ...
 *                                    └────────── context A = { (after item in the outer list's rule, the end) }
 */
#ifndef RATOON_TEXT_GRAMMAR_AUTOMATON_H
#define RATOON_TEXT_GRAMMAR_AUTOMATON_H

#include "text/grammar_graph.h"

/* Rules within rules, and places in one state: a text that needs more is refused at that byte. */
enum { AUTOMATON_DEPTH_MAX = 512, AUTOMATON_PLACES_MAX = 1 << 13 };
enum { STATE_DEAD = 0, STATE_ENDED = 1 };          /* no text goes on from here; an end token has been read */

typedef struct Automaton Automaton;

/* Ids that somebody holds: they are renumbered when states are forgotten. Only the last n - kept_from may not be forgotten; the others
 * become STATE_UNKNOWN then. */
#define STATE_UNKNOWN UINT32_MAX
typedef struct StateHolder StateHolder;
struct StateHolder { uint32_t *id; size_t n, kept_from; StateHolder *next; };

/* bytes: for everything it will ever hold, at least AUTOMATON_BYTES_MIN. The grammar must outlive it. */
enum { AUTOMATON_BYTES_MIN = 1 << 18 };
Status automaton_open(Automaton **out, const Grammar *g, size_t bytes, Error *err);
void   automaton_close(Automaton *a);
void   automaton_hold(Automaton *a, StateHolder *h);           /* h lives until it is let go */
void   automaton_let_go(Automaton *a, StateHolder *h);

uint32_t automaton_start(Automaton *a);
/* *to = the state after *from and one byte. Both are elements of holders, since ids may change here. */
void   automaton_step(Automaton *a, uint32_t *to, const uint32_t *from, uint8_t byte);

bool   automaton_accepts(const Automaton *a, uint32_t state);  /* the text may end here */
bool   automaton_goes_on(const Automaton *a, uint32_t state);  /* some byte may follow */
/* Bytes that may follow; a bit may be set for nothing only for bytes above 0x7f. */
const uint64_t *automaton_bytes(const Automaton *a, uint32_t state);
/* A class of which at least *n characters in a row may follow, whatever comes after; NULL: none. */
const CharClass *automaton_run(const Automaton *a, uint32_t state, uint32_t *n);
/* A number that belongs to the state for as long as it is known, at first 0, and who is told when it is forgotten (state 0) or renumbered. */
uint32_t automaton_tag(const Automaton *a, uint32_t state);
void   automaton_set_tag(Automaton *a, uint32_t state, uint32_t tag);
void   automaton_on_moved(Automaton *a, void (*moved)(void *ud, uint32_t tag, uint32_t state), void *ud);

/* Why a state was given up although the grammar might go on: NULL, or a sentence. */
const char *automaton_trouble(const Automaton *a);
size_t automaton_states(const Automaton *a);       /* known now */

#endif
