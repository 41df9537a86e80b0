"""The result for a stretch of a session: its time by bucket, its step times and its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import attrs

from trackside.handlers.models.goodput._account import Account, JobAttempt, Picture, SessionState, Timeline
from trackside.handlers.models.goodput._buckets import (
    AFTER_STEPS,
    BEFORE_STEPS,
    BUCKETS,
    CHECKPOINT_SAVE,
    CUSTOM_EVENTS,
    DATA_LOADING_ASYNC,
    OTHER,
    PRODUCTIVE,
    VALIDATION,
    Stretch,
    Sums,
    add,
    subtract,
)
from trackside.handlers.models.goodput._packed import MOST_EXACT, Lengths
from trackside.handlers.models.goodput._reading import LATEST_NS
from trackside.handlers.models.liveness import liveness

NS_PER_S: Final = 10**9
_MAD_FACTOR: Final = 3
"""A step is slow beyond the median plus this many median absolute deviations; the peer's rule without its 1 s floor."""


@attrs.frozen
class StepTimes:
    """The lengths of steps, each without the time in other buckets; in seconds."""

    count: int
    ideal_s: float | None
    """The configured ideal, else the mean of all steps except the slow ones; None if there are no steps."""
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    deviation_s: float | None
    """The mean distance of a step from the ideal."""
    deviation_p50_s: float | None
    deviation_p90_s: float | None
    deviation_p99_s: float | None
    slow_from_s: float | None
    """A step longer than this is slow: the median plus three median absolute deviations."""
    slow_steps: int
    degraded_s: float
    """Productive time that steps took beyond the ideal."""
    open_step: int | None = None
    """The step in progress at the end of the stretch; None if none is known."""
    open_s: float = 0.0
    """Its productive time by then, in seconds: in a hang this grows."""


@attrs.frozen
class RankTimes:
    """One rank's time, by bucket."""

    rank: int
    elapsed_s: float
    productive_s: float
    goodput: float | None
    badput_s: dict[str, Any]
    attempts: int


@attrs.frozen
class Slowest:
    """The largest cause of waiting: the bucket in which a slowest rank lost most against its attempt's fastest."""

    rank: int
    bucket: str
    cost_s: float


@attrs.frozen
class SliceEfficiency:
    """Shares of the slices of an elastic job, over time; 0 to 1. Before the first count they are 0."""

    stepping: float
    """The share of active slices."""
    available: float
    """The share of available slices."""


@attrs.frozen
class GoodputResult:
    """
    A stretch of a session's time, by bucket.

    `productive_s` and all of `badput_s` add up to `elapsed_s`.
    """

    session: str
    start_ns: int
    """The beginning of the stretch, in ns since the epoch."""
    end_ns: int
    elapsed_s: float
    """Its length without the excluded time."""
    productive_s: float
    goodput: float | None
    """`productive_s` / `elapsed_s`; None if no time has elapsed."""
    effective_goodput: float | None
    """The same without the productive time that steps took beyond the ideal step time."""
    badput_s: dict[str, Any]
    """By bucket; ``CUSTOM_BADPUT_EVENTS`` by type."""
    named_badput_s: dict[str, Any]
    """
    The same with less in ``OTHER``. Its part before the first step of each attempt is in ``BEFORE_FIRST_STEP``, and its
    part after the last step of a job that ended well in ``AFTER_LAST_STEP``. Its part while another rank evaluated or
    saved is in the bucket of that evaluation or save.
    """
    informational_s: dict[str, float]
    """Background loading of all processes together. It is part of no bucket, so it is subtracted from none."""
    excluded_s: float
    attempts: int
    disruptions: int
    """Attempts after the session's first that began in the stretch."""
    last_step: int | None
    """The last step that was completed by the end of the stretch and not lost."""
    step_time: StepTimes
    ranks: tuple[RankTimes, ...]
    slowest: Slowest | None
    """None if there is one rank, or nothing was lost to a rank that was slower than others."""
    slice_efficiency: SliceEfficiency | None
    """None if slices were never counted."""
    has_ended: bool
    """Whether all processes of the last attempt reported their end; if not it may be running, or its log is torn."""
    problems: dict[str, int]
    """The faults of the input, and how often each occurred."""
    missed: int
    """Events that were lost on the way to the model."""
    spent_ns: Sums = attrs.field(repr=False)
    """The stretch by bucket in whole nanoseconds, from which the times above are computed."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``trackside goodput --json`` prints; ``problems`` is there only if there are any."""
        plain = {
            "session": self.session,
            "elapsed_s": self.elapsed_s,
            "productive_s": self.productive_s,
            "goodput": self.goodput,
            "badput_s": self.badput_s,
            "named_badput_s": self.named_badput_s,
            "informational_s": self.informational_s,
            "excluded_s": self.excluded_s,
            "attempts": self.attempts,
            "disruptions": self.disruptions,
            "last_step": self.last_step,
            "step_time": {**attrs.asdict(self.step_time), "effective_goodput": self.effective_goodput},
            "ranks": [attrs.asdict(rank) for rank in self.ranks],
        }
        if self.problems:
            plain["problems"] = self.problems
        return plain


def seconds(length_ns: float) -> float:
    """Return *length_ns* in seconds."""
    return length_ns / NS_PER_S


def productive(spent: Sums, *, validation_is_productive: bool) -> int:
    """Return the productive time of *spent*, in ns."""
    return spent.get(PRODUCTIVE, 0) + (spent.get(VALIDATION, 0) if validation_is_productive else 0)


def badput(spent: Sums, *, validation_is_productive: bool) -> dict[str, Any]:
    """Return the badput of *spent*: the seconds in each bucket that is not productive, also where they are 0."""
    found: dict[str, Any] = {}
    for bucket in BUCKETS:
        if bucket == CUSTOM_EVENTS:
            customs = {key[1]: seconds(length) for key, length in spent.items() if isinstance(key, tuple)}
            found[bucket] = dict(sorted(customs.items()))
        elif bucket == VALIDATION and validation_is_productive:
            found[bucket] = 0.0
        elif bucket != PRODUCTIVE:
            found[bucket] = seconds(spent.get(bucket, 0))
    return found


def named_badput(named: Sums, *, validation_is_productive: bool) -> dict[str, Any]:
    """Return the badput of *named*, in which parts of ``OTHER`` have names: the seconds of every bucket and name."""
    found = badput(named, validation_is_productive=validation_is_productive)
    return {**found, **{name: seconds(named.get(name, 0)) for name in (BEFORE_STEPS, AFTER_STEPS)}}


def share(part: float, whole: float) -> float | None:
    """Return *part* / *whole*; None if *whole* is 0."""
    return part / whole if whole else None


@attrs.frozen
class LengthSummary:
    """A summary of lengths; in ns, 0.0 if there are none."""

    count: int
    ideal: int
    """The configured ideal, or the mean of the lengths that are not slow; an int, so sums beyond it are exact."""
    slow_from: float
    """A step longer than this is slow."""
    slow: int
    p50: float
    p90: float
    p99: float
    deviation: float
    """The mean distance from the ideal."""
    deviation_p50: float
    deviation_p90: float
    deviation_p99: float

    @classmethod
    def of(cls, lengths: Lengths, ideal: int | None = None, slow_from: float | None = None) -> LengthSummary:
        """
        Summarize *lengths*.

        Args:
            lengths: The lengths of some steps.
            ideal: In ns; computed from *lengths* unless given.
            slow_from: In ns; computed from *lengths* unless given.
        """
        ordered = lengths.ordered()
        if not ordered:
            return cls(0, ideal or 0, slow_from or 0.0, 0, *[0.0] * 7)
        count = lengths.count
        median = _at(ordered, 0.5, count)
        if slow_from is None:
            slow_from = median + _MAD_FACTOR * _at(_distances(ordered, median), 0.5, count)
        if ideal is None:
            usual = [(length, n) for length, n in ordered if length <= slow_from]
            ideal = round(sum(length * n for length, n in usual) / sum(n for _, n in usual))
        distances = _distances(ordered, ideal)
        return cls(
            count=count,
            ideal=ideal,
            slow_from=slow_from,
            slow=sum(n for length, n in ordered if length > slow_from),
            p50=median,
            p90=_at(ordered, 0.9, count),
            p99=_at(ordered, 0.99, count),
            deviation=sum(distance * n for distance, n in distances) / count,
            deviation_p50=_at(distances, 0.5, count),
            deviation_p90=_at(distances, 0.9, count),
            deviation_p99=_at(distances, 0.99, count),
        )


def _distances(ordered: Iterable[tuple[float, int]], origin: float) -> list[tuple[float, int]]:
    return sorted((abs(length - origin), n) for length, n in ordered)


def _at(ordered: Iterable[tuple[float, int]], share: float, count: int) -> float:
    """Return the percentile as NumPy does: interpolated between the two lengths beside rank *share* × (count − 1)."""
    rank = share * (count - 1)
    lower = int(rank)
    below, seen = None, 0
    for length, n in ordered:
        seen += n
        if below is None and seen > lower:
            below = length
        if below is not None and (seen > lower + 1 or seen == count):
            return below + (length - below) * (rank - lower)
    return 0.0


@attrs.frozen
class Question:
    """A question about a session."""

    start_ns: int
    end_ns: int
    exclude: Sequence[Stretch] = ()
    """Disjoint, in order."""
    ideal_s: float | None = None
    validation_is_productive: bool = False
    missed: int = 0


def normalized(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Return *stretches* in order: those that touch or overlap are merged, and those without length left out."""
    found: list[Stretch] = []
    for start, end in sorted(stretches):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


@attrs.frozen
class AttemptTimes:
    """The time of one attempt, until the next one began, by bucket."""

    start_ns: int
    end_ns: int
    """In ns since the epoch."""
    productive_s: float
    goodput: float | None
    named_badput_s: dict[str, Any]
    """As in `GoodputResult`."""


class Answer:
    """Computes one result."""

    def __init__(self, session: SessionState, picture: Picture, question: Question) -> None:
        self._session = session
        self._picture = picture
        self._question = question
        self.start_ns = max(question.start_ns, picture.job.start)
        self.end_ns = max(min(question.end_ns, picture.job.end), self.start_ns)
        """The end of the stretch that the answer is about, which begins at `start_ns`, in ns since the epoch."""
        self._job_spent = self._spent(picture.job)

    def of(self, start_ns: int, end_ns: int) -> Answer:
        """Return the answer for another stretch, from the same picture of the session."""
        return Answer(self._session, self._picture, attrs.evolve(self._question, start_ns=start_ns, end_ns=end_ns))

    def result(self) -> GoodputResult:
        """Return the answer."""
        question, picture = self._question, self._picture
        spent, excluded = self._job_spent
        elapsed = self.end_ns - self.start_ns - excluded
        gained = productive(spent, validation_is_productive=question.validation_is_productive)
        steps = self._step_times()
        effective = max(0.0, seconds(gained) - steps.degraded_s)
        stretches = [(start, end) for _, start, end in self._attempts()]
        return GoodputResult(
            session=self._session.name,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            elapsed_s=seconds(elapsed),
            productive_s=seconds(gained),
            goodput=share(gained, elapsed),
            effective_goodput=share(effective, seconds(elapsed)),
            badput_s=badput(spent, validation_is_productive=question.validation_is_productive),
            named_badput_s=self._named_badput(),
            informational_s={DATA_LOADING_ASYNC: seconds(self._loading())},
            excluded_s=seconds(excluded),
            attempts=sum(start <= self.end_ns and end >= self.start_ns for start, end in stretches),
            disruptions=sum(self.start_ns < start <= self.end_ns for start, _ in stretches[1:]),
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

    def attempts(self) -> list[AttemptTimes]:
        """Return the time of each attempt."""
        is_validation_productive = self._question.validation_is_productive
        found = []
        for attempt, start, end in self._attempts():
            named = self._named(attempt, start, end)
            gained = productive(named, validation_is_productive=is_validation_productive)
            names = named_badput(named, validation_is_productive=is_validation_productive)
            found.append(AttemptTimes(start, end, seconds(gained), share(gained, end - start), names))
        return found

    def _attempts(self) -> Iterator[tuple[JobAttempt, int, int]]:
        """Yield each attempt with its start and its end, in ns since the epoch."""
        starts = [attempt.start for attempt in self._picture.attempts]
        return zip(self._picture.attempts, starts, [*starts[1:], self._picture.job.end], strict=True)

    def _named_badput(self) -> dict[str, Any]:
        """Return the job's badput, with names for the known parts of its ``OTHER``."""
        named: Sums = {}
        for attempt, start, end in self._attempts():
            if start < self.end_ns and end > self.start_ns:
                add(named, self._named(attempt, start, end))
        return named_badput(named, validation_is_productive=self._question.validation_is_productive)

    def _named(self, attempt: JobAttempt, begin: int, until: int) -> Sums:
        """Return the time of *attempt* by bucket, in ns, with names for the known parts of its ``OTHER``."""
        named: Sums = {}
        waited_for = (CHECKPOINT_SAVE,) if self._question.validation_is_productive else (VALIDATION, CHECKPOINT_SAVE)
        lines = [self._picture.ranks[process.source.rank] for process in attempt.processes]
        for start, end, name in self._stretches(attempt, begin, until):
            spent = self._spent(self._picture.job, start, end)[0]
            ranks = [self._spent(line, start, end)[0] for line in lines]
            for bucket in waited_for:
                # The account may be that of a rank that waits for the one that evaluates or saves.
                longest = max(own.get(bucket, 0) for own in ranks)
                waited = min(longest - spent.get(bucket, 0), spent.get(OTHER, 0))
                if waited > 0:
                    subtract(spent, {OTHER: waited})
                    add(spent, {bucket: waited})
            add(named, {name if bucket == OTHER else bucket: length for bucket, length in spent.items()})
        return named

    def _stretches(self, attempt: JobAttempt, start: int, end: int) -> Iterator[tuple[int, int, str]]:
        """Yield the time before, among and after the steps of *attempt*, each with the name of its ``OTHER``."""
        tracks = [process.track for process in attempt.processes if process.track.step_end]
        first = min((slices[0][0] for track in tracks if (slices := track.first_step())), default=start)
        if not tracks and any(one.track.step_end for one in self._session.processes):
            first = end  # the attempt did not come to its first step, as others did
        last = max((track.step_end for track in tracks), default=end)
        is_last = attempt is self._picture.attempts[-1]
        has_good_end = is_last and all(liveness(one.signs, end).has_good_end for one in attempt.processes)
        yield start, min(first, end), BEFORE_STEPS
        yield first, min(last, end), OTHER
        yield max(first, last), end, AFTER_STEPS if has_good_end else OTHER

    def _spent(self, line: Timeline, first_ns: int = 0, last_ns: int = LATEST_NS) -> tuple[Sums, int]:
        """Return the time of *line* from *first_ns* to *last_ns* by bucket, and the excluded time in it, in ns."""
        start, end = max(self.start_ns, line.start, first_ns), min(self.end_ns, line.end, last_ns)
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
            if process.beside.top > self.start_ns:
                until, _ = process.beside.until(self.end_ns)
                before, _ = process.beside.until(self.start_ns)
                total += sum(until.values()) - sum(before.values())
        return total

    def _last_step(self) -> int | None:
        for attempt in reversed(self._picture.attempts):
            accounts = [self._picture.accounts[process] for process in attempt.processes]
            steps = [step for account in accounts if (step := account.last_step(self.end_ns)) is not None]
            if steps:
                return min(steps)
        return None

    def _rank(self, rank: int, line: Timeline) -> RankTimes:
        spent, excluded = self._job_spent if line is self._picture.job else self._spent(line)
        start, end = max(self.start_ns, line.start), min(self.end_ns, line.end)
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
        """Return the rank and the bucket that cost most: each attempt's slowest rank is compared with its fastest."""
        costs: dict[tuple[int, str], int] = {}
        for (attempt, start, end), slow in zip(self._attempts(), self._picture.job.slowest, strict=True):
            start, end = max(start, self.start_ns), min(end, self.end_ns)  # noqa: PLW2901
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
        if self.start_ns <= self._picture.job.start and self.end_ns >= self._picture.job.end:
            startup = sum(account.startup_beyond(usual.ideal) for account in slowest)
        else:
            lengths, counted = _lengths_within(slowest, self.start_ns, self.end_ns)
            usual = LengthSummary.of(lengths, usual.ideal, usual.slow_from)
        number, open_ns = slowest[-1].in_progress(self.end_ns)
        _, before_ns = slowest[-1].in_progress(self.start_ns)
        degraded = max(0, counted.beyond(usual.ideal) - startup)
        if usual.ideal:
            degraded += max(0, open_ns - max(usual.ideal, before_ns))
        return _plain(usual, degraded, number, open_ns)

    def _slice_efficiency(self) -> SliceEfficiency | None:
        counts = sorted(change for process in self._session.mains() for change in process.slices)
        length = self.end_ns - self.start_ns
        if not counts or not length:
            return None
        stepping = available = 0.0
        moments = [max(at, self.start_ns) for at, *_ in counts] + [self.end_ns]
        for place, (_, active, total, present) in enumerate(counts):
            lasted = min(moments[place + 1], self.end_ns) - min(moments[place], self.end_ns)
            if total > 0 and lasted > 0:
                stepping += lasted * active / total
                available += lasted * present / total
        return SliceEfficiency(stepping / length, available / length)


def _lengths_within(slowest: Iterable[Account], start: int, end: int) -> tuple[Lengths, Lengths]:
    """Return the lengths of the steps that ended after *start* and by *end*, and those of the productive ones."""
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
