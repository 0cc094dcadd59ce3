#!/usr/bin/env python3
"""The command line as a user meets it: every command, its JSON fields, exit codes, and its messages about bad input.

    python3 tests/cli/test_cli.py [-v] [TestName.test_name ...]

RATOON and MAKE_TINY name the programs (default: ./ratoon and $BUILD/tests/make_tiny, BUILD being build). Tiny random models are made
in a temporary folder. The last line is 'N passed, N failed'."""
import csv
import fcntl
import json
import math
import os
import pty
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report
from scratch import RATOON, ROOT, TMP, asleep, interrupt, path, with_keys, with_template, write

MAKE_TINY = os.environ.get("MAKE_TINY", os.path.join(ROOT, os.environ.get("BUILD", "build"), "tests", "make_tiny"))
MODELS = ["qwen3", "qwen3moe-16", "qwen35-mtp", "llama", "small-qwen3", "small-qwen35", "dflash-qwen3",
          "dflash-llama", "small-dflash", "small-diffusion"]
LIMIT = 120                                               # seconds after which what is waited for will not come
os.environ["XDG_CONFIG_HOME"] = "/nonexistent"            # whoever runs the tests may have a configuration


def setUpModule():
    for name in MODELS:
        subprocess.run([MAKE_TINY, name, TMP], check=True)
    with open(path("prompts.jsonl"), "w") as f:
        f.write('{"id": "a/1", "prompt": "hello world"}\n\n{"id": "b/1", "prompt": "def f(x):\\n"}\n')


def floats(file):
    with open(file, "rb") as f:
        data = f.read()
    return struct.unpack("<%df" % (len(data) // 4), data)


def on_terminal(command):
    """What the program writes to a terminal, line ends as \\n."""
    master, slave = pty.openpty()
    p = subprocess.Popen([RATOON, *command], stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
    os.close(slave)
    out = b""
    try:
        while True:
            more = os.read(master, 65536)
            if not more:
                break
            out += more
    except OSError:                                        # this is how a terminal reports that it was closed
        pass
    os.close(master)
    assert p.wait(LIMIT) == 0, out
    return out.decode().replace("\r\n", "\n")


class Cli(unittest.TestCase):
    def ratoon(self, *args, stdin=b"", expect=0, timeout=600):
        p = subprocess.run([RATOON, *args], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           timeout=timeout)
        self.assertEqual(p.returncode, expect,
                         "ratoon %s\nstderr: %s" % (" ".join(args), p.stderr.decode("utf-8", "replace")))
        return p

    def says(self, *args, expect=1, names=(), stdin=b""):
        """Checks that it fails with one line on stderr (besides lines about found files) that names the mistake."""
        p = self.ratoon(*args, expect=expect, stdin=stdin)
        lines = p.stderr.decode().strip().split("\n")
        for word in names:
            self.assertIn(word, lines[-1])
        self.assertEqual(p.stdout, b"")
        return lines

    def outputs(self, command, *options):
        """Files named by options: a link remains one, a pipe is written to, and a file that cannot be written is
        reported before any work."""
        os.makedirs(path("out"), exist_ok=True)
        for option in options:
            for name in os.listdir(path("out")):
                os.remove(path("out/" + name))
            os.symlink("real", path("out/link"))
            self.says(*command(option, path("out/link")), names=["out/link", "a link to nothing"])
            write("out/real", b"old")
            os.chmod(path("out/real"), 0o604)
            self.ratoon(*command(option, path("out/link")))
            self.assertTrue(os.path.islink(path("out/link")))
            self.assertEqual(os.stat(path("out/real")).st_mode & 0o777, 0o604)
            self.assertEqual(sorted(os.listdir(path("out"))), ["link", "real"])
            with open(path("out/real"), "rb") as f:
                self.assertNotIn(f.read(), (b"", b"old"))
            os.mkfifo(path("out/pipe"))
            end = os.open(path("out/pipe"), os.O_RDONLY | os.O_NONBLOCK)
            self.ratoon(*command(option, path("out/pipe")))
            self.assertGreater(len(os.read(end, 65536)), 20)
            os.close(end)
            self.assertTrue(stat.S_ISFIFO(os.lstat(path("out/pipe")).st_mode))
            said = self.says(*command(option, TMP), names=[TMP])
            self.assertEqual(said, ["ratoon %s: %s: is a folder, expected a file" % (command()[0], TMP)])
            self.says(*command(option, path("absent/x")), names=["absent/x", "cannot be created"])

    def run_json(self, *args, **kw):
        return json.loads(self.ratoon("run", "--json", "-q", *args, **kw).stdout)


class Render(Cli):
    CASE = {"messages": [{"role": "user", "content": "hi <b>"}], "special_tokens": {"bos_token": "<s>"},
            "kwargs": {"x": 1.0}, "add_generation_prompt": True}

    def case(self, **more):
        return write("case.json", json.dumps({**self.CASE, **more}).encode())

    def test_template_file(self):
        t = write("t.jinja",
                  b"{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{{ x }}{% if "
                  b"add_generation_prompt %}>{% endif %}\n")
        r = self.ratoon("render", "--template", t, "--input", self.case())
        self.assertEqual((r.stdout, r.stderr), (b"<s>[user] hi <b>\n1.0>", b""))
        j = json.loads(self.ratoon("render", "--template", t, "--input", self.case(), "--json").stdout)
        self.assertEqual(j, {"text": "<s>[user] hi <b>\n1.0>", "client": [[10, 6], [17, 3]]})

    def test_clock(self):
        t = write("clock.jinja", b"{{ strftime_now('%d %b %Y') }}")
        r = self.ratoon("render", "--template", t, "--input", self.case(), "--template-now", "1795262400")
        self.assertEqual(r.stdout, b"21 Nov 2026")

    def test_lax(self):
        t = write("lax.jinja", b"[{{ a.b.c }}]")
        self.ratoon("render", "--template", t, "--input", self.case(), expect=1)
        self.assertEqual(self.ratoon("render", "--template", t, "--input", self.case(), "--template-lax").stdout, b"[]")

    def test_failures(self):
        p = self.ratoon("render", "--template", write("bad.jinja", b"one\n  {{ x | nosuch }}\n"), "--input",
                        self.case(), expect=1)
        self.assertEqual(p.stderr.decode().split("\n")[0].rpartition(": line")[2],
                         " 2, column 10: there is no filter \"nosuch\"")
        self.assertEqual(p.stderr.decode().split("\n")[1:3], ["    {{ x | nosuch }}", "           ^"])
        good = write("good.jinja", b"{{ 1 }}")
        self.says("render", "--template", good, expect=2, names=["--input"])
        self.says("render", "--template", path("absent"), "--input", self.case(), names=["absent"])
        self.says("render", "--template", good, "--input", write("x.json", b"[1"), names=["x.json", "JSON"])
        self.says("render", "--template", good, "--input", write("x.json", b"[1]"), names=["x.json", "not an object"])
        self.says("render", "--template", good, "--input", write("x.json", b"{}"), names=["no messages"])
        self.says("render", "--template", good, "--input", write("x.json", b'{"messages": 1}'),
                  names=["messages is not a list"])
        self.says("render", "-m", with_template(path("qwen3.gguf"), "bare.gguf", None), "--input", self.case(),
                  names=["bare.gguf", "no chat template"])


class Help(Cli):
    def test_help(self):
        out = self.ratoon("help").stdout.decode()
        for name in "run tokenize detokenize logits plan inspect verify doctor eval bench experts quantize render help version".split():
            self.assertIn("\n  " + name, out)
            text = self.ratoon(name, "--help").stdout.decode()
            self.assertIn("ratoon " + name, text)
            self.assertEqual(text, self.ratoon("help", name).stdout.decode())
        self.assertIn("--budget auto|N", self.ratoon("run", "--help").stdout.decode())
        self.assertEqual(self.ratoon("--help").stdout.decode(), out)

    def test_version(self):
        out = self.ratoon("version").stdout.decode()
        self.assertRegex(out, r"^ratoon \d+\.\d+\.\d+")
        self.assertEqual(self.ratoon("--version").stdout.decode(), out)

    def test_usage(self):
        self.ratoon(expect=2)
        self.says("frobnicate", expect=2, names=["frobnicate"])
        self.says("help", "frobnicate", expect=2, names=["frobnicate"])
        self.says("run", "--frobnicate", expect=2, names=["--frobnicate", "ratoon run --help"])
        self.says("run", "-m", expect=2, names=["-m"])
        self.says("run", "-p", "x", "word", expect=2, names=["word"])
        self.says("run", "--json=1", expect=2, names=["--json=1"])
        self.says("run", "--tree", "--chain", expect=2, names=["--tree"])
        self.says("run", "--grammar", "a", "--json-schema", "{}", expect=2, names=["--grammar", "--json-schema"])
        self.says("run", "--json-schema", "{}", "--ignore-eos", expect=2, names=["--ignore-eos"])
        self.says("inspect", expect=2, names=["FILE"])
        self.says("eval", expect=2, names=["FILE"])
        self.says("verify", expect=2, names=["--prompts"])
        self.says("experts", expect=2, names=["--prompts", "--hotness"])
        self.says("bench", expect=2, names=["--roofline", "--passes", "--prompt-tokens", "--prompts", "--serve"])
        self.says("bench", "--passes", "1", "--roofline", expect=2, names=["--passes"])
        self.says("bench", "--passes", "1", "--serve", "1", expect=2, names=["--passes"])
        self.says("logits", "-m", path("qwen3.gguf"), expect=2, names=["--tokens"])

    def test_numbers(self):
        for option, bad in [("--temp", "nan"), ("--temp", "inf"), ("--temp", "-1"), ("--temp", "warm"),
                            ("--top-p", "1.5"), ("--top-p", ""), ("-n", "0"),
                            ("-n", "1x"), ("-n", "99999999999999999999"), ("--top-k", "-1"), ("--seed", "-2"),
                            ("--seed", "18446744073709551616"),
                            ("--budget", "64"), ("--budget", "0"), ("--budget", "many"), ("--rep-window", "257"),
                            ("--rep-penalty", "0"), ("--ctx", "-2"),
                            ("--threads", "-2"), ("--stop", ""), ("--freq-penalty", "1e9")]:
            name = "--n-predict" if option == "-n" else option
            self.says("run", "-m", path("qwen3.gguf"), "-p", "x", option, bad, expect=2, names=[name])
        self.says("verify", "-m", path("qwen3.gguf"), "--prompts", path("prompts.jsonl"), "--budget", "8,99", expect=2,
                  names=["--budget", "99"])
        self.says("verify", "-m", path("qwen3.gguf"), "--prompts", path("prompts.jsonl"), "--modes", "hot", expect=2,
                  names=["--modes", "hot"])
        self.says("verify", "-m", path("qwen3.gguf"), "--prompts", path("prompts.jsonl"), "--threads", "0", expect=2,
                  names=["--threads"])
        self.says("bench", "-m", path("qwen3.gguf"), "--passes", "1,65", expect=2, names=["--passes"])


class Run(Cli):
    M = property(lambda self: ["-m", path("qwen3.gguf"), "-d", "none"])
    D = property(lambda self: ["-m", path("qwen3.gguf"), "-d", path("dflash-qwen3-llama.gguf")])

    def test_json(self):
        r = self.run_json(*self.M, "--ngram", "off", "-p", "hello world", "-n", "20", "--ignore-eos")
        self.assertEqual(set(r), {"text", "tokens", "finish_reason", "model", "draft", "sampling", "stats"})
        self.assertEqual(set(r["stats"]),
                         {"prompt_tokens", "generated", "passes", "drafted", "accepted", "accept_length", "prefill_s",
                          "decode_s", "pass_s", "tok_s", "experts_chosen", "experts_read", "experts_missed",
                          "experts_missed_bytes", "experts_wait_s", "expert_store", "blocks", "steps"})
        self.assertEqual((len(r["tokens"]), r["finish_reason"], r["model"], r["draft"]),
                         (20, "length", "qwen3.gguf", None))
        self.assertEqual((r["stats"]["generated"], r["stats"]["passes"], r["stats"]["drafted"]), (20, 20, 0))

    def test_text_is_the_same_everywhere(self):
        want = self.run_json(*self.M, "-p", "hello world", "-n", "24", "--temp", "0.8", "--seed", "3")
        for more in [["--budget", "22"], ["--budget", "7", "--chain"], ["--budget", "auto"], ["--threads", "1"],
                     ["--chunk", "2", "--budget", "5", "--tree"]]:
            got = self.run_json(*self.D, "-p", "hello world", "-n", "24", "--temp", "0.8", "--seed", "3", *more)
            self.assertEqual((got["tokens"], got["text"], got["finish_reason"]),
                             (want["tokens"], want["text"], want["finish_reason"]), more)
            self.assertEqual(got["draft"], "dflash-qwen3-llama.gguf")
        plain = self.ratoon("run", *self.D, "-p", "hello world", "-n", "24", "--temp", "0.8", "--seed",
                            "3").stdout.decode("utf-8")
        self.assertEqual(plain, want["text"])
        other = self.run_json(*self.M, "-p", "hello world", "-n", "24", "--temp", "0.8", "--seed", "4")
        self.assertNotEqual(other["tokens"], want["tokens"])

    def test_prompt_from_everywhere(self):
        want = self.run_json(*self.M, "-p", "hello world", "-n", "4")["tokens"]
        ids = self.ratoon("tokenize", "-m", path("qwen3.gguf"), "-p", "hello world").stdout.decode().strip()
        self.assertEqual(self.run_json(*self.M, "-n", "4", stdin=b"hello world")["tokens"], want)
        self.assertEqual(self.run_json(*self.M, "-n", "4", "-f", write("p.txt", b"hello world"))["tokens"], want)
        self.assertEqual(self.run_json(*self.M, "-n", "4", "--tokens", ids)["tokens"], want)
        self.assertEqual(self.run_json(*self.M, "-n", "4", "--tokens",
                                       "@" + write("ids.txt", ids.replace(",", "\n").encode()))["tokens"], want)
        self.says("run", *self.M, "-q", "-p", "a", "-f", "b", expect=2, names=["-p"])
        self.says("run", *self.M, "-q", "-f", path("absent.txt"), names=["absent.txt"])
        self.says("run", *self.M, "-q", "--tokens", "1,,2", expect=2, names=["--tokens"])
        self.says("run", *self.M, "-q", "--tokens", "999999", names=["999999"])

    def test_stop_strings(self):
        full = self.run_json(*self.M, "-p", "hello world", "-n", "40", "--ignore-eos")
        text = full["text"]
        clean = [i for i in range(4, len(text) - 6) if "\ufffd" not in text[i:i + 5]]
        stop = text[clean[len(clean) // 2]:][:5]
        for args in (self.M, [*self.D, "--budget", "22"]):
            r = self.run_json(*args, "-p", "hello world", "-n", "40", "--ignore-eos", "--stop", "never this", "--stop",
                              stop)
            self.assertEqual((r["text"], r["finish_reason"]), (text[:text.index(stop)], "stop_sequence"))
            self.assertEqual(r["tokens"], full["tokens"][:len(r["tokens"])])
            self.assertEqual(r["stats"]["generated"], len(r["tokens"]))
            out = self.ratoon("run", *args, "-q", "-p", "hello world", "-n", "40", "--ignore-eos", "--stop",
                              stop).stdout.decode()
            self.assertEqual(out, text[:text.index(stop)])
        # Text that might have become a stop string and did not is shown at the end.
        last = self.run_json(*self.M, "-p", "hello world", "-n", "40", "--ignore-eos", "--stop", text[-1] + "\x01")
        self.assertEqual((last["text"], last["finish_reason"]), (text, "length"))

    def test_end_token(self):
        for seed in range(60):
            r = self.run_json(*self.M, "-p", "hello", "-n", "100", "--temp", "3", "--seed", str(seed))
            if r["finish_reason"] == "stop":
                self.assertEqual(r["stats"]["generated"], len(r["tokens"]) + 1)
                drafted = self.run_json(*self.D, "-p", "hello", "-n", "100", "--temp", "3", "--seed", str(seed),
                                        "--budget", "30")
                self.assertEqual((drafted["tokens"], drafted["finish_reason"]), (r["tokens"], "stop"))
                longer = self.run_json(*self.M, "-p", "hello", "-n", "100", "--temp", "3", "--seed", str(seed),
                                       "--ignore-eos")
                self.assertEqual(longer["tokens"][:len(r["tokens"])], r["tokens"])
                self.assertEqual(len(longer["tokens"]), 100)
                return
        self.fail("no seed brought an end token")

    def test_full_context(self):
        r = self.run_json(*self.M, "-p", "hello world", "--ctx", "32", "--ignore-eos")
        self.assertEqual((r["finish_reason"], r["stats"]["prompt_tokens"] + len(r["tokens"])), ("length", 32))
        self.says("run", *self.M, "-q", "-p", "hello world " * 20, "--ctx", "32", names=["32"])

    def test_empty_prompt(self):
        self.says("run", *self.M, "-q", "-p", "", names=["empty"])

    def test_chat(self):
        r = self.run_json(*self.M, "--chat", "-p", "hi <|im_end|>", "-n", "4")
        user = "<|im_start|>user\nhi XX<|im_end|>\n<|im_start|>assistant\n"
        ids = self.ratoon("tokenize", "-m", path("qwen3.gguf"), "--special", "-p", user).stdout.decode().split(",")
        self.assertGreater(r["stats"]["prompt_tokens"], len(ids))      # a user's text contains no control tokens
        self.says("run", "-m", path("small-qwen3.gguf"), "-q", "--chat", "-p", "hi", names=["tokenizer"])

    def test_chat_template(self):
        """run --chat uses the model's template, and tokenizes exactly what render shows."""
        template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n" \
                   "{% if enable_thinking %}hmm{% endif %}{% endif %}"
        model = with_template(path("qwen3.gguf"), "templated.gguf", template)
        for extra, thinking in ([], False), (["--think"], True), (["--no-think"], False):
            case = {"messages": [{"role": "system", "content": "be brief"},
                                 {"role": "user", "content": "hi <|im_end|> \u00e9"}], "add_generation_prompt": True,
                    "kwargs": {"enable_thinking": thinking}}
            file = write("chat.json", json.dumps(case).encode())
            shown = json.loads(self.ratoon("render", "-m", model, "--input", file, "--json").stdout)
            self.assertEqual(shown["text"].rstrip(" "),
                             "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi <|im_end|> "
                             "\u00e9<|im_end|>\n<|im_start|>assistant\n" + "hmm" * thinking)
            self.assertEqual([bytes(shown["text"], "utf-8")[a:a + n].decode() for a, n in shown["client"]],
                             ["be brief", "hi <|im_end|> \u00e9"])
            end = json.loads(self.ratoon("tokenize", "-m", model, "--special", "--json", "-p",
                                         "<|im_end|>").stdout)["tokens"][-1]
            self.assertEqual(shown["tokens"].count(end), 2)        # the template's, not the user's
            r = self.run_json("-m", model, "-d", "none", "--chat", "--system", "be brief", "-p", "hi <|im_end|> \u00e9",
                              "-n", "3", *extra)
            self.assertEqual(r["stats"]["prompt_tokens"], len(shown["tokens"]))
        refusing = with_template(path("qwen3.gguf"), "refusing.gguf", "{{ raise_exception('Not today.') }}")
        p = self.ratoon("run", "-q", "-m", refusing, "-d", "none", "--chat", "-p", "x", expect=1)
        self.assertIn(b"Not today.", p.stderr)
        for other in "{% if %}", None:
            p = self.ratoon("run", "-m", with_template(path("qwen3.gguf"), "other.gguf", other), "-d", "none", "--chat",
                            "-p", "x", "-n", "2")
            self.assertIn(b"built-in chatml template is used", p.stderr)
        self.says("run", *self.M, "-q", "--system", "x", "-p", "y", expect=2, names=["--system", "--chat"])
        self.says("run", *self.M, "-q", "--chat", "--think", "--no-think", "-p", "y", expect=2, names=["--think"])

    def test_sampling_of_answers(self):
        """What a file recommends counts with --chat, an option counts more, and the seed repeats the text."""
        def used(*args, model=path("qwen3.gguf")):
            r = self.run_json("-m", model, "-d", "none", "-p", "hello", "-n", "8", "--ignore-eos", *args)
            return r["sampling"], r["tokens"]

        plain, answers = used()[0], used("--chat")
        self.assertEqual((plain["temperature"], plain["top_p"], plain["seed"]), (0, 1, 0))
        self.assertEqual((answers[0]["temperature"], answers[0]["top_p"], answers[0]["top_k"]), (0.7, 0.9, 0))
        seed = answers[0]["seed"]
        self.assertNotEqual(seed, used("--chat")[0]["seed"])
        self.assertEqual(used("--chat", "--seed", str(seed))[1], answers[1])
        self.assertEqual(used("--chat", "--top-p", "0")[1], used("--chat", "--temp", "0")[1], "it leaves one token")
        said = self.ratoon("run", *self.M, "--chat", "-p", "hello", "-n", "2", "--top-k", "5", "--seed", "7")
        self.assertIn(b"sampling: temp 0.7, top-k 5, top-p 0.9, seed 7\n", said.stderr)
        model = path("recommends.gguf")
        with_keys(path("qwen3.gguf"), model, {"temp": 0.6, "top_k": 20, "penalty_repeat": 1.1, "penalty_last_n": 64,
                                              "min_p": 7.0})
        file = used("--chat", "--top-k", "3", model=model)[0]
        self.assertEqual([file[k] for k in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty",
                                            "rep_window")], [0.6, 0.9, 3, 0, 1.1, 64])
        self.assertEqual(used("--chat", "--temp", "0", model=model)[0]["temperature"], 0)
        self.assertEqual(used(model=model)[0], plain)
        warned = self.ratoon("run", "-m", model, "-d", "none", "-p", "x", "-n", "1").stderr
        self.assertRegex(warned, rb"warning: .*key 'general.sampling.min_p' is 7, expected .* it is ignored\n")
        with_keys(path("qwen3.gguf"), model, {"penalty_repeat": 1.1, "penalty_last_n": 0})
        self.assertEqual(used("--chat", model=model)[0]["repetition_penalty"], 1)

    def test_generation_config(self):
        """An option counts more, and so does the model file; what was taken from where is said."""
        shutil.copy(path("qwen3.gguf"), os.path.join(os.makedirs(path("publisher")) or path("publisher"), "m.gguf"))
        model, config = path("publisher/m.gguf"), path("publisher/generation_config.json")
        keys = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

        def used(*args, model=model, auto="auto"):
            p = self.ratoon("run", "--json", "-m", model, "-d", "none", "-p", "hello", "-n", "1", "--chat",
                            "--generation-config", auto, *args)
            return [json.loads(p.stdout)["sampling"][k] for k in keys], p.stderr.decode()

        got, said = used()
        self.assertEqual(got, [0.7, 0.9, 0, 0, 1])
        self.assertIn("there is no generation_config.json beside %s\n" % model, said)
        write("publisher/generation_config.json", json.dumps(
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05,
             "eos_token_id": [1, 2]}))
        self.assertEqual(used("--top-k", "3")[0], [0.6, 0.95, 3, 0, 1.05])
        self.assertIn("%s: temp 0.6, top-p 0.95, rep-penalty 1.05\n" % config, used("--top-k", "3")[1])
        plain = self.run_json("-m", model, "-d", "none", "-p", "hello", "-n", "1", "--chat")["sampling"]
        self.assertEqual([plain[k] for k in keys], [0.7, 0.9, 0, 0, 1], "only if it is asked for")
        with_keys(path("qwen3.gguf"), path("publisher/own.gguf"), {"temp": 0.4, "penalty_last_n": 0})
        self.assertEqual(used(model=path("publisher/own.gguf"))[0], [0.4, 0.95, 20, 0, 1])
        os.makedirs(path("hub/snapshots/c0/Q8_0"))
        shutil.copy(model, path("hub/snapshots/c0/Q8_0"))
        shutil.copy(config, path("hub/snapshots/c0"))
        self.assertEqual(used(model=path("hub/snapshots/c0/Q8_0/m.gguf"))[0][0], 0.6)
        odd = write("odd.json", '{"do_sample": false, "top_k": -1, "top_p": "most", "min_p": null, "temperature": 1}')
        got, said = used(auto=odd)
        self.assertEqual(got, [0, 0.9, 0, 0, 1])
        for key, what in (("top_k", "whole number from 0"), ("top_p", "number from 1e-06 to 1")):
            self.assertRegex(said, 'warning: .*odd.json: "%s" is not a %s.*; it is ignored' % (key, what))
        for text, words in (("[1]", "is not a JSON object"), ("{", "line 1")):
            p = self.ratoon("run", "-m", model, "-d", "none", "-p", "x", "--chat", "--generation-config",
                            write("bad.json", text), expect=1)
            self.assertIn(words, p.stderr.decode())
        p = self.ratoon("run", "-m", model, "-p", "x", "--generation-config", "auto", expect=2)
        self.assertIn(b"--generation-config needs --chat", p.stderr)

    def test_grammar(self):
        grammar = write("yes.gbnf", b'root ::= "yes" | "no, " [a-z]{3,7} "."')
        want = self.run_json(*self.M, "-p", "hello", "--temp", "1", "--seed", "5", "--grammar", grammar)
        inline = self.run_json(*self.M, "-p", "hello", "--temp", "1", "--seed", "5", "--grammar",
                               'root ::= "yes" | "no, " [a-z]{3,7} "."')
        self.assertEqual(inline["text"], want["text"])
        self.says("run", *self.M, "-q", "-p", "x", "--grammar", 'root ::= "a" nosuch', names=["--grammar:1:14", "defined nowhere"])
        self.assertRegex(want["text"], r"^(yes|no, [a-z]{3,7}\.)$")
        self.assertEqual((want["finish_reason"], want["stats"]["generated"]), ("stop", len(want["tokens"])))
        got = self.run_json(*self.D, "-p", "hello", "--temp", "1", "--seed", "5", "--grammar", grammar, "--budget",
                            "30")
        self.assertEqual((got["tokens"], got["finish_reason"]), (want["tokens"], "stop"))
        schema = '{"type": "array", "items": {"type": "integer", "minimum": 10, "maximum": 99}, "minItems": 3, "maxItems": 5}'
        for args in (["--json-schema", schema], ["--json-schema", write("s.json", schema.encode())]):
            d = json.loads(self.run_json(*self.M, "-p", "hello", "--temp", "1", *args)["text"])
            self.assertTrue(3 <= len(d) <= 5 and all(10 <= x <= 99 for x in d), d)
        cut = self.run_json(*self.M, "-p", "hello", "-n", "2", "--json-schema", schema)
        self.assertEqual((cut["finish_reason"], len(cut["tokens"])), ("length", 2))

    def test_bad_grammar(self):
        self.says("run", *self.M, "-q", "-p", "x", "--grammar", write("bad.gbnf", b'root ::= "a"\n | b'),
                  names=["bad.gbnf:2:4", "defined nowhere"])
        self.says("run", *self.M, "-q", "-p", "x", "--grammar", path("absent.gbnf"), names=["absent.gbnf"])
        self.says("run", *self.M, "-q", "-p", "x", "--json-schema", '{"properties": {"a": {"not": {}}}}',
                  names=["--json-schema: #/properties/a/not", "'not'"])
        self.says("run", *self.M, "-q", "-p", "x", "--json-schema", write("bad.json", b"{"),
                  names=["bad.json: JSON line 1"])
        self.says("run", "-m", path("small-qwen3.gguf"), "-d", "none", "-q", "--tokens", "1,2", "--json-schema", "{}",
                  names=["tokenizer"])

    def test_without_tokenizer(self):
        r = self.run_json("-m", path("small-qwen3.gguf"), "-d", "none", "--tokens", "1,2,3", "-n", "5")
        self.assertEqual((r["text"], len(r["tokens"])), ("", 5))
        self.says("run", "-m", path("small-qwen3.gguf"), "-d", "none", "-q", "-p", "x", names=["tokenizer"])

    def test_bad_files(self):
        self.says("run", "-q", "-m", path("absent.gguf"), "-d", "none", "-p", "x", names=["absent.gguf"])
        self.says("run", "-q", "-m", write("bad.gguf", b"GGUF\x03\0\0\0" + b"\xff" * 40), "-d", "none", "-p", "x",
                  names=["bad.gguf"])
        self.says("run", "-q", "-m", TMP, "-d", "none", "-p", "x", names=[TMP])
        self.says("run", "-q", "-m", path("qwen3.gguf"), "-d", path("absent.gguf"), "-p", "x", names=["absent.gguf"])
        self.says("run", "-q", "-m", path("qwen3.gguf"), "-d", path("dflash-llama-llama.gguf"), "-p", "x",
                  names=["dflash-llama-llama.gguf"])
        self.says("run", "-q", "-m", path("qwen3.gguf"), "-d", path("small-dflash-luce.gguf"), "-p", "x",
                  names=["small-dflash-luce.gguf"])
        self.says("run", "-q", "-m", path("qwen3.gguf"), "-d", "none", "-p", "x", "--backend", "abacus",
                  names=["abacus"])
        self.says("run", "-q", "-m", path("qwen3.gguf"), "-d", "none", "-p", "x", "-ctk", "q4_k",
                  expect=2, names=["--cache-type-k", "q4_k", "tq3_0"])
        window = lambda *more: self.ratoon("run", "-m", path("qwen3.gguf"), "-d", "none", "-p",
                                           "a longer prompt than the window", "-n", "24", *more)
        plain, wide, narrow = window(), window("--fa-window", "4000"), window("--fa-window", "3")
        self.assertEqual(plain.stdout, wide.stdout)
        self.assertNotEqual(plain.stdout, narrow.stdout)
        self.assertIn("attention looks back 3 positions only", narrow.stderr.decode())
        self.assertNotIn("looks back", plain.stderr.decode())
        self.says("plan", "-q", "-m", path("small-qwen3.gguf"), "-d", "none", "--cache-type-v", "tq3_0",
                  names=["small-qwen3.gguf", "values", "TQ3_0", "multiple of 128"])

    def test_neighbourhood(self):
        folder = path("pair")
        os.makedirs(os.path.join(folder, "draft"), exist_ok=True)
        model = shutil.copy(path("qwen3.gguf"), folder)
        shutil.copy(path("dflash-qwen3-llama.gguf"), os.path.join(folder, "draft", "any.gguf"))
        p = self.ratoon("run", "-m", model, "-p", "hello", "-n", "2", "--json", "-v")
        self.assertEqual(json.loads(p.stdout)["draft"], "any.gguf")
        self.assertIn(b"ratoon run: qwen3 + drafter any, context ", p.stderr)
        self.assertIn(b"using drafter draft/any.gguf, found next to the model (-d none turns it off)", p.stderr)
        shutil.copy(path("dflash-qwen3-luce.gguf"), os.path.join(folder, "dflash-qwen3-f32.gguf"))
        shutil.copy(path("dflash-llama-luce.gguf"), os.path.join(folder, "dflash-another.gguf"))
        self.assertEqual(self.run_json("-m", model, "-p", "hello", "-n", "2")["draft"], "dflash-qwen3-f32.gguf")
        self.assertIsNone(self.run_json("-m", model, "-d", "none", "-p", "hello", "-n", "2")["draft"])
        os.remove(os.path.join(folder, "dflash-qwen3-f32.gguf"))
        self.assertEqual(self.run_json("-m", model, "-p", "hello", "-n", "2")["draft"], "any.gguf")
        # a drafter that does not fit is ignored, with a message
        shutil.rmtree(os.path.join(folder, "draft"))
        p = self.ratoon("run", "-m", model, "-p", "hello", "-n", "2", "--json")
        self.assertIsNone(json.loads(p.stdout)["draft"])
        self.assertIn(b"ignoring drafter", p.stderr)

    def test_stats(self):
        err = self.ratoon("run", *self.D, "-p", "hello", "-n", "8", "--stats", "--budget", "8", "-v").stderr.decode()
        self.assertIn("accept length", err)
        self.assertIn("speculation is on", err)
        self.assertRegex(err, r"speculation overhead \(drafting, trees, acceptance\): \d+\.\d % of decoding")
        self.assertIn("sampling: temp 0 (greedy)\n", err)
        self.assertEqual(self.ratoon("run", *self.M, "-p", "hello", "-n", "2", "-c", "64").stderr.decode(),
                         "ratoon run: qwen3, no drafter, context 64\n")
        self.assertIn("drafter: none", self.ratoon("run", *self.M, "-p", "hello", "-n", "2", "-v").stderr.decode())

    def test_sources(self):
        os.makedirs(path("alone"))                         # without the drafters of others
        mtp = ["-m", shutil.copy(path("qwen35-mtp.gguf"), path("alone"))]
        plain = self.run_json(*mtp, "-d", "none", "--ngram", "off", "-p", "hello hello hello hello", "-n", "40",
                              "--ignore-eos")
        for more in [[], ["-d", "mtp", "--budget", "9"], ["-d", "none", "--budget", "5"],
                     ["-d", "mtp", "--draft-block", "7", "--ngram", "off", "--budget", "12"]]:
            got = self.run_json(*mtp, "-p", "hello hello hello hello", "-n", "40", "--ignore-eos", *more)
            self.assertEqual((got["tokens"], got["draft"]), (plain["tokens"], None if "none" in more else "mtp"), more)
        err = self.ratoon("run", *mtp, "-d", "mtp", "--budget", "9", "-p", "hello hello hello hello", "-n", "20",
                          "--stats", "-v").stderr.decode()
        for word in ("+ its own MTP layer, context", "speculation is on: drafter of the model itself, mtp", "from the MTP layer"):
            self.assertIn(word, err)
        self.says("run", "-m", path("qwen3.gguf"), "-d", "mtp", "-p", "x", names=["qwen3.gguf", "MTP"])
        self.says("run", "-m", path("qwen3.gguf"), "-p", "x", "--ngram", "maybe", expect=2, names=["--ngram", "maybe"])
        self.says("run", "-m", path("qwen3.gguf"), "-p", "x", "--draft-block", "34", expect=2, names=["--draft-block"])
        out = self.ratoon("verify", *mtp, "-d", "none", "--prompts", path("prompts.jsonl"), "-n", "10", "--budget",
                          "8,auto", "--threads", "1").stdout.decode()
        self.assertIn("0 differ", out.strip().split("\n")[-1])

    def test_terminal(self):
        """On a terminal a text cannot set the title, colours or the cursor; a file gets every byte."""
        evil = "a\x1b]0;pwned\x07\x7f\x9b31m\tb\n\u00e9"
        shown = "a?]0;pwned???31m\tb\n\u00e9"
        escaped = "".join("\\x%02X" % ord(c) if ord(c) < 160 else c for c in evil)
        grammar = write("evil.gbnf", 'root ::= "%s"\n' % escaped)
        text = write("evil.jinja", evil)
        case = write("case.json", b'{"messages": [{"role": "user", "content": "x"}]}')
        ids = self.ratoon("tokenize", "-m", path("qwen3.gguf"), "-p", evil).stdout.decode().strip()
        run = ["run", *self.M, "-q", "-p", "x", "--grammar", grammar]
        render = ["render", "--template", text, "--input", case]
        detokenize = ["detokenize", "-m", path("qwen3.gguf"), "--tokens", ids]
        inspect = ["inspect", with_template(path("qwen3.gguf"), "evil.gguf", evil)]
        for command in run, [*run, "--json"], render, [*render, "--json"], detokenize, inspect:
            raw = self.ratoon(*command).stdout.decode()
            seen = on_terminal(command)
            for bad in "\x1b\x07\x7f\x9b":
                self.assertNotIn(bad, seen, command)
            if "--json" in command:
                self.assertEqual(json.loads(raw)["text"], evil)
                self.assertIn("\\u001b]0;pwned", seen.lower())
            elif command[0] == "inspect":
                self.assertIn("a?]0;pwned???31m?b", seen)
            else:
                self.assertEqual(raw, evil)
                self.assertEqual(seen.rstrip("\n"), shown)

    def start(self, *args):
        """A run that writes more than its pipe holds, so that it cannot end before its reader wants it to."""
        return subprocess.Popen([RATOON, "run", *self.M, "-p", "hello", "--ignore-eos", *args], pipesize=4096,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def test_interrupt_once(self):
        p = self.start()
        first = p.stdout.read(1)
        p.send_signal(signal.SIGINT)
        rest, err = p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 130, err)
        self.assertIn(b"cancelled", err)
        (first + rest).decode("utf-8")

    def test_interrupt_once_json(self):
        p = self.start("--json", "--ctx", "32768")
        while not p.stderr.readline().startswith(b"ratoon run: qwen3"):    # the model is loaded
            self.assertIsNone(p.poll())
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 130, err)
        self.assertEqual(json.loads(out)["finish_reason"], "cancelled")

    def test_interrupt_twice(self):
        p = self.start("-q")
        p.stdout.read(1)
        end = time.monotonic() + LIMIT
        while not (asleep(p.pid) and asleep(p.pid) and asleep(p.pid)) and time.monotonic() < end:
            time.sleep(0.05)                       # until the pipe is full and the program waits in write
        interrupt(p)
        self.assertIsNone(p.poll(), "one ends the text only")
        interrupt(p)
        self.assertEqual(p.wait(timeout=LIMIT), 130)
        p.stdout.close()
        p.stderr.close()

    def test_closed_output(self):
        """The reader goes: the program ends as `yes | head` does, and says nothing."""
        p = self.start("-q")
        p.stdout.read(1)
        p.stdout.close()
        err = p.stderr.read()
        self.assertEqual((p.wait(timeout=LIMIT), err), (-signal.SIGPIPE, b""))
        p.stderr.close()
        for args in (["help", "--man"], ["inspect", path("qwen3.gguf")], ["run", *self.M, "-q", "-p", "x", "--json"],
                     ["verify", *self.D, "-q", "--prompts", path("prompts.jsonl"), "-n", "4", "--budget", "2"]):
            r, w = os.pipe()
            os.close(r)
            p = subprocess.run([RATOON, *args], stdout=w, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=LIMIT)
            os.close(w)
            self.assertEqual((p.returncode, p.stderr), (-signal.SIGPIPE, b""), args)

    def test_full_disk(self):
        with open("/dev/full", "wb") as full:
            for args in (["run", *self.M, "-q", "-p", "x", "-n", "2"],
                         ["run", *self.M, "-q", "-p", "x", "-n", "2", "--json"], ["help"],
                         ["inspect", path("qwen3.gguf")]):
                p = subprocess.run([RATOON, *args], stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
                self.assertEqual(p.returncode, 1, args)
                self.assertIn(b"standard output", p.stderr)

    def test_bus_error(self):
        p = self.start("-q")
        p.stdout.read(1)
        p.send_signal(signal.SIGBUS)
        _, err = p.communicate(timeout=LIMIT)
        self.assertEqual((p.returncode, err.count(b"\n")), (1, 1))
        self.assertIn(b"cut short", err)


class Text(Cli):
    def test_round_trip(self):
        text = "Grüße,\n\tworld \U0001f600 <|im_end|>"
        ids = self.ratoon("tokenize", "-m", path("qwen3.gguf"), "-p", text).stdout.decode().strip()
        self.assertEqual(self.ratoon("detokenize", "-m", path("qwen3.gguf"), "--tokens", ids).stdout.decode(), text)
        self.assertEqual(self.ratoon("detokenize", "-m", path("qwen3.gguf"), stdin=ids.encode()).stdout.decode(), text)
        j = json.loads(self.ratoon("tokenize", "-m", path("qwen3.gguf"), "--json", stdin=text.encode()).stdout)
        self.assertEqual(j, {"tokens": [int(i) for i in ids.split(",")]})
        special = json.loads(self.ratoon("tokenize", "-m", path("qwen3.gguf"), "--json", "--special", "-p",
                                         text).stdout)["tokens"]
        self.assertLess(len(special), len(j["tokens"]))
        self.assertEqual(self.ratoon("tokenize", "-m", path("qwen3.gguf"), "-p", "").stdout, b"\n")

    def test_bad(self):
        self.says("tokenize", "-m", path("small-qwen3.gguf"), "-p", "x", names=["tokenizer"])
        self.says("tokenize", "-m", path("absent.gguf"), "-p", "x", names=["absent.gguf"])
        self.says("detokenize", "-m", path("qwen3.gguf"), "--tokens", "1,2,x", names=["token ids", "'x'"])
        self.says("detokenize", "-m", path("qwen3.gguf"), "--tokens", "99999", names=["99999"])


class Logits(Cli):
    M = property(lambda self: ["-q", "-m", path("small-qwen3.gguf")])

    def test_chain_and_tree(self):
        chain, tree, one = path("chain.f32"), path("tree.f32"), path("one.f32")
        self.ratoon("logits", *self.M, "--tokens", "1,2,3", "--out", chain)
        self.ratoon("logits", *self.M, "--tokens", "1,2,3,5", "--parents", "-1,0,1,0", "--out", tree)
        a, b = floats(chain), floats(tree)
        vocab = len(a) // 3
        self.assertEqual((vocab, len(b)), (96, 4 * 96))
        self.assertEqual(a, b[:3 * vocab])                             # bit for bit
        self.ratoon("logits", *self.M, "--prefix", "1", "--tokens", "5", "--out", one)
        self.assertEqual(floats(one), b[3 * vocab:])
        self.assertTrue(all(math.isfinite(x) for x in a))

    def test_taps(self):
        self.ratoon("logits", *self.M, "--tokens", "@" + write("t.txt", b"1 2\n3\n"), "--taps", "0,2", "--out",
                    path("x.f32"))
        self.assertEqual(len(floats(path("x.f32.taps"))), 3 * 2 * 64)

    def test_drafter(self):
        a, b = path("a.f32"), path("b.f32")
        for layout, out in (("luce", a), ("llama", b)):
            self.ratoon("logits", "-q", "-m", path("qwen3.gguf"), "-d", path("dflash-qwen3-%s.gguf" % layout),
                        "--prefix", "7,8,9", "--tokens", "1", "--out", out)
        self.assertEqual(len(floats(a)), 16 * 2048)
        self.assertEqual(floats(a), floats(b))
        self.says("logits", "-q", "-m", path("qwen3.gguf"), "-d", path("dflash-qwen3-luce.gguf"), "--tokens", "1,2",
                  "--out", a, expect=2, names=["anchor"])

    def test_bad(self):
        out = path("y.f32")
        self.says("logits", *self.M, "--tokens", "1,2", "--parents", "-1", "--out", out, expect=2, names=["--parents"])
        self.says("logits", *self.M, "--tokens", "1,2", "--parents", "-1,1", "--out", out, names=["parent"])
        self.says("logits", *self.M, "--tokens", "96", "--out", out, names=["96"])
        self.says("logits", *self.M, "--tokens", "1", "--taps", "77", "--out", out, names=["77"])
        self.says("logits", *self.M, "--tokens", "1", "--out", path("no/where.f32"), names=["no/where.f32"])
        self.assertFalse(os.path.exists(out))

    def test_canvas(self):
        """The logits of transformers (tests/oracle), of a block's first step and of one conditioned on it."""
        cases, model = [], ["-q", "-m", path("small-diffusion.gguf")]
        with open(os.path.join(ROOT, "tests", "oracle", "expect", "small-diffusion.txt")) as f:
            for line in f:
                key, *words = line.split()
                if key == "case":
                    cases.append({"name": words[0], "rows": []})
                elif key == "row":
                    cases[-1]["rows"].append(words)
                elif key in ("prefix", "tokens", "before"):
                    cases[-1][key] = ",".join(words[1:])
                elif key == "cooled":
                    cases[-1][key] = words[0]
        first, again = [c for c in cases if c["name"] in ("canvas", "again")]
        for case, more, tolerance in ((first, [], 1e-4), (again, ["--before", again["before"]], 4e-4)):
            out = path(case["name"] + ".f32")
            ask = ["logits", *model, "--canvas", "--prefix", case["prefix"], "--tokens", case["tokens"], *more, "--out"]
            self.ratoon(*ask, out)
            x = floats(out)
            self.assertEqual((len(x), len(case["rows"])), (32 * 96, 32))
            for row, _, most, _, *pairs in case["rows"]:
                for i, value in zip(pairs[::2], pairs[1::2]):
                    self.assertLess(abs(x[int(row) * 96 + int(i)] - float(value)), tolerance * float(most), (row, i))
        self.assertEqual(again["cooled"], "0.8")                       # as the file has it: no need to say so
        same, other = path("same.f32"), path("other.f32")
        self.ratoon(*ask, same, "--temp", "0.8")
        self.assertEqual(floats(same), x)
        self.ratoon(*ask, other, "--temp", "0.5")
        self.assertNotEqual(floats(other), x)
        out = path("bad.f32")
        tokens = ["logits", *model, "--tokens", again["tokens"], "--out", out]
        self.says(*tokens, "--before", "1", expect=2, names=["--before", "--canvas"])
        self.says(*tokens, "--canvas", "--temp", "1", expect=2, names=["--temp", "--before"])
        self.says(*tokens, "--canvas", "--before", "1,2", expect=2, names=["--before: 2 numbers for 32 tokens"])
        self.says(*tokens, "--canvas", "--taps", "1", expect=2, names=["--canvas", "--taps"])
        self.says("logits", *model, "--canvas", "--tokens", "1,2,3", "--out", out, names=["3 tokens, expected 32"])
        self.says(*tokens, "--canvas", "--prefix", "1,2", "--ctx", "2", names=["prefix of 2", "holds 2"])
        self.says(*tokens, "--canvas", "--before", again["before"].replace("9,", "96,", 1), names=["before 0 is 96", "95"])
        self.says("logits", *self.M, "--canvas", "--tokens", "1", "--out", out, names=["denoising"])
        self.assertFalse(os.path.exists(out))

    def test_input_is_no_output(self):
        """Whoever names the model's file for the results by a slip keeps the model."""
        with open(path("small-qwen3.gguf"), "rb") as f:
            before = f.read()
        model, prompts = write("kept.gguf", before), write("kept.jsonl", b'{"prompt": "a"}\n')
        link = path("link.gguf")
        os.symlink(model, link)
        for out in model, link:
            self.says("logits", "-q", "-m", model, "--tokens", "1", "--out", out, names=[out, "input"])
        bench = ["bench", "-q", "-m", model, "-d", "none", "--prompts", prompts, "-n", "2", "--pairs", "1"]
        for option, out in (("--csv", model), ("--svg", link), ("--csv", prompts)):
            self.says(*bench, option, out, names=[out, "input"])
        with open(model, "rb") as f:
            self.assertEqual(f.read(), before)

    def test_outputs(self):
        self.outputs(lambda *o: ["logits", *self.M, "--tokens", "1,2", *o], "--out")
        os.makedirs(path("half.f32.taps"))
        out = path("half.f32")
        self.says("logits", *self.M, "--tokens", "1", "--taps", "0", "--out", out, names=["half.f32.taps: is a folder"])
        self.assertFalse(os.path.exists(out))


class Files(Cli):
    def test_inspect(self):
        out = self.ratoon("inspect", path("qwen3.gguf")).stdout.decode()
        self.assertIn("token_embd.weight", out)
        self.assertIn("general.architecture (string) = \"qwen3\"", out)
        j = json.loads(self.ratoon("inspect", "--json", path("qwen3.gguf")).stdout)
        self.assertEqual(j["format"], "gguf")
        self.assertEqual(j["keys"]["qwen3.block_count"], {"type": "u32", "value": 4})
        self.assertEqual(j["keys"]["general.architecture"], {"type": "string", "value": "qwen3"})
        self.assertEqual(j["keys"]["qwen3.attention.layer_norm_rms_epsilon"], {"type": "f32", "value": 1e-06})
        self.assertIs(j["keys"]["tokenizer.ggml.add_bos_token"]["value"], False)
        tokens = j["keys"]["tokenizer.ggml.tokens"]
        self.assertEqual((tokens["type"], tokens["items"], tokens["length"], len(tokens["value"]), tokens["value"][0]),
                         ("array", "string", 2048, 32, "Ā"))
        t = {t["name"]: t for t in j["tensors"]}["token_embd.weight"]
        self.assertEqual((t["type"], t["shape"], t["bytes"]), ("F32", [256, 2048], 256 * 2048 * 4))
        j = json.loads(self.ratoon("inspect", "--json", path("dflash-qwen3-hf")).stdout)
        self.assertEqual((j["format"], j["keys"]["block_size"]), ("safetensors", 16))
        self.says("inspect", path("absent.gguf"), names=["absent.gguf"])
        self.says("inspect", write("junk.gguf", b"not a model file"), names=["junk.gguf"])

    def test_check_tensors(self):
        out = self.ratoon("inspect", "--check-tensors", path("small-qwen3.gguf")).stdout.decode()
        self.assertIn("0 with values that are not finite", out)
        with open(path("small-qwen3.gguf"), "rb") as f:
            data = bytearray(f.read())
        data[-4:] = struct.pack("<f", math.nan)  # the last value of the last tensor, or padding behind it
        while struct.unpack("<f", data[-8:-4])[0] == 0:
            del data[-4:]
        data[-8:-4] = struct.pack("<f", math.inf)
        broken = write("broken.gguf", bytes(data))
        p = self.ratoon("inspect", "--check-tensors", broken, expect=1)
        self.assertIn(b"NOT FINITE", p.stdout)
        self.assertIn(b"broken.gguf: tensor", p.stderr)
        j = json.loads(self.ratoon("inspect", "--check-tensors", "--json", broken, expect=1).stdout)
        self.assertGreater(sum(t["not_finite"] for t in j["tensors"]), 0)

    def test_check_block_scales(self):
        subprocess.run([MAKE_TINY, "llama:Q8_0", TMP], check=True)
        j = json.loads(self.ratoon("inspect", "--json", path("llama-Q8_0.gguf")).stdout)
        self.assertTrue(any(t["type"] == "Q8_0" for t in j["tensors"]))
        with open(path("llama-Q8_0.gguf"), "rb") as f:
            data = bytearray(f.read())
        # The data of the last tensors: finds a Q8_0 block scale by its distance from the end of the file.
        end, t = len(data), j["tensors"][-1]
        for t in reversed(j["tensors"]):
            end -= (t["bytes"] + 31) // 32 * 32
            if t["type"] == "Q8_0":
                break
        data[end:end + 2] = struct.pack("<H", 0x7e00)
        p = self.ratoon("inspect", "--check-tensors", write("scale.gguf", bytes(data)), expect=1)
        self.assertIn(t["name"].encode(), p.stderr)
        self.assertIn(b"32 values", p.stderr)

    def test_quantize(self):
        self.ratoon("quantize", path("qwen3.gguf"), path("q8.gguf"), "Q8_0")
        r = self.run_q8()
        self.assertEqual(len(r["tokens"]), 4)
        self.says("quantize", path("qwen3.gguf"), path("q8.gguf"), "Q8_0", names=["q8.gguf", "--force"])
        self.ratoon("quantize", "--force", path("qwen3.gguf"), path("q8.gguf"), "Q8_0")
        twice = self.ratoon("quantize", path("q8.gguf"), path("q4.gguf"), "Q4_0").stderr.decode()
        self.assertEqual(twice.count("warning: "), 1)
        self.assertRegex(twice, r"q8\.gguf .*Q8_0.*BF16 original")
        self.assertRegex(twice, r"q4\.gguf: Q4_0, \d+ tensors, [\d.]+ [kM]B \(input [\d.]+ [kM]B\), ")
        self.ratoon("quantize", path("qwen3.gguf"), path("q4km.gguf"), "Q4_K_M")
        self.assertIn("quantised already (Q4_K_M)",
                      self.ratoon("quantize", path("q4km.gguf"), path("q4s.gguf"), "Q8_0").stderr.decode())
        self.assertNotIn("warning", self.ratoon("quantize", path("q8.gguf"), path("q16.gguf"), "F16").stderr.decode())
        self.says("quantize", path("qwen3.gguf"), path("q.gguf"), "Q99", expect=2, names=["Q99", "Q4_K_M", "IQ4_XS"])
        self.says("quantize", path("absent.gguf"), path("q.gguf"), "Q8_0", names=["absent.gguf"])

    def test_weight_type(self):
        """Quantising at load gives what quantising beforehand does, and says so."""
        for model in ("qwen3", "qwen3moe-16"):
            self.ratoon("quantize", "--force", path(model + ".gguf"), path("w16.gguf"), "BF16")
            self.ratoon("quantize", "--force", path("w16.gguf"), path("w8.gguf"), "Q8_0")
            common = ["-d", "none", "-ctk", "f16", "-ctv", "f16", "-p", "hello there", "-n", "12", "--ignore-eos"]
            made, loaded = (self.run_json("-m", path(f), *common, "--weight-type", how)["tokens"]
                            for f, how in (("w8.gguf", "keep"), ("w16.gguf", "q8_0")))
            self.assertEqual(made, loaded)
            told = self.ratoon("run", "-m", path("w16.gguf"), *common, "--weight-type", "q8_0").stderr.decode()
            self.assertRegex(told, r"warning: \d+ matrices of 16 bits were quantised to Q8_0")
        plan = ["plan", "--json", "-m", path("w16.gguf"), "-d", "none", "--ctx", "64", "--weight-type"]
        fewer, all_of_them = (json.loads(self.ratoon(*plan, how).stdout)["total_bytes"] for how in ("q8_0", "keep"))
        self.assertLess(fewer, all_of_them)
        self.says("run", "-m", path("w16.gguf"), "-p", "x", "-d", "none", "--weight-type", "q8_0", "--expert-ram", "1M",
                  names=["have to be in memory"])

    def run_q8(self):
        return self.run_json("-m", path("q8.gguf"), "-d", "none", "-p", "hello", "-n", "4", "--ignore-eos")

    def test_plan(self):
        p = json.loads(self.ratoon("plan", "--json", "-m", path("qwen3.gguf"), "-d",
                                   path("dflash-qwen3-luce.gguf")).stdout)
        self.assertEqual(p["total_bytes"], sum(x["bytes"] for x in p["parts"]))
        self.assertIn("program", [x["name"] for x in p["parts"]])
        plain = json.loads(self.ratoon("plan", "--json", "-m", path("qwen3.gguf"), "-d", "none", "--ctx", "100").stdout)
        self.assertLess(plain["total_bytes"], p["total_bytes"])
        self.assertIn(b"total", self.ratoon("plan", "-q", "-m", path("qwen3.gguf"), "-d", "none").stdout)
        self.says("plan", "-q", "-m", path("absent.gguf"), "-d", "none", names=["absent.gguf"])


class Measure(Cli):
    D = property(lambda self: ["-q", "-m", path("qwen3.gguf"), "-d", path("dflash-qwen3-llama.gguf")])

    def test_verify(self):
        out = self.ratoon("verify", *self.D, "--prompts", path("prompts.jsonl"), "-n", "10", "--budget", "8,auto",
                          "--threads", "1,2").stdout.decode()
        self.assertIn("0 differ", out.strip().split("\n")[-1])
        j = json.loads(self.ratoon("verify", *self.D, "--prompts", path("prompts.jsonl"), "-n", "10", "--budget", "22",
                                   "--modes", "t1", "--json", "--threads", "2").stdout)
        self.assertEqual((j["differing"], j["first_difference"], j["prompts"]), (0, None, 2))
        self.assertEqual(j["compared"], sum(w["compared"] for w in j["ways"]))
        self.assertGreaterEqual(j["compared"], 2)
        both = json.loads(self.ratoon("verify", *self.D, "--prompts", path("prompts.jsonl"), "-n", "4", "--budget", "8",
                                      "--threads", "1", "--backend", "cpu:portable,cpu", "--json").stdout)
        self.assertEqual([(r["backend"], r["way"]) for r in both["ways"]],
                         [("cpu:portable", "tree 8"), ("cpu", "plain"), ("cpu", "tree 8")])
        self.assertEqual(both["differing"], 0)
        self.says("verify", *self.D, "--prompts", path("prompts.jsonl"), "--backend", "cpu,cpu,cpu,cpu,cpu", expect=2,
                  names=["--backend", "4"])
        chain = json.loads(self.ratoon("verify", *self.D, "--prompts", path("prompts.jsonl"), "-n", "4", "--chain",
                                       "--modes", "greedy", "--json", "--threads", "1").stdout)
        self.assertEqual([w["way"] for w in chain["ways"]], ["chain"])
        denoised = ["verify", "-q", "-m", os.path.join(ROOT, "models", "demo", "ratoon-diffusion-demo-q8_0.gguf"),
                    "--prompts", path("prompts.jsonl"), "-n", "4"]
        out = self.ratoon(*denoised).stdout.decode()
        self.assertIn("2 prompts x 2 modes x 1 ways x 2 thread counts, 0 differ", out)
        self.assertRegex(out, r"^denoised +1 thread ")
        self.says(*denoised, "--modes", "t1", names=["top_p: a model that denoises"])

    JOBS = (["verify", "--modes", "t1", "--budget", "30", "--threads", "1"],
            ["bench", "--pairs", "1", "--budget", "30", "--ignore-eos"])

    def jobs(self, job):
        """The command with more and more prompts: a fast machine does the first ones before anything is shown."""
        for n in (200, 1000, 5000, 25000):
            yield [RATOON, *job, "-m", path("qwen3.gguf"), "-d", path("dflash-qwen3-llama.gguf"), "-n", "60", "--prompts",
                   write("many.jsonl", b'{"prompt": "hello world"}\n' * n)]

    def test_progress(self):
        """Off a terminal verify and bench say now and then how far they are; -q says nothing."""
        for job, label in zip(self.JOBS, (b"verify: ", b"runs: ")):
            for command in self.jobs(job):
                p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                line = next((l for l in p.stderr if l.startswith(label)), b"")
                p.send_signal(signal.SIGINT)
                p.communicate()
                if line:
                    break
            self.assertRegex(line, rb"^%s\d+ of \d+ done, \d+ (s|min) so far(, .+ left)?\n$" % label)
            p = subprocess.Popen([*command, "-q"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            time.sleep(1.5)
            p.send_signal(signal.SIGINT)
            self.assertEqual(p.communicate()[1], b"")

    def test_progress_on_a_terminal(self):
        """Ctrl-C leaves a clean line."""
        for command in self.jobs(self.JOBS[0]):
            master, slave = pty.openpty()
            p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=slave)
            os.close(slave)
            out, sent = b"", False
            try:
                while more := os.read(master, 65536):
                    out += more
                    if b"verify [" in out and not sent:
                        p.send_signal(signal.SIGINT)
                        sent = True
            except OSError:                                # this is how a terminal reports that it was closed
                pass
            os.close(master)
            if p.wait(LIMIT) != 0:                         # it had not ended before
                break
        self.assertEqual(p.returncode, 130, out)
        self.assertTrue(out.endswith(b"\r\x1b[K"), out[-80:])

    def test_prompts_file(self):
        self.says("verify", *self.D, "--prompts", path("absent.jsonl"), names=["absent.jsonl"])
        self.says("verify", *self.D, "--prompts", write("e.jsonl", b"\n"), names=["no prompts"])
        self.says("verify", *self.D, "--prompts", write("b.jsonl", b'{"prompt": "a"}\n{"prompt": 3}\n'),
                  names=["b.jsonl line 2"])
        self.says("verify", *self.D, "--prompts", write("j.jsonl", b'{"prompt": "a"\n'), names=["j.jsonl line 1"])
        self.says("verify", "-q", "-m", path("qwen3.gguf"), "-d", "none", "--ngram", "off", "--prompts",
                  path("prompts.jsonl"), names=["drafter"])

    def test_doctor(self):
        out = self.ratoon("doctor", *self.D).stdout.decode()
        self.assertRegex(out, r"\nverdict: fits; [\d.]+ tokens/s plain, .*the drafter guesses next to nothing")
        j = json.loads(self.ratoon("doctor", *self.D, "--json").stdout)
        d = j["drafter"]
        self.assertGreaterEqual(d["passes"], 64)
        self.assertEqual((d["block"], j["model"]["vocab"], d["verdict"]), (16, 2048, "none"))
        self.says("doctor", "-q", "-m", path("qwen3.gguf"), "-d", path("dflash-llama-llama.gguf"),
                  names=["dflash-llama-llama.gguf"])
        text = write("text.txt", b"hello world, " * 40)
        j = json.loads(self.ratoon("doctor", *self.D, "--json", "--text", text).stdout)
        self.assertGreater(j["drafter"]["passes"], 4)
        self.says("doctor", *self.D, "--text", write("short.txt", b"hello"), names=["short.txt", "32"])

    def test_doctor_of_a_model_that_denoises(self):
        """No speed by the token, which it does not have, and no word of drafters."""
        out = self.ratoon("doctor", "-q", "-m", path("small-diffusion.gguf")).stdout.decode()
        self.assertRegex(out, r"speed +not by the token: blocks of \d+ are denoised in up to \d+ steps")
        self.assertNotIn("tokens/s", out)
        self.assertNotIn("it would be faster", out)
        j = json.loads(self.ratoon("doctor", "-q", "-m", path("small-diffusion.gguf"), "--json").stdout)
        self.assertEqual((j["speed"]["plain_tok_s"], j["speed"]["expected_tok_s"]), (None, None))

    def test_doctor_of_a_model_alone(self):
        out = self.ratoon("doctor", "-q", "-m", path("qwen3.gguf"), "-d", "none").stdout.decode()
        self.assertRegex(out, r"speed +[\d.]+ tokens/s plain \(expected [\d.]+\)\ndrafter +none\n")
        self.assertIn("\nverdict: fits; ", out)
        j = json.loads(self.ratoon("doctor", "-q", "-m", path("qwen3.gguf"), "-d", "none", "--json").stdout)
        self.assertEqual((j["drafter"], j["left_out"], j["speed"]["drafted_tok_s"]), (None, None, None))
        self.assertTrue(j["speed"]["plain_tok_s"] > 0 and j["speed"]["expected_tok_s"] > 0)

    def test_doctor_names_a_drafter_that_does_not_fit(self):
        folder = path("unfit")
        os.mkdir(folder)
        shutil.copy(path("qwen3.gguf"), folder)
        shutil.copy(path("dflash-llama-llama.gguf"), os.path.join(folder, "dflash-qwen3.gguf"))
        out = self.ratoon("doctor", "-q", "-m", os.path.join(folder, "qwen3.gguf")).stdout.decode()
        self.assertRegex(out, r"\nleft out +drafter dflash-qwen3.gguf: .")
        self.assertRegex(out, r"\nverdict: fits; .*; drafter dflash-qwen3.gguf is left out, as it does not fit: .")

    def test_a_small_stack(self):
        """Large arrays are not on the stack: neither the program nor a thread that calls the library needs much."""
        env = {"HOME": TMP, "XDG_CACHE_HOME": TMP, "PATH": os.environ["PATH"]}     # which lies on the stack as well
        small = lambda: resource.setrlimit(resource.RLIMIT_STACK, (80 << 10, resource.getrlimit(resource.RLIMIT_STACK)[1]))
        for args in (["run", "-p", "x", "-n", "8"], ["run", "-d", "none", "-p", "x", "-n", "8"], ["plan"],
                     ["chat", "-p", "x", "-n", "8"], ["bench", "--passes", "1", "--repeats", "1"]):
            with self.subTest(args):
                p = subprocess.run([RATOON, *args, "--threads", "2"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=env, timeout=120, preexec_fn=small)
                self.assertIn(p.returncode, (0, 3) if args == ["plan"] else (0,), p.stderr)

    def test_doctor_of_what_does_not_fit(self):
        args = ["-q", "-m", path("qwen3.gguf"), "-d", "none", "--ctx", "1024k", "--cache-type-k", "f32",
                "--cache-type-v", "f32"]
        limit = (1 << 30, 1 << 30)
        p = subprocess.run([RATOON, "doctor", *args], stdout=subprocess.PIPE, timeout=300,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))
        self.assertEqual(p.returncode, 3)
        self.assertIn(b"\nverdict: does not fit\n", p.stdout)
        self.assertNotIn(b"tokens/s", p.stdout)

    def test_doctor_judges_by_what_is_guessed(self):
        """The demo's drafter, whole, and with its last half and three quarters zeroed."""
        demo = os.path.join(ROOT, "models", "demo")
        with open(os.path.join(demo, "dflash-ratoon-demo-bf16.gguf"), "rb") as f:
            data = f.read()
        lengths = []
        for part, verdict, says in ((1, "matches", "the drafter matches this model"),
                                    (0.5, "low", "another checkpoint, quantisation or thinking mode"),
                                    (0.25, "none", "it belongs to another model, or its tap layers are wrong")):
            kept = int(len(data) * part) // 64 * 64
            pair = ["-q", "-m", os.path.join(demo, "ratoon-demo-q8_0.gguf"), "-d",
                    write("spoiled.gguf", data[:kept] + bytes(len(data) - kept))]
            d = json.loads(self.ratoon("doctor", *pair, "--json").stdout)["drafter"]
            self.assertEqual(d["verdict"], verdict, d)
            lengths.append(d["accept_length"])
            self.assertIn(says, self.ratoon("doctor", *pair).stdout.decode())
        self.assertEqual(lengths, sorted(lengths, reverse=True))

    def test_eval(self):
        text = write("eval.txt", b"hello world, this is a text. " * 12)
        out = self.ratoon("eval", "-q", "-m", path("qwen3.gguf"), "--window", "32", text).stdout.decode()
        self.assertRegex(out, r"perplexity \d")
        j = json.loads(self.ratoon("eval", "-q", "-m", path("qwen3.gguf"), "--window", "32", "--json", text).stdout)
        self.assertAlmostEqual(j["perplexity"], math.exp(j["nll"]), delta=1e-3 * j["perplexity"])
        self.assertLess(j["scored"], j["tokens"])
        # By hand: the window as one chain of rows.
        ids = self.ratoon("tokenize", "-m", path("qwen3.gguf"), "-p", "hello wor").stdout.decode().strip()
        self.ratoon("logits", "-q", "-m", path("qwen3.gguf"), "--tokens", ids, "--out", path("e.f32"))
        x, tokens, nll = floats(path("e.f32")), [int(i) for i in ids.split(",")], 0.0
        for i, t in enumerate(tokens[1:]):
            row = x[i * 2048:(i + 1) * 2048]
            nll += math.log(sum(math.exp(v) for v in row)) - row[t]
        j = json.loads(self.ratoon("eval", "-q", "-m", path("qwen3.gguf"), "--json",
                                   write("e.txt", b"hello wor")).stdout)
        self.assertAlmostEqual(j["nll"], nll / (len(tokens) - 1), places=5)
        self.says("eval", "-q", "-m", path("qwen3.gguf"), write("short.txt", b""), names=["short.txt"])
        self.says("eval", "-q", "-m", path("qwen3.gguf"), "--ctx", "1", text, names=["--ctx", "at least 2"])
        self.says("eval", "-q", "-m", path("qwen3.gguf"), path("absent.txt"), names=["absent.txt"])

    def test_passes(self):
        j = json.loads(self.ratoon("bench", "-q", "-m", path("qwen3.gguf"), "--passes", "1,8", "--repeats", "2",
                                   "--json").stdout)
        self.assertEqual([p["rows"] for p in j["passes"]], [1, 8])
        self.assertTrue(all(p["ms"] > 0 and p["share_of_limit"] > 0 for p in j["passes"]))

    def test_passes_behind_texts(self):
        bench = ["bench", "-q", "-m", path("qwen3.gguf"), "--passes", "1,8", "--repeats", "2"]
        j = json.loads(self.ratoon(*bench, "--after", "16,100", "--json", "--csv", path("after.csv"), "--svg",
                                   path("after.svg")).stdout)
        self.assertEqual([(p["after"], p["rows"]) for p in j["passes"]], [(16, 1), (16, 8), (100, 1), (100, 8)])
        self.assertLess(j["passes"][0]["limit_ms"], j["passes"][2]["limit_ms"])  # keys and values are read too
        rows = [line.split(",")[:2] for line in open(path("after.csv")) if not line.startswith("#")]
        self.assertEqual(rows, [["rows", "after"], ["1", "16"], ["8", "16"], ["1", "100"], ["8", "100"]])
        self.assertIn("after 100 tokens", open(path("after.svg")).read())
        text = self.ratoon(*bench, "--after", "16,100").stdout.decode()
        self.assertIn("behind 16 tokens", text)
        self.assertIn("of the speed behind 16", text)
        self.says("bench", "-m", path("qwen3.gguf"), "--prompt-tokens", "8", "--after", "1", expect=2,
                  names=["--after", "--passes"])
        self.says(*bench, "--after", "1", "--compare", "true", expect=2, names=["--after"])
        self.says(*bench, "--after", "1,2,3,4,5,6", expect=2, names=["--after", "6"])
        self.says(*bench, "--after", "", expect=2, names=["--after"])
        self.says(*bench, "--after", "100", "--ctx", "128", expect=2, names=["--ctx 128", "164"])

    def test_bench(self):
        prompts = ["--prompts", path("prompts.jsonl"), "-n", "8", "--pairs", "2", "--ignore-eos"]
        j = json.loads(self.ratoon("bench", *self.D, *prompts, "--json", "--write-profile",
                                   path("profile.json")).stdout)
        self.assertEqual([w["way"] for w in j["ways"]], ["plain", "chain", "tree 22", "auto"])
        self.assertEqual((j["differing_texts"], j["simulated"]), (0, None))
        self.assertEqual(set(j["ways"][0]["classes"]), {"a", "b"})
        self.assertEqual(j["ways"][0]["ratio"], 1.0)
        with open(path("profile.json")) as f:
            self.assertIn("edge", json.load(f))
        for w in j["ways"]:                          # per position: together they give the number accepted
            self.assertAlmostEqual(sum(w["acceptance"]) * w["drafting_passes"], w["accepted"], places=6)
        rows = self.csv("bench", *self.D, *prompts, "--csv", path("b.csv"), "--svg", path("b.svg"), "--chain")
        self.assertEqual(len(rows), 2 * 2 * 2)
        self.assertEqual(set(rows[0]), {"way", "prompt", "class", "pair", "tokens", "passes", "seconds"})
        texts = self.svg("b.svg")
        for word in ("plain", "chain", "tokens per second", "a", "b"):
            self.assertIn(word, texts)

    def test_bench_serve(self):
        """Several streams at once: every text is that of the stream alone (else the exit code is 1)."""
        serve = ["--serve", "1,3", "--prompts", path("prompts.jsonl"), "-n", "24", "--pairs", "2", "--temp", "0.8",
                 "--budget", "8"]
        j = json.loads(self.ratoon("bench", "-q", *self.D, *serve, "--json").stdout)
        self.assertEqual([(s["streams"], s["way"]) for s in j["streams"]],
                         [(1, "plain"), (1, "speculation"), (3, "plain"), (3, "speculation")])
        self.assertEqual((j["differing_texts"], j["n"], j["pairs"]), (0, 24, 2))
        for s in j["streams"]:
            self.assertGreater(min(s["tok_s"], s["whole_tok_s"], s["first_token_ms"], s["token_ms"], s["pass_ms"]), 0)
            self.assertLessEqual((s["first_token_ms"], s["token_ms"]), (s["first_token_ms_95"], s["token_ms_95"]))
            self.assertGreaterEqual(s["accept_length"], 1)
            self.assertTrue(s["accept_length"] == 1 or s["way"] == "speculation")
        self.assertEqual((j["streams"][0]["pass_ratio"] > 0, j["streams"][2]["pass_ms"] > 0), (True, True))
        rows = self.csv("bench", "-q", "-m", path("qwen3.gguf"), "--serve", "2", "-n", "9", "--pairs", "1", "--csv",
                        path("v.csv"), "--svg", path("v.svg"))
        self.assertEqual([(r["streams"], r["way"]) for r in rows], [("2", "plain"), ("2", "speculation")])
        for word in ("plain", "speculation", "2 streams", "tokens per second of all streams"):
            self.assertIn(word, self.svg("v.svg"))
        for wrong in ("0", "65", "", "x", "1,2,3,4,5,6,7,8,9"):
            self.says("bench", "-m", path("qwen3.gguf"), "--serve", wrong, expect=2, names=["--serve"])
        self.says("bench", "-q", "-m", path("qwen3.gguf"), "--serve", "1", "--ctx", "80", "-n", "40", names=["80"])

    def csv(self, *args):
        """The rows of the file behind --csv; checks its comments."""
        self.ratoon(*args)
        with open(args[args.index("--csv") + 1]) as f:
            lines = f.read().split("\n")
        comments = [x for x in lines if x.startswith("# ")]
        self.assertTrue(comments[0].startswith("# command: ratoon bench "), comments)
        self.assertNotIn(TMP, "".join(comments))     # folder names are not shown
        self.assertTrue(any(x.startswith("# machine: ") for x in comments))
        return list(csv.DictReader(x for x in lines if not x.startswith("#")))

    def svg(self, name):
        """The texts of a chart, which must be well-formed, stay inside its frame, and be drawn for light and dark."""
        with open(path(name)) as f:
            image = f.read()
        root = xml.etree.ElementTree.fromstring(image)
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        self.assertIn("prefers-color-scheme: dark", image)
        width, height = float(root.get("width")), float(root.get("height"))
        texts = []
        for e in root.iter():
            for key, most in (("x", width), ("y", height), ("cx", width), ("cy", height)):
                if e.get(key) is not None:
                    self.assertTrue(0 <= float(e.get(key)) <= most, xml.etree.ElementTree.tostring(e))
            if e.tag.endswith("}text"):
                texts.append(e.text)
                size = {"title": 17, "small": 10.5, "value": 11}.get(e.get("class"), 12)
                if e.get("x") and not e.get("text-anchor"):
                    self.assertLess(float(e.get("x")) + 0.53 * size * len(e.text), width, e.text)
        return texts

    def test_bench_files(self):
        passes = ["bench", "-q", "-m", path("qwen3.gguf"), "--passes", "1,8", "--repeats", "2"]
        rows = self.csv(*passes, "--csv", path("p.csv"), "--svg", path("p.svg"))
        self.assertEqual([r["rows"] for r in rows], ["1", "8"])
        for r in rows:
            self.assertAlmostEqual(float(r["share_of_limit"]), float(r["limit_ms"]) / float(r["ms"]),
                                   delta=0.02 * float(r["share_of_limit"]) + 0.0001)      # of four digits
        texts = self.svg("p.svg")
        self.assertIn("milliseconds", texts)
        self.assertTrue(any(t.startswith("limit: ") for t in texts))
        rows = self.csv("bench", "-q", "-m", path("qwen3.gguf"), "--prompt-tokens", "8,40", "--chunk", "16", "-n", "4",
                        "--csv", path("r.csv"), "--svg", path("r.svg"))
        self.assertEqual([(r["kind"], r["tokens"]) for r in rows], [("prompt", "8"), ("prompt", "40"), ("decode", "4")])
        self.assertTrue(all(float(r["tok_s"]) > 0 for r in rows))
        self.assertIn("prompt of 40", self.svg("r.svg"))
        rows = self.csv("bench", "--roofline", "--threads", "2", "--repeats", "1", "--csv", path("f.csv"), "--svg",
                        path("f.svg"))
        self.assertEqual([r["threads"] for r in rows], ["1", "2"])
        self.assertTrue(all(float(r[k]) > 1e6 for r in rows
                            for k in ("bytes_per_s", "int8_ops_per_s", "f32_ops_per_s")))
        self.assertIn("2 threads", self.svg("f.svg"))
        j = json.loads(self.ratoon("bench", "--roofline", "--threads", "1", "--repeats", "1", "--json").stdout)
        self.assertEqual([r["threads"] for r in j["roofline"]], [1])
        # Names may be anything, and must not break out of the chart or the table.
        with open(path("odd.jsonl"), "w") as f:
            for name in ("<b>&\"'", "a,b\nc", "\ufffe", "x" * 100):
                f.write(json.dumps({"class": name, "prompt": "hello"}) + "\n")
        rows = self.csv("bench", "-q", *self.D, "--prompts", path("odd.jsonl"), "-n", "2", "--pairs", "1", "--csv",
                        path("o.csv"), "--svg", path("o.svg"))
        self.assertEqual({r["class"] for r in rows}, {"<b>&\"'", "a,b c", "\ufffe", "x" * 31})
        self.assertIn("<b>&\"'", self.svg("o.svg"))
        for option in ("--csv", "--svg"):
            p = self.ratoon(*passes, option, path("absent/x"), expect=1)
            self.assertIn("absent/x", p.stderr.decode())
            p = self.ratoon(*passes, option, "/dev/full", expect=1)
            self.assertIn("/dev/full", p.stderr.decode())
        self.outputs(lambda *o: ["bench", "--roofline", "--threads", "1", "--repeats", "1", *o], "--csv", "--svg")
        prompts = ["bench", "-q", *self.D, "--prompts", path("prompts.jsonl"), "-n", "2", "--pairs", "1"]
        self.outputs(lambda *o: [*prompts, *o], "--write-profile")
        self.says("bench", "-m", path("qwen3.gguf"), "--prompt-tokens", "0", expect=2, names=["--prompt-tokens"])
        self.says("bench", "-m", path("qwen3.gguf"), "--prompt-tokens", "", expect=2, names=["--prompt-tokens"])
        self.says("bench", "-q", "-m", path("qwen3.gguf"), "--prompt-tokens", "64", "--ctx", "32", names=["65", "32"])

    FAKE = """import json, os, sys
with open(sys.argv[1], "a") as f:
    f.write("peer\\n")
kind = sys.argv[2]
def result(prompt, made, *rates):
    return {"model_filename": "somewhere/%s.gguf" % sys.argv[3], "n_threads": 2, "n_prompt": prompt, "n_gen": made, "avg_ts": sum(rates) / len(rates), "samples_ts": rates}
results = [result(8, 0, 40.0, 50.0), result(0, 4, 2.5, 2.0), result(16, 4, 9.0)]
if kind == "json": json.dump(results, sys.stdout, indent=2)
if kind == "jsonl": print("\\n".join(["warming"] + [json.dumps(r) for r in results]))
if kind == "batched": print(json.dumps({"pl": 8, "speed_tg": 80.0, "pp": 1, "tg": 4}))
if kind == "text": print("speed: 1.5 t/s\\nfinal speed: 3.5 t/s", file=sys.stderr)
"""

    def fake(self, kind, model="qwen3"):
        return "%s %s %s %s %s" % (sys.executable, write("fake.py", self.FAKE.encode()), path("runs.txt"), kind, model)

    def compare(self, command, *args, **kw):
        return self.ratoon("bench", "-m", path("qwen3.gguf"), "--threads", "2", *args, "--compare", command, **kw)

    def test_compare(self):
        rates = ["--prompt-tokens", "8", "-n", "4", "--repeats", "1", "--pairs", "2"]
        for kind in ("json", "jsonl"):
            write("runs.txt", b"")
            j = json.loads(self.compare(self.fake(kind), *rates, "--json", "--svg", path("c.svg"), "-q").stdout)
            self.assertEqual(j["compare"], {"command": self.fake(kind), "rounds": 2})
            with open(path("runs.txt")) as f:
                self.assertEqual(len(f.readlines()), 3)              # the first one warms up
            self.assertEqual([r["compare_tok_s"] for r in j["rates"]], [50.0, 2.5])
            for r in j["rates"]:
                self.assertAlmostEqual(r["ratio"], r["tok_s"] / r["compare_tok_s"], delta=1e-6 * r["ratio"])
            texts = self.svg("c.svg")
            self.assertIn("50", texts)
            self.assertTrue(any("beside it, in turn: " in t for t in texts))
        out = self.compare(self.fake("json"), *rates, "-q").stdout.decode()
        self.assertIn("in turn, 2 rounds: " + self.fake("json"), out)
        err = self.compare(self.fake("json", "other"), *rates).stderr.decode()
        self.assertIn("measured other.gguf, not qwen3.gguf", err)
        self.assertNotIn("threads, ours", err)
        passes = ["--passes", "1,2,8", "--repeats", "1", "--pairs", "1", "--json", "-q"]
        j = json.loads(self.compare(self.fake("json"), *passes).stdout)
        self.assertEqual([(p.get("compare_ms"), p.get("compare_kind")) for p in j["passes"]],
                         [(400.0, "tg"), (None, None), (160.0, "pp")])
        j = json.loads(self.compare(self.fake("batched"), *passes).stdout)
        self.assertEqual([p.get("compare_ms") for p in j["passes"]], [None, None, 100.0])
        j = json.loads(self.compare(self.fake("text"), *passes, "--compare-rate", "speed: *([0-9.]+)").stdout)
        self.assertAlmostEqual(j["passes"][0]["compare_ms"], 1000 / 3.5, places=5)
        j = json.loads(self.compare(self.fake("json"), "-d", path("dflash-qwen3-llama.gguf"), "--prompts",
                                    path("prompts.jsonl"), "-n", "4", "--pairs", "2", "--json", "-q").stdout)
        self.assertEqual((j["compare"]["tok_s"], j["pairs"]), (2.5, 2))
        self.assertEqual(len(j["ways"]), 4)
        for w in j["ways"]:
            self.assertAlmostEqual(w["compare_ratio"], w["tok_s"] / 2.5, delta=1e-6 * w["compare_ratio"])

    def test_compare_bad(self):
        bench = ["bench", "-q", "-m", path("qwen3.gguf"), "--passes", "1", "--repeats", "1"]
        for command, names in [("ratoon-no-such-program -x", ["ratoon-no-such-program -x", "127", "not found"]),
                               ("true", ["nothing"]), ("echo hello", ["no results"]),
                               ("echo broken >&2; exit 3", ["exit code 3", "broken"]), ("kill -9 $$", ["signal 9"]),
                               ("echo '[{\"n_prompt\": 1, \"avg_ts\": -1}]'", ["no results"]),
                               ("echo '{'", ["no results"]), ("yes", ["more than 16 MiB"])]:
            self.says(*bench, "--compare", command, names=["--compare", *names])
        self.says(*bench, "--compare", " ", expect=2, names=["empty"])
        self.says(*bench, "--compare", "echo speed", "--compare-rate", "speed", expect=2,
                  names=["--compare-rate", "group"])
        self.says(*bench, "--compare", "echo speed", "--compare-rate", "(", expect=2, names=["--compare-rate"])
        self.says(*bench, "--compare", "echo speed: fast", "--compare-rate", "speed: (.*)", names=["speed: (.*)"])
        self.says(*bench, "--compare-rate", "(.)", expect=2, names=["--compare"])
        self.says("bench", "--roofline", "--compare", "true", expect=2, names=["--compare"])
        self.says("bench", "--serve", "1", "--compare", "true", expect=2, names=["--compare"])
        self.says(*bench, "--compare", "true", "--compare-limit", "0", expect=2, names=["--compare-limit"])

    def ends(self, pid):
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            try:
                with open("/proc/%d/stat" % pid) as f:
                    if f.read().rsplit(")", 1)[1].split()[0] == "Z":
                        return True
            except (FileNotFoundError, ProcessLookupError):
                return True
            time.sleep(0.05)
        return False

    def test_compare_ends_its_children(self):
        bench = [RATOON, "bench", "-q", "-m", path("qwen3.gguf"), "--passes", "1", "--compare"]
        command = "sleep 600 & echo $! > %s; trap '' INT TERM; sleep 601" % path("pid.txt")
        for limit in ("1", "4", "16"):                     # until there is time for a child
            write("pid.txt", b"")
            self.says(*bench[1:], command, "--compare-limit", limit, names=[limit + " seconds", "--compare-limit"])
            if os.path.getsize(path("pid.txt")):
                break
        with open(path("pid.txt")) as f:
            self.assertTrue(self.ends(int(f.read())))
        for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
            write("pid.txt", b"")
            p = subprocess.Popen(bench + ["echo $$ > %s; exec sleep 602" % path("pid.txt")], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
            while not os.path.getsize(path("pid.txt")):
                self.assertIsNone(p.poll())
                time.sleep(0.02)
            with open(path("pid.txt")) as f:
                child = int(f.read())
            p.send_signal(number)
            p.communicate(timeout=LIMIT)
            self.assertEqual(p.returncode, code)
            self.assertTrue(self.ends(child))

    def test_prompt_bar(self):
        """A long prompt shows rate and time left on a terminal and wipes them; without a terminal it shows nothing. The
        prompt grows until reading it takes so long that the bar is shown."""
        for n in (32, 128, 512, 2048):
            text = write("long.txt", b"hello world, this goes on. " * n)
            run = [RATOON, "run", "-m", path("qwen3.gguf"), "-d", "none", "--backend", "cpu:portable", "--threads", "1",
                   "--ctx", "65536", "--chunk", "64", "-f", text, "-n", "1"]
            main, other = os.openpty()
            p = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=other)
            os.close(other)
            seen = b""
            try:
                while part := os.read(main, 65536):
                    seen += part
            except OSError:
                pass
            os.close(main)
            p.communicate(timeout=600)
            self.assertEqual(p.returncode, 0)
            bars = [x for x in seen.split(b"\r") if x.startswith(b"prompt [")]
            if bars:
                break
        self.assertGreater(len(bars), 0, seen)
        self.assertRegex(bars[-1].decode(), r"prompt \[#+\.*\] +\d+%  \d[\d.]* tokens/s  \d+ (s|min) left")
        last = seen.rindex(b"prompt [")
        self.assertIn(b"\r\x1b[K", seen[last:])
        quiet = subprocess.run(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600)
        self.assertNotIn(b"prompt [", quiet.stderr)

    def test_simulated(self):
        prompts = ["--prompts", path("prompts.jsonl"), "-n", "16", "--pairs", "1"]
        sure = write("sure.json", b'{"name": "sure", "edge": [[1.0], [1.0], [1.0]]}')
        j = json.loads(self.ratoon("bench", *self.D, *prompts, "--simulate-acceptance", sure, "--json").stdout)
        self.assertEqual(j["simulated"], "sure")
        tree = j["ways"][2]
        self.assertTrue(tree["simulated"])
        self.assertGreater(tree["accept_length"], 2.5)
        out = self.ratoon("bench", *self.D, *prompts, "--simulate-acceptance", sure).stdout.decode()
        self.assertIn("SIMULATED", out)
        for bad in (b'{"edge": 3}', b'{"edge": [[2.0]]}', b'{"edge": [["x"]]}', b"[]", b"{"):
            self.says("bench", *self.D, *prompts, "--simulate-acceptance", write("bad.json", bad))


def main():
    if not os.access(RATOON, os.X_OK) or not os.access(MAKE_TINY, os.X_OK):
        print("test_cli: %s and %s are needed (make ratoon tests-built)" % (RATOON, MAKE_TINY))
        return 1
    return report.main(sys.modules[__name__])


if __name__ == "__main__":
    sys.exit(main())
