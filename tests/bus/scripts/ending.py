"""
Log when it is too late: ``ending.py WAY``.

The WAYs are after the bus was closed, from what the interpreter tears down, from daemon threads that outlive the main
one, and from an atexit function that runs after trackside's own. Prints the counts as JSON where somebody still reads
them.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading


def report_last(count):
    stats = trackside.stats()
    os.write(1, (json.dumps({"after_close": stats.after_close, "expected": count}) + "\n").encode())


if sys.argv[1] == "later atexit":
    # Registered before trackside's, so called after it.
    atexit.register(lambda: (log(10), report_last(10)))

from frames_to_files import Ticked  # noqa: E402

import trackside.bus as trackside  # noqa: E402  some of this is about what comes before it
from trackside.events import RunsOn  # noqa: E402


def log(count):
    for number in range(count):
        trackside.log(Ticked(number=number))


class Dying:
    """Logs when it is destroyed, while the interpreter ends."""

    def __init__(self):
        self.log = trackside.log
        self.make = Ticked
        self.circle = self

    def __del__(self):
        """Log."""
        self.log(self.make())


def use_forever(started):
    started.set()
    while True:
        log(1)
        trackside.wants(Ticked)
        trackside.subscribe(type, to=Ticked).close()  # any callable will do
        trackside.stats()


def main(case):
    trackside.subscribe(lambda _event: None, to=Ticked)
    trackside.subscribe(lambda _event: None, to=Ticked, runs_on=RunsOn.WORKER)
    if case != "never used":
        log(10)
    if case == "closed":
        trackside.close()
        log(25)
        report_last(25)
    elif case == "teardown":
        # Objects of other modules are destroyed late, and those in a reference cycle at the last collection.
        sys.modules["json"].dying = Dying()
        sys.dying = Dying()
        globals()["dying"] = Dying()
        threading.current_thread().dying = Dying()
    elif case == "daemons":
        for _ in range(4):
            started = threading.Event()
            threading.Thread(target=use_forever, args=(started,), daemon=True).start()
            started.wait()
    elif case == "thread after main":
        # The interpreter waits for it, and then runs atexit functions.
        threading.Thread(target=lambda: (threading.main_thread().join(), log(5))).start()


if __name__ == "__main__":
    main(sys.argv[1])
