#!/usr/bin/env python3
"""sample.py - text that the target itself writes, for the drafter to learn from.

  sample.py [--work build/train] [--minutes 8] [--batch 48] [--prefix 48] [--new 208]

Prefixes come from the training streams (never from held-out files); a third of the rows are continued greedily, the rest
at temperatures up to 1. Appends to WORK/tokens/self.train.u16, fixed rows of prefix + new tokens; can be run again and
again, also beside the training of the target: what counts for the drafter is where the target goes, not which checkpoint
went there.
"""
import argparse
import pathlib
import time
import numpy as np
import torch
from export_gguf import load_target
from train_target import Streams

MIX = {"code": 0.50, "prose": 0.10, "arith": 0.08, "chat": 0.12, "templ": 0.20}


@torch.no_grad()
def generate(model, prefix, new, temperature, noise=None):
    """prefix [B, P] -> [B, P + new]. temperature [B], 0 = greedy. noise: gumbel noise by (row, position) or None for fresh."""
    B, P = prefix.shape
    cache = model.cache(B, P + new)
    out = torch.zeros(B, P + new, dtype=torch.long)
    out[:, :P] = prefix
    for t in range(P + new - 1):
        h = model.step(out[:, t], cache, t)
        if t + 1 < P:
            continue
        logits = model.logits(h).float()
        g = noise[:, t + 1 - P] if noise is not None else -torch.empty_like(logits).exponential_().log()
        out[:, t + 1] = (logits + temperature[:, None] * g).argmax(-1)
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/train"))
    ap.add_argument("--minutes", type=float, default=8)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--prefix", type=int, default=48)
    ap.add_argument("--new", type=int, default=208)
    ap.add_argument("--threads", type=int, default=0)
    a = ap.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    model, st = load_target(a.work)
    seed = int(time.time())
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    train = Streams(a.work / "tokens", "train")
    out = a.work / "tokens" / "self.train.u16"
    end, total, start = time.time() + a.minutes * 60, 0, time.time()
    while time.time() < end:
        rows = [train.batch(rng.integers(1 << 60), 1, a.prefix, str(rng.choice(list(MIX), p=list(MIX.values()))))[0]
                for _ in range(a.batch)]
        t = torch.from_numpy(rng.choice([0.0, 0.5, 0.8, 1.0], a.batch, p=[0.4, 0.15, 0.15, 0.3])).float()
        got = generate(model, torch.cat(rows), a.new, t)
        with open(out, "ab") as f:
            got.numpy().astype(np.uint16).tofile(f)
        total += got.numel()
        print(f"target step {st['step']}: {total} tokens, {total / (time.time() - start):.0f} tok/s", flush=True)


if __name__ == "__main__":
    main()
