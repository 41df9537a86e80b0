"""How long a training loop waits for its data, whatever its loader is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from trackside.events import span_names
from trackside.instruments._parts import Parts

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
