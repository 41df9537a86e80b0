"""The session of a viewer with a stream: a run's state as its collectors stored it, and the later frames."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from trackside.core import described
from trackside.events import ConfigError, DecodeError, UnreadableError, clock
from trackside.handlers.export import SourcedDecoder
from trackside.handlers.nats._collect import stored_run
from trackside.handlers.nats._stream import (
    StreamConnection,
    StreamMessage,
    StreamMessages,
    ask,
    parse_part,
    stored_since,
)
from trackside.handlers.zeromq._collector import collector_models
from trackside.handlers.zeromq._protocol import Snapshot, dump_models
from trackside.wire import Frame

_WAITING_MESSAGES: Final = 64
_SILENT_S: Final = 3.0
_POLL_S: Final = 0.25
_CLOSE_S: Final = 2.0


class StreamSession:
    """
    The part of an `Attachment` that reads a stream. Only one thread may use it; its own thread waits for messages.

    Collectors store a state and its position in the stream in one write, so nothing is missing between the state and
    the first frame. If they have stored nothing of a run, the models begin with its first message.

    Args:
        endpoint: The address of the stream, of a run or of a rank; ``?since=TIME`` may follow it.
        models: The names of the models whose states to begin with.
        begin: Called with a snapshot of these states and of each source's position, if *models* are named.
        deliver: Called with each frame, in order.

    Raises:
        ConfigError: *endpoint* is not such an address; or *models* are named and it is not a run's, or has a time.
        UnreadableError: The server does not answer or has no such stream, or the stored state cannot be read.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        models: Sequence[str],
        begin: Callable[[Snapshot], object],
        deliver: Callable[[Frame], object],
    ) -> None:
        address, since_ns = parse_part(endpoint)
        self.peer: str = str(address)
        """The address, without a password."""
        self.malformed: int = 0
        """Messages that were no frames."""
        self._deliver = deliver
        self._decoder = SourcedDecoder()
        if models and since_ns:
            raise ConfigError("models", self.peer, "leave out ?since=: their states are those of now")
        try:
            stored = stored_run(address) if models else None
        except DecodeError as error:
            raise UnreadableError(self.peer, described(error), "do the collectors have the same release?") from error
        if stored is not None:
            run, created = stored
            known, places, first = run.streams.models, list(run.streams.positions()), run.sequence
        else:
            info = ask(address, lambda jetstream: jetstream.stream_info(address.stream))
            created, known, places = str(info.created), collector_models(lambda _: None), []
            first = 1 if since_ns or models else int(info.state.last_seq) + 1
        if models:
            begin(Snapshot(places, dump_models(known, models), clock.now_ns()))
        self._stop = threading.Event()
        self._messages = StreamMessages(
            StreamConnection(address.servers, {}),
            address.stream,
            address.subject,
            follow=True,
            stop=self._stop,
            poll_interval_s=_POLL_S,
            begin=stored_since(since_ns),
        )
        self._arrived: queue.Queue[StreamMessage] = queue.Queue(_WAITING_MESSAGES)
        self._has_arrived = threading.Event()
        # The thread refers neither to the session nor to the viewer, so it also ends when the viewer is
        # garbage-collected.
        to_read = self._messages.read_from(first, created)
        given = (self._messages, to_read, self._arrived, self._has_arrived, self._stop)
        self._reader = threading.Thread(target=_read, args=given, name="trackside-stream", daemon=True)
        self._reader.start()
        weakref.finalize(self, self._stop.set)

    @property
    def is_silent(self) -> bool:
        """Whether the server has not answered for three seconds."""
        return self._arrived.empty() and time.monotonic() - self._messages.answered_s > _SILENT_S

    def wait(self, timeout_s: float) -> None:
        """Wait until a message has arrived, at most *timeout_s* seconds."""
        self._has_arrived.wait(timeout_s)

    def receive(self) -> int:
        """Deliver the frames that have arrived; return the number of messages."""
        self._has_arrived.clear()
        count = self._arrived.qsize()  # no other thread removes messages
        for _ in range(count):
            message = self._arrived.get_nowait()
            try:
                frame = self._decoder.decode_with(message.source_json, message.frame)
            except DecodeError:
                self.malformed += 1
            else:
                self._deliver(frame)
        return count

    def close(self) -> None:
        """End the thread, which disconnects."""
        self._stop.set()
        self._reader.join(_CLOSE_S)


def _read(
    messages: StreamMessages,
    to_read: Iterator[StreamMessage],
    arrived: queue.Queue[StreamMessage],
    has_arrived: threading.Event,
    stop: threading.Event,
) -> None:
    for message in to_read:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                arrived.put(message, timeout=_POLL_S)
                has_arrived.set()
                break
    messages.close()
