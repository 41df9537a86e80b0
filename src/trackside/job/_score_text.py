"""A window's scores as lines and as scalars, for who trains."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from trackside.handlers.models.scores import ScoreReport


def described(report: ScoreReport, most: int) -> Iterator[str]:
    """
    Yield a line for each kind of score and thing scored.

    Args:
        report: The scores.
        most: How many of the worst and of the best ranks to name, if there are more than twice as many; 0 for no line.
    """
    if not most:
        return
    for kind, scores in report.kinds():
        for what, column in scores.columns():
            known = sorted(
                (score, report.ranks[place], report.nodes[place])
                for place, score in enumerate(column)
                if score is not None
            )
            if not known:
                continue
            named = [f"rank {rank} ({node or 'unknown node'}) {score:.2f}" for score, rank, node in known]
            if len(named) > 2 * most:
                told = f"worst {', '.join(named[:most])}; best {', '.join(named[-most:][::-1])}"
            else:
                told = ", ".join(named)
            yield f"{kind} {what}, steps {report.first_step} to {report.last_step}: {told}"


def warnings_of(report: ScoreReport) -> Iterator[str]:
    """Yield a line for each kind of score by which there are stragglers, and since which step."""
    for kind, _ in report.kinds():
        slow = [straggler for straggler in report.stragglers if straggler.kind == kind]
        if slow:
            named = [f"rank {one.rank} ({one.node}), {one.what} {one.score:.2f} since {one.since_step}" for one in slow]
            yield f"{kind} stragglers: {'; '.join(named)}"


def scalars(report: ScoreReport) -> dict[str, float]:
    """Return the smallest, the median and the largest score of each kind, by name; those that nobody has left out."""
    told: dict[str, float] = {}
    for kind, scores in report.kinds():
        for what, column in scores.columns():
            known = [score for score in column if score is not None]
            name = f"gpu_{kind}_perf" if what == "gpu" else f"section_{kind}_perf/{what.removeprefix('section ')}"
            if known:
                told |= {
                    f"{name}/min": min(known),
                    f"{name}/median": statistics.median(known),
                    f"{name}/max": max(known),
                }
    return told
