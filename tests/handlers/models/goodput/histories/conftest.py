"""Random jobs, and the bucket of each instant of them, computed instant by instant."""

from __future__ import annotations

import collections
import functools
import random
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from trackside.events import (
    Heartbeat,
    IterationEnded,
    Source,
    SourceEnded,
    SpanEnded,
    SpanStarted,
    StepStarted,
    span_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BASE_NS = 1_000

ORDER = """
    ELASTIC_SLICE_DOWN ELASTIC_SCALE_UP ELASTIC_REINITIALIZATION INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION
    WASTED_PROGRESS_FROM_DISRUPTION UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME UNPRODUCTIVE_CHECKPOINT_SAVE_TIME VALIDATION
    CUSTOM_BADPUT_EVENTS DATA_LOADING_SYNC ACCELERATOR_INITIALIZATION TRAINING_PREP PROGRAM_STARTUP PRODUCTIVE OTHER
""".split()

OF_SPAN = {
    "distributed_code_initialization": "ACCELERATOR_INITIALIZATION",
    "model_initialization": "TRAINING_PREP",
    "optimizer_initialization": "TRAINING_PREP",
    "data_loader_initialization": "TRAINING_PREP",
    "checkpoint_load": "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    "checkpoint_save_sync": "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "checkpoint_save_async": "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "checkpoint_save_finalization": "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "validation_loop": "VALIDATION",
    "testing_loop": "VALIDATION",
    "data_loading": "DATA_LOADING_SYNC",
}
ELASTIC = ("ELASTIC_SLICE_DOWN", "ELASTIC_SCALE_UP", "ELASTIC_REINITIALIZATION")
RECOVERY, WASTED, PRODUCTIVE, OTHER = ORDER[3], ORDER[4], "PRODUCTIVE", "OTHER"


@attrs.define
class Life:
    """One process, instant by instant."""

    source: Source
    start: int
    last: int
    has_ended: bool
    claims: dict[int, tuple[str, str | None, int]]  # instant -> (bucket, custom type, order)
    steps: list[list[Any]]  # [number, start, end, failed, is_sample, is_redone]
    open_step: tuple[int, int, bool] | None  # number, start, whether a checkpoint was loaded before it
    first_step: int | None = None

    def is_wasted(self, step: list[Any], wasted_from: int | None) -> bool:
        """Return whether *step* was done again."""
        return bool(step[5]) or (wasted_from is not None and step[0] >= wasted_from)


def rank_of(bucket: str) -> int:
    return ORDER.index(bucket)


def live(stream: Any, until: int = 0) -> Life:
    """Read one process's events; it is known to have lived *until* then, if not until its last event."""
    events = stream.events
    last = max(until, *(event.at_ns for event in events))
    starts: list[int] = []
    claims: dict[int, tuple[str, str | None, int]] = {}
    steps: list[list[Any]] = []
    open_spans: dict[int, SpanStarted] = {}
    open_step: tuple[int, int, bool] | None = None
    is_restored = False
    first_step: int | None = None
    has_ended = False

    def claim(start: int, end: int, bucket: str, custom: str | None, order: int) -> None:
        for instant in range(start, end):
            known = claims.get(instant)
            if known is None or (rank_of(bucket), order) < (rank_of(known[0]), known[2]):
                claims[instant] = (bucket, custom, order)

    def redo(number: int, *, is_restored: bool) -> None:
        for step in steps:
            step[5] = step[5] or (is_restored and step[0] >= number)

    def bucket_of(event: Any) -> tuple[str | None, str | None]:
        marked = event.attributes.get("badput_type")
        if marked is None:
            return OF_SPAN.get(event.name), None
        return (marked, None) if marked in ELASTIC else ("CUSTOM_BADPUT_EVENTS", marked)

    for order, event in enumerate(events):
        start = event.at_ns - getattr(event, "duration_ns", 0)
        starts.append(start)
        if isinstance(event, SpanStarted):
            open_spans[event.span_id] = event
            is_restored = is_restored or event.name == "checkpoint_load"
        elif isinstance(event, SpanEnded):
            open_spans.pop(event.span_id, None)
            bucket, custom = bucket_of(event)
            if bucket is not None:
                claim(start, event.at_ns, bucket, custom, order)
            if event.name == "checkpoint_load":
                is_restored = True
        elif isinstance(event, IterationEnded):
            if event.kind != "training":
                claim(start, event.at_ns, "VALIDATION", None, order)
                continue
            redo(event.step, is_restored=is_restored)
            is_restored = False
            steps.append([event.step, start, event.at_ns, event.failed, True, False])
            first_step = event.step if first_step is None else min(first_step, event.step)
            open_step = None
        elif isinstance(event, StepStarted):
            if open_step is not None:
                redo(open_step[0], is_restored=open_step[2])
                steps.append([open_step[0], open_step[1], event.at_ns, False, True, False])
            open_step = (event.step, event.at_ns, is_restored)
            is_restored = False
            first_step = event.step if first_step is None else min(first_step, event.step)
        elif isinstance(event, Heartbeat):
            inside = event.open_spans.get("MainThread")
            open_step = (steps[-1][0] + 1 if steps else 0, inside[2], False) if inside else None
        elif isinstance(event, SourceEnded):
            has_ended = True
            if open_step is not None:
                redo(open_step[0], is_restored=open_step[2])
                steps.append([open_step[0], open_step[1], event.at_ns, False, False, False])
                open_step = None
            for span in open_spans.values():
                bucket, custom = bucket_of(span)
                if bucket is not None:
                    claim(span.at_ns, event.at_ns, bucket, custom, order)
            open_spans = {}
    # Spans that are still open go on; of equals the one that began last would have ended first.
    for span in sorted(open_spans.values(), key=lambda span: -span.at_ns):
        bucket, custom = bucket_of(span)
        if bucket is not None:
            claim(span.at_ns, last, bucket, custom, len(events) + last - span.at_ns)
    return Life(stream.source, min(starts), last, has_ended, claims, steps, open_step, first_step)


def instants_of(life: Life, wasted_from: int | None, is_over: bool) -> dict[int, Any]:
    """Return the bucket of each instant of a process's life."""
    found: dict[int, Any] = {}
    step_at: dict[int, list[Any]] = {}
    for step in life.steps:
        for instant in range(step[1], step[2]):
            step_at[instant] = step
    for instant in range(life.start, life.last):
        bucket, custom, _ = life.claims.get(instant, (None, None, None))
        in_step = step_at.get(instant)
        wasted = in_step is not None and life.is_wasted(in_step, wasted_from)
        if bucket in ELASTIC:
            found[instant] = bucket
        elif in_step is None and life.open_step is not None and instant >= life.open_step[1]:
            number = life.open_step[0]
            if wasted_from is not None and number >= wasted_from:
                found[instant] = WASTED
            elif bucket is not None:
                found[instant] = (bucket, custom) if custom else bucket
            else:
                found[instant] = OTHER if is_over and wasted_from is None else PRODUCTIVE
        elif wasted:
            found[instant] = WASTED
        elif bucket is not None:
            found[instant] = (bucket, custom) if custom else bucket
        elif in_step is not None:
            found[instant] = OTHER if in_step[3] else PRODUCTIVE
        else:
            found[instant] = OTHER
    start_up(life, wasted_from, found)
    return found


def start_up(life: Life, wasted_from: int | None, found: dict[int, Any]) -> None:
    """Turn the beginning of the first step into startup, as far as it exceeds the mean of the others that count."""
    own = [
        [instant for instant in range(step[1], step[2]) if instant not in life.claims]
        for step in life.steps
        if step[4] and not step[3] and not life.is_wasted(step, wasted_from)
    ]
    if not life.steps or life.steps[0][3] or not life.steps[0][4] or life.is_wasted(life.steps[0], wasted_from):
        return
    first, others = own[0], [len(instants) for instants in own[1:] if instants]
    if first and others:
        excess = max(0, len(first) - sum(others) // len(others))
        for instant in first[:excess]:
            found[instant] = "PROGRAM_STARTUP"


def attempts_of(lives: Iterable[Life]) -> list[tuple[list[Life], int | None]]:
    """Return the lives by attempt, in order, with the step from which later ones did the work again."""
    groups: dict[Any, list[Life]] = collections.defaultdict(list)
    for life in lives:
        groups[life.source.run_id, life.source.attempt].append(life)
    ordered = sorted(groups.values(), key=lambda group: min(life.start for life in group))
    judged = []
    for index, group in enumerate(ordered):
        later = [life.first_step for after in ordered[index + 1 :] for life in after if life.first_step is not None]
        judged.append((sorted(group, key=lambda life: life.source.rank), min(later, default=None)))
    return judged


def is_beating(stream: Any) -> bool:
    """Return whether a process sends heartbeats and has no end: within nanoseconds it is not silent."""
    kinds = {type(event) for event in stream.events}
    return Heartbeat in kinds and SourceEnded not in kinds


def brute(streams: list[Any], *, only_rank: int | None = None) -> dict[int, Any]:
    """Return the bucket of every instant of a job, from its first start to its last event."""
    latest_lives = attempts_of([live(stream) for stream in streams])[-1][0]
    latest = {id(life.source) for life in latest_lives}
    until = max(life.last for life in latest_lives)
    attempts = attempts_of(
        [live(stream, until if id(stream.source) in latest and is_beating(stream) else 0) for stream in streams]
    )
    judged = [
        (
            [life for life in group if only_rank is None or life.source.rank == only_rank],
            wasted_from,
            place < len(attempts),
        )
        for place, (group, wasted_from) in enumerate(attempts, 1)
    ]
    judged = [entry for entry in judged if entry[0]]
    starts = [min(life.start for life in group) for group, _, _ in judged]
    ends = [*starts[1:], max(life.last for life in judged[-1][0])]
    whole: dict[int, Any] = {}
    for place, ((group, wasted_from, is_over), start, end) in enumerate(zip(judged, starts, ends, strict=True), 1):
        maps = {id(life): instants_of(life, wasted_from, is_over) for life in group}
        trained = [life for life in group if life.first_step is not None] or group

        def gain(life: Life, maps: dict[int, dict[int, Any]] = maps, end: int = end) -> int:
            return sum(bucket == PRODUCTIVE for instant, bucket in maps[id(life)].items() if instant < end)

        slow = min(trained, key=gain)
        first = min(group, key=lambda life: life.start)
        last = max(group, key=lambda life: life.last)
        for instant in range(start, end):
            speaker = first if instant < slow.start else slow if instant < slow.last else last
            gap = RECOVERY if instant >= last.last and place < len(judged) else OTHER
            whole[instant] = maps[id(speaker)].get(instant, gap)
    return whole


def counted(instants: dict[int, Any], start: int | None = None, end: int | None = None) -> dict[Any, int]:
    """Return how many instants each bucket has."""
    return dict(
        collections.Counter(
            bucket
            for instant, bucket in instants.items()
            if (start is None or instant >= start) and (end is None or instant < end)
        )
    )


Moment = tuple[int, "Callable[[], object]"]
"""A time, and a function that publishes an event of then."""


class Historian:
    """A generator of random jobs."""

    def __init__(self, seed: int, stream: Callable[..., Any]) -> None:
        self.rng = random.Random(seed)
        self.stream = stream

    def job(self) -> list[Any]:
        """Return the streams of a job with some attempts and ranks."""
        rng = self.rng
        streams = []
        at, step = BASE_NS, 0
        self.has_ends = rng.random() < 0.75
        for attempt in range(rng.choice((1, 1, 2, 2, 3, 4))):
            ranks = rng.choice((1, 1, 2, 3))
            ends = []
            reached = step
            for rank in range(ranks):
                begin = at + rng.randint(0, 3) * (rank > 0)
                stream, last, done = self.process(rank, attempt, begin, step)
                streams.append(stream)
                ends.append(last)
                reached = max(reached, done)
            at = max(ends) + rng.randint(0, 12)
            step = rng.choice((reached, rng.randint(0, reached), max(0, reached - 2), 0))
        return streams

    def process(self, rank: int, attempt: int, begin: int, step: int) -> tuple[Any, int, int]:
        """Return a process's stream, its last moment, and the step it would do next."""
        rng = self.rng
        stream = self.stream(rank=rank, attempt=attempt, session_tag="session")
        moments: list[Moment] = []
        now = begin
        moments.append((now, lambda: stream.start(begin)))
        for name in ("distributed_code_initialization", "model_initialization", "checkpoint_load"):
            if rng.random() < 0.6:
                now = self.phase(stream, moments, name, now)
        number, done = step, step
        for _ in range(rng.randint(0, 9)):
            if rng.random() < 0.05 and number > step:
                now = self.phase(stream, moments, "checkpoint_load", now)
                number = rng.randint(step, number - 1)
            now, number = self.step(stream, moments, now, number)
            done = max(done, number)
            if rng.random() < 0.15:
                now = self.phase(stream, moments, "checkpoint_save_sync", now)
            if rng.random() < 0.1:
                now = self.validation(stream, moments, now)
        for _ in range(rng.choice((0, 0, 1, 2, 3, 6))):
            self.overlap(stream, moments, begin, now)
        if self.has_ends:
            moments.append((now, functools.partial(stream.beat, now)))
        crash = rng.random() < 0.5
        until = rng.randint(begin, now) if crash else now
        # Events are published as spans end; a crash loses the spans that had not ended.
        for end, publish in sorted(moments, key=lambda moment: moment[0]):
            if end <= until:
                publish()
        if not crash and rng.random() < 0.8:
            stream.end(until)
        return stream, max(event.at_ns for event in stream.events), done

    def phase(self, stream: Any, moments: list[Moment], name: str, now: int) -> int:
        """Add a random span after *now*; return its end."""
        start = now + self.rng.randint(0, 2)
        end = start + self.rng.randint(1, 6)
        number = next(stream.ids)

        def begin() -> None:
            stream.put(SpanStarted(at_ns=start, span_id=number, parent_span_id=0, name=name, step=-1, attributes={}))

        moments.append((start, begin))
        if self.rng.random() < 0.95:
            moments.append((end, lambda: stream.span(name, start, end, kind=SpanEnded, id=number)))
        return end

    def step(self, stream: Any, moments: list[Moment], now: int, number: int) -> tuple[int, int]:
        """Add a step after *now*; return its end, and the next number."""
        rng = self.rng
        if rng.random() < 0.4:
            start = now + rng.randint(0, 1)
            now = start + rng.randint(1, 3)
            moments.append((now, functools.partial(stream.span, "data_loading", start, now)))
        start = now + rng.choice((0, 0, 1))
        end = start + rng.choice((1, 1, 2, 5, 5, 5, 6, 15))
        if rng.random() < 0.3 and end - start > 2:
            first = rng.randint(start, end - 1)
            last = rng.randint(first + 1, end)
            name = rng.choice(("data_loading", "checkpoint_save_async"))
            moments.append((last, lambda: stream.span(name, first, last)))
        if rng.random() < 0.3 and self.has_ends:
            beat = rng.randint(start + 1, end)
            inside = [10_000 + number, rng.choice(("training_single_iteration", "model_forward")), start]
            if beat < end:
                moments.append((beat, lambda: stream.beat(beat, inside)))
        failed = rng.random() < 0.03
        if self.has_ends:
            moments.append((end, lambda: stream.step(number, start, end, failed=failed)))
        else:
            moments.append((start, lambda: stream.step_start(number, start)))
        return end, number + 1

    def validation(self, stream: Any, moments: list[Moment], now: int) -> int:
        """Add a validation loop after *now*; return its end."""
        start = now + self.rng.randint(0, 1)
        end = start
        for _ in range(self.rng.randint(1, 3)):
            first, end = end, end + self.rng.randint(1, 3)
            kind = self.rng.choice(("validation", "testing"))
            moments.append((end, functools.partial(stream.step, 3, first, end, kind=kind)))
        moments.append((end, lambda: stream.span("validation_loop", start, end)))
        return end

    def overlap(self, stream: Any, moments: list[Moment], begin: int, now: int) -> None:
        """Add a span that overlaps others in any way."""
        rng = self.rng
        start = rng.randint(begin, max(begin, now - 1))
        end = min(rng.randint(start + 1, max(start + 1, now)), start + rng.choice((1, 2, 3, 1_000)))
        marks = ("eval", "Eval", "sdc", "ELASTIC_SLICE_DOWN", "ELASTIC_SCALE_UP", "ELASTIC_REINITIALIZATION")
        name = rng.choice(("x", "testing_loop", "data_loader_initialization"))
        mark = rng.choice(marks) if name == "x" else None
        attributes = {} if mark is None else {span_names.BADPUT_TYPE: mark}
        if rng.random() < 0.3:
            number = next(stream.ids)
            moments.append(
                (
                    start,
                    lambda: stream.put(
                        SpanStarted(
                            at_ns=start, span_id=number, parent_span_id=0, name=name, step=-1, attributes=attributes
                        )
                    ),
                )
            )
            if rng.random() < 0.8:
                moments.append((end, lambda: stream.span(name, start, end, kind=SpanEnded, id=number, **attributes)))
        else:
            moments.append((end, lambda: stream.span(name, start, end, **attributes)))


@pytest.fixture
def historian(stream: Callable[..., Any]) -> Callable[[int], Historian]:
    """Give a function that generates the job of some number."""
    return lambda seed: Historian(seed, stream)


@pytest.fixture
def truth() -> Callable[..., dict[int, Any]]:
    """Give a function that returns the bucket of every instant of a job."""
    return brute


@pytest.fixture
def count() -> Callable[..., dict[Any, int]]:
    """Give a function that counts instants by bucket."""
    return counted
