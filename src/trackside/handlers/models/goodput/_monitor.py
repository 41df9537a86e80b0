"""Goodput while the job runs: the model, publishing what it knows from time to time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final

from trackside.events import ConfigError, Event, Heartbeat, Publish, SourceEnded
from trackside.handlers.models.goodput import _problems as problems
from trackside.handlers.models.goodput._accumulator import GoodputAccumulator
from trackside.handlers.models.goodput._fast_path import FAST
from trackside.handlers.models.goodput._process import LATEST_NS
from trackside.handlers.models.goodput._result import NS_PER_S
from trackside.handlers.models.goodput._update import update_of
from trackside.wire import FrameView

_MAIN: Final = "main"


class GoodputMonitor(GoodputAccumulator):
    """
    Publishes a `GoodputUpdated` on an interval, and whenever it is asked to.

    ::

        trackside.start("runs/", handlers=[GoodputMonitor(update_interval_s=60, windows_s=[600, 3600])])

    It is the model and no more: it has no thread, no process and no clock, and time comes from the events, of which
    a job has a heartbeat every second. So over a recorded log it publishes what it published in the job.
    `trackside.start` subscribes one on rank 0, unless it is given another; of a job's other ranks it hears nothing.

    Args:
        publish: Called with every update; `trackside.start` gives it its bus's unless given.
        update_interval_s: Between two updates, in seconds.
        windows_s: The lengths of rolling windows, in seconds.
        read_earlier: Returns the events of earlier attempts. It is called once, with the first event, on a thread of
            its own; until it is done the updates know of this attempt alone, and say so.
        validation_is_productive: As for `GoodputAccumulator`.
        ideal_step_time_s: As for `GoodputAccumulator`.

    Raises:
        ConfigError: if *update_interval_s* or one of *windows_s* is not above zero.
    """

    stands_for: ClassVar[tuple[str, ...]] = ("GoodputAccumulator",)
    """The models whose state its own is as well, for viewers that ask for these."""

    def __init__(
        self,
        publish: Publish | None = None,
        *,
        update_interval_s: float = 30.0,
        windows_s: Sequence[float] = (),
        read_earlier: Callable[[], Iterable[Event]] | None = None,
        validation_is_productive: bool = False,
        ideal_step_time_s: float | None = None,
    ) -> None:
        super().__init__(validation_is_productive=validation_is_productive, ideal_step_time_s=ideal_step_time_s)
        for field, length in [
            ("update_interval_s", update_interval_s),
            *(("windows_s", length) for length in windows_s),
        ]:
            if not length > 0:
                raise ConfigError(field, length, "give a number of seconds above zero")
        self.read_earlier = read_earlier
        self.publish = publish
        self._interval_ns = round(update_interval_s * NS_PER_S)
        self._windows_s = tuple(windows_s)
        self._due_ns = 0
        self._asked_ns: int | None = None
        self._updated_ns: dict[str, int] = {}
        """By session, the time of its last update."""
        self._is_reading = False
        self._earlier: GoodputAccumulator | None = None
        """What was read of earlier attempts and not taken over yet."""

    def __call__(self, event: Event) -> None:
        """Learn from *event*, and publish an update if it is time."""
        usual = FAST.get(type(event))  # as the model does
        if usual is None or not usual(self._process, self._source, event):
            self._consume(event)
        at_ns = event.at_ns
        if type(at_ns) is int and self._due_ns <= at_ns < LATEST_NS and self._is_due_to(event):
            self._update(at_ns)

    def consume(self, frame: FrameView) -> None:
        """Read one frame event by event: an update may be due after any of them."""
        for event in frame.events:
            self(event)

    def ask(self, now_ns: int) -> None:
        """
        Have an update published with the next heartbeat after *now_ns*, in ns since the epoch; from any thread.

        So it covers everything that was published before, which may be on its way still.
        """
        self._asked_ns = now_ns
        self._due_ns = 0

    def _is_due_to(self, event: Event) -> bool:
        if event.source.role != _MAIN or event.derived or isinstance(event, SourceEnded):
            return False  # nothing is published in a stream that has ended
        if self._asked_ns is not None:
            if not isinstance(event, Heartbeat) or event.at_ns < self._asked_ns:
                return False
            self._asked_ns = None
        return True

    def _update(self, at_ns: int) -> None:
        self._due_ns = at_ns + self._interval_ns
        if self._asked_ns is not None:  # in this very moment
            self._due_ns = 0
        if self.read_earlier is not None:
            read, self.read_earlier = self.read_earlier, None
            self._start_reading(read)
        earlier, self._earlier = self._earlier, None
        if earlier is not None:
            self._take_over(earlier)
        publish = self.publish
        if publish is None:
            return
        for session in self.sessions():
            result, since_ns = self.result(session=session), self._updated_ns.get(session, 0)
            if not result.elapsed_s or result.end_ns <= since_ns:
                continue
            update = update_of(self, result, at_ns=at_ns, windows_s=self._windows_s, since_ns=since_ns)
            update.problems.pop(problems.NO_GOOD_END, None)  # it is alive: this is being said
            if self._is_reading:
                update.problems[problems.EARLIER_UNREAD] = 1
            publish(update)
            self._updated_ns[session] = result.end_ns

    # --- earlier attempts --------------------------------------------------------------------------------------

    def _start_reading(self, read: Callable[[], Iterable[Event]]) -> None:
        self._is_reading = True
        thread = threading.Thread(target=self._read, args=[read], name="trackside-goodput", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is about to end
            return

    def _read(self, read: Callable[[], Iterable[Event]]) -> None:
        """Learn from earlier attempts, beside what goes on."""
        earlier = GoodputAccumulator()
        try:
            for event in read():
                earlier(event)
        except Exception:  # whatever could not be read, the rest counts, and the update says that not all is there
            self._earlier = earlier
        else:
            self._earlier = earlier
            self._is_reading = False

    def _take_over(self, earlier: GoodputAccumulator) -> None:
        for session in earlier.sessions():
            end_ns = earlier.result(session=session).end_ns
            self._updated_ns[session] = max(end_ns, self._updated_ns.get(session, 0))  # an update of then has its steps
        self.merge(earlier)
