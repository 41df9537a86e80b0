"""A report as one page: no script, nothing from elsewhere, every text escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from trackside.core import text as words
from trackside.events import __version__
from trackside.report._buckets import PRODUCTIVE, shown
from trackside.report._charts import SHADES, curve, escaped, heat, spark
from trackside.report._report import AttemptBar, Finding, Report
from trackside.report._rules import lost_words
from trackside.report._style import STYLE

_MOST_ATTEMPTS: Final = 40
_MOST_ROWS: Final = 40
_LEAST_SHARE: Final = 0.0005
"""A share that is shown as 0.0 % is left out of the legend."""
# The page may run nothing and fetch nothing, whatever a log says.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STATES: Final = {"ended": "ended", "died": "died", "silent": "silent", "running": "running, or died"}


def report_page(report: Report) -> str:
    """Return *report* as one HTML page, to be opened from disk."""
    body = "\n".join(part for part in _body(report) if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escaped(report.session)}: trackside report</title>\n<style>{_style()}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _style() -> str:
    return STYLE.strip()


def _body(report: Report) -> Iterator[str]:
    yield _header(report)
    yield _verdict(report)
    yield _figures(report)
    yield _goodput(report)
    yield _steps(report)
    yield _heatmap(report)
    yield _parts(report)
    yield _spans(report)
    yield _counters(report)
    yield _losses(report)
    yield _ranks(report)
    yield (
        f"<footer>Made by trackside {escaped(__version__)} from {words.plural(report.events, 'event')} of "
        f"{words.plural(len(report.runs), 'run')}. Times are UTC.</footer>"
    )


def _section(name: str, title: str, content: str, note: str = "") -> str:
    told = f'<p class="note">{escaped(note)}</p>' if note else ""
    return f'<section id="{name}"><h2>{escaped(title)}</h2>{content}{told}</section>'


def _header(report: Report) -> str:
    result = report.goodput
    told = [
        report.application,
        f"{words.plural(report.ranks_total, 'rank')} on {words.plural(report.hosts, 'host')}",
        words.plural(len(report.attempts), "attempt"),
        _STATES[report.state],
        f"{words.clock(result.start_ns)} to {words.clock(result.end_ns)}",
        *report.perf_tags[:3],
    ]
    others = ""
    if report.others:
        others = f"<p>The latest of {len(report.others) + 1} sessions in these logs.</p>"
    return (
        f"<header><h1>{escaped(report.session)}</h1>"
        f"<p>{escaped(' · '.join(part for part in told if part))}</p>{others}</header>"
    )


def _verdict(report: Report) -> str:
    verdict = report.verdict
    items = "".join(_finding(finding, is_told=not place) for place, finding in enumerate(verdict.findings))
    return (
        f'<section id="verdict" class="{verdict.state}">'
        f'<p class="headline">{escaped(verdict.headline)}</p><p class="summary">{escaped(verdict.summary)}</p>'
        f"{f'<ol>{items}</ol>' if items else ''}</section>"
    )


def _finding(finding: Finding, *, is_told: bool) -> str:
    """Return a finding; the first one's title is the page's headline already."""
    title = "" if is_told else escaped(finding.title)
    evidence = "".join(f"<li>{escaped(line)}</li>" for line in finding.evidence)
    return (
        f'<li><div class="title"><span class="kind">{escaped(finding.kind)}</span>{title}</div>'
        f'<ul>{evidence}</ul><p class="look">{escaped(finding.look)}</p></li>'
    )


def _figures(report: Report) -> str:
    result, times = report.goodput, report.step_time
    told = [
        (words.percent(result.goodput), "goodput"),
        (words.seconds(result.elapsed_s), "elapsed"),
        (words.seconds(times.p50_s), "step time, p50"),
        (words.seconds(times.p99_s), "step time, p99"),
        ("–" if result.last_step is None else f"{result.last_step:,}", "last step"),
        (f"{result.disruptions:,}", "restarts"),
    ]
    for rate, unit in ((report.samples_per_s, "samples/s"), (report.tokens_per_s, "tokens/s")):
        if rate:
            told.append((words.amount(float(f"{rate:.3g}")), unit))
    at_least = "at least " if report.losses.unwritten or report.missing_ranks else ""
    told.append((f"{at_least}{report.losses.total:,}", "events lost"))
    cells = "".join(f"<div><b>{escaped(value)}</b><span>{escaped(name)}</span></div>" for value, name in told)
    return f'<div class="figures">{cells}</div>'


def _goodput(report: Report) -> str:
    bars = report.attempts[-_MOST_ATTEMPTS:]
    totals: dict[str, float] = {}
    for bar in report.attempts:
        for name, length in bar.buckets_s.items():
            totals[name] = totals.get(name, 0.0) + length
    whole = sum(totals.values()) or 1.0
    legend = "".join(
        f'<li><i style="{_colour(name)}"></i>{escaped(shown(name).name)} <b>{words.percent(length / whole)}</b> '
        f'<span class="dim">{words.seconds(length)}</span></li>'
        for name, length in sorted(totals.items(), key=lambda item: (item[0] != PRODUCTIVE, -item[1]))
        if length / whole >= _LEAST_SHARE
    )
    note = f"The last {_MOST_ATTEMPTS} of {len(report.attempts)} attempts." if len(bars) < len(report.attempts) else ""
    content = f'<div id="chart-goodput">{"".join(map(_bar, bars))}</div><ul class="legend">{legend}</ul>'
    return _section("goodput", "Where the time went", content, note)


def _colour(bucket: str) -> str:
    look = shown(bucket)
    return f"background:light-dark({look.light},{look.dark})"


def _bar(bar: AttemptBar) -> str:
    whole = sum(bar.buckets_s.values()) or 1.0
    pieces = "".join(
        f'<span style="flex:{length / whole:.6f} 0 0;{_colour(name)}" '
        f'title="{escaped(shown(name).name)}: {words.seconds(length)}, {words.percent(length / whole)}"></span>'
        for name, length in bar.buckets_s.items()
        if length > 0
    )
    took = words.duration(bar.end_ns - bar.start_ns)
    return (
        f'<div class="attempt"><div class="label">attempt {bar.number}<small>{words.percent(bar.goodput)} of {took}'
        f'</small></div><div class="bar">{pieces}</div></div>'
    )


def _steps(report: Report) -> str:
    if not report.steps:
        return _section("steps", "Step time", '<p id="chart-steps" class="dim">No training step ended.</p>')
    kinds: dict[str, int] = {}
    for mark in report.marks:
        kinds[mark.kind] = kinds.get(mark.kind, 0) + 1
    legend = "".join(
        f'<li><i class="i-{escaped(kind)}"></i>{escaped(words.plural(count, kind))}</li>'
        for kind, count in kinds.items()
    )
    chart = curve(report.steps, "curve", words.duration, report.marks)
    content = f'<div id="chart-steps">{chart}</div><ul class="legend">{legend}</ul>'
    if report.not_finite is not None:
        found = report.not_finite
        told = f"The loss is {found.value} since step {found.step}: only finite values are drawn."
        content += f'<p class="bad">{escaped(told)}</p>'
    if len(report.loss) > 1:
        content += f"<h3>Training loss</h3>{curve(report.loss, 'loss', words.amount, height=110)}"
    note = (
        f"The line is the median of all ranks in stretches of {words.duration(report.step_width_ns)} or more; the band "
        "reaches from the shortest to the longest step, none left out."
    )
    return _section("steps", "Step time", content, note)


def _heatmap(report: Report) -> str:
    found = report.heatmap
    if found is None or not found.names:
        told = "No sections were timed on more than one rank: nothing compares them."
        empty = f'<p id="chart-heatmap" class="dim">{told}</p>'
        return _section("ranks-map", "Slow ranks", empty)
    bounds = ["below 0.60", "below 0.75: slow", "below 0.85", "below 0.92", "below 0.97", "the fastest"]
    assert len(bounds) == len(SHADES) + 1
    legend = "".join(f'<li><i class="s{place}"></i>{told}</li>' for place, told in enumerate(bounds))
    rows = [
        (f"{one.rank}", one.node, one.what if one.what == one.where else f"{one.what}, {one.where}",
         words.duration(one.lateness_ns), f"{one.since_step} to {one.until_step}", words.seconds(one.lost_s))
        for one in report.late[:12]
    ]  # fmt: skip
    table = _table(
        ("rank", "host", "slow in", "late, a step", "steps", "lost"), rows, numbers="rank late lost", optional="host"
    )
    content = f'<div id="chart-heatmap">{heat(found)}</div><ul class="legend">{legend}</ul>{table and "<br>" + table}'
    return _section(
        "ranks-map",
        "Slow ranks",
        content,
        f"Shown: {found.basis}. A score is the fastest rank's time over the rank's own.",
    )


def _parts(report: Report) -> str:
    if not report.parts:
        return ""
    rows = "".join(
        f'<div class="part"><span>{escaped(part.name)} <span class="dim">{escaped(part.kind)}</span></span>'
        f'<span class="track"><i style="width:{100 * part.share:.1f}%"></i></span>'
        f'<span class="num">{words.duration(part.mean_ns)} · {words.percent(part.share)}</span></div>'
        for part in report.parts[:12]
    )
    return _section("parts", "What a step is made of", rows, "On average over all ranks and steps.")


_WHOLE: Final = "rank step count failed score"
"""Columns of plain numbers, which are never broken in two: they are short, whatever a job calls things."""


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: str = "", optional: str = "") -> str:
    """Return a table; cells that begin with ``<svg`` are ours and stay as they are."""
    if not rows:
        return ""
    kinds = (("n", numbers), ("opt", optional), ("whole", _WHOLE), ("name", "span"))
    looks = [" ".join(look for look, own in kinds if name in own.split()) for name in names]
    head = "".join(f'<th class="{look}">{escaped(name)}</th>' for name, look in zip(names, looks, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td class="{look}">{cell}</td>' for cell, look in zip(row, looks, strict=True)) + "</tr>"
        for row in ([_cell(cell) for cell in row] for row in rows[:_MOST_ROWS])
    )
    more = f'<p class="note">The first {_MOST_ROWS} of {len(rows):,}.</p>' if len(rows) > _MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


class _Chart(str):
    """Markup of ours, which is not escaped."""

    __slots__ = ()


def _cell(cell: str) -> str:
    return cell if isinstance(cell, _Chart) else escaped(cell)


def _spans(report: Report) -> str:
    rows = [
        (row.name, f"{row.count:,}", words.duration(row.total_ns), words.duration(row.total_ns / max(1, row.count)),
         words.duration(row.max_ns), f"{row.failed:,}")
        for row in report.spans
    ]  # fmt: skip
    names = ("span", "count", "total", "mean", "longest", "failed")
    content = _table(names, rows, numbers="count total mean longest failed", optional="count failed longest")
    if report.open:
        opened = [
            (str(row.rank), row.name, words.duration(row.seen_ns - row.start_ns), words.clock(row.start_ns))
            for row in report.open
        ]
        table = _table(("rank", "span", "for", "since"), opened, numbers="rank for", optional="since")
        content += f"<h3>Open when last heard of</h3>{table}"
    if report.errors:
        errors = [(str(row.rank), str(row.step), row.name, row.error[:300]) for row in report.errors]
        content += f"<h3>Errors</h3>{_table(('rank', 'step', 'span', 'error'), errors, numbers='rank step')}"
    return _section("spans", "Spans", content) if content else ""


def _counters(report: Report) -> str:
    rows = [
        (row.name, words.amount(row.mean, row.unit), words.amount(row.minimum, row.unit),
         words.amount(row.maximum, row.unit), words.amount(row.p99, row.unit), _Chart(spark(row.level)))
        for row in report.counters
    ]  # fmt: skip
    names = ("counter", "mean", "min", "max", "p99", "over time")
    table = _table(names, rows, numbers="mean min max p99", optional="min p99")
    return _section("counters", "Counters", table) if table else ""


def _losses(report: Report) -> str:
    losses = report.losses
    bound = lost_words(report) if losses.unwritten or report.missing_ranks else ""
    unwritten = sum(steps for _, steps in losses.unwritten)
    rows = [
        ("steps that may be in no log, at most", unwritten, bound),
        ("ranks without a log", len(report.missing_ranks), words.ranges(report.missing_ranks, most=8)),
        ("events dropped for lack of room", sum(losses.dropped.values()), ", ".join(sorted(losses.dropped))),
        ("events in none of these files", losses.missing, ""),
        ("bytes damaged and passed over", losses.damaged_bytes, ""),
        ("events that could not be recorded", losses.invalid, ""),
        ("calls of handlers that raised", losses.failed, ", ".join(sorted(losses.suspended))),
        ("windows too late to be scored", losses.too_late, ""),
        ("files that could not be read", len(losses.unread), "; ".join(losses.unread[:5])),
    ]
    body = "".join(
        f'<tr><td>{escaped(what)} <span class="dim">{escaped(told)}</span></td>'
        f'<td class="n {"bad" if count else "ok"}">{count:,}</td></tr>'
        for what, count, told in rows
    )
    return _section("losses", "What is missing", f"<table><tbody>{body}</tbody></table>")


def _ranks(report: Report) -> str:
    rows = [
        (str(row.rank), row.host, row.state, row.reason, f"{row.last_step:,}" if row.last_step >= 0 else "–",
         words.duration(row.mean_step_ns), words.clock(row.last_ns))
        for row in report.ranks
    ]  # fmt: skip
    names = ("rank", "host", "state", "how", "last step", "mean step", "last heard of")
    table = _table(names, rows, numbers="rank", optional="how host")
    note = "Those that did not end, are behind or are slow come first." if len(rows) > 1 else ""
    return _section("ranks", "Ranks of the last attempt", table, note) if table else ""
