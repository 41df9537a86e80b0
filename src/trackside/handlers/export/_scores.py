"""Straggler scores in a few numbers, however many ranks there are: for systems that store every series."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import attrs

from trackside.events import StragglerReport
from trackside.handlers.models.scores._window import unpacked, unpacked_numbers

_SHARES: Final = {"min": 0.0, "p05": 0.05, "p50": 0.5}
"""The statistics of a column of scores, and the share of the ranks below each."""


class RankScore(NamedTuple):
    """One rank's score for one section, or for its GPU."""

    kind: str
    """``relative`` or ``individual``."""
    section: str
    """The section's name, or ``gpu``."""
    rank: int
    host: str
    score: float


@attrs.define
class _ScoredWindow:
    attempt: int
    window: int
    revision: int
    parts: int
    scores_by_part: dict[int, list[RankScore]] = attrs.field(factory=dict)


class ScoreSummary:
    """Keep the scores of the latest complete window of one process's reports."""

    def __init__(self) -> None:
        self.scores: list[RankScore] = []
        self._incomplete: _ScoredWindow | None = None

    def add(self, report: StragglerReport) -> bool:
        """Add one part of a report; return whether its window is complete now."""
        key = (report.attempt, report.window, report.revision, report.parts)
        window = self._incomplete
        if window is None or (window.attempt, window.window, window.revision, window.parts) != key:
            window = self._incomplete = _ScoredWindow(*key)
        window.scores_by_part[report.part] = list(_scores_of(report))
        if len(window.scores_by_part) < window.parts:
            return False
        self.scores = [score for _, part in sorted(window.scores_by_part.items()) for score in part]
        self._incomplete = None
        return True

    def statistics(self) -> Iterator[tuple[str, str, str, float]]:
        """Yield kind, section, ``min``, ``p05`` or ``p50``, and that score; each is a rank's, none is interpolated."""
        columns: dict[tuple[str, str], list[float]] = {}
        for rank_score in self.scores:
            columns.setdefault((rank_score.kind, rank_score.section), []).append(rank_score.score)
        for (kind, section), values in columns.items():
            values.sort()
            for name, share in _SHARES.items():
                yield kind, section, name, values[max(0, math.ceil(share * len(values)) - 1)]

    def worst(self, count: int) -> list[RankScore]:
        """Return the *count* ranks with the lowest scores, each by its lowest one; the worst first."""
        lowest: dict[int, RankScore] = {}
        for rank_score in self.scores:
            known = lowest.get(rank_score.rank)
            if known is None or rank_score.score < known.score:
                lowest[rank_score.rank] = rank_score
        return sorted(lowest.values(), key=lambda one: (one.score, one.rank))[:count]


def _scores_of(report: StragglerReport) -> Iterator[RankScore]:
    columns = [column.partition(" ") for column in report.columns]
    scores = iter(unpacked(report.scores))
    for rank, node in zip(unpacked_numbers(report.ranks), unpacked_numbers(report.node_of), strict=True):
        for kind, _, column in columns:
            score = next(scores)
            if not math.isnan(score):
                yield RankScore(kind, column.removeprefix("section "), rank, report.nodes[node], score)
