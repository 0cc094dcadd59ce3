"""A model hub on 127.0.0.1, for tests: the API and the download addresses of huggingface.co as programs see them,
serving repositories from a folder (FOLDER/ORG/NAME/files). Large files are redirected to a second server, the "CDN", by
signed links that expire.

    with MockHub(folder) as hub:
        hub.faults.append(Fault("cdn", times=2, cut=100_000))      # the first two answers break off
        subprocess.run([...], env={**os.environ, **hub.env(home)})
        hub.requests                       # what was asked: Request(server, method, path, headers, status, sent)

A folder can be served by hand: python3 tests/cli/mock_hub.py FOLDER"""
import dataclasses
import hashlib
import hmac
import http.server
import json
import os
import re
import secrets
import ssl
import sys
import threading
import time
import urllib.parse

LARGE = 100_000                                            # bytes from which a file is in LFS


@dataclasses.dataclass
class Request:
    server: str                                            # "hub" or "cdn"
    method: str
    path: str                                              # with its query
    headers: dict                                          # names in lower case
    status: int = 0
    sent: int = 0                                          # bytes of the body

    def range(self):
        m = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        return (int(m[1]), int(m[2]) if m[2] else None) if m else None


@dataclasses.dataclass
class Fault:
    """What goes wrong with requests to a server whose path matches; the first fault that fits counts, `times` times."""
    server: str = "cdn"
    path: str = ""                                         # a regular expression that is searched
    times: int = 1 << 30
    status: int = 0                                        # answer this, with headers and body; 0: headers besides
    body: bytes = b"fault"
    headers: dict = dataclasses.field(default_factory=dict)
    cut: int = -1                                          # close the connection after so many bytes of the body
    flip: bool = False                                     # spoil the first byte of the body
    ranges: bool = True                                    # False: answer ranges with the whole file
    rate: int = 0                                          # bytes a second
    hold: int = -1                                         # after so many bytes of the body, wait for `until`
    until: threading.Event = None
    then: callable = None                                  # called after the answer
    to: str = ""                                           # redirect there

    def fits(self, request):
        return self.times > 0 and self.server == request.server and bool(re.search(self.path, request.path))


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, address):
        """A client that goes away is no error here."""
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handle_error(request, address)


class MockHub:
    def __init__(self, folder, page=1000, tls=None):
        self.folder, self.page = folder, page
        self.requests, self.faults = [], []
        self.gated, self.private = set(), set()            # names of repositories
        self.tokens = set()                                # those that may read private and gated ones
        self.secret = secrets.token_bytes(16)
        self.lock = threading.Lock()
        self.sums = {}
        self.servers = {}
        for name in ("hub", "cdn"):
            server = Server(("127.0.0.1", 0), Handler)
            server.hub, server.name = self, name
            if tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*tls)
                server.socket = context.wrap_socket(server.socket, server_side=True)
            self.servers[name] = server
        self.scheme = "https" if tls else "http"

    def url(self, server="hub"):
        return "%s://127.0.0.1:%d" % (self.scheme, self.servers[server].server_port)

    def env(self, home, **more):
        """The environment of a program that is to use this hub and a home of its own."""
        return {"HF_ENDPOINT": self.url(), "HOME": home, "HF_HOME": os.path.join(home, "hf"), "HF_HUB_CACHE": "",
                "HF_TOKEN": "", "HF_TOKEN_PATH": "", "HF_HUB_OFFLINE": "",
                "OLLAMA_MODELS": os.path.join(home, "ollama"),
                "XDG_CONFIG_HOME": "/nonexistent", "XDG_CACHE_HOME": os.path.join(home, "cache"),
                "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1", **more}

    def __enter__(self):
        for server in self.servers.values():
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *ignored):
        for server in self.servers.values():
            server.shutdown()
            server.server_close()

    def asked(self, server):
        return [r for r in self.requests if r.server == server]

    def expire(self):
        """All links that were signed so far are refused."""
        self.secret = secrets.token_bytes(16)

    # ---- what is served ----

    def path(self, repo, name=""):
        return os.path.join(self.folder, repo, name) if name else os.path.join(self.folder, repo)

    def files(self, repo):
        root, out = self.path(repo), []
        for folder, _, names in os.walk(root):
            out += [os.path.relpath(os.path.join(folder, n), root) for n in names]
        return sorted(out)

    def sum_of(self, path, kind):
        """sha256 of the content, or the name that git gives it."""
        state = os.stat(path)
        key = (path, kind, state.st_size, state.st_mtime_ns)
        if key not in self.sums:
            with open(path, "rb") as f:
                data = f.read()
            self.sums[key] = (hashlib.sha256(data) if kind == "sha256" else
                              hashlib.sha1(b"blob %d\0" % len(data) + data)).hexdigest()
        return self.sums[key]

    def is_large(self, path):
        return os.path.getsize(path) >= LARGE

    def tag(self, path):
        return self.sum_of(path, "sha256" if self.is_large(path) else "sha1")

    def commit(self, repo):
        lines = ["%s %s" % (n, self.tag(self.path(repo, n))) for n in self.files(repo)]
        return hashlib.sha1("\n".join(lines).encode()).hexdigest()

    def sign(self, target, expires):
        return hmac.new(self.secret, ("%s %d" % (target, expires)).encode(), "sha256").hexdigest()

    def signed(self, target, seconds=3600):
        expires = int(time.time()) + seconds
        return "%s/%s?Expires=%d&Signature=%s" % (self.url("cdn"), urllib.parse.quote(target), expires,
                                                 self.sign(target, expires))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *ignored):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.hub = self.server.hub
        self.request_ = Request(self.server.name, self.command, self.path,
                                {k.lower(): v for k, v in self.headers.items()})
        with self.hub.lock:
            self.hub.requests.append(self.request_)
            self.fault = next((f for f in self.hub.faults if f.fits(self.request_)), None)
            if self.fault:
                self.fault.times -= 1
            self.fault = dataclasses.replace(self.fault) if self.fault else Fault()
        try:
            if self.fault.status:
                self.answer(self.fault.status, self.fault.body, self.fault.headers)
            elif self.fault.to:
                self.answer(302, b"", {"Location": self.fault.to})
            elif self.server.name == "cdn":
                self.cdn()
            else:
                self.route()
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            self.close_connection = True
        if self.fault.then:
            self.fault.then()

    # ---- answers ----

    def answer(self, status, body=b"", headers={}, length=None):
        self.request_.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.send_body(body)

    def send_body(self, body):
        if self.fault.flip and body:
            body = bytes([body[0] ^ 255]) + body[1:]
        if 0 <= self.fault.cut < len(body):
            body = body[:self.fault.cut]
            self.close_connection = True
        piece = max(1, self.fault.rate // 20) if self.fault.rate else 1 << 16
        held = self.fault.hold if 0 <= self.fault.hold < len(body) else len(body)
        self.send_bytes(body[:held], piece)
        if held < len(body):
            self.fault.until.wait(120)
            self.send_bytes(body[held:], piece)

    def send_bytes(self, body, piece):
        for i in range(0, len(body), piece):
            self.wfile.write(body[i:i + piece])
            self.request_.sent += len(body[i:i + piece])
            if self.fault.rate:
                time.sleep(piece / self.fault.rate)
        self.wfile.flush()

    def refuse(self, status, code, text):
        self.answer(status, json.dumps({"error": text}).encode(), {"X-Error-Code": code, "X-Error-Message": text})

    def send_file(self, path, headers):
        with open(path, "rb") as f:
            data = f.read()
        asked = self.request_.range() if self.fault.ranges else None
        held = self.request_.headers.get("if-range")
        if not asked or (held and held.strip('"') != self.hub.tag(path)):
            return self.answer(200, data, {**headers, "Accept-Ranges": "bytes", **self.fault.headers})
        first, last = asked[0], min(len(data) - 1 if asked[1] is None else asked[1], len(data) - 1)
        if first > last:
            return self.answer(416, b"", {"Content-Range": "bytes */%d" % len(data)})
        self.answer(206, data[first:last + 1],
                    {**headers, "Content-Range": "bytes %d-%d/%d" % (first, last, len(data))})

    # ---- the hub ----

    def token(self):
        m = re.fullmatch(r"Bearer (\S+)", self.request_.headers.get("authorization", ""))
        return m[1] if m else None

    def may_see(self, repo):
        """Answers for repositories that do not exist as for those that are private, as the hub does."""
        token, known = self.token(), os.path.isdir(self.hub.path(repo)) and repo.count("/") == 1
        if token and token not in self.hub.tokens:
            self.refuse(401, "", "Invalid credentials in Authorization header")
        elif known and (repo not in self.hub.private or token):
            return True
        elif token:
            self.refuse(404, "RepoNotFound", "Repository not found")
        else:
            self.refuse(401, "RepoNotFound", "Invalid username or password.")
        return False

    def route(self):
        url = urllib.parse.urlsplit(self.path)
        path, query = url.path, urllib.parse.parse_qs(url.query)
        for pattern, act in ((r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", self.model),
                             (r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", self.tree),
                             (r"/api/resolve-cache/models/([^/]+/[^/]+)/([^/]+)/(.+)", self.small),
                             (r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.resolve)):
            m = re.fullmatch(pattern, path)
            if m:
                repo, revision, *rest = map(urllib.parse.unquote, m.groups())
                if not self.may_see(repo):
                    return
                if revision not in ("main", "v1", self.hub.commit(repo)):
                    return self.refuse(404, "RevisionNotFound", "Invalid rev id: " + revision)
                return act(repo, query, *rest)
        self.refuse(404, "", "Not found")

    def model(self, repo, query):
        info = {"id": repo, "sha": self.hub.commit(repo), "private": repo in self.hub.private,
                "gated": "manual" if repo in self.hub.gated else False,
                "siblings": [{"rfilename": n} for n in self.hub.files(repo)]}
        self.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def tree(self, repo, query):
        start, items, headers = int(query.get("cursor", ["0"])[0]), [], {}
        names = self.hub.files(repo)
        for name in names[start:start + self.hub.page]:
            path = self.hub.path(repo, name)
            item = {"type": "file", "path": name, "size": os.path.getsize(path), "oid": self.hub.sum_of(path, "sha1")}
            if self.hub.is_large(path):
                item["lfs"] = {"oid": self.hub.sum_of(path, "sha256"), "size": item["size"], "pointerSize": 135}
            items.append(item)
        if start + self.hub.page < len(names):
            headers["Link"] = '<%s%s?recursive=true&cursor=%d>; rel="next"' % (
                self.hub.url(), self.path.split("?")[0], start + self.hub.page)
        self.answer(200, json.dumps(items).encode(), {"Content-Type": "application/json", **headers})

    def resolve(self, repo, query, name):
        if repo in self.hub.gated and self.token() not in self.hub.tokens:
            return self.refuse(401, "GatedRepo", "Access to model %s is restricted." % repo)
        path = self.hub.path(repo, name)
        if ".." in name or not os.path.isfile(path):
            return self.refuse(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": self.hub.commit(repo), "Accept-Ranges": "bytes"}
        if not self.hub.is_large(path):
            to = "/api/resolve-cache/models/%s/%s/%s" % (repo, self.hub.commit(repo), urllib.parse.quote(name))
            return self.answer(307, b"", {**headers, "ETag": '"%s"' % self.hub.tag(path), "Location": to})
        self.answer(302, b"", {**headers, "X-Linked-Size": str(os.path.getsize(path)),
                               "X-Linked-ETag": '"%s"' % self.hub.tag(path),
                               "Location": self.hub.signed(repo + "/" + name)})

    def small(self, repo, query, name):
        path = self.hub.path(repo, name)
        self.send_file(path, {"X-Repo-Commit": self.hub.commit(repo), "ETag": '"%s"' % self.hub.tag(path)})

    # ---- the CDN ----

    def cdn(self):
        url = urllib.parse.urlsplit(self.path)
        target, query = urllib.parse.unquote(url.path).lstrip("/"), urllib.parse.parse_qs(url.query)
        expires = int(query.get("Expires", ["0"])[0])
        if "authorization" in self.request_.headers:
            return self.answer(400, b"Only one auth mechanism allowed")
        if query.get("Signature") != [self.hub.sign(target, expires)] or expires < time.time():
            return self.answer(403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
        self.send_file(os.path.join(self.hub.folder, target), {"ETag": '"another-etag"'})


if __name__ == "__main__":
    with MockHub(sys.argv[1]) as served:
        print("HF_ENDPOINT=" + served.url(), flush=True)
        threading.Event().wait()
