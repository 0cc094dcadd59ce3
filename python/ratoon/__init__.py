"""ratoon: language models with lossless speculative decoding, from Python.

    import ratoon

    with ratoon.Engine("model.gguf") as engine, engine.session() as session:
        with session.stream([{"role": "user", "content": "Why is the sky blue?"}]) as stream:
            for event in stream:
                print(event.text, end="", flush=True)

An engine is a loaded model; sessions of one engine may run in several threads, one thread at a time each. Errors of the
library are raised as Error, with its line. What options mean is described in ratoon.h and ratoon_chat.h.
"""
from __future__ import annotations

import ctypes
import dataclasses
import enum
import json
import os
import threading
from types import TracebackType
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Type, Union

from . import _api

__all__ = ["EXPERTS_AUTO", "Answer", "Call", "Engine", "Error", "Event", "Grammar", "Prompt", "Session", "Stats",
           "Status", "Stream", "version"]

EXPERTS_AUTO = 2 ** 64 - 1

_lib = _api.load()
Messages = Sequence[Mapping[str, Any]]


class Status(enum.IntEnum):
    """rt_status."""
    OK = 0
    END = 1
    ARGUMENT = -1
    MEMORY = -2
    IO = -3
    FORMAT = -4
    UNSUPPORTED = -5
    FULL = -6
    CANCEL = -7
    BACKEND = -8
    NO_TOKEN = -9
    LOST = -10


class Error(Exception):
    """A call of the library failed. str(error) is its line; status says of which kind it is."""

    def __init__(self, status: int, text: str) -> None:
        self.status = Status(status)
        super().__init__(text or _lib.rt_status_text(status).decode())


def version() -> str:
    """The version of the library."""
    return _lib.rt_version().decode()


def _check(status: int, error: _api.rt_error) -> None:
    if status < 0:
        raise Error(status, error.text.decode(errors="replace"))


def _bytes(value: Any, what: str) -> Optional[bytes]:
    """A string of C: text, or what becomes JSON."""
    if value is None:
        return None
    data = (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogatepass")
    if b"\0" in data:
        raise ValueError("%s holds a zero character" % what)
    return data


class _Owner:
    """Owns a handle of the library: a context manager, freed at the latest with the object."""
    _free: str

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()

    @property
    def _open(self) -> ctypes.c_void_p:
        if not self._handle:
            raise ValueError("%s is closed" % type(self).__name__)
        return self._handle

    def close(self) -> None:
        """Frees it; may be called twice."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            getattr(_lib, self._free)(handle)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()


class _Running(_Owner):
    """What a session has of the library, freed in its order. The engine keeps it, so that it can close its sessions
    whatever the order in which Python gives objects up."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.reply = ctypes.c_void_p(), ctypes.c_void_p()
        # Held while another thread cancels the step, so that it is not freed meanwhile. A signal's handler may cancel
        # in the middle of close, in the same thread.
        self.lock = threading.RLock()

    def end_reply(self) -> None:
        reply, self.reply = self.reply, ctypes.c_void_p()
        if reply:
            _lib.rt_reply_free(reply)

    def close(self) -> None:
        self.end_reply()
        with self.lock:
            step, self.step = self.step, ctypes.c_void_p()
        if step:
            _lib.rt_step_free(step)
        super().close()

    _free = "rt_session_free"


class Grammar(_Owner):
    """Which texts are allowed: a grammar in llama.cpp's format (kind "gbnf") or a JSON Schema (kind "json_schema", a
    dict or JSON text). It may be used by any number of sessions."""
    _free = "rt_grammar_free"

    def __init__(self, form: Union[str, Mapping[str, Any]], kind: str = "gbnf", name: Optional[str] = None) -> None:
        super().__init__()
        kinds = {"gbnf": 0, "json_schema": 1}
        if kind not in kinds:
            raise ValueError("kind: %r, expected 'gbnf' or 'json_schema'" % kind)
        text, error = _bytes(form, kind) or b"", _api.rt_error()
        _check(_lib.rt_grammar_new(ctypes.byref(self._handle), kinds[kind], text, len(text),
                                   _bytes(name or kind, "name"), error), error)


@dataclasses.dataclass(frozen=True)
class Event:
    """A piece of an answer. kind: "text" or "reasoning" (text: whole characters); "call" (text: the tool's name, once
    per call), "arguments" (text: a piece of one JSON object), "call_end". call: which call, from 0; -1: none. first,
    tokens: tokens of the answer that end before its first byte, and before its end."""
    kind: str
    text: str
    call: int
    first: int
    tokens: int


_KINDS = ("text", "reasoning", "call", "arguments", "call_end")
_FINISHES = (None, "stop", "stop_string", "calls", "length", "cancelled")


@dataclasses.dataclass
class Call:
    """A tool call. arguments: JSON text, cut short if the answer was."""
    name: str
    arguments: str = ""


@dataclasses.dataclass
class Answer:
    """What an answer has said so far. finish: None while it goes on, then "stop", "stop_string" (stop: which), "calls",
    "length" or "cancelled"."""
    text: str = ""
    reasoning: str = ""
    calls: list[Call] = dataclasses.field(default_factory=list)
    finish: Optional[str] = None
    stop: Optional[str] = None

    def message(self) -> dict[str, Any]:
        """The answer as a message of a conversation, to be appended to the others."""
        out: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            out["reasoning_content"] = self.reasoning
        if self.calls:
            out["tool_calls"] = [{"id": "call_%d" % i, "type": "function",
                                  "function": {"name": c.name, "arguments": c.arguments}}
                                 for i, c in enumerate(self.calls)]
        return out

    def _add(self, event: Event) -> None:
        if event.kind == "text":
            self.text += event.text
        elif event.kind == "reasoning":
            self.reasoning += event.text
        elif event.kind == "call":
            self.calls.append(Call(event.text))
        elif event.kind == "arguments":
            self.calls[-1].arguments += event.text


@dataclasses.dataclass(frozen=True)
class Stats:
    """Sums since the last prompt; see rt_stats. drafted_by, accepted_by: by source (drafter, text, MTP layer)."""
    prompt_tokens: int
    resumed: int
    generated: int
    passes: int
    drafted: int
    accepted: int
    prefill_s: float
    decode_s: float
    drafts: int
    plain: int
    changes: int
    drafted_by: tuple[int, ...]
    accepted_by: tuple[int, ...]
    pass_s: float
    experts_chosen: int
    experts_read: int
    experts_missed: int
    experts_missed_bytes: int
    experts_wait_s: float
    blocks: int
    steps: int


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A conversation as the model reads it."""
    text: str
    tokens: list[int]


class Engine(_Owner):
    """A loaded model and its drafter. log is called with (level, line), progress with (what, done, total) and returns
    False to cancel, both while the engine opens. expert_ram: bytes of memory for a mixture's experts, or EXPERTS_AUTO:
    as many as fit."""
    _free = "rt_close"

    def __init__(self, model: str, *, draft: Optional[str] = None, backend: Optional[str] = None,
                 kv_k: Optional[str] = None, kv_v: Optional[str] = None, draft_type: Optional[str] = None,
                 threads: int = 0, fa_window: int = 0, no_repack: bool = False, overcommit: bool = False,
                 weight_type: Optional[str] = None, gpu_layers: int = 0, expert_ram: int = 0, expert_slots: int = 0,
                 expert_io: Optional[str] = None, expert_profile: Optional[str] = None, template: Optional[str] = None,
                 log: Optional[Callable[[int, str], None]] = None,
                 progress: Optional[Callable[[str, int, int], bool]] = None) -> None:
        super().__init__()
        self._sessions: set[_Running] = set()
        self._chat: Optional[_Chat] = None
        self._template, self._lock = template, threading.Lock()
        hooks = _api.rt_hooks()
        if log:
            told = log
            hooks.log = _api.LOG(lambda _, level, line: told(level, line.decode(errors="replace")))
        if progress:
            asked = progress
            hooks.progress = _api.PROGRESS(lambda _, what, done, total: asked(what.decode(), done, total) is not False)
        self._hooks, error = hooks, _api.rt_error()
        options = _api.rt_options(
            model=_bytes(str(model), "model"), draft=_bytes(draft and str(draft), "draft"),
            backend=_bytes(backend, "backend"), kv_k=_bytes(kv_k, "kv_k"), kv_v=_bytes(kv_v, "kv_v"),
            draft_type=_bytes(draft_type, "draft_type"), threads=threads, fa_window=fa_window, no_repack=no_repack,
            overcommit=overcommit, hooks=hooks, gpu_layers=gpu_layers, expert_ram=expert_ram,
            expert_slots=expert_slots, expert_io=_bytes(expert_io, "expert_io"),
            expert_profile=_bytes(expert_profile and str(expert_profile), "expert_profile"),
            weight_type=_bytes(weight_type, "weight_type"))
        _check(_lib.rt_open(ctypes.byref(self._handle), options, error), error)

    def close(self) -> None:
        """Closes the engine and its sessions."""
        for running in list(getattr(self, "_sessions", ())):
            running.close()
        if getattr(self, "_chat", None):
            self._chat.close()
        super().close()

    def session(self, **options: Any) -> "Session":
        """A new session: see Session for the options."""
        return Session(self, **options)

    def get(self, key: str) -> Optional[str]:
        """A property as text, such as "model.arch" or "model.ctx" (see rt_property); None: there is none."""
        name = _bytes(key, "key")
        n = _lib.rt_property(self._open, name, None, 0)
        out = ctypes.create_string_buffer(n + 1)
        _lib.rt_property(self._open, name, out, n + 1)
        return out.value.decode(errors="replace") if n else None

    # ---- tokens ----

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """special: control tokens in the text become their ids, and BOS is prepended if the file asks for it."""
        data = text.encode("utf-8", "surrogatepass")
        n = _lib.rt_tokenize(self._open, data, len(data), special, None, 0)
        out = (ctypes.c_int32 * n)()
        _lib.rt_tokenize(self._open, data, len(data), special, out, n)
        return list(out)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of the tokens; bytes that are no character become U+FFFD."""
        ids = _api.tokens_of(tokens)
        n = _lib.rt_detokenize(self._open, ids, len(tokens), None, 0)
        out = ctypes.create_string_buffer(n + 1)
        _lib.rt_detokenize(self._open, ids, len(tokens), out, n)
        return out.raw[:n].decode()

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, which may be part of a character; control tokens have none."""
        n = ctypes.c_size_t()
        return ctypes.string_at(_lib.rt_token_bytes(self._open, _api.tokens_of([token])[0], n), n.value)

    def token_ends(self, token: int) -> bool:
        """Whether it is an end-of-generation token."""
        return _lib.rt_token_ends(self._open, _api.tokens_of([token])[0])

    # ---- conversations ----

    @property
    def chat(self) -> "_Chat":
        """The model's chat template, opened when it is first needed."""
        with self._lock:
            if not self._chat:
                self._chat = _Chat(self, self._template)
            return self._chat

    def can(self, feature: str) -> bool:
        """Whether the model's template shows "system", "tools", "tool_results" or has a choice of "thinking"."""
        return _lib.rt_chat_can(self.chat._open, _FEATURES.index(feature))

    def render(self, messages: Messages, *, tools: Optional[Sequence[Mapping[str, Any]]] = None,
               thinking: Optional[bool] = None, variables: Optional[Mapping[str, Any]] = None,
               complete: bool = False) -> Prompt:
        """The prompt of a conversation. variables: further ones of the template; complete: without the beginning of an
        answer."""
        with _Rendered(self, messages, tools, thinking, variables, complete) as t:
            seen = t.seen
            return Prompt(ctypes.string_at(seen.text, seen.n_text).decode(), list(seen.token[:seen.n_token]))


_FEATURES = ("system", "tools", "tool_results", "thinking")


class _Chat(_Owner):
    _free = "rt_chat_free"

    def __init__(self, engine: Engine, template: Optional[str]) -> None:
        super().__init__()
        error = _api.rt_error()
        _check(_lib.rt_chat_new(ctypes.byref(self._handle), engine._open, _bytes(template, "template"), error), error)


class _Rendered:
    """A rendered conversation while it is needed."""

    def __init__(self, engine: Engine, messages: Messages, tools: Any, thinking: Optional[bool], variables: Any,
                 complete: bool) -> None:
        self.at, error = ctypes.POINTER(_api.rt_chat_text)(), _api.rt_error()
        request = _api.rt_chat_request(
            messages=_bytes(json.dumps(list(messages)), "messages"), tools=_bytes(tools, "tools"),
            kwargs=_bytes(variables, "variables"), thinking=0 if thinking is None else 1 if thinking else -1,
            complete=complete)
        _check(_lib.rt_chat_render(ctypes.byref(self.at), engine.chat._open, request, error), error)
        self.seen = self.at.contents

    def __enter__(self) -> "_Rendered":
        return self

    def __exit__(self, *_: Any) -> None:
        _lib.rt_chat_text_free(self.at)


class Session:
    """A text and its state, with the step that advances it; used by one thread at a time, except for cancel. ctx,
    draft_ctx, checkpoints, ngram: see rt_session_options; budget, chunk, draft_block, threads, chain: see
    rt_step_options."""

    def __init__(self, engine: Engine, *, ctx: int = 0, draft_ctx: int = 0, checkpoints: int = 0, ngram: bool = True,
                 budget: int = 0, chunk: int = 0, draft_block: int = 0, threads: int = 0, chain: bool = False) -> None:
        self._engine, self._running, self._streams, error = engine, _Running(), 0, _api.rt_error()
        options = _api.rt_session_options(ctx=ctx, draft_ctx=draft_ctx, checkpoints=checkpoints,
                                          ngram=0 if ngram else -1)
        step = _api.rt_step_options(budget=budget, chunk=chunk, draft_block=draft_block, threads=threads, chain=chain)
        engine._sessions.add(self._running)
        try:
            _check(_lib.rt_session_new(ctypes.byref(self._running._handle), engine._open, options, error), error)
            _check(_lib.rt_step_new(ctypes.byref(self._running.step), engine._open, step, error), error)
        except Error:
            self.close()
            raise

    @property
    def _open(self) -> ctypes.c_void_p:
        return self._running._open

    def close(self) -> None:
        """Ends a stream that runs, and frees the session; may be called twice."""
        self._running.close()
        self._engine._sessions.discard(self._running)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_running"):
            self.close()

    def stream(self, prompt: Union[str, Messages], **settings: Any) -> "Stream":
        """Streams what continues a text, or the answer to a conversation: see Stream for the settings. A stream of this
        session that still runs ends."""
        return Stream(self, prompt, **settings)

    def generate(self, prompt: Union[str, Messages], **settings: Any) -> Answer:
        """The same, at once."""
        with self.stream(prompt, **settings) as stream:
            for _ in stream:
                pass
            return stream.answer

    def diffusion(self, *, draft: Optional[Callable[[list[int], int], None]] = None, **settings: float) -> None:
        """How a model that denoises writes its blocks, from the next step on: fields of rt_diffusion by name; what is
        not given is as the model file says. draft is called with (tokens, step) after each step of a block: what the
        block would be if that step were its last."""
        told = draft
        call = _api.DRAFT(lambda _, token, n, step: told(list(token[:n]), step)) if told else _api.DRAFT()
        self._must(_lib.rt_diffusion_set(self._open, _api.rt_diffusion(draft=call, **settings)))
        self._draft = call                         # the library holds it

    def cancel(self) -> None:
        """Ends the answer under way, or the next one if there is none. May be called in any thread."""
        with self._running.lock:
            if not self._running.step:
                raise ValueError("Session is closed")
            _lib.rt_step_cancel(self._running.step)

    @property
    def ctx(self) -> int:
        """Tokens of the context."""
        return _lib.rt_session_ctx(self._open)

    @property
    def tokens(self) -> list[int]:
        """All tokens that the session holds, given or generated."""
        at = ctypes.POINTER(ctypes.c_int32)()
        return list(at[:_lib.rt_session_text(self._open, at)])

    @property
    def stats(self) -> Stats:
        """Figures since the last prompt."""
        raw = _api.rt_stats()
        _lib.rt_stats_get(self._open, raw, ctypes.sizeof(raw))
        values = {f.name: getattr(raw, f.name) for f in dataclasses.fields(Stats)}
        return Stats(**{k: tuple(v) if isinstance(v, ctypes.Array) else v for k, v in values.items()})

    def _must(self, status: int) -> None:
        if status < 0:
            raise Error(status, _lib.rt_session_error(self._open).decode(errors="replace"))


class Stream:
    """An answer as it comes: iterate over its events. Close it, or use it as a context manager, to end it early; the
    session keeps what was said. answer grows with the events.

    temperature, top_p, min_p, top_k, repetition, frequency, presence, rep_window, max_tokens, seed, bias (token: what
    is added): see rt_sampling; temperature 0 is greedy. What is not given: a text is continued greedily, an answer
    sampled as the model file recommends (rt_sampling_recommended), with a random seed. stop: texts that end the
    answer. grammar: a Grammar, or the text of one; json_schema: a schema. For conversations: tools, thinking (True,
    False, or None: the template decides), variables (further ones of the template), one_call (the answer ends after
    its first tool call)."""

    def __init__(self, session: Session, prompt: Union[str, Messages], *, temperature: Optional[float] = None,
                 top_p: Optional[float] = None, min_p: Optional[float] = None, top_k: Optional[int] = None,
                 repetition: Optional[float] = None, frequency: float = 0, presence: float = 0, rep_window: int = 0,
                 max_tokens: int = 0, seed: Optional[int] = None, bias: Optional[Mapping[int, float]] = None,
                 stop: Union[str, Sequence[str]] = (), grammar: Union[Grammar, str, None] = None,
                 json_schema: Union[Mapping[str, Any], str, None] = None,
                 tools: Optional[Sequence[Mapping[str, Any]]] = None, thinking: Optional[bool] = None,
                 variables: Optional[Mapping[str, Any]] = None, one_call: bool = False) -> None:
        self.answer = Answer()
        self._session = session
        self._stop = [stop] if isinstance(stop, str) else list(stop)
        for text in self._stop:
            if not isinstance(text, str):
                raise TypeError("stop: %r, expected a text or a list of texts" % (text,))
        self._block, self._event = _api.rt_block(), _api.rt_event()
        if grammar is not None and json_schema is not None:
            raise ValueError("there can be only one of grammar and json_schema")
        if json_schema is not None:
            grammar = Grammar(json_schema, "json_schema")
        elif isinstance(grammar, str):
            grammar = Grammar(grammar)
        biases = list((bias or {}).items())
        sampling = _api.rt_sampling(
            frequency=frequency, presence=presence, rep_window=rep_window, max_tokens=max_tokens, n_bias=len(biases),
            bias=(_api.rt_bias * len(biases))(*[_api.rt_bias(id=i, add=a) for i, a in biases]))
        if not isinstance(prompt, str):
            _lib.rt_sampling_recommended(session._engine._open, sampling)
            sampling.seed = int.from_bytes(os.urandom(4), "little")
        for name, value in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p), ("top_k", top_k),
                            ("repetition", repetition), ("seed", seed)):
            if value is not None:
                setattr(sampling, name, value)
        session._open                              # raises if it is closed
        session._running.end_reply()
        session._streams += 1
        self._number = session._streams
        session._must(_lib.rt_sampling_set(session._open, sampling))
        options = _api.rt_reply_options(
            grammar=grammar._open if grammar else None, n_stop=len(self._stop), one_call=one_call,
            stop=(ctypes.c_char_p * len(self._stop))(*[_bytes(s, "stop") for s in self._stop]))
        if isinstance(prompt, str):
            self._prompt_text(prompt)
            self._begin(options)
        else:
            with _Rendered(session._engine, prompt, tools, thinking, variables, False) as t:
                session._must(_lib.rt_prompt(session._open, t.seen.token, t.seen.n_token))
                if t.seen.marked > 0:
                    session._must(_lib.rt_mark(session._open, (ctypes.c_int32 * 1)(t.seen.marked), 1))
                options.conversation = t.at
                self._begin(options)

    @property
    def _reply(self) -> ctypes.c_void_p:
        """Null once the session has another stream, or none."""
        session = self._session
        return session._running.reply if session._streams == self._number else ctypes.c_void_p()

    def _prompt_text(self, text: str) -> None:
        """Control tokens in it are text; BOS is put in front if the model wants it."""
        session, data = self._session, text.encode("utf-8", "surrogatepass")
        span, engine = _api.rt_span(at=0, n=len(data)), session._engine._open
        n = _lib.rt_tokenize_prompt(engine, data, len(data), span, 1, None, 0)
        ids = (ctypes.c_int32 * n)()
        _lib.rt_tokenize_prompt(engine, data, len(data), span, 1, ids, n)
        session._must(_lib.rt_prompt(session._open, ids, n))

    def _begin(self, options: _api.rt_reply_options) -> None:
        error = _api.rt_error()
        at = ctypes.byref(self._session._running.reply)
        _check(_lib.rt_reply_new(at, self._session._open, options, error), error)

    # A signal's handler may raise an exception after any call of the library: what the call has brought stays in _block
    # and _event until it has been read, and the next iteration begins with it.

    def __iter__(self) -> Iterator[Event]:
        while self._reply:
            yield from self._events()
            if self.answer.finish is not None or self._finish() is not None:
                break
            self._advance()
        self.close()

    def _advance(self) -> None:
        """Reads a block, that of a step or one that is still to be read."""
        session, reply = self._session, self._reply
        step = session._running.step
        status = Status.OK if self._block.n else _lib.rt_step_run(step, session._open, self._block, 1)
        if status == Status.CANCEL:
            session._must(_lib.rt_reply_end(reply))
        elif status < 0:
            raise Error(status, _lib.rt_step_error(step).decode(errors="replace"))
        else:
            block, self._block = self._block, _api.rt_block()
            session._must(_lib.rt_reply_read(reply, block))
        self._finish()

    def _finish(self) -> Optional[str]:
        which = ctypes.c_int32(-1)
        self.answer.finish = _FINISHES[_lib.rt_reply_finish(self._reply, which)]
        self.answer.stop = self._stop[which.value] if which.value >= 0 else None
        return self.answer.finish

    def _events(self) -> Iterator[Event]:
        while self._reply and (self._event.bytes or _lib.rt_reply_next(self._reply, self._event)):
            raw = self._event
            text = ctypes.string_at(raw.bytes, raw.n).decode()
            event = Event(_KINDS[raw.kind], text, raw.call, raw.from_, raw.tokens)
            self._event = _api.rt_event()
            self.answer._add(event)
            yield event

    def close(self) -> None:
        """Ends the answer here, if it goes on."""
        if not self._reply:
            return
        for _ in self._events():
            pass
        if self._block.n:
            self._advance()
        _lib.rt_reply_end(self._reply)
        for _ in self._events():
            pass
        self._finish()
        self._session._running.end_reply()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
