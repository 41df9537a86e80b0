"""``trackside runs``: a list of sessions, runs and attempts, and how each ended."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trackside.cli._print import UNREADABLE, ProgressLine, file_name, json_text, warn, write_private
from trackside.core.text import clock, duration, exit_words, plural, printable, ranges
from trackside.events import ConfigError, UnreadableError
from trackside.handlers.models.liveness import DIED, ENDED, RUNNING, SILENT
from trackside.report import (
    AttemptOutline,
    ProcessOutline,
    RunOutline,
    RunsReport,
    SessionOutline,
    read_runs,
    run_pages,
)

_MOST_RANGES = 8
_SAID = {ENDED: "ended", DIED: "died", SILENT: "silent", RUNNING: "running, or died"}

HELP = "list sessions, runs and attempts, and what became of them"
DESCRIPTION = (
    "List what was run: sessions, perf tags, attempts, ranks, last steps, and how they ended. "
    "Only the beginning and the end of each log are read."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("path", metavar="DIR", nargs="+", help="a directory of event logs, or a .tslog file")
    parser.add_argument(
        "--html",
        metavar="DIR",
        type=file_name,
        help="read the logs whole, and write DIR/index.html and beside it a report of each run",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Print the list, or write it as pages; return 2 if part of the input could not be read."""
    if options.html and Path(options.html).suffix == ".html" and not Path(options.html).is_dir():
        remedy = f"there is a page for each run: name a directory for them, as {Path(options.html).stem}/"
        raise ConfigError("--html", options.html, remedy)
    if options.html:
        _write_pages(options.html, options.path)
    report = read_runs(*options.path)
    if options.json:
        print(json_text(as_json(report), indent=2))
    elif options.html:
        count = sum(len(session.runs) for session in report.sessions)
        print(printable(f"{plural(count, 'run')}: {Path(options.html) / 'index.html'}"))
    else:
        for line in _lines(report):
            print(printable(line))
    for problem in report.problems:
        warn(f"trackside runs: {problem}")
    return UNREADABLE if report.problems else 0


def _write_pages(directory: str, paths: list[str]) -> None:
    progress = ProgressLine("trackside runs")
    try:
        Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)  # runs and sessions are named in it
        for name, page in run_pages(*paths, progress=progress):
            write_private(Path(directory) / name, page, option="--html DIR")
    except OSError as error:
        raise UnreadableError(directory, f"cannot be written: {error.strerror}", "give another --html DIR") from error
    finally:
        progress.done()


def _lines(report: RunsReport) -> Iterator[str]:
    for session in report.sessions:
        count = sum(len(run.attempts) for run in session.runs)
        tag = "" if session.is_tagged else " (no session tag)"
        yield f"session {session.name}{tag}: {len(session.runs)} run(s), {count} attempt(s)"
        tags = None
        for run in session.runs:
            if run.perf_tags != tags:
                tags = run.perf_tags
                yield f"  perf {', '.join(tags) or '- (no perf tag)'}"
            for attempt in run.attempts:
                yield f"    {_attempt_line(run, attempt)}"
                missing = set(range(attempt.world_size)) - {one.rank for one in attempt.processes}
                if missing:
                    yield f"      no log of rank(s) {ranges(missing, most=_MOST_RANGES)}"
                yield from (f"      {line}" for line in _state_lines(attempt, report.newest_ns))
            if run.exit_status is not None:
                yield f"      trackside run saw the program exit with {exit_words(run.exit_status)}"
    if report.newest_ns is not None:
        yield f"newest event: {clock(report.newest_ns, has_ms=True)}"
    elif not report.problems:
        yield "no event yet"


def _attempt_line(run: RunOutline, attempt: AttemptOutline) -> str:
    first_ns, last_ns = attempt.first_ns, attempt.last_ns
    ranks = len({one.rank for one in attempt.processes})
    parts = [
        f"run {run.run_id} attempt {_number(attempt)}{' baseline' if run.baseline else ''}",
        f"{ranks} of {attempt.world_size} rank(s)",
        f"from {clock(first_ns, has_ms=True)}",
        f"for {duration(last_ns - first_ns) if first_ns is not None and last_ns is not None else '-'}",
        f"last step {'-' if attempt.last_step is None else attempt.last_step}",
    ]
    if attempt.workers:
        parts.append(f"{attempt.workers} worker(s)")
    return ", ".join(parts)


def _number(attempt: AttemptOutline) -> str:
    return f"{attempt.number}.{attempt.launch}" if attempt.launch else f"{attempt.number}"


def _state_lines(attempt: AttemptOutline, newest_ns: int | None) -> Iterator[str]:
    """Yield a line for each state of ranks, with its reason and, unless they ended, the time of their last event."""
    for (state, reason), ranks in attempt.states.items():
        who = "" if len(attempt.states) == 1 else f"rank(s) {ranges(ranks, most=_MOST_RANGES)} "
        members = [one for one in attempt.processes if (one.state, one.reason) == (state, reason)]
        since = "" if state == ENDED else _since(members, newest_ns)
        yield f"{who}{_SAID[state]}: {reason}{since}"


def _since(members: list[ProcessOutline], newest_ns: int | None) -> str:
    last_ns = max((one.last_ns for one in members if one.last_ns is not None), default=None)
    if last_ns is None or newest_ns is None:
        return ""
    return f"; last heard of at {clock(last_ns, has_ms=True)}, {duration(newest_ns - last_ns)} before the newest event"


def as_json(report: RunsReport) -> dict[str, Any]:
    """Return *report* as plain data for JSON."""
    return {
        "sessions": [_session_json(session) for session in report.sessions],
        "newest_ns": report.newest_ns,
        "problems": [str(problem) for problem in report.problems],
    }


def _session_json(session: SessionOutline) -> dict[str, Any]:
    return {
        "session": session.name,
        "tagged": session.is_tagged,
        "runs": [
            {
                "run": run.run_id,
                "perf_tags": list(run.perf_tags),
                "baseline": run.baseline,
                "application": run.application,
                "exit_status": run.exit_status,
                "attempts": [_attempt_json(attempt) for attempt in run.attempts],
            }
            for run in session.runs
        ],
    }


def _attempt_json(attempt: AttemptOutline) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "launch": attempt.launch,
        "state": attempt.state,
        "states": [
            {"state": state, "reason": reason, "ranks": ranks} for (state, reason), ranks in attempt.states.items()
        ],
        "ranks_seen": len({one.rank for one in attempt.processes}),
        "world_size": attempt.world_size,
        "workers": attempt.workers,
        "first_ns": attempt.first_ns,
        "last_ns": attempt.last_ns,
        "last_step": attempt.last_step,
        "ranks": [
            {
                "rank": one.rank,
                "host": one.host,
                "pid": one.pid,
                "state": one.state,
                "reason": one.reason,
                "first_ns": one.first_ns,
                "last_ns": one.last_ns,
                "last_heartbeat_ns": one.last_heartbeat_ns,
                "last_step": one.last_step,
            }
            for one in attempt.processes
        ],
    }
