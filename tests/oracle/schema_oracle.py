#!/usr/bin/env python3
"""Texts that schemas allow, judged by the jsonschema package: random schemas with random texts from `test_grammar emit`, and richer
schemas whose texts the demo pair writes. Every text must be JSON that is valid.

    PYTHON tests/oracle/schema_oracle.py [RATOON [TEST_GRAMMAR [COUNT]]]          needs jsonschema"""
import json
import subprocess
import sys

import jsonschema

ratoon, test_grammar, count = (sys.argv[1:] + ["./ratoon", "build/tests/test_grammar", "5000"][len(sys.argv) - 1:])[:3]
RICH = [
    {"$defs": {"Address": {"type": "object", "title": "Address",
                           "properties": {"street": {"type": "string", "maxLength": 20},
                                          "zip": {"type": "string", "pattern": r"^\d{5}(-\d{4})?$"}},
                           "required": ["street", "zip"], "additionalProperties": False}},
     "type": "object", "properties": {"home": {"$ref": "#/$defs/Address"},
                                      "work": {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}],
                                               "default": None}}, "required": ["home"]},
    {"$defs": {"Tree": {"type": "object",
                        "properties": {"v": {"type": "integer", "minimum": -5, "maximum": 5},
                                       "kids": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/Tree"}}},
                        "required": ["v", "kids"]}}, "$ref": "#/$defs/Tree"},
    {"type": "object", "properties": {"d": {"type": "string", "format": "date"},
                                      "t": {"type": "string", "format": "date-time"},
                                      "u": {"type": "string", "format": "uuid"},
                                      "i": {"type": "string", "format": "ipv4"},
                                      "s": {"type": "string", "format": "ipv6"},
                                      "h": {"type": "string", "format": "time"}},
                                      "required": ["d", "t", "u", "i", "s", "h"]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "number", "exclusiveMinimum": 0}}},
               {"properties": {"a": {"maximum": 0.5}, "b": {"enum": ["x", 3, None]}}, "required": ["a", "b"]}]},
    {"type": "object", "properties": {"kind": {"const": "k"}}, "required": ["kind"],
     "additionalProperties": {"type": "integer"}},
    {"oneOf": [{"type": "object", "properties": {"t": {"const": "p"}, "x": {"type": "integer"}},
                "required": ["t", "x"]}, {"type": "object", "properties": {"t": {"const": "q"}}, "required": ["t"]}]},
    {"type": "array", "prefixItems": [{"type": "string", "pattern": "^[A-Z]{2}\"?$"},
                                      {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 10}],
                                      "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    {"type": ["object", "null"], "properties": {"e\"\n\u00e9": {"type": "string", "minLength": 2, "maxLength": 5}},
     "required": ["e\"\n\u00e9"]},
]
checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
judged = wrong = cut = 0


def judge(schema, text):
    global judged, wrong
    judged += 1
    try:
        jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as e:
        wrong += 1
        print("WRONG", json.dumps(schema), repr(text), str(e).split("\n")[0])


# not splitlines: texts hold other line ends
for line in subprocess.run([test_grammar, "emit", count], stdout=subprocess.PIPE,
                           check=True).stdout.decode().strip().split("\n"):
    pair = json.loads(line)
    judge(pair["schema"], pair["text"])
for schema in RICH:
    for seed in range(6):
        p = subprocess.run([ratoon, "run", "-q", "--json", "-p", "As JSON: ", "-n", "250", "--temp",
                            "1.5" if seed else "0", "--seed", str(seed), "--json-schema", json.dumps(schema)],
                           stdout=subprocess.PIPE, check=True)
        r = json.loads(p.stdout)
        cut += r["finish_reason"] == "length"
        if r["finish_reason"] == "stop":
            judge(schema, r["text"])
print(f"{judged} texts judged, {wrong} of them wrong, {cut} more were cut by -n")
sys.exit(1 if wrong or judged < int(count) else 0)
