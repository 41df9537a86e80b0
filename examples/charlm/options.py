"""The options of the command line."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path


def read_options(description: str, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; the launcher's and the ranks' are the same."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)

    job = parser.add_argument_group("the job")
    job.add_argument(
        "--out", type=Path, default=argparse.SUPPRESS, help="directory of the run (default: runs/charlm-<time>)"
    )
    job.add_argument("--ranks", type=int, default=2, help="training processes to start")
    job.add_argument("--steps", type=int, default=500, help="how many to train, those of earlier attempts included")
    job.add_argument(
        "--resume", choices=("auto", "never"), default="auto", help="go on from the run's latest checkpoint, if any"
    )
    job.add_argument("--validate-every", type=int, default=100, metavar="STEPS", help="from one validation to the next")
    job.add_argument("--save-every", type=int, default=100, metavar="STEPS", help="from one checkpoint to the next")
    job.add_argument(
        "--kill-at",
        type=int,
        default=250,
        metavar="STEP",
        help="kill the last rank before this step, once, and let torchrun restart the job; -1 for not at all",
    )
    job.add_argument(
        "--slow-from",
        type=int,
        default=150,
        metavar="STEP",
        help="slow the last rank down in loading its data from this step on; -1 for not at all",
    )
    job.add_argument("--slow-ms", type=float, default=5.0, metavar="MS", help="by how much, at each batch")
    job.add_argument("--seed", type=int, default=1, help="of the weights, the batches and the samples")
    job.add_argument(
        "--overhead-pairs",
        type=int,
        default=10,
        metavar="PAIRS",
        help="how often to compare steps with telemetry and without at the end; 0 for not at all",
    )

    model = parser.add_argument_group("the model and its data")
    model.add_argument("--width", type=int, default=96, help="numbers that describe a character; a multiple of 4")
    model.add_argument("--layers", type=int, default=2, help="transformer blocks")
    model.add_argument("--context", type=int, default=64, help="characters seen at once")
    model.add_argument("--batch-size", type=int, default=16, help="texts in a batch of one rank")
    model.add_argument("--learning-rate", type=float, default=3e-3, help="of AdamW")
    model.add_argument("--workers", type=int, default=2, help="data loading processes of each rank")

    options = parser.parse_args(arguments)
    if "out" not in options:
        if "RANK" in os.environ:
            parser.error("under torchrun, --out is needed: all ranks record into one directory")
        options.out = Path("runs") / f"charlm-{time.strftime('%Y%m%d-%H%M%S')}"
    return options
