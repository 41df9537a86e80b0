"""The parts of a training step as frameworks show them: a span and a section each, and what a batch holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from trackside.events import ProfileSpanEnded, clock, span_names
from trackside.instruments import callbacks
from trackside.instruments._section import Section
from trackside.instruments._span import Span
from trackside.instruments.sections import section, waiting

_MOMENTS: Final[dict[str, tuple[Callable[[], Any], Callable[[], Any]]]] = {
    span_names.DATA_LOADING: (callbacks.on_data_loading_start, callbacks.on_data_loading_end),
    span_names.MODEL_FORWARD: (callbacks.on_model_forward_start, callbacks.on_model_forward_end),
    span_names.ZERO_GRAD: (callbacks.on_zero_grad_start, callbacks.on_zero_grad_end),
    span_names.MODEL_BACKWARD: (callbacks.on_model_backward_start, callbacks.on_model_backward_end),
    span_names.OPTIMIZER_UPDATE: (callbacks.on_optimizer_update_start, callbacks.on_optimizer_update_end),
}


class Parts:
    """
    The parts that are open. An end without a start, and a start of what is open, do nothing.

    Attributes:
        gpu: Whether sections time the GPU too.
        is_shared: Whether other ranks work on the same step. Then a backward pass contains waiting for them: who is
            long in it is not slow, and its section is timed and not scored.
    """

    def __init__(self) -> None:
        self.gpu = self.is_shared = False
        self._open: dict[str, Section] = {}

    def has_open(self, name: str) -> bool:
        """Return whether the part *name* is open."""
        return name in self._open

    def begin(self, name: str) -> None:
        """Begin the part *name*, one of those within a step."""
        if name in self._open:
            return
        self._open[name] = timed = self._section(name)
        _MOMENTS[name][0]()
        timed.__enter__()

    def _section(self, name: str) -> Section:
        if self.is_shared and name == span_names.MODEL_BACKWARD:
            return waiting(name)
        return section(name, gpu=self.gpu and name != span_names.DATA_LOADING)

    def end(self, name: str) -> None:
        """End the part *name*."""
        timed = self._open.pop(name, None)
        if timed is not None:
            timed.__exit__(None, None, None)
            _MOMENTS[name][1]()

    def took(self, name: str, began_ns: int) -> None:
        """Tell of the part *name* now that it is over: it began at *began_ns*, in ns since the epoch."""
        timed = section(name, gpu=False)
        now_ns = clock.now_ns()
        timed.__enter__()
        if timed._start_ns > 0:  # noqa: SLF001  it is timed at all
            timed._start_ns -= now_ns - began_ns  # noqa: SLF001
        timed.__exit__(None, None, None)
        Span(name, ProfileSpanEnded, {}).open(at_ns=began_ns).close(at_ns=now_ns)

    def end_all(self) -> None:
        """End what is open, the latest first."""
        for name in reversed(list(self._open)):
            self.end(name)

    def fail(self, error: BaseException) -> None:
        """Let an exception end what is open; the times of such sections are not kept. Their spans end elsewhere."""
        while self._open:
            _, timed = self._open.popitem()
            timed.__exit__(type(error), error, None)


_set_class: Final = object.__dict__["__class__"].__set__
"""Sets an object's class, also where the object says that it is of another one, as loaders of accelerate do."""


class TimedBatches:
    """
    An iterator's batches, with the wait for each of them timed.

    Args:
        batches: The iterator.
        parts: What times it.
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
        try:
            batch = next(self._batches)
        finally:
            self._parts.end(span_names.DATA_LOADING)
        self._on_batch(batch)
        return batch


def time_loading(loader: Any, parts: Parts, on_batch: Callable[[Any], None]) -> Callable[[], None]:
    """
    Time the waits for the batches of *loader*, which stays the object that it is: only its class is another one.

    Args:
        loader: What the training loop iterates over.
        parts: What times it.
        on_batch: Called with each batch.

    Returns:
        What ends that, for iterations that begin later.
    """
    cls = type(loader)

    def timed(self: Any) -> Iterator[Any]:
        return TimedBatches(iter(cls.__iter__(self)), parts, on_batch)

    try:
        _set_class(loader, type(cls.__name__, (cls,), {"__iter__": timed, "__module__": cls.__module__}))
    except (AttributeError, TypeError):  # a class of C, or one with slots: its waits are not seen
        return lambda: None

    def end() -> None:
        if type(loader).__iter__ is timed:
            _set_class(loader, cls)

    return end


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
