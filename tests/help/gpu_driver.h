/* gpu_driver.h - the driver that RATOON_CUDA_DRIVER names, for tests of the CUDA backend: the emulated one, or a
 * card's. */
#ifndef RATOON_TESTS_HELP_GPU_DRIVER_H
#define RATOON_TESTS_HELP_GPU_DRIVER_H

#include <dlfcn.h>
#include <stdlib.h>

#include "backend/cuda/driver.h"
#include "gpu/fake_cuda.h"

/* Makes it the backend's; returns its name, NULL: none is named, and it is NVIDIA's. Before the backend is used. */
static inline const char *gpu_driver(void)
{
    const char *library = getenv("RATOON_CUDA_DRIVER");
    if (!library || !*library) return NULL;
    cuda_driver_name(library);
    return library;
}

/* The emulated driver's own struct; NULL: another driver is named, or none. */
static inline FakeCuda *gpu_emulated(void)
{
    const char *library = gpu_driver();
    void *so = library ? dlopen(library, RTLD_NOW | RTLD_LOCAL) : NULL;
    return so ? dlsym(so, "ratoon_emulated_driver") : NULL;
}

#endif
