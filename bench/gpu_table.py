#!/usr/bin/env python3
"""Whether the CUDA backend's launches fill a card, and what a pass would take at best: an estimate without a card.

    python3 bench/gpu_table.py DIR [SHAPE ...]      default: qwen35-27b qwen35-4b qwen35-0.8b; DIR: where models are put

Launches come from the emulated driver, which lists the passes of a model with four and with eight layers in the mix of
types Q4_K_M, behind 4,096 tokens; registers and shared memory from nvcc; what is assumed of a card is below. Per card
and shape:

    n      rows of the pass
    T(n)   milliseconds: for each launch the longest of its start, its bytes at the rate that the blocks can ask for,
           and its int8 multiply-adds; not its instructions
    least  the bytes of the weights at the card's rate
    fill   bytes of launches that fill their last wave of blocks to 80 % or have four waves, by all bytes
    flight bytes that resident blocks have in flight by latency x bandwidth, least of the products

and for each kernel of products: blocks of a multiprocessor, registers, and of its PTX, conversions of integers to
floats and instructions per matrix instruction; from that, instructions of a warp per byte of weights, and what share of
the card's instructions they would be at its full rate of memory: above 1, instructions are the limit. Both are upper
bounds, since code before and after a kernel's loop counts as if it were part of it, which is most of `wide`."""
import argparse
import collections
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
NVCC = os.environ.get("NVCC", "nvcc")
# name: architecture, multiprocessors, bytes/s, int8 multiply-adds/s of the matrix units, seconds of latency, threads of
# a multiprocessor, bytes of its shared memory, share of the bandwidth that a plain copy reaches, clock
CARDS = {"RTX 3090": ("86", 82, 936e9, 142e12, 600e-9, 1536, 100 << 10, .92, 1.70e9),
         "RTX 4090": ("86", 128, 1008e9, 330e12, 600e-9, 1536, 100 << 10, .92, 2.52e9),
         "RTX 5090": ("120", 170, 1792e9, 419e12, 650e-9, 1536, 100 << 10, .92, 2.41e9),
         "H200": ("90", 132, 4800e9, 990e12, 700e-9, 2048, 227 << 10, .90, 1.98e9)}
ISSUE = 4                                              # instructions of warps per clock and multiprocessor
START = 1.2e-6                                         # from launch to launch inside a graph, programmatic or not
LAYERS = {"qwen35-27b": 64, "qwen35-4b": 32, "qwen35-0.8b": 24}
BITS = {"k4": 4.5, "k5": 5.5, "k4x": 4.25, "k6": 6.5625, "k2": 2.625, "8": 8.5, "4": 4.5, "4m": 5, "4x": 4.5, "5": 5.5,
        "5m": 6, "f32": 32, "f16": 16, "bf16": 16}
WIDTHS = [1, 8, 16, 32, 64]


def run(*command, **env):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT,
                          env=dict(os.environ, **env)).stdout.decode()


def passes(folder, shape, layers, sms):
    """{rows: launches} of a model with so many layers; a launch is the words of its line."""
    model, listed = os.path.join(folder, "%s-%d.gguf" % (shape, layers)), os.path.join(folder, "listed")
    if not os.path.exists(model):
        run("bench/make_synthetic", shape, model + ".part", "--type", "Q4_K_M", "--layers", str(layers), "--no-vocab")
        os.rename(model + ".part", model)
    run("./ratoon", "bench", "-q", "-m", model, "-d", "none", "--backend", "cuda", "--passes",
        ",".join(map(str, WIDTHS)), "--after", "4096", "--ctx", "8192", "--repeats", "1", RATOON_EMU_DRY=listed,
        RATOON_EMU_PROCESSORS=str(sms),
        RATOON_CUDA_DRIVER=str(ROOT / "build/libfake_cuda.so"))
    found, now = {}, []
    for line in pathlib.Path(listed).read_text().splitlines():
        words = tuple(line.split())
        if words[0] not in ("sync", "replay"):
            now.append(words)
            continue
        embeds = [int(w[1]) for w in now if w[0] == "matmul_embed"]
        if embeds and any(w[0] == "conv_rows" for w in now):
            found[embeds[0]] = now
        now = []
    return found


def whole(folder, shape, sms):
    """{rows: {launch: times}} of the model with all its layers."""
    few, many = passes(folder, shape, 4, sms), passes(folder, shape, 8, sms)
    result = {}
    for n in WIDTHS:
        ends, both = collections.Counter(few[n]), collections.Counter(many[n])
        result[n] = {w: ends[w] + (LAYERS[shape] // 4 - 1) * (both[w] - ends[w]) for w in both}
    return result


def compiled(folder, arch):
    """{kernel: (registers, static shared memory, and of its PTX: instructions, conversions, matrix instructions)}"""
    kernels = {}
    for file in sorted((ROOT / "src/backend/gpu").glob("*.cu")):
        ptx, cubin = (os.path.join(folder, "kernels." + end) for end in ("ptx", "cubin"))
        run(NVCC, "-Isrc", "-std=c++17", "-fmad=false", "-O3", "-arch=compute_" + arch, "-ptx", "-o", ptx, str(file))
        said = run(NVCC, "-arch=sm_" + arch, "-cubin", "-O3", "-Xptxas", "-v", "-o", cubin, ptx)
        parts = re.split(r"\.entry (\w+)", pathlib.Path(ptx).read_text())
        code = dict(zip(parts[1::2], parts[2::2]))
        for m in re.finditer(r"entry function '(\w+)'.*?Used (\d+) registers(?:[^\n]*?(\d+) bytes smem)?", said, re.S):
            kernels[m[1]] = (int(m[2]), int(m[3] or 0), code[m[1]].count(";\n"), code[m[1]].count("cvt.rn.f32.s32"),
                             code[m[1]].count("mma.sync"))
    return kernels


def packs(kernel):
    """The packs of a product's kernel and, per block and step, the bytes it has on their way."""
    m = re.fullmatch(r"matmul_(\w+?)_(few1|deep[12]|wide[24]|many)", kernel)
    return (m[1].split("_"), m[2]) if m else ([kernel[7:]], "") if kernel[7:] in BITS else (None, None)


def weight_bytes(words):
    pack = packs(words[0])[0] if len(words) > 5 else None
    if not pack:
        return 0
    cols, first, second = map(int, words[5:8])
    return cols * (first * BITS[pack[0]] + second * BITS[pack[-1]]) / 8


def resident(card, kernel, words):
    _, _, _, _, _, threads, shared, _, _ = CARDS[card]
    registers, static = kernel[:2]
    n = int(words[3])
    fits = [threads // n, 65536 // (n * ((registers + 7) // 8 * 8)), 24]
    used = static + int(words[4])
    if used:
        fits.append(shared // (used + 1024))
    return max(1, min(fits))


def in_flight(words):
    """Bytes that a block has asked for while it computes: stages of four warps, or of a tile."""
    pack, shape = packs(words[0])
    if not shape:
        return 16 * int(words[3])
    unit = 16 * 256 * BITS[pack[0]] / 8                # sixteen rows, 256 columns
    return {"few1": 8, "deep1": 16, "deep2": 12, "wide2": 8, "wide4": 8, "many": 4}[shape] * unit


def per_byte(kernel, compiled):
    """Instructions of warps per byte of weights, from those per matrix instruction: a product takes one for 32 columns
    (K6: 16) of 16 rows of weights and 8 of x, and two in 256 columns for minima. 0: not known."""
    pack, shape = packs(kernel)
    instructions, mma = compiled[2], compiled[4]
    if not shape or not mma:
        return 0
    takes = {"k6": 16, "k4": 10, "k5": 10, "k2": 10}.get(pack[0], 8)
    if len(pack) == 2:                                 # their code and their weights, half and half
        takes = (takes + 16) / 2
    bits = sum(BITS[p] for p in pack) / len(pack)
    rows = {"few1": 1, "deep1": 1, "deep2": 2, "wide2": 2, "wide4": 4, "many": 8}[shape]
    return instructions / mma * takes * rows / (16 * 256 * bits / 8)


def look(card, kernels, launches, n):
    """T(n), least, fill, flight"""
    _, sms, rate, macs, latency, _, _, reach, _ = CARDS[card]
    total = least = full = 0
    flight = 9e9
    for words, times in launches.items():
        blocks, at_once = int(words[1]) * int(words[2]), resident(card, kernels[words[0]], words)
        waves = blocks / (sms * at_once)
        filled = waves / -(-blocks // (sms * at_once))
        data = weight_bytes(words)
        asked = min(at_once, -(-blocks // sms)) * in_flight(words) / (latency * rate / sms) if data else 1
        share = min(1, asked) * (filled if waves < 4 else 1) * reach
        compute = 2 * 1.07 * data / .56 * max(8, n) / macs if data else 0
        total += times * max(START, data / (rate * share) + START / 2, compute)
        least += times * data / rate
        if data:
            full += times * data * (filled >= .8 or waves >= 4)
            flight = min(flight, asked)
    return total, least, full / (least * rate), flight


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("shapes", metavar="SHAPE", nargs="*")
    args = parser.parse_args()
    folder, shapes = args.folder, args.shapes or list(LAYERS)
    for shape in shapes:
        if shape not in LAYERS:
            parser.error("shape '%s', expected one of %s" % (shape, " ".join(LAYERS)))
    os.makedirs(folder, exist_ok=True)
    print("estimates, not measurements; Q4_K_M, f16 keys and values, behind 4,096 tokens")
    for card, (arch, sms, *_) in CARDS.items():
        models = {shape: whole(folder, shape, sms) for shape in shapes}
        kernels = compiled(folder, arch)
        print("\n%s\n%-12s %4s %9s %9s %9s %6s %6s %6s" % (card, "shape", "n", "launches", "T(n) ms", "least ms",
                                                          "/T(1)", "fill", "flight"))
        for shape, rows in models.items():
            first = None
            for n in WIDTHS:
                t, least, fill, flight = look(card, kernels, rows[n], n)
                first = first or t
                print("%-12s %4d %9d %9.2f %9.2f %6.2f %6.2f %6.2f" % (shape, n, sum(rows[n].values()), 1e3 * t,
                                                                     1e3 * least, t / first, fill, flight))
        used = {w[0]: w for rows in models.values() for n in WIDTHS for w in rows[n] if weight_bytes(w)}
        print("%-24s %7s %9s %12s %16s %9s %9s" % ("kernel", "blocks", "registers", "conversions", "instructions",
                                                   "per byte", "of issue"))
        for name, words in sorted(used.items()):
            registers, _, instructions, conversions, mma = kernels[name]
            if mma:
                each = per_byte(name, kernels[name])
                print("%-24s %7d %9d %8.2f/mma %12.2f/mma %9.2f %9.2f" % (
                    name, resident(card, kernels[name], words), registers, conversions / mma, instructions / mma, each,
                    each * CARDS[card][2] / (ISSUE * CARDS[card][8] * CARDS[card][1])))


if __name__ == "__main__":
    main()
