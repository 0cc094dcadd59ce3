#!/usr/bin/env python3
"""verify.py - hold the exported pair against independent readers, and write reference values for the C program's tests.

  verify.py [--work build/train] [--out build/train/export/ref] [--llama-logits PROGRAM --gguf FILE]

Writes into OUT, little-endian: tokens.i32 [n]; for the float32 weights logits.f32 [n, vocab], taps.f32 [n, taps * hidden],
draft_block.i32 [block], draft_logits.f32 [block, vocab] (root = the last token, its tap unseen: the taps of positions
0..n-2 are the context); the same with prefix q8_ for weights that went through Q8_0. ref.json says the shapes.
Compares: our logits with transformers' Qwen3_5ForCausalLM; one-token steps with the chunked pass; a GGUF that was
written with those of a llama.cpp program that prints logits for token ids, if one is named; with --fast the gradients of
the fused training pass with those of plain float32 PyTorch.
"""
import argparse
import copy
import json
import pathlib
import subprocess
import numpy as np
import torch
from export_gguf import hf_config, load_drafter, load_target
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from tokenizer import load

TEXT = '''import os
import sys


class Reader:
    """Read lines from a file and count them."""

    def __init__(self, path, encoding="utf-8"):
        self.path = path
        self.encoding = encoding
        self.count = 0

    def __iter__(self):
        with open(self.path, encoding=self.encoding) as f:
            for line in f:
                self.count += 1
                yield line.rstrip("\\n")

    def close(self):
        self.'''


def q8_copy(model):
    """The model as a Q8_0 file holds it: every matrix with rows of whole blocks rounded, everything else untouched."""
    m = copy.deepcopy(model)
    Q = GGMLQuantizationType.Q8_0
    with torch.no_grad():
        for name, p in m.named_parameters():
            if p.ndim == 2:
                p.copy_(torch.from_numpy(dequantize(quantize(p.float().numpy(), Q), Q)))
    return m


def compare_fast(target, ids):
    """Relative error of every gradient of the fused bfloat16 pass, next to that of PyTorch's own autocast."""
    import fast
    if not fast.available():
        raise SystemExit("verify.py: no C compiler found, there is no fused pass to compare")
    x, y = ids[:, :64], ids[:, 1:65]

    def plain():
        h, _ = target(x)
        return torch.nn.functional.cross_entropy(target.logits(h).float().view(-1, target.c.vocab), y.reshape(-1))

    grads = []
    with torch.enable_grad():
        for kind in ("float32", "autocast", "fused"):
            target.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
                loss = fast.loss(target, x, y) if kind == "fused" else plain()
            loss.backward()
            grads.append({n: p.grad.clone() for n, p in target.named_parameters()})
    error = lambda g: max((((g[n] - grads[0][n]).norm() / (grads[0][n].norm() + 1e-12)).item(), n) for n in g)
    print(f"worst gradient against float32: fused {error(grads[2])}, autocast {error(grads[1])}")


def run(target, drafter, ids):
    h, taps = target(ids, drafter.c.taps)
    n = ids.shape[1]
    block = torch.full((1, 1, drafter.c.block), drafter.c.mask_id)
    block[..., 0] = ids[0, -1]
    d = drafter(taps[:, :n - 1], target.model.embed_tokens(block), torch.tensor([[n - 1]]))
    return target.logits(h)[0], taps[0], block[0, 0], target.logits(d)[0, 0]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/train"))
    ap.add_argument("--out", type=pathlib.Path)
    ap.add_argument("--llama-logits", type=pathlib.Path)
    ap.add_argument("--gguf", type=pathlib.Path)
    ap.add_argument("--fast", action="store_true")
    ap.add_argument("--no-transformers", action="store_true")
    a = ap.parse_args()
    out = a.out or a.work / "export" / "ref"
    out.mkdir(parents=True, exist_ok=True)
    torch.set_grad_enabled(False)
    tok = load(a.work / "tokenizer.json")
    ids = torch.tensor([tok.encode(TEXT).ids])
    target, drafter = load_target(a.work)[0].float(), load_drafter(a.work)[0].float()
    ids[0].numpy().astype(np.int32).tofile(out / "tokens.i32")
    (out / "text.txt").write_text(TEXT)
    results = {}
    for prefix, t, d in (("", target, drafter), ("q8_", q8_copy(target), q8_copy(drafter))):
        logits, taps, block, draft = run(t, d, ids)
        results[prefix] = logits
        for name, x, kind in (("logits.f32", logits, np.float32), ("taps.f32", taps, np.float32),
                              ("draft_block.i32", block, np.int32), ("draft_logits.f32", draft, np.float32)):
            x.numpy().astype(kind).tofile(out / (prefix + name))
    n = ids.shape[1]
    (out / "ref.json").write_text(json.dumps({
        "tokens": n, "vocab": target.c.vocab, "taps": list(drafter.c.taps),
        "tap_width": len(drafter.c.taps) * target.c.hidden,
        "block": drafter.c.block, "mask_id": drafter.c.mask_id, "root_position": n - 1,
        "files": "tokens.i32 [n]; {,q8_}logits.f32 [n, vocab]; {,q8_}taps.f32 [n, tap_width]; {,q8_}draft_block.i32 "
                 "[block]; "
                 "{,q8_}draft_logits.f32 [block, vocab]"}, indent=1))
    print(f"{n} tokens, Q8_0 against float32 logits: max {(results['q8_'] - results['']).abs().max():.4f} of std {results[''].std():.3f}")
    cache = target.cache(1, n)
    steps = torch.stack([target.logits(target.step(ids[:, i], cache, i))[0] for i in range(n)])
    print(f"one token at a time against chunks: max {(steps - results['']).abs().max():.2e}")
    if a.fast:
        compare_fast(target, ids)
    if not a.no_transformers:
        import transformers as T
        hf = T.Qwen3_5ForCausalLM(T.Qwen3_5TextConfig(**hf_config(target.c))).float().eval()
        hf.set_attn_implementation("eager")
        missing, extra = hf.load_state_dict(target.state_dict(), strict=False)
        if extra or set(missing) - {"lm_head.weight"}:
            raise SystemExit(f"verify.py: state dict differs from transformers': missing {missing}, extra {extra}")
        hf.tie_weights()
        got = hf(ids, use_cache=False).logits[0]
        print(f"transformers: max {(got - results['']).abs().max():.2e}")
    if a.llama_logits:
        dst = out / "llama_logits.f32"
        subprocess.run([a.llama_logits.resolve(), a.gguf.resolve(), (out / "tokens.i32").resolve(), dst.resolve()],
                       check=True)
        got = torch.from_numpy(np.fromfile(dst, np.float32).reshape(n, -1))
        dst.unlink()
        want = results["q8_" if "q8_0" in a.gguf.name else ""]
        print(f"llama.cpp, {a.gguf.name}: max {(got - want).abs().max():.2e}, NMSE {((got - want) ** 2).mean() / (want ** 2).mean():.2e}, "
              f"same best token {(got.argmax(-1) == want.argmax(-1)).float().mean():.3f}")


if __name__ == "__main__":
    main()
