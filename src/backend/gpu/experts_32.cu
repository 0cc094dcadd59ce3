/* experts_32.cu - mixtures of experts with weights in blocks of 32. */
#include "backend/gpu/gpu_experts.h"

EXPERTS(8, Pack8)
EXPERTS(4, Pack4)
EXPERTS(4m, Pack4M)
EXPERTS(4x, Pack4X)
EXPERTS(4f, Pack4F)
EXPERTS(4n, Pack4N)
EXPERTS(5, Pack5)
EXPERTS(5m, Pack5M)
