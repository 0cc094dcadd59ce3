#!/usr/bin/env python3
"""train_diffusion.py - train the small block text-diffusion model on the generators' classes (arith, templ).

  train_diffusion.py [--work build/train] [--minutes 60] [--arith 16] [--templ 1]

A step takes --arith word problems and --templ classes. The prefix of a text has a random length (a word problem's is
most often its question), the rest is cut into canvases, all of them trained at once: the clean text goes through the
encoder once, and each canvas sees its keys and values before its own start. Uniform-state diffusion: per canvas a noise
level t, uniform in (0, 1], or 1 for one canvas in eight; every token is replaced with probability t by one that is
uniform over the vocabulary, and the clean tokens are the targets at all positions. In half of the passes the canvases
are conditioned on the model's own prediction from a noisier copy, as a sampler's step is on the step before. Behind the
end of a text a canvas is filled with <|endoftext|>; canvases wholly behind it do not count.

Time in which the process is stopped counts little: a step is booked with at most --longest seconds. A checkpoint every
few minutes and at the end; started again, the script goes on from it, and the data of a step is a function of (seed,
step).
"""
import argparse
import json
import math
import pathlib
import time
import numpy as np
import torch
import torch.nn.functional as F
from diffusion import Diffusion, DiffusionConfig, Sampler
from train_target import optimizers, save
from tokenizer import SPECIAL, VOCAB

END_OF_TEXT, TURN = (VOCAB - len(SPECIAL) + SPECIAL.index(s) for s in ("<|endoftext|>", "<|im_start|>"))
LONGEST = {"arith": 100, "templ": 448}           # tokens; longer texts are left out
HEAD = 3                                         # tokens of "<|im_start|>assistant\n"


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon in float32 and for stacks of matrices. That one multiplies in bfloat16, which on a CPU without
    such instructions is forty times slower than float32."""

    def __init__(self, params, lr, weight_decay, momentum, adjust_lr_fn):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))

    @staticmethod
    def orthogonal(g, steps=5, a=3.4445, b=-4.7750, c=2.0315):
        x = g.mT if g.shape[-2] > g.shape[-1] else g
        x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
        for _ in range(steps):
            gram = x @ x.mT
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.mT if g.shape[-2] > g.shape[-1] else x

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:               # self-conditioning in a step that did without
                    continue
                state = self.state[p]
                m = state.setdefault("momentum_buffer", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                update = self.orthogonal(p.grad.lerp(m, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(p.shape[-2:])))


class Texts:
    def __init__(self, folder, split):
        self.docs = {}
        for cls, longest in LONGEST.items():
            stream = np.fromfile(folder / f"{cls}.{split}.u16", np.uint16).astype(np.int64)
            docs = np.split(stream, np.flatnonzero(stream == END_OF_TEXT) + 1)
            self.docs[cls] = [d[:-1] for d in docs if 16 < len(d) <= longest]

    def prefix(self, doc, rng):
        turns = np.flatnonzero(doc == TURN)
        answer = int(turns[-1]) + HEAD if len(turns) else 0
        if len(turns) and rng.random() < 0.7:
            return answer
        return int(rng.integers(max(answer, 8), min(len(doc) - 1, max(answer, 8) + 48)))

    def batch(self, cls, count, canvas, rng):
        """-> ids [count, T] clean and filled with END_OF_TEXT, start [count], number of canvases, lengths [count]"""
        docs = sorted((self.docs[cls][i] for i in rng.integers(0, len(self.docs[cls]), 4 * count)), key=len)
        at = int(rng.integers(0, 4)) * count
        docs = docs[at:at + count]                                               # of like length: little padding
        start = np.array([self.prefix(d, rng) for d in docs])
        length = np.array([len(d) for d in docs])
        n = int(np.ceil((length - start) / canvas).max())
        ids = np.full((count, int(start.max()) + n * canvas), END_OF_TEXT)
        for row, d in zip(ids, docs):
            row[:len(d)] = d
        return torch.from_numpy(ids), torch.from_numpy(start), n, torch.from_numpy(length)


def noisy(clean, level, rng):
    """Replace each token with probability level by one that is uniform over the vocabulary."""
    other = torch.from_numpy(rng.integers(0, VOCAB, clean.shape))
    return torch.where(torch.from_numpy(rng.random(clean.shape)) < level, other, clean)


def balance(routes, c):
    """Switch's term: experts x sum over experts of (share of the routes) x (mean probability); 1 when even."""
    total = 0
    for p, ids in routes:
        share = ids.flatten().bincount(minlength=c.experts) / ids.numel()
        total = total + c.experts * (share * p.mean(0)).sum()
    return total / len(routes)


def loss_of(model, batch, rng, level=None, conditioned=None, routes=None):
    """Mean cross entropy over the canvas rows that count. level and conditioned are drawn unless given."""
    ids, start, n, length = batch
    C = model.c.canvas
    at = start[:, None] + torch.arange(n * C)
    clean = ids.gather(1, at)
    if level is None:
        t = 1 - rng.random((len(ids), n))
        t[rng.random(t.shape) < 0.125] = 1
        level = torch.from_numpy(t).repeat_interleave(C, 1)
        conditioned = rng.random() < 0.5
        before = level + (1 - level) * torch.from_numpy(rng.random((len(ids), n))).repeat_interleave(C, 1)
    else:
        before = level
    s = Sampler()
    _, kept = model.encode(ids[:, :int(start.max()) + (n - 1) * C], routes)
    soft = None
    if conditioned:
        with torch.no_grad():
            t = s.t_min + (s.t_max - s.t_min) * rng.random()
            soft = model.soft(model.logits(model.decode(noisy(clean, before, rng), start, kept)) / t)
    h = model.decode(noisy(clean, level, rng), start, kept, soft, routes)
    counts = (at - torch.arange(n * C) % C) < length[:, None]
    return F.cross_entropy(model.logits(h[counts]), clean[counts])


HELD = (("arith", 16, 6), ("templ", 2, 6))      # class, texts a batch, batches


@torch.no_grad()
def held_out(model, texts):
    """Loss per canvas token by class, noise level and conditioning, on the same canvases every time."""
    out = {}
    for cls, count, batches in HELD:
        for level in (1.0, 0.5, 0.1):
            for conditioned in (False, True):
                total = 0.0
                for b in range(batches):
                    rng = np.random.default_rng([99, b])
                    batch = texts.batch(cls, count, model.c.canvas, rng)
                    total += loss_of(model, batch, rng, level, conditioned).item()
                out[f"{cls} {level}" + (" conditioned" if conditioned else "")] = round(total / batches, 4)
    return out


@torch.no_grad()
def skew(model, texts):
    """Per layer the shares of the routes by expert, most used first, over encoder and canvas rows of held-out texts."""
    rng, total = np.random.default_rng(98), 0
    for cls, count, batches in HELD:
        for _ in range(batches):
            routes = []
            loss_of(model, texts.batch(cls, count, model.c.canvas, rng), rng, routes=routes)
            counts = torch.stack([ids.flatten().bincount(minlength=model.c.experts) for _, ids in routes]).float()
            total = total + counts.view(2, model.c.layers, -1).sum(0)
    share = (total / total.sum(1, keepdim=True)).sort(1, descending=True)[0]
    return [[round(x, 3) for x in row] for row in share.tolist()]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/train"))
    ap.add_argument("--minutes", type=float, default=60, help="trained time that the schedule is planned for")
    ap.add_argument("--arith", type=int, default=16, help="word problems a step")
    ap.add_argument("--templ", type=int, default=1, help="classes a step")
    ap.add_argument("--lr", type=float, default=6e-3, help="Muon, in AdamW's scale")
    ap.add_argument("--embed-lr", type=float, default=3e-3)
    ap.add_argument("--decay", type=float, default=0.05)
    ap.add_argument("--balance", type=float, default=0.01, help="weight of the term that evens out the experts' use")
    ap.add_argument("--warmup", type=int, default=40)
    ap.add_argument("--longest", type=float, default=30, help="seconds that a step can count")
    ap.add_argument("--save-minutes", type=float, default=3)
    ap.add_argument("--threads", type=int, default=0)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(a.seed)
    model = Diffusion(DiffusionConfig())
    opts = optimizers(model, a.lr, a.embed_lr, a.decay, Muon)
    ckpt = a.work / "diffusion.pt"
    st = {"step": 0, "seconds": 0.0, "tokens": 0}
    if ckpt.exists():
        blob = torch.load(ckpt, weights_only=True)
        model.load_state_dict(blob["model"])
        for o, s in zip(opts, blob["opts"]):
            o.load_state_dict(s)
        st = blob["state"]
        print(f"going on from step {st['step']}, {st['tokens'] / 1e6:.2f} M canvas tokens", flush=True)
    base = [[a.lr], [a.embed_lr, a.embed_lr]]
    train, held = Texts(a.work / "tokens", "train"), Texts(a.work / "tokens", "held")
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {torch.get_num_threads()} threads, "
          f"{', '.join(f'{len(d)} {c}' for c, d in train.docs.items())}", flush=True)
    saved, mark, mark_tokens, mean = time.time(), time.time(), st["tokens"], {}
    while (done := st["seconds"] / (a.minutes * 60)) < 1:
        t0 = time.time()
        scale = min(1.0, (st["step"] + 1) / a.warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        for o, lrs in zip(opts, base):
            for g, lr in zip(o.param_groups, lrs):
                g["lr"] = lr * scale
        for o in opts:
            o.zero_grad(set_to_none=True)
        for i, (cls, count) in enumerate((("arith", a.arith), ("templ", a.templ))):
            rng, routes = np.random.default_rng([a.seed, st["step"], i]), []
            batch = train.batch(cls, count, model.c.canvas, rng)
            loss = loss_of(model, batch, rng, routes=routes)
            (0.5 * (loss + a.balance * balance(routes, model.c))).backward()
            value = loss.item()
            if not math.isfinite(value):
                raise SystemExit(f"train_diffusion.py: loss {value} at step {st['step']}; start again from the "
                                 "checkpoint with a lower --lr")
            mean[cls] = value if cls not in mean else 0.98 * mean[cls] + 0.02 * value
            st["tokens"] += count * batch[2] * model.c.canvas
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in opts:
            o.step()
        st["step"] += 1
        st["seconds"] += min(time.time() - t0, a.longest)
        if st["step"] % 20 == 0:
            now = time.time()
            print(f"step {st['step']} done {done:.3f} loss {', '.join(f'{c} {v:.4f}' for c, v in mean.items())} "
                  f"canvas tokens {st['tokens'] / 1e6:.2f} M {(st['tokens'] - mark_tokens) / (now - mark):.0f} tok/s "
                  f"{time.strftime('%H:%M:%S')}", flush=True)
            mark, mark_tokens = now, st["tokens"]
        if time.time() - saved > a.save_minutes * 60:
            save(ckpt, model, opts, st)
            saved = time.time()
    save(ckpt, model, opts, st)
    result = {"canvas_tokens": st["tokens"], "steps": st["step"], "minutes": st["seconds"] / 60,
              "held": held_out(model, held), "routes": skew(model, held)}
    (a.work / "diffusion.json").write_text(json.dumps(result, indent=1))
    print("finished", result, flush=True)


if __name__ == "__main__":
    main()
