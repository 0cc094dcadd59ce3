#!/usr/bin/env python3
"""What nvcc makes of the GPU kernels: nothing that rounds differently, nothing in slow local memory, no more registers
and shared memory than limits.txt allows.

    python3 tests/gpu/test_compiled.py [--all] [-v] [Compiled.test_name ...]     --all: for more architectures

NVCC names the compiler; else it is build/nvcc's or PATH's, and without one all is skipped. The last line is 'N passed,
N failed'."""
import concurrent.futures
import fnmatch
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/help"))
import report

FETCHED = ROOT / "build/nvcc/nvidia/cu13/bin/nvcc"
NVCC = os.environ.get("NVCC") or (str(FETCHED) if FETCHED.exists() else shutil.which("nvcc"))
# Of each kind of code path: gpu_cuda.h asks for 75, 80 and 90.
ARCHS = ["75", "86", "90", "120"] if "--all" in sys.argv else ["75", "90"]
FLAGS = ["-I" + str(ROOT / "src"), "-std=c++17", "-O3"]
FILES = sorted((ROOT / "src/backend/gpu").glob("*.cu"))
PROPERTIES = re.compile(r"Compiling entry function '(\w+)' for.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
                        r"(\d+) bytes spill loads.*?Used (\d+) registers(?:[^\n]*?(\d+) bytes smem)?", re.S)


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise RuntimeError("%s\n%s" % (" ".join(command), done.stdout.decode()))
    return done.stdout.decode()


class Compilation:
    """Of one file for one architecture: its PTX with and without the compiler's own fma, and what each kernel uses."""

    def __init__(self, folder, path, arch):
        self.path, self.arch, base = path, arch, os.path.join(folder, path.stem + arch)
        self.warned = run(NVCC, *FLAGS, "-fmad=false", "-arch=compute_" + arch, "-ptx", "-o", base + ".ptx", str(path))
        self.ptx = pathlib.Path(base + ".ptx").read_text()
        self.free = self.ptx
        if arch in ("75", "90"):
            run(NVCC, *FLAGS, "-fmad=true", "-arch=compute_" + arch, "-ptx", "-o", base + ".fmad", str(path))
            self.free = pathlib.Path(base + ".fmad").read_text()
        said = run(NVCC, "-arch=sm_" + arch, "-cubin", "-O3", "-Xptxas", "-v", "-o", base + ".cubin", base + ".ptx")
        self.kernels = {m[1]: [int(n or 0) for n in m.groups()[1:]] for m in PROPERTIES.finditer(said)}

    def __str__(self):
        return "%s, sm_%s" % (self.path.name, self.arch)


@functools.lru_cache()
def compiled():
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        waits = [pool.submit(Compilation, folder, f, a) for f in FILES for a in ARCHS]
        return [w.result() for w in waits]


def lines(ptx):
    """Without comments, which name the file it came from."""
    return [l for l in ptx.splitlines() if l.strip() and not l.startswith("//")]


LISTED = r"""
#include <stdio.h>
#include "backend/gpu/args.h"
int main(void)
{
#define X(name, threads, Args, shared) printf("%s %d %d\n", #name, (int) (threads), (int) (shared));
#include "backend/gpu/kernels.def"
    return 0;
}"""


@functools.lru_cache()
def listed():
    """{name: (threads, bytes of dynamic shared memory)} from kernels.def."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "listed.c"), os.path.join(folder, "listed")
        pathlib.Path(source).write_text(LISTED)
        run(os.environ.get("CC", "gcc"), "-std=gnu11", "-I" + str(ROOT / "src"), "-o", program, source)
        rows = [l.split() for l in run(program).splitlines()]
    return {name: (int(threads), int(shared)) for name, threads, shared in rows}


def limits():
    rows = [l.split() for l in (ROOT / "tests/gpu/limits.txt").read_text().splitlines() if l and l[0] != "#"]
    return [(pattern, int(registers), int(shared)) for pattern, registers, shared in rows]


def limit_of(name):
    return next((r, s) for pattern, r, s in limits() if fnmatch.fnmatch(name, pattern))


@unittest.skipUnless(NVCC, "no nvcc (make cuda fetches it)")
class Compiled(unittest.TestCase):
    def test_no_warnings(self):
        for c in compiled():
            self.assertEqual(c.warned, "", c)

    def test_every_listed_kernel_is_there(self):
        for arch in ARCHS:
            there = {k for c in compiled() if c.arch == arch for k in c.kernels}
            self.assertEqual(there, set(listed()), "sm_" + arch)

    def test_no_approximations(self):
        for c in compiled():
            found = [l for l in lines(c.ptx) if re.search(r"\.ftz\b|\.approx\b|\.full\b", l)]
            self.assertEqual(found, [], "%s: instructions that do not round correctly" % c)

    def test_no_fma_that_nobody_wrote(self):
        """Where the compiler may contract, it does so wherever an operation is not a wrapper's."""
        for c in compiled():
            ours, free = lines(c.ptx), lines(c.free)
            found = [pair for pair in zip(ours, free) if pair[0] != pair[1]][:4]
            self.assertEqual(found, [], "%s: float operations without a wrapper" % c)
            self.assertEqual(len(ours), len(free), c)

    def test_nothing_in_local_memory(self):
        for c in compiled():
            for name, (stack, stores, loads, _, _) in c.kernels.items():
                self.assertEqual((stack, stores, loads), (0, 0, 0), "%s %s: stack, spills" % (c, name))
            self.assertNotRegex(c.ptx, r"\.local\b", c)

    def test_limits(self):
        over = []
        for c in compiled():
            for name, (_, _, _, registers, shared) in c.kernels.items():
                most, most_shared = limit_of(name)
                threads, dynamic = listed()[name]
                if registers > most or shared > most_shared or registers * threads > 65536:
                    over.append("%s %s: %d registers of %d threads (limit %d), %d bytes (limit %d)"
                                % (c, name, registers, threads, most, shared, most_shared))
                # 99 KB is what a block may have on sm_86 and 120, 64 KB on sm_75.
                if shared + dynamic > (64 if c.arch == "75" else 99) << 10:
                    over.append("%s %s: %d bytes of shared memory" % (c, name, shared + dynamic))
        self.assertEqual(over, [])

    def test_limits_are_used(self):
        for pattern, _, _ in limits():
            self.assertTrue(any(fnmatch.fnmatch(n, pattern) for n in listed()), "limits.txt: nothing is " + pattern)


if __name__ == "__main__":
    if "--table" in sys.argv:                          # for limits.txt: the most that each kernel uses anywhere
        most = {}
        for c in compiled():
            for name, (_, _, _, registers, shared) in c.kernels.items():
                was = most.get(name, (0, 0))
                most[name] = max(was[0], registers), max(was[1], shared)
        for name, (registers, shared) in sorted(most.items()):
            print("%-28s %4d %6d" % (name, registers, shared))
        sys.exit(0)
    sys.exit(report.main(sys.modules[__name__]))
