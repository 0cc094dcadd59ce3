#!/usr/bin/env python3
"""The official Python SDKs of OpenAI and Anthropic, and Ollama's package, against the demo pair: chat, streams with the SDKs' own accumulators, tools round trips
with forced calls, structured output, Responses, counting, and errors as their typed exceptions.

    python3 tests/serve/test_sdk.py [-v] [TestName.test_name ...]

The SDKs are installed into $BUILD/sdk (a virtual environment) where pip can; else, or with NO_SDK=1, everything is skipped and says so.
The last line is 'N passed, N failed'."""
import asyncio
import json
import os
import subprocess
import sys
import typing
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helper import *

try:
    import anthropic
    import openai
    import pydantic
except ImportError:
    anthropic = None
try:
    import httpx
    import ollama
except ImportError:
    ollama = None

VENV = os.path.join(ROOT, os.environ.get("BUILD", "build"), "sdk")
PACKAGES = ["openai", "anthropic"]
S = None
WEATHER = {"type": "object",
           "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]},
                          "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}


def find_sdk():
    """Runs this test again with an interpreter that has the SDKs; returns why none can be had."""
    python = os.path.join(VENV, "bin", "python3")
    if os.environ.get("NO_SDK"):
        return "NO_SDK is set"
    if os.environ.get("SDK_FOUND"):
        return "the SDKs cannot be imported"
    def has(p):
        return os.path.exists(p) and subprocess.run([p, "-c", "import openai, anthropic"],
                                                    stderr=subprocess.DEVNULL).returncode == 0
    if not has(python):
        try:
            for command in ([sys.executable, "-m", "venv", "--clear", VENV],
                            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--timeout", "20",
                             "--retries", "1", *PACKAGES]):
                subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as e:
            return "pip could not install " + " and ".join(PACKAGES) + ": " + str(e)
        if not has(python):
            return "what pip installed of " + " and ".join(PACKAGES) + " cannot be imported"
        try:
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--timeout", "20",
                            "--retries", "1", "ollama"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
        except (OSError, subprocess.SubprocessError):
            pass                                   # its tests say that it is missing
    os.execve(python, [python, os.path.abspath(__file__), *sys.argv[1:]], {**os.environ, "SDK_FOUND": "1"})


def setUpModule():
    global S
    S = Server("--quiet", "--max-n", "4", wait=False)
    if not S.wait_for(lambda: S.get("/health")[0] == 200):
        raise AssertionError("not ready: " + S.log)


def tearDownModule():
    code = S.stop()
    if code != 0:
        raise AssertionError("exit status %d: %s" % (code, S.log[-3000:]))


class OpenAI(unittest.TestCase):
    def setUp(self):
        self.c = openai.OpenAI(base_url=S.url + "/v1", api_key="any", max_retries=0)
        self.addCleanup(self.c.close)
        self.ask = [{"role": "user", "content": "def add(a, b):"}]
        self.tools = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER, "strict": True}}]

    def test_models(self):
        model = self.c.models.list().data[0]
        self.assertEqual(self.c.models.retrieve(model.id).id, model.id)
        with self.assertRaises(openai.NotFoundError):
            self.c.models.retrieve("nobody")

    def test_chat(self):
        r = self.c.chat.completions.create(model="m", messages=self.ask, max_tokens=20, n=2, temperature=1, seed=1,
                                           logprobs=True, top_logprobs=2)
        self.assertEqual(len(r.choices), 2)
        self.assertEqual(len(r.choices[0].logprobs.content[0].top_logprobs), 2)
        self.assertEqual(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens)
        self.assertIsInstance(r.usage.prompt_tokens_details.cached_tokens, int)

    def test_chat_stream(self):
        whole = self.c.chat.completions.create(model="m", messages=self.ask, max_tokens=30).choices[0].message.content
        text, usage = "", None
        for chunk in self.c.chat.completions.create(model="m", messages=self.ask, max_tokens=30, stream=True,
                                                    stream_options={"include_usage": True}):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            usage = chunk.usage or usage
        self.assertEqual(text, whole)
        self.assertGreater(usage.completion_tokens, 0)
        # it refuses answers that end by length
        with self.c.chat.completions.stream(model="m", messages=self.ask, max_tokens=30, stop=whole[20:25]) as s:
            for _ in s:
                pass
            self.assertEqual(s.get_final_completion().choices[0].message.content, whole[:whole.index(whole[20:25])])

    def test_strict_tools(self):
        """The SDK's own helper makes tools strict; the demo model continues the pattern of these turns."""
        class Weather(pydantic.BaseModel):
            city: typing.Literal["Oslo", "Rome"]
            days: int = pydantic.Field(ge=1, le=9)
        habit = [m for _ in range(4) for m in ({"role": "user", "content": "Weather?"}, {"role": "assistant", "content":
                 '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berlin", "days": 55}}\n</tool_call>'})] + [{"role": "user", "content": "Weather?"}]
        r = self.c.chat.completions.parse(model="m", messages=habit,
                                          tools=[openai.pydantic_function_tool(Weather, name="get_weather")],
                                          parallel_tool_calls=False, max_tokens=300)
        (call,) = r.choices[0].message.tool_calls
        self.assertIsInstance(call.function.parsed_arguments, Weather)
        self.assertEqual(r.choices[0].finish_reason, "tool_calls")

    def test_tools(self):
        choice = {"type": "function", "function": {"name": "get_weather"}}
        r = self.c.chat.completions.create(model="m", messages=self.ask, tools=self.tools, tool_choice=choice,
                                           max_tokens=300)
        call = r.choices[0].message.tool_calls[0]
        self.assertEqual((r.choices[0].finish_reason, call.function.name), ("tool_calls", "get_weather"))
        self.assertIn(json.loads(call.function.arguments)["city"], ("Oslo", "Rome"))
        follow = self.ask + [r.choices[0].message.model_dump(exclude_none=True),
                             {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        r2 = self.c.chat.completions.create(model="m", messages=follow, tools=self.tools, max_tokens=10)
        self.assertGreater(r2.usage.prompt_tokens_details.cached_tokens, 0)
        with self.c.chat.completions.stream(model="m", messages=self.ask, tools=self.tools, tool_choice=choice,
                                            max_tokens=300) as s:
            for _ in s:
                pass
            final = s.get_final_completion().choices[0].message.tool_calls[0]
        self.assertEqual(final.function.arguments, call.function.arguments)

    def test_structured(self):
        class Person(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=10)
            age: int = pydantic.Field(ge=0, le=99)
        r = self.c.chat.completions.parse(model="m", messages=self.ask, response_format=Person, max_tokens=500)
        self.assertIsInstance(r.choices[0].message.parsed, Person)
        p = self.c.responses.parse(model="m", input="A person", text_format=Person, max_output_tokens=500)
        self.assertIsInstance(p.output_parsed, Person)
        with self.assertRaises(openai.LengthFinishReasonError):
            self.c.chat.completions.parse(model="m", messages=self.ask, response_format=Person, max_tokens=2)

    def test_completions(self):
        r = self.c.completions.create(model="m", prompt=["def a():", "class B:"], max_tokens=10, logprobs=2, echo=True)
        self.assertTrue(r.choices[0].text.startswith("def a():"))
        self.assertEqual("".join(r.choices[1].logprobs.tokens), r.choices[1].text)
        self.assertEqual("".join(c.choices[0].text
                                 for c in self.c.completions.create(model="m", prompt="def a():", max_tokens=10,
                                                                    stream=True) if c.choices),
                         self.c.completions.create(model="m", prompt="def a():", max_tokens=10).choices[0].text)

    def test_responses(self):
        r = self.c.responses.create(model="m", input="def add(a, b):", max_output_tokens=20)
        self.assertTrue(r.output_text)
        self.assertGreater(r.usage.output_tokens, 0)
        stop = r.output_text[10:15]                # its accumulator only accepts response.completed as an end
        with self.c.responses.stream(model="m", input="def add(a, b):", max_output_tokens=20,
                                     extra_body={"stop": [stop]}) as s:
            kinds = [e.type for e in s]
            final = s.get_final_response()
        self.assertEqual(final.output_text, r.output_text[:r.output_text.index(stop)])
        self.assertEqual(kinds[0], "response.created")
        again = self.c.responses.create(model="m", input="and?", previous_response_id=r.id, max_output_tokens=5)
        self.assertEqual(again.previous_response_id, r.id)
        self.assertEqual(self.c.responses.retrieve(r.id).output_text, r.output_text)
        self.c.responses.delete(r.id)
        with self.assertRaises(openai.NotFoundError):
            self.c.responses.retrieve(r.id)

    def test_responses_tools(self):
        tools = [{"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}]
        with self.c.responses.stream(model="m", input="Weather?", tools=tools, tool_choice="required",
                                     parallel_tool_calls=False, max_output_tokens=300) as s:
            for _ in s:
                pass
            final = s.get_final_response()
        call = [o for o in final.output if o.type == "function_call"][0]
        self.assertIn(json.loads(call.arguments)["city"], ("Oslo", "Rome"))
        r = self.c.responses.create(model="m", max_output_tokens=10, tools=tools,
                                    input=[{"role": "user", "content": "Weather?"},
                                           *[o.model_dump(exclude_none=True) for o in final.output],
                                                                            {"type": "function_call_output",
                                                                             "call_id": call.call_id,
                                                                             "output": "rain"}])
        self.assertGreater(r.usage.input_tokens, final.usage.input_tokens)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as e:
            self.c.chat.completions.create(model="m", messages=self.ask, temperature=-1)
        self.assertEqual(e.exception.param, "temperature")
        self.assertTrue(e.exception.request_id)
        with self.assertRaises(openai.BadRequestError) as e:
            self.c.chat.completions.create(model="m", messages=[{"role": "user", "content": "a " * 5000}])
        self.assertEqual(e.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.APIStatusError) as e:
            self.c.embeddings.create(model="m", input="a")
        self.assertEqual(e.exception.status_code, 501)
        server = Server("--api-key", "right")
        try:
            with openai.OpenAI(base_url=server.url + "/v1", api_key="wrong",
                               max_retries=0) as c, self.assertRaises(openai.AuthenticationError):
                c.models.list()
            with openai.OpenAI(base_url=server.url, api_key="right", max_retries=0) as c:             # without /v1
                self.assertTrue(c.models.list().data)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_async(self):
        async def run():
            async with openai.AsyncOpenAI(base_url=S.url + "/v1", api_key="any", max_retries=0) as c:
                async def one(i):
                    text = ""
                    async for chunk in await c.chat.completions.create(model="m", messages=self.ask, max_tokens=20,
                                                                       stream=True):
                        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
                    return text
                return await asyncio.gather(*[one(i) for i in range(8)])
        self.assertEqual(len(set(asyncio.run(run()))), 1)


class Anthropic(unittest.TestCase):
    def setUp(self):
        self.c = anthropic.Anthropic(base_url=S.url, api_key="any", max_retries=0)
        self.addCleanup(self.c.close)
        self.ask = [{"role": "user", "content": "def add(a, b):"}]
        self.tools = [{"name": "get_weather", "description": "d", "input_schema": WEATHER}]

    def test_messages(self):
        r = self.c.messages.create(model="m", messages=self.ask, max_tokens=20, system="You write code.")
        self.assertEqual((r.type, r.role, r.content[0].type), ("message", "assistant", "text"))
        with self.c.messages.stream(model="m", messages=self.ask, max_tokens=20, system="You write code.") as s:
            text = "".join(s.text_stream)
            final = s.get_final_message()
        self.assertEqual(text, r.content[0].text)
        self.assertEqual(final.stop_reason, r.stop_reason)
        self.assertEqual(final.usage.output_tokens, r.usage.output_tokens)

    def test_tools(self):
        choice = {"type": "tool", "name": "get_weather"}
        r = self.c.messages.create(model="m", messages=self.ask, tools=self.tools, tool_choice=choice, max_tokens=300)
        call = [b for b in r.content if b.type == "tool_use"][0]
        self.assertEqual((r.stop_reason, call.name), ("tool_use", "get_weather"))
        self.assertIn(call.input["city"], ("Oslo", "Rome"))
        with self.c.messages.stream(model="m", messages=self.ask, tools=self.tools, tool_choice=choice,
                                    max_tokens=300) as s:
            for _ in s:
                pass
            again = [b for b in s.get_final_message().content if b.type == "tool_use"][0]
        self.assertEqual(again.input, call.input)
        follow = self.ask + [{"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in r.content]},
                             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                                           "content": "rain"}]}]
        r2 = self.c.messages.create(model="m", messages=follow, tools=self.tools, max_tokens=10)
        self.assertGreater(r2.usage.cache_read_input_tokens, 0)

    def test_count(self):
        n = self.c.messages.count_tokens(model="m", messages=self.ask).input_tokens
        u = self.c.messages.create(model="m", messages=self.ask, max_tokens=1).usage
        self.assertEqual(n, u.input_tokens + u.cache_read_input_tokens + u.cache_creation_input_tokens)

    def test_errors(self):
        with self.assertRaises(anthropic.BadRequestError):
            self.c.messages.create(model="m", messages=[], max_tokens=5)
        with self.assertRaises(anthropic.BadRequestError) as e:
            self.c.messages.create(model="m", messages=[{"role": "user", "content": "a " * 5000}], max_tokens=5)
        self.assertIn("prompt is too long", str(e.exception))
        model = self.c.models.list().data[0]
        self.assertEqual((model.type, model.display_name), ("model", model.id))
        self.assertGreater(self.c.models.retrieve(model.id).created_at.year, 2000)
        with self.assertRaises(anthropic.NotFoundError):
            self.c.models.retrieve("nobody")
        server = Server("--api-key", "right")
        try:
            with anthropic.Anthropic(base_url=server.url, api_key="wrong",
                                     max_retries=0) as c, self.assertRaises(anthropic.AuthenticationError):
                c.messages.create(model="m", messages=self.ask, max_tokens=5)
            with anthropic.Anthropic(base_url=server.url, auth_token="right", max_retries=0) as c:
                c.messages.create(model="m", messages=self.ask, max_tokens=1)
        finally:
            self.assertEqual(server.stop(), 0)


class Denoising(unittest.TestCase):
    """A model that writes whole blocks: clients see an ordinary answer in fewer pieces, also beside drafts."""

    @classmethod
    def setUpClass(cls):
        cls.s = Server("-m", os.path.join(ROOT, "models", "demo", "ratoon-diffusion-demo-q8_0.gguf"),
                       greedy=False)
        cls.addClassCleanup(cls.s.stop)
        cls.ask = [{"role": "user", "content": "Sam buys 10 boxes with 3 shells in each box. How many shells does Sam "
                                               "buy in all?"}]

    def test_openai(self):
        with openai.OpenAI(base_url=self.s.url + "/v1", api_key="any", max_retries=0) as c:
            how = dict(model="m", messages=self.ask, max_tokens=100, temperature=1, seed=1)
            whole = c.chat.completions.create(**how)
            self.assertEqual(whole.choices[0].finish_reason, "stop")
            self.assertIn("\nThe answer is ", whole.choices[0].message.content)
            self.assertGreater(whole.usage.steps, whole.usage.blocks)
            drafts = 0
            with c.chat.completions.stream(**how, stream_options={"include_usage": True, "include_drafts": True}) as s:
                for event in s:
                    drafts += event.type == "chunk" and getattr(event.chunk, "draft", None) is not None
                final = s.get_final_completion()
            self.assertEqual(final.choices[0].message.content, whole.choices[0].message.content)
            self.assertEqual(drafts, whole.usage.steps)
            few = c.chat.completions.create(**how, extra_body={"diffusion": {"steps": 1}})
            self.assertEqual(few.usage.steps, few.usage.blocks)
            r = c.responses.create(model="m", input="What is 29 + 13?", max_output_tokens=60, temperature=1)
            self.assertTrue(r.output_text)
            ask = dict(model="m", input="What is 29 + 13?", max_output_tokens=60, temperature=1, extra_body={"seed": 1})
            whole = c.responses.create(**ask)
            with c.responses.stream(**ask, stream_options={"include_drafts": True}) as s:
                drafts = [event for event in s if event.type == "response.ratoon.draft"]
                self.assertEqual(s.get_final_response().output_text, whole.output_text)
            self.assertGreater(len(drafts), 1)
            self.assertEqual(drafts[0].draft["step"], 1)
            with self.assertRaises(openai.BadRequestError):
                c.chat.completions.create(**how, logprobs=True)

    def test_anthropic(self):
        with anthropic.Anthropic(base_url=self.s.url, api_key="any", max_retries=0) as c:
            how = dict(model="m", messages=self.ask, max_tokens=100, extra_body={"seed": 1})
            whole = c.messages.create(**how)
            with c.messages.stream(**how) as s:
                text = "".join(s.text_stream)
                self.assertEqual(s.get_final_message().stop_reason, "end_turn")
            self.assertEqual(text, whole.content[0].text)
            self.assertIn("\nThe answer is ", text)
            types = lambda: [e.type for e in c.messages.create(**how, stream=True) if e.type != "ratoon.draft"]
            plain = types()
            how["extra_body"]["stream_options"] = {"include_drafts": True}
            with c.messages.with_streaming_response.create(**how, stream=True) as r:
                self.assertGreater(list(r.iter_lines()).count("event: ratoon.draft"), 1)
            self.assertEqual(types(), plain)       # some versions pass drafts on, others leave them out
            with c.messages.stream(**how) as s:
                self.assertEqual("".join(s.text_stream), text)
                self.assertEqual(s.get_final_message().content[0].text, text)


@unittest.skipUnless(ollama, "pip could not install ollama")
class Ollama(unittest.TestCase):
    def setUp(self):
        self.c = ollama.Client(host=S.url)
        self.ask = [{"role": "user", "content": "def add(a, b):"}]
        self.name = self.c.list().models[0].model

    def test_models(self):
        self.assertTrue(self.name.endswith(":latest"))
        self.assertGreater(self.c.list().models[0].size, 1e6)
        self.assertEqual(self.c.ps().models[0].model, self.name)
        shown = self.c.show(self.name)
        self.assertEqual((shown.details.format, shown.modelinfo["general.architecture"]), ("gguf", "qwen35"))
        self.assertEqual(shown.capabilities, ["completion"])
        with self.assertRaises(ollama.ResponseError) as e:
            self.c.show("nobody")
        self.assertEqual(e.exception.status_code, 404)

    def test_chat(self):
        options = {"num_predict": 20, "seed": 4, "temperature": 0.7, "stop": ["never"]}
        whole = self.c.chat(self.name, self.ask, options=options, keep_alive="5m")
        parts = list(self.c.chat(self.name, self.ask, options=options, stream=True))
        self.assertEqual("".join(p.message.content for p in parts), whole.message.content)
        self.assertEqual((whole.done, whole.done_reason, whole.eval_count), (True, "length", 20))
        self.assertEqual(parts[-1].eval_count, 20)
        self.assertGreater(whole.total_duration, 0)

    def test_generate(self):
        whole = self.c.generate(self.name, "def add(a, b):", options={"num_predict": 12}, raw=True)
        text = "".join(p.response for p in self.c.generate(self.name, "def add(a, b):", options={"num_predict": 12},
                                                           raw=True, stream=True))
        self.assertEqual(text, whole.response)
        self.assertEqual(self.c.generate(self.name, "").done_reason, "load")
        with self.assertRaises(ollama.ResponseError) as e:
            self.c.generate(self.name, "a", suffix="b")
        self.assertEqual(e.exception.status_code, 501)
        with self.assertRaises(ollama.ResponseError):
            self.c.generate(self.name, "a", images=[b"no image"])

    def test_format(self):
        class Person(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=10)
            age: int = pydantic.Field(ge=0, le=99)
        r = self.c.chat(self.name, self.ask, format=Person.model_json_schema(), options={"num_predict": 500})
        self.assertIsInstance(Person.model_validate_json(r.message.content), Person)
        r = self.c.chat(self.name, self.ask, format="json", options={"num_predict": 40})
        self.assertTrue(r.message.content.lstrip().startswith("{"))

    def test_tools(self):
        """The demo model calls nothing by itself, and the package has no tool_choice: it is added on the way."""
        class Forced(httpx.HTTPTransport):
            def handle_request(self, request):
                body = {**json.loads(request.read()), "tool_choice": "required", "parallel_tool_calls": False}
                return super().handle_request(httpx.Request(request.method, request.url, json=body))

        def get_weather(city: str) -> str:
            """Says what the weather is like.

            Args:
                city: the city
            """
        forced = ollama.Client(host=S.url, transport=Forced())
        tool = {"type": "function", "function": {"name": "get_weather", "parameters": {
            "type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}}, "required": ["city"]}}}
        asked = {"tools": [tool], "options": {"num_predict": 200, "seed": 1}}
        whole = forced.chat(self.name, self.ask, **asked).message
        (call,) = whole.tool_calls
        self.assertEqual(call.function.name, "get_weather")
        self.assertIn(call.function.arguments["city"], ("Oslo", "Rome"))
        (streamed,) = [c for p in forced.chat(self.name, self.ask, stream=True, **asked) for c in p.message.tool_calls or []]
        self.assertEqual(streamed.function, call.function)
        follow = self.ask + [whole, {"role": "tool", "tool_name": "get_weather", "content": "rain"}]
        self.assertTrue(self.c.chat(self.name, follow, tools=[get_weather], options={"num_predict": 5}).done)

    def test_many_at_once(self):
        async def run():
            c = ollama.AsyncClient(host=S.url)
            async def one():
                return "".join([p.message.content async for p in await c.chat(self.name, self.ask, stream=True,
                                                                              options={"num_predict": 20})])
            return await asyncio.gather(*[one() for _ in range(6)])
        self.assertEqual(len(set(asyncio.run(run()))), 1)


if __name__ == "__main__":
    why = None if anthropic else find_sdk()
    if why:
        print("the SDKs' tests are skipped: " + why)
        print("0 passed, 0 failed, skipped")
        sys.exit(0)
    sys.exit(main(sys.modules[__name__]))
