"""Counts of what became of every frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional

from . import _library

_UNKNOWN = 2**64 - 1


@dataclass(frozen=True)
class Statistics:
    """Counts of frames since the feed was opened. If the daemon was restarted, they are sums over all its lives.

    At the daemon: offered = filtered + blocked + sampled + captured + dropped; here: captured = delivered + lapped +
    frames that were not read yet. While frames come, the counts are not of the same moment.
    """

    offered: int
    """Frames that came to the place of capture."""
    filtered: int
    """Frames that the filter excluded, or that were of another part or direction."""
    blocked: int
    """Frames that blocked entries excluded."""
    sampled: int
    """Frames that sampling excluded."""
    captured: int
    """Frames written to memory."""
    dropped: int
    """Frames lost at the host: the sum of `drops`."""
    drops: Mapping[str, int]
    """Frames lost at the host, by the name of the place (docs/ledger.md)."""
    missed_before: Optional[int]
    """Frames lost by the NIC or its driver, not in `offered`; None if nothing counts them."""
    delivered: int
    """Frames handed out, one by one or in blocks."""
    lapped: int
    """Frames overwritten before this process had read them: it was too slow."""
    late: int
    """Delivered frames that were not in order of time."""
    lives: int
    """Lives of the daemon that the feed has read from."""
    kept_bytes: int
    """Bytes kept of the captured frames."""
    wire_bytes: int
    """Bytes of the captured frames on the wire."""
    super_frames: int
    """Captured frames that are several frames of the wire in one."""
    filtered_uncounted: bool
    """Whether a filter in the kernel excluded further frames, which are not in `offered` either."""


def statistics_of(counts: _library.Statistics, not_handed_out: int) -> Statistics:
    """Copies the counts. `not_handed_out`: frames of the current block that the program has not got yet."""
    drops = {counts.drops[i].name.decode(): counts.drops[i].frames for i in range(counts.drop_count)}
    missed = counts.missed_before
    return Statistics(
        offered=counts.offered,
        filtered=counts.filtered,
        blocked=counts.blocked,
        sampled=counts.sampled,
        captured=counts.captured,
        dropped=counts.dropped,
        drops=drops,
        missed_before=None if missed == _UNKNOWN else missed,
        delivered=counts.delivered - not_handed_out,
        lapped=counts.lapped,
        late=counts.late,
        lives=counts.lives,
        kept_bytes=counts.kept_bytes,
        wire_bytes=counts.wire_bytes,
        super_frames=counts.super_frames,
        filtered_uncounted=counts.filtered_uncounted != 0,
    )
