/* store.h - the latest responses of the Responses dialect, so that a client can continue from one by its id or fetch it
 * again. In memory only. The oldest are dropped when there are more than 64, or when their texts and items together
 * exceed the byte limit. */
#ifndef RATOON_PROGRAMS_SERVE_RUN_STORE_H
#define RATOON_PROGRAMS_SERVE_RUN_STORE_H

#include "programs/serve/server.h"

Store *store_new(size_t bytes_max);                /* thread-safe; NULL: out of memory */
void   store_free(Store *s);
/* owner (exchange_owner): responses stored by one owner are invisible to others. text: the response object. items: its
 * whole input; a reference is kept. An entry larger than the byte limit is not stored. */
void   store_add(Store *s, int32_t owner, const char *id, const char *text, size_t n, json_t *items);
size_t store_bytes(Store *s);                      /* estimate of the bytes of all entries */
bool   store_remove(Store *s, int32_t owner, const char *id);
char  *store_text(Store *s, int32_t owner, const char *id, size_t *n);     /* malloc'd; NULL: there is none */
/* RequestLookup of the store, as one owner sees it. */
typedef struct { Store *store; int32_t owner; } StoreView;
json_t *store_response(void *view, const char *id);
json_t *store_item(void *view, const char *id);

#endif
