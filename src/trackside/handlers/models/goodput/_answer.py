"""From the picture of a session to the answer for a stretch of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from trackside.handlers.models.goodput._account import Account
from trackside.handlers.models.goodput._buckets import DATA_LOADING_ASYNC, Stretch, Sums, add, subtract
from trackside.handlers.models.goodput._lengths import MOST_EXACT, Lengths, LengthSummary
from trackside.handlers.models.goodput._process import LATEST_NS
from trackside.handlers.models.goodput._result import (
    NS_PER_S,
    GoodputResult,
    RankTimes,
    SliceEfficiency,
    Slowest,
    StepTimes,
    badput,
    productive,
    seconds,
    share,
)
from trackside.handlers.models.goodput._session import Picture, Session
from trackside.handlers.models.goodput._timeline import Timeline


@attrs.frozen
class Question:
    """What is asked of a session."""

    start_ns: int
    end_ns: int
    exclude: Sequence[Stretch] = ()
    """Disjoint, in order."""
    ideal_s: float | None = None
    validation_is_productive: bool = False
    missed: int = 0


def normalized(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Return *stretches* in order, with those that touch or overlap made one and those without length left out."""
    found: list[Stretch] = []
    for start, end in sorted(stretches):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


class Answer:
    """Works out one result."""

    def __init__(self, session: Session, picture: Picture, question: Question) -> None:
        self._session = session
        self._picture = picture
        self._question = question
        self._start = max(question.start_ns, picture.job.start)
        self._end = max(min(question.end_ns, picture.job.end), self._start)
        self._job_spent = self._spent(picture.job)

    def result(self) -> GoodputResult:
        """Return the answer."""
        question, picture = self._question, self._picture
        spent, excluded = self._job_spent
        elapsed = self._end - self._start - excluded
        gained = productive(spent, validation_is_productive=question.validation_is_productive)
        steps = self._step_times()
        effective = max(0.0, seconds(gained) - steps.degraded_s)
        starts = [attempt.start for attempt in picture.attempts]
        ends = [*starts[1:], picture.job.end]
        return GoodputResult(
            session=self._session.name,
            start_ns=self._start,
            end_ns=self._end,
            elapsed_s=seconds(elapsed),
            productive_s=seconds(gained),
            goodput=share(gained, elapsed),
            effective_goodput=share(effective, seconds(elapsed)),
            badput_s=badput(spent, validation_is_productive=question.validation_is_productive),
            informational_s={DATA_LOADING_ASYNC: seconds(self._loading())},
            excluded_s=seconds(excluded),
            attempts=sum(start <= self._end and end >= self._start for start, end in zip(starts, ends, strict=True)),
            disruptions=sum(self._start < start <= self._end for start in starts[1:]),
            last_step=self._last_step(),
            step_time=steps,
            ranks=tuple(self._rank(rank, own) for rank, own in picture.ranks.items()),
            slowest=self._slowest(),
            slice_efficiency=self._slice_efficiency(),
            has_ended=picture.has_ended,
            problems=picture.problems,
            missed=question.missed,
            spent_ns=spent,
        )

    def _spent(self, line: Timeline) -> tuple[Sums, int]:
        """Return the stretch of *line* by bucket, and how much of it is excluded, in ns."""
        start, end = max(self._start, line.start), min(self._end, line.end)
        spent = line.between(start, end)
        excluded = 0
        for first, last in self._question.exclude:
            first, last = max(first, start), min(last, end)  # noqa: PLW2901
            if first < last:
                subtract(spent, line.between(first, last))
                excluded += last - first
        return spent, excluded

    def _loading(self) -> int:
        """Return the time of all background loading, in ns."""
        total = 0
        for process in self._session.processes:
            if process.beside.top > self._start:
                until, _ = process.beside.until(self._end)
                before, _ = process.beside.until(self._start)
                total += sum(until.values()) - sum(before.values())
        return total

    def _last_step(self) -> int | None:
        for attempt in reversed(self._picture.attempts):
            accounts = [self._picture.accounts[process] for process in attempt.processes]
            steps = [step for account in accounts if (step := account.last_step(self._end)) is not None]
            if steps:
                return min(steps)
        return None

    def _rank(self, rank: int, line: Timeline) -> RankTimes:
        spent, excluded = self._job_spent if line is self._picture.job else self._spent(line)
        start, end = max(self._start, line.start), min(self._end, line.end)
        elapsed = max(0, end - start - excluded)
        gained = productive(spent, validation_is_productive=self._question.validation_is_productive)
        return RankTimes(
            rank=rank,
            elapsed_s=seconds(elapsed),
            productive_s=seconds(gained),
            goodput=share(gained, elapsed),
            badput_s=badput(spent, validation_is_productive=self._question.validation_is_productive),
            attempts=len(line.slowest),
        )

    def _slowest(self) -> Slowest | None:
        """Return where the slowest rank of an attempt lost most in comparison with the fastest one."""
        costs: dict[tuple[int, str], int] = {}
        starts = [attempt.start for attempt in self._picture.attempts]
        ends = [*starts[1:], self._picture.job.end]
        for attempt, slow, start, end in zip(
            self._picture.attempts, self._picture.job.slowest, starts, ends, strict=True
        ):
            start, end = max(start, self._start), min(end, self._end)  # noqa: PLW2901
            if len(attempt.processes) == 1 or end <= start:
                continue
            spent = {process: self._picture.accounts[process].between(start, end) for process in attempt.processes}
            fast = max(attempt.processes, key=lambda process: self._gain(spent[process]))
            lost = dict(spent[slow.process])
            subtract(lost, spent[fast])
            for bucket, length in lost.items():
                if length > 0 and self._gain({bucket: length}) == 0:
                    name = bucket if isinstance(bucket, str) else ": ".join(bucket)
                    add(costs, {(slow.process.source.rank, name): length})
        if not costs:
            return None
        (rank, bucket), cost = max(costs.items(), key=lambda item: (item[1], item[0]))
        return Slowest(rank, bucket, seconds(cost))

    def _gain(self, spent: Sums) -> int:
        return productive(spent, validation_is_productive=self._question.validation_is_productive)

    def _step_times(self) -> StepTimes:
        configured = self._question.ideal_s
        slowest = self._picture.job.slowest
        lengths, counted = self._session.lengths(slowest)
        if self._question.exclude:
            lengths, counted = _lengths_within(slowest, 0, LATEST_NS)
        elif lengths.count <= MOST_EXACT:
            lengths = Lengths.each(net for account in slowest for net in account.process.track.first_nets())
        usual = LengthSummary.of(lengths, None if configured is None else round(configured * NS_PER_S))
        startup = 0
        if self._start <= self._picture.job.start and self._end >= self._picture.job.end:
            startup = sum(account.startup_beyond(usual.ideal) for account in slowest)
        else:
            lengths, counted = _lengths_within(slowest, self._start, self._end)
            usual = LengthSummary.of(lengths, usual.ideal, usual.slow_from)
        number, open_ns = slowest[-1].in_progress(self._end)
        _, before_ns = slowest[-1].in_progress(self._start)
        degraded = max(0, counted.beyond(usual.ideal) - startup)
        if usual.ideal:
            degraded += max(0, open_ns - max(usual.ideal, before_ns))
        return _plain(usual, degraded, number, open_ns)

    def _slice_efficiency(self) -> SliceEfficiency | None:
        counts = sorted(change for process in self._session.mains() for change in process.slices)
        length = self._end - self._start
        if not counts or not length:
            return None
        stepping = available = 0.0
        moments = [max(at, self._start) for at, *_ in counts] + [self._end]
        for place, (_, active, total, present) in enumerate(counts):
            lasted = min(moments[place + 1], self._end) - min(moments[place], self._end)
            if total > 0 and lasted > 0:
                stepping += lasted * active / total
                available += lasted * present / total
        return SliceEfficiency(stepping / length, available / length)


def _lengths_within(slowest: Iterable[Account], start: int, end: int) -> tuple[Lengths, Lengths]:
    """Return the lengths of the steps that ended after *start* and by *end*, and of the productive ones of them."""
    steps = [step for account in slowest for step in account.steps(start, end) if step.is_sample]
    counted = Lengths()
    counted.add([step.net for step in steps if not step.is_lost])
    if len(steps) <= MOST_EXACT:
        return Lengths.each(step.net for step in steps), counted
    lengths = Lengths()
    lengths.add([step.net for step in steps])
    return lengths, counted


def _plain(summary: LengthSummary, degraded: int, open_step: int | None, open_ns: int) -> StepTimes:
    def given(length: float) -> float | None:
        return seconds(length) if summary.count else None

    return StepTimes(
        count=summary.count,
        ideal_s=seconds(summary.ideal) if summary.ideal else None,
        p50_s=given(summary.p50),
        p90_s=given(summary.p90),
        p99_s=given(summary.p99),
        deviation_s=given(summary.deviation),
        deviation_p50_s=given(summary.deviation_p50),
        deviation_p90_s=given(summary.deviation_p90),
        deviation_p99_s=given(summary.deviation_p99),
        slow_from_s=seconds(summary.slow_from) if summary.slow_from else None,
        slow_steps=summary.slow,
        degraded_s=seconds(degraded),
        open_step=open_step,
        open_s=seconds(open_ns),
    )
