"""A frame sink that writes a file for each process, and the functions that children run with it."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import trackside.bus as trackside
from trackside.events import ITERATION, Event, event

CHILD_EVENTS = 50


@event("test.frames.ticked", priority=ITERATION)
class Ticked(Event):
    number: int = 0
    pid: int = 0


class ToFile:
    """Appends frames to ``<source id>.frames``, made with the first one."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.path = None
        self.lost = 0

    def open(self, source):
        """Take the file's name from the source."""
        self.path = self.directory / f"{source.id}.frames"

    def accept(self, frame, *, events):
        """Append *frame*, after its length."""
        with self.path.open("ab") as file:
            file.write(len(frame).to_bytes(4, "big") + frame)
        return True

    def flush(self, timeout_s):
        """Do nothing."""
        return True

    def close(self, timeout_s):
        """Write a line that says that the end was orderly."""
        if self.path is not None:
            self.path.with_suffix(".closed").touch()
        return True

    def after_fork(self, source):
        """Begin anew."""
        self.path = None


@functools.cache
def subscribe_once(directory):
    """Subscribe this process's frame sink once: one worker of a pool may do all the work."""
    trackside.subscribe(ToFile(directory))


def work(directory, subscribes):
    """Be the child."""
    if subscribes:
        subscribe_once(directory)
    for number in range(CHILD_EVENTS):
        trackside.log(Ticked(number=number))


def work_and_exit(directory, subscribes):
    """Be the child, and leave early."""
    work(directory, subscribes)
    sys.exit(3)


def work_and_fail(directory, subscribes):
    """Be the child, and fail."""
    work(directory, subscribes)
    raise ValueError("a child's own")
