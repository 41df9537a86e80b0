"""
Fixtures shared by the tests of goodput: streams of events and records of ml-goodput-measurement, built one by one.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import pytest

from processes import Process
from trackside.events import (
    Heartbeat,
    IterationEnded,
    IterationSpanEnded,
    ProfileSpanEnded,
    SourceEnded,
    SourceStarted,
    SpanEnded,
    StepStarted,
)
from trackside.handlers.models.goodput import GoodputAccumulator, read_payloads

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator

    from trackside.events import Event
    from trackside.handlers.models.goodput import GoodputResult


class Stream(Process):
    """One process's events, in the order in which it publishes them, at any times."""

    def start(self, at: int) -> Stream:
        """Publish that the process starts."""
        return self.add(SourceStarted, at_ns=at, identity=self.source.to_wire())

    def end(self, at: int, reason: str = "exit") -> Stream:
        """Publish that the process comes to a good end."""
        return self.add(SourceEnded, at_ns=at, reason=reason)

    def step(self, number: int, start: int, end: int, **fields: Any) -> Stream:
        """Publish the end of an iteration."""
        known = {"at_ns": end, "duration_ns": end - start, "span_id": next(self.ids), "step": number}
        return self.add(IterationEnded, **known, parent_span_id=0, **fields)

    def step_start(self, number: int, at: int) -> Stream:
        """Publish the start of a step whose end is not recorded."""
        return self.add(StepStarted, at_ns=at, step=number)

    def open(self, name: str, at: int, parent: int = 0, **attributes: Any) -> int:
        """Publish the start of a long span and return its id."""
        return self.start_span(name, at_ns=at, parent=parent, attributes=attributes)

    def span(
        self,
        name: str,
        start: int,
        end: int,
        *,
        kind: Any = None,
        id: int | None = None,  # noqa: A002
        parent: int = 0,
        **attributes: Any,
    ) -> Stream:
        """Publish the end of a span; without *id* its start was never published."""
        kind = kind or (ProfileSpanEnded if name == "data_loading" else IterationSpanEnded)
        known = {"at_ns": end, "duration_ns": end - start, "span_id": id or next(self.ids), "parent_span_id": parent}
        return self.add(kind, **known, name=name, attributes=attributes)

    def long(self, name: str, start: int, end: int, **attributes: Any) -> Stream:
        """Publish both the start and the end of a span."""
        number = self.open(name, start, **attributes)
        return self.span(name, start, end, kind=SpanEnded, id=number, **attributes)

    def beat(self, at: int, inside: Iterable[Any] | None = None) -> Stream:
        """Publish a heartbeat; *inside* is the innermost open span of the main thread: id, name, start."""
        spans = {"MainThread": list(inside)} if inside else {}
        return self.add(Heartbeat, at_ns=at, sequence=0, open_spans=spans)


def fed(*streams: Stream, **settings: Any) -> GoodputAccumulator:
    """Return a model that read all of *streams*, one after the other."""
    model = GoodputAccumulator(**settings)
    for stream in streams:
        for event in stream.events:
            model(event)
    return model


def shuffled(streams: Iterable[Stream], rng: random.Random) -> Iterator[Event]:
    """Yield the events of *streams*, those of each in their order."""
    left = [collections.deque(stream.events) for stream in streams]
    while left := [events for events in left if events]:
        yield rng.choice(left).popleft()


class Records:
    """
    The payloads that ml-goodput-measurement's recorder writes, with times in seconds since the job's start.
    """

    START_S = 1_704_070_800.0

    def __init__(self, name: str = "job") -> None:
        self.name = name
        self.payloads: list[dict[str, Any]] = []

    def put(self, **payload: Any) -> Records:
        """Write one record; a value whose key ends in ``_time`` is a time."""
        times = {key: value + self.START_S for key, value in payload.items() if key.endswith(("_time", "timestamp"))}
        self.payloads.append({"job_name": self.name, **payload, **times})
        return self

    def job(self, start: float) -> Records:
        """Write a job start."""
        return self.put(job_start_time=start)

    def end(self, at: float) -> Records:
        """Write a job end."""
        return self.put(job_end_time=at)

    def pair(self, what: str, start: float, end: float, **more: Any) -> Records:
        """Write a start and an end."""
        return self.put(**more, **{f"{what}_start_time": start}).put(**more, **{f"{what}_end_time": end})

    def custom(self, kind: str, start: float, end: float) -> Records:
        """Write the start and the end of a custom event."""
        return self.pair("custom_badput_event", start, end, custom_badput_event_type=kind)

    def steps(self, numbers: Iterable[int], at: float, length: float = 3, extra: float = 0) -> float:
        """Write the starts of *numbers* and return when the last one would be over; the first takes *extra*."""
        for index, number in enumerate(numbers):
            self.put(step_count=number, step_start_time=at)
            at += length + (extra if index == 0 else 0)
        return at

    def orbax(self, event_type: str, step: int, start: float, duration: float, part: str) -> Records:
        """Write a record of Orbax's."""
        self.payloads.append(
            {
                "event_type": event_type,
                "step": step,
                "directory": "gs://bucket/path",
                f"{part}_start_time": self.START_S + start,
                f"{part}_duration_secs": duration,
            }
        )
        return self

    def model(self, **settings: Any) -> GoodputAccumulator:
        """Return a model that has read the records."""
        model = GoodputAccumulator(**settings)
        for event in read_payloads(self.payloads):
            model(event)
        return model

    def result(
        self,
        *,
        end: float | None = None,
        start: float | None = None,
        exclude: Iterable[tuple[float, float]] = (),
        **question: Any,
    ) -> GoodputResult:
        """Return the account, with times in seconds since the job's start."""
        times = [(start, "start_ns"), (end, "end_ns")]
        question |= {name: self.ns(at) for at, name in times if at is not None}
        return self.model().result(exclude=[(self.ns(first), self.ns(last)) for first, last in exclude], **question)

    def ns(self, at: float) -> int:
        """Return *at* in ns since the epoch."""
        return round((self.START_S + at) * 1e6) * 1000


@pytest.fixture
def stream() -> type[Stream]:
    """Give the class of a process's events."""
    return Stream


@pytest.fixture
def feed() -> Callable[..., GoodputAccumulator]:
    """Give a function that returns a model which read some streams."""
    return fed


@pytest.fixture
def shuffle() -> Callable[[Iterable[Stream], random.Random], Iterator[Event]]:
    """Give a function that mixes streams."""
    return shuffled


@pytest.fixture
def records() -> Records:
    """Give an empty log of ml-goodput-measurement's records."""
    return Records()
