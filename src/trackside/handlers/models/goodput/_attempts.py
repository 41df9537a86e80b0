"""The attempts of a session: the processes of each, and which of its work a later one did again."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

import attrs

from trackside.handlers.models.goodput import _problems as problems
from trackside.handlers.models.goodput._archive import NO_STEP
from trackside.handlers.models.goodput._process import Process

Key: TypeAlias = "tuple[str, int, int]"
"""Run id, restart count, and which process of its rank in that restart."""


@attrs.frozen(eq=False)
class Attempt:
    """The processes, of one rank each, that ran as one."""

    processes: tuple[Process, ...]
    """By rank."""
    wasted_from: int | None
    """The lowest step that a later attempt trained; None if none trained any."""

    @property
    def start(self) -> int:
        """When its first process began, in ns since the epoch."""
        return min(process.start for process in self.processes)

    @property
    def last(self) -> int:
        """Its last proven activity."""
        return max(process.last for process in self.processes)

    @property
    def has_ended(self) -> bool:
        """Whether all of it came to a good end."""
        return all(process.has_ended for process in self.processes)


def attempts_of(processes: Iterable[Process], found: collections.Counter[str]) -> list[Attempt]:
    """
    Put *processes* into attempts, in order of their start.

    Args:
        processes: The main processes of a session of which anything is known.
        found: Gets what is wrong with them.
    """
    groups: dict[Key, list[Process]] = {}
    for own in _by_rank(processes).values():
        counts: collections.Counter[tuple[str, int]] = collections.Counter()
        for process in _without_second_writers(own, found):
            place = process.source.run_id, process.source.attempt
            groups.setdefault((*place, counts[place]), []).append(process)
            counts[place] += 1
    ordered = sorted(groups.items(), key=lambda item: (min(process.start for process in item[1]), item[0]))
    merged = _together([group for _, group in ordered])
    for before, after in pairwise(merged):
        if min(process.start for process in after) < max(process.last for process in before):
            found[problems.OVERLAPPING_ATTEMPTS] += 1
    return _judged(merged)


def _by_rank(processes: Iterable[Process]) -> dict[int, list[Process]]:
    ranks: dict[int, list[Process]] = {}
    for process in sorted(processes, key=lambda process: (process.source.rank, process.start, process.source.id)):
        ranks.setdefault(process.source.rank, []).append(process)
    return ranks


def _without_second_writers(own: Sequence[Process], found: collections.Counter[str]) -> list[Process]:
    """Leave out of one rank's processes those that began and fell silent while another one was alive."""
    kept: list[Process] = []
    for process in own:
        if kept and process.last < kept[-1].last and not _restarts(process, kept[-1]):
            found[problems.SECOND_WRITER] += 1
        else:
            kept.append(process)
    return kept


def _restarts(process: Process, before: Process) -> bool:
    here, there = process.source, before.source
    return here.run_id == there.run_id and here.attempt > there.attempt


def _together(groups: Sequence[list[Process]]) -> list[list[Process]]:
    """Make one of neighbours that ran at the same time as different ranks: their launcher gave them no common id."""
    merged: list[list[Process]] = []
    for group in groups:
        if merged and _belong(merged[-1], group):
            merged[-1].extend(group)
        else:
            merged.append(list(group))
    return merged


def _belong(before: Sequence[Process], group: Sequence[Process]) -> bool:
    overlap = min(process.start for process in group) < max(process.last for process in before)
    ranks = {process.source.rank for process in before}
    runs = {process.source.run_id for process in before}
    restarts = {process.source.attempt for process in before}
    return overlap and all(
        process.source.rank not in ranks and process.source.run_id not in runs and process.source.attempt in restarts
        for process in group
    )


def _judged(groups: Sequence[list[Process]]) -> list[Attempt]:
    """Find for each attempt the step from which on later ones did its work again."""
    attempts: list[Attempt] = []
    wasted_from: int | None = None
    for place, group in reversed(list(enumerate(groups))):
        ranks = tuple(sorted(group, key=lambda process: process.source.rank))
        attempts.append(Attempt(ranks, wasted_from))
        trained = [process for process in group if process.first_step != NO_STEP]
        if trained:
            first = min(process.first_step for process in trained)
            # Once steps are counted anew, as in each epoch, a low number says nothing about earlier attempts.
            anew = wasted_from is None or any(process.laps for process in trained)
            wasted_from = first if anew else min(first, wasted_from or 0)
        elif place == len(groups) - 1:
            wasted_from = _restored(group)
    return attempts[::-1]


def _restored(group: Sequence[Process]) -> int | None:
    """Return the step at which an attempt will go on that has loaded a checkpoint and trained nothing yet."""
    steps = [process.restored_step for process in group if process.restored_step != NO_STEP]
    return min(steps) + 1 if steps else None
