#!/usr/bin/env python3
"""Writes the seed corpora of fuzz_gguf, fuzz_safetensors and fuzz_hotness: good files, and one bad file for each check
of the readers.

    python3 tests/fuzz/make_corpus.py        # rewrites their folders in tests/fuzz/corpus; the same bytes every time
"""
import json
import struct
from pathlib import Path

HERE = Path(__file__).parent / "corpus"
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMAT = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def string(s):
    s = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(s)) + s


def value(t, v):
    if t == STRING:
        return string(v)
    if t == ARRAY:
        elem, items = v
        return struct.pack("<IQ", elem, len(items)) + b"".join(value(elem, x) for x in items)
    return struct.pack("<" + FORMAT[t], v)


def key(name, t, v):
    return string(name) + struct.pack("<I", t) + value(t, v)


def tensor(name, ne, t, offset):
    return string(name) + struct.pack(f"<I{len(ne)}qIQ", len(ne), *ne, t, offset)


def gguf(keys, tensors=(), data=b"", version=3, magic=b"GGUF", n_keys=None, n_tensors=None, align=32):
    head = magic + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors,
                               len(keys) if n_keys is None else n_keys)
    head += b"".join(keys) + b"".join(tensors)
    return head + (b"\0" * (-len(head) % align) + data if tensors else b"")


ARCH = key("general.architecture", STRING, "llama")
ALL = [ARCH, key("u8", U8, 7), key("i8", I8, -7), key("u16", U16, 700), key("i16", I16, -700), key("u32", U32, 70000),
       key("i32", I32, -70000), key("f32", F32, 1e-6), key("bool", BOOL, 1), key("u64", U64, 1 << 63),
       key("i64", I64, -1 << 63),
       key("f64", F64, 0.5), key("strings", ARRAY, (STRING, ["a", "", "Ġthe", b"\xff\xfe"])),
       key("i32s", ARRAY, (I32, [1, -2, 3])),
       key("u32s", ARRAY, (U32, [0, 8, 8])), key("bools", ARRAY, (BOOL, [1, 0])),
       key("f32s", ARRAY, (F32, [0.5, -2.0])),
       key("empty", ARRAY, (F32, []))]
TYPES = [(0, 1, 4), (1, 1, 2), (30, 1, 2), (2, 32, 18), (8, 32, 34), (12, 256, 144), (14, 256, 210), (16, 256, 66),
         (42, 64, 18), (26, 1, 4)]


def all_types():
    tensors, data = [], b""
    for number, block, size in TYPES:
        tensors.append(tensor(f"t{number}.weight", (block, 2), number, len(data)))
        data += bytes(range(256))[:1] * (2 * size)
        data += b"\0" * (-len(data) % 32)
    return gguf(ALL, tensors, data)


def one(ne=(4, 2), t=0, offset=0, data=b"\1" * 32, name="w", keys=(ARCH,), **more):
    return gguf(list(keys), [tensor(name, ne, t, offset)], data, **more)


def raw_key(name, t, payload):
    return string(name) + struct.pack("<I", t) + payload


GGUF = {
    "good_all": all_types(), "good_one": one(), "good_v2": one(version=2), "good_long": one(data=b"\1" * 99),
    "good_align64": one(keys=(ARCH, key("general.alignment", U32, 64)), align=64),
    "good_trailing_ones": one(ne=(4, 2, 1, 1)),
    "g01_empty": b"", "g02_swapped": one(magic=b"FUGG"), "g02_ggjt": one(magic=b"tjgg"),
    "g03_v1": one(version=1), "g03_big_endian": one(version=3 << 24), "g04_keys": gguf([ARCH], n_keys=1 << 63),
    "g04_tensors": gguf([ARCH], n_tensors=(1 << 64) - 1), "g05_twice": gguf([ARCH, ARCH]),
    "g05_utf8": gguf([key(b"a\xc0\x80", U8, 1)]), "g05_long": gguf([ARCH, struct.pack("<Q", 1 << 63) + b"x" * 40]),
    "g06_type13": gguf([raw_key("k", 13, b"\0" * 8)]),
    "g06_nested": gguf([raw_key("k", ARRAY, struct.pack("<IQ", ARRAY, 1) + b"\0" * 12)]),
    "g06_bools": gguf([raw_key("k", ARRAY, struct.pack("<IQ", BOOL, 1 << 40))]),
    "g06_strings": gguf([raw_key("k", ARRAY, struct.pack("<IQ", STRING, 1 << 60) + b"\0" * 64)]),
    "g06_giant": gguf([raw_key("k", ARRAY, struct.pack("<IQQ", STRING, 2, 1 << 40) + b"\0" * 64)]),
    "g08_zero": one(keys=(key("general.alignment", U32, 0),)),
    "g08_float": one(keys=(key("general.alignment", F32, 32),)), "g09_newline": one(name="a\nb"),
    "g09_long": one(name="x" * 64),
    "g09_twice": gguf([ARCH], [tensor("w", (4,), 0, 0), tensor("w", (4,), 0, 32)], b"\1" * 64),
    "g10_no_dims": one(ne=()),
    "g10_negative": one(ne=(4, -1)), "g10_overflow": one(ne=(1 << 40, 1 << 40)),
    "g10_block": one(ne=(31,), t=8), "g10_removed": one(t=4), "g10_unknown": one(t=43), "g11_unaligned": one(offset=4),
    "g11_wraps": one(offset=(1 << 64) - 32), "g11_cut": one(data=b"\1" * 31),
    "g11_overlap": gguf([ARCH], [tensor("a", (16,), 0, 0), tensor("b", (4,), 0, 32)], b"\1" * 96),
}


def safe(header, data=b"", n=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if n is None else n) + text + data


def entry(dtype="F32", shape=(2, 2), begin=0, end=16):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def padded(header, data):
    text = json.dumps(header).encode()
    return safe(text + b" " * (-len(text) % 8), data)


D = b"\1" * 16
SAFE = {
    "good_one": padded({"w": entry()}, D), "good_empty": padded({}, b""),
    "good_scalar": padded({"w": entry("I64", (), 0, 8)}, D[:8]),
    "good_two": padded({"__metadata__": {"format": "pt"}, "b": entry("BF16", (4,), 16, 24), "a": entry(),
                        "c": entry("I32", (1, 2), 24, 32)}, D * 2),
    "good_dims": padded({"w": entry("F16", (1, 2, 1, 2, 2), 0, 16)}, D),
    "s01_zero": safe(b"", D), "s01_long": safe(b"{}", b"", 1 << 63),
    "s01_odd": safe(json.dumps({"w": entry()}).encode() + b" " * (1 + len(json.dumps({"w": entry()})) % 2), D),
    "s03_array": safe([1]), "s03_twice": safe(b'{"a":1,"a":2}'), "s03_garbage": safe(b"{} {}"),
    "s03_utf8": safe(b'{"\xff":1}'), "s03_deep": safe(b'{"a":' + b"[" * 1000),
    "s04_dtype": padded({"w": entry("Q99")}, D),
    "s05_zero": padded({"w": entry("F32", (0, 2), 0, 0)}, b""),
    "s05_negative": padded({"w": entry("F32", (-2, -2))}, D),
    "s05_huge": padded({"w": entry("F32", (1 << 62, 1 << 62))}, D),
    "s05_beyond": padded({"w": entry("F32", (2, 2), 16, 32)}, D),
    "s05_reversed": padded({"w": entry("F32", (2, 2), 16, 0)}, D),
    "s05_size": padded({"w": entry("F32", (2, 1))}, D), "s05_overlap": padded({"a": entry(), "b": entry()}, D),
    "s05_hole": padded({"a": entry(), "b": entry("F32", (2, 2), 20, 36)}, D * 2 + b"\0" * 4),
    "s05_tail": padded({"w": entry()}, D + b"\0"),
    "s06_metadata": padded({"__metadata__": {"a": 1}, "w": entry()}, D),
}

HEAD = b"# hotness table: n_layer=3 n_expert=4 n_expert_used=2\n"
MODEL = b"# model: bytes=123456 name=Small Mix 1.0\n"
ROWS = b"0,0,0,0\n1,2,3,4\n9007199254740000,0,0,992\n"
HOTNESS = {
    "good_all": HEAD + b"# one line for each layer, one count for each expert\n" + MODEL + ROWS,
    "good_rows": ROWS[:-1], "good_published": HEAD + ROWS,
    "good_blanks": b"\n 0,\t0 ,0,0\r\n\t\r\n# a word\n" + ROWS[8:],
    "h01_empty": b"", "h02_layers": b"# n_layer=4\n" + ROWS, "h02_experts": b"# n_layer=3 n_expert=8\n" + ROWS,
    "h02_used": b"# n_layer=3 n_expert=4 n_expert_used=8\n" + ROWS, "h02_number": b"# n_layer=3x\n" + ROWS,
    "h03_name": MODEL.replace(b"1.0", b"1.1") + ROWS, "h03_bytes": MODEL.replace(b"3456", b"3457") + ROWS,
    "h03_malformed": b"# model: bytes= name\n" + ROWS, "h04_short": b"0,0,0\n", "h04_long": b"0,0,0,0,\n",
    "h05_missing": ROWS[:16], "h05_too_many": ROWS * 2, "h06_sign": b"0,-1,0,0\n", "h06_nul": b"0,1\0,0,0\n",
    "h06_large": b"18446744073709551617,0,0,0\n", "h07_total": b"9007199254740992,0,0,1\n",
    "h08_cut": MODEL + ROWS[:-1],
}


def main():
    for folder, files in (("gguf", GGUF), ("safetensors", SAFE), ("hotness", HOTNESS)):
        (HERE / folder).mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (HERE / folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
