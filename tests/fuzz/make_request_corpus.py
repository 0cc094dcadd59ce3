#!/usr/bin/env python3
"""Writes the seed corpus of fuzz_request: the requests of the golden files, the conversations of the tests, and bodies
that make trouble.

    python3 tests/fuzz/make_request_corpus.py        # rewrites tests/fuzz/corpus/request; the same bytes every time
"""
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
HERE = ROOT / "fuzz" / "corpus" / "request"
DIALECTS = ["completions", "chat", "responses", "messages", "llama", "infill", "ollama_chat", "ollama_generate"]
ODD = {
    "empty": "1", "no_object": "1[]", "null": "1null", "deep": "1{\"messages\":" + "[" * 127 + "]" * 127 + "}",
    "types": "1{\"messages\":[{\"role\":[],\"content\":{}}],\"tools\":{},\"stop\":5}",
    "big_numbers": "1{\"messages\":[{\"role\":\"user\"}],\"seed\":9223372036854775807,\"max_tokens\":9223372036854775807,\"n\":2147483648,\"top_k\":1e300}",
    "strings": "1{\"messages\":[{\"role\":\"user\"}],\"temperature\":\"1e-30\",\"top_p\":\"nan\",\"max_tokens\":\"-1\"}",
    "calls": "1{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"\\u0001\\\"\",\"arguments\":\"{\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"\"}]}",
    "names": "1{\"messages\":[{\"role\":\"user\"}],\"tools\":[{\"function\":{\"name\":\"a\\nb\"}}],\""
    + "x" * 300 + "\":1}",
    "percent": "1{\"messages\":[{\"role\":\"user\"}],\"%s%n\":1,\"model\":\"%s%n\",\"logit_bias\":{\"%s\":1}}",
    "ids": "0{\"prompt\":[[1,999],[0],\"x\",\"\"],\"n\":4,\"logprobs\":5,\"echo\":true}",
    "bias": "0{\"prompt\":\"\",\"logit_bias\":[[\"a\",false],[5,-100]],\"stop\":[\"a\",\"b\"]}",
    "orphan": "2{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":[]}]}",
    "shell": "2{\"input\":[{\"type\":\"local_shell_call\",\"call_id\":\"c\",\"action\":5}],\"tools\":[{\"type\":\"local_shell\"}]}",
    "merge": "2{\"input\":["
    + ",".join(["{\"type\":\"reasoning\",\"summary\":[{\"text\":\"r\"}]},{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\"}"] * 20) + "]}",
    "results": "3{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"u\",\"is_error\":true},{\"type\":\"text\",\"text\":\"\"},{\"type\":\"tool_result\",\"tool_use_id\":\"u\",\"content\":[]}]}]}",
    "zero": "1{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"n\":2\0}",
    "mixed": "4{\"prompt\":[1,\"\",999,[2]],\"n_probs\":20,\"samplers\":[\"temp\",\"top-p\"]}",
    "fields": "4{\"prompt\":\"a\",\"response_fields\":[\"\",\"/\",\"a/b/c\",\"timings/prompt_n\",\"" + "x" * 200 + "\"]}",
    "lines": "4{\"prompt\":\"a\",\"n_indent\":1000,\"t_max_predict_ms\":9223372036854775807,\"repeat_last_n\":2147483647}",
    "extra": "5{\"input_prefix\":\"\",\"input_extra\":[{\"text\":\"\",\"filename\":\"\"},{\"text\":[]}]}",
    "options": "6{\"messages\":[{\"role\":\"user\",\"images\":{}}],\"options\":{\"seed\":-1,\"stop\":[],\"num_predict\":-2,\"options\":{}}}",
    "format": "6{\"messages\":[{\"role\":\"tool\",\"tool_name\":\"\"}],\"format\":{\"type\":[]},\"think\":\"\"}",
    "load": "6{\"messages\":[],\"stream\":false}", "raw": "7{\"prompt\":\"a\",\"raw\":true,\"suffix\":\"b\",\"system\":\"c\"}",
    "header": "3{\"system\":\"x-anthropic-billing-header:;;a=b\",\"messages\":[{\"role\":\"assistant\",\"content\":[]}]}",
}


def main():
    HERE.mkdir(parents=True, exist_ok=True)
    for old in HERE.iterdir():
        old.unlink()
    for path in sorted((ROOT / "serve" / "golden").glob("*.txt")):
        request = path.read_text(encoding="utf-8").split("--- request\n")[1].split("--- script\n")[0].strip()
        dialect = next(i for i, d in enumerate(DIALECTS) if path.stem.startswith(d + "_"))
        (HERE / f"golden_{path.stem}").write_text(f"{dialect}{request}", encoding="utf-8")
        (HERE / f"stream_{path.stem}").write_text(f"{dialect}{request[:-1]},\"stream\":true}}", encoding="utf-8")
    text = (ROOT / "serve" / "dialect_cases.h").read_text(encoding="utf-8")
    for i, m in enumerate(re.finditer(r'\{ DIALECT_([A-Z_]+),\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', text)):
        body = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', m[2])).replace("\\\\", "\\").replace("'", '"')
        (HERE / f"case_{i:03}").write_text(f"{DIALECTS.index(m[1].lower())}{body}", encoding="utf-8")
    for name, body in ODD.items():
        (HERE / f"odd_{name}").write_text(body, encoding="utf-8")


main()
