"""The compiled initializer of events against attrs's own: the same events, errors and class attributes."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import inspect
import pickle
import sys
import threading
import weakref
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from blocks import least_growth
from implementations import needs_core
from trackside.events import Event, IterationEnded, SpanEnded, SpanStarted, ambient, clock, event

pytestmark = needs_core

made: list[str] = []


@event("test.built.plain")
class Plain(Event):
    index: int
    value: float = 1.5
    items: list[int] = attrs.field(factory=list)
    options: dict[str, Any] = attrs.field(factory=dict)
    name: str = attrs.field(factory=str)


@event("test.built.finished")
class Finished(Event):
    index: int

    def __attrs_post_init__(self):
        made.append(f"{self.index} at {self.at_ns}")


@event("test.built.own")
class Own(Event):
    index: int

    def __init__(self, index):
        self.__attrs_init__(index=index * 2)


@event("test.built.converted")
class Converted(Event):
    index: int = attrs.field(converter=int)


class Undeclared(Plain):
    """A subclass that was not declared, with an initializer of its own."""

    def __init__(self):
        super().__init__(index=7)


def by_attrs(cls, *args, **keywords):
    """Build an event by the Python methods, as a class without the compiled initializer does."""
    happened = object.__new__(cls)
    happened.__init__(*args, **keywords)
    return happened


def outcome(build, cls, args, keywords):
    """Return the fields of the built event, or the error."""
    try:
        return attrs.asdict(build(cls, *args, **keywords))
    except (TypeError, ValueError) as error:  # the latter is a converter's
        return str(error)


def call(cls, *args, **keywords):
    return cls(*args, **keywords)


values = st.integers() | st.none() | st.text(max_size=3) | st.just(Event.__init__.__defaults__[0])
names = [
    "at_ns",
    "span_id",
    "step",
    "parent_span_id",
    "index",
    "value",
    "items",
    "options",
    "name",
    "duration_ns",
    "no",
]


class TestSame:
    @given(
        cls=st.sampled_from([Plain, Finished, IterationEnded, SpanEnded, SpanStarted, Converted, Own]),
        args=st.lists(values, max_size=4),
        keywords=st.dictionaries(st.sampled_from(names), values, max_size=6),
        around=st.sampled_from([(0, -1), (5, 3), (2**70, 2**70)]),
    )
    def test_any_call(self, cls, args, keywords, around):
        """For any arguments, the event, or the error, is that of attrs."""

        def build(how):
            ambient.set(around)
            with clock.installed(lambda: 7, lambda: 1_000):
                return outcome(how, cls, args, keywords)

        results = [contextvars.copy_context().run(build, how) for how in (call, by_attrs)]
        assert results[0] == results[1]

    def test_time(self):
        """The time is that of the process's clock."""
        before = by_attrs(Plain, index=1).at_ns
        between = Plain(index=1).at_ns
        assert before <= between <= by_attrs(Plain, index=1).at_ns

    def test_clock_of_a_test(self):
        """A clock that a test installs is read, and the real one afterwards."""
        with clock.installed(lambda: 7, lambda: 5_000):
            assert Plain(index=1).at_ns == 5_000
        assert Plain(index=1).at_ns > 10**18

    def test_surroundings_of_tasks(self):
        """Each asyncio task has its own span and step."""

        async def of_task(number):
            ambient.set((number, number + 1))
            await asyncio.sleep(0)
            happened = Plain(index=1)
            return happened.span_id, happened.step

        async def main():
            return await asyncio.gather(*(of_task(number) for number in range(3)))

        assert asyncio.run(main()) == [(0, 1), (1, 2), (2, 3)]


class TestTheClass:
    def test_attrs(self):
        """The functions of attrs work: fields, evolve, asdict."""
        happened = attrs.evolve(Plain(index=1, at_ns=5), index=2)
        assert (happened.index, happened.at_ns) == (2, 5)
        assert attrs.asdict(happened)["items"] == []
        assert [field.name for field in attrs.fields(Plain)][:4] == ["at_ns", "span_id", "step", "index"]

    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))])
    def test_copies(self, copied):
        """Copies and pickles are equal to their originals."""
        happened = Plain(index=1, items=[1, 2])
        assert copied(happened) == happened

    def test_signature(self):
        """Its signature is that of attrs's initializer."""
        assert list(inspect.signature(Plain).parameters) == [field.name for field in attrs.fields(Plain)]

    def test_own_initializer(self):
        """An initializer of the class's own is called."""
        assert Own(index=2).index == 4

    def test_undeclared_subclass(self):
        """So is that of a subclass that was not declared."""
        assert (Undeclared().index, type(Undeclared())) == (7, Undeclared)

    def test_after_filling(self):
        """A class's own method for the end of building sees the whole event, once."""
        made.clear()
        Finished(index=3, at_ns=9)
        assert made == ["3 at 9"]

    def test_factories_are_called_each_time(self):
        """No two events share an object that a factory makes."""
        first, second = Plain(index=1), Plain(index=1)
        assert first.items is not second.items
        assert first.options is not second.options

    def test_factory_that_raises(self):
        """An exception raised by a factory comes out, and nothing is kept."""

        @event("test.built.failing")
        class Failing(Event):
            first: list[int] = attrs.field(factory=list)
            second: int = attrs.field(factory=range)

        with pytest.raises(TypeError, match="range expected"):
            Failing()

    def test_initializer_replaced(self, monkeypatch):
        """An initializer that replaces attrs's is called from then on."""
        assert Plain(index=1).index == 1

        def other(self, index):
            self.index = -index

        monkeypatch.setattr(Plain, "__init__", other)
        assert Plain(index=1).index == -1
        monkeypatch.undo()
        assert Plain(index=1).index == 1

    def test_initializer_replaced_again(self):
        """So is one that is where attrs's was in memory."""

        @event("test.built.replaced.again")
        class Replaced(Event):
            index: int

        assert Replaced(index=1).index == 1
        place = id(Replaced.__init__)
        Replaced.__init__ = print
        gc.collect()
        others = []
        while not others or (id(others[-1]) != place and len(others) < 10_000):
            others.append(lambda self, index: setattr(self, "index", -index))
        Replaced.__init__ = others[-1]
        assert Replaced(index=1).index == -1

    def test_no_python_is_run(self):
        """A class whose construction is plain is built without running Python code, also after its first event."""
        ran = []
        sys.setprofile(lambda frame, kind, _: ran.append(frame.f_code.co_name) if kind == "call" else None)
        try:
            for index in range(2):
                Plain(index=index)
        finally:
            sys.setprofile(None)
        assert ran == []

    def test_own_assignment(self):
        """Fields are assigned with a __setattr__ of the class or of a mixin, as attrs's initializer does."""

        class Doubling:
            __slots__ = ()

            def __setattr__(self, name, value):
                super().__setattr__(name, value * 2 if name == "index" else value)

        @event("test.built.doubled")
        class Doubled(Doubling, Event):
            index: int

        assert Doubled(index=4).index == 8

    def test_assignment_added(self):
        """So are they with a __setattr__ that the class gets later."""

        @event("test.built.assigned")
        class Assigned(Event):
            index: int

        assert Assigned(index=4).index == 4
        Assigned.__setattr__ = lambda self, name, value: object.__setattr__(self, name, (name, value))
        assert Assigned(index=4).index == ("index", 4)

    def test_allocation_added(self):
        """A __new__ that the class gets later is called."""

        @event("test.built.allocated")
        class Allocated(Event):
            index: int

        given = []
        assert Allocated(index=4).index == 4
        Allocated.__new__ = lambda cls, **fields: (given.append(fields), object.__new__(cls))[1]
        assert Allocated(index=5).index == 5
        assert given == [{"index": 5}]

    def test_envelope_declared_again(self):
        """A field of the envelope that a class declares again, which attrs then puts last, is filled as by attrs."""

        @event("test.built.again.parent")
        class Parent(SpanEnded):
            parent_span_id: int = Event.__init__.__defaults__[0]

        @event("test.built.again.time")
        class Time(Event):
            index: int = 3
            at_ns: int = Event.__init__.__defaults__[0]

        fields = {"name": "late", "duration_ns": 1, "attributes": {}, "at_ns": 9}

        def build():
            ambient.set((5, 7))
            with clock.installed(lambda: 7, lambda: 1_000):
                return Parent(**fields), Time()

        ended, timed = contextvars.copy_context().run(build)
        assert (ended.span_id, ended.parent_span_id, ended.step, ended.at_ns) == (0, 5, 7, 9)
        assert (timed.at_ns, timed.span_id, timed.step, timed.index) == (1_000, 5, 7, 3)

    @pytest.mark.parametrize("kind", ["plain", "factory", "default"])
    def test_class_is_freed(self, kind, forgetful):
        """A class that is declared and forgotten is freed, even if a factory or a default refers to it."""

        def declare():
            default = []

            @event("test.built.forgotten")
            class Forgotten(Event):
                index: int
                values: tuple[int, ...] = (1, 2)
                kinds: list[type] = {
                    "plain": attrs.field(factory=list),
                    "factory": attrs.field(factory=lambda: [Forgotten]),
                    "default": attrs.field(default=(default,)),
                }[kind]

            default.append(Forgotten)
            assert Forgotten(index=1).index == 1
            return weakref.ref(Forgotten)

        gone = [declare() for _ in range(3)]
        gc.collect()
        assert gone[0]() is None
        assert gone[1]() is None

    def test_nothing_is_kept(self):
        """Ten thousand events, and calls that fail, leave nothing allocated."""

        def build():
            for place in range(500):
                Plain(index=place)
                Plain(1, 2, 3, index=place, name="given")
                with pytest.raises(TypeError):
                    Plain(nonsense=1)

        assert least_growth(build) < 10

    def test_threads(self):
        """Threads that build events of one class at once get the events they asked for."""
        wrong = []

        def build(number):
            wrong.extend(
                happened for happened in (Plain(index=number) for _ in range(20_000)) if happened.index != number
            )

        sys.setswitchinterval(1e-5)
        threads = [threading.Thread(target=build, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
