"""Timing of collectives: how long this rank waits for the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trackside.instruments._wrapping import CallableId, Layers
from trackside.instruments.section_windows import waiting
from trackside.instruments.torch import distributed

COLLECTIVES: Final = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)

_layers: Final = Layers(waiting)


def time_collectives(names: Sequence[str] = COLLECTIVES) -> None:
    """
    Time the calls into ``torch.distributed`` from now on, as sections in which this rank waits.

    What is timed is how long a call holds up the host; what a back end does later on the GPU is not seen. Calls
    under a name that was imported before (``from torch.distributed import all_reduce``) are not seen either.

    Args:
        names: Which functions; those that this torch does not have are passed over.

    Raises:
        ConfigError: if torch is not installed.
    """
    module = distributed()
    _layers.wrap([CallableId(module, name) for name in names if hasattr(module, name)])


def stop_timing_collectives() -> None:
    """Undo every `time_collectives`."""
    _layers.restore(everything=True)
