#!/usr/bin/env python3
"""Runs test_ops on the emulated GPU in several orders of threads and blocks: results that depend on them are races.

    python3 tests/gpu/orders.py BUILD [--orders 0,1,4] [--share N | --all] [CASE...]

Order: threads 0 ascending, 1 descending, 2 scattered, 3 anew in every block; + 4: blocks descending. Of the long cases
each order runs one turn in N, so that it has every shape of a case, and nearly every variant, but not every pair of
both (part_runs_pair); with 8 all orders together run every turn once. GPU_SEED=N deals them out differently. --all:
every order runs all. The card has one multiprocessor in even orders and 132 in odd ones, since which kernel a launch
takes depends on whether there are blocks for all of them. The output of a run that fails is shown; the last line is 'N
passed, N failed'."""
import argparse
import concurrent.futures
import os
import subprocess
import sys
import time


def run(args, order):
    seed = int(os.environ.get("GPU_SEED", "0"))
    env = dict(os.environ, RATOON_CUDA_DRIVER=os.path.abspath(os.path.join(args.build, "libfake_cuda.so")),
               RATOON_EMU_ORDER=str(order), RATOON_EMU_PROCESSORS="132" if order % 2 else "1")
    if not args.all:
        env["RATOON_TEST_PART"] = "%d/%d" % ((order + seed) % args.share, args.share)
    start, good, text = time.monotonic(), True, ""
    for case in args.case or [None]:
        command = [os.path.join(args.build, "tests", "test_ops"), "--backend", "cuda"] + [case] * bool(case)
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        good, text = good and done.returncode == 0, text + done.stdout.decode(errors="replace")
    return order, good, text, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--orders", default="0,1,2,3,4,5,6,7")
    parser.add_argument("--share", type=int, default=8)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("case", nargs="*")
    args = parser.parse_intermixed_args()
    passed = failed = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        waits = [pool.submit(run, args, int(o)) for o in args.orders.split(",")]
        for wait in concurrent.futures.as_completed(waits):
            order, good, text, seconds = wait.result()
            if not good:
                print(text)
            result = "passed" if good else "failed"
            print("test_ops on the emulated GPU, order %d: %s, %.0f s" % (order, result, seconds), flush=True)
            passed, failed = passed + good, failed + (not good)
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
