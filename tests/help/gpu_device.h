/* gpu_device.h - a card, or the emulated one, by the driver's functions alone, for tests of single kernels: memory that
 * ends with the program, launches in one stream that may begin early, as the backend's. Whatever fails ends the
 * program. */
#ifndef RATOON_TESTS_HELP_GPU_DEVICE_H
#define RATOON_TESTS_HELP_GPU_DEVICE_H

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_driver.h"

typedef struct {
    const CudaDriver *cu;
    void *context, *module, *stream;
    int   device, cc;
    char  name[128];
} GpuDevice;

static inline void gpu_must(const GpuDevice *d, int code, const char *what)
{
    const char *text = "?";
    if (code == 0) return;
    d->cu->cuGetErrorString(code, &text);
    fprintf(stderr, "%s: %s (%d)\n", what, text, code);
    exit(1);
}

/* The kernels that were compiled beside this program, FILE.fatbin; NULL: there are none. */
static inline void *gpu_image(const char *file)
{
    char path[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0) return NULL;
    path[n] = 0;
    snprintf(strrchr(path, '/') + 1, (size_t) (path + sizeof path - strrchr(path, '/') - 1), "%s.fatbin", file);
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    const long size = ftell(f);
    rewind(f);
    void *image = malloc((size_t) size);
    if (!image || fread(image, 1, (size_t) size, f) != (size_t) size) abort();
    fclose(f);
    return image;
}

/* Returns false with a reason where there is no driver, no such card or no kernels for it. The card's context becomes
 * that of the thread. */
static inline bool gpu_open_card(GpuDevice *d, int ordinal, const char *kernels, Error *why)
{
    enum { MAJOR = 75, MINOR = 76 };
    static char none[16];
    int n = 0, major = 0, minor = 0;
    gpu_driver();
    *d = (GpuDevice) { 0 };
    if (cuda_driver(&d->cu, why) != ST_OK) return false;
    if (d->cu->cuDeviceGetCount(&n) || n <= ordinal) {
        fail(why, ST_UNSUPPORTED, "the driver sees no device %d", ordinal);
        return false;
    }
    void *image = cuda_driver_emulated() ? none : gpu_image(kernels);
    if (!image) {
        fail(why, ST_UNSUPPORTED, "%s.fatbin is not beside the test (make cuda tests-built)", kernels);
        return false;
    }
    gpu_must(d, d->cu->cuDeviceGet(&d->device, ordinal), "device");
    d->cu->cuDeviceGetName(d->name, sizeof d->name, d->device);
    d->cu->cuDeviceGetAttribute(&major, MAJOR, d->device);
    d->cu->cuDeviceGetAttribute(&minor, MINOR, d->device);
    d->cc = 10 * major + minor;
    gpu_must(d, d->cu->cuDevicePrimaryCtxRetain(&d->context, d->device), "context");
    gpu_must(d, d->cu->cuCtxSetCurrent(d->context), "context");
    gpu_must(d, d->cu->cuModuleLoadData(&d->module, image), "kernels");
    gpu_must(d, d->cu->cuStreamCreate(&d->stream, 1), "stream");
    return true;
}

static inline bool gpu_open(GpuDevice *d, const char *kernels, Error *why)
{
    return gpu_open_card(d, 0, kernels, why);
}

/* host NULL: what is there stays. */
static inline void *gpu_memory(const GpuDevice *d, size_t bytes, const void *host)
{
    void *p = NULL;
    gpu_must(d, d->cu->cuMemAlloc_v2(&p, bytes), "memory");
    if (host) {
        gpu_must(d, d->cu->cuMemcpyHtoDAsync_v2(p, host, bytes, d->stream), "copy");
        gpu_must(d, d->cu->cuStreamSynchronize(d->stream), "copy");
    }
    return p;
}

static inline void gpu_fetch(const GpuDevice *d, void *host, const void *p, size_t bytes)
{
    gpu_must(d, d->cu->cuMemcpyDtoHAsync_v2(host, p, bytes, d->stream), "copy");
    gpu_must(d, d->cu->cuStreamSynchronize(d->stream), "what was launched");
}

static inline void gpu_launch(const GpuDevice *d, const char *kernel, int blocks, int blocks_y, int threads,
                              size_t shared, const void *args)
{
    enum { FUNC_SHARED = 8, EARLY = 6 };
    struct { int id; char pad[4]; union { char all[64]; int on; } value; } early = { .id = EARLY, .value.on = 1 };
    void *f = NULL;
    gpu_must(d, d->cu->cuModuleGetFunction(&f, d->module, kernel), kernel);
    if (shared > 48 << 10) gpu_must(d, d->cu->cuFuncSetAttribute(f, FUNC_SHARED, (int) shared), kernel);
    CuLaunch l = { .grid_x = (unsigned) blocks, .grid_y = (unsigned) blocks_y, .grid_z = 1,
                   .block_x = (unsigned) threads, .block_y = 1, .block_z = 1, .shared = (unsigned) shared,
                   .stream = d->stream, .attrs = &early, .n_attrs = d->cc >= 90 };
    gpu_must(d, d->cu->cuLaunchKernelEx(&l, f, (void *[]) { (void *) (uintptr_t) args }, NULL), kernel);
}

#endif
