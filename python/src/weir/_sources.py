"""The sources of a daemon."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Optional

from . import _library
from ._errors import error_of


@dataclass(frozen=True)
class Source:
    """A source that this user may open."""

    name: str
    """The name for weir.open(), such as host:eth0."""
    snaplen: int
    """Most bytes kept of a frame."""
    link_type: int
    """The pcap link type; as expected while the source is closed."""


def sources(socket: Optional[str] = None) -> list[Source]:
    """The sources of the daemon at `socket`; None: $WEIR_SOCKET, else /run/weir/weir.sock."""
    library = _library.library()
    error = ctypes.create_string_buffer(1000)
    first = ctypes.POINTER(_library.Source)()
    result = library.weir_list_sources(
        ctypes.byref(first), _library.text_of(socket), error, len(error)
    )
    if result < 0:
        raise error_of(result, error.value)
    found = []
    try:
        source = first
        while source:
            here = source.contents
            found.append(Source(here.name.decode(), here.snaplen, here.link_type))
            source = here.next
    finally:
        library.weir_sources_free(first)
    return found
