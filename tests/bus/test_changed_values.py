"""Values that the program changes after it logged them: recorded as they were."""

from __future__ import annotations

import functools
import gc
import sys
from typing import Any

import attrs
import pytest

import trackside
from blocks import growth_here
from implementations import needs_core
from trackside.bus import default_bus
from trackside.events import Event, IterationEnded, RunsOn, SpanEnded, event
from trackside.events.vocabulary import IterationSpanEnded, ProfileSpanEnded
from trackside.wire import changeable_fields


@attrs.define
class Shape:
    """A value that can be changed."""

    sizes: list[int]


@event("test.changed.any")
class Noted(Event):
    value: Any = None
    table: dict[str, Any] = attrs.field(factory=dict)


@event("test.changed.counted")
class Counted(IterationEnded):
    values: list[Any] = attrs.field(factory=list)


@event("test.changed.end")
class End(SpanEnded):
    tags: list[str] = attrs.field(factory=list)


@event("test.changed.numbered_end")
class NumberedEnd(SpanEnded):
    number: int = 0


class WithoutSlots:
    """Gives those derived from it a dict of attributes."""


@event("test.changed.loose")
class Loose(WithoutSlots, Noted):
    pass


def recorded(bus, frames, held_still, value, change):
    """Return the field of an event whose value was changed while it waited."""
    bus.subscribe(frames)
    bus.log(Noted())  # Python finds the route of the first
    bus.flush()
    go_on = held_still(bus)
    bus.log(Noted(value=value))
    change(value)
    go_on()
    bus.flush()
    _, noted = frames.events(Noted)
    return noted.value


@pytest.mark.parametrize(
    ("value", "change", "expected"),
    [
        pytest.param({"a": 1}, lambda it: it.update(a=2), {"a": 1}, id="dict"),
        pytest.param({}, lambda it: it.update(a=2), {}, id="empty dict"),
        pytest.param([1, 2], lambda it: it.append(3), [1, 2], id="list"),
        pytest.param({"a": [{"b": 1}]}, lambda it: it["a"][0].update(b=2), {"a": [{"b": 1}]}, id="nested"),
        pytest.param(([1],), lambda it: it[0].append(2), [[1]], id="in a tuple"),
        pytest.param({3}, lambda it: it.add(4), [3], id="set"),
        pytest.param(bytearray(b"ab"), lambda it: it.extend(b"c"), b"ab", id="bytearray"),
        pytest.param(Shape([1]), lambda it: it.sizes.append(2), {"sizes": [1]}, id="attrs object"),
    ],
)
def test_recorded_as_logged(bus, frames, held_still, *, value, change, expected):
    """A value that is changed after log() is recorded as it was when it was logged."""
    assert recorded(bus, frames, held_still, value, change) == expected


def test_event_that_is_changed_and_logged_again(bus, frames, held_still):
    """Changes of the event after log(), and of the values in it, are in the next record alone."""
    bus.subscribe(frames)
    bus.log(Noted())  # as above
    bus.flush()
    go_on = held_still(bus)
    noted = Noted(value=[1], table={"a": 1})
    values = noted.value
    bus.log(noted)
    noted.value.append(2)
    noted.table["a"] = 2
    bus.log(noted)
    noted.value = None
    go_on()
    bus.flush()
    assert [(one.value, one.table) for one in frames.events(Noted)[1:]] == [([1], {"a": 1}), ([1, 2], {"a": 2})]
    assert values == [1, 2]


@event("test.changed.number")
class Numbered(Event):
    number: int = 0


@needs_core
def test_field_that_is_assigned_anew(bus, frames, held_still):
    """The compiled core records an event of scalars as it was, too: it copies an event that somebody else holds."""
    bus.subscribe(frames)
    bus.log(Numbered(number=-1))  # Python finds the route of the first
    bus.flush()
    go_on = held_still(bus)
    numbered = Numbered()
    for number in range(3):
        numbered.number = number
        bus.log(numbered)
    numbered.number = -2
    bus.log(Numbered(number=3))
    kept = [Numbered(number=4)]
    bus.log(kept[0])
    kept[0].number = -3
    go_on()
    bus.flush()
    assert [one.number for one in frames.events(Numbered)] == [-1, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(lambda bus, it: bus.log(*it), id="tuple"),
        pytest.param(lambda bus, it: functools.partial(bus.log, it[0])(), id="partial"),
        pytest.param(lambda bus, it: list(map(bus.log, it)), id="map"),
    ],
)
def test_argument_that_the_caller_keeps(bus, frames, held_still, log):
    """An event in a tuple of arguments, to which nothing else refers, is recorded as it was."""
    bus.subscribe(frames)
    bus.log(Noted())  # Python finds the route of the first
    bus.flush()
    go_on = held_still(bus)
    arguments = (Noted(table={"a": 1}),)
    log(bus, arguments)
    arguments[0].table["a"] = 2
    go_on()
    bus.flush()
    assert [one.table for one in frames.events(Noted)] == [{}, {"a": 1}]


@event("test.changed.hooked")
class Hooked(Event):
    doubled: int = attrs.field(converter=lambda value: 2 * value)
    kept: Any = attrs.field(default=None, on_setattr=attrs.setters.frozen)


def test_fields_with_hooks(bus):
    """Copying an event neither converts its values again nor asks whether they may be set."""
    found = []
    bus.subscribe(lambda one: found.append((one.doubled, one.kept)), to=Hooked, runs_on=RunsOn.DISPATCHER)
    for number in range(3):
        bus.log(Hooked(doubled=number, kept=[number]))
    bus.flush()
    assert found == [(0, [0]), (2, [1]), (4, [2])]


@needs_core
def test_copies_leave_no_memory_behind(bus):
    """Copies of 500 events that somebody holds are freed once they were delivered."""
    bus.subscribe(lambda _: None, to=Numbered, runs_on=RunsOn.DISPATCHER)
    held = [Numbered(number=number) for number in range(500)]

    def run():
        for each in held:
            bus.log(each)
        assert bus.flush()

    assert growth_here(run) < 100


@needs_core
def test_copies_of_values_leave_no_memory_behind(bus):
    """The same of 500 events with lists and maps that the program shares, keeps or gave away."""
    bus.subscribe(lambda _: None, to=Noted, runs_on=RunsOn.DISPATCHER)
    held, table, value = [Noted(value=[number], table={"a": number}) for number in range(500)], {"b": 1}, [2.5]

    def run():
        for each in held:
            bus.log(each)
            bus.log(Noted(value=value, table=table))
            bus.log(Noted(value=[each.value], table={"c": 0.5}))
            bus.log(Noted(value=[1.5], table={"c": 0.5}))
        assert bus.flush()

    assert growth_here(run) < 100


@needs_core
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the garbage collector visits every dict")
@pytest.mark.parametrize(
    ("value", "is_visited"), [(1, False), ([1], True), ((1,), True)], ids=["scalar", "list", "tuple"]
)
def test_visited_by_the_garbage_collector(bus, value, is_visited):
    """Events that wait are left out, unless they have a list or a tuple: a map of scalars is left out itself."""
    found = []
    bus.subscribe(lambda noted: found.append(gc.is_tracked(noted)), to=Noted, runs_on=RunsOn.DISPATCHER)
    bus.log(Noted())  # Python finds the route of the first
    bus.log(Noted(value=value, table={"a": 0.5}))
    assert bus.flush()
    assert found[1:] == [is_visited]


def test_iteration_with_a_list(bus, frames, held_still):
    """So is the end of an iteration of a class that declares more fields, however deep its values are."""
    bus.subscribe(frames)
    bus.log(Counted(duration_ns=1))
    bus.flush()
    go_on = held_still(bus)
    values = [[1]]
    bus.log(Counted(duration_ns=1, values=values))
    values[0].append(2)
    go_on()
    bus.flush()
    assert [one.values for one in frames.events(Counted)] == [[], [[1]]]


@pytest.mark.parametrize(
    ("field", "value", "change", "expected"),
    [
        ("tags", ["a"], lambda it: it.append("b"), ["a"]),
        ("attributes", {"a": 1}, lambda it: it.update(a=2), {"a": 1}),
        ("error", {"type": "a"}, lambda it: it.update(type="b"), {"type": "a"}),
    ],
)
def test_end_with_a_list(bus, frames, held_still, *, field, value, change, expected):
    """So are all values of a span's end that the program logs, of a class that declares a list."""
    bus.subscribe(frames)
    bus.log(End(name="", duration_ns=1))  # Python finds the route of the first
    bus.flush()
    go_on = held_still(bus)
    bus.log(End(name="", duration_ns=1, **{field: value}))
    change(value)
    go_on()
    bus.flush()
    assert getattr(frames.events(End)[1], field) == expected


@pytest.mark.parametrize("cls", [SpanEnded, IterationSpanEnded, ProfileSpanEnded, NumberedEnd, IterationEnded])
def test_ends_that_are_not_copied(cls):
    """Nothing is copied of the ends of spans and iterations that declare no more than numbers."""
    assert changeable_fields(cls) == ()


def test_event_with_a_dict_of_attributes(bus, frames, held_still):
    """An event of a class without slots is copied, too."""
    bus.subscribe(frames)
    bus.flush()
    go_on = held_still(bus)
    loose = Loose(value=[1])
    loose.note = "of the program"
    bus.log(loose)
    loose.value.append(2)
    go_on()
    bus.flush()
    assert [one.value for one in frames.events(Loose)] == [[1]]


def test_array(bus, frames, held_still):
    """An array of one number is recorded with the number that it had."""
    numpy = pytest.importorskip("numpy")
    assert recorded(bus, frames, held_still, numpy.array(1.5), lambda it: it.fill(2.5)) == 1.5


def test_tensor(bus, frames, held_still):
    """A tensor of one number that was computed with gradients is recorded with the number that it had."""
    torch = pytest.importorskip("torch")
    loss = torch.ones(1, requires_grad=True) * 3
    assert recorded(bus, frames, held_still, loss, lambda it: it.detach().zero_()) == 3.0


def test_what_cannot_be_recorded(bus, frames):
    """A list that holds itself costs its own event, and the next one is recorded."""
    endless: list[Any] = []
    endless.append(endless)
    bus.subscribe(frames)
    bus.log(Noted(value=endless))
    bus.log(Noted(value=1))
    bus.flush()
    assert [noted.value for noted in frames.events(Noted)] == [1]


@pytest.mark.parametrize(("value", "expected"), [(1, 1), ([1], [1])], ids=["scalar", "list"])
def test_attributes_of_a_span(frames, held_still, value, expected):
    """Attributes of a span that are changed after its end are recorded as they were."""
    with default_bus.subscribe(frames):
        default_bus.flush()
        go_on = held_still(default_bus)
        with trackside.span("changed", a=value) as span:
            pass
        span.attributes["b"] = 2
        if isinstance(value, list):
            value.append(2)
        go_on()
        default_bus.flush()
    (ended,) = frames.events(SpanEnded)
    assert ended.attributes == {"a": expected}
