#!/usr/bin/env python3
"""llama.cpp's own endpoints on the demo pair, as plain HTTP clients and editors use them: /completion and /infill with
their fields, their answers and their errors.

    python3 tests/serve/test_llama.py [-v] [TestName.test_name ...]

The demo model has no tokens to fill in text with: a copy of it says that three of its control tokens are those. The
last line is 'N passed, N failed'."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helper import *
from scratch import path, with_numbers

S = F = None
PRE, SUF, MID = 4093, 4094, 4095       # <|mask|>, <think>, </think>: tokens that no plain text has
TEXT = "def add(a, b):"


def begin(*options):
    server = Server("--quiet", *options, wait=False)
    unittest.addModuleCleanup(lambda: end(server))
    if not server.wait_for(lambda: server.get("/health")[0] == 200):
        raise AssertionError("not ready: " + server.log)
    return server


def end(server):
    code = server.stop()
    if code != 0:
        raise AssertionError("exit status %d: %s" % (code, server.log[-3000:]))


def setUpModule():
    global S, F
    model = with_numbers(DEMO, path("fim.gguf"), {"tokenizer.ggml.fim_%s_token_id" % k: v for k, v in
                                                  (("pre", PRE), ("suf", SUF), ("mid", MID))})
    S = begin()
    F = begin("-m", model, "--ctx", "256", "--parallel", "2")


def complete(server=None, path="/completion", **body):
    return (server or S).json(path, {"n_predict": 24, **body})


def streamed(path="/completion", server=None, **body):
    status, headers, text = (server or S).post(path, {"n_predict": 24, "stream": True, **body})
    if status != 200:
        raise AssertionError(text)
    return headers, events(text)


def by_indent(text, least):
    """What is left of a text that ends before a line that is indented less."""
    out = text.split("\n")
    for i, line in enumerate(out[1:], 1):
        bare = line.lstrip(" \t")
        if bare and len(line) - len(bare) < least:
            return "\n".join(out[:i] + [line[:len(line) - len(bare)]])
    return text


class Completion(unittest.TestCase):
    def test_fields_of_the_answer(self):
        j = complete(prompt=TEXT, seed=5, temperature=0.5, return_tokens=True, stop=["never\n\n"])
        self.assertEqual((j["stop"], j["stop_type"], j["stopping_word"], j["truncated"], j["index"]),
                         (True, "limit", "", False, 0))
        self.assertEqual((j["tokens_predicted"], len(j["tokens"])), (24, 24))
        self.assertEqual(S.json("/detokenize", {"tokens": j["tokens"]})["content"], j["content"])
        self.assertEqual(j["tokens_evaluated"], S.json("/tokenize", {"content": TEXT})["count"])
        self.assertEqual(j["tokens_cached"], j["tokens_evaluated"] + 24)
        self.assertEqual((j["prompt"], j["has_new_line"]), (TEXT, "\n" in j["content"]))
        self.assertEqual(j["timings"]["predicted_n"], 24)
        g = j["generation_settings"]
        self.assertEqual((g["seed"], g["temperature"], g["n_predict"], g["stop"]), (5, 0.5, 24, ["never\n\n"]))
        self.assertNotIn("ignored", j)
        self.assertEqual(complete(prompt=TEXT, seed=5, temperature=0.5)["content"], j["content"])

    def test_same_text_as_completions(self):
        want = S.json("/v1/completions", {"prompt": TEXT, "max_tokens": 24})["choices"][0]["text"]
        self.assertEqual(complete(prompt=TEXT)["content"], want)
        headers, parts = streamed(prompt=TEXT)
        self.assertTrue(headers["content-type"].startswith("text/event-stream"))
        self.assertEqual("".join(p["content"] for p in parts), want)
        self.assertEqual([p["stop"] for p in parts], [False] * (len(parts) - 1) + [True])
        self.assertEqual(parts[-1]["tokens_predicted"], 24)
        self.assertEqual(parts[-2]["tokens_predicted"], 24)

    def test_why_it_stops(self):
        whole = complete(prompt=TEXT)["content"]
        word = whole[5:9]
        j = complete(prompt=TEXT, stop=[word])
        self.assertEqual((j["stop_type"], j["stopping_word"], j["content"]), ("word", word, whole[:whole.index(word)]))
        j = complete(prompt="Yes or no?", grammar='root ::= "yes" | "no"')
        self.assertEqual(j["stop_type"], "eos")
        self.assertIn(j["content"], ("yes", "no"))
        self.assertIsInstance(json.loads(complete(prompt="A number:", n_predict=100,
                                                  json_schema={"type": "integer"})["content"]), int)
        j = complete(prompt=TEXT, n_predict=-1, ignore_eos=True)
        self.assertEqual((j["stop_type"], j["truncated"], j["tokens_cached"]), ("limit", True, 2048))
        self.assertEqual(complete(prompt=TEXT, n_predict=0)["content"], "")

    def test_prompts(self):
        ids = S.json("/tokenize", {"content": TEXT})["tokens"]
        want = complete(prompt=TEXT)
        for prompt in (ids, [ids], [TEXT]):
            self.assertEqual(complete(prompt=prompt)["content"], want["content"])
        parts = [p for p in ids[:3]] + [S.json("/detokenize", {"tokens": ids[3:]})["content"]]
        mixed = complete(prompt=parts)
        again = S.json("/tokenize", {"content": parts[-1]})["tokens"]
        self.assertEqual(mixed["content"], complete(prompt=ids[:3] + again)["content"])
        self.assertEqual(mixed["tokens_evaluated"], 3 + len(again))

    def test_probabilities(self):
        j = complete(prompt=TEXT, n_probs=3, n_predict=4)
        self.assertEqual(len(j["completion_probabilities"]), 4)
        for p in j["completion_probabilities"]:
            self.assertEqual(len(p["top_logprobs"]), 3)
            self.assertEqual(p["id"], p["top_logprobs"][0]["id"])      # greedy
            self.assertEqual(bytes(p["bytes"]).decode(), p["token"])
        _, parts = streamed(prompt=TEXT, n_probs=3, n_predict=4)
        self.assertEqual([p for c in parts for p in c.get("completion_probabilities", [])],
                         j["completion_probabilities"])

    def test_samplers(self):
        sampled = dict(prompt=TEXT, temperature=0.9, top_k=2, top_p=0.5, seed=3)
        a = complete(**sampled, samplers=["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc",
                                          "temperature"])
        self.assertEqual(a["content"], complete(**sampled)["content"])
        b = complete(**sampled, samplers=["temperature"])
        self.assertEqual(b["content"], complete(prompt=TEXT, temperature=0.9, top_k=0, top_p=1, seed=3)["content"])
        self.assertEqual(b["generation_settings"]["top_p"], 1)

    def test_chosen_fields(self):
        names = ["content", "generation_settings/seed", "timings/prompt_n", "no/such", "stop"]
        j = complete(prompt=TEXT, response_fields=names, t_max_prompt_ms=1)
        self.assertEqual(set(j), {"content", "generation_settings/seed", "timings/prompt_n", "stop", "ignored"})
        self.assertEqual(j["ignored"], ["t_max_prompt_ms"])

    def test_progress(self):
        _, parts = streamed(prompt="some words " * 300, n_predict=1, return_progress=True, cache_prompt=False)
        progress = [p["prompt_progress"] for p in parts if "prompt_progress" in p]
        self.assertTrue(progress)
        self.assertEqual(progress[-1]["total"], parts[-1]["tokens_evaluated"])

    def test_indent(self):
        """The text ends before a line that is indented less, however it is streamed and guessed."""
        cut = 0
        for prompt in (TEXT, "class A:\n    def f(self):\n        ", "for i in range(3):\n    print("):
            for least in (1, 4, 8):
                free = complete(prompt=prompt, n_predict=80)["content"]
                want = by_indent(free, least)
                for more in ({}, {"speculative": {"mode": "off"}}):
                    j = complete(prompt=prompt, n_predict=80, n_indent=least, **more)
                    self.assertEqual(j["content"], want)
                    if want != free:
                        self.assertEqual(j["stop_type"], "limit")
                        cut += 1
                _, parts = streamed(prompt=prompt, n_predict=80, n_indent=least)
                self.assertEqual("".join(p["content"] for p in parts), want)
        self.assertGreater(cut, 6)

    def test_time(self):
        """The text ends at the end of a line, or as it would without a limit."""
        free = complete(prompt=TEXT, n_predict=300)["content"]
        for ms in (1, 20, 10 ** 9, 0, -1):
            text = complete(prompt=TEXT, n_predict=300, t_max_predict_ms=ms)["content"]
            self.assertTrue(free.startswith(text))
            self.assertTrue(text == free or (0 < ms < 100 and free[len(text)] == "\n"))

    def test_errors(self):
        for body, param in (({}, "prompt"), ({"prompt": None}, "prompt"), ({"prompt": 5}, "prompt"),
                            ({"prompt": []}, "prompt"), ({"prompt": ["a", "b"]}, "prompt"),
                            ({"prompt": [1, -1]}, "prompt"), ({"prompt": [1, 10 ** 18]}, "prompt"),
                            ({"prompt": "a", "n_predict": "many"}, "n_predict"),
                            ({"prompt": "a", "n_predict": -3}, "n_predict"),
                            ({"prompt": "a", "top_p": -1}, "top_p"), ({"prompt": "a", "n_probs": 21}, "n_probs"),
                            ({"prompt": "a", "samplers": "kt"}, "samplers"),
                            ({"prompt": "a", "samplers": ["xyz"]}, "samplers[0]"),
                            ({"prompt": "a", "response_fields": "content"}, "response_fields"),
                            ({"prompt": "a", "post_sampling_probs": True}, "post_sampling_probs"),
                            ({"prompt": "a", "mirostat": 2}, "mirostat"), ({"prompt": "a", "lora": [{"id": 0}]}, "lora"),
                            ({"prompt": "a", "n_indent": -1}, "n_indent")):
            with self.subTest(body):
                status, _, text = S.post("/completion", body)
                e = json.loads(text)["error"]
                self.assertEqual((status, e["code"], e["type"], e["param"]),
                                 (400, 400, "invalid_request_error", param))
        for raw in (b"[]", b'{"prompt":NaN}', b'{"prompt":' + b"[" * 300 + b"]" * 300 + b"}", b'{"prompt":"\\ud800"}'):
            self.assertEqual(S.post("/completion", raw)[0], 400)
        status, _, text = S.post("/completion", {"prompt": "word " * 5000})
        e = json.loads(text)["error"]
        self.assertEqual((status, e["type"], e["n_ctx"]), (400, "exceed_context_size_error", 2048))
        self.assertGreater(e["n_prompt_tokens"], 2048)


class Infill(unittest.TestCase):
    def by_hand(self, *prompt, **more):
        return complete(F, prompt=list(prompt), **more)

    def test_without_tokens(self):
        for path, body, form in (("/infill", {"input_prefix": "a"}, dict), ("/v1/completions",
                                 {"prompt": "a", "suffix": "b"}, dict), ("/api/generate", {"prompt": "a", "suffix": "b"}, str)):
            status, _, text = S.post(path, body)
            e = json.loads(text)["error"]
            self.assertEqual((status, type(e)), (501, form))
            self.assertIn("fim_pre", e if form is str else e["message"])

    def test_prompt(self):
        """The same tokens as a prompt made by hand, and so the same text."""
        prefix, suffix = "def add(a, b):\n    return ", "\n\ndef sub(a, b):\n"
        want = self.by_hand(PRE, prefix, SUF, suffix, MID)
        j = complete(F, "/infill", input_prefix=prefix, input_suffix=suffix)
        self.assertEqual((j["content"], j["tokens_evaluated"]), (want["content"], want["tokens_evaluated"]))
        _, parts = streamed("/infill", F, input_prefix=prefix, input_suffix=suffix)
        self.assertEqual("".join(p["content"] for p in parts), want["content"])
        begun = complete(F, "/infill", input_prefix=prefix, input_suffix=suffix, prompt="a ")
        self.assertEqual(begun["content"], self.by_hand(PRE, prefix, "a ", SUF, suffix, MID)["content"])
        self.assertEqual(F.json("/v1/completions", {"prompt": prefix, "suffix": suffix, "max_tokens": 24})["choices"][0]["text"],
                         want["content"])
        self.assertEqual(F.json("/api/generate", {"prompt": prefix, "suffix": suffix, "stream": False,
                                                  "options": {"num_predict": 24}})["response"], want["content"])
        # a client's text never becomes one of the tokens, not even one that a text can otherwise spell
        self.assertEqual(F.json("/tokenize", {"content": "<think></think>", "parse_special": False})["tokens"], [SUF, MID])
        self.assertGreater(complete(F, "/infill", input_prefix="<think></think>", input_suffix="")["tokens_evaluated"], 3 + 2)

    def test_other_texts(self):
        extra = [{"filename": "a.py", "text": "import os\n"}, {"text": "x = 1\n"}]
        j = complete(F, "/infill", input_prefix="def f", input_suffix="\n", input_extra=extra)
        want = self.by_hand("\n\n--- a.py ---\n\n", "import os\n", "\n\n--- snippet ---\n\n", "x = 1\n",
                            "\n\n--- current ---\n\n", PRE, "def f", SUF, "\n", MID)
        self.assertEqual((j["content"], j["tokens_evaluated"]), (want["content"], want["tokens_evaluated"]))

    def test_too_long(self):
        """Of a context of 256 tokens, the answer keeps its own; what is farthest from the gap goes first."""
        lines = ["line %d of many\n" % i for i in range(200)]
        text = "".join(lines)
        count = lambda s: F.json("/tokenize", {"content": s, "parse_special": False})["count"]
        j = complete(F, "/infill", input_prefix=text, input_suffix=text, input_extra=[{"text": text}], n_predict=32)
        self.assertEqual(j["tokens_evaluated"], 256 - 32 - 1)
        self.assertEqual((j["tokens_predicted"], j["truncated"]), (32, False))
        ids = F.json("/tokenize", {"content": text, "parse_special": False})["tokens"]
        behind = (256 - 32 - 4) // 4
        before = 256 - 32 - 4 - behind
        want = self.by_hand(PRE, *ids[-before:], SUF, *ids[:behind], MID, n_predict=32)
        self.assertEqual(j["content"], want["content"])
        short = complete(F, "/infill", input_prefix="a", input_suffix="b", input_extra=[{"text": text}], n_predict=32)
        self.assertEqual(short["tokens_evaluated"], 256 - 32 - 1)
        many = complete(F, "/infill", input_prefix="a", input_suffix="b", input_extra=[{"text": text}] * 1000, n_predict=32)
        self.assertEqual((many["content"], many["tokens_evaluated"]), (short["content"], short["tokens_evaluated"]))
        e = json.loads(F.post("/infill", {"input_prefix": "a", "prompt": text})[2])["error"]
        self.assertEqual((e["type"], e["n_ctx"]), ("exceed_context_size_error", 256))
        self.assertGreater(e["n_prompt_tokens"], count(text))

    def test_editor(self):
        """A request as llama.vim and llama.vscode send it, and the one with which they warm up the cache."""
        extra = [{"filename": "b.py", "text": "def sub(a, b):\n    return a - b\n", "time": [5, 6]}]
        ask = {"id_slot": 0, "input_prefix": "def add(a, b):\n    s = ", "input_suffix": "\n    return s\n",
               "input_extra": extra, "prompt": "a", "n_predict": 16, "stop": [], "n_indent": 4, "top_k": 40,
               "top_p": 0.99, "samplers": ["top_k", "top_p", "infill"], "stream": False, "cache_prompt": True,
               "t_max_prompt_ms": 500, "t_max_predict_ms": 10 ** 6, "seed": 1,
               "response_fields": ["content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms",
                                   "timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms",
                                   "timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated",
                                   "tokens_cached"]}
        warm = {**ask, "input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0, "samplers": [],
                "response_fields": [""]}
        self.assertEqual(set(F.json("/infill", warm)), {"ignored"})
        j = F.json("/infill", ask)
        self.assertEqual(set(j), set(ask["response_fields"]) | {"ignored"})
        self.assertEqual(set(j["ignored"]), {"id_slot", "t_max_prompt_ms", "samplers[2]"})
        again = F.json("/infill", ask)
        self.assertEqual(again["content"], j["content"])
        self.assertLess(again["timings/prompt_n"], 10)                 # the rest was in the cache

    def test_errors(self):
        for body, param in (({}, "input_prefix"), ({"input_prefix": 5}, "input_prefix"),
                            ({"input_suffix": []}, "input_suffix"), ({"input_prefix": "a", "prompt": [1]}, "prompt"),
                            ({"input_prefix": "a", "input_extra": {}}, "input_extra"),
                            ({"input_prefix": "a", "input_extra": ["x"]}, "input_extra[0]"),
                            ({"input_prefix": "a", "input_extra": [{"text": 5}]}, "input_extra[0].text"),
                            ({"input_prefix": "a", "input_extra": [{}] * 1001}, "input_extra")):
            with self.subTest(body):
                status, _, text = F.post("/infill", body)
                self.assertEqual((status, json.loads(text)["error"]["param"]), (400, param))
        self.assertEqual(F.get("/health")[0], 200)


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
