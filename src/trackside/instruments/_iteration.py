"""Iterations: the spans of loops, with the work that was done in them."""

# ruff: noqa: PLR0917, PT028 -- keywords cost time between ourselves; testing_iteration is no test

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from trackside._free_threading import LANES, kept, shared
from trackside._implementation import native
from trackside.bus import default_bus
from trackside.events import Ambient, ConfigError, IterationEnded, ProfileSpanEnded, SpanEventAdded, ambient, span_names
from trackside.events._settings import nearest
from trackside.instruments import _span
from trackside.instruments._raised import NO_ERRORS, describe, event_attributes
from trackside.instruments._span import LOGGER, F, Span, make_span, open_by_lane

if TYPE_CHECKING:
    from typing_extensions import Self

_log: Final = shared(default_bus.log)
_wants: Final = shared(default_bus.wants)
_surroundings: Final = shared(ambient.get)
_surround: Final = shared(ambient.set)
_new_event: Final[Callable[[Any], Any]] = object.__new__

_NO_ATTRIBUTES: Final[dict[str, Any]] = kept({})
_MOST_KNOWN: Final = 1_000

_FIELDS: Final = ("samples", "tokens", "flops", "loss")
_known_attributes: Final[set[str]] = set()
"""Attributes that `Iteration.set` was given before."""


def _suggest(names: Iterable[str]) -> None:
    """Warn once about each attribute that is spelt nearly like a field."""
    for name in names:
        if name not in _known_attributes and len(_known_attributes) < _MOST_KNOWN:
            _known_attributes.add(name)
            meant = nearest(name, _FIELDS)
            if meant:
                LOGGER.warning("iteration.set(%s=…) is recorded as an attribute; did you mean %s=?", name, meant)


_steps = itertools.count()
"""The one count for all loops without numbers of their own."""


def _count_step() -> int:
    return next(_steps)


next_step: Final[ContextVar[Callable[[], int]]] = ContextVar("trackside.next_step", default=_count_step)
"""Returns the next step in the training loop around, for iterations that are not given a step."""


def count_from_zero() -> None:
    """Let the steps of loops without numbers of their own begin at 0 again: another run begins."""
    global _steps  # noqa: PLW0603  as the context variable is the process's
    _steps = itertools.count()


class Iteration(Span):
    """
    One iteration of a loop: a span that knows its step and what was done in it.

    Made by `training_iteration`, `validation_iteration` and `testing_iteration`. Everything logged inside carries
    its step.

    Attributes:
        kind: ``training``, ``validation`` or ``testing``.
        step: The training step, known once it is open; -1 for none.
        failed: Whether it counts as failed even if no exception leaves it.
    """

    __slots__ = ("_given_step", "failed", "flops", "kind", "loss", "samples", "step", "tokens")

    step: int

    def __init__(
        self,
        kind: str,
        step: int | None,
        samples: int | None,
        tokens: int | None,
        flops: float | None,
        loss: float | None,
    ) -> None:
        self.kind: str = kind
        self.name: str = span_names.OF_ITERATION[kind]
        self._given_step = step
        self._given = _NO_ATTRIBUTES
        self.samples = samples
        self.tokens = tokens
        self.flops = flops
        self.loss = loss
        self.failed: bool = False
        self.id: int = 0
        self._inside: Ambient | None = None

    def open(self, *, at_ns: int | None = None) -> Self:
        """
        Begin, within the innermost open span of this thread or task.

        Args:
            at_ns: When it began, in ns since the epoch; now unless given.
        """
        if self._inside is not None:
            self._close_before_reopening(at_ns)
        around = _surroundings()
        step = self._given_step
        if step is None:
            step = next_step.get()() if self.kind == "training" else around[1]
        self.step = step
        try:
            if _wants(IterationEnded) or _span.annotator is not None:
                self._enter(around, step, at_ns)
            else:
                # No handler wants iterations, but events that are logged inside still get the step.
                self.id = 0
                self._around = around
                self._thread = threading.get_ident()
                self._inside = inside = around[0], step
                _surround(inside)
        except BaseException:
            self._withdraw(around)
            raise
        return self

    __enter__ = open  # noqa: A003  the method above is meant

    def set(
        self,
        *,
        samples: int | None = None,
        tokens: int | None = None,
        flops: float | None = None,
        loss: float | None = None,
        **attributes: Any,
    ) -> None:
        """
        Record the work done in the iteration, at any time before it ends.

        Args:
            samples: Samples processed, over all ranks.
            tokens: Tokens processed, over all ranks.
            flops: Floating-point operations done by this rank.
            loss: The loss. A tensor is detached and read later, on telemetry's own thread, so that nothing waits for
                the device. Until then it must not be changed in place.
            attributes: Anything else; published as a span event named ``attributes`` when the iteration ends.
        """
        if samples is not None:
            self.samples = samples
        if tokens is not None:
            self.tokens = tokens
        if flops is not None:
            self.flops = flops
        if loss is not None:
            detach = None if loss.__class__ is float else getattr(loss, "detach", None)
            self.loss = loss if detach is None else detach()
        if attributes:
            if not _known_attributes.issuperset(attributes):
                _suggest(attributes)
            self.attributes: dict[str, Any] = {**(self.attributes if self.id else {}), **attributes}

    def fail(self) -> None:
        """Count it as failed, though no exception leaves it; a failed iteration is not productive."""
        self.failed = True

    def _leave(
        self,
        kind: type[BaseException] | None,  # noqa: ARG002  it is what __exit__ is given
        error: BaseException | None,
        trace: TracebackType | None,  # noqa: ARG002
        end_ns: int | None = None,
    ) -> None:
        inside, self._inside = self._inside, None
        if inside is None:
            if self.id:
                self.close(error=error)
            return
        try:
            if end_ns is None:
                end_ns = _span._offset_ns + _span._monotonic_ns()  # noqa: SLF001  of our own base class
            spans = open_by_lane[self._thread % LANES]
            if _surroundings() is inside and _span.annotator is None and spans.pop(self.id, None) is self:
                _surround(self._around)
            elif not self._step_out(inside):
                return
            # Filled without the constructor, as in Span._leave.
            ended = _new_event(IterationEnded)
            ended.at_ns = end_ns
            ended.span_id = self.id
            ended.parent_span_id = self.parent_id
            ended.step = self.step
            ended.kind = self.kind
            ended.duration_ns = end_ns - self.start_ns
            ended.samples = self.samples
            ended.tokens = self.tokens
            ended.flops = self.flops
            ended.loss = self.loss
            ended.failed = self.failed or error is not None
        except BaseException as raised:
            if self._is_reopened(raised, inside):
                self._leave(None, error or raised, None, end_ns)
            raise
        try:
            if error is not None and not isinstance(error, NO_ERRORS):
                self._publish_error(end_ns, error)
            if self.attributes:
                self._publish_attributes(end_ns)
        finally:
            _log(ended)

    if not TYPE_CHECKING:  # as the base class declares it
        __exit__ = _leave

    def _publish_error(self, end_ns: int, error: BaseException) -> None:
        described = describe(error, self.id, name=self.name, step=self.step, at_ns=end_ns)
        if "traceback" in described and _wants(SpanEventAdded):
            _log(
                SpanEventAdded(
                    at_ns=end_ns,
                    span_id=self.id,
                    step=self.step,
                    name=span_names.ERROR,
                    attributes=event_attributes(described),
                )
            )

    def _publish_attributes(self, end_ns: int) -> None:
        _log(
            SpanEventAdded(at_ns=end_ns, span_id=self.id, step=self.step, name="attributes", attributes=self.attributes)
        )

    def __call__(self, function: F) -> F:
        """
        Return *function* with an iteration of its own around each call.

        Raises:
            ConfigError: for a generator function, and if a step was given.
        """
        if self._given_step is not None:
            raise ConfigError("step", self._given_step, "leave it out of a decorator: every call would have the same")
        return super().__call__(function)

    def _fresh(self) -> Iteration:
        return Iteration(self.kind, None, self.samples, self.tokens, self.flops, self.loss)


if native is not None:
    _open, _close, _set = native.compile_iterations(Iteration, IterationEnded, "training", next_step)
    _methods = {"open": _open, "_leave": _close, "set": _set}
    _methods |= {"__enter__": native.special_method(_open), "__exit__": native.special_method(_close)}
    for _name, _method in _methods.items():
        setattr(Iteration, _name, _method)


class _Unheard(Iteration):
    """
    A stand-in for every iteration of a kind while no handler is subscribed: it has no state and does nothing.

    Making an `Iteration` that publishes nothing would cost twice as much. It still counts the steps, so that a later
    subscriber sees the right ones.
    """

    __slots__ = ("_counts",)

    def __init__(self, kind: str, step: int | None) -> None:
        super().__init__(kind, step, None, None, None, None)
        self.attributes = _NO_ATTRIBUTES
        self.step = -1
        self._counts = step is None and kind == "training"

    def open(self, *, at_ns: int | None = None) -> Self:  # noqa: ARG002  it is not recorded
        """Count the step."""
        if self._counts:
            next_step.get()()
        return self

    __enter__ = open  # noqa: A003  the method above is meant

    def __exit__(self, *_: object) -> None:
        pass

    def set(self, **done: Any) -> None:
        """Do nothing."""

    def fail(self) -> None:
        """Do nothing."""


_UNHEARD: Final = {kind: (_Unheard(kind, None), _Unheard(kind, -1)) for kind in span_names.OF_ITERATION}
_UNHEARD_TRAINING, _UNHEARD_VALIDATION, _UNHEARD_TESTING = _UNHEARD.values()
"""For each kind, the stand-in without a given step and the one with."""


def training_iteration(
    step: int | None = None,
    *,
    samples: int | None = None,
    tokens: int | None = None,
    flops: float | None = None,
    loss: float | None = None,
) -> Iteration:
    """
    Return a training iteration; use it with ``with``, or as a decorator.

    ::

        for step, batch in enumerate(batches):
            with training_iteration(step) as iteration:
                iteration.set(loss=train_step(batch), samples=len(batch))

    Args:
        step: Its number, from 0. Unless given, the training loop around counts, from its ``train_iterations_start``;
            outside of one, iterations are counted from 0, and from 0 again when a job of another run begins.
        samples: Samples processed, over all ranks.
        tokens: Tokens processed, over all ranks.
        flops: Floating-point operations done by this rank.
        loss: The loss.
    """
    if samples is tokens is flops is loss is None and default_bus.is_idle and _span.annotator is None:
        return _UNHEARD_TRAINING[step is not None]
    return Iteration("training", step, samples, tokens, flops, loss)


def validation_iteration(
    step: int | None = None,
    *,
    samples: int | None = None,
    tokens: int | None = None,
    flops: float | None = None,
    loss: float | None = None,
) -> Iteration:
    """
    Return a validation iteration; use it with ``with``, or as a decorator.

    Args:
        step: The training step it belongs to; the one around it unless given.
        samples: Samples processed, over all ranks.
        tokens: Tokens processed, over all ranks.
        flops: Floating-point operations done by this rank.
        loss: The loss.
    """
    if samples is tokens is flops is loss is None and default_bus.is_idle and _span.annotator is None:
        return _UNHEARD_VALIDATION[step is not None]
    return Iteration("validation", step, samples, tokens, flops, loss)


def testing_iteration(
    step: int | None = None,
    *,
    samples: int | None = None,
    tokens: int | None = None,
    flops: float | None = None,
    loss: float | None = None,
) -> Iteration:
    """
    Return a testing iteration; use it with ``with``, or as a decorator.

    Args:
        step: The training step it belongs to; the one around it unless given.
        samples: Samples processed, over all ranks.
        tokens: Tokens processed, over all ranks.
        flops: Floating-point operations done by this rank.
        loss: The loss.
    """
    if samples is tokens is flops is loss is None and default_bus.is_idle and _span.annotator is None:
        return _UNHEARD_TESTING[step is not None]
    return Iteration("testing", step, samples, tokens, flops, loss)


testing_iteration.__test__ = False  # type: ignore[attr-defined]  # pytest takes every name in test… for a test

if native is not None:
    _Unheard.__enter__, _Unheard.__exit__ = map(  # type: ignore[method-assign, misc]
        native.special_method, native.compile_unheard(_Unheard)
    )
    training_iteration, validation_iteration, testing_iteration = (
        native.compile_iteration(_function, _kind, span_names.OF_ITERATION[_kind], _NO_ATTRIBUTES, *_UNHEARD[_kind])
        for _function, _kind in (
            (training_iteration, "training"),
            (validation_iteration, "validation"),
            (testing_iteration, "testing"),
        )
    )


def data_loading(**attributes: Any) -> Span:
    """Return the span of waiting for a batch; use it with ``with``, or as a decorator."""
    return make_span(span_names.DATA_LOADING, ProfileSpanEnded, attributes)


def model_forward(**attributes: Any) -> Span:
    """Return the span of a forward pass; use it with ``with``, or as a decorator."""
    return make_span(span_names.MODEL_FORWARD, ProfileSpanEnded, attributes)


def zero_grad(**attributes: Any) -> Span:
    """Return the span of clearing the gradients; use it with ``with``, or as a decorator."""
    return make_span(span_names.ZERO_GRAD, ProfileSpanEnded, attributes)


def model_backward(**attributes: Any) -> Span:
    """Return the span of a backward pass; use it with ``with``, or as a decorator."""
    return make_span(span_names.MODEL_BACKWARD, ProfileSpanEnded, attributes)


def optimizer_update(**attributes: Any) -> Span:
    """Return the span of an optimizer step; use it with ``with``, or as a decorator."""
    return make_span(span_names.OPTIMIZER_UPDATE, ProfileSpanEnded, attributes)


if native is not None:
    data_loading, model_forward, zero_grad, model_backward, optimizer_update = (
        native.compile_named(_function, _name, ProfileSpanEnded)
        for _function, _name in (
            (data_loading, span_names.DATA_LOADING),
            (model_forward, span_names.MODEL_FORWARD),
            (zero_grad, span_names.ZERO_GRAD),
            (model_backward, span_names.MODEL_BACKWARD),
            (optimizer_update, span_names.OPTIMIZER_UPDATE),
        )
    )
