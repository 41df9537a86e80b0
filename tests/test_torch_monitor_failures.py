"""
Failures of torch.monitor's events and handlers, row by row, which do not happen here.

The rows are those found by probing PyTorch 2.13. Each test describes the behaviour there, and shows the one here; where
the original crashes or hangs the test runs in a process of its own. The rows of its statistics (aggregations, windows,
the Stat itself) are in ``tests/counters/test_torch_monitor.py``.
"""

from __future__ import annotations

import copy
import datetime
import gc
import logging
import pickle
import textwrap
import threading
from typing import Any

import attrs
import pytest

from children import in_child
from trackside import Bus, ConfigError, Event, EventLog, event, replay
from trackside.events import CounterWindow, RunsOn


@event("test.monitor.happened")
class Happened(Event):
    """An event."""

    value: Any = None
    number: int = 0


@event("test.monitor.tagged")
class Tagged(Event):
    """An event with a table."""

    tags: dict[str, Any] = attrs.field(factory=dict)


@pytest.fixture
def bus(caplog):
    """Give a bus of the test's own, whose warnings are not read."""
    caplog.set_level(logging.CRITICAL, "trackside")
    with Bus() as given:
        yield given


@pytest.fixture
def recorded(tmp_path, bus):
    """Give a function that logs events to an event log, and returns them as they are read back."""

    def there_and_back(*events):
        with bus.subscribe(EventLog(tmp_path), to=(Happened, Tagged)):
            for given in events:
                bus.log(given)
        return list(replay(tmp_path, to=(Happened, Tagged)))

    return there_and_back


def printed_after_preamble(program, *arguments):
    """Run *program* after the preamble in a process of its own; return what it printed."""
    return in_child(f"{textwrap.dedent(PREAMBLE)}\n{textwrap.dedent(program)}", *arguments)[0]


PREAMBLE = """
    import sys, threading, trackside
    from trackside import Event, event
    from trackside.events import CounterWindow

    @event("test.monitor.happened")
    class Happened(Event):
        number: int = 0
"""


class TestEventRows:
    def test_bool_becomes_float(self, recorded):
        """torch.monitor: True becomes 1.0. Here it stays True."""
        values = [back.value for back in recorded(Happened(value=True), Happened(value=False))]

        assert [repr(value) for value in values] == ["True", "False"]

    def test_numpy_scalars(self, recorded):
        """torch.monitor: NumPy's booleans become floats too. Here its scalars keep their types."""
        numpy = pytest.importorskip("numpy")
        given = [numpy.bool_(True), numpy.int64(7), numpy.float32(0.5)]
        values = [back.value for back in recorded(*(Happened(value=value) for value in given))]

        assert [repr(value) for value in values] == ["True", "7", "0.5"]

    @pytest.mark.torch
    def test_tensors(self, recorded):
        """torch.monitor: a tensor is a TypeError. Here one without dimensions is a number."""
        import torch

        assert [back.value for back in recorded(Happened(value=torch.tensor(0.5)))] == [0.5]

    def test_bytes_become_text(self, recorded):
        """torch.monitor: bytes become text. Here they stay bytes."""
        assert [back.value for back in recorded(Happened(value=b"\xff\x00"))] == [b"\xff\x00"]

    @pytest.mark.parametrize("value", [None, [1, "a", None], {"a": [1.5]}, [], {}])
    def test_none_lists_and_tables(self, recorded, value):
        """torch.monitor: None, lists and tables are a TypeError. Here they come back as they were."""
        assert [back.value for back in recorded(Happened(value=value))] == [value]

    def test_keys_that_are_no_text(self, recorded):
        """torch.monitor: a key that is no text is a TypeError. Here it becomes text."""
        assert [back.tags for back in recorded(Tagged(tags={7: "seven", "a": "b"}))] == [{"7": "seven", "a": "b"}]

    @pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**64 - 1])
    def test_large_ints(self, recorded, value):
        """torch.monitor: whole numbers have 63 bits. Here those of 64 come back as well."""
        assert [back.value for back in recorded(Happened(value=value))] == [value]

    @pytest.mark.parametrize("value", [2**64, object(), b"x" * 300_000])
    def test_value_that_cannot_be_recorded(self, recorded, bus, value):
        """torch.monitor: a bad value raises in the training loop. Here it costs one event, which is counted."""
        back = recorded(Happened(number=1), Happened(number=2, value=value), Happened(number=3))

        assert [kept.number for kept in back] == [1, 3]
        assert bus.stats().invalid == 1

    def test_half_a_character(self, recorded):
        """torch.monitor: a lone surrogate is a RuntimeError. Here it is recorded as its escape."""
        assert [back.value for back in recorded(Happened(value="a\ud800b"))] == [r"a\ud800b"]

    @pytest.mark.parametrize("at_ns", [1.7e18, None, "now", True])
    def test_times_that_are_none(self, recorded, bus, at_ns):
        """torch.monitor: a time that is none raises. Here it costs one event, and no other in the same batch."""
        back = recorded(Happened(number=1), Happened(number=2, at_ns=at_ns), Happened(number=3))

        assert [kept.number for kept in back] == [1, 3]
        assert bus.stats().invalid == 1

    def test_time_zone_is_dropped(self, recorded):
        """torch.monitor: a time's zone is dropped, so it is another time. Here it is kept."""
        east = datetime.timezone(datetime.timedelta(hours=5))
        at = datetime.datetime(2026, 1, 31, 0, 0, 0, 123456, tzinfo=east)

        assert [back.value for back in recorded(Happened(value=at))] == ["2026-01-31T00:00:00.123456+05:00"]

    def test_time_is_not_local(self, recorded):
        """torch.monitor: handlers get naive local time, in microseconds. Here it is ns since the epoch, everywhere."""
        assert [back.at_ns for back in recorded(Happened(at_ns=1_700_000_000_123_456_789))] == [
            1_700_000_000_123_456_789
        ]

    def test_data_is_a_copy(self, recorded):
        """torch.monitor: ``event.data["k"] = v`` changes a copy, to no effect. Here a field is the object itself."""
        tagged = Tagged(tags={"a": 1})
        tagged.tags["b"] = 2

        assert [back.tags for back in recorded(tagged)] == [{"a": 1, "b": 2}]

    def test_order_of_keys(self, recorded):
        """torch.monitor: the order of keys is not kept. Here it is."""
        names = [f"key{number * 7919 % 100}" for number in range(100)]

        assert [list(back.tags) for back in recorded(Tagged(tags=dict.fromkeys(names, 0)))] == [names]

    def test_equality(self):
        """torch.monitor: two events that say the same are not equal. Here they are."""
        assert Happened(value=1, at_ns=5) == Happened(value=1, at_ns=5)
        assert Happened(value=1, at_ns=5) != Happened(value=2, at_ns=5)

    def test_repr(self):
        """torch.monitor: an event prints as an address. Here as its constructor call."""
        assert repr(Happened(value="a", at_ns=5, step=3)) == (
            "Happened(at_ns=5, span_id=0, step=3, value='a', number=0)"
        )

    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))])
    def test_copies(self, recorded, duplicate):
        """torch.monitor: events cannot be copied or pickled. Here they can, with the source and number they had."""
        back = recorded(Happened(value=[1, 2]))[0]
        twin = duplicate(back)

        assert twin == back
        assert (twin.source, twin.seq) == (back.source, back.seq)

    def test_subclasses(self, bus):
        """torch.monitor: a subclass is delivered as any event. Here too, and to the handlers of its base."""

        @event("test.monitor.happened.again")
        class HappenedAgain(Happened):
            """An event that is derived from it."""

        got = []
        bus.subscribe(got.append, to=Happened)
        bus.log(HappenedAgain(number=2))

        assert [type(seen) for seen in got] == [HappenedAgain]


class TestHandlerRows:
    @pytest.mark.parametrize("error", [RuntimeError, MemoryError, GeneratorExit, StopIteration])
    def test_handler_raises(self, bus, error):
        """
        torch.monitor: an exception raised by a handler leaves log_event, and later handlers get nothing. Not so here.
        """
        got = []

        def explode(_):
            raise error("no")

        bus.subscribe(explode)
        bus.subscribe(got.append)
        bus.log(Happened(number=1))
        bus.log(Happened(number=2))

        assert [seen.number for seen in got] == [1, 2]
        assert bus.stats().failed == 2

    def test_handler_raises_in_a_destructor(self, bus):
        """torch.monitor: a handler that raises while a Stat is destroyed aborts. Here a destructor may log."""
        got = []

        class Owner:
            def __del__(self):
                bus.log(Happened(number=7))

        bus.subscribe(lambda _: 1 / 0)
        bus.subscribe(got.append)
        Owner()
        gc.collect()

        assert [seen.number for seen in got] == [7]

    def test_handler_raises_while_the_process_ends(self):
        """torch.monitor: the same aborts at exit. Here windows are published then, and the process ends well."""
        program = """
            trackside.subscribe(lambda window: 1 / 0, to=CounterWindow)
            trackside.subscribe(lambda window: print(window.total_sum), to=CounterWindow)
            trackside.collect(interval_s=1000)
            counter = trackside.stat("x")
            counter.record(5)

            class Owner:
                def __del__(self):
                    trackside.log(Happened())

            owner = Owner()
        """
        assert printed_after_preamble(program) == "5.0\n"

    @pytest.mark.hang_guard(60)
    def test_handler_logs(self, bus):
        """torch.monitor: a handler that logs deadlocks. Here it may."""
        got = []

        def handle(given):
            got.append(given.number)
            if given.number < 5:
                bus.log(Happened(number=given.number + 1))

        bus.subscribe(handle)
        bus.log(Happened(number=0))

        assert got == [0, 1, 2, 3, 4, 5]

    @pytest.mark.hang_guard(60)
    def test_handler_that_logs_for_ever(self, bus):
        """torch.monitor: as above. Here a handler that never stops is stopped 16 deep, and the rest counted."""
        depth = [0]

        def handle(given):
            depth[0] += 1
            bus.log(given)

        bus.subscribe(handle)
        bus.log(Happened())

        assert depth[0] == 16
        assert bus.stats().suppressed == 1

    @pytest.mark.hang_guard(60)
    def test_handler_subscribes_and_unsubscribes(self, bus):
        """torch.monitor: a handler that registers or unregisters one deadlocks. Here it may, itself included."""
        later = []

        def handle(_):
            subscription.close()
            bus.subscribe(later.append)

        subscription = bus.subscribe(handle)
        bus.log(Happened(number=1))
        bus.log(Happened(number=2))

        assert [seen.number for seen in later] == [2]

    @pytest.mark.hang_guard(60)
    @pytest.mark.parametrize("queued", [False, True])
    def test_handler_asks_the_bus(self, bus, queued):
        """
        torch.monitor: any call that needs the lock deadlocks. Here a handler may call any function, flush included.
        """
        answers = []

        def handle(_):
            answers.append((bus.stats() is not None, bus.wants(Happened), bus.flush(0.2) in {True, False}))

        bus.subscribe(handle, to=Happened, runs_on=RunsOn.WORKER if queued else None)
        bus.log(Happened())
        bus.flush(10.0)

        assert answers == [(True, True, True)]

    @pytest.mark.hang_guard(60)
    def test_two_threads_and_a_handler_that_sleeps(self, bus):
        """torch.monitor: two threads that log while a handler sleeps deadlock. Here both go on."""
        got = []

        def sleepy(given):
            threading.Event().wait(0.001)  # lets the other thread run
            got.append(given.number)

        bus.subscribe(sleepy, to=Happened)
        threads = [
            threading.Thread(target=lambda: [bus.log(Happened(number=number)) for number in range(50)])
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(got) == sorted([*range(50), *range(50)])

    def test_unsubscribe_twice(self):
        """torch.monitor: to unregister a handle twice is a segmentation fault. Here it is nothing."""
        program = """
            got = []
            subscription = trackside.subscribe(got.append, to=Happened)
            trackside.log(Happened())
            print([subscription.close(), subscription.close(), subscription.closed])
            trackside.log(Happened())
            print(len(got))
        """
        assert printed_after_preamble(program) == "[True, True, True]\n1\n"

    @pytest.mark.parametrize("handler", [None, 3, "print", object()])
    def test_subscribe_what_is_no_handler(self, bus, handler):
        """torch.monitor: None is accepted, and every log raises from then on. Here it is refused where it is given."""
        got = []
        bus.subscribe(got.append, to=Happened)
        with pytest.raises(ConfigError, match="give what can be called with one event"):
            bus.subscribe(handler)
        bus.log(Happened())

        assert len(got) == 1

    @pytest.mark.parametrize(
        "handler",
        [
            "print",
            "lambda event: None",
            "trackside.EventLog(sys.argv[1])",
            "trackside.JsonlSink(sys.argv[1] + '/a.jsonl')",
        ],
    )
    @pytest.mark.parametrize("happens", ["", "trackside.log(Happened())"])
    def test_subscribed_at_exit(self, tmp_path, handler, happens):
        """torch.monitor: a handler that is registered at exit is a segmentation fault. Here it is closed and done."""
        printed = printed_after_preamble(f"trackside.subscribe({handler})\n{happens}", tmp_path)
        assert ("Happened" in printed) is (handler == "print" and happens != "")

    def test_queued_at_exit(self):
        """torch.monitor: as above. Here a queued handler still gets the events logged before."""
        program = """
            trackside.subscribe(lambda given: print(given.number), to=Happened, runs_on=trackside.RunsOn.WORKER)
            for number in range(3):
                trackside.log(Happened(number=number))
        """
        assert printed_after_preamble(program) == "0\n1\n2\n"

    def test_handle_is_dropped(self, bus):
        """torch.monitor: a handler stays when its handle is dropped. Here too: no handler vanishes unasked."""
        got = []
        bus.subscribe(lambda given: got.append(given), to=Happened)
        gc.collect()
        bus.log(Happened())

        assert len(got) == 1

    def test_registered_twice(self, bus):
        """torch.monitor: a function that is registered twice is called twice. Here too, and each place is counted."""
        got = []
        first, second = (bus.subscribe(got.append, to=Happened) for _ in range(2))
        bus.log(Happened())
        first.close()
        bus.log(Happened())

        assert len(got) == 3
        assert (first.stats().handled, second.stats().handled) == (1, 2)


class TestStatRows:
    def test_last_window_when_the_handler_goes_at_exit(self):
        """torch.monitor: with its handler removed at exit a Stat's last window is lost. Here the bus's close has it."""
        program = """
            import atexit

            windows = []
            trackside.subscribe(windows.append, to=CounterWindow)
            trackside.collect(interval_s=1000)
            atexit.register(lambda: print([window.total_sum for window in windows]))
            atexit.register(trackside.close)
            trackside.stat("x").record(5)
        """
        assert printed_after_preamble(program) == "[5.0]\n"

    def test_nobody_holds_the_counter(self, bus):
        """torch.monitor: dropping a Stat logs its open window. Here dropping counter and collector changes nothing."""
        windows = []
        bus.subscribe(windows.append, to=CounterWindow)
        bus.collect(interval_s=1000)
        bus.stat("x").record(5)
        gc.collect()
        before = len(windows)
        bus.stat("x").record(6)
        bus.close()

        assert (before, [(window.count, window.total_sum) for window in windows]) == (0, [(2, 11.0)])

    def test_mean_of_whole_numbers(self, bus):
        """torch.monitor: the mean of whole numbers is rounded down (C++). Here it is the mean."""
        windows = []
        bus.subscribe(windows.append, to=CounterWindow)
        with bus.collect(interval_s=1000, aggregations=["mean"]):
            for value in (1, 2):
                bus.stat("x").record(value)

        assert [window.values for window in windows] == [{"mean": 1.5}]

    def test_fork_counts_twice(self, tmp_path):
        """torch.monitor: a forked child shares a copy of the open window, and both log it. Here each logs its own."""
        program = """
            import os

            job = trackside.start(sys.argv[1], collect_interval_s=1000, report=False)
            counter = trackside.stat("x")
            counter.record(1)
            child = os.fork()
            if child == 0:
                counter.record(10)
                trackside.close()
                os._exit(0)
            os.waitpid(child, 0)
            counter.record(100)
        """
        printed_after_preamble(program, tmp_path)
        windows = list(replay(tmp_path, to=CounterWindow))
        reported = {window.source.role: (window.count, window.total_sum) for window in windows}

        assert reported == {"main": (2, 101.0), "worker": (1, 10.0)}
        assert len(windows) == 2
