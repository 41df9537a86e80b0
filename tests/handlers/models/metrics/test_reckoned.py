"""Training metrics of random jobs, against a computation over the whole list of their iterations."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import attrs
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processes import Process
from trackside.events import (
    IterationEnded,
    ProfileSpanEnded,
    Source,
    SpanEnded,
    SpanStarted,
    TrainingConfigured,
    TrainingMetricsUpdated,
    TrainingWindowUpdated,
)
from trackside.handlers.models import TrainingMetrics, training_metrics
from trackside.handlers.models.steps import StepTimer

pytestmark = pytest.mark.once

S = 10**9
TERA = 10**12
LOOP = 1
VALIDATION_LOOP = 2
PARTS = {"model_forward": "forward", "model_backward": "backward", "data_loading": "dataloader"}
OTHERS = ["optimizer_update", "zero_grad", "microbatch", "application", "checkpoint_load"]
WHOLE = [(None, None), (64, 64), (0, 0), (7.9, 7), (True, 1), ("12", 12), ("many", None), (math.nan, None), ([], None)]
"""Values that an iteration may give as a count, and the whole number that each holds."""
LOSS = [(None, None), (0.5, 0.5), (2, 2.0), ("low", None), ("0.25", 0.25)]


@attrs.define
class Done:
    """A training iteration that did not fail, with its true values."""

    duration_ns: int
    end_ns: int
    step: int
    samples: int | None
    tokens: int | None
    flops: int | None
    loss: float | None
    parts: Counter[str]


class Job(Process):
    """
    The events of one random process, in order, and the true values behind them.

    Args:
        source: The process's source.
        rng: Draws the job.
        log_every: How many iterations make a window; None for 50 that took a second.
        configured: Whether the job's configuration gives the values that its iterations lack.
    """

    def __init__(self, source, rng, *, log_every, configured):
        super().__init__(source)
        self.rng, self.log_every = rng, log_every
        self.longest_ns = 30 * S
        self.ids = itertools.count(VALIDATION_LOOP + 1)
        self.batch = rng.randint(1, 9) if configured else None
        self.seq_length = rng.choice([None, 3]) if configured else None
        self.flops_per_sample = rng.choice([None, TERA]) if configured else None
        self.peak = rng.choice([None, 9e12]) if configured else None
        self.timer = StepTimer()  # whose own tests define a step's time
        self.done = []
        self.failed = 0
        self.windows = []
        """Of each window: up to which iteration, and how many had failed."""
        self.pending = Counter()
        self._record(
            TrainingConfigured,
            perf_tag=["random"],
            log_every_n_train_iterations=log_every,
            global_batch_size=self.batch,
            seq_length=self.seq_length,
            flops_per_sample=self.flops_per_sample,
            peak_flops_per_s=self.peak,
        )
        self.at_ns += self.rng.randint(0, S)
        self.start_span("training_loop", span_id=LOOP, attributes={"train_iterations_start": 0})

    def _record(self, cls, **known):
        self.at_ns += self.rng.randint(0, S)
        around = "parent_span_id" if hasattr(cls, "parent_span_id") else "span_id"
        self.add(cls, **{around: LOOP, **known})

    def put(self, event):
        """Record *event*."""
        super().put(event)
        if isinstance(event, SpanStarted):
            self.timer.span_started(event)
        elif isinstance(event, SpanEnded):
            self.timer.span_ended(event)
        elif isinstance(event, IterationEnded):
            self.step = self.timer.iteration_ended(event)
        return self

    def _span(self, parent_id, depth=0):
        """Publish a span and those in it; return the length of each part that its parent must count."""
        rng, own_id = self.rng, next(self.ids)
        name = rng.choice([*PARTS, *OTHERS])
        held = Counter()
        for _ in range(rng.randint(0, 2) if depth < 3 else 0):
            held += self._span(own_id, depth + 1)
        if rng.random() < 0.02:
            return Counter()  # its end is lost
        duration_ns = rng.choice([0, rng.randint(1, S)])
        cls = rng.choice([ProfileSpanEnded, ProfileSpanEnded, SpanEnded])
        self._record(cls, span_id=own_id, parent_span_id=parent_id, name=name, duration_ns=duration_ns)
        if name in PARTS:
            held[PARTS[name]] = duration_ns
        return +held

    def _spans(self, parent_id, most):
        return sum((self._span(parent_id) for _ in range(self.rng.randint(0, most))), Counter())

    def train(self):
        """Publish a training iteration."""
        rng, own_id = self.rng, next(self.ids)
        self.pending += self._spans(LOOP, 1)
        parts, self.pending = self._spans(own_id, 3) + self.pending, Counter()
        (samples, meant), (tokens, meant_tokens), (flops, meant_flops) = (rng.choice(WHOLE) for _ in range(3))
        loss, meant_loss = rng.choice(LOSS)
        duration_ns = rng.choice([int(rng.lognormvariate(17, 0.1)), rng.randint(0, 3 * S), 1])
        failed = rng.random() < 0.1
        step = len(self.done) if rng.random() < 0.5 else -1
        self._record(
            IterationEnded,
            span_id=own_id,
            step=step,
            duration_ns=duration_ns,
            samples=samples,
            tokens=tokens,
            flops=flops,
            loss=loss,
            failed=failed,
        )
        if failed:
            self.failed += 1
            return
        meant = self.batch if meant is None else meant
        if meant_tokens is None and None not in (meant, self.seq_length):
            meant_tokens = meant * self.seq_length
        if meant_flops is not None:
            meant_flops *= self.source.world_size
        elif None not in (meant, self.flops_per_sample):
            meant_flops = meant * self.flops_per_sample
        self.done.append(
            Done(self.step.step_ns, self.at_ns, len(self.done), meant, meant_tokens, meant_flops, meant_loss, parts)
        )
        begun = self.windows[-1][0] if self.windows else 0
        took_ns = sum(one.duration_ns for one in self.done[begun:])
        is_full = len(self.done) % (self.log_every or 50) == 0 and (self.log_every or took_ns >= S)
        if is_full or took_ns >= self.longest_ns:
            self.windows.append((len(self.done), self.failed))

    def validate(self):
        """Publish a validation, which is no part of training; data loaded before it counts for training."""
        for _ in range(self.rng.randint(0, 3)):
            own_id = next(self.ids)
            self._spans(own_id, 2)
            self._spans(VALIDATION_LOOP, 1)
            self._record(
                IterationEnded,
                span_id=own_id,
                parent_span_id=VALIDATION_LOOP,
                kind="validation",
                duration_ns=S,
                loss=9.0,
            )
        self._spans(VALIDATION_LOOP, 1)
        self._record(SpanEnded, span_id=VALIDATION_LOOP, parent_span_id=LOOP, name="validation_loop", duration_ns=0)

    def end(self):
        """Publish the end of the training loop."""
        self._record(SpanEnded, span_id=LOOP, parent_span_id=0, name="training_loop", duration_ns=0)
        if (len(self.done), self.failed) != (self.windows[-1] if self.windows else (0, 0)):
            self.windows.append((len(self.done), self.failed))

    def expected(self):
        """Return the metrics of each update."""
        found, begun, failed_before = [], 0, 0
        for end, failed in self.windows:
            window = self.figures(self.done[begun:end], failed - failed_before)
            losses = [one.loss for one in self.done[:end] if one.loss is not None]
            found.append(
                {
                    **self.figures(self.done[:end], failed),
                    **{f"window_{name}": value for name, value in window.items()},
                    "num_iterations": end,
                    "interval": end - begun,
                    "current_iteration": max(0, end - 1),
                    "latest_loss": losses[-1] if losses else None,
                    "first_logged_train_iterations_finish_timestamp_sec": self.done[0].end_ns / S if end else None,
                    "last_logged_train_iterations_finish_timestamp_sec": self.done[end - 1].end_ns / S if end else None,
                }
            )
            begun, failed_before = end, failed
        return found

    def figures(self, done, failed):
        """Return the metrics that a window and the job have alike."""
        times = sorted(one.duration_ns for one in done)
        samples = [one.samples for one in done if one.samples is not None]
        tokens = [(one.tokens, one.duration_ns) for one in done if one.tokens is not None]
        flops = [(one.flops, one.duration_ns) for one in done if one.flops is not None]
        ranks = self.source.world_size
        rates = [amount / (took_ns / S) / TERA / ranks for amount, took_ns in flops if took_ns]
        tflops = per_second(flops) and per_second(flops) / TERA if flops else None
        per_gpu = tflops / ranks if tflops is not None else None
        figures = {
            "avg_iteration_time_sec": mean(times, S),
            "min_iteration_time_sec": times[0] / S if times else None,
            "max_iteration_time_sec": times[-1] / S if times else None,
            "total_iteration_time_sec": sum(times) / S,
            "num_train_samples": sum(samples),
            "train_tokens": sum(amount for amount, _ in tokens) if tokens else None,
            "total_flops": sum(amount for amount, _ in flops) if flops else None,
            "avg_tflops": tflops,
            "avg_tokens_per_second": per_second(tokens),
            "avg_batch_size": mean(samples),
            "train_throughput_per_gpu": per_gpu,
            "train_throughput_per_gpu_max": max(rates, default=None),
            "train_throughput_per_gpu_min": min(rates, default=None),
            "mfu": per_gpu * TERA / self.peak if None not in (per_gpu, self.peak) else None,
            "num_failed_iterations": failed,
        }
        for part in PARTS.values():
            figures[f"avg_{part}_time_sec"] = mean([one.parts[part] for one in done if one.parts[part]], S)
        for percent in (50, 95, 99):
            figures[f"p{percent}_iteration_time_sec"] = percentile(times, percent / 100) if times else None
        return figures


def mean(values, unit=1):
    return sum(values) / len(values) / unit if values else None


def per_second(amounts):
    took_ns = sum(took_ns for _, took_ns in amounts)
    return sum(amount for amount, _ in amounts) / (took_ns / S) if took_ns else None


def percentile(times, q):
    """Return the middle of the 2 % bucket that holds the value of that rank, limited to the extremes."""
    value = times[math.floor(q * (len(times) - 1))]
    growth = 1.01 / 0.99
    middle = 2 * growth ** math.ceil(math.log(value) / math.log(growth)) / (growth + 1) if value else 0.0
    return min(max(middle, times[0]), times[-1]) / S


def some_job(source, rng):
    job = Job(source, rng, log_every=rng.choice([1, 2, 5, 50, None]), configured=rng.random() < 0.7)
    for _ in range(rng.randint(1, 40)):
        rng.choice([job.train, job.train, job.train, job.validate])()
    job.end()
    return job


def queried(model, rng, updates):
    """Return a model that was queried, or goes on from the state of *model*."""
    kind = rng.randrange(8)
    if kind == 0:
        model.result()
    elif kind == 1:
        model.dump()
    elif kind == 2:
        state = msgpack.unpackb(msgpack.packb(model.dump()))
        model = TrainingMetrics(publish=updates)
        model.load(state)
    return model


def trained(updates, source):
    """Return the metrics of the updates of *source*, those of the window under a prefix."""
    own = [update for whose, update in updates if whose is source]
    of_windows = [attrs.asdict(update) for update in own if isinstance(update, TrainingWindowUpdated)]
    of_jobs = [attrs.asdict(update) for update in own if isinstance(update, TrainingMetricsUpdated)]
    return [
        {**of_job, **{f"window_{name}": value for name, value in of_window.items()}}
        for of_job, of_window in zip(of_jobs, of_windows, strict=True)
    ]


def check(job, recorded):
    expected = job.expected()
    assert len(recorded) == len(expected)
    for update, figures in zip(recorded, expected, strict=True):
        found = {name: update[name] for name in figures}
        assert {name: (found[name], value) for name, value in figures.items() if not is_close(found[name], value)} == {}


def is_close(found, expected):
    if found is None or expected is None:
        return found is expected
    return math.isclose(found, expected, rel_tol=1e-9)


class TestReckoned:
    @given(seed=st.integers(0, 2**32))
    @settings(max_examples=50)
    def test_any_jobs(self, seed):
        """Each update has the true values of its window and of the job, whenever they were read."""
        rng = random.Random(seed)
        jobs = [some_job(Source(id=letter * 16, world_size=rng.choice([1, 4])), rng) for letter in "ab"]
        updates, current = [], None
        model = TrainingMetrics(publish=lambda update: updates.append((current, update)))
        waiting = [list(reversed(job.events)) for job in jobs]
        while any(waiting):
            event = rng.choice([stream for stream in waiting if stream]).pop()
            current = event.source
            model(event)
            model = queried(model, rng, model.publish)
        for job in jobs:
            check(job, trained(updates, job.source))

    def test_a_long_window(self, rng, monkeypatch):
        """So has the single update of a window of 700 iterations."""
        monkeypatch.setattr(training_metrics, "_LONGEST_WINDOW_NS", math.inf)
        job = Job(Source(id="c" * 16), rng, log_every=10_000, configured=True)
        job.longest_ns = math.inf
        for _ in range(700):
            job.train()
        job.end()
        updates = []
        model = TrainingMetrics(publish=lambda update: updates.append((job.source, update)))
        for event in job.events:
            model(event)
        assert len(updates) == 2
        check(job, trained(updates, job.source))
