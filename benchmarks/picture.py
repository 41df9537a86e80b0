"""
A picture of where the microseconds of a step go: ``python -m benchmarks.picture docs/step.svg``.

A small model is trained in steps of 1 ms with event log, models and publisher on, as in `benchmarks.whole`. The
training thread's time is that of steps with telemetry beyond steps without it; the floor is the time that noting the
same moments by hand takes. Of the other threads it is their CPU time, and the dispatcher's is divided by
what it does.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from html import escape
from typing import Any
from unittest import mock

import attrs

import trackside
from benchmarks.whole import Loop, alternating
from trackside.bus import _dispatcher as dispatcher
from trackside.bus._frames import FrameBatcher
from trackside.handlers.models.goodput._goodput_monitor import GoodputMonitor
from trackside.handlers.models.training_metrics import TrainingMetrics

STEP_S = 1e-3
STEPS = 10_000
WATCHED: tuple[tuple[Any, str, str], ...] = (
    (GoodputMonitor, "consume", "goodput"),
    (TrainingMetrics, "consume", "training metrics"),
    (dispatcher, "deliver_plain", "encoding and handing on events"),
    (FrameBatcher, "cut", "frames"),
)
DISPATCHER = "trackside-dispatcher"
THREADS = {
    "trackside-event-log": "writing the event log",
    "trackside-heartbeat": "heartbeats",
    "trackside-publisher": "publisher",
    "trackside-sampler": "counters, every 10 s",
}

WIDTH, LABEL, ROW, LEFT = 760, 270, 24, 16


@attrs.frozen
class Group:
    """Threads, and the parts of their time in a step."""

    title: str
    parts_us: dict[str, float]

    @property
    def total_us(self) -> float:
        """The time of all parts, in µs."""
        return sum(self.parts_us.values())


def measured() -> tuple[float, list[Group]]:
    """Train, and return the time of a step without telemetry, in µs, and what is added to it."""
    loop = Loop()
    loop.calibrate(STEP_S)
    with (
        tempfile.TemporaryDirectory() as directory,
        trackside.start(directory, report=False, remote=trackside.Remote(publish=True)),
        trackside.training_loop(0),
    ):
        turns = alternating(loop, STEP_S)
        with watched() as spent_ns:
            loop.instrumented(500)
            trackside.flush()
            spent_ns.clear()
            before_ns = thread_times()
            loop.instrumented(STEPS)
            trackside.flush()
            after_ns = thread_times()
    others_us = {name: (after_ns[name] - before_ns.get(name, 0)) / 1e3 / STEPS for name in after_ns}
    parts_us = {what: spent_ns[what] / 1e3 / STEPS for _, _, what in WATCHED}
    parts_us["the rest of the dispatcher's work"] = others_us[DISPATCHER] - sum(parts_us.values())
    parts_us |= {what: others_us.get(name, 0.0) for name, what in THREADS.items()}
    by_hand_us, own_us = (excess_us(turns, kind) for kind in ("by hand", "with"))
    own = Group(
        "The training thread",
        {"the same moments noted by hand": by_hand_us, "4 spans, 1 iteration, 15 counters": own_us - by_hand_us},
    )
    return statistics.median(turns["without"]) / 1e3, [own, Group("Other threads", parts_us)]


def excess_us(turns: dict[str, list[float]], kind: str) -> float:
    """Return the median time of steps of *kind* beyond their neighbours without telemetry, in µs."""
    return statistics.median(one - bare for one, bare in zip(turns[kind], turns["without"], strict=True)) / 1e3


@contextmanager
def watched() -> Iterator[Counter[str]]:
    """Count the CPU time, in ns, that the functions of `WATCHED` take within the block."""
    spent_ns: Counter[str] = Counter()

    def timed(function: Callable[..., Any], what: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began_ns = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                spent_ns[what] += time.thread_time_ns() - began_ns

        return call

    with ExitStack() as stack:
        for owner, name, what in WATCHED:
            stack.enter_context(mock.patch.object(owner, name, timed(getattr(owner, name), what)))
        yield spent_ns


def thread_times() -> dict[str, int]:
    """Return the CPU time of each thread but this one, in ns, by name."""
    found: dict[str, int] = {}
    for thread in threading.enumerate():
        if thread.ident is not None and thread is not threading.current_thread():
            found[thread.name] = time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))
    return found


def drawn(step_us: float, groups: list[Group]) -> str:
    """Return the picture as SVG: a row for each part."""
    most_us = max(part for group in groups for part in group.parts_us.values())
    scale = (WIDTH - LABEL - 2 * LEFT - 60) / most_us
    rows: list[str] = []
    y = ROW
    for group in groups:
        share = group.total_us / step_us
        title = f"{group.title}: {group.total_us:.1f} µs, {100 * share:.1f} % of a step of {step_us / 1e3:.2f} ms"
        rows.append(f'<text class="title" x="{LEFT}" y="{y}">{escape(title)}</text>')
        y += ROW
        for what, part_us in group.parts_us.items():
            rows += [
                f'<text x="{LEFT}" y="{y}">{escape(what)}</text>',
                f'<rect x="{LABEL}" y="{y - 12}" width="{max(1.0, part_us * scale):.1f}" height="14" rx="2"/>',
                f'<text x="{LABEL + max(1.0, part_us * scale) + 8:.1f}" y="{y}">{part_us:.1f} µs</text>',
            ]
            y += ROW
        y += ROW // 2
    style = (
        "text{font:14px sans-serif;fill:#333}.title{font-weight:bold}rect{fill:#3d7ea6}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}rect{fill:#6fb3dd}}"
    )
    size = f'width="{WIDTH}" height="{y - ROW}" viewBox="0 0 {WIDTH} {y - ROW}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>\n' + "\n".join(rows) + "\n</svg>\n"


def main() -> None:
    """Measure, and write the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture", description=__doc__)
    parser.add_argument("file", type=pathlib.Path, help="the picture, for example docs/step.svg")
    options = parser.parse_args()
    step_us, groups = measured()
    options.file.write_text(drawn(step_us, groups), encoding="utf-8")
    for group in groups:
        print(f"{group.title}: {group.total_us:.1f} µs of a step of {step_us:.0f} µs")
        for what, part_us in group.parts_us.items():
            print(f"  {part_us:6.2f}  {what}")


if __name__ == "__main__":
    main()
