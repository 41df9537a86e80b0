"""
Goodput: the CPU time of the first answer on a long job, of one after 100 more steps, and the memory it takes.

The job is restarted 20 times and has 1,000 custom events. It has a million steps with ``--full``, which takes about ten
minutes; else a fifth of that, since both sides' times grow with the steps. Each measurement has a process of its own,
so that none sees another's memory; ``python -m benchmarks.goodput KIND STEPS`` is such a process, and prints its
figures.
"""

from __future__ import annotations

import datetime
import functools
import gc
import itertools
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.measure import Row, Timing, budget, timing

STEPS = 200_000
FULL_STEPS = 1_000_000
RESTARTS = 20
CUSTOM_EVENTS = 1_000
MORE = 100
ANSWER_BUDGET_NS = 1e6
"""The limit of the time for an answer after one more event."""
START_S = 1_704_070_800.0

Record = dict[str, Any]
Figures = dict[str, float]


def rows() -> list[Row]:
    """Measure, and return the rows."""
    return _rows(STEPS)


def full_rows() -> list[Row]:
    """Measure a million steps, and return the rows."""
    return _rows(FULL_STEPS)


def _rows(steps: int) -> list[Row]:
    ours, records, disk, theirs = (_measured(kind, steps) for kind in ("events", "records", "disk", "peer"))
    tenth = _measured("events", steps // 10)
    of_job = f"of {steps:,} steps"
    return [
        _row(f"goodput {of_job}, from events in memory", ours, theirs, "first_ns", budget(compiled=0.03, pure=0.17)),
        _row(f"goodput {of_job}, from the peer's records", records, theirs, "first_ns", 1 / 6),
        _row(f"goodput {of_job}, from the event log on disk", disk, theirs, "first_ns", 1 / 4),
        _row(f"goodput after {MORE} more steps", ours, theirs, "more_ns", 1e-3),
        _row(f"memory for a job {of_job}, in bytes", ours, theirs, "memory", 0.2),
        _beside("one more event and the answer", ours["one_ns"], ANSWER_BUDGET_NS, "1 ms", 1.0),
        _beside("ten times the steps", ours["first_ns"], 10 * tenth["first_ns"], "ten times", 1.25),
    ]


def _row(operation: str, ours: Figures, theirs: Figures, figure: str, budget: float) -> Row:
    return _beside(operation, ours[figure], theirs[figure], "ml-goodput", budget)


def _beside(operation: str, ours: float, theirs: float, peer: str, budget: float) -> Row:
    return Row(operation, timing([ours]), peer, Timing(theirs, theirs, theirs), budget, ours / theirs)


def _measured(kind: str, steps: int) -> Figures:
    command = [sys.executable, "-m", "benchmarks.goodput", kind, str(steps)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  ours
    figures: Figures = json.loads(found.stdout.splitlines()[-1])
    return figures


def job(steps: int) -> Iterator[Record]:
    """Yield the records of a job of so many steps that is running."""
    rng = random.Random(7)
    per_attempt = steps // (RESTARTS + 1) + 1
    every = max(1, steps // CUSTOM_EVENTS)
    now, step, done = START_S, 0, 0
    for attempt in range(RESTARTS + 1):
        yield {"job_name": "job", "job_start_time": now}
        now += 60.0
        for _ in range(min(per_attempt, steps - done)):
            yield {"job_name": "job", "step_count": step, "step_start_time": now}
            now = round(now + rng.gauss(3.0, 0.03), 6)
            done += 1
            step += 1
            if done % every == 0:
                custom = {"job_name": "job", "custom_badput_event_type": "EVAL"}
                yield {**custom, "custom_badput_event_start_time": round(now - 0.5, 6)}
                yield {**custom, "custom_badput_event_end_time": round(now - 0.25, 6)}
        if attempt < RESTARTS:
            step -= min(20, per_attempt // 2)
            now += 120.0


def more_steps(last: Record, count: int) -> list[Record]:
    """Return the records of *count* more steps after the one of *last*."""
    step, at = last["step_count"], last["step_start_time"]
    return [
        {"job_name": "job", "step_count": step + n, "step_start_time": round(at + 3.0 * n, 6)}
        for n in range(1, count + 1)
    ]


def measure_records(steps: int) -> Figures:
    """Measure trackside's model on the peer's records."""
    from trackside.handlers import feed  # noqa: PLC0415  ours alone
    from trackside.handlers.models.goodput import GoodputAccumulator, read_payloads  # noqa: PLC0415  ours alone

    given = list(job(steps))
    model = GoodputAccumulator()

    def answer() -> None:
        feed(read_payloads(given), model)
        assert model.result().goodput

    return {"first_ns": _timed(answer)}


def measure_events(steps: int) -> Figures:
    """Measure trackside's model on its own events."""
    from trackside.events import Event  # noqa: PLC0415  ours alone
    from trackside.handlers import feed  # noqa: PLC0415
    from trackside.handlers.models.goodput import GoodputAccumulator  # noqa: PLC0415

    def answer(events: list[Event]) -> None:
        feed(events, model)
        assert model.result().goodput

    given, more = _events(steps)
    model = GoodputAccumulator()
    tracemalloc.start()  # in the resident size it could not be separated from the memory of generating the events
    answer(given)
    _, memory = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    model = GoodputAccumulator()
    gc.collect()
    first_ns = _timed(lambda: answer(given))
    more_ns = _timed(lambda: answer(more[:MORE]))
    ones = [_timed(functools.partial(answer, [event])) for event in more[MORE:]]
    return {"first_ns": first_ns, "more_ns": more_ns, "one_ns": statistics.median(ones), "memory": memory}


def measure_disk(steps: int) -> Figures:
    """Measure trackside's model on events in a log."""
    from trackside.handlers import feed, replay  # noqa: PLC0415  ours alone
    from trackside.handlers.models.goodput import GoodputAccumulator  # noqa: PLC0415

    def answer() -> None:
        feed(replay(directory), model)
        assert model.result().goodput

    model = GoodputAccumulator()
    with tempfile.TemporaryDirectory() as directory:
        _record(_events(steps)[0], directory)
        gc.collect()
        return {"first_ns": _timed(answer)}


def _record(events: list[Any], directory: str) -> None:
    """Write *events* to logs, one for each attempt, as the job would."""
    from trackside.bus import Bus  # noqa: PLC0415  ours alone
    from trackside.events import SourceStarted  # noqa: PLC0415
    from trackside.handlers import EventLog  # noqa: PLC0415

    for source, attempt in itertools.groupby(events, key=lambda event: event.source):
        with Bus(source=source) as bus:
            bus.subscribe(EventLog(directory))
            for index, event in enumerate(attempt):
                if not isinstance(event, SourceStarted):  # the bus makes its own
                    bus.log(event)
                if index % 4_096 == 0:
                    bus.flush(60.0)
            assert bus.flush(60.0)
            assert not bus.stats().lost


def _events(steps: int) -> tuple[list[Any], list[Any]]:
    """Return the job's events, as a decoder gives them, and those of some more steps."""
    from trackside.events import IterationEnded, Source, SourceStarted, SpanEnded  # noqa: PLC0415  ours alone

    found: list[Any] = []
    source, seq, started = Source(id="none"), 0, None
    records = list(job(steps))
    records += more_steps(next(record for record in reversed(records) if "step_count" in record), MORE + 101)
    for record in records:
        event: Any = None
        at_ns = round(next(value for key, value in record.items() if key.endswith("_time")) * 1e9)
        if "job_start_time" in record:
            source = Source(id=str(len(found)), run_id="run", attempt=source.attempt + bool(found))
            seq, started = 0, None
            event = SourceStarted(at_ns=at_ns, identity={}, span_id=0, step=-1)
        elif "step_count" in record:
            if started is not None:
                event = IterationEnded(at_ns=at_ns, duration_ns=at_ns - started[1], parent_span_id=0, step=started[0])
            started = record["step_count"], at_ns
        elif "custom_badput_event_end_time" in record:
            event = SpanEnded(
                at_ns=at_ns,
                duration_ns=250_000_000,
                step=-1,
                span_id=1,
                parent_span_id=0,
                name="eval",
                attributes={"badput_type": "EVAL"},
            )
        if event is not None:
            event._source, event._seq = source, seq  # noqa: SLF001  as a decoder does
            seq += 1
            found.append(event)
    return found[: -MORE - 100], found[-MORE - 100 :]


class Log:
    """Stands in for the cloud's log; finds the entries later than some time at once."""

    def __init__(self, records: list[Record]) -> None:
        self._payloads: list[Record] = []
        self._times: list[datetime.datetime] = []
        self.extend(records)

    def extend(self, records: list[Record]) -> None:
        """Add *records*."""
        from ml_goodput_measurement.src.goodput_utils import get_timestamp_from_log_entry  # noqa: PLC0415  the peer's

        self._payloads += records
        self._times += map(get_timestamp_from_log_entry, records)

    def read_cloud_logging_entries(
        self, start_time: Any = None, end_time: Any = None, last_entry_info: Any = None
    ) -> tuple[list[Record], tuple[datetime.datetime, str]]:
        """Return the entries after *start_time*."""
        del end_time, last_entry_info
        first = 0 if start_time is None else bisect_right(self._times, start_time)
        return self._payloads[first:], (self._times[-1], str(len(self._times)))


def measure_peer(steps: int) -> Figures:
    """Measure ml-goodput-measurement."""
    from ml_goodput_measurement.src import goodput  # noqa: PLC0415  the peer's

    records = list(job(steps))
    log = Log(records)
    last = next(record for record in reversed(records) if "step_count" in record)
    with tempfile.TemporaryDirectory() as directory:
        calculator = goodput.GoodputCalculator("job", "log", log, cache_dir=directory)
        gc.collect()
        before = _peak_bytes()
        first_ns = _timed(lambda: calculator.get_job_goodput(include_badput_breakdown=True))
        memory = _peak_bytes() - before
        log.extend(more_steps(last, MORE))
        more_ns = _timed(lambda: calculator.get_job_goodput(include_badput_breakdown=True))
    return {"first_ns": first_ns, "more_ns": more_ns, "memory": memory}


def _peak_bytes() -> int:
    """Return the largest resident size of this process so far; that of `getrusage` begins at the parent's."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])  # type: ignore[index]


def _timed(work: Callable[[], object]) -> float:
    """Return the CPU time that *work* takes, in ns."""
    start = time.process_time_ns()
    work()
    return float(time.process_time_ns() - start)


MEASURES = {"events": measure_events, "records": measure_records, "disk": measure_disk, "peer": measure_peer}

if __name__ == "__main__":
    print(json.dumps(MEASURES[sys.argv[1]](int(sys.argv[2]))))
