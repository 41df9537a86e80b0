"""How long things took."""

from __future__ import annotations

from typing import Any, Final

import attrs

from trackside.events import Sketch

NS_PER_S: Final = 10**9
_FOLD_AT: Final = 256
_QUANTILES: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


@attrs.define
class Durations:
    """
    Count, sum, extremes and distribution of some durations, in ns.

    The latest wait in a list, since a sketch takes many at once for the price of a few. Sums are whole numbers, so
    that what is merged is what would have been added.
    """

    count: int = 0
    total_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0
    sketch: Sketch = attrs.field(factory=Sketch)
    waiting: list[int] = attrs.field(factory=list)

    def add(self, duration_ns: int) -> None:
        """Take one in."""
        if not self.count or duration_ns < self.min_ns:
            self.min_ns = duration_ns
        if not self.count or duration_ns > self.max_ns:
            self.max_ns = duration_ns
        self.count += 1
        self.total_ns += duration_ns
        self.waiting.append(duration_ns)
        if len(self.waiting) >= _FOLD_AT:
            self.fold()

    def fold(self) -> None:
        """Take what waits into the sketch."""
        self.waiting.sort()
        self.sketch.add(self.waiting)  # type: ignore[arg-type]  # ints are floats here
        self.waiting = []

    def merge(self, other: Durations) -> None:
        """Add all that *other* holds."""
        if not other.count:
            return
        self.min_ns = min(self.min_ns, other.min_ns) if self.count else other.min_ns
        self.max_ns = max(self.max_ns, other.max_ns) if self.count else other.max_ns
        self.count += other.count
        self.total_ns += other.total_ns
        other.fold()
        self.sketch.merge(other.sketch)

    def to_plain(self) -> dict[str, Any]:
        """Return the state as plain data, the same whether it was looked at before or not."""
        self.fold()
        known = attrs.asdict(self, filter=lambda field, _: field.name not in {"sketch", "waiting"})
        return {**known, "sketch": self.sketch.to_wire()}

    def seconds(self) -> dict[str, Any]:
        """
        Return ``avg``, ``min``, ``max``, ``total``, ``p50``, ``p95`` and ``p99`` in seconds.

        Of no durations the total is 0, and the rest None.
        """
        if not self.count:
            return {**dict.fromkeys(("avg", "min", "max", *_QUANTILES)), "total": 0.0}
        self.fold()
        found = self.sketch.quantiles(_QUANTILES.values())
        within = {
            name: min(max(value or 0.0, self.min_ns), self.max_ns)
            for name, value in zip(_QUANTILES, found, strict=True)
        }
        return {
            "avg": self.total_ns / self.count / NS_PER_S,
            "min": self.min_ns / NS_PER_S,
            "max": self.max_ns / NS_PER_S,
            "total": self.total_ns / NS_PER_S,
            **{name: value / NS_PER_S for name, value in within.items()},
        }
