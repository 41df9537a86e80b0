"""A viewer's conversation with one publisher or collector: greeting, signs of life, and what was asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Final

from trackside.events import DecodeError, clock
from trackside.handlers.zeromq._feed import Entry, Feed
from trackside.handlers.zeromq._filter import Filter
from trackside.handlers.zeromq._link import Link
from trackside.handlers.zeromq._outlet import describe_process
from trackside.handlers.zeromq._protocol import (
    BEAT_S,
    PROTOCOL_VERSION,
    SILENT_AFTER_BEATS,
    VIEWER_END,
    Beat,
    Bye,
    Hello,
    Message,
    Ping,
    Pong,
    Refused,
    Reset,
    Welcome,
    decode,
    encode,
)

_AT_ONCE: Final = 64
_AT_ONCE_BYTES: Final = 128 << 10
"""What is decoded before it is handed on: little enough to stay in a processor's cache until it has been looked at."""


class Line:
    """
    One link of a viewer. For one thread.

    Args:
        link: The socket, connected.
        wanted: What to ask for.
        models: Whose states to ask for.
        take: Given each entry in its turn.
        introduce: Given a snapshot's bytes, before the first entry and after what cannot be made up for.
    """

    def __init__(
        self,
        link: Link,
        *,
        wanted: Filter,
        models: Sequence[str],
        take: Callable[[Entry], object],
        introduce: Callable[[bytes], object],
    ) -> None:
        self.link = link
        self.peer = ""
        """Who is at the other end, as it says; empty until it has."""
        self.ended = ""
        """The reason why it left in good order; empty if it did not."""
        self.busy = ""
        """Why we have to wait, and ask again each second; empty if we need not."""
        self.refused: Refused | None = None
        """Why it will not serve us, if it will not."""
        self.status: dict[str, object] = {}
        """What it said of itself last."""
        self.malformed = 0
        self.feed = Feed(self.send, take, introduce, stream="", wanted=wanted, models=models)
        self._hello = Hello(PROTOCOL_VERSION, VIEWER_END, os.urandom(8).hex(), describe_process())
        self._is_met = False
        self._said_s = -1e9
        self._heard_s = time.monotonic()

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come for three beats."""
        return time.monotonic() - self._heard_s > SILENT_AFTER_BEATS * BEAT_S

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come."""
        return bool(self.ended) or self.refused is not None

    def send(self, message: Message) -> bool:
        """Send *message*, if there is room."""
        return bool(self.link.send(b"", encode(message)))

    def tick(self) -> None:
        """Say what is due."""
        now_s = time.monotonic()
        if now_s - self._said_s >= BEAT_S:
            self._said_s = now_s
            self.send(Ping(clock.now_ns()) if self._is_met else self._hello)
        if self._is_met:
            self.feed.tick(now_s)

    def receive(self) -> int:
        """Take in what has come, as much as is good at once; return how many messages."""
        count = taken_bytes = 0
        for _, parts, _ in self.link.receive(_AT_ONCE):
            count += 1
            size_bytes = sum(map(len, parts))
            taken_bytes += size_bytes
            self._heard_s = time.monotonic()
            try:
                message = decode(parts)
            except DecodeError:
                self.malformed += 1
                continue
            self._on(message, size_bytes)
            if taken_bytes >= _AT_ONCE_BYTES:
                break
        return count

    def _on(self, message: Message, size_bytes: int) -> None:
        if isinstance(message, Welcome):
            if not self._is_met:
                self._is_met = True
                self.busy = ""
                self.peer = message.text
                self.feed.restart()
                self.feed.tick(self._heard_s)
        elif isinstance(message, Reset):
            self._is_met = False
            self._said_s = -1e9
        elif isinstance(message, Refused):
            if message.code == "busy":
                self.busy = message.text
            else:
                self.refused = message
        elif isinstance(message, Bye):
            self.ended = message.reason or "closed"
        elif isinstance(message, Ping):
            self.send(Pong(message.sent_ns, clock.now_ns(), clock.now_ns()))
        else:
            if isinstance(message, Beat):
                self.status = message.status
            self.feed.on(message, size_bytes, self._heard_s)

    def close(self) -> None:
        """Say goodbye and close the link."""
        if self._is_met and not self.is_over:
            self.send(Bye("closed"))
        self.link.close()
