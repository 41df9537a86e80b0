"""How long things took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from trackside.events import Sketch
from trackside.events.sketch import quantiles_of

NS_PER_S: Final = 10**9
_FOLD_AT: Final = 256
_QUANTILES: Final = (0.50, 0.95, 0.99)
_OF_NONE: Final = {
    "avg_iteration_time_sec": None,
    "min_iteration_time_sec": None,
    "max_iteration_time_sec": None,
    "total_iteration_time_sec": 0.0,
    "p50_iteration_time_sec": None,
    "p95_iteration_time_sec": None,
    "p99_iteration_time_sec": None,
}


@attrs.define
class Durations:
    """
    Count, sum, extremes and distribution of some durations, in ns.

    The latest wait in a list, since extremes and a sketch take many at once for the price of a few. Sums are whole
    numbers, so that what is merged is what would have been added.
    """

    count: int = 0
    total_ns: int = 0
    min_ns: int = 0
    """Of those that do not wait, as the next two."""
    max_ns: int = 0
    sketch: Sketch = attrs.field(factory=Sketch)
    waiting: list[int] = attrs.field(factory=list)

    def add(self, duration_ns: int) -> None:
        """Take one in."""
        self.total_ns += duration_ns  # first: what is no number must not wait
        self.count += 1
        self.waiting.append(duration_ns)
        if len(self.waiting) >= _FOLD_AT:
            self.fold()

    def fold(self) -> None:
        """Take what waits into the extremes and the sketch."""
        if self.waiting:
            self.waiting.sort()
            self._widen(self.waiting[0], self.waiting[-1])
            self.sketch.add(self.waiting)  # type: ignore[arg-type]  # ints are floats here
            self.waiting = []

    def merge(self, other: Durations) -> None:
        """Add all that *other* holds."""
        if other.count > len(other.waiting):
            self._widen(other.min_ns, other.max_ns)
            self.sketch.merge(other.sketch)
        self.count += other.count
        self.total_ns += other.total_ns
        self.waiting += other.waiting
        self.fold()

    def _widen(self, low_ns: int, high_ns: int) -> None:
        is_first = self.count == len(self.waiting)
        self.min_ns = low_ns if is_first else min(self.min_ns, low_ns)
        self.max_ns = high_ns if is_first else max(self.max_ns, high_ns)

    def to_plain(self) -> dict[str, Any]:
        """Return the state as plain data, the same whether it was looked at before or not."""
        self.fold()
        known = attrs.asdict(self, filter=lambda field, _: field.name not in {"sketch", "waiting"})
        return {**known, "sketch": self.sketch.to_wire()}

    def seconds(self) -> Mapping[str, float | None]:
        """
        Return average, extremes, total and percentiles in seconds, under One Logger's names.

        Of no durations the total is 0, and the rest None.
        """
        if not self.count:
            return _OF_NONE
        if self.count == len(self.waiting):  # a window, as a rule: a sketch would be made for this alone
            ordered = sorted(self.waiting)
            low_ns, high_ns = ordered[0], ordered[-1]
            found: Sequence[float | None] = quantiles_of(ordered, _QUANTILES)
        else:
            self.fold()
            low_ns, high_ns = self.min_ns, self.max_ns
            found = self.sketch.quantiles(_QUANTILES)
        p50, p95, p99 = (min(max(value or 0.0, low_ns), high_ns) / NS_PER_S for value in found)
        return {
            "avg_iteration_time_sec": self.total_ns / self.count / NS_PER_S,
            "min_iteration_time_sec": low_ns / NS_PER_S,
            "max_iteration_time_sec": high_ns / NS_PER_S,
            "total_iteration_time_sec": self.total_ns / NS_PER_S,
            "p50_iteration_time_sec": p50,
            "p95_iteration_time_sec": p95,
            "p99_iteration_time_sec": p99,
        }
