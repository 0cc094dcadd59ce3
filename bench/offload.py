#!/usr/bin/env python3
"""A mixture of experts in less memory than its file takes: ratoon beside llama.cpp's mmap, under the same limit.

usage: bench/offload.py --model FILE --limit 6G [--llama-bench FILE] [-n 128] [--repeats 3] [--csv FILE]

Needs root: a control group (version 1 or 2) holds each run to --limit, page cache included. Each engine decodes -n
tokens with an empty page cache at its start. What ratoon's rows say:
  empty, one slot     memory fills with what comes; a ring of one expert per layer
  empty, ring         the same with the usual ring; what was used is kept in a profile
  uniform             the same number of experts of every layer at the start, whichever; a ring of one
  calibrated          those that the second run used most; a ring of one
  calibrated, ring    the same with the usual ring
tokens/s: of the passes of decoding, without drawing tokens, as llama-bench counts. wait %: of the time, waiting for
experts with nothing else to do. disk %: what the experts that were read took per second of these passes, as a share of
what the disk gave to READS reads at once, on average just before and just after."""

import argparse
import csv
import json
import mmap
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

SIZE, READS, SECONDS = 640 << 10, 16, 3
RATOON = os.environ.get("RATOON", "./ratoon")


def bytes_of(text):
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    return int(float(text[:-1]) * (1 << units[text[-1].upper()]))


class Group:
    """A control group of its own, removed at the end."""

    def __init__(self, limit):
        v1 = os.path.isdir("/sys/fs/cgroup/memory")
        self.path = f"/sys/fs/cgroup/{'memory/' if v1 else ''}ratoon-offload-{os.getpid()}"
        os.mkdir(self.path)
        self.write("memory.limit_in_bytes" if v1 else "memory.max", limit)
        self.swap = "memory.memsw.limit_in_bytes" if v1 else "memory.swap.max"
        try:
            self.write(self.swap, limit if v1 else 0)
        except OSError:
            pass  # no swap accounting here

    def write(self, name, value):
        with open(os.path.join(self.path, name), "w", encoding="ascii") as f:
            f.write(str(value))

    def run(self, command):
        enter = lambda: self.write("cgroup.procs", os.getpid())  # noqa: E731
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
        return done

    def remove(self):
        for _ in range(50):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.1)


def forget(path):
    """Drops the file's pages from the cache."""
    with open(path, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_rate(path):
    """Bytes per second of READS reads at once of SIZE bytes each, past the page cache."""
    total, end, pages = [0], time.monotonic() + SECONDS, os.path.getsize(path) // 4096

    def reader():
        fd, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, SIZE)
        while time.monotonic() < end:
            n = os.preadv(fd, [buffer], random.randrange(pages - SIZE // 4096) * 4096)
            total[0] += n
        os.close(fd)

    began, threads = time.monotonic(), [threading.Thread(target=reader) for _ in range(READS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return total[0] / (time.monotonic() - began)


def ratoon(group, args, options, seed):
    forget(args.model)
    before = disk_rate(args.model)
    tokens = ",".join(str(1000 + 37 * i) for i in range(16))
    out = group.run([RATOON, "run", "-m", args.model, "-d", "none", "--ctx", "1024", "--tokens", tokens, "-n",
                     str(args.n), "--temp", "1", "--seed", str(seed), "--ignore-eos", "--json", "-q"] + options)
    rate = (before + disk_rate(args.model)) / 2
    stats = json.loads(out.stdout)["stats"]
    seconds, n = stats["pass_s"] + stats["prefill_s"], stats["generated"]
    return [f"{n / stats['pass_s']:.2f}", f"{stats['experts_missed'] / n:.1f}",
            f"{stats['experts_missed_bytes'] / n / 1e6:.1f}", f"{100 * stats['experts_wait_s'] / seconds:.0f}",
            f"{100 * stats['experts_missed_bytes'] / seconds / rate:.0f}", f"{rate / 1e9:.2f}"]


def uniform(profile, path):
    """A profile of the same shape in which every expert was used once."""
    with open(profile, encoding="utf-8") as f, open(path, "w", encoding="utf-8") as to:
        to.writelines(re.sub(r"\d+", "1", line) for line in f if not line.startswith("#"))


def llama(group, args):
    forget(args.model)
    out = group.run([args.llama_bench, "-m", args.model, "-p", "0", "-n", str(args.llama_n), "-r", "1", "-t",
                     str(os.cpu_count()), "--repack", "0", "-o", "json"])
    return json.loads(out.stdout)[0]["avg_ts"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--limit", required=True)
    parser.add_argument("--llama-bench")
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("--llama-n", type=int, default=32, help="tokens of llama-bench, which takes long (default 32)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ram", default="auto", help="ratoon's --expert-ram (default: auto, which follows the limit)")
    parser.add_argument("--csv")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("offload.py: control groups need root")
    group, rows = Group(bytes_of(args.limit)), []

    def add(name, values):
        rows.append([name] + values)
        print(*rows[-1], sep="\t", flush=True)

    try:
        for i in range(args.repeats):
            if args.llama_bench:
                add("llama.cpp", [f"{llama(group, args):.2f}"])
            with tempfile.TemporaryDirectory() as folder:
                profile, flat = os.path.join(folder, "profile.csv"), os.path.join(folder, "uniform.csv")
                for name, options in (("empty, one slot", ["--expert-slots", "1"]),
                                      ("empty, ring", ["--spark", "--expert-profile", profile]),
                                      ("uniform", ["--expert-slots", "1", "--expert-profile", flat]),
                                      ("calibrated", ["--expert-slots", "1", "--expert-profile", profile]),
                                      ("calibrated, ring", ["--expert-profile", profile])):
                    if name == "uniform":
                        uniform(profile, flat)
                    add(name, ratoon(group, args, ["--expert-ram", args.ram] + options, i))
    finally:
        group.remove()
    if args.csv:
        with open(args.csv, "w", newline="", encoding="utf-8") as f:
            csv.writer(f).writerows([["run", "tokens/s", "misses/token", "MB/token", "wait %", "disk %", "disk GB/s"]] +
                                    rows)


if __name__ == "__main__":
    main()
