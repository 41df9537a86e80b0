"""``trackside report``: what a session's logs say, the verdict first."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from trackside.cli._print import printable, warn
from trackside.cli._progress import ProgressLine
from trackside.cli._unread import UNREADABLE
from trackside.events import ConfigError, UnreadableError
from trackside.views import Report, read_report, report_page


def add_to(commands: Any) -> None:
    """Add the command to the parser's *commands*."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="say what costs most, which rank, since when, and what to look at next",
        description="Read a session's logs, and say what stands out: in the terminal, as one HTML file, or as JSON.",
    )
    parser.add_argument("path", metavar="PATH", nargs="+", help="a .tslog file, or a directory with such at any depth")
    parser.add_argument("--session", metavar="TAG", help="the session, by its tag or, without one, its run id")
    parser.add_argument(
        "--baseline", metavar="PATH", action="append", default=[], help="logs of runs that this one should match"
    )
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page; - is standard output")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the report, or write it; 2 if part of the input could not be read."""
    show = None if options.html or options.json else _terminal()
    progress = ProgressLine("trackside report")
    try:
        report = read_report(*options.path, session=options.session, baseline=options.baseline, progress=progress)
    finally:
        progress.done()
    if options.html:
        _write(options.html, report_page(report))
    if options.json:
        print(json.dumps(report.to_json()))
    elif options.html:
        if options.html != "-":
            print(printable(f"{report.verdict.headline} {options.html} says more."))
    elif show is not None:
        show(report)
    for problem in report.losses.unread:
        warn(f"trackside report: {problem}")
    return UNREADABLE if report.losses.unread else 0


def _terminal() -> Any:
    """Return what prints a report, before it is read: it takes a library that may not be there."""
    try:
        from trackside.views.rich import print_report
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        what = "install trackside[rich], or ask for --html or --json"
        raise ConfigError("report", "the terminal", f"showing it there takes rich; {what}") from error

    def show(report: Report) -> None:
        print_report(report)

    return show


def _write(path: str, page: str) -> None:
    if path == "-":
        print(page)
        return
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise UnreadableError(path, f"cannot be written: {error.strerror}", "give another --html FILE") from error
