#!/usr/bin/env python3
"""Writes the seed corpus of fuzz_tokenizer: texts for each pattern and option, and files with good and bad tokenizers.

    python3 tests/fuzz/make_tokenizer_corpus.py        # rewrites tests/fuzz/corpus/tokenizer; the same bytes every time
"""
import sys
from pathlib import Path

sys.dont_write_bytecode = True
from make_corpus import ARRAY, BOOL, F32, I32, STRING, U32, gguf, key

HERE = Path(__file__).parent / "corpus" / "tokenizer"
TEXTS = {
    "words": b"I'll lower the lo, don't <b>y'all</b> 12345 \xc2\xbd\n\n  def f(x):\r\n\t\treturn x\n   ",
    "special": b"<|a|><b>lo   b>lo<|a|><b><|a|x  \n   <b><<b>>",
    "unicode": "e\u0301le\u0300ve \u4f60\u597d \U0001f642\u200d \u0e2a\u0e27\u0e31 \u1680\u3000x\u0085 \u017f's \u180e".encode(),
    "bad": b"\xff\xc0\x80a\xe2\x82 b\xed\xa0\x80\xf4\x90\x80\x80 \xf0\x9f\x99 lo\x00\x01\xcc\x81",
    "runs": b"a" * 40 + b"=" * 40 + b" " * 40 + b"\n" * 8 + b"\xcc\x81\xcc\xa3" * 20,
    "marks": " low\u2581low\u2581 \u2581<b>\u2581\n\n\n\u00e9\n".encode() + b"\xe2\x96 \xf0\xe2\x96\x81",
}


def alphabet():
    own = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    other = [b for b in range(256) if b not in own]
    return [chr(b) if b in own else chr(256 + other.index(b)) for b in range(256)]


def vocabulary(tokens=(), types=None, merges=("l o", "lo w"), pre="qwen2", keys=(), model="gpt2"):
    texts = alphabet() + ["lo", "low"] + list(tokens)
    types = [1] * 258 + [4] * len(tokens) if types is None else types
    return gguf([key("tokenizer.ggml.model", STRING, model), key("tokenizer.ggml.pre", STRING, pre),
                 key("tokenizer.ggml.tokens", ARRAY, (STRING, texts)),
                 key("tokenizer.ggml.token_type", ARRAY, (I32, types)),
                 key("tokenizer.ggml.merges", ARRAY, (STRING, list(merges))), *keys])


FILES = {
    "good": vocabulary(["<b>", "<|a|>"], [1] * 258 + [4, 3],
                       keys=(key("tokenizer.ggml.bos_token_id", U32, 259),
                             key("tokenizer.ggml.add_bos_token", BOOL, 1))),
    "llama3": vocabulary(pre="llama3"), "two_stages": vocabulary(pre="refact"),
    "gemma4": vocabulary(["\u2581", "\u2581low", "a\u2581 b"], [1] * 260 + [4], ["l o", "lo w", "\u2581 low"], model="gemma4"),
    "gemma4_space": vocabulary([" "], [1] * 259, ["l o", "  low"], model="gemma4"),
    "byte": vocabulary(["<0x41>"], [1] * 258 + [6]),
    "template": vocabulary(keys=(key("tokenizer.chat_template", STRING, "{{ x }}"),)),
    "model": vocabulary(model="llama"),
    "no_vocab": vocabulary(model="no_vocab"), "pre": vocabulary(pre="default"), "types": vocabulary(types=[1] * 257),
    "type": vocabulary(["x"], [1] * 258 + [9]), "empty": vocabulary([""]),
    "bytes": vocabulary(["<0xZZ>"], [1] * 258 + [6]),
    "merge": vocabulary(merges=["l o", "x yz"]), "merge_space": vocabulary(merges=["l", ""]),
    "bos": vocabulary(keys=(key("tokenizer.ggml.bos_token_id", U32, 258),)),
    "bos_missing": vocabulary(keys=(key("tokenizer.ggml.add_bos_token", BOOL, 1),)),
    "scores": vocabulary(keys=(key("tokenizer.ggml.scores", ARRAY, (F32, [1.0])),)),
    "twice": vocabulary(["low", "a", "<b>", "<b>"]),
    "overlap": vocabulary(["<b>", "b>\u00e9", "Hello <b", "  ", "   "]), "not_utf8": vocabulary([b"\xff"], [1] * 259),
}


def main():
    HERE.mkdir(parents=True, exist_ok=True)
    for i, (name, text) in enumerate(TEXTS.items()):
        for options in range(7):                   # one pattern each, with different options
            flags = [0, 8 | 16, 16, 32 | 16, 128 | 16, 8 | 128][(options + i) % 6]
            (HERE / f"text_{name}_{options}").write_bytes(bytes([options | flags, 0x53]) + text)
    # an empty span within a special token
    (HERE / "text_empty_span").write_bytes(bytes([0x93, 9]) + b"\x01\0\0 z      o<>=|<<GGUF<b>>")
    for name, data in FILES.items():
        (HERE / f"file_{name}").write_bytes(data)


if __name__ == "__main__":
    main()
