#!/usr/bin/env python3
"""`ratoon chat` as a user at a terminal meets it: the program runs on a pseudo-terminal with the demo pair, keys are
sent, the screen is read.

    python3 tests/cli/test_chat.py [-v] [Chat.test_name ...]

RATOON names the program (default: ./ratoon). The last line is 'N passed, N failed'."""
import codecs
import fcntl
import json
import os
import pty
import random
import re
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report
from scratch import DEMO, RATOON, TMP, asleep, interrupt, path, with_template, write

LIMIT = 120                                                # seconds after which what is waited for will not come
READY = "\x1b[?2004h> "
GREEDY = ["--temp", "0", "--seed", "0"]                   # a later --temp or --seed wins
LONG = "Write a function that adds two numbers."           # greedily the demo model does not end its answer to this

# A template with optional thinking, which shows the reasoning of the last turn only, and one that opens the reasoning
# itself.
THINKING = ("{%- for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last and "
            "m.reasoning_content is string %}"
            "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif "
            "%}")


def environment(**more):
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "EDITRC")}
    env.update({"TERM": "xterm", "LC_ALL": "C.UTF-8", "HOME": TMP, "XDG_STATE_HOME": path("state"),
                "XDG_CONFIG_HOME": path("config"), **more})
    return {k: v for k, v in env.items() if v is not None}


class Ended(AssertionError):
    pass


class Terminal:
    """A command with a terminal of its own; stdout: a descriptor that gets the answers instead."""

    def __init__(self, *args, env=None, stdout=None, size=(50, 200), command=(RATOON, "chat"), cwd=None):
        self.master, slave = pty.openpty()
        self.resize(slave, size)

        def own_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.p = subprocess.Popen([*command, *args], stdin=slave, stdout=slave if stdout is None else stdout,
                                  stderr=slave, env=env or environment(), cwd=cwd, preexec_fn=own_terminal)
        os.close(slave)
        self.seen = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")    # a character may come in two pieces

    def resize(self, terminal, size):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    def until(self, *texts, timeout=LIMIT):
        """Returns the output before the first of the texts, and drops that text."""
        end = time.monotonic() + timeout
        while True:
            at = [(self.seen.find(t), t) for t in texts if t in self.seen]
            if at:
                n, t = min(at)
                out, self.seen = self.seen[:n], self.seen[n + len(t):]
                return out
            if not select.select([self.master], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError("%r did not come within %d s; what came: %r" % (texts, timeout, self.seen))
            try:
                more = os.read(self.master, 65536)
            except OSError:
                more = b""
            if not more:
                raise Ended("the program has ended before %r; what came: %r" % (texts, self.seen))
            self.seen += self.decoder.decode(more)

    def send(self, keys):
        os.write(self.master, keys.encode())

    def say(self, text):
        """Types a message; returns the output up to the next prompt, with line ends as \\n."""
        self.send(text + "\r")
        return self.until(READY).replace("\r\n", "\n")

    def end(self, keys="\x04"):
        """Returns the exit status after these keys, and the remaining output."""
        self.send(keys)
        rest = self.drain()
        return self.p.wait(LIMIT), rest

    def drain(self, timeout=LIMIT):
        out, end = self.seen, time.monotonic() + timeout
        while True:
            if not select.select([self.master], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError("the program did not end within %d s; what came: %r" % (timeout, out))
            try:
                more = os.read(self.master, 65536)
            except OSError:
                return out
            if not more:
                return out
            out += self.decoder.decode(more)

    def close(self):
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()
        os.close(self.master)


def answer_of(screen):
    """The answer in what `say` returned: after the echo and the editor's last sequences, before notes."""
    text = screen.split("\x1b[?2004l", 1)[1]
    text = re.sub(r"\r?\x1b\[K", "", text)
    lines = [l for l in text.split("\n") if not l.startswith("ratoon chat:") and not re.match(r"\d+ tokens, ", l)]
    return "\n".join(lines).strip("\n")


def figures(screen):
    m = re.search(r"(\d+) tokens, [\d.]+ per second, accept length ([\d.]+); prompt (\d+) tokens, (\d+) of them held",
                  screen)
    assert m, screen
    return {"made": int(m.group(1)), "prompt": int(m.group(3)), "held": int(m.group(4))}


class Chat(unittest.TestCase):
    def chat(self, *args, **how):
        t = Terminal(*GREEDY, *args, **how)
        self.addCleanup(t.close)
        if "stdout" not in how:
            self.greeting = t.until(READY)
        return t

    def messages(self, t):
        name = path("saved.json")
        if os.path.exists(name):
            os.remove(name)
        t.say("/save " + name)
        with open(name) as f:
            return json.load(f)["messages"]

    def ends(self, t, keys="\x04"):
        status, rest = t.end(keys)
        self.assertEqual(status, 0, rest)

    # ---- sampling ----

    def test_sampling(self):
        t = Terminal("-n", "20")
        self.addCleanup(t.close)
        said = t.until(READY)
        seed = re.search(r"sampling: temp 0.7, top-p 0.9, seed (\d+)", said).group(1)
        first = answer_of(t.say("Count to ten."))
        self.assertRegex(t.say("/show"), r"temp 0.7, top-p 0.9, top-k 0, min-p 0, seed %s" % seed)
        self.ends(t)
        t = Terminal("-n", "20", "--seed", seed)
        self.addCleanup(t.close)
        t.until(READY)
        self.assertEqual(answer_of(t.say("Count to ten.")), first)
        self.ends(t)

    def test_stop(self):
        t = self.chat("-n", "40")
        whole = answer_of(t.say("What is 2 + 2?"))
        self.ends(t)
        word = whole[4:7]
        t = self.chat("-n", "40", "--stop", word)
        stopped = answer_of(t.say("What is 2 + 2?"))
        self.assertEqual(stopped, whole.split(word)[0].rstrip("\n"))
        t.say("And 3 + 3?")
        self.assertEqual(len(self.messages(t)), 4)
        self.ends(t)

    def test_grammar(self):
        """Every answer has the form, from its beginning."""
        t = self.chat("--grammar", 'root ::= "yes" | "no, " [a-z]{3,7} "."', "--temp", "1")
        for text in ["Is it?", "Sure?", "Really?"]:
            self.assertRegex(answer_of(t.say(text)), r"^(yes|no, [a-z]{3,7}\.)$")
        self.assertEqual(len(self.messages(t)), 6)
        self.ends(t)
        opens = THINKING.replace("{% if enable_thinking %}<think>\n{% endif %}", "<think>\n")
        for template in THINKING, opens:
            model = with_template(DEMO, "thinking.gguf", template)
            t = self.chat("-m", model, "-d", "none", "--grammar", 'root ::= "yes"')
            self.assertIn("there is no thinking" if template == THINKING else "no such choice", t.say("/think on"))
            self.assertEqual(answer_of(t.say("Is it?")), "yes")
            self.ends(t)
        self.pipe("x", "--think", "--json-schema", "{}", expect=2)
        self.pipe("x", "--grammar", "root ::= x", expect=1)
        said = json.loads(self.pipe("A person?", "--json-schema", json.dumps(
            {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}), *GREEDY).stdout)
        self.assertEqual(list(said), ["age"])

    # ---- turns ----

    def test_no_turn_is_read_twice(self):
        for options in [[], ["-d", "none", "--ngram", "off"], ["--temp", "0.9", "--seed", "5"]]:
            t = self.chat("-n", "40", "--stats", "--system", "Be brief.", *options)
            before, before_turns = None, []
            for text in ["A box holds 4 pens. How many pens do 12 boxes hold?", "And 3 boxes?", "def add(a, b):",
                         "Why?"]:
                f = figures(t.say(text))
                if before:
                    self.assertEqual(f["held"], before["prompt"] + before["made"] - 1,
                                     "all that the session had, but its last token")
                    self.assertGreater(f["prompt"], f["held"])
                else:
                    self.assertEqual(f["held"], 0)
                before = f
                before_turns.append(f)
            self.ends(t)
            self.assertGreater(before_turns[-1]["held"], 100)

    def test_the_text_is_that_of_plain_decoding(self):
        said = []
        for options in [[], ["-d", "none", "--ngram", "off"]]:
            t = self.chat("-n", "60", "--temp", "0.7", *options)
            for text in ["class Point:", "Go on.", "And then?"]:
                t.say(text)
            said.append(self.messages(t))
            self.ends(t)
        self.assertEqual(said[0], said[1])
        self.assertEqual([m["role"] for m in said[0]], ["user", "assistant"] * 3)

    def test_retry_and_undo(self):
        t = self.chat("-n", "30", "--stats")
        t.say("What is 3 + 4?")
        first = t.say("And 5 + 6?")
        again = t.say("/retry")
        self.assertIn("at temperature 0 the answer is the same", again)
        self.assertEqual(answer_of(again).split("\n", 1)[1], answer_of(first))
        self.assertEqual(figures(again)["held"], figures(again)["prompt"] - 1,
                         "it begins at the checkpoint of its prompt")
        self.assertIn("1 left", t.say("/undo"))
        t.say("Something else")
        t.say("/undo")
        back = t.say("And 5 + 6?")
        self.assertEqual(answer_of(back), answer_of(first))
        self.assertEqual(figures(back)["prompt"], figures(first)["prompt"])
        t.say("/set temp 0.9")
        drawn = t.say("/retry")
        self.assertIn("seed 1", drawn)
        t.say("/clear")
        self.assertIn("nothing to take back", t.say("/undo"))
        self.assertIn("no question", t.say("/retry"))
        self.assertEqual(figures(t.say("What is 3 + 4?"))["prompt"], figures(t.say("/retry"))["prompt"])
        self.ends(t)

    def test_context(self):
        t = self.chat("-n", "8", "--ctx", "150")
        warned = False
        for i in range(10):
            out = t.say("Count the pens in box number %d, please." % i)
            warned = warned or re.search(r"\d\d % of the context is full \(\d+ of 150 tokens\); /undo", out)
            if "does not fit" in out:
                break
        self.assertTrue(warned)
        self.assertRegex(out, r"the prompt has \d+ tokens, the context 150; /undo takes turns back, /clear begins anew")
        turns = len(self.messages(t))
        t.say("/undo")                                     # the question without an answer
        self.assertEqual(len(self.messages(t)), turns)
        t.say("/undo")
        t.say("/undo")
        self.assertNotIn("does not fit", t.say("Short."))
        self.assertEqual(len(self.messages(t)), turns - 2)
        self.ends(t)
        t = self.chat("--ctx", "100")
        t.say("/file " + write("long.txt", "word " * 400))
        self.assertRegex(t.say("What is this?"), r"the context 100; send less, or start with a larger --ctx")
        t.say("/undo")
        self.assertIn("the context of 100 tokens is full", t.say(LONG))
        self.ends(t)

    # ---- Ctrl-C, Ctrl-D ----

    def test_interrupt_keeps_the_answer_so_far(self):
        t = self.chat("--stats", "-d", "none", "--ngram", "off", "--ctx", "32768")
        t.send(LONG + "\r")
        t.until("\x1b[?2004l")
        t.until("20-20")
        t.send("\x03")
        stopped = t.until(READY)
        self.assertIn("stopped; the answer so far stays", stopped)
        said = self.messages(t)[1]["content"]
        self.assertIn("20-20", said)
        f = figures(stopped)
        self.assertLess(f["prompt"] + f["made"], 32768)
        g = figures(t.say("/set n 10") + t.say("Thanks."))
        self.assertGreaterEqual(g["held"], f["prompt"] + f["made"] - 1)
        self.assertEqual(len(self.messages(t)), 4)
        self.ends(t)

    def full(self, pipe, pid):
        """Waits until the pipe holds more than its filling and the program waits for its reader."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            now = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"0000"))[0]
            if now > 4080 and asleep(pid) and asleep(pid) and asleep(pid):
                return True
            time.sleep(0.02)
        return False

    def test_second_interrupt_ends_the_program(self):
        r, w = os.pipe()
        fcntl.fcntl(w, 1031, 4096)  # F_SETPIPE_SZ: it is nearly full, so that the answer waits for its reader
        os.write(w, b"." * 4080)
        t = self.chat("-d", "none", stdout=w)
        os.close(w)
        t.until("> ")
        t.send(LONG + "\r")
        self.assertTrue(self.full(r, t.p.pid))
        self.assertIsNone(t.p.poll())
        interrupt(t.p)
        time.sleep(0.2)
        self.assertIsNone(t.p.poll(), "one ends the answer only")
        interrupt(t.p)
        self.assertEqual(t.p.wait(LIMIT), 130)
        os.close(r)

    def leaves(self, t, before=None):
        """Presses Ctrl-C until it is the second one within a second, also where the machine is slow; before: when it
        was pressed last. Returns the exit status."""
        for _ in range(60):
            now = time.monotonic()
            t.send("\x03")
            try:
                t.until(READY)
            except Ended:
                return t.p.wait(LIMIT)
            if before is not None:
                self.assertGreater(time.monotonic() - before, 1, "two within a second leave")
            before = now
        self.fail("Ctrl-C did not leave")

    def test_interrupt_at_the_prompt(self):
        t = self.chat("-n", "5")
        t.send("not this\x03")
        self.assertIn("Ctrl-C again, Ctrl-D or /exit leaves", t.until(READY))
        t.say("but this")
        self.assertEqual(self.messages(t)[0]["content"], "but this")
        time.sleep(1.1)
        t.send("\x03")
        self.assertIn("Ctrl-C again, Ctrl-D or /exit leaves", t.until(READY))
        time.sleep(1.1)
        now = time.monotonic()
        t.send("\x03")
        t.until(READY)
        self.assertEqual(self.leaves(t, now), 130)
        t = self.chat("-q")
        now = time.monotonic()
        t.send("\x03")
        self.assertNotIn("leaves", t.until(READY))
        self.assertEqual(self.leaves(t, now), 130)

    def test_two_interrupts_of_an_answer_leave(self):
        t = self.chat("-d", "none", "--ngram", "off", "--ctx", "32768")
        t.send(LONG + "\r")
        t.until("20-20")
        now = time.monotonic()
        t.send("\x03")
        t.until(READY)
        self.assertEqual(self.leaves(t, now), 130)

    def test_leaving(self):
        for keys in ["\x04", "/exit\r", "/quit\r"]:
            t = self.chat()
            status, rest = t.end(keys)
            self.assertEqual(status, 0, rest)
            self.assertIn("\x1b[?2004l", rest, "pastes are no longer marked")

    # ---- typing ----

    def test_words_without_a_slash(self):
        t = self.chat("-n", "3")
        for word in ["exit", "help"]:
            self.assertIn("this goes to the model; /exit leaves", t.say(word))
        self.assertNotIn("/exit leaves", t.say("exit now"))
        self.assertEqual(len(self.messages(t)), 6)
        self.ends(t)

    def test_stopped_in_an_answer(self):
        """SIGCONT, as after Ctrl-Z and fg, while the model answers: there is one prompt afterwards."""
        t = self.chat("-n", "200")
        t.send(LONG + "\r")
        t.until("\x1b[?2004l")
        t.p.send_signal(signal.SIGCONT)
        t.until(READY)
        t.send("/stats\r")
        self.assertNotIn("> ", t.until("stats are"))
        t.until(READY)
        self.ends(t)

    def test_several_lines(self):
        t = self.chat("-n", "3")
        t.say("\"\"\"\rline 1\r\rline 2\r\"\"\"")
        t.say("\"\"\"one\"\"\"")
        t.say("a\\\rb\\\rc")
        t.say("\x1b[200~p1\np2\n/help\tx\x1b[201~")
        t.say("\x1b[200~a\x1b\x1b[201~b")                     # a paste that ends in an escape
        t.say("\x1b[200~q\x1b[\nsecond\x1b[201~")        # what follows an escape in a paste is text, too
        t.say("x\x1b\ry")
        t.say("//slash")
        t.say("   ")
        self.assertEqual([m["content"] for m in self.messages(t)[::2]],
                         ["line 1\n\nline 2", "one", "a\nb\nc", "p1\np2\n/help\tx", "ab", "q[\nsecond", "x\ny",
                          "/slash"])
        self.ends(t)

    def test_characters(self):
        text = "ü €uro 漢字 😀 é"
        for locale in ["C.UTF-8", "C"]:
            t = self.chat("-n", "3", env=environment(LC_ALL=None, LANG=locale) if locale == "C" else None)
            t.say(text)
            t.say("gone\x15a漢\x7fb")                        # Ctrl-U clears, backspace takes a whole character
            self.assertEqual([m["content"] for m in self.messages(t)[::2]], [text, "ab"])
            self.ends(t)

    def test_size_of_no_screen(self):
        """libedit would allocate gigabytes for it; the chat goes on without editing, and with it once the size is
        sensible."""
        t = Terminal("-n", "4", size=(60000, 60000))
        self.addCleanup(t.close)
        start = t.until("\n> ")
        self.assertIn("larger than any screen", start)
        with open("/proc/%d/status" % t.p.pid) as f:
            self.assertLess(int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1)), 500000)
        t.send("/system " + "\u00e9\u20ac\U0001f600" + "x" * 300 + "\r")
        self.assertIn("the system message is set", t.until("\n> "))
        t.send("/show\r")
        self.assertIn("\u00e9\u20ac\U0001f600" + "x" * 300, t.until("\n> ").replace("\r", ""))
        t.send("typed and dropped\x03")
        t.until("\n> ")
        self.assertEqual(t.p.poll(), None)
        t.resize(t.master, (50, 200))
        t.say("/system")
        t.send("\x1b[A")                                   # earlier messages are in the history
        self.assertIn("/system", t.until("/system") + "/system")
        t.send("\r")
        self.assertIn("system message removed", t.until(READY))
        t.resize(t.master, (60000, 60000))
        t.send("/system b\r")
        self.assertIn("the system message is set", t.until("\n> "))
        self.assertEqual(t.end()[0], 0)

    def test_screens_smaller_than_the_message(self):
        """libedit would write beyond its copies of the screen."""
        keys = ["word " * 30, "hello ", "日本語" * 10, "\x1b[D", "\x1b[C", "\x01", "\x05", "\x7f", "\x17", "\x0c", "\x0b",
                "\x1b[200~" + "\n".join("line %d" % i for i in range(12)) + "\x1b[201~", "\x19", "\x1b[D" * 20]
        sizes = [(5, 20), (8, 40), (24, 80), (10, 100), (1, 80), (2, 30), (50, 20), (24, 200)]
        for seed in range(6):
            rng = random.Random(seed)
            t = Terminal("-n", "4", size=rng.choice(sizes))
            self.addCleanup(t.close)
            t.until("\x1b[?2004h")
            for _ in range(60):
                if seed % 2 and rng.random() < 0.25:
                    t.resize(t.master, rng.choice(sizes))
                t.send(rng.choice(keys))
                while select.select([t.master], [], [], 0.01)[0]:
                    os.read(t.master, 65536)
                self.assertEqual(t.p.poll(), None, seed)
            t.send("\x05\x15" + "/system alive\r")
            self.assertIn("the system message is set", t.until("is set") + "is set")
            t.until("\x1b[?2004h")
            self.assertEqual(t.end()[0], 0)

    def test_completion(self):
        write("tab-file.txt", "inside")
        t = self.chat("-n", "3")
        self.assertIn("model   ", t.say("/sho\t"))
        self.assertIn("tab-file.txt: 6 bytes", t.say("/file %s/tab-f\t" % TMP))
        write("zz\x1b]0;a\x07", "")
        write("zz\x1b[31mb\n", "")
        t.send("/file %s/z\t\t" % TMP)
        listed = t.until("/zz?[31mb?  ", "/zz?]0;a?  ")    # either comes first
        t.send("\x15")
        listed += t.say("/sho\t")
        self.assertTrue(("/zz?[31mb?  " in listed) != ("/zz?]0;a?  " in listed), listed)
        t.send("/s\t")
        listed = t.until("/save  ", "/system  ")
        t.send("\x15")
        self.assertIn("temp is 0.5", t.say("/set tem\t 0.5"))
        self.assertTrue(listed is not None)
        self.ends(t)

    def test_history(self):
        state = path("state-history")
        env = environment()
        env["XDG_STATE_HOME"] = state
        file = os.path.join(state, "ratoon", "history")
        t = self.chat("-n", "3", env=env)
        t.say("first")
        t.say("\"\"\"\rtwo\rlines\"\"\"")
        self.ends(t)
        self.assertEqual(stat.S_IMODE(os.stat(file).st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(state).st_mode), 0o700)
        t = self.chat("-n", "3", env=env)
        t.send("\x1b[A\x1b[A\r")
        t.until(READY)
        t.say("\x12two")                                   # Ctrl-R
        self.assertEqual([m["content"] for m in self.messages(t)[::2]], ["first", "two\nlines"])
        self.ends(t)
        with open(file, "a") as f:
            f.writelines("filler %d\n" % i for i in range(1200))
        t = self.chat("-n", "3", env=env)
        t.say("last")
        self.ends(t)
        with open(file) as f:
            lines = f.read().splitlines()
        self.assertEqual((len(lines), lines[-1]), (1001, "last"), "1000 and the file's own first line")
        t, other = (self.chat("-n", "3", env=env) for _ in range(2))       # both add their lines
        for a, text in ((t, "one"), (other, "two"), (t, "three"), (other, "four")):
            a.say(text)
        self.ends(t)
        self.ends(other)
        with open(file) as f:
            lines = f.read().splitlines()
        self.assertEqual((len(lines), lines[-5:]), (1001, ["last", "one", "two", "three", "four"]))
        self.assertEqual(os.listdir(os.path.dirname(file)), ["history"])
        t = self.chat("--no-history", "-n", "3", env=env)
        t.say("secret")
        self.ends(t)
        with open(file) as f:
            self.assertEqual(f.read().splitlines(), lines)
        with open(file, "w") as f:
            f.write("something else\n")
        t = self.chat("-n", "3", env=env)
        self.assertIn("cannot be read as a history", self.greeting)
        t.say("more")
        self.ends(t)
        with open(file) as f:
            self.assertEqual(f.read(), "something else\n")

    # ---- commands ----

    def test_commands(self):
        t = self.chat("-n", "5")
        self.assertIn("there is no command /nosuch", t.say("/nosuch a b"))
        self.assertIn("takes nothing", t.say("/show x"))
        shown = t.say("/help")
        for name in ["/exit", "/clear", "/system", "/think", "/set", "/show", "/stats", "/history", "/undo", "/retry",
                     "/save", "/load", "/file"]:
            self.assertIn(name, shown)
        self.assertIn("nothing was said yet", t.say("/history"))
        self.assertIn("no such choice", t.say("/think on"))
        self.assertIn("neither on nor off", t.say("/stats perhaps"))
        self.assertIn("stats are off", t.say("/stats"))
        self.assertIn("thinking is off", t.say("/think"))
        self.assertNotIn("per second", t.say("Hello"))
        t.say("/stats on")
        self.assertIn("per second", t.say("Hello"))
        self.assertIn("Hello", t.say("/history"))
        self.assertIn("KEY one of: temp top-p", t.say("/set budget 3"))
        self.assertIn("there is no setting 'tmep'; did you mean temp?", t.say("/set tmep 1"))
        self.assertIn("--temp is 'hot', expected a number from 0 to 1000", t.say("/set temp hot"))
        self.assertIn("temp is 0.25", t.say("/set temp 0.25"))
        self.assertIn("temp is 0.25", t.say("/set temperature"))
        self.assertIn("n-predict is 5", t.say("/set n"))
        self.assertIn("n-predict is 7", t.say("/set n=7"))
        self.assertIn("top-p is 0.5", t.say("/set top_p 0.5"))
        self.assertIn("temp is 0.25", t.say("/set temperature 0.25"))
        self.assertIn("there is no setting 'ctx'", t.say("/set ctx 512"))
        for typed, meant in [("/bye", "/exit"), ("/?", "/help"), ("/regen", "/retry"), ("/reset", "/clear")]:
            self.assertIn("there is no command %s; did you mean %s?" % (typed, meant), t.say(typed))
        t.say("/system You are a parrot.")
        shown = t.say("/show")
        for text in ["ratoon-demo-q8_0.gguf", "dflash-ratoon-demo", "turns        2, not read yet", "of 4096 tokens",
                     "parrot", "temp 0.25", "n-predict 7"]:
            self.assertIn(text, shown)
        self.assertEqual(figures(t.say("Go on"))["made"], 7)
        self.assertNotIn("not read yet", t.say("/show"))
        self.assertEqual(self.messages(t)[0], {"role": "system", "content": "You are a parrot."})
        t.say("/system")
        self.assertEqual(self.messages(t)[0]["role"], "user")
        self.ends(t)

    def test_save_and_load(self):
        t = self.chat("-n", "20", "--system", "Say little.", "--config", write("save.conf", "n-predict = 20\n"))
        t.say("What is 8 * 9?")
        t.say("Sure?")
        saved = self.messages(t)
        third = answer_of(t.say("Really?"))
        for command, says in [("/save", "/save FILE"), ("/save " + path("none/x"), "No such file"),
                              ("/save " + TMP, "is a folder"), ("/load", "/load FILE"),
                              ("/load " + path("none"), "No such file")]:
            self.assertIn(says, t.say(command))
        for text, says in [("{", "line 1"), ("{}", "no list of messages"),
                           ('[{"role":"assistant","content":"x"}]', "messages[0] is out of order"),
                           ('[{"role":"user","content":"x"},{"role":"user","content":"y"}]',
                            "messages[1] is out of order"),
                           ('[{"role":"user","content":[]}]', "messages[0] is out of order"),
                           ('[{"role":"user"}]', "messages[0] is out of order"),
                           ('[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning_content":1}]',
                            "messages[1] is out of order")]:
            self.assertIn(says, t.say("/load " + write("bad.json", text)))
        self.assertEqual(len(self.messages(t)), 7, "what cannot be loaded changes nothing")
        self.assertIn("is an input, expected another file", t.say("/save! " + path("save.conf")))
        self.ends(t)
        kept = write("kept.json", json.dumps({"messages": saved}))
        with open(kept, "rb") as f:
            before = f.read()
        t = self.chat("-n", "20", "--stats")
        self.assertIn("2 turns", t.say("/load " + kept))
        self.assertEqual(self.messages(t), saved)
        self.assertIn("is there already; /save! %s replaces it" % kept, t.say("/save " + kept))
        with open(kept, "rb") as f:
            self.assertEqual(f.read(), before)
        self.assertIn("2 turns", t.say("/save! " + kept))
        self.assertIn("2 turns", t.say("/save " + kept), "it is this chat's file now")
        out = t.say("Really?")
        self.assertEqual(answer_of(out), third)
        self.assertEqual(figures(out)["held"], 0)
        g = figures(t.say("Good."))
        self.assertEqual(g["held"], figures(out)["prompt"] + figures(out)["made"] - 1, "what was loaded is read once")
        self.assertIn("question without an answer",
                      t.say("/load " + write("open.json",
                                             json.dumps(saved + [{"role": "user", "content": "Really?"}]))))
        self.assertEqual(answer_of(t.say("/retry")), third)
        self.ends(t)
        p = subprocess.run([RATOON, "render", "-m", DEMO, "--input", kept], stdout=subprocess.PIPE, env=environment())
        self.assertIn("Say little.", p.stdout.decode())

    def test_old_texts_are_shown_clean(self):
        """/history and /show cannot move the cursor either when they repeat a text."""
        t = self.chat("-n", "4")
        evil = [{"role": "system", "content": "s\x1b[2J"}, {"role": "user", "content": "q\x9b31m"},
                {"role": "assistant", "content": "a\x1b]0;pwned\x07"}]
        t.say("/load " + write("evil.json", json.dumps({"messages": evil})))
        shown = t.say("/history").split("\x1b[?2004l", 1)[1]
        self.assertIn("> q?31m\na?]0;pwned?\n", shown)
        self.assertIn("s?[2J", t.say("/show"))
        self.ends(t)

    def test_files(self):
        file = write("notes.txt", "first line\nsecond line")
        t = self.chat("-n", "3")
        self.assertIn("/file FILE", t.say("/file"))
        self.assertIn("No such file", t.say("/file " + path("none")))
        self.assertIn("zero byte", t.say("/file " + write("zero.bin", b"a\0b")))
        self.assertIn("22 bytes go with the next message", t.say("/file " + file))
        self.assertIn("attached", t.say("/show"))
        t.say("What is this?")
        t.say("And this?")
        said = [m["content"] for m in self.messages(t)[::2]]
        self.assertEqual(said,
                         ["[file notes.txt]\nfirst line\nsecond line\n[end of notes.txt]\n\nWhat is this?",
                          "And this?"])
        self.ends(t)

    # ---- thinking ----

    def test_thinking(self):
        model = with_template(DEMO, "thinking.gguf", THINKING)
        t = self.chat("-m", model, "-d", "none", "--think", "-n", "12", "--stats")
        shown = t.say("Hello")
        self.assertIn("\x1b[2;1mthinking...\x1b[0;2m\n", shown)
        self.assertRegex(shown, r"\n\(12 tokens, [\d.]+ s\)\x1b\[0m\n")
        saved = self.messages(t)
        self.assertEqual(saved[1]["content"], "")
        self.assertGreater(len(saved[1]["reasoning_content"]), 5)
        f, g = figures(shown), figures(t.say("Go on"))
        self.assertGreaterEqual(g["held"], 5, "it goes back to the checkpoint and not to the beginning")
        self.assertLess(g["prompt"], f["prompt"] + 12 + 8, "what was thought is not part of the next prompt")
        self.assertIn("thinking is off", t.say("/think off"))
        self.assertNotIn("thinking...", t.say("Hello"))
        self.assertNotIn("reasoning_content", self.messages(t)[-1])
        self.ends(t)
        for env in [environment(NO_COLOR="1"), dict(environment(), TERM="dumb")]:
            t = Terminal("-m", model, "-d", "none", "--think", "-n", "12", env=env)
            self.addCleanup(t.close)
            t.until("> ")
            t.send("Hello\r")
            shown = t.until(" s)\r\n")
            self.assertIn("thinking...\r\n", shown)
            self.assertNotIn("\x1b[2", shown.replace("\x1b[?2004", ""))
            t.until("> ")
            self.ends(t)
        p = self.pipe("Hello", "-m", model, "-d", "none", "--think", "-n", "12")
        self.assertEqual(p.stdout, b"")
        self.assertIn(b"thinking...\n", p.stderr)
        self.assertEqual(self.pipe("Hello", "-m", model, "-d", "none", "--think", "-n", "12", "-q").stderr, b"")

    # ---- pipes ----

    def pipe(self, text, *args, expect=0):
        p = subprocess.run([RATOON, "chat", *args], input=text if isinstance(text, bytes) else text.encode(),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           env=environment())
        self.assertEqual(p.returncode, expect, p.stderr)
        return p

    def test_interrupt_of_one_message(self):
        for args, given in ((["-p", LONG], b""), ([], LONG.encode())):
            p = subprocess.Popen([RATOON, "chat", "-d", "none", "--ngram", "off", "--ctx", "32768", *GREEDY, *args],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096,
                                 env=environment())
            p.stdin.write(given)
            p.stdin.close()
            p.stdin = None
            first = p.stdout.read(1)               # the pipe fills before the answer ends
            p.send_signal(signal.SIGINT)
            rest, err = p.communicate(timeout=LIMIT)
            self.assertEqual(p.returncode, 130, err)
            self.assertIn(b"stopped; the answer so far stays", err)
            (first + rest).decode("utf-8")

    def test_pipe(self):
        text = "/help is here text.\n\nWhat is 2 + 2?\n"
        p = self.pipe(text, "-n", "30", *GREEDY)
        q = subprocess.run([RATOON, "run", "--chat", "-p", text.rstrip("\n"), "-n", "30", *GREEDY],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        self.assertEqual(p.stdout.rstrip(b"\n"), q.stdout.rstrip(b"\n"))
        self.assertTrue(self.pipe("hi", "-n", "10", "-q").stdout.endswith(b"\n"), "it ends with a line break")
        self.assertGreater(len(p.stdout), 5)
        self.assertNotIn(b"\x1b", p.stdout + p.stderr)
        self.assertNotIn(b"> ", p.stdout)
        self.assertEqual(self.pipe(text, "-n", "30", "-q").stderr, b"")
        self.assertIn(b"holds no message", self.pipe("\n\n", expect=1).stderr)
        self.assertIn(b"zero byte", self.pipe(b"a\0b", expect=1).stderr)
        self.assertIn(b"does not fit", self.pipe("word " * 200, "--ctx", "64", expect=1).stderr)
        self.pipe("x", "--think", "--no-think", expect=2)
        self.assertFalse(os.path.exists(path("state-none")))


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
