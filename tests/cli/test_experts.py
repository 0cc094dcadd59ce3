#!/usr/bin/env python3
"""`ratoon experts` on small mixtures, the file that keeps its counts, and the skewed routes that bench/make_synthetic
writes.

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
    for name in "qwen3", "qwen3moe-16", "qwen35moe", "qwen35moe-mtp", "laguna":
        subprocess.run([MAKE_TINY, name, os.path.dirname(path("x"))], check=True)
    write("prompts.jsonl", "".join(json.dumps({"id": "t/%d" % i, "prompt": t}) + "\n" for i, t in enumerate(TEXTS)))


def experts(*args, code=0):
    p = subprocess.run([RATOON, "experts", "-q", *args], capture_output=True, text=True, timeout=300)
    assert p.returncode == code, (p.returncode, p.stderr)
    return p


def run(*args, code=0):
    return experts("--prompts", path("prompts.jsonl"), *args, code=code)


def read(name):
    with open(path(name), encoding="utf-8") as f:
        return f.read()


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


class Hotness(unittest.TestCase):
    def count(self, name, file, *args):
        return json.loads(run("-m", path(name + ".gguf"), "-n", "3", "--write-hotness", path(file), "--json",
                              *args).stdout)

    def show(self, name, file, *args):
        return json.loads(experts("-m", path(name + ".gguf"), "--hotness", path(file), "--json", *args).stdout)

    def rows(self, text):
        return [[int(x) for x in line.split(",")] for line in text.splitlines() if not line.startswith("#")]

    def test_counts_are_kept_and_add_up(self):
        j = self.count("qwen3moe-16", "a.csv")
        text = read("a.csv")
        self.assertEqual(text.splitlines()[0], "# hotness table: n_layer=4 n_expert=16 n_expert_used=4")
        self.assertIn("\n# model: bytes=%d name=" % os.path.getsize(path("qwen3moe-16.gguf")), text)
        calls = [layer["calls"] for layer in j["layers"]]
        self.assertEqual(self.rows(text), calls)
        shown = self.show("qwen3moe-16", "a.csv")
        self.assertEqual((shown["rows"], shown["hotness"]), (j["rows"], "a.csv"))
        for a, b in zip(shown["layers"] + [shown["mean"]], j["layers"] + [j["mean"]]):
            self.assertGreater(b.pop("again"), 0)
            self.assertEqual(a, b)
        self.assertEqual(self.count("qwen3moe-16", "a.csv")["layers"], self.count("qwen3moe-16", "b.csv")["layers"])
        self.assertEqual(self.rows(read("a.csv")), [[2 * x for x in row] for row in calls])
        self.assertEqual(self.show("qwen3moe-16", "a.csv")["rows"], 2 * j["rows"])

    def test_layers(self):
        """Layers without experts have zeros, the layer for multi-token prediction has no line."""
        self.count("laguna", "laguna.csv")
        rows = self.rows(read("laguna.csv"))
        self.assertEqual((len(rows), set(rows[0]), min(map(sum, rows[1:])) > 0), (6, {0}, True))
        self.assertEqual([x["layer"] for x in self.show("laguna", "laguna.csv")["layers"]], [1, 2, 3, 4, 5])
        j = self.count("qwen35moe-mtp", "mtp.csv")
        self.assertEqual(self.rows(read("mtp.csv")), [x["calls"] for x in j["layers"]])
        self.assertEqual(len(j["layers"]), 4)

    def test_of_other_programs(self):
        """Files without the line of the model, shown without loading it: a card that is not there is not missed."""
        rows = "0,0,0,0,0,0,0,0\n" + "8,4,2,2,0,0,0,0\n" * 3
        write("other.csv", "# hotness table: n_layer=4 n_expert=8 n_expert_used=2\n" + rows)
        svg = path("other.svg")
        out = experts("-m", path("qwen35moe.gguf"), "--hotness", path("other.csv"), "--svg", svg).stdout.splitlines()
        self.assertRegex(out[0], "90 % +most used$")
        self.assertEqual([line.split()[0] for line in out[1:5]], ["1", "2", "3", "mean"])
        self.assertRegex(out[1], r"^ +1 +4 +50\.0 % +50\.0 % +75\.0 % +1 +3 +4 +0 1 2 3$")
        self.assertEqual(out[5], "8 rows; each row uses 2 of 8 experts in 3 layers")
        xml.etree.ElementTree.parse(svg)
        write("other.csv", rows)
        self.assertEqual(self.show("qwen35moe", "other.csv", "--backend", "cuda:7")["rows"], 8)
        run("-m", path("qwen35moe.gguf"), "--backend", "cuda:7", code=1)
        write("other.csv", "0,0,0,0,0,0,0,0\n" * 4)
        self.assertEqual(self.show("qwen35moe", "other.csv", "--svg", svg)["rows"], 0)
        write("other.csv", rows.replace("8,4", "4294967300,4"))
        self.count("qwen35moe", "other.csv")               # and old calls fade
        self.assertLess(max(map(sum, self.rows(read("other.csv")))), 1 << 32)
        self.assertGreater(max(map(sum, self.rows(read("other.csv")))), 1 << 31)

    def test_refusals(self):
        self.count("qwen35moe", "mine.csv")
        before, model, mine = read("mine.csv"), path("qwen35moe.gguf"), path("mine.csv")
        for other in "laguna", "qwen3moe-16":              # before any prompt, none of which has room in the context
            self.assertNotIn("mine.csv", run("-m", path(other + ".gguf"), "--ctx", "2", code=1).stderr)
            for said in (experts("-m", path(other + ".gguf"), "--hotness", mine, code=1).stderr,
                         run("-m", path(other + ".gguf"), "--write-hotness", mine, "--ctx", "2", code=1).stderr):
                self.assertIn("mine.csv: line 3: belongs to the model 'tiny' of %d bytes" % os.path.getsize(model),
                              said)
        self.assertEqual(read("mine.csv"), before)
        write("cut.csv", before[:-1])
        for option in "--hotness", "--write-hotness":
            call = experts if option == "--hotness" else run
            self.assertIn("line 7 does not end", call("-m", model, option, path("cut.csv"), code=1).stderr)
        self.assertEqual(read("cut.csv"), before[:-1])
        self.assertIn("none.csv: there is no such file",
                      experts("-m", model, "--hotness", path("none.csv"), code=1).stderr)
        self.assertIn("its layers have no experts", experts("-m", path("qwen3.gguf"), "--hotness", mine, code=1).stderr)
        for out, source in (("--svg", "--hotness"), ("--write-hotness", "--prompts")):
            file = mine if source == "--hotness" else path("prompts.jsonl")
            self.assertIn("is an input", experts("-m", model, source, file, out, file, code=1).stderr)
        self.assertIn("qwen35moe.gguf: is an input", run("-m", model, "--write-hotness", model, code=1).stderr)
        self.assertIn("no-such", run("-m", model, "--write-hotness", "/no-such/x.csv", code=1).stderr)
        self.assertIn("--prompts with --write-hotness", run("-m", model, "--hotness", mine, code=2).stderr)
        self.assertIn("--write-hotness needs --prompts",
                      experts("-m", model, "--hotness", mine, "--write-hotness", mine, code=2).stderr)


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
