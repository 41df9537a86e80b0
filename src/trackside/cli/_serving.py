"""Helpers of the commands that serve: endpoints to paste, rarer garbage collection, and an end at a signal."""

from __future__ import annotations

import argparse
import contextlib
import gc
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

_EVERYWHERE = ("tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:")


def add_safety(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say how an endpoint is protected."""
    parser.add_argument("--keys", metavar="DIR", help="a directory of keys that `trackside keys new` made")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="use TCP without keys: anybody who reaches the port can read and send; no control verb is accepted",
    )


def paste_ready(endpoint: str) -> str:
    """Return *endpoint* as other machines can use it: one that is bound to all addresses gets this machine's name."""
    for start in _EVERYWHERE:
        if endpoint.startswith(start):
            return f"tcp://{socket.gethostname()}:{endpoint.removeprefix(start)}"
    return endpoint


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """
    Run the garbage collector less often while the block runs.

    Events come in thousands and form no reference cycles; a collection takes as long as decoding them.
    """
    before = gc.get_threshold()
    if before[0]:  # 0: the collector is off
        gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def until_signalled(stop: Callable[[], object]) -> Iterator[None]:
    """Let SIGINT and SIGTERM call *stop* while the block runs."""

    def handle(number: int, frame: Any) -> None:  # noqa: ARG001  the signal module's
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
