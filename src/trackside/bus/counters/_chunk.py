"""
A chunk of samples, checked, with what its counter needs to know of it.

Samples are taken as they come and looked at many at a time: `sum` over a thousand floats is also the cheapest
proof that they are numbers and that none is NaN. Only a chunk that fails it is looked at one by one.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Final

from trackside.bus.counters._aggregation import EXTREMES, SKETCH, SPREAD
from trackside.events import Sketch

_PLAIN: Final = (float, int)
_HERE: Final = (None, "cpu")


class Chunk:
    """Some samples of one counter, in the order in which they were added, each used as often as there are windows."""

    __slots__ = ("last", "maximum", "minimum", "needs", "sketch", "squares", "total", "values")

    def __init__(self, values: list[float], total: float, needs: int) -> None:
        self.values = values
        self.total = total
        self.needs = needs
        self.last = float(values[-1])
        self.minimum = self.maximum = self.squares = 0.0
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

    def part(self, first: int, end: int) -> Chunk:
        """Return the samples from *first* up to before *end* as a chunk of their own."""
        if first == 0 and end == len(self.values):
            return self
        values = self.values[first:end]
        return Chunk(values, sum(values), self.needs)


def _extremes(values: list[float]) -> tuple[float, float]:
    minimum = maximum = values[0]
    # One loop is faster than min() and max(): the interpreter compares floats faster than they do.
    for value in values:
        if value > maximum:
            maximum = value
        elif value < minimum:
            minimum = value
    return float(minimum), float(maximum)


def checked(samples: list[Any], needs: int) -> tuple[Chunk | None, int, str]:
    """
    Make a chunk of those *samples* that are numbers.

    Args:
        samples: At least one; whatever was given to `Counter.add`.
        needs: What to find out about them.

    Returns:
        The chunk, None if no sample is left; how many samples were invalid; and what was wrong with the last one.
    """
    if type(samples[0]) in _PLAIN:
        try:
            total = sum(samples)
            if type(total) in _PLAIN and total == total:  # noqa: PLR0124  NaN is what differs from itself
                return Chunk(samples, total, needs), 0, ""
        except Exception:  # noqa: S110  whatever is wrong is found below, sample by sample
            pass
    values: list[float] = []
    invalid, reason = 0, ""
    for sample in samples:
        try:
            values.append(number(sample))
        except Exception as error:
            invalid += 1
            reason = str(error)
    return (Chunk(values, sum(values), needs) if values else None), invalid, reason


def number(sample: Any) -> float:
    """
    Return *sample* as a float, or as the int it is.

    Numbers of any kind will do, and arrays without dimensions, such as a loss. One that lives on another device is
    refused: to read it would make the job wait for the device.

    Raises:
        TypeError: if it is not one number.
        ValueError: for NaN.
        OverflowError: for an int beyond the range of floats.
    """
    kind = type(sample)
    if kind is int or kind is bool:
        float(sample)
        return int(sample)
    if kind is not float:
        sample = _foreign(sample)
    if sample != sample:  # noqa: PLR0124
        raise ValueError("NaN is not a sample")
    return sample  # type: ignore[no-any-return]


def _foreign(sample: Any) -> float:
    kind = type(sample).__name__
    if not hasattr(type(sample), "__float__") or getattr(sample, "ndim", 0) != 0:
        raise TypeError(f"a {kind} is not one number")
    device = getattr(sample, "device", None)
    if (getattr(device, "type", None) or getattr(device, "platform", None) or device) not in _HERE:
        raise TypeError(f"a {kind} on {device} is not read, as that would wait for the device; add its item()")
    # A tensor that requires a gradient warns when float() is asked for, and does not for item().
    item = getattr(sample, "item", None)
    return float(item() if callable(item) else sample)


def as_float(total: float) -> float:
    """Return *total* as a float, infinite if it is an int beyond the range of floats."""
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf
