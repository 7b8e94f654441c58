"""A feed as the library knows it, closed once nobody uses it any more."""

from __future__ import annotations

import ctypes

from . import _library


class Handle:
    """A `weir_feed *`, which ctypes hands to the library's functions.

    It is closed when the last reference to it goes. A Feed has one until it is closed, and each call of the library has
    one until it has copied what it was given. So a signal handler, which Python runs between any two steps of a call,
    may close the feed: nothing is used that is closed, and nothing has to be locked.
    """

    def __init__(self) -> None:
        # NULL until weir_open() has written it.
        self._as_parameter_ = ctypes.c_void_p()
        self._weir_close = _library.library().weir_close

    def opened(self) -> object:
        """Where weir_open() writes."""
        return ctypes.byref(self._as_parameter_)

    def __del__(self) -> None:
        # Without a library there is none.
        close = getattr(self, "_weir_close", None)
        if close is not None and self._as_parameter_:
            close(self)
