#include "programs/serve/store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/json.h"

typedef struct { char *id, *object, *items; size_t n_object, n_items; } Kept;
struct ResponseStore {
    pthread_mutex_t lock;
    size_t max, max_bytes, n, bytes;
    Kept   kept[];                                 /* [max], oldest first */
};

ResponseStore *store_new(size_t responses, size_t bytes)
{
    size_t room;
    if (!check_mul(&room, responses, sizeof(Kept)) || !check_add(&room, room, sizeof(ResponseStore))) return NULL;
    ResponseStore *s = calloc(1, room);
    if (!s || pthread_mutex_init(&s->lock, NULL) != 0) {
        free(s);
        return NULL;
    }
    s->max = responses;
    s->max_bytes = bytes;
    return s;
}

static size_t size_of(const Kept *k) { return k->n_object + k->n_items; }

static void forget(Kept *k)
{
    free(k->id);
    free(k->object);
    free(k->items);
    *k = (Kept) { 0 };
}

static void drop(ResponseStore *s, size_t i)
{
    s->bytes -= size_of(&s->kept[i]);
    forget(&s->kept[i]);
    s->n--;
    memmove(&s->kept[i], &s->kept[i + 1], (s->n - i) * sizeof *s->kept);
}

void store_free(ResponseStore *s)
{
    if (!s) return;
    while (s->n > 0) drop(s, s->n - 1);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* The conversation's items with the response's output behind them, as text. */
static char *all_items(const Request *q, const char *object, size_t n)
{
    json_t *response = NULL, *all = json_array();
    bool good = all && json_read(&response, object, n, "response", NULL) == ST_OK && json_array_extend(all, q->items) == 0 &&
                json_array_extend(all, json_object_get(response, "output")) == 0;
    char *text = good ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(response);
    json_decref(all);
    return text;
}

bool store_put(ResponseStore *s, const Request *q, const char *id, const char *object, size_t n)
{
    if (!q->store || !q->items) return false;
    Kept k = { .id = strdup(id), .object = malloc(n + 1), .items = all_items(q, object, n), .n_object = n };
    bool good = k.id && k.object && k.items;
    if (good) {
        k.n_items = strlen(k.items);
        memcpy(k.object, object, n);
        k.object[n] = 0;
    }
    if (!good || s->max == 0 || size_of(&k) > s->max_bytes) {
        forget(&k);
        return false;
    }
    pthread_mutex_lock(&s->lock);
    while (s->n == s->max || s->bytes > s->max_bytes - size_of(&k)) drop(s, 0);
    s->bytes += size_of(&k);
    s->kept[s->n++] = k;
    pthread_mutex_unlock(&s->lock);
    return true;
}

/* Its place, or n: it is not kept. The lock is held. */
static size_t place(const ResponseStore *s, const char *id)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->kept[i].id, id) == 0) return i;
    return s->n;
}

char *store_get(ResponseStore *s, const char *id, size_t *n)
{
    char *copy = NULL;
    *n = 0;
    pthread_mutex_lock(&s->lock);
    size_t i = place(s, id);
    if (i < s->n && (copy = strdup(s->kept[i].object))) *n = s->kept[i].n_object;
    pthread_mutex_unlock(&s->lock);
    return copy;
}

bool store_delete(ResponseStore *s, const char *id)
{
    pthread_mutex_lock(&s->lock);
    size_t i = place(s, id);
    bool found = i < s->n;
    if (found) drop(s, i);
    pthread_mutex_unlock(&s->lock);
    return found;
}

static json_t *items_of(const Kept *k)
{
    json_t *items;
    return json_read(&items, k->items, k->n_items, "stored items", NULL) == ST_OK ? items : NULL;
}

json_t *store_response(void *ud, const char *id)
{
    ResponseStore *s = ud;
    pthread_mutex_lock(&s->lock);
    size_t i = place(s, id);
    json_t *items = i < s->n ? items_of(&s->kept[i]) : NULL;
    pthread_mutex_unlock(&s->lock);
    return items;
}

json_t *store_item(void *ud, const char *id)
{
    ResponseStore *s = ud;
    json_t *found = NULL, *one;
    size_t k;
    if (!*id) return NULL;
    pthread_mutex_lock(&s->lock);
    for (size_t i = s->n; i-- > 0 && !found;) {    /* the newest first */
        if (!strstr(s->kept[i].items, id)) continue;
        json_t *items = items_of(&s->kept[i]);
        json_array_foreach(items, k, one) {
            const char *name = json_string_value(json_object_get(one, "id"));
            if (!found && name && strcmp(name, id) == 0) found = json_incref(one);
        }
        json_decref(items);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}
