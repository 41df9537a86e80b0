"""A viewer's end of one connection."""

from __future__ import annotations

import pytest

from interrupting import Interruption, interrupting_once
from trackside.handlers.zeromq._attachment import ViewerSession
from trackside.handlers.zeromq._protocol import Filter, FrameEntry, encode
from trackside.handlers.zeromq._session import Action, Sent


class FullConnection:
    """A connection over which a hundred large frames have come."""

    def __init__(self):
        self.waiting = [encode(FrameEntry("stream", index, index, 1, bytes(50 << 10))) for index in range(100)]

    def send(self, address, parts):
        """Send nothing."""
        return Sent.QUEUED

    def receive(self, most):
        """Return the messages that arrived."""
        for _ in range(min(most, len(self.waiting))):
            yield b"", self.waiting.pop(0), ""


class TestReceive:
    def test_a_little_at_once(self):
        """Of many messages some 128 KiB are handled, and the others stay for the next time."""
        connection = FullConnection()
        session = ViewerSession(
            connection, wanted=Filter(), models=(), deliver=lambda entry: None, introduce=lambda snapshot: None
        )

        assert session.receive() == 3
        assert session.receive() == 3
        assert len(connection.waiting) == 94

    def test_exceptions_of_signal_handlers(self):
        """An exception of the program's signal handler comes out of the handling of a message; the next one is read."""
        with interrupting_once() as interrupt:
            session = ViewerSession(
                FullConnection(), wanted=Filter(), models=(), deliver=lambda _: None, introduce=lambda _: None
            )
            session._sessions.receive = lambda *_: interrupt() or (Action.IGNORE, None)
            with pytest.raises(Interruption):
                session.receive()
            assert (session.receive(), session.malformed) == (3, 0)
