/* matmul_32.cu - products with weights in blocks of 32. */
#include "backend/gpu/gpu_products.h"

KERNEL(128, matmul_8_few1, MatmulArgs) { few<Pack8, 1>(a); }
KERNEL(128, matmul_8_few2, MatmulArgs) { few<Pack8, 2>(a); }
KERNEL(128, matmul_4_few1, MatmulArgs) { few<Pack4, 1>(a); }
KERNEL(128, matmul_4_few2, MatmulArgs) { few<Pack4, 2>(a); }
KERNEL(128, matmul_4m_few1, MatmulArgs) { few<Pack4M, 1>(a); }
KERNEL(128, matmul_4m_few2, MatmulArgs) { few<Pack4M, 2>(a); }
KERNEL(128, matmul_4x_few1, MatmulArgs) { few<Pack4X, 1>(a); }
KERNEL(128, matmul_4x_few2, MatmulArgs) { few<Pack4X, 2>(a); }
KERNEL(128, matmul_5_few1, MatmulArgs) { few<Pack5, 1>(a); }
KERNEL(128, matmul_5_few2, MatmulArgs) { few<Pack5, 2>(a); }
KERNEL(128, matmul_5m_few1, MatmulArgs) { few<Pack5M, 1>(a); }
KERNEL(128, matmul_5m_few2, MatmulArgs) { few<Pack5M, 2>(a); }
