"""What may be said about counters and collectors."""

from __future__ import annotations

import operator
from typing import Any, Final

from trackside.bus.counters._aggregation import Aggregation
from trackside.bus.counters._counter import Counter
from trackside.events import ConfigError

MAX_NAME_LENGTH: Final = 256
SHORTEST_INTERVAL_S: Final = 0.001
LONGEST_INTERVAL_S: Final = 1e9


def checked_name(name: Any) -> str:
    """Return *name* if it is one for a counter."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise ConfigError("name", name, f"give 1 to {MAX_NAME_LENGTH} printable characters")
    return name


def checked_text(field: str, text: Any) -> str:
    """Return *text* if it is one."""
    if not isinstance(text, str):
        raise ConfigError(field, text, "give a text")
    return text


def checked_interval(interval_s: Any) -> float | None:
    """Return *interval_s* if it is the length of a window in seconds, or None."""
    if interval_s is None:
        return None
    is_number = isinstance(interval_s, (int, float)) and not isinstance(interval_s, bool)
    if not is_number or not SHORTEST_INTERVAL_S <= interval_s <= LONGEST_INTERVAL_S:
        raise ConfigError(
            "interval_s", interval_s, f"give seconds from {SHORTEST_INTERVAL_S:g} to {LONGEST_INTERVAL_S:g}"
        )
    return float(interval_s)


def checked_count(count: Any) -> int | None:
    """Return *count* if it is the length of a window in samples, or None."""
    if count is None:
        return None
    try:
        number = operator.index(count)
    except TypeError:
        number = 0
    if isinstance(count, bool) or number < 1:
        raise ConfigError("count", count, "give a whole number from 1")
    return number


def forbid_change(
    known: Counter,
    unit: str,
    help: str,  # noqa: A002
    told: tuple[Aggregation, ...] | None,
) -> None:
    """Raise if what is now said about *known* is not what was said before."""
    for field, before, now in (
        ("unit", known.unit, unit),
        ("help", known.help, help),
        ("aggregations", known.aggregations, told),
    ):
        if now and before and now != before:
            raise ConfigError(field, now, f"counter {known.name!r} has {before!r}; say the same, or nothing")
