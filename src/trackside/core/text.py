"""Numbers, durations, bytes, times and ranges as people read them, each with its unit."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Final

_NS_PER_S: Final = 10**9
_DATES_NS: Final = 10**17
"""From here on, a time in 1973, nanoseconds are taken for a time and not for a duration."""
_UNITS_NS: Final = (("h", 3.6e12), ("min", 6e10), ("s", 1e9), ("ms", 1e6), ("µs", 1e3))
_BYTES: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
BYTE_UNITS: Final = frozenset({"bytes", "byte", "B", "By"})
_DAY_S: Final = 86_400
_ROUND_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, _DAY_S)
"""Seconds from one tick of a clock to the next."""
NOTHING: Final = "–"
"""Stands for a value that is not known."""


def duration(length_ns: float | None) -> str:
    """Return a duration, given in ns, in the unit that suits it."""
    if length_ns is None:
        return NOTHING
    if not length_ns:
        return "0 s"
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
    return f"{text} {'' if unit == '1' else unit}".rstrip()


def amount_of(name: str, value: float) -> str:
    """Return *value* in the unit that the end of *name* gives: ``_ns`` or ``_bytes``, else none."""
    if not name.endswith("_ns"):
        return amount(value, "bytes" if name.endswith("_bytes") else "")
    return duration(value) if abs(value) < _DATES_NS else clock(int(value))


def clock(at_ns: int | None, *, has_ms: bool = False) -> str:
    """
    Return a time in the zone of this machine, as ``2026-01-31 13:00:00+01:00``, or with ``Z`` where that is UTC.

    Args:
        at_ns: In ns since the epoch.
        has_ms: Whether milliseconds follow the seconds.
    """
    if at_ns is None:
        return NOTHING
    whole_s, rest_ns = divmod(at_ns, _NS_PER_S)
    try:
        at = datetime.datetime.fromtimestamp(whole_s, tz=datetime.timezone.utc).astimezone()
    except (OverflowError, ValueError, OSError):
        return f"{at_ns} ns"
    zone = at.isoformat()[19:]
    return (
        f"{at:%Y-%m-%d %H:%M:%S}{f'.{rest_ns // 1_000_000:03d}' if has_ms else ''}{'Z' if zone == '+00:00' else zone}"
    )


def clock_ticks(start_ns: int, end_ns: int, most: int = 6) -> list[tuple[int, str]]:
    """Return at most *most* + 1 round times of the local day between two times in ns since the epoch, as written."""
    step_s = next((size for size in _ROUND_S if (end_ns - start_ns) <= size * most * _NS_PER_S), 0)
    if not step_s:
        step_s = -(-(end_ns - start_ns) // (most * _DAY_S * _NS_PER_S)) * _DAY_S
    try:
        offset = (
            datetime.datetime.fromtimestamp(start_ns // _NS_PER_S, tz=datetime.timezone.utc).astimezone().utcoffset()
        )
    except (OverflowError, ValueError, OSError):
        return []
    offset_s = round(offset.total_seconds()) if offset is not None else 0
    first = -((start_ns // -_NS_PER_S - offset_s) // step_s) * step_s - offset_s
    times = range(first, end_ns // _NS_PER_S + 1, step_s)
    cut = slice(11, 19) if step_s % 60 else slice(11, 16)
    if end_ns - start_ns > _DAY_S * _NS_PER_S:
        cut = slice(5, 16) if step_s % _DAY_S else slice(5, 10)
    return [(at_s * _NS_PER_S, clock(at_s * _NS_PER_S)[cut]) for at_s in times]


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


def step(number: int, word: str = "after") -> str:
    """Return ``after step 7``, with *word*; a number below zero stands for an unknown step."""
    return f"{word} step {number}" if number >= 0 else "before its first step"


def exit_words(status: int) -> str:
    """Return how a program ended: its exit *status*, or as a negative number the signal that ended it."""
    return f"signal {-status}" if status < 0 else f"status {status}"


def printable(text: str) -> str:
    """Return *text* with control characters escaped: what a log holds must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
