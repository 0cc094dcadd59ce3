#!/usr/bin/env python3
"""deps.py - the layers of the program, taken from its includes; fails on an include that points up, and on a few things
that no compiler notices.

A folder may include itself and the folders below it. Programs know the public header and src/text; the format tools
among them (quantize, inspect, tokenize, experts, model_facts, expert_profile, advice, completion) also src/format. BORDERS
are finer: a folder and what it may not include."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
LAYERS = ["programs", "engine", "decode", "model", "backend", "text", "format", "base"]
FORMAT_TOOLS = {"cmd_quantize.c", "cmd_inspect.c", "cmd_text.c", "cmd_render.c", "cmd_experts.c", "model_facts.c",
                "advice.c", "completion.c", "expert_profile.c"}
BORDERS = [
    ("programs/serve/request", "programs/serve/run"), ("programs/serve/answer", "programs/serve/run"),
    ("programs/serve/cache", "programs/serve/run"),
    ("programs/serve", "programs/hub"), ("programs/bench", "programs/hub"), ("programs/chat", "programs/hub"),
    ("programs/hub", "programs/serve"), ("programs/bench", "programs/serve"), ("programs/chat", "programs/serve"), ("programs/serve", "programs/bench"),
    ("text/tokenizer", "text/template"), ("text/tokenizer", "text/grammar"), ("text/tokenizer", "text/reply"),
    ("text/template", "text/grammar"), ("text/template", "text/reply"), ("text/grammar", "text/template"),
    ("text/grammar", "text/reply"),
    ("text/reply", "text/template"),
]
LINE_MOST = 120
MARKS = re.compile(r'"[^"\n]*(?:<tool_call>|</?think>|<\|channel>)')
TYPES = r"(?:u?int(?:8|16|32|64)?_t|u?intptr_t|size_t|ssize_t|int|long|unsigned|unsigned char|char|float|double|long long|unsigned long long|void|word|u64|u32|[A-Z]\w*[a-z]\w*)"
CAST = re.compile(r"(?<![\w)\]])\((?:const )?(?:struct )?" + TYPES + r"(?: ?\*+)?\)(?=[\w(&*~!-])")


def below(layer):
    if layer == "programs":
        return {"programs", "text", "base"}
    return set(LAYERS[LAYERS.index(layer):])


def code_of(text):
    """Comments and strings are blanked; line numbers do not change."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


uses, wrong, seen = {l: set() for l in LAYERS}, [], {"line": [], "mark": [], "cast": [], "backend": []}
CODE = {".c", ".h", ".cu", ".cpp", ".def"}
for path in sorted(p for p in (root / "src").rglob("*") if p.suffix in CODE):
    inside, name, text = path.relative_to(root / "src"), path.relative_to(root), path.read_text()
    layer = inside.parts[0]
    for included in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M):
        first = included.split("/")[0]
        if included in ("ratoon.h", "ratoon_chat.h", "ratoon_lab.h"):
            if layer not in ("programs", "engine"):
                wrong.append(f"{name} includes {included}, which is above it")
            continue
        if first not in LAYERS:
            continue
        uses[layer].add(first)
        if first not in below(layer) | ({"format"} if path.name in FORMAT_TOOLS else set()):
            wrong.append(f"{name} includes {included}, which is not below {layer}")
        for a, b in BORDERS:
            if str(inside).startswith(a + "/") and included.startswith(b + "/"):
                wrong.append(f"{name} includes {included}: {a} must not see {b}")
    for i, line in enumerate(code_of(text).splitlines(), 1):
        if path.name.startswith(("family_", "draft_")) and re.search(r"->be\b", line):
            seen["backend"].append(f"{name}:{i}")
        if CAST.search(line):
            seen["cast"].append(f"{name}:{i}")
    if layer == "programs":
        bare = re.sub(r"/\*.*?\*/", lambda c: "\n" * c.group(0).count("\n"), text, flags=re.S)
        seen["mark"] += [f"{name}:{bare[:m.start()].count(chr(10)) + 1}" for m in MARKS.finditer(bare)]
page = [p for p in (root / "src/programs/serve/page").iterdir() if p.suffix in (".js", ".css", ".html", ".py")]
for path in page + sorted(p for d in ("src", "include", "tests", "bench", "examples") for p in (root / d).rglob("*")
                        if p.suffix in CODE):
    text = path.read_text()
    for i, line in enumerate("" if text.startswith("/* Made by `") else text.splitlines(), 1):
        if len(line) > LINE_MOST:
            seen["line"].append(f"{path.relative_to(root)}:{i}")
for what, words in (("line", f"is longer than {LINE_MOST} columns"),
                    ("mark", "spells a reply format's marker, which only src/text/reply knows"),
                    ("cast", "casts without a space: (type) x"),
                    ("backend", "calls the backend; families call step.h")):
    wrong += [f"{at} {words}" for at in seen[what]]

print("include/ratoon.h")
for l in LAYERS:
    down = [x for x in LAYERS if x in uses[l] and x != l]
    n = len(list((root / "src" / l).rglob("*.c")))
    rooms = sorted(str(d.relative_to(root / "src" / l)) for d in (root / "src" / l).rglob("*") if d.is_dir())
    print(f"  {l:9} {n:3} files   uses {', '.join(down) if down else 'nothing of ours'}"
          + (f"   ({' '.join(rooms)})" if rooms else ""))
for w in wrong:
    print("WRONG:", w)
print(f"{len(LAYERS) - bool(wrong)} passed, {int(bool(wrong))} failed")
sys.exit(1 if wrong else 0)
