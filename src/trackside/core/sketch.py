"""
A sketch of how values are distributed, which merges without loss.

Values are counted in buckets whose bounds grow by 2 %, so that any quantile is known within 1 % of its value:
DDSketch (Masson, Rim, Lee: "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees",
PVLDB 12, 2019). The range of buckets is fixed, which bounds the size for any input, and makes merged sketches equal,
bucket by bucket, to one sketch of all their values.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final

from trackside.events._errors import DecodeError

RELATIVE_ERROR: Final = 0.01
"""The largest relative error of a quantile."""

_GAMMA: Final = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOWEST: Final = -2049
_HIGHEST: Final = 3072

_BOUNDS: Final = [_GAMMA**exponent for exponent in range(_LOWEST, _HIGHEST + 1)]
"""Bucket i holds the values above bound i − 1 up to bound i, bucket 0 the zeros, the last all that is larger."""
_BEYOND: Final = len(_BOUNDS)

_FORMAT: Final = 1
_MAX_WIRE_BYTES: Final = 1 << 16
_MAX_VARINT_BYTES: Final = 9
_LOW_BITS: Final = 0x7F


class Sketch:
    """
    Counts of values by magnitude.

    Values nearer to zero than 1.6e-18 count as zero, values beyond 4.8e26 as infinite: an attosecond in seconds, and
    more floating-point operations than any job has done. Not safe to change from two threads at once.
    """

    __slots__ = ("_above", "_below", "_zeros")

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._above: dict[int, int] = {}
        self._below: dict[int, int] = {}
        self._zeros = 0
        self.add(sorted(values))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sketch):
            return NotImplemented
        return self._zeros == other._zeros and self._above == other._above and self._below == other._below

    __hash__: ClassVar[None]  # type: ignore[assignment]  # it is mutable

    def __repr__(self) -> str:
        return f"<Sketch of {self.count} values in {len(self._above) + len(self._below)} buckets>"

    @property
    def count(self) -> int:
        """The number of values added."""
        return self._zeros + sum(self._above.values()) + sum(self._below.values())

    def copy(self) -> Sketch:
        """Return a sketch that goes on from here on its own."""
        copy = Sketch()
        copy._above, copy._below, copy._zeros = self._above.copy(), self._below.copy(), self._zeros
        return copy

    def add(self, ordered: list[float]) -> None:
        """Count the values in *ordered*, which must be sorted and free of NaN."""
        first_above = bisect.bisect_left(ordered, 0.0)
        self._zeros += _count(self._above, ordered, first_above)
        if first_above:
            self._zeros += _count(self._below, [-value for value in reversed(ordered[:first_above])], 0)

    def merge(self, other: Sketch) -> None:
        """Add all that *other* has counted."""
        for mine, its in ((self._above, other._above), (self._below, other._below)):
            for index, count in its.items():
                mine[index] = mine.get(index, 0) + count
        self._zeros += other._zeros

    def quantile(self, q: float) -> float | None:
        """
        Return the value of rank ``floor(q × (count − 1))``, counted from 0, within 1 %.

        Args:
            q: From 0 to 1.

        Returns:
            None if the sketch is empty; ``inf`` for a value beyond the range of the sketch.
        """
        return self.quantiles([q])[0]

    def quantiles(self, qs: Iterable[float]) -> list[float | None]:
        """Return the result of `quantile` for each of *qs*."""
        below, above = sorted(self._below, reverse=True), sorted(self._above)
        buckets = [*(-index for index in below), 0, *above]
        counts = [*map(self._below.__getitem__, below), self._zeros, *map(self._above.__getitem__, above)]
        ends = list(itertools.accumulate(counts))
        last = ends[-1] - 1
        if last < 0:
            return [None for _ in qs]
        # A bucket's ranks are less than its end, and not less than the end before.
        return [_middle(buckets[bisect.bisect_right(ends, min(int(q * last), last))]) for q in qs]

    def to_wire(self) -> bytes:
        """
        Return the sketch as at most 64 KiB.

        The bytes are unsigned LEB128 numbers: the format, 1; the zeros; then for the values above zero and for
        those below, the number of buckets, and for each bucket its distance from the one before, less 1, and its count.
        """
        out = bytearray()
        for number in (_FORMAT, self._zeros):
            _write(out, number)
        for side in (self._above, self._below):
            _write(out, len(side))
            before = 0
            for index, count in sorted(side.items()):
                _write(out, index - before - 1)
                _write(out, count)
                before = index
        return bytes(out)

    @classmethod
    def from_wire(cls, data: bytes) -> Sketch:
        """
        Return the sketch that `to_wire` wrote.

        Raises:
            DecodeError: if *data* is anything else; it may come from an untrusted peer.
        """
        if len(data) > _MAX_WIRE_BYTES:
            raise DecodeError(f"a sketch of {len(data)} bytes; at most {_MAX_WIRE_BYTES}")
        numbers = _numbers(data)
        sketch = cls()
        try:
            if (version := next(numbers)) != _FORMAT:
                raise DecodeError(f"a sketch of format {version}; only {_FORMAT} is known")
            sketch._zeros = next(numbers)
            for side in (sketch._above, sketch._below):
                index = 0
                for _ in range(next(numbers)):
                    index += next(numbers) + 1
                    count = next(numbers)
                    if index > _BEYOND or count == 0:
                        raise DecodeError("a sketch with a bucket out of range")
                    side[index] = count
        except StopIteration:
            raise DecodeError("a sketch that is cut off") from None
        if next(numbers, None) is not None:
            raise DecodeError("a sketch with bytes after its end")
        return sketch


def quantiles_of(ordered: Sequence[float], qs: Iterable[float]) -> list[float]:
    """Return the `Sketch.quantiles` of the values in *ordered*, at least one, sorted as for `Sketch.add`."""
    last = len(ordered) - 1
    return [_counted_as(ordered[min(int(q * last), last)]) for q in qs]


def _count(buckets: dict[int, int], ordered: list[float], first: int) -> int:
    """Count *ordered*, from *first* on, in *buckets*; return how many count as zero."""
    zeros = bisect.bisect_right(ordered, _BOUNDS[0], first) - first
    first += zeros
    size = len(ordered)
    index, last = 0, bisect.bisect_left(_BOUNDS, ordered[-1]) if first < size else 0
    while first < size:
        # One step for each bucket found, not for each value: step times of a job lie in a handful of buckets.
        index = bisect.bisect_left(_BOUNDS, ordered[first], index, last)
        end = bisect.bisect_right(ordered, _BOUNDS[index], first) if index < last else size
        buckets[index] = buckets.get(index, 0) + end - first
        first = end
    return zeros


def _counted_as(value: float) -> float:
    """Return the value that a sketch returns for *value*."""
    index = bisect.bisect_left(_BOUNDS, abs(value))
    return _middle(-index if value < 0 else index)


def _middle(index: int) -> float:
    """Return the value within 1 % of all in bucket *index*; the index is negative for values below zero."""
    if index <= 0:
        return -_middle(-index) if index else 0.0
    return 2 * _BOUNDS[index] / (_GAMMA + 1) if index < _BEYOND else math.inf


def _write(out: bytearray, number: int) -> None:
    while number > _LOW_BITS:
        out.append(number & _LOW_BITS | 0x80)
        number >>= 7
    out.append(number)


def _numbers(data: bytes) -> Iterator[int]:
    """Yield the numbers in *data*; raise `DecodeError` if the last one is cut off."""
    number = shift = 0
    for byte in data:
        number |= (byte & _LOW_BITS) << shift
        shift += 7
        if byte <= _LOW_BITS:
            yield number
            number = shift = 0
        elif shift == 7 * _MAX_VARINT_BYTES:
            raise DecodeError("a sketch with a number beyond 63 bits")
    if shift:
        raise DecodeError("a sketch that is cut off")
