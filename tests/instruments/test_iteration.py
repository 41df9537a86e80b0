"""Iterations: their steps, their fields, and their cost while no handler listens."""

from __future__ import annotations

import asyncio
import threading

import attrs
import pytest

from trackside.bus import default_bus
from trackside.events import ConfigError, IterationEnded, SpanEventAdded, ambient
from trackside.instruments import (
    data_loading,
    span,
    testing_iteration,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
)
from trackside.instruments._iteration import next_step


def only(captured):
    """Return the one iteration that ended."""
    (found,) = captured.of(IterationEnded)
    return found


class TestEvent:
    @pytest.mark.parametrize(
        ("make", "kind"),
        [(training_iteration, "training"), (validation_iteration, "validation"), (testing_iteration, "testing")],
    )
    def test_kind(self, captured, make, kind):
        """Each kind of iteration is one event, at its end."""
        with make(3):
            assert len(captured) == 0
        assert (only(captured).kind, only(captured).step) == (kind, 3)

    def test_times(self, captured, ticking):
        """It ends at its end, and lasts as long as it does."""
        with training_iteration(0):
            ticking.now_ns += 70
        assert (only(captured).at_ns, only(captured).duration_ns) == (11_000_000_070, 70)

    def test_every_field_is_set(self, captured):
        """An event that is filled in by hand lacks no field."""
        with training_iteration(0):
            pass
        event = only(captured)
        assert [field.name for field in attrs.fields(type(event)) if not hasattr(event, field.name)] == []

    def test_is_a_span(self, captured):
        """It has an id, belongs to the span around it, and is the parent of those inside."""
        with span("epoch") as epoch, training_iteration(0) as iteration, data_loading() as loading:
            pass
        assert (only(captured).span_id, only(captured).parent_span_id, loading.parent_id) == (
            iteration.id,
            epoch.id,
            iteration.id,
        )


class TestDone:
    def test_given(self, captured):
        """Values known before may be given at the start."""
        with training_iteration(0, samples=32, tokens=1024, flops=1e12, loss=0.5):
            pass
        event = only(captured)
        assert (event.samples, event.tokens, event.flops, event.loss) == (32, 1024, 1e12, 0.5)

    def test_set(self, captured):
        """Values learned inside are set there."""
        with training_iteration(0, samples=32) as iteration:
            iteration.set(loss=0.25)
            iteration.set(samples=31, tokens=7, flops=2.0)
        event = only(captured)
        assert (event.samples, event.tokens, event.flops, event.loss) == (31, 7, 2.0, 0.25)

    def test_not_given(self, captured):
        """Values that were not given are not made up."""
        with training_iteration(0):
            pass
        event = only(captured)
        assert (event.samples, event.tokens, event.flops, event.loss, event.failed) == (None, None, None, None, False)

    def test_anything_else(self, captured):
        """Any other attribute becomes an event on it."""
        with training_iteration(4) as iteration:
            iteration.set(learning_rate=0.1)
            iteration.set(loss=0.5, grad_norm=2.0)
        (event,) = captured.of(SpanEventAdded)
        assert (event.span_id, event.step, event.name) == (iteration.id, 4, "attributes")
        assert event.attributes == {"learning_rate": 0.1, "grad_norm": 2.0}

    def test_fail(self, captured):
        """It may be marked as failed."""
        with training_iteration(0) as iteration:
            iteration.fail()
        assert only(captured).failed is True

    def test_loss_with_a_graph(self, captured):
        """A loss with a gradient graph does not keep the graph alive."""

        class Tensor:
            def detach(self):
                return 0.5

        with training_iteration(0) as iteration:
            iteration.set(loss=Tensor())
        assert only(captured).loss == 0.5


class TestStep:
    def steps(self, captured):
        """Return the steps of the iterations that ended."""
        return [event.step for event in captured.of(IterationEnded)]

    def test_inside(self, captured):
        """Events logged inside have the step, at any depth."""
        with training_iteration(7), span("x") as inner:
            inner.event("y")
        assert [event.step for event in captured] == [7, 7, 7]

    def test_after(self, captured):
        """Events logged afterwards have none."""
        with training_iteration(7):
            pass
        assert ambient.get()[1] == -1

    def test_inside_when_iterations_are_not_wanted(self):
        """They have the step also where no handler wants iterations."""
        found = []
        with default_bus.subscribe(found.append, to=SpanEventAdded), training_iteration(7):
            default_bus.log(SpanEventAdded(name="x"))
        assert [event.step for event in found] == [7]
        assert ambient.get()[1] == -1

    def test_counted(self, captured):
        """Iterations without a given step count from the start of the loop."""
        with training_loop(100):
            for _ in range(3):
                with training_iteration():
                    pass
        assert self.steps(captured) == [100, 101, 102]

    def test_counted_again(self, captured):
        """Each loop counts from its own start."""
        for start in (0, 5):
            with training_loop(start), training_iteration():
                pass
        assert self.steps(captured) == [0, 5]

    def test_counted_on(self, captured):
        """After a loop inside, the one around it counts on."""
        with training_loop(7):
            with training_iteration():
                pass
            with training_loop(100), training_iteration():
                pass
            with training_iteration():
                pass
        assert self.steps(captured) == [7, 100, 8]

    def test_counted_in_epochs(self, captured):
        """Spans between the loop and the iteration do not matter."""
        with training_loop():
            for _ in range(2):
                with span("epoch"), training_iteration():
                    pass
        assert self.steps(captured) == [0, 1]

    def test_counted_by_threads(self, captured):
        """Loops in two threads count separately."""
        meeting = threading.Barrier(2)

        def train(start):
            with training_loop(start):
                for _ in range(2):
                    meeting.wait(10)
                    with training_iteration():
                        pass

        threads = [threading.Thread(target=train, args=(start,)) for start in (0, 100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(self.steps(captured)) == [0, 1, 100, 101]

    def test_counted_by_tasks(self, captured):
        """Loops in two tasks count separately."""

        async def train(start):
            with training_loop(start):
                for _ in range(2):
                    with training_iteration():
                        await asyncio.sleep(0)

        async def main():
            await asyncio.gather(train(0), train(100))

        asyncio.run(main())
        assert sorted(self.steps(captured)) == [0, 1, 100, 101]

    def test_counted_while_off(self):
        """A handler that subscribes in the middle sees the right steps."""
        found = []
        with training_loop(10):
            with training_iteration():
                pass
            with default_bus.subscribe(found.append, to=IterationEnded), training_iteration():
                pass
        assert [event.step for event in found] == [11]

    def test_validation(self, captured):
        """A validation iteration belongs to the training step around it, and does not count as one."""
        with training_loop(5):
            with training_iteration(), validation_loop(), validation_iteration():
                pass
            with training_iteration():
                pass
        assert [(event.kind, event.step) for event in captured.of(IterationEnded)] == [
            ("validation", 5),
            ("training", 5),
            ("training", 6),
        ]


class TestDecorator:
    def test_each_call(self, captured):
        """A decorated step function is an iteration at each call."""

        @training_iteration(samples=8)
        def step():
            return 1

        with training_loop(3):
            step()
            step()
        assert [(event.step, event.samples) for event in captured.of(IterationEnded)] == [(3, 8), (4, 8)]

    def test_decorated_while_off(self):
        """A function that was decorated before any handler listened is one, too."""

        @training_iteration()
        def step():
            pass

        found = []
        with default_bus.subscribe(found.append, to=IterationEnded), training_loop(3):
            step()
        assert [event.step for event in found] == [3]

    def test_fixed_step(self):
        """A decorator with a step is refused: every call would have the same."""
        with pytest.raises(ConfigError, match="leave it out of a decorator"):
            training_iteration(5)(lambda: None)

    def test_fixed_step_while_on(self, captured):
        """The same holds while a handler listens."""
        with pytest.raises(ConfigError, match="leave it out of a decorator"):
            training_iteration(5)(lambda: None)


class TestOff:
    def test_does_nothing(self):
        """While no handler listens an iteration accepts its arguments and keeps nothing."""
        with training_iteration(7) as iteration:
            iteration.set(loss=0.5, samples=3, anything=1)
            iteration.event("x")
            iteration.fail()
            assert (iteration.id, iteration.is_open, ambient.get()[1]) == (0, False, -1)

    def test_is_the_same_object(self):
        """No object is made for it."""
        assert training_iteration(7) is training_iteration(8)

    def test_exceptions_pass(self):
        """An exception passes through unchanged."""
        with pytest.raises(ValueError), training_iteration(7):
            raise ValueError

    def test_takes_its_step(self):
        """A training iteration without a step of its own takes one, an exception or not; no other iteration does."""
        before = next_step.get()()
        with training_iteration(), training_iteration(7), validation_iteration(), validation_iteration(3):
            pass
        with pytest.raises(ValueError), training_iteration():
            raise ValueError
        assert next_step.get()() == before + 3

    def test_nested(self):
        """Iterations may be nested while no handler listens."""
        with training_iteration(1), validation_iteration(1), validation_iteration():
            pass
        assert ambient.get() == (0, -1)
