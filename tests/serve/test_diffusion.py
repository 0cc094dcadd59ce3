#!/usr/bin/env python3
"""The server with a model that writes by denoising: the same text in every way of asking, figures, drafts, what such a
model cannot do, and cancelling."""
import json
import os
import sys
import tempfile
import threading
import unittest

from helper import CHAT, Server, chat, events, main
from scratch import ROOT

MODEL = os.path.join(ROOT, "models", "demo", "ratoon-diffusion-demo-q8_0.gguf")
OPTIONS = ["-m", MODEL, "--parallel", "4", "--cache-min-tokens", "16"]
HOW = dict(max_tokens=300, seed=5, temperature=1, ignore_eos=True)
QUESTION = "Noah buys 5 boxes with 6 cards in each box. How many cards does Noah buy in all? " * 3
S = None


def setUpModule():
    global S
    S = Server(*OPTIONS, greedy=False)


def tearDownModule():
    assert S.stop() == 0, S.log[-2000:]


def text_of(answer):
    return answer["choices"][0]["message"]["content"]


class Text(unittest.TestCase):
    def streamed(self, **more):
        return [e for e in events(S.post(CHAT, chat(QUESTION, **{**HOW, "stream": True, **more}))[2]) if e != "[DONE]"]

    def pieces(self, stream):
        return [d for e in stream for c in e["choices"] if (d := c["delta"].get("content"))]

    def test_same_text(self):
        """Cold, from the cache, streamed, with drafts, beside neighbours."""
        whole = S.json(CHAT, chat(QUESTION, **HOW, prefix_cache={"scope": "off"}))
        text, steps = text_of(whole), whole["timings"]["step_n"]
        self.assertTrue(text)
        self.assertNotEqual(text, text_of(S.json(CHAT, chat(QUESTION, **{**HOW, "seed": 6}))))
        again = S.json(CHAT, chat(QUESTION, **HOW))
        self.assertEqual(text_of(again), text)
        again = S.json(CHAT, chat(QUESTION, **HOW))
        self.assertEqual(text_of(again), text)
        self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        plain, drafts = self.streamed(), self.streamed(stream_options={"include_drafts": True})
        self.assertEqual("".join(self.pieces(plain)), text)
        self.assertEqual([d["draft"] for d in plain if "draft" in d], [])
        self.assertEqual("".join(self.pieces(drafts)), text)
        self.assertEqual(len([d for d in drafts if "draft" in d]), steps)
        got = {}
        ask = lambda i, seed: got.__setitem__(i, text_of(S.json(CHAT, chat(QUESTION, **{**HOW, "seed": seed}))))
        threads = [threading.Thread(target=ask, args=(i, 5 if i < 2 else 100 + i)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([got[0], got[1]], [text, text])

    def test_last_draft(self):
        """The draft of a block's last step is the block, also where room, a doubtful token or a lock ends it."""
        for most, d in ((300, {}), (3, {}), (300, {"trim": 0.9, "trim_from": 4}), (20, {"lock": True})):
            stream = self.streamed(max_tokens=most, diffusion=d, stream_options={"include_drafts": True})
            blocks, last = [], ""
            for e in stream:
                last = e["draft"]["text"] if "draft" in e else last
                for c in e["choices"]:
                    if c["delta"].get("content"):
                        blocks.append((last, c["delta"]["content"]))
            self.assertTrue(blocks)
            self.assertEqual([draft for draft, _ in blocks], [text for _, text in blocks], (most, d))

    def test_drafts_elsewhere(self):
        """Responses and Messages: events of their own names, in order, that change nothing else."""
        for path, body, name in (("/v1/responses", {"input": QUESTION, "max_output_tokens": 40}, "response.ratoon.draft"),
                                 ("/v1/messages", {"messages": [{"role": "user", "content": QUESTION}],
                                                   "max_tokens": 40}, "ratoon.draft")):
            def streamed(**more):
                text = S.post(path, {**body, "seed": 5, "temperature": 1, "stream": True, **more})[2].decode()
                return [(e.split("\n")[0], json.loads(e.split("data: ", 1)[1])) for e in text.split("\n\n")
                        if "data: {" in e]
            plain, drafts = streamed(), streamed(stream_options={"include_drafts": True})
            found = [d for e, d in drafts if d["type"] == name]
            self.assertEqual([e for e, d in drafts if d["type"] == name], ["event: " + name] * len(found))
            self.assertEqual([d["draft"]["step"] for d in found][:2], [1, 2])
            self.assertEqual({d["draft"]["index"] for d in found}, {0})
            self.assertTrue(any(d["draft"]["text"] for d in found))
            self.assertEqual([e for e, d in drafts if d["type"] != name], [e for e, _ in plain])
            if path == "/v1/responses":
                self.assertEqual([d["sequence_number"] for _, d in drafts], list(range(len(drafts))))

    def test_disk_cache(self):
        with tempfile.TemporaryDirectory() as folder:
            texts, cached = [], []
            for _ in range(2):
                s = Server(*OPTIONS, "--cache-dir", folder, greedy=False)
                try:
                    a = s.json(CHAT, chat(QUESTION, **{**HOW, "max_tokens": 40}))
                finally:
                    self.assertEqual(s.stop(), 0, s.log[-2000:])
                texts.append(text_of(a))
                cached.append(a["usage"]["prompt_tokens_details"]["cached_tokens"])
            self.assertEqual(texts[0], texts[1])
            self.assertEqual(cached[0], 0)
            self.assertGreater(cached[1], 0)

    def test_figures(self):
        before = S.metrics()
        a = S.json(CHAT, chat("Hi", **HOW))
        t, u, now = a["timings"], a["usage"], S.metrics()
        self.assertEqual((a["choices"][0]["finish_reason"], u["completion_tokens"]), ("length", 300))
        blocks = -(-300 // S.json("/props")["canvas"])
        self.assertEqual((t["block_n"], u["blocks"]), (blocks, blocks))
        self.assertEqual(t["step_n"], u["steps"])
        self.assertAlmostEqual(u["tokens_per_step"], 300 / u["steps"], 4)
        self.assertGreaterEqual(t["step_n"], t["block_n"])
        for name, n in (("denoised_blocks_total", blocks), ("denoising_steps_total", t["step_n"])):
            self.assertEqual(now["ratoon_" + name] - before["ratoon_" + name], n)

    def test_other_interfaces(self):
        how = {"max_tokens": 20, "seed": 5}
        talk = [{"role": "user", "content": "Hi"}]
        for path, body in (("/v1/completions", {"prompt": "Hi", **how}),
                           ("/v1/responses", {"input": "Hi", "max_output_tokens": 20, "seed": 5}),
                           ("/v1/messages", {"messages": talk, **how}),
                           ("/completion", {"prompt": "Hi", "n_predict": 20, "seed": 5}),
                           ("/api/chat", {"messages": talk, "stream": False, "options": {"num_predict": 20}}),
                           ("/api/generate", {"prompt": "Hi", "stream": False, "options": {"num_predict": 20}})):
            with self.subTest(path):
                S.json(path, body)
                self.assertEqual(S.post(path, {**body, "stream": True})[0], 200)

    def test_cancel(self):
        s = S.connect()
        data = json.dumps(chat("Hi", **{**HOW, "max_tokens": 1500, "stream": True,
                                        "stream_options": {"include_drafts": True}})).encode()
        s.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data)
        seen = b""
        while b"event: draft" not in seen and b"[DONE]" not in seen:
            seen += s.recv(65536)
        self.assertIn(b"event: draft", seen)
        s.close()
        self.assertTrue(S.wait_for(S.idle))


class Settings(unittest.TestCase):
    def test_fields(self):
        steps = lambda **d: S.json(CHAT, chat(QUESTION, **HOW, diffusion=d))["timings"]["step_n"]
        blocks = -(-300 // S.json("/props")["canvas"])
        self.assertEqual(steps(steps=3, confidence=-1), 3 * blocks)
        self.assertEqual(steps(steps=1), blocks)
        usual = S.json(CHAT, chat(QUESTION, **HOW))
        self.assertEqual(text_of(S.json(CHAT, chat(QUESTION, **HOW, diffusion={}))), text_of(usual))
        for path, body in (("/v1/completions", {"prompt": "Hi", "max_tokens": 5}), ("/v1/responses", {"input": "Hi"}),
                           ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5})):
            self.assertEqual(S.post(path, {**body, "diffusion": {"steps": 1}})[0], 200, path)

    def test_locked(self):
        """Nothing is drawn, so a seed changes nothing; drafts are those of the blocks."""
        ask = lambda seed, **d: S.json(CHAT, chat(QUESTION, **{**HOW, "seed": seed}, diffusion=d))
        locked = ask(1, lock=True)
        self.assertEqual(text_of(locked), text_of(ask(2, lock=True)))
        self.assertNotEqual(text_of(locked), text_of(ask(1, lock=True, mask=7)))
        self.assertGreater(locked["timings"]["step_n"], locked["timings"]["block_n"])
        self.assertNotEqual(text_of(ask(1)), text_of(ask(2)))

    def test_nothing_drafted(self):
        """Blocks of a canvas are written, not guessed."""
        c = S.json(CHAT, chat(QUESTION, **HOW, return_drafted=True))["choices"][0]
        self.assertEqual(c["drafted"], [])

    def test_bad_fields(self):
        for field, d in (("diffusion.steps", {"steps": 0}), ("diffusion.trim", {"trim": 1.5}), ("diffusion", 5),
                         ("diffusion.confidence", {"confidence": "x"}), ("diffusion", {"t_min": 2, "t_max": 1}),
                         ("diffusion.lock", {"lock": "yes"}), ("diffusion", {"mask": 5}),
                         ("diffusion", {"lock": True, "trim": 0.5})):
            status, _, text = S.post(CHAT, chat("Hi", diffusion=d))
            self.assertEqual((status, json.loads(text)["error"]["param"]), (400, field), text)

    def test_option(self):
        """The server's own settings are what a request does not change."""
        s = Server(*OPTIONS, "--diffusion", "steps=2,confidence=-1", greedy=False)
        try:
            n = [s.json(CHAT, chat(QUESTION, **{**HOW, "max_tokens": 30}, **more))["timings"]["step_n"]
                 for more in ({}, {"diffusion": {"steps": 5}}, {})]
        finally:
            self.assertEqual(s.stop(), 0, s.log[-2000:])
        self.assertEqual(n, [2, 5, 2])
        for options, own, other in ((["--diffusion", "trim=0.9"], {"lock": False}, {"lock": True}),
                                    (["--sampler", "lock", "--diffusion", "mask=7"], {"lock": True}, {"lock": False})):
            s = Server(*OPTIONS, *options, greedy=False)
            try:
                usual, same, changed = [s.json(CHAT, chat(QUESTION, **HOW, **more))
                                        for more in ({}, {"diffusion": own}, {"diffusion": other})]
            finally:
                self.assertEqual(s.stop(), 0, s.log[-2000:])
            self.assertEqual(text_of(same), text_of(usual))
            self.assertEqual(text_of(changed), text_of(S.json(CHAT, chat(QUESTION, **HOW, diffusion=other))))
        bad = Server(*OPTIONS, "--sampler", "lock", "--diffusion", "mask=99999", greedy=False, wait=False)
        self.assertEqual(bad.ended(), 1)
        self.assertIn("--diffusion: mask is 99999, expected a token from 1 to ", bad.log)
        bad = Server(*OPTIONS, "--diffusion", "trim=7", greedy=False, wait=False)
        self.assertEqual(bad.ended(), 1)
        self.assertIn("--diffusion: trim is 7, expected at most 1", bad.log)


class Refused(unittest.TestCase):
    def refused(self, path, field, body):
        status, _, text = S.post(path, body)
        self.assertEqual(status, 400, (field, text))
        message = json.loads(text)
        error = message["error"]
        said = error["message"] if isinstance(error, dict) else error
        self.assertEqual(said, "%s is not supported: this model does not write one token after the other" % field)

    def test_chat(self):
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        for field, more in (("top_p", {"top_p": 0.9}), ("top_k", {"top_k": 5}), ("min_p", {"min_p": 0.1}),
                            ("frequency_penalty", {"frequency_penalty": 0.5}),
                            ("presence_penalty", {"presence_penalty": 0.5}),
                            ("repetition_penalty", {"repetition_penalty": 1.1}), ("logit_bias", {"logit_bias": {"5": 1}}),
                            ("logprobs", {"logprobs": True}), ("grammar", {"grammar": 'root ::= "a"'}),
                            ("response_format", {"response_format": {"type": "json_object"}}),
                            ("response_format.json_schema.schema", {"response_format": schema}),
                            ("tool_choice", {"tools": [tool], "tool_choice": "required"})):
            with self.subTest(field):
                self.refused(CHAT, field, chat("Hi", **more))
        neutral = dict(top_p=1, top_k=0, min_p=0, frequency_penalty=0, presence_penalty=0, repetition_penalty=1,
                       logit_bias={}, logprobs=False, response_format={"type": "text"})
        self.assertEqual(S.post(CHAT, chat("Hi", max_tokens=5, **neutral))[0], 200)

    def test_list(self):
        fields = S.json("/v1/models")["data"][0]["supported_parameters"]
        self.assertEqual([f for f in fields if f in ("top_p", "response_format", "logprobs")], [])

    def test_others(self):
        talk = [{"role": "user", "content": "Hi"}]
        self.refused("/v1/completions", "logprobs", {"prompt": "Hi", "logprobs": 1})
        self.refused("/v1/messages", "top_k", {"messages": talk, "max_tokens": 5, "top_k": 5})
        self.refused("/api/chat", "options.top_p", {"messages": talk, "options": {"top_p": 0.5}})

    def test_drafts(self):
        """Ollama's lines have no place for drafts."""
        least = {"num_predict": 5}
        for path, body in (("/api/chat", {"messages": [{"role": "user", "content": "Hi"}], "options": least}),
                           ("/api/generate", {"prompt": "Hi", "options": least})):
            ask = lambda wanted: S.post(path, {**body, "stream_options": {"include_drafts": wanted}})
            status, _, text = ask(True)
            self.assertEqual((status, json.loads(text)["error"]),
                             (400, "stream_options.include_drafts is not supported: it may only be false"), path)
            self.assertEqual(ask(False)[0], 200, path)


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
