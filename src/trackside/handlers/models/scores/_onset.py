"""Since when a rank has been a straggler, and what it costs."""

from __future__ import annotations

from typing import Any, NamedTuple

from trackside.handlers.models.scores._evaluation import Evaluation
from trackside.handlers.models.scores._report import Straggler, Thresholds, below


class Slow(NamedTuple):
    """One rank, on one node, being slow in one thing; on another node it is another matter."""

    rank: int
    node: str
    kind: str
    what: str


class Onset(NamedTuple):
    """Where it began."""

    window: int
    step: int


Streaks = dict[Slow, Onset]
"""Who has been slow in every window that scored them, and since when."""


def flagged(evaluation: Evaluation, thresholds: Thresholds) -> dict[Slow, int]:
    """Return who is below a threshold, and the place of each in the report."""
    found = {}
    for kind, scores in evaluation.kinds():
        for what, column in scores.columns():
            for place in below(column, thresholds.of(kind, what)):
                member = evaluation.members[place]
                found[Slow(evaluation.ranks[place], member.node if member else "", kind, what)] = place
    return found


def continued(streaks: Streaks, slow: dict[Slow, int], evaluation: Evaluation, here: Onset) -> Streaks:
    """Return *streaks* as they are after a window with the stragglers *slow*; a missing score changes nothing."""
    after = {key: streaks.get(key, here) for key in slow}
    places = None
    for key, onset in streaks.items():
        if key in after:
            continue
        if places is None:
            places = {rank: place for place, rank in enumerate(evaluation.ranks)}
        place = places.get(key.rank)
        member = None if place is None else evaluation.members[place]
        if (
            place is None
            or member is None
            or (member.node == key.node and evaluation.score(place, key.kind, key.what) is None)
        ):
            after[key] = onset
    return after


def stragglers(evaluation: Evaluation, slow: dict[Slow, int], streaks: Streaks) -> list[Straggler]:
    """Return the stragglers of a window, the worst first."""
    found = []
    for key, place in slow.items():
        score = evaluation.score(place, key.kind, key.what)
        assert score is not None
        since = streaks[key]
        found.append(
            Straggler(
                rank=key.rank,
                node=key.node,
                kind=key.kind,
                what=key.what,
                score=score,
                lost_s_per_step=evaluation.lost_s_per_step(place, key.kind, key.what, score),
                since_window=since.window,
                since_step=since.step,
            )
        )
    return sorted(found, key=lambda one: (one.score, one.rank, one.kind, one.what))


def dump(streaks: Streaks) -> list[list[Any]]:
    """Return *streaks* as plain data."""
    return [[*key, *onset] for key, onset in streaks.items()]


def load(data: Any) -> Streaks:
    """Return what was dumped as *data*."""
    return {
        Slow(int(rank), str(node), str(kind), str(what)): Onset(window, step)
        for rank, node, kind, what, window, step in data
    }
