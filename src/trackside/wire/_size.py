"""
The memory that the values of an event take, estimated.

Only text, bytes and containers are looked at: numbers are small. Like the copies of values, the compiled core does the
plain case (`ts_is_small` in ``native/delivery.c``), and never takes a large event for a small one.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterable
from typing import Any, Final

import attrs

from trackside.core import is_from_signal_handler
from trackside.events._event import Event, is_declared
from trackside.events._fields import hints_of, is_union, own_fields
from trackside.events.vocabulary import IterationEnded, SpanEnded, UnknownEvent
from trackside.wire._values import MAX_DEPTH

_NUMBERS: Final = frozenset((bool, int, float, type(None)))
_NUMBER_BYTES: Final = 32
_TEXT_BYTES: Final = 64
"""The size of an empty text, or of no bytes. The interpreter's own figure grows when a text is encoded."""
_ELEMENT_BYTES: Final = 16
_ENTRY_BYTES: Final = 64
"""The size of a list for each element, and of a map for each entry, besides their values."""


def sized_fields(cls: type[Event]) -> tuple[str, ...]:
    """Return the fields of *cls* whose declared types admit more than numbers; none whose length is bounded anyway."""
    if cls is UnknownEvent:
        return ("fields",)
    if not is_declared(cls):
        return ()
    try:
        hints = hints_of(cls)
    except Exception:  # a type that cannot be found: such events are counted as invalid when they are encoded
        return ()
    # The length of an error is bounded where it is described, and the kind of an iteration is a word.
    bounded = "error" if issubclass(cls, SpanEnded) else "kind" if issubclass(cls, IterationEnded) else ""
    return tuple(name for name in own_fields(cls) if name != bounded and not _are_numbers([hints[name]]))


def _are_numbers(hints: Iterable[Any]) -> bool:
    return all(hint in _NUMBERS or (is_union(hint) and _are_numbers(typing.get_args(hint))) for hint in hints)


def size_of(event: Event, names: Iterable[str]) -> int:
    """Return about how many bytes of memory the values take that *event* has in its fields *names*."""
    size = 0
    for name in names:
        value: Any = getattr(event, name, None)
        kind = type(value)
        if kind is str:  # as in `_size_of_text`: a call would take as long again
            size += _TEXT_BYTES + (len(value) if value.isascii() else 4 * len(value))
        elif kind is dict:
            if value:
                are_numbers = _NUMBERS.issuperset(map(type, value.values()))
                size += _size_of_numbers(value) if are_numbers else _size(value, MAX_DEPTH)
        else:
            size += _size(value, MAX_DEPTH)
    return size


def _size_of_numbers(table: dict[Any, Any]) -> int:
    """Return what `_size` does, for a map of numbers, sooner."""
    try:
        keys = "".join(table)
    except TypeError:  # they are other values than texts
        keys = "\xff"
    each = _ENTRY_BYTES + _TEXT_BYTES + _NUMBER_BYTES
    return len(table) * each + len(keys) if keys.isascii() else _size(table, MAX_DEPTH)


def _size_of_text(text: str) -> int:
    return _TEXT_BYTES + len(text) * (1 if text.isascii() else 4)


def _size(value: Any, depth: int) -> int:
    kind = type(value)
    if kind in _NUMBERS or not depth:
        return _NUMBER_BYTES
    try:
        if kind is str:
            return _size_of_text(value)
        if kind is bytes:
            return _TEXT_BYTES + len(value)
        if isinstance(value, (list, tuple, set, frozenset)):
            elements = len(value) * _ELEMENT_BYTES
            if _NUMBERS.issuperset(map(type, value)):
                return elements + len(value) * _NUMBER_BYTES
            return elements + sum(_size(element, depth - 1) for element in value)
        if isinstance(value, dict):
            entries = len(value) * _ENTRY_BYTES
            return entries + sum(_size(key, depth - 1) + _size(entry, depth - 1) for key, entry in value.items())
        if attrs.has(kind):
            return sum(_size(getattr(value, field.name, None), depth - 1) for field in attrs.fields(kind))
        return sys.getsizeof(value)
    except Exception as error:  # it cannot be recorded either
        if is_from_signal_handler(error):
            raise
        return _NUMBER_BYTES
