"""The current value of each metric of a job, over all of its processes, for a scrape of Prometheus."""

from __future__ import annotations

import bisect
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import attrs

from trackside.core.sketch import Sketch
from trackside.events import CounterWindow, Event, GoodputUpdated, Heartbeat, Source, SourceEnded, StragglerReport
from trackside.handlers.export._metric_catalogue import (
    CATALOGUE,
    DROPPED,
    LOSS_REASONS,
    RANK_DURATION,
    Labels,
    Metric,
    MetricPoint,
    MetricReader,
)

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000)
_MAX_RUNS: Final = 16
_MAX_METADATA: Final = 32
_LONGEST_LABEL: Final = 200
_STALE_NS: Final = 300 * 10**9
"""Five minutes: Prometheus itself drops a series from queries when it got no sample for that long."""
_NOT_IN_LABELS: Final = re.compile(r"[^A-Za-z0-9_]")
_QUANTILE: Final = re.compile(r"p(\d{2})")


class Histogram(NamedTuple):
    """Counts up to each bound, the last of which is infinity, and the sum."""

    counts: Sequence[int]
    total: float


class Series(NamedTuple):
    """One series of a family: the values of its labels, and its own."""

    labels: tuple[str, ...]
    value: float | Histogram


@attrs.frozen
class Family:
    """The series of one name; counters are named without their ``_total``."""

    name: str
    kind: Literal["gauge", "counter", "histogram", "summary"]
    description: str
    labels: tuple[str, ...]
    series: list[Series]


@attrs.define
class _LatestValue:
    """One series of a run: one value out of those of its processes."""

    labels: Labels
    value: float = 0.0
    """The gauge, the sum of a counter's increments, or the sum of a histogram."""
    rank: int | None = None
    """The rank whose value it is, if it is a gauge."""
    totals: dict[str, float] = attrs.field(factory=dict)
    """By source id, the total of a counter that each process counts by itself."""
    counts: list[int] = attrs.field(factory=list)
    """The counts of a histogram's buckets."""


@attrs.define
class _Instrument:
    """One counter, stat or gauge of the program, by its latest window of each process."""

    kind: str
    unit: str
    windows: dict[str, CounterWindow] = attrs.field(factory=dict)
    """By source id; for a gauge, the latest window in which it was set: it keeps its value until it is set again."""
    ended_count: int = 0
    """The totals of the processes that have ended; their windows are gone."""
    ended_sum: float = 0.0

    def add(self, window: CounterWindow) -> None:
        known = self.windows.get(window.source.id)
        if known is not None and (window.total_count, window.end_ns) < (known.total_count, known.end_ns):
            return
        if self.kind != "gauge" or window.values:
            self.windows[window.source.id] = window

    def end(self, source_id: str) -> None:
        window = self.windows.pop(source_id, None)
        if window is not None:
            self.ended_count += window.total_count
            self.ended_sum += window.total_sum

    @property
    def count(self) -> int:
        return self.ended_count + sum(window.total_count for window in self.windows.values())

    @property
    def sum(self) -> float:
        return self.ended_sum + sum(window.total_sum for window in self.windows.values())


@attrs.define
class _ProcessMetrics:
    source: Source
    heartbeat_ns: int = 0


@attrs.define
class _RunMetrics:
    """One run: its processes that have not ended, and the values of all of them together."""

    source: Source
    """The source that describes the run: the main process of the lowest rank, of the latest attempt."""
    newest_ns: int = 0
    processes: dict[str, _ProcessMetrics] = attrs.field(factory=dict)
    values: dict[str, dict[tuple[str, ...], _LatestValue]] = attrs.field(factory=dict)
    """By Prometheus name, the series."""
    instruments: dict[str, _Instrument] = attrs.field(factory=dict)
    goodput_from: dict[str, tuple[int, str]] = attrs.field(factory=dict)
    """By session, the number of ranks in the update that is shown, and its source's id."""


class JobMetrics:
    """
    Read events of any number of processes, and keep the current value of each metric.

    Beyond 16 runs, the first ones are dropped. A process that has ended, or that sent nothing for five minutes while
    others did, has totals and no current values.

    Args:
        per_rank: Whether each rank has series of its own, too.
        buckets_s: The upper bounds of the buckets of iterations' durations, rising.
        stats: Returns the counts of this process's bus, handler by handler.
    """

    def __init__(
        self,
        *,
        per_rank: bool = False,
        buckets_s: Sequence[float] = BUCKETS_S,
        stats: Callable[[], Any] | None = None,
    ) -> None:
        self.buckets_s: tuple[float, ...] = tuple(float(bound) for bound in buckets_s)
        self._per_rank = per_rank
        self._stats = stats
        self._lock = threading.Lock()
        self._metrics = MetricReader(per_rank=per_rank)
        self._runs: dict[str, _RunMetrics] = {}

    # --- writing: on the sink's thread -------------------------------------------------------------------------

    def add(self, event: Event) -> None:
        """Update the metrics that *event* changes."""
        source = event.source
        points = [point for point in self._metrics.read(event) if point.metric.prometheus]
        with self._lock:
            run = self._run_of(source)
            run.newest_ns = max(run.newest_ns, event.at_ns)
            if isinstance(event, SourceEnded):
                self._end(run, source.id)
                return
            process = run.processes.get(source.id)
            if process is None:
                self._end_predecessors(run, source)
                process = run.processes[source.id] = _ProcessMetrics(source)
            if isinstance(event, Heartbeat):
                process.heartbeat_ns = event.at_ns
            elif isinstance(event, CounterWindow):
                run.instruments.setdefault(event.name, _Instrument(event.kind, event.unit)).add(event)
            elif points and not self._replaces(event, run):
                return
            for point in points:
                self._update(run, source, point)

    def _run_of(self, source: Source) -> _RunMetrics:
        run = self._runs.get(source.run_id)
        if run is None:
            run = self._runs[source.run_id] = _RunMetrics(source)
            if len(self._runs) > _MAX_RUNS:
                del self._runs[next(iter(self._runs))]
        order = (run.source.role != "main", -run.source.attempt, run.source.rank)
        if (source.role != "main", -source.attempt, source.rank) < order:
            run.source = source
        return run

    def _end_predecessors(self, run: _RunMetrics, source: Source) -> None:
        """End the processes of the same rank in earlier attempts: a process that was killed did not report its end."""
        rank = (source.role, source.rank)
        for known in [process.source for process in run.processes.values()]:
            if (known.role, known.rank) == rank and known.role == "main" and known.attempt < source.attempt:
                self._end(run, known.id)

    def _end(self, run: _RunMetrics, source_id: str) -> None:
        run.processes.pop(source_id, None)
        self._metrics.forget(source_id)
        for instrument in run.instruments.values():
            instrument.end(source_id)
        for series in run.values.values():
            for one in series.values():
                one.value += one.totals.pop(source_id, 0)

    @staticmethod
    def _replaces(event: Event, run: _RunMetrics) -> bool:
        """Drop the series that *event* replaces as a whole; return whether *event* is used."""
        if isinstance(event, StragglerReport):
            for metric in _OF_SCORES:
                run.values.pop(metric.prometheus, None)
        elif isinstance(event, GoodputUpdated):
            ranks = len(event.ranks.get("rank", ()))
            known_ranks, known_id = run.goodput_from.get(event.session, (0, ""))
            if ranks < known_ranks and event.source.id != known_id:
                return False  # the source that knows more ranks is shown
            run.goodput_from[event.session] = ranks, event.source.id
            for metric in _OF_GOODPUT:
                series = run.values.get(metric.prometheus, {})
                for key in [key for key, one in series.items() if one.labels["session"] == event.session]:
                    del series[key]
        return True

    def _update(self, run: _RunMetrics, source: Source, point: MetricPoint) -> None:
        metric, value, labels = point
        if metric.kind == "histogram":
            self._observe(self._value(run, metric.prometheus, labels), value)
            if self._per_rank:
                rank = {"rank": source.rank, "host": source.host, **labels}
                self._observe(self._value(run, RANK_DURATION.prometheus, rank), value)
            return
        if metric.event is Heartbeat:
            labels = {"handler": "all", **labels}
        one = self._value(run, metric.prometheus, labels)
        if metric.kind == "counter":
            if metric.is_cumulative:
                one.totals[source.id] = value
            else:
                one.value += value
        elif metric.merge == "max":
            one.value = value if one.rank is None else max(one.value, value)
            one.rank = source.rank
        elif metric.merge == "latest" or one.rank is None or source.rank <= one.rank:
            one.value, one.rank = value, source.rank

    @staticmethod
    def _value(run: _RunMetrics, name: str, labels: Labels) -> _LatestValue:
        series = run.values.setdefault(name, {})
        key = _texts(labels)
        one = series.get(key)
        if one is None:
            one = series[key] = _LatestValue(labels)
        return one

    def _observe(self, one: _LatestValue, value: float) -> None:
        if not one.counts:
            one.counts = [0] * (len(self.buckets_s) + 1)
        one.counts[bisect.bisect_left(self.buckets_s, value)] += 1
        one.value += value

    # --- reading: on the thread that serves a scrape -----------------------------------------------------------

    def families(self) -> list[Family]:
        """Return the current metrics; families without series are left out."""
        found: dict[str, Family] = {}
        with self._lock:
            for name, run in self._runs.items():
                for family in self._of_run(run):
                    known = found.setdefault(
                        family.name, attrs.evolve(family, labels=("run", *family.labels), series=[])
                    )
                    known.series.extend(Series((name, *one.labels), one.value) for one in family.series)
            if self._runs:
                found["trackside_run_info"] = _info({name: run.source for name, run in self._runs.items()})
        if self._stats is not None:
            found[DROPPED.prometheus] = _of_handlers(self._stats())
        return [family for family in found.values() if family.series]

    def _of_run(self, run: _RunMetrics) -> Iterator[Family]:
        yield from self._of_catalogue(run)
        mains = [process for process in run.processes.values() if process.source.role == "main"]
        yield Family(
            "trackside_ranks", "gauge", "Ranks that were heard of and have not ended", (), [Series((), len(mains))]
        )
        beating = [process for process in mains if process.heartbeat_ns]
        if beating:
            oldest_s = min(process.heartbeat_ns for process in beating) / 1e9
            name, description = (
                "trackside_oldest_heartbeat_timestamp_seconds",
                "The oldest of the ranks' latest heartbeats",
            )
            yield Family(name, "gauge", description, (), [Series((), oldest_s)])
        if self._per_rank:
            name, description = "trackside_rank_heartbeat_timestamp_seconds", "The latest heartbeat of a rank"
            series = [Series((str(one.source.rank), one.source.host), one.heartbeat_ns / 1e9) for one in beating]
            yield Family(name, "gauge", description, ("rank", "host"), series)
        yield from _of_instruments(run, per_rank=self._per_rank)

    def _of_catalogue(self, run: _RunMetrics) -> Iterator[Family]:
        for name, series in run.values.items():
            metric = _BY_NAME[name]
            if not series or (metric is DROPPED and self._stats is not None):
                continue
            labels = tuple(next(iter(series.values())).labels)
            if metric.kind == "histogram":
                # The buckets of a rank would be twenty series, so it has only count and sum.
                kind: Any = "summary" if metric is RANK_DURATION else "histogram"
                values = [Series(key, Histogram(tuple(one.counts), one.value)) for key, one in series.items()]
            else:
                kind = metric.kind
                values = [Series(key, one.value + sum(one.totals.values())) for key, one in series.items()]
            yield Family(name, kind, metric.description, labels, values)


_BY_NAME: Final[Mapping[str, Metric]] = {metric.prometheus: metric for metric in CATALOGUE if metric.prometheus}
_OF_SCORES: Final = [metric for metric in _BY_NAME.values() if metric.event is StragglerReport]
_OF_GOODPUT: Final = [metric for metric in _BY_NAME.values() if metric.event is GoodputUpdated]


def _texts(labels: Labels) -> tuple[str, ...]:
    return tuple(str(value).lower() if isinstance(value, bool) else str(value) for value in labels.values())


def _series(values: Mapping[tuple[str, ...], float]) -> list[Series]:
    return [Series(labels, value) for labels, value in values.items()]


def _of_instruments(run: _RunMetrics, *, per_rank: bool) -> Iterator[Family]:
    """Yield the program's own instruments: totals of all processes, and current values of those that live."""
    sums: dict[tuple[str, ...], float] = {}
    stats: list[Series] = []
    windows: dict[tuple[str, ...], float] = {}
    gauges: dict[tuple[str, ...], float] = {}
    of_ranks: dict[tuple[str, ...], float] = {}
    for name, instrument in sorted(run.instruments.items()):
        key = (name, instrument.unit)
        current = [window for window in instrument.windows.values() if not _is_stale(window, run.newest_ns)]
        if instrument.kind == "counter":
            sums[key] = instrument.sum
        elif instrument.kind == "stat":
            stats.append(Series(key, Histogram((instrument.count,), instrument.sum)))
            windows |= {(*key, statistic): value for statistic, value in _merged(current).items()}
        elif values := {window.source: window.values["value"] for window in current if "value" in window.values}:
            column = list(values.values())
            gauges |= {
                (*key, "min"): min(column),
                (*key, "mean"): sum(column) / len(column),
                (*key, "max"): max(column),
            }
            if per_rank:
                of_ranks |= {(*key, str(source.rank), source.host): value for source, value in values.items()}
    labels = ("name", "unit")
    yield Family("trackside_counter", "counter", "Sums of the job's counters", labels, _series(sums))
    yield Family("trackside_stat", "summary", "Count and sum of all values recorded", labels, stats)
    description = "Statistics of the values recorded in the latest window"
    yield Family("trackside_stat_window", "gauge", description, (*labels, "stat"), _series(windows))
    yield Family("trackside_gauge", "gauge", "Current values, over the ranks", (*labels, "stat"), _series(gauges))
    description = "Current values of each rank"
    yield Family("trackside_rank_gauge", "gauge", description, (*labels, "rank", "host"), _series(of_ranks))


def _is_stale(window: CounterWindow, newest_ns: int) -> bool:
    return newest_ns - window.at_ns > max(_STALE_NS, 2 * (window.end_ns - window.start_ns))


def _merged(windows: Iterable[CounterWindow]) -> dict[str, float]:
    """Return the merged statistics of several processes' windows; windows without values are left out."""
    filled = sorted((window for window in windows if window.count), key=lambda window: window.end_ns)
    if len(filled) <= 1:
        return dict(filled[0].values) if filled else {}
    columns: dict[str, list[float]] = {}
    for window in filled:
        for statistic, value in window.values.items():
            columns.setdefault(statistic, []).append(value)
    complete = {statistic: column for statistic, column in columns.items() if len(column) == len(filled)}
    merged = {name: merge(complete[name]) for name, merge in _MERGES.items() if name in complete}
    if "mean" in complete:
        counts = [window.count for window in filled]
        weighted = (mean * count for mean, count in zip(complete["mean"], counts, strict=True))
        merged["mean"] = sum(weighted) / sum(counts)
    if all(window.sketch for window in filled):
        sketch = Sketch.from_wire(filled[0].sketch)
        for window in filled[1:]:
            sketch.merge(Sketch.from_wire(window.sketch))
        names = [name for name in complete if _QUANTILE.fullmatch(name)]
        quantiles = sketch.quantiles([int(name[1:]) / 100 for name in names])
        merged |= {name: value for name, value in zip(names, quantiles, strict=True) if value is not None}
    return merged


_MERGES: Final[Mapping[str, Callable[[list[float]], float]]] = {
    "count": sum,
    "sum": sum,
    "min": min,
    "max": max,
    "value": lambda column: column[-1],
}


def _info(sources: Mapping[str, Source]) -> Family:
    """Return a series of value 1 for each run, whose labels describe the run."""
    rows: list[dict[str, str]] = []
    for name, source in sources.items():
        row = {
            "run": name,
            "session": source.session_tag,
            "application": source.application,
            "perf_tags": ",".join(source.perf_tags),
            "baseline": str(source.baseline).lower(),
            "attempt": str(source.attempt),
            "world_size": str(source.world_size),
        }
        for key, value in list(source.metadata.items())[:_MAX_METADATA]:
            row.setdefault(f"metadata_{_NOT_IN_LABELS.sub('_', key)}"[:_LONGEST_LABEL], value)
        rows.append({key: value[:_LONGEST_LABEL] for key, value in row.items()})
    labels = tuple(dict.fromkeys(key for row in rows for key in row))
    series = [Series(tuple(row.get(label, "") for label in labels), 1) for row in rows]
    return Family("trackside_run_info", "gauge", "The tags and the metadata of a run", labels, series)


def _of_handlers(stats: Any) -> Family:
    """Return the losses of each handler of this process's bus."""
    losses: dict[tuple[str, ...], float] = {}
    for handler in stats.handlers:
        for reason in LOSS_REASONS:
            key = (handler.name, reason)
            losses[key] = losses.get(key, 0) + getattr(handler, reason)
    series = [Series(key, value) for key, value in losses.items()]
    return Family(DROPPED.prometheus, "counter", DROPPED.description, ("handler", "reason"), series)
