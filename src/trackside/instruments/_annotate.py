"""Our spans in other people's profilers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trackside.events import ConfigError
from trackside.instruments._span import set_annotator
from trackside.instruments.torch import nvtx, record_function

_WAYS: Final[dict[str, Callable[[], Callable[[str], Callable[[], object]]]]] = {
    "record_function": record_function,
    "nvtx": nvtx,
}


def annotate(how: str | None) -> None:
    """
    Show every span that opens from now on in a profiler too, whether or not anybody listens to it here.

    Args:
        how: ``record_function`` for torch's profiler, ``nvtx`` for Nsight, or None for neither.

    Raises:
        ConfigError: if *how* is none of these, or torch cannot do it.
    """
    if how is None:
        set_annotator(None)
    elif how in _WAYS:
        set_annotator(_WAYS[how]())
    else:
        raise ConfigError("annotate", how, 'give "record_function", "nvtx" or None')
