/* args_draw.h - arguments of the kernels in draw.cu. */
#ifndef RATOON_BACKEND_GPU_ARGS_DRAW_H
#define RATOON_BACKEND_GPU_ARGS_DRAW_H

#endif
