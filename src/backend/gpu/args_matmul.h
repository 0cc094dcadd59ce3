/* args_matmul.h - arguments of the kernels in matmul.cu. */
#ifndef RATOON_BACKEND_GPU_ARGS_MATMUL_H
#define RATOON_BACKEND_GPU_ARGS_MATMUL_H

#endif
