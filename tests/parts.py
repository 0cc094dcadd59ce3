#!/usr/bin/env python3
"""Runs the parts of the tests side by side: as many at once as there are cores, each `make part-NAME` with its output
in a file.

    python3 tests/parts.py FOLDER NAME...

FOLDER takes the files, NAME.log, and what is said at the end, summary. The output of a part that fails is shown. At the
end there is a line for each part and then 'N passed, N failed', alone on its line; the exit status is 1 if any failed.
Ctrl-C ends all of them. A part that takes longer than LIMIT seconds (default 3600) has failed and is ended: tests in
Python say then where they hang."""
import argparse
import os
import pathlib
import signal
import subprocess
import sys
import time

LIMIT = float(os.environ.get("LIMIT", "3600"))


class Part:
    def __init__(self, folder, name):
        self.name, self.log, self.start = name, folder / (name + ".log"), time.monotonic()
        print("%s: started, output in %s" % (name, self.log), flush=True)
        # A process group of its own, so that ending it ends all its children; make's job server is inherited.
        with open(self.log, "wb") as f:
            self.run = subprocess.Popen(["make", "-k", "--no-print-directory", "part-" + name], stdout=f, stderr=f,
                                        stdin=subprocess.DEVNULL, start_new_session=True, close_fds=False)

    def ended(self):
        """Returns True once it has ended; shows its output if it failed."""
        late = time.monotonic() - self.start > LIMIT
        if self.run.poll() is None:
            if not late:
                return False
            end_all([self])
        self.seconds = time.monotonic() - self.start
        self.good = self.run.returncode == 0 and not late
        if not self.good:
            how = "took longer than %g s" % LIMIT if late else "failed"
            print("---- %s %s, its output:" % (self.name, how), flush=True)
            sys.stdout.buffer.write(self.log.read_bytes())
            print("---- end of %s" % self.name, flush=True)
        return True

    def signal(self, which):
        try:
            os.killpg(self.run.pid, which)
        except ProcessLookupError:
            pass

    def line(self):
        return "%-12s %-6s %6.0f s" % (self.name, "passed" if self.good else "failed", self.seconds)


def end_all(running):
    """Interrupts them, and kills them after ten seconds."""
    for part in running:
        part.signal(signal.SIGINT)
    until = time.monotonic() + 10
    while time.monotonic() < until and any(p.run.poll() is None for p in running):
        time.sleep(0.1)
    for part in running:
        part.signal(signal.SIGKILL)
        part.run.wait()


def run(folder, names, at_once):
    waiting, running, done = list(names), [], []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(Part(folder, waiting.pop(0)))
            time.sleep(0.1)
            if ended:
                raise KeyboardInterrupt
            done += [p for p in running if p.ended()]
            running = [p for p in running if p not in done]
    finally:
        end_all(running)
    return sorted(done, key=lambda p: names.index(p.name))


ended = []                                             # signals that ask for the end


def interrupted(which, _):
    """Noted only: an exception could come between the start of a part and the note that it runs."""
    ended.append(which)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument("names", metavar="NAME", nargs="*")
    args = parser.parse_args()
    folder, names = args.folder, args.names
    folder.mkdir(parents=True, exist_ok=True)
    for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(which, interrupted)
    try:
        done = run(folder, names, len(os.sched_getaffinity(0)))
    except KeyboardInterrupt:
        print("ended by a signal: no part counts", flush=True)
        return 130
    failed = sum(not p.good for p in done)
    summary = "\n".join([p.line() for p in done] + ["%d passed, %d failed" % (len(done) - failed, failed)]) + "\n"
    (folder / "summary").write_text(summary)
    print(summary, end="", flush=True)
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())
