#!/usr/bin/env python3
"""What people's fingers know: suggestions, short and foreign names, words instead of options, RATOON_* variables.

    python3 tests/cli/test_options.py [-v] [TestName.test_name ...]

RATOON names the program (default: ./ratoon). All runs use the demo pair. The last line is 'N passed, N failed'."""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report
from scratch import DEMO, RATOON, TMP, path, write

CLEAN = {**os.environ, "XDG_CONFIG_HOME": "/nonexistent", "HOME": TMP}
PROMPT = "def f(x):"


def ratoon(*args, stdin="", env=None, cwd=None):
    p = subprocess.run([RATOON, *args], input=stdin.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       env={**CLEAN, **(env or {})}, cwd=cwd, timeout=300)
    p.out, p.err = p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace")
    return p


class Base(unittest.TestCase):
    def good(self, *args, **kw):
        p = ratoon(*args, **kw)
        self.assertEqual(p.returncode, 0, p.err)
        return p

    def wrong(self, *args, says, **kw):
        """One line that says this, and exit code 2."""
        p = ratoon(*args, **kw)
        self.assertEqual((p.returncode, p.out, len(p.err.splitlines())), (2, "", 1), p.err)
        self.assertIn(says, p.err)

    def text(self, *args, **kw):
        """What a short greedy run writes."""
        return self.good("run", "-q", "-n", "6", "-d", "none", "--ngram", "off", "--temp", "0", *args, **kw).out


class Suggestions(Base):
    def test_commands(self):
        for typed, meant in [("rnu", "run"), ("chta", "chat"), ("quantise", "quantize"), ("server", "serve"),
                             ("Plan", "plan"), ("hepl", "help")]:
            self.wrong(typed, says="unknown command '%s'; did you mean %s? (see ratoon help)" % (typed, meant))
        for typed, meant in [("list", "models"), ("ls", "models"), ("ps", "models"), ("rm", "models rm"),
                             ("show", "inspect")]:
            self.wrong(typed, "x", says="unknown command '%s'; did you mean ratoon %s?" % (typed, meant))
        for typed in ["-m", "model.gguf", "org/name"]:
            self.wrong(typed, "-p", "hi", says="; a command comes first, as in ratoon run %s ..." % typed)
        self.wrong("help", "docter", says="unknown command 'docter'; did you mean doctor?")
        self.wrong("frobnicate", says="unknown command 'frobnicate' (see")

    def test_options(self):
        for command, typed, meant in [
                ("run", "--promt", "--prompt"), ("run", "--thread", "--threads"), ("run", "--modle", "--model"),
                ("run", "-modle", "--model"), ("run", "-ckt", "-ctk"), ("run", "-C", "-c"),
                ("chat", "--tempertaure", "--temperature"), ("serve", "--prot", "--port"),
                ("run", "--promt=1", "--prompt")]:
            self.wrong(command, typed, "x", says="unknown option '%s'; did you mean %s? (see ratoon %s --help)"
                       % (typed, meant, command))
        self.wrong("run", "--frobnicate", says="unknown option '--frobnicate' (see")
        self.wrong("run", "-x", says="unknown option '-x' (see")
        self.wrong("serve", "--think", says="unknown option '--think'; --reasoning on|off|auto says whether")
        self.wrong("inspect", "--top-p", "1", says="unknown option '--top-p' (see")
        self.wrong("run", "--" + "x" * 5000, says="unknown option '--xxx")

    def test_values(self):
        self.wrong("run", "-ctk", "q8_1", says="--cache-type-k is 'q8_1', expected f32, f16, bf16, q8_0, q5_1, q5_0, "
                   "q4_1, q4_0 or tq3_0; did you mean q8_0?")
        self.wrong("run", "-ctv", "Q4_0", says="did you mean q4_0?")
        self.wrong("serve", "--tool-format", "hermse", says="did you mean hermes?")
        self.wrong("serve", "--reasoning", "maybe", says="--reasoning is 'maybe', expected on, off or auto\n")
        self.wrong("help", "--completion", "csh", says="did you mean zsh?")

    def test_configuration(self):
        def config(text, says):
            self.wrong("run", "--config", write("config", text), "-p", "x", says=says)
        config("treads = 1\n", "config:1: there is no option 'treads'; did you mean threads?")
        config("--ctx = 512\n", "config:1: there is no option '--ctx'; did you mean ctx?")
        config("[run]\ntmep = 1\n", "config:2: there is no option 'tmep' of ratoon run; did you mean temp?")
        config("[run]\n--ctx = 1\n", "config:2: there is no option '--ctx' of ratoon run; did you mean ctx?")
        config("\n[chta]\n", "config:2: there is no command 'chta' with options; did you mean chat?")


class Names(Base):
    def test_short_and_further_names(self):
        want = json.loads(self.good("run", "-q", "--json", "--model", DEMO, "--draft", "none", "--ctx", "512", "--seed",
                                    "7", "--threads", "1", "--n-predict", "6", "--temp", "0.9", "--top-p", "0.9",
                                    "--rep-penalty", "1.1", "--rep-window", "64", "-p", PROMPT).out)["tokens"]
        for line in ["-m %s -md none -c 512 -s 7 -t 1 -n 6 --temperature 0.9 --top_p 0.9 --repeat-penalty 1.1 "
                     "--repeat-last-n 64", "-m %s --model-draft none --ctx-size 512 -s7 -t1 -n6 --temp=0.9 --top_p=0.9 "
                     "--repetition_penalty 1.1 --rep_window 64", "--model=%s -d none -c512 -s 7 -t 1 --predict 6 "
                     "--temp 0.9 --top-p 0.9 --rep-penalty 1.1 --repeat_last_n 64"]:
            got = json.loads(self.good("run", "-q", "--json", "-p", PROMPT, *(line % DEMO).split()).out)["tokens"]
            self.assertEqual(got, want, line)
        other = json.loads(self.good("run", "-q", "--json", "-d", "none", "-s8", "-n6", "--temp", "0.9", "--top-p",
                                     "0.9", "-p", PROMPT).out)["tokens"]
        self.assertNotEqual(other, want, "the seed counts")
        for words in ["-t -1", "-t 0", "-n -1", "-c -1", "-c 0", "--ctx-size=0", "-s -1", "--repeat-last-n -1",
                      "-c 512 -c -1", "-s 7 -s -1"]:
            self.assertEqual(self.text("-p", PROMPT, *words.split(), "-n", "6"), self.text("-p", PROMPT), words)
        for given, tokens in [("1k", 1024), ("2K", 2048)]:
            self.assertIn("context %d" % tokens, self.good("run", "-n1", "-c", given, PROMPT).err)
        for words in [["-c", "1kk"], ["-c", "-1k"], ["-c", "99999999999k"], ["-t", "1k"], ["-c", "k"]]:
            self.wrong("run", *words, says=" is '%s', expected a whole number" % words[1])
        told = self.good("run", "-c", "0", "-n1", PROMPT, env={"RATOON_CTX": "512"}).err
        self.assertNotIn("context 512", told, "the default, whatever the environment says")
        self.wrong("run", "-nx", says="unknown option '-nx'")
        self.wrong("run", "-n0", says="--n-predict is '0', expected a whole number from 1")
        self.wrong("run", "-m5x", says="unknown option '-m5x'")

    def test_foreign_options(self):
        want = self.text("-p", PROMPT)
        for words in ["-ngld 99", "--main-gpu 0", "-fa", "-fa on", "--flash-attn auto", "--mlock",
                      "--no-mmap", "-b 512", "-sm none", "--jinja", "-no-cnv", "-nkvo", "-fa 1", "-fa false",
                      "--reasoning-format none", "--n-cpu-moe 9", "--cpu-moe", "-ot exps=CPU", "--draft-max 16", "-e",
                      "--color", "-tb 2", "--prio 2", "--poll 50", "--numa distribute", "--perf", "--no-perf",
                      "--log-disable", "--no-context-shift", "--swa-full", "-kvu", "--no-mmproj"]:
            self.assertEqual(self.text(*words.split(), "-p", PROMPT), want, words)
            p = self.good("run", "-n1", "-d", "none", *words.split(), "-p", PROMPT)
            self.assertIn("ratoon run: %s: " % words.split()[0], p.err)
        for words in ["-ngl 99", "--n-gpu-layers 99", "--gpu_layers 1"]:
            p = self.good("run", "-n1", "-d", "none", *words.split(), "-p", PROMPT)
            self.assertIn("ratoon run: --gpu-layers: the backend is the CPU, which runs all layers (--backend cuda: a GPU)\n",
                          p.err)
        self.wrong("run", "-ngl", "some", says="--gpu-layers is 'some', expected auto, all or a number of layers")
        self.wrong("serve", "--metrics", "--slots", "--props", "-cb", "--cont-batching", "--no-webui", "--timeout", "9",
                   "--chat-template-kwargs", '{"enable_thinking":false}', says="ratoon serve: --chat-template-kwargs: "
                   "whether a model reasons is set with --reasoning on|off of serve")
        for name in ["-i", "-cnv", "--conversation"]:
            self.wrong("run", name, says="ratoon run: %s: for a conversation use `ratoon chat`" % name)
            self.good("chat", "-q", name, "-n1", "Hello")

    def test_every_further_name_is_in_the_manual(self):
        page = self.good("help", "--man").out.replace("\\-", "-")
        missing = [name for name in ["--ctx-size", "--max-ctx", "--model-draft", "--repeat-penalty", "--flash-attn"]
                   if name not in page]
        self.assertEqual(missing, [])


class Words(Base):
    def setUp(self):
        self.dir = path("words")
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(os.path.join(self.dir, "org"))
        for name in ["copy.gguf", "copy", "org/name"]:
            os.symlink(DEMO, os.path.join(self.dir, name))

    def test_run(self):
        want = self.text("-m", DEMO, "-p", PROMPT)
        self.assertEqual(self.text("-m", DEMO, PROMPT), want)
        self.assertEqual(self.text(DEMO, PROMPT), want)
        self.assertEqual(self.text(PROMPT), want, "the demo model")
        self.assertEqual(self.text("def", "f(x):"), want, "words are joined")
        self.assertEqual(self.text("--", PROMPT), want)
        self.assertEqual(self.text(DEMO, stdin=PROMPT), want)
        self.assertEqual(self.text("copy.gguf", PROMPT, cwd=self.dir), want)
        self.assertEqual(self.text("copy", PROMPT, cwd=self.dir), want)
        self.assertEqual(self.text("org/name", PROMPT, cwd=self.dir), want)
        self.assertEqual(self.text("-m", "copy.gguf", "copy", cwd=self.dir), self.text("-p", "copy"))
        self.assertEqual(self.text("--", "copy", cwd=self.dir), self.text("-p", "copy"))
        self.assertEqual(self.text("and / or"), self.text("-p", "and / or"))
        for model in ["absent.gguf", "hf:org/absent", "org/absent", "org/absent:Q4_K_M", "org/absent@main:Q8_0"]:
            p = ratoon("run", "-q", model, PROMPT, cwd=self.dir, env={"HF_ENDPOINT": "http://127.0.0.1:9"})
            self.assertEqual((p.returncode, p.out), (1, ""), model)
            self.assertIn(model.replace("hf:", ""), p.err)
        self.wrong("run", "-p", "x", "y", says="unexpected argument 'y'")
        self.wrong("run", "-f", "x", "y", says="only one of")

    def test_models_that_are_not_here(self):
        def missing(*args, says):
            p = ratoon(*args, cwd=self.dir, env={"HF_ENDPOINT": "http://127.0.0.1:9"})
            self.assertEqual((p.returncode, p.out), (1, ""), p.err)
            self.assertIn(says, p.err)
        escape = "for a prompt that begins so, put -- in front\n"
        for word in ["qwen3:4b", "cpoy.ggfu", "/nonexistent/nope.bin", "./nope.bin"]:
            missing("run", word, "hi", says="%s: there is no such file, and no model of that name" % word)
            missing("chat", "-q", word, says=escape)
        missing("run", "copy.ggfu", "hi", says="did you mean copy.gguf?")
        missing("run", "and/or", says="ratoon pull and/or fetches it; " + escape)
        missing("chat", "-q", "1/2", says=escape)
        missing("run", "-q", DEMO, "hi", "-d", "org/absent", says="ratoon pull org/absent fetches it\n")
        for word in ["hf.co/org/absent:Q4_K_M", "https://huggingface.co/org/absent", "hf:org/absent"]:
            missing("run", "-q", word, "hi", says="org/absent")
            missing("run", "-q", "-m", word, "-p", "hi", says="org/absent")
            missing("pull", "-q", word, says="org/absent")
        for word in ["qwen3:4b", "a.b", "12:30", "f(x):y", "//x", "x.gif"]:
            self.assertEqual(self.text(word), self.text("--", word), word)
        for words in [["llama3.2"], ["llama3.2", "hi"]]:
            p = self.good("chat", "-n1", *words)
            self.assertIn("no model 'llama3.2' is on this machine (ratoon models): it is taken as the message", p.err)
        for words in [["Hello", "there"], ["hello there"], ["-m", DEMO, "llama3.2"], ["--", "llama3.2"]]:
            self.assertNotIn("no model", self.good("chat", "-n1", *words).err)

    def test_other_commands(self):
        self.assertEqual(self.good("chat", "-q", "-n4", "--temp", "0", DEMO, "Hello", "there").out,
                         self.good("chat", "-q", "-n4", "--temp", "0", "-p", "Hello there").out)
        self.assertIn("fits", self.good("plan", DEMO, "-d", "none").out)
        self.assertEqual(self.good("tokenize", "a b").out, self.good("tokenize", "-m", DEMO, "-p", "a b").out)
        ids = self.good("tokenize", DEMO, "a b").out.strip()
        self.assertEqual(self.good("detokenize", ids).out, "a b")
        self.assertEqual(self.good("detokenize", DEMO, ids).out, "a b")
        self.assertEqual(self.good("detokenize", DEMO, stdin=ids).out, "a b")
        file = write("text.txt", "def f(x):\n    return x\n" * 8)
        lines = [self.good("eval", "-q", *args).out.split("\n")[0]
                 for args in ([file], ["-f", file], [DEMO, file], ["-m", DEMO, file], [DEMO, "-f", file])]
        self.assertEqual(len(set(lines)), 1, lines)
        self.wrong("eval", DEMO, says="a text FILE is needed")
        self.wrong("verify", DEMO, says="--prompts FILE is needed")
        self.wrong("plan", DEMO, "x", says="unexpected argument 'x'")
        self.wrong("inspect", "a", "b", says="unexpected argument 'b'")


class Start(Base):
    def test_one_line(self):
        p = self.good("run", "-n1", "-c", "512", PROMPT)
        self.assertEqual(p.err, "ratoon run: ratoon-demo-q8_0 + drafter dflash-ratoon-demo-bf16, context 512 "
                         "(demo; give -m for your model)\n")
        self.assertEqual(self.good("run", "-n1", "-c", "512", "-m", DEMO, "-d", "none", PROMPT).err,
                         "ratoon run: ratoon-demo-q8_0, no drafter, context 512\n")
        more = self.good("run", "-n1", "-v", PROMPT).err
        for text in [os.path.dirname(DEMO), "8 layers", "block of 8", "found next to the model"]:
            self.assertIn(text, more)
        self.assertEqual(self.good("run", "-n1", "-q", PROMPT).err, "")
        for args in [["tokenize", "a"], ["detokenize", "3"], ["inspect", DEMO]]:
            self.assertEqual(self.good(*args).err, "", args)


class Environment(Base):
    def test_order(self):
        def tokens(*args, **env):
            return len(json.loads(self.good("run", "-q", "--json", "--ignore-eos", "-d", "none", "-p", PROMPT, *args,
                                            env=env).out)["tokens"])
        config = write("config", "n-predict = 5\n[run]\nn-predict = 6\n")
        self.assertEqual(tokens(RATOON_CONFIG=config), 6)
        self.assertEqual(tokens(RATOON_CONFIG=config, RATOON_N_PREDICT="4"), 4)
        self.assertEqual(tokens("-n3", RATOON_CONFIG=config, RATOON_N_PREDICT="4"), 3)
        self.assertEqual(tokens(RATOON_CONFIG=config, RATOON_N_PREDICT=""), 6, "empty is as good as unset")
        self.assertEqual(tokens("--config", config, RATOON_CONFIG="/nonexistent"), 6)
        self.assertEqual(tokens("-n2", RATOON_WHATEVER="1", RATOON_PORT="x"), 2, "no options of this command")

    def test_values(self):
        self.assertIn("ratoon-demo-q8_0.gguf", json.loads(self.good(
            "run", "-q", "--json", "-n1", PROMPT, env={"RATOON_MODEL": DEMO, "RATOON_DRAFT": "none"}).out)["model"])
        p = self.good("run", "-n1", PROMPT, env={"RATOON_QUIET": "true", "RATOON_JSON": "1"})
        self.assertEqual(p.err, "")
        json.loads(p.out)
        self.assertEqual(self.text("-p", PROMPT, env={"RATOON_STOP": "\n"}),
                         self.text("-p", PROMPT, "--stop", "\n"))
        self.assertEqual(self.text("-p", PROMPT, "--stop", "NEVER", env={"RATOON_STOP": "("}), self.text("-p", PROMPT))
        self.assertEqual(self.text("-p", PROMPT, env={"RATOON_FILE": "/nonexistent"}), self.text("-p", PROMPT))
        os.symlink(DEMO, path("home.gguf"))
        for env in [{"RATOON_MODEL": "~/home.gguf"}, {"RATOON_CONFIG": write("config", "model = '~/home.gguf'\n")}]:
            self.assertEqual(json.loads(self.good("run", "-q", "--json", "-n1", PROMPT, env=env).out)["model"],
                             "home.gguf")

    def test_wrong(self):
        self.wrong("run", "-p", "x", env={"RATOON_TEMP": "hot"}, says="ratoon run: RATOON_TEMP: --temp is 'hot', "
                   "expected a number from 0 to")
        self.wrong("run", "-p", "x", env={"RATOON_STATS": "yes"}, says="RATOON_STATS: --stats is 'yes', expected true")
        self.wrong("run", "-p", "x", env={"RATOON_CACHE_TYPE_K": "q4_2"}, says="did you mean q4_1?")
        self.assertEqual(ratoon("run", "--help", env={"RATOON_TEMP": "hot"}).returncode, 0)


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
