#!/usr/bin/env python3
"""Makes a TAP device with several queues, and has frames received by each: queues.py INTERFACE FRAMES FRAMES...

It is there once "ready" is printed. A line on standard input has the frames sent: so many by the first queue, and so on,
in turns, each with its queue's number in the last byte of its source address. It is gone when standard input ends.
"""

import fcntl
import os
import struct
import sys

# Source: linux/if_tun.h.
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_MULTI_QUEUE, IFF_NO_PI = 0x0002, 0x0100, 0x1000


def main():
    name, counts = sys.argv[1].encode(), [int(count) for count in sys.argv[2:]]
    queues = []
    # The kernel numbers queues in the order in which they are attached.
    for _ in counts:
        queue = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(queue, TUNSETIFF, struct.pack("16sH22x", name, IFF_TAP | IFF_MULTI_QUEUE | IFF_NO_PI))
        queues.append(queue)
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    for turn in range(max(counts)):
        for number, count in enumerate(counts):
            if turn < count:
                # An experimental EtherType (IEEE 802, 88b5).
                head = b"\x02\0\0\0\0\x01\x02\0\0\0\0" + bytes([number]) + b"\x88\xb5"
                os.write(queues[number], head + struct.pack("!I42x", turn))
    print("sent", flush=True)
    sys.stdin.read()


main()
