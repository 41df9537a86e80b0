"""Compiled spans and iterations against pure Python: the same calls give the same events and as many clock readings."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import inspect
import itertools
import pickle
import sys
import threading
import typing
import weakref
from unittest import mock

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from blocks import least_growth
from children import printed_by
from implementations import needs_core, pure
from trackside import instruments
from trackside.bus import default_bus
from trackside.events import (
    ITERATION,
    LIFECYCLE,
    NOWHERE,
    PROFILE,
    Event,
    ExceptionRaised,
    IterationEnded,
    RunsOn,
    SpanEventAdded,
    SpanOutOfOrder,
    SpanStarted,
    ambient,
    clock,
)
from trackside.events._ambient import next_id
from trackside.instruments import (
    _iteration,
    _span,
    model_forward,
    span,
    training_iteration,
    training_loop,
    validation_iteration,
)

pytestmark = needs_core


def part_of_another_thread():
    """Open a part in another thread and close it."""
    thread = threading.Thread(target=model_forward()(int))
    thread.start()
    thread.join()


async def surroundings():
    """Return the span and the step of a task."""
    await asyncio.sleep(0)
    return ambient.get()


PURE_SPAN = pure("trackside.instruments._span")
with mock.patch.dict(sys.modules, {_span.__name__: PURE_SPAN}), mock.patch.object(instruments, "_span", PURE_SPAN):
    PURE_ITERATION = pure("trackside.instruments._iteration")
COMPILED, PURE = (_span, _iteration), (PURE_SPAN, PURE_ITERATION)

OF_SPANS = (SpanStarted, *_span.ENDED.values(), IterationEnded, SpanEventAdded, SpanOutOfOrder, ExceptionRaised)

steps = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "enter", "exit", "exit", "exit", "open", "close", "raise", "at", "set"]),
        st.integers(0, 4),
    ),
    max_size=25,
)


def made(modules):
    """Return spans of each kind, and an iteration."""
    spans, iterations = modules
    return [
        spans.span("short"),
        spans.span("part", priority=PROFILE, files=3),
        spans.Span("within", _span.ENDED[PROFILE], {}),
        spans.span("long", priority=LIFECYCLE),
        iterations.training_iteration(7, samples=4),
    ]


def act(spans, program):
    """Do the operations of *program* on *spans*, and return the resulting state."""
    errors = []  # kept: an error that was never raised is distinguished from an earlier one only by its address
    for verb, index in program:
        each = spans[index]
        if verb == "enter":
            each.__enter__()
        elif verb == "exit":
            each.__exit__(None, None, None)
        elif verb == "raise":
            errors.append(ValueError("no"))
            each.__exit__(ValueError, errors[-1], None)
        elif verb == "at":
            each.open(at_ns=5)
        elif verb == "set":
            if each.is_open:
                each.set(seen=1)
        else:
            getattr(each, verb)()
    return ambient.get(), [(each.id, each.is_open) for each in spans]


class CountingClock:
    """A clock that goes on by 1 ns with each reading of the acting thread; telemetry's own threads do not move it."""

    def __init__(self):
        self.now = 10**9
        self.acting = {threading.get_ident()}

    def __call__(self):
        """Return the time."""
        self.now += threading.get_ident() in self.acting
        return self.now


def at_home(function, *arguments):
    """Call *function* in the thread's own first context, outside of every span."""
    around = ambient.get()
    ambient.set(NOWHERE)
    try:
        return function(*arguments)
    finally:
        ambient.set(around)


def observed(modules, program, runs_on, where):
    """
    Return the events of *program* and the resulting state, with ids counted from its start and a clock that counts.
    """
    readings = CountingClock()
    events, results = [], []

    def run():
        readings.acting = {threading.get_ident()}
        enter = at_home if where == "at home" else contextvars.Context().run
        results.append(enter(act, made(modules), program))

    with (
        clock.installed(readings, lambda: 2 * 10**9),
        default_bus.subscribe(events.append, to=OF_SPANS, runs_on=runs_on) as subscription,
    ):
        for cls in OF_SPANS:
            default_bus.wants(cls)  # otherwise Python would open the first span of each class
        first, begun = next_id(), readings()
        if where == "another thread":
            thread = threading.Thread(target=run, name="elsewhere")
            thread.start()
            thread.join()
        else:
            run()
        readings_taken = readings.now - begun
        assert default_bus.flush(30)
        counts = attrs.evolve(subscription.stats(30), name="")
    modules[0].forget_opened()
    (around, ids) = results[0]
    relative = [(max(0, number - first), is_open) for number, is_open in ids]
    return repr((named(events, first), max(0, around[0] - first), around[1], relative, readings_taken, counts))


def named(events, first):
    """Return *events* as wire names and fields, with ids counted from *first*."""
    found = []
    for event in events:
        fields = attrs.asdict(event)
        for name in ("span_id", "parent_span_id"):
            fields[name] = max(0, fields.get(name, 0) - first)
        error = fields.get("error")
        if error and "raised_in" in error:
            error["raised_in"] = int(error["raised_in"]) - first
        del fields["at_ns"]
        found.append((event.wire_name, fields))
    return found


class TestSame:
    @pytest.mark.parametrize("runs_on", [RunsOn.INLINE, RunsOn.WORKER])
    @pytest.mark.parametrize("where", ["at home", "a context", "another thread"])
    @settings(max_examples=25)
    @given(program=steps)
    def test_any_order(self, program, runs_on, where):
        """
        In any order of opening and closing spans, both implementations publish the same events and have the same state.
        """
        results = [observed(modules, program, runs_on, where) for modules in (COMPILED, PURE)]
        assert results[0] == results[1]

    def test_nested(self):
        """A part of an iteration takes one reading of the clock, and the iteration around it three."""
        program = [("enter", 4), ("enter", 1), ("exit", 1), ("exit", 4)]
        assert observed(COMPILED, program, RunsOn.INLINE, "at home").count("'duration_ns': 1,") == 1
        assert observed(COMPILED, program, RunsOn.INLINE, "at home").count("'duration_ns': 3,") == 1


class TestRoutes:
    def test_changing(self):
        """The event of a span gets to the handlers that are subscribed when it ends, however often they change."""
        first, second = [], []
        with default_bus.subscribe(first.append, to=OF_SPANS, runs_on=RunsOn.WORKER):
            for name in ("a", "b"):
                with span(name):
                    pass
            with default_bus.subscribe(second.append, to=OF_SPANS):
                for name in ("c", "d"):
                    with span(name):
                        pass
            for name in ("e", "f"):
                with span(name):
                    pass
            assert default_bus.flush(30)
        with span("g"):
            pass
        assert [event.name for event in first] == [*"abcdef"]
        assert [event.name for event in second] == [*"cd"]


class TestContext:
    def test_copied_context(self):
        """A span opened in a copied context has the span of that context as its parent, also in another thread."""
        found = []
        with default_bus.subscribe(lambda _: None, to=Event), span("outer") as outer:
            copied = contextvars.copy_context()

            def inside():
                with model_forward() as inner:
                    found.append(inner.parent_id)

            thread = threading.Thread(target=copied.run, args=(inside,))
            thread.start()
            thread.join()
            found.append(outer.id)
        assert found[0] == found[1]

    def test_parts(self):
        """A context copied in a part of a step has the part in this thread, and the iteration in another one."""
        found = {}
        with default_bus.subscribe(lambda _: None, to=Event), training_iteration(7) as around:
            default_bus.wants(_span.ENDED[PROFILE])  # otherwise Python would open the first part
            part = model_forward().open()
            context = contextvars.copy_context()
            found["here"] = context.run(ambient.get)
            found["task"] = asyncio.run(surroundings())
            thread = threading.Thread(target=lambda: found.update(elsewhere=context.run(ambient.get)))
            thread.start()
            thread.join()
            found["empty"] = contextvars.Context().run(ambient.get)
            part.close()
        assert found["here"] == found["task"] == (part.id, 7)
        assert found["elsewhere"] == (around.id, 7)
        assert found["empty"] == NOWHERE

    def test_after_a_step(self):
        """A context copied between two steps is outside of both in this thread, and in the one before in another."""
        found = []
        with default_bus.subscribe(lambda _: None, to=Event):
            default_bus.wants(IterationEnded)  # otherwise Python would open the first iteration
            with training_iteration(7) as before:
                pass
            context = contextvars.copy_context()
            found.append(context.run(ambient.get))
            thread = threading.Thread(target=lambda: found.append(context.run(ambient.get)))
            thread.start()
            thread.join()
        assert found == [NOWHERE, (before.id, 7)]

    def test_after_an_evaluation(self):
        """A context copied after an iteration of a validation has what is around that in another thread too."""
        found = []
        with default_bus.subscribe(lambda _: None, to=Event), training_iteration(7) as around:
            with validation_iteration(8):
                pass
            context = contextvars.copy_context()
            thread = threading.Thread(target=lambda: found.append(context.run(ambient.get)))
            thread.start()
            thread.join()
        assert found == [(around.id, 7)]

    def test_way_back(self):
        """A token leads back to what surrounded the code when it was made, in a part and after a step."""
        found = []
        with default_bus.subscribe(lambda _: None, to=Event):
            for cls in (IterationEnded, _span.ENDED[PROFILE]):
                default_bus.wants(cls)  # otherwise Python would open the first ones
            with training_iteration(7), model_forward() as part:
                ambient.reset(ambient.set((part.id, 8)))
                found.append(ambient.get())
            ambient.reset(ambient.set((part.id, 8)))
            found.append(ambient.get())
        assert found == [(part.id, 7), NOWHERE]

    def test_short_spans_within_parts(self):
        """
        A context copied in a span that is no part of a step has that span everywhere, and none after it is closed.
        """
        found = []
        with default_bus.subscribe(lambda _: None, to=Event), model_forward(), span("short") as short:
            context = contextvars.copy_context()
            thread = threading.Thread(target=lambda: found.append(context.run(ambient.get)))
            thread.start()
            thread.join()
        assert found == [(short.id, -1)]
        assert contextvars.copy_context().run(ambient.get) == ambient.get() == NOWHERE

    def test_imported_inside(self):
        """If trackside is imported in a context that was entered, that context gets no separate place for parts."""
        script = """
            import contextvars, json, threading
            def main():
                import trackside
                from trackside.events import ambient
                with trackside.subscribe(lambda _: None), trackside.model_forward() as part:
                    context = contextvars.copy_context()
                    found = []
                    thread = threading.Thread(target=lambda: found.append(context.run(ambient.get)))
                    thread.start()
                    thread.join()
                    print(found == [(part.id, -1)])
            contextvars.copy_context().run(main)
        """
        assert printed_by(script) == "True\n"

    def test_reentered_by_a_collection(self):
        """A finalizer that opens spans while one is opened or closed sees and leaves consistent state."""

        class Late:
            def __init__(self):
                self.itself = self

            def __del__(self):
                with span("late"), model_forward():
                    pass

        kept, open_before = gc.get_threshold(), dict(_span.opened())
        around = ambient.get()
        published = []
        with default_bus.subscribe(published.append, to=Event):
            gc.set_threshold(1)
            try:
                for step in range(200):
                    Late()
                    with training_iteration(step) as iteration, model_forward():
                        assert ambient.get()[1] == step
                    assert not iteration.is_open
            finally:
                gc.set_threshold(*kept)
                gc.collect()  # what is left would open spans in another test
        assert ambient.get() == around
        assert _span.opened() == open_before
        assert [event.step for event in published if event.wire_name == "trackside.iteration.ended"] == [*range(200)]

    def test_closed_by_a_finalizer(self):
        """An iteration that is opened again is whole when an old value of it is dropped, which may close it."""

        class Closing:
            def __del__(self):
                if iteration.is_open:
                    iteration.__exit__(None, None, None)

        published, begun = [], []
        with default_bus.subscribe(published.append, to=IterationEnded), training_loop():
            iteration = training_iteration()
            for _ in range(3):
                with iteration:
                    begun.append(iteration.step)
                iteration.attributes = {"closing": Closing()}
            iteration.attributes = {}
        assert begun == [0, 1, 2]
        assert [event.step for event in published] == [0, 1, 2]

    def test_step_without_python(self):
        """An iteration that takes its step from the training loop around runs no Python code."""
        called = []

        def note(frame, what, _):
            if what == "call":
                called.append(frame.f_code.co_name)

        token = _iteration.next_step.set(itertools.count(7).__next__)
        try:
            with default_bus.subscribe(lambda _: None, to=IterationEnded, runs_on=RunsOn.WORKER):
                with training_iteration(step=1):  # the bus looks up who wants it
                    pass
                sys.setprofile(note)
                with training_iteration() as iteration:
                    pass
                sys.setprofile(None)
        finally:
            _iteration.next_step.reset(token)
        assert (called, iteration.step) == ([], 7)

    @pytest.mark.parametrize("meanwhile", [_span.opened, part_of_another_thread])
    def test_left_without_python(self, meanwhile):
        """A part is left without Python code, whether the open spans were read meanwhile or another thread had one."""
        called = []

        def note(frame, what, _):
            if what == "call":
                called.append(frame.f_code.co_name)

        with default_bus.subscribe(lambda _: None, to=_span.ENDED[PROFILE], runs_on=RunsOn.WORKER):
            with model_forward():  # the bus looks up who wants it
                pass
            with model_forward():
                meanwhile()
                sys.setprofile(note)
            sys.setprofile(None)
        assert called == []


class TestFunctions:
    @pytest.mark.parametrize(
        ("name", "calls"),
        [
            ("model_forward", [((), {}), ((), {"files": 3, "priority": 1}), ((1,), {})]),
            (
                "span",
                [
                    (("a",), {}),
                    (("b",), {"files": 3, "name": "c"}),
                    ((), {}),
                    ((), {"name": "a"}),
                    (("a", "b"), {}),
                    (("part",), {"priority": PROFILE, "files": 3}),
                    (("long",), {"files": 3, "priority": LIFECYCLE}),
                    (("usual",), {"priority": ITERATION}),
                    ((7,), {}),
                ],
            ),
            (
                "training_iteration",
                [
                    ((), {}),
                    ((3,), {"samples": 4}),
                    ((), {"step": 3, "tokens": 5, "flops": 2.0, "loss": 0.5}),
                    ((3,), {"step": 4}),
                    ((3, 4), {}),
                    ((), {"sample": 3}),
                ],
            ),
        ],
    )
    def test_same(self, name, calls):
        """The compiled functions return or raise what the Python ones return or raise."""
        compiled = getattr(instruments, name)

        def outcome(function, arguments, keywords):
            try:
                made_up = function(*arguments, **keywords)
            except TypeError as error:
                return str(error)
            slots = (slot for cls in type(made_up).__mro__ for slot in getattr(cls, "__slots__", ()))
            return type(made_up), {slot: getattr(made_up, slot, "unset") for slot in slots}

        for listened in (True, False):
            with default_bus.subscribe(lambda _: None, to=Event) if listened else contextlib.nullcontext():
                for arguments, keywords in calls:
                    expected = outcome(compiled.__wrapped__, arguments, keywords)
                    assert outcome(compiled, arguments, keywords) == expected

    @pytest.mark.parametrize("done", [{}, {"samples": 4}, {"loss": 0.5}, {"loss": 3}, {"samples": None}, {"seen": 1}])
    def test_set(self, done):
        """Both forms of `set` lead to the same fields and attributes."""
        fields = []
        with default_bus.subscribe(lambda _: None, to=Event):
            for set_done in (type(training_iteration(3)).set, type(training_iteration(3)).set.__wrapped__):
                with training_iteration(3, samples=2, tokens=1) as each:
                    set_done(each, **done)
                fields.append((each.samples, each.tokens, each.flops, each.loss, each.attributes))
        assert fields[0] == fields[1]

    def test_looks_like_a_function(self):
        """Name, signature, documentation and pickling are those of the Python function."""
        assert model_forward.__name__ == "model_forward"
        assert str(inspect.signature(training_iteration)).startswith("(step: ")
        assert training_iteration.__doc__ == training_iteration.__wrapped__.__doc__
        assert training_iteration.__doc__.strip().startswith("Return a training iteration")
        assert pickle.loads(pickle.dumps(model_forward)) is model_forward

    def test_bound(self):
        """The methods of a with statement can be kept and called like any other."""
        with default_bus.subscribe(lambda _: None, to=Event):
            made_up = span("kept")
            leave = made_up.__exit__
            made_up.__enter__()
            assert leave.__self__ is made_up
            assert leave.__name__ == "_leave"
            leave(None, None, None)
            assert not made_up.is_open
            with pytest.raises(TypeError, match="unexpected keyword"):
                made_up.__enter__(when=3)


class TestOwnership:
    def test_leaks_nothing(self):
        """Opening and closing leaves no block of memory behind, and no reference to an attribute."""
        attributes = {"files": 3}
        with default_bus.subscribe(lambda _: None, to=Event):

            def once():
                with training_iteration(3) as iteration, _span.make_span("part", _span.ENDED[PROFILE], attributes):
                    iteration.set(samples=4)

            once()
            before = sys.getrefcount(attributes)
            growth = least_growth(lambda: [once() for _ in range(100)])
            assert growth < 10
        assert sys.getrefcount(attributes) == before

    def test_collector(self):
        """The garbage collector visits no event of a span that holds scalars alone, and each of the others."""
        events = []
        with default_bus.subscribe(events.append, to=OF_SPANS):
            for cls in OF_SPANS:
                default_bus.wants(cls)  # otherwise Python would open the first span of each class
            with training_iteration(3, samples=2, loss=0.5), model_forward():
                pass
            with training_iteration(3, samples=[2]), model_forward(files=[1]):
                pass
        assert [gc.is_tracked(event) for event in events] == [False, False, True, True]

    def test_handler_that_left(self):
        """No handler that left the bus is kept alive, though spans cached a route to it."""

        class Handler:
            def __call__(self, event):
                """Take nothing of *event*."""

        handler = Handler()
        left = weakref.ref(handler)
        subscription = default_bus.subscribe(handler, to=OF_SPANS)
        for _ in range(2):
            with model_forward():
                pass
        subscription.close()
        del handler, subscription
        gc.collect()
        assert left() is None

    def test_opened(self):
        """Any number of open spans are known by their ids until they are closed, in any order."""
        with default_bus.subscribe(lambda _: None, to=Event):
            default_bus.wants(_span.ENDED[PROFILE])  # otherwise Python would open the first part
            early = [model_forward().__enter__() for _ in range(20)]
            assert _span.opened() == {each.id: each for each in early}
            late = [model_forward().__enter__() for _ in range(20)]
            for each in (*late[:5], *late[:4:-1], *early[::-2]):
                each.__exit__(None, None, None)
            assert _span.opened() == {each.id: each for each in early[::2]}
            for each in early[-2::-2]:
                each.close()
            ambient.set(NOWHERE)
        assert _span.opened() == {}

    def test_wrong_calls(self):
        """Wrong calls raise what Python raises."""
        made_up = _span.span("x")
        with pytest.raises(TypeError, match="unexpected keyword"):
            made_up.open(when=3)
        with pytest.raises(TypeError):
            _span.Span.open()


class Remembered(_span.Span):
    """A subclass of spans with a dict, a weak reference and a finalizer."""

    ended: typing.ClassVar[list[str]] = []

    def __del__(self):
        """Note the end, and resurrect the object the first time."""
        self.ended.append(self.name)
        if self.name == "reborn":
            self.name = "gone"
            kept.append(self)


kept = []


class TestMemory:
    """Memory of spans and of the events of their ends is used again."""

    def test_nothing_of_the_one_before(self):
        """An event or a span in reused memory has no value of the one that was there."""
        # A process of its own, in which no other test has filled the memory that is kept.
        script = """
            from trackside.bus import default_bus
            from trackside.instruments import _span
            from trackside.instruments import span
            events, classes = [], tuple(_span.ENDED.values())
            with default_bus.subscribe(events.append, to=classes):
                for cls in classes:
                    default_bus.wants(cls)  # otherwise Python would open the first span of each class
                with span("first", files=3) as first:
                    pass
                events[0]._seq = 7
                addresses = id(events[0]), id(first)
                events.clear()
                del first
                with span("second") as second:
                    pass
            print((id(events[0]), id(second)) == addresses, hasattr(events[0], "_seq"))
            print(events[0].name, events[0].attributes, second.attributes, hasattr(span("third"), "parent_id"))
        """
        assert printed_by(script) == "True False\nsecond {} {} False\n"

    @pytest.mark.parametrize(("make", "known"), [(model_forward, ["attributes"]), (training_iteration, [])])
    def test_unopened(self, make, known):
        """Spans made after others were closed have neither their ids, nor their times, nor what was done in them."""
        with default_bus.subscribe(lambda _: None, to=OF_SPANS):
            for cls in OF_SPANS:
                default_bus.wants(cls)  # otherwise Python would open the first span of each class
            for _ in range(3):
                with make() as one:
                    pass
                del one
                with make():
                    pass
            made = make()
        assert (made.id, made.is_open) == (0, False)
        names = ("attributes", "parent_id", "start_ns", "step", "_around", "_thread")
        assert [name for name in names if hasattr(made, name)] == known

    def test_closed_one_that_is_held(self):
        """A closed part or iteration that somebody holds, if only by a method of it, is no later one."""
        held = []
        with default_bus.subscribe(lambda _: None, to=OF_SPANS):
            for cls in OF_SPANS:
                default_bus.wants(cls)  # otherwise Python would open the first span of each class
            for _ in range(5):
                with training_iteration(3) as step:
                    part = model_forward()
                    leave = part.__exit__
                    number = part.open().id
                    del part
                    leave(None, None, None)
                    held.append((step, step.id, leave, number))
        assert [(step.id, leave.__self__.id) for step, _, leave, _ in held] == [each[1::2] for each in held]

    def test_pair_that_is_held(self):
        """A context keeps its span and step as long as it is referenced."""
        held, contexts = [], []
        with default_bus.subscribe(lambda _: None, to=OF_SPANS):
            for cls in OF_SPANS:
                default_bus.wants(cls)  # otherwise Python would open the first span of each class
            for step in range(10):
                with training_iteration(step) as iteration:
                    held.append((ambient.get(), (iteration.id, step)))
                    if step % 2:
                        contexts.append((contextvars.copy_context(), (iteration.id, step)))
                    for _ in range(3):
                        with model_forward() as part:
                            held.append((ambient.get(), (part.id, step)))
                with model_forward():  # a span that nobody references
                    pass
                with training_iteration([step]):
                    held.append((ambient.get(), (ambient.get()[0], [step])))
        assert [pair for pair, _ in held] == [expected for _, expected in held]
        assert [context.run(ambient.get) for context, _ in contexts] == [expected for _, expected in contexts]
        assert [gc.is_tracked(pair) for pair, (_, step) in held if type(step) is list] == [True] * 10

    def test_hash_of_a_pair(self):
        """A pair that a later span uses again has the hash of what it holds then, also if its hash was asked before."""
        with default_bus.subscribe(lambda _: None, to=OF_SPANS):
            for cls in OF_SPANS:
                default_bus.wants(cls)  # otherwise Python would open the first span of each class
            for step in range(10):
                with training_iteration(step) as iteration, model_forward() as part:
                    assert hash(iteration._inside) == hash((iteration.id, step))
                    assert hash(part._inside) == hash((part.id, step))

    def test_number_that_is_held(self):
        """Times and durations that somebody holds stay what they are when those of later spans come and go."""
        held = []
        with default_bus.subscribe(lambda event: held.append(event.duration_ns), to=OF_SPANS):
            for cls in OF_SPANS:
                default_bus.wants(cls)  # otherwise Python would open the first span of each class
            for _ in range(20):
                with span("held") as one:
                    held.append(one.start_ns)
        written = list(map(str, held))
        with default_bus.subscribe(lambda _: None, to=OF_SPANS):
            for _ in range(3_000):
                with span("later"):
                    pass
        assert list(map(str, held)) == written
        assert held[::2] == sorted(held[::2])

    def test_start_that_was_set(self):
        """The duration counts from what the span has as its start when it ends."""
        events = []
        with default_bus.subscribe(events.append, to=OF_SPANS):
            for cls in OF_SPANS:
                default_bus.wants(cls)
            with span("moved") as one:
                one.start_ns -= 10**13
        assert 10**13 < events[-1].duration_ns < 2 * 10**13
        assert events[-1].at_ns == one.start_ns + events[-1].duration_ns

    def test_attributes_that_were_added(self):
        """A value put into the attributes of a part is in no other part's, open at the same time or later."""
        with model_forward() as outer, model_forward() as inner:
            outer.attributes["files"] = 3
            assert inner.attributes == {}
        del outer
        assert model_forward().attributes == {}

    def test_finalizer_of_a_subclass(self):
        """A subclass with a finalizer is finalized once, can be resurrected, and clears its weak references."""
        Remembered.ended.clear()
        mine = Remembered("mine", _span.ENDED[PROFILE], {})
        mine.note = [mine]
        died = weakref.ref(mine)
        del mine
        gc.collect()
        Remembered("reborn", _span.ENDED[PROFILE], {})
        assert (died(), Remembered.ended, kept.pop().name) == (None, ["mine", "reborn"], "gone")

    def test_finalizer_of_the_class(self, monkeypatch):
        """A finalizer that is assigned to the class runs for every span, also in reused memory."""
        ended = []
        monkeypatch.setattr(_span.Span, "__del__", lambda each: ended.append(each.name), raising=False)
        for name in ("a", "b", "c"):
            span(name)
        assert ended == ["a", "b", "c"]

    def test_finalizer_that_changes_the_class(self, monkeypatch):
        """A finalizer may give a span another class: each class keeps its number of references."""

        class Other(_span.Span):
            __slots__ = ()

        def change(each):
            each.__class__ = Other

        def change_many(count):
            for _ in range(count):
                span("short")
            return sys.getrefcount(_span.Span), sys.getrefcount(Other)

        monkeypatch.setattr(_span.Span, "__del__", change, raising=False)
        before = change_many(1_100)  # none of them in the memory of a span that was freed before
        after = change_many(100)
        assert [abs(now - then) < 10 for now, then in zip(after, before, strict=True)] == [True, True]

    def test_chain(self):
        """Deleting a chain of 500,000 iterations, each referenced by the next, does not exhaust the stack."""
        chain = None
        for _ in range(500_000):
            chain = training_iteration(3, samples=chain)
        chain = Remembered("last", _span.ENDED[PROFILE], {"chain": chain})
        freed = weakref.ref(chain)
        del chain
        assert freed() is None

    def test_bound(self):
        """Of 5,000 spans the memory of no more than 1,024 is kept."""
        before = sys.getallocatedblocks()
        spans = [_span.Span("many", _span.ENDED[PROFILE], {}) for _ in range(5_000)]
        del spans
        assert sys.getallocatedblocks() - before < 1_500

    def test_leaks(self):
        """Spans, and instances of subclasses, release all their references, including that to their class."""

        def once():
            mine = Remembered("mine", _span.ENDED[PROFILE], {"files": object()})
            mine.note = object()
            Remembered.ended.clear()
            span("short")

        for _ in range(100):
            once()  # spans that other tests left are used up
        classes = Remembered, _span.Span
        before = [sys.getrefcount(cls) for cls in classes]
        assert least_growth(lambda: [once() for _ in range(100)]) < 10
        once()
        assert [sys.getrefcount(cls) for cls in classes] == before
