"""A long series in little room: what happened in each stretch of time, with nothing extreme lost."""

from __future__ import annotations

import math
import operator
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import attrs

_MOST_SAMPLES: Final = 64


@attrs.define
class Bin:
    """One stretch of time."""

    count: int = 0
    total: float = 0.0
    low: float = 0.0
    high: float = -math.inf
    high_step: int = -1
    high_rank: int = -1
    """Where `high` was."""
    first_step: int = -1
    last_step: int = -1
    samples: list[float] = attrs.field(factory=list)
    """Every *stride*-th value."""
    stride: int = 1

    def add(self, value: float, step: int, rank: int) -> None:
        """Take in one value."""
        if value > self.high:
            self.high, self.high_step, self.high_rank = value, step, rank
        if not self.count:
            self.low = value
            self.first_step = self.last_step = step
        else:
            if value < self.low:  # noqa: PLR1730  min() is a call for every value
                self.low = value
            if step > self.last_step:
                self.last_step = step
            elif step < self.first_step:
                self.first_step = step
        if not self.count % self.stride:
            samples = self.samples
            samples.append(value)
            if len(samples) >= _MOST_SAMPLES:
                del samples[1::2]
                self.stride *= 2
        self.count += 1
        self.total += value

    def add_many(self, values: Sequence[float], steps: Sequence[int], rank: int) -> None:
        """Take in several values of one rank."""
        high = max(values)
        if high > self.high:
            self.high, self.high_step, self.high_rank = high, steps[values.index(high)], rank
        if not self.count:
            self.low, self.first_step, self.last_step = values[0], steps[0], steps[0]
        low, first, last = min(values), min(steps), max(steps)
        self.low = min(self.low, low)
        self.first_step = min(self.first_step, first)
        self.last_step = max(self.last_step, last)
        self.samples += values[-self.count % self.stride :: self.stride]
        self._thin()
        self.count += len(values)
        self.total += sum(values)

    def _thin(self) -> None:
        while len(self.samples) >= _MOST_SAMPLES:
            del self.samples[1::2]
            self.stride *= 2

    def merge(self, other: Bin) -> None:
        """Take in all of *other*."""
        if other.high > self.high:
            self.high, self.high_step, self.high_rank = other.high, other.high_step, other.high_rank
        self.low = min(self.low, other.low)
        self.first_step = min(self.first_step, other.first_step)
        self.last_step = max(self.last_step, other.last_step)
        self.count += other.count
        self.total += other.total
        self.stride = max(self.stride, other.stride)
        self.samples += other.samples
        self._thin()

    @property
    def median(self) -> float:
        """The median: exact of up to 63 values, else of as many, evenly spaced."""
        return statistics.median(self.samples)

    @property
    def mean(self) -> float:
        """The mean, exact."""
        return self.total / self.count


class Bins:
    """
    Values by time, in stretches whose length doubles whenever there are more than *most* of them.

    Memory does not depend on how long the job was, nor on how many ranks it had; the lowest and the highest value of
    each stretch are exact.
    """

    def __init__(self, most: int = 2_048, width_ns: int = 1 << 20) -> None:
        self._most = most
        self._shift = width_ns.bit_length() - 1
        self._bins: dict[int, Bin] = {}

    @property
    def width_ns(self) -> int:
        """The length of a stretch, in ns."""
        return 1 << self._shift

    def __len__(self) -> int:
        return len(self._bins)

    def add(self, at_ns: int, value: float, step: int = -1, rank: int = -1) -> None:
        """Take in a *value* of the time *at_ns*."""
        place = at_ns >> self._shift
        try:
            found = self._bins[place]
        except KeyError:
            found = self._bins[place] = Bin()
            if len(self._bins) > self._most:
                found.add(value, step, rank)
                self._widen()
                return
        found.add(value, step, rank)

    def add_many(self, times_ns: Sequence[int], values: Sequence[float], steps: Sequence[int], rank: int) -> None:
        """Take in values of one rank, in the order of their times; where these are not in order, one by one."""
        place, count = 0, len(times_ns)
        if any(map(operator.gt, times_ns, islice(times_ns, 1, None))):
            for at_ns, value, step in zip(times_ns, values, steps, strict=True):
                self.add(at_ns, value, step, rank)
            return
        if times_ns[-1] - times_ns[0] >> self._shift >= count:  # far apart: about one to a stretch
            self._add_sparse(times_ns, values, steps, rank)
            return
        while place < count:
            at = times_ns[place] >> self._shift
            end = bisect_left(times_ns, (at + 1) << self._shift, place + 1)
            if end == place + 1:
                self.add(times_ns[place], values[place], steps[place], rank)
            else:
                found = self._bins.get(at)
                if found is None:
                    found = self._bins[at] = Bin()
                found.add_many(values[place:end], steps[place:end], rank)
                if len(self._bins) > self._most:
                    self._widen()
            place = end

    def _add_sparse(self, times_ns: Sequence[int], values: Sequence[float], steps: Sequence[int], rank: int) -> None:
        bins, shift = self._bins, self._shift
        for at_ns, value, step in zip(times_ns, values, steps, strict=True):
            found = bins.get(at_ns >> shift)
            if found is None:
                self.add(at_ns, value, step, rank)
                bins, shift = self._bins, self._shift
            elif found.low <= value <= found.high and step == found.last_step and found.count % found.stride:
                found.count += 1  # where ranks keep step with each other, most are like this
                found.total += value
            else:
                found.add(value, step, rank)

    def _widen(self) -> None:
        while len(self._bins) > self._most:
            self._shift += 1
            wider: dict[int, Bin] = {}
            for place, found in sorted(self._bins.items()):
                known = wider.get(place >> 1)
                if known is None:
                    wider[place >> 1] = found
                else:
                    known.merge(found)
            self._bins = wider

    def points(self) -> list[tuple[int, Bin]]:
        """Return the middle of each stretch that has values, in ns since the epoch, and the values."""
        half = self.width_ns >> 1
        return [((place << self._shift) + half, found) for place, found in sorted(self._bins.items())]

    def coarse(self, most: int) -> list[tuple[int, Bin]]:
        """Return at most *most* points: neighbours made one, the extremes kept."""
        points = self.points()
        if len(points) <= most:
            return points
        start, end = points[0][0], points[-1][0]
        size = (end - start) // most + 1
        found: dict[int, tuple[int, Bin]] = {}
        for at_ns, one in points:
            place = (at_ns - start) // size
            if place in found:
                found[place][1].merge(one)
            else:
                found[place] = start + place * size + size // 2, attrs.evolve(one, samples=list(one.samples))
        return [found[place] for place in sorted(found)]


def plain(points: list[tuple[int, Bin]]) -> list[dict[str, Any]]:
    """Return *points* as plain data, of step times in ns."""
    return [
        {
            "at_ns": at_ns,
            "median_ns": one.median,
            "min_ns": one.low,
            "max_ns": one.high,
            "max_step": one.high_step,
            "max_rank": one.high_rank,
            "steps": [one.first_step, one.last_step],
            "count": one.count,
        }
        for at_ns, one in points
    ]
