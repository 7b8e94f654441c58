#!/usr/bin/env python3
"""Writes a pcap file of known traffic for an intrusion detection system: trace.py OUT [FLOWS]

HTTP over TCP with handshake and end (FLOWS connections: by default 40, at most 60000), DNS, and UDP of several sizes,
all mixed. Only one HTTP flow, from 10.1.0.7 port 40007, requests /evil. Checksums are right, as on a wire. Needs only
Python's standard library.

For measurements, write as many flows as the run needs, and do not use `weir gen --loop`: an intrusion detection system
takes repeated frames as parts of a connection that has ended, and does not inspect them.
"""

import itertools
import struct
import sys

CLIENT_MAC, SERVER_MAC = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
SERVER, RESOLVER = "10.2.0.1", "10.2.0.53"
EVIL = 7
SEGMENT_BYTES = 1448
FILLER_BYTES = [64, 128, 256, 512, 1024, 1514]
FIN, SYN, PSH, ACK = 1, 2, 8, 16


def checksum(data):
    """Source: RFC 1071."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def address(text):
    return bytes(int(part) for part in text.split("."))


def host(network, number):
    """The address of the host with this number in a network such as 10.1."""
    return f"{network}.{number // 250}.{number % 250}"


def frame(source, target, protocol, segment, checksum_at):
    """An Ethernet frame with IPv4 and this segment, whose checksum is filled in."""
    ends = address(source) + address(target)
    value = checksum(ends + struct.pack("!BBH", 0, protocol, len(segment)) + segment)
    if protocol == 17 and value == 0:
        value = 0xFFFF
    segment = segment[:checksum_at] + struct.pack("!H", value) + segment[checksum_at + 2 :]
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0x4000, 64, protocol, 0) + ends
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    from_client = not source.startswith("10.2.")
    macs = SERVER_MAC + CLIENT_MAC if from_client else CLIENT_MAC + SERVER_MAC
    return (macs + b"\x08\0" + head + segment).ljust(60, b"\0")


def udp(source, source_port, target, target_port, payload):
    head = struct.pack("!HHHH", source_port, target_port, 8 + len(payload), 0)
    return frame(source, target, 17, head + payload, 6)


class TcpEnd:
    """One end of a TCP connection, with its sequence and acknowledgement numbers."""

    def __init__(self, ip, port, sequence):
        self.ip, self.port, self.sequence, self.seen = ip, port, sequence, 0

    def send(self, peer, flags, payload=b""):
        head = (self.port, peer.port, self.sequence, self.seen, 5 << 4, flags, 0xFFFF, 0, 0)
        segment = struct.pack("!HHIIBBHHH", *head) + payload
        self.sequence += len(payload) + bool(flags & (SYN | FIN))
        peer.seen = self.sequence
        return frame(self.ip, peer.ip, 6, segment, 16)


def http(number):
    """The frames of one connection, with one request and its answer."""
    client = TcpEnd(host("10.1", number), 40000 + number % 20000, 1000)
    server = TcpEnd(SERVER, 80, 9000)
    path = "/evil" if number == EVIL else f"/page/{number}"
    request = f"GET {path} HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: trace\r\n\r\n".encode()
    body = bytes(32 + at % 90 for at in range(300 * (1 + number % 20)))
    answer = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = answer.encode() + body
    yield client.send(server, SYN)
    yield server.send(client, SYN | ACK)
    yield client.send(server, ACK)
    yield client.send(server, PSH | ACK, request)
    yield server.send(client, ACK)
    for at in range(0, len(answer), SEGMENT_BYTES):
        yield server.send(client, PSH | ACK, answer[at : at + SEGMENT_BYTES])
        yield client.send(server, ACK)
    yield client.send(server, FIN | ACK)
    yield server.send(client, FIN | ACK)
    yield client.send(server, ACK)


def dns(number):
    """A query for an address, and its answer."""
    client, port = host("10.3", number), 50000 + number % 10000
    name = b"".join(bytes([len(label)]) + label for label in [b"h%d" % number, b"example", b"org", b""])
    question = name + struct.pack("!HH", 1, 1)
    answer = struct.pack("!HHHIH", 0xC00C, 1, 1, 60, 4) + address("192.0.2.1")
    yield udp(client, port, RESOLVER, 53, struct.pack("!HHHHHH", number, 0x100, 1, 0, 0, 0) + question)
    head = struct.pack("!HHHHHH", number, 0x8180, 1, 1, 0, 0)
    yield udp(RESOLVER, 53, client, port, head + question + answer)


def filler(number):
    """Ten datagrams of one size, to a port that no protocol of interest has."""
    payload = bytes(at % 251 for at in range(FILLER_BYTES[number % len(FILLER_BYTES)] - 42))
    for _ in range(10):
        yield udp(host("10.4", number), 60000, "10.2.0.9", 9000 + number % 100, payload)


def mixed(flows):
    """Interleaves the conversations: a frame of each in turn, eight conversations at a time."""
    waiting = itertools.chain.from_iterable((http(at), dns(at), filler(at)) for at in range(flows))
    active = list(itertools.islice(waiting, 8))
    while active:
        for conversation in list(active):
            if (bytes_ := next(conversation, None)) is not None:
                yield bytes_
            else:
                active.remove(conversation)
                active.extend(itertools.islice(waiting, 1))


def main():
    path, flows = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40
    with open(path, "wb") as out:
        # Nanosecond stamps, 100 us apart.
        out.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1))
        for number, data in enumerate(mixed(flows)):
            seconds, rest = divmod(number * 100_000, 10**9)
            out.write(struct.pack("<IIII", 1_700_000_000 + seconds, rest, len(data), len(data)) + data)


if __name__ == "__main__":
    main()
