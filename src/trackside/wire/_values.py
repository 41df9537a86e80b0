"""
Values on the wire: the types that can be written, the conversion of other types, and the limits of size.

The limits hold for writing and for reading, so that whatever was written can be read.
"""

from __future__ import annotations

import datetime
import enum
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs
import msgpack

from trackside.events._errors import DecodeError
from trackside.events._fields import MAX_MAP_LENGTH, SCALARS

MAX_FRAME_BYTES: Final = 640 << 10
"""At this size the worst input costs some 55 MiB and a fifth of a second to check."""
MAX_FRAME_ROWS: Final = 1 << 14
MAX_ROW_BYTES: Final = 1 << 18
"""The largest row, and so the largest value of bytes in it."""
MAX_STRING_BYTES: Final = 1 << 16
MAX_ARRAY_LENGTH: Final = 1 << 16
MAX_DEPTH: Final = 32
"""The depth to which the lists and maps of one field may be nested."""

SMALL_ROW_BYTES: Final = MAX_MAP_LENGTH
"""A row up to this size can exceed no limit but depth: each element takes at least a byte."""

_MIN_INT: Final = -(1 << 63)
_MAX_INT: Final = (1 << 64) - 1
_AS_SECONDS: Final = 1
"""msgpack's option to read a timestamp as a float."""
_EXACT: Final = frozenset(SCALARS)
_EXACT_TEXT: Final = frozenset((str,))


def check_plain(entries: Iterable[Any], depth: int = MAX_DEPTH) -> None:
    """
    Raise unless *entries* are what msgpack reads back just as they are: plain scalars, lists, maps with text keys.

    Raises:
        TypeError: if there is anything else in them.
        ValueError: if they are nested deeper than *depth*.
    """
    for entry in entries:
        kind = type(entry)
        if kind in _EXACT:
            continue
        if not depth:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        if kind is dict:
            if not _EXACT_TEXT.issuperset(map(type, entry)):
                raise TypeError("a key that is no text")
            entry = entry.values()  # noqa: PLW2901  a list and a map's values are walked alike
        elif kind is not list:
            raise TypeError(f"a {kind.__name__} is no plain value")
        if entry and not _EXACT.issuperset(map(type, entry)):  # in C, as most lists and maps hold scalars alone
            check_plain(entry, depth - 1)


def plain(value: Any) -> Any:
    """
    Convert a *value* of a type that msgpack does not know.

    Enum members become their values, attrs objects and sets their contents, scalars of NumPy and torch numbers,
    paths and times text, durations and msgpack's timestamps seconds.

    Raises:
        TypeError: if nothing sensible can be made of it.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if attrs.has(type(value)):
        return _unstructure()(value)
    if isinstance(value, (set, frozenset)):
        return _sorted(value)
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, msgpack.Timestamp):
        return value.to_unix()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", None) is not None:
        number = item()
        if isinstance(number, (bool, int, float, str)):
            return number
    raise TypeError(f"a {type(value).__name__} cannot be recorded; give numbers, text, bytes, lists or maps of them")


@functools.cache
def _unstructure() -> Callable[[Any], Any]:
    import cattrs  # noqa: PLC0415  an eighth of what importing us would cost, and few events need it

    return cattrs.Converter().unstructure


def _sorted(members: Iterable[Any]) -> list[Any]:
    try:
        return sorted(members)
    except TypeError:  # members of an enum, or of several types
        return sorted(members, key=repr)


def mended(value: Any, depth: int = 0) -> tuple[Any, int]:
    """
    Return *value* within all limits, and how many of its strings had to be cut.

    Methods of a class derived from a plain one are not called: they may return anything.

    Args:
        value: Anything.
        depth: How many lists and maps it lies in, the row not counted.

    Raises:
        ValueError: if it is too deep, too long, or a map has too many entries or two keys of the same text.
        TypeError: if it cannot be recorded at all.
    """
    if isinstance(value, str):
        return _cut(value)
    if value is None or isinstance(value, bool):
        return value, 0
    if isinstance(value, (int, float)):
        return (int.__int__(value) if isinstance(value, int) else float.__float__(value)), 0
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value), 0
    if isinstance(value, msgpack.ExtType):
        return mended(value.data, depth)
    if not isinstance(value, (dict, list, tuple)):
        return mended(plain(value), depth)
    if depth >= MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        return mended_map(value, depth + 1)
    return mended_list(value, depth + 1)


def mended_list(values: list[Any] | tuple[Any, ...], depth: int = 0) -> tuple[list[Any], int]:
    """Return *values*, which lie *depth* deep, as `mended` does each."""
    if len(values) > MAX_ARRAY_LENGTH:
        raise ValueError(f"a list of {len(values)} elements; at most {MAX_ARRAY_LENGTH}")
    pairs = [mended(entry, depth) for entry in itertools.islice(values, MAX_ARRAY_LENGTH + 1)]
    if len(pairs) > MAX_ARRAY_LENGTH:
        raise ValueError(f"a list of more elements than it says; at most {MAX_ARRAY_LENGTH}")
    return [entry for entry, _ in pairs], sum(cut for _, cut in pairs)


def mended_map(table: dict[Any, Any], depth: int = 0) -> tuple[dict[str, Any], int]:
    """Return *table*, whose entries lie *depth* deep, as `mended` does each."""
    if len(table) > MAX_MAP_LENGTH:
        raise ValueError(f"a map of {len(table)} entries; at most {MAX_MAP_LENGTH}")
    fresh: dict[str, Any] = {}
    cuts = 0
    for key, entry in table.items():
        name, cut_key = _cut(_key_text(key))
        if name in fresh:
            raise ValueError("two keys of a map have the same text")
        if len(fresh) >= MAX_MAP_LENGTH:
            raise ValueError(f"a map of more entries than it says; at most {MAX_MAP_LENGTH}")
        fresh[name], cut = mended(entry, depth)
        cuts += cut + cut_key
    return fresh, cuts


def _key_text(key: Any) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    return key if isinstance(key, str) else str(key)


def _cut(text: str) -> tuple[str, int]:
    text = str.__str__(text)  # of a derived class only the text itself
    if len(text) <= MAX_STRING_BYTES and text.isascii():
        return text, 0
    # A lone surrogate has no UTF-8; as an escape at least it can be identified.
    raw = text[: MAX_STRING_BYTES + 1].encode("utf-8", "backslashreplace")
    if len(raw) <= MAX_STRING_BYTES:
        return raw.decode("utf-8"), 0
    return raw[:MAX_STRING_BYTES].decode("utf-8", "ignore"), 1


def pack(value: Any) -> bytes:
    """Return plain data as bytes; a lone surrogate in a text, which has no UTF-8, becomes an escape as in events."""
    data: bytes = msgpack.packb(value, unicode_errors="backslashreplace")
    return data


def saturated(value: Any) -> Any:
    """
    Return plain data with each integer that 64 bits do not hold replaced by the nearest that they do.

    For sums of values that other processes sent; the caller reports the replacement. A value that was logged is never
    changed.
    """
    if type(value) is int:
        return max(_MIN_INT, min(value, _MAX_INT))
    if isinstance(value, Mapping):
        return {saturated(key): saturated(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [saturated(entry) for entry in value]
    return value


def is_sound(value: Any) -> bool:
    """Return whether the maps in a *value* as decoded have text keys, and nothing in it is nested too deep."""
    containers = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in containers:
            entries = container
            if type(container) is dict:
                if not _EXACT_TEXT.issuperset(map(type, container)):
                    return False
                entries = container.values()
            if not _EXACT.issuperset(map(type, entries)):  # in C, as most lists and maps hold scalars alone
                below += [entry for entry in entries if type(entry) is dict or type(entry) is list]
        if not below:
            return True
        containers = below
    return False


def weigh(value: Any) -> int:
    """Return about how many bytes of memory plain data takes."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(weigh(key) + weigh(entry) for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return size + sum(weigh(entry) for entry in value)
    return size


def unpack(data: bytes, max_bytes: int = MAX_FRAME_BYTES) -> Any:
    """
    Decode untrusted msgpack within all limits but those of `is_sound`.

    The size is checked first, since a small input can cost a hundred times its size for a moment.

    Raises:
        DecodeError: for anything but one well-formed value of allowed size and types.
    """
    if len(data) > max_bytes:
        raise DecodeError(f"{len(data)} bytes; at most {max_bytes}")
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_str_len=MAX_STRING_BYTES,
            max_bin_len=MAX_ROW_BYTES,
            max_array_len=MAX_ARRAY_LENGTH,
            max_map_len=MAX_MAP_LENGTH,
            max_ext_len=MAX_ROW_BYTES,
            ext_hook=_bytes_of_extension,
            timestamp=_AS_SECONDS,
        )
    except Exception as error:
        raise DecodeError(f"not readable as msgpack within limits: {error}") from error


def _bytes_of_extension(_code: int, data: bytes) -> bytes:
    """Read an ``ExtType``, which msgpack's packer accepts: refusing it here would lose the whole frame."""
    return data
