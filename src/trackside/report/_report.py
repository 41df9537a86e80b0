"""The contents of a report: plain data, which the text, the page and the JSON only show."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import attrs

from trackside.core import text as words
from trackside.handlers.models.goodput import AFTER_STEPS, BEFORE_STEPS, GoodputResult
from trackside.handlers.models.liveness import ENDED, RUNNING
from trackside.handlers.models.spans import NameTotals
from trackside.report._gather import Bin, Mark, plain
from trackside.report._statistics import Difference
from trackside.report._whatif import LateRank, Pause, WhatIf


@attrs.frozen
class BucketStyle:
    """The appearance of a bucket."""

    name: str
    meaning: str
    light: str
    dark: str
    """The colours on a light and a dark background; colour-blind people can tell them apart."""
    terminal: str
    """The colour in a terminal, whose background may be light or dark."""


PRODUCTIVE: Final = "PRODUCTIVE"
_SHOWN: Final = {
    PRODUCTIVE: BucketStyle("productive", "training steps that count", "#1f8a5b", "#35b27b", "green"),
    "WASTED_PROGRESS_FROM_DISRUPTION": BucketStyle(
        "recomputed steps", "done again after a restart, from the last checkpoint on", "#c8322b", "#e5655c", "red"
    ),
    "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": BucketStyle(
        "restart downtime", "from the last sign of a lost attempt to the next attempt", "#8e2c66", "#c45f9c", "magenta"
    ),
    "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": BucketStyle(
        "saving checkpoints", "the time for which training waited", "#3566c0", "#6f9bf0", "blue"
    ),
    "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": BucketStyle(
        "loading checkpoints", "before training went on", "#6aa3e8", "#9cc4f5", "bright_blue"
    ),
    "DATA_LOADING_SYNC": BucketStyle(
        "waiting for data", "between steps, until the next batch was there", "#d98a00", "#f0b03f", "yellow"
    ),
    "VALIDATION": BucketStyle("validation", "evaluation between training steps", "#0f8f9e", "#3fbdca", "cyan"),
    "ACCELERATOR_INITIALIZATION": BucketStyle(
        "accelerator startup", "setting up devices and the process group", "#8a6d3b", "#b99a62", "color(130)"
    ),
    "TRAINING_PREP": BucketStyle(
        "startup", "building model, optimizer and data loaders", "#a58d5f", "#cdb88a", "color(137)"
    ),
    "PROGRAM_STARTUP": BucketStyle(
        "first step", "compilation and warm-up, beyond a usual step", "#bfae8e", "#8d7f63", "bright_magenta"
    ),
    BEFORE_STEPS: BucketStyle(
        "before the first step", "in no span: the process, its imports, setting up", "#b7a27a", "#9c8a66", "cyan"
    ),
    AFTER_STEPS: BucketStyle("after the last step", "in no span: to the end", "#7d8590", "#8b939d", "blue"),
    "OTHER": BucketStyle("unaccounted", "in no span: nothing says what", "#9aa0a6", "#6d747b", "bright_black"),
}
_ELSE: Final = BucketStyle("", "a bucket of the job's own", "#5b4fb3", "#958af0", "color(99)")


def shown(bucket: str) -> BucketStyle:
    """Return the appearance of *bucket*; custom and elastic ones share a colour and have their own names."""
    return _SHOWN.get(bucket) or attrs.evolve(_ELSE, name=bucket.lower().replace("_", " "))


_LEAST_BEFORE_START_S: Final = 0.5

SCHEMA: Final = "trackside.report/1"
"""The version of `Report.to_json`: names may be added, and a name keeps its meaning."""
NOTHING: Final = "Nothing stands out."

Points = list[tuple[int, Bin]]
"""Pairs of a time, in ns since the epoch, and the values around it; ordered by time."""


@attrs.frozen(kw_only=True)
class Finding:
    """One conclusion about the job."""

    kind: str
    """
    ``exception``, ``out-of-memory``, ``died``, ``exit``, ``missing-rank``, ``not-finite``, ``stopped``, ``stall``,
    ``restarts``, ``checkpoints``, ``input-bound``, ``compute-bound``, ``waiting``, ``straggler``, ``pauses``,
    ``memory-growth``, ``regression``, ``slowdown``, ``startup``, ``shutdown``, ``evaluation``, ``custom`` or
    ``unaccounted``.
    """
    title: str
    """A sentence."""
    evidence: tuple[str, ...]
    look: str
    """The next step, with a command to paste where there is one."""
    cost_s: float = 0.0
    """Its cost to the session, in seconds; 0 if that is not known."""
    rank: int | None = None
    section: str = ""
    since_ns: int | None = None
    since_step: int | None = None
    until_step: int | None = None
    """The last step that it concerns; None if it lasted to the end."""
    ranks: tuple[int, ...] = ()
    """All ranks that it concerns, if they are known."""

    @property
    def advice(self) -> tuple[str, str]:
        """The text of `look` before the command at its end, and that command; empty if there is none."""
        place = max(self.look.rfind("trackside "), self.look.rfind("py-spy "))
        return (self.look[:place].rstrip(), self.look[place:]) if place > 0 else (self.look, "")


@attrs.frozen(kw_only=True)
class Ruling:
    """The result of one rule of the verdict: its findings, and why it reported them or none."""

    rule: str
    findings: tuple[Finding, ...] = ()
    because: str = ""


@attrs.frozen(kw_only=True)
class Verdict:
    """The conclusions of a report."""

    headline: str = NOTHING
    summary: str = ""
    """The share of the time that was productive, and what steps are bound by."""
    state: str = "good"
    """``good`` only if there is no finding and every rank has a good end; else ``bad`` or ``running``."""
    bound: str = ""
    """The kind of most of a step: ``input``, ``compute`` or ``waiting``; empty if not known."""
    findings: tuple[Finding, ...] = ()
    """Failures first, then what cost most."""
    rulings: tuple[Ruling, ...] = ()


@attrs.frozen(kw_only=True)
class RankRow:
    """One rank, as it was last heard of."""

    rank: int
    attempt: int
    host: str
    pid: int
    state: str
    """``running``, ``silent``, ``died`` or ``ended``, as of the newest event of all; see `liveness`."""
    reason: str
    first_ns: int
    last_ns: int
    steps: int
    last_step: int
    stepped_ns: int
    """The time when its last step ended; 0 if none did."""
    mean_step_ns: float | None
    has_good_end: bool = True
    """Whether it reported its end, and no exception or failing exit status ended it."""
    error: str = ""
    """The name of the exception, or the failing exit status, that ended it; empty if there was none."""
    interval_s: float = 1.0
    """The time between two of its heartbeats, in seconds."""
    before_start_s: float = 0.0
    """The age of its process when the job was started, in seconds; 0 if not known."""
    exited_ns: int | None = None
    """The time when `trackside run` saw its process exit; None if it did not."""
    exit_status: int | None = None
    """The exit code of its process, or the negated number of the signal that ended it; None if not known."""


@attrs.frozen(kw_only=True)
class AttemptBar:
    """One attempt's time by bucket."""

    number: int
    start_ns: int
    end_ns: int
    goodput: float | None
    buckets_s: dict[str, float]
    """``PRODUCTIVE`` first, then the buckets that are not zero, the largest first. They add up to its time."""
    ranks: int
    first_out: RankRow | None
    """Of the ranks without a good end, the one with the earliest last event; None if all ended well."""
    before_start_s: float = 0.0
    """The longest time that a rank's process ran before its job was started, in seconds; in no bucket of this bar."""
    before_start_rank: int = 0
    """The rank of that process."""

    @property
    def before_start(self) -> str:
        """A sentence about the time that the program ran before the job was started; empty below half a second."""
        if self.before_start_s < _LEAST_BEFORE_START_S:
            return ""
        took = words.seconds(self.before_start_s)
        if self.number:
            return f"Attempt {self.number}: {took} of the restart downtime were its process and imports before start()."
        process = f"The process of rank {self.before_start_rank}" if self.ranks > 1 else "The process"
        return f"{process} had run for {took} when start() was called, with its imports: that is in no figure here."


@attrs.frozen(kw_only=True)
class Part:
    """A part of a step: a span or a section directly within it."""

    name: str
    kind: str
    """``input``, ``compute``, ``waiting`` or ``other``, by its name."""
    mean_ns: float
    """Its mean time in a step, over all steps of all ranks."""
    share: float
    """Its share of the mean step, 0 to 1."""


@attrs.frozen(kw_only=True)
class Heatmap:
    """Scores by rank and section; the lowest is the worst."""

    basis: str
    """The kind of measurement that the scores were made from."""
    ranks: list[int]
    nodes: list[str]
    names: list[str]
    scores: list[list[float | None]]
    """For each name, the scores of all ranks; None for a score that is missing."""


@attrs.frozen(kw_only=True)
class Slowdown:
    """An increase of the step time from some step on."""

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
    """The kind of `part`, as in `Part`."""


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
    """The number of ranks on which it rose."""

    @property
    def per_hour(self) -> float:
        """The number of bytes by which it rose per hour."""
        return (self.last - self.first) / max(1, self.until_ns - self.since_ns) * 3.6e12


@attrs.frozen(kw_only=True)
class OpenRow:
    """A span that did not end."""

    rank: int
    name: str
    start_ns: int
    seen_ns: int


_JOINS_RANKS: Final = re.compile(r"RuntimeError$|(torch|jax|jaxlib|tensorflow|horovod|ray|deepspeed)\.")
"""The types of what torch's and other libraries' collectives raise. Python's own `OSError` comes from other sockets."""
_LOST_PEER: Final = re.compile(
    r"(?!.*DataLoader).*(peer|connection (was likely )?(closed|reset|refused|aborted)|broken pipe|remote process"
    r"|timed? ?out|heartbeat|NCCL|unavailable)",
    re.IGNORECASE | re.DOTALL,
)


@attrs.frozen(kw_only=True)
class ErrorRow:
    """An exception, counted once even if it passed through several spans."""

    rank: int
    attempt: int
    name: str
    """The innermost span that it passed through; empty if there was none."""
    step: int
    at_ns: int
    type: str
    message: str
    is_out_of_memory: bool
    is_fatal: bool
    """Whether it ended its process, or was its last one, with no step after it and no good end."""

    @property
    def is_of_lost_peer(self) -> bool:
        """Whether it follows from the end of another rank: what joins ranks raised it, and says so."""
        return bool(_JOINS_RANKS.match(self.type) and _LOST_PEER.match(self.message))

    @property
    def error(self) -> str:
        """The exception as Python writes it."""
        return f"{self.type}: {self.message}" if self.message else self.type


@attrs.frozen(kw_only=True)
class Standstill:
    """The saves or the evaluations of the rank and attempt that spent most time on them."""

    kind: str
    """``checkpoint`` or ``validation``."""
    rank: int
    count: int
    took_s: float
    """The time that they took together."""
    longest_s: float
    longest_step: int
    since_ns: int
    """The time at which the first one began."""
    least_s: float
    """The time of the rank of the same attempt that spent least on them; 0 if a rank has none."""
    waited_for: int | None = None
    """That rank, if it began its own later and ended them with `rank`, which then waited for it; else None."""

    @property
    def is_uneven(self) -> bool:
        """Whether the rank spent at least twice as much time as another one."""
        return self.took_s >= 2 * self.least_s

    @property
    def blamed(self) -> int | None:
        """If they are uneven, the rank for which the others stood still; else None."""
        return None if not self.is_uneven else self.rank if self.waited_for is None else self.waited_for


@attrs.frozen(kw_only=True)
class StallRow:
    """A stall that a rank recorded of itself."""

    rank: int
    attempt: int
    step: int
    """The last step that had ended."""
    at_ns: int
    """The time when that step ended."""
    usual_s: float
    lasted_s: float
    """The time until the next step ended or, if none did, until the rank's last event."""
    is_over: bool
    span: str
    """The innermost span that was open; empty if none was."""
    where: str
    """The place of its main thread in the code, from its stack; empty if not known."""
    waits: bool
    """Whether the main thread was in an exchange with other ranks."""
    collective: str
    """The latest collective in torch's flight recorder; empty without one."""


@attrs.frozen(kw_only=True)
class NotFinite:
    """A loss became NaN or infinite."""

    name: str
    """The name of its series; empty for the iterations' own loss."""
    value: str
    """``nan``, ``inf`` or ``-inf``; empty if values differ, or if it is not known."""
    steps: tuple[int, int]
    """The first and the last step in which that may have begun; they are equal if its step is known."""
    step: int
    """The likely one of them."""
    last_step: int
    count: int
    """The number of values that were not finite without a finite one between them, on `first_rank`."""
    earlier: int
    """The number of those before them."""
    finite_after: int
    """The number of finite ones after them; 0 if the loss stayed so."""
    at_ns: int
    ranks: tuple[int, ...]
    first_rank: int
    first_ranks: tuple[int, ...]
    """The ranks on which it was not finite in that step already."""


@attrs.frozen(kw_only=True)
class CounterRow:
    """One counter, over all ranks."""

    name: str
    unit: str
    count: int
    sum: float
    mean: float | None
    last: float | None
    """The latest value; for a counter, the sum. If only windows are known, the median of the last point of `level`."""
    minimum: float | None
    maximum: float | None
    p50: float | None
    p99: float | None
    level: Points = attrs.field(factory=list)


@attrs.frozen(kw_only=True)
class OwnRow:
    """The events of one type that the job itself declared, over all ranks."""

    name: str
    count: int
    ranks: int
    """The number of ranks that published such events."""
    last_ns: int
    last_step: int
    """The step of the latest event, whose fields are in `last`; -1 if it was in no step."""
    last: dict[str, Any]
    levels: dict[str, Points]
    """The fields that are numbers, over time."""


@attrs.frozen
class Unwritten:
    """The events of a rank without an end record that are in no log."""

    attempt: int
    """The number of its attempt, as in `AttemptBar.number`."""
    rank: int
    steps: int
    """The number of steps that may be missing, if they took as long as those before; 0 if that is not known."""


@attrs.frozen(kw_only=True)
class Losses:
    """The events that the logs do not hold."""

    dropped: dict[str, int]
    """Events that were dropped for lack of room, by wire name."""
    missing: int
    """Numbers that no frame accounted for."""
    damaged_bytes: int
    suspended: dict[str, int]
    """The number of times that each handler was suspended."""
    invalid: int
    failed: int
    suppressed: int
    """By the bus's counts: events that could not be recorded, calls of handlers that raised, calls too deep."""
    unread: tuple[str, ...]
    """The reasons why whole files were not read."""
    too_late: int
    """Windows that came too late to be scored."""
    unwritten: tuple[Unwritten, ...] = ()
    """For each rank of any attempt that recorded steps but no end."""
    limited_s: dict[str, float] = attrs.field(factory=dict)
    """For each control verb, the longest time, in seconds, for which it limited what a rank recorded."""

    @property
    def total(self) -> int:
        """Events that are in no file."""
        return sum(self.dropped.values()) + self.missing + self.invalid


@attrs.frozen
class StepQuantiles:
    """The step times of each attempt's first rank, data loading included, in seconds; None without steps."""

    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    rank: int | None = None
    """The rank whose steps they are: the lowest one that left a log; None if it differs between attempts."""

    def whose(self, ranks: int) -> str:
        """Return words that name the rank of these steps in a job of so many *ranks*; empty for one rank."""
        if ranks < 2 or self.p50_s is None:  # noqa: PLR2004
            return ""
        return " on each attempt's first rank" if self.rank is None else f" on rank {self.rank}"


@attrs.frozen(kw_only=True)
class Report:
    """The findings of a session's logs."""

    session: str
    paths: tuple[str, ...]
    """The paths of the logs, as they were given."""
    others: tuple[str, ...]
    """Other sessions in the same logs, which are not in this report."""
    application: str
    runs: tuple[str, ...]
    perf_tags: tuple[str, ...]
    ranks_total: int
    hosts: int
    state: str
    """``running``, ``silent``, ``died`` or ``ended``: the worst state of the last attempt's ranks."""
    events: int
    goodput: GoodputResult
    attempts: tuple[AttemptBar, ...]
    ranks: tuple[RankRow, ...]
    """At most 64 ranks of the last attempt: those without a good end first, then those behind, then slow ones."""
    missing_ranks: tuple[int, ...]
    """Ranks of the last attempt that its launcher started and that left no log."""
    exit_status: int | None
    """The exit status of the program that `trackside run` started; negative for a signal, None if not known."""
    age_s: float
    """The time since the newest event when the report was made."""
    step_time: StepQuantiles
    steps: Points
    step_width_ns: int
    """The length of time that each point of `steps` covers."""
    loss: Points
    marks: tuple[Mark, ...]
    marks_left_out: int
    parts: tuple[Part, ...]
    is_start_left_out: bool
    """Whether `parts` are those of all steps but the first of each process, or its first window of sections."""
    waited_share: float | None
    """The share of a step in exchanges between ranks, less the wait for late ranks if known; None if not recorded."""
    heatmap: Heatmap | None
    what_if: WhatIf
    """The comparison of the ranks, over the last attempts with the same ranks; its late ranks are in `late`."""
    late: tuple[LateRank, ...]
    """The ranks that others waited for, the most costly first."""
    standstills: tuple[Standstill, ...]
    """The standstill for saves and the one for evaluations, if there were any."""
    stalls: tuple[StallRow, ...]
    """The stalls that ranks recorded: times in which no step ended for long."""
    not_finite: NotFinite | None
    losses_not_drawn: int
    """The number of losses that were NaN or infinite, which `loss` leaves out."""
    pauses: Pause | None
    startup_s: float
    """The time from the start of the first attempt to its first step, without the spans of known buckets."""
    shutdown_s: float
    """The time after the last step that is in no bucket of its own, in seconds; 0 if a rank has no good end."""
    first_batch_s: float
    """The longest wait of a rank for the first batch of the first attempt, less the usual wait for a batch."""
    slowdown: Slowdown | None
    growth: tuple[Growth, ...]
    baseline: Difference | None
    """The difference of step times from the baseline's; None without one."""
    spans: tuple[NameTotals, ...]
    open: tuple[OpenRow, ...]
    errors: tuple[ErrorRow, ...]
    counters: tuple[CounterRow, ...]
    own: tuple[OwnRow, ...]
    config: dict[str, Any]
    """The hyper-parameters by name."""
    losses: Losses
    samples_per_s: float | None
    tokens_per_s: float | None
    verdict: Verdict = attrs.field(factory=Verdict)

    @property
    def outcome(self) -> str:
        """The state in words; ``failed`` if a job has ended, but a rank has no good end."""
        if self.state == ENDED and not all(row.has_good_end for row in self.ranks):
            return "failed"
        return "running, or died" if self.state == RUNNING else self.state

    def to_json(self) -> dict[str, Any]:
        """
        Return the report as plain data, without rulings and without the curves of losses and counters.

        Times are in ns since the epoch; names of durations end with their unit. ``schema`` is the version. A number
        that is not finite is None, and its path is in ``not_finite_values``.
        """
        own = attrs.fields(Report)
        # Left out by identity, as parts of the report have fields of these names, too.
        left_out = (own.steps, own.loss, own.goodput)

        def is_plain(field: Any, _: object) -> bool:
            return field.name not in _NOT_IN_JSON and all(field is not one for one in left_out)

        plain_data: dict[str, Any] = attrs.asdict(self, filter=is_plain)
        plain_data["goodput"] = self.goodput.to_json()
        plain_data["steps"] = plain(self.steps)
        not_finite: list[str] = []
        result: dict[str, Any] = finite({"schema": SCHEMA, **plain_data}, not_finite)
        return {**result, "not_finite_values": not_finite[:_MOST_NOT_FINITE]}


_MOST_NOT_FINITE: Final = 100
_NOT_IN_JSON: Final = {"level", "levels", "rulings"}


def finite(value: Any, not_finite: list[str], place: str = "") -> Any:
    """Return *value* with None for NaN and infinities, which JSON lacks; add their paths to *not_finite*."""
    if isinstance(value, dict):
        return {key: finite(own, not_finite, f"{place}.{key}" if place else str(key)) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(own, not_finite, f"{place}[{at}]") for at, own in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        not_finite.append(place)
        return None
    return value
