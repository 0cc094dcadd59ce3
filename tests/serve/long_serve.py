#!/usr/bin/env python3
"""The server under long load: connections that are held, floods, thousands of random cancels, kills, everything at
once, memory over many small requests, and the time to the first token of a second turn. Part of make test-long.

    python3 tests/serve/long_serve.py [-v] [TestName.test_name ...]

REQUESTS (default 20000), CANCELS (2000), KILLS (200) and MIX_SECONDS (60, of everything at once) say how long; RATOON and SLOW are test_http.py's;
MODEL is another file for the second turns than the demo pair's. The last line is 'N passed, N failed'."""
import http.client
import json
import os
import random
import re
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helper import *

WORDS = "def value(self, name): return self.name "
REQUESTS, CANCELS, KILLS, SECONDS = (int(os.environ.get(k, d)) for k,
                                     d in (("REQUESTS", 20000), ("CANCELS", 2000), ("KILLS", 200), ("MIX_SECONDS", 60)))
PLAIN = ["--quiet", "-d", "none", "--ngram", "off", "--parallel", "1", "--cache-ram", "0"]
MIB = 2.0 ** 20


def together(n, f):
    """Runs f(i) in n threads and raises the first exception of any of them."""
    wrong = []

    def run(i):
        try:
            f(i)
        except Exception as e:
            wrong.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if wrong:
        raise wrong[0]


def body_of(answer):
    """The text of an answer's complete chunks."""
    at, out = answer.find(b"\r\n\r\n") + 4, b""
    while True:
        end = answer.find(b"\r\n", at)
        size = int(answer[at:end], 16) if end > at else 0
        if size == 0 or end + 2 + size > len(answer):
            return out
        out += answer[end + 2:end + 2 + size]
        at = end + 2 + size + 2


def text_and_odds(stream):
    """Text and log-probabilities of a stream's events; how many tokens an event has depends on the other requests."""
    deltas = [e["choices"][0] for e in events(stream) if e != "[DONE]" and e["choices"]]
    return "".join(d["delta"].get("content") or "" for d in deltas), [t for d in deltas
                                                                      for t in (d.get("logprobs")
                                                                                or {"content": []})["content"]], deltas[-1]["finish_reason"]


class Long(unittest.TestCase):
    def serve(self, *options, **how):
        server = Server(*options, wait=False, **how)
        self.addCleanup(lambda: server.p.poll() is None and (server.p.kill(), server.p.wait()))
        self.assertTrue(server.wait_for(lambda: server.get("/health")[0] == 200))
        return server

    def settle(self, server):
        """Waits until all clients are gone: (descriptors, threads, own memory without the cache's content)."""
        self.assertTrue(server.wait_for(server.idle))
        self.assertTrue(server.wait_for(lambda: server.json("/health?verbose=1")["connections"] == 1))
        m = server.metrics()
        time.sleep(0.3 * SLOW)                     # lets the connection of the last question close
        return server.descriptors(), server.threads(), m["ratoon_host_bytes"] - m['ratoon_snapshot_bytes{tier="ram"}']

    def test_held_connections(self):
        """1,000 idle connections, 100 whose clients read a few hundred bytes now and then, and a normal client among
        them."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        server = self.serve("--quiet", "--max-connections", "1500", "--queue-size", "200")
        body = chat("slow", stream=True, max_tokens=60, ignore_eos=True, logprobs=True, top_logprobs=20)
        whole = text_and_odds(server.post(CHAT, body)[2])
        alone = server.json(CHAT, chat("normal", max_tokens=20))["choices"]
        before = self.settle(server)
        idle = [server.connect(timeout=60) for _ in range(1000)]
        self.assertTrue(server.wait_for(lambda: server.json("/health?verbose=1")["connections"] > 1000))
        each = (server.metrics()["ratoon_host_bytes"] - before[2]) / 1000
        self.assertLess(each, 16 << 10)
        for s in idle:                             # closed after 10 s without any request, after 75 s with one
            s.sendall(request("/health", b"", "GET"))
        self.assertTrue(all(b"200 OK" in s.recv(4096) for s in idle))
        kept = (server.metrics()["ratoon_host_bytes"] - before[2]) / 1000
        self.assertLess(kept, 88 << 10)  # the library clears space for the next headers, so it becomes resident
        slow, got = [server.connect(receive=2048, timeout=60) for _ in range(100)], [b""] * 100
        for s in slow:
            s.sendall(request(CHAT, body))
            s.setblocking(False)
        self.assertTrue(server.wait_for(server.idle))                  # all are computed, none is read
        times, most, end = [], 0, time.time() + 10
        while time.time() < end:
            t = time.time()
            self.assertEqual(server.json(CHAT, chat("normal", max_tokens=20), timeout=60)["choices"], alone)
            self.assertEqual(server.get("/health")[0], 200)
            times.append(time.time() - t)
            most = max(most, server.metrics()["ratoon_host_bytes"] - before[2])
            for i, s in enumerate(slow):
                try:
                    got[i] += s.recv(300)
                except BlockingIOError:
                    pass
        self.assertGreaterEqual(server.json("/health?verbose=1")["connections"], 1101)
        print("held 1,000 idle connections (%.1f KiB each, %.1f after a request) and 100 slow ones (%.0f of %.0f KiB "
              "read; all memory %.1f MiB); normal client %.0f ms, %.0f at most, %d times"
              % (each / 1024, kept / 1024, statistics.mean(map(len, got)) / 1024, len(json.dumps(whole)) / 1024,
                 most / MIB, 1000 * statistics.median(times), 1000 * max(times), len(times)))
        for i, s in enumerate(slow):               # and each slow one has the right answer
            s.setblocking(True)
            s.settimeout(20 * SLOW)
            while not got[i].endswith(b"\r\n0\r\n\r\n"):
                part = s.recv(1 << 20)
                self.assertTrue(part, "a slow reader's answer ended early")
                got[i] += part
            self.assertTrue(text_and_odds(body_of(got[i])) == whole)
        for s in idle + slow:
            s.close()
        after = self.settle(server)
        self.assertTrue(all(a <= b for a, b in zip(after[:2], before)), (before, after))
        self.assertEqual(server.stop(), 0)

    def test_flood(self):
        """Ten times more clients than there is room for: each gets its answer or a 429 at once, and the queue is
        fair."""
        server = self.serve("--quiet", "--parallel", "4", "--queue-size", "32", "--max-connections", "600")
        body = chat("flood", max_tokens=100, ignore_eos=True)
        alone = server.json(CHAT, body)["choices"]
        lock, times, statuses = threading.Lock(), {200: [], 429: []}, []

        def client(i):
            for _ in range(5):
                c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60 * SLOW)
                c.connect()
                t = time.time()
                c.request("POST", CHAT, json.dumps(body))
                r = c.getresponse()
                took = time.time() - t
                text = r.read()
                with lock:
                    statuses.append(r.status)
                    times[r.status].append(took)
                if r.status == 200:
                    self.assertEqual(json.loads(text)["choices"], alone)
                else:
                    self.assertGreaterEqual(int(r.headers["retry-after"]), 1)
                c.close()

        together(360, client)
        self.assertEqual(len(statuses), 1800)
        self.assertEqual(self.refused_at_once(server, 1000), 1000)
        self.assertGreaterEqual(len(times[200]), 36)
        # while the queue fills and empties, twice the mean is fair
        self.assertLess(max(times[200]), 3 * statistics.mean(times[200]))
        print("flood of 360 clients: %d answered (%.2f s, %.2f at most), %d refused" % (len(times[200]), statistics.mean(times[200]), max(times[200]), len(times[429])))
        self.assertEqual(server.stop(), 0)

    def refused_at_once(self, server, n):
        """With every place taken: how many of n requests got a 429 within 50 ms; the client does nothing else
        meanwhile."""
        long = request(CHAT,
                       chat("hold", stream=True, n=4, temperature=1, max_tokens=1900, ignore_eos=True, logprobs=True,
                            top_logprobs=20))
        held = []
        for _ in range(33):
            s = server.connect(receive=2048)
            s.sendall(long)
            held.append(s)
            self.assertTrue(server.wait_for(lambda: (h := server.json("/health?verbose=1"))["waiting"]
                                            + (h["running"] > 0) == len(held)))
        times, body = [], json.dumps(chat("refused"))
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for _ in range(n):
            t = time.time()
            c.request("POST", CHAT, body)
            r = c.getresponse()
            r.read()
            self.assertEqual(r.status, 429)
            times.append(time.time() - t)
        c.close()
        for s in held:
            reset(s)
        self.settle(server)
        print("%d refused: %.1f ms, %.1f at most" % (n, 1000 * statistics.median(times), 1000 * max(times)))
        return sum(t < 0.05 * SLOW for t in times)

    def test_cancels(self):
        """With the cache, and without it, so that only fragmentation of the heap can grow."""
        for cache, most in (("0", 1), ("64", 8)):
            with self.subTest(cache=cache):
                self.cancels(self.serve("--quiet", "--queue-size", "200", "--cache-ram", cache), most * MIB)

    def cancels(self, server, most):
        def some(n, seed):
            r = random.Random(seed)
            for _ in range(n):
                s = server.connect()
                s.sendall(request(CHAT,
                                  chat("x%d " % r.randrange(50) * r.randint(1, r.choice((2, 200))),
                                       stream=r.random() < 0.5, max_tokens=r.randint(1, 300), ignore_eos=True)))
                time.sleep(r.random() * r.choice((0.04, 0.04, 0.4)) * SLOW)
                (reset if r.random() < 0.5 else lambda x: x.close())(s)

        together(8, lambda i: some(CANCELS // 16, 100 + i))
        before = self.settle(server)
        together(8, lambda i: some(CANCELS // 8, i))
        after = self.settle(server)
        m = server.metrics()
        phases = {p: int(m['ratoon_requests_cancelled_total{phase="%s"}' % p]) for p in ("queued", "prefill", "decode")}
        print("%d cancels (%s): %d descriptors and %d threads before, %d and %d after, memory %+.2f MiB" % (CANCELS, phases, *before[:2], *after[:2], (after[2] - before[2]) / MIB))
        self.assertTrue(all(a <= b for a, b in zip(after[:2], before)), (before, after))
        self.assertTrue(all(n > CANCELS // 100 for n in phases.values()), phases)
        self.assertLess(after[2] - before[2], most)
        self.assertEqual(server.stop(), 0)

    def test_memory(self):
        """Own memory, resident and swapped, by the number of small distinct requests: its slope after a warm-up."""
        server = self.serve("--quiet", "--cache-ram", "0")
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
        print("%d requests: %.0f bytes each, %.1f MiB in all" % (REQUESTS, slope, (points[-1][1] - points[0][1]) / MIB))
        self.assertLess(slope, 100)
        c.close()
        self.assertEqual(server.stop(), 0)

    def test_second_turn(self):
        """A second turn on a conversation of 4,000 tokens begins in a twentieth of the cold time, in its session, from memory, and from disk as
        the first request of a new process."""
        folder = tempfile.mkdtemp(prefix="ratoon-serve-")
        options = ["--ctx", "4096", "--parallel", "1", "--cache-dir",
                   folder] + (["-m", os.environ["MODEL"]] if "MODEL" in os.environ else [])
        server = self.ready(options)
        cold, times = [], {"session": [], "memory": [], "disk": []}
        try:
            for i, how in enumerate(list(times) * int(os.environ.get("ROUNDS", "3"))):
                talk = [{"role": "system", "content": "Part %d. " % i}, {"role": "user", "content": "Go on. "}]
                have, step = (self.prompt_tokens(server, talk, n) for n in (0, 100))
                talk[0]["content"] += WORDS * ((3950 - have) * 100 // (step - have))
                seconds, text, usage = self.first_token(server, talk)
                cold.append(seconds)
                self.assertTrue(3850 < usage["prompt_tokens"] < 4000
                                and usage["prompt_tokens_details"]["cached_tokens"] < 32, usage)
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
              + ", ".join("from %s %.0f ms (%.1f %%)" % (k, 1e3 * statistics.median(v),
                                                         100 * statistics.median(v) / base) for k, v in times.items()))
        for how, v in times.items():
            self.assertLess(statistics.median(v), 0.05 * base, how)

    def ready(self, options):
        server = Server("--quiet", *options, wait=False)
        server.wait_for(lambda: server.get("/health")[0] == 200)
        return server

    def prompt_tokens(self, server, talk, more):
        return server.json("/apply-template",
                           {"messages": [{**talk[0], "content": talk[0]["content"] + WORDS * more},
                                         *talk[1:]]})["n_tokens"]

    def first_token(self, server, messages):
        """(seconds until the first event with text, the text, usage)"""
        c, text, seconds, usage = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600), "", None, None
        start = time.time()
        c.request("POST", CHAT,
                  json.dumps({"messages": messages, "max_tokens": 8, "ignore_eos": True, "stream": True,
                              "stream_options": {"include_usage": True}}))
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

    def test_kills(self):
        """Killed at any time under load, and at any byte of a record that is being written: the next server returns the
        right texts."""
        folder = tempfile.mkdtemp(prefix="ratoon-serve-")
        self.addCleanup(shutil.rmtree, folder)
        r = random.Random(3)
        # Text that conversations share is recorded, and such records are written at once.
        bodies = [{"messages": [{"role": "system", "content": "Rule %d. " % i * (20 + i)},
                                {"role": "user", "content": "def f%d(x):" % i}], "max_tokens": 12} for i in range(24)]
        plain = self.serve(*PLAIN)
        expected = [plain.json(CHAT, b)["choices"] for b in bodies]
        self.assertEqual(plain.stop(), 0)
        options, cached, in_record, left = ["--cache-dir", folder, "--cache-min-tokens", "16"], 0, 0, 0

        def ask(server, k):
            j = server.json(CHAT, bodies[k])
            self.assertEqual(j["choices"], expected[k])
            return j["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

        def until_killed(server, seed):
            q = random.Random(seed)
            try:
                while server.p.poll() is None:
                    ask(server, q.randrange(24))
            except (OSError, http.client.HTTPException):
                pass

        for kill in range(KILLS):
            if kill % 10 == 0:
                for name in os.listdir(folder):
                    os.unlink(os.path.join(folder, name))
            size = None if kill % 2 else int(10 ** r.uniform(0, 6))  # limit of a file: a write beyond it kills
            server = Server("--quiet", *options, wait=False,
                            limits=None if size is None else {resource.RLIMIT_FSIZE: size})
            self.assertTrue(server.wait_for(lambda: server.get("/health")[0] == 200))
            cached += any(ask(server, k) for k in r.sample(range(24), 8)) if size is None else 0
            if size is None:
                threads = [threading.Thread(target=until_killed, args=(server, r.random())) for _ in range(4)]
                for t in threads:
                    t.start()
                time.sleep(r.random() * 0.2 * SLOW)
                server.p.kill()
                for t in threads:
                    t.join()
            else:
                until_killed_in = threading.Thread(target=until_killed, args=(server, r.random()))
                until_killed_in.start()
                until_killed_in.join(1 * SLOW)
                server.p.kill()                    # all its records were smaller
                until_killed_in.join()
            in_record += server.p.wait() == -signal.SIGXFSZ
            left += any(name.startswith(".writing") for name in os.listdir(folder))
        server = self.serve("--quiet", *options)
        hits = sum(ask(server, k) for k in range(24))
        self.assertFalse([name for name in os.listdir(folder) if name.startswith(".writing")])
        m = server.metrics()
        print("%d kills (%d within a record, %d left an unfinished file): %d starts went on from the disk; at last %d "
              "of 24 prompts were there, %d records damaged"
              % (KILLS, in_record, left, cached, hits, m["ratoon_snapshot_damaged_total"]))
        self.assertEqual(m["ratoon_snapshot_damaged_total"], 0)
        self.assertGreater(in_record, KILLS // 10)
        self.assertGreater(cached, KILLS // 10)
        self.assertEqual(server.stop(), 0)

    def test_everything_at_once(self):
        """Every route, streams, cancels of each kind, slow readers, incomplete requests and the status signal, then the
        end under load: all answers are right, nothing hangs, and the process exits cleanly. The thread sanitizer runs
        this mix."""
        folder = tempfile.mkdtemp(prefix="ratoon-serve-")
        self.addCleanup(shutil.rmtree, folder)
        tool = {"name": "look_up",
                "parameters": {"type": "object", "properties": {"word": {"type": "string", "maxLength": 8}},
                               "required": ["word"]}}
        schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
                  "required": ["a", "b"]}
        system = "You write short code. " * 12
        posts = [(CHAT, chat("def f(x):", max_tokens=20)),
                 (CHAT, chat(system + "sort", max_tokens=30, temperature=0.9, seed=3)),
                 (CHAT, chat(system + "find", n=3, max_tokens=12, temperature=1, seed=8)),
                 (CHAT, chat("call", tools=[{"type": "function", "function": tool}], tool_choice="required",
                             max_tokens=40)),
                 (CHAT, chat("form", response_format={"type": "json_schema",
                                                      "json_schema": {"name": "s", "schema": schema}}, max_tokens=40)),
                 (CHAT, chat("odds", logprobs=True, top_logprobs=5, max_tokens=10, stop=["\n"])),
                 ("/v1/completions", {"prompt": [system, "import "], "max_tokens": 16}),
                 ("/v1/completions", {"prompt": "a b", "max_tokens": 8, "echo": True, "logprobs": 2}),
                 ("/v1/messages", {**chat("hello"), "max_tokens": 16, "system": system}),
                 ("/v1/responses", {"input": "hello", "max_output_tokens": 12}), ("/tokenize", {"content": system}),
                 ("/v1/messages/count_tokens", chat(system)), ("/apply-template", chat("x"))]
        gets = ["/health?verbose=1", "/metrics", "/v1/models", "/props", "/cache", "/", "/nowhere"]

        def essence(j):
            """Without fields that differ from one time to the next."""
            return {k: self.without_ids(v) for k,
                    v in j.items() if k in ("choices", "content", "tokens", "count", "input_tokens", "prompt")}

        plain = self.serve(*PLAIN)
        expected = [essence(plain.json(path, body)) for path, body in posts]
        self.assertEqual(plain.stop(), 0)
        server = self.serve("--parallel", "4", "--queue-size", "16", "--cache-min-tokens", "16", "--cache-ram", "4",
                            "--cache-dir", folder, "--chunk", "32", "--request-timeout", str(int(30 * SLOW)))
        counts, lock, end, over = {}, threading.Lock(), time.time() + SECONDS, threading.Event()

        def note(what):
            with lock:
                counts[what] = counts.get(what, 0) + 1

        def one(r):
            what, k = r.random(), r.randrange(len(posts))
            path, body = posts[k]
            if what < 0.45:
                name = {"X-Request-Id": "id-%d" % r.randrange(8)} if what < 0.1 else {}  # others may cancel it
                status, _, text = server.post(path, body, headers=name, timeout=120)
                self.assertIn(status, (200, 409, 429) if name else (200, 429))
                note(status)
                if status == 200 and not name:
                    self.assertEqual(essence(json.loads(text)), expected[k])
            elif what < 0.65:                      # dropped: before the body, in the queue, while it is read or written
                s = server.connect(receive=r.choice((None, 2048)))
                data = request(path, {**body, "stream": r.random() < 0.7} if path.startswith("/v1/c") else body)
                s.sendall(data[:r.randrange(len(data))] if r.random() < 0.2 else data)
                s.settimeout(0.01 + r.random() * 0.1 * SLOW)
                try:
                    while s.recv(r.choice((1, 100, 4096))):
                        pass
                except (TimeoutError, ConnectionError):
                    pass
                (reset if r.random() < 0.5 else lambda x: x.close())(s)
                note("given up")
            elif what < 0.8:
                status, _, text = server.post(CHAT,
                                              {**posts[k % 6][1], "stream": True,
                                               "stream_options": {"include_usage": True}}, timeout=120)
                self.assertIn(status, (200, 429, 503))
                if status == 200:
                    self.assertTrue(text.endswith(b"data: [DONE]\n\n"), text[-300:])
                note("stream")
            elif what < 0.9:
                path = r.choice(gets)
                self.assertEqual(server.get(path, timeout=60)[0], 404 if path == "/nowhere" else 200)
                note("get")
            elif what < 0.95:
                self.assertIn(server.post("/v1/cancel", {"id": "id-%d" % r.randrange(8)})[0], (200, 404))
                note("cancel")
            elif what < 0.98:
                self.assertEqual(server.post(CHAT, b'{"messages": 3}')[0], 400)
                note("bad")
            else:
                server.p.send_signal(signal.SIGUSR1)
                note("signal")

        def client(i):
            r = random.Random(i)
            while time.time() < end:
                one(r)

        def until_the_end(i):
            r = random.Random(100 + i)
            while not over.is_set() and server.p.poll() is None:
                try:
                    one(r)
                except (OSError, http.client.HTTPException, AssertionError):
                    pass                           # refused, or cut off: it is ending

        together(12, client)
        self.assertTrue(server.wait_for(server.idle))
        print("%d s of everything: %s" % (SECONDS, dict(sorted(counts.items(), key=str))))
        self.assertGreater(counts.get(200, 0), 0)
        threads = [threading.Thread(target=until_the_end, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        time.sleep(0.5 * SLOW)
        code = server.stop(seconds=30)
        over.set()
        for t in threads:
            t.join()
        self.assertEqual(code, 0, server.log[-3000:])

    def without_ids(self, v):
        out = json.loads(json.dumps(v))
        for c in out if isinstance(out, list) else []:
            for call in (c.get("message", {}).get("tool_calls") or []) if isinstance(c, dict) else []:
                call.pop("id")
        return out


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
