#!/usr/bin/env python3
"""The Python package on the demo pair: its structs and functions against the headers, streams, conversations, forms,
cancelling, errors, and what happens when objects are given up.

    python3 tests/cli/test_python.py [-v] [Class.test_name ...]

RATOON names the program that texts are compared with (default: ./ratoon), RATOON_LIBRARY the library (default:
build/libratoon.so). The last line is 'N passed, N failed'."""
import ctypes
import gc
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report
from scratch import DEMO, RATOON, ROOT, path, write

LIBRARY = os.environ.setdefault("RATOON_LIBRARY", os.path.join(ROOT, "build", "libratoon.so"))
PACKAGE = os.path.join(ROOT, "python")
sys.path.insert(0, PACKAGE)
sys.dont_write_bytecode = True
import ratoon
from ratoon import _api

MAKE_TINY = os.environ.get("MAKE_TINY", os.path.join(ROOT, os.environ.get("BUILD", "build"), "tests", "make_tiny"))
DRAFT = os.path.join(os.path.dirname(DEMO), "dflash-ratoon-demo-bf16.gguf")
HEADERS = ["ratoon.h", "ratoon_chat.h"]
ASKED = [{"role": "user", "content": "What is 3 + 4?"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}]
# A model that reasons before every answer, and calls in the way of Qwen3.
OPENED = ("{% if tools %}{{ '<tool_call>' ~ tools | tojson ~ '\\n' }}{% endif %}"
          "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}")


def python(code, expect=0, **env):
    """Runs code in a fresh interpreter; returns what it writes."""
    p = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": PACKAGE, **env})
    assert p.returncode == expect, "%d\n%s" % (p.returncode, p.stdout.decode())
    return p.stdout.decode()


class Headers(unittest.TestCase):
    """What the package says of the library, against the headers."""

    def test_layout(self):
        """Every struct has the size and the offsets that the compiler gives it; constants have their values."""
        structs = [s for s in vars(_api).values()
                   if isinstance(s, type) and issubclass(s, _api.Struct) and s is not _api.Struct]
        self.assertGreater(len(structs), 12)
        want, lines = {}, []
        for s in structs:
            names = [name for name, *_ in s._fields_]
            asked = [("sizeof(%s)" % s.__name__, ctypes.sizeof(s))]
            asked += [("offsetof(%s, %s)" % (s.__name__, n.rstrip("_")), getattr(s, n).offset) for n in names]
            lines += ['    printf("%%s %%zu\\n", "%s", %s);' % (what.replace(" ", ""), what) for what, _ in asked]
            want.update((what.replace(" ", ""), n) for what, n in asked)
        values = {**{"RT_" + n: ratoon.Status[s].value for n, s in
                     (("OK", "OK"), ("END", "END"), ("EARG", "ARGUMENT"), ("ENOMEM", "MEMORY"), ("EIO", "IO"),
                      ("EFORMAT", "FORMAT"), ("EUNSUPPORTED", "UNSUPPORTED"), ("EFULL", "FULL"),
                      ("ECANCEL", "CANCEL"), ("EBACKEND", "BACKEND"), ("ENOTOKEN", "NO_TOKEN"),
                      ("ELOST", "LOST"))},
                  **{"RT_" + n: i for i, n in enumerate(("TEXT", "REASONING", "CALL", "ARGUMENTS", "CALL_END"))},
                  **{"RT_CHAT_" + n.upper(): i for i, n in enumerate(ratoon._FEATURES)},
                  "RT_GOES_ON": 0, "RT_FINISH_STOP": 1, "RT_FINISH_STRING": 2, "RT_FINISH_CALLS": 3,
                  "RT_FINISH_LENGTH": 4, "RT_FINISH_CANCEL": 5, "RT_GBNF": 0, "RT_JSON_SCHEMA": 1,
                  "RT_SOURCES_MAX": 8}
        self.assertEqual(len(ratoon._KINDS), 5)
        self.assertEqual(len(ratoon._FINISHES), 6)
        lines += ['    printf("%%s %%d\\n", "%s", (int) %s);' % (n, n) for n in values]
        source = write("layout.c", "#include <ratoon_chat.h>\n#include <stdio.h>\nint main(void)\n{\n%s\n}\n"
                       % "\n".join(lines))
        subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror",
                        "-I" + os.path.join(ROOT, "include"), source, "-o", path("layout")], check=True)
        out = subprocess.run([path("layout")], stdout=subprocess.PIPE, check=True).stdout.decode()
        self.assertEqual({k: int(v) for k, v in (line.split() for line in out.splitlines())}, {**want, **values})

    def test_functions(self):
        """Every function that is called has as many arguments as in the headers."""
        text = "".join(open(os.path.join(ROOT, "include", h)).read() for h in HEADERS)
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        for name, (_, *arguments) in _api._FUNCTIONS.items():
            found = re.search(r"\b%s\(((?:[^()]|\([^()]*\))*)\);" % name, text)
            self.assertIsNotNone(found, name)
            flat = re.sub(r"\([^()]*\)", "", found[1])
            self.assertEqual(len(arguments), 0 if flat.strip() == "void" else flat.count(",") + 1, name)

    def test_version(self):
        with open(os.path.join(ROOT, "VERSION")) as f:
            version = f.read().strip()
        self.assertEqual(ratoon.version(), version)
        with open(os.path.join(PACKAGE, "pyproject.toml")) as f:
            self.assertIn('\nversion = "%s"\n' % version, f.read())


class Package(unittest.TestCase):
    """How the library is found."""

    def test_named(self):
        out = python("import ratoon", expect=1, RATOON_LIBRARY="/nonexistent/x.so")
        self.assertRegex(out, r"ImportError: libratoon: /nonexistent/x\.so: .*RATOON_LIBRARY")
        self.assertIn("ImportError: libratoon: ", python("import ratoon", expect=1, RATOON_LIBRARY="libm.so.6"))

    def test_beside(self):
        shutil.copytree(os.path.join(PACKAGE, "ratoon"), path("copy/ratoon"))
        shutil.copy(LIBRARY, path("copy/ratoon/libratoon.so"))
        self.assertEqual(python("import ratoon; print(ratoon.version())", PYTHONPATH=path("copy"), RATOON_LIBRARY=""),
                         ratoon.version() + "\n")


class Denoising(unittest.TestCase):
    def test_blocks(self):
        """The text of the program, in as many steps as asked for, with a draft after each."""
        model = os.path.join(os.path.dirname(DEMO), "ratoon-diffusion-demo-q8_0.gguf")
        want = json.loads(subprocess.run([RATOON, "run", "--json", "-q", "-m", model, "-p", "class A", "-n", "40",
                                          "--seed", "3", "--ignore-eos", "--diffusion", "steps=5,confidence=-1"],
                                         stdout=subprocess.PIPE, check=True).stdout)
        drafts = []
        with ratoon.Engine(model, threads=1) as engine, engine.session(ctx=300) as session:
            session.diffusion(steps=5, confidence=-1, draft=lambda tokens, step: drafts.append((tokens, step)))
            text = session.generate("class A", temperature=1, seed=3, max_tokens=40).text
            for field in "blocks", "steps":
                self.assertEqual(getattr(session.stats, field), want["stats"][field])
            self.assertTrue(want["text"].startswith(text) and text)
            self.assertEqual([step for _, step in drafts], [1, 2, 3, 4, 5] * session.stats.blocks)
            self.assertEqual("".join(engine.detokenize(t) for t, step in drafts if step == 5)[:len(text)], text)
            with self.assertRaisesRegex(ratoon.Error, "trim is 2, expected at most 1"):
                session.diffusion(trim=2)
        with ratoon.Engine(DEMO, threads=1) as engine, engine.session(ctx=300) as session:
            with self.assertRaisesRegex(ratoon.Error, "does not denoise"):
                session.diffusion(steps=5)


class Demo(unittest.TestCase):
    def setUp(self):
        self.engine = ratoon.Engine(DEMO, draft=DRAFT, threads=1)
        self.addCleanup(self.engine.close)
        self.session = self.engine.session(ctx=600)

    def program(self, *args, temp=("--temp", "0")):
        out = subprocess.run([RATOON, *args, "-q", "-m", DEMO, "-d", "none", *(temp or ())], stdout=subprocess.PIPE,
                             stdin=subprocess.DEVNULL, check=True).stdout
        return out.decode()

    def test_text(self):
        """A text goes on as with the program, in one piece or several; speculation and sampling are the library's."""
        want = json.loads(self.program("run", "--json", "-n", "60", "-p", "class Stack:\n"))["text"]
        with self.session.stream("class Stack:\n", max_tokens=60) as stream:
            events = list(stream)
        self.assertEqual("".join(e.text for e in events), want)
        self.assertEqual({e.kind for e in events}, {"text"})
        self.assertEqual([e.first for e in events], sorted(e.first for e in events))
        self.assertEqual(stream.answer, ratoon.Answer(text=want, finish="length"))
        stats = self.session.stats
        self.assertEqual((stats.generated, len(stats.drafted_by)), (60, 8))
        self.assertEqual(list(stream), [])
        plain = self.engine.session(ctx=600, budget=-1, ngram=False)
        warm = dict(max_tokens=40, temperature=0.9, seed=7, top_k=40)
        self.assertEqual(plain.generate("def f(", **warm), self.session.generate("def f(", **warm))
        self.assertEqual(plain.stats.passes, 40)

    def test_experts(self):
        """Of a mixture of which memory holds a part: the same text, and what was read from the file."""
        subprocess.run([MAKE_TINY, "qwen3moe-16", os.path.dirname(path("x"))], check=True)
        texts = []
        for options in {}, {"expert_ram": 8 << 20, "expert_slots": 1, "expert_io": "pread", "expert_profile": path("no")}:
            with ratoon.Engine(path("qwen3moe-16.gguf"), **options) as engine, engine.session(ctx=64) as session:
                texts.append(session.generate("hello world", max_tokens=6))
                stats = session.stats
                self.assertEqual(stats.experts_missed > 0, bool(options))
                self.assertEqual(stats.experts_missed_bytes > 0, bool(options))
                self.assertEqual(stats.experts_wait_s > 0, bool(options))
        self.assertEqual(texts[0], texts[1])
        with ratoon.Engine(path("qwen3moe-16.gguf"), expert_ram=ratoon.EXPERTS_AUTO) as engine:
            self.assertEqual(engine.get("model.experts"), "16")
        with self.assertRaisesRegex(ratoon.Error, "expert_io: 'tape', expected"):
            ratoon.Engine(path("qwen3moe-16.gguf"), expert_ram=8 << 20, expert_io="tape")

    def test_tokens(self):
        text = "def f(): \u00fc\U0001f600"
        ids = self.engine.tokenize(text)
        self.assertEqual(self.engine.detokenize(ids), text)
        self.assertEqual(b"".join(self.engine.token_bytes(i) for i in ids).decode(), text)
        self.assertEqual(len(self.engine.tokenize("<|im_end|>", special=True)), 1)
        self.assertTrue(self.engine.token_ends(self.engine.tokenize("<|im_end|>", special=True)[0]))
        self.assertEqual(self.engine.tokenize(""), [])
        self.session.generate(text, max_tokens=1)
        self.assertEqual(self.session.tokens[:len(ids)], ids)
        self.assertEqual((self.engine.get("model.arch"), self.engine.get("nothing")), ("qwen35", None))
        self.assertEqual(self.session.ctx, 600)

    def test_conversation(self):
        talk = list(ASKED)
        answer = self.session.generate(talk, max_tokens=100, temperature=0)
        want = json.loads(self.program("run", "--json", "--chat", "-n", "100", "-p", ASKED[0]["content"]))
        self.assertEqual(answer.text, want["text"])
        self.assertEqual(answer.finish, "stop")
        talk += [answer.message(), {"role": "user", "content": "And 2 + 2?"}]
        self.assertTrue(self.session.generate(talk, max_tokens=60, temperature=0).text)
        self.assertGreater(self.session.stats.resumed, 8)
        prompt = self.engine.render(ASKED)
        self.assertEqual(prompt.text, "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n")
        self.assertEqual(prompt.tokens, self.engine.tokenize(prompt.text, special=True))
        self.assertFalse(self.engine.can("tools"))
        self.assertTrue(self.engine.can("system"))

    def test_tools_and_reasoning(self):
        script = ratoon.Grammar('root ::= "Sum.\\n</think>\\n\\nWell\\n<tool_call>\\n{\\"name\\": \\"weather\\", '
                                '\\"arguments\\": {\\"city\\": \\"Oslo\\"}}\\n</tool_call>"')
        with ratoon.Engine(DEMO, threads=1, template=OPENED) as engine, engine.session(ctx=300) as session:
            ratoon._lib.rt_constrain.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
            self.assertEqual(ratoon._lib.rt_constrain(session._open, script._open), 0)
            answer = session.generate(ASKED, tools=TOOLS)
            self.assertEqual(answer, ratoon.Answer("Well", "Sum.", [ratoon.Call("weather", '{"city": "Oslo"}')],
                                                   "calls"))
            self.assertTrue(engine.can("tools"))
            message = answer.message()
            self.assertEqual(message["tool_calls"][0]["function"]["name"], "weather")
            engine.render(ASKED + [message, {"role": "tool", "tool_call_id": "call_0", "content": "cold"}])

    def test_forms(self):
        schema = {"type": "object", "properties": {"age": {"type": "integer"}, "tags": {
            "type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 3}}, "required": ["age", "tags"]}
        for form in schema, json.dumps(schema):
            answer = self.session.generate("A person: ", json_schema=form, temperature=1, seed=2)
            found = json.loads(answer.text)
            self.assertEqual(answer.finish, "stop")
            self.assertIsInstance(found["age"], int)
            self.assertIn(len(found["tags"]), (2, 3))
        word = ratoon.Grammar("root ::= [a-c]{9}")
        for grammar in word, "root ::= [a-c]{9}":
            self.assertRegex(self.session.generate(ASKED, grammar=grammar).text, r"\A[a-c]{9}\Z")
        stream = self.session.stream("x", grammar=word)
        word.close()                               # the stream goes on all the same
        self.assertEqual(len("".join(e.text for e in stream)), 9)
        with self.assertRaisesRegex(ValueError, "only one of"):
            self.session.stream("x", grammar="root ::= \"a\"", json_schema={})

    def test_stop(self):
        whole = self.session.generate("class Stack:\n", max_tokens=60).text
        for stop in whole[11:17], [whole[11:17], "never said"], ["never said", whole[11:17]]:
            answer = self.session.generate("class Stack:\n", max_tokens=60, stop=stop)
            self.assertEqual((answer.finish, answer.stop), ("stop_string", whole[11:17]))
            self.assertEqual(answer.text, whole[:whole.index(whole[11:17])])

    def test_whole_characters(self):
        grammar = ratoon.Grammar('root ::= ("\u00e4" | "\U0001f600" | "\u20ac"){9}')
        with self.session.stream("x", grammar=grammar, temperature=2, seed=3) as stream:
            pieces = [e.text for e in stream]
        self.assertRegex("".join(pieces), "\\A[\u00e4\U0001f600\u20ac]{9}\\Z")
        self.assertGreater(len(pieces), 1)
        self.assertNotIn("\ufffd", "".join(pieces))

    def test_sampling(self):
        """Answers are sampled as the program samples them, with another seed each time; texts are continued
        greedily."""
        want = json.loads(self.program("run", "--json", "--chat", "-n", "60", "--seed", "5", "-p",
                                       ASKED[0]["content"], temp=None))["text"]
        self.assertEqual(self.session.generate(ASKED, max_tokens=60, seed=5).text, want)
        said = {self.session.generate([{"role": "user", "content": "Say a word."}], max_tokens=20).text
                for _ in range(5)}
        self.assertGreater(len(said), 1)

    def test_bias(self):
        first = self.engine.tokenize(self.session.generate("class Stack:\n", max_tokens=1).text)[0]
        other = self.session.generate("class Stack:\n", max_tokens=1, bias={first: -1000}).text
        self.assertNotEqual(self.engine.tokenize(other)[0], first)

    def test_cancel(self):
        """From another thread; the session can be used again."""
        told = threading.Event()

        def cancel():
            told.wait()
            self.session.cancel()
        thread = threading.Thread(target=cancel)
        thread.start()
        with self.session.stream("class Stack:\n") as stream:
            for _ in stream:
                told.set()
                thread.join()                      # so that there is always more to come
        self.assertEqual(stream.answer.finish, "cancelled")
        self.assertTrue(stream.answer.text)
        self.assertEqual(self.session.generate("class Stack:\n", max_tokens=9).finish, "length")

    def test_cancel_and_close(self):
        """A step that another thread cancels is not freed meanwhile; handlers may cancel within close."""
        lib, begun, freed = ratoon._lib, threading.Event(), threading.Event()
        cancel_step, free_step = lib.rt_step_cancel, lib.rt_step_free
        early = []

        def cancel(step):
            begun.set()
            early.append(freed.wait(0.2))
            cancel_step(step)

        def free(step):
            freed.set()
            with self.assertRaisesRegex(ValueError, "Session is closed"):
                self.session.cancel()
            free_step(step)
        thread = threading.Thread(target=self.session.cancel)
        with mock.patch.object(lib, "rt_step_cancel", cancel), mock.patch.object(lib, "rt_step_free", free):
            thread.start()
            begun.wait()
            self.session.close()
            thread.join()
        self.assertEqual((early, freed.is_set()), ([False], True))

    def test_interrupted(self):
        """An exception that a signal's handler raises after any call of the library loses nothing of the answer."""
        want = self.session.generate("class Stack:\n", max_tokens=60)

        class Signal(Exception):
            pass

        def raising(call):
            def called(*args):
                result = call(*args)
                if next(turns) % 2:
                    raise Signal
                return result
            return called
        for name in "rt_step_run", "rt_reply_read", "rt_reply_next", "rt_reply_finish":
            turns, interrupted = itertools.count(), 0
            stream = self.session.stream("class Stack:\n", max_tokens=60)
            with mock.patch.object(ratoon._lib, name, raising(getattr(ratoon._lib, name))):
                while stream.answer.finish is None:
                    try:
                        list(stream)
                    except Signal:
                        interrupted += 1
            stream.close()
            self.assertGreater(interrupted, 1)
            self.assertEqual(stream.answer, want, name)
        stream = self.session.stream("class Stack:\n", max_tokens=60)
        with mock.patch.object(ratoon._lib, "rt_step_run", raising(ratoon._lib.rt_step_run)):
            with self.assertRaises(Signal):
                turns = itertools.count()
                list(stream)
        stream.close()                             # the answer is what the session holds
        tokens = self.engine.tokenize("class Stack:\n")
        self.assertEqual(self.engine.detokenize(self.session.tokens[len(tokens):]), stream.answer.text)

    def test_ended_early(self):
        with self.session.stream("class Stack:\n") as stream:
            for _ in stream:
                break
        self.assertEqual(stream.answer.finish, "cancelled")
        old = self.session.stream("class Stack:\n", max_tokens=50)
        next(iter(old))
        new = self.session.stream("class Stack:\n", max_tokens=5)
        self.assertEqual(list(old), [])            # a session has one stream
        old.close()
        self.assertEqual(len(list(new)) > 0, True)
        self.assertEqual(new.answer.finish, "length")

    def test_threads(self):
        """Sessions of one engine in several threads say what each says alone."""
        asked = [[{"role": "user", "content": "What is %d + 2?" % i}] for i in range(4)]
        alone, together = [self.session.generate(a, max_tokens=40, seed=3).text for a in asked], {}

        def run(i):
            with self.engine.session(ctx=300) as session:
                together[i] = session.generate(asked[i], max_tokens=40, seed=3).text
        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(asked))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([together[i] for i in range(len(asked))], alone)

    def test_errors(self):
        def fails(status, says, call, *args, **named):
            with self.assertRaises(ratoon.Error) as caught:
                call(*args, **named)
            self.assertEqual(caught.exception.status, status)
            self.assertIn(says, str(caught.exception))
        S = ratoon.Status
        fails(S.IO, "/nonexistent.gguf", ratoon.Engine, "/nonexistent.gguf")
        fails(S.ARGUMENT, "at least one", self.session.generate, [])
        fails(S.ARGUMENT, "tools: expected a list", self.session.generate, ASKED, tools={})
        fails(S.ARGUMENT, "top_p", self.session.generate, "x", top_p=7)
        fails(S.FULL, "", self.session.generate, "x y " * 5000)
        fails(S.ARGUMENT, "ctx", self.engine.session, ctx=-5)
        fails(S.ARGUMENT, "budget", self.engine.session, budget=99)
        fails(S.FORMAT, "gbnf:1:", self.session.generate, "x", grammar="root ::= y")
        fails(S.UNSUPPORTED, "#/not", ratoon.Grammar, {"not": {}}, "json_schema")
        fails(S.FORMAT, "template", self.session_of, "{% if %}")
        with self.assertRaisesRegex(ValueError, "zero character"):
            self.session.generate("x", stop="a\0b")
        for stop in [None], [7], ["a", b"b"]:
            with self.assertRaisesRegex(TypeError, "stop: .*expected a text"):
                self.session.generate("x", stop=stop)
        for call in (lambda: self.engine.session(ctx=2 ** 32 + 16), lambda: self.session.generate("x", seed=-1),
                     lambda: self.session.generate("x", bias={2 ** 32: 1}), lambda: self.engine.token_ends(2 ** 32),
                     lambda: self.session.generate("x", top_k=2 ** 32), lambda: self.engine.detokenize([2 ** 32 + 9]),
                     lambda: self.engine.token_bytes(2 ** 40)):
            with self.assertRaises(OverflowError):
                call()
        with self.assertRaisesRegex(ValueError, "expected 'gbnf'"):
            ratoon.Grammar("x", "other")
        self.assertEqual(self.session.generate("x", max_tokens=2).finish, "length")
        self.session.close()
        self.session.close()
        for call in (lambda: self.session.generate("x"), lambda: self.session.stats, self.session.cancel):
            with self.assertRaisesRegex(ValueError, "closed"):
                call()
        other = self.engine.session(ctx=100)
        self.engine.close()
        self.engine.close()
        for call in (lambda: other.generate("x"), lambda: self.engine.get("kv"), self.engine.session):
            with self.assertRaisesRegex(ValueError, "closed"):
                call()

    def session_of(self, template):
        with ratoon.Engine(DEMO, threads=1, template=template) as engine:
            engine.session(ctx=100).generate(ASKED)

    def test_hooks(self):
        lines, seen = [], []
        with ratoon.Engine(DEMO, threads=1, log=lambda level, line: lines.append((level, line)),
                           progress=lambda *a: seen.append(a)):
            pass
        self.assertTrue(any("qwen35" in line for _, line in lines), lines)
        self.assertEqual((seen[-1][0], seen[-1][1]), ("model", seen[-1][2]))
        with self.assertRaises(ratoon.Error) as caught:
            ratoon.Engine(DEMO, threads=1, progress=lambda *_: False)
        self.assertEqual(caught.exception.status, ratoon.Status.CANCEL)

    def test_given_up(self):
        """Objects that are given up in the middle of a stream, in any order, even in a cycle, and at the end."""
        out = python("""if True:
            import gc, ratoon
            for _ in range(3):
                log = []
                engine = ratoon.Engine(%r, threads=1, log=lambda *a: log.append(a))
                log.append(engine)                 # a cycle through the hook
                session = engine.session(ctx=200)
                stream = session.stream("x", grammar="root ::= [a-z]+")
                log.append((session, stream))
                next(iter(stream))
                del engine, session, stream, log
                gc.collect()
            engine = ratoon.Engine(%r, threads=1)
            stream = engine.session(ctx=200).stream("x")
            next(iter(stream))
            print("good")""" % (DEMO, DEMO))
        self.assertEqual(out, "good\n")
        gc.collect()


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
