"""Watching for stragglers while the job runs: reports, actions, and an agreed stop."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import attrs
import msgpack

from trackside.bus import Bus, Subscription
from trackside.core import StopEvent, is_from_signal_handler
from trackside.events import (
    ConfigError,
    Event,
    GpuTimingUnavailable,
    Handler,
    KernelWindow,
    RunsOn,
    SectionWindow,
    Source,
    StragglerReport,
    TrainingConfigured,
    UnreadableError,
    process_source,
)
from trackside.events._settings import suggests_settings
from trackside.handlers import follow
from trackside.handlers.models.scores import KINDS, ScoreAggregator, ScoreReport, Thresholds
from trackside.instruments.torch import RankGroup, is_distributed
from trackside.job._config import LOGGER
from trackside.wire import FrameDecoder, RowEncoder, encode_frame, pack


def gathered(group: RankGroup, source: Source, events: Sequence[Event]) -> list[Event]:
    """
    Return the events of every rank of *group*, rank by rank; a collective.

    Args:
        group: The ranks.
        source: The source of this process, for the others.
        events: The events of this process.

    Raises:
        RuntimeError: if a rank does not take part in time.
    """
    return [event for data in group.all_gather(packed(source, events)) for event in unpacked(data)]


def packed(source: Source, events: Sequence[Event]) -> bytes:
    """Return *events* of *source* as bytes: its identity, and a frame for each."""
    encoder = RowEncoder()
    frames = []
    for seq, event in enumerate(events):
        schema, row = encoder.encode(event, 0)
        frames.append(encode_frame(source.id, seq, seq, dropped={}, schemas=[schema.entry], rows=[row]))
    return pack([source.to_wire(), frames])


def unpacked(data: bytes) -> list[Event]:
    """Return the events in *data*, each with its source."""
    identity, frames = msgpack.unpackb(data)
    decoder = FrameDecoder()
    decoder.introduce(Source.from_wire(identity))
    return [event for frame in frames for event in decoder.decode(frame).events]


LOG: Final = "log"
GATHER: Final = "gather"
CALLS: Final = "calls"

_READ: Final[tuple[type[Event], ...]] = (SectionWindow, KernelWindow, GpuTimingUnavailable, TrainingConfigured)
_POLL_S: Final = 0.5
"""The time between two reads of the logs."""
_MAX_OWN: Final = 256
"""The most events of this rank that wait to be gathered; if there are more, the oldest are left out."""
_MAX_UNREPORTED: Final = 64


@suggests_settings()
class StragglerWatch:
    """
    Scores all ranks while they train, reports stragglers, and stops the job if that is asked for.

    ::

        watch = StragglerWatch(on_straggler=tell_the_operators)
        with trackside.start("runs/", handlers=[watch]):
            for step, batch in enumerate(batches):
                ...
                report = watch.report_if_due()

    Rank 0 makes the reports, by default from the event logs below the job's directory, which it reads on a thread of
    its own. There is no collective except with *windows_from* ``gather`` and with *stop_if_detected*.

    Args:
        on_straggler: Called with each report that names a straggler, and again when the report is amended, on a thread
            of the watch's (``gather``: in `generate_report`). It may be slow, and its errors are logged.
        thresholds: The scores strictly below which a rank is a straggler.
        windows_from: The origin of the other ranks' windows: ``log``, the directory to which they all write;
            ``gather``, a collective in every `generate_report`, which all ranks have to call then; ``calls``, the
            events with which the watch is called.
        report_interval_s: How often `report_if_due` returns a report, in seconds.
        report_every_steps: The same in calls of it, in place of seconds; ``gather`` needs it, so that all ranks agree
            on the step.
        stop_if_detected: Have `should_stop` return True on every rank at the same step, once there is a straggler.
        agree_every_steps: The ranks agree on that every so many steps: one all-reduce of one number, on its own gloo
            group.
        timeout_s: How long a rank waits for the others in a collective, in seconds; then there are no more collectives.
        group: Ranks with the same value of this key in the windows' ``groups`` are peers; all ranks are unless given.
        kinds: The kinds of scores, ``relative`` and ``individual``.

    Raises:
        ConfigError: if an argument is out of its range.
    """

    runs_on = RunsOn.WORKER

    def __init__(
        self,
        *,
        on_straggler: Callable[[ScoreReport], object] | None = None,
        thresholds: Thresholds | None = None,
        windows_from: str = LOG,
        report_interval_s: float = 60.0,
        report_every_steps: int | None = None,
        stop_if_detected: bool = False,
        agree_every_steps: int = 50,
        timeout_s: float = 60.0,
        group: str = "",
        kinds: Sequence[str] = KINDS,
    ) -> None:
        if windows_from not in {LOG, GATHER, CALLS}:
            raise ConfigError("windows_from", windows_from, f'give "{LOG}", "{GATHER}" or "{CALLS}"')
        if windows_from == GATHER and report_every_steps is None:
            raise ConfigError("report_every_steps", None, "gathering needs it: all ranks have to agree on the step")
        self._publish: Callable[[Event], None] | None = None
        self._attempt = 0
        self._aggregator = ScoreAggregator(
            publish=self._pass_on,
            on_report=self._take_report,
            thresholds=thresholds,
            group=group,
            kinds=kinds,
        )
        self._on_straggler = on_straggler
        self._windows_from = windows_from
        self._stop_if_detected = stop_if_detected
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        """Held while the model is used."""
        self._unreported: deque[ScoreReport] = deque(maxlen=_MAX_UNREPORTED)
        self._own: deque[Event] = deque(maxlen=_MAX_OWN)
        self._makes_reports = True
        self._reads_log = False
        self._reader: threading.Thread | None = None
        self._ends = StopEvent()
        self._group: RankGroup | None = None
        self._is_alone = False
        self._is_detected = self._is_agreed = False
        self._steps = 0
        self._reported_at_s = time.monotonic()
        self._report_interval_s, self._every_steps, self._agree_every_steps = 60.0, report_every_steps, 50
        self.configure(
            report_interval_s=report_interval_s,
            report_every_steps=report_every_steps,
            agree_every_steps=agree_every_steps,
        )

    def configure(
        self,
        *,
        thresholds: Thresholds | None = None,
        report_interval_s: float | None = None,
        report_every_steps: int | None = None,
        agree_every_steps: int | None = None,
    ) -> None:
        """
        Change the settings from now on; those that are not given stay as they are.

        Settings in steps have to be changed on all ranks at the same step.

        Raises:
            ConfigError: if one of them is out of its range.
        """
        if report_interval_s is not None and not report_interval_s >= 0:
            raise ConfigError("report_interval_s", report_interval_s, "give a number of seconds, from 0 on")
        for field, steps in (("report_every_steps", report_every_steps), ("agree_every_steps", agree_every_steps)):
            if steps is not None and steps < 1:
                raise ConfigError(field, steps, "give a number of steps, at least 1")
        with self._lock:
            if thresholds is not None:
                self._aggregator.thresholds = thresholds
            self._report_interval_s = self._report_interval_s if report_interval_s is None else report_interval_s
            self._every_steps = self._every_steps if report_every_steps is None else report_every_steps
            self._agree_every_steps = self._agree_every_steps if agree_every_steps is None else agree_every_steps

    @property
    def thresholds(self) -> Thresholds:
        """Scores strictly below which a rank is a straggler."""
        return self._aggregator.thresholds

    # --- begin and end, by the job -----------------------------------------------------------------------------

    def begin(self, bus: Bus, source: Source, directory: Path) -> Subscription:
        """
        Watch the process *source*: read its windows from *bus*, and those of the others as *windows_from* says.

        Args:
            bus: The bus of this rank's windows and of the reports.
            source: The source of this process.
            directory: The directory of the logs of all ranks.
        """
        self._publish, self._attempt, self._ends = bus.publish, source.attempt, StopEvent()
        is_first = source.rank == 0
        self._makes_reports = is_first or self._windows_from == CALLS
        if self._windows_from == LOG and is_first and source.world_size > 1:
            self._reads_log = True
            self._reader = threading.Thread(
                target=self._read, args=(directory, source), name="trackside-stragglers", daemon=True
            )
            self._reader.start()
        return bus.subscribe(self, to=_READ)

    def end(self, timeout_s: float) -> bool:
        """Read the logs as written until now, then stop; False if that took too long. Safe to call twice."""
        self._ends.set()
        reader, self._reader = self._reader, None
        if reader is None:
            return True
        reader.join(timeout_s)
        return not reader.is_alive()

    def _read(self, directory: Path, source: Source) -> None:
        def is_ours(other: Source) -> bool:
            return other.run_id == source.run_id and other.role == source.role

        while not directory.exists():  # the log makes it with its first events
            if self._ends.wait(_POLL_S) and not directory.exists():
                return
        try:
            for event in follow(directory, to=_READ, sources=is_ours, poll_interval_s=_POLL_S, stop=self._ends):
                self._consume(event)
        except UnreadableError as error:
            LOGGER.warning("stragglers are not watched any more: %s", error)

    # --- taking ------------------------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """Read a window, or another event that matters here."""
        if self._windows_from == GATHER:
            with self._lock:
                self._own.append(event)
        elif self._makes_reports and not self._reads_log:
            self._consume(event)

    def _consume(self, event: Event) -> None:
        with self._lock:
            self._aggregator(event)
        self._report_stragglers()

    def _pass_on(self, event: Event) -> None:
        # The logs of earlier attempts are read for the speed of the ranks then; stragglers were reported then.
        if self._publish is not None and isinstance(event, StragglerReport) and event.attempt >= self._attempt:
            self._publish(event)

    def _take_report(self, report: ScoreReport) -> None:
        if report.attempt < self._attempt:
            return
        self._is_detected = bool(report.stragglers)
        if report.stragglers:
            self._unreported.append(report)

    def _report_stragglers(self) -> None:
        """Report the stragglers that were found, with no lock held."""
        while self._unreported:
            try:
                report = self._unreported.popleft()
            except IndexError:  # another thread was quicker
                return
            if self._on_straggler is not None:
                try:
                    self._on_straggler(report)
                except Exception as error:
                    if is_from_signal_handler(error):
                        raise
                    LOGGER.warning("what is to be done about stragglers failed", exc_info=True)

    # --- reports -----------------------------------------------------------------------------------------------

    def generate_report(self) -> ScoreReport | None:
        """
        Return the scores of the latest closed window; None on ranks that make no reports, or if none has closed.

        A collective with *windows_from* ``gather``, and only then.
        """
        if self._windows_from == GATHER:
            self._gather()
        if not self._makes_reports:
            return None
        with self._lock:
            return self._aggregator.latest()

    def report_if_due(self) -> ScoreReport | None:
        """Return a report if one is due; to be called once per step, and with ``gather`` on every rank."""
        self._steps += 1
        if self._every_steps is not None:
            is_due = self._steps % self._every_steps == 0
        else:
            now_s = time.monotonic()
            is_due = now_s >= self._reported_at_s + self._report_interval_s
            self._reported_at_s = now_s if is_due else self._reported_at_s
        return self.generate_report() if is_due else None

    def _gather(self) -> None:
        with self._lock:
            mine = list(self._own)
            self._own.clear()
        events: Iterable[Event] = mine
        try:
            group = self._joined()
            if group is not None:
                source = attrs.evolve(process_source(), rank=group.rank, world_size=group.size)
                events = gathered(group, source, mine)
        except RuntimeError as error:
            self._be_alone("the ranks' windows cannot be gathered", error)
        if self._makes_reports:
            for event in events:
                self._consume(event)

    # --- stopping ----------------------------------------------------------------------------------------------

    def should_stop(self, step: int) -> bool:
        """
        Return whether to stop after *step*, the same on all ranks; to be called at each step, on every rank.

        The ranks agree every *agree_every_steps* steps; only then can the result become true. Without
        *stop_if_detected* it is always false.
        """
        if self._stop_if_detected and not self._is_agreed and (step + 1) % self._agree_every_steps == 0:
            self._is_agreed = self._agree()
        return self._is_agreed

    def _agree(self) -> bool:
        try:
            group = self._joined()
            if group is None:
                return self._is_detected and not self._is_alone
            return group.largest(int(self._is_detected)) > 0
        except RuntimeError as error:
            self._be_alone("the ranks cannot agree on whether to stop", error)
            return False

    def _joined(self) -> RankGroup | None:
        """Return the group of all ranks, made when it is first needed; None if there is only one process."""
        if self._group is None and not self._is_alone and is_distributed():
            self._group = RankGroup(self._timeout_s)
        return self._group

    def _be_alone(self, what: str, error: Exception) -> None:
        """Do without the others from now on, so that a dead rank delays the others only once."""
        self._is_alone, self._group = True, None
        LOGGER.warning("%s, and no more is tried: %s", what, error)


def subscribed(handler: Handler, bus: Bus, source: Source, directory: Path) -> Subscription:
    """Subscribe *handler* to *bus*; if it is a watch, begin it."""
    return handler.begin(bus, source, directory) if isinstance(handler, StragglerWatch) else bus.subscribe(handler)


def end_watching(handlers: Iterable[object], timeout_s: float) -> None:
    """End every watch among *handlers*: its last reports belong before the stream's end."""
    for handler in handlers:
        if isinstance(handler, StragglerWatch):
            handler.end(timeout_s)
