"""Exceptions: one for each error of weir.h, with the library's text."""

from __future__ import annotations


class Error(Exception):
    """A call failed; the text says why, and what to try."""


class EndOfSource(Error, EOFError):
    """The source has ended, and all its frames were read."""


class Interrupted(Error):
    """Feed.interrupt() was called."""


class ArgumentError(Error, ValueError):
    """A name or an option is wrong."""


class DaemonError(Error, ConnectionError):
    """The daemon cannot be reached, or does not answer."""


class NoSourceError(Error, LookupError):
    """The daemon has no such source for this user."""


class RefusedError(Error):
    """The daemon refuses the request: a wrong filter or entry, or one feed too many."""


class GoneError(Error):
    """The daemon has closed the feed: the interface is gone, or a right was withdrawn."""


class UnsupportedError(Error):
    """This library or this daemon cannot do that."""


class ResourceError(Error, OSError):
    """The system has no descriptors or no memory left."""


class CorruptError(Error):
    """The daemon's answer or its memory is inconsistent."""


class InternalError(Error):
    """A bug in the library; the feed can only be closed."""


INTERRUPTED = -2

_BY_RESULT: dict[int, type[Error]] = {
    -1: EndOfSource,
    INTERRUPTED: Interrupted,
    -3: ArgumentError,
    -4: DaemonError,
    -5: NoSourceError,
    -6: RefusedError,
    -7: GoneError,
    -8: UnsupportedError,
    -9: ResourceError,
    -10: CorruptError,
    -11: InternalError,
}


def error_of(result: int, text: bytes | None) -> Error:
    """The exception for a result."""
    told = (text or b"").decode(errors="replace")
    # The library's texts have the names of C functions.
    told = told.replace("weir_list_sources()", "weir.sources()")
    return _BY_RESULT.get(result, Error)(told)
