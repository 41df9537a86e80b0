"""Number events under a source that others have, too: ``same_source.py DIRECTORY``."""

from __future__ import annotations

import os
import sys

from trackside.bus import Bus
from trackside.events import IterationEnded, Source
from trackside.handlers.eventlog import EventLog

FROZEN = Source(id="00c0ffee00c0ffee", run_id="run")
"""As a container image may hold it: the same in each process that is started from it."""
OF_PARENT = Source(run_id="run")
"""As each child of this process has it."""


def write(source):
    """Write ten events of *source*, from its beginning to its end."""
    with Bus(source=source) as bus:
        bus.subscribe(EventLog(sys.argv[1]))
        for number in range(10):
            bus.log(IterationEnded(duration_ns=number))


def main():
    for _ in range(2):
        child = os.fork()
        if child == 0:
            write(OF_PARENT)
            os._exit(0)
        os.waitpid(child, 0)
    write(FROZEN)


if __name__ == "__main__":
    main()
