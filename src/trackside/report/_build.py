"""From logs to a report."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Final

import attrs

from trackside.events import (
    ConfigError,
    Event,
    GpuTimingUnavailable,
    KernelWindow,
    SectionWindow,
    Source,
    UnreadableError,
)
from trackside.handlers import Replay, replay
from trackside.handlers.models.scores import ScoreAggregator
from trackside.report import _rows as rows
from trackside.report._episodes import Episodes
from trackside.report._gather import MOST_WINDOWS, Gatherer
from trackside.report._report import Report
from trackside.report._rules import judge
from trackside.report._scores import heatmap_of_tiles, heatmap_of_windows, late_by_windows
from trackside.report._sessions import unified
from trackside.report._trends import against
from trackside.wire import FrameView

MOST_POINTS: Final = 600
_MANY_OBJECTS: Final = 100_000

Progress = Callable[[int, int, int], None]
"""Called with how many sources were read, of how many, and the events so far."""


@attrs.frozen
class Chosen:
    """The sources of one session."""

    session: str
    others: tuple[str, ...]
    sources: list[tuple[Source, Iterator[Sequence[Event]]]]
    """By start of the attempt, and rank."""


def read_report(
    *paths: str | os.PathLike[str],
    session: str | None = None,
    baseline: Sequence[str | os.PathLike[str]] = (),
    progress: Progress | None = None,
) -> Report:
    """
    Read logs, and say what they show.

    Args:
        paths: Log files, or directories with such at any depth.
        session: Its tag or, without one, its run id; the one that started last unless given.
        baseline: Logs of runs that this one is expected to match.
        progress: Told how far the reading is.

    Raises:
        UnreadableError: There is nothing to read.
        ConfigError: There is no such session.
    """
    with _few_collections():
        return _read_report(paths, session, baseline, progress)


def _read_report(
    paths: Sequence[Any], session: str | None, baseline: Sequence[Any], progress: Progress | None
) -> Report:
    recorded = replay(*paths)
    chosen = choose(recorded, session)
    gathered = gather(chosen.sources, progress)
    report = _report(gathered, chosen, _episodes(gathered, recorded, paths), recorded)
    report = attrs.evolve(report, paths=tuple(map(os.fspath, paths)), age_s=time.time() - report.goodput.end_ns / 1e9)
    if baseline:
        reference = replay(*baseline)
        earlier = gather(choose(reference, None).sources, progress)
        report = attrs.evolve(report, baseline=against(earlier.processes, gathered.processes))
    return attrs.evolve(report, verdict=judge(report))


def choose(recorded: Replay, session: str | None) -> Chosen:
    """
    Return the sources of *session*, of the one that started last unless given.

    Raises:
        UnreadableError: No log holds anything.
        ConfigError: There is no such session.
    """
    sessions: dict[str, list[tuple[Source, Iterator[Sequence[Event]]]]] = {}
    found = recorded.by_source()
    known = unified(source for source, _ in found)
    for recorded_source, frames in found:
        source = known.get(recorded_source.id)
        if source is not None:
            batches = _events_of(frames, source if source != recorded_source else None)
            sessions.setdefault(source.session_tag or source.run_id, []).append((source, batches))
    if not sessions:
        raise recorded.problems[0] if recorded.problems else UnreadableError("the logs", "hold nothing yet", "wait")
    ordered = sorted(sessions, key=lambda name: min(source.anchor.wall_ns for source, _ in sessions[name]))
    name = ordered[-1] if session is None else session
    if name not in sessions:
        raise ConfigError("--session", session, f"there is {', '.join(ordered[-20:])}")
    own = sessions[name]
    starts: dict[tuple[str, int], int] = {}
    for source, _ in own:
        place = source.run_id, source.attempt
        starts[place] = min(source.anchor.wall_ns, starts.get(place, source.anchor.wall_ns))
    own.sort(key=lambda item: (starts[item[0].run_id, item[0].attempt], item[0].role != "main", item[0].rank))
    return Chosen(name, tuple(other for other in ordered if other != name), own)


def _events_of(frames: Iterator[FrameView], source: Source | None) -> Iterator[Sequence[Event]]:
    """Yield the events of each frame, those of a source that was given another run id under that."""
    for frame in frames:
        events = frame.events
        if source is not None:
            for event in events:
                event._source = source  # noqa: SLF001  the decoder's own slot
        yield events


def gather(sources: Sequence[tuple[Source, Iterator[Sequence[Event]]]], progress: Progress | None) -> Gatherer:
    """Read all of *sources*."""
    gathered = Gatherer(len(sources))
    with _few_collections():
        for place, (source, batches) in enumerate(sources):
            gathered.take(source, _reported(batches, place, len(sources), gathered, progress) if progress else batches)
    return gathered


@contextmanager
def _few_collections() -> Iterator[None]:
    """Let the garbage collector look less often: events make no cycles, and a fifth of the time went into looking."""
    before = gc.get_threshold()
    if before[0]:  # 0 says that it is off
        gc.set_threshold(max(before[0], _MANY_OBJECTS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _reported(
    batches: Iterator[Sequence[Event]], place: int, of: int, gathered: Gatherer, progress: Progress
) -> Iterator[Sequence[Event]]:
    for batch in batches:
        yield batch
        progress(place, of, gathered.events)


def _episodes(gathered: Gatherer, recorded: Replay, paths: Sequence[Any]) -> tuple[Episodes, ScoreAggregator]:
    """Score the windows, which must come by time; more than fit are read once more."""
    episodes = Episodes()
    aggregator = ScoreAggregator(on_leave=episodes.take)
    events: Iterable[Event]
    if gathered.windows_seen <= MOST_WINDOWS:
        events = sorted(gathered.windows, key=attrgetter("at_ns"))
    else:
        ids = {process.source.id for process in gathered.processes}
        kinds = (SectionWindow, KernelWindow, GpuTimingUnavailable)
        events = replay(*paths, to=kinds, sources=lambda source: source.id in ids)
    try:
        for event in events:
            aggregator(event)
    except UnreadableError as problem:
        recorded.problems.append(problem)
    for report in aggregator.result().windows:
        episodes.take(report)
    return episodes, aggregator


def _report(gathered: Gatherer, chosen: Chosen, scored: tuple[Episodes, ScoreAggregator], recorded: Replay) -> Report:
    episodes, aggregator = scored
    if chosen.session not in gathered.goodput.sessions():
        raise UnreadableError(f"session {chosen.session}", "holds nothing of any rank", "give the logs of its ranks")
    result = gathered.goodput.result(session=chosen.session)
    mains = [process for process in gathered.processes if process.is_rank]
    every_rank = rows.ranks(gathered.processes, gathered.exit_status)
    attempts = rows.attempts(gathered.goodput, result, every_rank)
    last = [row for row in every_rank if row.last_ns >= attempts[-1].start_ns] or every_rank
    spans = gathered.spans.result()
    parts = rows.parts(gathered, mains)
    what_if = rows.compare(mains, gathered.waits)
    late = rows.late(what_if, mains) if not what_if.why_not else late_by_windows(episodes, gathered.waits)
    world_size = max([row.rank + 1 for row in last] + [one.source.world_size for one in mains[-1:]])
    first = chosen.sources[0][0]
    samples_per_s, tokens_per_s = rows.rates(mains, result)
    configured = tuple(gathered.configured.perf_tag) if gathered.configured else ()
    return Report(
        session=chosen.session,
        paths=(),
        others=chosen.others,
        application=first.application,
        runs=tuple(dict.fromkeys(source.run_id for source, _ in chosen.sources)),
        perf_tags=first.perf_tags or configured,
        ranks_total=world_size,
        hosts=len({process.source.host for process in mains}),
        state=rows.state_of(last),
        events=gathered.events,
        goodput=result,
        attempts=attempts,
        ranks=rows.worth_a_look(last),
        missing_ranks=tuple(sorted(set(range(world_size)) - {row.rank for row in last})),
        exit_status=gathered.exit_status,
        age_s=0.0,
        step_time=rows.step_time(mains),
        steps=gathered.steps.coarse(MOST_POINTS),
        step_width_ns=gathered.steps.width_ns,
        loss=gathered.loss.coarse(MOST_POINTS // 2),
        marks=rows.marks(gathered.marks, attempts),
        marks_left_out=gathered.marks_left_out,
        parts=parts,
        waited_share=rows.waited_share(what_if, parts),
        heatmap=heatmap_of_tiles(mains, what_if)
        or (heatmap_of_windows(episodes.latest) if episodes.latest is not None else None),
        what_if=what_if,
        late=late,
        stalls=rows.stalls(mains),
        not_finite=rows.not_finite(mains),
        pauses=rows.pauses(mains, what_if),
        startup_s=rows.startup_s(mains, result),
        slowdown=rows.slowdown(gathered, mains),
        growth=rows.growth(mains),
        baseline=None,
        spans=rows.spans(spans, gathered, mains),
        open=rows.open_spans(spans, mains),
        errors=rows.errors(mains, every_rank),
        counters=rows.counters(gathered),
        losses=rows.losses(gathered, recorded, aggregator.too_late, last),
        samples_per_s=samples_per_s,
        tokens_per_s=tokens_per_s,
    )
