#!/usr/bin/env python3
"""Sends one request to a daemon (docs/protocol.md), and prints the result: ask.py SOCKET METHOD [PARAMS]

An error that it answers is printed, too, and the status is 1.
"""

import json
import socket
import struct
import sys


def main():
    path, method, params = sys.argv[1], sys.argv[2], json.loads((sys.argv[3:] or ["{}"])[0])
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(60)
    stream.connect(path)
    stream = stream.makefile("rwb")
    for number, name, what in (1, "plug.hello", {"versions": [1], "name": "test"}), (2, method, params):
        message = json.dumps({"jsonrpc": "2.0", "id": number, "method": name, "params": what}).encode()
        stream.write(struct.pack("!I", len(message)) + message)
        stream.flush()
        answer = {}
        # Notifications have no id.
        while answer.get("id") != number:
            (length,) = struct.unpack("!I", stream.read(4))
            answer = json.loads(stream.read(length))
    print(json.dumps(answer.get("result", answer.get("error"))))
    sys.exit("error" in answer)


main()
