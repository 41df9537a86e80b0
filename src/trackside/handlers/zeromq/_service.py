"""The loop that the collector and the forwarder share: producers on one side, a stream server on the other."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, Protocol

from trackside.core import Closing, RateLimitedLog, StopEvent, described, is_from_signal_handler
from trackside.events import clock
from trackside.handlers.zeromq._connection import Connection, wait_for

if TYPE_CHECKING:
    from trackside.handlers.zeromq._control import VerbForwarder
    from trackside.handlers.zeromq._protocol import Refused, Result
    from trackside.handlers.zeromq._receiver import OwnStream, Producer, Receiver
    from trackside.handlers.zeromq._server import StreamServer

SERVICE_RING_BYTES: Final = 64 << 20
"""The size of the ring of a collector or a forwarder, which has many ranks, for peers that are slow or away."""
_TICK_S: Final = 0.05
_AT_ONCE: Final = 1024


class Streams(Protocol):
    """The interface of the streams that were received and are sent on."""

    own: OwnStream

    def tick(self, producers: Collection[Producer]) -> None:
        """Process the state of *producers*."""


class Service(Closing, ABC):
    """
    Receives streams from producers and serves them to viewers, until it is stopped; it is closed once.

    A subclass opens the connections and sets the attributes that are only declared here.
    """

    receiver: Receiver
    streams: Streams
    _receiving: Connection
    _serving: Connection | None = None
    """The connection of *_server*, if there is one."""
    _server: StreamServer | None = None
    _verbs: VerbForwarder | None = None

    def __init__(self) -> None:
        self._stop = StopEvent()
        self._is_closed = False
        self._closed_whole = False
        """The result of the first `close`, which every further one returns again."""
        self._ticked_s = 0.0
        self._connections: list[Connection] = []

    def _connect(self, endpoint: str, **options: Any) -> Connection:
        """Return a new connection; if it cannot be made, close the earlier ones."""
        try:
            connection = Connection(endpoint, **options)
        except BaseException:
            self._disconnect()
            raise
        self._connections.append(connection)
        return connection

    def _disconnect(self) -> None:
        for connection in self._connections:
            connection.close()

    def serve(self) -> None:
        """Work until `stop` is called."""
        trouble = RateLimitedLog()
        while not self._stop.is_set():
            try:
                self.turn(_TICK_S)
            except Exception as error:  # the other peers must still be served
                if is_from_signal_handler(error):
                    raise
                trouble.complain("the %s goes on after an error: %s", type(self).__name__.lower(), described(error))
                self._stop.wait(_TICK_S)

    def turn(self, timeout_s: float) -> None:
        """Wait for messages, at most *timeout_s*, and process them."""
        more = self._server.pump() if self._server is not None else False
        wait_for(self._connections, 0.0 if more else timeout_s)
        self.receiver.receive(self._receiving.receive(_AT_ONCE))
        if self._server is not None and self._serving is not None:
            self._listen(self._server, self._serving)
        now_s = time.monotonic()
        if now_s - self._ticked_s >= _TICK_S:
            self._ticked_s = now_s
            self.receiver.tick()
            self.streams.tick(self.receiver.producers.values())
            if self._verbs is not None:
                self._verbs.tick(now_s)

    def _listen(self, server: StreamServer, connection: Connection) -> None:
        now_s = time.monotonic()
        for address, parts, user in connection.receive(_AT_ONCE):
            server.receive(address, parts, now_s, clock.now_ns(), user)
        server.tick(now_s)

    def stop(self) -> None:
        """Make `serve` return; may be called on any thread, and by a signal handler."""
        self._stop.set()

    def _on_result(self, producer: Producer, message: Result | Refused) -> None:
        if self._verbs is not None:
            self._verbs.on_result(producer, message)

    def _begin_close(self) -> bool:
        """Stop, and say goodbye to the producers; return False if that was done before."""
        if self._is_closed:
            return False
        self._is_closed = True
        self._stop.set()
        self.receiver.part("closed")
        self.streams.own.end("closed")
        return True

    def _drain(self, server: StreamServer, connection: Connection, within_s: float) -> None:
        """Send viewers the entries that are left, as many as they accept within *within_s*."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s and not server.is_drained:
            server.pump()
            server.beat()  # viewers acknowledge it at once
            wait_for([connection], _TICK_S)
            self._listen(server, connection)

    @abstractmethod
    def close(self) -> bool:
        """Say goodbye, and stop; safe to call twice."""
