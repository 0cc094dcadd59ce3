#!/usr/bin/env python3
"""The command line as a user meets it: every command, its JSON fields, exit codes, and what it says about bad input.

    python3 tests/test_cli.py [-v] [TestName.test_name ...]

RATOON and MAKE_TINY name the programs (default: ./ratoon and $BUILD/tests/make_tiny, BUILD being build). Tiny random models are made
in a temporary folder. The last line is 'N passed, N failed'."""
import fcntl
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RATOON = os.path.abspath(os.environ.get("RATOON", os.path.join(ROOT, "ratoon")))
MAKE_TINY = os.environ.get("MAKE_TINY", os.path.join(ROOT, os.environ.get("BUILD", "build"), "tests", "make_tiny"))
MODELS = ["qwen3", "llama", "small-qwen3", "small-qwen35", "dflash-qwen3", "dflash-llama", "small-dflash"]
TMP = None


def setUpModule():
    global TMP
    TMP = tempfile.mkdtemp(prefix="ratoon-cli-")
    for name in MODELS:
        subprocess.run([MAKE_TINY, name, TMP], check=True)
    with open(path("prompts.jsonl"), "w") as f:
        f.write('{"id": "a/1", "prompt": "hello world"}\n\n{"id": "b/1", "prompt": "def f(x):\\n"}\n')


def tearDownModule():
    shutil.rmtree(TMP)


def path(name):
    return os.path.join(TMP, name)


def write(name, data):
    with open(path(name), "wb") as f:
        f.write(data)
    return path(name)


def floats(file):
    with open(file, "rb") as f:
        data = f.read()
    return struct.unpack("<%df" % (len(data) // 4), data)


class Cli(unittest.TestCase):
    def ratoon(self, *args, stdin=b"", expect=0, timeout=120):
        p = subprocess.run([RATOON, *args], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout)
        self.assertEqual(p.returncode, expect, "ratoon %s\nstderr: %s" % (" ".join(args), p.stderr.decode("utf-8", "replace")))
        return p

    def says(self, *args, expect=1, names=(), stdin=b""):
        """Fails with one line on stderr (besides what was said about found files) that names what is wrong."""
        p = self.ratoon(*args, expect=expect, stdin=stdin)
        lines = p.stderr.decode().strip().split("\n")
        for word in names:
            self.assertIn(word, lines[-1])
        self.assertEqual(p.stdout, b"")
        return lines

    def run_json(self, *args, **kw):
        return json.loads(self.ratoon("run", "--json", "-q", *args, **kw).stdout)


class Help(Cli):
    def test_help(self):
        out = self.ratoon("help").stdout.decode()
        for name in "run tokenize detokenize logits plan inspect verify doctor eval bench quantize help version".split():
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
        self.says("run", "word", expect=2, names=["word"])
        self.says("run", "--json=1", expect=2, names=["--json=1"])
        self.says("run", "--tree", "--chain", expect=2, names=["--tree"])
        self.says("inspect", expect=2, names=["FILE"])
        self.says("eval", expect=2, names=["FILE"])
        self.says("verify", expect=2, names=["--prompts"])
        self.says("bench", expect=2, names=["--passes"])
        self.says("logits", "-m", path("qwen3.gguf"), expect=2, names=["--tokens"])

    def test_numbers(self):
        for option, bad in [("--temp", "nan"), ("--temp", "inf"), ("--temp", "-1"), ("--temp", "warm"), ("--top-p", "1.5"), ("--top-p", ""), ("-n", "0"),
                            ("-n", "1x"), ("-n", "99999999999999999999"), ("--top-k", "-1"), ("--seed", "-1"), ("--seed", "18446744073709551616"),
                            ("--budget", "64"), ("--budget", "0"), ("--budget", "many"), ("--rep-window", "257"), ("--rep-penalty", "0"), ("--ctx", "0"),
                            ("--threads", "0"), ("--stop", ""), ("--freq-penalty", "1e9")]:
            name = "--n-predict" if option == "-n" else option
            self.says("run", "-m", path("qwen3.gguf"), "-p", "x", option, bad, expect=2, names=[name])
        self.says("verify", "-m", path("qwen3.gguf"), "--prompts", path("prompts.jsonl"), "--budget", "8,99", expect=2, names=["--budget", "99"])
        self.says("verify", "-m", path("qwen3.gguf"), "--prompts", path("prompts.jsonl"), "--modes", "hot", expect=2, names=["--modes", "hot"])
        self.says("verify", "-m", path("qwen3.gguf"), "--prompts", path("prompts.jsonl"), "--threads", "0", expect=2, names=["--threads"])
        self.says("bench", "-m", path("qwen3.gguf"), "--passes", "1,65", expect=2, names=["--passes"])


class Run(Cli):
    M = property(lambda self: ["-m", path("qwen3.gguf"), "-d", "none"])
    D = property(lambda self: ["-m", path("qwen3.gguf"), "-d", path("dflash-qwen3-llama.gguf")])

    def test_json(self):
        r = self.run_json(*self.M, "-p", "hello world", "-n", "20", "--ignore-eos")
        self.assertEqual(set(r), {"text", "tokens", "finish_reason", "model", "draft", "stats"})
        self.assertEqual(set(r["stats"]), {"prompt_tokens", "generated", "passes", "drafted", "accepted", "accept_length", "prefill_s", "decode_s", "tok_s"})
        self.assertEqual((len(r["tokens"]), r["finish_reason"], r["model"], r["draft"]), (20, "length", "qwen3.gguf", None))
        self.assertEqual((r["stats"]["generated"], r["stats"]["passes"], r["stats"]["drafted"]), (20, 20, 0))

    def test_text_is_the_same_everywhere(self):
        want = self.run_json(*self.M, "-p", "hello world", "-n", "24", "--temp", "0.8", "--seed", "3")
        for more in [["--budget", "22"], ["--budget", "7", "--chain"], ["--budget", "auto"], ["--threads", "1"], ["--chunk", "2", "--budget", "5", "--tree"]]:
            got = self.run_json(*self.D, "-p", "hello world", "-n", "24", "--temp", "0.8", "--seed", "3", *more)
            self.assertEqual((got["tokens"], got["text"], got["finish_reason"]), (want["tokens"], want["text"], want["finish_reason"]), more)
            self.assertEqual(got["draft"], "dflash-qwen3-llama.gguf")
        plain = self.ratoon("run", *self.D, "-p", "hello world", "-n", "24", "--temp", "0.8", "--seed", "3").stdout.decode("utf-8")
        self.assertEqual(plain, want["text"])
        other = self.run_json(*self.M, "-p", "hello world", "-n", "24", "--temp", "0.8", "--seed", "4")
        self.assertNotEqual(other["tokens"], want["tokens"])

    def test_prompt_from_everywhere(self):
        want = self.run_json(*self.M, "-p", "hello world", "-n", "4")["tokens"]
        ids = self.ratoon("tokenize", "-m", path("qwen3.gguf"), "-p", "hello world").stdout.decode().strip()
        self.assertEqual(self.run_json(*self.M, "-n", "4", stdin=b"hello world")["tokens"], want)
        self.assertEqual(self.run_json(*self.M, "-n", "4", "-f", write("p.txt", b"hello world"))["tokens"], want)
        self.assertEqual(self.run_json(*self.M, "-n", "4", "--tokens", ids)["tokens"], want)
        self.assertEqual(self.run_json(*self.M, "-n", "4", "--tokens", "@" + write("ids.txt", ids.replace(",", "\n").encode()))["tokens"], want)
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
            r = self.run_json(*args, "-p", "hello world", "-n", "40", "--ignore-eos", "--stop", "never this", "--stop", stop)
            self.assertEqual((r["text"], r["finish_reason"]), (text[:text.index(stop)], "stop_sequence"))
            self.assertEqual(r["tokens"], full["tokens"][:len(r["tokens"])])
            self.assertEqual(r["stats"]["generated"], len(r["tokens"]))
            out = self.ratoon("run", *args, "-q", "-p", "hello world", "-n", "40", "--ignore-eos", "--stop", stop).stdout.decode()
            self.assertEqual(out, text[:text.index(stop)])
        # What might have become a stop string and did not is shown in the end.
        last = self.run_json(*self.M, "-p", "hello world", "-n", "40", "--ignore-eos", "--stop", text[-1] + "\x01")
        self.assertEqual((last["text"], last["finish_reason"]), (text, "length"))

    def test_end_token(self):
        for seed in range(60):
            r = self.run_json(*self.M, "-p", "hello", "-n", "100", "--temp", "3", "--seed", str(seed))
            if r["finish_reason"] == "stop":
                self.assertEqual(r["stats"]["generated"], len(r["tokens"]) + 1)
                drafted = self.run_json(*self.D, "-p", "hello", "-n", "100", "--temp", "3", "--seed", str(seed), "--budget", "30")
                self.assertEqual((drafted["tokens"], drafted["finish_reason"]), (r["tokens"], "stop"))
                longer = self.run_json(*self.M, "-p", "hello", "-n", "100", "--temp", "3", "--seed", str(seed), "--ignore-eos")
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
        self.assertGreater(r["stats"]["prompt_tokens"], len(ids))      # what the user wrote is no control token
        self.says("run", "-m", path("small-qwen3.gguf"), "-q", "--chat", "-p", "hi", names=["tokenizer"])

    def test_without_tokenizer(self):
        r = self.run_json("-m", path("small-qwen3.gguf"), "-d", "none", "--tokens", "1,2,3", "-n", "5")
        self.assertEqual((r["text"], len(r["tokens"])), ("", 5))
        self.says("run", "-m", path("small-qwen3.gguf"), "-d", "none", "-q", "-p", "x", names=["tokenizer"])

    def test_bad_files(self):
        self.says("run", "-q", "-m", path("absent.gguf"), "-d", "none", "-p", "x", names=["absent.gguf"])
        self.says("run", "-q", "-m", write("bad.gguf", b"GGUF\x03\0\0\0" + b"\xff" * 40), "-d", "none", "-p", "x", names=["bad.gguf"])
        self.says("run", "-q", "-m", TMP, "-d", "none", "-p", "x", names=[TMP])
        self.says("run", "-q", "-m", path("qwen3.gguf"), "-d", path("absent.gguf"), "-p", "x", names=["absent.gguf"])
        self.says("run", "-q", "-m", path("qwen3.gguf"), "-d", path("dflash-llama-llama.gguf"), "-p", "x", names=["dflash-llama-llama.gguf"])
        self.says("run", "-q", "-m", path("qwen3.gguf"), "-d", path("small-dflash-luce.gguf"), "-p", "x", names=["small-dflash-luce.gguf"])
        self.says("run", "-q", "-m", path("qwen3.gguf"), "-d", "none", "-p", "x", "--backend", "abacus", names=["abacus"])
        self.says("run", "-q", "-m", path("qwen3.gguf"), "-d", "none", "-p", "x", "-ctk", "q4_k", names=["kv_k", "q4_k", "tq3_0"])
        window = lambda *more: self.ratoon("run", "-m", path("qwen3.gguf"), "-d", "none", "-p", "a longer prompt than the window", "-n", "24", *more)
        plain, wide, narrow = window(), window("--fa-window", "4000"), window("--fa-window", "3")
        self.assertEqual(plain.stdout, wide.stdout)
        self.assertNotEqual(plain.stdout, narrow.stdout)
        self.assertIn("attention looks back 3 positions only", narrow.stderr.decode())
        self.assertNotIn("looks back", plain.stderr.decode())
        self.says("plan", "-q", "-m", path("small-qwen3.gguf"), "-d", "none", "--cache-type-v", "tq3_0", names=["small-qwen3.gguf", "values", "TQ3_0", "multiple of 128"])

    def test_neighbourhood(self):
        folder = path("pair")
        os.makedirs(os.path.join(folder, "draft"), exist_ok=True)
        model = shutil.copy(path("qwen3.gguf"), folder)
        shutil.copy(path("dflash-qwen3-llama.gguf"), os.path.join(folder, "draft", "any.gguf"))
        p = self.ratoon("run", "-m", model, "-p", "hello", "-n", "2", "--json")
        self.assertEqual(json.loads(p.stdout)["draft"], "any.gguf")
        self.assertIn(b"drafter found beside the model", p.stderr)
        shutil.copy(path("dflash-qwen3-luce.gguf"), os.path.join(folder, "dflash-qwen3-f32.gguf"))
        shutil.copy(path("dflash-llama-luce.gguf"), os.path.join(folder, "dflash-another.gguf"))
        self.assertEqual(self.run_json("-m", model, "-p", "hello", "-n", "2")["draft"], "dflash-qwen3-f32.gguf")
        self.assertIsNone(self.run_json("-m", model, "-d", "none", "-p", "hello", "-n", "2")["draft"])
        os.remove(os.path.join(folder, "dflash-qwen3-f32.gguf"))
        p = self.ratoon("run", "-m", model, "-p", "hello", "-n", "2", "--json")           # one that does not fit is left out, and said
        self.assertIsNone(json.loads(p.stdout)["draft"])
        self.assertIn(b"left out", p.stderr)

    def test_stats(self):
        err = self.ratoon("run", *self.D, "-p", "hello", "-n", "8", "--stats", "--budget", "8").stderr.decode()
        self.assertIn("accept length", err)
        self.assertIn("speculation is on", err)
        self.assertIn("speculation is off", self.ratoon("run", *self.M, "-p", "hello", "-n", "2").stderr.decode())

    def start(self, *args, **kw):
        return subprocess.Popen([RATOON, "run", *self.M, "-p", "hello", "--ignore-eos", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, **kw)

    def test_interrupt_once(self):
        p = self.start()
        first = p.stdout.read(1)
        p.send_signal(signal.SIGINT)
        rest, err = p.communicate(timeout=60)
        self.assertEqual(p.returncode, 0, err)
        self.assertIn(b"cancelled", err)
        (first + rest).decode("utf-8")

    def test_interrupt_once_json(self):
        p = self.start("--json", "-q")
        time.sleep(1.0)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=60)
        self.assertEqual(p.returncode, 0, err)
        self.assertEqual(json.loads(out)["finish_reason"], "cancelled")

    def test_interrupt_twice(self):
        p = self.start("-q")
        fcntl.fcntl(p.stdout, getattr(fcntl, "F_SETPIPE_SZ", 1031), 4096)
        time.sleep(0.5)
        for _ in range(600):                       # until the pipe is full and the program waits in write
            with open("/proc/%d/wchan" % p.pid) as f:
                if "pipe" in f.read():
                    break
            time.sleep(0.05)
        p.send_signal(signal.SIGINT)
        time.sleep(0.2)
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(timeout=60), 130)
        p.stdout.close()
        p.stderr.close()

    def test_closed_output(self):
        p = self.start("-q")
        p.stdout.read(1)
        p.stdout.close()
        err = p.stderr.read()
        self.assertEqual(p.wait(timeout=60), 1)
        self.assertIn(b"standard output", err)
        p.stderr.close()

    def test_full_disk(self):
        with open("/dev/full", "wb") as full:
            for args in (["run", *self.M, "-q", "-p", "x", "-n", "2"], ["run", *self.M, "-q", "-p", "x", "-n", "2", "--json"], ["help"], ["inspect", path("qwen3.gguf")]):
                p = subprocess.run([RATOON, *args], stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
                self.assertEqual(p.returncode, 1, args)
                self.assertIn(b"standard output", p.stderr)

    def test_bus_error(self):
        p = self.start("-q")
        p.stdout.read(1)
        p.send_signal(signal.SIGBUS)
        _, err = p.communicate(timeout=60)
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
        special = json.loads(self.ratoon("tokenize", "-m", path("qwen3.gguf"), "--json", "--special", "-p", text).stdout)["tokens"]
        self.assertLess(len(special), len(j["tokens"]))
        self.assertEqual(self.ratoon("tokenize", "-m", path("qwen3.gguf"), "-p", "").stdout, b"\n")

    def test_bad(self):
        self.says("tokenize", "-m", path("small-qwen3.gguf"), "-p", "x", names=["tokenizer"])
        self.says("tokenize", "-m", path("absent.gguf"), "-p", "x", names=["absent.gguf"])
        self.says("detokenize", "-m", path("qwen3.gguf"), "--tokens", "1,2,x", names=["--tokens"])
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
        self.ratoon("logits", *self.M, "--tokens", "@" + write("t.txt", b"1 2\n3\n"), "--taps", "0,2", "--out", path("x.f32"))
        self.assertEqual(len(floats(path("x.f32.taps"))), 3 * 2 * 64)

    def test_drafter(self):
        a, b = path("a.f32"), path("b.f32")
        for layout, out in (("luce", a), ("llama", b)):
            self.ratoon("logits", "-q", "-m", path("qwen3.gguf"), "-d", path("dflash-qwen3-%s.gguf" % layout), "--prefix", "7,8,9", "--tokens", "1", "--out", out)
        self.assertEqual(len(floats(a)), 16 * 2048)
        self.assertEqual(floats(a), floats(b))
        self.says("logits", "-q", "-m", path("qwen3.gguf"), "-d", path("dflash-qwen3-luce.gguf"), "--tokens", "1,2", "--out", a, expect=2, names=["anchor"])

    def test_bad(self):
        out = path("y.f32")
        self.says("logits", *self.M, "--tokens", "1,2", "--parents", "-1", "--out", out, expect=2, names=["--parents"])
        self.says("logits", *self.M, "--tokens", "1,2", "--parents", "-1,1", "--out", out, names=["parent"])
        self.says("logits", *self.M, "--tokens", "96", "--out", out, names=["96"])
        self.says("logits", *self.M, "--tokens", "1", "--taps", "77", "--out", out, names=["77"])
        self.says("logits", *self.M, "--tokens", "1", "--out", path("no/where.f32"), names=["no/where.f32"])


class Files(Cli):
    def test_inspect(self):
        out = self.ratoon("inspect", path("qwen3.gguf")).stdout.decode()
        self.assertIn("token_embd.weight", out)
        self.assertIn("general.architecture (string) = \"qwen3\"", out)
        j = json.loads(self.ratoon("inspect", "--json", path("qwen3.gguf")).stdout)
        self.assertEqual(j["format"], "gguf")
        self.assertEqual(j["keys"]["qwen3.block_count"]["value"], "4")
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
        data[-4:] = struct.pack("<f", math.nan)                        # the last value of the last tensor, or padding behind it
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
        # The data of the last tensors: find a Q8_0 block scale by its place from the end of the file.
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
        self.says("quantize", path("qwen3.gguf"), path("q.gguf"), "Q99", expect=2, names=["Q99"])
        self.says("quantize", path("absent.gguf"), path("q.gguf"), "Q8_0", names=["absent.gguf"])

    def run_q8(self):
        return self.run_json("-m", path("q8.gguf"), "-d", "none", "-p", "hello", "-n", "4", "--ignore-eos")

    def test_plan(self):
        p = json.loads(self.ratoon("plan", "--json", "-m", path("qwen3.gguf"), "-d", path("dflash-qwen3-luce.gguf")).stdout)
        self.assertEqual(p["total_bytes"], sum(x["bytes"] for x in p["parts"]))
        self.assertIn("program", [x["name"] for x in p["parts"]])
        plain = json.loads(self.ratoon("plan", "--json", "-m", path("qwen3.gguf"), "-d", "none", "--ctx", "100").stdout)
        self.assertLess(plain["total_bytes"], p["total_bytes"])
        self.assertIn(b"total", self.ratoon("plan", "-q", "-m", path("qwen3.gguf"), "-d", "none").stdout)
        self.says("plan", "-q", "-m", path("absent.gguf"), "-d", "none", names=["absent.gguf"])


class Measure(Cli):
    D = property(lambda self: ["-q", "-m", path("qwen3.gguf"), "-d", path("dflash-qwen3-llama.gguf")])

    def test_verify(self):
        out = self.ratoon("verify", *self.D, "--prompts", path("prompts.jsonl"), "-n", "10", "--budget", "8,auto", "--threads", "1,2").stdout.decode()
        self.assertIn("0 differ", out.strip().split("\n")[-1])
        j = json.loads(self.ratoon("verify", *self.D, "--prompts", path("prompts.jsonl"), "-n", "10", "--budget", "22", "--modes", "t1", "--json", "--threads", "2").stdout)
        self.assertEqual((j["differing"], j["first_difference"], j["prompts"]), (0, None, 2))
        self.assertEqual(j["compared"], sum(w["compared"] for w in j["ways"]))
        self.assertGreaterEqual(j["compared"], 2)
        chain = json.loads(self.ratoon("verify", *self.D, "--prompts", path("prompts.jsonl"), "-n", "4", "--chain", "--modes", "greedy", "--json", "--threads", "1").stdout)
        self.assertEqual([w["way"] for w in chain["ways"]], ["chain"])

    def test_prompts_file(self):
        self.says("verify", *self.D, "--prompts", path("absent.jsonl"), names=["absent.jsonl"])
        self.says("verify", *self.D, "--prompts", write("e.jsonl", b"\n"), names=["no prompts"])
        self.says("verify", *self.D, "--prompts", write("b.jsonl", b'{"prompt": "a"}\n{"prompt": 3}\n'), names=["b.jsonl line 2"])
        self.says("verify", *self.D, "--prompts", write("j.jsonl", b'{"prompt": "a"\n'), names=["j.jsonl line 1"])
        self.says("verify", "-q", "-m", path("qwen3.gguf"), "-d", "none", "--prompts", path("prompts.jsonl"), names=["drafter"])

    def test_doctor(self):
        out = self.ratoon("doctor", *self.D).stdout.decode()
        for word in ("hidden size", "tap layers", "fc", "mask id", "block", "verdict: suspicious"):
            self.assertIn(word, out)
        j = json.loads(self.ratoon("doctor", *self.D, "--json").stdout)
        self.assertGreaterEqual(j["guessed"], 64)
        self.assertEqual((j["draft.block"], j["model.vocab"]), ("16", "2048"))
        self.says("doctor", "-q", "-m", path("qwen3.gguf"), "-d", path("dflash-llama-llama.gguf"), names=["dflash-llama-llama.gguf"])
        self.says("doctor", "-q", "-m", path("qwen3.gguf"), "-d", "none", names=["drafter"])
        self.ratoon("doctor", *self.D, "--text", write("text.txt", b"hello world, " * 40))

    def test_eval(self):
        text = write("eval.txt", b"hello world, this is a text. " * 12)
        out = self.ratoon("eval", "-q", "-m", path("qwen3.gguf"), "--window", "32", text).stdout.decode()
        self.assertRegex(out, r"perplexity \d")
        j = json.loads(self.ratoon("eval", "-q", "-m", path("qwen3.gguf"), "--window", "32", "--json", text).stdout)
        self.assertAlmostEqual(j["perplexity"], math.exp(j["nll"]), delta=1e-3 * j["perplexity"])
        self.assertLess(j["scored"], j["tokens"])
        # By hand: the window is one chain of rows.
        ids = self.ratoon("tokenize", "-m", path("qwen3.gguf"), "-p", "hello wor").stdout.decode().strip()
        self.ratoon("logits", "-q", "-m", path("qwen3.gguf"), "--tokens", ids, "--out", path("e.f32"))
        x, tokens, nll = floats(path("e.f32")), [int(i) for i in ids.split(",")], 0.0
        for i, t in enumerate(tokens[1:]):
            row = x[i * 2048:(i + 1) * 2048]
            nll += math.log(sum(math.exp(v) for v in row)) - row[t]
        j = json.loads(self.ratoon("eval", "-q", "-m", path("qwen3.gguf"), "--json", write("e.txt", b"hello wor")).stdout)
        self.assertAlmostEqual(j["nll"], nll / (len(tokens) - 1), places=5)
        self.says("eval", "-q", "-m", path("qwen3.gguf"), write("short.txt", b""), names=["short.txt"])
        self.says("eval", "-q", "-m", path("qwen3.gguf"), path("absent.txt"), names=["absent.txt"])

    def test_passes(self):
        j = json.loads(self.ratoon("bench", "-q", "-m", path("qwen3.gguf"), "--passes", "1,8", "--repeats", "2", "--json").stdout)
        self.assertEqual([p["rows"] for p in j["passes"]], [1, 8])
        self.assertTrue(all(p["ms"] > 0 and p["share_of_limit"] > 0 for p in j["passes"]))

    def test_bench(self):
        prompts = ["--prompts", path("prompts.jsonl"), "-n", "8", "--pairs", "2", "--ignore-eos"]
        j = json.loads(self.ratoon("bench", *self.D, *prompts, "--json", "--write-profile", path("profile.json")).stdout)
        self.assertEqual([w["way"] for w in j["ways"]], ["plain", "chain", "tree 22", "auto"])
        self.assertEqual((j["differing_texts"], j["simulated"]), (0, None))
        self.assertEqual(set(j["ways"][0]["classes"]), {"a", "b"})
        self.assertEqual(j["ways"][0]["ratio"], 1.0)
        with open(path("profile.json")) as f:
            self.assertIn("edge", json.load(f))
        csv = self.ratoon("bench", *self.D, *prompts, "--csv", "--chain").stdout.decode().strip().split("\n")
        self.assertEqual(len(csv), 1 + 2 * 2 * 2)

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
    args = [a for a in sys.argv[1:] if not a.startswith("-")]
    loader = unittest.TestLoader()
    module = sys.modules[__name__]
    suite = loader.loadTestsFromNames(args, module) if args else loader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(verbosity=2 if "-v" in sys.argv else 1).run(suite)
    failed = len(result.failures) + len(result.errors)
    print("%d passed, %d failed" % (result.testsRun - failed, failed))
    return 1 if failed or result.testsRun == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
