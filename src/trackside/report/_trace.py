"""A session as a trace that Perfetto opens: a process for each rank, all of them on one clock."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, Final

import attrs

from trackside.events import ClockAnchored, Event, IterationEnded, Source, SpanEnded, UnreadableError
from trackside.handlers import replay
from trackside.report import _kineto as kineto
from trackside.report._build import Progress, choose
from trackside.report._clocks import NONE, Alignment, Readings, align
from trackside.report._slices import Shown, lanes, shown_of

_WORKERS: Final = 100_000
"""Processes from here on are workers, of which a rank may have many."""
_PER_BLOCK: Final = 1_000
_LONG: Final = (SpanEnded, IterationEnded)
"""Events of what began before them."""


@attrs.define
class Traced:
    """What was written."""

    events: int = 0
    ranks: int = 0
    unaligned: list[int] = attrs.field(factory=list)
    """Ranks whose clock nothing relates to the others': they are marked in the trace."""
    notes: dict[int, str] = attrs.field(factory=dict)
    """What is worth knowing of ranks' clocks."""
    merged: int = 0
    """Files of a profiler that were merged."""
    problems: list[UnreadableError] = attrs.field(factory=list)


class _File:
    """The trace as it is written: one event after the other."""

    def __init__(self, out: IO[str], base_ns: int) -> None:
        self._out = out
        self._base_ns = base_ns
        self._block: list[str] = []
        self.events = 0
        out.write(f'{{"displayTimeUnit":"ms","baseTimeNanoseconds":{base_ns},"traceEvents":[\n')

    def microseconds(self, at_ns: int) -> float:
        """Return a time as the trace has it."""
        return (at_ns - self._base_ns) / 1000

    def put(self, event: dict[str, Any]) -> None:
        """Write one event."""
        text = json.dumps(event, separators=(",", ":"), allow_nan=False, default=str)
        self._block.append(text if not self.events else f",\n{text}")
        self.events += 1
        if len(self._block) >= _PER_BLOCK:
            self._flush()

    def name(self, kind: str, pid: int, value: object, tid: int = 0) -> None:
        """Name a process or a thread, or say where it stands."""
        key = "sort_index" if kind.endswith("sort_index") else "name"
        self.put({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {key: value}})

    def _flush(self) -> None:
        self._out.write("".join(self._block))
        self._block = []

    def finish(self) -> None:
        """Write what is left."""
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
        out: Where to.
        paths: Log files, or directories with such at any depth.
        session: Its tag or, without one, its run id; the one that started last unless given.
        steps: Show these alone, and what was around them.
        ranks: Says of which ranks to show; all unless given.
        merge: Traces of torch.profiler (Kineto) of the same run, to be shown beside.
        progress: Told how far the reading is.

    Raises:
        UnreadableError: There is nothing to read, or a trace to merge is none.
        ConfigError: There is no such session.
    """
    clocks = _read_clocks(choose(replay(*paths), session).sources)
    aligned = align(clocks.values())
    starts = [aligned[one.source.id].apply(one.first_ns) for one in clocks.values() if one.first_ns is not None]
    profiles = [kineto.load(path) for path in merge]
    base_ns = min([*starts, *(profile.first_ns for profile in profiles if profile.first_ns)], default=0)
    told = Traced()
    file = _File(out, base_ns)
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
        _name(file, source, pid, alignment, told)
        _write(file, pid, shown_of(batches, steps), alignment)
        if progress is not None:
            progress(place + 1, len(chosen), file.events)
    told.ranks = len({source.rank for source, _ in chosen if source.role == "main"})
    first = {one.source.rank: aligned[one.source.id] for one in clocks.values() if one.source.role == "main"}
    for number, profile in enumerate(profiles):
        kineto.merge(profile, number, first.get(profile.rank or 0), file.microseconds, file.put)
        told.merged += 1
    file.finish()
    told.events = file.events
    told.problems = recorded.problems
    return told


def _read_clocks(sources: Iterable[tuple[Source, Iterable[Sequence[Event]]]]) -> dict[str, Readings]:
    found: dict[str, Readings] = {}
    for source, batches in sources:
        own = found[source.id] = Readings(source)
        for batch in batches:
            for event in batch:
                kind = event.__class__
                # Times are not in order: a source may be recorded as started after its first spans began.
                began_ns = event.at_ns - event.duration_ns if isinstance(event, _LONG) else event.at_ns
                if own.first_ns is None or began_ns < own.first_ns:
                    own.first_ns = began_ns
                if kind is IterationEnded or kind is ClockAnchored:
                    own.take(event)  # type: ignore[arg-type]
    return found


def _name(file: _File, source: Source, pid: int, alignment: Alignment, told: Traced) -> None:
    role = "" if source.role == "main" else f" {source.role} {source.pid}"
    name = f"rank {source.rank}{role} · {source.host}"
    if alignment.by == NONE:
        name += " · CLOCK NOT ALIGNED"
        if source.role == "main" and source.rank not in told.unaligned:
            told.unaligned.append(source.rank)
    elif alignment.note:
        name += f" · {alignment.note}"
        told.notes[source.rank] = alignment.note
    file.name("process_name", pid, name)
    file.name("process_sort_index", pid, source.rank)


def _write(file: _File, pid: int, shown: Shown, alignment: Alignment) -> None:
    place, ts = alignment.apply, file.microseconds
    for tid, (thread, number, lane) in enumerate(lanes(shown.slices), 1):
        file.name("thread_name", pid, thread if not number else f"{thread} (overlapping {number})", tid)
        for one in lane:
            start, end = ts(place(one.start_ns)), ts(place(one.end_ns))
            args = {"step": one.step, **one.told} if one.step >= 0 else one.told
            event = {"ph": "X", "pid": pid, "tid": tid, "ts": start, "dur": round(end - start, 3), "name": one.name}
            file.put({**event, "args": _finite(args)} if args else event)
    for at_ns, name, fields in shown.points:
        point = {"ph": "i", "s": "p", "pid": pid, "tid": 1, "ts": ts(place(at_ns)), "name": name}
        file.put({**point, "args": _finite(fields)})
    for at_ns, name, unit, value in shown.figures:
        figure = {"ph": "C", "pid": pid, "tid": 0, "ts": ts(place(at_ns)), "name": name}
        file.put({**figure, "args": _finite({unit: value})})


def _finite(fields: dict[str, Any]) -> dict[str, Any]:
    """Return *fields* as JSON can hold them: it has no word for what is no number."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }
