"""Memory that a call leaves behind."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from itertools import pairwise


def least_growth(run: Callable[[], object], rounds: int = 6) -> int:
    """
    Return how many more blocks are allocated after a call of *run*, of several calls after the first the fewest.

    What leaks, leaks in every call; what other threads of the process allocate meanwhile, in some.
    """
    counts = []
    for _ in range(rounds):
        run()
        gc.collect()
        counts.append(sys.getallocatedblocks())
    return min(after - before for before, after in pairwise(counts))
