#!/usr/bin/env python3
"""The ARM code on a machine of another kind: everything is compiled with Debian's cross compiler, and the kernel tests
and the demo pair run under qemu.

    python3 tests/cli/test_arm.py [-v] [TestName.test_name ...]

Builds into build-aarch64. The few libraries that ratoon needs are taken as Debian's arm64 packages, unpacked there and not installed, with
package lists of their own, so that nothing about this system changes. Where compiler, emulator or libraries cannot be had, it says so and
counts as skipped. The last line is 'N passed, N failed'."""
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build-aarch64"
LIBS = BUILD / "debian"
CC = "aarch64-linux-gnu-gcc"
QEMU = "qemu-aarch64"
DEVELOP = ["libjansson-dev", "libpcre2-dev", "libutf8proc-dev", "libxxhash-dev", "libcmocka-dev", "libmicrohttpd-dev",
           "libedit-dev", "libcurl4-openssl-dev", "libssl-dev", "liburing-dev", "zlib1g"]
TESTS = ["matmul", "ops", "math"]
LEVELS = ["portable", "neon", "i8mm"]
DEMO = ["-m", ROOT / "models/demo/ratoon-demo-q8_0.gguf", "-d", ROOT / "models/demo/dflash-ratoon-demo-bf16.gguf"]


def run(*args, **how):
    return subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)


def last_line(p):
    lines = (p.stderr.strip() or p.stdout.strip()).splitlines()
    return "%s: %s" % (os.path.basename(p.args[0]), lines[-1] if lines else "exit status %d" % p.returncode)


def fetch_libraries():
    """Returns None, or why the libraries cannot be had."""
    done = LIBS / "complete"
    if done.exists() and done.read_text().split() == DEVELOP:
        return None
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            return "no %s, which brings the arm64 libraries" % tool
    shutil.rmtree(LIBS, ignore_errors=True)
    for d in ("lists/partial", "archives/partial", "packages"):
        (LIBS / d).mkdir(parents=True)
    mine = run("dpkg", "--print-architecture").stdout.strip()
    settings = ["APT::Architectures::=" + mine, "APT::Architectures::=arm64", "Dir::State::Lists=%s/lists" % LIBS,
                "Dir::Cache=%s" % LIBS,
                "APT::Sandbox::User=", "Acquire::Retries=1", "Acquire::http::Timeout=30", "Acquire::https::Timeout=30"]
    options = [word for s in settings for word in ("-o", s)]
    p = run("apt-get", "-qq", *options, "update")
    if p.returncode:
        return last_line(p)
    depends = run("apt-cache", *options, "depends", "-i", *[d + ":arm64" for d in DEVELOP])
    libraries = [l for l in re.findall(r"Depends: (lib\S+:arm64)", depends.stdout) if not l.startswith("libc6")
                 and not l.endswith("-dev:arm64")]
    # the packages that these depend on, except the C library and the compiler's
    more = run("apt-cache", *options, "depends", "--recurse", "-i", *libraries)
    libraries = sorted({l for l in re.findall(r"^(lib\S+:arm64)$", more.stdout, re.M)
                        if not l.startswith(("libc6", "libgcc", "libcrypt"))} | set(libraries))
    p = run("apt-get", "-qq", *options, "download", *[d + ":arm64" for d in DEVELOP], *libraries, cwd=LIBS / "packages")
    if p.returncode:
        return last_line(p)
    for deb in sorted((LIBS / "packages").glob("*.deb")):
        p = run("dpkg-deb", "-x", deb, LIBS)
        if p.returncode:
            return last_line(p)
    for d in ("lists", "archives", "packages"):
        shutil.rmtree(LIBS / d)
    done.write_text(" ".join(DEVELOP))
    return None


def why_not():
    """Returns None if the tests can run here, else why not."""
    if platform.machine() in ("aarch64", "arm64"):
        return "this machine is ARM itself: make check has run this code"
    for tool in (CC, QEMU):
        if not shutil.which(tool):
            return "no %s (packages gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user)" % tool
    return fetch_libraries()


def on_arm(*args, cpu="max", **how):
    return run(QEMU, "-cpu", cpu, "-L", "/usr/aarch64-linux-gnu", "-E",
               "LD_LIBRARY_PATH=%s/usr/lib/aarch64-linux-gnu:%s/lib/aarch64-linux-gnu" % (LIBS, LIBS), *args, **how)



class Arm(unittest.TestCase):
    def check(self, p):
        self.assertEqual(p.returncode, 0, "%s\n%s%s" % (" ".join(p.args), p.stdout, p.stderr))
        return p.stdout

    def test_kernels(self):
        """Every level gives the same bits as portable."""
        for name, case in (("matmul", "*"), ("ops", "*"), ("math", "*levels_agree"), ("math", "*pinned")):
            self.check(on_arm(BUILD / "tests" / ("test_" + name), case))

    def test_same_text(self):
        """The demo pair writes on ARM, at every level, the text that it writes here."""
        for how in ([], ["--temp", "0.8", "--seed", "5"]):
            text = ["run", *DEMO, "-p", "def fib(n):\n", "-n", "24", *how]
            want = self.check(run(ROOT / "ratoon", *text))
            self.assertTrue(want.strip())
            for level in LEVELS:
                got = self.check(on_arm(BUILD / "ratoon", *text, "--backend", "cpu:" + level))
                self.assertEqual(got, want, "level %s, %s" % (level, how))

    def test_levels_chosen(self):
        """A processor gets the levels that it supports; the others are refused by name."""
        for cpu, has in (("cortex-a72", 1), ("cortex-a76", 2), ("max", 3)):
            for i, level in enumerate(LEVELS):
                p = on_arm(BUILD / "ratoon", "run", *DEMO, "-p", "x", "-n", "1", "--backend", "cpu:" + level, cpu=cpu)
                if i < has:
                    self.check(p)
                    continue
                self.assertNotEqual(p.returncode, 0)
                self.assertIn("cpu level: %s, but this processor has only %s" % (level, LEVELS[has - 1]), p.stderr)


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print("test_arm: skipped, " + reason)
        print("0 passed, 0 failed")
        sys.exit(0)
    made = ["%s/tests/test_%s" % (BUILD.name, t) for t in TESTS] + [BUILD.name + "/ratoon"]
    include, library = LIBS / "usr/include", LIBS / "usr/lib/aarch64-linux-gnu"
    p = subprocess.run(["make", "-j%d" % os.cpu_count(), "--no-print-directory", "BUILD=" + BUILD.name, "CC=" + CC,
                        "SAN=", "PART=7",
                        "CFLAGS=-O2 -g -isystem %s -isystem %s/aarch64-linux-gnu" % (include, include),
                        "LDFLAGS=-L%s -Wl,-rpath-link,%s:%s" % (library, library, LIBS / "lib/aarch64-linux-gnu"),
                        *made], cwd=ROOT)
    if p.returncode:
        sys.exit("test_arm: the aarch64 build failed")
    sys.exit(report.main(sys.modules[__name__]))
