#!/usr/bin/env python3
"""Text of answers as requests shape it, over the wire: sampling, stops, limits, several choices, log-probabilities,
forms, calls, reasoning and its budget, continuing, and the prefix cache as a client sees it.

    python3 tests/serve/test_text.py [-v] [TestName.test_name ...]

The last line is 'N passed, N failed'."""
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helper import *

S = None
WEATHER = {"type": "function",
           "function": {"name": "get_weather", "description": "The weather of a place", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]},
                                     "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"], "additionalProperties": False}}}
TIME = {"type": "function",
        "function": {"name": "get_time",
                     "parameters": {"type": "object", "properties": {"utc": {"type": "boolean"}}, "required": ["utc"]}}}


def setUpModule():
    global S
    # By itself it may find that plain decoding pays on this machine, and then nothing is drafted.
    S = Server("--cache-min-tokens", "16", "--budget", "12")


def tearDownModule():
    code = S.stop()
    if code != 0:
        raise AssertionError("exit status %d: %s" % (code, S.log[-3000:]))


# Thinks when told to, and drops the reasoning with the next turn.
REASONS = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
           "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% if not enable_thinking %}\n</think>\n\n{% "
           "endif %}{% endif %}")


def ask(text="def add(a, b):", **more):
    return S.json(CHAT, chat(text, **{"max_tokens": 40, "ignore_eos": True, **more}))


def text_of(j, i=0):
    return j["choices"][i]["message"]["content"]


def streamed(body, path=CHAT):
    status, _, text = S.post(path, {**body, "stream": True})
    if status != 200:
        raise AssertionError("%d %s" % (status, text))
    return events(text)


class Sampling(unittest.TestCase):
    def test_stream_is_the_same_text(self):
        for more in ({}, {"temperature": 1, "seed": 5}, {"stop": ["\n"]}):
            body = chat("import os", max_tokens=60, ignore_eos=True, **more)
            whole = S.json(CHAT, body)
            parts = streamed({**body, "stream_options": {"include_usage": True}})
            self.assertEqual("".join(p["choices"][0]["delta"].get("content") or "" for p in parts[:-1] if p["choices"]),
                             text_of(whole))
            self.assertEqual(parts[-1], "[DONE]")
            self.assertEqual(parts[-2]["choices"], [])
            self.assertEqual(parts[-2]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])

    def test_seeds(self):
        self.assertEqual(text_of(ask(temperature=1, seed=1, top_p=0)), text_of(ask(temperature=0)))
        a, b, c = (text_of(ask(temperature=1, seed=s)) for s in (1, 1, 2))
        self.assertEqual(a, b)
        self.assertNotEqual(a, c)
        drawn = ask(temperature=1)
        self.assertEqual(text_of(drawn), text_of(ask(temperature=1, seed=drawn["seed"])))

    def test_several_choices(self):
        j = ask(n=3, temperature=1, seed=10)
        for i in range(3):
            self.assertEqual(text_of(j, i), text_of(ask(temperature=1, seed=10 + i)))
        self.assertEqual(j["usage"]["completion_tokens"], 120)
        same = ask(n=2)
        self.assertEqual(text_of(same, 0), text_of(same, 1))
        by = {}
        for p in streamed(chat("def add(a, b):", max_tokens=40, ignore_eos=True, n=3, temperature=1, seed=10))[:-1]:
            for c in p["choices"]:
                by[c["index"]] = by.get(c["index"], "") + (c["delta"].get("content") or "")
        self.assertEqual([by[i] for i in range(3)], [text_of(j, i) for i in range(3)])

    def test_more_choices_than_sessions(self):
        server = Server("--parallel", "2", "--max-n", "6")
        try:
            j = server.json(CHAT, chat("x = 1", n=6, temperature=1, seed=1, max_tokens=10, ignore_eos=True))
            self.assertEqual(len({c["message"]["content"] for c in j["choices"]} | {"x"}),
                             1 + len({c["message"]["content"] for c in j["choices"]}))
            self.assertEqual([c["index"] for c in j["choices"]], list(range(6)))
        finally:
            self.assertEqual(server.stop(), 0)

    def test_stop_strings(self):
        whole = text_of(ask())
        for a, b in ((5, 8), (10, 11), (0, 3)):
            stop = whole[a:b]
            j = ask(stop=["never there", stop])
            self.assertEqual(text_of(j) or "", whole[:whole.index(stop)])
            self.assertEqual(j["choices"][0]["finish_reason"], "stop")
        m = S.json("/v1/messages",
                   {"messages": [{"role": "user", "content": "def add(a, b):"}], "max_tokens": 40,
                    "stop_sequences": [whole[5:8]]})
        self.assertEqual((m["stop_reason"], m["stop_sequence"]), ("stop_sequence", whole[5:8]))

    def test_bias_and_limits(self):
        first = S.json("/tokenize", {"content": text_of(ask(max_tokens=1))})["tokens"][0]
        j = ask(max_tokens=1, logit_bias={str(first): -100})
        self.assertNotEqual(text_of(j), text_of(ask(max_tokens=1)))
        self.assertEqual(j["choices"][0]["finish_reason"], "length")
        none = ask(max_tokens=0)
        self.assertEqual((none["usage"]["completion_tokens"], none["choices"][0]["finish_reason"]), (0, "length"))
        full = ask(max_tokens=-1)
        self.assertEqual(full["usage"]["total_tokens"], 2048)
        self.assertEqual(full["choices"][0]["finish_reason"], "length")

    def test_context_boundary(self):
        def prompt(n):
            return {"prompt": [100] * n, "max_tokens": 4, "ignore_eos": True}
        self.assertEqual(S.json("/v1/completions", prompt(2047))["usage"]["completion_tokens"], 1)
        self.assertEqual(S.json("/v1/completions", prompt(2044))["usage"]["completion_tokens"], 4)
        for n in (2048, 2049, 5000):
            status, _, body = S.post("/v1/completions", prompt(n))
            self.assertEqual((status, json.loads(body)["error"]["code"]), (400, "context_length_exceeded"))
        status, _, body = S.post("/v1/messages",
                                 {"messages": [{"role": "user", "content": "a b " * 2000}], "max_tokens": 5})
        self.assertRegex(json.loads(body)["error"]["message"], r"^prompt is too long: \d+ tokens > 2048 maximum")

    def test_completions(self):
        j = S.json("/v1/completions",
                   {"prompt": ["def a():", [100, 101, 102]], "max_tokens": 5, "ignore_eos": True, "n": 2,
                    "temperature": 1, "seed": 1})
        self.assertEqual([c["index"] for c in j["choices"]], [0, 1, 2, 3])
        one = S.json("/v1/completions",
                     {"prompt": "def a():", "max_tokens": 5, "ignore_eos": True, "temperature": 1, "seed": 2})
        self.assertEqual(j["choices"][1]["text"], one["choices"][0]["text"])
        for bad in (-1, 4096, 10 ** 7):
            self.assertEqual(S.post("/v1/completions", {"prompt": [bad]})[0], 400)


class Honest(unittest.TestCase):
    """What a request may ask for beside the text."""

    def test_speculation_off(self):
        usual, plain = ask(max_tokens=60), ask(max_tokens=60, speculative={"mode": "off"})
        self.assertEqual(plain["choices"], usual["choices"])
        self.assertEqual(plain["timings"]["draft_n"], 0)
        self.assertGreater(usual["timings"]["draft_n"], 0)
        self.assertNotIn("ignored", plain)
        self.assertEqual(ask(max_tokens=5, speculative={"budget": 9, "mode": "chain"})["ignored"],
                         ["speculative.budget", "speculative.mode"])

    def test_special_tokens_are_shown(self):
        bos = S.json("/tokenize", {"content": "<|im_start|>"})["tokens"][0]
        body = {"prompt": "a", "max_tokens": 3, "ignore_eos": True, "logit_bias": {str(bos): 100}}
        self.assertEqual(S.json("/v1/completions", body)["choices"][0]["text"], "")
        self.assertEqual(S.json("/v1/completions", {**body, "special": True})["choices"][0]["text"], "<|im_start|>" * 3)

    def test_progress(self):
        parts = streamed(chat("return " * 900, max_tokens=2, return_progress=True, prefix_cache={"scope": "off"}))
        seen = [p["prompt_progress"] for p in parts[:-1] if "prompt_progress" in p]
        self.assertGreater(len(seen), 2)
        self.assertEqual(sorted(x["processed"] for x in seen), [x["processed"] for x in seen])

    def test_tokens_returned(self):
        j = S.json("/v1/completions", {"prompt": "def f", "max_tokens": 9, "ignore_eos": True, "return_tokens": True})
        ids = j["choices"][0].get("tokens") or j.get("tokens")
        self.assertEqual(S.json("/detokenize", {"tokens": ids})["content"], j["choices"][0]["text"])


class Logprobs(unittest.TestCase):
    def test_chat(self):
        j = ask(logprobs=True, top_logprobs=5)
        content = j["choices"][0]["logprobs"]["content"]
        self.assertEqual("".join(bytes(t["bytes"]).decode("utf-8", "replace") for t in content), text_of(j))
        self.assertEqual(len(content), 40)
        for t in content:
            self.assertEqual(len(t["top_logprobs"]), 5)
            self.assertAlmostEqual(t["logprob"], t["top_logprobs"][0]["logprob"])      # greedy
            self.assertLessEqual(sum(math.exp(x["logprob"]) for x in t["top_logprobs"]), 1.0001)
        again = []
        for p in streamed(chat("def add(a, b):", max_tokens=40, ignore_eos=True, logprobs=True, top_logprobs=5))[:-1]:
            again += ((p["choices"][0].get("logprobs") or {}).get("content") or []) if p["choices"] else []
        self.assertEqual(again, content)

    def test_scoring(self):
        """echo with log-probabilities: the prompt's are those that generating it gave."""
        made = S.json("/v1/completions",
                      {"prompt": "def add(a, b):", "max_tokens": 20, "ignore_eos": True, "logprobs": 2})["choices"][0]
        scored = S.json("/v1/completions",
                        {"prompt": "def add(a, b):" + made["text"], "max_tokens": 0, "echo": True,
                         "logprobs": 2})["choices"][0]
        self.assertEqual(scored["text"], "def add(a, b):" + made["text"])
        lp = scored["logprobs"]
        self.assertIsNone(lp["token_logprobs"][0])
        if lp["tokens"][-20:] == made["logprobs"]["tokens"]:           # the text was tokenized the same way again
            self.assertEqual(lp["token_logprobs"][-20:], made["logprobs"]["token_logprobs"])
        self.assertEqual("".join(lp["tokens"]), scored["text"])


class Forms(unittest.TestCase):
    SCHEMA = {"type": "object",
              "properties": {"name": {"type": "string", "maxLength": 10},
                             "age": {"type": "integer", "minimum": 0, "maximum": 99}},
              "required": ["name", "age"], "additionalProperties": False}

    def valid(self, text):
        j = json.loads(text)
        self.assertEqual(set(j), {"name", "age"})
        self.assertLessEqual(len(j["name"]), 10)
        self.assertTrue(0 <= j["age"] <= 99)

    def test_schema_in_each_dialect(self):
        flat = {"type": "json_schema", "name": "x", "schema": self.SCHEMA}
        for temperature in (0, 1):
            more = {"temperature": temperature, "seed": 3}
            j = S.json(CHAT, chat("A person", max_tokens=300,
                                  response_format={"type": "json_schema",
                                                   "json_schema": {"name": "x", "schema": self.SCHEMA}}, **more))
            self.valid(text_of(j))
            self.assertEqual(j["choices"][0]["finish_reason"], "stop")
            r = S.json("/v1/responses",
                       {"input": "A person", "max_output_tokens": 300, "text": {"format": flat},
                        "temperature": temperature})
            self.valid(r["output"][0]["content"][0]["text"])
            m = S.json("/v1/messages",
                       {"messages": [{"role": "user", "content": "A person"}], "max_tokens": 300,
                        "output_config": {"format": {"type": "json_schema", "schema": self.SCHEMA}}})
            self.valid(m["content"][0]["text"])

    def test_grammar(self):
        j = S.json(CHAT, chat("Yes or no?", max_tokens=20, grammar='root ::= "yes" | "no"'))
        self.assertIn(text_of(j), ("yes", "no"))
        self.assertEqual(S.post(CHAT, chat("a", grammar="root ::= (")) [0], 400)
        self.assertEqual(S.post(CHAT,
                                chat("a", response_format={"type": "json_schema",
                                                           "json_schema": {"name": "x", "schema": {"not": {}}}}))[0],
                                                           400)

    def test_guided(self):
        """vLLM's fields, in both of its forms."""
        for more, fits in (({"guided_choice": ['"a" or b', "c\\d"]}, r'"a" or b|c\\d'),
                           ({"guided_regex": r"[a-f]{3}-\d{2,4}"}, r"[a-f]{3}-\d{2,4}"),
                           ({"guided_grammar": 'root ::= "yes" | "no"'}, "yes|no"),
                           ({"structured_outputs": {"regex": r"^\d+$"}, "max_tokens": 3}, r"\d+"),
                           ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green")):
            for path in (CHAT, "/v1/completions"):
                with self.subTest("%s in %s" % (more, path)):
                    body = {"max_tokens": 30, "temperature": 1, "seed": 1, **more}
                    j = S.json(path, {"prompt": "A colour:", **body} if path != CHAT else chat("A colour:", **body))
                    self.assertRegex(text_of(j) if path == CHAT else j["choices"][0]["text"], "^(?:%s)$" % fits)
                    self.assertNotIn("ignored", j)
        for more in ({"guided_json": json.dumps(self.SCHEMA)}, {"structured_outputs": {"json": self.SCHEMA}}):
            self.valid(text_of(S.json(CHAT, chat("A person", max_tokens=300, **more))))
        for more, word in (({"guided_regex": r"a\bb"}, "word boundaries"), ({"guided_regex": "("}, "no end"),
                           ({"guided_json": {"not": {}}}, "not"), ({"guided_grammar": "start: a"}, "guided_grammar"),
                           ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex")):
            status, _, body = S.post(CHAT, chat("a", **more))
            self.assertEqual(status, 400, more)
            e = json.loads(body)["error"]
            self.assertEqual(e["param"].split(".")[0], list(more)[0])
            self.assertIn(word, e["message"])

    def test_json_object(self):
        j = S.json(CHAT, chat("An object", max_tokens=400, response_format={"type": "json_object"}, temperature=1,
                              seed=1))
        if j["choices"][0]["finish_reason"] == "stop":
            self.assertIsInstance(json.loads(text_of(j)), dict)


class Calls(unittest.TestCase):
    def valid(self, name, arguments):
        if name == "get_weather":
            self.assertIn(arguments["city"], ("Oslo", "Rome"))
            self.assertTrue(1 <= arguments["days"] <= 9)
        else:
            self.assertEqual(name, "get_time")
            self.assertIsInstance(arguments["utc"], bool)

    def test_forced(self):
        for choice, allowed in (("required", {"get_weather", "get_time"}),
                                ({"type": "function", "function": {"name": "get_weather"}}, {"get_weather"})):
            for more in ({}, {"temperature": 1, "seed": 4}):
                body = chat("What now?", max_tokens=200, tools=[WEATHER, TIME], tool_choice=choice,
                            parallel_tool_calls=False, **more)
                j = S.json(CHAT, body)
                (call,) = j["choices"][0]["message"]["tool_calls"]
                self.assertEqual(j["choices"][0]["finish_reason"], "tool_calls")
                self.assertIn(call["function"]["name"], allowed)
                self.valid(call["function"]["name"], json.loads(call["function"]["arguments"]))
                parts = streamed(body)
                deltas = [d for p in parts[:-1] if p["choices"] for d in p["choices"][0]["delta"].get("tool_calls")
                          or []]
                self.assertEqual("".join(d["function"].get("arguments") or "" for d in deltas),
                                 call["function"]["arguments"])
                self.assertEqual([d["function"]["name"] for d in deltas if d["function"].get("name")],
                                 [call["function"]["name"]])

    def test_other_dialects(self):
        m = S.json("/v1/messages",
                   {"messages": [{"role": "user", "content": "What now?"}], "max_tokens": 200,
                    "tool_choice": {"type": "tool", "name": "get_weather"},
                                    "tools": [{"name": "get_weather",
                                               "input_schema": WEATHER["function"]["parameters"]}]})
        self.assertEqual(m["stop_reason"], "tool_use")
        self.valid("get_weather", [b for b in m["content"] if b["type"] == "tool_use"][0]["input"])
        r = S.json("/v1/responses",
                   {"input": "What now?", "max_output_tokens": 200, "tool_choice": "required",
                    "parallel_tool_calls": False,
                                     "tools": [{"type": "function", "name": "get_time",
                                                "parameters": TIME["function"]["parameters"]}]})
        (call,) = [o for o in r["output"] if o["type"] == "function_call"]
        self.valid("get_time", json.loads(call["arguments"]))

    def test_cut_off(self):
        """Clients run whatever they can parse: the arguments of a call that a limit cuts off must never look
        complete."""
        whole = chat("What now?", max_tokens=200, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
        tokens = S.json(CHAT, whole)["usage"]["completion_tokens"]
        tool = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"],
                "parameters": WEATHER["function"]["parameters"], "type": "function"}
        cut = 0
        for limit in range(tokens - 25, tokens - 8):
            parts = streamed({**whole, "max_tokens": limit})
            deltas = [d for p in parts[:-1] if p["choices"] for d in p["choices"][0]["delta"].get("tool_calls") or []]
            reason = [p["choices"][0]["finish_reason"] for p in parts[:-1] if p["choices"]][-1]
            choice = S.json(CHAT, {**whole, "max_tokens": limit})["choices"][0]
            self.assertEqual((choice["finish_reason"], reason), ("length", "length"))
            if not deltas:
                continue
            cut += 1
            arguments = "".join(d["function"].get("arguments") or "" for d in deltas)
            self.assertTrue(arguments.startswith("{"), arguments)
            with self.assertRaises(ValueError):
                json.loads(arguments)
            self.assertFalse(choice["message"].get("tool_calls"))
            other = {"max_tokens": limit, "tools": [{k: tool[k] for k in ("name", "input_schema")}],
                     "tool_choice": {"type": "any"}}
            m = S.json("/v1/messages", {"messages": whole["messages"], **other})
            self.assertEqual((m["stop_reason"], [b["type"] for b in m["content"] if b["type"] == "tool_use"]),
                             ("max_tokens", []))
            r = S.json("/v1/responses",
                       {"input": "What now?", "max_output_tokens": limit,
                        "tools": [{k: tool[k] for k in ("type", "name", "parameters")}],
                                         "tool_choice": "required"})
            (call,) = [o for o in r["output"] if o["type"] == "function_call"]
            self.assertEqual((r["status"], call["status"], call["arguments"]), ("incomplete", "incomplete", arguments))
            again = {"input": "Go on", "previous_response_id": r["id"], "max_output_tokens": 1}
            self.assertEqual(S.post("/v1/responses", again)[0], 200)   # a history with such a call is accepted
        self.assertGreater(cut, 8)

    def test_cut_by_its_own_end(self):
        """A turn that ends within a call is like one that a limit cuts: no client gets a call that it could run."""
        whole = '<tool_call>\n{"name": "get_time", "arguments": {"utc": true}}\n</tool_call>\n'
        half = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Os'
        arguments = '{"city": "Os'
        weather = {"name": "get_weather", "parameters": WEATHER["function"]["parameters"]}
        for text, names in ((half, []), (whole + half, ["get_time"]), (whole.rstrip()[:-12], ["get_time"])):
            cut = text.endswith(half)
            held = {"max_tokens": 200, "grammar": "root ::= " + json.dumps(text)}
            body = chat("What now?", tools=[WEATHER, TIME], **held)
            choice = S.json(CHAT, body)["choices"][0]
            reason = "tool_calls" if names else "stop"
            self.assertEqual(([c["function"]["name"] for c in choice["message"].get("tool_calls", [])],
                              choice["finish_reason"]), (names, reason))
            parts = [p["choices"][0] for p in streamed(body)[:-1] if p["choices"]]
            last = {}
            for d in (d for p in parts for d in p["delta"].get("tool_calls") or []):
                last[d["index"]] = last.get(d["index"], "") + d["function"].get("arguments", "")
            self.assertEqual((list(last.values())[len(names):], parts[-1]["finish_reason"]),
                             ([arguments] if cut else [], reason))
            old = {**body, "functions": [weather, TIME["function"]]}
            choice = S.json(CHAT, {k: v for k, v in old.items() if k != "tools"})["choices"][0]
            self.assertEqual(("function_call" in choice["message"], choice["finish_reason"]),
                             (bool(names), "function_call" if names else "stop"))
            tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]}
                     for t in (WEATHER, TIME)]
            m = S.json("/v1/messages", {"messages": body["messages"], "tools": tools, **held})
            self.assertEqual(([b["name"] for b in m["content"] if b["type"] == "tool_use"], m["stop_reason"]),
                             (names, "tool_use" if names else "end_turn"))
            r = S.json("/v1/responses", {"input": "What now?", "max_output_tokens": 200, "grammar": held["grammar"],
                                         "tools": [{"type": "function", **weather},
                                                   {"type": "function", **TIME["function"]}]})
            calls = [(c["status"], c["arguments"]) for c in r["output"] if c["type"] == "function_call"]
            self.assertEqual((r["status"], calls[len(names):]),
                             ("completed", [("incomplete", arguments)] if cut else []))

    def test_zero_in_a_string(self):
        """What we sent comes back: a response with a zero in its text is stored and continued."""
        call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "O", "city": "O\\u0000slo"}}\n</tool_call>'
        tool = {"type": "function", "name": "get_weather", "parameters": WEATHER["function"]["parameters"]}
        r = S.json("/v1/responses", {"input": "What now?", "max_output_tokens": 100, "tools": [tool],
                                     "grammar": "root ::= " + json.dumps(call)})
        self.assertEqual(json.loads(r["output"][-1]["arguments"]), {"city": "O\0slo"})
        shell = '<tool_call>\n{"name": "local_shell", "arguments": {"command": ["a\\u0000b"]}}\n</tool_call>'
        r = S.json("/v1/responses", {"input": "What now?", "max_output_tokens": 100, "tools": [{"type": "local_shell"}],
                                     "grammar": "root ::= " + json.dumps(shell)})
        self.assertEqual(r["output"][-1]["action"]["command"], ["a\0b"])
        self.assertEqual(S.json("/v1/responses/" + r["id"])["output"], r["output"])
        output = {"type": "local_shell_call_output", "call_id": r["output"][-1]["call_id"], "output": "none\0"}
        S.json("/v1/responses", {"input": [output], "previous_response_id": r["id"], "max_output_tokens": 1})
        S.json("/v1/responses", {"input": [{"role": "user", "content": "What now?"}, *r["output"], output],
                                 "max_output_tokens": 1})

    def test_const(self):
        only = {"type": "function",
                "function": {"name": "mode",
                             "parameters": {"type": "object",
                                            "properties": {"to": {"type": "string", "const": "north-west"}},
                                                                                "required": ["to"]}}}
        j = S.json(CHAT, chat("What now?", max_tokens=100, tools=[only], tool_choice="required",
                              parallel_tool_calls=False))
        self.assertEqual(json.loads(j["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]),
                         {"to": "north-west"})

    # The demo model continues the pattern of these turns, and opens a call by itself.
    HABIT = [m for _ in range(4) for m in ({"role": "user", "content": "Weather?"}, {"role": "assistant", "content":
             '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berlin", "days": 55}}\n</tool_call>'})] + [{"role": "user", "content": "Weather?"}]

    def strict(self, strict=True, **more):
        tool = {"type": "function", "function": {**WEATHER["function"], "strict": strict}}
        return {"messages": self.HABIT, "tools": [tool], "max_tokens": 200, **more}

    def check_strict(self, message):
        self.assertTrue(message["tool_calls"])
        for c in message["tool_calls"]:
            arguments = json.loads(c["function"]["arguments"])
            if c["function"]["name"] == "get_weather":             # the other tool is not strict
                self.valid("get_weather", arguments)

    def test_strict(self):
        free = S.json(CHAT, self.strict(False))["choices"][0]["message"]
        self.assertFalse(free.get("tool_calls"))               # it cannot by itself
        mixed = self.strict()["tools"] + [TIME]
        for more in ({"tools": mixed, "temperature": 0.7, "seed": 4}, {"parallel_tool_calls": False},
                     {"temperature": 0.3, "seed": 3, "parallel_tool_calls": False}):
            body = self.strict(**more)
            j = S.json(CHAT, body)
            message = j["choices"][0]["message"]
            self.assertNotIn("ignored", j)
            calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]
            self.check_strict(message)
            alone = S.json(CHAT, {**body, "speculative": {"mode": "off"}})["choices"][0]["message"]
            self.assertEqual((alone["content"],
                              [(c["function"]["name"], c["function"]["arguments"]) for c in alone["tool_calls"]]),
                              (message["content"], calls))
            if "tools" not in more:
                self.assertEqual((len(calls), j["choices"][0]["finish_reason"]), (1, "tool_calls"))
            deltas = [d for p in streamed(body)[:-1] if p["choices"] for d in p["choices"][0]["delta"].get("tool_calls")
                      or []]
            self.assertEqual("".join(d["function"].get("arguments") or "" for d in deltas),
                             "".join(a for _, a in calls))

    def test_strict_leaves_text_alone(self):
        for more in ({}, {"temperature": 1, "seed": 8}, {"stop": ["\n"]}):
            body = chat("def add(a, b):", max_tokens=80, ignore_eos=True, **more)
            self.assertEqual(text_of(S.json(CHAT, {**body, "tools": self.strict()["tools"]})),
                             text_of(S.json(CHAT, {**body, "tools": self.strict(False)["tools"]})))

    def test_strict_beside_forms(self):
        j = S.json(CHAT, self.strict(tool_choice="required"))  # the text after the forced call is constrained as well
        self.check_strict(j["choices"][0]["message"])
        j = S.json(CHAT, self.strict(grammar='root ::= "no"'))
        self.assertEqual(text_of(j), "no")
        bad = {**WEATHER["function"], "strict": True,
               "parameters": {"type": "object", "properties": {"a": {"type": "integer", "not": {}}}}}
        status, _, body = S.post(CHAT, chat("a", tools=[{"type": "function", "function": bad}]))
        self.assertEqual((status, json.loads(body)["error"]["param"]), (400, "tools"))
        self.assertIn("#/properties/a/not", json.loads(body)["error"]["message"])

    def test_forced_call_may_be_followed(self):
        # its closing mark is part of the form; the turn continues nevertheless
        server = Server("--tool-format", "laguna")
        try:
            body = chat("What now?", max_tokens=120, ignore_eos=True, tools=[WEATHER], tool_choice="required")
            more = server.json(CHAT, body)["choices"][0]
            one = server.json(CHAT, {**body, "parallel_tool_calls": False})["choices"][0]
            self.assertEqual((more["finish_reason"], one["finish_reason"]), ("length", "tool_calls"))
            for c in (more, one):
                self.valid("get_weather", json.loads(c["message"]["tool_calls"][0]["function"]["arguments"]))
        finally:
            self.assertEqual(server.stop(), 0)

    def test_none_and_unknown(self):
        j = S.json(CHAT, chat("What now?", max_tokens=30, tools=[WEATHER], tool_choice="none"))
        self.assertFalse(j["choices"][0]["message"].get("tool_calls"))
        self.assertEqual(S.post(CHAT,
                                chat("a", tools=[WEATHER],
                                     tool_choice={"type": "function", "function": {"name": "nobody"}}))[0], 400)

    def test_round_trip(self):
        """The second turn returns the call with its arguments spelled differently; the prompt nevertheless continues
        from the very same tokens."""
        first = chat("What is the weather like in the north these days, and for how long will it last?", max_tokens=200,
                     tools=[WEATHER],
                     tool_choice={"type": "function", "function": {"name": "get_weather"}})
        j = S.json(CHAT, first)
        (call,) = j["choices"][0]["message"]["tool_calls"]
        shuffled = dict(reversed(list(json.loads(call["function"]["arguments"]).items())))
        call["function"]["arguments"] = json.dumps(shuffled, indent=3)
        second = {**first, "tool_choice": "auto", "max_tokens": 10,
                  "messages": first["messages"]
                  + [j["choices"][0]["message"], {"role": "tool", "tool_call_id": call["id"], "content": "rain"}]}
        k = S.json(CHAT, second)
        cached, whole = k["usage"]["prompt_tokens_details"]["cached_tokens"], j["usage"]["total_tokens"]
        self.assertGreaterEqual(cached, whole - 8)  # all except the forced end of the call, which no pass has read
        self.assertGreater(cached, j["usage"]["prompt_tokens"] + 5)
        call["function"]["name"] = "get_time"      # an edited history is taken as given
        k = S.json(CHAT, second)
        self.assertLess(k["usage"]["prompt_tokens_details"]["cached_tokens"], j["usage"]["prompt_tokens"])


class Reasoning(unittest.TestCase):
    def opened(self, **more):
        """The demo's template has no reasoning, but an answer that is continued may be in the middle of it."""
        return S.json(CHAT, {"messages": [{"role": "user", "content": "def f"},
                                          {"role": "assistant", "content": "<think>\n"}],
                                          "continue_final_message": True,
                             "max_tokens": 60, "ignore_eos": True, **more})

    def test_budget(self):
        j = self.opened(reasoning={"max_tokens": 12})
        c = j["choices"][0]
        # The small model may begin to reason again, which is ended at once: so this looks at the text, not at the
        # count.
        self.assertTrue(10 <= S.json("/tokenize", {"content": c["message"]["reasoning_content"]})["count"] <= 16)
        self.assertTrue(c["message"]["content"])
        self.assertEqual(c["finish_details"]["close_kind"], "hard")
        free = self.opened()
        self.assertEqual(free["usage"]["completion_tokens_details"]["reasoning_tokens"], 60)

    def test_form_after_reasoning(self):
        j = self.opened(reasoning={"max_tokens": 8}, max_tokens=200, ignore_eos=False, grammar='root ::= "yes" | "no"')
        self.assertIn(j["choices"][0]["message"]["content"], ("yes", "no"))
        self.assertTrue(j["choices"][0]["message"]["reasoning_content"])

    def test_exact_with_and_without_speculation(self):
        plain = Server("-d", "none", "--ngram", "off", "--parallel", "1", "--cache-ram", "0")
        try:
            for more in (dict(reasoning={"max_tokens": 12}),
                         dict(reasoning={"max_tokens": 9}, max_tokens=200, ignore_eos=False,
                              grammar='root ::= "yes" | "no"'),
                         dict(reasoning={"max_tokens": 10}, temperature=1, seed=3)):
                body = {"messages": [{"role": "user", "content": "def f"},
                                     {"role": "assistant", "content": "<think>\n"}], "continue_final_message": True,
                        "max_tokens": 60, "ignore_eos": True, **more}
                self.assertEqual(S.json(CHAT, body)["choices"], plain.json(CHAT, body)["choices"])
        finally:
            self.assertEqual(plain.stop(), 0)


class GoingOn(unittest.TestCase):
    def test_continue(self):
        whole = text_of(ask("x = 3", max_tokens=30))
        cut = whole[:len(whole) // 2]
        j = S.json(CHAT, {"messages": [{"role": "user", "content": "x = 3"}, {"role": "assistant", "content": cut}],
                          "continue_final_message": True, "max_tokens": 5,
                          "ignore_eos": True})
        self.assertTrue((cut + text_of(j)).startswith(cut))
        both = {"messages": [{"role": "user", "content": "x = 3"}, {"role": "assistant", "content": cut}],
                "max_tokens": 5, "ignore_eos": True, "add_generation_prompt": False}
        # as clients of Open WebUI and vLLM write it
        self.assertEqual(text_of(S.json(CHAT, {**both, "continue_final_message": True})), text_of(j))
        self.assertEqual(json.loads(S.post(CHAT, both)[2])["error"]["param"], "add_generation_prompt")

    def test_turns_are_not_read_again(self):
        messages = [{"role": "system", "content": "You write code. " * 20},
                    {"role": "user", "content": "def first(a):"}]
        for turn in range(4):
            j = S.json(CHAT, {"messages": messages, "max_tokens": 30})
            cached, prompt = j["usage"]["prompt_tokens_details"]["cached_tokens"], j["usage"]["prompt_tokens"]
            if turn:
                self.assertGreaterEqual(cached, before - 3)
            before = prompt
            messages += [j["choices"][0]["message"], {"role": "user", "content": "and then %d?" % turn}]

    def test_figures(self):
        """Choices share a prompt, tokens not read again are counted, and a length equal to a bound belongs to its
        bucket."""
        server = Server("-d", "none", "--ngram", "off", "--cache-min-tokens", "16")
        try:
            body, prompt, cached = chat("def first(a): " * 8, n=3, max_tokens=5, ignore_eos=True), 0, 0
            for turn in range(2):
                usage = server.json(CHAT, body)["usage"]
                prompt += usage["prompt_tokens"]
                cached += usage["prompt_tokens_details"]["cached_tokens"]
            m = server.metrics()
            self.assertGreater(cached, 0)
            self.assertEqual((m["ratoon_prompt_tokens_total"], m["ratoon_prompt_tokens_cached_total"]),
                             (prompt, cached))
            self.assertEqual(m['ratoon_accept_length_bucket{le="1"}'], 6)      # plain decoding: one token a pass
        finally:
            self.assertEqual(server.stop(), 0)

    def test_after_a_stop_string(self):
        """The part of a block after a stop string is taken back: the last token is the root, still to be computed."""
        asked = {**chat("def halves(a, b):", max_tokens=48, ignore_eos=True), "return_tokens": True}
        tokens = S.json(CHAT, {**asked, "cache_prompt": False})["choices"][0]["tokens"]
        pieces = [S.json("/detokenize", {"tokens": [t]})["content"] for t in tokens]
        found = 0
        for k in range(2, len(pieces)):
            stop = pieces[k]
            before = "".join(pieces[:k])
            if not stop.strip() or (before + stop).index(stop) != len(before):
                continue
            j = S.json(CHAT, {**asked, "stop": [stop]})
            self.assertEqual((text_of(j), j["usage"]["completion_tokens"]), (before, k))
            more = [j["choices"][0]["message"], {"role": "user", "content": "go on %d" % k}]
            usage = S.json(CHAT, {"messages": asked["messages"] + more, "max_tokens": 2})["usage"]
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], j["usage"]["total_tokens"] - 1)
            found += 1
        self.assertGreater(found, 3)

    def test_many_conversations(self):
        """More conversations than sessions: each continues from the cache and gets the answers that it would have got
        alone."""
        plain = Server("-d", "none", "--ngram", "off", "--parallel", "1", "--cache-ram", "0")
        try:
            talks = [[{"role": "user", "content": "class Number%d: " % i * 8}] for i in range(9)]
            for turn in range(3):
                for t in talks:
                    j = S.json(CHAT, {"messages": t, "max_tokens": 20})
                    self.assertEqual(j["choices"], plain.json(CHAT, {"messages": t, "max_tokens": 20})["choices"])
                    if turn:
                        self.assertGreater(j["usage"]["prompt_tokens_details"]["cached_tokens"], 40)
                    t += [j["choices"][0]["message"], {"role": "user", "content": "go on"}]
        finally:
            self.assertEqual(plain.stop(), 0)

    def test_an_answer_keeps_its_tokens(self):
        """An answer returns as text that would be tokenized differently: it is nevertheless continued, as from a prompt
        of the very same tokens."""
        plain = Server("-d", "none", "--ngram", "off", "--parallel", "1", "--cache-ram", "0")
        found = 0
        try:
            for seed in range(60):
                first = chat("Name %d. " % seed + "return self.name " * 8, max_tokens=24, temperature=1, seed=seed,
                             return_tokens=True)
                c = S.json(CHAT, first)["choices"][0]
                ids, text = c["tokens"], c["message"]["content"]
                if ids == S.json("/tokenize", {"content": text})["tokens"]:
                    continue
                second = {"messages": first["messages"] + [c["message"], {"role": "user", "content": "go on"}],
                          "max_tokens": 16}
                begin, whole = (S.json("/apply-template", b)["prompt"] for b in (first, second))
                self.assertTrue(whole.startswith(begin + text))
                if whole[len(begin + text):][:2] != "<|" or "\ufffd" in text:
                    continue
                head, tail, other = (S.json("/tokenize", {"content": t, "parse_special": True})["tokens"]
                                     for t in (begin, whole[len(begin + text):], whole))
                j = S.json(CHAT, second)
                if j["usage"]["prompt_tokens"] == len(other) and len(other) != len(head + ids + tail):
                    self.assertIn("<|", text)  # a control token in the answer is not accepted as one
                    continue
                self.assertEqual(j["usage"]["prompt_tokens"], len(head + ids + tail))
                self.assertGreaterEqual(j["usage"]["prompt_tokens_details"]["cached_tokens"], len(head + ids) - 1)
                want = plain.json("/v1/completions", {"prompt": head + ids + tail, "max_tokens": 16})
                self.assertEqual(text_of(j), want["choices"][0]["text"])
                plain.json(CHAT, first)  # a server with the same requests, without a cache
                self.assertEqual(plain.json(CHAT, second)["choices"], j["choices"])
                off = S.json(CHAT, {**second, "cache_prompt": False})
                self.assertEqual((off["usage"]["prompt_tokens"],
                                  off["usage"]["prompt_tokens_details"]["cached_tokens"]), (len(other), 0))
                # A prompt that cannot fit whatever its tokens are is refused before tokenizing, with an answer in it or
                # not.
                much = {**second, "messages": second["messages"][:-1] + [{"role": "user", "content": "word " * 100000}]}
                self.assertEqual(*(json.loads(S.post(CHAT, b)[2])["error"]["message"]
                                   for b in (much, {**much, "cache_prompt": False})))
                # The same words after another beginning are ordinary text.
                edited = [{"role": "user", "content": first["messages"][0]["content"] + "!"}] + second["messages"][1:]
                plain_edit, here = (x.json(CHAT, {"messages": edited, "max_tokens": 16}) for x in (plain, S))
                self.assertEqual(plain_edit["choices"], here["choices"])
                self.assertEqual(here["usage"]["prompt_tokens"],
                                 len(S.json("/tokenize",
                                            {"content": S.json("/apply-template", {"messages": edited})["prompt"],
                                             "parse_special": True})["tokens"]))
                found += 1
                if found == 4:
                    break
            self.assertGreaterEqual(found, 2)
        finally:
            self.assertEqual(plain.stop(), 0)

    def test_without_the_cache(self):
        """A request that opts out reads all of its prompt, leaves nothing behind, and takes over no conversation."""
        server = Server("--parallel", "1", "--cache-min-tokens", "16")
        cached = lambda **more: server.json(CHAT,
                                            {"max_tokens": 8, **more})["usage"]["prompt_tokens_details"]["cached_tokens"]
        try:
            talk, other = ([{"role": "user", "content": text * 30}] for text in ("class One: ", "class Two: "))
            self.assertEqual(cached(messages=talk), 0)
            for _ in range(2):
                self.assertEqual(cached(messages=other, prefix_cache={"scope": "off"}), 0)
            self.assertEqual(cached(messages=other), 0)
            self.assertGreater(cached(messages=talk), 60)
            self.assertGreater(cached(messages=other, prefix_cache={"scope": "full"}), 60)
            j = server.json(CHAT,
                            chat("x", max_tokens=1, prefix_cache={"scope": "auto:9/3", "window": 5}, session_id="s",
                                 prompt_cache_key="k"))
            self.assertEqual(set(j["ignored"]),
                             {"session_id", "prompt_cache_key", "prefix_cache.window", "prefix_cache.scope"})
        finally:
            self.assertEqual(server.stop(), 0)

    def test_dropped_reasoning(self):
        """The template shows no reasoning of earlier turns, so each turn continues from the end of the messages before:
        in its session, from memory if another conversation took the session meanwhile, and from disk after a
        restart."""
        folder = tempfile.mkdtemp(prefix="ratoon-serve-")
        model = with_template(DEMO, "reasons.gguf", REASONS)
        options = ["-m", model, "--cache-min-tokens", "16", "--reasoning", "on", "--parallel", "1"]
        plain = Server(*options, "-d", "none", "--ngram", "off", "--cache-ram", "0")
        server = Server(*options, "--cache-dir", os.path.join(folder, "new", "cache"))
        try:
            talk, before = [{"role": "system", "content": "You write code. " * 40},
                            {"role": "user", "content": "def f(x):"}], 0
            for turn in range(5):
                body = {"messages": talk, "max_tokens": 40, "reasoning": {"max_tokens": 12}, "ignore_eos": True}
                j = server.json(CHAT, body)
                self.assertEqual(j["choices"], plain.json(CHAT, body)["choices"])
                self.assertGreater(j["usage"]["completion_tokens_details"]["reasoning_tokens"], 5)
                cached, prompt = j["usage"]["prompt_tokens_details"]["cached_tokens"], j["usage"]["prompt_tokens"]
                if turn:
                    # all but the beginning of the answer
                    self.assertTrue(before - 12 <= cached <= before, (turn, cached, before))
                before = prompt
                talk += [{"role": "assistant", "content": text_of(j)},
                         {"role": "user", "content": "and then %d?" % turn}]
                if turn in (1, 2):
                    server.json(CHAT, {"messages": [{"role": "user", "content": "class Other%d: " % turn * 9}],
                                       "max_tokens": 4})
                if turn == 3:
                    self.assertGreaterEqual(server.metrics()['ratoon_snapshot_hits_total{tier="ram"}'], 2)
                    self.assertEqual(server.stop(), 0)
                    server = Server(*options, "--cache-dir", os.path.join(folder, "new", "cache"))
            self.assertEqual(server.metrics()['ratoon_snapshot_hits_total{tier="disk"}'], 1)
        finally:
            self.assertEqual(server.stop(), 0)
            self.assertEqual(plain.stop(), 0)
            shutil.rmtree(folder)

    def test_a_restart(self):
        folder = tempfile.mkdtemp(prefix="ratoon-serve-")
        options = ["--cache-dir", folder, "--cache-min-tokens", "16"]
        body = {"messages": [{"role": "system", "content": "You write code. " * 30},
                             {"role": "user", "content": "def f(x):"}], "max_tokens": 20}
        try:
            server = Server(*options)
            first = server.json(CHAT, body)
            self.assertEqual(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            self.assertEqual(server.stop(), 0)
            self.assertTrue(os.listdir(folder))
            server = Server(*options)
            second = server.json(CHAT, body)
            self.assertEqual(second["choices"], first["choices"])
            self.assertGreater(second["usage"]["prompt_tokens_details"]["cached_tokens"], 60)
            self.assertEqual(server.metrics()['ratoon_snapshot_hits_total{tier="disk"}'] >= 1, True)
            self.assertEqual(server.stop(), 0)
        finally:
            shutil.rmtree(folder)

    def test_the_oldest_response_goes(self):
        ids = []
        while len(ids) < 300 and (not ids or S.get("/v1/responses/" + ids[0])[0] == 200):
            ids.append(S.json("/v1/responses", {"input": "x = %d" % len(ids), "max_output_tokens": 1})["id"])
        self.assertLess(len(ids), 300)
        self.assertEqual([S.get("/v1/responses/" + i)[0] for i in ids], [404] + [200] * (len(ids) - 1))

    def test_items_by_reference(self):
        """The first item of a request's input, one in the middle, and the answer's."""
        items = [{"type": "message", "id": "msg_%d" % i, "role": "user", "content": "x = %d" % i} for i in range(3)]
        r = S.json("/v1/responses", {"input": items, "max_output_tokens": 3})
        for name, status in (("msg_0", 200), ("msg_1", 200), (r["output"][0]["id"], 200), ("msg_3", 400)):
            asked = [{"type": "item_reference", "id": name}, {"role": "user", "content": "go on"}]
            self.assertEqual(S.post("/v1/responses", {"input": asked, "max_output_tokens": 3})[0], status)

    def test_responses_are_stored(self):
        r = S.json("/v1/responses", {"input": "def f(x):", "max_output_tokens": 10})
        self.assertEqual(S.json("/v1/responses/" + r["id"])["output"], r["output"])
        follow = S.json("/v1/responses", {"input": "and?", "previous_response_id": r["id"], "max_output_tokens": 10})
        self.assertEqual(follow["previous_response_id"], r["id"])
        self.assertGreater(follow["usage"]["input_tokens"], r["usage"]["input_tokens"] + 5)
        status, _, body = S.post("/v1/responses", {"input": "and?", "previous_response_id": "resp_nowhere"})
        self.assertEqual((status, json.loads(body)["error"]["code"]), (400, "previous_response_not_found"))
        self.assertEqual(S.ask("DELETE", "/v1/responses/" + r["id"])[0], 200)
        self.assertEqual(S.get("/v1/responses/" + r["id"])[0], 404)
        self.assertEqual(S.ask("DELETE", "/v1/responses/" + r["id"])[0], 404)


class Documents(unittest.TestCase):
    def test_curl_lines(self):
        """Every curl line of README and doc/serving.md, against this server."""
        if not shutil.which("curl"):
            self.skipTest("no curl")
        lines = []
        for name in ("README.md", "doc/serving.md"):
            with open(os.path.join(ROOT, name)) as f:
                lines += [l.strip() for l in f if l.startswith("curl ")]
        self.assertGreater(len(lines), 5)
        for line in lines:
            p = subprocess.run(line.replace("http://127.0.0.1:8080", S.url).replace("curl ", "curl -sS --fail-with-body ", 1), shell=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, timeout=LIMIT)
            self.assertEqual(p.returncode, 0, (line, p.stdout, p.stderr))
            self.assertRegex(p.stdout, r"choices|content|output")


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
