"""
The events of a real loop of the user's own under Accelerate, on a tiny model, recorded by one line on all processes.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

import trackside
from trackside.events import (
    ConfigLogged,
    ExceptionRaised,
    IterationEnded,
    MetricsLogged,
    ProfileSpanEnded,
    SpanEnded,
    SpanStarted,
)
from trackside.handlers import replay

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

accelerate = pytest.importorskip("accelerate")

import framework_checks as checks  # noqa: E402  after what may skip all of this
import frameworks  # noqa: E402
from trackside.integrations import accelerate as instrument  # noqa: E402  after what may skip all of this

of, lines_of = checks.of, checks.lines_of

STEP = [
    *["model_forward", "model_backward"],
    *["data_loading", "model_forward", "model_backward", "optimizer_update"],
]


def golden():
    """Return the events of a loop: 20 steps of two batches, a save after every 5th; 3 batches evaluated after 10."""
    lines = []
    for step in range(20):
        lines += ["data_loading", *(["training_loop {"] if step == 0 else []), *STEP, f"training {step}"]
        if step % 10 == 9:
            # The fourth wait finds that there is no batch. A pass is recorded when what comes after it begins.
            lines += ["data_loading", *["data_loading", "validation -1"] * 2, "data_loading"]
            lines += ["validation -1", "validation_loop {", "} validation_loop"]
        if step % 5 == 4:
            lines += ["checkpoint_save_sync {", f"saved {step}", "} checkpoint_save_sync"]
    return [*lines, "} training_loop"]


FAILING_LOOP = """
import sys
import torch
from accelerate import Accelerator
from trackside.integrations.accelerate import TracksideTracker

place, directory = sys.argv[1:]

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 5
    def __getitem__(self, index):
        fail_at("data", index == 4)
        return torch.ones(1)

class Model(torch.nn.Linear):
    def forward(self, inputs):
        fail_at("forward" if self.training else "evaluation", step == 2)
        return super().forward(inputs)

def fail_at(where, is_time=True):
    if where == place and is_time:
        raise ValueError("a bad batch")

step = 0
accelerator = Accelerator(log_with=TracksideTracker(directory), cpu=True)
model = Model(1, 1)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.SGD(model.parameters()), torch.utils.data.DataLoader(Rows(), 1)
)
accelerator.init_trackers("failing")
for step, batch in enumerate(loader):
    fail_at("user", step == 2)
    accelerator.backward(model(batch).mean())
    optimizer.step()
    with torch.no_grad():
        model.eval()(batch)
        model.train()
"""
"""A loop whose third step fails at the place given, or its loading of a later batch."""


@pytest.fixture(autouse=True)
def fresh():
    """Reset accelerate's state before and after each test."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


class TestLoop:
    def test_golden(self, events, tmp_path):
        """A loop with accumulation, evaluation and saves is recorded in this order."""
        frameworks.train_with_accelerate(tmp_path, instrument.TracksideTracker())
        assert lines_of(events) == golden()

    def test_iterations(self, events, tmp_path):
        """An iteration is an optimizer step: the samples of both its batches, and the mean of their losses."""
        losses = frameworks.train_with_accelerate(tmp_path, instrument.TracksideTracker())
        iterations = [event for event in of(IterationEnded, events) if event.kind == "training"]
        pairs = zip(losses[::2], losses[1::2], strict=True)
        assert [event.samples for event in iterations] == [4] * 20
        assert [float(event.loss) for event in iterations] == pytest.approx([float(a + b) / 2 for a, b in pairs])

    def test_parts_belong_to_their_iteration(self, events, tmp_path):
        """The parts of a step are inside its iteration, but for the wait for its first batch."""
        frameworks.train_with_accelerate(tmp_path, instrument.TracksideTracker(), steps=2)
        ids = {event.span_id: event.step for event in of(IterationEnded, events)}
        parts = [(event.name, ids.get(event.parent_span_id)) for event in of(ProfileSpanEnded, events)]
        step = [[("data_loading", None), *((name, step) for name in STEP)] for step in range(2)]
        assert parts == step[0] + step[1]

    def test_logged(self, events, tmp_path):
        """The logged values are events, as the configuration is; the numbers among them are stats too."""
        frameworks.train_with_accelerate(tmp_path, instrument.TracksideTracker())
        assert [sorted(event.values) for event in of(ConfigLogged, events)] == [["lr"]]
        assert [(sorted(event.values), event.step) for event in of(MetricsLogged, events)] == [
            (["loss"], 9),
            (["loss"], 19),
        ]
        assert "loss" in {counter.name for counter in trackside.bus.default_bus.counters("loss")}

    def test_two_trackers(self, events, tmp_path):
        """Of two trackers, one records everything, once."""
        trackers = [instrument.TracksideTracker(), instrument.TracksideTracker()]
        frameworks.train_with_accelerate(tmp_path, *trackers)
        assert lines_of(events) == golden()

    def test_leaves_nothing(self, tmp_path):
        """After the end, accelerate's classes have their own methods again."""
        before = {name: vars(accelerate.Accelerator)[name] for name in ("backward", "log", "init_trackers")}
        frameworks.train_with_accelerate(tmp_path, instrument.TracksideTracker(), steps=1)
        assert {name: vars(accelerate.Accelerator)[name] for name in before} == before

    def test_resumed(self, events, tmp_path):
        """A job that loads a state goes on counting from the step at which it was saved."""
        frameworks.train_with_accelerate(tmp_path, instrument.TracksideTracker(), steps=5)
        assert json.loads((tmp_path / "checkpoints" / "0005" / "trackside.json").read_text()) == {"step": 5}
        events.clear()
        frameworks.train_with_accelerate(tmp_path, instrument.TracksideTracker(), steps=7)
        (load, *_) = of(SpanEnded, events)
        assert (load.name, load.attributes["current_iteration"]) == ("checkpoint_load", 4)
        assert [event.step for event in of(IterationEnded, events)] == [5, 6]
        loop = next(event for event in of(SpanStarted, events) if event.name == "training_loop")
        assert loop.attributes["train_iterations_start"] == 5

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"step": "5"}', '{"step": -5}'])
    def test_resumed_without_knowing(self, content, events, tmp_path):
        """A state without a step count is loaded all the same; steps are counted from 0."""
        frameworks.train_with_accelerate(tmp_path, instrument.TracksideTracker(), steps=5)
        (tmp_path / "checkpoints" / "0005" / "trackside.json").write_text(content)
        events.clear()
        frameworks.train_with_accelerate(tmp_path, instrument.TracksideTracker(), steps=6)
        assert [event.step for event in of(IterationEnded, events)] == [0]


class TestLoss:
    @checks.SINKS
    def test_bit_for_bit(self, sink, tmp_path):
        """Every loss is the same to the last bit, whatever happens to the events."""
        plain = frameworks.train_with_accelerate(tmp_path / "plain")
        with checks.subscribed(sink, tmp_path):
            watched = frameworks.train_with_accelerate(tmp_path / "watched", instrument.TracksideTracker())
        assert [loss.item().hex() for loss in watched] == [loss.item().hex() for loss in plain]


class TestErrors:
    def test_of_our_own(self, caplog, monkeypatch, tmp_path):
        """An error in trackside stays out of the training, and is reported once."""
        monkeypatch.setattr("trackside.integrations.accelerate.callbacks.on_train_start", None)
        with caplog.at_level(logging.WARNING, logger="trackside"):
            losses = frameworks.train_with_accelerate(tmp_path, instrument.TracksideTracker(), steps=3)
        assert len(losses) == 6
        assert [record.message for record in caplog.records if record.name == "trackside"] == [
            "trackside records no more of this loop"
        ]

    def test_of_a_signal_handler(self, events, tmp_path):
        """An exception of the program's signal handler in the callback comes out, and the next training is recorded."""
        tracker = instrument.TracksideTracker()
        checks.interrupt(lambda: frameworks.train_with_accelerate(tmp_path / "first", tracker))
        tracker.finish()
        events.clear()
        frameworks.train_with_accelerate(tmp_path / "next", instrument.TracksideTracker())
        assert lines_of(events) == golden()

    def test_in_the_loop(self, tmp_path):
        """Spans that an exception leaves open are closed when the tracker is finished."""

        def fail():
            raise ValueError("a bad batch")

        tracker = instrument.TracksideTracker(tmp_path / "runs")
        with pytest.raises(ValueError, match="a bad batch"):
            frameworks.train_with_accelerate(tmp_path, tracker, model=frameworks.Regression(fail))
        tracker.finish()
        recorded = list(replay(tmp_path / "runs"))
        assert checks.left_open(recorded) == []

    @pytest.mark.parametrize(
        ("place", "named"),
        [
            ("data", "data_loading"),
            ("user", "training_single_iteration"),
            ("forward", "model_forward"),
            ("evaluation", "validation_single_iteration"),
        ],
    )
    def test_names_the_part(self, place, named, tmp_path):
        """An exception is recorded with the part of the loop that it ended, and within a step with that step."""
        failing = subprocess.run(
            [sys.executable, "-c", FAILING_LOOP, place, tmp_path],
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert "ValueError: a bad batch" in failing.stderr
        (raised,) = of(ExceptionRaised, replay(tmp_path))
        assert (raised.span_name, raised.step) == (named, 2 if place in {"user", "forward"} else -1)


class TestOneLine:
    def test_all_comes_out(self, tmp_path):
        """Spans, metrics, goodput and scores come out of the one line, and agree with each other."""
        strict = trackside.JobConfig(application_name="tiny", strict=True)  # so that any problem is an error
        frameworks.train_with_accelerate(tmp_path, instrument.TracksideTracker(tmp_path / "runs", job=strict))
        assert checks.figures(tmp_path / "runs") == {
            **checks.FIGURES,
            "parts": {**checks.FIGURES["parts"], "data_loading": 48},
        }


@pytest.mark.hang_guard(200)
class TestJobs:
    def test_dies_and_goes_on(self, tmp_path):
        """Under torchrun a job that died in its 8th step: attempts, waste and recovery are the true ones."""
        done = checks.launch("accelerate", tmp_path, ranks=1, dies_at=7, restarts=2)
        assert done.returncode == 0, done.stderr[-4000:]
        checks.check_recovery(tmp_path / "runs", dies_at=7)

    def test_two_processes(self, tmp_path):
        """Two processes are two files and one run, though accelerate calls trackers on one of them alone."""
        done = checks.launch("accelerate", tmp_path, ranks=2)
        assert done.returncode == 0, done.stderr[-4000:]
        assert checks.last_steps(tmp_path / "runs") == ([(0, 2), (1, 2)], [19, 19])
        (run,) = (tmp_path / "runs").iterdir()
        assert sorted(path.name.split(".")[0] for path in run.iterdir()) == ["rank-00000", "rank-00001"]
        assert {event.source.rank for event in of(MetricsLogged, replay(tmp_path / "runs"))} == {0, 1}
