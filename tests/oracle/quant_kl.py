#!/usr/bin/env python3
"""quant_kl.py DIR [--llama BIN --llama-logits PROGRAM [--plain]] [--ratoon PROGRAM] - what quantising the activations costs.

The same quantised weights with exact arithmetic (transformers on the dequantised file) against a program that multiplies them with
quantised activations: mean and largest KL(exact || program) over 80 positions, how often the most likely token is the same, and the same
two numbers for one row at a time against all rows at once. Files: DIR/NAME.gguf (make_tiny) through BIN/llama-quantize, and the ones that
make_tiny or `ratoon quantize` wrote, if they lie in DIR as NAME-TYPE.gguf."""
import argparse
import pathlib
import subprocess
import tempfile
import numpy as np
import transformers
import tiny_gguf

MODELS, TYPES = ("qwen3", "qwen35-r3"), ("Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q4_0")


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def compare(exact, got):
    a, b = log_softmax(exact), log_softmax(got)
    kl = (np.exp(a) * (a - b)).sum(1)
    return f"KL mean {kl.mean():.1e} max {kl.max():.1e}, same top {100 * (exact.argmax(1) == got.argmax(1)).mean():.1f} %"


def llama(program, path, ids, chunk, tmp, plain=()):
    np.array(ids, np.int32).tofile(tmp / "tokens")
    subprocess.run([program, str(path), str(tmp / "tokens"), str(tmp / "out"), str(chunk), "f32", *plain], check=True,
                   capture_output=True)
    return np.fromfile(tmp / "out", np.float32).reshape(len(ids), -1)


def ratoon(program, path, ids, tmp):
    r = subprocess.run([program, "logits", "-m", str(path), "--tokens", ",".join(map(str, ids)), "--out",
                        str(tmp / "out")],
                       capture_output=True, text=True)
    if r.returncode:
        raise SystemExit(f"{program} logits -m {path}: {r.stderr.strip()}")
    return np.fromfile(tmp / "out", np.float32).reshape(len(ids), -1)


def main():
    ap = argparse.ArgumentParser(usage=__doc__)
    ap.add_argument("dir", type=pathlib.Path)
    ap.add_argument("--llama", type=pathlib.Path)
    ap.add_argument("--llama-logits")
    ap.add_argument("--plain", action="store_const", const=["plain"], default=[],
                    help="llama.cpp without repacked weights")
    ap.add_argument("--ratoon")
    a = ap.parse_args()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        for name in MODELS:
            files = []
            for t in TYPES if a.llama else ():
                path = tmp / f"{name} llama-quantize {t}.gguf"
                subprocess.run([a.llama / "llama-quantize", a.dir / f"{name}.gguf", path, t, "1"], check=True,
                               capture_output=True)
                files.append(path)
            ours = lambda p: p.stem == name + "-ours" or p.stem[len(name) + 1:].startswith(("Q", "I", "F", "B"))
            files += [p for p in sorted(a.dir.glob(f"{name}-*.gguf")) if ours(p)]
            for path in files:
                model, f = tiny_gguf.load(path)
                ids = [int(x) for x in np.random.default_rng(3).integers(0, model.config.vocab_size - 6, 80)]
                exact, _ = tiny_gguf.run(model, ids)
                if a.llama_logits:
                    all_rows = llama(a.llama_logits, path, ids, 0, tmp, a.plain)
                    print(f"{path.stem:34} llama.cpp  {compare(exact, all_rows)}", flush=True)
                    print(f"{'':34}   one by one against all rows: {compare(all_rows, llama(a.llama_logits, path, ids, 1, tmp, a.plain))}", flush=True)
                if a.ratoon:
                    print(f"{path.stem:34} ratoon     {compare(exact, ratoon(a.ratoon, path, ids, tmp))}", flush=True)


if __name__ == "__main__":
    main()
