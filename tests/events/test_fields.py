"""The fields of an event class, and the types they are declared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside.events import Event, IterationEnded, event
from trackside.events._fields import hints_of, is_flat, own_fields

if TYPE_CHECKING:
    from decimal import Decimal


@event("test.fields.ordered")
class Ordered(Event):
    b: int
    a: str = ""
    step: int


@event("test.fields.derived")
class Derived(Ordered):
    c: float | None = None


@event("test.fields.hidden")
class Hidden(Event):
    when: Decimal
    count: int


class TestOwnFields:
    def test_order(self):
        """Fields come in order of declaration, without those of the envelope."""
        assert own_fields(Ordered) == ("b", "a")

    def test_inherited(self):
        """Inherited fields come first."""
        assert own_fields(Derived) == ("b", "a", "c")


class TestHintsOf:
    def test_types(self):
        """Each field has its type, the envelope's too."""
        hints = hints_of(Derived)
        assert (hints["b"], hints["a"], hints["c"], hints["at_ns"]) == (int, str, float | None, int)

    def test_types_for_checkers(self):
        """A type that is imported for type checkers alone counts as Any; the others keep their types."""
        hints = hints_of(Hidden)
        assert (hints["when"], hints["count"], hints["step"]) == (Any, int, int)

    def test_local_types(self):
        """So does one that is local to a function."""

        class Local:
            pass

        @event("test.fields.local")
        class UsesLocal(Event):
            value: Local
            count: int

        hints = hints_of(UsesLocal)
        assert (hints["value"], hints["count"]) == (Any, int)

    def test_inherited_scope(self):
        """Types are found in the module of the class that names them."""

        @event("test.fields.elsewhere")
        class Elsewhere(IterationEnded):
            value: Missing  # noqa: F821

        assert hints_of(Elsewhere)["loss"] == float | None


class TestIsFlat:
    def test_scalars(self):
        """Scalars are flat, and so are unions of them."""
        assert is_flat([int, str, bool, float, bytes, type(None), int | None, str | int | None])

    def test_else(self):
        """Types that hold several values are not flat, nor is Any."""
        for hint in (list, dict[str, float], tuple[int, ...], Any, object, list[int] | None, int | dict[str, int]):
            assert not is_flat([int, hint])
