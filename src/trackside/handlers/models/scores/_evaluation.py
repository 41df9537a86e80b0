"""From what the ranks measured in one window to their scores, and to the reasons for the missing ones."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs

from trackside.handlers.models.scores._formulas import Column, gpu_score, lowest, section_scores
from trackside.handlers.models.scores._layout import Layout
from trackside.handlers.models.scores._report import (
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
)
from trackside.handlers.models.scores._window import Member, Timings, Window

_NS_PER_S: Final = 1e9

References = Callable[[int, Member, Timings], Column]
"""Return of a rank's timings the smallest medians that it was capable of, earlier attempts included."""


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

    def lost_s_per_step(self, place: int, kind: str, what: str, score: float) -> float:
        """Return how many seconds shorter a step would be at the reference."""
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
        window: What was measured.
        ranks: Who could have been in it.
        kinds: The kinds of scores to compute.
        references: What each rank was capable of.
        gpu_off: Returns why a rank has no GPU times, if it said so.
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
        told
        for place, (rank, member) in enumerate(zip(ranks, members, strict=True))
        for told in _reasons(rank, member, place, computed, gpu_off)
    ]
    return Evaluation(ranks, members, relative, individual, coverage, missing)


def _layouts(timings: Sequence[Timings | None]) -> set[Layout]:
    return {timing.layout for timing in timings if timing is not None}


def _empty(size: int, names: list[str]) -> KindScores:
    return KindScores(gpu=[None] * size, sections={name: [None] * size for name in names})


def _peers(members: list[Member | None]) -> list[list[int]]:
    """Return the places of those who are compared with each other; whoever is silent is not."""
    groups: dict[str, list[int]] = {}
    for place, member in enumerate(members):
        if member is not None:
            groups.setdefault(member.group, []).append(place)
    return list(groups.values())


def _common(timings: Sequence[Timings | None]) -> list[str]:
    """Return the names that all have, in an order that is the same whatever the order of the ranks."""
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
        # Of what can be compared at all: excluded kernels are nobody's loss.
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
        yield from _told(rank, GPU, lacking, computed, _why_no_gpu(rank, member, gpu_off))
    known = member.sections.layout.places if member.sections is not None else {}
    for name in next(iter(computed.values()), KindScores()).sections:
        lacking = [kind for kind, scores in computed.items() if scores.sections[name][place] is None]
        if lacking:
            yield from _told(rank, f"section {name}", lacking, computed, NOT_COMMON if name in known else NO_SAMPLES)


def _told(rank: int, what: str, lacking: list[str], computed: dict[str, KindScores], why: str) -> Iterator[Missing]:
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
