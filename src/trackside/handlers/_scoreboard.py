"""The latest scores in a few figures, whatever the number of ranks: for systems that pay for each series."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import attrs

from trackside.events import StragglerReport
from trackside.handlers.models.scores._packing import unpacked, unpacked_numbers

STATS: Final = {"min": 0.0, "p05": 0.05, "p50": 0.5}
"""The figures of a column, and the share of its ranks that are below."""


class Scored(NamedTuple):
    """One rank's score in one thing."""

    kind: str
    """``relative`` or ``individual``."""
    section: str
    """The section's name, or ``gpu``."""
    rank: int
    host: str
    score: float


@attrs.define
class _Window:
    attempt: int
    window: int
    revision: int
    parts: int
    read: dict[int, list[Scored]] = attrs.field(factory=dict)


class Scoreboard:
    """Keeps the scores of the latest window that is complete."""

    def __init__(self) -> None:
        self.scores: list[Scored] = []
        self._being_read: _Window | None = None

    def read(self, report: StragglerReport) -> bool:
        """Take one part of a report; return whether that made it complete."""
        key = (report.attempt, report.window, report.revision, report.parts)
        window = self._being_read
        if window is None or (window.attempt, window.window, window.revision, window.parts) != key:
            window = self._being_read = _Window(*key)
        window.read[report.part] = list(_scored(report))
        if len(window.read) < window.parts:
            return False
        self.scores = [scored for _, part in sorted(window.read.items()) for scored in part]
        self._being_read = None
        return True

    def stats(self) -> Iterator[tuple[str, str, str, float]]:
        """Yield kind, section, ``min``, ``p05`` or ``p50``, and the score of that rank, none of them in between."""
        columns: dict[tuple[str, str], list[float]] = {}
        for scored in self.scores:
            columns.setdefault((scored.kind, scored.section), []).append(scored.score)
        for (kind, section), values in columns.items():
            values.sort()
            for name, share in STATS.items():
                yield kind, section, name, values[max(0, math.ceil(share * len(values)) - 1)]

    def worst(self, count: int) -> list[Scored]:
        """Return the *count* ranks with the lowest scores, each by what it is worst in; the worst first."""
        lowest: dict[int, Scored] = {}
        for scored in self.scores:
            known = lowest.get(scored.rank)
            if known is None or scored.score < known.score:
                lowest[scored.rank] = scored
        return sorted(lowest.values(), key=lambda scored: (scored.score, scored.rank))[:count]


def _scored(report: StragglerReport) -> Iterator[Scored]:
    columns = [column.partition(" ") for column in report.columns]
    scores = iter(unpacked(report.scores))
    for rank, node in zip(unpacked_numbers(report.ranks), unpacked_numbers(report.node_of), strict=True):
        for kind, _, what in columns:
            score = next(scores)
            if not math.isnan(score):
                yield Scored(kind, what.removeprefix("section "), rank, report.nodes[node], score)
