"""The board of counters: the latest windows and the totals, over all sources."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import attrs

from trackside.events import PORTER, CounterWindow, Event, Sketch, Source

_QUANTILES: Final = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


@attrs.frozen(kw_only=True)
class CounterTotals:
    """What one counter came to, over all sources; lists run parallel to *source_ids*."""

    unit: str
    count: int
    sum: float
    minimum: float | None
    """Of the windows that told their minimum; None if none did. Likewise the maximum."""
    maximum: float | None
    quantiles: dict[str, float]
    """``p50``, ``p90``, ``p95``, ``p99`` within 1 %, over the windows that carried a sketch; empty if none did."""
    source_ids: list[str]
    ranks: list[int]
    roles: list[str]
    counts: list[int]
    sums: list[float]
    windows: list[dict[str, float]]
    """The figures of each source's latest window that was not empty."""

    @property
    def mean(self) -> float | None:
        """The sum over the count; None if nothing was counted."""
        return self.sum / self.count if self.count else None


@attrs.frozen(kw_only=True)
class CounterBoardResult:
    """All counters by name, and how many events the board should have had and did not get."""

    counters: dict[str, CounterTotals]
    missed: int


@attrs.define
class _Place:
    """What one source told of one counter."""

    rank: int
    role: str
    at_ns: int = 0
    count: int = 0
    sum: float = 0.0
    latest: dict[str, float] = attrs.field(factory=dict)


@attrs.define
class _Line:
    """One counter."""

    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    sketch: Sketch | None = None
    places: dict[str, _Place] = attrs.field(factory=dict)


class CounterBoard:
    """
    Keeps each counter's totals and latest window, for each source and merged.

    Totals are taken from the cumulative figures that every window carries, so that a lost window costs nothing
    of them. If two collectors of a process watch the same counter, both sketches are merged: each value counts
    twice there, which leaves the quantiles as they are.
    """

    runs_on = PORTER

    def __init__(self) -> None:
        self.missed = 0
        self._lines: dict[str, _Line] = {}

    def __call__(self, event: Event) -> None:
        """Read *event* if it is a window of a counter."""
        if not isinstance(event, CounterWindow):
            return
        line = self._lines.setdefault(event.name, _Line())
        line.unit = max(line.unit, event.unit)  # of two spellings the same one, whichever source comes first
        place = self._place(line, event.source)
        if (event.total_count, event.end_ns) >= (place.count, place.at_ns):
            place.count, place.sum, place.at_ns = event.total_count, event.total_sum, event.end_ns
            if event.count:
                place.latest = dict(event.values)
        line.minimum = _extreme(min, line.minimum, event.values.get("min"))
        line.maximum = _extreme(max, line.maximum, event.values.get("max"))
        if event.sketch:
            sketch = Sketch.from_wire(event.sketch)
            if line.sketch is None:
                line.sketch = sketch
            else:
                line.sketch.merge(sketch)

    @staticmethod
    def _place(line: _Line, source: Source) -> _Place:
        place = line.places.get(source.id)
        if place is None:
            place = line.places[source.id] = _Place(source.rank, source.role)
        return place

    def miss(self, events: int) -> None:
        """Note that *events* of the stream did not get here."""
        self.missed += events

    def result(self) -> CounterBoardResult:
        """Return the board as it stands."""
        counters = {name: _totals(line) for name, line in sorted(self._lines.items())}
        return CounterBoardResult(counters=counters, missed=self.missed)

    def dump(self) -> dict[str, Any]:
        """Return the state as plain data."""
        lines = {}
        for name, line in sorted(self._lines.items()):
            plain = attrs.asdict(line, filter=lambda attribute, _: attribute.name != "sketch")
            plain["places"] = dict(sorted(plain["places"].items()))
            lines[name] = {**plain, "sketch": line.sketch.to_wire() if line.sketch is not None else b""}
        return {"lines": lines, "missed": self.missed}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take the state that `dump` returned."""
        self.missed = state["missed"]
        self._lines = {}
        for name, plain in state["lines"].items():
            rest = {key: value for key, value in plain.items() if key not in {"places", "sketch"}}
            places = {source_id: _Place(**place) for source_id, place in plain["places"].items()}
            sketch = Sketch.from_wire(plain["sketch"]) if plain["sketch"] else None
            self._lines[name] = _Line(**rest, places=places, sketch=sketch)


def _extreme(choose: Any, known: float | None, told: float | None) -> float | None:
    if known is None or told is None:
        return told if known is None else known
    return float(choose(known, told))


def _totals(line: _Line) -> CounterTotals:
    # In the order of the sources' ids, so that rounding does not depend on who came first.
    places = sorted(line.places.items())
    told = line.sketch.quantiles(_QUANTILES.values()) if line.sketch is not None else []
    quantiles = {name: value for name, value in zip(_QUANTILES, told, strict=False) if value is not None}
    return CounterTotals(
        unit=line.unit,
        count=sum(place.count for _, place in places),
        sum=math.fsum(place.sum for _, place in places),
        minimum=line.minimum,
        maximum=line.maximum,
        quantiles=quantiles,
        source_ids=[source_id for source_id, _ in places],
        ranks=[place.rank for _, place in places],
        roles=[place.role for _, place in places],
        counts=[place.count for _, place in places],
        sums=[place.sum for _, place in places],
        windows=[place.latest for _, place in places],
    )
