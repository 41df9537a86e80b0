"""Delivering plain events, compiled and in Python: the same events, rows, numbers and counts, and the same stops."""

from __future__ import annotations

import attrs
import hypothesis.strategies as st
import msgpack
from hypothesis import given

from blocks import least_growth
from implementations import needs_core
from trackside.bus._admission import Admission
from trackside.bus._delivery import FanOut, deliver_plain
from trackside.bus._frames import FrameBatcher
from trackside.bus._queue import Queue
from trackside.bus._subscribers import FrameSubscriber, ModelSubscriber
from trackside.events import Event, event, process_source
from trackside.rules import every
from trackside.wire import RowEncoder


@event("test.delivery.text")
class Text(Event):
    text: str = ""


@event("test.delivery.value")
class Value(Event):
    value: float = 0.0
    values: list[int] = attrs.field(factory=list)


@event("test.delivery.ruled")
class Ruled(Event):
    """Its handler has a rule, so it is not plain."""

    number: int = 0


CLASSES = (Text, Value, Ruled)
SOURCE = process_source()


class Sink:
    """Accepts frames; none is cut here."""

    def accept(self, frame, *, events):
        """Refuse: a frame here is a mistake."""
        raise AssertionError((frame, events))


def subscriber(cls, handler, keep=None, **options):
    return cls(handler, name="a test's", wants=lambda _: True, keep=keep, publish=lambda _: None, **options)


class Bench:
    """A queue, the fan-outs of the classes, and a batch."""

    python = staticmethod(getattr(deliver_plain, "__wrapped__", deliver_plain))

    def __init__(self, items, room_bytes, known):
        self.queue = Queue(items)
        self.batcher = FrameBatcher()
        self.batcher.batch, self.batcher.first_seq, self.batcher.room_bytes = 3, 70_000, room_bytes
        self.frames = [subscriber(FrameSubscriber, Sink(), filter_key=key) for key in ("one", "another")]
        for each in self.frames:
            self.batcher.join(each)
        self.model = subscriber(ModelSubscriber, lambda _: None)
        ruled = subscriber(ModelSubscriber, lambda _: None, every(2))
        encoder = RowEncoder()
        self.fan_outs = {}
        for cls, wanting in (
            (Text, [*self.frames, self.model]),
            (Value, self.frames[:1]),
            (Ruled, [self.model, ruled]),
        ):
            schema = encoder.schema_of(cls)
            admission = Admission(cls, self.queue, 100, lambda: None)
            self.fan_outs[cls] = FanOut(admission, wanting, schema, encoder.encoding(schema))
            self.fan_outs[cls].batch = 3 if cls in known else 2

    def play(self, deliver, most):
        """Deliver until the queue is empty: what *deliver* leaves to Python, and take away what Python leaves, too."""
        while self.queue:
            before = len(self.queue)
            count = deliver(self.queue, self.fan_outs, self.batcher, SOURCE, min(most, before))
            assert before - len(self.queue) == count
            if count < most and self.queue and not self.python(self.queue, self.fan_outs, self.batcher, SOURCE, 1):
                self.queue.popleft()
        return self.outcome()

    def outcome(self):
        """Return all that delivering changes."""
        rows = [list(each.group.rows) for each in self.frames]
        taken = [self.fan_outs[cls].admission.taken for cls in CLASSES]
        pending = [(each.seq, each.source) for each in self.model.pending]
        return rows, taken, pending, self.batcher.offset, self.batcher.room_bytes


UNENCODABLE = 1 << 70
items = st.lists(
    st.one_of(
        st.builds(Text, text=st.text(max_size=40)),
        st.builds(Text, text=st.just("x" * 2_000)),
        st.builds(Value, value=st.floats(allow_nan=False), values=st.lists(st.integers(), max_size=3)),
        st.builds(Value, step=st.just(UNENCODABLE)),
        st.builds(Ruled, number=st.integers(-9, 9)),
        st.just("no event"),
    ),
    max_size=30,
)


@needs_core
class TestCompiled:
    @given(items, st.integers(-5, 3_000), st.sets(st.sampled_from(CLASSES)), st.integers(1, 12))
    def test_does_what_the_python_function_does(self, queued, room_bytes, known, most):
        """The same rows, numbers and counts come of it; what the compiled one leaves in the queue, Python delivers."""
        outcomes = []
        for deliver in (deliver_plain, Bench.python):
            own = [attrs.evolve(each) if isinstance(each, Event) else each for each in queued]
            outcomes.append(Bench([*own, *own[:3]], room_bytes, known).play(deliver, most))  # some are logged twice
        assert outcomes[0] == outcomes[1]

    def test_leaves_other_calls_to_the_python_function(self):
        """Keywords are the Python function's."""
        bench = Bench([Text(text="a")], 1_000, {Text})
        arguments = {
            "queue": bench.queue,
            "fan_outs": bench.fan_outs,
            "batcher": bench.batcher,
            "source": SOURCE,
            "most": 1,
        }
        assert deliver_plain(**arguments) == 1

    def test_leaves_no_memory_behind(self):
        """Delivered events leave nothing once their rows and the model's list are gone."""
        bench = Bench([], 0, {Text})  # once: an encoder generates code, of which a measurement of coverage keeps some

        def run():
            bench.queue.extend(Text(text=f"{number}") for number in range(500))
            bench.batcher.offset, bench.batcher.room_bytes = 0, 100_000
            assert deliver_plain(bench.queue, bench.fan_outs, bench.batcher, SOURCE, 500) == 500
            for held in (*(each.group.rows for each in bench.frames), bench.model.pending):
                held.clear()

        assert least_growth(run) < 10


class TestDeliverPlain:
    def test_numbers_events_and_appends_each_to_what_wants_it(self):
        """Events have their place in the frame, and the model's their number in the stream."""
        bench = Bench(
            [Text(text="a", at_ns=5), Value(value=0.5, at_ns=6), Text(text="b", at_ns=7)], 1_000, set(CLASSES)
        )
        assert deliver_plain(bench.queue, bench.fan_outs, bench.batcher, SOURCE, 3) == 3
        both, one = ([msgpack.unpackb(row) for row in each.group.rows] for each in bench.frames)
        # Type, place in the frame, time, span and step; then the fields.
        assert [(row[0], row[1], row[2], *row[5:]) for row in both] == [
            (0, 0, 5, "a"),
            (1, 1, 6, 0.5, []),
            (0, 2, 7, "b"),
        ]
        assert [row[1] for row in one] == [0, 2]
        assert [(each.text, each.seq) for each in bench.model.pending] == [("a", 70_000), ("b", 70_002)]

    def test_leaves_an_event_that_has_a_number_in_the_queue(self):
        """It was logged before: the dispatcher makes a copy, for those who hold it with its first number."""
        bench = Bench([twice := Text(text="a"), Text(text="b"), twice], 1_000, {Text})
        assert deliver_plain(bench.queue, bench.fan_outs, bench.batcher, SOURCE, 3) == 2
        assert list(bench.queue) == [twice]

    def test_stops_when_the_batch_is_full(self):
        """The row that passes the limit is the last."""
        bench = Bench([Text(text="a" * 100) for _ in range(9)], 250, {Text})
        # A row has some 120 bytes and 10 for the frame's limit of rows: two fit, and the third passes the limit.
        assert deliver_plain(bench.queue, bench.fan_outs, bench.batcher, SOURCE, 9) == 2
        assert len(bench.queue) == 7

    def test_leaves_an_event_that_cannot_be_encoded_in_the_queue(self):
        """The dispatcher comes to it, and counts it."""
        bench = Bench([Text(text="a"), Value(step=UNENCODABLE), Text(text="b")], 1_000, set(CLASSES))
        assert deliver_plain(bench.queue, bench.fan_outs, bench.batcher, SOURCE, 3) == 1
        assert [type(each) for each in bench.queue] == [Value, Text]
