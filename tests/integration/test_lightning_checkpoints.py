"""Real Lightning runs on a tiny model: other runs than fits, and checkpoints."""

from __future__ import annotations

import threading

import pytest

import framework_checks as checks
import trackside
from lightning_fits import callback_of, fit, framework, frameworks
from trackside.events import (
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    IterationEnded,
    SpanEnded,
    SpanStarted,
)

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

of, lines_of = checks.of, checks.lines_of


class TestOtherRuns:
    def test_test_and_predict(self, package, events, tmp_path):
        """Testing has One Logger's spans, predicting spans of its own."""
        trainer = frameworks.lightning_trainer(package, tmp_path, callback_of(package), limit_test_batches=2)
        module = frameworks.lightning_module(package)
        trainer.test(module, frameworks.loader(), verbose=False)
        trainer.predict(module, frameworks.loader(frameworks.Samples(4)))
        iteration = "predicting_single_iteration"
        assert lines_of(events) == [
            *["testing_loop {", "testing -1", "testing -1", "} testing_loop"],
            *["predicting_loop {", iteration, iteration, "} predicting_loop"],
        ]

    def test_sanity_check(self, events, tmp_path):
        """Lightning's sanity check before training is preparation, and no validation."""
        fit("lightning", tmp_path, callback_of("lightning"), num_sanity_val_steps=2, max_steps=1, saves=0)
        assert lines_of(events)[:3] == ["sanity_check {", "} sanity_check", "training_loop {"]
        assert of(SpanStarted, events)[0].attributes == {"badput_type": "TRAINING_PREP"}

    def test_validation_without_a_result(self, events, tmp_path):
        """
        Lightning may report no end of a batch whose step returns nothing: every batch is recorded, and none failed.
        """
        module = frameworks.lightning_module("lightning", validation_step=lambda *_: None)
        fit("lightning", tmp_path, callback_of("lightning"), module=module, max_steps=10, saves=0)
        assert lines_of(events)[-6:] == [
            "validation_loop {",
            *["validation 9"] * 3,
            "} validation_loop",
            "} training_loop",
        ]

    def test_load_to_go_on(self, events, tmp_path):
        """A fit that goes on loads a checkpoint, of the iteration before its first one."""
        fit("lightning", tmp_path, callback_of("lightning"), max_steps=10)
        (checkpoint,) = (tmp_path / "checkpoints").glob("*step=5.ckpt")
        events.clear()
        fit("lightning", tmp_path, callback_of("lightning"), max_steps=6, saves=0, ckpt_path=checkpoint)
        load = of(SpanEnded, events)[0]
        assert (load.name, load.attributes) == ("checkpoint_load", {"path": str(checkpoint), "current_iteration": 4})
        started = next(event for event in of(SpanStarted, events) if event.name == "training_loop")
        assert started.attributes["train_iterations_start"] == 5
        assert [event.step for event in of(IterationEnded, events)] == [5]

    def test_load_to_test(self, events, tmp_path):
        """Loading a checkpoint to test it marks no iteration as undone."""
        callback = callback_of("lightning")
        trainer = frameworks.lightning_trainer("lightning", tmp_path, callback, max_steps=5, limit_test_batches=1)
        module = frameworks.lightning_module("lightning")
        trainer.fit(module, frameworks.loader())
        (checkpoint,) = (tmp_path / "checkpoints").glob("*.ckpt")
        events.clear()
        trainer.test(module, frameworks.loader(), ckpt_path=checkpoint, verbose=False)
        assert lines_of(events)[:3] == ["checkpoint_load {", "} checkpoint_load", "testing_loop {"]
        assert of(SpanEnded, events)[0].attributes == {"path": str(checkpoint)}


class TestSaves:
    def io(self, package, write):
        """Return an object that writes checkpoints, by the function *write*."""
        base = framework(package).plugins.io.TorchCheckpointIO
        return type("Writer", (base,), {"save_checkpoint": write})()

    def test_the_whole_of_it(self, events, tmp_path):
        """The span holds everything from collecting the states to the written file."""

        def on_save_checkpoint(_self, _checkpoint):
            with trackside.span("collecting"):
                pass

        def write(self, *args, **kwargs):
            with trackside.span("writing"):
                pass

        module = frameworks.lightning_module("lightning", on_save_checkpoint=on_save_checkpoint)
        options = {"plugins": [self.io("lightning", write)], "max_steps": 5, "limit_val_batches": 0}
        fit("lightning", tmp_path, callback_of("lightning"), module=module, **options)
        (save,) = [event for event in of(SpanEnded, events) if event.name == "checkpoint_save_sync"]
        inside = [event.name for event in events if getattr(event, "parent_span_id", None) == save.span_id]
        assert inside == ["collecting", "writing"]

    def test_after_training(self, events, tmp_path):
        """A script's own save after the fit is recorded too."""
        trainer = frameworks.lightning_trainer("lightning", tmp_path, callback_of("lightning"), max_steps=1, saves=0)
        module = frameworks.lightning_module("lightning")
        trainer.fit(module, frameworks.loader())
        trainer.test(module, frameworks.loader(), verbose=False)  # another run, and still one save is one
        events.clear()
        trainer.save_checkpoint(tmp_path / "mine.ckpt")
        assert lines_of(events) == ["checkpoint_save_sync {", "saved 0", "} checkpoint_save_sync"]

    def test_failing(self, events, tmp_path):
        """A save that raises is closed and has failed; the next one is recorded normally."""
        outcomes = iter([OSError("no space"), None])

        def write(self, *args, **kwargs):
            error = next(outcomes)
            if error is not None:
                raise error

        trainer = frameworks.lightning_trainer(
            "lightning", tmp_path, callback_of("lightning"), plugins=[self.io("lightning", write)], max_steps=1, saves=0
        )
        trainer.fit(frameworks.lightning_module("lightning"), frameworks.loader())
        events.clear()
        with pytest.raises(OSError, match="no space"):
            trainer.save_checkpoint(tmp_path / "a.ckpt")
        trainer.save_checkpoint(tmp_path / "b.ckpt")
        assert lines_of(events) == [
            *["checkpoint_save_sync {", "not saved 0", "} checkpoint_save_sync failed"],
            *["checkpoint_save_sync {", "saved 0", "} checkpoint_save_sync"],
        ]
        assert of(CheckpointSaveFailed, events)[0].error["message"] == "no space"

    def test_in_the_background(self, package, events, tmp_path):
        """
        An asynchronous save has succeeded when it is written, and its span is the time that training waited for it.
        """
        is_saving, may_write = threading.Event(), threading.Event()

        def write(self, *args, **kwargs):
            is_saving.set()
            assert may_write.wait(60)

        io = framework(package).plugins.io.AsyncCheckpointIO(self.io(package, write))
        trainer = frameworks.lightning_trainer(
            package, tmp_path, callback_of(package), plugins=[io], max_steps=1, saves=0
        )
        trainer.fit(frameworks.lightning_module(package), frameworks.loader())
        events.clear()
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        assert is_saving.wait(60)
        assert lines_of(events) == ["checkpoint_save_async {", "} checkpoint_save_async"]
        may_write.set()
        io.teardown()
        assert lines_of(events)[2:] == ["saved 0"]
        assert of(CheckpointSaveSucceeded, events)[0].path == str(tmp_path / "a.ckpt")

    def test_failing_in_the_background(self, events, tmp_path):
        """An asynchronous save that fails has failed, whenever Lightning reports it."""
        may_fail = threading.Event()

        def write(self, *args, **kwargs):
            assert may_fail.wait(60)
            raise OSError("no space")

        io = framework("lightning").plugins.io.AsyncCheckpointIO(self.io("lightning", write))
        trainer = frameworks.lightning_trainer(
            "lightning", tmp_path, callback_of("lightning"), plugins=[io], max_steps=1, saves=0
        )
        trainer.fit(frameworks.lightning_module("lightning"), frameworks.loader())
        events.clear()
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        may_fail.set()
        with pytest.raises(OSError, match="no space"):
            io.teardown()
        assert lines_of(events) == ["checkpoint_save_async {", "} checkpoint_save_async", "not saved 0"]
