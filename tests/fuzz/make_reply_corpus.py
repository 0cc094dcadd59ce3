#!/usr/bin/env python3
"""Writes the seed corpus of fuzz_reply: the answers of tests/data/reply with their marks as tokens, and strings of
random pieces.

    python3 tests/fuzz/make_reply_corpus.py        # rewrites tests/fuzz/corpus/reply; the same bytes every time
"""
import random
import re
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = (HERE / "fuzz_reply.c").read_text()
FORMATS = {"none": 0, "qwen3": 1, "qwen35": 2, "laguna": 3, "gemma4": 4, "llama3": 5, "json": 6}
THINK = {"none": 0, "tags": 1, "channel": 2}


def table(name):
    body = SOURCE[SOURCE.index(f"*const {name}[] = {{"):]
    return [bytes(s, "utf-8").decode("unicode_escape").encode("latin-1")
            for s in re.findall(r'"((?:[^"\\]|\\.)*)"', body[:body.index("};")])]


def scripts():
    for path in sorted((HERE.parent / "data" / "reply").glob("*.txt")):
        form, think, text = 0, 0, None
        for line in path.read_text().splitlines():
            word, _, rest = line.partition(" ")
            if word == "format":
                form = FORMATS[rest]
            elif word == "think":
                think = THINK[rest]
            elif word == "case":
                if text:
                    yield form, think, text
                text = b""
            elif line[:1] in "|:" and line:
                text += rest.encode() + (b"\n" if word == "|" else b"")
        if text:
            yield form, think, text


def main():
    marks, pieces = table("MARKS"), table("PIECES")
    out = HERE / "corpus" / "reply"
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        old.unlink()
    draw = random.Random(1)
    for i, (form, think, text) in enumerate(scripts()):
        if i % 2:
            for k, mark in enumerate(marks):
                text = text.replace(mark, bytes([0xff, k]))
        (out / f"script_{i:03}").write_bytes(bytes([form + 7 * think, draw.randrange(256) & ~0x84,
                                                    draw.randrange(256) & ~1, draw.randrange(4)]) + text)
    for i in range(150):
        text = b""
        for _ in range(draw.randrange(3, 60)):
            text += draw.choice([bytes([0xff, draw.randrange(len(marks))]), bytes([0xfd, draw.randrange(len(pieces))]),
                                 bytes([0xfd, draw.randrange(len(pieces))]),
                                 bytes([draw.randrange(256)]), b"\xfe"])
        (out / f"drawn_{i:03}").write_bytes(bytes(draw.randrange(256) for _ in range(4)) + text)
    (out / "long").write_bytes(bytes([9, 0, 0x80, 2]) + b"<tool_call><function=weather><parameter=city>"
                               + b"a<\n" * 20000)
    (out / "space").write_bytes(bytes([9, 0, 0, 2]) + b"<tool_call><function=weather><parameter=city>x</parameter>"
                                + b" " * 20000)
    (out / "doubt").write_bytes(bytes([9, 0, 0, 2]) + b"<tool_call><function=weather><parameter=city>"
                                + b"<parameter=days>" * 6000)
    (out / "depth").write_bytes(bytes([8, 0, 0, 2]) + b'<tool_call>{"name": "weather", "arguments": '
                                + b'{"a":[' * 5000)


if __name__ == "__main__":
    main()
