/* alloc_fault.h - makes the n-th allocation of a test program fail, and counts what is allocated. It defines malloc and
 * its kin for the whole program, libraries included, on top of the real ones (glibc's, or the sanitizer's); include it
 * in one file per program. Under AddressSanitizer strdup allocates without calling this malloc, so `live` and `bytes`
 * are not kept there: its own leak check replaces them. */
#ifndef RATOON_TESTS_HELP_ALLOC_FAULT_H
#define RATOON_TESTS_HELP_ALLOC_FAULT_H

#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#define ALLOC_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ALLOC_SANITIZED 1
#endif
#endif

#ifdef ALLOC_SANITIZED
#define ALLOC_REAL(name) __interceptor_##name
#else
#define ALLOC_SANITIZED 0
#define ALLOC_REAL(name) __libc_##name
#endif
void *ALLOC_REAL(malloc)(size_t n);
void *ALLOC_REAL(calloc)(size_t n, size_t each);
void *ALLOC_REAL(realloc)(void *p, size_t n);
void  ALLOC_REAL(free)(void *p);

/* fail_in: 1 makes the next allocation fail, 0 none. live and bytes: what is allocated now. */
static struct { long fail_in, calls, live; size_t bytes, peak; } alloc_state;

static bool alloc_fails(void)
{
    alloc_state.calls++;
    if (alloc_state.fail_in == 0 || --alloc_state.fail_in > 0) return false;
    errno = ENOMEM;
    return true;
}

/* A sanitizer's allocator cannot be asked for sizes while it starts. */
static size_t alloc_size(void *p) { return ALLOC_SANITIZED ? 0 : malloc_usable_size(p); }

static void *alloc_note(void *p)
{
    if (!p) return p;
    alloc_state.live++;
    alloc_state.bytes += alloc_size(p);
    if (alloc_state.bytes > alloc_state.peak) alloc_state.peak = alloc_state.bytes;
    return p;
}

static void alloc_forget(void *p)
{
    if (!p) return;
    alloc_state.live--;
    alloc_state.bytes -= alloc_size(p);
}

void *malloc(size_t n) { return alloc_fails() ? NULL : alloc_note(ALLOC_REAL(malloc)(n)); }
void *calloc(size_t n, size_t each) { return alloc_fails() ? NULL : alloc_note(ALLOC_REAL(calloc)(n, each)); }

void *realloc(void *p, size_t n)
{
    if (alloc_fails()) return NULL;
    size_t before = p ? alloc_size(p) : 0;
    void  *q = ALLOC_REAL(realloc)(p, n);
    if (!q) return q;
    if (p) alloc_state.live--;
    alloc_state.bytes -= before;
    return alloc_note(q);
}

void free(void *p)
{
    alloc_forget(p);
    ALLOC_REAL(free)(p);
}

#endif
