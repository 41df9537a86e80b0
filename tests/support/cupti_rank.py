"""
One rank whose kernels go through the compiled core to an event log; the CUPTI below it is a stand-in.

Rank 5 takes 200 µs for each kernel of a matrix product where the others take 100 µs; of a second kernel all take 50 µs.
"""

from __future__ import annotations

import sys

import trackside
from cupti_standin import Standin
from trackside.instruments import close_section_window, section, training_iteration

STEPS = 20


def main(library: str, directory: str, rank: int) -> None:
    """Train for a window, and leave a log."""
    standin = Standin(library)  # loaded by this, so it is the one that is found
    with trackside.start(directory, report=False):
        for step in range(STEPS):
            with training_iteration(step), section("forward", gpu=True):
                assert standin.launch("gemm", 200_000 if rank == 5 else 100_000, count=3) == 3
                assert standin.launch("copy", 50_000) == 1
        close_section_window()
        assert not standin.launch("gemm"), "recorded outside of the section"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
