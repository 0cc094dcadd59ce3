#!/usr/bin/env python3
"""Models by name, against a hub on this machine: what is fetched and where it is put, what goes wrong on the way, and
which files of other programs are found.

    python3 tests/cli/test_hub.py [-v] [TestName.test_name ...]

RATOON names the program (default: ./ratoon). The last line is 'N passed, N failed'."""
import hashlib
import json
import os
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import report
from mock_hub import Fault, MockHub
from scratch import DEMO, RATOON, ROOT, TMP

DRAFT = os.path.join(os.path.dirname(DEMO), "dflash-ratoon-demo-bf16.gguf")
REPO, BIG = "acme/Demo-GGUF", 3_500_001                    # bytes of a made-up file: four pieces
LIMIT = 120                                                # seconds after which what is waited for will not come
MIB = 1 << 20


def content(name, n=BIG):
    """Bytes that differ from file to file; the start is a header without keys and tensors."""
    seed = hashlib.sha256(name.encode()).digest()
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + (seed * (n // 32 + 1))[:n - 24]


def screen(master):
    """What appears on a terminal until the program has ended."""
    said = b""
    try:
        while more := os.read(master, 65536):
            said += more
    except OSError:                                        # this is how a terminal reports that it was closed
        pass
    os.close(master)
    return said


class Hub(unittest.TestCase):
    TLS = None
    program = RATOON

    def setUp(self):
        self.root = tempfile.mkdtemp(dir=TMP)
        self.home = os.path.join(self.root, "home")
        os.makedirs(self.home)
        self.hub = MockHub(os.path.join(self.root, "repos"), tls=self.TLS)
        self.hub.__enter__()
        self.addCleanup(self.hub.__exit__)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
        self.env.update(self.hub.env(self.home))

    def add(self, name, data=None, repo=REPO):
        """Puts a file in a repository of the hub; data: bytes, or a path to copy."""
        path = self.hub.path(repo, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if isinstance(data, str):
            shutil.copy(data, path)
        else:
            with open(path, "wb") as f:
                f.write(content(name) if data is None else data)
        return path

    def ratoon(self, *args, expect=0, **how):
        env = {**self.env, **how.pop("env", {})}
        p = subprocess.run([self.program, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, env=env, timeout=LIMIT, text=True, errors="replace", **how)
        self.assertEqual(p.returncode, expect, "ratoon %s\n%s%s" % (" ".join(args), p.stdout, p.stderr))
        return p

    def says(self, *args, names=(), expect=1, **how):
        """It fails, and the last line on stderr has these words."""
        p = self.ratoon(*args, expect=expect, **how)
        last = p.stderr.strip().split("\n")[-1]
        for word in names:
            self.assertIn(word, last)
        return p

    def pull(self, name=REPO, **how):
        return self.ratoon("pull", name, **how).stdout.strip()

    def same(self, path, name, repo=REPO):
        with open(path, "rb") as a, open(self.hub.path(repo, name), "rb") as b:
            self.assertTrue(a.read() == b.read(), "%s is not %s" % (path, name))

    def cache(self, repo=REPO, *more):
        return os.path.join(self.home, "hf", "hub", "models--" + repo.replace("/", "--"), *more)

    def blobs(self, repo=REPO):
        return sorted(os.listdir(self.cache(repo, "blobs")))


class Pull(Hub):
    def test_layout(self):
        """What is fetched lies where huggingface_hub would put it."""
        self.add("Demo-Q4_K_M.gguf")
        path = self.pull()
        commit = self.hub.commit(REPO)
        self.assertEqual(path, self.cache(REPO, "snapshots", commit, "Demo-Q4_K_M.gguf"))
        self.same(path, "Demo-Q4_K_M.gguf")
        tag = hashlib.sha256(content("Demo-Q4_K_M.gguf")).hexdigest()
        self.assertEqual(os.readlink(path), "../../blobs/" + tag)
        self.assertEqual(self.blobs(), [tag])
        with open(self.cache(REPO, "refs", "main")) as f:
            self.assertEqual(f.read(), commit)
        before = len(self.hub.asked("cdn"))
        self.assertEqual(self.pull(), path)
        self.assertEqual(len(self.hub.asked("cdn")), before, "nothing is fetched twice")

    def test_which_file(self):
        for name in ("Demo-Q8_0.gguf", "Demo-Q4_0.gguf", "Demo-Q4_K_M.gguf", "Demo-UD-Q4_K_XL.gguf", "mmproj-F16.gguf",
                     "dflash-Demo-Q4_K_M.gguf", "imatrix.gguf", "README.md", "BF16/Demo-BF16.gguf"):
            self.add(name, content(name, 2000))
        for wish, name in (("", "Demo-Q4_K_M.gguf"), (":q8_0", "Demo-Q8_0.gguf"),
                           (":ud-q4_k_xl", "Demo-UD-Q4_K_XL.gguf"),
                           (":Q4_0", "Demo-Q4_0.gguf"), (":BF16", "BF16/Demo-BF16.gguf"),
                           (":dflash-Demo-Q4_K_M.gguf", "dflash-Demo-Q4_K_M.gguf"), ("@v1:Q8_0", "Demo-Q8_0.gguf")):
            path = self.pull(REPO + wish)
            self.assertTrue(path.endswith(self.hub.commit(REPO) + "/" + name), path)
            self.same(path, name)
        for page, name in (("tree/main", "Demo-Q4_K_M.gguf"), ("tree/main/BF16", "BF16/Demo-BF16.gguf"),
                           ("tree/v1:Q8_0", "Demo-Q8_0.gguf"), ("blob/main/Demo-Q4_0.gguf", "Demo-Q4_0.gguf"),
                           ("resolve/main/BF16/Demo-BF16.gguf?download=true", "BF16/Demo-BF16.gguf")):
            address = "https://huggingface.co/%s/%s" % (REPO, page)
            path = self.pull(address)
            self.assertTrue(path.endswith(self.hub.commit(REPO) + "/" + name), path)
            asked = len(self.hub.requests)         # what is here is found by it, and nothing is fetched
            self.says("run", address, "x", names=[name])
            self.says("run", "-hf", address, "-p", "x", names=[name])
            self.assertEqual(len(self.hub.requests), asked)
        os.remove(self.hub.path(REPO, "Demo-Q4_K_M.gguf"))
        self.assertTrue(self.pull().endswith("/Demo-Q4_0.gguf"))
        with open(self.cache(REPO, "refs", "v1")) as f:
            self.assertEqual(len(f.read()), 40)

    def test_wrong_names(self):
        self.add("Demo-Q8_0.gguf", content("a", 4000))
        self.add("Demo-Q4_0.gguf", content("b", 3000))
        self.says("pull", REPO + ":Q9", names=["has no Q9", "Q4_0 (3.0 kB), Q8_0 (4.0 kB)"])
        self.says("pull", REPO + "@elsewhere", names=["no revision 'elsewhere'"])
        self.says("pull", "acme/Absent", names=["acme/Absent: there is no such repository"])
        for name in ("demo", "a/b/c", "../x/y", "acme/..", "acme/x:../../etc/passwd", "acme/x@../y", "a\nb/c", "acme/",
                     "/acme/x", "acme/x:", "-a/b", "acme/x--y/z", "acme/" + "x" * 300, "hf.co/acme/x/blob/main/config.json",
                     "hf.co/acme/x/discussions/1"):
            asked = len(self.hub.requests)
            p = self.ratoon("pull", "--", name, expect=1)
            self.assertEqual(len(p.stderr.strip().split("\n")), 1, p.stderr)
            self.assertEqual(len(self.hub.requests), asked, name)
        self.ratoon("pull", expect=2)
        self.add("model.safetensors", content("s", 5000), "acme/Plain")
        self.says("pull", "acme/Plain", names=["has no GGUF file"])

    def test_split(self):
        names = ["Q8_0/Demo-Q8_0-0000%d-of-00003.gguf" % i for i in (1, 2, 3)]
        for name in names:
            self.add(name, content(name, 150_000))
        path = self.pull()
        for name in names:
            self.same(os.path.join(os.path.dirname(path), os.path.basename(name)), name)
        self.assertTrue(path.endswith("/" + names[0]), path)
        self.assertEqual(os.readlink(path)[:12], "../../../blo")
        listed = json.loads(self.ratoon("models", "--json").stdout)["models"]
        self.assertEqual([(m["name"], m["bytes"]) for m in listed], [(REPO + ":Q8_0", 450_000)])
        os.remove(self.hub.path(REPO, names[1]))
        self.says("pull", REPO, names=["parts"[:4], "missing"])

    def test_pages(self):
        """A list of files in several pages."""
        self.hub.page = 2
        for i in range(7):
            self.add("note-%d.txt" % i, b"x")
        self.add("z-Q8_0.gguf", content("z", 3000))
        self.same(self.pull(), "z-Q8_0.gguf")
        self.assertEqual(len([r for r in self.hub.requests if "/tree/" in r.path]), 4)

    def test_shared_blobs(self):
        """A new commit that keeps a file costs no second download, and both snapshots stay."""
        self.add("Demo-Q8_0.gguf")
        first = self.pull()
        self.add("README.md", b"new")
        asked = len(self.hub.asked("cdn"))
        second = self.pull()
        self.assertNotEqual(first, second)
        self.assertEqual(os.path.realpath(first), os.path.realpath(second))
        self.assertEqual(len(self.hub.asked("cdn")), asked)

    def test_several_connections(self):
        self.add("Demo-Q8_0.gguf")
        self.hub.faults.append(Fault(rate=8_000_000))
        self.same(self.pull(), "Demo-Q8_0.gguf")
        ranges = sorted(r.range() for r in self.hub.asked("cdn"))
        self.assertEqual(ranges, [(0, MIB - 1), (MIB, 2 * MIB - 1), (2 * MIB, 3 * MIB - 1), (3 * MIB, BIG - 1)])

    def test_progress(self):
        """On a terminal a bar with rate and time left; --quiet shows nothing."""
        self.add("Demo-Q8_0.gguf")
        for quiet in (False, True):
            shutil.rmtree(os.path.join(self.home, "hf"), ignore_errors=True)
            self.hub.faults[:] = [Fault(rate=1_000_000)]
            master, slave = pty.openpty()
            p = subprocess.Popen([RATOON, "pull", REPO, *["-q"] * quiet], env=self.env, stdout=subprocess.PIPE,
                                 stderr=slave)
            os.close(slave)
            said = screen(master)
            path = p.communicate(timeout=LIMIT)[0].decode().strip()
            self.same(path, "Demo-Q8_0.gguf")
            if quiet:
                self.assertEqual(said, b"")
            else:
                self.assertRegex(said.decode(), r"Demo-Q8_0.gguf \[#+\.*\] +\d+%  \d[\d.]* MB/s  \d+ s left")

    def test_safetensors(self):
        """A drafter's folder is fetched; a whole model is refused before its weights are."""
        for repo, config in (("acme/Some-DFlash", b'{"dflash_config": {}}'), ("acme/Some-8B", b'{"hidden_size": 5}')):
            self.add("config.json", config, repo)
            self.add("README.md", b"x", repo)
            self.add("model.safetensors.index.json", b"{}", repo)
            self.add("original/model.safetensors", content("o", 3000), repo)
            self.add("model.safetensors", content("m", 150_000), repo)
        path = self.pull("acme/Some-DFlash")
        self.assertEqual(sorted(os.listdir(path)), ["config.json", "model.safetensors", "model.safetensors.index.json"])
        self.same(os.path.join(path, "model.safetensors"), "model.safetensors", "acme/Some-DFlash")
        listed = json.loads(self.ratoon("models", "--json").stdout)["models"]
        self.assertEqual([m["name"] for m in listed], ["acme/Some-DFlash"])
        self.hub.requests.clear()
        self.says("pull", "acme/Some-8B", names=["only DFlash drafters", "acme/Some-8B-GGUF"])
        self.assertEqual(self.hub.asked("cdn"), [])
        self.ratoon("models", "rm", "acme/Some-DFlash", "--yes")
        self.assertFalse(os.path.exists(self.cache("acme/Some-DFlash")))

    def test_offers_the_drafter(self):
        """The table of published pairs names it."""
        if not os.path.exists(os.path.join(os.path.dirname(RATOON), "share", "drafters.json")):
            self.skipTest("this program has no table of drafters beside it")
        with open(os.path.join(ROOT, "share", "drafters.json")) as f:
            pair = next(p for p in json.load(f)["pairs"] if p["drafters"][0]["quant"])
        drafter, model = pair["drafters"][0], "acme/%s-GGUF" % pair["names"][0]
        name = drafter["repo"] + ":" + drafter["quant"]
        self.add("Model-Q4_K_M.gguf", content("m", 4000), model)
        self.add("DFlash-%s.gguf" % drafter["quant"], DRAFT, drafter["repo"])
        p = self.ratoon("pull", model)
        self.assertIn("ratoon pull " + name, p.stderr)
        self.assertEqual(len(p.stdout.split()), 1)
        for answer, n in ((b"n\n", 1), (b"y\n", 2), (b"", 1)):     # when both are here, nothing is asked
            master, slave = pty.openpty()
            p = subprocess.Popen([RATOON, "pull", model], env=self.env, stdin=slave, stdout=subprocess.PIPE,
                                 stderr=slave)
            os.close(slave)
            os.write(master, answer)
            said = screen(master)
            self.assertEqual(len(p.communicate(timeout=LIMIT)[0].split()), n)
            self.assertEqual(b"more?" in said, bool(answer))
        self.ratoon("models", "rm", drafter["repo"], "--yes")
        out = json.loads(self.ratoon("pull", "--yes", "--json", model).stdout)
        self.same(out["draft"], "DFlash-%s.gguf" % drafter["quant"], drafter["repo"])

    def test_json(self):
        self.add("Demo-Q8_0.gguf", content("x", 3000))
        out = json.loads(self.ratoon("pull", "--json", REPO).stdout)
        self.same(out["path"], "Demo-Q8_0.gguf")

    def test_generation_config(self):
        """It comes with the model, and goes with the last one."""
        name = "generation_config.json"
        self.add(name, b'{"temperature": 0.6, "top_k": 20}')
        self.add("Demo-Q8_0.gguf", DEMO)
        self.add("Q4/Demo-Q4_0.gguf", DEMO)
        paths = [self.pull(REPO + ":Q8_0"), self.pull(REPO + ":Q4_0")]
        config = os.path.join(os.path.dirname(paths[0]), name)
        self.same(config, name)
        for path in paths:
            p = self.ratoon("run", "-m", path, "-d", "none", "-p", "x", "-n", "1", "--chat", "--generation-config", "auto")
            self.assertIn("%s: temp 0.6, top-k 20\n" % config, p.stderr)
        self.ratoon("models", "rm", REPO + ":Q8_0", "--yes")
        self.assertTrue(os.path.exists(config))
        self.ratoon("models", "rm", REPO + ":Q4_0", "--yes")
        self.assertFalse(os.path.exists(self.cache()))
        self.add(name, b" " * (2 * MIB))
        self.assertFalse(os.path.exists(os.path.join(os.path.dirname(self.pull()), name)), "too large to be one")

    def test_a_part_of_a_folder(self):
        """What has not come whole has no name."""
        self.add("config.json", b'{"dflash_config": {}}', "acme/Some-DFlash")
        for part in 1, 2:
            self.add("model-0000%d-of-00002.safetensors" % part, content(str(part), 150_000), "acme/Some-DFlash")
        self.add("model.safetensors.index.json", b"{}", "acme/Some-DFlash")
        self.hub.faults[:] = [Fault("cdn", "model-00002", status=404)]
        self.ratoon("pull", "acme/Some-DFlash", expect=1)
        self.assertEqual(json.loads(self.ratoon("models", "--json").stdout)["models"], [])
        self.hub.faults.clear()
        self.assertEqual(len(os.listdir(self.pull("acme/Some-DFlash"))), 4)

    def test_both_kinds_in_one_repository(self):
        """The drafter that is here is not the model, nor the other way round."""
        self.add("dflash-demo-BF16.gguf", DRAFT)
        self.add("Demo-Q8_0.gguf", DEMO)
        self.pull(REPO + ":dflash-demo-BF16.gguf")
        args = ["-p", "def f(", "-n", "3", "-d", "none", "-q"]
        self.says("run", "-hf", REPO, "--offline", *args, names=["is a drafter"])
        self.assertEqual(self.ratoon("run", "-hf", REPO, *args).stdout, self.ratoon("run", "-m", DEMO, *args).stdout)

    def test_runs_by_name(self):
        self.add("Demo-Q8_0.gguf", DEMO)
        args = ["-p", "def f(", "-n", "6", "-d", "none", "-q"]
        want = self.ratoon("run", "-m", DEMO, *args).stdout
        self.assertEqual(self.ratoon("run", "-hf", REPO, *args).stdout, want)
        asked = len(self.hub.requests)
        for name in (["-hf", REPO], ["--hf-repo", REPO + ":Q8_0"], ["-m", "hf:" + REPO], ["-m", REPO + ":Q8_0"],
                     ["-m", "Demo-Q8_0"], ["-m", "Demo-Q8_0.gguf"]):
            self.assertEqual(self.ratoon("run", *name, *args).stdout, want, name)
        self.assertEqual(len(self.hub.requests), asked, "what is here is not asked for")
        self.says("run", "-m", DEMO, "-hf", REPO, names=["-m and -hf"])
        self.says("run", "-m", "acme/Other:Q8_0", "-p", "x", names=["no such file", "ratoon pull acme/Other:Q8_0"])

    def test_drafter_by_name(self):
        self.add("Demo-Q8_0.gguf", DEMO)
        self.add("Demo-DFlash-BF16.gguf", DRAFT, "acme/Demo-DFlash-GGUF")
        p = self.ratoon("run", "-hf", REPO, "-d", "hf:acme/Demo-DFlash-GGUF", "-p", "def f(", "-n", "6", "--stats")
        self.assertIn("Demo-DFlash-BF16.gguf", p.stderr)
        self.same(self.pull("acme/Demo-DFlash-GGUF"), "Demo-DFlash-BF16.gguf", "acme/Demo-DFlash-GGUF")


class Remote(Hub):
    """A model that is not here, as far as its header tells."""

    def inspected(self, name, **how):
        return json.loads(self.ratoon("inspect", "--json", name, **how).stdout)

    def nothing_is_left(self):
        self.assertEqual(os.listdir(self.env["TMPDIR"]), [])
        self.assertFalse(os.path.exists(self.cache()))

    def setUp(self):
        super().setUp()
        self.env["TMPDIR"] = os.path.join(self.root, "tmp")
        os.makedirs(self.env["TMPDIR"])

    def test_header(self):
        """What `inspect` says of the stub is what it says of the file, and little of it was fetched."""
        self.add("Demo-Q8_0.gguf", DEMO)
        want = json.loads(self.ratoon("inspect", "--json", DEMO).stdout)
        got = self.inspected("hf:" + REPO)
        self.assertEqual((got["keys"], len(got["tensors"])), (want["keys"], len(want["tensors"])))
        for a, b in zip(got["tensors"], want["tensors"]):
            self.assertEqual({**a, "file": ""}, {**b, "file": ""})
        self.assertEqual([r.range() for r in self.hub.asked("cdn")], [(0, MIB - 1)])
        self.says("inspect", "--check-tensors", "hf:" + REPO, names=["not on this machine", "ratoon pull"])
        self.says("inspect", "--offline", "hf:" + REPO, names=["nothing is fetched offline"])
        self.nothing_is_left()
        self.pull()
        self.hub.requests.clear()
        self.assertEqual(self.inspected("hf:" + REPO)["keys"], want["keys"])
        self.assertEqual(self.hub.requests, [])

    def header(self, size):
        """A GGUF file of 40 MB with one key, a list of bytes, so that the header is of this size."""
        key = b"general.filler"
        start = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(key)) + key
        return start + struct.pack("<IIQ", 9, 0, size - len(start) - 16) + bytes(40_000_000 - len(start) - 16)

    def test_long_headers(self):
        self.add("Long-Q8_0.gguf", self.header(6_000_000))
        self.inspected("hf:" + REPO)
        self.assertEqual([r.range() for r in self.hub.asked("cdn")],
                         [(0, MIB - 1), (MIB, 4 * MIB - 1), (4 * MIB, 16 * MIB - 1)])
        self.hub.requests.clear()
        self.add("Long-Q8_0.gguf", self.header(30_000_000))
        self.says("inspect", "hf:" + REPO, names=["24 MB", "ratoon pull"])
        self.assertEqual(sum(r.sent for r in self.hub.asked("cdn")), 24 * MIB)
        self.nothing_is_left()

    def test_broken_headers(self):
        for data, word in ((b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60), "ends within its header"),
                           (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "neither GGUF nor safetensors"),
                           (b"version https://git-lfs.github.com/spec/v1\n" * 9, "neither GGUF nor safetensors"),
                           (b"", "ends within its header")):
            self.add("Demo-Q8_0.gguf", data)
            self.says("inspect", "hf:" + REPO, names=["Demo-Q8_0.gguf", word])
        self.add("Demo-Q8_0.gguf")
        self.hub.faults[:] = [Fault(ranges=False)]
        self.says("inspect", "hf:" + REPO, names=["does not send parts of files"])
        self.add("Demo-Q8_0.gguf", DEMO)
        self.hub.faults[:] = [Fault(times=2, status=503), Fault(times=1, cut=1000)]
        self.inspected("hf:" + REPO)
        self.nothing_is_left()


class WithDrafter(Hub):
    """The drafter that a table beside the program names for a model: offered, fetched, found."""
    TARGET, DRAFTER = "acme/Tiny-1B-GGUF", "other/odd-draft"

    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(dir=TMP)
        os.makedirs(folder + "/share")
        cls.program = shutil.copy(RATOON, folder)
        cls.share = folder + "/share/drafters.json"

    def setUp(self):
        super().setUp()
        self.table()
        self.add("Tiny-1B-Q4_K_M.gguf", DEMO, self.TARGET)
        self.add("dflash-draft-q8_0.gguf", DRAFT, self.DRAFTER)

    def table(self, names=["Tiny-1B"], **drafter):
        with open(self.share, "w") as f:
            json.dump({"pairs": [{
                "model": "Tiny-1B", "architecture": "qwen35", "names": names, "source": "a test", "drafters": [{
                    "repo": self.DRAFTER, "quant": "Q8_0", "format": "gguf", "bytes": 900_000_000, "kind": "dflash",
                    "gated": False, "state": "verified", "source": "a test", **drafter}]}]}, f)

    def uses(self, where="in the Hugging Face cache"):
        p = self.ratoon("run", "-v", "-hf", self.TARGET, "-p", "def f(", "-n", "4")
        self.assertIn("using drafter %s:dflash-draft-q8_0.gguf, found %s" % (self.DRAFTER, where), p.stderr)

    def has_drafter(self):
        return os.path.exists(self.cache(self.DRAFTER))

    def test_named_off_a_terminal(self):
        p = self.ratoon("pull", self.TARGET)
        self.assertIn("the drafter published for it: ratoon pull other/odd-draft:Q8_0 (900.0 MB more)\n", p.stderr)
        self.assertEqual(p.stdout.count("\n"), 1)
        self.assertFalse(self.has_drafter())
        p = self.ratoon("run", "-v", "-hf", self.TARGET, "-p", "def f(", "-n", "4")
        self.assertIn("`ratoon pull other/odd-draft:Q8_0` gets the one published for Tiny-1B (0.9 GB)", p.stderr)

    def test_fetched_and_found(self):
        target, draft = self.ratoon("pull", self.TARGET, "--yes").stdout.split()
        self.same(target, "Tiny-1B-Q4_K_M.gguf", self.TARGET)
        self.same(draft, "dflash-draft-q8_0.gguf", self.DRAFTER)
        self.uses()
        p = self.ratoon("pull", self.TARGET, "--yes")      # which is here already
        self.assertNotIn("odd-draft", p.stdout + p.stderr)

    def test_fetched_by_itself(self):
        self.ratoon("pull", self.TARGET)
        p = self.ratoon("pull", self.DRAFTER + ":Q8_0")
        self.assertNotIn("its drafter", p.stderr)
        self.uses()

    def test_a_folder_of_safetensors(self):
        """The table names a folder, which pull fetches as one."""
        self.add("config.json", b'{"dflash_config": {}, "hidden_size": 77}', self.DRAFTER)
        self.add("model.safetensors", b"\x02\0\0\0\0\0\0\0{}", self.DRAFTER)
        os.remove(self.hub.path(self.DRAFTER, "dflash-draft-q8_0.gguf"))
        self.table(quant=None, format="safetensors")
        self.says("pull", self.TARGET, "--yes", names=["other/odd-draft does not fit this model: its hidden size is 77"])
        self.assertEqual(len(self.blobs(self.DRAFTER)), 2)

    def test_by_the_header(self):
        """The repository's name says nothing; general.name does."""
        self.add("model-q4_0.gguf", DEMO, "acme/plain")
        self.table(names=["ratoon-demo", "ratoon demo"])
        self.ratoon("pull", "acme/plain", "--yes")
        self.assertTrue(self.has_drafter())
        p = self.ratoon("pull", self.TARGET, "--yes", "--quiet")
        self.assertEqual(p.stderr, "")

    def test_unknown(self):
        self.table(names=["Huge-900B"])
        p = self.ratoon("pull", self.TARGET, "--yes")
        self.assertNotIn("drafter", p.stderr)
        self.assertEqual(p.stdout.count("\n"), 1)

    def test_out_of_reach(self):
        """The model is there all the same, and its path is printed."""
        shutil.rmtree(os.path.dirname(self.hub.path(self.DRAFTER, "x")))
        p = self.ratoon("pull", self.TARGET, "--yes", expect=1)
        self.assertTrue(os.path.exists(p.stdout.strip()))
        self.assertIn(self.DRAFTER, p.stderr.strip().split("\n")[-1])

    def test_that_does_not_fit(self):
        self.add("dflash-draft-q8_0.gguf", DEMO, self.DRAFTER)
        self.says("pull", self.TARGET, "--yes", names=["does not fit this model", "not a DFlash drafter"])

    def test_asked_at_a_terminal(self):
        for answer, fetched in ((b"n\n", False), (b"No\n", False), (b"\n", True), (b"y\n", True)):
            self.table(gated=fetched)
            master, slave = pty.openpty()
            p = subprocess.Popen([self.program, "pull", self.TARGET], env=self.env, stdin=slave, stderr=slave,
                                 stdout=subprocess.PIPE)
            os.close(slave)
            os.write(master, answer)
            said = screen(master)
            paths = p.communicate(timeout=LIMIT)[0].decode().split()
            self.assertTrue(len(paths) == 1 + fetched and all(map(os.path.exists, paths)), paths)
            self.assertEqual(p.returncode, 0, said)
            self.assertIn(b"with its drafter other/odd-draft:Q8_0, 900.0 MB more", said)
            self.assertEqual(b"accept its terms first: https://huggingface.co/other/odd-draft" in said, fetched)
            self.assertEqual(self.has_drafter(), fetched, answer)
            shutil.rmtree(self.cache(self.DRAFTER), ignore_errors=True)

    def test_interrupted_at_the_question(self):
        master, slave = pty.openpty()
        p = subprocess.Popen([self.program, "pull", self.TARGET], env=self.env, stdin=slave, stderr=slave,
                             stdout=subprocess.PIPE)
        os.close(slave)
        said = b""
        while b"[Y/n]" not in said:
            said += os.read(master, 65536)
        p.send_signal(signal.SIGINT)
        said += screen(master)
        self.assertEqual((p.communicate(timeout=LIMIT)[0], p.returncode), (b"", 130), said)
        self.assertFalse(self.has_drafter() or os.path.exists(self.cache(self.TARGET)), said)

    def test_not_asked_where_nothing_is_fetched(self):
        for args in (["pull", "--offline", self.TARGET], ["pull", self.TARGET + ":Q9_9"]):
            master, slave = pty.openpty()
            p = subprocess.Popen([self.program, *args], env=self.env, stdin=slave, stderr=slave, stdout=subprocess.PIPE)
            os.close(slave)
            said = screen(master)
            self.assertEqual((p.communicate(timeout=LIMIT)[0], p.returncode), (b"", 1), said)
            self.assertNotIn(b"[Y/n]", said)

    def test_a_damaged_table(self):
        with open(self.share, "w") as f:
            f.write('{"pairs": [{}]}')
        p = self.ratoon("pull", self.TARGET)
        self.assertRegex(p.stderr, r"drafters\.json: pairs\[0\]: model: expected a text\n")


class Broken(Hub):
    """What goes wrong on the way."""

    def setUp(self):
        super().setUp()
        self.add("Demo-Q8_0.gguf")

    def start(self, *more, **env):
        return subprocess.Popen([RATOON, "pull", *(more or [REPO])], env={**self.env, **env}, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def held(self, n=250_000):
        """From now on each of the four pieces stops after n bytes; returns what lets them go on."""
        go_on = threading.Event()
        self.addCleanup(go_on.set)
        self.hub.faults[:] = [Fault(hold=n, until=go_on)]
        return go_on

    def asked(self, p):
        """Waits until p fetches."""
        while not self.hub.asked("cdn"):
            self.assertIsNone(p.poll())
            time.sleep(0.02)

    def wait_for_bytes(self, n, p):
        """Until so much of the file that p fetches is on the disk."""
        folder, have = self.cache(REPO, "blobs"), 0
        while have < n:
            self.assertIsNone(p.poll())
            time.sleep(0.02)
            names = os.listdir(folder) if os.path.isdir(folder) else []
            have = sum(os.stat(os.path.join(folder, f)).st_blocks for f in names) * 512

    def fails(self, *faults):
        self.hub.faults[:] = faults
        self.same(self.pull(), "Demo-Q8_0.gguf")
        self.assertEqual(len(self.blobs()), 1)

    def test_cut_connections(self):
        self.fails(Fault(times=6, cut=200_000))
        spent = sum(r.sent for r in self.hub.asked("cdn"))
        self.assertEqual(spent, BIG, "no byte is fetched twice")

    def test_busy_server(self):
        self.fails(Fault("hub", times=2, status=503), Fault("cdn", times=3, status=500))
        self.hub.faults[:] = [Fault("hub", times=1, status=429, headers={"Retry-After": "1"})]
        began = time.monotonic()
        self.pull()
        self.assertGreater(time.monotonic() - began, 0.9)

    def test_asks_to_wait_too_long(self):
        self.hub.faults[:] = [Fault("hub", status=429, headers={"Retry-After": "7200"})]
        self.says("pull", REPO, names=["429", "120 minutes"])

    def test_expired_links(self):
        """A link that expires while the file is fetched is resolved again."""
        self.hub.faults[:] = [Fault(times=1, cut=400_000, then=self.hub.expire), Fault(cut=400_000)]
        p = self.start()
        self.same(p.communicate(timeout=LIMIT)[0].decode().strip(), "Demo-Q8_0.gguf")
        self.assertIn(403, [r.status for r in self.hub.asked("cdn")])

    def test_links_always_refused(self):
        self.hub.faults[:] = [Fault(status=410)]
        self.says("pull", REPO, names=["refuses every link (410)"])

    def test_without_ranges(self):
        self.fails(Fault(ranges=False))

    def test_without_ranges_and_cut(self):
        self.fails(Fault(times=2, ranges=False, cut=2_000_000), Fault(ranges=False))

    def test_without_ranges_and_always_cut(self):
        """What came is lost each time, so it is not fetched for ever."""
        self.hub.faults[:] = [Fault(ranges=False, cut=2_000_000, headers={"Retry-After": "0"})]
        self.says("pull", REPO, names=["Demo-Q8_0.gguf"])

    def test_wrong_content(self):
        self.hub.faults[:] = [Fault(times=1, flip=True)]
        self.says("pull", REPO, names=["Demo-Q8_0.gguf: its SHA-256 is", "deleted"])
        self.assertEqual(self.blobs(), [])
        self.assertEqual(self.ratoon("models").stdout, "")
        self.fails()

    def test_interrupted_and_resumed(self):
        self.held()
        p = self.start()
        self.wait_for_bytes(800_000, p)
        p.send_signal(signal.SIGINT)
        said = p.communicate(timeout=LIMIT)[1].decode()
        self.assertEqual(p.returncode, 130, said)
        kept = re.search(r"interrupted; ([\d.]+) (kB|MB) of 3.5 MB are kept: the same command goes on from there", said)
        kept = float(kept[1]) * {"kB": 1e3, "MB": 1e6}[kept[2]]
        self.assertGreater(kept, 100_000)
        self.assertEqual(len(self.blobs()), 2)
        self.assertEqual(self.ratoon("models").stdout, "")
        before = len(self.hub.asked("cdn"))
        self.fails()
        again = sum(r.sent for r in self.hub.asked("cdn")[before:])
        self.assertAlmostEqual(again, BIG - kept, delta=60_000)

    def test_interrupted_while_a_command_fetches(self):
        """-hf of `run` and of `serve`, which has not opened its port yet."""
        for command in (["run", "-p", "x"], ["serve", "--port", "0"]):
            self.held()
            shutil.rmtree(self.cache(), ignore_errors=True)
            p = subprocess.Popen([RATOON, *command, "-hf", REPO], env=self.env, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
            self.wait_for_bytes(1, p)
            p.send_signal(signal.SIGINT)
            said = p.communicate(timeout=LIMIT)[1].decode()
            self.assertIn(p.returncode, (1, 130), said)
            self.assertIn("interrupted", said.strip().split("\n")[-1])

    def test_killed_and_resumed(self):
        """Without a journal that is up to date, bytes are fetched again and not believed."""
        self.held()
        p = self.start()
        self.wait_for_bytes(800_000, p)
        p.kill()
        p.communicate()
        self.fails()

    def interrupt(self):
        """Leaves a part of the file; returns the paths of its bytes and of its journal."""
        self.held()
        p = self.start()
        self.wait_for_bytes(800_000, p)
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(LIMIT), 130, p.communicate()[1])
        self.hub.faults[:] = []
        return [os.path.join(self.cache(REPO, "blobs"), f) for f in self.blobs()]

    def test_journals_that_cannot_be_read(self):
        """Then the file is fetched from its start."""
        for spoil in (b"", b"x" * 100, b"rtparts1" + b"\xff" * 100):
            part, journal = self.interrupt()
            with open(journal, "wb") as f:
                f.write(spoil)
            self.fails()
            shutil.rmtree(self.cache())
        part, journal = self.interrupt()
        os.truncate(part, 1000)
        self.fails()

    def test_a_journal_that_lies(self):
        """Bytes that are not what the journal says are found by the sum at the end."""
        part, journal = self.interrupt()
        with open(part, "r+b") as f:
            f.write(b"spoiled")
        self.says("pull", REPO, names=["its SHA-256 is", "deleted"])
        self.fails()

    def test_half_downloads_are_removed(self):
        self.interrupt()
        self.assertEqual(len(self.blobs()), 2)
        self.ratoon("models", "rm", REPO, "--yes")
        self.assertFalse(os.path.exists(self.cache()))

    def test_two_at_once(self):
        go_on = self.held()
        p = self.start()
        self.asked(p)
        self.says("pull", REPO, names=["another process"])
        go_on.set()
        said = p.communicate(timeout=LIMIT)[1].decode()
        self.assertEqual(p.returncode, 0, said)

    def test_changed_meanwhile(self):
        """Half a file of an older commit is not continued with another one's bytes."""
        self.test_interrupted_and_resumed()
        self.add("Demo-Q8_0.gguf", content("other"))
        self.same(self.pull(), "Demo-Q8_0.gguf")

    def test_file_too_large_for_the_limit(self):
        """A disk or quota that is full: one line, and the same command goes on when there is room."""
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, 2 * MIB))
        p = self.says("pull", REPO, preexec_fn=limit)
        self.assertIn("full", p.stderr.strip().split("\n")[-1])
        self.fails()

    def test_removed_beside_a_pull(self):
        """The last model of a repository goes, but not what is being fetched of another one."""
        self.add("Demo-Q4_0.gguf", content("b", 120_000))
        self.pull(REPO + ":Q4_0")
        self.hub.requests.clear()
        go_on = self.held()
        p = self.start(REPO + ":Q8_0")
        self.asked(p)
        self.ratoon("models", "rm", REPO + ":Q4_0", "--yes")
        go_on.set()
        said = p.communicate(timeout=LIMIT)[1].decode()
        self.assertEqual(p.returncode, 0, said)
        self.same(self.pull(REPO + ":Q8_0"), "Demo-Q8_0.gguf")

    def test_full_disk(self):
        folder = os.path.join(self.root, "small")
        os.makedirs(folder)
        mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder]
        if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no tmpfs may be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", folder])
        env = {"HF_HOME": folder}
        self.says("pull", REPO, env=env, names=["needs 3.5 MB more", "free in " + folder])
        self.assertEqual(self.hub.asked("cdn"), [])
        go_on = self.held()
        self.add("Small-Q8_0.gguf", content("small", 1_500_000), "acme/Small")
        p = self.start("acme/Small", **env)
        self.asked(p)
        with open(os.path.join(folder, "ballast"), "wb") as f:
            f.write(b"x" * 1_000_000)
        go_on.set()
        said = p.communicate(timeout=LIMIT)[1].decode().strip().split("\n")[-1]
        self.assertEqual(p.returncode, 1, said)
        self.assertIn("the disk is full", said)
        self.assertIn("are kept: the same command goes on from there", said)
        os.remove(os.path.join(folder, "ballast"))
        self.hub.faults[:] = []
        self.same(self.pull("acme/Small", env=env), "Small-Q8_0.gguf", "acme/Small")

    def test_no_hub(self):
        p = self.says("pull", REPO, env={"HF_ENDPOINT": "http://127.0.0.1:9"}, names=["127.0.0.1"])
        self.assertIn("127.0.0.1:9", p.stderr)

    def refused(self, where, data, names=()):
        self.hub.faults[:] = [Fault("hub", where, status=200, body=data)]
        p = self.says("pull", REPO, names=names)
        self.assertEqual(len(p.stderr.strip().split("\n")), 1, p.stderr)
        self.assertNotIn("\x1b", p.stderr)

    def test_answers_that_are_no_answers(self):
        for data in (b"", b"<html>", b'{"sha": 5}', b'{"sha": "../../x"}', b"[" * 100_000,
                     b'{"sha":"' + b"\x1b[31m" * 9, b'{"sha": "%s"}' % (b"A" * 40), b"[]"):
            self.refused("/revision/", data)
        self.refused("/tree/", b" " * (17 << 20), names=["more than 16777216 bytes"])

    def test_names_that_lead_elsewhere(self):
        bad = ["../../../evil-Q8_0.gguf", "/etc/evil-Q8_0.gguf", "a//evil-Q8_0.gguf", "a/../evil.gguf", "./evil.gguf",
               "a\nb.gguf", "a" * 300 + ".gguf", "..\\evil.gguf", ""]
        self.refused("/tree/", json.dumps([{"type": "file", "path": n, "size": 100} for n in bad]).encode(),
                     names=["has no GGUF file"])
        self.assertFalse(os.path.exists(self.cache(REPO)))

    def test_sizes_that_lie(self):
        for size in (-1, 5, 1 << 62, "9", 1.5):
            self.refused("/tree/", json.dumps([{"type": "file", "path": "Demo-Q8_0.gguf", "size": size}]).encode())

    def test_redirects(self):
        self.hub.faults[:] = [Fault("hub", "/revision/", to=self.hub.url() + "/api/models/%s/revision/main" % REPO)]
        self.says("pull", REPO, names=["redirects more than 8 times"])
        for to in ("file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/"):
            self.hub.faults[:] = [Fault("hub", "/revision/", to=to)]
            self.says("pull", REPO, names=["expected an https:// address"])


class Access(Hub):
    """Tokens, gated and private repositories."""
    TOKEN = "hf_secret"

    def setUp(self):
        super().setUp()
        self.add("Demo-Q8_0.gguf")
        self.hub.tokens.add(self.TOKEN)

    def test_gated(self):
        self.hub.gated.add(REPO)
        p = self.says("pull", REPO, names=["gated", self.hub.url() + "/" + REPO, "HF_TOKEN"])
        self.assertNotIn("no such repository", p.stderr)
        self.hub.faults[:] = [Fault("hub", "/resolve/", times=1, status=403, headers={"X-Error-Code": "GatedRepo"})]
        self.says("pull", REPO, env={"HF_TOKEN": self.TOKEN}, names=["gated", "has no access yet"])
        self.same(self.pull(env={"HF_TOKEN": self.TOKEN}), "Demo-Q8_0.gguf")

    def test_private_or_missing(self):
        self.hub.private.add(REPO)
        self.says("pull", REPO, names=["no such repository", "token"])
        self.says("pull", REPO, env={"HF_TOKEN": "hf_wrong"}, names=["the token is refused (401)"])
        self.same(self.pull(env={"HF_TOKEN": self.TOKEN}), "Demo-Q8_0.gguf")
        self.says("pull", "acme/Absent", env={"HF_TOKEN": self.TOKEN}, names=["no such repository"])

    def test_where_tokens_come_from(self):
        self.hub.private.add(REPO)
        os.makedirs(os.path.join(self.home, "hf"))
        places = {os.path.join(self.home, "hf", "token"): {}, os.path.join(self.home, "mine"):
                  {"HF_TOKEN_PATH": os.path.join(self.home, "mine")},
                  os.path.join(self.home, "cache", "huggingface", "token"): {"HF_HOME": ""}}
        for place, env in places.items():
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "w") as f:
                f.write(self.TOKEN + "\n")
            self.same(self.pull(env=env), "Demo-Q8_0.gguf")
            os.remove(place)
        self.says("pull", REPO, env={"HF_TOKEN": "two words"}, names=["HF_TOKEN: expected a token"])
        self.says("pull", REPO, env={"HF_TOKEN": "x\r\nX-Evil: 1"}, names=["HF_TOKEN: expected a token"])

    def test_token_stays_with_the_hub(self):
        """Not a single request to the other server has it, also after an expired link."""
        self.hub.private.add(REPO)
        self.hub.faults[:] = [Fault("cdn", times=1, status=403)]
        self.pull(env={"HF_TOKEN": self.TOKEN})
        self.assertGreater(len(self.hub.asked("cdn")), 3)
        for r in self.hub.asked("cdn"):
            self.assertNotIn(self.TOKEN, r.path + str(r.headers))
        for r in self.hub.asked("hub"):
            self.assertEqual(r.headers["authorization"], "Bearer " + self.TOKEN)
        self.hub.requests.clear()
        self.hub.faults[:] = [Fault("hub", "/revision/", to=self.hub.url("cdn") + "/elsewhere")]
        self.ratoon("pull", REPO, expect=1, env={"HF_TOKEN": self.TOKEN})
        self.assertEqual(len(self.hub.asked("cdn")), 1)
        self.assertNotIn("authorization", self.hub.asked("cdn")[0].headers)

    def test_next_page_elsewhere_gets_no_token(self):
        self.hub.faults[:] = [Fault("hub", "/tree/", status=200, body=b"[]", headers={
            "Link": '<%s/next>; rel="next"' % self.hub.url("cdn")})]
        self.ratoon("pull", REPO, expect=1, env={"HF_TOKEN": self.TOKEN})
        self.assertNotIn("authorization", self.hub.asked("cdn")[0].headers)

    def test_proxy(self):
        """libcurl's variables count."""
        env = {"http_proxy": self.hub.url("cdn"), "no_proxy": "", "NO_PROXY": "", "HF_ENDPOINT": "http://hub.invalid"}
        self.ratoon("pull", REPO, expect=1, env=env)
        self.assertTrue(self.hub.asked("cdn")[0].path.startswith("http://hub.invalid/api/models/"))

    def test_endpoints(self):
        for bad in ("ftp://x", "huggingface.co", "http://user:pw@x", "https://x y"):
            self.says("pull", REPO, env={"HF_ENDPOINT": bad}, names=["HF_ENDPOINT is", "expected https://HOST"])
        self.same(self.pull(env={"HF_ENDPOINT": self.hub.url() + "//"}), "Demo-Q8_0.gguf")


class Tls(Hub):
    """The same over https: certificates are checked, and nothing leads away from it."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(dir=TMP)
        key, cert = os.path.join(folder, "key.pem"), os.path.join(folder, "cert.pem")
        try:
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert,
                            "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except FileNotFoundError:
            raise unittest.SkipTest("no openssl, which makes a certificate")
        cls.TLS = (cert, key)

    def test_certificates_are_checked(self):
        self.add("Demo-Q8_0.gguf")
        self.says("pull", REPO, names=["certificate"])
        self.same(self.pull(env={"SSL_CERT_FILE": self.TLS[0]}), "Demo-Q8_0.gguf")

    def test_never_down_to_http(self):
        self.add("Demo-Q8_0.gguf")
        trust = {"SSL_CERT_FILE": self.TLS[0]}
        for where in ("/revision/", "/resolve/"):
            self.hub.faults[:] = [Fault("hub", where, to="http://127.0.0.1:9/x")]
            self.says("pull", REPO, env=trust, names=["redirects from https to http://127.0.0.1:9/x, refused"])
        self.hub.faults[:] = [Fault("hub", "/tree/", status=200, body=b"[]", headers={
            "Link": '<http://127.0.0.1:9/next>; rel="next"'})]
        self.says("pull", REPO, env=trust, names=["expected an https:// address"])


class Local(Hub):
    """What is on this machine already."""

    def listed(self, **how):
        return {m["name"]: m for m in json.loads(self.ratoon("models", "--json", **how).stdout)["models"]}

    def store(self, path, data):
        path = os.path.join(self.home, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def test_offline(self):
        self.add("Demo-Q8_0.gguf", DEMO)
        for how in ({}, {"env": {"HF_HUB_OFFLINE": "1"}}):
            extra = [] if how else ["--offline"]
            self.says("pull", REPO, *extra, names=[REPO, "nothing is fetched offline"], **how)
            self.says("run", "-hf", REPO, "-p", "x", "-n", "1", *extra, names=["nothing is fetched offline"], **how)
        self.assertEqual(self.hub.requests, [])
        self.pull()
        self.hub.requests.clear()
        self.ratoon("run", "-hf", REPO, "-p", "x", "-n", "1", "-d", "none", "--offline")
        self.assertEqual(self.hub.requests, [])

    def test_of_other_programs(self):
        """Files that huggingface_hub fetched, LM Studio's and Ollama's."""
        with open(DEMO, "rb") as f:
            demo = f.read()
        commit, tag = "a" * 40, hashlib.sha256(demo).hexdigest()
        blob = self.store("hf/hub/models--acme--Theirs/blobs/" + tag, demo)
        link = os.path.join(self.cache("acme/Theirs"), "snapshots", commit, "sub", "Theirs-Q8_0.gguf")
        os.makedirs(os.path.dirname(link))
        os.symlink("../../../blobs/" + tag, link)
        self.store("hf/hub/models--acme--Theirs/refs/main", commit.encode())
        self.store("hf/hub/models--acme--Theirs/blobs/%s.incomplete" % tag, b"GGUF")
        self.store("hf/hub/version.txt", b"1")
        self.store("hf/hub/.locks/models--acme--Theirs/x.lock", b"")
        self.store(".lmstudio/models/maker/Studio-GGUF/Studio-Q8_0.gguf", demo)
        self.store(".cache/lm-studio/models/maker/Old-GGUF/Old-Q4_0.gguf", content("old", 5000))
        manifest = {"schemaVersion": 2, "config": {"digest": "sha256:" + "0" * 64}, "layers": [
            {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "1" * 64},
            {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + tag, "size": len(demo)}]}
        text = json.dumps(manifest).encode()
        for name in ("registry.ollama.ai/library/tiny/4b", "registry.ollama.ai/library/tiny/latest",
                     "registry.ollama.ai/me/mine/q8", "hf.co/acme/Some-GGUF/Q8_0"):
            self.store("ollama/manifests/" + name, text)
        ollama = self.store("ollama/blobs/sha256-" + tag, demo)
        listed = self.listed()
        self.assertEqual({n: m["where"] for n, m in listed.items()}, {
            "acme/Theirs:Q8_0": "Hugging Face cache", "maker/Studio-GGUF:Q8_0": "LM Studio",
            "maker/Old-GGUF:Q4_0": "LM Studio", "tiny:4b": "Ollama", "tiny:latest": "Ollama", "me/mine:q8": "Ollama",
            "hf.co/acme/Some-GGUF:Q8_0": "Ollama"})
        self.assertEqual(listed["tiny:4b"]["path"], ollama)
        args = ["-p", "def f(", "-n", "6", "-d", "none", "-q"]
        want = self.ratoon("run", "-m", DEMO, *args).stdout
        for name in [*(n for n in listed if "Old" not in n), "tiny", "Studio-Q8_0.gguf"]:
            self.assertEqual(self.ratoon("run", "-m", name, *args).stdout, want, name)
        for name in ["tiny:4b", "Studio-Q8_0", "https://huggingface.co/acme/Theirs", "hf.co/acme/Some-GGUF:Q8_0"]:
            self.assertEqual(self.ratoon("run", name, "def f(", *args[2:]).stdout, want, name)
        self.assertEqual(self.ratoon("run", "-hf", "acme/theirs", *args).stdout, want)
        self.assertEqual(self.ratoon("run", "-hf", "maker/Studio-GGUF", *args).stdout, want)
        self.assertEqual(self.hub.requests, [])
        for asked, name in (("tiny:4b", "tiny:4b"), ("tiny", "tiny:latest"), ("me/mine:q8", "me/mine:q8"),
                            (ollama, "hf.co/acme/Some-GGUF:Q8_0")):
            said = self.ratoon("run", "-m", asked, "--json", *args[:-1])
            self.assertEqual(json.loads(said.stdout)["model"], name)
            self.assertIn("%s, no drafter" % name, said.stderr)
        text = self.ratoon("models").stdout
        self.assertIn("tiny:4b", text)
        self.assertIn("10.9 MB", text)
        for name in ("tiny:4b", "maker/Studio-GGUF:Q8_0"):
            self.says("models", "rm", name, "--yes", names=["belongs to", "remove it there"])
        self.assertTrue(os.path.exists(blob) and os.path.exists(ollama))

    def test_hostile_caches(self):
        """Links out of the folder, wrong manifests and odd names are passed over."""
        self.store("outside.gguf", content("x", 4000))
        snapshot = self.cache(REPO, "snapshots", "b" * 40)
        os.makedirs(snapshot)
        os.symlink(os.path.join(self.home, "outside.gguf"), os.path.join(snapshot, "Out-Q8_0.gguf"))
        os.symlink("loop.gguf", os.path.join(snapshot, "loop.gguf"))
        os.symlink("../../blobs/absent", os.path.join(snapshot, "Absent-Q8_0.gguf"))
        os.mkfifo(os.path.join(snapshot, "pipe.gguf"))
        self.store("hf/hub/models--acme--Demo-GGUF/refs/main", b"../../../../etc")
        self.store("hf/hub/models--x/snapshots/y/z.gguf", b"GGUF")
        self.store("hf/hub/models--a--../snapshots/y/z.gguf", b"GGUF")
        elsewhere = json.dumps({"layers": [{"mediaType": "application/vnd.ollama.image.model",
                                            "digest": "sha256:../../../outside.gguf"}]}).encode()
        for i, text in enumerate((b"", b"{", b"[]", b'{"layers": 5}', b'{"layers":[{"mediaType":5}]}', elsewhere)):
            self.store("ollama/manifests/registry.ollama.ai/library/bad/%d" % i, text)
        self.assertEqual(self.listed(), {})
        os.makedirs(os.path.join(snapshot, "a/b/c/d/e/f/g/h/i/j"))
        self.assertEqual(self.listed(), {})

    def test_models(self):
        self.assertIn("ratoon pull", self.ratoon("models").stderr)
        self.add("Demo-Q8_0.gguf", content("a", 4000))
        self.add("dflash-Demo-Q8_0.gguf", content("d", 3000))
        self.pull()
        self.pull(REPO + ":dflash-Demo-Q8_0.gguf")
        listed = self.listed()
        self.assertEqual(listed[REPO + ":Q8_0"]["kind"], "model")
        self.assertEqual(listed[REPO + ":Q8_0"]["bytes"], 4000)
        self.assertEqual(listed[REPO + ":dflash-Demo-Q8_0.gguf"]["kind"], "drafter")

    def test_models_and_their_drafters(self):
        """What a file is says its header; beside a model stands the drafter that it would use."""
        self.add("Demo-Q8_0.gguf", DEMO)
        self.add("dflash-x.gguf", DRAFT)
        self.pull()
        self.assertNotIn("drafter", self.listed()[REPO + ":Q8_0"])
        self.pull(REPO + ":dflash-x.gguf")
        self.store(".lmstudio/models/maker/Blob-GGUF/nameless.gguf", open(DRAFT, "rb").read())
        listed = self.listed()
        self.assertEqual({n: m["kind"] for n, m in listed.items()}, {
            REPO + ":Q8_0": "model", REPO + ":dflash-x.gguf": "drafter", "maker/Blob-GGUF:nameless.gguf": "drafter"})
        self.assertIn("dflash-x.gguf", listed[REPO + ":Q8_0"]["drafter"])
        self.assertRegex(self.ratoon("models").stdout,
                         r"Demo-GGUF:Q8_0 +10.9 MB +model +Hugging Face cache; drafter .*dflash")

    def test_remove(self):
        self.add("Demo-Q8_0.gguf", content("a", 150_000))
        self.add("Demo-Q4_0.gguf", content("b", 120_000))
        self.add("Same-Q4_1.gguf", content("a", 150_000))
        for quant in ("Q8_0", "Q4_0", "Q4_1"):
            self.pull(REPO + ":" + quant)
        self.add("README.md", b"another commit")
        self.pull(REPO + ":Q4_0")
        self.says("models", "rm", REPO + ":Q4_0", names=["--yes"])
        self.says("models", "rm", REPO + ":Q6_K", "--yes", names=["no such model"])
        self.says("models", "rm", "acme/Absent", "--yes", names=["no such model"])
        self.ratoon("models", "rm", expect=2)
        self.assertEqual(len(self.blobs()), 2)
        self.assertIn("0.0 kB", self.ratoon("models", "rm", REPO + ":Q8_0", "--yes").stderr)
        self.assertEqual(len(self.blobs()), 2, "another file of the same content needs the blob")
        self.assertIn("120.0 kB", self.ratoon("models", "rm", REPO + ":Q4_0", "--yes").stderr)
        self.assertEqual(set(self.listed()), {REPO + ":Q4_1"})
        self.assertEqual(len(self.blobs()), 1)
        self.says("models", "rm", REPO + "@main", "--yes", names=["a revision is not removed alone"])
        self.says("models", "rm", REPO + "@main:Q4_1", "--yes", names=["a revision is not removed alone"])
        self.assertEqual(len(self.blobs()), 1)
        self.ratoon("models", "rm", REPO, "--yes")
        self.assertFalse(os.path.exists(self.cache()))
        self.assertTrue(os.path.isdir(os.path.dirname(self.cache())))

    def test_remove_asks(self):
        self.add("Demo-Q8_0.gguf", content("a", 4000))
        for answer, left in ((b"n\n", True), (b"\n", True), (b"y\n", False)):
            path = self.pull()
            master, slave = pty.openpty()
            p = subprocess.Popen([RATOON, "models", "rm", REPO], env=self.env, stdin=slave, stderr=subprocess.PIPE)
            os.write(master, answer)
            said = p.communicate(timeout=LIMIT)[1].decode()
            self.assertIn("[y/N]", said)
            self.assertEqual(p.returncode, 1 if left else 0, said)
            self.assertEqual(os.path.lexists(path), left)
            os.close(slave)
            os.close(master)

    def test_remove_keeps_what_is_not_ours(self):
        self.add("Demo-Q8_0.gguf", content("a", 4000))
        path = self.pull()
        outside = self.store("outside.bin", b"precious")
        os.symlink(outside, os.path.join(os.path.dirname(path), "link.bin"))
        self.store("hf/hub/models--acme--Demo-GGUF/blobs/ffff.incomplete", b"being written")
        self.ratoon("models", "rm", REPO, "--yes")
        self.assertTrue(os.path.exists(outside))
        self.assertEqual(self.blobs(), ["ffff.incomplete"])


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
