#!/usr/bin/env python3
"""Writes the seed corpora of fuzz_image and fuzz_record: correct heads, and heads with a false value in every field.
The checksums are left 0, as the targets correct them.

    python3 tests/fuzz/make_cache_corpus.py            # rewrites tests/fuzz/corpus/image and record; the same bytes every time
    python3 tests/fuzz/make_cache_corpus.py --check    # are they what it would write? (after a change of a version they are not)
"""
import re
import struct
import sys
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
SOURCE = Path(__file__).parent.parent.parent / "src"
IDENTITY = b"ratoon recipe 1, backend cpu, model 0, keys/values F16/F16, window 0, drafter none"
ODD = {"zero": 0, "one": 1, "big": 0x7fffffff, "minus": 0xffffffff, "edge": 0x80000000}


def number(header, name):
    return int(re.search(rf"\b{name} = (\d+)", (SOURCE / header).read_text()).group(1))


VERSIONS = {"image": number("decode/image.h", "IMAGE_VERSION"),
            "record": number("programs/serve/cache/cache_record.h", "RECORD_VERSION")}


def pad(b, to=64):
    return b + bytes(-len(b) % to)


def image(count=5, draft=40, taps=16, target=100, magic=b"ratoonS\0", **lie):
    f = dict(version=VERSIONS["image"], n_identity=len(IDENTITY), n=0, n_tokens=count, draft_P=5, draft_ring=32,
             n_wait=1, n_target=target, n_draft=draft, n_taps=taps)
    body = pad(pad(pad(pad(IDENTITY) + struct.pack(f"<{count}i", *range(count))) + bytes(range(target)))
               + bytes(draft)) + bytes(taps)
    f["n"] = 128 + len(body)
    f.update(lie)
    return pad(magic + bytes(8)
               + struct.pack("<IIQiiiiQQQ",
                             *(v - (1 << 32) if k in ("n_tokens", "draft_P", "draft_ring", "n_wait") and v > 0x7fffffff
                               else v
                                                                for k, v in f.items()))) + body


def record(count=5, image_bytes=200, note=b"note", magic=b"ratoonR\0", **lie):
    f = dict(version=VERSIONS["record"], kind=2, n_file=0, n_image=image_bytes, image_sum=0, n_tokens=count,
             n_identity=len(IDENTITY), n_note=len(note), zero=0)
    front = pad(bytes(128) + struct.pack(f"<{count}i", *range(count)) + IDENTITY + note)[128:]
    f["n_file"] = 128 + len(front) + image_bytes
    f.update(lie)
    head = magic + bytes(8) + struct.pack("<IIQQQIIII", *f.values())
    return head + bytes(128 - len(head)) + front + bytes(i & 255 for i in range(image_bytes))


def write(folder, files):
    folder = CORPUS / folder
    if sys.argv[1:] == ["--check"]:
        if {f.name: f.read_bytes() for f in folder.iterdir()} != files:
            sys.exit(f"{folder}: not what tests/fuzz/make_cache_corpus.py writes now: run it")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def seeds(make, fields, magic):
    files = {"right": make(), "empty": b"", "short": make()[:60], "head": make()[:128], "cut": make()[:-1],
             "more": make() + b"x", "magic": make(magic=magic),
             "long": make(count=300)}
    for field in fields:
        for name, value in ODD.items():
            files[f"{field}-{name}"] = make(**{field: value})
    for field in fields:
        if field in ("n", "n_target", "n_draft", "n_taps", "n_file", "n_image"):
            files[f"{field}-wraps"] = make(**{field: (1 << 64) - 64})
    return files


write("image", seeds(image,
                     ["version", "n_identity", "n", "n_tokens", "draft_P", "draft_ring", "n_wait", "n_target",
                      "n_draft", "n_taps"], b"RATOONS\0"))
write("record", seeds(record, ["version", "kind", "n_file", "n_image", "n_tokens", "n_identity", "n_note"],
                      b"RATOONR\0"))
