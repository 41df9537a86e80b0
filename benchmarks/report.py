"""
Reports: the CPU time, the memory and the size of the page, of 4,096 ranks with 8 sections each and a million steps.

The logs are generated first, which takes longer. Each measurement has a process of its own, so that none sees another's
memory; ``python -m benchmarks.report DIRECTORY`` is such a process, and prints its figures.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, Timing, timing
from trackside.events import ClockAnchored, Event, IterationEnded, SectionWindow, Source, SourceEnded, SourceStarted
from trackside.handlers import EventLog
from trackside.wire import RowEncoder, encode_frame

STEPS = 1_000_000
RANKS = 4_096
SECTIONS = 8
WINDOW_STEPS = 50
START_NS = 1_700_000_000 * 10**9
STEP_NS = 10**8
SLOW, SLOW_PART = RANKS // 2, "part 3"
BUDGET_S = 10.0
BUDGET_MEMORY = 500 << 20
BUDGET_PAGE = 2 << 20
_ROWS = 4_000


def rows() -> list[Row]:
    """Measure, and return the rows."""
    found: list[Row] = []
    for ranks in (RANKS, 1):
        with tempfile.TemporaryDirectory() as directory:
            write_job(Path(directory), ranks)
            command = [sys.executable, "-m", "benchmarks.report", directory]
            done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  ours
        figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        job = f"{ranks:,} rank(s), {STEPS:,} steps"
        found += [
            _beside(f"report of {job}", figures["cpu_ns"], BUDGET_S * 1e9, "ten seconds"),
            _beside(f"memory for it, {job}, in bytes", figures["memory"], BUDGET_MEMORY, "500 MiB"),
            _beside(f"its page, {job}, in bytes", figures["page"], BUDGET_PAGE, "2 MiB"),
        ]
    return found


def _beside(operation: str, ours: float, budget: float, name: str) -> Row:
    return Row(operation, timing([ours]), name, Timing(budget, budget, budget), 1.0, ours / budget)


def write_job(directory: Path, ranks: int) -> None:
    """Write the logs of a job of so many ranks and all of the steps."""
    rng = random.Random(1)
    for rank in range(ranks):
        source = Source(
            id=f"{rank:016x}", run_id="big", host=f"node{rank // 8:04d}", pid=rank, rank=rank, world_size=ranks
        )
        _write(directory, source, _events(source, STEPS // ranks, rng))


def _events(source: Source, steps: int, rng: random.Random) -> Iterator[Event]:
    common: dict[str, Any] = {"span_id": 0}
    yield SourceStarted(identity=source.to_wire(), at_ns=START_NS, step=-1, **common)
    yield ClockAnchored(mono_ns=1, wall_ns=START_NS, offset_ns=0, uncertainty_ns=100, at_ns=START_NS, step=-1, **common)
    names, at_ns = [f"part {number}" for number in range(SECTIONS)], START_NS
    for step in range(steps):
        at_ns += STEP_NS
        length_ns = int(STEP_NS * rng.gauss(0.98, 0.005))
        yield IterationEnded(step=step, duration_ns=length_ns, at_ns=at_ns, span_id=step + 1, samples=8)
        if (step + 1) % WINDOW_STEPS == 0:
            window = step // WINDOW_STEPS
            medians = [
                1e7 * rng.gauss(1, 0.02) * (1.6 if (source.rank, name) == (SLOW, SLOW_PART) else 1.0) for name in names
            ]
            counts = [WINDOW_STEPS] * SECTIONS
            yield SectionWindow(
                window=window,
                first_step=step - WINDOW_STEPS + 1,
                last_step=step,
                start_ns=at_ns - WINDOW_STEPS * STEP_NS,
                names=names,
                counts=counts,
                entries=counts,
                min_ns=medians,
                max_ns=medians,
                median_ns=medians,
                mean_ns=medians,
                std_ns=medians,
                at_ns=at_ns,
                step=step,
                **common,
            )
    yield SourceEnded(reason="closed", at_ns=at_ns, step=-1, **common)


def _write(directory: Path, source: Source, events: Iterator[Event]) -> None:
    encoder, log, first = RowEncoder(), EventLog(directory, fsync_s=None), 0
    log.open(source)
    schemas: dict[int, bytes] = {}
    rows: list[bytes] = []

    def put() -> None:
        nonlocal first
        frame = encode_frame(
            source.id, first, first + len(rows) - 1, dropped={}, schemas=list(schemas.values()), rows=list(rows)
        )
        while not log.accept(frame, events=len(rows)):
            time.sleep(0.01)
        first += len(rows)
        rows.clear()
        schemas.clear()

    for event in events:
        schema, row = encoder.encode(event, len(rows))
        schemas[schema.number] = schema.entry
        rows.append(row)
        if len(rows) == _ROWS:
            put()
    if rows:
        put()
    if not log.close(60):
        raise OSError(f"the log of rank {source.rank} could not be written")


def measure(directory: str) -> dict[str, float]:
    """Make the report of the logs in *directory*, and return its time, memory and size."""
    from trackside.report import read_report, report_page  # noqa: PLC0415  what is measured, imports included

    start_ns = time.process_time_ns()
    report = read_report(directory)
    page = report_page(report)
    cpu_ns = time.process_time_ns() - start_ns
    if report.ranks_total == RANKS:
        # Four windows of each rank are too few for a finding among so many ranks; the table of scores has it.
        assert report.heatmap is not None
        scores = report.heatmap.scores[report.heatmap.names.index(SLOW_PART)]
        if report.heatmap.ranks[scores.index(min(score for score in scores if score is not None))] != SLOW:
            raise ValueError("the slow rank does not have the lowest score")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"cpu_ns": cpu_ns, "memory": memory, "page": len(page.encode())}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
