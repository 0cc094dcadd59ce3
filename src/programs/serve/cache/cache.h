/* cache.h - the prefix cache: session states stored under the exact tokens that led to them, in memory and on disk. A
 * record is an image of a session at one position (rt_save), keyed by an identity (rt_property "identity") and the
 * tokens up to there. Both are compared in full on every hit, so no request gets another text's state and no hash is
 * trusted. A record is published only when it is complete; a damaged one, in memory or on disk, is dropped, logged once
 * and counts as a miss.
 *
 *   engine thread   cache_points_of -> rt_mark -> steps -> cache_save      cache_resume -> rt_prompt -> steps
 *                                              |                         ^
 *   memory          [ records, at most ram_bytes ] -- least valued go ---+
 *   writer thread        `--> dir/HASH.ratoon      after write_delay, temporary file, fsync, rename; at most disk_bytes
 *
 * All functions may be called from any thread at any time; those that take a session or a step, only from the thread
 * that steps it. Only cache_find with `disk`, cache_fetch and cache_resume read files, and none of them holds the lock
 * while reading. */
#ifndef RATOON_PROGRAMS_SERVE_CACHE_CACHE_H
#define RATOON_PROGRAMS_SERVE_CACHE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "ratoon.h"

typedef struct Cache Cache;

enum { CACHE_GAIN = 32 };           /* tokens that a copy of the whole state must save to be worthwhile */

/* Why a position is saved; smaller values are worth more. SHARED: end of system text and tools, which other
 * conversations begin with too, so it goes to disk at once. FIXED: a client's cache_control breakpoint. HISTORY: end of
 * the messages, before the generation prompt; the next turn's text is unchanged up to here even if it drops the
 * reasoning. END: where a session stood when it was left. INTERVAL: somewhere in a long prompt. */
typedef enum { CACHE_SHARED, CACHE_FIXED, CACHE_HISTORY, CACHE_END, CACHE_INTERVAL } CacheKind;

/* ram_bytes: limit for images in memory, including those waiting to be written; 0: nothing can be saved, and images on
 * disk are read only for the duration of a hit. dir NULL: no disk; it is created with mode 0700, and refused if it
 * belongs to another user or others may write to it. disk_bytes: limit for all our files there, whichever process wrote
 * them. min_tokens: shorter prefixes are neither saved nor looked for (0: 256). write_delay: seconds that a record must
 * exist before it is written, so that a conversation's next turn can supersede it (0: 30; -1: none); SHARED records do
 * not wait. clock: seconds, for the tests; NULL: time(). log: level as in rt_hooks, called from any thread; may be
 * NULL. */
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
/* Writes pending records for at most drain_ms (0: none), then closes. NULL is fine. Nothing may be pinned. */
void   cache_close(Cache *c, int32_t drain_ms);

/* ---- sessions ---- */

/* Saves the session at `at`, as rt_save_place returned it. If a record of the same tokens exists it is only touched.
 * note [n_note] is stored with it and returned on a hit: whatever the server wants to know about these tokens after a
 * restart. Returns false if not saved (too short, no room even if all else is evicted, out of memory, rt_save failed:
 * logged). Takes as long as a copy. */
bool cache_save(Cache *c, const char *identity, rt_step *st, rt_session *s, int32_t at, CacheKind kind,
                const void *note, size_t n_note);

/* tokens: how many of the prompt the session holds now; from: where they came from. differs: first index at which the
 * prompt differs from the closest text available, for the log line of a miss (n: no difference). */
typedef enum { CACHE_NONE, CACHE_LIVE, CACHE_RAM, CACHE_DISK } CacheTier;
typedef struct { int32_t tokens, differs; CacheTier from; } CacheResume;
/* Call before rt_prompt(s, t, n). Loads the longest record that is a prefix of the first n - 1 tokens and longer than
 * what the session could resume by itself (rt_resumable); if no record is better the session is unchanged. disk false:
 * files are not read. note, if not NULL, is called with the record's note. */
CacheResume cache_resume(Cache *c, const char *identity, rt_session *s, const int32_t *t, size_t n, bool disk,
                         void (*note)(void *ud, const void *bytes, size_t n), void *ud);

/* ---- records, the level below ---- */

/* A pinned record: its image is not moved or freed until cache_release. */
typedef struct {
    const uint8_t *image;
    size_t n;
    const void *note;
    size_t n_note;
    int32_t tokens;
    CacheTier from;
    void *entry;
} CacheHit;
/* Finds the longest record that is a prefix of t [n] and longer than `above` tokens. A hit on disk is read and verified
 * on the calling thread; it stays in memory if the budget has room for it. */
bool cache_find(Cache *c, CacheHit *hit, const char *identity, const int32_t *t, size_t n, int32_t above, bool disk);
void cache_release(Cache *c, CacheHit *hit);
/* The token count of what cache_find would find with `disk`; reads no files, counts nothing. */
int32_t cache_longest(Cache *c, const char *identity, const int32_t *t, size_t n);
/* Reads that record into memory if it is only on disk and the budget has room: called on a request's own thread before
 * the engine thread asks for it. */
void cache_fetch(Cache *c, const char *identity, const int32_t *t, size_t n);
/* Call instead of cache_release if rt_load refused the hit's image: the record is dropped, also from disk. */
void cache_reject(Cache *c, CacheHit *hit, const char *why);

/* Reserves room for an image of n_image bytes of the text t [n]. NULL: no room, or a record of these tokens exists (it
 * is touched). Fill cache_image, then commit; or abandon. A record being filled cannot be found. */
typedef struct CacheEntry CacheEntry;
CacheEntry *cache_begin(Cache *c, const char *identity, const int32_t *t, size_t n, size_t n_image, CacheKind kind,
                        const void *note, size_t n_note);
uint8_t    *cache_image(CacheEntry *e);            /* [n_image], aligned to 64 bytes */
void        cache_commit(Cache *c, CacheEntry *e);
void        cache_abandon(Cache *c, CacheEntry *e);
/* The value of a record; the least valuable is evicted first: tokens per byte, times 1 + hits, halved every six hours
 * of age (seconds since last use); more for positions that other texts share. continued: number of records of the same
 * kind whose text continues this one's. One of them supersedes it, so it goes before all others (unless it is SHARED or
 * FIXED); several make it a fork, which is worth keeping. */
double      cache_worth(CacheKind kind, int32_t tokens, size_t bytes, int64_t hits, int64_t age, int32_t continued);
/* Number of leading tokens that t [n] shares with the record that has most in common with it. */
int32_t     cache_common(Cache *c, const char *identity, const int32_t *t, size_t n);
/* Returns when no record waits to be written, ignoring the delay; for tests and orderly shutdown. */
void        cache_flush(Cache *c);

/* For /metrics; bytes and records are current values, the rest counts since cache_open. */
typedef struct {
    size_t  ram_bytes, ram_limit;
    uint64_t disk_bytes, disk_limit;
    int64_t ram_records, disk_records, waiting;                    /* waiting: to be written */
    int64_t finds, hits_ram, hits_disk, hit_tokens, saved, saved_tokens, no_room;
    int64_t evicted_ram, evicted_disk, written, written_bytes, write_failures, damaged, foreign;
} CacheStats;
void cache_stats(Cache *c, CacheStats *out);

#endif
