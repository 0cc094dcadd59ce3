#!/usr/bin/env python3
"""corpus.py - collect the training text of the demo pair from what a Debian machine carries anyway.

  corpus.py [--work build/train] [--stdlib DIR] [--docs DIR] [--man DIR] ...

Classes, one file of JSON lines {"id", "text"} per class and split:
  code    the Python standard library's sources (PSF licence)
  prose   the Python documentation (package python3-doc, HTML) and English manual pages
  chat    pieces of the two above in chat form ("Complete this Python code: ...")
  templ   small classes from our own generator (templates.py), partly in chat form
  arith   word problems with worked answers in chat form, from our own generator
Whole files are held out, never parts of a file: a file belongs to the held-out split iff a hash of its
path below its root says so, hence the split is the same on every machine and for every order of reading.
The generators' held-out text comes from seeds of its own, without what the training seeds happen to have made, too.
"""
import argparse
import gzip
import hashlib
import html.parser
import json
import pathlib
import random
import re
import sysconfig
import templates

HELD_ONE_IN = 20
HELD_SEED = {"arith": 1_000_003, "templ": 1_000_007}
START, END = "<|im_start|>", "<|im_end|>"


def path_hash(name):
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def is_held(name):
    return path_hash(name) % HELD_ONE_IN == 0


def chat(user, assistant):
    return f"{START}user\n{user}{END}\n{START}assistant\n{assistant}{END}\n"


# ------------------------------------------------------------------------------------------ code

# Tables that happen to be written in Python teach nothing about Python.
CODE_SKIP = re.compile(r"(^|/)(site-packages|dist-packages|__pycache__|pydoc_data|config-[^/]*|test|tests)/"
                       r"|encodings/(cp|iso|mac|koi|hp|kz|ptcp|tis)|_sysconfigdata|html/entities|__phello__")


def read_text(path):
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def code_files(root):
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if CODE_SKIP.search(name) or not path.is_file():
            continue
        text = read_text(path).replace("\r\n", "\n").expandtabs(8)
        if 200 <= len(text) <= 400_000 and START not in text:
            yield "stdlib/" + name, text


# ----------------------------------------------------------------------------------------- prose

class Body(html.parser.HTMLParser):
    """The text of the main body of a page that Sphinx made; code examples keep their lines."""
    BLOCK = {"p", "div", "section", "li", "dt", "dd", "h1", "h2", "h3", "h4", "tr", "ul", "ol", "dl", "table", "pre",
             "br"}
    VOID = {"br", "img", "input", "meta", "link", "hr", "col"}

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.depth = self.body = self.mute = self.pre = 0
        self.parts = []

    def handle_starttag(self, tag, attrs):
        if tag in self.VOID:
            if tag == "br":
                self.parts.append("\n")
            return
        self.depth += 1
        a = dict(attrs)
        if a.get("role") == "main" and not self.body:
            self.body = self.depth
        if not self.mute and (tag in ("script", "style") or "headerlink" in (a.get("class") or "")):
            self.mute = self.depth
        if tag == "pre" and not self.pre:
            self.pre = self.depth
        if tag in self.BLOCK:
            self.parts.append("\n")

    def handle_endtag(self, tag):
        if tag in self.VOID:
            return
        if tag in self.BLOCK:
            self.parts.append("\n")
        if self.depth == self.mute:
            self.mute = 0
        if self.depth == self.pre:
            self.pre = 0
        if self.depth == self.body:
            self.body = -1
        self.depth -= 1

    def handle_data(self, data):
        if self.body > 0 and not self.mute:
            self.parts.append(data if self.pre else re.sub(r"\s+", " ", data))


def doc_files(root):
    for path in sorted(root.rglob("*.html")):
        name = path.relative_to(root).as_posix()
        if re.search(r"genindex|search|whatsnew/changelog|_static|modindex|contents\.html", name):
            continue
        page = Body()
        page.feed(read_text(path))
        text = "".join(page.parts).replace("\u00b6", "")
        text = re.sub(r"[ \t]+\n", "\n", text)
        text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
        if len(text) > 400:
            yield "python-doc/" + name, text


ROFF_ESCAPE = [(r'\\".*', ""), (r"\\f(\[[^\]]*\]|\(..|.)", ""), (r"\\s[+-]?\d+", ""), (r"\\\*\((..)", ""),
               (r"\\\(aq|\\\[aq\]", "'"),
               (r"\\\(em|\\\(en", "-"), (r"\\\(bu", "*"), (r"\\\((lq|rq|dq)", '"'), (r"\\\(..", ""),
               (r"\\\[[^\]]*\]", ""),
               (r"\\-", "-"), (r"\\e", "\\\\"), (r"\\[&|^/,%:c]", ""), (r"\\[ ~0]", " ")]
ROFF_TEXT = {"B", "I", "BR", "IR", "RB", "RI", "BI", "IB", "SB", "SM"}


def roff_text(source):
    """A manual page without its roff; good enough for reading, not a formatter."""
    out, skip = [], False
    for line in source.split("\n"):
        if line.startswith((".de", ".ie", ".if", ".ig")) and not line.rstrip().endswith("}"):
            skip = line.startswith((".de", ".ig")) or line.rstrip().endswith("{\\")
            continue
        if skip:
            skip = not (line.startswith("..") or line.rstrip().endswith("}"))
            continue
        for pattern, by in ROFF_ESCAPE:
            line = re.sub(pattern, by, line)
        if line.startswith((".", "'")):
            word, _, rest = line[1:].strip().partition(" ")
            args = re.findall(r'"([^"]*)"|(\S+)', rest)
            args = [a or b for a, b in args]
            if word in ("SH", "SS", "Sh", "Ss"):
                out.append("\n" + " ".join(args))
            elif word in ROFF_TEXT:
                out.append((" " if word in ("B", "I", "SB", "SM") else "").join(args))
            elif word in ("PP", "P", "LP", "TP", "IP", "Pp", "HP", "sp"):
                out.append("")
                if word == "IP" and args:
                    out.append(args[0])
            continue
        out.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip() + "\n"


def man_files(root, limit):
    """Manual pages in the order of their path hashes until limit bytes; generated families of pages are left out."""
    pages = [p for s in ("man1", "man2", "man3", "man5", "man7", "man8") for p in (root / s).glob("*")]
    pages = [p for p in pages if p.is_file() and not p.is_symlink()
             and not re.match(r"gcloud|gsutil|bq|git-|openssl|perl|EVP_|SSL_|X509|x86_64|X[A-Z]|xcb_|BIO_|curl_|CURL",
                              p.name) and "3pm" not in p.name
             and ".3perl" not in p.name and ".3ssl" not in p.name]
    total = 0
    for path in sorted(pages, key=lambda p: path_hash(f"{p.parent.name}/{p.name}")):
        try:
            source = read_text(path)
        except (OSError, EOFError):
            continue
        if len(source) < 600 or source.startswith(".so ") or source.count("\n.It") > 2 or ".Dd" in source:
            continue            # mdoc pages need a real formatter
        text = roff_text(source)
        if len(text) > 500 and START not in text:
            total += len(text)
            yield f"man/{path.parent.name}/{path.name}", text
        if total > limit:
            return


# ------------------------------------------------------------------------------------------ chat

def chat_pieces(kind, name, text, rng, share):
    """Some stretches of a file as requests to go on with it, so that the chat template means something."""
    lines = text.split("\n")
    for at in range(0, max(1, len(lines) - 12), 40):
        if rng.random() >= share:
            continue
        head = rng.randint(4, 12)
        tail = rng.randint(8, 28)
        a, b = "\n".join(lines[at:at + head]), "\n".join(lines[at + head:at + head + tail])
        if len(a) < 80 or len(b) < 80 or len(a) + len(b) > 4000:
            continue
        if kind == "code":
            ask = rng.choice(["Complete this Python code:", "Continue this Python code:",
                              "Go on with this Python code:"])
            yield chat(f"{ask}\n{a}", b)
        else:
            ask = rng.choice(["Continue this text:", "Go on with this text:"])
            yield chat(f"{ask}\n{a}", b)


# ------------------------------------------------------------------------------------ arithmetic

NAMES = "Anna Ben Clara David Emma Felix Grace Henry Ida Jonas Kate Leo Mia Noah Olga Paul Rosa Sam Tina Victor".split()
THINGS = "apples books coins marbles pencils stamps cards shells stickers oranges buttons balloons".split()


def problem(rng):
    """(question, worked answer, kind); numbers are small so that a tiny model can learn to calculate."""
    who, other = rng.sample(NAMES, 2)
    thing = rng.choice(THINGS)
    kind = rng.randrange(9)
    a, b, c = rng.randint(2, 60), rng.randint(2, 40), rng.randint(2, 12)
    if kind == 0:
        return (f"{who} has {a} {thing}. {other} gives {who} {b} more {thing}. How many {thing} does {who} have now?",
                f"{who} starts with {a} {thing}.\n{other} gives {b} more.\n{a} + {b} = {a + b}\nThe answer is {a + b}.")
    if kind == 1:
        a += b
        return (f"{who} has {a} {thing} and gives {b} of them to {other}. How many {thing} does {who} have left?",
                f"{who} starts with {a} {thing}.\n{who} gives away {b}.\n{a} - {b} = {a - b}\nThe answer is {a - b}.")
    if kind == 2:
        a = rng.randint(2, 12)
        return (f"{who} buys {a} boxes with {c} {thing} in each box. How many {thing} does {who} buy in all?",
                f"There are {a} boxes.\nEach box holds {c} {thing}.\n{a} * {c} = {a * c}\nThe answer is {a * c}.")
    if kind == 3:
        n = rng.randint(2, 12)
        return (f"{who} shares {n * c} {thing} equally among {c} friends. How many {thing} does each friend get?",
                f"There are {n * c} {thing}.\nThere are {c} friends.\n{n * c} / {c} = {n}\nThe answer is {n}.")
    if kind == 4:
        n = rng.randint(2, 12)
        m = rng.randint(1, n * c)
        return (f"{who} buys {n} bags with {c} {thing} each and then loses {m} {thing}. How many {thing} are left?",
                f"First count the {thing} in the bags.\n{n} * {c} = {n * c}\nThen take away the lost ones.\n"
                f"{n * c} - {m} = {n * c - m}\nThe answer is {n * c - m}.")
    if kind == 5:
        return (f"{who} has {a} {thing}. {other} has {b} more {thing} than {who}. How many {thing} do they have together?",
                f"First find how many {other} has.\n{a} + {b} = {a + b}\nThen add both.\n{a} + {a + b} = {2 * a + b}\n"
                f"The answer is {2 * a + b}.")
    if kind == 6:
        return (f"What is {a} + {b}?", f"{a} + {b} = {a + b}\nThe answer is {a + b}.")
    if kind == 7:
        a += b
        return (f"What is {a} - {b}?", f"{a} - {b} = {a - b}\nThe answer is {a - b}.")
    d = rng.randint(2, 12)
    return (f"What is {c} * {d}?", f"{c} * {d} = {c * d}\nThe answer is {c * d}.")


def arithmetic(rng, count):
    for i in range(count):
        q, a = problem(rng)
        text = chat(q, a)
        if rng.random() < 0.25:                  # a second turn now and then
            text += chat(*problem(rng))
        yield f"arith/{i}", text


def classes(rng, count):
    for i in range(count):
        head, rest = templates.source(rng)
        if rng.random() < 0.2:
            yield f"templ/{i}", chat(f"Complete this Python code:\n{head.rstrip()}", rest.rstrip())
        else:
            yield f"templ/{i}", head + rest


def asked(text):
    """What a text of a generator is known by: the questions of a conversation, else all of it."""
    return re.findall(re.escape(f"{START}user\n") + "(.*?)" + re.escape(END), text, re.S) or [text]


# ------------------------------------------------------------------------------------------ main

def main():
    std = pathlib.Path(sysconfig.get_paths()["stdlib"])
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/train"))
    ap.add_argument("--stdlib", type=pathlib.Path, default=std, help="folder of the Python standard library")
    ap.add_argument("--docs", type=pathlib.Path,
                    default=pathlib.Path(f"/usr/share/doc/python{sysconfig.get_python_version()}/html"),
                    help="HTML documentation of Python (may be absent)")
    ap.add_argument("--man", type=pathlib.Path, default=pathlib.Path("/usr/share/man"),
                    help="manual pages (may be absent)")
    ap.add_argument("--man-bytes", type=int, default=6_000_000)
    ap.add_argument("--arith", type=int, default=60_000, help="word problems in the training split")
    ap.add_argument("--templ", type=int, default=8_000, help="classes from the generator in the training split")
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    out = a.work / "corpus"
    out.mkdir(parents=True, exist_ok=True)
    if not a.stdlib.is_dir():
        raise SystemExit(f"corpus.py: {a.stdlib} is not a folder; name the standard library with --stdlib")

    files = {k: open(out / f"{k}.jsonl", "w", encoding="utf-8") for k in
             [f"{c}.{s}" for c in ("code", "prose", "chat", "arith", "templ") for s in ("train", "held")]}
    count = {k: [0, 0] for k in files}

    def put(cls, held, name, text):
        key = f"{cls}.{'held' if held else 'train'}"
        files[key].write(json.dumps({"id": name, "text": text}, ensure_ascii=False) + "\n")
        count[key][0] += 1
        count[key][1] += len(text.encode())

    for kind, source, share in (("code", code_files(a.stdlib), 0.30),
                                ("prose", doc_files(a.docs) if a.docs.is_dir() else (), 0.20),
                                ("prose", man_files(a.man, a.man_bytes) if a.man.is_dir() else (), 0.20)):
        for name, text in source:
            held = is_held(name)
            put(kind, held, name, text)
            rng = random.Random(path_hash(name) ^ a.seed)
            for i, piece in enumerate(chat_pieces(kind, name, text, rng, share)):
                put("chat", held, f"{name}#{i}", piece)
    for cls, make, seed, number, held_number in (("arith", arithmetic, a.seed, a.arith, 1000),
                                                 ("templ", classes, a.seed + 7, a.templ, 300)):
        known = set()
        for name, text in make(random.Random(seed), number):
            known.update(asked(text))
            put(cls, False, name, text)
        for name, text in make(random.Random(HELD_SEED[cls] + a.seed), held_number):
            if known.isdisjoint(asked(text)):
                put(cls, True, name, text)
    for f in files.values():
        f.close()
    for key, (n, size) in count.items():
        print(f"{key:12s} {n:6d} documents {size / 1e6:7.2f} MB")


if __name__ == "__main__":
    main()
