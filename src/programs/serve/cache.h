/* cache.h - the prefix cache: what sessions held, kept under the very tokens that led there, in memory and on disk.
 * A record is an image of a session at one place (rt_save) under an identity (rt_property "identity") and the tokens of that place; both are
 * compared in full on every hit, so that nobody is ever served another text's state, and no hash has to be trusted. A record is
 * published only when it is complete; one that turns out damaged, in memory or on disk, is dropped, said once and counts as a miss.
 *
 *   engine thread   places_of -> rt_mark -> steps -> cache_save      cache_resume -> rt_prompt -> steps
 *                                              |                         ^
 *   memory          [ records, at most ram_bytes ] -- least valued go ---+
 *   writer thread        `--> dir/HASH.ratoon      after write_delay, temporary file, fsync, rename; at most disk_bytes
 *
 * All functions may be called from any thread at any time; those that take a session or a step, from the thread that steps it. Only
 * cache_find with `disk`, cache_fetch and cache_resume read files, and neither holds the lock meanwhile. */
#ifndef RATOON_PROGRAMS_SERVE_CACHE_H
#define RATOON_PROGRAMS_SERVE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "ratoon.h"

typedef struct Cache Cache;

enum { CACHE_GAIN = 32 };                          /* tokens that a copy of the whole state has to spare: computing fewer costs less */

/* Why a place is remembered; the smaller the more is it worth. SHARED: end of system text and tools, which other conversations begin with
 * too, so it goes to disk at once. FIXED: a client's cache_control breakpoint. HISTORY: end of the messages, before the generation
 * prompt, where the next turn's text still is the same even if it drops the reasoning. END: where a session stood when it was left.
 * INTERVAL: somewhere in a long prompt. */
typedef enum { CACHE_SHARED, CACHE_FIXED, CACHE_HISTORY, CACHE_END, CACHE_INTERVAL } CacheKind;

/* ram_bytes: images in memory, those that wait to be written included; 0: nothing can be saved, and what is on disk is read for the time
 * of a hit. dir NULL: no disk; it is made with mode 0700, and refused where it is another user's or others may write to it. disk_bytes: of
 * all our files there, whoever wrote them. min_tokens: shorter places are neither saved nor looked for (0: 256). write_delay: seconds that a
 * record has to stay before it is written, so that a conversation's next turn can supersede it (0: 30; -1: none); SHARED do not wait. clock:
 * seconds, for the tests; NULL: time(). log: level as in rt_hooks, called from any thread; NULL: nobody listens. */
typedef struct {
    size_t      ram_bytes;
    const char *dir;
    uint64_t    disk_bytes;
    int32_t     min_tokens, write_delay;
    int64_t   (*clock)(void *ud);
    void      (*log)(void *ud, int level, const char *line);
    void       *ud;
} CacheOptions;

Status cache_open(Cache **out, const CacheOptions *o, Error *err);
/* Writes what waits, at most drain_ms long (0: nothing more is written), then closes. NULL is fine. Nothing may be pinned. */
void   cache_close(Cache *c, int32_t drain_ms);

/* ---- sessions ---- */

/* Saves the session at `at`, which rt_save_place names. A record of the same tokens is only touched. note [n_note] is kept beside it and
 * comes back with a hit: whatever the server wants to know of these tokens after a restart. False: not saved (too short, no room for it
 * even when all else goes, no memory, rt_save failed: logged). Takes the time of a copy. */
bool cache_save(Cache *c, const char *identity, rt_step *st, rt_session *s, int32_t at, CacheKind kind, const void *note, size_t n_note);

/* tokens: how many of the prompt the session holds now; from: where they come from. differs: the first index at which the prompt differs
 * from the closest that was at hand, for the log line of a miss (n: it does not differ). */
typedef enum { CACHE_NONE, CACHE_LIVE, CACHE_RAM, CACHE_DISK } CacheTier;
typedef struct { int32_t tokens, differs; CacheTier from; } CacheResume;
/* Before rt_prompt(s, t, n): loads the longest record that is a prefix of the first n - 1 tokens and longer than what the session could go
 * on from by itself (rt_resumable); where no record is better the session stays as it is. disk false: files are not read. note, if not
 * NULL, is called with the record's note. */
CacheResume cache_resume(Cache *c, const char *identity, rt_session *s, const int32_t *t, size_t n, bool disk,
                         void (*note)(void *ud, const void *bytes, size_t n), void *ud);

/* ---- records, below that ---- */

/* A pinned record: its image stays where it is until cache_release. */
typedef struct { const uint8_t *image; size_t n; const void *note; size_t n_note; int32_t tokens; CacheTier from; void *entry; } CacheHit;
/* The longest record that is a prefix of t [n] and longer than `above` tokens. A hit on disk is read and verified on the calling thread; it
 * is in memory afterwards if the budget has room for it. */
bool cache_find(Cache *c, CacheHit *hit, const char *identity, const int32_t *t, size_t n, int32_t above, bool disk);
void cache_release(Cache *c, CacheHit *hit);
/* The tokens of what cache_find would find with `disk`; reads nothing, counts nothing. */
int32_t cache_longest(Cache *c, const char *identity, const int32_t *t, size_t n);
/* Reads that record into memory, if it lies on disk only and the budget has room: for a request's own thread, before the engine's asks. */
void cache_fetch(Cache *c, const char *identity, const int32_t *t, size_t n);
/* The hit's image was refused by rt_load: the record goes, from disk too. Instead of cache_release. */
void cache_reject(Cache *c, CacheHit *hit, const char *why);

/* Room for an image of n_image bytes of the text t [n]; NULL: there is none, or a record of these tokens exists (it is touched). Fill
 * cache_image, then commit; or abandon. A record that is being filled is found by nobody. */
typedef struct CacheEntry CacheEntry;
CacheEntry *cache_begin(Cache *c, const char *identity, const int32_t *t, size_t n, size_t n_image, CacheKind kind, const void *note, size_t n_note);
uint8_t    *cache_image(CacheEntry *e);            /* [n_image], aligned to 64 bytes */
void        cache_commit(Cache *c, CacheEntry *e);
void        cache_abandon(Cache *c, CacheEntry *e);
/* What a record is worth, so that the least goes first: tokens per byte, times 1 + hits, halved every six hours (age, seconds since it was
 * last used); more for places that others begin with too. continued: records of the same kind whose text goes on from this one's: one of
 * them makes it superseded, to go before all others (unless it is SHARED or FIXED); several make it a fork, which is worth keeping. */
double      cache_worth(CacheKind kind, int32_t tokens, size_t bytes, int64_t hits, int64_t age, int32_t continued);
/* Tokens that t [n] has in common with the record that shares most with it. */
int32_t     cache_common(Cache *c, const char *identity, const int32_t *t, size_t n);
/* Returns when nothing waits to be written any more, the delay set aside; for tests and orderly ends. */
void        cache_flush(Cache *c);

/* For /metrics; bytes and records are those of now, the rest counts since cache_open. */
typedef struct {
    size_t  ram_bytes, ram_limit;
    uint64_t disk_bytes, disk_limit;
    int64_t ram_records, disk_records, waiting;                    /* waiting: to be written */
    int64_t finds, hits_ram, hits_disk, hit_tokens, saved, saved_tokens, no_room;
    int64_t evicted_ram, evicted_disk, written, written_bytes, write_failures, damaged, foreign;
} CacheStats;
void cache_stats(Cache *c, CacheStats *out);

#endif
