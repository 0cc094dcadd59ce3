#!/usr/bin/env python3
"""The CUDA backend as a whole on the emulated GPU: texts are the CPU's, speculation changes none, and a pass is few
launches.

    python3 tests/gpu/test_backend.py BUILD [-v] [Whole.test_name ...]

Needs ratoon, bench/make_synthetic, BUILD/tests/make_tiny and BUILD/libfake_cuda.so. The last line is 'N passed, N failed'."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/help"))
import report

BUILD = os.path.abspath(sys.argv.pop(1))
RATOON = os.environ.get("RATOON", str(ROOT / "ratoon"))
WIDTHS = [1, 8, 16, 32, 64]


def run(*command, **env):
    driver = os.path.join(BUILD, "libfake_cuda.so")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT,
                          env=dict(os.environ, RATOON_CUDA_DRIVER=driver, **env))
    if done.returncode:
        raise RuntimeError("%s\n%s" % (" ".join(command), done.stdout.decode(errors="replace")))
    return done.stdout.decode(errors="replace")


def tiny(folder, name):
    run(os.path.join(BUILD, "tests", "make_tiny"), name, folder)
    return os.path.join(folder, name.replace(":", "-") + ".gguf")


class Whole(unittest.TestCase):
    """Texts of both backends: plain, chains and trees, compared with the CPU's plain text."""

    def verify(self, folder, prompt, *options, order="0"):
        file = os.path.join(folder, "prompt.jsonl")
        pathlib.Path(file).write_text(json.dumps(prompt) + "\n")
        said = json.loads(run(RATOON, "verify", "-q", "--json", "--backend", "cpu,cuda", "--prompts", file, "--threads",
                              "1", *options, RATOON_EMU_ORDER=order))
        on_gpu = [w for w in said["ways"] if w["backend"] == "cuda"]
        self.assertEqual([w["differing"] for w in said["ways"]], [0] * len(said["ways"]), said["first_difference"])
        self.assertTrue(any(w["way"] == "plain" for w in on_gpu) and len(on_gpu) > 1)
        return max(w["accept_length"] for w in on_gpu)

    def test_mixtures(self):
        """Experts of one type and of several; a prompt longer than a chunk."""
        prompt = {"prompt": "one two three four, one two three four, one two three five; " * 2}
        with tempfile.TemporaryDirectory() as folder:
            for order, name in (("0", "qwen35moe:q4_k"), ("6", "qwen3moe-16:q6_k")):
                self.verify(folder, prompt, "-m", tiny(folder, name), "-d", "none", "-n", "12", "--budget", "8",
                            "--modes", "greedy", "--chunk", "48", order=order)

    def test_demo(self):
        """The demo pair: several passes of a prompt, trees, sampling; in two orders of threads and blocks."""
        lines = (ROOT / "models/demo/prompts/code.jsonl").read_text().splitlines()
        with tempfile.TemporaryDirectory() as folder:
            for order, budgets in (("0", "8,auto"), ("6", "22")):
                best = self.verify(folder, json.loads(lines[0]), "--special", "-n", "20", "--budget", budgets,
                                   order=order)
                self.assertGreater(best, 3)

    def test_types(self):
        """Keys and values of other types, and a prompt in small pieces."""
        line = json.loads((ROOT / "models/demo/prompts/code.jsonl").read_text().splitlines()[1])
        with tempfile.TemporaryDirectory() as folder:
            for keys, values in (("q8_0", "q5_1"), ("tq3_0", "q4_0")):
                self.verify(folder, line, "--special", "-n", "12", "--budget", "8", "--modes", "greedy", "-ctk", keys,
                            "-ctv", values, "--chunk", "32", order="1")


class Launches(unittest.TestCase):
    """Of a pass of Qwen3.5 in the mix of types Q4_K_M."""

    @classmethod
    def setUpClass(cls):
        cls.counts = {layers: cls.count(layers) for layers in (4, 8)}

    @classmethod
    def count(cls, layers):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "m.gguf")
            run(str(ROOT / "bench/make_synthetic"), "qwen35-0.8b", model, "--type", "Q4_K_M", "--layers", str(layers),
                "--no-vocab")
            return cls.passes(model)

    @staticmethod
    def passes(model):
        """The recorded launches of passes of 1 to 64 rows: lists of kernels."""
        with tempfile.TemporaryDirectory() as folder:
            listed = os.path.join(folder, "listed")
            run(RATOON, "bench", "-q", "-m", model, "-d", "none", "--backend", "cuda", "--passes", "1,8,16,32,64", "--after",
                "64", "--repeats", "1", RATOON_EMU_DRY=listed)
            passes, now = {}, []
            for line in pathlib.Path(listed).read_text().splitlines():
                words = line.split()
                if words[0] in ("sync", "replay"):
                    if any(k == "conv_rows" for k, _ in now):
                        passes[next(int(n) for k, n in now if k == "matmul_embed")] = [k for k, _ in now]
                    now = []
                else:
                    now.append((words[0], words[1]))
            return passes

    def test_layers(self):
        """Three layers of the delta net and one of attention more: 10 launches each, and 12."""
        self.assertEqual(sorted(self.counts[4]), WIDTHS)
        for rows in WIDTHS:
            few, many = self.counts[4][rows], self.counts[8][rows]
            self.assertEqual(many.count("conv_rows") - few.count("conv_rows"), 3)
            self.assertLessEqual(len(many) - len(few), 3 * 10 + 12, "%d rows: %s" % (rows, many))

    def test_mixtures(self):
        """A layer of the delta net with a mixture and a shared expert is 6 launches and 9, one of attention 8 and 9,
        and a pass makes one table of rotations. From router to router it is a layer."""
        with tempfile.TemporaryDirectory() as folder:
            passes = self.passes(tiny(folder, "qwen35moe:q4_k"))
        self.assertEqual(sorted(passes), WIDTHS)
        for rows, kernels in passes.items():
            at = [i for i, k in enumerate(kernels) if k == "experts_route"]
            layers = [b - a for a, b in zip(at, at[1:])]
            self.assertEqual(len(layers), 3)
            self.assertTrue(all(n <= most for n, most in zip(layers, (15, 15, 18))), "%d rows: %s" % (rows, kernels))

    def test_27b(self):
        """Its 64 layers are sixteen times such four."""
        for rows in WIDTHS:
            four = len(self.counts[8][rows]) - len(self.counts[4][rows])
            self.assertLessEqual(len(self.counts[4][rows]) + 15 * four, 680, "%d rows" % rows)


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
