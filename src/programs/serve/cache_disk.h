/* cache_disk.h - the folder that holds records, one file each. A file appears under its name only when it is whole and on the disk; what a
 * process that died left half written is told by its lock, which died too, and removed. Several processes may share a folder: a file may
 * vanish or be replaced at any time, which readers take for a miss. */
#ifndef RATOON_PROGRAMS_SERVE_CACHE_DISK_H
#define RATOON_PROGRAMS_SERVE_CACHE_DISK_H

#include <stdatomic.h>

#include "programs/serve/cache_record.h"

typedef struct { int fd; char *path; uint32_t n_temporary; } Disk;

/* Makes the folder (mode 0700) if it is missing; removes what dead writers left. */
Status disk_open(Disk *d, const char *path, Error *err);
void   disk_close(Disk *d);

/* Files whose names are those of records. used: when it was written or last touched, in seconds. */
typedef struct { RecordName name; uint64_t bytes; int64_t used; } DiskFile;
Status disk_list(const Disk *d, DiskFile **out, size_t *n, Error *err);           /* *out: free */

/* What is known of a file but its image; *front (free) holds what out points to. ST_IO: it is not there or cannot be read. */
Status disk_front(const Disk *d, RecordName name, uint8_t **front, Record *out, Error *err);
/* The image of the very text that `like` tells, verified, to image [like->n_image]. */
Status disk_image(const Disk *d, RecordName name, const Record *like, uint8_t *image, Error *err);
/* Writes, syncs and renames. stop, asked every megabyte, makes it give up (ST_CANCEL). ST_FULL: the disk is. */
Status disk_write(Disk *d, RecordName name, const Record *r, const uint8_t *front, const uint8_t *image, atomic_bool *stop, Error *err);
Status disk_remove(const Disk *d, RecordName name, Error *err);                    /* ST_OK too if it was not there */
void   disk_touch(const Disk *d, RecordName name);

#endif
