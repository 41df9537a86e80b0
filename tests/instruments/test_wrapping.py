from __future__ import annotations

import types

import pytest

from trackside.events import ConfigError, SectionWindow
from trackside.instruments import section_windows as module
from trackside.instruments._wrapping import NamedCallable, restore_callables, wrap_callables


class Model:
    def forward(self, x):
        """Add one."""
        return x + 1

    @staticmethod
    def static(x):
        """Add two."""
        return x + 2

    @classmethod
    def build(cls, x):
        """Return the name of its object."""
        return cls.__name__, x

    attribute = 7


class Derived(Model):
    pass


@pytest.fixture(autouse=True)
def restored(captured):
    yield
    restore_callables(everything=True)
    module._sections.close()


@pytest.fixture
def counts(captured):
    """Return how often each section was timed."""

    def close():
        module.step_ended(0)
        module.close_section_window()
        event = captured.of(SectionWindow)[-1]
        return dict(zip(event.names, event.counts, strict=True))

    return close


class TestCallableId:
    def test_names(self):
        """A wrapped method is named after its object's class and itself."""
        a_module = types.ModuleType("some.module")
        assert [str(NamedCallable(owner, "go")) for owner in (a_module, Model, Model())] == [
            "some.module.go",
            f"{__name__}.Model.go",
            "Model.go",
        ]


class TestWrap:
    def test_instance(self, counts):
        """A method of one object is timed, and those of others are not."""
        one, other = Model(), Model()
        wrap_callables([NamedCallable(one, "forward")])
        assert (one.forward(1), one.forward(2), other.forward(3)) == (2, 3, 4)
        assert counts() == {"Model.forward": 2}

    @pytest.mark.parametrize(("name", "expected"), [("static", 3), ("build", ("Model", 1))])
    def test_class(self, counts, name, expected):
        """Static and class methods of a class keep their kind."""
        wrap_callables([NamedCallable(Model, name)])
        assert (getattr(Model, name)(1), getattr(Model(), name)(1)) == (expected, expected)
        assert counts() == {f"{__name__}.Model.{name}": 2}

    def test_method_of_a_class(self, counts):
        """A method wrapped on its class is timed for every object."""
        wrap_callables([NamedCallable(Model, "forward")])
        assert Model().forward(1) == 2
        assert counts() == {f"{__name__}.Model.forward": 1}

    @pytest.mark.parametrize("name", ["nothing", "attribute"])
    def test_not_callable(self, name):
        """A missing attribute or one that is no function is refused, and nothing is wrapped."""
        before = vars(Model)["forward"]
        with pytest.raises(ConfigError, match=name):
            wrap_callables([NamedCallable(Model, "forward"), NamedCallable(Model, name)])
        assert vars(Model)["forward"] is before


class TestRestore:
    @pytest.mark.parametrize("name", ["forward", "static", "build"])
    def test_as_before(self, name):
        """After unwrapping, the attribute is the original object."""
        before = vars(Model)[name]
        wrap_callables([NamedCallable(Model, name)])
        assert vars(Model)[name] is not before
        restore_callables()
        assert vars(Model)[name] is before

    @pytest.mark.parametrize("make", [Model, lambda: Derived])
    def test_inherited(self, make):
        """An inherited method is inherited again."""
        owner = make()
        wrap_callables([NamedCallable(owner, "forward")])
        assert "forward" in vars(owner)
        restore_callables()
        assert "forward" not in vars(owner)

    def test_stack(self, counts):
        """Wrappers are removed in the reverse order, and none is lost."""
        before = vars(Model)["forward"]
        wrap_callables([NamedCallable(Model, "forward")])
        wrap_callables([NamedCallable(Model, "forward"), NamedCallable(Model, "static")])
        assert restore_callables() == 1
        Model().forward(1)
        assert counts() == {f"{__name__}.Model.forward": 1}
        assert restore_callables() == 0
        assert vars(Model)["forward"] is before

    def test_twice_in_one_layer(self):
        """An attribute that was wrapped twice at once is restored all the same."""
        before = vars(Model)["forward"]
        wrap_callables([NamedCallable(Model, "forward")] * 2)
        restore_callables()
        assert vars(Model)["forward"] is before

    def test_nothing_wrapped(self):
        """Without a wrapper nothing is changed."""
        assert restore_callables() == 0

    def test_wrapped_again_by_others(self):
        """An object that others put in its place meanwhile stays."""
        model = Model()
        wrap_callables([NamedCallable(model, "forward")])
        model.forward = theirs = lambda x: x
        restore_callables()
        assert model.forward is theirs
