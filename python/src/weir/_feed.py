"""A feed: frames of one source of a daemon."""

from __future__ import annotations

import ctypes
import threading
import time
from types import TracebackType
from typing import Callable, Iterator, Optional

from . import _library
from ._errors import INTERRUPTED, EndOfSource, error_of
from ._frames import Block, Frame
from ._statistics import Statistics, statistics_of

# A signal that comes just before a wait does not end it: Python's handler runs behind it.
_WAIT_MS_MAX = 500
_DIRECTIONS = {"both": 0, "in": 1, "out": 2}


class Feed:
    """Frames of one source of a daemon: weir.open() makes one. Iterating gives its frames.

    Threads may share it: one reads at a time, and calls of others interrupt its wait.
    """

    def __init__(self, handle: ctypes.c_void_p, name: str) -> None:
        """Made by weir.open()."""
        self._library = _library.library()
        self._handle: Optional[ctypes.c_void_p] = handle
        self.name = name
        # Frames of a block that was read for frames.
        self._begun: Optional[Block] = None
        # The library takes one call at a time; weir_break needs `_guard` only.
        self._lock = threading.RLock()
        self._guard = threading.Lock()
        self._others = 0
        self._is_interrupted = False

    # Reading

    def __iter__(self) -> Iterator[Frame]:
        return self.frames()

    def frames(self, timeout: Optional[float] = None) -> Iterator[Frame]:
        """Frames until the source ends, or until none has come for `timeout` seconds."""
        for block in self.blocks(timeout):
            self._begun = block
            # Other calls may read on in between.
            while self._begun is block:
                frame = block._take()
                if frame is None:
                    break
                yield frame

    def blocks(self, timeout: Optional[float] = None) -> Iterator[Block]:
        """Blocks of frames until the source ends, or until none has come for `timeout` seconds.

        Whoever writes `head` and then `data` of every block has written a pcapng file.
        """
        while True:
            try:
                block = self.next_block(timeout)
            except EndOfSource:
                return
            if block is None:
                return
            yield block

    def next_frame(self, timeout: Optional[float] = None) -> Optional[Frame]:
        """The next frame; None if none came within `timeout` seconds (0 does not wait).

        Raises EndOfSource behind the last one.
        """
        begun = self._begun
        frame = begun._take() if begun is not None else None
        while frame is None:
            with self._lock:
                block = self._read(timeout)
                self._begun = block
            if block is None:
                return None
            frame = block._take()
        return frame

    def next_block(self, timeout: Optional[float] = None) -> Optional[Block]:
        """The next frames that are there, one or more; else as next_frame()."""
        with self._lock:
            begun, self._begun = self._begun, None
            if begun is not None and begun.frames > 0:
                return begun
            return self._read(timeout)

    def _read(self, timeout: Optional[float]) -> Optional[Block]:
        deadline = None if timeout is None else time.monotonic() + timeout
        pointer = ctypes.POINTER(_library.Block)()
        while True:
            left = None if deadline is None else max(0, -(-(deadline - time.monotonic()) // 0.001))
            wait = _WAIT_MS_MAX if left is None else min(int(left), _WAIT_MS_MAX)
            result = self._library.weir_next_block(self._open(), ctypes.byref(pointer), wait)
            if result > 0:
                block = pointer.contents
                data = ctypes.string_at(block.data, block.bytes)
                return Block(data, block.frames, ctypes.string_at(block.head, block.head_bytes))
            if result == 0 and left is not None and wait >= left:
                return None
            if result == INTERRUPTED:
                self._give_way()
            elif result < 0:
                raise self._error(result)

    def _give_way(self) -> None:
        """A wait was interrupted: by interrupt(), by another thread's call, or by a signal, for which Python does what is
        to be done by itself."""
        with self._guard:
            was_interrupted, self._is_interrupted = self._is_interrupted, False
        if was_interrupted:
            raise error_of(INTERRUPTED, b"interrupted")
        if self._others:
            self._lock.release()
            while self._others:
                time.sleep(0.0005)
            self._lock.acquire()

    def interrupt(self) -> None:
        """Has the call that reads, if one is under way, raise Interrupted, else the next one. Any thread may."""
        with self._guard:
            self._is_interrupted = True
            self._break()

    def fileno(self) -> int:
        """A descriptor for select, selectors and asyncio: readable unless the last read gave None and nothing has come
        since. Wait for it, then read with timeout=0, once or until None comes. Do not read or close it."""
        return self._call(self._library.weir_fd)

    # Changing which frames come

    def start(self) -> None:
        """Has frames captured from now on, if weir.open() was told not to."""
        self._call(self._library.weir_start)

    def set_filter(self, filter: str) -> None:
        """Another filter; empty takes all. It holds for what is captured from now on."""
        self._call(self._library.weir_set_filter, _library.text_of(filter))

    def block(self, *entries: str, expires: Optional[float] = None) -> None:
        """Leaves out frames by these entries, at the capture: "192.0.2.7", "2001:db8::/32", "tcp 192.0.2.7:443
        198.51.100.9:50000". They end after `expires` seconds (1 to 30 days); None: when they are unblocked."""
        expires_ms = 0 if expires is None else max(1, int(expires * 1000))
        self._call(self._library.weir_block_entries, *_texts(entries), expires_ms)

    def unblock(self, *entries: str) -> None:
        """Takes entries back."""
        self._call(self._library.weir_unblock_entries, *_texts(entries))

    # What there is to know

    def statistics(self) -> Statistics:
        """What became of every frame. Asks the daemon."""
        pointer = ctypes.POINTER(_library.Statistics)()
        with self._alone():
            self._check(self._library.weir_get_statistics(self._open(), ctypes.byref(pointer)))
            begun = self._begun
            return statistics_of(pointer.contents, 0 if begun is None else begun.frames)

    def pcapng_header(self) -> bytes:
        """The section header and the descriptions of all interfaces so far, to begin another file with."""
        header, size = ctypes.POINTER(ctypes.c_uint8)(), ctypes.c_size_t()
        with self._alone():
            written = self._library.weir_pcapng_header(
                self._open(), ctypes.byref(header), ctypes.byref(size)
            )
            self._check(written)
            return ctypes.string_at(header, size.value)

    @property
    def link_type(self) -> int:
        """The pcap link type of its frames (1 is Ethernet)."""
        return self._call(self._library.weir_link_type)

    def interface_name(self, number: int) -> Optional[str]:
        """The name of the interface that frames have by this number; None if no frame has had it yet."""
        with self._alone():
            name: Optional[bytes] = self._library.weir_interface_name(self._open(), number)
        return None if name is None else name.decode(errors="replace")

    # Closing

    def close(self) -> None:
        """Lets go of it. Frames and blocks that were handed out stay."""
        with self._alone(), self._guard:
            handle, self._handle = self._handle, None
            if handle is not None:
                self._library.weir_close(handle)

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    # Calls of the library

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise ValueError("the feed is closed")
        return self._handle

    def _break(self) -> None:
        if self._handle is not None:
            self._library.weir_break(self._handle)

    def _alone(self) -> _Alone:
        return _Alone(self)

    def _call(self, function: Callable[..., int], *arguments: object) -> int:
        with self._alone():
            return self._check(function(self._open(), *arguments))

    def _check(self, result: int) -> int:
        if result < 0:
            raise self._error(result)
        return result

    def _error(self, result: int) -> Exception:
        text: bytes = self._library.weir_error(self._open())
        return error_of(result, text)


class _Alone:
    """The right to call the library: a thread that waits for frames in it is interrupted, and goes on behind that."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __enter__(self) -> None:
        feed = self._feed
        if feed._lock.acquire(blocking=False):
            return
        with feed._guard:
            feed._others += 1
            feed._break()
        try:
            feed._lock.acquire()
        finally:
            with feed._guard:
                feed._others -= 1

    def __exit__(self, *_: object) -> None:
        self._feed._lock.release()


def _texts(entries: tuple[str, ...]) -> tuple[ctypes.Array[ctypes.c_char_p], int]:
    texts = [_library.text_of(entry) for entry in entries]
    return (ctypes.c_char_p * len(texts))(*texts), len(texts)


def open(
    name: str,
    *,
    filter: str = "",
    socket: Optional[str] = None,
    snaplen: int = 0,
    direction: str = "both",
    sample: int = 0,
    flows: int = 0,
    own_rings: bool = False,
    feed_name: Optional[str] = None,
    start: bool = True,
) -> Feed:
    """Opens a feed of a daemon: `host:eth0`, `host:eth0@2/4` (the second of four shards), `host:eth0@q2` (an RX queue).

    filter: which frames, in the language of pcap-filter(7); empty takes all.
    socket: where the daemon listens; None: $WEIR_SOCKET, else /run/weir/weir.sock.
    snaplen: most bytes kept of a frame; 0: as many as the daemon allows.
    direction: "in", "out" or "both".
    sample, flows: one frame, or all frames of one flow, of so many; 0: all.
    own_rings: memory that no other reader shares, so that filter and entries change without repeats.
    feed_name: by which other processes of this user may block entries.
    start: False has frames captured from the first read on, so that rights can be dropped before.
    """
    if direction not in _DIRECTIONS:
        raise ValueError(f"direction is {direction!r}: write 'in', 'out' or 'both'")
    options = _library.Options(
        size=ctypes.sizeof(_library.Options),
        socket=_library.text_of(socket),
        filter=_library.text_of(filter),
        feed_name=_library.text_of(feed_name),
        snaplen=snaplen,
        direction=_DIRECTIONS[direction],
        sample=sample,
        flows=flows,
        flags=_library.BLOCKS | (_library.OWN_RINGS if own_rings else 0),
    )
    handle, error = ctypes.c_void_p(), ctypes.create_string_buffer(1000)
    result = _library.library().weir_open(
        ctypes.byref(handle), _library.text_of(name), ctypes.byref(options), error, len(error)
    )
    if result < 0:
        raise error_of(result, error.value)
    feed = Feed(handle, name)
    if start:
        try:
            feed.start()
        except BaseException:
            feed.close()
            raise
    return feed
