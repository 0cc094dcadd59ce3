/* matmul.cu */
#include "backend/gpu/gpu.h"
