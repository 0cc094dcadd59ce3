#!/usr/bin/env python3
"""How well the kernels' accesses to memory fit a card: sectors and banks, counted by the emulated GPU built for it
(tests/gpu/emu_count.cpp) while test_ops runs, against the limits of counts.txt.

    python3 tests/gpu/test_counts.py BUILD [--table]        --table: prints the ratios, and the worst places of the code

The last line is 'N passed, N failed', kernels; one that has hardly been used is not judged."""
import argparse
import collections
import concurrent.futures
import fnmatch
import os
import sys

import watched

KINDS = ["weights", "loads", "stores", "shared"]
JUDGED = 200                                           # sectors or passes at the least
PART = "1/7"                                          # of the long cases
CASES = ["norm", "add_norm", "head_norm", "gated_norm", "glu", "gate", "rope", "tap", "matmul", "products", "route",
         "experts", "kv_*", "attention", "splits", "delta", "tree_rows_are_chains", "block_conv", "pair_scores", "top_k",
         "pick", "canvas"]


def limits():
    rows = [l.split() for l in (watched.ROOT / "tests/gpu/counts.txt").read_text().splitlines() if l and l[0] != "#"]
    return [(row[0], [float(x) for x in row[1:]]) for row in rows]


def measure(build):
    """{kernel: [[taken, least] of each kind]}, {(kernel, address, kind): [taken, least]}, cases that failed"""
    kernels, places, failed = {}, {}, 0
    run = lambda case: watched.run(build, ["test_ops", "--backend", "cuda", case], "RATOON_EMU_COUNTS", PART)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for lines, said in pool.map(run, CASES):
            if said:
                print(said)
                failed += 1
            for word in map(str.split, lines):
                if word[0] == "-":
                    sums = [places.setdefault(tuple(word[1:4]), [0, 0])]
                    numbers = word[4:]
                else:
                    sums = kernels.setdefault(word[0], [[0, 0] for _ in KINDS])
                    numbers = word[2:]
                for i, n in enumerate(numbers):
                    sums[i // 2][i % 2] += int(n)
    return kernels, places, failed


def source_of(build, addresses):
    """file:line of each; of functions that were inlined there, the innermost."""
    at = watched.places(build, addresses)
    return [at[a][0][0] if at[a] else "?" for a in addresses]


def table(build, kernels, places):
    print("%-24s %10s %10s %10s %10s" % ("kernel", *KINDS))
    for name, kinds in sorted(kernels.items()):
        print("%-24s" % name, *("%10.2f" % (taken / least) if least else "%10s" % "-" for taken, least in kinds))
    worst = collections.defaultdict(list)
    for (kernel, address, kind), (taken, least) in places.items():
        worst[kernel].append((taken - least, address, kind, taken, least))
    chosen = [(k, *w) for k in sorted(worst) for w in sorted(worst[k], reverse=True)[:3]]
    for (kernel, _, _, kind, taken, least), place in zip(chosen, source_of(build, [c[2] for c in chosen])):
        print("%-24s %-8s %6.2f of %9d  %s" % (kernel, kind, taken / least, least, place))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    kernels, places, bad = measure(args.build)
    if args.table:
        table(args.build, kernels, places)
        return 0
    passed, failed = 0, bad
    for name, kinds in sorted(kernels.items()):
        most = next(m for pattern, m in limits() if fnmatch.fnmatch(name, pattern))
        over = ["%s take %.2f times the least, limit %.2f" % (what, taken / least, limit)
                for what, (taken, least), limit in zip(KINDS, kinds, most) if least > JUDGED and taken > limit * least]
        for o in over:
            print("%s: %s" % (name, o))
        passed, failed = passed + (not over), failed + bool(over)
    for pattern, _ in limits():
        if not any(fnmatch.fnmatch(n, pattern) for n in kernels):
            print("counts.txt: nothing is " + pattern)
            failed += 1
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
