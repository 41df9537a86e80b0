"""The recorder's own methods, a recorder of the job's own, and the properties of configurations and errors."""

from __future__ import annotations

import contextlib
import time

import pytest

from trackside.bus import default_bus
from trackside.compat.one_logger.api.config import OneLoggerConfig
from trackside.compat.one_logger.api.one_logger_provider import OneLoggerProvider
from trackside.compat.one_logger.api.recorder import Recorder
from trackside.compat.one_logger.api.timed_span import timed_span
from trackside.compat.one_logger.core.attributes import Attributes
from trackside.compat.one_logger.core.event import ErrorEvent, Event, TelemetryDataError
from trackside.compat.one_logger.core.exceptions import OneLoggerError
from trackside.compat.one_logger.core.span import Span
from trackside.compat.one_logger.core.time import Timer, TracingTimestamp
from trackside.compat.one_logger.training_telemetry.api import callbacks
from trackside.compat.one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider

BEGAN_S = 1_790_000_000.0


def at(seconds):
    return TracingTimestamp.for_timestamp(BEGAN_S + seconds, validate_timestamp=False)


class TestTrainingRecorder:
    def test_moments(self, one_logger, recording):
        """Each moment has a method that opens its span and one that closes it, at the times given."""
        recorder = one_logger.start(recording).recorder
        recorder.on_app_start(at(0))
        moments = ("distributed_init", "model_init", "dataloader_init", "load_checkpoint", "optimizer_init")
        for index, moment in enumerate(moments):
            getattr(recorder, f"on_{moment}_start")(start_time=at(index + 1))
            getattr(recorder, f"on_{moment}_end")(stop_time=at(index + 1.25))
        recorder.on_app_end(stop_time=at(10))
        stops = [
            (name, sent["duration_msec"])
            for (call, name), sent in zip(recording.calls, recording.sent, strict=False)
            if call == "stop"
        ]
        assert stops == [
            ("distributed_code_initialization", 250),
            ("model_initialization", 250),
            ("data_loader_initialization", 250),
            ("checkpoint_load", 250),
            ("optimizer_initialization", 250),
            ("application", 10_000),
        ]

    def test_training(self, one_logger, recording):
        """Two iterations of 1 and 3 s, a validation and a save give the figures that the callbacks give."""
        recorder = one_logger.start(recording).recorder
        recorder.on_app_start(at(0))
        loop = recorder.on_training_loop_start(0, 0, train_tokens_target=640, start_time=at(1))
        assert loop.attributes["train_tokens_target"].value == 640
        for begin, end in ((1, 2), (2, 5)):
            recorder.on_training_single_iteration_start(start_time=at(begin))
            recorder.on_training_single_iteration_end(stop_time=at(end))
        recorder.on_validation_start(at(5))
        recorder.on_validation_single_iteration_start(at(5))
        recorder.on_validation_single_iteration_end(at(6))
        recorder.on_validation_end(at(6))
        recorder.on_save_checkpoint_start(2, at(6))
        recorder.on_save_checkpoint_success(2, at(7))
        recorder.on_save_checkpoint_end(at(7))
        recorder.on_training_loop_end(at(8))
        recorder.on_testing_start(at(8))
        recorder.on_testing_end(at(9))
        recorder.on_app_end(at(10))
        (sent,) = recording.of("event on training_loop", "training_metrics_update")
        assert [sent[f"{name}_iteration_time_sec"] for name in ("min", "max", "total")] == [1.0, 3.0, 4.0]
        (saved,) = recording.of("event on checkpoint_save_sync", "save_checkpoint_success")
        assert saved["productive_train_iterations_sec"] == 4.0

    def test_closes_its_exporters(self, one_logger, recording):
        """The end of the application closes the exporters, with the spans that were left open closed first."""
        recorder = one_logger.start(recording).recorder
        recorder.on_app_start()
        recorder.on_model_init_start()
        recorder.on_app_end()
        assert recording.calls[-1] == ("close", "")
        assert ("stop", "model_initialization") in recording.calls


class TestTolerance:
    def test_end_of_the_application(self, one_logger, recording):
        """Spans still open at the end are closed, and no error, although errors are propagated."""
        one_logger.start(recording)
        callbacks.on_app_start()
        callbacks.on_train_start(0)
        callbacks.on_training_single_iteration_start()
        callbacks.on_app_end()
        assert {name for call, name in recording.calls if call == "stop"} == {"training_loop", "application"}

    def test_parent_before_child(self, one_logger, recording):
        """A parent that is stopped before its child is no error, and both end."""
        recorder = one_logger.start(recording).recorder
        parent = recorder.start("parent")
        child = recorder.start("child")
        recorder.stop(parent)
        recorder.stop(child)
        assert default_bus.flush(30)
        assert [name for call, name in recording.calls if call == "stop"] == ["parent", "child"]

    def test_rank_that_is_off(self, one_logger, recording):
        """Callbacks return None on a rank that is off, and a span where it is on."""
        assert callbacks.on_app_start() is None
        one_logger.start(recording, enable_for_current_rank=False)
        assert callbacks.on_model_init_start() is None
        assert callbacks.on_model_init_end() is None


class TestExportedSpan:
    def test_events(self, one_logger, recording):
        """The span that an exporter gets when it ends holds its events and errors, in order."""
        ended = {}
        recording.export_stop = lambda span: ended.update({span.name_str: [event.name_str for event in span.events]})
        recorder = one_logger.start(recording).recorder
        with contextlib.suppress(ZeroDivisionError), timed_span("mine") as span:
            recorder.event(span, Event.create("seen"))
            assert [event.name_str for event in span.events] == ["span_start", "seen"]
            raise ZeroDivisionError
        assert default_bus.flush(30)
        assert ended == {"mine": ["span_start", "seen", "error", "span_stop"]}


@pytest.mark.parametrize("is_wanted", [True, False])
def test_throughput(one_logger, recording, is_wanted):
    """
    Throughput is exported only where it is configured: 4 samples of 10¹² operations in 1 s on each of 2 GPUs are 2.
    """
    training = one_logger.training(flops_per_sample_or_fn=10**12, is_log_throughput_enabled_or_fn=is_wanted)
    recorder = one_logger.start(recording, training=training).recorder
    recorder.on_app_start(at(0))
    recorder.on_training_loop_start(0, 0, 2, 8, start_time=at(0))
    for step in range(2):
        recorder.on_training_single_iteration_start(at(step))
        recorder.on_training_single_iteration_end(at(step + 1))
    recorder.on_training_loop_end(at(2))
    recorder.on_app_end(at(2))
    (sent,) = recording.of("event on training_loop", "training_metrics_update")
    found = [sent.get(name) for name in ("train_throughput_per_gpu", "total_flops")]
    assert found == ([2.0, 8 * 10**12] if is_wanted else [None, None])


class Own(Recorder):
    """A recorder of the job's own, which keeps its calls."""

    def __init__(self):
        self.calls = []

    def start(self, span_name, span_attributes=None, start_event_attributes=None, start_time=None, parent_span=None):
        """Keep it."""
        self.calls.append(("start", span_name, span_attributes.to_json()))
        return Span.create(span_name, parent_span, span_attributes, start_event_attributes, start_time)

    def stop(self, span, stop_event_attributes=None, stop_time=None):
        """Keep it."""
        self.calls.append(("stop", span.name_str))
        span.stop(stop_event_attributes, stop_time)

    def event(self, span, event):
        """Keep it."""
        self.calls.append(("event", event.name_str))
        return event

    def error(self, span, error_message, exception=None):
        """Keep it."""
        self.calls.append(("error", error_message))
        return ErrorEvent.create(error_message, exception)

    def telemetry_data_error(self, error_message, attributes=None):
        """Keep it."""
        self.calls.append(("data error", error_message))

    def close(self):
        """Keep it."""
        self.calls.append(("close",))


def test_own_recorder(one_logger):
    """A recorder of the job's own is called for each span, error and end, and its spans are what blocks get."""
    own = Own()
    provider = OneLoggerProvider.instance()
    provider.configure(one_logger.config(), own)
    with contextlib.suppress(ZeroDivisionError), timed_span("mine", Attributes({"a": 1})) as span:
        assert isinstance(span, Span)
        raise ZeroDivisionError("no")
    provider.force_disable_logging()
    assert own.calls == [("start", "mine", {"a": 1}), ("error", "Error in mine: no"), ("stop", "mine"), ("close",)]


class TestTimer:
    def test_stretches(self, monkeypatch):
        """Stretches of 2 and 3 s are 5 s; after a reset, one of 4 s is 4 s."""
        now_s = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: now_s)
        timer = Timer()
        found = []
        for seconds, reset in ((2, False), (3, True), (4, False)):
            timer.start()
            assert timer.running
            now_s += seconds
            found.append(timer.stop(reset=reset))
        assert (found, timer.running) == ([2.0, 5.0, 4.0], False)

    def test_start_given(self, monkeypatch):
        """A stretch begins at the given time."""
        monkeypatch.setattr(time, "perf_counter", lambda: 107.0)
        timer = Timer()
        timer.start(TracingTimestamp(1.0, 100.0))
        assert timer.stop() == 7.0

    def test_order(self):
        """A second start, and a stop of what does not run, are errors; a reset may start it."""
        timer = Timer()
        with pytest.raises(OneLoggerError, match="not running"):
            timer.stop()
        timer.reset(start=True)
        with pytest.raises(OneLoggerError, match="while it was running"):
            timer.start()


class TestTelemetryDataError:
    def test_json(self):
        """The type and the message are attributes of the object and of its JSON, and come back."""
        kind = TelemetryDataError.ErrorType.INCOMPLETE_TELEMETRY_DATA
        made = TelemetryDataError.create(kind, "half", Attributes({"rank": 3}))
        table = made.to_json()
        assert (made.error_type, table["error_type"], table["error_message"]) == (
            kind,
            "incomplete_telemetry_data",
            "half",
        )
        back = TelemetryDataError.from_json(table)
        assert (back, back.error_type, back.attributes["rank"].value) == (made, kind, 3)

    def test_bad_json(self):
        """JSON with an unknown error type is refused."""
        with pytest.raises(OneLoggerError, match="error_type"):
            TelemetryDataError.from_json({"timestamp": TracingTimestamp.now().to_json(), "error_type": "bad"})


class TestSettings:
    def test_copy(self, one_logger):
        """A copy has the updated values, and the original keeps its own."""
        config = one_logger.config()
        copied = config.model_copy(update={"session_tag_or_fn": "other"})
        assert (config.session_tag, copied.session_tag, copied.world_size) == ("session", "other", 2)

    def test_deep_copy(self, one_logger):
        """A deep copy shares nothing."""
        config = one_logger.config(custom_metadata={"a": [1]})
        assert config.model_copy(deep=True).custom_metadata["a"] is not config.custom_metadata["a"]
        assert config.model_copy().custom_metadata["a"] is config.custom_metadata["a"]

    def test_dump(self, one_logger):
        """A dump is a table of tables, from which the same configuration can be made again."""
        config = one_logger.config(telemetry_config=one_logger.training())
        table = config.model_dump(exclude_none=True)
        assert (table["telemetry_config"]["perf_tag_or_fn"], "custom_metadata" in table) == ("perf", False)
        assert config.model_dump(include={"application_name"}) == {"application_name": "test"}
        again = OneLoggerConfig.model_validate({**table, "telemetry_config": config.telemetry_config})
        assert again.model_dump() == config.model_dump()

    def test_validate(self, one_logger):
        """A value that is a configuration already is returned; one that lacks a field is refused by its name."""
        config = one_logger.config()
        assert OneLoggerConfig.model_validate(config) is config
        with pytest.raises(OneLoggerError, match="world_size_or_fn"):
            OneLoggerConfig.model_validate({"application_name": "a", "session_tag_or_fn": "b"})

    def test_copied_base(self, one_logger, recording):
        """A copy configures the provider by its values."""
        config = one_logger.config(telemetry_config=one_logger.training())
        provider = TrainingTelemetryProvider.instance()
        provider.with_base_config(config.model_copy(update={"session_tag_or_fn": "copied"}))
        provider.with_exporter(recording).configure_provider()
        assert provider.config.session_tag == "copied"
