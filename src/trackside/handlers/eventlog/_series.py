"""A series of record files: a header first and often, records numbered without holes, an end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from trackside.events import Source
from trackside.handlers.eventlog._appender import Appender, Outcome
from trackside.handlers.eventlog._entries import Ending, Loss, encode_ending, encode_header, encode_loss
from trackside.handlers.eventlog._records import Kind, encode_record

HEADER_EVERY_BYTES = 8 << 20


class Taken(NamedTuple):
    """A frame as it was taken."""

    frame: bytes
    events: int


Entry: TypeAlias = Taken | Loss


class Series:
    """
    Writes entries as records through an appender.

    A write that fails leaves the numbering where it was, so the sequence numbers on disk have no holes.
    """

    def __init__(self, appender: Appender, source: Source) -> None:
        self.records = 0
        """Written, in all parts."""
        self._appender = appender
        self._source = source
        self._stream = int.from_bytes(os.urandom(2), "little")
        self._since_header = 0

    def write(self, entries: Sequence[Entry], *, insist: bool = False) -> Outcome:
        """Write all *entries* or none; as `Appender.write`."""
        appender = self._appender
        if appender.is_full:
            self._end(Ending(is_continued=True))
        outcome = appender.ready(insist=insist)
        if not outcome:
            return outcome
        chunk, since_header = self._encode(entries)
        events = sum(entry.events for entry in entries if isinstance(entry, Taken))
        outcome = appender.write(b"".join(chunk), events=events, insist=insist)
        if outcome:
            self.records += len(chunk)
            self._since_header = since_header
        return outcome

    def finish(self) -> None:
        """Mark the open part as the last and close it."""
        self._end(Ending(is_continued=False))

    def _end(self, ending: Ending) -> None:
        is_begun = self._appender.size_bytes > 0
        record = self._record(Kind.END, encode_ending(ending), self.records)
        self.records += bool(self._appender.finish(record if is_begun else b"")) and is_begun

    def _encode(self, entries: Sequence[Entry]) -> tuple[list[bytes], int]:
        chunk: list[bytes] = []
        size = self._appender.size_bytes
        since_header = self._since_header if size else HEADER_EVERY_BYTES
        for entry in entries:
            if since_header >= HEADER_EVERY_BYTES:
                header = encode_header(self._source, self._appender.part)
                chunk.append(self._record(Kind.HEADER, header, self.records + len(chunk)))
                since_header = 0
            if isinstance(entry, Taken):
                kind, payload = Kind.FRAME, entry.frame
            else:
                kind, payload = Kind.GAP, encode_loss(entry)
            chunk.append(self._record(kind, payload, self.records + len(chunk)))
            since_header += len(chunk[-1])
        return chunk, since_header

    def _record(self, kind: Kind, payload: bytes, sequence: int) -> bytes:
        return encode_record(kind, payload, sequence=sequence, stream=self._stream)
