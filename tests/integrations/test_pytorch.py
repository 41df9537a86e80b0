from __future__ import annotations

import gc
import time
import weakref

import pytest

import trackside
from trackside.events import ConfigError, ExceptionRaised, IterationEnded, SpanEnded
from trackside.handlers import Capture

torch = pytest.importorskip("torch")
data = torch.utils.data


def loop_of(batches=4, batch_size=2):
    """Return a model, its optimizer and a data loader of so many batches."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    samples = data.TensorDataset(torch.randn(batches * batch_size, 4), torch.randn(batches * batch_size, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, data.DataLoader(samples, batch_size=batch_size)


def train(model, optimizer, batches, accumulate=1):
    """Train without any telemetry in the code; return the losses."""
    losses = []
    for number, (inputs, targets) in enumerate(batches, start=1):
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        losses.append(loss.item())
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses


@pytest.fixture
def capture():
    with trackside.subscribe(Capture(), to=(SpanEnded, IterationEnded)) as subscription:
        yield subscription.handler


def recorded(capture):
    """Return the recorded spans' names and the samples of iterations, with their steps."""
    return [
        (event.name if isinstance(event, SpanEnded) else ("iteration", event.samples), event.step)
        for event in capture.events
    ]


class TestInstrument:
    def test_spans(self, capture):
        """A plain loop gives its four parts, inside of an iteration for each step of the optimizer."""
        model, optimizer, batches = loop_of(batches=2)
        with trackside.instrument(model, optimizer, batches), trackside.training_loop(0):
            train(model, optimizer, batches)
        parts = ["data_loading", "model_forward", "model_backward", "optimizer_update"]
        steps = [(name, step) for step in (0, 1) for name in [*parts, ("iteration", 2)]]
        assert recorded(capture)[:-1] == steps

    def test_accumulation(self, capture):
        """Two batches for each step of the optimizer are one iteration, of the samples of both."""
        model, optimizer, batches = loop_of(batches=4, batch_size=3)
        with trackside.instrument(model, optimizer, batches), trackside.training_loop(0):
            train(model, optimizer, batches, accumulate=2)
        iterations = [event for event in capture.events if isinstance(event, IterationEnded)]
        assert [(event.step, event.samples) for event in iterations] == [(0, 6), (1, 6)]

    def test_parents(self, capture):
        """The parts hang under their iteration, and it under the training loop."""
        model, optimizer, batches = loop_of(batches=1)
        with trackside.instrument(model, optimizer, batches), trackside.training_loop(0) as loop:
            train(model, optimizer, batches)
        *parts, iteration = capture.events[:-1]  # the last is the loop itself
        assert {part.parent_span_id for part in parts} == {iteration.span_id}
        assert iteration.parent_span_id == loop.id

    def test_same_losses(self):
        """The losses are those of the same loop without it, bit for bit."""
        bare = train(*loop_of())
        model, optimizer, batches = loop_of()
        with trackside.instrument(model, optimizer, batches):
            assert train(model, optimizer, batches) == bare

    def test_same_losses_with_a_bad_handler(self):
        """The losses are the same bit for bit when every handler raises."""

        def fail(_event):
            raise RuntimeError

        bare = train(*loop_of())
        model, optimizer, batches = loop_of()
        with trackside.subscribe(fail), trackside.instrument(model, optimizer, batches):
            assert train(model, optimizer, batches) == bare

    def test_compiled(self, capture):
        """A compiled model is watched from outside, and its losses are those of the model that is not."""
        bare = train(*loop_of(batches=2))
        model, optimizer, batches = loop_of(batches=2)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        with trackside.instrument(compiled, optimizer, batches):
            assert train(compiled, optimizer, batches) == pytest.approx(bare, abs=0, rel=0)
        names = [name for name, _ in recorded(capture)]
        assert [names.count(name) for name in ("model_forward", "model_backward")] == [2, 2]

    def test_without_a_loader(self, capture):
        """Without a data loader an iteration begins with the forward pass."""
        model, optimizer, batches = loop_of(batches=1)
        with trackside.instrument(model, optimizer):
            train(model, optimizer, batches)
        names = [name for name, _ in recorded(capture)]
        assert names == ["model_forward", "model_backward", "optimizer_update", ("iteration", None)]

    def test_evaluation(self, capture):
        """In evaluation mode each forward pass is a validation iteration, and all of them a validation loop."""
        model, optimizer, batches = loop_of(batches=3, batch_size=2)
        with trackside.instrument(model, optimizer, batches), torch.no_grad():
            model.eval()
            for inputs, _ in batches:
                model(inputs)
        *iterations, loop = capture.events
        assert [(event.kind, event.samples) for event in iterations] == [("validation", 2)] * 3
        assert (loop.name, iterations[0].at_ns - iterations[0].duration_ns) == (
            "validation_loop",
            loop.at_ns - loop.duration_ns,
        )

    def test_evaluation_between_steps(self, capture):
        """A validation ends when the next batch is asked for, and leaves no gap between its iterations."""
        model, optimizer, batches = loop_of(batches=2)
        with trackside.instrument(model, optimizer, batches):
            for inputs, targets in batches:
                model.train()
                (model(inputs) - targets).square().mean().backward()
                optimizer.step()
                model.eval()
                model(inputs)
                model(inputs)
                model.train()
        validated = [event for event in capture.events if getattr(event, "kind", "") == "validation"]
        loops = [event for event in capture.events if getattr(event, "name", "") == "validation_loop"]
        assert (len(validated), len(loops)) == (4, 2)
        second = validated[1]
        assert second.at_ns - second.duration_ns == validated[0].at_ns
        assert loops[0].at_ns == second.at_ns

    def test_evaluation_of_what_is_wrapped(self, capture):
        """
        A model that a wrapper trains and that is evaluated without it is recorded, and one within the wrapper once.
        """

        class Wrapper(torch.nn.Module):
            def __init__(self, module):
                super().__init__()
                self.module = module

            def forward(self, inputs):
                return self.module(inputs)

        model, optimizer, batches = loop_of(batches=2)
        wrapper = Wrapper(model)
        with trackside.instrument(wrapper, optimizer, batches), torch.no_grad():
            model.eval()
            model(batches.dataset[0][0])
            wrapper.eval()
            wrapper(batches.dataset[0][0])
        kinds = [event.kind for event in capture.events if isinstance(event, IterationEnded)]
        assert kinds == ["validation"] * 2

    def test_evaluation_by_hand(self, capture):
        """A validation that the script has spans for is recorded once."""
        model, optimizer, batches = loop_of(batches=2)
        model.eval()
        with trackside.instrument(model, optimizer, batches), trackside.validation_loop():
            for inputs, _ in batches:
                with trackside.validation_iteration():
                    model(inputs)
        assert len(capture.events) == 3

    def test_loss(self, capture):
        """
        The loss of an iteration is the tensor on which backward() was called; of accumulated batches it is the mean.
        """
        model, optimizer, batches = loop_of(batches=4)
        with trackside.instrument(model, optimizer, batches):
            losses = train(model, optimizer, batches, accumulate=2)
        recorded = [float(event.loss) for event in capture.events if isinstance(event, IterationEnded)]
        assert recorded == pytest.approx([(losses[0] + losses[1]) / 2, (losses[2] + losses[3]) / 2])

    def test_scaled_loss(self, capture):
        """A loss that a gradient scaler multiplied is recorded with its original value."""
        model, optimizer, batches = loop_of(batches=1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with trackside.instrument(model, optimizer, batches):
            for inputs, targets in batches:
                loss = (model(inputs) - targets).square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
        (iteration,) = [event for event in capture.events if isinstance(event, IterationEnded)]
        assert float(iteration.loss) == loss.item()

    def test_backward_lasts_as_long(self, capture):
        """The backward pass lasts as long as the call of backward() does, including hooks at its end."""
        model, optimizer, batches = loop_of(batches=1)
        engine = torch.autograd.Variable._execution_engine
        with trackside.instrument(model, optimizer, batches):
            for inputs, targets in batches:
                loss = (model(inputs) - targets).square().mean()
                model[0].weight.register_hook(lambda _: engine.queue_callback(lambda: time.sleep(0.2)))
                began = time.perf_counter_ns()
                loss.backward()
                took_ns = time.perf_counter_ns() - began
                optimizer.step()
        (backward,) = [event for event in capture.events if getattr(event, "name", "") == "model_backward"]
        assert took_ns * 0.9 < backward.duration_ns <= took_ns

    def test_two_models(self, capture):
        """Of two models each has the backward passes that its own outputs are part of."""
        model, optimizer, batches = loop_of(batches=2)
        other, its_optimizer, its_batches = loop_of(batches=2)
        with trackside.instrument(model, optimizer, batches), trackside.instrument(other, its_optimizer, its_batches):
            train(model, optimizer, batches)
            train(other, its_optimizer, its_batches)
        names = [event.name for event in capture.events if isinstance(event, SpanEnded)]
        assert names.count("model_backward") == 4

    def test_exception(self, capture):
        """An exception that leaves the loop makes the iteration a failed one."""
        model, optimizer, batches = loop_of()
        model.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError), trackside.instrument(model, optimizer, batches):
            train(model, optimizer, batches)
        assert [event.failed for event in capture.events if isinstance(event, IterationEnded)] == [True]

    def test_batch_not_trained_on(self, capture):
        """A loop that is left with a batch in hand has made no step of it, and a span after it is in none."""
        model, optimizer, batches = loop_of(batches=3)
        with trackside.instrument(model, optimizer, batches):
            for number, batch in enumerate(batches):
                if number == 2:
                    break
                train(model, optimizer, [batch])
        with trackside.span("after"):
            pass
        assert sum(isinstance(event, IterationEnded) for event in capture.events) == 2
        assert (capture.events[-1].name, capture.events[-1].step) == ("after", -1)

    def test_exception_with_a_batch_in_hand(self, tmp_path):
        """An exception that leaves the loop before the forward pass fails the step of its batch."""
        model, optimizer, batches = loop_of(batches=2)

        def run():
            with trackside.start(tmp_path, report=False), trackside.instrument(model, optimizer, batches):
                for number, batch in enumerate(batches):
                    if number == 1:
                        raise ValueError("bad batch")
                    train(model, optimizer, [batch])

        with pytest.raises(ValueError, match="bad batch"):
            run()
        first, second = trackside.replay(tmp_path, to=IterationEnded)
        assert (first.failed, second.failed) == (False, True)
        assert second.step == first.step + 1

    def test_job_ends_within_a_step(self, tmp_path):
        """An iteration without an update at the end of its job is not around what the next job records."""
        model, optimizer, batches = loop_of(batches=1)
        with trackside.instrument(model, optimizer, batches):
            with trackside.start(tmp_path / "first", report=False):
                train(model, optimizer, batches, accumulate=2)
            with trackside.start(tmp_path / "second", report=False), trackside.span("next"):
                pass
        (ended,) = trackside.replay(tmp_path / "second", to=SpanEnded)
        assert (ended.parent_span_id, ended.step) == (0, -1)

    def test_loss_of_a_second_loop(self, capture):
        """A loop has its losses also where an earlier one was not closed, as in a cell that is run again."""
        watched = [loop_of(batches=1) for _ in range(2)]
        handles = []
        for model, optimizer, batches in watched:
            handles.append(trackside.instrument(model, optimizer, batches))
            train(model, optimizer, batches)
        for handle in handles:
            handle.close()
        first, second = (event.loss for event in capture.events if isinstance(event, IterationEnded))
        assert first == second is not None  # both begin with the same weights and samples

    def test_bad_forward(self, capture):
        """A forward pass that raises ends its span, and the exception is the model's own."""
        model, optimizer, _ = loop_of()
        with trackside.instrument(model, optimizer), pytest.raises(RuntimeError, match="shapes"):
            model(torch.randn(1, 5))
        assert recorded(capture)[0][0] == "model_forward"

    @pytest.mark.parametrize(
        ("where", "part"),
        [
            ("load", "data_loading"),
            ("forward", "model_forward"),
            ("backward", "model_backward"),
            ("evaluate", "validation_single_iteration"),
        ],
    )
    def test_where_it_was_raised(self, where, part):
        """An exception is recorded with the part of the step that it leaves, in evaluation too."""
        model, optimizer, batches = loop_of()
        model[0].register_forward_hook(lambda *_: 1 / 0 if where in {"forward", "evaluate"} else None)
        batches.collate_fn = lambda samples: 1 / 0 if where == "load" else data.default_collate(samples)
        if where == "backward":
            model.register_forward_hook(lambda _, __, outputs: outputs.register_hook(lambda _: 1 / 0) and None)
        model.train(where != "evaluate")
        with (
            trackside.subscribe(Capture(), to=(ExceptionRaised, SpanEnded)) as subscription,
            pytest.raises(ZeroDivisionError),
            trackside.instrument(model, optimizer, batches),
        ):
            train(model, optimizer, batches)
        raised = [event for event in subscription.handler.events if isinstance(event, ExceptionRaised)]
        assert [(event.type, event.span_name) for event in raised] == [("ZeroDivisionError", part)]

    @pytest.mark.parametrize(
        ("is_training", "span"), [(True, "training_single_iteration"), (False, "validation_single_iteration")]
    )
    def test_raised_between_the_parts(self, is_training, span, tmp_path):
        """An exception between the parts that ends the job is recorded with the iteration that it leaves."""

        def job():
            model, optimizer, _ = loop_of()
            with trackside.instrument(model, optimizer), trackside.start(tmp_path, report=False):
                model.train(is_training)(torch.randn(2, 4))
                raise MemoryError

        with pytest.raises(MemoryError):
            job()
        (raised,) = trackside.replay(tmp_path, to=ExceptionRaised)
        assert raised.span_name == span

    def test_last_evaluation(self, tmp_path):
        """An evaluation that no step follows is recorded when the job ends."""
        model, optimizer, _ = loop_of()
        with trackside.instrument(model, optimizer), trackside.start(tmp_path, report=False):
            model.eval()(torch.randn(2, 4))
        assert [event.name for event in trackside.replay(tmp_path, to=SpanEnded)][-1] == "validation_loop"

    def test_sections(self):
        """Each part is a section too, so that stragglers are found in it."""
        model, optimizer, batches = loop_of(batches=2)
        with trackside.subscribe(Capture(), to=trackside.events.SectionWindow) as windows:
            with trackside.instrument(model, optimizer, batches):
                train(model, optimizer, batches)
            trackside.instruments.close_section_window()
        (window,) = windows.handler.events
        assert set(window.names) == {"data_loading", "model_forward", "model_backward", "optimizer_update"}


class TestOwnIterations:
    """A loop that has iterations of its own."""

    def test_around_each_batch(self, capture):
        """They alone are recorded, by the script's numbers, with the parts inside, the samples and the loss."""
        model, optimizer, batches = loop_of(batches=3)
        losses = []
        with trackside.instrument(model, optimizer, batches), trackside.training_loop(0) as loop:
            for step, batch in enumerate(batches):
                with trackside.training_iteration(step=10 + step):
                    losses += train(model, optimizer, [batch])
        inside = ["model_forward", "model_backward", "optimizer_update"]
        steps = [*(("data_loading", step) for step in (-1,)), *((name, 10) for name in [*inside, ("iteration", 2)])]
        assert recorded(capture)[:5] == steps
        iterations = [event for event in capture.events if isinstance(event, IterationEnded)]
        assert [event.step for event in iterations] == [10, 11, 12]
        assert [float(event.loss) for event in iterations] == losses
        waits = [event for event in capture.events if getattr(event, "name", "") == "data_loading"]
        assert {event.parent_span_id for event in (*waits, *iterations)} == {loop.id}

    def test_around_the_wait(self, capture):
        """If the script asks for the batch inside of its iteration, the wait is a part of that too."""
        model, optimizer, batches = loop_of(batches=2)
        with trackside.instrument(model, optimizer, batches):
            iterator = iter(batches)
            for step in range(2):
                with trackside.training_iteration(step=step):
                    train(model, optimizer, [next(iterator)])
        parts = ["data_loading", "model_forward", "model_backward", "optimizer_update"]
        assert recorded(capture) == [(name, step) for step in (0, 1) for name in [*parts, ("iteration", 2)]]

    def test_the_script_sets_more(self, capture):
        """Values that the script sets stay as they are, before the backward pass or after it."""
        model, optimizer, batches = loop_of(batches=1)
        with trackside.instrument(model, optimizer, batches):
            for batch in batches:
                with trackside.training_iteration(samples=7) as iteration:
                    train(model, optimizer, [batch])
                    iteration.set(loss=0.5)
        (iteration,) = [event for event in capture.events if isinstance(event, IterationEnded)]
        assert (iteration.samples, iteration.loss) == (7, 0.5)

    def test_one_for_each_accumulated_batch(self, capture):
        """Iterations without an update have the samples and the loss of their own batches."""
        model, optimizer, batches = loop_of(batches=4)
        losses = []
        with trackside.instrument(model, optimizer, batches):
            for number, (inputs, targets) in enumerate(batches):
                with trackside.training_iteration():
                    loss = (model(inputs) - targets).square().mean()
                    loss.backward()
                    losses.append(loss.item())
                    if number % 2:
                        optimizer.step()
        iterations = [event for event in capture.events if isinstance(event, IterationEnded)]
        assert [(event.samples, float(event.loss)) for event in iterations] == [(2, loss) for loss in losses]

    def test_of_several_batches(self, capture):
        """An iteration around two batches has the samples of both, and the mean of their losses."""
        model, optimizer, batches = loop_of(batches=2)
        with trackside.instrument(model, optimizer, batches), trackside.training_iteration():
            losses = train(model, optimizer, batches, accumulate=2)
        (iteration,) = [event for event in capture.events if isinstance(event, IterationEnded)]
        assert (iteration.samples, float(iteration.loss)) == (4, pytest.approx(sum(losses) / 2))

    def test_in_one_loop_of_two(self, capture):
        """A loop without any that follows one with its own counts its steps."""
        model, optimizer, batches = loop_of(batches=3)
        with trackside.instrument(model, optimizer, batches):
            for batch in batches:
                with trackside.training_iteration():
                    train(model, optimizer, [batch])
            train(model, optimizer, batches)
        # The first step of the second loop shows that it has none.
        assert sum(isinstance(event, IterationEnded) for event in capture.events) == 3 + 2


class TestClose:
    def test_torch(self):
        """After the last loop was closed, torch is restored."""
        before = torch.autograd.backward, torch.amp.GradScaler.scale
        model, optimizer, batches = loop_of()
        trackside.instrument(model, optimizer, batches).close()
        assert (torch.autograd.backward, torch.amp.GradScaler.scale) == before

    def test_left_out(self):
        """A model whose loop is over is freed, without `close`."""
        model, optimizer, batches = loop_of(batches=1)
        trackside.instrument(model, optimizer, batches)
        train(model, optimizer, batches)
        freed = weakref.ref(model)
        del model, optimizer, batches
        gc.collect()
        assert freed() is None

    def test_within_a_step(self, capture):
        """Batches that no update follows are in no step: of three, with an update every two, the last."""
        model, optimizer, batches = loop_of(batches=3)
        with trackside.instrument(model, optimizer, batches), trackside.training_loop(0):
            train(model, optimizer, batches, accumulate=2)
        assert [event.samples for event in capture.events if isinstance(event, IterationEnded)] == [4]

    def test_undone(self, capture):
        """After it was closed the loop records nothing."""
        model, optimizer, batches = loop_of()
        trackside.instrument(model, optimizer, batches).close()
        train(model, optimizer, batches)
        assert capture.events == []

    def test_loader(self):
        """The data loader has its own class again."""
        model, optimizer, batches = loop_of()
        trackside.instrument(model, optimizer, batches).close()
        assert type(batches) is data.DataLoader

    def test_again(self, capture):
        """A model can be instrumented again after closing, and then everything is recorded once."""
        model, optimizer, batches = loop_of(batches=1)
        trackside.instrument(model, optimizer, batches).close()
        with trackside.instrument(model, optimizer, batches):
            train(model, optimizer, batches)
        assert len(capture.events) == 5


class TestBadInput:
    def test_twice(self):
        """A data loader that is instrumented already is refused, in one line that says so."""
        model, optimizer, batches = loop_of()
        with trackside.instrument(model, optimizer, batches), pytest.raises(ConfigError, match="instrumented already"):
            trackside.instrument(model, optimizer, batches)

    def test_no_model(self):
        """An object that is no model is refused, naming the missing attribute."""
        with pytest.raises(ConfigError, match="register_forward_pre_hook"):
            trackside.instrument(print, None)

    def test_list(self):
        """A list cannot be watched: its class cannot be replaced."""
        model, optimizer, _ = loop_of()
        with pytest.raises(ConfigError, match="a list cannot be watched; give an object of a class of your own"):
            trackside.instrument(model, optimizer, [])

    def test_generator(self, capture):
        """A generator is refused in a line with the remedy: an object that returns it, whose batches are recorded."""
        model, optimizer, batches = loop_of(batches=2)

        class Batches:
            def __iter__(self):
                yield from list(batches)

        remedy = "a generator cannot be watched; give an object of a class of your own whose __iter__ returns it"
        with pytest.raises(ConfigError, match=remedy):
            trackside.instrument(model, optimizer, iter(Batches()))
        around = Batches()
        with trackside.instrument(model, optimizer, around):
            train(model, optimizer, around)
        assert [event.name for event in capture.events if isinstance(event, SpanEnded)].count("data_loading") == 2

    def test_list_leaves_nothing(self, capture):
        """A refused call leaves no hooks behind."""
        model, optimizer, batches = loop_of()
        with pytest.raises(ConfigError):
            trackside.instrument(model, optimizer, [])
        train(model, optimizer, batches)
        assert capture.events == []
