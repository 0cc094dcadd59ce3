#!/usr/bin/env python3
"""The library as others get it: `make install` into a folder, programs built against the installed files, the
examples in C.

    python3 tests/cli/test_install.py [-v] [Install.test_name ...]

RATOON names the program that hello is compared with (default: ./ratoon); CC the compiler. The last line is
'N passed, N failed'."""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report
from scratch import DEMO, RATOON, ROOT, path, write

PREFIX = "/opt/ratoon"
AT = path("dest") + PREFIX
CC = os.environ.get("CC", "cc")
WARN = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
DRAFT = os.path.join(os.path.dirname(DEMO), "dflash-ratoon-demo-bf16.gguf")

# Names of functions inside the library, which a program may also define.
CLASH = """
#include <ratoon.h>
#include <stdio.h>
static int called;
int fail(int x) { called++; return x; }
int trace(int x) { called++; return x; }
int norm(int x) { called++; return x; }
int linear(int x) { called++; return x; }
int attend(int x) { called++; return x; }
int json_read(int x) { called++; return x; }
int main(void)
{
    rt_engine *g;
    rt_error e;
    if (rt_open(&g, &RT_OPTIONS(.model = "/nonexistent/model.gguf"), &e) != RT_EIO) return 1;
    puts(e.text);
    return called;
}
"""


# Code of each kind of caller, in C++ too, without any compiler warning.
CPLUSPLUS = r"""
#include <ratoon_chat.h>
#include <ratoon_lab.h>
#include <cstdio>
rt_sampling everywhere = RT_SAMPLING_INIT;
rt_chat_request asked = RT_CHAT_REQUEST_INIT;
rt_reply_options answered = RT_REPLY_OPTIONS_INIT;
int main()
{
    rt_options o = RT_OPTIONS_INIT;
    rt_session_options so = RT_SESSION_OPTIONS_INIT;
    rt_step_options st = RT_STEP_OPTIONS_INIT;
    rt_engine *g;
    rt_error e;
    if (so.size != sizeof so || st.size != sizeof st || everywhere.size != sizeof everywhere || st.hooks.log) return 1;
    if (asked.size != sizeof asked || answered.size != sizeof answered || answered.n_stop) return 1;
    o.model = "/nonexistent/model.gguf";
    if (rt_open(&g, &o, &e) != RT_EIO) return 1;
    o = rt_options();
    if (rt_open(&g, &o, &e) != RT_EARG) return 1;
    std::puts(e.text);
}
"""

# Continues a text; built with a header of an earlier version (OLD) it writes the same.
OLDER = r"""
#include HEADER
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
    rt_options o = RT_OPTIONS(.model = argv[1], .draft = argc > 2 ? argv[2] : NULL, .threads = 1, .kv_k = "q8_0");
    rt_session_options so = RT_SESSION_OPTIONS(.ctx = 300, .checkpoints = 2);
    rt_step_options st = RT_STEP_OPTIONS_INIT;
    rt_sampling p = RT_SAMPLING(.temperature = 0.8f, .top_k = 30, .max_tokens = 60, .seed = 5);
    rt_engine *g;
    rt_session *s;
    rt_step *step;
    rt_error e;
    rt_block b;
    rt_stats stats;
    rt_needs needs;
    int32_t prompt[64], said = 0;
    st.chunk = 7;
    if (rt_plan(&o, &so, &st, NULL, NULL, &needs, sizeof needs, &e) || rt_open(&g, &o, &e) ||
        rt_session_new(&s, g, &so, &e) || rt_step_new(&step, g, &st, &e)) return puts(e.text), 1;
    size_t n = rt_tokenize(g, "def hello(name):", 16, true, prompt, 64);
    if (rt_sampling_set(s, &p) || rt_logprobs_set(s, 3) || rt_prompt(s, prompt, n)) return puts(rt_session_error(s)), 1;
    while (rt_next(step, s, &b) == RT_OK)
        for (int32_t i = 0; i < b.n; i++, said++) {
            const rt_logprob *l = &rt_logprobs(s)[i];
            printf("%d %.4f %d %d %.4f\n", b.token[i], l->logprob, l->n, l->top[2].id, l->top[2].logprob);
        }
    rt_stats_get(s, &stats, sizeof stats);
    printf("%d %d %d %s", b.status, stats.generated == said, (int) stats.prompt_tokens, rt_session_error(s));
    printf("%d %d %d\n", needs.ctx, needs.model > 0, needs.step > 0);
    rt_step_free(step);
    rt_session_free(s);
    rt_close(g);
    return 0;
}
"""
OLD = os.path.join(ROOT, "tests", "data", "ratoon_0_1.h")
SIZED = {"rt_options", "rt_session_options", "rt_step_options", "rt_sampling"}
FILLED = {"rt_stats", "rt_needs"}                      # filled by the library; callers give their size


def layout(header):
    """Sizes and offsets of all structs of a header, and values of its constants, as a program built with it sees them.
    Asks only for names that the frozen header has."""
    text = re.sub(r"/\*.*?\*/", "", open(OLD).read(), flags=re.S)
    lines, ask = [], '    printf("%%s %%zu\\n", "%s", (size_t) %s);'
    for body, name in re.findall(r"typedef struct \{((?:[^{}])*)\} (rt_\w+);", text):
        lines.append(ask % (name, "sizeof(%s)" % name))
        body = re.sub(r"\(\*(\w+)\)\([^;]*\)", r"\1", body)                     # a hook is its name
        for declared in body.split(";"):
            for word in declared.split(","):
                field = re.search(r"(\w+)(?:\[\w+\])?\s*$", word)
                if field:
                    lines.append(ask % ("%s.%s" % (name, field[1]), "offsetof(%s, %s)" % (name, field[1])))
    for body in re.findall(r"enum \{([^{}]*)\}", text):
        lines += [ask % (name, name) for name in re.findall(r"\bRT_\w+", body)]
    source = write("layout.c", "#include \"%s\"\n#include <stdio.h>\nint main(void)\n{\n%s\n}\n"
                   % (header, "\n".join(lines)))
    run(CC, *WARN, source, "-o", path("layout"))
    return {k: int(v) for k, v in (line.split() for line in run(path("layout")).splitlines())}


def later(header):
    """The header with one more field in each struct that may grow."""
    text = open(header).read()
    for name in SIZED | FILLED:
        text = text.replace("} %s;" % name, "    uint64_t later;\n} %s;" % name)
    return write("later.h", text)


def run(*args, expect=0, **env):
    p = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                       env={**os.environ, **env}, cwd=path("."))
    assert p.returncode == expect, "%s: %d\n%s" % (" ".join(args), p.returncode, p.stderr.decode())
    return p.stdout.decode()


def make(*args):
    return run("make", "-s", "-C", ROOT, *args)


def setUpModule():
    make("install", "DESTDIR=" + path("dest"), "PREFIX=" + PREFIX)


def symbols(*args):
    """Symbols that an object or library defines for others."""
    return set(re.findall(r"^[0-9a-f]+ [A-Za-z] (\S+)$", run("nm", "--defined-only", "-g", *args), re.M))


def package(*args):
    """Runs pkg-config where only ratoon's file exists."""
    return run("pkg-config", "--define-variable=prefix=" + AT, *args, "ratoon", PKG_CONFIG_PATH="",
               PKG_CONFIG_LIBDIR=AT + "/lib/pkgconfig").split()


class Install(unittest.TestCase):
    def build(self, source, name, static):
        libs = package("--libs", "--static") if static else package("--libs")
        if static:
            libs = [AT + "/lib/libratoon.a" if x == "-lratoon" else x for x in libs]
        run(CC, *WARN, source, *package("--cflags"), *libs, "-o", path(name))
        return path(name)

    def test_only_our_names_are_visible(self):
        headers = [open("%s/include/%s" % (AT, h)).read() for h in ("ratoon.h", "ratoon_chat.h", "ratoon_lab.h")]
        headers = [re.sub(r"/\*.*?\*/", "", h, flags=re.S) for h in headers]
        declared = set(re.findall(r"\b(rt_[a-z_]+)\([^*]", "".join(headers)))
        self.assertGreater(len(declared), 60)
        self.assertFalse(set(re.findall(r"\brt_[a-z_]+", headers[0])) &
                         {"rt_rows", "rt_draft_rows", "rt_profile", "rt_simulate", "rt_time_pass", "rt_roofline"})
        for names in symbols(AT + "/lib/libratoon.a"), symbols("-D", AT + "/lib/libratoon.so"):
            self.assertEqual({n for n in names if not n.startswith("rt_")}, set())
            self.assertEqual(declared - names, set())
            self.assertGreater(len(names), 40)

    def test_stripped(self):
        for file in "bin/ratoon", "lib/libratoon.so":
            p = subprocess.run(["nm", os.path.join(AT, file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertIn(b"no symbols", p.stderr)
        for file in "bin/ratoon", "lib/libratoon.so", "lib/libratoon.a":
            self.assertNotIn(".debug_info", run("readelf", "-SW", os.path.join(AT, file)))
        make("install", "DESTDIR=" + path("kept"), "PREFIX=" + PREFIX, "STRIP=true")
        self.addCleanup(shutil.rmtree, path("kept"))
        self.assertIn(" engine_open", run("nm", path("kept") + PREFIX + "/bin/ratoon"))

    def test_package(self):
        self.assertEqual(package("--cflags"), ["-I%s/include" % AT])
        self.assertEqual(package("--libs"), ["-L%s/lib" % AT, "-lratoon"])
        self.assertIn("-ljansson", package("--libs", "--static"))
        with open(os.path.join(ROOT, "VERSION")) as f:
            self.assertEqual(package("--modversion"), [f.read().strip()])

    def test_table_of_drafters(self):
        with open(AT + "/share/ratoon/drafters.json") as installed:
            with open(os.path.join(ROOT, "share", "drafters.json")) as ours:
                self.assertEqual(installed.read(), ours.read())

    def test_names_do_not_meet(self):
        source = write("clash.c", CLASH)
        for static in True, False:
            out = run(self.build(source, "clash", static), LD_LIBRARY_PATH=AT + "/lib")
            self.assertIn("/nonexistent/model.gguf", out)

    def test_c_plus_plus(self):
        source = write("plus.cc", CPLUSPLUS)
        run(os.environ.get("CXX", "c++"), "-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", source,
            *package("--cflags", "--libs"), "-o", path("plus"))
        size = layout(AT + "/include/ratoon.h")["rt_options"]
        self.assertEqual(run(path("plus"), LD_LIBRARY_PATH=AT + "/lib"),
                         "rt_options.size: 0, expected %d (use RT_OPTIONS_INIT)\n" % size)

    def test_older_header(self):
        """A program built with an earlier header runs with this library and gives the same output."""
        said = {}
        today = AT + "/include/ratoon.h"
        for name, header in ("older", OLD), ("today's", today), ("later", later(today)):
            source = write(name + ".c", OLDER.replace("HEADER", '"%s"' % header))
            run(CC, *WARN, source, *package("--libs"), "-o", path(name))
            for draft in [], [DRAFT]:
                said[name, len(draft)] = run(path(name), DEMO, *draft, LD_LIBRARY_PATH=AT + "/lib")
        for draft in 0, 1:
            self.assertEqual(said["older", draft], said["today's", draft])
            self.assertEqual(said["later", draft], said["today's", draft])
            self.assertEqual(said["older", draft], said["older", 0])
            self.assertRegex(said["older", draft], r"\A(\d+ -\d+\.\d+ 3 \d+ -\d+\.\d+\n){60}1 1 \d+ 300 1 1\n\Z")

    def test_newer_header(self):
        """A program built with a later header is refused if it sets something that this library does not know."""
        header = later(AT + "/include/ratoon.h")
        program = OLDER.replace("HEADER", '"%s"' % header).replace(".max_tokens", ".later = 1, .max_tokens")
        source = write("later.c", program)
        run(CC, *WARN, source, *package("--libs"), "-o", path("later"))
        sizes = layout(OLD)["rt_sampling"], layout(header)["rt_sampling"]
        self.assertEqual(run(path("later"), DEMO, LD_LIBRARY_PATH=AT + "/lib", expect=1),
                         "rt_sampling.size: %d, but this library knows %d bytes and a field behind them is set, "
                         "expected 0: it needs a newer library\n" % sizes[::-1])

    def test_layout(self):
        """Everything in the earlier header is still at its offset; only structs that begin with their size may have
        grown."""
        old, new = layout(OLD), layout(AT + "/include/ratoon.h")
        self.assertGreater(len(old), 100)
        for name, value in old.items():
            if name in SIZED | FILLED | {"RT_SOURCES"}:
                self.assertGreaterEqual(new[name], value, name)
            else:
                self.assertEqual(new[name], value, name)
        for name in SIZED:
            self.assertEqual(old[name + ".size"], 0)

    def hello(self, *args, expect=0):
        return run(path("hello"), *args, expect=expect, LD_LIBRARY_PATH=AT + "/lib")

    def test_hello(self):
        ended = {}
        for static in True, False:
            self.build(os.path.join(ROOT, "examples", "hello.c"), "hello", static)
            for text in "def hello(name):\n", "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n":
                want = json.loads(run(RATOON, "run", "-q", "--json", "-m", DEMO, "-d", "none", "--special", "-n", "128",
                                      "-p", text))
                ended[want["finish_reason"]] = want["text"]
                for draft in "", DRAFT:
                    self.assertEqual(self.hello(DEMO, draft, text), want["text"])
        self.assertEqual(set(ended), {"stop", "length"}, "one text that ends by itself and one that does not")
        self.assertEqual(self.hello(DEMO), self.hello(DEMO, "", "def hello(name):\n"))
        self.hello("/nonexistent", expect=1)
        self.hello(DEMO, "", "x y " * 2000, expect=1)      # more tokens than its buffer

    def chat(self, draft, said):
        return subprocess.run([path("chat"), DEMO, draft], input=said.encode(), stdout=subprocess.PIPE, check=True,
                              env={**os.environ, "LD_LIBRARY_PATH": AT + "/lib"}).stdout

    def test_chat(self):
        """The example's first answer is that of `ratoon chat`; a second one follows."""
        said = "Is \"3 + 4\" \\ 7?\n"
        want = subprocess.run([RATOON, "chat", "-q", "-m", DEMO, "-d", "none", "-n", "256", "--seed", "1"],
                              input=said.encode(), stdout=subprocess.PIPE, check=True).stdout.strip()
        for static in True, False:
            self.build(os.path.join(ROOT, "examples", "chat.c"), "chat", static)
            for draft in "", DRAFT:
                self.assertEqual(self.chat(draft, said).strip(), want)
        both = self.chat(DRAFT, said + "What is 2 + 2?\n")
        self.assertTrue(both.startswith(want + b"\n") and len(both.strip()) > len(want) + 5, both)
        run(path("chat"), "/nonexistent", expect=1, LD_LIBRARY_PATH=AT + "/lib")
        long = subprocess.run([path("chat"), DEMO], input=("\u00fc" * 3000 + "\n").encode(), stderr=subprocess.PIPE,
                              env={**os.environ, "LD_LIBRARY_PATH": AT + "/lib"}, check=False)
        self.assertEqual((long.returncode, long.stderr), (1, b"chat: a line has more than 4094 bytes\n"))

    def test_linker_cache(self):
        """ldconfig runs only for a system folder; for others the message says how programs find the library."""
        told = lambda *args: run("make", "-s", "-C", ROOT, "ldconfig", "LDCONFIG=echo ran", *args)
        self.assertEqual(told("PREFIX=/usr/local", "DESTDIR=/tmp/x"), "")
        self.assertIn("LD_LIBRARY_PATH", told("PREFIX=/opt/ratoon"))
        self.assertIn("ran" if os.getuid() == 0 else "LD_LIBRARY_PATH", told("PREFIX=/usr/local"))


class Setup(unittest.TestCase):
    def test_elsewhere_than_debian(self):
        """Without Debian's tools nothing is installed: what is missing is named for three other distributions."""
        at = path("bin")
        os.mkdir(at)
        for name in ("make", "sh", "cat", "find", "sort", "sed", "gcc", "true"):
            os.symlink(shutil.which(name), os.path.join(at, name))
        setup = lambda: subprocess.run([at + "/make", "-s", "-C", ROOT, "setup", "CC=true"], text=True, check=False,
                                       capture_output=True, env={"PATH": at})
        p = setup()
        self.assertEqual(p.returncode, 2, p.stderr)
        for words in ("dnf install", "jansson-devel", "pacman -S", "apk add", "libmicrohttpd-dev"):
            self.assertIn(words, p.stdout)
        write("bin/pkg-config", "#!/bin/sh\nexit 0\n")
        os.chmod(path("bin/pkg-config"), 0o755)
        p = setup()
        self.assertEqual((p.returncode, p.stdout), (0, ""))


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
