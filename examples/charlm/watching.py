"""A collector beside the job, and the line with which to watch it from another terminal."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trackside.handlers.zeromq import Collector

_SETTING = "TRACKSIDE_COLLECTOR"


@contextmanager
def watched() -> Iterator[None]:
    """
    Collect what the ranks publish while the block runs, on a thread, and print how to attach to it.

    The ranks find the collector by the environment, as they would on another machine; its sockets lie in a directory
    of this user's alone, so no keys are needed.
    """
    with (
        tempfile.TemporaryDirectory(prefix="charlm-") as directory,
        Collector(f"ipc://{directory}/ranks", publish=f"ipc://{directory}/viewers") as collector,
    ):
        thread = threading.Thread(target=collector.serve)
        thread.start()
        os.environ[_SETTING] = collector.endpoint
        print(f"Watch it from another terminal: {_command()} attach {collector.viewer_endpoint}", flush=True)
        try:
            yield
        finally:
            del os.environ[_SETTING]
            collector.stop()
            thread.join()


def _command() -> str:
    """Return the shortest command for `trackside` in this environment."""
    found = Path(sys.executable).with_name("trackside")
    return shlex.quote(str(found.relative_to(Path.cwd()) if found.is_relative_to(Path.cwd()) else found))
