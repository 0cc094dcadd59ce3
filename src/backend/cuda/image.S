/* The kernels as data, a fatbin for each kernel file: CUDA_IMAGES is a file of .incbin lines that `make` writes by
 * images.py (build/cuda/images.inc), without any where there was no compiler for kernels. */
    .section .rodata
    .balign 16
#include CUDA_IMAGES
    .section .note.GNU-stack, "", %progbits
