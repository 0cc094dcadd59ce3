#!/usr/bin/env python3
"""What is generated from the tables of commands and options: the manual page, the completions of shells, the
configuration file, installing.

    python3 tests/cli/test_manual.py [-v] [TestName.test_name ...]

RATOON names the program (default: ./ratoon). Checks by man, mandoc, groff, zsh, fish, systemd-analyze run where those are installed. The
last line is 'N passed, N failed'."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report
from scratch import RATOON, ROOT



def run(*args, stdin="", env=None, cwd=None):
    p = subprocess.run(args, input=stdin.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       env={**os.environ, "XDG_CONFIG_HOME": "/nonexistent", **(env or {})}, cwd=cwd)
    p.out, p.err = p.stdout.decode(), p.stderr.decode()
    return p


def commands():
    return re.findall(r"^  ([a-z]+) {2,}\S", run(RATOON, "help").out, re.M)


def options(command):
    """[(names, value)] of a command, as --help says them."""
    out = []
    for line in run(RATOON, command, "--help").out.splitlines():
        m = re.match(r"  ((?:--?[a-z-]+, )?--[a-z-]+)(?: (\S+))?(?:  |$| )", line)
        if m:
            out.append((m.group(1).split(", "),
                        m.group(2) if m.group(2) and not line.startswith("  %s  " % m.group(1)) else None))
    return out


class Help(unittest.TestCase):
    def test_fits_a_terminal(self):
        for args in [["help"]] + [["help", c] for c in commands()]:
            for line in run(RATOON, *args).out.splitlines():
                self.assertLessEqual(len(line), 80, line)

    def test_every_option_stands_under_a_heading(self):
        for command in commands():
            group, seen = None, []
            for line in run(RATOON, command, "--help").out.splitlines():
                heading = re.fullmatch(r"([A-Z][a-z: ]+):", line)
                if heading and heading.group(1) != "Examples":
                    group = heading.group(1)
                    self.assertNotIn(group, seen, "a heading stands once")
                    seen.append(group)
                if re.match(r"  -", line):
                    self.assertIsNotNone(group, line)
            if options(command):
                self.assertIn("General", seen, command)
        self.assertIn("Sampling", run(RATOON, "run", "--help").out)


class Base(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ratoon-manual-")
        self.addCleanup(shutil.rmtree, self.dir)

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(text if isinstance(text, bytes) else text.encode())
        return path


class Manual(Base):
    def test_lint(self):
        page = run(RATOON, "help", "--man").out
        file = self.write("ratoon.1", page)
        checks = [["mandoc", "-T", "lint", "-W", "warning", file], ["groff", "-mandoc", "-ww", "-z", "-Tutf8", file],
                  ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", file]]
        for check in checks:
            if shutil.which(check[0]):
                p = run(*check, env={"MANROFFSEQ": "", "MANWIDTH": "80"})
                self.assertEqual((p.returncode, p.err), (0, ""), check)
                if check[0] == "mandoc":
                    self.assertEqual(p.out, "")

    def test_every_option_of_every_command_appears(self):
        """Once each, with the commands that have it."""
        page = run(RATOON, "help", "--man").out
        self.assertEqual(re.findall(r"^\.Ss ratoon (\S+)", page, re.M), commands())
        part = re.search(r"^\.Sh OPTIONS\n(.*?)(?=^\.Sh)", page, re.M | re.S).group(1)
        shown = {command: [] for command in commands()}
        for item in re.split(r"^(?=\.It |\.Ss )", part, flags=re.M):
            if item.startswith(".It "):
                for command in re.findall(r"\n\(([a-z, ]+)\)\n", item)[-1].split(", "):
                    shown[command].append(re.sub(r"\\&|\\(?=-)", "", item.splitlines()[0]))
        for command in commands():
            said = [".It " + " , ".join("Fl " + n[1:] for n in names) + (" Ar " + value if value else "")
                    for names, value in options(command)]
            self.assertEqual(shown[command], said, command)
        self.assertGreater(sum(map(len, shown.values())), 100)
        self.assertIn("--no-history", [n[-1] for n, _ in options("chat")])

    def test_usage(self):
        for args in [["--man", "run"], ["--man", "--completion", "bash"], ["--completion", "csh"], ["--completion"]]:
            self.assertEqual(run(RATOON, "help", *args).returncode, 2, args)


class Completion(Base):
    def bash(self, *words):
        script = 'source /dev/stdin; COMP_WORDS=(%s); COMP_CWORD=%d; _ratoon; printf "%%s\\n" "${COMPREPLY[@]}"' % (
            " ".join("'%s'" % w for w in words), len(words) - 1)
        p = run("bash", "--norc", "-c", script, stdin=run(RATOON, "help", "--completion", "bash").out, cwd=self.dir)
        self.assertEqual((p.returncode, p.err), (0, ""), words)
        return p.out.split()

    def test_bash(self):
        self.assertEqual(set(self.bash("ratoon", "")), set(commands()) | {"--help", "--version"})
        self.assertEqual(self.bash("ratoon", "ch"), ["chat"])
        for command in commands():
            expected = {n for names, _ in options(command) for n in names if n.startswith("--")} | {"--help"}
            self.assertEqual(set(self.bash("ratoon", command, "--")), expected, command)
        self.assertEqual(self.bash("ratoon", "run", "--ngram", ""), ["on", "off"])
        self.assertEqual(self.bash("ratoon", "run", "--budget", ""), ["auto"])
        self.assertEqual(self.bash("ratoon", "help", "--completion", "z"), ["zsh"])
        self.assertEqual(self.bash("ratoon", "help", "re"), ["render"])
        self.assertEqual(self.bash("ratoon", "run", "--seed", ""), [])
        self.write("model.gguf", "")
        for option in ["-m", "--model", "--file"]:
            self.assertEqual(self.bash("ratoon", "run", option, "mo"), ["model.gguf"])
        self.assertEqual(self.bash("ratoon", "inspect", "mo"), ["model.gguf"])
        self.write("model.txt", "")
        self.write("models/x", "")
        self.assertEqual(self.bash("ratoon", "run", "-m", "mo"), ["model.gguf", "models"])
        self.assertEqual(set(self.bash("ratoon", "run", "-f", "mo")), {"model.gguf", "model.txt", "models"})
        self.assertEqual(self.bash("ratoon", "run", "-ctk", "q5"), ["q5_1", "q5_0"])
        self.assertEqual(self.bash("ratoon", "serve", "--tool-format", "l"), ["laguna", "llama3"])
        self.assertEqual(self.bash("ratoon", "run", "--backend", "cpu:avx5"), ["cpu:avx512"])
        self.assertEqual(self.bash("ratoon", "verify", "--modes", ""), ["greedy", "t0.7", "t1"])
        self.assertIn("Q4_K_M", self.bash("ratoon", "quantize", "a.gguf", "b.gguf", "Q4"))

    def test_zsh(self):
        if not shutil.which("zsh"):
            self.skipTest("no zsh")
        text = run(RATOON, "help", "--completion", "zsh").out
        file = self.write("_ratoon", text)
        self.assertEqual(run("zsh", "-n", file).err, "")
        # _arguments and _describe only print their arguments: the shell reads the script unchanged
        script = ('compdef() { :; }; _arguments() { print -rl -- "$@"; }; _describe() { print -rl -- "${(@P)2}"; }; '
                  'source %s; '
                  'words=(ratoon run ""); CURRENT=3; _ratoon; words=(ratoon ""); CURRENT=2; _ratoon' % file)
        p = run("zsh", "-f", "-c", script)
        self.assertEqual((p.returncode, p.err), (0, ""))
        for names, _ in options("run"):
            for n in names:
                self.assertRegex(p.out, r"(?m)^\*%s\[[^\]]+\]" % re.escape(n))
        for command in commands():
            self.assertRegex(p.out, r"(?m)^%s:." % command)
        self.assertIn("a Hugging Face folder", p.out)
        self.assertRegex(p.out, r"(?m)^\*--draft\[the drafter\\: a GGUF file, a Hugging Face folder, mtp")
        self.assertRegex(p.out, r"(?m)^\*-ctk\[type of stored keys\\: f32, .*\]:value:\(f32 f16 .*\)$")

    def test_fish(self):
        if not shutil.which("fish"):
            self.skipTest("no fish")
        file = self.write("ratoon.fish", run(RATOON, "help", "--completion", "fish").out)
        env = {"HOME": self.dir, "XDG_DATA_HOME": self.dir, "XDG_CONFIG_HOME": self.dir, "XDG_CACHE_HOME": self.dir}

        def complete(line):
            p = run("fish", "--no-config", "-c", "source %s; complete -C '%s'" % (file, line), env=env, cwd=self.dir)
            self.assertEqual((p.returncode, p.err), (0, ""))
            return {l.split("\t")[0] for l in p.out.splitlines()}
        self.assertEqual(complete("ratoon "), set(commands()))
        for command in ["run", "chat"]:
            self.assertTrue({n for names, _ in options(command)
                             for n in names if n.startswith("--")} <= complete("ratoon %s --" % command), command)
        self.assertEqual(complete("ratoon run --ngram "), {"on", "off"})
        self.assertIn("-ctk", complete("ratoon run -"))
        self.assertEqual(complete("ratoon run -ctk q5"), {"q5_0", "q5_1"})
        self.assertIn("Q4_K_M", complete("ratoon quantize a.gguf b.gguf Q4"))


class Config(Base):
    """The values that `ratoon plan` and `ratoon run` report show which file wins."""

    def reads(self, text, *args, command="run", expect=0):
        file = self.write("config", text)
        p = run(RATOON, command, "--config", file, "-d", "none", "--ngram", "off", *args)
        self.assertEqual(p.returncode, expect, p.err)
        return p

    def wrong(self, text, says, command="run"):
        p = self.reads(text, "-p", "x", command=command, expect=2)
        self.assertEqual(len(p.err.splitlines()), 1, p.err)
        self.assertIn("config:", p.err)
        self.assertIn(says, p.err)

    def tokens(self, p):
        return int(re.search(r"generated (\d+) in", p.err).group(1))

    def test_precedence(self):
        text = "n-predict = 5\nquiet = false\nstats = true\n\n# a comment\n[run]\nn-predict = 7\r\n[ bench ]\nn-predict=9\n"
        self.assertEqual(self.tokens(self.reads(text, "-p", "def f(x):")), 7)
        self.assertEqual(self.tokens(self.reads(text, "-p", "def f(x):", "-n", "3")), 3)
        self.assertEqual(self.tokens(self.reads("stats = true\nn-predict = 5\n[chat]\nn-predict = 2", "-p",
                                                "def f(x):")), 5)
        self.write("home/ratoon/config", "stats = true\nn-predict = 4\n")
        p = run(RATOON, "run", "-p", "def f(x):", env={"XDG_CONFIG_HOME": os.path.join(self.dir, "home")})
        self.assertEqual(self.tokens(p), 4)
        self.write(".config/ratoon/config", "stats = true\nn-predict = 6\n")
        p = run(RATOON, "run", "-p", "def f(x):", env={"XDG_CONFIG_HOME": "", "HOME": self.dir})
        self.assertEqual(self.tokens(p), 6)
        p = run(RATOON, "run", "-p", "def f(x):", "--config", self.write("other", "stats = true\nn-predict = 2\n"),
                env={"XDG_CONFIG_HOME": os.path.join(self.dir, "home")})
        self.assertEqual(self.tokens(p), 2, "--config is read instead")
        p = run(RATOON, "chat", "-q", "--config", self.write("other", "[chat]\nn-predict = 2\nstats = true\n"),
                stdin="Hello")
        self.assertIn("2 tokens", p.err)

    def test_the_command_line_wins(self):
        self.reads("[run]\nthink = true", "--chat", "-p", "x", "-n", "1", "--no-think")
        self.reads("[run]\ntree = true", "-p", "x", "-n", "1", "--chain")
        self.reads("[run]\nfile = /nonexistent", "-p", "x", "-n", "1")
        self.reads("[run]\ngrammar = /nonexistent", "-p", "x", "-n", "1", "--json-schema", "{}")
        whole = self.reads("", "-p", "def f(x):", "-n", "20", "-q").out
        first = whole.strip()[0]
        self.assertEqual(self.reads("[run]\nstop = %s" % first, "-p", "def f(x):", "-n", "20", "-q").out.strip(), "")
        self.assertEqual(self.reads("[run]\nstop = %s" % first, "-p", "def f(x):", "-n", "20", "-q", "--stop",
                                    "NEVER").out, whole, "lists begin anew")
        p = run(RATOON, "run", "-p", "x", "--tree", "--chain")
        self.assertEqual(p.returncode, 2, "two on the command line are still wrong")

    def test_quotes(self):
        whole = self.reads("", "-p", "def f(x):", "-n", "20", "-q").out
        for value in ["%s", "'%s'", '"%s"', ' "%s" ']:
            got = self.reads("stop = never\n[run]\nprompt = %s\n" % (value % "def f(x):"), "-n", "20", "-q").out
            self.assertEqual(got, whole, value)
        p = self.reads('[run]\nprompt = "a\\n\\"b\\"\\t\\\\c\\d"\n', "--chat", "-n", "1", "-q")
        self.assertEqual(p.returncode, 0)
        file = self.write("config", '[tokenize]\nprompt = "a\\n\\"b\\"\\t\\\\c\\d"\n')
        self.assertEqual(run(RATOON, "tokenize", "--config", file).out,
                         run(RATOON, "tokenize", "-p", 'a\n"b"\t\\c\\d').out)

    def test_wrong_lines(self):
        self.wrong("temp = 1\nnonsense\n", "config:2: there is no = in 'nonsense'")
        self.wrong("[run\n", "config:1: the section is not closed")
        self.wrong("[walk]\n", "config:1: there is no command 'walk'")
        self.wrong("\n\nheat = 1\n", "config:3: there is no option 'heat'")
        self.wrong("[run]\nwindow = 8\n", "config:2: there is no option 'window' of ratoon run")
        self.wrong("[chat]\ntokens = 1\n", "config:2: there is no option 'tokens' of ratoon chat")
        self.wrong("temp = hot\n", "config:1: --temp is 'hot', expected a number from 0 to 1000")
        self.wrong("[bench]\ntemp = hot\n", "config:2: --temp is 'hot'")
        self.wrong("stats = yes\n", "config:1: --stats is 'yes', expected true or false")
        self.wrong("ngram = true\n", "config:1: --ngram is 'true', expected on or off")
        self.wrong("config = x\n", "config:1: there is no option 'config'")
        self.wrong("= x\n", "config:1: there is no key")
        self.wrong("system = \"x\n", "config:1: the quotes do not close at the end of the value of 'system'")
        self.wrong("system = 'x' y\n", "config:1: the quotes do not close")
        self.wrong(b"temp = 1\0\n", "config:1: there is a zero byte")
        p = run(RATOON, "run", "--config", "/nonexistent/config", "-p", "x")
        self.assertEqual((p.returncode, p.err.splitlines()),
                         (2, ["ratoon run: /nonexistent/config: No such file or directory"]))
        bad = self.write("config", "nonsense")
        self.assertEqual(run(RATOON, "run", "--config", bad, "--help").returncode, 0, "help is always to be had")
        self.assertEqual(run(RATOON, "help", "run", env={"XDG_CONFIG_HOME": self.dir}).returncode, 0)


class Installing(Base):
    def test_install(self):
        p = run("make", "-s", "-C", ROOT, "install", "DESTDIR=" + self.dir, "PREFIX=/opt/ratoon")
        self.assertEqual(p.returncode, 0, p.err)
        at = os.path.join(self.dir, "opt/ratoon")
        made = {"share/man/man1/ratoon.1": "--man", "share/bash-completion/completions/ratoon": "bash",
                "share/zsh/site-functions/_ratoon": "zsh",
                "share/fish/vendor_completions.d/ratoon.fish": "fish"}
        for file, which in made.items():
            with open(os.path.join(at, file)) as f:
                self.assertEqual(f.read(),
                                 run(RATOON, "help", *([which] if which == "--man" else ["--completion", which])).out)
        with open(os.path.join(at, "lib/systemd/system/ratoon.service")) as f:
            self.assertIn("ExecStart=/opt/ratoon/bin/ratoon serve", f.read())
        p = run("make", "-s", "-C", ROOT, "uninstall", "DESTDIR=" + self.dir, "PREFIX=/opt/ratoon")
        self.assertEqual(p.returncode, 0, p.err)
        left = [os.path.join(d, f) for d, _, files in os.walk(at) for f in files]
        self.assertEqual(left, [])

    def test_container(self):
        """The first stage has all files that the Makefile reads before the sources are copied. The rest is carried out
        by packages/test_packages.py."""
        with open(os.path.join(ROOT, "Dockerfile")) as f:
            text = f.read()
        for place, name in re.findall(r"^COPY (\S+/)?(\S+\.mk) ", text, re.M):
            self.assertTrue(os.path.exists(os.path.join(ROOT, place, name)))
        for file in ["Makefile", "VERSION", "tests/tests.mk", "bench/bench.mk"]:
            os.makedirs(os.path.dirname(os.path.join(self.dir, file)), exist_ok=True)
            shutil.copy(os.path.join(ROOT, file), os.path.join(self.dir, file))
        p = run("make", "-n", "-C", self.dir, "setup-deb")
        self.assertEqual(p.returncode, 0, p.err)
        self.assertIn("\nUSER ratoon\n", text)
        self.assertRegex(text, r'(?s)\nARG CUDA=no\nRUN \[ "\$CUDA" = no \] \|\| make [^\n]* cuda\nRUN make [^\n]* deb\n')

    def test_unit(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze")
        with open(os.path.join(ROOT, "share/systemd/ratoon.service")) as f:
            text = f.read()
        file = self.write("ratoon.service", text.replace("@PREFIX@/bin/ratoon", shutil.which("true")))
        p = run("systemd-analyze", "verify", "--man=no", file)
        told = [l for l in p.err.splitlines() if "ratoon.service" in l]
        self.assertEqual(told, [])
        p = run("systemd-analyze", "security", "--offline=yes", "--no-pager", file)
        if p.returncode == 0 and "exposure level" in p.out:
            level = float(re.search(r"exposure level for ratoon.service: ([\d.]+)", p.out).group(1))
            self.assertLess(level, 2.5)

    def test_unit_with_a_card(self):
        """What the document says to put beside the unit is understood, and opens nothing but NVIDIA's devices."""
        with open(os.path.join(ROOT, "share/systemd/ratoon.service")) as f:
            unit = f.read().replace("@PREFIX@/bin/ratoon", shutil.which("true"))
        with open(os.path.join(ROOT, "doc/install.md")) as f:
            beside = re.search(r"(?m)((?:^    .*\n|\n)*^    PrivateDevices=no\n(?:^    .*\n|\n)*)", f.read())[1]
        self.assertEqual(re.findall(r"(?m)^ *DeviceAllow=(.*)$", beside), ["char-nvidia* rw"])
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze")
        file = self.write("ratoon.service", unit)
        os.makedirs(file + ".d")
        for text, said in (beside, 0), (beside + "\nNoSuchKey=no\n", 1):
            self.write("ratoon.service.d/card.conf", "\n".join(l.strip() for l in text.splitlines()) + "\n")
            p = run("systemd-analyze", "verify", "--man=no", file)
            self.assertEqual(len([l for l in p.err.splitlines() if "ratoon.service" in l]), said, p.err)


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
