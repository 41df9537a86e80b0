"""Exporters under One Logger's names."""

from __future__ import annotations

import json
import logging
import stat
import threading

import pytest

from trackside.bus import default_bus
from trackside.compat.one_logger._bridge import READS, ExportHandler, span_uuid
from trackside.compat.one_logger.api.timed_span import get_recorder, timed_span
from trackside.compat.one_logger.core.event import Event
from trackside.compat.one_logger.core.exceptions import OneLoggerError
from trackside.compat.one_logger.core.span import Span
from trackside.compat.one_logger.exporter import FileExporter, LoggerExporter
from trackside.compat.one_logger.exporter.exporter import ExportError
from trackside.compat.one_logger.exporter.exporter_config import FILE_NAME, VARIABLE, ExporterConfig, exporters_from
from trackside.compat.one_logger.training_telemetry.api import context
from trackside.compat.one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider
from trackside.events import Source, process_source
from trackside.handlers import EventLog, replay
from trackside.instruments import span, training_iteration


def work(count=1):
    for _ in range(count):
        with timed_span("work"):
            pass
    assert default_bus.flush(10)


class TestSeveralExporters:
    def test_all_get_all(self, one_logger, failing):
        """Every exporter gets every span, event and error."""
        exporters = [failing(), failing()]
        one_logger.start(*exporters)
        work()
        assert [exporter.calls for exporter in exporters] == [[("start", "work"), ("stop", "work")]] * 2

    def test_threads_of_their_own(self, one_logger, recording):
        """An exporter never runs in the thread that trains."""
        one_logger.start(recording)
        seen = []
        recording.keep = lambda *_: seen.append(threading.current_thread())
        work()
        assert threading.main_thread() not in seen

    def test_one_fails(self, one_logger, failing, recording):
        """One that fails from the start costs the others nothing, and nothing is raised."""
        one_logger.start(failing(lambda call: call != "data error"), recording)
        work(10)
        assert recording.calls == [("start", "work"), ("stop", "work")] * 10

    def test_one_notice(self, one_logger, failing):
        """
        An exporter that fails gets one notice that its data is incomplete, or that there is none if none was ever
        exported.
        """
        exporter = failing(lambda call: call != "data error")
        one_logger.start(exporter)
        work(10)
        assert exporter.calls == [("data error", "telemetry_data_error")]
        assert exporter.sent[0]["telemetry_data_error_type"] == "no_telemetry_data"

    def test_fails_later(self, one_logger, failing):
        """One that fails later has incomplete data, and gets later records when it works again."""
        broken = []
        exporter = failing(lambda call: bool(broken) and call != "data error")
        one_logger.start(exporter)
        work()
        broken.append(1)
        work()
        broken.clear()
        work()
        assert [call for call, _ in exporter.calls] == ["start", "stop", "data error", "start", "stop"]
        assert exporter.sent[2]["telemetry_data_error_type"] == "incomplete_telemetry_data"

    def test_fails_now_and_then(self, one_logger, failing):
        """One that fails at every third stop goes on for ever."""
        stops = []

        def is_third(call):
            if call == "stop":
                stops.append(call)
            return call == "stop" and len(stops) % 3 == 0

        exporter = failing(is_third)
        one_logger.start(exporter)
        work(30)
        assert [call for call, _ in exporter.calls].count("start") == 30
        assert [call for call, _ in exporter.calls].count("stop") == 20

    def test_cannot_be_initialized(self, one_logger, recording, caplog, tmp_path):
        """One that cannot start is an error where errors propagate; elsewhere it is left out, with a warning."""
        (tmp_path / "file").write_text("")
        impossible = FileExporter(tmp_path / "file" / "below.jsonl")
        quiet = "disable_quietly_and_report_metric_error"
        one_logger.start(impossible, recording, error_handling_strategy=quiet)
        work()
        assert recording.calls == [("start", "work"), ("stop", "work")]
        assert "FileExporter is left out" in caplog.text
        TrainingTelemetryProvider.forget()
        with pytest.raises(ExportError):
            one_logger.start(impossible)


class TestFileExporter:
    def test_records(self, one_logger):
        """A span is a start and a stop, with an event between them a record of its own."""
        one_logger.start()
        with timed_span("work") as found:
            get_recorder().event(found, Event.create("half way"))
        kinds = [record["type"] for record in one_logger.records()]
        assert kinds == ["start", "event", "stop"]

    def test_keys(self, one_logger):
        """Records have One Logger's keys, and the parent's id."""
        one_logger.start()
        with timed_span("outer"), timed_span("inner"):
            pass
        start, inner_start, inner_stop, _ = one_logger.records()
        assert set(start) == {"type", "id", "name", "start_event", "count", "pid"}
        assert set(inner_start) == {*start, "parent_id"}
        assert set(inner_stop) == {"type", "id", "name", "parent_id", "attributes", "stop_event", "count", "pid"}
        assert inner_stop["parent_id"] == start["id"]

    def test_modes(self, tmp_path):
        """The file, and the directory that it lies in, are this user's alone."""
        exporter = FileExporter(tmp_path / "records" / "f")
        exporter.initialize()
        exporter.close()
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "records", tmp_path / "records" / "f")]
        assert modes == [0o700, 0o600]

    def test_complete(self, tmp_path):
        """A span that becomes known when it is over is one record; one with events of its own is more."""
        exporter = FileExporter(tmp_path / "f")
        exporter.initialize()
        handler = ExportHandler(exporter)
        with default_bus.subscribe(handler, to=READS):
            with training_iteration(step=3, loss=0.5):
                pass
            with span("short") as short:
                short.event("noted")
            assert default_bus.flush(10)
        records = [json.loads(line) for line in (tmp_path / "f").read_text().splitlines()]
        assert [record["type"] for record in records] == ["complete", "start", "event", "stop"]
        assert {"step": 3, "loss": 0.5}.items() <= records[0]["attributes"].items()

    def test_before_and_after(self, tmp_path):
        """An exporter cannot be used before it is initialized and after it is closed."""
        exporter, made = FileExporter(tmp_path / "f"), Span.create("x")
        with pytest.raises(ExportError, match="not initialized"):
            exporter.export_start(made)
        exporter.initialize()
        exporter.close()
        with pytest.raises(ExportError, match="closed"):
            exporter.export_start(made)
        assert (exporter.ready, exporter.closed) == (False, True)

    def test_unclosed(self, one_logger):
        """A start is in the file at once, before anything else happens."""
        one_logger.start()
        with timed_span("work"):
            assert one_logger.names("start") == ["work"]


class TestLoggerExporter:
    def test_line(self, one_logger, caplog):
        """A record is a line of its values, nested names joined by dots, the last names first."""
        logger = logging.getLogger("test.one_logger")
        with caplog.at_level(logging.INFO, logger="test.one_logger"):
            one_logger.start(LoggerExporter(logger))
            with timed_span("work"):
                pass
            assert default_bus.flush(10)
        line = next(record.getMessage() for record in caplog.records if record.name == "test.one_logger")
        pairs = line.strip("[]").split(" | ")
        assert pairs[0] == 'type="start"'
        assert 'start_event.name="span_start"' in pairs
        assert [pair.partition("=")[0] for pair in pairs] == sorted((p.partition("=")[0] for p in pairs), reverse=True)


class TestExportHandler:
    def test_of_a_recording(self, tmp_path, recording):
        """Recorded events can be exported later."""
        with default_bus.subscribe(EventLog(tmp_path)):
            with context.application(), context.training_loop(0), context.training_iteration():
                pass
            assert default_bus.flush(10)
        recording.initialize()
        handler = ExportHandler(recording, lambda name: not name.endswith("iteration"))
        for event in replay(tmp_path, to=READS):
            handler(event)
        assert recording.calls == [
            ("start", "application"),
            ("start", "training_loop"),
            ("event on training_loop", "training_metrics_update"),
            ("stop", "training_loop"),
            ("stop", "application"),
        ]

    def test_ids(self):
        """Span ids are unique in the world, and the same whichever process computes them."""
        one, other = Source(), Source()
        ids = {span_uuid(source.id, number) for source in (one, other, one) for number in (1, 2)}
        assert len(ids) == 4

    def test_ids_of_other_sources(self):
        """A source whose id is no number has ids too."""
        assert span_uuid("not hex", 1) == span_uuid("not hex", 1) != span_uuid("not hex", 2)

    def test_what_never_ends(self, recording):
        """Events of spans that never end do not pile up."""
        recording.initialize()
        handler = ExportHandler(recording)
        with default_bus.subscribe(handler, to=READS):
            opened = [span("short") for _ in range(1000)]
            for each in opened:
                each.open().event("noted")
            assert default_bus.flush(10)
            assert len(handler._early) <= 64
            for each in reversed(opened):
                each.close()
        assert process_source() is not None


class TestExportConfig:
    @pytest.fixture(autouse=True)
    def elsewhere(self, tmp_path, monkeypatch):
        """Make an empty directory the current one."""
        monkeypatch.chdir(tmp_path)

    def write(self, path, *exporters):
        """Write a file of exporters."""
        path.write_text(json.dumps({"exporters": exporters}))
        return path

    def test_none(self):
        """Without names there is no exporter."""
        assert exporters_from(None, None) == []

    def test_list(self, tmp_path):
        """Exporters are named by their class, whatever module it stood in."""
        name = "nv_one_logger.exporter.file_exporter.FileExporter"
        (made,) = exporters_from([{"class_name": name, "config": {"file_path": str(tmp_path / "f")}}], None)
        assert type(made) is FileExporter

    def test_class_itself(self, recording):
        """A class of the user's own is used itself."""
        (made,) = exporters_from([ExporterConfig(type(recording))], None)
        assert type(made) is type(recording)

    def test_logger(self):
        """A logger is named."""
        (made,) = exporters_from([{"class_name": "LoggerExporter", "config": {"logger": "x"}}], None)
        assert type(made) is LoggerExporter

    def test_disabled(self, tmp_path):
        """One that is not enabled is left out."""
        config = {"class_name": "FileExporter", "config": {"file_path": "f"}, "enabled": False}
        assert exporters_from([config], None) == []

    def test_file(self, tmp_path, monkeypatch):
        """The file is the named one, else the variable's, else the one in the current directory."""
        for name in ("named", "variable", FILE_NAME):
            self.write(tmp_path / name, {"class_name": "FileExporter", "config": {"file_path": f"from-{name}"}})
        found = [exporters_from(None, None)[0]._path.name]
        monkeypatch.setenv(VARIABLE, str(tmp_path / "variable"))
        found += [exporters_from(None, path)[0]._path.name for path in (None, tmp_path / "named")]
        assert found == [f"from-{FILE_NAME}", "from-variable", "from-named"]

    def test_merge(self, tmp_path):
        """The list goes before the file, and entries of one class are merged."""
        file = self.write(
            tmp_path / "f.json",
            {"class_name": "FileExporter", "config": {"file_path": "from the file"}},
            {"class_name": "LoggerExporter"},
        )
        given = [{"class_name": "FileExporter", "config": {"file_path": "from the list"}}]
        first, second = exporters_from(given, file)
        assert (first._path.name, type(second)) == ("from the list", LoggerExporter)

    @pytest.mark.parametrize("text", [None, "{", "[]", '{"exporters": [{"no_class": 1}]}', "{}"])
    def test_bad_file(self, tmp_path, text):
        """A named file that is missing, or holds other data, is an error."""
        if text is not None:
            (tmp_path / "f.json").write_text(text)
        with pytest.raises(OneLoggerError, match=r"f\.json"):
            exporters_from(None, tmp_path / "f.json")

    @pytest.mark.parametrize("entry", [{"class_name": "os.system"}, {"class_name": "FileExporter", "config": {"x": 1}}])
    def test_bad_entry(self, entry):
        """An unknown class is not imported; one that cannot be made is an error."""
        with pytest.raises(OneLoggerError):
            exporters_from([entry], None)

    def test_real_write(self, one_logger, tmp_path):
        """Exporters from the configuration get the records."""
        provider = TrainingTelemetryProvider.instance().with_base_config(one_logger.config())
        file = self.write(
            tmp_path / "f.json", {"class_name": "FileExporter", "config": {"file_path": str(one_logger.path)}}
        )
        provider.with_export_config(config_file_path=str(file)).configure_provider()
        with context.application():
            pass
        assert one_logger.names("start") == ["application"]
