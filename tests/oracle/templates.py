#!/usr/bin/env python3
"""templates.py - our chat templates engine against Jinja2 in the settings of transformers' apply_chat_template.

    templates.py write                       tests/data/templates/expect and units.json: what Jinja2 renders for our own templates
    templates.py check [FOLDER...]           the same compared with ours, and every *.jinja of the folders with every conversation
    templates.py fuzz COUNT [SEED]           random small templates, compared likewise

Needs jinja2 and transformers. The clock is fixed on both sides; a render that fails on one side has to fail on the other."""
import datetime
import json
import os
import pathlib
import random
import subprocess
import sys
import warnings

import jinja2
import transformers
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).resolve().parent
TEMPLATES = HERE.parent / "data" / "templates"
PEER = os.environ.get("PEER_TEMPLATE", "build/tests/peer_template")
NOW = 1795262400                                   # 21 November 2026, 12:00 UTC
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def variables(case):
    names = {k: case[k] for k in ("messages", "tools", "documents") if k in case}
    return {**case.get("special_tokens", SPECIAL), **names,
            "add_generation_prompt": case.get("add_generation_prompt", False), **case.get("kwargs", {})}


def clock(fmt):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None).strftime(fmt)


def by_jinja(source, case):
    """Returns the text, or None and the reason."""
    try:
        t = chat_template_utils._compile_jinja_template(source)
        t.globals["strftime_now"] = clock
        return t.render(**json.loads(json.dumps(variables(case)))), ""
    except Exception as e:
        return None, f"{type(e).__name__}: {e}"


class Ratoon:
    """Runs tests/oracle/peer_template.c, one process for all renderings."""

    def __init__(self):
        self.p = subprocess.Popen([PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, source, case):
        line = json.dumps({"template": source, "now": NOW, "case": {"special_tokens": SPECIAL, **case}})
        self.p.stdin.write(line.encode() + b"\n")
        self.p.stdin.flush()
        answer = self.p.stdout.readline()
        if not answer:
            self.__init__()
            return None, "it crashed", True
        answer = json.loads(answer)
        return answer.get("text"), answer.get("error", ""), False


def conversations():
    return json.loads((TEMPLATES / "conversations.json").read_text(encoding="utf-8"))


class Count:
    def __init__(self):
        self.ours = Ratoon()
        self.same = self.both_fail = self.more = self.differ = 0

    def take(self, name, source, case):
        want, why_not = by_jinja(source, case)
        got, complaint, crashed = self.ours.render(source, case)
        if not crashed and want is None and got is not None and any(x in why_not for x in ON_PURPOSE):
            self.more += 1
        elif not crashed and got is None and any(x in complaint for x in STRICTER):
            self.more += 1
        elif crashed or want != got:
            self.differ += 1
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
        print(f"{self.same} render the same, {self.both_fail} fail on both sides, {self.more} differ on purpose, {self.differ} differ")
        return 1 if self.differ else 0


def read(path):
    return path.read_bytes().decode("utf-8")


def check(folders):
    count = Count()
    for folder in [TEMPLATES, *map(pathlib.Path, folders)]:
        for path in sorted(folder.glob("*.jinja")):
            for case in conversations():
                count.take(f"{path.name} x {case['name']}", read(path), case)
    units = json.loads((TEMPLATES / "units.json").read_text(encoding="utf-8"))
    for u in units[1:]:
        count.take(repr(u["template"]), u["template"], units[0])
    return count.done()


def write():
    out = TEMPLATES / "expect"
    out.mkdir(exist_ok=True)
    for path in sorted(TEMPLATES.glob("*.jinja")):
        lines = [{"made_by": f"jinja2 {jinja2.__version__}, transformers {transformers.__version__}: tests/oracle/templates.py write", "special_tokens": SPECIAL, "now": NOW}]
        for case in conversations():
            text, why_not = by_jinja(read(path), case)
            lines.append({"name": case["name"], "text": text, **({"fails": why_not} if text is None else {})})
        (out / (path.stem + ".json")).write_text("[\n" + ",\n".join(json.dumps(x, ensure_ascii=False) for x in lines)
                                                 + "\n]\n", encoding="utf-8")
    units = json.loads((TEMPLATES / "units.json").read_text(encoding="utf-8"))
    for u in units[1:]:
        text, why_not = by_jinja(u["template"], units[0])
        u.pop("text", None)
        u.pop("fails", None)
        u.update({"text": text} if text is not None else {"fails": why_not})
    units[0]["made_by"] = f"jinja2 {jinja2.__version__}, transformers {transformers.__version__}: tests/oracle/templates.py write"
    (TEMPLATES / "units.json").write_text("[\n" + ",\n".join(json.dumps(u, ensure_ascii=False) for u in units)
                                          + "\n]\n", encoding="utf-8")
    return 0


# ---- random templates ----

class Maker:
    """Random templates of the subset: mostly meaningful, so that most of them render."""

    def __init__(self, rng):
        self.r = rng
        self.loops = 0

    def pick(self, *what):
        return self.r.choice(what)

    def text(self):
        return self.pick("a", " b ", "\n", "  \n  ", "x\n\n", "<|im_start|>", "\t", "é", "", " ", "\n    ", "'q'", "%",
                         "}", "{ ")

    def string(self):
        return self.pick("'a'", '"b c"', "'<x>'", "'é\\n'", "'  pad '", "''", "'a,b,,c'", '"it\'s"', "'\\\\q'",
                         "'x' 'y'", "'\\u00e9'", "'ABC def'", "'%s-%s'", "'12'", "' 1.5 '",
                         "'tail\\n'", "'日本'", "'q\"\\''")

    def number(self):
        return self.pick("0", "1", "2", "-1", "3", "10", "1.5", "0.1", "-2.5", "1e3", "7", "100000000000000000", "1e16",
                         "1e-7", "1_000")

    def name(self):
        return self.pick("s", "n", "f", "l", "d", "t", "e", "u", "messages", "nothing", "flag", "deep", "ns.a", "ns.b",
                         "v")

    def atom(self, d):
        k = self.r.randrange(14)
        if k < 4:
            return self.name()
        if k < 6:
            return self.string()
        if k < 8:
            return self.number()
        if k == 8:
            return self.pick("true", "false", "none", "True", "None")
        if k == 9 and d:
            return "[" + ", ".join(self.expr(d - 1) for _ in range(self.r.randrange(4))) + "]"
        if k == 10 and d:
            return "{" + ", ".join(f"{self.string()}: {self.expr(d - 1)}" for _ in range(self.r.randrange(3))) + "}"
        if k == 11 and d:
            return "(" + self.expr(d - 1) + (", " + self.expr(d - 1) if self.r.random() < .3 else "") + ")"
        if k == 12 and self.loops:
            return "loop." + self.pick("index", "index0", "first", "last", "length", "revindex", "revindex0", "depth",
                                       "previtem", "nextitem", "cycle('p', 'q')", "changed(s)")
        return self.name()

    def suffix(self, d):
        e = lambda: self.expr(0)
        k = self.r.randrange(12)
        if k < 3:
            return "|" + self.pick("upper", "lower", "trim", "length", "string", "list", "first", "last", "join",
                                   "join(', ')", "tojson", "default('dd')", "default('dd', true)", "capitalize",
                                   "title", "int", "float", "abs", "reverse|list", "sort", "unique|list", "items|list",
                                   "dictsort", "replace('a', 'zz')", "tojson(indent=2)", "round", "round(1)",
                                   "sum", "min", "max", "safe", "e", "indent", "indent(2, true)", "wordcount",
                                   "map('upper')|list", "select|list", "reject('none')|list", "batch(2)|list",
                                   "slice(2)|list", "map(attribute='role')|list",
                                   "selectattr('role', 'equalto', 'user')|list", "truncate(5)", "format(1, 2)",
                                   "urlencode", "count",
                                   "tojson(ensure_ascii=true)", "tojson(sort_keys=true)",
                                   "tojson(separators=(',', ':'))", "sort(reverse=true)", "trim('a ')",
                                   "rejectattr('content')|list",
                                   "string|length", "int(7)", "float(2.5)", "select('string')|list",
                                   "select('in', 'abc')|list", "upper")
        if k < 5:
            return self.pick(".strip()", ".split()", ".split(',')", ".upper()", ".lstrip('a')", ".rstrip()",
                             ".startswith('a')", ".endswith('c')", ".replace('b', 'BB')", ".title()",
                             ".splitlines()", ".find('b')", ".count('a')", ".items()|list", ".keys()|list",
                             ".values()|list", ".get('k')", ".get('zz', 4)", ".capitalize()", ".isdigit()",
                             ".split(',', 1)", ".rsplit(',', 1)", ".swapcase()", ".zfill(6)", ".join(['x', 'y'])",
                             ".removeprefix('a')", ".lower()", ".index('a')", ".partition(',')", ".rpartition('b')", ".copy()", ".format(1, x=2)",
                             ".isspace()", ".isalpha()", ".islower()", ".split('')", ".split(none, 1)",
                             ".rsplit(none, 1)")
        if k < 7:
            return self.pick("[0]", "[-1]", "[1:]", "[:1]", "[::-1]", "[1:3]", "['k']", "[::2]", "[5]", "[-2:]",
                             "[:-1]", "[3:1:-1]", "['role']", "[n]", f"[{e()}]")
        if k < 8:
            return self.pick(".k", ".role", ".content", ".zz", ".k.m", ".0")
        if k < 10:
            return " is " + self.pick("", "", "not ") + self.pick("defined", "undefined", "none", "string", "number",
                                                                  "mapping", "iterable", "sequence", "true", "false",
                                                                  "boolean", "integer", "float",
                                                                "odd", "even", "divisibleby 3", "eq 1", "in ['a', 1]",
                                                                "lower", "upper", "sameas none", "gt 1", "callable",
                                                                "divisibleby(2)")
        return ""

    def suffixed(self, atom, d):
        """Left out: a slice of a constant that has none (Jinja2 folds it to undefined, where it fails otherwise), and a
        method right after the name of a filter or test (part of that name, which Jinja2 looks up late)."""
        named = False
        for _ in range(self.r.randrange(3)):
            s = self.suffix(d)
            if s.startswith("[") and (atom[-1].isdigit() or atom[-1] in ")}"
                                      or atom in ("true", "false", "none", "True", "None")):
                continue
            if named and s[:1] in (".", "["):
                continue
            named = named or s[:1] in ("|", " ")
            atom += s
        return atom

    def expr(self, d):
        if d <= 0:
            return self.suffixed(self.atom(0), 0) if self.r.random() < .3 else self.atom(0)
        k = self.r.randrange(20)
        if k < 7:
            return self.suffixed(self.atom(d), d)
        if k < 12:
            return f"{self.expr(d - 1)} {self.pick('+', '+', '-', '*', '/', '//', '%', '~', '~', '**')} {self.expr(d - 1)}"
        if k < 15:
            return f"{self.expr(d - 1)} {self.pick('==', '!=', '<', '>', '<=', '>=', 'in', 'not in')} {self.expr(d - 1)}"
        if k < 17:
            return f"{self.expr(d - 1)} {self.pick('and', 'or')} {self.expr(d - 1)}"
        if k == 17:
            return f"not {self.expr(d - 1)}"
        if k == 18:
            return f"{self.expr(d - 1)} if {self.expr(d - 1)}" + (f" else {self.expr(d - 1)}" if self.r.random() < .7
                                                                  else "")
        return "-" + self.suffixed(self.atom(d), d) if self.r.random() < .5 else f"m({self.expr(d - 1)})"

    def tag(self, inner):
        return "{%" + self.pick("", "-", "", "+") + " " + inner + " " + self.pick("", "-", "", "+") + "%}"

    def block(self, d):
        k = self.r.randrange(16)
        if k < 3 or d <= 0:
            return self.text()
        if k < 8:
            return "{{" + self.pick("", "-", "") + " " + self.expr(self.pick(0, 0, 1, 1, 2)) + " " + self.pick("", "-", "") + "}}"
        if k < 10:
            s = self.tag(f"if {self.expr(1)}") + self.body(d - 1)
            if self.r.random() < .3:
                s += self.tag(f"elif {self.expr(1)}") + self.body(d - 1)
            return s + (self.tag("else") + self.body(d - 1) if self.r.random() < .4 else "") + self.tag("endif")
        if k < 13:
            over = self.pick("l", "messages", "d", "'abc'", "range(3)", "d.items()", "t", "deep.k", "range(4, 0, -1)",
                             "[1, 2, 3]", "messages[::-1]", self.expr(1))
            target = "a, b" if over == "d.items()" else "v"
            test = f" if {self.expr(1)}" if self.r.random() < .2 else ""
            self.loops += 1
            s = self.tag(f"for {target} in {over}{test}") + self.body(d - 1)
            if self.r.random() < .15:
                s += self.tag("if loop.index > 1") + self.tag(self.pick("break", "continue")) + self.tag("endif")
            self.loops -= 1
            return s + (self.tag("else") + "none" if self.r.random() < .2 else "") + self.tag("endfor")
        if k == 13:
            return self.tag(f"set {self.pick('v', 's', 'w', 'ns.a', 'ns.b', 'l')} = {self.expr(1)}")
        if k == 14:
            return self.pick(self.tag("set v") + self.body(d - 1) + self.tag("endset"),
                             "{#" + self.pick("", "-", "+") + " note " + self.pick("", "-", "+") + "#}",
                             self.tag("filter " + self.pick("upper", "trim", "indent(2)", "replace('a', 'b')"))
                             + self.body(d - 1) + self.tag("endfilter"),
                             self.tag("raw") + "{{ x }} " + self.tag("endraw"),
                             self.tag("with v = 3") + self.body(d - 1) + self.tag("endwith"),
                             self.tag("generation") + self.body(d - 1) + self.tag("endgeneration"))
        saved, self.loops = self.loops, 0
        s = self.pick(self.tag("macro m(x, y='Y')") + "[{{ x }}{{ y }}]" + self.body(d - 1) + self.tag("endmacro"),
                      self.tag("call m(1)") + "body" + self.tag("endcall"))
        self.loops = saved
        return s

    def body(self, d):
        return "".join(self.block(d) for _ in range(self.r.randrange(1, 4)))

    def template(self):
        head = "{%- set ns = namespace(a=1, b='z') %}{% macro m(x, y='Y') %}<{{ x }}|{{ y }}{{ caller() if caller }}>{% endmacro %}\n"
        k = self.r.random()
        if k < .5:
            return head + "".join("{{ " + self.expr(self.r.randrange(3)) + " }}" for _ in range(self.r.randrange(1, 3)))
        return head + self.body(2 if k < .85 else 3)


FUZZ_CASE = {"messages": [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": "a,b"}],
             "kwargs": {"s": "some Text, a", "n": 3, "f": 2.5, "l": [3, "a", None, True, 1.0],
                        "d": {"k": "v", "B": 2, "a": [1, 2]}, "t": ["x", "y", "x"], "e": [], "nothing": None,
                        "flag": True, "deep": {"k": [{"m": 1}, {"m": "two"}], "role": "r"}}}
# Where our side deliberately says more than Jinja2's (doc/templates.md).
ON_PURPOSE = ("SecurityError", "No filter named 'from_json'", "No filter named 'strip'")
# And where it refuses what Jinja2 accepts by accident of its types.
STRICTER = ("urlencode needs",)


def fuzz(n, seed):
    count = Count()
    for i in range(n):
        source = Maker(random.Random(f"{seed}/{i}")).template()
        before = count.differ
        count.take(f"fuzz {seed}/{i}", source, FUZZ_CASE)
        if count.differ > before:
            print("  template:", json.dumps(source, ensure_ascii=False))
    return count.done()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    what, rest = (sys.argv[1:2] or ["check"])[0], sys.argv[2:]
    if what == "write":
        sys.exit(write())
    if what == "check":
        sys.exit(check(rest))
    if what == "fuzz":
        sys.exit(fuzz(int(rest[0]), rest[1] if len(rest) > 1 else "1"))
    sys.exit(__doc__)
