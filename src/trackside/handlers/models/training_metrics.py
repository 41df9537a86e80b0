"""
One Logger's metric updates, derived from the iterations, loops and checkpoints of a job.

The work of iterations, with its times and rates; the metrics of one process; and the model over all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import attrs
import cattrs

from trackside._implementation import native
from trackside.core.sketch import Sketch, quantiles_of
from trackside.events import (
    CheckpointMetricsUpdated,
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    EvaluationMetricsUpdated,
    Event,
    IterationEnded,
    IterationSpanEnded,
    JobConfigured,
    ProductiveWorkSaved,
    ProfileSpanEnded,
    Publish,
    RunsOn,
    Source,
    SpanEnded,
    SpanStarted,
    TestingMetricsUpdated,
    TrainingConfigured,
    TrainingMetricsUpdated,
    TrainingWindowUpdated,
    ValidationMetricsUpdated,
    span_names,
)
from trackside.handlers.models._model import VersionedModel
from trackside.handlers.models.steps import TIMED, StepTimer
from trackside.wire import FrameView

NS_PER_S: Final = 10**9
_FOLD_AT: Final = 256
_QUANTILES: Final = (0.50, 0.95, 0.99)
_OF_NONE: Final = {
    "avg_iteration_time_sec": None,
    "min_iteration_time_sec": None,
    "max_iteration_time_sec": None,
    "total_iteration_time_sec": 0.0,
    "p50_iteration_time_sec": None,
    "p95_iteration_time_sec": None,
    "p99_iteration_time_sec": None,
}


@attrs.define
class Durations:
    """
    Count, sum, extremes and distribution of some durations, in ns.

    The latest durations wait in a list: the extremes and the sketch take many at once at the cost of a few. Sums are
    integers, so merging gives the same as adding.
    """

    count: int = 0
    total_ns: int = 0
    min_ns: int = 0
    """Of the durations that do not wait, like the next two fields."""
    max_ns: int = 0
    sketch: Sketch = attrs.field(factory=Sketch)
    waiting: list[int] = attrs.field(factory=list)

    def add(self, duration_ns: int) -> None:
        """Add one duration."""
        self.total_ns += duration_ns  # first: it raises if this is not a number
        self.count += 1
        self.waiting.append(duration_ns)
        if len(self.waiting) >= _FOLD_AT:
            self.fold()

    def fold(self) -> None:
        """Add the waiting durations to the extremes and the sketch."""
        if self.waiting:
            self.waiting.sort()
            self._widen(self.waiting[0], self.waiting[-1])
            self.sketch.add(self.waiting)  # type: ignore[arg-type]  # ints are floats here
            self.waiting = []

    def merge(self, other: Durations) -> None:
        """Add all that *other* holds."""
        if other.count > len(other.waiting):
            self._widen(other.min_ns, other.max_ns)
            self.sketch.merge(other.sketch)
        self.count += other.count
        self.total_ns += other.total_ns
        self.waiting += other.waiting
        self.fold()

    def _widen(self, low_ns: int, high_ns: int) -> None:
        is_first = self.count == len(self.waiting)
        self.min_ns = low_ns if is_first else min(self.min_ns, low_ns)
        self.max_ns = high_ns if is_first else max(self.max_ns, high_ns)

    def to_plain(self) -> dict[str, Any]:
        """Return the state as plain data, the same whether it was read before or not."""
        self.fold()
        known = attrs.asdict(self, filter=lambda field, _: field.name not in {"sketch", "waiting"})
        return {**known, "sketch": self.sketch.to_wire()}

    def seconds(self) -> Mapping[str, float | None]:
        """
        Return average, extremes, total and percentiles in seconds, under One Logger's names.

        Without durations the total is 0, and all other values are None.
        """
        if not self.count:
            return _OF_NONE
        if self.count == len(self.waiting):  # usually a window: folding would make a sketch only for this
            ordered = sorted(self.waiting)
            low_ns, high_ns = ordered[0], ordered[-1]
            found: Sequence[float | None] = quantiles_of(ordered, _QUANTILES)
        else:
            self.fold()
            low_ns, high_ns = self.min_ns, self.max_ns
            found = self.sketch.quantiles(_QUANTILES)
        p50, p95, p99 = (min(max(value or 0.0, low_ns), high_ns) / NS_PER_S for value in found)
        return {
            "avg_iteration_time_sec": self.total_ns / self.count / NS_PER_S,
            "min_iteration_time_sec": low_ns / NS_PER_S,
            "max_iteration_time_sec": high_ns / NS_PER_S,
            "total_iteration_time_sec": self.total_ns / NS_PER_S,
            "p50_iteration_time_sec": p50,
            "p95_iteration_time_sec": p95,
            "p99_iteration_time_sec": p99,
        }


def whole(given: Any, otherwise: int | None = None) -> int | None:
    """Return *given* as an int, or *otherwise* if it is not a number."""
    if type(given) is int:
        return given
    if given is None:
        return otherwise
    try:
        return int(given)
    except Exception:  # neither a number nor finite
        return otherwise


def number(given: Any, otherwise: float | None = None) -> float | None:
    """Return *given* as a float, or *otherwise* if it is not a number."""
    if type(given) is float:
        return given
    if given is None:
        return otherwise
    try:
        return float(given)
    except Exception:  # as above
        return otherwise


def product(one: int | None, other: int | None) -> int | None:
    """Return the product, or None if a factor is not known."""
    return None if one is None or other is None else one * other


_PARTS: Final = ("avg_forward_time_sec", "avg_backward_time_sec", "avg_dataloader_time_sec")
"""The fields of the parts that are timed within iterations, in the order of `IterationWork.parts_ns`."""

_TERA: Final = 10**12
_NS_TIMES_TERA: Final = _TERA // NS_PER_S
_USUAL_WINDOW: Final = 50
_SHORTEST_WINDOW_NS: Final = NS_PER_S
"""The least that the iterations of a window took together, unless the configuration names the iterations of one."""
_LONGEST_WINDOW_NS: Final = 30 * NS_PER_S
"""A window is published when its iterations took this long together, however few they are."""
_MOST_PARTS_WAITING: Final = 256 * len(_PARTS)


def _nothing() -> list[int]:
    return [0] * len(_PARTS)


@attrs.define
class IterationWork:
    """
    The work of some iterations, over all ranks.

    Each figure has the number, or the time, of the iterations for which it is known: if these are not all, a mean over
    all would be wrong.
    """

    times: Durations = attrs.field(factory=Durations)
    failed: int = 0
    samples: int = 0
    known_samples: int = 0
    tokens: int = 0
    known_tokens_ns: int | None = None
    flops: float = 0.0
    """A float: a job of a minute on many GPUs does more operations than 64 bits can count."""
    known_flops_ns: int | None = None
    fastest: float | None = None
    """The throughput per GPU of the fastest iteration, in 10¹² operations per second; *slowest* is the slowest's."""
    slowest: float | None = None
    parts_ns: list[int] = attrs.field(factory=_nothing)
    parts_known: list[int] = attrs.field(factory=_nothing)
    waiting: list[int] = attrs.field(factory=list)
    """The parts of several iterations, one after the other; `settle` adds up many at the cost of a few."""

    def __bool__(self) -> bool:
        """Return whether there was an iteration at all."""
        return bool(self.times.count or self.failed)

    def add(self, duration_ns: int, samples: int | None, tokens: int | None, flops: float | None, ranks: int) -> None:
        """Add an iteration that did not fail; *flops* are those of all *ranks*."""
        self.times.add(duration_ns)
        if samples is not None:
            self.samples += samples
            self.known_samples += 1
        if tokens is not None:
            self.tokens += tokens
            self.known_tokens_ns = (self.known_tokens_ns or 0) + duration_ns
        if flops is not None:
            self._add_flops(flops, duration_ns, ranks)

    def add_parts(self, parts_ns: list[int]) -> None:
        """Add the times of the parts of the same iteration; 0 for a part that it did not have."""
        self.waiting += parts_ns
        if len(self.waiting) >= _MOST_PARTS_WAITING:
            self.settle()

    def settle(self) -> None:
        """Add up the waiting parts."""
        if not self.waiting:
            return
        for place in range(len(_PARTS)):
            parts_ns = self.waiting[place :: len(_PARTS)]
            self.parts_ns[place] += sum(parts_ns)
            self.parts_known[place] += len(parts_ns) - parts_ns.count(0)
        self.waiting = []

    def _add_flops(self, flops: float, duration_ns: int, ranks: int) -> None:
        self.flops += flops
        self.known_flops_ns = (self.known_flops_ns or 0) + duration_ns
        if duration_ns > 0:
            per_gpu = flops / (duration_ns * _NS_TIMES_TERA * ranks)
            self._widen(per_gpu, per_gpu)

    def _widen(self, fastest: float, slowest: float) -> None:
        self.fastest = fastest if self.fastest is None else max(self.fastest, fastest)
        self.slowest = slowest if self.slowest is None else min(self.slowest, slowest)

    def merge(self, other: IterationWork) -> None:
        """Add all that *other* holds."""
        other.settle()
        self.times.merge(other.times)
        self.failed += other.failed
        self.samples += other.samples
        self.known_samples += other.known_samples
        self.tokens += other.tokens
        self.known_tokens_ns = _sum(self.known_tokens_ns, other.known_tokens_ns)
        self.flops += other.flops
        self.known_flops_ns = _sum(self.known_flops_ns, other.known_flops_ns)
        if other.fastest is not None and other.slowest is not None:
            self._widen(other.fastest, other.slowest)
        for place in range(len(_PARTS)):
            self.parts_ns[place] += other.parts_ns[place]
            self.parts_known[place] += other.parts_known[place]

    def to_plain(self) -> dict[str, Any]:
        """Return the state as plain data, the same whether it was read before or not."""
        self.settle()
        rest = attrs.asdict(self, filter=lambda field, _: field.name not in {"times", "waiting"})
        return {"times": self.times.to_plain(), **rest}

    def figures(self, ranks: int, peak_flops_per_s: float | None) -> dict[str, Any]:
        """Return the figures of the work under One Logger's names."""
        self.settle()
        tera_per_s = _per_second(self.flops, self.known_flops_ns)
        tflops = None if tera_per_s is None else tera_per_s / _TERA
        per_gpu = None if tflops is None else tflops / ranks
        parts = zip(_PARTS, self.parts_ns, self.parts_known, strict=True)
        return {
            **self.times.seconds(),
            **{name: ns / known / NS_PER_S if known else None for name, ns, known in parts},
            "num_train_samples": self.samples,
            "train_tokens": None if self.known_tokens_ns is None else self.tokens,
            "total_flops": None if self.known_flops_ns is None else self.flops,
            "avg_tflops": tflops,
            "avg_tokens_per_second": _per_second(self.tokens, self.known_tokens_ns),
            "avg_batch_size": self.samples / self.known_samples if self.known_samples else None,
            "train_throughput_per_gpu": per_gpu,
            "train_throughput_per_gpu_max": self.fastest,
            "train_throughput_per_gpu_min": self.slowest,
            "mfu": None if per_gpu is None or peak_flops_per_s is None else per_gpu * _TERA / peak_flops_per_s,
            "num_failed_iterations": self.failed,
        }


def _sum(mine: int | None, its: int | None) -> int | None:
    return its if mine is None else mine if its is None else mine + its


def _per_second(amount: float, time_ns: int | None) -> float | None:
    return amount * NS_PER_S / time_ns if time_ns else None


PLACES: Final = {span_names.MODEL_FORWARD: 0, span_names.MODEL_BACKWARD: 1, span_names.DATA_LOADING: 2}
"""The index of each timed part in `IterationWork.parts_ns`, by span name."""

_LOOPS: Final = frozenset((span_names.TRAINING_LOOP, span_names.VALIDATION_LOOP, span_names.TESTING_LOOP))
_MOST_OPEN_SPANS: Final = 64


@attrs.define
class OpenParts:
    """
    The times of the timed parts within each span that is still open.

    A part ends before the iteration around it. So at its end each span hands its parts to the span around it, up to an
    iteration or the loop. In the loop they wait for its next iteration.
    """

    within: dict[int, list[int]] = attrs.field(factory=dict)
    """By span id."""

    def end(self, event: SpanEnded) -> None:
        """Read the end of a span that held parts."""
        parts = self.within.pop(event.span_id)
        if event.name in _LOOPS:
            return
        if event.name in PLACES:
            parts[PLACES[event.name]] = event.duration_ns  # it includes the parts inside it
        held = self.within.get(event.parent_span_id) or self.begin(event.parent_span_id)
        for place, part_ns in enumerate(parts):
            held[place] += part_ns

    def begin(self, parent_id: int) -> list[int]:
        """Return a new list in which the parts of an open span are added up."""
        held = self.within[parent_id] = [0, 0, 0]  # as many as PLACES
        if len(self.within) > _MOST_OPEN_SPANS:  # ends of spans were lost
            del self.within[next(iter(self.within))]
        return held

    def pop(self, iteration_id: int, loop_id: int) -> list[int] | None:
        """Return the parts of the iteration that has ended, and forget them; None if it has none."""
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
    """The iterations of all loops of one kind, validation or testing."""

    before: Durations = attrs.field(factory=Durations)
    failed_before: int = 0
    window: Durations = attrs.field(factory=Durations)
    failed: int = 0
    latest_loss: float | None = None
    trained_at_latest: int | None = None
    """Training iterations completed when the latest loop ended, or the training loop started."""

    def add(self, event: IterationEnded) -> None:
        """Add an iteration."""
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
    """The training work that is in the present weights of the network; work that was lost is not."""

    iterations: int = 0
    samples: int = 0
    train_ns: int = 0
    """In this process, like the next field."""
    validation_ns: int = 0
    flops: float | None = None
    """Of all ranks and attempts; None if the operations before this process are not known."""


@attrs.define
class OpenSave:
    """A save whose outcome is not known, and the progress when it began."""

    span_id: int
    global_step: int
    progress: Progress
    loop_began_ns: int | None


@attrs.define
class Blocked:
    """The time for which saves of one strategy blocked training."""

    count: int = 0
    total_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0

    def add(self, duration_ns: int) -> None:
        """Add the duration of one save."""
        self.min_ns = min(self.min_ns, duration_ns) if self.count else duration_ns
        self.max_ns = max(self.max_ns, duration_ns) if self.count else duration_ns
        self.count += 1
        self.total_ns += duration_ns


@attrs.define
class Saves:
    """The saves of one process, identified by their span and their global step: outcomes come in any order."""

    opened: list[OpenSave] = attrs.field(factory=list)
    settled_ids: list[int] = attrs.field(factory=list)
    """Span ids of the saves that succeeded last: a success that is reported twice counts once."""
    complete: list[Progress] = attrs.field(factory=list)
    """The progress in each of the checkpoints that were completed last."""
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
        """Count a save that failed, and forget it."""
        self._settle(event)
        self.failures += 1

    def succeed(self, event: CheckpointSaveSucceeded) -> tuple[bool, OpenSave | None]:
        """Count a success once; return whether it is new, and the save if its beginning is known."""
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
        """Remove and return the save of *event*: that of its save span; if it names none, the latest of its step."""
        found = [save for save in self.opened if save.span_id == event.save_span_id]
        if not found and not event.save_span_id:
            found = [save for save in self.opened if save.global_step == event.global_step]
        if not found:
            return None
        self.opened.remove(found[-1])
        return found[-1]

    def resumable(self, iterations: int) -> Progress:
        """Return the furthest saved progress of at most *iterations*, where a loop starts again."""
        before = [progress for progress in self.complete if progress.iterations <= iterations]
        return max(before, key=lambda progress: progress.iterations, default=Progress())


Derived: TypeAlias = "tuple[Event, ...]"
"""The events to publish after an event was read."""
_STRATEGIES: Final = {name: strategy for strategy, name in span_names.OF_CHECKPOINT_SAVE.items()}


@attrs.define
class ProcessMetrics:
    """The metrics of one process; each reader returns the events that it derives from the event it reads."""

    ranks: int = 1
    global_batch_size: int | None = None
    seq_length: int | None = None
    flops_per_sample: int | None = None
    peak_flops_per_s: float | None = None
    log_every: int = _USUAL_WINDOW
    shortest_window_ns: int = _SHORTEST_WINDOW_NS

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
        """Read the number of ranks."""
        self.ranks = max(1, event.world_size)
        return ()

    def training_configured(self, event: TrainingConfigured) -> Derived:
        """Read the settings that hold for all iterations."""
        self.global_batch_size = event.global_batch_size
        self.seq_length = event.seq_length
        self.flops_per_sample = event.flops_per_sample
        self.peak_flops_per_s = event.peak_flops_per_s
        log_every = event.log_every_n_train_iterations
        self.log_every = _USUAL_WINDOW if log_every is None else max(1, log_every)
        self.shortest_window_ns = _SHORTEST_WINDOW_NS if log_every is None else 0
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
        """Begin a loop before which *start* iterations were done."""
        progress = self.progress
        if start != progress.iterations or self.iterations_start is None:  # it does not continue the last one
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
        """Read the end of any span except an iteration's; most add nothing, or only the time of a part."""
        name, within = event.name, self.parts.within
        if name in TIMED:
            self.timer.span_ended(event)
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
        """Read the end of an iteration."""
        step = self.timer.iteration_ended(event)
        parts_ns = self.parts.pop(event.span_id, event.parent_span_id)
        if event.kind != "training":
            self._evaluated(event)
            return ()
        self.latest_parent_id = event.parent_span_id
        if self.iterations_start is None:  # no loop has reported where it starts
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
        least_ns = _LONGEST_WINDOW_NS if progress.iterations % self.log_every else self.shortest_window_ns
        return self._close_window(event) if self.window.times.total_ns >= least_ns else ()

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
        """Return the updates that would be published if the window closed now; it stays open."""
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
        """Return the progress that a save that begins now will hold."""
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
        """Read that a save failed."""
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
"""The readers of the ends of spans, by span name."""


_Reader: TypeAlias = Callable[[ProcessMetrics, Any], Derived]


class _Readers(dict[type[Event], _Reader]):
    """The readers of events, by type; that of a subclass is found when an event of it is first read."""

    def __missing__(self, cls: type[Event]) -> _Reader:
        self[cls] = next(self[base] for base in cls.__mro__ if base in self)
        return self[cls]


_BY_TYPE: Final[dict[type[Event], _Reader]] = {
    IterationEnded: ProcessMetrics.iteration_ended,
    SpanEnded: ProcessMetrics.span_ended,
    SpanStarted: ProcessMetrics.span_started,
    CheckpointSaveSucceeded: ProcessMetrics.save_succeeded,
    CheckpointSaveFailed: ProcessMetrics.save_failed,
    JobConfigured: ProcessMetrics.job_configured,
    TrainingConfigured: ProcessMetrics.training_configured,
}
_READERS: Final = _Readers(_BY_TYPE)


def read_until_derived(metrics: ProcessMetrics, events: Sequence[Event], place: int) -> tuple[int, Derived]:
    """
    Read *events* from *place* on, up to one from which others are derived.

    Returns:
        The index of the next event to be read, and what the last one gave.
    """
    for index in range(place, len(events)):
        event = events[index]
        derived = _READERS[type(event)](metrics, event)
        if derived:
            return index + 1, derived
    return len(events), ()


if native is not None:
    read_until_derived = native.compile_metrics(
        read_until_derived,
        (ProcessMetrics, StepTimer, IterationWork, Durations, Progress, OpenParts),
        (SpanEnded, IterationEnded),
        (SpanEnded, IterationSpanEnded, ProfileSpanEnded),
        PLACES,
        (TIMED | frozenset(_ENDS)) - {span_names.DATA_LOADING},
        (span_names.DATA_LOADING, span_names.THREAD, "training"),
        _READERS,
        (_LONGEST_WINDOW_NS, _FOLD_AT),
    )


@attrs.frozen(kw_only=True)
class SourceMetrics:
    """The metrics of one process: each update as it would be published now, or was published last."""

    source_id: str
    rank: int
    attempt: int
    training: TrainingMetricsUpdated | None
    """Up to the latest iteration; None if there was none. The same holds for *window*."""
    window: TrainingWindowUpdated | None
    validation: ValidationMetricsUpdated | None
    testing: TestingMetricsUpdated | None
    checkpoints: dict[str, CheckpointMetricsUpdated]
    """By strategy."""
    productive: ProductiveWorkSaved | None
    failed_saves: int
    open_saves: list[int]
    """The global steps of the saves whose outcome is not known, the oldest first."""


@attrs.frozen(kw_only=True)
class MetricsResult:
    """The metrics of all processes, ordered by rank and attempt."""

    sources: list[SourceMetrics]
    missed: int
    """Events that the model should have had and did not get."""


@attrs.define
class _Place:
    """One process, and the latest events derived from it."""

    source: Source
    metrics: ProcessMetrics = attrs.field(factory=ProcessMetrics)
    validation: ValidationMetricsUpdated | None = None
    testing: TestingMetricsUpdated | None = None
    productive: ProductiveWorkSaved | None = None
    checkpoints: dict[str, CheckpointMetricsUpdated] = attrs.field(factory=dict)

    def has_any(self) -> bool:
        """Return whether any metric of the process is known."""
        saves = self.metrics.saves
        derived = (self.validation, self.testing, self.productive, self.checkpoints, saves.opened, saves.failures)
        return self.metrics.has_trained() or any(derived)


class TrainingMetrics(VersionedModel):
    """
    Keeps the metrics of a training: iteration times, throughput, losses, and the saved part of the work.

    ::

        bus.subscribe(TrainingMetrics(publish=bus.publish))

    Each process is computed alone, so the order in which events of several processes arrive does not matter. The cost
    of an event and the memory do not grow with the length of the job.

    Args:
        publish: Called with every update; needed only in the process that trains.
    """

    version = 1

    runs_on = RunsOn.DISPATCHER
    reads: ClassVar[tuple[type[Event], ...]] = tuple(_BY_TYPE)

    def __init__(self, publish: Publish | None = None) -> None:
        self.publish = publish
        self._places: dict[str, _Place] = {}

    def consume(self, frame: FrameView) -> None:
        """Read one frame, or a part of one, of one source."""
        events = frame.of(*self.reads)
        if not events:
            return
        place, read = self._place_of(frame.source), 0
        while read < len(events):
            read, derived = read_until_derived(place.metrics, events, read)
            for event in derived:
                self._derive(place, event)

    def _place_of(self, source: Source) -> _Place:
        place = self._places.get(source.id)
        if place is None:
            place = self._places[source.id] = _Place(source)
            place.metrics.ranks = source.world_size
        place.source = source
        return place

    def _derive(self, place: _Place, event: Event) -> None:
        if isinstance(event, ValidationMetricsUpdated):
            place.validation = event
        elif isinstance(event, TestingMetricsUpdated):
            place.testing = event
        elif isinstance(event, ProductiveWorkSaved):
            place.productive = event
        elif isinstance(event, CheckpointMetricsUpdated):
            place.checkpoints[event.checkpoint_strategy] = event
        if self.publish is not None:
            self.publish(event)

    def result(self) -> MetricsResult:
        """Return the current metrics."""
        places = sorted(
            self._places.values(), key=lambda place: (place.source.rank, place.source.attempt, place.source.id)
        )
        return MetricsResult(sources=[_metrics_of(place) for place in places if place.has_any()], missed=self._missed)

    def _dump(self) -> dict[str, Any]:
        places = [self._places[source_id] for source_id in sorted(self._places)]
        plain = [_converter.unstructure(place) for place in places]
        return {"places": plain}

    def _load(self, state: Mapping[str, Any]) -> None:
        places = _converter.structure(state["places"], list[_Place])
        self._places = {place.source.id: place for place in places}


def _metrics_of(place: _Place) -> SourceMetrics:
    metrics = place.metrics
    training, window = metrics.training_now() if metrics.has_trained() else (None, None)
    return SourceMetrics(
        source_id=place.source.id,
        rank=place.source.rank,
        attempt=place.source.attempt,
        training=training,
        window=window,
        validation=place.validation,
        testing=place.testing,
        checkpoints=dict(sorted(place.checkpoints.items())),
        productive=place.productive,
        failed_saves=metrics.saves.failures,
        open_saves=[save.global_step for save in metrics.saves.opened],
    )


_converter: Final = cattrs.Converter(detailed_validation=False)
_converter.register_unstructure_hook(Durations, Durations.to_plain)
_converter.register_unstructure_hook(IterationWork, IterationWork.to_plain)
_converter.register_structure_hook(Sketch, lambda data, _: Sketch.from_wire(data))
_converter.register_unstructure_hook(Source, Source.to_wire)
_converter.register_structure_hook(Source, lambda data, _: Source.from_wire(data))
# Keys of maps are strings, so that every format can carry the state.
_converter.register_unstructure_hook(
    OpenParts, lambda parts: {str(span_id): list(parts_ns) for span_id, parts_ns in parts.within.items()}
)
_converter.register_structure_hook(
    OpenParts,
    lambda data, _: OpenParts({int(span_id): [int(part) for part in parts] for span_id, parts in data.items()}),
)
