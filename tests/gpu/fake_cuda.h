/* fake_cuda.h - what a test asks of the emulated driver and reads from it. The driver's own symbol
 * ratoon_emulated_driver is this struct: a test finds it by dlsym in the library that RATOON_CUDA_DRIVER names. */
#ifndef RATOON_TESTS_GPU_FAKE_CUDA_H
#define RATOON_TESTS_GPU_FAKE_CUDA_H

#include <stdbool.h>
#include <stdint.h>

/* card_NAME: for each card, by its number. Where card_cc and card_memory are not 0, they count instead of cc and
 * memory; the others are the parts of what NAME sums up. */
enum { FAKE_CARDS = 8 };                           /* at most */
typedef struct {
    int32_t version, devices, cc;                  /* what the driver says of itself and its cards */
    int32_t card_cc[FAKE_CARDS];
    bool    no_kernels;                            /* what is loaded is not for these cards */
    int64_t fail_in;                               /* the n-th call from now fails (0: none), releases after their
                                                    * work */
    int32_t fail_with;                             /* with this code */
    bool    lost;                                  /* every call fails, as after an error that costs the context */
    bool    sealed;                                /* nothing more can be taken, recorded or loaded */
    int64_t refused;                               /* calls, by that */
    int64_t calls, waits;                          /* all but the translation of codes; of the host for the device */
    int64_t launches, replays;                     /* of kernels, recorded ones too; of recorded passes */
    int64_t card_launches[FAKE_CARDS], card_replays[FAKE_CARDS];
    int64_t live;                                  /* blocks, streams, events, modules, contexts and graphs in use */
    int64_t device_bytes, host_bytes;              /* of the blocks: on devices, in their pages; of pinned memory */
    int64_t card_bytes[FAKE_CARDS];
    bool    eager;                                 /* a copy to the device is made at the call, if nothing is queued
                                                    * before it, and not as late as can be */
    int64_t copied;                                /* bytes copied to the device so far */
    void  (*launched)(const char *kernel);         /* told when one runs; NULL: nobody is */
    const char *spoiled;                           /* the kernel whose floats are a little wrong; NULL: none */
    int64_t spoils;                                /* floats so far, by that */
    bool    integrated;                            /* the card says that its memory is the host's */
    int64_t memory, taken;                         /* of a card, 0: all that is emulated; of each, by others */
    int64_t card_memory[FAKE_CARDS];
    int64_t graph_bytes;                           /* of it, that a recorded pass takes */
    bool    unrecorded;                            /* nothing can be recorded */
} FakeCuda;

#endif
