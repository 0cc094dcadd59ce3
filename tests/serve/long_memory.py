#!/usr/bin/env python3
"""A server of a mixture that is larger than its memory, under mixed requests for minutes: its own (anonymous) memory
stays within what `ratoon plan` says, and nothing grows. Part of make test-long.

    python3 tests/serve/long_memory.py [-v]

SECONDS says how long (default 600). Root: the server also lives in a control group that has just what is planned, so
that more would kill it. RATOON and SLOW are test_http.py's, MAKE_SYNTHETIC names that program. The last line is 'N
passed, N failed'."""
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helper import *
from scratch import path

SECONDS = int(os.environ.get("SECONDS", "600"))
MAKE_SYNTHETIC = os.environ.get("MAKE_SYNTHETIC", os.path.join(ROOT, "bench", "make_synthetic"))
MODEL = path("mixture.gguf")
OPTIONS = ["-d", "none", "--expert-ram", "400M", "--parallel", "3", "--cache-ram", "150"]
CLIENTS, CTX, SLACK, MIB = 5, 2048, 1.02, 2.0 ** 20
WORDS = "the value of this name is what it returns so each part can be read and kept by itself".split()


def setUpModule():
    subprocess.run([MAKE_SYNTHETIC, "qwen35moe-35b-a3b", MODEL, "--layers", "4", "--skew", "3.9"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def tearDownModule():
    os.unlink(MODEL)


class Group:
    """A control group that may take so many bytes, the page cache included."""

    def __init__(self, limit):
        v1 = os.path.isdir("/sys/fs/cgroup/memory")
        self.folder = "/sys/fs/cgroup/%sratoon-memory-%d" % ("memory/" if v1 else "", os.getpid())
        os.mkdir(self.folder)
        with open(os.path.join(self.folder, "memory.limit_in_bytes" if v1 else "memory.max"), "w", encoding="ascii") as f:
            f.write(str(limit))

    def remove(self):
        for _ in range(50):
            try:
                return os.rmdir(self.folder)
            except OSError:                        # its last process is on the way out
                time.sleep(0.1)


class Memory(unittest.TestCase):
    def own(self):
        with open("/proc/%d/status" % self.server.p.pid, encoding="ascii") as f:
            return int(re.search(r"RssAnon:\s+(\d+) kB", f.read()).group(1)) << 10

    def client(self, i, end):
        """Texts of all lengths, some with a beginning that others share, streamed or not, some given up half-way."""
        rng = random.Random(i)
        while time.monotonic() < end:
            head = WORDS * rng.choice((0, 1, 3, 8)) if rng.random() < 0.5 else []
            text = " ".join(head + rng.choices(WORDS, k=int(10 ** rng.uniform(0, 2.2))))
            body = {"prompt": text, "max_tokens": int(10 ** rng.uniform(0, 1.8)), "temperature": rng.choice((0, 1)),
                    "seed": rng.randrange(1000), "ignore_eos": True, "stream": rng.random() < 0.5}
            if rng.random() < 0.2:
                with self.server.connect(timeout=300) as s:
                    s.sendall(request("/v1/completions", {**body, "stream": True}))
                    s.recv(200)
                self.given_up += 1
                continue
            status, _, answer = self.server.post("/v1/completions", body, timeout=300)
            self.statuses[status] = self.statuses.get(status, 0) + 1
            if status not in (200, 429):
                self.wrong.append(answer)

    def test_stays_within_the_plan(self):
        plan = json.loads(subprocess.run([RATOON, "plan", "-q", "--json", "-m", MODEL, "--ctx", str(CTX), *OPTIONS],
                                         stdout=subprocess.PIPE, check=True).stdout)
        limit = int(SLACK * (plan["total_bytes"] + plan["prefix_cache_bytes"]))
        group = Group(limit) if os.geteuid() == 0 else None
        if group:
            self.addCleanup(group.remove)
        self.server = Server("-m", MODEL, *OPTIONS, "--queue-size", "8", "--ctx", str(CTX), "--quiet", wait=False,
                             group=group and group.folder)
        self.addCleanup(self.server.stop)
        self.assertTrue(self.server.wait_for(lambda: self.server.get("/health")[0] == 200))
        self.statuses, self.wrong, self.given_up = {}, [], 0
        end, seen = time.monotonic() + SECONDS, [self.own()]
        threads = [threading.Thread(target=self.client, args=(i, end)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            time.sleep(0.5)
            self.assertIsNone(self.server.p.poll(), "%.0f MiB of %.0f; %s"
                              % (seen[-1] / MIB, limit / MIB, self.server.log[-2000:]))
            seen.append(self.own())
        m = self.server.metrics()
        self.assertEqual(self.wrong, [])
        self.assertGreater(self.statuses.get(200, 0), SECONDS / 10)
        self.assertGreater(m["ratoon_expert_misses_total"], 1000)
        half = len(seen) // 2
        print("%d s: %s answers, %d given up, %d experts read; own memory %.0f MiB at most, %.0f in the first half; "
              "planned %.0f with the prefix cache%s"
              % (SECONDS, self.statuses, self.given_up, m["ratoon_expert_misses_total"], max(seen) / MIB,
                 max(seen[:half]) / MIB, limit / SLACK / MIB, ", and no more in its group" if group else ""), flush=True)
        self.assertLess(max(seen), limit)
        self.assertEqual(self.server.stop(), 0)


if __name__ == "__main__":
    if not os.access(MAKE_SYNTHETIC, os.X_OK):
        sys.exit("%s is needed (make bench/make_synthetic)" % MAKE_SYNTHETIC)
    sys.exit(main(sys.modules[__name__]))
