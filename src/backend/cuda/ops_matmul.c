#include "backend/cuda/cuda.h"

void cuda_matmul_ops(Backend *b) { (void) b; }
