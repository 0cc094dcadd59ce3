/* plain.h - the table of routes, and the endpoints that need no session: health, the model list, properties, metrics, tokens. */
#ifndef RATOON_SERVE_PLAIN_H
#define RATOON_SERVE_PLAIN_H

#include "programs/serve/server.h"

const Route *plain_routes(int32_t *n);

/* Bodies of answers; NULL: out of memory. plain_models.c. */
json_t *models_list(const Server *s);
json_t *models_one(const Server *s, const char *id);               /* NULL also: there is none of this name */
json_t *models_props(const Server *s);

#endif
