"""A handle of the library's feed, which is closed once nothing uses it."""

from __future__ import annotations

import ctypes

from . import _library


class Handle:
    """A `weir_feed *`, which ctypes passes to the library's functions.

    It is closed when its last reference is deleted. A Feed has a reference until the Feed is closed, and each call of
    the library has one until it has copied its results. So a signal handler, which Python runs between any two steps of
    a call, may close the feed: no closed feed is used, and no lock is needed.
    """

    def __init__(self) -> None:
        # NULL until weir_open() has written it.
        self._as_parameter_ = ctypes.c_void_p()
        self._weir_close = _library.library().weir_close

    def opened(self) -> object:
        """The pointer that weir_open() writes."""
        return ctypes.byref(self._as_parameter_)

    def __del__(self) -> None:
        # __init__ may have failed before the attribute was set.
        close = getattr(self, "_weir_close", None)
        if close is not None and self._as_parameter_:
            close(self)
