#!/usr/bin/env python3
"""prompts.py - prompt files of held-out text, one JSON object {"id", "prompt"} a line.

  prompts.py [--work build/train] [--count 48]

code.jsonl        classes up to the end of their __init__ from the generator (templates.py), with a seed that training never used
stdlib.jsonl      beginnings of functions and classes, 5 to 15 lines, from held-out files of the Python standard library
prose.jsonl       beginnings of paragraphs from held-out pages of the Python documentation
arithmetic.jsonl  word problems of the generator with a seed that training never used, in chat form, the answer left out
"""
import argparse
import json
import pathlib
import random
import re
import templates
from corpus import END, START, problem


def docs(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def stdlib(path, count, rng):
    found = []
    for d in docs(path):
        lines = d["text"].split("\n")
        starts = [i for i, x in enumerate(lines) if re.match(r"(    )?(def|class) ", x)]
        rng.shuffle(starts)
        took = 0
        for i in sorted(starts[:40]):
            n = rng.randint(5, 15)
            part = lines[i:i + n]
            if i + n + 6 > len(lines) or took >= 3 or sum(map(len, part)) > 800 or sum(not x.strip() for x in part) > 4:
                continue
            took += 1
            found.append({"id": f"{d['id']}:{i + 1}", "prompt": "\n".join(part) + "\n"})
    rng.shuffle(found)
    return found[:count]


def classes(count, seed):
    rng, out = random.Random(seed), []
    for i in range(count):
        head, _ = templates.source(rng)
        out.append({"id": f"class-{i}", "prompt": head})
    return out


def prose(path, count, rng):
    found = []
    for d in docs(path):
        if not d["id"].startswith("python-doc/"):
            continue                             # manual pages carry many licences; the prompts are to be passed on
        paras = [p.strip() for p in re.split(r"\n\s*\n|\n", d["text"])]
        paras = [p for p in paras if len(p) > 240 and p[0].isupper() and ">>>" not in p]
        rng.shuffle(paras)
        for j, p in enumerate(paras[:4]):
            cut = p.rfind(" ", 0, rng.randint(120, 220))
            found.append({"id": f"{d['id']}#{j}", "prompt": p[:cut]})
    rng.shuffle(found)
    return found[:count]


def arithmetic(count, seed):
    rng = random.Random(seed)
    out = []
    while len(out) < count:
        q, a = problem(rng)
        if a.count("\n") >= 2:                   # the ones with steps to write down
            out.append({"id": f"arithmetic-{len(out)}", "prompt": f"{START}user\n{q}{END}\n{START}assistant\n"})
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/train"))
    ap.add_argument("--count", type=int, default=48)
    ap.add_argument("--seed", type=int, default=20261120)
    a = ap.parse_args()
    corpus, out = a.work / "corpus", a.work / "export" / "prompts"
    out.mkdir(parents=True, exist_ok=True)
    for name, items in (("code", classes(a.count, a.seed)),
                        ("stdlib", stdlib(corpus / "code.held.jsonl", a.count, random.Random(a.seed))),
                        ("prose", prose(corpus / "prose.held.jsonl", a.count, random.Random(a.seed))),
                        ("arithmetic", arithmetic(a.count, a.seed))):
        with open(out / f"{name}.jsonl", "w", encoding="utf-8") as f:
            for x in items:
                f.write(json.dumps(x, ensure_ascii=False) + "\n")
        print(f"{name}: {len(items)} prompts")


if __name__ == "__main__":
    main()
