"""What is in a batch, as far as one can tell without looking at its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

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
