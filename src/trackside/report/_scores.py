"""Scores by rank and part: of section windows, or of the parts of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from trackside.handlers.models.scores import ScoreReport
from trackside.report._episodes import Episodes
from trackside.report._parts import kind_of
from trackside.report._report import Heatmap, LateRank
from trackside.report._rows import tiles_of
from trackside.report._tiles import OUTSIDE, STANDSTILLS, is_gap
from trackside.report._watched import Watched
from trackside.report._whatif import WhatIf

_MOST_LATE: Final = 100
_LEAST_WINDOWS: Final = 2
_SHOWN_FROM: Final = 0.02
"""Parts that take less of a step than that on every rank are left out: their scores are noise."""


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


def late_by_windows(episodes: Episodes, waits: set[str]) -> tuple[LateRank, ...]:
    """
    Return the ranks with low scores in more than one window, or in the only one: where steps are not known.

    A rank that is long in a section in which ranks wait for each other waits for a slow one, and is left out.
    """
    least = min(_LEAST_WINDOWS, max(1, episodes.windows))
    found = [
        LateRank(
            rank=one.rank,
            node=one.node,
            what=one.what,
            where=one.what,
            own_ns=0.0,
            peers_ns=0.0,
            lateness_ns=one.lost_s * 1e9 / max(1, one.until_step - one.since_step + 1),
            since_step=one.since_step,
            since_ns=one.since_ns,
            until_step=one.until_step,
            is_over=False,
            lost_s=one.lost_s,
            also_in=(),
            waited_in="",
            certainty=1 / max(one.score, 1e-3),
        )
        for one in episodes.found.values()
        if one.windows >= least and kind_of(one.what, waits) != "waiting"
    ]
    return tuple(sorted(found, key=lambda one: (-one.lost_s, one.rank, one.what))[:_MOST_LATE])


def heatmap_of_tiles(mains: Sequence[Watched], what_if: WhatIf) -> Heatmap | None:
    """Return each rank's mean time in the parts of its steps, as scores: the fastest rank's over its own."""
    found = tiles_of(mains)
    last = found[-1][0].source if found else None
    found = [
        (one, tiles)
        for one, tiles in found
        if last is not None and (one.source.run_id, one.source.attempt) == (last.run_id, last.attempt)
    ]
    if len(found) < 2 or not what_if.step_ns:  # noqa: PLR2004
        return None
    found.sort(key=lambda item: item[0].source.rank)
    means: dict[str, list[float]] = {}
    for place, (_, tiles) in enumerate(found):
        steps = sum(tiles.steps) or 1
        for name, column in tiles.took.items():
            if name in STANDSTILLS or name in what_if.waits_in:
                continue
            known = OUTSIDE if is_gap(name) else name
            means.setdefault(known, [0.0] * len(found))[place] += math.fsum(column) / steps
    means = {name: own for name, own in means.items() if max(own) >= _SHOWN_FROM * what_if.step_ns and min(own) > 0}
    if not means:
        return None
    return Heatmap(
        basis="the mean times of the parts of a step, those in which ranks wait for each other left out",
        ranks=[one.source.rank for one, _ in found],
        nodes=[one.source.host for one, _ in found],
        names=list(means),
        scores=[[min(own) / value for value in own] for own in means.values()],
    )
