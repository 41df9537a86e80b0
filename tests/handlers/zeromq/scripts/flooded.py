"""
A socket with trackside's settings for bound ones, whose peer floods it until its queue is full, and closes.

Prints a line if this process is still there when the next heartbeats would have been due.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

import zmq

from trackside.handlers.zeromq._connection import new_context, open_socket


def main() -> None:
    context = new_context()
    bound = open_socket(context, zmq.ROUTER, send_high_water=8, receive_high_water=4)
    if bound.getsockopt(zmq.HEARTBEAT_IVL):
        bound.setsockopt(zmq.HEARTBEAT_IVL, 200)  # so that one is due soon
        bound.setsockopt(zmq.HEARTBEAT_TIMEOUT, 60_000)
    bound.bind("tcp://127.0.0.1:*")
    port = int(bound.get_string(zmq.LAST_ENDPOINT).rstrip("\0").rpartition(":")[2])
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL".ljust(23, b"\0") + bytes(32)
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER" + b"\x08Identity" + struct.pack(">I", 0)
    peer = socket.create_connection(("127.0.0.1", port))
    peer.sendall(greeting + b"\x04" + bytes([len(ready)]) + ready)
    time.sleep(0.3)
    for _ in range(3000):
        peer.sendall(b"\x00\xc8" + bytes(200))
    time.sleep(0.3)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    time.sleep(0.7)
    bound.close(0)
    context.term()
    print("survived")


if __name__ == "__main__":
    sys.exit(main())
