/* hub_name.h - how a model of a hub is named, `ORG/NAME[@REVISION][:QUANT]`, and what the names of its files say.
 * Everything here comes from outside: a name that could leave a folder or a line is refused. */
#ifndef RATOON_PROGRAMS_HUB_NAME_H
#define RATOON_PROGRAMS_HUB_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { HUB_PATH = 4096, HUB_QUANT = 48 };

/* revision "": main. quant "": the default; it is a type (Q4_K_M, UD-Q4_K_XL) or a file of the repository. */
typedef struct { char repo[200], revision[128], quant[512]; } HubName;

/* The bytes in front that make a name one of the hub: hf:, and as in addresses hf.co/, huggingface.co/, with http:// or
 * https:// or without. 0: there are none. */
size_t hub_prefix(const char *text);
/* text may begin with one of these; an address may be that of the page of a file or of a revision's files. ST_ARG, with
 * what was expected. */
Status hub_name_read(HubName *out, const char *text, Error *err);
/* A relative path of plain components: no empty one, no "." or "..", no control characters, at most 512 bytes. */
bool   hub_path_good(const char *path);
bool   hub_commit_good(const char *commit);        /* 40 or 64 hexadecimal digits */
/* What the hub calls a file's content, which becomes its name in the cache: letters, digits and -. */
bool   hub_etag_good(const char *etag);
/* As part of a URL: everything but letters, digits and -._~/ is escaped; slash: the / too. Returns false if it does not
 * fit. */
bool   hub_escape(char *out, size_t cap, const char *s, bool slash);

/* What a file's name says. DRAFTER: dflash, draft, eagle or mtp is a word of it; OTHER: no model of its own (projector,
 * importance matrix), or no GGUF file at all. */
typedef enum { HUB_TARGET, HUB_DRAFTER, HUB_OTHER } HubKind;
HubKind hub_kind(const char *path);
/* The tensor type in capitals ("Q4_K_M", "UD-IQ2_XXS", "BF16"); "" if the name has none. */
void    hub_quant(char out[HUB_QUANT], const char *path);
/* Part and number of parts of a split file; false: it is not split. */
bool    hub_split(const char *path, int32_t *part, int32_t *parts);
/* The name of another part. Returns false if it does not fit. */
bool    hub_split_name(char *out, size_t cap, const char *path, int32_t part);
/* How well a file answers a quant ("": the default order) and the wish for a target or drafter: the smallest is taken,
 * -1 is never taken. Only the first part of a split file counts. */
int32_t hub_rank(const char *path, const char *quant, HubKind wish);

#endif
