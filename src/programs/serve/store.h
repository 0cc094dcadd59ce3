/* store.h - the last responses, for previous_response_id, item_reference and GET or DELETE /v1/responses/{id}. In RAM only; the oldest go
 * first when there are too many, or when they take too many bytes. Each is kept as text: its object, and all items of its conversation.
 * May be used from several threads. */
#ifndef RATOON_PROGRAMS_SERVE_STORE_H
#define RATOON_PROGRAMS_SERVE_STORE_H

#include "programs/serve/request.h"

typedef struct ResponseStore ResponseStore;

ResponseStore *store_new(size_t responses, size_t bytes);      /* at most so many, of so many bytes in all; NULL: out of memory */
void  store_free(ResponseStore *s);                            /* NULL is fine */
/* Keeps a response: its object (answer_response) and the request that it answers. False: it is too large, not in order, or there is no
 * memory; then it is simply not kept. */
bool  store_put(ResponseStore *s, const Request *q, const char *id, const char *object, size_t n);
char *store_get(ResponseStore *s, const char *id, size_t *n);  /* a copy of the object, the caller's; NULL: not kept */
bool  store_delete(ResponseStore *s, const char *id);          /* whether there was one */

/* For RequestLookup; ud is the store. */
json_t *store_response(void *ud, const char *id);
json_t *store_item(void *ud, const char *id);

#endif
