"""Who is slow: from the scores of section windows or, where there are none, from the spans within steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trackside.events import span_names
from trackside.handlers.models import SpanReport
from trackside.handlers.models.scores import ScoreReport
from trackside.views._episodes import Episodes
from trackside.views._report import Heatmap, Slow
from trackside.views._watched import Watched

_THRESHOLD: Final = 0.75
"""As for sections: a score below it is a straggler's."""
_MOST_SLOW: Final = 100
_LEAST_SPANS: Final = 10
_LEAST_WINDOWS: Final = 2


def heatmap_of_windows(report: ScoreReport) -> Heatmap:
    """Return the relative scores of one window."""
    columns = [(name.removeprefix("section "), scores) for name, scores in report.relative.columns() if any(scores)]
    return Heatmap(
        basis=f"the relative scores of window {report.window}, steps {report.first_step} to {report.last_step}",
        ranks=report.ranks,
        nodes=report.nodes,
        names=[name for name, _ in columns],
        scores=[scores for _, scores in columns],
    )


def slow_by_windows(episodes: Episodes) -> tuple[Slow, ...]:
    """Return who was slow in more than one window, or in the only one there is."""
    least = min(_LEAST_WINDOWS, max(1, episodes.windows))
    found = [
        Slow(
            rank=one.rank,
            node=one.node,
            what=one.what,
            score=one.score,
            since_step=one.since_step,
            since_ns=one.since_ns,
            until_step=one.until_step,
            windows=one.windows,
            lost_s=one.lost_s,
        )
        for one in episodes.found.values()
        if one.windows >= least
    ]
    return tuple(sorted(found, key=lambda one: (-one.lost_s, one.rank, one.what))[:_MOST_SLOW])


def heatmap_of_spans(spans: SpanReport) -> Heatmap | None:
    """Return each rank's mean time in the spans within steps, as scores: the fastest rank's over its own."""
    means: dict[str, dict[int, float]] = {}
    nodes: dict[int, str] = {}
    for source in spans.sources:
        if source.role != "main":
            continue
        nodes[source.rank] = source.host
        for row in source.totals:
            if row.name in span_names.WITHIN_STEP and row.count >= _LEAST_SPANS:
                means.setdefault(row.name, {})[source.rank] = row.total_ns / row.count
    means = {name: own for name, own in means.items() if len(own) > 1}
    if not means:
        return None
    ranks = sorted(nodes)
    scores: list[list[float | None]] = []
    for own in means.values():
        best = min(own.values())
        scores.append([best / own[rank] if own.get(rank) else None for rank in ranks])
    return Heatmap(
        basis="the mean times of spans within steps: no sections were timed",
        ranks=ranks,
        nodes=[nodes[rank] for rank in ranks],
        names=list(means),
        scores=scores,
    )


def slow_by_spans(heatmap: Heatmap | None, spans: SpanReport, mains: Iterable[Watched]) -> tuple[Slow, ...]:
    """Return who was slow over the whole of the last attempt, as far as its spans tell."""
    if heatmap is None:
        return ()
    known = {process.source.rank: process for process in mains}
    totals = {
        (source.rank, row.name): row for source in spans.sources if source.role == "main" for row in source.totals
    }
    found = []
    for name, scores in zip(heatmap.names, heatmap.scores, strict=True):
        for rank, node, score in zip(heatmap.ranks, heatmap.nodes, scores, strict=True):
            if score is None or score >= _THRESHOLD or rank not in known:
                continue
            process, row = known[rank], totals[rank, name]
            found.append(
                Slow(
                    rank=rank,
                    node=node,
                    what=name,
                    score=score,
                    since_step=max(0, process.last_step - process.steps + 1),
                    since_ns=process.first_ns,
                    until_step=process.last_step,
                    windows=1,
                    lost_s=row.total_ns * (1 - score) / 1e9,
                )
            )
    return tuple(sorted(found, key=lambda one: (-one.lost_s, one.rank, one.what))[:_MOST_SLOW])
