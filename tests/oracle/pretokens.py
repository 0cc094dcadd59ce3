#!/usr/bin/env python3
"""Writes tests/help/pretokens.h: where the models' own regular expressions cut a set of texts, found by
the `tokenizers` package (Oniguruma).

    python3 tests/oracle/pretokens.py > tests/help/pretokens.h
"""
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?%s+|%s| ?[^\s%s\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
STAGES = {
    "qwen2": [QWEN % (r"\p{L}", r"\p{N}", r"\p{L}")],
    "qwen35": [QWEN % (r"[\p{L}\p{M}]", r"\p{N}", r"\p{L}\p{M}")],
    "llama-bpe": [QWEN % (r"\p{L}", r"\p{N}{1,3}", r"\p{L}")],
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "laguna": [r"[^\n]+|[\n]+", QWEN % (r"\p{L}", r"\p{N}", r"\p{L}")],
    "gemma4": [r"[^\n]+|[\n]+"],
}
TEXTS = [
    "Hello world", " Hello  world ", "Hello, y'all! How're you?", "I'VE DON'T we'LL THEY'RE it'd 'tis 'S's", "'", "''s",
    " 's 'x", "\n", "\n\n",
    "\n\n\n", "\t", "\t\t x", "   ", " ", "  x", "a  b   c    d", "x \n", "x \n \n y", "\n \n\n \n\n\n \t \t\t x",
    "\r\n", "a\r\nb\r\n\r\nc", "end. \r\n next",
    "1", "12", "123", "1234", "12345 678", " 1 22 333 4444", "v1.2.3-rc4", "3.14159e-10", "0x1F600", "½ ² ٣٤٥ Ⅻ ௧௨",
    "a1b2c3",
    "def f(x):\n    return x + 1  # one\n\n\tif not x:\r\n\t\tpass\n",
    "#include <stdio.h>\n\nint main(void) { return 0; }\n", "a==b!=c<=d>=e&&f||g",
    "====================", "=======\n\n=======", "----\n", "!!!???...", "$5.00 €10 £3 ¥400", "foo_bar FooBar foo-bar",
    "https://example.org/a?b=c&d=%20#e",
    "naïve café Ångström ÀÉÎÕÜ", "Zażółć gęślą jaźń", "Привет, мир! Ещё раз.", "Γειά σου Κόσμε", "שלום עולם",
    "مرحبا بالعالم ١٢٣", "नमस्ते दुनिया", "สวัสดีชาวโลก",
    "សួស្តីពិភពលោក", "你好,世界!今天是2026年11月20日。", "こんにちは世界 カタカナ", "안녕하세요 세계", "e\u0301le\u0300ve cafe\u0301",
    "a\u0301\u0323b \u0301x", "\u0301\u0301",
    "🚀 (normal) 😶\u200d🌫️ (multiple) 👨\u200d👩\u200d👧 ✅", "🙂🙂🙂", "a🙂b 🙂c", "flags 🇫🇷🇩🇪", "x\u00a0y\u00a0\u00a0z",
    "wide\u3000space\u3000", "thin\u2009 \u2009x", "line\u2028sep\u2029p",
    "nel\u0085x", "zero\u200bwidth\ufeffbom", "\u0000\u0001\u007f", "tab\tin\tline",
    "« guillemets » „quotes“ ‘single’ it’s", "\u1680ogham\u1680", "\ue000private\U000f0000",
    "<|im_start|>user\nhi<|im_end|>\n", "{\"key\": [1, 2.5, null, \"v\\n\"]}\n", "  \n  \n", "x\n  ", "x\n  y",
    "x  \n\n  y", "trailing   ", "\n  \t", "word\n", "word \n\nword",
    "-1 +1 (2) [3] {4}", "5'10\" tall's", "'Re 'vE 'Ll 'M 'T", "\x0b\x0cx\x1cy", "𝒜𝓁𝑔 𝟙𝟚𝟛", "ﬁ ﬂ ǅ ʰ ª º",
    "a" * 40 + " " * 10 + "b" * 5,
]


def cuts(stages, text):
    split = Sequence([Split(Regex(s), "isolated") for s in stages])
    return [len(text[a:b].encode()) for _, (a, b) in split.pre_tokenize_str(text)]


def c_string(text):
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode()) + '"'


def main():
    print("/* Made by `python3 tests/oracle/pretokens.py > tests/help/pretokens.h`. Lengths in bytes,\n * one list for "
          "each pattern, ended by 0. */")
    print("#ifndef RATOON_TESTS_HELP_PRETOKENS_H\n#define RATOON_TESTS_HELP_PRETOKENS_H\n\n#include <stddef.h>\n#include "
          "<stdint.h>\n")
    print(f"enum {{ PRETOKENS_PATTERNS = {len(STAGES)} }};\n")
    print("static const char *const PRETOKENS_NAMES[PRETOKENS_PATTERNS] = { " + ", ".join(f'"{n}"' for n in STAGES)
          + " };\n")
    print("static const struct { const char *s; size_t n; const uint8_t *cuts[PRETOKENS_PATTERNS]; } PRETOKENS[] = {")
    for text in TEXTS:
        n = len(text.encode())
        lists = [cuts(stages, text) for stages in STAGES.values()]
        assert all(sum(c) == n for c in lists) and n < 256, text
        print(f"    {{ {c_string(text)}, {n}, {{")
        for c in lists:
            print("        (const uint8_t[]) { " + ", ".join(map(str, c + [0])) + " },")
        print("    } },")
    print("};\n\n#endif")


if __name__ == "__main__":
    main()
