"""Starting the script again, once for each rank."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun


def launch_ranks(script: Path, arguments: Sequence[str], *, ranks: int, restarts: int) -> int:
    """
    Run *script* under torchrun, as several ranks on this machine, and return the exit status.

    Args:
        script: The script to run.
        arguments: Its command line.
        ranks: The number of processes.
        restarts: The number of times that torchrun starts all of them again when one has died.
    """
    os.environ.update(
        {
            "OMP_NUM_THREADS": "1",  # the ranks share the cores
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            # Otherwise restarted ranks find the addresses of the first ones in torchrun's store, and wait for those.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            **os.environ,
        }
    )
    options = ["--standalone", "--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    try:
        with _silence():
            torchrun([*options, str(script), *arguments])
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return 1
    except SignalException as interruption:
        return 128 + interruption.sigval
    return 0


@contextmanager
def _silence() -> Iterator[None]:
    """Keep torchrun from logging that a rank has died: that is part of the demo, unless it is one too many."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
