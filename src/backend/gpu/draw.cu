/* draw.cu */
#include "backend/gpu/gpu.h"
