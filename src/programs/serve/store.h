/* store.h - the last responses of the Responses dialect, so that a client may go on from one by its id and look at it again. In memory only. */
#ifndef RATOON_SERVE_STORE_H
#define RATOON_SERVE_STORE_H

#include "programs/serve/server.h"

Store *store_new(void);                            /* any thread may use it; NULL: out of memory */
void   store_free(Store *s);
/* text: the response object; items: those of its whole input, kept. */
void   store_add(Store *s, const char *id, const char *text, size_t n, json_t *items);
bool   store_remove(Store *s, const char *id);
char  *store_text(Store *s, const char *id, size_t *n);            /* malloc'd; NULL: there is none */
/* RequestLookup of the store. */
json_t *store_response(void *store, const char *id);
json_t *store_item(void *store, const char *id);

#endif
