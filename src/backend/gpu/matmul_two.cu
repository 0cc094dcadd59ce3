/* matmul_two.cu - products with weights of two packs in one launch, as they stand side by side in the published
 * mixes of types. */
#include "backend/gpu/gpu_products.h"

PRODUCTS_OF_TWO(k4_k6, PackK4, PackK6)
PRODUCTS_OF_TWO(k5_k6, PackK5, PackK6)
