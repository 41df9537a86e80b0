"""The result of the model: a stretch of a session by bucket, its step times and its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from trackside.handlers.models.goodput._buckets import (
    BUCKETS,
    CUSTOM_EVENTS,
    DATA_LOADING_ASYNC,
    PRODUCTIVE,
    VALIDATION,
    Sums,
)

NS_PER_S: Final = 10**9


@attrs.frozen
class StepTimes:
    """How long steps took, each without the time that went into other buckets; in seconds."""

    count: int
    ideal_s: float | None
    """The configured one, else the mean of all steps but the slow ones; None if there are no steps."""
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    deviation_s: float | None
    """The mean distance of a step from the ideal."""
    deviation_p50_s: float | None
    deviation_p90_s: float | None
    deviation_p99_s: float | None
    slow_from_s: float | None
    """A step longer than this is slow: the median and three median absolute deviations."""
    slow_steps: int
    degraded_s: float
    """Productive time that steps took beyond the ideal."""
    open_step: int | None = None
    """The step in progress at the end of the stretch; None if none is known of."""
    open_s: float = 0.0
    """For how long it has been in progress: in a hang this grows."""


@attrs.frozen
class RankTimes:
    """What one rank's time was spent on."""

    rank: int
    elapsed_s: float
    productive_s: float
    goodput: float | None
    badput_s: dict[str, Any]
    attempts: int


@attrs.frozen
class Slowest:
    """What the job waited for most: the bucket in which a slowest rank lost more than the fastest of its attempt."""

    rank: int
    bucket: str
    cost_s: float


@attrs.frozen
class SliceEfficiency:
    """Shares of the slices of an elastic job, over time; 0 to 1. Before the first count they are 0."""

    stepping: float
    """Of active slices."""
    available: float
    """Of available slices."""


@attrs.frozen
class GoodputResult:
    """
    What a stretch of a session's time was spent on.

    `productive_s` and all of `badput_s` add up to `elapsed_s`.
    """

    session: str
    start_ns: int
    """Where the stretch begins, in ns since the epoch."""
    end_ns: int
    elapsed_s: float
    """Its length, less what is excluded."""
    productive_s: float
    goodput: float | None
    """`productive_s` / `elapsed_s`; None if no time has elapsed."""
    effective_goodput: float | None
    """The same if no step had taken longer than the ideal step time."""
    badput_s: dict[str, Any]
    """By bucket; of ``CUSTOM_BADPUT_EVENTS`` by type."""
    informational_s: dict[str, float]
    """What is subtracted from nothing: the background loading of all processes together."""
    excluded_s: float
    attempts: int
    disruptions: int
    """Attempts after the session's first that began in the stretch."""
    last_step: int | None
    """The last step that was completed by then and not lost."""
    step_time: StepTimes
    ranks: tuple[RankTimes, ...]
    slowest: Slowest | None
    """None if there is one rank, or nothing was lost to a rank that was slower than others."""
    slice_efficiency: SliceEfficiency | None
    """None if slices were never counted."""
    has_ended: bool
    """Whether the last attempt came to a good end; if not it may be running, or its log is torn."""
    problems: dict[str, int]
    """What was wrong with the input, and how often."""
    missed: int
    """Events that were lost on the way to the model."""
    spent_ns: Sums = attrs.field(repr=False)
    """The stretch by bucket in whole nanoseconds, as everything above was computed from."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``trackside goodput --json`` prints; ``problems`` is there only if there are any."""
        plain = {
            "session": self.session,
            "elapsed_s": self.elapsed_s,
            "productive_s": self.productive_s,
            "goodput": self.goodput,
            "badput_s": self.badput_s,
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
    """Return what of *spent* is not productive, in seconds, every bucket named."""
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


def share(part: float, whole: float) -> float | None:
    """Return *part* / *whole*; None of nothing."""
    return part / whole if whole else None


def informational(loading_ns: int) -> Mapping[str, float]:
    """Return what is reported beside the buckets."""
    return {DATA_LOADING_ASYNC: seconds(loading_ns)}
