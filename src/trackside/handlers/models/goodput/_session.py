"""All processes of one session, and the picture they make together."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from itertools import pairwise

import attrs

from trackside.handlers.models.goodput import _problems as problems
from trackside.handlers.models.goodput._account import Account, Hindsight
from trackside.handlers.models.goodput._archive import NO_STEP
from trackside.handlers.models.goodput._attempts import Attempt, attempts_of
from trackside.handlers.models.goodput._buckets import Stretch
from trackside.handlers.models.goodput._lengths import Lengths
from trackside.handlers.models.goodput._process import NEVER, Process
from trackside.handlers.models.goodput._timeline import Timeline, timeline


@attrs.frozen(eq=False)
class Picture:
    """A session as everything that is known by now shows it."""

    attempts: tuple[Attempt, ...]
    accounts: dict[Process, Account]
    job: Timeline
    ranks: dict[int, Timeline]
    has_ended: bool
    problems: dict[str, int]


class Session:
    """The processes of one session."""

    def __init__(self, name: str, *, validation_is_productive: bool) -> None:
        self.name = name
        self.processes: list[Process] = []
        self._validation_is_productive = validation_is_productive
        self._known: dict[Process, tuple[int, Hindsight, Account]] = {}
        self._older: tuple[tuple[Account, ...], tuple[Lengths, Lengths]] | None = None

    @property
    def start(self) -> int:
        """When its first rank began; `NEVER` if nothing is known of any."""
        return min((process.start for process in self.mains()), default=NEVER)

    def mains(self) -> list[Process]:
        """Return the processes that are ranks and of which anything is known."""
        return [process for process in self.processes if process.is_main and process.start != NEVER]

    def picture(
        self, end_ns: int | None = None, *, is_alive: bool = False, exclude: Sequence[Stretch] = ()
    ) -> Picture | None:
        """
        Return the session as it stands; None if it has no rank.

        Args:
            end_ns: Look as far as that; to the last event unless given.
            is_alive: Whether the last attempt is known to be running at *end_ns*, though its events say nothing of it.
            exclude: Stretches to leave out, disjoint and in order.
        """
        mains = self.mains()
        if not mains:
            return None
        found: collections.Counter[str] = collections.Counter()
        attempts = attempts_of(mains, found)
        has_ended = attempts[-1].has_ended
        last = attempts[-1].last
        end = last if end_ns is None or has_ended else max(last, end_ns)
        accounts = self._accounts(attempts, end if is_alive else None, tuple(exclude))
        job = self._timeline(attempts, accounts, end)
        ranks = self._ranks(attempts, accounts, job)
        self._find_problems(attempts, found, has_ended=has_ended)
        return Picture(tuple(attempts), accounts, job, ranks, has_ended, dict(sorted(found.items())))

    def _accounts(
        self, attempts: Sequence[Attempt], alive_until: int | None, excluded: tuple[Stretch, ...]
    ) -> dict[Process, Account]:
        accounts: dict[Process, Account] = {}
        for attempt in attempts:
            is_over = attempt is not attempts[-1]
            for process in attempt.processes:
                until = process.last
                if alive_until is not None and not is_over and not process.has_ended:
                    until = max(until, alive_until)
                accounts[process] = self._account(process, Hindsight(attempt.wasted_from, is_over, until, excluded))
        return accounts

    def _account(self, process: Process, hindsight: Hindsight) -> Account:
        known = self._known.get(process)
        if known is None or known[0] != process.version or known[1] != hindsight:
            known = self._known[process] = process.version, hindsight, Account(process, hindsight)
        return known[2]

    def _timeline(self, attempts: Sequence[Attempt], accounts: dict[Process, Account], end: int) -> Timeline:
        return timeline(attempts, accounts, end, validation_is_productive=self._validation_is_productive)

    def _ranks(
        self, attempts: Sequence[Attempt], accounts: dict[Process, Account], job: Timeline
    ) -> dict[int, Timeline]:
        own: dict[int, list[Attempt]] = {}
        for attempt in attempts:
            for process in attempt.processes:
                own.setdefault(process.source.rank, []).append(Attempt((process,), attempt.wasted_from))
        if len(own) == 1:
            return dict.fromkeys(own, job)
        return {
            rank: self._timeline(found, accounts, accounts[found[-1].processes[0]].until)
            for rank, found in sorted(own.items())
        }

    def lengths(self, slowest: Sequence[Account]) -> tuple[Lengths, Lengths]:
        """Return the lengths of all steps of *slowest*, one for each attempt, and of their productive ones."""
        older = tuple(slowest[:-1])
        if self._older is None or self._older[0] != older:
            self._older = older, _merged(older)
        lengths, counted = self._older[1][0].copy(), self._older[1][1].copy()
        lengths.merge(slowest[-1].lengths[0])
        counted.merge(slowest[-1].lengths[1])
        return lengths, counted

    def _find_problems(self, attempts: Sequence[Attempt], found: collections.Counter[str], *, has_ended: bool) -> None:
        for process in self.processes:
            found.update(process.problems)
        if not has_ended:
            found[problems.NO_GOOD_END] += 1
        found[problems.NAME_USED_AGAIN] += sum(_begins_anew(attempts))
        for name in [name for name, count in found.items() if not count]:
            del found[name]


def _merged(accounts: Sequence[Account]) -> tuple[Lengths, Lengths]:
    lengths, counted = Lengths(), Lengths()
    for account in accounts:
        lengths.merge(account.lengths[0])
        counted.merge(account.lengths[1])
    return lengths, counted


def _begins_anew(attempts: Sequence[Attempt]) -> Iterator[bool]:
    """Yield for each attempt but the first whether it looks like another job under the same name."""
    for before, after in pairwise(attempts):
        steps = [process.first_step for process in before.processes if process.first_step != NO_STEP]
        again = [process.first_step for process in after.processes if process.first_step != NO_STEP]
        yield before.has_ended and bool(steps) and bool(again) and min(again) <= min(steps)
