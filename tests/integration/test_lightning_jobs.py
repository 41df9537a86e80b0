"""Real Lightning runs on a tiny model: the ways to turn telemetry on, stragglers, and jobs under torchrun."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import re

import pytest

import framework_checks as checks
import trackside
from lightning_fits import PACKAGES, callback_of, fit, framework, frameworks
from trackside.events import (
    CheckpointSaveSucceeded,
    ConfigError,
    IterationEnded,
    ProfileSpanEnded,
    SectionWindow,
    SpanOutOfOrder,
    SpanStarted,
)
from trackside.handlers import replay
from trackside.instruments import callbacks as moments

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

of, lines_of, golden = checks.of, checks.lines_of, checks.lightning_golden


class TestTrainerClass:
    @pytest.fixture
    def hooked(self, package):
        """Return a trainer class of its own that is hooked, and its callback."""
        cls = type("Hooked", (framework(package).Trainer,), {})
        return importlib.import_module(f"trackside.integrations.{package}").hook_trainer_cls(cls)

    def test_golden(self, package, hooked, events, tmp_path):
        """A trainer of a hooked class records the same as one with the callback."""
        fit(package, tmp_path, cls=hooked[0])
        assert lines_of(events) == golden()

    def test_is_a_callback(self, package):
        """The callback is one of its own package's, and none of the other's."""
        (other,) = set(PACKAGES) - {package}
        callback = callback_of(package)
        assert isinstance(callback, framework(package).Callback)
        assert not isinstance(callback, framework(other).Callback)

    def test_comes_first(self, package, hooked, tmp_path):
        """Its callback stands before those that the trainer was given."""
        cls, callback = hooked
        trainer = frameworks.lightning_trainer(package, tmp_path, framework(package).Callback(), cls=cls)
        assert trainer.callbacks[0] is callback

    @pytest.mark.parametrize("given", ["nothing", "none", "one", "itself"])
    def test_any_callbacks(self, package, hooked, given, tmp_path):
        """Callbacks may be missing, None or a single one, and trackside's may be among them."""
        cls, callback = hooked
        callbacks = {"nothing": {}, "none": {"callbacks": None}, "one": {"callbacks": framework(package).Callback()}}
        chosen = callbacks.get(given, {"callbacks": [callback]})
        trainer = cls(accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=tmp_path, **chosen)
        assert trainer.callbacks.count(callback) == 1

    def test_twice(self, package, hooked):
        """Hooking twice is hooking once, a subclass included."""
        cls, callback = hooked
        hook = importlib.import_module(f"trackside.integrations.{package}").hook_trainer_cls
        assert hook(cls) == (cls, callback)
        assert hook(type("Sub", (cls,), {}))[1] is callback


class TestAsOneLogger:
    """The facts that One Logger's own integration is tested for."""

    @pytest.mark.parametrize("form", ["callback", "class"])
    @pytest.mark.parametrize("strategy", ["sync", "async"])
    def test_counts(self, form, strategy, events, tmp_path):
        """5 epochs of 4 batches, validated and saved every second step, by either way and with either strategy."""
        options = {
            "max_epochs": 5,
            "max_steps": -1,
            "accumulate_grad_batches": 1,
            "val_check_interval": 1.0,
            "saves": 2,
            "plugins": [framework("lightning").plugins.io.AsyncCheckpointIO()] if strategy == "async" else None,
        }
        callback, cls = [callback_of("lightning")], None
        if form == "class":
            hook = importlib.import_module("trackside.integrations.lightning").hook_trainer_cls
            callback, cls = [], hook(type("Hooked", (framework("lightning").Trainer,), {}))[0]
        trainer = frameworks.lightning_trainer("lightning", tmp_path, *callback, cls=cls, **options)
        data = frameworks.loader(frameworks.Samples(8))
        trainer.fit(frameworks.lightning_module("lightning"), data, data)
        kinds = [event.kind for event in of(IterationEnded, events)]
        names = [event.name for event in of(SpanStarted, events)]
        assert (kinds.count("training"), kinds.count("validation")) == (20, 15)
        assert names.count("training_loop") == 1
        assert names.count("validation_loop") == 5
        assert names.count(f"checkpoint_save_{strategy}") == 10
        assert [event.global_step for event in of(CheckpointSaveSucceeded, events)] == list(range(1, 20, 2))

    def test_explicit_calls(self, events, tmp_path):
        """A script records the parts without a hook in Lightning itself, around and beside the callback."""
        callback = callback_of("lightning", call_on_app_start=True)
        for what in ("distributed_init", "model_init", "dataloader_init", "optimizer_init", "load_checkpoint"):
            getattr(moments, f"on_{what}_start")()
            getattr(moments, f"on_{what}_end")()
        fit("lightning", tmp_path, callback, max_steps=1, limit_val_batches=0, saves=0)
        moments.on_app_end()
        starts = {event.name: event for event in of(SpanStarted, events)}
        application = starts.pop("application")
        assert set(starts) == {
            *["distributed_code_initialization", "model_initialization", "data_loader_initialization"],
            *["optimizer_initialization", "checkpoint_load", "training_loop"],
        }
        assert {event.parent_span_id for event in starts.values()} == {application.span_id}
        assert of(SpanOutOfOrder, events) == []

    @pytest.mark.parametrize("asked", [True, False])
    def test_call_on_app_start(self, asked, events):
        """The application's span is opened if that is asked for."""
        callback_of("lightning", call_on_app_start=asked)
        assert lines_of(events) == ["application {"] * asked
        moments.on_app_end() if asked else None


class TestOneLine:
    def test_all_comes_out(self, package, tmp_path):
        """Spans, metrics, goodput and scores come out of the one line, and agree with each other."""
        strict = trackside.JobConfig(application_name="tiny", strict=True)  # so that any problem is an error
        callback = callback_of(package, tmp_path / "runs", job=strict)
        fit(package, tmp_path, callback)
        callback.close()
        assert checks.figures(tmp_path / "runs") == {
            **checks.FIGURES,
            "sections": [*checks.FIGURES["sections"], "zero_grad"],
        }

    def test_telemetry_that_is_on(self, tmp_path):
        """If the script has turned telemetry on it stays as it is, and the script turns it off."""
        with trackside.start(tmp_path / "mine", report=False) as job:
            callback = callback_of("lightning", tmp_path / "not this")
            fit("lightning", tmp_path, callback, max_steps=1, saves=0, limit_val_batches=0)
            callback.close()
            assert job.is_open
        assert not (tmp_path / "not this").exists()
        assert "training 0" in lines_of(replay(tmp_path / "mine"))

    def test_who_the_run_is(self, tmp_path):
        """Fields that the job's configuration leaves open are taken from the trainer."""
        config = trackside.JobConfig(application_name="tiny", session_tag="a session", run_id="a run")
        callback = callback_of("lightning", tmp_path / "runs", job=config)
        fit("lightning", tmp_path, callback, max_steps=1, saves=0, limit_val_batches=0)
        callback.close()
        source = next(iter(replay(tmp_path / "runs"))).source
        assert (source.application, source.run_id, source.rank, source.world_size) == ("tiny", "a run", 0, 1)


class TestOptIn:
    def factory(self, package):
        """Return the callbacks that *package* finds."""
        group = ("lightning.pytorch" if package == "lightning" else package) + ".callbacks_factory"
        (found,) = [entry for entry in importlib.metadata.entry_points(group=group) if entry.name == "trackside"]
        return found.load()

    @pytest.mark.parametrize("lines_of", [None, "", "0", "false"])
    def test_off(self, package, lines_of, monkeypatch):
        """Merely installed, trackside changes nothing about a trainer."""
        if lines_of is not None:
            monkeypatch.setenv("TRACKSIDE", lines_of)
        assert self.factory(package)() == []

    def test_on(self, package, monkeypatch, tmp_path):
        """With one variable, and no line of code, every trainer is recorded."""
        monkeypatch.setenv("TRACKSIDE", str(tmp_path / "runs"))
        monkeypatch.setenv("TRACKSIDE_RUN_ID", "by variable")
        trainer = frameworks.lightning_trainer(package, tmp_path, max_steps=1, saves=0, limit_val_batches=0)
        (ours,) = [one for one in trainer.callbacks if type(one).__module__ == f"trackside.integrations.{package}"]
        trainer.fit(frameworks.lightning_module(package), frameworks.loader())
        ours.close()
        assert "training 0" in lines_of(replay(tmp_path / "runs"))


def watching(package, **changes):
    """Return the straggler callback, with the parameters that have no defaults."""
    given = {
        "report_time_interval": 0,
        "calc_relative_gpu_perf": True,
        "calc_individual_gpu_perf": True,
        "num_gpu_perf_scores_to_print": 0,
        "gpu_relative_perf_threshold": 0.7,
        "gpu_individual_perf_threshold": 0.7,
        "stop_if_detected": False,
        "enable_ptl_logging": False,
    }
    cls = importlib.import_module(f"trackside.integrations.{package}").StragglerDetectionCallback
    return cls(**{**given, **changes})


def up_to_date(package):
    """Return a callback that waits for reports of the steps so far, which otherwise are made in the background."""
    flush = {"on_train_batch_end": lambda *_: trackside.flush(10)}
    return type("UpToDate", (framework(package).Callback,), flush)()


@pytest.fixture
def slowing():
    """Return a module whose forward pass takes five times as long from the 15th step on."""
    import itertools
    import time

    batches = itertools.count()
    model = frameworks.Regression(lambda: time.sleep(0.005 if next(batches) < 30 else 0.025))
    yield lambda package: frameworks.lightning_module(package, model)
    trackside.instruments.configure_sections(window_steps=100, profiling_interval=1)


class TestStragglers:
    OPTIONS = {"limit_val_batches": 0, "saves": 0}

    def test_neither_score(self):
        """To choose neither kind of score is an error."""
        with pytest.raises(ConfigError, match="calc_relative_gpu_perf"):
            watching("lightning", calc_relative_gpu_perf=False, calc_individual_gpu_perf=False)

    @pytest.mark.parametrize("changes", [{"gpu_relative_perf_threshold": -1}, {"num_gpu_perf_scores_to_print": -1}])
    def test_wrong_numbers(self, changes):
        """A number that is out of range is an error, when the callback is made."""
        with pytest.raises(ConfigError):
            watching("lightning", **changes)

    def test_tells(self, package, slowing, caplog, tmp_path):
        """A section that became slow is reported, with rank and score, as a warning; and nothing else is printed."""
        with caplog.at_level(logging.INFO, logger="trackside.stragglers"):
            fit(package, tmp_path, up_to_date(package), watching(package), module=slowing(package), **self.OPTIONS)
        records = [record for record in caplog.records if record.name == "trackside.stragglers"]
        assert {record.levelno for record in records} == {logging.WARNING}
        (latest, *_) = [record.message for record in reversed(records)]
        assert latest.startswith("individual stragglers: rank 0 (")
        assert "section model_forward 0." in latest

    def test_alone_does_it_all(self, slowing, events, tmp_path):
        """The callback records the fit too, and beside another one of trackside's it is recorded once."""
        callbacks = [callback_of("lightning"), watching("lightning")]
        fit("lightning", tmp_path, *callbacks, module=slowing("lightning"), **self.OPTIONS)
        assert [event.step for event in of(IterationEnded, events)] == list(range(20))

    def test_prints(self, caplog, tmp_path):
        """With a number of ranks to print, each report is printed, sections included."""
        with caplog.at_level(logging.INFO, logger="mine"):
            callback = watching("lightning", num_gpu_perf_scores_to_print=2, logger_name="mine")
            fit("lightning", tmp_path, up_to_date("lightning"), callback, max_steps=3, **self.OPTIONS)
        lines = [record.message for record in caplog.records if record.name == "mine"]
        assert any(line.startswith("relative section model_forward, steps 1 to 1: rank 0 (") for line in lines)
        assert any(line.endswith(" 1.00") for line in lines)

    @pytest.mark.parametrize("is_enabled", [True, False])
    def test_logs_scalars(self, package, is_enabled, tmp_path):
        """If that is enabled, minimum, median and maximum of each score are logged by the module's own log."""
        callback = watching(package, enable_ptl_logging=is_enabled)
        callbacks = [up_to_date(package), callback]
        trainer = frameworks.lightning_trainer(package, tmp_path, *callbacks, max_steps=3, **self.OPTIONS)
        trainer.fit(frameworks.lightning_module(package), frameworks.loader())
        found = {name: float(value) for name, value in trainer.callback_metrics.items()}
        name = "section_relative_perf/model_forward"
        expected = {f"{name}/{statistic}": 1.0 for statistic in ("min", "median", "max")}
        assert {key: value for key, value in found.items() if key.startswith(name)} == (expected if is_enabled else {})

    def test_stops(self, slowing, tmp_path):
        """With a checkpoint callback, the process ends with status 1, and can go on from a last checkpoint."""
        callback = watching("lightning", stop_if_detected=True, agree_every_steps=1)
        callbacks = [up_to_date("lightning"), callback]
        options = {**self.OPTIONS, "max_steps": 40, "saves": 100}
        trainer = frameworks.lightning_trainer("lightning", tmp_path, *callbacks, **options)
        with pytest.raises(SystemExit) as ended:
            trainer.fit(slowing("lightning"), frameworks.loader(frameworks.Samples(400)))
        assert ended.value.code == 1
        saved = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=False)
        assert saved["global_step"] == trainer.global_step < 40

    def test_stops_without_checkpoints(self, slowing, tmp_path):
        """Without one, the training ends as if it had finished."""
        callback = watching("lightning", stop_if_detected=True, agree_every_steps=1)
        callbacks = [up_to_date("lightning"), callback]
        trainer = frameworks.lightning_trainer("lightning", tmp_path, *callbacks, max_steps=40, **self.OPTIONS)
        trainer.fit(slowing("lightning"), frameworks.loader(frameworks.Samples(400)))
        assert 0 < trainer.global_step < 40


class TestBroadcast:
    def test_is_a_wait(self, events, tmp_path):
        """The exchange before each batch by which Lightning's ranks learn of a signal is a wait for other ranks."""

        class OfTwoRanks(framework("lightning").Callback):
            def on_train_batch_start(self, trainer, *_):
                trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor()

        if not hasattr(framework("lightning").loops._TrainingEpochLoop, "_broadcast_sigterm_tensor"):
            pytest.skip("this release has no such exchange")
        fit("lightning", tmp_path, callback_of("lightning"), OfTwoRanks(), max_steps=2)
        spans = [event.name for event in of(ProfileSpanEnded, events)]
        assert spans.count("sigterm_broadcast") == spans.count("data_loading") > 0
        assert {name for window in of(SectionWindow, events) for name in window.waits} == {"sigterm_broadcast"}


@pytest.mark.hang_guard(200)
class TestJobs:
    def test_dies_and_goes_on(self, tmp_path):
        """Under torchrun a job that died in its 8th step: attempts, waste and recovery are the true ones."""
        done = checks.launch("lightning", tmp_path, ranks=1, dies_at=7, restarts=2)
        assert done.returncode == 0, done.stderr[-4000:]
        checks.check_recovery(tmp_path / "runs", dies_at=7)

    def test_ranks_stop_together(self, tmp_path):
        """Two ranks are two sources of one run; all ranks learn of a slow one, and stop after the same step."""
        done = checks.launch("lightning", tmp_path, ranks=2, dies_at="straggler")
        assert done.returncode != 0
        sources, steps = checks.last_steps(tmp_path / "runs")
        assert (sources, len(set(steps))) == ([(0, 2), (1, 2)], 1), done.stderr[-4000:]
        assert steps[0] < 599
        # On a busy machine the other rank may be slow in something, too.
        named = [line for line in done.stderr.splitlines() if "relative stragglers:" in line]
        assert any("rank 1 (" in line and "section model_forward" in line for line in named), named
        assert (tmp_path / "checkpoints" / "last.ckpt").exists()

    def test_ranks_stop_without_a_log(self, tmp_path):
        """Without a directory too two ranks learn of the slow one, and stop together."""
        done = checks.launch("lightning", tmp_path, ranks=2, dies_at="straggler without a log")
        assert done.returncode != 0
        steps = re.findall(r"stopping after step (\d+): there is a straggler", done.stderr)
        assert (len(steps), len(set(steps))) == (2, 1), done.stderr[-4000:]
        assert int(steps[0]) < 599
        named = [line for line in done.stderr.splitlines() if "relative stragglers:" in line]
        assert any("rank 1 (" in line and "section model_forward" in line for line in named), named
        assert "relative section" not in done.stderr  # no score was asked for
        assert (tmp_path / "checkpoints" / "last.ckpt").exists()
        assert not (tmp_path / "runs").exists()
