"""
``python -m benchmarks.load``: the capacity of one collector, by itself (E11) and at the root of a tree (E12).

``fan-in``: each rank with a connection of its own, events at a steady rate. ``tree``: ranks behind forwarders. Prints
how many events arrived and were lost, how far behind the collector was, its memory and its processor time: the
simulated ranks run on the same cores, so ``collector_sustains_per_s`` is its capacity with a core of its own. 1 if a
single event is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from trackside.cli._serving import collecting_rarely
from trackside.events import IterationEnded, clock
from trackside.handlers.zeromq import Collector

_DEADLINE_S = 600.0
_CATCHING_UP_S = 300.0
_CLOSING_S = 120.0
"""Thousands of files are forced to the disk, one after another."""
_CHECK_INTERVAL_S = 0.2
_FORWARD = """
import sys
from trackside.handlers.zeromq import Forwarder
forwarders = [Forwarder(f"ipc://{sys.argv[2]}/{place}", to=sys.argv[1]) for place in sys.argv[3:]]
print("ready", flush=True)
while True:
    for forwarder in forwarders:
        forwarder.turn(0.02 / len(forwarders))
"""


class Lag:
    """The age of events when the collector reads them."""

    def __init__(self) -> None:
        self.lags_s: list[float] = []
        self._step = -1

    def __call__(self, event: Any) -> None:
        """Note one of each ten."""
        if type(event) is IterationEnded and event.step % 10 == 0:
            self.lags_s.append((clock.now_ns() - event.at_ns) / 1e9)

    def percentile(self, share: float) -> float:
        """Return the lag that a *share* of all had at most, in seconds."""
        lags = sorted(self.lags_s) or [0.0]
        return lags[min(len(lags) - 1, int(share * len(lags)))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the two; 1 if an event is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    fan_in = kinds.add_parser("fan-in", help="each rank has a connection of its own")
    fan_in.add_argument("--connections", type=int, default=4096)
    fan_in.add_argument("--rate", type=float, default=41_000.0, help="events a second, of all")
    fan_in.add_argument("--seconds", type=float, default=60.0)
    tree = kinds.add_parser("tree", help="ranks behind forwarders")
    tree.add_argument("--ranks", type=int, default=32_768)
    tree.add_argument("--forwarders", type=int, default=64)
    tree.add_argument("--frames", type=int, default=4, help="that each rank sends, as fast as they are taken")
    tree.add_argument("--events", type=int, default=50, help="in each frame")
    for kind in (fan_in, tree):
        kind.add_argument("--processes", type=int, default=4)
        kind.add_argument("--log", action="store_true", help="keep the logs, too")
        kind.add_argument("--models", action="store_true", help="run all models that a collector runs by default, too")
        kind.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    with collecting_rarely(), tempfile.TemporaryDirectory(prefix="ts-") as directory:  # as `trackside collect` does
        found = (_fan_in if options.kind == "fan-in" else _tree)(options, directory)
    print(json.dumps(found) if options.json else "\n".join(f"{name:<24} {value}" for name, value in found.items()))
    return 0 if found["sent"] == found["arrived"] and not found["lost"] and not found["not_logged"] else 1


def _fan_in(options: argparse.Namespace, directory: str) -> dict[str, Any]:
    each = options.connections // options.processes
    per_frame = max(1, round(options.rate / options.connections))
    common = ["--nodes", each, "--ranks", 1, "--events", per_frame, "--frames", round(options.seconds), "--every", 1.0]
    bind = "tcp://127.0.0.1:*"
    with _collector(bind, options, directory, insecure=True) as collector:
        senders = [
            _sender([collector.endpoint], ["--first", index * each, *common]) for index in range(options.processes)
        ]
        return {"connections": each * options.processes, **_collected(collector, senders)}


def _tree(options: argparse.Namespace, directory: str) -> dict[str, Any]:
    per_node, each = options.ranks // options.forwarders, options.forwarders // options.processes
    bind = f"ipc://{directory}/root"
    common = ["--nodes", each, "--ranks", per_node, "--events", options.events, "--frames", options.frames]
    with _collector(bind, options, directory) as collector:
        forwarders, senders = [], []
        for process in range(options.processes):
            numbers = [str(process * each + number) for number in range(each)]
            command = [sys.executable, "-c", _FORWARD, bind, directory, *numbers]
            forwarders.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))  # noqa: S603  ourselves
            endpoints = [f"ipc://{directory}/{number}" for number in numbers]
            first = process * each * per_node
            senders.append(_sender(endpoints, ["--first", first, *common, "--every", 0.0]))
        try:
            found = _collected(collector, senders, forwarders)
        finally:
            for forwarder in forwarders:
                forwarder.kill()
                forwarder.communicate()
        return {"ranks": per_node * each * options.processes, "forwarders": each * options.processes, **found}


@contextlib.contextmanager
def _collector(
    bind: str, options: argparse.Namespace, directory: str, *, insecure: bool = False
) -> Iterator[Collector]:
    models: list[Any] | None = None if options.models else []
    log = f"{directory}/log" if options.log else None
    collector = Collector(bind, insecure=insecure, models=models, log=log, silent_after_s=1e6)
    collector.models.append(Lag())
    try:
        yield collector
    finally:
        done = collector.close(_CLOSING_S)
    if not done:
        raise RuntimeError(f"the logs were not written within {_CLOSING_S:g} s of the end")


def _collected(
    collector: Collector, senders: list[subprocess.Popen[str]], forwarders: Sequence[subprocess.Popen[str]] = ()
) -> dict[str, Any]:
    """Let *senders* send; serve until everything has arrived, or no more comes; return the figures."""
    others = [process.pid for process in (*senders, *forwarders)]
    try:
        _serve_until(collector, lambda: all(_lines(sender, 1) for sender in senders))
        for sender in senders:
            assert sender.stdin is not None
            sender.stdin.write("\n")
            sender.stdin.flush()
        start_s, cpu_s, others_cpu_s = time.monotonic(), time.process_time(), sum(map(processor_s, others))
        _serve_until(collector, lambda: all(_lines(sender, 2) for sender in senders))
        sent = sum(int(_lines(sender, 2)[1]) for sender in senders)
        _serve_until(collector, lambda: _arrived(collector) >= sent, _CATCHING_UP_S)
        elapsed_s, cpu_s = time.monotonic() - start_s, time.process_time() - cpu_s
        others_cpu_s = sum(map(processor_s, others)) - others_cpu_s
        totals, lag, arrived = collector.totals(), collector.models[-1], _arrived(collector)
        return {
            "sent": sent,
            "arrived": arrived,
            "lost": totals["lost"],
            "not_logged": totals["not_logged"],
            "repeated": totals["repeated"],
            "seconds": round(elapsed_s, 2),
            "events_per_s": round(arrived / elapsed_s),
            "collector_cpu_share": round(cpu_s / elapsed_s, 3),
            "collector_sustains_per_s": round(arrived / cpu_s),
            "others_cpu_share": round(others_cpu_s / elapsed_s, 3),
            "load_average": os.getloadavg()[0],
            "lag_p50_s": round(lag.percentile(0.5), 3),
            "lag_p99_s": round(lag.percentile(0.99), 3),
            "collector_peak_mib": peak_mib(),
        }
    finally:
        for sender in senders:
            sender.kill()
            sender.communicate()


def processor_s(pid: int) -> float:
    """Return the processor time that a child has used, which is known as long as it was not waited for."""
    words = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _arrived(collector: Collector) -> int:
    states = collector.streams.registry.states.values()
    return sum(state.events for state in states if state.source.run_id == "load")


def _serve_until(collector: Collector, is_done: Any, most_s: float = _DEADLINE_S) -> None:
    deadline_s, checked_s = time.monotonic() + most_s, 0.0
    while time.monotonic() < deadline_s:
        collector.turn(0.02)
        if time.monotonic() - checked_s > _CHECK_INTERVAL_S:
            checked_s = time.monotonic()
            if is_done():
                return


_read: dict[int, bytes] = {}


def _lines(sender: subprocess.Popen[str], count: int) -> list[str]:
    """Return the lines that *sender* has printed if they are *count* or more, without waiting; else none."""
    assert sender.stdout is not None
    number = sender.stdout.fileno()
    os.set_blocking(number, False)
    with contextlib.suppress(BlockingIOError):
        _read[sender.pid] = _read.get(sender.pid, b"") + os.read(number, 4096)
    lines = _read.get(sender.pid, b"").decode().splitlines()
    return lines if len(lines) >= count else []


def _sender(endpoints: Sequence[str], options: Sequence[object]) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "benchmarks.simulated", *endpoints, *map(str, options)]
    root = pathlib.Path(__file__).resolve().parents[1]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)  # noqa: S603  ourselves


def peak_mib(pid: int | str = "self") -> int:
    """Return the most memory that a process has had, in MiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) >> 10


if __name__ == "__main__":
    sys.exit(main())
