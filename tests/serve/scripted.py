"""A server for the tests of the page that answers as a test says: the page itself and what it asks about the model come
from a real server, the streams from functions of the test. So a test decides when a piece arrives, and what fails."""
import http.server
import json
import queue
import threading

from helper import LIMIT


class Gate:
    """Where a scripted answer waits for the test."""

    def __init__(self):
        self.event, self.reached = threading.Event(), threading.Event()

    def wait(self):
        self.reached.set()
        self.event.wait(3 * LIMIT)

    def open(self):
        self.event.set()


class Answer:
    """What a script writes with. pieces: the text so far."""

    def __init__(self, handler, body):
        self.h, self.body, self.n, self.begun = handler, body, 0, False

    def event(self, value):
        if not self.begun:
            self.begun = True
            self.h.send_response(200)
            self.h.send_header("Content-Type", "text/event-stream")
            self.h.end_headers()
        self.h.wfile.write(b"data: %s\n\n" % (value if isinstance(value, bytes) else json.dumps(value).encode()))
        self.h.wfile.flush()

    def piece(self, text, drafted=None, name="content", **more):
        self.n += 1
        self.event({"choices": [{"index": 0, "delta": {name: text}, "drafted": drafted or []}],
                    "timings": {"predicted_n": 4 * self.n, "predicted_per_second": 25.0, "draft_n_accepted": 3 * self.n,
                                "prompt_n": 10, "cache_n": 2}, **more})

    def done(self, reason="stop"):
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        self.event(b"[DONE]")

    def fail(self, status, message):
        data = json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode()
        self.h.send_response(status)
        self.h.send_header("Content-Type", "application/json")
        self.h.send_header("Content-Length", str(len(data)))
        self.h.end_headers()
        self.h.wfile.write(data)


def echo(a):
    """What is answered where a test says nothing."""
    last = a.body["messages"][-1]["content"]
    a.piece("You said: ")
    a.piece(last, [[0, len(last.encode())]])
    a.done()


class Scripted(http.server.ThreadingHTTPServer):
    """real: the server that has the page. asked: the bodies of all requests for answers. dead: connections are closed
    without an answer, as if nobody was there. page: served in place of the real one, without its policy."""
    daemon_threads = True

    def __init__(self, real):
        self.real, self.asked, self.scripts, self.dead, self.page = real, [], queue.Queue(), False, None
        self.props, self.models = real.json("/props"), real.json("/v1/models")
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server_address[1]
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def answers(self, *scripts):
        for s in scripts:
            self.scripts.put(s)

    def handle_error(self, request, address):
        """The page may leave at any time."""

    def stop(self):
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *how):
        pass

    def reply(self, kind, data, headers=()):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for k, v in headers:
            self.send_header(k, v)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        path = self.path.split("?")[0]
        if self.server.dead:
            self.close_connection = True
        elif path == "/":
            _, h, page = self.server.real.get("/")
            own = self.server.page is not None
            self.reply("text/html; charset=utf-8", self.server.page if own else page, [("Cache-Control", "no-store")] + (
                [] if own else [("Content-Security-Policy", h["content-security-policy"])]))
        elif path in ("/health", "/props", "/v1/models"):
            value = {"/health": {"status": "ok"}, "/props": self.server.props, "/v1/models": self.server.models}[path]
            self.reply("application/json", json.dumps(value).encode())
        else:
            self.send_error(404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.dead:
            self.close_connection = True
            return
        self.server.asked.append(body)
        try:
            script = self.server.scripts.get_nowait()
        except queue.Empty:
            script = echo
        script(Answer(self, body))
