"""The slow ranks over the whole of a run, from the scores of its windows."""

from __future__ import annotations

import math
from typing import Any

import attrs

from trackside.handlers.models.scores import RELATIVE, ScoreReport


@attrs.define
class Episode:
    """What one rank's slowness in one thing came to."""

    rank: int
    node: str
    what: str
    since_step: int
    since_ns: int
    until_step: int = -1
    score: float = 1.0
    windows: int = 0
    lost_s: float = 0.0


class Episodes:
    """Takes the last report of each window, in order."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, str], Episode] = {}
        self.latest: ScoreReport | None = None
        self.windows = 0
        """Those in which ranks were compared."""
        self.waited_s = 0.0
        """What a rank waited for others, on average over ranks, in all windows."""
        self.waited_steps = 0

    def take(self, report: ScoreReport) -> None:
        """Take in one window."""
        present = len(report.ranks) - sum(told.what == "all" for told in report.missing)
        self.windows += present > 1  # a rank alone is compared with nobody
        if report.is_closed or self.latest is None:
            self.latest = report
        steps = max(1, report.last_step - report.first_step + 1)
        waited = [seconds for seconds in report.waited_s_per_step if seconds is not None]
        if waited:
            self.waited_s += math.fsum(waited) / len(waited) * steps
            self.waited_steps += steps
        for one in report.stragglers:
            if one.kind == RELATIVE:
                self._note(one, report, steps)

    def _note(self, one: Any, report: ScoreReport, steps: int) -> None:
        what = one.what.removeprefix("section ")
        episode = self.found.get((one.rank, what))
        if episode is None:
            episode = Episode(one.rank, one.node, what, report.first_step, report.start_ns)
            self.found[one.rank, what] = episode
        episode.until_step = report.last_step
        episode.score = min(episode.score, one.score)
        episode.windows += 1
        episode.lost_s += one.lost_s_per_step * steps
