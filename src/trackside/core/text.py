"""Numbers, durations, bytes, times and ranges as people read them, each with its unit."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Final

_NS_PER_S: Final = 10**9
_UNITS_NS: Final = (("h", 3.6e12), ("min", 6e10), ("s", 1e9), ("ms", 1e6), ("µs", 1e3))
_BYTES: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
BYTE_UNITS: Final = frozenset({"bytes", "byte", "B", "By"})
NOTHING: Final = "–"
"""Stands for a value that is not known."""


def duration(length_ns: float | None) -> str:
    """Return a duration, given in ns, in the unit that suits it."""
    if length_ns is None:
        return NOTHING
    for unit, size in _UNITS_NS:
        if abs(length_ns) >= size:
            value = length_ns / size
            return f"{value:.3g} {unit}" if abs(value) < 999.5 else f"{value:,.0f} {unit}"  # noqa: PLR2004
    return f"{length_ns:.0f} ns"


def seconds(length_s: float | None) -> str:
    """Return a duration, given in seconds, in the unit that suits it."""
    return NOTHING if length_s is None else duration(length_s * _NS_PER_S)


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share, 0 to 1, as a percentage."""
    return NOTHING if share is None else f"{100 * share:.{digits}f} %"


def change(share: float | None) -> str:
    """Return a relative change with its sign, as a percentage."""
    return NOTHING if share is None else f"{100 * share:+.2f} %"


def amount(value: float | None, unit: str = "") -> str:
    """Return *value* in *unit*; bytes in the multiple that suits them."""
    if value is None:
        return NOTHING
    if unit in BYTE_UNITS:
        for name, size in _BYTES:
            if abs(value) >= size:
                return f"{value / size:.4g} {name}"
        return f"{value:.0f} B"
    is_whole = float(value).is_integer() or abs(value) >= 1000  # noqa: PLR2004
    text = f"{value:,.0f}" if is_whole and abs(value) < 1e15 else f"{value:.4g}"  # noqa: PLR2004
    return f"{text} {unit}".rstrip()


def clock(at_ns: int | None, *, has_ms: bool = False) -> str:
    """Return a time as ``2026-01-31 12:00:00Z`` or, with milliseconds, ``2026-01-31 12:00:00.123Z``."""
    if at_ns is None:
        return NOTHING
    whole_s, rest_ns = divmod(at_ns, _NS_PER_S)
    try:
        at = datetime.datetime.fromtimestamp(whole_s, tz=datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{at_ns} ns"
    return f"{at:%Y-%m-%d %H:%M:%S}{f'.{rest_ns // 1_000_000:03d}' if has_ms else ''}Z"


def ranges(numbers: Iterable[int], *, most: int | None = None) -> str:
    """
    Return *numbers* in order and each once, as ``0-3, 7``.

    Args:
        numbers: Ranks, windows, steps.
        most: The number of ranges to show; an ellipsis stands for the rest. All unless given.
    """
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = [f"{first}-{last}" if last > first else f"{first}" for first, last in found[:most]]
    return ", ".join(shown) + (" …" if most is not None and len(found) > most else "")


def plural(count: int, noun: str) -> str:
    """Return ``1 rank``, ``2 ranks``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def printable(text: str) -> str:
    """Return *text* with control characters escaped: what a log holds must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
