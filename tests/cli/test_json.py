#!/usr/bin/env python3
"""doc/json.md against the commands: every field that --json prints is documented with its type, and every documented
field is printed by one of the calls here.

    python3 tests/cli/test_json.py [-v] [Json.test_name ...]

RATOON and MAKE_TINY name the programs. The last line is 'N passed, N failed'."""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report
from mock_hub import MockHub
from scratch import RATOON, ROOT, TMP, path, write

MAKE_TINY = os.environ.get("MAKE_TINY", os.path.join(ROOT, os.environ.get("BUILD", "build"), "tests", "make_tiny"))
FAKE_CUDA = os.path.join(os.path.dirname(os.path.dirname(MAKE_TINY)), "libfake_cuda.so")
HOME = {"HOME": TMP, "XDG_CONFIG_HOME": TMP, "XDG_CACHE_HOME": TMP, "XDG_STATE_HOME": TMP, "HF_HOME": TMP}
# prints what llama-bench and llama-batched-bench print
FAKE = """import json
print(json.dumps([{"n_prompt": 0, "n_gen": 4, "avg_ts": 10.0, "n_threads": 1, "samples_ts": [10.0]},
                  {"n_prompt": 8, "n_gen": 0, "avg_ts": 80.0, "n_threads": 1, "samples_ts": [80.0]}]))"""
TYPES = {"string": str, "integer": int, "number": float, "bool": bool, "list": list, "object": dict, "null": type(None)}


def setUpModule():
    for name in "qwen3", "qwen3moe", "dflash-qwen3", "dflash-llama":
        subprocess.run([MAKE_TINY, name, TMP], check=True)
    os.mkdir(path("unfit"))
    os.link(path("qwen3.gguf"), path("unfit/qwen3.gguf"))
    os.link(path("dflash-llama-llama.gguf"), path("unfit/dflash-qwen3.gguf"))
    write("prompts.jsonl", '{"id": "a/1", "prompt": "hello hello hello"}\n{"id": "b/1", "prompt": "def f(x):"}\n')
    write("case.json", '{"messages": [{"role": "user", "content": "hello"}]}')
    write("fake.py", FAKE)


def documented():
    """{command: {field: set of types}} of the tables; sections begin with `## command`."""
    out, command = {}, None
    with open(os.path.join(ROOT, "doc", "json.md"), encoding="utf-8") as f:
        for line in f:
            if line.startswith("## "):
                command = out.setdefault(line[3:].strip(), {})
            cells = [c.strip() for c in line.split("|")]
            if command is None or len(cells) < 5 or not cells[1].startswith("`"):
                continue
            for field in re.findall(r"`([^`]+)`", cells[1]):
                command[field] = set(cells[2].split(" or "))
    return out


def fields(doc, value, name=""):
    """(documented name, value) of everything inside a value, down to values of any type."""
    if "any" in doc.get(name, ()):
        return
    if isinstance(value, dict):
        for key, x in value.items():
            inner = "%s.%s" % (name, key) if name else key
            yield from known(doc, x, inner if inner in doc or inner + "[]" in doc or name + ".*" not in doc else name + ".*")
    elif isinstance(value, list):
        for x in value:
            yield from known(doc, x, name + "[]")


def known(doc, x, name):
    """A list is documented by its elements."""
    yield (name + "[]" if isinstance(x, list) and name + "[]" in doc else name), x
    yield from fields(doc, x, name)


def matches(x, types):
    names = {"bool"} if isinstance(x, bool) else {"integer", "number"} if isinstance(x, int) else \
            {n for n, t in TYPES.items() if isinstance(x, t)}
    return "any" in types or bool(names & types)


class Json(unittest.TestCase):
    def call(self, *args):
        p = subprocess.run([RATOON, *args, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300,
                           env={**os.environ, **HOME})
        return p, json.loads(p.stdout)

    def compare(self, command, *calls, codes=(0,)):
        doc, seen = documented()[command], set()
        for args in calls:
            p, j = self.call(command, *args)
            self.assertIn(p.returncode, codes, p.stderr)
            self.assertEqual(p.stdout.count(b"\n"), 1)
            for field, x in fields(doc, j):
                self.assertIn(field, doc, "%s: not documented" % args)
                self.assertTrue(matches(x, doc[field]) or (isinstance(x, list) and field.endswith("[]")),
                                "%s: %s is %r, documented as %s" % (args, field, x, doc[field]))
                seen.add(field)
        self.assertEqual(set(doc) - seen, set(), "documented, but not printed")

    DENOISES = ["-m", os.path.join(ROOT, "models", "demo", "ratoon-diffusion-demo-q8_0.gguf"), "-q"]
    M = property(lambda self: ["-m", path("qwen3.gguf"), "-d", "none", "-q"])
    STORE = property(lambda self: ["-m", path("qwen3moe.gguf"), "-d", "none", "-q", "--expert-ram", "8M"])
    D = property(lambda self: ["-m", path("qwen3.gguf"), "-d", path("dflash-qwen3-llama.gguf"), "-q"])

    def test_run(self):
        self.compare("run", [*self.D, "-p", "hello", "-n", "4"], [*self.M, "-p", "hello", "-n", "4", "--chat"],
                     [*self.STORE, "-p", "hello", "-n", "4"])

    def test_text(self):
        self.compare("tokenize", ["-m", path("qwen3.gguf"), "-q", "-p", "hello"])
        self.compare("render", ["-m", path("qwen3.gguf"), "--input", path("case.json")])

    def test_inspect(self):
        self.compare("inspect", [path("qwen3.gguf")], ["--check-tensors", path("qwen3.gguf")])

    def test_models(self):
        """From a hub on this machine, where the published drafter of a model lies too."""
        demo = os.path.join(ROOT, "models", "demo")
        with open(os.path.join(ROOT, "share", "drafters.json"), encoding="utf-8") as f:
            pair = next(p for p in json.load(f)["pairs"] if p["drafters"][0]["quant"])
        drafter, repo = pair["drafters"][0], "acme/%s-GGUF" % pair["names"][0]
        with MockHub(path("repos")) as hub, unittest.mock.patch.dict(HOME, hub.env(TMP)):
            for to, file in ((repo + "/m-Q8_0.gguf", "ratoon-demo-q8_0.gguf"),
                             (repo + "/dflash-m.gguf", "dflash-ratoon-demo-bf16.gguf"),
                             ("%s/d-%s.gguf" % (drafter["repo"], drafter["quant"]), "dflash-ratoon-demo-bf16.gguf")):
                os.makedirs(os.path.dirname(hub.path(to)), exist_ok=True)
                shutil.copy(os.path.join(demo, file), hub.path(to))
            self.compare("pull", [repo + ":dflash-m.gguf"], ["--yes", repo])
            self.compare("models", [])

    def test_plan(self):
        with unittest.mock.patch.dict(HOME, RATOON_CUDA_DRIVER=FAKE_CUDA, RATOON_EMU_MEMORY=str(2 << 30),
                                      RATOON_EMU_CC="90,86"):
            self.compare("plan", self.D, [*self.M, "--backend", "cuda", "--parallel", "64", "--ctx", "1024k"],
                         [*self.D, "--backend", "cuda", "--gpu-layers", "auto"],
                         [*self.D, "--backend", "cuda:0+1"], self.STORE, codes=(0, 3))

    def test_doctor(self):
        with unittest.mock.patch.dict(HOME, RATOON_CUDA_DRIVER=FAKE_CUDA):
            self.compare("doctor", self.D, ["-q", "-m", path("unfit/qwen3.gguf")], self.STORE)

    def test_verify(self):
        self.compare("verify", [*self.D, "--prompts", path("prompts.jsonl"), "-n", "4", "--budget", "2", "--modes",
                                "greedy", "--threads", "1"])

    def test_eval(self):
        self.compare("eval", ["-m", path("qwen3.gguf"), "-q", path("prompts.jsonl")])

    def test_experts(self):
        model = ["-m", path("qwen3moe.gguf"), "-q"]
        self.compare("experts", [*model, "--prompts", path("prompts.jsonl"), "-n", "4", "--write-hotness",
                                 path("hot.csv")], [*model, "--hotness", path("hot.csv")])

    def test_bench(self):
        prompts = ["--prompts", path("prompts.jsonl"), "-n", "8", "--pairs", "1", "--ignore-eos"]
        other = ["--compare", "%s %s" % (sys.executable, path("fake.py")), "--pairs", "1"]
        self.compare("bench", [*self.D, "--passes", "1,8", "--repeats", "1", *other],
                     [*self.D, "--prompt-tokens", "8", "-n", "4", "--repeats", "1", *other],
                     [*self.D, "--budget", "4", *prompts, *other], [*self.M, "--ngram", "off", *prompts],
                     [*self.D, "--serve", "1", "-n", "4", "--pairs", "1"],
                     [*self.STORE, "--passes", "1", "--repeats", "1"], [*self.STORE, *prompts],
                     [*self.STORE, "--serve", "1", "-n", "4", "--pairs", "1"], [*self.DENOISES, *prompts],
                     [*self.DENOISES, "--prompt-tokens", "8", "--repeats", "1"],
                     ["--roofline", "--repeats", "1", "--threads", "1"])

    def test_every_command(self):
        """Whatever has --json has a section, and nothing else."""
        env = {**os.environ, **HOME}
        listed = subprocess.run([RATOON, "help"], stdout=subprocess.PIPE, env=env).stdout.decode()
        commands = re.findall(r"^  ([a-z]+)  ", listed, re.M)
        self.assertGreater(len(commands), 10)
        have = {c for c in commands
                if b"--json " in subprocess.run([RATOON, "help", c], stdout=subprocess.PIPE, env=env).stdout}
        self.assertEqual(have, set(documented()))

    def test_errors(self):
        for args, said in [(["run", "-m", path("absent.gguf"), "-p", "x"], "absent.gguf"),
                           (["inspect", path("absent.gguf")], "absent.gguf"),
                           (["plan", "-m", path("prompts.jsonl")], "prompts.jsonl"),
                           (["verify", *self.D, "--prompts", path("absent.jsonl")], "absent.jsonl"),
                           (["run", *self.M, "-p", "x", "-f", "y"], "-p, -f and --tokens")]:
            p, j = self.call(*args)
            self.assertNotEqual(p.returncode, 0)
            self.assertEqual(list(j), ["error"])
            self.assertIn(said, j["error"])
            self.assertIn(j["error"], p.stderr.decode())

    def test_errors_of_options(self):
        """Behind the mistake or before it, and where an option's value is only checked later."""
        config = write("config", "ctx = many\n")
        for args, said in [(["run", "--bogus"], "--bogus"), (["plan", "--ctx", "none"], "--ctx is 'none'"),
                           (["run", "--prompt"], "--prompt"), (["eval", "--prefill", "no"], "--prefill"),
                           (["tokenize", "one", "two", "three", "-p", "x"], "unexpected argument"),
                           (["run", "--config", config, "-p", "x"], "config:1: --ctx is 'many'"),
                           (["inspect"], "a FILE is needed"), (["pull"], "expected ORG/NAME")]:
            for line in ([args[0], "--json", *args[1:]], [*args, "--json"]):
                if args == ["run", "--prompt"] and line[-1] == "--json":
                    continue                               # there it is the prompt
                with self.subTest(line):
                    p = subprocess.run([RATOON, *line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, env={**os.environ, **HOME}, timeout=60)
                    self.assertEqual(p.returncode, 2, p.stderr)
                    j = json.loads(p.stdout)
                    self.assertEqual(list(j), ["error"])
                    self.assertIn(said, j["error"])
                    self.assertEqual(p.stderr.decode(), "ratoon %s: %s\n" % (args[0], j["error"]))
        for line in (["run", "--bogus"], ["run", "--bogus", "--", "--json"], ["serve", "--json"]):
            p = subprocess.run([RATOON, *line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env={**os.environ, **HOME}, timeout=60)
            self.assertEqual((p.returncode, p.stdout), (2, b""), line)


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
