"""
Events to rows.

A row is ``[type, seq − first_seq, at_ns, span_id, step, …fields]``. Encoding takes a tuple from an
`operator.attrgetter` and packs it in C; generic code is walked only for a row that is large, nested or refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgpack

from trackside.events import _values as values
from trackside.events._event import Event
from trackside.events._fields import ENVELOPE, hints_of, is_flat, own_fields
from trackside.events._registry import is_declared
from trackside.events.vocabulary import UnknownEvent

_MAX_RESTORED: Final = 1024

Encoding: TypeAlias = Callable[[Event, int], bytes]


class Schema:
    """How events of one type are written: the type's number in frames, wire name, version and field names."""

    __slots__ = ("entry", "number", "wire_name")

    def __init__(self, number: int, wire_name: str, version: int, names: Sequence[str]) -> None:
        self.number = number
        self.wire_name = wire_name
        self.entry: bytes = msgpack.packb([number, wire_name, version, names])


class RowEncoder:
    """
    Encodes events to rows, numbering their types as they come. For one thread.

    Attributes:
        cuts: Strings cut to 64 KiB so far.
    """

    def __init__(self) -> None:
        self.cuts = 0
        self._ways: dict[type[Event], tuple[Schema, Encoding]] = {}
        self._encodings: dict[int, Encoding] = {}
        self._restored: dict[tuple[str, int, tuple[str, ...]], Schema] = {}
        self._numbered = 0

    def encode(self, event: Event, offset: int) -> tuple[Schema, bytes]:
        """
        Encode *event* as the row with number first_seq + *offset*.

        Raises:
            Exception: of whatever kind its values raise; the event cannot be recorded.
        """
        try:
            schema, encoding = self._ways[type(event)]
        except KeyError:
            if isinstance(event, UnknownEvent):
                return self._restore(event, offset)
            schema = self.schema_of(type(event))
            encoding = self._encodings[schema.number]
        return schema, encoding(event, offset)

    def encoding(self, schema: Schema) -> Encoding:
        """Return a function that does what `encode` does for events of one class, with fewer questions asked."""
        return self._encodings[schema.number]

    def schema_of(self, cls: type[Event]) -> Schema:
        """
        Return how events of *cls* are written.

        Raises:
            TypeError: if the class was not declared.
        """
        if cls not in self._ways:
            if not is_declared(cls):
                raise TypeError(f"{cls.__module__}.{cls.__qualname__} is not declared; use @trackside.event")
            flat, nested = _parted(cls)
            schema = Schema(self._next_number(), cls.wire_name, cls.version, (*flat, *nested))
            encoding = self._encodings[schema.number] = self._encoding(schema.number, flat, nested)
            self._ways[cls] = schema, encoding
        return self._ways[cls][0]

    def _encoding(self, number: int, flat: Sequence[str], nested: Sequence[str]) -> Encoding:
        read = operator.attrgetter(*ENVELOPE, *flat)
        reads_nested = [operator.attrgetter(name) for name in nested]
        pack, mend, small = _packer(), self._mend, values.SMALL_ROW_BYTES

        def encode(event: Event, offset: int) -> bytes:
            nonlocal pack
            row = read(event)
            try:
                # What can be hashed holds no list or map, and the packer refuses what is not exactly of a type it
                # knows: the cheapest proof that a row can be read back. One that cannot would make its whole frame
                # unreadable.
                hash(row)
                fields = [number, offset, *row]
                for read_nested in reads_nested:
                    value = read_nested(event)
                    if type(value) is dict:
                        if value:
                            "".join(value)  # as for hash: proves that all keys are text
                            hash((*value.values(),))
                    elif type(value) is list:
                        hash((*value,))
                    else:
                        hash(value)
                    fields.append(value)
                data = pack(fields)
                if len(data) <= small and type(row[0]) is type(row[1]) is type(row[2]) is int:
                    return data
            except Exception:  # noqa: S110  something nested, foreign or out of range: perhaps it can be mended
                pass
            pack = _packer()  # the old one may have grown to what one huge event takes, and would never shrink
            return mend(number, offset, (*row, *(read_nested(event) for read_nested in reads_nested)))

        return encode

    def _restore(self, event: UnknownEvent, offset: int) -> tuple[Schema, bytes]:
        """Write an event of unknown type as the type it was read as."""
        key = (event.name, event.name_version, tuple(event.fields))
        schema = self._restored.get(key)
        if schema is None:
            values.check_schema(*key)
            if len(self._restored) >= _MAX_RESTORED:
                self._restored.clear()
            schema = self._restored[key] = Schema(self._next_number(), *key)
        row = (event.at_ns, event.span_id, event.step, *event.fields.values())
        return schema, self._mend(schema.number, offset, row)

    def _next_number(self) -> int:
        # Never used again, not even for the same type: a frame that is being filled may hold the older one.
        self._numbered += 1
        return self._numbered - 1

    def _mend(self, number: int, offset: int, row: tuple[Any, ...]) -> bytes:
        mended, cuts = values.mended_list(row)
        if not type(mended[0]) is type(mended[1]) is type(mended[2]) is int:
            raise TypeError("time, span and step must be whole numbers")
        data: bytes = msgpack.packb([number, offset, *mended])
        if len(data) > values.MAX_ROW_BYTES:
            raise ValueError(f"an event of {len(data)} bytes; at most {values.MAX_ROW_BYTES}")
        self.cuts += cuts
        return data


def _parted(cls: type[Event]) -> tuple[list[str], list[str]]:
    """Return the fields of *cls* that hold scalars by their annotation, and the others."""
    names, hints = own_fields(cls), hints_of(cls)
    flat = [name for name in names if is_flat([hints[name]])]
    return flat, [name for name in names if name not in flat]


def _packer() -> Callable[[Any], bytes]:
    pack: Callable[[Any], bytes] = msgpack.Packer(strict_types=True, autoreset=True, buf_size=4096).pack
    return pack
