/* args.h - the argument of every kernel, one struct each, shared by the host (C) and the kernels (C++). Addresses are
 * of device memory unless a comment says otherwise. Rows [n, cols] are row-major. */
#ifndef RATOON_BACKEND_GPU_ARGS_H
#define RATOON_BACKEND_GPU_ARGS_H

#include "backend/pass.h"

/* What went wrong in a kernel: the first to fail writes it, sync reads it. code: one of these; value: what was
 * wrong. */
enum { GPU_FINE, GPU_BAD_TOKEN };
typedef struct { int32_t code, value, limit, pad; } GpuError;
/* What kernels tell the host with every sync; the counts, of Routes, go on from 2^32 - 1 to 0. */
typedef struct { GpuError wrong; int32_t chosen, read, pad[2]; } GpuReport;

#include "backend/gpu/args_kv.h"
#include "backend/gpu/args_matmul.h"
#include "backend/gpu/args_experts.h"
#include "backend/gpu/args_rows.h"
#include "backend/gpu/args_attend.h"
#include "backend/gpu/args_delta.h"
#include "backend/gpu/args_draw.h"
#include "backend/gpu/args_canvas.h"

#endif
