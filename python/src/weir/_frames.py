"""Frames, and blocks of them."""

from __future__ import annotations

import struct
from typing import Iterator, Optional

# Type, length, interface, time (high, low), bytes kept, bytes on the wire: an Enhanced Packet Block of pcapng.
_HEADER = struct.Struct("<IIIIIII")
_OPTION = struct.Struct("<HH")
_WORD = struct.Struct("<I")
_FLAGS, _QUEUE = 2, 6


class Frame:
    """One frame.

    `data` is a view of the block's memory, so nothing is copied. It is read-only, and stays valid as long as the
    program keeps it. But a frame that is kept keeps its whole block, up to 256 KiB: keep `bytes(frame.data)` instead.
    """

    __slots__ = ("_block", "_options_begin", "_options_end", "data", "interface", "time_ns", "wire_length")

    data: memoryview
    """The bytes, from the link-layer header on, without FCS."""
    time_ns: int
    """When it was captured: nanoseconds since 1970-01-01 00:00:00 UTC."""
    wire_length: int
    """Bytes on the wire: more than `len(data)` if the frame was cut."""
    interface: int
    """The number of its interface: Feed.interface_name()."""

    def __init__(self, block: memoryview, begin: int) -> None:
        _, length, self.interface, high, low, kept, self.wire_length = _HEADER.unpack_from(block, begin)
        self.time_ns = high << 32 | low
        data = begin + 28
        self.data = block[data : data + kept]
        self._block = block
        self._options_begin = data + (kept + 3 & ~3)
        self._options_end = begin + length - 4

    def _option(self, wanted: int) -> Optional[int]:
        at = self._options_begin
        while at + 4 <= self._options_end:
            code, length = _OPTION.unpack_from(self._block, at)
            if code == 0:
                break
            if code == wanted and length == 4:
                return int(_WORD.unpack_from(self._block, at + 4)[0])
            at += 4 + (length + 3 & ~3)
        return None

    @property
    def flags(self) -> int:
        """As in weir.h: WEIR_INBOUND and so on."""
        return self._option(_FLAGS) or 0

    @property
    def direction(self) -> Optional[str]:
        """`"in"`, `"out"`, or None if it is not known."""
        return {1: "in", 2: "out"}.get(self.flags & 3)

    @property
    def is_super_frame(self) -> bool:
        """Whether it is several frames of the wire in one, made by an offload."""
        return self.flags & 0x800 != 0

    @property
    def queue(self) -> Optional[int]:
        """RX queue of the NIC, if it is known."""
        return self._option(_QUEUE)

    def __repr__(self) -> str:
        return f"<weir.Frame {self.wire_length} bytes at {self.time_ns}>"


class Block:
    """Consecutive frames in the form of a pcapng file; iterating gives the frames.

    The frames were copied once for the whole block. The memory is read-only and does not change.
    """

    __slots__ = ("_begin", "_bytes", "_left", "head")

    head: bytes
    """Bytes that a file needs before `data` and that no earlier block had; mostly empty."""

    def __init__(self, data: bytes, frames: int, head: bytes) -> None:
        self._bytes = memoryview(data)
        self._begin = 0
        self._left = frames
        self.head = head

    @property
    def data(self) -> memoryview:
        """Enhanced Packet Blocks end to end."""
        return self._bytes[self._begin :]

    @property
    def frames(self) -> int:
        """The number of frames."""
        return self._left

    def __len__(self) -> int:
        return self._left

    def __iter__(self) -> Iterator[Frame]:
        at = self._begin
        for _ in range(self._left):
            frame = Frame(self._bytes, at)
            at = frame._options_end + 4
            yield frame

    def _take(self) -> Optional[Frame]:
        """Removes and returns the first frame."""
        if self._left == 0:
            return None
        frame = Frame(self._bytes, self._begin)
        self._begin = frame._options_end + 4
        self._left -= 1
        return frame
