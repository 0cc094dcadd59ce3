#include "programs/serve/store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { RESPONSES_MAX = 64, TEXT_MAX = 32 << 20 };

typedef struct { char id[64]; char *text; size_t n; json_t *items; } Stored;
struct Store { pthread_mutex_t lock; Stored at[RESPONSES_MAX]; int32_t n; };       /* oldest first */

Store *store_new(void)
{
    Store *s = calloc(1, sizeof *s);
    if (s) pthread_mutex_init(&s->lock, NULL);
    return s;
}

static void empty(Stored *x)
{
    free(x->text);
    json_decref(x->items);
    *x = (Stored) { 0 };
}

void store_free(Store *s)
{
    if (!s) return;
    for (int32_t i = 0; i < s->n; i++) empty(&s->at[i]);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* With the lock; -1: none. */
static int32_t find(const Store *s, const char *id)
{
    for (int32_t i = s->n - 1; i >= 0; i--)
        if (strcmp(s->at[i].id, id) == 0) return i;
    return -1;
}

static void take_out(Store *s, int32_t i)
{
    empty(&s->at[i]);
    memmove(s->at + i, s->at + i + 1, sizeof *s->at * (size_t) (--s->n - i));
}

void store_add(Store *s, const char *id, const char *text, size_t n, json_t *items)
{
    json_t *response = json_loadb(text, n, 0, NULL), *output = json_object_get(response, "output");
    Stored x = { .text = malloc(n + 1), .n = n, .items = json_array() };
    if (!x.text || !output || n > TEXT_MAX || strlen(id) >= sizeof x.id || json_array_extend(x.items, items) != 0 || json_array_extend(x.items, output) != 0) {
        empty(&x);
        json_decref(response);
        return;
    }
    json_decref(response);
    strcpy(x.id, id);
    memcpy(x.text, text, n);
    x.text[n] = 0;
    pthread_mutex_lock(&s->lock);
    if (s->n == RESPONSES_MAX) take_out(s, 0);
    s->at[s->n++] = x;
    pthread_mutex_unlock(&s->lock);
}

bool store_remove(Store *s, const char *id)
{
    pthread_mutex_lock(&s->lock);
    int32_t i = find(s, id);
    if (i >= 0) take_out(s, i);
    pthread_mutex_unlock(&s->lock);
    return i >= 0;
}

char *store_text(Store *s, const char *id, size_t *n)
{
    pthread_mutex_lock(&s->lock);
    int32_t i = find(s, id);
    char *text = i >= 0 ? malloc(s->at[i].n + 1) : NULL;
    if (text) memcpy(text, s->at[i].text, s->at[i].n + 1);
    *n = text ? s->at[i].n : 0;
    pthread_mutex_unlock(&s->lock);
    return text;
}

/* Copies: what is stored is never shared with a thread that might change it. */
json_t *store_response(void *store, const char *id)
{
    Store *s = store;
    pthread_mutex_lock(&s->lock);
    int32_t i = find(s, id);
    json_t *out = i >= 0 ? json_deep_copy(s->at[i].items) : NULL;
    pthread_mutex_unlock(&s->lock);
    return out;
}

json_t *store_item(void *store, const char *id)
{
    Store *s = store;
    json_t *out = NULL, *item;
    size_t k;
    pthread_mutex_lock(&s->lock);
    for (int32_t i = s->n - 1; i >= 0 && !out; i--)
        json_array_foreach(s->at[i].items, k, item) {
            const char *name = json_string_value(json_object_get(item, "id"));
            if (!out && name && strcmp(name, id) == 0) out = json_deep_copy(item);
        }
    pthread_mutex_unlock(&s->lock);
    return out;
}
