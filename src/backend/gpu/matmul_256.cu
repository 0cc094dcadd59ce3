/* matmul_256.cu - products with weights in blocks of 256. */
#include "backend/gpu/gpu_products.h"

KERNEL(128, matmul_k4_few1, MatmulArgs) { few<PackK4, 1>(a); }
KERNEL(128, matmul_k4_few2, MatmulArgs) { few<PackK4, 2>(a); }
KERNEL(128, matmul_k5_few1, MatmulArgs) { few<PackK5, 1>(a); }
KERNEL(128, matmul_k5_few2, MatmulArgs) { few<PackK5, 2>(a); }
KERNEL(128, matmul_k4x_few1, MatmulArgs) { few<PackK4X, 1>(a); }
KERNEL(128, matmul_k4x_few2, MatmulArgs) { few<PackK4X, 2>(a); }
KERNEL(128, matmul_k6_few1, MatmulArgs) { few<PackK6, 1>(a); }
KERNEL(128, matmul_k6_few2, MatmulArgs) { few<PackK6, 2>(a); }
KERNEL(128, matmul_k2_few1, MatmulArgs) { few<PackK2, 1>(a); }
KERNEL(128, matmul_k2_few2, MatmulArgs) { few<PackK2, 2>(a); }
