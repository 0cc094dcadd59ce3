/* matmul_32.cu - products with weights in blocks of 32. */
#include "backend/gpu/gpu_products.h"

PRODUCTS(8, Pack8)
PRODUCTS(4, Pack4)
PRODUCTS(4m, Pack4M)
PRODUCTS(4x, Pack4X)
PRODUCTS(4f, Pack4F)
PRODUCTS(4n, Pack4N)
PRODUCTS(5, Pack5)
PRODUCTS(5m, Pack5M)
