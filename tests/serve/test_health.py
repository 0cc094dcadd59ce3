#!/usr/bin/env python3
"""`ratoon health`, and the key that `serve --generate-key` makes: what containers and services rest on.

    python3 tests/serve/test_health.py [-v] [TestName.test_name ...]

RATOON names the program (default: ./ratoon). The last line is 'N passed, N failed'."""
import http.server
import json
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helper import RATOON, ROOT, SLOW, Server, main, read_all
from scratch import TMP, path, write

CLEAN = {**os.environ, "XDG_CONFIG_HOME": "/nonexistent", "HOME": TMP}


def health(*args, env=None):
    """(exit status, standard output, standard error)."""
    p = subprocess.run([RATOON, "health", *args], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                       env={**CLEAN, **(env or {})}, timeout=60 * SLOW)
    return p.returncode, p.stdout, p.stderr


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers with `answer`, a status and a body, and keeps what was asked."""
    asked = []

    def do_GET(self):
        self.asked.append((self.path, dict(self.headers)))
        status, body = self.server.answer
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Health(unittest.TestCase):
    def ready(self, *args, **how):
        self.assertEqual(health(*args, **how), (0, "ready\n", ""))

    def not_ready(self, *args, says, **how):
        status, out, err = health(*args, **how)
        self.assertEqual((status, out, err.count("\n")), (1, "", 1), err)
        self.assertRegex(err, r"\Aratoon health: .*" + says)

    def stop(self, server):
        self.assertEqual(server.stop(), 0)

    def test_where_the_options_say(self):
        server = Server("--api-key", "secret", "--host", "0.0.0.0")
        port = str(server.port)
        try:
            self.ready("--port", port)
            self.ready("http://127.0.0.1:" + port)
            self.ready("http://localhost:%s/v1/" % port)
            self.ready(env={"RATOON_PORT": port, "RATOON_HOST": "0.0.0.0", "RATOON_API_KEY": "secret"})
            self.ready(env={"RATOON_PORT": port, "http_proxy": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1",
                            "no_proxy": "", "NO_PROXY": ""})
            for text in ("port = %s\n", "[serve]\nmodel = m.gguf\nport = %s\n", "[health]\nport = %s\n",
                         "[serve]\nport = 1\nport = %s\nqueue-size = 3\n"):
                self.ready("--config", write("config", text % port))
        finally:
            self.stop(server)
        self.not_ready("--port", port, says=r"http://127\.0\.0\.1:%s/health/ready: .*connect" % port)

    def test_prefix(self):
        server = Server("--api-prefix", "/llm")
        try:
            self.ready("--port", str(server.port), "--api-prefix", "/llm")
        finally:
            self.stop(server)

    def test_socket(self):
        server = Server("--host", "unix:" + path("s.sock"))
        self.ready("--host", "unix:" + path("s.sock"))
        self.stop(server)
        self.not_ready("--host", "unix:" + path("s.sock"), says="connect")

    def test_ipv6(self):
        try:
            with socket.socket(socket.AF_INET6) as s:
                s.bind(("::1", 0))
        except OSError:
            self.skipTest("no IPv6 here")
        server = Server("--host", "::1")
        try:
            self.ready("--host", "::1", "--port", str(server.port))
            self.ready("http://[::1]:%d" % server.port)
        finally:
            self.stop(server)

    @unittest.skipUnless(shutil.which("openssl"), "no openssl to make a certificate")
    def test_tls(self):
        """The server's certificate is trusted, whatever name it has; another one is not."""
        for name in "ours", "other":
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", path(name + ".key"),
                            "-out", path(name + ".pem"), "-days", "2", "-subj", "/CN=model.example"], check=True,
                           stderr=subprocess.DEVNULL)
        server = Server("--tls-cert", path("ours.pem"), "--tls-key", path("ours.key"))
        port = str(server.port)
        try:
            self.ready("--port", port, "--tls-cert", path("ours.pem"))
            self.not_ready("--port", port, "--tls-cert", path("other.pem"), says="certificate")
            self.not_ready("--port", port, "--tls-cert", path("missing.pem"), says="certificate")
            self.not_ready("https://127.0.0.1:" + port, says="certificate")
            self.not_ready("https://127.0.0.1:" + port, "--tls-cert", path("ours.pem"), says="name|127.0.0.1")
            self.not_ready("--port", port, says="")
        finally:
            self.stop(server)

    def test_answers(self):
        """What is not 200 is told in one line, whatever comes."""
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = "http://127.0.0.1:%d" % server.server_port
        loading = json.dumps({"error": {"message": "Loading model"}}).encode()
        try:
            for answer, says in (((503, loading), "answers 503, Loading model$"), ((404, b"<html>"), "answers 404$"),
                                 ((302, b""), "answers 302$"), ((500, b"{" * 100000), "answers 500$"),
                                 ((503, b'{"error":{"message":"a\\nb\\u001b[2J"}}'), r"answers 503, a\?b\?\[2J$"),
                                 ((503, b'{"error":{"message":{}}}'), "answers 503$")):
                with self.subTest(answer[1][:40]):
                    server.answer = answer
                    self.not_ready(url, says=says)
            server.answer = (200, b"{}")
            Scripted.asked.clear()
            self.ready(url + "//", env={"RATOON_API_KEY": "secret"})
            (route, headers), = Scripted.asked
            self.ready(url.replace("http://", "").replace("127.0.0.1", "localhost"))
            self.ready(url.rsplit(":")[-1])
            self.assertEqual(route, "/health/ready")
            self.assertNotIn("secret", str(headers), "the route needs no key")
        finally:
            server.shutdown()
            server.server_close()

    def test_wrong(self):
        self.not_ready("/health", says="/health: expected http://HOST:PORT")
        self.not_ready("x" * 5000, says="longer than 2048 bytes")
        self.not_ready("file:///etc/passwd", says="expected http://HOST:PORT")
        self.not_ready("--port", "0", says="--port 0 names no port")
        self.not_ready("http://127.0.0.1:99999999", says="")
        self.not_ready("http://" + "x" * 5000, says="longer than 2048 bytes")
        self.not_ready("--host", "x" * 5000, says="longer than 2048 bytes")
        self.not_ready("--api-prefix", "/" + "x" * 5000, says="longer than 2048 bytes")
        for args in ("--port", "x"), ("a", "b"), ("--config", write("bad", "[serve]\nport = x\n")):
            self.assertEqual(health(*args)[0], 2)

    def test_not_yet_ready(self):
        """While a server ends it answers, but is not ready."""
        server = Server("--shutdown-grace", "60")
        port = str(server.port)
        with server.connect() as s:
            body = json.dumps({"prompt": "a", "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
                      % (len(body), body))
            s.recv(1)
        self.assertEqual(server.stop(), 0)
        self.not_ready("--port", port, says="connect")


class Lost(unittest.TestCase):
    """A card that is lost to the process, on the emulated driver: the server answers whom it has, and ends."""
    WHY = r"cuda: .*700.*; the card's context is lost: start the program again"

    def server(self, sign):
        driver = os.path.join(ROOT, os.environ.get("BUILD", "build"), "libfake_cuda.so")
        return Server("--backend", "cuda", "--parallel", "2", "--threads", "1",
                      env={"RATOON_CUDA_DRIVER": driver, "RATOON_EMU_LOST": sign})

    def ends(self, server):
        self.assertEqual(server.ended(), 1)
        self.assertRegex(server.log, r"(?m)^ratoon serve: %s; the server ends$" % self.WHY)
        self.assertEqual(server.log.count("the server ends"), 1)
        self.assertEqual(health("--port", str(server.port))[0], 1)

    def test_while_requests_run(self):
        sign = path("lost")
        server = self.server(sign)
        ask = {"prompt": "a", "max_tokens": 1900, "ignore_eos": True}
        answers = []
        others = [threading.Thread(target=lambda: answers.append(server.post("/v1/completions", ask))) for _ in "ab"]
        with server.connect() as s:
            body = json.dumps({**ask, "stream": True}).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
                      % (len(body), body))
            stream = s.recv(65536)
            for t in others:
                t.start()
            self.assertTrue(server.wait_for(lambda: [server.json("/health?verbose=1")[k] for k in ("running", "waiting")]
                                            == [2, 1]))
            write("lost", "")
            stream += read_all(s)
            for t in others:
                t.join()
        self.assertRegex(stream.decode(), self.WHY)
        self.assertEqual(sorted(a[0] for a in answers), [500, 503], answers)
        self.assertRegex(min(answers)[2].decode(), self.WHY)
        self.assertIn(b"the server is shutting down", max(answers)[2])
        self.ends(server)

    def test_while_none_does(self):
        for more in {}, {"echo": True, "logprobs": 1}:
            sign = path("lost-%d" % len(more))
            server = self.server(sign)
            ask = {"prompt": "one two three", "max_tokens": 2, **more}
            self.assertEqual(server.post("/v1/completions", ask)[0], 200)
            write(os.path.basename(sign), "")
            status, _, text = server.post("/v1/completions", ask)
            self.assertEqual(status, 500)
            self.assertRegex(text.decode(), self.WHY)
            self.ends(server)


class GeneratedKey(unittest.TestCase):
    def start(self, *options, **how):
        return Server("--host", "0.0.0.0", *options, **how)

    def status(self, server, key):
        return server.get("/v1/models", headers={"Authorization": "Bearer " + key, "Host": "nas.example:9000"})[0]

    def test_made_once_and_kept(self):
        file = path("api-key")
        keys = []
        for start in range(2):
            server = self.start("--generate-key", file)
            try:
                said = re.findall(r"^API key, made now and kept in (\S+): (\S+)$", server.log, re.M)
                keys += said
                self.assertEqual(len(said), 1 if start == 0 else 0, server.log)
                self.assertEqual(self.status(server, keys[0][1]), 200)
                self.assertEqual(self.status(server, "other"), 401)
                self.assertIn("(every address of this machine; of a container, where its port is published)", server.log)
                self.assertNotIn("no API key", server.log)
            finally:
                self.assertEqual(server.stop(), 0)
        self.assertEqual(keys[0][0], file)
        self.assertRegex(keys[0][1], r"\Art-[0-9a-f]{48}\Z")
        self.assertEqual(stat.S_IMODE(os.stat(file).st_mode), 0o600)
        os.remove(file)
        server = self.start(env={"RATOON_GENERATE_KEY": file})
        try:
            self.assertEqual(self.status(server, keys[0][1]), 401, "another file, another key")
        finally:
            self.assertEqual(server.stop(), 0)

    def test_given_keys_count(self):
        """A key from anywhere else: none is made, and one that was made before is not accepted."""
        file = write("kept", "rt-old\n")
        for options, env in ((["--api-key", "k"], {}), ([], {"RATOON_API_KEY": "k"}),
                             (["--api-key-file", write("keys", "k\n")], {}), (["--config", write("c", "api-key = k\n")], {})):
            for at in file, path("none"):
                server = self.start("--generate-key", at, *options, env=env)
                try:
                    self.assertEqual((self.status(server, "k"), self.status(server, "rt-old")), (200, 401))
                    self.assertNotIn("made now", server.log)
                finally:
                    self.assertEqual(server.stop(), 0)
        self.assertFalse(os.path.exists(path("none")))

    def test_what_cannot_be(self):
        os.makedirs(path("folder"), exist_ok=True)
        for at, says in ((path("nowhere/api-key"), "nowhere"), (write("empty", "# nothing\n"), "it holds no key"),
                         (path("folder"), "folder")):
            p = subprocess.run([RATOON, "serve", "--port", "0", "--generate-key", at], stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, env=CLEAN, timeout=60 * SLOW)
            self.assertEqual(p.returncode, 1, p.stderr)
            self.assertIn(says, p.stderr)
            self.assertNotIn("listening", p.stderr)

    def test_lines_of_other_addresses(self):
        server = Server()
        self.assertEqual(server.stop(), 0)
        self.assertNotIn("every address", server.log)


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
