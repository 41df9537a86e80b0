"""
Fork at the worst moments: ``forking.py MOMENT FORKS DIRECTORY``.

MOMENT says where another thread is while the main one forks: inside ``log()``, or holding one of the bus's locks. Each
child logs a hundred events and ends like any program. Every process writes its frames to a file of its own. The code
after a moment's ``yield`` is for the parent alone, so it is in no ``finally``: the child, which leaves by `SystemExit`,
lacks the other threads, and one of them may have held the lock of the event that would be set. Prints the outcome of
each child, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time

from frames_to_files import Ticked, ToFile

import trackside.bus as trackside
from trackside.events import RunsOn, process_source

CHILD_EVENTS = 100
DEADLINE_S = 30.0


class ToFileWithLock(ToFile):
    """Holds a lock while it writes."""

    def __init__(self, directory):
        super().__init__(directory)
        self.lock = threading.Lock()

    def accept(self, frame, *, events):
        """Append *frame*."""
        with self.lock:
            return super().accept(frame, events=events)

    def after_fork(self, source):
        """Begin anew."""
        super().after_fork(source)
        self.lock = threading.Lock()


class Model:
    runs_on = RunsOn.DISPATCHER

    def __init__(self):
        self.pids = set()

    def __call__(self, one):
        """Note in which process this is."""
        self.pids.add(os.getpid())


@contextlib.contextmanager
def held(lock):
    """Let another thread hold *lock*."""
    has, release = threading.Event(), threading.Event()

    def hold():
        if lock.acquire(timeout=DEADLINE_S):
            has.set()
            release.wait(DEADLINE_S)
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    assert has.wait(DEADLINE_S)
    yield
    release.set()
    thread.join()


@contextlib.contextmanager
def inside_log(blocker):
    """Let another thread be inside ``log()``, in a plain callable."""
    blocker.armed.set()
    thread = threading.Thread(target=lambda: trackside.log(Ticked(number=-1)))
    thread.start()
    assert blocker.entered.wait(DEADLINE_S)
    yield
    blocker.go_on.set()
    thread.join()
    blocker.reset()


class Blocker:
    """A plain callable that blocks when it is armed."""

    def __init__(self):
        self.reset()

    def reset(self):
        """Be harmless."""
        self.armed, self.entered, self.go_on = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, one):
        """Block, if armed."""
        if one.number == -1 and self.armed.is_set() and os.getpid() == MAIN_PID:
            self.entered.set()
            self.go_on.wait(DEADLINE_S)


@contextlib.contextmanager
def busy(work):
    """Let other threads do *work* again and again."""
    stop = threading.Event()

    def again():
        while not stop.is_set():
            work()
            time.sleep(0.0002)  # otherwise the queue is full soon, and the bus reports the loss

    threads = [threading.Thread(target=again) for _ in range(3)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


def moment_of(name, sink, blocker):
    bus = trackside.default_bus
    dispatcher = bus._dispatcher
    moments = {
        "idle": contextlib.nullcontext,
        "inside log": lambda: inside_log(blocker),
        "dispatcher drains": lambda: held(dispatcher.draining),
        "dispatcher starts": lambda: held(dispatcher._thread._starting),
        "handlers leave": lambda: held(bus._retired._merging),
        "counters": lambda: held(bus.registry._lock),
        "windows": lambda: held(bus.registry._publishing),
        "sink": lambda: held(sink.lock),
        "all log": lambda: busy(lambda: trackside.log(Ticked(number=-2))),
        "all flush": lambda: busy(lambda: trackside.flush(1.0)),
        "all subscribe": lambda: busy(lambda: trackside.subscribe(len, to=Ticked, runs_on=RunsOn.WORKER).close(1.0)),
        "all read": lambda: busy(trackside.stats),
    }
    return moments[name]


def be_child(got, model):
    """Be the child: use the bus, check it, and end like any program."""
    trackside.counter("test.forking").add(1)
    got.clear()
    for number in range(CHILD_EVENTS):
        trackside.log(Ticked(number=number, pid=os.getpid()))
    assert [one.number for one in got] == list(range(CHILD_EVENTS)), "plain callables go on in the child"
    assert os.getpid() not in model.pids, "models do not"
    assert process_source().role == "worker", process_source()
    assert trackside.flush(10), "flush"
    stats = trackside.stats()
    assert [one.balance for one in stats.handlers] == [0] * len(stats.handlers), stats
    assert stats.by_type["test.frames.ticked"] == CHILD_EVENTS, stats
    assert stats.dropped_by_type == {}, stats


def fork(got, model):
    """Fork; return the child's pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.alarm(int(DEADLINE_S))
        be_child(got, model)
        code = 0
    except BaseException as error:
        sys.stderr.write(f"child: {type(error).__name__}: {error}\n")
    if code == 0:
        sys.exit(0)
    os._exit(code)


def wait_for(pid):
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hangs"


def main(name, forks, directory):
    sink, model, blocker, got = ToFileWithLock(directory), Model(), Blocker(), []
    trackside.subscribe(blocker, to=Ticked)
    trackside.subscribe(got.append, to=Ticked)
    trackside.subscribe(model, to=Ticked)
    trackside.subscribe(lambda _event: None, to=Ticked, runs_on=RunsOn.WORKER)
    trackside.subscribe(sink)
    moment = moment_of(name, sink, blocker)
    codes, logged = [], 0
    for number in range(forks):
        trackside.log(Ticked(number=number, pid=MAIN_PID))
        logged += 1
        with moment():
            pid = fork(got, model)
        codes.append(wait_for(pid))
    trackside.flush(10)
    stats = trackside.stats()
    print(
        json.dumps(
            {
                "codes": codes,
                "logged": logged,
                "source": process_source().id,
                "role": process_source().role,
                "balances": [one.balance for one in stats.handlers],
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    MAIN_PID = os.getpid()
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
