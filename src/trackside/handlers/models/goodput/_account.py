"""
The classification of a session's time: the bucket of each instant, from the activities of its processes.

An `Account` classifies the time of one process, with the knowledge of later attempts. An attempt is the processes that
ran together. A `Timeline` lays out the attempts one after the other, as stretches that one process accounts for or that
are known to be lost.
"""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

import attrs

from trackside.handlers.models.goodput._buckets import (
    CUSTOM_EVENTS,
    FAILED,
    FIRST_CUSTOM,
    INSIDE,
    KIND_SHIFT,
    KINDS,
    LAST_ELASTIC,
    NO_STEP,
    OTHER,
    PRODUCTIVE,
    PROGRAM_STARTUP,
    RECOVERY,
    STEP,
    UNSAMPLED,
    VALIDATION,
    WASTED,
    WASTED_PROGRESS,
    Bucket,
    Problem,
    Stretch,
    Sums,
    add,
    priority,
    subtract,
)
from trackside.handlers.models.goodput._packed import Lengths, Slice
from trackside.handlers.models.goodput._reading import NEVER, ProcessState, UnendedSpan, UnendedStep
from trackside.handlers.models.liveness import RUNNING, liveness

_MOST_KNOWN: Final = 64
"""Answers kept for each account: the same stretch of a past attempt is asked for again and again."""


@attrs.frozen
class EndedStep:
    """A step that ended."""

    number: int
    start: int
    end: int
    """In ns since the epoch."""
    net: int
    """Its own time, in ns: without the time in other buckets."""
    is_sample: bool
    """Whether its length counts among the step times."""
    is_lost: bool
    """Whether it was done again."""


@attrs.frozen
class Hindsight:
    """The facts about a process that the rest of the session shows."""

    wasted_from: int | None = None
    """The lowest step that a later attempt trained; None if none trained any."""
    is_over: bool = False
    """Whether there is a later attempt."""
    until: int = 0
    """The time until which the process is known to have been alive, in ns since the epoch."""
    excluded: tuple[Stretch, ...] = ()
    """Stretches that the question leaves out, disjoint and in order: no step has own time there."""


class Account:
    """
    The time of one process by bucket.

    Each instant is classified by the same rules for every question, so the accounts of consecutive stretches add up
    to that of the whole, to the nanosecond.
    """

    def __init__(self, process: ProcessState, hindsight: Hindsight) -> None:
        self.process = process
        self.until = hindsight.until
        """The time until which the process is known to have been alive, in ns since the epoch."""
        self._track = process.track
        self._hindsight = hindsight
        number = hindsight.wasted_from
        self.wasted_at = None if number is None else self._track.time_of(number)
        """The time at which the work begins that a later attempt did again; None if there is none."""
        self._spans = [span for span in process.opened() if span.start < hindsight.until]
        step = process.open_step
        self._step = step if step is not None and step.start < hindsight.until else None
        self._known: dict[tuple[int, int], Sums] = {}
        self._step_bucket = OTHER if self._step is None else self._fate(self._step)

    def _fate(self, step: UnendedStep) -> Bucket:
        """Return the bucket of the step that has not ended."""
        beyond = self._hindsight.wasted_from
        if beyond is not None and step.number >= beyond:
            return WASTED_PROGRESS
        # Else a later attempt continued after this step, so it was completed; or there is no later attempt yet.
        is_lost = self._hindsight.is_over and beyond is None
        return OTHER if is_lost else PRODUCTIVE

    def between(self, start: int, end: int) -> Sums:
        """Return the time from *start* to *end*, in ns by bucket, as far as the process is known to have lived."""
        known = self._known.get((start, end))
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[start, end] = self._between(start, end)
        return dict(known)

    def _between(self, start: int, end: int) -> Sums:
        end = min(end, self.until)
        sums: Sums = {}
        if end <= start:
            return sums
        before, _ = self._track.until(start)
        for first, last in itertools.pairwise(self._cuts(start, end)):
            after, _ = self._track.until(last)
            spent = dict(after)
            subtract(spent, before)
            self._charge(sums, spent, first, last)
            before = after
        startup = self._startup(start, end)
        if startup:
            subtract(sums, {PRODUCTIVE: startup})
            add(sums, {PROGRAM_STARTUP: startup})  # spans may be marked as startup as well
        return sums

    def _cuts(self, start: int, end: int) -> list[int]:
        """Return the moments at which another rule begins to apply, with *start* and *end*."""
        moments = [span.start for span in self._spans]
        if self._step is not None:
            moments.append(self._step.start)
        if self.wasted_at is not None:
            moments.append(self.wasted_at)
        return sorted({start, end, *(moment for moment in moments if start < moment < end)})

    def _charge(self, sums: Sums, spent: dict[int, int], start: int, end: int) -> None:
        """Add the time *spent* by code from *start* to *end*, between which no rule changes, to *sums*."""
        span = self._prevailing(start)
        is_step_open = self._step is not None and self._step.start <= start
        is_wasted = self.wasted_at is not None and start >= self.wasted_at
        is_open_wasted = is_step_open and self._step_bucket == WASTED_PROGRESS
        for code, length in spent.items():
            kind = code >> KIND_SHIFT
            if span is not None and priority(span.kind << KIND_SHIFT) < priority(code):
                kind = span.kind
            lost = bool(code & WASTED) or (is_wasted and bool(code & INSIDE)) or is_open_wasted
            self._put(sums, self._bucket(kind, code, lost=lost), length)
        idle = end - start - sum(spent.values())
        if span is not None:
            self._put(sums, self._bucket(span.kind, 0, lost=is_open_wasted), idle)
        else:
            self._put(sums, self._step_bucket if is_step_open else OTHER, idle)

    @staticmethod
    def _put(sums: Sums, bucket: Bucket, length: int) -> None:
        if length:
            sums[bucket] = sums.get(bucket, 0) + length

    def _prevailing(self, start: int) -> UnendedSpan | None:
        """Return the open span of the highest priority; among equals the one that began last."""
        began = [span for span in self._spans if span.start <= start]
        return min(began, key=lambda span: priority(span.kind << KIND_SHIFT), default=None)

    def _bucket(self, kind: int, code: int, *, lost: bool) -> Bucket:
        if kind <= LAST_ELASTIC:
            return KINDS[kind]
        if lost:
            return WASTED_PROGRESS
        if kind >= FIRST_CUSTOM:
            return CUSTOM_EVENTS, self.process.customs[kind - FIRST_CUSTOM]
        if kind == STEP and code & FAILED:
            return OTHER
        return KINDS[kind]

    def _startup(self, start: int, end: int) -> int:
        """Return the part of the first step's excess over the mean of the others that lies from *start* to *end*."""
        own, excess = self._own_time_of_first_step, self._excess
        return min(excess, _before(own, end)) - min(excess, _before(own, start)) if excess else 0

    @functools.cached_property
    def _excess(self) -> int:
        """The excess of the first step's own time over the mean of the others', in ns."""
        net = _before(self._own_time_of_first_step, self.until)
        if not net:
            return 0
        total, samples = self._own_time()
        return max(0, net - (total - net) // (samples - 1)) if samples > 1 else 0

    @functools.cached_property
    def _own_time_of_first_step(self) -> Sequence[tuple[int, int]]:
        slices: Sequence[Slice] = self._track.first_step()
        if not slices or slices[0][2] & (WASTED | FAILED | UNSAMPLED):
            return ()
        if self.wasted_at is not None and slices[0][0] >= self.wasted_at:
            return ()
        return self._own(slices, self._covered_from())

    def _own(self, slices: Iterable[Slice], end: int) -> list[Stretch]:
        """Return the stretches of a step's own time in *slices* before *end*, without those that are excluded."""
        own = [(first, min(last, end)) for first, last, code, _ in slices if code >> KIND_SHIFT == STEP and first < end]
        for first, last in self._hindsight.excluded:
            pieces = [((start, min(stop, first)), (max(start, last), stop)) for start, stop in own]
            own = [(start, stop) for start, stop in itertools.chain.from_iterable(pieces) if start < stop]
        return own

    def _covered_from(self) -> int:
        """Return the time from which on steps have no own time: open spans take precedence over steps."""
        return min((span.start for span in self._spans), default=self.until)

    def _own_time(self) -> tuple[int, int]:
        """Return the own time of the steps that count, in ns, and their number."""
        end = self._covered_from() if self.wasted_at is None else min(self._covered_from(), self.wasted_at)
        sums, samples = self._track.until(end)
        if self._hindsight.excluded or any(code & WASTED for code in sums):
            # This is rare, so the steps are read one by one.
            steps = itertools.takewhile(lambda slices: slices[0][0] < end, self._track.steps_from(0))
            counted = [self._own(slices, end) for slices in steps if not slices[0][2] & (FAILED | UNSAMPLED | WASTED)]
            lengths = [length for own in counted if (length := _before(own, end))]
            return sum(lengths), len(lengths)
        own_codes = [code for code in sums if code >> KIND_SHIFT == STEP and not code & (FAILED | UNSAMPLED)]
        return sum(sums[code] for code in own_codes), samples

    @functools.cached_property
    def lengths(self) -> tuple[Lengths, Lengths]:
        """The own times of the steps, in ns; and those of the productive steps."""
        lengths, wasted = self._track.all_lengths()
        counted = lengths.copy()
        counted.merge(wasted, -1)
        if self.wasted_at is not None:
            lost = [step.net for step in self.steps(self.wasted_at, self.until) if step.is_sample]
            counted.remove(lost)
        return lengths, counted

    def startup_beyond(self, ideal: int) -> int:
        """Return the startup time of the first step beyond *ideal*, in ns, which is not degraded time."""
        net = _before(self._own_time_of_first_step, self.until)
        return max(0, net - ideal) - max(0, net - self._excess - ideal)

    def in_progress(self, end: int) -> tuple[int | None, int]:
        """Return the step in progress at *end*, and its productive time by then, in ns."""
        end = min(end, self.until)
        if self._step is None or self._step.start >= end or self._step_bucket != PRODUCTIVE:
            return None, 0
        return self._step.number, self.between(self._step.start, end).get(PRODUCTIVE, 0)

    def last_step(self, end: int) -> int | None:
        """Return the last step that was completed by *end* and was not lost; None if there is none."""
        lost = self.wasted_at
        return self._track.last_completed(end if lost is None else min(end, lost))

    def steps(self, start: int, end: int) -> Iterator[EndedStep]:
        """Yield the steps that ended after *start* and by *end*, in ns since the epoch."""
        for slices in self._track.steps_from(start):
            began, _, flags, number = slices[0]
            ended = slices[-1][1]
            if began >= end:
                return
            if start < ended <= end:
                own_ns = _before(self._own(slices, ended), ended)
                yield EndedStep(
                    number=number,
                    start=began,
                    end=ended,
                    net=own_ns,
                    is_sample=own_ns > 0 and not flags & (FAILED | UNSAMPLED),
                    is_lost=bool(flags & WASTED) or (self.wasted_at is not None and began >= self.wasted_at),
                )


def _before(own: Sequence[tuple[int, int]], end: int) -> int:
    return sum(max(0, min(last, end) - first) for first, last in own)


Key: TypeAlias = "tuple[str, int, int]"
"""Run id, attempt, and the index of the process among those of its rank in that attempt."""


@attrs.frozen(eq=False)
class JobAttempt:
    """The processes, one of each rank, that ran together."""

    processes: tuple[ProcessState, ...]
    """By rank."""
    wasted_from: int | None
    """The lowest step that a later attempt trained; None if none trained any."""

    @property
    def start(self) -> int:
        """The time at which its first process began, in ns since the epoch."""
        return min(process.start for process in self.processes)

    @property
    def last(self) -> int:
        """Its last proven activity."""
        return max(process.last for process in self.processes)

    @property
    def has_ended(self) -> bool:
        """Whether all its processes reported their end."""
        return all(process.has_ended for process in self.processes)


def attempts_of(processes: Iterable[ProcessState], found: collections.Counter[str]) -> list[JobAttempt]:
    """
    Group *processes* into attempts, in order of their start.

    Args:
        processes: The main processes of a session of which anything is known.
        found: Counts the problems that are found.
    """
    groups: dict[Key, list[ProcessState]] = {}
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
            found[Problem.OVERLAPPING_ATTEMPTS] += 1
    return _judged(merged)


def _by_rank(processes: Iterable[ProcessState]) -> dict[int, list[ProcessState]]:
    ranks: dict[int, list[ProcessState]] = {}
    for process in sorted(processes, key=lambda process: (process.source.rank, process.start, process.source.id)):
        ranks.setdefault(process.source.rank, []).append(process)
    return ranks


def _without_second_writers(own: Sequence[ProcessState], found: collections.Counter[str]) -> list[ProcessState]:
    """Return one rank's processes without those that began and fell silent while another one was alive."""
    kept: list[ProcessState] = []
    for process in own:
        if kept and process.last < kept[-1].last and not _restarts(process, kept[-1]):
            found[Problem.SECOND_WRITER] += 1
        else:
            kept.append(process)
    return kept


def _restarts(process: ProcessState, before: ProcessState) -> bool:
    here, there = process.source, before.source
    return here.run_id == there.run_id and here.attempt > there.attempt


def _together(groups: Sequence[list[ProcessState]]) -> list[list[ProcessState]]:
    """Merge neighbours that ran at the same time as different ranks: no launcher gave them a common id."""
    merged: list[list[ProcessState]] = []
    for group in groups:
        if merged and _belong(merged[-1], group):
            merged[-1].extend(group)
        else:
            merged.append(list(group))
    return merged


def _belong(before: Sequence[ProcessState], group: Sequence[ProcessState]) -> bool:
    overlap = min(process.start for process in group) < max(process.last for process in before)
    ranks = {process.source.rank for process in before}
    runs = {process.source.run_id for process in before}
    restarts = {process.source.attempt for process in before}
    return overlap and all(
        process.source.rank not in ranks and process.source.run_id not in runs and process.source.attempt in restarts
        for process in group
    )


def _judged(groups: Sequence[list[ProcessState]]) -> list[JobAttempt]:
    """Return the attempts, each with the step from which on later attempts did its work again."""
    attempts: list[JobAttempt] = []
    wasted_from: int | None = None
    for place, group in reversed(list(enumerate(groups))):
        ranks = tuple(sorted(group, key=lambda process: process.source.rank))
        attempts.append(JobAttempt(ranks, wasted_from))
        trained = [process for process in group if process.first_step != NO_STEP]
        if trained:
            first = min(process.first_step for process in trained)
            # If steps are counted anew, for example in each epoch, a low number shows nothing about earlier attempts.
            anew = wasted_from is None or any(process.laps for process in trained)
            wasted_from = first if anew else min(first, wasted_from or 0)
        elif place == len(groups) - 1:
            wasted_from = _restored(group)
    return attempts[::-1]


def _restored(group: Sequence[ProcessState]) -> int | None:
    """Return the step at which an attempt will continue that loaded a checkpoint and has not trained yet."""
    steps = [process.restored_step for process in group if process.restored_step != NO_STEP]
    return min(steps) + 1 if steps else None


@attrs.frozen(eq=False)
class Leg:
    """A stretch of time."""

    start: int
    end: int
    """In ns since the epoch."""
    account: Account | None = None
    """The account of the process that was there; None if there was none."""
    gap: str = OTHER
    """The bucket of the time that no process accounts for."""
    next: ProcessState | None = None
    """The process after the gap, which may have waited for slices before it began."""

    def between(self, start: int, end: int) -> Sums:
        """Return the part of *start* to *end* that lies in this leg, in ns by bucket."""
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
        first = bisect.bisect_right(self.legs, start, key=lambda leg: leg.end)
        for leg in itertools.islice(self.legs, first, None):
            if leg.start >= end:
                break
            add(sums, leg.between(start, end))
        return sums


def timeline(
    attempts: Sequence[JobAttempt],
    accounts: Mapping[ProcessState, Account],
    end: int,
    *,
    validation_is_productive: bool,
) -> Timeline:
    """
    Lay out *attempts* one after the other, each until the next one begins.

    A job of several ranks waits for its slowest rank: an attempt's time is that of the rank with the least productive
    time. The time before it began is that of the first rank; the time after it fell silent, that of the last one alive.

    Args:
        attempts: In order of their start; at least one.
        accounts: The accounts of all their processes.
        end: The end of the last one, in ns since the epoch.
        validation_is_productive: Whether validation counts as productive.
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
    attempt: JobAttempt, accounts: Mapping[ProcessState, Account], until: int, *, validation_is_productive: bool
) -> Account:
    """Return the account of the rank with the least productive time; among equals, the lowest rank's."""
    own = [accounts[process] for process in attempt.processes]
    # A rank that records no steps while others do does not count as slower.
    trained = [account for account in own if account.process.first_step != NO_STEP] or own
    if len(trained) == 1:
        return trained[0]

    def gain(account: Account) -> int:
        sums = account.between(account.process.start, until)
        return sums.get(PRODUCTIVE, 0) + (sums.get(VALIDATION, 0) if validation_is_productive else 0)

    return min(trained, key=gain)


def _legs(own: Sequence[Account], slow: Account, start: int, until: int) -> Iterator[Leg]:
    """Yield the legs of one attempt from its *start* until its last process fell silent, or *until* at the latest."""
    first = min(own, key=lambda account: account.process.start)
    last = max(own, key=lambda account: account.until)
    silent = min(last.until, until)
    at = start
    for account, end in ((first, slow.process.start), (slow, slow.until), (last, last.until)):
        end = min(end, silent)  # noqa: PLW2901
        if end > at:
            yield Leg(at, end, account)
            at = end


@attrs.frozen(eq=False)
class Picture:
    """The picture of a session from all that is known now."""

    attempts: tuple[JobAttempt, ...]
    accounts: dict[ProcessState, Account]
    job: Timeline
    ranks: dict[int, Timeline]
    has_ended: bool
    problems: dict[str, int]


class SessionState:
    """The processes of one session."""

    def __init__(self, name: str, *, validation_is_productive: bool) -> None:
        self.name = name
        self.processes: list[ProcessState] = []
        self._validation_is_productive = validation_is_productive
        self._known: dict[ProcessState, tuple[int, Hindsight, Account]] = {}
        self._older: tuple[tuple[Account, ...], tuple[Lengths, Lengths]] | None = None

    @property
    def start(self) -> int:
        """The time at which its first rank began; `NEVER` if nothing is known of any."""
        return min((process.start for process in self.mains()), default=NEVER)

    def mains(self) -> list[ProcessState]:
        """Return the processes that are ranks and of which anything is known."""
        return [process for process in self.processes if process.is_main and process.start != NEVER]

    def picture(
        self, end_ns: int | None = None, *, is_alive: bool = False, exclude: Sequence[Stretch] = ()
    ) -> Picture | None:
        """
        Return the session as it is known now; None if it has no rank.

        Args:
            end_ns: The end of the picture; the last event unless given.
            is_alive: Whether the last attempt is known to be running at *end_ns*, although its events do not show it.
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
        self, attempts: Sequence[JobAttempt], alive_until: int | None, excluded: tuple[Stretch, ...]
    ) -> dict[ProcessState, Account]:
        accounts: dict[ProcessState, Account] = {}
        for attempt in attempts:
            is_over, last = attempt is not attempts[-1], attempt.last
            for process in attempt.processes:
                until = process.last
                if not is_over and not process.has_ended:
                    # Ranks' heartbeats come at different times; a running rank still does what its last events show.
                    is_running = liveness(process.signs, last).state == RUNNING
                    if is_running and process.heartbeat_interval_ns is not None:
                        until = last
                    until = max(until, alive_until or 0)
                accounts[process] = self._account(process, Hindsight(attempt.wasted_from, is_over, until, excluded))
        return accounts

    def _account(self, process: ProcessState, hindsight: Hindsight) -> Account:
        known = self._known.get(process)
        if known is None or known[0] != process.version or known[1] != hindsight:
            known = self._known[process] = process.version, hindsight, Account(process, hindsight)
        return known[2]

    def _timeline(self, attempts: Sequence[JobAttempt], accounts: dict[ProcessState, Account], end: int) -> Timeline:
        return timeline(attempts, accounts, end, validation_is_productive=self._validation_is_productive)

    def _ranks(
        self, attempts: Sequence[JobAttempt], accounts: dict[ProcessState, Account], job: Timeline
    ) -> dict[int, Timeline]:
        own: dict[int, list[JobAttempt]] = {}
        for attempt in attempts:
            for process in attempt.processes:
                own.setdefault(process.source.rank, []).append(JobAttempt((process,), attempt.wasted_from))
        if len(own) == 1:
            return dict.fromkeys(own, job)
        return {
            rank: self._timeline(found, accounts, accounts[found[-1].processes[0]].until)
            for rank, found in sorted(own.items())
        }

    def lengths(self, slowest: Sequence[Account]) -> tuple[Lengths, Lengths]:
        """Return the lengths of all steps of *slowest*, one account for each attempt, and of the productive steps."""
        older = tuple(slowest[:-1])
        if self._older is None or self._older[0] != older:
            self._older = older, _merged(older)
        lengths, counted = self._older[1][0].copy(), self._older[1][1].copy()
        lengths.merge(slowest[-1].lengths[0])
        counted.merge(slowest[-1].lengths[1])
        return lengths, counted

    def _find_problems(
        self, attempts: Sequence[JobAttempt], found: collections.Counter[str], *, has_ended: bool
    ) -> None:
        for process in self.processes:
            found.update(process.problems)
        if not has_ended:
            found[Problem.NO_GOOD_END] += 1
        found[Problem.NAME_USED_AGAIN] += sum(_begins_anew(attempts))
        latest = attempts[-1].processes
        world_size = max(process.source.world_size for process in latest)
        found[Problem.OTHER_RANKS] += max(0, world_size - len({process.source.rank for process in latest}))
        for name in [name for name, count in found.items() if not count]:
            del found[name]


def _merged(accounts: Sequence[Account]) -> tuple[Lengths, Lengths]:
    lengths, counted = Lengths(), Lengths()
    for account in accounts:
        lengths.merge(account.lengths[0])
        counted.merge(account.lengths[1])
    return lengths, counted


def _begins_anew(attempts: Sequence[JobAttempt]) -> Iterator[bool]:
    """Yield, for each attempt except the first, whether it looks like another job under the same name."""
    for before, after in pairwise(attempts):
        steps = [process.first_step for process in before.processes if process.first_step != NO_STEP]
        again = [process.first_step for process in after.processes if process.first_step != NO_STEP]
        yield before.has_ended and bool(steps) and bool(again) and min(again) <= min(steps)
