"""The event: its envelope, its declaration, and its use by readers."""

from __future__ import annotations

import copy
import pickle

import pytest

from trackside.events import (
    ITERATION,
    LIFECYCLE,
    PROFILE,
    ConfigError,
    DuplicateEventError,
    Event,
    Source,
    SpanEnded,
    UnknownEvent,
    ambient,
    clock,
    event,
    is_declared,
    lookup,
    process_source,
)
from trackside.testing import recorded


@event("test.event.skipped")
class Skipped(Event):
    reason: str
    count: int = 1


@event("test.event.numbered", priority=PROFILE, version=3, derived=True)
class Numbered(Event):
    step: int
    loss: float | None = None


@event("test.event.skipped.again", priority=LIFECYCLE)
class SkippedAgain(Skipped):
    times: int


@pytest.fixture
def surroundings():
    """Be inside span 7, at step 42."""
    token = ambient.set((7, 42))
    yield
    ambient.reset(token)


@pytest.fixture
def noon():
    """Have the wall clock stand at 12:00 and the monotonic one at 100."""
    with clock.installed(lambda: 100, lambda: 43_200_000_000_000):
        yield 43_200_000_000_000


class TestEnvelope:
    def test_time(self, noon):
        """An event's time is the time of its construction."""
        assert Skipped(reason="nan").at_ns == noon

    def test_given_time(self):
        """The time can be given."""
        assert Skipped(reason="nan", at_ns=5).at_ns == 5

    def test_given_zeros(self, surroundings):
        """Zero is a time, a span and a step like any other."""
        skipped = Skipped(reason="nan", at_ns=0, span_id=0, step=0)
        assert (skipped.at_ns, skipped.span_id, skipped.step) == (0, 0, 0)

    def test_nowhere(self):
        """Outside of all spans and steps the span is 0 and the step -1."""
        skipped = Skipped(reason="nan")
        assert (skipped.span_id, skipped.step) == (0, -1)

    def test_surroundings(self, surroundings):
        """The span and the step are those open around the code that builds the event."""
        skipped = Skipped(reason="nan")
        assert (skipped.span_id, skipped.step) == (7, 42)

    def test_given_span(self, surroundings):
        """With a given span the step is still that of the context."""
        skipped = Skipped(reason="nan", span_id=8)
        assert (skipped.span_id, skipped.step) == (8, 42)

    def test_given_step(self, surroundings):
        """With a given step the span is still that of the context."""
        skipped = Skipped(reason="nan", step=43)
        assert (skipped.span_id, skipped.step) == (7, 43)

    def test_given_none(self, surroundings):
        """Inside a span and a step, an event can be given none of either."""
        skipped = Skipped(reason="nan", span_id=0, step=-1)
        assert (skipped.span_id, skipped.step) == (0, -1)

    def test_smallest_number(self):
        """Even the smallest number that an event can hold can be given: it does not stand for the default."""
        assert Skipped(reason="nan", at_ns=-(2**63)).at_ns == -(2**63)

    def test_own_step(self, surroundings):
        """A class may declare the step as a field of its own; then the context does not set it."""
        numbered = Numbered(step=3)
        assert (numbered.span_id, numbered.step) == (7, 3)

    def test_own_step_is_needed(self):
        """Such a step must be given."""
        with pytest.raises(TypeError):
            Numbered()

    def test_own_ending(self, noon):
        """A class that finishes its construction itself finds the envelope filled, and need not fill it."""

        @event("test.event.finishing")
        class Finishing(Event):
            late: bool = False

            def __attrs_post_init__(self):
                self.late = self.at_ns >= 43_200_000_000_000

        finishing = Finishing()
        assert (finishing.at_ns, finishing.late, finishing.step) == (noon, True, -1)

    def test_own_ending_of_a_span(self, surroundings):
        """Such a class of events of spans finds the span around it, too."""

        @event("test.event.finishing.span")
        class Finishing(SpanEnded):
            seen: int = 0

            def __attrs_post_init__(self):
                self.seen = self.parent_span_id

        finishing = Finishing(name="ended", duration_ns=1, attributes={})
        assert (finishing.span_id, finishing.parent_span_id, finishing.step, finishing.seen) == (0, 7, 42, 7)

    def test_own_ending_inherited(self, noon):
        """So do the classes derived from it, and calling the inherited one does no harm."""

        @event("test.event.finishing.first")
        class First(Event):
            calls: int = 0

            def __attrs_post_init__(self):
                self.calls += 1

        @event("test.event.finishing.second")
        class Second(First):
            def __attrs_post_init__(self):
                super().__attrs_post_init__()
                self.calls += 10

        second = Second()
        assert (second.at_ns, second.calls) == (noon, 11)

    def test_no_other_attributes(self):
        """An event has slots: a misspelt attribute is an error."""
        with pytest.raises(AttributeError):
            Skipped(reason="nan").resaon = "typo"

    def test_unknown_argument(self):
        """So is a misspelt argument."""
        with pytest.raises(TypeError):
            Skipped(resaon="typo")


class TestProvenance:
    def test_source(self):
        """An event that was not read comes from this process."""
        assert Skipped(reason="nan").source is process_source()

    def test_seq(self):
        """It has no number before it gets one."""
        assert Skipped(reason="nan").seq is None

    def test_written(self):
        """The bus or the reader sets both."""
        skipped, source = Skipped(reason="nan"), Source(rank=3)
        skipped._source, skipped._seq = source, 9
        assert (skipped.source, skipped.seq) == (source, 9)

    def test_equality(self):
        """Events are equal if their fields are, whatever their sources."""
        one, other = Skipped(reason="nan", at_ns=1), Skipped(reason="nan", at_ns=1)
        assert recorded(one, source=Source(rank=3), seq=9) == other

    @pytest.mark.parametrize(
        "duplicate",
        [copy.copy, copy.deepcopy, lambda event: pickle.loads(pickle.dumps(event))],
        ids=["copy", "deepcopy", "pickle"],
    )
    def test_copies(self, duplicate):
        """A copy has the number and the source of its original."""
        skipped = recorded(Skipped(reason="nan"), source=Source(rank=3), seq=9)
        twin = duplicate(skipped)
        assert (twin, twin.source.id, twin.seq) == (skipped, skipped.source.id, 9)


class TestDeclaration:
    def test_attributes(self):
        """A class declares its wire name, its priority, its version and whether it is derived."""
        assert (Numbered.wire_name, Numbered.priority, Numbered.version, Numbered.derived) == (
            "test.event.numbered",
            PROFILE,
            3,
            True,
        )

    def test_defaults(self):
        """The defaults are priority ITERATION, version 1, not derived."""
        assert (Skipped.priority, Skipped.version, Skipped.derived) == (ITERATION, 1, False)

    def test_inheritance(self):
        """
        A derived class has its base's fields, a name and a priority of its own, and its events are events of its base.
        """
        again = SkippedAgain(reason="nan", times=2)
        assert isinstance(again, Skipped)
        assert (again.reason, again.count, again.times) == ("nan", 1, 2)
        assert (SkippedAgain.wire_name, SkippedAgain.priority) == ("test.event.skipped.again", LIFECYCLE)
        assert (Skipped.wire_name, Skipped.priority) == ("test.event.skipped", ITERATION)

    def test_super(self):
        """Methods of an event class can call those of its base."""

        @event("test.event.super")
        class Loud(Skipped):
            def __str__(self):
                return super().__repr__().upper()

        assert "REASON='NAN'" in str(Loud(reason="nan"))

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "skipped",
            "acme.",
            ".acme",
            "acme..skipped",
            "Acme.skipped",
            "acme.Skipped",
            "acme.batch skipped",
            "acme.batch-skipped",
            "acme.skipped\n",
            "1acme.skipped",
            "acme.übersprungen",
            "a." + "b" * 127,
            7,
            None,
        ],
    )
    def test_bad_name(self, name):
        """A malformed name is refused, and the error says so."""
        with pytest.raises(ConfigError) as caught:
            event(name)
        assert (caught.value.field, caught.value.given) == ("event name", name)

    def test_longest_name(self, forgetful):
        """A name has at most 128 characters."""
        name = "a." + "b" * 126
        assert event(name)(type("Long", (Event,), {})).wire_name == name

    @pytest.mark.parametrize("version", [0, -1, 65_536, 1.0, "1", True, None])
    def test_bad_version(self, version):
        """A version is a whole number from 1 to 65,535."""
        with pytest.raises(ConfigError) as caught:
            event("test.event.bad", version=version)
        assert (caught.value.field, caught.value.given) == ("event version", version)

    @pytest.mark.parametrize("priority", [0, 4, "LIFECYCLE", None])
    def test_bad_priority(self, priority):
        """A priority is one of the three."""
        with pytest.raises(ConfigError) as caught:
            event("test.event.bad", priority=priority)
        assert (caught.value.field, caught.value.given) == ("event priority", priority)

    @pytest.mark.parametrize("given", [object, int, print, "Event", None])
    def test_no_event(self, given):
        """Only a class that derives from Event can be declared."""
        with pytest.raises(ConfigError) as caught:
            event("test.event.bad")(given)
        assert caught.value.field == "@event"

    @pytest.mark.parametrize("name", ["source", "seq", "version", "priority", "derived", "wire_name"])
    def test_taken_field(self, name):
        """A field cannot have the name of an envelope field."""
        with pytest.raises(ConfigError) as caught:
            event("test.event.bad")(type("Bad", (Event,), {"__annotations__": {name: "str"}}))
        assert caught.value.given == name

    def test_too_many_fields(self):
        """A class has at most 1,024 fields."""
        many = {f"f{number}": "int" for number in range(1025)}
        with pytest.raises(ConfigError, match="1025 fields; at most 1024"):
            event("test.event.bad")(type("Bad", (Event,), {"__annotations__": many}))

    def test_refused_is_unknown(self):
        """A class that was refused is not declared."""
        with pytest.raises(ConfigError):
            event("test.event.bad")(type("Bad", (Event,), {"__annotations__": {"seq": "int"}}))
        assert lookup("test.event.bad") is None


class TestDuplicates:
    def test_other_class(self):
        """Two classes cannot have one name; the error names both."""
        with pytest.raises(DuplicateEventError) as caught:

            @event("test.event.skipped")
            class Other(Event):
                pass

        assert caught.value.name == "test.event.skipped"
        assert caught.value.first is Skipped
        assert "Skipped" in str(caught.value)
        assert "Other" in str(caught.value)

    def test_refused(self):
        """The second of them is not declared."""
        other = type("Other", (Event,), {})
        with pytest.raises(DuplicateEventError) as caught:
            event("test.event.skipped")(other)
        assert not is_declared(caught.value.second)

    def test_same_name_elsewhere(self):
        """Two classes of equal name in different modules are different classes."""
        with pytest.raises(DuplicateEventError):
            event("test.event.skipped")(type("Skipped", (Event,), {"__module__": "somewhere.else"}))

    def test_reload(self, forgetful):
        """A module that is loaded again declares its classes again; readers get the newer one."""

        def declare():
            @event("test.event.reloaded")
            class Reloaded(Event):
                pass

            return Reloaded

        first, second = declare(), declare()
        assert first is not second
        assert lookup("test.event.reloaded") is second

    def test_older_self(self, forgetful):
        """Code that still has the older class can go on publishing it."""
        older = event("test.event.reloaded")(type("Reloaded", (Event,), {}))
        event("test.event.reloaded")(type("Reloaded", (Event,), {}))
        assert is_declared(older)

    @pytest.mark.parametrize("name", ["__main__", "__mp_main__"])
    def test_main_module(self, forgetful, name):
        """A script's classes exist twice where the script is imported too, also in a spawned child."""
        event("test.event.script")(type("Scripted", (Event,), {"__module__": name}))
        again = event("test.event.script")(type("Scripted", (Event,), {"__module__": "train"}))
        assert is_declared(again)


class TestIsDeclared:
    def test_declared(self):
        """A decorated class is declared."""
        assert is_declared(Skipped)

    def test_derived(self):
        """A class derived from one, and not decorated itself, is not: it would have its base's wire name."""
        assert not is_declared(type("Sub", (Skipped,), {}))

    @pytest.mark.parametrize("cls", [Event, int])
    def test_others(self, cls):
        """No other object is."""
        assert not is_declared(cls)

    def test_unknown(self):
        """The class of unknown events is declared as well."""
        assert is_declared(UnknownEvent)
