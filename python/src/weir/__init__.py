"""Frames of a Weir daemon, read from the memory that it shares.

    with weir.open("host:eth0", filter="udp port 53") as feed:
        for frame in feed:
            print(frame.time_ns, frame.wire_length, frame.data[:14].hex())

Block and Frame say what is copied and how long memory is kept.
"""

from ._errors import (
    ArgumentError,
    CorruptError,
    DaemonError,
    EndOfSource,
    Error,
    GoneError,
    InternalError,
    Interrupted,
    NoSourceError,
    RefusedError,
    ResourceError,
    UnsupportedError,
)
from ._feed import Feed, open
from ._frames import Block, Frame
from ._sources import Source, sources
from ._statistics import Statistics

__all__ = [
    "ArgumentError",
    "Block",
    "CorruptError",
    "DaemonError",
    "EndOfSource",
    "Error",
    "Feed",
    "Frame",
    "GoneError",
    "InternalError",
    "Interrupted",
    "NoSourceError",
    "RefusedError",
    "ResourceError",
    "Source",
    "Statistics",
    "UnsupportedError",
    "open",
    "sources",
]
