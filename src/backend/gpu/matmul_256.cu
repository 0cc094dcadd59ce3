/* matmul_256.cu - products with weights in blocks of 256. */
#include "backend/gpu/gpu_products.h"

PRODUCTS(k4, PackK4)
PRODUCTS(k5, PackK5)
PRODUCTS(k4x, PackK4X)
PRODUCTS_WIDE(k6, PackK6, 2)
PRODUCTS(k2, PackK2)
PRODUCTS_WIDE(k3, PackK3, 2)
PRODUCTS_WIDE(k3x, PackK3X, 2)
PRODUCTS(iq3_xxs, PackIq3xxs)
PRODUCTS(iq3_s, PackIq3s)
