/* device_backend.h - a backend that behaves like a device and computes like the CPU. The host can read and write its
 * memory only by copies (its pages are inaccessible while no command runs). Calls are queued with copies of their
 * descriptors until sync. Passes are recorded while it is prepared: the first pass of a key after that must make the
 * same calls with the same arguments; later passes are replayed and make no calls. A chosen call can fail, after which
 * nothing runs until sync reports it. The backend also counts allocations, by name and time, draws tokens by itself
 * (pick) and has attention in one operation (attend_block). */
#ifndef RATOON_TESTS_HELP_DEVICE_BACKEND_H
#define RATOON_TESTS_HELP_DEVICE_BACKEND_H

#include "backend/backend.h"

/* cpu: runs the commands; closed with the device. */
Status device_backend_open(Backend **out, Backend *cpu, Error *err);

enum { DEVICE_PARTS = 32 };
typedef struct {
    int64_t fail_in;                          /* the n-th command from now fails when it runs (0: none) */
    int64_t alloc_fail_in;                    /* the n-th allocation from now fails (0: none) */
    bool    forgets;                          /* no pass is replayed */
    uint64_t memory;                          /* bytes that it has (0: more than any test takes) */
    int64_t commands, allocs, live;           /* run, made, bytes now */
    int64_t recorded, compared, replayed;     /* passes */
    int64_t unprepared;                       /* passes with a key that was not recorded */
    int64_t blocks;                           /* calls of attend_block */
    int64_t trips;                            /* host waits for the device: syncs with work to do, and views */
    char    complaint[256];                   /* the first violation of the rules ("": none); sync fails from then on */
    struct { char name[48]; size_t bytes; } part[DEVICE_PARTS];
    int32_t n_parts;
} DeviceLog;
DeviceLog *device_log(Backend *device);

#endif
