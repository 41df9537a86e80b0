"""The metric catalogue: each number in an event with its name, unit and kind in every system it is exported to."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import attrs

from trackside.events import (
    CheckpointMetricsUpdated,
    CounterWindow,
    Event,
    GoodputUpdated,
    Heartbeat,
    IterationEnded,
    ProductiveWorkSaved,
    SpanEnded,
    StragglerReport,
    TestingMetricsUpdated,
    TrainingMetricsUpdated,
    TrainingWindowUpdated,
    ValidationMetricsUpdated,
    own_fields,
)
from trackside.handlers.models.scores._window import unpacked, unpacked_numbers

Kind: TypeAlias = Literal["gauge", "counter", "up_down_counter", "histogram"]
Labels: TypeAlias = dict[str, "str | int | bool"]

WORST_RANKS: Final = 8
"""The number of ranks whose scores are exported one by one, in a job of any size."""
LOSS_REASONS: Final = ("failed", "invalid", "suspended", "dropped")
"""The counts of a handler, and of a heartbeat, that are losses."""

NS_PER_S: Final = 10**9
NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.\-/]")
"""Characters that OpenTelemetry and trackers do not accept in a name."""
_UNIT: Final = re.compile(r"[ -~]{0,63}")
"""The units that OpenTelemetry accepts."""


@attrs.frozen(kw_only=True, eq=False)
class Metric:
    """One row of the catalogue. An empty name means that the system does not get this metric."""

    event: type[Event]
    field: str
    """The event's field; a field that is a mapping has a point for each entry."""
    name: str = ""
    """The name in OpenTelemetry."""
    kind: Kind = "gauge"
    unit: str = "1"
    """A UCUM unit: ``s``, ``By``, ``1``, ``{event}``."""
    prometheus: str = ""
    """The name in Prometheus, without the ``_total`` of counters."""
    curve: str = ""
    """The tag in TensorBoard, W&B and MLflow; ``{label}`` stands for the value of a label."""
    description: str = ""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    """For each label, the event's field that holds its value."""
    entry: str = ""
    """The label for the key of an entry, if the field is a mapping."""
    entries: tuple[str, ...] = ()
    """The keys to export; all if empty."""
    divisor: int = 1
    """The number of the field's units that make one *unit*."""
    curve_scale: float = 1
    """The factor applied on the curve: 100 for values that ml-goodput draws in percent."""
    curve_relative_to: str = ""
    """The event's field that the value is divided by on the curve."""
    is_cumulative: bool = False
    """Whether a counter's value is the total since its process began; otherwise it is an increment."""
    even_if_failed: bool = False
    """Whether a failed iteration has this metric."""
    merge: Literal["latest", "lowest_rank", "max"] = "latest"
    """The choice of the process whose value of a gauge represents a job of several processes."""
    per_rank: bool = False
    """Whether there is a series for each rank, which Prometheus exports on request only."""


class MetricPoint(NamedTuple):
    """One value of one metric."""

    metric: Metric
    value: float
    labels: Labels


_LOOP: Final = {"loop": "kind"}
_SESSION: Final = {"session": "session"}

_ITERATION: Final = functools.partial(Metric, event=IterationEnded, labels=_LOOP)
_GOODPUT: Final = functools.partial(Metric, event=GoodputUpdated, labels=_SESSION)

SCORE: Final = Metric(
    event=StragglerReport,
    field="scores",
    name="trackside.straggler.score",
    prometheus="trackside_straggler_score",
    curve="score/{kind}/{section}/{stat}",
    description="Scores over all ranks: the lowest, the 5th and the 50th percentile",
)
WORST_SCORE_BY_PLACE: Final = Metric(event=StragglerReport, field="scores", name="trackside.straggler.worst.score")
WORST_RANK_BY_PLACE: Final = Metric(event=StragglerReport, field="ranks", name="trackside.straggler.worst.rank")
WORST_SCORE: Final = Metric(
    event=StragglerReport,
    field="scores",
    prometheus="trackside_straggler_worst_score",
    description="The lowest scores, of the worst ranks",
)
STRAGGLER_LOST: Final = Metric(
    event=StragglerReport,
    field="stragglers",
    unit="s",
    prometheus="trackside_straggler_lost_seconds",
    description="The time by which a step would be shorter if a straggler were as fast as its reference",
)
RANK_SCORE: Final = Metric(
    event=StragglerReport,
    field="scores",
    prometheus="trackside_rank_straggler_score",
    description="The scores of each rank",
    per_rank=True,
)
RANK_GOODPUT: Final = _GOODPUT(
    field="ranks",
    prometheus="trackside_rank_goodput_ratio",
    description="The productive share of a rank's time",
    per_rank=True,
)
RANK_DURATION: Final = _ITERATION(
    field="duration_ns",
    kind="histogram",
    unit="s",
    prometheus="trackside_rank_step_duration_seconds",
    description="Durations of a rank's iterations",
    per_rank=True,
)
DROPPED: Final = Metric(
    event=Heartbeat,
    field="counts",
    entry="reason",
    entries=(*LOSS_REASONS, "suppressed"),
    name="trackside.events.dropped",
    kind="counter",
    unit="{event}",
    prometheus="trackside_dropped",
    description="Events that a handler did not get and will not get",
    is_cumulative=True,
)
WINDOW_GOODPUT: Final = _GOODPUT(field="windows", curve="goodput/window_{length_s}_s", curve_scale=100)

_ROWS: Final = (
    _ITERATION(
        field="duration_ns",
        divisor=NS_PER_S,
        name="trackside.iteration.duration",
        kind="histogram",
        unit="s",
        prometheus="trackside_step_duration_seconds",
        curve="duration_s/{span}",
        description="Durations of iterations",
        labels={**_LOOP, "failed": "failed"},
        even_if_failed=True,
    ),
    _ITERATION(
        field="samples",
        name="trackside.iteration.samples",
        kind="counter",
        unit="{sample}",
        prometheus="trackside_samples",
        curve="{span}/samples",
        description="Samples processed, of all ranks",
    ),
    _ITERATION(
        field="tokens",
        name="trackside.iteration.tokens",
        kind="counter",
        unit="{token}",
        prometheus="trackside_tokens",
        curve="{span}/tokens",
        description="Tokens processed, of all ranks",
    ),
    _ITERATION(field="flops", curve="{span}/flops"),
    _ITERATION(field="loss", name="trackside.iteration.loss", curve="{span}/loss"),
    _ITERATION(
        field="step",
        name="trackside.iteration.step",
        unit="{step}",
        prometheus="trackside_last_step",
        description="The furthest step completed",
        merge="max",
    ),
    Metric(
        event=SpanEnded,
        field="duration_ns",
        divisor=NS_PER_S,
        unit="s",
        curve="duration_s/{name}",
        labels={"name": "name"},
    ),
    DROPPED,
    _GOODPUT(
        field="goodput",
        name="trackside.goodput.ratio",
        prometheus="trackside_goodput_ratio",
        curve="goodput/goodput",
        curve_scale=100,
        description="The productive share of the time",
    ),
    _GOODPUT(
        field="effective_goodput",
        name="trackside.goodput.effective_ratio",
        prometheus="trackside_effective_goodput_ratio",
        curve="goodput/effective_goodput",
        curve_scale=100,
        description="The productive share of the time, with no step counted for more than the ideal step time",
    ),
    _GOODPUT(
        field="elapsed_s",
        name="trackside.goodput.elapsed",
        unit="s",
        prometheus="trackside_elapsed_seconds",
        curve="goodput/elapsed_s",
        description="The time since the session began",
    ),
    _GOODPUT(
        field="productive_s",
        name="trackside.goodput.productive",
        unit="s",
        prometheus="trackside_productive_seconds",
        description="The productive part of the time",
    ),
    _GOODPUT(
        field="disruptions",
        name="trackside.goodput.disruptions",
        unit="{disruption}",
        prometheus="trackside_disruptions",
        curve="goodput/disruptions",
        description="Attempts after the first",
    ),
    _GOODPUT(field="attempts", unit="{attempt}", curve="goodput/attempts"),
    _GOODPUT(
        field="badput_s",
        entry="bucket",
        name="trackside.badput",
        unit="s",
        prometheus="trackside_badput_seconds",
        curve="badput/{bucket}",
        curve_scale=100,
        curve_relative_to="elapsed_s",
        description="Time that was not productive, by bucket",
    ),
    _GOODPUT(
        field="informational_s",
        entry="bucket",
        unit="s",
        curve="badput/{bucket}",
        curve_scale=100,
        curve_relative_to="elapsed_s",
    ),
    _GOODPUT(field="step_time", entry="statistic", unit="s", curve="step_time/{statistic}"),
)

_OF_UPDATES: Final = {
    TrainingMetricsUpdated: "training",
    TrainingWindowUpdated: "training_window",
    ValidationMetricsUpdated: "validation",
    TestingMetricsUpdated: "testing",
    CheckpointMetricsUpdated: "checkpoint",
    ProductiveWorkSaved: "saved_work",
}
"""For each event whose fields are One Logger's metrics, the prefix of the names of these metrics."""
_UPDATES_IN_PROMETHEUS: Final[dict[tuple[type[Event], str], tuple[str, str]]] = {
    (TrainingMetricsUpdated, "latest_loss"): ("trackside_loss", "The latest training loss"),
    **{
        (cls, field): (f"trackside_{infix}{name}", f"{description}, {when}")
        for cls, infix, when in (
            (TrainingMetricsUpdated, "", "over the job so far"),
            (TrainingWindowUpdated, "window_", "over the latest iterations"),
        )
        for field, name, description in (
            ("avg_tokens_per_second", "tokens_per_second", "Tokens of all ranks, per second of iteration"),
            ("train_throughput_per_gpu", "teraflops_per_gpu", "10^12 floating-point operations per second"),
            ("mfu", "mfu_ratio", "Model FLOPs utilization"),
        )
    },
}
"""By event and field: the name in Prometheus, and its description."""


def _of_update(cls: type[Event], prefix: str) -> Iterator[Metric]:
    for field in own_fields(cls):
        prometheus, description = _UPDATES_IN_PROMETHEUS.get((cls, field), ("", ""))
        yield Metric(
            event=cls,
            field=field,
            name=f"trackside.{prefix}.{field}",
            unit="s" if field.endswith("_sec") else "1",
            prometheus=prometheus,
            curve=f"{prefix}/{field}",
            description=description,
            merge="lowest_rank",
        )


_COMPUTED: Final = (
    SCORE,
    WORST_SCORE_BY_PLACE,
    WORST_RANK_BY_PLACE,
    WORST_SCORE,
    STRAGGLER_LOST,
    RANK_SCORE,
    RANK_DURATION,
    RANK_GOODPUT,
    WINDOW_GOODPUT,
)
"""Rows whose points are not the value of a field."""

CATALOGUE: Final[tuple[Metric, ...]] = (
    *_ROWS,
    *_COMPUTED,
    *(metric for cls, prefix in _OF_UPDATES.items() for metric in _of_update(cls, prefix)),
)
"""All metrics except those of the program's own counters, stats and gauges, which are named by the program."""

METRIC_EVENTS: Final = (*dict.fromkeys(metric.event for metric in CATALOGUE if metric.name), CounterWindow)
"""The event types whose numbers are OpenTelemetry metrics."""


class MetricReader:
    """
    Read the metric points of events, of any number of processes.

    Args:
        per_rank: Whether to yield the metrics that have a series for each rank.
    """

    def __init__(self, *, per_rank: bool = False) -> None:
        self._per_rank = per_rank
        self._rows: dict[type[Event], tuple[Metric, ...]] = {}
        self._scores: dict[str, ScoreSummary] = {}
        """By the id of the source that reports them."""

    def read(self, event: Event) -> Iterator[MetricPoint]:
        """Yield the points of *event*; none for most types."""
        if isinstance(event, CounterWindow):
            yield from _of_window(event)
            return
        cls = type(event)
        rows = self._rows.get(cls)
        if rows is None:
            rows = self._rows[cls] = tuple(
                metric for metric in CATALOGUE if issubclass(cls, metric.event) and metric not in _COMPUTED
            )
        for metric in rows:
            yield from _of_field(event, metric)
        if isinstance(event, StragglerReport):
            yield from self._of_scores(event)
        elif isinstance(event, GoodputUpdated):
            for length_s, goodput in _columns(event.windows, "length_s", "goodput"):
                yield MetricPoint(WINDOW_GOODPUT, goodput, {"session": event.session, "length_s": f"{length_s:g}"})
            for rank, goodput in _columns(event.ranks, "rank", "goodput") if self._per_rank else ():
                yield MetricPoint(RANK_GOODPUT, goodput, {"session": event.session, "rank": rank})

    def forget(self, source_id: str) -> None:
        """Drop the state of a process that has ended."""
        self._scores.pop(source_id, None)

    def _of_scores(self, report: StragglerReport) -> Iterator[MetricPoint]:
        summary = self._scores.setdefault(report.source.id, ScoreSummary())
        if not summary.add(report):
            return
        for kind, section, stat, score in summary.statistics():
            yield MetricPoint(SCORE, score, {"kind": kind, "section": section, "stat": stat})
        for place, worst in enumerate(summary.worst(WORST_RANKS), start=1):
            # By place, so that OpenTelemetry's series stay the same when other ranks become the worst.
            yield MetricPoint(WORST_SCORE_BY_PLACE, worst.score, {"place": place})
            yield MetricPoint(WORST_RANK_BY_PLACE, worst.rank, {"place": place})
            yield _of_rank(WORST_SCORE, worst)
        yield from (_of_rank(STRAGGLER_LOST, straggler) for straggler in summary.stragglers[:WORST_RANKS])
        if self._per_rank:
            yield from (_of_rank(RANK_SCORE, rank_score) for rank_score in summary.scores)


def _of_rank(metric: Metric, one: RankScore) -> MetricPoint:
    labels: Labels = {"kind": one.kind, "section": one.section, "rank": one.rank, "host": one.host}
    return MetricPoint(metric, one.score, labels)


def _columns(table: Mapping[str, Sequence[Any]], key: str, value: str) -> Iterator[tuple[Any, float]]:
    """Yield two columns of *table* row by row, without the rows whose *value* is not a number."""
    return (row for row in zip(table.get(key, ()), table.get(value, ()), strict=False) if is_number(row[1]))


def is_number(value: Any) -> bool:
    """Return whether *value* is a number, NaN and the infinities included."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _of_field(event: Event, metric: Metric) -> Iterator[MetricPoint]:
    value = getattr(event, metric.field)
    if value is None or (getattr(event, "failed", False) and not metric.even_if_failed):
        return
    labels: Labels = {label: getattr(event, field) for label, field in metric.labels.items()}
    if not metric.entry:
        if is_number(value):
            yield MetricPoint(metric, value if metric.divisor == 1 else value / metric.divisor, labels)
        return
    for key, entry in flat_badput(value):
        if is_number(entry) and (not metric.entries or key in metric.entries):
            yield MetricPoint(metric, entry, {**labels, metric.entry: key})


class _InstrumentMetrics(NamedTuple):
    """The metrics of one counter, stat or gauge of the program."""

    statistic: Metric
    """A statistic of the window's values."""
    value: Metric | None = None
    """The latest value, of a gauge."""
    total_sum: Metric | None = None
    total_count: Metric | None = None


def _of_window(window: CounterWindow) -> Iterator[MetricPoint]:
    """Yield the statistics of a window, and the totals since the process began."""
    metrics = _instrument_metrics(window.kind, window.name, window.unit)
    for name, figure in window.values.items():
        if name == "value" and metrics.value is not None:
            yield MetricPoint(metrics.value, figure, {})
        else:
            yield MetricPoint(metrics.statistic, figure, {"aggregation": name})
    if metrics.total_sum is not None:
        yield MetricPoint(metrics.total_sum, window.total_sum, {})
    if metrics.total_count is not None:
        yield MetricPoint(metrics.total_count, window.total_count, {})


@functools.lru_cache(maxsize=4_096)
def _instrument_metrics(kind: str, name: str, unit: str) -> _InstrumentMetrics:
    fitting = NOT_IN_NAMES.sub("_", name)
    fitting = fitting if fitting[:1].isalpha() else f"counter.{fitting}"
    unit = unit if _UNIT.fullmatch(unit) else ""
    curve = f"{kind}/{name}".replace("{", "{{").replace("}", "}}")
    metric = functools.partial(Metric, event=CounterWindow, unit=unit)
    statistic = functools.partial(metric, field="values", entry="aggregation", curve=f"{curve}/{{aggregation}}")
    if kind == "gauge":
        return _InstrumentMetrics(
            statistic(name=f"{fitting}.statistic"), metric(field="values", name=fitting, curve=curve)
        )
    total = functools.partial(metric, field="total_sum", is_cumulative=True)
    if kind == "counter":
        return _InstrumentMetrics(statistic(), None, total(name=fitting, kind="counter", curve=f"{curve}/total"))
    count = metric(
        field="total_count",
        name=f"{fitting}.count",
        kind="counter",
        unit="1",
        curve=f"{curve}/total_count",
        is_cumulative=True,
    )
    total_sum = total(name=f"{fitting}.sum", kind="up_down_counter", curve=f"{curve}/total_sum")
    return _InstrumentMetrics(statistic(name=fitting), None, total_sum, count)


def flat_badput(badput_s: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield each bucket and its seconds; custom badput as ``CUSTOM_BADPUT_EVENTS.TYPE``."""
    for bucket, spent in badput_s.items():
        if isinstance(spent, dict):
            for kind, seconds in spent.items():
                yield f"{bucket}.{kind}", seconds
        else:
            yield bucket, spent


_SHARES: Final = {"min": 0.0, "p05": 0.05, "p50": 0.5}
"""The statistics of a column of scores, and the share of the ranks below each."""


class RankScore(NamedTuple):
    """One rank's score for one section, or for its GPU."""

    kind: str
    """``relative`` or ``individual``."""
    section: str
    """The section's name, or ``gpu``."""
    rank: int
    host: str
    score: float


@attrs.define
class _ScoredWindow:
    attempt: int
    window: int
    revision: int
    parts: int
    by_part: dict[int, StragglerReport] = attrs.field(factory=dict)


class ScoreSummary:
    """Keep the scores and the stragglers of the latest complete window of one process's reports."""

    def __init__(self) -> None:
        self.scores: list[RankScore] = []
        self.stragglers: list[RankScore] = []
        """Those that lose most first, each with the seconds that it loses in a step, in place of a score."""
        self._incomplete: _ScoredWindow | None = None

    def add(self, report: StragglerReport) -> bool:
        """Add one part of a report; return whether its window is complete now."""
        key = (report.attempt, report.window, report.revision, report.parts)
        window = self._incomplete
        if window is None or (window.attempt, window.window, window.revision, window.parts) != key:
            window = self._incomplete = _ScoredWindow(*key)
        window.by_part[report.part] = report
        if len(window.by_part) < window.parts:
            return False
        parts = [part for _, part in sorted(window.by_part.items())]
        self.scores = [score for part in parts for score in _scores_of(part)]
        found = (straggler for part in parts for straggler in _stragglers_of(part))
        self.stragglers = sorted(found, key=lambda one: -one.score)
        self._incomplete = None
        return True

    def statistics(self) -> Iterator[tuple[str, str, str, float]]:
        """Yield kind, section, ``min``, ``p05`` or ``p50``, and that score: always a rank's, never interpolated."""
        columns: dict[tuple[str, str], list[float]] = {}
        for rank_score in self.scores:
            columns.setdefault((rank_score.kind, rank_score.section), []).append(rank_score.score)
        for (kind, section), values in columns.items():
            values.sort()
            for name, share in _SHARES.items():
                yield kind, section, name, values[max(0, math.ceil(share * len(values)) - 1)]

    def worst(self, count: int) -> list[RankScore]:
        """Return the *count* ranks with the lowest scores, each by its lowest one; the worst first."""
        lowest: dict[int, RankScore] = {}
        for rank_score in self.scores:
            known = lowest.get(rank_score.rank)
            if known is None or rank_score.score < known.score:
                lowest[rank_score.rank] = rank_score
        return sorted(lowest.values(), key=lambda one: (one.score, one.rank))[:count]


def _scores_of(report: StragglerReport) -> Iterator[RankScore]:
    columns = [column.partition(" ") for column in report.columns]
    scores = iter(unpacked(report.scores))
    for rank, node in zip(unpacked_numbers(report.ranks), unpacked_numbers(report.node_of), strict=True):
        for kind, _, column in columns:
            score = next(scores)
            if not math.isnan(score):
                yield RankScore(kind, column.removeprefix("section "), rank, report.nodes[node], score)


_STRAGGLER_COLUMNS: Final = 5


def _stragglers_of(report: StragglerReport) -> Iterator[RankScore]:
    for rank, node, column, _, lost_s, *_ in (row for row in report.stragglers if len(row) >= _STRAGGLER_COLUMNS):
        kind, _, section = str(column).partition(" ")
        if is_number(lost_s):
            yield RankScore(kind, section.removeprefix("section "), rank, str(node), lost_s)
