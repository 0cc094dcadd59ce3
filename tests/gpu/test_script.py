#!/usr/bin/env python3
"""bench/gpu.sh without a GPU: what its steps run on the emulated driver that is cheap there, and how it divides work
among calls.

    python3 tests/gpu/test_script.py BUILD [-v] [Steps.test_name ...]

Needs ratoon, BUILD/libfake_cuda.so and BUILD/tests/test_gpu_instructions. The last line is 'N passed, N failed'."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/help"))
import report

BUILD = os.path.abspath(sys.argv.pop(1))
DEMO = {"qwen35-27b": "ratoon-demo-q8_0.gguf", "qwen35-0.8b": "ratoon-demo-q8_0.gguf",
        "dflash-qwen35-27b": "dflash-ratoon-demo-bf16.gguf"}


class Script(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.dir = self.folder / "results"
        self.dir.mkdir()
        self.env = dict(os.environ, RATOON_CUDA_DRIVER=os.path.join(BUILD, "libfake_cuda.so"), BUILD=BUILD,
                        LIMIT="480")
        for name in ("LLAMA_BENCH", "BACKEND", "MODELS", "TOKENS", "RATOON_EMU_DRY"):
            self.env.pop(name, None)

    def call(self, *steps, status=0, **env):
        done = subprocess.run(["bash", "bench/gpu.sh", str(self.dir)] + list(steps), cwd=ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=dict(self.env, **env))
        said = done.stdout.decode(errors="replace")
        self.assertEqual(done.returncode, status, said)
        return said

    def passed(self):
        return {p.stem for p in self.dir.glob("*.ok")}


class Steps(Script):
    """On the emulated driver."""

    def setUp(self):
        super().setUp()
        models = self.folder / "models"
        models.mkdir()
        for shape, file in DEMO.items():               # in place of models that take long to write
            shutil.copy(ROOT / "models/demo" / file, models / (shape + ".gguf"))
        self.dry = dict(MODELS=str(models), RATOON_EMU_DRY=os.path.join(self.folder, "listed"))

    def figures(self, name, rows):
        table, plot = self.dir / (name + ".csv"), self.dir / (name + ".svg")
        lines = table.read_text().splitlines()
        self.assertTrue(any(l.startswith("# commit: ") for l in lines), lines[:4])
        self.assertTrue(any(l.startswith("# machine: ") and "emulated GPU (sm_90)" in l for l in lines), lines[:6])
        self.assertGreater(len([l for l in lines if l and l[0] != "#"]), rows)
        if plot.exists():
            self.assertEqual(xml.dom.minidom.parse(str(plot)).documentElement.tagName, "svg")
        return plot.exists()

    def test_instructions(self):
        self.assertIn("instructions: passed", self.call("instructions"))
        self.assertEqual(self.passed(), {"instructions"})

    def test_verify(self):
        """By one of the ways: all take long on the emulated card."""
        program = self.folder / "build/ratoon"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\nexec %s \"$@\" --modes greedy --budget 8 --threads 1\n" % (ROOT / "ratoon"))
        program.chmod(0o755)
        self.assertIn("verify: passed", self.call("verify", TOKENS="2", PROMPTS="1", BUILD=str(program.parent)))

    def test_figures(self):
        """Nothing is computed: passes, rates and whole steps run as they are launched."""
        self.call("passes-qwen35-0.8b", "rates-qwen35-0.8b", "demo", **self.dry)
        for name, rows in (("qwen35-0.8b-f16", 20), ("qwen35-0.8b-q8_0", 20), ("qwen35-0.8b-rates", 2),
                           ("demo-passes", 8)):
            self.assertTrue(self.figures(name, rows), name)
        self.figures("demo-prompts", 3)
        self.call("steps-27b", **self.dry)
        self.figures("steps-27b", 3)
        self.assertEqual(self.passed(), {"passes-qwen35-0.8b", "rates-qwen35-0.8b", "demo", "steps-27b"})

    def test_missing(self):
        self.assertIn("run the step demo first", self.call("steps-27b", status=1, **self.dry))
        self.assertIn("'/none/llama-bench' is no program",
                      self.call("rates-qwen35-0.8b", status=1, LLAMA_BENCH="/none/llama-bench", **self.dry))
        self.assertIn("LLAMA_BENCH=.../llama-bench", self.call("rates-qwen35-0.8b", **self.dry))
        self.assertIn("no step 'memchek', expected some of build instructions", self.call("memchek", status=2))


class Calls(Script):
    """With programs that do nothing but what a test asks of them."""

    def setUp(self):
        super().setUp()
        (self.folder / "bin").mkdir()
        (self.folder / "build/tests").mkdir(parents=True)
        self.env.update(BUILD=str(self.folder / "build"), JOBS="1", PATH="%s:%s" % (self.folder / "bin", os.environ["PATH"]))
        (self.dir / "build.ok").touch()
        self.program("build/ratoon", "exit 0")
        for test in ("gpu_instructions", "cuda"):
            self.program("build/tests/test_" + test, "exit 0")
        self.program("build/tests/test_ops", "for c in ${3:-norm add}; do echo \"[       OK ] $c\"; done")

    def program(self, path, text):
        file = self.folder / path
        file.write_text("#!/bin/sh\n%s\n" % text)
        file.chmod(0o755)

    def test_goes_on(self):
        """A failure ends what depends on it, and the next call begins there."""
        self.program("build/tests/test_ops", "exit 3")
        said = self.call(status=1)
        self.assertIn("parity: FAILED", said)
        self.assertNotIn("== faults", said)
        self.assertEqual(self.passed(), {"build", "instructions"})
        self.program("build/tests/test_ops", "echo fine")
        said = self.call("parity", "faults")
        self.assertNotIn("== instructions", said)
        self.assertEqual(self.passed(), {"build", "instructions", "parity", "faults"})
        self.assertIn("fine", (self.dir / "parity.log").read_text())

    def test_no_longer_than_limit(self):
        self.program("build/tests/test_gpu_instructions", "sleep 100")
        self.assertIn("no end within the 2 s", self.call("instructions", status=1, LIMIT="2"))
        self.assertEqual(self.passed(), {"build"})

    def test_what_does_not_fit(self):
        said = self.call("instructions", "parity", status=75, LIMIT="100")
        self.assertIn("instructions: passed", said)
        self.assertRegex(said, "parity: takes up to 120 s, [0-9]+ s are left: call again")

    def test_sanitizers(self):
        none = {"PATH": "%s:/usr/bin:/bin" % (self.folder / "bin")}
        self.assertIn("a part of the CUDA toolkit): memcheck", self.call("memcheck", **none))
        self.program("bin/compute-sanitizer", "while [ $# -gt 0 ]; do last=$1; shift; done\n"
                     "echo \"looked at $last\"; [ ! -e %s/wrong ] || exit 9\n"
                     "[ ! -e %s/slow ] || sleep 16" % (self.folder, self.folder))
        self.assertIn("step parity, which has not run", self.call("memcheck", status=1))
        self.call("parity")
        (self.folder / "slow").touch()
        said = self.call("memcheck", status=75, LIMIT="20")
        (self.folder / "slow").unlink()
        self.assertIn("1 of 2 cases so far", said)
        self.assertNotIn("looked at add", said)
        (self.folder / "wrong").touch()
        said = self.call("memcheck", status=1)
        self.assertIn("in the case add", said)
        self.assertNotIn("looked at norm", said)
        (self.folder / "wrong").unlink()
        self.call("memcheck")
        self.assertIn("memcheck", self.passed())


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
