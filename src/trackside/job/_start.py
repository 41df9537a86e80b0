"""
The start and the end of telemetry: one line around a training script.

Also the code that puts a job's configuration into effect and takes it back, and the goodput monitor that rank 0 gets.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import logging
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs

from trackside._later import load_all
from trackside._platform import after_fork_in_child
from trackside.bus import Bus, BusStats, Subscription, default_bus
from trackside.core import LateThread, Once
from trackside.counters import CounterCollector, CounterSnapshot
from trackside.events import (
    ITERATION,
    ConfigError,
    Event,
    Handler,
    Publish,
    Source,
    UnreadableError,
    clock,
    set_process_source,
)
from trackside.events._settings import suggests_settings
from trackside.handlers import EventLog, replay
from trackside.handlers.models import TrainingMetrics
from trackside.handlers.models.goodput import GoodputMonitor
from trackside.instruments import (
    TrainingDefaults,
    annotate,
    close_section_window,
    is_good_end,
    open_spans,
    record_exception,
    set_training_defaults,
)
from trackside.instruments._iteration import count_from_zero
from trackside.instruments._moments import end_loops
from trackside.instruments.section_windows import begin_section_windows
from trackside.instruments.system import SystemSampling
from trackside.instruments.torch import is_distributed
from trackside.job._config import LOGGER, JobConfig
from trackside.job._heartbeat import HeartbeatThread
from trackside.job._identity import describe, place_found_late, report_rivals
from trackside.job._inherit import announce, leave_parent, withdraw
from trackside.job._remote_access import Remote, RemoteAccess, keep_for_viewers
from trackside.job._stall import StallWatch
from trackside.job._stragglers import end_watching, subscribed
from trackside.job._summary import losses, summarize
from trackside.job._variables import misspelt_variables

if TYPE_CHECKING:
    from typing_extensions import Self

    from trackside.job._config import TrainingConfig


class AppliedConfig:
    """
    A `JobConfig` in effect; made by `apply`.

    Attributes:
        job: The configuration.
        is_enabled: Whether this rank takes part.
    """

    def __init__(self, job: JobConfig, source: Source, bus: Bus) -> None:
        self.job = job
        self.is_enabled: bool = job.is_enabled(source.rank)
        self._bus = bus
        self._was_strict = bus.strict
        self._training: TrainingConfig | None = None
        self.subscriptions: list[Subscription] = []
        """Those of the handlers that the configuration names."""
        self._log_handlers: list[logging.Handler] = []
        self._log_level = LOGGER.level
        self._source = source

    def begin(self) -> None:
        """
        Put the configuration into effect; publish `JobConfigured` and, if the training is known, `TrainingConfigured`.

        On a rank that does not take part, only log one line.

        Raises:
            ConfigError: if a function that was given for a field fails, or a handler cannot be subscribed.
        """
        if self.job.log is not None:
            self._log_handlers = self.job.log.apply()
        if not self.is_enabled:
            LOGGER.info("telemetry is off on rank %d, as configured", self._source.rank)
            return
        self._bus.strict = self.job.strict
        annotate(self.job.annotate or None)
        self.subscriptions = self.job.subscribe_handlers(self._source.rank, self._bus)
        self._bus.log(self.job.configured(self._source))
        if self.job.training is not None:
            self.set_training(self.job.training)

    def set_training(self, training: TrainingConfig) -> None:
        """
        Set the training, once.

        Raises:
            ConfigError: if it was set before, or a function that was given for a field fails.
        """
        if self._training is not None:
            raise ConfigError("training", training, "it was given before, and is given once")
        if not self.is_enabled:
            self._training = training
            return
        set_training_defaults(training.defaults())
        event = training.configured()
        self._training = training
        self._bus.log(event)

    def end(self, timeout_s: float = 2.0) -> bool:
        """
        Take the configuration back: close its handlers, and restore the earlier settings.

        Args:
            timeout_s: How long each handler may take, in seconds.

        Returns:
            Whether every handler was done in time.
        """
        done = True
        for subscription in self.subscriptions:
            done = subscription.close(timeout_s) and done
        self._bus.strict = self._was_strict
        set_training_defaults(TrainingDefaults())
        if self.is_enabled:
            annotate(None)
        LOGGER.setLevel(self._log_level)
        for handler in self._log_handlers:
            LOGGER.removeHandler(handler)
            handler.close()
        global _applied  # noqa: PLW0603
        if _applied is self:
            _applied = None
        return done


_applied: AppliedConfig | None = None


def apply(job: JobConfig, source: Source, bus: Bus = default_bus) -> AppliedConfig:
    """
    Put *job* into effect in the process *source*.

    Raises:
        ConfigError: if a function that was given for a field fails, or a handler cannot be subscribed.
    """
    global _applied  # noqa: PLW0603  a process runs one job
    applied = AppliedConfig(job, source, bus)
    applied.begin()
    _applied = applied
    return applied


def set_training_config(training: TrainingConfig) -> None:
    """
    Set the training, if the job's configuration did not; once.

    Raises:
        ConfigError: if no job is configured, or the training was given before.
    """
    if _applied is None:
        raise ConfigError("training", training, "start telemetry with a JobConfig first")
    _applied.set_training(training)


_MAIN = "main"


def with_goodput_monitor(
    handlers: Sequence[Handler], *, publish: Publish, directory: str | os.PathLike[str], source: Source
) -> Sequence[Handler]:
    """
    Return *handlers*, with a goodput monitor among them on rank 0.

    Each monitor, the user's or this one, publishes through *publish* unless it was given another callable, and reads
    the rank's earlier attempts in *directory*.
    """
    monitors = [handler for handler in handlers if isinstance(handler, GoodputMonitor)]
    if not monitors and source.rank == 0 and source.role == _MAIN:
        monitors = [GoodputMonitor()]
        handlers = [*monitors, *handlers]
    for monitor in monitors:
        monitor.publish = monitor.publish or publish
    show_earlier_attempts(monitors, directory=directory, source=source)
    return handlers


def show_earlier_attempts(handlers: Iterable[object], *, directory: str | os.PathLike[str], source: Source) -> None:
    """Have the goodput monitors among *handlers* read the earlier attempts of *source*, if there can be any."""
    if not source.session_tag and not source.attempt:  # it is the first of its session
        return
    for monitor in handlers:
        if isinstance(monitor, GoodputMonitor):
            monitor.read_earlier = monitor.read_earlier or (lambda: _earlier(directory, source))


def ask_for_goodput(handlers: Iterable[object]) -> None:
    """Have every monitor among *handlers* publish an update with the next heartbeat."""
    for handler in handlers:
        if isinstance(handler, GoodputMonitor):
            handler.ask(clock.now_ns())


def _earlier(directory: str | os.PathLike[str], here: Source) -> Iterator[Event]:
    """Yield the events of other processes that were this rank of the session."""

    def is_earlier(there: Source) -> bool:
        is_ours = (there.session_tag or there.run_id) == (here.session_tag or here.run_id)
        return is_ours and there.id != here.id and there.role == _MAIN and there.rank == here.rank

    try:
        yield from replay(directory, sources=is_earlier)
    except UnreadableError:  # the readable part was read; commands that read the log report the rest
        return


_UNDO_S: Final = 0.5
_LOOK_S: Final = 0.1
_RIVALS_AT_BEAT: Final = 3
"""The heartbeat at which every living process has written to its log."""

_SECONDS: Final = (0.001, 1e6)

_running: dict[Bus, Job] = {}
"""The job of each bus that has one."""
_session = ""
"""The session, else the run, of the latest job on the default bus; empty before the first."""
_starting: dict[Bus, object] = {}
"""The call of `start` that is in progress, for each bus that has one."""
after_fork_in_child(_starting.clear)  # another thread of the parent's may have been in one


@suggests_settings(remote=Remote, job=JobConfig)
def start(
    directory: str | os.PathLike[str],
    *,
    job: JobConfig | None = None,
    handlers: Sequence[Handler] = (),
    collect_interval_s: float = 10.0,
    heartbeat_interval_s: float = 1.0,
    stall_after_s: float | None = 60.0,
    redact: Callable[[Event], Event | None] | None = None,
    system: bool = False,
    report: bool | None = None,
    remote: Remote | None = None,
    bus: Bus = default_bus,
) -> Job:
    """
    Turn telemetry on: an event log below *directory*, training metrics, counter windows, heartbeats, clock readings.

    ::

        with trackside.start("runs/"):
            train()

    Use it as a context manager, or keep the result and `Job.close` it; a job that is still open is closed at exit.
    Every rank calls this with the same directory: each process writes a file of its own.

    Args:
        directory: The directory of the event log; made if it does not exist, readable only by this user.
        job: The identity of this run: names, tags, metadata, and the ranks that take part. On other ranks nothing is
            started or written. Without it the launcher's variables are used.
        handlers: Models, sinks and callables to subscribe for as long as the job runs.
        collect_interval_s: The length of counter windows, in seconds.
        heartbeat_interval_s: The time between two heartbeats, in seconds.
        stall_after_s: The stacks of all threads are recorded when no training step has ended for this many seconds, and
            for ten times the usual time of a step. None records none.
        redact: Called with every event before it is recorded; returns what to record, or None for nothing.
        system: Whether to read CPU, memory and the rank's GPU into counters, in the background, every two seconds.
        report: Whether to print a summary to stderr at the end. By default rank 0 does, and any rank that lost events.
        remote: How others get the events during the job, e.g. ``Remote(publish=True)``; the environment completes it.
        bus: The bus to use, if not the default one.

    Raises:
        ConfigError: if an argument is wrong, telemetry was turned on already, or *bus* is closed.
    """
    _check_seconds("collect_interval_s", collect_interval_s)
    _check_seconds("heartbeat_interval_s", heartbeat_interval_s)
    if stall_after_s is not None:
        _check_seconds("stall_after_s", stall_after_s)
    for field, given, is_right, remedy in (
        ("job", job, isinstance(job, JobConfig | None), "give a trackside.JobConfig(…)"),
        ("remote", remote, isinstance(remote, Remote | None), "give a trackside.Remote(…), as in Remote(publish=True)"),
        ("redact", redact, redact is None or callable(redact), "give a function that takes an event and returns one"),
        ("handlers", handlers, isinstance(handlers, Iterable), "give a list of handlers"),
    ):
        if not is_right:
            raise ConfigError(field, given, remedy)
    if bus.closed:
        remedy = "close() has closed the bus for good: start Python anew, and end a job with its own close()"
        raise ConfigError("start()", str(directory), remedy)
    turn = object()
    try:
        if _starting.setdefault(bus, turn) is not turn:
            raise ConfigError("start()", str(directory), "another call is turning telemetry on; call it once")
        running = _running.get(bus)
        if running is not None and running.is_here:
            close = "close that first, if need be with trackside.job.running_job().close()"
            remedy = f"telemetry is on already, into {running.directory}; {close}"
            raise ConfigError("start()", str(directory), remedy)
        access = (Remote() if remote is None else remote).with_environment()
        log, source = EventLog(directory), describe(job)
        is_on = job is None or job.is_enabled(source.rank)
        if source.rank == 0:
            for name, meant in misspelt_variables(os.environ):
                _say(f"trackside: the environment has {name}, which is not read; did you mean {meant}?")
        load_all("trackside")
        leave_parent()
        if running is not None:
            running.leave_to_parent()
        return Job(
            log if is_on else None,
            source=source,
            config=job,
            handlers=tuple(handlers) if is_on else (),
            collect_interval_s=collect_interval_s,
            heartbeat_interval_s=heartbeat_interval_s,
            stall_after_s=stall_after_s,
            redact=redact,
            system=system,
            report=report,
            remote=access,
            bus=bus,
        )
    finally:
        if _starting.get(bus) is turn:
            del _starting[bus]


def _begin_steps(source: Source) -> None:
    """Count steps from 0 if an earlier job of this process was another run; a later job of the same run goes on."""
    global _session
    earlier, _session = _session, source.session_tag or source.run_id
    if earlier not in {"", _session}:
        count_from_zero()


def running_job(bus: Bus = default_bus) -> Job | None:
    """Return the job by which telemetry is on in this process; None if it is off."""
    found = _running.get(bus)
    return found if found is not None and found.is_open else None


def _check_seconds(field: str, given: object) -> None:
    least, most = _SECONDS
    if not isinstance(given, (int, float)) or not least <= given <= most:
        raise ConfigError(field, given, f"give seconds from {least:g} to {most:,.0f}")


class Job:
    """Telemetry that is on; made by `start`."""

    def __init__(
        self,
        log: EventLog | None,
        *,
        source: Source,
        config: JobConfig | None,
        handlers: Sequence[Handler],
        collect_interval_s: float,
        heartbeat_interval_s: float,
        stall_after_s: float | None,
        redact: Callable[[Event], Event | None] | None,
        system: bool,
        report: bool | None,
        remote: Remote,
        bus: Bus,
    ) -> None:
        self.source: Source = source
        self.log = log
        self.bus = bus
        self._config = config
        self._is_placed = False
        """Whether torch.distributed was asked for the rank after it was initialised."""
        self._beats = 0
        self._report = report
        self._began_s = time.monotonic()
        self._pid = os.getpid()
        self._is_closed = False
        self._closing = Once()
        self._is_ending = False
        """Whether all events that belong before the end of the stream were logged."""
        self._subscriptions: list[Subscription] = []
        self._redact_before = bus.redact
        self._applied: AppliedConfig | None = None
        self._collector: CounterCollector | None = None
        self._counters: Sequence[CounterSnapshot] | None = None
        """The totals at the end of the job; None before."""
        self._heartbeat: HeartbeatThread | None = None
        self._remote: RemoteAccess | None = None
        self._system: SystemSampling | None = None
        self._uncaught: UncaughtExceptions | None = None
        try:
            set_process_source(source)
            if redact is not None:
                bus.redact = redact
            bus.end("succeeded by another job")  # a stream that was open before; ours begins when the log joins
            self._earlier = bus.stats()
            if log is not None:
                handlers = with_goodput_monitor(handlers, publish=bus.publish, directory=log.directory, source=source)
                for handler in (log, TrainingMetrics(publish=bus.publish), *handlers):
                    # One by one: if one fails, those before it must leave.
                    self._subscriptions.append(subscribed(handler, bus, source, log.directory))
                self._subscriptions.extend(keep_for_viewers(bus, handlers, remote))  # adds each before the next
                self._remote = RemoteAccess(
                    remote, bus=bus, source=source, directory=log.directory, read_stats=self._stats
                )
            self._applied = apply(config, source, bus) if config is not None else None
            if log is not None:
                self._system = SystemSampling(bus) if system else None
                self._collector = bus.collect(interval_s=collect_interval_s)
                self._check_stall = self._watch_stalls(stall_after_s)
                self._heartbeat = HeartbeatThread(
                    bus,
                    interval_s=heartbeat_interval_s,
                    read_stats=self._stats,
                    read_open_spans=open_spans,
                    on_beat=self._on_beat,
                )
                self._heartbeat.start()
                self._uncaught = UncaughtExceptions(bus)
                announce(log.directory, source)
                self._invite(log)
            if bus is default_bus:  # iterations and sections publish on the default bus
                _begin_steps(source)
                begin_section_windows()
            _running[bus] = self
            atexit.register(self._close_at_exit)
        except BaseException:
            if self._heartbeat is not None:
                self._heartbeat.cancel(_UNDO_S)
            if self._collector is not None:
                self._collector.close()
            bus.end("not started")
            self._leave(time.monotonic() + _UNDO_S)
            self._be_over()
            raise

    def _watch_stalls(self, least_s: float | None) -> Callable[[], object]:
        """Return a function that checks whether training stalls; if *least_s* is None, one that does nothing."""
        if least_s is None:
            return lambda: None
        watch = StallWatch(self.bus, least_s=least_s)
        self._subscriptions.append(self.bus.subscribe(watch, to=watch.types, min_priority=ITERATION))
        return watch.check

    def _on_beat(self) -> None:
        """Check, on the heartbeat thread, for the changes that no call reports."""
        self._check_stall()
        self._look_for_place()
        self._beats += 1
        if self._beats == _RIVALS_AT_BEAT and self.directory is not None:
            report_rivals(self.directory, self.source)

    def _look_for_place(self) -> None:
        """Ask torch.distributed for the rank, once, as soon as it is initialised."""
        if not self._is_placed and is_distributed():
            self._is_placed = True
            self.describe(**place_found_late(self.source, self._config))

    def describe(self, **fields: Any) -> None:
        """
        Change *fields* of this process's `Source`, which were not known when telemetry began.

        It stays the same source and the same stream, even with another rank or run: events that were recorded before
        get the new description, too.
        """
        source = attrs.evolve(self.source, **fields)
        if source == self.source:
            return
        before, self.source = self.source, source
        set_process_source(source, instead_of=before)
        if self.directory is not None:
            self.bus.describe(source)
            handlers = [subscription.handler for subscription in self._subscriptions]
            show_earlier_attempts(handlers, directory=self.directory, source=source)

    @property
    def directory(self) -> Path | None:
        """The directory of the event log; None on a rank that does not take part."""
        return self.log.directory if self.log is not None else None

    @property
    def endpoints(self) -> list[str]:
        """The endpoints at which this process can be watched, and the collector that it sends to."""
        return self._remote.endpoints if self._remote is not None else []

    @property
    def is_watched(self) -> bool:
        """Whether a viewer or the collector gets a stream now."""
        return self._remote is not None and self._remote.is_watched

    @property
    def is_here(self) -> bool:
        """Whether this process turned telemetry on by this job; True also while it is being closed."""
        return os.getpid() == self._pid

    @property
    def is_open(self) -> bool:
        """Whether telemetry is on by this job, in this process: a forked child has its parent's log, not its job."""
        return not self._is_closed and self.is_here

    def close(self, *, reason: str = "closed", timeout_s: float = 2.0) -> bool:
        """
        Turn telemetry off: publish the last windows, write everything, print the summary.

        Closing twice is harmless, and finishes what an exception interrupted.

        Args:
            reason: The reason that the log records.
            timeout_s: The longest this may take, in seconds, whatever is stalled.

        Returns:
            Whether everything was written.
        """
        return self._closing.run(lambda: self._close(reason, timeout_s)) if self.is_here else True

    def _close(self, reason: str, timeout_s: float) -> bool:
        self._is_closed = True
        try:
            return self._finish(reason, timeout_s)
        except BaseException:  # raised by a signal handler; another call finishes this
            self._is_closed = False
            raise

    def _finish(self, reason: str, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        if self._uncaught is not None:
            self._uncaught.close()
            reason = self._uncaught.ended_program or reason
        if not self._is_ending:  # else an event that is logged now would begin another stream
            self._log_last_events(timeout_s)
            self._is_ending = True
        # A thread that still logs would begin another stream, in the same log.
        self.bus.end(reason, leaving=self._all_subscriptions())
        done = self.bus.flush(max(0.0, deadline_s - time.monotonic()))
        done = self._leave(deadline_s) and done
        # Only after every handler has left: some lose events when they leave.
        stats = self._stats(max(_LOOK_S, deadline_s - time.monotonic()))
        is_reported = self.source.rank == 0 or losses(stats, is_done=done) if self._report is None else self._report
        if self.log is not None and is_reported:
            elapsed_s = time.monotonic() - self._began_s
            _say(summarize(self.source, stats, self._counters or (), self.log, elapsed_s, is_done=done))
        self._be_over()
        return done

    def _stats(self, timeout_s: float = 1.0) -> BusStats:
        """Return the counts of the bus since the job began: one process may run several jobs, one after another."""
        return self.bus.stats(timeout_s).since(self._earlier)

    def _all_subscriptions(self) -> list[Subscription]:
        parts = [part for part in (self._applied, self._remote) if part is not None]
        return [*self._subscriptions, *(one for part in parts for one in list(part.subscriptions))]

    def _log_last_events(self, timeout_s: float) -> None:
        """Log the events that belong before the end of the stream."""
        if self.bus is default_bus:
            end_loops(None)
        ask_for_goodput(subscription.handler for subscription in self._subscriptions)  # by the last heartbeat
        if self._heartbeat is not None:
            self._heartbeat.stop(timeout_s / 10)
        if not self._is_placed and is_distributed():
            # The job was shorter than the time between two heartbeats. The call may hang if another process hangs.
            asking = LateThread(self._look_for_place, "trackside-place")
            asking.start()
            asking.join(timeout_s / 10)
        if self._system is not None:
            self._system.close(timeout_s / 10)
        if self._collector is not None:
            self._collector.close()
        if self._counters is None:
            self._counters = self.bus.registry.snapshots(of_job=True)
        self.bus.registry.end_job()
        if self.bus is default_bus:
            close_section_window()  # sections publish on the default bus
        # The events that models publish when they read the last events belong before the end, too.
        self.bus.flush(timeout_s / 4)
        end_watching((subscription.handler for subscription in self._subscriptions), timeout_s / 4)

    def _be_over(self) -> None:
        """Let another job start in this process; its children do not find this job any more."""
        if self._uncaught is not None:
            self._uncaught.close()
        if self.directory is not None:
            withdraw(self.directory)
        self._is_closed = True
        if _running.get(self.bus) is self:
            del _running[self.bus]
        atexit.unregister(self._close_at_exit)

    def _leave(self, deadline_s: float) -> bool:
        """Close the subscriptions, each with a fair share of the time, and restore the bus."""
        if self._system is not None:
            self._system.close(0)
        end_watching((subscription.handler for subscription in self._subscriptions), 0)
        done = True
        if self._remote is not None:
            self._remote.close(max(0.0, deadline_s - time.monotonic()) / 3)
            done = self._remote.is_delivered  # viewers are promised nothing
        if self._applied is not None:
            done = self._applied.end(max(0.0, deadline_s - time.monotonic()) / 2) and done
        for place, subscription in enumerate(self._subscriptions):
            share_s = max(0.0, deadline_s - time.monotonic()) / (len(self._subscriptions) - place)
            done = subscription.close(share_s) and done
        self.bus.redact = self._redact_before
        set_process_source(None)
        return done

    def leave_to_parent(self) -> None:
        """In a forked child: leave the log of the parent's job, so that the child can start its own."""
        self.bus.end("succeeded by a job of its own")
        for subscription in self._subscriptions:
            subscription.close(_UNDO_S)

    def _invite(self, log: EventLog) -> None:
        """Print the command with which this job can be watched."""
        if self._remote is not None and self._remote.is_open and self._report is not False and self.source.rank == 0:
            _say(f"trackside: watch it with: trackside attach {shlex.quote(str(log.directory))}")

    def _close_at_exit(self) -> None:
        self._record_exit()
        self.close(reason="exit")

    def _record_exit(self) -> None:
        """Record that the program ends itself, if its exit status means failure."""
        if self._uncaught is not None and self.is_open:
            self._uncaught.record(SystemExit(self._uncaught.exit_status))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._uncaught is not None:
            self._uncaught.record(error)
        self.close(reason="closed" if error is None or is_good_end(error) else type(error).__name__)


def _say(text: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it was closed
            print(text, file=sys.stderr, flush=True)  # noqa: T201


class UncaughtExceptions:
    """
    Publishes the exceptions that end the program or one of its threads.

    The hooks that were there before are called as if this one did not exist, so the program prints what it always did.
    Python calls no hook for a `SystemExit`. So ``sys.exit``, the built-in ``exit`` and ``quit``, and those of them that
    the main module has imported, are replaced too. A `SystemExit` that is raised otherwise is not noticed. Nor is it
    known whether it was caught: the status counts if telemetry is still on when the interpreter ends.
    """

    def __init__(self, bus: Bus) -> None:
        self.ended_program: str = ""
        """The name of the exception that ends the program; empty while there is none."""
        self.exit_status: str | int | None = None
        """The status that the program gave to ``sys.exit``."""
        self._bus = bus
        self._is_on = True
        self._program_hook, self._thread_hook = sys.excepthook, threading.excepthook
        # Each look-up makes a new bound method, and `close` must recognise these.
        self._own_program_hook, self._own_thread_hook = self._end_program, self._end_thread
        sys.excepthook, threading.excepthook = self._own_program_hook, self._own_thread_hook
        exits = [sys.exit, *(vars(builtins)[name] for name in ("exit", "quit") if name in vars(builtins))]
        self._exits = [
            (names, name, leave, self._noting(leave))
            for names in map(vars, (sys, builtins, sys.modules["__main__"]))
            for name, leave in list(names.items())
            if any(leave is one for one in exits)
        ]
        for names, name, _, own in self._exits:
            names[name] = own

    def _end_program(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._is_on:
            self.record(error)
        self._program_hook(kind, error, trace)

    def _end_thread(self, arguments: Any) -> None:
        if self._is_on and arguments.exc_value is not None and arguments.exc_type is not SystemExit:
            record_exception(arguments.exc_value, self._bus)
        self._thread_hook(arguments)

    def _noting(self, leave: Callable[[Any], NoReturn]) -> Callable[..., NoReturn]:
        """Return a function that notes the exit status and calls *leave*; of several calls the last counts."""

        @functools.wraps(leave, updated=())
        def noting(status: str | int | None = None, /) -> NoReturn:
            # At a prompt, for example of IPython, it does not end the program.
            if self._is_on and threading.current_thread() is threading.main_thread() and not hasattr(sys, "ps1"):
                self.exit_status = status
            leave(status)

        return noting

    def record(self, error: BaseException) -> None:
        """Publish that *error* ends the program, unless another one does or it is a good end."""
        if not self.ended_program and not is_good_end(error):
            self.ended_program = type(error).__name__
            # First the loops, whose spans record in which part the exception was raised.
            if self._bus is default_bus:
                end_loops(error)
            record_exception(error, self._bus)

    def close(self) -> None:
        """Remove the hooks; if other code has wrapped them since, they stay and only call the earlier hooks."""
        self._is_on = False
        for names, name, before, own in self._exits:
            if names.get(name) is own:
                names[name] = before
        if sys.excepthook is self._own_program_hook:
            sys.excepthook = self._program_hook
        if threading.excepthook is self._own_thread_hook:
            threading.excepthook = self._thread_hook
