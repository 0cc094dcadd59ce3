#!/usr/bin/env python3
"""Accesses of the kernels to the same memory that nothing orders, within blocks and between them, found by the emulated
GPU built for it (tests/gpu/emu_race.cpp) while test_ops runs; and those of the planted errors, which must be found.

    python3 tests/gpu/test_races.py BUILD [--share N] [CASE...]

--share: one turn in N of each case (default 32); CASE: of test_ops, all without one. What is meant stands in races.txt.
The last line is 'N passed, N failed', kernels."""
import argparse
import concurrent.futures
import fnmatch
import os
import sys

import watched

CASES = ["norm", "add_norm", "head_norm", "gated_norm", "glu", "gate", "rope", "tap", "matmul", "products", "route",
         "experts", "kv_*", "attend_block", "attention", "splits", "rings", "delta", "keep_is_fresh",
         "tree_rows_are_chains", "neighbours_do_not_matter", "block_conv", "pair_scores", "draw_*", "top_k", "pick",
         "canvas"]
PLANTED = ["no_first_sync", "no_second_sync", "no_copy_wait", "stage_too_few", "restaged_too_soon", "no_sync_warp",
           "race_of_blocks", "list_too_soon", "ticket_too_soon", "no_first_fence", "no_second_fence"]


def run(args, words):
    return watched.run(args.build, words, "RATOON_EMU_RACES", "1/%d" % args.share)


def meant(kernel, lines):
    text = (watched.ROOT / "tests/gpu/races.txt").read_text()
    rows = [l.split(maxsplit=1) for l in text.splitlines() if l and l[0] != "#"]
    return any(fnmatch.fnmatch(kernel, pattern) and line in lines for pattern, line in rows)


def planted(args):
    lines, said = run(args, ["test_gpu_planted"])
    with_races = {l.split()[0] for l in lines if " " in l}
    bad = [name + ": not found" for name in PLANTED if "plant_" + name not in with_races]
    bad += [name + ": found where nothing is wrong" for name in ("sound", "sound_lists") if "plant_" + name in with_races]
    for b in bad + ([said] if said else []):
        print(b)
    return not bad and not said


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    parser.add_argument("--share", type=int, default=32)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    args = parser.parse_args()
    kernels, races, failed = set(), set(), 0 if planted(args) else 1
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for lines, said in pool.map(lambda case: run(args, ["test_ops", "--backend", "cuda", case]), args.cases or CASES):
            if said:
                print(said)
                failed += 1
            kernels.update(l for l in lines if " " not in l)
            races.update(tuple(l.split()) for l in lines if " " in l)
    at = watched.places(args.build, sorted({a for r in races for a in r[2:]})) if races else {}
    bad = set()
    for kernel, kind, *both in sorted(races):
        if meant(kernel, [text for a in both for _, text in at[a]]):
            continue
        bad.add(kernel)
        print("%s: %s: %s, %s" % (kernel, kind, *(" < ".join(where for where, _ in at[a]) or a for a in both)))
    failed += len(bad)
    print("%d passed, %d failed" % (len(kernels - bad), failed))
    return 1 if failed or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
