#!/usr/bin/env python3
"""test_demo.py - the demo pair end to end: it loads, it fits, speculation changes no token, and the accept length is
the one that its page states.

Usage: tests/cli/test_demo.py [RATOON]      ends with 'N passed, N failed'"""
import datetime
import json
import keyword
import pathlib
import re
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent.parent
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
check("doctor finds that the pair fits", code == 0 and "verdict: fits" in out and "drafter matches" in out, out + err)

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

p = subprocess.run([sys.executable, root / "examples/demo.py", ratoon], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                   check=False)
shown = p.stdout.decode()
written = [line for line in shown.splitlines() if line.strip()]
check("make demo says first that the pair is a toy", p.returncode == 0 and "is a toy" in written[0], shown[:200])
check("it shows each text once, plain beside drafted", shown.count("=== ") == shown.count("  plain: ") ==
      shown.count(", the same text\n") == 3, shown)
check("its texts end and repeat nothing", all(written.count(line) <= 2 for line in written) and
      not re.search(r"plain: +200 tokens", shown), shown)

# The diffusion model: answers of the right form about the question's own numbers, in few steps.
DENOISES = root / "models/demo/ratoon-diffusion-demo-q8_0.gguf"
formed = steps = blocks = 0
wrong = ""
for p in lines("arithmetic", 12):
    code, out, err = call("run", "--json", "--special", "--seed", "1", "-m", DENOISES, "-p", p["prompt"])
    report = json.loads(out) if code == 0 else {"text": err, "stats": {"steps": 0, "blocks": 0}}
    ok = set(re.findall(r"\d+", p["prompt"])) <= set(re.findall(r"\d+", report["text"])) and \
        re.search(r"\nThe answer is \d+\.$", report["text"])
    formed += bool(ok)
    wrong = wrong if ok else wrong or report["text"]
    steps += report["stats"]["steps"]
    blocks += report["stats"]["blocks"]
check(f"{formed} of 12 answers by denoising have their form and the question's numbers, at least 11", formed >= 11, wrong)
check(f"they take {steps / max(blocks, 1):.1f} steps a block, at most 6", 0 < steps <= 6 * blocks, str(steps))

found = []
for how in ("steps=1", "steps=9,confidence=-1", "step=1", "steps=1.5", "trim", "t_min=2,t_max=1", "stability=-1"):
    code, out, err = call("run", "--json", "-m", DENOISES, "-p", "x", "-n", "20", "--diffusion", how)
    found.append(json.loads(out)["stats"]["steps"] if code == 0 else err.partition("--diffusion: ")[2].split(",")[0])
check("--diffusion sets the steps, and says what is wrong", found == [
    1, 9, "unknown name 'step'", "steps is '1.5'", "trim is ''", "t_min is 2", "stability is -1"], str(found))
texts = [call("run", "-m", DENOISES, "-p", "x", "-n", "20", "--seed", seed, *how)[1]
         for how in ([], ["--sampler", "lock"]) for seed in ("1", "2")]
check("--sampler lock draws nothing", texts[0] != texts[1] and texts[2] == texts[3] != "" and texts[2] not in texts[:2],
      texts)
code, out, err = call("run", "-p", "x", "--sampler", "lock")
check("--sampler is for models that denoise", code == 1 and "--sampler: " in err and "does not denoise" in err, err)
code, out, err = call("run", "-p", "x", "--diffusion", "steps=1")
check("and that other models do not denoise", code == 1 and "does not denoise" in err, err)
code, out, err = call("bench", "-m", DENOISES, "--serve", "1")
check("bench --serve is not for models that denoise", code == 1 and "--serve: the model denoises" in err, err)

code, out, err = call("plan", "--json")
check("plan adds up", code == 0 and json.loads(out)["total_bytes"] == sum(x["bytes"] for x in json.loads(out)["parts"]),
      out + err)

# Grammars: the same text with and without speculation, greedy and sampled, and always in the required form.
SCHEMA = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 24}, "size": {"type": "integer", "minimum": 1, "maximum": 999},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 4},
    "made": {"type": "string", "format": "date"},
    "next": {"anyOf": [{"type": "null"}, {"type": "number", "minimum": 0, "maximum": 1}]}},
    "required": ["name", "size", "tags", "made", "next"]}
GRAMMAR = r'''root ::= "def " name "(" (name (", " name){0,4})? "):\n" ("    " name " = " expr "\n"){1,3} "    return " expr "\n"
name ::= [a-z] [a-z_]{0,8}
expr ::= term (" " [-+*/] " " term){0,3}
term ::= name | [0-9]{1,3} | "(" expr ")" | name "(" expr ")"
'''


def well_formed(text):
    d = json.loads(text)
    return (list(d) == ["name", "size", "tags", "made", "next"] and len(d["name"]) <= 24 and 1 <= d["size"] <= 999
            and 1 <= len(d["tags"]) <= 4
            and set(d["tags"]) <= {"red", "green", "blue"} and datetime.date.fromisoformat(d["made"])
            and (d["next"] is None or 0 <= d["next"] <= 1))


def compiles(text):
    names = keyword.kwlist + keyword.softkwlist    # the grammar does not exclude these
    return any(w in names
               for w in re.findall(r"[a-z]+",
                                   text.replace("def ", "", 1).replace("return ",
                                                                       ""))) or duplicates(text) or compile(text, "x", "exec")


def duplicates(text):
    args = re.findall(r"[a-z_]+", text[text.index("(") + 1:text.index(")")])
    return len(args) != len(set(args))


with tempfile.NamedTemporaryFile("w", suffix=".gbnf", delete=False) as f:
    f.write(GRAMMAR)
same = formed = runs = drafted = 0
wrong = ""
for args, good in ((("--json-schema", json.dumps(SCHEMA)), well_formed), (("--grammar", f.name), compiles)):
    for prompt in ("# A thing, as JSON:\n", lines("code", 1)[0]["prompt"]):
        for how in (("--temp", "0"), ("--temp", "1", "--seed", "3"),
                    ("--temp", "1", "--seed", "4", "--rep-penalty", "1.1")):
            want = None
            for way in (("-d", "none"), ("--budget", "3"), ("--budget", "22"), ("--budget", "60"),
                        ("--chain", "--budget", "15"), ("--budget", "auto")):
                code, out, err = call("run", "-q", "--json", "-n", "300", "-p", prompt, *args, *how, *way)
                report = json.loads(out) if code == 0 else {"text": "", "tokens": err, "finish_reason": "error",
                                                            "stats": {"drafted": 0}}
                runs += 1
                drafted += report["stats"]["drafted"]
                want = want or report
                same += (report["tokens"], report["text"], report["finish_reason"]) == (want["tokens"], want["text"], want["finish_reason"])
                try:
                    ok = report["finish_reason"] == "stop" and bool(good(report["text"]) or good is compiles)
                except (ValueError, SyntaxError, KeyError) as e:
                    ok = False
                    wrong = wrong or f"{e}: "
                formed += ok
                wrong = wrong if ok else wrong or repr(report)[:600]
pathlib.Path(f.name).unlink()
check(f"grammars: {same} of {runs} texts are those of plain decoding, {drafted} rows drafted",
      same == runs and drafted > 0, wrong)
check(f"grammars: {formed} of {runs} texts have the form", formed == runs, wrong)

print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
sys.exit(0 if all(results) else 1)
