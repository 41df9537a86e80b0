"""
Counts of steps by their length, from which percentiles and the ideal step time follow.

Many lengths are counted in buckets, 128 to a doubling, so that a percentile is known within 0.4 %; each bucket keeps
the sum of its lengths, so that a mean is exact. A few thousand are counted one by one: then all figures are exact.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

MOST_EXACT: Final = 4096
"""Steps of a session up to which each length is counted by itself."""
_BITS: Final = 7
_MAD_FACTOR: Final = 3
"""A step is slow beyond the median and so many median absolute deviations; the peer's rule, without its 1 s floor."""


def _bucket(length: int) -> int:
    shift = max(0, length.bit_length() - _BITS - 1)
    return (shift << _BITS) + (length >> shift)


def _upper(bucket: int) -> int:
    """Return the greatest length in *bucket*."""
    shift = max(0, (bucket >> _BITS) - 1)
    return ((bucket - (shift << _BITS) + 1) << shift) - 1


class Lengths:
    """Counts of lengths, in whole nanoseconds from 1."""

    __slots__ = ("_buckets", "count", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, tuple[int, int]] = {}
        self.count = 0
        self.total = 0

    @classmethod
    def each(cls, lengths: Iterable[int]) -> Lengths:
        """Return counts of *lengths* with a bucket for each of them: exact, and not to be merged with others."""
        exact = cls()
        exact._buckets = {length: (n, n * length) for length, n in Counter(lengths).items()}
        exact.count = sum(n for n, _ in exact._buckets.values())
        exact.total = sum(total for _, total in exact._buckets.values())
        return exact

    def add(self, lengths: Sequence[int], sign: int = 1) -> None:
        """Count *lengths*."""
        if not lengths:
            return
        ordered = sorted(lengths)
        place = 0
        while place < len(ordered):
            # By bucket, not one by one: the steps of a job are much alike.
            bucket = _bucket(ordered[place])
            end = bisect_right(ordered, _upper(bucket), lo=place)
            self._put(bucket, sign * (end - place), sign * sum(ordered[place:end]))
            place = end

    def remove(self, lengths: Sequence[int]) -> None:
        """Count *lengths*, which were counted, no more."""
        self.add(lengths, sign=-1)

    def merge(self, other: Lengths, sign: int = 1) -> None:
        """Count what *other* counts; or no more."""
        for bucket, (count, total) in other._buckets.items():
            self._put(bucket, sign * count, sign * total)

    def _put(self, bucket: int, count: int, total: int) -> None:
        before, sum_before = self._buckets.get(bucket, (0, 0))
        if before + count:
            self._buckets[bucket] = (before + count, sum_before + total)
        else:
            self._buckets.pop(bucket, None)
        self.count += count
        self.total += total

    def copy(self) -> Lengths:
        """Return another one that counts the same."""
        copy = Lengths()
        copy._buckets.update(self._buckets)
        copy.count, copy.total = self.count, self.total
        return copy

    def ordered(self) -> list[tuple[float, int]]:
        """Return the mean length of each bucket and how many it has, the shortest first."""
        return [(total / count, count) for _, (count, total) in sorted(self._buckets.items())]

    def beyond(self, limit: int) -> int:
        """Return by how much the lengths exceed *limit*, all together."""
        return sum(max(0, total - count * limit) for count, total in self._buckets.values())


@attrs.frozen
class LengthSummary:
    """What lengths have in common; in ns, 0.0 if there are none."""

    count: int
    ideal: int
    """The configured one, or the mean of those that are not slow; whole, so that what is beyond it is exact."""
    slow_from: float
    """A step longer than this is slow."""
    slow: int
    p50: float
    p90: float
    p99: float
    deviation: float
    """The mean distance from the ideal."""
    deviation_p50: float
    deviation_p90: float
    deviation_p99: float

    @classmethod
    def of(cls, lengths: Lengths, ideal: int | None = None, slow_from: float | None = None) -> LengthSummary:
        """
        Summarize *lengths*.

        Args:
            lengths: Of some steps.
            ideal: In ns; found out from them unless given.
            slow_from: In ns; as *ideal*.
        """
        ordered = lengths.ordered()
        if not ordered:
            return cls(0, ideal or 0, slow_from or 0.0, 0, *[0.0] * 7)
        count = lengths.count
        median = _at(ordered, 0.5, count)
        if slow_from is None:
            slow_from = median + _MAD_FACTOR * _at(_distances(ordered, median), 0.5, count)
        if ideal is None:
            usual = [(length, n) for length, n in ordered if length <= slow_from]
            ideal = round(sum(length * n for length, n in usual) / sum(n for _, n in usual))
        distances = _distances(ordered, ideal)
        return cls(
            count=count,
            ideal=ideal,
            slow_from=slow_from,
            slow=sum(n for length, n in ordered if length > slow_from),
            p50=median,
            p90=_at(ordered, 0.9, count),
            p99=_at(ordered, 0.99, count),
            deviation=sum(distance * n for distance, n in distances) / count,
            deviation_p50=_at(distances, 0.5, count),
            deviation_p90=_at(distances, 0.9, count),
            deviation_p99=_at(distances, 0.99, count),
        )


def _distances(ordered: Iterable[tuple[float, int]], origin: float) -> list[tuple[float, int]]:
    return sorted((abs(length - origin), n) for length, n in ordered)


def _at(ordered: Iterable[tuple[float, int]], share: float, count: int) -> float:
    """Return the percentile as NumPy does: interpolated between the two lengths beside rank *share* × (count − 1)."""
    rank = share * (count - 1)
    lower = int(rank)
    below, seen = None, 0
    for length, n in ordered:
        seen += n
        if below is None and seen > lower:
            below = length
        if below is not None and (seen > lower + 1 or seen == count):
            return below + (length - below) * (rank - lower)
    return 0.0
