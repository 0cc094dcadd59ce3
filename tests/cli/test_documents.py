#!/usr/bin/env python3
"""Every command of README.md and doc/ is run as it is printed there, with the demo pair in place of the models that it
names, a hub on this machine in place of the real one, and small files in place of a reader's own.

    python3 tests/cli/test_documents.py [-v] [TestName.test_name ...]

A line of a code block is a command if it begins with the name of a program. Each one is either run, or its program
stands in NOT_RUN with the reason. The last line is 'N passed, N failed'."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hf_drafter
import report
from mock_hub import MockHub
from test_chat import READY, Terminal
from scratch import RATOON, ROOT, TMP, path, write

GPU = os.path.join(ROOT, os.environ.get("BUILD", "build"), "libfake_cuda.so")      # a reader with two cards
SLOW = float(os.environ.get("SLOW", "3"))
# Copies: a command may write through a link.
PAIR = shutil.copytree(os.path.join(ROOT, "models", "demo"), path("pair"))
TARGET = os.path.join(PAIR, "ratoon-demo-q8_0.gguf")
DRAFTER = os.path.join(PAIR, "dflash-ratoon-demo-bf16.gguf")
DENOISES = os.path.join(PAIR, "ratoon-diffusion-demo-q8_0.gguf")
MAKE_TINY = os.environ.get("MAKE_TINY", os.path.join(ROOT, os.environ.get("BUILD", "build"), "tests", "make_tiny"))
MIXTURE = path("qwen35moe.gguf")                           # where a mixture of experts is needed

# Programs whose commands are not run, and why.
NOT_RUN = {
    "sudo": "changes the machine", "git clone": "needs the published repository", "codex": "not ours",
    "docker": "needs a Docker engine", "systemctl": "changes the machine", "journalctl": "needs systemd",
    "make test": "runs this test", "make demo": "tests/cli/test_demo.py", "make bench": "measures for minutes",
    "make": "build targets are run by the tests themselves", "OPENAI_API_BASE_URL": "open-webui, not ours",
    "python": "needs packages that are not installed", "cc": "tests/cli/test_install.py",
    "./hello": "tests/cli/test_install.py", "apt-get": "changes the machine", "tar": "tests/packages", "dnf": "another distribution",
    "pacman": "another distribution", "apk": "another distribution",
}
RUN = ("ratoon ", "./ratoon ", "curl ")

# A reader's configuration that keeps texts and measurements short.
SHORT = """
[run]
n-predict = 24
[chat]
n-predict = 24
[verify]
n-predict = 8
modes = greedy
threads = 2
[bench]
n-predict = 8
repeats = 1
pairs = 1
"""

CASE = {"messages": [{"role": "user", "content": "Hello"}], "add_generation_prompt": True}
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"]}
FILES = {
    "prompt.txt": "def add(a, b):\n", "book.txt": "It was a dark night. " * 200, "text.txt": "A short text. " * 100,
    "prompts.jsonl": '{"prompt": "def add(a, b):"}\n{"prompt": "The sky is"}\n', "person.json": json.dumps(PERSON),
    "case.json": json.dumps(CASE), "yes-no.gbnf": 'root ::= "yes" | "no"\n', "keys.txt": "secret\n",
    "chat.jinja": "{% for m in messages %}{{ m.content }}{% endfor %}",
}


def blocks(text):
    """The code blocks of a document: fenced without a language or as a shell's, or indented by four spaces."""
    for m in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.S | re.M):
        if m[1] in ("", "sh", "bash"):
            yield m[2]
    rest = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    for m in re.finditer(r"(?:(?<=\n\n)|\A)((?:    .*\n|\n(?=    ))+)", rest):
        yield re.sub(r"^    ", "", m[1], flags=re.M)


def commands(text):
    """The commands of a document. Lines that end in a backslash go on, and lines of output are left out."""
    for block in blocks(text):
        lines = block.replace("\\\n", " ").splitlines()
        if any(x.startswith("$ ") for x in lines):         # a transcript: the rest is output
            lines = [x[2:] for x in lines if x.startswith("$ ")]
        for line in lines:
            if known(line):
                yield line.strip()


def known(line):
    return not re.match(r"ratoon( \w+)?:", line) and (first(line) or line.startswith(RUN) or " ./ratoon " in line)


def first(line):
    """The entry of NOT_RUN that the line begins with, or None."""
    return next((k for k in sorted(NOT_RUN, key=len, reverse=True) if re.match(re.escape(k) + r"(\s|=|$)", line)), None)


def fill_hub(folder):
    """Every repository that a document names, as a model or as a published drafter: the demo pair."""
    repos = set()
    for name in DOCUMENTS:
        with open(os.path.join(ROOT, name), encoding="utf-8") as f:
            for line in commands(f.read()):
                repos |= set(re.findall(r"(?<=[\s:])([\w.-]+/[\w.-]+-GGUF)(?::([\w.-]+))?", line))
    for repo, quant in repos:
        link(TARGET, os.path.join(folder, repo, "%s-%s.gguf" % (repo.split("/")[1][:-5], quant or "Q4_K_M")))
    with open(os.path.join(ROOT, "share", "drafters.json")) as f:
        table = json.load(f)
    for pair in table["pairs"]:
        for key in ("layers", "width"):                    # those of the real models
            pair.pop(key, None)
        pair["architecture"] = "qwen35"                    # the demo's
        for drafter in pair["drafters"]:
            at = os.path.join(folder, drafter["repo"])
            if drafter["quant"]:
                link(DRAFTER, os.path.join(at, "%s-%s.gguf" % (drafter["repo"].split("/")[1], drafter["quant"])))
            else:
                hf_drafter.write(DRAFTER, at, 8)
    return table


def link(source, at):
    os.makedirs(os.path.dirname(at), exist_ok=True)
    if not os.path.exists(at):
        os.symlink(source, at)


class Reader:
    """A reader's folder: the program, the files that the commands name, and the environment."""

    def __init__(self, name, hub, table):
        self.at = path(name)
        home = os.path.join(self.at, "home")
        for folder in (home + "/config/ratoon", self.at + "/share", self.at + "/models"):
            os.makedirs(folder)
        for file, text in FILES.items():
            write(os.path.join(self.at, file), text)
        write(home + "/config/ratoon/config", SHORT)
        write(self.at + "/share/drafters.json", json.dumps(table))
        os.symlink(PAIR, self.at + "/models/demo")
        shutil.copy(RATOON, self.at + "/ratoon")           # a copy, so that it finds this table
        subprocess.run([RATOON, "quantize", TARGET, self.at + "/model-f16.gguf", "F16"], check=True, capture_output=True)
        subprocess.run("git init -q && git add prompt.txt && echo 'def f(): pass' > prompt.txt", cwd=self.at, shell=True,
                       check=True)
        self.port = None                                   # of the server for curl
        self.env = {**hub.env(home), "PATH": self.at + ":" + os.environ["PATH"], "LANG": "C.UTF-8",
                    "XDG_CONFIG_HOME": home + "/config", "RATOON_CUDA_DRIVER": GPU, "RATOON_EMU_CC": "90,86"}

    def stand_in(self, line):
        """Puts the demo pair where the line expects a model or a drafter."""
        for option, name in re.findall(r"(?<!\S)(-m|-d|) ?([\w.-]+(?:\.gguf|/))(?=\s|$)", line):
            at = os.path.join(self.at, name)
            mixture = "-a3b" in name or re.search(r"ratoon experts | --(spark|expert-ram)", line)
            source = DRAFTER if option == "-d" else DENOISES if "diffusion" in name else MIXTURE if mixture else TARGET
            if os.path.islink(at) and os.readlink(at) != source:
                os.remove(at)                              # a command before this one needed another stand-in
            if os.path.lexists(at):
                continue
            if name.endswith("/"):
                hf_drafter.write(DRAFTER, at, 8)
            elif not re.search(r"\bquantize \S+ " + re.escape(name), line):
                os.symlink(source, at)

    def run(self, line):
        """(exit status, what it printed)."""
        self.stand_in(line)
        if re.match(r"(\w+=\S+ )*(\./)?ratoon serve", line):
            return self.serve(line)
        line = line.replace("127.0.0.1:8080", "127.0.0.1:%s" % self.port)
        p = subprocess.run(["bash", "-c", line], cwd=self.at, env=self.env, input=b"Hello\n", timeout=120 * SLOW,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return p.returncode, p.stdout.decode(errors="replace")

    def start(self, line):
        """Starts a server on a port that the system chooses; returns it, the file of what it says, and the port once
        it is ready, else None."""
        line = re.sub(r"ratoon serve", "ratoon serve --port 0", line, count=1)
        log = tempfile.NamedTemporaryFile(dir=TMP, delete=False)
        p = subprocess.Popen(["bash", "-c", "exec " + line], cwd=self.at, env=self.env, stdin=subprocess.DEVNULL,
                             stdout=log, stderr=subprocess.STDOUT)
        end = time.monotonic() + 60 * SLOW
        while time.monotonic() < end and p.poll() is None:
            listens = re.search(r"listening on \S+:(\d+)\s", self.said(log))
            if listens and subprocess.run(["curl", "-sf", "-o", os.devnull, "http://127.0.0.1:%s/health" % listens[1]],
                                          env=self.env, check=False).returncode == 0:
                return p, log, listens[1]
            time.sleep(0.1)
        return p, log, None

    def said(self, log):
        with open(log.name, errors="replace") as f:
            return f.read()

    def serve(self, line):
        p, log, port = self.start(line)
        p.send_signal(signal.SIGTERM)
        return (p.wait(60 * SLOW) if port else 1), self.said(log)


class Documents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        subprocess.run([MAKE_TINY, "qwen35moe", TMP], check=True)
        table = fill_hub(path("hub"))
        hub = cls.enterClassContext(MockHub(path("hub")))
        cls.reader = Reader("reader", hub, table)
        server, log, cls.reader.port = cls.reader.start("ratoon serve")
        cls.addClassCleanup(server.wait)
        cls.addClassCleanup(server.terminate)
        assert cls.reader.port, cls.reader.said(log)

    def check(self, name):
        with open(os.path.join(ROOT, name), encoding="utf-8") as f:
            lines = list(commands(f.read()))
        for line in lines:
            with self.subTest(line):
                if first(line):
                    continue
                status, text = self.reader.run(line)
                self.assertEqual(status, 0, "\n%s\n%s" % (line, text[-2000:]))
                if line.startswith("curl"):
                    self.assertNotRegex(text, '"error": ?{')

    def test_every_program_is_known(self):
        """A block that looks like commands but begins with a program that is neither run nor excused is an error."""
        for name in DOCUMENTS:
            with open(os.path.join(ROOT, name), encoding="utf-8") as f:
                for block in blocks(f.read()):
                    lines = block.replace("\\\n", " ").splitlines()
                    if not any(known(x) for x in lines):
                        continue
                    for x in lines:
                        if re.match(r"[a-z./][\w./-]* (-|\w+$|\S+\.(gguf|json))", x):
                            self.assertTrue(known(x), "%s: %s" % (name, x))


class Tools(unittest.TestCase):
    TOOLS = ("bench/gpu_table.py bench/offload.py tests/gpu/archs.py tests/gpu/orders.py tests/gpu/test_counts.py "
             "tests/gpu/test_races.py tests/parts.py train/corpus.py train/prompts.py").split()

    def run_in(self, folder, tool, *args):
        return subprocess.run([sys.executable, os.path.join(ROOT, tool), *args], cwd=folder, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60)

    def test_help(self):
        """--help is no file or folder to the tools written in Python."""
        folder = path("tools")
        os.mkdir(folder)
        for tool in self.TOOLS:
            with self.subTest(tool):
                p = self.run_in(folder, tool, "--help")
                self.assertEqual((p.returncode, p.stderr), (0, ""))
                self.assertTrue(p.stdout.startswith("usage: "), p.stdout)
                self.assertEqual(os.listdir(folder), [])
        p = self.run_in(folder, "bench/gpu_table.py", "out", "qwen35-1b")
        self.assertEqual(p.returncode, 2)
        self.assertIn("shape 'qwen35-1b', expected one of qwen35-27b qwen35-4b qwen35-0.8b", p.stderr)
        self.assertEqual(os.listdir(folder), [])


class Newcomer(unittest.TestCase):
    """The whole way of somebody who has never seen the program: ask, fetch, examine, talk."""

    def test_from_a_name_to_an_answer(self):
        folder = path("newcomer-hub")
        table = fill_hub(folder)
        hub = self.enterContext(MockHub(folder))
        reader = Reader("newcomer", hub, table)
        name = "unsloth/Qwen3.5-9B-GGUF:Q4_K_M"

        status, text = reader.run("./ratoon plan -hf " + name)
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"needs \d+ .B .*: fits; about [\d.]+ tokens/s plain, [\d.]+ to [\d.]+ with drafter AtomicChat/")
        self.assertLess(sum(r.sent for r in hub.asked("cdn")), 24e6)
        self.assertNotIn(name, reader.run("./ratoon models")[1], "nothing was fetched")

        t = Terminal(name, command=["./ratoon", "pull"], env=self.terminal(reader), cwd=reader.at)
        t.until("more?")
        status, rest = t.end("y\r")
        self.assertEqual(status, 0, rest)
        self.assertIn("AtomicChat", rest)
        status, text = reader.run("./ratoon models")
        self.assertIn(name, text)

        status, text = reader.run("./ratoon doctor -hf " + name)
        self.assertEqual(status, 0, text)
        self.assertIn("Qwen3.5-9B-DFlash-GGUF-Q8_0.gguf", text)
        self.assertRegex(text, "(?m)^.*verdict|fits")

        hub.requests.clear()
        t = Terminal("-hf", name, command=["./ratoon", "chat"], env=self.terminal(reader), cwd=reader.at)
        t.until(READY, timeout=60 * SLOW)
        self.assertTrue(t.say("def add(a, b):").strip())
        self.assertEqual(t.end("/exit\r")[0], 0)
        self.assertEqual(hub.requests, [], "what is here is not asked for")

    def terminal(self, reader):
        return {**reader.env, "TERM": "xterm", "LC_ALL": "C.UTF-8", "XDG_STATE_HOME": reader.at + "/state"}


DOCUMENTS = ["README.md"] + sorted(os.path.relpath(x, ROOT) for x in glob.glob(ROOT + "/doc/*.md") +
                                   glob.glob(ROOT + "/doc/models/*.md"))
for document in DOCUMENTS:
    setattr(Documents, "test_" + re.sub(r"\W", "_", document[:-3]), lambda self, d=document: self.check(d))

if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
