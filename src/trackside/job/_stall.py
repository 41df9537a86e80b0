"""The stall watch: it records the stacks of all threads once when no training step has ended for long."""

from __future__ import annotations

import statistics
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import ClassVar, Final

from trackside.bus import Bus
from trackside.events import Event, IterationEnded, RunsOn, SpanEnded, StallDetected, span_names
from trackside.instruments import open_spans
from trackside.instruments import torch as pytorch
from trackside.wire import FrameView

TIMES_THE_USUAL: Final = 10
_LEAST_STEPS: Final = 3
_REMEMBERED: Final = 101
_MOST_THREADS: Final = 32
_MOST_FRAMES: Final = 24
_MOST_TEXT: Final = 4_000
_OWN_THREADS: Final = "trackside-"


class StallWatch:
    """
    Notes when training steps end, and publishes `StallDetected` once in each stall.

    It reads events on the dispatcher, and the heartbeat thread calls `check`, so the training thread pays nothing.

    Args:
        bus: The bus on which it publishes.
        least_s: The shortest stall, in seconds; a stall also lasts at least ten times as long as a step usually takes.
        read_s: The clock, in seconds.
    """

    runs_on: ClassVar[RunsOn] = RunsOn.DISPATCHER
    types: ClassVar[tuple[type[Event], ...]] = (IterationEnded, SpanEnded)

    def __init__(self, bus: Bus, *, least_s: float = 60.0, read_s: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._least_s = least_s
        self._read_s = read_s
        self._latest_s: float | None = None
        """The time when the latest step or evaluation step was seen to end; None while there is no training."""
        self._latest_ns = 0
        self._step = -1
        self._intervals_s: deque[float] = deque(maxlen=_REMEMBERED)
        """The times between the ends of training steps."""
        self._is_reported = False

    def consume(self, view: FrameView) -> None:
        """Note the ends of iterations and of training loops."""
        events = view.of(*self.types)
        if len(events) > _REMEMBERED:
            self._latest_ns = 0  # what came before the last ones is passed over
        read_s = self._read_s()
        for event in events[-_REMEMBERED:]:
            if isinstance(event, IterationEnded):
                self._latest_s, self._is_reported = read_s, False
                if event.kind == "training":
                    if self._latest_ns:
                        self._intervals_s.append((event.at_ns - self._latest_ns) / 1e9)
                    self._latest_ns, self._step = event.at_ns, event.step
            elif isinstance(event, SpanEnded) and event.name == span_names.TRAINING_LOOP:
                self._latest_s, self._latest_ns = None, 0  # no step is expected from here on

    def check(self) -> None:
        """Publish `StallDetected` if there is a stall that was not published yet."""
        latest_s, intervals_s = self._latest_s, list(self._intervals_s)
        if latest_s is None or self._is_reported or len(intervals_s) < _LEAST_STEPS:
            return
        usual_s, stalled_s = statistics.median(intervals_s), self._read_s() - latest_s
        if stalled_s < max(self._least_s, TIMES_THE_USUAL * usual_s):
            return
        self._is_reported = True
        self._bus.log(
            StallDetected(
                span_id=0,
                step=self._step,
                stalled_s=stalled_s,
                usual_s=usual_s,
                stacks=stacks(),
                open_spans=open_spans(),
                collectives=pytorch.latest_collectives(),
            )
        )


def stacks() -> dict[str, str]:
    """
    Return the Python stack of each thread but trackside's own, by the thread's name, the main thread first.

    At most 32 threads, and the innermost 24 frames or 4,000 characters of each; the innermost frame is the last line.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)  # noqa: SLF001  faulthandler's way
    found: dict[str, str] = {}
    for ident, frame in frames:
        name = names.get(ident, f"thread {ident}")
        if len(found) < _MOST_THREADS and not name.startswith(_OWN_THREADS):
            found[f"{name} ({ident})" if name in found else name] = _stack(frame)
    return found


def _stack(frame: FrameType) -> str:
    lines: list[str] = []
    for one, line in traceback.walk_stack(frame):
        lines.append(f"{one.f_code.co_filename}:{line} in {one.f_code.co_name}")
        if len(lines) == _MOST_FRAMES:
            break
    return "\n".join(reversed(lines))[-_MOST_TEXT:]
