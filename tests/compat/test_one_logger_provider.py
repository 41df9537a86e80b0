"""Configuring One Logger over trackside, and the records of a job after it."""

from __future__ import annotations

import json
import signal
import threading

import pytest

import trackside
from trackside.bus import default_bus
from trackside.compat.one_logger.api.one_logger_provider import OneLoggerProvider
from trackside.compat.one_logger.api.timed_span import get_recorder, timed_span
from trackside.compat.one_logger.core.attributes import Attributes
from trackside.compat.one_logger.core.event import Event
from trackside.compat.one_logger.core.exceptions import OneLoggerError
from trackside.compat.one_logger.core.time import TracingTimestamp
from trackside.compat.one_logger.recorder.default_recorder import DefaultRecorder, ExportCustomizationMode
from trackside.compat.one_logger.training_telemetry.api import callbacks, context
from trackside.compat.one_logger.training_telemetry.api.checkpoint import CheckPointStrategy
from trackside.compat.one_logger.training_telemetry.api.spans import StandardTrainingJobSpanName as Name
from trackside.compat.one_logger.training_telemetry.api.training_recorder import TrainingRecorder
from trackside.compat.one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider
from trackside.events import JobConfigured
from trackside.instruments import SpanOrderError
from trackside.report import read_runs

ALL = ExportCustomizationMode.EXPORT_ALL_SPANS
ONLY = ExportCustomizationMode.WHITELIST_SPANS
BUT = ExportCustomizationMode.BLACKLIST_SPANS


def provider():
    return TrainingTelemetryProvider.instance()


class TestTrainingTelemetryProvider:
    def test_one_for_each_process(self, one_logger):
        """There is one provider, and no other can be made."""
        assert provider() is provider()
        with pytest.raises(OneLoggerError, match="instance"):
            TrainingTelemetryProvider()

    def test_threads(self, one_logger):
        """Threads that ask at once get the same one."""
        found = []
        threads = [threading.Thread(target=lambda: found.append(provider())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found)) == 1

    def test_configured(self, one_logger, recording):
        """Once configured it is ready, with a training's recorder."""
        assert not provider().one_logger_ready
        one_logger.start(recording)
        assert (provider().one_logger_ready, type(provider().recorder)) == (True, TrainingRecorder)
        assert OneLoggerProvider.instance().one_logger_enabled

    def test_within_a_job(self, one_logger, tmp_path):
        """Within `start`, the job is still configured with One Logger's tag, world size and baseline."""
        seen = []
        with trackside.start(tmp_path, report=False):
            with default_bus.subscribe(seen.append, to=JobConfigured):
                config = one_logger.config(world_size_or_fn=7, session_tag_or_fn="tag", is_baseline_run_or_fn=True)
                provider().with_base_config(config).configure_provider()
            TrainingTelemetryProvider.forget()
        assert [(job.world_size, job.session_tag, job.is_baseline_run) for job in seen] == [(7, "tag", True)]

    def test_session_of_a_job(self, one_logger, tmp_path):
        """Within `start`, two jobs of one tag are one session, of which the first is the baseline, of 7 ranks each."""
        for is_baseline in (True, False):
            with trackside.start(tmp_path, report=False):
                default_bus.flush(30)
                config = one_logger.config(
                    world_size_or_fn=7, session_tag_or_fn="tag", is_baseline_run_or_fn=is_baseline
                )
                provider().with_base_config(config).configure_provider()
                with context.training_iteration():
                    pass
                TrainingTelemetryProvider.forget()
        (session,) = read_runs(tmp_path).sessions
        found = [(run.baseline, [attempt.world_size for attempt in run.attempts]) for run in session.runs]
        assert (session.name, found) == ("tag", [(True, [7]), (False, [7])])

    def test_overrides(self, one_logger):
        """Overrides win over the base, the later over the earlier, and tables are merged field by field."""
        provider().with_base_config(one_logger.config(telemetry_config=one_logger.training(seq_length_or_fn=1)))
        provider().with_config_override({"application_name": "first", "telemetry_config": {"seq_length_or_fn": 2}})
        provider().with_config_override({"application_name": "second", "world_size_or_fn": 9}).configure_provider()
        config = provider().config
        assert (config.application_name, config.world_size, config.session_tag) == ("second", 9, "session")
        assert (config.telemetry_config.seq_length, config.telemetry_config.perf_tag) == (2, "perf")

    def test_override_that_turns_the_rank_off(self, one_logger):
        """A rank that an override turns off is quiet, as one that the base turns off."""
        provider().with_base_config(one_logger.config()).with_config_override({"enable_for_current_rank": False})
        provider().configure_provider()
        assert provider().config.to_trackside().strict is False

    def test_override_from_a_file(self, one_logger, tmp_path):
        """Overrides may stand in a JSON file."""
        (tmp_path / "o.json").write_text('{"application_name": "from the file"}')
        provider().with_base_config(one_logger.config()).with_config_override_from_json_file(tmp_path / "o.json")
        provider().configure_provider()
        assert provider().config.application_name == "from the file"

    @pytest.mark.parametrize("text", [None, "{", "[1]"])
    def test_bad_file(self, one_logger, tmp_path, text):
        """A file that does not exist or holds other data is an error."""
        if text is not None:
            (tmp_path / "o.json").write_text(text)
        with pytest.raises(OneLoggerError):
            provider().with_config_override_from_json_file(tmp_path / "o.json")

    def test_overrides_alone(self, one_logger):
        """Overrides may set every field."""
        sent = {"application_name": "a", "world_size_or_fn": 1, "session_tag_or_fn": "s"}
        provider().with_config_override(sent).configure_provider()
        assert provider().config.application_name == "a"

    def test_nothing(self, one_logger):
        """An empty configuration is an error."""
        with pytest.raises(OneLoggerError):
            provider().configure_provider()

    def test_once(self, one_logger, recording):
        """A base, a customization and the whole are given once."""
        provider().with_base_config(one_logger.config()).with_export_customization(ALL)
        with pytest.raises(OneLoggerError):
            provider().with_base_config(one_logger.config())
        with pytest.raises(OneLoggerError):
            provider().with_export_customization(ALL)
        provider().configure_provider()
        for late in (
            provider().configure_provider,
            lambda: provider().with_exporter(recording),
            lambda: provider().with_config_override({}),
            lambda: provider().with_export_config([]),
        ):
            with pytest.raises(OneLoggerError, match="once"):
                late()

    def test_not_configured(self, one_logger):
        """Reading the provider before is an error; recording before does nothing."""
        for early in (lambda: provider().config, lambda: provider().recorder, get_recorder):
            with pytest.raises(OneLoggerError, match="configure"):
                early()
        callbacks.on_app_start()
        with timed_span("early"):
            pass
        callbacks.on_app_end()

    def test_training_later(self, one_logger, recording):
        """The training may be configured later, once."""
        provider().with_base_config(one_logger.config()).with_exporter(recording).configure_provider()
        with context.application():
            provider().set_training_telemetry_config(one_logger.training())
        (sent,) = recording.of("event on application", "update_training_telemetry_config")
        assert (sent["perf_tag"], sent["global_batch_size"]) == ("perf", 4)
        with pytest.raises(OneLoggerError):
            provider().set_training_telemetry_config(one_logger.training())

    def test_training_before_the_application(self, one_logger, recording):
        """It may be configured before the application starts, too, and belongs to it."""
        provider().with_base_config(one_logger.config()).with_exporter(recording).configure_provider()
        provider().set_training_telemetry_config(one_logger.training())
        with context.application():
            pass
        assert len(recording.of("event on application", "update_training_telemetry_config")) == 1

    def test_no_exporters(self, one_logger, caplog):
        """A job without exporters logs a warning, and no more."""
        provider().with_base_config(one_logger.config()).configure_provider()
        assert "no exporters" in caplog.text

    def test_configured_by_hand(self, one_logger, recording):
        """Any recorder is accepted: configured once, the same one again changes nothing, others are an error."""
        config, recorder = one_logger.config(), DefaultRecorder([recording])
        for _ in range(2):
            OneLoggerProvider.instance().configure(config, recorder)
        with pytest.raises(OneLoggerError):
            OneLoggerProvider.instance().configure(config, DefaultRecorder([]))
        with timed_span("work"):
            pass
        assert default_bus.flush(10)
        assert recording.calls == [("start", "work"), ("stop", "work")]
        with pytest.raises(OneLoggerError, match="training"):
            _ = provider().recorder


class TestDisabled:
    def test_rank(self, one_logger, recording):
        """On a rank that is off nothing is exported, no exporter is touched, and no handler listens."""
        one_logger.start(recording, enable_for_current_rank=False)
        with context.application(), context.training_loop(0), context.training_iteration():
            pass
        assert (recording.calls, recording.ready, default_bus.is_idle) == ([], False, True)
        assert not OneLoggerProvider.instance().one_logger_enabled

    def test_recorder_of_its_own(self, one_logger, recording):
        """The same holds for a recorder that was made by hand."""
        config = one_logger.config(enable_for_current_rank=False)
        OneLoggerProvider.instance().configure(config, DefaultRecorder([recording]))
        with timed_span("work"):
            pass
        assert (recording.ready, default_bus.is_idle) == (False, True)

    def test_silence(self, one_logger, recording, caplog):
        """On a rank that is off, no call logs a message."""
        one_logger.start(recording, enable_for_current_rank=False)
        caplog.clear()
        for _ in range(100):
            callbacks.on_training_single_iteration_start()
            callbacks.on_training_single_iteration_end()
        assert caplog.records == []

    def test_force(self, one_logger, recording):
        """Turned off by force, telemetry stays off."""
        one_logger.start(recording)
        with timed_span("before"):
            pass
        provider().force_disable_logging()
        with timed_span("after"):
            pass
        assert recording.calls == [("start", "before"), ("stop", "before"), ("close", "")]
        assert not OneLoggerProvider.instance().one_logger_enabled


class TestExportCustomization:
    def exported(self, one_logger, recording, customization):
        """Return the names of the exported spans of a small job."""
        one_logger.start(recording, customization=customization)
        with context.application(), context.training_loop(0):
            for _ in range(2):
                with context.training_iteration(), timed_span(Name.MODEL_FORWARD):
                    pass
            with timed_span("mine") as span:
                get_recorder().event(span, Event.create("done"))
        return {name for call, name in recording.calls if call == "start"}

    def test_default(self, one_logger, recording):
        """By default every span is exported except those of every iteration."""
        assert self.exported(one_logger, recording, None) == {"application", "training_loop", "mine"}

    def test_all(self, one_logger, recording):
        """All spans can be chosen."""
        names = {"application", "training_loop", "mine", "training_single_iteration", "model_forward"}
        assert self.exported(one_logger, recording, (ALL, None)) == names

    def test_whitelist(self, one_logger, recording):
        """Of a whitelist only the named are exported, and their events."""
        assert self.exported(one_logger, recording, (ONLY, ["mine"])) == {"mine"}
        assert {call for call, _ in recording.calls} == {"start", "event on mine", "stop"}

    def test_blacklist(self, one_logger, recording):
        """Of a blacklist the named are not exported, nor their events."""
        listed = [Name.TRAINING_LOOP, Name.MODEL_FORWARD, "mine"]
        names = self.exported(one_logger, recording, (BUT, listed))
        assert names == {"application", "training_single_iteration"}
        assert not any(call.endswith(("training_loop", "mine")) for call, _ in recording.calls)

    @pytest.mark.parametrize(("mode", "names"), [(ALL, ["x"]), (ONLY, []), (BUT, None)])
    def test_wrong(self, one_logger, mode, names):
        """A filter that does not fit its mode is an error."""
        with pytest.raises(OneLoggerError, match="span_name_filter"):
            DefaultRecorder([], mode, names)


class TestRecorder:
    def test_span(self, one_logger, recording):
        """A span is started and stopped by hand, with its attributes, events and errors, at given times."""
        recorder = one_logger.start(recording).recorder
        began, ended = (
            TracingTimestamp.for_timestamp(1e9, 1.0, False),
            TracingTimestamp.for_timestamp(1e9 + 2, 3.0, False),
        )
        span = recorder.start("work", Attributes({"a": 1}), Attributes({"b": 2}), began)
        recorder.event(span, Event.create("half way", Attributes({"share": 0.5}), began))
        recorder.error(span, "it broke", ValueError("why"))
        recorder.stop(span, Attributes({"c": 3}), ended)
        assert default_bus.flush(10)
        assert recording.calls == [
            ("start", "work"),
            ("event on work", "half way"),
            ("error on work", "error"),
            ("stop", "work"),
        ]
        assert recording.sent[0] == {"a": 1, "b": 2}
        assert recording.sent[1] == {"share": 0.5, "timestamp_msec": 10**12}
        assert recording.sent[2]["exception_message"] == "why"
        assert recording.sent[3] == {"a": 1, "b": 2, "c": 3, "duration_msec": 2000}

    def test_ids(self, one_logger):
        """The job's own record of a span has the id that is exported."""
        recorder = one_logger.start().recorder
        span = recorder.start("work")
        recorder.stop(span)
        assert [record["id"] for record in one_logger.records()] == [str(span.id)] * 2

    def test_parents(self, one_logger):
        """The parent is the innermost open span, or the one that is named."""
        recorder = one_logger.start().recorder
        outer = recorder.start("outer")
        inner = recorder.start("inner")
        named = recorder.start("named", parent_span=outer)
        for span in (named, inner, outer):
            recorder.stop(span)
        parents = {record["name"]: record.get("parent_id") for record in one_logger.records()}
        assert parents == {"outer": None, "inner": str(outer.id), "named": str(outer.id)}
        assert (inner.parent_span, named.parent_span) == (outer, outer)

    def test_active(self, one_logger, recording):
        """Open spans are found by their names."""
        recorder = one_logger.start(recording).recorder
        span = recorder.start("work")
        assert recorder.get_active_spans_by_name("work") == [span]
        recorder.stop(span)
        assert recorder.get_active_spans_by_name("work") == []

    def test_many(self, one_logger, recording):
        """Spans that are stopped without the recorder are forgotten all the same."""
        recorder = one_logger.start(recording).recorder
        for _ in range(1000):
            recorder.start("work").stop()
        assert len(recorder._held) < 300

    def test_close_with_active_spans(self, one_logger, recording):
        """Closing closes the open spans, the innermost first, then the exporters."""
        recorder = one_logger.start(recording).recorder
        recorder.start("outer")
        recorder.start("inner")
        recorder.close()
        assert recording.calls[-3:] == [("stop", "inner"), ("stop", "outer"), ("close", "")]

    def test_data_error(self, one_logger, recording):
        """A gap in the telemetry is reported once."""
        recorder = one_logger.start(recording).recorder
        recorder.telemetry_data_error("lost some", Attributes({"how many": 3}))
        recorder.telemetry_data_error("lost more")
        assert default_bus.flush(10)
        assert recording.calls == [("data error", "telemetry_data_error")]
        sent = recording.sent[0]
        assert (sent["error_message"], sent["how many"]) == ("lost some", 3)

    def test_data_error_from_a_signal(self, one_logger, recording):
        """A signal handler can report it, whatever is open."""
        one_logger.start(recording)
        before = signal.signal(signal.SIGUSR1, lambda *_: get_recorder().telemetry_data_error("terminated"))
        try:
            with context.application(), context.training_loop(0), timed_span("work"):
                signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)
        calls = [call for call, _ in recording.calls]
        assert (calls.count("data error"), calls.count("stop")) == (1, 3)
        assert recording.of("data error", "telemetry_data_error")[0]["error_message"] == "terminated"


class TestTimedSpan:
    def test_any_name(self, one_logger, recording):
        """A name may be any text, or an enum's member."""
        one_logger.start(recording)
        with timed_span("mine"), timed_span(Name.DIST_INIT):
            pass
        assert default_bus.flush(10)
        assert [name for call, name in recording.calls if call == "start"] == [
            "mine",
            "distributed_code_initialization",
        ]

    def test_error(self, one_logger, recording):
        """An exception is recorded on the span that raised, and reaches the caller as it was."""
        one_logger.start(recording)
        raised = ValueError("why")
        with pytest.raises(ValueError, match="why") as caught, timed_span("mine"):
            raise raised
        assert caught.value is raised
        assert default_bus.flush(10)
        (sent,) = recording.of("error on mine", "error")
        assert (sent["exception_type"], sent["exception_message"]) == ("ValueError", "why")
        assert "test_error" in sent["exception_traceback"]

    def test_decorator(self, one_logger, recording):
        """It is a decorator too."""
        one_logger.start(recording)

        @timed_span("mine")
        def work():
            return 7

        assert (work(), work()) == (7, 7)
        assert default_bus.flush(10)
        assert recording.calls == [("start", "mine"), ("stop", "mine")] * 2

    @pytest.mark.parametrize("name", [Name.TRAINING_SINGLE_ITERATION, Name.TESTING_SINGLE_ITERATION, Name.ZERO_GRAD])
    def test_standard_names(self, one_logger, recording, name):
        """A span at a moment that trackside knows is that moment's, and exported under One Logger's name."""
        one_logger.start(recording, customization=(ALL, None))
        with timed_span(name):
            pass
        assert default_bus.flush(10)
        assert recording.calls == [("start", name.value), ("stop", name.value)]

    def test_attributes(self, one_logger, recording):
        """Attributes added while it is open are exported when it stops."""
        one_logger.start(recording)
        with timed_span("mine", span_attributes=Attributes({"a": 1})) as span:
            span.add_attribute("b", 2)
            span.add_attributes(Attributes({"c": 3}))
            assert span.attributes.to_json() == {"a": 1, "b": 2, "c": 3}
        assert default_bus.flush(10)
        sent = recording.of("stop", "mine")[0]
        assert {name: sent[name] for name in "abc"} == {"a": 1, "b": 2, "c": 3}


class TestOrder:
    def test_second_start(self, one_logger, recording):
        """If errors propagate, a second start of a name is one."""
        one_logger.start(recording)
        callbacks.on_model_init_start()
        with pytest.raises(SpanOrderError):
            callbacks.on_model_init_start()

    def test_end_without_a_start(self, one_logger, recording):
        """So is an end without a start."""
        one_logger.start(recording)
        with pytest.raises(OneLoggerError):
            callbacks.on_model_init_end()

    def test_quietly(self, one_logger, recording):
        """If errors are not propagated, one is reported to the exporters, once, and telemetry goes on."""
        one_logger.start(recording, error_handling_strategy="disable_quietly_and_report_metric_error")
        callbacks.on_model_init_end()
        callbacks.on_train_end()
        with context.application():
            pass
        calls = [call for call, _ in recording.calls]
        assert calls == ["data error", "start", "event on application", "event on application", "stop"]


def train_and_crash(iterations):
    with context.application(), context.training_loop(0):
        for _ in range(iterations):
            with context.training_iteration():
                pass
        with context.training_iteration():
            raise ValueError("lost")


class TestJob:
    """A whole job, by callbacks and by context managers."""

    def test_context_managers(self, one_logger):
        """Every context manager has its span."""
        one_logger.start()
        with context.application():
            for phase in (context.model_init, context.dataloader_init, context.optimizer_init, context.checkpoint_load):
                with phase():
                    pass
            with context.training_loop(0, train_samples_start=0, train_iterations_target_or_fn=lambda: 2):
                with context.validation_loop(), context.validation_iteration():
                    pass
                with context.checkpoint_save(1):
                    pass
            with context.testing_loop():
                pass
        assert one_logger.names("stop") == [
            "model_initialization",
            "data_loader_initialization",
            "optimizer_initialization",
            "checkpoint_load",
            "validation_loop",
            "checkpoint_save_sync",
            "training_loop",
            "testing_loop",
            "application",
        ]

    def test_callbacks(self, one_logger):
        """Every pair of callbacks has its span, at the given times."""
        one_logger.start()
        callbacks.on_app_start(1000.0)
        for phase in ("distributed_init", "model_init", "dataloader_init", "optimizer_init", "load_checkpoint"):
            getattr(callbacks, f"on_{phase}_start")(start_time_msec=2000.0)
            getattr(callbacks, f"on_{phase}_end")(finish_time_msec=3500.0)
        callbacks.on_app_end(9000.0)
        spans = {record["name"]: record for record in one_logger.records() if record["type"] == "stop"}
        assert len(spans) == 6
        assert {span["attributes"]["duration_msec"] for span in spans.values()} == {1500, 8000}
        assert spans["application"]["stop_event"]["attributes"]["timestamp_msec"] == 9000

    def test_crash(self, one_logger):
        """An exception inside nested contexts closes all of them, and the application."""
        one_logger.start()
        with pytest.raises(ValueError, match="lost"):
            train_and_crash(1)
        assert one_logger.names("stop") == ["training_loop", "application"]

    def test_crash_between_updates(self, one_logger, recording):
        """A crash between two updates reports the iterations completed until then: all seven of seven."""
        one_logger.start(recording, training=one_logger.training(log_every_n_train_iterations=5))
        with pytest.raises(ValueError, match="lost"):
            train_and_crash(7)
        sent = recording.of("event on training_loop", "training_metrics_update")
        assert [(update["num_iterations"], update["num_failed_iterations"]) for update in sent] == [(5, 0), (7, 1)]

    def test_forgotten_ends(self, one_logger):
        """Spans that were never ended are closed with the application."""
        one_logger.start(error_handling_strategy="disable_quietly_and_report_metric_error")
        callbacks.on_app_start()
        callbacks.on_load_checkpoint_start()
        callbacks.on_train_start(0)
        callbacks.on_app_end()
        assert one_logger.names("stop") == ["training_loop", "checkpoint_load", "application"]

    def test_asynchronous_save(self, one_logger, recording):
        """An asynchronous save succeeds when its success is reported, on the application, also after it ended."""
        one_logger.start(recording, training=one_logger.training(save_checkpoint_strategy=CheckPointStrategy.ASYNC))
        with context.application(), context.training_loop(0), context.checkpoint_save(3):
            pass
        assert recording.of("event on application", "save_checkpoint_success") == []
        callbacks.on_save_checkpoint_success(3)
        assert default_bus.flush(10)
        (sent,) = recording.of("event on application", "save_checkpoint_success")
        assert (sent["checkpoint_strategy"], sent["current_iteration"]) == ("async", 3)

    def test_asynchronous_success_at_once(self, one_logger, recording):
        """The same holds if the success is reported while the save still blocks training."""
        one_logger.start(recording, training=one_logger.training(save_checkpoint_strategy=CheckPointStrategy.ASYNC))
        with context.application(), context.checkpoint_save(3):
            callbacks.on_save_checkpoint_success(3)
        assert len(recording.of("event on application", "save_checkpoint_success")) == 1

    def test_failing_save(self, one_logger, recording):
        """A save that raises is no success, and its error is on it."""
        one_logger.start(recording)
        with pytest.raises(OSError, match="disk"), context.application(), context.checkpoint_save(3):
            raise OSError("disk full")
        names = [name for _, name in recording.calls]
        assert ("error" in names, "save_checkpoint_success" in names) == (True, False)

    def test_a_recovery_run(self, one_logger):
        """A run that writes to the file of the one before does not destroy it."""
        for _ in range(2):
            one_logger.start()
            with context.application():
                pass
            TrainingTelemetryProvider.forget()
        assert one_logger.names("start") == ["application", "application"]

    def test_no_baggage(self, one_logger, tmp_path):
        """Lines are JSON, one each, counted, of this process."""
        one_logger.start()
        with context.application():
            pass
        lines = one_logger.path.read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["count"] for line in lines] == [1, 2, 3, 4]
