#!/usr/bin/env python3
"""The page at /: its policy and its file, Markdown by the specification of CommonMark, and conversations in headless
Chromium, against a real server and against one whose answers are scripted.
PAGE_PNG=doc writes the pictures of README.md and doc/serving.md."""
import json
import os
import re
import subprocess
import sys
import time
import unittest

from browser import CHROMIUM, Browser, Tab
from helper import CHAT, LIMIT, LONG, ROOM, Server, chat, events, main
from packages import fetched
from scratch import ROOT, path, write
from scripted import Gate, Scripted

PAGE = os.path.join(ROOT, "src", "programs", "serve", "page")
S = B = None
# The demo model was trained on these forms.
COMPLETE = ("Complete this Python code:\nclass Machine:\n    \"\"\"A machine with index, samples and history.\"\"\"\n\n"
            "    def __init__(self):\n        self.samples = []")
QUESTION = "Noah buys 5 boxes with 6 cards in each box. How many cards does Noah buy in all?"
SIZES = [(width, height, scheme, phone) for width, height, phone in ((1280, 800, False), (390, 844, True))
         for scheme in ("light", "dark")]


def setUpModule():
    global S, B
    S = Server("--budget", 12, *ROOM)  # it may find by itself that plain decoding pays, and then nothing is drafted
    if CHROMIUM:
        B = Browser()


def tearDownModule():
    if B:
        B.close()
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
                          "img-src": "data:", "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'",
                          "require-trusted-types-for": "'script'"})
        text = body.decode()
        self.assertEqual(re.findall(r'<(?:script|style)\b[^>]*>', text),
                         ['<style nonce="%s">' % nonce[6:]] + 2 * ['<script nonce="%s">' % nonce[6:]])
        self.assertNotIn("@NONCE@", text)
        self.assertTrue(text.endswith("</html>\n"))
        self.assertNotIn(nonce[6:].encode(), S.get("/")[2])            # another one each time

    def test_licence(self):
        """The library's licence travels with it, in the page and in the folder of documents."""
        with open(os.path.join(ROOT, "doc", "licenses", "markdown-it.txt")) as f:
            self.assertIn(f.read(), S.get("/")[2].decode())

    def test_elements_only(self):
        """No text becomes markup: what could do that is nowhere in the page's own sources."""
        for name in sorted(os.listdir(PAGE)):
            if name.endswith((".js", ".html", ".css")):
                with open(os.path.join(PAGE, name)) as f:
                    text = f.read()
                self.assertEqual(re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|"
                                            r"setHTML|srcdoc|\son\w+=\"|DOMParser|createContextualFragment", text), [], name)
                self.assertEqual(re.findall(r"\burl\(|@import|\bimport\(|<(?:img|iframe|object|embed|base)\b|"
                                            r"[\"'`]https?://", text), [], name)

    def test_head_and_methods(self):
        self.assertEqual(S.ask("HEAD", "/")[0], 200)
        self.assertEqual(S.post("/", {})[0], 405)


class Assembled(unittest.TestCase):
    """src/programs/serve/page/assemble.py with other libraries than this machine's."""

    def made(self, library):
        out = path("page.html")
        r = subprocess.run([sys.executable, os.path.join(PAGE, "assemble.py"), out, library], capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stderr)
        with open(out) as f:
            return f.read(), r.stderr

    def test_without(self):
        text, said = self.made("/nowhere/markdown-it")
        self.assertIn("const markdownit = null;", text)
        self.assertRegex(said, r"plain text: .*'/nowhere/markdown-it' .*MARKDOWN_IT=")

    def test_one_file(self):
        text, said = self.made(write("markdown-it.min.js", "globalThis.markdownit = function () {};\n"))
        self.assertIn("globalThis.markdownit = function () {};", text)
        self.assertEqual(said, "")

    def test_what_would_end_the_script(self):
        r = subprocess.run([sys.executable, os.path.join(PAGE, "assemble.py"), path("page.html"),
                            write("bad.js", "const a = '</script>';\n")], capture_output=True, text=True)
        self.assertNotEqual(r.returncode, 0)
        self.assertIn("would end it inside the page", r.stderr)


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


class InBrowser(unittest.TestCase):
    """Each test in a context of its own, so that storage is empty."""

    def setUp(self):
        if not B:
            self.skipTest("no chromium here (apt-get install chromium)")
        self.context, self.tabs = B.context(), []
        self.fake = Scripted(S)

    def tearDown(self):
        B.drop(self.context)
        for t in self.tabs:
            B.tabs.pop(t.session, None)
        self.fake.stop()

    def tab(self, url=None, size=SIZES[0]):
        t = Tab(B, self.context)
        self.tabs.append(t)
        t.size(*size)
        self.load(t, url or self.fake.url + "/")
        return t

    def load(self, t, url=None):
        t.go(url or t.js("location.href"))
        t.wait("server.up")

    def calm(self, *tabs):
        """Nothing went wrong on the page, and nobody but the server was asked for anything."""
        for t in tabs:
            self.assertEqual(t.trouble, [])
            self.assertEqual([u for u in t.asked if not u.startswith((t.js("location.origin") + "/", "about:", "blob:"))], [])

    def begin(self, t, text):
        """Types a message and sends it, by Enter or by the button."""
        t.type("say", text)
        if t.js("PHONE.matches"):
            t.js("at('send').click()")
        else:
            t.key("Enter", 13)

    def ended(self, t):
        return int(t.js("document.body.dataset.ended") or 0)

    def after(self, t, act):
        """Does something that leads to an answer, and waits for its end."""
        n = self.ended(t)
        act()
        t.wait("document.body.dataset.ended > %d && document.body.dataset.busy === 'no'" % n)

    def say(self, t, text):
        self.after(t, lambda: self.begin(t, text))

    def texts(self, t):
        return t.js("currentPath().map(m => [m.role, m.content])")

    def shown(self, t):
        return t.js("[...document.querySelectorAll('article .body')].map(e => e.textContent)")

    def answers(self, t):
        return t.js("[...document.querySelectorAll('article.assistant .body')].map(e => e.textContent)")

    def saw(self, t, text):
        """The last message comes to have this text."""
        t.wait("(e => e && e.textContent.trim() === %s)(document.querySelector('article:last-child .body'))" % json.dumps(text))

    def article(self, i):
        return "document.querySelectorAll('article')[%d]" % i

    def stored(self, t):
        return t.js("store.all('messages').then(all => all.length)")

    def inside(self, t):
        """Nothing reaches beyond the viewport, but for what scrolls by itself."""
        self.assertEqual(t.js("""(() => {
            const out = [], wide = document.documentElement.clientWidth, high = innerHeight;
            if (document.documentElement.scrollWidth > wide) out.push("page " + document.documentElement.scrollWidth);
            for (const e of document.querySelectorAll("body *")) {
                if (!e.checkVisibility({ visibilityProperty: true }) || e.closest(".unseen, .skip, .code pre > *, .table > *"))
                    continue;
                const r = e.getBoundingClientRect();
                if (r.right > wide + 1 || r.left < -1) out.push(e.tagName + "#" + e.id + "." + e.className + " " + r.left + ".." + r.right);
            }
            for (const id of ["say", "send", "stop", "settings-open", "side-open"]) {
                const e = at(id), r = e.getBoundingClientRect();
                if (e.checkVisibility() && (r.bottom > high + 1 || r.top < -1)) out.push(id + " " + r.top + ".." + r.bottom);
            }
            return out;
        })()"""), [])


class Canvas(InBrowser):
    def test_clears_up(self):
        """Drafts replace each other beside the text, and the finished block replaces them."""
        self.fake.props = {**self.fake.props, "canvas": 32}
        gates = [Gate() for _ in range(3)]

        def script(a):
            for step, gate in enumerate(gates[:2], 1):
                a.event({"choices": [], "draft": {"index": 0, "step": step, "text": "<b>draft</b> %d" % step}})
                gate.wait()
            a.piece("A block.")
            gates[2].wait()
            a.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
                     "timings": {"predicted_n": 8, "predicted_per_second": 25.0, "draft_n_accepted": 0, "block_n": 1,
                                 "step_n": 2, "predicted_per_step": 4}})
            a.event(b"[DONE]")

        self.fake.answers(script)
        t = self.tab()
        n = self.ended(t)
        self.begin(t, "Hi")
        draft = "document.querySelector('article:last-child .draft')"
        for step, gate in enumerate(gates[:2], 1):
            t.wait(draft + " && %s.textContent === '<b>draft</b> %d'" % (draft, step))
            self.assertEqual(t.js("[%s.hidden, %s.getAttribute('aria-hidden')]" % (draft, draft)), [False, "true"])
            self.assertEqual(self.answers(t), [""])
            gate.open()
        self.saw(t, "A block.")
        self.assertEqual(t.js("[%s.hidden, %s.textContent]" % (draft, draft)), [True, ""])
        gates[2].open()
        t.wait("document.body.dataset.ended > %d" % n)
        self.assertEqual(self.texts(t)[-1], ["assistant", "A block."])
        self.assertRegex(t.js("document.querySelector('.figures:not(:empty)').textContent"),
                         "1 block \u00b7 2 steps \u00b7 4.00 per step")
        self.assertEqual(self.fake.asked[-1]["stream_options"], {"include_drafts": True})
        self.calm(t)


class Conversation(InBrowser):
    """With the real server and model."""

    def expected(self, messages, **more):
        return S.json(CHAT, {"messages": messages, "temperature": 0, "max_tokens": 80,
                             **more})["choices"][0]["message"]["content"]

    def real(self):
        t = self.tab(S.url + "/")
        for id, value in (("temperature", "0"), ("max_tokens", "80"), ("markdown", False)):
            t.set(id, value)
        return t

    def ask_long(self, t):
        """The next answer goes on until it is stopped; those of a later load of the page do not."""
        t.js("(() => { const f = requestBody; requestBody = (...a) => ({ ...f(...a), ...%s }); })()"
             % json.dumps(LONG))

    def test_turns(self):
        t = self.real()
        self.say(t, QUESTION)
        first = self.expected([{"role": "user", "content": QUESTION}])
        self.say(t, "And 7 boxes?")
        second = self.expected([{"role": "user", "content": QUESTION}, {"role": "assistant", "content": first},
                                {"role": "user", "content": "And 7 boxes?"}])
        self.assertEqual(self.answers(t), [first, second])             # the history was sent with it
        self.assertRegex(t.js("document.querySelector('.figures:not(:empty)').textContent"),
                         r"^\d+ tokens · [\d.]+ tokens/s · [\d.]+ per pass · \d+ % drafted$")
        self.assertRegex(t.js("at('state').textContent"), r"^\d+ / 32,768$")
        # what was drafted is underlined, not only coloured, when that is wished
        self.assertEqual(t.js("document.querySelectorAll('.body .d').length"), 0)
        t.press("Drafted")
        self.assertEqual(self.answers(t), [first, second])
        self.assertEqual(t.js("getComputedStyle(document.querySelector('.body .d')).textDecorationLine"), "underline")
        drafted = t.js("[...document.querySelectorAll('article.assistant .d')].map(e => e.textContent).join('').length")
        self.assertTrue(0 < drafted < len(first + second), drafted)
        self.load(t)
        self.assertEqual(self.answers(t), [first, second])
        self.calm(t)

    def test_settings(self):
        t = self.real()
        for id, value in (("system", "Be brief."), ("temperature", "0.9"), ("top_p", "0.9"), ("seed", "11"),
                          ("max_tokens", "30"), ("top_k", "40"), ("min_p", "0.01"), ("repetition_penalty", "1.1"),
                          ("frequency_penalty", "0.1"), ("presence_penalty", "0.1"), ("rep_window", "64"),
                          ("stop_texts", "zzz\nyyy")):
            t.set(id, value)
        self.say(t, "def f(x):")
        talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "def f(x):"}]
        how = {"temperature": 0.9, "top_p": 0.9, "max_tokens": 30, "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1,
               "frequency_penalty": 0.1, "presence_penalty": 0.1, "rep_window": 64, "stop": ["zzz", "yyy"]}
        self.assertEqual(self.answers(t), [self.expected(talk, seed=11, **how)])
        t.set("seed", "12")
        self.after(t, lambda: t.press("Regenerate"))
        self.assertEqual(self.answers(t), [self.expected(talk, seed=12, **how)])
        self.calm(t)

    def test_schema(self):
        t = self.real()
        t.set("schema", '{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], '
                        '"additionalProperties": false}')
        self.say(t, "Hi")
        self.assertIn(json.loads(self.answers(t)[0]), [{"a": True}, {"a": False}])
        t.set("schema", '{"type": ')
        self.assertIn("not JSON", t.js("at('schema-wrong').textContent"))
        self.say(t, "again")
        self.assertEqual(len(self.answers(t)), 1)
        self.assertIn("not JSON", t.js("at('trouble-text').textContent"))
        self.assertEqual(t.js("at('say').value"), "again")
        self.calm(t)

    def test_stop_and_continue(self):
        t = self.real()
        self.ask_long(t)
        self.begin(t, "def f(x):")
        t.wait("document.querySelector('article:last-child .body').textContent.length > 20 && !at('stop').hidden")
        t.key("Escape", 27)
        t.wait("document.body.dataset.busy === 'no'")
        self.assertTrue(S.wait_for(S.idle))
        part = self.answers(t)[0]
        self.assertGreater(len(part), 20)                              # the part that had arrived stays
        self.load(t)
        self.assertEqual(self.answers(t), [part])
        self.assertIn("Stopped", t.js("document.body.innerText"))
        t.set("max_tokens", "20")
        self.after(t, lambda: t.press("Continue"))
        self.assertTrue(self.answers(t)[0].startswith(part))

    def test_killed(self):
        """The server dies in the middle: what had come stays, and the page says what happened."""
        server = Server(*ROOM)
        try:
            t = self.tab(server.url + "/")
            self.ask_long(t)
            self.begin(t, "def f(x):")
            t.wait("document.querySelector('article:last-child .body').textContent.length > 20")
            server.p.kill()
            server.p.wait()
            t.wait("document.body.dataset.ended > 0 && document.body.dataset.busy === 'no'")
            self.assertGreater(len(self.answers(t)[0]), 20)
            self.assertIn("The connection to the server was lost", t.js("at('talk').innerText"))
            t.wait("at('trouble-text').textContent.startsWith('The server does not answer')")
            self.say(t, "and now?")
            self.assertEqual(t.js("at('say').value"), "and now?")
            self.assertEqual(len(self.answers(t)), 1)
        finally:
            server.p.kill()
            server.p.wait()

    def test_too_long(self):
        """A question that does not fit comes back, and is not sent again with the next one."""
        t = self.real()
        self.say(t, "Hi")
        long = "word " * 40000
        self.say(t, long)
        self.assertIn("context", t.js("at('trouble-text').textContent"))
        self.assertEqual(t.js("at('say').value"), long)
        self.assertEqual(len(self.texts(t)), 2)
        t.set("max_tokens", "10")
        self.say(t, "def f(x):")
        self.assertEqual([r for r, _ in self.texts(t)], ["user", "assistant"] * 2)
        self.assertTrue(t.js("at('trouble').hidden"))

    def test_key(self):
        server = Server("--api-key", "secret")
        try:
            t = Tab(B, self.context)
            self.tabs.append(t)
            t.go(server.url + "/")
            t.wait("!at('key-row').hidden && document.activeElement.id === 'key'")
            self.assertIn("key", t.js("at('trouble-text').textContent"))
            t.set("key", "secret")
            t.wait("server.up")
            t.set("max_tokens", "10")
            self.say(t, "Hi")
            self.assertEqual(len(self.answers(t)), 1)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_pictures(self):
        """Small ones; PAGE_PNG=doc writes them."""
        t = self.real()
        t.set("markdown", True)
        t.set("colours", True)
        t.set("max_tokens", "56")
        self.say(t, COMPLETE)
        self.say(t, QUESTION)
        t.js("at('notes').replaceChildren(); at('say').blur()")
        made = {}
        for name, size in (("page", (1180, 720, "light", False)), ("page-phone", (390, 844, "dark", True))):
            t.size(*size)
            t.wait("innerWidth === %d && isLow()" % size[0])
            made[name] = t.picture()
            self.assertEqual(made[name][:8], b"\x89PNG\r\n\x1a\n")
        self.assertLess(sum(map(len, made.values())), 300000)
        if os.environ.get("PAGE_PNG"):
            for name, png in made.items():
                with open(os.path.join(os.environ["PAGE_PNG"], name + ".png"), "wb") as f:
                    f.write(png)
        self.calm(t)


class TenTurns(InBrowser):
    """A long conversation with all that happens in one, at each size and scheme."""

    def conversation(self, size):
        t, f = self.tab(size=size), self.fake
        self.inside(t)
        self.say(t, "one")
        self.say(t, "two")
        self.inside(t)
        # 3: an edit makes a branch; an empty one is refused
        t.press("Edit", self.article(2))
        t.js("(e => { e.value = ''; e.dispatchEvent(new Event('input')); })(document.querySelector('article textarea'))")
        self.assertTrue(t.js("[...document.querySelectorAll('article .tools .main')].every(b => b.disabled)"))
        self.assertIn("empty", t.js("at('talk').innerText"))
        self.inside(t)
        t.press("Cancel")
        self.assertEqual(t.js("document.activeElement.textContent"), "Edit")
        t.press("Edit", self.article(2))
        t.js("(e => { e.value = 'two, edited'; e.dispatchEvent(new Event('input')); })"
             "(document.querySelector('article textarea'))")
        self.after(t, lambda: t.press("Send", self.article(2)))
        self.assertEqual(self.texts(t)[2:], [["user", "two, edited"], ["assistant", "You said: two, edited"]])
        self.assertEqual(len(f.asked[-1]["messages"]), 3)
        self.assertIn("2/2", t.js(self.article(2) + ".innerText"))
        t.press("Previous version", self.article(2))
        t.wait("currentPath()[2].content === 'two'")
        self.assertEqual(self.texts(t)[2:], [["user", "two"], ["assistant", "You said: two"]])
        self.inside(t)
        t.press("Next version", self.article(2))
        t.wait("currentPath()[2].content === 'two, edited'")
        # 4: another answer beside the first one
        f.answers(lambda a: (a.piece("Something else"), a.done()))
        self.after(t, lambda: t.press("Regenerate", self.article(3)))
        self.assertEqual(self.texts(t)[3], ["assistant", "Something else"])
        self.assertIn("2/2", t.js(self.article(3) + ".innerText"))
        # 5: stopped; 6: goes on
        gate = Gate()
        f.answers(lambda a: (a.piece("A part "), gate.wait(), a.piece("too late"), a.done()))
        self.begin(t, "three")
        self.saw(t, "A part")
        self.inside(t)
        t.js("at('stop').click()")
        t.wait("document.body.dataset.busy === 'no'")
        gate.open()
        self.assertIn("Stopped", t.js("document.querySelector('article:last-child').innerText"))
        f.answers(lambda a: (a.piece("and the rest"), a.done()))
        self.after(t, lambda: t.press("Continue"))
        self.assertEqual(self.texts(t)[-1], ["assistant", "A part and the rest"])
        self.assertEqual(f.asked[-1]["messages"][-1], {"role": "assistant", "content": "A part "})
        self.assertTrue(f.asked[-1]["continue_final_message"])
        # 7: a reload in the middle
        gate = Gate()
        f.answers(lambda a: (a.piece("Before the reload "), gate.wait(), a.piece("lost"), a.done()))
        self.begin(t, "four")
        self.saw(t, "Before the reload")
        t.wait("store.all('messages').then(all => all.some(m => m.content === 'Before the reload '))")
        self.load(t)
        gate.open()
        t.wait("document.body.dataset.busy === 'no'")
        self.assertEqual(self.texts(t)[-2:], [["user", "four"], ["assistant", "Before the reload "]])
        t.wait("document.querySelector('article:last-child').innerText.includes('Interrupted')")
        f.answers(lambda a: (a.piece("and after it"), a.done()))
        self.after(t, lambda: t.press("Continue"))
        self.assertEqual(self.texts(t)[-1], ["assistant", "Before the reload and after it"])
        # 8: the server goes away and comes back
        f.dead = True
        self.say(t, "five")
        self.assertEqual(t.js("at('say').value"), "five")
        self.assertTrue(t.js("at('trouble-text').textContent").startswith("The server does not answer"))
        self.inside(t)
        f.dead = False
        t.wait("server.up && at('trouble').hidden")
        t.js("setComposer('', [])")
        self.say(t, "five again")
        self.assertEqual(self.texts(t)[-1], ["assistant", "You said: five again"])
        self.assertNotIn("five", [m["content"] for m in f.asked[-1]["messages"]])
        # 9: all of Markdown, 10: many words without a space
        with open(os.path.join(ROOT, "tests", "data", "page.md")) as g:
            text = g.read()
        f.answers(*[lambda a: ([a.piece(text[i:i + 7]) for i in range(0, len(text), 7)], a.done())])
        self.say(t, "Markdown?")
        self.inside(t)
        self.say(t, "wide" * 200)
        self.inside(t)
        self.assertEqual(len(self.texts(t)), 14)
        # all is there again after a reload, branches too
        before, n = self.texts(t), self.stored(t)
        self.load(t)
        self.assertEqual((self.texts(t), self.stored(t)), (before, n))
        for open_, close in (("at('side-open').click()", "openSide(false)"), ("openSettings(true)", "openSettings(false)"),
                             ("openMenu(at('chat-menu'), talk.chat)", "at('menu').hidePopover()"),
                             ("openAbout()", "at('about').close()")):
            t.js(open_)
            self.inside(t)
            t.js(close)
        self.assertEqual([x for x in t.trouble if "ERR_" not in json.dumps(x)], [])     # dead: the console says so
        self.assertEqual([u for u in t.asked if not u.startswith((f.url + "/", "about:"))], [])
        return t


for _size in SIZES:
    def _turns(self, size=_size):
        self.conversation(size)
    setattr(TenTurns, "test_%s_%s" % ("phone" if _size[3] else "wide", _size[2]), _turns)


class Keeping(InBrowser):
    """Nothing is lost."""

    def test_two_tabs(self):
        a, f = self.tab(), self.fake
        self.say(a, "from A")
        b = self.tab()
        b.js("openChat(%s)" % json.dumps(a.js("talk.chat.id")))
        self.say(b, "from B")
        a.wait("currentPath().length === 4")                           # A hears of it
        self.say(a, "from A again")
        b.wait("currentPath().length === 6")
        # an answer in A can be watched in B, which cannot break into it
        gate = Gate()
        f.answers(lambda x: (x.piece("slowly "), gate.wait(), x.piece("done"), x.done()))
        self.begin(a, "slow")
        self.saw(b, "slowly")
        b.wait("document.body.dataset.busy === 'yes' && "
               "document.querySelector('article:last-child').innerText.includes('Another tab')")
        gate.open()
        b.wait("document.body.dataset.busy === 'no'")
        self.saw(b, "slowly done")
        # two conversations at the same time
        b.js("at('new').click()")
        b.wait("talk.chat === null")
        ga, gb = Gate(), Gate()
        f.answers(lambda x: (x.piece("A1 "), ga.wait(), x.piece("A2"), x.done()))
        self.begin(a, "mine")
        self.assertTrue(ga.reached.wait(LIMIT))
        f.answers(lambda x: (x.piece("B1 "), gb.wait(), x.piece("B2"), x.done()))
        self.begin(b, "other")
        self.assertTrue(gb.reached.wait(LIMIT))
        gb.open()
        ga.open()
        for t, text in ((a, "A1 A2"), (b, "B1 B2")):
            t.wait("currentPath().length && currentPath().pop().content === '%s' && document.body.dataset.busy === 'no'" % text)
        for t in (a, b):
            self.load(t)
        self.assertEqual([c for _, c in self.texts(a)][-2:], ["mine", "A1 A2"])
        self.assertEqual([c for _, c in self.texts(b)], ["other", "B1 B2"])
        self.assertEqual(len(self.texts(a)), 10)
        self.calm(a, b)

    def test_tab_that_goes(self):
        """The tab that was writing is closed: the other one has the part, and can go on."""
        a, f, gate = self.tab(), self.fake, Gate()
        f.answers(lambda x: (x.piece("a part "), gate.wait(), x.piece("lost"), x.done()))
        self.begin(a, "question")
        a.wait("store.all('messages').then(all => all.some(m => m.content === 'a part '))")
        b = self.tab()
        b.js("openChat(%s)" % json.dumps(a.js("talk.chat.id")))
        self.tabs.remove(a)
        a.close()
        while any(t["targetId"] == a.target for t in b.b.call("Target.getTargets")["targetInfos"]):
            time.sleep(0.01)                       # closing only begins with its answer
        gate.open()
        b.wait("document.body.dataset.busy === 'no' && document.querySelector('article:last-child').innerText.includes('Interrupted')")
        self.assertEqual(self.texts(b), [["user", "question"], ["assistant", "a part "]])
        f.answers(lambda x: (x.piece("and more"), x.done()))
        self.after(b, lambda: b.press("Continue"))
        self.assertEqual(self.texts(b)[1], ["assistant", "a part and more"])

    def test_reload_before_the_first_token(self):
        t, gate = self.tab(), Gate()
        self.fake.answers(lambda a: (gate.wait(), a.done()))
        self.begin(t, "asked")
        self.assertTrue(gate.reached.wait(LIMIT))
        self.load(t)
        gate.open()
        t.wait("document.querySelectorAll('article').length === 2")
        self.assertEqual(self.texts(t), [["user", "asked"], ["assistant", ""]])
        self.after(t, lambda: t.press("Regenerate"))
        self.assertEqual(self.texts(t), [["user", "asked"], ["assistant", "You said: asked"]])
        self.assertEqual([m["content"] for m in self.fake.asked[-1]["messages"]], ["asked"])

    def test_unanswered_is_not_sent_again(self):
        """A question whose answer never began is left out of what the model is told."""
        t, gate = self.tab(), Gate()
        self.fake.answers(lambda a: (gate.wait(), a.done()))
        self.begin(t, "first")
        self.assertTrue(gate.reached.wait(LIMIT))
        self.load(t)
        gate.open()
        t.wait("document.body.dataset.busy === 'no'")
        self.say(t, "second")
        self.assertEqual([m["content"] for m in self.fake.asked[-1]["messages"]], ["second"])

    def test_draft(self):
        t = self.tab()
        self.say(t, "kept")
        t.type("say", "half a sentence")
        self.load(t)
        self.assertEqual(t.js("at('say').value"), "half a sentence")
        t.js("at('new').click()")
        t.wait("talk.chat === null")
        self.assertEqual(t.js("at('say').value"), "")
        t.type("say", "a new one")
        t.press("kept", "at('list')")
        t.wait("at('say').value === 'half a sentence'")
        t.js("at('new').click()")
        t.wait("at('say').value === 'a new one'")
        self.calm(t)

    def test_delete_and_undo(self):
        t = self.tab()
        self.say(t, "to be deleted")
        for way in ("Undo", "Restore"):
            t.js("at('chat-menu').click()")
            t.press("Delete", "at('menu')")
            t.wait("talk.chat === null && !at('list').textContent.includes('to be deleted')")
            if way == "Undo":
                t.press("Undo")
            else:
                self.load(t)                                           # it is there tomorrow too
                t.press("Deleted (1)")
                t.wait("at('list').textContent.includes('to be deleted')")
                t.press("Restore")
            t.wait("talk.chat && currentPath().length === 2")
        self.assertEqual(self.texts(t), [["user", "to be deleted"], ["assistant", "You said: to be deleted"]])
        # for good: only after a question
        t.js("at('chat-menu').click()")
        t.press("Delete", "at('menu')")
        t.wait("talk.chat === null")
        t.press("Deleted (1)")
        t.wait("at('list').textContent.includes('to be deleted')")
        t.press("Delete for good: to be deleted")
        t.wait("at('asking').open")
        t.press("Cancel", "at('asking')")
        self.assertEqual(self.stored(t), 2)
        t.press("Delete for good: to be deleted")
        t.press("Delete for good", "at('asking')")
        t.wait("store.all('messages').then(all => all.length === 0)")
        self.calm(t)

    def test_names_and_search(self):
        t = self.tab()
        for text in ("Alpha bravo\nsecond line", "Charlie"):
            t.js("at('new').click()")
            t.wait("talk.chat === null")
            self.say(t, text)
        names = "[...document.querySelectorAll('#list .name')].map(e => e.textContent)"
        t.wait(names + ".join() === 'Charlie,Alpha bravo'")
        t.js("at('chat-menu').click()")
        t.press("Rename", "at('menu')")
        t.wait("at('asking').open")
        t.type("asking-value", "Delta")
        t.press("Rename", "at('asking')")
        t.wait(names + ".join() === 'Delta,Alpha bravo' && at('title').textContent === 'Delta'")
        for words, found in (("SECOND", "Alpha bravo"), ("delt", "Delta"), ("charlie", "Delta"), ("nowhere", "")):
            t.js("at('search').value = '%s'; at('search').dispatchEvent(new Event('input'))" % words)
            t.wait(names + ".join() === '%s'" % found)
        self.assertIn("Nothing found", t.js("at('list-note').textContent"))
        self.calm(t)

    def exported(self, t, what):
        """The text of the file that a button makes."""
        t.js("window.saved = null; saveFile = (name, type, text) => { saved = [name, text]; }")
        t.js(what)
        t.wait("saved")
        return t.js("saved")

    def test_export_and_import(self):
        t = self.tab()
        self.say(t, "first <!-- ratoon: user -->")
        self.fake.answers(lambda a: (a.piece("thinking", None, "reasoning_content"),
                                     a.piece("A **bold** answer\n\n<!-- ratoon: assistant -->\n\\<!-- ratoon: user -->"), a.done()))
        self.say(t, "second")
        self.after(t, lambda: t.press("Regenerate", self.article(3)))
        t.press("Previous version", self.article(3))
        t.wait("currentPath()[3].content.startsWith('A **bold**')")
        path_, figures = self.texts(t), t.js("currentPath()[3].figures")
        name, text = self.exported(t, "fromMenu('json', talk.chat)")
        self.assertTrue(name.endswith(".json"))
        file = json.loads(text)
        self.assertEqual((file["kind"], file["version"], len(file["chats"][0]["messages"])), ("ratoon.conversations", 1, 5))
        _, whole = self.exported(t, "at('export-all').click()")
        self.assertEqual(json.loads(whole), file)
        marked, markdown = self.exported(t, "fromMenu('markdown', talk.chat)")
        self.assertTrue(marked.endswith(".md"))
        for name, text in (("back.json", text), ("back.md", markdown), ("simple.json", json.dumps(
                {"messages": [{"role": "system", "content": "x"}] + [{"role": r, "content": c} for r, c in path_]}))):
            old = t.js("talk.chat.id")
            t.files("import-files", [write(name, text)])
            t.wait("talk.chat && talk.chat.id !== '%s' && currentPath().length === 4" % old)
            self.assertEqual(self.texts(t), path_, name)
            if name == "back.json":
                self.assertEqual(len(t.js("[...talk.all.values()]")), 5)
                self.assertEqual(t.js("currentPath()[3].figures"), figures)
                self.assertEqual(t.js("currentPath()[3].thought"), "thinking")
        t.wait("document.querySelectorAll('#list li').length === 4")        # nothing was replaced
        self.calm(t)

    def test_bad_imports(self):
        t = self.tab()
        bad = {"a.json": "{", "b.json": "[]", "c.json": '{"messages": [{"role": "user", "content": 5}]}',
               "d.json": '{"messages": [{"role": "robot", "content": ""}]}', "e.md": "# Nothing", "f.json": "null",
               "g.json": '{"kind": "ratoon.conversations", "chats": [{"messages": {}}]}',
               "h.json": '{"messages": [null]}'}
        for name, text in bad.items():
            t.js("trouble('')")
            t.files("import-files", [write(name, text)])
            t.wait("at('trouble-text').textContent.startsWith('%s cannot be imported: ')" % name)
        self.assertEqual(self.stored(t), 0)
        # strange, but readable: a circle of parents, wrong types beside the text
        strange = {"kind": "ratoon.conversations", "version": 1, "chats": [{"name": 7, "leaf": "b", "messages": [
            {"id": "a", "parent": "b", "role": "user", "content": "A", "files": 3, "time": "x"},
            {"id": "b", "parent": "a", "role": "assistant", "content": "B<b>", "runs": [1], "figures": {"x": "y"},
             "error": 5, "thought": {}}]}]}
        t.files("import-files", [write("s.json", json.dumps(strange))])
        t.wait("talk.chat && currentPath().length === 2")
        self.assertEqual(t.js("document.querySelectorAll('article').length"), 2)
        self.assertEqual(self.answers(t), ["B<b>"])
        self.load(t)
        self.assertEqual(self.answers(t), ["B<b>"])
        self.calm(t)

    def test_old_conversation(self):
        """What the page kept before it had a database comes in as a conversation."""
        t = self.tab()
        t.js("localStorage.setItem('ratoon.talk', JSON.stringify([{ role: 'user', content: 'old' }, "
             "{ role: 'assistant', content: 'older' }]))")
        self.load(t)
        t.press("old", "at('list')")
        t.wait("currentPath().length === 2")
        self.load(t)
        self.assertEqual(t.js("document.querySelectorAll('#list li').length"), 1)

    def test_nothing_kept(self):
        """A browser without a database: the page works and says what that means."""
        t = Tab(B, self.context)
        self.tabs.append(t)
        t.before("for (const name of ['indexedDB', 'sessionStorage', 'localStorage']) Object.defineProperty(window, "
                 "name, { get() { throw new Error('forbidden'); } })")
        self.load(t, self.fake.url + "/")
        self.assertIn("keeps nothing", t.js("at('notes').textContent"))
        self.say(t, "hello")
        self.say(t, "again")
        self.assertEqual(self.answers(t), ["You said: hello", "You said: again"])


class Failing(InBrowser):
    def test_refused(self):
        """A refusal: the text is in the field again, in front of what was typed since, and no turn is left."""
        t, gate = self.tab(), Gate()
        self.fake.answers(lambda a: (gate.wait(), a.fail(400, "temperature: -3, expected 0 to 10000")))
        self.begin(t, "question")
        self.assertTrue(gate.reached.wait(LIMIT))
        t.type("say", "typed meanwhile")
        gate.open()
        t.wait("!at('trouble').hidden && document.body.dataset.busy === 'no'")
        self.assertIn("temperature: -3", t.js("at('trouble-text').textContent"))
        self.assertEqual(t.js("at('say').value"), "question\n\ntyped meanwhile")
        self.assertEqual(self.stored(t), 0)
        self.assertEqual(t.js("at('trouble').getAttribute('role')"), "alert")
        self.load(t)
        self.assertEqual(t.js("at('say').value"), "question\n\ntyped meanwhile")

    def test_regenerate_fails(self):
        """The answer that was there is shown again."""
        t = self.tab()
        self.say(t, "question")
        self.fake.answers(lambda a: a.fail(503, "too many requests"))
        self.after(t, lambda: t.press("Regenerate"))
        self.assertEqual(self.texts(t), [["user", "question"], ["assistant", "You said: question"]])
        self.assertIn("too many", t.js("at('trouble-text').textContent"))

    def test_error_in_the_stream(self):
        t = self.tab()
        self.fake.answers(lambda a: (a.piece("so far "), a.event({"error": {"message": "the engine failed"}})))
        self.say(t, "question")
        self.assertEqual(self.texts(t)[1], ["assistant", "so far "])
        self.assertIn("the engine failed", t.js("at('talk').innerText"))
        self.fake.answers(lambda a: (a.piece("and on"), a.done()))
        self.after(t, lambda: t.press("Continue"))
        self.assertEqual(self.texts(t)[1], ["assistant", "so far and on"])
        self.assertNotIn("the engine failed", t.js("at('talk').innerText"))

    def test_cut_off(self):
        """The stream ends without its end, in the middle of an event and of a character."""
        t = self.tab()
        self.fake.answers(lambda a: (a.piece("so far "), a.h.wfile.write(b'data: {"choices": [{"delta": {"content": "\xc3')))
        self.say(t, "question")
        self.assertEqual(self.texts(t)[1], ["assistant", "so far "])
        self.assertIn("connection to the server was lost", t.js("at('talk').innerText"))

    def test_stopped_before_anything(self):
        t, gate = self.tab(), Gate()
        self.fake.answers(lambda a: (gate.wait(), a.done()))
        self.begin(t, "question")
        self.assertTrue(gate.reached.wait(LIMIT))
        self.after(t, lambda: t.js("at('stop').click()"))
        gate.open()
        self.assertEqual((self.texts(t), t.js("at('say').value")), ([], "question"))

    def test_continue_with_a_wrong_schema(self):
        """What is there stays."""
        t = self.tab()
        self.fake.answers(lambda a: (a.piece("so far"), a.done("length")))
        self.say(t, "question")
        t.set("schema", "{")
        self.after(t, lambda: t.press("Continue"))
        self.assertIn("not JSON", t.js("at('trouble-text').textContent"))
        self.load(t)
        self.assertEqual(self.texts(t), [["user", "question"], ["assistant", "so far"]])

    def test_refused_behind_another(self):
        """A refusal for a conversation that is not open: its text is in that conversation's field."""
        t, gate = self.tab(), Gate()
        self.fake.answers(lambda a: (gate.wait(), a.fail(400, "not this one")))
        self.begin(t, "first")
        self.assertTrue(gate.reached.wait(LIMIT))
        first = t.js("talk.chat.id")
        t.js("at('new').click()")
        t.wait("talk.chat === null")
        self.after(t, gate.open)
        self.assertEqual((self.stored(t), t.js("at('say').value")), (0, ""))
        t.js("openChat('%s')" % first)
        self.assertEqual(t.js("at('say').value"), "first")

    def test_other_conversation_meanwhile(self):
        """An answer goes on while another conversation is open."""
        t, gate = self.tab(), Gate()
        self.fake.answers(lambda a: (a.piece("one "), gate.wait(), a.piece("two"), a.done()))
        self.begin(t, "first")
        self.saw(t, "one")
        t.js("at('new').click()")
        t.wait("talk.chat === null")
        self.say(t, "second")
        n = self.ended(t)
        gate.open()
        t.wait("document.body.dataset.ended > %d" % n)
        self.assertEqual(self.texts(t)[1], ["assistant", "You said: second"])
        t.press("Open", "at('notes')")
        t.wait("currentPath().length && currentPath()[0].content === 'first'")
        self.assertEqual(self.texts(t)[1], ["assistant", "one two"])
        self.calm(t)


class Hands(InBrowser):
    def test_copy(self):
        """With the clipboard's object, and without it, as on a page that came over plain HTTP."""
        for url in (self.fake.url, self.fake.url.replace("127.0.0.1", "plain.test")):
            t = self.tab(url + "/")
            self.assertEqual(t.js("isSecureContext"), "plain" not in url)
            self.fake.answers(lambda a: (a.piece("Some *text*\n\n```py\nx = 1\n```\n"), a.done()))
            self.say(t, "question")
            if "plain" not in url:
                B.call("Browser.grantPermissions", origin=url, browserContextId=self.context,
                       permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
            # what was copied is seen by pasting it: the clipboard is one for the whole machine
            for press, within, want in (("Copy", "document.querySelector('.code')", "x = 1\n"),
                                        ("Copy", self.article(1) + ".querySelector('.tools')",
                                         "Some *text*\n\n```py\nx = 1\n```\n")):
                t.js("window.copied = null; document.addEventListener('copy', () => copied = String(getSelection()) || "
                     "document.activeElement.value, { once: true }); if (navigator.clipboard) { const w = "
                     "navigator.clipboard.writeText.bind(navigator.clipboard); navigator.clipboard.writeText = s => "
                     "w(s).then(() => { copied = s; }); }")
                t.press(press, within)
                t.wait("copied !== null")
                self.assertEqual(t.js("copied"), want)
                t.wait(within + ".querySelector('button[data-name=Copy]') !== null")     # it has said so, for a moment

    def test_files(self):
        t = self.tab()
        paths = [write("notes.txt", "line one\n```\nline two"), write("data.bin", b"\x00\x01\x02"), write("latin.txt", b"\xe4")]
        t.files("attach-files", paths)
        t.wait("composer.files.length === 1 && at('notes').children.length === 2")
        self.assertIn("data.bin is no text", t.js("at('notes').textContent"))
        self.inside(t)
        self.load(t)
        self.assertEqual(t.js("composer.files.map(f => f.name)"), ["notes.txt"])
        t.press("Remove notes.txt")
        self.assertEqual(t.js("composer.files.length"), 0)
        t.press("Undo")
        t.wait("composer.files.length === 1")
        self.say(t, "What is in it?")
        self.assertEqual(self.fake.asked[-1]["messages"][-1]["content"],
                         "notes.txt:\n````\nline one\n```\nline two\n````\n\nWhat is in it?")
        self.assertIn("notes.txt", t.js(self.article(0) + ".innerText"))
        self.assertEqual(t.js("composer.files.length"), 0)
        self.calm(t)

    def test_field_grows(self):
        t = self.tab()
        one = t.js("at('say').offsetHeight")
        t.type("say", "\n".join(map(str, range(200))))
        self.assertGreater(t.js("at('say').offsetHeight"), 4 * one)
        self.assertLess(t.js("at('say').offsetHeight"), 400)
        self.inside(t)
        t.type("say", "x")
        self.assertEqual(t.js("at('say').offsetHeight"), one)

    def test_keys(self):
        t = self.tab()
        self.say(t, "one")
        t.key("ArrowUp", 38)
        self.assertEqual(t.js("document.querySelector('article textarea').value"), "one")
        t.key("Escape", 27)
        self.assertEqual(t.js("document.querySelectorAll('article textarea').length"), 0)
        # while an answer is written, Enter keeps the text, and Edit says why not
        gate = Gate()
        self.fake.answers(lambda a: (a.piece("x"), gate.wait(), a.done()))
        self.begin(t, "two")
        t.wait("document.body.dataset.busy === 'yes' && document.querySelectorAll('article').length === 4")
        t.type("say", "next")
        t.key("Enter", 13)
        t.press("Edit", self.article(0))
        self.assertIn("An answer is being written", t.js("at('notes').textContent"))
        self.assertEqual(t.js("document.querySelectorAll('article textarea').length"), 0)
        gate.open()
        t.wait("document.body.dataset.busy === 'no'")
        self.assertEqual(t.js("at('say').value"), "next")
        # the text of an answer can be changed too
        t.press("Edit", self.article(3))
        t.js("document.querySelector('article textarea').value = 'better'")
        t.press("Save")
        t.wait("currentPath()[3].content === 'better'")
        self.calm(t)

    def test_spoken(self):
        t = self.tab()
        self.fake.answers(lambda a: (a.piece("An **answer**"), a.done()))
        self.say(t, "question")
        self.assertEqual(t.js("[at('spoken').getAttribute('role'), at('spoken').textContent]"),
                         ["status", "The model says: An answer"])

    def test_capabilities(self):
        """What this model cannot do is not offered; and the demo's real server says what it can."""
        t = self.tab()
        self.assertEqual(t.js("['thinking-row', 'schema-row', 'system-row', 'marks'].map(id => at(id).hidden)"),
                         [True, False, False, False])
        f = self.fake
        f.props = {**f.props, "chat_template_caps": {**f.props["chat_template_caps"], "system": False},
                   "speculative_mode": "off"}
        f.models = {"data": [{**f.models["data"][0], "supported_parameters": [],
                              "capabilities": ["completion", "chat", "reasoning"]}]}
        self.load(t)
        self.assertEqual(t.js("['thinking-row', 'schema-row', 'system-row', 'marks'].map(id => at(id).hidden)"),
                         [False, True, True, True])
        for id, value in (("thinking", "on"), ("system", "x"), ("schema", "{}")):
            t.set(id, value)
        self.say(t, "question")
        self.assertEqual({k: f.asked[-1].get(k) for k in ("enable_thinking", "response_format")},
                         {"enable_thinking": True, "response_format": None})
        self.assertEqual([m["role"] for m in f.asked[-1]["messages"]], ["user"])
        f.models["data"][0]["capabilities"] = ["completion"]
        self.load(t)
        self.assertIn("no chat template", t.js("at('trouble-text').textContent"))
        self.assertTrue(t.js("at('send').disabled"))

    def test_theme(self):
        t = self.tab()
        colour = "getComputedStyle(document.body).backgroundColor"
        light = t.js(colour)
        t.set("theme", "dark")
        dark = t.js(colour)
        self.assertNotEqual(light, dark)
        self.load(t)
        self.assertEqual(t.js(colour), dark)
        t.set("theme", "")
        t.wait(colour + " === '%s'" % light)
        t.size(*SIZES[1])
        t.wait(colour + " === '%s'" % dark)

    def test_settings_back(self):
        t = self.tab()
        t.set("temperature", "0.3")
        t.set("system", "words")
        t.js("at('settings-reset').click()")
        self.assertEqual(t.js("[at('temperature').value, at('system').value]"), ["", ""])
        t.press("Undo")
        self.assertEqual(t.js("[at('temperature').value, at('system').value]"), ["0.3", "words"])


AXE = ("axe-core", "4.11.1", "5b86f813d96904f2d925fed5715877c75fc1cc140f89565fb42145e7801b2305", "axe.min.js")


class Accessible(InBrowser):
    def test_axe(self):
        axe, why = fetched(*AXE)
        if not axe:
            self.skipTest(why)
        for size in SIZES:
            t, gate = self.tab(size=size), Gate()
            t.call("Page.setBypassCSP", enabled=True)                  # axe puts in a style of its own
            self.load(t)
            with open(os.path.join(ROOT, "tests", "data", "page.md")) as f:
                text = f.read()
            self.fake.answers(lambda a: (a.piece("thought", None, "reasoning_content"), a.piece(text, [[0, 200]]), a.done("length")))
            t.set("colours", True)
            self.say(t, "Show all")
            self.after(t, lambda: t.press("Regenerate"))
            t.js(axe)
            states = [("the conversation", "", ""), ("settings", "openSettings(true)", "openSettings(false)"),
                      ("the list", "at('side-open').click()", "openSide(false)"),
                      ("the menu", "openMenu(at('chat-menu'), talk.chat)", "at('menu').hidePopover()"),
                      ("about", "openAbout()", "at('about').close()"),
                      ("trouble and notes", "trouble('wrong'); note('done', 'Undo', () => 0)", "trouble('')"),
                      ("an edit", "edit(currentPath()[0])", "redraw()")]
            for name, before, after in states if size in (SIZES[0], SIZES[3]) else states[:1]:
                t.js(before)
                found = t.js("axe.run().then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 200) + "
                             "(n.any[0] ? n.any[0].message : ''))]))")
                self.assertEqual(found, [], (name, size))
                t.js(after)


SPEC = ("commonmark-spec", "0.31.2", "588280df96c211f7ce9db0b7943ded34ac4b8ba321e2fdf9c03d188ec0f01fea", "spec.txt")
# Both sides as one form: blank text between blocks, attributes that the page adds, and boxes around code and tables go;
# pictures are links, and links elsewhere than to the web or to mail are text with their address as title.
FORM = r"""
window.form = node => {
  const out = [], inline = new Set("A CODE EM STRONG BR S INPUT SPAN".split(" "));
  const walk = (n, pre) => {
    if (n.nodeType === 3) {
      out.push(pre ? n.data : n.data.replace(/[ \t\n]+/g, " "));
      return;
    }
    if (n.nodeType !== 1) return;
    if (n.classList && n.classList.contains("code")) n = n.querySelector("pre");
    if (n.classList && n.classList.contains("table")) n = n.querySelector("table");
    let name = n.tagName.toLowerCase(), more = "";
    if (name === "img" || name === "a" || (name === "span" && n.classList.contains("no-link"))) {
      const address = name === "img" ? n.getAttribute("src") : n.getAttribute("href"), title = n.title;
      const safe = address !== null && /^(https?:\/\/|mailto:)/i.test(address);
      more = safe ? " " + address + " " + (title === address ? "" : title) : " ? " + (title || address || "");
      const alt = name === "img" ? n.alt : null;
      name = "link";
      out.push("<link" + more + ">");
      if (alt !== null) out.push(alt);
    } else {
      for (const a of ["start", "class"]) if (n.getAttribute(a) && name.match(/^(ol|code)$/)) more += " " + a + "=" + n.getAttribute(a);
      out.push("<" + name + more + ">");
    }
    if (name === "span") out.pop();                              // colours of code
    for (const c of n.childNodes) walk(c, pre || name === "pre");
    if (name !== "span") out.push("</" + name + ">");
  };
  for (const c of node.childNodes) walk(c, false);
  return out.join("").replace(/ *(<\/?(p|h[1-6]|ul|ol|li|blockquote|hr|pre|table|thead|tbody|tr|th|td)\b[^>]*>) */g, "$1")
    .replace(/ *(<br>|<\/br>) */g, "$1").replace(/<ol start=1>/g, "<ol>").trim();
};
window.shownAs = text => { const box = document.createElement("div"); show(box, text, [], { plain: false, final: true }); return form(box); };
"""
# By design: raw HTML is text; asterisks between letters or digits are text; bare addresses are links; a picture without a
# text shows its address; signs of currency are no punctuation yet in this version of the library.
OTHERWISE = {*(21, 31, 201, 308, 309, 344, 475, 476, 477, 491, 494, 524, 536, 642, 643),
             *(355, 356, 370, 381, 396, 411, 415, 416, 417, 429), *(602, 608, 611), 581, 354}


def examples(text):
    """Of the specification: (number, section, Markdown, HTML)."""
    out, section = [], ""
    for m in re.finditer(r"^`{32} example\n(.*?)^\.\n(.*?)^`{32}$|^#{1,6} *([^\n]*)$", text, re.S | re.M):
        if m.group(3) is not None:
            section = m.group(3)
        else:
            out.append((len(out) + 1, section, *(m.group(i).replace("→", "\t") for i in (1, 2))))
    return out


class Markdown(InBrowser):
    def renderer(self):
        t = self.tab()
        t.js(FORM)
        return t

    def test_specification(self):
        spec, why = fetched(*SPEC)
        if not spec:
            self.skipTest(why)
        cases = [c for c in examples(spec) if c[1] not in ("HTML blocks", "Raw HTML")]
        self.assertGreater(len(cases), 550)
        t = self.renderer()
        t.call("Page.setBypassCSP", enabled=True)                      # the expected HTML is read by the browser itself
        self.load(t)
        t.js(FORM)
        got = t.js("%s.map(([n, s, text, html]) => [n, shownAs(text), form(new DOMParser().parseFromString(html, "
                   "'text/html').body)])" % json.dumps(cases))
        wrong = {n: (a, b) for n, a, b in got if a != b}
        if os.environ.get("PAGE_SPEC"):
            for n, (a, b) in wrong.items():
                print(n, [c[1:3] for c in cases if c[0] == n], "\n    is  ", repr(a), "\n    want", repr(b))
        self.assertEqual({n: w for n, w in wrong.items() if n not in OTHERWISE}, {})
        self.assertEqual([n for n in OTHERWISE if n not in wrong], [])
        self.assertGreater(len(cases) - len(wrong), 550)


    def grown(self, t, texts):
        """The texts that look otherwise when they arrive in pieces, of one to eleven characters and of whole lines."""
        return t.js("""%s.filter(text => {
            const whole = shownAs(text);
            for (const pieces of [...[1, 2, 3, 5, 11].map(k => text.match(new RegExp(`[^]{1,${k}}`, "g")) || []), text.split(/(?<=\\n)/)]) {
                const box = document.createElement("div");
                let so_far = "";
                for (const p of pieces) show(box, so_far += p, [], { plain: false });
                show(box, so_far, [], { plain: false, final: true });
                if (form(box) !== whole) return true;
            }
            return false;
        })""" % json.dumps(texts))

    def test_as_it_arrives(self):
        """In pieces of any length a text ends up the same, only its last block being made anew each time."""
        with open(os.path.join(ROOT, "tests", "data", "page.md")) as f:
            texts = [f.read()]
        spec, _ = fetched(*SPEC)
        if spec:
            texts += [c[2] for c in examples(spec)]
        t = self.renderer()
        self.assertEqual(self.grown(t, texts), [])
        # the blocks before the last one are the same elements as before
        self.assertTrue(t.js("""(() => {
            const box = document.createElement("div"), text = "one\\n\\ntwo\\n\\n```py\\nx = 1\\n";
            show(box, text, [], { plain: false });
            const before = [...box.children], line = box.querySelector("code").firstChild;
            show(box, text + "y = 2\\n```\\nthree", [], { plain: false });
            return before.every((e, i) => box.children[i] === e) && box.querySelector("code").firstChild === line
                && box.children.length === 4;
        })()"""))

    def test_marks(self):
        """What was drafted is marked in all kinds of blocks, at its place."""
        t = self.renderer()
        text = "# Head\n\n- an *item* &amp; more\n- `code`\n\n| a | b |\n|---|---|\n| c | d |\n\n```py\nx = 1  # note\n```\n"
        words = ["Head", "item", "more", "code", "b", "c", "= 1  # no"]
        runs, at = [], 0
        for w in words:
            i = text.index(w, at)
            runs += [i, 0, i + len(w), 1]
            at = i + len(w)
        runs += [len(text), 0]
        shown = t.js("""((text, runs) => {
            const box = document.createElement("div"), all = [];
            show(box, text, runs, { plain: false, marked: true });
            for (const e of box.querySelectorAll(".d")) all.push(e.textContent);
            return all.join("|");
        })(%s, %s)""" % (json.dumps(text), json.dumps(runs)))
        self.assertEqual(shown.replace("|", ""), "".join(words).replace("  ", ""))

    def test_page_file(self):
        """What the review of the earlier page found wrong."""
        t = self.renderer()
        for text, want in (
                ("2*3*4 = 24", "<p>2*3*4 = 24</p>"), ("2**3**4", "<p>2**3**4</p>"), ("a *b* c", "<p>a <em>b</em> c</p>"),
                ("**bold *nested* text**", "<p><strong>bold <em>nested</em> text</strong></p>"),
                ("1. one\n   - nested\n   - nested\n2. two",
                 "<ol><li>one<ul><li>nested</li><li>nested</li></ul></li><li>two</li></ol>"),
                ("~~x~~", "<p><s>x</s></p>"), ("---", "<hr></hr>"), ("3. three", "<ol start=3><li>three</li></ol>"),
                ("|a|b|\n|-|:-:|\n|1|2|", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td>"
                 "</tr></tbody></table>"),
                ("- [x] done\n- [ ] open", "<ul><li><input></input> done</li><li><input></input> open</li></ul>"),
                ("这是**重点：**内容", "<p>这是<strong>重点：</strong>内容</p>"),
                ("main.py and a@b.c", "<p>main.py and a@b.c</p>"),
                ("see https://a.example/b?c=d.", "<p>see <link https://a.example/b?c=d >https://a.example/b?c=d</link>.</p>"),
                ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
                ("[x](/slots)", "<p><link ? /slots>x</link></p>"),
                ("<img src=x onerror=alert(1)>", "<p><img src=x onerror=alert(1)></p>"),
                ("```html\n<script>alert(1)</script>\n```", "<pre><code class=language-html><script>alert(1)</script>\n</code></pre>")):
            self.assertEqual(t.js("shownAs(%s)" % json.dumps(text)), want)

    def test_without_the_library(self):
        """A page that was built without markdown-it: answers are plain text, and that is said."""
        out = path("plain.html")
        subprocess.run([sys.executable, os.path.join(PAGE, "assemble.py"), out, "/nowhere"], check=True, capture_output=True)
        with open(out, "rb") as f:
            self.fake.page = f.read()
        t = self.tab()
        self.fake.answers(lambda a: (a.piece("# Head\n\n**b** <i>"), a.done()))
        self.say(t, "question")
        self.assertEqual(self.answers(t), ["# Head\n\n**b** <i>"])
        self.assertTrue(t.js("at('markdown').disabled"))
        t.press("About")
        self.assertIn("built without markdown-it", t.js("at('about').innerText"))
        self.calm(t)

    def test_policy(self):
        """Even a careless line of code could not turn text into markup."""
        t = self.tab()
        self.assertIn("TypeError", t.js("(() => { try { document.body.innerHTML = '<b>x</b>'; return ''; } "
                                        "catch (e) { return e.name; } })()"))

    def test_long(self):
        """A long answer in many pieces: work in proportion to its length, whatever it is made of. Counted, not timed:
        characters that the library reads."""
        t = self.tab()
        t.js("window.read = 0; const parse = md.parse; md.parse = function (text, env) { read += text.length; return "
             "parse.call(md, text, env); }")
        for block in ("A paragraph of some words that go on for a while.\n\n", "- item\n\ntext\n\n", "# Head\n\n> quote\n\n"):
            n = t.js("""(block => {
                const box = document.createElement("div");
                let text = "";
                read = 0;
                for (let i = 0; i < 600; i++) show(box, text += block, [], { plain: false });
                return read / text.length;
            })(%s)""" % json.dumps(block))
            self.assertLess(n, 5)

    def test_hostile(self):
        """Texts that would make a careless parser slow end at all."""
        t = self.renderer()
        for text in ("*", "`", "**a", "- ", "> ", "#", "`a", "\n", "[", "![", "](", "<", "&", "|", "a_", "*a ", "\\", "~", "\"\"\""):
            self.assertEqual(t.js("(() => { show(document.createElement('div'), %s.repeat(5000), [], { plain: false, final: true }); "
                                  "return 1; })()" % json.dumps(text)), 1)
            self.assertEqual(t.js("(() => { show(document.createElement('div'), '```js\\n' + %s.repeat(5000), [], { plain: false, "
                                  "final: true }); return 1; })()" % json.dumps(text)), 1)

    def test_code(self):
        """Colours go on over lines, and are the same however the code arrives."""
        t = self.renderer()
        for kind, code in (("python", 'def f(x):\n    """doc\n    more"""\n    return "s" + 1  # end\n'),
                           ("c", "#include <a.h>\n/* a\n b */ int f(void) { return 0x1f; } // end\n"),
                           ("js", "const a = `x\n${y}`; // c\nf(1.5e3)\n"), ("diff", "+a\n-b\n@@ c\n d\n"),
                           ("html", "<" + "!-- a\n --><b class=\"c\">d</b>\n"), ("unknown", "def 1\n"), ("sh", "echo $# a#b # c\n")):
            pieces = t.js("""((kind, code) => {
                const seen = box => [...box.querySelector("code").childNodes].map(n => [n.className || "", n.textContent]);
                const join = all => all.reduce((out, [c, s]) => { const l = out[out.length - 1];
                    if (l && l[0] === c) l[1] += s; else out.push([c, s]); return out; }, []);
                const text = "```" + kind + "\\n" + code, whole = document.createElement("div"), grown = document.createElement("div");
                show(whole, text, [], { plain: false });
                for (let i = 1; i <= text.length; i++) show(grown, text.slice(0, i), [], { plain: false });
                return [join(seen(whole)), join(seen(grown))];
            })(%s, %s)""" % (json.dumps(kind), json.dumps(code)))
            self.assertEqual(pieces[0], pieces[1])
            self.assertEqual("".join(s for _, s in pieces[0]), code)
            classes = dict((s.strip(), c) for c, s in pieces[0])
            want = {"python": {"def": "k", "return": "k", '"s"': "s", "1": "n", "# end": "c"},
                    "c": {"int": "k", "0x1f": "n", "// end": "c", "f": "f"}, "js": {"const": "k", "// c": "c", "1.5e3": "n"},
                    "diff": {"+a": "a", "-b": "r"}, "html": {'"c"': "s"}, "unknown": {"def 1": ""}, "sh": {"# c": "c"}}[kind]
            self.assertEqual({k: classes.get(k) for k in want}, want, kind)

    def test_characters(self):
        """Runs are counted in UTF-8 by the server and in UTF-16 by the page; an edge inside a character moves behind
        it."""
        t = self.tab()
        self.assertEqual(t.js("(() => { const r = []; addRuns(r, 0, 'aé😀b', [[0, 1], [2, 4], [7, 8]]); return r; })()"),
                         [1, 1, 2, 0, 5, 1])


if __name__ == "__main__":
    if not CHROMIUM:
        print("there is no chromium: the page's conversations are not tested (apt-get install chromium)")
    sys.exit(main(sys.modules["__main__"]))
