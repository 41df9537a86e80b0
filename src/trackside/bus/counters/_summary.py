"""What is kept of values once they are folded."""

from __future__ import annotations

import math

from trackside.bus.counters._aggregation import EXTREMES, QUANTILES, SKETCH, SPREAD, Aggregation
from trackside.bus.counters._chunk import Chunk, as_float
from trackside.events import Sketch


class Total:
    """
    A sum that stays exact.

    Ints are summed as ints. Floats are summed chunk by chunk, and what the addition of a chunk's sum rounds off is
    kept (Neumaier, 1974), so the error is that of summing one chunk and does not grow with the number of chunks.
    """

    __slots__ = ("_rounded_off", "_sum")

    def __init__(self) -> None:
        self._sum: float = 0
        self._rounded_off = 0.0

    def copy(self) -> Total:
        """Return a total that goes on from here on its own."""
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


class Summary:
    """Some values of a counter, as far as *needs* asks."""

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

    def take(self, chunk: Chunk) -> None:
        """Take the values of *chunk* in; it must know what `needs` asks."""
        added = len(chunk.values)
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
