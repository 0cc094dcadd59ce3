#!/usr/bin/env python3
"""images.py OUT FATBIN... - writes the assembly that puts the fatbins into the program, and a table of them."""
import sys

out, fatbins = sys.argv[1], sys.argv[2:]
with open(out, "w") as f:
    for i, name in enumerate(fatbins):
        f.write(f'.balign 16\ncuda_image_{i}: .incbin "{name}"\n')
    f.write(".section .data.rel.ro, \"aw\"\n.balign 8\n.globl cuda_images\ncuda_images:\n")
    f.writelines(f".quad cuda_image_{i}\n" for i in range(len(fatbins)))
    f.write(".quad 0\n")
