/* grammar_automaton.h - follows a grammar byte by byte, all possible parses at once.
 * A state is a set of places (a character node and how much of the character has been read), each with its context:
 * where parsing continues after its rule ends. A context is a set too: all callers of a rule at one point of the text
 * share it, so that ambiguity costs places and not stacks. Both are interned: equal sets have equal ids, so states
 * repeat, and what is known about a state is kept (its next states, its token mask). Everything lives in memory of a
 * fixed size; when that is full, states that nobody holds are forgotten and computed again when needed.
 *
 *     text:  [[1,          state { digit·,  ']'·, ','· }
 *            of `list ::= "[" (item ("," item)*)? "]"`, `item ::= [0-9]+ | list`
 *                                    │        └─ context B = { (after item in the inner list's rule, context A) } ...
 *                                    └────────── context A = { (after item in the outer list's rule, the end) }
 */
#ifndef RATOON_TEXT_GRAMMAR_GRAMMAR_AUTOMATON_H
#define RATOON_TEXT_GRAMMAR_GRAMMAR_AUTOMATON_H

#include "text/grammar/grammar_graph.h"

/* Nesting depth of rules, and places in one state: a text that needs more is refused at that byte. */
enum { AUTOMATON_DEPTH_MAX = 512, AUTOMATON_PLACES_MAX = 1 << 13 };
enum { STATE_DEAD = 0, STATE_ENDED = 1 };          /* DEAD: nothing can follow; ENDED: an end token has been read */

typedef struct Automaton Automaton;

/* State ids held from outside: they are renumbered when states are forgotten. Only the last n - kept_from are sure
 * to be kept; the others may become STATE_UNKNOWN. */
#define STATE_UNKNOWN UINT32_MAX
typedef struct StateHolder StateHolder;
struct StateHolder { uint32_t *id; size_t n, kept_from; StateHolder *next; };

/* bytes: for all memory of the automaton, at least AUTOMATON_BYTES_MIN. The grammar must outlive it. */
enum { AUTOMATON_BYTES_MIN = 1 << 18 };
Status automaton_open(Automaton **out, const Grammar *g, size_t bytes, Error *err);
void   automaton_close(Automaton *a);
void   automaton_hold(Automaton *a, StateHolder *h);           /* h must live until automaton_let_go */
void   automaton_let_go(Automaton *a, StateHolder *h);

uint32_t automaton_start(Automaton *a);
/* *to = the state after *from and one byte. Both must be elements of holders, since ids may change here. */
void   automaton_step(Automaton *a, uint32_t *to, const uint32_t *from, uint8_t byte);

bool   automaton_accepts(const Automaton *a, uint32_t state);  /* the text may end here */
bool   automaton_goes_on(const Automaton *a, uint32_t state);  /* some byte may follow */
/* Bytes that may follow, as a bit set. Bits for bytes above 0x7f may be set although the byte cannot follow. */
const uint64_t *automaton_bytes(const Automaton *a, uint32_t state);
/* A class of which at least *n characters in a row may follow, whatever comes after them; NULL if there is none. */
const CharClass *automaton_run(const Automaton *a, uint32_t state, uint32_t *n);
/* A caller's number attached to a state for as long as the state is known, initially 0. moved is called when a
 * tagged state is forgotten (state 0) or renumbered. */
uint32_t automaton_tag(const Automaton *a, uint32_t state);
void   automaton_set_tag(Automaton *a, uint32_t state, uint32_t tag);
void   automaton_on_moved(Automaton *a, void (*moved)(void *ud, uint32_t tag, uint32_t state), void *ud);

/* Why a state was abandoned although the grammar might continue, as a sentence; NULL if none was. */
const char *automaton_trouble(const Automaton *a);
/* The cost of finding states since automaton_count: places, nodes and edges visited, for each step once, whether its
 * result was known or not. Counted, not timed, so that a limit stops the same grammar at the same place on every
 * machine, whatever was asked before. */
void   automaton_count(Automaton *a);
uint64_t automaton_spent(const Automaton *a);
/* Whether next states have been forgotten since automaton_count, so that steps may have counted twice: then the cost
 * depends on what was known before. */
bool   automaton_lost(const Automaton *a);
/* Forgets all next states and, if `states`, all states that are not held. */
void   automaton_forget(Automaton *a, bool states);
size_t automaton_states(const Automaton *a);       /* states known now */

#endif
