#!/usr/bin/env python3
"""images.py OUT NVCC FATBIN... - writes the assembly that puts the fatbins into the program, a table of them, and the
least CUDA version of a driver that takes what this compiler makes: 12.4 for the fatbins' compression, and no less than
the compiler's own major version. Without fatbins it is that of what `make cuda` fetches (compiler.txt)."""
import re
import subprocess
import sys

out, nvcc, fatbins = sys.argv[1], sys.argv[2], sys.argv[3:]
least = 13000
if fatbins:
    said = subprocess.run([nvcc, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode()
    least = max(12040, 1000 * int(re.search(r"release (\d+)\.", said).group(1)))
with open(out, "w") as f:
    for i, name in enumerate(fatbins):
        f.write(f'.balign 16\ncuda_image_{i}: .incbin "{name}"\n')
    f.write(".section .data.rel.ro, \"aw\"\n.balign 8\n.globl cuda_images\ncuda_images:\n")
    f.writelines(f".quad cuda_image_{i}\n" for i in range(len(fatbins)))
    f.write(f".quad 0\n.globl cuda_driver_least\ncuda_driver_least: .long {least}\n")
