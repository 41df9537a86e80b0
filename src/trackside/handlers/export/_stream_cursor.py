"""The position of a reader in a stream of numbered frames: exact to the event, and saved as plain data."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from trackside.events import DecodeError, Event, Source
from trackside.wire import Frame, FrameDecoder, SequenceTracker
from trackside.wire._decoder import Memo
from trackside.wire._sequence import count_of

MAX_SOURCE_BYTES: Final = 8 << 10
MAX_SOURCES: Final = 1 << 16
"""The most sources whose position a cursor knows. A source that is forgotten and comes back counts as new."""
_DESCRIBED_BYTES: Final = 64 << 20
"""The most bytes of all remembered descriptions; one that was forgotten is read again from the next message."""
_BYTES_PER_CHARACTER: Final = 8
"""The memory of a description and its `Source`, if it has many small fields; with large fields it is less."""


class StreamCursor:
    """
    A position in a stream, and the state of its sources there.

    Args:
        cursor: The `cursor` of another reader, to continue from; None to begin with the first message.

    Raises:
        DecodeError: *cursor* is not a position in a stream.
    """

    def __init__(self, cursor: Mapping[str, Any] | None = None) -> None:
        self.sequence: int = 1
        """The number of the next message."""
        self.created: str = ""
        """The time when the stream in which *sequence* counts was created; empty if it is not known."""
        self.unreadable: int = 0
        """Messages that were not frames."""
        self._events = 0
        self._settled: dict[str, int] = {}
        self._trackers: dict[str, SequenceTracker] = {}
        """By source id, the source that was read longest ago first."""
        self._missing = self._repeated = 0
        """The counts of forgotten sources."""
        self._decoder = SourcedDecoder()
        if cursor is not None:
            self._restore(cursor)

    @property
    def cursor(self) -> dict[str, Any]:
        """The position after the event that was yielded last, as plain data."""
        return {
            "sequence": self.sequence,
            "created": self.created,
            "events": self._events,
            "sources": dict(self._settled),
        }

    @property
    def missing(self) -> int:
        """The number of events missing from the stream."""
        return self._missing + sum(tracker.missing for tracker in self._trackers.values())

    @property
    def repeated(self) -> int:
        """The number of events skipped because they had been read before."""
        return self._repeated + sum(tracker.repeated for tracker in self._trackers.values())

    def _restore(self, cursor: Mapping[str, Any]) -> None:
        try:
            self.sequence, self._events = max(1, count_of(cursor["sequence"])), count_of(cursor["events"])
            self.created = str(cursor.get("created", ""))
            self._settled = {str(source): count_of(due) for source, due in cursor["sources"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise DecodeError(f"not a cursor of a stream: {type(error).__name__}: {error}") from error
        for source_id, due in self._settled.items():
            self._tracker(source_id).next_seq = due

    def _tracker(self, source_id: str) -> SequenceTracker:
        """Return the tracker of the source that is read; of too many, forget the one that was read longest ago."""
        tracker = self._trackers.pop(source_id) if source_id in self._trackers else SequenceTracker()
        self._trackers[source_id] = tracker
        if len(self._trackers) > MAX_SOURCES:
            oldest = next(iter(self._trackers))
            forgotten = self._trackers.pop(oldest)
            self._settled.pop(oldest, None)
            self._missing += forgotten.missing
            self._repeated += forgotten.repeated
        return tracker

    def read(self, sequence: int, frame: bytes, source_json: str) -> Iterator[Event]:
        """
        Yield the events of a message that were not read yet, and advance with each.

        Args:
            sequence: The message's number. It may be lower than earlier ones if a stream begins again.
            frame: The message's content.
            source_json: The frame's source as JSON: the first frame, which describes it, may have been removed.
        """
        skip = self._events if sequence == self.sequence else 0
        self.sequence, self._events = sequence, skip
        source_id = ""
        events: list[Event] = []
        try:
            decoded = self._decoder.decode_with(source_json, frame)
            source_id = decoded.source.id
            tracker = self._tracker(source_id)
            events = tracker.admit(decoded)
            tracker.holes.clear()  # nobody asks a cursor for them
        except DecodeError:
            self.unreadable += 1
        for count, event in enumerate(events[skip:], start=skip + 1):
            self._events = count
            yield event
        if source_id:
            self._settled[source_id] = self._trackers[source_id].next_seq
        self.sequence, self._events = sequence + 1, 0


class SourcedDecoder(FrameDecoder):
    """Decodes frames that come with a description of their source; a malformed description is ignored."""

    def __init__(self) -> None:
        super().__init__()
        self._described: Memo[str, Source] = Memo(_DESCRIBED_BYTES)

    def decode_with(self, source_json: str, data: bytes) -> Frame:
        """
        Decode the frame *data* of the source in *source_json*, as `encoded_source` writes it.

        Raises:
            DecodeError: as for `FrameDecoder.decode`.
        """
        source = self._described.get(source_json)
        if source is None and 0 < len(source_json) <= 2 * MAX_SOURCE_BYTES:
            with contextlib.suppress(ValueError, RecursionError):
                source = Source.from_wire(json.loads(source_json))
                self._described.put(source_json, source, _BYTES_PER_CHARACTER * len(source_json))
                self.introduce(source)
        elif source is not None and self._sources.get(source.id) is None:  # others came in between
            self.introduce(source)
        return self.decode(data)


def encoded_source(source: Source) -> str:
    """Return *source* as JSON in ASCII; beyond 8 KiB without its metadata, versions and perf tags."""
    plain = source.to_wire()
    text = json.dumps(plain)
    if len(text) <= MAX_SOURCE_BYTES:
        return text
    return json.dumps({**plain, "metadata": {}, "versions": {}, "perf_tags": []})
