"""
Run a job for hours with every part on, disturb it, and check that nothing grows: ``python tests/soak/run.py --minutes
60``.

A job trains with an event log, a JSON lines sink, models, a sink that raises now and then, a publisher and a collector.
One viewer watches all the time, another one is stopped for a while again and again, and now and then killed; the
collector is killed and started again. Memory, file descriptors and threads of each process, and how far the first
viewer is behind, are sampled all the time. The exit code is 1 if one of them grew, or if a count does not balance.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import attrs

import trackside
from trackside.events import EventsDropped, clock
from trackside.handlers import replay
from trackside.handlers.models import SpanBuilder

SAMPLE_INTERVAL_S = 5.0
WARM_S = 120.0
"""Until then allocators, rings and models fill; growth is measured from there."""
MIB = 1 << 20
MOST_GROWTH_BYTES = 16 * MIB
MOST_MORE_DESCRIPTORS = 8
MOST_MORE_THREADS = 2
MOST_LAG_S = 10.0
"""At the median, while the machine does other work too: a lag that grows passes it soon."""


@trackside.event("soak.step.taken")
class StepTaken(trackside.Event):
    """A step of the soaked job, with its number."""

    number: int


# --- the processes ----------------------------------------------------------------------------------------------------


class Flaky:
    """A sink that refuses every thousandth event."""

    runs_on = trackside.RunsOn.WORKER

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: trackside.Event) -> None:
        """Count *event*, or raise."""
        self.count += 1
        if self.count % 1000 == 0:
            raise OSError(f"event {self.count} is refused")


def job(directory: str, collector: str, steps_per_s: str) -> None:
    """Train until stdin is closed, and print the counts."""
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    below, count, rate = Path(directory), 0, float(steps_per_s)
    remote = trackside.Remote(publish=f"ipc://{below}/job.sock", collector=collector, insecure=True)
    handlers = [trackside.JsonlSink(below / "events.jsonl", rotate_bytes=8 * MIB), SpanBuilder(), Flaky()]
    running = trackside.start(below / "log", remote=remote, handlers=handlers)  # type: ignore[arg-type]
    began_s = time.monotonic()
    with trackside.training_loop():
        while not stop.wait(max(0.0, began_s + count / rate - time.monotonic())):
            with trackside.training_iteration(step=count):
                with trackside.data_loading():
                    pass
                with trackside.model_forward():
                    trackside.metrics(loss=1.0 / (1 + count % 100))
                trackside.counter("tokens").add(512)
                trackside.log(StepTaken(number=count))
            count += 1
            if count % 500 == 0:  # files that are not deleted are no growth of ours
                for path in sorted(below.glob("events*.jsonl"))[:-1]:
                    path.unlink()
    trackside.flush(30.0)
    stats = trackside.stats()
    print(
        json.dumps(
            {
                "steps": count,
                "published": stats.published,
                "dropped": sum(stats.dropped_by_type.values()),
                "unbalanced": [one.name for one in stats.handlers if one.balance],
                "failed": {one.name: one.failed for one in stats.handlers if one.failed},
            }
        ),
        flush=True,
    )
    running.close(timeout_s=30.0)


def viewer(endpoint: str) -> None:
    """
    Watch until the job has left; print how far behind it is once a second, and at the end the number of events.

    A viewer that was stopped, or had not begun, when the job left missed its goodbye: once stdin is closed, it ends on
    silence.
    """
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    numbers = lost = 0
    due: int | None = None
    with trackside.attach(endpoint, to=StepTaken, models=[SpanBuilder()]) as attached:
        said_s, lags_s = time.monotonic(), [0.0]
        while events := attached.read(0.5) or not (attached.is_over or (stop.is_set() and attached.is_silent)):
            if isinstance(events, list):
                lags_s.append((clock.now_ns() - events[-1].at_ns) / 1e9)
                for event in events:
                    number = event.number  # type: ignore[attr-defined]
                    due = number if due is None else due
                    if number < due:
                        sys.exit(f"number {number} came where {due} was due")
                    lost += number - due
                    due, numbers = number + 1, numbers + 1
            if time.monotonic() - said_s >= 1.0:
                said_s = time.monotonic()
                print(json.dumps({"lag_s": max(lags_s)}), flush=True)
                lags_s = [0.0]
        print(json.dumps({"came": numbers, "missing": lost, "counted": attached.lost}), flush=True)


# --- the run ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Sample:
    """The resources of a process."""

    at_s: float
    memory_bytes: int
    descriptors: int
    threads: int


def sample(pid: int, now_s: float) -> Sample | None:
    """Return the present resources of the process; None if it has ended."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        tasks, files = (len(list(Path(f"/proc/{pid}/{name}").iterdir())) for name in ("task", "fd"))
        return Sample(now_s, pages * os.sysconf("SC_PAGE_SIZE"), files, tasks)
    return None


class Process:
    """A child, its resources from sample to sample, and its output."""

    def __init__(self, name: str, *command: str) -> None:
        self.name = name
        self.samples: list[Sample] = []
        self.said: list[dict[str, Any]] = []
        self._command = command
        self.start()

    def start(self) -> None:
        """Start it, for the first time or again."""
        self.child = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.started_s = time.monotonic()
        self._reader = threading.Thread(target=self._read, args=(self.child,), daemon=True)
        self._reader.start()

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            with contextlib.suppress(ValueError):
                self.said.append(json.loads(line))

    def look(self, now_s: float) -> None:
        """Take a sample, unless it was started only just now."""
        found = sample(self.child.pid, now_s)
        if found is not None and time.monotonic() - self.started_s > SAMPLE_INTERVAL_S:
            self.samples.append(found)

    def end(self, timeout_s: float = 120.0) -> int:
        """Close its stdin, and return its exit code."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        code = self.child.wait(timeout_s)
        self._reader.join(10.0)
        return code

    def kill(self) -> None:
        """Kill it."""
        self.child.kill()
        self.child.wait()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.child.send_signal(number)


def soak(minutes: float, steps_per_s: float, directory: Path) -> list[str]:
    """Run the job for so many minutes; print the results and return the faults."""
    python, here = sys.executable, str(Path(__file__))
    collecting = f"ipc://{directory}/collector.sock"
    command = (python, "-c", "import sys; from trackside.cli import main; sys.exit(main())")
    collector = Process(
        "collector", *command, "collect", "--bind", collecting, "--log", f"{directory}/collected", "--insecure"
    )
    training = Process("job", python, here, "job", str(directory), collecting, str(steps_per_s))
    while not (directory / "job.sock").exists():
        time.sleep(0.1)
    steady = Process("viewer", python, here, "viewer", f"ipc://{directory}/job.sock")
    stopped = Process("stopped viewer", python, here, "viewer", f"ipc://{directory}/job.sock")
    processes = (training, collector, steady, stopped)
    began_s = time.monotonic()
    faults = {"collector killed": 0, "viewer stopped": 0, "viewer killed": 0}
    turn = 0
    while (now_s := time.monotonic() - began_s) < minutes * 60:
        time.sleep(SAMPLE_INTERVAL_S)
        turn += 1
        for process in processes:
            process.look(now_s)
        if turn % 12 == 3:
            stopped.signal(signal.SIGSTOP)
            faults["viewer stopped"] += 1
        elif turn % 12 == 7:
            stopped.signal(signal.SIGCONT)
        elif turn % 24 == 10:
            collector.kill()
            collector.start()
            faults["collector killed"] += 1
        elif turn % 60 == 59:
            stopped.kill()
            stopped.start()
            faults["viewer killed"] += 1
    stopped.signal(signal.SIGCONT)
    wrong = [f"{process.name}: exit code {code}" for process in (training, steady, stopped) if (code := process.end())]
    collector.signal(signal.SIGTERM)  # a shell has what it starts in the background ignore SIGINT
    collector.end()
    print(f"{minutes:g} minutes; {', '.join(f'{count} × {fault}' for fault, count in faults.items())}")
    for process in processes:
        wrong += _growth(process)
    wrong += _lag(steady)
    counted = training.said[-1] if training.said else {}
    print(f"job: {counted}")
    wrong += [f"job: the counts of {name} do not balance" for name in counted.get("unbalanced", ["all"])]
    for process in (steady, stopped):
        came = process.said[-1] if process.said else {}
        print(f"{process.name}: {came}")
        if came.get("missing", 1) > came.get("counted", 0):
            wrong.append(f"{process.name}: {came.get('missing')} events are missing, {came.get('counted')} are counted")
    for name in ("log", "collected"):
        wrong += _recorded(directory / name, counted.get("steps", 0))
    return wrong


def _growth(process: Process) -> list[str]:
    """Print the resources of *process* when it was warm and at the end; return those that grew."""
    warm = [one for one in process.samples if one.at_s >= WARM_S]
    tenth = len(warm) // 10
    if not tenth:
        return [f"{process.name}: too short a run to say whether anything grows"]
    wrong = []
    for name, unit, most in (
        ("memory_bytes", MIB, MOST_GROWTH_BYTES),
        ("descriptors", 1, MOST_MORE_DESCRIPTORS),
        ("threads", 1, MOST_MORE_THREADS),
    ):
        first, last = (statistics.median(getattr(one, name) for one in part) for part in (warm[:tenth], warm[-tenth:]))
        print(f"{process.name}: {name.partition('_')[0]} {first / unit:.1f} at first, {last / unit:.1f} at the end")
        if last - first > most:
            wrong.append(f"{process.name}: {name} grew from {first:.0f} to {last:.0f}")
    return wrong


def _lag(process: Process) -> list[str]:
    lags_s = [said["lag_s"] for said in process.said if "lag_s" in said]
    tenth = max(1, len(lags_s) // 10)
    first_s, last_s = (statistics.median(part) for part in (lags_s[:tenth], lags_s[-tenth:]))
    print(f"{process.name}: lag {first_s:.3f} s at first, {last_s:.3f} s at the end, {max(lags_s):.3f} s at most")
    return [f"{process.name}: {last_s:.1f} s behind at the end"] if last_s > MOST_LAG_S else []


def _recorded(path: Path, steps: int) -> list[str]:
    """Return the faults of the log at *path*, which is to hold each step once, or to count the missing ones."""
    events = replay(path, to=(StepTaken, EventsDropped))
    numbers, dropped = [], 0
    for event in events:
        if isinstance(event, StepTaken):
            numbers.append(event.number)
        elif isinstance(event, EventsDropped) and event.where == "queue":
            dropped += event.by_type.get(StepTaken.wire_name, 0)
    counted = events.missing + dropped
    print(
        f"{path.name}: {len(numbers)} of {steps} steps; by its own account {dropped} were dropped before they had a "
        f"number and {events.missing} events after it"
    )
    wrong = []
    if len(set(numbers)) != len(numbers):
        wrong.append(f"{path.name}: {len(numbers) - len(set(numbers))} steps came twice")
    if steps - len(numbers) > counted:
        wrong.append(f"{path.name}: {steps - len(numbers)} steps are missing, {counted} events are counted")
    return wrong


def main() -> int:
    """Run with the options of the command line."""
    if sys.argv[1:2] == ["job"]:
        job(*sys.argv[2:])
        return 0
    if sys.argv[1:2] == ["viewer"]:
        viewer(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--rate", type=float, default=50.0, help="steps a second (default: 50)")
    parser.add_argument("--directory", type=Path, help="where the logs go, to be kept (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        wrong = soak(options.minutes, options.rate, directory)
    for problem in wrong:
        print(f"WRONG: {problem}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
