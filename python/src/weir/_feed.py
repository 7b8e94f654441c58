"""A feed: frames of one source of a daemon."""

from __future__ import annotations

import ctypes
import threading
import time
from types import TracebackType
from typing import Callable, Iterator, Optional, TypeVar

from . import _library
from ._errors import INTERRUPTED, EndOfSource, error_of
from ._frames import Block, Frame
from ._handle import Handle
from ._statistics import Statistics, statistics_of

# A signal that comes just before a wait does not end it: Python's handler runs only after the wait.
_WAIT_MS_MAX = 500
# Returned instead of a block: another thread waits for the lock.
_MAKES_WAY = Block(b"", 0, b"")
_DIRECTIONS = {"both": 0, "in": 1, "out": 2}


_T = TypeVar("_T")


class Feed:
    """Frames of one source of a daemon. weir.open() makes a feed; iterating over it gives its frames.

    Threads may share a feed: one reads at a time, and calls by others interrupt its wait. Signal handlers may call
    close(), interrupt(), and every function that the interrupted program is not calling itself.
    """

    def __init__(self, handle: Handle, name: str) -> None:
        """Made by weir.open()."""
        self._library = _library.library()
        self._handle: Optional[Handle] = handle
        self.name = name
        # The block whose frames are being handed out one by one.
        self._begun: Optional[Block] = None
        # The library takes one call at a time, except weir_break().
        self._lock = threading.RLock()
        # The thread that waits for frames, and an object for each call that waits for the lock.
        self._waiting: Optional[int] = None
        self._others: set[object] = set()
        # Running calls, by function and thread: a second call of the same function would free memory of the first.
        self._under_way: set[tuple[str, int]] = set()
        self._is_interrupted = False

    # Reading

    def __iter__(self) -> Iterator[Frame]:
        return self.frames()

    def frames(self, timeout: Optional[float] = None) -> Iterator[Frame]:
        """Frames until the source ends, or until none has come for `timeout` seconds."""
        for block in self.blocks(timeout):
            self._begun = block
            # The program may call another reading function between two frames.
            while self._begun is block:
                frame = block._take()
                if frame is None:
                    break
                yield frame

    def blocks(self, timeout: Optional[float] = None) -> Iterator[Block]:
        """Blocks of frames until the source ends, or until none has come for `timeout` seconds.

        To write a pcapng file, write `head` and then `data` of every block.
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

        Raises EndOfSource after the last frame.
        """
        begun = self._begun
        frame = begun._take() if begun is not None else None
        while frame is None:
            block = self._read(timeout, begins=True)
            if block is None:
                return None
            frame = block._take()
        return frame

    def next_block(self, timeout: Optional[float] = None) -> Optional[Block]:
        """The next available frames, one or more; waits as next_frame() does."""
        begun, self._begun = self._begun, None
        if begun is not None and begun.frames > 0:
            return begun
        return self._read(timeout)

    def _read(self, timeout: Optional[float], begins: bool = False) -> Optional[Block]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                block = self._once("a read", lambda: self._wait(deadline))
                if block is not _MAKES_WAY:
                    if begins:
                        self._begun = block
                    return block
            while self._others:
                time.sleep(0.0005)

    def _wait(self, deadline: Optional[float]) -> Optional[Block]:
        """Waits for a block. _MAKES_WAY: the wait ended early, because another thread waits for the lock."""
        pointer = ctypes.POINTER(_library.Block)()
        try:
            # Set before `_others` is read; other threads add their entry to `_others` before they read `_waiting`. So
            # at least one side notices the other.
            self._waiting = threading.get_ident()
            while not self._others:
                left = None if deadline is None else max(0, -(-(deadline - time.monotonic()) // 0.001))
                wait = _WAIT_MS_MAX if left is None else min(int(left), _WAIT_MS_MAX)
                # This reference keeps the feed open until the block is copied. It is deleted before an exception is
                # raised, whose traceback would keep it.
                handle = self._open()
                result = self._library.weir_next_block(handle, ctypes.byref(pointer), wait)
                if result > 0:
                    block = pointer.contents
                    data = ctypes.string_at(block.data, block.bytes)
                    return Block(data, block.frames, ctypes.string_at(block.head, block.head_bytes))
                if result == 0 and left is not None and wait >= left:
                    return None
                # Interrupted by interrupt(), by another thread's call, or by a signal, whose handler Python runs.
                if result == INTERRUPTED:
                    if self._is_interrupted:
                        self._is_interrupted = False
                        del handle
                        raise error_of(INTERRUPTED, b"interrupted")
                elif result < 0:
                    del handle
                    raise self._error(result)
            return _MAKES_WAY
        finally:
            self._waiting = None

    def interrupt(self) -> None:
        """Makes the running call that reads raise Interrupted; if none is running, the next one. Any thread and
        signal handlers may call this."""
        self._is_interrupted = True
        self._break()

    def fileno(self) -> int:
        """A descriptor for select, selectors and asyncio: readable unless the last read gave None and nothing has come
        since. Wait for it, then read frames with timeout=0, once or until None is returned. Do not read from the
        descriptor itself, and do not close it."""
        return self._call(self._library.weir_fd)

    # Changing the feed

    def start(self) -> None:
        """Starts the capture, if weir.open() was called with start=False."""
        self._call(self._library.weir_start)

    def set_filter(self, filter: str) -> None:
        """Sets another filter; empty takes all frames. It applies to frames that are captured from now on."""
        self._call(self._library.weir_set_filter, _library.text_of(filter))

    def block(self, *entries: str, expires: Optional[float] = None) -> None:
        """Blocks frames that match these entries, where they are captured: "192.0.2.7", "2001:db8::/32",
        "tcp 192.0.2.7:443 198.51.100.9:50000". Entries expire after `expires` seconds (from 1 s to 30 days); with None
        they stay until unblock()."""
        expires_ms = 0 if expires is None else max(1, int(expires * 1000))
        self._call(self._library.weir_block_entries, *_texts(entries), expires_ms)

    def unblock(self, *entries: str) -> None:
        """Removes entries."""
        self._call(self._library.weir_unblock_entries, *_texts(entries))

    # Information

    def statistics(self) -> Statistics:
        """Counts of what became of every frame. Asks the daemon."""
        return self._alone("statistics()", self._statistics)

    def _statistics(self) -> Statistics:
        pointer, handle = ctypes.POINTER(_library.Statistics)(), self._open()
        result = self._library.weir_get_statistics(handle, ctypes.byref(pointer))
        if result < 0:
            del handle
            raise self._error(result)
        begun = self._begun
        return statistics_of(pointer.contents, 0 if begun is None else begun.frames)

    def pcapng_header(self) -> bytes:
        """The section header and the descriptions of all interfaces so far, to begin another file with."""
        return self._alone("pcapng_header()", self._pcapng_header)

    def _pcapng_header(self) -> bytes:
        header, size = ctypes.POINTER(ctypes.c_uint8)(), ctypes.c_size_t()
        handle = self._open()
        result = self._library.weir_pcapng_header(handle, ctypes.byref(header), ctypes.byref(size))
        if result < 0:
            del handle
            raise self._error(result)
        return ctypes.string_at(header, size.value)

    @property
    def link_type(self) -> int:
        """The pcap link type of its frames (1 is Ethernet)."""
        return self._call(self._library.weir_link_type)

    def interface_name(self, number: int) -> Optional[str]:
        """The name of the interface that frames refer to by this number; None if no frame has had it yet."""
        name: Optional[bytes] = self._alone(
            "interface_name()", lambda: self._library.weir_interface_name(self._open(), number)
        )
        return None if name is None else name.decode(errors="replace")

    # Closing

    def close(self) -> None:
        """Closes the feed. Frames and blocks that were handed out stay valid. Any thread and signal handlers may call
        this: a running call then raises ValueError, and the library's feed is closed after it."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.weir_break(handle)

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    # Calls of the library

    def _open(self) -> Handle:
        handle = self._handle
        if handle is None:
            raise ValueError("the feed is closed")
        return handle

    def _break(self) -> None:
        handle = self._handle
        if handle is not None:
            self._library.weir_break(handle)

    def _call(self, function: Callable[..., int], *arguments: object) -> int:
        def call() -> int:
            result = function(self._open(), *arguments)
            if result < 0:
                raise self._error(result)
            return result

        return self._alone(function.__name__, call)

    def _alone(self, name: str, work: Callable[[], _T]) -> _T:
        """Runs `work`, which calls the library. A thread that waits for frames is interrupted, and waits again after
        that."""
        entry = object()
        try:
            self._others.add(entry)
            if self._waiting not in (None, threading.get_ident()):
                self._break()
            with self._lock:
                self._others.discard(entry)
                return self._once(name, work)
        finally:
            self._others.discard(entry)

    def _once(self, name: str, work: Callable[[], _T]) -> _T:
        """Runs `work`, unless this thread is running the same function already: a signal handler would free memory that
        the interrupted call uses."""
        key = (name, threading.get_ident())
        if key in self._under_way:
            raise RuntimeError(f"a signal handler calls what its program is calling: {name}")
        try:
            self._under_way.add(key)
            return work()
        finally:
            self._under_way.discard(key)

    def _error(self, result: int) -> Exception:
        text: bytes = self._library.weir_error(self._open())
        return error_of(result, text)


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

    filter: an expression of pcap-filter(7); empty takes all frames.
    socket: path of the daemon's socket; None: $WEIR_SOCKET, else /run/weir/weir.sock.
    snaplen: most bytes kept of a frame; 0: as many as the daemon allows.
    direction: "in", "out" or "both".
    sample: one frame of so many; flows: all frames of one flow of so many; 0: all.
    own_rings: memory that no other reader shares, so that a change of filter or entries repeats no frames.
    feed_name: a name, by which other processes of this user may block entries.
    start: if False, the capture begins with the first read, so that the program can give up rights before.
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
    handle, error = Handle(), ctypes.create_string_buffer(1000)
    result = _library.library().weir_open(
        handle.opened(), _library.text_of(name), ctypes.byref(options), error, len(error)
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
