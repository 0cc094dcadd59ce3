#!/usr/bin/env python3
"""Prints the tables of tests/unit/format/test_quant.c: what the Python package gguf decodes from seeded random blocks, and what it encodes.

  python3 tests/oracle/quant_vectors.py            (made with gguf 0.19.0 and numpy 2.4)

The generator is the one of the test: state = state * 6364136223846793005 + 1442695040888963407, a byte is state >> 56.
"""
import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

# type: offsets of its half fields, whose exponent's top bit is cleared so that every value is finite
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "IQ4_NL": [0], "MXFP4": [],
          "NVFP4": [], "Q2_K": [80, 82],
          "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_XS": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0],
          "F16": [0], "BF16": [0]}
BLOCKS, VALUES = 16, 1024
MASK = (1 << 64) - 1


def random_bytes(seed, n):
    out, s = bytearray(), seed
    for _ in range(n):
        s = (s * 6364136223846793005 + 1442695040888963407) & MASK
        out.append(s >> 56)
    return out


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & MASK
    return h


print("static const DecodeCase decode_cases[] = {")
for name, halves in HALVES.items():
    q = Q[name]
    block, size = gguf.GGML_QUANT_SIZES[q]
    raw = random_bytes(1000 + int(q), BLOCKS * size)
    for b in range(BLOCKS):
        for h in halves:
            raw[b * size + h + 1] &= 0xBF
    y = gguf.quants.dequantize(np.frombuffer(bytes(raw), np.uint8).reshape(BLOCKS, size),
                               q).astype(np.float32).reshape(-1)
    assert (name == "MXFP4" or np.isfinite(y).all()) and y.size == BLOCKS * block
    print(f"    {{T_{name}, 0x{fnv(y.tobytes()):016x}u, {float(y[1]).hex()}f, {float(y[-1]).hex()}f}},")
print("};")
scales = np.arange(256, dtype=np.uint8).reshape(64, 4)         # every scale of NVFP4; codes of 0.5, doubled 1
y = gguf.quants.dequantize(np.hstack([scales, np.full((64, 32), 0x11, np.uint8)]), Q.NVFP4).astype(np.float32)
print(f"\nstatic const uint64_t nvfp4_scales = 0x{fnv(y.tobytes()):016x}u;")
print("\nstatic const EncodeCase encode_cases[] = {")
raw = random_bytes(7, 3 * VALUES)
x = np.array([(raw[3 * i] | raw[3 * i + 1] << 8 | raw[3 * i + 2] << 16) - (1 << 23) for i in range(VALUES)], np.float32)
x = x * np.float32(2.0 ** -23) * (1 + np.arange(VALUES) % 7).astype(np.float32)
for name in ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"):
    print(f"    {{T_{name}, 0x{fnv(gguf.quants.quantize(x.reshape(1, -1), Q[name]).tobytes()):016x}u}},")
# Of NVFP4 gguf 0.19.0 encodes the scale only; codes are the nearest values, of equally near ones the first.
nv = gguf.quants.NVFP4
scale = nv.fp32_to_ue4m3(np.abs(x).reshape(-1, 16).max(1) / np.float32(6))
level = nv.ue4m3_to_fp32(scale).astype(np.float32)[:, None] * np.array(nv.kvalues, np.float32)
code = np.abs(level[:, None, :] - x.reshape(-1, 16, 1)).argmin(2).astype(np.uint8)
raw = np.hstack([scale.reshape(-1, 4), (code[:, :8] | code[:, 8:] << 4).reshape(-1, 32)])
print(f"    {{T_NVFP4, 0x{fnv(raw.tobytes()):016x}u}},")
print("};")
