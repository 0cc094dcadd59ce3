#include "backend/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CudaDriver driver;
static bool emulated;
static const char *so_name = "libcuda.so.1";
static Error why;                                  /* code ST_OK: the driver is there */

/* "CUDA 13.0 (NVIDIA's driver 580) or newer" */
static const char *least(char out[64])
{
    const char *number = cuda_driver_least == 12040 ? " (NVIDIA's driver 550)"
                       : cuda_driver_least == 13000 ? " (NVIDIA's driver 580)" : "";
    snprintf(out, 64, "CUDA %d.%d%s or newer", cuda_driver_least / 1000, cuda_driver_least % 1000 / 10, number);
    return out;
}

static void load(void)
{
    char text[64];
    void *so = dlopen(so_name, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        fail(&why, ST_UNSUPPORTED, "cuda: no NVIDIA driver here (%s); in a container it takes NVIDIA's container "
             "toolkit and --gpus all", dlerror());
        return;
    }
    emulated = dlsym(so, "ratoon_emulated_driver") != NULL;
#define FIND(function, args) \
    *(void **) &driver.function = dlsym(so, #function); \
    if (!driver.function) { \
        fail(&why, ST_BACKEND, "cuda: the driver %s lacks %s, expected a driver for %s", so_name, #function, \
             least(text)); \
        return; \
    }
    CUDA_DRIVER(FIND)
#undef FIND
    int version = 0, code = driver.cuInit(0);
    if (code == 0) code = driver.cuDriverGetVersion(&version);
    if (code == CUDA_NO_DEVICE) fail(&why, ST_UNSUPPORTED, "cuda: the driver sees no device" CUDA_HIDDEN);
    else if (code) cuda_fail(&why, &driver, code, "starting the driver");
    else if (version < cuda_driver_least && (emulated || cuda_images[0]))     /* without kernels that is the reason */
        fail(&why, ST_BACKEND, "cuda: the driver %s is for CUDA %d.%d, expected %s", so_name, version / 1000,
             version % 1000 / 10, least(text));
}

void cuda_driver_name(const char *library) { so_name = library; }

Status cuda_driver(const CudaDriver **out, Error *err)
{
    pthread_once(&once, load);
    *out = why.code == ST_OK ? &driver : NULL;
    if (err && !*out) *err = why;
    return why.code;
}

bool cuda_driver_emulated(void)
{
    const CudaDriver *cu;
    return cuda_driver(&cu, NULL) == ST_OK && emulated;
}

Status cuda_fail(Error *err, const CudaDriver *cu, int code, const char *what)
{
    const char *name = NULL, *text = NULL;
    cu->cuGetErrorName(code, &name);
    cu->cuGetErrorString(code, &text);
    return fail(err, code == CUDA_NO_MEMORY ? ST_MEMORY : ST_BACKEND, "cuda: %s failed: %s (%s, %d)", what,
                text ? text : "unknown error", name ? name : "?", code);
}
