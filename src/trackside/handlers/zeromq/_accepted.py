"""The connections that a bound socket has accepted, and the end of those beyond what one address, or all, may hold."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket as network
import struct
from collections import Counter
from typing import Any, Final

from trackside.core import RateLimitedLog
from trackside.handlers.zeromq._keys import zmq
from trackside.handlers.zeromq._protocol import ConnectionLimits

_EVENT: Final = struct.Struct("=HI")
"""Of a monitor's message: what happened, and the descriptor of the connection."""
_ENDPOINT: Final = "inproc://accepted"
_NETWORK_BITS: Final = 64


class AcceptedConnections:
    """
    Counts the connections of a bound socket, and ends those beyond its limits, whether they ever say anything or not.

    libzmq accepts who comes, and a connection holds a descriptor from then on. Has no thread: the loop that polls the
    socket polls `socket` too, and calls `follow` when it can be read. To be made before the socket is bound.

    Args:
        context: Of the socket.
        watched: The socket.
        limits: How many connections it keeps.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], watched: zmq.Socket[bytes], limits: ConnectionLimits
    ) -> None:
        self.ended = 0
        """Connections that were ended, because there were too many."""
        self._watched = watched
        self._limits = limits
        self._origins: dict[int, str] = {}
        """By descriptor."""
        self._of_address: Counter[str] = Counter()
        self._trouble = RateLimitedLog()
        watched.monitor(_ENDPOINT, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.socket: zmq.Socket[Any] = context.socket(zmq.PAIR)
        self.socket.linger = 0
        self.socket.rcvhwm = 0  # libzmq waits, and accepts nobody, while a monitor is full
        self.socket.connect(_ENDPOINT)

    def __len__(self) -> int:
        return len(self._origins)

    def follow(self) -> None:
        """Take in who came and who left, and end what is too much."""
        while True:
            try:
                what, descriptor = _EVENT.unpack(self.socket.recv_multipart(zmq.DONTWAIT)[0])
            except zmq.Again:
                return
            self._leave(descriptor)  # of one that is accepted, too: the system gives numbers out again
            if what == zmq.EVENT_ACCEPTED:
                self._come(descriptor)

    def close(self) -> None:
        """Follow no more; the watched socket is to be closed after it."""
        self._watched.monitor(None, 0)
        self.socket.close(0)

    def _leave(self, descriptor: int) -> None:
        origin = self._origins.pop(descriptor, None)
        if origin is not None:
            self._of_address[origin] -= 1
            if not self._of_address[origin]:
                del self._of_address[origin]

    def _come(self, descriptor: int) -> None:
        # A descriptor of one's own: libzmq may close its at any time. One that has gone already is no trouble.
        with contextlib.suppress(OSError), network.socket(fileno=os.dup(descriptor)) as connection:
            peer = connection.getpeername()
            origin = origin_of(peer[0]) if isinstance(peer, tuple) else ""
            limits = self._limits
            if len(self._origins) >= limits.of_all or self._of_address[origin] >= limits.of_address:
                self.ended += 1
                connection.shutdown(network.SHUT_RDWR)
                self._trouble.complain("a connection of %s is ended: there are too many", origin or "this machine")
                return
            self._origins[descriptor] = origin
            self._of_address[origin] += 1


def origin_of(peer: str) -> str:
    """Return who is behind *peer*, an address as libzmq writes it."""
    if peer.startswith("localhost:"):  # of a Unix socket: with user, group and process
        return peer.rpartition(":")[0]
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
