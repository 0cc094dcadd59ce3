/* args_delta.h - arguments of the kernels in delta.cu. */
#ifndef RATOON_BACKEND_GPU_ARGS_DELTA_H
#define RATOON_BACKEND_GPU_ARGS_DELTA_H

#endif
