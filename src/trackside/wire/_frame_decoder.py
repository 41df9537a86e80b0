"""Frames to events: each part of a frame is checked before any of it is used."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from operator import attrgetter, itemgetter, lt
from typing import Any, Final, Generic, TypeVar

import attrs

from trackside._implementation import native
from trackside.events._errors import DecodeError
from trackside.events._event import Event
from trackside.events._fields import MAX_MAP_LENGTH, MAX_NAME_LENGTH, Value, check_schema
from trackside.events._source import Source
from trackside.events.vocabulary import SourceStarted
from trackside.wire._decoder import RowDecoder
from trackside.wire._frames import FRAME_VERSION, WIDTH
from trackside.wire._values import MAX_FRAME_BYTES, MAX_FRAME_ROWS, unpack, weigh

_MAX_SEQ: Final = 1 << 62
_SOURCES_BYTES: Final = 256 << 20
"""Enough for all ranks of the largest jobs, their workers and attempts."""
_SCHEMAS_BYTES: Final = 64 << 20
_DECODER_BYTES: Final = 64 << 10
"""What a decoder takes at most, its field names apart."""
_LISTS: Final = frozenset((list,))
_WHOLE: Final = frozenset((int,))

_NO_ROWS: Final = b"\x90"
"""An empty list, in place of the rows."""

_describes_source = attrgetter("describes_source")
_first = itemgetter(0)
_second = itemgetter(1)


@attrs.frozen(eq=False, repr=False)
class Frame(Value):
    """A decoded frame."""

    source: Source
    first_seq: int
    last_seq: int
    """``first_seq − 1`` if the frame accounts for nothing but drops."""
    dropped: dict[str, int]
    events: list[Event]


class FrameDecoder:
    """
    Decodes frames of any number of sources.

    Remembers who the sources are: from `introduce` (a file's header, a snapshot) or from the `SourceStarted` in
    their own streams; and how to decode the schemas it has met. What it remembers is bounded. For one thread.
    """

    def __init__(self) -> None:
        self._native = native
        self._sources: Memo[str, Source] = Memo(_SOURCES_BYTES)
        self._decoders: Memo[tuple[str, int, tuple[str, ...]], RowDecoder] = Memo(_SCHEMAS_BYTES)

    def introduce(self, source: Source) -> None:
        """Let events of this source's id carry *source*."""
        self._sources.put(source.id, source, weigh(attrs.astuple(source)))

    def decode(self, data: bytes) -> Frame:
        """
        Decode one frame.

        Raises:
            DecodeError: if any part of it is malformed; then nothing of it is used.
        """
        # With the compiled decoder the rows are read from the bytes, and what stands before them as without it.
        offset = -1 if self._native is None else self._native.rows_offset(data)
        version, source_id, first, last, dropped, schemas, rows = _parts(
            data if offset < 0 else data[:offset] + _NO_ROWS
        )
        _check_header(version, source_id, first, last, dropped)
        decoders = self._decoders_of(schemas)
        known = self._sources.get(source_id) or Source.unknown(source_id)
        found: Any = None
        if offset >= 0:
            layouts = {number: decoder.layout for number, decoder in decoders.items()}
            found = self._native.decode_rows(data, offset, layouts, first, last, known)
            if found is None:
                rows = _parts(data)[-1]
        if found is None:
            events = _decode_rows(rows, decoders, first, last, known)
        else:
            events = _completed(found[0], found[1], decoders, first, known)
        source = _described_source(events, known) if any(map(_describes_source, decoders.values())) else known
        if source is not known:
            self.introduce(source)
        return Frame(source, first, last, dropped, events)

    def _decoders_of(self, schemas: object) -> dict[Any, RowDecoder]:
        if type(schemas) is not list or len(schemas) > MAX_MAP_LENGTH:
            raise DecodeError(f"a frame's schemas are a list, of at most {MAX_MAP_LENGTH}")
        decoders: dict[Any, RowDecoder] = {}
        for schema in schemas:
            try:
                number, name, version, names = schema
                # What is remembered was checked; but 1.0 and True are equal to 1.
                key = (name, version, tuple(names))
                decoder = self._decoders.get(key) if type(version) is int and type(names) is list else None
                if decoder is None:
                    check_schema(name, version, names)
            except (TypeError, ValueError) as error:
                raise DecodeError("a schema is a number, a name, a version and a list of fields") from error
            if type(number) is not int or number in decoders:
                raise DecodeError("a schema's number is a whole number of its own")
            if decoder is None:
                decoder = RowDecoder(*key)
                self._decoders.put(key, decoder, weigh(key) + _DECODER_BYTES)
            decoders[number] = decoder
        return decoders


def _parts(data: bytes) -> Any:
    parts = unpack(data, MAX_FRAME_BYTES)
    if type(parts) is not list or len(parts) != WIDTH:
        raise DecodeError("a frame is a list of seven")
    return parts


def _check_header(version: object, source_id: object, first: object, last: object, dropped: object) -> None:
    # Nothing here may show what is refused: the text of a list nested a thousand deep is an error of its own.
    if type(version) is not int:
        raise DecodeError("a frame begins with its version")
    if version != FRAME_VERSION:
        raise DecodeError(f"frame version {version}; this release reads {FRAME_VERSION}")
    if type(source_id) is not str or len(source_id) > MAX_NAME_LENGTH:
        raise DecodeError("a frame names its source")
    if type(first) is not int or type(last) is not int or not 0 <= first <= last + 1 <= _MAX_SEQ:
        raise DecodeError("a frame says which numbers it accounts for")
    if type(dropped) is not dict:
        raise DecodeError("a frame's drops are counts by name")
    for name, count in dropped.items():
        if type(name) is not str or type(count) is not int or not 0 <= count <= _MAX_SEQ:
            raise DecodeError("a frame's drops are counts by name")


def _completed(
    events: list[Any], rest: Mapping[Any, list[Any]], decoders: Mapping[Any, RowDecoder], first: int, source: Source
) -> list[Event]:
    """Return the *events* with one in place of each row that is no plain one; by type these are the *rest*."""
    if not rest:
        return events
    made = {number: iter(decoders[number].decode_all(rows, first, source)) for number, rows in rest.items()}
    return [next(made[event[0]]) if type(event) is list else event for event in events]


def _decode_rows(
    rows: object, decoders: Mapping[Any, RowDecoder], first: int, last: int, source: Source
) -> list[Event]:
    """Return the events of *rows*."""
    if type(rows) is not list or len(rows) > MAX_FRAME_ROWS:
        raise DecodeError(f"a frame's rows are a list, of at most {MAX_FRAME_ROWS}")
    if not rows:
        return []
    groups = _grouped(rows, decoders)
    _check_order(rows, first, last)
    if len(groups) == 1:
        ((number, group),) = groups.items()
        return decoders[number].decode_all(group, first, source)
    in_turn = {number: iter(decoders[number].decode_all(group, first, source)) for number, group in groups.items()}
    return list(map(next, map(in_turn.__getitem__, map(_first, rows))))


def _grouped(rows: list[Any], decoders: Mapping[Any, RowDecoder]) -> dict[Any, list[Any]]:
    """Return the *rows* of each type by its number, after a look at their widths."""
    if not _LISTS.issuperset(map(type, rows)):
        raise DecodeError("a row is a list")
    try:
        numbers = set(map(_first, rows))
    except (TypeError, IndexError):  # a list or a map, or an empty row
        numbers = {None}
    if not numbers <= decoders.keys():
        raise DecodeError("a row is of no type of its frame")
    if len(numbers) == 1:
        groups = {numbers.pop(): rows}
    else:
        groups = {number: [] for number in numbers}
        for row in rows:
            groups[row[0]].append(row)
    for number, group in groups.items():
        if set(map(len, group)) != {decoders[number].width}:
            raise DecodeError("a row is not as wide as its schema says")
    return groups


def _check_order(rows: list[Any], first: int, last: int) -> None:
    offsets = list(map(_second, rows))
    if not _WHOLE.issuperset(map(type, offsets)):
        raise DecodeError("a row's number is a whole number")
    if offsets[0] < 0 or first + offsets[-1] > last or not all(map(lt, offsets, islice(offsets, 1, None))):
        raise DecodeError("a row is out of order")


def _described_source(events: list[Event], source: Source) -> Source:
    """Return *source* as the first `SourceStarted` of *events* describes it, and let those from there on carry it."""
    place = next((place for place, event in enumerate(events) if type(event) is SourceStarted), None)
    if place is not None:
        started: SourceStarted = events[place]  # type: ignore[assignment]
        source = attrs.evolve(Source.from_wire(started.identity), id=source.id)
        for event in events[place:]:
            event._source = source  # noqa: SLF001  the decoder's to write
    return source


K = TypeVar("K")
V = TypeVar("V")


class Memo(Generic[K, V]):
    """A table of bounded weight; what was not used for longest is forgotten first."""

    def __init__(self, capacity: int) -> None:
        self.weight = 0
        self._capacity = capacity
        self._entries: dict[K, tuple[V, int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return what was put as *key*, or None."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._entries[key] = entry  # at the end, where the newest stand
        return entry[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Remember *value*, whose weight counts against the capacity."""
        _, old = self._entries.pop(key, (None, 0))
        self._entries[key] = value, weight
        self.weight += weight - old
        while self.weight > self._capacity and len(self._entries) > 1:
            _, lost = self._entries.pop(next(iter(self._entries)))
            self.weight -= lost
