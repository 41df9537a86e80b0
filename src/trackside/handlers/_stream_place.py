"""How far a stream of numbered messages, each a frame, has been read: to the event, and fit to be written down."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from trackside.events import DecodeError, Event, FrameDecoder, Source
from trackside.handlers.eventlog._ledger import Ledger

MOST_SOURCE_BYTES: Final = 8 << 10


class StreamPlace:
    """
    A place in a stream, and what is known there of the sources.

    Args:
        cursor: As another one's `cursor` said; None for the beginning.

    Raises:
        DecodeError: *cursor* is none.
    """

    def __init__(self, cursor: Mapping[str, Any] | None = None) -> None:
        self.sequence = 1
        """The number of the message that is due."""
        self.unreadable = 0
        """Messages that held no frame."""
        self._events = 0
        self._settled: dict[str, int] = {}
        self._ledgers: dict[str, Ledger] = defaultdict(Ledger)
        self._decoder = FrameDecoder()
        self._introduced: dict[str, str] = {}
        if cursor is not None:
            self._go_on(cursor)

    @property
    def cursor(self) -> dict[str, Any]:
        """The place after the event that was yielded last, as plain data."""
        return {"sequence": self.sequence, "events": self._events, "sources": dict(self._settled)}

    @property
    def missing(self) -> int:
        """How many events are known to be in no message."""
        return sum(ledger.missing for ledger in self._ledgers.values())

    @property
    def repeated(self) -> int:
        """How many events were passed over because they had been read."""
        return sum(ledger.repeated for ledger in self._ledgers.values())

    def _go_on(self, cursor: Mapping[str, Any]) -> None:
        try:
            self.sequence, self._events = int(cursor["sequence"]), int(cursor["events"])
            self._settled = {str(source): int(due) for source, due in cursor["sources"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DecodeError(f"no cursor of a stream: {type(error).__name__}: {error}") from error
        for source_id, due in self._settled.items():
            self._ledgers[source_id].next_seq = due

    def read(self, sequence: int, frame: bytes, told: str) -> Iterator[Event]:
        """
        Yield the events of a message that are due, and move on with each.

        Args:
            sequence: The message's number.
            frame: What it holds.
            told: Who its source is, as JSON: the frame that said so may be gone.
        """
        if sequence < self.sequence:
            return
        skip = self._events if sequence == self.sequence else 0
        self.sequence, self._events = sequence, skip
        source_id = ""
        events: list[Event] = []
        try:
            self._introduce(told)
            decoded = self._decoder.decode(frame)
            source_id = decoded.source.id
            events = self._ledgers[source_id].admit(decoded)
        except DecodeError:
            self.unreadable += 1
        for place, event in enumerate(events[skip:], start=skip + 1):
            self._events = place
            yield event
        if source_id:
            self._settled[source_id] = self._ledgers[source_id].next_seq
        self.sequence, self._events = sequence + 1, 0

    def _introduce(self, told: str) -> None:
        if not told or len(told) > 2 * MOST_SOURCE_BYTES:
            return
        with contextlib.suppress(ValueError):
            source = Source.from_wire(json.loads(told))
            if self._introduced.get(source.id) != told:
                self._introduced[source.id] = told
                self._decoder.introduce(source)


def told_of(source: Source) -> str:
    """Return *source* as JSON in ASCII, of bounded length."""
    plain = source.to_wire()
    told = json.dumps(plain)
    if len(told) <= MOST_SOURCE_BYTES:
        return told
    return json.dumps({**plain, "metadata": {}, "versions": {}, "perf_tags": []})
