"""One Logger's configuration over ours."""

from __future__ import annotations

import logging

import pytest

from trackside.compat.one_logger.api.config import LoggerConfig, OneLoggerConfig, OneLoggerErrorHandlingStrategy
from trackside.compat.one_logger.api.telemetry_config import ApplicationType, TelemetryConfig
from trackside.compat.one_logger.core.exceptions import OneLoggerError
from trackside.compat.one_logger.training_telemetry.api.checkpoint import CheckPointStrategy
from trackside.compat.one_logger.training_telemetry.api.config import TrainingTelemetryConfig

PROPAGATE = OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS
QUIET = OneLoggerErrorHandlingStrategy.DISABLE_QUIETLY_AND_REPORT_METRIC_ERROR
NEEDED = {"application_name": "test", "world_size_or_fn": 2, "session_tag_or_fn": "session"}
TRAINING = {"perf_tag_or_fn": "perf", "global_batch_size_or_fn": 4}


class TestOneLoggerConfig:
    def test_defaults(self):
        """Fields that are not set have One Logger's defaults."""
        config = OneLoggerConfig(**NEEDED)
        sent = (config.is_baseline_run, config.enable_for_current_rank, config.summary_data_schema_version)
        assert (*sent, config.custom_metadata, config.telemetry_config) == (False, True, "1.0.0", None, None)

    def test_functions(self):
        """Fields may be functions."""
        config = OneLoggerConfig(
            application_name="test",
            world_size_or_fn=lambda: 8,
            session_tag_or_fn=lambda: "s",
            is_baseline_run_or_fn=lambda: True,
        )
        assert (config.world_size, config.session_tag, config.is_baseline_run) == (8, "s", True)

    def test_functions_are_not_called_early(self):
        """A function that cannot return a value yet is no error."""
        config = OneLoggerConfig(**{**NEEDED, "world_size_or_fn": lambda: 1 // 0})
        with pytest.raises(ZeroDivisionError):
            _ = config.world_size

    @pytest.mark.parametrize(
        ("field", "given"),
        [
            ("application_name", ""),
            ("application_name", "  "),
            ("world_size_or_fn", 0),
            ("world_size_or_fn", -1),
            ("custom_metadata", {" ": 1}),
            ("error_handling_strategy", "no such strategy"),
            ("session_tag_or_fn", 7),
        ],
    )
    def test_wrong(self, field, given):
        """A wrong value is an error of One Logger's."""
        with pytest.raises(OneLoggerError):
            OneLoggerConfig(**{**NEEDED, field: given})

    def test_missing(self):
        """A missing field is named."""
        with pytest.raises(OneLoggerError, match="session_tag_or_fn"):
            OneLoggerConfig(application_name="test", world_size_or_fn=1)

    def test_unknown(self, caplog):
        """A field that does not exist is ignored, with a warning."""
        OneLoggerConfig(**NEEDED, no_such_field=1)
        assert "no_such_field" in caplog.text

    @pytest.mark.parametrize(
        ("given", "strategy"),
        [
            ({}, PROPAGATE),
            ({"enable_for_current_rank": False}, QUIET),
            ({"enable_for_current_rank": False, "error_handling_strategy": PROPAGATE}, PROPAGATE),
            ({"error_handling_strategy": QUIET}, QUIET),
            ({"error_handling_strategy": "disable_quietly_and_report_metric_error"}, QUIET),
        ],
    )
    def test_strategy(self, given, strategy):
        """Errors are raised where telemetry is on and not where it is off, unless the strategy says otherwise."""
        assert OneLoggerConfig(**NEEDED, **given).error_handling_strategy is strategy

    @pytest.mark.parametrize(("strategy", "strict"), [(PROPAGATE, True), (QUIET, False)])
    def test_strict(self, strategy, strict):
        """One Logger's strategy of propagating errors is trackside's strict bus."""
        assert OneLoggerConfig(**NEEDED, error_handling_strategy=strategy).to_trackside().strict is strict

    def test_over_ours(self):
        """The fields are those of the job's configuration."""
        job = OneLoggerConfig(**NEEDED, custom_metadata={"a": 1}, enable_for_current_rank=False).to_trackside()
        sent = (job.application_name, job.world_size, job.session_tag, job.custom_metadata, job.enable_for_current_rank)
        assert sent == ("test", 2, "session", {"a": 1}, False)


class TestLoggerConfig:
    def test_level(self):
        """A level is one of five."""
        assert LoggerConfig(log_level="DEBUG").to_trackside().log_level == "DEBUG"
        with pytest.raises(OneLoggerError):
            LoggerConfig(log_level="LOUD")

    def test_no_files(self, tmp_path, monkeypatch, one_logger):
        """No file is written unless it is named."""
        monkeypatch.chdir(tmp_path)
        one_logger.start(logger_config=LoggerConfig())
        assert list(tmp_path.glob("onelogger*")) == []

    def test_files(self, tmp_path, one_logger):
        """Messages go to the file that is named, errors to another; no handle is left behind."""
        paths = [tmp_path / name for name in ("info", "err")]
        before = list(logging.getLogger("trackside").handlers)
        config = LoggerConfig(log_file_path_for_info=paths[0], log_file_path_for_err=paths[1])
        provider = one_logger.start(logger_config=config)
        logging.getLogger("trackside").warning("careful")
        logging.getLogger("trackside").error("broken")
        provider.forget()
        sent = [path.read_text(encoding="utf-8").count("\n") for path in paths]
        assert (sent, logging.getLogger("trackside").handlers) == ([2, 1], before)


class TestTrainingTelemetryConfig:
    def test_defaults(self):
        """Fields that are not set have One Logger's defaults."""
        config = TrainingTelemetryConfig(**TRAINING)
        sent = (config.log_every_n_train_iterations, config.is_log_throughput_enabled, config.seq_length)
        flags = [getattr(config, f"is_{what}_enabled") for what in
                 ("train_iterations", "validation_iterations", "test_iterations", "save_checkpoint")]  # fmt: skip
        assert (*sent, config.save_checkpoint_strategy, flags) == (50, False, None, CheckPointStrategy.SYNC, [True] * 4)

    def test_functions(self):
        """Fields may be functions, and are read under the name of the value they return."""
        config = TrainingTelemetryConfig(perf_tag_or_fn=lambda: ["a", "b"], global_batch_size_or_fn=lambda: 32)
        assert (config.perf_tag, config.global_batch_size) == (["a", "b"], 32)

    @pytest.mark.parametrize(
        ("field", "given"),
        [
            ("global_batch_size_or_fn", 0),
            ("log_every_n_train_iterations", 0),
            ("is_log_throughput_enabled_or_fn", True),
            ("save_checkpoint_strategy", "sometimes"),
            ("perf_tag_or_fn", ""),
        ],
    )
    def test_wrong(self, field, given):
        """A wrong value is an error; throughput needs the operations of a sample."""
        with pytest.raises(OneLoggerError):
            TrainingTelemetryConfig(**{**TRAINING, field: given})

    def test_unknown(self):
        """A field without a value is no attribute."""
        with pytest.raises(AttributeError):
            TrainingTelemetryConfig(**TRAINING).no_such_field  # noqa: B018

    def test_protocol(self):
        """It is a telemetry configuration, of a training."""
        config = TrainingTelemetryConfig(**TRAINING)
        assert (isinstance(config, TelemetryConfig), config.app_type) == (True, ApplicationType.TRAINING)

    def test_over_ours(self):
        """The fields are those of the training's configuration."""
        config = TrainingTelemetryConfig(
            **TRAINING, seq_length_or_fn=7, save_checkpoint_strategy=CheckPointStrategy.ASYNC
        )
        ours = config.to_trackside()
        assert (ours.perf_tag, ours.global_batch_size, ours.seq_length, ours.save_checkpoint_strategy) == (
            "perf",
            4,
            7,
            "async",
        )
