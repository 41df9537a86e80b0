"""The metrics of one process: its iterations, the parts of them, its loops and its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from trackside.events import (
    CheckpointMetricsUpdated,
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    EvaluationMetricsUpdated,
    Event,
    IterationEnded,
    JobConfigured,
    ProductiveWorkSaved,
    SpanEnded,
    SpanStarted,
    TestingMetricsUpdated,
    TrainingConfigured,
    TrainingMetricsUpdated,
    TrainingWindowUpdated,
    ValidationMetricsUpdated,
    span_names,
)
from trackside.handlers.models.metrics._work import NS_PER_S, Durations, IterationWork, number, product, whole
from trackside.handlers.models.steps import StepTimer

PLACES: Final = {span_names.MODEL_FORWARD: 0, span_names.MODEL_BACKWARD: 1, span_names.DATA_LOADING: 2}
"""Of what is timed, by span name; in the order of `IterationWork.parts_ns`."""

_LOOPS: Final = frozenset((span_names.TRAINING_LOOP, span_names.VALIDATION_LOOP, span_names.TESTING_LOOP))
_MOST_OPEN_SPANS: Final = 64


@attrs.define
class OpenParts:
    """
    How long the timed parts took within each span that is still open.

    They are known before the iteration around them is: a span's end hands what it holds to the span around it, until
    it arrives at an iteration, or at the loop: there it waits for the loop's next iteration.
    """

    within: dict[int, list[int]] = attrs.field(factory=dict)
    """By span id."""

    def end(self, event: SpanEnded) -> None:
        """Read the end of a span that held parts."""
        parts = self.within.pop(event.span_id)
        if event.name in _LOOPS:
            return
        if event.name in PLACES:
            parts[PLACES[event.name]] = event.duration_ns  # what was inside it is part of it
        held = self.within.get(event.parent_span_id) or self.begin(event.parent_span_id)
        for place, part_ns in enumerate(parts):
            held[place] += part_ns

    def begin(self, parent_id: int) -> list[int]:
        """Return where the parts of a span that is open are to be added up, as it had none so far."""
        held = self.within[parent_id] = [0, 0, 0]  # as many as PLACES
        if len(self.within) > _MOST_OPEN_SPANS:  # ends of spans were lost
            del self.within[next(iter(self.within))]
        return held

    def take(self, iteration_id: int, loop_id: int) -> list[int] | None:
        """Return what belongs to the iteration that has ended, and forget it; None if there is nothing."""
        if not self.within:
            return None
        inside = self.within.pop(iteration_id, None) if iteration_id else None
        before = self.within.pop(loop_id, None) if self.within else None
        if inside is None or before is None:
            return inside or before
        return [one + other for one, other in zip(inside, before, strict=True)]


E = TypeVar("E", bound=EvaluationMetricsUpdated)


@attrs.define
class EvaluationTimes:
    """The loops of one kind."""

    before: Durations = attrs.field(factory=Durations)
    failed_before: int = 0
    window: Durations = attrs.field(factory=Durations)
    failed: int = 0
    latest_loss: float | None = None
    trained_at_latest: int | None = None
    """Training iterations completed when the latest loop ended, or the training loop started."""

    def add(self, event: IterationEnded) -> None:
        """Take an iteration in."""
        if event.failed:
            self.failed += 1
            return
        self.window.add(event.duration_ns)
        self.latest_loss = number(event.loss, self.latest_loss)

    def ended(self, cls: type[E], event: SpanEnded, trained: int, current_iteration: int) -> E:
        """Return the update to be published at the end of a loop, and close the window."""
        window, failed = self.window, self.failed
        self.before.merge(window)
        self.failed_before += failed
        update = cls(
            at_ns=event.at_ns,
            span_id=event.span_id,
            step=event.step,
            current_iteration=current_iteration,
            interval=trained - (self.trained_at_latest or 0),
            num_iterations=self.before.count,
            num_failed_iterations=self.failed_before,
            latest_loss=self.latest_loss,
            window_num_iterations=window.count,
            window_num_failed_iterations=failed,
            **_times(self.before, "", "avg", "min", "max", "total"),
            **_times(window, "window_", "avg", "min", "max", "total", "p50", "p95", "p99"),
        )
        self.window, self.failed, self.trained_at_latest = Durations(), 0, trained
        return update


def _times(durations: Durations, prefix: str, *names: str) -> dict[str, Any]:
    seconds = durations.seconds()
    fields = (f"{name}_iteration_time_sec" for name in names)
    return {f"{prefix}{name}": seconds[name] if durations.count else None for name in fields}


_MOST_OPEN_SAVES: Final = 1_024
_MOST_DONE: Final = 64


@attrs.define
class Progress:
    """The training work that the model's present state is made of; what was lost is not in it."""

    iterations: int = 0
    samples: int = 0
    train_ns: int = 0
    """In this process, as the next."""
    validation_ns: int = 0
    flops: float | None = None
    """Of all ranks and attempts; None if it is not known what was done before this process."""


@attrs.define
class OpenSave:
    """A save of which the outcome is not known, and what was done when it began."""

    span_id: int
    global_step: int
    progress: Progress
    loop_began_ns: int | None


@attrs.define
class Blocked:
    """How long saves of one strategy kept training waiting."""

    count: int = 0
    total_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0

    def add(self, duration_ns: int) -> None:
        """Take one in."""
        self.min_ns = min(self.min_ns, duration_ns) if self.count else duration_ns
        self.max_ns = max(self.max_ns, duration_ns) if self.count else duration_ns
        self.count += 1
        self.total_ns += duration_ns


@attrs.define
class Saves:
    """The saves of one process, identified by their span and their global step: outcomes come in any order."""

    opened: list[OpenSave] = attrs.field(factory=list)
    settled_ids: list[int] = attrs.field(factory=list)
    """Span ids of the saves that succeeded last: a success that is reported twice is one."""
    complete: list[Progress] = attrs.field(factory=list)
    """What the checkpoints that were completed last hold."""
    furthest: Progress | None = None
    furthest_step: int = -1
    successes: int = 0
    failures: int = 0
    first_success_ns: int | None = None
    latest_success_ns: int | None = None

    def begin(self, save: OpenSave) -> None:
        """Remember a save that has begun."""
        self.opened.append(save)
        del self.opened[:-_MOST_OPEN_SAVES]

    def fail(self, event: CheckpointSaveFailed) -> None:
        """Forget a save: nothing will come of it."""
        self._settle(event)
        self.failures += 1

    def succeed(self, event: CheckpointSaveSucceeded) -> tuple[bool, OpenSave | None]:
        """Return whether the success is news, and the save, if its beginning is known."""
        if event.save_span_id in self.settled_ids:
            return False, None
        save = self._settle(event)
        if event.save_span_id:
            self.settled_ids.append(event.save_span_id)
            del self.settled_ids[:-_MOST_OPEN_SAVES]
        self.successes += 1
        at_ns = event.at_ns
        self.first_success_ns = at_ns if self.first_success_ns is None else min(self.first_success_ns, at_ns)
        self.latest_success_ns = at_ns if self.latest_success_ns is None else max(self.latest_success_ns, at_ns)
        if save is not None:
            self.complete.append(save.progress)
            del self.complete[:-_MOST_DONE]
            if self.furthest is None or save.progress.iterations >= self.furthest.iterations:
                self.furthest, self.furthest_step = save.progress, event.global_step
        return True, save

    def _settle(self, event: CheckpointSaveSucceeded | CheckpointSaveFailed) -> OpenSave | None:
        """Take out the save that *event* is about: the one of its span, else the latest one of its step."""
        found = [save for save in self.opened if save.span_id == event.save_span_id]
        if not found and not event.save_span_id:
            found = [save for save in self.opened if save.global_step == event.global_step]
        if not found:
            return None
        self.opened.remove(found[-1])
        return found[-1]

    def resumable(self, iterations: int) -> Progress:
        """Return what is left of this process's work for a loop that starts again at *iterations*."""
        before = [progress for progress in self.complete if progress.iterations <= iterations]
        return max(before, key=lambda progress: progress.iterations, default=Progress())


Derived: TypeAlias = "tuple[Event, ...]"
"""What is to be published after an event was read."""
_TERA: Final = 10**12
_STRATEGIES: Final = {name: strategy for strategy, name in span_names.OF_CHECKPOINT_SAVE.items()}


@attrs.define
class ProcessMetrics:
    """The metrics of one process; each reader returns the events that follow from the one it has read."""

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

    timer: StepTimer = attrs.field(factory=StepTimer)
    before: IterationWork = attrs.field(factory=IterationWork)
    """All windows that are closed."""
    window: IterationWork = attrs.field(factory=IterationWork)
    progress: Progress = attrs.field(factory=lambda: Progress(flops=0.0))
    parts: OpenParts = attrs.field(factory=OpenParts)
    validation: EvaluationTimes = attrs.field(factory=EvaluationTimes)
    testing: EvaluationTimes = attrs.field(factory=EvaluationTimes)
    saves: Saves = attrs.field(factory=Saves)
    blocked: dict[str, Blocked] = attrs.field(factory=dict)

    # --- what is configured ------------------------------------------------------------------------------------

    def job_configured(self, event: JobConfigured) -> Derived:
        """Read how many ranks there are."""
        self.ranks = max(1, event.world_size)
        return ()

    def training_configured(self, event: TrainingConfigured) -> Derived:
        """Read what iterations need not say."""
        self.global_batch_size = event.global_batch_size
        self.seq_length = event.seq_length
        self.flops_per_sample = event.flops_per_sample
        self.peak_flops_per_s = event.peak_flops_per_s
        self.log_every = max(1, event.log_every_n_train_iterations)
        return ()

    # --- spans -------------------------------------------------------------------------------------------------

    def span_started(self, event: SpanStarted) -> Derived:
        """Read the start of a training loop or of a save."""
        self.timer.span_started(event)
        if event.name == span_names.TRAINING_LOOP:
            self._loop_started(event)
        elif event.name in _STRATEGIES:
            step = whole(event.attributes.get(span_names.CURRENT_ITERATION))
            done = self._work_done()
            self.saves.begin(OpenSave(event.span_id, -1 if step is None else step, done, self.loop_began_ns))
        return ()

    def _loop_started(self, event: SpanStarted) -> None:
        self.loop_id = event.span_id
        self.loop_began_ns = event.at_ns
        start = whole(event.attributes.get(span_names.TRAIN_ITERATIONS_START))
        if start is None:
            return
        samples_start = whole(event.attributes.get(span_names.TRAIN_SAMPLES_START))
        flops_start = number(event.attributes.get(span_names.COMPLETED_FLOPS_OVERALL))
        self._start_at(start, samples_start, flops_start)
        self.samples_start = self.progress.samples if samples_start is None else samples_start

    def _start_at(self, start: int, samples_start: int | None, flops_start: float | None) -> None:
        """Begin a loop of which *start* iterations were done before."""
        progress = self.progress
        if start != progress.iterations or self.iterations_start is None:  # it does not go on where the last one ended
            kept = self.saves.resumable(start) if start < progress.iterations else progress
            self.progress = Progress(
                iterations=start,
                samples=samples_start or 0,
                train_ns=kept.train_ns,
                validation_ns=kept.validation_ns,
                flops=0.0 if flops_start is None and not start else flops_start,
            )
        self.iterations_start = start
        self.latest_step = None
        self.validation.trained_at_latest = self.testing.trained_at_latest = start

    def span_ended(self, event: SpanEnded) -> Derived:
        """Read the end of any span but an iteration's; of most there is nothing to read, or a part to add."""
        self.timer.span_ended(event)
        name, within = event.name, self.parts.within
        place = PLACES.get(name)
        if event.span_id in within:
            self.parts.end(event)
        elif place is not None:
            held = within.get(event.parent_span_id) or self.parts.begin(event.parent_span_id)
            held[place] += event.duration_ns
            return ()
        read = _ENDS.get(name)
        return () if read is None else read(self, event)

    def _training_loop_ended(self, event: SpanEnded) -> Derived:
        derived = self._close_window(event) if self.window else ()
        self.loop_id = 0
        return derived

    def _validation_loop_ended(self, event: SpanEnded) -> Derived:
        return (self.validation.ended(ValidationMetricsUpdated, event, self.progress.iterations, self._latest()),)

    def _testing_loop_ended(self, event: SpanEnded) -> Derived:
        return (self.testing.ended(TestingMetricsUpdated, event, self.progress.iterations, self._latest()),)

    # --- iterations --------------------------------------------------------------------------------------------

    def iteration_ended(self, event: IterationEnded) -> Derived:
        """Read what an iteration did."""
        step = self.timer.iteration_ended(event)
        parts_ns = self.parts.take(event.span_id, event.parent_span_id)
        if event.kind != "training":
            self._evaluated(event)
            return ()
        self.latest_parent_id = event.parent_span_id
        if self.iterations_start is None:  # no loop has said where it starts
            self._start_at(max(0, event.step), None, None)
        if step is None:
            self.window.failed += 1
            return ()
        progress, duration_ns = self.progress, step.step_ns
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
        return () if progress.iterations % self.log_every else self._close_window(event)

    def _evaluated(self, event: IterationEnded) -> None:
        evaluation = self.validation if event.kind == "validation" else self.testing
        evaluation.add(event)
        if event.kind == "validation" and not event.failed:
            self.progress.validation_ns += event.duration_ns

    def _flops(self, of_rank: float | None, samples: int | None) -> float | None:
        """Return an iteration's floating-point operations on all ranks."""
        known = whole(of_rank)
        return number(product(samples, self.flops_per_sample) if known is None else known * self.ranks)

    def _close_window(self, event: Event) -> Derived:
        window, self.window = self.window, IterationWork()
        self.before.merge(window)
        return self._updates(self.before, window, event.at_ns)

    def training_now(self) -> tuple[TrainingMetricsUpdated, TrainingWindowUpdated]:
        """Return the updates that would be published if the window closed now, which it does not."""
        job = IterationWork()
        job.merge(self.before)
        job.merge(self.window)
        of_window, of_job = self._updates(job, self.window, self.latest_end_ns)
        return of_job, of_window

    def _updates(
        self, job: IterationWork, window: IterationWork, at_ns: int | None
    ) -> tuple[TrainingWindowUpdated, TrainingMetricsUpdated]:
        loop_id = self.loop_id or self.latest_parent_id
        of_window = TrainingWindowUpdated(
            at_ns=at_ns or 0,
            span_id=loop_id,
            step=self._latest(),
            num_iterations=window.times.count,
            **window.figures(self.ranks, self.peak_flops_per_s),
        )
        of_job = TrainingMetricsUpdated(
            at_ns=at_ns or 0,
            span_id=loop_id,
            step=self._latest(),
            train_iterations_start=self.iterations_start or 0,
            current_iteration=self._latest(),
            num_iterations=job.times.count,
            train_samples_start=self.samples_start,
            interval=window.times.count,
            latest_loss=self.latest_loss,
            completed_floating_point_operations_overall=None if job.known_flops_ns is None else self.progress.flops,
            first_logged_train_iterations_finish_timestamp_sec=_seconds(self.first_end_ns),
            last_logged_train_iterations_finish_timestamp_sec=_seconds(self.latest_end_ns),
            **job.figures(self.ranks, self.peak_flops_per_s),
        )
        return of_window, of_job

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
            done.flops = None  # not known
        return done

    def save_succeeded(self, event: CheckpointSaveSucceeded) -> Derived:
        """Read that a checkpoint is complete."""
        is_news, save = self.saves.succeed(event)
        if not is_news:
            return ()
        saves = self.saves
        productive = saves.furthest or Progress()
        began_ns = self.loop_began_ns if save is None else save.loop_began_ns
        saved = ProductiveWorkSaved(
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
        return (saved,)

    def save_failed(self, event: CheckpointSaveFailed) -> Derived:
        """Read that there will be no checkpoint."""
        self.saves.fail(event)
        return ()

    def _save_ended(self, event: SpanEnded) -> Derived:
        strategy = _STRATEGIES[event.name]
        blocked = self.blocked.setdefault(strategy, Blocked())
        blocked.add(event.duration_ns)
        update = CheckpointMetricsUpdated(
            at_ns=event.at_ns,
            span_id=event.span_id,
            step=event.step,
            save_checkpoint_sync_time_total_sec=blocked.total_ns / NS_PER_S,
            save_checkpoint_sync_time_min_sec=blocked.min_ns / NS_PER_S,
            save_checkpoint_sync_time_max_sec=blocked.max_ns / NS_PER_S,
            checkpoint_strategy=strategy,
            save_checkpoint_count=blocked.count,
        )
        return (update,)


def _seconds(at_ns: int | None) -> float | None:
    return None if at_ns is None else at_ns / NS_PER_S


_ENDS: Final[dict[str, Callable[[ProcessMetrics, SpanEnded], Derived]]] = {
    span_names.TRAINING_LOOP: ProcessMetrics._training_loop_ended,  # noqa: SLF001
    span_names.VALIDATION_LOOP: ProcessMetrics._validation_loop_ended,  # noqa: SLF001
    span_names.TESTING_LOOP: ProcessMetrics._testing_loop_ended,  # noqa: SLF001
    **dict.fromkeys(_STRATEGIES, ProcessMetrics._save_ended),  # noqa: SLF001
}
"""How the ends of spans of these names are read."""
