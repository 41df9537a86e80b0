"""
Write an event log and fork at the worst moments: ``forking_writer.py DIRECTORY ROUNDS``.

The moments are: while another thread holds a lock of the log, and while the log's thread is inside a write. Each child
writes a hundred events to a file of its own. Prints, as JSON, how much each process wrote.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time

from framing import iterations_of
from trackside.events import Source
from trackside.handlers.eventlog import EventLog

CHILD_EVENTS = 100
DEADLINE_S = 20.0


@contextlib.contextmanager
def held(lock):
    """Let another thread hold *lock*."""
    has, release = threading.Event(), threading.Event()

    def hold():
        with lock:
            has.set()
            release.wait(DEADLINE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    has.wait(DEADLINE_S)
    try:
        yield
    finally:
        release.set()
        thread.join()


class SlowWrite:
    """Stands in for `os.write`; halts within the next write to a file, half of it done."""

    def __init__(self):
        self.write = os.write
        self.armed = False
        self.inside, self.go_on = threading.Event(), threading.Event()

    def __call__(self, fd, data):
        """Write to *fd*, as slowly as the test asked for."""
        if not self.armed or fd < 3:
            return self.write(fd, data)
        self.armed = False
        written = self.write(fd, data[: len(data) // 2])
        self.inside.set()
        self.go_on.wait(DEADLINE_S)
        return written


@contextlib.contextmanager
def writing(log, slow):
    """Let the log's thread be inside a write."""
    slow.inside.clear()
    slow.go_on.clear()
    slow.armed = True
    log.flush(0.0)  # asks for a write, and does not wait for it
    slow.inside.wait(DEADLINE_S)
    try:
        yield
    finally:
        slow.go_on.set()


def run_child(log, source, slow):
    """Be the child: write, and leave without running the parent's exit."""
    slow.armed = False
    log.after_fork(source)
    for first in range(0, CHILD_EVENTS, 10):
        log.accept(iterations_of(source, first, 10), events=10)
    return 0 if log.flush(5) and log.close(5) else 1


def fork_once(log, source, slow):
    child = source.child()
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = run_child(log, child, slow)
        finally:
            os._exit(code)
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return child.id, os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return child.id, "hangs"


def main():
    directory, rounds = sys.argv[1], int(sys.argv[2])
    slow = SlowWrite()
    os.write = slow
    source = Source(run_id="forking")
    log = EventLog(directory)
    log.open(source)
    children, first = {}, 0
    for n in range(rounds):
        log.accept(iterations_of(source, first, 7), events=7)
        first += 7
        if n % 3 == 0:
            moment = held(log._buffer.lock)
        elif n % 3 == 1:
            moment = held(log._worker._working)
        else:
            moment = writing(log, slow)
        with moment:
            child, code = fork_once(log, source, slow)
        children[child] = code
    closed = log.close(DEADLINE_S)
    print(json.dumps({"parent": source.id, "events": first, "closed": closed, "children": children}))


if __name__ == "__main__":
    main()
