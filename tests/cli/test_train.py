#!/usr/bin/env python3
"""The training scripts that need the standard library only.

    python3 tests/cli/test_train.py [-v] [TestName.test_name ...]

The last line is 'N passed, N failed'."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import report
from scratch import ROOT


class Corpus(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.work)

    def script(self, name, *args):
        subprocess.run([sys.executable, os.path.join(ROOT, "train", name), "--work", self.work, *args], check=True,
                       stdout=subprocess.DEVNULL)

    def texts(self, cls, split):
        with open(os.path.join(self.work, "corpus", "%s.%s.jsonl" % (cls, split)), encoding="utf-8") as f:
            return [json.loads(line)["text"] for line in f]

    def test_held_out(self):
        """No question of a held-out text of the generators stands in the training text; prompts are made of it."""
        self.script("corpus.py", "--stdlib", os.path.join(ROOT, "train"), "--docs", "/no-such", "--man", "/no-such",
                    "--arith", "10000", "--templ", "200")
        for cls, least in ("arith", 500), ("templ", 250):
            train, held = "\n".join(self.texts(cls, "train")), self.texts(cls, "held")
            self.assertGreater(len(held), least)
            for text in held:
                for part in re.findall(r"<\|im_start\|>user\n.*?<\|im_end\|>", text, re.S) or [text]:
                    self.assertNotIn(part, train)
        self.script("prompts.py", "--count", "2")
        self.assertEqual(len(os.listdir(os.path.join(self.work, "export", "prompts"))), 4)


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
