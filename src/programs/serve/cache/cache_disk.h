/* cache_disk.h - the folder that holds records, one file each. A file gets its final name only when it is complete and
 * synced. A process holds a lock on the file it is writing; files of dead processes are recognised by the missing lock
 * and removed. Several processes may share a folder: a file may vanish or be replaced at any time, which readers treat
 * as a miss. */
#ifndef RATOON_PROGRAMS_SERVE_CACHE_CACHE_DISK_H
#define RATOON_PROGRAMS_SERVE_CACHE_CACHE_DISK_H

#include <stdatomic.h>

#include "programs/serve/cache/cache_record.h"

typedef struct { int fd; char *path; uint32_t n_temporary; } CacheDisk;

/* Creates the folder (mode 0700) if it is missing; removes unfinished files of dead processes. */
Status cache_disk_open(CacheDisk *d, const char *path, Error *err);
void   cache_disk_close(CacheDisk *d);

/* A file with a record's name. used: seconds at which it was last written or touched. */
typedef struct { RecordName name; uint64_t bytes; int64_t used; } CacheFile;
Status cache_disk_list(const CacheDisk *d, CacheFile **out, size_t *n, Error *err);      /* free *out */

/* Everything about a file except its image; *front (free it) holds what out points to. ST_IO: missing or unreadable. */
Status cache_disk_front(const CacheDisk *d, RecordName name, uint8_t **front, Record *out, Error *err);
/* Reads and verifies the image of exactly the text of `like`, into image [like->n_image]. */
Status cache_disk_image(const CacheDisk *d, RecordName name, const Record *like, uint8_t *image, Error *err);
/* Writes, syncs and renames. stop is polled every megabyte; if it returns true, writing is given up (ST_CANCEL).
 * ST_FULL: the disk is full. ST_UNSUPPORTED: a folder has this name. */
Status cache_disk_write(CacheDisk *d, RecordName name, const Record *r, const uint8_t *front, const uint8_t *image,
                        atomic_bool *stop, Error *err);
Status cache_disk_remove(const CacheDisk *d, RecordName name, Error *err);         /* also ST_OK if it did not exist */
void   cache_disk_touch(const CacheDisk *d, RecordName name);

#endif
