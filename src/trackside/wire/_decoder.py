"""
Frames to events: each part of a frame is checked before any of it is used.

Each combination of value types in a row is checked against its class once; then rows of that combination are decoded by
a plan, column by column.
"""

from __future__ import annotations

import functools
import typing
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, repeat
from operator import add, attrgetter, itemgetter, lt, setitem
from typing import Any, Final, Generic, TypeVar

import attrs

from trackside._implementation import native
from trackside.events._errors import DecodeError
from trackside.events._event import FROM_AMBIENT, Event, EventOfSpan, lookup
from trackside.events._fields import (
    ENVELOPE,
    MAX_MAP_LENGTH,
    MAX_NAME_LENGTH,
    SCALARS,
    STAMPS,
    Value,
    check_schema,
    fields_in,
    hints_of,
    is_flat,
    is_union,
    own_fields,
)
from trackside.events._source import Source
from trackside.events.vocabulary import SourceStarted, UnknownEvent
from trackside.wire import _values as values
from trackside.wire._encoder import FRAME_VERSION, WIDTH
from trackside.wire._structure import rebuilt, structured
from trackside.wire._values import MAX_FRAME_BYTES, MAX_FRAME_ROWS, unpack, weigh

_HEAD: Final = 2 + len(ENVELOPE)
_ENVELOPES: Final = (Event.__attrs_post_init__, EventOfSpan.__attrs_post_init__)
"""Initializers that fill in the values that every row has."""
_ANYTHING: Final = (Any, object)
_AS_READ: Final = (dict, list, dict[str, Any], dict[str, object], list[Any], list[object])
_PLAIN: Final = frozenset(SCALARS)
_TEXT: Final = frozenset((str,))
_NESTED: Final = (dict, list)
_MAX_LEARNED: Final = 64
_MAX_LEARNED_CELLS: Final = 4096
"""Limits of the combinations of types that one decoder remembers: a stream needs few, a hostile one could send many."""

_KINDS: Final = {type(None): 1, bool: 2, int: 4, float: 8, str: 16, bytes: 32, list: 64, dict: 128}
"""The kinds of values that the compiled decoder distinguishes."""
_ANY_KIND: Final = 255

_FEW: Final = 16
"""Fewer rows than this are decoded one by one: decoding by column has a fixed cost."""

_new = object.__new__


class _UnsoundError(Exception):
    """A list or map is nested too deep, or has keys that are no text."""


@attrs.frozen(eq=False, repr=False)
class _Plan(Value):
    """The steps that turn rows with one combination of value types into events."""

    nested: tuple[int, ...]
    """The columns that hold a list or a map which no conversion checks."""
    converted: tuple[tuple[int, Callable[[Any], Any]], ...] = ()
    """The columns whose values may not be of the declared type, each with the function that converts them."""
    pick: Callable[[Sequence[Any]], tuple[Any, ...]] | None = None
    """Takes the values out of a row in the order of the class's fields; None where the row becomes an unknown event."""


class RowDecoder:
    """Decodes the rows of one schema, which another version of the program may have written."""

    __slots__ = (
        "_ambient",
        "_cls",
        "_constants",
        "_fill",
        "_fill_numbered",
        "_hints",
        "_is_judged_by_type",
        "_learned",
        "_names",
        "_pick",
        "_room",
        "_version",
        "_whole_hints",
        "_wire_name",
        "layout",
        "width",
    )

    def __init__(self, wire_name: str, version: int, names: Sequence[str]) -> None:
        self.width = _HEAD + len(names)
        self._wire_name = wire_name
        self._version = version
        self._names = tuple(names)
        self._learned: dict[tuple[type, ...], _Plan] = {}
        self._room = min(_MAX_LEARNED, _MAX_LEARNED_CELLS // self.width)
        self._cls = self._reader()
        self._hints: tuple[Any, ...] = ()
        self._whole_hints: dict[str, Any] = {}
        """The types of the values in a row, in order, and then those of the values in `_ambient`."""
        self._ambient: tuple[int, ...] = ()
        """The values of fields that a row lacks and that a constructor would take from the reading process."""
        self._constants: tuple[Any, ...] = ()
        self._pick: Callable[[Sequence[Any]], tuple[Any, ...]] | None = None
        self._fill = self._fill_numbered = _fill_unknown
        self._is_judged_by_type = False
        self.layout: Any = None
        """The form in which the compiled decoder reads rows of this schema; None without one."""
        if self._cls is not None:
            self._learn_class(self._cls)
        if native is not None:
            self.layout = self._layout(native.RowLayout)

    def _learn_class(self, cls: type[Event]) -> None:
        hints = hints_of(cls)
        known = {field.name for field in fields_in(cls)}
        self._hints = tuple(hints[name] if name in known else Any for name in self._names)
        self._whole_hints = {**dict.fromkeys(ENVELOPE, int), **dict(zip(self._names, self._hints, strict=True))}
        lacking = [field for field in fields_in(cls) if field.name not in self._whole_hints]
        ambient = [field for field in lacking if field.default is FROM_AMBIENT]
        self._whole_hints.update((field.name, int) for field in ambient)
        self._ambient = tuple(map(_default, ambient))
        if _is_transparent(cls):
            self._prepare(cls)
            is_flat_row = is_flat(hint for hint in self._hints if hint not in _ANYTHING)
            self._is_judged_by_type = self._pick is not None and is_flat_row

    @property
    def describes_source(self) -> bool:
        """Whether its events describe their source."""
        return self._cls is SourceStarted

    def _reader(self) -> type[Event] | None:
        """Return the class that rows of this schema can become: each field that they lack has a default."""
        cls = lookup(self._wire_name)
        # A later version means something else by the same names.
        if cls is None or cls is UnknownEvent or self._version > cls.version:
            return None
        missing = set(own_fields(cls)) - set(self._names)
        fits = all(field.default is not attrs.NOTHING for field in fields_in(cls) if field.name in missing)
        return cls if fits else None

    def _prepare(self, cls: Any) -> None:
        """
        Find the index of each field of *cls* in a row to which the defaults of the fields that it lacks are appended.
        """
        places = {name: column for column, name in enumerate((*ENVELOPE, *self._names), start=2)}
        constants: list[Any] = []
        for field in fields_in(cls):
            if field.name not in places:
                if not isinstance(field.default, SCALARS):
                    return
                places[field.name] = self.width + len(constants)
                constants.append(_default(field))
        self._fill = _filler(cls)
        self._fill_numbered = _filler(cls, STAMPS)
        self._constants = tuple(constants)
        self._pick = itemgetter(*(places[field.name] for field in fields_in(cls)))

    def _layout(self, layout: Callable[..., Any]) -> Any:
        """
        Return the compiled decoder's layout; without a class, and so for rows only, if building an event does more.
        """
        if self._pick is None:
            return layout(self.width)
        stored = {field.name for field in fields_in(self._cls)}
        whole = (_KINDS[int], 0, 0)
        columns = [
            *((name, *whole) for name in ENVELOPE),
            *(
                (name if name in stored else None, *_admitted(hint))
                for name, hint in zip(self._names, self._hints, strict=True)
            ),
        ]
        lacking = [field for field in fields_in(self._cls) if field.name not in {*ENVELOPE, *self._names}]
        constants = tuple((field.name, _default(field)) for field in lacking)
        try:
            return layout(self.width, self._cls, tuple(columns), constants, STAMPS)
        except TypeError:  # a field that is kept elsewhere than in a slot
            return layout(self.width)

    def decode(self, row: list[Any]) -> Event:
        """
        Return the event of *row*, whose width was checked.

        Raises:
            DecodeError: if the envelope is malformed, or a value lies too deep.
        """
        plan = self._learned.get(tuple(map(type, row)))
        if plan is None:
            return self._decode_new(row)
        for column in plan.nested:
            if row[column] and not values.is_sound(row[column]):
                raise self._unsound()
        if plan.pick is None:
            return self._raw(row)
        if self._constants or plan.converted:
            whole = [*row, *self._constants]
            try:
                for column, convert in plan.converted:
                    whole[column] = convert(row[column])
            except _UnsoundError:
                raise self._unsound() from None
            except Exception:  # of the right type, but no value that the class accepts
                if not all(values.is_sound(value) for value in row if type(value) in _NESTED):
                    raise self._unsound() from None  # later columns were not checked
                return self._raw(row)
            row = whole
        event: Event = _new(self._cls)  # type: ignore[arg-type]
        self._fill(event, *plan.pick(row))
        return event

    def decode_all(self, rows: Sequence[list[Any]], first_seq: int, source: Source) -> list[Event]:
        """
        Rebuild the events of *rows*, which are of this schema and whose widths were checked; number them.

        If all rows have one combination of types, as is usual, they are decoded by column, in functions written in C.

        Args:
            rows: The rows, in order; with numbers that are added to *first_seq*.
            first_seq: The first number of their frame.
            source: The source that the events get.

        Raises:
            DecodeError: as `decode`.
        """
        events = self._by_column(rows, first_seq, source) if len(rows) >= _FEW else None
        if events is None:
            events = [self.decode(row) for row in rows]
            for event, row in zip(events, rows, strict=True):
                event._source = source  # noqa: SLF001  these two slots are the decoder's to write
                event._seq = first_seq + row[1]  # noqa: SLF001
        return events

    def _by_column(self, rows: Sequence[list[Any]], first_seq: int, source: Source) -> list[Event] | None:
        """Return the events of *rows*; None if they must be decoded one by one."""
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        plan = self._plan_of(columns)
        if plan is None:
            self.decode(rows[0])  # whose combination may be new
            plan = self._plan_of(columns)
        if plan is None:
            return None
        for column in plan.nested:
            if not all(map(values.is_sound, filter(None, columns[column]))):
                raise self._unsound()
        seqs = map(add, columns[1], repeat(first_seq))
        if plan.pick is None:
            return self._raw_by_column(columns, seqs, source)
        try:
            for column, convert in plan.converted:
                columns[column] = list(map(convert, columns[column]))
        except Exception:  # one row has a bad value; decoding row by row finds it
            return None
        picked = plan.pick([*columns, *map(repeat, self._constants)])
        events: list[Event] = list(map(_new, repeat(self._cls, len(rows))))  # type: ignore[arg-type]
        deque(map(self._fill_numbered, events, *picked, repeat(source), seqs), maxlen=0)
        return events

    def _raw_by_column(self, columns: Sequence[Sequence[Any]], seqs: Iterable[int], source: Source) -> list[Event]:
        """Return the unknown events of the rows with these *columns* and these numbers."""
        count = len(columns[0])
        fields: list[dict[str, Any]] = list(map(dict.copy, repeat(dict.fromkeys(self._names), count)))
        for name, column in zip(self._names, columns[_HEAD:], strict=True):
            deque(map(setitem, fields, repeat(name), column), maxlen=0)
        events: list[Event] = list(map(_new, repeat(UnknownEvent, count)))
        values_by_field = (*columns[2:_HEAD], repeat(self._wire_name), fields, repeat(self._version))
        deque(map(_fill_unknown_numbered, events, *values_by_field, repeat(source), seqs), maxlen=0)
        return events

    def _plan_of(self, columns: Sequence[Sequence[Any]]) -> _Plan | None:
        """Return the plan of all rows of these *columns*, if they share one and it is known."""
        kinds = [set(map(type, column)) for column in columns]
        plan = self._learned.get(tuple(next(iter(found)) for found in kinds))
        return plan if plan is not None and max(map(len, kinds)) == 1 else None

    def _decode_new(self, row: list[Any]) -> Event:
        if any(type(value) is not int for value in row[:_HEAD]):
            raise DecodeError(f"{self._wire_name}: type, number, time, span and step must be whole numbers")
        nested = tuple(column for column, value in enumerate(row) if isinstance(value, (list, dict)))
        if not all(values.is_sound(row[column]) for column in nested):
            raise self._unsound()
        if self._cls is None:
            self._learn(row, _Plan(nested))
            return self._raw(row)
        try:
            event = self._rebuilt(self._cls, row)
        except Exception:  # the values are kept, whatever is wrong with the class
            if self._is_judged_by_type:
                self._learn(row, _Plan(nested))
            return self._raw(row)
        if self._pick is not None:
            columns = enumerate(zip(row[_HEAD:], self._hints, strict=True), start=_HEAD)
            converted = {column: _conversion(hint) for column, (value, hint) in columns if not _is_as_read(value, hint)}
            unseen = tuple(column for column in nested if column not in converted)
            self._learn(row, _Plan(unseen, tuple(converted.items()), self._pick))
        return event

    def _unsound(self) -> DecodeError:
        return DecodeError(f"{self._wire_name}: nested deeper than {values.MAX_DEPTH}, or a key that is no text")

    def _raw(self, row: Sequence[Any]) -> UnknownEvent:
        event: UnknownEvent = _new(UnknownEvent)
        fields = dict(zip(self._names, row[_HEAD:], strict=True))
        _fill_unknown(event, row[2], row[3], row[4], self._wire_name, fields, self._version)
        return event

    def _rebuilt(self, cls: type[Event], row: Sequence[Any]) -> Event:
        """Build the event as it was logged."""
        wire = dict(zip(self._whole_hints, (*row[2:], *self._ambient), strict=True))
        return rebuilt(cls, wire, self._whole_hints)

    def _learn(self, row: Sequence[Any], plan: _Plan) -> None:
        if len(self._learned) < self._room:
            self._learned[tuple(map(type, row))] = plan


def _is_transparent(cls: Any) -> bool:
    """Return whether reading a *cls* does nothing but set its fields, whichever a row lacks."""
    return (
        cls.__attrs_post_init__ in _ENVELOPES
        and cls.__setattr__ is object.__setattr__
        and all(field.validator is None and field.converter is None for field in fields_in(cls))
        and not any(field.name in STAMPS for field in fields_in(cls))
    )


def _default(field: attrs.Attribute[Any]) -> Any:
    """Return the value of a *field* that a row lacks; never that of a span which is open in the reading process."""
    return 0 if field.default is FROM_AMBIENT else field.default


def _is_as_read(value: Any, hint: Any) -> bool:
    """Return whether every value of the type of *value* is as *hint* asks, without conversion."""
    if hint in _ANYTHING or type(value) is hint or (type(value) in (dict, list) and hint in _AS_READ):
        return True
    return is_union(hint) and type(value) in hint.__args__


@functools.lru_cache(maxsize=4096)
def _admitted(hint: Any) -> tuple[int, int, int]:
    """
    Return the kinds of values that *hint* takes as they are: of the field, of a list's elements, of a map's values.

    They are those for which `_is_as_read` and `_conversion` leave the value as it is. In a union, lists and maps count
    only if each is declared once and all other options are scalars.
    """
    if hint in _ANYTHING:
        return _ANY_KIND, _ANY_KIND, _ANY_KIND
    options = typing.get_args(hint) if is_union(hint) else (hint,)
    value = sum(_KINDS[option] for option in options if option in _PLAIN)
    inner = {list: 0, dict: 0}
    for option in options:
        if option in _PLAIN:
            continue
        kind, arguments = typing.get_origin(option) or option, typing.get_args(option)
        if kind not in inner or inner[kind] or (kind is dict and arguments and arguments[0] is not str):
            return value, 0, 0
        wanted = arguments[-1] if arguments else Any
        allowed = typing.get_args(wanted) if is_union(wanted) else (wanted,)
        if not (wanted in _ANYTHING or _PLAIN.issuperset(allowed)):
            return value, 0, 0
        inner[kind] = _ANY_KIND if wanted in _ANYTHING else sum(map(_KINDS.__getitem__, allowed))
    return value + sum(_KINDS[kind] for kind in inner if inner[kind]), inner[list], inner[dict]


@functools.lru_cache(maxsize=4096)
def _conversion(hint: Any) -> Callable[[Any], Any]:
    """Return a function that converts a value from the wire to the type *hint*, or raises."""
    kind, options = typing.get_origin(hint), typing.get_args(hint)
    wanted = options[-1] if options else None
    allowed = frozenset(typing.get_args(wanted) if is_union(wanted) else (wanted,))
    is_flat_map = kind is dict and options[0] is str and allowed <= _PLAIN
    is_flat_list = kind is list and allowed <= _PLAIN

    def convert(value: Any) -> Any:
        # In C, as nearly all lists and maps hold scalars of the declared type and need nothing done to them.
        if is_flat_map and type(value) is dict:
            if allowed.issuperset(map(type, value.values())) and _TEXT.issuperset(map(type, value)):
                return value
        elif is_flat_list and type(value) is list and allowed.issuperset(map(type, value)):
            return value
        if type(value) in _NESTED and not values.is_sound(value):
            raise _UnsoundError
        return structured(value, hint)

    return convert


@functools.lru_cache(maxsize=4096)
def _filler(cls: Any, more: tuple[str, ...] = ()) -> Callable[..., None]:
    """
    Return a function of an event of *cls* and the values, in order, of all its fields and then of the slots *more*.

    It is the constructor of a class with the same fields, as attrs writes it: setting them in a loop takes three
    times as long.
    """
    names = (*(field.name for field in fields_in(cls)), *more)
    these = {name: attrs.field(alias=f"value_{place}") for place, name in enumerate(names)}

    @attrs.define(these=these, slots=False, eq=False, repr=False)
    class Filler:
        pass

    return Filler.__init__


_fill_unknown: Callable[..., None] = _filler(UnknownEvent)
_fill_unknown_numbered: Callable[..., None] = _filler(UnknownEvent, STAMPS)


_MAX_SEQ: Final = 1 << 62
_SOURCES_BYTES: Final = 256 << 20
"""Enough for all ranks of the largest jobs, their workers and attempts."""
_SCHEMAS_BYTES: Final = 64 << 20
_DECODER_BYTES: Final = 64 << 10
"""The most memory that a decoder takes, apart from its field names."""
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
    their own streams; and how to decode the schemas it has met. What it remembers is bounded. Only one thread may
    use it.
    """

    def __init__(self) -> None:
        self._native = native
        self._sources: Memo[str, Source] = Memo(_SOURCES_BYTES)
        self._decoders: Memo[tuple[str, int, tuple[str, ...]], RowDecoder] = Memo(_SCHEMAS_BYTES)

    def introduce(self, source: Source) -> None:
        """Give later events with this source's id the object *source*, or the known one if that is equal."""
        # A log repeats its header every few MiB, and two objects are compared for each event that is grouped by source.
        if self._sources.get(source.id) != source:
            self._sources.put(source.id, source, weigh(attrs.astuple(source)))

    def decode(self, data: bytes) -> Frame:
        """
        Decode one frame.

        Raises:
            DecodeError: if any part of it is malformed; then nothing of it is used.
        """
        # The compiled decoder reads only the rows from the bytes; the parts before them are read in Python.
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
            raise DecodeError(f"a frame's schemas are no list of at most {MAX_MAP_LENGTH}")
        decoders: dict[Any, RowDecoder] = {}
        for schema in schemas:
            try:
                number, name, version, names = schema
                # A remembered schema was checked before; but 1.0 and True equal 1 as a key, so the types are checked
                # here.
                key = (name, version, tuple(names))
                decoder = self._decoders.get(key) if type(version) is int and type(names) is list else None
                if decoder is None:
                    check_schema(name, version, names)
            except (TypeError, ValueError) as error:
                raise DecodeError("a schema is no list of a number, a name, a version and a list of fields") from error
            if type(number) is not int or number in decoders:
                raise DecodeError("a schema's number is no whole number, or is used twice in the frame")
            if decoder is None:
                decoder = RowDecoder(*key)
                self._decoders.put(key, decoder, weigh(key) + _DECODER_BYTES)
            decoders[number] = decoder
        return decoders


def _parts(data: bytes) -> Any:
    parts = unpack(data, MAX_FRAME_BYTES)
    if type(parts) is not list or len(parts) != WIDTH:
        raise DecodeError(f"not a frame: no list of {WIDTH} parts")
    return parts


def _check_header(version: object, source_id: object, first: object, last: object, dropped: object) -> None:
    # No message here shows the refused value: formatting a list that is nested a thousand deep would itself raise.
    if type(version) is not int:
        raise DecodeError("not a frame: its version is no whole number")
    if version != FRAME_VERSION:
        raise DecodeError(f"frame version {version}; this release reads {FRAME_VERSION}")
    if type(source_id) is not str or len(source_id) > MAX_NAME_LENGTH:
        raise DecodeError(f"a frame's source is no text of at most {MAX_NAME_LENGTH} characters")
    if type(first) is not int or type(last) is not int or not 0 <= first <= last + 1 <= _MAX_SEQ:
        raise DecodeError("a frame's first and last number are no whole numbers in their order")
    if type(dropped) is not dict:
        raise DecodeError("a frame's dropped events are no map of names and counts")
    for name, count in dropped.items():
        if type(name) is not str or type(count) is not int or not 0 <= count <= _MAX_SEQ:
            raise DecodeError("a frame's dropped events are no map of names and counts")


def _completed(
    events: list[Any], rest: Mapping[Any, list[Any]], decoders: Mapping[Any, RowDecoder], first: int, source: Source
) -> list[Event]:
    """Return *events* with each row replaced by its event; *rest* has these rows by the number of their schema."""
    if not rest:
        return events
    made = {number: iter(decoders[number].decode_all(rows, first, source)) for number, rows in rest.items()}
    return [next(made[event[0]]) if type(event) is list else event for event in events]


def _decode_rows(
    rows: object, decoders: Mapping[Any, RowDecoder], first: int, last: int, source: Source
) -> list[Event]:
    """Return the events of *rows*."""
    if type(rows) is not list or len(rows) > MAX_FRAME_ROWS:
        raise DecodeError(f"a frame's rows are no list of at most {MAX_FRAME_ROWS}")
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
    """Return the *rows* of each type by its number; raise if a row's width is not that of its schema."""
    if not _LISTS.issuperset(map(type, rows)):
        raise DecodeError("a row is no list")
    try:
        numbers = set(map(_first, rows))
    except (TypeError, IndexError):  # a number that is a list or a map, or an empty row
        numbers = {None}
    if not numbers <= decoders.keys():
        raise DecodeError("a row begins with a number that none of its frame's schemas has")
    if len(numbers) == 1:
        groups = {numbers.pop(): rows}
    else:
        groups = {number: [] for number in numbers}
        for row in rows:
            groups[row[0]].append(row)
    for number, group in groups.items():
        if set(map(len, group)) != {decoders[number].width}:
            raise DecodeError("a row has more or fewer values than its schema names")
    return groups


def _check_order(rows: list[Any], first: int, last: int) -> None:
    offsets = list(map(_second, rows))
    if not _WHOLE.issuperset(map(type, offsets)):
        raise DecodeError("a row's number is no whole number")
    if offsets[0] < 0 or first + offsets[-1] > last or not all(map(lt, offsets, islice(offsets, 1, None))):
        raise DecodeError("a row is out of order: its number is not above the one before it, or not one of the frame's")


def _described_source(events: list[Event], source: Source) -> Source:
    """Return *source* as the first `SourceStarted` in *events* describes it, which later events then carry."""
    place = next((place for place, event in enumerate(events) if type(event) is SourceStarted), None)
    if place is not None:
        started: SourceStarted = events[place]  # type: ignore[assignment]
        described = attrs.evolve(Source.from_wire(started.identity), id=source.id)
        if described != source:
            source = described
            for event in events[place:]:
                event._source = source  # noqa: SLF001  the decoder's to write
    return source


K = TypeVar("K")
V = TypeVar("V")


class Memo(Generic[K, V]):
    """An LRU cache, bounded by the weight of its values."""

    def __init__(self, capacity: int) -> None:
        self.weight = 0
        self._capacity = capacity
        self._entries: dict[K, tuple[V, int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value that was put as *key*, or None."""
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
