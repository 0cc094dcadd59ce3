#!/usr/bin/env python3
"""oracle.py - what transformers (targets), dflash_ref.py and mtp_ref.py (drafters) compute for the models of tests/help/tiny.c.

  oracle.py write DIR                  compute the expectations of all models in DIR (made by make_tiny) into tests/oracle/expect
  oracle.py check DIR                  compute again and compare with the committed ones
  oracle.py ratoon DIR PROGRAM         compare `PROGRAM logits` with the computation, all values
  oracle.py peer DIR LLAMA_LOGITS      the same for a llama.cpp build (program of tests/oracle/README.md)
  options: --only NAME[,NAME] --verbose

An expectation file is text, one record a line:
  model NAME FILE..            the .gguf files that share these numbers (a drafter: `draft NAME TARGET`)
  case NAME                    then what goes in: prefix N ids.. | tokens N ids.. | parents N ids.. (a tree) | taps N layers..
  row I MEAN ABSMAX N id value ..          logits of row I: mean, largest magnitude, the 8 largest and 4 others
  tap I LAYER MEAN ABSMAX N index value .. state of row I after LAYER (n_layer: after the output norm)
  noise N value ..                         quant_layers.py: by how much rounding may change each tap, a share of its norm
  pair I PREVIOUS N id value ..            DFlash2: selector scores of row I after token PREVIOUS
"""
import argparse
import pathlib
import platform
import subprocess
import sys
import tempfile
import numpy as np
import torch
import transformers
import gguf
import dflash_ref
import mtp_ref
import tiny_gguf

HERE = pathlib.Path(__file__).resolve().parent
EXPECT = HERE / "expect"
TOLERANCE = 1e-4
# llama.cpp refuses three rope sections, and uses the standard yarn_beta_fast and _slow whatever a laguna file says
NOT_FOR_PEERS = ("qwen35-ollama", "laguna-each", "small-laguna-each")

# name: the files that share the numbers, taps
MODELS = {
    "llama": (["llama"], [0, 2, 3, 4]),
    "llama-tied": (["llama-tied"], [1]),
    "qwen3": (["qwen3"], [0, 2, 3, 4]),
    "qwen3-tied": (["qwen3-tied"], [1]),
    "qwen35": (["qwen35"], [0, 3, 7, 8]),
    "qwen35-r1": (["qwen35-r1"], [2]),
    "qwen35-r3": (["qwen35-r3", "qwen35-mtp", "qwen35-ollama"], [1, 3, 5, 7, 8]),
    "small-llama": (["small-llama"], [0, 2, 3]),
    "small-qwen3": (["small-qwen3"], [0, 2, 3]),
    "small-qwen35": (["small-qwen35"], [0, 3, 4]),
    "small-qwen35-r3": (["small-qwen35-r3"], [0, 3, 4]),
    "qwen3moe": (["qwen3moe"], [0, 2, 3, 4]),
    "qwen3moe-16": (["qwen3moe-16"], [1]),
    "qwen35moe": (["qwen35moe", "qwen35moe-fused", "qwen35moe-mtp"], [0, 2, 3, 4]),
    "small-qwen3moe": (["small-qwen3moe"], [0, 2, 3]),
    "small-qwen35moe": (["small-qwen35moe", "small-qwen35moe-fused"], [0, 3, 4]),
    "laguna": (["laguna"], [0, 2, 5, 6]),
    "laguna-each": (["laguna-each"], [1]),
    "small-laguna": (["small-laguna"], [0, 3, 5]),
    "small-laguna-each": (["small-laguna-each"], [1, 4]),
    "gemma4": (["gemma4"], [0, 2, 5, 6]),
    "gemma4-values": (["gemma4-values"], [1]),
    "gemma4moe": (["gemma4moe", "gemma4moe-fused"], [0, 2, 5, 6]),
    "small-gemma4": (["small-gemma4"], [0, 3, 4]),
    "small-gemma4moe": (["small-gemma4moe", "small-gemma4moe-fused"], [0, 3, 4]),
}
DRAFTS = {"dflash-qwen3": "qwen3", "dflash-swa": "qwen35-r3", "dflash2": "qwen35-r3", "dflash2-k8": "qwen3",
          "dflash-llama": "llama",
          "small-dflash": "small-qwen3", "small-swa": "small-qwen35-r3", "small-dflash2": "small-llama",
          "dflash-laguna": "laguna", "small-dflash-laguna": "small-laguna", "small-dspark": "small-laguna-each",
          "small-library": "small-qwen3", "small-dflash-gemma4": "small-gemma4moe"}

MTP = {"mtp": "qwen35-mtp", "mtp-moe": "qwen35moe-mtp"}                              # an expectation: the file whose own MTP layer drafts


def random_tree(rng, n):
    """Parents of a depth-first tree: the path back up from the last row ends at a random height."""
    parent, path = [-1], [0]
    for i in range(1, n):
        if len(path) > 1 and rng.random() < 0.4:
            path = path[:rng.integers(1, len(path))]
        parent.append(path[-1])
        path.append(i)
    return parent


class Case:
    def __init__(self, name, prefix, tokens, parents=None, taps=(), rows=None):
        self.name, self.prefix, self.tokens, self.parents = name, list(prefix), list(tokens), parents
        self.taps, self.rows = list(taps), list(range(len(self.tokens))) if rows is None else list(rows)
        self.logits = self.states = self.pairs = None

    def path(self, i):
        if self.parents is None:
            return list(range(i + 1))
        up = [i]
        while self.parents[up[0]] >= 0:
            up.insert(0, self.parents[up[0]])
        return up


def target_cases(name, vocab, taps):
    rng = np.random.default_rng(sum(map(ord, name)))
    ids = lambda n: [int(x) for x in rng.integers(0, vocab - 6, n)]
    if not name.startswith("small-"):
        return [Case("chain", [], ids(80), taps=taps), Case("tree", ids(20), ids(24), random_tree(rng, 24), taps[:2])]
    return [Case("chain", [], ids(48), taps=taps),
            Case("long", [], ids(600), taps=taps[:1],
                 rows=[*range(0, 600, 41), 254, 255, 256, 257, 511, 512, 513, 599]),
            Case("tree", ids(11), ids(64), random_tree(rng, 64), taps[:2]),
            Case("tree-far", ids(250), ids(24), random_tree(rng, 24))]


def compute_target(model, case):
    """Every row by a plain run over its path: transformers knows no trees."""
    leaves = [i for i in range(len(case.tokens)) if case.parents is None and i == len(case.tokens) - 1
              or case.parents is not None and i not in case.parents]
    case.logits = np.zeros((len(case.tokens), model.config.vocab_size), np.float32)
    case.states = {t: np.zeros((len(case.tokens), model.config.hidden_size), np.float32) for t in case.taps}
    for leaf in leaves:
        path = case.path(leaf)
        logits, taps = tiny_gguf.run(model, case.prefix + [case.tokens[i] for i in path])
        n = len(case.prefix)
        for at, i in enumerate(path):
            case.logits[i] = logits[n + at]
            for t in case.taps:
                case.states[t][i] = taps[t][n + at]


def check_bias(model, ids):
    """A router's bias changes some choices, so that rows would differ if it were left out, and not all."""
    changed, rows, hooks = 0, 0, []

    def compare(module, args, out):
        nonlocal changed, rows
        plain = torch.topk(torch.sigmoid(out[0]), module.top_k, dim=-1).indices
        changed += int((plain.sort(-1).values != out[2].sort(-1).values).any(-1).sum())
        rows += len(plain)
    for layer in model.model.layers:
        if hasattr(layer.mlp, "gate"):
            hooks.append(layer.mlp.gate.register_forward_hook(compare))
    tiny_gguf.run(model, ids)
    for h in hooks:
        h.remove()
    assert 0 < changed < rows, (changed, rows)


def draft_cases(name, drafter, model):
    rng = np.random.default_rng(sum(map(ord, name)) + 7)
    cases = []
    for label, n in [("short", 5), ("block", 48)] + ([("far", 300)] if name.startswith("small-") else []):
        ids = [int(x) for x in rng.integers(0, model.config.vocab_size - 6, n)]
        logits, taps = tiny_gguf.run(model, ids)
        # row 0 is at the known anchor
        case = Case(label, ids, [int(logits[-1].argmax())], rows=range(1, drafter.block))
        features = torch.cat([torch.from_numpy(taps[t]) for t in drafter.taps], -1)
        # rows of the embedding as the target takes them: gemma4 scales them
        embed = model.model.embed_tokens(torch.arange(model.config.vocab_size)).detach()
        out, o = drafter.draft(features, case.tokens[0], embed,
                               model.lm_head.weight.detach())
        case.logits, case.states = out.numpy(), {}
        if drafter.has_pairs:
            case.pairs = drafter.pairs(out, o, case.tokens[0])
        cases.append(case)
    return cases


def mtp_cases(name, mtp, model):
    """Row i: the logits of depth i, after the root and the likeliest tokens of the depths before it."""
    rng = np.random.default_rng(sum(map(ord, name)))
    for label, n in [("short", 5), ("far", 300)]:
        ids = [int(x) for x in rng.integers(0, model.config.vocab_size - 6, n)]
        logits, taps = tiny_gguf.run(model, ids)
        root = int(logits[-1].argmax())
        out, chain = mtp.draft(torch.from_numpy(taps[len(model.model.layers)]), ids + [root], 3)
        case = Case(label, ids, [root] + chain[:-1])
        case.logits, case.states = out.numpy(), {}
        yield case


def check_layouts(folder, name):
    """The GGUF layouts of a drafter contain the values of the checkpoint."""
    w = dflash_ref.load(folder / f"{name}-hf")
    w.pop("t2d", None)
    if "d2t" in w:
        w["d2t"] = w["d2t"] + torch.arange(len(w["d2t"]))
    for layout in ("luce", "llama"):
        got = list(tiny_gguf.File(folder / f"{name}-{layout}.gguf").tensors.values())
        assert len(got) == len(w), (name, layout, len(got), len(w))
        left = {k: v.float().numpy() for k, v in w.items()}
        for x in got:
            same = [k for k, v in left.items() if v.size == x.size and np.array_equal(v.ravel(), x.ravel())]
            assert len(same) == 1, (name, layout, same)
            del left[same[0]]


# ---- expectation files ----

def probes(x, top, rng):
    order = [int(i) for i in np.argsort(-x, kind="stable")[:top]] if top else []
    order += [int(i) for i in rng.integers(0, len(x), 4)]
    order = [i for i in order if np.isfinite(x[i])]
    there = x[np.isfinite(x)]                      # a drafter's head may lack tokens
    return f"{there.mean():.6f} {np.abs(there).max():.6f} {len(order)} " + " ".join(f"{i} {x[i]:.6f}" for i in order)


def lines_of(case):
    rng = np.random.default_rng(len(case.tokens) * 1000 + len(case.prefix))
    yield f"case {case.name}"
    for key, v in (("prefix", case.prefix), ("tokens", case.tokens), ("parents", case.parents), ("taps", case.taps)):
        if v:
            yield f"{key} {len(v)} " + " ".join(map(str, v))
    for i in case.rows:
        yield f"row {i} {probes(case.logits[i].astype(np.float64), 8, rng)}"
    for i in case.rows:
        for t in case.taps:
            yield f"tap {i} {t} {probes(case.states[t][i].astype(np.float64), 0, rng)}"
    for t, (cand, before, score) in enumerate(case.pairs or [], 1):
        for b, s in list(zip(before, score))[:3]:
            yield f"pair {t} {b} {len(cand)} " + " ".join(f"{c} {x:.6f}" for c, x in zip(cand, s))


def header():
    return [f"# Expectations of tests/help/tiny.c models: tests/oracle/oracle.py write DIR (make oracle)",
            f"# transformers {transformers.__version__}, torch {torch.__version__}, gguf {gguf_version()}, numpy {np.__version__}, "
            f"Python {platform.python_version()}; float32, eager attention"]


def gguf_version():
    from importlib.metadata import version
    return version("gguf")


def numbers(line):
    """Integers stay integers, other numbers become floats; words stay words."""
    out = []
    for w in line.split():
        try:
            out.append(int(w))
        except ValueError:
            try:
                out.append(float(w))
            except ValueError:
                out.append(w)
    return out


def compare_lines(old, new):
    """Largest difference between the values of two files; None if they differ in anything but values."""
    old, new = ([x for x in t.splitlines() if not x.startswith("#")] for t in (old, new))
    if len(old) != len(new):
        return None
    worst = 0.0
    for a, b in zip(map(numbers, old), map(numbers, new)):
        if a[0] == "row" and b[0] == "row" and a[:2] == b[:2]:  # near ties may change places among the largest
            have = dict(zip(b[5::2], b[6::2]))
            top = min(b[6:6 + 16:2])
            worst = max([worst, abs(a[2] - b[2]), abs(a[3] - b[3])]
                        + [abs(v - have.get(i, top)) for i, v in zip(a[5::2], a[6::2])])
            continue
        if len(a) != len(b) or [x for x in a if not isinstance(x, float)] != [x for x in b if not isinstance(x, float)]:
            return None
        worst = max([worst] + [abs(x - y) for x, y in zip(a, b) if isinstance(x, float)])
    return worst


# ---- other programs ----

def run_ratoon(program, files, case, draft=None):
    with tempfile.TemporaryDirectory() as tmp:
        out = pathlib.Path(tmp) / "out"
        comma = lambda v: ",".join(map(str, v))
        cmd = [program, "logits", "-m", str(files), "--tokens", comma(case.tokens), "--out", str(out)]
        cmd += ["-d", str(draft)] if draft else []
        cmd += ["--prefix", comma(case.prefix)] if case.prefix else []
        cmd += ["--parents", comma(case.parents)] if case.parents else []
        cmd += ["--taps", comma(case.taps)] if case.taps and not draft else []
        r = subprocess.run(cmd, capture_output=True, text=True)
        if r.returncode != 0:
            return f"exit {r.returncode}: {r.stderr.strip()[-300:]}"
        got = np.fromfile(out, np.float32)
        if got.size != case.logits.size:
            return f"{got.size} values, expected {case.logits.size}"
        got = got.reshape(case.logits.shape)
        skip = 1 if draft else 0                   # a drafter's row 0 is at the known anchor; nobody reads it
        if not np.array_equal(np.isfinite(got[skip:]), np.isfinite(case.logits[skip:])):
            return "other tokens have no logit"
        worst = float(np.abs(np.nan_to_num(got, neginf=0) - np.nan_to_num(case.logits, neginf=0))[skip:].max())
        if case.taps and not draft:
            taps = np.fromfile(str(out) + ".taps", np.float32)
            want = np.concatenate([case.states[t] for t in case.taps], 1)
            if taps.size != want.size:
                return f"{taps.size} tap values, expected {want.size}"
            worst = max(worst, float(np.abs(taps.reshape(want.shape) - want).max()))
        return worst


def run_peer(program, path, case):
    with tempfile.TemporaryDirectory() as tmp:
        tokens, out = pathlib.Path(tmp) / "tokens", pathlib.Path(tmp) / "out"
        np.array(case.tokens, np.int32).tofile(tokens)
        r = subprocess.run([program, str(path), str(tokens), str(out), "0"], capture_output=True, text=True)
        if r.returncode != 0:
            return f"exit {r.returncode}: {r.stderr.strip()[-300:]}"
        return float(np.abs(np.fromfile(out, np.float32).reshape(case.logits.shape) - case.logits).max())


class Report:
    def __init__(self):
        self.bad = 0

    def line(self, what, worst, tolerance=TOLERANCE):
        ok = not isinstance(worst, str) and worst is not None and worst <= tolerance
        self.bad += not ok
        text = worst if isinstance(worst,
                                   str) else "differs in more than values" if worst is None else f"max abs diff {worst:.2e}"
        print(f"{'ok  ' if ok else 'FAIL'} {what:44} {text}", flush=True)


def main():
    ap = argparse.ArgumentParser(usage=__doc__)
    ap.add_argument("what", choices=["write", "check", "ratoon", "peer"])
    ap.add_argument("dir", type=pathlib.Path)
    ap.add_argument("program", nargs="?")
    ap.add_argument("--only")
    a = ap.parse_args()
    transformers.logging.set_verbosity_error()
    only = a.only.split(",") if a.only else None
    report, loaded = Report(), {}

    def model_of(name):
        if name not in loaded:
            loaded.clear()
            loaded[name] = tiny_gguf.load(a.dir / f"{name}.gguf")[0]
        return loaded[name]

    def finish(name, first, cases):
        text = "\n".join(header() + [first] + [x for c in cases for x in lines_of(c)]) + "\n"
        path = EXPECT / f"{name}.txt"
        if a.what == "write":
            path.write_text(text)
            print(f"{name}: {len(text)} bytes")
        elif a.what == "check":
            report.line(name, compare_lines(path.read_text(), text) if path.exists() else "no such expectation")

    for name, (files, taps) in MODELS.items():
        if only and name not in only:
            continue
        model = model_of(name)
        cases = target_cases(name, model.config.vocab_size, taps)
        for c in cases:
            compute_target(model, c)
        if "laguna" in name:
            check_bias(model, cases[0].tokens)
        finish(name, f"model {name} " + " ".join(files), cases)
        for c in cases:
            if a.what == "ratoon":
                for f in files:
                    report.line(f"{f} {c.name}", run_ratoon(a.program, a.dir / f"{f}.gguf", c))
            elif a.what == "peer" and not c.prefix:
                for f in files:
                    if f not in NOT_FOR_PEERS:
                        report.line(f"{f} {c.name}", run_peer(a.program, a.dir / f"{f}.gguf", c))
    for name, target in DRAFTS.items():
        if only and name not in only or a.what == "peer":
            continue
        check_layouts(a.dir, name)
        drafter = dflash_ref.Drafter(a.dir / f"{name}-hf")
        cases = draft_cases(name, drafter, model_of(target))
        finish(name, f"draft {name} {target}", cases)
        for c in cases if a.what == "ratoon" else []:
            for layout in ("-hf", "-luce.gguf", "-llama.gguf"):
                report.line(f"{name}{layout} {c.name}",
                            run_ratoon(a.program, a.dir / f"{target}.gguf", c, a.dir / f"{name}{layout}"))
    for name, target in MTP.items():
        if only and name not in only or a.what == "peer":
            continue
        cases = list(mtp_cases(name, mtp_ref.Mtp(tiny_gguf.File(a.dir / f"{target}.gguf")), model_of(target)))
        finish(name, f"draft {name} {target}", cases)
    return 1 if report.bad else 0


if __name__ == "__main__":
    sys.exit(main())
