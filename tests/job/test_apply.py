"""A configuration is put into effect, and undone at its end."""

from __future__ import annotations

import logging

import pytest

from trackside.events import ConfigError, JobConfigured, Source, TrainingConfigured
from trackside.handlers import Capture
from trackside.instruments import TrainingDefaults, training_defaults
from trackside.instruments import _span as spans
from trackside.job import JobConfig, LogConfig, RankHandler, TrainingConfig, apply, set_training_config

SOURCE = Source(id="a", run_id="r", rank=3, world_size=8)


@pytest.fixture
def bus(bus):
    """Give a bus with a handler that keeps everything."""
    bus.captured = Capture()
    bus.subscribe(bus.captured)
    return bus


@pytest.fixture
def applied(bus):
    """Return a function that puts a configuration into effect; it is undone after the test."""
    all_of_them = []

    def put(**given):
        all_of_them.append(apply(JobConfig(application_name="charlm", **given), SOURCE, bus))
        return all_of_them[-1]

    yield put
    for one in all_of_them:
        one.end()


TRAINING = TrainingConfig(perf_tag="p", global_batch_size=32, save_checkpoint_strategy="async")


class TestApply:
    def test_tells(self, bus, applied):
        """The configuration is published."""
        applied(training=TRAINING)
        assert [type(event) for event in bus.captured] == [JobConfigured, TrainingConfigured]
        assert (bus.captured.events[0].rank, bus.captured.events[1].perf_tag) == (3, ["p"])

    def test_defaults(self, applied):
        """Loops and saves use its settings."""
        applied(training=TRAINING)
        assert training_defaults() == TrainingDefaults(global_batch_size=32, save_checkpoint_strategy="async")

    def test_strict(self, bus, applied):
        """The bus becomes strict."""
        applied(strict=True)
        assert bus.strict is True

    def test_handlers(self, bus, applied):
        """This rank's handlers are subscribed before anything is published."""
        found = Capture()
        applied(handlers=[RankHandler(make=lambda: found, ranks=3)])
        assert [type(event) for event in found] == [JobConfigured]

    def test_end(self, bus, applied):
        """After it is undone, everything is as before."""
        found = Capture()
        job = applied(strict=True, training=TRAINING, handlers=[RankHandler(make=lambda: found)])
        assert job.end() is True
        bus.log(JobConfigured(world_size=1, rank=0, node_name="", session_tag=""))
        assert (bus.strict, training_defaults(), len(found)) == (False, TrainingDefaults(), 2)

    @pytest.mark.torch
    def test_annotate(self, applied):
        """Spans are shown in the profiler while it is in effect."""
        job = applied(annotate="record_function")
        assert spans.annotator is not None
        job.end()
        assert spans.annotator is None


class TestOff:
    def test_one_notice(self, bus, applied, caplog):
        """A rank that does not take part says so once, and nothing is published or subscribed."""
        caplog.set_level(logging.INFO, logger="trackside")
        made = []
        applied(disabled_ranks=3, training=TRAINING, strict=True, handlers=[RankHandler(make=lambda: made.append(1))])
        assert caplog.messages == ["telemetry is off on rank 3, as configured"]
        assert (list(bus.captured), made, bus.strict) == ([], [], False)

    def test_is_enabled(self, applied):
        """The caller that starts telemetry can ask whether the rank takes part."""
        assert applied(disabled_ranks=3).is_enabled is False
        assert applied().is_enabled is True


class TestTrainingLater:
    def test_once(self, bus, applied):
        """The training configuration may come later."""
        applied()
        set_training_config(TRAINING)
        assert [type(event) for event in bus.captured] == [JobConfigured, TrainingConfigured]
        assert training_defaults().global_batch_size == 32

    def test_twice(self, applied):
        """The training configuration is accepted once."""
        applied(training=TRAINING)
        with pytest.raises(ConfigError, match=r"training: .* it was given before, and is given once"):
            set_training_config(TRAINING)

    def test_again_after_a_mistake(self, bus, applied):
        """A training configuration that failed to be published may be given again."""
        applied()
        with pytest.raises(ConfigError, match="seq_length"):
            set_training_config(TrainingConfig(perf_tag="p", seq_length=lambda: -1))
        set_training_config(TRAINING)
        assert len(bus.captured.of(TrainingConfigured)) == 1

    def test_no_job(self):
        """A training configuration needs a job."""
        with pytest.raises(ConfigError, match="start telemetry with a JobConfig first"):
            set_training_config(TRAINING)

    def test_after_the_job(self, applied):
        """The job must not be over."""
        applied().end()
        with pytest.raises(ConfigError, match="start telemetry with a JobConfig first"):
            set_training_config(TRAINING)

    def test_on_a_rank_that_is_off(self, bus, applied):
        """On a rank that does not take part the training configuration is accepted without effect."""
        applied(disabled_ranks="all")
        set_training_config(TRAINING)
        assert (list(bus.captured), training_defaults()) == ([], TrainingDefaults())


class TestLog:
    def test_files(self, applied, tmp_path):
        """Messages go to the named files, errors to theirs alone."""
        job = applied(
            log=LogConfig(
                log_level="DEBUG",
                log_file_path_for_info=str(tmp_path / "info"),
                log_file_path_for_err=str(tmp_path / "err"),
            )
        )
        logging.getLogger("trackside").debug("hello")
        logging.getLogger("trackside").error("oh")
        job.end()
        logging.getLogger("trackside").error("after")
        assert (tmp_path / "info").read_text() == "trackside - DEBUG - hello\ntrackside - ERROR - oh\n"
        assert (tmp_path / "err").read_text() == "trackside - ERROR - oh\n"

    def test_level_is_given_back(self, applied):
        """The log level is restored at the end."""
        before = logging.getLogger("trackside").level
        applied(log=LogConfig(log_level="CRITICAL")).end()
        assert logging.getLogger("trackside").level == before

    def test_no_place(self, applied, tmp_path):
        """A file that cannot be written is named at once."""
        with pytest.raises(ConfigError, match=r"log_file_path_for_err: got .*; give a path that can be written"):
            applied(log=LogConfig(log_file_path_for_err=str(tmp_path / "none" / "err")))

    def test_untouched(self, applied, tmp_path, monkeypatch):
        """Without settings for messages, logging is left alone and no file is made."""
        monkeypatch.chdir(tmp_path)
        handlers = list(logging.getLogger("trackside").handlers)
        applied()
        assert (list(tmp_path.iterdir()), logging.getLogger("trackside").handlers) == ([], handlers)
