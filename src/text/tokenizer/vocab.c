#include "text/tokenizer/vocab.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/utf8.h"

/* Printable bytes stand for themselves; the 68 others are numbered from U+0100 in ascending order: 33 from 0x00 to
 * 0x20, 34 from 0x7F to 0xA0, and 0xAD. */
static int32_t byte_of(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7e) || (cp >= 0xa1 && cp <= 0xff && cp != 0xad)) return (int32_t) cp;
    if (cp < 0x100 || cp > 0x143) return -1;
    uint32_t k = cp - 0x100;
    return (int32_t) (k < 33 ? k : k < 67 ? 0x7f + k - 33 : 0xad);
}

static size_t unmap_bytes(char *out, const char *s, size_t n)
{
    size_t w = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = utf8_next(s + i, n - i, &cp);
        int32_t byte = len ? byte_of(cp) : -1;
        if (byte < 0) return SIZE_MAX;
        out[w++] = (char) byte;
        i += len;
    }
    return w;
}

size_t vocab_plain_spaces(char *s, size_t n)
{
    static const char MARK[] = "\xe2\x96\x81";    /* U+2581 */
    enum { MARK_BYTES = sizeof MARK - 1 };
    size_t w = 0;
    for (size_t i = 0; i < n;) {
        char *mark = memmem(s + i, n - i, MARK, MARK_BYTES);
        size_t len = mark ? (size_t) (mark - (s + i)) : n - i;
        memmove(s + w, s + i, len);
        w += len;
        i += len;
        if (!mark) break;
        s[w++] = ' ';
        i += MARK_BYTES;
    }
    return w;
}

size_t vocab_unmap(char *out, VocabSpelling spelling, const char *s, size_t n)
{
    if (spelling == SPELL_BYTES) return unmap_bytes(out, s, n);
    if (memchr(s, ' ', n)) return SIZE_MAX;
    memcpy(out, s, n);
    return vocab_plain_spaces(out, n);
}

Status vocab_alloc(Vocab *v, VocabSpelling spelling, int32_t n, size_t bytes)
{
    memset(v, 0, sizeof *v);
    v->n = n;
    v->spelling = spelling;
    v->bytes = malloc(bytes ? bytes : 1);
    v->at = calloc((size_t) n + 1, sizeof *v->at);
    v->type = calloc((size_t) n + 1, 1);
    if (v->bytes && v->at && v->type) return ST_OK;
    vocab_free(v);
    return ST_MEMORY;
}

static void map_free(VocabMap *m)
{
    free(m->id);
    free(m->tag);
}

void vocab_free(Vocab *v)
{
    free(v->bytes);
    free(v->at);
    free(v->type);
    map_free(&v->merged);
    map_free(&v->special);
    memset(v, 0, sizeof *v);
}

static Status map_alloc(VocabMap *m, size_t entries)
{
    size_t slots = 16;
    while (slots < 2 * entries) slots *= 2;        /* at most half full */
    m->mask = slots - 1;
    m->id = malloc(slots * sizeof *m->id);
    m->tag = malloc(slots * sizeof *m->tag);
    if (!m->id || !m->tag) return ST_MEMORY;
    memset(m->id, 0xff, slots * sizeof *m->id);
    return ST_OK;
}

/* The slot for these bytes: it holds the id that has them, or is free. */
static size_t map_slot(const Vocab *v, const VocabMap *m, uint64_t hash, const char *s, size_t n)
{
    uint32_t tag = (uint32_t) (hash >> 32);
    size_t slot = hash & m->mask;
    for (; m->id[slot] >= 0; slot = (slot + 1) & m->mask) {
        if (m->tag[slot] != tag) continue;
        size_t len;
        const char *bytes = vocab_bytes(v, m->id[slot], &len);
        if (len == n && memcmp(bytes, s, n) == 0) break;
    }
    return slot;
}

static void map_put(const Vocab *v, VocabMap *m, int32_t id)
{
    size_t n;
    const char *s = vocab_bytes(v, id, &n);
    uint64_t hash = XXH3_64bits(s, n);
    size_t slot = map_slot(v, m, hash, s, n);
    m->id[slot] = id;
    m->tag[slot] = (uint32_t) (hash >> 32);
}

int32_t vocab_find(const Vocab *v, const VocabMap *m, const char *s, size_t n)
{
    return m->id[map_slot(v, m, XXH3_64bits(s, n), s, n)];
}

static bool printable_ascii(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] < 0x21 || s[i] > 0x7e) return false;
    return true;
}

Status vocab_index(Vocab *v)
{
    size_t n_special = 0;
    for (int32_t i = 0; i < v->n; i++) n_special += v->type[i] != TOKEN_NORMAL;
    TRY(map_alloc(&v->merged, (size_t) v->n));
    TRY(map_alloc(&v->special, n_special));
    for (int32_t i = 0; i < v->n; i++) {
        if (v->type[i] == TOKEN_BYTE) continue;    /* its text is not its bytes */
        size_t n;
        const char *s = vocab_bytes(v, i, &n);
        if (v->type[i] != TOKEN_NORMAL) map_put(v, &v->special, i);
        if (v->type[i] == TOKEN_NORMAL || printable_ascii(s, n)) map_put(v, &v->merged, i);
    }
    return ST_OK;
}
