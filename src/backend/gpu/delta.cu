/* delta.cu */
#include "backend/gpu/gpu.h"
