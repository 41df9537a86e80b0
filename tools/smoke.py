"""
Run a small job and its report with the trackside that is installed: ``python -I tools/smoke.py [compiled|pure]``.

It records below the working directory, in runs/, and fails if trackside comes from a clone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trackside
from trackside.cli import main

STEPS = 20


def smoke(implementation: str | None) -> int:
    """Return the exit status of the report; *implementation* is the one that must run."""
    if not Path(trackside.__file__).is_relative_to(sys.prefix):
        sys.exit(f"not what was installed: {trackside.__file__}")
    if implementation not in (None, trackside.implementation):
        sys.exit(f"trackside is {trackside.implementation} and was to be {implementation}")
    with trackside.start("runs"):
        for step in range(STEPS):
            with trackside.training_iteration(step=step) as iteration:
                iteration.set(loss=1.0 / (step + 1), samples=8)
    if sum(isinstance(event, trackside.IterationEnded) for event in trackside.replay("runs")) != STEPS:
        sys.exit("the log lacks iterations")
    return main(["report", "runs"])


if __name__ == "__main__":
    sys.exit(smoke(sys.argv[1] if len(sys.argv) > 1 else None))
