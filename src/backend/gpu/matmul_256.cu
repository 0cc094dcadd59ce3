/* matmul_256.cu - products with weights in blocks of 256. */
#include "backend/gpu/gpu_products.h"

PRODUCTS(k4, PackK4)
PRODUCTS(k5, PackK5)
PRODUCTS(k4x, PackK4X)
PRODUCTS(k6, PackK6)
PRODUCTS(k2, PackK2)
PRODUCTS(k3, PackK3)
PRODUCTS(k3x, PackK3X)
PRODUCTS(iq3_xxs, PackIq3xxs)
PRODUCTS(iq3_s, PackIq3s)
