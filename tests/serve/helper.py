"""What the server's tests share: starting a server on the demo pair, requests with and without an HTTP library, reading
streams and metrics."""
import http.client
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report
from scratch import DEMO, RATOON, ROOT, asleep, with_template
SLOW = float(os.environ.get("SLOW", "1"))          # factor for all time limits: for sanitized builds
LIMIT = 60 * SLOW                                  # seconds after which what is waited for will not come


class Server:
    """`ratoon serve` on a free port. log: its standard error so far. limits: hard limits of its resources. group: a
    folder in /sys/fs/cgroup that it lives in. greedy: it is, where a request says nothing."""

    def __init__(self, *options, wait=True, env=None, limits=None, group=None, greedy=True):
        def limit():
            for what, most in (limits or {}).items():
                resource.setrlimit(what, (most, most))
            if group:
                with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as f:
                    f.write(str(os.getpid()))

        self.p = subprocess.Popen([RATOON, "serve", *([] if "-m" in options else ["-m", DEMO]), "--port", "0", "--ctx",
                                   "2048", *(["--temp", "0", "--top-p", "1"] if greedy else []),
                                   *[str(o) for o in options]], stderr=subprocess.PIPE,
                                  env={**os.environ, **(env or {})}, preexec_fn=limit)
        self.log, self.port, self.url = "", 0, ""
        self.said = threading.Condition()
        self.reader = threading.Thread(target=self.read_log, daemon=True)
        self.reader.start()
        self.expect(r"listening on ")
        self.url = re.search(r"listening on (\S+)", self.log).group(1)
        self.port = int(re.search(r":(\d+)$", self.url).group(1)) if not self.url.startswith("unix:") else 0
        if wait:
            self.expect(r"ready in")

    def read_log(self):
        for line in self.p.stderr:
            with self.said:
                self.log += line.decode("utf-8", "replace")
                self.said.notify_all()
        with self.said:
            self.said.notify_all()

    def expect(self, pattern):
        end = time.monotonic() + LIMIT
        with self.said:
            while not re.search(pattern, self.log):
                if time.monotonic() > end or not self.reader.is_alive():
                    raise AssertionError("the server did not say %r: %s" % (pattern, self.log))
                self.said.wait(0.1)

    def ended(self, seconds=60):
        """Waits until it has ended by itself; returns the exit status. log is then whole."""
        try:
            status = self.p.wait(seconds * SLOW)
        except subprocess.TimeoutExpired:
            self.p.kill()
            raise AssertionError("the server did not end: " + self.log[-2000:])
        self.reader.join(LIMIT)
        return status

    def stop(self, sig=signal.SIGTERM, seconds=60):
        """Returns the exit status."""
        if self.p.poll() is None:
            self.p.send_signal(sig)
        return self.ended(seconds)

    # ---- with an HTTP library ----

    def ask(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, body); body: bytes, or a value to be written as JSON."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        try:
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            return r.status, {k.lower(): v for k, v in r.getheaders()}, r.read()
        finally:
            c.close()

    def get(self, path, **how):
        return self.ask("GET", path, **how)

    def post(self, path, body, **how):
        return self.ask("POST", path, body, **how)

    def json(self, path, body=None, **how):
        status, _, text = self.ask("GET" if body is None else "POST", path, body, **how)
        if status != 200:
            raise AssertionError("%s: %d %s" % (path, status, text))
        return json.loads(text)

    # ---- without one ----

    def connect(self, receive=None, timeout=60):
        s = socket.socket()
        if receive:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        s.settimeout(timeout * SLOW)
        s.connect(("127.0.0.1", self.port))
        return s

    def raw(self, data, answers=1):
        """What comes back: see read_all."""
        with self.connect() as s:
            try:
                s.sendall(data)
            except (ConnectionError, socket.timeout):
                pass
            return read_all(s, answers)

    # ---- figures ----

    def metrics(self):
        text = self.get("/metrics")[2].decode()
        return {k: float(v) for k, v in re.findall(r"^(ratoon_\S+) (\S+)$", text, re.M)}

    def threads(self):
        return len(os.listdir("/proc/%d/task" % self.p.pid))

    def descriptors(self):
        return len(os.listdir("/proc/%d/fd" % self.p.pid))

    def wait_for(self, test):
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            if test():
                return True
            time.sleep(0.02)
        return test()

    def waits(self, n):
        """So many requests come to wait in the queue."""
        return self.wait_for(lambda: self.json("/health?verbose=1")["waiting"] == n)

    def idle(self):
        h = self.json("/health?verbose=1")
        return h["running"] == 0 and h["waiting"] == 0


def end_of(data, start=0):
    """Where the answer that begins at start ends: (place, whether the connection ends with it); None: not yet."""
    head = data.find(b"\r\n\r\n", start) + 4
    if head < 4:
        return None
    lines = data[start:head].lower()
    closes = b"\r\nconnection: close" in lines
    length = re.search(rb"\r\ncontent-length: *(\d+)", lines)
    if re.match(rb"http/1\.[01] (1\d\d|204|304) ", lines):
        return head, closes
    if length:
        end = head + int(length.group(1))
        return (end, closes) if end <= len(data) else None
    if b"\r\ntransfer-encoding: chunked" not in lines:
        return None                                # it ends where the connection ends
    while True:
        line = data.find(b"\r\n", head)
        if line < 0:
            return None
        n = int(data[head:line].split(b";")[0], 16)
        head = line + 2 + n + 2
        if head > len(data):
            return None
        if n == 0:
            return head, closes


def read_all(s, answers=1):
    """Everything that arrives until the server closes, or until so many whole answers are there."""
    out, at, closes = b"", 0, False
    try:
        while True:
            while answers > 0 and not closes and (end := end_of(out, at)):
                at, closes = end
                answers -= 1
            if answers <= 0 and not closes:
                return out
            part = s.recv(65536)
            if not part:
                return out
            out += part
    except (socket.timeout, ConnectionError):
        return out


def status_of(answer):
    m = re.match(rb"HTTP/1\.[01] (\d{3}) ", answer)
    return int(m.group(1)) if m else 0


def reset(s):
    """Closes with a RST."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def request(path, body, method="POST", extra=""):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return ("%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n" % (method, path, len(body), extra)).encode() + body


def events(text):
    """Data of a stream's events: parsed JSON, or "[DONE]"."""
    out = []
    for block in text.decode().split("\n\n"):
        data = [l[6:] for l in block.split("\n") if l.startswith("data: ")]
        if data:
            out.append(data[0] if data[0] == "[DONE]" else json.loads(data[0]))
    return out


def chat(text, **more):
    return {"messages": [{"role": "user", "content": text}], **more}


CHAT = "/v1/chat/completions"
# An answer of megabytes. Its stream stops once so much of it is unread that the server waits for the reader: a client
# that does not read keeps the request running for as long as it likes, on a machine of any speed. For servers with
# ROOM, whose readers may take their time.
HELD = dict(max_tokens=30000, ignore_eos=True, temperature=1, seed=1, logprobs=True, top_logprobs=20)
ROOM = ["--ctx", "32768", "--write-timeout", "3600"]
# An answer that goes on until it is cancelled, for readers that do read: plain decoding of 30000 tokens takes seconds.
LONG = dict(max_tokens=30000, ignore_eos=True, temperature=1, seed=1, speculative={"mode": "off"})


def main(module):
    if not os.access(RATOON, os.X_OK):
        print("%s is needed (make ratoon)" % RATOON)
        return 1
    return report.main(module)
