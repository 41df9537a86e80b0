"""
End in some way while something is stuck: ``exiting.py WAY STUCK``.

WAY is how the program ends; STUCK names the part that blocks. Prints when it begins to leave, by the monotonic clock.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import trackside.bus as trackside
from trackside.bus import _bus
from trackside.events import LIFECYCLE, Event, RunsOn, event

EVENTS = 1000

# A shell starts its background jobs with Ctrl-C ignored, and so the tests, and the programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@event("test.exiting.ticked", priority=LIFECYCLE)
class Ticked(Event):
    number: int = 0


class ToFifo:
    """
    Writes frames to a FIFO without a reader, on a thread of its own, and waits for it no longer than its time limit.
    """

    def __init__(self):
        self.path = Path(tempfile.mkdtemp()) / "fifo"
        os.mkfifo(self.path)
        self.waiting = 0
        self.written = threading.Event()
        self.frames = []
        self.lost = 0

    def open(self, source):
        """Start to open the FIFO, which takes until it is read."""
        threading.Thread(target=self._write, daemon=True).start()

    def _write(self):
        with self.path.open("wb") as fifo:
            for frame in self.frames:
                fifo.write(frame)
            self.written.set()

    def accept(self, frame, *, events):
        """Keep *frame* for the thread."""
        self.frames.append(frame)
        self.waiting += events
        return True

    def flush(self, timeout_s):
        """Wait for the thread."""
        return self.written.wait(timeout_s)

    def close(self, timeout_s):
        """Wait for the thread; frames that it did not write are lost."""
        done = self.written.wait(timeout_s)
        if not done:
            self.lost = self.waiting
        return done

    def after_fork(self, source):
        """Do nothing."""


class Blocking(ToFifo):
    """A frame sink that blocks the dispatcher, against the rules."""

    def __init__(self):
        self.lost = 0

    def open(self, source):
        """Do nothing."""

    def accept(self, frame, *, events):
        """Never return."""
        threading.Event().wait()

    def flush(self, timeout_s):
        """Do nothing."""
        return False

    close = flush


def never(_event):
    threading.Event().wait()


def say_when():
    print(time.monotonic(), flush=True)


def set_up(stuck):
    if stuck == "sink_worker":
        trackside.subscribe(never, to=Ticked, runs_on=RunsOn.WORKER)
    elif stuck == "sink_worker at the last moment":
        trackside.subscribe(never, to=Ticked, runs_on=RunsOn.WORKER)
        return
    elif stuck == "fifo":
        trackside.subscribe(ToFifo(), to=Ticked)
    elif stuck == "dispatcher":
        trackside.subscribe(Blocking(), to=Ticked)
    else:
        trackside.subscribe(lambda _event: None, to=Ticked, runs_on=RunsOn.WORKER)
    log(EVENTS)
    trackside.flush(0.3)


def log(count):
    for number in range(count):
        trackside.log(Ticked(number=number))


def main(case, stuck):
    set_up(stuck)
    if stuck == "sink_worker at the last moment":
        log(EVENTS)
    if case == "terminated":

        def leave(_number, _frame):
            say_when()
            trackside.close()
            sys.exit(3)

        signal.signal(signal.SIGTERM, leave)
        os.kill(os.getpid(), signal.SIGTERM)
    elif case == "thread":
        thread = threading.Thread(target=sys.exit)
        thread.start()
        thread.join()
        say_when()
    elif case == "exception":
        say_when()
        raise ValueError("the end")
    elif case == "interrupted":
        _bus.EXIT_S = 50.0  # far beyond the time that a busy machine takes to end a program that does not wait
        atexit.register(say_when)  # before the bus is closed: the last that was registered is called first
        say_when()
        threading.Event().wait()
    elif case == "closed":
        started = time.monotonic()
        trackside.close()
        print(time.monotonic() - started, flush=True)
    else:
        say_when()


if __name__ == "__main__":
    main(*sys.argv[1:])
