#!/usr/bin/env python3
"""Compiles every kernel file for the chips that `make cuda` does not: old ones of NVIDIA by NVRTC 12.9 (a library, no
driver is needed), and AMD's by clang, without ROCm. Nothing is run.

    python3 tests/gpu/archs.py FOLDER      FOLDER/nvrtc: where pip has put NVRTC; compiled files go to FOLDER/archs

The last line is 'N passed, N failed', a file for one chip each; a compiler that is not there is named and skipped."""
import argparse
import concurrent.futures
import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KERNELS = sorted((ROOT / "src/backend/gpu").glob("*.cu")) + [ROOT / "tests/gpu/instructions.cu"]
INCLUDE = ["-I" + str(ROOT / "src"), "-I" + str(ROOT / "tests/gpu")]
OLD = ["60", "61", "70", "72"]
AMD = ["gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1201"]
CLANG = os.environ.get("CLANG", "clang-19")

# NVRTC has no files of a C library.
HEADERS = {
    "stdint.h": "typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long int64_t;"
                "typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned uint32_t;"
                "typedef unsigned long uint64_t; typedef unsigned long uintptr_t; typedef long intptr_t;\n",
    "stddef.h": "\n",
    "stdbool.h": "\n",
}


def nvrtc(folder):
    """The library, or None."""
    found = sorted(pathlib.Path(folder, "nvrtc").glob("nvidia/cuda_nvrtc/lib/libnvrtc.so.*"))
    return ctypes.CDLL(str(found[0])) if found else None


def text_of(lib, what, program):
    n = ctypes.c_size_t()
    getattr(lib, "nvrtcGet" + what + "Size")(program, ctypes.byref(n))
    text = ctypes.create_string_buffer(n.value)
    getattr(lib, "nvrtcGet" + what)(program, text)
    return text.raw


def compile_old(lib, out, path, arch):
    """What the compiler says; None: fine."""
    program = ctypes.c_void_p()
    strings = lambda items: (ctypes.c_char_p * len(items))(*[i.encode() for i in items])
    lib.nvrtcCreateProgram(ctypes.byref(program), path.read_bytes(), path.name.encode(), len(HEADERS),
                           strings(list(HEADERS.values())), strings(list(HEADERS)))
    flags = ["--gpu-architecture=sm_" + arch, "--fmad=false", "-std=c++17", "-default-device", *INCLUDE]
    failed = lib.nvrtcCompileProgram(program, len(flags), strings(flags))
    if not failed:
        (out / ("%s.sm_%s.cubin" % (path.stem, arch))).write_bytes(text_of(lib, "CUBIN", program))
    said = text_of(lib, "ProgramLog", program).rstrip(b"\0").decode() if failed else None
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    return said


def compile_amd(out, path, chip):
    run = subprocess.run([CLANG, "-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib",
                          "-std=c++17", "-O3", "-ffp-contract=off", "-Wall", "-Werror", "-Wno-unused-function",
                          "-Wno-pass-failed", "--offload-arch=" + chip, *INCLUDE,
                          "-o", str(out / ("%s.%s" % (path.stem, chip))), str(path)],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return run.stdout.decode() if run.returncode else None


def timed(name, work, *args):
    start = time.monotonic()
    said = work(*args)
    return name, said, time.monotonic() - start


def old_of_arch(folder, out, arch):
    """All files for one chip, in a process of its own: the library compiles one program at a time."""
    lib = nvrtc(folder)
    return [timed("%s sm_%s" % (k.stem, arch), compile_old, lib, out, k, arch) for k in KERNELS]


def amd_of_chip(out, chip):
    return [timed("%s %s" % (k.stem, chip), compile_amd, out, k, chip) for k in KERNELS]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    folder = parser.parse_args().folder
    out, waits, passed, failed = folder / "archs", [], 0, 0
    out.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        if nvrtc(folder):
            waits += [pool.submit(old_of_arch, folder, out, a) for a in OLD]
        else:
            print("skipped: sm_%s to %s, NVRTC 12.9 is not there (pip could not get tests/gpu/nvrtc.txt)"
                  % (OLD[0], OLD[-1]))
        missing = [t for t in (CLANG, CLANG.replace("clang", "ld.lld")) if not shutil.which(t)]
        if missing:
            print("skipped: %s to %s, no %s (packages clang-19, lld-19)" % (AMD[0], AMD[-1], " and no ".join(missing)))
        else:
            waits += [pool.submit(amd_of_chip, out, c) for c in AMD]
        for wait in concurrent.futures.as_completed(waits):
            for name, said, seconds in wait.result():
                print("%-24s %s %5.1f s" % (name, "failed" if said else "ok    ", seconds), flush=True)
                if said:
                    print(said)
                passed, failed = passed + (said is None), failed + (said is not None)
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
