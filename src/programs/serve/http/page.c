#include "programs/serve/http/page.h"

#include <stdlib.h>
#include <string.h>

/* The file's bytes, included by the assembler, which works on every architecture. The path is relative to the folder in
 * which make runs. */
__asm__(".pushsection .rodata\n"
        "ratoon_page_begin: .incbin \"" PAGE_FILE "\"\n"
        "ratoon_page_end: .byte 0\n"
        ".popsection\n");
extern const char ratoon_page_begin[] __attribute__((visibility("hidden"))),
                  ratoon_page_end[] __attribute__((visibility("hidden")));

enum { NONCE_BYTES = 12, NONCE_TEXT = 2 * NONCE_BYTES };
static const char MARK[] = "@NONCE@";

/* A copy with every mark replaced by the nonce, which is shorter. NULL: out of memory. */
static char *with_nonce(const char *nonce, size_t *n)
{
    const char *p = ratoon_page_begin, *found;
    size_t marks = 0;
    while ((found = strstr(p, MARK))) {
        marks++;
        p = found + sizeof MARK - 1;
    }
    char *out = malloc((size_t) (ratoon_page_end - ratoon_page_begin) + marks * NONCE_TEXT + 1), *to = out;
    if (!out) return NULL;
    for (p = ratoon_page_begin; (found = strstr(p, MARK)); p = found + sizeof MARK - 1) {
        memcpy(to, p, (size_t) (found - p));
        to += found - p;
        memcpy(to, nonce, NONCE_TEXT);
        to += NONCE_TEXT;
    }
    memcpy(to, p, (size_t) (ratoon_page_end - p));
    *n = (size_t) (to - out) + (size_t) (ratoon_page_end - p);
    return out;
}

void page_answer(void *ud, Exchange *x)
{
    unsigned char random[NONCE_BYTES];
    char nonce[NONCE_TEXT + 1], policy[384];
    size_t n = 0;
    server_random(ud, random, sizeof random);
    for (size_t i = 0; i < NONCE_BYTES; i++) snprintf(nonce + 2 * i, 3, "%02x", random[i]);
    snprintf(policy, sizeof policy, "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src "
             "'self'; img-src data:; base-uri 'none'; form-action 'none'; "
             "frame-ancestors 'none'; require-trusted-types-for 'script'", nonce, nonce);
    exchange_add(x, "Content-Security-Policy", policy);
    exchange_add(x, "X-Content-Type-Options", "nosniff");
    exchange_add(x, "Referrer-Policy", "no-referrer");
    exchange_add(x, "Cache-Control", "no-store");
    char *html = with_nonce(nonce, &n);
    exchange_reply(x, 200, "text/html; charset=utf-8", html, n);
}
