"""The phases of a job, and the attributes of a training loop."""

from __future__ import annotations

import pytest

from trackside.events import LIFECYCLE, ConfigError, SpanEnded, SpanOutOfOrder, SpanStarted
from trackside.instruments import (
    TrainingDefaults,
    application,
    dataloader_init,
    distributed_init,
    model_init,
    optimizer_init,
    set_training_defaults,
    testing_loop,
    training_loop,
    validation_loop,
)
from trackside.wire import RowEncoder


class TestPhases:
    @pytest.mark.parametrize(
        ("make", "name"),
        [
            (application, "application"),
            (training_loop, "training_loop"),
            (validation_loop, "validation_loop"),
            (testing_loop, "testing_loop"),
            (distributed_init, "distributed_code_initialization"),
            (dataloader_init, "data_loader_initialization"),
            (model_init, "model_initialization"),
            (optimizer_init, "optimizer_initialization"),
        ],
    )
    def test_names(self, captured, make, name):
        """Every phase is published when it starts and when it ends, under One Logger's name."""
        with make():
            pass
        assert [(type(event), event.name, event.priority) for event in captured] == [
            (SpanStarted, name, LIFECYCLE),
            (SpanEnded, name, LIFECYCLE),
        ]

    def test_decorated(self, captured):
        """Each is a decorator, too."""

        @application()
        @model_init(layers=12)
        def build():
            return "model"

        assert build() == "model"
        assert [event.name for event in captured.of(SpanEnded)] == ["model_initialization", "application"]
        assert captured.of(SpanEnded)[0].attributes == {"layers": 12}


class TestTrainingLoop:
    def started(self, captured):
        """Return the attributes of the one span that started."""
        (found,) = captured.of(SpanStarted)
        return found.attributes

    def test_from_nothing(self, captured):
        """A loop without arguments starts at step 0."""
        with training_loop():
            pass
        assert self.started(captured) == {"train_iterations_start": 0, "train_samples_start": 0}

    def test_given(self, captured):
        """Given values are recorded, with any further ones."""
        with training_loop(
            90, train_samples_start=2_880, train_iterations_target=1_000, train_samples_target=32_000, fold=2
        ):
            pass
        assert self.started(captured) == {
            "train_iterations_start": 90,
            "train_samples_start": 2_880,
            "train_iterations_target": 1_000,
            "train_samples_target": 32_000,
            "fold": 2,
        }

    def test_from_the_configuration(self, captured):
        """Missing values are taken from the training's configuration."""
        set_training_defaults(
            TrainingDefaults(
                global_batch_size=32,
                seq_length=128,
                flops_per_sample=1_000,
                train_iterations_target=500,
                train_samples_target=16_000,
            )
        )
        with training_loop(90):
            pass
        assert self.started(captured) == {
            "train_iterations_start": 90,
            "train_samples_start": 90 * 32,
            "train_iterations_target": 500,
            "train_samples_target": 16_000,
            "train_tokens_target": 128 * 16_000,
            "completed_floating_point_operations_overall": 90 * 32 * 1_000,
        }

    def test_many_operations(self, captured):
        """Earlier operations are recorded although they exceed 64 bits: 1e24 operations."""
        set_training_defaults(TrainingDefaults(global_batch_size=10_000, flops_per_sample=10**17))
        with training_loop(1_000):
            pass
        assert self.started(captured)["completed_floating_point_operations_overall"] == 1e24
        RowEncoder().encode(captured.of(SpanStarted)[0], 0)

    def test_samples_of_a_resumed_run(self, captured):
        """Without a batch size the number of earlier samples is unknown."""
        with training_loop(90):
            pass
        assert self.started(captured) == {"train_iterations_start": 90}

    def test_functions(self, captured):
        """Targets may be functions; they are called when the loop starts."""
        asked = []
        loop = training_loop(train_iterations_target=lambda: asked.append(1) or 500)
        assert asked == []
        with loop:
            pass
        assert (asked, self.started(captured)["train_iterations_target"]) == ([1], 500)

    @pytest.mark.parametrize("wrong", [-1, 1.5, "90", True])
    def test_wrong(self, captured, wrong):
        """A start that is no number is ignored, and named."""
        with training_loop(wrong):
            pass
        assert self.started(captured)["train_iterations_start"] == 0
        (event,) = captured.of(SpanOutOfOrder)
        assert event.name == "training_loop"
        assert f"train_iterations_start: got {wrong!r}; give a whole number from 0" in event.problem

    def test_failing_function(self, captured):
        """A function that raises costs the value, and is named."""
        with training_loop(train_iterations_target=lambda: 1 // 0):
            pass
        assert "train_iterations_target" not in self.started(captured)
        assert "ZeroDivisionError" in captured.of(SpanOutOfOrder)[0].problem

    def test_strict(self, captured, strict):
        """In a strict bus it is an error, and nothing is left open."""
        with pytest.raises(ConfigError, match="train_iterations_start"):
            training_loop(-1).open()
        assert list(captured) == []
