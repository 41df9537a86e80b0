"""The stream of events of a process that has no bus: a collector's or forwarder's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trackside.events import Event, RowEncoder, Source, SourceEnded, SourceStarted, encode_frame

COLLECTORS: Final = "collectors"
"""The run id of collectors and forwarders: they belong to none of those they hear."""


class OwnStream:
    """
    Numbers and frames what a collector itself has to say; each event is a frame of its own, because there are few.

    Args:
        source: Who it is.
        take: Given each event, its frame, and its number.
    """

    def __init__(self, source: Source, take: Callable[[Event, bytes, int], object]) -> None:
        self.source = source
        self.next_seq = 0
        self._take = take
        self._encoder = RowEncoder()
        self._is_ended = False
        self.publish(SourceStarted(identity=source.to_wire(), span_id=0, step=-1))

    def publish(self, event: Event) -> None:
        """Say *event*."""
        if self._is_ended:
            return
        schema, row = self._encoder.encode(event, 0)
        seq = self.next_seq
        frame = encode_frame(self.source.id, seq, seq, shed={}, schemas=[schema.entry], rows=[row])
        self.next_seq += 1
        event._source = self.source  # noqa: SLF001  as the decoder does: the event is numbered here
        event._seq = seq  # noqa: SLF001
        self._take(event, frame, seq)

    def end(self, reason: str) -> None:
        """Say the last: that the stream ends, and why."""
        self.publish(SourceEnded(reason=reason, span_id=0, step=-1))
        self._is_ended = True
