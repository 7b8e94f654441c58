"""Signal handlers that call a feed: Python runs them between any two steps of the program."""

from __future__ import annotations

import ctypes
import faulthandler
import random
import signal
import time
import unittest
from types import FrameType
from typing import Callable, Iterator, Optional
from unittest import mock

import weir
from weir import _library


class FakeLibrary:
    """Records each use of a closed feed. A block's memory is freed by the next read and by closing the feed."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.faults: list[str] = []
        self.breaks: set[int] = set()
        self.opened = self.closed = 0
        self.text = ctypes.create_string_buffer(b"x" * 64, 64)

    def _number(self, handle: object, doing: str) -> int:
        number = handle._as_parameter_.value  # type: ignore[attr-defined]
        if number not in self.open:
            self.faults.append(f"{doing} of a feed that is closed")
        return int(number)

    def weir_open(self, where: object, *_: object) -> int:
        self.opened += 1
        self.open.add(self.opened)
        where._obj.value = self.opened  # type: ignore[attr-defined]
        return 0

    def weir_start(self, handle: object) -> int:
        self._number(handle, "start")
        return 0

    def weir_next_block(self, handle: object, pointer: object, wait: int) -> int:
        number = self._number(handle, "read")
        if number in self.breaks:
            self.breaks.discard(number)
            return -2
        block = pointer._obj.contents = _library.Block()  # type: ignore[attr-defined]
        block.data = block.head = ctypes.addressof(self.text)
        block.bytes, block.head_bytes, block.frames = 64, 0, 1
        # The caller copies the block after this call, so the feed must still be open.
        self._number(handle, "read")
        return 1

    def weir_break(self, handle: object) -> None:
        self.breaks.add(self._number(handle, "break"))

    def weir_error(self, handle: object) -> bytes:
        self._number(handle, "error")
        return b""

    def weir_close(self, handle: object) -> None:
        number = self._number(handle, "close")
        self.closed += 1
        self.open.discard(number)


class Signals(unittest.TestCase):
    def setUp(self) -> None:
        self.random = random.Random(1)
        self.handled = 0
        # A deadlock ends here.
        faulthandler.dump_traceback_later(120, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)

    def alarms(self, seconds: float, handle: Callable[[], None]) -> None:
        """Calls `handle` again and again, after random pauses of up to `seconds`."""

        # CPython may miss a signal that comes while it begins to handle another: the timer repeats it.
        again = 10 * seconds

        def on_alarm(_number: int, _frame: Optional[FrameType]) -> None:
            self.handled += 1
            try:
                handle()
            finally:
                signal.setitimer(signal.ITIMER_REAL, self.random.uniform(seconds / 10, seconds), again)

        before = signal.signal(signal.SIGALRM, on_alarm)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_REAL, seconds, again)

    def feeds(self, count: int, current: list[weir.Feed]) -> Iterator[weir.Feed]:
        """Opens feeds, one after the other, until `count` handlers have run."""
        while self.handled < count:
            try:
                feed = weir.open("host:live", start=False)
            except weir.RefusedError:
                time.sleep(0.05)
                continue
            current[:] = [feed]
            yield feed
            current.clear()

    def read_on(self, feed: weir.Feed) -> None:
        """Reads until the handler has closed the feed."""
        try:
            while True:
                try:
                    feed.next_frame() if self.random.random() < 0.5 else feed.next_block()
                    feed.interrupt() if self.random.random() < 0.05 else None
                except weir.Interrupted:
                    pass
                except weir.RefusedError:
                    # The daemon opens 20 feeds a second for a user.
                    time.sleep(0.02)
        except ValueError as error:
            self.assertIn("closed", str(error))

    def test_close_between_any_two_steps_uses_nothing_that_is_closed(self) -> None:
        fake = FakeLibrary()
        current: list[weir.Feed] = []
        with mock.patch.object(_library, "library", lambda: fake):
            self.alarms(0.0005, lambda: [feed.close() for feed in current] and None)
            with mock.patch("weir._frames.Frame", lambda *_: mock.Mock(_options_end=60)):
                for feed in self.feeds(2000, current):
                    self.read_on(feed)
                    feed.close()
            signal.setitimer(signal.ITIMER_REAL, 0)
            del feed
        self.assertEqual(fake.faults, [])
        self.assertEqual((fake.closed, fake.open), (fake.opened, set()))

    def test_interrupt_between_any_two_steps_blocks_nobody(self) -> None:
        interrupted = 0
        with weir.open("host:live", filter="tcp port 9") as feed:
            self.alarms(0.002, feed.interrupt)
            while self.handled < 500:
                try:
                    self.assertIsNone(feed.next_frame(timeout=0.01))
                    feed.interrupt()
                    feed.statistics() if self.handled % 10 == 0 else None
                except weir.Interrupted:
                    interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.assertGreater(interrupted, 100)

    def test_close_while_a_daemon_is_read(self) -> None:
        current: list[weir.Feed] = []
        self.alarms(0.02, lambda: [feed.close() for feed in current] and None)
        # The daemon limits the feeds opened in a second: leave some for the tests after this one.
        self.addCleanup(time.sleep, 1.1)
        for feed in self.feeds(300, current):
            self.read_on(feed)
            feed.close()
        signal.setitimer(signal.ITIMER_REAL, 0)

    def test_a_handler_asks_for_statistics_and_may_not_read_what_is_read(self) -> None:
        said: list[str] = []

        def ask() -> None:
            feed.statistics()
            try:
                feed.next_block(timeout=0)
            except RuntimeError as error:
                said.append(str(error))

        with weir.open("host:live", filter="tcp port 9") as feed:
            self.alarms(0.02, ask)
            while not said:
                feed.next_block(timeout=0.1)
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.assertIn("a read", said[0])


if __name__ == "__main__":
    unittest.main()
