#!/usr/bin/env python3
"""peer_draft.py DIR BIN - dflash_ref.py against llama.cpp's drafting.

Runs BIN/llama-speculative-simple (draft-dflash, float32) on the drafters of DIR in llama.cpp's layout and compares the first block:
its three best tokens of every position and their probabilities, which the log rounds to three digits and which are softmaxed over
the ten best (DFlash2: over the selector's candidates). Where it follows another rule than the checkpoints' own code, the rule is
set to its: sliding layers see the whole block unless attention.causal says otherwise; no tap after a target's last layer; no DFlash2
with hidden < top_k * (top_k + 1)."""
import pathlib
import re
import subprocess
import sys
import tempfile
import torch
import transformers
import dflash_ref
import tiny_gguf
from oracle import DRAFTS

TEXT = " the self return for user assistant in the not print system that is of and to it def def return self self user" * 2


def tokens(bin_dir, model, text):
    r = subprocess.run([bin_dir / "llama-tokenize", "-m", model, "--ids", "-p", text], capture_output=True, text=True,
                       check=True)
    return [int(x) for x in r.stdout.strip().strip("[]").split(",")]


def speculate(bin_dir, folder, name, target, block, text, *more):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write(text)
        f.flush()
        r = subprocess.run([bin_dir / "llama-speculative-simple", "-m", folder / f"{target}.gguf", "-md",
                            folder / f"{name}-llama.gguf",
                            "--spec-type", "draft-dflash", "--spec-draft-n-max", str(block - 1), "-f", f.name, "-n",
                            "64", "--temp", "0",
                            "-t", "1", "-c", "1024", "-fa", "off", "-ctk", "f32", "-ctv", "f32", "-v", *more],
                           capture_output=True, text=True, errors="replace")
        return r.stderr + r.stdout


def check_selector(bin_dir, folder, name, target, drafter, text, logits, o, anchor):
    """llama.cpp does not print a DFlash2's draft, but --spec-draft-p-min ends the block before the first token whose
    probability over the candidates is smaller; so thresholds just below and just above each running minimum pin that
    probability."""
    before, p = anchor, []
    for cand, prev, table in drafter.pairs(logits, o, anchor):
        score = torch.tensor(table[prev.index(before)])
        p.append(float(score.softmax(-1).max()))
        before = cand[int(score.argmax())]
    tried = good = 0
    for row, x in enumerate(p):
        if x != min(p[:row + 1]):
            continue
        for threshold, want in ((x - 1e-3, next((i for i, y in enumerate(p) if y < x - 1e-3), len(p))),
                                (x + 1e-3, row)):
            if threshold > x and min(p[:row], default=1) < threshold:
                continue
            out = speculate(bin_dir, folder, name, target, drafter.block, text, "--spec-draft-p-min",
                            f"{threshold:.6f}")
            got = re.search(r"impl draft-dflash, hist size = +\d+, call_count = 1, gen = (\d+)", out)
            tried += 1
            good += (int(got[1]) if got else 0) == want
    print(f"{'ok  ' if tried and good == tried else 'FAIL'} {name}: greedy path's probabilities {[round(x, 3) for x in p]}, "
          f"{good}/{tried} thresholds end the block where they should")
    return tried and good == tried


def draft(drafter, model, ids):
    """The first block that the program drafts: from the prompt's last token."""
    context, anchor = ids[:-1], ids[-1]
    _, taps = tiny_gguf.run(model, context)
    features = torch.cat([torch.from_numpy(taps[t]) for t in drafter.taps], -1)
    return *drafter.draft(features, anchor, model.model.embed_tokens.weight.detach(),
                          model.lm_head.weight.detach()), anchor


def main():
    folder, bin_dir = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    transformers.logging.set_verbosity_error()
    bad = 0
    for name, target in DRAFTS.items():
        if name.startswith("small-") or name in ("dflash2", "dflash-llama"):       # small ones have no tokenizer
            continue
        path = folder / f"{target}.gguf"
        drafter = dflash_ref.Drafter(folder / f"{name}-hf")
        drafter.c.setdefault("is_causal", False)
        model, _ = tiny_gguf.load(path)
        if drafter.top_k:
            for n in (40, 64, 100, 150):
                result = draft(drafter, model, tokens(bin_dir, path, TEXT[:n]))
                bad += not check_selector(bin_dir, folder, name, target, drafter, TEXT[:n], *result)
            continue
        ids = tokens(bin_dir, path, TEXT)
        logits, _, _ = draft(drafter, model, ids)
        out = speculate(bin_dir, folder, name, target, drafter.block, TEXT)
        block, rows = [], 0
        for rank, pos, token, p in re.findall(r"draft candidate +(\d+), pos +(\d+): +(\d+) \( +([\d.]+)\)", out):
            rows += int(rank) == 0
            if rows >= drafter.block:
                break
            block.append((rows, int(rank), int(token), float(p)))
        best = [logits[row].topk(10) for row in range(1, drafter.block)]
        best = [(cand[:3].tolist(), score.softmax(-1)[:3].tolist()) for score, cand in best]
        same = sum(best[row - 1][0][rank] == token for row, rank, token, p in block)
        worst = max([abs(best[row - 1][1][rank] - p) for row, rank, token, p in block], default=9)
        ok = len(block) == 3 * len(best) and same == len(block) and worst < 2e-3
        bad += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {name}: context {len(ids) - 1}, {len(best)} positions, same token {same}/{len(block)}, "
              f"probability within {worst:.4f}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
