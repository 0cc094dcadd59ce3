#!/usr/bin/env python3
"""Whole programs against input that somebody spoiled: model files with mutations, requests with odd values, and a cache
folder that is tampered with between two starts. Part of make test-long.

    python3 tests/serve/long_hostile.py [-v] [TestName.test_name ...]

MUTATIONS (default 280) says how many model files, VALUES (12) how many odd values each field of a request gets in each
dialect, PAIRS (400) how many requests have two of them, TAMPERINGS (41) how many starts with a spoiled folder, SEED (1)
which ones; RATOON and SLOW are test_http.py's. The last line is 'N passed, N failed'."""
import json
import os
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helper import *
import scratch

MUTATIONS, VALUES, PAIRS, TAMPERINGS, SEED = (int(os.environ.get(k, d)) for k, d in (
    ("MUTATIONS", 280), ("VALUES", 12), ("PAIRS", 400), ("TAMPERINGS", 41), ("SEED", 1)))
DRAFTER = os.path.join(os.path.dirname(DEMO), "dflash-ratoon-demo-bf16.gguf")
SECONDS = 60                                       # that a program may take with a spoiled file


# ---- model files ----

class Places:
    """Where the parts of a GGUF file are. lengths: 64-bit counts, lengths, dimensions and offsets; keys: (start, end)
    of each key with its value; infos: of each tensor's description; data: where the header ends."""
    SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    STRING, LIST = 8, 9

    def __init__(self, file):
        self.file, self.lengths, self.keys, self.infos, self.at = file, [8, 16], [], [], 24
        tensors, pairs = struct.unpack_from("<QQ", file, 8)
        for _ in range(pairs):
            start = self.at
            self.string()
            self.value(self.word())
            self.keys.append((start, self.at))
        for _ in range(tensors):
            start = self.at
            self.string()
            for _ in range(self.word()):
                self.length()
            self.word()
            self.length()
            self.infos.append((start, self.at))
        self.data = self.at

    def word(self):
        self.at += 4
        return struct.unpack_from("<I", self.file, self.at - 4)[0]

    def length(self):
        self.lengths.append(self.at)
        self.at += 8
        return struct.unpack_from("<Q", self.file, self.at - 8)[0]

    def string(self):
        n = self.length()
        self.at += n

    def value(self, kind):
        if kind == self.STRING:
            self.string()
        elif kind == self.LIST:
            kind = self.word()
            for _ in range(self.length()):
                self.value(kind)
        else:
            self.at += self.SIZES[kind]


ODD_LENGTHS = (0, 1, 2, 31, 32, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63,
               (1 << 64) - 32, (1 << 64) - 1)


def put(data, at, bytes_):
    return data[:at] + bytes_ + data[at + len(bytes_):]


def flip(r, data, start, end):
    for _ in range(r.choice((1, 1, 2, 8))):
        at = r.randrange(start, end)
        data = put(data, at, bytes([data[at] ^ 1 << r.randrange(8)]))
    return data


def change_length(r, data, places):
    # tokens of the vocabulary have most of the lengths, so half of the choices are among all the others
    at = r.choice(places.lengths if r.random() < 0.5 else places.lengths[:2] + [p for p in places.lengths if any(
        a <= p < a + 8 for a, _ in places.keys) or p >= places.infos[0][0]])
    old = struct.unpack_from("<Q", data, at)[0]
    new = r.choice(ODD_LENGTHS + (old + 1, old - 1, 2 * old, old ^ 1 << r.randrange(64)))
    return put(data, at, struct.pack("<Q", new % (1 << 64)))


def change_byte_of(r, data, ranges):
    start, end = r.choice(ranges)
    return put(data, r.randrange(start, min(end, start + 200)), bytes([r.choice((0, 1, 0x7F, 0x80, 0xFF,
                                                                                 r.randrange(256)))]))


def swap(r, data, places):
    end = places.data if r.random() < 0.7 else len(data)
    n = r.choice((1, 4, 8, 32, 100))
    a, b = sorted((r.randrange(24, end - 2 * n), r.randrange(24, end - 2 * n)))
    b = max(b, a + n)
    return data[:a] + data[b:b + n] + data[a + n:b] + data[a:a + n] + data[b + n:]


def insert(r, data, places):
    at = r.randrange(places.data if r.random() < 0.7 else len(data))
    return data[:at] + r.randbytes(r.choice((1, 4, 8, 32, 1000))) + data[at:]


def truncate(r, data, places):
    return data[:r.choice((r.randrange(200), r.randrange(places.data), r.randrange(len(data)), len(data) - 1))]


MUTATION = {
    "bits of the header": lambda r, d, p: flip(r, d, 0, p.data),
    "bits of the first keys": lambda r, d, p: flip(r, d, 0, min(p.data, 2000)),
    "bits of the data": lambda r, d, p: flip(r, d, p.data, len(d)),
    "length": change_length,
    "key": lambda r, d, p: change_byte_of(r, d, p.keys),
    "tensor info": lambda r, d, p: change_byte_of(r, d, p.infos),
    "swapped ranges": swap,
    "inserted bytes": insert,
    "truncation": truncate,
}


class Files(unittest.TestCase):
    def ends_well(self, what, *args):
        """Runs the program; returns its exit status, 0 or 1. A status of 1 has its reason on standard error."""
        try:
            p = subprocess.run([RATOON, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS * SLOW,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
        except subprocess.TimeoutExpired:
            self.fail("%s: %s did not end within %d s" % (what, args, SECONDS * SLOW))
        self.assertIn(p.returncode, (0, 1), (what, args, p.stderr[-2000:]))
        if p.returncode == 1:
            self.assertTrue(p.stderr.strip(), (what, args))
        return p.returncode

    def test_mutations(self):
        """Each file is inspected, run and tokenized with: done, or refused, but never a signal or no end."""
        files = []
        for name in (DEMO, DRAFTER):
            with open(name, "rb") as f:
                data = f.read()
            files.append((name, data, Places(data)))
        kinds, counts = list(MUTATION), {"inspect": [0, 0], "run": [0, 0], "tokenize": [0, 0]}
        for i in range(MUTATIONS):
            r = random.Random("%d %d" % (SEED, i))
            name, data, places = files[i % 2]
            what = "mutation %d (SEED=%d), %s of %s" % (i, SEED, kinds[i // 2 % len(kinds)], os.path.basename(name))
            spoiled = scratch.write("spoiled.gguf", MUTATION[kinds[i // 2 % len(kinds)]](r, data, places))
            pair = ["-m", spoiled, "-d", r.choice(("none", DRAFTER))] if name == DEMO else ["-m", DEMO, "-d", spoiled]
            for command, args in (("inspect", [*r.choice(([], ["--check-tensors"], ["--json"])), spoiled]),
                                  ("run", [*pair, "-p", "x", "-n", "2"]), ("tokenize", ["-m", spoiled, "-p", "x"])):
                counts[command][self.ends_well(what, command, *args)] += 1
        print("%d mutated files: %s" % (MUTATIONS, ", ".join("%s %d done, %d refused" % (c, *n)
                                                             for c, n in counts.items())))
        self.assertTrue(all(counts["inspect"]) and all(counts["run"]), counts)  # both ways were taken


# ---- requests ----

PATHS = {"H": (CHAT, chat("a", max_tokens=2)), "C": ("/v1/completions", {"prompt": "a", "max_tokens": 2}),
         "R": ("/v1/responses", {"input": "a", "max_output_tokens": 2}),
         "M": ("/v1/messages", chat("a", max_tokens=2))}
GROUPS = {"ALL": "CHRM", "TALK": "HRM"}
# Values as they stand in the request, so also what no JSON library writes.
ODD = ["0", "1", "-1", "2", "0.5", "-0.0", "1e-320", "1e308", "-1e308", "1e999", "NaN", "Infinity", "-Infinity",
       "2147483647", "2147483648", "-2147483648", "4294967296", "9223372036854775807", "-9223372036854775808",
       "9223372036854775808", "1" * 400, "true", "false", "null", '""', '"NaN"', '"nan"', '"inf"', '"1e999"', '"-1"',
       '"0x10"', '" 1"', '"1 "', '"auto"', '"none"', '"\\u0000"', '"\\ud800"', '"\\uffff"', '"' + "x" * 10000 + '"',
       "[]", "[null]", "[[]]", '[""]', "[1, -1, 1e30]", "{}", '{"": 0}', '{"type": "none"}', '{"type": 3}',
       '{"0": 1e39}', '{"-1": -100}', '{"4294967296": 1}', "[" * 100 + "]" * 100, '{"a": ' * 40 + "1" + "}" * 40, "",
       "'a'", "1,", "01", "+1"]
REFUSALS = (400, 404, 413)                         # 404: a response or model that does not exist


def fields_of_the_tables():
    """(dialect's letter, path) of every field that the server reads, refuses or ignores."""
    with open(os.path.join(scratch.ROOT, "src", "programs", "serve", "request", "fields.c")) as f:
        found = re.findall(r'(?:READ_\w+|HONOUR|CHOOSE|REFUSE|IGNORE)\("([\w.]+)", ([A-Z][A-Z |]*)[,)]', f.read())
    return [(d, name) for name, dialects in found
            for group in dialects.split(" | ") for d in GROUPS.get(group, group)]


def text_of(dialect, values):
    """The path and body of a request; values: texts by the fields' paths."""
    path, body = PATHS[dialect]
    body, marks = json.loads(json.dumps(body)), {}
    for i, (name, value) in enumerate(values.items()):
        *outer, last = name.split(".")
        at = body
        for key in outer:
            if not isinstance(at.get(key), dict):
                at[key] = {}
            at = at[key]
        at[last] = "@%d@" % i
        marks['"@%d@"' % i] = value
    text = json.dumps(body)
    for mark, value in marks.items():
        text = text.replace(mark, value)
    return path, text.encode()


class Requests(unittest.TestCase):
    def setUp(self):
        self.server = Server("--quiet", "--ctx", "256", wait=False)
        self.addCleanup(lambda: self.server.p.poll() is None and (self.server.p.kill(), self.server.p.wait()))
        self.assertTrue(self.server.wait_for(lambda: self.server.get("/health")[0] == 200))
        self.counts = {}

    def ask(self, dialect, values):
        path, body = text_of(dialect, values)
        status, _, answer = self.server.post(path, body, timeout=60)
        self.assertTrue(status == 200 or status in REFUSALS, (status, path, body[:500], answer[:500]))
        self.assertNotRegex(answer, rb'"type": ?"(server_error|api_error)"', (path, body[:500]))  # also in a stream
        if not answer.startswith((b"event:", b"data:", b":")):
            self.assertIsInstance(json.loads(answer), dict, (path, body[:500]))
        self.counts[status] = self.counts.get(status, 0) + 1

    def ends(self, what):
        print("%s: %s" % (what, ", ".join("%d with %d" % (n, s) for s, n in sorted(self.counts.items()))))
        self.assertTrue(self.server.wait_for(self.server.idle))
        self.assertEqual(self.server.json(CHAT, chat("a", max_tokens=2))["choices"][0]["finish_reason"], "length")
        self.assertEqual(self.server.stop(), 0, self.server.log[-2000:])
        self.assertTrue(self.counts.get(200) and self.counts.get(400), self.counts)

    def test_single_values(self):
        fields = fields_of_the_tables()
        self.assertGreater(len(fields), 300)
        self.assertEqual({d for d, _ in fields}, set(PATHS))
        for dialect, name in fields:
            for value in random.Random("%d %s %s" % (SEED, dialect, name)).sample(ODD, min(VALUES, len(ODD))):
                self.ask(dialect, {name: value})
        self.ends("single values of %d fields" % len(fields))

    def test_pairs(self):
        fields, r = fields_of_the_tables(), random.Random(SEED)
        for _ in range(PAIRS):
            dialect = r.choice("CHRM")
            names = r.sample(sorted({name for d, name in fields if d == dialect}), 2)
            # mostly values that pass by themselves
            fine = "0", "1", "0.5", "true", "false", '""', "[]", "{}", "null"
            values = [r.choice(ODD if r.random() < 0.3 else fine) for _ in names]
            self.ask(dialect, dict(zip(names, values)))
        self.ends("pairs")


# ---- the cache's folder ----

def spoil_bits(r, folder, name):
    with open(os.path.join(folder, name), "r+b") as f:
        data = f.read()
        f.seek(0)
        f.write(flip(r, data, 0, r.choice((100, 2000, len(data)))))


def cut(r, folder, name):
    at = os.path.join(folder, name)
    os.truncate(at, r.choice((0, 1, 64, r.randrange(os.path.getsize(at)), os.path.getsize(at) - 1)))


def replace_by(make):
    def do(r, folder, name):
        at = os.path.join(folder, name)
        os.rename(at, os.path.join(folder, "was"))
        make(at)
    return do


def rotate_names(r, folder, name):
    names = sorted(n for n in os.listdir(folder) if n.endswith(".ratoon"))
    for n in names:
        os.rename(os.path.join(folder, n), os.path.join(folder, n + ".on-its-way"))
    for a, b in zip(names, names[1:] + names[:1]):
        os.rename(os.path.join(folder, a + ".on-its-way"), os.path.join(folder, b))


def add_junk(r, folder, name):
    for i in range(300):
        as_record = "%0*x.ratoon" % (len(name.split(".")[0]), r.getrandbits(60))
        junk = r.choice((as_record, "junk%d" % i, ".writing-%d" % i, "\udcff%d" % i))
        with open(os.path.join(folder, junk), "wb") as f:
            f.write(r.randbytes(r.choice((0, 1, 100, 5000))))


def change_times(r, folder, name):
    for n in os.listdir(folder):
        os.utime(os.path.join(folder, n), (t := r.choice((0, 1, 2 ** 31, 2 ** 33)), t))


TAMPERING = {
    "bits": spoil_bits,
    "truncation": cut,
    "a sparse terabyte": lambda r, folder, name: os.truncate(os.path.join(folder, name), 1 << 40),
    "FIFO": replace_by(os.mkfifo),
    "folder": replace_by(os.mkdir),
    "link to nothing": replace_by(lambda at: os.symlink("/nowhere/at/all", at)),
    "link to itself": replace_by(lambda at: os.symlink(os.path.basename(at), at)),
    "link to a record": replace_by(lambda at: os.symlink("was", at)),
    "no permission": lambda r, folder, name: os.chmod(os.path.join(folder, name), 0),
    "everybody's": lambda r, folder, name: os.chmod(os.path.join(folder, name), 0o666),
    "rotated names": rotate_names,
    "junk": add_junk,
    "times": change_times,
    "removed": lambda r, folder, name: os.unlink(os.path.join(folder, name)),
}


class Folder(unittest.TestCase):
    BODIES = [{"messages": [{"role": "system", "content": "Rule %d. " % i * (20 + 4 * i)},
                            {"role": "user", "content": "def f%d(x):" % i}], "max_tokens": 12} for i in range(6)]

    def serve(self, *options):
        server = Server("--quiet", *options, wait=False)
        self.addCleanup(lambda: server.p.poll() is None and (server.p.kill(), server.p.wait()))
        self.assertTrue(server.wait_for(lambda: server.get("/health")[0] == 200))
        return server

    def texts(self, server):
        answers = [server.json(CHAT, b, timeout=60) for b in self.BODIES]
        self.cached += sum(a["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for a in answers)
        return [a["choices"] for a in answers]

    def test_tampered_with(self):
        """Whatever happened to the folder since the last server, the text is that of an idle server without a
        cache."""
        top = tempfile.mkdtemp(prefix="ratoon-serve-")
        self.addCleanup(shutil.rmtree, top)
        good, folder, self.cached = os.path.join(top, "good"), os.path.join(top, "folder"), 0
        plain = self.serve("-d", "none", "--ngram", "off", "--parallel", "1", "--cache-ram", "0")
        expected = self.texts(plain)
        self.assertEqual(plain.stop(), 0)
        options = ["--cache-min-tokens", "16", "--cache-dir"]
        first = self.serve(*options, good)
        self.assertEqual(self.texts(first), expected)
        self.assertEqual(first.stop(), 0)
        names = sorted(n for n in os.listdir(good) if n.endswith(".ratoon"))
        self.assertGreaterEqual(len(names), len(self.BODIES))
        self.cached, kinds, damaged = 0, list(TAMPERING), 0
        for i in range(TAMPERINGS):
            r, kind = random.Random("%d %d" % (SEED, i)), kinds[i % len(kinds)]
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(good, folder)
            for name in [r.choice(names)] if "record" in kind else r.sample(names, r.choice((1, len(names) - 1))):
                if os.path.lexists(os.path.join(folder, "was")):
                    os.rename(os.path.join(folder, "was"), os.path.join(folder, "was-%d" % r.getrandbits(60)))
                TAMPERING[kind](r, folder, name)
            with self.subTest(tampering=i, kind=kind, seed=SEED):
                server = self.serve(*options, folder)
                for _ in range(2):
                    self.assertEqual(self.texts(server), expected)
                damaged += server.metrics()["ratoon_snapshot_damaged_total"]
                self.assertEqual(server.stop(), 0, server.log[-2000:])
        print("%d tampered folders: %d of %d answers from the cache, %d records found damaged"
              % (TAMPERINGS, self.cached, 2 * len(self.BODIES) * TAMPERINGS, damaged))
        self.assertGreater(damaged, 0)

    def test_not_ours_alone(self):
        """A folder that others may write to is refused at the start."""
        folder = tempfile.mkdtemp(prefix="ratoon-serve-")
        self.addCleanup(shutil.rmtree, folder)
        os.chmod(folder, 0o777)
        p = subprocess.run([RATOON, "serve", "-m", DEMO, "--port", "0", "--cache-dir", folder], capture_output=True,
                           timeout=60 * SLOW)
        self.assertEqual(p.returncode, 1, p.stderr)
        self.assertIn(folder.encode(), p.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
