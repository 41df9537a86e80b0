"""From what a process did to the buckets its time belongs to, given what was learnt since."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import attrs

from trackside.handlers.models.goodput._block import Slice
from trackside.handlers.models.goodput._buckets import (
    CUSTOM_EVENTS,
    FAILED,
    FIRST_CUSTOM,
    INSIDE,
    KIND_SHIFT,
    KINDS,
    LAST_ELASTIC,
    OTHER,
    PRODUCTIVE,
    PROGRAM_STARTUP,
    STEP,
    UNSAMPLED,
    WASTED,
    WASTED_PROGRESS,
    Bucket,
    Stretch,
    Sums,
    add,
    priority,
    subtract,
)
from trackside.handlers.models.goodput._lengths import Lengths
from trackside.handlers.models.goodput._process import OpenStep, Process, UnendedSpan

_MOST_KNOWN: Final = 64
"""Answers to keep; what changes nothing any more is asked for again and again."""


@attrs.frozen
class StepTime:
    """A step that ended."""

    number: int
    start: int
    end: int
    """In ns since the epoch."""
    net: int
    """Its own time, in ns: without what went into other buckets."""
    is_sample: bool
    """Whether its length says something about steps."""
    is_lost: bool
    """Whether it was done again."""


@attrs.frozen
class Hindsight:
    """What the rest of the session says about a process."""

    wasted_from: int | None = None
    """The lowest step that a later attempt trained; None if none trained any."""
    is_over: bool = False
    """Whether there is a later attempt."""
    until: int = 0
    """How long the process is known to have been alive, in ns since the epoch."""
    excluded: tuple[Stretch, ...] = ()
    """Stretches that the question leaves out, disjoint and in order: no step has time of its own there."""


class Account:
    """
    The time of one process by bucket.

    Each instant is judged by the same rules whatever is asked, so that the accounts of consecutive stretches add up
    to that of the whole, to the nanosecond.
    """

    def __init__(self, process: Process, hindsight: Hindsight) -> None:
        self.process = process
        self.until = hindsight.until
        """How long the process is known to have been alive, in ns since the epoch."""
        self._track = process.track
        self._hindsight = hindsight
        number = hindsight.wasted_from
        self.wasted_at = None if number is None else self._track.time_of(number)
        """Where the work begins that a later attempt did again; None if there is none."""
        self._spans = [span for span in process.opened() if span.start < hindsight.until]
        step = process.open_step
        self._step = step if step is not None and step.start < hindsight.until else None
        self._known: dict[tuple[int, int], Sums] = {}
        self._step_bucket = OTHER if self._step is None else self._fate(self._step)

    def _fate(self, step: OpenStep) -> Bucket:
        """Return what becomes of the step that has not ended."""
        beyond = self._hindsight.wasted_from
        if beyond is not None and step.number >= beyond:
            return WASTED_PROGRESS
        # A later attempt went on behind it, so it was completed; or that is not known yet.
        is_lost = self._hindsight.is_over and beyond is None
        return OTHER if is_lost else PRODUCTIVE

    def between(self, start: int, end: int) -> Sums:
        """Return the time from *start* to *end*, in ns by bucket, as far as the process is known to have lived."""
        known = self._known.get((start, end))
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[start, end] = self._between(start, end)
        return dict(known)

    def _between(self, start: int, end: int) -> Sums:
        end = min(end, self.until)
        sums: Sums = {}
        if end <= start:
            return sums
        before, _ = self._track.until(start)
        for first, last in itertools.pairwise(self._cuts(start, end)):
            after, _ = self._track.until(last)
            spent = dict(after)
            subtract(spent, before)
            self._charge(sums, spent, first, last)
            before = after
        startup = self._startup(start, end)
        if startup:
            subtract(sums, {PRODUCTIVE: startup})
            add(sums, {PROGRAM_STARTUP: startup})  # spans may be marked as startup as well
        return sums

    def _cuts(self, start: int, end: int) -> list[int]:
        """Return the moments at which another rule begins to hold."""
        moments = [span.start for span in self._spans]
        if self._step is not None:
            moments.append(self._step.start)
        if self.wasted_at is not None:
            moments.append(self.wasted_at)
        return sorted({start, end, *(moment for moment in moments if start < moment < end)})

    def _charge(self, sums: Sums, spent: dict[int, int], start: int, end: int) -> None:
        """Add what was *spent* from *start* to *end*, by code, to *sums*; no rule changes between."""
        span = self._prevailing(start)
        is_step_open = self._step is not None and self._step.start <= start
        is_wasted = self.wasted_at is not None and start >= self.wasted_at
        is_open_wasted = is_step_open and self._step_bucket == WASTED_PROGRESS
        for code, length in spent.items():
            kind = code >> KIND_SHIFT
            if span is not None and priority(span.kind << KIND_SHIFT) < priority(code):
                kind = span.kind
            lost = bool(code & WASTED) or (is_wasted and bool(code & INSIDE)) or is_open_wasted
            self._put(sums, self._bucket(kind, code, lost=lost), length)
        idle = end - start - sum(spent.values())
        if span is not None:
            self._put(sums, self._bucket(span.kind, 0, lost=is_open_wasted), idle)
        else:
            self._put(sums, self._step_bucket if is_step_open else OTHER, idle)

    @staticmethod
    def _put(sums: Sums, bucket: Bucket, length: int) -> None:
        if length:
            sums[bucket] = sums.get(bucket, 0) + length

    def _prevailing(self, start: int) -> UnendedSpan | None:
        """Return the open span that has what nothing of a higher priority has; of equals the one that began last."""
        began = [span for span in self._spans if span.start <= start]
        return min(began, key=lambda span: priority(span.kind << KIND_SHIFT), default=None)

    def _bucket(self, kind: int, code: int, *, lost: bool) -> Bucket:
        if kind <= LAST_ELASTIC:
            return KINDS[kind]
        if lost:
            return WASTED_PROGRESS
        if kind >= FIRST_CUSTOM:
            return CUSTOM_EVENTS, self.process.customs[kind - FIRST_CUSTOM]
        if kind == STEP and code & FAILED:
            return OTHER
        return KINDS[kind]

    def _startup(self, start: int, end: int) -> int:
        """Return how much from *start* to *end* is the first step's excess over the mean of the others."""
        own, excess = self._own_time_of_first_step, self._excess
        return min(excess, _before(own, end)) - min(excess, _before(own, start)) if excess else 0

    @functools.cached_property
    def _excess(self) -> int:
        """By how much the first step's own time exceeds the mean of the others', in ns."""
        net = _before(self._own_time_of_first_step, self.until)
        if not net:
            return 0
        total, samples = self._own_time()
        return max(0, net - (total - net) // (samples - 1)) if samples > 1 else 0

    @functools.cached_property
    def _own_time_of_first_step(self) -> Sequence[tuple[int, int]]:
        slices: Sequence[Slice] = self._track.first_step()
        if not slices or slices[0][2] & (WASTED | FAILED | UNSAMPLED):
            return ()
        if self.wasted_at is not None and slices[0][0] >= self.wasted_at:
            return ()
        return self._own(slices, self._covered_from())

    def _own(self, slices: Iterable[Slice], end: int) -> list[Stretch]:
        """Return what of a step's *slices* is its own time before *end*, without what is excluded."""
        own = [(first, min(last, end)) for first, last, code, _ in slices if code >> KIND_SHIFT == STEP and first < end]
        for first, last in self._hindsight.excluded:
            pieces = [((start, min(stop, first)), (max(start, last), stop)) for start, stop in own]
            own = [(start, stop) for start, stop in itertools.chain.from_iterable(pieces) if start < stop]
        return own

    def _covered_from(self) -> int:
        """Return from when on no step has time of its own: all that is open goes before steps."""
        return min((span.start for span in self._spans), default=self.until)

    def _own_time(self) -> tuple[int, int]:
        """Return the own time of the steps that count, in ns, and how many there are."""
        end = self._covered_from() if self.wasted_at is None else min(self._covered_from(), self.wasted_at)
        sums, samples = self._track.until(end)
        if self._hindsight.excluded or any(code & WASTED for code in sums):
            # Rare, so these steps are looked at one by one.
            steps = itertools.takewhile(lambda slices: slices[0][0] < end, self._track.steps_from(0))
            counted = [self._own(slices, end) for slices in steps if not slices[0][2] & (FAILED | UNSAMPLED | WASTED)]
            lengths = [length for own in counted if (length := _before(own, end))]
            return sum(lengths), len(lengths)
        own_codes = [code for code in sums if code >> KIND_SHIFT == STEP and not code & (FAILED | UNSAMPLED)]
        return sum(sums[code] for code in own_codes), samples

    @functools.cached_property
    def lengths(self) -> tuple[Lengths, Lengths]:
        """How long the steps took, each without what went into other buckets, in ns; and those of productive steps."""
        lengths, wasted = self._track.all_lengths()
        counted = lengths.copy()
        counted.merge(wasted, -1)
        if self.wasted_at is not None:
            lost = [step.net for step in self.steps(self.wasted_at, self.until) if step.is_sample]
            counted.remove(lost)
        return lengths, counted

    def startup_beyond(self, ideal: int) -> int:
        """Return how much of the first step is beyond *ideal*, in ns, and startup, so not degraded."""
        net = _before(self._own_time_of_first_step, self.until)
        return max(0, net - ideal) - max(0, net - self._excess - ideal)

    def in_progress(self, end: int) -> tuple[int | None, int]:
        """Return the step in progress at *end*, and how much productive time it has had by then, in ns."""
        end = min(end, self.until)
        if self._step is None or self._step.start >= end or self._step_bucket != PRODUCTIVE:
            return None, 0
        return self._step.number, self.between(self._step.start, end).get(PRODUCTIVE, 0)

    def last_step(self, end: int) -> int | None:
        """Return the last step that was completed by *end* and was not lost; None if there is none."""
        lost = self.wasted_at
        return self._track.last_completed(end if lost is None else min(end, lost))

    def steps(self, start: int, end: int) -> Iterator[StepTime]:
        """Yield the steps that ended after *start* and by *end*, in ns since the epoch."""
        for slices in self._track.steps_from(start):
            began, _, flags, number = slices[0]
            ended = slices[-1][1]
            if began >= end:
                return
            if start < ended <= end:
                own_ns = _before(self._own(slices, ended), ended)
                yield StepTime(
                    number=number,
                    start=began,
                    end=ended,
                    net=own_ns,
                    is_sample=own_ns > 0 and not flags & (FAILED | UNSAMPLED),
                    is_lost=bool(flags & WASTED) or (self.wasted_at is not None and began >= self.wasted_at),
                )


def _before(own: Sequence[tuple[int, int]], end: int) -> int:
    return sum(max(0, min(last, end) - first) for first, last in own)
