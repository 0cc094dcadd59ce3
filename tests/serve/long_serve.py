#!/usr/bin/env python3
"""The server for longer: connections that are held, thousands of random cancels, memory over many small requests, and the time to the first
token of a second turn. Part of make test-long.

    python3 tests/serve/long_serve.py [-v] [TestName.test_name ...]

REQUESTS (default 20000) and CANCELS (default 2000) say how long; MODEL is another file for the second turns than the demo pair's. The last line is 'N passed, N failed'."""
import http.client
import json
import os
import random
import resource
import sys
import shutil
import statistics
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helper import *

WORDS = "def value(self, name): return self.name "
REQUESTS, CANCELS = int(os.environ.get("REQUESTS", "20000")), int(os.environ.get("CANCELS", "2000"))


class Long(unittest.TestCase):
    def test_held_connections(self):
        """1,000 idle and 100 slow-reading connections, and a normal client between them."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        server = Server("--quiet", "--max-connections", "1500", "--queue-size", "200", "--write-timeout", "60", wait=False)
        server.wait_for(lambda: server.get("/health")[0] == 200, 30)
        alone = server.json(CHAT, chat("normal", max_tokens=20))["choices"]
        before = server.metrics()["ratoon_host_bytes"]
        held, start = [], time.time()
        for _ in range(1000):
            held.append(server.connect(timeout=60))
        for i in range(100):
            s = server.connect(receive=2048, timeout=60)
            s.sendall(request(CHAT, chat("slow %d" % i, stream=True, max_tokens=30, ignore_eos=True)))
            held.append(s)
        times = []
        while time.time() - start < 8:             # idle ones are closed after 10 s
            t = time.time()
            self.assertEqual(server.json(CHAT, chat("normal", max_tokens=20), timeout=60)["choices"], alone)
            self.assertEqual(server.get("/health")[0], 200)
            times.append(time.time() - t)
        grown = (server.metrics()["ratoon_host_bytes"] - before) / 1100
        print("held 1,100 connections: %.1f KiB each, normal client %.0f ms at most" % (grown / 1024, 1000 * max(times)))
        self.assertLess(grown, 64 << 10)
        for s in held:
            s.close()
        self.assertTrue(server.wait_for(lambda: server.json("/health?verbose=1")["connections"] < 10, 30))
        self.assertEqual(server.stop(), 0)

    def test_cancels(self):
        server = Server("--quiet", "--queue-size", "200", "--cache-ram", "64", wait=False)
        server.wait_for(lambda: server.get("/health")[0] == 200, 30)

        def some(n, seed):
            r = random.Random(seed)
            for _ in range(n):
                s = server.connect()
                s.sendall(request(CHAT, chat("x%d " % r.randrange(50) * r.randint(1, 200), stream=r.random() < 0.5, max_tokens=r.randint(1, 300), ignore_eos=True)))
                time.sleep(r.random() * 0.04)
                (reset if r.random() < 0.5 else lambda x: x.close())(s)

        def settle():
            self.assertTrue(server.wait_for(server.idle, 60))
            self.assertTrue(server.wait_for(lambda: server.json("/health?verbose=1")["connections"] == 1, 30))
            return server.descriptors(), server.threads()

        some(50, 1)
        before, memory = settle(), server.metrics()["ratoon_host_bytes"]
        threads = [threading.Thread(target=some, args=(CANCELS // 8, i)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        after = settle()
        self.assertTrue(all(a <= b for a, b in zip(after, before)), (before, after))
        print("%d cancels: memory grew by %.1f MiB" % (CANCELS, (server.metrics()["ratoon_host_bytes"] - memory) / 2 ** 20))
        self.assertEqual(server.stop(), 0)

    def test_memory(self):
        """Own memory, resident and swapped, by the number of small distinct requests: its slope after a beginning."""
        server = Server("--quiet", "--cache-ram", "0", wait=False)
        server.wait_for(lambda: server.get("/health")[0] == 200, 30)
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        points = []
        for i in range(REQUESTS):
            c.request("POST", CHAT, json.dumps(chat("number %d" % i, max_tokens=2, stream=i % 2 == 0)))
            self.assertEqual(c.getresponse().read()[:1] in (b"{", b"d"), True)
            if i % 100 == 0 and i >= min(1000, REQUESTS // 4):
                points.append((i, server.metrics()["ratoon_host_bytes"]))
        n = len(points)
        mx, my = sum(p[0] for p in points) / n, sum(p[1] for p in points) / n
        slope = sum((x - mx) * (y - my) for x, y in points) / sum((x - mx) ** 2 for x, _ in points)
        print("%d requests: %.0f bytes each, %.1f MiB in all" % (REQUESTS, slope, (points[-1][1] - points[0][1]) / 2 ** 20))
        self.assertLess(slope, 100)
        c.close()
        self.assertEqual(server.stop(), 0)

    def test_second_turn(self):
        """A second turn on a conversation of 4,000 tokens begins in a twentieth of the cold time, in its session and from memory. The first one
        after a restart has a tenth: the demo model computes tokens about as fast as a file is read and checked."""
        folder = tempfile.mkdtemp(prefix="ratoon-serve-")
        options = ["--ctx", "4096", "--parallel", "1", "--cache-dir", folder] + (["-m", os.environ["MODEL"]] if "MODEL" in os.environ else [])
        server = self.ready(options)
        cold, times = [], {"session": [], "memory": [], "disk": []}
        try:
            for i, how in enumerate(list(times) * int(os.environ.get("ROUNDS", "3"))):
                talk = [{"role": "system", "content": "Part %d. " % i}, {"role": "user", "content": "Go on. "}]
                have, step = (self.prompt_tokens(server, talk, n) for n in (0, 100))
                talk[0]["content"] += WORDS * ((3950 - have) * 100 // (step - have))
                seconds, text, usage = self.first_token(server, talk)
                cold.append(seconds)
                self.assertTrue(3850 < usage["prompt_tokens"] < 4000 and usage["prompt_tokens_details"]["cached_tokens"] < 32, usage)
                talk += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
                if how == "memory":
                    self.first_token(server, chat("Something else. " + WORDS * 40)["messages"])
                if how == "disk":
                    self.assertEqual(server.stop(seconds=60), 0)
                    server = self.ready(options)
                seconds, _, usage = self.first_token(server, talk)
                self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 3800)
                times[how].append(seconds)
        finally:
            server.stop(seconds=60)
            shutil.rmtree(folder)
        base = statistics.median(cold)
        print("4,000 tokens cold: %.0f ms to the first token; second turn " % (1e3 * base)
              + ", ".join("from %s %.0f ms (%.1f %%)" % (k, 1e3 * statistics.median(v), 100 * statistics.median(v) / base) for k, v in times.items()))
        for how, v in times.items():
            self.assertLess(statistics.median(v), (0.1 if how == "disk" else 0.05) * base, how)

    def ready(self, options):
        server = Server("--quiet", *options, wait=False)
        server.wait_for(lambda: server.get("/health")[0] == 200, 60)
        return server

    def prompt_tokens(self, server, talk, more):
        return server.json("/apply-template", {"messages": [{**talk[0], "content": talk[0]["content"] + WORDS * more}, *talk[1:]]})["n_tokens"]

    def first_token(self, server, messages):
        """(seconds until the first event with text, the text, usage)"""
        c, text, seconds, usage = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600), "", None, None
        start = time.time()
        c.request("POST", CHAT, json.dumps({"messages": messages, "max_tokens": 8, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}))
        for line in c.getresponse():
            if not line.startswith(b"data: {"):
                continue
            j = json.loads(line[6:])
            if j["choices"] and j["choices"][0]["delta"].get("content"):
                text += j["choices"][0]["delta"]["content"]
                seconds = seconds or time.time() - start
            usage = j.get("usage") or usage
        c.close()
        return seconds, text, usage


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
