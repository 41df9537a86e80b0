"""The runs in a directory: their sessions, and the states of their attempts."""

from __future__ import annotations

import importlib
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs

from trackside.events import Source, UnreadableError
from trackside.handlers.eventlog import LogOutline, SourceOutline, is_stream, outline
from trackside.handlers.models.liveness import LifeSigns, is_gone, liveness, worst

_UNNAMED: Final = re.compile(r"run-[0-9a-f]{12}")
"""The run id of a process whose launcher set none: it is random, so each rank has a different one."""
_TOGETHER_NS: Final = 600 * 10**9
"""The ranks of one launch start within this time, differences between the machines' clocks included."""
_MOST_LAUNCHES: Final = 256
"""A rank is matched with this many of the newest launches: a directory may hold thousands without a common id."""


def unified(sources: Iterable[Source]) -> dict[str, Source]:
    """
    Return each source by its id; ranks that belong together get one run id.

    A launcher that sets only RANK and WORLD_SIZE gives the ranks no common id. Therefore ranks of the same application,
    world size and attempt that started together, each once, count as one launch. It gets the run id of its lowest rank.
    Sources that only collected events are left out, unless there are no others or another has the same run id.
    """
    known = list(sources)
    renamed = _common_run_ids(known)
    result = {
        source.id: attrs.evolve(source, run_id=renamed[source.run_id]) if source.run_id in renamed else source
        for source in known
    }
    own = {key: source for key, source in result.items() if source.role != "collector"}
    runs = {source.run_id for source in own.values()}
    # The source of the collector in `trackside run` has the run id of its ranks, so it stays.
    return {key: source for key, source in result.items() if source.run_id in runs} if own else result


def _common_run_ids(sources: Iterable[Source]) -> Mapping[str, str]:
    """Return, for each random run id of a rank, the run id of its launch."""
    alone = [
        source
        for source in sources
        if source.role == "main"
        and source.world_size > 1
        and not source.session_tag
        and _UNNAMED.fullmatch(source.run_id)
    ]
    launches: list[dict[int, Source]] = []
    for source in sorted(alone, key=lambda source: (source.anchor.wall_ns, source.rank)):
        launch = next((one for one in islice(reversed(launches), _MOST_LAUNCHES) if _belongs(source, one)), None)
        if launch is None:
            launches.append({source.rank: source})
        else:
            launch[source.rank] = source
    return {
        source.run_id: launch[min(launch)].run_id
        for launch in launches
        if len(launch) > 1
        for source in launch.values()
    }


def _belongs(source: Source, launch: Mapping[int, Source]) -> bool:
    first = next(iter(launch.values()))
    return (
        source.rank not in launch
        and (source.world_size, source.application, source.attempt)
        == (first.world_size, first.application, first.attempt)
        and source.anchor.wall_ns - first.anchor.wall_ns <= _TOGETHER_NS
    )


_MAIN: Final = "main"
COLLECTOR: Final = "collector"

T = TypeVar("T")
K = TypeVar("K")


@attrs.frozen(kw_only=True)
class ProcessOutline:
    """One rank of an attempt."""

    rank: int
    host: str
    pid: int
    state: str
    """``running``, ``silent``, ``died`` or ``ended``, as of the newest event of all; see `liveness`."""
    reason: str
    """The reason that it recorded for its end; without one, the evidence for its state."""
    first_ns: int | None
    """The earliest time, in ns since the epoch like all times here; None if the log has no event of the process."""
    last_ns: int | None
    last_heartbeat_ns: int | None
    last_step: int | None


@attrs.frozen(kw_only=True)
class AttemptOutline:
    """The ranks that were started together."""

    number: int
    """The number of times that the launcher had restarted the run before."""
    launch: int
    """The number of earlier launches with this run id and `number`, which is always 0 without a launcher."""
    world_size: int
    processes: tuple[ProcessOutline, ...]
    """Ordered by rank."""
    workers: int
    """The number of processes that are not ranks, for example those of data loaders."""

    @property
    def first_ns(self) -> int | None:
        """The time at which the first rank began."""
        return min((one.first_ns for one in self.processes if one.first_ns is not None), default=None)

    @property
    def last_ns(self) -> int | None:
        """The time of the last event of any rank."""
        return max((one.last_ns for one in self.processes if one.last_ns is not None), default=None)

    @property
    def last_step(self) -> int | None:
        """The highest step that any rank reached."""
        return max((one.last_step for one in self.processes if one.last_step is not None), default=None)

    @property
    def state(self) -> str:
        """The worst of its ranks' states; ``silent`` if it has none."""
        return worst(one.state for one in self.processes)

    @property
    def states(self) -> dict[tuple[str, str], list[int]]:
        """The ranks by their state and its reason."""
        found: dict[tuple[str, str], list[int]] = {}
        for one in self.processes:
            found.setdefault((one.state, one.reason), []).append(one.rank)
        return found


@attrs.frozen(kw_only=True)
class RunOutline:
    """One run of a session, with its perf tags and attempts."""

    run_id: str
    perf_tags: tuple[str, ...]
    baseline: bool
    application: str
    attempts: tuple[AttemptOutline, ...]
    """Ordered by start."""
    exit_status: int | None = None
    """The exit status of the last program that `trackside run` started, negative for a signal; None without one."""


@attrs.frozen(kw_only=True)
class SessionOutline:
    """The runs of one logical task."""

    name: str
    """The session's tag; without a tag, the run's id."""
    is_tagged: bool
    runs: tuple[RunOutline, ...]
    """Ordered by start."""


@attrs.frozen(kw_only=True)
class RunsReport:
    """The result of `read_runs`."""

    sessions: tuple[SessionOutline, ...]
    """Ordered by start."""
    newest_ns: int | None
    """The time of the newest event of all."""
    problems: tuple[UnreadableError, ...]
    """The reasons why whole files or directories were not read."""


def read_runs(*paths: str | os.PathLike[str]) -> RunsReport:
    """
    Return the runs in logs and the states of their attempts, from the beginning and the end of each log.

    The state of a process is its `liveness` at the time of the newest event of all.

    Args:
        paths: Log files, or directories with log files at any depth; or Parquet tables that `trackside export` or
            `archive` wrote, as a directory or a URL such as ``s3://BUCKET/PATH``: only the table of sources is read.

    Raises:
        UnreadableError: None of *paths* leads to a file that can be read.
    """
    tables = [path for path in paths if _is_tables(path)]
    logs = [path for path in paths if path not in tables]
    found = outline(*logs) if logs else LogOutline([], [])
    if tables:
        found.sources += _archived(tables, {seen.source.id for seen in found.sources})
    newest_ns = max((seen.last_ns for seen in found.sources if seen.last_ns is not None), default=None)
    known = unified(seen.source for seen in found.sources)
    ranked = [attrs.evolve(seen, source=known[seen.source.id]) for seen in found.sources if seen.source.id in known]
    launchers = sorted((seen for seen in ranked if seen.exit_status is not None), key=lambda seen: seen.last_ns or 0)
    exits = {seen.source.run_id: seen.exit_status for seen in launchers}
    ranked = [seen for seen in ranked if seen.source.role != COLLECTOR] or ranked
    sessions = [_session(name, group, newest_ns, exits) for name, group in _grouped(ranked, _session_of).items()]
    return RunsReport(
        sessions=tuple(sorted(sessions, key=lambda session: (_start(session.runs[0].attempts), session.name))),
        newest_ns=newest_ns,
        problems=tuple(found.problems),
    )


def _is_tables(path: str | os.PathLike[str]) -> bool:
    """Return whether *path* leads to Parquet tables, not to logs."""
    is_bucket = isinstance(path, str) and "://" in path and not is_stream(path)
    return is_bucket or any(Path(path, "sources").glob("*.parquet"))


def _archived(paths: Iterable[str | os.PathLike[str]], known: Container[str]) -> list[SourceOutline]:
    """Return the sources in the tables that are not *known*."""
    tables = importlib.import_module("trackside.handlers.parquet")  # it needs an extra
    found = {seen.source.id: seen for path in paths for seen in tables.ParquetStore(path).outlines()}
    return [seen for name, seen in found.items() if name not in known]


def _grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _session_of(seen: SourceOutline) -> tuple[str, bool]:
    tag = seen.source.session_tag
    return (tag, True) if tag else (seen.source.run_id, False)


def _start(attempts: Sequence[AttemptOutline]) -> int:
    return min(attempt.first_ns or 0 for attempt in attempts)


def _session(
    name: tuple[str, bool], group: Sequence[SourceOutline], newest_ns: int | None, exits: Mapping[str, int | None]
) -> SessionOutline:
    runs: list[RunOutline] = []
    for run_id, members in _grouped(group, lambda seen: seen.source.run_id).items():
        for tags, launched in _grouped(_launched(members), lambda one: one.perf_tags).items():
            attempts = [
                _attempt(place, processes, newest_ns, exits.get(run_id))
                for place, processes in _grouped(launched, lambda one: one.place).items()
            ]
            runs.append(
                RunOutline(
                    run_id=run_id,
                    perf_tags=tags,
                    baseline=any(one.seen.source.baseline for one in launched),
                    application=launched[0].seen.source.application,
                    attempts=tuple(sorted(attempts, key=lambda attempt: (_start([attempt]), attempt.number))),
                    exit_status=exits.get(run_id),
                )
            )
    runs.sort(key=lambda run: (_start(run.attempts), run.run_id, run.perf_tags))
    return SessionOutline(name=name[0], is_tagged=name[1], runs=tuple(runs))


@attrs.frozen
class _Launched:
    """A process and its launch."""

    seen: SourceOutline
    perf_tags: tuple[str, ...]
    place: tuple[int, int]
    """The number of its attempt, and that of its launch within the attempt; see `AttemptOutline`."""
    next_ns: int | None = None
    """The time when its rank was launched again; None if it was not."""


def _launched(members: Sequence[SourceOutline]) -> list[_Launched]:
    """Return each process of a run with its launch: a rank's are numbered by time, a worker's is that of its rank."""
    found: dict[str, _Launched] = {}
    for own in _grouped((seen for seen in members if _is_rank(seen)), lambda seen: seen.source.rank).values():
        own.sort(key=lambda seen: (seen.source.attempt, seen.first_ns or 0, seen.source.id))
        counts: Counter[int] = Counter()
        for seen, following in zip_longest(own, own[1:]):
            number = seen.source.attempt
            next_ns = following.first_ns if following is not None else None
            found[seen.source.id] = _Launched(seen, seen.perf_tags, (number, counts[number]), next_ns)
            counts[number] += 1
    # In order of time, because a worker starts after its parent, which may be a worker, too.
    for seen in sorted(members, key=lambda seen: (seen.first_ns or 0, seen.source.id)):
        if not _is_rank(seen):
            parent = found.get(seen.source.parent.source_id) if seen.source.parent is not None else None
            tags, place = (parent.perf_tags, parent.place) if parent else (seen.perf_tags, (seen.source.attempt, 0))
            found[seen.source.id] = _Launched(seen, tags, place)
    return list(found.values())


def _is_rank(seen: SourceOutline) -> bool:
    return seen.source.role == _MAIN


def _attempt(
    place: tuple[int, int], launched: Sequence[_Launched], newest_ns: int | None, exit_status: int | None
) -> AttemptOutline:
    ranks = [_process(one, newest_ns, exit_status) for one in launched if _is_rank(one.seen)]
    return AttemptOutline(
        number=place[0],
        launch=place[1],
        world_size=max(one.seen.source.world_size for one in launched),
        processes=tuple(sorted(ranks, key=lambda one: one.rank)),
        workers=len(launched) - len(ranks),
    )


def _process(main: _Launched, newest_ns: int | None, exit_status: int | None) -> ProcessOutline:
    seen = main.seen
    signs = LifeSigns(
        last_ns=seen.last_ns,
        heartbeat_interval_ns=seen.heartbeat_interval_ns,
        end_reason=seen.ended,
        exit_status=exit_status if main.next_ns is None and seen.ended is None else None,
    )
    is_replaced = main.next_ns is not None and main.next_ns > (seen.last_ns or 0)
    life = liveness(signs, newest_ns or 0, is_replaced=is_replaced, is_gone=is_gone(seen.source))
    described: dict[str, Any] = {
        name: getattr(seen, name) for name in ("first_ns", "last_ns", "last_heartbeat_ns", "last_step")
    }
    source = seen.source
    return ProcessOutline(
        rank=source.rank, host=source.host, pid=source.pid, state=life.state, reason=life.reason, **described
    )
