"""A session as consecutive stretches of time, each accounted for by one process or known to be lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from trackside.handlers.models.goodput._account import Account
from trackside.handlers.models.goodput._archive import NO_STEP
from trackside.handlers.models.goodput._attempts import Attempt
from trackside.handlers.models.goodput._buckets import (
    KIND_SHIFT,
    KINDS,
    LAST_ELASTIC,
    OTHER,
    PRODUCTIVE,
    RECOVERY,
    VALIDATION,
    Sums,
    add,
    subtract,
)
from trackside.handlers.models.goodput._process import Process


@attrs.frozen(eq=False)
class Leg:
    """A stretch of time."""

    start: int
    end: int
    """In ns since the epoch."""
    account: Account | None = None
    """Whose time it is; None if no process was there."""
    gap: str = OTHER
    """The bucket of the time that no process accounts for."""
    next: Process | None = None
    """Who came after the gap: it may have waited for slices before it began."""

    def between(self, start: int, end: int) -> Sums:
        """Return the time from *start* to *end* that lies in it, in ns by bucket."""
        start, end = max(start, self.start), min(end, self.end)
        if end <= start:
            return {}
        sums = self._waits(start, end) if self.account is None else self.account.between(start, end)
        idle = end - start - sum(sums.values())
        if idle:
            sums[self.gap] = sums.get(self.gap, 0) + idle
        return sums

    def _waits(self, start: int, end: int) -> Sums:
        sums: Sums = {}
        if self.next is not None:
            spent = dict(self.next.track.until(end)[0])
            subtract(spent, self.next.track.until(start)[0])
            for code, length in spent.items():
                if code >> KIND_SHIFT <= LAST_ELASTIC:
                    bucket = KINDS[code >> KIND_SHIFT]
                    sums[bucket] = sums.get(bucket, 0) + length
        return sums


@attrs.frozen(eq=False)
class Timeline:
    """Legs, one after the other."""

    start: int
    end: int
    """In ns since the epoch."""
    legs: tuple[Leg, ...]
    slowest: tuple[Account, ...]
    """For each attempt the account of the rank that the others waited for."""

    def between(self, start: int, end: int) -> Sums:
        """Return the time from *start* to *end*, in ns by bucket."""
        sums: Sums = {}
        for leg in self.legs:
            if leg.start < end and leg.end > start:
                add(sums, leg.between(start, end))
        return sums


def timeline(
    attempts: Sequence[Attempt], accounts: Mapping[Process, Account], end: int, *, validation_is_productive: bool
) -> Timeline:
    """
    Lay out *attempts* one after the other, each until the next one begins.

    A job of several ranks waits for its slowest one: an attempt's time is that of the rank that got least out of it.
    What lies before that rank began or after it fell silent is that of the first and of the last one to be there.

    Args:
        attempts: In order of their start; at least one.
        accounts: Of all their processes.
        end: Where the last one ends, in ns since the epoch.
        validation_is_productive: Whether validation is something got out of the time.
    """
    starts = [attempt.start for attempt in attempts]
    ends = [*starts[1:], max(end, starts[-1])]
    slowest = [
        _slowest(attempt, accounts, until, validation_is_productive=validation_is_productive)
        for attempt, until in zip(attempts, ends, strict=True)
    ]
    legs: list[Leg] = []
    for place, (attempt, start, until) in enumerate(zip(attempts, starts, ends, strict=True)):
        own = [accounts[process] for process in attempt.processes]
        silent = start
        for leg in _legs(own, slowest[place], start, until):
            legs.append(leg)
            silent = leg.end
        if place + 1 < len(attempts):
            legs.append(Leg(silent, until, gap=RECOVERY, next=slowest[place + 1].process))
        else:
            legs.append(Leg(silent, until))
    return Timeline(starts[0], ends[-1], tuple(leg for leg in legs if leg.start < leg.end), tuple(slowest))


def _slowest(
    attempt: Attempt, accounts: Mapping[Process, Account], until: int, *, validation_is_productive: bool
) -> Account:
    """Return the account of the rank that got least out of its time; of equals, the lowest rank's."""
    own = [accounts[process] for process in attempt.processes]
    # A rank that records no steps while others do is no slower for that.
    trained = [account for account in own if account.process.first_step != NO_STEP] or own
    if len(trained) == 1:
        return trained[0]

    def gain(account: Account) -> int:
        sums = account.between(account.process.start, until)
        return sums.get(PRODUCTIVE, 0) + (sums.get(VALIDATION, 0) if validation_is_productive else 0)

    return min(trained, key=gain)


def _legs(own: Sequence[Account], slow: Account, start: int, until: int) -> Iterator[Leg]:
    """Yield who speaks for an attempt from its *start* until all of it fell silent, or *until* at the latest."""
    first = min(own, key=lambda account: account.process.start)
    last = max(own, key=lambda account: account.until)
    silent = min(last.until, until)
    at = start
    for account, end in ((first, slow.process.start), (slow, slow.until), (last, last.until)):
        end = min(end, silent)  # noqa: PLW2901
        if end > at:
            yield Leg(at, end, account)
            at = end
