"""The peer's module for excluded intervals."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Sequence
from typing import TypeAlias

logger: logging.Logger = logging.getLogger(__name__)

Interval: TypeAlias = "tuple[datetime.datetime, datetime.datetime]"


def normalize_intervals(intervals: Iterable[Interval]) -> list[tuple[float, float]]:
    """
    Return *intervals* in seconds since the epoch, in order; those that touch or overlap are joined.

    Intervals that are not in UTC or do not end after they begin are left out, with a warning.
    """
    merged: list[tuple[float, float]] = []
    for start, end in sorted((one.timestamp(), other.timestamp()) for one, other in intervals if _is_sound(one, other)):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def get_exclusion_overlap(start: float, end: float, exclusions: Sequence[tuple[float, float]]) -> float:
    """Return how many seconds between *start* and *end* lie in *exclusions*, which do not overlap."""
    return sum(max(0.0, min(end, last) - max(start, first)) for first, last in exclusions)


def _is_sound(start: datetime.datetime, end: datetime.datetime) -> bool:
    if start.tzinfo != datetime.timezone.utc or end.tzinfo != datetime.timezone.utc:
        logger.warning("an interval to exclude is left out: %s to %s is not in UTC", start, end)
        return False
    if start >= end:
        logger.warning("an interval to exclude is left out: %s to %s is empty", start, end)
        return False
    return True
