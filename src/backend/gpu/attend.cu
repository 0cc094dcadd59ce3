/* attend.cu */
#include "backend/gpu/gpu.h"
