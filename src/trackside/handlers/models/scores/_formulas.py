"""
The formulas of the scores, as pure functions over columns.

The definitions are those of the straggler detection in NVIDIA's resiliency extension (nvidia-resiliency-ext).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import mul, truediv

Column = Sequence[float]


def lowest(rows: Sequence[Column]) -> list[float]:
    """Return the smallest value of each column of *rows*, of which there is at least one: the reference of peers."""
    return list(map(min, *rows)) if len(rows) > 1 else list(rows[0])


def section_scores(references: Column, medians: Column) -> list[float]:
    """Return of each section the reference divided by the median: 0.5 is twice as slow as the reference."""
    return list(map(truediv, references, medians))


def gpu_score(references: Column, medians: Column, weights: Column) -> float | None:
    """
    Return the average of the kernels' scores, each weighted by its time.

    Args:
        references: Of each kernel the median to compare with.
        medians: Of each kernel, the rank's own.
        weights: Of each kernel the total time in the window: launches times mean.

    Returns:
        None if there is no kernel, or no time was spent in any.
    """
    total = sum(weights)
    weighted: float = sum(map(mul, map(truediv, references, medians), weights))
    return weighted / total if total else None


def total_times(counts: Iterable[float], means: Iterable[float]) -> list[float]:
    """Return of each kernel the total time: its weight in the GPU score."""
    return list(map(mul, counts, means))


def is_nccl(name: str) -> bool:
    """Return whether *name* is a kernel of NCCL: its time is spent waiting for others, so it is left out."""
    return "ncclDev" in name
