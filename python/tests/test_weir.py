"""The package at a daemon: a source `file` of $WEIR_TEST_FILE, and a source `live` that goes on."""

from __future__ import annotations

import os
import selectors
import signal
import struct
import threading
import time
import unittest
from typing import Iterator

import weir


def frames_of_file() -> Iterator[tuple[int, int, bytes]]:
    """Time, bytes on the wire and data of each frame of a pcapng file (one section, little-endian)."""
    with open(os.environ["WEIR_TEST_FILE"], "rb") as file:
        content = file.read()
    at = 0
    while at < len(content):
        kind, length = struct.unpack_from("<II", content, at)
        if kind == 6:
            _, high, low, kept, wire = struct.unpack_from("<IIIII", content, at + 8)
            yield high << 32 | low, wire, content[at + 28 : at + 28 + kept]
        at += length


class Reading(unittest.TestCase):
    def test_every_frame_is_that_of_the_file(self) -> None:
        with weir.open("host:file") as feed:
            frames = list(feed)
            statistics = feed.statistics()
            self.assertEqual(feed.link_type, 1)
            self.assertEqual(feed.interface_name(frames[0].interface), "file")
            self.assertIsNone(feed.interface_name(99))
            with self.assertRaises(weir.EndOfSource):
                feed.next_frame()
        # Frames stay valid after the feed is closed.
        found = [(frame.time_ns, frame.wire_length, bytes(frame.data)) for frame in frames]
        self.assertEqual(found, list(frames_of_file()))
        self.assertEqual([frame.direction for frame in frames[:3]], ["in", "out", "in"])
        self.assertFalse(frames[0].is_super_frame)
        self.assertIsNone(frames[0].queue)
        with self.assertRaises(TypeError):
            frames[0].data[0] = 1
        sums = statistics.filtered + statistics.blocked + statistics.sampled + statistics.captured
        self.assertEqual(statistics.offered, sums + statistics.dropped)
        self.assertEqual(statistics.dropped, sum(statistics.drops.values()))
        self.assertEqual((statistics.delivered, statistics.lives), (len(found), 1))

    def test_blocks_make_a_file(self) -> None:
        with weir.open("host:file") as feed:
            first = feed.next_frame(60)
            assert first is not None
            blocks = list(feed.blocks())
            header = feed.pcapng_header()
        self.assertEqual(header[:4], b"\n\r\r\n")
        count = 1 + sum(block.frames for block in blocks)
        self.assertEqual(count, len(list(frames_of_file())))
        self.assertEqual(sum(len(list(block)) for block in blocks), count - 1)
        self.assertTrue(all(block.data.readonly for block in blocks))
        with weir.open("host:file", filter="udp port 53", snaplen=64) as feed:
            written = b"".join(block.head + bytes(block.data) for block in feed.blocks())
            statistics = feed.statistics()
        self.assertEqual(written[:4], b"\n\r\r\n")
        self.assertEqual(written.count(b"\n\r\r\n"), 1)
        self.assertEqual(statistics.captured * 3, statistics.offered)

    def test_a_wait_has_a_limit(self) -> None:
        with weir.open("host:live", filter="tcp port 9") as feed:
            self.assertIsNone(feed.next_frame(timeout=0))
            self.assertIsNone(feed.next_block(timeout=0.02))
            self.assertEqual(list(feed.frames(timeout=0.02)), [])

    def test_frames_and_the_rest_of_their_block(self) -> None:
        with weir.open("host:file") as feed:
            some = [frame for frame, _ in zip(feed, range(5))]
            rest = list(feed.blocks())
            self.assertEqual(feed.statistics().delivered, len(some) + 1 + sum(b.frames for b in rest))


class Waiting(unittest.TestCase):
    def test_a_signal_of_python_ends_a_wait(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        # A program that a shell starts in the background ignores SIGINT.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        with weir.open("host:live", filter="tcp port 9") as feed:
            timer = threading.Timer(0.2, signal.pthread_kill, [main, signal.SIGINT])
            timer.start()
            with self.assertRaises(KeyboardInterrupt):
                feed.next_frame()
            timer.join()

    def test_another_thread_interrupts_or_asks_meanwhile(self) -> None:
        with weir.open("host:live", filter="tcp port 9") as feed:
            asked: list[weir.Statistics] = []

            def ask() -> None:
                time.sleep(0.1)
                asked.append(feed.statistics())
                feed.interrupt()

            thread = threading.Thread(target=ask)
            thread.start()
            with self.assertRaises(weir.Interrupted):
                feed.next_frame()
            thread.join()
            self.assertEqual(len(asked), 1)
            self.assertIsNone(feed.next_frame(timeout=0))

    def test_an_event_loop(self) -> None:
        expected = len(list(frames_of_file()))
        with weir.open("host:file") as feed, selectors.DefaultSelector() as selector:
            selector.register(feed, selectors.EVENT_READ)
            count = 0
            while count < expected:
                self.assertTrue(selector.select(60))
                if feed.next_frame(timeout=0) is not None:
                    count += 1


class Changing(unittest.TestCase):
    def wait_for(self, feed: weir.Feed, wants_frames: bool) -> None:
        for _ in range(1000):
            block = feed.next_block(timeout=60 if wants_frames else 0.1)
            if (block is not None) == wants_frames:
                return
        self.fail("frames still come, or none")

    def test_filters_and_entries(self) -> None:
        with weir.open("host:live", own_rings=True, feed_name="python") as feed:
            self.wait_for(feed, True)
            feed.set_filter("tcp port 9")
            self.wait_for(feed, False)
            feed.set_filter("")
            self.wait_for(feed, True)
            feed.block("192.0.2.1", "2001:db8::/32")
            self.wait_for(feed, False)
            feed.unblock("192.0.2.1")
            self.wait_for(feed, True)
            feed.block("192.0.2.1", expires=1)
            self.wait_for(feed, False)
            self.wait_for(feed, True)
            self.assertGreater(feed.statistics().blocked, 0)
            with self.assertRaisesRegex(weir.RefusedError, "no entry"):
                feed.block("no entry")


class Refused(unittest.TestCase):
    def test_each_has_its_exception(self) -> None:
        with self.assertRaisesRegex(weir.ArgumentError, "host:SOURCE"):
            weir.open("eth0")
        with self.assertRaisesRegex(weir.NoSourceError, r"no such source.*weir\.sources\(\)"):
            weir.open("host:none")
        with self.assertRaisesRegex(weir.DaemonError, "/no/such/socket"):
            weir.open("host:live", socket="/no/such/socket")
        with self.assertRaises(weir.RefusedError):
            weir.open("host:live", filter="no such filter")
        with self.assertRaises(ValueError):
            weir.open("host:live", direction="up")
        feed = weir.open("host:live", start=False)
        feed.close()
        feed.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            feed.next_frame()

    def test_sources_are_listed(self) -> None:
        self.assertEqual({source.name for source in weir.sources()}, {"host:file", "host:live"})
        with self.assertRaises(weir.DaemonError):
            weir.sources("/no/such/socket")


if __name__ == "__main__":
    unittest.main()
