"""What a report tells of a session: plain data, which text, a page and JSON only show."""

from __future__ import annotations

from typing import Any

import attrs

from trackside.handlers.models.goodput import GoodputResult
from trackside.views._bins import Bin, plain
from trackside.views._finding import Verdict
from trackside.views._gather import Mark
from trackside.views._statistics import Difference

Points = list[tuple[int, Bin]]
"""By time, in ns since the epoch."""


@attrs.frozen(kw_only=True)
class RankRow:
    """One rank, as it was last heard of."""

    rank: int
    attempt: int
    host: str
    pid: int
    state: str
    """``ended``, ``died``, or ``unknown``: it runs, or died when all others fell silent too."""
    reason: str
    first_ns: int
    last_ns: int
    steps: int
    last_step: int
    stepped_ns: int
    """When its last step ended; 0 if none did."""
    mean_step_ns: float | None


@attrs.frozen(kw_only=True)
class AttemptBar:
    """One attempt's time by bucket."""

    number: int
    start_ns: int
    end_ns: int
    goodput: float | None
    buckets_s: dict[str, float]
    """Those that are not zero, ``PRODUCTIVE`` first, then the largest first. They add up to its time."""
    ranks: int
    first_out: RankRow | None
    """Of an attempt that did not end well, the rank that fell silent first."""


@attrs.frozen(kw_only=True)
class Part:
    """What a step is made of: a span or a section directly within it."""

    name: str
    kind: str
    """``input``, ``compute``, ``waiting`` or ``other``, by its name."""
    mean_ns: float
    """Of a step and rank."""
    share: float
    """Of the mean step."""


@attrs.frozen(kw_only=True)
class Slow:
    """A rank that was slower than its peers in one thing."""

    rank: int
    node: str
    what: str
    """``gpu``, or the section's name."""
    score: float
    """The worst: the fastest peer's time over its own."""
    since_step: int
    since_ns: int
    until_step: int
    windows: int
    lost_s: float
    """How much sooner the job would have come as far without it."""


@attrs.frozen(kw_only=True)
class Heatmap:
    """Scores by rank and section; the lowest is the worst."""

    basis: str
    """What the scores were made from."""
    ranks: list[int]
    nodes: list[str]
    names: list[str]
    scores: list[list[float | None]]
    """For each name one for each rank; None where one is missing."""


@attrs.frozen(kw_only=True)
class Slowdown:
    """Steps took longer from some step on."""

    step: int
    at_ns: int
    before_ns: float
    after_ns: float
    cost_s: float
    part: str
    """The part of the step that grew most; empty if none is known."""
    part_before_ns: float
    part_after_ns: float
    kind: str
    """That part's, as in `Part`."""


@attrs.frozen(kw_only=True)
class Growth:
    """A counter of bytes that rose steadily."""

    name: str
    rank: int
    first: float
    last: float
    since_ns: int
    until_ns: int
    ranks: int
    """How many ranks it rose on."""

    @property
    def per_hour(self) -> float:
        """By how many bytes it rose in an hour."""
        return (self.last - self.first) / max(1, self.until_ns - self.since_ns) * 3.6e12


@attrs.frozen(kw_only=True)
class SpanRow:
    """All spans of one name, over all ranks."""

    name: str
    count: int
    failed: int
    total_ns: int
    min_ns: int
    max_ns: int


@attrs.frozen(kw_only=True)
class OpenRow:
    """A span that did not end."""

    rank: int
    name: str
    start_ns: int
    seen_ns: int


@attrs.frozen(kw_only=True)
class ErrorRow:
    """An exception that was raised in a span."""

    rank: int
    name: str
    step: int
    at_ns: int
    error: str


@attrs.frozen(kw_only=True)
class CounterRow:
    """One counter, over all ranks."""

    name: str
    unit: str
    count: int
    sum: float
    mean: float | None
    minimum: float | None
    maximum: float | None
    p50: float | None
    p99: float | None
    level: Points = attrs.field(factory=list)


@attrs.frozen(kw_only=True)
class Losses:
    """What the logs do not hold."""

    shed: dict[str, int]
    """Events given up for lack of room, by wire name."""
    missing: int
    """Numbers that no frame accounted for."""
    damaged_bytes: int
    rested: dict[str, int]
    """How often handlers were set aside."""
    invalid: int
    failed: int
    suppressed: int
    """By the bus's counts: events that could not be recorded, calls of handlers that raised, calls too deep."""
    unread: tuple[str, ...]
    """Why whole files were not read."""
    too_late: int
    """Windows that came too late to be scored."""

    @property
    def total(self) -> int:
        """Events that are in no file."""
        return sum(self.shed.values()) + self.missing + self.invalid


@attrs.frozen(kw_only=True)
class Report:
    """What a session's logs say."""

    session: str
    others: tuple[str, ...]
    """Sessions of the same logs, of which nothing is told here."""
    application: str
    runs: tuple[str, ...]
    perf_tags: tuple[str, ...]
    ranks_total: int
    hosts: int
    state: str
    """``ended``, ``died`` or ``unknown``: the last attempt's worst."""
    events: int
    goodput: GoodputResult
    attempts: tuple[AttemptBar, ...]
    ranks: tuple[RankRow, ...]
    """Of the last attempt those that are worth a look, at most 64: who died, who is behind, who is slow."""
    steps: Points
    step_width_ns: int
    """The stretch of time that each of `steps` stands for."""
    loss: Points
    marks: tuple[Mark, ...]
    marks_left_out: int
    parts: tuple[Part, ...]
    waited_share: float | None
    """Of a step, what ranks waited for others; None if nothing says so."""
    heatmap: Heatmap | None
    slow: tuple[Slow, ...]
    """What cost most first."""
    slowdown: Slowdown | None
    growth: tuple[Growth, ...]
    baseline: Difference | None
    """How step times differ from the baseline's; None without one."""
    spans: tuple[SpanRow, ...]
    open: tuple[OpenRow, ...]
    errors: tuple[ErrorRow, ...]
    counters: tuple[CounterRow, ...]
    losses: Losses
    samples_per_s: float | None
    tokens_per_s: float | None
    verdict: Verdict = attrs.field(factory=Verdict)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data; times in ns since the epoch, durations as their names say."""
        told: dict[str, Any] = attrs.asdict(
            self, filter=lambda field, _: field.name not in {"steps", "loss", "level", "goodput"}
        )
        told["goodput"] = self.goodput.to_json()
        told["steps"] = plain(self.steps)
        return told
