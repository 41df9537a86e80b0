"""The identity of a run, and the behaviour of telemetry in it."""

from __future__ import annotations

import attrs
import pytest

from interrupting import Interruption, interrupting_once
from trackside.bus import Bus
from trackside.events import ITERATION, ConfigError, IterationEnded, Parent, ProfileSpanEnded, Source, event
from trackside.events import Event as AnyEvent
from trackside.handlers import Capture
from trackside.job import JobConfig, LogConfig, RankHandler, TrainingConfig
from trackside.rules import where

# Every field of One Logger's configuration, by our name; its error handling strategy is ours strict or not, and its
# logger's configuration is log.
ONE_LOGGERS = """
    application_name world_size session_tag is_baseline_run custom_metadata strict enable_for_current_rank log
    summary_data_schema_version training
""".split()


class TestFields:
    def test_all(self):
        """Every field of One Logger's configuration exists here."""
        assert set(ONE_LOGGERS) <= {field.name for field in attrs.fields(JobConfig)}

    def test_defaults(self):
        """Only the application's name is required."""
        config = JobConfig(application_name="charlm")
        assert (config.strict, config.is_baseline_run, config.enable_for_current_rank) == (False, False, True)
        assert (config.summary_data_schema_version, config.training, config.log) == ("1.0.0", None, None)

    @pytest.mark.parametrize(
        ("field", "wrong", "remedy"),
        [
            ("application_name", "", "give text that is not blank"),
            ("application_name", 7, "give text that is not blank"),
            ("session_tag", " ", "give text that is not blank, or a function that returns it"),
            ("world_size", 0, "give a whole number above 0, or a function that returns it"),
            ("world_size", "8", "give a whole number above 0, or a function that returns it"),
            ("is_baseline_run", 1, "give True or False, or a function that returns it"),
            ("enable_for_current_rank", None, "give True or False, or a function that returns it"),
            ("rank", -1, "give a whole number from 0"),
            ("strict", "yes", "give True or False"),
            ("annotate", "perfetto", 'give "" or "record_function" or "nvtx"'),
            ("custom_metadata", {"": 1}, "give a map whose keys are text and not blank"),
            ("training", {"perf_tag": "a"}, "give a TrainingConfig"),
            ("log", "DEBUG", "give a LogConfig"),
            ("disabled_ranks", "some", 'give "all", "none", ranks as in "0,8-15" or "0-127/8"'),
            ("handlers", Capture, "give RankHandler"),
        ],
    )
    def test_wrong(self, field, wrong, remedy):
        """A wrong value is refused at once, naming field, value and remedy."""
        given = [wrong] if field == "handlers" else wrong
        with pytest.raises(ConfigError) as caught:
            JobConfig(**{"application_name": "charlm", field: given})
        assert (caught.value.field, caught.value.given) == (field, wrong)
        assert caught.value.remedy.startswith(remedy)


class TestSource:
    def fields(self, **given):
        """Return the source's fields of a configuration."""
        return JobConfig(**{"application_name": "charlm", **given}).source_fields()

    def test_little(self):
        """Fields that are not set are left to the launcher."""
        assert self.fields() == {
            "application": "charlm",
            "session_tag": "",
            "baseline": False,
            "metadata": {},
        }

    def test_all(self):
        """Fields that are set are the source's, with functions called."""
        fields = self.fields(
            session_tag=lambda: "s",
            world_size=lambda: 8,
            is_baseline_run=lambda: True,
            run_id="r",
            rank=3,
            local_rank=1,
            attempt=2,
            custom_metadata={"k": 1},
            training=TrainingConfig(perf_tag=lambda: ["a", "b"]),
        )
        source = Source.detect({}, **fields)
        assert (source.session_tag, source.world_size, source.baseline, source.run_id) == ("s", 8, True, "r")
        assert (source.rank, source.local_rank, source.attempt) == (3, 1, 2)
        assert (source.metadata, source.perf_tags, source.application) == ({"k": "1"}, ("a", "b"), "charlm")

    def test_parent(self, monkeypatch):
        """A process whose configuration names its parent has it in its source."""
        monkeypatch.setenv("TRACKSIDE_PARENT", "00c0ffee00c0ffee:17")
        assert self.fields()["parent"] == Parent("00c0ffee00c0ffee", 17)

    def test_failing_function(self):
        """A function that raises names its field."""
        with pytest.raises(ConfigError, match=r"world_size: .* the function raised KeyError: 'WORLD_SIZE'"):
            self.fields(world_size=lambda: {}["WORLD_SIZE"])

    def test_interrupted_function(self):
        """An exception of the program's signal handler while a function is called comes out as it is."""
        with interrupting_once() as interrupt, pytest.raises(Interruption):
            self.fields(world_size=interrupt)

    def test_wrong_answer(self):
        """A function's result is checked like a value."""
        with pytest.raises(ConfigError, match="session_tag: got 7"):
            self.fields(session_tag=lambda: 7)


class TestEnabled:
    @pytest.mark.parametrize(
        ("given", "rank", "enabled"),
        [
            ({}, 0, True),
            ({"enable_for_current_rank": False}, 0, False),
            ({"enable_for_current_rank": lambda: False}, 0, False),
            ({"disabled_ranks": "1-3"}, 0, True),
            ({"disabled_ranks": "1-3"}, 2, False),
            ({"disabled_ranks": lambda rank: rank % 2}, 3, False),
            ({"enable_for_current_rank": False, "disabled_ranks": "none"}, 0, False),
        ],
    )
    def test_ranks(self, given, rank, enabled):
        """A rank takes part unless it is switched off, itself or among others."""
        assert JobConfig(application_name="charlm", **given).is_enabled(rank) is enabled


class TestConfigured:
    def test_event(self):
        """The event has One Logger's attributes."""
        source = Source(id="a", run_id="r", host="node1", rank=3, world_size=8, session_tag="s", perf_tags=("p",))
        config = JobConfig(application_name="charlm", session_tag="s", custom_metadata={"k": 1})
        event = config.configured(source)
        assert (event.world_size, event.rank, event.node_name, event.session_tag) == (8, 3, "node1", "s")
        assert (event.enable_for_current_rank, event.is_baseline_run) == (True, False)
        assert (event.summary_data_schema_version, event.custom_metadata) == ("1.0.0", ["k:1"])
        assert (event.perf_tags, event.application_name) == (["p"], "charlm")
        assert event.one_logger_training_telemetry_version


@event("test.job.noted", priority=ITERATION)
class Noted(AnyEvent):
    """A configuration for a handler."""


class TestHandlers:
    def test_of_this_rank(self):
        """A rank has its handlers, and the others are not even made."""
        made = []

        def make(name):
            return lambda: made.append(name) or Capture()

        config = JobConfig(
            application_name="charlm",
            handlers=[
                RankHandler(make=make("all")),
                RankHandler(make=make("zero"), ranks=0),
                RankHandler(make=make("rest"), ranks="1-99"),
            ],
        )
        config.subscribe_handlers(3, Bus())
        assert made == ["all", "rest"]

    def test_preset_and_rule(self):
        """A handler gets the events that its preset and its rule keep."""
        found = Capture()
        handler = RankHandler(make=lambda: found, preset="per_step", keep=where(lambda event: event.step != 2))
        bus = Bus()
        JobConfig(application_name="charlm", handlers=[handler]).subscribe_handlers(0, bus)
        bus.log(IterationEnded(step=1, duration_ns=1))
        bus.log(IterationEnded(step=2, duration_ns=1))
        bus.log(ProfileSpanEnded(span_id=1, parent_span_id=0, name="model_forward", duration_ns=1))
        assert [event.step for event in found] == [1]

    def test_type(self):
        """A handler gets its types alone."""
        found = Capture()
        bus = Bus()
        handler = RankHandler(make=lambda: found, to=Noted)
        JobConfig(application_name="charlm", handlers=[handler]).subscribe_handlers(0, bus)
        bus.log(Noted())
        bus.log(IterationEnded(duration_ns=1))
        assert [type(event) for event in found] == [Noted]

    @pytest.mark.parametrize("wrong", [{"make": 7}, {"make": Capture, "ranks": "x"}, {"make": Capture, "preset": "x"}])
    def test_wrong(self, wrong):
        """A wrong handler configuration is refused when it is built."""
        with pytest.raises(ConfigError):
            RankHandler(**wrong)


class TestLogConfig:
    def test_defaults(self):
        """The messages' format is One Logger's, and no file is made unless one is named."""
        config = LogConfig()
        assert (config.log_level, config.log_format) == ("INFO", "%(name)s - %(levelname)s - %(message)s")
        assert (config.log_file_path_for_info, config.log_file_path_for_err) == (None, None)

    def test_level(self):
        """A level is one of the five."""
        with pytest.raises(ConfigError, match='log_level: got \'LOUD\'; give "DEBUG" or "INFO"'):
            LogConfig(log_level="LOUD")
