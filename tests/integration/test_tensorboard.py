"""Curves in TensorBoard, read back by TensorBoard itself."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import textwrap
import time
from array import array
from pathlib import Path

import pytest

import trackside
from trackside.bus import Bus
from trackside.events import (
    CheckpointMetricsUpdated,
    ConfigError,
    CounterWindow,
    GoodputUpdated,
    IterationEnded,
    ProfileSpanEnded,
    Source,
    StragglerReport,
    TrainingMetricsUpdated,
)
from trackside.handlers import feed, replay
from trackside.handlers.models.goodput import GoodputMonitor
from trackside.handlers.models.scores._window import packed, packed_numbers

pytestmark = pytest.mark.integration

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

from trackside.handlers.tensorboard import TensorBoardSink  # noqa: E402  it needs tensorboard

NOW_NS = 1_700_000_000 * 10**9


def curves(directory):
    """Return by tag the points of a run, as step and value."""
    reader = accumulator.EventAccumulator(str(directory), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(point.step, point.value) for point in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def times(directory, tag):
    """Return the times of the points of a curve."""
    reader = accumulator.EventAccumulator(str(directory), size_guidance={"scalars": 0})
    reader.Reload()
    return [point.wall_time for point in reader.Scalars(tag)]


@pytest.fixture
def draw(tmp_path):
    """Give a function that writes the curves of events, and reads them back."""

    def drawn(*events, **fields):
        with Bus(source=Source(**fields)) as bus:
            bus.subscribe(TensorBoardSink(tmp_path))
            for event in events:
                bus.log(event)
        assert bus.stats().lost == 0
        (run,) = tmp_path.iterdir()
        return curves(run)

    return drawn


def goodput(**given):
    """Return an update: of 200 s, 150 were productive."""
    fields = {
        "session": "friday",
        "elapsed_s": 200.0,
        "productive_s": 150.0,
        "goodput": 0.75,
        "badput_s": {"OTHER": 30.0, "TRAINING_PREP": 0.0, "CUSTOM_BADPUT_EVENTS": {"EVAL_STEP": 20.0}},
        "informational_s": {"DATA_LOADING_ASYNC": 50.0},
        "last_step": 9,
        "disruptions": 1,
        "attempts": 2,
        "step_time": {"ideal_s": 1.5, "p50_s": None},
    }
    return GoodputUpdated(**{**fields, **given})


class TestGoodput:
    def test_tags(self, draw):
        """Goodput and every badput are under the peer's tags, in percent, at the last productive step."""
        drawn = draw(goodput())
        assert drawn["goodput/goodput"] == [(9, 75.0)]
        assert {tag: points for tag, points in drawn.items() if tag.startswith("badput/")} == {
            "badput/other": [(9, 15.0)],
            "badput/training_prep": [(9, 0.0)],
            "badput/custom_badput_events/eval_step": [(9, 10.0)],
            "badput/data_loading_async": [(9, 25.0)],
        }

    def test_step_deviation(self, draw):
        """The deviation of each step is at its step, once."""
        first = goodput(steps={"step": [7, 8], "duration_s": [2.0, 1.0], "deviation_s": [0.5, 0.25]})
        second = goodput(steps={"step": [9], "duration_s": [2.0], "deviation_s": [0.75]})
        assert draw(first, second)["step_deviation"] == [(7, 0.5), (8, 0.25), (9, 0.75)]

    def test_each_point_once(self, draw):
        """An update that changes nothing adds no point; a change at the same step adds one."""
        drawn = draw(goodput(), goodput(), goodput(goodput=0.5))
        assert drawn["goodput/goodput"] == [(9, 75.0), (9, 50.0)]
        assert drawn["badput/other"] == [(9, 15.0)]
        assert drawn["goodput/disruptions"] == [(9, 1.0)]

    def test_nothing_known(self, draw):
        """Without elapsed time there is no goodput to draw, and missing values are not drawn as 0."""
        drawn = draw(goodput(goodput=None, elapsed_s=0.0, last_step=None))
        assert "goodput/goodput" not in drawn
        assert "step_time/p50_s" not in drawn
        assert drawn["step_time/ideal_s"] == [(0, 1.5)]

    def test_of_a_job(self, tmp_path):
        """In a job the last point is the goodput model's last result."""
        updates = []
        sink = TensorBoardSink(tmp_path / "curves")
        with trackside.start(
            tmp_path / "runs",
            handlers=[GoodputMonitor(update_interval_s=0.05), sink],
            heartbeat_interval_s=0.01,
            report=False,
        ) as job:
            job.bus.subscribe(updates.append, to=GoodputUpdated)
            for step in range(10):
                with trackside.training_iteration(step=step):
                    time.sleep(0.01)
        assert updates
        (run,) = (tmp_path / "curves").iterdir()
        drawn = curves(run)
        assert drawn["goodput/goodput"][-1] == (updates[-1].last_step, pytest.approx(100 * updates[-1].goodput))
        assert sorted(step for step, _ in drawn["step_deviation"]) == sorted(
            step for update in updates for step in update.steps.get("step", ())
        )


class TestWriter:
    @pytest.mark.parametrize("module", ["torch.utils.tensorboard", "tensorboardX"])
    def test_of_the_job(self, module, tmp_path):
        """A SummaryWriter of the job gets the curves beside the job's own, and is left open."""
        writer = pytest.importorskip(module).SummaryWriter(str(tmp_path))
        sink = TensorBoardSink(writer)
        event = IterationEnded(step=3, duration_ns=5 * 10**8, at_ns=NOW_NS)
        event._source = Source()
        sink(event)
        assert sink.close(10)
        writer.add_scalar("mine", 1.0, 4)
        writer.close()
        assert curves(tmp_path) == {"duration_s/training_single_iteration": [(3, 0.5)], "mine": [(4, 1.0)]}
        assert times(tmp_path, "duration_s/training_single_iteration") == [NOW_NS / 1e9]

    def test_is_no_writer(self):
        """Any other destination is refused in one line."""
        with pytest.raises(ConfigError, match="give a directory or a SummaryWriter"):
            TensorBoardSink(3)

    def test_without_torch(self, tmp_path):
        """Curves are written without torch and TensorFlow too."""
        code = """
            import sys
            sys.modules["torch"] = sys.modules["tensorflow"] = None
            import trackside
            from trackside.handlers.tensorboard import TensorBoardSink
            with trackside.start(sys.argv[1], handlers=[TensorBoardSink(sys.argv[2])], report=False):
                with trackside.training_iteration(step=0):
                    pass
        """
        command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "runs"), str(tmp_path / "curves")]
        subprocess.run(command, check=True, timeout=100)
        (run,) = (tmp_path / "curves").iterdir()
        assert [step for step, _ in curves(run)["duration_s/training_single_iteration"]] == [0]


class TestCurves:
    def test_extreme_numbers(self, draw, losses, bits):
        """Infinities, NaN and zeros are points; beyond 32 bits a number is an infinity or 0."""
        drawn = draw(*losses)["training_single_iteration/loss"]
        assert [step for step, _ in drawn] == [0, 1, 2, 3, 4, 5]
        assert bits(value for _, value in drawn) == bits([math.inf, -math.inf, math.nan, -0.0, math.inf, 0.0])

    def test_iterations(self, draw):
        """An iteration is a point of its duration in seconds, and of each of its values."""
        drawn = draw(
            IterationEnded(step=0, duration_ns=5 * 10**8, loss=2.5, samples=4),
            IterationEnded(step=1, duration_ns=25 * 10**7, loss=math.nan),
            IterationEnded(step=1, kind="validation", duration_ns=10**9),
        )
        assert drawn["duration_s/training_single_iteration"] == [(0, 0.5), (1, 0.25)]
        assert drawn["duration_s/validation_single_iteration"] == [(1, 1.0)]
        assert drawn["training_single_iteration/samples"] == [(0, 4.0)]
        (first, second) = drawn["training_single_iteration/loss"]
        assert first == (0, 2.5)
        assert math.isnan(second[1])

    def test_spans(self, draw):
        """Every span is a point, also several of a step."""
        spans = [
            ProfileSpanEnded(step=3, span_id=n, parent_span_id=0, name="data_loading", duration_ns=n * 10**9)
            for n in (1, 2)
        ]
        assert draw(*spans)["duration_s/data_loading"] == [(3, 1.0), (3, 2.0)]

    def test_metric_updates(self, draw):
        """Each field of a metric update is a curve; an unknown one is not drawn."""
        drawn = draw(
            TrainingMetricsUpdated(
                step=49,
                train_iterations_start=0,
                current_iteration=49,
                num_iterations=50,
                train_samples_start=0,
                num_train_samples=200,
                interval=50,
                avg_iteration_time_sec=0.5,
            ),
            CheckpointMetricsUpdated(
                step=50,
                save_checkpoint_sync_time_total_sec=4.0,
                save_checkpoint_sync_time_min_sec=1.0,
                save_checkpoint_sync_time_max_sec=3.0,
            ),
        )
        assert drawn["training/avg_iteration_time_sec"] == [(49, 0.5)]
        assert drawn["checkpoint/save_checkpoint_sync_time_total_sec"] == [(50, 4.0)]
        assert "training/mfu" not in drawn

    def test_counters(self, draw):
        """A window of a stat is at the latest step, with its statistics and its totals."""
        window = {"start_ns": NOW_NS, "end_ns": NOW_NS + 1, "count": 2, "total_count": 7, "total_sum": 21.0, "step": -1}
        drawn = draw(
            IterationEnded(step=12, duration_ns=1),
            CounterWindow(name="train/tokens per s", values={"mean": 3.0, "p99": 4.0}, **window),
        )
        assert drawn["stat/train/tokens_per_s/mean"] == [(12, 3.0)]
        assert drawn["stat/train/tokens_per_s/p99"] == [(12, 4.0)]
        assert drawn["stat/train/tokens_per_s/total_count"] == [(12, 7.0)]
        assert drawn["stat/train/tokens_per_s/total_sum"] == [(12, 21.0)]

    def test_scores(self, draw):
        """The scores of all ranks are their lowest, the 5th percentile and the median, at the window's last step."""
        report = StragglerReport(
            attempt=0,
            window=1,
            first_step=10,
            last_step=19,
            revision=3,
            ranks=packed_numbers([0, 1, 2]),
            nodes=["n"],
            node_of=packed_numbers([0, 0, 0]),
            columns=["relative section forward"],
            scores=packed(array("d", [1.0, 0.5, 0.75])),
            reasons=bytes(3),
            reason_names=[],
            coverage=packed(array("d", [1.0] * 3)),
        )
        drawn = draw(report)
        assert drawn["score/relative/forward/min"] == [(19, 0.5)]
        assert drawn["score/relative/forward/p50"] == [(19, 0.75)]

    def test_time(self, tmp_path, draw):
        """A point has the time of its event."""
        draw(IterationEnded(step=0, at_ns=NOW_NS + 5 * 10**8, duration_ns=1))
        (run,) = tmp_path.iterdir()
        assert times(run, "duration_s/training_single_iteration") == [1_700_000_000.5]

    def test_runs(self, tmp_path):
        """Each rank and attempt of recorded logs is a run of its own."""
        for rank in range(2):
            for attempt in range(2):
                with Bus(source=Source(rank=rank, attempt=attempt)) as bus:
                    bus.subscribe(trackside.EventLog(tmp_path / "logs"))
                    bus.log(IterationEnded(step=attempt, duration_ns=10**9))
        (sink,) = feed(replay(tmp_path / "logs"), TensorBoardSink(tmp_path / "curves"))
        sink.close(10)

        runs = {path.name: curves(path) for path in (tmp_path / "curves").iterdir()}
        assert sorted(runs) == [f"rank-0000{rank}.attempt-{attempt}" for rank in range(2) for attempt in range(2)]
        assert runs["rank-00001.attempt-1"]["duration_s/training_single_iteration"] == [(1, 1.0)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the writer's own thread
class TestTrouble:
    def test_seen_at_once(self, tmp_path):
        """Logged values are in the file a moment later, without a flush."""
        with Bus() as bus:
            bus.subscribe(TensorBoardSink(tmp_path))
            bus.log(IterationEnded(step=0, duration_ns=1))
            deadline_s = time.monotonic() + 20
            while not any(curves(run) for run in tmp_path.iterdir()):
                assert time.monotonic() < deadline_s
                time.sleep(0.05)

    def test_directory_vanishes(self, tmp_path):
        """If the directory is removed, the lost points are counted, and the next event begins a new file."""
        sink = TensorBoardSink(tmp_path / "curves")
        with Bus() as bus:
            bus.subscribe(sink)
            bus.log(IterationEnded(step=0, duration_ns=1))
            assert bus.flush(10)
            shutil.rmtree(tmp_path / "curves")
            (tmp_path / "curves").write_text("in the way")
            bus.log(IterationEnded(step=1, duration_ns=1))
            bus.flush(10)
            (tmp_path / "curves").unlink()
            bus.log(IterationEnded(step=2, duration_ns=1))
            assert bus.flush(10)
            (counts,) = bus.stats().handlers
        (run,) = (tmp_path / "curves").iterdir()
        assert [step for step, _ in curves(run)["duration_s/training_single_iteration"]] == [2]
        assert counts.dropped + counts.failed == 1
        assert counts.logged == counts.handled + counts.dropped + counts.failed

    def test_cannot_be_made(self, tmp_path):
        """If no file can be made each event is counted as failed, and the job goes on."""
        (tmp_path / "file").write_text("")
        with Bus() as bus:
            bus.subscribe(TensorBoardSink(tmp_path / "file" / "curves"))
            for step in range(3):
                bus.log(IterationEnded(step=step, duration_ns=1))
            bus.flush(10)
            (counts,) = bus.stats().handlers
        assert counts.failed == 3


class TestPage:
    def test_examples(self, tmp_path):
        """The examples in the documentation run as they stand there."""
        page = (Path(__file__).resolve().parents[2] / "docs" / "tensorboard.md").read_text(encoding="utf-8")
        live, recorded = (block.split("```")[0] for block in page.split("```python\n")[1:])
        train = "def train():\n    with trackside.training_iteration(step=7):\n        pass\n"
        for program in (train + live, recorded.replace("curves/", "again/")):
            subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=90)
        drawn = [curves(next((tmp_path / name).iterdir())) for name in ("curves", "again")]
        (step, _) = drawn[0]["duration_s/training_single_iteration"][0]
        assert step == 7
        assert drawn[0]["duration_s/training_single_iteration"] == drawn[1]["duration_s/training_single_iteration"]
        assert set(drawn[0]) <= set(drawn[1])
