"""
Fork in other ways: ``forking_variants.py WAY``. Prints the values to check as JSON; children print for themselves.
"""

from __future__ import annotations

import gc
import json
import os
import sys

from frames_to_files import Ticked

import trackside.bus as trackside
from trackside.events import RunsOn, Source, process_source


class RecordingSink:
    lost = 0

    def __init__(self):
        self.after = []
        self.frames = 0
        self.opened = []
        self.is_closed = False

    def open(self, source):
        """Keep *source*."""
        self.opened.append(source)

    def accept(self, frame, *, events):
        """Count it."""
        self.frames += 1
        return True

    def flush(self, timeout_s):
        """Do nothing."""
        return True

    def close(self, timeout_s):
        """Note it."""
        self.is_closed = True
        return True

    def after_fork(self, source):
        """Keep *source*."""
        self.after.append(source)
        self.opened = []


class Model:
    runs_on = RunsOn.DISPATCHER

    def __call__(self, one):
        """Do nothing."""

    def __del__(self):
        """Say in which process this is."""
        say(dropped_in_child=os.getpid() != MAIN_PID)


MAIN_PID = os.getpid()


def say(**values):
    os.write(1, (json.dumps(values) + "\n").encode())


def in_child(work):
    """Run *work* in a child, and wait for it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if status:
        say(child_failed=status)


def many_dropped():
    for number in range(1000):
        bus = trackside.Bus()
        bus.subscribe(lambda _event: None)
        if number % 100 == 0:
            bus.subscribe(lambda _event: None, runs_on=RunsOn.WORKER)
            bus.log(Ticked())
            bus.flush(timeout_s=60)  # a bus that is dropped with events in its queue says that it lost them
        bus.counter(f"test.{number}").add(1)
        del bus
        if number % 250 == 0:
            gc.collect()
    in_child(lambda: say(forked=True))
    os._exit(0)  # or all that have threads would be closed in the two seconds that the process has for its end


def switched_off():
    os.environ["TRACKSIDE_FORK"] = "off"
    got, sink = [], RecordingSink()
    trackside.subscribe(got.append, to=Ticked)
    trackside.subscribe(sink, to=Ticked)
    trackside.log(Ticked())
    trackside.flush()
    frames = sink.frames

    def work():
        trackside.log(Ticked())
        sub = trackside.subscribe(got.append, to=Ticked)
        say(
            got=len(got),
            wants=trackside.wants(Ticked),
            after_close=trackside.stats().after_close,
            closed=sub.closed,
            untouched=sink.frames == frames and not sink.after and not sink.is_closed,
            close=trackside.close(),
        )

    in_child(work)
    trackside.log(Ticked())
    say(got=len(got), wants=trackside.wants(Ticked), after_close=trackside.stats().after_close)


def lazily():
    """Log nothing in a child, which opens and records nothing then."""
    sink = RecordingSink()
    trackside.subscribe(sink)
    trackside.log(Ticked())
    trackside.flush()
    frames = sink.frames

    def work():
        trackside.flush()
        trackside.close()
        say(opened=len(sink.opened), new_frames=sink.frames - frames, after_forks=len(sink.after))

    in_child(work)


def identity():
    """Fork before anything was logged."""
    trackside.subscribe(RecordingSink())
    source = process_source()

    def work():
        mine = process_source()
        say(
            role=mine.role,
            parent=mine.parent.source_id == source.id,
            run=mine.run_id == source.run_id,
            other_id=mine.id != source.id,
            pid=mine.pid == os.getpid(),
        )

    in_child(work)


def own_source():
    """Fork with a bus that has a source of its own."""
    bus = trackside.Bus(source=Source(run_id="mine"))
    sink = RecordingSink()
    bus.subscribe(sink)
    bus.log(Ticked())
    bus.flush()
    parent = sink.opened[0]

    def work():
        bus.log(Ticked())
        bus.flush()
        (mine,) = sink.opened
        say(run=mine.run_id, role=mine.role, parent=mine.parent.source_id == parent.id, same=sink.after == [mine])

    in_child(work)


def subscriptions():
    """Use subscriptions in the child that were made before the fork."""
    got = []
    plain = trackside.subscribe(got.append, to=Ticked)
    model = trackside.subscribe(Model(), to=Ticked)
    frames = trackside.subscribe(RecordingSink(), to=Ticked)
    for _ in range(3):
        trackside.log(Ticked())
    trackside.flush()

    def work():
        before = [one.stats().logged for one in (plain, frames)]
        trackside.log(Ticked())
        after = [one.stats().logged for one in (plain, frames)]
        closed = [plain.closed, model.closed, frames.closed]
        plain.close()
        frames.close()
        trackside.log(Ticked())
        say(before=before, after=after, closed=closed, got=len(got), wanted=trackside.wants(Ticked))

    in_child(work)


def within_a_handler():
    """Fork from within a plain callable."""

    def fork(one):
        if one.number == 1:
            in_child(work)

    def work():
        trackside.log(Ticked(number=2))
        trackside.flush()
        say(numbers=[one.number for one in got], balance=trackside.stats().total("balance"))

    got = []
    trackside.subscribe(fork, to=Ticked)
    trackside.subscribe(got.append, to=Ticked)
    trackside.subscribe(RecordingSink(), to=Ticked)
    trackside.log(Ticked(number=1))
    say(parent=[one.number for one in got], balance=trackside.stats().total("balance"))


def broken_sink():
    """Fork with a frame sink whose ``after_fork`` raises, and a sound one."""

    class Broken(RecordingSink):
        def after_fork(self, source):
            raise ValueError("not me")

    good = RecordingSink()
    trackside.subscribe(Broken())
    trackside.subscribe(good)
    trackside.log(Ticked())
    trackside.flush()
    frames = good.frames

    def work():
        trackside.log(Ticked())
        say(flushed=trackside.flush(), frames=good.frames - frames, handlers=len(trackside.stats().handlers))

    in_child(work)


def generations():
    """Fork in a fork."""
    trackside.subscribe(RecordingSink())
    trackside.log(Ticked())

    def grandchild(parent):
        trackside.log(Ticked())
        say(flushed=trackside.flush(), parent=process_source().parent.source_id == parent)

    def child():
        trackside.log(Ticked())
        trackside.flush()
        source_id = process_source().id
        in_child(lambda: grandchild(source_id))

    in_child(child)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
