#include "programs/serve/run/store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { RESPONSES_MAX = 64 };

/* An item may belong to several entries of one conversation, and its bytes count once. */
typedef struct { json_t *j; size_t bytes; int32_t entries; } Item;
typedef struct { int32_t owner; char id[64]; char *text; size_t n; Item **item; size_t n_item; } Stored;
struct Store {
    pthread_mutex_t lock;
    Stored  at[RESPONSES_MAX]; int32_t n;          /* oldest first */
    size_t  bytes, bytes_max;
};

Store *store_new(size_t bytes_max)
{
    Store *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    pthread_mutex_init(&s->lock, NULL);
    s->bytes_max = bytes_max;
    return s;
}

/* ---- sizes of entries ---- */

/* Bytes of a value without its members, rounded as the allocator does: the parser makes a table of eight lists for
 * every object. */
static size_t value_bytes(const json_t *j)
{
    switch (json_typeof(j)) {
    case JSON_OBJECT: return 256 + 112 * json_object_size(j);
    case JSON_ARRAY:  return 128 + 16 * json_array_size(j);
    case JSON_STRING: return 80 + json_string_length(j);
    default:          return 32;
    }
}

static void add_bytes(void *ud, const char *key, const json_t *value)
{
    *(size_t *) ud += value_bytes(value) + (key ? strlen(key) : 0);
}

/* Bytes of a value with everything in it; SIZE_MAX: nested deeper than anything that was read. */
static size_t json_bytes(json_t *j)
{
    size_t n = 0;
    return json_each(j, add_bytes, &n) ? n : SIZE_MAX;
}

static size_t entry_bytes(const Stored *x) { return sizeof *x + x->n + 1 + sizeof *x->item * x->n_item; }

/* ---- entries ---- */

/* With the lock held. Also drops items that no other entry has. */
static void empty(Store *s, Stored *x)
{
    s->bytes -= entry_bytes(x);
    for (size_t i = 0; i < x->n_item; i++) {
        Item *it = x->item[i];
        if (--it->entries > 0) continue;
        s->bytes -= it->bytes;
        json_decref(it->j);
        free(it);
    }
    free(x->item);
    free(x->text);
    *x = (Stored) { 0 };
}

void store_free(Store *s)
{
    if (!s) return;
    for (int32_t i = 0; i < s->n; i++) empty(s, &s->at[i]);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* With the lock held; -1: none. */
static int32_t find(const Store *s, int32_t owner, const char *id)
{
    for (int32_t i = s->n - 1; i >= 0; i--)
        if (s->at[i].owner == owner && strcmp(s->at[i].id, id) == 0) return i;
    return -1;
}

static void take_out(Store *s, int32_t i)
{
    empty(s, &s->at[i]);
    memmove(s->at + i, s->at + i + 1, sizeof *s->at * (size_t) (--s->n - i));
}

/* The entry that shares the most leading items: the one that this response continued. */
static const Stored *earlier(const Store *s, const json_t *items, size_t *same)
{
    const Stored *best = NULL;
    *same = 0;
    for (int32_t i = 0; i < s->n; i++) {
        size_t n = 0;
        size_t most = s->at[i].n_item < json_array_size(items) ? s->at[i].n_item : json_array_size(items);
        while (n < most && s->at[i].item[n]->j == json_array_get(items, n)) n++;
        if (n <= *same) continue;
        *same = n;
        best = &s->at[i];
    }
    return best;
}

/* With the lock held. Returns false if memory runs out or an item is nested too deep; what x has by then is counted. */
static bool add_items(Store *s, Stored *x, const json_t *items, size_t from)
{
    for (size_t i = from; i < json_array_size(items); i++) {
        json_t *j = json_array_get(items, i);
        Item *it = malloc(sizeof *it);
        size_t bytes = json_bytes(j);
        if (!it || bytes == SIZE_MAX) {
            free(it);
            return false;
        }
        *it = (Item) { json_incref(j), bytes + sizeof *it, 1 };
        s->bytes += it->bytes;
        x->item[x->n_item++] = it;
    }
    return true;
}

/* With the lock held. */
static bool fill(Store *s, Stored *x, const json_t *items, const json_t *output)
{
    size_t same;
    const Stored *before = earlier(s, items, &same);
    for (size_t i = 0; i < same; i++) {
        x->item[i] = before->item[i];
        x->item[i]->entries++;
    }
    x->n_item = same;
    return add_items(s, x, items, same) && add_items(s, x, output, 0);
}

/* What an owner has in entries, or in bytes, items counted for each entry that they are part of; x: on its way in. */
static size_t weight_of(const Store *s, const Stored *x, int32_t owner, bool bytes)
{
    size_t sum = 0;
    for (int32_t i = 0; i <= s->n; i++) {
        const Stored *e = i < s->n ? &s->at[i] : x;
        if (e->owner != owner) continue;
        sum += bytes ? entry_bytes(e) : 1;
        for (size_t k = 0; bytes && k < e->n_item; k++) sum += e->item[k]->bytes;
    }
    return sum;
}

/* Makes room for x: the oldest entry goes of the owner that has most, x's own on a tie, so that nobody pushes out what
 * others have. Returns false if that is x itself. */
static bool evict(Store *s, const Stored *x, bool bytes)
{
    int32_t worst = -1, own = -1;
    size_t most = weight_of(s, x, x->owner, bytes);
    for (int32_t i = s->n - 1; i >= 0; i--) {
        size_t weight = weight_of(s, x, s->at[i].owner, bytes);
        if (s->at[i].owner == x->owner) own = i;
        else if (weight > most || (weight == most && worst >= 0)) most = weight, worst = i;
    }
    if (worst < 0) worst = own < 0 && !bytes ? 0 : own;     /* a key more than there are entries */
    if (worst >= 0) take_out(s, worst);
    return worst >= 0;
}

/* With U+FFFD for zeros, as in requests: the items become messages. */
static json_t *read_response(const char *text, size_t n)
{
    char *copy = malloc(n + 1);
    if (!copy) return NULL;
    memcpy(copy, text, n);
    json_without_zeros(copy, n);
    json_t *response = json_loadb(copy, n, 0, NULL);
    free(copy);
    return response;
}

void store_add(Store *s, int32_t owner, const char *id, const char *text, size_t n, json_t *items)
{
    json_t *response = read_response(text, n), *output = json_object_get(response, "output");
    size_t n_item = json_array_size(items) + json_array_size(output);
    Stored x = { .owner = owner, .text = malloc(n + 1), .n = n, .item = malloc(sizeof *x.item * (n_item + 1)) };
    if (!x.text || !x.item || !output || strlen(id) >= sizeof x.id) {
        free(x.text);
        free(x.item);
        json_decref(response);
        return;
    }
    strcpy(x.id, id);
    memcpy(x.text, text, n);
    x.text[n] = 0;
    pthread_mutex_lock(&s->lock);
    bool good = fill(s, &x, items, output);
    s->bytes += entry_bytes(&x);
    if (s->n == RESPONSES_MAX) good &= evict(s, &x, false);
    while (good && s->bytes > s->bytes_max) good = evict(s, &x, true);
    if (good) s->at[s->n++] = x;
    else empty(s, &x);
    pthread_mutex_unlock(&s->lock);
    json_decref(response);
}

size_t store_bytes(Store *s)
{
    pthread_mutex_lock(&s->lock);
    size_t n = s->bytes;
    pthread_mutex_unlock(&s->lock);
    return n;
}

bool store_remove(Store *s, int32_t owner, const char *id)
{
    pthread_mutex_lock(&s->lock);
    int32_t i = find(s, owner, id);
    if (i >= 0) take_out(s, i);
    pthread_mutex_unlock(&s->lock);
    return i >= 0;
}

char *store_text(Store *s, int32_t owner, const char *id, size_t *n)
{
    pthread_mutex_lock(&s->lock);
    int32_t i = find(s, owner, id);
    char *text = i >= 0 ? malloc(s->at[i].n + 1) : NULL;
    if (text) memcpy(text, s->at[i].text, s->at[i].n + 1);
    *n = text ? s->at[i].n : 0;
    pthread_mutex_unlock(&s->lock);
    return text;
}

/* The caller owns the list; the items are shared, since they are never modified (requests make messages of them) and
 * their counts are atomic. */
json_t *store_response(void *view, const char *id)
{
    const StoreView *v = view;
    Store *s = v->store;
    pthread_mutex_lock(&s->lock);
    int32_t i = find(s, v->owner, id);
    json_t *out = i >= 0 ? json_array() : NULL;
    for (size_t k = 0; out && k < s->at[i].n_item; k++)
        if (json_array_append(out, s->at[i].item[k]->j) != 0) {
            json_decref(out);
            out = NULL;
        }
    pthread_mutex_unlock(&s->lock);
    return out;
}

json_t *store_item(void *view, const char *id)
{
    const StoreView *v = view;
    Store *s = v->store;
    json_t *out = NULL;
    pthread_mutex_lock(&s->lock);
    for (int32_t i = s->n - 1; i >= 0 && !out; i--)
        for (size_t k = 0; s->at[i].owner == v->owner && k < s->at[i].n_item && !out; k++) {
            const char *name = json_string_value(json_object_get(s->at[i].item[k]->j, "id"));
            if (name && strcmp(name, id) == 0) out = json_incref(s->at[i].item[k]->j);
        }
    pthread_mutex_unlock(&s->lock);
    return out;
}
