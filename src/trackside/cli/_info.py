"""``trackside info``: the contents, losses and damage of logs."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from trackside.cli._print import UNREADABLE, add_paths, json_text, warn
from trackside.core.text import clock, duration, plural, printable
from trackside.handlers import LogCheck, check_logs
from trackside.handlers.eventlog import FileCheck, SourceCheck

_MOST_LISTED = 20

HELP = "say what is in logs: sources, time, counts, losses, damage"
DESCRIPTION = "Read logs from end to end and say what they hold, what they miss and what is damaged."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_paths(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Print the report; return 2 if part of the input could not be read."""
    report = check_logs(*options.path)
    if options.json:
        print(json_text(as_json(report), indent=2))
    else:
        print(as_text(report))
    for problem in report.problems:
        warn(f"trackside info: {problem}")
    return UNREADABLE if report.problems else 0


def as_text(report: LogCheck) -> str:
    """Return *report* as text for people."""
    lines = []
    runs: dict[str, list[SourceCheck]] = {}
    for source in report.sources:
        runs.setdefault(source.source.run_id, []).append(source)
    for run_id in sorted(runs):
        lines += _run_lines(run_id, runs[run_id])
    counts: Counter[str] = Counter()
    for source in report.sources:
        counts.update(source.by_type)
    lines += ["", "events by type"]
    lines += [f"  {count:>12,}  {printable(name)}" for name, count in counts.most_common()] or ["  none"]
    lines += ["", "losses", *_loss_lines(report), "", "files", *_file_lines(report)]
    return "\n".join(lines)


def _run_lines(run_id: str, sources: list[SourceCheck]) -> list[str]:
    ranks = [source for source in sources if source.source.role == "main"] or sources  # a collector outlives the ranks
    starts = [source.first_ns for source in ranks if source.first_ns is not None]
    ends = [source.last_ns for source in ranks if source.last_ns is not None]
    span = duration(max(ends) - min(starts)) if starts and ends else "-"
    events = sum(source.events for source in sources)
    columns = f"  {'rank':>5} {'attempt':>7}  {'role':<9} {'host':<16} {'pid':>8}  {'events':>10}"
    lines = [
        f"run {printable(run_id)}: {len(sources)} source(s), {events:,} events, {span}",
        f"{columns}  {'from':<24}  {'for':>9}  state",
    ]
    for report in sources[: _MOST_LISTED * 10]:
        source = report.source
        length = (
            duration(report.last_ns - report.first_ns)
            if report.first_ns is not None and report.last_ns is not None
            else "-"
        )
        lines.append(
            f"  {source.rank:>5} {source.attempt:>7}  {printable(source.role):<9} {printable(source.host)[:16]:<16}"
            f" {source.pid:>8}  {report.events:>10,}  {clock(report.first_ns, has_ms=True):<24}  {length:>9}"
            f"  {_state(report)}"
        )
    cores = {source.source.versions.get("core", "") for source in sources} - {""}
    if cores:
        lines[0] += f", core {printable(' and '.join(sorted(cores)))}"
    if len(sources) > _MOST_LISTED * 10:
        lines.append(f"  … and {len(sources) - _MOST_LISTED * 10} more")
    return lines


def _state(report: SourceCheck) -> str:
    if report.ended is None:
        return "not ended: it runs, or died"
    return f"ended: {printable(report.ended)}"


def _loss_lines(report: LogCheck) -> list[str]:
    lines = []
    for source in report.sources:
        who = f"rank {source.source.rank} ({source.source.id[:8]})"
        dropped = sum(source.dropped.values())
        if dropped:
            shown = ", ".join(f"{count:,} {printable(name)}" for name, count in sorted(source.dropped.items()))
            lines.append(f"  {who}: {dropped:,} dropped for lack of room before they had a number: {shown}")
        if source.missing:
            shown = ", ".join(f"{first}-{last}" for first, last in source.holes[:_MOST_LISTED])
            lines.append(f"  {who}: {source.missing:,} missing, numbers {shown}")
        if source.ended is None and source.source.role == "main":
            steps = f"up to {plural(source.unwritten_steps, 'step')}, or " if source.unwritten_steps else ""
            lines.append(f"  {who}: no end record: if it died, {steps}its last second may be in no log")
        for loss in source.losses[:_MOST_LISTED]:
            since = clock(loss.since_ns, has_ms=True)
            lines.append(f"  {who}: {loss.events:,} given up by the writer since {since}: {printable(loss.reason)}")
    return lines or ["  none"]


def _file_lines(report: LogCheck) -> list[str]:
    lines = []
    for file in report.files:
        state = "finished" if file.is_finished else "not finished"
        lines.append(f"  {printable(str(file.path))}: {file.size_bytes:,} bytes, {file.frames:,} frames, {state}")
        lines += [f"    {printable(str(damage))}" for damage in file.damage[:_MOST_LISTED]]
        if len(file.damage) > _MOST_LISTED:
            lines.append(f"    … and {len(file.damage) - _MOST_LISTED} more damaged ranges")
    return lines or ["  none"]


def as_json(report: LogCheck) -> dict[str, Any]:
    """Return *report* as plain data for JSON."""
    return {
        "sources": [_source_json(source) for source in report.sources],
        "files": [_file_json(file) for file in report.files],
        "problems": [str(problem) for problem in report.problems],
    }


def _source_json(report: SourceCheck) -> dict[str, Any]:
    return {
        "identity": report.source.to_wire(),
        "events": report.events,
        "by_type": dict(report.by_type),
        "first_seq": report.first_seq,
        "last_seq": report.last_seq,
        "first_ns": report.first_ns,
        "last_ns": report.last_ns,
        "missing": report.missing,
        "missing_ranges": report.holes,
        "repeated": report.repeated,
        "dropped": report.dropped,
        "losses": [
            {"events": loss.events, "bytes": loss.size_bytes, "reason": loss.reason, "since_ns": loss.since_ns}
            for loss in report.losses
        ],
        "ended": report.ended,
        "unwritten_steps": report.unwritten_steps,
    }


def _file_json(report: FileCheck) -> dict[str, Any]:
    return {
        "path": str(report.path),
        "size_bytes": report.size_bytes,
        "source_id": report.source_id,
        "frames": report.frames,
        "finished": report.is_finished,
        "damaged_bytes": report.damaged_bytes,
        "damage": [
            {"offset": damage.offset, "length_bytes": damage.length_bytes, "reason": damage.reason}
            for damage in report.damage
        ],
    }
