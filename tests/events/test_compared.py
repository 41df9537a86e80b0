"""Comparison, hashing and representation of values, equal to those that attrs generates for each class."""

from __future__ import annotations

import importlib.metadata
import math

import attrs
import pytest

from trackside.events import Compared, Event, Value, event


@attrs.frozen(eq=False, repr=False)
class Place(Value):
    x: int
    y: float = 0.0
    note: str = attrs.field(default="", eq=False)
    secret: str = attrs.field(default="", repr=False)
    label: str = attrs.field(default="", eq=str.lower)
    tags: dict = attrs.field(factory=dict, hash=False)


@attrs.frozen(eq=False, repr=False)
class Spot(Place):
    pass


@attrs.define(eq=False, repr=False)
class Box(Compared):
    content: object = None


@attrs.frozen
class AsAttrsDoes:
    x: int
    y: float = 0.0
    note: str = attrs.field(default="", eq=False)
    secret: str = attrs.field(default="", repr=False)
    label: str = attrs.field(default="", eq=str.lower)
    tags: dict = attrs.field(factory=dict, hash=False)


PAIRS = [
    ({"x": 1}, {"x": 1}),
    ({"x": 1}, {"x": 2}),
    ({"x": 1}, {"x": True}),
    pytest.param(
        {"x": 1, "y": math.nan},
        {"x": 1, "y": math.nan},
        marks=pytest.mark.skipif(
            int(importlib.metadata.version("attrs").partition(".")[0]) < 24,
            reason="attrs compared tuples until 23.2, where the same NaN is equal to itself",
        ),
    ),
    ({"x": 1, "note": "a"}, {"x": 1, "note": "b"}),
    ({"x": 1, "secret": "a"}, {"x": 1, "secret": "b"}),
    ({"x": 1, "label": "A"}, {"x": 1, "label": "a"}),
    ({"x": 1, "tags": {"a": 1}}, {"x": 1, "tags": {"a": 2}}),
]


class TestEquality:
    @pytest.mark.parametrize(("one", "other"), PAIRS)
    def test_as_attrs(self, one, other):
        """Two values are equal exactly where attrs finds them so."""
        assert (Place(**one) == Place(**other)) is (AsAttrsDoes(**one) == AsAttrsDoes(**other))

    def test_every_field(self):
        """One field that differs is enough, even the last."""
        assert Place(1, tags={"a": 1}) != Place(1)

    def test_derived_class(self):
        """A value of a derived class is not equal."""
        assert Place(1) != Spot(1)

    def test_something_else(self):
        """Comparison with an object of another class returns NotImplemented, so that the other object may answer."""
        assert Place(1).__eq__((1, 0.0)) is NotImplemented


class TestHash:
    def test_equal(self):
        """Equal values have one hash, whatever the fields that do not count hold."""
        assert hash(Place(1, label="A", note="a", tags={"a": 1})) == hash(Place(1, label="a", note="b"))

    @pytest.mark.parametrize("other", [Place(2), Place(1, 1.0), Place(1, secret="s")])
    def test_counts(self, other):
        """Each field that counts changes it."""
        assert len({Place(1), other}) == 2

    def test_changing(self):
        """A mutable value has no hash."""
        with pytest.raises(TypeError, match="unhashable"):
            hash(Box())


class TestShowing:
    def test_as_built(self):
        """A value is shown as its constructor call, without the fields that are hidden."""
        shown = "Place(x=1, y=0.5, note='n', label='', tags={})"
        assert repr(Place(1, 0.5, note="n", secret="s")) == shown

    def test_itself_inside(self):
        """A value that holds itself is shown without endless recursion."""
        box = Box()
        box.content = [box]
        assert repr(box) == "Box(content=[...])"

    def test_inner_class(self):
        """A class defined in a function is shown by its own name."""

        @attrs.frozen(eq=False, repr=False)
        class Inner(Value):
            pass

        assert repr(Inner()) == "Inner()"


class TestEvents:
    def test_shown(self):
        """An event is shown with its envelope first."""
        assert repr(Event(at_ns=1, span_id=2, step=3)) == "Event(at_ns=1, span_id=2, step=3)"

    def test_unhashable(self):
        """An event has no hash, as its fields can be changed."""
        with pytest.raises(TypeError, match="unhashable"):
            hash(Event())

    def test_own_way(self, forgetful):
        """A class may define for itself when its events are equal."""

        @event("test.compared.own")
        class Alike(Event):
            number: int

            def __eq__(self, other):
                return True

            def __hash__(self):
                return 7

        assert (Alike(number=1) == 3, hash(Alike(number=1))) == (True, 7)
