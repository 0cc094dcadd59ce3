#!/usr/bin/env python3
"""simulate.py - accept lengths of the pair on prompts, as the C program would reach them, in PyTorch.

  simulate.py [--work build/train] [--prompts build/train/export/prompts] [--count 24] [--new 128] [--budget 22] [--q8]

The target continues each prompt (greedy, and at temperature 1 with gumbel noise by position); the drafter proposes a block
after every position; then the decoding loop is walked: a chain of the drafter's best tokens, and a best-first tree under the
budget. Candidates are the top 16 of lq / T + g (the drafter sees the target's noise), an edge is the log-softmax of that score
and the selector's part for the candidate before. Accept length =
tokens generated / passes of the target. A text counts as a loop when less than half of its 4-grams are distinct; figures are
given for all texts and for those that are none.
"""
import argparse
import collections
import heapq
import json
import pathlib
import numpy as np
import torch
from export_gguf import load_drafter, load_target
from sample import generate
from tokenizer import load
from verify import q8_copy


def tree_accept(token, edge, budget, follow):
    """Best-first tree over per-depth candidates; edge[d][rank before][rank]; follow = the target's tokens. -> accepted depth."""
    depth = len(token)
    order = [[sorted(range(len(token[d])), key=lambda k: -row[k]) for row in edge[d]] for d in range(depth)]
    heap, nodes = [], set()
    def push(base, d, prev, place, path):
        heapq.heappush(heap, (base - edge[d][prev][order[d][prev][place]], d, prev, place, path, base))
    push(0.0, 0, 0, 0, ())
    while heap and len(nodes) < budget:
        weight, d, prev, place, path, base = heapq.heappop(heap)
        k = order[d][prev][place]
        here = path + (token[d][k],)
        nodes.add(here)
        if place + 1 < len(token[d]):
            push(base, d, prev, place + 1, path)
        if d + 1 < depth:
            push(weight, d + 1, k, 0, here)
    n = 0
    while n < len(follow) and n < depth and tuple(follow[:n + 1]) in nodes:
        n += 1
    return n


def distinct(ids):
    grams = [tuple(ids[i:i + 4]) for i in range(len(ids) - 3)]
    return len(set(grams)) / max(1, len(grams))


@torch.no_grad()
def measure(target, drafter, prompt, new, budget, temperature, seed):
    """-> dict of one prompt: tokens, passes of chain and tree, hits by depth, share of distinct 4-grams."""
    P, K, V = len(prompt), drafter.c.block, target.c.vocab
    g = torch.from_numpy(np.random.default_rng(seed).gumbel(size=(1, new, V))).float()
    ids = generate(target, torch.tensor([prompt]), new, torch.tensor([float(temperature)]), g)
    end = (ids[0, P:] == target_end(target)).nonzero()
    stop = P + int(end[0]) + 1 if len(end) else P + new
    ids = ids[:, :stop]
    n = stop - P
    _, taps = target(ids, drafter.c.taps)
    roots = torch.arange(P - 1, stop - 1)[None]
    block = torch.full((1, roots.shape[1], K), drafter.c.mask_id)
    block[..., 0] = ids[0, roots]
    o = drafter(taps, target.model.embed_tokens(block), roots)[0, :, 1:]
    lq = target.logits(o)  # [n, K-1, V]
    text = ids[0].tolist()
    chain = tree = 0
    hits = np.zeros(K - 1)
    offered = np.zeros(K - 1)
    cand = []
    for i in range(n):
        t, noise = temperature or 1.0, torch.zeros(K - 1, V)
        if temperature > 0:
            rest = g[0, i:i + K - 1]
            noise[:len(rest)] = rest
        val, tok = (lq[i] / t + noise).topk(16, -1)
        before = torch.cat([ids[0, P - 1 + i].expand(1, 16), tok[:-1]])                                      # [K-1, 16]
        pair = drafter.candidate_selector(o[i][:, None].expand(-1, 16, -1), before, tok[:, None].expand(-1, 16, -1)) / t
        cand.append((tok.tolist(), (val[:, None] + pair).log_softmax(-1).tolist()))
    def walk(accept):
        at, passes = 0, 0
        while at < n:
            at += min(accept(at) + 1, n - at)
            passes += 1
        return passes
    def by_chain(at):
        k = prev = 0
        token, edge = cand[at]
        while k < K - 1 and at + k < n:
            offered[k] += 1
            prev = max(range(16), key=edge[k][prev].__getitem__)
            if token[k][prev] != text[P + at + k]:
                break
            hits[k] += 1
            k += 1
        return k
    chain = walk(by_chain)
    tree = walk(lambda at: tree_accept(cand[at][0], cand[at][1], budget, text[P + at:P + at + K - 1]))
    return {"n": n, "chain": chain, "tree": tree, "hits": hits, "offered": offered, "distinct": distinct(text[P:]),
            "text": text}


def target_end(target):
    return target.c.vocab - 4            # <|im_end|>: the special tokens stand at the end of the vocabulary


def run(target, drafter, tok, folder, count, new, budget, show=0):
    results = {}
    for cls in ("code", "arithmetic", "stdlib", "prose"):
        prompts = [json.loads(x) for x in open(folder / f"{cls}.jsonl", encoding="utf-8")][:count]
        for temperature in (0.0, 1.0):
            rows = []
            for i, p in enumerate(prompts):
                rows.append(measure(target, drafter, tok.encode(p["prompt"]).ids, new, budget, temperature, i))
                if i < show:
                    print(f"--- {cls} T={temperature} distinct {rows[-1]['distinct']:.2f}\n{tok.decode(rows[-1]['text'], skip_special_tokens=False)}")
            for label, part in (("all", rows), ("no loops", [r for r in rows if r["distinct"] >= 0.5])):
                t = collections.Counter()
                for r in part:
                    for k in ("n", "chain", "tree"):
                        t[k] += r[k]
                hits, offered = sum((r["hits"] for r in part), np.zeros(1)), sum((r["offered"] for r in part), np.zeros(1))
                out = {"texts": len(part), "tokens": t["n"], "chain": round(t["n"] / max(1, t["chain"]), 3),
                       "tree": round(t["n"] / max(1, t["tree"]), 3),
                       "by depth": [round(float(x), 3) for x in hits / np.maximum(1, offered)]}
                results[f"{cls} T={temperature:g} {label}"] = out
                print(f"{cls:10s} T={temperature:g} {label:8s} texts {out['texts']:3d} tokens {out['tokens']:5d} AL chain {out['chain']:.2f} "
                      f"tree {out['tree']:.2f} by depth {out['by depth']}", flush=True)
    return results


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/train"))
    ap.add_argument("--prompts", type=pathlib.Path)
    ap.add_argument("--drafter", default="draft.pt")
    ap.add_argument("--count", type=int, default=24)
    ap.add_argument("--new", type=int, default=128)
    ap.add_argument("--budget", type=int, default=22)
    ap.add_argument("--q8", action="store_true", help="round both models' matrices through Q8_0 first")
    ap.add_argument("--show", type=int, default=0)
    ap.add_argument("--threads", type=int, default=0)
    a = ap.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    target, drafter = load_target(a.work)[0], load_drafter(a.work, name=a.drafter)[0]
    if a.q8:
        target, drafter = q8_copy(target), q8_copy(drafter)
    got = run(target, drafter, load(a.work / "tokenizer.json"), a.prompts or a.work / "export" / "prompts", a.count,
              a.new, a.budget, a.show)
    (a.work / "simulate.json").write_text(json.dumps(got, indent=1))


if __name__ == "__main__":
    main()
