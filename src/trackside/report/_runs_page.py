"""Pages about many runs: a table of the runs, with links to their reports."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from trackside.core import text as words
from trackside.events import ConfigError, UnreadableError
from trackside.report._build import Progress, read_report
from trackside.report._gather import Bin
from trackside.report._html import (
    Markup,
    Points,
    escaped,
    html_page,
    report_page,
    rows_table,
    section,
    spark,
)
from trackside.report._report import Report
from trackside.report._runs import RunOutline, read_runs

_INDEX: Final = "index.html"
_OTHER: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME: Final = 80
_LONGEST_HEADLINE: Final = 120
_MOST_ROWS: Final = 2_000


@attrs.frozen(kw_only=True)
class _Row:
    """A run and the figures of its report."""

    session: str
    run: RunOutline
    page: str
    report: Report | None
    problem: str = ""

    @property
    def start_ns(self) -> int:
        return min((one.first_ns for one in self.run.attempts if one.first_ns is not None), default=0)


def run_pages(*paths: str | os.PathLike[str], progress: Progress | None = None) -> Iterator[tuple[str, str]]:
    """
    Yield the file name and the content of a page for each run in logs; the last page is ``index.html``, about all runs.

    The names are made of the runs' ids, so that a page keeps its name when runs are added. A run that cannot be read
    has no page, but a row that gives the reason.

    Args:
        paths: Log files, or directories with log files at any depth.
        progress: Called with the progress of reading a run.

    Raises:
        UnreadableError: There is nothing to read.
    """
    rows: list[_Row] = []
    names: dict[tuple[str, str], str] = {}
    found = read_runs(*paths)
    for session in found.sessions:
        for run in session.runs:
            key = session.name, run.run_id
            is_new = key not in names
            name = names.setdefault(key, _file_name(run.run_id, {_INDEX, *names.values()}))
            try:
                report = read_report(*paths, session=session.name, run=run.run_id, progress=progress)
            except (UnreadableError, ConfigError) as error:
                rows.append(_Row(session=session.name, run=run, page="", report=None, problem=str(error)))
                continue
            rows.append(_Row(session=session.name, run=run, page=name, report=report))
            if is_new:
                yield name, report_page(report)
    yield _INDEX, html_page("trackside runs", _body(rows, [str(problem) for problem in found.problems]))


def _file_name(run_id: str, taken: set[str]) -> str:
    """Return the file name of a run's page: it is unique, and has no character that leads to another directory."""
    stem = _OTHER.sub("-", run_id).strip(".-")[:_LONGEST_NAME] or "run"
    name, number = f"{stem}.html", 1
    while name.lower() in {other.lower() for other in taken}:
        number += 1
        name = f"{stem}-{number}.html"
    return name


def _body(rows: Sequence[_Row], problems: Sequence[str]) -> Iterator[str]:
    sessions = len({row.session for row in rows})
    newest_ns = max((row.start_ns for row in rows), default=0)
    yield (
        f"<header><h1>{words.plural(len(rows), 'run')}</h1><p>{words.plural(sessions, 'session')} · the latest began "
        f"{words.clock(newest_ns)}</p></header>"
    )
    groups: dict[tuple[str, ...], list[_Row]] = {}
    for row in sorted(rows, key=lambda row: row.start_ns):
        groups.setdefault(row.run.perf_tags, []).append(row)
    # The group with the latest run comes first.
    latest_first = sorted(groups.items(), key=lambda item: -item[1][-1].start_ns)
    for number, (tags, own) in enumerate(latest_first):
        yield _group(f"group-{number}", tags, own)
    if problems:
        items = "".join(f"<li>{escaped(problem)}</li>" for problem in problems)
        yield section("problems", "What could not be read", f'<ul class="bad">{items}</ul>')


def _group(name: str, tags: Sequence[str], rows: Sequence[_Row]) -> str:
    """Return the section for the runs with the same *tags*: they should perform alike, so their trend has a meaning."""
    read = [row.report for row in rows if row.report is not None]
    trends = [
        (what, spark(_trend(values)), shows(values[-1]), f"{shows(min(values))} to {shows(max(values))}")
        for what, shows, values in (
            ("step time, p50", words.seconds, [one.step_time.p50_s for one in read if one.step_time.p50_s]),
            ("goodput", words.percent, [one.goodput.goodput for one in read if one.goodput.goodput is not None]),
            ("last loss", words.amount, [one.loss[-1][1].median for one in read if one.loss]),
        )
        if len(values) > 1
    ]
    cells = "".join(
        f"<div>{chart}<b>{escaped(latest)}</b><span>{what}; {escaped(extent)}</span></div>"
        for what, chart, latest, extent in trends
    )
    usual = [row.report.step_time.p50_s for row in rows if row.run.baseline and row.report]
    usual_s = [length for length in usual if length]
    reference = sum(usual_s) / len(usual_s) if usual_s else None
    names = (
        "run",
        "session",
        "began",
        "took",
        "ranks",
        "step",
        "step time",
        "to baseline",
        "goodput",
        "loss",
        "outcome",
    )
    table = rows_table(
        names,
        [_cells(row, reference) for row in reversed(rows)],
        numbers="took ranks step loss goodput",
        optional="session began ranks step took loss",
        most=_MOST_ROWS,
    )
    figures = f'<div class="figures trends">{cells}</div>' if cells else ""
    note = "The latest run comes first; trends go from the first to the latest."
    content = f'{figures}<div class="wide">{table}</div>'
    return section(name, ", ".join(tags) or "No perf tag", content, note if cells else "")


def _trend(values: Sequence[float]) -> Points:
    """Return *values* as points at equal distances: the time between runs does not matter for a trend."""
    points = []
    for place, value in enumerate(values):
        one = Bin()
        one.add(value, -1, -1)
        points.append((place, one))
    return points


def _cells(row: _Row, reference_s: float | None) -> list[str]:
    run, report = row.run, row.report
    mark = ' <span class="tag">baseline</span>' if run.baseline else ""
    began = words.clock(row.start_ns)
    if report is None:
        return [Markup(escaped(run.run_id) + mark), row.session, began, *[""] * 7, row.problem]
    step_s = report.step_time.p50_s
    to_baseline = ""
    if reference_s and step_s and not run.baseline:
        to_baseline = words.change(step_s / reference_s - 1)
    state = report.verdict.state
    look = {"good": "ok", "bad": "bad"}.get(state, "dim")
    headline = report.verdict.headline
    if len(headline) > _LONGEST_HEADLINE:
        headline = f"{headline[: _LONGEST_HEADLINE - 1].rstrip()}…"
    last_step = report.goodput.last_step
    return [
        Markup(f'<a href="{escaped(row.page)}">{escaped(run.run_id)}</a>{mark}'),
        row.session if row.session != run.run_id else "",
        Markup(f'<span class="whole">{escaped(began[:10])}</span> <span class="whole">{escaped(began[11:])}</span>'),
        words.seconds(report.goodput.elapsed_s),
        f"{report.ranks_total}",
        words.NOTHING if last_step is None else f"{last_step:,}",
        words.seconds(step_s),
        to_baseline,
        words.percent(report.goodput.goodput),
        words.amount(report.loss[-1][1].median) if report.loss else "",
        Markup(f'<b class="{look}">{escaped(report.outcome)}</b><br><span>{escaped(headline)}</span>'),
    ]
