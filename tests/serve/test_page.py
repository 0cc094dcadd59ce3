#!/usr/bin/env python3
"""The page at /: its policy, and a conversation in headless Chromium, where Debian's is installed.
PAGE_PNG=doc/page.png writes the README's picture."""
import base64
import json
import os
import re
import select
import shutil
import subprocess
import tempfile
import time
import unittest

from helper import CHAT, LIMIT, LONG, ROOM, SLOW, Server, chat, events, main

import sys

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NODE = shutil.which("node")
S = None
# The demo model was trained on these forms.
COMPLETE = "Complete this Python code:\nclass Machine:\n    \"\"\"A machine with index, samples and history.\"\"\"\n\n    def __init__(self):\n        self.samples = []"
QUESTION = "Noah buys 5 boxes with 6 cards in each box. How many cards does Noah buy in all?"


def setUpModule():
    global S
    S = Server("--budget", 12, *ROOM)  # it may find by itself that plain decoding pays, and then nothing is drafted


def tearDownModule():
    assert S.stop() == 0, S.log[-2000:]


class Served(unittest.TestCase):
    def test_headers(self):
        status, h, body = S.get("/")
        self.assertEqual((status, h["content-type"], h["x-content-type-options"], h["cache-control"]),
                         (200, "text/html; charset=utf-8", "nosniff", "no-store"))
        policy = dict(p.strip().split(" ", 1) for p in h["content-security-policy"].split(";"))
        nonce = re.fullmatch(r"'(nonce-[0-9a-f]{24})'", policy.pop("script-src")).group(1)
        self.assertEqual(policy,
                         {"default-src": "'none'", "style-src": "'%s'" % nonce, "connect-src": "'self'",
                          "img-src": "data:", "base-uri": "'none'", "form-action": "'none'",
                                  "frame-ancestors": "'none'"})
        text = body.decode()
        self.assertEqual(re.findall(r'<(?:script|style)[^>]*>', text),
                         ['<style nonce="%s">' % nonce[6:], '<script nonce="%s">' % nonce[6:]])
        self.assertNotIn("@NONCE@", text)
        self.assertTrue(text.endswith("</html>\n"))
        self.assertNotIn(nonce[6:].encode(), S.get("/")[2])            # another one each time

    def test_nothing_from_outside(self):
        text = S.get("/")[2].decode()
        self.assertEqual(re.findall(r"(?i)https?:|//[a-z0-9-]+\.[a-z]|url\(|@import|\bimport\b|<(?:img|iframe|object|embed|base)\b", text), [])
        self.assertEqual(re.findall(r'(?:src|href)="[^"]*"', text), ['href="data:,"'])
        self.assertEqual(re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new "
                                    r"Function|\son\w+=", text), [])

    @unittest.skipUnless(NODE, "no node here")
    def test_script_parses(self):
        script = re.search(r"<script[^>]*>(.*)</script>", S.get("/")[2].decode(), re.S).group(1)
        with tempfile.NamedTemporaryFile("w", suffix=".js") as f:
            f.write(script)
            f.flush()
            self.assertEqual(subprocess.run([NODE, "--check", f.name], capture_output=True).stderr, b"")

    def test_head_and_methods(self):
        self.assertEqual(S.ask("HEAD", "/")[0], 200)
        self.assertEqual(S.post("/", {})[0], 405)


class Drafted(unittest.TestCase):
    """return_drafted: all tokens of each block but its last."""

    def streamed(self, **more):
        body = S.post(CHAT, chat(QUESTION, max_tokens=100, ignore_eos=True, stream=True, return_drafted=True,
                                 return_tokens=True, timings_per_token=True, **more))[2]
        return [e for e in events(body) if e != "[DONE]"]

    def test_bytes(self):
        text, marked, expected, accepted = b"", [], [], 0
        for e in self.streamed(temperature=0.8, seed=3):
            c = e["choices"][0]
            piece, tokens = c["delta"].get("content", "").encode(), c.get("tokens", [])
            marked += [b for a, z in c.get("drafted", []) for b in range(len(text) + a, len(text) + z)]
            at = sum(map(len, expected))
            for i, t in enumerate(tokens):
                expected.append([i + 1 < len(tokens)] * len(S.json("/detokenize", {"tokens": [t]})["content"].encode()))
            accepted += max(0, len(tokens) - 1)
            text += piece
            self.assertEqual(e["timings"]["predicted_n"], len(expected))
            self.assertEqual(e["timings"]["draft_n_accepted"], accepted)
        expected = [d for e in expected for d in e]
        self.assertEqual(len(expected), len(text))
        self.assertEqual(marked, [i for i, d in enumerate(expected) if d])
        self.assertGreater(len(marked), 20)

    def test_plain(self):
        drafted = [c["choices"][0].get("drafted") for c in self.streamed(speculative={"mode": "off"})]
        self.assertEqual([d for d in drafted if d], [])

    def test_body(self):
        c = S.json(CHAT, chat(QUESTION, max_tokens=60, return_drafted=True))["choices"][0]
        n = len(c["message"]["content"].encode())
        flat = [x for r in c["drafted"] for x in r]
        self.assertEqual(flat, sorted(set(flat)))                      # ascending, none empty, none adjacent
        self.assertTrue(flat and flat[-1] <= n)


class Browser:
    """Chromium over a pipe, by DevTools' protocol: each message ends with a zero byte."""

    def __init__(self):
        self.folder = tempfile.mkdtemp()
        to, self.write = os.pipe()
        self.read, back = os.pipe()

        def fds():
            a, b = os.dup(to), os.dup(back)
            for fd, place in ((a, 3), (b, 4)):
                if fd != place:
                    os.dup2(fd, place)
                os.set_inheritable(place, True)

        self.p = subprocess.Popen([CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu",
                                   "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                                   "--disable-component-update", "--hide-scrollbars", "--force-color-profile=srgb",
                                   "--remote-debugging-pipe", "--user-data-dir=" + self.folder],
                                  preexec_fn=fds, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        os.close(to)
        os.close(back)
        self.last, self.waiting, self.session = 0, b"", None
        self.trouble, self.asked = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def message(self):
        while b"\0" not in self.waiting:
            if not select.select([self.read], [], [], LIMIT)[0]:
                raise AssertionError("chromium is silent")
            part = os.read(self.read, 1 << 16)
            if not part:
                raise AssertionError("chromium has ended")
            self.waiting += part
        one, self.waiting = self.waiting.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **params):
        self.last += 1
        m = {"id": self.last, "method": method, "params": params}
        if self.session:
            m["sessionId"] = self.session
        os.write(self.write, json.dumps(m).encode() + b"\0")
        while True:
            r = self.message()
            if r.get("id") == self.last:
                if "error" in r:
                    raise AssertionError("%s: %s" % (method, r["error"]))
                return r["result"]
            if r.get("method") == "Network.requestWillBeSent":
                self.asked.append(r["params"]["request"]["url"])
            if r.get("method") == "Runtime.exceptionThrown":
                self.trouble.append(r["params"]["exceptionDetails"])
            if r.get("method") == "Log.entryAdded" and r["params"]["entry"]["level"] in ("warning", "error"):
                self.trouble.append(r["params"]["entry"])

    def js(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise AssertionError("%s: %s" % (expression, r["exceptionDetails"]))
        return r["result"].get("value")

    def wait(self, expression):
        end = time.monotonic() + LIMIT
        while not self.js(expression):
            if time.monotonic() > end:
                raise AssertionError("never true: %s; the page says: %s" % (expression,
                                                                            self.js("document.body.innerText")))
            time.sleep(0.02)

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href.startsWith(%s)" % json.dumps(url))

    def key(self, key, code, modifiers=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      nativeVirtualKeyCode=code, modifiers=modifiers,
                      **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    def set(self, id, value):
        self.js("(() => { const e = document.getElementById(%s), v = %s; if (e.type === 'checkbox') e.checked = v; "
                "else e.value = v;"
                " e.dispatchEvent(new Event('change')); })()" % (json.dumps(id), json.dumps(value)))

    def close(self):
        self.session = None
        try:
            self.call("Browser.close")
        except AssertionError:
            pass
        try:
            self.p.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        os.close(self.read)
        os.close(self.write)
        shutil.rmtree(self.folder, ignore_errors=True)


ANSWERS = "[...document.querySelectorAll('article.assistant .body')].map(e => e.textContent)"


@unittest.skipUnless(CHROMIUM, "no chromium here (apt-get install chromium)")
class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.b = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.b.close()

    def setUp(self):
        b = self.b
        b.go("about:blank")
        b.asked, b.trouble = [], []
        b.go(S.url + "/")
        b.js("localStorage.clear(); sessionStorage.clear()")
        b.go(S.url + "/?fresh=" + self.id())
        b.wait("document.getElementById('model').textContent !== '...'")
        for id, value in (("temperature", "0"), ("max_tokens", "80"), ("markdown", False)):
            b.set(id, value)

    def calm(self):
        self.assertEqual([t for t in self.b.trouble], [])
        self.assertEqual([u for u in self.b.asked if not u.startswith((S.url + "/", "data:", "about:"))], [])

    def say(self, text, wait=True):
        b = self.b
        b.js("document.getElementById('say').focus()")
        b.call("Input.insertText", text=text)
        b.key("Enter", 13)
        if wait:
            b.wait("document.body.dataset.busy === 'no'")

    def expected(self, messages, **more):
        return S.json(CHAT, {"messages": messages, "temperature": 0, "max_tokens": 80,
                             **more})["choices"][0]["message"]["content"]

    def test_conversation(self):
        b = self.b
        self.say(QUESTION)
        first = self.expected([{"role": "user", "content": QUESTION}])
        self.assertEqual(b.js(ANSWERS), [first])
        self.say("And 7 boxes?")
        talk = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": first},
                {"role": "user", "content": "And 7 boxes?"}]
        second = self.expected(talk)
        self.assertEqual(b.js(ANSWERS), [first, second])               # the history was sent with it
        self.assertRegex(b.js("document.querySelector('.figures:not(:empty)').textContent"),
                         r"^\d+ tokens · [\d.]+ tokens/s · accept length [\d.]+ · prompt \d+")
        self.assertGreater(float(b.js("document.getElementById('accept').textContent")), 1)
        self.assertGreater(float(b.js("document.getElementById('speed').textContent")), 0)
        colours = b.js("[...document.querySelectorAll('article.assistant .body span')].map(e => [e.className, "
                       "e.textContent])")
        self.assertEqual("".join(t for _, t in colours), first + second)
        self.assertEqual({k for k, _ in colours}, {"d", "o"})
        shades = b.js("['d', 'o'].map(k => getComputedStyle(document.querySelector('.body .' + k)).backgroundColor)")
        self.assertEqual(len(set(shades) - {"rgba(0, 0, 0, 0)"}), 2)
        b.set("colours", False)
        self.assertEqual(b.js("getComputedStyle(document.querySelector('.body .d')).backgroundColor"),
                         "rgba(0, 0, 0, 0)")
        # it is there after a reload, and gone after Clear
        b.go(S.url + "/?again")
        b.wait("document.querySelectorAll('article').length === 4")
        self.assertEqual(b.js(ANSWERS), [first, second])
        b.js("document.getElementById('clear').click()")
        self.assertEqual(b.js("document.querySelectorAll('article').length"), 0)
        self.calm()

    def test_settings(self):
        b = self.b
        for id, value in (("system", "Be brief."), ("temperature", "0.9"), ("top_p", "0.9"), ("seed", "11"),
                          ("max_tokens", "30")):
            b.set(id, value)
        self.say("def f(x):")
        talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "def f(x):"}]
        want = self.expected(talk, **{"temperature": 0.9, "top_p": 0.9, "seed": 11, "max_tokens": 30})
        self.assertEqual(b.js(ANSWERS), [want])
        b.js("[...document.querySelectorAll('article.assistant button')].find(e => e.textContent === "
             "'Regenerate').click()")
        b.wait("document.body.dataset.busy === 'no'")
        self.assertEqual(b.js(ANSWERS), [want])                        # the same seed
        b.set("seed", "12")
        b.js("[...document.querySelectorAll('article.assistant button')].find(e => e.textContent === "
             "'Regenerate').click()")
        b.wait("document.body.dataset.busy === 'no'")
        self.assertEqual(b.js(ANSWERS),
                         [self.expected(talk, **{"temperature": 0.9, "top_p": 0.9, "seed": 12, "max_tokens": 30})])
        self.calm()

    def test_edit(self):
        b = self.b
        self.say("def f(x):")
        self.say("def g(x):")
        b.js("[...document.querySelectorAll('article.user button')].find(e => e.textContent === 'Edit').click()")
        b.js("document.querySelector('article textarea').value = 'def h(x):'")
        b.js("[...document.querySelectorAll('article button')].find(e => e.textContent === 'Ask again').click()")
        b.wait("document.body.dataset.busy === 'no'")
        self.assertEqual(b.js(ANSWERS), [self.expected([{"role": "user", "content": "def h(x):"}])])
        # an answer's text can be changed too; ArrowUp in the empty field edits the last question
        b.js("[...document.querySelectorAll('article.assistant button')].find(e => e.textContent === 'Edit').click()")
        b.js("document.querySelector('article textarea').value = 'return 1'")
        b.js("[...document.querySelectorAll('article button')].find(e => e.textContent === 'Save').click()")
        self.assertEqual(b.js(ANSWERS), ["return 1"])
        b.js("document.getElementById('say').focus()")
        b.key("ArrowUp", 38)
        self.assertEqual(b.js("document.querySelector('article textarea').value"), "def h(x):")
        b.key("Escape", 27)
        self.assertEqual(b.js("document.querySelectorAll('article textarea').length"), 0)
        self.calm()

    def test_stop(self):
        b = self.b
        b.js("(() => { const f = request; request = () => ({ ...f(), ...%s }); })()" % json.dumps(LONG))
        for how in ("key", "button"):
            before = S.metrics()
            self.say("def f(x):", wait=False)
            b.wait("document.querySelector('article:last-child .body').textContent.length > 20")
            if how == "key":
                b.key("Escape", 27)
            else:
                b.js("document.getElementById('stop').click()")
            b.wait("document.body.dataset.busy === 'no'")
            self.assertEqual(b.js("document.getElementById('note').textContent"), "Stopped")
            self.assertTrue(S.wait_for(S.idle))
            after = S.metrics()
            cancelled = [k for k in after if "cancel" in k]
            self.assertEqual(sum(after[k] - before.get(k, 0) for k in cancelled), 1, cancelled)
            self.assertGreater(len(b.js(ANSWERS)[-1]), 20)             # the part that had arrived stays
        self.calm()

    def test_prompt_progress(self):
        self.b.set("system", "word " * 900)
        self.say("Hi")
        self.assertRegex(self.b.js("document.getElementById('read').textContent"), r"^prompt \d+ of \d{3,}$")
        self.assertTrue(self.b.js("document.getElementById('reading').hidden"))
        self.calm()

    def test_error(self):
        b = self.b
        b.set("temperature", "-3")
        self.say("Hi")
        self.assertIn("temperature", b.js("document.querySelector('article .wrong').textContent"))
        b.set("temperature", "0")
        b.js("[...document.querySelectorAll('article.assistant button')].find(e => e.textContent === "
             "'Regenerate').click()")
        b.wait("document.body.dataset.busy === 'no'")
        self.assertEqual(b.js(ANSWERS), [self.expected([{"role": "user", "content": "Hi"}])])

    def test_markdown(self):
        b = self.b
        text = ("# Head <b>x</b>\n\nSome **strong**, *soft* and `co<i>de`.\n<img src=x "
                "onerror=\"document.title='bad'\">\n\n- one\n  more\n- two\n\n3. three\n\n> said\n\n"
                "```html\n<script>document.title = 'bad'</script>\n```\nend [x](javascript:alert(1))")
        b.set("markdown", True)
        # in pieces of every length, as in a stream, the page ends up the same
        b.js("talk = [{ role: 'assistant', content: %s, runs: [3, 1, 40, 0, 90, 1] }]; drawAll()" % json.dumps(text))
        whole = b.js("document.querySelector('.body').innerHTML")
        self.assertEqual(b.js("(() => { const t = talk[0], bad = []; for (let k = 1; k < 40; k++) { const e = "
                              "document.createElement('div');"
                              " for (let n = 0; n < t.content.length; n += k) show(e, t.content.slice(0, n + k), "
                              "t.runs); if (e.innerHTML !== %s) bad.push(k); } return bad; })()" % json.dumps(whole)),
                              [])
        self.assertEqual(b.js("['img', 'script', 'a', 'b', 'i'].map(n => document.querySelectorAll('.body ' + "
                              "n).length)"), [0] * 5)
        self.assertEqual(b.js("['h3', 'strong', 'em', 'ul li', 'ol li', 'blockquote', 'pre code'].map(n => "
                              "document.querySelectorAll('.body ' + n).length)"), [1, 1, 1, 2, 1, 1, 1])
        self.assertEqual(b.js("[...document.querySelectorAll('.body code')].map(e => e.textContent)"),
                         ["co<i>de", "<script>document.title = 'bad'</script>\n"])
        self.assertEqual(b.js("document.querySelector('.body ol').start"), 3)
        self.assertEqual(b.js("document.title"), "ratoon")
        # the policy holds even if markup were inserted
        b.js("document.querySelector('.body').innerHTML = '<img src=x onerror=\"document.title=1\">'")
        time.sleep(0.2)
        self.assertEqual(b.js("document.title"), "ratoon")
        # a text that would make a careless regular expression slow
        self.assertLess(b.js("(() => { const t = performance.now(); for (const c of ['*', '`', '**a', '- ', '> ', '#', "
                             "'`a', '\\n'])"
                             " show(document.createElement('div'), c.repeat(20000), []); return performance.now() - t; "
                             "})()"), 20000 * SLOW)

    def test_characters(self):
        """Runs are counted in UTF-8 by the server and in UTF-16 by the page; an edge inside a character moves behind
        it."""
        self.assertEqual(self.b.js("(() => { const r = []; addRuns(r, 0, 'aé😀b', [[0, 1], [2, 4], [7, 8]]); return r; "
                                   "})()"), [1, 1, 2, 0, 5, 1])

    def test_key(self):
        b = self.b
        server = Server("--api-key", "secret")
        try:
            b.go(server.url + "/")
            b.wait("!document.getElementById('key-row').hidden")
            self.assertIn("key", b.js("document.getElementById('note').textContent"))
            b.set("key", "secret")
            b.wait("document.getElementById('model').textContent !== '...'")
            b.set("max_tokens", "10")
            self.say("Hi")
            self.assertEqual(b.js("document.querySelectorAll('.wrong').length"), 0)
            self.assertEqual(len(b.js(ANSWERS)), 1)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_picture(self):
        b = self.b
        b.call("Emulation.setDeviceMetricsOverride", width=1180, height=700, deviceScaleFactor=1, mobile=False)
        sizes = []
        for theme in ("dark", "light"):
            b.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
            if theme == "dark":
                b.set("system", "You write small Python classes.")
                self.say(QUESTION)
                b.set("max_tokens", "96")
                self.say(COMPLETE)
            b.js("document.getElementById('talk').scrollTop = 1e6")
            png = base64.b64decode(b.call("Page.captureScreenshot", format="png")["data"])
            self.assertEqual(png[:8], b"\x89PNG\r\n\x1a\n")
            sizes.append(b.js("getComputedStyle(document.body).backgroundColor"))
        self.assertNotEqual(*sizes)
        self.assertLess(len(png), 200000)
        if os.environ.get("PAGE_PNG"):
            with open(os.environ["PAGE_PNG"], "wb") as f:
                f.write(png)
        b.call("Emulation.clearDeviceMetricsOverride")
        self.calm()


if __name__ == "__main__":
    if not CHROMIUM:
        print("there is no chromium: the page's conversation is not tested (apt-get install chromium)")
    sys.exit(main(sys.modules["__main__"]))
