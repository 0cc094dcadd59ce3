#!/usr/bin/env python3
"""sample_diffusion.py - what the entropy-bound sampler writes for held-out prompts with the diffusion model's weights.

  sample_diffusion.py [--work build/train] [--count 10] [--show 3] [--gguf FILE] [--max-steps 48] ...

Prompts: word problems up to their answer, classes up to the end of their __init__ (those without a map, whose key is
nowhere in the prompt). What follows is determined by the prompt, so an exact match is a fair demand. Prints per class
how many texts match to the last token, which share of the tokens is right before the first wrong one, and steps a
block.
"""
import argparse
import pathlib
import numpy as np
import torch
from diffusion import Sampler, generate
from export_diffusion import load_diffusion, read_back
from tokenizer import load, special_ids
from train_diffusion import HEAD, TURN, Texts


def prompts(texts, tok, count):
    """(class, prompt ids, reference ids); a class begins to follow from its head with __repr__"""
    end, method = special_ids(tok)["<|im_end|>"], tok.encode("    def __repr").ids
    for doc in texts.docs["arith"][:count]:
        at = int(np.flatnonzero(doc == TURN)[-1]) + HEAD
        yield "arith", doc[:at], doc[at:at + int(np.flatnonzero(doc[at:] == end)[0])]
    found = 0
    for doc in texts.docs["templ"]:
        at = next(i for i in range(len(doc)) if doc[i:i + len(method)].tolist() == method)
        if found < count and doc[0] != TURN and "_of = {}" not in tok.decode(doc[:at].tolist()):
            found += 1
            yield "templ", doc[:at], doc[at:]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/train"))
    ap.add_argument("--count", type=int, default=10, help="prompts a class")
    ap.add_argument("--show", type=int, default=3, help="texts a class to print")
    ap.add_argument("--classes", default="arith,templ")
    ap.add_argument("--gguf", type=pathlib.Path, help="with the weights of an exported file")
    ap.add_argument("--seed", type=int, default=1)
    for key, value in vars(Sampler()).items():
        ap.add_argument("--" + key.replace("_", "-"), type=type(value), default=value)
    a = ap.parse_args()
    s = Sampler(**{k: getattr(a, k) for k in vars(Sampler())})
    model, st = load_diffusion(a.work)
    if a.gguf:
        model, _ = read_back(a.gguf, model.c)
    tok = load(a.work / "tokenizer.json")
    ids = special_ids(tok)
    stop = {ids["<|im_end|>"], ids["<|endoftext|>"]}
    total = {}
    for i, (cls, prompt, want) in enumerate(prompts(Texts(a.work / "tokens", "held"), tok, a.count)):
        if cls not in a.classes:
            continue
        rng = torch.Generator().manual_seed(a.seed * 1000 + i)
        got, steps = generate(model, torch.from_numpy(prompt), len(want) // model.c.canvas + 2, s, stop, rng)
        wrong = [x != y for x, y in zip(got.tolist(), want.tolist())]
        right = wrong.index(True) if True in wrong else min(len(got), len(want))
        t = total.setdefault(cls, [0, 0, 0.0, []])
        t[0] += 1
        t[1] += len(got) == len(want) == right
        t[2] += right / len(want)
        t[3] += steps
        if t[0] <= a.show:
            show = lambda x: tok.decode(x.tolist(), skip_special_tokens=False)
            print(f"--- {cls}, steps {steps}, {right} of {len(want)} tokens right before the first wrong one\n"
                  f"{show(prompt)}>>>{show(got)}", flush=True)
    for cls, (n, exact, share, steps) in total.items():
        print(f"{cls}: {exact} of {n} texts exact, share right before the first wrong token {share / n:.3f}, "
              f"{len(steps)} blocks of {np.mean(steps):.2f} steps (at most {max(steps)})", flush=True)
    print(f"step {st['step']}, {s}")


if __name__ == "__main__":
    main()
