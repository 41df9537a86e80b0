"""The span tree: from any events, in any order, in bounded memory, the same wherever it is built."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import attrs
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trackside.events
from processes import numbered, of
from trackside.bus import Bus
from trackside.events import (
    ConfigError,
    DecodeError,
    Event,
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
    SpanOutOfOrder,
    SpanStarted,
    event,
)
from trackside.handlers import Capture, EventLog, feed, replay
from trackside.handlers.models import SpanBuilder

pytestmark = pytest.mark.once

HERE = Path(__file__).parent
PACKAGE = Path(trackside.events.__file__).parents[2]
RANK0 = Source(id="aaaaaaaaaaaaaaaa", run_id="r", rank=0)
RANK1 = Source(id="bbbbbbbbbbbbbbbb", run_id="r", rank=1)


def started(number, parent, name, at_ns=0, **attributes):
    return SpanStarted(at_ns=at_ns, step=-1, span_id=number, parent_span_id=parent, name=name, attributes=attributes)


def ended(number, parent, name, at_ns=0, duration_ns=1, *, kind=SpanEnded, error=None, **attributes):
    return kind(
        at_ns=at_ns,
        span_id=number,
        parent_span_id=parent,
        step=-1,
        name=name,
        duration_ns=duration_ns,
        attributes=attributes,
        error=error,
    )


def iteration(number, parent, step, at_ns=0, duration_ns=1, **more):
    return IterationEnded(
        at_ns=at_ns, parent_span_id=parent, step=step, span_id=number, duration_ns=duration_ns, **more
    )


def built(*events, source=RANK0, **limits):
    """Return the tree that a builder makes of *events* of one source."""
    (builder,) = feed(numbered(events, source), SpanBuilder(**limits))
    (found,) = builder.result().sources
    return found


def tree(spans):
    """Return the spans as an indented list of names."""
    return ["  " * view.depth + view.name for view in spans.spans]


class TestTree:
    def test_nesting(self):
        """Each span stands before those inside it, in order of their starts."""
        found = built(
            started(1, 0, "application", 0),
            started(2, 1, "model_initialization", 10),
            ended(2, 1, "model_initialization", 20, 10),
            started(3, 1, "training_loop", 30),
            ended(5, 4, "model_forward", 45, 4, kind=ProfileSpanEnded),
            ended(6, 4, "model_backward", 49, 4, kind=ProfileSpanEnded),
            iteration(4, 3, 0, 50, 10),
            ended(3, 1, "training_loop", 60, 30),
            ended(1, 0, "application", 70, 70),
        )
        assert tree(found) == [
            "application",
            "  model_initialization",
            "  training_loop",
            "    training_single_iteration",
            "      model_forward",
            "      model_backward",
        ]

    def test_span(self):
        """A span has all its recorded facts."""
        found = built(started(1, 0, "evaluate", 100, epoch=1), ended(1, 0, "evaluate", 170, 70, epoch=1, score=0.5))
        (view,) = found.spans
        assert (view.id, view.parent_id, view.priority, view.start_ns, view.duration_ns) == (1, 0, "lifecycle", 100, 70)
        assert (view.attributes, view.error, view.failed) == ({"epoch": 1, "score": 0.5}, None, False)

    def test_iteration(self):
        """An iteration is a span with its samples, tokens and loss."""
        (view,) = built(iteration(4, 3, 7, 170, 70, samples=32, loss=0.5)).spans
        assert (view.name, view.step, view.start_ns, view.duration_ns) == ("training_single_iteration", 7, 100, 70)
        assert (view.parent_id, view.priority, view.attributes) == (3, "iteration", {"samples": 32, "loss": 0.5})

    @pytest.mark.parametrize(
        ("kind", "name"),
        [
            ("training", "training_single_iteration"),
            ("validation", "validation_single_iteration"),
            ("testing", "testing_single_iteration"),
            ("warmup", "warmup_single_iteration"),
        ],
    )
    def test_kinds(self, kind, name):
        """Each type of event has its span's name."""
        assert built(iteration(1, 0, 0, kind=kind)).spans[0].name == name

    def test_open(self):
        """A span that did not end has no duration."""
        (view,) = built(started(1, 0, "application", 100)).spans
        assert (view.duration_ns, view.start_ns) == (None, 100)

    def test_deep(self):
        """A tree of any depth is built."""
        events = [started(number, number - 1, "x", number) for number in range(1, 5_001)]
        assert [view.depth for view in built(*events).spans] == list(range(5_000))

    def test_orphan(self):
        """A span whose parent is unknown is a root."""
        assert tree(built(ended(7, 5, "x", 10), started(1, 0, "application", 20))) == ["x", "application"]

    @pytest.mark.parametrize("parents", [{1: 1}, {1: 2, 2: 1}, {1: 2, 2: 3, 3: 1, 4: 3, 5: 0}])
    def test_circle(self, parents):
        """Spans that are each other's parents do not make an endless loop."""
        events = [started(number, parent, "x") for number, parent in parents.items()]
        assert sorted(view.id for view in built(*events).spans) == sorted(parents)

    def test_events(self):
        """Events within a span are attached to it, whether its start was read before or not."""
        found = built(
            started(1, 0, "application"),
            SpanEventAdded(at_ns=5, span_id=1, name="warmed up", attributes={"s": 3}),
            SpanEventAdded(at_ns=6, span_id=2, name="late batch"),
            iteration(2, 1, 0, 10, 5),
            SpanEventAdded(at_ns=12, span_id=1, name="saved"),
            SpanEventAdded(at_ns=13, span_id=3, name="cache missed"),
            ended(3, 1, "tokenize", 14, kind=IterationSpanEnded),
        )
        recorded = {view.name: [(one.name, one.at_ns, one.attributes) for one in view.events] for view in found.spans}
        assert recorded == {
            "application": [("warmed up", 5, {"s": 3}), ("saved", 12, {})],
            "training_single_iteration": [("late batch", 6, {})],
            "tokenize": [("cache missed", 13, {})],
        }

    def test_identity(self):
        """Each process has its source, and the span of the process that started it."""
        worker = attrs.evolve(RANK1, role="worker", host="node1", pid=7, attempt=2, parent=Parent(RANK0.id, 17))
        found = built(
            SourceStarted(at_ns=5, identity={}),
            started(1, 0, "x", 6),
            SourceEnded(at_ns=9, reason="exit"),
            source=worker,
        )
        assert (found.source_id, found.rank, found.role, found.host, found.attempt) == (
            RANK1.id,
            1,
            "worker",
            "node1",
            2,
        )
        assert (found.parent_source_id, found.parent_span_id) == (RANK0.id, 17)
        assert (found.started_ns, found.ended_ns, found.end_reason, found.last_ns) == (5, 9, "exit", 9)

    def test_order_of_processes(self):
        """Processes are ordered by run, attempt and rank; main before workers."""
        sources = [
            Source(id="d", run_id="r", attempt=1, rank=0),
            Source(id="c", run_id="r", rank=1),
            Source(id="b", run_id="r", rank=0, role="worker"),
            Source(id="a", run_id="r", rank=0),
        ]
        builder = SpanBuilder()
        for source in sources:
            feed([of(source, started(1, 0, "x"))], builder)
        assert [found.source_id for found in builder.result().sources] == ["a", "b", "c", "d"]


class TestErrors:
    ERROR = {"type": "ValueError", "message": "no", "traceback": "…"}

    def test_origin(self):
        """The span that raised has the traceback; those around it failed too, and refer to it."""
        found = built(
            started(1, 0, "training_loop", 0),
            ended(2, 1, "model_forward", 10, kind=ProfileSpanEnded, error=self.ERROR),
            ended(1, 0, "training_loop", 20, error={"type": "ValueError", "message": "no", "raised_in": "2"}),
        )
        assert [(view.name, view.failed) for view in found.spans] == [("training_loop", True), ("model_forward", True)]
        assert [(error.span_id, error.name, error.error) for error in found.errors] == [
            (2, "model_forward", self.ERROR)
        ]

    def test_of_an_iteration(self):
        """The error of an iteration comes as an event on it."""
        attributes = {"exception_type": "ValueError", "exception_message": "no", "exception_traceback": "…"}
        found = built(
            SpanEventAdded(at_ns=9, span_id=4, step=7, name="error", attributes=attributes),
            iteration(4, 3, 7, 10, failed=True),
        )
        assert (found.spans[0].error, found.spans[0].failed) == (self.ERROR, True)
        assert [(error.span_id, error.step) for error in found.errors] == [(4, 7)]

    def test_latest(self):
        """Of many errors the latest are kept."""
        found = built(*(ended(number, 0, "x", number, error=self.ERROR) for number in range(1, 301)))
        assert [error.span_id for error in found.errors] == list(range(201, 301))


class TestOpen:
    def test_after_a_crash(self):
        """Long spans without an end were open when the process was last heard of."""
        found = built(
            started(1, 0, "application", 0),
            started(2, 1, "checkpoint_load", 10),
            ended(2, 1, "checkpoint_load", 20, 10),
            started(3, 1, "training_loop", 30),
            iteration(4, 3, 0, 50, 10),
        )
        assert [(span.name, span.start_ns, span.seen_ns) for span in found.open] == [
            ("application", 0, 50),
            ("training_loop", 30, 50),
        ]
        assert (found.ended_ns, found.last_ns) == (None, 50)

    def test_short_ones(self):
        """Short open spans are known from the last heartbeat."""
        found = built(
            started(1, 0, "application", 0),
            Heartbeat(
                at_ns=40, sequence=0, open_spans={"MainThread": [5, "data_loading", 35], "t": [1, "application", 0]}
            ),
            iteration(7, 1, 0, 60, 10),
        )
        assert [(span.name, span.id, span.start_ns, span.seen_ns, span.thread) for span in found.open] == [
            ("application", 1, 0, 60, ""),
            ("data_loading", 5, 35, 40, "MainThread"),
        ]

    def test_short_one_that_ended(self):
        """A span that ended since is not open."""
        found = built(
            Heartbeat(at_ns=40, sequence=0, open_spans={"MainThread": [5, "data_loading", 35]}),
            ended(5, 0, "data_loading", 50, kind=ProfileSpanEnded),
        )
        assert found.open == ()

    def test_short_one_that_ended_before(self):
        """Nor is one that ended while the heartbeat was built."""
        found = built(
            ended(5, 0, "data_loading", 39, kind=ProfileSpanEnded),
            Heartbeat(at_ns=40, sequence=0, open_spans={"MainThread": [5, "data_loading", 35]}),
        )
        assert found.open == ()

    def test_later_heartbeat(self):
        """A later heartbeat replaces an earlier one."""
        found = built(
            Heartbeat(at_ns=40, sequence=0, open_spans={"MainThread": [5, "data_loading", 35]}),
            Heartbeat(at_ns=50, sequence=1, open_spans={"MainThread": [9, "model_forward", 45]}),
        )
        assert [span.name for span in found.open] == ["model_forward"]

    @pytest.mark.parametrize("odd", [[], [1], ["x", "y", "z"], [[1], "x", 2], [1, "x", None], [1, 2, 3]])
    def test_odd_heartbeat(self, odd):
        """A heartbeat without spans adds none."""
        assert built(Heartbeat(at_ns=40, sequence=0, open_spans={"t": odd})).open == ()


class TestTotals:
    def test_by_name(self):
        """Of all spans of a name count, failures, total, shortest and longest are known."""
        durations = [30, 10, 20]
        events = [
            iteration(number, 0, number, 100 * number, duration, failed=duration == 10)
            for number, duration in enumerate(durations, start=1)
        ]
        (totals,) = built(*events).totals
        assert attrs.astuple(totals) == ("training_single_iteration", 3, 1, 60, 10, 30)

    def test_without_an_id(self):
        """An iteration that is not to be read as a span is only in these counts."""
        found = built(iteration(0, 0, 1, 100, 10))
        assert (found.spans, found.totals[0].count) == ((), 1)

    def test_many_names(self):
        """Names beyond the thousandth share one."""
        found = built(*(ended(number, 0, f"n{number}", number) for number in range(1, 1_501)))
        others = next(totals for totals in found.totals if totals.name == "(others)")
        assert (len(found.totals), others.count) == (1_001, 500)


class TestDisorder:
    def problems(self, found):
        """Return the spans out of order, and how many there were."""
        return [(one.name, one.problem, one.count) for one in found.malformed]

    def test_end_without_a_start(self):
        """A long span whose start was not seen is built from its end, and this is reported."""
        found = built(ended(1, 0, "application", 170, 70))
        assert (found.spans[0].start_ns, found.spans[0].duration_ns) == (100, 70)
        assert self.problems(found) == [("application", "ended, and its start was not seen", 1)]

    def test_twice(self):
        """A duplicate event counts once."""
        found = built(
            *(started(1, 0, "x", 0), started(1, 0, "x", 5)),
            *(ended(1, 0, "x", 9, 9), ended(1, 0, "x", 9, 9), started(1, 0, "x", 0)),
        )
        assert (found.totals[0].count, len(found.spans), found.open) == (1, 1, ())
        assert self.problems(found) == [("x", "ended twice", 1), ("x", "started twice", 2)]

    def test_negative(self):
        """A negative duration is none."""
        found = built(ended(1, 0, "x", 100, -5, kind=IterationSpanEnded), iteration(2, 0, 0, 100, -5))
        assert [view.duration_ns for view in found.spans] == [0, 0]
        assert [problem for _, problem, _ in self.problems(found)] == ["ended before it started"] * 2

    def test_noticed_before(self):
        """Spans that an instrument found out of order are reported."""
        found = built(*(SpanOutOfOrder(at_ns=number, name="x", problem="was closed again") for number in (3, 5)))
        assert self.problems(found) == [("x", "was closed again", 2)]
        assert found.malformed[0].last_ns == 5

    def test_parent_ends_first(self):
        """A span that outlives its parent stays its child."""
        found = built(
            started(1, 0, "outer", 0),
            started(2, 1, "inner", 5),
            ended(1, 0, "outer", 10, 10),
            ended(2, 1, "inner", 20, 15),
        )
        assert (tree(found), self.problems(found)) == (["outer", "  inner"], [])


class TestRoom:
    def test_short(self):
        """Of the short spans the latest of each level are kept."""
        events = []
        for number in range(1, 1_001):
            events.append(ended(2 * number, 2 * number + 1, "model_forward", number, kind=ProfileSpanEnded))
            events.append(iteration(2 * number + 1, 0, number, number))
        found = built(*events, max_short=10)
        assert [view.step for view in found.spans if view.priority == "iteration"] == list(range(991, 1_001))
        assert (len(found.spans), found.forgotten) == (20, 1_980)

    def test_long(self):
        """So it is with the long ones that ended; open ones stay."""
        events = [started(1, 0, "application", 0)]
        for number in range(2, 102):
            events += [
                started(number, 1, "checkpoint_save_sync", number),
                ended(number, 1, "checkpoint_save_sync", number),
            ]
        found = built(*events, max_long=10)
        assert [view.id for view in found.spans] == [1, *range(92, 102)]
        assert (found.forgotten, found.totals[0].count) == (90, 100)

    @pytest.mark.hang_guard(300)
    def test_a_million_iterations(self, scaled):
        """Memory does not grow with the job."""
        builder = SpanBuilder()

        def run(first, count):
            for number in range(first, first + count):
                part = ended(2 * number, 2 * number + 1, "model_forward", number, kind=ProfileSpanEnded)
                whole = iteration(2 * number + 1, 0, number, number, samples=32, loss=0.5)
                feed(numbered([part, whole], RANK0), builder)

        run(1, 2_000)
        tracemalloc.start()
        run(2_001, 2_000)
        before = tracemalloc.get_traced_memory()[0]
        run(4_001, scaled(1_000_000))
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert after - before < 100_000
        assert builder.result().sources[0].totals[0].count == 4_000 + scaled(1_000_000)

    def test_waiting_events(self):
        """Events on spans that never end are forgotten, the oldest first."""
        builder = SpanBuilder()
        feed(
            numbered((SpanEventAdded(at_ns=1, span_id=number, name="x") for number in range(1, 10_000)), RANK0), builder
        )
        assert len(builder.dump()["sources"][0][1]["waiting"]) == 64

    @pytest.mark.parametrize("limits", [{"max_long": 0}, {"max_short": -1}])
    def test_wrong(self, limits):
        """A limit below 1 is refused."""
        with pytest.raises(ConfigError, match="give a whole number of at least 1"):
            SpanBuilder(**limits)


@event("test.spans.derived", derived=True)
class Derived(Event):
    """A derived event."""


class TestModel:
    def test_missed(self):
        """Missed events are reported."""
        builder = SpanBuilder()
        builder.missed(Source.unknown(""), 3)
        builder.missed(Source.unknown(""), 4)
        assert builder.result().missed == 7

    def test_derived(self):
        """Derived events are not read."""
        builder = SpanBuilder()
        feed([of(RANK0, Derived(at_ns=5))], builder)
        assert builder.result().sources == ()

    def test_json(self):
        """The result is JSON, with any attributes."""
        odd = {"path": Path("/x"), "bytes": b"\x00", "tuple": (1, 2), "object": object(), "nested": {"a": [b"b"]}}
        found = built(ended(1, 0, "x", 10, **odd))
        (span,) = json.loads(json.dumps(attrs.asdict(found)))["spans"]
        assert span["attributes"] == {
            "path": "/x",
            "bytes": "AA==",
            "tuple": [1, 2],
            "object": None,
            "nested": {"a": ["Yg=="]},
        }

    def test_dump_and_load(self):
        """Its state can be sent over the wire, and a model that loads it goes on the same."""
        events = history(random.Random(5), RANK0, 300)
        for cut in (0, 1, 100, 299):
            whole, first, second = SpanBuilder(max_short=5), SpanBuilder(max_short=5), SpanBuilder(max_short=5)
            feed(events, whole)
            feed(events[:cut], first)
            second.load(msgpack.unpackb(msgpack.packb(first.dump())))
            feed(events[cut:], second)
            assert second.result() == whole.result()

    @pytest.mark.parametrize("odd", [{}, [], None, {"version": 1, "missed": 0, "sources": [["a", {}]]}, {"version": 2}])
    def test_odd_state(self, odd):
        """Data that is no state of it is refused, and changes nothing."""
        builder = SpanBuilder()
        feed([of(RANK0, started(1, 0, "x"))], builder)
        before = builder.result()
        with pytest.raises(DecodeError):
            builder.load(odd)
        assert builder.result() == before


def history(rng, source, count):
    """Return *count* events of one source: spans that open, close, fail, repeat and get lost."""
    now, number, stack, events = 0, 0, [], []
    while len(events) < count:
        now += rng.randrange(1, 10)
        parent = stack[-1][0] if stack else 0
        what = rng.randrange(9)
        if what == 0 or not stack:
            number += 1
            stack.append((number, parent, f"phase{rng.randrange(4)}", now))
            events.append(started(*stack[-1][:3], now, n=number))
        elif what == 1:
            closed = stack.pop(rng.randrange(len(stack)))
            error = {"type": "E", "message": "", "traceback": ""} if rng.random() < 0.2 else None
            events.append(ended(*closed[:3], now, now - closed[3], error=error, n=closed[0]))
        elif what in {2, 3}:
            number += 1
            events.append(ended(number, parent, "model_forward", now, 1, kind=ProfileSpanEnded))
        elif what in {4, 5}:
            number += 1
            events.append(iteration(number, parent, number, now, 3, samples=8, failed=rng.random() < 0.1))
        elif what == 6:
            events.append(SpanEventAdded(at_ns=now, span_id=rng.randrange(number + 2), step=-1, name="e"))
        elif what == 7:
            spans = {"MainThread": [number + 1, "model_forward", now]}
            events.append(Heartbeat(at_ns=now, span_id=0, step=-1, sequence=0, open_spans=spans))
        elif events and rng.random() < 0.5:
            events.append(attrs.evolve(rng.choice(events)))
    return numbered(events, source)


class TestSameEverywhere:
    @given(st.randoms(use_true_random=False))
    def test_interleaving(self, rng):
        """The state depends on each process's own order, never on the interleaving."""
        histories = [history(rng, source, 60) for source in (RANK0, RANK1, Source(id="c", run_id="r", rank=2))]
        (expected,) = feed([one for events in histories for one in events], SpanBuilder(max_short=4, max_long=4))
        order = [index for index, events in enumerate(histories) for _ in events]
        rng.shuffle(order)
        iterators = [iter(events) for events in histories]
        (found,) = feed([next(iterators[index]) for index in order], SpanBuilder(max_short=4, max_long=4))
        assert found.result() == expected.result()

    def test_live_and_replay(self, tmp_path, rng):
        """Replayed from the log, it equals the one in the job."""
        live, seen = SpanBuilder(), Capture()
        with Bus(source=RANK0) as bus:
            for handler in (live, EventLog(tmp_path), seen):
                bus.subscribe(handler)
            for one in history(rng, RANK0, 2_000):
                bus.log(attrs.evolve(one))
            assert bus.flush(10) is True
        (later,) = feed(replay(tmp_path), SpanBuilder())
        assert len(seen) == 2_000
        assert later.result() == live.result()
        assert later.result().sources[0].ended_ns is not None


class TestKilled:
    @pytest.mark.hang_guard(240)
    def test_any_moment(self, tmp_path, rng, scaled):
        """
        Killed at any moment, the log shows which long spans were open and since when, and of short ones those of the
        last heartbeat.
        """
        for attempt in range(scaled(60)):
            directory = tmp_path / str(attempt)
            child = subprocess.Popen(
                [sys.executable, str(HERE / "killed_trainer.py"), str(directory)],
                env={**os.environ, "PYTHONPATH": str(PACKAGE)},
                stdout=subprocess.PIPE,
                text=True,
            )
            recorded = []
            try:
                recorded += [json.loads(child.stdout.readline()) for _ in range(rng.randrange(1, 40))]
                time.sleep(rng.random() * 0.02)  # the moment is meant to be any
            finally:
                child.send_signal(signal.SIGKILL)
                with child.stdout:  # communicate(timeout=…) would leave out what readline() read ahead
                    rest = child.stdout.read()
                child.wait(30)
            recorded += [json.loads(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
            (found,) = feed(replay(directory), SpanBuilder())[0].result().sources
            long = [[span.name, span.start_ns] for span in found.open if not span.thread]
            short = [[span.name, span.start_ns] for span in found.open if span.thread]
            # All spans flushed before the last printed line are there; later ones may be, up to the next line.
            last = recorded[-1]
            assert long[:2] == last["long"][:2]
            assert [name for name, _ in long[:2]] == ["application", "training_loop"]
            if last["short"]:
                assert short in ([], last["short"])
                assert [name for name, _ in long[2:]] in ([], ["validation_loop"], ["checkpoint_save_sync"])
            else:
                assert long[2:] in ([], last["long"][2:])
                assert [name for name, _ in short] in ([], ["model_forward"])
            assert (found.ended_ns, found.last_ns >= max(start_ns for _, start_ns in long)) == (None, True)
