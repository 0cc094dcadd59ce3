#!/usr/bin/env python3
"""deps.py - the layers of the program, drawn from its includes; fails on an include that points up.

A folder may include itself and the folders below it. Programs know the public header and src/text; the format tools among them
(quantize, inspect, tokenize) also src/format."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
LAYERS = ["programs", "engine", "decode", "model", "backend", "text", "format", "base"]
FORMAT_TOOLS = {"cmd_quantize.c", "cmd_inspect.c", "cmd_text.c", "cmd_render.c"}


def below(layer):
    if layer == "programs":
        return {"programs", "text", "base"}
    return set(LAYERS[LAYERS.index(layer):])


uses, wrong = {l: set() for l in LAYERS}, []
for path in sorted((root / "src").rglob("*.[ch]")):
    layer = path.relative_to(root / "src").parts[0]
    for line in path.read_text().splitlines():
        m = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not m:
            continue
        first = m.group(1).split("/")[0]
        if m.group(1) == "ratoon.h":
            if layer not in ("programs", "engine"):
                wrong.append(f"{path.relative_to(root)} includes ratoon.h, which is above it")
            continue
        if first not in LAYERS:
            continue
        uses[layer].add(first)
        allowed = below(layer) | ({"format"} if path.name in FORMAT_TOOLS or path.name.startswith("inspect") else set())
        if first not in allowed:
            wrong.append(f"{path.relative_to(root)} includes {m.group(1)}, which is not below {layer}")

print("include/ratoon.h")
for l in LAYERS:
    down = [x for x in LAYERS if x in uses[l] and x != l]
    files = len(list((root / "src" / l).rglob("*.c")))
    print(f"  {l:9} {files:3} files   uses {', '.join(down) if down else 'nothing of ours'}")
for w in wrong:
    print("UPWARD:", w)
print(f"{len(LAYERS) - bool(wrong)} passed, {int(bool(wrong))} failed")
sys.exit(1 if wrong else 0)
