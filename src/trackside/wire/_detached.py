"""
Copies of values that their owner could change while the event waits to be encoded.

Only fields whose declared type admits more than scalars are copied, so events of scalars cost nothing.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple

import attrs

from trackside._implementation import native
from trackside.core import is_from_signal_handler
from trackside.events._event import Event, is_declared
from trackside.events._fields import MAX_MAP_LENGTH, SCALARS, hints_of, is_flat, own_fields
from trackside.events.vocabulary import SpanEnded, UnknownEvent
from trackside.wire._size import sized_fields
from trackside.wire._values import MAX_ARRAY_LENGTH, MAX_DEPTH, MAX_ROW_BYTES

_EXACT: Final = frozenset(SCALARS)
_SMALL_BYTES: Final = 64
"""The largest array or tensor that may be recorded: one element."""


def changeable_fields(cls: type[Event]) -> tuple[str, ...]:
    """
    Return the fields of *cls* whose declared types admit values that can be changed.

    None of a span's end: spans detach the attributes themselves, nearly always none. But an end of a class that
    declares more than numbers is logged by the program, which may change all of it.
    """
    if cls is UnknownEvent:
        return ("fields",)
    if not is_declared(cls) or (issubclass(cls, SpanEnded) and sized_fields(cls) == sized_fields(SpanEnded)):
        return ()
    try:
        hints = hints_of(cls)
    except Exception:  # a type that cannot be found: such events are counted as invalid when they are encoded
        return ()
    return tuple(name for name in own_fields(cls) if not is_flat([hints[name]]))


class _Slots(NamedTuple):
    """The way to copy the fields of a class whose instances have nothing but slots."""

    names: tuple[str, ...]
    read: Callable[[Any], tuple[Any, ...]]
    store: Callable[[Any, str, Any], None]
    """Sets a field without attrs's hooks."""


@functools.cache
def _slots_of(cls: type[Event]) -> _Slots | None:
    """Return how the fields of *cls* are copied; None if its instances have more than slots."""
    if cls.__dictoffset__:
        return None
    names = tuple(field.name for field in attrs.fields(cls))
    # The builtin, which takes a third of the time, calls hooks if there are any.
    is_plain = cls.__setattr__ is object.__setattr__
    return _Slots(names, attrgetter(*names), setattr if is_plain else object.__setattr__)


def _copy(event: Any) -> Any:
    """Return a copy of *event*, which may have a number or not."""
    slots = _slots_of(type(event))  # type: ignore[arg-type]  # classes are hashable
    if slots is None:
        return copy.copy(event)
    names, read, store = slots
    twin = object.__new__(type(event))
    for name, value in zip(names, read(event), strict=True):
        store(twin, name, value)
    return twin


if native is not None:
    _copy = native.compile_copy(_copy, Event)


def detached_event(event: Any, names: tuple[str, ...]) -> Any:
    """Return a copy of *event*, and in its fields *names* of all that their owner could change."""
    twin = _copy(event)
    for name in names:
        object.__setattr__(twin, name, detached(getattr(twin, name)))  # without attrs's hooks
    return twin


def detached(value: Any, depth: int = MAX_DEPTH) -> Any:
    """
    Return *value* with everything in it copied that its owner could change.

    A value that no event can record, such as an array of several elements or one nested too deep, is returned as it is:
    it is refused when it is encoded.
    """
    kind = type(value)
    if kind in _EXACT or not depth:
        return value
    if kind is dict:
        if len(value) > MAX_MAP_LENGTH:
            return value
        fresh = value.copy()  # in one step, so that no other thread can change it meanwhile
        if not _EXACT.issuperset(map(type, fresh.values())):
            for key, entry in fresh.items():
                fresh[key] = detached(entry, depth - 1)
        return fresh
    if kind is list or kind is tuple:
        if len(value) > MAX_ARRAY_LENGTH:
            return value
        fresh = value[:]  # in one step too; of a tuple the tuple itself
        if not _EXACT.issuperset(map(type, fresh)):
            fresh = kind([detached(entry, depth - 1) for entry in fresh])
        return fresh
    try:
        return _copied(value)
    except Exception as error:
        if is_from_signal_handler(error):
            raise
        return value  # it is refused when it is encoded, or it cannot be copied


def _copied(value: Any) -> Any:
    """Return a copy of *value*, which is of none of the usual types, if an event may record it."""
    if isinstance(value, (dict, list, set)):
        return copy.deepcopy(value) if len(value) <= MAX_ARRAY_LENGTH else value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value) if memoryview(value).nbytes <= MAX_ROW_BYTES else value
    if attrs.has(type(value)):
        return copy.deepcopy(value)
    if callable(getattr(value, "item", None)) and getattr(value, "nbytes", _SMALL_BYTES) < _SMALL_BYTES:
        detach = getattr(value, "detach", None)  # a tensor's: only what has no history can be copied
        return copy.deepcopy(value if detach is None else detach())
    return value
