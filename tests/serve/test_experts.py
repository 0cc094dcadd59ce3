#!/usr/bin/env python3
"""A server of a mixture of whose experts memory holds only some: its start, its log, /metrics, /props, and the profile
that it keeps.

    python3 tests/serve/test_experts.py [-v] [Experts.test_name ...]

RATOON and MAKE_TINY name the programs. The last line is 'N passed, N failed'."""
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helper import ROOT, Server, report
from scratch import path

MAKE_TINY = os.environ.get("MAKE_TINY", os.path.join(ROOT, os.environ.get("BUILD", "build"), "tests", "make_tiny"))
LOGGED = re.compile(r"/v1/completions 200 .*, experts (\d+) chosen, (\d+) of (\d+) looked for missed \(([\d.]+) %\), "
                    r"\d+ [MG]B read, \d+ ms waited\n")


def setUpModule():
    subprocess.run([MAKE_TINY, "qwen3moe-16", os.path.dirname(path("x"))], check=True)


class Experts(unittest.TestCase):
    def setUp(self):
        self.folder = path(self.id().rsplit(".", 1)[1])
        os.makedirs(self.folder)
        self.model = os.path.join(self.folder, "m.gguf")
        os.link(path("qwen3moe-16.gguf"), self.model)
        self.profile = self.model + ".spark.csv"

    def serve(self, *options):
        server = Server("-m", self.model, "-d", "none", "--ngram", "off", *options)
        self.addCleanup(server.stop)
        return server

    def complete(self, server, text):
        status, _, body = server.ask("POST", "/v1/completions", {"prompt": text, "max_tokens": 6, "ignore_eos": True})
        self.assertEqual(status, 200, body)
        return server.metrics()

    def calls(self):
        with open(self.profile, encoding="utf-8") as f:
            return sum(int(x) for line in f if line[0] != "#" for x in line.split(","))

    def test_figures(self):
        server = self.serve("--expert-ram", "8M", "--parallel", "1")
        self.assertRegex(server.log, r"memory holds \d+ experts at a time, in [\d.]+ MB \(all take 19 MB\)")
        before = server.metrics()
        m = self.complete(server, "hello world")
        server.expect(LOGGED.pattern)
        grown = lambda name: m["ratoon_expert_" + name] - before["ratoon_expert_" + name]
        reads = sum(grown(x) for x in ('hits_total{tier="pinned"}', 'hits_total{tier="ring"}', "misses_total"))
        chosen, missed, looked, share = LOGGED.search(server.log).groups()
        self.assertEqual((int(chosen), int(missed), int(looked)), (grown("chosen_total"), grown("misses_total"), reads))
        self.assertAlmostEqual(float(share), 100 * int(missed) / int(looked), delta=0.06)
        self.assertGreater(int(missed), 0)
        self.assertEqual(grown("read_bytes_total") % int(missed), 0)
        for name in "wait_seconds_total", "pack_seconds_total", "evictions_total", "promotions_total":
            self.assertGreaterEqual(grown(name), 0, name)
        self.assertGreater(grown("pack_seconds_total"), 0)
        buckets = [v for k, v in m.items() if k.startswith("ratoon_expert_read_seconds_bucket")]
        self.assertEqual(buckets, sorted(buckets))
        self.assertEqual(buckets[-1], m["ratoon_expert_read_seconds_count"])
        self.assertGreaterEqual(buckets[-1], m["ratoon_expert_misses_total"])
        x = server.json("/props")["experts"]
        self.assertEqual({k: type(v) for k, v in x.items()},
                         {"ram_bytes": int, "all_bytes": int, "slots": int, "pinned": int, "io": str, "profile": bool})
        self.assertEqual((m['ratoon_expert_slots{tier="pinned"}'], m['ratoon_expert_slots{tier="ring"}'],
                          m["ratoon_expert_ram_bytes"]), (x["pinned"], x["slots"] - x["pinned"], x["ram_bytes"]))
        self.assertFalse(x["profile"])
        server.stop()
        self.assertEqual(os.listdir(self.folder), ["m.gguf"])

    def test_all_in_memory(self):
        server = self.serve()
        m = self.complete(server, "hello world")
        server.expect("/v1/completions 200")
        self.assertNotIn("experts", server.log)
        self.assertEqual([k for k in m if "expert" in k], [])
        self.assertIsNone(server.json("/props")["experts"])

    def test_profile(self):
        """It is written behind the first request, then not for a minute, and at the end."""
        server = self.serve("--expert-ram", "8M", "--spark")
        self.complete(server, "hello world")
        m = self.complete(server, "another text")
        first = self.calls()
        self.assertLess(first, m["ratoon_expert_chosen_total"])
        m = self.complete(server, "a third one")
        self.assertEqual(self.calls(), first)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(self.calls(), m["ratoon_expert_chosen_total"])
        again = self.serve("--expert-ram", "8M")
        self.assertTrue(again.json("/props")["experts"]["profile"])

    def test_ends_while_it_learns(self):
        """Which would take minutes; what was learned so far is kept."""
        text = os.path.join(self.folder, "long.txt")
        with open(text, "w", encoding="utf-8") as f:
            f.write("".join("Line %d of a long text. " % i for i in range(20000)))
        server = Server("-m", self.model, "-d", "none", "--expert-ram", "8M", "--spark-calibrate", text, wait=False)
        self.addCleanup(server.stop)
        server.expect("calibrating: ")
        self.assertEqual(server.stop(), 0)
        self.assertNotIn("ready in", server.log)
        self.assertGreater(self.calls(), 0)

    def test_not_kept(self):
        server = self.serve("--expert-ram", "8M", "--spark", "--expert-profile", "/no-such/x.csv")
        for text in "hello", "world":
            self.complete(server, text)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(server.log.count("is not kept: /no-such/x.csv"), 1, server.log)


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
