#!/usr/bin/env python3
"""demo.py - three prompts with and without the drafter: the text, the accept length, the ratio of the two speeds.

Usage: examples/demo.py [RATOON]      (default: ./ratoon, with the pair in models/demo)"""
import json
import pathlib
import statistics
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
ratoon = sys.argv[1] if len(sys.argv) > 1 else str(root / "ratoon")
PAIRS = 3


def first_prompt(kind):
    with open(root / "models/demo/prompts" / f"{kind}.jsonl", encoding="utf-8") as f:
        return json.loads(f.readline())["prompt"]


def run(prompt, *extra):
    cmd = [ratoon, "run", "-n", "200", "--json", "--special", *extra, "-p", prompt]
    out = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if out.returncode != 0:
        sys.exit(f"demo: {' '.join(cmd[:2])} failed: {out.stderr.decode(errors='replace').strip()}")
    return json.loads(out.stdout)


def speed(r):
    return r["stats"]["generated"] / r["stats"]["decode_s"]


for kind in ("code", "prose", "arithmetic"):
    prompt = first_prompt(kind)
    pairs = [(run(prompt, "-d", "none", "--ngram", "off"), run(prompt)) for _ in range(PAIRS)]      # interleaved: neighbours disturb both alike
    plain, spec = pairs[0]
    if any(p["tokens"] != s["tokens"] for p, s in pairs):
        sys.exit(f"demo: {kind}: the text with the drafter is another one than without; please report this")
    ratio = statistics.median(speed(s) / speed(p) for p, s in pairs)
    print(f"\n=== {kind} " + "=" * (70 - len(kind)))
    print(prompt + "\033[1m" * sys.stdout.isatty() + spec["text"] + "\033[0m" * sys.stdout.isatty())
    st = spec["stats"]
    print(f"--- {st['generated']} tokens, the same with and without the drafter")
    print(f"--- accept length {st['accept_length']:.2f} tokens per pass; {statistics.median(speed(p) for p, _ in pairs):.0f} tok/s plain, "
          f"{statistics.median(speed(s) for _, s in pairs):.0f} tok/s with the drafter: {ratio:.2f}x")
