"""What runs learn about the times of passes is kept between them, and no token depends on it."""
import os
import re
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report
from scratch import DEMO, RATOON, path, write

os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
LINE = re.compile(r"[0-9a-f]{16} \d+ 1( \d+)+\n")


class Costs(unittest.TestCase):
    def setUp(self):
        self.cache = path("cache-" + self.id().rsplit(".", 1)[1])
        self.file = os.path.join(self.cache, "ratoon", "costs")

    def ratoon(self, command, *args, stdin=None, code=0):
        env = {**os.environ, "XDG_CACHE_HOME": self.cache}
        p = subprocess.run([RATOON, command, *args], env=env, input=stdin, capture_output=True, text=True, timeout=120)
        self.assertEqual(p.returncode, code, p.stderr)
        return p

    def run_demo(self, *args):
        return self.ratoon("run", "-m", DEMO, "-p", "def add(a, b):\n", "-n", "60", *args)

    def learns(self, *args, run=None):
        """Runs until what was learned is written: if the machine is busy with something else, times may be so odd that
        they are not believed."""
        before = self.text()
        for _ in range(30):
            p = run() if run else self.run_demo(*args)
            if self.text() != before:
                return p
        self.fail("nothing was written")

    def text(self):
        if not os.path.isfile(self.file):
            return None
        with open(self.file, errors="replace") as f:
            return f.read()

    def lines(self):
        with open(self.file) as f:
            first, *lines = f
        self.assertEqual(first, "ratoon costs 1\n")
        for line in lines:
            self.assertRegex(line, LINE)
        return lines

    def spoil(self, text):
        with open(self.file, "w") as f:
            f.write(text)

    def test_second_start(self):
        truth = self.run_demo("-d", "none").stdout
        self.assertFalse(os.path.exists(self.file))                  # without a drafter there is nothing to keep
        two = ["--threads", "2"]
        self.assertEqual(self.learns(*two).stdout, truth)
        first = self.lines()
        self.assertEqual(len(first), 1)
        self.assertEqual(os.stat(self.file).st_mode & 0o777, 0o600)
        self.assertEqual(self.learns(*two).stdout, truth)
        second = self.lines()
        self.assertEqual(len(second), 1)
        self.assertEqual(second[0][:16], first[0][:16])
        self.learns("--threads", "1")                                # other times: a line of its own
        self.assertEqual(len(self.lines()), 2)

    def test_absurd_costs(self):
        truth = self.learns().stdout
        key = self.lines()[0][:16]
        for costs in ("1 4000 9 20000 9 20000 9 1 1000000 9 64 1000000 9",
                      "1 1000000 9 800000000 9 800000000 9 1 1000000 9 2 3900000 9"):
            self.spoil(f"ratoon costs 1\n{key} 1 {costs}\n")
            p = self.learns()
            self.assertEqual(p.stdout, truth)
            self.assertNotIn("left out", p.stderr)
            self.assertNotIn(costs, self.lines()[0])
        self.spoil(f"ratoon costs 1\n{key} 1 1 2 3\n")
        p = self.run_demo()
        self.assertEqual(p.stdout, truth)
        self.assertIn("left out", p.stderr)
        self.assertEqual(len(self.lines()), 1)

    def test_damaged_file(self):
        truth = self.learns().stdout
        good = self.lines()[0]
        for text in ("", "ratoon costs 2\n" + good, "\0" * 500, "x" * 100000, good, "ratoon costs 1\n" + "y" * 9000 + "\n"):
            self.spoil(text)
            self.assertEqual(self.learns().stdout, truth)
            self.assertEqual(len(self.lines()), 1)
        self.spoil("ratoon costs 1\nhello\n" + "f" * 16 + " 1 1 7\n" + good[:30] + "\n")
        self.learns()
        self.assertEqual(len(self.lines()), 2)                       # lines of other models are left alone
        os.remove(self.file)
        os.mkdir(self.file)                                          # a folder in its place is no error
        self.assertEqual(self.run_demo().stdout, truth)

    def test_pipe_in_its_place(self):
        truth = self.run_demo("-d", "none").stdout
        os.makedirs(os.path.dirname(self.file))
        os.mkfifo(self.file)
        self.assertEqual(self.run_demo().stdout, truth)              # nobody waits for a writer

    def test_what_a_kill_left(self):
        """An old file that was never finished goes with the next save, a young one may be in use; others stay."""
        self.learns()
        names = ["costs.1-0.tmp", "costs.2-0.tmp", "other.tmp"]
        for name in names:
            write(os.path.join(self.cache, "ratoon", name), "x")
        for name in names[::2]:
            os.utime(os.path.join(self.cache, "ratoon", name), (0, 0))
        self.learns()
        self.assertEqual(sorted(os.listdir(os.path.join(self.cache, "ratoon"))), ["costs", "costs.2-0.tmp", "other.tmp"])

    def test_no_home(self):
        """A home that does not exist is not made."""
        home = path("no-home")
        env = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
        for _ in range(3):
            subprocess.run([RATOON, "run", "-q", "-m", DEMO, "-p", "def add(a, b):\n", "-n", "60"], check=True,
                           env={**env, "HOME": home}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
        self.assertFalse(os.path.exists(home))

    def test_bounded(self):
        self.learns()
        old = "".join("%016x %d 1 7 7\n" % (i, 1000 + i) for i in range(80))
        self.spoil("ratoon costs 1\n" + old)
        self.learns()
        lines = self.lines()
        self.assertEqual(len(lines), 64)
        self.assertFalse(any(line.startswith("0" * 16) for line in lines))      # the oldest made room
        self.assertTrue(any(int(line.split()[1]) > time.time() - 1000 for line in lines))

    def test_who_writes(self):
        write("costs-prompts.jsonl", '{"prompt": "def f(x):\\n"}\n')
        self.ratoon("bench", "-m", DEMO, "--prompts", path("costs-prompts.jsonl"), "-n", "20", "--repeats", "1")
        self.ratoon("verify", "-m", DEMO, "--prompts", path("costs-prompts.jsonl"), "-n", "20")
        self.assertFalse(os.path.exists(self.file))
        self.learns(run=lambda: self.ratoon("chat", "-m", DEMO, "-n", "40", stdin="count to ten\n"))
        self.assertEqual(len(self.lines()), 1)

    def test_context_beyond_the_models(self):
        long, fits = (self.run_demo("-n", "1", "--ctx", str(n)) for n in (5000, 4096))
        self.assertIn("--ctx 5000 is beyond the 4096 tokens that the model was trained for", long.stderr)
        self.assertNotIn("beyond", fits.stderr)


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
