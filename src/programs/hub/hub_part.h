/* hub_part.h - a file that is being fetched: TARGET.ratoon holds the bytes at their places, TARGET.ratoon-parts a
 * journal of how far each piece has come. Whatever breaks off, the next start goes on there. huggingface_hub's own
 * partial files (.incomplete) are left alone, since another process may be writing them. */
#ifndef RATOON_PROGRAMS_HUB_PART_H
#define RATOON_PROGRAMS_HUB_PART_H

#include <stddef.h>

#include "programs/hub/hub_name.h"

typedef struct {
    char      path[HUB_PATH], journal_path[HUB_PATH];
    int       fd, journal;
    uint64_t  size, piece;                         /* piece: bytes of each piece but the last */
    size_t    n;
    uint64_t *done;                                /* [n], bytes that are there, from the start of each piece */
} HubPart;

/* Opens what is there of the target, or begins it. Fails if another process has it open. */
Status   hub_part_open(HubPart *p, const char *target, uint64_t size, Error *err);
uint64_t hub_part_length(const HubPart *p, size_t i);
uint64_t hub_part_have(const HubPart *p);
/* Bytes that are on the disk already of a target which is not open. */
uint64_t hub_part_peek(const char *target);
/* Forgets all bytes. */
void     hub_part_restart(HubPart *p);
/* ST_FULL if the disk is full or a limit of files is reached. */
Status   hub_part_write(HubPart *p, uint64_t at, const void *bytes, size_t n, Error *err);
/* Syncs the bytes and then writes the journal, which so never promises more than there is. */
Status   hub_part_save(HubPart *p, Error *err);
/* Renames the complete file to target. */
Status   hub_part_finish(HubPart *p, const char *target, Error *err);
void     hub_part_drop(HubPart *p);                /* deletes both files */
void     hub_part_close(HubPart *p);
bool     hub_part_is(const char *name);            /* whether a file's name is that of such a file or journal */
bool     hub_part_busy(const char *path);          /* whether a process fetches it now */

#endif
