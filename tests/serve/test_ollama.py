#!/usr/bin/env python3
"""Ollama's endpoints on the demo pair, as plain HTTP clients use them: lines of JSON, figures, lists of models, errors.
tests/serve/test_sdk.py has Ollama's own Python package.

    python3 tests/serve/test_ollama.py [-v] [TestName.test_name ...]

The last line is 'N passed, N failed'."""
import datetime
import json
import os
import re
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helper import *
from scratch import path

S = None
ASK = [{"role": "user", "content": "def add(a, b):"}]
FIGURES = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")
NAME = "ratoon-demo-q8_0"


def setUpModule():
    global S
    S = Server("--quiet", "--alias", "other", wait=False)
    if not S.wait_for(lambda: S.get("/health")[0] == 200):
        raise AssertionError("not ready: " + S.log)


def tearDownModule():
    code = S.stop()
    if code != 0:
        raise AssertionError("exit status %d: %s" % (code, S.log[-3000:]))


def lines(path, **body):
    status, headers, text = S.post(path, body)
    if status != 200:
        raise AssertionError(text)
    return headers, [json.loads(l) for l in text.decode().rstrip("\n").split("\n")]


def chat(**more):
    return {"model": NAME, "messages": ASK, **more, "options": {"num_predict": 16, **more.get("options", {})}}


class Text(unittest.TestCase):
    def test_chat(self):
        want = S.json("/v1/chat/completions", {"messages": ASK, "max_tokens": 16})["choices"][0]["message"]["content"]
        headers, parts = lines("/api/chat", **chat())
        self.assertEqual(headers["content-type"], "application/x-ndjson")
        self.assertEqual("".join(p["message"]["content"] for p in parts), want)
        self.assertEqual([p["done"] for p in parts], [False] * (len(parts) - 1) + [True])
        for p in parts:
            self.assertEqual((p["model"], p["message"]["role"]), (NAME, "assistant"))
            datetime.datetime.strptime(p["created_at"], "%Y-%m-%dT%H:%M:%SZ")
        last = parts[-1]
        self.assertEqual((last["done_reason"], last["eval_count"]), ("length", 16))
        for f in FIGURES:
            self.assertIsInstance(last[f], int)
        whole = S.json("/api/chat", chat(stream=False))
        self.assertEqual((whole["message"]["content"], whole["done"]), (want, True))

    def test_generate(self):
        want = S.json("/api/chat", chat(stream=False))["message"]["content"]
        _, parts = lines("/api/generate", model=NAME, prompt=ASK[0]["content"], options={"num_predict": 16})
        self.assertEqual("".join(p["response"] for p in parts), want)
        for f in FIGURES:
            self.assertIsInstance(parts[-1][f], int)
        system = S.json("/api/generate", {"model": NAME, "prompt": "Hi", "system": "Be brief.", "stream": False,
                                          "options": {"num_predict": 8}})
        both = S.json("/api/chat", {"model": NAME, "stream": False, "options": {"num_predict": 8}, "messages":
                                    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]})
        self.assertEqual(system["response"], both["message"]["content"])
        raw = S.json("/api/generate", {"model": NAME, "prompt": "def add(a, b):", "raw": True, "stream": False,
                                       "options": {"num_predict": 12}})
        self.assertEqual(raw["response"],
                         S.json("/v1/completions", {"prompt": "def add(a, b):", "max_tokens": 12})["choices"][0]["text"])

    def test_options(self):
        sampled = {"temperature": 0.9, "top_k": 5, "top_p": 0.8, "min_p": 0.01, "seed": 7, "repeat_penalty": 1.1,
                   "num_ctx": 8192, "num_thread": 4}
        j = S.json("/api/chat", chat(stream=False, options=sampled))
        self.assertEqual(j["ignored"], ["options.num_ctx", "options.num_thread"])
        beside = {k: v for k, v in sampled.items() if not k.startswith("num")}
        k = S.json("/v1/chat/completions", {"messages": ASK, "max_tokens": 16, **beside})
        self.assertEqual(j["message"]["content"], k["choices"][0]["message"]["content"])
        whole = S.json("/api/chat", chat(stream=False))["message"]["content"]
        stop = whole[3:6]
        j = S.json("/api/chat", chat(stream=False, options={"stop": [stop]}, keep_alive=-1))
        self.assertEqual((j["message"]["content"], j["done_reason"]), (whole[:whole.index(stop)], "stop"))
        self.assertEqual(j["ignored"], ["keep_alive"])
        random = S.json("/api/chat", chat(stream=False, options={"temperature": 1}))
        again = S.json("/api/chat", chat(stream=False, options={"temperature": 1, "seed": random["seed"]}))
        self.assertEqual(again["message"]["content"], random["message"]["content"])

    def test_format(self):
        schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
                  "required": ["age"], "additionalProperties": False}
        for path, key in (("/api/chat", "message"), ("/api/generate", "response")):
            j = S.json(path, {**chat(stream=False, format=schema, options={"num_predict": 200}), "prompt": "A person"}
                       if key == "message" else {"model": NAME, "prompt": "A person", "format": schema,
                                                 "stream": False, "options": {"num_predict": 200}})
            text = j[key]["content"] if key == "message" else j[key]
            self.assertTrue(0 <= json.loads(text)["age"] <= 99)
        j = S.json("/api/chat", chat(stream=False, format="json", options={"num_predict": 300}))
        self.assertTrue(j["message"]["content"].lstrip().startswith("{"))

    def test_tools(self):
        tool = {"type": "function", "function": {"name": "get_weather", "parameters": {
            "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}}}
        body = chat(tools=[tool], tool_choice="required", parallel_tool_calls=False, options={"num_predict": 200})
        _, parts = lines("/api/chat", **body)
        (call,) = [c for p in parts for c in p["message"].get("tool_calls", [])]
        self.assertEqual(call["function"]["name"], "get_weather")
        self.assertIn(call["function"]["arguments"]["city"], ("Oslo", "Rome"))
        self.assertEqual(parts[-1]["done_reason"], "stop")
        whole = S.json("/api/chat", {**body, "stream": False})["message"]
        self.assertEqual(whole["tool_calls"][0]["function"], call["function"])
        follow = {**chat(stream=False), "messages": ASK + [whole, {"role": "tool", "tool_name": "get_weather",
                                                                   "content": "rain"}]}
        self.assertTrue(S.json("/api/chat", follow)["done"])
        self.assertEqual(S.json("/api/chat", chat(stream=False, tools=[tool], think=True))["ignored"], ["think", "tools"])

    def test_going_on(self):
        whole = S.json("/api/chat", chat(stream=False))["message"]["content"]
        talk = ASK + [{"role": "assistant", "content": whole[:8]}]
        j = S.json("/api/chat", {**chat(stream=False), "messages": talk})
        k = S.json("/v1/chat/completions", {"messages": talk, "max_tokens": 16, "continue_final_message": True})
        self.assertEqual(j["message"]["content"], k["choices"][0]["message"]["content"])

    def test_logprobs(self):
        j = S.json("/api/chat", chat(stream=False, logprobs=True, top_logprobs=2))
        self.assertEqual([len(t["top_logprobs"]) for t in j["logprobs"]], [2] * 16)
        _, parts = lines("/api/chat", **chat(logprobs=True, top_logprobs=2))
        self.assertEqual([t for p in parts for t in p.get("logprobs", [])], j["logprobs"])

    def test_waiting_lines(self):
        """Whatever is sent while a request waits is a line of JSON too."""
        server = Server("--quiet", "--keepalive", "1", "--parallel", "1", "--cache-ram", "0", wait=False)
        try:
            self.assertTrue(server.wait_for(lambda: server.get("/health")[0] == 200))
            status, _, text = server.post("/api/generate", {"model": "m", "raw": True, "prompt": "a " * 900,
                                                            "options": {"num_predict": 900}})
            self.assertEqual(status, 200)
            for line in text.decode().rstrip("\n").split("\n"):
                self.assertIn("response", json.loads(line))
        finally:
            self.assertEqual(server.stop(), 0)


class Models(unittest.TestCase):
    def test_lists(self):
        tags = S.json("/api/tags")["models"]
        self.assertEqual([m["model"] for m in tags], [NAME + ":latest", "other:latest"])
        for m in tags + S.json("/api/ps")["models"]:
            self.assertEqual(m["name"], m["model"])
            self.assertTrue(re.fullmatch("[0-9a-f]{32}", m["digest"]))
            self.assertGreater(m["size"], 1e6)
            self.assertEqual((m["details"]["format"], m["details"]["family"], m["details"]["quantization_level"]),
                             ("gguf", "qwen35", "Q8_0"))
            self.assertRegex(m["details"]["parameter_size"], r"^\d+\.\d[MB]$")
        self.assertEqual(S.json("/api/ps")["models"][0]["context_length"], 2048)
        self.assertEqual(S.json("/api/version"), {"version": S.json("/props")["build_info"]})

    def test_from_its_store(self):
        """A model of Ollama's own is called what it is called there, and has the type that its header gives."""
        store, digest = tempfile.mkdtemp(), "sha256-" + "ab" * 32
        self.addCleanup(shutil.rmtree, store)
        manifest = os.path.join(store, "manifests", "registry.ollama.ai", "library", "tiny", "4b")
        os.makedirs(os.path.dirname(manifest))
        os.makedirs(os.path.join(store, "blobs"))
        os.symlink(DEMO, os.path.join(store, "blobs", digest))
        with open(manifest, "w", encoding="utf-8") as f:
            json.dump({"layers": [{"mediaType": "application/vnd.ollama.image.model",
                                   "digest": digest.replace("-", ":")}]}, f)
        server = Server("-m", "tiny:4b", "-d", "none", env={"OLLAMA_MODELS": store})
        try:
            self.assertIn("\nmodel tiny:4b, ", server.log)
            self.assertEqual([m["id"] for m in server.json("/v1/models")["data"]], ["tiny:4b"])
            m = server.json("/api/tags")["models"][0]
            self.assertEqual((m["name"], m["details"]["quantization_level"]), ("tiny:4b", "Q8_0"))
            self.assertEqual(server.json("/api/show", {"model": "tiny:4b"})["details"], m["details"])
        finally:
            self.assertEqual(server.stop(), 0)

    def test_show(self):
        for name in (NAME, NAME + ":latest", "other", "other:latest"):
            j = S.json("/api/show", {"model": name})
            self.assertEqual(j["capabilities"], ["completion"])        # the demo's template has nothing else
            self.assertEqual(j["model_info"]["general.architecture"], "qwen35")
            self.assertEqual(j["model_info"]["qwen35.context_length"], 4096)
            self.assertIn("{%", j["template"])
            self.assertIn("num_ctx 2048", j["parameters"])
        self.assertEqual(S.json("/api/show", {"name": NAME})["details"]["format"], "gguf")
        for body, status in (({"model": "nobody"}, 404), ({"model": NAME + ":8b"}, 404), ({}, 400), ({"model": 5}, 400),
                             ([], 400)):
            got, _, text = S.post("/api/show", body)
            self.assertEqual((got, type(json.loads(text)["error"])), (status, str))

    def test_load(self):
        for path, body in (("/api/generate", {"model": NAME}), ("/api/chat", {"model": NAME, "messages": []}),
                           ("/api/generate", {"model": NAME, "keep_alive": 0, "prompt": ""})):
            status, _, text = S.post(path, body)
            j = json.loads(text)
            self.assertEqual((status, j["done"], j["done_reason"]), (200, True, "load"))

    def test_names(self):
        server = Server("--quiet", "--strict-model", "--model-name", "m", wait=False)
        try:
            self.assertTrue(server.wait_for(lambda: server.get("/health")[0] == 200))
            for name, status in (("m", 200), ("m:latest", 200), ("m:8b", 404), ("n", 404)):
                got, _, text = server.post("/api/chat", {**chat(stream=False), "model": name})
                self.assertEqual(got, status, name)
                if status == 200:
                    self.assertEqual(json.loads(text)["model"], name)
        finally:
            self.assertEqual(server.stop(), 0)


class Errors(unittest.TestCase):
    def test_bad_requests(self):
        good = {"model": NAME, "messages": ASK}
        for path, body, word in (
                ("/api/chat", {**good, "messages": 5}, "messages"), ("/api/chat", {**good, "messages": [5]}, "messages[0]"),
                ("/api/chat", {**good, "messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
                ("/api/chat", {**good, "messages": [{"role": "user", "content": "a", "images": ["aGk="]}]}, "images"),
                ("/api/chat", {**good, "options": []}, "options"), ("/api/chat", {**good, "options": {"seed": "x"}}, "seed"),
                ("/api/chat", {**good, "options": {"num_predict": 1e300}}, "num_predict"),
                ("/api/chat", {**good, "options": {"temperature": -1}}, "temperature"),
                ("/api/chat", {**good, "options": {"mirostat": 1}}, "mirostat"),
                ("/api/chat", {**good, "format": "xml"}, "format"), ("/api/chat", {**good, "format": {"not": {}}}, "not"),
                ("/api/chat", {**good, "stream": "no"}, "stream"), ("/api/chat", {**good, "tools": {}}, "tools"),
                ("/api/chat", {**good, "odd": 1, "strict_fields": True}, "odd"),
                ("/api/generate", {"prompt": 5}, "prompt"), ("/api/generate", {"prompt": "a", "images": ["aGk="]}, "images"),
                ("/api/generate", {"prompt": "a", "template": "x"}, "template"),
                ("/api/generate", {"prompt": "a", "context": [1]}, "context"),
                ("/api/generate", {"prompt": "a", "raw": 1}, "raw"),
                ("/api/generate", {"prompt": "word " * 5000}, "maximum context length"),
                ("/api/chat", b"{", "JSON"), ("/api/chat", b'{"messages":NaN}', "JSON"),
                ("/api/chat", b'{"a":' * 500, "128")):
            with self.subTest(str(body)[:80]):
                status, _, text = S.post(path, body)
                self.assertEqual((status, list(json.loads(text))), (400, ["error"]), text)
                self.assertIn(word, json.loads(text)["error"])
        self.assertEqual(S.get("/health")[0], 200)

    def test_what_is_not_there(self):
        for method, path, status in (("POST", "/api/embed", 501), ("POST", "/api/pull", 501), ("DELETE", "/api/delete", 501),
                                     ("POST", "/api/blobs/x", 404), ("GET", "/api/chat", 405)):
            got, _, text = S.ask(method, path, {} if method == "POST" else None)
            self.assertEqual((got, type(json.loads(text)["error"])), (status, str), path)
        self.assertFalse([e for e in S.json("/props")["api"]["endpoints"] if "embed" in e or "pull" in e])


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
