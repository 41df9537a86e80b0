"""What sinks into experiment trackers have in common: curves, what the run is, and how it ended, in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Literal

import attrs

from trackside.events import SIDING, Event, JobConfigured, Source, SourceEnded, TrainingConfigured, fields_of
from trackside.handlers._courier import Courier, RefusedError
from trackside.handlers._scalars import Point, Scalars

_IN_GOOD_ORDER: Final = frozenset(("closed", "exit", ""))
_POINT_BYTES: Final = 200
_MOST_RUNS: Final = 64


@attrs.frozen
class Told:
    """What one event has to say to a tracker."""

    kind: Literal["points", "description", "end"]
    source: Source
    at_ns: int
    points: Sequence[Point] = ()
    description: dict[str, Any] = attrs.field(factory=dict)
    failed: bool = False


class TrackerSink(ABC):
    """
    Tells an experiment tracker, through its own client, on a thread of its own; each process is a run of its own.

    What the tracker does not take waits and is tried again, in order; see `Courier`. What had to be given up is `lost`.

    Args:
        name: For the thread and for complaints.
        batch_items: Events that are handed over together, at most.
    """

    runs_on = SIDING

    def __init__(self, name: str, *, batch_items: int = 512) -> None:
        self._scalars = Scalars()
        self._runs: dict[str, Any] = {}
        self._latest: dict[str, Told] = {}
        """By source id, of those that have not ended."""
        self._sent = 0
        """How many of a batch that failed were delivered all the same, and need not be again."""
        self._courier: Courier[Told] = Courier(self._deliver, name=name, batch_items=batch_items)

    @property
    def lost(self) -> int:
        """Events that were taken and given up."""
        return self._courier.lost

    def losses(self) -> dict[str, int]:
        """Return how many events were given up, by reason."""
        return self._courier.losses()

    def __call__(self, event: Event) -> None:
        """Take what *event* says; on the siding's thread."""
        points = self._scalars.points(event)
        source = event.source
        if points:
            told = Told("points", source, event.at_ns, points)
        elif isinstance(event, (JobConfigured, TrainingConfigured)):
            told = Told("description", source, event.at_ns, description=fields_of(event))
        elif isinstance(event, SourceEnded):
            told = Told("end", source, event.at_ns, failed=event.reason not in _IN_GOOD_ORDER)
        elif source.id not in self._latest:
            told = Told("description", source, event.at_ns)  # the run begins with the process: that may take a while
        else:
            return
        if told.kind == "end":
            self._latest.pop(source.id, None)
        else:
            self._latest[source.id] = told
        if not self._courier.put(told, size_bytes=_POINT_BYTES * len(points)):
            self._courier.give_up(1, "no room")

    def flush(self, timeout_s: float) -> bool:
        """Hand over what waits; False if the tracker did not take it in time."""
        return self._courier.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Hand over what waits and end the runs; False if any event was lost."""
        for told in self._latest.values():
            self._courier.put(attrs.evolve(told, kind="end", points=(), description={}), events=0)
        self._latest.clear()
        return self._courier.close(timeout_s)

    # --- on the courier's thread -------------------------------------------------------------------------------

    def _deliver(self, batch: list[Told]) -> None:
        while self._sent < len(batch):
            group = self._group(batch)
            try:
                self._tell(group)
            except RefusedError as error:
                self._courier.give_up(len(group), error.reason)
            self._sent += len(group)
        self._confirm()
        self._sent = 0

    def _group(self, batch: Sequence[Told]) -> list[Told]:
        """Return what is handed over next: one thing, or points of several events."""
        first, *rest = batch[self._sent :]
        group = [first]
        for told in rest if first.kind == "points" else ():
            if told.kind != "points" or told.source.id != first.source.id or not self._goes_with(told, group):
                break
            group.append(told)
        return group

    def _tell(self, group: Sequence[Told]) -> None:
        first = group[0]
        source = first.source
        if first.kind == "end":
            if source.id in self._runs:
                self._end(self._runs[source.id], failed=first.failed)
                del self._runs[source.id]
            return
        if source.id not in self._runs:
            if len(self._runs) >= _MOST_RUNS:
                raise RefusedError(f"more than {_MOST_RUNS} processes at a time")
            self._runs[source.id] = self._begin(source)
        run = self._runs[source.id]
        if first.kind == "description" and first.description:
            self._describe(run, first.description)
        elif first.points:
            self._log(run, group)

    @abstractmethod
    def _goes_with(self, told: Told, group: Sequence[Told]) -> bool:
        """Return whether the points of *told* are handed over together with those of *group*."""

    @abstractmethod
    def _begin(self, source: Source) -> Any:
        """Return a run for *source*."""

    @abstractmethod
    def _describe(self, run: Any, description: dict[str, Any]) -> None:
        """Say of *run* what is known of it."""

    @abstractmethod
    def _log(self, run: Any, group: Sequence[Told]) -> None:
        """Hand over the points of *group*."""

    def _confirm(self) -> None:  # noqa: B027  most clients return when the other side has it
        """Make sure that the other side has what the client took; raise if not."""

    @abstractmethod
    def _end(self, run: Any, *, failed: bool) -> None:
        """End *run*."""


def run_name(source: Source) -> str:
    """Return what a process's run is called."""
    name = f"{source.run_id} rank {source.rank} attempt {source.attempt}".strip()
    return name if source.role == "main" else f"{name} {source.role} {source.pid}"


def identity(source: Source) -> dict[str, Any]:
    """Return what is known of *source* and may be looked for, by name."""
    told = {
        "source": source.id,
        "run_id": source.run_id,
        "session_tag": source.session_tag,
        "perf_tags": ", ".join(source.perf_tags),
        "attempt": source.attempt,
        "rank": source.rank,
        "local_rank": source.local_rank,
        "world_size": source.world_size,
        "role": source.role,
        "host": source.host,
        "application": source.application,
    }
    return {f"trackside.{name}": value for name, value in told.items()}
