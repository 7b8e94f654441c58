"""Declarations for ctypes of the structs and functions of weir.h, in libweir.so.1."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

SONAME = "libweir.so.1"

OWN_RINGS = 1
BLOCKS = 2


class Options(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("socket", c_char_p),
        ("filter", c_char_p),
        ("feed_name", c_char_p),
        ("snaplen", c_uint32),
        ("direction", c_int),
        ("sample", c_uint32),
        ("flows", c_uint32),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class Block(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("bytes", c_size_t),
        ("frames", c_uint64),
        ("head", c_void_p),
        ("head_bytes", c_size_t),
    ]


class Drop(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("frames", c_uint64)]


class Statistics(ctypes.Structure):
    _fields_ = [
        ("offered", c_uint64),
        ("filtered", c_uint64),
        ("blocked", c_uint64),
        ("sampled", c_uint64),
        ("captured", c_uint64),
        ("dropped", c_uint64),
        ("drops", POINTER(Drop)),
        ("drop_count", c_size_t),
        ("missed_before", c_uint64),
        ("delivered", c_uint64),
        ("lapped", c_uint64),
        ("late", c_uint64),
        ("lives", c_uint64),
        ("kept_bytes", c_uint64),
        ("wire_bytes", c_uint64),
        ("super_frames", c_uint64),
        ("filtered_uncounted", c_int),
    ]


class Source(ctypes.Structure):
    pass


Source._fields_ = [
    ("next", POINTER(Source)),
    ("name", c_char_p),
    ("snaplen", c_uint32),
    ("link_type", c_uint32),
]

_FEED = c_void_p
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "weir_open": (c_int, [POINTER(_FEED), c_char_p, POINTER(Options), c_char_p, c_size_t]),
    "weir_start": (c_int, [_FEED]),
    "weir_close": (None, [_FEED]),
    "weir_error": (c_char_p, [_FEED]),
    "weir_next_block": (c_int, [_FEED, POINTER(POINTER(Block)), c_int]),
    "weir_pcapng_header": (c_int, [_FEED, POINTER(POINTER(c_uint8)), POINTER(c_size_t)]),
    "weir_link_type": (c_int, [_FEED]),
    "weir_interface_name": (c_char_p, [_FEED, c_uint32]),
    "weir_fd": (c_int, [_FEED]),
    "weir_break": (None, [_FEED]),
    "weir_set_filter": (c_int, [_FEED, c_char_p]),
    "weir_block_entries": (c_int, [_FEED, POINTER(c_char_p), c_size_t, c_uint64]),
    "weir_unblock_entries": (c_int, [_FEED, POINTER(c_char_p), c_size_t]),
    "weir_get_statistics": (c_int, [_FEED, POINTER(POINTER(Statistics))]),
    "weir_list_sources": (c_int, [POINTER(POINTER(Source)), c_char_p, c_char_p, c_size_t]),
    "weir_sources_free": (None, [POINTER(Source)]),
}


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The library, loaded by the first call. While a function of it runs, other threads of Python can run."""
    try:
        loaded = ctypes.CDLL(SONAME)
    except OSError as error:
        raise ImportError(f"{error}; install libweir1, or say in LD_LIBRARY_PATH where it is") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = arguments
    return loaded


def text_of(text: str | None) -> bytes | None:
    """A string for C."""
    if text is None:
        return None
    if "\0" in text:
        raise ValueError("a text with a NUL in it")
    return text.encode()
