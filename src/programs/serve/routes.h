/* routes.h - the table of routes, and endpoints that need no session: health, models, properties, metrics, tokens. */
#ifndef RATOON_PROGRAMS_SERVE_ROUTES_H
#define RATOON_PROGRAMS_SERVE_ROUTES_H

#include "programs/serve/server.h"

const Route *routes_table(int32_t *n);

/* Bodies of answers; NULL: out of memory. routes_models.c. */
json_t *models_list(const Server *s);
json_t *models_one(const Server *s, const char *id);               /* also NULL if no model has this name */
json_t *models_props(const Server *s);
json_t *time_json(int64_t seconds);                /* since 1970, as "2026-01-31T12:00:00Z" */
/* Likewise those that Ollama's clients ask for. routes_ollama.c. */
json_t *ollama_tags(const Server *s);
json_t *ollama_running(const Server *s);
json_t *ollama_show(const Server *s, const char *given);           /* also NULL if no model has this name */

#endif
