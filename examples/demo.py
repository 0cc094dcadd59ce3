#!/usr/bin/env python3
"""demo.py - the demo pair writes a few short texts, each plainly and with its drafter: the text, the times, the ratio.

Usage: examples/demo.py [RATOON]      (default: ./ratoon, with the pair in models/demo)"""
import json
import pathlib
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
ratoon = sys.argv[1] if len(sys.argv) > 1 else str(root / "ratoon")
PAIRS = 5
LIST = '''class Bridge:
    """A bridge with history, orders, author and address."""

    def __init__(self, author):
        self.history = []
        self.orders = []
        self.author = author
        self.address_of = {}

    def add'''
NUMBER = '''class Ticket:
    """A ticket with grade, trains, category, volume and empty."""

    def __init__(self, category, volume):
        self.grade_of = {}
        self.trains = []
        self.category = category
        self.volume = volume
        self.empty = False

    def add'''
# Each of them comes to an end by itself, or where a method ends.
TEXTS = [
    ("a method of a class", ["--stop", "\n\n", "-p", LIST]),
    ("another class", ["--stop", "\n\n", "-p", NUMBER]),
    ("a word problem", ["--chat", "-p", "Noah buys 5 boxes with 6 cards in each box. How many cards does Noah buy in "
                        "all?"]),
]


def run(*args):
    cmd = [ratoon, "run", "-q", "-n", "200", "--temp", "0", "--json", *args]
    out = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if out.returncode != 0:
        sys.exit(f"demo: {' '.join(cmd[:2])} failed: {out.stderr.decode(errors='replace').strip()}")
    return json.loads(out.stdout)


def fastest(runs):
    """Other load only adds time."""
    return min((r["stats"] for r in runs), key=lambda st: st["decode_s"])


def show(way, st, more=""):
    print(f"  {way:<8} {st['generated']} tokens in {1e3 * st['decode_s']:.0f} ms, {st['accept_length']:.1f} per pass, "
          f"{st['generated'] / st['decode_s']:.0f} tokens/s{more}")


bold, end = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
print("""The demo pair is a toy: 10 million parameters that have learnt small Python classes and the
form of word problems (not to add), and nothing else. What it shows: with the drafter the same text
comes sooner.""")
for name, args in TEXTS:
    # interleaved: neighbours disturb both alike
    pairs = [(run("-d", "none", "--ngram", "off", *args), run(*args)) for _ in range(PAIRS)]
    plain, drafted = zip(*pairs)
    if any(p["tokens"] != d["tokens"] for p, d in pairs):
        sys.exit(f"demo: {name}: the text with the drafter is another one than without; please report this")
    before, after = fastest(plain), fastest(drafted)
    print(f"\n=== {name}\n{args[-1]}{'' if '--stop' in args else chr(10)}{bold}{drafted[0]['text'].strip(chr(10))}{end}")
    show("plain:", before)
    show("drafted:", after, f": {before['decode_s'] / after['decode_s']:.2f} times as fast, the same text")
print("\nA model of yours: ./ratoon chat -m MODEL.gguf (README.md)")
