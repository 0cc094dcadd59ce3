#!/usr/bin/env python3
"""What a newcomer gives by mistake, and the one line with which each is answered: it names the file and what it is, and
says what to do next.

    python3 tests/cli/test_mistakes.py [-v] [TestName.test_name ...]"""
import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report
from scratch import DEMO, RATOON, TMP, path, with_template, write

DRAFTER = os.path.join(os.path.dirname(DEMO), "dflash-ratoon-demo-bf16.gguf")
HOME = {"HOME": path("home"), "XDG_CONFIG_HOME": path("home"), "XDG_CACHE_HOME": path("home"), "HF_HOME": path("home"),
        "OLLAMA_MODELS": path("home"), "PATH": os.environ["PATH"]}
TENSOR = struct.pack("<IQQI", 2, 256, 4096, 8)             # shape and type of the demo's token_embd.weight
IQ1_S, TQ2_0 = 19, 35                                      # numbers of types that do not run


def demo():
    with open(DEMO, "rb") as f:
        return f.read()


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def gguf(keys, tensors=1):
    """A file with text keys, and tensors of 32 zeros."""
    out = b"GGUF" + struct.pack("<IQQ", 3, tensors, len(keys))
    for key, value in keys.items():
        out += text(key) + struct.pack("<I", 8) + text(value)
    for i in range(tensors):
        out += text("blk.%d.x.weight" % i) + struct.pack("<IQIQ", 1, 32, 0, 128 * i)
    return out + bytes(-len(out) % 32) + bytes(128 * tensors)


def swapped(data, old, new, after=b""):
    """One replacement by as many bytes, the first behind `after`."""
    assert len(old) == len(new)
    at = data.index(old, data.index(after))
    return data[:at] + new + data[at + len(old):]


SAFETENSORS = struct.pack("<Q", 56) + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  ' + bytes(8)
AGAIN, CONVERT, OWN = "fetch it again", "convert_hf_to_gguf.py", "the model's own file"
OTHER_TYPE = "another quantisation of the model"

# What is given for -m: the file's name, its bytes, words of the answer.
MODELS = [
    ("empty.gguf", b"", "is empty", AGAIN),
    ("begun.gguf", b"GGUF\3\0", "has 6 bytes", AGAIN),
    ("lfs.gguf", "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 17\n",
     "is a Git LFS pointer", "git lfs pull"),
    ("page.gguf", "\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head>", "is a web page", "ratoon pull"),
    ("page2.gguf", "<html>Access denied</html>", "is a web page", "ratoon pull"),
    ("answer.gguf", '{"error":"Invalid username or password."}', "is JSON text", "server's message", AGAIN),
    ("manifest", '{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json"}',
     "is an Ollama manifest", "application/vnd.ollama.image.model"),
    ("notes.txt", "Once upon a time\n", "not a GGUF file (it starts with 'Once')", "-p or -f"),
    ("root.gguf", "root::0:0", "it starts with 'root'"),
    ("model.zip", b"PK\3\4" + bytes(60), "is an archive", CONVERT),
    ("model.gz", b"\x1f\x8b" + bytes(60), "is an archive", CONVERT),
    ("pytorch_model.bin", b"\x80\2}q\0" + bytes(60), "is a PyTorch file", CONVERT),
    ("model.safetensors", SAFETENSORS, "is a safetensors file", CONVERT),
    ("old.bin", b"tjgg" + bytes(60), "is an old GGML file", CONVERT),
    ("swapped.gguf", b"FUGG" + bytes(60), "its bytes swapped"),
    ("random.gguf", bytes(range(0xc0, 0xe0)) + bytes(40), "starts with the bytes c0 c1 c2 c3"),
    ("v1.gguf", b"GGUF" + struct.pack("<I", 1) + bytes(90), "GGUF version 1, expected 2 or 3", "newer GGUF"),
    ("big.gguf", b"GGUF" + struct.pack(">I", 3) + bytes(90), "big-endian GGUF version 3", "newer GGUF"),
    ("imatrix.dat", struct.pack("<II", 2, 19) + b"blk.0.attn_q.weight" + bytes(90), "is an importance matrix",
     "name the model itself"),
    ("imatrix.gguf", gguf({"general.type": "imatrix"}), "general.type is 'imatrix'", "name the model itself"),
    ("mmproj.gguf", gguf({"general.type": "mmproj", "general.architecture": "clip"}), "is a vision projector", OWN),
    ("clip.gguf", gguf({"general.architecture": "clip"}), "is a vision projector", OWN),
    ("lora.gguf", gguf({"general.type": "adapter", "general.architecture": "qwen3"}), "general.type is 'adapter'",
     "llama-export-lora"),
    ("vocab.gguf", gguf({"general.architecture": "qwen3"}, tensors=0), "holds no tensors", "a vocabulary", OWN),
    ("gemma3.gguf", gguf({"general.architecture": "gemma3", "tokenizer.ggml.model": "llama"}),
     "architecture is 'gemma3', which is not supported (supported: llama, qwen3, qwen3moe, qwen35"),
    ("nothing.gguf", gguf({"general.name": "x"}), "general.architecture is missing"),
]

# What is made of the demo model.
CHANGED = [
    ("iq1.gguf", lambda d: swapped(d, TENSOR, TENSOR[:-4] + struct.pack("<I", IQ1_S)), "type IQ1_S", "Q4_K",
     OTHER_TYPE),
    ("tq2.gguf", lambda d: swapped(d, TENSOR, TENSOR[:-4] + struct.pack("<I", TQ2_0)), "type TQ2_0", OTHER_TYPE),
    ("pre.gguf", lambda d: swapped(d, b"qwen2", b"qwen9", b"tokenizer.ggml.pre"), 'pre "qwen9" is not supported',
     "qwen35, llama-bpe"),
    ("words.gguf", lambda d: swapped(d, b"gpt2", b"bert", b"tokenizer.ggml.model"), 'model "bert" is not supported'),
    ("header.gguf", lambda d: d[:100], "n_kv is", AGAIN),
    ("keys.gguf", lambda d: d[:5000], "tokenizer.ggml.tokens", "bytes are left", AGAIN),
    ("half.gguf", lambda d: d[:len(d) // 2], "the file is cut off", AGAIN),
    ("almost.gguf", lambda d: d[:-100], "the file is cut off", AGAIN),
]


class Mistakes(unittest.TestCase):
    def ratoon(self, *args, program=RATOON, **more):
        return subprocess.run([program, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=HOME, timeout=300, **more)

    def answered(self, args, words, expect=1, **more):
        """Fails with one line on stderr that has all the words."""
        p = self.ratoon(*args, **more)
        said = p.stderr.decode().strip()
        self.assertEqual(p.returncode, expect, "%s: %s" % (args, said))
        self.assertEqual(p.stdout, b"", args)
        if args[0] == "serve":                             # which first says where it listens
            said = said.split("\n", 1)[-1]
        self.assertEqual(len(said.split("\n")), 1, said)
        self.assertTrue(said.startswith("ratoon %s: " % args[0]), said)
        for word in words:
            self.assertIn(word, said)
        return said

    def model(self, given, *words, **more):
        return self.answered(["run", "-q", "-m", given, "-p", "x"], [os.path.basename(given), *words], **more)

    def test_files_that_are_no_model(self):
        for name, data, *words in MODELS:
            with self.subTest(name):
                said = self.model(write(name, data), *words)
                self.assertLess(len(said), 400)

    def test_models_that_do_not_run(self):
        data = demo()
        for name, change, *words in CHANGED:
            with self.subTest(name):
                self.model(write(name, change(data)), *words)

    def test_every_command_says_it(self):
        file = write("lfs2.gguf", MODELS[2][1])
        for args in (["chat", "-q", "-m", file], ["serve", "-q", "-m", file, "--port", "0"], ["plan", "-m", file],
                     ["doctor", "-q", "-m", file], ["tokenize", "-q", "-m", file, "-p", "x"], ["inspect", file],
                     ["eval", "-q", "-m", file, path("lfs2.gguf")], ["bench", "-q", "-m", file, "--passes", "1"],
                     ["quantize", file, path("out.gguf"), "Q8_0"],
                     ["logits", "-q", "-m", file, "--tokens", "1", "--out", path("x.f32")]):
            with self.subTest(args[0]):
                self.answered(args, ["is a Git LFS pointer", "git lfs pull"])

    def test_folders(self):
        for folder in ("one", "two", "hf", "none"):
            os.makedirs(path(folder))
        os.link(write("a-model.gguf", gguf({"general.architecture": "qwen3"})), path("one/a-model.gguf"))
        for name in ("b.gguf", "a.gguf"):
            shutil.copy(path("a-model.gguf"), path("two/" + name))
        write("hf/config.json", "{}")
        write("hf/model.safetensors", SAFETENSORS)
        self.model(path("one"), "is a folder", "name the file in it: " + path("one/a-model.gguf"))
        self.model(path("one") + "/", "name the file in it: " + path("one/a-model.gguf"))
        self.model(path("two"), "is a folder", "one of its 2 GGUF files, such as " + path("two/a.gguf"))
        self.model(path("hf"), "is a folder", CONVERT)
        self.model(path("none"), "is a folder", "needs a GGUF file")

    def test_names_that_are_missing(self):
        write("near-Q8_0.gguf", gguf({"general.architecture": "qwen3"}))
        self.model(path("naer-Q8_0.gguf"), "cannot be opened", "did you mean %s?" % path("near-Q8_0.gguf"))
        self.model(path("near-q8_0.guff"), "did you mean %s?" % path("near-Q8_0.gguf"))
        long = path("DeepSeek-R1-Distill-Llama-70B-Instruct-Q4_K_M.gguf")
        shutil.copy(path("near-Q8_0.gguf"), long)
        self.model(long.replace("Distill", "Distil"), "did you mean %s?" % long)
        os.makedirs(path("folder"))
        shutil.copy(path("near-Q8_0.gguf"), path("folder"))
        self.model("folder/naer-Q8_0.gguf", "did you mean folder/near-Q8_0.gguf?", cwd=TMP)
        self.model(path("near"), "did you mean %s?" % path("near-Q8_0.gguf"))
        self.model("Qwen/Qwen3-8B-GGUF:Q4_K_M", "no such file", "ratoon pull Qwen/Qwen3-8B-GGUF:Q4_K_M", cwd=TMP)
        self.model(path("quite-another"), "cannot be opened", "ratoon models", "-hf OWNER/NAME")
        self.answered(["run", "-q", "-m", DEMO, "-d", path("quite-another"), "-p", "x"], ["quite-another", "-d none"])
        shutil.copy(path("near-Q8_0.gguf"), path("model.gguf"))
        said = self.answered(["run", "-q", "-m", DEMO, "-d", path("nope.gguf"), "-p", "x"], ["-d none"])
        self.assertNotIn("did you mean", said)
        self.model(path("modle.gguf"), "did you mean %s?" % path("model.gguf"))
        self.answered(["inspect", path("naer-Q8_0.gguf")], ["did you mean %s?" % path("near-Q8_0.gguf")])

    def test_split_files(self):
        os.makedirs(path("split"))
        shutil.copy(DEMO, path("split/m-00002-of-00003.gguf"))
        self.answered(["run", "-q", "-m", path("split/m-00002-of-00003.gguf"), "-p", "x"],
                      ["m-00001-of-00003.gguf", "needs all its parts", "in one folder"])

    def test_files_that_may_not_be_read(self):
        someone = {}
        if os.geteuid() == 0:                              # who may read everything
            someone = {"user": 65534, "group": 65534, "extra_groups": []}
            os.chmod(TMP, 0o711)
            try:
                if self.ratoon("version", **someone).returncode:
                    self.skipTest("nobody else can run the program")
            except OSError as e:
                self.skipTest("nobody else can run the program: %s" % e)
        os.chmod(write("private.gguf", demo()[:4096]), 0)
        self.model(path("private.gguf"), "Permission denied", "chmod a+r", **someone)
        os.mkdir(path("closed"))
        os.chmod(path("closed"), 0)
        self.model(path("closed/model.gguf"), "Permission denied", "chmod a+r", **someone)
        os.chmod(path("closed"), 0o700)

    def test_model_and_drafter_confused(self):
        pair = ["-p", "x", "-n", "2"]
        self.model(DRAFTER, "is a drafter (dflash)", "with -m", "with -d")
        self.answered(["run", "-q", "-m", DEMO, "-d", DEMO, *pair], [DEMO, "-d takes a drafter, -m the model", "-d none"])
        self.answered(["run", "-q", "-m", DRAFTER, "-d", DEMO, *pair], [DRAFTER, "is a drafter"])
        self.answered(["run", "-q", "-m", DEMO, "-d", write("draft.txt", "Once upon a time there was"), *pair],
                      ["is a text file, expected a safetensors file", "a drafter is"])
        self.answered(["run", "-q", "-m", DEMO, "-d", write("draft.gguf", MODELS[2][1]), *pair],
                      ["is a Git LFS pointer", "git lfs pull"])

    def test_texts_and_contexts(self):
        prompt = write("long.txt", "word " * 4000)
        self.answered(["run", "-q", "-m", DEMO, "--ctx", "512", "-f", prompt], ["prompt: ", "512", "raise --ctx"])
        small = lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))     # some machines have room for it
        self.answered(["run", "-q", "-m", DEMO, "--ctx", "1024k", "-ctk", "f32", "-ctv", "f32", "-p", "x"],
                      ["ctx: ", "memory", "smaller --ctx"], preexec_fn=small)
        for command in ["run", "-p", "x"], ["chat", "-p", "x"], ["plan"], ["serve"], ["doctor"], ["verify"]:
            for option in "--ctx", "--draft-ctx":
                if command[0] in ("run", "plan", "serve") or option == "--ctx":
                    self.answered([*command, "-q", "-m", DEMO, option, str((1 << 20) + 1)],
                                  ["%s is '1048577', expected a whole number from 1 to 1048576" % option], expect=2)
        denoises = os.path.join(os.path.dirname(DEMO), "ratoon-diffusion-demo-q8_0.gguf")
        for command in ["run", "-p", "x"], ["plan"], ["serve", "--port", "0"]:     # a block has to fit behind it
            self.answered([*command, "-q", "-m", denoises, "--ctx", "1024k"],
                          ["ctx: 1048576, expected 1 to 1048544 tokens"])
        write("person.json", "{}")
        for option, name in (("--json-schema", "persn.json"), ("--grammar", "persno.json"), ("-f", "preson.json")):
            more = [] if option == "-f" else ["-p", "x"]
            self.answered(["run", "-q", "-m", DEMO, *more, option, path(name)],
                          [name, "No such file", "did you mean %s?" % path("person.json")])
        self.answered(["run", "-q", "-p", "x", "--grammar", "root = a"],
                      ["'root = a' is neither a file nor a grammar, which has ::= in it"])
        self.answered(["chat", "-q", "-p", "x", "--json-schema", "[]"],
                      ["'[]' is neither a file nor a schema, which begins with {"])
        self.answered(["detokenize", "-q", "99999"], ["token ids: bad list at '99999', expected numbers from 0 to"])
        base = with_template(DEMO, "base.gguf", None)
        said = self.ratoon("run", "-m", base, "--chat", "-p", "hello", "-n", "2").stderr
        self.assertIn(b"base.gguf has no chat template, the built-in chatml template is used", said)

    def test_port_in_use(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = str(s.getsockname()[1])
            self.answered(["serve", "-q", "-m", DEMO, "--port", port], [port, "in use", "choose another --port"])

    def test_quantize(self):
        out = write("there.gguf", "x")
        self.answered(["quantize", DEMO, out, "F16"], [out, "exists already", "--force"])
        self.answered(["quantize", DEMO, path("new.gguf"), "q4_km"], ["'q4_km'", "IQ4_XS", "did you mean Q4_K_M?"],
                      expect=2)
        self.answered(["quantize", path("there.gguf"), path("new.gguf"), "F16"], ["not a GGUF file"])

    def kept(self, file, args, **more):
        """Refused by name, and the file is what it was."""
        with open(file, "rb") as f:
            before = f.read()
        self.answered(args, [os.path.basename(file), "is an input, expected another file to write"], **more)
        with open(file, "rb") as f:
            self.assertTrue(f.read() == before, file)

    def test_outputs_that_are_inputs(self):
        model, drafter = shutil.copy(DEMO, path("kept.gguf")), shutil.copy(DRAFTER, path("kept-dflash.gguf"))
        ids, config = write("ids.txt", "1,2,3"), write("kept.conf", "threads = 1\n")
        logits = ["logits", "-q", "-m", model, "--tokens"]
        self.kept(model, [*logits, "1", "-o", model])
        self.kept(ids, [*logits, "@" + ids, "-o", ids])
        self.kept(ids, [*logits, "1", "--prefix", "@" + ids, "-o", ids])
        self.kept(config, [*logits, "1", "--config", config, "-o", config])
        os.link(ids, path("x.f32.taps"))
        self.kept(path("x.f32.taps"), [*logits, "@" + ids, "--taps", "1", "-o", path("x.f32")])
        os.symlink(model, path("linked.gguf"))
        self.answered([*logits, "1", "-o", path("linked.gguf")], ["linked.gguf: is an input"])
        profile = write("profile.json", '{"edge": [[0.5]]}')
        prompts = write("prompts.jsonl", '{"prompt": "x"}\n')
        bench = ["bench", "-q", "-m", model, "-n", "4", "--prompts", prompts]
        self.kept(profile, [*bench, "--simulate-acceptance", profile, "--csv", profile])
        self.kept(prompts, [*bench, "--svg", prompts])
        self.kept(drafter, [*bench, "--csv", drafter])                 # nobody named it: it lies beside the model
        os.makedirs(path("away/models/demo"))                          # nor this one: it lies beside the program
        program, found = shutil.copy(RATOON, path("away/ratoon")), shutil.copy(DEMO, path("away/models/demo"))
        self.kept(found, ["logits", "-q", "--tokens", "1", "-o", found], program=program)

    def test_outputs_that_are_parts(self):
        os.makedirs(path("parts"))
        u16, i32 = lambda n: struct.pack("<IH", 2, n), lambda n: struct.pack("<Ii", 5, n)
        for i in range(2):                                             # the first one holds no tensors, as often
            keys = [("split.no", u16(i)), ("split.count", u16(2)), ("split.tensors.count", i32(1))]
            out = b"GGUF" + struct.pack("<IQQ", 3, i, len(keys)) + b"".join(text(k) + v for k, v in keys)
            if i:
                out += text("blk.0.x.weight") + struct.pack("<IQIQ", 1, 32, 0, 0)
            write("parts/m-0000%d-of-00002.gguf" % (i + 1), out + bytes(-len(out) % 32) + bytes(128 * i))
        first, second = path("parts/m-00001-of-00002.gguf"), path("parts/m-00002-of-00002.gguf")
        for given in (first, second):
            for out in (first, second):
                self.kept(out, ["quantize", "--force", given, out, "F16"])
                self.kept(out, ["logits", "-q", "-m", given, "--tokens", "1", "-o", out])


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
