"""The blocks of memory that a call leaves behind."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise


def least_growth(run: Callable[[], object], rounds: int = 6) -> int:
    """
    Return how many more blocks are allocated after a call of *run*: the fewest of several calls after the first.

    A leak shows in every call. The calls are made in a child of this process: a fork has no thread but the one that
    made it, so that nothing else allocates meanwhile.
    """
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which is what this is for
        child = os.fork()
    if child == 0:
        try:
            os.write(sending, str(growth_here(run, rounds)).encode())
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as answer:
        growth = answer.read()
    os.waitpid(child, 0)
    return int(growth)


def growth_here(run: Callable[[], object], rounds: int = 6) -> int:
    """Return the same of calls in this process, for what needs its threads: they may allocate meanwhile, too."""
    counts = []
    for _ in range(rounds):
        run()
        gc.collect()
        counts.append(sys.getallocatedblocks())
    return min(after - before for before, after in pairwise(counts))
