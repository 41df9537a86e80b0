"""Overlaying one stretch of time on others: each instant keeps what has the higher priority."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Final, TypeAlias

import attrs

from trackside.handlers.models.goodput._block import WHOLE_STEP, Slice
from trackside.handlers.models.goodput._buckets import (
    FIRST,
    FLAGS,
    INSIDE,
    KIND_SHIFT,
    LOADING,
    STEP_CODE,
    WASTED,
    priority,
)

Columns: TypeAlias = "tuple[array[int], array[int], array[int], array[int]]"
"""Starts, ends, codes and numbers of slices."""

_LOADED: Final = LOADING << KIND_SHIFT
_REST_CODES: Final = array("I", (_LOADED | INSIDE, STEP_CODE))
_REST_NUMBERS: Final = array("q", (0, 0))
"""Of a step's slices after the first, if data was loaded once within it."""
_start, _end = itemgetter(0), itemgetter(1)

_FEW: Final = 8
_NOTHING: Final = -1
"""The code of time of which nothing is known."""


def overlay(slices: list[Slice], start: int, end: int, code: int) -> None:
    """
    Give *start* to *end* to *code*, except where something of the same or a higher priority is.

    Of equals the one that was there first stays: of nested spans the inner one, which ended before the outer.
    """
    low, high = _touched(slices, start, end)
    laid, within, after = _cut(slices[low:high], start, end)
    rank = priority(code)
    for first, last, under, number in within:
        if under == _NOTHING:
            laid.append((first, last, code, 0))
        elif priority(under) <= rank:
            laid.append((first, last, under, number))
        else:
            laid.append((first, last, code | under & FLAGS, number))
    slices[low:high] = laid + after


def overlay_step(slices: list[Slice], start: int, end: int, number: int | None, flags: int) -> bool:
    """
    Let *start* to *end* be a step's, except where another step is.

    Args:
        slices: What is known of that time; changed.
        start: In ns.
        end: In ns.
        number: The step's; None if the time belongs to the step before.
        flags: `FAILED`, `UNSAMPLED`.

    Returns:
        Whether any time was left for it.
    """
    low, high = _touched(slices, start, end)
    laid, within, after = _cut(slices[low:high], start, end)
    begins = 0 if number is None else FIRST
    found = False
    for first, last, under, there in within:
        if under != _NOTHING and under & INSIDE:
            laid.append((first, last, under, there))
            continue
        code = STEP_CODE if under == _NOTHING else under | INSIDE
        laid.append((first, last, code | flags | begins, number if begins and number is not None else 0))
        begins, found = 0, True
    slices[low:high] = laid + after
    return found


def overlay_load(columns: Columns, number: int, start: int, end: int) -> bool:
    """
    Do what `overlay_step` does with the slices that *columns* end with, in the usual case.

    Usual is that data was loaded once within the step, and all else ended by its start.

    Args:
        columns: Changed.
        number: The step's.
        start: In ns.
        end: In ns.

    Returns:
        Whether it is the usual case; if not, nothing has changed.
    """
    starts, ends, codes, numbers = columns
    if len(starts) <= 1 or codes[-1] != _LOADED:
        return False
    begun, loaded = starts[-1], ends[-1]
    if not ends[-2] <= start < begun or loaded >= end:
        return False
    starts[-1], ends[-1], codes[-1], numbers[-1] = start, begun, WHOLE_STEP, number
    starts.extend((begun, loaded))
    ends.extend((loaded, end))
    codes.extend(_REST_CODES)
    numbers.extend(_REST_NUMBERS)
    return True


def mark_redone(slices: Iterable[Slice], since: int) -> list[Slice]:
    """Return *slices* with all steps that began at *since* or later marked as done again."""
    return [
        (start, end, code | WASTED if code & INSIDE and start >= since else code, number)
        for start, end, code, number in slices
    ]


def joined(slices: Iterable[Slice]) -> list[Slice]:
    """Return *slices* with neighbours that say the same made one, so that equal pasts look equal."""
    found: list[Slice] = []
    for item in slices:
        if found and not item[2] & FIRST:
            start, end, code, number = found[-1]
            if end == item[0] and code & ~FIRST == item[2]:
                found[-1] = (start, item[1], code, number)
                continue
        found.append(item)
    return found


def _touched(slices: list[Slice], start: int, end: int) -> tuple[int, int]:
    """Return the bounds of those of *slices* that have an instant from *start* to *end*, or of a few more."""
    if len(slices) <= _FEW:
        return 0, len(slices)
    low = bisect_right(slices, start, key=_end)
    return low, max(low, bisect_left(slices, end, key=_start))


def _cut(slices: Iterable[Slice], start: int, end: int) -> tuple[list[Slice], list[Slice], list[Slice]]:
    """Return what of *slices* lies before *start*, what between, its gaps filled with `_NOTHING`, and what after."""
    before: list[Slice] = []
    within: list[Slice] = []
    after: list[Slice] = []
    at = start
    for item in slices:
        first, last, code, number = item
        if last <= start:
            before.append(item)
            continue
        if first >= end:
            after.append(item)
            continue
        if first < start:
            before.append((first, start, code, number))
            first, code, number = start, code & ~FIRST, 0
        elif at < first:
            within.append((at, first, _NOTHING, 0))
        if last > end:
            after.append((end, last, code & ~FIRST, 0))
            last = end
        within.append((first, last, code, number))
        at = last
    if at < end:
        within.append((at, end, _NOTHING, 0))
    return before, within, after


@attrs.frozen
class Late:
    """A stretch of time that lies among packed slices, kept until it is asked for."""

    start: int
    end: int
    code: int
    """Of a step, its flags."""
    number: int | None = None
    """Of a step."""
    is_step: bool = False
    steps_until: int = 0
    """Where the last step ended when it came, if that was later."""

    @property
    def is_doubtful(self) -> bool:
        """Whether its number may not fit between those of its neighbours."""
        return self.number is not None and self.steps_until > 0

    def overlay(self, slices: list[Slice], before: Callable[[list[Slice], int], int]) -> None:
        """
        Lay it over *slices*.

        Args:
            slices: From where it begins on, to the end; changed.
            before: Returns the number of the step before a moment, of these slices and those before them.
        """
        if not self.is_step:
            overlay(slices, self.start, self.end, self.code)
        elif self.is_doubtful and not self.fits(slices, before(slices, self.start)):
            overlay_step(slices, self.start, self.end, None, self.code)
        else:
            overlay_step(slices, self.start, self.end, self.number, self.code)

    def fits(self, slices: Iterable[Slice], before: int) -> bool:
        """
        Return whether its number leaves the steps in order that were there when it came.

        Args:
            slices: What it will be laid over, and all that follows.
            before: The number of the step before it.
        """
        number = self.number or 0
        for first, _, code, following in slices:
            if self.start <= first < self.steps_until and code & (FIRST | WASTED) == FIRST:
                return before <= number <= following
        return before <= number
