"""The compiled log() and wants() against the Python methods: the same calls, results, exceptions and counts."""

from __future__ import annotations

import sys

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from blocks import least_growth
from children import in_child
from implementations import needs_core
from trackside._implementation import native
from trackside.bus import Bus
from trackside.events import PROFILE, ConfigError, Event, RunsOn, event
from trackside.rules import every

pytestmark = needs_core


@event("test.compiled_log.base")
class Base(Event):
    number: int = 0


@event("test.compiled_log.plain")
class Plain(Base):
    pass


@event("test.compiled_log.changeable", priority=PROFILE)
class Changeable(Base):
    values: list[int] = attrs.field(factory=list)


CLASSES = (Base, Plain, Changeable)
LIMIT = 40
"""The events that may wait, fewer than a history may log at once."""
KINDS = ("calls", "fails", "fails at times", "exits", "logs", "asks", "leaves", "subscribes", "waits", "waits", "waits")


class PythonBus(Bus):
    """The compiled methods leave instances of subclasses to the Python methods."""


class Player:
    """Plays a history on one bus, and notes all that can be seen of it."""

    def __init__(self, bus):
        self.bus = bus
        self.seen = []
        self.waited = []
        """Calls on the dispatcher's thread."""
        self.subscriptions = []

    def handler(self, kind):
        """Return a new handler of *kind*."""
        place = len(self.subscriptions)
        calls = 0

        def handle(happened):
            nonlocal calls
            calls += 1
            number = happened.number if isinstance(happened, Base) else None
            (self.waited if kind == "waits" else self.seen).append((place, kind, type(happened).__name__, number))
            if kind == "fails" or (kind == "fails at times" and calls % 3 == 0):
                raise ValueError(calls)
            if kind == "exits" and calls % 4 == 1:
                raise SystemExit(calls)
            if kind == "logs" and happened.number < 60:
                self.bus.log(Plain(number=happened.number + 20))
            if kind == "asks":
                self.seen.append([self.bus.wants(cls) for cls in CLASSES])
            if kind == "leaves":
                self.subscriptions[place].close(10)
            if kind == "subscribes" and calls == 1:
                self.subscribe("calls", happened.number % 4)

        return handle

    def subscribe(self, kind, choice):
        """Subscribe a handler of *kind* to a class, to some of its events or to all events."""
        to = (*CLASSES, Base)[choice]
        handler = self.handler(kind)
        self.subscriptions.append(None)  # a place, for it may subscribe others before it is subscribed
        self.subscriptions[-1] = self.bus.subscribe(
            handler,
            to=to,
            keep=every(2) if choice == 3 else None,
            runs_on=RunsOn.DISPATCHER if kind == "waits" else None,
        )

    def act(self, verb, choice, kind):
        """Do one thing; return what came of it."""
        if verb == "subscribe":
            return self.subscribe(kind, choice)
        if verb == "leave":
            return self.subscriptions[choice].close(10) if choice < len(self.subscriptions) else None
        if verb == "wants":
            return [self.bus.wants(cls) for cls in (*CLASSES, Event, int)]
        if verb == "flood":
            for number in range(20 * choice):
                self.bus.log(CLASSES[number % 3](number=100 + number))
            return None
        return self.bus.log("no event" if choice == 3 else CLASSES[choice](number=choice))

    def play(self, history):
        """Play *history*; return what was seen, and the counts."""
        for verb, choice, kind in history:
            try:
                if verb == "close":
                    self.seen.append(self.bus.close(10))
                else:
                    with self.bus._dispatcher.draining:  # so that nobody makes room meanwhile
                        self.seen.append(self.act(verb, choice, kind))
            except (ConfigError, ValueError, SystemExit) as error:
                self.seen.append(repr(error))
            self.bus.flush(10)
        stats = self.bus.stats(10)
        counts = attrs.asdict(stats)
        counts.pop("queue_peak")  # as many as the dispatcher found at once
        counts["handlers"] = [{**attrs.asdict(each), "name": None} for each in stats.handlers]
        self.bus.close(10)
        return self.seen, self.waited, counts


verbs = st.sampled_from(["subscribe"] * 4 + ["log"] * 6 + ["leave", "wants", "flood", "flood"])
steps = st.tuples(verbs, st.integers(0, 3), st.sampled_from(KINDS))


class TestHistories:
    @given(history=st.lists(steps, max_size=30), is_strict=st.booleans(), closes=st.booleans())
    def test_alike(self, history, is_strict, closes):
        """Whatever handlers do, both call them alike, raise alike and count alike."""
        if closes:
            history = [*history, ("close", 0, "calls"), ("log", 0, "calls"), ("wants", 0, "calls")]
        compiled = Player(Bus(strict=is_strict, queue_limit=LIMIT)).play(history)
        assert compiled == Player(PythonBus(strict=is_strict, queue_limit=LIMIT)).play(history)


class TestPlain:
    def test_without_python(self, bus):
        """A plain callable is called from the caller's own line: no Python code of log() is between."""
        callers = []
        bus.subscribe(lambda happened: callers.append(sys._getframe(1).f_code), to=Plain)
        bus.log(Plain())  # the first resolves the route
        bus.log(Plain())
        assert callers[1] is sys._getframe().f_code

    def test_logged_within(self, bus):
        """A handler that logs to itself for ever is stopped at the depth at which the Python method stops it."""
        depths = []
        for each in (bus, PythonBus()):
            calls = []

            def handle(happened, each=each, calls=calls):
                calls.append(happened.number)
                each.log(Plain(number=happened.number + 1))

            each.subscribe(handle, to=Plain)
            for _ in range(3):  # more often than a first call, which only resolves the route
                each.log(Plain())
            depths.append((calls, each.stats().suppressed))
            each.close()
        assert depths[0] == depths[1]

    def test_metaclass(self):
        """A metaclass whose hash, computed in Python, has the routes forgotten leaves no memory that is read freed."""
        script = """
            from trackside.bus import Bus
            from trackside.events import Event, event

            bus = Bus()

            class Forgetting(type(Event)):
                def __hash__(cls):
                    bus._routes = {object(): () for _ in range(50)}
                    return 7

            Declared = event("test.hashed")(Forgetting("Declared", (Event,), {}))
            logged = []
            bus.subscribe(logged.append, to=Event)
            for _ in range(100):
                bus.log(Declared())
            print(len(logged))
        """
        assert in_child(script, PYTHONMALLOC="debug") == ("100\n", "")

    def test_nothing_is_kept(self, make_bus):
        """Thousands of events, also ones whose handlers fail, leave nothing allocated."""
        bus = make_bus()
        bus.subscribe(lambda happened: [happened], to=Plain)
        bus.subscribe(lambda happened: happened.nothing, to=Changeable)

        def run():
            for number in range(2_000):
                bus.log(Plain(number=number))
                bus.wants(Plain)
            for _ in range(20):
                bus.log(Changeable())

        assert least_growth(run) < 10


class Shifted:
    __slots__ = ("_seq", "_source", "added", "at_ns", "span_id", "step")


class TestLayout:
    def test_slots_elsewhere(self):
        """A class whose slots are in another order than that of the core's structures is refused by name."""
        with pytest.raises(SystemError, match="Shifted has its slot at_ns elsewhere than the core expects it"):
            native.compile_copy(len, Shifted)

    def test_no_slot(self):
        """So is one that lacks a slot."""
        with pytest.raises(SystemError, match="object has no slot _seq"):
            native.compile_copy(len, object)
