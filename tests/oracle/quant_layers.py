#!/usr/bin/env python3
"""quant_layers.py - mixtures of experts in quantised types, layer by layer, against llama.cpp on the same file.

  quant_layers.py write MAKE_TINY LLAMA_QUANTIZE LLAMA_LOGITS         expectations of the models "-all" and "-two"
  quant_layers.py ratoon MAKE_TINY LLAMA_QUANTIZE LLAMA_LOGITS RATOON compares all types, rows and values (README.md)
  options: --only NAME[:TYPE][,..] --plain

Both programs round the inputs of products to 8 bits. In blocks of 256 they do it alike, so a row's layer outputs agree
to SAME of their norm unless a sum that was added up in another order fell on the other side of a rounding. In blocks of
32 llama.cpp rounds the scale to a half, which puts many inputs on the other side. How much that may matter is measured
on llama.cpp itself: N is the difference between its layer outputs and those that it computes from the same weights as
F32, as a share of their norm. ratoon must be as near to those, nearer than N to llama.cpp's, and in blocks of 256 some
rows of every layer must be the same.

"-all" models use all their experts, so no row can choose others: every value counts. "-two" models choose 2 of 8. There
each row has a text of its own behind one first token, so that a row with other experts spoils no other. A row is
decided if in all layers its last chosen and first unchosen expert are further apart than DECIDED times the deviation S
of this distance (from the same two runs of llama.cpp). Decided rows must have the same experts; that other rows have
others shows in what comes out.
"""
import argparse
import pathlib
import platform
import subprocess
import sys
import tempfile
import numpy as np
import oracle

FAMILIES = ("qwen3moe", "qwen35moe", "laguna")
TYPES = ("Q8_0", "Q6_K", "Q5_K", "Q4_K_M", "Q4_0", "Q3_K", "Q2_K", "MXFP4_MOE", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S",
         "IQ2_XS", "IQ2_XXS")
STORED_TWO = ("Q8_0", "Q4_K_M", "IQ2_XS")          # how rows choose does not depend on the type
ROWS_ALL, ROWS_TWO = 24, 48                        # laguna has windows of 20
STORED_ROWS_ALL, STORED_ROWS_TWO = 6, 12
VOCAB = 96
SAME = 1e-4
DECIDED = 4
OTHER = 4                                          # in N: rows with other experts differ by more, others by less than 2
BLOCKS_32 = ("Q8_0", "Q4_0", "MXFP4_MOE")


class Rows:
    """What a program computed: taps {layer: [n, dim]}; of llama.cpp also scores {layer: [n, experts]}: what decides."""

    def __init__(self, taps, scores=None):
        self.taps, self.scores = taps, scores


def llama(program, path, ids, words):
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        np.array(ids, np.int32).tofile(tmp / "tokens")
        subprocess.run([program, path, tmp / "tokens", tmp / "out", "0", "f32", "trace", *words], check=True,
                       capture_output=True)
        rows = lambda p: np.fromfile(p, np.float32).reshape(len(ids), -1).astype(np.float64)
        read = lambda stem: {int(p.name.rsplit("-", 1)[1]): rows(p) for p in tmp.glob(f"out.{stem}-*")}
        return Rows(read("l_out"), read("ffn_moe_logits") | read("ffn_moe_probs_biased"))


def ratoon(program, path, case):
    with tempfile.TemporaryDirectory() as tmp:
        comma = lambda v: ",".join(map(str, v))
        cmd = [program, "logits", "-m", path, "--tokens", comma(case.tokens), "--taps", comma(case.taps),
               "--out", f"{tmp}/out", "-ctk", "f32", "-ctv", "f32"]
        cmd += ["--parents", comma(case.parents)] if case.parents else []
        subprocess.run(cmd, check=True, capture_output=True)
        rows = np.fromfile(f"{tmp}/out.taps", np.float32).reshape(len(case.tokens), len(case.taps), -1)
        return Rows({l: rows[:, i].astype(np.float64) for i, l in enumerate(case.taps)})


def apart(a, b, rows):
    """By how much the rows differ, as a share of b's norm."""
    return np.sqrt(((a[rows] - b[rows]) ** 2).sum() / (b[rows] ** 2).sum())


def apart_each(a, b):
    return np.sqrt(((a - b) ** 2).sum(1) / (b ** 2).sum(1))


def chosen(scores, used):
    return np.sort(np.argsort(-scores, 1, kind="stable")[:, :used], 1)


class Routes:
    """Which rows of L are decided, judged by E: the same weights as F32. distance: in S, the least of all layers."""

    def __init__(self, L, E, used):
        n = len(next(iter(L.taps.values())))
        same, self.distance = np.ones(n, bool), np.full(n, np.inf)
        for layer, z in sorted(L.scores.items()):
            order = np.argsort(-z, 1, kind="stable")
            last, next_ = order[:, used - 1, None], order[:, used, None]
            margin = lambda x: (np.take_along_axis(x, last, 1) - np.take_along_axis(x, next_, 1))[:, 0]
            deviation = np.sqrt(((margin(z) - margin(E.scores[layer]))[same] ** 2).mean())
            self.distance = np.minimum(self.distance, margin(z) / deviation)
            same &= (chosen(z, used) == chosen(E.scores[layer], used)).all(1)
        self.differs = ~same                       # rows whose experts are not E's in some layer
        self.decided = self.distance > DECIDED


class Job:
    def __init__(self, a, name, kind, type_, tmp):
        self.label = f"{name}-{kind}"
        subprocess.run([a.make_tiny, f"{self.label}:{type_}", tmp], check=True)
        self.path, exact = f"{tmp}/{self.label}-{type_}.gguf", f"{tmp}/exact.gguf"
        subprocess.run([a.llama_quantize, "--allow-requantize", self.path, exact, "F32", "1"], check=True,
                       capture_output=True)
        rng = np.random.default_rng(sum(map(ord, name + kind)))
        layers = 3 if name == "laguna" else 2
        plain = ["plain"] if a.plain else []
        run = lambda words: (llama(a.llama_logits, p, self.case.tokens, plain + words) for p in (self.path, exact))
        if kind == "all":
            ids = [int(x) for x in rng.integers(0, VOCAB - 6, ROWS_ALL)]
            self.case = oracle.Case(type_, [], ids, taps=range(layers))
            self.L, self.E = run([])
            self.routes, self.rows = None, np.ones(ROWS_ALL, bool)
            return
        ids = [int(x) for x in rng.permutation(VOCAB - 6)[:ROWS_TWO]]
        for first in range(ROWS_TWO):              # it is part of every text, so it must be decided clearly
            self.case = oracle.Case(type_, [], ids[first:] + ids[:first], [-1] + [0] * (ROWS_TWO - 1), range(layers))
            self.L, self.E = run(["pairs"])
            self.routes = Routes(self.L, self.E, 2)
            self.rows = self.routes.decided
            if self.routes.distance[0] > 2 * DECIDED and not self.routes.differs[0]:
                return
        raise SystemExit(f"{self.label} {type_}: no token is decided clearly")

    def noise(self):
        return [apart(self.L.taps[l], self.E.taps[l], self.rows) for l in self.case.taps]


def write(jobs, label):
    lines = ["# Layers of quantised files of tests/help/tiny.c by llama.cpp: tests/oracle/quant_layers.py write",
             f"# llama.cpp of llama-cpp-python 0.3.36, numpy {np.__version__}, {platform.machine()}",
             f"model {label} {label}"]
    for j in jobs:
        c = j.case
        good = np.flatnonzero(j.rows)
        count = STORED_ROWS_ALL if j.routes is None else STORED_ROWS_TWO
        c.rows = [int(x) for x in good[np.linspace(0, len(good) - 1, count).astype(int)]]
        rng = np.random.default_rng(count)
        lines.append(f"case {c.name}")
        for key, v in (("tokens", c.tokens), ("parents", c.parents), ("taps", c.taps)):
            lines += [f"{key} {len(v)} " + " ".join(map(str, v))] if v else []
        lines.append(f"noise {len(c.taps)} " + " ".join(f"{x:.5f}" for x in j.noise()))
        lines += [f"tap {i} {l} {oracle.probes(j.L.taps[l][i], 0, rng)}" for i in c.rows for l in c.taps]
    text = "\n".join(lines) + "\n"
    (oracle.EXPECT / f"{label}.txt").write_text(text)
    print(f"{label}: {len(text)} bytes", flush=True)


def show(j, program):
    R, noise = ratoon(program, j.path, j.case), j.noise()
    per = lambda v: " ".join(f"{100 * x:5.2f}" for x in v)
    ours = [apart(R.taps[l], j.E.taps[l], j.rows) for l in j.case.taps]
    both = [apart(R.taps[l], j.L.taps[l], j.rows) for l in j.case.taps]
    same = [np.mean(apart_each(R.taps[l], j.L.taps[l])[j.rows] < SAME) for l in j.case.taps]
    line = f"{j.label:14} {j.case.name:9} N {per(noise)} | ours {per(ours)} | apart {per(both)} | same " + \
        " ".join(f"{100 * x:3.0f}" for x in same)
    good = all(o < 1.1 * n and b < n for o, b, n in zip(ours, both, noise))
    if j.case.name not in BLOCKS_32:
        good = good and same[0] > 0.9 and min(same) > 0.1
    if j.routes:
        r, each = j.routes, np.max([apart_each(R.taps[l], j.L.taps[l]) / n for l, n in zip(j.case.taps, noise)], 0)
        other = each > OTHER
        good = good and not (other & r.decided).any()
        line += f" | decided {r.decided.sum()}/{len(other)}, same to {each[~other].max():.1f} N, " \
            f"others {other.sum()} (llama.cpp against F32 {r.differs.sum()})"
        if other.any():
            line += f" from {each[other].min():.0f} N, margins {np.sort(r.distance[other]).round(1).tolist()} S"
    print(("ok   " if good else "FAIL ") + line, flush=True)
    return good


def main():
    ap = argparse.ArgumentParser(usage=__doc__)
    ap.add_argument("what", choices=["write", "ratoon"])
    for x in ("make_tiny", "llama_quantize", "llama_logits"):
        ap.add_argument(x)
    ap.add_argument("ratoon", nargs="?")
    ap.add_argument("--only", default="")
    ap.add_argument("--plain", action="store_true", help="llama.cpp without repacked weights")
    a = ap.parse_args()
    only = [x.split(":") for x in a.only.split(",") if x]
    good = True
    for kind in ("all", "two"):
        for name in FAMILIES:
            jobs = []
            for t in TYPES if kind == "all" or a.what == "ratoon" else STORED_TWO:
                if only and not any(o[0] in (name, f"{name}-{kind}") and o[1:] in ([], [t]) for o in only):
                    continue
                with tempfile.TemporaryDirectory() as tmp:
                    jobs.append(Job(a, name, kind, t, tmp))
                    if a.what == "ratoon":
                        good &= show(jobs.pop(), a.ratoon)
            if jobs:
                write(jobs, f"{name}-{kind}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
