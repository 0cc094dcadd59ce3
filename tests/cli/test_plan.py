#!/usr/bin/env python3
"""ratoon plan: its verdict, exit codes and fields, what it offers where a model does not fit, and models that are not
on this machine.

    python3 tests/cli/test_plan.py [-v] [TestName.test_name ...]

RATOON names the program (default: ./ratoon), BUILD the folder with libfake_cuda.so. The last line is 'N passed, N
failed'."""
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import report
from mock_hub import MockHub
from scratch import DEMO, RATOON, ROOT, TMP, path

DRIVER = os.path.join(ROOT, os.environ.get("BUILD", "build"), "libfake_cuda.so")
DRAFT = os.path.join(os.path.dirname(DEMO), "dflash-ratoon-demo-bf16.gguf")
HOME = path("home")
ENV = {**{k: v for k, v in os.environ.items() if not k.startswith(("HF_", "RATOON_", "XDG_"))}, "HOME": HOME,
       "XDG_CONFIG_HOME": HOME, "XDG_CACHE_HOME": HOME, "HF_HOME": HOME, "OLLAMA_MODELS": HOME}
PAIR = ["-m", DEMO, "-d", DRAFT]
MIB = 1 << 20


class Base(unittest.TestCase):
    def ratoon(self, *args, expect=0, room=0, env=None):
        """room: bytes of addresses that the process may take."""
        limit = (lambda: resource.setrlimit(resource.RLIMIT_AS, (room, room))) if room else None
        p = subprocess.run([RATOON, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           env={**ENV, **(env or {})}, timeout=300, text=True, errors="replace", preexec_fn=limit)
        self.assertEqual(p.returncode, expect, "ratoon %s\n%s%s" % (" ".join(args), p.stdout, p.stderr))
        return p

    def plan(self, *args, **how):
        return self.ratoon("plan", "-q", *args, **how).stdout

    def plan_json(self, *args, **how):
        return json.loads(self.plan("--json", *args, **how))


class Fits(Base):
    def test_verdict(self):
        first, *rest = self.plan(*PAIR, "--ctx", "2048").splitlines()
        self.assertRegex(first, r"^needs \d+ MB with 2K context, [\d.]+ [MGT]B free: fits; about [\d.]+ tokens/s plain, "
                                r"[\d.]+ to [\d.]+ with drafter dflash-ratoon-demo-bf16\.gguf \(estimate\)$")
        text = "\n".join(rest)
        for word in ("keys/values", "total", "free memory", "2K tokens (as given); the model was trained for 4K"):
            self.assertIn(word, text)
        self.assertNotIn("would fit", text)
        self.assertNotIn("drafter", self.plan("-m", DEMO, "-d", "none"))

    def test_json(self):
        j = self.plan_json(*PAIR)
        kinds = {"verdict": str, "total_bytes": int, "free_bytes": int, "memory_bytes": int, "ctx": int,
                 "ctx_given": bool, "ctx_train": int, "sessions": int, "model": str, "drafter": str,
                 "prefix_cache_bytes": int, "store_bytes": int, "download_bytes": int, "speed": dict,
                 "gpu": type(None), "experts": type(None), "parts": list, "would_fit": list}
        self.assertEqual({k: type(v) for k, v in j.items()}, kinds)
        self.assertEqual((j["verdict"], j["ctx"], j["ctx_given"], j["would_fit"]), ("fits", 4096, False, []))
        self.assertEqual(j["total_bytes"], sum(p["bytes"] for p in j["parts"]))
        s = j["speed"]
        self.assertIs(s.pop("by_clocks"), False)
        self.assertEqual({type(v) for v in s.values()}, {float})
        self.assertTrue(0 < s["plain_tok_s"] <= s["drafted_low_tok_s"] <= s["drafted_high_tok_s"])
        plain = self.plan_json("-m", DEMO, "-d", "none")
        self.assertIsNone(plain["drafter"])
        self.assertEqual((plain["speed"]["drafted_low_tok_s"], plain["speed"]["drafted_high_tok_s"]), (None, None))
        self.assertLess(plain["total_bytes"], j["total_bytes"])

    def test_sessions_of_a_server(self):
        one = self.plan_json(*PAIR, "--ctx", "2048")
        four = self.plan_json(*PAIR, "--ctx", "2048", "--parallel", "4", "--cache-ram", "100")
        part = lambda j, name: sum(p["bytes"] for p in j["parts"] if p["name"] == name)
        self.assertEqual(part(four, "keys/values"), 4 * part(one, "keys/values"))
        # a server's sessions have 8 checkpoints instead of 3, besides the state and one to write to
        self.assertEqual(part(four, "delta matrices"), 4 * part(one, "delta matrices") * 10 // 5)
        self.assertEqual((four["sessions"], four["prefix_cache_bytes"]), (4, 100 * MIB))
        self.assertEqual((one["sessions"], one["prefix_cache_bytes"]), (1, 0))
        out = self.plan(*PAIR, "--parallel", "2")
        self.assertIn("with 4K context for each of 2 sessions", out)
        self.assertRegex(out, "sessions   2, each .* the prefix cache takes up to [0-9.]+ [MG]B .* and stored responses ")

    def test_cache_of_a_server(self):
        """What fills as requests come is what the model and all sessions leave, and not all of that."""
        for room, ctx in (500 * MIB, []), (400 * MIB, ["--ctx", "16000"]), (8000 * MIB, []):
            j = self.plan_json(*PAIR, "--parallel", "2", *ctx, room=room)
            left = j["free_bytes"] - j["total_bytes"]
            self.assertTrue(0.8 * left < j["prefix_cache_bytes"] + j["store_bytes"] < 0.9 * left or
                            j["store_bytes"] == 256 * MIB, j)
            self.assertLess(j["prefix_cache_bytes"] + j["store_bytes"], left)
        j = self.plan_json(*PAIR, "--parallel", "2", "--cache-ram", "7", "--store-ram", "9")
        self.assertEqual((j["prefix_cache_bytes"], j["store_bytes"]), (7 * MIB, 9 * MIB))

    def test_context_beyond_the_model(self):
        self.assertIn("beyond what it was trained for", self.plan(*PAIR, "--ctx", "8192"))
        self.assertNotIn("beyond", self.plan(*PAIR, "--ctx", "4096"))


class DoesNotFit(Base):
    """--threads: the stacks of a thread for each of many cores would take the room."""
    ROOM = 400 * MIB
    ALONE = ["-m", DEMO, "-d", "none", "--threads", "2"]

    def test_verdict(self):
        out = self.plan(*self.ALONE, "--ctx", "1000000", room=self.ROOM, expect=3)
        self.assertRegex(out.splitlines()[0], r"^needs [\d.]+ GB with 1000000 context, \d+ MB free: does not fit$")
        self.assertRegex(out, r"\nwould fit: --ctx \d+, \d+ MB\n")

    def test_what_is_offered_fits(self):
        pair = ["-m", DEMO, "-d", DRAFT, "--threads", "2"]
        args = [*pair, "--ctx", "150000"]
        j = self.plan_json(*args, room=self.ROOM, expect=3)
        self.assertEqual((j["verdict"], j["speed"]), ("does not fit", None))
        self.assertGreater(j["total_bytes"], j["free_bytes"])
        offers = {}
        for o in j["would_fit"]:
            self.assertEqual({k: type(v) for k, v in o.items()}, {"option": str, "value": str, "total_bytes": int})
            offers.setdefault(o["option"], []).append(o["value"])
        self.assertIn("--ctx", offers)
        self.assertIn("q4_0", offers["--cache-type-k and --cache-type-v"])
        self.plan(*pair, "--ctx", offers["--ctx"][0], room=self.ROOM)
        for kind in offers["--cache-type-k and --cache-type-v"]:
            self.plan(*args, "-ctk", kind, "-ctv", kind, room=self.ROOM)
        self.plan(*pair, "--ctx", str(int(offers["--ctx"][0]) * 11 // 10), room=self.ROOM, expect=3)

    def test_run_says_the_same(self):
        """What the plan refuses, run refuses; what it offers, runs."""
        args = self.ALONE
        j = self.plan_json(*args, "--ctx", "1000000", room=self.ROOM, expect=3)
        self.ratoon("run", "-q", *args, "--ctx", "1000000", "-p", "x", "-n", "1", room=self.ROOM, expect=1)
        self.ratoon("run", "-q", *args, "--ctx", j["would_fit"][0]["value"], "-p", "x", "-n", "1", room=self.ROOM)

    def test_no_context_fits(self):
        out = self.plan(*self.ALONE, "--ctx", "100000", room=120 * MIB, expect=3)
        self.assertIn("it takes a smaller model", out)

    def test_errors_are_not_verdicts(self):
        self.plan("-m", path("absent.gguf"), expect=1)
        self.plan("--ctx", "-2", expect=2)


class Remote(Base):
    """Models that only the hub has."""
    REPO = "acme/Demo-GGUF"

    def setUp(self):
        self.hub = MockHub(path("repos"))
        self.hub.__enter__()
        self.addCleanup(self.hub.__exit__)
        self.addCleanup(shutil.rmtree, path("repos"), True)
        self.env = {**self.hub.env(HOME), "TMPDIR": TMP}
        for name, source in (("demo-Q8_0.gguf", DEMO), ("demo-Q2_K.gguf", None), ("demo-BF16.gguf", None)):
            file = self.hub.path(self.REPO, name)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            if source:
                shutil.copy(source, file)
            else:
                with open(file, "wb") as f:
                    f.truncate({"demo-Q2_K.gguf": 1 << 20, "demo-BF16.gguf": 1 << 30}[name])
        draft = self.hub.path("acme/Demo-DFlash-GGUF", "dflash-demo-bf16.gguf")
        os.makedirs(os.path.dirname(draft), exist_ok=True)
        shutil.copy(DRAFT, draft)

    def test_before_downloading(self):
        here = self.plan_json("-m", DEMO, "-d", "none", "--ctx", "1024")
        there = self.plan_json("-hf", self.REPO + ":Q8_0", "-d", "none", "--ctx", "1024", env=self.env)
        for key in ("verdict", "ctx", "ctx_train"):
            self.assertEqual(there[key], here[key])
        self.assertEqual(there["download_bytes"], os.path.getsize(DEMO))
        weights = lambda j: [p["bytes"] for p in j["parts"] if p["name"] == "weights"]
        self.assertEqual(weights(there), weights(here))
        self.assertLessEqual(sum(r.sent for r in self.hub.requests if "resolve" in r.path or r.server == "cdn"), 24 * MIB)
        self.assertEqual([f for f in os.listdir(TMP) if f.startswith("ratoon-plan-")], [])

    def test_with_its_drafter(self):
        out = self.plan("-hf", self.REPO + ":Q8_0", "-d", "hf:acme/Demo-DFlash-GGUF", env=self.env)
        self.assertRegex(out.splitlines()[0], r"fits; about .* with drafter acme/Demo-DFlash-GGUF \(estimate\)")
        size = (os.path.getsize(DEMO) + os.path.getsize(DRAFT)) / 1e6
        self.assertIn("download   %.0f MB" % size, out)

    def test_published_drafter(self):
        """The table names the drafter of a model that is not here. One that does not fit is left out."""
        repo, drafter = "unsloth/Qwen3-4B-GGUF", "AtomicChat/Qwen3-4B-DFlash-GGUF"
        for name, file, source in ((repo, "Qwen3-4B-Q8_0.gguf", DEMO), (drafter, "Qwen3-4B-DFlash-Q8_0.gguf", DRAFT)):
            file = self.hub.path(name, file)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            shutil.copy(source, file)
        j = self.plan_json("-hf", repo, env=self.env)
        self.assertEqual((j["verdict"], j["drafter"]), ("fits", drafter + ":Q8_0"))
        self.assertEqual(j["download_bytes"], os.path.getsize(DEMO) + os.path.getsize(DRAFT))
        shutil.copy(DEMO, self.hub.path(drafter, "Qwen3-4B-DFlash-Q8_0.gguf"))
        p = self.ratoon("plan", "--json", "-hf", repo, env=self.env)
        j = json.loads(p.stdout)
        self.assertEqual((j["drafter"], j["download_bytes"]), (None, os.path.getsize(DEMO)))
        self.assertIn("ignoring drafter Qwen3-4B-DFlash-Q8_0.gguf", p.stderr)

    def test_quants_that_would_fit(self):
        """With a context that takes 5 MB more than there is, the file that is 10 MB smaller fits."""
        args, room = ["-hf", self.REPO + ":Q8_0", "-d", "none", "--threads", "1"], 400 * MIB
        at = {n: self.plan_json(*args, "--ctx", str(n), room=room, env=self.env, expect=3) for n in (200000, 400000)}
        taken = {n: j["total_bytes"] for n, j in at.items()}
        token = (taken[400000] - taken[200000]) / 200000
        ctx = 200000 - (taken[200000] - at[200000]["free_bytes"] - 5e6) / token
        j = self.plan_json(*args, "--ctx", str(int(ctx)), room=room, env=self.env, expect=3)
        self.assertEqual([o["value"] for o in j["would_fit"] if o["option"] == "-hf"], [self.REPO + ":Q2_K"])

    def test_quants_that_a_gpu_has_room_for(self):
        """On a card that lacks 2 MB it is the file that is 10 MB smaller, however much main memory there is."""
        args = ["-hf", self.REPO + ":Q8_0", "-d", "none", "--threads", "1", "--backend", "cuda", "--ctx", "256"]
        env = {**self.env, "RATOON_CUDA_DRIVER": DRIVER}
        needs = self.plan_json(*args, env=env)["gpu"]["total_bytes"]
        for lacks, fit in (2000000, [self.REPO + ":Q2_K"]), (100000000, []):
            j = self.plan_json(*args, env={**env, "RATOON_EMU_MEMORY": str(needs - lacks)}, expect=3)
            self.assertEqual([o["value"] for o in j["would_fit"] if o["option"] == "-hf"], fit)

    def test_not_without_the_network(self):
        p = self.ratoon("plan", "-hf", self.REPO, "--offline", env=self.env, expect=1)
        self.assertIn("--offline", p.stderr.strip().splitlines()[-1])
        p = self.ratoon("plan", "-hf", "acme/absent", env=self.env, expect=1)
        self.assertIn("acme/absent", p.stderr.strip().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
