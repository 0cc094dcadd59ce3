#!/usr/bin/env python3
"""tests/parts.py: what a failing part shows, the summary at the end, and that a signal leaves nothing running.

    python3 tests/cli/test_parts.py [-v] [Parts.test_name ...]

The last line is 'N passed, N failed'."""
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report
from scratch import ROOT, path, write

MAKEFILE = """
part-good:
\t@echo all is well
part-bad:
\t@echo the reason
\t@false
part-after: part-bad part-rest
part-rest:
\t@touch rest
part-sleep:
\t@sleep 1000 & echo $$! > pid; wait
part-deaf:
\t@trap '' INT; touch deaf; sleep 1000
"""


def start(*names, **more):
    write("Makefile", MAKEFILE)
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    env.update(more)
    return subprocess.Popen([sys.executable, os.path.join(ROOT, "tests", "parts.py"), path("logs"), *names],
                            cwd=path("."), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def run(*names, **more):
    p = start(*names, **more)
    out = p.communicate(timeout=120)[0].decode()
    return p.returncode, out


def until(test):
    """Whether this comes true within a minute."""
    end = time.monotonic() + 60
    while not test() and time.monotonic() < end:
        time.sleep(0.05)
    return test()


def appears(name):
    return until(lambda: os.path.exists(path(name)) and os.path.getsize(path(name)) >= (name == "pid"))


def lives(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Parts(unittest.TestCase):
    def test_all_pass(self):
        status, out = run("good")
        self.assertEqual(status, 0, out)
        self.assertNotIn("all is well", out)
        with open(path("logs/good.log")) as f:
            self.assertEqual(f.read(), "all is well\n")
        self.assertRegex(out, r"\ngood +passed +\d+ s\n1 passed, 0 failed\n$")

    def test_one_fails(self):
        status, out = run("good", "bad", "good")
        self.assertEqual(status, 1)
        self.assertIn("the reason\n", out)
        self.assertRegex(out, r"\ngood +passed +\d+ s\ngood +passed +\d+ s\nbad +failed +\d+ s\n2 passed, 1 failed\n$")
        with open(path("logs/summary")) as f:
            self.assertTrue(out.endswith(f.read()))

    def test_the_rest_of_a_part_still_runs(self):
        self.assertEqual(run("after")[0], 1)
        self.assertTrue(os.path.exists(path("rest")))

    def test_no_parts(self):
        self.assertEqual(run()[0], 1)

    def test_unknown(self):
        status, out = run("missing")
        self.assertEqual(status, 1)
        self.assertIn("part-missing", out)

    def test_signals_end_all(self):
        for which in (signal.SIGINT, signal.SIGTERM):
            p = start("sleep", "good", "good", "good")
            self.assertTrue(appears("pid"))
            with open(path("pid")) as f:
                pid = int(f.read())
            p.send_signal(which)
            p.communicate(timeout=120)
            self.assertEqual(p.returncode, 130)
            self.assertTrue(until(lambda: not lives(pid)), "what a part has started is gone")
            os.remove(path("pid"))

    def test_a_part_that_hangs(self):
        status, out = run("sleep", "good", LIMIT="2")
        with open(path("pid")) as f:
            pid = int(f.read())
        os.remove(path("pid"))
        self.assertEqual(status, 1)
        self.assertIn("---- sleep took longer than 2 s", out)
        self.assertRegex(out, r"1 passed, 1 failed\n$")
        self.assertTrue(until(lambda: not lives(pid)), "what a part has started is gone")

    def test_deaf_part_ends(self):
        p = start("deaf")
        self.assertTrue(appears("deaf"))
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=120)
        self.assertEqual(p.returncode, 130)


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
