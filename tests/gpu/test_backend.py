#!/usr/bin/env python3
"""The CUDA backend as a whole on the emulated GPU: texts are the CPU's, speculation changes none, and a pass is few
launches.

    python3 tests/gpu/test_backend.py BUILD [-v] [Whole.test_name ...]

Needs ratoon, bench/make_synthetic and BUILD/libfake_cuda.so. The last line is 'N passed, N failed'."""
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
        """The recorded launches of passes of 1 to 64 rows: lists of kernels."""
        with tempfile.TemporaryDirectory() as folder:
            model, listed = os.path.join(folder, "m.gguf"), os.path.join(folder, "listed")
            run(str(ROOT / "bench/make_synthetic"), "qwen35-0.8b", model, "--type", "Q4_K_M", "--layers", str(layers),
                "--no-vocab")
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

    def test_27b(self):
        """Its 64 layers are sixteen times such four."""
        for rows in WIDTHS:
            four = len(self.counts[8][rows]) - len(self.counts[4][rows])
            self.assertLessEqual(len(self.counts[4][rows]) + 15 * four, 680, "%d rows" % rows)


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
