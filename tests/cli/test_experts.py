#!/usr/bin/env python3
"""`ratoon experts` on small mixtures, and the skewed routes that bench/make_synthetic writes.

    python3 tests/cli/test_experts.py [-v] [Experts.test_name ...]

RATOON and MAKE_TINY name the programs. The last line is 'N passed, N failed'."""
import json
import os
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report
from scratch import RATOON, ROOT, path, write

MAKE_TINY = os.environ.get("MAKE_TINY", os.path.join(ROOT, os.environ.get("BUILD", "build"), "tests", "make_tiny"))
SYNTHETIC = os.path.join(ROOT, "bench", "make_synthetic")
os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
TEXTS = ["hello, hello, hello world", "def f(x):\n    return x", "The sun rises in the east; it sets in the west.",
         "1 2 3 5 8 13 21 34 55 89 144"]


def setUpModule():
    for name in "qwen3", "qwen3moe-16", "qwen35moe":
        subprocess.run([MAKE_TINY, name, os.path.dirname(path("x"))], check=True)
    write("prompts.jsonl", "".join(json.dumps({"id": "t/%d" % i, "prompt": t}) + "\n" for i, t in enumerate(TEXTS)))


def run(*args, code=0):
    p = subprocess.run([RATOON, "experts", "-q", "--prompts", path("prompts.jsonl"), *args], capture_output=True,
                       text=True, timeout=300)
    assert p.returncode == code, (p.returncode, p.stderr)
    return p


class Experts(unittest.TestCase):
    def check(self, name, layers, experts, used):
        """The numbers of a report agree with its counts, and its rows with the texts."""
        model = path(name + ".gguf")
        j = json.loads(run("-m", model, "-n", "6", "--ignore-eos", "--json").stdout)
        self.assertEqual((j["experts"], j["used"], j["prompts"]), (experts, used, len(TEXTS)))
        tokens = 0
        for text in TEXTS:
            tokenize = [RATOON, "tokenize", "-m", model, "-p", text]
            tokens += len(subprocess.run(tokenize, capture_output=True, text=True, check=True).stdout.split(","))
        self.assertEqual(j["generated"], 6 * len(TEXTS))
        self.assertEqual(j["rows"], tokens + 5 * len(TEXTS))
        self.assertEqual([x["layer"] for x in j["layers"]], list(range(layers)))
        for layer in j["layers"]:
            calls = sorted(layer["calls"], reverse=True)
            self.assertEqual(len(calls), experts)
            self.assertEqual(sum(calls), j["rows"] * used)
            self.assertEqual(layer["distinct"], sum(c > 0 for c in calls))
            for key, part in ("share_3", 0.03), ("share_12_5", 0.125), ("share_25", 0.25):
                n = max(1, int(part * experts + 0.5))
                self.assertAlmostEqual(layer[key], sum(calls[:n]) / sum(calls), places=6)
            for key, part in ("needed_50", 0.5), ("needed_80", 0.8), ("needed_90", 0.9):
                n = int(layer[key])
                self.assertGreaterEqual(sum(calls[:n]), part * sum(calls))
                self.assertLess(sum(calls[:n - 1]), part * sum(calls))
            self.assertTrue(0 < layer["again"] < 1)
        self.assertAlmostEqual(j["mean"]["share_25"], sum(x["share_25"] for x in j["layers"]) / layers, places=6)
        return j

    def test_counts(self):
        self.check("qwen3moe-16", 4, 16, 4)
        self.check("qwen35moe", 4, 8, 2)

    def test_the_same_for_every_chunk(self):
        """A row's route does not depend on the rows that travel with it."""
        texts = [json.loads(run("-m", path("qwen35moe.gguf"), "-n", "6", "--json", "--chunk", n, "-t", t).stdout)
                 for n, t in (("1", "1"), ("3", "2"), ("512", "2"))]
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(texts[0], texts[2])

    def test_text_and_picture(self):
        svg = path("experts.svg")
        out = run("-m", path("qwen3moe-16.gguf"), "-n", "1", "--svg", svg).stdout.split("\n")
        self.assertRegex(out[0], "^layer +distinct +top 3 % +top 12.5 % +top 25 % +50 % +80 % +90 % +again +most used$")
        self.assertEqual([line.split()[0] for line in out[1:6]], ["0", "1", "2", "3", "mean"])
        self.assertIn("each row uses 4 of 16 experts in 4 layers", out[6])
        root = xml.etree.ElementTree.parse(svg).getroot()
        texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
        for text in "Which experts texts use", "expert", "layer", "14", "3":
            self.assertIn(text, texts)

    def test_refusals(self):
        self.assertIn("qwen3.gguf: its layers have no experts (architecture qwen3)",
                      run("-m", path("qwen3.gguf"), code=1).stderr)
        self.assertIn("prompts.jsonl: is an input",
                      run("-m", path("qwen35moe.gguf"), "--svg", path("prompts.jsonl"), code=1).stderr)
        self.assertIn("no-such", run("-m", path("qwen35moe.gguf"), "--svg", "/no-such/x.svg", code=1).stderr)


class Skew(unittest.TestCase):
    def synthetic(self, *args):
        p = subprocess.run([SYNTHETIC, "qwen35moe-small", path("small.gguf"), *args], capture_output=True, text=True,
                           timeout=300)
        self.assertEqual(p.returncode, 0, p.stderr)
        return p.stderr

    def measured(self):
        return json.loads(run("-m", path("small.gguf"), "-n", "40", "--ignore-eos", "--temp", "1", "--json").stdout)

    def test_favourites(self):
        """The shares that make_synthetic simulates are those of texts, every layer has its own favourites, and without
        --skew calls are spread wider."""
        said = self.synthetic("--skew", "1.4")
        simulated = [int(x) / 100 for x in re.findall(r"takes? (\d+) %", said)]
        self.assertEqual(len(simulated), 3, said)
        j = self.measured()
        for key, share in zip(("share_3", "share_12_5", "share_25"), simulated):
            self.assertAlmostEqual(j["mean"][key], share, delta=0.1)
        self.assertGreater(simulated[2], 0.6)
        favourites = {layer["calls"].index(max(layer["calls"])) for layer in j["layers"]}
        self.assertGreater(len(favourites), 1)
        self.synthetic()
        even = self.measured()
        for key in "share_3", "share_12_5", "share_25":
            self.assertLess(even["mean"][key], j["mean"][key] - 0.1)

    def test_wrong(self):
        for args in (["qwen3-0.6b", path("x.gguf"), "--skew", "1"], ["qwen35moe-small", path("x.gguf"), "--skew", "0"],
                     ["qwen35moe-small", path("x.gguf"), "--skew", "x"], ["qwen35moe-small", path("x.gguf"), "--skew"]):
            p = subprocess.run([SYNTHETIC, *args], capture_output=True, text=True)
            self.assertEqual(p.returncode, 2, args)
            self.assertIn("--skew", p.stderr)


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
