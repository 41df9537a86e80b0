"""
The time of one process as disjoint slices: each instant has the code of the highest priority.

The recent slices are in arrays, the older ones packed.
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, TypeAlias

import attrs

from trackside.handlers.models.goodput._buckets import (
    FAILED,
    FIRST,
    FLAGS,
    INSIDE,
    KIND_SHIFT,
    LOADING,
    NO_STEP,
    STEP_CODE,
    WASTED,
    WHOLE_STEP,
    add,
    priority,
)
from trackside.handlers.models.goodput._packed import Archive, Lengths, Slice, SliceSums, steps_of, whole_number

Columns: TypeAlias = "tuple[array[int], array[int], array[int], array[int]]"
"""Starts, ends, codes and numbers of slices."""

_LOADED: Final = LOADING << KIND_SHIFT
_REST_CODES: Final = array("I", (_LOADED | INSIDE, STEP_CODE))
_REST_NUMBERS: Final = array("q", (0, 0))
"""The codes and numbers of a step's slices after the first, if data was loaded once within it."""
_start, _end = itemgetter(0), itemgetter(1)

_FEW: Final = 8
_NOTHING: Final = -1
"""The code of time of which nothing is known."""


def overlay(slices: list[Slice], start: int, end: int, code: int) -> None:
    """
    Lay *code* over the time from *start* to *end*, except where a code of the same or a higher priority is.

    Among equals the first one stays: among nested spans the inner one, which ended before the outer.
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
    Lay a step over the time from *start* to *end*, except where another step is.

    Args:
        slices: The slices of that time; changed.
        start: In ns.
        end: In ns.
        number: The step's; None if the time belongs to the previous step.
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
    Lay a step over the last slices of *columns* like `overlay_step`, in the usual case.

    In the usual case data was loaded once within the step, and everything else ended by its start.

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
    """Return *slices* with equal neighbours joined, so that equal pasts have equal slices."""
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
    """Return the index bounds of the *slices* that overlap *start* to *end*; a few more may be included."""
    if len(slices) <= _FEW:
        return 0, len(slices)
    low = bisect_right(slices, start, key=_end)
    return low, max(low, bisect_left(slices, end, key=_start))


def _cut(slices: Iterable[Slice], start: int, end: int) -> tuple[list[Slice], list[Slice], list[Slice]]:
    """Return the parts of *slices* before *start*, from *start* to *end* with `_NOTHING` in gaps, and after *end*."""
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
class LateSlice:
    """A stretch of time among packed slices, kept until these are needed."""

    start: int
    end: int
    code: int
    """For a step, its flags."""
    number: int | None = None
    """For a step, its number."""
    is_step: bool = False
    steps_until: int = 0
    """The end of the last step when this one was added, if that was later."""

    @property
    def is_doubtful(self) -> bool:
        """Whether its number may not fit between those of its neighbours."""
        return self.number is not None and self.steps_until > 0

    def overlay(self, slices: list[Slice], before: Callable[[list[Slice], int], int]) -> None:
        """
        Lay it over *slices*.

        Args:
            slices: All slices from its start on; changed.
            before: Returns the number of the last step before a moment, in these slices and those before them.
        """
        if not self.is_step:
            overlay(slices, self.start, self.end, self.code)
        elif self.is_doubtful and not self.fits(slices, before(slices, self.start)):
            overlay_step(slices, self.start, self.end, None, self.code)
        else:
            overlay_step(slices, self.start, self.end, self.number, self.code)

    def fits(self, slices: Iterable[Slice], before: int) -> bool:
        """
        Return whether its number keeps those steps in order that were there when it was added.

        Args:
            slices: The slices that it will be laid over, and all later ones.
            before: The number of the step before it.
        """
        number = self.number or 0
        for first, _, code, following in slices:
            if self.start <= first < self.steps_until and code & (FIRST | WASTED) == FIRST:
                return before <= number <= following
        return before <= number


BLOCK: Final = 512
"""The slices in a block, which has a few more where a step would be cut."""


class Track:
    """
    A process's time as disjoint slices, each with a code.

    Adding a slice at the end costs the same for a track of any length. A slice that reaches back changes the slices
    that it overlaps; if these are packed, it waits until the track is read or until enough such slices have gathered.

    Attributes:
        top: The end of the last slice.
        step_end: The end of the last step.
        last_step: The number of the last step that counts; -1 for none.
        lap_start: The start of the steps that are numbered in order up to now.
    """

    __slots__ = (
        "_codes",
        "_ends",
        "_first_step",
        "_late",
        "_late_end",
        "_limit",
        "_numbers",
        "_packed",
        "_starts",
        "_tallied",
        "_tally",
        "lap_start",
        "last_step",
        "step_end",
        "top",
    )

    def __init__(self) -> None:
        self._starts, self._ends = array("q"), array("q")
        self._codes, self._numbers = array("I"), array("q")
        self._packed = Archive()
        self._limit = 2 * BLOCK
        self._late: list[LateSlice] = []
        self._late_end = 0
        self._first_step: list[Slice] | None = None
        self._tally, self._tallied = SliceSums(), 0
        self.top = self.step_end = self.lap_start = 0
        self.last_step = NO_STEP

    def append_step(self, number: int, start: int, end: int, flags: int = 0) -> None:
        """Add a step that begins where the track ends, or later."""
        self._numbers.append(number)
        self._starts.append(start)
        self._ends.append(end)
        self._codes.append(STEP_CODE | FIRST | flags)
        self.top = self.step_end = end
        self.last_step = number
        if len(self._starts) >= self._limit:
            self._seal()

    def append_over(self, number: int, start: int, end: int) -> bool:
        """Add a step like `add_step` if `overlay_load` can; else change nothing and return False."""
        count = len(self._starts)
        if start < self._late_end or not overlay_load(self._columns(), number, start, end):
            return False
        if self._tallied == count:
            self._tallied = 0
        self.top = self.step_end = end
        self.last_step = number
        if len(self._starts) >= self._limit:
            self._seal()
        return True

    def add(self, start: int, end: int, code: int) -> None:
        """Add a stretch of time that is not a step; where the same or a higher priority is, that stays."""
        if start > self.top or (start == self.top and self._codes and self._codes[-1] != code):
            self._numbers.append(0)
            self._starts.append(start)
            self._ends.append(end)
            self._codes.append(code)
            self.top = end
            if len(self._starts) >= self._limit:
                self._seal()
        else:
            start, end = operator.index(start), operator.index(end)
            if self._is_late(start):
                self._put_off(LateSlice(start, end, code))
            else:
                slices = self._pop(start)
                overlay(slices, start, end, code)
                self._push(slices)

    def add_step(self, number: int | None, start: int, end: int, flags: int = 0) -> None:
        """
        Add a step that begins after the last step ended, perhaps before other stretches ended.

        Args:
            number: The step's; None if the time belongs to the last step.
            start: In ns.
            end: In ns.
            flags: `FAILED`, `UNSAMPLED`.
        """
        start, end = operator.index(start), operator.index(end)
        if number is not None:
            number = operator.index(number)
            if start >= self.top:
                self.append_step(number, start, end, flags)
                return
            self.last_step = number
        self.step_end = end
        if self._is_late(start):
            self._put_off(LateSlice(start, end, flags, number, is_step=True))
        else:
            slices = self._pop(start)
            overlay_step(slices, start, end, number, flags)
            self._push(slices)

    def add_late_step(self, number: int, start: int, end: int, flags: int) -> None:
        """Add a step that begins before the end of the last one, where no other step is."""
        start, end, number = operator.index(start), operator.index(end), operator.index(number)
        given = number if number <= self.last_step else None
        late = LateSlice(start, end, flags, given, is_step=True, steps_until=self.step_end)
        if self._is_late(start):
            self._put_off(late)
        else:
            self._settle()
            slices = self._pop(start)
            late.overlay(slices, self._before_step)
            self._push(slices)

    def _is_late(self, start: int) -> bool:
        """Return whether the slices at *start* are packed; if not, first lay the late slices that reach there."""
        if start <= self._packed.end:
            return True
        if start < self._late_end:
            self._settle()
        return False

    def _put_off(self, item: LateSlice) -> None:
        """Keep *item* for later: unpacking for each late slice alone would cost the whole past each time."""
        self._late.append(item)
        self._late_end = max(self._late_end, item.end)
        self.top = max(self.top, item.end)
        if len(self._late) >= max(BLOCK, len(self._packed)):
            self._settle()

    def mark_redone_from(self, number: int) -> None:
        """Mark the steps from *number* on as done again."""
        self._settle()
        start = self.time_of(number)
        if start is not None:
            self._push(mark_redone(self._pop(start), start))
        self.last_step = number - 1

    def mend(self) -> None:
        """Remove a slice that was stored in part, because a value was not a whole number."""
        for column in self._columns():
            del column[min(map(len, self._columns())) :]

    def _columns(self) -> tuple[array[int], array[int], array[int], array[int]]:
        return self._starts, self._ends, self._codes, self._numbers

    def _settle(self) -> None:
        """Lay the late slices over those that they overlap."""
        if self._late:
            late, self._late, self._late_end = self._late, [], 0
            slices = self._pop(min(item.start for item in late))
            for item in late:
                item.overlay(slices, self._before_step)
            self._push(slices)

    def _before_step(self, slices: list[Slice], start: int) -> int:
        """Return the number of the last step that counts and began before *start*; -1 for none."""
        for first, _, code, number in reversed(slices):
            if first < start and code & (FIRST | WASTED) == FIRST:
                return number
        for place in range(len(self._codes) - 1, -1, -1):
            if self._codes[place] & (FIRST | WASTED) == FIRST:
                return self._numbers[place]
        return self._packed.last_step

    def _pop(self, start: int) -> list[Slice]:
        """Remove and return the slices that end at *start* or later."""
        while self._packed and self._packed.end >= start:
            self._unseal()
        ends = self._ends
        first = len(ends)
        while first and ends[first - 1] >= start:
            first -= 1
        if first < self._tallied:
            self._tallied = 0
        taken = list(self._slices(first))
        for column in self._columns():
            del column[first:]
        if self._first_step is not None and self._first_step[-1][1] >= start:
            self._first_step = None
        return taken

    def _push(self, slices: Iterable[Slice]) -> None:
        for start, end, code, number in joined(slices):
            self._starts.append(start)
            self._ends.append(end)
            self._codes.append(code)
            self._numbers.append(number)
        while len(self._starts) >= self._limit:
            self._seal()
        self.top = max(self._late_end, self._ends[-1] if self._ends else self._packed.end)

    def _slices(self, first: int = 0, last: int | None = None) -> Iterator[Slice]:
        return zip(*(column[first:last] for column in self._columns()), strict=True)

    def _seal(self) -> None:
        """Pack the older half, and the rest of a step that would be cut."""
        cut = BLOCK
        while cut < len(self._codes) and self._goes_on(cut):
            cut += 1
        if cut == len(self._codes):
            self._limit = cut + BLOCK
            return
        self._packed.pack([column[:cut] for column in self._columns()])
        for column in self._columns():
            del column[:cut]
        self._limit = 2 * BLOCK
        self._tallied = 0

    def _goes_on(self, place: int) -> bool:
        """Return whether the slice at *place* may continue the step of the slice before it."""
        return self._codes[place] & (FIRST | INSIDE) == INSIDE and self._starts[place] == self._ends[place - 1]

    def _unseal(self) -> None:
        """Unpack the last block."""
        slices = self._packed.unpack()
        for column, values in zip(self._columns(), zip(*slices, strict=True), strict=True):
            column[:0] = array(column.typecode, values)
        self._limit = len(self._starts) + BLOCK
        self._tallied = 0

    @property
    def begin(self) -> int:
        """The beginning of the first slice; `top` if there is none."""
        return self._packed.start if self._packed else self._starts[0] if self._starts else self.top

    def until(self, end: int) -> tuple[dict[int, int], int]:
        """Return, for the time before *end*, the nanoseconds by code and the number of steps with own time."""
        self._settle()
        if end >= self.top:
            return self._whole()
        if end <= self.begin:
            return {}, 0
        place = self._packed.place_of(end)
        sums, samples = self._packed.before(place)
        if place < len(self._packed):
            slices = self._packed.slices(place)
            del slices[bisect_left(slices, end, key=itemgetter(0)) :]
        else:
            slices = [*self._slices(0, bisect_left(self._starts, end))]
        if slices and slices[-1][1] > end:
            start, _, code, number = slices[-1]
            slices[-1] = (start, end, code, number)
        summed = SliceSums(slices)
        add(sums, summed.sums)
        return sums, samples + len(summed.nets)

    def _whole(self) -> tuple[dict[int, int], int]:
        summed = self._open_sums()
        sums = dict(self._packed.sums)
        add(sums, summed.sums)
        return sums, self._packed.samples + len(summed.nets)

    def _open_sums(self) -> SliceSums:
        """Return the sums of the slices that are not packed."""
        # Slices added since the last call follow those added up then, unless these were changed.
        if not self._tallied:
            self._tally = SliceSums()
        if self._codes.count(WHOLE_STEP) == len(self._codes):
            self._tally.add_whole_steps(self._starts[self._tallied :], self._ends[self._tallied :])
        else:
            self._tally.add(self._slices(self._tallied))
        self._tallied = len(self._starts)
        return self._tally

    def all_lengths(self) -> tuple[Lengths, Lengths]:
        """Return the lengths of all steps, and of those that the process did again."""
        self._settle()
        summed = self._open_sums()
        lengths, wasted = self._packed.lengths.copy(), self._packed.wasted.copy()
        summed.count_into(lengths, wasted)
        return lengths, wasted

    def first_nets(self) -> list[int]:
        """Return the own time of each step, in ns; complete if there are at most `MOST_EXACT` steps."""
        self._settle()
        return [*self._packed.first_nets, *self._open_sums().nets]

    def time_of(self, number: int) -> int | None:
        """Return the start of the first step since `lap_start` that counts and is *number* or later, if any."""
        self._settle()
        for start, _, code, step in self._slices_from(self._packed.place_of_step(number, self.lap_start)):
            if code & (FIRST | WASTED) == FIRST and step >= number and start >= self.lap_start:
                return start
        return None

    def _slices_from(self, place: int = 0) -> Iterator[Slice]:
        """Yield the slices of the block at *place* and all later slices."""
        self._settle()
        yield from self._packed.slices_from(place)
        yield from self._slices()

    def steps_from(self, start: int) -> Iterator[list[Slice]]:
        """Yield the slices of each step that ended after *start*, and perhaps of a few earlier steps."""
        self._settle()
        return steps_of(self._slices_from(self._packed.place_of(start)))

    def steps_backwards(self, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield number, start, end and code of each step that began by *end*, and of a few later ones, backwards."""
        self._settle()
        ended = after = 0
        for start, last, code, number in self._backwards(self._packed.place_of(end)) if self.step_end else ():
            ended = ended if last == after and ended else last
            after = start if code & (FIRST | INSIDE) == INSIDE else 0
            if code & FIRST:
                yield number, start, ended, code

    def last_completed(self, end: int) -> int | None:
        """Return the last step that counts, did not fail and ended by *end*; None if there is none."""
        steps = self.steps_backwards(end)
        return next((no for no, _, last, code in steps if last <= end and not code & (WASTED | FAILED)), None)

    def _backwards(self, place: int) -> Iterator[Slice]:
        """Yield the slices up to those of the block at *place*, the last first."""
        if place == len(self._packed):
            yield from zip(*map(reversed, self._columns()), strict=True)
            place -= 1
        for block in range(place, -1, -1):
            yield from reversed(self._packed.slices(block))

    def first_step(self) -> list[Slice]:
        """Return the slices of the earliest step; an empty list if there is none."""
        if self._first_step is not None or not self.step_end:
            return self._first_step or []
        found = next(self.steps_from(0), [])
        if found and found[-1][1] < self.top:
            self._first_step = found  # slices that are added at the end of the track cannot change it
        return found

    def dump(self) -> list[Any]:
        """Return the track as plain data."""
        self._settle()
        tail = list(map(list, self._slices()))
        return [self._packed.dump(), tail, self.top, self.step_end, self.lap_start, self.last_step]

    @classmethod
    def load(cls, data: Sequence[Any]) -> Track:
        """
        Return the track that `dump` wrote.

        Raises:
            ValueError: if *data* is anything else; values of other types may raise other exceptions.
        """
        track = cls()
        packed, tail = data[:2]
        track._packed = Archive.load(packed)
        slices: list[Slice] = []
        at = track._packed.end
        for item in tail:
            start, end, code, number = map(whole_number, item)
            if not at <= start < end:
                raise ValueError("slices out of order")
            slices.append((start, end, code, number))
            at = end
        track._push(slices)
        track.top, track.step_end, track.lap_start, track.last_step = map(whole_number, data[2:])
        return track

    def kinds(self) -> set[int]:
        """Return the kinds of time in the track."""
        return {code >> KIND_SHIFT for code in self._whole()[0]}
