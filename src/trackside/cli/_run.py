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
from typing import Any, Final

from trackside.bus import Bus
from trackside.cli._print import warn
from trackside.cli._report import run as report
from trackside.core.text import printable
from trackside.events import ProgramEnded, Source, TracksideError, UnreadableError, __version__
from trackside.handlers import EventLog
from trackside.handlers.zeromq import Collector
from trackside.report import read_runs

_STOP_S: Final = 10.0
_SIGNALLED: Final = 128
"""Added, as shells do, to the number of the signal that ended a program."""


def add_to(commands: Any) -> None:
    """Add the command to the parser's *commands*."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a job with a collector beside it, and report at its end",
        description="Run a job, such as torchrun, on this node with a collector beside it. Every process of it that "
        "calls trackside.start() finds the collector by itself. Ends with the job's exit code.",
    )
    parser.add_argument(
        "--log", metavar="DIR", default="runs", help="where the collector keeps the logs (default: runs)"
    )
    parser.add_argument("--no-report", action="store_true", help="print no report at the end")
    parser.add_argument("program", metavar="-- COMMAND", nargs=argparse.REMAINDER, help="the job's command line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the job and report; the exit code is the job's."""
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        raise UnreadableError("trackside run", "was given no command", "give the job's command line after --")
    with tempfile.TemporaryDirectory(prefix="trackside-") as sockets:  # for this user alone
        collector = Collector(f"ipc://{sockets}/ranks", publish=f"ipc://{sockets}/viewers", log=options.log)
        thread = threading.Thread(target=collector.serve, name="trackside-collector")
        thread.start()
        try:
            warn(f"watch it: trackside attach {collector.viewer_endpoint}")
            began_ns = time.time_ns()
            status = _run(program, {"TRACKSIDE_COLLECTOR": collector.endpoint})
        finally:
            collector.stop()
            thread.join(_STOP_S)
            collector.close()
    totals = collector.totals()
    if totals["sources"]:
        _record_exit(options.log, status, began_ns)
    warn(f"trackside run: {totals['events']:,} events of {totals['sources']:,} process(es) in {printable(options.log)}")
    if not options.no_report and totals["sources"]:
        _report_on(options.log)
    return status if status >= 0 else _SIGNALLED - status


def _record_exit(directory: str, status: int, began_ns: int) -> None:
    """Write how the program ended into the logs of its job, where the report finds it."""
    try:
        sessions = [
            session for session in read_runs(directory).sessions
            if any((attempt.last_ns or 0) >= began_ns for run in session.runs for attempt in run.attempts)
        ]  # fmt: skip
        if not sessions:
            return
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
            bus.subscribe(EventLog(directory))
            bus.log(ProgramEnded(exit_status=status, span_id=0, step=-1))
    except (TracksideError, OSError) as error:  # the job is over, and its exit code counts
        warn(f"trackside run: {error}")


def _report_on(directory: str) -> None:
    wanted = argparse.Namespace(path=[directory], session=None, baseline=[], html=None, json=False, explain=False)
    try:
        report(wanted)
    except TracksideError as error:  # the job is over, and its exit code counts
        warn(f"trackside run: {error}")


def _run(program: Sequence[str], variables: dict[str, str]) -> int:
    """Run *program* to its end, whatever signals come, and return its exit status: negative for a signal."""
    try:
        child = subprocess.Popen(program, env={**os.environ, **variables})  # noqa: S603  it is what the user asked for
    except OSError as error:
        is_on_path = os.sep in program[0] or shutil.which(program[0]) is not None
        remedy = "give a program that can" if is_on_path else "install it or give its path: PATH leads to none"
        raise UnreadableError(program[0], f"cannot be run: {error.strerror}", remedy) from error
    before = {
        # Ctrl-C reaches the whole group, the job too; what is sent to us alone is passed on.
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number)),
    }
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code
