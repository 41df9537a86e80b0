"""
The parts of a training step as frameworks show them: a span and a section each.

Also other code that the integrations share: it counts the samples of a batch, and replaces a framework's methods.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import attrs

from trackside.events import ProfileSpanEnded, SpanEnded, clock, process_source, span_names
from trackside.instruments import callbacks, is_evaluating, validation_iteration
from trackside.instruments import torch as pytorch
from trackside.instruments._moments import pop_open
from trackside.instruments._section import Section
from trackside.instruments._span import Span
from trackside.instruments.section_windows import section, waiting

_MOMENTS: Final[dict[str, tuple[Callable[[], Any], Callable[[], Any]]]] = {
    span_names.DATA_LOADING: (callbacks.on_data_loading_start, callbacks.on_data_loading_end),
    span_names.MODEL_FORWARD: (callbacks.on_model_forward_start, callbacks.on_model_forward_end),
    span_names.ZERO_GRAD: (callbacks.on_zero_grad_start, callbacks.on_zero_grad_end),
    span_names.MODEL_BACKWARD: (callbacks.on_model_backward_start, callbacks.on_model_backward_end),
    span_names.OPTIMIZER_UPDATE: (callbacks.on_optimizer_update_start, callbacks.on_optimizer_update_end),
}


class Parts:
    """
    The open parts of a step. An end without a start, and a start of an open part, do nothing.

    Attributes:
        gpu: Whether sections time the GPU too.
        is_shared: Whether other ranks work on the same step. Then a backward pass ends with a wait for them, which is a
            separate part. If the two cannot be separated, the section of the backward pass is timed and not scored,
            because a rank with a long time there is not slow.
    """

    def __init__(self) -> None:
        self.gpu = self.is_shared = False
        self._open: dict[str, Section] = {}
        self._computed_ns = self._synchronized_ns = 0
        """The times when this rank's gradients and those of all were there, in ns since the epoch; 0 if not known."""
        self._forget_loss: Callable[[], object] | None = None

    def begin(self, name: str) -> None:
        """Begin the part *name*, one of those within a step."""
        if name in self._open:
            return
        self._open[name] = timed = self._section(name)
        _MOMENTS[name][0]()
        timed.__enter__()

    def begin_backward(self, loss: Any) -> None:
        """Begin the backward pass from *loss*."""
        if span_names.MODEL_BACKWARD in self._open:
            return
        if self.is_shared:
            self._forget_loss = pytorch.watch_backward(loss, self._computed, self._synchronized)
        self.begin(span_names.MODEL_BACKWARD)

    def _computed(self) -> None:
        self._computed_ns = clock.now_ns()

    def _synchronized(self) -> None:
        self._synchronized_ns = clock.now_ns()

    def _section(self, name: str) -> Section:
        if self.is_shared and name == span_names.MODEL_BACKWARD:
            return waiting(name) if self._forget_loss is None else section(name)
        return section(name, gpu=self.gpu and name != span_names.DATA_LOADING)

    def end(self, name: str, error: BaseException | None = None) -> None:
        """End the part *name*; the time of a section that an *error* ended is not kept."""
        timed = self._open.pop(name, None)
        if timed is None:
            return
        if error is not None:
            if name == span_names.MODEL_BACKWARD:
                self._forget()
            timed.__exit__(type(error), error, None)
            span = pop_open(name)
            if span is not None:
                span.close(error=error)
            return
        if name == span_names.MODEL_BACKWARD and self._forget_loss is not None:
            self._end_backward(timed)
            return
        timed.__exit__(None, None, None)
        _MOMENTS[name][1]()

    def _end_backward(self, timed: Section) -> None:
        """End the backward pass at the time when it was computed, and record the wait after it as a separate part."""
        computed_ns, synchronized_ns = self._computed_ns, self._synchronized_ns
        self._forget()
        if not synchronized_ns:  # another loss was differentiated, or an exception came
            computed_ns = clock.now_ns()
        _shift(timed, clock.now_ns() - computed_ns)
        timed.__exit__(None, None, None)
        callbacks.on_model_backward_end(computed_ns / 1e6)
        if synchronized_ns:
            self.took(span_names.GRADIENT_SYNCHRONIZATION, computed_ns, synchronized_ns, waits=True)

    def _forget(self) -> None:
        forget, self._forget_loss = self._forget_loss, None
        self._computed_ns = self._synchronized_ns = 0
        if forget is not None:
            forget()

    def took(self, name: str, began_ns: int, ended_ns: int | None = None, *, waits: bool = False) -> None:
        """
        Record the part *name* from *began_ns* to *ended_ns*, in ns since the epoch; *ended_ns* is now unless given.

        If the rank *waits* for others in it, it is not scored.
        """
        ended_ns = clock.now_ns() if ended_ns is None else ended_ns
        timed = waiting(name) if waits else section(name, gpu=False)
        timed.__enter__()
        _shift(timed, began_ns - ended_ns)
        timed.__exit__(None, None, None)
        Span(name, ProfileSpanEnded, {}).open(at_ns=began_ns).close(at_ns=ended_ns)

    def end_all(self, error: BaseException | None = None) -> None:
        """End all open parts, the latest first; with an *error*, it ended them."""
        for name in reversed(list(self._open)):
            self.end(name, error)


def _shift(timed: Section, by_ns: int) -> None:
    """Move the start of a section's time by *by_ns*, if it is timed at all."""
    if timed._start_ns > 0:  # noqa: SLF001
        timed._start_ns += by_ns  # noqa: SLF001


_set_class: Final = object.__dict__["__class__"].__set__
"""Sets an object's class, even if the object reports another class, like loaders of accelerate."""


class TimedBatches:
    """
    An iterator's batches, with the wait for each of them timed.

    Args:
        batches: The iterator.
        parts: The parts that time the waits.
        on_batch: Called with each batch.
    """

    def __init__(self, batches: Iterator[Any], parts: Parts, on_batch: Callable[[Any], None]) -> None:
        self._batches = batches
        self._parts = parts
        self._on_batch = on_batch

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._parts.begin(span_names.DATA_LOADING)
        error = None
        try:
            batch = next(self._batches)
        except BaseException as raised:
            error = None if isinstance(raised, StopIteration) else raised
            raise
        finally:
            self._parts.end(span_names.DATA_LOADING, error)
        self._on_batch(batch)
        return batch


def time_loading(loader: Any, parts: Parts, on_batch: Callable[[Any], None]) -> Callable[[], None]:
    """
    Time the waits for the batches of *loader*, which stays the same object and only gets another class.

    Args:
        loader: The object over which the training loop iterates.
        parts: The parts that time the waits.
        on_batch: Called with each batch.

    Returns:
        A function that ends the timing, for iterations that begin later.
    """
    cls = type(loader)

    def timed(self: Any) -> Iterator[Any]:
        return TimedBatches(iter(cls.__iter__(self)), parts, on_batch)

    try:
        _set_class(loader, type(cls.__name__, (cls,), {"__iter__": timed, "__module__": cls.__module__}))
    except (AttributeError, TypeError):  # a class of C, or one with slots: its waits are not timed
        return lambda: None

    def end() -> None:
        if type(loader).__iter__ is timed:
            _set_class(loader, cls)

    return end


def watch_forward(
    model: Any,
    before: Callable[[Any, Any], object],
    after: Callable[[Any, Any, BaseException | None], object],
) -> list[Any]:
    """
    Watch the forward passes of *model*, and those of the module that it wraps for distributed training.

    Nothing is called for a forward pass within another one of these.

    Args:
        model: A ``torch.nn.Module``. A compiled one is watched from outside.
        before: Called with the module and its inputs when its forward pass begins.
        after: Called with the module, its outputs and the exception that ended the pass, or None, when it is over.

    Returns:
        The handles of the hooks, each with a ``remove()``.
    """
    not_compiled = pytorch.not_compiled()
    outermost: Any = None

    def begin(module: Any, inputs: Any) -> None:
        nonlocal outermost
        if module is model or outermost is not model:
            outermost = module
            before(module, inputs)

    def end(module: Any, _inputs: Any, outputs: Any) -> None:
        nonlocal outermost
        if module is outermost:
            outermost = None
            # torch calls the hook while it handles the exception that ends the pass.
            after(module, outputs, sys.exc_info()[1] if outputs is None else None)

    inner: Any = getattr(model, "module", None)
    return [
        handle
        for module in (model, inner)
        if hasattr(module, "register_forward_pre_hook")
        for handle in (
            module.register_forward_pre_hook(not_compiled(begin)),
            module.register_forward_hook(not_compiled(end), always_call=True),
        )
    ]


@attrs.define
class WatchedEvaluation:
    """
    The validation loop that a model in evaluation mode runs through.

    Only what comes after it shows that it has ended, so its spans are recorded when they are over.
    """

    is_open: bool = False
    _began_ns: int = 0
    _batch_ns: int = 0
    _samples: int | None = None
    _latest_ns: int = 0
    """The time when the latest forward pass ended."""

    def begin_batch(self, samples: int | None) -> None:
        """Begin a forward pass, which ends the batch before it."""
        if not self.is_open and is_evaluating():
            return  # the script has spans of its own for it
        now_ns = clock.now_ns()
        if self.is_open:
            self._record_batch(now_ns)
        else:
            self.is_open, self._began_ns = True, now_ns
        self._batch_ns, self._latest_ns = now_ns, now_ns
        self._samples = None if samples is None else samples * max(1, process_source().world_size)

    def end_forward(self, error: BaseException | None = None) -> None:
        """End the forward pass, or by an *error* the whole loop."""
        self._latest_ns = clock.now_ns()
        if error is not None:
            self.end(error=error)

    def end(self, at_ns: int | None = None, error: BaseException | None = None) -> None:
        """
        Record the end of the loop: at *at_ns*, in ns since the epoch, or with its last forward pass.

        Its last iteration has failed if there is an *error*.
        """
        if not self.is_open:
            return
        self.is_open = False
        at_ns = self._latest_ns if at_ns is None else max(at_ns, self._latest_ns)
        self._record_batch(at_ns, error)
        Span(span_names.VALIDATION_LOOP, SpanEnded, {}).open(at_ns=self._began_ns).close(at_ns=at_ns)

    def _record_batch(self, at_ns: int, error: BaseException | None = None) -> None:
        iteration = validation_iteration(samples=self._samples)
        iteration.open(at_ns=self._batch_ns)
        iteration.close(at_ns=at_ns, error=error)


_DEEPEST: Final = 4


def samples_in(batch: Any) -> int | None:
    """
    Return how many samples are in *batch*: the length of the first tensor found in it; None if there is none.

    Args:
        batch: A tensor, or tensors in tuples, lists, mappings and objects that act like them.
    """
    return _samples(batch, _DEEPEST)


def _samples(batch: Any, depth: int) -> int | None:
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if not depth or isinstance(batch, (str, bytes)):
        return None
    parts: Any = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, Sequence):
        parts = batch
    for part in parts:
        found = _samples(part, depth - 1)
        if found is not None:
            return found
    return None


_ABSENT: Final = object()


class _Patch(NamedTuple):
    owner: Any
    name: str
    before: Any
    """The entry of the owner's own dictionary; absent if the method was inherited."""
    replacement: Any


class Patches:
    """Replaced methods, to be put back."""

    def __init__(self) -> None:
        self._applied: list[_Patch] = []

    def __len__(self) -> int:
        return len(self._applied)

    def replace(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace the method *name* of *owner*, an object or a class, by what *make* returns when called with it."""
        method = getattr(owner, name, None)
        if method is None:
            return
        before = vars(owner).get(name, _ABSENT)
        replacement = make(method)
        setattr(owner, name, replacement)
        self._applied.append(_Patch(owner, name, before, replacement))

    def remove(self) -> None:
        """Put every method back, the latest first; one that other code has replaced since stays as it is."""
        while self._applied:
            patch = self._applied.pop()
            if vars(patch.owner).get(patch.name) is not patch.replacement:
                continue
            if patch.before is _ABSENT:
                delattr(patch.owner, patch.name)
            else:
                setattr(patch.owner, patch.name, patch.before)
