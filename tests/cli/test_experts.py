#!/usr/bin/env python3
"""`ratoon experts` on small mixtures, the file that keeps its counts, what programs say and keep where memory holds only
some experts, and the skewed routes that bench/make_synthetic writes.

    python3 tests/cli/test_experts.py [-v] [Experts.test_name ...]

RATOON and MAKE_TINY name the programs. The last line is 'N passed, N failed'."""
import json
import os
import re
import resource
import signal
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
        self.assertLessEqual(max(map(sum, self.rows(read("other.csv")))), 1 << 22)
        self.assertGreater(max(map(sum, self.rows(read("other.csv")))), 1 << 21)

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


class Store(unittest.TestCase):
    """A mixture of whose experts memory holds only some: 25 of 64."""
    RAM = ["--expert-ram", "8M"]
    TEXT = "hello world"

    def setUp(self):
        """A folder of its own, as profiles lie beside the model."""
        self.folder = path(self.id().rsplit(".", 1)[1])
        os.makedirs(self.folder)
        self.model = os.path.join(self.folder, "m.gguf")
        os.link(path("qwen3moe-16.gguf"), self.model)
        self.profile = self.model + ".spark.csv"

    def ratoon(self, command, *args, code=0, **how):
        p = subprocess.run([RATOON, command, "-m", self.model, *args], stdin=subprocess.DEVNULL, capture_output=True,
                           text=True, errors="replace", timeout=300, **how)
        self.assertEqual(p.returncode, code, p.stderr)
        return p

    def run_json(self, *args):
        return json.loads(self.ratoon("run", "-q", "-d", "none", "-p", self.TEXT, "-n", "8", "--json", *args).stdout)

    def misses(self, *args):
        return self.run_json(*self.RAM, *args)["stats"]["expert_store"]["misses"]

    def read(self):
        with open(self.profile, encoding="utf-8") as f:
            return f.read()

    def totals(self):
        """Calls of each layer, by the profile."""
        return [sum(map(int, line.split(","))) for line in self.read().splitlines() if not line.startswith("#")]

    def tokens(self, text):
        p = subprocess.run([RATOON, "tokenize", "-q", "-m", self.model, "-p", text], capture_output=True, text=True,
                           check=True)
        return len(p.stdout.split(","))

    def test_figures(self):
        """They agree with each other, and the text is that of the whole model in memory."""
        whole, part = self.run_json(), self.run_json(*self.RAM)
        self.assertEqual(whole["tokens"], part["tokens"])
        self.assertIsNone(whole["stats"]["expert_store"])
        s = part["stats"]
        x = s["expert_store"]
        self.assertEqual(x["chosen"], 4 * 4 * (s["prompt_tokens"] - 1 + s["passes"]))
        reads = x["pinned_hits"] + x["ring_hits"] + x["misses"]
        for rate, part in ("pinned_rate", "pinned_hits"), ("ring_rate", "ring_hits"), ("miss_rate", "misses"):
            self.assertAlmostEqual(x[rate], x[part] / reads, places=6)
        self.assertGreater(x["misses"], 0)
        self.assertEqual((s["experts_missed"], s["experts_missed_bytes"]), (x["misses"], x["missed_bytes"]))
        self.assertEqual(x["missed_bytes"] % x["misses"], 0)       # all experts have the same size
        self.assertTrue(0 < x["pinned"] < x["slots"] < 64 and x["bytes"] <= 8 << 20, x)
        self.assertGreater(x["pack_s"], 0)

    def test_words(self):
        run = ["-d", "none", "-p", self.TEXT, "-n", "8"]
        start = r"memory holds \d+ experts at a time, in [\d.]+ MB \(all take 19 MB\); the others are read from the " \
                r"file when they are used \((io_uring|pread), \w+\)\n"
        said = self.ratoon("run", *run, *self.RAM, "--stats").stderr
        self.assertRegex(said, start)
        self.assertRegex(said, r"\nexperts in memory: [\d.]+ % of \d+ looked for were pinned, [\d.]+ % in the ring, "
                         r"[\d.]+ % missed\n  \d+ MB read from the file \(\w+, \w+\), [\d.]+ s waited for it \(\d+ % of "
                         r"the time\), [\d.]+ s packing; \d+ made room, \d+ came to stay\n")
        said = self.ratoon("chat", *run, *self.RAM, "--stats").stderr
        self.assertRegex(said, start)
        self.assertRegex(said, r"\nexperts: \d+ missed, \d+ MB read from the file, [\d.]+ s waited for it\n")
        said = self.ratoon("run", *run, "--stats").stderr
        self.assertNotIn("in memory", said)
        self.assertNotIn("memory holds", said)

    def test_sizes(self):
        """--spark-vram is --expert-ram where a plain number counts GiB."""
        self.assertEqual(self.run_json("--spark-vram", "0.0078125")["stats"]["expert_store"]["bytes"],
                         self.run_json(*self.RAM)["stats"]["expert_store"]["bytes"])
        self.assertIsNone(self.run_json("--spark-vram", "1")["stats"]["expert_store"])
        few, many = (self.run_json(*self.RAM, "--spark-slots", n)["stats"]["expert_store"] for n in "14")
        self.assertLess(few["slots"] - few["pinned"], many["slots"] - many["pinned"])
        for args, said in ((["--expert-ram", "8"], "--expert-ram is '8', expected auto, all, or memory with a unit"),
                           (["--spark-vram", "0"], "--spark-vram is '0'"), (["--spark-vram", "-1"], "is '-1'"),
                           (["--spark-vram", "8X"], "is '8X'"), (["--spark-vram", ""], "is ''")):
            self.assertIn(said, self.ratoon("run", "-p", "x", *args, code=2).stderr)
        self.assertIn("expected at least", self.ratoon("run", "-p", "x", "--expert-ram", "1K", code=1).stderr)

    def test_second_run_uses_the_profile(self):
        first = self.misses()
        self.assertEqual(os.listdir(self.folder), ["m.gguf"])      # nothing is kept unless asked
        self.assertEqual(self.misses("--spark"), first)
        rows = self.tokens(self.TEXT) - 1 + 8
        self.assertEqual(self.totals(), [4 * rows] * 4)
        self.assertLess(self.misses("--spark"), first)
        self.assertEqual(self.totals(), [8 * rows] * 4)
        before = self.read()
        self.assertLess(self.misses(), first)                      # it is read all the same
        self.assertEqual(self.read(), before)
        os.rename(self.profile, path("elsewhere.csv"))
        self.assertLess(self.misses("--expert-profile", path("elsewhere.csv")), first)
        self.assertEqual(read("elsewhere.csv"), before)
        self.misses("--spark", "--expert-profile", path("elsewhere.csv"))
        self.assertNotEqual(read("elsewhere.csv"), before)
        self.assertEqual(os.listdir(self.folder), ["m.gguf"])

    def test_not_kept(self):
        """What cannot be written, or is another model's, is said once and is no failure, unless it was named."""
        run = ["-d", "none", "-p", self.TEXT, "-n", "2", *self.RAM]
        def once(said, *args):
            self.assertEqual(len(re.findall("profile of (?:the experts|them) is", said)), 1, said)
            for part in args:
                self.assertIn(part, said)
        once(self.ratoon("run", *run, "--spark", "--expert-profile", "/no-such/x.csv").stderr, "/no-such/x.csv")
        os.mkdir(self.profile)
        once(self.ratoon("run", *run, "--spark").stderr, "left alone", self.profile)
        os.rmdir(self.profile)
        if os.getuid():
            os.chmod(self.folder, 0o555)
            once(self.ratoon("run", *run, "--spark").stderr, "is not kept", self.profile)
            os.chmod(self.folder, 0o755)
        other = "# model: bytes=1 name=other\n" + ("0," * 15 + "1\n") * 4
        with open(self.profile, "w", encoding="utf-8") as f:
            f.write(other)
        once(self.ratoon("run", *run, "--spark").stderr, "left alone", "belongs to the model 'other'")
        self.assertEqual(self.read(), other)
        self.assertIn("belongs to the model 'other'",
                      self.ratoon("run", *run, "--expert-profile", self.profile, code=1).stderr)
        dense = subprocess.run([RATOON, "run", "-m", path("qwen3.gguf"), "-d", "none", "-p", "x", "-n", "1", "--spark"],
                               capture_output=True, text=True, errors="replace", check=True)
        once(dense.stderr, "qwen3.gguf has no experts")
        self.assertFalse(os.path.exists(path("qwen3.gguf.spark.csv")))
        self.ratoon("run", "-q", "-d", "none", "-p", "x", "-n", "1", "--spark", "--expert-ram", "all")
        self.assertEqual(self.read(), other)
        os.remove(self.profile)
        said = "--spark: memory holds the whole model, so which experts are used is not counted"
        run = ["-d", "none", "-n", "1", "--expert-ram", "all"]
        self.assertEqual(self.ratoon("run", "-p", "x", *run, "--spark").stderr.count(said), 1)
        self.assertIn(said, self.ratoon("experts", "--prompts", path("prompts.jsonl"), "-n", "1", "--spark").stderr)
        self.assertNotIn("not counted", self.ratoon("run", "-p", "x", *run).stderr)
        self.assertFalse(os.path.exists(self.profile))

    def test_cut_while_writing(self):
        """Whatever becomes of the one that writes, the old file is there, or the new one, whole."""
        count = ["--prompts", path("prompts.jsonl"), "-n", "1", *self.RAM, "--spark"]
        self.ratoon("experts", "-q", *count)
        before, once = self.read(), self.totals()
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        self.assertIn("is not kept", self.ratoon("experts", *count, preexec_fn=limit).stderr)
        self.assertEqual(self.read(), before)
        for _ in range(5):                                 # killed as soon as there is another file beside it
            files = set(os.listdir(self.folder))
            p = subprocess.Popen([RATOON, "experts", "-m", self.model, "-q", *count], stdout=subprocess.DEVNULL)
            while p.poll() is None and set(os.listdir(self.folder)) <= files:
                pass
            p.kill()
            p.wait()
            times = self.totals()[0] // once[0]
            self.assertEqual(self.totals(), [times * x for x in once])
        self.ratoon("experts", "-q", *count)
        self.assertEqual(self.totals(), [(times + 1) * x for x in once])

    def test_calibrate(self):
        """Texts are read in pieces of 2,000 bytes, evenly spaced, at most 150, and nothing but what was named."""
        texts = os.path.join(self.folder, "texts")
        os.mkdir(texts)
        long = "".join("Line %d of a long text. " % i for i in range(90))
        self.assertTrue(2000 < len(long) < 4000)
        for name, text in (("a.txt", long), ("b.md", "Die Sonne geht im Osten auf."), ("c.dat", "x" * 9000),
                           (".d.txt", "hidden"), ("e.jsonl", '{"prompt": "one"}\n{"prompt": "two"}\n')):
            with open(os.path.join(texts, name), "w", encoding="utf-8") as f:
                f.write(text)
        own = self.tokens(self.TEXT) - 1 + 8
        said = self.ratoon("run", "-d", "none", "-p", self.TEXT, "-n", "8", *self.RAM, "--spark-calibrate", texts).stderr
        self.assertIn("calibrated with 5 of 5 pieces of text", said)
        pieces = [long[:2000], long[2000:], "Die Sonne geht im Osten auf.", "one", "two"]
        self.assertEqual(self.totals(), [4 * (sum(map(self.tokens, pieces)) + own)] * 4)
        os.remove(self.profile)
        # what two begin with in common is read once
        many = [("%03d" % i)[::-1] + ("ab" if i >= 200 else "") for i in range(400)]
        file = write("many.jsonl", "".join('{"prompt": "%s"}\n' % t for t in many))
        said = self.ratoon("run", "-d", "none", "-p", self.TEXT, "-n", "8", *self.RAM, "--spark-calibrate", file).stderr
        self.assertIn("calibrated with 150 of 400 pieces of text", said)
        self.assertEqual(self.totals(), [4 * (75 * self.tokens("000") + 75 * self.tokens("000ab") + own)] * 4)
        os.remove(self.profile)
        x = self.run_json(*self.RAM, "--spark-calibrate", os.path.join(texts, "b.md"))["stats"]["expert_store"]
        self.assertEqual(x["chosen"], 16 * own)                    # figures are those of the work alone
        run = ["-d", "none", "-p", "x", "-n", "1"]
        self.assertIn("nothing to learn", self.ratoon("run", *run, "--spark-calibrate", file).stderr)
        self.assertIn("/no-such: No such file", self.ratoon("run", *run, "--spark-calibrate", "/no-such", code=1).stderr)
        empty = os.path.join(self.folder, "empty")
        os.mkdir(empty)
        self.assertIn("has no texts", self.ratoon("run", *run, *self.RAM, "--spark-calibrate", empty, code=1).stderr)

    def test_plan(self):
        plan = lambda *args: json.loads(self.ratoon("plan", "-q", "-d", "none", "--json", *args).stdout)
        self.assertIsNone(plan()["experts"])
        x = plan(*self.RAM)["experts"]
        self.assertIsNone(x["profile"])
        self.assertGreater(x["disk_bytes_per_s"], 0)
        self.assertAlmostEqual(x["share"], x["ram_bytes"] / x["all_bytes"], places=6)
        shares = [r["share"] for r in x["rows"]]
        self.assertEqual(shares, sorted([0.25, 0.5, 0.75, 1.0, x["share"]]))
        for r in x["rows"]:
            self.assertEqual(r["hit_rate"], r["share"])            # as if all were used alike
            self.assertAlmostEqual(r["ram_bytes"], r["share"] * x["all_bytes"], delta=1)
        speeds = [r["plain_tok_s"] for r in x["rows"]]
        self.assertEqual(speeds, sorted(speeds))
        self.assertLess(speeds[0], speeds[-1])
        with open(self.profile, "w", encoding="utf-8") as f:
            f.write(("1,1,1,1,0,0,0,0,0,0,0,0,0,0,0,0\n" + "0," * 15 + "4\n") * 2)
        x = plan(*self.RAM)["experts"]
        self.assertEqual(x["profile"], "m.gguf.spark.csv")
        self.assertEqual([r["hit_rate"] for r in x["rows"]], [1.0] * 5)            # 10 of 64 experts are used
        lines = self.ratoon("plan", "-q", "-d", "none", *self.RAM).stdout
        self.assertRegex(lines.splitlines()[0], r": fits with 4\d % of the experts in memory; about [\d.]+ tokens/s plain")
        self.assertRegex(lines, r"\nexperts    [\d.]+ MB of 19 MB are in memory, the others are read from the file when")
        self.assertRegex(lines, r"the disk gives [\d.]+ [MG]B/s just now; which are used says the profile\n")
        self.assertRegex(lines, r"\n +4\.7 MB \( 25 %\) +100 %   [\d.]+\n")
        self.assertEqual(len(re.findall("this plan\n", lines)), 1)
        said = self.ratoon("doctor", "-q", "-d", "none", *self.RAM).stdout
        self.assertRegex(said, r"\nexperts    [\d.]+ MB of 19 MB are in memory, the others are read from the file, which "
                         r"gives [\d.]+ [MG]B/s just now")

    def test_bench(self):
        bench = lambda *args: self.ratoon("bench", "-q", "-d", "none", *self.RAM, *args).stdout
        self.assertRegex(bench("--passes", "1", "--repeats", "1"), r"[\d.]+ experts of a layer, [\d.]+ % of them missed\n")
        out = bench("--prompts", path("prompts.jsonl"), "-n", "2", "--pairs", "1")
        self.assertRegex(out, r"[\d.]+ % of experts missed\n")
        self.assertRegex(out, r"\nexperts in memory: [\d.]+ % of \d+ looked for were pinned")
        self.assertRegex(bench("--serve", "1", "-n", "2", "--pairs", "1"), r"experts read [\d.]+ per token, [\d.]+ % missed")


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
