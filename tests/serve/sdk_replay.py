#!/usr/bin/env python3
"""Gives the golden answers to the official openai and anthropic Python SDKs, and to Ollama's package if it is there: a small HTTP server on this machine
replays them. The SDKs' strict accumulators must take every stream and end with the content of the body, and must raise
their typed errors where a stream ends with an error.

    python3 tests/serve/sdk_replay.py        # skipped, with a message, where the SDKs are missing
"""
import json
import pathlib
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

try:
    import anthropic
    import openai
    from anthropic.types import Message
    from openai.types import Completion
    from openai.types.chat import ChatCompletion
    from openai.types.responses import Response
except ImportError as e:
    print(f"skipped: {e} (pip install openai anthropic)")
    sys.exit(0)
try:
    import ollama
except ImportError:
    ollama = None

HERE = pathlib.Path(__file__).parent / "golden"
CASES = {}
for path in sorted(HERE.glob("*.txt")):
    parts = path.read_text(encoding="utf-8").split("--- ")
    sections = {}
    for part in parts[1:]:
        name, _, text = part.partition("\n")
        sections[name] = text
    CASES[path.stem] = sections


class Replay(BaseHTTPRequestHandler):
    """POST /CASE/... answers with the case's stream or body, as the request asks."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        case = CASES[self.path.split("/")[1]]
        body = case["body"].rstrip("\n").encode()
        fails = body.startswith(b'{"error"') or body.startswith(b'{"type":"error"')
        stream = asked.get("stream") and not (fails and b"busy" in body)
        data = case["stream"].encode() if stream else body
        self.send_response(429 if fails and b"waiting" in body else 500 if fails and not stream else 200)
        self.send_header("Content-Type", "text/event-stream" if stream else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("x-should-retry", "false")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Replay)
threading.Thread(target=server.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{server.server_port}"
checks = 0


def same(a, b, what):
    global checks
    checks += 1
    if a != b:
        raise AssertionError(f"{what}: {a!r} is not {b!r}")


def is_cut(name):
    """Whether the last call is one that the answer's end cut off: it is streamed, but not in the body."""
    return name.startswith(("chat_", "messages_")) and name.endswith("_call") and "functions" not in name and (
        "_length_in_" in name or "_end_in_" in name)


def request_of(name):
    return json.loads(CASES[name]["request"])


def only(request, *keys):
    return {k: v for k, v in request.items() if k in keys}


def chat(name, failing):
    client = openai.OpenAI(base_url=f"{URL}/{name}/v1", api_key="x", max_retries=0)
    asked = only(request_of(name), "model", "messages", "tools", "n", "stop", "logprobs", "top_logprobs",
                 "stream_options")
    if failing:
        for stream in (False, True):
            try:
                answer = client.chat.completions.create(**asked, stream=stream)
                for _ in answer if stream else ():
                    pass
                raise AssertionError(f"{name}: no error was raised")
            except openai.APIError as e:
                same("waiting" in e.message or "failed" in e.message, True, name)
        return
    plain = client.chat.completions.create(**asked)
    ChatCompletion.model_validate(json.loads(CASES[name]["body"]), strict=True)
    if any(t["type"] != "function" for t in asked.get("tools", [])):        # the accumulator supports functions only
        chunks = list(client.chat.completions.create(**asked, stream=True))
        text = "".join(c.choices[0].delta.tool_calls[0].custom["input"] for c in chunks if c.choices
                       and c.choices[0].delta.tool_calls)
        same(text, plain.choices[0].message.tool_calls[0].custom.input, name)
        return
    try:
        with client.chat.completions.stream(**asked) as stream:
            for _ in stream:
                pass
            end = stream.get_final_completion()
    except openai.LengthFinishReasonError:          # how the helper takes any answer that was cut; the plain stream shows the rest
        same("length" in [c.finish_reason for c in plain.choices], True, name)
        text = {}
        for chunk in client.chat.completions.create(**asked, stream=True):
            for c in chunk.choices:
                text[c.index] = text.get(c.index, "") + (c.delta.content or "")
        same(text, {c.index: c.message.content or "" for c in plain.choices}, name)
        return
    same(len(end.choices), len(plain.choices), name)
    for a, b in zip(end.choices, plain.choices):
        same(a.finish_reason, b.finish_reason, name)
        same(a.message.content or "", b.message.content or "", name)
        same(getattr(a.message, "reasoning_content", None), getattr(b.message, "reasoning_content", None), name)
        calls = [(c.id, c.function.name, c.function.arguments) for c in a.message.tool_calls or []]
        whole = [(c.id, c.function.name, c.function.arguments) for c in b.message.tool_calls or []]
        same(calls[: len(whole)], whole, name)
        same(len(calls) - len(whole), int(is_cut(name)), name)
        if asked.get("logprobs"):
            same([t.model_dump() for t in a.logprobs.content], [t.model_dump() for t in b.logprobs.content], name)
            same("".join(t.token for t in a.logprobs.content), b.message.content, name)
    if asked.get("stream_options"):
        same(end.usage.total_tokens, plain.usage.total_tokens, name)


def completions(name, failing):
    client = openai.OpenAI(base_url=f"{URL}/{name}/v1", api_key="x", max_retries=0)
    asked = only(request_of(name), "model", "prompt", "n", "stop", "logprobs", "stream_options", "echo")
    try:
        plain = client.completions.create(**asked)
        if not asked.get("echo"):  # the first token of a prompt has no probability: null, as from OpenAI itself
            Completion.model_validate(json.loads(CASES[name]["body"]), strict=True)
        text, reason = {}, {}
        for chunk in client.completions.create(**asked, stream=True):
            for c in chunk.choices:
                text[c.index] = text.get(c.index, "") + c.text
                reason[c.index] = reason.get(c.index) or c.finish_reason
        for c in plain.choices:
            same(text[c.index], c.text, name)
            same(reason[c.index], c.finish_reason, name)
        same(failing, False, name)
    except openai.APIError as e:
        same(failing, True, f"{name}: {e}")


def responses(name, failing):
    client = openai.OpenAI(base_url=f"{URL}/{name}/v1", api_key="x", max_retries=0)
    asked = only(request_of(name), "model", "input", "tools", "reasoning", "include", "text", "instructions",
                 "previous_response_id")
    if failing:
        try:
            client.responses.create(**asked)
            raise AssertionError(f"{name}: no error was raised")
        except openai.APIStatusError as e:
            same(e.status_code in (429, 500), True, name)
        if "mid" in name:
            *_, last = client.responses.create(**asked, stream=True)
            same(last.type, "response.failed", name)
            same(last.response.error.message, "the engine failed: bad luck", name)
        return
    plain = client.responses.create(**asked)
    Response.model_validate(json.loads(CASES[name]["body"]))
    number, ended = 0, set()
    with client.responses.stream(**asked) as stream:
        for event in stream:
            same(event.sequence_number, number, name)
            number += 1
            if event.type == "response.output_item.done":
                ended.add(event.output_index)
        end = stream.get_final_response() if plain.status == "completed" else None
    if plain.status != "completed":                # the accumulator only ends at completed ones
        events = list(client.responses.create(**asked, stream=True))
        same(events[-1].type, "response.incomplete", name)
        end = events[-1].response
    same(ended, set(range(len(end.output))), name)
    same(end.output_text, plain.output_text, name)
    same(end.status, plain.status, name)
    same([i.type for i in end.output], [i.type for i in plain.output], name)
    for a, b in zip(end.output, plain.output):
        for key in ("arguments", "input", "name", "namespace", "summary", "status", "encrypted_content"):
            same(getattr(a, key, None), getattr(b, key, None), f"{name}: {key}")
    same(end.usage.total_tokens, plain.usage.total_tokens, name)


def messages(name, failing):
    client = anthropic.Anthropic(base_url=f"{URL}/{name}", api_key="x", max_retries=0)
    asked = only(request_of(name), "model", "max_tokens", "messages", "tools", "stop_sequences")
    if failing:
        for stream in (False, True):
            try:
                answer = client.messages.create(**asked, stream=stream)
                for _ in answer if stream else ():
                    pass
                raise AssertionError(f"{name}: no error was raised")
            except anthropic.APIStatusError as e:
                same("waiting" in e.message or "failed" in e.message, True, name)
        return
    plain = client.messages.create(**asked)
    Message.model_validate(json.loads(CASES[name]["body"]), strict=True)
    with client.messages.stream(**asked) as stream:
        for _ in stream:
            pass
        end = stream.get_final_message()
    whole = [b.model_dump(exclude={"parsed_output"}) for b in plain.content]
    blocks = [b.model_dump(exclude={"parsed_output"}) for b in end.content]
    same(blocks[: len(whole)], whole, name)
    same(len(blocks) - len(whole), int(is_cut(name)), name)
    same(end.stop_reason, plain.stop_reason, name)
    same(end.stop_sequence, plain.stop_sequence, name)
    for key in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        same(getattr(end.usage, key), getattr(plain.usage, key), name)


def ollamas(name, failing):
    client = ollama.Client(host=f"{URL}/{name}")
    asked = request_of(name)
    ask = client.chat if "_chat_" in name else client.generate
    asked = only(asked, "model", "messages", "prompt", "tools", "options", "format", "think", "raw", "suffix")
    said = (lambda p: p.message.content) if "_chat_" in name else (lambda p: p.response)
    try:
        plain = ask(**asked)
        parts = list(ask(**asked, stream=True))
        same("".join(said(p) or "" for p in parts), said(plain), name)
        same((parts[-1].done, parts[-1].done_reason, parts[-1].eval_count),
             (True, plain.done_reason, plain.eval_count), name)
        if "_chat_" in name:
            same([c.function.model_dump() for p in parts for c in p.message.tool_calls or []],
                 [c.function.model_dump() for c in plain.message.tool_calls or []], name)
            same("".join(p.message.thinking or "" for p in parts), plain.message.thinking or "", name)
        same(failing, False, name)
    except ollama.ResponseError as e:
        same(failing, True, f"{name}: {e}")


failed = 0
DIALECTS = {"chat": chat, "completions": completions, "responses": responses, "messages": messages}
if ollama:
    DIALECTS["ollama"] = ollamas
CASES = {name: case for name, case in CASES.items() if name.split("_")[0] in DIALECTS}
for case in CASES:
    dialect = DIALECTS[case.split("_")[0]]
    try:
        dialect(case, "error" in case)
    except Exception as e:                          # one line per case, then the next
        failed += 1
        print(f"{case}: {type(e).__name__}: {e}")
print(f"openai {openai.__version__}, anthropic {anthropic.__version__}: {len(CASES) - failed} passed, {failed} failed, {checks} comparisons")
sys.exit(1 if failed else 0)
