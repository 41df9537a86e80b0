"""``trackside report``: the verdict on a session, and its evidence."""

from __future__ import annotations

import argparse
import json
import shutil
import sys

from trackside.cli._print import UNREADABLE, ProgressLine, add_paths, add_session, file_name, warn, write_private
from trackside.core.text import printable
from trackside.report import Report, read_report, report_lines, report_page
from trackside.report._plain_text import pipe_width

HELP = "say what costs most, which rank, since when, and what to look at next"
DESCRIPTION = "Read a session's logs, and say what stands out: in the terminal, as one HTML file, or as JSON."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_paths(parser)
    add_session(parser)
    parser.add_argument(
        "--baseline", metavar="PATH", action="append", default=[], help="logs of runs that this one should match"
    )
    parser.add_argument(
        "--html", metavar="FILE", type=file_name, help="write one self-contained page; - is standard output"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--explain", action="store_true", help="say of each rule why it found something or nothing")


def run(options: argparse.Namespace) -> int:
    """Print the report, or write it; return 2 if part of the input could not be read."""
    progress = ProgressLine("trackside report")
    try:
        report = read_report(*options.path, session=options.session, baseline=options.baseline, progress=progress)
    finally:
        progress.done()
    if options.html:
        _write(options.html, report_page(report))
    if options.json:
        print(json.dumps(report.to_json(), allow_nan=False))
    elif options.html:
        if options.html != "-":
            print(printable(f"{report.verdict.headline} {options.html} says more."))
    else:
        _print(report, is_explained=options.explain)
    for problem in report.losses.unread:
        warn(f"trackside report: {problem}")
    return UNREADABLE if report.losses.unread else 0


def _print(report: Report, *, is_explained: bool) -> None:
    """Print the report: in colour if rich is installed, else the same text without colour."""
    try:
        from trackside.report.rich import print_report
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else pipe_width()
        for line in report_lines(report, width, is_explained=is_explained):
            print("".join(text for text, _ in line).rstrip())
        return
    print_report(report, is_explained=is_explained)


def _write(path: str, page: str) -> None:
    if path == "-":
        print(page)
    else:
        write_private(path, page, option="--html FILE")
