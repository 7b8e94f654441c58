"""What became of every frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional

from . import _library

_UNKNOWN = 2**64 - 1


@dataclass(frozen=True)
class Statistics:
    """Frames since the feed was opened, of all daemons that it had.

    At the daemon: offered = filtered + blocked + sampled + captured + dropped; here: captured = delivered + lapped +
    what was not read yet. While frames come, the counts are not of one instant.
    """

    offered: int
    """Came to the place of capture."""
    filtered: int
    """Left out by the filter or the direction."""
    blocked: int
    """Left out by entries."""
    sampled: int
    """Left out by sampling."""
    captured: int
    """Written to memory."""
    dropped: int
    """Lost at the host: the sum of `drops`."""
    drops: Mapping[str, int]
    """Lost at the host, by the name of the place (docs/ledger.md)."""
    missed_before: Optional[int]
    """Lost by the NIC or its driver, not in `offered`; None if nobody counts them."""
    delivered: int
    """Handed out, as frames or in blocks."""
    lapped: int
    """Overwritten before this process had read them: it was too slow."""
    late: int
    """Of those delivered: out of the order of time."""
    lives: int
    """Daemons that the feed had, one after the other."""
    kept_bytes: int
    """Bytes kept of those captured."""
    wire_bytes: int
    """Bytes of those captured on the wire."""
    super_frames: int
    """Of those captured: many frames of the wire in one."""
    filtered_uncounted: bool
    """A filter in the kernel left out others, which `offered` does not have either."""


def statistics_of(counts: _library.Statistics, not_handed_out: int) -> Statistics:
    """A copy. `not_handed_out`: frames of a block that the program has only a part of."""
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
