"""The configuration of a training that is known before it runs."""

from __future__ import annotations

import attrs
import pytest

from trackside.events import ConfigError, TrainingConfigured
from trackside.instruments import TrainingDefaults
from trackside.job import TrainingConfig

# Every field of One Logger's TrainingTelemetryConfig, by our name.
ONE_LOGGERS = """
    perf_tag global_batch_size micro_batch_size seq_length flops_per_sample train_iterations_target
    train_samples_target log_every_n_train_iterations is_train_iterations_enabled is_validation_iterations_enabled
    is_test_iterations_enabled is_save_checkpoint_enabled is_log_throughput_enabled save_checkpoint_strategy
    custom_metadata
""".split()


class TestFields:
    def test_all(self):
        """Every field of One Logger's exists here, and the peak for the MFU."""
        assert {field.name for field in attrs.fields(TrainingConfig)} == {*ONE_LOGGERS, "peak_flops_per_s"}

    def test_defaults(self):
        """Optional fields have One Logger's defaults; `TrainingMetrics` knows its 50 iterations."""
        config = TrainingConfig(perf_tag="a")
        assert (config.log_every_n_train_iterations, config.save_checkpoint_strategy) == (None, "sync")
        assert (config.is_train_iterations_enabled, config.is_log_throughput_enabled) == (True, False)
        assert (config.global_batch_size, config.custom_metadata) == (None, None)

    @pytest.mark.parametrize("tag", ["", "  ", [], ["a", ""], 7, None])
    def test_perf_tag(self, tag):
        """A performance tag is text, or several."""
        with pytest.raises(ConfigError, match=r"perf_tag: got .* give text that is not blank, or a list of such"):
            TrainingConfig(perf_tag=tag)

    @pytest.mark.parametrize(
        "field",
        "global_batch_size micro_batch_size seq_length flops_per_sample train_iterations_target train_samples_target "
        "log_every_n_train_iterations".split(),
    )
    @pytest.mark.parametrize("wrong", [0, -1, 1.5, "8", True])
    def test_counts(self, field, wrong):
        """A value that is no count is refused, naming field, value and remedy."""
        with pytest.raises(ConfigError) as caught:
            TrainingConfig(perf_tag="a", **{field: wrong})
        assert (caught.value.field, caught.value.given) == (field, wrong)
        assert caught.value.remedy.startswith("give a whole number above 0")

    @pytest.mark.parametrize("field", [name for name in ONE_LOGGERS if name.startswith("is_")])
    def test_flags(self, field):
        """A flag is True or False."""
        with pytest.raises(ConfigError, match=f"{field}: got 'yes'; give True or False"):
            TrainingConfig(perf_tag="a", **{field: "yes"})

    def test_strategy(self):
        """A strategy is one of the two."""
        with pytest.raises(ConfigError, match='save_checkpoint_strategy: got \'later\'; give "sync" or "async"'):
            TrainingConfig(perf_tag="a", save_checkpoint_strategy="later")

    @pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), "1e15"])
    def test_peak(self, wrong):
        """A peak is a number above 0."""
        with pytest.raises(ConfigError, match="peak_flops_per_s"):
            TrainingConfig(perf_tag="a", peak_flops_per_s=wrong)

    @pytest.mark.parametrize("wrong", [{"": 1}, {3: 1}, ["a"], "a:b"])
    def test_metadata(self, wrong):
        """Metadata is a map from names."""
        with pytest.raises(ConfigError, match="custom_metadata"):
            TrainingConfig(perf_tag="a", custom_metadata=wrong)

    def test_throughput(self):
        """Throughput needs the operations of a sample."""
        with pytest.raises(ConfigError, match="flops_per_sample: got None; give a whole number above 0"):
            TrainingConfig(perf_tag="a", is_log_throughput_enabled=True)
        assert TrainingConfig(perf_tag="a", is_log_throughput_enabled=True, flops_per_sample=5).flops_per_sample == 5


class TestFunctions:
    def test_asked_late(self):
        """Functions are called when the configuration is published, not before."""
        asked = []
        config = TrainingConfig(perf_tag=lambda: asked.append(1) or "a", global_batch_size=lambda: 32)
        assert asked == []
        event = config.configured()
        assert (asked, event.perf_tag, event.global_batch_size) == ([1], ["a"], 32)

    @pytest.mark.parametrize(
        ("field", "function"),
        [
            ("global_batch_size", lambda: 0),
            ("seq_length", lambda: "8"),
            ("is_log_throughput_enabled", lambda: "yes"),
            ("perf_tag", list),
            ("perf_tag", lambda: lambda: "a"),
        ],
    )
    def test_wrong_answer(self, field, function):
        """A function's result is checked like a value."""
        config = TrainingConfig(**{"perf_tag": "a", field: function})
        with pytest.raises(ConfigError, match=field):
            config.resolved()

    def test_failing(self):
        """A function that raises names its field."""
        with pytest.raises(ConfigError, match=r"seq_length: .* the function raised ZeroDivisionError: .*division"):
            TrainingConfig(perf_tag="a", seq_length=lambda: 1 // 0).resolved()

    def test_throughput(self):
        """Fields that need each other are checked again when functions were called."""
        config = TrainingConfig(perf_tag="a", is_log_throughput_enabled=lambda: True)
        with pytest.raises(ConfigError, match="flops_per_sample"):
            config.resolved()


class TestEvent:
    def test_fields(self):
        """The event has One Logger's attributes."""
        event = TrainingConfig(
            perf_tag=["a", "b"], save_checkpoint_strategy="async", custom_metadata={"k": 1, "l": "m"}
        ).configured()
        assert (event.perf_tag, event.checkpoint_strategy, event.custom_metadata) == (
            ["a", "b"],
            "async",
            ["k:1", "l:m"],
        )

    def test_all_fields(self):
        """Nothing of the configuration is left out."""
        said = {field.name for field in attrs.fields(TrainingConfigured)} - {"at_ns", "span_id", "step"}
        assert said == {field.name for field in attrs.fields(TrainingConfig)} - {"save_checkpoint_strategy"} | {
            "checkpoint_strategy"
        }

    def test_defaults_of_loops(self):
        """Loops and saves get the settings they need."""
        config = TrainingConfig(perf_tag="a", global_batch_size=lambda: 32, save_checkpoint_strategy="async")
        assert config.defaults() == TrainingDefaults(global_batch_size=32, save_checkpoint_strategy="async")
