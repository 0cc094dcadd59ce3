#!/usr/bin/env python3
"""Writes the seed corpus of fuzz_template: our templates, single expressions, and inputs that made or could make
trouble.

    python3 tests/fuzz/make_template_corpus.py        # rewrites tests/fuzz/corpus/template; the same bytes every time
"""
import json
from pathlib import Path

ROOT = Path(__file__).parent.parent
HERE = ROOT / "fuzz" / "corpus" / "template"
ODD = {
    "append_self": "{% set l = [] %}{% do l.append(l) %}{{ l }}{{ l == l }}",
    "deep": "{{ " + "(" * 70 + "1" + ")" * 70 + " }}", "deep_if": "{% if 1 %}" * 70,
    "recursion": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "range": "{{ range(9223372036854775807) }}{{ range(-9223372036854775807, 9, 3) }}",
    "double": "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "steps": "{% for a in range(99999) %}{{ a }}{% endfor %}",
    "escape": "{{ '\\x4\\ud800\\U00110000' }}", "half": "{{ '\\", "comment": "{#-#}{#+#}{# #",
    "raw": "{%- raw -%}{% endraw", "crlf": "a\r\nb\rc\r", "tags": "{%-+%}{{-}}{{+-1}}{%%}",
    "bytes": b"{{ '\xff' }}",
    "slices": "{{ 'abc'[::-9223372036854775807] }}{{ [1][9223372036854775807:] }}{{ 'x'[-9223372036854775808:] }}{{ "
              "'x'[::0] }}",
    "format": "{{ '%*d%' % 1 }}{{ '%(x' % {} }}{{ '{'.format() }}",
    "pop": "{% set l = [1] %}{{ l.pop() }}{{ l.pop() }}",
    "minimum": "{{ -9223372036854775807 - 1 }}{{ (-9223372036854775807 - 1) // -1 }}",
    "recursive": "{% for x in [[[]]] recursive %}{{ loop(x) }}{% endfor %}",
    "indent": "{{ ''|indent(99999999) }}{{ {}|tojson(indent=-1) }}",
    "self_update": "{% set d = {} %}{% do d.update(d) %}{% do d.update(a=d) %}{{ d }}",
    "percent": "{{ 'a' % (1, 2) }}{{ '%c' % 1 }}", "batch": "{{ [1]|batch(0)|list }}{{ [1]|slice(100000)|list }}",
    "float": "{{ 1e999 }}{{ 0.1e-400 }}{{ 1e308 * 10 - 1e308 * 10 }}{{ 2.5|round(300) }}{{ 1e300|round(-300) }}",
    "caller": "{% call x() %}{% endcall %}{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
    "strftime": "{{ strftime_now('%Q %-') }}{{ strftime_now('%') }}",
    "insert": "{% set l=[1,2] %}{% do l.insert(-9,0) %}{{ l }}",
    "extend_self": "{% set l=[1,2] %}{% do l.extend(l) %}{{ l }}", "sort": "{{ [1, 'a', none]|sort }}",
    "dict": "{{ {1: 2, 1.0: 3, true: 4} }}{{ {(1, 2): 3}[(1, 2)] }}{{ {{}: 1} }}",
    "json": "{{ '{\"a\": [1, 1.0]}'|from_json }}{{ '{'|from_json }}",
    "loop_out": "{% set n = namespace() %}{% for i in [1] %}{% set n.l = loop %}{% endfor %}{{ n.l.index }}{{ "
                "n.l.cycle(1) }}{{ n.l.nextitem }}",
}


def main():
    HERE.mkdir(parents=True, exist_ok=True)
    cases = json.loads((ROOT / "data" / "templates" / "conversations.json").read_text(encoding="utf-8"))
    for i, path in enumerate(sorted((ROOT / "data" / "templates").glob("*.jinja"))):
        variables = {k: cases[4 + i % 3][k] for k in ("messages", "tools") if k in cases[4 + i % 3]}
        (HERE / f"template_{path.stem}").write_bytes(path.read_bytes() + b"\0"
                                                     + json.dumps(variables, ensure_ascii=False).encode())
    units = json.loads((ROOT / "data" / "templates" / "units.json").read_text(encoding="utf-8"))
    for i in range(0, len(units) - 1, 3):          # several together
        source = "\n".join(u["template"] for u in units[1 + i:4 + i] if "text" in u)
        (HERE / f"unit_{i:02}").write_bytes(source.encode() + b"\0"
                                            + json.dumps({**units[0]["kwargs"],
                                                          "messages": units[0]["messages"]}).encode())
    for name, source in ODD.items():
        (HERE / f"odd_{name}").write_bytes(source if isinstance(source, bytes) else source.encode())


if __name__ == "__main__":
    main()
