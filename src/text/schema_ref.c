#include "text/schema_ref.h"

#include <stdlib.h>
#include <string.h>

#include "base/hex.h"

enum { KEY_BYTES = 4096, INDEX_DIGITS = 9 };

/* Decodes %XX up to the pointer's next /. Returns the length; KEY_BYTES: too long. */
static size_t take_step(char key[KEY_BYTES], const char **p)
{
    size_t n = 0;
    for (; **p && **p != '/'; n++) {
        int high = **p == '%' ? hex_value((*p)[1]) : -1, low = high >= 0 ? hex_value((*p)[2]) : -1;
        if (n + 1 == KEY_BYTES) return KEY_BYTES;
        key[n] = low >= 0 ? (char) (16 * high + low) : **p;
        *p += low >= 0 ? 3 : 1;
    }
    key[n] = 0;
    return n;
}

static void decode_tildes(char *key)
{
    char *to = key;
    for (; *key; key++) {
        bool escape = key[0] == '~' && (key[1] == '0' || key[1] == '1');
        if (escape) key++;
        *to++ = !escape ? *key : *key == '0' ? '~' : '/';
    }
    *to = 0;
}

static const json_t *member(const json_t *at, const char *key)
{
    size_t n = strlen(key);
    if (!json_is_array(at)) return json_object_get(at, key);
    bool index = n > 0 && n <= INDEX_DIGITS && strspn(key, "0123456789") == n;
    return index ? json_array_get(at, strtoul(key, NULL, 10)) : NULL;
}

bool schema_ref_local(const char *ref) { return ref[0] == '#' && (!ref[1] || ref[1] == '/'); }

const json_t *schema_ref(const json_t *root, const char *ref)
{
    char key[KEY_BYTES];
    if (!schema_ref_local(ref)) return NULL;
    for (ref++; root && *ref == '/';) {
        ref++;
        size_t n = take_step(key, &ref);
        if (n == KEY_BYTES || strlen(key) != n) return NULL;           /* no name contains %00 */
        decode_tildes(key);
        root = member(root, key);
    }
    return root;
}

uint32_t schema_type(const char *name)
{
    static const char *const names[] = { "null", "boolean", "integer", "number", "string", "array", "object" };
    for (uint32_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return 1u << i;
    return 0;
}
