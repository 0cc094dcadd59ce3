/* driver.h - the functions of NVIDIA's driver that the backend calls, found by dlopen: no CUDA header is needed to
 * build, and no library to run. Names and arguments are those of the driver API (versioned names in full); handles are
 * void *, device addresses too. */
#ifndef RATOON_BACKEND_CUDA_DRIVER_H
#define RATOON_BACKEND_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    void    *stream;
    void    *attrs;
    unsigned n_attrs;
} CuLaunch;                                        /* CUlaunchConfig */

#define CUDA_DRIVER(X) \
    X(cuInit, (unsigned flags)) \
    X(cuDriverGetVersion, (int *version)) \
    X(cuGetErrorName, (int code, const char **name)) \
    X(cuGetErrorString, (int code, const char **text)) \
    X(cuDeviceGetCount, (int *n)) \
    X(cuDeviceGet, (int *device, int ordinal)) \
    X(cuDeviceGetName, (char *name, int cap, int device)) \
    X(cuDeviceGetAttribute, (int *value, int attribute, int device)) \
    X(cuDeviceTotalMem_v2, (size_t *bytes, int device)) \
    X(cuDevicePrimaryCtxRetain, (void **context, int device)) \
    X(cuDevicePrimaryCtxRelease_v2, (int device)) \
    X(cuCtxSetCurrent, (void *context)) \
    X(cuMemGetInfo_v2, (size_t *free, size_t *total)) \
    X(cuMemAlloc_v2, (void **p, size_t n)) \
    X(cuMemFree_v2, (void *p)) \
    X(cuMemAllocHost_v2, (void **p, size_t n)) \
    X(cuMemFreeHost, (void *p)) \
    X(cuMemcpyHtoDAsync_v2, (void *to, const void *host, size_t n, void *stream)) \
    X(cuMemcpyDtoHAsync_v2, (void *host, const void *from, size_t n, void *stream)) \
    X(cuMemcpyDtoDAsync_v2, (void *to, const void *from, size_t n, void *stream)) \
    X(cuMemsetD8Async, (void *to, unsigned char value, size_t n, void *stream)) \
    X(cuModuleLoadData, (void **module, const void *image)) \
    X(cuModuleUnload, (void *module)) \
    X(cuModuleGetFunction, (void **function, void *module, const char *name)) \
    X(cuFuncSetAttribute, (void *function, int attribute, int value)) \
    X(cuLaunchKernelEx, (const CuLaunch *launch, void *function, void **args, void **extra)) \
    X(cuStreamCreate, (void **stream, unsigned flags)) \
    X(cuStreamDestroy_v2, (void *stream)) \
    X(cuStreamSynchronize, (void *stream)) \
    X(cuStreamWaitEvent, (void *stream, void *event, unsigned flags)) \
    X(cuLaunchHostFunc, (void *stream, void (*work)(void *arg), void *arg)) \
    X(cuEventCreate, (void **event, unsigned flags)) \
    X(cuEventDestroy_v2, (void *event)) \
    X(cuEventRecord, (void *event, void *stream)) \
    X(cuEventQuery, (void *event)) \
    X(cuStreamBeginCapture_v2, (void *stream, int mode)) \
    X(cuStreamEndCapture, (void *stream, void **graph)) \
    X(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags)) \
    X(cuGraphUpload, (void *exec, void *stream)) \
    X(cuGraphLaunch, (void *exec, void *stream)) \
    X(cuGraphExecDestroy, (void *exec)) \
    X(cuGraphDestroy, (void *graph))

#define CUDA_FIELD(name, args) int (*name) args;
typedef struct { CUDA_DRIVER(CUDA_FIELD) } CudaDriver;
#undef CUDA_FIELD

/* The fatbins of this build, one for each kernel file, ended by NULL (image.S), and the CUDA version that a driver must
 * have for them, 12040 for 12.4 (images.py); the functions above need less. */
extern const uint8_t *const cuda_images[];
extern const int32_t cuda_driver_least;

/* Names another library than libcuda.so.1, such as the tests' emulated driver, before the driver is first asked for and
 * while no other thread uses the backend. The string is kept. */
void cuda_driver_name(const char *library);

/* The driver, loaded and initialised once for the process, from any thread. ST_UNSUPPORTED: there is no driver, or it
 * sees no card; ST_BACKEND: it is too old, lacks a function or does not start. */
Status cuda_driver(const CudaDriver **out, Error *err);

/* Ends what is said of cards that are not there. */
#define CUDA_HIDDEN "; CUDA_VISIBLE_DEVICES may hide some"

/* The driver is the tests' emulation, which has the kernels itself. */
bool cuda_driver_emulated(void);

/* CUDA_ERROR_OUT_OF_MEMORY, _NO_DEVICE, _NO_BINARY_FOR_GPU, _NOT_FOUND, _NOT_READY */
enum { CUDA_NO_MEMORY = 2, CUDA_NO_DEVICE = 100, CUDA_NO_KERNELS = 209, CUDA_NOT_FOUND = 500, CUDA_NOT_READY = 600 };

/* Fails with ST_BACKEND (ST_MEMORY for lack of memory) and the driver's own words for a code. */
Status cuda_fail(Error *err, const CudaDriver *cu, int code, const char *what);

#endif
