"""
Logs to Parquet: the time and the memory that a million events from 256 files take (facts E13).

The export has a process of its own; ``python -m benchmarks.parquet LOGS DIRECTORY`` is such a process.
"""

from __future__ import annotations

import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import trackside
from benchmarks.measure import Row, Timing, timing
from trackside.events import Source

FILES = 256
EVENTS = 1_000_000
MOST_NS = 20e9
MOST_BYTES = 500 << 20
_FLUSH_EVERY = 8_000
_START_NS = 1_700_000_000 * 10**9
_SPANS = ("model_forward", "model_backward", "data_loading", "zero_grad")


def rows() -> list[Row]:
    """Measure, and return the rows."""
    with tempfile.TemporaryDirectory() as directory:
        logs = pathlib.Path(directory, "logs")
        for rank in range(FILES):
            write_log(logs, rank=rank, events=EVENTS // FILES + 1)
        command = [sys.executable, "-m", "benchmarks.parquet", str(logs), f"{directory}/parquet"]
        found = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  ours
        figures = json.loads(found.stdout.splitlines()[-1])
    return [
        _beside(f"{EVENTS:,} events of {FILES} files to Parquet", figures["took_ns"], MOST_NS, "20 s"),
        _beside("memory for that, in bytes", figures["memory"], MOST_BYTES, "500 MiB"),
    ]


def _beside(operation: str, ours: float, most: float, called: str) -> Row:
    return Row(operation, timing([ours]), called, Timing(most, most, most), 1.0, ours / most)


def write_log(directory: pathlib.Path, *, rank: int, events: int) -> None:
    """Write the events of a rank: of ten events four iterations, four spans, a counter's window and a heartbeat."""
    from trackside.events import CounterWindow, Heartbeat, ProfileSpanEnded  # noqa: PLC0415  for this process alone

    source = Source(run_id="run", session_tag="benchmark", host=f"node-{rank // 8}", rank=rank, world_size=FILES)
    with trackside.Bus(source=source) as bus:
        bus.subscribe(trackside.EventLog(directory, fsync_s=None))
        for index in range(events):
            at_ns, kind = _START_NS + index * 1_000_000, index % 10
            event: trackside.Event
            if kind < len(_SPANS):
                event = ProfileSpanEnded(
                    at_ns=at_ns,
                    step=index // 10,
                    span_id=index,
                    parent_span_id=1,
                    name=_SPANS[kind],
                    duration_ns=10_000 + index,
                )
            elif kind < 8:  # noqa: PLR2004
                event = trackside.IterationEnded(
                    at_ns=at_ns,
                    parent_span_id=1,
                    step=index // 10,
                    span_id=index,
                    duration_ns=10**6 + index,
                    samples=32,
                    loss=2.5,
                )
            elif kind == 8:  # noqa: PLR2004
                event = CounterWindow(
                    at_ns=at_ns,
                    name="train.loss",
                    start_ns=at_ns - 10,
                    end_ns=at_ns,
                    count=3,
                    values={"mean": 2.5, "max": 3.0},
                    total_count=index,
                    total_sum=index * 2.5,
                )
            else:
                event = Heartbeat(
                    at_ns=at_ns, sequence=index, counts={"logged": index}, open_spans={"MainThread": [1, "loop", at_ns]}
                )
            bus.log(event)
            if index % _FLUSH_EVERY == 0:
                bus.flush()
        bus.flush(60)
    if bus.stats().lost:
        raise RuntimeError("events were lost: the figures would be of less work")


def main() -> None:
    """Export, and print the figures."""
    from trackside import cli  # noqa: PLC0415  for that process alone

    began_ns = time.perf_counter_ns()
    if cli.main(["export", sys.argv[1], "--parquet", sys.argv[2]]):
        raise SystemExit(1)
    took_ns = time.perf_counter_ns() - began_ns
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"took_ns": took_ns, "memory": memory}))


if __name__ == "__main__":
    main()
