#include "backend/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CudaDriver driver;
static bool emulated;
static const char *so_name = "libcuda.so.1";
static Error why;                                  /* code ST_OK: the driver is there */

static void load(void)
{
    void *so = dlopen(so_name, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        fail(&why, ST_UNSUPPORTED, "cuda: no NVIDIA driver on this machine (%s)", dlerror());
        return;
    }
    emulated = dlsym(so, "ratoon_emulated_driver") != NULL;
#define FIND(function, args) \
    *(void **) &driver.function = dlsym(so, #function); \
    if (!driver.function) { \
        fail(&why, ST_BACKEND, "cuda: the driver %s lacks %s, expected a driver for CUDA %d.%d or newer", so_name, \
             #function, cuda_driver_least / 1000, cuda_driver_least % 1000 / 10); \
        return; \
    }
    CUDA_DRIVER(FIND)
#undef FIND
    int version = 0, code = driver.cuInit(0);
    if (code == 0) code = driver.cuDriverGetVersion(&version);
    if (code == CUDA_NO_DEVICE) fail(&why, ST_UNSUPPORTED, "cuda: the driver sees no device");
    else if (code) cuda_fail(&why, &driver, code, "starting the driver");
    else if (version < cuda_driver_least)
        fail(&why, ST_BACKEND, "cuda: the driver %s is for CUDA %d.%d, expected %d.%d or newer", so_name,
             version / 1000, version % 1000 / 10, cuda_driver_least / 1000, cuda_driver_least % 1000 / 10);
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
