"""``trackside run``: a job with a collector beside it, and the report at its end."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from trackside._platform import ExitWatch, exit_status_of
from trackside.bus import Bus
from trackside.cli._print import directory_name, warn
from trackside.cli._report import run as report
from trackside.core.text import printable
from trackside.events import (
    ConfigError,
    ProcessExited,
    ProgramEnded,
    Source,
    TracksideError,
    UnreadableError,
    __version__,
)
from trackside.handlers import EventLog
from trackside.handlers.eventlog import is_stream, stream_module
from trackside.handlers.zeromq import Collector
from trackside.report import AttemptOutline, read_runs

if TYPE_CHECKING:
    from trackside.handlers.nats import NatsSink

_STOP_S: Final = 10.0
_LOOK_S: Final = 0.1
"""The time between two searches for new processes, in seconds."""
_CLOCK_S: Final = 60.0
"""The most by which the clock of a stream's server may be behind this machine's, in seconds."""
_SIGNALLED: Final = 128
"""Added, as shells do, to the number of the signal that ended a program."""

HELP = "run a job with a collector beside it, and report at its end"
DESCRIPTION = (
    "Run a job, such as torchrun, on this node with a collector beside it. Every process of it that "
    "calls trackside.start() finds the collector by itself. Ends with the job's exit code."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--log",
        metavar="DIR",
        type=directory_name,
        default="runs",
        help="where the collector keeps the logs (default: runs)",
    )
    parser.add_argument(
        "--collector",
        metavar="STREAM",
        help="send everything to this stream, as nats://HOST:PORT/STREAM, in place of a collector here",
    )
    parser.add_argument("--no-report", action="store_true", help="print no report at the end")
    parser.add_argument("program", metavar="-- COMMAND", nargs=argparse.REMAINDER, help="the job's command line")


def run(options: argparse.Namespace) -> int:
    """Run the job and print the report; return the job's exit code."""
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        raise UnreadableError("the command line", "names no program", "give the job's command line after --")
    if options.collector is not None:
        return _run_into_stream(options, program)
    with tempfile.TemporaryDirectory(prefix="trackside-") as sockets:  # for this user alone
        collector = Collector(f"ipc://{sockets}/ranks", publish=f"ipc://{sockets}/viewers", log=options.log)
        earlier = frozenset(collector.streams.registry.states)
        thread = threading.Thread(target=collector.serve, name="trackside-collector")
        thread.start()
        exits = _Exits(collector, earlier)
        try:
            began_ns = time.time_ns()
            status = _run(program, {"TRACKSIDE_COLLECTOR": collector.endpoint}, str(collector.viewer_endpoint))
        finally:
            exits.close()
            collector.stop()
            thread.join(_STOP_S)
            collector.close()
    states = [
        state
        for name, state in collector.streams.registry.states.items()
        if name not in earlier and state.source.role != "collector"
    ]
    session = _record_exit(options.log, EventLog(options.log), status, began_ns, exits.seen) if states else None
    got = f"{sum(state.events for state in states):,} events came from {len(states):,} process(es)"
    warn(f"trackside run: {got}, and are in {printable(options.log)}")
    if not options.no_report and states:
        _report_on(options.log, session)
    return _exit_code(status)


def _run_into_stream(options: argparse.Namespace, program: Sequence[str]) -> int:
    address = options.collector
    if not is_stream(address):
        raise ConfigError("--collector", address, "give nats://HOST:PORT/STREAM")
    sink = stream_module().sink_to(address)
    began_ns = time.time_ns()
    status = _run(program, {"TRACKSIDE_COLLECTOR": address}, str(stream_module().StreamAddress.parse(address)))
    written = f"{address}?since={began_ns / 1e9 - _CLOCK_S:.3f}"
    session = _record_exit(written, sink, status, began_ns, ())
    if not options.no_report:
        _report_on(written, session)
    return _exit_code(status)


def _exit_code(status: int) -> int:
    return status if status >= 0 else _SIGNALLED - status


class _Exits:
    """
    Records when the processes of the job exit, and how.

    When one rank exits, a launcher ends all others within moments, and a killed rank records no end. Only an observer
    outside the ranks can see which one was first. If the system does not show exits, nothing is recorded.

    Args:
        collector: The collector that the processes send to.
        earlier: The ids of the sources of earlier jobs: the system may have given their process ids to others.
    """

    def __init__(self, collector: Collector, earlier: frozenset[str]) -> None:
        self._states = collector.streams.registry.states
        self._is_over = threading.Event()
        self._earlier = earlier
        self._known: set[str] = set()
        self._by_handle: dict[int, Source] = {}
        self._watch = ExitWatch()
        self.seen: list[ProcessExited] = []
        """The exits, in their order."""
        self._thread = threading.Thread(target=self._note_all, name="trackside-exits")
        self._thread.start()

    def _note_all(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_over.is_set()
            self._watch_new()
            if self._by_handle:
                for handle in self._watch.wait(0.0 if is_last else _LOOK_S):
                    self._note(self._by_handle.pop(handle))
            else:
                self._is_over.wait(_LOOK_S)

    def _watch_new(self) -> None:
        here = platform.node()
        known = self._known | self._earlier
        new = {name: state.source for name, state in list(self._states.items()) if name not in known}
        self._known |= new.keys()
        for source in new.values():
            if source.host != here or (len(self._known) > 1 and exit_status_of(source.pid) is not None):
                continue  # it has exited already: nobody saw whether it was the first
            handle = self._watch.add(source.pid)
            if handle is not None:
                self._by_handle[handle] = source

    def _note(self, source: Source) -> None:
        status = exit_status_of(source.pid)
        event = ProcessExited(source_id=source.id, exit_status=status, at_ns=time.time_ns(), span_id=0, step=-1)
        self.seen.append(event)

    def close(self) -> None:
        """Record what has exited by now, and stop."""
        self._is_over.set()
        self._thread.join(_STOP_S)
        self._watch.close()


def _record_exit(
    path: str, sink: EventLog | NatsSink, status: int, began_ns: int, exits: Sequence[ProcessExited]
) -> str | None:
    """
    Record how the program and its processes ended, beside the job's log at *path*, for the report.

    Returns:
        The name of the job's session; None if it is not known.
    """
    try:
        sessions = [
            session for session in read_runs(path).sessions
            if any(_was_here(attempt, began_ns) for run in session.runs for attempt in run.attempts)
        ]  # fmt: skip
        if not sessions:
            return None
        session = sessions[-1]
        source = Source(
            run_id=session.runs[-1].run_id,
            session_tag=session.name if session.is_tagged else "",
            role="collector",
            host=platform.node(),
            pid=os.getpid(),
            application="trackside run",
            versions={"trackside": __version__},
        )
        with Bus(source=source) as bus:
            bus.subscribe(sink)
            for event in exits:
                bus.log(event)
            bus.log(ProgramEnded(exit_status=status, span_id=0, step=-1))
    except (TracksideError, OSError) as error:  # the job is over, and its exit code counts
        warn(f"trackside run: {error}")
        return None
    return session.name


def _was_here(attempt: AttemptOutline, began_ns: int) -> bool:
    return (attempt.last_ns or 0) >= began_ns and any(one.host == platform.node() for one in attempt.processes)


def _report_on(path: str, session: str | None) -> None:
    wanted = argparse.Namespace(path=[path], session=session, baseline=[], html=None, json=False, explain=False)
    try:
        report(wanted)
    except TracksideError as error:  # the job is over, and its exit code counts
        warn(f"trackside run: {error}")


def _run(program: Sequence[str], variables: dict[str, str], endpoint: str) -> int:
    """
    Run *program* to its end, whatever signals come, and return its exit status: negative for a signal.

    Once it runs, a line says that viewers attach to *endpoint*.
    """
    try:
        child = subprocess.Popen(program, env={**os.environ, **variables})  # noqa: S603  it is what the user asked for
    except OSError as error:
        is_on_path = os.sep in program[0] or shutil.which(program[0]) is not None
        remedy = "give a program that can" if is_on_path else "install it or give its path: PATH leads to none"
        raise UnreadableError(program[0], f"cannot be run: {error.strerror}", remedy) from error
    warn(f"watch it: trackside attach {endpoint}")
    before = {
        # Ctrl-C reaches the whole process group, the job too; a SIGTERM to this process is passed on to the job.
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number)),
    }
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code
