"""The model of training metrics: One Logger's figures, without its errors, and further ones."""

from __future__ import annotations

import itertools
import json
import math
import random
import time
import tracemalloc

import attrs
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trackside
from processes import Process
from trackside.bus import Bus
from trackside.events import (
    LIFECYCLE,
    CheckpointMetricsUpdated,
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    DecodeError,
    IterationEnded,
    JobConfigured,
    ProductiveWorkSaved,
    ProfileSpanEnded,
    Source,
    SpanEnded,
    TestingMetricsUpdated,
    TrainingConfigured,
    TrainingMetricsUpdated,
    TrainingWindowUpdated,
    ValidationMetricsUpdated,
)
from trackside.handlers import Capture, EventLog, replay
from trackside.handlers.models import TrainingMetrics, training_metrics
from trackside.handlers.zeromq._protocol import Snapshot, decode_snapshot, encode_snapshot
from trackside.wire import RowEncoder

pytestmark = pytest.mark.once

S = 10**9
TERA = 10**12
HERE = Source(id="a" * 16, world_size=2)
LOOP = 1
APPLICATION = 900


@pytest.fixture(autouse=True)
def windows_by_count(monkeypatch):
    """Let windows of any length be reported by the number of their iterations alone."""
    monkeypatch.setattr(training_metrics, "_LONGEST_WINDOW_NS", math.inf)


def snapshot_of(model):
    """Return the state of *model* as a viewer gets it."""
    return decode_snapshot(encode_snapshot(Snapshot([], {"metrics": model.dump()}, 0))).models["metrics"]


class Job(Process):
    """A job whose events go to a model one by one; times are in seconds, and advance with the events."""

    def __init__(self, source=HERE, **config):
        super().__init__(source, at_ns=1000 * S)
        self.ids = itertools.count(2)
        self.updates = Capture()
        self.model = TrainingMetrics(publish=self.updates)
        config = {"perf_tag": ["test"], "global_batch_size": 4, "log_every_n_train_iterations": 2} | config
        self.add(TrainingConfigured, **config)

    def put(self, event):
        """Give *event* to the model, as the job's process."""
        super().put(event)
        self.model(event)
        return self

    def loop(self, start=0, **attributes):
        """Start a training loop."""
        known = {"train_iterations_start": start, "train_samples_start": 4 * start} | attributes
        self.start_span("training_loop", span_id=LOOP, attributes=known)
        return self

    def loop_end(self, name="training_loop", ended=LOOP):
        """End a loop."""
        return self.spend(name, 0, kind=SpanEnded, span_id=ended, parent=0 if ended == LOOP else LOOP)

    def train(self, *durations_s, own_id=None, within=LOOP, **done):
        """End a training iteration of each duration."""
        for duration_s in durations_s:
            own = next(self.ids) if own_id is None else own_id
            self._iterate(duration_s, span_id=own, parent_span_id=within, **done)
        return self

    def evaluate(self, *durations_s, kind="validation", **done):
        """Run a loop of validation or testing iterations."""
        loop = next(self.ids)
        for duration_s in durations_s:
            self._iterate(duration_s, parent_span_id=loop, kind=kind, **done)
        return self.loop_end(f"{kind}_loop", loop)

    def _iterate(self, duration_s, **done):
        self.at_ns += int(duration_s * S)
        self.add(IterationEnded, duration_ns=int(duration_s * S), **done)

    def part(self, name, duration_s, *, parent, own_id=None):
        """End a span within an iteration, which may have been while others were."""
        span_id = next(self.ids) if own_id is None else own_id
        known = {"name": name, "span_id": span_id, "parent_span_id": parent}
        return self.add(ProfileSpanEnded, duration_ns=int(duration_s * S), **known)

    def save_start(self, step, strategy="sync"):
        """Begin to save a checkpoint; return its span."""
        attributes = {"checkpoint_strategy": strategy, "current_iteration": step}
        return self.start_span(f"checkpoint_save_{strategy}", parent=LOOP, attributes=attributes)

    def save_end(self, span_id, duration_s=1, strategy="sync"):
        """End the span of a save."""
        name = f"checkpoint_save_{strategy}"
        return self.spend(name, duration_s * S, kind=SpanEnded, parent=LOOP, span_id=span_id)

    def saved(self, step, span_id=0, strategy="sync", **known):
        """Publish that a checkpoint is complete."""
        known |= {"global_step": step, "save_span_id": span_id, "strategy": strategy}
        return self.add(CheckpointSaveSucceeded, span_id=span_id, **known)

    def not_saved(self, step, span_id=0):
        """Publish that a save failed."""
        return self.add(CheckpointSaveFailed, span_id=span_id, global_step=step, save_span_id=span_id)

    def training(self):
        """Return the updates of training metrics, each with that of its window."""
        pairs = zip(self.updates.of(TrainingMetricsUpdated), self.updates.of(TrainingWindowUpdated), strict=True)
        return [Updated(*pair) for pair in pairs]

    def productive(self):
        """Return the updates of productive work."""
        return self.updates.of(ProductiveWorkSaved)

    def now(self):
        """Return the job's part of the result."""
        return self.model.result().sources[0]


class Updated:
    """An update over the job and that of its window, whose figures have a prefix here."""

    def __init__(self, of_job, of_window):
        self.of_job = of_job
        self.of_window = of_window

    def __getattr__(self, name):
        is_of_window = name.startswith("window_")
        return getattr(self.of_window if is_of_window else self.of_job, name.removeprefix("window_"))


def fields(event, *names):
    return tuple(getattr(event, name) for name in names)


def times(event, prefix=""):
    return fields(event, *(f"{prefix}{name}_iteration_time_sec" for name in ("avg", "min", "max", "total")))


class TestTrainingMetricsUpdated:
    def test_over_the_job(self):
        """Figures with One Logger's names cover all iterations of the job."""
        update = Job().loop().train(1, 3, 2, 4).training()[-1]
        assert (update.num_iterations, times(update)) == (4, (2.5, 1.0, 4.0, 10.0))

    def test_over_the_window(self):
        """Figures that begin with ``window_`` cover the iterations since the update before."""
        update = Job().loop().train(1, 3, 2, 4).training()[-1]
        assert (update.interval, times(update, "window_")) == (2, (3.0, 2.0, 4.0, 6.0))

    def test_when(self):
        """An update comes after every so many iterations."""
        assert [update.current_iteration for update in Job().loop().train(1, 1, 1, 1, 1).training()] == [1, 3]

    def test_the_first_iteration(self):
        """The first iteration is reported if every one is."""
        updates = Job(log_every_n_train_iterations=1).loop().train(5, 7).training()
        assert [(update.current_iteration, times(update)[3]) for update in updates] == [(0, 5.0), (1, 12.0)]

    def test_resumed(self):
        """After a checkpoint was loaded, updates come at the same steps; the interval is the true one."""
        update = Job(log_every_n_train_iterations=5).loop(start=3).train(1, 1).training()[0]
        reported = fields(update, "train_iterations_start", "current_iteration", "num_iterations", "interval")
        assert reported == (3, 4, 2, 2)

    def test_resumed_samples(self):
        """The samples before the loop are separate from those of this job."""
        update = Job().loop(start=4).train(1, 1).training()[0]
        assert fields(update, "train_samples_start", "num_train_samples") == (16, 8)

    def test_rest_of_a_window(self):
        """The last part of a window is reported when the loop ends, once."""
        updates = Job().loop().train(1, 1, 6).loop_end().loop_end().training()
        assert [(update.interval, times(update, "window_")[3]) for update in updates] == [(2, 2.0), (1, 6.0)]

    def test_nothing_left(self):
        """A loop that ends with an update publishes no second one."""
        assert len(Job().loop().train(1, 1).loop_end().training()) == 1

    def test_where(self):
        """An update belongs to the training loop, its latest step and the end of that."""
        job = Job().loop().train(1).train(1, step=77)
        assert fields(job.training()[0], "span_id", "step", "at_ns") == (LOOP, 77, 1002 * S)

    def test_deeper_in_the_loop(self):
        """It belongs to the loop also if the iteration lies deeper there; without a loop, to the span around it."""
        job = Job().loop().train(1, 1, within=55).loop_end().train(1, 1, within=55)
        assert [update.span_id for update in job.training()] == [LOOP, 55]

    def test_step(self):
        """The current iteration is the recorded step, also if steps are left out."""
        assert Job().loop().train(1, step=10).train(1, step=20).training()[0].current_iteration == 20

    def test_finish_times(self):
        """The ends of the first and of the latest iteration are given in seconds since the epoch."""
        update = Job().loop().train(1, 2, 3, 4).training()[-1]
        names = [f"{which}_logged_train_iterations_finish_timestamp_sec" for which in ("first", "last")]
        assert fields(update, *names) == (1001.0, 1010.0)

    def test_percentiles(self):
        """Percentiles of the step time are within 1 %."""
        milliseconds = list(range(1, 101))
        random.Random(7).shuffle(milliseconds)
        update = Job(log_every_n_train_iterations=100).loop().train(*(ms / 1000 for ms in milliseconds)).training()[0]
        reported = fields(update, *(f"{name}_iteration_time_sec" for name in ("p50", "p95", "p99")))
        assert reported == pytest.approx((0.050, 0.095, 0.099), rel=0.011)

    def test_percentiles_within_the_extremes(self):
        """No percentile lies beyond the extremes, although it is an estimate."""
        update = Job().loop().train(7, 7).training()[0]
        assert fields(update, "p50_iteration_time_sec", "p99_iteration_time_sec") == (7.0, 7.0)

    def test_percentiles_of_the_window(self):
        """A window has percentiles of its own."""
        update = Job().loop().train(1, 1, 9, 9).training()[-1]
        reported = fields(update, "p50_iteration_time_sec", "window_p50_iteration_time_sec")
        assert reported == pytest.approx((1, 9), rel=0.01)

    def test_a_long_window(self):
        """A window of any length has all its iterations in it."""
        update = Job(log_every_n_train_iterations=1000).loop().train(*[1] * 600, *[2] * 400).training()[0]
        reported = fields(update, "num_iterations", "window_p50_iteration_time_sec", "window_p95_iteration_time_sec")
        assert reported == pytest.approx((1000, 1, 2), rel=0.01)

    def test_without_a_configuration(self):
        """Without configuration, there is an update every fifty iterations, of the known figures."""
        updates = Capture()
        model = TrainingMetrics(publish=updates)
        for step in range(50):
            model(IterationEnded(at_ns=step, parent_span_id=0, step=step, duration_ns=S))
        reported = fields(updates.events[0], "num_iterations", "num_train_samples", "avg_batch_size", "train_tokens")
        assert reported == (50, 0, None, None)

    def test_without_a_loop(self):
        """Iterations without a loop begin at the step of the first one."""
        update = Job().train(1, step=7).training()[0]
        assert fields(update, "train_iterations_start", "current_iteration") == (7, 7)


class TestFailedIterations:
    def test_are_no_figures(self):
        """An iteration that an exception ended is only in the count of failed ones."""
        update = Job().loop().train(1).train(100, failed=True).train(3).training()[0]
        assert (update.num_iterations, times(update), update.num_train_samples) == (2, (2.0, 1.0, 3.0, 4.0), 8)

    def test_are_counted(self):
        """Failed iterations are counted, in the window and in the job."""
        job = Job().loop().train(1).train(9, 9, failed=True).train(1).train(1).train(9, failed=True).train(1)
        names = ("num_failed_iterations", "window_num_failed_iterations")
        assert [fields(update, *names) for update in job.training()] == [(2, 2), (3, 1)]

    def test_alone(self):
        """A loop of nothing but failures publishes an update when it ends."""
        update = Job().loop().train(9, failed=True).loop_end().training()[0]
        assert fields(update, "num_iterations", "num_failed_iterations", "avg_iteration_time_sec") == (0, 1, None)

    def test_do_not_count_towards_the_next_update(self):
        """Only completed iterations bring the next update nearer."""
        assert Job().loop().train(1).train(9, failed=True).training() == []


class TestThroughput:
    def test_per_gpu(self):
        """Throughput is all floating-point operations over all time and ranks."""
        update = Job(flops_per_sample=TERA).loop().train(1, 4).training()[0]
        # 4 samples each: 8e12 operations, 5 s, 2 ranks.
        assert fields(update, "train_throughput_per_gpu", "avg_tflops", "total_flops") == (0.8, 1.6, 8 * TERA)

    def test_extremes(self):
        """The extremes are those of single iterations, and not of the running average."""
        update = Job(flops_per_sample=TERA).loop().train(1, 4).training()[0]
        assert fields(update, "train_throughput_per_gpu_max", "train_throughput_per_gpu_min") == (2.0, 0.5)

    def test_extremes_over_windows(self):
        """The extremes of the job are those over all windows."""
        update = Job(flops_per_sample=TERA).loop().train(1, 4, 2, 2).training()[-1]
        assert fields(update, "train_throughput_per_gpu_max", "train_throughput_per_gpu_min") == (2.0, 0.5)

    def test_of_the_window(self):
        """A window has its own extremes."""
        update = Job(flops_per_sample=TERA).loop().train(1, 4, 2, 2).training()[-1]
        names = ("", "_max", "_min")
        assert fields(update, *(f"window_train_throughput_per_gpu{name}" for name in names)) == (1.0, 1.0, 1.0)

    def test_recorded_by_the_iteration(self):
        """An iteration records its own rank's operations; those of all ranks are so many times as many."""
        update = Job().loop().train(1, flops=3e12).train(1, flops=1e12).training()[0]
        assert fields(update, "total_flops", "train_throughput_per_gpu") == (8 * TERA, 2.0)

    def test_more_than_64_bits_count(self):
        """The operations of a large job, 6e20 on two ranks, can be recorded and sent to a viewer as they are."""
        job = Job().loop(start=10, completed_floating_point_operations_overall=4e20).train(1, 1, flops=1.5e20)
        of_window, of_job = job.updates.of(TrainingWindowUpdated)[0], job.updates.of(TrainingMetricsUpdated)[0]
        assert of_window.total_flops == of_job.total_flops == 6e20
        assert of_job.completed_floating_point_operations_overall == 1e21
        for update in (of_window, of_job):
            RowEncoder().encode(update, 0)
        twin = TrainingMetrics()
        twin.load(snapshot_of(job.model))
        assert twin.result() == job.model.result()

    def test_overall(self):
        """Operations before the loop are added to those of the job."""
        job = Job(flops_per_sample=TERA).loop(start=10, completed_floating_point_operations_overall=40 * TERA)
        assert job.train(1, 1).training()[0].completed_floating_point_operations_overall == 48 * TERA

    def test_overall_not_known(self):
        """They are unknown if the earlier operations were not given."""
        assert Job(flops_per_sample=1).loop(start=10).train(1, 1).training()[0].total_flops == 8
        reported = Job(flops_per_sample=1).loop(start=10).train(1, 1).training()[0]
        assert reported.completed_floating_point_operations_overall is None

    def test_not_known(self):
        """Without operations there is no throughput."""
        update = Job().loop().train(1, 1).training()[0]
        assert fields(update, "total_flops", "avg_tflops", "train_throughput_per_gpu", "mfu") == (None,) * 4

    def test_mfu(self):
        """Utilization is the share of the given peak."""
        update = Job(flops_per_sample=TERA, peak_flops_per_s=4e12).loop().train(1, 4, 1, 1).training()[-1]
        # 16e12 operations in 7 s on 2 ranks, of 4e12 per second each; in the window 8e12 in 2 s.
        assert fields(update, "mfu", "window_mfu") == pytest.approx((16 / 7 / 2 / 4, 0.5))

    def test_ranks_of_the_job(self):
        """The number of ranks is the one that the job is configured with."""
        job = Job(flops_per_sample=TERA)
        job.put(JobConfigured(world_size=8, rank=0, node_name="n", session_tag="s"))
        assert job.loop().train(1, 1).training()[0].train_throughput_per_gpu == 0.5

    def test_an_iteration_of_no_time(self):
        """An iteration that took no time has no throughput."""
        update = Job(flops_per_sample=TERA).loop().train(0, 0).training()[0]
        assert fields(update, "train_throughput_per_gpu", "train_throughput_per_gpu_max") == (None, None)


class TestSamplesTokensLoss:
    def test_recorded_by_the_iteration(self):
        """Values recorded with an iteration take precedence over the configuration."""
        update = Job(seq_length=10).loop().train(1, samples=7).train(1, samples=2, tokens=5).training()[0]
        assert fields(update, "num_train_samples", "train_tokens", "avg_batch_size") == (9, 75, 4.5)

    def test_tokens_per_second(self):
        """Tokens per second are those of all ranks, over the time of the iterations that recorded some."""
        update = Job(global_batch_size=None).loop().train(3).train(2, tokens=100).training()[0]
        assert fields(update, "avg_tokens_per_second", "train_tokens", "avg_batch_size") == (50.0, 100, None)

    def test_batch_size(self):
        """The mean batch is that of the iterations that recorded one."""
        update = Job(global_batch_size=None).loop().train(1).train(1, samples=6).training()[0]
        assert update.avg_batch_size == 6.0

    def test_loss(self):
        """The loss is the latest one that a completed iteration recorded."""
        job = Job(log_every_n_train_iterations=3).loop().train(1, loss=2).train(1, failed=True, loss=9.0).train(1, 1)
        assert job.training()[0].latest_loss == 2.0

    def test_scalars_of_other_libraries(self):
        """Scalars of NumPy and torch are numbers."""
        numpy = pytest.importorskip("numpy")
        job = Job().loop().train(1, 1, samples=numpy.int64(3), loss=numpy.float32(0.5), flops=numpy.float64(2e12))
        update = job.training()[0]
        assert fields(update, "num_train_samples", "latest_loss", "total_flops") == (6, 0.5, 8 * TERA)
        assert type(update.num_train_samples) is int

    @pytest.mark.parametrize("given", ["many", math.nan, math.inf, [1, 2], object()])
    def test_no_number(self, given):
        """A value that is no number is unknown, and affects no other figure."""
        update = Job(global_batch_size=None).loop().train(1, 1, tokens=given, flops=given).training()[0]
        assert fields(update, "train_tokens", "total_flops", "num_iterations") == (None, None, 2)


class TestParts:
    def test_within_the_iteration(self):
        """Forward and backward passes are summed within an iteration, and averaged over iterations."""
        job = Job().loop()
        job.part("model_forward", 1, parent=50).part("model_forward", 2, parent=50)
        job.part("model_backward", 4, parent=50).train(10, own_id=50)
        job.part("model_forward", 5, parent=51).part("model_backward", 2, parent=51).train(10, own_id=51)
        assert fields(job.training()[0], "avg_forward_time_sec", "avg_backward_time_sec") == (4.0, 3.0)

    def test_before_the_iteration(self):
        """Data that is loaded in the loop, before the iteration, is the iteration's."""
        job = Job().loop()
        for duration_s in (1, 3):
            job.part("data_loading", duration_s, parent=LOOP).train(10)
        assert job.training()[0].avg_dataloader_time_sec == 2.0

    def test_deeper(self):
        """A part may lie inside other spans of the iteration."""
        job = Job().loop()
        job.part("model_forward", 2, parent=60).part("microbatch", 3, parent=50, own_id=60).train(10, own_id=50)
        assert job.now().training.avg_forward_time_sec == 2.0

    def test_within_itself(self):
        """A forward pass inside a forward pass is counted once."""
        job = Job().loop()
        job.part("model_forward", 2, parent=60).part("model_forward", 3, parent=50, own_id=60).train(10, own_id=50)
        assert job.now().training.avg_forward_time_sec == 3.0

    def test_of_a_failed_iteration(self):
        """Parts of a failed iteration are not counted, nor added to the next one."""
        job = Job().loop().part("data_loading", 7, parent=LOOP).part("model_forward", 7, parent=50)
        job.train(10, own_id=50, failed=True).part("model_forward", 1, parent=51).train(10, own_id=51)
        assert fields(job.now().training, "avg_forward_time_sec", "avg_dataloader_time_sec") == (1.0, None)

    def test_of_validation(self):
        """Forward passes of a validation are not the training's."""
        job = Job().loop().part("model_forward", 9, parent=70)
        job.put(IterationEnded(at_ns=0, parent_span_id=71, step=-1, span_id=70, kind="validation", duration_ns=S))
        job.part("data_loading", 9, parent=71).loop_end("validation_loop", 71).train(10)
        assert fields(job.now().training, "avg_forward_time_sec", "avg_dataloader_time_sec") == (None, None)

    def test_of_the_window(self):
        """A window has its own averages."""
        job = Job(log_every_n_train_iterations=1).loop()
        for duration_s in (1, 3):
            job.part("model_forward", duration_s, parent=50).train(10, own_id=50)
        reported = [fields(update, "avg_forward_time_sec", "window_avg_forward_time_sec") for update in job.training()]
        assert reported == [(1.0, 1.0), (2.0, 3.0)]

    def test_lost_ends(self):
        """Spans whose end never comes do not pile up."""
        job = Job().loop()
        for number in range(1000):
            job.part("model_forward", 1, parent=10_000 + number)
        assert len(job.model.dump()["places"][0]["metrics"]["parts"]) == 64


class TestEvaluation:
    def test_validation(self):
        """A validation's update has itself as the window, and all validations of the job."""
        job = Job().loop().train(1, 1).evaluate(1, 3).train(1).evaluate(5)
        update = job.updates.of(ValidationMetricsUpdated)[1]
        assert (times(update), times(update, "window_")) == ((3.0, 1.0, 5.0, 9.0), (5.0, 5.0, 5.0, 5.0))

    def test_interval(self):
        """The interval is the number of training iterations since the validation before, or the loop's start."""
        job = Job().loop(start=10).train(1, 1).evaluate(1).train(1, 1, 1).evaluate(1)
        reported = [fields(u, "interval", "current_iteration") for u in job.updates.of(ValidationMetricsUpdated)]
        assert reported == [(2, 11), (3, 14)]

    def test_without_iterations(self):
        """A validation without iterations has no times."""
        update = Job().loop().evaluate().updates.of(ValidationMetricsUpdated)[0]
        assert (update.current_iteration, times(update)) == (0, (None,) * 4)

    def test_failed(self):
        """Failed validation iterations are counted, and nothing else."""
        job = Job().loop().evaluate(50, failed=True).evaluate(2, loss=0.25)
        reported = [fields(u, "num_failed_iterations", "window_num_failed_iterations", "num_iterations")
                for u in job.updates.of(ValidationMetricsUpdated)]  # fmt: skip
        assert reported == [(1, 1, 0), (1, 0, 1)]
        assert job.now().validation.latest_loss == 0.25

    def test_testing(self):
        """Testing is separate from validation."""
        job = Job().loop().train(1).evaluate(8).evaluate(2, 4, kind="testing")
        update = job.updates.of(TestingMetricsUpdated)[0]
        assert (update.interval, times(update)) == (1, (3.0, 2.0, 4.0, 6.0))

    def test_before_the_first_iteration(self):
        """Before the first iteration of a loop, the current one is the last before it."""
        job = Job().loop().train(1, step=50).loop_end().loop(start=10).evaluate(1)
        assert job.updates.of(ValidationMetricsUpdated)[0].current_iteration == 9

    def test_where(self):
        """An update belongs to the loop that ended."""
        job = Job().loop().evaluate(1)
        assert job.updates.of(ValidationMetricsUpdated)[0].span_id == 2


class TestCheckpointMetricsUpdated:
    def test_times(self):
        """The time that saves blocked training is summed, failed ones included."""
        job = Job().loop()
        for duration_s in (3, 1):
            job.save_end(job.save_start(1), duration_s)
        update = job.updates.of(CheckpointMetricsUpdated)[1]
        reported = fields(update, *(f"save_checkpoint_sync_time_{name}_sec" for name in ("total", "min", "max")))
        assert (*reported, update.save_checkpoint_count) == (4.0, 1.0, 3.0, 2)

    def test_strategies(self):
        """Saves of the two strategies are counted separately."""
        job = Job().loop()
        job.save_end(job.save_start(1), 3).save_end(job.save_start(2, "async"), 1, "async")
        assert {s: u.save_checkpoint_sync_time_total_sec for s, u in job.now().checkpoints.items()} == {
            "async": 1.0,
            "sync": 3.0,
        }

    def test_where(self):
        """An update belongs to the save."""
        job = Job().loop()
        span_id = job.save_start(1)
        job.save_end(span_id)
        assert job.updates.of(CheckpointMetricsUpdated)[0].span_id == span_id


class TestProductiveWorkSaved:
    def test_what_was_done_when_the_save_began(self):
        """Productive iterations are those done when the save began, and not later ones."""
        job = Job(flops_per_sample=TERA).loop(start=3, completed_floating_point_operations_overall=12 * TERA)
        job.train(2, 3).evaluate(7)
        save = job.save_start(5, "async")
        job.train(9).saved(5, save, "async")
        assert fields(
            job.productive()[0],
            "productive_train_iterations",
            "productive_train_samples",
            "productive_train_iterations_sec",
            "productive_validation_iterations_sec",
            "productive_train_tflops",
        ) == (5, 20, 5.0, 7.0, 20.0)

    def test_further_fields(self):
        """The checkpoint's size and path are recorded, and the start of the loop."""
        job = Job().loop().train(1)
        job.saved(1, job.save_start(1), size_bytes=123, path="/there")
        reported = fields(
            job.productive()[0], "checkpoint_size", "checkpoint_directory", "training_start_timestamp_sec"
        )
        assert reported == (123, "/there", 1000.0)

    def test_no_operations(self):
        """Without recorded operations, the figures of operations are absent."""
        job = Job().loop().train(1)
        assert job.saved(1, job.save_start(1)).productive()[0].productive_train_tflops is None

    def test_failed_iterations(self):
        """Failed iterations are not productive."""
        job = Job().loop().train(1).train(50, failed=True)
        job.saved(1, job.save_start(1))
        reported = fields(job.productive()[0], "productive_train_iterations", "productive_train_iterations_sec")
        assert reported == (1, 1.0)

    def test_failed_validation(self):
        """Nor are failed validation iterations."""
        job = Job().loop().train(1).evaluate(2).evaluate(50, failed=True)
        job.saved(1, job.save_start(1))
        assert job.productive()[0].productive_validation_iterations_sec == 2.0

    def test_another_save_of_the_step(self):
        """A success that names its span is no other save's, of whatever step."""
        job = Job().loop().train(1)
        job.save_start(7)
        assert job.saved(7, 999).productive()[0].productive_train_iterations == 0
        assert job.now().open_saves == [7]

    def test_any_order(self):
        """Successes may come in any order; the productive part never shrinks."""
        job = Job().loop()
        saves = []
        for step in (1, 2, 3):
            job.train(1)
            saves.append((step, job.save_start(step, "async")))
        for step, span_id in (saves[1], saves[2], saves[0]):
            job.at_ns += S
            job.saved(step, span_id, "async")
        names = ("current_iteration", "productive_train_iterations", "productive_global_step")
        assert [fields(u, *names) for u in job.productive()] == [(2, 2, 2), (3, 3, 3), (1, 3, 3)]

    def test_times_of_successes(self):
        """The first and the latest success are chosen by their own times, not by the order of the events."""
        job = Job().loop()
        for step, at_s in ((1, 1005), (2, 1003), (3, 1004)):
            span_id = job.save_start(step)
            job.at_ns = at_s * S
            job.saved(step, span_id)
        names = [f"{which}_successful_save_checkpoint_timestamp_sec" for which in ("first", "latest")]
        assert fields(job.productive()[-1], *names) == (1003.0, 1005.0)

    def test_after_the_loop_and_the_job(self):
        """A success may come after the loop and the application have ended."""
        job = Job().loop().train(1)
        span_id = job.save_start(1, "async")
        job.save_end(span_id, 1, "async").train(1).loop_end().loop_end("application", APPLICATION)
        assert job.saved(1, span_id, "async").productive()[0].productive_train_iterations == 1

    def test_by_step(self):
        """A success that names no span is found by its step, and is that of the latest save of it."""
        job = Job().loop().train(1)
        job.save_start(7)
        job.train(1)
        job.save_start(7)
        assert job.saved(7).productive()[0].productive_train_iterations == 2

    def test_failed_save(self):
        """A failed save makes no iteration productive, is counted, and is then forgotten."""
        job = Job().loop().train(1)
        job.not_saved(1, job.save_start(1))
        assert (job.productive(), job.now().failed_saves, job.now().open_saves) == ([], 1, [])

    def test_after_a_failed_save(self):
        """A step whose first save failed counts when the second one succeeds."""
        job = Job().loop().train(1)
        job.not_saved(1, job.save_start(1)).saved(1, job.save_start(1))
        names = ("save_checkpoint_success_count", "save_checkpoint_failure_count", "productive_train_iterations")
        assert fields(job.productive()[0], *names) == (1, 1, 1)

    def test_recorded_twice(self):
        """A success recorded twice is one."""
        job = Job().loop().train(1)
        span_id = job.save_start(1)
        job.saved(1, span_id).saved(1, span_id)
        assert [update.save_checkpoint_success_count for update in job.productive()] == [1]

    def test_nobody_saw_it_begin(self):
        """A success of a save whose start was not seen does not shrink the productive part."""
        job = Job().loop().train(1)
        job.saved(1, job.save_start(1)).train(1).saved(99)
        names = ("current_iteration", "productive_train_iterations", "save_checkpoint_success_count")
        assert fields(job.productive()[1], *names) == (99, 1, 2)

    def test_many_that_never_end(self):
        """Saves without a recorded outcome do not pile up."""
        job = Job().loop()
        for step in range(1500):
            job.save_start(step)
        assert (len(job.now().open_saves), job.now().open_saves[0]) == (1024, 476)

    def test_open(self):
        """Saves whose outcome is unknown are named."""
        job = Job().loop()
        job.save_start(5)
        job.save_start(6)
        assert job.now().open_saves == [5, 6]


class TestSeveralLoops:
    def test_that_go_on(self):
        """A loop that goes on where the last one ended adds to its samples, and does not count them twice."""
        job = Job().loop().train(1, 1).loop_end().loop(start=2).train(1, 1)
        job.saved(4, job.save_start(4))
        reported = fields(job.productive()[0], "productive_train_samples", "productive_train_iterations_sec")
        assert reported == (16, 4.0)

    def test_that_go_on_by_what_was_counted(self):
        """Samples recorded with iterations take precedence over those that the next loop assumes."""
        job = Job().loop().train(1, 1, samples=7).loop_end().loop(start=2).train(1)
        job.saved(3, job.save_start(3))
        assert job.productive()[0].productive_train_samples == 18

    def test_that_start_again(self):
        """A loop that starts again from a checkpoint keeps the work in that, and loses the work after it."""
        job = Job().loop().train(1, 1)
        job.saved(2, job.save_start(2)).train(50, failed=False).loop_end().loop(start=2).train(1)
        job.saved(3, job.save_start(3))
        reported = fields(job.productive()[1], "productive_train_iterations", "productive_train_iterations_sec")
        assert reported == (3, 3.0)

    def test_that_start_from_nothing(self):
        """A loop that starts from 0 has lost all work before it."""
        job = Job().loop().train(50).loop_end().loop().train(1)
        job.saved(1, job.save_start(1))
        assert job.productive()[0].productive_train_iterations_sec == 1.0

    def test_times_are_the_job_s(self):
        """Times accumulate over all loops of the job."""
        update = Job().loop().train(1, 1).loop_end().loop().train(4, 4).training()[-1]
        assert (update.num_iterations, times(update)[3]) == (4, 10.0)


def some_job(source, rng):
    """Record a random job of some length."""
    job = Job(source, flops_per_sample=rng.randint(1, 9), seq_length=3, peak_flops_per_s=10.0)
    job.loop(start=rng.randint(0, 5))
    saves = []
    for _ in range(rng.randint(1, 30)):
        choice = rng.randrange(6)
        if choice < 2:
            job.part("model_forward", rng.random(), parent=LOOP).train(rng.randint(1, 9), loss=rng.random())
        elif choice == 2:
            job.train(rng.randint(1, 9), failed=True, samples=rng.randint(1, 9))
        elif choice == 3:
            job.evaluate(rng.randint(1, 9), kind=rng.choice(["validation", "testing"]))
        elif choice == 4:
            saves.append(job.save_start(rng.randint(1, 5)))
            job.save_end(saves[-1])
        elif saves:
            rng.choice([job.saved, job.not_saved])(rng.randint(1, 5), saves.pop(rng.randrange(len(saves))))
    return job


@trackside.event("test.metrics.derived", priority=LIFECYCLE, derived=True)
class IterationDerived(IterationEnded):
    """A derived event."""


class TestTrainingMetrics:
    @given(seed=st.integers(0, 2**32))
    @settings(max_examples=50)
    def test_any_interleaving(self, seed):
        """With several sources the result does not depend on the interleaving of their events."""
        rng = random.Random(seed)
        streams = [some_job(Source(id=letter * 16, rank=rank), rng).events for rank, letter in enumerate("abc")]
        one_by_one, shuffled = TrainingMetrics(), TrainingMetrics()
        for event in itertools.chain(*streams):
            one_by_one(event)
        waiting = [list(reversed(stream)) for stream in streams]
        while any(waiting):
            shuffled(rng.choice([stream for stream in waiting if stream]).pop())

        assert shuffled.result() == one_by_one.result()
        assert shuffled.dump() == one_by_one.dump()

    @given(seed=st.integers(0, 2**32))
    @settings(max_examples=50)
    def test_goes_on_from_a_dump(self, seed):
        """A model that loads another one's state, over the wire, goes on as that one."""
        rng = random.Random(seed)
        job = some_job(HERE, rng)
        index = rng.randrange(len(job.events) + 1)
        first, second = TrainingMetrics(), TrainingMetrics(publish=(updates := Capture()))
        for event in job.events[:index]:
            first(event)
        second.load(msgpack.unpackb(msgpack.packb(first.dump())))
        for event in job.events[index:]:
            second(event)

        assert second.result() == job.model.result()
        assert second.dump() == job.model.dump()
        assert updates.events == job.updates.events[len(job.updates) - len(updates) :]

    @pytest.mark.parametrize("state", [{}, {"places": 3, "missed": 0}, {"places": [{"metrics": 1}], "missed": 0}])
    def test_no_state(self, state):
        """Data that is no state is refused, and the model stays as it was."""
        job = Job().loop().train(1)
        with pytest.raises(DecodeError):
            job.model.load(state)
        assert job.now().training.num_iterations == 1

    def test_live_is_replay(self, tmp_path):
        """Over the recorded events the model gives the result and the updates that it gave live."""
        bus, live = Bus(source=HERE), TrainingMetrics()
        live = TrainingMetrics(publish=bus.publish)
        with bus.subscribe(live), bus.subscribe(EventLog(tmp_path)):
            for event in some_job(HERE, random.Random(5)).events + some_job(HERE, random.Random(6)).events:
                bus.log(event)
            assert bus.flush(10)
        bus.close()
        updates = Capture()
        again = TrainingMetrics(publish=updates)
        recorded = []
        for event in replay(tmp_path):
            again(event)
            if type(event).derived:
                recorded.append(event)

        assert again.result() == live.result()
        assert updates.events == recorded
        assert len(recorded) > 5

    def test_derived(self):
        """It does not read its own updates."""
        job = Job().loop().train(1, 1)
        before = job.model.dump()
        for update in job.updates.events:
            job.put(update)
        job.put(IterationDerived(duration_ns=1))
        assert job.model.dump() == before

    def test_missed(self):
        """It counts the events that it missed."""
        model = TrainingMetrics()
        model.missed(Source.unknown(""), 3)
        model.missed(Source.unknown(""), 4)
        assert model.result().missed == 7

    def test_json(self):
        """The result is JSON."""
        result = some_job(HERE, random.Random(1)).model.result()
        reported = json.loads(json.dumps(attrs.asdict(result)))
        assert reported["sources"][0]["training"]["num_iterations"] == result.sources[0].training.num_iterations

    def test_nothing_recorded(self):
        """A process without events that metrics are computed of is not in the result."""
        assert Job().loop().model.result().sources == []

    def test_result_does_not_close_the_window(self):
        """Reading the result changes nothing."""
        job = Job().loop().train(1)
        before = job.model.dump()
        assert times(job.now().window)[3] == 1.0
        assert job.model.dump() == before

    def test_order_of_ranks(self):
        """Processes are in the order of their ranks, then attempts."""
        model = TrainingMetrics()
        for letter, rank, attempt in (("a", 1, 0), ("b", 0, 1), ("c", 0, 0)):
            for event in Job(Source(id=letter * 16, rank=rank, attempt=attempt)).loop().train(1).events:
                model(event)
        assert [(place.rank, place.attempt) for place in model.result().sources] == [(0, 0), (0, 1), (1, 0)]


def iterations(model, first, count, rng):
    for step in range(first, first + count):
        span = ProfileSpanEnded(
            at_ns=step, step=step, span_id=step * 2 + 10, parent_span_id=9, name="model_forward", duration_ns=5
        )
        model(span)
        model(
            IterationEnded(
                at_ns=step,
                parent_span_id=LOOP,
                step=step,
                span_id=9,
                duration_ns=int(rng.lognormvariate(18, 0.2)),
                loss=1.0,
            )
        )


class TestLength:
    def test_memory(self, rng, scaled):
        """For any number of iterations, the state has the same size."""
        model = TrainingMetrics()
        count = scaled(500_000)
        iterations(model, 0, count, rng)
        tracemalloc.start()
        iterations(model, count, count, rng)
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert grown < 100_000
        assert len(msgpack.packb(model.dump())) < 20_000

    def test_cost(self, rng, scaled):
        """The last thousand iterations take as long as the second thousand did."""
        lengths = (1_000, 11_000 + scaled(500_000))
        models = [TrainingMetrics() for _ in lengths]
        for model, length in zip(models, lengths, strict=True):
            iterations(model, 0, length, rng)
        best = [math.inf, math.inf]
        for turn in range(10):  # alternating, and by this thread's own time: both have the same neighbours
            for place, model in enumerate(models):
                started = time.thread_time()
                iterations(model, lengths[place] + turn * 1000, 1000, rng)
                best[place] = min(best[place], time.thread_time() - started)
        assert best[1] < 4 * best[0]
