#!/usr/bin/env python3
"""test_demo.py - the demo pair end to end: it loads, it fits, speculation changes no token, and the accept length is what its page says.

Usage: tests/test_demo.py [RATOON]      ends with 'N passed, N failed'"""
import json
import pathlib
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent
ratoon = sys.argv[1] if len(sys.argv) > 1 else str(root / "ratoon")
prompts = root / "models/demo/prompts"
results = []


def call(*args):
    p = subprocess.run([ratoon, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    return p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace")


def check(name, ok, detail=""):
    results.append(ok)
    print(f"{'ok  ' if ok else 'FAIL'} {name}{'' if ok else ': ' + detail}")


def lines(kind, n):
    with open(prompts / f"{kind}.jsonl", encoding="utf-8") as f:
        return [json.loads(line) for line in f][:n]


code, out, err = call("doctor")
check("doctor finds that the pair fits", code == 0 and "verdict: fits" in out, out + err)

with tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False) as f:
    for kind in ("code", "prose", "arithmetic"):
        for p in lines(kind, 2):
            f.write(json.dumps(p) + "\n")
code, out, err = call("verify", "--special", "--prompts", f.name, "-n", "48")
pathlib.Path(f.name).unlink()
check("verify finds no difference (6 prompts, all modes, budgets and threads)", code == 0, out + err)

tokens = passes = grams = distinct = 0
for p in lines("code", 6):
    code, out, err = call("run", "--json", "--special", "-n", "128", "--budget", "16", "-p", p["prompt"])
    if code != 0:
        check("run on a code prompt", False, err)
        continue
    report = json.loads(out)
    tokens += report["stats"]["generated"]
    passes += report["stats"]["passes"]
    four = list(zip(*(report["tokens"][i:] for i in range(4))))
    grams += len(four)
    distinct += len(set(four))
length = tokens / max(passes, 1)
check(f"accept length on code is {length:.2f}, at least 3.0", length >= 3.0)
check(f"{distinct / max(grams, 1):.2f} of the 4-grams are distinct, at least half", 2 * distinct >= grams)

code, out, err = call("plan", "--json")
check("plan adds up", code == 0 and json.loads(out)["total_bytes"] == sum(x["bytes"] for x in json.loads(out)["parts"]), out + err)

print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
sys.exit(0 if all(results) else 1)
