#!/usr/bin/env python3
"""Writes the seed corpora of fuzz_grammar and fuzz_schema from the tables of tests/unit/text/test_grammar.c, and some large or broken inputs.

    python3 tests/fuzz/make_grammar_corpus.py        # rewrites tests/fuzz/corpus/grammar and .../schema; the same bytes every time
"""
import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = (HERE.parent / "unit" / "text" / "test_grammar.c").read_text()


def strings(function):
    """The first string of every row of a test's table."""
    body = SOURCE[SOURCE.index(f"static void {function}("):]
    body = body[:body.index("\n}\n")]
    for row in re.findall(r'\{ ("(?:[^"\\]|\\.)*")', body):
        yield ast.literal_eval("b" + re.sub(r"\\([?])", r"\1", row))


def main():
    grammar, schema = HERE / "corpus" / "grammar", HERE / "corpus" / "schema"
    grammar.mkdir(parents=True, exist_ok=True)
    schema.mkdir(parents=True, exist_ok=True)
    texts = [b"", b"aab", b"(())()", b"\xc3\xa9\xf0\x9f\x99\x82", b"11311"]
    for i, text in enumerate([*strings("texts"), *strings("bad_texts")]):
        (grammar / f"row_{i:03}").write_bytes(text + (b"\0" + texts[i % len(texts)] if i % 2 else b""))
    (grammar / "deep").write_bytes(b"root ::= " + b"(" * 5000)
    (grammar / "wide").write_bytes(b"root ::= " + b'"a" | ' * 3000 + b'"b"')
    (grammar / "many").write_bytes(b"root ::= r0\n"
                                   + b"".join(b"r%d ::= r%d | \"x\"\n" % (i, i + 1) for i in range(2000))
                                   + b'r2000 ::= "y"')
    (grammar / "ambiguous").write_bytes(b'root ::= s\ns ::= "a" s "b" | "a" s "c" | "a" s "b" | ""\0'
                                        + b"a" * 3000 + b"b" * 3000)
    (grammar / "readings").write_bytes(b'root ::= (("a"? "a"?){40}){40}\0' + b"a" * 2000)
    (grammar / "deeper").write_bytes(b'root ::= "(" root ")" "." | "x"\0' + b"(" * 2000)
    for i, text in enumerate([*strings("schemas"), *strings("bad_schemas")]):
        (schema / f"row_{i:03}").write_bytes(text)
    (schema / "circle").write_bytes(b'{"$defs":{"a":{"allOf":[{"properties":{"x":{"$ref":"#/$defs/a"}}},{"properties":{"x":{"$ref":"#/$defs/b"}}}]},'
                                    b'"b":{"properties":{"x":{"$ref":"#/$defs/a"}}}},"$ref":"#/$defs/a"}')
    (schema / "choices").write_bytes(b'{"allOf":[' + b",".join([b'{"anyOf":[{"minLength":1},{"maxLength":9}]}'] * 40)
                                     + b"]}")
    (schema / "parentheses").write_bytes(b'{"pattern":"' + b"(" * 60000 + b'"}')


if __name__ == "__main__":
    main()
