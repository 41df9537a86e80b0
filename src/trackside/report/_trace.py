"""A session as a trace that Perfetto opens: a process for each rank, all of them on one clock."""

from __future__ import annotations

import heapq
import json
import math
import os
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Final

import attrs

from trackside.events import (
    LIFECYCLE,
    ClockAnchored,
    CounterWindow,
    Event,
    Heartbeat,
    IterationEnded,
    Source,
    SourceStarted,
    SpanEnded,
    SpanEventAdded,
    SpanStarted,
    UnreadableError,
    span_names,
)
from trackside.handlers import replay
from trackside.report._build import Progress, choose
from trackside.report._gather import LEVELS
from trackside.wire import fields_of, wire_name_of

_MOST_DRIFT: Final = 1e-3
"""A larger change, relative to the time it took, is not drift: the wall clock was set."""
_MOST_STEPS: Final = 1_024
_FEWEST_STEPS: Final = 20
_LEAST_APART_NS: Final = 10_000_000
"""Ranks end their steps some milliseconds apart; only a larger distance is attributed to their clocks."""
_SPREADS: Final = 10
_LARGE_UNCERTAINTY_NS: Final = 1_000_000

CLOCK, STEPS, NONE = "clock", "steps", "none"


@attrs.define(eq=False)
class Readings:
    """The clock readings and the ends of steps that one process recorded."""

    source: Source
    anchors: list[tuple[int, int]] = attrs.field(factory=list)
    """Pairs of ``at_ns`` and the time by which the wall clock was ahead of it."""
    uncertainty_ns: int = 0
    first_ns: int | None = None
    """The earliest time of its events, starts of spans included."""
    ends_ns: dict[int, int] = attrs.field(factory=dict)
    """By step number, the times when training steps ended; only steps whose number is a multiple of `stride`."""
    stride: int = 1

    def add(self, event: ClockAnchored | IterationEnded) -> None:
        """Add one event."""
        if isinstance(event, ClockAnchored):
            self.anchors.append((event.wall_ns - event.offset_ns, event.offset_ns))
            self.uncertainty_ns = max(self.uncertainty_ns, event.uncertainty_ns)
        elif event.kind == "training" and event.step >= 0 and not event.step % self.stride:
            self.ends_ns[event.step] = event.at_ns
            if len(self.ends_ns) > _MOST_STEPS:
                # A power of two, so that the same steps are kept for all ranks.
                self.stride *= 2
                self.ends_ns = {step: at for step, at in self.ends_ns.items() if not step % self.stride}


@attrs.define(eq=False)
class Alignment:
    """The conversion of one process's times to the common time."""

    by: str
    """``clock``, ``steps``, or ``none`` if its clock's relation to the others' is not known."""
    note: str = ""
    """A remark on its clock; empty if there is nothing to say."""
    _times: list[int] = attrs.field(factory=list)
    _offsets: list[int] = attrs.field(factory=list)
    _apart_ns: float = 0.0
    _drift: float = 0.0
    _origin_ns: int = 0

    def apply(self, at_ns: int) -> int:
        """Return *at_ns* of the process in the common time, in ns since the epoch."""
        wall_ns = at_ns + self.offset_ns(at_ns)
        return wall_ns + self.apart_ns(wall_ns)

    def offset_ns(self, at_ns: int) -> int:
        """Return how far the wall clock was ahead at *at_ns*, interpolated or extrapolated from two readings."""
        times = self._times
        if not times:
            return 0
        if len(times) == 1:
            return self._offsets[0]
        place = min(max(bisect_right(times, at_ns) - 1, 0), len(times) - 2)
        before, after = self._offsets[place], self._offsets[place + 1]
        share = (at_ns - times[place]) / (times[place + 1] - times[place])
        return before + round((after - before) * share)

    def apart_ns(self, wall_ns: int) -> int:
        """Return how far the machine's wall clock is behind the others'."""
        return round(self._apart_ns + self._drift * (wall_ns - self._origin_ns))


def align(readings: Iterable[Readings]) -> dict[str, Alignment]:
    """
    Return, for each source, the conversion of its times to the common time.

    A process's time starts with the wall clock's and continues with the monotonic clock, so the readings of
    `ClockAnchored` convert it to the wall clock's again. If the machines' wall clocks disagree, the steps show it,
    because ranks that train together end each step together. If the ends of a rank's steps stay at a nearly constant
    distance from the first rank's, its times are moved by that distance, drift included.
    """
    known = sorted(readings, key=lambda one: (one.source.role != "main", one.source.attempt, one.source.rank))
    found: dict[str, Alignment] = {}
    first: dict[tuple[str, int], Readings] = {}
    for one in known:
        alignment = found[one.source.id] = _by_clock(one)
        place = one.source.run_id, one.source.attempt
        if one.source.role != "main" or not one.ends_ns:
            continue
        reference = first.setdefault(place, one)
        if reference is not one:
            _by_steps(one, alignment, reference, found[reference.source.id])
    _follow_parents(known, found)
    return found


def _by_clock(one: Readings) -> Alignment:
    anchors = sorted(one.anchors)
    if not anchors:
        return Alignment(by=NONE)
    times, offsets, carried = [anchors[-1][0]], [anchors[-1][1]], 0
    for (at_ns, offset_ns), (next_at_ns, next_offset_ns) in reversed(list(pairwise(anchors))):
        if next_at_ns <= at_ns:
            continue
        if abs(next_offset_ns - offset_ns) > _MOST_DRIFT * (next_at_ns - at_ns):
            carried += next_offset_ns - offset_ns  # the clock was set: it had been wrong until then
        times.append(at_ns)
        offsets.append(offset_ns + carried)
    note = ""
    if one.uncertainty_ns > _LARGE_UNCERTAINTY_NS:
        note = f"clock known to {one.uncertainty_ns / 1e6:.1f} ms"
    return Alignment(by=CLOCK, note=note, times=times[::-1], offsets=offsets[::-1])


def _by_steps(one: Readings, own: Alignment, reference: Readings, theirs: Alignment) -> None:
    """Move *own* by the distance of its steps from the reference's, if the clocks are the cause."""
    if own.by == theirs.by == CLOCK and one.source.host == reference.source.host != "":
        return  # one machine has one wall clock: the steps themselves are apart
    pairs = [
        (own.apply(at_ns), theirs.apply(reference.ends_ns[step]))
        for step, at_ns in one.ends_ns.items()
        if step in reference.ends_ns
    ]
    if len(pairs) < _FEWEST_STEPS:
        return
    origin = pairs[0][0]
    drift, apart = statistics.linear_regression(
        [wall - origin for wall, _ in pairs], [there - wall for wall, there in pairs]
    )
    left = [abs(there - wall - apart - drift * (wall - origin)) for wall, there in pairs]
    spread = statistics.median(left)
    middle = abs(apart + drift * (pairs[len(pairs) // 2][0] - origin))
    ends = max(abs(apart), abs(apart + drift * (pairs[-1][0] - origin)), middle)
    if own.by == CLOCK and ends < max(_LEAST_APART_NS, _SPREADS * spread):
        return
    # If ranks do not wait for each other, the distance between them varies.
    if spread > max(_LEAST_APART_NS, ends / _SPREADS) or abs(drift) > _MOST_DRIFT:
        return
    own._apart_ns, own._drift, own._origin_ns = apart, drift, origin  # noqa: SLF001  built here
    if own.by == CLOCK:
        own.note = f"its machine's clock is {-apart / 1e9:+.3f} s off; aligned by steps"
    else:
        own.note = "aligned by steps"
    own.by = STEPS


def _follow_parents(known: Iterable[Readings], found: Mapping[str, Alignment]) -> None:
    """Give workers that read no clock the alignment of the process that started them, which is on the same machine."""
    for one in known:
        parent = one.source.parent
        own = found[one.source.id]
        if own.by == NONE and parent is not None and parent.source_id in found:
            theirs = found[parent.source_id]
            own.by, own.note = theirs.by, theirs.note
            own._times, own._offsets = theirs._times, theirs._offsets  # noqa: SLF001  built here
            own._apart_ns, own._drift = theirs._apart_ns, theirs._drift  # noqa: SLF001
            own._origin_ns = theirs._origin_ns  # noqa: SLF001


_FIRST_PID: Final = 1_000_000
_PER_FILE: Final = 1_000
_EPOCH_US: Final = 1e14
"""Times below this, in µs, are not since the epoch, but relative to a time that the file must give."""
_LATEST_US: Final = 1e16
"""A time in the year 2286: later ones are invalid. A file may hold numbers of any size, ``Infinity`` and ``NaN``."""
_FLOWS: Final = frozenset("stf")


@attrs.frozen
class Profile:
    """One file of a profiler."""

    path: str
    rank: int | None
    base_ns: int
    events: list[dict[str, Any]]

    @property
    def first_ns(self) -> int:
        """The time of its earliest slice, in ns since the epoch; 0 if it has none."""
        times = [event["ts"] for event in self.events if event.get("ph") == "X"]
        return self.base_ns + round(min(times) * 1000) if times else 0


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """
    Read a profiler's trace.

    Raises:
        UnreadableError: It cannot be read, is not a profiler's trace, or does not hold the time of its recording.
    """
    name, wanted = str(path), "give a trace that torch.profiler exported"
    try:
        data = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise UnreadableError(name, str(error.strerror), "see that it can be read") from error
    except (ValueError, RecursionError) as error:
        raise UnreadableError(name, f"is no JSON: {error}", wanted) from error
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise UnreadableError(name, "holds no traceEvents", wanted)
    sound = [event for event in events if isinstance(event, dict) and _is_sound(event)]
    base_ns = data.get("baseTimeNanoseconds")
    base_ns = base_ns if isinstance(base_ns, int) and 0 <= base_ns < _LATEST_US * 1000 else 0
    if not base_ns and any(event["ts"] < _EPOCH_US for event in sound if event.get("ph") == "X"):
        raise UnreadableError(name, "does not say when it was: it has no baseTimeNanoseconds", wanted)
    about = data.get("distributedInfo")
    rank = about.get("rank") if isinstance(about, dict) else None
    return Profile(name, rank if isinstance(rank, int) else None, base_ns, sound)


def _is_sound(event: dict[str, Any]) -> bool:
    at_us, phase = event.get("ts"), event.get("ph")
    if not isinstance(phase, str):
        return False
    if at_us is None:
        return phase == "M" and "ts" not in event
    return isinstance(at_us, (int, float)) and -_LATEST_US < at_us < _LATEST_US


def merge_profile(
    profile: Profile,
    number: int,
    alignment: Alignment | None,
    microseconds: Callable[[int], float],
    put: Callable[[dict[str, Any]], None],
) -> None:
    """
    Write the events of *profile*, in processes of their own.

    Args:
        profile: The file to write.
        number: The index of the file, from 0.
        alignment: The alignment of its rank: the profiler's times are the wall clock's.
        microseconds: Converts ns since the epoch to the trace's times.
        put: Writes one event.
    """
    pids: dict[Any, int] = {}
    who = f"rank {profile.rank}" if profile.rank is not None else Path(profile.path).name
    for event in profile.events:
        pid = event.get("pid", 0)
        pid = pid if isinstance(pid, (int, str)) else repr(pid)
        if pid not in pids:
            pids[pid] = _FIRST_PID + number * _PER_FILE + len(pids)
            put(
                {
                    "ph": "M",
                    "name": "process_name",
                    "pid": pids[pid],
                    "tid": 0,
                    "args": {"name": f"{who} · profiler {pid}"},
                }
            )
        if event.get("ph") == "M" and event.get("name") == "process_name":
            continue
        moved = {**event, "pid": pids[pid]}
        if "ts" in event:
            wall_ns = profile.base_ns + round(event["ts"] * 1000)
            moved["ts"] = microseconds(wall_ns + (alignment.apart_ns(wall_ns) if alignment is not None else 0))
        if event.get("ph") in _FLOWS:
            moved["id"] = f"{number}:{event.get('id')}"
        try:
            put(moved)
        except ValueError:  # it has a number that JSON cannot represent
            continue


MAIN_THREAD: Final = "main"
_SLACK_NS: Final = 50_000
"""A span and the spans within it read the clock one after the other, so their bounds may overlap by this much."""
_MOST_FIELDS: Final = 8
_MOST_TEXT: Final = 200
_SILENT: Final = (Heartbeat, ClockAnchored, SourceStarted)


@attrs.define(eq=False)
class Slice:
    """A span or an iteration, from its start to its end."""

    id: int
    parent_id: int
    name: str
    start_ns: int
    end_ns: int
    thread: str
    step: int
    details: dict[str, Any]


@attrs.define
class Shown:
    """The part of a trace that shows one process."""

    slices: list[Slice] = attrs.field(factory=list)
    points: list[tuple[int, str, dict[str, Any]]] = attrs.field(factory=list)
    figures: list[tuple[int, str, str, float]] = attrs.field(factory=list)
    """The values of counters: time, name, unit and value."""


def shown_of(batches: Iterable[Sequence[Event]], steps: range | None) -> Shown:
    """
    Return the part of a trace that shows one process.

    Args:
        batches: The events of the process.
        steps: Show only the time from the first to the last of these; all unless given.
    """
    found = Shown()
    opened: dict[int, SpanStarted] = {}
    last_ns = 0
    for event in (event for batch in batches for event in batch):
        last_ns = max(last_ns, event.at_ns)
        if isinstance(event, SpanStarted):
            opened[event.span_id] = event
            continue
        if isinstance(event, SpanEnded):
            opened.pop(event.span_id, None)
        if steps is not None and event.step >= 0 and event.step not in steps and not _is_long(event):
            continue
        _show(event, found)
    for start in opened.values():
        thread = str(start.attributes.get(span_names.THREAD, MAIN_THREAD))
        details = {"open": "it had not ended when the process was last heard of"}
        found.slices.append(
            Slice(start.span_id, start.parent_span_id, start.name, start.at_ns, last_ns, thread, start.step, details)
        )
    _clamp(found.slices)
    return found if steps is None else _around(found, steps)


def _is_long(event: Event) -> bool:
    return isinstance(event, SpanEnded) and event.name in span_names.LONG


def _show(event: Event, found: Shown) -> None:
    if isinstance(event, IterationEnded):
        details = {"loss": event.loss} if event.loss is not None else {}
        if event.failed:
            details["failed"] = True
        name = span_names.OF_ITERATION.get(event.kind, event.kind)
        start_ns = event.at_ns - event.duration_ns
        found.slices.append(
            Slice(event.span_id, event.parent_span_id, name, start_ns, event.at_ns, MAIN_THREAD, event.step, details)
        )
    elif isinstance(event, SpanEnded):
        details = {name: _plain(value) for name, value in list(event.attributes.items())[:_MOST_FIELDS]}
        thread = str(details.pop(span_names.THREAD, MAIN_THREAD))
        if event.error is not None:
            details["error"] = _plain(f"{event.error.get('type', '')}: {event.error.get('message', '')}")
        start_ns = event.at_ns - event.duration_ns
        found.slices.append(
            Slice(event.span_id, event.parent_span_id, event.name, start_ns, event.at_ns, thread, event.step, details)
        )
    elif isinstance(event, CounterWindow):
        level = next((event.values[name] for name in LEVELS if name in event.values), None)
        if level is not None:
            found.figures.append((event.end_ns, event.name, event.unit or "value", level))
    elif isinstance(event, SpanEventAdded):
        fields = {name: _plain(value) for name, value in event.attributes.items()}
        found.points.append((event.at_ns, event.name, fields))
    elif type(event).priority is LIFECYCLE and not type(event).derived and not isinstance(event, _SILENT):
        fields = {name: _plain(value) for name, value in list(fields_of(event).items())[:_MOST_FIELDS]}
        found.points.append((event.at_ns, wire_name_of(event), fields))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)[:_MOST_TEXT]


def _clamp(slices: Sequence[Slice]) -> None:
    """Cut slices that begin before or end after their parent by at most `_SLACK_NS` to the parent's bounds."""
    by_id = {one.id: one for one in slices if one.id}
    for one in slices:
        parent = by_id.get(one.parent_id)
        if parent is None or parent is one:
            continue
        if 0 < parent.start_ns - one.start_ns <= _SLACK_NS:
            one.start_ns = parent.start_ns
        if 0 < one.end_ns - parent.end_ns <= _SLACK_NS:
            one.end_ns = parent.end_ns


def _around(found: Shown, steps: range) -> Shown:
    """Return the part of *found* within the time of *steps*; longer slices are cut to it."""
    own = [one for one in found.slices if one.name == span_names.TRAINING_ITERATION and one.step in steps]
    if not own:
        return Shown()
    start_ns, end_ns = min(one.start_ns for one in own), max(one.end_ns for one in own)
    kept = Shown()
    for one in found.slices:
        if one.start_ns < end_ns and one.end_ns > start_ns:
            if one.start_ns < start_ns or one.end_ns > end_ns:
                one.details = {**one.details, "cut": "it is longer than what is shown"}
                one.start_ns, one.end_ns = max(one.start_ns, start_ns), min(one.end_ns, end_ns)
            kept.slices.append(one)
    kept.points = [point for point in found.points if start_ns <= point[0] <= end_ns]
    kept.figures = [figure for figure in found.figures if start_ns <= figure[0] <= end_ns]
    return kept


def lanes(slices: Sequence[Slice]) -> Iterator[tuple[str, int, list[Slice]]]:
    """
    Yield the slices of each thread in lanes: the slices of a lane nest, and are ordered by time.

    Yields:
        The thread, the number of the lane from 0, and its slices.
    """
    threads: dict[str, list[Slice]] = {}
    for one in sorted(slices, key=lambda one: (one.start_ns, -one.end_ns)):
        threads.setdefault(one.thread, []).append(one)
    for thread in sorted(threads, key=lambda name: (name != MAIN_THREAD, name)):
        left, number = threads[thread], 0
        while left and number < _NESTED_LANES:
            lane, left = _nesting(left)
            yield thread, number, lane
            number += 1
        for place, lane in enumerate(_apart(left), start=number):
            yield thread, place, lane


def _nesting(slices: Sequence[Slice]) -> tuple[list[Slice], list[Slice]]:
    lane: list[Slice] = []
    left: list[Slice] = []
    ends: list[int] = []
    for one in slices:
        while ends and ends[-1] <= one.start_ns:
            ends.pop()
        if ends and one.end_ns > ends[-1]:
            left.append(one)
        else:
            ends.append(one.end_ns)
            lane.append(one)
    return lane, left


def _apart(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Return the *slices* in lanes without overlaps: finding out how they nest would take too long."""
    found: list[list[Slice]] = []
    ends: list[tuple[int, int]] = []
    for one in slices:
        if ends and ends[0][0] <= one.start_ns:
            _, number = heapq.heappop(ends)
        else:
            number = len(found)
            found.append([])
        found[number].append(one)
        heapq.heappush(ends, (one.end_ns, number))
    return found


_NESTED_LANES: Final = 64
"""The most lanes of a thread in which slices may nest; no real program needs more."""
_WORKERS: Final = 100_000
"""The number of the first worker's process in the trace; a rank may have many workers."""
_PER_BLOCK: Final = 1_000
_LONG: Final = (SpanEnded, IterationEnded)
"""Events whose time is the end of their duration."""


@attrs.define
class Traced:
    """The result of writing a trace."""

    events: int = 0
    ranks: int = 0
    unaligned: list[int] = attrs.field(factory=list)
    """Ranks whose clocks have no known relation to the others'; they are marked in the trace."""
    notes: dict[int, str] = attrs.field(factory=dict)
    """Remarks on ranks' clocks, by rank."""
    merged: int = 0
    """The number of profiler files that were merged."""
    problems: list[UnreadableError] = attrs.field(factory=list)
    missing: int = 0
    """The number of events that are known to be missing from the files."""
    damaged_bytes: int = 0
    """The number of bytes of the files that were passed over."""


class _TraceFile:
    """A trace that is written event by event."""

    def __init__(self, out: IO[str], base_ns: int) -> None:
        self._out = out
        self._base_ns = base_ns
        self._block: list[str] = []
        self._is_empty = True
        self.events = 0
        """The number of events written so far, without the names of processes and threads."""
        out.write(f'{{"displayTimeUnit":"ms","baseTimeNanoseconds":{base_ns},"traceEvents":[\n')

    def microseconds(self, at_ns: int) -> float:
        """Return *at_ns* as a time of the trace: in µs since its base time."""
        return (at_ns - self._base_ns) / 1000

    def put(self, event: dict[str, Any]) -> None:
        """Write one event."""
        # Perfetto does not decode escapes in the name of a process.
        text = json.dumps(event, separators=(",", ":"), allow_nan=False, default=str, ensure_ascii=False)
        self._block.append(text if self._is_empty else f",\n{text}")
        self._is_empty = False
        self.events += event["ph"] != "M"
        if len(self._block) >= _PER_BLOCK:
            self._flush()

    def name(self, kind: str, pid: int, value: object, tid: int = 0) -> None:
        """Write the name or the sort position of a process or a thread."""
        key = "sort_index" if kind.endswith("sort_index") else "name"
        self.put({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {key: value}})

    def _flush(self) -> None:
        self._out.write("".join(self._block))
        self._block = []

    def finish(self) -> None:
        """Write the remaining events and the end."""
        self._flush()
        self._out.write("\n]}\n")


def write_trace(
    out: IO[str],
    *paths: str | os.PathLike[str],
    session: str | None = None,
    steps: range | None = None,
    ranks: Callable[[int], bool] | None = None,
    merge: Sequence[str | os.PathLike[str]] = (),
    progress: Progress | None = None,
) -> Traced:
    """
    Write a trace in Chrome's JSON format.

    Args:
        out: The file to write to.
        paths: Log files, or directories with log files at any depth.
        session: Its tag or, without one, its run id; the session that started last unless given.
        steps: Show only the time from the first to the last of these; all unless given.
        ranks: Returns whether a rank is to be shown; all are unless given.
        merge: Traces of torch.profiler (Kineto) of the same run, to be shown beside it.
        progress: Called with the progress of reading.

    Raises:
        UnreadableError: There is nothing to read, or a file in *merge* is not such a trace.
        ConfigError: There is no such session.
    """
    clocks = _read_clocks(choose(replay(*paths), session).sources)
    aligned = align(clocks.values())
    starts = [aligned[one.source.id].apply(one.first_ns) for one in clocks.values() if one.first_ns is not None]
    profiles = [load_profile(path) for path in merge]
    base_ns = min([*starts, *(profile.first_ns for profile in profiles if profile.first_ns)], default=0)
    traced = Traced()
    file = _TraceFile(out, base_ns)
    recorded = replay(*paths)
    chosen = [
        (source, batches)
        for source, batches in choose(recorded, session).sources
        if ranks is None or ranks(source.rank)
    ]
    pids: dict[str, int] = {}
    for place, (source, batches) in enumerate(chosen):
        pid = source.rank if source.role == "main" else _WORKERS + len(pids)
        pids[source.id] = pid
        alignment = aligned[source.id]
        _name(file, source, pid, alignment, traced)
        _write(file, pid, shown_of(batches, steps), alignment)
        if progress is not None:
            progress(place + 1, len(chosen), file.events)
    traced.ranks = len({source.rank for source, _ in chosen if source.role == "main"})
    first = {one.source.rank: aligned[one.source.id] for one in clocks.values() if one.source.role == "main"}
    for number, profile in enumerate(profiles):
        merge_profile(profile, number, first.get(profile.rank or 0), file.microseconds, file.put)
        traced.merged += 1
    file.finish()
    traced.events = file.events
    traced.problems = recorded.problems
    traced.missing = recorded.missing
    traced.damaged_bytes = recorded.damaged_bytes
    return traced


def _read_clocks(sources: Iterable[tuple[Source, Iterable[Sequence[Event]]]]) -> dict[str, Readings]:
    found: dict[str, Readings] = {}
    for source, batches in sources:
        own = found[source.id] = Readings(source)
        for batch in batches:
            for event in batch:
                kind = event.__class__
                # Times are not in order: the start of a source may be recorded after the start of its first spans.
                began_ns = event.at_ns - event.duration_ns if isinstance(event, _LONG) else event.at_ns
                if own.first_ns is None or began_ns < own.first_ns:
                    own.first_ns = began_ns
                if kind is IterationEnded or kind is ClockAnchored:
                    own.add(event)  # type: ignore[arg-type]
    return found


def _name(file: _TraceFile, source: Source, pid: int, alignment: Alignment, traced: Traced) -> None:
    role = "" if source.role == "main" else f" {source.role} {source.pid}"
    name = f"rank {source.rank}{role} · {source.host}"
    if alignment.by == NONE:
        name += " · CLOCK NOT ALIGNED"
        if source.role == "main" and source.rank not in traced.unaligned:
            traced.unaligned.append(source.rank)
    elif alignment.note:
        name += f" · {alignment.note}"
        traced.notes[source.rank] = alignment.note
    file.name("process_name", pid, name)
    file.name("process_sort_index", pid, source.rank)


def _write(file: _TraceFile, pid: int, shown: Shown, alignment: Alignment) -> None:
    place, ts = alignment.apply, file.microseconds
    for tid, (thread, number, lane) in enumerate(lanes(shown.slices), 1):
        file.name("thread_name", pid, thread if not number else f"{thread} (overlapping {number})", tid)
        for one in lane:
            start, end = ts(place(one.start_ns)), ts(place(one.end_ns))
            args = {"step": one.step, **one.details} if one.step >= 0 else one.details
            event = {"ph": "X", "pid": pid, "tid": tid, "ts": start, "dur": round(end - start, 3), "name": one.name}
            file.put({**event, "args": _finite(args)} if args else event)
    for at_ns, name, fields in shown.points:
        point = {"ph": "i", "s": "p", "pid": pid, "tid": 1, "ts": ts(place(at_ns)), "name": name}
        file.put({**point, "args": _finite(fields)})
    for at_ns, name, unit, value in shown.figures:
        figure = {"ph": "C", "pid": pid, "tid": 0, "ts": ts(place(at_ns)), "name": name}
        file.put({**figure, "args": _finite({unit: value})})


def _finite(fields: dict[str, Any]) -> dict[str, Any]:
    """Return *fields* with NaN and infinities as text, because JSON has neither."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }
