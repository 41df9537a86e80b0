"""
Checked samples, and the figures of many of them.

Samples are kept as they come and checked a chunk at a time: `sum` over a thousand floats is also the cheapest proof
that they are numbers and that none is NaN. Only a chunk that fails it is checked one by one.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Final, NamedTuple

from trackside.core import is_from_signal_handler
from trackside.core.sketch import Sketch
from trackside.counters._aggregation import EXTREMES, QUANTILES, SKETCH, SPREAD, Aggregation

_PLAIN: Final = (float, int)
_HERE: Final = (None, "cpu")


class NaNError(ValueError):
    """A sample is NaN."""


class SampleChunk:
    """Some samples of one instrument, in the order in which they were recorded; shared by all its windows."""

    __slots__ = ("count", "last", "maximum", "minimum", "needs", "sketch", "squares", "total", "values")

    def __init__(self, values: list[float], total: float, needs: int) -> None:
        self.values: list[float] = values
        self.count: int = len(values)
        self.total: float = total
        self.needs: int = needs
        self.last: float = float(values[-1])
        self.minimum: float = 0.0
        self.maximum: float = 0.0
        self.squares: float = 0.0
        self.sketch: Sketch | None = None
        if needs & SKETCH:
            ordered = sorted(values)
            self.sketch = Sketch()
            self.sketch.add(ordered)
            self.minimum, self.maximum = float(ordered[0]), float(ordered[-1])
        elif needs & EXTREMES:
            self.minimum, self.maximum = _extremes(values)
        if needs & SPREAD:
            mean = total / len(values)
            deviations = [value - mean for value in values]
            self.squares = sum(map(operator.mul, deviations, deviations))

    @classmethod
    def of_figures(cls, count: int, total: float, minimum: float, maximum: float, last: float) -> SampleChunk:
        """Return a chunk without its samples, for an instrument that needs only these figures."""
        chunk = cls([last], total, 0)
        chunk.count, chunk.minimum, chunk.maximum = count, minimum, maximum
        return chunk

    def part(self, first: int, end: int) -> SampleChunk:
        """Return the samples from *first* up to before *end* as a chunk of their own."""
        if first == 0 and end == len(self.values):
            return self
        values = self.values[first:end]
        return SampleChunk(values, sum(values), self.needs)


def _extremes(values: list[float]) -> tuple[float, float]:
    minimum = maximum = values[0]
    # One loop is faster than min() and max(): the interpreter compares floats faster than they do.
    for value in values:
        if value > maximum:
            maximum = value
        elif value < minimum:
            minimum = value
    return float(minimum), float(maximum)


class NonFinite(NamedTuple):
    """The samples of a chunk that were NaN or infinite."""

    samples: int
    before: int
    """Samples before the first of them; invalid ones are not counted."""

    def plus_one(self, before: int) -> NonFinite:
        """Return these and one more, which came after *before* valid samples."""
        return NonFinite(self.samples + 1, self.before if self.samples else before)


ALL_FINITE: Final = NonFinite(0, 0)


def checked(samples: list[Any], needs: int, lowest: float | None) -> tuple[SampleChunk | None, int, str, NonFinite]:
    """
    Make a chunk of those *samples* that are numbers.

    Args:
        samples: At least one, unchecked, as they were recorded.
        needs: The figures to compute.
        lowest: The smallest valid sample; None if every number is valid.

    Returns:
        The chunk, None if no sample is left; the number of invalid samples, NaN among them; the reason of the last
        one; and the samples that were not finite.
    """
    if type(samples[0]) in _PLAIN:
        try:
            total = sum(samples)
            # A chunk with a sample that is not finite, or is too low, is left to the loop below.
            is_number = type(total) in _PLAIN and math.isfinite(total)
            if is_number and (lowest is None or _are_at_least(lowest, samples)):
                return SampleChunk(samples, total, needs), 0, "", ALL_FINITE
        except (TypeError, ValueError, OverflowError):
            pass  # the loop below finds what is wrong, sample by sample
        except Exception as error:
            if is_from_signal_handler(error):
                raise
    values: list[float] = []
    invalid, reason = 0, ""
    non_finite = ALL_FINITE
    for sample in samples:
        try:
            value = number(sample, lowest)
        except NaNError as error:
            non_finite = non_finite.plus_one(len(values))
            invalid += 1
            reason = str(error)
        except Exception as error:
            # That check costs more than the rest, and `number` itself raises only these three.
            if not isinstance(error, (TypeError, ValueError, OverflowError)) and is_from_signal_handler(error):
                raise
            invalid += 1
            reason = str(error)
        else:
            if abs(value) == math.inf:
                non_finite = non_finite.plus_one(len(values))
            values.append(value)
    return (SampleChunk(values, sum(values), needs) if values else None), invalid, reason, non_finite


def _are_at_least(lowest: float, samples: list[Any]) -> bool:
    """Return whether no sample is below *lowest*; most counters add the same amount again and again."""
    first = samples[0]
    return first >= lowest and (samples.count(first) == len(samples) or min(samples) >= lowest)


def number(sample: Any, lowest: float | None = None) -> float:
    """
    Return *sample* as a float, or as an int if it is one.

    Numbers of any kind are valid, and arrays without dimensions, such as a loss. An array on another device is
    refused: reading it would make the job wait for the device.

    Raises:
        TypeError: if it is not one number.
        ValueError: for NaN, or a number below *lowest*.
        OverflowError: for an int beyond the range of floats.
    """
    kind = type(sample)
    if kind is int or kind is bool:
        float(sample)
        sample = int(sample)
    elif kind is not float:
        sample = _foreign(sample)
    if sample != sample:  # noqa: PLR0124
        raise NaNError("NaN is not a sample")
    if lowest is not None and sample < lowest:
        raise ValueError(f"{sample} is below {lowest}: a counter only grows; use a gauge or a stat")
    return sample  # type: ignore[no-any-return]


def _foreign(sample: Any) -> float:
    kind = type(sample).__name__
    if not hasattr(type(sample), "__float__") or getattr(sample, "ndim", 0) != 0:
        raise TypeError(f"a {kind} is not one number")
    device = getattr(sample, "device", None)
    if (getattr(device, "type", None) or getattr(device, "platform", None) or device) not in _HERE:
        raise TypeError(f"a {kind} on {device} is not read, as that would wait for the device; record its item()")
    # A tensor that requires a gradient warns when float() is asked for, and does not for item().
    item = getattr(sample, "item", None)
    return float(item() if callable(item) else sample)


def as_float(total: float) -> float:
    """Return *total* as a float, infinite if it is an int beyond the range of floats."""
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


class Total:
    """
    A sum that stays exact.

    Ints are summed as ints. Floats are summed chunk by chunk, and the rounding error of adding each
    chunk's sum is kept (Neumaier, 1974), so the error is that of one chunk and does not grow with their number.
    """

    __slots__ = ("_rounded_off", "_sum")

    def __init__(self) -> None:
        self._sum: float = 0
        self._rounded_off = 0.0

    def copy(self) -> Total:
        """Return an independent copy."""
        copy = Total()
        copy._sum, copy._rounded_off = self._sum, self._rounded_off
        return copy

    def add(self, amount: float) -> None:
        """Add *amount*."""
        before = self._sum
        if type(before) is int and type(amount) is int:
            self._sum = before + amount
            return
        before, amount = as_float(before), as_float(amount)
        self._sum = after = before + amount
        larger, smaller = (before, amount) if abs(before) >= abs(amount) else (amount, before)
        self._rounded_off += (larger - after) + smaller

    @property
    def value(self) -> float:
        """The sum: an int as long as all amounts are."""
        if type(self._sum) is int or not math.isfinite(self._sum):
            return self._sum
        return self._sum + self._rounded_off


class SampleSummary:
    """The figures of some values, those that *needs* asks for."""

    __slots__ = ("count", "last", "maximum", "minimum", "needs", "sketch", "squares", "total")

    def __init__(self, needs: int) -> None:
        self.needs = needs
        self.count = 0
        self.total = Total()
        self.last = 0.0
        self.minimum = math.inf
        self.maximum = -math.inf
        self.squares = 0.0
        self.sketch = Sketch() if needs & SKETCH else None

    def copy(self) -> SampleSummary:
        """Return an independent copy."""
        copy = SampleSummary(0)
        copy.needs, copy.count, copy.last = self.needs, self.count, self.last
        copy.minimum, copy.maximum, copy.squares = self.minimum, self.maximum, self.squares
        copy.total = self.total.copy()
        copy.sketch = None if self.sketch is None else self.sketch.copy()
        return copy

    def add(self, chunk: SampleChunk) -> None:
        """Add the values of *chunk*, which must have the figures that `needs` asks for."""
        added = chunk.count
        if self.needs & EXTREMES:
            self.minimum = min(self.minimum, chunk.minimum)
            self.maximum = max(self.maximum, chunk.maximum)
        if self.needs & SPREAD:
            self.squares += chunk.squares
            if self.count:
                # Chan, Golub, LeVeque, 1979: exact where a sum of squares would cancel.
                apart = chunk.total / added - as_float(self.total.value) / self.count
                self.squares += apart * apart * (self.count * added / (self.count + added))
        if self.sketch is not None and chunk.sketch is not None:
            self.sketch.merge(chunk.sketch)
        self.count += added
        self.total.add(chunk.total)
        self.last = chunk.last

    def plus(self, later: SampleSummary) -> SampleSummary:
        """Return count, sum, last value and, if both have them, extremes of these values and *later* ones."""
        if not (self.count and later.count):
            return later if later.count else self
        both = self.copy()
        both.needs &= later.needs & EXTREMES
        both.add(SampleChunk.of_figures(later.count, later.total.value, later.minimum, later.maximum, later.last))
        return both

    def values(self, aggregations: tuple[Aggregation, ...]) -> dict[str, float]:
        """
        Return the figures asked for, by name.

        Without any values there are a count and a sum of 0 and nothing else: no mean, rather than a mean of nothing.
        A figure that is not defined, such as the mean of both infinities, is left out, and so is one that was asked for
        only after the first of these values.
        """
        figures: dict[str, float] = {"count": self.count, "sum": as_float(self.total.value)}
        if self.count:
            figures["value"] = self.last
            figures["mean"] = figures["sum"] / self.count
            if self.needs & EXTREMES:
                figures["min"], figures["max"] = self.minimum, self.maximum
            if self.needs & SPREAD:
                figures["stddev"] = math.sqrt(self.squares / self.count)
            figures |= self._percentiles()
        return {
            aggregation.value: figures[aggregation.value]
            for aggregation in aggregations
            if not math.isnan(figures.get(aggregation.value, math.nan))
        }

    def _percentiles(self) -> dict[str, float]:
        if self.sketch is None:
            return {}
        found = self.sketch.quantiles(QUANTILES.values())
        return {
            quantile.value: min(max(value, self.minimum), self.maximum)
            for quantile, value in zip(QUANTILES, found, strict=True)
            if value is not None
        }
