/* experts_256.cu - mixtures of experts with weights in blocks of 256. */
#include "backend/gpu/gpu_experts.h"

EXPERTS(k4, PackK4)
EXPERTS(k5, PackK5)
EXPERTS(k4x, PackK4X)
EXPERTS(k6, PackK6)
EXPERTS(k2, PackK2)
EXPERTS(k3, PackK3)
EXPERTS(k3x, PackK3X)
EXPERTS(iq3_xxs, PackIq3xxs)
EXPERTS(iq3_s, PackIq3s)
