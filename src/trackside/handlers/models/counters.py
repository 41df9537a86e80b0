"""The counters of all sources: their latest windows and their totals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs
import cattrs

from trackside.core.sketch import Sketch
from trackside.events import CounterWindow, DecodeError, Event, RunsOn, Source
from trackside.handlers.models._model import VersionedModel
from trackside.wire import FrameView

_FIELDS: Final = ("kind", "unit", "total_count", "end_ns", "total_sum", "count", "values", "sketch")
_QUANTILES: Final = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


@attrs.frozen(kw_only=True)
class CounterTotals:
    """The totals of one counter over all sources; the lists are in the order of *source_ids*."""

    kind: str
    """The instrument: ``counter``, ``stat`` or ``gauge``."""
    unit: str
    count: int
    sum: float
    minimum: float | None
    """The least of the windows' minima; None if no window has one. The same holds for the maximum."""
    maximum: float | None
    quantiles: dict[str, float]
    """``p50``, ``p90``, ``p95``, ``p99`` within 1 %, over the windows that have a sketch; empty if none has."""
    source_ids: list[str]
    ranks: list[int]
    roles: list[str]
    counts: list[int]
    sums: list[float]
    windows: list[dict[str, float]]
    """The aggregations of each source's latest window that was not empty."""

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
class _OfSource:
    """One counter of one source."""

    rank: int
    role: str
    at_ns: int = 0
    count: int = 0
    sum: float = 0.0
    latest: dict[str, float] = attrs.field(factory=dict)


@attrs.define
class _Counter:
    """One counter of all sources."""

    kind: str = ""
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    sketch: Sketch | None = None
    sources: dict[str, _OfSource] = attrs.field(factory=dict)


class CounterBoard(VersionedModel):
    """
    Keeps each counter's totals and latest window, for each source and merged.

    Every window carries the totals of its process and job, so a lost window does not change them. If two collectors
    of a process read the same counter, both sketches are merged: each value then counts twice, which does not change
    the quantiles.
    """

    version = 1

    runs_on = RunsOn.DISPATCHER
    reads: ClassVar[tuple[type[Event], ...]] = (CounterWindow,)

    def __init__(self) -> None:
        self._counters: dict[str, _Counter] = {}

    def consume(self, frame: FrameView) -> None:
        """Read one frame, or a part of one, of one source."""
        for name, *window in frame.columns(CounterWindow).rows("name", *_FIELDS):
            counter = self._counters.get(name)
            if counter is None:
                counter = self._counters[name] = _Counter()
            _add(counter, frame.source, tuple(window))

    def result(self) -> CounterBoardResult:
        """Return the counters as they are known now."""
        counters = {name: _totals(counter) for name, counter in sorted(self._counters.items())}
        return CounterBoardResult(counters=counters, missed=self._missed)

    def _dump(self) -> dict[str, Any]:
        counters = {name: _converter.unstructure(counter) for name, counter in sorted(self._counters.items())}
        return {"counters": counters}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._counters = _converter.structure(state["counters"], dict[str, _Counter])


def _add(counter: _Counter, source: Source, window: tuple[Any, ...]) -> None:
    """Add one window of a counter, given as the values of `_FIELDS`."""
    kind, unit, total_count, end_ns, total_sum, count, values, sketch = window
    # If sources differ, the choice must not depend on which one came first.
    counter.kind, counter.unit = max(counter.kind, kind), max(counter.unit, unit)
    own = counter.sources.get(source.id)
    if own is None:
        own = counter.sources[source.id] = _OfSource(source.rank, source.role)
    elif source.run_id:  # a process may learn its rank late
        own.rank = source.rank
    if (total_count, end_ns) >= (own.count, own.at_ns):
        own.count, own.sum, own.at_ns = total_count, total_sum, end_ns
        if count:
            own.latest = dict(values)
    counter.minimum = _extreme(min, counter.minimum, values.get("min"))
    counter.maximum = _extreme(max, counter.maximum, values.get("max"))
    if sketch:
        try:
            decoded = Sketch.from_wire(sketch)
        except DecodeError:  # from a peer; its totals may still be right
            return
        if counter.sketch is None:
            counter.sketch = decoded
        else:
            counter.sketch.merge(decoded)


def _extreme(choose: Any, known: float | None, value: float | None) -> float | None:
    if known is None or value is None:
        return value if known is None else known
    return float(choose(known, value))


def _sum(values: list[float]) -> float:
    """Return the sum of *values*, some of which may be infinite, NaN or too large together."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # the sum is beyond the largest float, or of inf and -inf
        return float(sum(values))


def _totals(counter: _Counter) -> CounterTotals:
    # In the order of the sources' ids, so that rounding does not depend on which source came first.
    sources = sorted(counter.sources.items())
    found = counter.sketch.quantiles(_QUANTILES.values()) if counter.sketch is not None else []
    quantiles = {name: value for name, value in zip(_QUANTILES, found, strict=False) if value is not None}
    return CounterTotals(
        kind=counter.kind or "stat",
        unit=counter.unit,
        count=sum(own.count for _, own in sources),
        sum=_sum([own.sum for _, own in sources]),
        minimum=counter.minimum,
        maximum=counter.maximum,
        quantiles=quantiles,
        source_ids=[source_id for source_id, _ in sources],
        ranks=[own.rank for _, own in sources],
        roles=[own.role for _, own in sources],
        counts=[own.count for _, own in sources],
        sums=[own.sum for _, own in sources],
        windows=[own.latest for _, own in sources],
    )


_converter: Final = cattrs.Converter(detailed_validation=False, forbid_extra_keys=True)
_converter.register_unstructure_hook(Sketch, Sketch.to_wire)
_converter.register_structure_hook(Sketch, lambda data, _: Sketch.from_wire(data))
