"""The metrics of one process, kept up to date with each of its events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from trackside.events import (
    CheckpointMetricsUpdated,
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    Event,
    IterationEnded,
    JobConfigured,
    ProductiveWorkSaved,
    SpanEnded,
    SpanStarted,
    TestingMetricsUpdated,
    TrainingConfigured,
    TrainingMetricsUpdated,
    ValidationMetricsUpdated,
    own_fields,
    span_names,
)
from trackside.handlers.models.metrics._durations import NS_PER_S
from trackside.handlers.models.metrics._evaluation import Evaluation
from trackside.handlers.models.metrics._numbers import number, product, whole
from trackside.handlers.models.metrics._parts import PLACES, OpenParts
from trackside.handlers.models.metrics._saves import Blocked, OpenSave, Progress, Saves
from trackside.handlers.models.metrics._work import Work

_TERA: Final = 10**12
_STRATEGIES: Final = {name: strategy for strategy, name in span_names.OF_CHECKPOINT_SAVE.items()}
_OF_WINDOW: Final = tuple(
    (name, name.removeprefix("window_")) for name in own_fields(TrainingMetricsUpdated) if name.startswith("window_")
)


@attrs.define
class ProcessMetrics:
    """What one process has told; each reader returns what is to be published, if anything."""

    ranks: int = 1
    global_batch_size: int | None = None
    seq_length: int | None = None
    flops_per_sample: int | None = None
    peak_flops_per_s: float | None = None
    log_every: int = 50

    loop_id: int = 0
    """The training loop that is open; 0 for none."""
    loop_began_ns: int | None = None
    iterations_start: int | None = None
    samples_start: int = 0
    latest_step: int | None = None
    latest_loss: float | None = None
    first_end_ns: int | None = None
    latest_end_ns: int | None = None
    latest_parent_id: int = 0

    before: Work = attrs.field(factory=Work)
    """All windows that are closed."""
    window: Work = attrs.field(factory=Work)
    progress: Progress = attrs.field(factory=lambda: Progress(flops=0))
    parts: OpenParts = attrs.field(factory=OpenParts)
    validation: Evaluation = attrs.field(factory=Evaluation)
    testing: Evaluation = attrs.field(factory=Evaluation)
    saves: Saves = attrs.field(factory=Saves)
    blocked: dict[str, Blocked] = attrs.field(factory=dict)

    # --- what is configured ------------------------------------------------------------------------------------

    def job_configured(self, event: JobConfigured) -> None:
        """Read how many ranks there are."""
        self.ranks = max(1, event.world_size)

    def training_configured(self, event: TrainingConfigured) -> None:
        """Read what iterations need not say."""
        self.global_batch_size = event.global_batch_size
        self.seq_length = event.seq_length
        self.flops_per_sample = event.flops_per_sample
        self.peak_flops_per_s = event.peak_flops_per_s
        self.log_every = max(1, event.log_every_n_train_iterations)

    # --- spans -------------------------------------------------------------------------------------------------

    def span_started(self, event: SpanStarted) -> None:
        """Read where a training loop starts, and that a save begins."""
        if event.name == span_names.TRAINING_LOOP:
            self._loop_started(event)
        elif event.name in _STRATEGIES:
            step = whole(event.attributes.get(span_names.CURRENT_ITERATION))
            done = self._work_done()
            self.saves.begin(OpenSave(event.id, -1 if step is None else step, done, self.loop_began_ns))

    def _loop_started(self, event: SpanStarted) -> None:
        self.loop_id = event.id
        self.loop_began_ns = event.at_ns
        start = whole(event.attributes.get(span_names.TRAIN_ITERATIONS_START))
        if start is None:
            return
        samples_start = whole(event.attributes.get(span_names.TRAIN_SAMPLES_START))
        flops_start = whole(event.attributes.get(span_names.COMPLETED_FLOPS_OVERALL))
        self._start_at(start, samples_start, flops_start)
        self.samples_start = self.progress.samples if samples_start is None else samples_start

    def _start_at(self, start: int, samples_start: int | None, flops_start: int | None) -> None:
        """Begin a loop of which *start* iterations were done before."""
        progress = self.progress
        if start != progress.iterations or self.iterations_start is None:  # it does not go on where the last one ended
            kept = self.saves.resumable(start) if start < progress.iterations else progress
            self.progress = Progress(
                iterations=start,
                samples=samples_start or 0,
                train_ns=kept.train_ns,
                validation_ns=kept.validation_ns,
                flops=0 if flops_start is None and not start else flops_start,
            )
        self.iterations_start = start
        self.latest_step = None
        self.validation.trained_at_latest = self.testing.trained_at_latest = start

    def span_ended(self, event: SpanEnded) -> Event | None:
        """Read the end of any span but an iteration's; of most there is nothing to read, or a part to add."""
        name, within = event.name, self.parts.within
        place = PLACES.get(name)
        if event.id in within:
            self.parts.end(event)
        elif place is not None:
            held = within.get(event.parent_id) or self.parts.begin(event.parent_id)
            held[place] += event.duration_ns
            return None
        read = _ENDS.get(name)
        return None if read is None else read(self, event)

    def _training_loop_ended(self, event: SpanEnded) -> Event | None:
        told = self._training_updated(event) if self.window else None
        self.loop_id = 0
        return told

    def _validation_loop_ended(self, event: SpanEnded) -> Event:
        return self.validation.ended(ValidationMetricsUpdated, event, self.progress.iterations, self._latest())

    def _testing_loop_ended(self, event: SpanEnded) -> Event:
        return self.testing.ended(TestingMetricsUpdated, event, self.progress.iterations, self._latest())

    # --- iterations --------------------------------------------------------------------------------------------

    def iteration_ended(self, event: IterationEnded) -> Event | None:
        """Read what an iteration did."""
        parts_ns = self.parts.take(event.id, event.span_id)
        if event.kind != "training":
            self._evaluated(event)
            return None
        self.latest_parent_id = event.span_id
        if self.iterations_start is None:  # no loop told
            self._start_at(max(0, event.step), None, None)
        if event.failed:
            self.window.failed += 1
            return None
        progress, duration_ns = self.progress, event.duration_ns
        samples, tokens, flops = event.samples, event.tokens, event.flops
        if type(samples) is not int:
            samples = whole(samples, self.global_batch_size)
        if tokens is not None or self.seq_length is not None:
            tokens = whole(tokens, product(samples, self.seq_length))
        if flops is not None or self.flops_per_sample is not None:
            flops = self._flops(flops, samples)
        self.window.add(duration_ns, samples, tokens, flops, self.ranks)
        if parts_ns is not None:
            self.window.add_parts(parts_ns)
        progress.iterations += 1
        progress.train_ns += duration_ns
        progress.samples += samples or 0
        if flops is not None and progress.flops is not None:
            progress.flops += flops
        self.latest_step = event.step if event.step >= 0 else progress.iterations - 1
        if event.loss is not None:
            self.latest_loss = number(event.loss, self.latest_loss)
        self.latest_end_ns = event.at_ns
        if self.first_end_ns is None:
            self.first_end_ns = event.at_ns
        return None if progress.iterations % self.log_every else self._training_updated(event)

    def _evaluated(self, event: IterationEnded) -> None:
        evaluation = self.validation if event.kind == "validation" else self.testing
        evaluation.add(event)
        if event.kind == "validation" and not event.failed:
            self.progress.validation_ns += event.duration_ns

    def _flops(self, of_rank: float | None, samples: int | None) -> int | None:
        """Return an iteration's floating-point operations on all ranks."""
        told = whole(of_rank)
        return product(samples, self.flops_per_sample) if told is None else told * self.ranks

    def _training_updated(self, event: Event) -> Event:
        """Close the window."""
        window, self.window = self.window, Work()
        self.before.merge(window)
        return self._told(self.before, window, event.at_ns)

    def training_now(self) -> TrainingMetricsUpdated:
        """Return the update that would be published if the window closed now, which it does not."""
        job = Work()
        job.merge(self.before)
        job.merge(self.window)
        return self._told(job, self.window, self.latest_end_ns)

    def _told(self, job: Work, window: Work, at_ns: int | None) -> TrainingMetricsUpdated:
        of_window = window.figures(self.ranks, self.peak_flops_per_s)
        return TrainingMetricsUpdated(
            at_ns=at_ns or 0,
            span_id=self.loop_id or self.latest_parent_id,
            step=self._latest(),
            train_iterations_start=self.iterations_start or 0,
            current_iteration=self._latest(),
            num_iterations=job.times.count,
            train_samples_start=self.samples_start,
            interval=window.times.count,
            latest_loss=self.latest_loss,
            completed_floating_point_operations_overall=None if job.told_flops_ns is None else self.progress.flops,
            first_logged_train_iterations_finish_timestamp_sec=_seconds(self.first_end_ns),
            last_logged_train_iterations_finish_timestamp_sec=_seconds(self.latest_end_ns),
            **job.figures(self.ranks, self.peak_flops_per_s),
            **{name: of_window[figure] for name, figure in _OF_WINDOW},
        )

    def has_trained(self) -> bool:
        """Return whether there was a training iteration."""
        return bool(self.before or self.window)

    def _latest(self) -> int:
        return max(0, self.progress.iterations - 1) if self.latest_step is None else self.latest_step

    # --- checkpoints -------------------------------------------------------------------------------------------

    def _work_done(self) -> Progress:
        """Return what a save that begins now will hold."""
        done = attrs.evolve(self.progress)
        if not done.flops:
            done.flops = None  # nobody told
        return done

    def save_succeeded(self, event: CheckpointSaveSucceeded) -> Event | None:
        """Read that a checkpoint is complete."""
        is_news, save = self.saves.succeed(event)
        if not is_news:
            return None
        saves = self.saves
        productive = saves.furthest or Progress()
        began_ns = self.loop_began_ns if save is None else save.loop_began_ns
        return ProductiveWorkSaved(
            at_ns=event.at_ns,
            span_id=event.span_id,
            step=event.step,
            checkpoint_strategy=event.strategy,
            current_iteration=event.global_step,
            first_successful_save_checkpoint_timestamp_sec=_seconds(saves.first_success_ns) or 0.0,
            latest_successful_save_checkpoint_timestamp_sec=_seconds(saves.latest_success_ns) or 0.0,
            save_checkpoint_success_count=saves.successes,
            save_checkpoint_failure_count=saves.failures,
            productive_train_iterations=productive.iterations,
            productive_train_samples=productive.samples,
            productive_train_iterations_sec=productive.train_ns / NS_PER_S,
            productive_validation_iterations_sec=productive.validation_ns / NS_PER_S,
            productive_train_tflops=None if productive.flops is None else productive.flops / _TERA,
            productive_global_step=saves.furthest_step,
            checkpoint_size=event.size_bytes,
            checkpoint_directory=event.path or None,
            training_start_timestamp_sec=_seconds(began_ns),
        )

    def save_failed(self, event: CheckpointSaveFailed) -> None:
        """Read that there will be no checkpoint."""
        self.saves.fail(event)

    def _save_ended(self, event: SpanEnded) -> Event:
        strategy = _STRATEGIES[event.name]
        blocked = self.blocked.setdefault(strategy, Blocked())
        blocked.add(event.duration_ns)
        return CheckpointMetricsUpdated(
            at_ns=event.at_ns,
            span_id=event.id,
            step=event.step,
            save_checkpoint_sync_time_total_sec=blocked.total_ns / NS_PER_S,
            save_checkpoint_sync_time_min_sec=blocked.min_ns / NS_PER_S,
            save_checkpoint_sync_time_max_sec=blocked.max_ns / NS_PER_S,
            checkpoint_strategy=strategy,
            save_checkpoint_count=blocked.count,
        )


def _seconds(at_ns: int | None) -> float | None:
    return None if at_ns is None else at_ns / NS_PER_S


_ENDS: Final[dict[str, Callable[[ProcessMetrics, SpanEnded], Event | None]]] = {
    span_names.TRAINING_LOOP: ProcessMetrics._training_loop_ended,  # noqa: SLF001
    span_names.VALIDATION_LOOP: ProcessMetrics._validation_loop_ended,  # noqa: SLF001
    span_names.TESTING_LOOP: ProcessMetrics._testing_loop_ended,  # noqa: SLF001
    **dict.fromkeys(_STRATEGIES, ProcessMetrics._save_ended),  # noqa: SLF001
}
"""How the ends of spans of these names are read."""
