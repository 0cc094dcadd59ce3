/* drafters.h - the table of published drafters (share/drafters.json): which repository holds the drafter that was
 * trained for a model. Only a name and a shape are needed to ask it, so it also answers before anything is downloaded.
 * The table is data that a user may replace: every entry is checked when it is read. */
#ifndef RATOON_PROGRAMS_DRAFTERS_H
#define RATOON_PROGRAMS_DRAFTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* What is known of a target. names: of its file, its repository, its general.name; NULL and "" are skipped, NULL does
 * not end them. layers: without an MTP layer. */
enum { TARGET_NAMES = 4 };
typedef struct {
    const char *arch;                              /* general.architecture; NULL: unknown */
    int32_t     layers, width;                     /* 0: unknown */
    const char *names[TARGET_NAMES];
} DraftTarget;

/* Texts live as long as the table. */
typedef struct {
    const char *model;                             /* that it was trained for */
    const char *repo, *quant;                      /* quant NULL: a folder of safetensors, where there is no choice */
    const char *kind;                              /* "dflash" or "dflash2" */
    const char *source, *note;                     /* where the entry comes from; note NULL: nothing more to say */
    uint64_t    bytes;                             /* of the download */
    bool        gated;                             /* its page asks to accept terms first */
    bool        verified;                          /* every field was read in the source; else the note says more */
} PublishedDrafter;

typedef struct Drafters Drafters;
/* The table beside the program, or where `make install` puts it. ST_END: there is none (no message). ST_IO, ST_FORMAT,
 * ST_MEMORY: it cannot be used, with one line that names the entry. */
Status drafters_open(Drafters **out, Error *err);
Status drafters_read(Drafters **out, const char *path, Error *err);
void   drafters_close(Drafters *d);                /* NULL is fine */

/* The drafters published for a target, the best first: writes at most cap, returns how many there are. d may be NULL:
 * none. */
size_t drafters_for_target(const Drafters *d, PublishedDrafter *out, size_t cap, const DraftTarget *t);
/* What `ratoon pull` takes: "REPO:QUANT" or "REPO". */
void   drafter_name(char *out, size_t cap, const PublishedDrafter *p);

#endif
