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

    def read_until(self, pattern):
        end = time.monotonic() + LIMIT
        self.s.settimeout(0.1)
        while not re.search(pattern, self.text):
            if time.monotonic() > end:
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
        self.s.settimeout(LIMIT)
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


class Held(Stream):
    """A request that runs until the test ends it: its answer is long, and not read until then (see HELD)."""

    def __init__(self, server, text, path=CHAT, **more):
        super().__init__(server, chat(text, **{**HELD, **more}), path)
        self.server = server
        self.id = self.read_until(rb'"id":"(chatcmpl-\w+)"').group(1).decode()
        self.read_until(rb'"content":"[^"]')       # a token, not the role alone

    def finish(self):
        """It ends here, with all that there is."""
        self.server.json("/v1/cancel", {"id": self.id})
        return self.rest()


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
        for _ in range(20):                        # until both requests come while it loads
            server = self.serve(wait=False)
            status, h, body = server.get("/health")
            text, th, tb = server.post(CHAT, chat("a"))
            self.assertTrue(server.wait_for(lambda: server.get("/health")[0] == 200))
            self.ends(server)
            if (status, text) == (503, 503):
                break
        self.assertEqual((status, text), (503, 503))
        self.assertEqual(json.loads(body)["error"]["code"], "loading")
        self.assertIn("progress", json.loads(body))
        self.assertGreaterEqual(int(h["retry-after"]), 1)
        self.assertEqual(json.loads(tb)["error"]["type"], "unavailable_error")
        self.assertIn("retry-after", th)

    def test_ended_while_loading(self):
        for i in range(10):
            server = self.serve(wait=False)
            time.sleep(i * 0.03)
            self.ends(server)

    def test_status_when_it_failed(self):
        """During the last requests: there are no sessions to report."""
        folder = tempfile.mkdtemp(prefix="ratoon-serve-")
        self.addCleanup(shutil.rmtree, folder)
        os.chmod(folder, 0o777)                    # refused once the model is loaded
        for _ in range(20):                        # the last requests have two seconds, in which a signal must arrive
            server = self.serve("--cache-dir", folder, wait=False)
            with server.connect() as s:
                s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
                server.expect("expected one of user")
                while server.p.poll() is None and "status: draining" not in server.log:
                    server.p.send_signal(signal.SIGUSR1)
                    time.sleep(0.02)
                self.assertEqual(server.ended(), 1)
            if "status: draining" in server.log:
                break
        self.assertIn("status: draining, 0 running", server.log)


class Queue(Base):
    def test_overload(self):
        server = self.serve("--parallel", "1", "--queue-size", "2", *ROOM)
        first = Held(server, "first")
        waiting = [in_thread(server.post, CHAT, chat("second", max_tokens=5)) for _ in range(2)]
        self.assertTrue(server.waits(2))
        refused = [server.post(CHAT, chat("third")) for _ in range(20)]
        first.finish()
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
        server = self.serve("--parallel", "1", *ROOM)
        first = Held(server, "first")
        self.assertTrue(server.wait_for(lambda: asleep(server.p.pid)))     # it waits for its reader
        threads = []
        for i in range(6):
            threads.append(in_thread(lambda i=i: server.post(CHAT, chat("x", max_tokens=60, ignore_eos=True),
                                                             headers={"X-Request-Id": "number-%d" % i})))
            self.assertTrue(server.waits(i + 1))
            for _ in range(3):                     # a worker has read it
                self.assertTrue(server.wait_for(lambda: asleep(server.p.pid)))
        first.finish()
        for t, out in threads:
            t.join()
            self.assertEqual(out[0][0], 200)
        self.ends(server)
        self.assertEqual(re.findall(r" 200 \d+ ms number-(\d): prompt \d+ .*, answer 60, ", server.log), list("012345"))

    def test_a_long_prompt_stops_nobody(self):
        """A short request that comes while a long prompt is read is answered before. The prompts grow until the short
        one comes in time."""
        server = self.serve("--chunk", "16", *ROOM)
        talk = Held(server, "talk")
        for words in (1000, 2000, 4000, 8000, 16000, 30000):
            long = Stream(server, chat("return " * words, max_tokens=5))
            self.assertEqual(server.post(CHAT, chat("short", max_tokens=2))[0], 200)
            states = [(x["state"], x["n_prompt_tokens"] >= words) for x in server.json("/slots") if x["is_processing"]]
            long.rest()
            if ("prefill", True) in states:
                break
        else:
            self.fail("every long prompt was read before the short one was answered")
        self.assertIn(b'"content":"', long.text)
        self.assertIn(b"[DONE]", talk.finish())
        self.ends(server)


class Cancel(Base):
    def cancelled(self, server, phase):
        return server.metrics()['ratoon_requests_cancelled_total{phase="%s"}' % phase]

    def test_H08_gone_in_each_state(self):
        server = self.serve("--parallel", "1", "--chunk", "4", *ROOM)
        run = Held(server, "run")
        wait = Stream(server, chat("wait"))
        self.assertTrue(server.waits(1))
        wait.close()                               # in the queue
        self.assertTrue(server.wait_for(lambda: self.cancelled(server, "queued") == 1))
        run.close()                                # in decoding
        self.assertTrue(server.wait_for(lambda: self.cancelled(server, "decode") == 1))
        self.assertTrue(server.wait_for(server.idle))
        server.expect(r" 499 \d+ ms \S+: prompt \d+ \(\d+ cached\), answer [1-9].*, cancelled: the client has gone")
        for stream in (True, False):
            for words in (1500, 4000, 8000, 16000, 30000):         # until it goes before the prompt is read
                before = self.cancelled(server, "prefill")
                s = server.connect()
                s.sendall(request(CHAT, chat("read %s " % stream + "return " * words, stream=stream)))
                self.assertTrue(server.wait_for(lambda: not server.idle()))
                s.close()                          # while the prompt is read
                self.assertTrue(server.wait_for(server.idle))
                if self.cancelled(server, "prefill") > before:
                    break
            else:
                self.fail("no request was cancelled while its prompt was read, stream %s" % stream)
        last = server.connect()
        last.sendall(request(CHAT, chat("last", max_tokens=1)))
        last.recv(1)
        reset(last)                                # with the answer half read
        self.assertTrue(server.wait_for(server.idle))
        self.assertEqual(server.post(CHAT, chat("a", max_tokens=1))[0], 200)
        self.ends(server)

    def test_by_id(self):
        server = self.serve("--parallel", "1", *ROOM)
        run = Held(server, "run")
        wait, out = in_thread(lambda: server.post(CHAT, chat("wait"), headers={"X-Request-Id": "the-one"}))
        self.assertTrue(server.waits(1))
        self.assertTrue(server.wait_for(lambda: server.post("/v1/cancel", {"id": "the-one"})[0] == 200))
        wait.join()
        self.assertEqual((out[0][0], out[0][1]["x-should-retry"]), (409, "false"))
        self.assertEqual(server.json("/v1/cancel", {"id": run.id}), {"id": run.id, "cancelled": True})
        self.assertIn(b"[DONE]", run.rest())
        self.assertTrue(server.wait_for(server.idle))
        self.assertEqual(server.post("/v1/cancel", {"id": run.id})[0], 404)
        self.assertEqual(server.post("/v1/cancel", {})[0], 400)
        self.ends(server)

    def test_deadline(self):
        server = self.serve("--parallel", "1", "--request-timeout", "1", *ROOM)
        body = chat("run " * 10, **{**HELD, "n": 4})
        status, h, text = server.post(CHAT, body)
        self.assertEqual((status, json.loads(text)["error"]["code"], h["x-should-retry"]), (503, "timeout", "false"),
                         text[:300])
        run = Stream(server, body)
        run.rest()
        self.assertIn(b"timeout", run.text)
        self.assertNotIn(b"[DONE]", run.text)
        # What was made counts: in the log, in the metrics and in the response.
        server.expect(r" 503 \d+ ms \S+: prompt [1-9]\d* \(\d+ cached\), answer [1-9].*, failed: the request took")
        self.assertGreater(server.metrics()['ratoon_generation_tokens_total{kind="content"}'], 0)
        _, _, text = server.post("/v1/responses", {"input": "run", "stream": True, "max_output_tokens": 30000,
                                                   "ignore_eos": True, "metadata": {"turn": "7"}})
        failed = json.loads(text.rsplit(b"data: ", 1)[1])["response"]
        self.assertEqual((failed["status"], failed["metadata"]), ("failed", {"turn": "7"}))
        self.assertGreater(failed["usage"]["output_tokens"], 0)
        self.ends(server)

    def test_H04_slow_reader(self):
        server = self.serve("--write-timeout", "2", "--ctx", "32768", "--parallel", "5")
        alone = server.json(CHAT, chat("neighbour", max_tokens=50, ignore_eos=True))["choices"]
        # Megabytes, soon also on a slow machine, and no more of them is read.
        stuck = Held(server, "stuck", n=4, model="long" * 120, timings_per_token=True)
        end = time.monotonic() + 5 * LIMIT
        while time.monotonic() < end and self.cancelled(server, "decode") == 0:
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
        self.assertTrue(server.wait_for(server.idle))
        server.wait_for(lambda: server.json("/health?verbose=1")["connections"] == 1)
        before = server.descriptors(), server.threads()
        threads = [in_thread(some, 40, rng.random())[0] for _ in range(8)]
        for t in threads:
            t.join()
        self.assertTrue(server.wait_for(server.idle))
        self.assertTrue(server.wait_for(lambda: server.json("/health?verbose=1")["connections"] == 1))
        now = lambda: (server.descriptors(), server.threads())
        self.assertTrue(server.wait_for(lambda: all(a <= b for a, b in zip(now(), before))), (before, now()))
        self.ends(server)


class KeepAlive(Base):
    def read(self, server, word, sign, **options):
        """Prompts of `word`, each twice as long as the last one, until reading one takes so long that the server says
        that it is alive."""
        for n in (1000, 2000, 4000, 8000, 16000, 32000, 64000):
            s = Stream(server, {**chat(word * n), "max_tokens": 2}, **options)
            if re.search(sign, s.rest()):
                return
        self.fail("%d words were read without a sign of life" % n)

    def test_while_the_prompt_is_read(self):
        server = self.serve("--keepalive", "1", "--chunk", "1", "--parallel", "1", "--threads", "1",
                            "--ctx", "70000", "--cache-ram", "0")
        self.read(server, "return ", rb": prefill \d+/\d+")
        self.read(server, "self ", rb"event: ping", path="/v1/messages")
        self.ends(server)


class Drain(Base):
    def test_running_ends_waiting_is_refused(self):
        server = self.serve("--parallel", "1", "--shutdown-grace", "3600", *ROOM)
        run = Held(server, "run", max_tokens=6000)     # seven megabytes: more than fits into buffers
        wait, out = in_thread(server.post, CHAT, chat("wait"))
        self.assertTrue(server.waits(1))
        held = server.connect()
        held.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_all(held)
        server.p.send_signal(signal.SIGTERM)
        wait.join()
        self.assertEqual(out[0][0], 503)
        held.sendall(b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertEqual(status_of(read_all(held)), 503)
        self.assertTrue(server.wait_for(lambda: self.refuses(server)))
        self.assertIn(b"[DONE]", run.rest())
        self.assertEqual(server.ended(), 0)

    def refuses(self, server):
        try:
            server.connect().close()
            return False
        except ConnectionError:
            return True

    def test_grace_is_over(self):
        server = self.serve("--shutdown-grace", "0", *ROOM)
        chatting = Stream(server, chat("run", n=3, **LONG))
        message = Stream(server, chat("run", **LONG), "/v1/messages")
        chatting.read_until(rb'"content":"[^"]')
        message.read_until(b"content_block_delta")
        readers = [Background(s.rest) for s in (chatting, message)]        # or the last words would not reach them
        whole, out = in_thread(server.post, CHAT, chat("run", n=4, **LONG))
        self.assertTrue(server.waits(1))
        server.p.send_signal(signal.SIGTERM)
        self.assertEqual(server.ended(), 0)
        for t in (whole, *readers):
            t.join()
        self.assertEqual(out[0][0], 503)
        self.assertIn(b"shutting down", chatting.text)
        self.assertNotIn(b"[DONE]", chatting.text)
        self.assertIn(b"event: error", message.text[-500:])

    def test_second_signal(self):
        server = self.serve("--shutdown-grace", "3600", *ROOM)
        run = Held(server, "run")
        server.p.send_signal(signal.SIGINT)
        server.expect("ending")
        server.p.send_signal(signal.SIGINT)
        self.assertEqual(server.ended(), 130)
        run.close()

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
        # By itself a server may find that plain decoding pays on this machine: one of them always speculates.
        options = ["--parallel", "4", "--queue-size", "64", "--cache-min-tokens", "16", "--chunk", "64"]
        servers = [self.serve(*options), self.serve(*options, "--budget", "12")]
        wrong, finished = [], [0]

        def client(seed):
            r, server = random.Random(seed), servers[seed % 2]
            for _ in range(ROUNDS):
                i = r.randrange(len(bodies))
                if r.random() < 0.3:               # dropped somewhere
                    s = server.connect()
                    s.sendall(request(CHAT, {**bodies[i], "stream": r.random() < 0.5}))
                    time.sleep(r.random() * 0.2)
                    s.close()
                    continue
                status, _, text = server.post(CHAT, bodies[i], timeout=300)
                finished[0] += 1
                got = self.without_ids(json.loads(text).get("choices")) if status == 200 else text
                if got != self.without_ids(expected[i]):
                    wrong.append((i, got, expected[i]))

        threads = [in_thread(client, seed)[0] for seed in range(16)]
        for t in threads:
            t.join()
        self.assertEqual(wrong[:1], [])
        self.assertGreater(finished[0], 8 * ROUNDS)
        for server in servers:
            m = server.metrics()
            print("8 of 16 clients: %d of %d prompt tokens from the cache, %d of %d drafted tokens accepted"
                  % (m["ratoon_prompt_tokens_cached_total"], m["ratoon_prompt_tokens_total"],
                     m["ratoon_spec_accepted_tokens_total"], m["ratoon_spec_draft_tokens_total"]))
            self.assertGreater(m["ratoon_prompt_tokens_cached_total"], 100)
            self.ends(server)
        self.assertGreater(m["ratoon_spec_accepted_tokens_total"], 100)
        print("%d answers equal, %d cancelled" % (finished[0], 16 * ROUNDS - finished[0]))

    def without_ids(self, choices):
        out = json.loads(json.dumps(choices))
        for c in out or []:
            for call in c["message"].get("tool_calls") or []:
                call.pop("id")
        return out


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
