#!/usr/bin/env python3
"""Requests that wait, run, are dropped, and end: the queue, disconnects in each state, slow readers, deadlines,
cancelling, draining; and that none of this ever changes what other clients read.

    python3 tests/serve/test_jobs.py [-v] [TestName.test_name ...]

ROUNDS (12) is how many requests each of 16 clients makes. The last line is 'N passed, N failed'."""
import http.client
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helper import *

ROUNDS = int(os.environ.get("ROUNDS", "12"))       # per client
DRAFTER_OFF = ["-d", "none", "--ngram", "off", "--parallel", "1", "--cache-ram", "0"]


class Stream:
    """A streaming request whose answer is read as slowly as the test wants."""

    def __init__(self, server, body, path=CHAT):
        self.s = server.connect(receive=4096)
        self.s.sendall(request(path, {**body, "stream": True}))
        self.text = b""

    def read_until(self, pattern, seconds=20):
        end = time.time() + seconds * SLOW
        self.s.settimeout(0.1)
        while not re.search(pattern, self.text):
            if time.time() > end:
                raise AssertionError("no %r in %r" % (pattern, self.text[-500:]))
            try:
                part = self.s.recv(65536)
            except TimeoutError:
                continue
            if not part:
                break
            self.text += part
        return re.search(pattern, self.text)

    def rest(self):
        self.s.settimeout(20 * SLOW)
        while True:
            try:
                part = self.s.recv(65536)
            except ConnectionError:
                return self.text
            if not part or self.text[-20:].endswith(b"0\r\n\r\n"):
                return self.text
            self.text += part
            if self.text.endswith(b"\r\n0\r\n\r\n"):
                return self.text

    def close(self):
        self.s.close()


class Background(threading.Thread):
    """Runs f(*args) beside the test; join raises its exception."""

    def __init__(self, f, *args):
        super().__init__()
        self.f, self.args, self.out, self.error = f, args, [], None
        self.start()

    def run(self):
        try:
            self.out.append(self.f(*self.args))
        except Exception as e:
            self.error = e

    def join(self):
        super().join()
        if self.error:
            raise self.error


def in_thread(f, *args):
    t = Background(f, *args)
    return t, t.out


class Base(unittest.TestCase):
    def serve(self, *options, **how):
        server = Server(*options, **how)
        self.addCleanup(lambda: server.p.poll() is None and (server.p.kill(), server.p.wait()))
        return server

    def ends(self, server, code=0, **how):
        self.assertEqual(server.stop(**how), code, server.log[-2000:])


class Loading(Base):
    def test_503_until_ready(self):
        for _ in range(20):
            server = self.serve(wait=False)
            status, h, body = server.get("/health")
            text, th, tb = server.post(CHAT, chat("a"))
            server.wait_for(lambda: server.get("/health")[0] == 200)
            self.ends(server)
            if status == 503 and text == 503:
                break
        else:
            self.fail("it was always loaded before it was asked")
        self.assertEqual(json.loads(body)["error"]["code"], "loading")
        self.assertIn("progress", json.loads(body))
        self.assertGreaterEqual(int(h["retry-after"]), 1)
        self.assertEqual(json.loads(tb)["error"]["type"], "unavailable_error")
        self.assertIn("retry-after", th)

    def test_ended_while_loading(self):
        for _ in range(5):
            server = self.serve(wait=False)
            self.ends(server)


    def test_status_when_it_failed(self):
        """During the last requests: there are no sessions to report."""
        folder = tempfile.mkdtemp(prefix="ratoon-serve-")
        os.chmod(folder, 0o777)                    # refused once the model is loaded
        try:
            server = self.serve("--cache-dir", folder, wait=False)
            with server.connect() as s:
                s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
                server.expect("expected one of user")
                for _ in range(20):
                    if server.p.poll() is not None:
                        break
                    server.p.send_signal(signal.SIGUSR1)
                    time.sleep(0.02)
                self.assertEqual(server.p.wait(20 * SLOW), 1)
            self.assertIn("status: draining, 0 running", server.log)
        finally:
            shutil.rmtree(folder)


class Queue(Base):
    def test_overload(self):
        server = self.serve("--parallel", "1", "--queue-size", "2")
        first = Stream(server, chat("first", **LONG))
        first.read_until(b"content")
        waiting = [in_thread(server.post, CHAT, chat("second", max_tokens=5)) for _ in range(2)]
        self.assertTrue(server.wait_for(lambda: server.json("/health?verbose=1")["waiting"] == 2))
        refused = []
        for _ in range(20):
            t = time.time()
            refused.append(server.post(CHAT, chat("third")))
            self.assertLess(time.time() - t, 0.05 * max(SLOW, 1))
        first.rest()
        for status, h, body in refused:
            self.assertEqual(status, 429)
            self.assertTrue(1 <= int(h["retry-after"]) <= 60)
            self.assertEqual(json.loads(body)["error"]["code"], "server_busy")
        for t, out in waiting:
            t.join()
            self.assertEqual(out[0][0], 200)
        self.assertIn(b"[DONE]", first.text)
        self.assertEqual(server.post(CHAT, chat("fourth", max_tokens=1))[0], 200)
        self.ends(server)

    def test_first_come_first_served(self):
        server = self.serve("--parallel", "1")
        first = Stream(server, chat("first", **LONG))
        first.read_until(b"content")
        done, threads = [], []
        for i in range(6):
            n = server.json("/health?verbose=1")["waiting"]
            threads.append(in_thread(lambda i=i: (server.post(CHAT, chat("x", max_tokens=60, ignore_eos=True)),
                                                  done.append(i))))
            self.assertTrue(server.wait_for(lambda: server.json("/health?verbose=1")["waiting"] > n or done))
            time.sleep(0.03 * SLOW)                # until a worker has read it
        first.rest()
        for t, _ in threads:
            t.join()
        self.assertEqual(done, sorted(done))
        self.ends(server)

    def test_a_long_prompt_stops_nobody(self):
        server = self.serve("--chunk", "16")
        talk = Stream(server, chat("talk", **LONG))
        talk.read_until(b"content")
        long = Stream(server, chat("return " * 900, max_tokens=5))
        short, out = in_thread(server.post, CHAT, chat("short", max_tokens=2))
        short.join()
        self.assertEqual(out[0][0], 200)
        self.assertNotIn(b'"content":"', long.text)
        long.rest()
        talk.rest()
        self.ends(server)


class Cancel(Base):
    def cancelled(self, server, phase):
        return server.metrics()['ratoon_requests_cancelled_total{phase="%s"}' % phase]

    def test_H08_gone_in_each_state(self):
        server = self.serve("--parallel", "1", "--chunk", "4")
        run = Stream(server, chat("run", **LONG))
        run.read_until(rb'"content":"[^"]')      # a token, not the role alone
        wait = Stream(server, chat("wait"))
        self.assertTrue(server.wait_for(lambda: server.json("/health?verbose=1")["waiting"] == 1))
        wait.close()                               # in the queue
        self.assertTrue(server.wait_for(lambda: self.cancelled(server, "queued") == 1, 2))
        t = time.time()
        run.close()                                # in decoding
        self.assertTrue(server.wait_for(lambda: self.cancelled(server, "decode") == 1, 2))
        self.assertLess(time.time() - t, 0.3 * SLOW)
        self.assertTrue(server.wait_for(server.idle))
        server.expect(r"cancelled: the client has gone, prompt \d+ \(\d+ cached\), answer [1-9]")
        for stream in (True, False):
            before = self.cancelled(server, "prefill")
            s = server.connect()
            s.sendall(request(CHAT, chat("read %s " % stream + "return " * 1500, stream=stream)))
            self.assertTrue(server.wait_for(lambda: not server.idle()))
            s.close()                              # while the prompt is read
            self.assertTrue(server.wait_for(lambda: self.cancelled(server, "prefill") == before + 1, 2), stream)
        last = server.connect()
        last.sendall(request(CHAT, chat("last", max_tokens=1)))
        last.recv(1)
        reset(last)                                # with the answer half read
        self.assertTrue(server.wait_for(server.idle))
        self.assertEqual(server.post(CHAT, chat("a", max_tokens=1))[0], 200)
        self.ends(server)

    def test_by_id(self):
        server = self.serve("--parallel", "1")
        run = Stream(server, chat("run", **LONG))
        name = run.read_until(rb'"id":"(chatcmpl-\w+)"').group(1).decode()
        wait, out = in_thread(lambda: server.post(CHAT, chat("wait"), headers={"X-Request-Id": "the-one"}))
        self.assertTrue(server.wait_for(lambda: server.json("/health?verbose=1")["waiting"] == 1))
        self.assertTrue(server.wait_for(lambda: server.post("/v1/cancel", {"id": "the-one"})[0] == 200))
        wait.join()
        self.assertEqual(out[0][0], 409)
        self.assertEqual(server.json("/v1/cancel", {"id": name}), {"id": name, "cancelled": True})
        self.assertIn(b"[DONE]", run.rest())
        self.assertTrue(server.wait_for(server.idle))
        self.assertEqual(server.post("/v1/cancel", {"id": name})[0], 404)
        self.assertEqual(server.post("/v1/cancel", {})[0], 400)
        self.ends(server)

    def test_deadline(self):
        server = self.serve("--parallel", "1", "--request-timeout", "1")
        body = {**chat("run " * 10), "max_tokens": 1500, "ignore_eos": True, "logprobs": True, "top_logprobs": 20,
                "n": 4, "temperature": 1}
        t = time.time()
        status, h, text = server.post(CHAT, body)
        self.assertEqual((status, json.loads(text)["error"]["code"], h["x-should-retry"]), (503, "timeout", "false"),
                         text[:300])
        self.assertLess(time.time() - t, 3 * SLOW)
        run = Stream(server, body)
        last = events(run.rest().split(b"\r\n\r\n", 1)[1])
        self.assertIn(b"timeout", run.text)
        self.assertNotIn(b"[DONE]", run.text)
        self.ends(server)

    def test_H04_slow_reader(self):
        server = self.serve("--write-timeout", "2")
        alone = server.json(CHAT, chat("neighbour", max_tokens=50, ignore_eos=True))["choices"]
        stuck = Stream(server,
                       {**chat("stuck"), **LONG, "logprobs": True, "top_logprobs": 20, "n": 4, "temperature": 1})
        stuck.read_until(b"content")               # and then nothing more is read
        t = time.time()
        while time.time() - t < 20 * SLOW and self.cancelled(server, "decode") == 0:
            self.assertEqual(server.json(CHAT, chat("neighbour", max_tokens=50, ignore_eos=True))["choices"], alone)
        self.assertEqual(self.cancelled(server, "decode"), 1)
        self.assertTrue(server.wait_for(server.idle))
        stuck.close()
        self.ends(server)

    def test_no_leaks(self):
        """Random cancels leave no descriptors or threads behind."""
        server = self.serve("--queue-size", "100")
        rng = random.Random(5)
        bodies = [chat("one", stream=True, **LONG), chat("two " * 400, max_tokens=50),
                  chat("three", n=2, max_tokens=100, ignore_eos=True, temperature=1)]
        def some(n, seed):
            r = random.Random(seed)
            for _ in range(n):
                s = server.connect()
                s.sendall(request(CHAT, r.choice(bodies)))
                if r.random() < 0.5:
                    s.settimeout(r.random() * 0.05 + 0.001)
                    try:
                        s.recv(1000)
                    except (TimeoutError, ConnectionError):
                        pass
                else:
                    time.sleep(r.random() * 0.02)
                (reset if r.random() < 0.5 else lambda x: x.close())(s)
        some(10, 1)
        self.assertTrue(server.wait_for(server.idle, 30))
        server.wait_for(lambda: server.json("/health?verbose=1")["connections"] == 1)
        before = server.descriptors(), server.threads()
        threads = [in_thread(some, 40, rng.random())[0] for _ in range(8)]
        for t in threads:
            t.join()
        self.assertTrue(server.wait_for(server.idle, 30))
        self.assertTrue(server.wait_for(lambda: server.json("/health?verbose=1")["connections"] == 1))
        now = lambda: (server.descriptors(), server.threads())
        self.assertTrue(server.wait_for(lambda: all(a <= b for a, b in zip(now(), before)), 5), (before, now()))
        self.ends(server)


class KeepAlive(Base):
    def read(self, server, word, most, **options):
        """Prompts of `word`, each twice as long as the last one, until reading one takes far more than a second."""
        n, took = 500, 0
        while took < 2.5 and 2 * n <= most:
            n *= 2
            started = time.monotonic()
            s = Stream(server, {**chat(word * n), "max_tokens": 2}, **options)
            s.rest()
            took = time.monotonic() - started
        self.assertGreater(took, 2.5, f"{n} words were read too fast for this test")
        return s.text.decode()

    def test_while_the_prompt_is_read(self):
        server = self.serve("--keepalive", "1", "--chunk", "1", "--parallel", "2", "--threads", "1",
                            "--ctx", "40000", "--cache-ram", "0")
        noise = Stream(server, chat("noise", max_tokens=30000, ignore_eos=True))
        noise.read_until(b"content")
        self.assertRegex(self.read(server, "return ", 32000), r": prefill \d+/\d+")
        self.assertIn("event: ping", self.read(server, "self ", 32000, path="/v1/messages"))
        self.ends(server)


class Drain(Base):
    def test_running_ends_waiting_is_refused(self):
        server = self.serve("--parallel", "1", "--shutdown-grace", str(int(30 * SLOW)))
        run = Stream(server, chat("run", **LONG))
        run.read_until(b"content")
        wait, out = in_thread(server.post, CHAT, chat("wait"))
        self.assertTrue(server.wait_for(lambda: server.json("/health?verbose=1")["waiting"] == 1))
        held = server.connect()
        held.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        held.recv(4096)
        server.p.send_signal(signal.SIGTERM)
        wait.join()
        self.assertEqual(out[0][0], 503)
        held.sendall(b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertEqual(status_of(held.recv(4096)), 503)
        self.assertTrue(server.wait_for(lambda: self.refuses(server)))
        self.assertIn(b"[DONE]", run.rest())
        self.assertEqual(server.p.wait(20 * SLOW), 0)

    def refuses(self, server):
        try:
            server.connect().close()
            return False
        except ConnectionError:
            return True

    def test_grace_is_over(self):
        server = self.serve("--shutdown-grace", "0")
        body = {**chat("run"), **LONG, "logprobs": True, "top_logprobs": 20, "temperature": 1}
        chatting, message = Stream(server, {**body, "n": 3}), Stream(server, chat("run", **LONG), "/v1/messages")
        chatting.read_until(rb'"content":"[^"]')
        message.read_until(b"content_block_delta")
        whole, out = in_thread(server.post, CHAT, {**body, "n": 4})
        self.assertTrue(server.wait_for(lambda: server.json("/health?verbose=1")["waiting"] == 1))
        server.p.send_signal(signal.SIGTERM)
        self.assertEqual(server.p.wait(20 * SLOW), 0)
        whole.join()
        self.assertEqual(out[0][0], 503)
        self.assertIn(b"shutting down", chatting.rest())
        self.assertNotIn(b"[DONE]", chatting.text)
        message.rest()
        self.assertIn(b"event: error", message.text[-500:])

    def test_second_signal(self):
        server = self.serve("--shutdown-grace", "60")
        run = Stream(server, {**chat("run"), **LONG, "n": 4, "temperature": 1})
        run.read_until(b"content")
        server.p.send_signal(signal.SIGINT)
        server.expect("ending")
        server.p.send_signal(signal.SIGINT)
        self.assertEqual(server.p.wait(10 * SLOW), 130)

    def test_file_size_limit(self):
        """A record beyond the limit of a file's size is treated as one without room on the disk."""
        folder = tempfile.mkdtemp(prefix="ratoon-serve-")
        try:
            server = self.serve("--cache-dir", os.path.join(folder, "cache"), "--cache-min-tokens", "8",
                                limits={resource.RLIMIT_FSIZE: 4096})
            ask = chat("What is there to be said of it? " * 8, max_tokens=4)
            first = server.json(CHAT, ask)["choices"]
            self.assertEqual(server.json(CHAT, ask)["choices"], first)
            self.ends(server)
            self.assertIn("nothing is written any more", server.log)
            self.assertEqual(os.listdir(os.path.join(folder, "cache")), [])
        finally:
            shutil.rmtree(folder)

    def test_status_signal(self):
        server = self.serve()
        server.p.send_signal(signal.SIGUSR1)
        server.expect(r"status: ready")
        self.ends(server, sig=signal.SIGINT)


class Exact(Base):
    def test_16_clients(self):
        """Every completed answer equals that of the same request on an idle server without speculation."""
        rng = random.Random(11)
        words = "def class return import self value list for while print name data open file".split()
        tool = {"type": "function",
                "function": {"name": "look_up",
                             "parameters": {"type": "object",
                                            "properties": {"word": {"type": "string", "maxLength": 12}},
                                            "required": ["word"]}}}
        schema = {"type": "json_schema",
                  "json_schema": {"name": "x",
                                  "schema": {"type": "object",
                                             "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
                                             "required": ["a", "b"]}}}
        kinds = [lambda t: {}, lambda t: {"temperature": 0.8, "seed": 7, "top_p": 0.95},
                 lambda t: {"temperature": 1.2, "seed": 3, "frequency_penalty": 0.5, "n": 2},
                 lambda t: {"stop": ["e", "\n"]}, lambda t: {"response_format": schema},
                 lambda t: {"logprobs": True, "top_logprobs": 3},
                 lambda t: {"tools": [tool], "tool_choice": "required", "max_tokens": 60}]
        history = " ".join(rng.choice(words) for _ in range(300))      # shared by some, so that the cache is used
        bodies = []
        for i in range(48):
            text = (history + " " if i % 3 == 0 else "") + " ".join(rng.choice(words)
                                                                    for _ in range(rng.randint(1, 60)))
            body = chat(text, max_tokens=rng.randint(1, 80), ignore_eos=i % 2 == 0 and i % 7 not in (4, 6))
            body.update(kinds[i % 7](text))
            bodies.append(body)
        alone = self.serve(*DRAFTER_OFF)
        expected = [alone.json(CHAT, b)["choices"] for b in bodies]
        self.ends(alone)
        server = self.serve("--parallel", "4", "--queue-size", "64", "--cache-min-tokens", "16", "--chunk", "64")
        wrong, finished = [], [0]

        def client(seed):
            r = random.Random(seed)
            for _ in range(ROUNDS):
                i = r.randrange(len(bodies))
                if r.random() < 0.3:               # dropped somewhere
                    s = server.connect()
                    s.sendall(request(CHAT, {**bodies[i], "stream": r.random() < 0.5}))
                    time.sleep(r.random() * 0.2)
                    s.close()
                    continue
                status, _, text = server.post(CHAT, bodies[i], timeout=60)
                finished[0] += 1
                got = self.without_ids(json.loads(text).get("choices")) if status == 200 else text
                if got != self.without_ids(expected[i]):
                    wrong.append((i, got, expected[i]))

        threads = [in_thread(client, seed)[0] for seed in range(16)]
        for t in threads:
            t.join()
        self.assertEqual(wrong[:1], [])
        self.assertGreater(finished[0], 8 * ROUNDS)
        m = server.metrics()
        print("16 clients: %d answers equal, %d cancelled, %d of %d prompt tokens from the cache, %d of %d drafted "
              "tokens accepted"
              % (finished[0], 16 * ROUNDS - finished[0], m["ratoon_prompt_tokens_cached_total"],
                 m["ratoon_prompt_tokens_total"], m["ratoon_spec_accepted_tokens_total"],
                 m["ratoon_spec_draft_tokens_total"]))
        self.assertGreater(m["ratoon_spec_accepted_tokens_total"], 100)
        self.assertGreater(m["ratoon_prompt_tokens_cached_total"], 100)
        self.ends(server)

    def without_ids(self, choices):
        out = json.loads(json.dumps(choices))
        for c in out or []:
            for call in c["message"].get("tool_calls") or []:
                call.pop("id")
        return out


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
