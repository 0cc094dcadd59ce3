/* disk.h - reads pieces of files while the caller does something else. Reads are begun, run side by side, and are taken
 * in the order in which they end. They go past the page cache where the file system allows it (O_DIRECT): what is read
 * is kept by the caller, and a second copy would take the memory that it has planned with. */
#ifndef RATOON_BASE_DISK_H
#define RATOON_BASE_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* How reads are made: by the kernel's io_uring, or by threads that call pread. DISK_AUTO: io_uring if the kernel grants
 * it and the program was built with liburing, else threads. */
typedef enum { DISK_AUTO, DISK_URING, DISK_PREAD } DiskWay;

/* ALIGN: offsets, lengths and addresses of buffers are multiples of it. */
enum { DISK_ALIGN = 4096, DISK_DEPTH_MAX = 4096 };

/* ---- files ---- */

/* An open file, which never changes: any number of Disks may read from it, in any threads. */
typedef struct DiskFile DiskFile;

/* Where the file system refuses O_DIRECT, reads are buffered, and the pages that they leave in the cache are dropped.
 * ST_IO: it cannot be opened or is not a regular file; ST_MEMORY. */
Status   disk_file_open(DiskFile **out, const char *path, Error *err);
bool     disk_file_direct(const DiskFile *f);      /* past the page cache */
uint64_t disk_file_bytes(const DiskFile *f);       /* when it was opened */
/* Whether it has these n bytes at offset; false, too, if they cannot be read. n <= DISK_ALIGN. Waits. */
bool     disk_file_holds(const DiskFile *f, uint64_t offset, const void *bytes, size_t n);
void     disk_file_close(DiskFile *f);             /* not while reads of it are in flight; NULL is fine */

/* ---- reads ---- */

/* Used by one thread at a time. */
typedef struct Disk Disk;

/* depth: how many reads can be in flight, 1 to DISK_DEPTH_MAX. ST_ARG; ST_MEMORY, also where no thread can be started;
 * ST_UNSUPPORTED: DISK_URING, and there is no io_uring, with the reason. */
Status      disk_open(Disk **out, DiskWay way, int32_t depth, Error *err);
const char *disk_way(const Disk *d);               /* "io_uring" or "pread" */
void        disk_close(Disk *d);                   /* waits for the reads in flight; NULL is fine */

/* Begins to read n bytes at offset into buf. The first `need` of them must be there, and are when the read has ended
 * well; the others may lie beyond the end of the file, and what buf has in their place then is not defined. The caller
 * leaves buf alone until disk_done has returned the read's tag. Returns false, and does nothing, if `depth` reads are
 * in flight. */
bool disk_read(Disk *d, const DiskFile *f, uint64_t offset, size_t n, size_t need, void *buf, uint64_t tag);

/* code and error: ST_IO with path, offset and reason, also for a file that became shorter; it says nothing about other
 * reads. seconds: from disk_read to the end, which io_uring tells only the next disk_done or disk_close. */
typedef struct { uint64_t tag; Status code; double seconds; Error error; } DiskDone;

/* Takes a read that has ended. wait: waits for one if any is in flight. Returns false if there is none. */
bool    disk_done(Disk *d, DiskDone *out, bool wait);
int32_t disk_in_flight(const Disk *d);             /* begun, and not yet taken by disk_done */

#endif
