"""``trackside trace``: a session as a trace for Perfetto."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import attrs

from trackside.cli._print import (
    ProgressLine,
    add_paths,
    add_ranks,
    add_session,
    json_text,
    private,
    rank_set,
    report_unread,
    stretch,
    warn,
)
from trackside.core.text import printable
from trackside.events import UnreadableError
from trackside.report import Traced, write_trace

HELP = "write a trace that Perfetto opens, all ranks on one clock"
DESCRIPTION = "Write a session as a Chrome trace: open it at ui.perfetto.dev or in chrome://tracing."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_paths(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="trace.json", help="write to FILE (default: trace.json)"
    )
    add_session(parser)
    parser.add_argument("--steps", metavar="A-B", help="only steps A to B, and what was around them")
    add_ranks(parser)
    parser.add_argument(
        "--merge", metavar="FILE", nargs="+", default=[], help="traces of torch.profiler of the same run, to be added"
    )
    parser.add_argument("--json", action="store_true", help="say what was written as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Write the trace, which gets its name when it is whole; return 1 if it is empty, 2 if part was not read."""
    steps = None if options.steps is None else stretch("--steps", options.steps)
    wanted = rank_set(options)
    progress = ProgressLine("trackside trace")
    target = Path(options.output)
    if options.output == "-" or (target.exists() and not target.is_file()):  # it would be replaced
        raise UnreadableError(str(target), "is no regular file", "give another -o FILE")
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        try:
            # A lone surrogate in a profiler's trace cannot be encoded in UTF-8, and is written as a JSON escape.
            with open(part, "w", encoding="utf-8", errors="backslashreplace", opener=private) as out:
                traced = write_trace(
                    out,
                    *options.path,
                    session=options.session,
                    steps=steps,
                    ranks=None if wanted is None else wanted.__contains__,
                    merge=options.merge,
                    progress=progress,
                )
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UnreadableError(str(target), f"cannot be written: {error.strerror}", "give another -o FILE") from error
    finally:
        progress.done()
    if options.json:
        print(
            json_text({"file": str(target), **attrs.asdict(traced), "problems": [str(one) for one in traced.problems]})
        )
    else:
        _print_summary(traced, target)
    return report_unread("trace", traced) or (0 if traced.events else 1)


def _print_summary(traced: Traced, target: Path) -> None:
    if not traced.events:
        warn(f"trackside trace: no event of these ranks and steps; {target} is empty")
        return
    print(printable(f"{traced.events:,} events of {traced.ranks:,} rank(s) to {target}: open it at ui.perfetto.dev"))
    for rank, note in sorted(traced.notes.items())[:8]:
        print(printable(f"rank {rank}: {note}"))
    if traced.unaligned:
        ranks = ", ".join(map(str, traced.unaligned[:16]))
        warn(f"trackside trace: the clock of rank(s) {ranks} could not be aligned; they are marked")
