#!/usr/bin/env python3
"""The server as any client of the network meets it: the catalogue of bad input by name (J01-J07, H01-H09), limits,
access, and the plain endpoints, over real sockets.

    python3 tests/serve/test_http.py [-v] [TestName.test_name ...]

RATOON names the program; SLOW=10 multiplies all waiting. The last line is 'N passed, N failed'."""
import gzip
import json
import os
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helper import *

S = None
LATE = {}


def slow_request(name, first, part, every):
    """Sends a request bit by bit until the server has had enough; notes what came back, and when."""
    start = time.monotonic()
    with S.connect() as s:
        s.sendall(first)
        s.settimeout(every)
        answer = b""
        while time.monotonic() - start < 2 * LIMIT:
            try:
                got = s.recv(4096)
                answer += got
                if not got:
                    break
            except socket.timeout:
                pass
            except ConnectionError:
                break
            if part:
                try:
                    s.sendall(part)
                except ConnectionError:
                    break
    LATE[name] = (answer, time.monotonic() - start)


def setUpModule():
    global S, waiting
    S = Server("--quiet", wait=False)
    if not S.wait_for(lambda: S.get("/health")[0] == 200):
        raise AssertionError("not ready: " + S.log)
    body = b'POST /v1/chat/completions HTTP/1.1\r\nHost: x.localhost\r\nContent-Length: 100\r\n\r\n{"messages"'
    cases = [("header", b"GET /health HTTP/1.1\r\nHost: local", b"h", 0.5), ("nothing", b"", b"", 1),
             ("body", body, b"", 1), ("line", b"GET /health", b"", 1)]
    waiting = [threading.Thread(target=slow_request, args=c) for c in cases]
    for t in waiting:
        t.start()


def tearDownModule():
    code = S.stop()
    if code != 0:
        raise AssertionError("exit status %d: %s" % (code, S.log[-3000:]))


class Base(unittest.TestCase):
    def refused(self, status, answer, words="."):
        """Checks an error of OpenAI's shape."""
        self.assertEqual(answer[0], status, answer[2][:500])
        e = json.loads(answer[2])["error"]
        self.assertEqual(set(e) >= {"message", "type", "param", "code"}, True)
        self.assertRegex(e["message"], words)
        return e

    def alive(self):
        self.assertEqual(S.get("/health")[0], 200)


class Json(Base):
    def bad(self, body, words=".", status=400, **how):
        return self.refused(status, S.post(CHAT, body, **how), words)

    def good(self, body):
        status, _, text = S.post(CHAT, body)
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def test_J01_numbers_and_syntax(self):
        for body in (b"", b"  \n", b"{", b"[]", b"3", b'"x"', b"nul", b"{}{}"):
            with self.subTest(body[:40]):
                self.bad(body)
        # Used where the rest of the request is valid.
        for more in (b",", b" // x\n", b" /* x */", b',"a":NaN', b',"a":Infinity', b',"a":-Infinity', b',"a":-',
                     b',"a":+1', b',"a":.5', b',"a":1.', b',"a":0x1', b',"a":01', b",'a':1", b',"a":1e999',
                     b',"seed":9223372036854775808', b',"seed":-9223372036854775809', b',"seed":' + b"9" * 10 ** 6,
                     b',"temperature":1e999', b',"temperature":' + b"1" * 10 ** 6):
            with self.subTest(more[:40]):
                self.bad(b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1' + more + b"}",
                         "JSON|json|seed|temperature")
        ask = json.dumps(chat("a", max_tokens=1))
        self.good("\ufeff".encode() + ask.encode())
        for more in ('"temperature":-0', '"seed":9007199254740993', '"seed":9223372036854775807',
                     '"temperature":0.0e0'):
            with self.subTest(more):
                self.good(ask[:-1] + "," + more + "}")

    def test_J02_depth(self):
        self.bad(b"[" * 10 ** 6, "128|nest|deep")
        self.bad(b'{"a":' * 10 ** 6, "128|nest|deep")
        self.bad(b'{"messages":' + b"[" * 200 + b"]" * 200 + b"}", "128|nest|deep")

    def test_J03_duplicate_keys(self):
        self.bad(b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"max_tokens":2}', "uplicate")
        self.bad(b'{"messages":[{"role":"user","content":"a","content":"b"}],"max_tokens":1}', "uplicate")

    def test_J04_characters(self):
        self.bad(b'{"messages":[{"role":"user","content":"\\ud800"}]}')
        for raw in (b'{"messages":[{"role":"user","content":"a\0b"}]}',
                    b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1\0}',
                    b'{"messages":[{"role":"user","content":"a"}]}\0'):
            self.bad(raw, "zero byte")
        self.bad(b'{"messages":[{"role":"user","content":"\xff\xfe"}]}')
        self.bad(b'{"messages":[{"role":"user","content":"\xc0\xaf"}]}')
        self.bad(json.dumps(chat("a")).encode("utf-16"))
        self.bad(gzip.compress(json.dumps(chat("a")).encode()))
        self.bad(gzip.compress(json.dumps(chat("a")).encode()), "Content-Encoding", 415,
                 headers={"Content-Encoding": "gzip"})
        self.good(b'{"messages":[{"role":"user","content":"\\ud83d\\ude00 \xf0\x9f\x98\x80"}],"max_tokens":1}')
        # A zero in a string is U+FFFD to the model, an escaped backslash before u0000 is not a zero.
        self.good(b'{"messages":[{"role":"user","content":"a\\u0000b"}],"max_tokens":1}')
        seen = S.json("/apply-template", chat("<a\0b\\u0000c>"))["prompt"]
        self.assertIn("<a\ufffdb\\u0000c>", seen)
        e = self.bad(chat("a", guided_json='{"const": "\\u0000"}'), r"a string has \\u0000")
        self.assertNotIn("JSON_ALLOW", e["message"])

    def test_J05_size(self):
        e = self.bad(json.dumps(chat("word " * 20000)).encode(), "maximum context length")
        self.assertEqual(e["code"], "context_length_exceeded")
        self.assertEqual(e["n_ctx"], 2048)
        large = json.dumps(chat("x" * (50 << 20)))
        self.refused(400, S.post(CHAT, large), "maximum context length|16 MiB")
        self.refused(413, S.post(CHAT, b"[", headers={"Content-Length": str(65 << 20)}), "max-body")
        with S.connect() as s:                     # the same without a length: received bytes are counted
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            block = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
            for _ in range(65):
                s.sendall(block)
            s.sendall(b"0\r\n\r\n")
            self.assertEqual(status_of(read_all(s)), 413)
        many = b'{"messages":[' + b",".join([b'{"role":"user","content":"a"}'] * 10 ** 6) + b"]}"
        self.assertEqual(S.post(CHAT, many)[0], 400)
        tool = b'{"type":"function","function":{"name":"f%d","parameters":{"type":"object"}}}'
        many = b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"tools":[' + b",".join(tool % i for i in range(10 ** 5)) + b"]}"
        self.assertIn(S.post(CHAT, many)[0], (200, 400))
        self.alive()

    def test_J06_types(self):
        fields = {"messages": [3, "x", {}, [], [3], [{}], [{"role": 3}], [{"role": "user", "content": 3}],
                               [{"role": "user"}], [{"role": "user", "content": None}],
                               [{"role": "nobody", "content": "a"}]],
                  "temperature": ["warm", [], {}, -1, True], "max_tokens": ["many", [], -2, 1.5],
                  "stop": [3, {}, [""], ["a"] * 17, [3], "x" * 600],
                  "n": [0, -1, 10 ** 6, "x"], "stream": [1, "yes"], "tools": [3, {}, [3], [{"type": "function"}]],
                  "seed": ["x", 1.5], "top_p": [-0.1, 1.5, "x"],
                  "top_k": [-2, 1.5], "logit_bias": [3, {"x": "y"}], "response_format": [3, {}, {"type": "poem"}],
                  "logprobs": [3], "top_logprobs": [21, -1]}
        for field, values in fields.items():
            for v in values:
                with self.subTest("%s: %r" % (field, v)):
                    e = self.bad({**chat("a", max_tokens=1), field: v})
                    self.assertIn(field.split(".")[0].split("_")[-1][:4], json.dumps(e))
        self.good({**chat("a", max_tokens=1), **{f: None for f in fields if f != "messages"}, "max_tokens": 1})

    def test_J07_unknown_fields(self):
        j = self.good(chat("a", max_tokens=1, flavour="sweet", store=True))
        self.assertIn("flavour", j["ignored"])
        self.bad(chat("a", max_tokens=1, flavour="sweet", strict_fields=True), "flavour")
        self.bad(chat("a", max_tokens=1, typical_p=0.5), "typical_p")


class Http(Base):
    def one(self, data, *statuses):
        answer = S.raw(data)
        self.assertIn(status_of(answer), statuses, answer[:200])
        self.alive()
        return answer

    def test_H01_request_line(self):
        self.one(b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, 431, 400, 0)
        self.one(b"GET /" + b"a" * 10000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414)
        self.one(b"GET /health HTTP/1.1\nHost: localhost\n\n", 200, 400, 0)
        self.one(b"GET /he\0alth HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, 404, 200, 0)
        self.one(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, 0)
        self.one(b"GR\xc3\x9cSS /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, 400, 0)
        self.one(b"BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 405)
        for target, status in ((b"http://localhost/health", 200), (b"HTTP://127.0.0.1:8080/v1/models/?a=b", 200),
                               (b"https://localhost/nowhere", 404), (b"http://localhost", 200),
                               (b"http://evil.example/health", 403), (b"http:///health", 403)):
            self.one(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", status)
        self.one(b"GET //health HTTP/1.1\r\nHost: localhost\r\n\r\n", 404)
        self.one(b"GET /health%00x HTTP/1.1\r\nHost: localhost\r\n\r\n", 404)
        self.one(b"GET /..%2f..%2fetc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404)
        self.one(b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n", 200, 400, 505, 0)
        self.one(b"GET /health HTTP/1.0\r\n\r\n", 200)
        for hosts in (b"", b"Host: localhost\r\nHost: localhost\r\n"):          # HTTP/1.1 needs exactly one Host
            answer = self.one(b"GET /health HTTP/1.1\r\n" + hosts + b"\r\n", 400)
            self.assertEqual(answer.count(b"HTTP/1.1 "), 1)
            self.assertIn("Host", json.loads(answer[answer.index(b"\r\n\r\n") + 4:])["error"]["message"])
        self.one(b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n", 404)

    def test_H01_paths(self):
        for path in ("/health/", "/v1/health", "/v1/v1/models", "/models", "/v1/models/",
                     "/v1/models?client_version=0.1", "/%68ealth"):
            with self.subTest(path):
                self.assertEqual(S.get(path)[0], 200)
        for path in ("/v1", "/health/x", "/healthy", "/v1/models/nobody"):
            with self.subTest(path):
                self.refused(404, S.get(path))
        status, _, body = S.post("/v1/messages/nowhere", {})
        self.assertEqual((status, json.loads(body)["type"], json.loads(body)["error"]["type"]),
                         (404, "error", "not_found_error"))

    def test_H02_headers(self):
        get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
        self.one(get + b"X: " + b"a" * (1 << 20) + b"\r\n\r\n", 431, 400, 0)
        self.one(get + b"X: " + b"a" * (66 << 10) + b"\r\n\r\n", 431)
        self.one(get + b"".join(b"X%d: a\r\n" % i for i in range(10000)) + b"\r\n", 431, 400, 0)
        self.one(get + b"X: a\r\n b\r\n\r\n", 200, 400)
        body = json.dumps(chat("a", max_tokens=1)).encode()
        post = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        self.one(post + b"Content-Length: %d\r\nContent-Length: 5\r\n\r\n" % len(body) + body, 400)
        self.one(post + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % (len(body), len(body))
                 + body + b"\r\n0\r\n\r\n", 400)
        self.one(post + b"Content-Length: -5\r\n\r\n", 400, 0)
        self.one(post + b"Content-Length: 99999999999999999999999\r\n\r\n", 400, 413, 0)
        chunked = post + b"Transfer-Encoding: chunked\r\n\r\n"
        self.one(chunked + b"10000000000000000\r\n" + body, 400, 413, 0)
        self.one(chunked + b"-5\r\n" + body, 400, 0)
        self.one(chunked + b"zz\r\n" + body, 400, 0)
        self.one(chunked + b"%x;name=value\r\n" % len(body) + body + b"\r\n0\r\n\r\n", 200)
        halves = b"%x\r\n" % 10 + body[:10] + b"\r\n%x\r\n" % (len(body) - 10) + body[10:]
        self.one(chunked + halves + b"\r\n0\r\n\r\n", 200)
        with S.connect() as s:                     # the last chunk never comes
            s.sendall(chunked + halves + b"\r\n")
            s.shutdown(socket.SHUT_WR)
            self.assertNotEqual(status_of(read_all(s)), 200)
        self.alive()

    def test_H03_framing(self):
        body = json.dumps(chat("a", max_tokens=1)).encode()
        whole = request(CHAT, body)
        two = S.raw(whole + request("/health", b"", "GET"), answers=2)
        self.assertEqual(two.count(b"HTTP/1.1 200"), 2)                # pipelined, in order
        self.assertLess(two.index(b"chat.completion"), two.index(b'"status":"ok"'))
        short = S.raw(whole.replace(b"Content-Length: %d" % len(body), b"Content-Length: %d" % (len(body) - 1)))
        self.assertEqual(status_of(short), 400)
        with S.connect() as s:
            s.sendall(whole[:whole.index(b"\r\n\r\n") + 2] + b"Expect: 100-continue\r\n\r\n")
            self.assertIn(b"HTTP/1.1 100", s.recv(100))
            s.sendall(body)
            self.assertEqual(status_of(read_all(s)), 200)
        with S.connect() as s:                     # refused before the body is sent
            s.sendall(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\nExpect: "
                      b"100-continue\r\n\r\n")
            self.assertEqual(status_of(read_all(s)), 404)
        self.one(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 200)
        closing = S.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        self.assertIn(b"Connection: close", closing)

    def test_H03_every_byte(self):
        data = request(CHAT, chat("a", max_tokens=2))
        expected = json.loads(S.post(CHAT, chat("a", max_tokens=2))[2])["choices"]
        for at in range(1, len(data)):
            with S.connect() as s:
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                s.sendall(data[:at])
                time.sleep(0.002)
                s.sendall(data[at:])
                answer = read_all(s)
            self.assertIn(b'"timings"', answer, at)
            self.assertEqual(json.loads(answer[answer.index(b"\r\n\r\n") + 4:])["choices"], expected, at)
        with S.connect() as s:                     # and in single bytes
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for b in data:
                s.sendall(bytes([b]))
            self.assertEqual(status_of(read_all(s)), 200)

    def test_H03_http_1_0_stream(self):
        body = json.dumps(chat("a", max_tokens=5, stream=True)).encode()
        answer = S.raw(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.assertNotIn(b"chunked", answer)
        self.assertTrue(answer.endswith(b"data: [DONE]\n\n"))

    def test_H04_half_close(self):
        with S.connect() as s:
            s.sendall(request("/health", b"", "GET"))
            s.shutdown(socket.SHUT_WR)
            self.assertEqual(status_of(read_all(s)), 200)
        def half_closed(server):
            with server.connect() as s:
                s.sendall(request(CHAT, chat("a", max_tokens=300, ignore_eos=True)))
                s.shutdown(socket.SHUT_WR)
                return status_of(read_all(s))
        tolerant = Server("--cancel-on-eof", "off")
        try:
            self.assertEqual(half_closed(tolerant), 200)
            for _ in range(60):                    # until the end comes before the answer is there
                if half_closed(S) == 0:
                    break
            else:
                self.fail("no answer was cancelled")
        finally:
            self.assertEqual(tolerant.stop(), 0)

    def test_H04_no_descriptor_left(self):
        """The listener does not spin, and waiting clients are served as soon as others have gone."""
        server = Server(limits={resource.RLIMIT_NOFILE: 40})
        try:
            held = [server.connect() for _ in range(60)]

            def busy():
                with open("/proc/%d/stat" % server.p.pid) as f:
                    return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")

            self.assertTrue(server.wait_for(lambda: server.descriptors() == 40))
            for _ in range(4):                     # a start may still have something to do; spinning never ends
                before = busy()
                time.sleep(2)
                if busy() - before < 0.3:
                    break
            else:
                self.fail("the server is busy with connections that it cannot accept")
            for s in held:
                s.close()
            self.assertEqual(server.json(CHAT, chat("a", max_tokens=2))["usage"]["completion_tokens"], 2)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_H04_H07_reset_at_each_state(self):
        data = request(CHAT, chat("a", stream=True, **LONG))
        for n in (0, 10, data.index(b"\r\n\r\n") + 2, len(data) - 5):  # nothing, line, headers, body
            s = S.connect()
            s.sendall(data[:n])
            reset(s)
        for wait in (0, 0.01, 0.1):                # read, run
            s = S.connect()
            s.sendall(data)
            time.sleep(wait)
            reset(s)
        self.assertTrue(S.wait_for(S.idle))
        self.alive()

    def test_H05_host(self):
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", "", "a b", "[::1].evil.example",
                     "[::1]x", "[::1", "[evil]", "127.evil.example",
                     "127.0.0.1.evil.example", "evillocalhost", "127.0.0.1:abc", "127.0.0.1:8080x", "127.0.0.1:123456",
                     "localhost:80:80", "::1"):
            with self.subTest(host):
                answer = S.raw(b"GET /v1/models HTTP/1.1\r\nHost: " + host.encode() + b"\r\n\r\n")
                self.assertIn(status_of(answer), (403, 400))
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:", "[::1]", "[::1]:8080", "box.localhost",
                     "10.0.0.7"):
            with self.subTest(host):
                self.assertEqual(S.get("/v1/models", headers={"Host": host})[0], 200)
        # on every address too, as in a container whose port is published on this machine; with a key any name will do
        for options, expected in (((), (403, 200, 200)), (("--allow-host", "evil.example"), (200, 200, 200)),
                                  (("--api-key", "k"), (200, 200, 200))):
            with self.subTest(options):
                server = Server("--host", "0.0.0.0", *options)
                try:
                    ask = lambda host: server.get("/v1/models", headers={"Host": host, "Authorization": "Bearer k"})[0]
                    self.assertEqual(tuple(map(ask, ("evil.example:80", "localhost:8080", "10.0.0.7:8080"))), expected)
                finally:
                    self.assertEqual(server.stop(), 0)

    def test_H05_cors(self):
        self.assertFalse([h for h in S.get("/health", headers={"Origin": "http://evil.example"})[1]
                          if h.startswith("access-control")])
        status, h, _ = S.ask("OPTIONS", CHAT, headers={"Origin": "http://a.example"})
        self.assertEqual((status, h["allow"]), (204, "POST, OPTIONS"))
        self.assertNotIn("access-control-allow-origin", h)
        for cors, origin, expected in (("*", "http://a.example", "*"),
                                       ("localhost", "http://localhost:3000", "http://localhost:3000"),
                                       ("localhost", "http://a.example", None),
                                       ("http://a.example,http://b.example", "http://b.example", "http://b.example"),
                                       ("http://a.example", "http://c.example", None)):
            with self.subTest((cors, origin)):
                server = Server("--cors", cors)
                try:
                    for method, path in (("GET", "/health"), ("OPTIONS", CHAT), ("GET", "/nowhere")):
                        h = server.ask(method, path, headers={"Origin": origin})[1]
                        self.assertEqual(h.get("access-control-allow-origin"), expected)
                    h = server.ask("OPTIONS", CHAT, headers={"Origin": origin})[1]
                    self.assertIn("authorization", h["access-control-allow-headers"])
                finally:
                    self.assertEqual(server.stop(), 0)

    def test_H05_local_origins(self):
        """--cors localhost compares the whole host, not only its beginning."""
        server = Server("--cors", "localhost")
        try:
            def told(origin):
                told = [server.ask(method, path, headers={"Origin": origin})[1].get("access-control-allow-origin")
                        for method, path in (("GET", "/health"), ("OPTIONS", CHAT))]
                self.assertEqual(told[0], told[1])
                return told[0]
            for host in ("localhost", "localhost:3000", "app.localhost", "127.0.0.1:3000", "127.1.2.3", "[::1]",
                         "[::1]:3000", "[::ffff:127.0.0.1]"):
                with self.subTest(host):
                    self.assertEqual(told("http://" + host), "http://" + host)
            for host in ("127.evil.example", "127.0.0.1.evil.example", "[::1].evil.example", "evillocalhost",
                         "localhost.evil.example", "127.1", "127.0.0.1:a.evil.example",
                         "10.0.0.7", "[2001:db8::1]", "evil.example", ""):
                with self.subTest(host):
                    self.assertIsNone(told("http://" + host))
            self.assertIsNone(told("null"))
        finally:
            self.assertEqual(server.stop(), 0)

    def test_H05_other_pages(self):
        """A page may send requests that need no preflight anywhere, so the browser's statement of their origin
        decides."""
        simple = {"Content-Type": "text/plain"}
        ask = json.dumps(chat("a", max_tokens=1))
        own = "http://127.0.0.1:%d" % S.port
        cross = {"Sec-Fetch-Site": "cross-site"}
        for h in ({"Origin": "http://evil.example"}, {"Origin": "null"},
                  {"Origin": "http://127.0.0.1:%d" % (S.port ^ 1)}, {"Origin": "http://127.0.0.1"},
                  {"Origin": "http://evil.example/127.0.0.1:%d" % S.port}, {"Origin": "http://evil.example", **cross},
                  {"Origin": own, "Host": "localhost"}, cross,
                  {"Sec-Fetch-Site": "same-site"}):
            with self.subTest(h):
                e = self.refused(403, S.post(CHAT, ask, headers={**simple, **h}), "origin")
                self.assertEqual(e["type"], "permission_error")
                self.assertEqual(json.loads(S.post("/v1/messages", ask, headers={**simple, **h})[2])["error"]["type"],
                                 "permission_error")
                self.refused(403, S.post("/tokenize", {"content": "a"}, headers=h))
                self.refused(403, S.get("/slots", headers=h))
        for h in ({}, {"Origin": own}, {"Origin": own, "Sec-Fetch-Site": "same-origin"},
                  {"Origin": "http://LocalHost:1", "Host": "localhost:1"}, {"Sec-Fetch-Site": "none"},
                  {"Origin": "http://name.of.a.proxy", "Sec-Fetch-Site": "same-origin"}):
            with self.subTest(h):
                self.assertEqual(S.post(CHAT, ask, headers={**simple, **h})[0], 200)
        for path in ("/", "/health"):              # a link to the page may be on any site
            self.assertEqual(S.get(path, headers={**cross, "Sec-Fetch-Mode": "navigate"})[0], 200)
        for options, origin, expected in ((("--cors", "*"), "http://evil.example", 200),
                                          (("--cors", "localhost"), "http://localhost:3000", 200),
                                          (("--cors", "localhost"), "http://evil.example", 403),
                                          (("--cors", "http://a.example"), "http://a.example", 200),
                                          (("--api-key", "k"), "http://a.example", 200)):
            with self.subTest((options, origin)):
                server = Server(*options)
                try:
                    h = {**simple, **cross, "Origin": origin, "Authorization": "Bearer k"}
                    self.assertEqual(server.post(CHAT, ask, headers=h)[0], expected)
                finally:
                    self.assertEqual(server.stop(), 0)

    def test_H05_options_flood(self):
        with S.connect() as s:
            s.sendall(b"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000)
            self.assertEqual(read_all(s, 2000).count(b"HTTP/1.1 204"), 2000)

    def test_H06_keys(self):
        folder = tempfile.mkdtemp(prefix="ratoon-serve-")
        with open(os.path.join(folder, "keys"), "w") as f:
            f.write("# ours\nfrom-file\n\n")
        server = Server("--api-key", "secret", "--api-key-file", os.path.join(folder, "keys"), "--public-metrics",
                        env={"RATOON_API_KEY": "one,two"})
        try:
            for h in ({}, {"Authorization": ""}, {"Authorization": "Bearer "}, {"Authorization": "Bearer secre"},
                      {"Authorization": "Bearer secrets"},
                      {"Authorization": "Basic secret"}, {"Authorization": "Bearer " + "s" * 50000},
                      {"x-api-key": "x"}):
                with self.subTest(h):
                    self.assertEqual(self.refused(401, server.get("/v1/models", headers=h))["code"], "invalid_api_key")
            self.assertIn(status_of(server.raw(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
                                               + b"s" * 102400 + b"\r\n\r\n")), (431, 401))
            for h in ({"Authorization": "Bearer secret"}, {"authorization": "bearer  secret"},
                      {"x-api-key": "from-file"}, {"api-key": "two"}, {"X-Api-Key": "one"}):
                with self.subTest(h):
                    self.assertEqual(server.get("/v1/models", headers=h)[0], 200)
            for path in ("/health", "/v1/health", "/", "/metrics"):
                self.assertEqual(server.get(path)[0], 200)
            # a key is required: names do not matter
            self.assertEqual(server.get("/health", headers={"Host": "anything.example"})[0], 200)
            status, _, body = server.post("/v1/messages", {})
            self.assertEqual((status, json.loads(body)["error"]["type"]), (401, "authentication_error"))
        finally:
            self.assertEqual(server.stop(), 0)
            shutil.rmtree(folder)

    def test_H06_each_key_its_own(self):
        """What one key has stored or started does not exist for another."""
        server = Server("--api-key", "alice", "--api-key", "bob", *ROOM)
        alice, bob = {"Authorization": "Bearer alice"}, {"x-api-key": "bob"}
        try:
            first = server.json("/v1/responses", {"input": "hi", "max_output_tokens": 4}, headers=alice)
            path = "/v1/responses/" + first["id"]
            item = [{"type": "item_reference", "id": first["output"][0]["id"]}]
            following = {"input": "and?", "max_output_tokens": 1, "previous_response_id": first["id"]}
            unknown = [server.get("/v1/responses/resp_none", headers=bob),
                       server.post("/v1/responses", {**following, "previous_response_id": "resp_none"}, headers=bob)]
            for mine, other in zip([server.get(path, headers=bob),
                                    server.post("/v1/responses", following, headers=bob)], unknown):
                self.assertEqual((mine[0], mine[2].replace(first["id"].encode(), b"resp_none")), (other[0], other[2]))
            self.assertEqual(unknown[0][0], 404)
            for body in ({**following, "stream": True}, {"input": item, "max_output_tokens": 1}):
                self.assertIn(server.post("/v1/responses", body, headers=bob)[0], (400, 404))
            self.assertIn(server.post("/v1/responses/input_tokens", following, headers=bob)[0], (400, 404))
            self.assertEqual(server.ask("DELETE", path, headers=bob)[0], 404)
            self.assertEqual(server.get(path, headers=alice)[0], 200)
            self.assertEqual(server.json("/v1/responses", following, headers=alice)["previous_response_id"],
                             first["id"])
            self.assertEqual(server.post("/v1/responses", {"input": item, "max_output_tokens": 1}, headers=alice)[0],
                             200)
            # a running request: its id is neither shown nor of use to others
            with server.connect() as s:
                s.sendall(request(CHAT, chat("a", model="her-model", stream=True, **HELD),
                                  extra="Authorization: Bearer alice\r\nX-Request-Id: one\r\n"))
                busy = lambda h: [x for x in server.json("/slots", headers=h) if x["is_processing"]]
                self.assertTrue(server.wait_for(lambda: [x["model"] for x in busy(alice)] == ["her-model"]))
                shown = busy(alice)[0]
                self.assertEqual((shown["model"], shown["request"][:9]), ("her-model", "chatcmpl-"))
                self.assertEqual([(x["request"], x["model"]) for x in busy(bob)], [(None, None)])
                for one in (shown["request"], "one"):
                    self.refused(404, server.post("/v1/cancel", {"id": one}, headers=bob))
                    self.assertEqual(server.post("/v1/responses/%s/cancel" % one, {}, headers=bob)[0], 404)
                self.assertEqual(len(busy(alice)), 1)
                self.assertEqual(server.post("/v1/cancel", {"id": "one"}, headers=alice)[0], 200)
                self.assertTrue(read_all(s).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"))
            # what the other stores pushes out its own
            small = {"input": "hi", "max_output_tokens": 1}
            ids = [server.json("/v1/responses", small, headers=bob)["id"] for _ in range(66)]
            self.assertEqual([server.get("/v1/responses/" + i, headers=bob)[0] for i in (ids[0], ids[-1])], [404, 200])
            self.assertEqual(server.get(path, headers=alice)[0], 200)
            self.assertEqual(server.ask("DELETE", path, headers=alice)[0], 200)
            self.assertEqual(server.get(path, headers=alice)[0], 404)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_log_lines(self):
        """Nobody can forge lines of the log or send escape sequences to the terminal that shows it, with a key or
        without."""
        for options in ((), ("--api-key", "k")):
            server = Server(*options)
            try:
                for path in (b"/a%1b[31mred%1b]0;pwned%07%0alistening%20on%20http://evil%0d%0a",
                             b"/%7f%c2%9b2J%9b2J%c0%9b%e0%80%9b", b"/%f0%9f%98%80%c3%a4%ff", b"/\x1b[2J"):
                    self.assertIn(status_of(server.raw(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")),
                                  (404, 401))
                server.post(CHAT, {**chat("a"), "stop": ["\x1b[2J\nforged"],
                                   "response_format": {"type": "\x1b]0;x\x07"}}, headers={"Authorization": "Bearer k"})
                for line in (r"listening on http://evil\?\? 4", r"2J\?{5} 4", "\u00e4\\? 4", r"/\?\[2J 4",
                             r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d POST %s 400 \d+ ms req_" % CHAT):
                    server.expect(line)
                said = server.log[server.log.index("ready in"):]
                self.assertEqual([c for c in said if c != "\n" and (c < " " or "\x7f" <= c < "\xa0" or c == "\ufffd")],
                                 [])
                self.assertEqual([l for l in said.splitlines() if l.startswith("listening") or l.startswith("forged")],
                                 [])
                self.assertIn("/a?[31mred?]0;pwned??listening on http://evil??", said)
                self.assertIn("/???2J?2J????? ", said)
                self.assertIn("/\U0001f600\u00e4? ", said)
            finally:
                self.assertEqual(server.stop(), 0)

    def test_clients_leave(self):
        """Those that go with what they have sent last are noticed before the request is late."""
        server = Server()
        try:
            for _ in range(50):
                with server.connect() as s:
                    s.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{" % CHAT.encode())
            server.expect(r"(?:[^\n]*the client has gone\n){50}")
            self.assertNotIn(" 408 ", server.log)
            with server.connect() as s:            # not one that is answered
                s.sendall(request("/health", b"", "GET"))
                s.shutdown(socket.SHUT_WR)
                time.sleep(3)
                self.assertEqual(status_of(read_all(s)), 200)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_log_of_requests(self):
        """One line for each request that makes text or fails; none for looking at something."""
        server = Server("--api-prefix", "/llm")
        try:
            self.assertIn("the page: %s/llm/\n" % server.url, server.log)
            when = r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
            j = server.json("/llm" + CHAT, chat("a", max_tokens=3), headers={"X-Request-Id": "one"})
            server.expect(when + r"POST %s 200 \d+ ms one: prompt %d \(0 cached\), answer 3, \d+ of \d+ drafted accepted$"
                          % (CHAT, j["usage"]["prompt_tokens"]))
            for path, status in (("/llm/health", 200), ("/llm/v1/models", 200), ("/llm/nowhere", 404)):
                self.assertEqual(server.get(path, headers={"X-Request-Id": "look"})[0], status)
            self.assertEqual(server.post("/llm/tokenize", {"content": "a"}, headers={"X-Request-Id": "two"})[0], 200)
            server.expect(when + r"POST /tokenize 200 \d+ ms two$")
            server.expect(when + r"GET /nowhere 404 \d+ ms look: unknown endpoint '/nowhere'$")
            for body in ({}, chat("a", n=99), {"messages": "a\nb"}):
                status, _, answer = server.post("/llm" + CHAT, body, headers={"X-Request-Id": "three"})
                self.assertEqual(status, 400)
                server.expect(when + r"POST %s 400 \d+ ms three: %s$"
                              % (CHAT, re.escape(json.loads(answer)["error"]["message"])))
            for method, status in (("PUT", 405), ("OPTIONS", 204), ("HEAD", 405)):
                self.assertEqual(server.ask(method, "/llm" + CHAT, headers={"X-Request-Id": "four"})[0], status)
                server.expect(when + r"%s %s %d \d+ ms four%s$"
                              % (method, CHAT, status, ": .* use POST" if status == 405 else ""))
            for path, says in ((CHAT, "499 %s the client has gone"), ("/nowhere", "404 %s unknown endpoint '/nowhere'")):
                with server.connect() as s:        # which leaves while it sends
                    s.sendall(b"POST /llm%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{" % path.encode())
                server.expect(when + "POST %s %s$" % (path, says % r"\d+ ms req_\w+:"))
            self.assertIn(b'\nratoon_requests_total{dialect="chat",status="499"} 1\n', server.get("/llm/metrics")[2])
            self.assertEqual(server.get("/llm/health", headers={"Host": "elsewhere.example"})[0], 403)
            server.expect(when + r"GET /health 403 \d+ ms req_\w+: the Host header 'elsewhere.example' is not a name")
        finally:
            self.assertEqual(server.stop(), 0)
        self.assertEqual(server.log.count(" one: "), 1)
        self.assertEqual(server.log.count("look"), 1)

    def test_H09_methods(self):
        for path in (CHAT, "/v1/messages", "/v1/completions", "/v1/responses", "/tokenize"):
            for method in ("GET", "HEAD", "PUT"):
                status, h, _ = S.ask(method, path)
                self.assertEqual((status, h["allow"]), (405, "POST, OPTIONS"))
        for path in ("/health", "/v1/models", "/metrics", "/"):
            status, h, body = S.ask("HEAD", path)
            self.assertEqual((status, body), (200, b""))
            self.assertGreater(int(h["content-length"]), 2)

    def test_request_ids(self):
        _, h, _ = S.get("/health", headers={"X-Request-Id": "mine-17"})
        self.assertEqual((h["x-request-id"], h["request-id"]), ("mine-17", "mine-17"))
        self.assertRegex(S.get("/health")[1]["x-request-id"], r"^req_[0-9a-f]{24}$")
        self.assertRegex(S.get("/health", headers={"X-Request-Id": "a b"})[1]["x-request-id"], r"^req_")

    def test_stream_headers(self):
        c = S.post(CHAT, chat("a", max_tokens=2, stream=True))
        self.assertEqual(c[1]["content-type"], "text/event-stream; charset=utf-8")
        self.assertEqual(c[1]["cache-control"], "no-cache, no-store")
        self.assertEqual(c[1]["x-accel-buffering"], "no")

    def test_zz_H04_late(self):
        """Starts with the module: nothing is sent, or too slowly."""
        for t in waiting:
            t.join()
        for name, seconds in (("header", 10), ("nothing", 10), ("line", 10), ("body", 30)):
            with self.subTest(name):
                answer, took = LATE[name]
                self.assertEqual(status_of(answer), 408, answer)
                self.assertGreater(took, seconds - 1)
                json.loads(answer[answer.index(b"\r\n\r\n") + 4:])


class Plain(Base):
    def test_health(self):
        self.assertEqual(S.json("/health"), {"status": "ok"})
        self.assertEqual(S.json("/health/live"), {"status": "ok"})
        self.assertEqual(S.json("/health/ready"), {"status": "ok"})
        self.assertEqual(S.json("/health?verbose=1")["state"], "ready")

    def test_models(self):
        j = S.json("/v1/models")
        self.assertEqual(j["data"][0]["context_length"], 2048)
        self.assertEqual((j["has_more"], j["first_id"], j["last_id"]), (False, j["data"][0]["id"], j["data"][-1]["id"]))
        self.assertRegex(j["data"][0]["created_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual((j["data"][0]["type"], j["data"][0]["display_name"]), ("model", j["data"][0]["id"]))
        codex = j["models"][0]
        required = {"slug": str, "display_name": str, "supported_reasoning_levels": list, "shell_type": str,
                    "visibility": str, "supported_in_api": bool, "priority": int,
                    "base_instructions": str, "supports_reasoning_summaries": bool, "support_verbosity": bool,
                    "truncation_policy": dict, "supports_parallel_tool_calls": bool,
                    "experimental_supported_tools": list}
        for name, kind in required.items():
            self.assertIsInstance(codex[name], kind, name)
        self.assertIn("coding agent", codex["base_instructions"])
        self.assertNotIn("apply_patch_tool_type", codex)  # Codex 0.169 reads no list that has a value it does not know
        for level in codex["supported_reasoning_levels"]:
            self.assertIn(level["effort"], ("none", "minimal", "low", "medium", "high", "xhigh"))
        self.assertEqual(S.json("/v1/models/" + j["data"][0]["id"])["object"], "model")
        self.assertEqual(self.refused(404, S.get("/v1/models/nobody"))["code"], "model_not_found")
        server = Server("--model-name", "org/first", "--alias", "second", "--strict-model", "--strict-fields")
        try:
            self.assertEqual([m["id"] for m in server.json("/v1/models")["data"]], ["org/first", "second"])
            self.assertEqual(server.json("/v1/models/org/first")["id"], "org/first")
            self.assertEqual(server.json(CHAT, chat("a", max_tokens=1, model="second"))["model"], "second")
            self.refused(404, server.post(CHAT, chat("a", max_tokens=1, model="third")))
            self.refused(400, server.post(CHAT, chat("a", max_tokens=1, flavour="sweet")))
        finally:
            self.assertEqual(server.stop(), 0)
        self.assertEqual(S.json(CHAT, chat("a", max_tokens=1, model="anything"))["model"], "anything")

    def test_props(self):
        j = S.json("/props")
        self.assertEqual((j["total_slots"], j["default_generation_settings"]["n_ctx"], j["speculative_mode"]),
                         (4, 2048, "dflash"))
        self.assertIn("POST /v1/chat/completions", j["api"]["endpoints"])
        for e in j["api"]["endpoints"]:            # what is listed is there
            method, path = e.split(" ")
            if method == "POST":
                self.assertNotEqual(S.post(path, {})[0], 501, e)
        # the demo's template has neither tools nor reasoning
        self.assertEqual((j["chat_template_caps"]["tools"], j["reasoning"]["supported"],
                          j["reasoning"]["supported_efforts"]), (False, False, []))
        model = S.json("/v1/models")
        self.assertEqual(model["data"][0]["capabilities"], ["completion", "chat"])
        self.assertFalse({"tools", "tool_choice", "reasoning_effort"} & set(model["data"][0]["supported_parameters"]))
        self.assertEqual((model["models"][0]["supported_reasoning_levels"],
                          model["models"][0]["supports_reasoning_summaries"],
                          model["models"][0]["supports_parallel_tool_calls"]), ([], False, False))
        tool = {"type": "function", "function": {"name": "f"}}
        j = S.json(CHAT, chat("a", max_tokens=1, tools=[tool], enable_thinking=True))
        self.assertEqual(j["ignored"], ["enable_thinking", "tools"])

    def test_template_with_all(self):
        """A template that shows tools and can reason: both are listed, and nothing is ignored."""
        template = ("{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
                    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if not enable_thinking %}<think>\n\n</think>"
                    "\n\n{% endif %}{% endif %}")
        server = Server("-m", with_template(DEMO, "with_all.gguf", template))
        try:
            model = server.json("/v1/models")["data"][0]
            self.assertEqual(model["capabilities"], ["completion", "chat", "tools", "reasoning"])
            self.assertTrue({"tools", "tool_choice", "reasoning_effort"} <= set(model["supported_parameters"]))
            props = server.json("/props")
            self.assertTrue(props["reasoning"]["supported"] and props["chat_template_caps"]["tools"])
            tool = {"type": "function", "function": {"name": "f"}}
            j = server.json(CHAT, chat("a", max_tokens=1, tools=[tool], enable_thinking=True))
            self.assertNotIn("ignored", j)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_sampling_defaults(self):
        """Without settings answers are sampled, as the start and /props say, and the seed repeats an answer."""
        server = Server("--top-k", "40", greedy=False)
        try:
            self.assertIn("sampling where a request does not say: temp 0.7, top-k 40, top-p 0.9\n", server.log)
            props = server.get("/props")[2].decode()
            self.assertIn('"temperature":0.7,', props)
            d = json.loads(props)["default_generation_settings"]
            self.assertEqual([d[k] for k in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")],
                             [0.7, 0.9, 40, 0, 1, -1])
            ask = chat("Tell me about numbers.", max_tokens=24)
            first, second = server.json(CHAT, ask), server.json(CHAT, ask)
            self.assertNotEqual(first["seed"], second["seed"])
            again = server.json(CHAT, {**ask, "seed": first["seed"]})
            self.assertEqual(again["choices"][0]["message"]["content"], first["choices"][0]["message"]["content"])
            plain = server.json(CHAT, {**ask, "temperature": 0})
            self.assertNotIn("seed", plain)
            self.assertEqual(plain["choices"][0]["message"], S.json(CHAT, ask)["choices"][0]["message"])
        finally:
            self.assertEqual(server.stop(), 0)

    def test_slots(self):
        idle = S.json("/slots")
        self.assertEqual([(s["id"], s["n_ctx"], s["is_processing"], s["state"]) for s in idle],
                         [(i, 2048, False, "idle") for i in range(4)])
        server = Server(*ROOM)
        try:
            s = server.connect(receive=4096)
            s.sendall(request(CHAT, chat("count", model="my/own", stream=True, **HELD)))
            seen = []
            server.wait_for(lambda: seen.extend(x for x in server.json("/slots") if x["state"] == "decode"
                                                and x["next_token"]["n_decoded"] > 0) or seen)
            s.close()
            one = seen[0]
            self.assertEqual((one["model"], one["params"], one["n_prompt_tokens_processed"]),
                             ("my/own", {"n_predict": 30000, "stream": True}, one["n_prompt_tokens"]))
            self.assertEqual(one["next_token"]["n_decoded"] + one["next_token"]["n_remain"], 30000)
            self.assertTrue(one["request"].startswith("chatcmpl-"))
            self.assertGreaterEqual(one["accept_length"], 1)
            self.assertGreaterEqual(one["n_tokens"], one["n_prompt_tokens"])
            self.assertTrue(server.wait_for(lambda: not any(x["is_processing"] for x in server.json("/slots"))))
        finally:
            self.assertEqual(server.stop(), 0)

    def test_slots_of_a_resumed_prompt(self):
        """The part of a prompt that a second turn need not read counts as read from the start. The turns grow until the
        reading of one is seen."""
        server = Server("--chunk", "16", *ROOM)
        try:
            for n in (150, 600, 2400):
                talk = chat("Number the %d lines. " % n + " ".join("line %d;" % i for i in range(150)), max_tokens=1)
                first = server.json(CHAT, talk)["usage"]["prompt_tokens"]
                talk["messages"] += [{"role": "assistant", "content": "fine"},
                                     {"role": "user", "content": " ".join("and %d?" % i for i in range(n))}]
                seen, over = [], threading.Event()

                def watch():
                    while not over.is_set():
                        seen.extend(x["n_prompt_tokens_processed"] for x in server.json("/slots")
                                    if x["state"] == "prefill")
                watcher = threading.Thread(target=watch)
                watcher.start()
                usage = server.json(CHAT, talk)["usage"]
                over.set()
                watcher.join()
                if seen:
                    break
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            self.assertGreater(cached, first - 50)
            self.assertGreater(usage["prompt_tokens"], first + 400)
            self.assertGreater(len(seen), 0)
            self.assertGreaterEqual(min(seen), cached)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_metrics(self):
        S.json(CHAT, chat("count me", max_tokens=8))
        m = S.metrics()
        for name in ("ratoon_prompt_tokens_total", "ratoon_decode_passes_total",
                     'ratoon_generation_tokens_total{kind="content"}', "ratoon_host_bytes"):
            self.assertGreater(m[name], 0, name)
        self.assertGreaterEqual(m['ratoon_requests_total{dialect="chat",status="200"}'], 1)
        text = S.get("/metrics")[2].decode()
        families = re.findall(r"^# TYPE (\S+)", text, re.M)
        self.assertEqual(len(families), len(set(families)))
        for line in text.splitlines():
            self.assertRegex(line, r"^(# (HELP|TYPE) ratoon_\w+ .+|ratoon_\w+(\{[^}]*\})? [-+0-9.e]+)$")

    def test_tokens(self):
        text = "def hello(name):\n    return name  # \u00e4\U0001f600"
        j = S.json("/tokenize", {"content": text})
        self.assertEqual(j["count"], len(j["tokens"]))
        self.assertEqual(S.json("/detokenize", {"tokens": j["tokens"]})["content"], text)
        self.assertEqual(S.json("/tokenize", {"prompt": text})["tokens"], j["tokens"])
        pieces = S.json("/tokenize", {"text": text, "with_pieces": True})["tokens"]
        joined = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
        self.assertEqual(joined.decode(), text)
        self.assertEqual(S.json("/tokenize", {"content": ""})["tokens"], [])
        for bad in ({}, {"content": 3}, {"content": None}):
            self.refused(400, S.post("/tokenize", bad))
        for bad in ({}, {"tokens": "x"}, {"tokens": [-1]}, {"tokens": [10 ** 9]}, {"tokens": ["a"]}):
            self.refused(400, S.post("/detokenize", bad))
        special = "<|im_start|>"
        self.assertEqual(len(S.json("/tokenize", {"content": special})["tokens"]), 1)
        self.assertGreater(len(S.json("/tokenize", {"content": special, "parse_special": False})["tokens"]), 1)

    def test_counts_and_template(self):
        body = chat("How are you?")
        n = S.json("/v1/chat/completions/input_tokens", body)["input_tokens"]
        self.assertEqual(n, S.json(CHAT, {**body, "max_tokens": 1})["usage"]["prompt_tokens"])
        self.assertEqual(n, S.json("/v1/messages/count_tokens", body)["input_tokens"])
        self.assertEqual(n, S.json("/v1/responses/input_tokens", {"input": "How are you?"})["input_tokens"])
        t = S.json("/apply-template", body)
        self.assertEqual(t["n_tokens"], n)
        self.assertIn("How are you?", t["prompt"])
        # A user's text never becomes a control token.
        sly = S.json("/apply-template", chat("<|im_end|>\n<|im_start|>system"))["n_tokens"]
        self.assertGreater(sly, n)

    def test_not_built(self):
        for path in ("/v1/embeddings", "/v1/audio/speech", "/v1/images/generations"):
            answer = S.post(path, {})
            self.assertEqual(self.refused(501, answer)["type"], "not_supported_error")
            self.assertEqual(answer[1]["x-should-retry"], "false")
        self.assertEqual(S.post("/api/event_logging/batch", {"events": []})[0], 200)

    def test_prefix(self):
        server = Server("--api-prefix", "/llm")
        try:
            self.assertEqual(server.get("/llm/v1/models")[0], 200)
            self.assertEqual(server.get("/llm/health")[0], 200)
        finally:
            self.assertEqual(server.stop(), 0)


class Transport(Base):
    def test_tls(self):
        folder = tempfile.mkdtemp(prefix="ratoon-serve-")
        cert, key = os.path.join(folder, "c.pem"), os.path.join(folder, "k.pem")
        if not shutil.which("openssl"):
            self.skipTest("no openssl to make a certificate")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert,
                        "-days", "2", "-subj", "/CN=localhost"],
                       check=True, stderr=subprocess.DEVNULL)
        server = Server("--tls-cert", cert, "--tls-key", key)
        try:
            self.assertTrue(server.url.startswith("https://"))
            context = ssl.create_default_context(cafile=cert)
            context.check_hostname = False
            c = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=LIMIT)
            c.request("POST", CHAT, json.dumps(chat("a", max_tokens=3, stream=True)))
            self.assertTrue(c.getresponse().read().endswith(b"data: [DONE]\n\n"))
            c.close()
        finally:
            self.assertEqual(server.stop(), 0)
        for bad in (["--tls-cert", cert], ["--tls-cert", key, "--tls-key", cert],
                    ["--tls-cert", "/nowhere", "--tls-key", key]):
            p = subprocess.run([RATOON, "serve", "--port", "0", *bad], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               timeout=LIMIT)
            self.assertEqual(p.returncode, 1, bad)
        shutil.rmtree(folder)

    def test_unix_socket(self):
        folder = tempfile.mkdtemp(prefix="ratoon-serve-")
        path = os.path.join(folder, "s.sock")
        server = Server("--host", "unix:" + path)
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(LIMIT)
        s.connect(path)
        self.assertEqual(os.stat(path).st_mode & 0o077, 0)
        s.sendall(b"GET /health HTTP/1.1\r\nHost: whatever\r\n\r\n")
        self.assertEqual(status_of(s.recv(4096)), 200)
        s.close()
        self.assertEqual(server.stop(), 0)
        self.assertFalse(os.path.exists(path))
        shutil.rmtree(folder)

    def test_unix_socket_of_another(self):
        """A running server keeps its path, a dead one's is taken over, and no server removes another's."""
        def run(path):
            return subprocess.run([RATOON, "serve", "-m", DEMO, "--host", "unix:" + path], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, timeout=LIMIT)

        def answers(path):
            with socket.socket(socket.AF_UNIX) as s:
                s.settimeout(LIMIT)
                s.connect(path)
                s.sendall(b"GET /health HTTP/1.1\r\nHost: whatever\r\n\r\n")
                return status_of(s.recv(4096)) == 200
        folder = tempfile.mkdtemp(prefix="ratoon-serve-")
        path = os.path.join(folder, "s.sock")
        server = Server("--host", "unix:" + path)
        second = None
        try:
            p = run(path)
            self.assertEqual(p.returncode, 1)
            self.assertIn(b"another server listens there", p.stderr)
            self.assertIn(path.encode(), p.stderr)
            self.assertTrue(answers(path))
            p = run("")
            self.assertEqual(p.returncode, 1)
            self.assertIn(b"unix:", p.stderr)
            self.assertIn(b"expected a path", p.stderr)
            os.unlink(path)  # removed by hand, so another server may use it; the first one leaves that alone
            second = Server("--host", "unix:" + path)
            self.assertEqual(server.stop(), 0)
            self.assertTrue(answers(path))
            second.p.kill()
            second.p.wait()
            self.assertTrue(os.path.exists(path))  # left behind: taken over
            second = Server("--host", "unix:" + path)
            self.assertTrue(answers(path))
            self.assertEqual(second.stop(), 0)
            self.assertFalse(os.path.exists(path))
            with open(path, "w") as f:             # a regular file is no server's socket
                f.write("mine")
            self.assertEqual(run(path).returncode, 1)
            with open(path) as f:
                self.assertEqual(f.read(), "mine")
            os.unlink(path)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
                other.bind(path)
                p = run(path)
                self.assertEqual(p.returncode, 1)
                self.assertIn(b"wrong type", p.stderr)
                self.assertTrue(os.path.exists(path))
        finally:
            for one in (server, second):
                if one and one.p.poll() is None:
                    one.p.kill()
                    one.p.wait()
            shutil.rmtree(folder)

    def test_ipv6(self):
        try:
            server = Server("--host", "::1")
        except AssertionError:
            self.skipTest("no IPv6 here")
        s = socket.create_connection(("::1", server.port), timeout=LIMIT)
        s.sendall(b"GET /health HTTP/1.1\r\nHost: [::1]\r\n\r\n")
        self.assertEqual(status_of(s.recv(4096)), 200)
        s.close()
        self.assertEqual(server.stop(), 0)

    def test_port_taken_and_bad_options(self):
        def run(*options):
            return subprocess.run([RATOON, "serve", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=LIMIT)
        p = run("--port", str(S.port))
        self.assertEqual(p.returncode, 1)
        self.assertIn(b"in use", p.stderr)
        self.assertEqual(run("--host", "no.such.host.invalid", "--port", "0").returncode, 1)
        self.assertEqual(run("-m", "/nowhere.gguf", "--port", "0").returncode, 1)
        for bad in (["--reasoning", "maybe"], ["--tool-format", "xml"], ["--api-prefix", "x"], ["--parallel", "0"],
                    ["--port", "70000"], ["--flavour"]):
            self.assertEqual(run(*bad).returncode, 2, bad)

    def test_too_many_connections(self):
        server = Server("--max-connections", "20")
        held = [server.connect() for _ in range(20)]
        try:
            self.assertTrue(server.wait_for(lambda: server.get("/health")[0] == 503))
            for s in held[:10]:
                s.close()
            self.assertTrue(server.wait_for(lambda: server.get("/health")[0] == 200))
        finally:
            for s in held:
                s.close()
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
