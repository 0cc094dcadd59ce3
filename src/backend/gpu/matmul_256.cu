/* matmul_256.cu - products with weights in blocks of 256. */
#include "backend/gpu/gpu_products.h"

PRODUCTS(k4, PackK4)
PRODUCTS(k5, PackK5)
PRODUCTS(k4x, PackK4X)
PRODUCTS(k6, PackK6)
PRODUCTS(k2, PackK2)
PRODUCTS(k3, PackK3)
