/* args_attend.h - arguments of the kernels in attend.cu. */
#ifndef RATOON_BACKEND_GPU_ARGS_ATTEND_H
#define RATOON_BACKEND_GPU_ARGS_ATTEND_H

#endif
