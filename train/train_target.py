#!/usr/bin/env python3
"""train_target.py - train the demo target on the token streams of tokenizer.py.

  train_target.py [--work build/train] [--minutes 60 | --steps 4000] [--batch 8] [--seq 512]

Muon for the matrices of the layers, AdamW for everything else, bf16 autocast, cosine schedule. The schedule runs over
steps, or with --minutes over trained time, which is what one wants on a machine shared with others. The last quarter
uses sequences twice as long (same tokens a step). A checkpoint is written every few minutes and at the end; started
again, the script goes on from it: the data of a step is a function of (seed, step) alone.
"""
import argparse
import json
import math
import pathlib
import time
import numpy as np
import torch
import torch.nn.functional as F
import fast
from model import Target, TargetConfig, config_dict

MIX = {"code": 0.52, "prose": 0.13, "arith": 0.10, "chat": 0.13, "templ": 0.12}


class Streams:
    def __init__(self, folder, split):
        self.data = {c: np.fromfile(folder / f"{c}.{split}.u16", np.uint16) for c in MIX}

    def batch(self, key, batch, seq, cls=None):
        rng = np.random.default_rng(key)
        names, p = list(MIX), np.array(list(MIX.values()))
        rows = []
        for _ in range(batch):
            d = self.data[cls or names[rng.choice(len(names), p=p)]]
            at = rng.integers(0, len(d) - seq - 1)
            rows.append(d[at:at + seq + 1].astype(np.int64))
        x = torch.from_numpy(np.stack(rows))
        return x[:, :-1], x[:, 1:]


def autocast(device):
    return torch.autocast(device.type, dtype=torch.bfloat16)


def groups(model):
    """(matrices inside the network, tables, vectors): Muon wants only the first, the others go to AdamW."""
    mats, vecs, table = [], [], []
    for name, p in model.named_parameters():
        if "embed_tokens" in name or "codebook" in name:
            table.append(p)
        elif "experts." in name or p.ndim == 2 and min(p.shape) > 16:
            mats.append(p)
        else:
            vecs.append(p)
    return mats, table, vecs


def optimizers(model, lr, embed_lr, decay, muon=torch.optim.Muon):
    mats, table, vecs = groups(model)
    return [muon(mats, lr=lr, weight_decay=decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW([{"params": table, "lr": embed_lr, "weight_decay": 0.01},
                               {"params": vecs, "lr": embed_lr, "weight_decay": 0.0}], betas=(0.9, 0.95), eps=1e-9)]


def loss_of(model, x, y, device):
    x, y = x.to(device), y.to(device)
    with autocast(device):
        h, _ = model(x)
        logits = model.logits(h)
    return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), y.reshape(-1))


@torch.no_grad()
def held_out(model, streams, device, batches=4, batch=8, seq=512):
    model.eval()
    out = {}
    for i, cls in enumerate(MIX):
        out[cls] = sum(loss_of(model, *streams.batch([99, i, b], batch, seq, cls), device).item()
                       for b in range(batches)) / batches
    model.train()
    return out


def save(path, model, opts, state):
    torch.save({"config": config_dict(model.c), "model": model.state_dict(), "opts": [o.state_dict() for o in opts],
                "state": state},
               path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/train"))
    ap.add_argument("--steps", type=int, default=4000)
    ap.add_argument("--minutes", type=float, help="plan by training time instead of steps")
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--seq", type=int, default=512)
    ap.add_argument("--lr", type=float, default=5e-3, help="Muon, in AdamW's scale")
    ap.add_argument("--embed-lr", type=float, default=3e-3)
    ap.add_argument("--decay", type=float, default=0.05)
    ap.add_argument("--restart", action="store_true", help="begin a new schedule from the checkpoint's weights")
    ap.add_argument("--warmup", type=int, default=60)
    ap.add_argument("--save-minutes", type=float, default=4)
    ap.add_argument("--no-kernels", action="store_true", help="plain PyTorch even on a CPU")
    ap.add_argument("--threads", type=int, default=0)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(a.seed)
    model = Target(TargetConfig()).to(device)
    opts = optimizers(model, a.lr, a.embed_lr, a.decay)
    ckpt = a.work / "target.pt"
    st = {"step": 0, "seconds": 0.0, "tokens": 0}
    if ckpt.exists():
        blob = torch.load(ckpt, map_location=device, weights_only=True)
        model.load_state_dict(blob["model"])
        for o, s in zip(opts, blob["opts"]):
            o.load_state_dict(s)
        st = blob["state"]
        print(f"going on from step {st['step']}, {st['tokens'] / 1e6:.2f} M tokens", flush=True)
    base = [[a.lr], [a.embed_lr, a.embed_lr]]
    if a.restart:
        st.update(seconds=0.0, begun=st["step"])
    begun = st.get("begun", 0)                   # the schedule's first step; batches go on with new ones
    train, held = Streams(a.work / "tokens", "train"), Streams(a.work / "tokens", "held")
    quick = device.type == "cpu" and not a.no_kernels and fast.available()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters on {device}, {torch.get_num_threads()} threads, fused kernels: {quick}", flush=True)
    saved, mark, mark_tokens, mean = time.time(), time.time(), st["tokens"], None
    while True:
        t0 = time.time()
        done = st["seconds"] / (a.minutes * 60) if a.minutes else (st["step"] - begun) / a.steps
        if done >= 1:
            break
        scale = min(1.0, (st["step"] - begun + 1) / a.warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        for o, lrs in zip(opts, base):
            for g, lr in zip(o.param_groups, lrs):
                g["lr"] = lr * scale
        long = done > 0.75
        batch, seq = (max(1, a.batch // 2), a.seq * 2) if long else (a.batch, a.seq)
        x, y = train.batch([a.seed, st["step"]], batch, seq)
        loss = fast.loss(model, x, y) if quick else loss_of(model, x, y, device)
        for o in opts:
            o.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in opts:
            o.step()
        value = loss.item()
        if not math.isfinite(value):
            raise SystemExit(f"train_target.py: loss {value} at step {st['step']}; start again from the checkpoint with a lower --lr")
        mean = value if mean is None else 0.98 * mean + 0.02 * value
        st["step"] += 1
        st["tokens"] += batch * seq
        st["seconds"] += time.time() - t0
        if st["step"] % 20 == 0:
            now = time.time()
            print(f"step {st['step']} done {done:.3f} loss {mean:.4f} tokens {st['tokens'] / 1e6:.2f} M "
                  f"{(st['tokens'] - mark_tokens) / (now - mark):.0f} tok/s {time.strftime('%H:%M:%S')}", flush=True)
            mark, mark_tokens = now, st["tokens"]
        if time.time() - saved > a.save_minutes * 60:
            save(ckpt, model, opts, st)
            saved = time.time()
            if st["step"] > 300:
                print("held out", {k: round(v, 4) for k, v in held_out(model, held, device, 1).items()}, flush=True)
            mark, mark_tokens = time.time(), st["tokens"]
    save(ckpt, model, opts, st)
    result = {"tokens": st["tokens"], "steps": st["step"], "minutes": st["seconds"] / 60,
              "held": held_out(model, held, device)}
    (a.work / "target.json").write_text(json.dumps(result, indent=1))
    print("finished", result, flush=True)


if __name__ == "__main__":
    main()
