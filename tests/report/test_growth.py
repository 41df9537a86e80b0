"""The work for sessions of many attempts, many ranks and many runs."""

from __future__ import annotations

import cProfile
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framing import frame_of
from trackside.cli._info import as_text
from trackside.events import Event, IterationEnded, Source, SourceStarted
from trackside.handlers import EventLog
from trackside.handlers.eventlog import check_logs
from trackside.report import Selected, compare, read_report
from trackside.report._runs import unified

S = 10**9
MOST_GROWTH = 2.1
LOGS = {
    "attempts": lambda place: Source(run_id="run", rank=place % 2, world_size=2, attempt=place // 2),
    "ranks": lambda place: Source(run_id="run", rank=place, world_size=1_000),
    "runs": lambda place: Source(run_id=f"run {place}", rank=0),
}


def events_of(source: Source, start_ns: int) -> Iterator[Event]:
    yield SourceStarted(at_ns=start_ns, span_id=0, step=-1, identity=source.to_wire())
    for step in range(3):
        yield IterationEnded(at_ns=start_ns + (step + 1) * S, span_id=step + 1, step=step, duration_ns=S)


@pytest.fixture
def log_of(tmp_path) -> Callable[[str, int], Path]:
    """Return what writes a log of so many processes, as a collector would, and returns its directory."""

    def write(kind: str, count: int) -> Path:
        directory = tmp_path / f"{kind} {count}"
        log = EventLog(directory, fsync_s=None)
        sources = [LOGS[kind](place) for place in range(count)]
        log.open(sources[0])
        for source in sources:
            own = list(events_of(source, 1_000 * S + source.attempt * 10 * S))
            assert log.accept(frame_of(source.id, own), events=len(own))
        assert log.close(60)
        return directory

    return write


def calls_of(work: Callable[[], Any]) -> int:
    """Return how many functions *work* calls."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        work()
    finally:
        profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


def lines_of(work: Callable[[], Any]) -> int:
    """Return how many lines *work* executes."""
    count = 0

    def trace(frame: Any, _event: str, _argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def growth(
    measure: Callable[[Callable[[], Any]], int], work: Callable[[int], Callable[[], Any]], fewest: int = 12
) -> float:
    """Return by how much the cost of twice as many more is larger: 2 where it is in proportion, 4 with the square."""
    work(1)()  # what is imported and cached with the first call is no part of the growth
    few, more, many = (measure(work(count)) for count in (fewest, 2 * fewest, 4 * fewest))
    return (many - more) / (more - few)


def compared(path: Path) -> object:
    """Compare the log of *path* with itself."""
    return compare(Selected("a", [path]), Selected("b", [path]))


@pytest.mark.parametrize("kind", LOGS)
@pytest.mark.parametrize("read", [read_report, compared])
def test_in_proportion(log_of, kind, read):
    """A report and a comparison take work in proportion to the number of processes."""

    def work(count: int) -> Callable[[], Any]:
        path = log_of(kind, count)
        return lambda: read(path)

    assert growth(calls_of, work) < MOST_GROWTH


def test_info_in_proportion(log_of):
    """The text of ``trackside info`` takes work in proportion to the number of runs."""

    def work(count: int) -> Callable[[], Any]:
        report = check_logs(log_of("runs", count))
        return lambda: as_text(report)

    assert growth(lines_of, work) < MOST_GROWTH


def test_launches_in_proportion():
    """Finding the ranks of launches without a common id takes work in proportion to the number of processes."""

    def work(count: int) -> Callable[[], Any]:
        sources = [Source(run_id=f"run-{place:012x}", rank=0, world_size=2) for place in range(count)]
        return lambda: unified(sources)

    assert growth(calls_of, work, fewest=500) < MOST_GROWTH
