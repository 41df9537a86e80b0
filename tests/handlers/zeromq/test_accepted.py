"""The number of connections that a bound socket keeps, of one address and of all, with real sockets."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

import pytest

from trackside.handlers.zeromq._connection import Connection
from trackside.handlers.zeromq._protocol import ConnectionLimits

DEADLINE_S = 60.0
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
READY = bytes([4, len(_READY)]) + _READY


@pytest.fixture
def bound():
    """Give a socket that keeps four connections of an address, and seven in all."""
    connection = Connection("tcp://127.0.0.1:*", binds=True, insecure=True, limits=ConnectionLimits(4, 7))
    yield connection
    connection.close()


@pytest.fixture
def connected(bound):
    """Give a function that makes silent connections from an address of this machine."""
    port = int(bound.endpoint.rpartition(":")[2])
    with contextlib.ExitStack() as stack:

        def connect(address):
            made = stack.enter_context(socket.socket())
            made.bind((address, 0))
            made.settimeout(DEADLINE_S)
            made.connect(("127.0.0.1", port))
            made.sendall(GREETING + READY)
            made.setblocking(False)
            return made

        yield connect


def is_open(connection):
    """Return whether the other end has kept *connection*."""
    with contextlib.suppress(BlockingIOError):
        while True:
            try:
                if not connection.recv(4096):
                    return False
            except ConnectionError:
                return False
    return True


def serve(bound, is_done):
    """Serve until *is_done*."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < deadline_s
        bound.wait(0.05)


class TestConnectionLimits:
    def test_of_an_address(self, bound, connected):
        """
        Of six silent connections of one address four are kept, and others of another address come in.
        """
        first = [connected("127.0.0.1") for _ in range(6)]
        serve(bound, lambda: bound._accepted.ended == 2)
        serve(bound, lambda: sum(map(is_open, first)) == 4)
        others = [connected("127.0.0.2") for _ in range(3)]
        serve(bound, lambda: len(bound._accepted) == 7)

        assert [is_open(one) for one in others] == [True] * 3

    def test_of_all(self, bound, connected):
        """
        However many addresses there are, no more than seven connections are kept.
        """
        for number in range(1, 10):
            connected(f"127.0.0.{number}")
        serve(bound, lambda: bound._accepted.ended == 2)

        assert len(bound._accepted) == 7

    def test_who_leaves_makes_room(self, bound, connected):
        """
        Connections that are closed no longer count.
        """
        first = [connected("127.0.0.1") for _ in range(4)]
        serve(bound, lambda: len(bound._accepted) == 4)
        for one in first:
            one.close()
        serve(bound, lambda: len(bound._accepted) == 0)
        again = [connected("127.0.0.1") for _ in range(4)]
        serve(bound, lambda: len(bound._accepted) == 4)

        assert ([is_open(one) for one in again], bound._accepted.ended) == ([True] * 4, 0)
