#!/usr/bin/env python3
"""train_draft.py - train the DFlash drafter against its frozen target, features made on the fly.

  train_draft.py [--work build/train] [--minutes 30 | --steps 2000] [--batch 4] [--seq 256] [--roots 32]

Each step: some text (the streams, and the target's own text of sample.py if there is any), one forward pass of the target,
random roots in it, one block per root. At row k of a block the drafter is to know the target's distribution of that
position given the true text before it: loss = 0.6 KL(target || drafter) + 0.4 CE(the target's best token), weighted by
exp(-(k - 1) / 4), as only a row whose predecessors were accepted counts. It is taken of the head's logits (they choose the
candidates; 0.3) and of the logits with the selector's part for the true token before (0.7). Rows after the end of a document are left in:
the target goes on there, too. The target is read again whenever its checkpoint changes, so both may train side by side;
the last stretch must run against the final target. Resumable like train_target.py.
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
from export_gguf import load_target
from model import Drafter, DrafterConfig, config_dict
from train_target import Streams, autocast, optimizers, save

MIX = {"code": 0.46, "prose": 0.10, "arith": 0.09, "chat": 0.13, "templ": 0.22}


class SelfText:
    """Rows written by sample.py; the file may grow while we read."""

    def __init__(self, path, row):
        self.path, self.row = path, row

    def rows(self, rng, n, seq):
        if not self.path.exists():
            return None
        d = np.memmap(self.path, np.uint16, "r")
        have = len(d) // self.row
        if have < 48:
            return None
        newest = max(0, have - 2000)
        return [np.asarray(d[i * self.row:(i + 1) * self.row][:seq], np.int64) for i in rng.integers(newest, have, n)]


def step_batch(train, own, key, batch, seq, share):
    rng = np.random.default_rng(key)
    k = int((rng.random(batch) < share).sum())
    rows = own.rows(rng, k, seq) or []
    for i in range(batch - len(rows)):
        cls = str(rng.choice(list(MIX), p=list(MIX.values())))
        rows.append(train.batch([*key, i], 1, seq, cls)[0][0].numpy())
    return torch.from_numpy(np.stack(rows))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/train"))
    ap.add_argument("--minutes", type=float)
    ap.add_argument("--steps", type=int, default=2000)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--seq", type=int, default=256, help="a multiple of 64, at most --row")
    ap.add_argument("--row", type=int, default=256, help="tokens of a row of sample.py, its --prefix and --new")
    ap.add_argument("--roots", type=int, default=32)
    ap.add_argument("--share", type=float, default=0.7,
                    help="share of rows from the target's own text, once there is some")
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--vec-lr", type=float, default=2e-3)
    ap.add_argument("--layers", type=int, default=DrafterConfig.layers)
    ap.add_argument("--ff", type=int, default=DrafterConfig.ff)
    ap.add_argument("--block", type=int, default=DrafterConfig.block)
    ap.add_argument("--warmup", type=int, default=40)
    ap.add_argument("--save-minutes", type=float, default=2)
    ap.add_argument("--no-kernels", action="store_true")
    ap.add_argument("--threads", type=int, default=0)
    ap.add_argument("--seed", type=int, default=5)
    a = ap.parse_args()
    if a.seq > a.row:
        raise SystemExit(f"train_draft.py: --seq is {a.seq}, expected at most --row, {a.row}")
    if a.threads:
        torch.set_num_threads(a.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(a.seed)
    quick = device.type == "cpu" and not a.no_kernels and fast.available()
    target, ts = load_target(a.work, device)
    stamp = (a.work / "target.pt").stat().st_mtime
    drafter = Drafter(DrafterConfig(layers=a.layers, ff=a.ff, block=a.block)).to(device)
    with torch.no_grad():                # the head is the target's, so start from the scale that it expects
        drafter.norm.weight.copy_(target.model.norm.weight + 1)
    c, V = drafter.c, target.c.vocab
    opts = optimizers(drafter, a.lr, a.vec_lr, 0.02)
    ckpt = a.work / "draft.pt"
    st = {"step": 0, "seconds": 0.0, "tokens": 0}
    if ckpt.exists():
        blob = torch.load(ckpt, map_location=device, weights_only=True)
        drafter.load_state_dict(blob["model"])
        for o, s in zip(opts, blob["opts"]):
            o.load_state_dict(s)
        st = blob["state"]
        print(f"going on from step {st['step']}", flush=True)
    base = [[a.lr] * len(opts[0].param_groups), [a.vec_lr] * len(opts[1].param_groups)]
    train = Streams(a.work / "tokens", "train")
    own = SelfText(a.work / "tokens" / "self.train.u16", a.row)
    print(f"{sum(p.numel() for p in drafter.parameters()) / 1e6:.2f} M parameters, target step {ts['step']}, taps {c.taps}, fused kernels: {quick}", flush=True)
    K = c.block
    weight = torch.exp(-torch.arange(K - 1, device=device) / 4.0)
    weight = weight / weight.sum()
    saved, mean, hit_mean = time.time(), None, None
    while True:
        t0 = time.time()
        done = st["seconds"] / (a.minutes * 60) if a.minutes else st["step"] / a.steps
        if done >= 1:
            break
        if st["step"] % 10 == 0 and (a.work / "target.pt").stat().st_mtime != stamp:
            stamp = (a.work / "target.pt").stat().st_mtime
            target, ts = load_target(a.work, device)
            print(f"target read again: step {ts['step']}", flush=True)
        scale = min(1.0, (st["step"] + 1) / a.warmup) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * done)))
        for o, lrs in zip(opts, base):
            for g, lr in zip(o.param_groups, lrs):
                g["lr"] = lr * scale
        ids = step_batch(train, own, [a.seed, st["step"]], a.batch, a.seq, a.share).to(device)
        with torch.no_grad(), autocast(device):
            h, taps = fast.forward(target, ids, c.taps) if quick else target(ids, c.taps)
            # roots early enough that every row of the block has a label, late enough that there is something to see
            roots = torch.stack([torch.randperm(a.seq - K - 8, device=device)[:a.roots].sort().values + 8
                                 for _ in range(a.batch)])
            at = roots[..., None] + torch.arange(K - 1, device=device)  # the target's rows that judge rows 1..K-1
            lp = target.logits(h.gather(1,
                                        at.reshape(a.batch, -1, 1).expand(-1, -1, h.shape[-1]))).float().log_softmax(-1)
            p, best = lp.exp(), lp.argmax(-1)
            block = torch.full((a.batch, a.roots, K), c.mask_id, device=device)
            true = ids.gather(1, (roots[..., None] + torch.arange(K, device=device)).view(a.batch, -1)).view(a.batch, -1, K)
            block[..., 0] = true[..., 0]
            embed = target.model.embed_tokens(block)
        with autocast(device):
            d = drafter(taps, embed, roots)[:, :, 1:]
            unary = target.logits(d)
            pair = unary + drafter.candidate_selector(d, true[..., :-1])
        loss = 0
        for share, x in ((0.3, unary), (0.7, pair)):
            lq = x.float().log_softmax(-1).view(a.batch, -1, V)
            ce = -lq.gather(-1, best[..., None])[..., 0]
            kl = -(p * lq).sum(-1)                                                 # less the entropy of p, a constant
            loss = loss + share * ((0.6 * kl + 0.4 * ce).view(a.batch, a.roots, K - 1) * weight).sum(-1).mean()
        for o in opts:
            o.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        for o in opts:
            o.step()
        value = loss.item()
        if not math.isfinite(value):
            raise SystemExit(f"train_draft.py: loss {value} at step {st['step']}")
        hit = (lq.argmax(-1) == best).view(a.batch, a.roots, K - 1).float()
        al = 1 + hit.cumprod(-1).sum(-1).mean().item()
        mean = value if mean is None else 0.96 * mean + 0.04 * value
        hit_mean = al if hit_mean is None else 0.96 * hit_mean + 0.04 * al
        st["step"] += 1
        st["tokens"] += ids.numel()
        st["seconds"] += time.time() - t0
        if st["step"] % 20 == 0:
            print(f"step {st['step']} done {done:.3f} loss {mean:.4f} teacher-forced AL {hit_mean:.3f} {time.time() - t0:.2f} s/step {time.strftime('%H:%M:%S')}", flush=True)
        if time.time() - saved > a.save_minutes * 60:
            save(ckpt, drafter, opts, st)
            saved = time.time()
    save(ckpt, drafter, opts, st)
    (a.work / "draft.json").write_text(json.dumps({"steps": st["step"], "tokens": st["tokens"],
                                                   "minutes": st["seconds"] / 60,
                                                   "target_step": ts["step"], "loss": mean,
                                                   "teacher_forced_al": hit_mean}, indent=1))
    print("finished", flush=True)


if __name__ == "__main__":
    main()
