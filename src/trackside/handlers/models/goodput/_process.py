"""One process of a session: its track, its open spans and steps, its first and last sign of life."""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterable, Iterator
from typing import Any, Final

import attrs

from trackside.events import Source
from trackside.handlers.models.goodput import _problems as problems
from trackside.handlers.models.goodput._archive import NO_STEP
from trackside.handlers.models.goodput._buckets import CUSTOM, FIRST_CUSTOM, KIND_SHIFT, STEP
from trackside.handlers.models.goodput._track import Track
from trackside.handlers.models.liveness import LifeSigns

NEVER: Final = -1
LATEST_NS: Final = 1 << 62
"""No time is this late: the year 2116."""


@attrs.frozen
class UnendedSpan:
    """A span that began and has not ended yet."""

    start: int
    kind: int
    parent_id: int


@attrs.frozen
class OpenStep:
    """A step that began and has not ended yet."""

    number: int
    start: int


class Process:
    """
    What is known of one process; `_reading` learns it from its events.

    Attributes:
        source: Who it is.
        start: When it began, in ns since the epoch; `NEVER` as long as nothing is known of it.
        last: Its last proven activity.
        version: Events that were read of it; it changes whenever anything else does.
        next_seq: The lowest number that its next event can have.
        end_reason: Why it ended, as it said; None if it did not end.
        heartbeat_interval_ns: As its heartbeats say; None if there was none.
        track: What its training thread did.
        beside: What it loaded in the background.
        open_spans: By id.
        customs: The types of its custom badput, in order of appearance.
        first_step: The lowest step it trained from; `NO_STEP` if it trained none.
        laps: How often its steps began anew without a checkpoint being loaded.
        restored_step: The step of the last checkpoint it loaded; `NO_STEP` if it said none.
        is_restored: Whether it loaded a checkpoint since its last step.
        started_step: The number of the step that it said has begun.
        started_at: When that was; `NEVER` if it ended since.
        started_restored: Whether a checkpoint was loaded between it and the step before.
        seen_open: The step or the loading that its last heartbeat was within.
        last_iteration_id: Of the last iteration that ended.
        trains_in: The thread of its training loop; None if that is the main one.
        slices: Time, active, total and available slices at each change.
        problems: What was wrong with its events, and how often.
    """

    __slots__ = (
        "_places",
        "beside",
        "customs",
        "end_reason",
        "first_step",
        "heartbeat_interval_ns",
        "is_restored",
        "laps",
        "last",
        "last_iteration_id",
        "next_seq",
        "open_spans",
        "problems",
        "restored_step",
        "seen_open",
        "slices",
        "source",
        "start",
        "started_at",
        "started_restored",
        "started_step",
        "track",
        "trains_in",
        "version",
    )

    def __init__(self, source: Source) -> None:
        self.source = source
        self.start = self.last = NEVER
        self.version = self.next_seq = 0
        self.end_reason: str | None = None
        self.heartbeat_interval_ns: int | None = None
        self.track, self.beside = Track(), Track()
        self.open_spans: dict[int, UnendedSpan] = {}
        self.customs: list[str] = []
        self._places: dict[str, int] = {}
        self.first_step = self.restored_step = NO_STEP
        self.laps = 0
        self.is_restored = False
        self.started_step, self.started_at, self.started_restored = NO_STEP, NEVER, False
        self.seen_open: OpenStep | UnendedSpan | None = None
        self.last_iteration_id = 0
        self.trains_in: str | None = None
        self.slices: list[tuple[int, int, int, int]] = []
        self.problems: collections.Counter[str] = collections.Counter()

    @property
    def has_ended(self) -> bool:
        """Whether it said that it was done."""
        return self.end_reason is not None

    @property
    def signs(self) -> LifeSigns:
        """What is known of its life, for `liveness`."""
        return LifeSigns(
            last_ns=None if self.last == NEVER else self.last,
            heartbeat_interval_ns=self.heartbeat_interval_ns,
            end_reason=self.end_reason,
        )

    @property
    def is_main(self) -> bool:
        """Whether it is a rank, and not a helper of one."""
        return self.source.role == "main"

    @property
    def open_step(self) -> OpenStep | None:
        """The step in progress, as far as is known."""
        if self.started_at != NEVER:
            return OpenStep(self.started_step, self.started_at)
        return self.seen_open if isinstance(self.seen_open, OpenStep) else None

    def opened(self) -> list[UnendedSpan]:
        """Return the spans in progress, the latest first."""
        found = list(self.open_spans.values())
        if isinstance(self.seen_open, UnendedSpan):
            found.append(self.seen_open)
        return sorted(found, key=lambda span: -span.start)

    def begin_by(self, start: int) -> None:
        """Note that it was there at *start*."""
        self.start = min(self.start, start)

    def stretch(self, end: int, duration: int) -> int | None:
        """Return the start of what ended at *end*, or None if that cannot be."""
        start = operator.index(end - duration)
        if duration < 0 or start <= 0:
            self.problems[problems.IMPOSSIBLE_TIME] += 1
            return None
        return start

    def custom(self, name: str) -> int:
        """Return the kind that custom badput of type *name* is."""
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = len(self.customs)
            self.customs.append(name)
        return FIRST_CUSTOM + place

    def end_children(self, span_id: int, at_ns: int) -> None:
        """Close what is still open within a span that ended: its end was lost."""
        if span_id:
            self.close([number for number, span in self.open_spans.items() if span.parent_id == span_id], at_ns)

    def close(self, numbers: Iterable[int], at_ns: int) -> None:
        """Close spans whose end was lost."""
        for number in numbers:
            span = self.open_spans.pop(number)
            self.problems[problems.NO_END] += 1
            if span.start < at_ns:
                self.track.add(span.start, at_ns, span.kind << KIND_SHIFT)

    def end_step(self, number: int, start: int, end: int, flags: int) -> None:
        """Note that a step ended whose start and end are known; -1 for the number if that is not."""
        if self.started_at != NEVER:
            self.is_restored = self.is_restored or self.started_restored
            self.started_at = NEVER
        if start < end:
            self.complete(self.track.last_step + 1 if number < 0 else number, start, end, flags)

    def complete(self, number: int, start: int, end: int, flags: int) -> None:
        """Add a step that has ended."""
        track = self.track
        number, start, end = operator.index(number), operator.index(start), operator.index(end)
        self.seen_open = None
        if self.first_step == NO_STEP:
            self.first_step = number
        if start >= track.step_end:
            if number < track.last_step + self.is_restored:
                self._go_back(number, start)
            track.add_step(number, start, end, flags)
        elif end > track.step_end:
            self.problems[problems.OVERLAPPING_STEPS] += 1
            track.add_step(number if number > track.last_step else None, track.step_end, end, flags)
        else:
            self.problems[problems.OUT_OF_ORDER] += 1
            track.add_late_step(number, start, end, flags)
        self.is_restored = False

    def _go_back(self, number: int, start: int) -> None:
        """Train from a lower step on: from a checkpoint, or because the steps are counted anew, as in each epoch."""
        if self.is_restored:
            self.track.mark_redone_from(number)
            if not self.laps:
                self.first_step = min(self.first_step, number)
        else:
            self.problems[problems.COUNTED_ANEW] += 1
            self.laps += 1
            self.track.lap_start = start
            self.track.last_step = NO_STEP

    def mend(self) -> None:
        """Drop what was kept of an event with values of the wrong type."""
        self.problems[problems.MALFORMED] += 1
        self.track.mend()
        self.beside.mend()

    def dump(self) -> dict[str, Any]:
        """Return what is known as plain data."""
        seen = self.seen_open
        return {
            "source": self.source.to_wire(),
            "times": [self.start, self.last],
            "events": [self.version, self.next_seq],
            "tracks": [self.track.dump(), self.beside.dump()],
            "open_spans": [[number, *attrs.astuple(span)] for number, span in self.open_spans.items()],
            "life": [self.end_reason, self.heartbeat_interval_ns],
            "flags": [self.is_restored, self.started_restored],
            "steps": [self.first_step, self.laps, self.restored_step, self.last_iteration_id],
            "started": [self.started_step, self.started_at],
            "seen_open": None if seen is None else [isinstance(seen, OpenStep), *attrs.astuple(seen)],
            "trains_in": self.trains_in,
            "customs": list(self.customs),
            "slices": [list(change) for change in self.slices],
            "problems": [list(item) for item in self.problems.items()],
        }

    @classmethod
    def load(cls, data: Any) -> Process:
        """
        Return the process that `dump` wrote.

        Raises:
            ValueError: if *data* is anything else; so may whatever comes of values of other types.
        """
        process = cls(Source.from_wire(data["source"]))
        process.start, process.last = map(operator.index, data["times"])
        process.version, process.next_seq = map(operator.index, data["events"])
        reason, interval_ns = data["life"]
        process.end_reason = None if reason is None else str(reason)
        process.heartbeat_interval_ns = None if interval_ns is None else operator.index(interval_ns)
        process.is_restored, process.started_restored = map(bool, data["flags"])
        process.track, process.beside = map(Track.load, data["tracks"])
        process.first_step, process.laps, process.restored_step, process.last_iteration_id = map(
            operator.index, data["steps"]
        )
        process.started_step, process.started_at = map(operator.index, data["started"])
        for name in data["customs"]:
            process.custom(str(name))
        process.open_spans = {
            operator.index(number): UnendedSpan(*map(operator.index, span)) for number, *span in data["open_spans"]
        }
        if data["seen_open"] is not None:
            is_step, *seen = data["seen_open"]
            process.seen_open = (OpenStep if is_step else UnendedSpan)(*map(operator.index, seen))
        process.trains_in = None if data["trains_in"] is None else str(data["trains_in"])
        process.slices = [tuple(map(operator.index, change)) for change in data["slices"]]  # type: ignore[misc]
        process.problems.update({str(name): operator.index(count) for name, count in data["problems"]})
        if not all(map(process._knows, process._kinds())):
            raise ValueError("a kind of time that there is none of")
        return process

    def _kinds(self) -> Iterator[int]:
        yield from self.track.kinds()
        yield from self.beside.kinds()
        yield from (span.kind for span in self.opened())

    def _knows(self, kind: int) -> bool:
        return FIRST_CUSTOM <= kind < FIRST_CUSTOM + len(self.customs) or (0 <= kind <= STEP and kind != CUSTOM)
