"""Spans: their events, their context, and wrong nesting."""

from __future__ import annotations

import asyncio
import threading

import attrs
import pytest

from children import in_child
from trackside.bus import default_bus
from trackside.events import (
    LIFECYCLE,
    NOWHERE,
    PROFILE,
    ConfigError,
    CounterWindow,
    Event,
    IterationSpanEnded,
    ProfileSpanEnded,
    SpanEnded,
    SpanEventAdded,
    SpanOutOfOrder,
    SpanStarted,
    ambient,
    clock,
    event,
)
from trackside.instruments import SpanOrderError, application, span


def ended(captured, name):
    """Return the one span called *name* that ended."""
    (found,) = [event for event in captured.of(SpanEnded) if event.name == name]
    return found


class TestEvents:
    def test_one_event(self, captured):
        """A short span is one event, when it ends."""
        with span("tokenize"):
            assert len(captured) == 0
        assert [type(event) for event in captured] == [IterationSpanEnded]

    def test_profile(self, captured):
        """The priority is the span's own."""
        with span("tokenize", priority=PROFILE):
            pass
        assert [type(event) for event in captured] == [ProfileSpanEnded]

    def test_long(self, captured):
        """A long span is published when it starts, too."""
        with span("evaluate", priority=LIFECYCLE):
            assert [type(event) for event in captured] == [SpanStarted]
        assert [type(event) for event in captured] == [SpanStarted, SpanEnded]

    def test_start_and_end_agree(self, captured):
        """Start and end name the same span."""
        with span("evaluate", priority=LIFECYCLE, epoch=3):
            pass
        start, end = captured.events
        assert (start.span_id, start.name, start.attributes) == (end.span_id, "evaluate", {"epoch": 3})

    def test_times(self, captured, ticking):
        """A span ends at its end, and lasts as long as it does."""
        ticking.now_ns += 5
        with span("tokenize"):
            ticking.now_ns += 70
        end = ended(captured, "tokenize")
        assert (end.at_ns, end.duration_ns) == (11_000_000_075, 70)

    def test_start_time(self, captured, ticking):
        """A long span starts at its start."""
        with span("evaluate", priority=LIFECYCLE):
            ticking.now_ns += 70
        assert captured.of(SpanStarted)[0].at_ns == 11_000_000_000

    @pytest.mark.parametrize("priority", [PROFILE, LIFECYCLE])
    def test_every_field_is_set(self, captured, priority):
        """An event that is filled in by hand lacks no field."""
        with span("tokenize", priority=priority):
            pass
        event = captured.events[-1]
        assert [field.name for field in attrs.fields(type(event)) if not hasattr(event, field.name)] == []

    def test_explicit_times(self, captured):
        """Explicit times replace the clock's."""
        span("tokenize").open(at_ns=1_000).close(at_ns=5_000)
        end = ended(captured, "tokenize")
        assert (end.at_ns, end.duration_ns) == (5_000, 4_000)

    def test_explicit_times_backwards(self, captured):
        """A span whose given end is before its start has a duration of 0, and that is reported."""
        span("tokenize").open(at_ns=5_000).close(at_ns=1_000)
        assert ended(captured, "tokenize").duration_ns == 0
        assert [event.problem for event in captured.of(SpanOutOfOrder)] == ["ended before it started"]


class TestAttributes:
    def test_given(self, captured):
        """Attributes given at the start are recorded."""
        with span("tokenize", files=3):
            pass
        assert ended(captured, "tokenize").attributes == {"files": 3}

    def test_set(self, captured):
        """Attributes set meanwhile are recorded, too."""
        with span("tokenize", files=3) as work:
            work.set(tokens=500, files=4)
        assert ended(captured, "tokenize").attributes == {"files": 4, "tokens": 500}

    def test_set_leaves_the_start_alone(self, captured):
        """Attributes set later do not appear in the start, which may have been written already."""
        with span("evaluate", priority=LIFECYCLE) as work:
            work.set(tokens=500)
        assert captured.of(SpanStarted)[0].attributes == {}

    def test_used_again(self, captured):
        """A span that is used again starts with its first attributes."""
        work = span("tokenize", files=3)
        with work:
            work.set(tokens=500)
        with work:
            pass
        assert [event.attributes for event in captured.of(SpanEnded)] == [{"files": 3, "tokens": 500}, {"files": 3}]

    def test_any_name(self, captured):
        """An attribute may have the name of a parameter."""
        with span("tokenize", name="x", self="y"):
            pass
        assert ended(captured, "tokenize").attributes == {"name": "x", "self": "y"}

    def test_event(self, captured):
        """An event on a span carries the span's id and its own attributes."""
        with span("tokenize") as outer, span("inner"):
            outer.event("cache missed", key="a")
        (event,) = captured.of(SpanEventAdded)
        assert (event.span_id, event.name, event.attributes) == (outer.id, "cache missed", {"key": "a"})


class TestNesting:
    def test_parent(self, captured):
        """A span's parent is the one around it."""
        with span("outer") as outer, span("inner"):
            pass
        assert ended(captured, "inner").parent_span_id == outer.id

    def test_no_parent(self, captured):
        """The outermost span has none."""
        with span("outer"):
            pass
        assert ended(captured, "outer").parent_span_id == 0

    def test_siblings(self, captured):
        """A span that ended is no span's parent."""
        with span("outer") as outer:
            with span("first"):
                pass
            with span("second"):
                pass
        assert ended(captured, "second").parent_span_id == outer.id

    def test_what_is_logged_inside(self):
        """An event logged inside belongs to the span."""
        with default_bus.subscribe(lambda _: None), span("outer") as outer:
            assert SpanEventAdded(name="x").span_id == outer.id

    def test_ids_count_up(self, captured):
        """Ids are never used twice."""
        first, second = span("x"), span("x")
        with first, second:
            pass
        with first:
            assert first.id > second.id > 0

    def test_step_is_kept(self, captured):
        """A span does not change the step."""
        before = ambient.set((0, 7))
        with span("x"):
            assert ambient.get()[1] == 7
        ambient.reset(before)
        assert ended(captured, "x").step == 7

    def test_opened_by_a_collection(self):
        """A finalizer that opens spans while the surroundings are stored reads and leaves no memory that was freed."""
        script = """
            import gc, trackside
            from trackside.events import ambient

            class Late:
                def __init__(self):
                    self.itself = self
                def __del__(self):
                    with trackside.span("late"):
                        pass
                    ambient.set(ambient.get())  # a third time, or what was freed first may be in use again

            def soon(allocations):
                gc.collect(0)
                gc.set_threshold(allocations)
                Late()

            gc.freeze()
            with trackside.subscribe(lambda _: None):
                found = []
                for step in range(200):
                    soon(step % 20 + 1)
                    with trackside.training_iteration(step):
                        found.append(ambient.get()[1])
                    soon(step % 20 + 1)
                    token = ambient.set((7, step))
                    soon(step % 20 + 1)
                    ambient.reset(token)
                print(found == [*range(200)], ambient.get(), gc.isenabled())
        """
        assert in_child(script, PYTHONMALLOC="debug") == ("True (0, -1) True\n", "")


class TestOff:
    def test_nothing_is_done(self):
        """While no handler listens a span gets no id and is nobody's parent."""
        with span("x") as work:
            work.event("y")
            assert (work.id, work.is_open, ambient.get()[0]) == (0, False, 0)

    def test_no_clock(self):
        """While no handler listens a span reads no clock, neither at its start nor at its end."""
        read = []
        with clock.installed(lambda: read.append("monotonic") or 0, lambda: 0):
            read.clear()  # to install one compares it with the wall clock
            with span("x"):
                pass
            assert read == []

    def test_nobody_wants_it(self):
        """A span of a priority that no handler wants is not the parent of those inside it."""
        found = []
        outer = span("evaluate", priority=LIFECYCLE)
        subscription = default_bus.subscribe(found.append, to=SpanEnded, min_priority=LIFECYCLE)
        with subscription, outer, span("tokenize"), span("load", priority=LIFECYCLE):
            pass
        assert [(event.name, event.parent_span_id) for event in found] == [("load", outer.id), ("evaluate", 0)]

    def test_turned_on_inside(self):
        """A handler that comes while a span is open does not get its end."""
        found = []
        with span("x"), default_bus.subscribe(found.append):
            pass
        assert found == []

    def test_turned_off_inside(self):
        """If a handler leaves while a span is open, later spans have the right parents."""
        subscription = default_bus.subscribe(lambda _: None)
        with span("x"):
            subscription.close()
        assert ambient.get()[0] == 0


class TestDisorder:
    def problems(self, captured):
        """Return the problems that were recorded."""
        return [(event.name, event.problem) for event in captured.of(SpanOutOfOrder)]

    def test_parent_first(self, captured):
        """A span that is closed before one inside it does not become the parent of later ones."""
        outer, inner = span("outer").open(), span("inner").open()
        outer.close()
        inner.close()
        assert self.problems(captured) == [("outer", "was closed before what was opened inside it")]
        assert ambient.get()[0] == 0

    def test_parent_first_keeps_parents(self, captured):
        """Its children keep it as their parent."""
        outer, inner = span("outer").open(), span("inner").open()
        outer.close()
        inner.close()
        assert ended(captured, "inner").parent_span_id == outer.id

    def test_grandparent_first(self, captured):
        """After any wrong nesting, later spans belong to the one that is still open."""
        spans = [span(name).open() for name in "abcd"]
        spans[1].close()
        spans[3].close()
        assert ambient.get()[0] == spans[2].id
        spans[2].close()
        assert ambient.get()[0] == spans[0].id
        spans[0].close()

    def test_twice(self, captured):
        """A span that is closed twice ends once."""
        work = span("x").open()
        work.close()
        work.close()
        assert len(captured.of(SpanEnded)) == 1
        assert self.problems(captured) == [("x", "was closed again")]

    def test_open_twice(self, captured):
        """A span that is opened while it is open is closed before."""
        work = span("x").open()
        work.open()
        work.close()
        assert len(captured.of(SpanEnded)) == 2
        assert self.problems(captured) == [("x", "was opened again while open")]

    def test_never_opened(self, captured):
        """A span that was never opened can be closed without harm."""
        span("x").close()
        assert list(captured) == []

    def test_in_another_thread(self, captured):
        """A span may be closed by another thread, and that is named."""
        work = span("x").open()
        thread = threading.Thread(target=work.close)
        thread.start()
        thread.join()
        assert self.problems(captured) == [("x", "was closed in another thread or task than it was opened in")]
        assert len(captured.of(SpanEnded)) == 1
        ambient.set(NOWHERE)

    def test_strict(self, captured, strict):
        """In a strict bus disorder is an error that names span and problem."""
        work = span("x").open()
        work.close()
        with pytest.raises(SpanOrderError, match="span 'x' was closed again"):
            work.close()

    def test_strict_does_not_hide_an_error(self, captured, strict):
        """An exception in flight is never replaced."""
        work = span("x")

        def fail():
            work.close()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError), work:
            fail()


class TestDecorator:
    def test_each_call(self, captured):
        """A decorated function is a span at each call."""

        @span("double", kind="test")
        def double(number):
            return 2 * number

        assert [double(1), double(2)] == [2, 4]
        assert [event.attributes for event in captured.of(SpanEnded)] == [{"kind": "test"}] * 2

    def test_recursion(self, captured):
        """Each depth of a recursion is a span within the one above."""

        @span("descend")
        def descend(depth):
            if depth:
                descend(depth - 1)

        descend(3)
        by_id = {event.span_id: event for event in captured.of(SpanEnded)}
        parents = [by_id[number].parent_span_id for number in sorted(by_id)]
        assert parents == [0, *sorted(by_id)[:-1]]

    def test_coroutine(self, captured):
        """A decorated coroutine function is a span for as long as each run takes."""

        @span("fetch")
        async def fetch():
            await asyncio.sleep(0)
            return ambient.get()[0]

        assert asyncio.run(fetch()) == ended(captured, "fetch").span_id

    def test_coroutines_at_once(self, captured):
        """Runs at the same time are spans of their own."""

        @span("fetch")
        async def fetch():
            await asyncio.sleep(0)

        async def main():
            await asyncio.gather(fetch(), fetch())

        asyncio.run(main())
        assert len({event.span_id for event in captured.of(SpanEnded)}) == 2
        assert captured.of(SpanOutOfOrder) == []

    def test_threads(self, captured):
        """Calls in several threads are spans of their own."""
        meeting = threading.Barrier(8)

        @span("work")
        def work():
            meeting.wait(10)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({event.span_id for event in captured.of(SpanEnded)}) == 8

    def test_decorated_while_off(self):
        """A function that was decorated before any handler listened is a span once one does."""
        work = span("work")(lambda: None)
        found = []
        with default_bus.subscribe(found.append, to=SpanEnded):
            work()
        assert [event.name for event in found] == ["work"]

    def test_keeps_the_name(self):
        """A decorated function keeps its name and documentation."""

        @span("work")
        def documented():
            """Do it."""

        assert (documented.__name__, documented.__doc__) == ("documented", "Do it.")

    def test_generators(self):
        """A generator function is refused: its work does not happen in the call."""

        def generate():
            yield 1

        with pytest.raises(ConfigError, match="put the loop over a generator in a with block"):
            span("x")(generate)


@event("acme.worked")
class Worked(Event):
    thread: int
    number: int


class TestThreads:
    def run(self, function):
        """Run *function* in a thread."""
        thread = threading.Thread(target=function, name="loader")
        thread.start()
        thread.join()

    def work(self):
        """Have a span."""
        with span("load"):
            pass

    def test_all_at_once(self, captured, in_threads):
        """16 threads log, open spans and count at once: nothing is lost or mixed up, and the counts balance."""
        threads, rounds = 16, 50
        counter = default_bus.counter("worked.at.once")

        def work(index):
            for number in range(rounds):
                with span("outer"), span("inner"):
                    default_bus.log(Worked(thread=index, number=number))
                    counter.add(2)

        with default_bus.collect(interval_s=3600, match="worked.at.once"):
            in_threads(threads, work)
        total = threads * rounds
        spans = {event.span_id: event for event in captured.of(SpanEnded)}
        assert sorted(event.name for event in captured.of(SpanEnded)) == ["inner"] * total + ["outer"] * total
        around = {event.span_id: (event.thread, event.number) for event in captured.of(Worked)}
        assert sorted(around.values()) == [(index, number) for index in range(threads) for number in range(rounds)]
        assert {spans[inner].name for inner in around} == {"inner"}
        outer = {spans[inner].parent_span_id for inner in around}
        assert len(outer) == total
        assert {spans[each].name for each in outer} == {"outer"}
        windows = [event for event in captured.of(CounterWindow) if event.name == "worked.at.once"]
        assert windows[-1].total_sum == 2 * total
        assert {handler.balance for handler in default_bus.stats().handlers} == {0}

    def test_root(self, captured):
        """A new thread's spans hang under the application."""
        with application() as app, span("outer"):
            self.run(self.work)
        assert ended(captured, "load").parent_span_id == app.id

    def test_no_root(self, captured):
        """Without an application they hang under nothing."""
        with span("outer"):
            self.run(self.work)
        assert ended(captured, "load").parent_span_id == 0

    def test_after_the_application(self, captured):
        """Once the application is closed, nothing hangs under it."""
        with application():
            pass
        self.run(self.work)
        assert ended(captured, "load").parent_span_id == 0

    def test_thread_is_named(self, captured):
        """A span says which thread it ran in, if it was not the main one."""
        self.run(self.work)
        self.work()
        assert [event.attributes for event in captured.of(SpanEnded)] == [{"thread": "loader"}, {}]


class TestTasks:
    def test_parents_do_not_cross(self, captured):
        """With 1,000 tasks that run alternately, every inner span belongs to its own task's outer span."""

        async def work(number):
            with span("outer", number=number):
                await asyncio.sleep(0)
                with span("inner", number=number):
                    await asyncio.sleep(0)

        async def all_of_them():
            await asyncio.gather(*(work(number) for number in range(1_000)))

        asyncio.run(all_of_them())
        outer = {event.span_id: event.attributes["number"] for event in captured.of(SpanEnded) if event.name == "outer"}
        inner = [event for event in captured.of(SpanEnded) if event.name == "inner"]
        assert len(outer) == len(inner) == 1_000
        assert [event for event in inner if outer.get(event.parent_span_id) != event.attributes["number"]] == []

    def test_child_tasks(self, captured):
        """A task's spans hang under the span in which the task was made."""

        async def inner():
            with span("inner"):
                await asyncio.sleep(0)

        async def main():
            with span("outer") as outer:
                await asyncio.create_task(inner())
            return outer.id

        assert asyncio.run(main()) == ended(captured, "inner").parent_span_id

    def test_task_that_outlives(self, captured):
        """A span may end while a task that was made inside it still runs: no disorder."""

        async def inner():
            with span("inner"):
                await asyncio.sleep(0)

        async def main():
            with span("outer"):
                task = asyncio.create_task(inner())
                await asyncio.sleep(0)
            await task

        asyncio.run(main())
        assert captured.of(SpanOutOfOrder) == []
        assert ended(captured, "inner").parent_span_id == ended(captured, "outer").span_id
