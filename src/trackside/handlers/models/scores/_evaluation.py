"""
The scores of one window, and the ranks whose low scores are evidence that they are slow.

The formulas of the scores are those of NVIDIA's resiliency extension (NVRx, straggler detection).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import mul, truediv
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import attrs

from trackside.handlers.models.scores._score_report import (
    EXCLUDED,
    GPU,
    INDIVIDUAL,
    NO_SAMPLES,
    NOT_COMMON,
    OFF,
    RELATIVE,
    SILENT,
    KindScores,
    Missing,
    Scores,
    Straggler,
    Thresholds,
    below,
)
from trackside.handlers.models.scores._window import Layout, Member, Timings, Window
from trackside.handlers.models.steps import LEAST_LATE_NS, WAITING, kind_by_name, least_lateness_ns

Column = Sequence[float]


def lowest(rows: Sequence[Column]) -> list[float]:
    """Return the smallest value of each column of *rows*, of which there is at least one: the reference of peers."""
    return list(map(min, *rows)) if len(rows) > 1 else list(rows[0])


def section_scores(references: Column, medians: Column) -> list[float]:
    """Return for each section the reference divided by the median: 0.5 is twice as slow as the reference."""
    return list(map(truediv, references, medians))


def gpu_score(references: Column, medians: Column, weights: Column) -> float | None:
    """
    Return the average of the kernels' scores, each weighted by its time.

    Args:
        references: For each kernel, the median to compare with.
        medians: For each kernel, the rank's own median.
        weights: For each kernel, the total time in the window: launches times mean.

    Returns:
        None if there is no kernel, or no time was spent in any.
    """
    total = sum(weights)
    weighted: float = sum(map(mul, map(truediv, references, medians), weights))
    return weighted / total if total else None


def total_times(counts: Iterable[float], means: Iterable[float]) -> list[float]:
    """Return the total time of each kernel, which is its weight in the GPU score."""
    return list(map(mul, counts, means))


def is_nccl(name: str) -> bool:
    """Return whether *name* is a kernel of NCCL: its time is spent waiting for others, so it is left out."""
    return "ncclDev" in name


_NS_PER_S: Final = 1e9

References = Callable[[int, Member, Timings], Column]
"""Return, for a rank's timings, the smallest medians that it reached, earlier attempts included."""


@attrs.define
class Evaluation:
    """The scores of one window."""

    ranks: list[int]
    members: list[Member | None]
    relative: KindScores
    individual: KindScores
    coverage: Scores
    missing: list[Missing]

    def kinds(self) -> Iterator[tuple[str, KindScores]]:
        """Yield the kinds of scores and the scores."""
        yield RELATIVE, self.relative
        yield INDIVIDUAL, self.individual

    def score(self, place: int, kind: str, what: str) -> float | None:
        """Return one score, if there is one."""
        scores = self.relative if kind == RELATIVE else self.individual
        column = scores.gpu if what == GPU else scores.sections.get(what.partition(" ")[2])
        return column[place] if column else None

    def is_slow_throughout(self, place: int, kind: str, what: str, score: float) -> bool:
        """Return whether a section took longer each time than its reference, its peers' shortest median, did."""
        member = self.members[place]
        timings = member.sections if member is not None and kind == RELATIVE and what != GPU else None
        if timings is None:
            return False
        column = timings.layout.places[what.partition(" ")[2]]
        return timings.shortest[column] > timings.medians[column] * score

    def lost_s_per_step(self, place: int, kind: str, what: str, score: float) -> float:
        """Return by how many seconds a step would be shorter at the reference."""
        member = self.members[place]
        if member is None:
            return 0.0
        timings = member.kernels if what == GPU else member.sections
        if timings is None:
            return 0.0
        if what == GPU:
            share = self.coverage[place] if kind == RELATIVE else 1.0
            lost_ns = sum(timings.weights) * (share or 0.0) * (1.0 - score)
        else:
            column = timings.layout.places[what.partition(" ")[2]]
            lost_ns = timings.medians[column] * (1.0 - score) * timings.weights[column]
        return lost_ns / member.steps / _NS_PER_S


def evaluate(
    window: Window,
    ranks: list[int],
    *,
    kinds: Sequence[str],
    references: References,
    gpu_off: Callable[[int], str | None],
) -> Evaluation:
    """
    Compute the scores of *window*.

    Args:
        window: The measured times.
        ranks: The ranks that could have been in it.
        kinds: The kinds of scores to compute.
        references: Returns the smallest medians that a rank reached.
        gpu_off: Returns a rank's reason for having no GPU times, if it gave one.
    """
    members = [window.members.get(rank) for rank in ranks]
    sections = [None if member is None else member.sections for member in members]
    kernels = [None if member is None else member.kernels for member in members]
    names = sorted({name for layout in _layouts(sections) for name in layout.names})
    relative, individual = (
        _empty(len(ranks), names) if kind in kinds else KindScores() for kind in (RELATIVE, INDIVIDUAL)
    )
    coverage: Scores = [None] * len(ranks)
    if RELATIVE in kinds:
        for places in _peers(members):
            _compare_sections(relative.sections, places, [sections[place] for place in places])
            _compare_kernels(relative.gpu, coverage, places, [kernels[place] for place in places])
    if INDIVIDUAL in kinds:
        _look_back(individual, ranks, members, references)
    computed = {kind: scores for kind, scores in ((RELATIVE, relative), (INDIVIDUAL, individual)) if kind in kinds}
    missing = [
        lacking
        for place, (rank, member) in enumerate(zip(ranks, members, strict=True))
        for lacking in _reasons(rank, member, place, computed, gpu_off)
    ]
    return Evaluation(ranks, members, relative, individual, coverage, missing)


def _layouts(timings: Sequence[Timings | None]) -> set[Layout]:
    return {timing.layout for timing in timings if timing is not None}


def _empty(size: int, names: list[str]) -> KindScores:
    return KindScores(gpu=[None] * size, sections={name: [None] * size for name in names})


def _peers(members: list[Member | None]) -> list[list[int]]:
    """Return the indices of the ranks that are compared with each other; silent ranks are left out."""
    groups: dict[str, list[int]] = {}
    for place, member in enumerate(members):
        if member is not None:
            groups.setdefault(member.group, []).append(place)
    return list(groups.values())


def _common(timings: Sequence[Timings | None]) -> list[str]:
    """Return the names that all *timings* have, in an order that does not depend on that of the ranks."""
    layouts = _layouts(timings)
    if any(timing is None for timing in timings) or not layouts:
        return []
    if len(layouts) == 1:
        return list(layouts.pop().names)
    return sorted(set.intersection(*(set(layout.names) for layout in layouts)))


def _compare_sections(columns: dict[str, Scores], places: list[int], timings: Sequence[Timings | None]) -> None:
    common = _common(timings)
    if not common:
        return
    picks = {layout: layout.pick(common) for layout in _layouts(timings)}
    rows = [_taken(timing.medians, picks[timing.layout]) for timing in timings if timing is not None]
    reference = lowest(rows)
    scored = zip(*(section_scores(reference, row) for row in rows), strict=True)
    for name, scores in zip(common, scored, strict=True):
        column = columns[name]
        for place, score in zip(places, scores, strict=True):
            column[place] = score


def _compare_kernels(scores: Scores, coverage: Scores, places: list[int], timings: Sequence[Timings | None]) -> None:
    common = _common(timings)
    if not common:
        return
    picks = {layout: layout.pick(common) for layout in _layouts(timings)}
    whole = [timing for timing in timings if timing is not None]
    rows = [_taken(timing.medians, picks[timing.layout]) for timing in whole]
    reference = lowest(rows)
    for place, timing, row in zip(places, whole, rows, strict=True):
        pick = picks[timing.layout]
        weights = _taken(timing.weights, pick)
        scores[place] = gpu_score(reference, row, weights)
        # A share of the kernels that are not excluded: excluded ones do not count as lost.
        coverage[place] = 1.0 if pick is None else sum(weights) / (sum(timing.weights) or 1.0)


def _taken(row: array[float], pick: Callable[[Sequence[float]], Sequence[float]] | None) -> Sequence[float]:
    return row if pick is None else pick(row)


def _look_back(individual: KindScores, ranks: list[int], members: list[Member | None], references: References) -> None:
    for place, (rank, member) in enumerate(zip(ranks, members, strict=True)):
        if member is None:
            continue
        if member.sections is not None:
            scores = section_scores(references(rank, member, member.sections), member.sections.medians)
            for name, score in zip(member.sections.layout.names, scores, strict=True):
                individual.sections[name][place] = score
        if member.kernels is not None:
            kernels = member.kernels
            individual.gpu[place] = gpu_score(references(rank, member, kernels), kernels.medians, kernels.weights)


def _reasons(
    rank: int,
    member: Member | None,
    place: int,
    computed: dict[str, KindScores],
    gpu_off: Callable[[int], str | None],
) -> Iterator[Missing]:
    if member is None:
        yield Missing(rank, "all", SILENT)
        return
    lacking = [kind for kind, scores in computed.items() if scores.gpu[place] is None]
    if lacking:
        yield from _missing(rank, GPU, lacking, computed, _why_no_gpu(rank, member, gpu_off))
    known = member.sections.layout.places if member.sections is not None else {}
    for name in next(iter(computed.values()), KindScores()).sections:
        lacking = [kind for kind, scores in computed.items() if scores.sections[name][place] is None]
        if lacking:
            yield from _missing(rank, f"section {name}", lacking, computed, NOT_COMMON if name in known else NO_SAMPLES)


def _missing(rank: int, what: str, lacking: list[str], computed: dict[str, KindScores], why: str) -> Iterator[Missing]:
    if len(lacking) == len(computed):
        yield Missing(rank, what, why)
    else:
        for kind in lacking:
            yield Missing(rank, f"{kind} {what}", why)


def _why_no_gpu(rank: int, member: Member, gpu_off: Callable[[int], str | None]) -> str:
    if member.kernels is None:
        off = gpu_off(rank)
        return NO_SAMPLES if off is None else f"{OFF}: {off}"
    if len(member.kernels.layout):
        return NOT_COMMON
    return EXCLUDED if member.kernels.left_out_ns else NO_SAMPLES


class Slow(NamedTuple):
    """A rank on a node that is slow in one section or on its GPU; on another node it counts anew."""

    rank: int
    node: str
    kind: str
    what: str


class Streak(NamedTuple):
    """The window and its first step since which a rank has been slow, and in how many windows it was."""

    window: int
    step: int
    windows: int = 1


Streaks = dict[Slow, Streak]
"""The ranks that have been slow in every window that scored them."""

LEAST_WINDOWS: Final = 2
"""
The windows in a row in which a rank is slow before it is a straggler: noise slows a rank for some of the steps of one.
"""


def slow_ranks(evaluation: Evaluation, thresholds: Thresholds) -> dict[Slow, int]:
    """
    Return the ranks that are slow in this window, and the index of each in the report.

    A score is strictly below its threshold, and at the reference each step would be a millisecond shorter. A section in
    which ranks wait for each other by its name makes none slow. What slows all peers makes none of them slower than its
    past: an individual score is divided by the median of the peers'.
    """
    found = {}
    for kind, scores in evaluation.kinds():
        for what, column in scores.columns():
            if what != GPU and kind_by_name(what.partition(" ")[2]) == WAITING:
                continue
            threshold = thresholds.of(kind, what)
            places = below(column, threshold)
            if kind == INDIVIDUAL and places:
                places = below(_over_peers(column, places, evaluation.members), threshold)
            for place in places:
                member, score = evaluation.members[place], column[place]
                assert member is not None
                assert score is not None
                if evaluation.lost_s_per_step(place, kind, what, score) * _NS_PER_S >= LEAST_LATE_NS:
                    found[Slow(evaluation.ranks[place], member.node, kind, what)] = place
    return found


def _over_peers(column: Scores, places: Sequence[int], members: Sequence[Member | None]) -> Scores:
    """Return the scores of *column* at *places*, each divided by the median of the peers' scores, if it has peers."""
    groups: dict[str, list[float]] = {}
    for member, score in zip(members, column, strict=True):
        if member is not None and score is not None:
            groups.setdefault(member.group, []).append(score)
    for scores in groups.values():
        scores.sort()
    found: Scores = [None] * len(column)
    for place in places:
        member, score = members[place], column[place]
        assert member is not None
        assert score is not None
        known = groups[member.group]
        own = bisect_left(known, score)
        peers = len(known) - 1
        usual = fmean(known[at + (at >= own)] for at in ((peers - 1) // 2, peers // 2)) if peers else 1.0
        found[place] = score / (usual or 1.0)
    return found


def continued(streaks: Streaks, slow: dict[Slow, int], evaluation: Evaluation, here: Streak) -> Streaks:
    """Return *streaks* after a window in which the ranks *slow* are; a missing score changes nothing."""
    after = {
        key: known._replace(windows=known.windows + 1) if (known := streaks.get(key)) is not None else here
        for key in slow
    }
    places = None
    for key, streak in streaks.items():
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
            after[key] = streak
    return after


def stragglers(evaluation: Evaluation, slow: dict[Slow, int], streaks: Streaks) -> list[Straggler]:
    """
    Return the *slow* ranks of a window that are so by no noise, and whose lateness matters; the worst first.

    It is no noise if it lasts for a streak of windows, or if a section took longer each time in one.
    """
    found = []
    members = [member for member in evaluation.members if member is not None]
    least_ns = least_lateness_ns(median(member.step_ns for member in members), len(members)) if members else 0.0
    for key, place in slow.items():
        score, streak = evaluation.score(place, key.kind, key.what), streaks[key]
        assert score is not None
        lost_s_per_step = evaluation.lost_s_per_step(place, key.kind, key.what, score)
        is_evident = streak.windows >= LEAST_WINDOWS or evaluation.is_slow_throughout(place, key.kind, key.what, score)
        if not is_evident or lost_s_per_step * _NS_PER_S < least_ns:
            continue
        found.append(
            Straggler(
                rank=key.rank,
                node=key.node,
                kind=key.kind,
                what=key.what,
                score=score,
                lost_s_per_step=lost_s_per_step,
                since_window=streak.window,
                since_step=streak.step,
            )
        )
    return sorted(found, key=lambda one: (one.score, one.rank, one.kind, one.what))


def dump_streaks(streaks: Streaks) -> list[list[Any]]:
    """Return *streaks* as plain data."""
    return [[*key, *streak] for key, streak in streaks.items()]


def load_streaks(data: Any) -> Streaks:
    """Return the object that was dumped as *data*."""
    return {
        Slow(int(rank), str(node), str(kind), str(what)): Streak(int(window), int(step), int(windows))
        for rank, node, kind, what, window, step, windows in data
    }
