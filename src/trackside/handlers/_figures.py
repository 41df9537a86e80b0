"""What events say in numbers, under names for OpenTelemetry: our small vocabulary, where there is no convention."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from trackside.events import (
    CheckpointMetricsUpdated,
    CounterWindow,
    Event,
    GoodputUpdated,
    Heartbeat,
    IterationEnded,
    ProductiveWorkSaved,
    StragglerReport,
    TestingMetricsUpdated,
    TrainingMetricsUpdated,
    ValidationMetricsUpdated,
    fields_of,
)
from trackside.handlers._scoreboard import Scoreboard

WORST: Final = 8
"""Ranks that are told of one by one, however many there are."""

_UPDATES: Final[dict[type[Event], str]] = {
    TrainingMetricsUpdated: "trackside.training",
    ValidationMetricsUpdated: "trackside.validation",
    TestingMetricsUpdated: "trackside.testing",
    CheckpointMetricsUpdated: "trackside.checkpoint",
    ProductiveWorkSaved: "trackside.saved_work",
}
_LOSSES: Final = ("shed", "failed", "invalid", "suppressed")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_.\-/]")


class Figure(NamedTuple):
    """A number, and what it is."""

    name: str
    kind: Literal["gauge", "histogram", "count", "change"]
    """Of a ``count``, which only rises, and of a ``change``, what is to be added."""
    unit: str
    """In UCUM's words: ``s``, ``By``, ``1``, ``{event}``."""
    value: float
    attributes: dict[str, str | int | bool]


TELLS: Final = (IterationEnded, CounterWindow, Heartbeat, GoodputUpdated, StragglerReport, *_UPDATES)
"""Events that are made of numbers."""


class Figures:
    """Reads the events of one process."""

    def __init__(self) -> None:
        self._scores = Scoreboard()
        self._totals: dict[tuple[str, str], float] = {}

    def read(self, event: Event) -> Iterator[Figure]:
        """Yield what *event* says in numbers."""
        if isinstance(event, IterationEnded):
            yield from _of_iteration(event)
        elif isinstance(event, CounterWindow):
            yield from self._of_counter(event)
        elif isinstance(event, Heartbeat):
            for reason in _LOSSES:
                if reason in event.counts:
                    dropped = self._more("dropped", reason, event.counts[reason])
                    yield Figure("trackside.events.dropped", "count", "{event}", dropped, _named({"reason": reason}))
        elif isinstance(event, GoodputUpdated):
            yield from _of_goodput(event)
        elif isinstance(event, StragglerReport):
            if self._scores.read(event):
                yield from _of_scores(self._scores)
        elif type(event) in _UPDATES:
            yield from _of_update(event, _UPDATES[type(event)])

    def _of_counter(self, event: CounterWindow) -> Iterator[Figure]:
        name = _UNFIT.sub("_", event.name)
        name = name if name[:1].isalpha() else f"counter.{name}"
        unit = event.unit if event.unit.isascii() else ""
        for aggregation, value in event.values.items():
            yield _gauge(name, unit, value, aggregation=aggregation)
        yield Figure(f"{name}.sum", "change", unit, self._more("sum", name, event.total_sum), {})
        yield Figure(f"{name}.count", "count", "1", self._more("count", name, event.total_count), {})

    def _more(self, what: str, name: str, total: float) -> float:
        """Return by how much *total* is more than the last time; nothing of a count that fell."""
        before = self._totals.get((what, name), 0)
        if what != "sum" and total < before:
            return 0
        self._totals[what, name] = total
        return total - before


def _gauge(name: str, unit: str, value: float, **attributes: str | int | bool) -> Figure:
    return Figure(name, "gauge", unit, value, _named(attributes))


def _named(attributes: dict[str, Any]) -> dict[str, str | int | bool]:
    return {f"trackside.{name}": value for name, value in attributes.items()}


def _of_iteration(event: IterationEnded) -> Iterator[Figure]:
    where = _named({"loop": event.kind})
    outcome = _named({"loop": event.kind, "failed": event.failed})
    yield Figure("trackside.iteration.duration", "histogram", "s", event.duration_ns / 1e9, outcome)
    if event.failed:
        return
    for what, amount in (("sample", event.samples), ("token", event.tokens)):
        if amount is not None:
            yield Figure(f"trackside.iteration.{what}s", "count", f"{{{what}}}", amount, where)
    if event.loss is not None:
        yield Figure("trackside.iteration.loss", "gauge", "1", event.loss, where)


def _of_goodput(event: GoodputUpdated) -> Iterator[Figure]:
    if event.goodput is not None:
        yield _gauge("trackside.goodput.ratio", "1", event.goodput)
    yield _gauge("trackside.goodput.elapsed", "s", event.elapsed_s)
    yield _gauge("trackside.goodput.productive", "s", event.productive_s)
    yield _gauge("trackside.goodput.disruptions", "{disruption}", event.disruptions)
    for bucket, spent in flat_badput(event.badput_s):
        yield _gauge("trackside.badput", "s", spent, bucket=bucket)


def flat_badput(badput_s: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield bucket and seconds; custom badput as ``CUSTOM_BADPUT_EVENTS.<TYPE>``."""
    for bucket, spent in badput_s.items():
        if isinstance(spent, dict):
            for kind, seconds in spent.items():
                yield f"{bucket}.{kind}", seconds
        else:
            yield bucket, spent


def _of_scores(board: Scoreboard) -> Iterator[Figure]:
    for kind, section, stat, score in board.stats():
        yield _gauge("trackside.straggler.score", "1", score, kind=kind, section=section, stat=stat)
    for place, worst in enumerate(board.worst(WORST), start=1):
        # By place, so that the ranks that are named can change and the number of series cannot.
        yield _gauge("trackside.straggler.worst.score", "1", worst.score, place=place)
        yield _gauge("trackside.straggler.worst.rank", "1", worst.rank, place=place)


def _of_update(event: Event, prefix: str) -> Iterator[Figure]:
    for name, value in fields_of(event).items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield _gauge(f"{prefix}.{name}", "s" if name.endswith("_sec") else "1", value)
