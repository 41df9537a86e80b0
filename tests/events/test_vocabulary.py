"""The vocabulary: every event of trackside's own is read back as it was written, today and from old files."""

from __future__ import annotations

import math
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framing import frame_of
from trackside.events import (
    LIFECYCLE,
    ClockAnchored,
    CounterWindow,
    DecodeError,
    Event,
    EventsDropped,
    HandlerSuspended,
    Heartbeat,
    IterationEnded,
    IterationSpanEnded,
    Parent,
    ProfileSpanEnded,
    Source,
    SourceEnded,
    SourceStarted,
    SpanEnded,
    SpanEventAdded,
    SpanStarted,
    UnknownEvent,
    clock,
    declared,
    own_fields,
)
from trackside.wire import FrameDecoder, to_json

OURS = [
    cls for cls in declared().values() if cls.__module__.startswith("trackside.events.") and cls is not UnknownEvent
]
DATA = Path(__file__).parents[1] / "data"
T = 1_795_000_000_000_000_000

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
whole = st.integers(-(2**63), 2**64 - 1)
numbers = st.floats(allow_nan=False)
plain = st.recursive(
    st.none() | st.booleans() | whole | numbers | texts | st.binary(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
SCALARS = {
    int: whole,
    float: numbers,
    str: texts,
    bool: st.booleans(),
    bytes: st.binary(max_size=50),
    Any: plain,
    object: plain,
}


def values_of(hint):
    """Return the values that a field of this type may have."""
    if hint in SCALARS:
        return SCALARS[hint]
    if hint is type(None):
        return st.none()
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(option) for option in options])
    if origin is list:
        return st.lists(values_of(options[0]), max_size=3)
    assert origin is dict, f"no strategy for {hint}"
    return st.dictionaries(values_of(options[0]), values_of(options[1]), max_size=3)


def events_of(cls):
    hints = typing.get_type_hints(cls)
    fields = {name: values_of(hints[name]) for name in (*own_fields(cls), "at_ns", "span_id", "step")}
    return st.builds(cls, **fields)


def there_and_back(*happened):
    return FrameDecoder().decode(frame_of("s", happened)).events


@pytest.mark.once
class TestRoundTrip:
    @pytest.mark.parametrize("cls", OURS, ids=lambda cls: cls.__name__)
    @settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(data=st.data())
    def test_equal(self, cls, data):
        """With any values, an event is read as it was written: the first, and the next of its type."""
        one, other = data.draw(events_of(cls)), data.draw(events_of(cls))
        assert there_and_back(one, other, one) == [one, other, one]
        to_json(one)

    @given(st.lists(st.one_of([events_of(cls) for cls in OURS]), max_size=10))
    def test_mixed(self, happened):
        """The same holds in a frame with other events."""
        assert there_and_back(*happened) == happened

    def test_nan(self):
        """A loss that is not a number stays one."""
        assert math.isnan(there_and_back(IterationEnded(duration_ns=1, loss=math.nan))[0].loss)


class TestDeclarations:
    @pytest.mark.parametrize("cls", OURS, ids=lambda cls: cls.__name__)
    def test_documented(self, cls):
        """Each class has a docstring."""
        assert (cls.__doc__ or "").strip().endswith((".", "``"))

    @pytest.mark.parametrize("cls", OURS, ids=lambda cls: cls.__name__)
    def test_own_name(self, cls):
        """Each has a wire name that begins with ours, and ends in the past tense."""
        assert cls.wire_name.startswith("trackside.")

    def test_spans(self):
        """Readers of spans get spans of all levels."""
        assert issubclass(IterationSpanEnded, SpanEnded)
        assert issubclass(ProfileSpanEnded, SpanEnded)
        assert IterationSpanEnded.priority < SpanEnded.priority == LIFECYCLE


EXPECTED: list[Event] = [
    SourceStarted(
        at_ns=T,
        span_id=0,
        step=-1,
        identity={
            "id": "00112233445566ff",
            "run_id": "job-17",
            "session_tag": "gpt",
            "perf_tags": ["a", "b"],
            "baseline": True,
            "attempt": 2,
            "role": "main",
            "host": "node-1",
            "pid": 77,
            "rank": 5,
            "local_rank": 1,
            "world_size": 8,
            "application": "train",
            "versions": {"python": "3.11.7"},
            "metadata": {"note": "ünï"},
            "parent": {"source_id": "fedcba9876543210", "span_id": 7},
            "anchor": {"mono_ns": 1000, "wall_ns": T, "uncertainty_ns": 50},
        },
    ),
    ClockAnchored(at_ns=T + 1, span_id=0, step=-1, mono_ns=1000, wall_ns=T, offset_ns=-5, uncertainty_ns=50),
    SpanStarted(
        at_ns=T + 2,
        step=-1,
        span_id=2,
        parent_span_id=1,
        name="training_loop",
        attributes={"epochs": 3, "lr": 0.5, "tags": ["x", None, True]},
    ),
    IterationEnded(
        at_ns=T + 3,
        parent_span_id=2,
        step=0,
        span_id=3,
        duration_ns=9_000_000,
        samples=32,
        tokens=4096,
        flops=1.5e12,
        loss=2.25,
    ),
    IterationEnded(
        at_ns=T + 5, parent_span_id=2, step=1, span_id=4, kind="validation", duration_ns=9_000_001, failed=True
    ),
    SpanEventAdded(at_ns=T + 6, span_id=2, step=1, name="oom", attributes={"device": "cuda:0", "bytes": 2**40}),
    CounterWindow(
        at_ns=T + 7,
        span_id=0,
        step=-1,
        name="train.loss",
        unit="nats",
        start_ns=T,
        end_ns=T + 7,
        count=3,
        values={"mean": 2.0, "p99": 2.5},
        sketch=b"\x00\x01\xff",
        total_count=30,
        total_sum=61.5,
    ),
    Heartbeat(
        at_ns=T + 8,
        span_id=2,
        step=1,
        sequence=4,
        counts={"logged": 12, "dropped": 1},
        open_spans={"MainThread": [2, "training_loop", T + 2]},
    ),
    EventsDropped(at_ns=T + 9, span_id=0, step=-1, by_type={"trackside.span.ended.profile": 7}, since_ns=T + 3),
    HandlerSuspended(
        at_ns=T + 10, span_id=0, step=-1, handler="JsonlSink", failures=5, error="OSError: no space", retry_after_s=30.0
    ),
    IterationSpanEnded(at_ns=T + 11, step=1, span_id=5, parent_span_id=2, name="data_loading", duration_ns=1_000),
    ProfileSpanEnded(
        at_ns=T + 12,
        step=1,
        span_id=6,
        parent_span_id=2,
        name="model_forward",
        duration_ns=2_000,
        attributes={"layer": -1},
    ),
    SpanEnded(
        at_ns=T + 13,
        step=-1,
        span_id=2,
        parent_span_id=1,
        name="training_loop",
        duration_ns=10,
        attributes={"epochs": 3},
        error={"type": "ValueError", "message": "nan", "traceback": "…"},
    ),
    UnknownEvent(
        at_ns=T + 14,
        span_id=1,
        step=7,
        name="acme.batch.skipped",
        fields={"reason": "nan", "indices": [1, 2, 3]},
        name_version=4,
    ),
    SourceEnded(at_ns=T + 15, span_id=0, step=-1, reason="ValueError"),
]


class TestVersionOne:
    def test_refused(self):
        """A frame of the version before is refused, by its number."""
        with pytest.raises(DecodeError, match="frame version 1; this release reads 2"):
            FrameDecoder().decode((DATA / "frame-v1.msgpack").read_bytes())


class TestVersionTwo:
    """A frame that is kept in a file: every later release reads it alike."""

    frame = FrameDecoder().decode((DATA / "frame-v2.msgpack").read_bytes())

    def test_events(self):
        """All its events are unchanged."""
        assert self.frame.events == EXPECTED

    def test_numbers(self):
        """They have their numbers: of seventeen, two were left out by a filter."""
        assert [happened.seq for happened in self.frame.events] == [
            *range(100, 104),
            *range(105, 116),
        ]
        assert (self.frame.first_seq, self.frame.last_seq) == (100, 116)

    def test_dropped(self):
        """Dropped events are counted."""
        assert self.frame.dropped == {"trackside.span.ended.profile": 7, "acme.batch.skipped": 1}

    def test_source(self):
        """Its source is the one that the stream introduced."""
        assert self.frame.source == Source(
            id="00112233445566ff",
            run_id="job-17",
            session_tag="gpt",
            perf_tags=("a", "b"),
            baseline=True,
            attempt=2,
            role="main",
            host="node-1",
            pid=77,
            rank=5,
            local_rank=1,
            world_size=8,
            application="train",
            versions={"python": "3.11.7"},
            metadata={"note": "ünï"},
            parent=Parent("fedcba9876543210", 7),
            anchor=clock.Anchor(1000, T, 50),
        )
        assert all(happened.source is self.frame.source for happened in self.frame.events)
