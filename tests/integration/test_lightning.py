"""The events of real Lightning fits, on a tiny model, recorded by one line in both of its packages."""

from __future__ import annotations

import logging

import pytest

import framework_checks as checks
import trackside
from lightning_fits import callback_of, fit, framework, frameworks
from trackside.events import IterationEnded, MetricsLogged, ProfileSpanEnded, SpanOutOfOrder
from trackside.handlers import replay

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

of, lines_of, golden = checks.of, checks.lines_of, checks.lightning_golden


class TestFit:
    def test_logged(self, events, package, tmp_path):
        """The values that the model logs are events, at their steps alone, also without a logger of Lightning's."""

        def logging_module():
            module = frameworks.lightning_module(package)
            step = module.training_step

            def training_step(batch, batch_idx):
                found = step(batch, batch_idx)
                module.log("lr", 0.5)
                return found

            module.training_step = training_step
            return module

        fit(package, tmp_path, callback_of(package), module=logging_module(), log_every_n_steps=5)
        logged = of(MetricsLogged, events)
        assert [(event.values["lr"], event.step) for event in logged] == [(0.5, 4), (0.5, 9), (0.5, 14), (0.5, 19)]

    def test_golden(self, package, events, tmp_path):
        """A fit with accumulation, validation and saves is recorded in this order, in both packages."""
        fit(package, tmp_path, callback_of(package))
        assert lines_of(events) == golden()

    def test_iterations(self, events, tmp_path):
        """An iteration is an optimizer step: the samples of both its batches, and the mean of their losses."""
        module = fit("lightning", tmp_path, callback_of("lightning"))
        iterations = [event for event in of(IterationEnded, events) if event.kind == "training"]
        pairs = zip(module.losses[::2], module.losses[1::2], strict=True)
        assert [event.samples for event in iterations] == [4] * 20
        assert [float(event.loss) for event in iterations] == pytest.approx([float(a + b) / 2 for a, b in pairs])

    def test_rest_of_epoch(self, events, tmp_path):
        """
        Lightning steps after the last batch of an epoch, though on fewer batches than usual: that is an iteration.
        """
        trainer = frameworks.lightning_trainer(
            "lightning", tmp_path, callback_of("lightning"), max_epochs=2, max_steps=-1, val_check_interval=1.0, saves=0
        )
        trainer.fit(frameworks.lightning_module("lightning"), frameworks.loader(frameworks.Samples(6)))
        found = [(event.step, event.samples) for event in of(IterationEnded, events)]
        assert found == [(0, 4), (1, 2), (2, 4), (3, 2)]

    def test_parts_belong_to_their_iteration(self, events, tmp_path):
        """The parts of a step are inside its iteration, but for the wait for its first batch."""
        fit("lightning", tmp_path, callback_of("lightning"), max_steps=3, limit_val_batches=0, saves=0)
        ids = {event.span_id: event.step for event in of(IterationEnded, events)}
        parts = [(event.name, ids.get(event.parent_span_id)) for event in of(ProfileSpanEnded, events)]
        assert parts == [
            (name, None if index == 0 else step)
            for step in range(3)
            for index, name in enumerate(checks.LIGHTNING_STEP)
        ]

    def test_manual_optimization(self, events, tmp_path):
        """A model that runs its own backward passes has no recorded forward pass; everything else is recorded."""

        def training_step(self, batch, _index):
            self.optimizers().zero_grad()
            self.manual_backward(self.model(**batch)["loss"])
            self.optimizers().step()

        module = frameworks.lightning_module("lightning", training_step=training_step, automatic_optimization=False)
        options = {"accumulate_grad_batches": 1, "val_check_interval": 1.0, "limit_val_batches": 0}
        fit("lightning", tmp_path, callback_of("lightning"), module=module, max_steps=2, saves=0, **options)
        step = ["data_loading", "model_backward", "optimizer_update"]
        assert lines_of(events) == ["training_loop {", *step, "training 0", *step, "training 1", "} training_loop"]

    def test_a_refused_batch(self, events, tmp_path):
        """A batch that the model refuses ends the epoch without an end of its own: its iteration has failed."""

        def on_train_epoch_end(_self):
            with trackside.span("epoch over"):
                pass

        refuses = {"on_train_batch_start": lambda _self, _batch, index: -index}
        module = frameworks.lightning_module("lightning", on_train_epoch_end=on_train_epoch_end, **refuses)
        options = {"max_steps": -1, "max_epochs": 1, "limit_val_batches": 0, "accumulate_grad_batches": 1}
        fit("lightning", tmp_path, callback_of("lightning"), module=module, saves=0, val_check_interval=1.0, **options)
        found = [line for line in lines_of(events) if line.startswith(("training ", "epoch"))]
        assert found == ["training 0", "training 1 failed", "epoch over"]

    def test_changing_accumulation(self, events, tmp_path):
        """If accumulation changes from epoch to epoch, iterations follow."""
        scheduler = framework("lightning").callbacks.GradientAccumulationScheduler({0: 2, 1: 4})
        trainer = frameworks.lightning_trainer(
            "lightning",
            tmp_path,
            *(scheduler, callback_of("lightning")),
            accumulate_grad_batches=1,
            max_epochs=2,
            max_steps=-1,
            val_check_interval=1.0,
            saves=0,
        )
        trainer.fit(frameworks.lightning_module("lightning"), frameworks.loader(frameworks.Samples(8)))
        assert [event.samples for event in of(IterationEnded, events)] == [4, 4, 8]


class TestLoss:
    @checks.SINKS
    def test_bit_for_bit(self, sink, tmp_path):
        """Every loss is the same to the last bit, whatever happens to the events."""
        plain = fit("lightning", tmp_path / "plain")
        with checks.subscribed(sink, tmp_path):
            watched = fit("lightning", tmp_path / "watched", callback_of("lightning"))
        assert [loss.item().hex() for loss in watched.losses] == [loss.item().hex() for loss in plain.losses]
        pairs = zip(watched.parameters(), plain.parameters(), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


class Raising:
    """Makes callbacks that raise in one of their hooks, once."""

    @staticmethod
    def of(package, *hooks):
        """Return such a callback."""
        raised = set()

        def hook(name):
            def raises(*_args, **_kwargs):
                if name not in raised:
                    raised.add(name)
                    raise RuntimeError(f"another callback's {name}")

            return raises

        return type("Raising", (framework(package).Callback,), {name: hook(name) for name in hooks})()


class TestErrors:
    def test_of_a_signal_handler(self, package, events, tmp_path):
        """An exception of the program's signal handler in the callback comes out, and the next fit is recorded."""
        checks.interrupt(lambda: fit(package, tmp_path / "first", callback_of(package)))
        events.clear()
        fit(package, tmp_path / "next", callback_of(package))
        assert lines_of(events) == golden()

    def test_in_the_model(self, package, events, tmp_path):
        """Every cause that ends the run ends every span with it, and is written at once."""

        def training_step(self, batch, index):
            if index == 3:
                raise ValueError("a bad batch")
            return self.model(**batch)["loss"]

        module = frameworks.lightning_module(package, training_step=training_step)
        with trackside.subscribe(trackside.EventLog(tmp_path / "runs")):
            with pytest.raises(ValueError, match="a bad batch"):
                fit(package, tmp_path, callback_of(package), module=module, saves=0)
            recorded = lines_of(replay(tmp_path / "runs"))
        expected = [
            *[
                "training_loop {",
                *checks.LIGHTNING_STEP,
                "training 0",
                *checks.LIGHTNING_STEP[:4],
                "data_loading",
                "model_forward",
            ],
            *["training 1 failed", "} training_loop failed"],
        ]
        assert lines_of(events) == expected
        assert recorded == expected

    @pytest.mark.parametrize("hook", ["on_train_batch_start", "on_train_batch_end", "on_validation_start", "setup"])
    @pytest.mark.parametrize("is_first", [True, False])
    def test_of_another_callback(self, hook, is_first, events, tmp_path):
        """
        After an exception in any other callback, at any position, every span is closed; and the next fit is clean.
        """
        ours, another = callback_of("lightning"), Raising.of("lightning", hook)
        callbacks = [another, ours] if is_first else [ours, another]
        trainer = frameworks.lightning_trainer("lightning", tmp_path, *callbacks, saves=0)
        module = frameworks.lightning_module("lightning")
        with pytest.raises(RuntimeError, match=hook):
            trainer.fit(module, frameworks.loader(), frameworks.loader())
        assert checks.left_open(events) == []
        events.clear()
        trainer.fit(module, frameworks.loader(), frameworks.loader())
        assert lines_of(events)[-1] == "} training_loop"
        assert of(SpanOutOfOrder, events) == []

    def test_that_keeps_the_news_from_us(self, events, tmp_path):
        """If a callback's on_exception raises, ours is not called; the next run closes the spans left open."""
        callbacks = [Raising.of("lightning", "on_train_batch_end", "on_exception"), callback_of("lightning")]
        trainer = frameworks.lightning_trainer("lightning", tmp_path, *callbacks, saves=0)
        module = frameworks.lightning_module("lightning")
        with pytest.raises(RuntimeError, match="on_exception"):
            trainer.fit(module, frameworks.loader(), frameworks.loader())
        assert checks.left_open(events) == ["training_loop"]
        trainer.test(module, frameworks.loader(), verbose=False)
        assert checks.left_open(events) == []
        assert of(SpanOutOfOrder, events) == []

    def test_of_our_own(self, events, caplog, tmp_path):
        """An error in trackside stays out of the training, and is reported once."""
        callback = callback_of("lightning")
        trainer = frameworks.lightning_trainer("lightning", tmp_path, callback, saves=0, max_steps=10)
        module = frameworks.lightning_module("lightning")
        broken = Raising.of("lightning")
        broken.on_train_start = lambda *_: setattr(callback._watch, "_parts", None)
        trainer.callbacks.append(broken)
        with caplog.at_level(logging.WARNING, logger="trackside"):
            trainer.fit(module, frameworks.loader(), frameworks.loader())
        assert trainer.global_step == 10
        assert [record.message for record in caplog.records if record.name == "trackside"] == [
            "trackside records no more of this run"
        ]
        assert checks.left_open(events) == []


class TestIdempotence:
    def test_two_callbacks(self, events, tmp_path):
        """Of two callbacks on one trainer one records everything, once."""
        fit("lightning", tmp_path, callback_of("lightning"), callback_of("lightning"))
        assert lines_of(events) == golden()

    def test_leaves_nothing(self, tmp_path):
        """After a run the trainer's profiler and strategy have their own methods again."""
        trainer = frameworks.lightning_trainer("lightning", tmp_path, callback_of("lightning"), max_steps=1, saves=0)
        trainer.fit(frameworks.lightning_module("lightning"), frameworks.loader())
        own = {"start", "stop", "load_checkpoint", "load_model_state_dict"}
        assert own.isdisjoint(vars(trainer.profiler))
        assert own.isdisjoint(vars(trainer.strategy))

    def test_one_callback_for_two_trainers(self, events, tmp_path):
        """A callback may serve one trainer after the other."""
        callback = callback_of("lightning")
        fit("lightning", tmp_path / "a", callback)
        fit("lightning", tmp_path / "b", callback)
        assert lines_of(events) == golden() * 2
