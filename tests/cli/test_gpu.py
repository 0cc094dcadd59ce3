#!/usr/bin/env python3
"""Layers on a GPU and on the CPU, on the emulated driver: texts, what is refused, and what would fit.

    python3 tests/cli/test_gpu.py [-v] [TestName.test_name ...]

RATOON names the program (default: ./ratoon), BUILD the folder with libfake_cuda.so. The last line is 'N passed, N
failed'."""
import json
import os
import re
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report
from scratch import DEMO, RATOON, ROOT, path, write

DRIVER = os.path.join(ROOT, os.environ.get("BUILD", "build"), "libfake_cuda.so")
MAKE_TINY = os.environ.get("MAKE_TINY", os.path.join(ROOT, os.environ.get("BUILD", "build"), "tests", "make_tiny"))
HOME = path("home")
ENV = {**{k: v for k, v in os.environ.items() if not k.startswith(("HF_", "RATOON_", "XDG_"))}, "HOME": HOME,
       "XDG_CONFIG_HOME": HOME, "XDG_CACHE_HOME": HOME, "RATOON_CUDA_DRIVER": DRIVER}
GPU = ["--backend", "cuda"]
ALONE = ["-m", DEMO, "-d", "none", "--threads", "1"]
TWO = {**ENV, "RATOON_EMU_CC": "90,86"}            # cards
LITTLE = {**ENV, "RATOON_EMU_MEMORY": str(2 << 30)}
TOO_LONG = ["--ctx", "1024k"]                      # 2.1 GB of keys and values
FULL = {**ENV, "RATOON_EMU_TAKEN": str((8 << 30) - 1000000)}       # the card has a megabyte free, and leaves a 64th
CLOCKS = 128e9                                     # bytes per second that the emulated card's clocks allow


def short_model(name):
    """Trained for so few tokens that an emulated card checks it in a second."""
    subprocess.run([MAKE_TINY, name, os.path.dirname(path("x"))], check=True)
    file = path(name.replace(":", "-") + ".gguf")
    with open(file, "rb") as f:
        data = f.read()
    at = data.index(b".context_length") + len(b".context_length") + 4          # behind its type
    with open(file, "wb") as f:
        f.write(data[:at] + struct.pack("<I", 400) + data[at + 4:])


class Gpu(unittest.TestCase):
    def ratoon(self, *args, expect=0, env=ENV):
        p = subprocess.run([RATOON, *args], stdin=subprocess.DEVNULL, capture_output=True, env=env, timeout=300,
                           text=True, errors="replace")
        self.assertEqual(p.returncode, expect, "ratoon %s\n%s%s" % (" ".join(args), p.stdout, p.stderr))
        return p

    def plan(self, *args, expect=0, env=ENV):
        return json.loads(self.ratoon("plan", "--json", "-q", *ALONE, *args, expect=expect, env=env).stdout)

    def test_text(self):
        """With the demo's drafter, trees and all: the CPU's text for any number of layers."""
        run = lambda *args: self.ratoon("run", "--threads", "1", "-p", "The rain", "-n", "12", "--temp", "1", *args)
        want = run().stdout
        for n in "2", "auto", "all":
            p = run(*GPU, "--gpu-layers", n)
            self.assertEqual(p.stdout, want, n)
            self.assertIn(", %s of 8 layers on the GPU" % ("2" if n == "2" else "8"), p.stderr)
        p = run(*GPU, "-ngl", "0")
        self.assertEqual(p.stdout, want)
        self.assertNotIn("GPU", p.stderr)

    def test_auto(self):
        """Without --backend: the first card that can be used is, once a check has found that it computes what the CPU
        computes; another one is named, if it is the system's own."""
        folder, home = path("driver"), path("auto")
        os.makedirs(folder)
        os.makedirs(home)
        os.symlink(DRIVER, os.path.join(folder, "libcuda.so.1"))
        short_model("qwen35:q4_k")
        own = {**{k: v for k, v in ENV.items() if k != "RATOON_CUDA_DRIVER"}, "LD_LIBRARY_PATH": folder,
               "XDG_CACHE_HOME": home}
        model = ["-m", path("qwen35-q4_k.gguf"), "-d", "none", "--threads", "1", "--ctx", "200"]
        run = lambda env, *args: self.ratoon("run", *model, "-p", "one two", "-n", "4", *args, env=env)
        layers = re.compile(r", (\d+) of (\d+) layers on the GPU")
        checking = "checking once whether emulated GPU computes what the CPU computes (--backend cuda leaves it out)"
        want = run(ENV)
        self.assertNotIn("GPU", want.stderr)       # a driver that is named is for those who ask for it
        # on a card that computes something else: a note, the CPU, and nothing is remembered
        for i in range(2):
            p = run({**own, "RATOON_EMU_SPOILED": "rows_glu"})
            self.assertIn(checking, p.stderr)
            self.assertRegex(p.stderr, r"emulated GPU is not used \(--backend cpu ends this note\): cuda:0 does not "
                                       r"compute what the CPU computes: row 1 of 40 differs")
            self.assertNotRegex(p.stderr, layers)
            self.assertEqual(p.stdout, want.stdout)
        self.assertEqual(os.listdir(home), [])
        self.assertNotIn(checking, run({**own, "RATOON_EMU_SPOILED": "rows_glu"}, *GPU).stderr)
        doctor = lambda env: self.ratoon("doctor", *model, "--ctx", "128", env=env).stdout
        self.assertRegex(doctor({**own, "RATOON_EMU_SPOILED": "rows_glu"}),
                         r"\ngpu +emulated GPU, .*: --backend cuda:0, which did not pass its check\n")
        # plan takes it for granted
        p = self.ratoon("plan", *model, env=own)
        self.assertIn("layers", p.stdout)
        self.assertNotIn(checking, p.stderr)
        for i, args in enumerate([[], ["--backend", "auto"], ["--gpu-layers", "2"]]):
            p = run(own, *args)
            n, all = map(int, layers.search(p.stderr).groups())
            self.assertEqual(n, 2 if "2" in args else all)
            self.assertEqual(p.stdout, want.stdout)
            self.assertEqual(checking in p.stderr, i == 0)
        with open(os.path.join(home, "ratoon", "cards"), encoding="utf-8") as f:
            self.assertRegex(f.read(), r"^ratoon cards 1\n[0-9a-f]{16} \d+ emulated GPU, driver CUDA 13.0: qwen35-q4_k.gguf\n$")
        p = run({**own, "RATOON_EMU_GIVES": "100000"})         # others take its memory after the plan
        self.assertRegex(p.stderr, r"emulated GPU is not used .*: no device memory for \d+ bytes on emulated GPU\n")
        self.assertNotRegex(p.stderr, layers)
        self.assertEqual(p.stdout, want.stdout)
        self.assertRegex(doctor(own), r"\ngpu +emulated GPU, .*: --backend cuda:0, checked with this model\n")
        for new in True, False:                    # other kernels, so another check
            self.assertEqual(checking in run(own, "-ctk", "q8_0").stderr, new)
        for args in ["--backend", "cpu"], ["--gpu-layers", "0"], ["--no-repack"]:
            self.assertNotIn("GPU", run(own, *args).stderr, args)
        p = run({**own, "RATOON_EMU_CC": "89"})
        self.assertIn(checking, p.stderr)
        self.assertRegex(p.stderr, layers)
        p = run({**own, "RATOON_EMU_CC": "61"})
        self.assertIn("emulated GPU is not used (--backend cpu ends this note): cuda: emulated GPU is sm_61, expected a "
                      "card of sm_75 or newer", p.stderr)
        self.assertEqual(p.stdout, want.stdout)
        self.assertNotIn("GPU", run({**own, "RATOON_EMU_CC": "61"}, "--backend", "cpu").stderr)
        p = run({**own, "RATOON_EMU_CC": "61,90"})
        self.assertNotIn("sm_61", p.stderr)
        self.assertRegex(p.stderr, layers)
        self.assertEqual(p.stdout, want.stdout)

    def test_cards(self):
        """Over two cards: the CPU's text, a plan of each, and what one of them has no room for."""
        both = ["--backend", "cuda:0+1"]
        run = lambda *args, **how: self.ratoon("run", "--threads", "1", "-p", "The rain", "-n", "12", "--temp", "1", *args,
                                               **how)
        want = run().stdout
        for args, said in ([], ", 8 of 8 layers on cuda:0+1"), (["-ngl", "5"], ", 5 of 8 layers on cuda:0+1"), (
                ["-ngl", "1"], ", 1 of 8 layers on cuda:"):
            p = run(*both, *args, env=TWO)
            self.assertEqual(p.stdout, want, args)
            self.assertIn(said, p.stderr)
        one, j = self.plan(*GPU, "--ctx", "2048"), self.plan(*both, "--ctx", "2048", env=TWO)
        self.assertNotIn("cards", one["gpu"])
        cards = j["gpu"]["cards"]
        self.assertEqual([c["backend"] for c in cards], ["cuda:0", "cuda:1"])
        self.assertEqual(sum(c["layers"] for c in cards), 8)
        for what in "total_bytes", "free_bytes", "memory_bytes":
            self.assertEqual(j["gpu"][what], sum(c[what] for c in cards))
        for c in cards:
            self.assertEqual(c["total_bytes"], sum(p["bytes"] for p in j["parts"] if p.get("card") == c["backend"]))
        self.assertEqual({p["card"] for p in j["parts"] if p["gpu"]}, {"cuda:0", "cuda:1"})
        self.assertEqual(j["speed"]["bytes_per_s"], CLOCKS)
        out = self.ratoon("plan", *ALONE, *both, "--ctx", "2048", env=TWO).stdout
        self.assertRegex(out.splitlines()[0], r" of 2 GPUs' memory \(8 of 8 layers\), .* free: fits")
        self.assertRegex(out, r"\ntotal on cuda:0 .*\nfree memory of cuda:0 ")
        self.assertRegex(out, r"\ntotal on cuda:1 .*\nfree memory of cuda:1 ")
        for name, told in (("cuda:0+0", "expected each card once"), ("cuda:0+2", "device 2, expected 0 to 1"),
                           ("cuda:0+", "expected a number"), ("cpu:avx2+portable", "cpu:avx2+portable")):
            self.assertIn(told, run("--backend", name, expect=1, env=TWO).stderr)
        p = run(*both, "-mg", "1", "-ts", "3,1", env=TWO)
        self.assertIn("-ts: --backend cuda:N+M divides the layers by the GPUs' free memory; ignored", p.stderr)

    def test_unequal_cards(self):
        """Each holds what it has room for; what one lacks is refused with its name."""
        both, ctx = ["--backend", "cuda:0+1"], TOO_LONG          # two layers of the eight have keys and values
        whole = self.plan(*GPU, *ctx)["gpu"]["total_bytes"]
        memory = lambda *bytes: {**TWO, "RATOON_EMU_MEMORY": ",".join(map(str, bytes))}
        layers = lambda j: [c["layers"] for c in j["gpu"]["cards"]]
        even = layers(self.plan(*both, *ctx, env=memory(whole, whole)))
        more = layers(self.plan(*both, *ctx, env=memory(whole, whole * 2)))
        self.assertEqual(sum(even), 8)
        self.assertLess(more[0], even[0])
        short = memory(whole * 3 // 5, whole * 3 // 5)
        self.assertEqual(self.plan(*GPU, *ctx, env=short, expect=3)["verdict"], "does not fit")
        self.assertEqual(self.plan(*both, *ctx, env=short)["verdict"], "fits")
        little = memory(whole * 3 // 10, whole * 3 // 5)
        p = self.ratoon("run", *ALONE, *both, *ctx, "-p", "x", "-n", "1", expect=1, env=little)
        told = re.search(r"(\d+) of 8 layers and a context of 1048576 take .* of cuda:[01]'s memory, but .* are free; "
                         r"--gpu-layers (\d) would fit", p.stderr)
        fit = told.group(2)
        self.assertEqual(self.plan(*both, *ctx, "-ngl", fit, env=little)["verdict"], "fits")
        j = self.plan(*both, *ctx, "-ngl", str(int(fit) + 1), env=little, expect=3)
        self.assertIn(fit, [o["value"] for o in j["would_fit"] if o["option"] == "--gpu-layers"])
        p = self.ratoon("serve", *ALONE, *both, *ctx, "--port", "0", "--parallel", "1", expect=1, env=little)
        self.assertRegex(p.stderr, r"share take .*, but .* of cuda:[01]'s memory are free")
        # two small cards more than one that has room for all are no worse than it alone
        three = {**memory(496275764, 280604382, 288211262), "RATOON_EMU_CC": "90,90,90"}
        self.assertEqual(layers(self.plan("--backend", "cuda:0+1+2", "--ctx", "65536", env=three)), [8, 0, 0])

    def test_auto_takes_cards(self):
        """One card where it has room for all, all of them where it has not; each is checked before."""
        folder, home = path("two"), path("auto-two")
        os.makedirs(folder)
        os.makedirs(home)
        os.symlink(DRIVER, os.path.join(folder, "libcuda.so.1"))
        short_model("qwen35:q8_0")
        model = ["-m", path("qwen35-q8_0.gguf"), "-d", "none", "--threads", "1", "--ctx", "200"]
        own = {**{k: v for k, v in TWO.items() if k != "RATOON_CUDA_DRIVER"}, "LD_LIBRARY_PATH": folder,
               "XDG_CACHE_HOME": home}
        run = lambda env, *args: self.ratoon("run", *model, "-p", "one two", "-n", "4", *args, env=env)
        plan = lambda env, *args: json.loads(self.ratoon("plan", "--json", "-q", *model, *args, env=env).stdout)
        want = run(ENV).stdout
        p = run(own)
        self.assertRegex(p.stderr, r"(\d+) of \1 layers on the GPU")
        self.assertEqual((p.stderr.count("checking once"), p.stdout), (1, want))
        need = plan(own)["gpu"]["total_bytes"]
        short = {**own, "RATOON_EMU_MEMORY": str(need - (1 << 20))}
        j = plan(short)
        self.assertEqual([c["backend"] for c in j["gpu"]["cards"]], ["cuda:0", "cuda:1"])
        self.assertEqual(j["gpu"]["layers"], j["gpu"]["model_layers"])
        for i in range(2):                         # the other one is of another level, so it is checked, too, once
            p = run(short)
            self.assertRegex(p.stderr, r"(\d+) of \1 layers on cuda:0\+1")
            self.assertEqual((p.stderr.count("checking once"), p.stdout), (1 - i, want))
        doctor = self.ratoon("doctor", *model, "--ctx", "128", env=short).stdout
        self.assertRegex(doctor, r"--backend cuda:0, checked with this model\n.*: --backend cuda:1, checked with this")
        self.assertRegex(run(short, "--gpu-layers", "99").stderr, r"(\d+) of \1 layers on cuda:0\+1")
        p = run(short, "--gpu-layers", "2")        # as asked
        self.assertRegex(p.stderr, r", 2 of \d+ layers on the GPU")
        self.assertNotIn("cuda:", run({**short, "RATOON_EMU_CC": "90,61"}).stderr)
        # the first one is full: the next is checked and used, whether or not its check is known
        full = {**short, "RATOON_EMU_MEMORY": "20000000,8000000000", "XDG_CACHE_HOME": path("auto-full")}
        for i in range(2):
            p = run(full)
            self.assertRegex(p.stderr, r"(\d+) of \1 layers on (the GPU|cuda:1)")
            self.assertEqual((p.stderr.count("checking once whether emulated GPU (cuda:1) computes"), p.stdout), (1 - i, want))
        # a server takes both cards where that gives a longer context; offers are of the cards that were planned with
        all = self.plan(*GPU, "--parallel", "16", "--ctx", "4096")["gpu"]["total_bytes"]
        server = lambda *args: json.loads(self.ratoon("plan", "--json", "-q", *ALONE, *args, "--parallel", "16", env={
            **own, "RATOON_EMU_MEMORY": str(all)}).stdout)
        self.assertLess(server("--backend", "cuda:0")["ctx"], 4096)
        j = server()
        self.assertEqual((j["ctx"], [c["backend"] for c in j["gpu"]["cards"]]), (4096, ["cuda:0", "cuda:1"]))
        j = json.loads(self.ratoon("plan", "--json", "-q", *ALONE, "--ctx", "1024", "--gpu-layers", "7", expect=3,
                                   env={**own, "RATOON_EMU_MEMORY": "250000000"}).stdout)
        for o in j["would_fit"]:
            if o["option"] == "--gpu-layers":
                self.assertLess(int(o["value"]), 7)

    def test_kernels_for_this_machine(self):
        """make cuda CUDA_ARCHS=native: for each kind of card that nvidia-smi names, once."""
        folder = path("smi")
        os.makedirs(folder)
        smi = os.path.join(folder, "nvidia-smi")
        with open(smi, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\nprintf '12.0\\n8.9\\n8.9\\n'\n")
        os.chmod(smi, 0o755)
        make = lambda *args: subprocess.run(
            ["make", "-s", "--eval", "show:; @echo '$(CUDA_FOR)'", "show", *args], cwd=ROOT, capture_output=True,
            check=True, text=True, env={**ENV, "PATH": folder + os.pathsep + ENV["PATH"]}).stdout
        self.assertEqual(make("CUDA_ARCHS=native"), "89 120\n")
        self.assertEqual(make("CUDA_ARCHS=86"), "86\n")

    def test_auto_without_driver(self):
        """A driver that does not serve is named; that there is none is not worth a word."""
        env = {k: v for k, v in ENV.items() if k != "RATOON_CUDA_DRIVER"}
        run = lambda env: self.ratoon("run", *ALONE, "-p", "The rain", "-n", "2", env=env).stderr
        folder = path("other-driver")
        os.makedirs(folder)
        libraries = subprocess.run(["ldd", RATOON], stdout=subprocess.PIPE, check=True).stdout.decode()
        os.symlink(re.search(r"libm\.so\.6 => (\S+)", libraries).group(1), os.path.join(folder, "libcuda.so.1"))
        self.assertIn("the NVIDIA card is not used (--backend cpu ends this note): cuda: the driver libcuda.so.1 lacks",
                      run({**env, "LD_LIBRARY_PATH": folder}))

    def test_driver_without_emulation(self):
        """Where this build's kernels, or the lack of them, do not go with the driver, all that has to be done is said at
        once."""
        with open(os.path.join(ROOT, "src/backend/cuda/driver.h"), encoding="utf-8") as f:
            names = re.findall(r"^    X\((cu\w+),", f.read(), re.M)
        says = {"cuDriverGetVersion": "*(int *) a = 12020;", "cuDeviceGetCount": "*(int *) a = 1;",
                "cuDeviceGetAttribute": "*(int *) a = b == 75 ? 9 : 0;",
                "cuDeviceGetName": '__builtin_snprintf(a, b, "Card");'}
        source = write("card.c", "".join("int %s(void *a, long b) { (void) a, (void) b; %s return 0; }\n"
                                         % (name, says.get(name, "")) for name in names))
        folder = path("card")
        os.makedirs(folder)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", os.path.join(folder, "libcuda.so.1"), source], check=True)
        env = {**{k: v for k, v in ENV.items() if k != "RATOON_CUDA_DRIVER"}, "LD_LIBRARY_PATH": folder}
        told = r"CUDA 12\.2, expected CUDA (13\.0 \(NVIDIA's driver 580\)|12\.4 \(NVIDIA's driver 550\)) or newer$|" \
               r"built without GPU kernels; `make cuda` builds them, for NVIDIA's driver 580 \(CUDA 13\.0\) or newer, by " \
               r"an nvcc of CUDA 12 for 550 \(12\.4\); the driver here is for CUDA 12\.2$"
        p = self.ratoon("run", *ALONE, *GPU, "-p", "x", "-n", "1", env=env, expect=1)
        self.assertRegex(p.stderr, "(?m)" + told)

    def test_doctor(self):
        """A GPU that cannot be used is what the doctor finds, and not all that it says."""
        for env, gpu, told in (
                ({**ENV, "RATOON_CUDA_DRIVER": "/nonexistent/libcuda.so"}, [],
                 r"none: cuda: no NVIDIA driver here \(/nonexistent/libcuda\.so: .*\); in a container it takes NVIDIA's "
                 r"container toolkit and --gpus all"),
                ({**ENV, "RATOON_EMU_CC": "61"}, ["--gpu-layers", "2"],
                 r"emulated GPU, sm_61, .*: (cuda: emulated GPU is sm_61, .*)")):
            p = self.ratoon("doctor", *ALONE, *GPU, *gpu, env=env, expect=1)
            self.assertRegex(p.stdout, r"(?m)^gpu        %s$" % told)
            self.assertRegex(p.stdout, r"\nverdict: fits; .* tokens/s plain")
            self.assertRegex(p.stderr, r"\Aratoon doctor: cuda: .*; the rest is about the CPU\n\Z")
            j = json.loads(self.ratoon("doctor", "--json", *ALONE, *GPU, env=env, expect=1).stdout)
            self.assertEqual(j["verdict"], "fits")
        p = self.ratoon("doctor", *ALONE, "--backend", "cuda:3", expect=1)
        self.assertIn("cuda: device 3, expected 0 to 0; CUDA_VISIBLE_DEVICES may hide some; the rest is", p.stderr)
        self.assertRegex(p.stdout, r"(?m)^gpu        emulated GPU, sm_90, .*: --backend cuda:0$")
        self.assertEqual(self.ratoon("doctor", *ALONE, "--backend", "cuda:x", expect=1).stdout, "")

    def test_pinned(self):
        p = self.ratoon("run", *ALONE, *GPU, "-p", "x", expect=1, env={**ENV, "RATOON_EMU_PINS": "40000000"})
        self.assertRegex(p.stderr, r"\Aratoon run: cuda: no pinned memory for \d+ bytes of staging, which is main memory "
                                   r"that a card can read \(WSL limits it\)\n\Z")

    def test_experts(self):
        """Of a mixture whose experts are in main memory, but for some: the CPU's text, and a plan of both memories."""
        subprocess.run([MAKE_TINY, "qwen3moe-16:q6_k", os.path.dirname(path("x"))], check=True)
        model = ["-m", path("qwen3moe-16-q6_k.gguf"), "-d", "none", "--threads", "1", "--ctx", "200"]
        want = self.ratoon("run", *model, "-p", "one two", "-n", "12").stdout
        for size in "all", "1M", "auto":
            self.assertEqual(self.ratoon("run", *model, *GPU, "--expert-vram", size, "-p", "one two", "-n", "12").stdout,
                             want, size)
        parts = {}
        for size in "all", "1M":
            j = json.loads(self.ratoon("plan", "--json", "-q", *model, *GPU, "--expert-vram", size).stdout)
            parts[size] = {(p["name"], p["gpu"]): p["bytes"] for p in j["parts"]}
        some = parts["1M"]["experts", True]
        self.assertTrue(900000 < some <= 1 << 20, parts)
        self.assertGreater(parts["1M"]["experts for the GPU", False], 4 * some)
        self.assertLess(parts["1M"]["weights", True] + some, parts["all"]["weights", True])
        self.assertFalse([name for name, gpu in parts["all"] if name.startswith("experts")])
        self.assertIsNone(j["speed"])
        p = self.ratoon("run", *model, *GPU, "--expert-vram", "1M", "--stats", "-p", "one two", "-n", "12").stderr
        self.assertRegex(p, r"the others are read in main memory\n(.*\n)*.* 0\.0 % missed\n.* where the GPU read ")
        self.assertNotIn("read from the file", p)
        for io in "auto", "mmap":
            some = [*model, *GPU, "--expert-vram", "1M", "--expert-ram", "2500K", "--expert-io", io, "--stats"]
            p = self.ratoon("run", *some, "-p", "one two", "-n", "12")
            self.assertEqual(p.stdout, want)
            self.assertRegex(p.stderr, r"are read from the file when they are used \((.*\n)*.* where the GPU read .*\n"
                             r".* read from the file \(")
        j = json.loads(self.ratoon("plan", "--json", "-q", *model, *GPU, *some[-7:-1]).stdout)
        self.assertTrue(1 << 20 < j["experts"]["ram_bytes"] <= 2500 << 10, j)
        p = self.ratoon("run", *model, *GPU, "--expert-vram", "1M", "--expert-ram", "1M", "-p", "x", expect=1)
        self.assertIn("expert_ram: 1048576 bytes, expected at least ", p.stderr)
        p = self.ratoon("run", *model, *GPU, *some[-7:-1], "-ngl", "1", "-p", "x", expect=1)
        self.assertRegex(p.stderr, r"expert_ram: 2560000 bytes, of which the layers on cuda get \d+ bytes, expected at ")
        self.assertIn("--expert-vram: the backend is the CPU, whose experts are in main memory",
                      self.ratoon("run", *model, "--expert-vram", "1M", "-p", "x", "-n", "1").stderr)
        p = self.ratoon("run", *model, *GPU, "--expert-vram", "8K", "-p", "x", "-n", "1", expect=1)
        self.assertIn("expert_vram: 8192 bytes, expected at least ", p.stderr)

    def test_lost(self):
        """A card that is lost to the process ends what is being written, with a sentence that says what to do."""
        for name in "run", "chat":
            sign = path("lost-" + name)
            ask = [RATOON, name, *ALONE, *GPU, "--ctx", "2048", "-n", "1900", "--ignore-eos", "--temp", "0",
                   "-p", "Write a function that adds two numbers."]
            p = subprocess.Popen([a for a in ask if name == "run" or a != "--ignore-eos"], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**ENV, "RATOON_EMU_LOST": sign})
            p.stdout.read(1)
            write("lost-" + name, "")
            _, err = p.communicate(timeout=300)
            self.assertEqual(p.returncode, 1, err)
            self.assertRegex(err.decode(), r"(?m)^ratoon %s: cuda: .*700.*; the card's context is lost: start the "
                                           r"program again$" % name)

    def test_verify(self):
        with open(path("prompts.jsonl"), "w", encoding="utf-8") as f:
            f.write('{"prompt": "def f(x):"}\n')
        for backends, env in ("cpu,cuda", ENV), ("cpu,cuda:0+1", TWO):
            out = self.ratoon("verify", "--backend", backends, "-ngl", "3", "--prompts", path("prompts.jsonl"), "-n", "8",
                              "--budget", "8", "--modes", "greedy", "--threads", "1", "--json", env=env).stdout
            self.assertEqual([w for w in re.findall(r'"differing[a-z_]*":(\d+)', out) if w != "0"], [], out)

    def test_too_little(self):
        """What the plan offers is what run names, and it fits."""
        plan = lambda *args, **expect: self.plan(*GPU, *TOO_LONG, *args, **expect, env=LITTLE)
        j = plan(expect=3)
        self.assertEqual((j["verdict"], j["gpu"]["layers"]), ("does not fit", 8))
        self.assertGreater(j["gpu"]["total_bytes"], j["gpu"]["free_bytes"])
        n = [o["value"] for o in j["would_fit"] if o["option"] == "--gpu-layers"]
        p = self.ratoon("run", *ALONE, *GPU, *TOO_LONG, "-p", "x", "-n", "1", expect=1, env=LITTLE)
        self.assertRegex(p.stderr, r"^ratoon run: 8 of 8 layers and a context of 1048576 take [\d.]+ GB of the GPU's "
                                   r"memory, but [\d.]+ GB are free; --gpu-layers %s would fit\n$" % n[0])
        fits = plan("--gpu-layers", n[0])
        self.assertLess(fits["gpu"]["total_bytes"], fits["gpu"]["free_bytes"])
        more = plan("--gpu-layers", str(int(n[0]) + 2), expect=3)
        self.assertEqual(more["gpu"]["layers"], int(n[0]) + 2)
        self.assertEqual(plan("--gpu-layers", "auto")["gpu"]["layers"], int(n[0]))

    def test_less_than_it_says(self):
        """Where the card gives less than it has counted, the message has its name, and what to do."""
        ctx = ["--ctx", "200000"]                  # sessions take more than what loading needs for a while
        j = self.plan(*GPU, *ctx)
        model, session = [sum(p["bytes"] for p in j["parts"] if p["gpu"] and p["owner"] == owner)
                          for owner in ("model", "session")]
        ask = ["run", *ALONE, *GPU, *ctx, "-p", "x", "-n", "1"]
        for gives, what in ((model // 2, r"\S+\.gguf: weights"), (model + (200 << 20), "keys/values"),
                            (model + session + (1 << 20), "backend workspace")):
            for layers, auto in ("all", ", or auto"), ("auto", ""):
                p = self.ratoon(*ask, "--gpu-layers", layers, expect=1, env={**ENV, "RATOON_EMU_GIVES": str(gives)})
                self.assertRegex(p.stderr.splitlines()[-1], r"^ratoon run: (%s): no device memory for \d+ bytes on emulated "
                                 r"GPU; give fewer layers \(--gpu-layers below 8%s\), or end what else uses the GPU$"
                                 % (what, auto))
        server = [RATOON, "serve", *ALONE, *GPU, *ctx, "--port", "0", "--parallel", "1"]
        p = subprocess.run(server, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
                           env={**ENV, "RATOON_EMU_GIVES": str(gives)})
        self.assertEqual(p.returncode, 1)
        self.assertRegex(p.stderr, r"(?m): no device memory for \d+ bytes on emulated GPU; give fewer layers ")

    def test_tables(self):
        """Each part stands in the memory that it takes."""
        j = self.plan(*GPU, "--gpu-layers", "3", "--ctx", "8128")      # whole pages
        cpu = self.plan("--ctx", "8128")
        part = lambda j, name: {p["gpu"]: p["bytes"] for p in j["parts"] if p["name"] == name}
        split, whole = part(j, "keys/values"), part(cpu, "keys/values")
        self.assertEqual(sum(split.values()), whole[False])
        self.assertEqual(j["gpu"]["total_bytes"], sum(p["bytes"] for p in j["parts"] if p["gpu"]))
        self.assertEqual(j["total_bytes"], sum(p["bytes"] for p in j["parts"] if not p["gpu"]))
        self.assertIsNone(cpu["gpu"])
        out = self.ratoon("plan", *ALONE, *GPU, "--gpu-layers", "3", "--ctx", "2048").stdout
        self.assertRegex(out.splitlines()[0], r"of the GPU's memory \(3 of 8 layers\), [\d.]+ GB free: fits$")
        for line in "total on the GPU ", "free memory of the GPU ":
            self.assertIn("\n" + line, out)

    def test_speeds(self):
        """They are bounds by the card's clocks, and called so; where the driver does not know these, there are none."""
        ctx = ["--ctx", "256"]
        s = self.plan(*GPU, *ctx)["speed"]
        self.assertEqual((s["by_clocks"], s["bytes_per_s"]), (True, CLOCKS))
        self.assertIs(self.plan(*ctx)["speed"]["by_clocks"], False)
        out = self.ratoon("plan", *ALONE, *GPU, *ctx).stdout
        self.assertRegex(out.splitlines()[0], r": fits; up to \d+ tokens/s plain \(a bound, by the card's clocks\)$")
        self.assertIn("; emulated GPU reads 128.0 GB/s and computes 8.2 int8 Tops/s at most, by its clocks\n", out)
        self.assertNotIn("just now", out)
        out = self.ratoon("doctor", "-q", *ALONE, *GPU, *ctx).stdout
        self.assertNotIn("sm_", re.search(r"^machine .*$", out, re.M)[0])
        self.assertRegex(out, r"\ngpu  .*\n +emulated GPU reads 128\.0 GB/s and .* at most, by its clocks\n")
        self.assertRegex(out, r"\nspeed +[\d.]+ tokens/s plain \(up to \d+ by the card's clocks\)\n")
        j = json.loads(self.ratoon("doctor", "--json", "-q", *ALONE, *GPU, *ctx).stdout)["machine"]
        self.assertEqual((j["level"], j["by_clocks"], j["bytes_per_s"]), ("", True, CLOCKS))
        roofline = ["bench", "--roofline", "--repeats", "1", "-q", *GPU]
        j = json.loads(self.ratoon(*roofline, "--threads", "2", "--json").stdout)
        self.assertEqual([(r["threads"], r["bytes_per_s"]) for r in j["roofline"]], [(0, CLOCKS)])
        self.assertRegex(self.ratoon(*roofline).stdout, r"^.*, emulated GPU \(sm_90\) \(by the card's clocks\)\n"
                                                        r"the card +memory +128\.0 GB/s .*\n$")
        unknown = {**ENV, "RATOON_EMU_MEMORY_CLOCK": "0"}
        p = self.ratoon("plan", *ALONE, *GPU, *ctx, env=unknown)
        self.assertTrue(p.stdout.splitlines()[0].endswith(": fits"), p.stdout)
        self.assertIn("no speeds: cuda: the driver does not say the clocks of emulated GPU", p.stderr)
        self.assertIsNone(self.plan(*GPU, *ctx, env=unknown)["speed"])
        self.assertRegex(self.ratoon("doctor", *ALONE, *GPU, *ctx, env=unknown).stdout, r"\nspeed +[\d.]+ tokens/s plain\n")
        self.assertIn("does not say the clocks", self.ratoon(*roofline, expect=1, env=unknown).stderr)
        for kind in ["--passes", "1"], ["--prompt-tokens", "2", "-n", "2"]:
            args = ["bench", *kind, *ALONE, *GPU, "--repeats", "1", "--svg", path("limits.svg")]
            known, p = self.ratoon(*args), self.ratoon(*args, env=unknown)
            self.assertIn(" (by the card's clocks)\n", known.stdout)
            self.assertIn(" of the limit", known.stdout)
            self.assertNotRegex(p.stdout, "GB/s|limit|peak|inf|nan")
            self.assertIn("no limits: cuda: the driver does not say the clocks", p.stderr)
            with open(path("limits.svg"), encoding="utf-8") as f:
                self.assertNotRegex(f.read(), "limit:|inf|nan")

    def test_no_layer_fits(self):
        """Then the CPU runs the model, at its own speed, and the card's memory is still shown."""
        whole = self.plan(*GPU, "--ctx", "2048")
        self.assertEqual(whole["speed"]["bytes_per_s"], CLOCKS)
        for args, env in ["auto", FULL], ["0", ENV]:
            args = [*GPU, "--ctx", "2048", "--gpu-layers", args]
            speed = self.plan(*args, env=env)["speed"]
            self.assertNotIn(speed["bytes_per_s"], (0, CLOCKS), args)
            j = json.loads(self.ratoon("doctor", "--json", "-q", *ALONE, *args, env=env).stdout)
            self.assertNotIn(j["machine"]["bytes_per_s"], (0, CLOCKS), args)
            self.assertNotIn("sm_", j["machine"]["level"])
            bench = ["bench", "--passes", "1", "--repeats", "1", "-q", *ALONE]
            self.assertNotIn(json.loads(self.ratoon(*bench, "--json", *args, env=env).stdout)["bytes_per_s"], (0, CLOCKS))
        auto = [*ALONE, *GPU, "--ctx", "2048", "--gpu-layers", "auto"]
        said = ", on the CPU (no layer fits in the GPU's memory, 984 kB free): fits"
        out = self.ratoon("plan", *auto, env=FULL).stdout
        self.assertIn(said + "; about ", out.splitlines()[0])
        self.assertRegex(out, r"\nfree memory of the GPU +984 kB of 8\.6 GB\n")
        self.assertNotIn("total on the GPU", out)
        out = self.ratoon("doctor", *auto, env=FULL).stdout
        self.assertIn(said, out)
        self.assertIn(", sm_90, 8.6 GB, 1.0 MB free, driver for ", out)
        self.assertEqual(self.plan(*auto[len(ALONE):], env=FULL)["gpu"]["layers"], 0)

    def test_shared_memory(self):
        """What a card holds of the host's memory is counted there, once."""
        env = {**ENV, "RATOON_EMU_INTEGRATED": "1"}
        args = [*GPU, "--ctx", "2048", "--gpu-layers", "3"]
        own, shared = self.plan(*args), self.plan(*args, env=env)
        held = lambda j: sum(p["bytes"] for p in j["parts"] if p["owner"] != "process")
        self.assertEqual(held(shared), held(own))
        self.assertFalse([p for p in shared["parts"] if p["gpu"]])
        self.assertEqual(shared["total_bytes"], sum(p["bytes"] for p in shared["parts"]))
        self.assertEqual(shared["gpu"], {"total_bytes": 0, "free_bytes": 0, "memory_bytes": 0, "layers": 3, "model_layers": 8})
        first = self.ratoon("plan", "-q", *ALONE, *args, env=env).stdout.splitlines()[0]
        self.assertRegex(first, r"GB free, shared with the GPU \(3 of 8 layers\): fits$")
        run = ["run", *ALONE, "-p", "The rain", "-n", "4"]
        self.assertEqual(self.ratoon(*run, *args, env=env).stdout, self.ratoon(*run).stdout)

    def test_full_card(self):
        """A card without a byte free is full, and not one of which nothing is known."""
        full = {**ENV, "RATOON_EMU_TAKEN": str(8 << 30)}
        self.assertEqual(self.plan(*GPU, "--ctx", "256", expect=3, env=full)["verdict"], "does not fit")
        p = self.ratoon("run", *ALONE, *GPU, "--ctx", "256", "-p", "x", "-n", "1", expect=1, env=full)
        self.assertIn("of the GPU's memory, but 0 kB are free; no layer would: --backend cpu", p.stderr)

    def test_one_rule(self):
        """What auto leaves free of a card, a 64th, is left by everything."""
        ctx = ["--ctx", "2048"]
        need = self.plan(*GPU, *ctx)["gpu"]["total_bytes"]
        enough = {**ENV, "RATOON_EMU_MEMORY": str(need * 64 // 63 + 64)}
        short = {**ENV, "RATOON_EMU_MEMORY": str(need * 64 // 63 - 64)}
        run = ["run", *ALONE, *GPU, *ctx, "-p", "x", "-n", "1"]
        self.ratoon(*run, env=enough)
        p = self.ratoon(*run, expect=1, env=short)
        take, free = re.search(r"take (.*) of the GPU's memory, but (.*) are free; --gpu-layers 7 would fit", p.stderr).groups()
        self.assertNotEqual(take, free)
        p = self.ratoon("serve", *ALONE, *GPU, *ctx, "--port", "0", "--parallel", "1", expect=1, env=short)
        take, free = re.search(r"share take (.*), but (.*) of the GPU's memory are free", p.stderr).groups()
        self.assertNotEqual(take, free)
        self.ratoon(*run, "--overcommit", env=short)
        for env, layers, verdict, code in (enough, 8, "fits", 0), (short, 7, "does not fit", 3):
            self.assertEqual(self.plan(*GPU, *ctx, env=env, expect=code)["verdict"], verdict)
            self.assertEqual(self.plan(*GPU, *ctx, "-ngl", "auto", env=env)["gpu"]["layers"], layers)

    def test_offered_contexts(self):
        """They fit, although the card hands out pages: with 9160 tokens a session has just begun one."""
        many = [*GPU, "--parallel", "16"]
        for memory in range(780, 860, 5):
            env = {**ENV, "RATOON_EMU_MEMORY": str(memory * 1000000)}
            j = self.plan(*many, "--ctx", "9160", expect=3, env=env)
            ctx = [int(o["value"]) for o in j["would_fit"] if o["option"] == "--ctx"]
            self.assertTrue(len(ctx) == 1 and 1024 <= ctx[0] < 9160, j)
            self.plan(*many, "--ctx", str(ctx[0]), env=env)
            j = self.plan(*many, env=env)          # what the server chooses
            self.assertLessEqual(j["gpu"]["total_bytes"], j["gpu"]["free_bytes"])

    def test_server(self):
        """The context of a server's sessions goes by the GPU's memory, too."""
        j = self.plan(*GPU, "--parallel", "64", "-ctk", "f32", "-ctv", "f32", "--ctx", "200000", expect=3)
        self.assertIn("--ctx", [o["option"] for o in j["would_fit"]])


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
