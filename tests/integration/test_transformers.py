"""The events of the real trainer of Transformers, on a tiny model, recorded by one line."""

from __future__ import annotations

import logging
import threading

import pytest

import trackside
from trackside.events import (
    ConfigLogged,
    IterationEnded,
    MetricsLogged,
    ProfileSpanEnded,
    SpanEnded,
    SpanOutOfOrder,
    SpanStarted,
)
from trackside.handlers import replay

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

transformers = pytest.importorskip("transformers")

import torch  # noqa: E402  after what may skip all of this

import framework_checks as checks  # noqa: E402  after what may skip all of this
import frameworks  # noqa: E402
from trackside.integrations.transformers import TracksideCallback  # noqa: E402

of, lines_of = checks.of, checks.lines_of

# The trainer fetches all batches of a step before it begins.
LOADING = ["data_loading"] * 2
STEP = [*["model_forward", "model_backward"] * 2, "optimizer_update"]


def golden():
    """Return the events of a training: 20 steps of two batches, a save after every 5th, an evaluation of 3 after 10."""
    lines = ["training_loop {"]
    for step in range(20):
        lines += [*LOADING, *STEP, f"training {step}"]
        if step % 10 == 9:
            lines += ["validation_loop {", *[f"validation {step}"] * 3, "} validation_loop"]
        if step % 5 == 4:
            lines += ["checkpoint_save_sync {", f"saved {step}", "} checkpoint_save_sync"]
    return [*lines, "} training_loop"]


def trainer_of(directory, *callbacks, **options):
    return frameworks.transformers_trainer(directory, *callbacks, **options)


class TestTraining:
    def test_golden(self, events, tmp_path):
        """Training with accumulation, evaluation and saves is recorded in this order."""
        trainer_of(tmp_path, TracksideCallback()).train()
        assert lines_of(events) == golden()

    def test_loader_in_the_state(self, events, tmp_path):
        """It is the same where the loader is in the state alone, as in Transformers 4.49.0."""

        class Called(TracksideCallback):
            def on_train_begin(self, args, state, control, *, model=None, train_dataloader=None, **_):
                state.train_dataloader = train_dataloader
                super().on_train_begin(args, state, control, model=model)
                del state.train_dataloader  # a checkpoint of the state cannot hold it

        trainer_of(tmp_path, Called()).train()
        assert lines_of(events) == golden()

    def test_iterations(self, events, tmp_path):
        """An iteration is an optimizer step: the samples of both its batches, and the mean of their losses."""
        trainer = trainer_of(tmp_path, TracksideCallback())
        trainer.train()
        iterations = [event for event in of(IterationEnded, events) if event.kind == "training"]
        pairs = zip(trainer.losses[::2], trainer.losses[1::2], strict=True)
        assert [event.samples for event in iterations] == [4] * 20
        assert [float(event.loss) for event in iterations] == pytest.approx([float(a + b) / 2 for a, b in pairs])

    def test_parts_belong_to_their_iteration(self, events, tmp_path):
        """The parts of a step are inside its iteration; its batches are fetched before."""
        trainer_of(tmp_path, TracksideCallback(), max_steps=2, eval_strategy="no", save_strategy="no").train()
        ids = {event.span_id: event.step for event in of(IterationEnded, events)}
        parts = [(event.name, ids.get(event.parent_span_id)) for event in of(ProfileSpanEnded, events)]
        step = [[*((name, None) for name in LOADING), *((name, step) for name in STEP)] for step in range(2)]
        assert parts == step[0] + step[1]

    def test_waits_for_data(self, events, tmp_path):
        """The time that a loader takes for a batch counts for the batch, and not for the step."""
        slow = threading.Event()

        class Slow(frameworks.Samples):
            def __getitem__(self, index):
                slow.wait(0.05)
                return super().__getitem__(index)

        trainer = trainer_of(tmp_path, TracksideCallback(), max_steps=3, eval_strategy="no", save_strategy="no")
        trainer.train_dataset = Slow()
        trainer.train()
        waits = [event.duration_ns for event in of(ProfileSpanEnded, events) if event.name == "data_loading"]
        # The loader is a batch ahead, so the first wait is for two of them; a batch is two samples.
        assert sum(waits) >= 7 * 2 * 0.05e9
        assert waits[0] >= 4 * 0.05e9

    def test_logged(self, events, tmp_path):
        """Logged values are an event, at their step; the trainer's arguments are the config."""
        trainer_of(tmp_path, TracksideCallback(), save_strategy="no").train()
        logged = of(MetricsLogged, events)
        assert [("loss" in event.values, event.step) for event in logged] == [
            *[(True, 9), (False, 9), (True, 19), (False, 19), (False, 19)],
        ]
        assert [event.values["learning_rate"] for event in of(ConfigLogged, events)] == [0.1]

    def test_save_without_notice(self, events, tmp_path):
        """A save that no flag announced is recorded when it is done."""

        class Best(TracksideCallback):
            def on_step_end(self, args, state, control, **more):
                super().on_step_end(args, state, control, **more)
                control.should_save = state.global_step == 2

        trainer_of(tmp_path, Best(), max_steps=3, eval_strategy="no", save_strategy="no").train()
        at = lines_of(events).index("training 1") + 1
        assert lines_of(events)[at : at + 3] == ["checkpoint_save_sync {", "saved 1", "} checkpoint_save_sync"]

    def test_two_callbacks(self, events, tmp_path):
        """Of two callbacks on one trainer one records everything, once."""
        trainer_of(tmp_path, TracksideCallback(), TracksideCallback).train()
        assert lines_of(events) == golden()

    def test_next_trainer(self, events, tmp_path):
        """Another trainer of the same model is recorded by its own callback."""
        options = {"max_steps": 1, "eval_strategy": "no", "save_strategy": "no"}
        first = trainer_of(tmp_path, TracksideCallback(), **options)
        first.train()
        events.clear()
        trainer_of(tmp_path, TracksideCallback(), model=first.model, **options).train()
        assert lines_of(events) == ["training_loop {", *LOADING, *STEP, "training 0", "} training_loop"]

    def test_leaves_nothing(self, tmp_path):
        """After training, model and loader are restored."""
        trainer = trainer_of(tmp_path, TracksideCallback(), max_steps=1, eval_strategy="no", save_strategy="no")
        trainer.train()
        assert not trainer.model._forward_hooks
        assert not trainer.model._forward_pre_hooks
        loader = trainer.callback_handler.train_dataloader or trainer.state.train_dataloader
        assert type(loader).__iter__.__qualname__.startswith("DataLoaderShard")

    def test_resumed(self, events, tmp_path):
        """
        A resumed training goes on counting, and the first epoch's waits are recorded though its loader is another one.
        """
        trainer_of(tmp_path, TracksideCallback(), max_steps=10, eval_strategy="no").train()
        events.clear()
        trainer = trainer_of(tmp_path, TracksideCallback(), max_steps=12, eval_strategy="no", save_strategy="no")
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoints" / "checkpoint-5"))
        (loop,) = [event for event in of(SpanStarted, events) if event.name == "training_loop"]
        assert loop.attributes["train_iterations_start"] == 5
        iterations = of(IterationEnded, events)
        assert [(event.step, event.samples) for event in iterations] == [(step, 4) for step in range(5, 12)]
        assert lines_of(events).count("data_loading") == 7

    def test_compiled(self, events, tmp_path, monkeypatch):
        """A compiled model has no recorded passes; everything else is recorded, and nothing is compiled twice."""
        pytest.importorskip("torch._dynamo")
        monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "no")  # older trainers leave theirs behind
        options = {"torch_compile": True, "torch_compile_backend": "eager", "max_steps": 2}
        trainer_of(tmp_path, TracksideCallback(), eval_strategy="no", save_strategy="no", **options).train()
        step = [*LOADING, "optimizer_update"]
        assert lines_of(events) == ["training_loop {", *step, "training 0", *step, "training 1", "} training_loop"]


class TestLoads:
    OPTIONS = {"max_steps": 5, "eval_strategy": "no"}

    @pytest.fixture
    def checkpoint(self, tmp_path):
        """Return the path of a checkpoint of five steps."""
        trainer_of(tmp_path, **self.OPTIONS).train()
        return str(tmp_path / "checkpoints" / "checkpoint-5")

    def go_on(self, directory, checkpoint, *callbacks):
        """Train one step more than the checkpoint holds."""
        options = {**self.OPTIONS, "max_steps": 6, "save_strategy": "no"}
        trainer_of(directory, *callbacks, **options).train(resume_from_checkpoint=checkpoint)

    def test_to_go_on(self, checkpoint, events, tmp_path):
        """The model and the optimizer's state are a load each, before training; the later one has the step."""
        self.go_on(tmp_path, checkpoint, TracksideCallback())
        load = ["checkpoint_load {", "} checkpoint_load"]
        assert lines_of(events) == [
            *load,
            *load,
            "training_loop {",
            "data_loading",
            *STEP,
            "training 5",
            "} training_loop",
        ]
        assert [event.attributes for event in of(SpanEnded, events) if event.name == "checkpoint_load"] == [
            {"path": checkpoint, "part": "model"},
            {"path": checkpoint, "part": "optimizer", "current_iteration": 4},
        ]

    def test_all_of_the_time(self, checkpoint, events, monkeypatch, tmp_path):
        """A load lasts as long as the trainer takes for it."""
        began, over = [], []
        load = transformers.Trainer._issue_warnings_after_load

        def slow(*args):
            began.append(trackside.events.clock.now_ns())
            threading.Event().wait(0.05)
            over.append(trackside.events.clock.now_ns())
            return load(*args)

        monkeypatch.setattr(transformers.Trainer, "_issue_warnings_after_load", slow)
        self.go_on(tmp_path, checkpoint, TracksideCallback())
        span = next(event for event in of(SpanEnded, events) if event.name == "checkpoint_load")
        assert span.at_ns - span.duration_ns <= began[0]
        assert span.at_ns >= over[0]

    def test_failing(self, events, tmp_path):
        """A load that raises has failed, with the trainer's own exception."""
        (tmp_path / "nothing").mkdir()
        with pytest.raises(ValueError, match="valid checkpoint") as raised:
            self.go_on(tmp_path, str(tmp_path / "nothing"), TracksideCallback())
        (load,) = of(SpanEnded, events)
        assert (load.name, load.error["message"]) == ("checkpoint_load", str(raised.value))

    def test_of_the_best_model(self, events, tmp_path):
        """The best model at the end is another load: earlier work is not undone by it."""
        best = {"load_best_model_at_end": True, "eval_steps": 5, "save_steps": 5}
        trainer_of(tmp_path, TracksideCallback(), max_steps=5, **best).train()
        assert lines_of(events)[-3:] == ["best_model_load {", "} best_model_load", "} training_loop"]

    def test_nobody_watches(self, checkpoint, events, tmp_path):
        """A trainer without the callback is not recorded, though another one has it."""
        TracksideCallback()
        self.go_on(tmp_path, checkpoint)
        assert events == []

    def test_of_our_own(self, checkpoint, caplog, tmp_path):
        """An error in trackside stays out of the load."""

        class Broken(TracksideCallback):
            def before_load(self, _args):
                raise OSError("no telemetry")

        with caplog.at_level(logging.WARNING, logger="trackside"):
            self.go_on(tmp_path, checkpoint, Broken())
        said = [record.message for record in caplog.records if record.name == "trackside"]
        assert said == ["trackside does not record this load"] * 2

    def test_late_callback(self, checkpoint, tmp_path):
        """A callback that came later than the trainer turns telemetry on for the load already."""
        trainer = trainer_of(tmp_path, **{**self.OPTIONS, "max_steps": 6, "save_strategy": "no"})
        callback = TracksideCallback(tmp_path / "runs")
        trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=checkpoint)
        callback.close()
        assert lines_of(replay(tmp_path / "runs")).count("} checkpoint_load") == 2


class TestEvaluation:
    def test_outside_training(self, events, tmp_path):
        """An evaluation alone is a validation loop; the start of its first batch is unknown."""
        trainer = trainer_of(tmp_path, TracksideCallback())
        trainer.evaluate()
        trainer.predict(trainer.eval_dataset)
        assert lines_of(events) == [
            *["validation_loop {", *["validation -1"] * 2, "} validation_loop"],
            *["testing_loop {", *["testing -1"] * 2, "} testing_loop"],
        ]


class TestLoss:
    @checks.SINKS
    def test_bit_for_bit(self, sink, tmp_path):
        """Every loss is the same to the last bit, whatever happens to the events."""
        plain = trainer_of(tmp_path / "plain")
        plain.train()
        with checks.subscribed(sink, tmp_path):
            watched = trainer_of(tmp_path / "watched", TracksideCallback())
            watched.train()
        assert [loss.item().hex() for loss in watched.losses] == [loss.item().hex() for loss in plain.losses]
        pairs = zip(watched.model.parameters(), plain.model.parameters(), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


class TestErrors:
    def test_of_our_own(self, caplog, tmp_path):
        """An error in trackside stays out of the training, and is reported once."""
        callback = TracksideCallback()
        callback._watch._parts = None
        trainer = trainer_of(tmp_path, callback, max_steps=3, eval_strategy="no", save_strategy="no")
        with caplog.at_level(logging.WARNING, logger="trackside"):
            trainer.train()
        assert trainer.state.global_step == 3
        assert [record.message for record in caplog.records if record.name == "trackside"] == [
            "trackside records no more of this trainer"
        ]

    def test_of_a_signal_handler(self, events, tmp_path):
        """An exception of the program's signal handler in the callback comes out, and the next training is recorded."""
        checks.interrupt(trainer_of(tmp_path / "first", TracksideCallback()).train)
        events.clear()
        trainer_of(tmp_path / "next", TracksideCallback()).train()
        steps = [event.step for event in of(IterationEnded, events) if event.kind == "training"]
        assert steps == list(range(20))

    def test_in_the_model(self, tmp_path):
        """The trainer calls no callback for an exception: open spans are closed when telemetry is turned off."""

        def fail():
            raise ValueError("a bad batch")

        callback = TracksideCallback(tmp_path / "runs")
        trainer = trainer_of(tmp_path, callback, model=frameworks.Regression(fail))
        with pytest.raises(ValueError, match="a bad batch"):
            trainer.train()
        callback.close()
        recorded = list(replay(tmp_path / "runs"))
        assert checks.left_open(recorded) == []
        assert [event.failed for event in of(IterationEnded, recorded)] == [True]

    def test_next_training_after_one(self, events, tmp_path):
        """A training that failed does not affect the next one."""
        fails = iter([True])

        def fail():
            if next(fails, False):
                raise ValueError("a bad batch")

        options = {"max_steps": 1, "eval_strategy": "no", "save_strategy": "no"}
        trainer = trainer_of(tmp_path, TracksideCallback(), model=frameworks.Regression(fail), **options)
        with pytest.raises(ValueError, match="a bad batch"):
            trainer.train()
        events.clear()
        trainer.train()
        assert [line for line in lines_of(events) if "{" not in line][-2:] == ["training 0", "} training_loop"]
        assert of(SpanOutOfOrder, events) == []


class TestOneLine:
    def test_all_comes_out(self, tmp_path):
        """Spans, metrics, goodput and scores come out of the one line, and agree with each other."""
        strict = trackside.JobConfig(application_name="tiny", strict=True)  # so that any problem is an error
        callback = TracksideCallback(tmp_path / "runs", job=strict)
        trainer_of(tmp_path, callback).train()
        callback.close()
        assert checks.figures(tmp_path / "runs") == checks.FIGURES

    def test_by_variable(self, monkeypatch, tmp_path):
        """Without a directory in the code, the variable may give one."""
        monkeypatch.setenv("TRACKSIDE", str(tmp_path / "runs"))
        callback = TracksideCallback()
        trainer_of(tmp_path, callback, max_steps=1, eval_strategy="no", save_strategy="no").train()
        callback.close()
        assert "training 0" in lines_of(replay(tmp_path / "runs"))


@pytest.mark.hang_guard(200)
class TestJobs:
    def test_dies_and_goes_on(self, tmp_path):
        """Under torchrun a job that died in its 8th step: attempts, waste and recovery are the true ones."""
        done = checks.launch("transformers", tmp_path, ranks=1, dies_at=7, restarts=2)
        assert done.returncode == 0, done.stderr[-4000:]
        checks.check_recovery(tmp_path / "runs", dies_at=7)

    def test_two_ranks(self, tmp_path):
        """Two processes are two sources of one run."""
        done = checks.launch("transformers", tmp_path, ranks=2)
        assert done.returncode == 0, done.stderr[-4000:]
        assert checks.last_steps(tmp_path / "runs") == ([(0, 2), (1, 2)], [19, 19])
        assert len({source.run_id for source in checks.models_of(tmp_path / "runs")[0].sources}) == 1
