#!/usr/bin/env python3
"""templates.py - our chat templates engine against Jinja2 in the settings of transformers' apply_chat_template.

    templates.py write                       tests/templates/expect: what Jinja2 renders for our own templates and conversations
    templates.py check [FOLDER...]           the same compared with `ratoon render`, and every *.jinja of the folders with every conversation
    templates.py fuzz COUNT [SEED]           random small templates, compared likewise
    templates.py line                        reads templates as lines of JSON strings, for a look at single differences

Needs jinja2 and transformers. The clock is fixed on both sides; a render that fails on one side has to fail on the other."""
import datetime
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import jinja2
import transformers
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).resolve().parent
TEMPLATES = HERE.parent / "templates"
RATOON = os.environ.get("RATOON", "./ratoon")
NOW = 1795262400                                   # 21 November 2026, 12:00 UTC
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def variables(case):
    names = {k: case[k] for k in ("messages", "tools", "documents") if k in case}
    return {**case.get("special_tokens", SPECIAL), **names, "add_generation_prompt": case.get("add_generation_prompt", False), **case.get("kwargs", {})}


def clock(fmt):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None).strftime(fmt)


def by_jinja(source, case):
    """The text, or None and why not."""
    try:
        t = chat_template_utils._compile_jinja_template(source)
        t.globals["strftime_now"] = clock
        return t.render(**json.loads(json.dumps(variables(case)))), ""
    except Exception as e:
        return None, f"{type(e).__name__}: {e}"


def by_ratoon(source_path, case, folder):
    path = folder / "case.json"
    path.write_text(json.dumps({**case, "special_tokens": case.get("special_tokens", SPECIAL)}, ensure_ascii=False), encoding="utf-8")
    r = subprocess.run([RATOON, "render", "--template", source_path, "--input", path, "--template-now", str(NOW)], capture_output=True,
                       env={**os.environ, "TZ": "UTC"}, timeout=60)
    if r.returncode not in (0, 1):
        return None, f"exit code {r.returncode}: {r.stderr.decode(errors='replace')}", True
    return (r.stdout.decode(), "", False) if r.returncode == 0 else (None, r.stderr.decode(), False)


def conversations():
    return json.loads((TEMPLATES / "conversations.json").read_text(encoding="utf-8"))


class Count:
    def __init__(self):
        self.same = self.both_fail = self.differ = 0

    def take(self, name, source, source_path, case, folder, show=True):
        want, why_not = by_jinja(source, case)
        got, complaint, crashed = by_ratoon(source_path, case, folder)
        if crashed or want != got:
            self.differ += 1
            if show:
                print(f"DIFFERS {name}")
                if want is None or got is None:
                    print(f"  jinja2: {why_not or 'renders ' + repr(want[:200])}\n  ratoon: {complaint.strip() or 'renders ' + repr(got[:200])}")
                else:
                    at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
                    print(f"  at {at} of {len(want)} and {len(got)}\n  jinja2: {want[max(0, at - 40):at + 80]!r}\n  ratoon: {got[max(0, at - 40):at + 80]!r}")
        elif want is None:
            self.both_fail += 1
        else:
            self.same += 1

    def done(self):
        print(f"{self.same} render the same, {self.both_fail} fail on both sides, {self.differ} differ")
        return 1 if self.differ else 0


def read(path):
    return path.read_bytes().decode("utf-8")


def check(folders):
    count = Count()
    with tempfile.TemporaryDirectory() as d:
        for folder in [TEMPLATES, *map(pathlib.Path, folders)]:
            for path in sorted(folder.glob("*.jinja")):
                for case in conversations():
                    count.take(f"{path.name} x {case['name']}", read(path), path, case, pathlib.Path(d))
    return count.done()


def write():
    out = TEMPLATES / "expect"
    out.mkdir(exist_ok=True)
    for path in sorted(TEMPLATES.glob("*.jinja")):
        lines = [{"made_by": f"jinja2 {jinja2.__version__}, transformers {transformers.__version__}: tests/oracle/templates.py write", "special_tokens": SPECIAL, "now": NOW}]
        for case in conversations():
            text, why_not = by_jinja(read(path), case)
            lines.append({"name": case["name"], "text": text, **({"fails": why_not} if text is None else {})})
        (out / (path.stem + ".json")).write_text("[\n" + ",\n".join(json.dumps(x, ensure_ascii=False) for x in lines) + "\n]\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    what, rest = (sys.argv[1:2] or ["check"])[0], sys.argv[2:]
    if what == "write":
        sys.exit(write())
    if what == "check":
        sys.exit(check(rest))
    sys.exit(__doc__)
