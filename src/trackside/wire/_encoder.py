"""
The encoding of events: as rows, and of rows as frames, the self-describing batches of one source's events.

A row is ``[type, seq − first_seq, at_ns, span_id, step, …fields]``. An `operator.attrgetter` reads the fields and
msgpack packs them, both in C. Only a row that is large, nested or of unexpected types is looked at value by value.

A frame is ``[version, source_id, first_seq, last_seq, dropped, schemas, rows]``. ``first_seq … last_seq`` is what the
frame accounts for, rows that a filter left out included, so the next frame of any stream starts at last + 1 and only a
real loss is a gap. ``dropped`` counts, since the source started and by wire name, events that never got a number.
"""

from __future__ import annotations

import operator
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import msgpack

from trackside._implementation import native
from trackside.events._event import Event, is_declared
from trackside.events._fields import (
    ENVELOPE,
    MAX_MAP_LENGTH,
    SCALARS,
    check_schema,
    hints_of,
    is_flat,
    is_union,
    own_fields,
)
from trackside.events.vocabulary import UnknownEvent
from trackside.wire import _values as values
from trackside.wire._structure import structured
from trackside.wire._values import MAX_FRAME_BYTES, MAX_FRAME_ROWS

FRAME_VERSION: Final = 2
WIDTH: Final = 7
"""The parts of a frame."""
_MAX_RESTORED: Final = 1024
_EXACT: Final[frozenset[type]] = frozenset(SCALARS)
_NOTHING: Final[frozenset[type]] = frozenset()
_REAL: Final = frozenset((int, float, type(None)))

Encoding: TypeAlias = Callable[[Event, int], bytes]


class Schema:
    """The written form of events of one type: the type's number in frames, wire name, version and field names."""

    __slots__ = ("entry", "number", "wire_name")

    def __init__(self, number: int, wire_name: str, version: int, names: Sequence[str]) -> None:
        self.number: int = number
        self.wire_name: str = wire_name
        self.entry: bytes = msgpack.packb([number, wire_name, version, names])


class RowEncoder:
    """
    Encodes events to rows and numbers their types in the order in which they come. For one thread.

    Attributes:
        cuts: Strings cut to 64 KiB so far.
    """

    def __init__(self) -> None:
        self.cuts: int = 0
        self._by_class: dict[type[Event], tuple[Schema, Encoding]] = {}
        self._encodings: dict[int, Encoding] = {}
        self._restored: dict[tuple[str, int, tuple[str, ...]], Schema] = {}
        self._numbered = 0

    def encode(self, event: Event, offset: int) -> tuple[Schema, bytes]:
        """
        Encode *event* as the row with number first_seq + *offset*.

        Raises:
            TypeError: if a field's value is not of the field's declared type, or cannot be recorded at all.
            Exception: of any other kind that its values raise.
        """
        try:
            schema, encoding = self._by_class[type(event)]
        except KeyError:
            if isinstance(event, UnknownEvent):
                return self._restore(event, offset)
            schema = self.schema_of(type(event))
            encoding = self._encodings[schema.number]
        return schema, encoding(event, offset)

    def encoding(self, schema: Schema) -> Encoding:
        """Return a function that encodes events of the class of *schema* as `encode` does, without the look-ups."""
        return self._encodings[schema.number]

    def schema_of(self, cls: type[Event]) -> Schema:
        """
        Return the schema of the events of *cls*.

        Raises:
            TypeError: if the class was not declared.
        """
        if cls not in self._by_class:
            if not is_declared(cls):
                raise TypeError(f"{cls.__module__}.{cls.__qualname__} is not declared; use @trackside.event")
            hints = hints_of(cls)
            fields = [_Field.of(name, hints[name]) for name in own_fields(cls)]
            # Scalars first: one call reads them all.
            fields.sort(key=lambda field: not is_flat([field.hint]))
            schema = Schema(self._next_number(), cls.wire_name, cls.version, [field.name for field in fields])
            encoding = self._encodings[schema.number] = self._encoding(cls, schema, fields)
            self._by_class[cls] = schema, encoding
        return self._by_class[cls][0]

    def _encoding(self, cls: type[Event], schema: Schema, fields: Sequence[_Field]) -> Encoding:
        number = schema.number
        flat = [field for field in fields if is_flat([field.hint])]
        nested = [(operator.attrgetter(field.name), *field.admitted()) for field in fields[len(flat) :]]
        read = operator.attrgetter(*ENVELOPE, *(field.name for field in flat))
        whole = frozenset((int,))
        expected = [*(whole for _ in ENVELOPE), *(field.scalars for field in flat)]
        pack, mend, small = _packer(), self._mend, values.SMALL_ROW_BYTES
        is_as_declared = _type_check(expected)

        def encode(event: Event, offset: int) -> bytes:
            nonlocal pack
            row = read(event)
            try:
                # A row whose values are all of the declared scalar types can be read back; a row that cannot be read
                # back would make its whole frame unreadable.
                if is_as_declared(row):
                    row_fields = [number, offset, *row]
                    for read_nested, admitted, entries, elements in nested:
                        value = read_nested(event)
                        if type(value) not in admitted:
                            break
                        if value:
                            if type(value) is dict:
                                "".join(value)  # proves that all keys are texts
                                if entries is _EXACT:
                                    # Hashable values hold no list or map, and the packer refuses foreign types.
                                    hash((*value.values(),))
                                elif not entries.issuperset(map(type, value.values())):
                                    break
                            elif type(value) is list and not elements.issuperset(map(type, value)):
                                break
                        row_fields.append(value)
                    else:
                        data = pack(row_fields)
                        if len(data) <= small:
                            return data
            except Exception:  # noqa: S110  a key that is no text, a number out of range: perhaps it can be mended
                pass
            pack = _packer()  # the old one may have grown to what one huge event takes, and would never shrink
            return mend(schema, offset, (*row, *(entry[0](event) for entry in nested)), fields)

        if native is None:
            return encode
        envelope = ((name, _mask(whole), -1, -1) for name in ENVELOPE)
        own = ((field.name, _mask(field.scalars), _mask(field.entries), _mask(field.elements)) for field in fields)
        compiled: Encoding = native.row_encoding(cls, number, (*envelope, *own), small, encode)
        return compiled

    def _restore(self, event: UnknownEvent, offset: int) -> tuple[Schema, bytes]:
        """Write an event of unknown type as the type that it was read as."""
        key = (event.name, event.name_version, tuple(event.fields))
        schema = self._restored.get(key)
        if schema is None:
            check_schema(*key)
            if len(self._restored) >= _MAX_RESTORED:
                self._restored.clear()
            schema = self._restored[key] = Schema(self._next_number(), *key)
        row = (event.at_ns, event.span_id, event.step, *event.fields.values())
        return schema, self._mend(schema, offset, row, ())

    def _next_number(self) -> int:
        # Never used again, not even for the same type: a frame that is being filled may hold the older one.
        self._numbered += 1
        return self._numbered - 1

    def _mend(self, schema: Schema, offset: int, row: tuple[Any, ...], fields: Sequence[_Field]) -> bytes:
        """Encode *row* value by value; *fields* are those after the envelope, none if anything is admitted."""
        mended, cuts = values.mended_list(row)
        if not type(mended[0]) is type(mended[1]) is type(mended[2]) is int:
            raise TypeError("time, span and step must be whole numbers")
        own = mended[len(ENVELOPE) :]
        for place, (field, value) in enumerate(zip(fields, own, strict=bool(fields)), len(ENVELOPE)):
            mended[place] = field.checked(value, schema.wire_name)
        data: bytes = msgpack.packb([schema.number, offset, *mended])
        if len(data) > values.MAX_ROW_BYTES:
            raise ValueError(f"an event of {len(data)} bytes; at most {values.MAX_ROW_BYTES}")
        self.cuts += cuts
        return data


@attrs.frozen
class _Field:
    """A field of an event class and the values that its declared type admits."""

    name: str
    hint: Any
    scalars: frozenset[type]
    """The scalar types that are admitted; empty if none is known to be."""
    entries: frozenset[type] | None
    """The scalar types that the values of a map may be of; None if no map with text keys is admitted."""
    elements: frozenset[type] | None
    """The scalar types that the elements of a list may be of; None if no list is admitted."""

    @classmethod
    def of(cls, name: str, hint: Any) -> _Field:
        """Describe the field *name* of the declared type *hint*."""
        options = typing.get_args(hint) if is_union(hint) else (hint,)
        entries = [_scalars_of(kinds[1]) for option in options if (kinds := _arguments(option, dict, 2))]
        elements = [_scalars_of(kinds[0]) for option in options if (kinds := _arguments(option, list, 1))]
        return cls(name, hint, _scalars_of(hint), *(_first_of(found) for found in (entries, elements)))

    def admitted(self) -> tuple[frozenset[type], frozenset[type], frozenset[type]]:
        """Return the types that a value may be of, a map's values, and a list's elements."""
        containers = [kind for kind, inner in ((dict, self.entries), (list, self.elements)) if inner is not None]
        return self.scalars.union(containers), self.entries or _NOTHING, self.elements or _NOTHING

    def checked(self, value: Any, wire_name: str) -> Any:
        """
        Return *value*, which is plain, in the form from which a reader gets what the field is declared as.

        Raises:
            TypeError: if there is none.
        """
        if type(value) is int and self._is_real() and not -(1 << 63) <= value < 1 << 64:
            return float(value)
        if type(value) in self.scalars:
            return value
        try:
            structured(value, self.hint)
        except Exception as error:
            raise TypeError(f"the field {self.name!r} of {wire_name} does not admit it: {error}") from error
        return value

    def _is_real(self) -> bool:
        """Return whether a whole number is read as a float anyway, and so may be written as one."""
        return self.scalars <= _REAL and float in self.scalars


def _scalars_of(hint: Any) -> frozenset[type]:
    """Return the scalar types that a value of the type *hint* may have on the wire."""
    if hint is Any or hint is object:
        return _EXACT
    options = typing.get_args(hint) if is_union(hint) else (hint,)
    found: set[type] = {option for option in options if option in SCALARS}
    if float in found:  # which a whole number is read as
        found.add(int)
    return frozenset(found)


def _mask(kinds: Collection[type] | None) -> int:
    """Return the set of scalar types *kinds* as the compiled core knows it: a bit for each; -1 for no set."""
    return -1 if kinds is None else sum(1 << place for place, kind in enumerate(SCALARS) if kind in kinds)


def _arguments(hint: Any, container: type, count: int) -> tuple[Any, ...] | None:
    """Return the types of what a *container* of the type *hint* holds; None if *hint* is no such container."""
    if hint in (Any, object, container):
        return (str, Any)[-count:]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is not container or (container is dict and arguments[0] is not str):
        return None
    return arguments


def _first_of(found: Sequence[frozenset[type]]) -> frozenset[type] | None:
    """Return the types that the first of several containers admits: the others are checked value by value."""
    return found[0] if found else None


def _type_check(expected: Sequence[frozenset[type]]) -> Callable[[tuple[Any, ...]], bool]:
    """
    Return a function that says whether each value of a row is exactly of one of its *expected* types.

    The function is generated, as attrs generates initializers: of all that encoding does it would be the most
    expensive part otherwise.
    """
    columns = [f"v{place}" for place in range(len(expected))]
    tests = (
        " or ".join(f"type({column}) is {kind.__name__}" for kind in SCALARS if kind in kinds)
        for column, kinds in zip(columns, expected, strict=True)
    )
    condition = " and ".join(f"({test})" for test in tests)
    scope: dict[str, Any] = {"NoneType": type(None)}
    source = f"def check(row):\n    {', '.join(columns)} = row\n    return {condition}"
    # Compiled first: to run a text makes the interpreter forget that Ctrl-C ended the program, and its exit status.
    exec(compile(source, "<trackside>", "exec"), scope)  # noqa: S102  all of it ours
    check: Callable[[tuple[Any, ...]], bool] = scope["check"]
    return check


def _packer() -> Callable[[Any], bytes]:
    # Before 1.1 msgpack reserves a mebibyte for each packer; what is not written to is no memory of the process.
    buffer = {"buf_size": 4096} if msgpack.version >= (1, 1) else {}
    pack: Callable[[Any], bytes] = msgpack.Packer(strict_types=True, autoreset=True, **buffer).pack
    return pack


def encode_frame(
    source_id: str,
    first_seq: int,
    last_seq: int,
    *,
    dropped: Mapping[str, int],
    schemas: Iterable[bytes],
    rows: Sequence[bytes],
) -> bytes:
    """
    Join *rows* that are already encoded, and the *schemas* they use, to a frame.

    Raises:
        ValueError: if it would be larger than any reader accepts.
    """
    packer = msgpack.Packer()
    entries = list(schemas)
    frame = b"".join(
        (
            packer.pack_array_header(WIDTH),
            packer.pack(FRAME_VERSION),
            packer.pack(source_id),
            packer.pack(first_seq),
            packer.pack(last_seq),
            packer.pack(dict(dropped)),
            packer.pack_array_header(len(entries)),
            *entries,
            packer.pack_array_header(len(rows)),
            *rows,
        )
    )
    if len(frame) > MAX_FRAME_BYTES or len(rows) > MAX_FRAME_ROWS or max(len(entries), len(dropped)) > MAX_MAP_LENGTH:
        raise ValueError(
            f"a frame of {len(frame)} bytes, {len(rows)} rows, {len(entries)} types and "
            f"{len(dropped)} counts of dropped events is too large"
        )
    return frame
