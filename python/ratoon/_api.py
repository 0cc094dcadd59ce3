"""The C library: where it is, its structs in the layout of ratoon.h and ratoon_chat.h, and its functions."""
from __future__ import annotations

import array
import ctypes
import ctypes.util
import os
import pathlib
from ctypes import POINTER, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, \
    c_void_p
from typing import Any, Sequence


class Struct(ctypes.Structure):
    """A struct of the headers; one that begins with its size sets it. Integers that do not fit raise OverflowError:
    ctypes would take their low bits."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        if self._fields_[0][0] == "size":
            self.size = ctypes.sizeof(self)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        held = getattr(self, name)
        if type(held) is int and isinstance(value, int) and held != value:
            raise OverflowError("%s: %d is too large, or negative where it cannot be" % (name, value))


def tokens_of(ids: Sequence[int]) -> Any:
    """An array of C; ids that do not fit raise OverflowError."""
    return (c_int32 * len(ids))(*array.array("i", ids))


class rt_error(Struct):
    _fields_ = [("code", c_int), ("text", c_char * 512)]


LOG = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)
DRAFT = ctypes.CFUNCTYPE(None, c_void_p, POINTER(c_int32), c_int32, c_int32)
PROGRESS = ctypes.CFUNCTYPE(c_bool, c_void_p, c_char_p, c_int64, c_int64)


class rt_hooks(Struct):
    _fields_ = [("ud", c_void_p), ("log", LOG), ("progress", PROGRESS), ("trace", c_void_p)]


class rt_options(Struct):
    _fields_ = [("size", c_size_t), ("model", c_char_p), ("draft", c_char_p), ("backend", c_char_p),
                ("kv_k", c_char_p), ("kv_v", c_char_p), ("draft_type", c_char_p), ("threads", c_int32),
                ("fa_window", c_int32), ("taps", POINTER(c_int32)), ("n_taps", c_int32), ("no_repack", c_bool),
                ("overcommit", c_bool), ("hooks", rt_hooks), ("gpu_layers", c_int32), ("expert_slots", c_int32),
                ("expert_ram", c_uint64), ("expert_io", c_char_p), ("expert_profile", c_char_p),
                ("expert_vram", c_uint64), ("weight_type", c_char_p), ("card_layers", POINTER(c_int32))]


class rt_session_options(Struct):
    _fields_ = [("size", c_size_t), ("ctx", c_int32), ("draft_ctx", c_int32), ("checkpoints", c_int32),
                ("ngram", c_int32)]


class rt_step_options(Struct):
    _fields_ = [("size", c_size_t), ("sessions", c_int32), ("chunk", c_int32), ("budget", c_int32),
                ("draft_block", c_int32), ("threads", c_int32), ("chain", c_bool), ("hooks", rt_hooks)]


class rt_bias(Struct):
    _fields_ = [("id", c_int32), ("add", c_float)]


class rt_sampling(Struct):
    _fields_ = [("size", c_size_t), ("temperature", c_float), ("top_p", c_float), ("min_p", c_float),
                ("repetition", c_float), ("frequency", c_float), ("presence", c_float), ("top_k", c_int32),
                ("rep_window", c_int32), ("max_tokens", c_int32), ("n_bias", c_int32), ("seed", c_uint64),
                ("bias", POINTER(rt_bias))]


class rt_block(Struct):
    _fields_ = [("token", POINTER(c_int32)), ("n", c_int32), ("status", c_int)]


class rt_diffusion(Struct):
    _fields_ = [("size", c_size_t), ("steps", c_int32), ("stability", c_int32), ("confidence", c_float),
                ("t_max", c_float), ("t_min", c_float), ("entropy_bound", c_float), ("trim", c_float),
                ("trim_from", c_int32), ("lock", c_bool), ("mask", c_int32), ("draft", DRAFT), ("ud", c_void_p)]


class rt_stats(Struct):
    _fields_ = [("prompt_tokens", c_int64), ("resumed", c_int64), ("generated", c_int64), ("passes", c_int64),
                ("drafted", c_int64), ("accepted", c_int64), ("prefill_s", c_double), ("decode_s", c_double),
                ("drafts", c_int64), ("plain", c_int64), ("changes", c_int64), ("drafted_by", c_int64 * 8),
                ("accepted_by", c_int64 * 8), ("pass_s", c_double), ("experts_chosen", c_int64),
                ("experts_read", c_int64), ("experts_missed", c_int64),
                ("experts_missed_bytes", c_int64), ("experts_wait_s", c_double),
                ("blocks", c_int64), ("steps", c_int64)]


class rt_span(Struct):
    _fields_ = [("at", c_size_t), ("n", c_size_t)]


class rt_chat_request(Struct):
    _fields_ = [("size", c_size_t), ("messages", c_char_p), ("tools", c_char_p), ("kwargs", c_char_p),
                ("now", c_int64), ("thinking", c_int32), ("complete", c_int32)]


class rt_chat_text(Struct):
    _fields_ = [("text", POINTER(c_char)), ("n_text", c_size_t), ("token", POINTER(c_int32)), ("n_token", c_size_t),
                ("client", POINTER(rt_span)), ("n_client", c_size_t), ("marked", c_int32)]


class rt_event(Struct):
    _fields_ = [("kind", c_int), ("call", c_int32), ("bytes", POINTER(c_char)), ("n", c_size_t), ("from_", c_int32),
                ("tokens", c_int32)]


class rt_reply_options(Struct):
    _fields_ = [("size", c_size_t), ("conversation", POINTER(rt_chat_text)), ("grammar", c_void_p),
                ("stop", POINTER(c_char_p)), ("n_stop", c_int32), ("one_call", c_int32)]


# Handles are untyped pointers. Each function: its result, then its arguments.
_ERROR, _TOKENS = POINTER(rt_error), POINTER(c_int32)
_FUNCTIONS = {
    "rt_version": (c_char_p,), "rt_status_text": (c_char_p, c_int),
    "rt_open": (c_int, POINTER(c_void_p), POINTER(rt_options), _ERROR), "rt_close": (None, c_void_p),
    "rt_property": (c_size_t, c_void_p, c_char_p, c_char_p, c_size_t), "rt_has_tokenizer": (c_bool, c_void_p),
    "rt_tokenize": (c_size_t, c_void_p, c_char_p, c_size_t, c_bool, _TOKENS, c_size_t),
    "rt_tokenize_prompt": (c_size_t, c_void_p, c_char_p, c_size_t, POINTER(rt_span), c_size_t, _TOKENS, c_size_t),
    "rt_detokenize": (c_size_t, c_void_p, _TOKENS, c_size_t, c_char_p, c_size_t),
    "rt_token_bytes": (c_void_p, c_void_p, c_int32, POINTER(c_size_t)),
    "rt_token_ends": (c_bool, c_void_p, c_int32), "rt_token_find": (c_int32, c_void_p, c_char_p, c_size_t),
    "rt_session_new": (c_int, POINTER(c_void_p), c_void_p, POINTER(rt_session_options), _ERROR),
    "rt_session_free": (None, c_void_p), "rt_session_error": (c_char_p, c_void_p),
    "rt_session_ctx": (c_int32, c_void_p), "rt_session_text": (c_size_t, c_void_p, POINTER(_TOKENS)),
    "rt_prompt": (c_int, c_void_p, _TOKENS, c_size_t), "rt_mark": (c_int, c_void_p, _TOKENS, c_size_t),
    "rt_diffusion_set": (c_int, c_void_p, POINTER(rt_diffusion)),
    "rt_sampling_set": (c_int, c_void_p, POINTER(rt_sampling)), "rt_speculate": (c_int, c_void_p, c_bool),
    "rt_sampling_recommended": (None, c_void_p, POINTER(rt_sampling)),
    "rt_stats_get": (None, c_void_p, POINTER(rt_stats), c_size_t),
    "rt_step_new": (c_int, POINTER(c_void_p), c_void_p, POINTER(rt_step_options), _ERROR),
    "rt_step_free": (None, c_void_p), "rt_step_error": (c_char_p, c_void_p), "rt_step_cancel": (None, c_void_p),
    "rt_step_run": (c_int, c_void_p, POINTER(c_void_p), POINTER(rt_block), c_size_t),
    "rt_chat_new": (c_int, POINTER(c_void_p), c_void_p, c_char_p, _ERROR), "rt_chat_free": (None, c_void_p),
    "rt_chat_warning": (c_char_p, c_void_p), "rt_chat_can": (c_bool, c_void_p, c_int),
    "rt_chat_render": (c_int, POINTER(POINTER(rt_chat_text)), c_void_p, POINTER(rt_chat_request), _ERROR),
    "rt_chat_text_free": (None, POINTER(rt_chat_text)),
    "rt_grammar_new": (c_int, POINTER(c_void_p), c_int, c_char_p, c_size_t, c_char_p, _ERROR),
    "rt_grammar_free": (None, c_void_p),
    "rt_reply_new": (c_int, POINTER(c_void_p), c_void_p, POINTER(rt_reply_options), _ERROR),
    "rt_reply_free": (None, c_void_p), "rt_reply_read": (c_int, c_void_p, POINTER(rt_block)),
    "rt_reply_next": (c_bool, c_void_p, POINTER(rt_event)), "rt_reply_end": (c_int, c_void_p),
    "rt_reply_finish": (c_int, c_void_p, POINTER(c_int32)),
}


def _places() -> list[str]:
    """Where the library may be, in order."""
    named = os.environ.get("RATOON_LIBRARY")
    if named:
        return [named]
    here = pathlib.Path(__file__).resolve().parent
    beside = [here / "libratoon.so", here.parent.parent / "build" / "libratoon.so"]
    return [str(p) for p in beside if p.exists()] + [ctypes.util.find_library("ratoon") or "libratoon.so.0"]


def load() -> ctypes.CDLL:
    place = _places()[0]
    try:
        lib = ctypes.CDLL(place)
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as e:
        raise ImportError("libratoon: %s; build it (make), install it (make install), or name the file in "
                          "RATOON_LIBRARY" % e) from None
    return lib
