"""The phases of a job: the long spans, published when they begin and when they end."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from trackside.core import is_from_signal_handler
from trackside.events import Ambient, ConfigError, SpanEnded, Value, span_names
from trackside.instruments._defaults import training_defaults
from trackside.instruments._iteration import next_step
from trackside.instruments._span import Span, become_root, tolerated

if TYPE_CHECKING:
    from typing_extensions import Self

Target: TypeAlias = int | Callable[[], int | None] | None
"""A number, or a function that returns it when it is needed; None if not given."""


@attrs.frozen(eq=False, repr=False)
class LoopFacts(Value):
    """The start and the targets of a training loop, as given by the caller."""

    iterations_start: int
    samples_start: int | None
    iterations_target: Target
    samples_target: Target

    def attributes(self) -> dict[str, float]:
        """Return the values known now; those not given are taken from the training's configuration."""
        defaults = training_defaults()
        batch = defaults.global_batch_size
        start = _count("train_iterations_start", self.iterations_start) or 0
        samples_start = _count("train_samples_start", self.samples_start)
        if samples_start is None and (batch is not None or start == 0):
            samples_start = start * (batch or 0)
        iterations_target = _count("train_iterations_target", self.iterations_target)
        samples_target = _count("train_samples_target", self.samples_target)
        if samples_target is None:
            samples_target = defaults.train_samples_target
        flops = _product(start, batch, defaults.flops_per_sample)
        known = {
            span_names.TRAIN_ITERATIONS_START: start,
            span_names.TRAIN_SAMPLES_START: samples_start,
            span_names.TRAIN_ITERATIONS_TARGET: iterations_target or defaults.train_iterations_target,
            span_names.TRAIN_SAMPLES_TARGET: samples_target,
            span_names.TRAIN_TOKENS_TARGET: _product(defaults.seq_length, samples_target),
            # A float: the operations of large jobs do not fit into 64 bits.
            span_names.COMPLETED_FLOPS_OVERALL: None if flops is None else float(flops),
        }
        return {name: value for name, value in known.items() if value is not None}


def _count(field: str, given: Target) -> int | None:
    """Return *given*, or its result if it is a function; report and drop a value that is no whole number from 0."""
    try:
        value = given() if callable(given) else given
    except Exception as error:
        if is_from_signal_handler(error):
            raise
        value, given = None, f"{type(error).__name__}: {error}"  # type: ignore[assignment]
    else:
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
            return value
    tolerated(span_names.TRAINING_LOOP, ConfigError(field, given, "give a whole number from 0, or a function of none"))
    return None


def _product(*factors: int | None) -> int | None:
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None


class Application(Span):
    """The span of the whole job, the root of the spans of all threads. Made by `application`."""

    __slots__ = ()

    def _enter(self, around: Ambient, step: int, at_ns: int | None) -> None:
        super()._enter(around, step, at_ns)
        become_root(self.id)

    def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        end_ns: int | None = None,
    ) -> None:
        if self.is_open:
            become_root(0)
        super()._leave(kind, error, trace, end_ns)

    if not TYPE_CHECKING:  # as the base class declares it
        __exit__ = _leave

    def _fresh(self) -> Application:
        return Application(self.name, self._ended, self._given)


class TrainingLoop(Span):
    """A training loop, which knows where it starts and counts its iterations. Made by `training_loop`."""

    __slots__ = ("_facts", "_next_step")

    def __init__(self, facts: LoopFacts, attributes: dict[str, Any]) -> None:
        super().__init__(span_names.TRAINING_LOOP, SpanEnded, attributes)
        self._facts = facts

    def open(self, *, at_ns: int | None = None) -> Self:
        """
        Begin, within the innermost open span of this thread or task.

        Args:
            at_ns: When it began, in ns since the epoch; now unless given.
        """
        self._given = {**self._given, **self._facts.attributes()}
        super().open(at_ns=at_ns)
        # Set even if no handler wants the span, so that a later subscriber sees the right steps.
        start = self._given[span_names.TRAIN_ITERATIONS_START]
        self._next_step = next_step.set(itertools.count(start).__next__)
        return self

    __enter__ = open  # noqa: A003  the method above is meant

    def close(self, *, at_ns: int | None = None, error: BaseException | None = None) -> None:
        """
        Close the span.

        Args:
            at_ns: When it ended, in ns since the epoch; now unless given.
            error: The exception that ended it.
        """
        # The reset fails if the loop is not open, or was opened in another task, with which its count ends.
        with contextlib.suppress(AttributeError, RuntimeError, ValueError):
            next_step.reset(self._next_step)
        super().close(at_ns=at_ns, error=error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error=error)

    def _fresh(self) -> TrainingLoop:
        return TrainingLoop(self._facts, self._given)


def application(**attributes: Any) -> Application:
    """
    Return the span of the whole job; use it with ``with``, or as a decorator.

    While it is open, it is the parent of the outermost spans of other threads.
    """
    return Application(span_names.APPLICATION, SpanEnded, attributes)


def training_loop(
    train_iterations_start: int = 0,
    *,
    train_samples_start: int | None = None,
    train_iterations_target: Target = None,
    train_samples_target: Target = None,
    **attributes: Any,
) -> TrainingLoop:
    """
    Return the span of a training loop; use it with ``with``, or as a decorator.

    Values not given are taken from the training's configuration.

    Args:
        train_iterations_start: The number of its first iteration, from 0: above 0 after a checkpoint was loaded.
        train_samples_start: Samples processed before it, over all ranks; by default iterations times batch size.
        train_iterations_target: The number of iterations after which training is done, or a function that returns it.
        train_samples_target: The number of samples after which training is done, or a function that returns it.
        attributes: Further attributes of the span.
    """
    facts = LoopFacts(train_iterations_start, train_samples_start, train_iterations_target, train_samples_target)
    return TrainingLoop(facts, attributes)


def validation_loop(**attributes: Any) -> Span:
    """Return the span of a validation loop; use it with ``with``, or as a decorator."""
    return Span(span_names.VALIDATION_LOOP, SpanEnded, attributes)


def testing_loop(**attributes: Any) -> Span:
    """Return the span of a testing loop; use it with ``with``, or as a decorator."""
    return Span(span_names.TESTING_LOOP, SpanEnded, attributes)


testing_loop.__test__ = False  # type: ignore[attr-defined]  # pytest takes every name in test… for a test


def distributed_init(**attributes: Any) -> Span:
    """Return the span of setting up the accelerators and their connections; for ``with``, or as a decorator."""
    return Span(span_names.DISTRIBUTED_INIT, SpanEnded, attributes)


def dataloader_init(**attributes: Any) -> Span:
    """Return the span of making the data loaders; use it with ``with``, or as a decorator."""
    return Span(span_names.DATALOADER_INIT, SpanEnded, attributes)


def model_init(**attributes: Any) -> Span:
    """Return the span of making the model; use it with ``with``, or as a decorator."""
    return Span(span_names.MODEL_INIT, SpanEnded, attributes)


def optimizer_init(**attributes: Any) -> Span:
    """Return the span of making the optimizer; use it with ``with``, or as a decorator."""
    return Span(span_names.OPTIMIZER_INIT, SpanEnded, attributes)
