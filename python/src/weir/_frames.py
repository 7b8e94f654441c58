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

    `data` is a part of the memory of its block, so nothing is copied for it; it cannot be written, and stays as it is
    for as long as somebody has it. But one frame that is kept keeps the whole block, up to 256 KiB: keep
    `bytes(frame.data)` instead.
    """

    __slots__ = ("_block", "_options_begin", "_options_end", "data", "interface", "time_ns", "wire_length")

    data: memoryview
    """From the link-layer header on, without FCS."""
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
        """Many frames of the wire in one, by an offload."""
        return self.flags & 0x800 != 0

    @property
    def queue(self) -> Optional[int]:
        """RX queue of the NIC, if it is known."""
        return self._option(_QUEUE)

    def __repr__(self) -> str:
        return f"<weir.Frame {self.wire_length} bytes at {self.time_ns}>"


class Block:
    """Frames that were captured one after the other, as pcapng has them in a file; iterating gives them.

    The memory was copied once for the block. It cannot be written, and stays as it is.
    """

    __slots__ = ("_begin", "_bytes", "_left", "head")

    head: bytes
    """What a file must have before `data` and was in no block before: mostly nothing."""

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
        """How many there are."""
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
        """The first one, which is not the block's any more."""
        if self._left == 0:
            return None
        frame = Frame(self._bytes, self._begin)
        self._begin = frame._options_end + 4
        self._left -= 1
        return frame
