#!/usr/bin/env python3
"""Which drafter is found for a model, and what is said about it: names in any case, folders, several candidates, unfit
and damaged ones, the table of published drafters, and a drafter whose guesses are all wrong.

    python3 tests/cli/test_drafters.py [-v] [TestName.test_name ...]

RATOON and MAKE_TINY name the programs, as in test_cli.py. The last line is 'N passed, N failed'."""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "serve"))
import report
from helper import Server
from scratch import DEMO, RATOON, ROOT, TMP, path, write

MAKE_TINY = os.environ.get("MAKE_TINY", os.path.join(ROOT, os.environ.get("BUILD", "build"), "tests", "make_tiny"))
GOOD = os.path.join(os.path.dirname(DEMO), "dflash-ratoon-demo-bf16.gguf")
TINY = path("tiny")
HOME = path("home")
ENV = {**{k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "XDG_", "OLLAMA_", "LMSTUDIO"))},
       "HOME": HOME, "XDG_CONFIG_HOME": "/nonexistent"}
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def setUpModule():
    for folder in TINY, HOME:
        os.makedirs(folder)
    for name in "qwen3", "llama", "qwen35-mtp", "small-qwen3", "dflash-qwen3", "dflash-llama", "small-dflash":
        subprocess.run([MAKE_TINY, name, TINY], check=True)


def tiny(name):
    return os.path.join(TINY, name)


class Header:
    """A GGUF file taken apart: raw keys and tensors, to be written again in other ways."""
    def __init__(self, file):
        self.data = open(file, "rb").read()
        n_tensors, n_keys = struct.unpack_from("<QQ", self.data, 8)
        self.at, self.keys, self.tensors = 24, [], []
        for _ in range(n_keys):
            start, name = self.at, self.text()
            self.value(self.number("<I"))
            self.keys.append((name, self.data[start:self.at]))
        for _ in range(n_tensors):
            name = self.text()
            ne = [self.number("<Q") for _ in range(self.number("<I"))]
            self.tensors.append([name, ne, self.number("<I"), self.number("<Q")])
        self.start = (self.at + 31) // 32 * 32

    def number(self, form):
        v = struct.unpack_from(form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return v

    def text(self):
        n = self.number("<Q")
        self.at += n
        return self.data[self.at - n:self.at]

    def value(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            elem, n = self.number("<I"), self.number("<Q")
            for _ in range(n):
                self.value(elem)
        else:
            self.at += SIZES[kind]

    def bytes_of(self, i):
        offset = self.tensors[i][3]
        end = min([t[3] for t in self.tensors if t[3] > offset], default=len(self.data) - self.start)
        return self.data[self.start + offset:self.start + end]

    def write(self, file, keys, tensors):
        """tensors: indexes."""
        out, body = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys), b""
        for i in tensors:
            name, ne, kind, _ = self.tensors[i]
            out += struct.pack("<Q", len(name)) + name + struct.pack("<I%dQ" % len(ne), len(ne), *ne)
            out += struct.pack("<IQ", kind, len(body))
            body += self.bytes_of(i)
            body += b"\0" * (-len(body) % 32)
        with open(file, "wb") as f:
            f.write(out + b"\0" * (-len(out) % 32) + body)


def key(name, kind, value):
    forms = {2: "<H", 4: "<I", 5: "<i"}
    raw = struct.pack("<Q", len(value)) + value if kind == 8 else struct.pack(forms[kind], value)
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + raw


def with_name(model, file, name):
    """A copy with another general.name."""
    h = Header(model)
    h.write(file, [raw for k, raw in h.keys if k != b"general.name"] + [key("general.name", 8, name.encode())],
            range(len(h.tensors)))
    return file


def split(model, stem):
    """Writes two parts and returns the first."""
    h, files = Header(model), ["%s-%05d-of-00002.gguf" % (stem, i) for i in (1, 2)]
    half, n = len(h.tensors) // 2, len(h.tensors)
    for i, (file, tensors) in enumerate(zip(files, (range(half), range(half, n)))):
        mine = [key("split.no", 2, i), key("split.count", 2, 2), key("split.tensors.count", 5, n)]
        h.write(file, [raw for _, raw in h.keys] + mine if i == 0 else mine, tensors)
    return files[0]


class Finding(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=TMP)
        self.program = RATOON
        self.model = with_name(tiny("qwen3.gguf"), self.at("Tiny-1B-F32.gguf"), "")

    def at(self, name):
        return os.path.join(self.folder, name)

    def put(self, what, name):
        """Copies a tiny model, file or folder, and returns where it is."""
        os.makedirs(os.path.dirname(self.at(name)), exist_ok=True)
        if os.path.isdir(tiny(what)):
            return shutil.copytree(tiny(what), self.at(name))
        return shutil.copy(tiny(what), self.at(name))

    def run_model(self, *args, model=None, expect=0):
        p = subprocess.run([self.program, "run", "--json", "-v", "-m", model or self.model, "-p", "hello",
                            "-n", "2", "--budget", "8", "--threads", "1", *args], stdin=subprocess.DEVNULL, timeout=120,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
        said = p.stderr.decode()
        self.assertEqual(p.returncode, expect, said)
        return json.loads(p.stdout)["draft"] if expect == 0 else None, said

    def finds(self, name, **kw):
        draft, said = self.run_model(**kw)
        self.assertEqual(draft, os.path.basename(name) if name else None, said)
        if name:
            self.assertIn("using drafter %s, found next to the model (-d none turns it off)" % name, said)
        return said


class Beside(Finding):
    def test_names_in_any_case(self):
        for name in ("Tiny-1B-DFlash-Q8_0.gguf", "tiny-1b-dflash.q8_0.gguf", "DFLASH-other.GGUF", "some-Draft.gguf",
                     "Qwen3.6-27B-DFlash-Q8_0.gguf", "dflash-draft-3.6-q8_0.gguf"):
            with self.subTest(name):
                file = self.put("dflash-qwen3-llama.gguf", name)
                self.finds(name)
                os.remove(file)
        self.finds(None)

    def test_a_name_without_the_word(self):
        self.put("dflash-qwen3-llama.gguf", "helper.gguf")
        self.assertIn("no drafter found next to the model", self.finds(None))

    def test_folders(self):
        for what, name in (("dflash-qwen3-hf", "draft"), ("dflash-qwen3-hf", "Tiny-1B-DFlash")):
            with self.subTest(name):
                self.put(what, name)
                self.finds(name)
                shutil.rmtree(self.at(name))
        file = self.put("dflash-qwen3-llama.gguf", "Draft/model.gguf")
        draft, said = self.run_model()
        self.assertEqual(draft, "model.gguf")
        self.assertIn("using drafter Draft/model.gguf, found", said)
        os.remove(file)
        self.finds(None)
        os.makedirs(self.at("drafts-of-letters"))
        self.assertNotIn("ignoring", self.finds(None))

    def test_a_folder_given_by_hand(self):
        self.put("dflash-qwen3-llama.gguf", "any/model.gguf")
        self.put("dflash-qwen3-hf", "folder")
        self.assertEqual(self.run_model("-d", self.at("any"))[0], "model.gguf")
        self.assertEqual(self.run_model("-d", self.at("folder"))[0], "folder")

    def test_the_fitting_one_of_several(self):
        self.put("dflash-llama-llama.gguf", "Tiny-1B-DFlash-Q8_0.gguf")
        self.put("small-dflash-llama.gguf", "a-draft.gguf")
        self.put("dflash-qwen3-luce.gguf", "z-draft.gguf")
        self.assertNotIn("ignoring", self.finds("z-draft.gguf"))

    def test_the_order_of_several_that_fit(self):
        for name in "a-draft.gguf", "Other-1B-DFlash.gguf", "Tiny-1B-DFlash-F32.gguf":
            self.put("dflash-qwen3-llama.gguf", name)
        self.finds("Tiny-1B-DFlash-F32.gguf")              # the model's name
        smaller = self.at("Tiny-1B-DFlash-zz.gguf")        # the same name, fewer bytes: no tokenizer
        h = Header(tiny("dflash-qwen3-llama.gguf"))
        h.write(smaller, [raw for k, raw in h.keys if k not in (b"tokenizer.ggml.tokens", b"tokenizer.ggml.merges",
                b"tokenizer.ggml.token_type", b"tokenizer.ggml.model", b"tokenizer.ggml.pre")], range(len(h.tensors)))
        self.finds("Tiny-1B-DFlash-zz.gguf")
        os.remove(smaller)
        os.remove(self.at("Tiny-1B-DFlash-F32.gguf"))
        self.finds("Other-1B-DFlash.gguf")                 # the model's size
        os.remove(self.at("Other-1B-DFlash.gguf"))
        self.put("dflash-qwen3-llama.gguf", "b-draft.gguf")
        self.finds("a-draft.gguf")                         # equal: by name

    def test_general_name_names_a_model_too(self):
        self.put("dflash-qwen3-llama.gguf", "a-draft.gguf")
        with_name(tiny("dflash-qwen3-llama.gguf"), self.at("z-draft.gguf"), "Tiny 1B DFlash")
        self.finds("z-draft.gguf")

    def test_unfit(self):
        for what, why in (("small-dflash-llama.gguf", "its hidden size is "),
                          ("small-dflash-hf", "its hidden size is "),
                          ("llama.gguf", "it is a model of architecture 'llama', not a DFlash drafter")):
            with self.subTest(what):
                name = "x-draft.gguf" if what.endswith("gguf") else "x-draft"
                self.put(what, name)
                said = self.finds(None)
                self.assertIn("ignoring drafter %s: %s" % (name, why), said)
                self.assertNotIn("no drafter found", said)
                (os.remove if os.path.isfile(self.at(name)) else shutil.rmtree)(self.at(name))
        self.put("small-dflash-llama.gguf", "a-draft.gguf")
        self.put("small-dflash-luce.gguf", "b-draft.gguf")
        self.assertIn("1 more next to the model do not fit either", self.finds(None))

    def test_a_type_that_cannot_be_read(self):
        h = Header(tiny("dflash-qwen3-llama.gguf"))
        i = [t[0] for t in h.tensors].index(b"blk.0.attn_q.weight")
        h.tensors[i][2] = 19                               # IQ1_S
        h.write(self.at("Tiny-1B-DFlash-IQ1_S.gguf"), [raw for _, raw in h.keys], range(len(h.tensors)))
        self.assertIn("ignoring drafter Tiny-1B-DFlash-IQ1_S.gguf: it has tensors of type IQ1_S, which is not "
                      "supported", self.finds(None))
        self.put("dflash-qwen3-llama.gguf", "Tiny-1B-DFlash-z.gguf")
        self.finds("Tiny-1B-DFlash-z.gguf")

    def test_another_tokenizer(self):
        h = Header(tiny("dflash-qwen3-llama.gguf"))
        keys = [raw.replace(b"assist", b"resist") if k == b"tokenizer.ggml.tokens" else raw for k, raw in h.keys]
        self.assertNotEqual(keys, [raw for _, raw in h.keys])
        h.write(self.at("x-draft.gguf"), keys, range(len(h.tensors)))
        self.assertIn("ignoring drafter x-draft.gguf: its tokenizer differs from the model's\n", self.finds(None))

    def test_what_only_loading_finds(self):
        """The header fits, a tensor is missing: the drafter is ignored and the model runs."""
        h = Header(tiny("dflash-qwen3-llama.gguf"))
        some = [i for i, t in enumerate(h.tensors) if t[0] != b"blk.1.ffn_up.weight"]
        self.assertEqual(len(some), len(h.tensors) - 1)
        h.write(self.at("x-draft.gguf"), [raw for _, raw in h.keys], some)
        draft, said = self.run_model()
        self.assertIsNone(draft)
        self.assertRegex(said, r"ignoring drafter x-draft\.gguf: (?!/).*ffn_up")

    def test_a_target_that_does_not_open_is_not_the_drafters_fault(self):
        h = Header(self.model)
        some = [i for i, t in enumerate(h.tensors) if t[0] != b"blk.1.ffn_up.weight"]
        self.assertEqual(len(some), len(h.tensors) - 1)
        h.write(self.at("broken.gguf"), [raw for _, raw in h.keys], some)
        self.put("dflash-qwen3-llama.gguf", "x-draft.gguf")
        for command in (["run", "-p", "hello"], ["plan"]):
            with self.subTest(command[0]):
                p = subprocess.run([self.program, *command, "-v", "-m", self.at("broken.gguf")], timeout=120, env=ENV,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                said = p.stderr.decode()
                self.assertEqual(p.returncode, 1, said)
                self.assertIn("using drafter x-draft.gguf", said)
                self.assertNotIn("ignoring drafter", said)
                self.assertRegex(said, r"broken\.gguf: .*blk\.1\.ffn_up\.weight")

    def test_damaged(self):
        with open(tiny("dflash-qwen3-llama.gguf"), "rb") as f:
            whole = f.read()
        for data, why in ((b"", ""), (b"version https://git-lfs.github.com/spec/v1\n", ""), (whole[:2000], ""),
                          (whole[:-5000], "")):
            with self.subTest(len(data)):
                with open(self.at("x-draft.gguf"), "wb") as f:
                    f.write(data)
                self.assertRegex(self.finds(None), r"ignoring drafter x-draft\.gguf: (?!/)\S")
        os.remove(self.at("x-draft.gguf"))
        os.mkfifo(self.at("x-draft.gguf"))                 # not opened: that would wait for a writer
        self.assertIn("ignoring drafter x-draft.gguf", self.finds(None))
        os.remove(self.at("x-draft.gguf"))
        os.symlink("nowhere", self.at("x-draft.gguf"))
        self.assertIn("ignoring drafter x-draft.gguf", self.finds(None))

    def test_projectors_are_no_candidates(self):
        self.put("dflash-qwen3-llama.gguf", "mmproj-Tiny-1B-DFlash.gguf")
        said = self.finds(None)
        self.assertNotIn("ignoring", said)

    def test_split_files(self):
        split(tiny("dflash-qwen3-llama.gguf"), self.at("Tiny-1B-DFlash"))
        self.finds("Tiny-1B-DFlash-00001-of-00002.gguf")
        os.remove(self.at("Tiny-1B-DFlash-00001-of-00002.gguf"))
        said = self.finds(None)
        self.assertNotIn("ignoring", said)                 # a second part is no file of its own
        target = split(tiny("qwen3.gguf"), self.at("Tiny-2B"))
        self.put("dflash-qwen3-llama.gguf", "Tiny-2B-DFlash.gguf")
        self.finds("Tiny-2B-DFlash.gguf", model=target)

    def test_none_and_quiet(self):
        self.put("dflash-qwen3-llama.gguf", "draft.gguf")
        draft, said = self.run_model("-d", "none")
        self.assertIsNone(draft)
        self.assertNotIn("drafter found", said)
        self.assertNotIn("ignoring", said)
        draft, said = self.run_model("-q")
        self.assertEqual((draft, said), ("draft.gguf", ""))

    def test_the_models_own_layer(self):
        """It is used unless a drafter next to the model may be this model's."""
        model = with_name(tiny("qwen35-mtp.gguf"), self.at("Own-1B.gguf"), "")
        self.assertEqual(self.run_model(model=model)[0], "mtp")
        self.put("dflash-qwen3-llama.gguf", "Other-1B-DFlash.gguf")
        self.put("dflash-qwen3-llama.gguf", "Other-7B-DFlash.gguf")
        draft, said = self.run_model(model=model)
        self.assertEqual(draft, "mtp")
        self.assertRegex(said, r"ignoring drafter Other-.B-DFlash.gguf: its name is that of another model, and this "
                               r"one has an MTP layer of its own; 1 more")
        self.put("dflash-qwen3-luce.gguf", "draft.gguf")
        self.finds("draft.gguf", model=model)
        self.put("dflash-qwen3-luce.gguf", "Own-1B-DFlash.gguf")
        self.finds("Own-1B-DFlash.gguf", model=model)
        # qwen3's pre-tokenizer, which loading finds: the model's own layer takes its place
        self.put("dflash-qwen3-llama.gguf", "Own-1B-DFlash.gguf")
        draft, said = self.run_model(model=model)
        self.assertEqual(draft, "mtp")
        self.assertIn("ignoring drafter Own-1B-DFlash.gguf: its tokenizer differs from the model's", said)

    def test_a_drafter_is_no_model(self):
        for what in "dflash-qwen3-llama.gguf", "dflash-qwen3-luce.gguf", "dflash-qwen3-hf":
            for more in [], ["-d", "none"]:
                _, said = self.run_model(*more, model=tiny(what), expect=1)
                self.assertEqual(said.count("\n"), 1, said)
                self.assertIn(what + ": is a drafter (", said)
                self.assertIn("give the model with -m and this one with -d", said)

    def test_a_projector_is_no_model(self):
        h = Header(tiny("qwen3.gguf"))
        keys = [raw for k, raw in h.keys if k != b"general.architecture"] + [key("general.architecture", 8, b"clip")]
        h.write(self.at("mmproj.gguf"), keys, range(len(h.tensors)))
        _, said = self.run_model(model=self.at("mmproj.gguf"), expect=1)
        self.assertIn("is a vision projector (clip), not a model", said)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Caches(Finding):
    def tearDown(self):
        shutil.rmtree(HOME)
        os.makedirs(HOME)

    def hub(self, repo, what, name):
        """Puts a tiny model into the Hugging Face cache; name "": a folder's files."""
        folder = os.path.join(HOME, ".cache/huggingface/hub/models--" + repo.replace("/", "--"))
        snapshot = os.path.join(folder, "snapshots", COMMIT)
        os.makedirs(os.path.join(folder, "blobs"), exist_ok=True)
        os.makedirs(os.path.join(folder, "refs"), exist_ok=True)
        os.makedirs(snapshot, exist_ok=True)
        with open(os.path.join(folder, "refs/main"), "w") as f:
            f.write(COMMIT)
        for file in [what] if name else [os.path.join(what, x) for x in os.listdir(tiny(what))]:
            blob = os.path.join(folder, "blobs", "%064x" % len(os.listdir(folder + "/blobs")))
            shutil.copy(tiny(file), blob)
            os.symlink(os.path.relpath(blob, snapshot), os.path.join(snapshot, name or os.path.basename(file)))
        return os.path.join(snapshot, name) if name else snapshot

    def finds_in(self, where, name, **kw):
        draft, said = self.run_model(**kw)
        self.assertIsNotNone(draft, said)
        self.assertIn("using drafter %s, found %s (-d none turns it off)" % (name, where), said)

    def test_by_name(self):
        self.hub("someone/Tiny-1B-DFlash-GGUF", "dflash-qwen3-llama.gguf", "Tiny-1B-DFlash-F32.gguf")
        where = "in the Hugging Face cache"
        self.finds_in(where, "someone/Tiny-1B-DFlash-GGUF:Tiny-1B-DFlash-F32.gguf")
        target = self.hub("maker/Tiny-1B-GGUF", "qwen3.gguf", "model.gguf")        # the repository names the target
        self.finds_in(where, "someone/Tiny-1B-DFlash-GGUF:Tiny-1B-DFlash-F32.gguf", model=target)
        self.put("dflash-qwen3-luce.gguf", "draft.gguf")   # what lies next to the model comes first
        self.finds("draft.gguf")

    def test_a_folder_of_safetensors(self):
        self.hub("someone/Tiny-1B-DFlash", "dflash-qwen3-hf", "")
        self.finds_in("in the Hugging Face cache", "someone/Tiny-1B-DFlash")

    def test_lm_studio(self):
        folder = os.path.join(HOME, ".lmstudio/models/someone/Tiny-1B-DFlash-GGUF")
        os.makedirs(folder)
        shutil.copy(tiny("dflash-qwen3-llama.gguf"), folder + "/Tiny-1B-DFlash.gguf")
        self.finds_in("in LM Studio's folders", "someone/Tiny-1B-DFlash-GGUF:Tiny-1B-DFlash.gguf")

    def test_never_another_models(self):
        """The shape fits, the name is another one, or none; or the name is right and the shape is not."""
        self.hub("someone/Other-1B-DFlash-GGUF", "dflash-qwen3-llama.gguf", "Other-1B-DFlash.gguf")
        self.hub("someone/drafts", "dflash-qwen3-llama.gguf", "dflash-draft-q8_0.gguf")
        self.hub("someone/Tiny-DFlash", "dflash-qwen3-llama.gguf", "Tiny-DFlash.gguf")
        self.hub("someone/Tiny-1B-DFlash-GGUF", "small-dflash-llama.gguf", "Tiny-1B-DFlash.gguf")
        said = self.finds(None)
        self.assertIn("no drafter found next to the model or in the caches", said)
        self.assertNotIn("ignoring", said)

    def test_damaged(self):
        file = self.hub("someone/Tiny-1B-DFlash-GGUF", "dflash-qwen3-llama.gguf", "Tiny-1B-DFlash.gguf")
        os.truncate(file, 3000)
        self.assertNotIn("ignoring", self.finds(None))


PAIR = {"model": "Tiny-1B", "architecture": "qwen3", "names": ["Tiny-1B"], "except": ["other"], "source": "a test",
        "drafters": [{"repo": "someone/Tiny-1B-DFlash-GGUF", "quant": "Q8_0", "format": "gguf", "bytes": 1849481472,
                      "kind": "dflash", "gated": False, "state": "verified", "source": "a test"}]}


class Table(Finding):
    """A copy of the program, with a table of its own beside it."""
    @classmethod
    def setUpClass(cls):
        cls.home = path("elsewhere")
        os.makedirs(cls.home + "/share")
        shutil.copy(RATOON, cls.home + "/ratoon")

    def setUp(self):
        super().setUp()
        self.program = self.home + "/ratoon"

    def table(self, text):
        with open(self.home + "/share/drafters.json", "w") as f:
            f.write(text if isinstance(text, str) else json.dumps(text))

    def test_the_published_one_is_named(self):
        self.table({"pairs": [PAIR]})
        said = self.finds(None)
        self.assertIn("`ratoon pull someone/Tiny-1B-DFlash-GGUF:Q8_0` gets the one published for Tiny-1B (1.8 GB)",
                      said)
        self.assertEqual(sum("no drafter found" in line for line in said.split("\n")), 1, said)
        self.put("small-dflash-llama.gguf", "x-draft.gguf")
        said = self.finds(None)
        self.assertIn("ignoring drafter x-draft.gguf", said)
        self.assertIn("ratoon pull someone/", said)
        self.put("dflash-qwen3-llama.gguf", "y-draft.gguf")
        self.assertNotIn("ratoon pull", self.finds("y-draft.gguf"))

    def test_what_the_table_names_is_found_in_the_cache(self):
        """Although neither its name nor its file's is the model's."""
        self.addCleanup(Caches.tearDown, self)
        Caches.hub(self, "someone/odd-draft", "dflash-qwen3-llama.gguf", "dflash-draft-3.6-q8_0.gguf")
        pair = lambda repo: {**PAIR, "drafters": [{**PAIR["drafters"][0], "repo": repo}]}
        self.table({"pairs": [pair("someone/else")]})
        self.assertIn("no drafter found", self.finds(None))
        self.table({"pairs": [pair("someone/odd-draft")]})
        draft, said = self.run_model()
        self.assertIsNotNone(draft, said)
        self.assertIn("using drafter someone/odd-draft:dflash-draft-3.6-q8_0.gguf, found in the Hugging Face cache",
                      said)

    def test_gated(self):
        self.table({"pairs": [{**PAIR, "drafters": [{**PAIR["drafters"][0], "gated": True}]}]})
        self.assertIn("accept its terms first: https://huggingface.co/someone/Tiny-1B-DFlash-GGUF", self.finds(None))

    def test_of_another_model(self):
        for pair in ({**PAIR, "architecture": "llama"}, {**PAIR, "layers": 77}, {**PAIR, "width": 77},
                     {**PAIR, "names": ["Tiny-10B"]}, {**PAIR, "except": ["f"]}):
            self.table({"pairs": [pair]})
            said = self.finds(None)
            self.assertIn("no drafter found", said)
            self.assertNotIn("pull", said)

    def test_general_name_and_folder_name_the_model(self):
        self.table({"pairs": [PAIR]})
        named = with_name(tiny("qwen3.gguf"), self.at("model.gguf"), "Tiny 1B")
        self.assertIn("ratoon pull", self.finds(None, model=named))
        inside = self.put("qwen3.gguf", "models--x--Tiny-1B-GGUF/snapshots/abc/model.gguf")
        self.assertIn("ratoon pull", self.finds(None, model=inside))
        self.put("qwen3.gguf", "plain/model.gguf")
        self.assertNotIn("ratoon pull", self.finds(None, model=self.at("plain/model.gguf")))

    def test_a_damaged_table_is_one_line(self):
        for text, why in (("{", "drafters.json"), ({"pairs": 5}, "pairs: expected a list"),
                          ({"pairs": [PAIR, {**PAIR, "names": "x"}]}, "pairs[1] (Tiny-1B): names: expected"),
                          ({"pairs": [{**PAIR, "drafters": [{**PAIR["drafters"][0], "repo": "x"}]}]},
                           "pairs[0] (Tiny-1B): repo: expected OWNER/NAME")):
            self.table(text)
            said = self.finds(None)
            self.assertEqual(sum(why in line for line in said.split("\n")), 1, said)
        os.remove(self.home + "/share/drafters.json")
        self.assertNotIn("json", self.finds(None))

    def test_ours_is_good(self):
        with open(os.path.join(ROOT, "share", "drafters.json")) as f:
            table = json.load(f)
        for pair in table["pairs"]:
            self.assertTrue(pair["source"].strip(), pair["model"])
            for drafter in pair["drafters"]:
                self.assertTrue(drafter["source"].strip(), drafter["repo"])
                self.assertEqual(drafter["state"] == "inferred" and not drafter.get("note"), False, drafter["repo"])


def negated(file, name):
    """The demo's drafter with another sign of its last norm: it guesses what is least likely."""
    h = Header(GOOD)
    i = [t[0] for t in h.tensors].index(name)
    floats = h.bytes_of(i)
    flipped = b"".join(floats[k:k + 3] + bytes([floats[k + 3] ^ 0x80]) for k in range(0, len(floats), 4))
    with open(file, "wb") as f:
        f.write(h.data.replace(floats, flipped))
    return file


class Wrong(Finding):
    """A drafter that fits by its shape and guesses nothing: it is said once, and never of a good one."""
    WARNED = r"drafter [\w.-]+ guesses almost nothing of this model's text \(\d+ of \d+ tokens accepted\): it may " \
             r"belong to another model; `ratoon doctor` tells more\n"

    @classmethod
    def setUpClass(cls):
        cls.drafter = negated(path("wrong-draft.gguf"), b"output_norm.weight")

    def test_run(self):
        args = ["-d", tiny("dflash-qwen3-llama.gguf"), "--ngram", "off", "--ignore-eos"]
        said = self.run_model(*args, "-n", "60")[1]
        self.assertEqual(len(re.findall(self.WARNED, said)), 1, said)
        self.assertIn("drafter dflash-qwen3-llama.gguf guesses", said)
        self.assertNotRegex(self.run_model(*args, "-n", "5")[1], self.WARNED)       # too few to tell
        self.assertEqual(self.run_model(*args, "-n", "60", "-q")[1], "")
        self.assertNotRegex(self.run_model("-d", "none", "-n", "60", "--ignore-eos")[1], self.WARNED)
        good, said = self.run_model("-n", "60", "--ignore-eos", model=DEMO)
        self.assertIsNotNone(good)
        self.assertNotRegex(said, self.WARNED)
        grammar = write("words.gbnf", "root ::= [a-z ]*")
        said = self.run_model("-d", self.drafter, "-n", "60", "--grammar", grammar, model=DEMO)[1]
        self.assertNotRegex(said, self.WARNED)             # a grammar refuses good guesses too

    def test_chat(self):
        args = [RATOON, "chat", "-m", DEMO, "--budget", "8", "--threads", "1", "--temp", "0", "-n", "100", "-d"]
        for drafter, times in (self.drafter, 1), (GOOD, 0):
            p = subprocess.run([*args, drafter], input=b"Write a class Stack with push and pop.", timeout=120, env=ENV,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual(len(re.findall(self.WARNED, p.stderr.decode())), times, p.stderr)

    def test_serve(self):
        s = Server("-d", self.drafter, "--budget", "8", "--threads", "1", env=ENV)
        try:
            for _ in range(3):
                status, _, body = s.ask("POST", "/v1/completions", {"prompt": "def f(x):", "max_tokens": 40})
                self.assertEqual(status, 200, body)
        finally:
            self.assertEqual(s.stop(), 0)
        self.assertEqual(len(re.findall(self.WARNED, s.log)), 1, s.log)


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
